/* What the communicator itself needs of the I/O thread beyond comm/comm.h. Any thread. */
#ifndef COMM_IO_H
#define COMM_IO_H

#include "comm/comm.h"

bool comm_io_is_current(const comm_io_t *io); /* the caller is the I/O thread */
ns_t comm_io_cpu(comm_io_t *io);              /* CPU time of the I/O thread */

/* Return when the callback that runs now, if one does, is over. Not from a callback. */
void comm_io_barrier(comm_io_t *io);

/*
 * While at least one call with `on` is not taken back, the thread polls for up to 50 us, yielding, before it
 * blocks: for who waits for a short operation and does nothing else, where a wake-up costs more than the
 * wait. Without the yield, ranks that share a core wait for the ends of each other's time slices (8 ms an
 * operation). From any thread.
 */
void comm_io_spin(comm_io_t *io, bool on);

#endif
