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
 * (written by a newer Inspan), CORRUPT (the quick check found damage), IO. busy_timeout 0: 5 s.
 */
inspan_status_t registry_open(const char *folder, ns_t busy_timeout, registry_t **registry,
                              inspan_error_t *err);
void registry_close(registry_t *registry);

const char *registry_cluster_id(const registry_t *registry); /* random UUID, made at the first start */
uint64_t registry_incarnation(const registry_t *registry);   /* 1 at the first start */
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
} registry_node_t;

typedef struct registry_job {
    uint64_t id; /* 0: a new job, gets the next; ids are never used again */
    const char *name, *state, *outcome, *reason;
    ns_t submitted_wall, started_wall, ended_wall;
    registry_blob_t request; /* SubmitRequest; written once */
    registry_blob_t failure; /* Failure */
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

inspan_status_t registry_put_node(registry_t *registry, registry_node_t *node, inspan_error_t *err);
inspan_status_t registry_put_job(registry_t *registry, registry_job_t *job, const registry_rank_t *ranks,
                                 uint32_t n_ranks, inspan_error_t *err);
inspan_status_t registry_put_rank(registry_t *registry, const registry_rank_t *rank, inspan_error_t *err);
/* A view number of a job is written once: EXISTS. Stores the ranks as they bound, too. */
inspan_status_t registry_put_view(registry_t *registry, const registry_view_t *view,
                                  const registry_rank_t *ranks, uint32_t n_ranks, inspan_error_t *err);
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
inspan_status_t registry_each_event(registry_t *registry, uint64_t job, registry_event_visit_t visit,
                                    void *context, inspan_error_t *err);

#endif
