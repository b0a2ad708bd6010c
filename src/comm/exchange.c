/*
 * Gather, scatter, all-to-all: sends and receives under one handle. All of a call's transfers are handed over
 * at once, so nothing in them waits for another; the last one to finish finishes the handle, and a failure of
 * the communicator finishes them all. They carry tags of their own, one for each kind, so that they meet only
 * their like, in call order.
 */
#include "comm/internal.h"

typedef struct exchange {
    inspan_comm_t *comm;
    inspan_op_t *op;
    inspan_op_t *parts; /* taken, linked by next_free, not yet handed over */
    inspan_dtype_t dtype;
    uint32_t tag;
} exchange_t;

static void part_done(void *context, inspan_status_t status)
{
    inspan_op_t *op = context;
    if (status != INSPAN_OK) op->parts_status = status;
    if (--op->parts_left == 0) comm_op_finish(op->comm, op, op->parts_status);
}

/* Handles for the whole and its parts, or none at all; with the lock held. */
static inspan_status_t take(exchange_t *exchange, uint32_t parts)
{
    inspan_comm_t *comm = exchange->comm;
    inspan_status_t status = comm_take_op(comm, UINT64_MAX, &exchange->op);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < parts && status == INSPAN_OK; i++) {
        inspan_op_t *part = NULL;
        status = comm_take_op(comm, UINT64_MAX, &part);
        if (status != INSPAN_OK) break;
        part->next_free = exchange->parts;
        exchange->parts = part;
    }
    if (status == INSPAN_OK) {
        exchange->op->parts_left = parts;
        exchange->op->parts_status = INSPAN_OK;
        return INSPAN_OK;
    }
    while (exchange->parts != NULL) {
        inspan_op_t *part = exchange->parts;
        exchange->parts = part->next_free;
        comm_return_op(comm, part);
    }
    comm_return_op(comm, exchange->op);
    return status;
}

static void add(exchange_t *exchange, bool receive, uint32_t peer, const inspan_part_t *part)
{
    inspan_op_t *op = exchange->parts;
    exchange->parts = op->next_free;
    op->done = part_done;
    op->done_context = exchange->op;
    const comm_transfer_t what = {.receive = receive,
                                  .dtype = (uint8_t)exchange->dtype,
                                  .peer = peer,
                                  .tag = exchange->tag,
                                  .data = part->data,
                                  .count = part->count};
    comm_queue_transfer(exchange->comm, op, &what);
}

/* May these be carried? NULL: there are none. */
static bool valid(const inspan_comm_t *comm, const inspan_part_t *parts, size_t size)
{
    for (uint32_t i = 0; parts != NULL && i < comm->world; i++)
        if (parts[i].count > INT64_MAX / size || (parts[i].count > 0 && parts[i].data == NULL)) return false;
    return true;
}

/* one_to, one_from: a single part to or from `root`, in place of one for each rank; all may be NULL. */
static inspan_status_t start(exchange_t *exchange, const inspan_part_t *to, const inspan_part_t *from,
                             const inspan_part_t *one_to, const inspan_part_t *one_from, uint32_t root,
                             inspan_op_t **op)
{
    inspan_comm_t *comm = exchange->comm;
    const uint32_t world = comm->world, rank = comm->rank;
    const uint32_t parts =
        (to != NULL ? world : 0) + (from != NULL ? world : 0) + (one_to != NULL) + (one_from != NULL);
    pthread_mutex_lock(&comm->lock);
    const inspan_status_t status = take(exchange, parts);
    if (status == INSPAN_OK) {
        /* Receives first: their senders wait for them. Each rank begins with its own neighbour. */
        if (one_from != NULL) add(exchange, true, root, one_from);
        for (uint32_t i = 0; from != NULL && i < world; i++)
            add(exchange, true, (rank + world - i) % world, &from[(rank + world - i) % world]);
        if (one_to != NULL) add(exchange, false, root, one_to);
        for (uint32_t i = 0; to != NULL && i < world; i++)
            add(exchange, false, (rank + i) % world, &to[(rank + i) % world]);
        *op = exchange->op;
    }
    pthread_mutex_unlock(&comm->lock);
    if (status == INSPAN_OK) comm_wake(comm);
    return status;
}

inspan_status_t inspan_gather(inspan_comm_t *comm, const void *in, uint64_t count, const inspan_part_t *parts,
                              inspan_dtype_t dtype, uint32_t root, inspan_op_t **op)
{
    const size_t size = inspan_dtype_size(dtype);
    if (comm == NULL || op == NULL || size == 0 || root >= comm->world) return INSPAN_INVALID;
    const bool is_root = comm->rank == root;
    if (count > INT64_MAX / size || (count > 0 && in == NULL) || (is_root && parts == NULL))
        return INSPAN_INVALID;
    if (is_root && !valid(comm, parts, size)) return INSPAN_INVALID;
    exchange_t exchange = {.comm = comm, .dtype = dtype, .tag = COMM_TAG_GATHER};
    const inspan_part_t own = {(void *)(uintptr_t)in, count}; /* what is sent is only read */
    return start(&exchange, NULL, is_root ? parts : NULL, &own, NULL, root, op);
}

inspan_status_t inspan_scatter(inspan_comm_t *comm, const inspan_part_t *parts, void *out, uint64_t count,
                               inspan_dtype_t dtype, uint32_t root, inspan_op_t **op)
{
    const size_t size = inspan_dtype_size(dtype);
    if (comm == NULL || op == NULL || size == 0 || root >= comm->world) return INSPAN_INVALID;
    const bool is_root = comm->rank == root;
    if (count > INT64_MAX / size || (count > 0 && out == NULL) || (is_root && parts == NULL))
        return INSPAN_INVALID;
    if (is_root && !valid(comm, parts, size)) return INSPAN_INVALID;
    exchange_t exchange = {.comm = comm, .dtype = dtype, .tag = COMM_TAG_SCATTER};
    const inspan_part_t own = {out, count};
    return start(&exchange, is_root ? parts : NULL, NULL, NULL, &own, root, op);
}

inspan_status_t inspan_alltoall(inspan_comm_t *comm, const inspan_part_t *to, const inspan_part_t *from,
                                inspan_dtype_t dtype, inspan_op_t **op)
{
    const size_t size = inspan_dtype_size(dtype);
    if (comm == NULL || op == NULL || size == 0 || to == NULL || from == NULL) return INSPAN_INVALID;
    if (!valid(comm, to, size) || !valid(comm, from, size)) return INSPAN_INVALID;
    exchange_t exchange = {.comm = comm, .dtype = dtype, .tag = COMM_TAG_ALLTOALL};
    return start(&exchange, to, from, NULL, NULL, 0, op);
}
