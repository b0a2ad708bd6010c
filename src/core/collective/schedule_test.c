/*
 * The schedules, run: an executor of a few lines plays all ranks in one memory, drawing the next operation at
 * random from those that may start, with messages that travel at random speed. What it computes is compared
 * with a plain sum in the order that the algorithm promises. (The proof, check.c, has its own test; this one
 * shares nothing with it.)
 */
#include "core/collective/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

enum { MOST_RANKS = 17 };

typedef struct rank_run {
    schedule_t *schedule;
    float *buffers[3]; /* IN, OUT (count), TMP (tmp_elements) */
    bool *started, *done;
    float **wire; /* (n_ops) of a SEND: its data, once started */
} rank_run_t;

static float *side(rank_run_t *rank, const sched_op_t *op, uint8_t buffer)
{
    const sched_chunk_t *chunk = &rank->schedule->chunks[op->chunk];
    return rank->buffers[buffer] + (buffer == SCHED_TMP ? op->tmp_offset : chunk->first);
}

static bool may_start(const rank_run_t *rank, const sched_op_t *op)
{
    for (int i = 0; i < 2; i++)
        if (op->after[i] != SCHED_NONE && !rank->done[op->after[i]]) return false;
    return true;
}

/* The started send that belongs to this receive, or NULL. */
static float *arrived(rank_run_t *ranks, uint32_t self, const sched_op_t *op)
{
    rank_run_t *peer = &ranks[op->peer];
    for (uint32_t i = 0; i < peer->schedule->n_ops; i++) {
        const sched_op_t *send = &peer->schedule->ops[i];
        if (send->kind == SCHED_SEND && send->peer == self && send->chunk == op->chunk &&
            send->tag == op->tag)
            return peer->started[i] ? peer->wire[i] : NULL;
    }
    fail_msg("rank %u: no rank sends what it wants from %u", self, op->peer);
    return NULL;
}

static bool run_op(rank_run_t *ranks, uint32_t self, uint32_t index)
{
    rank_run_t *rank = &ranks[self];
    const sched_op_t *op = &rank->schedule->ops[index];
    const size_t n = rank->schedule->chunks[op->chunk].count;
    if (rank->started[index] || !may_start(rank, op)) return false;
    float *data = NULL;
    switch ((sched_kind_t)op->kind) {
    case SCHED_SEND:
        rank->wire[index] = malloc(n * sizeof(float) + 1);
        assert_non_null(rank->wire[index]);
        if (n > 0) memcpy(rank->wire[index], side(rank, op, op->src), n * sizeof(float));
        break;
    case SCHED_COPY: memcpy(side(rank, op, op->dst), side(rank, op, op->src), n * sizeof(float)); break;
    case SCHED_REDUCE:
        for (size_t i = 0; i < n; i++) side(rank, op, op->dst)[i] += side(rank, op, op->src)[i];
        break;
    case SCHED_RECV:
    case SCHED_RECV_REDUCE:
        data = arrived(ranks, self, op);
        if (data == NULL) return false;
        for (size_t i = 0; i < n; i++)
            side(rank, op, op->dst)[i] =
                op->kind == SCHED_RECV ? data[i] : side(rank, op, op->dst)[i] + data[i];
        break;
    }
    rank->started[index] = rank->done[index] = true;
    return true;
}

/* Run everything; fails when it comes to a stop before the end. */
static void play(rank_run_t *ranks, uint32_t world, rng_t *rng)
{
    for (;;) {
        bool progress = false, left = false;
        const uint32_t offset = (uint32_t)rng_below(rng, world);
        for (uint32_t i = 0; i < world; i++) {
            rank_run_t *rank = &ranks[(i + offset) % world];
            const uint32_t n_ops = rank->schedule->n_ops;
            if (n_ops == 0) continue;
            const uint32_t from = (uint32_t)rng_below(rng, n_ops), some = 1 + (uint32_t)rng_below(rng, n_ops);
            for (uint32_t k = 0; k < n_ops; k++) /* a random stretch first, then whatever is possible */
                if ((k < some || !progress) && run_op(ranks, (i + offset) % world, (from + k) % n_ops))
                    progress = true;
            for (uint32_t k = 0; k < n_ops; k++) left = left || !rank->done[k];
        }
        if (!left) return;
        if (!progress) fail_msg("deadlock");
    }
}

/* What of the elements is rank's. */
static void share(const sched_request_t *request, const double *weights, uint32_t rank, uint64_t *first,
                  uint64_t *n)
{
    sched_shard(request->count, request->world, weights, rank, first, n);
    if (request->owners == SCHED_BY_BLOCKS)
        *n = request->count / request->world, *first = rank * *n;
    else if (request->owners == SCHED_BY_ROOT)
        *first = 0, *n = rank == request->root ? request->count : 0;
}

static bool holds(const sched_request_t *request, uint32_t rank, uint64_t element)
{
    if (request->collective == SCHED_BARRIER) return false;
    if (request->collective != SCHED_REDUCE_SCATTER) return true;
    uint64_t first = 0, n = 0;
    share(request, request->weights, rank, &first, &n);
    return element >= first && element - first < n;
}

static uint32_t owner_of(const sched_request_t *request, const double *weights, uint64_t element)
{
    for (uint32_t rank = 0;; rank++) {
        uint64_t first = 0, n = 0;
        assert_true(rank < request->world);
        share(request, weights, rank, &first, &n);
        if (element >= first && element - first < n) return rank;
    }
}

/* Those above the largest power of two go to their partners, then neighbours, pairs of neighbours, ... */
static float sum_by_doubling(uint32_t world, const float *input)
{
    float sums[MOST_RANKS];
    uint32_t power = 1;
    while (2 * power <= world) power *= 2;
    memcpy(sums, input, sizeof sums);
    for (uint32_t r = power; r < world; r++) sums[r - power] += input[r];
    for (uint32_t apart = 1; apart < power; apart *= 2)
        for (uint32_t r = 0; r < power; r += 2 * apart) sums[r] += sums[r + apart];
    return sums[0];
}

/* Over positions [from, to), which begin and end with a leaf (or the end): the middle inner one, left, right.
 * of (n): the rank at a position. */
static float sum_of_tree(const float *input, const uint32_t *of, uint32_t from, uint32_t to)
{
    const uint32_t inner = (to - from) / 2;
    if (inner == 0) return input[of[from]];
    const uint32_t top = from + 2 * (inner / 2) + 1;
    const float sum = input[of[top]] + sum_of_tree(input, of, from, top);
    return top + 1 < to ? sum + sum_of_tree(input, of, top + 1, to) : sum;
}

/* The first tree stands over the ranks, the second over the ranks mirrored or moved by one; the elements are
 * shared out between their roots, by rank. */
static float sum_by_trees(const sched_request_t *request, const float *input, uint64_t element)
{
    const uint32_t n = request->world, top = 2 * (n / 2 / 2) + 1;
    uint32_t of[2][MOST_RANKS] = {{0}};
    double weights[MOST_RANKS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        of[0][i] = i;
        of[1][i] = n % 2 == 0 ? n - 1 - i : (i + n - 1) % n;
    }
    if (n == 1) return input[0];
    weights[of[0][top]] = weights[of[1][top]] = 1;
    return sum_of_tree(input, of[owner_of(request, weights, element) == of[1][top]], 0, n);
}

/* What every holder must have, to the bit: the sum in the promised order, or the one value there is. */
static float expected(const sched_request_t *request, rank_run_t *ranks, uint64_t element)
{
    const uint32_t world = request->world;
    float input[MOST_RANKS] = {0};
    for (uint32_t r = 0; r < world; r++) input[r] = ranks[r].buffers[SCHED_IN][element];
    if (request->algorithm == SCHED_DOUBLING) return sum_by_doubling(world, input);
    if (request->algorithm == SCHED_TREES) return sum_by_trees(request, input, element);
    if (request->collective == SCHED_BROADCAST) return ranks[request->root].buffers[SCHED_IN][element];
    const bool ring = request->algorithm == SCHED_RING;
    const double *weights = ring && request->collective == SCHED_ALLREDUCE ? NULL : request->weights;
    const uint32_t owner = owner_of(request, weights, element), first = ring ? (owner + 1) % world : 0;
    if (request->collective == SCHED_ALLGATHER) return ranks[owner].buffers[SCHED_IN][element];
    float sum = ranks[first].buffers[SCHED_IN][element];
    for (uint32_t i = 1; i < world; i++) sum += ranks[(first + i) % world].buffers[SCHED_IN][element];
    return sum;
}

static void try(const sched_request_t *asked, rng_t *rng)
{
    sched_request_t request = *asked;
    rank_run_t ranks[MOST_RANKS] = {0};
    for (uint32_t r = 0; r < request.world; r++) {
        request.rank = r;
        assert_int_equal(sched_build(&request, &ranks[r].schedule), INSPAN_OK);
        const schedule_t *s = ranks[r].schedule;
        const uint64_t sizes[3] = {s->count, s->count, s->tmp_elements};
        for (int b = 0; b < 3; b++) {
            ranks[r].buffers[b] = malloc(sizes[b] * sizeof(float) + 1);
            assert_non_null(ranks[r].buffers[b]);
            for (uint64_t i = 0; i < sizes[b]; i++) ranks[r].buffers[b][i] = (float)rng_normal(rng);
        }
        ranks[r].started = calloc(s->n_ops + 1, sizeof(bool));
        ranks[r].done = calloc(s->n_ops + 1, sizeof(bool));
        ranks[r].wire = calloc(s->n_ops + 1, sizeof(float *));
    }
    for (uint32_t c = 0; c < ranks[0].schedule->n_chunks; c++) {
        const sched_chunk_t *chunk = &ranks[0].schedule->chunks[c];
        const uint64_t tail = request.world > 1 ? request.exact_tail : 0;
        if (chunk->count == 0) continue; /* a barrier's */
        assert_true(chunk->exact == (chunk->first >= request.count - tail));
        assert_true(chunk->exact || chunk->first + chunk->count <= request.count - tail);
    }
    play(ranks, request.world, rng);
    for (uint64_t i = 0; i < ranks[0].schedule->count; i++) {
        const float want = expected(&request, ranks, i);
        for (uint32_t r = 0; r < request.world; r++)
            if (holds(&request, r, i) && memcmp(&ranks[r].buffers[SCHED_OUT][i], &want, sizeof want) != 0)
                fail_msg("collective %d %s world %u count %zu rank %u element %zu", (int)request.collective,
                         sched_algorithm_name(request.algorithm), request.world, (size_t)request.count, r,
                         (size_t)i);
    }
    for (uint32_t r = 0; r < request.world; r++) {
        for (uint32_t i = 0; i < ranks[r].schedule->n_ops; i++) free(ranks[r].wire[i]);
        for (int b = 0; b < 3; b++) free(ranks[r].buffers[b]);
        free(ranks[r].started);
        free(ranks[r].done);
        free(ranks[r].wire);
        sched_free(ranks[r].schedule);
    }
}

static void random_weights(double *weights, uint32_t world, rng_t *rng)
{
    for (uint32_t i = 0; i < world; i++) weights[i] = rng_below(rng, 3) == 0 ? 0 : rng_uniform(rng) * 3;
    weights[rng_below(rng, world)] = 1;
}

static void every_schedule_computes_the_promised_sum(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 1, 0);
    const uint64_t counts[] = {0, 1, 2, 3, 16, 17, 31, 97, 256, 1001};
    const uint64_t chunk_bytes[] = {1, 64, 100, 256, 1 << 20};
    for (uint32_t world = 1; world <= MOST_RANKS; world += world < 8 ? 1 : 9)
        for (sched_collective_t collective = 0; collective <= SCHED_BARRIER; collective++)
            for (sched_algorithm_t algorithm = 0; algorithm < SCHED_ALGORITHMS; algorithm++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    if (!sched_supports(collective, algorithm)) continue;
                    double weights[MOST_RANKS];
                    random_weights(weights, world, &rng);
                    uint64_t bytes = chunk_bytes[rng_below(&rng, 5)];
                    if (counts[c] * world > 1000 && bytes < 256) bytes = 256; /* this executor is quadratic */
                    const bool rounds = collective == SCHED_ALLREDUCE && algorithm == SCHED_DIRECT;
                    sched_request_t request = {.collective = collective,
                                               .algorithm = algorithm,
                                               .world = world,
                                               .root = (uint32_t)rng_below(&rng, world),
                                               .count = counts[c],
                                               .exact_tail = rounds ? rng_below(&rng, counts[c] + 1) : 0,
                                               .element_size = 4,
                                               .chunk_bytes = bytes,
                                               .weights = rng_below(&rng, 2) ? weights : NULL};
                    try(&request, &rng);
                    if (collective != SCHED_REDUCE_SCATTER && collective != SCHED_ALLGATHER) continue;
                    request.owners = SCHED_BY_ROOT;
                    try(&request, &rng);
                    request.owners = SCHED_BY_BLOCKS;
                    request.count -= request.count % world;
                    try(&request, &rng);
                }
}

static void shards_cover_everything_in_proportion(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 2, 0);
    for (int round = 0; round < 3000; round++) {
        const uint32_t world = 1 + (uint32_t)rng_below(&rng, MOST_RANKS);
        const uint64_t count = round % 3 == 0 ? rng_below(&rng, 40) : rng_next(&rng) >> rng_below(&rng, 63);
        double weights[MOST_RANKS], total = 0;
        random_weights(weights, world, &rng);
        for (uint32_t i = 0; i < world; i++) total += weights[i];
        uint64_t at = 0;
        for (uint32_t rank = 0; rank < world; rank++) {
            uint64_t first = 0, n = 0;
            sched_shard(count, world, weights, rank, &first, &n);
            assert_true(first == at || n == 0);
            if (weights[rank] == 0) assert_true(n == 0);
            const double want = (double)count * (weights[rank] / total),
                         slack = 2 + (double)count / world / 8;
            assert_true((double)n >= want - slack && (double)n <= want + slack);
            if (first != 0 && first != count && count / world >= 512) assert_true(first % 32 == 0);
            at = first + n;
        }
        assert_true(at == count);
    }
}

static void chunks_keep_their_bound(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (int round = 0; round < 500; round++) {
        const uint32_t sizes[] = {1, 2, 4, 8};
        sched_request_t request = {.collective = SCHED_ALLREDUCE,
                                   .algorithm = (sched_algorithm_t)rng_below(&rng, SCHED_ALGORITHMS),
                                   .world = 1 + (uint32_t)rng_below(&rng, 9),
                                   .count = rng_below(&rng, 5000),
                                   .element_size = sizes[rng_below(&rng, 4)],
                                   .chunk_bytes = 1 + rng_below(&rng, 4096)};
        schedule_t *schedule = NULL;
        assert_int_equal(sched_build(&request, &schedule), INSPAN_OK);
        uint64_t sum = 0;
        for (uint32_t c = 0; c < schedule->n_chunks; c++) {
            const uint64_t bytes = schedule->chunks[c].count * request.element_size;
            assert_true(schedule->chunks[c].count > 0);
            assert_true(bytes <= request.chunk_bytes || schedule->chunks[c].count == 1);
            sum += schedule->chunks[c].count;
        }
        assert_true(sum == request.count);
        sched_free(schedule);
    }
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    const double negative[] = {1, -1}, zeros[] = {0, 0}, infinite[] = {1, 1.0 / 0.0},
                 huge[] = {1.7e308, 1.7e308};
    const sched_request_t good = {.collective = SCHED_ALLREDUCE,
                                  .algorithm = SCHED_DIRECT,
                                  .world = 2,
                                  .count = 10,
                                  .element_size = 4,
                                  .chunk_bytes = 64};
    sched_request_t bad[17];
    for (int i = 0; i < 17; i++) bad[i] = good;
    bad[0].world = 0;
    bad[1].rank = 2;
    bad[2].element_size = 0;
    bad[3].chunk_bytes = 0;
    bad[4].weights = negative;
    bad[5].weights = zeros;
    bad[6].weights = infinite;
    bad[7].weights = huge;
    bad[8].algorithm = SCHED_ALGORITHMS;
    bad[9].collective = (sched_collective_t)(SCHED_BARRIER + 1);
    bad[10].collective = SCHED_BROADCAST, bad[10].root = 2;
    bad[11].collective = SCHED_ALLGATHER, bad[11].algorithm = SCHED_ONE_SHOT;
    bad[12].exact_tail = 11;
    bad[13].owners = SCHED_BY_ROOT; /* of an all-reduce */
    for (int i = 14; i < 17; i++) bad[i].collective = SCHED_ALLGATHER, bad[i].algorithm = SCHED_RING;
    bad[14].owners = SCHED_OWNERS;
    bad[15].owners = SCHED_BY_ROOT, bad[15].root = 2;
    bad[16].owners = SCHED_BY_BLOCKS, bad[16].count = 11;
    schedule_t *schedule = NULL;
    for (int i = 0; i < 17; i++) {
        assert_int_equal(sched_build(&bad[i], &schedule), INSPAN_INVALID);
        assert_null(schedule);
    }
    assert_int_equal(sched_build(&good, &schedule), INSPAN_OK);
    sched_free(schedule);
    sched_request_t endless = good;
    endless.count = UINT64_MAX;
    assert_int_equal(sched_build(&endless, &schedule), INSPAN_LIMIT);
    sched_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_computes_the_promised_sum),
        cmocka_unit_test(shards_cover_everything_in_proportion),
        cmocka_unit_test(chunks_keep_their_bound),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
