/* The core by itself: orders and frames in, actions out, time by hand. */
#include "agent/core.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/rng.h"

#define S NS_PER_S

typedef struct scene {
    agent_core_t *core;
    ns_t now;
    int reports, prepares, uploads, abandons, spawns, releases, last_signal, signals;
    agent_state_t state; /* of the last report; pid and exit_signal, too */
    uint64_t reported_job;
    char text[INSPAN_ERROR_TEXT], summary[128];
    inspan_cause_t cause;
    uint32_t n_results, pid;
    int exit_signal;
    uint64_t step;
    int sent[LOCAL_TYPES]; /* frames by type */
    local_welcome_t welcome;
    local_end_t last_end;
    inspan_status_t spawn_result;
    uint64_t serial;
    agent_worker_t *worker;
} scene_t;

static void do_report(void *context, const agent_worker_t *worker)
{
    scene_t *scene = context;
    scene->reports++;
    scene->state = worker->state;
    scene->reported_job = worker->job;
    scene->pid = worker->pid;
    scene->exit_signal = worker->exit_signal;
    scene->cause = worker->cause;
    scene->n_results = worker->n_results;
    scene->step = worker->progress.step;
    snprintf(scene->text, sizeof scene->text, "%s", worker->text);
    snprintf(scene->summary, sizeof scene->summary, "%s", worker->summary ? worker->summary : "");
}

static inspan_status_t do_prepare(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)err;
    scene_t *scene = context;
    scene->prepares++;
    scene->serial = worker->serial;
    scene->worker = worker;
    return INSPAN_OK;
}

static inspan_status_t do_upload(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)worker;
    (void)err;
    ((scene_t *)context)->uploads++;
    return INSPAN_OK;
}

static void do_abandon(void *context, agent_worker_t *worker)
{
    (void)worker;
    ((scene_t *)context)->abandons++;
}

static inspan_status_t do_spawn(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    scene_t *scene = context;
    scene->spawns++;
    if (scene->spawn_result != INSPAN_OK) {
        snprintf(err->text, sizeof err->text, "no such program");
        return err->status = scene->spawn_result;
    }
    worker->pid = 4242;
    return INSPAN_OK;
}

static void do_send(void *context, agent_worker_t *worker, const uint8_t *frame, size_t n)
{
    scene_t *scene = context;
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t bytes = 0, whole = 0;
    (void)worker;
    assert_int_equal(local_peek(frame, n, &type, &body, &bytes, &whole), INSPAN_OK);
    assert_int_equal(whole, n);
    scene->sent[type]++;
    if (type == LOCAL_WELCOME)
        assert_int_equal(local_decode_welcome(body, bytes, &scene->welcome), INSPAN_OK);
    if (type == LOCAL_BYE || type == LOCAL_LOST)
        assert_int_equal(local_decode_end(body, bytes, &scene->last_end), INSPAN_OK);
}

static void do_signal(void *context, agent_worker_t *worker, int signal)
{
    scene_t *scene = context;
    (void)worker;
    scene->signals++;
    scene->last_signal = signal;
}

static void do_release(void *context, agent_worker_t *worker)
{
    (void)worker;
    ((scene_t *)context)->releases++;
}

static const agent_actions_t actions = {.report = do_report,
                                        .prepare = do_prepare,
                                        .upload = do_upload,
                                        .abandon = do_abandon,
                                        .spawn = do_spawn,
                                        .send = do_send,
                                        .signal = do_signal,
                                        .release = do_release};

static scene_t *open_scene(void)
{
    scene_t *scene = calloc(1, sizeof *scene);
    scene->core = agent_core_open(&actions, scene);
    scene->now = 1000 * S;
    agent_core_configure(scene->core, "attic", "10.0.0.7", 3, 7500, 7599);
    return scene;
}

static void close_scene(scene_t *scene)
{
    agent_core_close(scene->core);
    free(scene);
}

static inspan_status_t give(scene_t *scene, const uint8_t *frame, size_t n)
{
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t bytes = 0, whole = 0;
    assert_int_equal(local_peek(frame, n, &type, &body, &bytes, &whole), INSPAN_OK);
    return agent_core_frame(scene->core, scene->now, scene->worker, type, body, bytes);
}

static uint8_t frame[LOCAL_FRAME_MAX + 8];

static inspan_status_t give_hello(scene_t *scene, uint16_t major, uint64_t incarnation)
{
    size_t n = 0;
    local_hello_t hello = {.major = major, .pid = 4242, .incarnation = incarnation};
    local_encode_hello(&hello, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static inspan_status_t give_empty(scene_t *scene, local_frame_type_t type)
{
    size_t n = 0;
    local_encode_empty(type, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static inspan_status_t give_ready(scene_t *scene, uint64_t view)
{
    size_t n = 0;
    local_encode_ready(view, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static inspan_status_t give_bound(scene_t *scene)
{
    size_t n = 0;
    local_encode_bound(7503, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static inspan_status_t give_tick(scene_t *scene, uint64_t step)
{
    size_t n = 0;
    inspan_progress_t progress = {.step = step, .steps = 10};
    local_encode_tick(&progress, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static inspan_status_t give_end(scene_t *scene, local_frame_type_t type, inspan_status_t status, int rank,
                                const char *text)
{
    static local_end_t end;
    size_t n = 0;
    end = (local_end_t){.status = status, .cause = {.status = status, .rank = rank, .noticed_by = 1}};
    snprintf(end.text, sizeof end.text, "%s", text);
    local_encode_end(type, &end, frame, sizeof frame, &n);
    return give(scene, frame, n);
}

static void start(scene_t *scene)
{
    assert_int_equal(agent_core_start(scene->core, scene->now, 7, 1, 5 * S, scene), INSPAN_OK);
    assert_int_equal(scene->prepares, 1);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_OK, NULL);
    assert_int_equal(scene->state, AGENT_STATE_STARTED);
}

static void run_up_to(scene_t *scene, agent_phase_t phase)
{
    static inspan_member_t members[2] = {{.node = "a"}, {.number = 1, .node = "attic"}};
    local_view_t view = {.view = 1, .rank = 1, .world = 2, .members = members};
    start(scene);
    if (phase >= AGENT_WELCOMED) assert_int_equal(give_hello(scene, LOCAL_MAJOR, 99), INSPAN_OK);
    if (phase >= AGENT_BOUND) assert_int_equal(give_bound(scene), INSPAN_OK);
    if (phase >= AGENT_READY) {
        agent_core_view(scene->core, scene->now, 7, 1, &view);
        assert_int_equal(scene->sent[LOCAL_VIEW], 1);
        assert_int_equal(give_ready(scene, 1), INSPAN_OK);
    }
    if (phase >= AGENT_RUNNING) assert_int_equal(give_tick(scene, 1), INSPAN_OK);
    assert_int_equal(scene->worker->phase, phase);
}

static void exit_with(scene_t *scene, int code, int signo)
{
    os_exit_t result = {.code = code, .signal = signo, .memory_limit = UINT64_MAX};
    agent_core_exited(scene->core, scene->now, scene->worker, &result);
}

/* ---- The straight way ------------------------------------------------------------------------ */

static void test_done(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    assert_int_equal(scene->welcome.threads, 3);
    assert_int_equal(scene->welcome.last_port, 7599);
    assert_int_equal(scene->state, AGENT_STATE_RUNNING);
    assert_int_equal(give_end(scene, LOCAL_DONE, INSPAN_OK, -1, "{\"steps\":10}"), INSPAN_OK);
    assert_int_equal(scene->sent[LOCAL_BYE], 1);
    assert_int_equal(scene->uploads, 1);
    exit_with(scene, 0, 0);
    assert_int_equal(scene->state, AGENT_STATE_RUNNING); /* the results are not safe yet */
    agent_result_t result = {.name = "model.safetensors", .bytes = 5};
    agent_core_uploaded(scene->core, scene->now, scene->serial, INSPAN_OK, NULL, &result, 1);
    assert_int_equal(scene->state, AGENT_STATE_DONE);
    assert_int_equal(scene->n_results, 1);
    assert_string_equal(scene->summary, "{\"steps\":10}");
    assert_int_equal(agent_core_running(scene->core), 0);
    close_scene(scene);
}

static void test_done_needs_its_results(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    give_end(scene, LOCAL_DONE, INSPAN_OK, -1, "{}");
    agent_core_uploaded(scene->core, scene->now, scene->serial, INSPAN_IO, "the manager's disk is full", NULL,
                        0);
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_string_equal(scene->text, "the manager's disk is full");
    int reports = scene->reports;
    assert_int_equal(scene->pid, 4242);
    exit_with(scene, 0, 0);
    assert_int_equal(scene->reports, reports + 1); /* the same end, its process gone */
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_int_equal(scene->pid, 0);
    close_scene(scene);
}

static void test_view_before_the_worker_is_bound(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    inspan_member_t member = {.node = "attic"};
    local_view_t view = {.view = 3, .rank = 1, .world = 2, .members = (inspan_member_t[]){member, member}};
    run_up_to(scene, AGENT_WELCOMED);
    agent_core_view(scene->core, scene->now, 7, 1, &view);
    assert_int_equal(scene->sent[LOCAL_VIEW], 0);
    give_bound(scene);
    assert_int_equal(scene->sent[LOCAL_VIEW], 1);
    agent_core_view(scene->core, scene->now, 7, 1, &view); /* repeated after a reconnect of the manager */
    assert_int_equal(scene->sent[LOCAL_VIEW], 1);
    close_scene(scene);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static void test_ends_are_told_apart(void **state)
{
    (void)state;
    const struct {
        os_exit_t result;
        inspan_status_t status;
        const char *text;
    } cases[] = {
        {{.code = 3, .memory_limit = UINT64_MAX}, INSPAN_JOB_FAILED, "exit code 3"},
        {{.code = 0, .memory_limit = UINT64_MAX}, INSPAN_JOB_FAILED, "without having said that it is done"},
        {{.code = -1, .signal = SIGKILL, .memory_limit = UINT64_MAX}, INSPAN_PEER_LOST, "killed by signal 9"},
        {{.code = -1, .signal = SIGILL, .memory_limit = UINT64_MAX}, INSPAN_PEER_LOST, "Illegal instruction"},
        {{.code = -1,
          .signal = SIGKILL,
          .out_of_memory = true,
          .memory_limit = 300000000,
          .peak_bytes = 299000000},
         INSPAN_NO_MEMORY,
         "limit 300.0 MB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int phase = AGENT_STARTING; phase <= AGENT_RUNNING; phase++) {
            scene_t *scene = open_scene();
            run_up_to(scene, (agent_phase_t)phase);
            agent_core_exited(scene->core, scene->now, scene->worker, &cases[i].result);
            assert_int_equal(scene->state, AGENT_STATE_FAILED);
            assert_int_equal(scene->cause.status, cases[i].status);
            assert_int_equal(scene->cause.rank, 1);
            assert_string_equal(scene->cause.node, "attic");
            assert_non_null(strstr(scene->text, cases[i].text));
            assert_non_null(strstr(scene->text, "attic"));
            assert_int_equal(scene->worker->phase, AGENT_GONE);
            close_scene(scene);
        }
}

static void test_worker_says_why(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    give_end(scene, LOCAL_FAILED, INSPAN_PEER_LOST, 2, "rank 2 on node b is gone");
    assert_int_equal(scene->state, AGENT_STATE_FAILED); /* at once, its process still runs */
    assert_int_equal(scene->cause.rank, 2);
    assert_string_equal(scene->text, "rank 2 on node b is gone");
    assert_int_equal(scene->sent[LOCAL_BYE], 1);
    int reports = scene->reports;
    give_end(scene, LOCAL_FAILED, INSPAN_IO, 1, "said twice"); /* after a reconnect: answered, not reported */
    assert_int_equal(scene->sent[LOCAL_BYE], 2);
    scene->now += 3 * S; /* it does not exit by itself */
    agent_core_tick(scene->core, scene->now);
    assert_int_equal(scene->last_signal, SIGTERM);
    scene->now += 3 * S;
    agent_core_tick(scene->core, scene->now);
    assert_int_equal(scene->last_signal, SIGKILL);
    exit_with(scene, -1, SIGKILL);
    assert_int_equal(scene->worker->phase, AGENT_GONE);
    assert_int_equal(scene->reports, reports + 1); /* the process is gone: the node is free */
    assert_int_equal(scene->pid, 0);
    assert_int_equal(scene->exit_signal, 0); /* our own signal is no cause */
    assert_string_equal(scene->text, "rank 2 on node b is gone");
    close_scene(scene);
}

static void tick_for(scene_t *scene, ns_t duration)
{
    for (ns_t end = scene->now + duration; scene->now < end; scene->now += 100 * NS_PER_MS)
        agent_core_tick(scene->core, scene->now);
}

static void test_silence(void **state)
{
    (void)state;
    for (int phase = AGENT_WELCOMED; phase <= AGENT_RUNNING; phase++) {
        scene_t *scene = open_scene();
        run_up_to(scene, (agent_phase_t)phase);
        tick_for(scene, 4 * S + 900 * NS_PER_MS);
        assert_int_equal(scene->signals, 0);
        give_tick(scene, 2);
        tick_for(scene, 4 * S + 900 * NS_PER_MS);
        assert_int_equal(scene->signals, 0);
        tick_for(scene, 300 * NS_PER_MS);
        assert_int_equal(scene->last_signal, SIGKILL);
        assert_int_equal(scene->state, AGENT_STATE_FAILED);
        assert_non_null(strstr(scene->text, "silent for 5."));
        assert_non_null(strstr(scene->text, "stopped or frozen"));
        assert_int_equal(scene->cause.rank, 1);
        close_scene(scene);
    }
}

/* A laptop that slept for an hour wakes with its workers. */
static void test_own_absence_is_forgiven(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    tick_for(scene, 2 * S);
    scene->now += 3600 * S;
    agent_core_tick(scene->core, scene->now);
    assert_int_equal(scene->signals, 0);
    tick_for(scene, 2 * S);
    assert_int_equal(scene->signals, 0);
    tick_for(scene, 2 * S); /* but the silence before and after adds up */
    assert_int_equal(scene->last_signal, SIGKILL);
    close_scene(scene);
}

static void test_never_says_hello(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    start(scene);
    tick_for(scene, 29 * S);
    assert_int_equal(scene->signals, 0);
    tick_for(scene, 2 * S);
    assert_int_equal(scene->last_signal, SIGKILL);
    assert_non_null(strstr(scene->text, "did not call its agent"));
    close_scene(scene);
}

static void test_reconnect_of_a_worker(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    agent_core_disconnected(scene->core, scene->now, scene->worker);
    tick_for(scene, 3 * S);
    assert_int_equal(give_hello(scene, LOCAL_MAJOR, 99), INSPAN_OK);
    assert_int_equal(give_bound(scene), INSPAN_OK);
    assert_int_equal(give_ready(scene, 1), INSPAN_OK);
    assert_int_equal(scene->worker->phase, AGENT_RUNNING);
    agent_core_disconnected(scene->core, scene->now, scene->worker);
    assert_int_equal(give_hello(scene, LOCAL_MAJOR, 100), INSPAN_CORRUPT); /* somebody else */
    assert_int_equal(scene->last_signal, SIGKILL);
    close_scene(scene);
}

static void test_another_version(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    start(scene);
    assert_int_equal(give_hello(scene, 9, 1), INSPAN_VERSION);
    assert_int_equal(scene->sent[LOCAL_BYE], 1);
    assert_int_equal(scene->last_end.status, INSPAN_VERSION);
    assert_non_null(strstr(scene->text, "9.0"));
    assert_int_equal(scene->cause.status, INSPAN_VERSION);
    close_scene(scene);
}

static void test_frames_that_cannot_be(void **state)
{
    (void)state;
    static const local_frame_type_t wrong[] = {LOCAL_WELCOME, LOCAL_VIEW, LOCAL_STOP, LOCAL_LOST,
                                               LOCAL_READY};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        scene_t *scene = open_scene();
        run_up_to(scene, AGENT_WELCOMED);
        assert_int_equal(give_empty(scene, wrong[i]), INSPAN_CORRUPT);
        assert_int_equal(scene->state, AGENT_STATE_FAILED);
        assert_int_equal(scene->last_signal, SIGKILL);
        close_scene(scene);
    }
    scene_t *scene = open_scene();
    start(scene);
    assert_int_equal(give_bound(scene), INSPAN_CORRUPT); /* before HELLO */
    close_scene(scene);
}

/* ---- Orders ---------------------------------------------------------------------------------- */

static void test_stop(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    agent_core_stop(scene->core, scene->now, 7, 1, false, "cancelled by its owner");
    assert_int_equal(scene->sent[LOCAL_STOP], 1);
    assert_int_equal(scene->signals, 0);
    give_end(scene, LOCAL_FAILED, INSPAN_ABORTED, 1, "cancelled at step 3");
    assert_int_equal(scene->cause.status, INSPAN_ABORTED);
    exit_with(scene, 3, 0);
    assert_int_equal(scene->signals, 0);
    close_scene(scene);

    scene = open_scene(); /* one that does not listen */
    run_up_to(scene, AGENT_RUNNING);
    agent_core_stop(scene->core, scene->now, 7, 1, false, "cancelled by its owner");
    for (int i = 0; i < 11; i++) {
        tick_for(scene, S);
        give_tick(scene, 5);
    }
    assert_int_equal(scene->last_signal, SIGTERM);
    for (int i = 0; i < 2; i++) {
        tick_for(scene, S);
        give_tick(scene, 5);
    }
    assert_int_equal(scene->last_signal, SIGKILL);
    exit_with(scene, -1, SIGKILL);
    assert_int_equal(scene->cause.status, INSPAN_ABORTED);
    assert_string_equal(scene->text, "cancelled by its owner");
    close_scene(scene);
}

static void test_stop_at_once_and_early(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    agent_core_stop(scene->core, scene->now, 7, 1, true, "rank 2 is lost");
    assert_int_equal(scene->last_signal, SIGTERM);
    exit_with(scene, -1, SIGTERM);
    assert_string_equal(scene->text, "rank 2 is lost");
    close_scene(scene);

    scene = open_scene(); /* while the data is fetched */
    agent_core_start(scene->core, scene->now, 7, 1, 5 * S, scene);
    agent_core_stop(scene->core, scene->now, 7, 1, false, NULL);
    assert_int_equal(scene->abandons, 1);
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_int_equal(agent_core_running(scene->core), 1);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_OK, NULL);
    assert_int_equal(scene->spawns, 0);
    assert_int_equal(agent_core_running(scene->core), 0);
    close_scene(scene);
}

static void test_orders_for_strangers(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    inspan_member_t member = {.node = "attic"};
    local_view_t view = {.view = 1, .rank = 0, .world = 1, .members = &member};
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST};
    agent_core_stop(scene->core, scene->now, 55, 0, true, "x");
    assert_int_equal(scene->reported_job, 55);
    assert_int_equal(scene->cause.status, INSPAN_NOT_FOUND);
    agent_core_view(scene->core, scene->now, 56, 0, &view);
    assert_int_equal(scene->reported_job, 56);
    agent_core_lost(scene->core, scene->now, 57, &cause);
    assert_int_equal(scene->reported_job, 56);
    close_scene(scene);
}

static void test_lost_member(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    inspan_cause_t cause = {
        .status = INSPAN_PEER_LOST, .rank = 0, .node = "b", .text = "node b: agent silent for 5.0 s"};
    agent_core_lost(scene->core, scene->now, 7, &cause);
    assert_int_equal(scene->sent[LOCAL_LOST], 1);
    assert_string_equal(scene->last_end.cause.node, "b");
    close_scene(scene);
}

static void test_start_twice_and_too_many(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_BOUND);
    int reports = scene->reports;
    assert_int_equal(agent_core_start(scene->core, scene->now, 7, 1, 5 * S, NULL), INSPAN_EXISTS);
    assert_int_equal(scene->reports, reports + 1);
    assert_int_equal(scene->state, AGENT_STATE_BOUND);
    for (uint32_t rank = 2; rank <= AGENT_WORKERS; rank++)
        assert_int_equal(agent_core_start(scene->core, scene->now, 7, rank, 5 * S, NULL), INSPAN_OK);
    assert_int_equal(agent_core_start(scene->core, scene->now, 8, 0, 5 * S, NULL), INSPAN_LIMIT);
    assert_int_equal(scene->reported_job, 8);
    assert_int_equal(scene->cause.status, INSPAN_LIMIT);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_IO, "no data"); /* one of them ends */
    assert_int_equal(agent_core_start(scene->core, scene->now, 8, 0, 5 * S, NULL), INSPAN_OK);
    assert_int_equal(scene->releases, 1);
    close_scene(scene);
}

/* Heartbeats go by the most impatient of the jobs that have a worker here. */
static void test_the_shortest_failure_timeout(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    assert_true(agent_core_failure_timeout(scene->core) == INT64_MAX);
    run_up_to(scene, AGENT_BOUND);
    assert_true(agent_core_failure_timeout(scene->core) == 5 * S);
    assert_int_equal(agent_core_start(scene->core, scene->now, 7, 2, 2 * S, NULL), INSPAN_OK);
    assert_true(agent_core_failure_timeout(scene->core) == 2 * S);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_IO, "no data"); /* it ends */
    assert_true(agent_core_failure_timeout(scene->core) == 5 * S);
    close_scene(scene);
}

static void test_cannot_start(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    scene->spawn_result = INSPAN_NOT_FOUND;
    agent_core_start(scene->core, scene->now, 7, 1, 5 * S, scene);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_OK, NULL);
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_string_equal(scene->text, "no such program");
    close_scene(scene);
}

/* The last report is kept until a link has carried it and stayed up; a reconnect tells it again. */
static void test_last_report_is_delivered(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    exit_with(scene, 1, 0); /* no link */
    tick_for(scene, 60 * S);
    assert_int_equal(scene->releases, 0);
    agent_core_link(scene->core, scene->now, true);
    tick_for(scene, 4 * S);
    agent_core_link(scene->core, scene->now, false); /* too early to be sure */
    tick_for(scene, 60 * S);
    assert_non_null(agent_core_each(scene->core, NULL));
    agent_core_link(scene->core, scene->now, true);
    tick_for(scene, 6 * S);
    assert_int_equal(scene->releases, 1);
    assert_null(agent_core_each(scene->core, NULL));
    int reports = scene->reports;
    agent_core_stop(scene->core, scene->now, 7, 1, true, "too late"); /* no surprise, no report */
    assert_int_equal(scene->reports, reports);
    close_scene(scene);
}

static void test_progress_is_held_back(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    run_up_to(scene, AGENT_RUNNING);
    int reports = scene->reports;
    for (uint64_t step = 2; step < 102; step++) { /* a second of steps of 10 ms */
        scene->now += 10 * NS_PER_MS;
        give_tick(scene, step);
        if (step % 10 == 0) agent_core_tick(scene->core, scene->now);
    }
    assert_true(scene->reports - reports >= 4 && scene->reports - reports <= 6);
    tick_for(scene, S);
    assert_int_equal(scene->step, 101); /* the latest arrives all the same */
    close_scene(scene);
}

/* Any order of events: ends once, never signals or spawns what is gone, forgets all. */
static void test_random_events(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 0);
        scene_t *scene = open_scene();
        agent_core_start(scene->core, scene->now, 7, 1, 5 * S, scene);
        bool alive = false;
        int ends = 0;
        for (int i = 0; i < 60; i++) {
            agent_worker_t *worker = agent_core_find(scene->core, 7, 1);
            if (worker == NULL) break;
            alive = worker->pid != 0;
            int before = scene->reports, signals = scene->signals;
            bool over = worker->phase >= AGENT_ENDING;
            scene->now += (ns_t)rng_below(&rng, (uint64_t)S);
            switch (rng_below(&rng, 12)) {
            case 0: agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_OK, NULL); break;
            case 1:
                if (alive) give_hello(scene, LOCAL_MAJOR, 99);
                break;
            case 2:
                if (alive && worker->connected) give_bound(scene);
                break;
            case 3:
                if (alive && worker->phase >= AGENT_BOUND && worker->connected) give_ready(scene, 1);
                break;
            case 4:
                if (alive && worker->connected) give_tick(scene, (uint64_t)i);
                break;
            case 5:
                if (alive && worker->connected && i > 20) give_end(scene, LOCAL_DONE, INSPAN_OK, -1, "{}");
                break;
            case 6:
                if (alive && worker->connected && i > 30) give_end(scene, LOCAL_FAILED, INSPAN_IO, 0, "e");
                break;
            case 7:
                if (alive && (over || i > 40)) exit_with(scene, 0, 0);
                break;
            case 8:
                agent_core_uploaded(scene->core, scene->now, scene->serial, INSPAN_OK, NULL, NULL, 0);
                break;
            case 9:
                if (i > 30) agent_core_stop(scene->core, scene->now, 7, 1, seed & 1, "r");
                break;
            case 10: agent_core_link(scene->core, scene->now, rng_below(&rng, 2)); break;
            default: agent_core_tick(scene->core, scene->now); break;
            }
            if (!alive) assert_int_equal(scene->signals, signals);
            worker = agent_core_find(scene->core, 7, 1);
            bool ended = scene->state == AGENT_STATE_DONE || scene->state == AGENT_STATE_FAILED;
            if (scene->reports > before && ended && scene->pid == 0) ends++; /* for good */
            assert_true(ends <= 1);
        }
        close_scene(scene);
        /* released whatever happened */
    }
}

int main(void)
{
    log_set_level(LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_done_needs_its_results),
        cmocka_unit_test(test_view_before_the_worker_is_bound),
        cmocka_unit_test(test_ends_are_told_apart),
        cmocka_unit_test(test_worker_says_why),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_own_absence_is_forgiven),
        cmocka_unit_test(test_never_says_hello),
        cmocka_unit_test(test_reconnect_of_a_worker),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_frames_that_cannot_be),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_at_once_and_early),
        cmocka_unit_test(test_orders_for_strangers),
        cmocka_unit_test(test_lost_member),
        cmocka_unit_test(test_start_twice_and_too_many),
        cmocka_unit_test(test_the_shortest_failure_timeout),
        cmocka_unit_test(test_cannot_start),
        cmocka_unit_test(test_last_report_is_delivered),
        cmocka_unit_test(test_progress_is_held_back),
        cmocka_unit_test(test_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
