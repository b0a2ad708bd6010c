/*
 * The leader, once a step: is the job predicted to be faster without one of its members? Then it says so to
 * the manager, who decides. The step machine has already given few leases, or none, to who is slow; what is
 * left is that its update, its rounding and its link hold the others up.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

/* A new view costs time itself, so short jobs go on as they are; and what was just measured may be chance. */
#define LEFT_LEAST (20 * NS_PER_S) /* of the training, as the steps go now */
#define AGE_LEAST  (5 * NS_PER_S)  /* of the view */
/* Where no link was seen yet that explains the steps: whom the others wait for is open. */
#define AGE_UNSEEN (20 * NS_PER_S)
#define EXPLAINED  3 /* times that reductions may take longer than the links say */

static double slower_way(const plan_node_t *node)
{
    return fmin(node->up_bytes_per_s, node->down_bytes_per_s);
}

static void propose(inspan_elastic_t *e, uint64_t step, uint32_t index, const plan_node_t *nodes, double gain)
{
    local_verdict_t verdict = {
        .step = step, .started = step, .about = e->numbers[index], .factor = gain, .leave = true};
    const plan_node_t *node = &nodes[index];
    char link[64] = "";
    double fastest = 0;
    for (uint32_t i = 0; i < e->world; i++) fastest = fmax(fastest, slower_way(&nodes[i]));
    if (isfinite(fastest) && slower_way(node) < fastest / 2)
        snprintf(link, sizeof link, ", its link carries %.3g MB/s", slower_way(node) / 1e6);
    snprintf(verdict.evidence, sizeof verdict.evidence,
             "%.1f %% faster (it computes %.3g samples/s, its update takes %.3g s%s)", 100 * (gain - 1),
             1 / node->sample_s, node->step_s, link);
    e->views->verdict(e->views->context, &verdict);
}

static bool worth_it(const inspan_elastic_t *e, uint64_t step)
{
    const ns_t age = os_now() - e->pace.view_at;
    const uint64_t steps = step + 1 - e->pace.view_step, left = e->options.steps - (step + 1);
    if (steps == 0 || step < e->pace.view_step || age < AGE_LEAST) return false;
    return (double)left * (double)age / (double)steps >= (double)LEFT_LEAST;
}

bool driver_may_leave_out(const inspan_elastic_t *e, uint64_t step)
{
    return !e->options.equal_shares && e->views->verdict != NULL && worth_it(e, step);
}

void driver_leave_out(inspan_elastic_t *e, uint64_t step, const driver_outlook_t *outlook)
{
    double gain = 1;
    const bool explained = outlook->measured.links && outlook->scaled.factor <= EXPLAINED;
    if (!explained && os_now() - e->pace.view_at < AGE_UNSEEN) return;
    const uint32_t burden = plan_leave_out(&e->leave, &outlook->job, outlook->nodes, e->numbers, e->world, 1,
                                           outlook->price, &gain);
    if (burden != PLAN_NONE) propose(e, step, burden, outlook->nodes, gain);
}
