/*
 * The fleet, the cluster as the manager sees it: nodes and jobs, moved by the cores (core/control,
 * core/sched), kept in the registry. Knows nothing of gRPC: messages to agents and news for watchers leave
 * through fleet_ports_t.
 *
 * One thread: the rpc server's. Calls block for the registry's disk only. Nodes and jobs live until
 * fleet_close; pointers to them stay valid (but those of jobs that ended long ago: FLEET_JOBS_KEPT).
 */
#ifndef MANAGER_JOBS_FLEET_H
#define MANAGER_JOBS_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "core/control/job.h"
#include "core/control/liveness.h"
#include "core/control/rest.h"
#include "inspan/v1/inspan.pb-c.h"
#include "manager/registry/registry.h"

#define FLEET_JOBS_KEPT                                                                                      \
    512 /* ended jobs in memory; older ones are read from the registry when asked for                        \
         */
#define FLEET_QUEUE_MAX   1000
#define FLEET_CONFIG_MAX  (64 << 10)
#define FLEET_DATA_MAX    ((uint64_t)256 * 1000 * 1000) /* one data file that travels through the manager */
#define FLEET_DATA_FILES  16
#define FLEET_SUMMARY_MAX (16 << 10)
#define FLEET_RESULTS_MAX 256
#define FLEET_REPORT_MAX  (128 << 10)
#define FLEET_FAILURE_MAX (2 << 10)
#define FLEET_KEY_BYTES   32
#define FLEET_KEEP_MAX    1000
#define FLEET_CHECKPOINTS 3     /* kept of a job that does not say how many */
#define FLEET_SPANS_MAX   256   /* of the ledger, in one message */
#define FLEET_SHARES_MAX  1024  /* of one span */
#define FLEET_VERDICTS    32    /* kept of a job, the newest */
#define FLEET_SPEEDS_MAX  10000 /* told at once */
#define FLEET_ELASTIC     1     /* minor version from which agents take part in elastic jobs */

typedef struct fleet fleet_t;

typedef struct fleet_pace { /* 0: unknown */
    uint64_t sample_ns, step_ns;
} fleet_pace_t;

typedef struct fleet_speed { /* as it is in the registry */
    uint64_t job, sample_ns, step_ns;
    uint32_t centicores;
    ns_t at; /* last looked at */
} fleet_speed_t;

typedef struct fleet_node {
    uint64_t handle;
    char node_id[64], name[64], address[64];
    liveness_t life;
    Inspan__V1__Register *registration;
    uint64_t incarnation; /* of the agent process */
    ns_t registered_wall;
    double load, skew_s;
    bool has_vitals; /* of its last heartbeat */
    Inspan__V1__Vitals vitals;
    char limit[64]; /* vitals.limit */
    rest_t rest;    /* in wall time */
    fleet_speed_t speed;
    void *session; /* the stream of its agent, the service's; NULL: none */
} fleet_node_t;

typedef struct fleet_job {
    control_job_t control;
    Inspan__V1__SubmitRequest *request;
    Inspan__V1__WorkerReport **reports; /* (world) the last of each rank; NULL: none yet */
    Inspan__V1__Artifact **checkpoints; /* registered and kept, oldest first */
    uint32_t n_checkpoints;
    Inspan__V1__Artifact *result; /* registered; NULL: none */
    char why[CONTROL_REASON_MAX]; /* why it waits */
    ns_t submitted_wall, started_wall, ended_wall;
    bool unsaved; /* its last state is not in the registry yet: tried again each second */
    ns_t save_at;
    ns_t ended_at; /* monotonic; 0: not in this life of the manager */
    uint8_t key[FLEET_KEY_BYTES];
    fleet_pace_t
        paces[CONTROL_ELASTIC_MAX]; /* of the newest view's members: the same for all who hear of it */
    Inspan__V1__JobInfo *said;      /* the newest verdicts, left_out, nothing else; NULL: none */
    ns_t verdicts_since;            /* so many came since then */
    uint32_t n_verdicts;
    control_state_t told; /* what watchers were told last */
    uint64_t told_view;
    void *watchers; /* the service's */
} fleet_job_t;

typedef struct fleet_ports {
    void *context;
    /* Queue a message on the stream of the node's agent. false: it has none, or takes nothing any more. */
    bool (*send)(void *context, fleet_node_t *node, const Inspan__V1__AgentDown *message);
    /* End the node's session, which is not its session any more. */
    void (*drop)(void *context, void *session, inspan_status_t status, const char *text);
    /* text NULL: progress only. ended: for good, the last call about this job. */
    void (*job_changed)(void *context, fleet_job_t *job, const char *text, bool ended);
    bool (*file_present)(void *context, const char *hash, uint64_t bytes);
    void (*file_dropped)(void *context, const char *hash); /* nobody needs it any more */
} fleet_ports_t;

inspan_status_t fleet_open(registry_t *registry, const fleet_ports_t *ports, ns_t now, fleet_t **fleet,
                           inspan_error_t *err);
void fleet_close(fleet_t *fleet);
void fleet_tick(fleet_t *fleet, ns_t now);

/* ---- Nodes */

/*
 * An agent says who it is; peer is the address that it comes from. OK: *node is attached to session and has
 * what it missed; reply is filled (its strings are the fleet's). VERSION, INVALID, LIMIT (too many nodes),
 * IO (registry).
 */
inspan_status_t fleet_register(fleet_t *fleet, const Inspan__V1__Register *message, const char *peer,
                               void *session, ns_t now, fleet_node_t **node, Inspan__V1__Registered *reply,
                               inspan_error_t *err);
/* After the reply was sent: orders that the agent missed. */
void fleet_catch_up(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Register *message, ns_t now);
void fleet_heartbeat(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Heartbeat *message, ns_t now);
/* A worker's line for those who watch the job. */
void fleet_note(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Note *message, ns_t now);
/* A worker became slower or faster; or the job is faster without it. */
void fleet_verdict(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Verdict *message, ns_t now);
void fleet_report(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__WorkerReport *message, ns_t now);
void fleet_broke(fleet_t *fleet, fleet_node_t *node, ns_t now); /* the stream ended without good-bye */
void fleet_left(fleet_t *fleet, fleet_node_t *node, ns_t now);

/* A checkpoint or a result to be registered. The answer's strings are err's. OK: it is in the registry. */
void fleet_artifact(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Artifact *message, ns_t now,
                    Inspan__V1__ArtifactAnswer *answer, inspan_error_t *err);
void fleet_ledger(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__LedgerSpans *message, ns_t now);

/* By name or id: its workers hand over and leave, it gets no more work; or it may be used again. NOT_FOUND,
 * IO: nothing has changed. */
inspan_status_t fleet_drain(fleet_t *fleet, const char *name, ns_t now, fleet_node_t **node,
                            inspan_error_t *err);
inspan_status_t fleet_unban(fleet_t *fleet, const char *name, fleet_node_t **node, inspan_error_t *err);

uint32_t fleet_n_nodes(const fleet_t *fleet);
fleet_node_t *fleet_node_at(const fleet_t *fleet, uint32_t index);
fleet_node_t *fleet_node_by_handle(const fleet_t *fleet, uint64_t handle);
/* The unfinished job on this node; NULL: idle. */
const fleet_job_t *fleet_job_on(const fleet_t *fleet, const fleet_node_t *node);
/* Its owner gives nothing of it just now. */
bool fleet_node_kept(const fleet_node_t *node);
const char *fleet_node_state(const fleet_t *fleet, const fleet_node_t *node); /* ready, busy, ... */

/* ---- Jobs */

/* On OK the job is in the registry. INVALID, LIMIT, NOT_FOUND, IO. */
inspan_status_t fleet_submit(fleet_t *fleet, const Inspan__V1__SubmitRequest *request, ns_t now,
                             fleet_job_t **job, inspan_error_t *err);
/* NOT_FOUND; IO: the cancellation could not be stored (yet). An ended job: OK, nothing happens. */
inspan_status_t fleet_cancel(fleet_t *fleet, uint64_t id, const char *text, ns_t now, fleet_job_t **job,
                             inspan_error_t *err);
fleet_job_t *fleet_job(const fleet_t *fleet, uint64_t id); /* in memory; NULL */
/* Does a job in memory name this file, as its data or as a result? */
bool fleet_names_file(const fleet_t *fleet, const char *hash);
uint32_t fleet_n_jobs(const fleet_t *fleet);
fleet_job_t *fleet_job_at(const fleet_t *fleet, uint32_t index); /* oldest first */
/* One from the registry that is not in memory any more; the caller frees it by fleet_job_free. NOT_FOUND,
 * CORRUPT. */
inspan_status_t fleet_job_load(fleet_t *fleet, uint64_t id, ns_t now, fleet_job_t **job, inspan_error_t *err);
void fleet_job_free(fleet_job_t *job);
/* From memory, or from the registry: then *loaded is the same, for the caller to free; else NULL. NULL: err
 * says why. */
const fleet_job_t *fleet_job_or_load(fleet_t *fleet, uint64_t id, ns_t now, fleet_job_t **loaded,
                                     inspan_error_t *err);

/* ---- For people: messages whose strings belong to the fleet; valid until its next call */

typedef struct fleet_info fleet_info_t;
/* NULL: no memory. whole: with config, results and summaries. */
fleet_info_t *fleet_job_info(const fleet_job_t *job, bool whole);
Inspan__V1__JobInfo *fleet_info_message(fleet_info_t *info);
void fleet_info_free(fleet_info_t *info);

#endif
