/* The sampler's inside: vitals.c (cores, load, swap), vitals_sensors.c (clock, temperature), vitals_input.c
 * (the owner's keyboard and mouse). */
#ifndef HOST_VITALS_INTERNAL_H
#define HOST_VITALS_INTERNAL_H

#include <stddef.h>

#include "platform/host/vitals.h"

enum {
    VITALS_TEXT = 256 << 10,
    VITALS_SENSORS = 16,
    VITALS_CPUS = 64,
    VITALS_INPUTS = 16,
    VITALS_PATH = 160
};

typedef struct vitals_input { /* a counter that grows with each report of a keyboard or mouse */
    char path[VITALS_PATH];
    double count; /* < 0: not read yet */
} vitals_input_t;

typedef struct vitals_cpu_time { /* of a process, in clock ticks */
    pid_t pid;
    uint64_t ticks;
} vitals_cpu_time_t;

struct vitals_sampler {
    char root[256];
    ns_t sampled_at; /* 0: never */

    uint64_t periods, throttled; /* of the quota */
    bool counted;
    uint64_t busy_ticks, swapped_pages;
    vitals_cpu_time_t workers[VITALS_WORKERS];
    uint32_t n_workers;
    double others_cores, swap_bytes_per_s, own_cores;

    ns_t sensors_at; /* when they were looked for; 0: never */
    char sensors[VITALS_SENSORS][VITALS_PATH];
    uint32_t n_sensors;
    double clock_best_mhz;

    ns_t inputs_at; /* when keyboards and mice were looked for */
    vitals_input_t inputs[VITALS_INPUTS];
    uint32_t n_inputs;
    char lines[VITALS_INPUTS][48]; /* names in /proc/interrupts */
    uint32_t n_lines;
    bool has_lines;         /* one of them is there: the file is worth reading */
    double interrupts;      /* < 0: not read yet */
    ns_t input_at;          /* when it last grew; 0: never */
    char text[VITALS_TEXT]; /* of the file that is being read */
};

/* Into sampler->text, cut there; its length, 0: no such file. */
size_t vitals_text(vitals_sampler_t *sampler, const char *path);

void vitals_read_sensors(vitals_sampler_t *sampler, ns_t now, vitals_t *vitals);
bool vitals_owner_active(vitals_sampler_t *sampler, ns_t now);

#endif
