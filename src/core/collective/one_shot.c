/* One hop: every rank sends all of its input to all others and sums in rank order; and the barrier, which has
 * no data. */
#include <stdlib.h>

#include "core/collective/builder.h"

void build_one_shot_allreduce(builder_t *builder)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank;
    builder_chunks_plain(builder, SCHED_NONE);
    for (uint32_t c = 0; c < builder->schedule->n_chunks; c++) {
        for (uint32_t i = 1; i < world;
             i++) /* from the next rank on, so that not all begin with the same one */
            builder_send(builder, (rank + i) % world, c, 0, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
        builder_gather_sum(builder, c);
    }
}

/*
 * Dissemination (Hensgen, Finkel, Manber 1988): in round k a rank tells the one 2^k further what it knows. A
 * round's message waits for the one that arrived before it, and, through the rank's own last message, for all
 * earlier ones.
 */
void build_barrier(builder_t *builder)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank;
    schedule_t *schedule = builder->schedule;
    schedule->chunks = calloc(1, sizeof *schedule->chunks);
    if (schedule->chunks == NULL) {
        builder->status = INSPAN_NO_MEMORY;
        return;
    }
    schedule->chunks[0] = (sched_chunk_t){.owner = SCHED_NONE};
    schedule->n_chunks = 1;
    uint32_t heard = SCHED_NONE, told = SCHED_NONE, round = 0;
    for (uint64_t step = 1; step < world; step *= 2, round++) {
        const uint32_t to = (uint32_t)((rank + step) % world),
                       from = (uint32_t)((rank + world - step) % world);
        told = builder_send(builder, to, 0, round, SCHED_IN, 0, true, heard, told);
        heard = builder_recv(builder, SCHED_RECV, from, 0, round, SCHED_OUT, 0, SCHED_NONE);
    }
}
