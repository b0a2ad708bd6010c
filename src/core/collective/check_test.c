/*
 * The checker accepts every schedule that is built, and finds every fault that is planted: each operation of
 * small schedules is spoilt in each way of a table, and faults of several operations are made by hand.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "core/collective/schedule.h"

enum { MOST_RANKS = 17, MANY_RANKS = 66 };

static void build_all(const sched_request_t *asked, schedule_t **ranks)
{
    sched_request_t request = *asked;
    for (request.rank = 0; request.rank < request.world; request.rank++)
        assert_int_equal(sched_build(&request, &ranks[request.rank]), INSPAN_OK);
}

static void free_all(schedule_t **ranks, uint32_t world)
{
    for (uint32_t r = 0; r < world; r++) sched_free(ranks[r]);
}

static inspan_status_t check(schedule_t **ranks, uint32_t world, inspan_error_t *err)
{
    *err = (inspan_error_t){0};
    return sched_check((const schedule_t *const *)ranks, world, err);
}

static sched_request_t ask(sched_collective_t collective, sched_algorithm_t algorithm, uint32_t world,
                           uint64_t count)
{
    return (sched_request_t){.collective = collective,
                             .algorithm = algorithm,
                             .world = world,
                             .root = world > 1,
                             .count = count,
                             .element_size = 4,
                             .chunk_bytes = 256};
}

static void must_be_right(const sched_request_t *request)
{
    schedule_t *ranks[MANY_RANKS];
    inspan_error_t err;
    build_all(request, ranks);
    if (check(ranks, request->world, &err) != INSPAN_OK)
        fail_msg("collective %d %s world %u count %" PRIu64 " chunk %" PRIu64 ": %s",
                 (int)request->collective, sched_algorithm_name(request->algorithm), request->world,
                 request->count, request->chunk_bytes, err.text);
    free_all(ranks, request->world);
}

/* Counts where something changes: nothing, one, odd ones, around one chunk, a chunk per rank, alignment of
 * shards. */
static void every_schedule_is_proved(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    for (uint32_t world = 1; world <= MOST_RANKS; world++) {
        const uint64_t chunk = 64, counts[] = {0,
                                               1,
                                               3,
                                               world - 1,
                                               world + 1,
                                               chunk - 1,
                                               chunk,
                                               chunk + 1,
                                               chunk * world - 1,
                                               chunk * world,
                                               chunk * world + 1,
                                               512 * world - 1,
                                               512 * world + 33};
        for (sched_collective_t collective = 0; collective <= SCHED_BARRIER; collective++)
            for (sched_algorithm_t algorithm = 0; algorithm < SCHED_ALGORITHMS; algorithm++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    if (!sched_supports(collective, algorithm)) continue;
                    double weights[MOST_RANKS];
                    for (uint32_t i = 0; i < world; i++)
                        weights[i] = rng_below(&rng, 3) == 0 ? 0 : rng_uniform(&rng);
                    weights[rng_below(&rng, world)] = 0.5;
                    sched_request_t request = ask(collective, algorithm, world, counts[c]);
                    request.root = (uint32_t)rng_below(&rng, world);
                    must_be_right(&request);
                    request.weights = weights;
                    request.element_size = 1u << rng_below(&rng, 4);
                    request.chunk_bytes = 64 + rng_below(&rng, 2000);
                    must_be_right(&request);
                    if (collective != SCHED_REDUCE_SCATTER && collective != SCHED_ALLGATHER) continue;
                    request.owners = SCHED_BY_ROOT;
                    must_be_right(&request);
                    request.owners = SCHED_BY_BLOCKS;
                    request.count *= world;
                    must_be_right(&request);
                }
    }
}

static void many_ranks_are_proved(void **state)
{
    (void)state;
    for (uint32_t world = 33; world <= MANY_RANKS; world *= 2)
        for (sched_collective_t collective = 0; collective <= SCHED_BARRIER; collective++)
            for (sched_algorithm_t algorithm = 0; algorithm < SCHED_ALGORITHMS; algorithm++) {
                if (!sched_supports(collective, algorithm)) continue;
                const sched_request_t request = ask(collective, algorithm, world, 40 * world + 1);
                must_be_right(&request);
            }
}

/* ---- Faults of one operation ----------------------------------------------------------------- */

/* Spoil operation i of schedule; false: this one cannot be spoilt in this way. */
typedef bool (*spoil_fn)(schedule_t *schedule, uint32_t i);

static bool drop_dependency(schedule_t *s, uint32_t i)
{
    if (s->ops[i].after[0] == SCHED_NONE) return false;
    s->ops[i].after[0] = SCHED_NONE;
    return s->collective != SCHED_BARRIER; /* a barrier of few ranks has spare ones: see below */
}

static bool wait_for_itself(schedule_t *s, uint32_t i)
{
    s->ops[i].after[1] = i;
    return true;
}

static bool other_peer(schedule_t *s, uint32_t i)
{
    const uint32_t was = s->ops[i].peer;
    if (was == SCHED_NONE) return false;
    do {
        s->ops[i].peer = (s->ops[i].peer + 1) % s->world;
    } while (s->ops[i].peer == s->rank);
    return s->ops[i].peer != was;
}

static bool peer_is_itself(schedule_t *s, uint32_t i)
{
    if (s->ops[i].peer == SCHED_NONE) return false;
    s->ops[i].peer = s->rank;
    return true;
}

static bool peer_beyond_the_world(schedule_t *s, uint32_t i)
{
    if (s->ops[i].peer == SCHED_NONE) return false;
    s->ops[i].peer = s->world;
    return true;
}

static bool other_chunk(schedule_t *s, uint32_t i)
{
    s->ops[i].chunk = (s->ops[i].chunk + 1) % s->n_chunks;
    return s->n_chunks > 1;
}

static bool chunk_beyond_the_end(schedule_t *s, uint32_t i)
{
    s->ops[i].chunk = s->n_chunks;
    return true;
}

static bool other_tag(schedule_t *s, uint32_t i)
{
    s->ops[i].tag += 2;
    return s->ops[i].peer != SCHED_NONE;
}

static bool become(schedule_t *s, uint32_t i, sched_kind_t kind)
{
    const bool harmless =
        s->collective == SCHED_BARRIER && kind == SCHED_RECV_REDUCE && s->ops[i].kind == SCHED_RECV;
    if (s->ops[i].kind == kind || harmless) return false;
    s->ops[i].kind = (uint8_t)kind;
    return true;
}

static bool becomes_send(schedule_t *s, uint32_t i)
{
    return become(s, i, SCHED_SEND);
}

static bool becomes_receive(schedule_t *s, uint32_t i)
{
    return become(s, i, SCHED_RECV);
}

static bool becomes_receive_reduce(schedule_t *s, uint32_t i)
{
    return become(s, i, SCHED_RECV_REDUCE);
}

static bool becomes_copy(schedule_t *s, uint32_t i)
{
    return become(s, i, SCHED_COPY);
}

static bool becomes_reduce(schedule_t *s, uint32_t i)
{
    return become(s, i, SCHED_REDUCE);
}

static bool becomes_unknown(schedule_t *s, uint32_t i)
{
    return become(s, i, (sched_kind_t)(SCHED_REDUCE + 1));
}

static bool source_is(schedule_t *s, uint32_t i, sched_buffer_t buffer)
{
    const uint8_t kind = s->ops[i].kind;
    const bool has = kind == SCHED_SEND || kind == SCHED_COPY || kind == SCHED_REDUCE;
    if (!has || s->ops[i].src == buffer || s->collective == SCHED_BARRIER) return false;
    s->ops[i].src = (uint8_t)buffer;
    return true;
}

static bool source_is_in(schedule_t *s, uint32_t i)
{
    return source_is(s, i, SCHED_IN);
}

static bool source_is_out(schedule_t *s, uint32_t i)
{
    return source_is(s, i, SCHED_OUT);
}

static bool source_is_tmp(schedule_t *s, uint32_t i)
{
    const uint32_t made = s->ops[i].after[0];
    if (made != SCHED_NONE && s->ops[made].kind == SCHED_COPY && s->ops[made].src == SCHED_TMP &&
        s->ops[made].tmp_offset == s->ops[i].tmp_offset)
        return false; /* it was copied from there: the same bits */
    return source_is(s, i, SCHED_TMP);
}

static bool target_is(schedule_t *s, uint32_t i, sched_buffer_t buffer)
{
    if (s->ops[i].kind == SCHED_SEND || s->ops[i].dst == buffer) return false;
    if (s->collective == SCHED_BARRIER && buffer != SCHED_IN) return false; /* no data, no harm */
    s->ops[i].dst = (uint8_t)buffer;
    return true;
}

static bool target_is_in(schedule_t *s, uint32_t i)
{
    return target_is(s, i, SCHED_IN);
}

static bool target_is_out(schedule_t *s, uint32_t i)
{
    return target_is(s, i, SCHED_OUT);
}

static bool target_is_tmp(schedule_t *s, uint32_t i)
{
    return target_is(s, i, SCHED_TMP);
}

static bool scratch_beyond_the_end(schedule_t *s, uint32_t i)
{
    const sched_op_t *op = &s->ops[i];
    const bool tmp = (op->kind != SCHED_SEND && op->dst == SCHED_TMP) ||
                     (op->kind != SCHED_RECV && op->kind != SCHED_RECV_REDUCE && op->src == SCHED_TMP);
    s->ops[i].tmp_offset = UINT64_MAX - 1; /* the end of the chunk wraps around */
    return tmp;
}

static bool scratch_moved(schedule_t *s, uint32_t i)
{
    const bool tmp = scratch_beyond_the_end(s, i);
    s->ops[i].tmp_offset = s->tmp_elements / 4;
    return tmp;
}

static bool not_staged(schedule_t *s, uint32_t i)
{
    if (!s->ops[i].staged || s->collective == SCHED_BARRIER) return false;
    s->ops[i].staged = false;
    return true;
}

static bool twice(schedule_t *s, uint32_t i)
{
    sched_op_t *ops = reallocarray(s->ops, s->n_ops + (size_t)1, sizeof *ops);
    assert_non_null(ops);
    s->ops = ops;
    ops[s->n_ops++] = ops[i];
    return true;
}

static bool left_out(schedule_t *s, uint32_t i)
{
    const uint32_t before = s->ops[i].after[0];
    memmove(&s->ops[i], &s->ops[i + 1], (s->n_ops - i - 1) * sizeof *s->ops);
    s->n_ops--;
    for (uint32_t k = i; k < s->n_ops; k++)
        for (int d = 0; d < 2; d++) {
            uint32_t *after = &s->ops[k].after[d];
            if (*after == i)
                *after = before;
            else if (*after != SCHED_NONE && *after > i)
                --*after;
        }
    return true;
}

#define SPOIL(name)                                                                                          \
    {                                                                                                        \
#name, name                                                                                          \
    }
static const struct {
    const char *name;
    spoil_fn fn;
} spoils[] = {
    SPOIL(drop_dependency),

    SPOIL(wait_for_itself), SPOIL(other_peer),
    SPOIL(peer_is_itself),  SPOIL(peer_beyond_the_world),
    SPOIL(other_chunk),     SPOIL(chunk_beyond_the_end),
    SPOIL(other_tag),       SPOIL(becomes_send),
    SPOIL(becomes_receive), SPOIL(becomes_receive_reduce),
    SPOIL(becomes_copy),    SPOIL(becomes_reduce),
    SPOIL(becomes_unknown), SPOIL(source_is_in),
    SPOIL(source_is_out),   SPOIL(source_is_tmp),
    SPOIL(target_is_in),    SPOIL(target_is_out),
    SPOIL(target_is_tmp),   SPOIL(scratch_beyond_the_end),
    SPOIL(scratch_moved),   SPOIL(not_staged),
    SPOIL(twice),           SPOIL(left_out),
};
enum { SPOILS = sizeof spoils / sizeof spoils[0] };

static schedule_t *copy_of(const schedule_t *from)
{
    schedule_t *copy = malloc(sizeof *copy);
    assert_non_null(copy);
    *copy = *from;
    copy->chunks = malloc((from->n_chunks + (size_t)1) * sizeof *copy->chunks);
    copy->ops = malloc((from->n_ops + (size_t)1) * sizeof *copy->ops);
    assert_true(copy->chunks != NULL && copy->ops != NULL);
    memcpy(copy->chunks, from->chunks, from->n_chunks * sizeof *copy->chunks);
    memcpy(copy->ops, from->ops, from->n_ops * sizeof *copy->ops);
    return copy;
}

/* Every operation of every rank in every way; how often each way was possible is counted. */
static void spoil_all(const sched_request_t *request, uint32_t planted[SPOILS])
{
    schedule_t *ranks[MOST_RANKS];
    inspan_error_t err;
    build_all(request, ranks);
    for (uint32_t r = 0; r < request->world; r++)
        for (uint32_t i = 0; i < ranks[r]->n_ops; i++)
            for (size_t f = 0; f < SPOILS; f++) {
                schedule_t *good = ranks[r];
                ranks[r] = copy_of(good);
                if (spoils[f].fn(ranks[r], i)) {
                    planted[f]++;
                    if (check(ranks, request->world, &err) != INSPAN_INVALID)
                        fail_msg("%s not found: collective %d %s world %u, rank %u operation %u",
                                 spoils[f].name, (int)request->collective,
                                 sched_algorithm_name(request->algorithm), request->world, r, i);
                    assert_int_equal(err.status, INSPAN_INVALID);
                    assert_true(strncmp(err.text, "schedule: ", 10) == 0);
                }
                sched_free(ranks[r]);
                ranks[r] = good;
            }
    free_all(ranks, request->world);
}

static void every_planted_fault_is_found(void **state)
{
    (void)state;
    uint32_t planted[SPOILS] = {0};
    const uint32_t worlds[] = {2, 3, 5};
    for (sched_collective_t collective = 0; collective <= SCHED_BARRIER; collective++)
        for (sched_algorithm_t algorithm = 0; algorithm < SCHED_ALGORITHMS; algorithm++)
            for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
                if (!sched_supports(collective, algorithm)) continue;
                if (collective == SCHED_BARRIER && algorithm != SCHED_DIRECT)
                    continue; /* one barrier for all */
                sched_request_t request = ask(collective, algorithm, worlds[w], 80 * worlds[w]);
                request.chunk_bytes = algorithm == SCHED_RING ? 160 : 256;
                spoil_all(&request, planted);
            }
    for (size_t f = 0; f < SPOILS; f++)
        if (planted[f] < 10) fail_msg("%s: planted only %u times", spoils[f].name, planted[f]);
}

/* ---- Faults of several operations ------------------------------------------------------------ */

static void must_fault(schedule_t **ranks, uint32_t world, const char *text)
{
    inspan_error_t err;
    assert_int_equal(check(ranks, world, &err), INSPAN_INVALID);
    if (strstr(err.text, text) == NULL) fail_msg("expected \"%s\", found \"%s\"", text, err.text);
}

static void another_order_of_adding_is_found(void **state)
{
    (void)state;
    schedule_t *ranks[4];
    const sched_request_t request = ask(SCHED_ALLREDUCE, SCHED_ONE_SHOT, 4, 10);
    build_all(&request, ranks);
    uint32_t adds[2] = {0}, n = 0;
    for (uint32_t i = 0; i < ranks[1]->n_ops; i++)
        if (ranks[1]->ops[i].kind == SCHED_RECV_REDUCE) adds[n++ % 2] = i;
    ranks[1]->ops[adds[0]].peer = 3;
    ranks[1]->ops[adds[1]].peer = 2;
    must_fault(
        ranks, 4,
        "rank 1, operation 6 (receive-reduce from 2, chunk 0 [0, +10), tag 0): after it, the result is "
        "added up in another order than that of rank 0");
    free_all(ranks, 4);
}

static void a_lost_contribution_is_found(void **state)
{
    (void)state;
    schedule_t *ranks[3];
    const sched_request_t request = ask(SCHED_REDUCE_SCATTER, SCHED_DIRECT, 3, 96);
    build_all(&request, ranks);
    for (uint32_t i = 0; i < ranks[0]->n_ops; i++) /* rank 1's contribution to rank 0 goes with its receive */
        if (ranks[0]->ops[i].kind == SCHED_RECV_REDUCE && ranks[0]->ops[i].peer == 1) {
            const uint32_t chunk = ranks[0]->ops[i].chunk;
            left_out(ranks[0], i);
            for (uint32_t k = 0; k < ranks[1]->n_ops; k++)
                if (ranks[1]->ops[k].kind == SCHED_SEND && ranks[1]->ops[k].peer == 0 &&
                    ranks[1]->ops[k].chunk == chunk) {
                    left_out(ranks[1], k);
                    break;
                }
            break;
        }
    must_fault(ranks, 3, "lacks the contribution of rank 1");
    free_all(ranks, 3);
}

static uint32_t find(const schedule_t *s, sched_kind_t kind)
{
    for (uint32_t i = 0; i < s->n_ops; i++)
        if (s->ops[i].kind == kind) return i;
    fail_msg("no such operation");
    return 0;
}

/* Each of two ranks sends only after it received. */
static void a_circle_between_ranks_is_found(void **state)
{
    (void)state;
    schedule_t *ranks[2];
    const sched_request_t request = ask(SCHED_ALLGATHER, SCHED_DIRECT, 2, 64);
    build_all(&request, ranks);
    for (int r = 0; r < 2; r++) {
        schedule_t *s = ranks[r];
        const uint32_t send = find(s, SCHED_SEND), receive = find(s, SCHED_RECV);
        const sched_op_t moved = s->ops[send];
        left_out(s, send);
        s->ops[s->n_ops] = moved;
        s->ops[s->n_ops++].after[0] = receive > send ? receive - 1 : receive;
    }
    must_fault(ranks, 2, "deadlock, a circle of 2");
    free_all(ranks, 2);
}

/* Each rank lists the result before the contribution that the other's result needs: right, but not for a
 * queue. */
static void a_circle_by_list_order_is_found(void **state)
{
    (void)state;
    schedule_t *ranks[2];
    const sched_request_t request = ask(SCHED_ALLREDUCE, SCHED_DIRECT, 2, 64);
    build_all(&request, ranks);
    for (int r = 0; r < 2; r++) {
        schedule_t *s = ranks[r];
        const uint32_t send = find(s, SCHED_SEND);
        const sched_op_t contribution = s->ops[send];
        assert_int_equal(contribution.src, SCHED_IN);
        left_out(s, send);
        s->ops[s->n_ops++] = contribution;
    }
    must_fault(ranks, 2, "deadlock if transfers to a peer keep the list's order");
    free_all(ranks, 2);
}

/* With one half of the scratch memory every rank would wait for the next one, all around the ring. */
static void a_ring_with_half_the_scratch_is_found(void **state)
{
    (void)state;
    schedule_t *ranks[5];
    const sched_request_t request = ask(SCHED_REDUCE_SCATTER, SCHED_RING, 5, 5 * 64);
    build_all(&request, ranks);
    for (int r = 0; r < 5; r++) {
        uint32_t reader = SCHED_NONE;
        for (uint32_t i = 0; i < ranks[r]->n_ops; i++) {
            sched_op_t *op = &ranks[r]->ops[i];
            op->tmp_offset = 0;
            if (op->kind == SCHED_SEND && op->src == SCHED_TMP) reader = i;
            if (op->kind == SCHED_RECV && op->dst == SCHED_TMP) op->after[0] = reader;
        }
    }
    must_fault(ranks, 5, "deadlock");
    free_all(ranks, 5);
}

/* Rank 3's message of round 1 does not wait for what it hears first, or that of round 2 not for its last one.
 */
static void a_barrier_with_a_gap_is_found(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < 2; d++) {
        schedule_t *ranks[8];
        const sched_request_t request = ask(SCHED_BARRIER, SCHED_ONE_SHOT, 8, 0);
        build_all(&request, ranks);
        for (uint32_t i = 0; i < ranks[3]->n_ops; i++)
            if (ranks[3]->ops[i].kind == SCHED_SEND && ranks[3]->ops[i].tag == 1 + d)
                ranks[3]->ops[i].after[d] = SCHED_NONE;
        must_fault(ranks, 8, "can leave the barrier before rank 2 entered it");
        free_all(ranks, 8);
    }
}

static void ranks_that_disagree_are_found(void **state)
{
    (void)state;
    enum { FAULTS = 9 };
    for (int fault = 0; fault < FAULTS; fault++) {
        schedule_t *ranks[3];
        const sched_request_t request = ask(SCHED_ALLGATHER, SCHED_DIRECT, 3, 300);
        build_all(&request, ranks);
        switch (fault) {
        case 0: ranks[1]->rank = 2; break;
        case 1: ranks[2]->world = 4; break;
        case 2: ranks[1]->count++; break;
        case 3: ranks[1]->collective = SCHED_BROADCAST; break;
        case 4: ranks[2]->chunks[1].owner++; break;
        case 5: ranks[2]->root = 1; break;
        case 6: /* overlap, on all ranks */
            for (int r = 0; r < 3; r++) ranks[r]->chunks[0].count++;
            break;
        case 7: /* gap */
            for (int r = 0; r < 3; r++) ranks[r]->chunks[0].count--;
            break;
        default:
            for (int r = 0; r < 3; r++) ranks[r]->chunks[0].owner = 3;
            break;
        }
        must_fault(ranks, 3, "schedule: ");
        free_all(ranks, 3);
    }
}

static void the_roots_buffer_is_only_read(void **state)
{
    (void)state;
    schedule_t *ranks[2];
    const sched_request_t request = ask(SCHED_BROADCAST, SCHED_DIRECT, 2, 10);
    build_all(&request, ranks); /* root 1 */
    ranks[1]->ops[find(ranks[1], SCHED_COPY)].kind = SCHED_REDUCE;
    must_fault(ranks, 2, "root's OUT");
    free_all(ranks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_proved),
        cmocka_unit_test(many_ranks_are_proved),
        cmocka_unit_test(every_planted_fault_is_found),
        cmocka_unit_test(another_order_of_adding_is_found),
        cmocka_unit_test(a_lost_contribution_is_found),
        cmocka_unit_test(a_circle_between_ranks_is_found),
        cmocka_unit_test(a_circle_by_list_order_is_found),
        cmocka_unit_test(a_ring_with_half_the_scratch_is_found),
        cmocka_unit_test(a_barrier_with_a_gap_is_found),
        cmocka_unit_test(ranks_that_disagree_are_found),
        cmocka_unit_test(the_roots_buffer_is_only_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
