/* The sim transport: the conformance suite, and what only it can show: the same history for the same seed,
 * crashes. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/conformance_test.h"
#include "comm/internal.h"

/* Ranks are threads that run one at a time, in turns: one gives its turn away only where it waits. */
typedef struct turns {
    comm_sim_t *sim;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t turn, n;
    bool left[16], threads;
    uint64_t idle; /* turns without any event: above a bound, waiting is in vain */
} turns_t;

#define SIM_PATIENCE 1000

static void take_turn(turns_t *turns, uint32_t rank)
{
    pthread_mutex_lock(&turns->lock);
    while (turns->turn != rank) pthread_cond_wait(&turns->changed, &turns->lock);
    pthread_mutex_unlock(&turns->lock);
}

static void give_turn(turns_t *turns, uint32_t rank, bool leave)
{
    pthread_mutex_lock(&turns->lock);
    turns->left[rank] |= leave;
    for (uint32_t i = 1; i <= turns->n; i++) {
        turns->turn = (rank + i) % turns->n;
        if (!turns->left[turns->turn]) break;
    }
    pthread_cond_broadcast(&turns->changed);
    pthread_mutex_unlock(&turns->lock);
}

static inspan_status_t sim_wait(world_t *world, uint32_t rank, inspan_op_t *op)
{
    turns_t *turns = world->self;
    for (;;) {
        inspan_status_t status = inspan_op_test(op);
        if (status != INSPAN_PENDING) {
            turns->idle = 0;
            return status;
        }
        turns->idle = comm_sim_run(turns->sim, 30) > 0 ? 0 : turns->idle + 1;
        if (turns->idle > SIM_PATIENCE) return INSPAN_TIMEOUT;
        if (turns->threads) {
            give_turn(turns, rank, false);
            take_turn(turns, rank);
        }
    }
}

typedef struct rank_thread {
    world_t *world;
    uint32_t rank;
    void (*fn)(world_t *, uint32_t, void *);
    void *context;
} rank_thread_t;

static void *rank_main(void *argument)
{
    rank_thread_t *self = argument;
    turns_t *turns = self->world->self;
    take_turn(turns, self->rank);
    self->fn(self->world, self->rank, self->context);
    give_turn(turns, self->rank, true);
    return NULL;
}

static void sim_each(world_t *world, void (*fn)(world_t *, uint32_t, void *), void *context)
{
    turns_t *turns = world->self;
    pthread_t threads[16];
    rank_thread_t ranks[16];
    turns->turn = 0;
    turns->threads = true;
    memset(turns->left, 0, sizeof turns->left);
    for (uint32_t r = 0; r < world->n; r++) {
        ranks[r] = (rank_thread_t){world, r, fn, context};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < world->n; r++) pthread_join(threads[r], NULL);
    turns->threads = false;
}

static uint64_t seed = 1;

static void sim_open(world_t *world, uint32_t n, const comm_options_t *options)
{
    turns_t *turns = calloc(1, sizeof *turns);
    pthread_mutex_init(&turns->lock, NULL);
    pthread_cond_init(&turns->changed, NULL);
    turns->n = n;
    assert_int_equal(comm_sim_open(n, seed++, &turns->sim), INSPAN_OK);
    *world = (world_t){.n = n, .self = turns, .wait = sim_wait, .each = sim_each};
    inspan_member_t members[16] = {0};
    for (uint32_t r = 0; r < n; r++) {
        members[r].number = r;
        snprintf(members[r].node, sizeof members[r].node, "node-%u", r);
    }
    for (uint32_t r = 0; r < n; r++) {
        comm_options_t mine = *options;
        mine.rank = r;
        mine.world = n;
        mine.members = members;
        assert_int_equal(comm_sim_comm(turns->sim, &mine, &world->comms[r]), INSPAN_OK);
    }
}

static void sim_close(world_t *world)
{
    turns_t *turns = world->self;
    for (uint32_t r = 0; r < world->n; r++) inspan_comm_close(world->comms[r]);
    comm_sim_close(turns->sim);
    free(turns);
}

static const harness_t harness = {"comm over sim", sim_open, sim_close, NULL};

/* ---- Only here ------------------------------------------------------------------------------- */

/* One all-reduce of a world; how many events it took. Ranks start it at times that the seed decides. */
static uint64_t history(uint64_t of, uint32_t n, inspan_schedule_t schedule, uint64_t crash_after,
                        inspan_status_t *status, int32_t *blamed)
{
    enum { COUNT = 200000 };
    seed = of;
    world_t world;
    comm_options_t options = {.failure_timeout = NS_PER_S, .schedule = schedule, .chunk_bytes = 30000};
    sim_open(&world, n, &options);
    turns_t *turns = world.self;
    float *in = malloc(COUNT * sizeof *in), *out = calloc((size_t)COUNT * n, sizeof *out);
    for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 13);
    inspan_op_t *ops[16];
    uint64_t events = 0;
    rng_t rng;
    rng_seed(&rng, of, 1);
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal(inspan_allreduce(world.comms[r], in, out + (size_t)r * COUNT, COUNT, INSPAN_FP32,
                                          INSPAN_SUM, &ops[r]),
                         INSPAN_OK);
        events += comm_sim_run(turns->sim, rng_below(&rng, 300));
    }
    events += comm_sim_run(turns->sim, crash_after);
    if (crash_after < UINT64_MAX) {
        comm_sim_crash(turns->sim, n - 1);
        events += comm_sim_run(turns->sim, UINT64_MAX);
    }
    for (uint32_t r = 0; r < n; r++) {
        status[r] = inspan_op_test(ops[r]);
        inspan_cause_t cause;
        blamed[r] = inspan_comm_cause(world.comms[r], &cause) ? cause.rank : -1;
        if (status[r] == INSPAN_OK)
            for (int i = 0; i < COUNT; i++) assert_true(out[(size_t)r * COUNT + i] == (float)(i % 13) * n);
    }
    sim_close(&world);
    free(in);
    free(out);
    return events;
}

static void seeds_decide(void **state)
{
    (void)state;
    inspan_status_t status[16];
    int32_t blamed[16];
    uint64_t first = history(42, 4, INSPAN_SCHEDULE_DIRECT, UINT64_MAX, status, blamed);
    assert_int_equal(first, history(42, 4, INSPAN_SCHEDULE_DIRECT, UINT64_MAX, status, blamed));
    assert_int_not_equal(first, history(43, 4, INSPAN_SCHEDULE_DIRECT, UINT64_MAX, status, blamed));
    for (uint64_t of = 100; of < 160; of++) {
        history(of, 2 + of % 5, (inspan_schedule_t)(1 + of % 3), UINT64_MAX, status, blamed);
        for (uint32_t r = 0; r < 2 + of % 5; r++) assert_int_equal(status[r], INSPAN_OK);
    }
}

/* Whenever the last rank crashes: each survivor has the result, or fails and blames that rank. Nobody is left
 * waiting. */
static void crashes_at_any_time(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t of = 200; of < 260; of++) {
        inspan_status_t status[16];
        int32_t blamed[16];
        const uint32_t n = 3 + of % 3;
        history(of, n, (inspan_schedule_t)(1 + of % 3), (of - 200) * 5, status, blamed);
        for (uint32_t r = 0; r + 1 < n; r++) {
            assert_true(status[r] == INSPAN_OK || status[r] == INSPAN_PEER_LOST);
            assert_int_equal(blamed[r],
                             n - 1); /* the communicator knows, though the operation may have finished */
            failed += status[r] != INSPAN_OK;
        }
    }
    assert_true(failed > 30);
}

/* All ranks send to all; whenever the last one crashes, each transfer of a survivor is whole or fails. */
static void crashes_in_transfers(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    int failed = 0, whole = 0;
    for (uint64_t of = 300; of < 340; of++) {
        const uint32_t n = 3 + of % 3;
        seed = of;
        world_t world;
        comm_options_t options = {.failure_timeout = NS_PER_S};
        sim_open(&world, n, &options);
        turns_t *turns = world.self;
        float *in = malloc(COUNT * sizeof *in), *out = calloc((size_t)COUNT * n * n, sizeof *out);
        for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 13) + 1;
        inspan_op_t *sends[5][5], *receives[5][5];
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t peer = 0; peer < n; peer++) {
                float *to = out + ((size_t)r * n + peer) * COUNT;
                assert_int_equal(
                    inspan_receive(world.comms[r], to, COUNT, INSPAN_FP32, peer, 3, &receives[r][peer]),
                    INSPAN_OK);
                assert_int_equal(
                    inspan_send(world.comms[r], in, COUNT, INSPAN_FP32, peer, 3, &sends[r][peer]), INSPAN_OK);
            }
            comm_sim_run(turns->sim, 10);
        }
        comm_sim_run(turns->sim, (of - 300) * 8);
        comm_sim_crash(turns->sim, n - 1);
        comm_sim_run(turns->sim, UINT64_MAX);
        for (uint32_t r = 0; r + 1 < n; r++) {
            inspan_cause_t cause;
            assert_true(inspan_comm_cause(world.comms[r], &cause));
            assert_int_equal(cause.rank, n - 1);
            for (uint32_t peer = 0; peer < n; peer++) {
                const inspan_status_t sent = inspan_op_test(sends[r][peer]),
                                      received = inspan_op_test(receives[r][peer]);
                assert_true(sent == INSPAN_OK || sent == INSPAN_PEER_LOST);
                assert_true(received == INSPAN_OK || received == INSPAN_PEER_LOST);
                failed += received != INSPAN_OK;
                if (received != INSPAN_OK) continue;
                whole++;
                assert_memory_equal(out + ((size_t)r * n + peer) * COUNT, in, COUNT * sizeof *in);
            }
        }
        sim_close(&world);
        free(in);
        free(out);
    }
    assert_true(failed > 30 && whole > 30);
}

/* Start an all-reduce, or a send and a receive between both ranks of the world; ops of each. */
static void start_on_both(world_t *world, bool transfers, uint64_t count, uint32_t tag, const float *in,
                          float *out, inspan_op_t *ops[2][2])
{
    for (uint32_t r = 0; r < 2; r++) {
        inspan_comm_t *comm = world->comms[r];
        float *to = out + r * count;
        ops[r][1] = NULL;
        if (transfers) {
            assert_int_equal(inspan_receive(comm, to, count, INSPAN_FP32, 1 - r, tag, &ops[r][0]), INSPAN_OK);
            assert_int_equal(inspan_send(comm, in, count, INSPAN_FP32, 1 - r, tag, &ops[r][1]), INSPAN_OK);
        } else {
            assert_int_equal(inspan_allreduce(comm, in, to, count, INSPAN_FP32, INSPAN_SUM, &ops[r][0]),
                             INSPAN_OK);
        }
    }
}

static void finish_on_both(world_t *world, inspan_op_t *ops[2][2])
{
    for (uint32_t r = 0; r < 2; r++)
        for (int k = 0; k < 2; k++)
            if (ops[r][k] != NULL) assert_int_equal(sim_wait(world, r, ops[r][k]), INSPAN_OK);
}

/* Streams are shared in turns: small operations are done while a large one of another kind is on its way. */
static void small_ones_overtake(void **state)
{
    (void)state;
    enum { LARGE = 1500000, SMALL = 1000 };
    static const struct {
        bool large_transfers, small_transfers;
    } cases[] = {{true, false}, {false, true}, {true, true}};
    float *in = calloc(LARGE, sizeof *in), *out = calloc(2 * LARGE, sizeof *out);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        comm_options_t options = {.failure_timeout = NS_PER_S, .schedule = INSPAN_SCHEDULE_DIRECT};
        world_t world;
        sim_open(&world, 2, &options);
        float small_out[2 * SMALL];
        inspan_op_t *large[2][2], *small[2][2];
        start_on_both(&world, cases[i].large_transfers, LARGE, 1, in, out, large);
        comm_sim_run(((turns_t *)world.self)->sim, 20);
        for (int k = 0; k < 5; k++) {
            start_on_both(&world, cases[i].small_transfers, SMALL, 2, in, small_out, small);
            finish_on_both(&world, small);
        }
        for (uint32_t r = 0; r < 2; r++) assert_int_equal(inspan_op_test(large[r][0]), INSPAN_PENDING);
        finish_on_both(&world, large);
        sim_close(&world);
    }
    free(in);
    free(out);
}

/* Who closes in order, with nothing pending, harms nobody; who starts something with it later is told. */
static void one_who_has_left(void **state)
{
    (void)state;
    for (int send = 0; send < 2; send++) {
        comm_options_t options = {.failure_timeout = NS_PER_S};
        world_t world;
        sim_open(&world, 3, &options);
        inspan_comm_close(world.comms[1]);
        world.comms[1] = NULL;
        comm_sim_run(((turns_t *)world.self)->sim, UINT64_MAX);
        float word = 3, got = 0;
        inspan_op_t *ops[2], *op = NULL;
        assert_int_equal(inspan_send(world.comms[0], &word, 1, INSPAN_FP32, 2, 0, &ops[0]), INSPAN_OK);
        assert_int_equal(inspan_receive(world.comms[2], &got, 1, INSPAN_FP32, 0, 0, &ops[1]), INSPAN_OK);
        assert_int_equal(sim_wait(&world, 0, ops[0]), INSPAN_OK);
        assert_int_equal(sim_wait(&world, 2, ops[1]), INSPAN_OK);
        assert_true(got == 3);
        assert_int_equal(send ? inspan_send(world.comms[0], &word, 1, INSPAN_FP32, 1, 0, &op)
                              : inspan_receive(world.comms[0], &got, 1, INSPAN_FP32, 1, 0, &op),
                         INSPAN_OK);
        assert_int_equal(sim_wait(&world, 0, op), INSPAN_PEER_LOST);
        inspan_cause_t cause;
        assert_true(inspan_comm_cause(world.comms[0], &cause) && cause.rank == 1);
        assert_non_null(strstr(cause.text, send ? "closed before a send to it was started"
                                                : "closed before a receive from it was started"));
        sim_close(&world);
    }
}

/* What no right peer sends: parts that nobody asked for, receives out of order or too many. */
static void foreign_parts_and_wants(void **state)
{
    (void)state;
    comm_options_t options = {.failure_timeout = NS_PER_S};
    world_t world;
    sim_open(&world, 3, &options);
    inspan_comm_t *comm = world.comms[0];
    float in[100] = {0}, out[100];
    inspan_op_t *receive = NULL, *send = NULL;
    assert_int_equal(inspan_receive(comm, out, 100, INSPAN_FP32, 1, 5, &receive), INSPAN_OK);
    assert_int_equal(inspan_send(comm, in, 100, INSPAN_FP32, 1, 5, &send), INSPAN_OK);
    comm_sim_run(((turns_t *)world.self)->sim, 100);
    const uint32_t slot = (uint32_t)(receive - comm->ops);
    const data_frame_t right = {.type = DATA_PART, .length = 400, .seq = 1, .chunk = slot, .tag = 5};
    data_frame_t wrong[10];
    for (int i = 0; i < 10; i++) wrong[i] = right;
    wrong[0].chunk = COMM_MAX_OPS;
    wrong[1].chunk = UINT32_MAX;
    wrong[2].chunk = (uint32_t)(send - comm->ops);
    wrong[3].chunk = COMM_MAX_OPS - 1; /* idle */
    wrong[4].seq = 2;
    wrong[5].tag = 6;
    wrong[6].offset = 4;
    wrong[7].length = 401;
    wrong[8].length = 0;
    wrong[9].offset = UINT64_MAX;
    const char *why = NULL;
    for (int i = 0; i < 10; i++) {
        assert_null(transfer_find(comm, 1, &wrong[i], &why));
        assert_non_null(why);
    }
    assert_null(transfer_find(comm, 2, &right, &why)); /* of another peer */
    assert_ptr_equal(transfer_find(comm, 1, &right, &why), &receive->transfer);

    want_t want = {.number = 1, .count = 1, .tag = 9};
    for (; want.number <= COMM_MAX_OPS; want.number++) transfer_wanted(comm, 2, &want);
    assert_int_equal(comm->health, COMM_HEALTHY);
    transfer_wanted(comm, 2, &want);
    assert_int_equal(comm->health, COMM_SETTLING);
    assert_non_null(strstr(comm->cause.text, "more receives than may be pending"));
    want.number = 2;
    transfer_wanted(world.comms[1], 2, &want);
    assert_int_equal(world.comms[1]->cause.status, INSPAN_CORRUPT);
    sim_close(&world);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_decide),         cmocka_unit_test(crashes_at_any_time),
        cmocka_unit_test(crashes_in_transfers), cmocka_unit_test(small_ones_overtake),
        cmocka_unit_test(one_who_has_left),     cmocka_unit_test(foreign_parts_and_wants)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = conformance_run(&harness);
    return failed + cmocka_run_group_tests_name("only sim", tests, NULL, NULL);
}
