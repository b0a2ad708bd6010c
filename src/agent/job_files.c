#include "agent/job_files.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "base/vec.h"
#include "platform/os/os_file.h"

bool job_files_good_key(const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > 64 || key[0] == '.') return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)key[i]) && strchr("._-", key[i]) == NULL) return false;
    return true;
}

bool job_files_good_hash(const char *hash)
{
    return strlen(hash) == 32 && strspn(hash, "0123456789abcdef") == 32;
}

char *job_files_set(const char *config, const char *key, const char *value)
{
    size_t n_key = strlen(key), room = strlen(config) + n_key + strlen(value) + 4;
    char *text = malloc(room), *to = text;
    if (text == NULL) return NULL;
    bool placed = false;
    for (const char *line = config; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, key, n_key) == 0 && line[n_key] == '=') {
            if (!placed) to += sprintf(to, "%s=%s\n", key, value);
            placed = true;
        } else if (length > 0) {
            memcpy(to, line, length);
            to += length;
            *to++ = '\n';
        }
        line += length + (line[length] == '\n');
    }
    if (!placed) to += sprintf(to, "%s=%s\n", key, value);
    *to = '\0';
    return text;
}

static int drop_half(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    const char *half = strstr(path + where->base, ".tmp-");
    if (half != NULL) (void)(kind == FTW_DP ? os_remove_all(path, NULL) : (inspan_status_t)unlink(path));
    return 0;
}

void job_files_drop_halves(const char *folder)
{
    (void)nftw(folder, drop_half, 8, FTW_PHYS | FTW_DEPTH); /* no such folder: nothing was written */
}

void job_files_touch(const char *path)
{
    utimensat(AT_FDCWD, path, NULL, 0);
}

/* ---- What is kept ---------------------------------------------------------------------------- */

typedef struct kept {
    char name[64];
    struct timespec used;
    uint64_t bytes;
} kept_t;

typedef vec_of(kept_t) kept_list_t;

static int older_first(const void *a, const void *b)
{
    const kept_t *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return x->used.tv_nsec < y->used.tv_nsec ? -1 : x->used.tv_nsec > y->used.tv_nsec;
}

static void list(const char *folder, bool (*wanted)(const char *name), kept_list_t *found)
{
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[PATH_MAX];
        struct stat info;
        kept_t one = {.bytes = 0};
        if (strlen(entry->d_name) >= sizeof one.name || !wanted(entry->d_name)) continue;
        snprintf(path, sizeof path, "%.3900s/%s", folder, entry->d_name);
        if (lstat(path, &info) != 0) continue;
        memcpy(one.name, entry->d_name, strlen(entry->d_name) + 1);
        one.used = info.st_mtim;
        one.bytes = (uint64_t)info.st_size;
        if (!VEC_PUSH(found, one)) break;
    }
    closedir(listing);
    if (found->n > 1) qsort(found->items, found->n, sizeof *found->items, older_first);
}

inspan_status_t job_files_make_room(const char *cache, uint64_t bytes, inspan_error_t *err)
{
    inspan_status_t status = os_mkdir_all(cache, 0700, err);
    if (status != INSPAN_OK) return status;
    kept_list_t files = {0};
    list(cache, job_files_good_hash, &files);
    uint64_t total = 0;
    for (size_t i = 0; i < files.n; i++) total += files.items[i].bytes;
    struct statvfs disk;
    uint64_t space = 0;
    for (size_t i = 0;; i++) {
        space = statvfs(cache, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
        if (i == files.n || (total + bytes <= JOB_FILES_CACHE_CAP && bytes <= space)) break;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.3900s/%s", cache, files.items[i].name);
        if (unlink(path) == 0) total -= files.items[i].bytes;
    }
    vec_free(&files);
    if (bytes <= space) return INSPAN_OK;
    char need[32], have[32];
    return error_set(err, INSPAN_LIMIT, "no room for a data file in %s: %s needed, %s free", cache,
                     units_format_size(bytes, need, sizeof need),
                     units_format_size(space, have, sizeof have));
}

static bool is_number(const char *name)
{
    return name[0] != '\0' && strspn(name, "0123456789") == strlen(name);
}

void job_files_prune(const char *jobs, const uint64_t *used, size_t n_used)
{
    kept_list_t folders = {0};
    list(jobs, is_number, &folders);
    for (size_t i = 0; i + JOB_FILES_KEPT < folders.n; i++) {
        bool busy = false;
        for (size_t k = 0; k < n_used; k++) busy |= strtoull(folders.items[i].name, NULL, 10) == used[k];
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.3900s/%s", jobs, folders.items[i].name);
        inspan_error_t err;
        if (!busy && os_remove_all(path, &err) != INSPAN_OK) log_warn("%s", err.text);
    }
    vec_free(&folders);
}
