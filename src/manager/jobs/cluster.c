/* The cluster's own: opening, ticking, events. */
#include "manager/jobs/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "manager/jobs/cluster_internal.h"
#include "platform/os/os_time.h"

#define STALL_NS       NS_PER_S /* a tick this late means that we stood still ourselves */
#define HEARTBEATS_MIN (CLUSTER_FAILURE_TIMEOUT_NS / 2)
#define WAL_ALARM      (64u << 20)

inspan_status_t cluster_open(registry_t *registry, const cluster_ports_t *ports, ns_t now, cluster_t **out,
                             inspan_error_t *err)
{
    cluster_t *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    cluster->registry = registry;
    cluster->ports = *ports;
    cluster->last_tick = now;
    cluster->last_wal_check = now;
    cluster->look_at_queue = true;
    inspan_status_t status = cluster_load(cluster, now, err);
    if (status != INSPAN_OK) {
        cluster_close(cluster);
        return status;
    }
    *out = cluster;
    return INSPAN_OK;
}

void cluster_close(cluster_t *cluster)
{
    if (cluster == NULL) return;
    for (size_t i = 0; i < cluster->jobs.n; i++) cluster_job_free(cluster->jobs.items[i]);
    for (size_t i = 0; i < cluster->nodes.n; i++) {
        protobuf_c_message_free_unpacked(&cluster->nodes.items[i]->registration->base, NULL);
        free(cluster->nodes.items[i]);
    }
    vec_free(&cluster->jobs);
    vec_free(&cluster->nodes);
    free(cluster);
}

void cluster_event(cluster_t *cluster, uint64_t job, uint64_t node, const char *text)
{
    inspan_error_t err;
    if (registry_put_event(cluster->registry, os_wall_now(), job, node, text, &err) != INSPAN_OK)
        log_warn("event not stored: %s", err.text);
}

/* A job with a shorter timeout looks more sharply at its nodes, but never so that two heartbeats cannot get
 * through. */
static ns_t timeout_of(const cluster_t *cluster, const cluster_node_t *node)
{
    ns_t timeout = CLUSTER_FAILURE_TIMEOUT_NS;
    const cluster_job_t *job = cluster_job_on(cluster, node);
    if (job != NULL && job->request->failure_timeout_ns > 0 && job->request->failure_timeout_ns < timeout)
        timeout = job->request->failure_timeout_ns;
    return timeout > HEARTBEATS_MIN ? timeout : HEARTBEATS_MIN;
}

static void look_at_node(cluster_t *cluster, cluster_node_t *node, ns_t now)
{
    bool attached = node->life.state == LIVENESS_ATTACHED;
    ns_t from = attached ? node->life.heard : node->life.since;
    if (!liveness_check(&node->life, now, timeout_of(cluster, node))) return;
    char text[128];
    if (attached)
        snprintf(text, sizeof text, "agent silent for %.1f s", ns_to_s(now - from));
    else
        snprintf(text, sizeof text, "the connection of its agent broke %.1f s ago and it did not come back",
                 ns_to_s(now - from));
    void *session = node->session;
    node->session = NULL;
    if (session != NULL) cluster->ports.drop(cluster->ports.context, session, INSPAN_TIMEOUT, text);
    cluster_node_gone(cluster, node, text, now);
}

static void watch_log_file(cluster_t *cluster, ns_t now)
{
    if (now - cluster->last_wal_check < 60 * NS_PER_S) return;
    cluster->last_wal_check = now;
    uint64_t bytes = registry_wal_bytes(cluster->registry);
    char text[32];
    if (bytes > WAL_ALARM)
        log_warn("the registry's log file has %s: another program reads the registry for too long",
                 units_format_size(bytes, text, sizeof text));
}

static void forget_old_jobs(cluster_t *cluster)
{
    size_t over = 0;
    for (size_t i = 0; i < cluster->jobs.n; i++) over += control_job_quiet(&cluster->jobs.items[i]->control);
    size_t kept = 0;
    for (size_t i = 0; i < cluster->jobs.n; i++) {
        cluster_job_t *job = cluster->jobs.items[i];
        if (over > CLUSTER_JOBS_KEPT && control_job_quiet(&job->control) && job->watchers == NULL) {
            over--;
            cluster_job_free(job);
        } else {
            cluster->jobs.items[kept++] = job;
        }
    }
    cluster->jobs.n = kept;
}

void cluster_tick(cluster_t *cluster, ns_t now)
{
    ns_t gap = now - cluster->last_tick;
    cluster->last_tick = now;
    if (gap > STALL_NS)
        for (size_t i = 0; i < cluster->nodes.n; i++) liveness_forgive(&cluster->nodes.items[i]->life, gap);
    for (size_t i = 0; i < cluster->nodes.n; i++) look_at_node(cluster, cluster->nodes.items[i], now);
    for (size_t i = 0; i < cluster->jobs.n; i++) {
        cluster_job_t *job = cluster->jobs.items[i];
        if (control_job_quiet(&job->control)) continue;
        control_job_tick(&job->control, now);
        cluster_act(cluster, job, now);
    }
    if (cluster->look_at_queue) cluster_schedule(cluster, now);
    if (cluster->jobs.n > CLUSTER_JOBS_KEPT) forget_old_jobs(cluster);
    watch_log_file(cluster, now);
}
