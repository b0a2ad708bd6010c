#include "platform/host/vitals.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/host/inventory_internal.h"
#include "platform/host/vitals_internal.h"
#include "platform/os/os_cgroup.h"

/* Ticks are 10 ms: over a shorter time their rate says nothing. */
static const ns_t shortest_interval = 100 * NS_PER_MS;

vitals_sampler_t *vitals_open(const char *root)
{
    vitals_sampler_t *sampler = calloc(1, sizeof *sampler);
    if (sampler == NULL) return NULL;
    snprintf(sampler->root, sizeof sampler->root, "%s", root);
    sampler->others_cores = sampler->swap_bytes_per_s = NAN;
    sampler->interrupts = -1;
    return sampler;
}

void vitals_close(vitals_sampler_t *sampler)
{
    free(sampler);
}

size_t vitals_text(vitals_sampler_t *sampler, const char *path)
{
    char full[PATH_MAX];
    size_t used = 0;
    snprintf(full, sizeof full, "%s%s", sampler->root, path);
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd >= 0 && used < sizeof sampler->text - 1) {
        ssize_t got = read(fd, sampler->text + used, sizeof sampler->text - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    if (fd >= 0) close(fd);
    sampler->text[used] = '\0';
    return used;
}

/* ---- Quota ----------------------------------------------------------------------------------- */

/* The group of a worker, where one runs: somebody may have given it one of its own. */
static void read_cores(vitals_sampler_t *sampler, pid_t worker, vitals_t *vitals)
{
    uint32_t online = 0;
    os_cgroup_quota_t quota;
    vitals->cores = inventory_affinity(&online);
    os_cgroup_quota(sampler->root, sampler->root[0] == '\0' ? worker : 0, &quota);
    if (quota.cores < vitals->cores) vitals->cores = quota.cores;
    if (quota.counted && sampler->counted && quota.periods > sampler->periods &&
        quota.throttled >= sampler->throttled) {
        double share =
            (double)(quota.throttled - sampler->throttled) / (double)(quota.periods - sampler->periods);
        vitals->throttled = share < 1 ? share : 1;
    }
    sampler->counted = quota.counted;
    sampler->periods = quota.periods;
    sampler->throttled = quota.throttled;
}

/* ---- Other programs -------------------------------------------------------------------------- */

/* The first line of /proc/stat: user nice system idle iowait irq softirq steal. What a hypervisor gives to
 * somebody else (steal) is used by others, too. */
static bool read_busy(vitals_sampler_t *sampler, uint64_t *ticks)
{
    unsigned long long at[8] = {0};
    if (vitals_text(sampler, "/proc/stat") == 0) return false;
    if (sscanf(sampler->text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &at[0], &at[1], &at[2], &at[3],
               &at[4], &at[5], &at[6], &at[7]) < 4)
        return false;
    *ticks = at[0] + at[1] + at[2] + at[5] + at[6] + at[7];
    return true;
}

/* With its children that have ended. */
static bool read_process(vitals_sampler_t *sampler, pid_t pid, uint64_t *ticks)
{
    char path[64];
    unsigned long long user, system;
    long long child_user, child_system;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (vitals_text(sampler, path) == 0) return false;
    const char *at = strrchr(sampler->text, ')'); /* a program's name may hold anything */
    if (at == NULL || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld",
                             &user, &system, &child_user, &child_system) != 4)
        return false;
    *ticks = user + system;
    if (child_user > 0) *ticks += (uint64_t)child_user;
    if (child_system > 0) *ticks += (uint64_t)child_system;
    return true;
}

/* Ticks of the workers since the last sample; false: they are not the same processes as then. */
static bool own_ticks(vitals_sampler_t *sampler, const pid_t *workers, uint32_t n, uint64_t *grown)
{
    vitals_cpu_time_t now[VITALS_WORKERS] = {{0}};
    uint32_t found = 0;
    bool same = true;
    *grown = 0;
    for (uint32_t i = 0; i < n && i < VITALS_WORKERS; i++) {
        vitals_cpu_time_t *process = &now[found];
        process->pid = workers[i];
        if (!read_process(sampler, workers[i], &process->ticks)) continue;
        uint32_t k = 0;
        while (k < sampler->n_workers && sampler->workers[k].pid != process->pid) k++;
        if (k == sampler->n_workers || process->ticks < sampler->workers[k].ticks)
            same = false;
        else
            *grown += process->ticks - sampler->workers[k].ticks;
        found++;
    }
    same &= found == sampler->n_workers;
    memcpy(sampler->workers, now, found * sizeof now[0]);
    sampler->n_workers = found;
    return same;
}

/* Where workers came or went since the last sample, the values from before stay. */
static void read_others(vitals_sampler_t *sampler, double elapsed_s, const pid_t *workers, uint32_t n)
{
    const double ticks_per_s = (double)sysconf(_SC_CLK_TCK);
    uint64_t busy = 0, own = 0;
    const uint64_t before = sampler->busy_ticks;
    const bool known = read_busy(sampler, &busy);
    const bool same = own_ticks(sampler, workers, n, &own);
    sampler->busy_ticks = busy;
    if (!known) sampler->others_cores = NAN;
    if (!known || before == 0 || busy < before || !same || elapsed_s <= 0) return;
    const double others = (double)(busy - before) - (double)own;
    sampler->others_cores = others > 0 ? others / ticks_per_s / elapsed_s : 0;
    sampler->own_cores = (double)own / ticks_per_s / elapsed_s;
}

/* ---- Swap ------------------------------------------------------------------------------------ */

static bool line_number(const char *text, const char *key, uint64_t *value)
{
    const char *at = strstr(text, key); /* key: "\nname " */
    if (at != NULL) *value = strtoull(at + strlen(key), NULL, 10);
    return at != NULL;
}

static void read_swap(vitals_sampler_t *sampler, double elapsed_s)
{
    uint64_t in = 0, out = 0;
    const bool known = vitals_text(sampler, "/proc/vmstat") > 0 &&
                       line_number(sampler->text, "\npswpin ", &in) &&
                       line_number(sampler->text, "\npswpout ", &out);
    const uint64_t pages = in + out, before = sampler->swapped_pages;
    sampler->swapped_pages = pages;
    if (!known) sampler->swap_bytes_per_s = NAN;
    if (known && elapsed_s > 0 && pages >= before)
        sampler->swap_bytes_per_s = (double)(pages - before) * (double)sysconf(_SC_PAGESIZE) / elapsed_s;
}

/* ---- All of it ------------------------------------------------------------------------------- */

void vitals_sample(vitals_sampler_t *sampler, ns_t now, const pid_t *workers, uint32_t n, vitals_t *vitals)
{
    const ns_t elapsed = sampler->sampled_at != 0 ? now - sampler->sampled_at : 0;
    uint64_t total = 0;
    *vitals = (vitals_t){.load = inventory_number(sampler->root, "/proc/loadavg", 0)};
    inventory_read_memory(sampler->root, &total, &vitals->memory_free_bytes);
    read_cores(sampler, n > 0 ? workers[0] : 0, vitals);
    if (sampler->sampled_at == 0 || elapsed >= shortest_interval) {
        read_others(sampler, ns_to_s(elapsed), workers, n);
        read_swap(sampler, ns_to_s(elapsed));
        sampler->sampled_at = now;
    }
    vitals->others_cores = sampler->others_cores;
    vitals->swap_bytes_per_s = sampler->swap_bytes_per_s;
    inventory_t power = {.has_battery = false};
    inventory_read_battery(sampler->root, &power);
    vitals->on_battery = power.on_battery;
    vitals_read_sensors(sampler, now, vitals);
    vitals->owner_active = vitals_owner_active(sampler, now);
}
