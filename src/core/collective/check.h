/* What the checker's files share. Private to this folder. Operations are numbered through over all ranks
 * here. */
#ifndef COLLECTIVE_CHECK_H
#define COLLECTIVE_CHECK_H

#include "base/error.h"
#include "core/collective/pairs.h"
#include "core/collective/schedule.h"

typedef struct checker {
    const schedule_t *const *ranks;
    uint32_t world;
    inspan_error_t *err;
    uint64_t *base;    /* (world + 1) number of each rank's first operation */
    uint64_t *partner; /* (operations) the other end of a transfer, or CHECK_NONE */
    uint64_t *order;   /* (operations) an order in which all can run, a send right before its receive */
} checker_t;

#define CHECK_NONE PAIRS_NONE

uint32_t check_rank_of(const checker_t *checker, uint64_t number);
const sched_op_t *check_op(const checker_t *checker, uint64_t number);

/* err = "rank 2, operation 17 (receive 1 -> 2, chunk 5 [80, 96), tag 0): text"; gives INVALID. */
inspan_status_t check_fault(const checker_t *checker, uint64_t number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline inspan_status_t check_no_memory(const checker_t *checker)
{
    error_set(checker->err, INSPAN_NO_MEMORY, "schedule: out of memory while checking it");
    return INSPAN_NO_MEMORY; /* and not OK, which an analyser would have to believe of error_set */
}

/* Both ends of a transfer as one event, so that nothing depends on buffering: fills order. INVALID,
 * NO_MEMORY. */
inspan_status_t check_deadlock(checker_t *checker);
/* Operations of one rank that touch the same elements, one of them writing, stand in an order. */
inspan_status_t check_races(const checker_t *checker);
/* Run everything on symbols, in checker->order: what each rank holds at the end. */
inspan_status_t check_values(const checker_t *checker);

static inline bool check_writes(const sched_op_t *op) /* into its dst */
{
    return op->kind != SCHED_SEND;
}

static inline bool check_reads_src(const sched_op_t *op)
{
    return op->kind == SCHED_SEND || op->kind == SCHED_COPY || op->kind == SCHED_REDUCE;
}

static inline bool check_has_peer(const sched_op_t *op)
{
    return op->kind == SCHED_SEND || op->kind == SCHED_RECV || op->kind == SCHED_RECV_REDUCE;
}

#endif
