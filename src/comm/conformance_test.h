/*
 * What every transport must pass: the same cases over worlds of ranks, whatever carries them. A transport's
 * test gives a harness, which runs one function per rank, and calls conformance_run.
 */
#ifndef COMM_CONFORMANCE_TEST_H
#define COMM_CONFORMANCE_TEST_H

#include "comm/comm.h"

typedef struct world {
    uint32_t n;
    inspan_comm_t *comms[16];
    void *self;
    /* Wait until the operation of this rank is finished, with a bound; its status. */
    inspan_status_t (*wait)(struct world *world, uint32_t rank, inspan_op_t *op);
    /* Call fn for every rank (at once, where ranks are threads) and return when all are done. */
    void (*each)(struct world *world, void (*fn)(struct world *world, uint32_t rank, void *context),
                 void *context);
} world_t;

typedef struct harness {
    const char *name;
    /* A world with these options (rank, world, members, io, listener, key are filled in). */
    void (*open)(world_t *world, uint32_t n, const comm_options_t *options);
    void (*close)(world_t *world);
} harness_t;

int conformance_run(const harness_t *harness);

#endif
