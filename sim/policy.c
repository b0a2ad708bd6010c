/*
 * Who computes how much: policies for the step machine. Half of the histories have none. By pace: those of
 * production (core/partition). Random: anything that a policy may say, because whatever it says the sums must
 * be right.
 */
#include "core/partition/split.h"
#include "sim/internal.h"

static uint32_t run_of(const sim_t *sim, uint32_t last)
{
    return last < 1 ? 1 : last > sim->config.micro ? sim->config.micro : last;
}

/* ---- By pace: the real ones -------------------------------------------------------------------- */

static void mirror(const elastic_pace_t *pace, partition_pace_t *to)
{
    *to = (partition_pace_t){.lease_ns = pace->lease_ns,
                             .step_ns = pace->step_ns,
                             .run = pace->run,
                             .last = pace->last,
                             .most = pace->most};
}

static void split_by_pace(void *context, uint32_t leases, uint64_t full, uint32_t n,
                          const elastic_pace_t *pace, uint32_t *share)
{
    partition_pace_t paces[PARTITION_MEMBERS_MAX];
    for (uint32_t i = 0; i < n; i++) mirror(&pace[i], &paces[i]);
    (void)context;
    partition_split(NULL, leases, full, n, paces, share);
}

static uint32_t steal_by_pace(void *context, int64_t now, int64_t opened_at, uint32_t n,
                              const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    partition_progress_t progress[PARTITION_MEMBERS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        progress[i] = (partition_progress_t){.reserved = members[i].reserved,
                                             .granted = members[i].granted,
                                             .computed = members[i].computed,
                                             .heard_at = members[i].heard_at,
                                             .sealed = members[i].sealed || !members[i].full};
        mirror(&members[i].pace, &progress[i].pace);
    }
    (void)context;
    return partition_steal(NULL, now, opened_at, n, progress, to, from);
}

/* ---- Random ------------------------------------------------------------------------------------ */

/* Of its arguments alone: in a first view all members derive the same table. */
static void split_anyhow(void *context, uint32_t leases, uint64_t full, uint32_t n,
                         const elastic_pace_t *pace, uint32_t *share)
{
    const sim_t *sim = context;
    uint64_t draw = sim_mix(sim->options.seed ^ full << 32 ^ leases);
    for (uint32_t i = 0; i < n; i++) {
        draw = sim_mix(draw ^ pace[i].lease_ns ^ share[i]);
        share[i] = 0;
    }
    if (draw % 16 == 0) return; /* no answer */
    for (uint32_t given = 0; given < leases;) {
        const uint32_t i = (uint32_t)sim_draw_below(&draw, n);
        uint32_t more = 1 + (uint32_t)sim_draw_below(&draw, leases);
        if (!(full >> i & 1)) continue;
        if (more > leases - given) more = leases - given;
        share[i] += more;
        given += more;
    }
}

static uint32_t steal_anyhow(void *context, int64_t now, int64_t opened_at, uint32_t n,
                             const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    const sim_t *sim = context;
    (void)opened_at;
    uint64_t draw = sim_mix(sim->options.seed ^ (uint64_t)now ^ to ^ members[to].granted << 8);
    *from = (uint32_t)sim_draw_below(&draw, n + 1);
    return (uint32_t)sim_draw_below(&draw, sim->config.leases);
}

/* ---- For workers ------------------------------------------------------------------------------- */

elastic_policy_t sim_policy(sim_t *sim)
{
    switch (sim->config.policy) {
    case SIM_POLICY_PACE: return (elastic_policy_t){split_by_pace, steal_by_pace, sim};
    case SIM_POLICY_RANDOM: return (elastic_policy_t){split_anyhow, steal_anyhow, sim};
    default: return (elastic_policy_t){NULL, NULL, NULL};
    }
}

/* What a worker says of itself. */
elastic_pace_t sim_pace(const sim_t *sim, const sim_worker_t *worker, ns_t lease)
{
    const uint64_t draw = sim_mix(sim->options.seed ^ 0x9ace ^ worker->slot);
    return (elastic_pace_t){.lease_ns = (uint64_t)lease,
                            .run = sim->config.micro,
                            .last = run_of(sim, (uint32_t)(draw % 4)),
                            .most = draw >> 8 & 7 ? ELASTIC_LEASES_MAX : (uint32_t)(draw >> 12 & 7)};
}

/* What is remembered of a worker's machine when the first view is issued: right or wrong, or nothing. */
bool sim_first_paces(const sim_t *sim, const sim_view_t *view, elastic_pace_t paces[SIM_WORLD])
{
    if (sim->config.policy == SIM_POLICY_NONE || sim->options.seed & 1) return false;
    for (uint32_t i = 0; i < view->world; i++) {
        const uint64_t draw = sim_mix(sim->options.seed ^ 0xf125 ^ view->numbers[i]);
        paces[i] = (elastic_pace_t){.lease_ns = draw % (uint64_t)sim->config.lease_time,
                                    .run = sim->config.micro,
                                    .last = run_of(sim, (uint32_t)(draw >> 40 & 3)),
                                    .most = ELASTIC_LEASES_MAX};
    }
    return true;
}
