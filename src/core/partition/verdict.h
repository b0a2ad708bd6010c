/*
 * Why a machine's speed changed: a measured change (pace.h) held against the machine's vitals before and
 * after it. Pure.
 */
#ifndef PARTITION_VERDICT_H
#define PARTITION_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/partition/pace.h"

/* Of one machine, as its agent sees them. NAN (and 0 where it says so): unknown. Start from
 * partition_vitals_unknown. */
typedef struct partition_vitals {
    double cores;            /* processor quota of the worker, or all cores of the machine; 0: unknown */
    double machine_cores;    /* of the whole machine; 0: unknown */
    double clock_mhz;        /* of the busy cores, now; 0: unknown */
    double clock_best_mhz;   /* sustained at best; 0: unknown */
    double temperature_c;    /* hottest processor sensor; 0: unknown */
    double others_cores;     /* used by other programs */
    double swap_bytes_per_s; /* in and out */
    double allowed;          /* 0 .. 1: what the owner gives */
    double throttled;        /* 0 .. 1: part of the time that the quota stopped the worker */
    double input_wait;       /* 0 .. 1: part of the step's time that the worker waited for its data */
    double link_mbit;        /* rate that the slowest link had in the newest reductions */
    bool on_battery, owner_active;
} partition_vitals_t;

typedef enum partition_cause {
    PARTITION_QUOTA,
    PARTITION_CLOCK,
    PARTITION_HEAT,
    PARTITION_BATTERY,
    PARTITION_OWNER,
    PARTITION_OTHERS, /* load of other programs */
    PARTITION_SWAP,
    PARTITION_LINK,
    PARTITION_INPUT,
    PARTITION_UNKNOWN
} partition_cause_t;

#define PARTITION_CAUSES       (PARTITION_UNKNOWN + 1)
#define PARTITION_EVIDENCE_MAX 128

typedef struct partition_verdict {
    partition_cause_t cause;
    double factor;                         /* speed after / before; above 1: it recovers */
    uint32_t steps_ago;                    /* the change began so many steps before this one */
    char evidence[PARTITION_EVIDENCE_MAX]; /* "CPU quota 0.24 cores, was 0.80" */
} partition_verdict_t;

partition_vitals_t partition_vitals_unknown(void);

/* The cause is the vital whose own change explains the measured factor best, and at least a third of it (in
 * log); UNKNOWN where none does. before: vitals of a step before the change began; now: of after. */
void verdict_judge(const pace_estimate_t *estimate, const partition_vitals_t *before,
                   const partition_vitals_t *now, partition_verdict_t *verdict);

/* Speed after / before as vitals alone predict it, for pace_scale: quota, clock, what the owner allows, and
 * load of others where the machine's cores are known. 1: nothing known has changed (by 3 % or more). In
 * [0.01, 100]. */
double verdict_expected_factor(const partition_vitals_t *before, const partition_vitals_t *now);

const char *
partition_cause_name(partition_cause_t cause); /* "quota", "clock", ...: stable, for wire and registry */
const char *
partition_cause_text(partition_cause_t cause); /* "its CPU quota": for people, after "because of" */

#endif
