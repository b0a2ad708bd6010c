/*
 * A worker's output in a file under a cap: PATH holds the newest part, PATH.1 the part before it; when PATH
 * has grown to half the cap it becomes PATH.1 and the older PATH.1 goes. Positions count from the first byte
 * ever written, so a reader sees what it missed. Always accepts (a full disk loses bytes, counted): a worker
 * never waits for its log.
 *
 * Threads: one writer; any number of readers.
 */
#ifndef AGENT_WORKER_LOG_H
#define AGENT_WORKER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#include "base/units.h"

#define WORKER_LOG_CAP ((uint64_t)16 << 20)

typedef struct worker_log worker_log_t;

/* Begin a new log. Counted: one reference is the caller's. IO (names the path), NO_MEMORY. */
inspan_status_t worker_log_create(const char *path, uint64_t cap, worker_log_t **log, inspan_error_t *err);
/* Go on with that of a worker which an earlier life of the agent has started. NOT_FOUND, IO, NO_MEMORY. */
inspan_status_t worker_log_continue(const char *path, uint64_t cap, worker_log_t **log, inspan_error_t *err);
/* That of an earlier worker, only to be read. NOT_FOUND. */
inspan_status_t worker_log_open(const char *path, worker_log_t **log, inspan_error_t *err);
worker_log_t *worker_log_hold(worker_log_t *log);
void worker_log_release(worker_log_t *log);

void worker_log_append(worker_log_t *log, const void *data, size_t bytes);
void worker_log_end(worker_log_t *log); /* no more will come: followers stop */

typedef struct worker_log_extent {
    uint64_t first, end; /* positions that are kept: [first, end) */
    uint64_t lost;       /* bytes that a full disk swallowed; not counted in positions */
    bool ended;
} worker_log_extent_t;

void worker_log_look(worker_log_t *log, worker_log_extent_t *extent);

/* Read from position *at (moved up to what is still kept, or can be read) at most size bytes; their number, 0
 * at the end. */
size_t worker_log_read(worker_log_t *log, uint64_t *at, void *data, size_t size);

/* Wait until there is more than `at`, or the end, or the timeout. */
void worker_log_wait(worker_log_t *log, uint64_t at, ns_t timeout);

#endif
