/* The fleet: how long silence is waited for, when a node is free again, whose memory counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/protocol.h"
#include "manager/jobs/fleet_world_test.h"

/* ---- The job's failure_timeout ---- */

static void the_timeout_of_a_job_is_what_counts(void **state)
{
    (void)state;
    static const struct {
        ns_t wanted, bound;
    } cases[] = {{30 * S, 30 * S}, {5 * S, 5 * S}, {3 * S, 3 * S}, {2 * S, 2 * S}, {S, S}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fleet_node_t *nodes[] = {attach(2 * i), attach(2 * i + 1)};
        uint64_t job = run_job(2, cases[i].wanted);
        pass(cases[i].bound - TICK, nodes, 1); /* the second one is silent */
        assert_int_equal(nodes[1]->life.state, LIVENESS_ATTACHED);
        assert_int_equal(state_of(job), CONTROL_RUNNING);
        pass(TICK, nodes, 1);
        assert_int_equal(nodes[1]->life.state, LIVENESS_LOST);
        pass(10 * S, nodes, 1);
        assert_int_equal(state_of(job), CONTROL_FAILED);
        char text[160];
        snprintf(text, sizeof text, "node %s: agent silent for %.1f s", nodes[1]->name,
                 (double)cases[i].bound / S);
        assert_string_equal(reason_of(job), text);
        fleet_left(world.fleet, nodes[0], world.now);
    }
}

/* An agent that does not know of the job yet beats as the cluster wants it. */
static void an_agent_that_has_said_nothing_of_the_job_has_two_heartbeats(void **state)
{
    (void)state;
    fleet_node_t *nodes[] = {attach(0), attach(1)};
    uint64_t job = submit(2, S);
    tell(job, 0, INSPAN__V1__WORKER_STATE__WORKER_STARTED);
    pass(2500 * MS - TICK, nodes, 1);
    assert_int_equal(nodes[1]->life.state, LIVENESS_ATTACHED);
    pass(TICK, nodes, 1);
    assert_int_equal(nodes[1]->life.state, LIVENESS_LOST);
}

static void a_broken_connection_has_the_jobs_timeout_to_come_back(void **state)
{
    (void)state;
    fleet_node_t *nodes[] = {attach(0), attach(1)};
    uint64_t job = run_job(2, 30 * S);
    fleet_broke(world.fleet, nodes[1], world.now);
    pass(29 * S, nodes, 1);
    assert_int_equal(state_of(job), CONTROL_RUNNING);
    Inspan__V1__WorkerReport running = report_of(job, 1, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    Inspan__V1__WorkerReport *workers[] = {&running};
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    message.workers = workers;
    message.n_workers = 1;
    inspan_error_t err = {0};
    assert_int_equal(try_attach(1, &message, &nodes[1], &err), INSPAN_OK);
    pass(31 * S, nodes, 2);
    assert_int_equal(state_of(job), CONTROL_RUNNING);
    fleet_broke(world.fleet, nodes[1], world.now);
    pass(30 * S, nodes, 1);
    assert_int_equal(nodes[1]->life.state, LIVENESS_LOST);
}

static void a_machine_without_power_is_lost_after_the_timeout(void **state)
{
    (void)state;
    fleet_node_t *nodes[] = {attach(0), attach(1)};
    uint64_t job = run_job(2, 5 * S);
    pass(4 * S, nodes, 1);
    fleet_broke(world.fleet, nodes[1], world.now); /* cut by the transport, which had no answer */
    pass(S - TICK, nodes, 1);
    assert_int_equal(nodes[1]->life.state, LIVENESS_DISCONNECTED);
    pass(TICK, nodes, 1);
    assert_int_equal(nodes[1]->life.state, LIVENESS_LOST);
    pass(10 * S, nodes, 1);
    assert_string_equal(reason_of(job), "node n1: agent silent for 5.0 s");
}

static void a_node_without_a_job_has_the_clusters_timeout(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t job = run_job(1, 30 * S);
    tell(job, 0, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    assert_int_equal(state_of(job), CONTROL_DONE);
    pass(CLUSTER_FAILURE_TIMEOUT_NS - TICK, NULL, 0);
    assert_int_equal(node->life.state, LIVENESS_ATTACHED);
    pass(TICK, NULL, 0);
    assert_int_equal(node->life.state, LIVENESS_LOST);
}

static void after_a_restart_agents_have_twice_the_jobs_timeout(void **state)
{
    (void)state;
    attach(0);
    uint64_t job = run_job(1, 30 * S);
    restart();
    pass(60 * S - TICK, NULL, 0);
    assert_int_equal(state_of(job), CONTROL_RUNNING);
    pass(TICK, NULL, 0);
    assert_int_equal(fleet_node_at(world.fleet, 0)->life.state, LIVENESS_LOST);
    pass(10 * S, NULL, 0);
    assert_int_equal(state_of(job), CONTROL_FAILED);
    assert_string_equal(reason_of(job),
                        "node n0: its agent did not come back within 60.0 s of the manager's restart");
}

/* ---- Nodes are freed by the end of a process, not by a word about it ---- */

static void the_next_job_waits_for_the_process_to_be_gone(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t first = run_job(1, 5 * S), second = submit(1, 5 * S);
    Inspan__V1__Failure own = INSPAN__V1__FAILURE__INIT;
    own.status = INSPAN_IO;
    own.text = (char *)"no data";
    tell_failed(first, 0, 4000, 0, &own);
    pass(TICK, &node, 1);
    assert_int_equal(state_of(first), CONTROL_FAILED); /* people hear of it at once */
    assert_int_equal(state_of(second), CONTROL_QUEUED);
    tell_failed(first, 0, 0, 0, &own);
    pass(TICK, &node, 1);
    assert_int_equal(state_of(second), CONTROL_STARTING);
}

static void a_process_that_is_never_reported_gone_holds_its_node_for_a_bound_only(void **state)
{
    (void)state;
    fleet_node_t *node = attach(0);
    uint64_t first = run_job(1, 5 * S), second = submit(1, 5 * S);
    Inspan__V1__Failure own = INSPAN__V1__FAILURE__INIT;
    own.status = INSPAN_IO;
    own.text = (char *)"no data";
    tell_failed(first, 0, 4000, 0, &own);
    pass(15 * S, &node, 1);
    assert_true(world.kills > 0);
    assert_int_equal(state_of(second), CONTROL_STARTING);
}

/* ---- Memory ---- */

/* Several agents of one machine. */
static void attach_to_host(uint32_t k)
{
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    inventory.boot_id = (char *)"host";
    message.inventory = &inventory;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    if (try_attach(k, &message, &node, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

/* The memory that a job has is not given to another on the same machine. */
static void memory_of_running_jobs_counts(void **state)
{
    (void)state;
    attach_to_host(0);
    attach_to_host(1);
    attach_to_host(2);
    inspan_error_t err = {0};
    fleet_job_t *job = NULL, *next = NULL;
    Inspan__V1__SubmitRequest request = request_for(2, 5 * S);
    request.memory_bytes = 5000000000;
    assert_int_equal(fleet_submit(world.fleet, &request, world.now, &job, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "needs 5.0 GB on each of 2 nodes"));
    request.memory_bytes = 3000000000;
    assert_int_equal(fleet_submit(world.fleet, &request, world.now, &job, &err), INSPAN_OK);
    assert_int_equal(job->control.state, CONTROL_STARTING);
    request = request_for(1, 5 * S);
    request.memory_bytes = 3000000000;
    assert_int_equal(fleet_submit(world.fleet, &request, world.now, &next, &err), INSPAN_OK);
    assert_int_equal(next->control.state, CONTROL_QUEUED);
    assert_non_null(strstr(next->why, "n2 shares the 8.0 GB of its machine"));
    fleet_cancel(world.fleet, job->control.id, "enough", world.now, &job, &err);
    tell_failed(job->control.id, 0, 0, 0, NULL);
    tell_failed(job->control.id, 1, 0, 0, NULL);
    fleet_tick(world.fleet, world.now);
    assert_int_equal(next->control.state, CONTROL_STARTING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(the_timeout_of_a_job_is_what_counts),
        IN_A_WORLD(an_agent_that_has_said_nothing_of_the_job_has_two_heartbeats),
        IN_A_WORLD(a_broken_connection_has_the_jobs_timeout_to_come_back),
        IN_A_WORLD(a_machine_without_power_is_lost_after_the_timeout),
        IN_A_WORLD(a_node_without_a_job_has_the_clusters_timeout),
        IN_A_WORLD(after_a_restart_agents_have_twice_the_jobs_timeout),
        IN_A_WORLD(the_next_job_waits_for_the_process_to_be_gone),
        IN_A_WORLD(a_process_that_is_never_reported_gone_holds_its_node_for_a_bound_only),
        IN_A_WORLD(memory_of_running_jobs_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
