/*
 * A small random cluster in one thread, for tests of the elastic step: members, a manager that issues views,
 * a network in which messages, reductions and copies arrive in an order drawn from a seed, and real sums:
 * every bucket counts how often it has each lease, and remembers the view in which it was reduced (as
 * rounding would).
 *
 * Faults: crashes (also between two actions of one event), members wrongly declared dead that go on in their
 * old view, broken communicators, newcomers, leavers, skipped views. Checked: I1 - I5
 * (docs/step-protocol.md), and that no event of honest members gives an error.
 */
#ifndef STEP_ELASTIC_WORLD_TEST_H
#define STEP_ELASTIC_WORLD_TEST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct world_options {
    uint32_t planted; /* bugs, PLANTED_* */
    bool drop;        /* on_loss: drop, in every second run */
    bool steals;      /* a random policy: shares, paces, steals */
    bool layouts;     /* the leader changes how buckets lie */
    bool small;       /* one or two first members, few buckets, all faults, close together */
    bool trace;       /* print what happens */
    uint32_t crashes, zombies, broken, newcomers, leavers; /* at most, each */
} world_options_t;

typedef struct world_result {
    char violation[512]; /* empty: none */
    uint64_t commits, views, salvaged, rejoined, dropped, left, listener_leads, stuck, light_reconciles,
        recommits, claims, stolen, dry, layouts; /* dry: LAST without a lease; layouts: changes, of members */
} world_result_t;                                /* counts: that the interesting things do happen */

extern const world_options_t world_all_faults, world_small, world_steals;

/* One history from its seed, from start to end. Adds its counts to *result; fills violation (where it is
 * empty). */
void world_run(uint64_t seed, const world_options_t *options, world_result_t *result);

#endif
