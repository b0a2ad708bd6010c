/*
 * What the control groups (v1, v2 or both) allow a process: the least limit on the way from its own group up
 * to the mount's root. `root` is put before /proc and /sys: "" in production, a folder in tests. pid 0: the
 * calling process. Files that are missing mean no limit.
 */
#ifndef OS_CGROUP_H
#define OS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

double os_cgroup_cores(const char *root, pid_t pid); /* CPU quota in cores; INFINITY: none */

/* The least quota, and what its group's cpu.stat says: how many periods it had so far, and in how many of
 * them its processes were held back. counted false: no quota, or no such numbers. */
typedef struct os_cgroup_quota {
    double cores;
    bool counted;
    uint64_t periods, throttled;
} os_cgroup_quota_t;
void os_cgroup_quota(const char *root, pid_t pid, os_cgroup_quota_t *quota);

uint64_t os_cgroup_memory_limit(const char *root, pid_t pid); /* bytes; UINT64_MAX: none */
uint64_t os_cgroup_memory_used(const char *root,
                               pid_t pid); /* of the group that has that limit; 0: unknown */

/* Memory that the calling process may use: the machine's, or its groups' limit where that is less.
 * UINT64_MAX: not known. */
uint64_t os_memory_bytes(void);

/* Processes that the kernel's OOM killer ended in the process's own group so far. false: not known. */
bool os_cgroup_oom_kills(const char *root, pid_t pid, uint64_t *kills);

#endif
