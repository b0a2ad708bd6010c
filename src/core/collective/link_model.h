/*
 * What the links between ranks cost, and what a schedule therefore takes. Pure.
 *
 * Model: every rank has one network port with a bandwidth each way. Between two ranks one transfer at a time
 * goes each way (a socket), of those that may start the first in the list; b bytes from i to j take
 * latency(i,j) plus b over the share that both ports give it: ports are shared max-min fairly by the
 * transfers under way. A rank's processor does one thing at a time: it spends per_message at each end of a
 * message, and 1/reduce_bytes_per_s on a byte to be added or copied. (LogGP: Alexandrov et al. 1995, with
 * port sharing.)
 *
 * Against a prototype on four shaped links (1 to 100 MB, equal and unequal) the figures are right to 5 %.
 */
#ifndef COLLECTIVE_LINK_MODEL_H
#define COLLECTIVE_LINK_MODEL_H

#include "base/units.h"
#include "core/collective/schedule.h"

typedef struct link_port {
    double up_bytes_per_s, down_bytes_per_s; /* finite, > 0 */
} link_port_t;

enum { LINK_MODEL_MOST_RANKS = 1024 };

typedef struct link_model {
    uint32_t world;           /* 1 .. LINK_MODEL_MOST_RANKS */
    const link_port_t *ports; /* (world) not read where world is 1 */
    const ns_t *latency; /* (world, world) one way, [from * world + to], >= 0; the diagonal is not read */
    double reduce_bytes_per_s; /* per rank, > 0; infinite: free */
    ns_t per_message;          /* fixed cost of a message at each end, >= 0 */
} link_model_t;

/*
 * Predicted time from the common start until the last rank has its result. The schedules are those of
 * sched_build, or passed sched_check. NO_MEMORY, INVALID (model or schedules; also: it would never end).
 */
inspan_status_t price_schedule(const schedule_t *const *ranks, uint32_t element_size,
                               const link_model_t *links, ns_t *time);

/*
 * Shares of the sums for a long all-reduce by the direct schedule: those that keep the busiest port free.
 * weights: (world) written, their sum is 1. false: equal ones are as good.
 */
bool link_shares(const link_model_t *links, double *weights);

/* Seconds that this takes at least, by the closed form: rank i's port carries [1 + (n-2) weight_i] bytes each
 * way (DESIGN 4.1). world >= 2; of the model only the ports are read. moved: (world) written: the bytes that
 * each sends and receives; or NULL. */
double link_direct_seconds(const link_model_t *links, const double *weights, double bytes, double *moved);

/*
 * The cheapest algorithm for this collective and size under the model, its predicted time, and the shard
 * weights for it (weights: world doubles, written, their sum is 1; only an all-reduce has other than equal
 * ones, for elsewhere the shards are the caller's; broadcast: root 0). The same answer on every rank for the
 * same arguments. It simulates the candidates: some 30 ms for 8 ranks and 200 chunks. NO_MEMORY, INVALID:
 * nothing is written.
 */
inspan_status_t price_choose(sched_collective_t collective, uint32_t world, uint64_t count,
                             uint32_t element_size, uint64_t chunk_bytes, const link_model_t *links,
                             sched_algorithm_t *algorithm, double *weights, ns_t *time);

#endif
