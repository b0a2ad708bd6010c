/* The tuner over real sockets: all ranks choose the same, sums stay right, what is forced stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>

#include "comm/comm.h"
#include "comm/transport/tcp_world_test.h"

enum { COUNT = 300000, ROUNDS = 4 };

typedef struct tuned {
    inspan_status_t status[16];
    bool changed[16]; /* in the first round */
    uint32_t wrong[16];
    inspan_choice_t small[16], large[16];
    inspan_port_t port[16];
    bool chosen[16];
    pthread_barrier_t *asked; /* both have, before either sends */
} tuned_t;

static inspan_status_t sum_up(world_t *world, uint32_t rank, const float *in, float *out, uint32_t *wrong)
{
    inspan_op_t *op = NULL;
    inspan_status_t status =
        inspan_allreduce(world->comms[rank], in, out, COUNT, INSPAN_FP32, INSPAN_SUM, &op);
    if (status == INSPAN_OK) status = inspan_op_wait(op, PATIENCE);
    const uint32_t n = world->n;
    for (uint32_t i = 0; i < COUNT && status == INSPAN_OK; i++)
        *wrong += out[i] != (float)(n * (i % 7) + n * (n - 1) / 2);
    return status;
}

static void sum_and_tune(world_t *world, uint32_t rank, void *context)
{
    tuned_t *t = context;
    inspan_comm_t *comm = world->comms[rank];
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    for (uint32_t i = 0; i < COUNT; i++) in[i] = (float)(i % 7 + rank);
    for (int round = 0; round < ROUNDS && t->status[rank] == INSPAN_OK; round++) {
        bool changed = false;
        t->status[rank] = sum_up(world, rank, in, out, &t->wrong[rank]);
        if (t->status[rank] == INSPAN_OK) t->status[rank] = inspan_comm_tune(comm, PATIENCE, &changed);
        if (round == 0) t->changed[rank] = changed;
    }
    if (t->status[rank] == INSPAN_OK) t->status[rank] = sum_up(world, rank, in, out, &t->wrong[rank]);
    t->chosen[rank] = inspan_comm_choice(comm, 4096, &t->small[rank]) &&
                      inspan_comm_choice(comm, 25000000, &t->large[rank]) &&
                      inspan_comm_port(comm, world->n - 1, &t->port[rank]);
    free(in);
    free(out);
}

static void all_choose_the_same(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {2, 3, 5};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        world_t world;
        tuned_t t = {0};
        const comm_options_t options = {.failure_timeout = 20 * NS_PER_S};
        tcp_world_open(&world, worlds[w], &options);
        tcp_world_each(&world, sum_and_tune, &t);
        for (uint32_t r = 0; r < worlds[w]; r++) {
            assert_int_equal(t.status[r], INSPAN_OK);
            assert_int_equal(t.wrong[r], 0);
            assert_true(t.changed[r] && t.chosen[r]);
            assert_int_equal(t.small[r].schedule, t.small[0].schedule);
            assert_int_equal(t.large[r].schedule, t.large[0].schedule);
            assert_true(t.large[r].predicted_ns == t.large[0].predicted_ns && t.large[r].predicted_ns > 0);
            assert_true(t.large[r].bytes == 16u << 20 || t.large[r].bytes == 64u << 20);
            assert_true(t.port[r].latency_ns > 0 && t.port[r].up == t.port[0].up);
        }
        tcp_world_close(&world);
    }
}

static void what_is_forced_stays(void **state)
{
    (void)state;
    world_t world;
    tuned_t t = {0};
    const comm_options_t options = {.failure_timeout = 20 * NS_PER_S, .schedule = INSPAN_SCHEDULE_RING};
    tcp_world_open(&world, 3, &options);
    tcp_world_each(&world, sum_and_tune, &t);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(t.status[r], INSPAN_OK);
        assert_int_equal(t.wrong[r], 0);
        assert_false(t.changed[r] || t.chosen[r]);
    }
    tcp_world_close(&world);
}

static void tune_while_pending(world_t *world, uint32_t rank, void *context)
{
    tuned_t *t = context;
    inspan_comm_t *comm = world->comms[rank];
    inspan_op_t *ops[2] = {NULL};
    bool changed = true;
    float in = 0, out = 1;
    t->status[rank] = inspan_receive(comm, &in, 1, INSPAN_FP32, 1 - rank, 0, &ops[0]); /* nobody sends yet */
    if (t->status[rank] == INSPAN_OK) t->status[rank] = inspan_comm_tune(comm, PATIENCE, &changed);
    t->changed[rank] = changed;
    pthread_barrier_wait(t->asked);
    t->wrong[rank] = inspan_send(comm, &out, 1, INSPAN_FP32, 1 - rank, 0, &ops[1]) != INSPAN_OK;
    for (int i = 0; i < 2; i++) t->wrong[rank] += inspan_op_wait(ops[i], PATIENCE) != INSPAN_OK;
    t->wrong[rank] += in != 1;
}

static void not_while_operations_are_pending(void **state)
{
    (void)state;
    world_t world;
    tuned_t t = {0};
    const comm_options_t options = {.failure_timeout = 20 * NS_PER_S};
    pthread_barrier_t asked;
    pthread_barrier_init(&asked, NULL, 2);
    t.asked = &asked;
    tcp_world_open(&world, 2, &options);
    tcp_world_each(&world, tune_while_pending, &t);
    pthread_barrier_destroy(&asked);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(t.status[r], INSPAN_INVALID);
        assert_int_equal(t.wrong[r], 0);
        assert_false(t.changed[r]);
    }
    tcp_world_close(&world);
}

typedef struct late {
    inspan_status_t status[2];
    pthread_barrier_t ended;
} late_t;

static void only_one_tunes(world_t *world, uint32_t rank, void *context)
{
    late_t *late = context;
    bool changed = false;
    if (rank == 0) late->status[rank] = inspan_comm_tune(world->comms[rank], 100 * NS_PER_MS, &changed);
    pthread_barrier_wait(&late->ended);
    inspan_op_t *op = NULL;
    if (rank == 0) return;
    late->status[rank] = inspan_barrier(world->comms[rank], &op);
    if (late->status[rank] == INSPAN_OK) late->status[rank] = inspan_op_wait(op, PATIENCE);
}

/* Its memory is in use as long as the operation is: it ends, for all. */
static void who_is_alone_gives_up(void **state)
{
    (void)state;
    world_t world;
    late_t late = {.status = {INSPAN_OK, INSPAN_OK}};
    const comm_options_t options = {.failure_timeout = 20 * NS_PER_S};
    pthread_barrier_init(&late.ended, NULL, 2);
    tcp_world_open(&world, 2, &options);
    tcp_world_each(&world, only_one_tunes, &late);
    assert_int_equal(late.status[0], INSPAN_ABORTED);
    assert_int_equal(late.status[1], INSPAN_ABORTED);
    tcp_world_close(&world);
    pthread_barrier_destroy(&late.ended);
}

/* A row of the table of links: what a rank sends in all, and to each. */
static void fill_row(float *table, uint32_t world, uint32_t rank, float up, float each)
{
    for (uint32_t to = 0; to < world; to++) table[(size_t)rank * 2 * world + to] = to == rank ? up : each;
}

/* Shares by a table of links: who is slow makes no sums, noise changes nothing, and back again. */
static void shares_follow_the_links(void **state)
{
    (void)state;
    float table[4 * 8] = {0};
    uint8_t shares[4] = {0};
    double up[4], down[4];
    assert_false(comm_ports(table, 4, up, down)); /* nothing is seen yet */
    assert_false(comm_shares_by_links(table, 4, shares));
    for (uint32_t r = 0; r < 3; r++) fill_row(table, 4, r, 100e6f, 33e6f);
    fill_row(table, 4, 3, 10e6f, 3.3e6f);
    assert_true(comm_shares_by_links(table, 4, shares));
    assert_int_equal(shares[3], 0);
    assert_true(shares[0] == 255 && shares[1] == 255 && shares[2] == 255);
    assert_true(comm_ports(table, 4, up, down));
    assert_true(up[3] > 9e6 && up[3] < 11e6 && (up[0] == 0 || up[0] > 99e6));
    fill_row(table, 4, 1, 60e6f, 20e6f); /* the slow one decides all the same */
    assert_false(comm_shares_by_links(table, 4, shares));
    fill_row(table, 4, 3, 10e6f, 3.3e6f);
    for (uint32_t r = 0; r < 3; r++) { /* they wait for the slow one alone, and look slow themselves */
        fill_row(table, 4, r, 3.3e6f, 0);
        table[r * 8 + 3] = 3.3e6f;
    }
    assert_true(comm_ports(table, 4, up, down));
    assert_true(up[0] == 0 && up[1] == 0 && up[2] == 0 && up[3] > 9e6 && down[3] > 9e6);
    fill_row(table, 4, 3, 0, 0);
    table[8 + 3] =
        0; /* one that it shares a stream with is seen, of itself nothing: no other's speed is its own */
    assert_true(comm_ports(table, 4, up, down));
    assert_true(up[3] == 0 && down[3] == 0);
    for (uint32_t r = 0; r < 4; r++) fill_row(table, 4, r, 100e6f, 33e6f);
    assert_true(comm_shares_by_links(table, 4, shares));
    for (uint32_t r = 0; r < 4; r++) assert_int_equal(shares[r], 0); /* equal */
    assert_false(comm_shares_by_links(table, 4, shares));
    table[0] = -140e6f; /* bursts: a processor that is held up now and then */
    assert_false(comm_shares_by_links(table, 4, shares));
    fill_row(table, 4, 1, 50e6f, 16e6f);
    assert_true(comm_shares_by_links(table, 4, shares));
    assert_true(shares[1] < 128 && shares[0] == 255);
    fill_row(table, 2, 0, 10e6f, 0);
    fill_row(table, 2, 1, 9.5e6f, 0);
    assert_false(comm_shares_by_links(table, 2, shares)); /* two have no choice, */
    assert_true(comm_ports(table, 2, up, down));          /* but their link is seen */
    assert_true(up[0] > 9e6 && up[1] > 9e6 && down[0] > 9e6 && down[1] > 9e6 && up[0] < 11e6 &&
                down[1] < 11e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_choose_the_same),
        cmocka_unit_test(what_is_forced_stays),
        cmocka_unit_test(not_while_operations_are_pending),
        cmocka_unit_test(shares_follow_the_links),
        cmocka_unit_test(who_is_alone_gives_up),
    };
    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
