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

#include "comm/comm.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "platform/wire/local.h"
#include "worker/worker_internal.h"

#define PATIENCE (20 * NS_PER_S)

typedef struct scene scene_t;

typedef struct rank {
    scene_t *scene;
    uint32_t rank;
    char path[108];
    int listener, fd;
    uint8_t in[2 * (LOCAL_FRAME_MAX + 8)];
    size_t in_used;
    /* of what came */
    local_hello_t hello;
    uint16_t port;
    unsigned ticks;
    inspan_progress_t progress;
    local_end_t end;
    /* the session's side */
    pthread_t thread;
    inspan_worker_t *worker;
    inspan_status_t opened;
    inspan_error_t err;
    sem_t go, done; /* a user's thread that is stuck until the test lets it */
    inspan_cause_t cause;
    double sum;
} rank_t;

struct scene {
    char folder[32];
    uint32_t world;
    ns_t failure_timeout;
    void (*user)(rank_t *rank); /* after open, to finish */
    rank_t *ranks;
};

/* ---- The agent's side ------------------------------------------------------------------------ */

static void listen_at(rank_t *rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, rank->path, sizeof rank->path);
    rank->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(rank->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(rank->listener, 4), 0);
}

static void wait_readable(int fd, ns_t deadline)
{
    ns_t left = deadline - os_now();
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (left <= 0 || poll(&wait, 1, (int)(left / NS_PER_MS) + 1) <= 0)
        fail_msg("the session said nothing in time");
}

static void accept_session(rank_t *rank)
{
    wait_readable(rank->listener, os_now() + PATIENCE);
    rank->fd = accept4(rank->listener, NULL, NULL, SOCK_CLOEXEC);
    rank->in_used = 0;
    assert_true(rank->fd >= 0);
}

static void take(rank_t *rank, local_frame_type_t type, const uint8_t *body, size_t n)
{
    inspan_status_t status = INSPAN_OK;
    if (type == LOCAL_HELLO) status = local_decode_hello(body, n, &rank->hello);
    if (type == LOCAL_BOUND) status = local_decode_bound(body, n, &rank->port);
    if (type == LOCAL_TICK) status = local_decode_tick(body, n, &rank->progress);
    if (type == LOCAL_FAILED || type == LOCAL_DONE) status = local_decode_end(body, n, &rank->end);
    assert_int_equal(status, INSPAN_OK);
    rank->ticks += type == LOCAL_TICK;
}

/* The next frame that is no tick (or any, if a tick is wanted). */
static local_frame_type_t hear(rank_t *rank, bool ticks_too)
{
    ns_t deadline = os_now() + PATIENCE;
    for (;;) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        inspan_status_t status = local_peek(rank->in, rank->in_used, &type, &body, &n, &whole);
        assert_int_not_equal(status, INSPAN_CORRUPT);
        if (status == INSPAN_OK) {
            take(rank, type, body, n);
            memmove(rank->in, rank->in + whole, rank->in_used -= whole);
            if (type != LOCAL_TICK || ticks_too) return type;
            continue;
        }
        wait_readable(rank->fd, deadline);
        ssize_t got = recv(rank->fd, rank->in + rank->in_used, sizeof rank->in - rank->in_used, 0);
        if (got <= 0) fail_msg("the session hung up");
        rank->in_used += (size_t)got;
    }
}

static uint8_t frame[LOCAL_FRAME_MAX + 8];

/* n by address: it is filled while the arguments are evaluated. */
static void say(rank_t *rank, inspan_status_t encoded, const size_t *n)
{
    assert_int_equal(encoded, INSPAN_OK);
    assert_int_equal(send(rank->fd, frame, *n, MSG_NOSIGNAL), *n);
}

static void say_welcome(rank_t *rank, uint16_t major)
{
    size_t n = 0;
    local_welcome_t welcome = {
        .major = major, .job = 5, .failure_timeout = rank->scene->failure_timeout, .threads = 2};
    snprintf(welcome.node, sizeof welcome.node, "node-%u", rank->rank);
    say(rank, local_encode_welcome(&welcome, frame, sizeof frame, &n), &n);
}

static void say_end(rank_t *rank, local_frame_type_t type, inspan_status_t status, const char *text)
{
    static local_end_t end;
    size_t n = 0;
    end = (local_end_t){.status = status, .cause = {.status = status, .rank = 1, .node = "cellar"}};
    snprintf(end.text, sizeof end.text, "%s", text);
    snprintf(end.cause.text, sizeof end.cause.text, "%s", text);
    say(rank, local_encode_end(type, &end, frame, sizeof frame, &n), &n);
}

static void say_view(scene_t *scene)
{
    inspan_member_t members[8] = {{.port = 0}};
    for (uint32_t r = 0; r < scene->world; r++) {
        members[r].number = r;
        snprintf(members[r].node, sizeof members[r].node, "node-%u", r);
        snprintf(members[r].address, sizeof members[r].address, "127.0.0.1");
        members[r].port = scene->ranks[r].port;
        members[r].incarnation = scene->ranks[r].hello.incarnation;
    }
    for (uint32_t r = 0; r < scene->world; r++) {
        size_t n = 0;
        local_view_t view = {
            .view = 1, .rank = r, .world = scene->world, .members = members, .key = {1, 2, 3}};
        say(&scene->ranks[r], local_encode_view(&view, frame, sizeof frame, &n), &n);
    }
}

/* ---- The session's side ---------------------------------------------------------------------- */

static void *run_session(void *context)
{
    rank_t *rank = context;
    rank->opened = worker_open_at(rank->path, false, &rank->worker, &rank->err);
    if (rank->opened == INSPAN_OK) rank->scene->user(rank);
    sem_post(&rank->done);
    return NULL;
}

static void start(scene_t *scene, uint32_t world, void (*user)(rank_t *))
{
    *scene = (scene_t){
        .folder = "/tmp/inspan-session-XXXXXX", .world = world, .failure_timeout = NS_PER_S, .user = user};
    assert_non_null(mkdtemp(scene->folder));
    scene->ranks = calloc(world, sizeof *scene->ranks);
    for (uint32_t r = 0; r < world; r++) {
        rank_t *rank = &scene->ranks[r];
        rank->scene = scene;
        rank->rank = r;
        sem_init(&rank->go, 0, 0);
        sem_init(&rank->done, 0, 0);
        snprintf(rank->path, sizeof rank->path, "%s/%u", scene->folder, r);
        listen_at(rank);
        assert_int_equal(pthread_create(&rank->thread, NULL, run_session, rank), 0);
        accept_session(rank);
        assert_int_equal(hear(rank, true), LOCAL_HELLO);
    }
}

/* From WELCOME to READY. */
static void begin(scene_t *scene)
{
    const uint32_t world = scene->world;
    for (uint32_t r = 0; r < world; r++) {
        say_welcome(&scene->ranks[r], LOCAL_MAJOR);
        assert_int_equal(hear(&scene->ranks[r], false), LOCAL_BOUND);
        assert_true(scene->ranks[r].port > 0);
    }
    say_view(scene);
    for (uint32_t r = 0; r < world; r++) assert_int_equal(hear(&scene->ranks[r], false), LOCAL_READY);
}

static void start_until_ready(scene_t *scene, uint32_t world, void (*user)(rank_t *))
{
    start(scene, world, user);
    begin(scene);
}

static void join(rank_t *rank)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    while (sem_timedwait(&rank->done, &until) != 0)
        if (errno == ETIMEDOUT) fail_msg("the session's thread does not end");
    pthread_join(rank->thread, NULL);
    close(rank->listener);
    if (rank->fd >= 0) close(rank->fd);
    sem_destroy(&rank->go);
    sem_destroy(&rank->done);
}

static void end(scene_t *scene)
{
    for (uint32_t r = 0; r < scene->world; r++) join(&scene->ranks[r]);
    os_remove_all(scene->folder, NULL);
    free(scene->ranks);
}

static void bye(rank_t *rank)
{
    say_end(rank, LOCAL_BYE, INSPAN_OK, "");
}

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
        start_until_ready(&scene, world, user_trains);
        while (scene.ranks[0].progress.step < 5) hear(&scene.ranks[0], true);
        assert_true(scene.ranks[0].progress.loss == world * (world + 1) / 2.0);
        sem_post(&scene.ranks[0].go);
        for (uint32_t r = 0; r < world; r++) { /* none of them sees another's leaving as a failure */
            assert_int_equal(hear(&scene.ranks[r], false), LOCAL_DONE);
            assert_string_equal(scene.ranks[r].end.text, "{\"steps\":5}");
            assert_int_equal(scene.ranks[r].progress.step, 5);
            bye(&scene.ranks[r]);
        }
        end(&scene);
    }
}

/* The agent hears of a failure although the user's thread makes no call. */
static void test_failure_while_the_user_computes(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 3, user_fails_at_rank_1);
    assert_int_equal(hear(&scene.ranks[1], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[1].end.status, INSPAN_CORRUPT);
    assert_int_equal(scene.ranks[1].end.cause.rank, 1);
    assert_string_equal(scene.ranks[1].end.cause.node, "node-1");
    assert_string_equal(scene.ranks[1].end.text, "line 7 of data.csv is no number");
    for (uint32_t r = 0; r < 3; r += 2) {
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_int_equal(scene.ranks[r].end.cause.rank, 1);
    }
    for (uint32_t r = 0; r < 3; r++) {
        bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    end(&scene);
}

static void test_failure_before_cleaning_up(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 3, user_fails_before_it_cleans_up);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_int_equal(scene.ranks[r].end.cause.rank, 1);
        if (strstr(scene.ranks[r].end.text, "line 7 of data.csv is no number") == NULL)
            fail_msg("%s", scene.ranks[r].end.text);
        if (r == 1) assert_int_equal(scene.ranks[r].end.status, INSPAN_CORRUPT);
    }
    for (uint32_t r = 0; r < 3; r++) {
        bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    end(&scene);
}

static void test_lost_member(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 2, user_is_stuck);
    say_end(&scene.ranks[0], LOCAL_LOST, INSPAN_PEER_LOST, "node cellar: agent silent for 5.0 s");
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_FAILED);
        assert_string_equal(scene.ranks[r].end.cause.node, "cellar");
        bye(&scene.ranks[r]);
        sem_post(&scene.ranks[r].go);
    }
    end(&scene);
}

static void test_stop(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 1, user_waits_for_stop);
    size_t n = 0;
    say(&scene.ranks[0], local_encode_empty(LOCAL_STOP, frame, sizeof frame, &n), &n);
    assert_int_equal(hear(&scene.ranks[0], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[0].end.status, INSPAN_ABORTED);
    bye(&scene.ranks[0]);
    end(&scene);
}

static void test_ticks_go_on(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 1, user_is_stuck);
    ns_t begun = os_now();
    for (int i = 0; i < 6; i++) assert_int_equal(hear(&scene.ranks[0], true), LOCAL_TICK);
    assert_true(os_now() - begun >= 900 * NS_PER_MS); /* each fifth of a second, not all at once */
    sem_post(&scene.ranks[0].go);
    assert_int_equal(hear(&scene.ranks[0], false), LOCAL_DONE); /* no cause: status OK */
    bye(&scene.ranks[0]);
    end(&scene);
}

static void test_agent_comes_back(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 1, user_is_stuck);
    rank_t *rank = &scene.ranks[0];
    uint64_t incarnation = rank->hello.incarnation;
    uint16_t port = rank->port;
    for (int i = 0; i < 2; i++) {
        if (i == 1) assert_int_equal(send(rank->fd, "garbage of a broken agent", 25, MSG_NOSIGNAL), 25);
        if (i == 0) close(rank->fd);
        int old = rank->fd;
        accept_session(rank);
        if (i == 1) close(old);
        assert_int_equal(hear(rank, true), LOCAL_HELLO);
        assert_true(rank->hello.incarnation == incarnation);
        say_welcome(rank, LOCAL_MAJOR);
        rank->port = 0;
        assert_int_equal(hear(rank, false), LOCAL_BOUND);
        assert_int_equal(rank->port, port);
        assert_int_equal(hear(rank, false), LOCAL_READY);
    }
    sem_post(&rank->go);
    assert_int_equal(hear(rank, false), LOCAL_DONE);
    close(rank->fd); /* before its BYE: the end is said again */
    accept_session(rank);
    assert_int_equal(hear(rank, true), LOCAL_HELLO);
    say_welcome(rank, LOCAL_MAJOR);
    assert_int_equal(hear(rank, false), LOCAL_BOUND);
    assert_int_equal(hear(rank, false), LOCAL_READY);
    assert_int_equal(hear(rank, false), LOCAL_DONE);
    bye(rank);
    end(&scene);
}

/* Without its agent a worker goes on for failure_timeout, then all ranks end. */
static void test_agent_is_gone(void **state)
{
    (void)state;
    scene_t scene;
    start_until_ready(&scene, 2, user_is_stuck);
    ns_t begun = os_now();
    close(scene.ranks[0].fd);
    scene.ranks[0].fd = -1;
    unlink(scene.ranks[0].path);
    assert_int_equal(hear(&scene.ranks[1], false), LOCAL_FAILED);
    assert_true(os_now() - begun >= NS_PER_S);
    assert_non_null(strstr(scene.ranks[1].end.cause.text, "agent of node node-0 is gone"));
    assert_int_equal(scene.ranks[1].end.cause.rank, 0);
    bye(&scene.ranks[1]);
    for (uint32_t r = 0; r < 2; r++) sem_post(&scene.ranks[r].go);
    end(&scene);
}

static void test_refused(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        scene_t scene;
        start(&scene, 1, user_never);
        rank_t *rank = &scene.ranks[0];
        if (way == 0) say_end(rank, LOCAL_BYE, INSPAN_VERSION, "worker speaks version 1.0, the agent 9.0");
        if (way == 1) say_welcome(rank, 9);
        if (way == 2) {
            scene.failure_timeout = 0; /* a WELCOME that cannot be right */
            say_welcome(rank, LOCAL_MAJOR);
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        assert_int_equal(sem_timedwait(&rank->done, &until), 0);
        sem_post(&rank->done);
        assert_int_equal(rank->opened, way == 2 ? INSPAN_CORRUPT : INSPAN_VERSION);
        if (way < 2) assert_non_null(strstr(rank->err.text, "9.0"));
        end(&scene);
    }
}

static void test_ended_before_the_view(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        scene_t scene;
        size_t n = 0;
        start(&scene, 1, user_never);
        rank_t *rank = &scene.ranks[0];
        say_welcome(rank, LOCAL_MAJOR);
        assert_int_equal(hear(rank, false), LOCAL_BOUND);
        if (way == 0) say(rank, local_encode_empty(LOCAL_STOP, frame, sizeof frame, &n), &n);
        if (way == 1) say_end(rank, LOCAL_LOST, INSPAN_PEER_LOST, "node cellar is lost");
        assert_int_equal(hear(rank, false), LOCAL_FAILED);
        assert_int_equal(rank->end.status, way == 0 ? INSPAN_ABORTED : INSPAN_PEER_LOST);
        bye(rank);
        end(&scene);
    }
}

static void test_pair_that_cannot_connect(void **state)
{
    (void)state;
    scene_t scene;
    start(&scene, 2, user_never);
    for (uint32_t r = 0; r < 2; r++) {
        say_welcome(&scene.ranks[r], LOCAL_MAJOR);
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_BOUND);
    }
    scene.ranks[1].port = 1; /* nobody listens there */
    say_view(&scene);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_FAILED);
        bye(&scene.ranks[r]);
    }
    /* whose port it is, and not who noticed; rank 1 is told, or finds nobody there itself */
    assert_non_null(strstr(scene.ranks[0].end.text, "node-1"));
    assert_int_equal(scene.ranks[0].end.cause.rank, 1);
    assert_int_equal(scene.ranks[0].end.cause.noticed_by, 0);
    assert_string_equal(scene.ranks[0].end.cause.node, "node-1");
    end(&scene);
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
    start(&scene, 3, user_leaves_while_rank_1_stands_still);
    scene.failure_timeout = 6 * NS_PER_S;
    begin(&scene);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(hear(&scene.ranks[r], false), LOCAL_DONE);
        bye(&scene.ranks[r]);
    }
    end(&scene);
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
