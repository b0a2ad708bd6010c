/*
 * What every transport and every backend must pass: the same cases over worlds of ranks, whatever carries
 * them. Their tests give a harness, which runs one function per rank, and call conformance_run. A case that
 * needs what the backend does not have is skipped by name.
 */
#ifndef COMM_CONFORMANCE_TEST_H
#define COMM_CONFORMANCE_TEST_H

#include "comm/backends/backend.h"
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
    const backend_t *backend; /* that open uses; NULL: native */
} harness_t;

/* cmocka's assertions jump, which only its own thread may do: ranks record, the main thread asserts. */
extern int conformance_failures;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %u: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                   \
            __atomic_fetch_add(&conformance_failures, 1, __ATOMIC_RELAXED);                                  \
            return;                                                                                          \
        }                                                                                                    \
    } while (0)

/* Sanitizers cost a factor of ten and more: the same paths with less. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LESS 4
#else
#define LESS 1
#endif

int transfer_conformance_run(const harness_t *harness); /* sends and receives; called by the next */
int exchange_conformance_run(const harness_t *harness); /* exchanges and blocks; too */
int conformance_run(const harness_t *harness);

#endif
