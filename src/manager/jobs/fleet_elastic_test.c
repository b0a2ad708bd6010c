/* Elastic jobs in the fleet: views, newcomers, checkpoints, the ledger, nodes that are rested, restarts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/jobs/fleet_world_test.h"

static inspan_error_t err;

static fleet_node_t *join(uint32_t k)
{
    return join_with(k, NULL);
}

static uint64_t run_elastic(uint32_t nodes, uint32_t min, uint32_t max)
{
    Inspan__V1__SubmitRequest request = request_for(nodes, 5 * S);
    fleet_job_t *job = NULL;
    request.min_nodes = min;
    request.max_nodes = max;
    for (uint32_t k = 0; k < nodes; k++) join(k);
    if (fleet_submit(world.fleet, &request, world.now, &job, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_true(job->control.elastic);
    uint64_t id = job->control.id;
    for (uint32_t r = 0; r < nodes; r++) tell(id, r, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    assert_true(world.first);
    for (uint32_t r = 0; r < nodes; r++) tell(id, r, INSPAN__V1__WORKER_STATE__WORKER_READY);
    open_view(id);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    return id;
}

static void only_agents_that_know_how_take_part(void **state)
{
    (void)state;
    attach(0); /* of an older Inspan */
    join(1);
    uint64_t id = submit(2, 5 * S);
    assert_false(fleet_job(world.fleet, id)->control.elastic);
    fleet_cancel(world.fleet, id, "over", world.now, &(fleet_job_t *){NULL}, &err);
}

static void notes_are_shown_to_who_watches(void **state)
{
    (void)state;
    uint64_t id = run_elastic(2, 1, 2);
    Inspan__V1__Note note = INSPAN__V1__NOTE__INIT;
    note.job_id = id;
    note.rank = 1;
    note.text = (char *)(uintptr_t) "the checkpoint of step 5 was not written: the disk is full";
    fleet_note(world.fleet, node_of(id, 1), &note, world.now);
    assert_string_equal(world.news,
                        "rank 1 (n1): the checkpoint of step 5 was not written: the disk is full");
    note.text = (char *)(uintptr_t) "x";
    fleet_note(world.fleet, node_of(id, 0), &note, world.now); /* another node's worker */
    note.rank = 77;
    fleet_note(world.fleet, node_of(id, 1), &note, world.now);
    note.job_id = id + 1;
    fleet_note(world.fleet, node_of(id, 1), &note, world.now);
    assert_non_null(strstr(world.news, "the disk is full"));
}

static void a_job_loses_a_worker_and_gets_another(void **state)
{
    (void)state;
    uint64_t id = run_elastic(3, 1, 3);
    const fleet_job_t *job = fleet_job(world.fleet, id);
    tell_failed(id, 1, 0, 9, NULL);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    assert_int_equal(world.members, 2);
    assert_false(world.first);
    assert_string_equal(world.news,
                        "view 2: lost worker 1 on node n1 (killed by signal 9 (Killed)); 2 members go on");
    open_view(id);
    fleet_node_t *node = node_of(id, 1);
    assert_string_equal(fleet_node_state(world.fleet, node), "cooling");
    pass(S, NULL, 0); /* of the test's clock: the node rests in real time */
    assert_int_equal(job->control.world, 3);
    assert_int_equal(fleet_unban(world.fleet, "n1", &node, &err), INSPAN_OK);
    assert_string_equal(fleet_node_state(world.fleet, node), "ready");
    fleet_tick(world.fleet, world.now);
    assert_int_equal(job->control.world, 4);
    assert_int_equal(world.newcomers, 1);
    tell(id, 3, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    pass(200 * MS, NULL, 0);
    assert_int_equal(job->control.view, 3);
    assert_int_equal(world.members, 3);
    assert_string_equal(world.news, "view 3: worker 3 on node n1 joins; 3 members");
    fleet_info_t *info = fleet_job_info(job, true);
    assert_int_equal(fleet_info_message(info)->workers_lost, 1);
    assert_int_equal(fleet_info_message(info)->n_ranks, 4);
    fleet_info_free(info);
}

static void a_machine_that_ran_out_of_memory_is_not_tried_again(void **state)
{
    (void)state;
    uint64_t id = run_elastic(2, 1, 2);
    Inspan__V1__Failure failure = INSPAN__V1__FAILURE__INIT;
    failure.status = INSPAN_NO_MEMORY;
    failure.rank = 1;
    failure.text = (char *)"out of memory on node n1, limit 300 MB";
    tell_failed(id, 1, 0, 9, &failure);
    open_view(id);
    fleet_node_t *node = NULL;
    assert_int_equal(fleet_unban(world.fleet, "n1", &node, &err), INSPAN_OK);
    fleet_tick(world.fleet, world.now);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 2);
    join(3);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3);
    assert_ptr_equal(node_of(id, 2), fleet_node_at(world.fleet, 2));
}

static void a_waiting_job_comes_before_one_that_grows(void **state)
{
    (void)state;
    uint64_t first = run_elastic(1, 1, 3);
    uint64_t second = submit(2, 5 * S);
    join(5); /* kept for the one that waits for two */
    assert_int_equal(fleet_job(world.fleet, first)->control.world, 1);
    join(6);
    assert_int_equal(state_of(second), CONTROL_STARTING);
    join(7);
    assert_int_equal(fleet_job(world.fleet, first)->control.world, 2);
}

static Inspan__V1__Artifact artifact_of(uint64_t job, uint32_t rank, uint64_t step, bool result)
{
    static Inspan__V1__ResultFile file, *files[] = {&file};
    static char hash[33];
    inspan__v1__result_file__init(&file);
    snprintf(hash, sizeof hash, "0123456789abcdef%016x", (unsigned)step);
    file.name = (char *)"model.safetensors";
    file.hash = hash;
    Inspan__V1__Artifact artifact = INSPAN__V1__ARTIFACT__INIT;
    artifact.job_id = job;
    artifact.rank = rank;
    artifact.view = fleet_job(world.fleet, job)->control.view;
    artifact.step = step;
    artifact.result = result;
    artifact.files = files;
    artifact.n_files = 1;
    return artifact;
}

static inspan_status_t save(const Inspan__V1__Artifact *artifact)
{
    Inspan__V1__ArtifactAnswer answer;
    fleet_artifact(world.fleet, node_of(artifact->job_id, artifact->rank), artifact, world.now, &answer,
                   &err);
    assert_int_equal(answer.step, artifact->step);
    return (inspan_status_t)answer.status;
}

static void a_lost_job_goes_on_from_its_last_checkpoint(void **state)
{
    (void)state;
    uint64_t id = run_elastic(1, 1, 1);
    Inspan__V1__Artifact artifact = artifact_of(id, 0, 100, false);
    assert_int_equal(save(&artifact), INSPAN_NOT_FOUND); /* its files are not here */
    world.files = true;
    assert_int_equal(save(&artifact), INSPAN_OK);
    assert_true(fleet_names_file(world.fleet, artifact.files[0]->hash));
    for (uint64_t step = 200; step <= 500; step += 100) {
        artifact = artifact_of(id, 0, step, false);
        assert_int_equal(save(&artifact), INSPAN_OK);
    }
    assert_int_equal(fleet_job(world.fleet, id)->n_checkpoints, FLEET_CHECKPOINTS);
    assert_int_equal(world.dropped, 2); /* of those that are not kept */
    artifact.files[0]->name = (char *)"../evil";
    assert_int_equal(save(&artifact), INSPAN_INVALID);
    artifact.files[0]->name = (char *)"model.safetensors";
    tell_failed(id, 0, 0, 9, NULL);
    assert_int_equal(state_of(id), CONTROL_STARTING);
    artifact.step = 600; /* the old lineage is over */
    assert_int_equal(save(&artifact), INSPAN_ABORTED);
    restart(); /* all of it is stored */
    join(0);
    fleet_node_t *node = NULL;
    assert_int_equal(fleet_unban(world.fleet, "n0", &node, &err), INSPAN_OK);
    fleet_tick(world.fleet, world.now);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 2);
    assert_int_equal(world.resume, 500);
    assert_int_equal(world.newcomers, 0);
    tell(id, 1, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    assert_true(world.first);
    open_view(id);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    artifact = artifact_of(id, 1, 600, true);
    assert_int_equal(save(&artifact), INSPAN_OK);
    tell(id, 1, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    assert_int_equal(state_of(id), CONTROL_DONE);
    restart();
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, id), true);
    assert_int_equal(fleet_info_message(info)->n_results, 1);
    assert_int_equal(fleet_info_message(info)->n_checkpoints, FLEET_CHECKPOINTS);
    assert_int_equal(fleet_info_message(info)->workers_lost, 1);
    fleet_info_free(info);
    info = fleet_job_info(fleet_job(world.fleet, id), false);
    assert_int_equal(fleet_info_message(info)->n_checkpoints, 1);
    const fleet_job_t *known = fleet_job(world.fleet, id);
    assert_int_equal(fleet_info_message(info)->checkpoints[0]->step,
                     known->checkpoints[known->n_checkpoints - 1]->step);
    fleet_info_free(info);
}

static void a_view_that_cannot_be_stored_is_not_announced(void **state)
{
    (void)state;
    uint64_t id = run_elastic(3, 1, 3);
    fleet_node_t *nodes[] = {node_of(id, 0), node_of(id, 1), node_of(id, 2)};
    uint32_t before = world.views;
    break_disk(true);
    tell_failed(id, 2, 0, 9, NULL);
    pass(3 * S, nodes, 3);
    assert_int_equal(world.views, before);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    break_disk(false);
    pass(2 * S, nodes, 3);
    assert_int_equal(world.views, before + 2);
    assert_int_equal(world.members, 2);
    uint64_t view = fleet_job(world.fleet, id)->control.view;
    assert_true(view > 1);
    restart();
    assert_int_equal(fleet_job(world.fleet, id)->control.view, view);
    assert_int_equal(fleet_job(world.fleet, id)->control.members.n, 2);
}

static void a_drained_node_is_left_and_stays_drained(void **state)
{
    (void)state;
    uint64_t id = run_elastic(2, 1, 2);
    fleet_node_t *node = NULL;
    assert_int_equal(fleet_drain(world.fleet, "nobody", world.now, &node, &err), INSPAN_NOT_FOUND);
    assert_int_equal(fleet_drain(world.fleet, "n1", world.now, &node, &err), INSPAN_OK);
    assert_string_equal(fleet_node_state(world.fleet, node), "drained");
    assert_int_equal(world.leaves, 1);
    Inspan__V1__WorkerReport left = report_of(id, 1, INSPAN__V1__WORKER_STATE__WORKER_LEFT);
    fleet_report(world.fleet, node, &left, world.now); /* of no view: void */
    assert_int_equal(fleet_job(world.fleet, id)->control.view, 1);
    left.left_view = 1;
    fleet_report(world.fleet, node, &left, world.now);
    assert_string_equal(world.news, "view 2: worker 1 on node n1 left; 1 member goes on");
    assert_int_equal(world.kills, 0);
    tell_failed(id, 1, 0, 0, NULL);
    assert_int_equal(rest_losses(&node->rest, world.now), 0);
    open_view(id);
    restart();
    join(1);
    Inspan__V1__WorkerReport report = running(id, 0);
    join_with(0, &report);
    pass(S, NULL, 0);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 2); /* not used, also by this manager */
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    assert_int_equal(fleet_unban(world.fleet, "n1", &node, &err), INSPAN_OK);
    fleet_tick(world.fleet, world.now);
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3);
}

static void gives(fleet_node_t *node, double allowed)
{
    Inspan__V1__Heartbeat beat = INSPAN__V1__HEARTBEAT__INIT;
    Inspan__V1__Vitals vitals = INSPAN__V1__VITALS__INIT;
    vitals.allowed = allowed;
    vitals.limit = (char *)"on battery";
    beat.vitals = &vitals;
    fleet_heartbeat(world.fleet, node, &beat, world.now);
    fleet_tick(world.fleet, world.now);
}

static void a_node_that_its_owner_keeps_gets_no_work(void **state)
{
    (void)state;
    uint64_t id = run_elastic(3, 1, 3);
    fleet_node_t *node = node_of(id, 2), *last = NULL;
    gives(node, 0); /* its agent asks the worker to leave */
    assert_string_equal(fleet_node_state(world.fleet, node), "busy");
    Inspan__V1__WorkerReport left = report_of(id, 2, INSPAN__V1__WORKER_STATE__WORKER_LEFT);
    left.left_view = 1;
    fleet_report(world.fleet, node, &left, world.now);
    assert_string_equal(world.news, "view 2: worker 2 on node n2 left; 2 members go on");
    tell_failed(id, 2, 0, 0, NULL);
    open_view(id);
    fleet_node_t *nodes[] = {node_of(id, 0), node_of(id, 1)};
    pass(2 * S, nodes, 2);
    assert_string_equal(fleet_node_state(world.fleet, node), "kept");
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 3); /* no newcomer came there */
    assert_int_equal(fleet_job(world.fleet, id)->control.members.n, 2);
    gives(node, NAN); /* nonsense limits nothing */
    assert_int_equal(fleet_job(world.fleet, id)->control.world, 4);
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Vitals vitals = INSPAN__V1__VITALS__INIT; /* allowed: 0 */
    message.vitals = &vitals;
    message.protocol_minor = FLEET_ELASTIC;
    assert_int_equal(try_attach(4, &message, &last, &err), INSPAN_OK);
    assert_string_equal(fleet_node_state(world.fleet, last), "kept"); /* from the first moment */
    gives(last, 0.25);
    assert_string_equal(fleet_node_state(world.fleet, last), "ready");
    assert_true(last->vitals.allowed == 0.25);
}

static void a_restarted_manager_announces_its_view_again(void **state)
{
    (void)state;
    uint64_t id = run_elastic(3, 1, 3);
    tell_failed(id, 2, 0, 9, NULL);
    open_view(id);
    Inspan__V1__WorkerReport reports[] = {running(id, 0), running(id, 1)};
    restart();
    uint32_t before = world.views;
    for (uint32_t k = 0; k < 2; k++) join_with(k, &reports[k]);
    assert_int_equal(state_of(id), CONTROL_RUNNING);
    assert_int_equal(fleet_job(world.fleet, id)->control.view, 2);
    assert_int_equal(world.views, before + 2);
    assert_int_equal(world.members, 2);
    Inspan__V1__WorkerReport back = report_of(id, 2, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    uint32_t kills = world.kills;
    join_with(2, &back); /* one that was left out never returns */
    assert_int_equal(world.kills, kills + 1);
}

static bool count_span(void *context, const registry_span_t *span)
{
    *(uint64_t *)context += span->last_step - span->first_step + 1;
    return true;
}

static void the_ledger_is_kept(void **state)
{
    (void)state;
    uint64_t id = run_elastic(2, 1, 2);
    Inspan__V1__LedgerShare share = INSPAN__V1__LEDGER_SHARE__INIT, *shares[] = {&share};
    Inspan__V1__LedgerSpan span = INSPAN__V1__LEDGER_SPAN__INIT, *spans[] = {&span};
    Inspan__V1__LedgerSpans message = INSPAN__V1__LEDGER_SPANS__INIT;
    share.n = 64;
    span.view = 1;
    span.last_step = 9;
    span.n_shares = 1;
    span.shares = shares;
    message.job_id = id;
    message.batch = 64;
    message.spans = spans;
    message.n_spans = 1;
    fleet_ledger(world.fleet, node_of(id, 0), &message, world.now);
    span.last_step = 19;
    fleet_ledger(world.fleet, node_of(id, 1), &message, world.now);
    fleet_ledger(world.fleet, join(9), &message, world.now); /* has nothing to do with this job */
    span.first_step = 30;                                    /* ends before it begins */
    fleet_ledger(world.fleet, node_of(id, 0), &message, world.now);
    uint64_t steps = 0;
    assert_int_equal(registry_each_span(world.registry, id, 0, 100, count_span, &steps, &err), INSPAN_OK);
    assert_int_equal(steps, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(only_agents_that_know_how_take_part),
        IN_A_WORLD(a_job_loses_a_worker_and_gets_another),
        IN_A_WORLD(a_machine_that_ran_out_of_memory_is_not_tried_again),
        IN_A_WORLD(a_waiting_job_comes_before_one_that_grows),
        IN_A_WORLD(notes_are_shown_to_who_watches),
        IN_A_WORLD(a_lost_job_goes_on_from_its_last_checkpoint),
        IN_A_WORLD(a_view_that_cannot_be_stored_is_not_announced),
        IN_A_WORLD(a_drained_node_is_left_and_stays_drained),
        IN_A_WORLD(a_node_that_its_owner_keeps_gets_no_work),
        IN_A_WORLD(a_restarted_manager_announces_its_view_again),
        IN_A_WORLD(the_ledger_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
