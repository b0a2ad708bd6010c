/* Verdicts on speeds, speeds kept for the next job, members that a job does without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/jobs/fleet_world_test.h"

#define MODEL "gpt-6x384h6c128-fp32-adamw"

static inspan_error_t err;

static uint64_t run_model(const char *model, uint32_t nodes, uint32_t min)
{
    Inspan__V1__SubmitRequest request = request_for(nodes, 5 * S);
    fleet_job_t *job = NULL;
    request.min_nodes = min;
    request.max_nodes = nodes;
    request.model_key = (char *)(uintptr_t)model;
    for (uint32_t k = 0; k < nodes; k++) join_with(k, NULL);
    if (fleet_submit(world.fleet, &request, world.now, &job, &err) != INSPAN_OK) fail_msg("%s", err.text);
    uint64_t id = job->control.id;
    for (uint32_t r = 0; r < nodes; r++) tell(id, r, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    for (uint32_t r = 0; r < nodes; r++) tell(id, r, INSPAN__V1__WORKER_STATE__WORKER_READY);
    open_view(id);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    return id;
}

static void tell_pace(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state, uint64_t sample_ns)
{
    Inspan__V1__WorkerReport report = running(job, rank);
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    report.state = state;
    progress.pace_sample_ns = sample_ns;
    progress.pace_step_ns = 1000;
    progress.run_samples = 8;
    report.progress = &progress;
    fleet_report(world.fleet, node_of(job, rank), &report, world.now);
}

static uint64_t stored_speed(const char *node_id, const char *model)
{
    registry_speed_t speed = {.node_id = node_id, .model_key = model, .centicores = 80};
    assert_int_equal(registry_find_speed(world.registry, &speed, &err), INSPAN_OK);
    return speed.sample_ns;
}

static Inspan__V1__Verdict slower(uint64_t job, uint32_t rank)
{
    Inspan__V1__Verdict verdict = INSPAN__V1__VERDICT__INIT;
    verdict.job_id = job;
    verdict.rank = verdict.said_by = rank;
    verdict.step = 51;
    verdict.started_step = 50;
    verdict.cause = INSPAN__V1__VERDICT_CAUSE__CAUSE_QUOTA;
    verdict.factor = 0.3;
    verdict.share_before = 57;
    verdict.share_after = 24;
    verdict.evidence = (char *)(uintptr_t) "CPU quota 0.24 cores, was 0.80";
    return verdict;
}

static void say(const Inspan__V1__Verdict *verdict)
{
    world.news[0] = '\0';
    fleet_verdict(world.fleet, node_of(verdict->job_id, verdict->said_by), verdict, world.now);
}

static size_t n_verdicts(uint64_t job)
{
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, job), true);
    size_t n = fleet_info_message(info)->n_verdicts;
    fleet_info_free(info);
    return n;
}

static void verdicts_are_told_and_kept(void **state)
{
    (void)state;
    uint64_t id = run_model("", 2, 1);
    Inspan__V1__Verdict verdict = slower(id, 0);
    say(&verdict);
    assert_string_equal(world.news, "rank 0 (n0) slowed to 0.30x since step 50: CPU quota 0.24 cores, was "
                                    "0.80; its share shrinks from 57 to 24 samples");
    say(&verdict); /* the agent says it again on a new stream */
    assert_string_equal(world.news, "");
    assert_int_equal(n_verdicts(id), 1);
    verdict.step = 101;
    verdict.started_step = 100;
    verdict.factor = 3.33;
    verdict.share_before = 24;
    verdict.share_after = 57;
    verdict.evidence = (char *)(uintptr_t) "";
    say(&verdict);
    assert_string_equal(world.news, "rank 0 (n0) is 3.33x as fast as before since step 100: its CPU quota "
                                    "changed; its share grows from 24 to 57 samples");
    verdict.evidence = (char *)(uintptr_t) "bad \x1b[31m bytes \xff";
    verdict.cause = (Inspan__V1__VerdictCause)99;
    verdict.share_before = verdict.share_after = 0;
    verdict.step++;
    say(&verdict);
    assert_string_equal(world.news,
                        "rank 0 (n0) is 3.33x as fast as before since step 100: bad  [31m bytes ?");
    restart();
    assert_int_equal(n_verdicts(id), 3);
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, id), true);
    assert_string_equal(fleet_info_message(info)->verdicts[0]->node, "n0");
    assert_non_null(strstr(fleet_info_message(info)->verdicts[0]->text, "slowed to 0.30x"));
    fleet_info_free(info);
    info = fleet_job_info(fleet_job(world.fleet, id), false);
    assert_int_equal(fleet_info_message(info)->n_verdicts, 0);
    fleet_info_free(info);
}

static void what_cannot_be_right_is_not_told(void **state)
{
    (void)state;
    uint64_t id = run_model("", 2, 1);
    Inspan__V1__Verdict verdict = slower(id, 1);
    fleet_verdict(world.fleet, node_of(id, 0), &verdict, world.now); /* in the name of another's worker */
    verdict.said_by = 0;
    verdict.rank = 7;
    say(&verdict);
    verdict.rank = 1;
    verdict.factor = -1;
    say(&verdict);
    verdict.factor = 0.0 / 0.0;
    say(&verdict);
    verdict.factor = 0.5;
    verdict.job_id = id + 1;
    fleet_verdict(world.fleet, node_of(id, 0), &verdict, world.now);
    assert_int_equal(n_verdicts(id), 0);
    verdict.job_id = id; /* of another member, by one who works beside it */
    say(&verdict);
    assert_int_equal(n_verdicts(id), 1);
}

static void a_flood_of_verdicts_is_cut(void **state)
{
    (void)state;
    uint64_t id = run_model("", 2, 1);
    Inspan__V1__Verdict verdict = slower(id, 0);
    uint32_t told = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        verdict.step = i;
        say(&verdict);
        told += world.news[0] != '\0';
    }
    assert_true(told >= FLEET_VERDICTS && told <= 200);
    assert_int_equal(n_verdicts(id), FLEET_VERDICTS);
    fleet_node_t *nodes[] = {node_of(id, 0), node_of(id, 1)};
    pass(11 * S, nodes, 2);
    verdict.step = 2000;
    say(&verdict);
    assert_true(world.news[0] != '\0');
}

static void it_left(uint64_t id, uint32_t rank)
{
    fleet_node_t *node = node_of(id, rank);
    Inspan__V1__WorkerReport left = report_of(id, rank, INSPAN__V1__WORKER_STATE__WORKER_LEFT);
    left.view = left.left_view = fleet_job(world.fleet, id)->control.view;
    fleet_report(world.fleet, node, &left, world.now);
    tell_failed(id, rank, 0, 0, NULL);
}

static void a_job_does_without_a_node_that_slows_it(void **state)
{
    (void)state;
    uint64_t id = run_model("", 3, 1);
    Inspan__V1__Verdict verdict = slower(id, 2);
    verdict.said_by = 0; /* the leader sees all */
    verdict.leave = true;
    verdict.factor = 1.1; /* the job without it */
    verdict.share_before = verdict.share_after = 0;
    verdict.evidence = (char *)(uintptr_t) "its link takes 1.2 s of each step";
    say(&verdict);
    assert_string_equal(world.news, "rank 2 (n2) is let go, the job is predicted to be faster without it: "
                                    "its link takes 1.2 s of each step");
    assert_int_equal(world.leaves, 1);
    verdict.rank = 1; /* one at a time: nothing to tell */
    say(&verdict);
    assert_string_equal(world.news, "");
    it_left(id, 2);
    assert_string_equal(world.news,
                        "view 2: worker 2 on node n2 left (the job is predicted to be faster without it: its "
                        "link takes 1.2 s of each step); 2 members go on");
    open_view(id);
    fleet_node_t *nodes[] = {node_of(id, 0), node_of(id, 1), node_of(id, 2)};
    assert_string_equal(fleet_node_state(world.fleet, nodes[2]), "ready"); /* for other jobs */
    pass(2 * S, nodes, 3);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3);
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, id), true);
    assert_int_equal(fleet_info_message(info)->n_left_out, 1);
    assert_string_equal(fleet_info_message(info)->left_out[0]->node, "n2");
    assert_string_equal(fleet_info_message(info)->left_out[0]->reason, "its link takes 1.2 s of each step");
    fleet_info_free(info);

    Inspan__V1__WorkerReport reports[] = {running(id, 0), running(id, 1)};
    restart(); /* it is remembered */
    for (uint32_t k = 0; k < 3; k++) join_with(k, k < 2 ? &reports[k] : NULL);
    for (uint32_t k = 0; k < 3; k++) nodes[k] = fleet_node_at(world.fleet, k);
    assert_int_equal(fleet_job(world.fleet, id)->control.left_out.n, 1);
    pass(2 * S, nodes, 3);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3);
    for (int i = 0; i < 70 && fleet_job(world.fleet, id)->control.world == 3; i++) pass(S, nodes, 3);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 4); /* it may have recovered */
}

static void gives(fleet_node_t *node, double cores, double allowed)
{
    Inspan__V1__Heartbeat beat = INSPAN__V1__HEARTBEAT__INIT;
    Inspan__V1__Vitals vitals = INSPAN__V1__VITALS__INIT;
    vitals.cores = cores;
    vitals.allowed = allowed;
    beat.vitals = &vitals;
    fleet_heartbeat(world.fleet, node, &beat, world.now);
}

static void a_node_that_recovers_is_taken_back_sooner(void **state)
{
    (void)state;
    uint64_t id = run_model(MODEL, 2, 1);
    fleet_node_t *slow = node_of(id, 1), *nodes[] = {node_of(id, 0)};
    gives(slow, 0.1, 1); /* its quota was cut */
    tell_pace(id, 1, INSPAN__V1__WORKER_STATE__WORKER_RUNNING, 900000000);
    for (int i = 0; i < 31; i++) {
        gives(slow, 0.1, 1);
        pass(S, nodes, 1);
    }
    tell_pace(id, 1, INSPAN__V1__WORKER_STATE__WORKER_RUNNING, 900000000);
    assert_int_equal(stored_speed(slow->node_id, MODEL), 0); /* that of a tenth of a core is another */
    Inspan__V1__Verdict verdict = slower(id, 1);
    verdict.leave = true;
    say(&verdict);
    it_left(id, 1);
    open_view(id);
    for (int i = 0; i < 12; i++) {
        gives(slow, 0.11, 1);
        pass(S, nodes, 1);
    }
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 2);
    gives(slow, 0.8, 0.1); /* its owner has it */
    pass(S, nodes, 1);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 2);
    gives(slow, 0.8, 1);
    pass(S, nodes, 1);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3);
}

static void an_old_prediction_is_not_acted_upon(void **state)
{
    (void)state;
    uint64_t id = run_model("", 2, 1);
    Inspan__V1__WorkerReport report = running(id, 0);
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    progress.step = 1000;
    progress.steps = 5000;
    report.progress = &progress;
    fleet_report(world.fleet, node_of(id, 0), &report, world.now);
    Inspan__V1__Verdict verdict = slower(id, 1);
    verdict.leave = true;
    say(&verdict);
    assert_true(world.news[0] != '\0'); /* that it is slower is told all the same */
    assert_null(strstr(world.news, "let go"));
    assert_int_equal(world.leaves, 0);
    verdict.step = 999;
    say(&verdict);
    assert_int_equal(world.leaves, 1);
}

static void speeds_are_kept_for_the_next_job(void **state)
{
    (void)state;
    uint64_t id = run_model(MODEL, 2, 1);
    fleet_node_t *nodes[] = {node_of(id, 0), node_of(id, 1)};
    const Inspan__V1__WorkerState runs = INSPAN__V1__WORKER_STATE__WORKER_RUNNING;
    assert_int_equal(world.pace, 0);
    tell_pace(id, 0, runs, 100000000);
    assert_int_equal(stored_speed(nodes[0]->node_id, MODEL), 0); /* of the first steps */
    pass(30 * S, nodes, 2);
    tell_pace(id, 0, runs, 120000000);
    assert_int_equal(stored_speed(nodes[0]->node_id, MODEL), 120000000);
    tell_pace(id, 0, runs, 200000000);
    assert_int_equal(stored_speed(nodes[0]->node_id, MODEL), 120000000); /* not so soon */
    tell_pace(id, 1, runs, UINT64_MAX);
    pass(30 * S, nodes, 2);
    tell_pace(id, 1, runs, UINT64_MAX); /* that is none */
    assert_int_equal(stored_speed(nodes[1]->node_id, MODEL), 0);
    tell_pace(id, 1, runs, 50000000);
    tell_pace(id, 0, runs, 130000000);
    tell_failed(id, 1, 0, 9, NULL); /* the view without it carries what was said in this job */
    assert_int_equal(world.members, 1);
    assert_int_equal(world.pace, 130000000);
    open_view(id);
    tell_pace(id, 0, INSPAN__V1__WORKER_STATE__WORKER_DONE, 140000000);
    assert_int_equal(stored_speed(nodes[0]->node_id, MODEL), 140000000); /* at the end */
    fleet_cancel(world.fleet, id, "over", world.now, &(fleet_job_t *){NULL}, &err);
    tell_failed(id, 1, 0, 0, NULL);
    restart();
    join_with(0, NULL);
    fleet_node_t *node = NULL;
    world.pace = 0;
    run_model(MODEL, 1, 1);
    assert_int_equal(world.pace, 140000000);
    (void)node;
}

static void another_model_starts_without_speeds(void **state)
{
    (void)state;
    registry_speed_t speed = {.node_id = "00000000-0000-4000-8000-000000000000",
                              .model_key = MODEL,
                              .centicores = 80,
                              .sample_ns = 5,
                              .step_ns = 6};
    assert_int_equal(registry_put_speed(world.registry, &speed, &err), INSPAN_OK);
    uint64_t id = run_model("mlp", 1, 1);
    assert_int_equal(world.pace, 0);
    tell_pace(id, 0, INSPAN__V1__WORKER_STATE__WORKER_DONE, 7);
    assert_int_equal(stored_speed(speed.node_id, "mlp"), 7);
    assert_int_equal(stored_speed(speed.node_id, MODEL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(verdicts_are_told_and_kept),
        IN_A_WORLD(what_cannot_be_right_is_not_told),
        IN_A_WORLD(a_flood_of_verdicts_is_cut),
        IN_A_WORLD(a_job_does_without_a_node_that_slows_it),
        IN_A_WORLD(a_node_that_recovers_is_taken_back_sooner),
        IN_A_WORLD(an_old_prediction_is_not_acted_upon),
        IN_A_WORLD(speeds_are_kept_for_the_next_job),
        IN_A_WORLD(another_model_starts_without_speeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
