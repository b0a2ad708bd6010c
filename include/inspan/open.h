/*
 * Communicators for programs that are no workers of a job: a data port, a communicator between processes that
 * found each other by means of their own, and finished operations in a queue.
 *
 *     inspan_io_open(&io, &err);                          one thread for all communicators of the process
 *     inspan_listen(0, 0, &listener, &port, &err);        then tell the others: address, port, incarnation
 *     inspan_comm_open(&options, &comm, &err);            all of them, at about the same time
 *     inspan_listener_close(listener);
 *     ... collectives; inspan_comm_close(comm);
 *     inspan_io_close(io);
 */
#ifndef INSPAN_OPEN_H
#define INSPAN_OPEN_H

#include <inspan/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct comm_io inspan_io_t;
typedef struct comm_listener inspan_listener_t;

/* The thread that moves all data, asleep while there is nothing to do. NO_MEMORY, IO. Close it after the last
 * communicator. NULL may be closed. */
INSPAN_API inspan_status_t inspan_io_open(inspan_io_t **io, inspan_error_t *err);
INSPAN_API void inspan_io_close(inspan_io_t *io);

/*
 * Bind a data port: the first free one of [first_port, last_port] (0, 0: any), on all addresses, IPv6 and
 * IPv4. Members may connect before inspan_comm_open. EXISTS: none is free (the text names the range); IO.
 */
INSPAN_API inspan_status_t inspan_listen(uint16_t first_port, uint16_t last_port,
                                         inspan_listener_t **listener, uint16_t *port, inspan_error_t *err);
INSPAN_API void inspan_listener_close(inspan_listener_t *listener); /* NULL: nothing to do */

#define INSPAN_KEY_BYTES 32

typedef struct inspan_comm_options {
    inspan_io_t *io;
    inspan_listener_t *listener; /* stays the caller's, not needed once it is open; NULL where world is 1 */
    uint64_t job, view;          /* the same on all members, and no others' */
    uint32_t rank, world;
    const inspan_member_t *members; /* (world) copied; addresses as this process reaches the others */
    uint8_t key[INSPAN_KEY_BYTES];  /* proves membership; never logged, never sent */
    int64_t failure_timeout_ns; /* >= 1 s, the same on all: connecting gets this long, and who is silent for
                                   twice this long while something is expected is lost */
} inspan_comm_options_t;

/*
 * Connect every pair of ranks, in both directions, with a probe of 64 KiB. Blocks for 2 x failure_timeout at
 * most. The text names pair, direction, address and port. REFUSED, UNREACHABLE, TIMEOUT, AUTH, VERSION,
 * MISMATCH, INVALID, NO_MEMORY, IO.
 */
INSPAN_API inspan_status_t inspan_comm_open(const inspan_comm_options_t *options, inspan_comm_t **comm,
                                            inspan_error_t *err);

/*
 * Operations take too long: where the oldest has been pending for pending_ns (> 0) by now, poison the
 * communicator with TIMEOUT, naming the rank that it waits for (one that did not make the call, or does not
 * send, or does not receive). Else nothing happens. Does not block; handles still have to be waited for. Any
 * thread.
 */
INSPAN_API void inspan_comm_expire(inspan_comm_t *comm, int64_t pending_ns);

/* ---- Finished operations in a queue ----------------------------------------------------------- */

typedef struct inspan_queue inspan_queue_t;

typedef struct inspan_finished {
    uint64_t token;
    inspan_status_t status;
} inspan_finished_t;

INSPAN_API inspan_status_t inspan_queue_open(inspan_queue_t **queue); /* NO_MEMORY */
/* No operation has it any more, and nobody waits in it. NULL may be closed. */
INSPAN_API void inspan_queue_close(inspan_queue_t *queue);

/*
 * When op finishes, put its status with this token into the queue; the handle is then released, and no other
 * call may use it from now on. For the thread that started op, right after. NO_MEMORY: op is as before.
 */
INSPAN_API inspan_status_t inspan_op_to_queue(inspan_op_t *op, inspan_queue_t *queue, uint64_t token);

/*
 * Take at most `most` (>= 1) of what has finished, oldest first; *n: how many. Blocks, without CPU, until
 * there is one, inspan_queue_wake was called since the last return (OK, *n may be 0), or timeout_ns (>= 0)
 * passed: TIMEOUT, *n is 0. One thread at a time.
 */
INSPAN_API inspan_status_t inspan_queue_take(inspan_queue_t *queue, int64_t timeout_ns,
                                             inspan_finished_t *finished, size_t most, size_t *n);
INSPAN_API void inspan_queue_wake(inspan_queue_t *queue); /* any thread */

#ifdef __cplusplus
}
#endif
#endif
