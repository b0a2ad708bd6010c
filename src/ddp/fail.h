/* The two ways in which every part of ddp waits for an operation and reports a failed one. */
#ifndef DDP_FAIL_H
#define DDP_FAIL_H

#include <inspan/comm.h>

/* Wait at most timeout_ns; on TIMEOUT the communicator is aborted and the handle still released. */
inspan_status_t ddp_wait(inspan_comm_t *comm, inspan_op_t *op, int64_t timeout_ns);

/* Fill err with the communicator's first cause if it has one, else with status and what was being done. */
inspan_status_t ddp_fail(const inspan_comm_t *comm, inspan_status_t status, const char *doing,
                         inspan_error_t *err);

#endif
