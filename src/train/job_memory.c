/* Memory that a worker of a job needs. */
#include <string.h>

#include "base/error.h"
#include "train/job.h"

inspan_status_t job_memory(const job_config_t *job, const nn_model_config_t *model, uint32_t micro_batch,
                           uint64_t data_bytes, uint64_t *bytes, inspan_error_t *err)
{
    uint64_t weights = 0, activations = 0;
    if (micro_batch == 0)
        micro_batch = job->train.micro_batch > 0 ? job_micro_batch(job, job->train.global_batch) : 1;
    inspan_status_t status = nn_model_memory(model, micro_batch, &weights, &activations, err);
    if (status != INSPAN_OK) return status;
    /* Weights, local gradients, reduced gradients, moments of the optimiser. */
    const uint64_t moments = strcmp(job->train.optimizer, "adamw") == 0 ? 2 : job->train.momentum > 0;
    uint64_t copies = 3 + moments;
    if (job_wire(job) == INSPAN_WIRE_INT8 || (job_wires(job) >> INSPAN_WIRE_INT8 & 1) != 0)
        copies++; /* what rounding took away */
    /* The anchor, room to evaluate it, its momentum. */
    const bool local = job_is_local(job);
    if (local) copies += 3;
    /* What a checkpoint is written from. */
    if (job->checkpoint.every > 0) copies += 1 + (local ? 1 : moments);
    /* A number of a CSV text has at least 2 bytes and becomes a real of 4 or 8, a row's label and its place
     * in the order 4 each, with the text beside while it is read: the narrowest row, "1,0", has the same
     * factors. */
    const uint64_t factor = strcmp(job->data.kind, "csv") != 0 ? 1 : model->dtype == NN_FP64 ? 5 : 3;
    const uint64_t process = 64u << 20; /* code, stacks, buffers of the wire */
    if (weights > UINT64_MAX / 16 || __builtin_add_overflow(weights * copies, activations, bytes) ||
        __builtin_mul_overflow(data_bytes, factor, &data_bytes) ||
        __builtin_add_overflow(*bytes, data_bytes, bytes) || __builtin_add_overflow(*bytes, process, bytes))
        return error_set(err, INSPAN_INVALID, "the size of model and data passes 2^64 bytes");
    return INSPAN_OK;
}
