/* The best set of nodes, and what each of the others would bring. */
#include "core/partition/plan.h"

#include <math.h>
#include <string.h>

typedef struct search {
    const plan_job_t *job;
    const plan_node_t *nodes;
    uint32_t n, least, most;
    uint64_t fitting;
    plan_price_t price;
} search_t;

static uint32_t size_of(uint64_t set)
{
    return (uint32_t)__builtin_popcountll(set);
}

static bool allowed(const search_t *search, uint64_t set)
{
    const uint32_t size = size_of(set);
    return size >= search->least && size <= search->most;
}

static double speed_of(const search_t *search, uint64_t set)
{
    plan_prediction_t prediction;
    plan_predict(search->job, search->nodes, set, search->price, &prediction);
    return prediction.samples_per_s;
}

/* The set's samples/s where they are more than `above`, else `above`: without a price where that is clear. */
static double speed_above(const search_t *search, uint64_t set, double above)
{
    if (plan_bound(search->job, search->nodes, set) <= above) return above;
    return fmax(speed_of(search, set), above);
}

/* Of the nodes in `from`, the one with which `set` is fastest, or, out, the one without which it is. */
static uint32_t best_change(const search_t *search, uint64_t set, uint64_t from, double *speed)
{
    uint32_t best = PLAN_NONE;
    *speed = 0;
    for (uint32_t i = 0; i < search->n; i++) {
        if ((from >> i & 1) == 0) continue;
        const double here = speed_above(search, set ^ UINT64_C(1) << i, *speed);
        if (best == PLAN_NONE || here > *speed) best = i;
        *speed = here;
    }
    return best;
}

static void climb(const search_t *search, plan_answer_t *answer)
{
    uint64_t set = 0;
    while (answer->n_rungs < search->n && set != search->fitting) {
        double speed = 0;
        plan_prediction_t prediction;
        const uint32_t node = best_change(search, set, search->fitting & ~set, &speed);
        set |= UINT64_C(1) << node;
        plan_predict(search->job, search->nodes, set, search->price, &prediction);
        plan_rung_t *rung = &answer->rungs[answer->n_rungs++];
        *rung = (plan_rung_t){node, prediction.samples_per_s, prediction.limit, prediction.by};
    }
}

/* One node more or less, or one for another, as long as that gains. */
static void improve(const search_t *search, uint64_t *set, double *speed)
{
    for (bool better = true; better;) {
        better = false;
        for (uint32_t i = 0; i < search->n; i++)
            for (uint32_t k = i; k < search->n; k++) {
                const uint64_t other = *set ^ (UINT64_C(1) << i | UINT64_C(1) << k);
                if ((other & ~search->fitting) != 0 || !allowed(search, other)) continue;
                const double there = speed_above(search, other, *speed);
                if (there <= *speed * (1 + 1e-9)) continue;
                *set = other;
                *speed = there;
                better = true;
            }
    }
}

static void try_all(const search_t *search, uint64_t *set, double *speed)
{
    for (uint64_t other = 1; other < UINT64_C(1) << search->n; other++) {
        if ((other & ~search->fitting) != 0 || !allowed(search, other)) continue;
        const double there = speed_above(search, other, *speed);
        if (there <= *speed) continue;
        *set = other;
        *speed = there;
    }
}

/* 0: none is allowed. rungs: in the order in which nodes are added (n_rungs of them). */
static uint64_t find_best(const search_t *search, const plan_rung_t *rungs, uint32_t n_rungs, double *speed)
{
    uint64_t best = 0, set = 0;
    *speed = 0;
    for (uint32_t i = 0; i < n_rungs; i++) { /* a good one to begin with, so that most others need no price */
        set |= UINT64_C(1) << rungs[i].node;
        if (!allowed(search, set) || rungs[i].samples_per_s <= *speed) continue;
        best = set;
        *speed = rungs[i].samples_per_s;
    }
    if (best == 0) return 0;
    if (search->n <= PLAN_EXHAUSTIVE)
        try_all(search, &best, speed);
    else
        improve(search, &best, speed);
    return best;
}

/* ---- What else would be ---------------------------------------------------------------------- */

static void look_around(const search_t *search, plan_answer_t *answer)
{
    for (uint32_t i = 0; i < search->n; i++) {
        const uint64_t other = answer->best ^ UINT64_C(1) << i;
        if ((search->fitting >> i & 1) != 0 && other != 0) answer->other[i] = speed_of(search, other);
    }
}

static double slower_way(const plan_node_t *node)
{
    return fmin(node->up_bytes_per_s, node->down_bytes_per_s);
}

static void lay_cable(plan_node_t *node)
{
    node->up_bytes_per_s = fmax(node->up_bytes_per_s, PLAN_CABLE_BYTES_PER_S);
    node->down_bytes_per_s = fmax(node->down_bytes_per_s, PLAN_CABLE_BYTES_PER_S);
}

/* The node whose cable makes the best set with it fastest, where none does the one with the slowest link.
 * nodes: a copy. */
static uint32_t choose_cable(const search_t *cabled, plan_node_t *nodes, const plan_answer_t *answer)
{
    uint32_t chosen = PLAN_NONE;
    bool helps = false;
    double slowest = INFINITY, best = answer->prediction.samples_per_s * 1.001;
    for (uint32_t i = 0; i < cabled->n; i++) {
        const plan_node_t now = nodes[i];
        const uint64_t with = answer->best | UINT64_C(1) << i;
        if ((cabled->fitting >> i & 1) == 0 || slower_way(&now) >= PLAN_CABLE_BYTES_PER_S * 0.98) continue;
        lay_cable(&nodes[i]);
        const double there = with != UINT64_C(1) << i ? speed_of(cabled, with) : 0;
        nodes[i] = now;
        if (there > best) {
            best = there;
            helps = true;
            chosen = i;
        } else if (!helps && slower_way(&now) < slowest) {
            slowest = slower_way(&now);
            chosen = i;
        }
    }
    return chosen;
}

static void try_cable(const search_t *search, plan_answer_t *answer)
{
    plan_node_t nodes[PLAN_NODES_MAX];
    plan_answer_t there = {0};
    search_t cabled = *search;
    if (size_of(search->fitting) < 2) return;
    memcpy(nodes, search->nodes, search->n * sizeof nodes[0]);
    cabled.nodes = nodes;
    answer->cable = choose_cable(&cabled, nodes, answer);
    if (answer->cable == PLAN_NONE) return;
    lay_cable(&nodes[answer->cable]);
    climb(&cabled, &there);
    answer->cable_best = find_best(&cabled, there.rungs, there.n_rungs, &answer->cable_samples_per_s);
}

void plan_search(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                 plan_answer_t *answer)
{
    search_t search = {.job = job, .nodes = nodes, .n = n, .price = price};
    memset(answer, 0, sizeof *answer);
    answer->cable = PLAN_NONE;
    search.least = job->least > 0 ? job->least : 1;
    search.most = job->most > 0 ? job->most : PLAN_NODES_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (!plan_fits(job, &nodes[i])) continue;
        search.fitting |= UINT64_C(1) << i;
        answer->alone[i] = speed_of(&search, UINT64_C(1) << i);
    }
    double speed = 0;
    climb(&search, answer);
    answer->best = find_best(&search, answer->rungs, answer->n_rungs, &speed);
    if (answer->best == 0) return;
    plan_predict(job, nodes, answer->best, price, &answer->prediction);
    look_around(&search, answer);
    try_cable(&search, answer);
}
