/* Machines of a running laboratory, from outside the process that made it: found through a process inside. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "platform/host/lab_parts.h"

#define INSIDE "eth0" /* the machine's end of its link: see lab_net.c */

/* ---- Finding --------------------------------------------------------------------------------- */

/* "inspan-4711a-2" -> "isv4711a.2": see lab_net.c. */
static bool device_of(const char *namespace_name, char device[LAB_DEVICE_SIZE])
{
    char tag[LAB_TAG_SIZE];
    unsigned machine = 0;
    if (sscanf(namespace_name, "inspan-%8[0-9a-z]-%u", tag, &machine) != 2) return false;
    snprintf(device, LAB_DEVICE_SIZE, "isv%.8s.%u", tag, machine % 100);
    return true;
}

/* Its namespace and device; both stay empty where it lives in none of a laboratory. */
static inspan_status_t find_network(int64_t pid, lab_machine_t *machine, inspan_error_t *err)
{
    char path[64];
    struct stat its, other;
    snprintf(path, sizeof path, "/proc/%lld/ns/net", (long long)pid);
    if (stat(path, &its) != 0)
        return error_set_errno(err, INSPAN_IO,
                               errno == EACCES ? "only root can look at %s" : "cannot look at %s", path);
    DIR *folder = opendir("/run/netns");
    const struct dirent *entry;
    while (folder != NULL && machine->device[0] == '\0' && (entry = readdir(folder)) != NULL) {
        if (fstatat(dirfd(folder), entry->d_name, &other, 0) != 0 || other.st_ino != its.st_ino ||
            other.st_dev != its.st_dev || strlen(entry->d_name) >= sizeof machine->network)
            continue;
        if (device_of(entry->d_name, machine->device))
            snprintf(machine->network, sizeof machine->network, "%.47s", entry->d_name);
    }
    if (folder != NULL) closedir(folder);
    return INSPAN_OK;
}

static void find_group(int64_t pid, lab_machine_t *machine)
{
    lab_cpu_t cpu;
    if (lab_cpu_find("", &cpu, NULL) != INSPAN_OK || !lab_cpu_group_of("", &cpu, pid, machine->group))
        machine->group[0] = '\0';
    else
        machine->unified = cpu.unified;
}

inspan_status_t lab_machine_of(int64_t pid, lab_machine_t *machine, inspan_error_t *err)
{
    *machine = (lab_machine_t){0};
    const inspan_status_t status = find_network(pid, machine, err);
    if (status != INSPAN_OK) return status;
    find_group(pid, machine);
    if (machine->device[0] != '\0' || machine->group[0] != '\0') return INSPAN_OK;
    return error_set(err, INSPAN_NOT_FOUND,
                     "process %lld is in no machine of a laboratory (start the cluster with --cpu or --link)",
                     (long long)pid);
}

inspan_status_t lab_link_of(int64_t pid, char device[LAB_DEVICE_SIZE], inspan_error_t *err)
{
    lab_machine_t machine = {0};
    const inspan_status_t status = find_network(pid, &machine, err);
    if (status != INSPAN_OK) return status;
    memcpy(device, machine.device, LAB_DEVICE_SIZE);
    if (device[0] != '\0') return INSPAN_OK;
    return error_set(err, INSPAN_NOT_FOUND,
                     "process %lld is in no machine of a laboratory (start the cluster with --link)",
                     (long long)pid);
}

/* ---- Looking --------------------------------------------------------------------------------- */

/* How many numbers the file begins with: at most two. */
static int read_numbers(const char *folder, const char *name, double numbers[2])
{
    char path[LAB_PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    const int n = fscanf(file, "%lf %lf", &numbers[0], &numbers[1]);
    fclose(file);
    return n;
}

static inspan_status_t look_cores(const lab_machine_t *machine, double *cores, inspan_error_t *err)
{
    double quota[2] = {0}, period[2] = {0};
    if (machine->unified) {
        if (read_numbers(machine->group, "cpu.max", quota) == 2) period[0] = quota[1];
    } else if (read_numbers(machine->group, "cpu.cfs_quota_us", quota) < 1 ||
               read_numbers(machine->group, "cpu.cfs_period_us", period) < 1) {
        period[0] = 0;
    }
    if (!(quota[0] > 0) || !(period[0] > 0))
        return error_set(err, INSPAN_IO, "cgroup %s has no quota that can be read", machine->group);
    *cores = quota[0] / period[0];
    return INSPAN_OK;
}

/* cpu.stat has the same two lines in both versions. */
static double look_throttled(const lab_machine_t *machine)
{
    char path[LAB_PATH_SIZE + 64], line[128];
    unsigned long long periods = 0, throttled = 0;
    uint32_t found = 0;
    snprintf(path, sizeof path, "%s/cpu.stat", machine->group);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file) != NULL)
        found += sscanf(line, "nr_periods %llu", &periods) == 1 ||
                 sscanf(line, "nr_throttled %llu", &throttled) == 1;
    fclose(file);
    if (found < 2) return -1;
    return periods > 0 ? (double)throttled / (double)periods : 0;
}

static inspan_status_t look_link(const lab_machine_t *machine, lab_has_t *has, inspan_error_t *err)
{
    char path[96];
    unsigned flags = 1;
    inspan_status_t status = lab_net_rate(machine->network, INSIDE, &has->link.up_bits_per_s, err);
    if (status == INSPAN_OK) status = lab_net_rate(NULL, machine->device, &has->link.down_bits_per_s, err);
    snprintf(path, sizeof path, "/sys/class/net/%s/flags", machine->device);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%x", &flags) != 1) flags = 1;
        fclose(file);
    }
    has->cut = (flags & 1) == 0; /* IFF_UP */
    return status;
}

inspan_status_t lab_machine_look(const lab_machine_t *machine, lab_has_t *has, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    *has = (lab_has_t){.throttled = -1};
    if (machine->group[0] != '\0') {
        status = look_cores(machine, &has->cores, err);
        has->throttled = look_throttled(machine);
    }
    if (status == INSPAN_OK && machine->device[0] != '\0') status = look_link(machine, has, err);
    return status;
}

/* ---- Setting --------------------------------------------------------------------------------- */

inspan_status_t lab_machine_set_cores(const lab_machine_t *machine, double cores, inspan_error_t *err)
{
    if (machine->group[0] == '\0')
        return error_set(err, INSPAN_NOT_FOUND,
                         "the machine has no quota that could change: its cluster was started without --cpu");
    return lab_cpu_set(machine->unified, machine->group, cores, err);
}

inspan_status_t lab_machine_set_link(const lab_machine_t *machine, const lab_link_t *link,
                                     inspan_error_t *err)
{
    if (machine->device[0] == '\0')
        return error_set(err, INSPAN_NOT_FOUND,
                         "the machine has no link of its own: its cluster was started without --link");
    const inspan_status_t status = lab_net_shape(machine->network, INSIDE, link->up_bits_per_s, err);
    return status == INSPAN_OK ? lab_net_shape(NULL, machine->device, link->down_bits_per_s, err) : status;
}

inspan_status_t lab_link_set(const char *device, bool up, inspan_error_t *err)
{
    return lab_run(err, "ip", "link", "set", device, up ? "up" : "down");
}
