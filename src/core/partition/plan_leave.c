/* While a job runs: is it faster without one of its members? */
#include "core/partition/plan.h"

#include <stddef.h>

/* More doublings would outlast most jobs. */
#define MOST_DOUBLINGS 4

static uint32_t times_left(const plan_leave_t *state, uint32_t id)
{
    for (uint32_t i = 0; i < PLAN_LEAVE_MEMORY; i++)
        if (state->left[i].times > 0 && state->left[i].id == id) return state->left[i].times;
    return 0;
}

/* In the place of the one that left least often where all are taken. */
static void note_left(plan_leave_t *state, uint32_t id)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < PLAN_LEAVE_MEMORY; i++) {
        if (state->left[i].times > 0 && state->left[i].id == id) {
            place = i;
            break;
        }
        if (state->left[i].times < state->left[place].times) place = i;
    }
    if (state->left[place].id != id) state->left[place].times = 0;
    state->left[place].id = id;
    state->left[place].times++;
}

/* The member without whom the others are fastest, and how much faster than with it. */
static uint32_t find_burden(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                            double *gain)
{
    const uint64_t all = n == PLAN_NODES_MAX ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    uint32_t burden = PLAN_NONE;
    plan_prediction_t prediction;
    plan_predict(job, nodes, all, price, &prediction);
    const double together = prediction.samples_per_s;
    *gain = 1;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t others = all & ~(UINT64_C(1) << i);
        if (plan_bound(job, nodes, others) <= together * *gain) continue;
        plan_predict(job, nodes, others, price, &prediction);
        if (prediction.samples_per_s <= together * *gain) continue;
        burden = i;
        *gain = prediction.samples_per_s / together;
    }
    return burden;
}

uint32_t plan_leave_out(plan_leave_t *state, const plan_job_t *job, const plan_node_t *nodes,
                        const uint32_t *ids, uint32_t n, uint32_t least, plan_price_t price, double *gain)
{
    double factor = 1;
    uint32_t burden = PLAN_NONE;
    if (n >= 2 && n <= PLAN_NODES_MAX && n > least) burden = find_burden(job, nodes, n, price, &factor);
    if (gain != NULL) *gain = factor;
    if (burden == PLAN_NONE || factor <= PLAN_LEAVE_GAIN) {
        state->calls = 0;
        return PLAN_NONE;
    }
    if (state->id != ids[burden]) state->calls = 0;
    state->id = ids[burden];
    state->calls++;
    const uint32_t before = times_left(state, state->id);
    const uint32_t needed = PLAN_LEAVE_STEPS << (before < MOST_DOUBLINGS ? before : MOST_DOUBLINGS);
    if (state->calls < needed) return PLAN_NONE;
    note_left(state, state->id);
    state->calls = 0;
    return burden;
}
