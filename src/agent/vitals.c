/* What the watch sees, on its way from the loop to the workers, and up with heartbeats. */
#include <math.h>
#include <string.h>

#include "agent/internal.h"
#include "base/log.h"
#include "platform/os/os_time.h"

static const ns_t too_long = 5 * NS_PER_S; /* without news of the watch: it hangs */

static local_limit_t limit_of(owner_limit_t limit)
{
    switch (limit) {
    case OWNER_GIVES_ALL: break;
    case OWNER_ALWAYS: return LOCAL_LIMIT_ALWAYS;
    case OWNER_ON_BATTERY: return LOCAL_LIMIT_BATTERY;
    case OWNER_WHEN_HOT: return LOCAL_LIMIT_HEAT;
    case OWNER_IN_USE: return LOCAL_LIMIT_OWNER;
    }
    return LOCAL_LIMIT_NONE;
}

/*
 * An agent that was told its number of cores has that part of the machine: its share of what the others on it
 * have too, or the laboratory's quota. Where the quota is cut while it runs, its part is cut with it.
 */
static double own_cores(agent_t *agent, double usable)
{
    const double told = agent->options->cores;
    if (told <= 0 || usable <= 0) return usable;
    if (agent->first_cores <= 0) agent->first_cores = usable;
    return fmin(usable, told * usable / agent->first_cores);
}

static void tell_workers(agent_t *agent)
{
    const watch_sight_t *sight = &agent->sight;
    const vitals_t *from = &sight->vitals;
    const local_vitals_t vitals = {.cores = from->cores,
                                   .throttled = from->throttled,
                                   .clock_mhz = from->clock_mhz,
                                   .clock_best_mhz = from->clock_best_mhz,
                                   .temperature_c = from->temperature_c,
                                   .others_cores = from->others_cores,
                                   .swap_bytes_per_s = from->swap_bytes_per_s,
                                   .allowed = sight->allowed,
                                   .on_battery = from->on_battery,
                                   .owner_active = from->owner_active,
                                   .limit = limit_of(sight->limit)};
    agent_core_vitals(agent->core, os_now(), &vitals);
}

void vitals_take(agent_t *agent)
{
    watch_sight_t sight;
    const double before = agent->has_sight ? agent->sight.allowed : 1;
    const owner_limit_t limit = agent->has_sight ? agent->sight.limit : OWNER_GIVES_ALL;
    if (!watch_newest(agent->watch, os_now(), &sight)) return;
    sight.vitals.cores = own_cores(agent, sight.vitals.cores);
    agent->sight = sight;
    agent->sight_at = os_now();
    agent->has_sight = true;
    tell_workers(agent);
    if (sight.allowed == before && sight.limit == limit) return;
    if (sight.limit == OWNER_GIVES_ALL)
        log_info("node %s gives all it can again", agent->name);
    else
        log_info("node %s gives %.0f %% of what it can: %s", agent->name, 100 * sight.allowed,
                 owner_limit_text(sight.limit));
    if (agent->registered) messages_send_heartbeat(agent);
}

void vitals_tend(agent_t *agent)
{
    pid_t workers[AGENT_WORKERS] = {0};
    uint32_t n = 0;
    for (agent_worker_t *worker = NULL; (worker = agent_core_each(agent->core, worker)) != NULL;)
        if (worker->pid != 0) workers[n++] = (pid_t)worker->pid;
    if (n != agent->n_watched || memcmp(workers, agent->watched, n * sizeof workers[0]) != 0) {
        watch_workers(agent->watch, workers, n);
        memcpy(agent->watched, workers, n * sizeof workers[0]);
        agent->n_watched = n;
    }
    if (agent->has_sight && os_now() - agent->sight_at > too_long) vitals_take(agent);
}
