/*
 * The fleet without a network: messages to agents go into counters, the clock is the test's. The registry and
 * its disk are real, so that restarts and failing writes are.
 */
#include "manager/jobs/fleet.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/protocol.h"
#include "core/sched/sched.h"
#include "manager/jobs/convert.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define S    NS_PER_S
#define MS   NS_PER_MS
#define TICK (100 * MS)

typedef struct world {
    char folder[64];
    registry_t *registry;
    fleet_t *fleet;
    ns_t now;
    uint32_t starts, views, losts, stops, kills, drops, ends;
    char last_end[CONTROL_REASON_MAX + 32];
} world_t;

static world_t world;

static bool take_order(void *context, fleet_node_t *node, const Inspan__V1__AgentDown *message)
{
    (void)context;
    if (node->session == NULL) return false;
    world.starts += message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_START;
    world.views += message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_VIEW;
    world.losts += message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_LOST;
    if (message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_STOP) {
        world.stops++;
        world.kills += message->stop->kill;
    }
    return true;
}

static void take_drop(void *context, void *session, inspan_status_t status, const char *text)
{
    (void)context, (void)session, (void)status, (void)text;
    world.drops++;
}

static void take_news(void *context, fleet_job_t *job, const char *text, bool ended)
{
    (void)context, (void)job;
    if (!ended) return;
    world.ends++;
    snprintf(world.last_end, sizeof world.last_end, "%s", text != NULL ? text : "");
}

static bool have_no_file(void *context, const char *hash, uint64_t bytes)
{
    (void)context, (void)hash, (void)bytes;
    return false;
}

static void open_world(void)
{
    inspan_error_t err = {0};
    fleet_ports_t ports = {
        .send = take_order, .drop = take_drop, .job_changed = take_news, .file_present = have_no_file};
    if (registry_open(world.folder, 0, &world.registry, &err) != INSPAN_OK ||
        fleet_open(world.registry, &ports, world.now, &world.fleet, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
}

static void close_world(void)
{
    fleet_close(world.fleet);
    registry_close(world.registry);
}

/* Nothing is stored at a close: as after kill -9, only what was acknowledged is there. */
static void restart(void)
{
    close_world();
    world.now += S;
    open_world();
}

static int set_up(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.now = 1000 * S;
    /* in memory where that is possible: a thousand nodes are a thousand transactions */
    snprintf(world.folder, sizeof world.folder, "%s/inspan-fleet-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(world.folder) == NULL) return -1;
    open_world();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_world();
    return os_remove_all(world.folder, NULL) == INSPAN_OK ? 0 : -1;
}

/* No write to any file succeeds while the disk is broken. */
static void break_disk(bool broken)
{
    static struct rlimit before;
    if (broken) {
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max}), 0);
    } else {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    }
}

/* ---- Agents ---- */

typedef struct identity {
    char id[40], name[16], boot[16];
} identity_t;

static identity_t identity_of(uint32_t k)
{
    identity_t who;
    snprintf(who.id, sizeof who.id, "00000000-0000-4000-8000-%012u", k);
    snprintf(who.name, sizeof who.name, "n%u", k);
    snprintf(who.boot, sizeof who.boot, "boot-%u", k);
    return who;
}

static inspan_status_t try_attach(uint32_t k, Inspan__V1__Register *extra, fleet_node_t **node,
                                  inspan_error_t *err)
{
    identity_t who = identity_of(k);
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    if (extra != NULL) message = *extra;
    if (message.inventory == NULL) message.inventory = &inventory;
    message.inventory->boot_id =
        extra != NULL && message.inventory->boot_id[0] != '\0' ? message.inventory->boot_id : who.boot;
    message.inventory->memory_bytes = 8000000000;
    message.node_id = who.id;
    message.name = who.name;
    message.address = (char *)"192.0.2.1";
    message.incarnation = 100 + k;
    message.protocol_major = PROTOCOL_MAJOR;
    Inspan__V1__Registered reply;
    inspan_status_t status =
        fleet_register(world.fleet, &message, "192.0.2.1", &world, world.now, node, &reply, err);
    if (status == INSPAN_OK) fleet_catch_up(world.fleet, *node, &message, world.now);
    return status;
}

static fleet_node_t *attach(uint32_t k)
{
    inspan_error_t err = {0};
    fleet_node_t *node = NULL;
    if (try_attach(k, NULL, &node, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return node;
}

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

static void beat(fleet_node_t *node)
{
    Inspan__V1__Heartbeat beat = INSPAN__V1__HEARTBEAT__INIT;
    fleet_heartbeat(world.fleet, node, &beat, world.now);
}

/* Time goes by in ticks; the nodes given send heartbeats. */
static void pass(ns_t time, fleet_node_t *const *nodes, uint32_t n)
{
    for (ns_t end = world.now + time; world.now < end;) {
        world.now += TICK;
        for (uint32_t i = 0; i < n; i++)
            if (nodes[i]->session != NULL) beat(nodes[i]);
        fleet_tick(world.fleet, world.now);
    }
}

static Inspan__V1__WorkerReport report_of(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport report = INSPAN__V1__WORKER_REPORT__INIT;
    report.job_id = job;
    report.rank = rank;
    report.state = state;
    report.pid = 4000 + rank;
    report.data_port = 7500 + rank;
    report.incarnation = 9;
    return report;
}

static void tell(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport report = report_of(job, rank, state);
    fleet_node_t *node =
        fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[rank].node);
    fleet_report(world.fleet, node, &report, world.now);
}

static void tell_failed(uint64_t job, uint32_t rank, uint32_t pid, int signal_number,
                        Inspan__V1__Failure *failure)
{
    Inspan__V1__WorkerReport report = report_of(job, rank, INSPAN__V1__WORKER_STATE__WORKER_FAILED);
    report.pid = pid;
    report.exit_signal = signal_number;
    report.failure = failure;
    fleet_node_t *node =
        fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[rank].node);
    fleet_report(world.fleet, node, &report, world.now);
}

/* ---- People ---- */

static Inspan__V1__SubmitRequest request_for(uint32_t nodes, ns_t failure_timeout)
{
    Inspan__V1__SubmitRequest request = INSPAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)"test";
    request.config = (char *)"name=test\n";
    request.min_nodes = request.max_nodes = nodes;
    request.failure_timeout_ns = failure_timeout;
    return request;
}

static uint64_t submit(uint32_t nodes, ns_t failure_timeout)
{
    Inspan__V1__SubmitRequest request = request_for(nodes, failure_timeout);
    fleet_job_t *job = NULL;
    inspan_error_t err = {0};
    if (fleet_submit(world.fleet, &request, world.now, &job, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return job->control.id;
}

static control_state_t state_of(uint64_t job)
{
    return fleet_job(world.fleet, job)->control.state;
}

static const char *reason_of(uint64_t job)
{
    return fleet_job(world.fleet, job)->control.reason;
}

static uint64_t run_job(uint32_t nodes, ns_t failure_timeout)
{
    static const Inspan__V1__WorkerState steps[] = {
        INSPAN__V1__WORKER_STATE__WORKER_STARTED, INSPAN__V1__WORKER_STATE__WORKER_BOUND,
        INSPAN__V1__WORKER_STATE__WORKER_READY, INSPAN__V1__WORKER_STATE__WORKER_RUNNING};
    uint64_t job = submit(nodes, failure_timeout);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        for (uint32_t r = 0; r < nodes; r++) tell(job, r, steps[i]);
    assert_int_equal(state_of(job), CONTROL_RUNNING);
    return job;
}

/* ---- The job's failure_timeout ---- */

static void the_timeout_of_a_job_is_what_counts(void **state)
{
    (void)state;
    static const struct {
        ns_t wanted, bound;
    } cases[] = {{30 * S, 30 * S}, {5 * S, 5 * S}, {3 * S, 3 * S}, {S, 2500 * MS}};
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

/* ---- Caps ---- */

static void nodes_that_are_gone_make_room(void **state)
{
    (void)state;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    for (uint32_t k = 0; k < SCHED_NODES_MAX; k++) attach(k);
    assert_int_equal(try_attach(5000, NULL, &node, &err), INSPAN_LIMIT); /* all of them live */
    fleet_left(world.fleet, fleet_node_at(world.fleet, 7), world.now);
    world.now += TICK;
    fleet_left(world.fleet, fleet_node_at(world.fleet, 3), world.now);
    uint64_t handle = fleet_node_at(world.fleet, 7)->handle;
    break_disk(true);
    inspan_status_t status = try_attach(5000, NULL, &node, &err);
    break_disk(false);
    assert_int_not_equal(status, INSPAN_OK);
    assert_string_equal(fleet_node_by_handle(world.fleet, handle)->name, "n7"); /* as if nothing had been */
    node = attach(5000);
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
    assert_null(fleet_node_by_handle(world.fleet, handle)); /* the one that is gone for longest */
    assert_int_equal(attach(7)->handle, handle);            /* it comes back: number 3 goes */
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
    assert_int_equal(try_attach(3, NULL, &node, &err), INSPAN_LIMIT);
    restart();
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
}

static void a_registration_has_a_cap(void **state)
{
    (void)state;
    char *text = malloc(100001);
    assert_non_null(text);
    memset(text, 'x', 100000);
    text[100000] = '\0';
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    inventory.cpu_model = text;
    message.inventory = &inventory;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    assert_int_equal(try_attach(0, &message, &node, &err), INSPAN_LIMIT);
    text[20000] = '\0';
    assert_int_equal(try_attach(0, &message, &node, &err), INSPAN_OK);
    free(text);
}

static void what_is_shown_of_a_large_job_fits_a_message(void **state)
{
    (void)state;
    enum { WORLD = 256 };
    static char summary[FLEET_SUMMARY_MAX + 1], name[250];
    static Inspan__V1__ResultFile files[FLEET_RESULTS_MAX];
    static Inspan__V1__ResultFile *results[FLEET_RESULTS_MAX];
    memset(summary, ' ', FLEET_SUMMARY_MAX);
    memset(name, 'x', sizeof name - 1);
    for (uint32_t i = 0; i < FLEET_RESULTS_MAX; i++) {
        inspan__v1__result_file__init(&files[i]);
        files[i].name = name;
        files[i].hash = (char *)"0123456789abcdef0123456789abcdef";
        results[i] = &files[i];
    }
    for (uint32_t k = 0; k < WORLD; k++) attach(k);
    uint64_t job = run_job(WORLD, 5 * S);
    for (uint32_t r = 0; r < WORLD; r++) {
        Inspan__V1__WorkerReport report = report_of(job, r, INSPAN__V1__WORKER_STATE__WORKER_DONE);
        report.summary_json = summary;
        report.results = results;
        report.n_results = FLEET_RESULTS_MAX;
        fleet_report(world.fleet,
                     fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[r].node),
                     &report, world.now);
    }
    assert_int_equal(state_of(job), CONTROL_DONE);
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, job), true);
    assert_non_null(info);
    Inspan__V1__JobInfo *message = fleet_info_message(info);
    assert_true(protobuf_c_message_get_packed_size(&message->base) < 4u << 20);
    assert_int_equal(message->n_ranks, WORLD);
    assert_string_equal(message->summary_json, summary);
    assert_string_equal(message->ranks[0]->summary_json, summary);
    assert_true(message->n_results > 1000);
    fleet_info_free(info);

    /* a failure with a text that no agent writes: the verdict has it cut, nothing else */
    job = run_job(1, 5 * S);
    static char text[100001];
    memset(text, 'x', sizeof text - 1);
    Inspan__V1__Failure own = INSPAN__V1__FAILURE__INIT;
    own.status = INSPAN_IO;
    own.text = text;
    tell_failed(job, 0, 0, 0, &own);
    assert_int_equal(state_of(job), CONTROL_FAILED);
    assert_true(strlen(reason_of(job)) > 200);
    info = fleet_job_info(fleet_job(world.fleet, job), true);
    assert_true(protobuf_c_message_get_packed_size(&fleet_info_message(info)->base) < 4096);
    fleet_info_free(info);
}

static void texts_of_a_submission_have_caps(void **state)
{
    (void)state;
    attach(0);
    char *big = malloc(5001);
    assert_non_null(big);
    memset(big, 'x', 5000);
    big[5000] = '\0';
    const struct {
        const char *name, *key, *path, *hash;
        inspan_status_t status;
    } cases[] = {
        {"fine", "data.train",
         "/data/b\xc3\xbc"
         "cher.txt",
         "", INSPAN_OK},
        {"l\xfc"
         "ge",
         "data.train", "a", "", INSPAN_INVALID},
        {"fine", "data.train", "/data/b\xfc", "", INSPAN_INVALID},
        {"red \x1b[31m", "data.train", "a", "", INSPAN_INVALID},
        {"two\nlines", "data.train", "a", "", INSPAN_INVALID},
        {big, "data.train", "a", "", INSPAN_LIMIT},
        {"fine", "data.train\nworker.path=/bin/sh", "a", "", INSPAN_INVALID},
        {"fine", big, "a", "", INSPAN_LIMIT},
        {"fine", "data.train", "a\nb", "", INSPAN_INVALID},
        {"fine", "data.train", "a\x7f", "", INSPAN_INVALID},
        {"fine", "data.train", big, "", INSPAN_LIMIT},
        {"fine", "data.train", "a", big, INSPAN_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Inspan__V1__SubmitRequest request = request_for(1, 5 * S);
        Inspan__V1__DataFile file = INSPAN__V1__DATA_FILE__INIT, *files[] = {&file};
        request.name = (char *)cases[i].name;
        file.key = (char *)cases[i].key;
        file.path = (char *)cases[i].path;
        file.hash = (char *)cases[i].hash;
        request.data = files;
        request.n_data = 1;
        fleet_job_t *job = NULL;
        inspan_error_t err = {0};
        inspan_status_t status = fleet_submit(world.fleet, &request, world.now, &job, &err);
        if (status != cases[i].status) fail_msg("case %zu: status %d: %s", i, status, err.text);
    }
    free(big);
}

/* What an agent says is shown to people and put into JSON: it is text whatever comes, and cut between
 * characters. */
static void texts_of_agents_are_made_text(void **state)
{
    (void)state;
    char copy[8];
    const struct {
        const char *from, *to;
    } cases[] = {{"plain", "plain"},
                 {"a\nb\x7f", "a b "},
                 {"\xff\xc3\xbc\xc3", "?\xc3\xbc?"},
                 {"123456\xc3\xbc", "123456"}, /* half a character has no room, the whole neither */
                 {"12345\xc3\xbc", "12345\xc3\xbc"},
                 {"12345678", "1234567"},
                 {"", ""},
                 {NULL, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        convert_text(cases[i].from, copy, sizeof copy);
        assert_string_equal(copy, cases[i].to);
    }
}

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
#define IN_A_WORLD(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(the_timeout_of_a_job_is_what_counts),
        IN_A_WORLD(a_broken_connection_has_the_jobs_timeout_to_come_back),
        IN_A_WORLD(a_machine_without_power_is_lost_after_the_timeout),
        IN_A_WORLD(a_node_without_a_job_has_the_clusters_timeout),
        IN_A_WORLD(after_a_restart_agents_have_twice_the_jobs_timeout),
        IN_A_WORLD(a_half_stored_failure_ends_its_job_after_a_restart),
        IN_A_WORLD(a_blame_that_was_not_settled_is_settled_after_a_restart),
        IN_A_WORLD(a_half_stored_success_is_one),
        IN_A_WORLD(a_cancellation_that_is_not_stored_is_not_acknowledged),
        IN_A_WORLD(a_cancellation_is_stored_as_soon_as_the_disk_can),
        IN_A_WORLD(an_end_is_told_and_recorded_after_it_is_stored),
        IN_A_WORLD(nothing_is_acknowledged_on_a_broken_disk),
        IN_A_WORLD(the_next_job_waits_for_the_process_to_be_gone),
        IN_A_WORLD(a_process_that_is_never_reported_gone_holds_its_node_for_a_bound_only),
        IN_A_WORLD(nodes_that_are_gone_make_room),
        IN_A_WORLD(a_registration_has_a_cap),
        IN_A_WORLD(what_is_shown_of_a_large_job_fits_a_message),
        IN_A_WORLD(texts_of_a_submission_have_caps),
        IN_A_WORLD(texts_of_agents_are_made_text),
        IN_A_WORLD(damaged_rows_are_passed_over),
        IN_A_WORLD(memory_of_running_jobs_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
