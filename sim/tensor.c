/*
 * Tiny real tensors. All values are small whole numbers, so sums are exact in any order and in any split;
 * every gradient depends on all weights, so a wrong weight anywhere shows in everything that follows. The
 * update is a fold that a lost, doubled or mixed-up contribution cannot pass unseen.
 */
#include <string.h>

#include "sim/internal.h"

bool sim_light(const sim_t *sim, uint64_t step)
{
    return step >= sim->config.steps;
}

/* A bucket: gradients, then one mark a lease. The tally: who computed each lease, then loss and evaluation
 * sums. */
uint32_t sim_width(const sim_t *sim, uint32_t bucket)
{
    if (bucket + 1 == sim->config.buckets) return sim->config.leases + 4;
    return sim->config.elements + sim->config.leases;
}

void sim_model_first(const sim_t *sim, sim_model_t *model)
{
    memset(model, 0, sizeof *model);
    for (uint32_t b = 0; b + 1 < sim->config.buckets; b++)
        for (uint32_t k = 0; k < sim->config.elements; k++)
            model->weights[b][k] = (double)(sim_mix(sim->options.seed + 97 * b + k) % 1024);
}

static uint64_t fold(const sim_t *sim, const sim_model_t *model)
{
    uint64_t sum = 0;
    for (uint32_t b = 0; b + 1 < sim->config.buckets; b++)
        for (uint32_t k = 0; k < sim->config.elements; k++)
            sum = sum * 31 + (uint64_t)(int64_t)model->weights[b][k] +
                  7 * (uint64_t)(int64_t)model->moments[b][k];
    return sum;
}

double sim_gradient(const sim_t *sim, const sim_model_t *model, uint64_t step, uint32_t lease,
                    uint32_t bucket, uint32_t element)
{
    uint64_t key = fold(sim, model) ^ step << 40 ^ (uint64_t)lease << 32 ^ (uint64_t)bucket << 24 ^ element;
    return (double)(sim_mix(key) % 256);
}

void sim_add_lease(const sim_t *sim, sim_sums_t *sums, const sim_model_t *model, uint64_t step,
                   uint32_t lease, uint32_t bucket, uint32_t number)
{
    double *to = sums->values[bucket];
    const uint64_t key = sim_light(sim, step) ? 0 : fold(sim, model) ^ step << 40 ^ (uint64_t)lease << 32;
    if (bucket + 1 == sim->config.buckets) {
        to[lease] += (double)(number + 1);
        to[sim->config.leases] += (double)(sim_mix(key ^ 5) % 1000); /* loss */
        for (uint32_t i = 1; i < 4; i++) to[sim->config.leases + i] += (double)(lease + i);
        return;
    }
    for (uint32_t k = 0; k < sim->config.elements; k++)
        to[k] += (double)(sim_mix(key ^ (uint64_t)bucket << 24 ^ k) % 256);
    to[sim->config.elements + lease] += 1;
}

void sim_apply(const sim_t *sim, sim_model_t *model, const double *sum, uint32_t bucket)
{
    for (uint32_t k = 0; k < sim->config.elements; k++) {
        uint64_t m = (3 * (uint64_t)model->moments[bucket][k] + (uint64_t)sum[k]) % 4096;
        uint64_t w = ((uint64_t)model->weights[bucket][k] + 5 * m + 1) % 65536;
        model->moments[bucket][k] = (double)m;
        model->weights[bucket][k] = (double)w;
    }
}

uint64_t sim_model_hash(const sim_t *sim, const sim_model_t *model, uint32_t bucket)
{
    uint64_t hash = bucket + 1;
    for (uint32_t k = 0; k < sim->config.elements; k++)
        hash =
            sim_mix(hash ^ (uint64_t)model->weights[bucket][k] << 20 ^ (uint64_t)model->moments[bucket][k]);
    return hash;
}
