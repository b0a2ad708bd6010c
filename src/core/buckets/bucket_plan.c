#include "core/buckets/bucket_plan.h"

#include <math.h>

#define REST_FIRST 8u

static double longer(double a, double b)
{
    return a > b ? a : b;
}

double bucket_exposed(const bucket_gradient_t *gradients, const bucket_cuts_t *cuts,
                      const bucket_costs_t *costs)
{
    double end = -INFINITY; /* times are from the end of the backward pass */
    uint32_t at = 0;
    for (uint32_t b = 0; b < cuts->n_buckets; b++) {
        uint64_t bytes = costs->tail_bytes;
        double ready = -INFINITY;
        for (uint32_t i = 0; i < cuts->sizes[b]; i++, at++) {
            const bucket_gradient_t *gradient = &gradients[cuts->order[at]];
            bytes += gradient->bytes;
            ready = longer(ready, -gradient->gap_s);
        }
        end = longer(end, ready) + costs->bucket_s + costs->byte_s * (double)bytes;
    }
    return longer(end, 0);
}

/* ---- The order in which they get ready --------------------------------------------------------- */

typedef struct entry {
    double gap_s;
    uint32_t gradient;
} entry_t;

/* The longest before the end first; who is ready at once with another one: in the order of backward, reversed
 * registration. */
static bool earlier(const entry_t *a, const entry_t *b)
{
    return a->gap_s != b->gap_s ? a->gap_s > b->gap_s : a->gradient > b->gradient;
}

/* By insertion: backward goes from the last to the first, so it is nearly in order; and qsort may allocate.
 */
static void sort(entry_t *entries, const bucket_gradient_t *gradients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const entry_t next = {gradients[n - 1 - i].gap_s, n - 1 - i};
        uint32_t at = i;
        for (; at > 0 && earlier(&next, &entries[at - 1]); at--) entries[at] = entries[at - 1];
        entries[at] = next;
    }
}

/* ---- The cuts ---------------------------------------------------------------------------------- */

#define ROUNDING 1e-12 /* s */

typedef struct prefixes {
    uint32_t n;
    const entry_t *entries;
    const uint64_t *sums; /* (n + 1): bytes of the first i */
    double *end;          /* (n + 1): of the reductions of the first i, cut as well as can be */
} prefixes_t;

/* Of one reduction of gradients (from, to]. */
static double takes(const prefixes_t *p, const bucket_costs_t *costs, uint32_t from, uint32_t to)
{
    return costs->bucket_s + costs->byte_s * (double)(p->sums[to] - p->sums[from] + costs->tail_bytes);
}

static double begins(const prefixes_t *p, uint32_t from, uint32_t to)
{
    return longer(p->end[from], -p->entries[to - 1].gap_s);
}

static void find_ends(const prefixes_t *p, const bucket_costs_t *costs)
{
    p->end[0] = -INFINITY;
    for (uint32_t to = 1; to <= p->n; to++) {
        p->end[to] = INFINITY;
        for (uint32_t from = 0; from < to; from++) {
            const double end = begins(p, from, to) + takes(p, costs, from, to);
            if (end < p->end[to]) p->end[to] = end;
        }
    }
}

/* From the last bucket to the first, each as large as the deadline allows: the fewest that end in time. For
 * whatever lies before it, a larger bucket leaves the same time as a smaller one and another. Sizes come out
 * in reverse. */
static uint32_t cut(const prefixes_t *p, const bucket_costs_t *costs, uint32_t *sizes)
{
    double deadline = longer(p->end[p->n], 0);
    uint32_t n = 0;
    for (uint32_t to = p->n; to > 0; to -= sizes[n++]) {
        uint32_t from = 0;
        while (from + 1 < to && begins(p, from, to) > deadline - takes(p, costs, from, to) + ROUNDING) from++;
        deadline -= takes(p, costs, from, to);
        sizes[n] = to - from;
    }
    return n;
}

static void reverse(uint32_t *sizes, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        const uint32_t kept = sizes[i];
        sizes[i] = sizes[n - 1 - i];
        sizes[n - 1 - i] = kept;
    }
}

static void plan_cuts(const prefixes_t *p, const bucket_costs_t *costs, bucket_cuts_t *cuts)
{
    bucket_costs_t dearer = *costs; /* where there are too many: dearer ones are fewer, in the end one */
    do {
        find_ends(p, &dearer);
        cuts->n_buckets = cut(p, &dearer, cuts->sizes);
        dearer.bucket_s *= 2;
    } while (cuts->n_buckets > costs->most);
    reverse(cuts->sizes, cuts->n_buckets);
}

size_t bucket_plan_bytes(uint32_t n)
{
    return n * sizeof(entry_t) + ((size_t)n + 1) * (sizeof(uint64_t) + sizeof(double));
}

double bucket_plan(const bucket_gradient_t *gradients, uint32_t n, const bucket_costs_t *costs,
                   bucket_cuts_t *cuts, void *room)
{
    entry_t *entries = room;
    double *end = (double *)(void *)(entries + n);
    uint64_t *sums = (uint64_t *)(void *)(end + n + 1);
    sort(entries, gradients, n);
    sums[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        cuts->order[i] = entries[i].gradient;
        sums[i + 1] = sums[i] + gradients[entries[i].gradient].bytes;
    }
    plan_cuts(&(prefixes_t){n, entries, sums, end}, costs, cuts);
    return bucket_exposed(gradients, cuts, costs);
}

/* ---- Whether to change ------------------------------------------------------------------------- */

bool bucket_change_due(bucket_planner_t *planner, double present_s, double planned_s, double step_s)
{
    if (planner->rest > 0) {
        planner->rest--;
        return false;
    }
    planner->calls = present_s - planned_s > BUCKET_PLAN_GAIN * step_s ? planner->calls + 1 : 0;
    if (planner->calls < BUCKET_PLAN_CALLS) return false;
    planner->calls = 0;
    planner->rest = REST_FIRST << (planner->changes < 6 ? planner->changes : 6);
    planner->changes++;
    return true;
}
