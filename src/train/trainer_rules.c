/* The trainer's rules that need neither ranks nor clocks. */
#include "train/trainer_internal.h"

bool trainer_is_due(const trainer_t *trainer, uint64_t every, uint64_t step)
{
    return step == trainer->first_step || step == trainer->job.train.steps ||
           (every > 0 && step % every == 0);
}

inspan_status_t trainer_micro_batch(const job_config_t *job, const nn_model_config_t *model,
                                    uint64_t data_bytes, uint64_t memory, uint32_t *micro_batch,
                                    inspan_error_t *err)
{
    *micro_batch = job_micro_batch(job, job->train.global_batch);
    for (; job->train.micro_batch == 0 && *micro_batch > 1; *micro_batch /= 2) {
        uint64_t weights = 0, activations = 0, all = 0;
        inspan_status_t status = nn_model_memory(model, *micro_batch, &weights, &activations, err);
        if (status == INSPAN_OK) status = job_memory(job, model, *micro_batch, data_bytes, &all, err);
        if (status != INSPAN_OK || (activations <= memory / 2 && all <= memory)) return status;
    }
    return INSPAN_OK;
}

double trainer_speed(trainer_t *trainer, ns_t now)
{
    uint64_t steps = trainer->applied < TRAIN_RECENT - 1 ? trainer->applied : TRAIN_RECENT - 1;
    ns_t *slot = &trainer->recent[(trainer->applied + TRAIN_RECENT - 1) % TRAIN_RECENT];
    now -= trainer->evaluation; /* that clock stands still while held-out samples are looked at */
    if (trainer->applied > 0) *slot = now;
    if (steps == 0) return 0;
    ns_t since = trainer->recent[(trainer->applied - steps + TRAIN_RECENT - 1) % TRAIN_RECENT];
    return now > since ? (double)(steps * trainer->job.train.global_batch) / ns_to_s(now - since) : 0;
}
