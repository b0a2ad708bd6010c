/*
 * The cluster as the manager sees it: nodes and jobs, moved by the cores (core/control, core/sched), kept in
 * the registry. Knows nothing of gRPC: messages to agents and news for watchers leave through
 * cluster_ports_t.
 *
 * One thread: the rpc server's. Calls block for the registry's disk only. Nodes and jobs live until
 * cluster_close; pointers to them stay valid (but those of jobs that ended long ago: CLUSTER_JOBS_KEPT).
 */
#ifndef MANAGER_JOBS_CLUSTER_H
#define MANAGER_JOBS_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "core/control/job.h"
#include "core/control/liveness.h"
#include "inspan/v1/inspan.pb-c.h"
#include "manager/registry/registry.h"

#define CLUSTER_JOBS_KEPT                                                                                    \
    512 /* ended jobs in memory; older ones are read from the registry when asked for                        \
         */
#define CLUSTER_QUEUE_MAX   1000
#define CLUSTER_CONFIG_MAX  (64 << 10)
#define CLUSTER_DATA_MAX    ((uint64_t)256 * 1000 * 1000) /* one data file that travels through the manager */
#define CLUSTER_DATA_FILES  16
#define CLUSTER_SUMMARY_MAX (16 << 10)
#define CLUSTER_RESULTS_MAX 256
#define CLUSTER_KEY_BYTES   32

typedef struct cluster cluster_t;

typedef struct cluster_node {
    uint64_t handle;
    char node_id[64], name[64], address[64];
    liveness_t life;
    Inspan__V1__Register *registration;
    uint64_t incarnation; /* of the agent process */
    ns_t registered_wall;
    double load, skew_s;
    void *session; /* the stream of its agent, the service's; NULL: none */
} cluster_node_t;

typedef struct cluster_job {
    control_job_t control;
    Inspan__V1__SubmitRequest *request;
    Inspan__V1__WorkerReport **reports; /* (world) the last of each rank; NULL: none yet */
    char why[CONTROL_REASON_MAX];       /* why it waits */
    ns_t submitted_wall, started_wall, ended_wall;
    uint8_t key[CLUSTER_KEY_BYTES];
    control_state_t told; /* what watchers were told last */
    uint64_t told_view;
    void *watchers; /* the service's */
} cluster_job_t;

typedef struct cluster_ports {
    void *context;
    /* Queue a message on the stream of the node's agent. false: it has none, or takes nothing any more. */
    bool (*send)(void *context, cluster_node_t *node, const Inspan__V1__AgentDown *message);
    /* End the node's session, which is not its session any more. */
    void (*drop)(void *context, void *session, inspan_status_t status, const char *text);
    /* text NULL: progress only. ended: for good, the last call about this job. */
    void (*job_changed)(void *context, cluster_job_t *job, const char *text, bool ended);
    bool (*file_present)(void *context, const char *hash, uint64_t bytes);
} cluster_ports_t;

inspan_status_t cluster_open(registry_t *registry, const cluster_ports_t *ports, ns_t now,
                             cluster_t **cluster, inspan_error_t *err);
void cluster_close(cluster_t *cluster);
void cluster_tick(cluster_t *cluster, ns_t now);

/* ---- Nodes */

/*
 * An agent says who it is; peer is the address that it comes from. OK: *node is attached to session and has
 * what it missed; reply is filled (its strings are the cluster's). VERSION, INVALID, LIMIT (too many nodes),
 * IO (registry).
 */
inspan_status_t cluster_register(cluster_t *cluster, const Inspan__V1__Register *message, const char *peer,
                                 void *session, ns_t now, cluster_node_t **node,
                                 Inspan__V1__Registered *reply, inspan_error_t *err);
/* After the reply was sent: orders that the agent missed. */
void cluster_catch_up(cluster_t *cluster, cluster_node_t *node, const Inspan__V1__Register *message,
                      ns_t now);
void cluster_heartbeat(cluster_t *cluster, cluster_node_t *node, const Inspan__V1__Heartbeat *message,
                       ns_t now);
void cluster_report(cluster_t *cluster, cluster_node_t *node, const Inspan__V1__WorkerReport *message,
                    ns_t now);
void cluster_broke(cluster_t *cluster, cluster_node_t *node,
                   ns_t now); /* the stream ended without good-bye */
void cluster_left(cluster_t *cluster, cluster_node_t *node, ns_t now);

uint32_t cluster_n_nodes(const cluster_t *cluster);
cluster_node_t *cluster_node_at(const cluster_t *cluster, uint32_t index);
cluster_node_t *cluster_node_by_handle(const cluster_t *cluster, uint64_t handle);
/* The unfinished job on this node; NULL: idle. */
const cluster_job_t *cluster_job_on(const cluster_t *cluster, const cluster_node_t *node);
const char *cluster_node_state(const cluster_t *cluster, const cluster_node_t *node); /* ready, busy, ... */

/* ---- Jobs */

/* On OK the job is in the registry. INVALID, LIMIT, NOT_FOUND, IO. */
inspan_status_t cluster_submit(cluster_t *cluster, const Inspan__V1__SubmitRequest *request, ns_t now,
                               cluster_job_t **job, inspan_error_t *err);
/* NOT_FOUND; IO: the cancellation of a waiting job could not be stored. An ended job: OK, nothing happens. */
inspan_status_t cluster_cancel(cluster_t *cluster, uint64_t id, const char *text, ns_t now,
                               cluster_job_t **job, inspan_error_t *err);
cluster_job_t *cluster_job(const cluster_t *cluster, uint64_t id); /* in memory; NULL */
uint32_t cluster_n_jobs(const cluster_t *cluster);
cluster_job_t *cluster_job_at(const cluster_t *cluster, uint32_t index); /* oldest first */
/* One from the registry that is not in memory any more; the caller frees it by cluster_job_free. NOT_FOUND.
 */
inspan_status_t cluster_job_load(cluster_t *cluster, uint64_t id, ns_t now, cluster_job_t **job,
                                 inspan_error_t *err);
void cluster_job_free(cluster_job_t *job);

/* ---- For people: messages whose strings belong to the cluster; valid until its next call */

typedef struct cluster_info cluster_info_t;
/* NULL: no memory. whole: with config, results and summaries. */
cluster_info_t *cluster_job_info(const cluster_job_t *job, bool whole);
Inspan__V1__JobInfo *cluster_info_message(cluster_info_t *info);
void cluster_info_free(cluster_info_t *info);

#endif
