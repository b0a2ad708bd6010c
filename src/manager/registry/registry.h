/*
 * The registry: what the manager must still know after kill -9 or power loss, in <folder>/registry.db
 * (SQLite, WAL, synchronous=FULL). The only includer of sqlite3.h.
 *
 * One writer: the manager's one process (held by <folder>/lock) and in it one thread. Every write is one
 * immediate transaction, committed when the call returns OK; a failed call has changed nothing. A call blocks
 * for the disk, and at most busy_timeout when another program holds the database. Errors: IO (disk full, disk
 * failing, locked for too long), CORRUPT; the text names the file.
 *
 * Blobs are the caller's bytes (packed protobuf); the registry does not look inside.
 */
#ifndef MANAGER_REGISTRY_H
#define MANAGER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#include "base/units.h"

typedef struct registry registry_t;

/*
 * Open or create; raises the manager's incarnation. EXISTS (another manager uses the folder), VERSION
 * (written by a newer Inspan), IO. busy_timeout 0: 5 s.
 *
 * A file that the quick check finds damaged, or that is no database, is moved aside
 * (registry.db.damaged-<wall seconds>) and a new one is made: registry_notice tells. The cluster's id, the
 * incarnation and the numbers of jobs go on from <folder>/cluster, a few lines written at each start.
 */
inspan_status_t registry_open(const char *folder, ns_t busy_timeout, registry_t **registry,
                              inspan_error_t *err);
void registry_close(registry_t *registry);

const char *registry_cluster_id(const registry_t *registry); /* random UUID, made at the first start */
uint64_t registry_incarnation(const registry_t *registry);   /* 1 at the first start */
/* What people must know of the registry itself; "": nothing. Said for a day. */
const char *registry_notice(const registry_t *registry);
/* A consistent copy of everything committed so far, to a file that is not there yet. EXISTS, IO. */
inspan_status_t registry_backup(registry_t *registry, const char *path, inspan_error_t *err);
uint64_t
registry_wal_bytes(const registry_t *registry); /* size of the log file: an alarm, when others read long */

typedef struct registry_blob {
    const void *data;
    size_t bytes;
} registry_blob_t;

typedef struct registry_node {
    uint64_t handle; /* 0: gets one: a new one, or that of the row with this node_id */
    const char *node_id, *name, *address, *state;
    uint64_t incarnation;
    ns_t registered_wall, seen_wall;
    registry_blob_t registration; /* Register */
    bool drained, quarantined;
    ns_t cool_until_wall;
    uint32_t losses_in_a_row;
    registry_blob_t losses; /* the owner's: when workers were lost here */
} registry_node_t;

typedef struct registry_job {
    uint64_t id; /* 0: a new job, gets the next; ids are never used again */
    const char *name, *state, *outcome, *reason;
    ns_t submitted_wall, started_wall, ended_wall;
    registry_blob_t request; /* SubmitRequest; written once */
    registry_blob_t failure; /* Failure */
    bool elastic;
    uint32_t workers_lost;
    registry_blob_t verdicts; /* JobInfo with verdicts and left_out alone; written by registry_put_verdicts */
} registry_job_t;

typedef struct registry_rank {
    uint64_t job;
    uint32_t rank;
    uint64_t node;
    const char *node_name, *node_id, *address, *state;
    uint32_t port, pid;
    uint64_t incarnation;
    registry_blob_t report; /* WorkerReport: the last one */
} registry_rank_t;

typedef struct registry_view {
    uint64_t job, view;
    registry_blob_t key;
    registry_blob_t members; /* View */
} registry_view_t;

/* A checkpoint, or the final model. */
typedef struct registry_artifact {
    uint64_t job, step, view;
    bool result;
    ns_t wall;
    registry_blob_t message; /* Artifact */
} registry_artifact_t;

/* Committed steps [first_step, last_step] with the same shares. */
typedef struct registry_span {
    uint64_t job, first_step, last_step, view;
    registry_blob_t shares; /* LedgerSpan */
} registry_span_t;

/* How fast a node was with a model, with so many hundredths of a core. */
typedef struct registry_speed {
    const char *node_id, *model_key;
    uint32_t centicores;
    uint64_t micro_batch, sample_ns, step_ns;
    ns_t wall;
} registry_speed_t;
#define REGISTRY_SPEEDS_OF_NODE 64 /* the newest are kept */

inspan_status_t registry_put_node(registry_t *registry, registry_node_t *node, inspan_error_t *err);
inspan_status_t registry_put_job(registry_t *registry, registry_job_t *job, const registry_rank_t *ranks,
                                 uint32_t n_ranks, inspan_error_t *err);
inspan_status_t registry_put_rank(registry_t *registry, const registry_rank_t *rank, inspan_error_t *err);
/* A view number of a job is written once: EXISTS. Stores the ranks as they bound, too. */
inspan_status_t registry_put_view(registry_t *registry, const registry_view_t *view,
                                  const registry_rank_t *ranks, uint32_t n_ranks, inspan_error_t *err);
/*
 * P1: accepted only if its view is the job's newest, looked up in the same transaction: ABORTED. The same one
 * again: OK. Of checkpoints the newest `keep` stay (keep >= 1).
 */
inspan_status_t registry_put_artifact(registry_t *registry, const registry_artifact_t *artifact,
                                      uint32_t keep, inspan_error_t *err);
/*
 * Spans may come again, longer, overlapping, and late: a step has the record of its newest view, and within
 * a view the first. INVALID: last_step before first_step.
 */
inspan_status_t registry_put_spans(registry_t *registry, uint64_t job, uint64_t seed, uint64_t batch,
                                   const registry_span_t *spans, uint32_t n, inspan_error_t *err);
/* OK also where there is no such job. */
inspan_status_t registry_put_verdicts(registry_t *registry, uint64_t job, registry_blob_t verdicts,
                                      inspan_error_t *err);
/* The last one of the same node, model and cores counts. */
inspan_status_t registry_put_speed(registry_t *registry, const registry_speed_t *speed, inspan_error_t *err);
/* What happened, for people; the newest 100,000 are kept. job or node 0: none. */
inspan_status_t registry_put_event(registry_t *registry, ns_t wall, uint64_t job, uint64_t node,
                                   const char *text, inspan_error_t *err);

/* Reading: the visitor sees each row, its strings and blobs valid during the visit only; false ends the
 * reading. */
typedef bool (*registry_node_visit_t)(void *context, const registry_node_t *node);
typedef bool (*registry_job_visit_t)(void *context, const registry_job_t *job);
typedef bool (*registry_rank_visit_t)(void *context, const registry_rank_t *rank);
typedef bool (*registry_view_visit_t)(void *context, const registry_view_t *view);
typedef bool (*registry_event_visit_t)(void *context, ns_t wall, const char *text);

inspan_status_t registry_each_node(registry_t *registry, registry_node_visit_t visit, void *context,
                                   inspan_error_t *err);
/* id 0: the newest `limit` jobs and all unfinished ones, oldest first. */
inspan_status_t registry_each_job(registry_t *registry, uint64_t id, uint32_t limit,
                                  registry_job_visit_t visit, void *context, inspan_error_t *err);
inspan_status_t registry_each_rank(registry_t *registry, uint64_t job, registry_rank_visit_t visit,
                                   void *context, inspan_error_t *err);
inspan_status_t registry_last_view(registry_t *registry, uint64_t job, registry_view_visit_t visit,
                                   void *context, inspan_error_t *err);
typedef bool (*registry_artifact_visit_t)(void *context, const registry_artifact_t *artifact);
typedef bool (*registry_span_visit_t)(void *context, const registry_span_t *span);

/* Checkpoints, oldest first, then results. */
inspan_status_t registry_each_artifact(registry_t *registry, uint64_t job, registry_artifact_visit_t visit,
                                       void *context, inspan_error_t *err);
/* At most `limit` of those that begin at `from` or later. */
inspan_status_t registry_each_span(registry_t *registry, uint64_t job, uint64_t from, uint32_t limit,
                                   registry_span_visit_t visit, void *context, inspan_error_t *err);
/* Both 0: the job has no ledger. */
inspan_status_t registry_ledger(registry_t *registry, uint64_t job, uint64_t *seed, uint64_t *batch,
                                inspan_error_t *err);
typedef bool (*registry_speed_visit_t)(void *context, const registry_speed_t *speed);
/* model_key NULL: of all models. The newest first, at most `limit`. */
inspan_status_t registry_each_speed(registry_t *registry, const char *model_key, uint32_t limit,
                                    registry_speed_visit_t visit, void *context, inspan_error_t *err);
/* That of this node, model and cores: fills the rest; sample_ns 0: none. */
inspan_status_t registry_find_speed(registry_t *registry, registry_speed_t *speed, inspan_error_t *err);
inspan_status_t registry_each_event(registry_t *registry, uint64_t job, registry_event_visit_t visit,
                                    void *context, inspan_error_t *err);

#endif
