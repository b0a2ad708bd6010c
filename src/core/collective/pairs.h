/* Which SEND meets which RECV. Private to this folder. Operations are numbered through over all ranks. */
#ifndef COLLECTIVE_PAIRS_H
#define COLLECTIVE_PAIRS_H

#include "core/collective/schedule.h"

#define PAIRS_NONE UINT64_MAX

typedef struct pairs_fault {
    uint64_t number; /* of the operation */
    bool twice;      /* its transfer exists already; else: it has no other end */
} pairs_fault_t;

static inline bool sched_receives(const sched_op_t *op)
{
    return op->kind == SCHED_RECV || op->kind == SCHED_RECV_REDUCE;
}

/*
 * partner (operations): the number of a transfer's other end, PAIRS_NONE for local operations. base (world +
 * 1): the number of each rank's first operation. INVALID (fault says where), NO_MEMORY.
 */
inspan_status_t pairs_match(const schedule_t *const *ranks, uint32_t world, const uint64_t *base,
                            uint64_t *partner, pairs_fault_t *fault);

#endif
