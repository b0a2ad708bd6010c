/*
 * The communicator: collectives between the ranks of one view, and sends and receives between two of them,
 * asynchronous, over the data plane.
 *
 * All ranks of a communicator must start the same collectives in the same order (checked: MISMATCH); sends
 * and receives may stand anywhere between them. The first failure poisons the communicator: every pending and
 * later call on it fails at once on every rank that can still be reached, with the first cause; it never
 * recovers, a new view brings a new communicator. Results of failed operations are unspecified bytes: never
 * use them.
 *
 * Threads: the communicator has one I/O thread of its own; all calls may come from any thread, one call at a
 * time per communicator (the caller serialises), except inspan_op_wait and inspan_op_test, which are safe
 * from any thread.
 */
#ifndef INSPAN_COMM_H
#define INSPAN_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct inspan_comm inspan_comm_t;
typedef struct inspan_op inspan_op_t;

typedef enum inspan_dtype {
    INSPAN_FP32,
    INSPAN_FP64,
    INSPAN_FP16,
    INSPAN_BF16,
    INSPAN_INT32,
    INSPAN_INT64,
    INSPAN_UINT8, /* also truth values, 0 and 1 */
    INSPAN_INT8,
    INSPAN_INT16,
    INSPAN_DTYPES
} inspan_dtype_t;

/* How fp32 goes over the wire: as it is, or shorter and less exact. int8: 255 numbers and what they are
 * multiples of. */
typedef enum inspan_wire {
    INSPAN_WIRE_FP32,
    INSPAN_WIRE_BF16,
    INSPAN_WIRE_FP16,
    INSPAN_WIRE_INT8,
    INSPAN_WIRES
} inspan_wire_t;

/* Sums and products of integers wrap around. The bitwise ones are for integers alone. */
typedef enum inspan_reduction {
    INSPAN_SUM,
    INSPAN_MIN,
    INSPAN_MAX,
    INSPAN_PRODUCT,
    INSPAN_BIT_AND,
    INSPAN_BIT_OR,
    INSPAN_BIT_XOR,
    INSPAN_REDUCTIONS
} inspan_reduction_t;

INSPAN_API size_t inspan_dtype_size(inspan_dtype_t dtype);   /* bytes; 0 for an unknown one */
INSPAN_API const char *inspan_wire_name(inspan_wire_t wire); /* "fp32", "bf16", ... */
/* false: an unknown one, or a bitwise one of a floating-point type */
INSPAN_API bool inspan_reduces(inspan_dtype_t dtype, inspan_reduction_t reduction);

/* Which algorithm carries a collective. AUTO: by its size; once inspan_comm_tune has chosen, the cheapest by
 * the links. */
typedef enum inspan_schedule {
    INSPAN_SCHEDULE_AUTO,
    INSPAN_SCHEDULE_ONE_SHOT,
    INSPAN_SCHEDULE_DIRECT,
    INSPAN_SCHEDULE_RING,
    INSPAN_SCHEDULE_DOUBLING,
    INSPAN_SCHEDULE_TREES
} inspan_schedule_t;

#define INSPAN_NAME_MAX 64

/* One member of a view. Its rank in the communicator is its place in the view, without gaps; its number is
 * its own for the whole job, over all views. What a person reads calls the number the rank. */
typedef struct inspan_member {
    uint32_t number;
    char node[INSPAN_NAME_MAX];    /* the node's name, for people */
    char address[INSPAN_NAME_MAX]; /* numeric IPv4 or IPv6 (with %scope where it needs one), no port, no
                                      brackets */
    uint16_t port;                 /* data port */
    uint64_t incarnation;          /* of the worker process: tells a restarted one from its predecessor */
    uint64_t pace_sample_ns, pace_step_ns; /* how fast it was when last measured: compute of a sample, the
                                              rest of each step; 0: unknown. The same on all members */
} inspan_member_t;

/* The first failure, the same on all ranks that could be told. */
typedef struct inspan_cause {
    inspan_status_t status;
    int32_t rank;                    /* the rank at fault, -1 unknown */
    char node[INSPAN_NAME_MAX];      /* its node */
    char address[INSPAN_NAME_MAX];   /* its address:port */
    char operation[INSPAN_NAME_MAX]; /* "allreduce #17, 25.0 MB", "connect", ... */
    int64_t waited_ns;               /* how long the one who noticed had waited */
    int32_t noticed_by;              /* rank that noticed */
    char text[256];                  /* one line for people: all of the above and what to do */
} inspan_cause_t;

/*
 * Start out = sum (or another reduction) over ranks of in, element by element. count elements, the same on
 * all ranks; in and out are the caller's, must not overlap, and stay untouched (in) or unread (out) until the
 * operation finished. Does not block. On success *op is the handle: inspan_op_wait or inspan_op_test must see
 * it finished, that releases it. INVALID, LIMIT (more than 256 operations pending), or the status of the
 * cause that poisoned the communicator. (Schedules: Thakur, Rabenseifner, Gropp 2005; Patarasuk, Yuan 2009
 * for the ring.)
 */
INSPAN_API inspan_status_t inspan_allreduce(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                            inspan_dtype_t dtype, inspan_reduction_t reduction,
                                            inspan_op_t **op);

/*
 * The sum of fp32 with less on the wire: each rank's contribution is rounded to the wire type, the sum is
 * made in fp32 in rank order, and rounded once again; all ranks hold the same bits. The last exact_tail
 * elements go as they are, and so do sums of a few KB, and all in a world of one. error (count), or NULL:
 * what rounding took from this rank's contribution, and from the sums that it made; added to the next
 * contribution, nothing is lost in the long run (error feedback). It must not overlap in and out. NaN and
 * infinity stay visible: in int8 as NaN in all numbers that share their multiple; they leave no error. Else
 * as inspan_allreduce, with the direct schedule.
 */
INSPAN_API inspan_status_t inspan_allreduce_wire(inspan_comm_t *comm, const float *in, float *out,
                                                 float *error, uint64_t count, uint32_t exact_tail,
                                                 inspan_wire_t wire, inspan_op_t **op);

/* out (count elements long) holds the own shard of the sum at its place afterwards; shards by inspan_shard.
 */
INSPAN_API inspan_status_t inspan_reduce_scatter(inspan_comm_t *comm, const void *in, void *out,
                                                 uint64_t count, inspan_dtype_t dtype,
                                                 inspan_reduction_t reduction, inspan_op_t **op);

/* in holds the own shard at its place; out (count) all shards afterwards. */
INSPAN_API inspan_status_t inspan_allgather(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                            inspan_dtype_t dtype, inspan_op_t **op);

/* data (count) of root goes to all; on root it is only read. */
INSPAN_API inspan_status_t inspan_broadcast(inspan_comm_t *comm, void *data, uint64_t count,
                                            inspan_dtype_t dtype, uint32_t root, inspan_op_t **op);

INSPAN_API inspan_status_t inspan_barrier(inspan_comm_t *comm, inspan_op_t **op);

/* out (count) of root = the reduction over ranks of in (count); the others' out is not touched, and may be
 * NULL. */
INSPAN_API inspan_status_t inspan_reduce(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                         inspan_dtype_t dtype, inspan_reduction_t reduction, uint32_t root,
                                         inspan_op_t **op);

/*
 * Reduce-scatter and all-gather where each rank has a block of the same length, and has only it in memory:
 * out (count) = the reduction over ranks of block `rank` of in (world, count); out (world, count) = the in
 * (count) of all ranks. The all-gather's in may be its place in out; else in and out do not overlap.
 */
INSPAN_API inspan_status_t inspan_reduce_scatter_blocks(inspan_comm_t *comm, const void *in, void *out,
                                                        uint64_t count, inspan_dtype_t dtype,
                                                        inspan_reduction_t reduction, inspan_op_t **op);
INSPAN_API inspan_status_t inspan_allgather_blocks(inspan_comm_t *comm, const void *in, void *out,
                                                   uint64_t count, inspan_dtype_t dtype, inspan_op_t **op);

/* What goes to one rank, or comes from it. */
typedef struct inspan_part {
    void *data;     /* (count) of what is sent, only read */
    uint64_t count; /* elements, 0 allowed */
} inspan_part_t;

/*
 * Exchanges: root gets in (count) of rank r in parts[r], its own too; root gives parts[r] to rank r's out
 * (count); every rank gives to[r] to rank r and gets from[r] from it. parts, to, from: (world) read at once
 * (on the other ranks of a gather or scatter not read at all); what they point to is the caller's until the
 * operation finishes, and parts do not overlap where one is written. Both ends must name the same count and
 * dtype, else MISMATCH. They are made of sends and receives, two per rank at the most (LIMIT: with them more
 * than 256 operations would be pending), in call order of their kind: they finish when this rank's parts are
 * there and gone, and no order with other collectives is checked.
 */
INSPAN_API inspan_status_t inspan_gather(inspan_comm_t *comm, const void *in, uint64_t count,
                                         const inspan_part_t *parts, inspan_dtype_t dtype, uint32_t root,
                                         inspan_op_t **op);
INSPAN_API inspan_status_t inspan_scatter(inspan_comm_t *comm, const inspan_part_t *parts, void *out,
                                          uint64_t count, inspan_dtype_t dtype, uint32_t root,
                                          inspan_op_t **op);
INSPAN_API inspan_status_t inspan_alltoall(inspan_comm_t *comm, const inspan_part_t *to,
                                           const inspan_part_t *from, inspan_dtype_t dtype, inspan_op_t **op);

/*
 * Start sending count elements to rank `to`, or receiving them from rank `from` (also oneself). Of one
 * sender, one receiver and one tag, the first send meets the first receive, the second the second, ...; other
 * tags go their own way. Both must name the same count and dtype, else MISMATCH for all, naming both. Data
 * moves when both sides have started, straight into the receiver's memory: a send finishes when data may be
 * overwritten, which is never before its receive has been started, so start the receives before waiting for a
 * send. Tags are below UINT32_MAX - 15. data is the caller's and stays untouched (send) or unread (receive)
 * until then; the two must not overlap where they are one rank's. Does not block; handle and errors as of
 * inspan_allreduce.
 */
INSPAN_API inspan_status_t inspan_send(inspan_comm_t *comm, const void *data, uint64_t count,
                                       inspan_dtype_t dtype, uint32_t to, uint32_t tag, inspan_op_t **op);
INSPAN_API inspan_status_t inspan_receive(inspan_comm_t *comm, void *data, uint64_t count,
                                          inspan_dtype_t dtype, uint32_t from, uint32_t tag,
                                          inspan_op_t **op);

/*
 * Compare what all ranks measured of their links (while operations ran), and choose by it how all-reduces of
 * each size are carried from now on: schedule, and whose share of the sums is how large. All ranks call it,
 * in the same order as operations, while none is pending. Two short operations; where no link has changed by
 * 15 %, one, and *changed is false. Nothing to do where schedule or weights are forced, or another backend
 * than native carries them. Blocks for timeout_ns at most: then, and on any other failure, the communicator
 * has failed, and the status is the cause's; INVALID: operations are pending.
 */
INSPAN_API inspan_status_t inspan_comm_tune(inspan_comm_t *comm, int64_t timeout_ns, bool *changed);

/* A rank's port as inspan_comm_tune last found it. The same on all ranks. false: nothing was chosen yet,
 * *port is as before. */
typedef struct inspan_port {
    double up, down; /* bytes per second; 0: it was never what held its data up */
    /* it is only about so: a processor or a radio is behind it, not the port alone */
    bool up_wavers, down_wavers;
    int64_t latency_ns; /* from program to program, to the nearest other rank; 0: not known */
} inspan_port_t;
INSPAN_API bool inspan_comm_port(const inspan_comm_t *comm, uint32_t rank, inspan_port_t *port);

/* How an all-reduce of so many bytes is carried. false: by its size alone, inspan_comm_tune has chosen
 * nothing. */
typedef struct inspan_choice {
    inspan_schedule_t schedule;
    /* (world) shares of the sums, any scale; NULL: equal ones. Valid until the next tune */
    const double *weights;
    int64_t predicted_ns; /* of the size that choices near it were made for */
    uint64_t bytes;       /* that size */
} inspan_choice_t;
INSPAN_API bool inspan_comm_choice(const inspan_comm_t *comm, uint64_t bytes, inspan_choice_t *choice);
/* "auto", "one-shot", "direct", ... */
INSPAN_API const char *inspan_schedule_name(inspan_schedule_t schedule);

/* Elements [*first, *first + *n) of a count-long buffer are rank's shard. */
INSPAN_API void inspan_shard(const inspan_comm_t *comm, uint64_t count, uint32_t rank, uint64_t *first,
                             uint64_t *n);

/*
 * Block until op finished or timeout_ns passed (at least 0). OK or the failure's status: op is released.
 * TIMEOUT: op goes on and must be waited for again (or aborted). Waiting uses no CPU.
 */
INSPAN_API inspan_status_t inspan_op_wait(inspan_op_t *op, int64_t timeout_ns);
INSPAN_API inspan_status_t inspan_op_test(inspan_op_t *op); /* PENDING, else as wait: op is released */

/* Give up: poisons the communicator on all ranks with cause ABORTED. The handles still have to be waited for.
 */
INSPAN_API void inspan_comm_abort(inspan_comm_t *comm, const char *why);

INSPAN_API uint32_t inspan_comm_rank(const inspan_comm_t *comm);
INSPAN_API uint32_t inspan_comm_world(const inspan_comm_t *comm);
INSPAN_API const inspan_member_t *inspan_comm_member(const inspan_comm_t *comm, uint32_t rank);
INSPAN_API bool inspan_comm_cause(const inspan_comm_t *comm, inspan_cause_t *cause); /* false: healthy */

typedef struct inspan_comm_stats {
    uint64_t operations, bytes_sent, bytes_received; /* since the start, payload of this rank */
    int64_t busy_ns;                                 /* time in which at least one operation was pending */
    int64_t io_cpu_ns;                               /* CPU time of the I/O thread */
} inspan_comm_stats_t;
INSPAN_API void inspan_comm_stats(const inspan_comm_t *comm, inspan_comm_stats_t *stats);

/*
 * Flush what is promised (bounded by 1 s), close all sockets, free. Not from a callback. Operations still
 * pending fail with ABORTED on all ranks; a thread that waits for one must have returned before: handles end
 * with the communicator.
 */
INSPAN_API void inspan_comm_close(inspan_comm_t *comm);

#ifdef __cplusplus
}
#endif
#endif
