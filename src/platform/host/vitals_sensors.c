/* Clock and temperature. Which sensors there are is looked up now and then, their values with each sample. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/host/inventory_internal.h"
#include "platform/host/vitals_internal.h"

static const ns_t look_period = 30 * NS_PER_S;

/* ---- Clock ----------------------------------------------------------------------------------- */

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static uint32_t read_frequencies(const vitals_sampler_t *sampler, const char *file, double mhz[VITALS_CPUS])
{
    uint32_t n = 0;
    for (int cpu = 0; cpu < VITALS_CPUS; cpu++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/%s", cpu, file);
        const double khz = inventory_number(sampler->root, path, -1);
        if (khz > 0) mhz[n++] = khz / 1000;
        if (khz < 0 && n == 0) break; /* no such files at all; else that core is offline */
    }
    return n;
}

/* Where there is no cpufreq (virtual machines): the fastest core of /proc/cpuinfo. */
static double clock_of_cpuinfo(vitals_sampler_t *sampler)
{
    double best = 0;
    vitals_text(sampler, "/proc/cpuinfo");
    for (const char *at = sampler->text; (at = strstr(at, "cpu MHz")) != NULL; at++) {
        const char *value = strchr(at, ':');
        const double mhz = value != NULL ? atof(value + 1) : 0;
        if (mhz > best && mhz < 1e5) best = mhz;
    }
    return best;
}

/* Idle cores clock down: only as many as the workers keep busy say how fast these are. */
static double read_clock(vitals_sampler_t *sampler)
{
    double mhz[VITALS_CPUS], sum = 0;
    const uint32_t n = read_frequencies(sampler, "scaling_cur_freq", mhz);
    if (n == 0) return clock_of_cpuinfo(sampler);
    uint32_t busy = 1;
    while (busy < n && busy < sampler->own_cores) busy++;
    qsort(mhz, n, sizeof mhz[0], falling);
    for (uint32_t i = 0; i < busy; i++) sum += mhz[i];
    return sum / busy;
}

/* ---- Temperature ----------------------------------------------------------------------------- */

static bool is_processor(const char *name)
{
    static const char *const known[] = {"x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu", "soc"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(name, known[i], strlen(known[i])) == 0) return true;
    return false;
}

/* Those of the processor come first, and push the others out. */
static void add_sensor(vitals_sampler_t *sampler, const char *path, bool processor, bool *have_processor)
{
    if (inventory_number(sampler->root, path, -1e9) < -1e8) return;
    if (processor && !*have_processor) sampler->n_sensors = 0;
    *have_processor |= processor;
    if (processor != *have_processor || sampler->n_sensors == VITALS_SENSORS) return;
    snprintf(sampler->sensors[sampler->n_sensors++], VITALS_PATH, "%s", path);
}

static void find_sensors(vitals_sampler_t *sampler)
{
    bool have_processor = false;
    char path[VITALS_PATH], name[64];
    sampler->n_sensors = 0;
    for (int i = 0; i < 64; i++) {
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/type", i);
        if (!inventory_line(sampler->root, path, name, sizeof name)) name[0] = '\0';
        for (char *c = name; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", i);
        add_sensor(sampler, path, is_processor(name), &have_processor);
    }
    for (int i = 0; i < 32; i++) {
        snprintf(path, sizeof path, "/sys/class/hwmon/hwmon%d/name", i);
        if (!inventory_line(sampler->root, path, name, sizeof name) || !is_processor(name)) continue;
        snprintf(path, sizeof path, "/sys/class/hwmon/hwmon%d/temp1_input", i); /* the package, not a core */
        add_sensor(sampler, path, true, &have_processor);
    }
}

/* Sensors that are not wired say 255 or so. */
static double read_temperature(const vitals_sampler_t *sampler)
{
    double hottest = 0;
    for (uint32_t i = 0; i < sampler->n_sensors; i++) {
        const double celsius = inventory_number(sampler->root, sampler->sensors[i], 0) / 1000;
        if (celsius > hottest && celsius < 150) hottest = celsius;
    }
    return hottest;
}

/* ---- Both ------------------------------------------------------------------------------------ */

void vitals_read_sensors(vitals_sampler_t *sampler, ns_t now, vitals_t *vitals)
{
    if (sampler->sensors_at == 0 || now - sampler->sensors_at >= look_period) {
        double mhz[VITALS_CPUS];
        const uint32_t n = read_frequencies(sampler, "cpuinfo_max_freq", mhz);
        sampler->clock_best_mhz = 0;
        for (uint32_t i = 0; i < n; i++)
            if (mhz[i] > sampler->clock_best_mhz) sampler->clock_best_mhz = mhz[i];
        find_sensors(sampler);
        sampler->sensors_at = now;
    }
    vitals->clock_mhz = read_clock(sampler);
    vitals->clock_best_mhz = sampler->clock_best_mhz;
    vitals->temperature_c = read_temperature(sampler);
}
