/*
 * Direct sharded: the owner of a chunk takes all contributions, sums them in rank order, and sends the result
 * to all.
 *
 * Each rank has three streams at once: contributions to all owners, evenly; results to all others, as soon as
 * a chunk is summed; results from all others. Chunks of the shards are interleaved in proportion, so that a
 * slow rank feeds all owners at an even rate and results flow back to it while it still sends. Work goes in
 * blocks of one chunk per owner: a block's contributions stand before its results, which rules out waiting in
 * a circle even for an executor that carries each peer's transfers strictly in list order.
 */
#include "core/collective/builder.h"

static uint32_t owners(const builder_t *builder)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < builder->request->world; i++)
        n += builder->shard_first[i] < builder->shard_first[i + 1];
    return n;
}

static void contribute(builder_t *builder, uint32_t first, uint32_t n)
{
    const sched_chunk_t *chunks = builder->schedule->chunks;
    const uint32_t rank = builder->request->rank;
    for (uint32_t i = 0; i < n; i++) { /* each rank begins with another owner */
        const uint32_t c = first + (uint32_t)(((uint64_t)rank + 1 + i) % n);
        if (chunks[c].owner != rank)
            builder_send(builder, chunks[c].owner, c, 0, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
    }
}

static void direct(builder_t *builder, bool results)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank;
    builder_chunks_sharded(builder, builder->request->weights);
    if (builder->status != INSPAN_OK) return;
    const uint32_t block = owners(builder), n_chunks = builder->schedule->n_chunks;
    builder_chunks_interleave(builder);
    for (uint32_t first = 0; first < n_chunks && builder->status == INSPAN_OK; first += block) {
        const uint32_t n = n_chunks - first < block ? n_chunks - first : block;
        contribute(builder, first, n);
        for (uint32_t c = first; c < first + n; c++) {
            const uint32_t owner = builder->schedule->chunks[c].owner;
            if (owner != rank) {
                if (results) builder_recv(builder, SCHED_RECV, owner, c, 0, SCHED_OUT, 0, SCHED_NONE);
                continue;
            }
            const uint32_t sum = builder_gather_sum(builder, c);
            if (results && builder->status == INSPAN_OK) builder->schedule->ops[sum].result = true;
            for (uint32_t i = 1; results && i < world;
                 i++) /* the receiver contributed: it has the operation posted */
                builder_send(builder, (rank + i) % world, c, 0, SCHED_OUT, 0, false, sum, SCHED_NONE);
        }
    }
}

void build_direct_allreduce(builder_t *builder)
{
    direct(builder, true);
}

void build_direct_reduce_scatter(builder_t *builder)
{
    direct(builder, false);
}

void build_direct_allgather(builder_t *builder)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank;
    builder_chunks_sharded(builder, builder->request->weights);
    builder_chunks_interleave(builder);
    for (uint32_t c = 0; c < builder->schedule->n_chunks && builder->status == INSPAN_OK; c++) {
        const uint32_t owner = builder->schedule->chunks[c].owner;
        if (owner != rank) {
            builder_recv(builder, SCHED_RECV, owner, c, 0, SCHED_OUT, 0, SCHED_NONE);
            continue;
        }
        builder_local(builder, SCHED_COPY, c, SCHED_IN, SCHED_OUT, 0, SCHED_NONE);
        for (uint32_t i = 1; i < world; i++)
            builder_send(builder, (rank + i) % world, c, 0, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
    }
}

void build_direct_broadcast(builder_t *builder)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank,
                   root = builder->request->root;
    builder_chunks_plain(builder, root);
    for (uint32_t c = 0; c < builder->schedule->n_chunks && builder->status == INSPAN_OK; c++) {
        if (rank != root) {
            builder_recv(builder, SCHED_RECV, root, c, 0, SCHED_OUT, 0, SCHED_NONE);
            continue;
        }
        builder_local(builder, SCHED_COPY, c, SCHED_IN, SCHED_OUT, 0, SCHED_NONE);
        for (uint32_t i = 1; i < world; i++)
            builder_send(builder, (rank + i) % world, c, 0, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
    }
}
