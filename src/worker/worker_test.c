/* Sessions as threads, each with an agent that the test plays frame by frame. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_time.h"
#include "worker/scene_test.h"

/* ---- Users ----------------------------------------------------------------------------------- */

static void user_trains(rank_t *rank)
{
    inspan_comm_t *comm = inspan_worker_comm(rank->worker);
    inspan_op_t *op = NULL;
    double mine = rank->rank + 1;
    for (uint64_t step = 1; step <= 5; step++) {
        assert_int_equal(inspan_allreduce(comm, &mine, &rank->sum, 1, INSPAN_FP64, INSPAN_SUM, &op),
                         INSPAN_OK);
        assert_int_equal(inspan_op_wait(op, PATIENCE), INSPAN_OK);
        inspan_progress_t progress = {.step = step, .steps = 5, .loss = rank->sum};
        inspan_worker_progress(rank->worker, &progress);
    }
    assert_int_equal(inspan_worker_threads(rank->worker), 2);
    assert_int_equal(inspan_worker_view(rank->worker), 1);
    assert_int_equal(inspan_worker_failure_timeout(rank->worker), NS_PER_S);
    if (rank->rank == 0) sem_wait(&rank->go); /* writes the model, while the others are through */
    inspan_worker_finish(rank->worker, INSPAN_OK, "{\"steps\":5}");
}

static void user_is_stuck(rank_t *rank) /* in compute: no call of the library */
{
    sem_wait(&rank->go);
    if (!inspan_comm_cause(inspan_worker_comm(rank->worker), &rank->cause)) rank->cause.status = INSPAN_OK;
    inspan_worker_finish(rank->worker, rank->cause.status, rank->cause.text);
}

static void user_fails_at_rank_1(rank_t *rank)
{
    if (rank->rank != 1) {
        user_is_stuck(rank);
        return;
    }
    inspan_worker_finish(rank->worker, INSPAN_CORRUPT, "line 7 of data.csv is no number");
}

/* What finish says comes after a long cleaning up, when the others' answer to the failure is in. */
static void user_fails_before_it_cleans_up(rank_t *rank)
{
    if (rank->rank != 1) {
        user_is_stuck(rank);
        return;
    }
    inspan_worker_fail(rank->worker, INSPAN_CORRUPT, "line 7 of data.csv is no number");
    sem_wait(&rank->go);
    inspan_worker_finish(rank->worker, INSPAN_ABORTED, "later");
}

static void user_waits_for_stop(rank_t *rank)
{
    ns_t deadline = os_now() + PATIENCE;
    while (!inspan_worker_cancelled(rank->worker) && os_now() < deadline)
        poll(NULL, 0, 1); /* not a wait: the deadline decides, and the call is polled by its users, too */
    inspan_worker_finish(rank->worker, INSPAN_ABORTED, "cancelled");
}

static void user_never(rank_t *rank)
{
    (void)rank;
    fail();
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_done(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        scene_t scene;
        uint32_t world = worlds[w];
        scene_start_until_ready(&scene, world, user_trains);
        while (scene.ranks[0].progress.step < 5) scene_hear(&scene.ranks[0], true);
        assert_true(scene.ranks[0].progress.loss == world * (world + 1) / 2.0);
        sem_post(&scene.ranks[0].go);
        for (uint32_t r = 0; r < world; r++) { /* none of them sees another's leaving as a failure */
            assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_DONE);
            assert_string_equal(scene.ranks[r].end.text, "{\"steps\":5}");
            assert_int_equal(scene.ranks[r].progress.step, 5);
            scene_bye(&scene.ranks[r]);
        }
        scene_end(&scene);
    }
}

/* The agent hears of a failure although the user's thread makes no call. */
static void test_failure_while_the_user_computes(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 3, user_fails_at_rank_1);
    assert_int_equal(scene_hear(&scene.ranks[1], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[1].end.status, INSPAN_CORRUPT);
    assert_int_equal(scene.ranks[1].end.cause.rank, 1);
    assert_string_equal(scene.ranks[1].end.cause.node, "node-1");
    assert_string_equal(scene.ranks[1].end.text, "line 7 of data.csv is no number");
    for (uint32_t r = 0; r < 3; r += 2) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_int_equal(scene.ranks[r].end.cause.rank, 1);
    }
    for (uint32_t r = 0; r < 3; r++) {
        scene_bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    scene_end(&scene);
}

static void test_failure_before_cleaning_up(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 3, user_fails_before_it_cleans_up);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_int_equal(scene.ranks[r].end.cause.rank, 1);
        if (strstr(scene.ranks[r].end.text, "line 7 of data.csv is no number") == NULL)
            fail_msg("%s", scene.ranks[r].end.text);
        if (r == 1) assert_int_equal(scene.ranks[r].end.status, INSPAN_CORRUPT);
    }
    for (uint32_t r = 0; r < 3; r++) {
        scene_bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    scene_end(&scene);
}

static void test_lost_member(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 2, user_is_stuck);
    scene_say_end(&scene.ranks[0], LOCAL_LOST, INSPAN_PEER_LOST, "node cellar: agent silent for 5.0 s");
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_string_equal(scene.ranks[r].end.cause.node, "cellar");
        scene_bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    scene_end(&scene);
}

static void test_stop(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 1, user_waits_for_stop);
    size_t n = 0;
    scene_say(&scene.ranks[0], local_encode_empty(LOCAL_STOP, scene_frame, sizeof scene_frame, &n), &n);
    assert_int_equal(scene_hear(&scene.ranks[0], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[0].end.status, INSPAN_ABORTED);
    scene_bye(&scene.ranks[0]);
    scene_end(&scene);
}

static void test_ticks_go_on(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 1, user_is_stuck);
    ns_t begun = os_now();
    for (int i = 0; i < 6; i++) assert_int_equal(scene_hear(&scene.ranks[0], true), LOCAL_TICK);
    assert_true(os_now() - begun >= 900 * NS_PER_MS); /* each fifth of a second, not all at once */
    sem_post(&scene.ranks[0].go);
    assert_int_equal(scene_hear(&scene.ranks[0], false), LOCAL_DONE); /* no cause: status OK */
    scene_bye(&scene.ranks[0]);
    scene_end(&scene);
}

static void test_agent_comes_back(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 1, user_is_stuck);
    rank_t *rank = &scene.ranks[0];
    uint64_t incarnation = rank->hello.incarnation;
    uint16_t port = rank->port;
    for (int i = 0; i < 2; i++) {
        if (i == 1) assert_int_equal(send(rank->fd, "garbage of a broken agent", 25, MSG_NOSIGNAL), 25);
        if (i == 0) close(rank->fd);
        int old = rank->fd;
        scene_accept_session(rank);
        if (i == 1) close(old);
        assert_int_equal(scene_hear(rank, true), LOCAL_HELLO);
        assert_true(rank->hello.incarnation == incarnation);
        scene_say_welcome(rank, LOCAL_MAJOR);
        rank->port = 0;
        assert_int_equal(scene_hear(rank, false), LOCAL_BOUND);
        assert_int_equal(rank->port, port);
        assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    }
    sem_post(&rank->go);
    assert_int_equal(scene_hear(rank, false), LOCAL_DONE);
    close(rank->fd); /* before its BYE: the end is said again */
    scene_accept_session(rank);
    assert_int_equal(scene_hear(rank, true), LOCAL_HELLO);
    scene_say_welcome(rank, LOCAL_MAJOR);
    assert_int_equal(scene_hear(rank, false), LOCAL_BOUND);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    assert_int_equal(scene_hear(rank, false), LOCAL_DONE);
    scene_bye(rank);
    scene_end(&scene);
}

/* Without its agent a worker goes on for failure_timeout, then all ranks end. */
static void test_agent_is_gone(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 2, user_is_stuck);
    ns_t begun = os_now();
    close(scene.ranks[0].fd);
    scene.ranks[0].fd = -1;
    unlink(scene.ranks[0].path);
    assert_int_equal(scene_hear(&scene.ranks[1], false), LOCAL_FAILED);
    assert_true(os_now() - begun >= NS_PER_S);
    assert_non_null(strstr(scene.ranks[1].end.cause.text, "agent of node node-0 is gone"));
    assert_int_equal(scene.ranks[1].end.cause.rank, 0);
    scene_bye(&scene.ranks[1]);
    for (uint32_t r = 0; r < 2; r++) sem_post(&scene.ranks[r].go);
    scene_end(&scene);
}

static void test_refused(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        scene_t scene;
        scene_start(&scene, 1, user_never);
        rank_t *rank = &scene.ranks[0];
        if (way == 0)
            scene_say_end(rank, LOCAL_BYE, INSPAN_VERSION, "worker speaks version 1.0, the agent 9.0");
        if (way == 1) scene_say_welcome(rank, 9);
        if (way == 2) {
            scene.failure_timeout = 0; /* a WELCOME that cannot be right */
            scene_say_welcome(rank, LOCAL_MAJOR);
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        assert_int_equal(sem_timedwait(&rank->done, &until), 0);
        sem_post(&rank->done);
        assert_int_equal(rank->opened, way == 2 ? INSPAN_CORRUPT : INSPAN_VERSION);
        if (way < 2) assert_non_null(strstr(rank->err.text, "9.0"));
        scene_end(&scene);
    }
}

static void test_ended_before_the_view(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        scene_t scene;
        size_t n = 0;
        scene_start(&scene, 1, user_never);
        rank_t *rank = &scene.ranks[0];
        scene_say_welcome(rank, LOCAL_MAJOR);
        assert_int_equal(scene_hear(rank, false), LOCAL_BOUND);
        if (way == 0)
            scene_say(rank, local_encode_empty(LOCAL_STOP, scene_frame, sizeof scene_frame, &n), &n);
        if (way == 1) scene_say_end(rank, LOCAL_LOST, INSPAN_PEER_LOST, "node cellar is lost");
        assert_int_equal(scene_hear(rank, false), LOCAL_FAILED);
        assert_int_equal(rank->end.status, way == 0 ? INSPAN_ABORTED : INSPAN_PEER_LOST);
        scene_bye(rank);
        scene_end(&scene);
    }
}

static void test_pair_that_cannot_connect(void **state)
{
    (void)state;
    scene_t scene;
    scene_start(&scene, 2, user_never);
    for (uint32_t r = 0; r < 2; r++) {
        scene_say_welcome(&scene.ranks[r], LOCAL_MAJOR);
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_BOUND);
    }
    scene.ranks[1].port = 1; /* nobody listens there */
    scene_say_view(&scene);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_FAILED);
        scene_bye(&scene.ranks[r]);
    }
    /* whose port it is, and not who noticed; rank 1 is told, or finds nobody there itself */
    assert_non_null(strstr(scene.ranks[0].end.text, "node-1"));
    assert_int_equal(scene.ranks[0].end.cause.rank, 1);
    assert_int_equal(scene.ranks[0].end.cause.noticed_by, 0);
    assert_string_equal(scene.ranks[0].end.cause.node, "node-1");
    scene_end(&scene);
}

/* ---- A rank that stands still on its way out */

enum { PINGS = 20 };
static sem_t leaving, echo, frozen;

static void on_echo(void *context, uint32_t from, const void *data, size_t bytes)
{
    (void)context, (void)from, (void)data, (void)bytes;
    sem_post(&echo);
}

/* On the I/O thread of rank 1: the last message finds it standing still for a while. */
static void on_ping(void *context, uint32_t from, const void *data, size_t bytes)
{
    const rank_t *rank = context;
    if (*(const uint8_t *)data < PINGS) {
        comm_message(inspan_worker_comm(rank->worker), from, data, bytes);
        return;
    }
    sem_post(&frozen);
    sem_post(&frozen);
    struct timespec until;
    sem_t never;
    sem_init(&never, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 3;
    while (sem_timedwait(&never, &until) != 0 && errno == EINTR) {
    }
    sem_destroy(&never);
}

static void user_leaves_while_rank_1_stands_still(rank_t *rank)
{
    inspan_comm_t *comm = inspan_worker_comm(rank->worker);
    if (rank->rank == 1) {
        comm_set_message_handler(comm, on_ping, rank);
        sem_post(&leaving);
    } else if (rank->rank == 0) {
        comm_set_message_handler(comm, on_echo, rank);
        sem_wait(&leaving);
        for (uint8_t i = 0; i <= PINGS; i++) { /* meanwhile rank 1 comes to its first barrier */
            comm_message(comm, 1, &i, 1);
            if (i < PINGS) sem_wait(&echo);
        }
    }
    if (rank->rank != 1) sem_wait(&frozen);
    inspan_worker_finish(rank->worker, INSPAN_OK, "");
}

/* For less than failure_timeout: no failure, on none of them. */
static void test_a_pause_at_the_end(void **state)
{
    (void)state;
    scene_t scene;
    sem_init(&leaving, 0, 0);
    sem_init(&echo, 0, 0);
    sem_init(&frozen, 0, 0);
    scene_start(&scene, 3, user_leaves_while_rank_1_stands_still);
    scene.failure_timeout = 6 * NS_PER_S;
    scene_begin(&scene);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_DONE);
        scene_bye(&scene.ranks[r]);
    }
    scene_end(&scene);
}

static void test_no_agent(void **state)
{
    (void)state;
    inspan_worker_t *worker = NULL;
    inspan_error_t err;
    unsetenv("INSPAN_SOCKET");
    assert_int_equal(inspan_worker_open(&worker, &err), INSPAN_NOT_FOUND);
    setenv("INSPAN_SOCKET", "/no/such/socket", 1);
    assert_int_equal(inspan_worker_open(&worker, &err), INSPAN_REFUSED);
    assert_non_null(strstr(err.text, "/no/such/socket"));
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    setenv("INSPAN_SOCKET", longer, 1);
    assert_int_equal(inspan_worker_open(&worker, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_failure_while_the_user_computes),
        cmocka_unit_test(test_failure_before_cleaning_up),
        cmocka_unit_test(test_lost_member),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_ticks_go_on),
        cmocka_unit_test(test_agent_comes_back),
        cmocka_unit_test(test_agent_is_gone),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ended_before_the_view),
        cmocka_unit_test(test_pair_that_cannot_connect),
        cmocka_unit_test(test_a_pause_at_the_end),
        cmocka_unit_test(test_no_agent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
