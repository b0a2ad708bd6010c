/* Pulling the cable of a machine of a laboratory, from outside the process that made it. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "platform/host/lab_parts.h"

/* "inspan-4711a-2" -> "isv4711a.2": see lab_net.c. */
static bool device_of(const char *namespace_name, char device[LAB_DEVICE_SIZE])
{
    char tag[LAB_TAG_SIZE];
    unsigned machine = 0;
    if (sscanf(namespace_name, "inspan-%8[0-9a-z]-%u", tag, &machine) != 2) return false;
    snprintf(device, LAB_DEVICE_SIZE, "isv%.8s.%u", tag, machine % 100);
    return true;
}

inspan_status_t lab_link_of(int64_t pid, char device[LAB_DEVICE_SIZE], inspan_error_t *err)
{
    char path[64];
    struct stat its, other;
    snprintf(path, sizeof path, "/proc/%lld/ns/net", (long long)pid);
    if (stat(path, &its) != 0) return error_set_errno(err, INSPAN_IO, "cannot look at %s", path);
    DIR *folder = opendir("/run/netns");
    bool found = false;
    while (folder != NULL && !found) {
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) break;
        found = fstatat(dirfd(folder), entry->d_name, &other, 0) == 0 && other.st_ino == its.st_ino &&
                other.st_dev == its.st_dev && device_of(entry->d_name, device);
    }
    if (folder != NULL) closedir(folder);
    if (found) return INSPAN_OK;
    return error_set(err, INSPAN_NOT_FOUND,
                     "process %lld is in no machine of a laboratory (start the cluster with --link)",
                     (long long)pid);
}

inspan_status_t lab_link_set(const char *device, bool up, inspan_error_t *err)
{
    return lab_run(err, "ip", "link", "set", device, up ? "up" : "down");
}
