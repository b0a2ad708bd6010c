/*
 * A backend at work in a communicator: its operations are runs of the executor like others, with plans that
 * have no schedule.
 *
 *   run_begin, POST of a peer -> engine_offer: all ranks have called it -> queue -> thread: backend->submit
 *                                                                                   |
 *   exec_run_end <- engine_take_back (I/O thread, woken) <- given back <------------+
 *
 * A run that the backend has (`held`) keeps its buffers until it is given back, also when the communicator
 * has failed: what its caller hears of then, a moment after the abort, is that nobody touches the buffers any
 * more.
 *
 * When an operation of the backend fails while the communicator knows of no failure, one is on its way: a
 * rank that fails breaks the backend's connections at the same moment in which it says why on the
 * communicator's own. Only if nothing is heard for ENGINE_GRACE, the backend's own account counts.
 */
#ifndef COMM_BACKENDS_ENGINE_H
#define COMM_BACKENDS_ENGINE_H

#include "comm/internal.h"

#define ENGINE_GRACE (NS_PER_S / 2)

/*
 * Use the backend over these sockets (world; the caller's, of which the backend makes copies). Calling
 * thread, before the communicator is started. OK with comm->engine NULL: native. UNSUPPORTED, NO_MEMORY, IO.
 */
inspan_status_t engine_open(inspan_comm_t *comm, const backend_t *backend, const char *address,
                            const int *sockets, inspan_error_t *err);
void engine_close(inspan_comm_t *comm); /* nothing is held; joins the thread. NULL engine is fine */

bool engine_carries(const inspan_comm_t *comm, const data_call_t *call);            /* calling thread */
void engine_traffic(const inspan_comm_t *comm, uint64_t *sent, uint64_t *received); /* any thread */

/* I/O thread */
void engine_offer(inspan_comm_t *comm);     /* operations that all ranks have called begin */
void engine_take_back(inspan_comm_t *comm); /* those that it is done with */
void engine_abort(inspan_comm_t *comm);     /* the communicator fails */
void engine_tick(inspan_comm_t *comm);

/* backends/agree.c: do all ranks use this backend, of one version, and can they? Over the sockets (world)
 * that will be the backend's; kept (world): the communicator's own. Blocks for failure_timeout at most.
 * UNSUPPORTED or MISMATCH, the same on all ranks; TIMEOUT, PEER_LOST, ABORTED (options->cancel), what a peer
 * gave up for. On failure *cause says whose fault it is, where that is known. */
inspan_status_t backend_agree(const comm_options_t *options, const backend_t *backend, const int *kept,
                              const int *sockets, inspan_cause_t *cause, inspan_error_t *err);

#endif
