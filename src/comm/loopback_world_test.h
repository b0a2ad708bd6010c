/* For tests above comm: a world of ranks as threads of this process, with sockets on loopback. */
#ifndef COMM_LOOPBACK_WORLD_TEST_H
#define COMM_LOOPBACK_WORLD_TEST_H

#include "comm/comm.h"

#define LOOPBACK_RANKS_MAX 8

/* What one rank does; the communicator is closed after it returns. */
typedef void (*loopback_rank_fn)(inspan_comm_t *comm, uint32_t rank, void *context);

/* Open n ranks, run fn on a thread for each, close all. A rank that cannot open fails the test. */
void loopback_world_run(uint32_t n, loopback_rank_fn fn, void *context);

#endif
