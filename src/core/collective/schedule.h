/*
 * Collectives as data: a schedule says, for one rank, which chunks it sends, receives, reduces and copies,
 * and what each of these waits for. Pure: no socket, clock or thread. The executor (comm), the checker, the
 * pricer and the simulator all read the same schedule.
 *
 * Buffers: IN is the caller's input, OUT its result (they may be the same memory only for a broadcast), TMP
 * scratch of `tmp_elements`. A chunk is a range of elements, the same on all ranks; an operation names a
 * chunk and, for each side, a buffer; in IN and OUT the chunk lies at its own range, in TMP at `tmp_offset`
 * of the operation. A COPY between the same memory (broadcast's root) is nothing to do. Without elements
 * there is nothing to do at all (but a barrier). The chunks cut [0, count) without gap or overlap.
 *
 * An operation may start when the operations in `after` have finished. SEND finishes when its source may be
 * overwritten, RECV and RECV_REDUCE when the data has arrived and been placed or added. A SEND and its RECV
 * meet by (source rank, destination rank, chunk, tag), which is unique in a schedule. Operations without
 * dependencies between them may run in any order; of one peer's that may start, the executor starts the one
 * first in the list.
 *
 * Expression trees: the order of additions is fixed by `after` alone, so that all ranks hold the same bits.
 */
#ifndef COLLECTIVE_SCHEDULE_H
#define COLLECTIVE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

typedef enum sched_collective {
    SCHED_ALLREDUCE,      /* IN (count) -> OUT (count) on all ranks                                    */
    SCHED_REDUCE_SCATTER, /* IN (count) -> OUT holds the own shard, at its place in a count-long buffer */
    SCHED_ALLGATHER,      /* IN holds the own shard at its place -> OUT (count) on all ranks            */
    SCHED_BROADCAST,      /* root's IN (count) -> OUT (count) on all ranks                              */
    SCHED_BARRIER         /* no data: dissemination                                                     */
} sched_collective_t;

typedef enum sched_algorithm {
    SCHED_ONE_SHOT, /* all send all to all, one hop; sum in rank order                       */
    SCHED_DIRECT,   /* direct sharded: the owner of a chunk reduces it in rank order         */
    SCHED_RING,     /* reduce-scatter, then all-gather around the ring; sum in ring order    */
    SCHED_DOUBLING, /* recursive doubling, an all-reduce of whole inputs; sum in pairs          */
    SCHED_TREES,    /* two complementary binary trees, an all-reduce; sum up the tree           */
    SCHED_ALGORITHMS
} sched_algorithm_t;

typedef enum sched_kind {
    SCHED_SEND,        /* src buffer -> peer                                     */
    SCHED_RECV,        /* peer -> dst buffer                                     */
    SCHED_RECV_REDUCE, /* dst = dst + peer's data (this order of operands)       */
    SCHED_COPY,        /* dst = src, local                                       */
    SCHED_REDUCE       /* dst = dst + src, local                                 */
} sched_kind_t;

typedef enum sched_buffer { SCHED_IN, SCHED_OUT, SCHED_TMP } sched_buffer_t;

#define SCHED_NONE UINT32_MAX

/* Whose which elements are, of a reduce-scatter or an all-gather. */
typedef enum sched_owners {
    SCHED_BY_SHARDS, /* sched_shard                                                     */
    SCHED_BY_BLOCKS, /* rank i has the i-th of `world` blocks of the same length        */
    SCHED_BY_ROOT,   /* the root has all: a reduce-scatter is then a reduce to the root */
    SCHED_OWNERS
} sched_owners_t;

typedef struct sched_chunk {
    uint64_t first, count; /* elements */
    uint32_t owner;        /* rank whose shard it is; SCHED_NONE where all reduce it (one-shot, doubling) */
    bool exact;            /* goes over the wire as it is, whatever the others do */
} sched_chunk_t;

typedef struct sched_op {
    uint8_t kind;     /* sched_kind_t */
    uint8_t src, dst; /* sched_buffer_t, where the kind has one */
    bool staged;      /* the receiver may be unable to place it at once: sent only with its credit */
    bool result;   /* makes a sum that others are sent: rounded as they will have it, where that is shorter */
    uint32_t peer; /* SEND, RECV, RECV_REDUCE */
    uint32_t chunk;      /* index in chunks */
    uint32_t tag;        /* tells transfers of one chunk between the same two ranks apart */
    uint32_t after[2];   /* indices of earlier operations of this rank, or SCHED_NONE */
    uint64_t tmp_offset; /* elements, for a TMP side */
} sched_op_t;

/*
 * Elements [*first, *first + *n) of `count` are rank's shard: consecutive ranks, in proportion to weights
 * (NULL: equal; a weight of 0: none), boundaries at multiples of 32 elements (64 bytes and more for any type)
 * where the shards are long enough that this costs no balance. The same on every machine. weights must be as
 * sched_build wants them.
 */
void sched_shard(uint64_t count, uint32_t world, const double *weights, uint32_t rank, uint64_t *first,
                 uint64_t *n);

/* false: the algorithm does not exist for this collective (sched_build gives INVALID). */
bool sched_supports(sched_collective_t collective, sched_algorithm_t algorithm);

typedef struct sched_request {
    sched_collective_t collective;
    sched_algorithm_t algorithm; /* not every pair exists: sched_supports */
    sched_owners_t owners;       /* reduce-scatter and all-gather; else SCHED_BY_SHARDS */
    uint32_t world, rank, root;  /* world >= 1, root for broadcast and SCHED_BY_ROOT */
    uint64_t count;              /* elements, 0 allowed; by blocks: a multiple of world */
    uint64_t exact_tail; /* of them, at the end: chunks of their own that are exact. Direct all-reduce only */
    uint32_t element_size; /* bytes */
    uint64_t chunk_bytes;  /* at most this much in one chunk, > 0 */
    const double
        *weights; /* (world) share of the shards per rank, finite, >= 0, not all 0; NULL: equal. Only
                     the direct all-reduce, reduce-scatter and all-gather have other than equal ones */
} sched_request_t;

typedef struct schedule {
    sched_collective_t collective;
    sched_algorithm_t algorithm;
    uint32_t world, rank, root;
    uint64_t count, tmp_elements;
    sched_chunk_t *chunks; /* (n_chunks) the same on all ranks */
    uint32_t n_chunks;
    sched_op_t *ops; /* (n_ops) this rank's */
    uint32_t n_ops;
} schedule_t;

/* Build this rank's part. INVALID, NO_MEMORY, LIMIT (more than 2^32-2 operations). The result is freed by
 * sched_free. */
inspan_status_t sched_build(const sched_request_t *request, schedule_t **out);
void sched_free(schedule_t *schedule); /* NULL is fine */

/*
 * Prove a schedule right for all ranks together: symbolic execution of all parts (ranks[0..world)). Every
 * rank that shall hold a result holds every contribution exactly once; all ranks the same expression tree per
 * element; no deadlock, even if a SEND finishes only when its RECV does and each peer's transfers go strictly
 * in list order; no operation outside a buffer; no two operations on the same elements, one of them writing,
 * without an order by `after`; every SEND meets one RECV. INVALID with a text that names rank, operation and
 * chunk of the first fault; NO_MEMORY.
 */
inspan_status_t sched_check(const schedule_t *const *ranks, uint32_t world, inspan_error_t *err);

const char *sched_algorithm_name(sched_algorithm_t algorithm); /* "one-shot", "direct", ... */

#endif
