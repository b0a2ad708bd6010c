/* The fleet's own: opening, ticking, events. */
#include "manager/jobs/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_time.h"

#define STALL_NS       NS_PER_S /* a tick this late means that we stood still ourselves */
#define HEARTBEATS_MIN (CLUSTER_FAILURE_TIMEOUT_NS / 2)
#define TIMEOUT_MIN    NS_PER_S /* of a job */
#define LOOK_FOR_NODES (500 * NS_PER_MS)
#define WAL_ALARM      (64u << 20)

inspan_status_t fleet_open(registry_t *registry, const fleet_ports_t *ports, ns_t now, fleet_t **out,
                           inspan_error_t *err)
{
    fleet_t *fleet = calloc(1, sizeof *fleet);
    if (fleet == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    fleet->registry = registry;
    fleet->ports = *ports;
    fleet->last_tick = now;
    fleet->last_wal_check = now;
    fleet->look_at_queue = true;
    inspan_status_t status = fleet_load(fleet, now, err);
    if (status != INSPAN_OK) {
        fleet_close(fleet);
        return status;
    }
    *out = fleet;
    return INSPAN_OK;
}

void fleet_close(fleet_t *fleet)
{
    if (fleet == NULL) return;
    for (size_t i = 0; i < fleet->jobs.n; i++) fleet_job_free(fleet->jobs.items[i]);
    for (size_t i = 0; i < fleet->nodes.n; i++) {
        protobuf_c_message_free_unpacked(&fleet->nodes.items[i]->registration->base, NULL);
        free(fleet->nodes.items[i]);
    }
    vec_free(&fleet->jobs);
    vec_free(&fleet->nodes);
    free(fleet);
}

void fleet_event(fleet_t *fleet, uint64_t job, uint64_t node, const char *text)
{
    inspan_error_t err;
    if (registry_put_event(fleet->registry, os_wall_now(), job, node, text, &err) != INSPAN_OK)
        log_warn("event not stored: %s", err.text);
}

/* Its agent has said something of its worker for the job: it knows the job's timeout, and beats five times in
 * it. */
static bool knows_job(const fleet_job_t *job, const fleet_node_t *node)
{
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        if (job->reports[r] != NULL && job->control.ranks[r].node == node->handle &&
            job->control.ranks[r].state < CONTROL_RANK_LEFT)
            return true;
    return false;
}

/* The job's own, where one runs there; never so short that two heartbeats cannot get through. */
static ns_t timeout_of(const fleet_t *fleet, const fleet_node_t *node)
{
    const fleet_job_t *job = fleet_job_on(fleet, node);
    bool running = job != NULL && !control_job_over(&job->control);
    ns_t timeout = running ? job->request->failure_timeout_ns : CLUSTER_FAILURE_TIMEOUT_NS;
    if (timeout >= HEARTBEATS_MIN || (running && knows_job(job, node))) return timeout;
    return HEARTBEATS_MIN;
}

static void look_at_node(fleet_t *fleet, fleet_node_t *node, ns_t now)
{
    bool attached = node->life.state == LIVENESS_ATTACHED, restored = node->life.restored;
    /* no timeout is shorter: whose job it is need not be looked up for those that were heard of just now */
    if (!(attached || node->life.state == LIVENESS_DISCONNECTED) || now - node->life.heard < TIMEOUT_MIN)
        return;
    ns_t from = liveness_silent_since(&node->life);
    bool silent = attached || from < node->life.since; /* its stream was cut for that */
    if (!liveness_check(&node->life, now, timeout_of(fleet, node))) return;
    char text[128];
    if (silent)
        snprintf(text, sizeof text, "agent silent for %.1f s", ns_to_s(now - from));
    else if (restored)
        snprintf(text, sizeof text, "its agent did not come back within %.1f s of the manager's restart",
                 ns_to_s(now - from));
    else
        snprintf(text, sizeof text, "the connection of its agent broke %.1f s ago and it did not come back",
                 ns_to_s(now - from));
    void *session = node->session;
    node->session = NULL;
    if (session != NULL) fleet->ports.drop(fleet->ports.context, session, INSPAN_TIMEOUT, text);
    fleet_node_gone(fleet, node, text, now);
}

/* A state that people see but the registry does not have yet. */
static void save_again(fleet_t *fleet, fleet_job_t *job, ns_t now)
{
    inspan_error_t err;
    if (!job->unsaved || now < job->save_at || job->control.unstored) return;
    job->save_at = now + NS_PER_S;
    job->unsaved = fleet_store_job(fleet, job, &err) != INSPAN_OK;
}

static void watch_log_file(fleet_t *fleet, ns_t now)
{
    if (now - fleet->last_wal_check < 60 * NS_PER_S) return;
    fleet->last_wal_check = now;
    uint64_t bytes = registry_wal_bytes(fleet->registry);
    char text[32];
    if (bytes > WAL_ALARM)
        log_warn("the registry's log file has %s: another program reads the registry for too long",
                 units_format_size(bytes, text, sizeof text));
}

static void forget_old_jobs(fleet_t *fleet)
{
    size_t over = 0;
    for (size_t i = 0; i < fleet->jobs.n; i++) over += control_job_quiet(&fleet->jobs.items[i]->control);
    size_t kept = 0;
    for (size_t i = 0; i < fleet->jobs.n; i++) {
        fleet_job_t *job = fleet->jobs.items[i];
        if (over > FLEET_JOBS_KEPT && control_job_quiet(&job->control) && job->watchers == NULL) {
            over--;
            fleet_job_free(job);
        } else {
            fleet->jobs.items[kept++] = job;
        }
    }
    fleet->jobs.n = kept;
}

void fleet_tick(fleet_t *fleet, ns_t now)
{
    ns_t gap = now - fleet->last_tick;
    fleet->last_tick = now;
    if (gap > STALL_NS)
        for (size_t i = 0; i < fleet->nodes.n; i++) liveness_forgive(&fleet->nodes.items[i]->life, gap, now);
    for (size_t i = 0; i < fleet->nodes.n; i++) look_at_node(fleet, fleet->nodes.items[i], now);
    for (size_t i = 0; i < fleet->jobs.n; i++) {
        fleet_job_t *job = fleet->jobs.items[i];
        save_again(fleet, job, now);
        if (control_job_quiet(&job->control)) continue;
        control_job_tick(&job->control, now);
        fleet_act(fleet, job, now);
    }
    if (now >= fleet->grow_at) {
        fleet->grow_at = now + LOOK_FOR_NODES; /* a cool-down may have ended */
        for (size_t i = 0; i < fleet->jobs.n && !fleet->look_at_queue; i++)
            fleet->look_at_queue = control_job_wants(&fleet->jobs.items[i]->control) > 0;
        for (size_t i = 0; i < fleet->nodes.n && !fleet->look_at_queue; i++)
            fleet->look_at_queue = fleet->nodes.items[i]->rest.until != 0;
    }
    if (fleet->look_at_queue) fleet_schedule(fleet, now);
    if (fleet->jobs.n > FLEET_JOBS_KEPT) forget_old_jobs(fleet);
    watch_log_file(fleet, now);
}
