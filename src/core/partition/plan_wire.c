/* Which way of sending gradients pays: the most exact one that costs next to no time. */
#include <math.h>

#include "core/partition/plan.h"

#define STEPS     3u /* calls in a row */
#define DOUBLINGS 5u /* of STEPS, one each time that it came back to a more exact one */

uint32_t plan_most_exact(const double *cost, uint32_t n_ways, uint32_t present)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < n_ways; i++) least = fmin(least, cost[i]);
    uint32_t way = 0;
    while (way + 1 < n_ways && cost[way] > least * (way < present ? PLAN_WIRE_BACK : PLAN_WIRE_LOSS)) way++;
    return way;
}

/* Seconds of a step of all n nodes if gradients took so many bytes. */
static double step_with(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                        uint64_t bytes)
{
    const double part = (double)bytes / (double)job->gradient_bytes;
    plan_job_t with = *job;
    with.gradient_bytes = bytes;
    with.bucket_bytes = (uint64_t)fmax((double)job->bucket_bytes * part, 1);
    plan_prediction_t prediction;
    plan_predict(&with, nodes, plan_everyone(n), price, &prediction);
    return prediction.step_s;
}

uint32_t plan_choose_wire(plan_wire_t *state, const plan_job_t *job, const plan_node_t *nodes, uint32_t n,
                          plan_price_t price, const uint64_t *bytes, uint32_t n_ways, uint32_t present,
                          double *step_s)
{
    for (uint32_t i = 0; i < n_ways; i++) step_s[i] = step_with(job, nodes, n, price, bytes[i]);
    const uint32_t wanted = plan_most_exact(step_s, n_ways, present);
    if (wanted != state->wanted || wanted == present) state->calls = 0;
    state->wanted = wanted;
    if (wanted == present) return present;
    const bool back = wanted < present;
    const uint32_t doublings = state->returns < DOUBLINGS ? state->returns : DOUBLINGS;
    if (++state->calls < (back ? STEPS << doublings : STEPS)) return present;
    if (back) state->returns++;
    state->calls = 0;
    return wanted;
}
