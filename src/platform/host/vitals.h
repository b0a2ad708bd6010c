/*
 * How this machine is just now: what a program that computes on it can expect, and whether its owner is
 * about. Rates need two samples: a sampler remembers the one before. `root` is put before /proc and /sys: ""
 * in production, a folder in tests.
 *
 * A sample is some twenty reads of small files (0.2 to 1 ms). A sensor's driver may hang: sample on a thread
 * of its own, and hold its values for known only while they are young.
 */
#ifndef HOST_VITALS_H
#define HOST_VITALS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/units.h"

enum { VITALS_WORKERS = 64 };

/* Input within that time: the owner is using the machine. */
#define VITALS_IN_USE (120 * NS_PER_S)

typedef struct vitals {
    double cores; /* that the workers may use: least of affinity and quota */
    double
        throttled; /* 0..1: of the quota's periods since the last sample, in how many they were held back */
    double clock_mhz;        /* of the fastest cores, as many as the workers keep busy; 0: unknown */
    double clock_best_mhz;   /* that the processor can do; 0: unknown */
    double temperature_c;    /* hottest sensor of the processor, else hottest of all; 0: unknown */
    double others_cores;     /* used by programs that are not workers; NAN: unknown */
    double swap_bytes_per_s; /* in and out, of the whole machine; NAN: unknown */
    double load;             /* runnable processes, mean over a minute */
    uint64_t memory_free_bytes;
    bool on_battery;
    bool owner_active; /* keyboard, mouse or touchpad within VITALS_IN_USE; false also where that is not seen
                        */
} vitals_t;

typedef struct vitals_sampler vitals_sampler_t;

vitals_sampler_t *vitals_open(const char *root); /* NULL: no memory */
void vitals_close(vitals_sampler_t *sampler);    /* NULL is fine */

/* workers: processes whose time is not "others" (n at most VITALS_WORKERS). now: monotonic. One thread at a
 * time. */
void vitals_sample(vitals_sampler_t *sampler, ns_t now, const pid_t *workers, uint32_t n, vitals_t *vitals);

#endif
