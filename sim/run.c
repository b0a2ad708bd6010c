/* One history from beginning to end, and shrinking. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/internal.h"

enum { EVENTS_MOST = 400000 };

/* ---- Processes --------------------------------------------------------------------------------- */

bool sim_alive(const sim_t *sim, sim_process_t process)
{
    return sim->processes[process].alive;
}

bool sim_frozen(const sim_t *sim, sim_process_t process)
{
    return sim->processes[process].frozen_until > sim->now;
}

/* SIGKILL. Memory that the code on the stack may use stays until the end of the history. */
void sim_kill(sim_t *sim, sim_process_t process)
{
    sim_life_t *life = &sim->processes[process];
    if (!life->alive) return;
    life->alive = false;
    life->frozen_until = 0;
    sim_record(sim, 0xdead0000u ^ process);
    if (process == SIM_MANAGER) {
        sim_note(sim, "manager dies");
        sim_manager_died(sim);
    } else if (process < SIM_FIRST_WORKER) {
        sim_note(sim, "agent of node %u dies", process);
        sim_agent_died(sim, process);
    } else {
        sim_worker_t *worker = sim->workers[process - SIM_FIRST_WORKER];
        sim_note(sim, "rank %u dies", worker->slot);
        sim_worker_died(worker);
        const sim_life_t *agent = &sim->processes[sim_agent(worker->host)];
        if (agent->alive) sim_push(sim, NS_PER_MS, SIM_EV_EXITED, worker->slot, 0, agent->life);
    }
    sim_net_died(sim, process);
}

static void restart(sim_t *sim, const sim_event_t *event)
{
    const sim_life_t *life = &sim->processes[event->a];
    if (life->alive || life->life != event->life) return;
    sim_note(sim, "%s %u starts again", event->a == SIM_MANAGER ? "manager" : "agent of node", event->a);
    if (event->a == SIM_MANAGER)
        sim_manager_start(sim);
    else
        sim_agent_start(sim, event->a);
}

/* ---- The loop ---------------------------------------------------------------------------------- */

static void dispatch(sim_t *sim, const sim_event_t *event)
{
    switch (event->type) {
    case SIM_EV_PIPE:
    case SIM_EV_RESET: sim_net_event(sim, event); break;
    case SIM_EV_AGENT_TICK:
    case SIM_EV_CONNECT:
    case SIM_EV_EXITED:
    case SIM_EV_UPLOAD: sim_agent_event(sim, event); break;
    case SIM_EV_MANAGER_TICK: sim_manager_event(sim, event); break;
    case SIM_EV_WORK:
    case SIM_EV_WORKER_TICK:
    case SIM_EV_SPAWNED:
    case SIM_EV_WRITE: sim_worker_event(sim, event); break;
    case SIM_EV_FAULT: sim_fault_event(sim, event); break;
    case SIM_EV_RESTART: restart(sim, event); break;
    case SIM_EV_TYPES: break;
    }
}

static void loop(sim_t *sim)
{
    sim_result_t *result = sim->result;
    sim_event_t event;
    while (!sim->over && sim_pop(sim, &event)) {
        sim->now = event.at;
        sim_record(sim, (uint64_t)event.at ^ (uint64_t)event.type << 56 ^ (uint64_t)event.a << 40);
        dispatch(sim, &event);
        if (!sim->over) sim_check_event(sim);
        if (++result->events == EVENTS_MOST && !sim->over)
            sim_broken(sim, "I6", "%u events and no end: something goes round without a bound", EVENTS_MOST);
    }
    result->hash = sim->hash;
    result->ended = sim->now;
    result->faults = sim->n_faults;
}

static void close_all(sim_t *sim)
{
    sim_workers_free(sim);
    sim_manager_free(sim);
    sim_agents_free(sim);
    sim_disks_free(sim);
    sim_checks_free(sim);
    sim_net_free(sim);
    free(sim->heap);
    free(sim);
}

void sim_run(const sim_options_t *options, sim_result_t *result)
{
    sim_t *sim = calloc(1, sizeof *sim);
    memset(result, 0, sizeof *result);
    if (sim == NULL || !sim_plant(options->plant)) abort();
    sim->options = *options;
    sim->result = result;
    sim->hash = options->seed;
    sim_config_draw(sim);
    sim_faults_draw(sim);
    if (sim_agents_open(sim) != INSPAN_OK || sim_manager_open(sim) != INSPAN_OK ||
        sim_disks_open(sim) != INSPAN_OK || sim_checks_open(sim) != INSPAN_OK)
        abort();
    sim_manager_start(sim);
    for (uint32_t h = 1; h <= sim->config.first_nodes; h++) sim_agent_start(sim, h);
    sim_faults_start(sim);
    loop(sim);
    if (options->list_faults) sim_print_faults(sim);
    close_all(sim);
}

/* ---- Shrinking --------------------------------------------------------------------------------- */

static bool fails_alike(const sim_options_t *options, const sim_result_t *wanted, sim_result_t *result)
{
    sim_run(options, result);
    return result->failed && strcmp(result->invariant, wanted->invariant) == 0;
}

void sim_shrink(sim_options_t *options, sim_result_t *result)
{
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (uint32_t i = 0; i < result->faults; i++) {
            if (options->dropped >> i & 1) continue;
            sim_options_t less = *options;
            sim_result_t found;
            less.dropped |= 1u << i;
            if (!fails_alike(&less, result, &found)) continue;
            *options = less;
            *result = found;
            smaller = true;
        }
    }
}
