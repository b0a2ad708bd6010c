/*
 * The machine's vitals for its workers: once a second, and at once where they have changed markedly. Where
 * the owner gives nothing any more, workers of elastic jobs are asked to hand over and leave.
 */
#include <math.h>
#include <stdio.h>

#include "agent/core_internal.h"
#include "base/log.h"

static const ns_t vitals_period = 900 * NS_PER_MS; /* samples come twice a second, more or less */
static const double swap_that_hurts = 1e6;         /* bytes a second */

static bool apart(double a, double b, double by)
{
    if (isnan(a) || isnan(b)) return isnan(a) != isnan(b);
    return fabs(a - b) >= by;
}

static bool differ_markedly(const local_vitals_t *a, const local_vitals_t *b)
{
    const bool swaps = a->swap_bytes_per_s >= swap_that_hurts,
               swapped = b->swap_bytes_per_s >= swap_that_hurts;
    return apart(a->allowed, b->allowed, 0.001) || a->limit != b->limit || a->on_battery != b->on_battery ||
           a->owner_active != b->owner_active || swaps != swapped ||
           apart(a->cores, b->cores, 0.02 * fmax(a->cores, b->cores) + 1e-9) ||
           apart(a->clock_mhz, b->clock_mhz, 0.05 * fmax(a->clock_mhz, b->clock_mhz) + 1) ||
           apart(a->temperature_c, b->temperature_c, 3) || apart(a->others_cores, b->others_cores, 0.25) ||
           apart(a->throttled, b->throttled, 0.2);
}

/* One that does not read is on its way out: its socket is not filled. */
void core_send_vitals(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    size_t used = 0;
    if (!core->has_vitals || !worker->connected || worker->minor < LOCAL_MINOR_VITALS ||
        core_is_over(worker) || now - worker->heard > worker->failure_timeout / 2)
        return;
    if (worker->vitals_at != 0 && now - worker->vitals_at < vitals_period &&
        !differ_markedly(&worker->vitals, &core->vitals))
        return;
    if (local_encode_vitals(&core->vitals, core->frame, sizeof core->frame, &used) != INSPAN_OK) return;
    worker->vitals = core->vitals;
    worker->vitals_at = now;
    core->actions.send(core->context, worker, core->frame, used);
}

void agent_core_vitals(agent_core_t *core, ns_t now, const local_vitals_t *vitals)
{
    core->vitals = *vitals;
    core->has_vitals = true;
    for (uint32_t i = 0; i < core->n_workers; i++) {
        agent_worker_t *worker = core->workers[i];
        const bool trains = worker->phase == AGENT_READY || worker->phase == AGENT_RUNNING;
        core_send_vitals(core, now, worker);
        if (vitals->allowed > 0 || !worker->elastic || !trains || worker->leaving || worker->stopping)
            continue;
        log_info("job %llu, rank %u: asked to leave, the owner of node %s gives nothing just now",
                 (unsigned long long)worker->job, worker->rank, core->node);
        agent_core_leave(core, now, worker->job, worker->rank, "its owner gives nothing just now");
    }
}
