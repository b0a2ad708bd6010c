/* The core with workers of elastic jobs: what it reports, sends, stores and says again. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/core.h"
#include "base/log.h"

#define S NS_PER_S

typedef struct scene {
    agent_core_t *core;
    agent_worker_t *worker;
    uint64_t serial;
    ns_t now;
    int reports, stores, uploads, abandons, registers, spans, releases, last_signal;
    agent_state_t state; /* of the last report, as the next */
    bool full, has_blame;
    uint64_t blame_view, left_view, view;
    int32_t blamed;
    uint64_t registered_step, span_first, span_last;
    uint32_t registered_files;
    char stored[LOCAL_PATH_MAX];
    int sent[LOCAL_TYPES];
    local_registered_t answer; /* last one sent to the worker */
    uint64_t sent_view;
    char note[LOCAL_NOTE_MAX];
    int verdicts;
    local_verdict_t verdict; /* last one */
    uint64_t pace;           /* of the first member, in the last view sent */
} scene_t;

static uint8_t frame[LOCAL_FRAME_MAX + 8];

static void do_report(void *context, const agent_worker_t *worker)
{
    scene_t *scene = context;
    scene->reports++;
    scene->state = worker->state;
    scene->full = worker->full;
    scene->has_blame = worker->has_blame;
    scene->blame_view = worker->blame.view;
    scene->left_view = worker->left_view;
    scene->blamed = worker->blame.cause.rank;
    scene->view = worker->open_view;
}

static inspan_status_t do_prepare(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    scene_t *scene = context;
    (void)err;
    scene->worker = worker;
    scene->serial = worker->serial;
    return INSPAN_OK;
}

static inspan_status_t do_upload(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)worker, (void)err;
    ((scene_t *)context)->uploads++;
    return INSPAN_OK;
}

static inspan_status_t do_store(void *context, agent_worker_t *worker, const agent_artifact_t *artifact,
                                inspan_error_t *err)
{
    scene_t *scene = context;
    (void)worker, (void)err;
    scene->stores++;
    snprintf(scene->stored, sizeof scene->stored, "%s", artifact->saved.folder);
    return INSPAN_OK;
}

static void do_abandon(void *context, agent_worker_t *worker)
{
    (void)worker;
    ((scene_t *)context)->abandons++;
}

static inspan_status_t do_spawn(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context, (void)err;
    worker->pid = 4242;
    return INSPAN_OK;
}

static void do_send(void *context, agent_worker_t *worker, const uint8_t *bytes, size_t n)
{
    scene_t *scene = context;
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t body_bytes = 0, whole = 0;
    local_view_t view;
    (void)worker;
    assert_int_equal(local_peek(bytes, n, &type, &body, &body_bytes, &whole), INSPAN_OK);
    scene->sent[type]++;
    if (type == LOCAL_REGISTERED)
        assert_int_equal(local_decode_registered(body, body_bytes, &scene->answer), INSPAN_OK);
    if (type != LOCAL_VIEW) return;
    assert_int_equal(local_decode_view(body, body_bytes, &view), INSPAN_OK);
    scene->sent_view = view.view;
    scene->pace = view.members[0].pace_sample_ns;
    free(view.members);
}

static void do_signal(void *context, agent_worker_t *worker, int signal)
{
    (void)worker;
    ((scene_t *)context)->last_signal = signal;
}

static void do_register(void *context, const agent_worker_t *worker, const agent_artifact_t *artifact)
{
    scene_t *scene = context;
    (void)worker;
    scene->registers++;
    scene->registered_step = artifact->saved.step;
    scene->registered_files = artifact->n_files;
}

static void do_note(void *context, const agent_worker_t *worker, const char *text)
{
    scene_t *scene = context;
    assert_ptr_equal(worker, scene->worker);
    snprintf(scene->note, sizeof scene->note, "%s", text);
}

static void do_verdict(void *context, const agent_worker_t *worker, const local_verdict_t *verdict)
{
    scene_t *scene = context;
    assert_ptr_equal(worker, scene->worker);
    scene->verdicts++;
    scene->verdict = *verdict;
}

static void do_ledger(void *context, const agent_worker_t *worker, const local_ledger_t *span)
{
    scene_t *scene = context;
    (void)worker;
    scene->spans++;
    scene->span_first = span->first_step;
    scene->span_last = span->last_step;
}

static void do_release(void *context, agent_worker_t *worker)
{
    (void)worker;
    ((scene_t *)context)->releases++;
}

static const agent_actions_t actions = {do_report, do_prepare, do_upload, do_store,    do_abandon,
                                        do_spawn,  do_send,    do_signal, do_register, do_ledger,
                                        do_note,   do_verdict, do_release};

static scene_t *open_scene(void)
{
    scene_t *scene = calloc(1, sizeof *scene);
    scene->core = agent_core_open(&actions, scene);
    scene->now = 1000 * S;
    agent_core_configure(scene->core, "attic", "10.0.0.7", 3, 7500, 7599);
    agent_core_link(scene->core, scene->now, true);
    return scene;
}

static void close_scene(scene_t *scene)
{
    agent_core_close(scene->core);
    assert_int_equal(scene->releases, 1);
    free(scene);
}

static inspan_status_t give(scene_t *scene, inspan_status_t encoded)
{
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t bytes = 0, whole = 0;
    assert_int_equal(encoded, INSPAN_OK);
    assert_int_equal(local_peek(frame, sizeof frame, &type, &body, &bytes, &whole), INSPAN_OK);
    return agent_core_frame(scene->core, scene->now, scene->worker, type, body, bytes);
}

static inspan_status_t give_hello(scene_t *scene)
{
    size_t n = 0;
    local_hello_t hello = {.major = LOCAL_MAJOR, .minor = LOCAL_MINOR, .pid = 4242, .incarnation = 99};
    return give(scene, local_encode_hello(&hello, frame, sizeof frame, &n));
}

static inspan_status_t give_bound(scene_t *scene)
{
    size_t n = 0;
    return give(scene, local_encode_bound(7503, frame, sizeof frame, &n));
}

static inspan_status_t give_ready(scene_t *scene, uint64_t view)
{
    size_t n = 0;
    return give(scene, local_encode_ready(view, frame, sizeof frame, &n));
}

static inspan_status_t give_state(scene_t *scene, bool full)
{
    size_t n = 0;
    return give(scene, local_encode_state(full, frame, sizeof frame, &n));
}

static inspan_status_t give_tick(scene_t *scene, uint64_t step)
{
    size_t n = 0;
    inspan_progress_t progress = {.step = step, .steps = 10};
    return give(scene, local_encode_tick(&progress, frame, sizeof frame, &n));
}

static inspan_status_t give_blame(scene_t *scene, uint64_t view, int32_t rank)
{
    size_t n = 0;
    local_blame_t blame = {.view = view, .cause = {.status = INSPAN_PEER_LOST, .rank = rank}};
    return give(scene, local_encode_blame(&blame, frame, sizeof frame, &n));
}

static inspan_status_t give_saved(scene_t *scene, uint64_t step, uint64_t view)
{
    size_t n = 0;
    local_saved_t saved = {.step = step, .view = view};
    snprintf(saved.folder, sizeof saved.folder, "out/step-%u", (unsigned)step);
    return give(scene, local_encode_saved(&saved, frame, sizeof frame, &n));
}

static inspan_status_t give_span(scene_t *scene, uint64_t first, uint64_t last)
{
    static local_ledger_t span;
    size_t n = 0;
    span = (local_ledger_t){.batch = 8, .first_step = first, .last_step = last, .view = 1, .n = 1};
    span.shares[0] = (local_share_t){.rank = 4, .n = 8};
    return give(scene, local_encode_ledger(&span, frame, sizeof frame, &n));
}

static inspan_status_t give_end(scene_t *scene, local_frame_type_t type)
{
    static local_end_t end;
    size_t n = 0;
    snprintf(end.text, sizeof end.text, "{}");
    return give(scene, local_encode_end(type, &end, frame, sizeof frame, &n));
}

static void announce(scene_t *scene, uint64_t number)
{
    inspan_member_t members[2] = {{.number = 1, .node = "a", .pace_sample_ns = 77},
                                  {.number = 4, .node = "attic"}};
    local_view_t view = {.view = number, .rank = 1, .world = 2, .members = members, .first = number == 1};
    agent_core_view(scene->core, scene->now, 7, 4, &view);
}

/* Worker 4 of job 7, the second member of view 1, trains and is full. */
static scene_t *run(void)
{
    scene_t *scene = open_scene();
    assert_int_equal(agent_core_start(scene->core, scene->now, 7, 4, 5 * S, scene), INSPAN_OK);
    agent_core_prepared(scene->core, scene->now, scene->serial, INSPAN_OK, NULL);
    assert_int_equal(give_hello(scene), INSPAN_OK);
    assert_int_equal(give_bound(scene), INSPAN_OK);
    announce(scene, 1);
    assert_int_equal(give_ready(scene, 1), INSPAN_OK);
    assert_int_equal(give_state(scene, true), INSPAN_OK);
    assert_int_equal(give_tick(scene, 1), INSPAN_OK);
    assert_int_equal(scene->state, AGENT_STATE_RUNNING);
    assert_true(scene->full);
    return scene;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_views_and_blame(void **state)
{
    (void)state;
    scene_t *scene = run();
    assert_int_equal(give_blame(scene, 1, 1), INSPAN_OK);
    assert_true(scene->has_blame);
    assert_int_equal(scene->blame_view, 1);
    assert_int_equal(scene->blamed, 1);
    give_tick(scene, 2);
    assert_true(scene->worker->has_blame); /* kept: the registration repeats it */
    announce(scene, 2);
    assert_int_equal(scene->sent[LOCAL_VIEW], 2);
    assert_int_equal(scene->sent_view, 2);
    assert_false(scene->worker->has_blame);
    announce(scene, 1);
    assert_int_equal(scene->sent[LOCAL_VIEW], 2); /* an older one */
    assert_int_equal(give_blame(scene, 1, 1), INSPAN_OK);
    assert_false(scene->worker->has_blame); /* it has not heard of view 2 yet */
    int reports = scene->reports;
    assert_int_equal(give_ready(scene, 2), INSPAN_OK);
    assert_int_equal(scene->reports, reports + 1); /* at once: newcomers wait for it */
    assert_int_equal(scene->view, 2);
    assert_int_equal(scene->state, AGENT_STATE_RUNNING);
    agent_core_disconnected(scene->core, scene->now, scene->worker);
    announce(scene, 3); /* while it is not connected */
    assert_int_equal(scene->sent[LOCAL_VIEW], 2);
    give_hello(scene);
    give_bound(scene);
    assert_int_equal(scene->sent_view, 3);
    close_scene(scene);
}

static inspan_status_t give_left(scene_t *scene, uint64_t view)
{
    size_t n = 0;
    return give(scene, local_encode_left(view, frame, sizeof frame, &n));
}

static void test_leaving(void **state)
{
    (void)state;
    scene_t *scene = run();
    agent_core_leave(scene->core, scene->now, 7, 4, "drained");
    assert_int_equal(scene->sent[LOCAL_LEAVE], 1);
    agent_core_disconnected(scene->core, scene->now, scene->worker);
    give_hello(scene);
    assert_int_equal(scene->sent[LOCAL_LEAVE], 2); /* it may not have heard */
    assert_int_equal(give_left(scene, 1), INSPAN_OK);
    assert_int_equal(scene->state, AGENT_STATE_LEFT);
    assert_int_equal(scene->left_view, 1);
    const int reports = scene->reports;
    assert_int_equal(give_left(scene, 1), INSPAN_OK); /* said again: its agent was away */
    assert_int_equal(scene->reports, reports);
    give_tick(scene, 5);
    assert_int_equal(scene->state, AGENT_STATE_LEFT);
    assert_int_equal(scene->sent[LOCAL_STOP], 0);
    agent_core_stop(scene->core, scene->now, 7, 4, false, "left");
    assert_int_equal(scene->sent[LOCAL_STOP], 1);
    close_scene(scene);
}

/* G3: in a newer view it may have been taken back. */
static void test_an_old_left_is_void(void **state)
{
    (void)state;
    scene_t *scene = run();
    agent_core_leave(scene->core, scene->now, 7, 4, "drained");
    assert_int_equal(give_left(scene, 1), INSPAN_OK);
    assert_int_equal(scene->worker->state, AGENT_STATE_LEFT);
    announce(scene, 1); /* by a manager that was restarted: the same view */
    assert_int_equal(scene->worker->state, AGENT_STATE_LEFT);
    announce(scene, 2);
    assert_int_equal(scene->worker->state, AGENT_STATE_RUNNING);
    assert_int_equal(give_left(scene, 1), INSPAN_OK); /* it has not heard of view 2 yet */
    assert_int_equal(scene->worker->state, AGENT_STATE_RUNNING);
    assert_int_equal(give_ready(scene, 2), INSPAN_OK);
    assert_int_equal(scene->state, AGENT_STATE_RUNNING);
    assert_int_equal(give_left(scene, 2), INSPAN_OK);
    assert_int_equal(scene->state, AGENT_STATE_LEFT);
    assert_int_equal(scene->left_view, 2);
    size_t n = 0;
    assert_int_equal(give(scene, local_encode_empty(LOCAL_LEFT, frame, sizeof frame, &n)), INSPAN_CORRUPT);
    close_scene(scene);
}

static void test_leave_before_it_trains(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    agent_core_start(scene->core, scene->now, 7, 4, 5 * S, scene);
    agent_core_leave(scene->core, scene->now, 7, 4, "drained");
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    close_scene(scene);
}

static void test_the_agent_is_asked_to_end(void **state)
{
    (void)state;
    scene_t *scene = run();
    assert_true(agent_core_leave_all(scene->core, scene->now, "the agent was stopped"));
    assert_int_equal(scene->sent[LOCAL_LEAVE], 1);
    assert_int_equal(scene->last_signal, 0);
    scene->worker->elastic = false; /* a fixed job's cannot */
    assert_false(agent_core_leave_all(scene->core, scene->now, "the agent was stopped"));
    assert_int_equal(scene->last_signal, SIGTERM);
    close_scene(scene);
}

static void test_artifacts(void **state)
{
    (void)state;
    scene_t *scene = run();
    const agent_result_t files[2] = {{.name = "model.safetensors", .bytes = 9}, {.name = "manifest.json"}};
    give_saved(scene, 2, 1);
    give_saved(scene, 2, 1); /* said again by a worker whose connection broke */
    give_saved(scene, 4, 1);
    assert_int_equal(scene->stores, 1); /* one at a time */
    assert_string_equal(scene->stored, "out/step-2");
    agent_core_link(scene->core, scene->now, false);
    agent_core_stored(scene->core, scene->now, scene->serial, INSPAN_OK, NULL, files, 2);
    assert_int_equal(scene->stores, 2);
    assert_int_equal(scene->registers, 0);
    agent_core_link(scene->core, scene->now, true); /* the manager is back */
    assert_int_equal(scene->registers, 1);
    assert_int_equal(scene->registered_step, 2);
    assert_int_equal(scene->registered_files, 2);
    agent_core_link(scene->core, scene->now, false); /* it was killed before its answer came */
    agent_core_link(scene->core, scene->now, true);
    assert_int_equal(scene->registers, 2);
    agent_core_registered(scene->core, scene->now, 7, 4, 2, false, INSPAN_OK, "");
    assert_int_equal(scene->sent[LOCAL_REGISTERED], 1);
    assert_int_equal(scene->answer.step, 2);
    assert_int_equal(scene->answer.status, INSPAN_OK);
    agent_core_registered(scene->core, scene->now, 7, 4, 2, false, INSPAN_IO, "twice");
    assert_int_equal(scene->sent[LOCAL_REGISTERED], 1);
    give_saved(scene, 2, 1); /* the answer was lost on the way */
    assert_int_equal(scene->sent[LOCAL_REGISTERED], 2);
    assert_int_equal(scene->stores, 2);
    agent_core_stored(scene->core, scene->now, scene->serial, INSPAN_IO, "disk full", NULL, 0);
    assert_int_equal(scene->sent[LOCAL_REGISTERED], 3);
    assert_int_equal(scene->answer.step, 4);
    assert_int_equal(scene->answer.status, INSPAN_IO);
    assert_string_equal(scene->answer.text, "disk full");
    for (uint64_t step = 6; step < 30; step += 2) { /* the answered ones make room */
        give_saved(scene, step, 1);
        agent_core_stored(scene->core, scene->now, scene->serial, INSPAN_OK, NULL, files, 2);
        agent_core_registered(scene->core, scene->now, 7, 4, step, false, INSPAN_MISMATCH, "view 1 is over");
        assert_int_equal(scene->answer.step, step);
        assert_int_equal(scene->answer.status, INSPAN_MISMATCH);
    }
    give_end(scene, LOCAL_DONE); /* what counts is registered: no results besides */
    assert_int_equal(scene->uploads, 0);
    os_exit_t result = {.code = 0};
    agent_core_exited(scene->core, scene->now, scene->worker, &result);
    assert_int_equal(scene->state, AGENT_STATE_DONE);
    close_scene(scene);
}

static void test_a_worker_dies_while_its_checkpoint_is_stored(void **state)
{
    (void)state;
    scene_t *scene = run();
    give_saved(scene, 2, 1);
    os_exit_t result = {.code = -1, .signal = SIGKILL};
    agent_core_exited(scene->core, scene->now, scene->worker, &result);
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_int_equal(scene->abandons, 1);
    assert_int_equal(agent_core_running(scene->core), 1); /* the store's thread reads its folder */
    agent_core_stored(scene->core, scene->now, scene->serial, INSPAN_ABORTED, "given up", NULL, 0);
    assert_int_equal(agent_core_running(scene->core), 0);
    assert_int_equal(scene->registers, 0);
    assert_int_equal(scene->worker->phase, AGENT_GONE);
    close_scene(scene);
}

static void test_ledger(void **state)
{
    (void)state;
    scene_t *scene = run();
    give_span(scene, 1, 1);
    give_span(scene, 1, 2);
    give_span(scene, 3, 3);
    assert_int_equal(scene->spans, 3);
    assert_int_equal(scene->span_first, 3);
    agent_core_link(scene->core, scene->now, false);
    give_span(scene, 3, 9);
    assert_int_equal(scene->spans, 3);
    agent_core_link(scene->core, scene->now, true);
    assert_int_equal(scene->spans, 5); /* each once, the newest of it */
    assert_int_equal(scene->span_last, 9);
    for (uint64_t step = 10; step < 10 + 2 * AGENT_SPANS; step++) give_span(scene, step, step);
    assert_int_equal(scene->worker->n_spans, AGENT_SPANS);
    assert_int_equal(scene->span_last, 9 + 2 * AGENT_SPANS);
    close_scene(scene);
}

static void test_notes(void **state)
{
    (void)state;
    scene_t *scene = run();
    size_t n = 0;
    assert_int_equal(local_encode_note("the disk is full", frame, sizeof frame, &n), INSPAN_OK);
    assert_int_equal(give(scene, INSPAN_OK), INSPAN_OK);
    assert_string_equal(scene->note, "the disk is full");
    agent_core_link(scene->core, scene->now, false); /* it is not kept */
    assert_int_equal(give(scene, local_encode_note("lost", frame, sizeof frame, &n)), INSPAN_OK);
    agent_core_link(scene->core, scene->now, true);
    assert_string_equal(scene->note, "the disk is full");
    close_scene(scene);
}

static inspan_status_t give_verdict(scene_t *scene, uint64_t step)
{
    size_t n = 0;
    local_verdict_t verdict = {.step = step, .about = 4, .cause = LOCAL_CAUSE_QUOTA, .factor = 0.3};
    snprintf(verdict.evidence, sizeof verdict.evidence, "CPU quota 0.24 cores, was 0.80");
    return give(scene, local_encode_verdict(&verdict, frame, sizeof frame, &n));
}

static void test_verdicts(void **state)
{
    (void)state;
    scene_t *scene = run();
    assert_int_equal(give_verdict(scene, 50), INSPAN_OK);
    assert_int_equal(scene->verdicts, 1);
    assert_int_equal(scene->verdict.step, 50);
    assert_string_equal(scene->verdict.evidence, "CPU quota 0.24 cores, was 0.80");
    agent_core_link(scene->core, scene->now, false); /* it is kept for a manager that is away */
    for (uint64_t step = 51; step < 51 + 2 * AGENT_VERDICTS; step++) give_verdict(scene, step);
    assert_int_equal(scene->verdicts, 1);
    agent_core_link(scene->core, scene->now, true);
    assert_int_equal(scene->verdicts, 1 + AGENT_VERDICTS); /* the newest */
    assert_int_equal(scene->verdict.step, 50 + 2 * AGENT_VERDICTS);
    close_scene(scene);
}

/* A worker of an older Inspan, taken over by a newer agent, would not know what stands behind the members. */
static void test_paces_of_a_view(void **state)
{
    (void)state;
    scene_t *scene = run();
    announce(scene, 8);
    assert_int_equal(scene->sent_view, 8);
    assert_int_equal(scene->pace, 77);
    scene->worker->minor = 1;
    announce(scene, 9);
    assert_int_equal(scene->sent_view, 9);
    assert_int_equal(scene->pace, 0);
    close_scene(scene);
}

static void test_frames_that_cannot_be(void **state)
{
    (void)state;
    static const local_frame_type_t wrong[] = {LOCAL_BLAME, LOCAL_SAVED,   LOCAL_LEDGER,
                                               LOCAL_STATE, LOCAL_LEAVE,   LOCAL_REGISTERED,
                                               LOCAL_NOTE,  LOCAL_VERDICT, LOCAL_VITALS};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        scene_t *scene = run();
        size_t n = 0;
        assert_int_equal(give(scene, local_encode_empty(wrong[i], frame, sizeof frame, &n)), INSPAN_CORRUPT);
        assert_int_equal(scene->last_signal, SIGKILL);
        close_scene(scene);
    }
}

/* A worker of an earlier life of the agent: nothing is said of it before it has told all again. */
static void test_adopted(void **state)
{
    (void)state;
    scene_t *scene = open_scene();
    assert_int_equal(agent_core_adopt(scene->core, scene->now, 7, 4, 5 * S, 4242, scene, &scene->worker),
                     INSPAN_OK);
    agent_worker_t *other = NULL;
    assert_int_equal(agent_core_adopt(scene->core, scene->now, 7, 4, 5 * S, 4243, scene, &other),
                     INSPAN_EXISTS);
    assert_false(agent_core_settled(scene->core));
    give_hello(scene);
    give_bound(scene);
    give_ready(scene, 3);
    give_state(scene, true);
    give_blame(scene, 3, 1);
    assert_false(agent_core_settled(scene->core));
    give_tick(scene, 8);
    assert_true(agent_core_settled(scene->core));
    assert_int_equal(scene->state, AGENT_STATE_RUNNING);
    assert_int_equal(scene->view, 3);
    assert_true(scene->full && scene->has_blame);
    announce(scene, 4);
    assert_int_equal(scene->sent_view, 4);
    close_scene(scene);

    scene = open_scene(); /* one that does not call again is frozen, or another process */
    agent_core_adopt(scene->core, scene->now, 7, 4, 5 * S, 4242, scene, &scene->worker);
    for (int i = 0; i < 60; i++) agent_core_tick(scene->core, scene->now += S / 10);
    assert_int_equal(scene->state, AGENT_STATE_FAILED);
    assert_int_equal(scene->last_signal, SIGKILL);
    assert_true(agent_core_settled(scene->core));
    close_scene(scene);
}

int main(void)
{
    log_set_level(LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views_and_blame),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_an_old_left_is_void),
        cmocka_unit_test(test_leave_before_it_trains),
        cmocka_unit_test(test_the_agent_is_asked_to_end),
        cmocka_unit_test(test_artifacts),
        cmocka_unit_test(test_a_worker_dies_while_its_checkpoint_is_stored),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_paces_of_a_view),
        cmocka_unit_test(test_frames_that_cannot_be),
        cmocka_unit_test(test_adopted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
