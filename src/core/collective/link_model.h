/*
 * What the links between ranks cost, and what a schedule therefore takes. Pure.
 *
 * Model: every rank has one network port with a bandwidth each way; a transfer of b bytes from i to j takes
 * latency(i,j) plus b over the share that both ports give it (ports are shared fairly by the transfers that
 * are under way); an addition costs its rank 1/reduce_bytes_per_s a byte. (LogGP: Alexandrov et al. 1995,
 * with port sharing.)
 */
#ifndef COLLECTIVE_LINK_MODEL_H
#define COLLECTIVE_LINK_MODEL_H

#include "base/units.h"
#include "core/collective/schedule.h"

typedef struct link_port {
    double up_bytes_per_s, down_bytes_per_s;
} link_port_t;

typedef struct link_model {
    uint32_t world;
    const link_port_t *ports;  /* (world) */
    const ns_t *latency;       /* (world, world) one way, [from * world + to] */
    double reduce_bytes_per_s; /* per rank */
    ns_t per_message;          /* fixed cost of a message at each end */
} link_model_t;

/* Predicted time from the common start until the last rank has its result. NO_MEMORY, INVALID. */
inspan_status_t price_schedule(const schedule_t *const *ranks, uint32_t element_size,
                               const link_model_t *links, ns_t *time);

/*
 * The cheapest algorithm for this collective and size under the model, its predicted time, and the shard
 * weights for it (weights: world doubles, written). NO_MEMORY, INVALID.
 */
inspan_status_t price_choose(sched_collective_t collective, uint32_t world, uint64_t count,
                             uint32_t element_size, uint64_t chunk_bytes, const link_model_t *links,
                             sched_algorithm_t *algorithm, double *weights, ns_t *time);

#endif
