#include "manager/service/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"
#include "platform/os/os_file.h"

#define INCOMING ".incoming-"
#define WRITE_BEHIND                                                                                         \
    ((uint64_t)8 << 20) /* start writing to the disk early, so that the last fsync is short */

struct store {
    char folder[PATH_MAX - 64];
    int fd;            /* of the folder */
    uint64_t promised; /* bytes that are still to come for the files begun */
    uint64_t next;
};

struct store_put {
    store_t *store;
    int fd;
    char temporary[32], hash[STORE_HASH_TEXT];
    uint64_t expected, received, flushed;
    uint64_t counted; /* its part of the store's promise */
    hash_stream_t *stream;
};

static void remove_leftovers(store_t *store)
{
    DIR *entries = opendir(store->folder);
    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (strncmp(entry->d_name, INCOMING, sizeof INCOMING - 1) == 0) unlinkat(store->fd, entry->d_name, 0);
    closedir(entries);
}

inspan_status_t store_open(const char *folder, store_t **out, inspan_error_t *err)
{
    store_t *store = calloc(1, sizeof *store);
    if (store == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (strlen(folder) >= sizeof store->folder) {
        free(store);
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", folder);
    }
    snprintf(store->folder, sizeof store->folder, "%s", folder);
    inspan_status_t status = os_mkdir_all(folder, 0700, err);
    if (status == INSPAN_OK) {
        store->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (store->fd < 0) status = error_set_errno(err, INSPAN_IO, "cannot open the folder %s", folder);
    }
    if (status != INSPAN_OK) {
        free(store);
        return status;
    }
    remove_leftovers(store);
    *out = store;
    return INSPAN_OK;
}

static bool is_old(const store_t *store, const char *name, uint32_t min_age_s)
{
    struct stat info;
    if (fstatat(store->fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) return false;
    return time(NULL) - info.st_mtime >= (time_t)min_age_s;
}

uint32_t store_sweep(store_t *store, bool (*wanted)(void *context, const char *hash), void *context,
                     uint32_t min_age_s)
{
    uint32_t removed = 0;
    DIR *entries = opendir(store->folder);
    if (entries == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (!store_valid_hash(entry->d_name) || wanted(context, entry->d_name)) continue;
        if (is_old(store, entry->d_name, min_age_s)) removed += unlinkat(store->fd, entry->d_name, 0) == 0;
    }
    closedir(entries);
    return removed;
}

void store_remove(store_t *store, const char *hash)
{
    if (store_valid_hash(hash)) unlinkat(store->fd, hash, 0);
}

void store_close(store_t *store)
{
    if (store == NULL) return;
    close(store->fd);
    free(store);
}

bool store_valid_hash(const char *hash)
{
    return strlen(hash) == STORE_HASH_TEXT - 1 && strspn(hash, "0123456789abcdef") == STORE_HASH_TEXT - 1;
}

inspan_status_t store_stat(const store_t *store, const char *hash, uint64_t *bytes)
{
    struct stat info;
    if (!store_valid_hash(hash)) return INSPAN_INVALID;
    if (fstatat(store->fd, hash, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
        return INSPAN_NOT_FOUND;
    *bytes = (uint64_t)info.st_size;
    return INSPAN_OK;
}

void store_touch(store_t *store, const char *hash)
{
    if (store_valid_hash(hash)) utimensat(store->fd, hash, NULL, AT_SYMLINK_NOFOLLOW);
}

inspan_status_t store_get(const store_t *store, const char *hash, int *fd, uint64_t *bytes,
                          inspan_error_t *err)
{
    inspan_status_t status = store_stat(store, hash, bytes);
    if (status == INSPAN_INVALID) return error_set(err, status, "'%.40s' is not a hash of 32 digits", hash);
    if (status != INSPAN_OK) return error_set(err, status, "the manager has no file %s", hash);
    *fd = openat(store->fd, hash, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0) return error_set_errno(err, INSPAN_IO, "cannot read %s/%s", store->folder, hash);
    return INSPAN_OK;
}

static inspan_status_t check_room(const store_t *store, uint64_t bytes, inspan_error_t *err)
{
    char needs[32], has[32];
    if (bytes > STORE_FILE_MAX)
        return error_set(err, INSPAN_LIMIT, "a file of %s: at most %s go through the manager",
                         units_format_size(bytes, needs, sizeof needs),
                         units_format_size(STORE_FILE_MAX, has, sizeof has));
    struct statvfs disk;
    if (fstatvfs(store->fd, &disk) != 0) return INSPAN_OK; /* the write will tell */
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    room -= store->promised < room ? store->promised : room;
    if (bytes + STORE_DISK_SPARE <= room) return INSPAN_OK;
    return error_set(err, INSPAN_LIMIT,
                     "no room for %s on the manager's disk: %s has %s left (%s are kept free)",
                     units_format_size(bytes, needs, sizeof needs), store->folder,
                     units_format_size(room, has, sizeof has), "67 MB");
}

inspan_status_t store_put_begin(store_t *store, const char *hash, uint64_t bytes, store_put_t **out,
                                inspan_error_t *err)
{
    if (!store_valid_hash(hash))
        return error_set(err, INSPAN_INVALID, "'%.40s' is not a hash of 32 digits", hash);
    inspan_status_t status = check_room(store, bytes, err);
    if (status != INSPAN_OK) return status;
    store_put_t *put = calloc(1, sizeof *put);
    if (put != NULL) put->stream = hash_stream_open();
    if (put == NULL || put->stream == NULL) {
        free(put);
        return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    }
    put->store = store;
    put->expected = bytes;
    snprintf(put->hash, sizeof put->hash, "%s", hash);
    snprintf(put->temporary, sizeof put->temporary, INCOMING "%llu", (unsigned long long)store->next++);
    put->fd = openat(store->fd, put->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (put->fd < 0) {
        status = error_set_errno(err, INSPAN_IO, "cannot write into %s", store->folder);
        store_put_abandon(put);
        return status;
    }
    store->promised += bytes;
    put->counted = bytes;
    *out = put;
    return INSPAN_OK;
}

inspan_status_t store_put_add(store_put_t *put, const void *data, size_t bytes, inspan_error_t *err)
{
    if (bytes > put->expected - put->received)
        return error_set(err, INSPAN_LIMIT, "more than the %llu bytes announced for %s",
                         (unsigned long long)put->expected, put->hash);
    hash_stream_add(put->stream, data, bytes);
    const char *from = data;
    for (size_t left = bytes; left > 0;) {
        ssize_t written = write(put->fd, from, left);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0)
            return error_set_errno(err, INSPAN_IO, "cannot write %s/%s", put->store->folder, put->hash);
        from += written;
        left -= (size_t)written;
    }
    put->received += bytes;
    put->counted -= bytes;
    put->store->promised -= bytes;
    if (put->received - put->flushed >= WRITE_BEHIND) {
        sync_file_range(put->fd, (off_t)put->flushed, (off_t)(put->received - put->flushed),
                        SYNC_FILE_RANGE_WRITE);
        put->flushed = put->received;
    }
    return INSPAN_OK;
}

static inspan_status_t verify(store_put_t *put, inspan_error_t *err)
{
    char hash[STORE_HASH_TEXT];
    hash_stream_finish128_hex(put->stream, hash);
    put->stream = NULL;
    if (put->received != put->expected)
        return error_set(err, INSPAN_CORRUPT, "%s: %llu bytes came, %llu were announced", put->hash,
                         (unsigned long long)put->received, (unsigned long long)put->expected);
    if (strcmp(hash, put->hash) != 0)
        return error_set(err, INSPAN_CORRUPT,
                         "the content that came has the hash %s, announced was %s: send it again", hash,
                         put->hash);
    return INSPAN_OK;
}

inspan_status_t store_put_commit(store_put_t *put, inspan_error_t *err)
{
    inspan_status_t status = verify(put, err);
    if (status == INSPAN_OK &&
        (fsync(put->fd) != 0 || renameat(put->store->fd, put->temporary, put->store->fd, put->hash) != 0 ||
         fsync(put->store->fd) != 0))
        status = error_set_errno(err, INSPAN_IO, "cannot write %s/%s", put->store->folder, put->hash);
    store_put_abandon(put); /* after the rename there is nothing left to remove */
    return status;
}

void store_put_abandon(store_put_t *put)
{
    if (put == NULL) return;
    put->store->promised -= put->counted;
    if (put->fd >= 0) {
        close(put->fd);
        unlinkat(put->store->fd, put->temporary, 0);
    }
    char hash[STORE_HASH_TEXT];
    if (put->stream != NULL) hash_stream_finish128_hex(put->stream, hash);
    free(put);
}
