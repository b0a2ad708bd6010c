/*
 * A closed loop for tests: simulated machines whose processor quotas change, each with its own pace model,
 * and a leader that splits, grants and lets steal as the elastic step does, driven by events in simulated
 * time.
 *
 *     commit -> split -> update -> runs, claims, grants, steals -> last run -> votes -> commit
 *        ^                            |
 *        +---- paces ride on votes <--+ pace_run, pace_step
 *
 * A machine computes as under a quota of the kernel: `cores` of each period, then it is stopped until the
 * next one. Times of runs carry relative noise and outliers.
 */
#ifndef PARTITION_WORLD_TEST_H
#define PARTITION_WORLD_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "core/partition/pace.h"
#include "core/partition/split.h"

#define WORLD_CHANGES 256 /* of one machine's quota */

typedef struct world_options {
    uint32_t n, batch; /* one lease a sample: batch <= PARTITION_LEASES_MAX */
    uint64_t seed;
    double sample_ns, run_ns, update_ns,
        reduce_ns;        /* of one whole core: a sample; more for a run; a step; behind its last run */
    double exposed_ns;    /* of the reduction, after the last member's last run, and the commit */
    double latency_ns;    /* of a message */
    double period_ns;     /* of the quota */
    double noise;         /* relative, of a run */
    double outliers;      /* probability of a run that takes 2 to 5 times as long */
    uint32_t capacity;    /* largest micro-batch */
    bool no_steal, equal; /* without stealing; with equal shares: what to compare with */
    bool vitals;          /* a change of quota reaches its own pace model within a second */
    bool trace;
} world_options_t;

typedef struct world_quota {
    int64_t at;
    double cores;
} world_quota_t;

typedef struct world_machine {
    pace_model_t pace;
    pace_estimate_t estimate; /* at its last vote */
    bool changed;             /* a change was found in this step */
    world_quota_t quotas[WORLD_CHANGES];
    uint32_t n_quotas, told; /* told: quotas that vitals have told of */
    int64_t period;          /* of its quota: the newest it ran in */
    double used_ns;          /* of that period's share */
    /* in this step */
    uint32_t share, begun, left, run, last, computed; /* left: granted, not begun */
    uint32_t in_run;                                  /* samples of the run under way; 0: none */
    bool has_last, run_is_last, done;
    int64_t run_from, run_to, claim_at, grant_at, voted_at; /* INT64_MAX: none */
    uint32_t grant_n;
    bool grant_last;
    double update_ns;
} world_machine_t;

typedef struct world {
    world_options_t options;
    world_machine_t machines[PARTITION_MEMBERS_MAX];
    partition_pace_t paces[PARTITION_MEMBERS_MAX];
    partition_progress_t progress[PARTITION_MEMBERS_MAX];
    uint32_t shares[PARTITION_MEMBERS_MAX];
    uint64_t full; /* who may have leases */
    rng_t rng;
    int64_t now, opened_at;
    uint64_t step;
    int64_t step_ns;   /* of the newest one */
    double step_ideal; /* samples that the machines alone would have computed in it, see world_ideal */
    uint64_t samples, resplits, steals, stolen;
    double ideal;
} world_t;

/* The native GPT of 10.9 M parameters on one core of a server: defaults for the tests. */
world_options_t world_defaults(uint32_t n, uint32_t batch, uint64_t seed);

void world_open(world_t *world, const world_options_t *options, const double *cores);

/* From `at` on; in order of time for each machine. */
void world_set_quota(world_t *world, uint32_t machine, int64_t at, double cores);

/* One step; asserts that each lease is computed once. */
void world_step(world_t *world);

/* Samples that the machines would compute in [from, to), each alone: batch 8, its own update after each
 * batch. */
double world_ideal(const world_t *world, int64_t from, int64_t to);

#endif
