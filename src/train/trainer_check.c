/* What is looked at between steps: the held-out loss, and whether all ranks hold the same weights. */
#include "base/hash.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

/* The first so many: the same samples whatever the number of ranks. */
static uint64_t evaluated_samples(const trainer_t *trainer)
{
    const uint64_t all = nn_data_validation_samples(trainer->data),
                   most = trainer->job.train.evaluate_samples;
    return most > 0 && most < all ? most : all;
}

inspan_status_t trainer_evaluate(trainer_t *trainer, const inspan_work_t *work, inspan_tally_t *tally,
                                 inspan_error_t *err)
{
    const uint64_t all = evaluated_samples(trainer);
    const uint64_t first = all * work->first_lease / work->total_leases,
                   end = all * (work->first_lease + work->leases) / work->total_leases;
    const uint64_t targets = trainer->model_config.kind == NN_GPT ? trainer->model_config.context : 1;
    const ns_t start = os_now();
    for (uint64_t at = first; at < end;) {
        nn_batch_t batch;
        double loss = 0;
        uint64_t correct = 0;
        const uint32_t size = end - at < trainer->micro_batch ? (uint32_t)(end - at) : trainer->micro_batch;
        nn_data_validation_batch(trainer->data, at, size, &batch);
        inspan_status_t status = nn_model_evaluate(trainer->model, &batch, &loss, &correct, err);
        if (status != INSPAN_OK) return status;
        tally->evaluation_loss_sum += loss;
        tally->evaluation_samples += size;
        tally->evaluation_right += (double)correct / (double)targets;
        at += size;
    }
    trainer->evaluation += os_now() - start;
    return INSPAN_OK;
}

uint64_t trainer_hash(const trainer_t *trainer)
{
    const size_t size = trainer->model_config.dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < trainer->n_params; i++)
        hash = hash64(trainer->params[i].weights, trainer->params[i].count * size, hash);
    return hash;
}
