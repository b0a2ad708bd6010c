/* The trainer's rules that need neither ranks nor clocks. */
#include <stdio.h>

#include "train/trainer_internal.h"

static bool same_hash(const double *halves, uint32_t a, uint32_t b)
{
    return halves[2 * a] == halves[2 * b] && halves[2 * a + 1] == halves[2 * b + 1];
}

inspan_status_t trainer_micro_batch(const job_config_t *job, const nn_model_config_t *model,
                                    uint64_t largest_share, uint64_t data_bytes, uint64_t memory,
                                    uint32_t *micro_batch, inspan_error_t *err)
{
    *micro_batch = job_micro_batch(job, largest_share);
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
    uint64_t steps = trainer->step < TRAIN_RECENT - 1 ? trainer->step : TRAIN_RECENT - 1;
    ns_t *slot = &trainer->recent[(trainer->step + TRAIN_RECENT - 1) % TRAIN_RECENT];
    now -= trainer->evaluation; /* that clock stands still while held-out samples are looked at */
    if (trainer->step > 0) *slot = now;
    if (steps == 0) return 0;
    ns_t since = trainer->recent[(trainer->step - steps + TRAIN_RECENT - 1) % TRAIN_RECENT];
    return now > since ? (double)(steps * trainer->job.train.global_batch) / ns_to_s(now - since) : 0;
}

uint32_t trainer_odd_ones(const double *halves, uint32_t world, char *text, size_t size)
{
    uint32_t common = 0, most = 0, odd = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < world; i++) {
        uint32_t holders = 0;
        for (uint32_t k = 0; k < world; k++) holders += same_hash(halves, i, k);
        if (holders > most) {
            most = holders;
            common = i;
        }
    }
    if (size > 0) text[0] = '\0';
    for (uint32_t i = 0; i < world; i++) {
        if (same_hash(halves, i, common)) continue;
        int n = used < size ? snprintf(text + used, size - used, "%s%u", odd > 0 ? ", " : "", i) : 0;
        used += n > 0 ? (size_t)n : 0;
        odd++;
    }
    return odd;
}
