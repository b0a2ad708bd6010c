/* Which way of sending gradients pays: the most exact one that costs next to no time. */
#include <math.h>

#include "core/partition/plan.h"

#define LOSS      1.03 /* factor of a step's time that exactness is worth */
#define LOSS_BACK 1.01 /* before the way back to a more exact one is taken: what is in between stays */
#define STEPS     3u   /* calls in a row */
#define DOUBLINGS 5u   /* of STEPS, one each time that it came back to a more exact one */

/* Seconds of a step of all n nodes if gradients took so many bytes. */
static double step_with(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                        uint64_t bytes)
{
    const uint64_t all = n >= PLAN_NODES_MAX ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    const double part = (double)bytes / (double)job->gradient_bytes;
    plan_job_t with = *job;
    with.gradient_bytes = bytes;
    with.bucket_bytes = (uint64_t)fmax((double)job->bucket_bytes * part, 1);
    plan_prediction_t prediction;
    plan_predict(&with, nodes, all, price, &prediction);
    return prediction.step_s;
}

uint32_t plan_choose_wire(plan_wire_t *state, const plan_job_t *job, const plan_node_t *nodes, uint32_t n,
                          plan_price_t price, const uint64_t *bytes, uint32_t n_ways, uint32_t present,
                          double *step_s)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < n_ways; i++) {
        step_s[i] = step_with(job, nodes, n, price, bytes[i]);
        best = fmin(best, step_s[i]);
    }
    uint32_t wanted = 0;
    while (wanted + 1 < n_ways && step_s[wanted] > best * (wanted < present ? LOSS_BACK : LOSS)) wanted++;
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
