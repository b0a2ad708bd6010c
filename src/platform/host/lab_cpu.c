/* Quotas: one cgroup a machine, version 1 (cpu.cfs_*) or 2 (cpu.max). */
#include "platform/host/lab_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_time.h"

/* With the kernel's default of 100 ms a machine of 0.2 core would be deaf for 80 ms at a time. */
#define PERIOD_US    20000
#define QUOTA_LEAST  1000 /* us, the kernel's */
#define LINE_SIZE    2048
#define GROUP_PREFIX "inspan-"
#define OTHERS       GROUP_PREFIX "others" /* of the processes that had to leave the parent group */
#define MOVE_ROUNDS  16                    /* a process may fork while it is moved */

static bool has_item(const char *list, const char *item, const char *separators)
{
    size_t length = strlen(item);
    for (const char *at = list; *at != '\0';) {
        size_t word = strcspn(at, separators);
        if (word == length && memcmp(at, item, length) == 0) return true;
        at += word;
        at += strspn(at, separators);
    }
    return false;
}

static inspan_status_t write_text(const char *folder, const char *name, const char *text, inspan_error_t *err)
{
    char path[LAB_PATH_SIZE * 2];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(err, INSPAN_IO, "%s", path);
    ssize_t written = write(fd, text, strlen(text));
    int cause = errno;
    close(fd);
    errno = cause;
    if (written != (ssize_t)strlen(text))
        return error_set_errno(err, INSPAN_IO, "%s: writing \"%s\"", path, text);
    return INSPAN_OK;
}

static bool file_has_item(const char *folder, const char *name, const char *item)
{
    char path[LAB_PATH_SIZE + 64];
    char line[LINE_SIZE] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool found = fgets(line, sizeof line, file) != NULL && has_item(line, item, " \n");
    fclose(file);
    return found;
}

/* ---- Which group ----------------------------------------------------------------------------- */

/* A process's path in the hierarchy, as /proc/PID/cgroup has it: lines "NUMBER:CONTROLLERS:PATH", where
 * version 2 is "0::PATH". pid 0: this process. */
static bool path_of(const char *root, const lab_cpu_t *cpu, int64_t pid, char path[LAB_PATH_SIZE])
{
    char name[LAB_PATH_SIZE + 64], line[LINE_SIZE];
    if (pid == 0)
        snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    else
        snprintf(name, sizeof name, "%s/proc/%lld/cgroup", root, (long long)pid);
    FILE *file = fopen(name, "re");
    if (file == NULL) return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':');
        char *at = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (at == NULL) continue;
        *controllers++ = '\0';
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        found =
            cpu->unified ? strcmp(line, "0") == 0 && *controllers == '\0' : has_item(controllers, "cpu", ",");
        if (found && strlen(at) >= LAB_PATH_SIZE) break;
        if (found) snprintf(path, LAB_PATH_SIZE, "%s", at);
    }
    fclose(file);
    return found;
}

/* The folder of a group's path, seen through the mount; false: it is not to be seen there. */
static bool folder_of(const lab_cpu_t *cpu, const char *path, char folder[LAB_PATH_SIZE])
{
    struct stat info;
    const size_t top = strlen(cpu->top);
    if (strncmp(path, cpu->top, top) != 0 || (path[top] != '/' && path[top] != '\0')) return false;
    const int length = snprintf(folder, LAB_PATH_SIZE, "%s%s", cpu->point, path + top);
    if (length <= 0 || length >= LAB_PATH_SIZE) return false;
    if (folder[length - 1] == '/') folder[length - 1] = '\0';
    return stat(folder, &info) == 0 && S_ISDIR(info.st_mode);
}

/* A line of mountinfo: "36 35 98:0 ROOT POINT options [tags] - type source superoptions". */
static bool examine_mount(const char *root, const char *line, lab_cpu_t *cpu)
{
    const char *tail = strstr(line, " - ");
    char top[LAB_PATH_SIZE], point[LAB_PATH_SIZE], type[32], options[256];
    if (tail == NULL || sscanf(line, "%*s %*s %*s %511s %511s", top, point) != 2) return false;
    if (sscanf(tail + 3, "%31s %*s %255s", type, options) != 2) return false;
    if (snprintf(cpu->point, LAB_PATH_SIZE, "%s%s", root, point) >= LAB_PATH_SIZE) return false;
    snprintf(cpu->top, LAB_PATH_SIZE, "%s", strcmp(top, "/") == 0 ? "" : top);
    cpu->unified = strcmp(type, "cgroup2") == 0;
    if (cpu->unified) return file_has_item(cpu->point, "cgroup.controllers", "cpu");
    return strcmp(type, "cgroup") == 0 && has_item(options, "cpu", ",");
}

inspan_status_t lab_cpu_find(const char *root, lab_cpu_t *cpu, inspan_error_t *err)
{
    char line[LINE_SIZE], path[LAB_PATH_SIZE];
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    if (file == NULL) return error_set_errno(err, INSPAN_UNSUPPORTED, "%s", path);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) found = examine_mount(root, line, cpu);
    fclose(file);
    if (!found)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "no cgroup hierarchy with the cpu controller is mounted here: "
                         "quotas of cores cannot be set");
    /* Version 1: below this process's own group, so that a quota above it stays in force. Version 2: a group
     * with processes in it can have no groups with quotas, and only the topmost can be rid of them. */
    if (cpu->unified || !path_of(root, cpu, 0, path) || !folder_of(cpu, path, cpu->parent))
        memcpy(cpu->parent, cpu->point, sizeof cpu->point);
    if (access(cpu->parent, W_OK) != 0)
        return error_set_errno(err, INSPAN_UNSUPPORTED, "cgroup %s cannot be written", cpu->parent);
    return INSPAN_OK;
}

bool lab_cpu_group_of(const char *root, const lab_cpu_t *cpu, int64_t pid, char group[LAB_PATH_SIZE])
{
    char path[LAB_PATH_SIZE];
    if (!path_of(root, cpu, pid, path)) return false;
    const char *name = strrchr(path, '/');
    char tag[LAB_TAG_SIZE];
    unsigned machine;
    return name != NULL && sscanf(name + 1, GROUP_PREFIX "%15[0-9a-z]-%u", tag, &machine) == 2 &&
           folder_of(cpu, path, group);
}

/* ---- Handing the controller down ------------------------------------------------------------- */

/* Each process of a group into another; how many there were. */
static uint32_t move_each(const char *from, const char *to)
{
    char path[LAB_PATH_SIZE * 2];
    snprintf(path, sizeof path, "%s/cgroup.procs", from);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    uint32_t n = 0;
    char line[32];
    while (fgets(line, sizeof line, file) != NULL) {
        const long pid = strtol(line, NULL, 10);
        if (pid <= 0) continue; /* 0: one that is not to be seen from here, and means the writer itself */
        snprintf(line, sizeof line, "%ld", pid);
        write_text(to, "cgroup.procs", line, NULL); /* it may have ended meanwhile */
        n++;
    }
    fclose(file);
    return n;
}

static inspan_status_t empty_group(const char *group, inspan_error_t *err)
{
    char others[LAB_PATH_SIZE + 32];
    struct stat info;
    snprintf(others, sizeof others, "%s/cgroup.type", group);
    if (stat(others, &info) != 0) return INSPAN_OK; /* the machine's root group: it may keep them */
    snprintf(others, sizeof others, "%s/" OTHERS, group);
    if (mkdir(others, 0755) != 0 && errno != EEXIST)
        return error_set_errno(err, INSPAN_IO, "cgroup %s", others);
    for (uint32_t round = 0; round < MOVE_ROUNDS; round++)
        if (move_each(group, others) == 0) break;
    return INSPAN_OK;
}

inspan_status_t lab_cpu_enable(const lab_cpu_t *cpu, inspan_error_t *err)
{
    inspan_error_t cause = {0};
    if (!cpu->unified || file_has_item(cpu->parent, "cgroup.subtree_control", "cpu")) return INSPAN_OK;
    inspan_status_t status = empty_group(cpu->parent, &cause);
    if (status == INSPAN_OK) status = write_text(cpu->parent, "cgroup.subtree_control", "+cpu", &cause);
    if (status == INSPAN_OK) return INSPAN_OK;
    return error_set(err, INSPAN_UNSUPPORTED, "the cpu controller is not handed down: %s", cause.text);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

inspan_status_t lab_cpu_make(const lab_cpu_t *cpu, const char *tag, uint32_t machine,
                             char group[LAB_PATH_SIZE], inspan_error_t *err)
{
    const int length = snprintf(group, LAB_PATH_SIZE, "%s/" GROUP_PREFIX "%s-%u", cpu->parent, tag, machine);
    if (length >= LAB_PATH_SIZE)
        return error_set(err, INSPAN_LIMIT, "cgroup path %s is too long", cpu->parent);
    return mkdir(group, 0755) == 0 ? INSPAN_OK : error_set_errno(err, INSPAN_IO, "cgroup %s", group);
}

/* What a machine was kept from using in one period, because others had the processors, it may use in the
 * next. Kernels before 5.14 do not know that; it may not be more than the quota. */
static void set_burst(bool unified, const char *group, long microseconds)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", microseconds);
    write_text(group, unified ? "cpu.max.burst" : "cpu.cfs_burst_us", text, NULL);
}

static inspan_status_t write_quota(bool unified, const char *group, long quota, inspan_error_t *err)
{
    char text[64];
    if (unified) {
        snprintf(text, sizeof text, "%ld %d", quota, PERIOD_US);
        return write_text(group, "cpu.max", text, err);
    }
    snprintf(text, sizeof text, "%d", PERIOD_US);
    inspan_status_t status = write_text(group, "cpu.cfs_period_us", text, err);
    if (status != INSPAN_OK) return status;
    snprintf(text, sizeof text, "%ld", quota);
    return write_text(group, "cpu.cfs_quota_us", text, err);
}

inspan_status_t lab_cpu_set(bool unified, const char *group, double cores, inspan_error_t *err)
{
    const long quota = (long)(cores * PERIOD_US + 0.5);
    if (quota < QUOTA_LEAST)
        return error_set(err, INSPAN_INVALID, "%g cores: a machine has at least %g", cores,
                         (double)QUOTA_LEAST / PERIOD_US);
    set_burst(unified, group, 0); /* of the quota before */
    const inspan_status_t status = write_quota(unified, group, quota, err);
    if (status == INSPAN_OK) set_burst(unified, group, quota);
    return status;
}

static void kill_group(const char *group)
{
    char path[LAB_PATH_SIZE * 2];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    long pid;
    while (fscanf(file, "%ld", &pid) == 1)
        if (pid > 1 && pid != (long)getpid()) kill((pid_t)pid, SIGKILL);
    fclose(file);
}

static void remove_group(const char *group)
{
    ns_t deadline = os_now() + LAB_BOUND;
    while (rmdir(group) != 0 && errno == EBUSY && os_now() < deadline) {
        kill_group(group);
        poll(NULL, 0, 5); /* the killed need a moment to leave */
    }
}

void lab_cpu_close(const char *parent, const char *tag)
{
    char prefix[LAB_NAME_SIZE];
    int length = snprintf(prefix, sizeof prefix, GROUP_PREFIX "%s-", tag);
    DIR *folder = opendir(parent);
    if (folder == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0) continue;
        char group[LAB_PATH_SIZE + 256 + 2];
        snprintf(group, sizeof group, "%s/%s", parent, entry->d_name);
        remove_group(group);
    }
    closedir(folder);
}
