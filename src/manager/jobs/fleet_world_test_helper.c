#include "manager/jobs/fleet_world_test.h"

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
#include "platform/os/os_file.h"

fleet_world_t world;

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
        world.leaves += message->stop->leave;
    }
    if (message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_START) {
        world.newcomers += message->start->newcomer;
        world.resume = message->start->resume != NULL ? message->start->resume->step : 0;
    }
    if (message->kind_case == INSPAN__V1__AGENT_DOWN__KIND_VIEW) {
        world.members = (uint32_t)message->view->n_members;
        world.first = message->view->first;
        if (message->view->n_members > 0) world.pace = message->view->members[0]->pace_sample_ns;
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
    if (text != NULL) snprintf(world.news, sizeof world.news, "%s", text);
    if (!ended) return;
    world.ends++;
    snprintf(world.last_end, sizeof world.last_end, "%s", text != NULL ? text : "");
}

static bool have_no_file(void *context, const char *hash, uint64_t bytes)
{
    (void)context, (void)hash, (void)bytes;
    return world.files;
}

static void drop_file(void *context, const char *hash)
{
    (void)context, (void)hash;
    world.dropped++;
}

static void open_world(void)
{
    inspan_error_t err = {0};
    fleet_ports_t ports = {.send = take_order,
                           .drop = take_drop,
                           .job_changed = take_news,
                           .file_present = have_no_file,
                           .file_dropped = drop_file};
    if (registry_open(world.folder, 0, &world.registry, &err) != INSPAN_OK ||
        fleet_open(world.registry, &ports, world.now, &world.fleet, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
}

static void close_world(void)
{
    fleet_close(world.fleet);
    registry_close(world.registry);
}

void restart(void)
{
    close_world();
    world.now += S;
    open_world();
}

int set_up(void **state)
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

int tear_down(void **state)
{
    (void)state;
    close_world();
    return os_remove_all(world.folder, NULL) == INSPAN_OK ? 0 : -1;
}

void break_disk(bool broken)
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

inspan_status_t try_attach(uint32_t k, Inspan__V1__Register *extra, fleet_node_t **node, inspan_error_t *err)
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

fleet_node_t *attach(uint32_t k)
{
    inspan_error_t err = {0};
    fleet_node_t *node = NULL;
    if (try_attach(k, NULL, &node, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return node;
}

static void beat(fleet_node_t *node)
{
    Inspan__V1__Heartbeat beat = INSPAN__V1__HEARTBEAT__INIT;
    fleet_heartbeat(world.fleet, node, &beat, world.now);
}

void pass(ns_t time, fleet_node_t *const *nodes, uint32_t n)
{
    for (ns_t end = world.now + time; world.now < end;) {
        world.now += TICK;
        for (uint32_t i = 0; i < n; i++)
            if (nodes[i]->session != NULL) beat(nodes[i]);
        fleet_tick(world.fleet, world.now);
    }
}

Inspan__V1__WorkerReport report_of(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state)
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

void tell(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport report = report_of(job, rank, state);
    fleet_node_t *node =
        fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[rank].node);
    fleet_report(world.fleet, node, &report, world.now);
}

void tell_failed(uint64_t job, uint32_t rank, uint32_t pid, int signal_number, Inspan__V1__Failure *failure)
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

Inspan__V1__SubmitRequest request_for(uint32_t nodes, ns_t failure_timeout)
{
    Inspan__V1__SubmitRequest request = INSPAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)"test";
    request.config = (char *)"name=test\n";
    request.min_nodes = request.max_nodes = nodes;
    request.failure_timeout_ns = failure_timeout;
    return request;
}

uint64_t submit(uint32_t nodes, ns_t failure_timeout)
{
    Inspan__V1__SubmitRequest request = request_for(nodes, failure_timeout);
    fleet_job_t *job = NULL;
    inspan_error_t err = {0};
    if (fleet_submit(world.fleet, &request, world.now, &job, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return job->control.id;
}

control_state_t state_of(uint64_t job)
{
    return fleet_job(world.fleet, job)->control.state;
}

const char *reason_of(uint64_t job)
{
    return fleet_job(world.fleet, job)->control.reason;
}

uint64_t run_job(uint32_t nodes, ns_t failure_timeout)
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

/* ---- Elastic jobs ---------------------------------------------------------------------------- */

fleet_node_t *join_with(uint32_t k, Inspan__V1__WorkerReport *worker)
{
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    fleet_node_t *node = NULL;
    inspan_error_t err;
    inventory.usable_cores = 0.8;
    message.inventory = &inventory;
    message.protocol_minor = FLEET_ELASTIC;
    message.workers = &worker;
    message.n_workers = worker != NULL;
    if (try_attach(k, &message, &node, &err) != INSPAN_OK) fail_msg("%s", err.text);
    fleet_tick(world.fleet, world.now);
    return node;
}

fleet_node_t *node_of(uint64_t job, uint32_t rank)
{
    return fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[rank].node);
}

Inspan__V1__WorkerReport running(uint64_t job, uint32_t rank)
{
    Inspan__V1__WorkerReport report = report_of(job, rank, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    report.view = fleet_job(world.fleet, job)->control.view;
    return report;
}

void open_view(uint64_t job)
{
    const control_view_t view = fleet_job(world.fleet, job)->control.members;
    for (uint32_t i = 0; i < view.n; i++) {
        Inspan__V1__WorkerReport report = running(job, view.members[i]);
        fleet_report(world.fleet, node_of(job, view.members[i]), &report, world.now);
    }
}
