/*
 * Ring (Patarasuk, Yuan 2009), pipelined by chunks: data moves from rank to rank + 1 only.
 *
 *   reduce-scatter  step t = 0 .. n-2: send the partial sum of shard rank-1-t, receive that of rank-2-t and
 * add the own part. Shard o sets out at rank o+1 and is whole at o: ((x[o+1] + x[o+2]) + ...) + x[o].
 *   all-gather      step t = 0 .. n-2: send the whole shard rank-t, receive rank-1-t.
 *
 * Tag 0 is the first phase, 1 the second: in an all-reduce a chunk crosses most links in both.
 */
#include <stdlib.h>

#include "core/collective/builder.h"

typedef struct ring {
    builder_t *builder;
    uint32_t next, previous;
    uint32_t *ready; /* (n_chunks) what made the own copy of the chunk: what its next send waits for */
    uint32_t *sent;  /* (n_chunks) the send that still reads the chunk's place in OUT */
} ring_t;

static void ring_open(ring_t *ring, builder_t *builder, const double *weights)
{
    const uint64_t rank = builder->request->rank, world = builder->request->world;
    builder_chunks_sharded(builder, weights);
    const uint32_t n_chunks = builder->schedule->n_chunks;
    *ring = (ring_t){.builder = builder,
                     .next = (uint32_t)((rank + 1) % world),
                     .previous = (uint32_t)((rank + world - 1) % world),
                     .ready = calloc(n_chunks + (size_t)1, sizeof *ring->ready),
                     .sent = calloc(n_chunks + (size_t)1, sizeof *ring->sent)};
    if (ring->ready == NULL || ring->sent == NULL) builder->status = INSPAN_NO_MEMORY;
    if (builder->status != INSPAN_OK) return;
    for (uint32_t c = 0; c < n_chunks; c++) ring->ready[c] = ring->sent[c] = SCHED_NONE;
}

static void ring_close(ring_t *ring)
{
    free(ring->ready);
    free(ring->sent);
}

/* The shard `steps` (up to twice the world) ranks back. */
static uint32_t back(const ring_t *ring, uint32_t steps)
{
    const uint64_t rank = ring->builder->request->rank, world = ring->builder->request->world;
    return (uint32_t)((rank + 2 * world - steps) % world);
}

static uint32_t pieces(const ring_t *ring, uint32_t owner)
{
    return ring->builder->shard_first[owner + 1] - ring->builder->shard_first[owner];
}

/* Chunk `piece` of owner's shard, or SCHED_NONE when the shard has fewer. */
static uint32_t chunk_at(const ring_t *ring, uint32_t owner, uint32_t piece)
{
    return piece < pieces(ring, owner) ? ring->builder->shard_first[owner] + piece : SCHED_NONE;
}

static uint32_t most_pieces(const ring_t *ring)
{
    uint32_t most = 0;
    for (uint32_t owner = 0; owner < ring->builder->request->world; owner++)
        if (pieces(ring, owner) > most) most = pieces(ring, owner);
    return most;
}

/*
 * Where partial sums lie: at their place in OUT (all-reduce, whose second phase overwrites them), or, where
 * OUT is to have the own shard only, in TMP: two halves, taken in turn by the steps, of one place per piece.
 * With one half each rank would wait for the next one to have taken its last partial, all around the ring.
 */
typedef struct scratch {
    uint64_t place;    /* elements of one place: the longest chunk */
    uint32_t places;   /* per half */
    uint32_t *readers; /* (2, places) the send that still reads the place; NULL: partial sums lie in OUT */
} scratch_t;

static void scratch_open(scratch_t *scratch, ring_t *ring)
{
    builder_t *builder = ring->builder;
    if (builder->status != INSPAN_OK) return;
    scratch->places = most_pieces(ring);
    for (uint32_t c = 0; c < builder->schedule->n_chunks; c++)
        if (builder->schedule->chunks[c].count > scratch->place)
            scratch->place = builder->schedule->chunks[c].count;
    scratch->readers = calloc(2 * (size_t)scratch->places + 1, sizeof *scratch->readers);
    if (scratch->readers == NULL) {
        builder->status = INSPAN_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < 2 * (size_t)scratch->places; i++) scratch->readers[i] = SCHED_NONE;
    if (builder->request->world > 2)
        builder->schedule->tmp_elements = 2 * (uint64_t)scratch->places * scratch->place;
}

static void reduce_phase(ring_t *ring, scratch_t *scratch)
{
    builder_t *builder = ring->builder;
    const uint32_t world = builder->request->world, most = most_pieces(ring);
    const bool in_tmp = scratch->readers != NULL;
    for (uint32_t t = 0; t + 1 < world; t++)
        for (uint32_t piece = 0; piece < most && builder->status == INSPAN_OK; piece++) {
            const uint32_t gone = chunk_at(ring, back(ring, 1 + t), piece);
            const uint32_t come = chunk_at(ring, back(ring, 2 + t), piece);
            const size_t place_gone = (t + 1) % 2 * (size_t)scratch->places + piece;
            const size_t place_come = t % 2 * (size_t)scratch->places + piece;
            const sched_buffer_t partial = in_tmp ? SCHED_TMP : SCHED_OUT;
            if (gone != SCHED_NONE &&
                t == 0) { /* the receiver comes later in the sum, so it may not have posted */
                builder_send(builder, ring->next, gone, 0, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
            } else if (gone != SCHED_NONE) {
                ring->sent[gone] = builder_send(builder, ring->next, gone, 0, partial,
                                                in_tmp ? place_gone * scratch->place : 0, true,
                                                ring->ready[gone], SCHED_NONE);
                if (in_tmp) scratch->readers[place_gone] = ring->sent[gone];
            }
            if (come == SCHED_NONE) continue;
            const bool own = t + 2 == world; /* whole after this step */
            const sched_buffer_t to = own ? SCHED_OUT : partial;
            const uint64_t at = to == SCHED_TMP ? place_come * scratch->place : 0;
            const uint32_t got = builder_recv(builder, SCHED_RECV, ring->previous, come, 0, to, at,
                                              to == SCHED_TMP ? scratch->readers[place_come] : SCHED_NONE);
            ring->ready[come] = builder_local(builder, SCHED_REDUCE, come, SCHED_IN, to, at, got);
        }
}

/* own: the buffer that has the own shard. staged: the receivers may not have begun. */
static void gather_phase(ring_t *ring, sched_buffer_t own, bool staged)
{
    builder_t *builder = ring->builder;
    const uint32_t world = builder->request->world, most = most_pieces(ring);
    for (uint32_t t = 0; t + 1 < world; t++)
        for (uint32_t piece = 0; piece < most && builder->status == INSPAN_OK; piece++) {
            const uint32_t gone = chunk_at(ring, back(ring, t), piece);
            const uint32_t come = chunk_at(ring, back(ring, 1 + t), piece);
            if (gone != SCHED_NONE)
                builder_send(builder, ring->next, gone, 1, t == 0 ? own : SCHED_OUT, 0, staged,
                             ring->ready[gone], SCHED_NONE);
            if (come != SCHED_NONE)
                ring->ready[come] = builder_recv(builder, SCHED_RECV, ring->previous, come, 1, SCHED_OUT, 0,
                                                 ring->sent[come]);
        }
}

void build_ring_allreduce(builder_t *builder)
{
    ring_t ring;
    scratch_t none = {0};
    ring_open(&ring, builder, NULL);
    if (builder->status == INSPAN_OK) {
        reduce_phase(&ring, &none);
        gather_phase(&ring, SCHED_OUT, false);
    }
    ring_close(&ring);
}

void build_ring_reduce_scatter(builder_t *builder)
{
    ring_t ring;
    scratch_t scratch = {0};
    ring_open(&ring, builder, builder->request->weights);
    scratch_open(&scratch, &ring);
    if (builder->status == INSPAN_OK) reduce_phase(&ring, &scratch);
    free(scratch.readers);
    ring_close(&ring);
}

void build_ring_allgather(builder_t *builder)
{
    ring_t ring;
    ring_open(&ring, builder, builder->request->weights);
    if (builder->status == INSPAN_OK) {
        for (uint32_t piece = 0; piece < pieces(&ring, builder->request->rank); piece++)
            builder_local(builder, SCHED_COPY, chunk_at(&ring, builder->request->rank, piece), SCHED_IN,
                          SCHED_OUT, 0, SCHED_NONE);
        gather_phase(&ring, SCHED_IN, true);
    }
    ring_close(&ring);
}

/* A chain from the root around to the rank before it. */
void build_ring_broadcast(builder_t *builder)
{
    const sched_request_t *request = builder->request;
    const uint32_t next = (uint32_t)(((uint64_t)request->rank + 1) % request->world);
    const uint32_t previous = (uint32_t)(((uint64_t)request->rank + request->world - 1) % request->world);
    const bool root = request->rank == request->root;
    builder_chunks_plain(builder, request->root);
    for (uint32_t c = 0; c < builder->schedule->n_chunks && builder->status == INSPAN_OK; c++) {
        const uint32_t have =
            root ? builder_local(builder, SCHED_COPY, c, SCHED_IN, SCHED_OUT, 0, SCHED_NONE)
                 : builder_recv(builder, SCHED_RECV, previous, c, 0, SCHED_OUT, 0, SCHED_NONE);
        if (next != request->root)
            builder_send(builder, next, c, 0, root ? SCHED_IN : SCHED_OUT, 0, true, root ? SCHED_NONE : have,
                         SCHED_NONE);
    }
}
