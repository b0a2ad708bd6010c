/* The shape of the pace model, t(b) = a + b c (+ e): fitted from the sizes of micro-batches seen; which size
 * to use. */
#include "core/partition/pace_internal.h"

#include <math.h>
#include <string.h>

#define SIZE_ENOUGH   3    /* blocks of a size that are compared with those of another */
#define PAIRS_ENOUGH  4    /* comparisons before the shape is believed */
#define APART         1.8  /* larger / smaller size: nearer ones say nothing about a */
#define OVERHEAD_MOST 64   /* samples */
#define TOLERANCE     0.02 /* that a smaller micro-batch may cost */
#define TOLERANCE_FEW 0.04 /* where else a share would have less than RUNS_FEW runs */
#define RUNS          6
#define RUNS_FEW      10
#define BACKWARD      (2.0 / 3) /* part of a micro-batch that is its backward pass */

double pace_units(const pace_model_t *m, const pace_block_t *block)
{
    return block->runs * m->overhead + block->samples + block->lasts * m->excess;
}

double pace_median(const double *values, uint32_t n)
{
    double sorted[PACE_RECENT];
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

static bool apart(double a, double b)
{
    return a >= APART * b || b >= APART * a;
}

/* With another overhead the same times mean another level: what is published for the sizes in use stays as it
 * was. */
static void reshape(pace_model_t *m, double overhead)
{
    if (m->n_window == 0) {
        m->overhead = overhead;
        return;
    }
    const double before = pace_level(m, 0, m->n_window);
    m->overhead = overhead;
    pace_shift(m, pace_level(m, 0, m->n_window) - before);
    pace_judge_excess(m);
}

/* Newest blocks of this size that wait to be compared. */
static uint32_t seen(const pace_model_t *m, uint32_t samples)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_recent; i++) n += m->recent[i].samples == samples;
    return n;
}

bool pace_teaches(const pace_model_t *m, uint32_t samples)
{
    if (m->n_overheads >= PAIRS_ENOUGH || seen(m, samples) >= SIZE_ENOUGH) return false;
    for (uint32_t i = 0; i < m->n_recent; i++)
        if (apart(m->recent[i].samples, samples) && seen(m, m->recent[i].samples) >= SIZE_ENOUGH) return true;
    return false;
}

static double median_of_size(const pace_model_t *m, uint32_t samples)
{
    double ns[PACE_RECENT];
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_recent; i++)
        if (m->recent[i].samples == samples) ns[n++] = m->recent[i].ns;
    return pace_median(ns, n);
}

/* Smallest and largest size that have been seen often enough; false: they are too near. */
static bool two_sizes(const pace_model_t *m, uint32_t *small, uint32_t *large)
{
    *small = *large = 0;
    for (uint32_t i = 0; i < m->n_recent; i++) {
        const uint32_t samples = m->recent[i].samples;
        if (seen(m, samples) < SIZE_ENOUGH) continue;
        if (*small == 0 || samples < *small) *small = samples;
        if (samples > *large) *large = samples;
    }
    return *small > 0 && apart(*small, *large);
}

/*
 * Two sizes shortly after one another, t1 = c (a/c + b1) and t2 = c (a/c + b2), give a/c whatever c is. Where
 * the speed changed between them the value is wrong: the median of several counts.
 */
static void compare_sizes(pace_model_t *m)
{
    uint32_t small, large;
    if (!two_sizes(m, &small, &large)) return;
    const double ratio = median_of_size(m, large) / median_of_size(m, small);
    const double overhead = ratio > 1 ? (large - ratio * small) / (ratio - 1) : OVERHEAD_MOST;
    m->overheads[m->n_overheads++ % PACE_EXTRAS] = fmin(overhead, OVERHEAD_MOST);
    m->n_recent = 0;
    /* The first values may be outliers: one is believed only as far as it is small, of two the smaller one.
     */
    double believed = pace_median(m->overheads, ring(m->n_overheads));
    if (m->n_overheads == 1) believed = fmin(believed, small / 4.0);
    if (m->n_overheads == 2) believed = fmin(m->overheads[0], m->overheads[1]);
    reshape(m, fmax(0, believed));
}

void pace_learn_size(pace_model_t *m, const pace_block_t *block, uint32_t samples)
{
    if (m->n_recent == PACE_RECENT) memmove(m->recent, m->recent + 1, --m->n_recent * sizeof m->recent[0]);
    m->recent[m->n_recent++] = (pace_sized_t){.samples = samples, .ns = block->ns / block->runs};
    if (seen(m, samples) >= SIZE_ENOUGH && (m->least == 0 || samples < m->least)) m->least = samples;
    compare_sizes(m);
}

static double excess_of(const pace_model_t *m, const pace_block_t *block)
{
    return (block->ns / exp(m->published) - block->runs * m->overhead - block->samples) / block->lasts;
}

/* Of each of the newest last runs; how many. */
static uint32_t excesses(const pace_model_t *m, double values[PACE_EXTRAS])
{
    const uint32_t n = ring(m->n_lasts);
    for (uint32_t i = 0; i < n; i++) values[i] = excess_of(m, &m->lasts[i]);
    return n;
}

void pace_judge_excess(pace_model_t *m)
{
    double values[PACE_EXTRAS];
    const uint32_t n = excesses(m, values);
    if (n > 0) m->excess = fmax(0, pace_median(values, n));
}

void pace_learn_excess(pace_model_t *m, const pace_block_t *block)
{
    pace_block_t *last = &m->lasts[m->n_lasts++ % PACE_EXTRAS];
    *last = *block;
    if (m->unsteady) last->ns *= exp(m->published - pace_level(m, 0, m->n_window)); /* a mean: it is apart */
    pace_judge_excess(m);
}

double pace_excess_noise(const pace_model_t *m, const pace_block_t *block)
{
    double away[PACE_EXTRAS];
    const uint32_t n = excesses(m, away);
    for (uint32_t i = 0; i < n; i++) away[i] = fabs(away[i] - m->excess);
    return n == 0 ? 0 : 1.5 * block->lasts * pace_median(away, n) / pace_units(m, block);
}

double pace_sample_ns(const pace_estimate_t *estimate, uint32_t b)
{
    return estimate->slope_ns + estimate->run_ns / (b > 0 ? b : 1);
}

void pace_line(const pace_estimate_t *estimate, double share, double run, double last, double *sample_ns,
               double *step_ns)
{
    *sample_ns = pace_sample_ns(estimate, (uint32_t)ceil(run));
    *step_ns = fmax(estimate->step_ns, 0);
    if (share <= 0) return;
    const double runs = 1 + ceil(fmax(0, share - last) / run);
    const double whole = *step_ns + share * estimate->slope_ns + runs * estimate->run_ns;
    *step_ns = whole - share * *sample_ns;
    if (*step_ns >= 0) return;
    *sample_ns = whole / share;
    *step_ns = 0;
}

double pace_run_ns(const pace_model_t *model, double samples, bool last)
{
    if (!model->known) return 0;
    return exp(model->published) * (model->overhead + samples + (last ? model->excess : 0));
}

/* Smallest micro-batch that costs at most (1 + tolerance) of what `most` costs per sample. */
static uint32_t smallest(const pace_model_t *m, uint32_t most, double tolerance)
{
    const double run = m->overhead / ((1 + tolerance) * (1 + m->overhead / most) - 1);
    return run < 1 ? 1 : run < most ? (uint32_t)ceil(run) : most;
}

/* Before the shape is known: `run` and half of it (or twice, where there is no half), each until it can be
 * compared. */
static uint32_t teaching_run(const pace_model_t *m, uint32_t run, uint32_t most)
{
    const uint32_t other = run >= 4 ? run / 4 : run > 1 ? 1 : most > 1 ? 2 : 1;
    return seen(m, run) < SIZE_ENOUGH ? run : other;
}

/* Not far below what was measured: an error of the shape is large there. */
static uint32_t near_measured(const pace_model_t *m, uint32_t run)
{
    return run < m->least / 2 ? m->least / 2 : run;
}

uint32_t pace_best_run(const pace_model_t *model, uint32_t most, uint32_t need)
{
    if (most == 0) most = 1;
    uint32_t run = model->n_overheads < PAIRS_ENOUGH ? teaching_run(model, most, most)
                                                     : near_measured(model, smallest(model, most, TOLERANCE));
    if (run < need) run = need;
    return run < 1 ? 1 : run < most ? run : most;
}

/* As pace_best_run, but about RUNS a step for teaching, and at least RUNS_FEW if that costs little. */
static uint32_t run_of_share(const pace_model_t *m, uint32_t share, uint32_t most)
{
    if (m->n_overheads < PAIRS_ENOUGH) {
        const uint32_t run = share / RUNS;
        return teaching_run(m, run < 1 ? 1 : run < most ? run : most, most);
    }
    uint32_t run = smallest(m, most, TOLERANCE);
    if (run * RUNS_FEW > share) {
        const uint32_t few = smallest(m, most, TOLERANCE_FEW), part = share / RUNS_FEW;
        run = few > part ? few : part > 0 ? part : 1;
    }
    run = near_measured(m, run);
    return run < most ? run : most;
}

void pace_runs(const pace_model_t *model, uint32_t share, uint32_t capacity, double reduction_ns,
               uint32_t *run, uint32_t *last)
{
    if (share == 0) share = 1;
    if (capacity == 0) capacity = 1;
    const uint32_t most = share < capacity ? share : capacity;
    *run = run_of_share(model, share, most);
    if (share > 1 && *run > share - 1) *run = share - 1;
    const double sample_ns = model->known ? exp(model->published) : 0;
    const double hides = sample_ns > 0 ? ceil(reduction_ns / BACKWARD / sample_ns) : 0;
    /* It cannot be stolen: no larger than hiding needs, but not so small that it costs much. */
    const uint32_t half = (*run + 1) / 2, rest = share > *run ? share - *run : 1;
    const uint32_t least = half < rest ? half : rest;
    *last = hides > least ? (uint32_t)fmin(hides, most) : least;
}
