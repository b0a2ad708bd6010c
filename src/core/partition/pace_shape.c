/* The shape of the pace model, t(b) = a + b c (+ e): fitted from the sizes of micro-batches seen; which size
 * to use. */
#include "core/partition/pace_internal.h"

#include <math.h>
#include <string.h>

#define SEEN_ENOUGH   2    /* blocks of a size before it counts in the fit */
#define APART         1.5  /* largest / smallest size: nearer ones say nothing about a */
#define OVERHEAD_MOST 64   /* samples */
#define TOLERANCE     0.03 /* that a smaller micro-batch may cost */
#define TOLERANCE_FEW 0.08 /* where else a share would have less than RUNS_FEW runs */
#define RUNS          6
#define RUNS_FEW      4
#define BACKWARD      (2.0 / 3) /* part of a micro-batch that is its backward pass */

double pace_units(const pace_model_t *m, const pace_block_t *block)
{
    return block->runs * m->overhead + block->samples + block->lasts * m->excess;
}

double pace_median(const double *values, uint32_t n)
{
    double sorted[PACE_EXTRAS];
    if (n == 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > values[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = values[i];
    }
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static uint32_t ring(uint32_t n)
{
    return n < PACE_EXTRAS ? n : PACE_EXTRAS;
}

/* Least squares of units = slope b + intercept, weighted by how often each size was seen. False: too little
 * seen. */
static bool fit(const pace_model_t *m, double *slope, double *intercept)
{
    double w = 0, x = 0, y = 0, xx = 0, xy = 0, least = INFINITY, most = 0;
    for (uint32_t i = 0; i < PACE_SIZES; i++) {
        const pace_size_t *size = &m->sizes[i];
        if (size->seen < SEEN_ENOUGH) continue;
        const double b = size->samples, weight = ring(size->seen) / (b * b); /* noise is relative */
        const double units = pace_median(size->units, ring(size->seen));
        w += weight;
        x += weight * b;
        y += weight * units;
        xx += weight * b * b;
        xy += weight * b * units;
        least = fmin(least, b);
        most = fmax(most, b);
    }
    if (most < APART * least) return false;
    *slope = (w * xy - x * y) / (w * xx - x * x);
    *intercept = (y - *slope * x) / w;
    return *slope > 0;
}

static pace_size_t *size_slot(pace_model_t *m, uint32_t samples)
{
    pace_size_t *rarest = &m->sizes[0];
    for (uint32_t i = 0; i < PACE_SIZES; i++) {
        if (m->sizes[i].seen > 0 && m->sizes[i].samples == samples) return &m->sizes[i];
        if (m->sizes[i].seen < rarest->seen) rarest = &m->sizes[i];
    }
    *rarest = (pace_size_t){.samples = samples};
    return rarest;
}

bool pace_is_new_size(const pace_model_t *m, uint32_t samples)
{
    bool others = false;
    for (uint32_t i = 0; i < PACE_SIZES; i++) {
        if (m->sizes[i].seen < SEEN_ENOUGH) continue;
        const double known = m->sizes[i].samples;
        if (samples < APART * known && known < APART * samples) return false;
        others = true;
    }
    return others;
}

/* With another overhead the same times mean another level: what is published for the sizes in use stays as it
 * was. */
static void reshape(pace_model_t *m, double overhead)
{
    const double before = pace_level(m, 0, m->n_window);
    m->overhead = overhead;
    const double shift = pace_level(m, 0, m->n_window) - before;
    pace_shift(m, shift);
    for (uint32_t i = 0; i < PACE_SIZES; i++)
        for (uint32_t j = 0; j < PACE_EXTRAS; j++) m->sizes[i].units[j] /= exp(shift);
    for (uint32_t i = 0; i < PACE_EXTRAS; i++) m->excesses[i] /= exp(shift);
    m->excess /= exp(shift);
}

void pace_learn_size(pace_model_t *m, const pace_block_t *block, uint32_t samples)
{
    pace_size_t *size = size_slot(m, samples);
    const double units = block->ns / block->runs / exp(pace_level(m, 0, m->n_window));
    size->units[size->seen++ % PACE_EXTRAS] = units;
    double slope, intercept;
    if (!fit(m, &slope, &intercept)) return;
    reshape(m, fmax(0, fmin(intercept / slope, OVERHEAD_MOST)));
}

void pace_learn_excess(pace_model_t *m, const pace_block_t *block)
{
    const double units =
        block->ns / exp(pace_level(m, 0, m->n_window)) - block->runs * m->overhead - block->samples;
    m->excesses[m->n_excesses++ % PACE_EXTRAS] = units / block->lasts;
    m->excess = fmax(0, pace_median(m->excesses, ring(m->n_excesses)));
}

double pace_excess_noise(const pace_model_t *m, const pace_block_t *block)
{
    if (m->n_excesses == 0) return 0;
    double away[PACE_EXTRAS];
    const uint32_t n = ring(m->n_excesses);
    for (uint32_t i = 0; i < n; i++) away[i] = fabs(m->excesses[i] - m->excess);
    return 1.5 * block->lasts * pace_median(away, n) / pace_units(m, block);
}

double pace_sample_ns(const pace_estimate_t *estimate, uint32_t b)
{
    return estimate->slope_ns + estimate->run_ns / (b > 0 ? b : 1);
}

double pace_run_ns(const pace_model_t *model, double samples, bool last)
{
    if (!model->known) return 0;
    return exp(model->published) * (model->overhead + samples + (last ? model->excess : 0));
}

static uint32_t seen(const pace_model_t *m, uint32_t samples)
{
    for (uint32_t i = 0; i < PACE_SIZES; i++)
        if (m->sizes[i].samples == samples) return m->sizes[i].seen;
    return 0;
}

/* Smallest micro-batch that costs at most (1 + tolerance) of what `most` costs per sample. */
static uint32_t smallest(const pace_model_t *m, uint32_t most, double tolerance)
{
    const double run = m->overhead / ((1 + tolerance) * (1 + m->overhead / most) - 1);
    return run < 1 ? 1 : run < most ? (uint32_t)ceil(run) : most;
}

uint32_t pace_best_run(const pace_model_t *model, uint32_t most, uint32_t need)
{
    double slope, intercept;
    if (most == 0) most = 1;
    uint32_t run;
    if (fit(model, &slope, &intercept))
        run = smallest(model, most, TOLERANCE);
    else
        run = seen(model, most) >= SEEN_ENOUGH ? most / 2 : most;
    if (run < need) run = need;
    return run < 1 ? 1 : run < most ? run : most;
}

/* Run sizes before two are known: a sixth of the share, and what is half or twice of that. */
static uint32_t teaching_run(const pace_model_t *m, uint32_t share, uint32_t most)
{
    uint32_t run = share / RUNS;
    run = run < 1 ? 1 : run < most ? run : most;
    if (seen(m, run) < SEEN_ENOUGH) return run;
    if (2 * run <= most && 4 * run <= share) return 2 * run;
    return run > 1 ? run / 2 : 1;
}

void pace_runs(const pace_model_t *model, uint32_t share, uint32_t capacity, double reduction_ns,
               uint32_t *run, uint32_t *last)
{
    if (share == 0) share = 1;
    if (capacity == 0) capacity = 1;
    const uint32_t most = share < capacity ? share : capacity;
    double slope, intercept;
    if (!fit(model, &slope, &intercept)) {
        *run = teaching_run(model, share, most);
    } else {
        *run = smallest(model, most, TOLERANCE);
        if (*run * RUNS_FEW > share) {
            const uint32_t few = smallest(model, most, TOLERANCE_FEW), quarter = share / RUNS_FEW;
            *run = few > quarter ? few : quarter > 0 ? quarter : 1;
        }
    }
    if (share > 1 && *run > share - 1) *run = share - 1;
    const uint32_t rest = share > *run ? share - *run : 1, ceiling = rest < capacity ? rest : capacity;
    const double sample_ns = model->known ? exp(model->published) : 0;
    const double hides = sample_ns > 0 ? ceil(reduction_ns / BACKWARD / sample_ns) : 0;
    *last = hides < *run ? *run : hides < ceiling ? (uint32_t)hides : ceiling;
    if (*last > ceiling) *last = ceiling;
}
