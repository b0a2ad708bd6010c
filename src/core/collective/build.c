#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/collective/builder.h"

static const char *const algorithm_names[SCHED_ALGORITHMS] = {"one-shot", "direct", "ring", "doubling",
                                                              "trees"};

const char *sched_algorithm_name(sched_algorithm_t algorithm)
{
    return (unsigned)algorithm < SCHED_ALGORITHMS ? algorithm_names[algorithm] : "unknown";
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* At most this many elements in a chunk: whole lines of 64 bytes where one fits. */
static uint64_t chunk_elements(const sched_request_t *request)
{
    const uint64_t fit = request->chunk_bytes / request->element_size;
    const uint64_t line = 64 / request->element_size;
    if (line > 1 && fit >= line) return fit / line * line;
    return fit > 0 ? fit : 1;
}

static uint64_t pieces_of(uint64_t count, uint64_t at_most)
{
    return count / at_most + (count % at_most != 0);
}

/* Append the pieces of [first, first + n): as few as may be, all about as long. */
static void cut(builder_t *builder, uint64_t first, uint64_t n, uint32_t owner, bool exact)
{
    const uint64_t at_most = chunk_elements(builder->request), pieces = pieces_of(n, at_most);
    if (builder->status != INSPAN_OK || pieces == 0) return;
    const uint64_t line = 64 / builder->request->element_size;
    uint64_t each = n / pieces + (n % pieces != 0);
    if (line > 1 && at_most % line == 0)
        each = (each + line - 1) / line * line; /* still <= at_most, a multiple too */
    schedule_t *schedule = builder->schedule;
    for (uint64_t at = 0; at < n; at += each) {
        const uint64_t left = n - at;
        schedule->chunks[schedule->n_chunks++] =
            (sched_chunk_t){first + at, left < each ? left : each, owner, exact};
    }
}

static void reserve_chunks(builder_t *builder, uint64_t pieces)
{
    if (builder->status != INSPAN_OK) return;
    if (pieces >= SCHED_NONE) {
        builder->status = INSPAN_LIMIT;
        return;
    }
    builder->schedule->chunks = calloc(pieces > 0 ? pieces : 1, sizeof *builder->schedule->chunks);
    if (builder->schedule->chunks == NULL) builder->status = INSPAN_NO_MEMORY;
}

void builder_chunks_plain(builder_t *builder, uint32_t owner)
{
    const uint64_t count = builder->request->count;
    reserve_chunks(builder, pieces_of(count, chunk_elements(builder->request)));
    cut(builder, 0, count, owner, false);
}

/* What of the first `count` elements is owner's. */
static void share_of(const sched_request_t *request, const double *weights, uint64_t count, uint32_t owner,
                     uint64_t *first, uint64_t *n)
{
    const uint64_t block = count / request->world;
    switch (request->owners) {
    case SCHED_BY_BLOCKS:
        *first = owner * block;
        *n = block;
        break;
    case SCHED_BY_ROOT:
        *first = owner <= request->root ? 0 : count;
        *n = owner == request->root ? count : 0;
        break;
    default: sched_shard(count, request->world, weights, owner, first, n); break;
    }
}

/* Who has the end of the last shard: an exact tail is his, too. */
static uint32_t last_owner(const sched_request_t *request, const double *weights)
{
    uint32_t owner = request->world - 1;
    while (weights != NULL && weights[owner] <= 0) owner--; /* one is greater */
    return owner;
}

void builder_chunks_sharded(builder_t *builder, const double *weights)
{
    const sched_request_t *request = builder->request;
    const uint64_t at_most = chunk_elements(request), tail = request->exact_tail,
                   count = request->count - tail;
    uint64_t pieces = pieces_of(tail, at_most), first = 0, n = 0;
    for (uint32_t owner = 0; owner < request->world; owner++) {
        share_of(request, weights, count, owner, &first, &n);
        pieces += pieces_of(n, at_most);
    }
    reserve_chunks(builder, pieces);
    builder->shard_first = calloc((size_t)request->world + 1, sizeof *builder->shard_first);
    if (builder->shard_first == NULL) builder->status = INSPAN_NO_MEMORY;
    if (builder->status != INSPAN_OK) return;
    for (uint32_t owner = 0; owner < request->world; owner++) {
        share_of(request, weights, count, owner, &first, &n);
        builder->shard_first[owner] = builder->schedule->n_chunks;
        cut(builder, first, n, owner, false);
        if (owner == last_owner(request, weights)) cut(builder, count, tail, owner, true);
    }
    builder->shard_first[request->world] = builder->schedule->n_chunks;
}

void builder_chunks_interleave(builder_t *builder)
{
    if (builder->status != INSPAN_OK) return;
    schedule_t *schedule = builder->schedule;
    const uint32_t world = builder->request->world;
    sched_chunk_t *merged = calloc(schedule->n_chunks ? schedule->n_chunks : 1, sizeof *merged);
    uint32_t *next = calloc(world, sizeof *next);
    if (merged == NULL || next == NULL) builder->status = INSPAN_NO_MEMORY;
    for (uint32_t c = 0; builder->status == INSPAN_OK && c < schedule->n_chunks; c++) {
        uint32_t least = SCHED_NONE;
        double least_at = 2;
        for (uint32_t owner = 0; owner < world;
             owner++) { /* whose next chunk lies first in its shard, as a fraction */
            const uint32_t pieces = builder->shard_first[owner + 1] - builder->shard_first[owner];
            if (next[owner] == pieces) continue;
            const double at = (next[owner] + 0.5) / pieces;
            if (at < least_at) least_at = at, least = owner;
        }
        merged[c] = schedule->chunks[builder->shard_first[least] + next[least]++];
    }
    free(next);
    if (builder->status != INSPAN_OK) {
        free(merged);
        return;
    }
    free(schedule->chunks);
    schedule->chunks = merged;
}

/* ---- Operations ------------------------------------------------------------------------------ */

static uint32_t push(builder_t *builder, sched_op_t op)
{
    schedule_t *schedule = builder->schedule;
    if (builder->status != INSPAN_OK) return SCHED_NONE;
    if (schedule->n_ops == builder->op_capacity) {
        if (builder->op_capacity >= SCHED_NONE - 1) {
            builder->status = INSPAN_LIMIT;
            return SCHED_NONE;
        }
        const uint64_t wanted = builder->op_capacity ? (uint64_t)builder->op_capacity * 2 : 16;
        const uint32_t capacity = wanted > SCHED_NONE - 1 ? SCHED_NONE - 1 : (uint32_t)wanted;
        sched_op_t *grown = reallocarray(schedule->ops, capacity, sizeof *grown);
        if (grown == NULL) {
            builder->status = INSPAN_NO_MEMORY;
            return SCHED_NONE;
        }
        schedule->ops = grown;
        builder->op_capacity = capacity;
    }
    schedule->ops[schedule->n_ops] = op;
    return schedule->n_ops++;
}

uint32_t builder_send(builder_t *builder, uint32_t to, uint32_t chunk, uint32_t tag, sched_buffer_t src,
                      uint64_t tmp_offset, bool staged, uint32_t after, uint32_t second)
{
    return push(builder, (sched_op_t){.kind = SCHED_SEND,
                                      .src = (uint8_t)src,
                                      .staged = staged,
                                      .peer = to,
                                      .chunk = chunk,
                                      .tag = tag,
                                      .after = {after, second},
                                      .tmp_offset = tmp_offset});
}

uint32_t builder_recv(builder_t *builder, sched_kind_t kind, uint32_t from, uint32_t chunk, uint32_t tag,
                      sched_buffer_t dst, uint64_t tmp_offset, uint32_t after)
{
    return push(builder, (sched_op_t){.kind = (uint8_t)kind,
                                      .dst = (uint8_t)dst,
                                      .peer = from,
                                      .chunk = chunk,
                                      .tag = tag,
                                      .after = {after, SCHED_NONE},
                                      .tmp_offset = tmp_offset});
}

uint32_t builder_local(builder_t *builder, sched_kind_t kind, uint32_t chunk, sched_buffer_t src,
                       sched_buffer_t dst, uint64_t tmp_offset, uint32_t after)
{
    return push(builder, (sched_op_t){.kind = (uint8_t)kind,
                                      .src = (uint8_t)src,
                                      .dst = (uint8_t)dst,
                                      .peer = SCHED_NONE,
                                      .chunk = chunk,
                                      .after = {after, SCHED_NONE},
                                      .tmp_offset = tmp_offset});
}

void builder_after_too(builder_t *builder, uint32_t op, uint32_t second)
{
    if (builder->status == INSPAN_OK) builder->schedule->ops[op].after[1] = second;
}

uint32_t builder_gather_sum(builder_t *builder, uint32_t chunk)
{
    uint32_t last = SCHED_NONE;
    for (uint32_t rank = 0; rank < builder->request->world; rank++) {
        if (rank == builder->request->rank)
            last = builder_local(builder, rank == 0 ? SCHED_COPY : SCHED_REDUCE, chunk, SCHED_IN, SCHED_OUT,
                                 0, last);
        else
            last = builder_recv(builder, rank == 0 ? SCHED_RECV : SCHED_RECV_REDUCE, rank, chunk, 0,
                                SCHED_OUT, 0, last);
    }
    return last;
}

/* ---- The way in ------------------------------------------------------------------------------ */

static const builder_fn builders[SCHED_BARRIER + 1][SCHED_ALGORITHMS] = {
    [SCHED_ALLREDUCE] = {[SCHED_ONE_SHOT] = build_one_shot_allreduce,
                         [SCHED_DIRECT] = build_direct_allreduce,
                         [SCHED_RING] = build_ring_allreduce,
                         [SCHED_DOUBLING] = build_doubling_allreduce,
                         [SCHED_TREES] = build_trees_allreduce},
    [SCHED_REDUCE_SCATTER] =
        {[SCHED_DIRECT] = build_direct_reduce_scatter, [SCHED_RING] = build_ring_reduce_scatter},
    [SCHED_ALLGATHER] = {[SCHED_DIRECT] = build_direct_allgather, [SCHED_RING] = build_ring_allgather},
    [SCHED_BROADCAST] = {[SCHED_DIRECT] = build_direct_broadcast, [SCHED_RING] = build_ring_broadcast},
    [SCHED_BARRIER] = {build_barrier, build_barrier, build_barrier, build_barrier, build_barrier},
};

bool sched_supports(sched_collective_t collective, sched_algorithm_t algorithm)
{
    return (unsigned)collective <= SCHED_BARRIER && (unsigned)algorithm < SCHED_ALGORITHMS &&
           builders[collective][algorithm] != NULL;
}

static bool valid(const sched_request_t *request)
{
    if (!sched_supports(request->collective, request->algorithm)) return false;
    if (request->world == 0 || request->world == SCHED_NONE || request->rank >= request->world) return false;
    const bool scattered =
        request->collective == SCHED_REDUCE_SCATTER || request->collective == SCHED_ALLGATHER;
    if (request->owners != SCHED_BY_SHARDS && (!scattered || request->owners >= SCHED_OWNERS)) return false;
    if (request->owners == SCHED_BY_BLOCKS && request->count % request->world != 0) return false;
    const bool rooted = request->collective == SCHED_BROADCAST || request->owners == SCHED_BY_ROOT;
    if (rooted && request->root >= request->world) return false;
    if (request->collective == SCHED_BARRIER) return true;
    if (request->element_size == 0 || request->chunk_bytes == 0) return false;
    if (request->exact_tail > request->count) return false;
    double total = request->weights == NULL ? 1 : 0;
    for (uint32_t i = 0; request->weights != NULL && i < request->world; i++) {
        if (!isfinite(request->weights[i]) || request->weights[i] < 0) return false;
        total += request->weights[i];
    }
    return total > 0 && isfinite(total);
}

/* A world of one: the input is the result. */
static void build_alone(builder_t *builder)
{
    builder_chunks_plain(builder, 0);
    for (uint32_t c = 0; c < builder->schedule->n_chunks; c++)
        builder_local(builder, SCHED_COPY, c, SCHED_IN, SCHED_OUT, 0, SCHED_NONE);
}

inspan_status_t sched_build(const sched_request_t *request, schedule_t **out)
{
    *out = NULL;
    if (!valid(request)) return INSPAN_INVALID;
    builder_t builder = {.request = request, .schedule = calloc(1, sizeof(schedule_t))};
    if (builder.schedule == NULL) return INSPAN_NO_MEMORY;
    const bool barrier = request->collective == SCHED_BARRIER;
    *builder.schedule = (schedule_t){.collective = request->collective,
                                     .algorithm = request->algorithm,
                                     .world = request->world,
                                     .rank = request->rank,
                                     .root = request->collective == SCHED_BROADCAST ? request->root : 0,
                                     .count = barrier ? 0 : request->count};
    if (request->world == 1 && !barrier)
        build_alone(&builder);
    else
        builders[request->collective][request->algorithm](&builder);
    free(builder.shard_first);
    if (builder.status != INSPAN_OK) {
        sched_free(builder.schedule);
        return builder.status;
    }
    *out = builder.schedule;
    return INSPAN_OK;
}

void sched_free(schedule_t *schedule)
{
    if (schedule == NULL) return;
    free(schedule->chunks);
    free(schedule->ops);
    free(schedule);
}
