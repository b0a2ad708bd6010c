/* The fleet and its registry: killed between two transactions, a disk that fails, rows that are damaged. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_world_test.h"

/* ---- Killed between two transactions ---- */

/* The registry has the rank's end and not yet the job's. */
static void store_failed_rank(uint64_t job, uint32_t rank, const Inspan__V1__WorkerReport *report)
{
    const control_rank_t *from = &fleet_job(world.fleet, job)->control.ranks[rank];
    convert_packed_t packed = convert_pack(&report->base);
    registry_rank_t row = {.job = job,
                           .rank = rank,
                           .node = from->node,
                           .node_name = from->node_name,
                           .node_id = "",
                           .address = from->address,
                           .state = "failed",
                           .port = from->port,
                           .pid = from->pid,
                           .incarnation = from->incarnation,
                           .report = {packed.data, packed.bytes}};
    inspan_error_t err = {0};
    if (registry_put_rank(world.registry, &row, &err) != INSPAN_OK) fail_msg("%s", err.text);
    free(packed.data);
}

static void a_half_stored_failure_ends_its_job_after_a_restart(void **state)
{
    (void)state;
    for (uint32_t killed_last = 0; killed_last < 2; killed_last++) {
        attach(0);
        attach(1);
        uint64_t job = run_job(2, 5 * S);
        Inspan__V1__Failure echo = INSPAN__V1__FAILURE__INIT;
        echo.status = INSPAN_PEER_LOST;
        echo.rank = killed_last != 0 ? 1 : 0;
        echo.noticed_by = killed_last != 0 ? 0 : 1;
        echo.text = (char *)"connection closed by the peer";
        Inspan__V1__WorkerReport blaming =
            report_of(job, killed_last != 0 ? 0 : 1, INSPAN__V1__WORKER_STATE__WORKER_FAILED);
        blaming.failure = &echo;
        Inspan__V1__WorkerReport killed =
            report_of(job, killed_last != 0 ? 1 : 0, INSPAN__V1__WORKER_STATE__WORKER_FAILED);
        killed.exit_signal = SIGKILL;
        store_failed_rank(job, blaming.rank, &blaming);
        store_failed_rank(job, killed.rank, &killed);
        restart();
        attach(0);
        attach(1);
        pass(5 * S, NULL, 0);
        assert_int_equal(state_of(job), CONTROL_FAILED);
        assert_non_null(strstr(reason_of(job), "killed by signal 9")); /* the root, not its echo */
        restart();
        assert_int_equal(state_of(job), CONTROL_FAILED); /* and that is stored */
    }
}

static void a_blame_that_was_not_settled_is_settled_after_a_restart(void **state)
{
    (void)state;
    fleet_node_t *nodes[3] = {attach(0), attach(1), attach(2)};
    uint64_t job = run_job(3, 5 * S);
    Inspan__V1__Failure blame = INSPAN__V1__FAILURE__INIT;
    blame.status = INSPAN_PEER_LOST;
    blame.rank = 2;
    blame.text = (char *)"nothing received";
    tell_failed(job, 0, 0, 0, &blame);
    assert_int_equal(state_of(job), CONTROL_RUNNING); /* waits for the root */
    restart();
    pass(2 * S, NULL, 0);
    assert_int_equal(state_of(job), CONTROL_RUNNING); /* that no agent is back yet proves nothing */
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__WorkerReport running = report_of(job, 1, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    Inspan__V1__WorkerReport *workers[] = {&running};
    inspan_error_t err = {0};
    message.workers = workers;
    message.n_workers = 1;
    nodes[0] = attach(0);
    assert_int_equal(try_attach(1, &message, &nodes[1], &err), INSPAN_OK);
    running.rank = 2;
    assert_int_equal(try_attach(2, &message, &nodes[2], &err), INSPAN_OK);
    pass(S, nodes, 3);
    assert_true(state_of(job) >= CONTROL_ENDING);
    assert_int_equal(fleet_job(world.fleet, job)->control.cause.rank, 2);
    assert_true(world.kills >= 2);
    tell_failed(job, 1, 0, SIGKILL, NULL);
    tell_failed(job, 2, 0, SIGKILL, NULL);
    assert_int_equal(state_of(job), CONTROL_FAILED);
    assert_non_null(strstr(reason_of(job), "nothing received"));
}

static void a_half_stored_success_is_one(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t job = run_job(1, 5 * S);
    Inspan__V1__WorkerReport done = report_of(job, 0, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    done.summary_json = (char *)"{}";
    convert_packed_t packed = convert_pack(&done.base);
    const control_rank_t *from = &fleet_job(world.fleet, job)->control.ranks[0];
    registry_rank_t row = {.job = job,
                           .node = node->handle,
                           .node_name = from->node_name,
                           .node_id = "",
                           .address = from->address,
                           .state = "done",
                           .report = {packed.data, packed.bytes}};
    inspan_error_t err = {0};
    assert_int_equal(registry_put_rank(world.registry, &row, &err), INSPAN_OK);
    free(packed.data);
    restart();
    pass(S, NULL, 0);
    assert_int_equal(state_of(job), CONTROL_DONE);
    restart();
    assert_int_equal(state_of(job), CONTROL_DONE);
}

/* ---- A disk that fails ---- */

static void a_cancellation_that_is_not_stored_is_not_acknowledged(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t job = run_job(1, 5 * S);
    fleet_job_t *found = NULL;
    inspan_error_t err = {0};
    break_disk(true);
    inspan_status_t status = fleet_cancel(world.fleet, job, "by a test", world.now, &found, &err);
    break_disk(false);
    assert_int_equal(status, INSPAN_IO);
    pass(2 * S, &node, 1); /* tried again, now with success */
    tell_failed(job, 0, 0, SIGTERM, NULL);
    pass(S, &node, 1);
    assert_int_equal(state_of(job), CONTROL_CANCELLED);
    assert_int_equal(fleet_cancel(world.fleet, job, "again", world.now, &found, &err), INSPAN_OK);
}

static void a_cancellation_is_stored_as_soon_as_the_disk_can(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t job = run_job(1, 5 * S);
    fleet_job_t *found = NULL;
    inspan_error_t err = {0};
    break_disk(true);
    inspan_status_t status = fleet_cancel(world.fleet, job, "by a test", world.now, &found, &err);
    break_disk(false);
    assert_int_equal(status, INSPAN_IO);
    pass(2 * S, &node, 1);
    restart(); /* before its worker has left */
    Inspan__V1__WorkerReport running = report_of(job, 0, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    Inspan__V1__WorkerReport *workers[] = {&running};
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    message.workers = workers;
    message.n_workers = 1;
    world.kills = 0;
    assert_int_equal(try_attach(0, &message, &node, &err), INSPAN_OK);
    assert_true(world.kills > 0);
    pass(10 * S, &node, 1);
    assert_int_equal(state_of(job), CONTROL_CANCELLED);
}

static bool count_ends(void *context, ns_t wall, const char *text)
{
    (void)wall;
    *(uint32_t *)context += strncmp(text, "done", 4) == 0 || strncmp(text, "failed", 6) == 0;
    return true;
}

static uint32_t recorded_ends(uint64_t job)
{
    uint32_t n = 0;
    inspan_error_t err = {0};
    assert_int_equal(registry_each_event(world.registry, job, count_ends, &n, &err), INSPAN_OK);
    return n;
}

static void an_end_is_told_and_recorded_after_it_is_stored(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t job = run_job(1, 5 * S);
    break_disk(true);
    tell(job, 0, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    break_disk(false);
    assert_int_equal(world.ends, 0);
    assert_int_equal(recorded_ends(job), 0);
    assert_string_equal(control_job_text(&fleet_job(world.fleet, job)->control), "running");
    pass(2 * S, &node, 1);
    assert_int_equal(world.ends, 1);
    assert_string_equal(world.last_end, "done");
    assert_int_equal(recorded_ends(job), 1);

    job = run_job(1, 5 * S);
    tell_failed(job, 0, 0, SIGKILL, NULL);
    assert_int_equal(world.ends, 2);
    assert_int_equal(recorded_ends(job), 1);
    assert_int_equal(strncmp(world.last_end, "failed: ", 8), 0);
}

static void nothing_is_acknowledged_on_a_broken_disk(void **state)
{
    (void)state;
    attach(0);
    Inspan__V1__SubmitRequest request = request_for(1, 5 * S);
    fleet_job_t *job = NULL;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    break_disk(true);
    inspan_status_t submitted = fleet_submit(world.fleet, &request, world.now, &job, &err);
    inspan_status_t registered = try_attach(1, NULL, &node, &err);
    break_disk(false);
    assert_int_equal(submitted, INSPAN_IO);
    assert_int_equal(registered, INSPAN_IO);
    assert_int_equal(fleet_n_jobs(world.fleet), 0);
    assert_int_equal(fleet_n_nodes(world.fleet), 1);
    restart();
    assert_int_equal(fleet_n_jobs(world.fleet), 0);
    assert_int_equal(fleet_n_nodes(world.fleet), 1);
}

/* ---- Damaged rows ---- */

static bool count_event(void *context, ns_t wall, const char *text)
{
    (void)wall;
    *(uint32_t *)context += strstr(text, "cannot be read") != NULL;
    return true;
}

/* Rows that nobody can make sense of keep nothing else from being served, at this start and the next. */
static void damaged_rows_are_passed_over(void **state)
{
    (void)state;
    attach(0);
    uint64_t job = submit(2, 5 * S);
    inspan_error_t err = {0};
    registry_blob_t garbage = {"\xff\xff\xff", 3};
    registry_node_t node = {.node_id = "00000000-0000-4000-8000-000000000001",
                            .name = "n1",
                            .address = "192.0.2.1",
                            .state = "ready",
                            .registration = garbage};
    registry_job_t bad = {
        .name = "bad", .state = "running", .outcome = "done", .reason = "", .request = garbage};
    registry_job_t rankless = {.name = "r", .state = "running", .outcome = "done", .reason = ""};
    Inspan__V1__SubmitRequest request = request_for(1, 5 * S);
    convert_packed_t packed = convert_pack(&request.base);
    rankless.request = (registry_blob_t){packed.data, packed.bytes};
    registry_rank_t gap = {
        .rank = 1, .node = 1, .node_name = "n0", .node_id = "", .address = "", .state = "ready"};
    assert_int_equal(registry_put_node(world.registry, &node, &err), INSPAN_OK);
    assert_int_equal(registry_put_job(world.registry, &bad, NULL, 0, &err), INSPAN_OK);
    assert_int_equal(registry_put_job(world.registry, &rankless, &gap, 1, &err), INSPAN_OK);
    free(packed.data);
    for (uint32_t life = 1; life <= 2; life++) {
        restart();
        assert_int_equal(fleet_n_nodes(world.fleet), 2);
        assert_int_equal(fleet_n_jobs(world.fleet), 1);
        assert_int_equal(state_of(job), CONTROL_QUEUED);
        uint32_t events = 0;
        assert_int_equal(registry_each_event(world.registry, bad.id, count_event, &events, &err), INSPAN_OK);
        assert_int_equal(events, life);
        fleet_job_t *loaded = NULL;
        assert_int_equal(fleet_job_load(world.fleet, bad.id, world.now, &loaded, &err), INSPAN_CORRUPT);
        assert_null(fleet_job_or_load(world.fleet, rankless.id, world.now, &loaded, &err));
        assert_int_equal(err.status, INSPAN_CORRUPT);
    }
    attach(0);
    attach(1); /* says anew what it is */
    assert_int_equal(fleet_n_nodes(world.fleet), 2);
    fleet_tick(world.fleet, world.now);
    assert_int_equal(state_of(job), CONTROL_STARTING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(a_half_stored_failure_ends_its_job_after_a_restart),
        IN_A_WORLD(a_blame_that_was_not_settled_is_settled_after_a_restart),
        IN_A_WORLD(a_half_stored_success_is_one),
        IN_A_WORLD(a_cancellation_that_is_not_stored_is_not_acknowledged),
        IN_A_WORLD(a_cancellation_is_stored_as_soon_as_the_disk_can),
        IN_A_WORLD(an_end_is_told_and_recorded_after_it_is_stored),
        IN_A_WORLD(nothing_is_acknowledged_on_a_broken_disk),
        IN_A_WORLD(damaged_rows_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
