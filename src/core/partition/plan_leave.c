/* While a job runs: is it faster without one of its members? */
#include "core/partition/plan.h"

#include <math.h>
#include <stddef.h>

#define FACTOR_HALVINGS 16 /* to 1/65,000 of the range */

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

double plan_reduction_factor(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                             double step_s, double most)
{
    double low = 1, high = fmax(most, 1);
    plan_scaled_t scaled = {price, 1};
    for (int i = 0; i < FACTOR_HALVINGS; i++) {
        plan_prediction_t prediction;
        scaled.factor = (low + high) / 2;
        plan_predict(job, nodes, plan_everyone(n), (plan_price_t){plan_price_scaled, &scaled}, &prediction);
        if (prediction.step_s < step_s)
            low = scaled.factor;
        else
            high = scaled.factor;
    }
    return low;
}

typedef struct leaving {
    const plan_job_t *job;
    const plan_node_t *nodes;
    plan_price_t price;
} leaving_t;

static double speed_of(const leaving_t *leaving, uint64_t set)
{
    plan_prediction_t prediction;
    plan_predict(leaving->job, leaving->nodes, set, leaving->price, &prediction);
    return prediction.samples_per_s;
}

/* The member of `set` without whom the others are fastest; one of `kept` never. */
static uint32_t least_missed(const leaving_t *leaving, uint64_t set, uint64_t kept, double *speed)
{
    uint32_t member = PLAN_NONE;
    *speed = 0;
    for (uint32_t i = 0; i < PLAN_NODES_MAX; i++) {
        if ((set & ~kept & UINT64_C(1) << i) == 0) continue;
        const double without = speed_of(leaving, set & ~(UINT64_C(1) << i));
        if (member != PLAN_NONE && without <= *speed) continue;
        member = i;
        *speed = without;
    }
    return member;
}

/*
 * Who goes first on the way to the best set that is found by letting one member go after the other, or to the
 * fastest member alone; one step of that way may gain nothing by itself. PLAN_NONE where all together are
 * best. *gain: that set against all together.
 */
static uint32_t find_burden(const leaving_t *leaving, uint32_t n, uint32_t least, double *gain)
{
    const uint64_t all = plan_everyone(n);
    const double together = speed_of(leaving, all);
    double best = together, speed = 0;
    uint32_t burden = PLAN_NONE;
    const uint32_t first = least_missed(leaving, all, 0, &speed);
    uint64_t set = all;
    for (uint32_t left = n, next = first; next != PLAN_NONE && left > least && left > 1; left--) {
        set &= ~(UINT64_C(1) << next);
        if (speed > best) {
            best = speed;
            burden = first;
        }
        if (n > PLAN_EXHAUSTIVE) break; /* that many sets take too long for a decision in each step */
        next = left > 2 ? least_missed(leaving, set, 0, &speed) : PLAN_NONE;
    }
    for (uint32_t i = 0; i < n && least <= 1; i++) {
        const double alone = speed_of(leaving, UINT64_C(1) << i);
        if (alone <= best) continue;
        best = alone;
        burden = least_missed(leaving, all, UINT64_C(1) << i, &speed);
    }
    *gain = best / together;
    return burden;
}

uint32_t plan_leave_out(plan_leave_t *state, const plan_job_t *job, const plan_node_t *nodes,
                        const uint32_t *ids, uint32_t n, uint32_t least, plan_price_t price, double *gain)
{
    double factor = 1;
    uint32_t burden = PLAN_NONE;
    const leaving_t leaving = {job, nodes, price};
    if (n >= 2 && n <= PLAN_NODES_MAX && n > least) burden = find_burden(&leaving, n, least, &factor);
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
