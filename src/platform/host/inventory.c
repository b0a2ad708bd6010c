#include "platform/host/inventory.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "platform/host/inventory_internal.h"
#include "platform/os/os_cgroup.h"
#include "platform/os/os_file.h"

#define PROC_FILE_MAX ((size_t)4 << 20) /* /proc/cpuinfo of a machine with a thousand cores */

char *inventory_file(const char *root, const char *path)
{
    char full[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(full, sizeof full, "%s%s", root, path);
    return os_file_read(full, PROC_FILE_MAX, &text, &bytes, NULL) == INSPAN_OK ? text : NULL;
}

bool inventory_line(const char *root, const char *path, char *out, size_t size)
{
    char *text = inventory_file(root, path);
    if (text == NULL) return false;
    text[strcspn(text, "\n")] = '\0';
    snprintf(out, size, "%s", text);
    free(text);
    return true;
}

double inventory_number(const char *root, const char *path, double fallback)
{
    char line[64], *end = line;
    if (!inventory_line(root, path, line, sizeof line)) return fallback;
    double value = strtod(line, &end);
    return end != line ? value : fallback;
}

/* The value of the first line "key<separator>value" of a text; blanks and quotes around it go. */
static bool find_value(const char *text, const char *key, char separator, char *out, size_t size)
{
    size_t n = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';
         line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, key, n) != 0) continue;
        const char *at = line + n + strspn(line + n, " \t");
        if (*at != separator) continue;
        at++;
        at += strspn(at, " \t\"");
        size_t length = strcspn(at, "\n");
        while (length > 0 && strchr(" \t\"", at[length - 1]) != NULL) length--;
        snprintf(out, size, "%.*s", (int)length, at);
        return true;
    }
    return false;
}

static void read_identity(const char *root, inventory_t *inventory)
{
    struct utsname names;
    if (uname(&names) == 0) {
        snprintf(inventory->hostname, sizeof inventory->hostname, "%s", names.nodename);
        snprintf(inventory->architecture, sizeof inventory->architecture, "%.31s", names.machine);
    }
    if (!inventory_line(root, "/etc/machine-id", inventory->machine_id, sizeof inventory->machine_id))
        inventory_line(root, "/var/lib/dbus/machine-id", inventory->machine_id, sizeof inventory->machine_id);
    inventory_line(root, "/proc/sys/kernel/random/boot_id", inventory->boot_id, sizeof inventory->boot_id);
    char *release = inventory_file(root, "/etc/os-release");
    if (release != NULL) find_value(release, "PRETTY_NAME", '=', inventory->os, sizeof inventory->os);
    free(release);
}

/* ---- Processor ------------------------------------------------------------------------------- */

/* x86 names first, then Arm's; in the order in which they are listed to people. */
static const char *const known_sets[] = {
    "sse2",     "sse4_2",      "avx",         "f16c",        "fma",      "avx2",     "avx_vnni", "avx512f",
    "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "neon",     "asimd",
    "asimdhp",  "asimddp",     "i8mm",        "bf16",        "sve",      "sve2",
};

static void read_instruction_sets(const char *cpuinfo, inventory_t *inventory)
{
    char flags[8192];
    char *words = flags;
    if (!find_value(cpuinfo, "flags", ':', flags, sizeof flags) &&
        !find_value(cpuinfo, "Features", ':', flags, sizeof flags))
        return;
    bool present[sizeof known_sets / sizeof known_sets[0]] = {false};
    for (char *word; (word = strsep(&words, " ")) != NULL;)
        for (size_t i = 0; i < sizeof known_sets / sizeof known_sets[0]; i++)
            if (strcmp(word, known_sets[i]) == 0) present[i] = true;
    for (size_t i = 0; i < sizeof known_sets / sizeof known_sets[0]; i++)
        if (present[i] && inventory->n_instruction_sets < INVENTORY_SETS)
            snprintf(inventory->instruction_sets[inventory->n_instruction_sets++],
                     sizeof inventory->instruction_sets[0], "%s", known_sets[i]);
}

double inventory_affinity(uint32_t *online)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *online = cores > 0 ? (uint32_t)cores : 1;
    double usable = *online;
    size_t size = CPU_ALLOC_SIZE(8192);
    cpu_set_t *allowed = CPU_ALLOC(8192);
    if (allowed != NULL && sched_getaffinity(getpid(), size, allowed) == 0) {
        int n = CPU_COUNT_S(size, allowed);
        if (n > 0 && n < usable) usable = n;
    }
    CPU_FREE(allowed);
    return usable;
}

static void read_processor(const char *root, inventory_t *inventory)
{
    char *cpuinfo = inventory_file(root, "/proc/cpuinfo");
    if (cpuinfo != NULL) {
        static const char *const keys[] = {"model name", "Model", "Hardware", "cpu model"};
        for (size_t i = 0; i < 4; i++)
            if (find_value(cpuinfo, keys[i], ':', inventory->cpu_model, sizeof inventory->cpu_model)) break;
        read_instruction_sets(cpuinfo, inventory);
    }
    free(cpuinfo);
    inventory->usable_cores = inventory_affinity(&inventory->cores);
    double quota = os_cgroup_cores(root, 0);
    if (quota < inventory->usable_cores) inventory->usable_cores = quota;
}

uint32_t inventory_threads(double usable_cores)
{
    /* 1.9999 is two cores that a division rounded down */
    return usable_cores >= 2 - 1e-6 ? (uint32_t)floor(usable_cores + 1e-6) : 1;
}

/* ---- Memory, disk ---------------------------------------------------------------------------- */

void inventory_read_memory(const char *root, uint64_t *total, uint64_t *available)
{
    *total = *available = 0;
    char *meminfo = inventory_file(root, "/proc/meminfo"), value[64];
    if (meminfo != NULL && find_value(meminfo, "MemTotal", ':', value, sizeof value))
        *total = strtoull(value, NULL, 10) * 1024;
    if (meminfo != NULL && find_value(meminfo, "MemAvailable", ':', value, sizeof value))
        *available = strtoull(value, NULL, 10) * 1024;
    free(meminfo);
    uint64_t limit = os_cgroup_memory_limit(root, 0), used = os_cgroup_memory_used(root, 0);
    if (limit == UINT64_MAX) return;
    if (limit < *total || *total == 0) *total = limit;
    uint64_t left = used < limit ? limit - used : 0;
    if (left < *available) *available = left;
}

/* ---- All of it ------------------------------------------------------------------------------- */

void inventory_read(const char *root, const char *folder, inventory_t *inventory)
{
    memset(inventory, 0, sizeof *inventory);
    read_identity(root, inventory);
    read_processor(root, inventory);
    inventory_read_memory(root, &inventory->memory_bytes, &inventory->memory_free_bytes);
    struct statvfs disk;
    if (statvfs(folder, &disk) == 0) inventory->disk_free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    inventory_read_gpus(root, inventory);
    inventory_read_interfaces(root, inventory);
    inventory_read_battery(root, inventory);
}
