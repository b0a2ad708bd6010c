#include "platform/os/os_cgroup.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/os/os_file.h"

#define PROC_FILE_MAX 65536

/* A group of one hierarchy: mount point below root, path below the mount point. */
typedef struct group {
    bool unified; /* v2 */
    char mount[PATH_MAX];
    char path[PATH_MAX];
} group_t;

/* Is `word` one of the comma-separated words of list? */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0')) return true;
    return false;
}

static char *read_small(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    return os_file_read(path, PROC_FILE_MAX, &text, &bytes, NULL) == INSPAN_OK ? text : NULL;
}

/* The mount point of the v1 hierarchy with this controller, or of v2 (controller NULL). */
static bool find_mount(const char *root, const char *controller, char *mount, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/mounts", root);
    char *text = read_small(path), *rest = text;
    bool found = false;
    for (char *line; !found && (line = strsep(&rest, "\n")) != NULL;) {
        char *device = strsep(&line, " "), *where = strsep(&line, " "), *kind = strsep(&line, " ");
        char *options = strsep(&line, " ");
        if (device == NULL || options == NULL) continue;
        found = controller == NULL ? strcmp(kind, "cgroup2") == 0
                                   : strcmp(kind, "cgroup") == 0 && list_has(options, controller);
        if (found) snprintf(mount, size, "%s%s", root, where);
    }
    free(text);
    return found;
}

/* The process's path in the hierarchy with this controller (v1) or in v2 (NULL), as /proc/PID/cgroup has it.
 */
static bool find_path(const char *root, pid_t pid, const char *controller, char *out, size_t size)
{
    char path[PATH_MAX];
    if (pid == 0)
        snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    else
        snprintf(path, sizeof path, "%s/proc/%d/cgroup", root, (int)pid);
    char *text = read_small(path), *rest = text;
    bool found = false;
    for (char *line; !found && (line = strsep(&rest, "\n")) != NULL;) {
        char *number = strsep(&line, ":"), *controllers = strsep(&line, ":");
        if (number == NULL || controllers == NULL || line == NULL) continue;
        found = controller == NULL ? strcmp(number, "0") == 0 && *controllers == '\0'
                                   : list_has(controllers, controller);
        if (found) snprintf(out, size, "%s", strcmp(line, "/") == 0 ? "" : line);
    }
    free(text);
    return found;
}

static bool find_group(const char *root, pid_t pid, const char *controller, bool unified, group_t *group)
{
    const char *wanted = unified ? NULL : controller;
    group->unified = unified;
    return find_mount(root, wanted, group->mount, sizeof group->mount) &&
           find_path(root, pid, wanted, group->path, sizeof group->path);
}

static char *read_group_file(const group_t *group, const char *file)
{
    char path[2 * PATH_MAX + 64];
    snprintf(path, sizeof path, "%s%s/%s", group->mount, group->path, file);
    return strlen(path) < PATH_MAX ? read_small(path) : NULL;
}

/* To the parent; false at the mount's root. A path that does not exist here (another cgroup namespace) leads
 * up too. */
static bool go_up(group_t *group)
{
    char *slash = strrchr(group->path, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return true;
}

static double group_cores(const group_t *group)
{
    double cores = INFINITY;
    if (group->unified) {
        char *text = read_group_file(group, "cpu.max");
        double quota, period;
        if (text != NULL && sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0)
            cores = quota / period;
        free(text);
        return cores;
    }
    char *quota = read_group_file(group, "cpu.cfs_quota_us"),
         *period = read_group_file(group, "cpu.cfs_period_us");
    if (quota != NULL && period != NULL && atof(quota) > 0 && atof(period) > 0)
        cores = atof(quota) / atof(period);
    free(quota);
    free(period);
    return cores;
}

/* cpu.stat has the same two lines in both versions. */
static void count_periods(const group_t *group, os_cgroup_quota_t *quota)
{
    char *text = read_group_file(group, "cpu.stat"), *rest = text;
    bool periods = false, throttled = false;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (strncmp(line, "nr_periods ", 11) == 0) {
            quota->periods = strtoull(line + 11, NULL, 10);
            periods = true;
        } else if (strncmp(line, "nr_throttled ", 13) == 0) {
            quota->throttled = strtoull(line + 13, NULL, 10);
            throttled = true;
        }
    }
    free(text);
    quota->counted = periods && throttled;
}

void os_cgroup_quota(const char *root, pid_t pid, os_cgroup_quota_t *quota)
{
    *quota = (os_cgroup_quota_t){.cores = INFINITY};
    for (int unified = 0; unified < 2; unified++) {
        group_t group;
        if (!find_group(root, pid, "cpu", unified != 0, &group)) continue;
        do {
            double cores = group_cores(&group);
            if (cores >= quota->cores) continue;
            *quota = (os_cgroup_quota_t){.cores = cores};
            count_periods(&group, quota);
        } while (go_up(&group));
    }
}

double os_cgroup_cores(const char *root, pid_t pid)
{
    os_cgroup_quota_t quota;
    os_cgroup_quota(root, pid, &quota);
    return quota.cores;
}

/* v1 says "no limit" as a number near 2^63, v2 as "max". */
static uint64_t group_memory_limit(const group_t *group)
{
    char *text = read_group_file(group, group->unified ? "memory.max" : "memory.limit_in_bytes");
    uint64_t limit = UINT64_MAX;
    if (text != NULL && text[0] >= '0' && text[0] <= '9') limit = strtoull(text, NULL, 10);
    free(text);
    return limit > (UINT64_C(1) << 62) ? UINT64_MAX : limit;
}

static uint64_t least_memory_limit(const char *root, pid_t pid, uint64_t *used)
{
    uint64_t least = UINT64_MAX;
    for (int unified = 0; unified < 2; unified++) {
        group_t group;
        if (!find_group(root, pid, "memory", unified != 0, &group)) continue;
        do {
            uint64_t limit = group_memory_limit(&group);
            if (limit >= least) continue;
            least = limit;
            char *text = read_group_file(&group, unified ? "memory.current" : "memory.usage_in_bytes");
            *used = text != NULL ? strtoull(text, NULL, 10) : 0;
            free(text);
        } while (go_up(&group));
    }
    return least;
}

uint64_t os_cgroup_memory_limit(const char *root, pid_t pid)
{
    uint64_t used = 0;
    return least_memory_limit(root, pid, &used);
}

uint64_t os_cgroup_memory_used(const char *root, pid_t pid)
{
    uint64_t used = 0;
    return least_memory_limit(root, pid, &used) == UINT64_MAX ? 0 : used;
}

uint64_t os_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    const uint64_t limit = os_cgroup_memory_limit("", 0);
    return limit < machine ? limit : machine;
}

bool os_cgroup_oom_kills(const char *root, pid_t pid, uint64_t *kills)
{
    for (int unified = 1; unified >= 0; unified--) {
        group_t group;
        if (!find_group(root, pid, "memory", unified != 0, &group)) continue;
        char *text = read_group_file(&group, unified ? "memory.events" : "memory.oom_control"), *rest = text;
        bool found = false;
        for (char *line; !found && (line = strsep(&rest, "\n")) != NULL;)
            if (strncmp(line, "oom_kill ", 9) == 0) {
                *kills = strtoull(line + 9, NULL, 10);
                found = true;
            }
        free(text);
        if (found) return true;
    }
    return false;
}
