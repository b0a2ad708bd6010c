/* Collectives in which a rank has only its own part of the whole in memory: to one root, or in equal blocks.
 */
#include "comm/internal.h"

/* Bytes of `blocks` times count elements; false: more than there can be, or no such type. */
static bool sizes(inspan_dtype_t dtype, uint64_t count, uint32_t blocks, uint64_t *bytes, uint64_t *all)
{
    const size_t size = inspan_dtype_size(dtype);
    if (size == 0 || count > INT64_MAX / size / blocks) return false;
    *bytes = count * size;
    *all = *bytes * blocks;
    return true;
}

inspan_status_t inspan_reduce(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                              inspan_dtype_t dtype, inspan_reduction_t reduction, uint32_t root,
                              inspan_op_t **op)
{
    uint64_t bytes = 0, all = 0;
    if (comm == NULL || op == NULL || root >= comm->world || !sizes(dtype, count, 1, &bytes, &all))
        return INSPAN_INVALID;
    if (!inspan_reduces(dtype, reduction) || (bytes > 0 && in == NULL)) return INSPAN_INVALID;
    if (comm->rank == root && ((bytes > 0 && out == NULL) || comm_overlap(in, bytes, out, bytes)))
        return INSPAN_INVALID;
    data_call_t call = comm_call_of(SCHED_REDUCE_SCATTER, count, dtype, reduction);
    call.owners = SCHED_BY_ROOT;
    call.root = root;
    return comm_start(comm, call, &(comm_buffers_t){.in = in, .out = out}, op);
}

inspan_status_t inspan_reduce_scatter_blocks(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                             inspan_dtype_t dtype, inspan_reduction_t reduction,
                                             inspan_op_t **op)
{
    uint64_t bytes = 0, all = 0;
    if (comm == NULL || op == NULL || !sizes(dtype, count, comm->world, &bytes, &all)) return INSPAN_INVALID;
    if (!inspan_reduces(dtype, reduction) || (bytes > 0 && (in == NULL || out == NULL)))
        return INSPAN_INVALID;
    if (comm_overlap(in, all, out, bytes)) return INSPAN_INVALID;
    data_call_t call = comm_call_of(SCHED_REDUCE_SCATTER, count * comm->world, dtype, reduction);
    call.owners = SCHED_BY_BLOCKS;
    return comm_start(comm, call, &(comm_buffers_t){.in = in, .out = out, .out_first = comm->rank * count},
                      op);
}

inspan_status_t inspan_allgather_blocks(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                        inspan_dtype_t dtype, inspan_op_t **op)
{
    uint64_t bytes = 0, all = 0;
    if (comm == NULL || op == NULL || !sizes(dtype, count, comm->world, &bytes, &all)) return INSPAN_INVALID;
    if (bytes > 0 && (in == NULL || out == NULL)) return INSPAN_INVALID;
    const bool in_place = (uintptr_t)in == (uintptr_t)out + comm->rank * bytes;
    if (!in_place && comm_overlap(in, bytes, out, all)) return INSPAN_INVALID;
    data_call_t call = comm_call_of(SCHED_ALLGATHER, count * comm->world, dtype, INSPAN_SUM);
    call.owners = SCHED_BY_BLOCKS;
    return comm_start(comm, call, &(comm_buffers_t){.in = in, .out = out, .in_first = comm->rank * count},
                      op);
}
