/*
 * What the algorithms' files share: a schedule under construction. Private to this folder.
 *
 * Errors stick: after the first one (status) every call does nothing, so an algorithm need not look in
 * between.
 */
#ifndef COLLECTIVE_BUILDER_H
#define COLLECTIVE_BUILDER_H

#include "core/collective/schedule.h"

typedef struct builder {
    const sched_request_t *request;
    schedule_t *schedule;
    uint32_t op_capacity;
    inspan_status_t status;
    uint32_t *shard_first; /* (world + 1) index of the first chunk of each owner, for chunks in shard order */
} builder_t;

/* Cut [0, count) into chunks of owner SCHED_NONE or `owner`. */
void builder_chunks_plain(builder_t *builder, uint32_t owner);
/* Cut every rank's shard into chunks, one shard after the other; fills shard_first. weights as sched_shard
 * has them. */
void builder_chunks_sharded(builder_t *builder, const double *weights);
/* After builder_chunks_sharded: reorder the chunks so that all shards advance evenly (shard_first is void
 * then). */
void builder_chunks_interleave(builder_t *builder);

/* Add an operation; its index, or SCHED_NONE after an error. `after`, `second`: earlier indices or
 * SCHED_NONE. */
uint32_t builder_send(builder_t *builder, uint32_t to, uint32_t chunk, uint32_t tag, sched_buffer_t src,
                      uint64_t tmp_offset, bool staged, uint32_t after, uint32_t second);
uint32_t builder_recv(builder_t *builder, sched_kind_t kind, uint32_t from, uint32_t chunk, uint32_t tag,
                      sched_buffer_t dst, uint64_t tmp_offset, uint32_t after);
uint32_t builder_local(builder_t *builder, sched_kind_t kind, uint32_t chunk, sched_buffer_t src,
                       sched_buffer_t dst, uint64_t tmp_offset, uint32_t after);

/* Operation `op` waits for `second` as well (SCHED_NONE: for nothing more). */
void builder_after_too(builder_t *builder, uint32_t op, uint32_t second);

/*
 * OUT = sum of all ranks' IN of this chunk, in rank order, the others' parts as they come in. The index of
 * the operation that completes it.
 */
uint32_t builder_gather_sum(builder_t *builder, uint32_t chunk);

typedef void (*builder_fn)(builder_t *builder);

void build_one_shot_allreduce(builder_t *builder);
void build_doubling_allreduce(builder_t *builder);
void build_trees_allreduce(builder_t *builder);
void build_direct_allreduce(builder_t *builder);
void build_direct_reduce_scatter(builder_t *builder);
void build_direct_allgather(builder_t *builder);
void build_direct_broadcast(builder_t *builder);
void build_ring_allreduce(builder_t *builder);
void build_ring_reduce_scatter(builder_t *builder);
void build_ring_allgather(builder_t *builder);
void build_ring_broadcast(builder_t *builder);
void build_barrier(builder_t *builder);

#endif
