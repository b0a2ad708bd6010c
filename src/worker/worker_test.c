/* Sessions as threads, each with an agent that the test plays frame by frame. */
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

static inspan_comm_t *first_comm(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    worker_view_t view;
    assert_int_equal(views->next(views->context, 0, PATIENCE, &view, &rank->err), INSPAN_OK);
    return view.comm;
}

static void user_trains(rank_t *rank)
{
    inspan_comm_t *comm = first_comm(rank);
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
    sem_wait(&rank->go); /* all are through: the last commit shows that */
    inspan_worker_finish(rank->worker, INSPAN_OK, "{\"steps\":5}");
}

static void user_is_stuck(rank_t *rank) /* in compute: no call of the library */
{
    first_comm(rank);
    sem_wait(&rank->go);
    inspan_worker_finish(rank->worker, INSPAN_OK, "{}");
}

static void user_fails_at_rank_1(rank_t *rank)
{
    if (rank->rank != 1) {
        user_is_stuck(rank);
        return;
    }
    first_comm(rank);
    inspan_worker_finish(rank->worker, INSPAN_CORRUPT, "line 7 of data.csv is no number");
}

/* What finish says comes after a long cleaning up, when the others' answer to the failure is in. */
static void user_fails_before_it_cleans_up(rank_t *rank)
{
    if (rank->rank != 1) {
        user_is_stuck(rank);
        return;
    }
    first_comm(rank);
    inspan_worker_fail(rank->worker, INSPAN_CORRUPT, "line 7 of data.csv is no number");
    sem_wait(&rank->go);
    inspan_worker_finish(rank->worker, INSPAN_ABORTED, "later");
}

static void user_waits_for_a_view(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    worker_view_t view;
    inspan_status_t status = views->next(views->context, 0, PATIENCE, &view, &rank->err);
    inspan_worker_finish(rank->worker, status, rank->err.text);
}

static void user_never(rank_t *rank)
{
    (void)rank;
    fail();
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Members that close one after the other blame each other: that ends nothing. */
static void until_done(rank_t *rank)
{
    local_frame_type_t type;
    while ((type = scene_hear(rank, false)) == LOCAL_BLAME) {
    }
    assert_int_equal(type, LOCAL_DONE);
    scene_bye(rank);
}

static void test_done(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        scene_t scene;
        uint32_t world = worlds[w];
        scene_start_until_ready(&scene, world, user_trains);
        for (uint32_t r = 0; r < world; r++) {
            while (scene.ranks[r].progress.step < 5) scene_hear(&scene.ranks[r], true);
            assert_true(scene.ranks[r].progress.loss == world * (world + 1) / 2.0);
        }
        for (uint32_t r = 0; r < world; r++) sem_post(&scene.ranks[r].go);
        for (uint32_t r = 0; r < world; r++) {
            until_done(&scene.ranks[r]);
            assert_string_equal(scene.ranks[r].end.text, "{\"steps\":5}");
        }
        scene_end(&scene);
    }
}

/* Rank 1's own failure is told at once, also to the others, whose users' threads make no call: they blame it.
 */
static void fails_at_rank_1(void (*user)(rank_t *))
{
    scene_t scene;
    scene_start_until_ready(&scene, 3, user);
    assert_int_equal(scene_hear(&scene.ranks[1], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[1].end.status, INSPAN_CORRUPT);
    assert_int_equal(scene.ranks[1].end.cause.rank, scene_number(1));
    assert_string_equal(scene.ranks[1].end.cause.node, "node-1");
    assert_string_equal(scene.ranks[1].end.text, "line 7 of data.csv is no number");
    for (uint32_t r = 0; r < 3; r += 2) {
        assert_int_equal(scene_hear(&scene.ranks[r], false), LOCAL_BLAME);
        assert_int_equal(scene.ranks[r].blame.cause.rank, scene_number(1));
        if (strstr(scene.ranks[r].blame.cause.text, "line 7 of data.csv is no number") == NULL)
            fail_msg("%s", scene.ranks[r].blame.cause.text);
    }
    scene_bye(&scene.ranks[1]);
    for (uint32_t r = 0; r < 3; r++) sem_post(&scene.ranks[r].go);
    for (uint32_t r = 0; r < 3; r += 2) until_done(&scene.ranks[r]);
    scene_end(&scene);
}

static void test_failure_while_the_user_computes(void **state)
{
    (void)state;
    fails_at_rank_1(user_fails_at_rank_1);
}

static void test_failure_before_cleaning_up(void **state)
{
    (void)state;
    fails_at_rank_1(user_fails_before_it_cleans_up);
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
    assert_int_equal(scene_hear(&scene.ranks[0], false), LOCAL_DONE);
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

/* Without its agent a worker goes on for failure_timeout; then it leaves its view, and the others know why.
 */
static void test_agent_is_gone(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_until_ready(&scene, 2, user_is_stuck);
    ns_t begun = os_now();
    close(scene.ranks[0].fd);
    scene.ranks[0].fd = -1;
    unlink(scene.ranks[0].path);
    assert_int_equal(scene_hear(&scene.ranks[1], false), LOCAL_BLAME);
    assert_true(os_now() - begun >= NS_PER_S);
    assert_non_null(strstr(scene.ranks[1].blame.cause.text, "agent of node node-0 is gone"));
    assert_int_equal(scene.ranks[1].blame.cause.rank, scene_number(0));
    for (uint32_t r = 0; r < 2; r++) sem_post(&scene.ranks[r].go);
    until_done(&scene.ranks[1]);
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

static void test_stopped_before_the_view(void **state)
{
    (void)state;
    scene_t scene;
    size_t n = 0;
    scene_start_bound(&scene, 1, NS_PER_S, user_waits_for_a_view);
    rank_t *rank = &scene.ranks[0];
    scene_say_end(rank, LOCAL_LOST, INSPAN_PEER_LOST,
                  "node cellar is lost"); /* nobody of a view: no effect */
    scene_say(rank, local_encode_empty(LOCAL_STOP, scene_frame, sizeof scene_frame, &n), &n);
    assert_int_equal(scene_hear(rank, false), LOCAL_FAILED);
    assert_int_equal(rank->end.status, INSPAN_ABORTED);
    scene_bye(rank);
    scene_end(&scene);
}

static void test_no_agent(void **state)
{
    (void)state;
    inspan_worker_t *worker = NULL;
    inspan_error_t err;
    unsetenv("INSPAN_SOCKET");
    assert_int_equal(inspan_worker_attach(&worker, &err), INSPAN_NOT_FOUND);
    setenv("INSPAN_SOCKET", "/no/such/socket", 1);
    assert_int_equal(inspan_worker_attach(&worker, &err), INSPAN_REFUSED);
    assert_non_null(strstr(err.text, "/no/such/socket"));
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    setenv("INSPAN_SOCKET", longer, 1);
    assert_int_equal(inspan_worker_attach(&worker, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_failure_while_the_user_computes),
        cmocka_unit_test(test_failure_before_cleaning_up),
        cmocka_unit_test(test_ticks_go_on),
        cmocka_unit_test(test_agent_comes_back),
        cmocka_unit_test(test_agent_is_gone),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stopped_before_the_view),
        cmocka_unit_test(test_no_agent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
