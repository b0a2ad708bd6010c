/*
 * What goes wrong, drawn from the seed before the history begins: at a time, or at the n-th time that
 * something happens ("a leader has sent its third COMMIT"). A fault that the shrinker drops changes nothing
 * else in the draw.
 */
#include <stdio.h>
#include <string.h>

#include "core/collective/schedule.h"
#include "sim/disk.h"
#include "sim/words.h"

static const char *const names[SIM_FAULT_KINDS] = {
    "crash-worker",   "crash-agent", "crash-node", "crash-manager", "freeze-worker", "freeze-node",
    "freeze-manager", "slow-node",   "slow-link",  "cut-link",      "one-way",       "partition",
    "reset",          "clock",       "torn",       "join",          "drain"};

static const char *const moments[SIM_MOMENTS] = {"",
                                                 "a micro-batch is computed",
                                                 "a bucket is reduced",
                                                 "a vote is sent",
                                                 "a commit",
                                                 "a report",
                                                 "a decision",
                                                 "the registry is written",
                                                 "a view is announced",
                                                 "a chunk is copied",
                                                 "a checkpoint is written"};

const char *sim_fault_name(sim_fault_kind_t kind)
{
    return names[kind];
}

bool sim_fault_kinds(const char *list, uint32_t *kinds)
{
    *kinds = 0;
    for (const char *at = list; *at != '\0';) {
        const size_t n = strcspn(at, ",");
        bool known = n == 4 && strncmp(at, "none", n) == 0;
        if (n == 3 && strncmp(at, "all", n) == 0) {
            *kinds = (1u << SIM_FAULT_KINDS) - 1;
            known = true;
        }
        for (uint32_t k = 0; k < SIM_FAULT_KINDS; k++)
            if (strlen(names[k]) == n && strncmp(at, names[k], n) == 0) {
                *kinds |= 1u << k;
                known = true;
            }
        if (!known) return false;
        at += n;
        if (*at == ',') at++;
    }
    return true;
}

/* ---- Drawing ----------------------------------------------------------------------------------- */

void sim_config_draw(sim_t *sim)
{
    uint64_t draw = sim_mix(sim->options.seed ^ 0xc0f16);
    sim_config_t *config = &sim->config;
    config->first_nodes = 2 + (uint32_t)sim_draw_below(&draw, 4);
    if (sim_draw_below(&draw, 16) == 0) config->first_nodes = 1;
    config->more_nodes = (uint32_t)sim_draw_below(&draw, 3);
    config->min_nodes = sim_draw_below(&draw, 3) == 0 && config->first_nodes > 2 ? 2 : 1;
    config->max_nodes = config->first_nodes + (uint32_t)sim_draw_below(&draw, 3);
    config->leases = 4 + (uint32_t)sim_draw_below(&draw, 5);
    config->buckets = 2 + (uint32_t)sim_draw_below(&draw, SIM_BUCKETS - 1);
    config->elements = 2 + (uint32_t)sim_draw_below(&draw, SIM_ELEMENTS - 1);
    config->steps = 3 + (uint32_t)sim_draw_below(&draw, SIM_STEPS - 2);
    config->algorithm = (uint32_t)sim_draw_below(&draw, SCHED_ALGORITHMS);
    config->micro = 1 + (uint32_t)sim_draw_below(&draw, 3);
    config->keep_every = (uint32_t)sim_draw_below(&draw, 4);
    config->drop = sim_draw_below(&draw, 4) == 0;
    config->failure_timeout = NS_PER_S;
    /* a LAN or a bad radio; steps that are all waiting or all computing; a controller in a hurry or not */
    static const ns_t delays[] = {300 * NS_PER_US, 3 * NS_PER_MS, 25 * NS_PER_MS};
    static const ns_t times[] = {200 * NS_PER_US, 3 * NS_PER_MS, 15 * NS_PER_MS};
    static const ns_t settles[] = {2 * NS_PER_MS, 20 * NS_PER_MS, CONTROL_SETTLE_ELASTIC};
    config->delay_least = 20 * NS_PER_US + (ns_t)sim_draw_below(&draw, 200 * NS_PER_US);
    config->delay_most =
        config->delay_least + (ns_t)sim_draw_below(&draw, (uint64_t)delays[sim_draw_below(&draw, 3)]);
    config->lease_time =
        50 * NS_PER_US + (ns_t)sim_draw_below(&draw, (uint64_t)times[sim_draw_below(&draw, 3)]);
    config->settle = settles[sim_draw_below(&draw, 3)];
    config->cool_down = NS_PER_MS << sim_draw_below(&draw, 8);
    config->dense = sim_draw_below(&draw, 4) == 0 || sim->options.dense;
    if (config->dense) {
        config->first_nodes = 2 + (uint32_t)sim_draw_below(&draw, 2);
        config->more_nodes = 1 + (uint32_t)sim_draw_below(&draw, 2);
        config->max_nodes = config->first_nodes + 2;
        config->min_nodes = sim_draw_below(&draw, 4) == 0 ? 2 : 1;
        config->buckets = 2 + (uint32_t)sim_draw_below(&draw, 2);
        config->steps = 6 + (uint32_t)sim_draw_below(&draw, SIM_STEPS - 5);
        config->drop = sim_draw_below(&draw, 4) == 0;
        config->settle = settles[sim_draw_below(&draw, 3)];
        config->cool_down = NS_PER_MS;
    }
    uint64_t shares = sim_mix(sim->options.seed ^ 0x57ea1);
    if (sim_draw_below(&shares, 2)) {
        config->policy = sim_draw_below(&shares, 2) ? SIM_POLICY_PACE : SIM_POLICY_RANDOM;
        config->leases = SIM_LEASES / 3 + (uint32_t)sim_draw_below(&shares, SIM_LEASES - SIM_LEASES / 3 + 1);
    }
    for (uint32_t h = 0; h < SIM_HOSTS; h++) {
        sim->mono_offset[h] =
            (ns_t)sim_draw_below(&draw, 1000) * NS_PER_S; /* every machine booted at its own time */
        sim->wall_offset[h] = sim->mono_offset[h];
    }
}

static uint32_t nth_most(sim_moment_t moment)
{
    static const uint8_t most[SIM_MOMENTS] = {1, 40, 60, 40, 40, 12, 6, 40, 12, 6, 9};
    return most[moment];
}

static bool fits(sim_fault_kind_t kind, sim_moment_t moment)
{
    if (kind == SIM_FAULT_TORN) return moment == SIM_AT_STORE;
    if (kind == SIM_FAULT_JOIN || kind == SIM_FAULT_CLOCK) return moment == SIM_AT_TIME;
    if (moment == SIM_AT_STORE || moment == SIM_AT_ANNOUNCE) return kind == SIM_FAULT_CRASH_MANAGER;
    return true;
}

static ns_t draw_duration(uint64_t *draw)
{
    static const ns_t most[] = {100 * NS_PER_MS, 500 * NS_PER_MS, 1500 * NS_PER_MS, 4 * NS_PER_S};
    return 20 * NS_PER_MS + (ns_t)sim_draw_below(draw, (uint64_t)most[sim_draw_below(draw, 4)]);
}

/* About so long the job takes undisturbed: faults at a time shall strike while it runs. */
static ns_t expected_ns(const sim_t *sim)
{
    const sim_config_t *config = &sim->config;
    const ns_t compute = config->lease_time * (ns_t)(config->leases / config->first_nodes + 1);
    const ns_t step = compute + 3 * (config->delay_least + config->delay_most);
    return 60 * NS_PER_MS + (ns_t)(config->steps + 4) * step;
}

/* One on top of the other: losses, and connections that are reset while everybody stays. */
static void draw_dense_fault(sim_t *sim, uint64_t *draw, sim_fault_t *fault)
{
    static const uint8_t at[] = {SIM_AT_COMPUTED, SIM_AT_REDUCED, SIM_AT_REDUCED, SIM_AT_VOTE, SIM_AT_COMMIT,
                                 SIM_AT_REPORT,   SIM_AT_DECIDE,  SIM_AT_CHUNK,   SIM_AT_CHUNK};
    fault->kind = sim_draw_below(draw, 2) ? SIM_FAULT_RESET : SIM_FAULT_CRASH_WORKER;
    if (!(sim->options.kinds >> fault->kind & 1))
        fault->kind = fault->kind == SIM_FAULT_RESET ? SIM_FAULT_CRASH_WORKER : SIM_FAULT_RESET;
    fault->moment = (sim_moment_t)at[sim_draw_below(draw, sizeof at)];
    fault->nth = 1 + (uint32_t)sim_draw_below(draw, 2 * nth_most(fault->moment));
    fault->lasts = draw_duration(draw);
    if (sim_draw_below(draw, 3) == 0)
        fault->a = 1 + (uint32_t)sim_draw_below(draw, sim->config.first_nodes + sim->config.more_nodes);
    fault->draw = sim_draw(draw);
}

static void draw_fault(sim_t *sim, uint64_t *draw, sim_fault_t *fault)
{
    const uint32_t dense_kinds = 1u << SIM_FAULT_RESET | 1u << SIM_FAULT_CRASH_WORKER;
    if (sim->config.dense && (sim->options.kinds & dense_kinds) && sim_draw_below(draw, 8) > 0) {
        draw_dense_fault(sim, draw, fault);
        return;
    }
    const uint32_t hosts = sim->config.first_nodes + sim->config.more_nodes;
    do {
        fault->kind = (sim_fault_kind_t)sim_draw_below(draw, SIM_FAULT_KINDS);
    } while (!(sim->options.kinds >> fault->kind & 1));
    do {
        fault->moment =
            sim_draw_below(draw, 3) == 0 ? SIM_AT_TIME : (sim_moment_t)sim_draw_below(draw, SIM_MOMENTS);
    } while (!fits(fault->kind, fault->moment));
    fault->nth = 1 + (uint32_t)sim_draw_below(draw, nth_most(fault->moment));
    fault->at = 60 * NS_PER_MS + (ns_t)sim_draw_below(draw, (uint64_t)expected_ns(sim));
    fault->lasts = draw_duration(draw);
    const bool named = fault->moment == SIM_AT_TIME || sim_draw_below(draw, 3) == 0;
    const uint32_t a = 1 + (uint32_t)sim_draw_below(draw, hosts);
    fault->a = named ? a : 0;
    fault->b = (uint32_t)sim_draw_below(draw, hosts + 1);
    fault->draw = sim_draw(draw);
}

void sim_faults_draw(sim_t *sim)
{
    uint64_t draw = sim_mix(sim->options.seed ^ 0xfa017);
    const sim_config_t *config = &sim->config;
    sim->n_faults = 0;
    if (sim->options.kinds == 0) return;
    for (uint32_t i = 0; i < config->more_nodes && (sim->options.kinds >> SIM_FAULT_JOIN & 1); i++) {
        sim_fault_t *join = &sim->faults[sim->n_faults++];
        *join = (sim_fault_t){.kind = SIM_FAULT_JOIN, .a = config->first_nodes + 1 + i};
        join->at = 80 * NS_PER_MS + (ns_t)sim_draw_below(&draw, (uint64_t)expected_ns(sim) / 2);
        if (i > 0 && sim_draw_below(&draw, 2)) join->at = sim->faults[0].at; /* a storm */
    }
    static const uint8_t most[] = {2, 4, 8, 16};
    const uint32_t n = config->dense ? 10 + (uint32_t)sim_draw_below(&draw, 12)
                                     : 1 + (uint32_t)sim_draw_below(&draw, most[sim_draw_below(&draw, 4)]);
    uint32_t drains = 0;
    for (uint32_t i = 0; i < n; i++) {
        sim_fault_t *fault = &sim->faults[sim->n_faults];
        memset(fault, 0, sizeof *fault);
        draw_fault(sim, &draw, fault);
        if (fault->kind == SIM_FAULT_JOIN) continue; /* drawn above */
        if (fault->kind == SIM_FAULT_DRAIN && config->first_nodes < config->min_nodes + ++drains) continue;
        sim->n_faults++;
    }
    for (uint32_t i = 0; i < sim->n_faults; i++) sim->faults[i].dropped = sim->options.dropped >> i & 1;
}

void sim_faults_start(sim_t *sim)
{
    for (uint32_t i = 0; i < sim->n_faults; i++)
        if (sim->faults[i].moment == SIM_AT_TIME && !sim->faults[i].dropped)
            sim_push(sim, sim->faults[i].at, SIM_EV_FAULT, i, 0, 0);
}

/* ---- Striking ---------------------------------------------------------------------------------- */

static void calm_after(sim_t *sim, ns_t after)
{
    if (sim->calm < sim->now + after) sim->calm = sim->now + after;
}

static void kill_host(sim_t *sim, uint32_t host, ns_t back)
{
    for (uint32_t i = 0; i < sim->n_workers; i++)
        if (sim->workers[i] != NULL && sim->workers[i]->host == host) sim_kill(sim, sim_worker_process(i));
    sim_kill(sim, sim_agent(host));
    sim_disk_power_cut(sim, host);
    sim_push(sim, back, SIM_EV_RESTART, sim_agent(host), 0, sim->processes[sim_agent(host)].life);
}

static void freeze(sim_t *sim, sim_process_t process, ns_t lasts)
{
    sim_life_t *life = &sim->processes[process];
    if (life->alive && life->frozen_until < sim->now + lasts) life->frozen_until = sim->now + lasts;
}

static sim_worker_t *worker_on(sim_t *sim, uint32_t host)
{
    for (uint32_t i = sim->n_workers; i-- > 0;)
        if (sim->workers[i] != NULL && sim->workers[i]->host == host && sim_alive(sim, sim_worker_process(i)))
            return sim->workers[i];
    return NULL;
}

static void partition(sim_t *sim, const sim_fault_t *fault)
{
    const uint64_t side = fault->draw;
    for (uint32_t a = 0; a < SIM_HOSTS; a++)
        for (uint32_t b = 0; b < SIM_HOSTS; b++)
            if ((side >> a & 1) != (side >> b & 1)) sim_net_cut(sim, a, b, sim->now + fault->lasts);
}

/* A connection between two workers is reset; it is nobody's fault. */
static void reset(sim_t *sim, const sim_fault_t *fault)
{
    for (uint32_t k = 0; k < sim->n_pipes; k++) {
        sim_pipe_t *pipe = sim->pipes[(fault->draw + k) % sim->n_pipes];
        if (pipe->kind != SIM_PIPE_DATA || pipe->from_closed || pipe->to_closed) continue;
        if (!sim_alive(sim, pipe->from) || !sim_alive(sim, pipe->to)) continue;
        sim_pipe_close_to(sim, pipe);
        sim_comm_ended(sim, sim->workers[pipe->to - SIM_FIRST_WORKER], pipe);
        sim_push(sim, NS_PER_MS, SIM_EV_RESET, pipe->index, 0, 0);
        return;
    }
}

static void strike_link(sim_t *sim, const sim_fault_t *fault, uint32_t a, uint32_t b)
{
    const ns_t until = sim->now + fault->lasts;
    if (fault->kind == SIM_FAULT_SLOW_LINK) {
        sim->slow_until[a][b] = sim->slow_until[b][a] = until;
    } else {
        sim_net_cut(sim, a, b, until);
        if (fault->kind == SIM_FAULT_CUT_LINK) sim_net_cut(sim, b, a, until);
    }
}

static void strike_process(sim_t *sim, const sim_fault_t *fault, uint32_t host)
{
    const ns_t back = 50 * NS_PER_MS + fault->lasts / 2;
    sim_worker_t *worker = worker_on(sim, host);
    switch (fault->kind) {
    case SIM_FAULT_CRASH_WORKER:
        if (worker != NULL) sim_kill(sim, sim_worker_process(worker->slot));
        break;
    case SIM_FAULT_CRASH_AGENT:
        sim_kill(sim, sim_agent(host));
        sim_push(sim, back, SIM_EV_RESTART, sim_agent(host), 0, sim->processes[sim_agent(host)].life);
        calm_after(sim, back);
        break;
    case SIM_FAULT_CRASH_NODE:
        kill_host(sim, host, back);
        calm_after(sim, back);
        break;
    case SIM_FAULT_FREEZE_WORKER:
        if (worker != NULL) freeze(sim, sim_worker_process(worker->slot), fault->lasts);
        break;
    case SIM_FAULT_FREEZE_NODE:
        freeze(sim, sim_agent(host), fault->lasts);
        for (uint32_t i = 0; i < sim->n_workers; i++)
            if (sim->workers[i] != NULL && sim->workers[i]->host == host)
                freeze(sim, sim_worker_process(i), fault->lasts);
        break;
    case SIM_FAULT_SLOW_NODE: sim->node_slow_until[host] = sim->now + fault->lasts; break;
    case SIM_FAULT_CLOCK:
        sim->wall_offset[fault->draw % 2 ? host : 0] +=
            (ns_t)(fault->draw % 7200) * NS_PER_S - 3600 * NS_PER_S;
        break;
    case SIM_FAULT_JOIN: sim_agent_start(sim, host); break;
    case SIM_FAULT_DRAIN: sim_manager_drain(sim, host); break;
    default: break;
    }
}

static void crash_manager(sim_t *sim, const sim_fault_t *fault)
{
    if (!sim_alive(sim, SIM_MANAGER)) return;
    const ns_t back = 50 * NS_PER_MS + fault->lasts / 2;
    sim_kill(sim, SIM_MANAGER);
    sim_push(sim, back, SIM_EV_RESTART, SIM_MANAGER, 0, sim->processes[SIM_MANAGER].life);
    calm_after(sim, back);
}

static bool exists(const sim_t *sim, uint32_t host)
{
    return sim->processes[sim_agent(host)].life > 0;
}

static bool ends_by_itself(sim_fault_kind_t kind)
{
    switch (kind) {
    case SIM_FAULT_FREEZE_WORKER:
    case SIM_FAULT_FREEZE_NODE:
    case SIM_FAULT_FREEZE_MANAGER:
    case SIM_FAULT_SLOW_NODE:
    case SIM_FAULT_SLOW_LINK:
    case SIM_FAULT_CUT_LINK:
    case SIM_FAULT_ONE_WAY:
    case SIM_FAULT_PARTITION: return true;
    default: return false; /* a moment; what restarts says when */
    }
}

static void strike(sim_t *sim, sim_fault_t *fault, uint32_t host)
{
    if (fault->struck) return;
    fault->struck = true;
    if (fault->kind != SIM_FAULT_JOIN && host != 0 && !exists(sim, host)) return;
    sim->result->struck++;
    calm_after(sim, ends_by_itself(fault->kind) ? fault->lasts : 0);
    sim_record(sim, (uint64_t)fault->kind << 8 ^ host);
    sim_note(sim, "FAULT %s, node %u, %.0f ms", names[fault->kind], host, ns_to_s(fault->lasts) * 1e3);
    switch (fault->kind) {
    case SIM_FAULT_CRASH_MANAGER: crash_manager(sim, fault); break;
    case SIM_FAULT_TORN:
        sim->disks->torn = fault->draw & 1;
        crash_manager(sim, fault);
        break;
    case SIM_FAULT_FREEZE_MANAGER: freeze(sim, SIM_MANAGER, fault->lasts); break;
    case SIM_FAULT_PARTITION: partition(sim, fault); break;
    case SIM_FAULT_RESET: reset(sim, fault); break;
    case SIM_FAULT_SLOW_LINK:
    case SIM_FAULT_CUT_LINK:
    case SIM_FAULT_ONE_WAY: strike_link(sim, fault, host, fault->b); break;
    default: strike_process(sim, fault, host); break;
    }
}

void sim_fault_event(sim_t *sim, const sim_event_t *event)
{
    sim_fault_t *fault = &sim->faults[event->a];
    strike(sim, fault, event->b != 0 ? event->b : fault->a);
}

bool sim_moment(sim_t *sim, sim_moment_t moment, sim_process_t process)
{
    const uint32_t nth = ++sim->moments[moment];
    for (uint32_t i = 0; i < sim->n_faults; i++) {
        sim_fault_t *fault = &sim->faults[i];
        if (fault->moment != moment || fault->nth != nth || fault->dropped || fault->struck) continue;
        uint32_t host = fault->a;
        if (host == 0) host = process == SIM_MANAGER ? 0 : sim->processes[process].host;
        /* who sends is at the moment, whoever else is not: what happens to another comes a moment later */
        if (process != SIM_MANAGER && sim->processes[process].host == host)
            strike(sim, fault, host);
        else if (process == SIM_MANAGER &&
                 (fault->kind == SIM_FAULT_TORN || fault->kind == SIM_FAULT_CRASH_MANAGER))
            strike(sim, fault, 0);
        else
            sim_push(sim, NS_PER_US, SIM_EV_FAULT, i, host, 0);
    }
    return !sim_alive(sim, process);
}

void sim_print_faults(const sim_t *sim)
{
    for (uint32_t i = 0; i < sim->n_faults; i++) {
        const sim_fault_t *fault = &sim->faults[i];
        if (fault->dropped || !fault->struck) continue;
        printf("  fault %2u  %-14s", i, names[fault->kind]);
        if (fault->a != 0) printf(" node %u", fault->a);
        if (fault->kind == SIM_FAULT_CUT_LINK || fault->kind == SIM_FAULT_ONE_WAY ||
            fault->kind == SIM_FAULT_SLOW_LINK)
            printf(" -> %u", fault->b);
        if (fault->moment == SIM_AT_TIME)
            printf(" at %.3f s", ns_to_s(fault->at));
        else
            printf(" when the %u. time %s", fault->nth, moments[fault->moment]);
        printf(", for %.0f ms\n", ns_to_s(fault->lasts) * 1e3);
    }
}
