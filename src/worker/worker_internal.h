/* For the session's own tests: several sessions in one process, each with a path of its own. */
#ifndef WORKER_INTERNAL_H
#define WORKER_INTERNAL_H

#include <inspan/worker.h>

inspan_status_t worker_open_at(const char *path, inspan_worker_t **worker, inspan_error_t *err);

#endif
