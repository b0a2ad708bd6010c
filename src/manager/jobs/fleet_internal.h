/* Between the files of jobs/. */
#ifndef MANAGER_JOBS_FLEET_INTERNAL_H
#define MANAGER_JOBS_FLEET_INTERNAL_H

#include "base/vec.h"
#include "manager/jobs/fleet.h"

struct fleet {
    registry_t *registry;
    fleet_ports_t ports;
    vec_of(fleet_node_t *) nodes;
    vec_of(fleet_job_t *) jobs;
    ns_t last_tick, last_wal_check, grow_at;
    bool look_at_queue;
};

void fleet_event(fleet_t *fleet, uint64_t job, uint64_t node, const char *text);
void fleet_act(fleet_t *fleet, fleet_job_t *job, ns_t now);
void fleet_schedule(fleet_t *fleet, ns_t now);
inspan_status_t fleet_store_job(fleet_t *fleet, fleet_job_t *job, inspan_error_t *err);
void fleet_keep_report(fleet_job_t *job, const Inspan__V1__WorkerReport *message);
fleet_job_t *fleet_job_new(uint64_t id, const Inspan__V1__SubmitRequest *request);
inspan_status_t fleet_load(fleet_t *fleet, ns_t now, inspan_error_t *err);
/* Every job that has a rank on the node hears of its end. */
void fleet_node_gone(fleet_t *fleet, fleet_node_t *node, const char *text, ns_t now);
/* A worker of this job was lost on its node by the node's doing: it cools down. */
void fleet_worker_lost(fleet_t *fleet, const fleet_job_t *job, uint32_t rank);
/* How fast the worker is goes into the registry now and then. */
void fleet_note_speed(fleet_t *fleet, const fleet_job_t *job, fleet_node_t *node,
                      const Inspan__V1__WorkerReport *message, ns_t now);
/* Cores that it gives just now; 0: unknown. */
double fleet_power(const fleet_node_t *node);
/* Its vitals have come: jobs that do without it may want it again. */
void fleet_look_at_left_out(fleet_t *fleet, const fleet_node_t *node);
/* What is known of the members of the newest view, by their place in it. */
void fleet_paces(fleet_t *fleet, const fleet_job_t *job, fleet_pace_t paces[CONTROL_ELASTIC_MAX]);
/* After a restart: nodes that the job does without for a while. */
void fleet_recall_left_out(const fleet_t *fleet, fleet_job_t *job, ns_t now);
/* Members may change from now on, within what the request says. */
void fleet_make_elastic(fleet_job_t *job);
inspan_status_t fleet_load_artifacts(fleet_t *fleet, fleet_job_t *job, inspan_error_t *err);
void fleet_free_artifacts(fleet_job_t *job);
/* false: it could not be stored; the log says why. */
bool fleet_store_node(fleet_t *fleet, fleet_node_t *node, const char *state);

#endif
