/* <inspan/open.h> as a program uses it that is no worker: opening, the queue, operations that take too long.
 */
#include <inspan/open.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
#include "platform/os/os_time.h"

#define WORLD    3
#define PATIENCE (20 * NS_PER_S)

typedef struct world {
    inspan_io_t *ios[WORLD];
    inspan_listener_t *listeners[WORLD];
    inspan_member_t members[WORLD];
    inspan_comm_t *comms[WORLD];
    inspan_status_t statuses[WORLD];
} world_t;

typedef struct opener {
    world_t *world;
    uint32_t rank;
} opener_t;

static void *open_rank(void *argument)
{
    opener_t *self = argument;
    world_t *world = self->world;
    inspan_comm_options_t options = {.io = world->ios[self->rank],
                                     .listener = world->listeners[self->rank],
                                     .job = 7,
                                     .view = 1,
                                     .rank = self->rank,
                                     .world = WORLD,
                                     .members = world->members,
                                     .key = {1, 2, 3},
                                     .failure_timeout_ns = 10 * NS_PER_S};
    inspan_error_t err = {0};
    world->statuses[self->rank] = inspan_comm_open(&options, &world->comms[self->rank], &err);
    if (world->statuses[self->rank] != INSPAN_OK) fprintf(stderr, "%s\n", err.text);
    return NULL;
}

static void world_open(world_t *world)
{
    *world = (world_t){0};
    pthread_t threads[WORLD];
    opener_t openers[WORLD];
    for (uint32_t r = 0; r < WORLD; r++) {
        inspan_member_t *member = &world->members[r];
        assert_int_equal(inspan_io_open(&world->ios[r], NULL), INSPAN_OK);
        assert_int_equal(inspan_listen(0, 0, &world->listeners[r], &member->port, NULL), INSPAN_OK);
        member->number = 10 + r; /* a subgroup's: people call a rank by its number in the whole */
        member->incarnation = r;
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "127.0.0.1");
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        openers[r] = (opener_t){world, r};
        assert_int_equal(pthread_create(&threads[r], NULL, open_rank, &openers[r]), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++) pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_int_equal(world->statuses[r], INSPAN_OK);
        inspan_listener_close(world->listeners[r]);
    }
}

static void world_close(world_t *world)
{
    for (uint32_t r = 0; r < WORLD; r++) inspan_comm_close(world->comms[r]);
    for (uint32_t r = 0; r < WORLD; r++) inspan_io_close(world->ios[r]);
}

static void finished_operations_come_through_the_queue(void **state)
{
    (void)state;
    world_t world;
    world_open(&world);
    inspan_queue_t *queue = NULL;
    assert_int_equal(inspan_queue_open(&queue), INSPAN_OK);
    static float in[WORLD][100], out[WORLD][100];
    bool seen[WORLD * 4] = {false};
    for (uint64_t k = 0; k < 4; k++)
        for (uint32_t r = 0; r < WORLD; r++) {
            inspan_op_t *op = NULL;
            assert_int_equal(
                inspan_allreduce(world.comms[r], in[r], out[r], 20 * k, INSPAN_FP32, INSPAN_SUM, &op),
                INSPAN_OK);
            assert_int_equal(inspan_op_to_queue(op, queue, k * WORLD + r), INSPAN_OK);
        }
    for (size_t got = 0; got < WORLD * 4;) {
        inspan_finished_t finished[5];
        size_t n = 0;
        assert_int_equal(inspan_queue_take(queue, PATIENCE, finished, 5, &n), INSPAN_OK);
        assert_in_range(n, 1, 5);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(finished[i].status, INSPAN_OK);
            assert_false(seen[finished[i].token]);
            seen[finished[i].token] = true;
        }
        got += n;
    }
    inspan_queue_close(queue);
    world_close(&world);
}

static void waiting_in_the_queue_ends(void **state)
{
    (void)state;
    inspan_queue_t *queue = NULL;
    inspan_finished_t finished[1];
    size_t n = 7;
    assert_int_equal(inspan_queue_open(&queue), INSPAN_OK);
    assert_int_equal(inspan_queue_take(queue, 0, finished, 1, &n), INSPAN_TIMEOUT);
    assert_int_equal(n, 0);
    const ns_t begin = os_now();
    assert_int_equal(inspan_queue_take(queue, 20 * NS_PER_MS, finished, 1, &n), INSPAN_TIMEOUT);
    assert_true(os_now() - begin >= 20 * NS_PER_MS);
    inspan_queue_wake(queue);
    n = 7;
    assert_int_equal(inspan_queue_take(queue, PATIENCE, finished, 1, &n), INSPAN_OK);
    assert_int_equal(n, 0);
    assert_int_equal(inspan_queue_take(queue, 0, finished, 1, &n), INSPAN_TIMEOUT); /* it was woken once */
    inspan_queue_close(queue);
    inspan_queue_close(NULL);
}

/* What rank 1 said before has reached rank 0 once this has. */
static void pass_on(world_t *world)
{
    static float out, in;
    inspan_op_t *send = NULL, *receive = NULL;
    assert_int_equal(inspan_receive(world->comms[0], &in, 1, INSPAN_FP32, 1, 9, &receive), INSPAN_OK);
    assert_int_equal(inspan_send(world->comms[1], &out, 1, INSPAN_FP32, 0, 9, &send), INSPAN_OK);
    assert_int_equal(inspan_op_wait(receive, PATIENCE), INSPAN_OK);
    assert_int_equal(inspan_op_wait(send, PATIENCE), INSPAN_OK);
}

/* Rank 0 waits in vain, says so, and all hear for whom. */
static void expect_cause(world_t *world, inspan_op_t *op, uint32_t culprit, const char *text)
{
    inspan_cause_t cause;
    assert_int_equal(inspan_op_wait(op, 50 * NS_PER_MS), INSPAN_TIMEOUT);
    inspan_comm_expire(world->comms[0], 20 * NS_PER_MS);
    assert_int_equal(inspan_op_wait(op, PATIENCE), INSPAN_TIMEOUT); /* finished, with that status */
    assert_true(inspan_comm_cause(world->comms[0], &cause));
    assert_int_equal(cause.status, INSPAN_TIMEOUT);
    if (cause.rank != (int32_t)culprit || strstr(cause.text, text) == NULL)
        fail_msg("expected rank %u, and \"%s\" in: %s", culprit, text, cause.text);
    for (uint32_t r = 1; r < WORLD; r++) { /* the others' next call fails with the same */
        inspan_op_t *other = NULL;
        inspan_status_t status = inspan_barrier(world->comms[r], &other);
        if (status == INSPAN_OK) status = inspan_op_wait(other, PATIENCE);
        assert_int_equal(status, INSPAN_TIMEOUT);
        inspan_cause_t told;
        assert_true(inspan_comm_cause(world->comms[r], &told));
        assert_string_equal(told.text, cause.text);
    }
}

static void who_is_waited_for(void **state)
{
    (void)state;
    static float in[100], out[100];
    for (int how = 0; how < 4; how++) {
        world_t world;
        world_open(&world);
        inspan_op_t *op = NULL, *other = NULL;
        inspan_comm_expire(world.comms[0], 1 * NS_PER_S); /* nothing is pending so long: nothing happens */
        if (how == 0) {                                   /* rank 2 does not call */
            assert_int_equal(inspan_barrier(world.comms[1], &other), INSPAN_OK);
            assert_int_equal(inspan_barrier(world.comms[0], &op), INSPAN_OK);
            pass_on(&world);
            expect_cause(&world, op, 2, "rank 12 (node node-2, 127.0.0.1");
        } else if (how == 1) {
            assert_int_equal(inspan_receive(world.comms[0], out, 100, INSPAN_FP32, 1, 5, &op), INSPAN_OK);
            expect_cause(&world, op, 1, "rank 11 (node node-1, 127.0.0.1");
        } else if (how == 2) {
            assert_int_equal(inspan_send(world.comms[0], in, 100, INSPAN_FP32, 2, 5, &op), INSPAN_OK);
            expect_cause(&world, op, 2, "did not receive in time");
        } else {
            inspan_part_t parts[WORLD] = {{&out[0], 10}, {&out[10], 10}, {&out[20], 10}};
            assert_int_equal(inspan_gather(world.comms[1], in, 10, NULL, INSPAN_FP32, 0, &other), INSPAN_OK);
            assert_int_equal(inspan_gather(world.comms[0], in, 10, parts, INSPAN_FP32, 0, &op), INSPAN_OK);
            assert_int_equal(inspan_op_wait(other, PATIENCE), INSPAN_OK);
            pass_on(&world);
            expect_cause(&world, op, 2, "in gather, receive from rank 12");
        }
        world_close(&world);
    }
}

/* Broadcasts finish where they come from; only so far ahead of a peer that does not call. */
static void who_is_too_far_behind(void **state)
{
    (void)state;
    static float data[4];
    world_t world;
    world_open(&world);
    inspan_op_t *op = NULL;
    inspan_status_t status = INSPAN_OK;
    for (int i = 0; i < 300 && status == INSPAN_OK; i++) {
        assert_int_equal(inspan_broadcast(world.comms[0], data, 0, INSPAN_FP32, 0, &op), INSPAN_OK);
        status = inspan_op_wait(op, 200 * NS_PER_MS);
    }
    assert_int_equal(status, INSPAN_TIMEOUT); /* it waits to begin */
    inspan_comm_expire(world.comms[0], 20 * NS_PER_MS);
    assert_int_equal(inspan_op_wait(op, PATIENCE), INSPAN_TIMEOUT);
    inspan_cause_t cause;
    assert_true(inspan_comm_cause(world.comms[0], &cause));
    assert_int_equal(cause.status, INSPAN_TIMEOUT);
    assert_true(cause.rank == 1 || cause.rank == 2);
    world_close(&world);
}

static void options_are_checked(void **state)
{
    (void)state;
    inspan_error_t err;
    inspan_comm_t *comm = NULL;
    inspan_member_t members[2] = {{.number = 0}, {.number = 1}};
    inspan_comm_options_t options = {
        .rank = 2, .world = 2, .members = members, .failure_timeout_ns = NS_PER_S};
    assert_int_equal(inspan_comm_open(NULL, &comm, &err), INSPAN_INVALID);
    assert_int_equal(inspan_comm_open(&options, &comm, &err), INSPAN_INVALID);
    options.rank = 0;
    assert_int_equal(inspan_comm_open(&options, &comm, &err), INSPAN_INVALID); /* no I/O thread */
    inspan_io_close(NULL);
    inspan_listener_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finished_operations_come_through_the_queue),
        cmocka_unit_test(waiting_in_the_queue_ends),
        cmocka_unit_test(who_is_waited_for),
        cmocka_unit_test(who_is_too_far_behind),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
