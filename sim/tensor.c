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

/* ---- Layouts ----------------------------------------------------------------------------------- */

#define FIRST_LAYOUT 0x1a1au

static uint32_t parameters(const sim_t *sim)
{
    return sim->config.buckets - 1;
}

uint32_t sim_buckets(const sim_t *sim, uint32_t layout)
{
    return layout == 0 ? sim->config.buckets : 2 + layout % parameters(sim);
}

static bool lies_in(const sim_t *sim, uint32_t layout, uint32_t parameter, uint32_t bucket)
{
    return (parameter + layout) % (sim_buckets(sim, layout) - 1) == bucket;
}

elastic_layout_t sim_layout(const sim_t *sim, uint32_t layout)
{
    return (elastic_layout_t){FIRST_LAYOUT + layout, sim_buckets(sim, layout)};
}

uint32_t sim_layout_of(uint64_t hash)
{
    return (uint32_t)(hash - FIRST_LAYOUT);
}

uint32_t sim_marks(const sim_t *sim, uint32_t layout, uint32_t bucket)
{
    uint32_t n = 0;
    if (bucket + 1 == sim_buckets(sim, layout)) return 0;
    for (uint32_t p = 0; p < parameters(sim); p++) n += lies_in(sim, layout, p, bucket);
    return n * sim->config.elements;
}

/* The tally: who computed each lease, then loss and evaluation sums. */
uint32_t sim_width(const sim_t *sim, uint32_t layout, uint32_t bucket)
{
    const bool tally = bucket + 1 == sim_buckets(sim, layout);
    return sim_marks(sim, layout, bucket) + sim->config.leases + (tally ? 4 : 0);
}

static uint32_t place(const sim_t *sim, uint32_t layout, uint32_t parameter, uint32_t *bucket)
{
    uint32_t before = 0;
    *bucket = 0;
    while (!lies_in(sim, layout, parameter, *bucket)) ++*bucket;
    for (uint32_t p = 0; p < parameter; p++) before += lies_in(sim, layout, p, *bucket);
    return before * sim->config.elements;
}

const double *sim_sum(const sim_t *sim, const sim_sums_t *sums, uint32_t layout, uint32_t parameter)
{
    uint32_t bucket = 0;
    const uint32_t at = place(sim, layout, parameter, &bucket);
    return sums->values[bucket] + at;
}

/* ---- Weights and gradients --------------------------------------------------------------------- */

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

static void add_gradients(const sim_t *sim, double *to, uint64_t key, uint32_t parameter)
{
    for (uint32_t k = 0; k < sim->config.elements; k++)
        to[k] += (double)(sim_mix(key ^ (uint64_t)parameter << 24 ^ k) % 256);
}

void sim_add_lease(const sim_t *sim, sim_sums_t *sums, const sim_model_t *model, uint64_t step,
                   uint32_t lease, uint32_t layout, uint32_t bucket, uint32_t number)
{
    double *to = sums->values[bucket];
    const uint64_t key = sim_light(sim, step) ? 0 : fold(sim, model) ^ step << 40 ^ (uint64_t)lease << 32;
    if (bucket + 1 == sim_buckets(sim, layout)) {
        to[lease] += (double)(number + 1);
        to[sim->config.leases] += (double)(sim_mix(key ^ 5) % 1000); /* loss */
        for (uint32_t i = 1; i < 4; i++) to[sim->config.leases + i] += (double)(lease + i);
        return;
    }
    for (uint32_t p = 0; p < parameters(sim); p++) {
        if (!lies_in(sim, layout, p, bucket)) continue;
        add_gradients(sim, to, key, p);
        to += sim->config.elements;
    }
    to[lease] += 1;
}

void sim_apply(const sim_t *sim, sim_model_t *model, const double *sum, uint32_t parameter)
{
    for (uint32_t k = 0; k < sim->config.elements; k++) {
        uint64_t m = (3 * (uint64_t)model->moments[parameter][k] + (uint64_t)sum[k]) % 4096;
        uint64_t w = ((uint64_t)model->weights[parameter][k] + 5 * m + 1) % 65536;
        model->moments[parameter][k] = (double)m;
        model->weights[parameter][k] = (double)w;
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
