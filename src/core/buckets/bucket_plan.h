/*
 * In which order gradients lie in buckets and where the buckets begin, so that as little as possible of their
 * reduction is left when the backward pass has ended. Pure: the same input gives the same plan.
 *
 * Reductions go one after the other in the buckets' order, and a bucket can begin when its last gradient is
 * ready. So gradients belong in the order in which they get ready (an earlier one never waits for a later
 * one), and the cuts that end first are found exactly, by dynamic programming over the prefixes of that
 * order: a cut costs the fixed time of one more reduction, no cut makes the bucket wait.
 */
#ifndef BUCKETS_BUCKET_PLAN_H
#define BUCKETS_BUCKET_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One parameter's gradient. */
typedef struct bucket_gradient {
    uint64_t bytes; /* in memory */
    double gap_s;   /* it is ready so long before the end of the backward pass; >= 0, finite */
} bucket_gradient_t;

typedef struct bucket_costs {
    double bucket_s;     /* of each reduction, whatever its size; > 0 */
    double byte_s;       /* of a byte in memory, however it goes over the wire; >= 0 */
    uint64_t tail_bytes; /* what each bucket carries beside its gradients */
    uint32_t most;       /* buckets; >= 1 */
} bucket_costs_t;

/* How gradients lie. The arrays are the caller's. */
typedef struct bucket_cuts {
    uint32_t n_buckets;
    uint32_t *order; /* (n gradients) */
    uint32_t *sizes; /* (n gradients; n_buckets of them count) gradients of each bucket, >= 1 */
} bucket_cuts_t;

/* Time from the end of the backward pass to that of the last reduction. */
double bucket_exposed(const bucket_gradient_t *gradients, const bucket_cuts_t *cuts,
                      const bucket_costs_t *costs);

/* The cuts that expose least, of these the fewest, at most costs->most. n >= 1. Returns what they expose, as
 * bucket_exposed. room: bucket_plan_bytes(n), aligned as malloc has it: nothing is allocated. */
double bucket_plan(const bucket_gradient_t *gradients, uint32_t n, const bucket_costs_t *costs,
                   bucket_cuts_t *cuts, void *room);
size_t bucket_plan_bytes(uint32_t n);

#define BUCKET_PLAN_GAIN  0.02 /* of a step: what a change must win */
#define BUCKET_PLAN_CALLS 3u   /* in a row in which it must */

/* All zero at first. Of one leader; nothing of it is agreed with anybody. */
typedef struct bucket_planner {
    uint32_t calls;         /* in a row in which another plan would have won enough */
    uint32_t changes, rest; /* made; calls to leave out before the next one: twice as many after each */
} bucket_planner_t;

/* Once a step: true where the present cuts expose so much more than the planned ones, that a change is made.
 */
bool bucket_change_due(bucket_planner_t *planner, double present_s, double planned_s, double step_s);

#endif
