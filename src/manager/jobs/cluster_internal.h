/* Between the files of jobs/. */
#ifndef MANAGER_JOBS_CLUSTER_INTERNAL_H
#define MANAGER_JOBS_CLUSTER_INTERNAL_H

#include "base/vec.h"
#include "manager/jobs/cluster.h"

struct cluster {
    registry_t *registry;
    cluster_ports_t ports;
    vec_of(cluster_node_t *) nodes;
    vec_of(cluster_job_t *) jobs;
    ns_t last_tick, last_wal_check;
    bool look_at_queue;
};

void cluster_event(cluster_t *cluster, uint64_t job, uint64_t node, const char *text);
void cluster_act(cluster_t *cluster, cluster_job_t *job, ns_t now);
void cluster_schedule(cluster_t *cluster, ns_t now);
inspan_status_t cluster_store_job(cluster_t *cluster, cluster_job_t *job, inspan_error_t *err);
void cluster_keep_report(cluster_job_t *job, const Inspan__V1__WorkerReport *message);
cluster_job_t *cluster_job_new(uint64_t id, const Inspan__V1__SubmitRequest *request);
inspan_status_t cluster_load(cluster_t *cluster, ns_t now, inspan_error_t *err);
/* Every job that has a rank on the node hears of its end. */
void cluster_node_gone(cluster_t *cluster, cluster_node_t *node, const char *text, ns_t now);
void cluster_store_node(cluster_t *cluster, cluster_node_t *node, const char *state);

#endif
