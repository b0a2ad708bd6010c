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

/* This process's own group in the v1 hierarchy of the cpu controller: a quota above it stays in force. */
static void own_group(const char *mount_point, const char *mount_root, char parent[LAB_PATH_SIZE])
{
    snprintf(parent, LAB_PATH_SIZE, "%s", mount_point);
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return;
    char line[LINE_SIZE];
    while (fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!has_item(controllers + 1, "cpu", ",")) continue;
        size_t root = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
        if (strncmp(path, mount_root, root) != 0) break;
        char folder[LAB_PATH_SIZE];
        struct stat info;
        int length = snprintf(folder, sizeof folder, "%s%s", mount_point, path + root);
        if (length > 0 && (size_t)length < sizeof folder && stat(folder, &info) == 0 && S_ISDIR(info.st_mode))
            memcpy(parent, folder, (size_t)length + 1);
        break;
    }
    fclose(file);
    size_t end = strlen(parent);
    if (end > 1 && parent[end - 1] == '/') parent[end - 1] = '\0';
}

/* A line of mountinfo: "36 35 98:0 ROOT POINT options [tags] - type source superoptions". */
static bool examine_mount(char *line, lab_cpu_t *cpu)
{
    char *tail = strstr(line, " - ");
    char root[LAB_PATH_SIZE], point[LAB_PATH_SIZE], type[32], options[256];
    if (tail == NULL || sscanf(line, "%*s %*s %*s %511s %511s", root, point) != 2) return false;
    if (sscanf(tail + 3, "%31s %*s %255s", type, options) != 2) return false;
    if (strcmp(type, "cgroup") == 0 && has_item(options, "cpu", ",")) {
        cpu->unified = false;
        own_group(point, root, cpu->parent);
        return true;
    }
    if (strcmp(type, "cgroup2") == 0 && file_has_item(point, "cgroup.controllers", "cpu")) {
        cpu->unified = true;
        memcpy(cpu->parent, point, sizeof point);
        return true;
    }
    return false;
}

inspan_status_t lab_cpu_find(lab_cpu_t *cpu, inspan_error_t *err)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL) return error_set_errno(err, INSPAN_UNSUPPORTED, "/proc/self/mountinfo");
    char line[LINE_SIZE];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) found = examine_mount(line, cpu);
    fclose(file);
    if (!found)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "no cgroup hierarchy with the cpu controller is mounted here: "
                         "quotas of cores cannot be set");
    if (access(cpu->parent, W_OK) != 0)
        return error_set_errno(err, INSPAN_UNSUPPORTED, "cgroup %s cannot be written", cpu->parent);
    if (cpu->unified && !file_has_item(cpu->parent, "cgroup.subtree_control", "cpu")) {
        inspan_error_t cause = {0};
        if (write_text(cpu->parent, "cgroup.subtree_control", "+cpu", &cause) != INSPAN_OK)
            return error_set(err, INSPAN_UNSUPPORTED, "the cpu controller is not handed down: %s",
                             cause.text);
    }
    return INSPAN_OK;
}

inspan_status_t lab_cpu_open(const lab_cpu_t *cpu, const char *tag, uint32_t machine, double cores,
                             char group[LAB_PATH_SIZE], inspan_error_t *err)
{
    char text[64];
    long quota = (long)(cores * PERIOD_US + 0.5);
    if (quota < QUOTA_LEAST)
        return error_set(err, INSPAN_INVALID, "%g cores for machine %u: at least %g", cores, machine,
                         (double)QUOTA_LEAST / PERIOD_US);
    int length = snprintf(group, LAB_PATH_SIZE, "%s/" GROUP_PREFIX "%s-%u", cpu->parent, tag, machine);
    if (length >= LAB_PATH_SIZE)
        return error_set(err, INSPAN_LIMIT, "cgroup path %s is too long", cpu->parent);
    if (mkdir(group, 0755) != 0) return error_set_errno(err, INSPAN_IO, "cgroup %s", group);
    if (cpu->unified) {
        snprintf(text, sizeof text, "%ld %d", quota, PERIOD_US);
        return write_text(group, "cpu.max", text, err);
    }
    snprintf(text, sizeof text, "%d", PERIOD_US);
    inspan_status_t status = write_text(group, "cpu.cfs_period_us", text, err);
    if (status != INSPAN_OK) return status;
    snprintf(text, sizeof text, "%ld", quota);
    return write_text(group, "cpu.cfs_quota_us", text, err);
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

void lab_cpu_close(const lab_cpu_t *cpu, const char *tag)
{
    char prefix[LAB_NAME_SIZE];
    int length = snprintf(prefix, sizeof prefix, GROUP_PREFIX "%s-", tag);
    DIR *folder = opendir(cpu->parent);
    if (folder == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0) continue;
        char group[LAB_PATH_SIZE + 256 + 2];
        snprintf(group, sizeof group, "%s/%s", cpu->parent, entry->d_name);
        remove_group(group);
    }
    closedir(folder);
}
