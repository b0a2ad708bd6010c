/* Vitals on their way to workers: how often, to whom, and what an owner who gives nothing means. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "agent/core.h"
#include "base/log.h"

#define S  NS_PER_S
#define MS NS_PER_MS

static struct {
    agent_core_t *core;
    agent_worker_t *worker;
    ns_t now;
    int told, leaves;
    local_vitals_t last; /* that the worker was told */
} scene;

static uint8_t frame[LOCAL_FRAME_MAX + 8];

static void do_report(void *context, const agent_worker_t *worker)
{
    (void)context, (void)worker;
}

static inspan_status_t do_prepare(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context, (void)err;
    scene.worker = worker;
    return INSPAN_OK;
}

static void do_abandon(void *context, agent_worker_t *worker)
{
    (void)context, (void)worker;
}

static inspan_status_t do_spawn(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context, (void)err;
    worker->pid = 4242;
    return INSPAN_OK;
}

static void do_send(void *context, agent_worker_t *worker, const uint8_t *bytes, size_t n)
{
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t body_bytes = 0, whole = 0;
    (void)context, (void)worker;
    assert_int_equal(local_peek(bytes, n, &type, &body, &body_bytes, &whole), INSPAN_OK);
    scene.leaves += type == LOCAL_LEAVE;
    if (type != LOCAL_VITALS) return;
    scene.told++;
    assert_int_equal(local_decode_vitals(body, body_bytes, &scene.last), INSPAN_OK);
}

static void do_signal(void *context, agent_worker_t *worker, int signal)
{
    (void)context, (void)worker, (void)signal;
}

static const agent_actions_t actions = {.report = do_report,
                                        .prepare = do_prepare,
                                        .abandon = do_abandon,
                                        .spawn = do_spawn,
                                        .send = do_send,
                                        .signal = do_signal,
                                        .release = do_abandon};

static const local_vitals_t calm = {
    .cores = 2, .clock_mhz = 3000, .temperature_c = 60, .others_cores = 0.1, .allowed = 1};

static void say(local_frame_type_t type, size_t n)
{
    assert_int_equal(agent_core_frame(scene.core, scene.now, scene.worker, type, frame + 8, n - 8),
                     INSPAN_OK);
}

static void say_hello(uint16_t minor)
{
    size_t n = 0;
    local_hello_t hello = {LOCAL_MAJOR, minor, 4242, 77};
    local_encode_hello(&hello, frame, sizeof frame, &n);
    say(LOCAL_HELLO, n);
}

static int open_scene(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    scene.core = agent_core_open(&actions, NULL);
    scene.now = 100 * S;
    scene.told = scene.leaves = 0;
    agent_core_configure(scene.core, "attic", "10.0.0.1", 2, 0, 0);
    assert_int_equal(agent_core_start(scene.core, scene.now, 1, 0, 5 * S, NULL), INSPAN_OK);
    agent_core_prepared(scene.core, scene.now, scene.worker->serial, INSPAN_OK, "");
    return 0;
}

static int close_scene(void **state)
{
    (void)state;
    agent_core_close(scene.core);
    return 0;
}

static void say_tick(void)
{
    static uint64_t step;
    size_t n = 0;
    step++;
    inspan_progress_t progress = {.step = step};
    local_encode_tick(&progress, frame, sizeof frame, &n);
    say(LOCAL_TICK, n);
}

/* From HELLO to RUNNING; elastic: it says STATE. */
static void run(bool elastic)
{
    size_t n = 0;
    inspan_member_t member = {.port = 7555};
    local_view_t view = {.view = 1, .world = 1, .members = &member};
    local_encode_bound(7555, frame, sizeof frame, &n);
    say(LOCAL_BOUND, n);
    agent_core_view(scene.core, scene.now, 1, 0, &view);
    local_encode_ready(1, frame, sizeof frame, &n);
    say(LOCAL_READY, n);
    local_encode_state(true, frame, sizeof frame, &n);
    if (elastic) say(LOCAL_STATE, n);
    say_tick();
    assert_int_equal(scene.worker->phase, AGENT_RUNNING);
}

static void pass(ns_t time, const local_vitals_t *vitals)
{
    scene.now += time;
    say_tick(); /* it lives */
    agent_core_vitals(scene.core, scene.now, vitals);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_once_a_second_and_at_a_change(void **state)
{
    (void)state;
    local_vitals_t vitals = calm;
    agent_core_vitals(scene.core, scene.now, &calm); /* before it has called */
    assert_int_equal(scene.told, 0);
    say_hello(LOCAL_MINOR);
    assert_int_equal(scene.told, 1); /* with WELCOME */
    pass(500 * MS, &calm);
    assert_int_equal(scene.told, 1);
    pass(500 * MS, &calm);
    assert_int_equal(scene.told, 2);
    vitals.clock_mhz = 2950; /* flickers */
    vitals.temperature_c = 61;
    pass(100 * MS, &vitals);
    assert_int_equal(scene.told, 2);
    vitals.cores = 0.6; /* a quota was cut */
    pass(100 * MS, &vitals);
    assert_int_equal(scene.told, 3);
    assert_true(scene.last.cores == 0.6);
    vitals.allowed = 0.5;
    vitals.on_battery = true;
    vitals.limit = LOCAL_LIMIT_BATTERY;
    pass(100 * MS, &vitals);
    assert_int_equal(scene.told, 4);
    assert_true(scene.last.allowed == 0.5 && scene.last.on_battery);
    vitals.others_cores = NAN; /* no longer known */
    pass(100 * MS, &vitals);
    assert_int_equal(scene.told, 5);
    pass(100 * MS, &vitals);
    assert_int_equal(scene.told, 5);
    say_hello(LOCAL_MINOR); /* the same worker again, after a broken connection */
    assert_int_equal(scene.told, 6);
}

/* Frames of a type that it does not know would end its connection. */
static void test_older_workers_are_spared(void **state)
{
    (void)state;
    agent_core_vitals(scene.core, scene.now, &calm);
    say_hello(1);
    pass(2 * S, &calm);
    assert_int_equal(scene.told, 0);
}

/* What it does not read would fill its socket. */
static void test_one_that_is_silent_is_told_nothing(void **state)
{
    (void)state;
    say_hello(LOCAL_MINOR);
    pass(S, &calm);
    assert_int_equal(scene.told, 1);
    scene.now += 3 * S; /* more than half its failure_timeout */
    agent_core_vitals(scene.core, scene.now, &calm);
    assert_int_equal(scene.told, 1);
    agent_core_disconnected(scene.core, scene.now, scene.worker);
    agent_core_vitals(scene.core, scene.now, &calm);
    assert_int_equal(scene.told, 1);
}

static void test_nothing_given_means_leave(void **state)
{
    (void)state;
    local_vitals_t none = calm;
    none.allowed = 0;
    say_hello(LOCAL_MINOR);
    pass(S, &none);
    assert_int_equal(scene.leaves, 0); /* it has nothing to hand over yet */
    run(true);
    pass(500 * MS, &none);
    assert_int_equal(scene.leaves, 1);
    pass(500 * MS, &none);
    pass(500 * MS, &calm); /* it is on its way out */
    pass(500 * MS, &none);
    assert_int_equal(scene.leaves, 1);
    assert_int_equal(scene.worker->phase, AGENT_RUNNING); /* until it has said LEFT and is stopped */
}

/* A worker that cannot leave its job is not ended by the way: it is told, and slows down. */
static void test_only_elastic_ones_leave(void **state)
{
    (void)state;
    local_vitals_t none = calm;
    none.allowed = 0;
    say_hello(LOCAL_MINOR);
    run(false);
    pass(S, &none);
    assert_int_equal(scene.leaves, 0);
    assert_true(scene.last.allowed == 0);
}

#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCENE(test_once_a_second_and_at_a_change),
        IN_SCENE(test_older_workers_are_spared),
        IN_SCENE(test_one_that_is_silent_is_told_nothing),
        IN_SCENE(test_nothing_given_means_leave),
        IN_SCENE(test_only_elastic_ones_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
