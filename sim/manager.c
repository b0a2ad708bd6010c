/*
 * The manager: the real job controller, liveness and scheduler, and a shell that stores and sends as
 * src/manager/jobs does. A crash takes all but the registry.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sched/sched.h"
#include "sim/disk.h"
#include "sim/words.h"

typedef struct node {
    bool known, draining;
    liveness_t life;
    sim_pipe_t *up, *down;
    ns_t cool_until;
    uint32_t losses;
    char name[16];
} node_t;

struct sim_manager {
    control_job_t job;
    bool job_open;
    node_t nodes[SIM_HOSTS];
    ns_t last_tick;
    bool acting;
};

static const ns_t tick_period = 50 * NS_PER_MS;

static ns_t clock_of(const sim_t *sim)
{
    return sim_planted(WALLCLOCK) ? sim->now + sim->wall_offset[0] : sim_mono(sim, 0);
}

inspan_status_t sim_manager_open(sim_t *sim)
{
    sim->manager = calloc(1, sizeof *sim->manager);
    return sim->manager != NULL ? INSPAN_OK : INSPAN_NO_MEMORY;
}

static void close_job(sim_manager_t *manager)
{
    if (manager->job_open) control_job_close(&manager->job);
    manager->job_open = false;
}

void sim_manager_free(sim_t *sim)
{
    if (sim->manager != NULL) close_job(sim->manager);
    free(sim->manager);
}

const control_job_t *sim_manager_job(const sim_t *sim)
{
    return &sim->manager->job;
}

/* ---- Sending ----------------------------------------------------------------------------------- */

static void send_to(sim_t *sim, uint32_t number, sim_msg_t *msg)
{
    sim_manager_t *manager = sim->manager;
    node_t *node = &manager->nodes[manager->job.ranks[number].node];
    msg->a = number;
    if (node->down == NULL)
        free(msg); /* it gets it when it attaches again */
    else
        sim_send(sim, node->down, SIM_LANE_WORDS, msg);
}

static void send_start(sim_t *sim, uint32_t number)
{
    const control_job_t *job = &sim->manager->job;
    const sim_artifact_t *from = &sim->disks->registry.checkpoint;
    sim_model_t first;
    sim_model_first(sim, &first);
    const bool resume = from->there && !sim_planted(NORESUME);
    sim_msg_t *msg = sim_msg(SIM_M_START, resume ? &from->model : &first, sizeof first);
    msg->b = resume ? from->step : 0;
    msg->c = job->members.n > 0 && !sim_planted(FULLNEWCOMER);
    send_to(sim, number, msg);
}

static sim_view_t view_of(const control_job_t *job)
{
    sim_view_t view = {.number = job->members.number, .first = job->members.first, .world = job->members.n};
    for (uint32_t i = 0; i < job->members.n && i < SIM_WORLD; i++) view.numbers[i] = job->members.members[i];
    return view;
}

static void announce(sim_t *sim, uint32_t number)
{
    sim_view_t view = view_of(&sim->manager->job);
    sim_check_announced(sim, &view);
    sim_note(sim, "manager announces view %llu to rank %u", (unsigned long long)view.number, number);
    send_to(sim, number, sim_msg(SIM_M_VIEW, &view, sizeof view));
    sim_moment(sim, SIM_AT_ANNOUNCE, SIM_MANAGER);
}

/* ---- Carrying out what the controller decided -------------------------------------------------- */

static bool store_view(sim_t *sim)
{
    control_job_t *job = &sim->manager->job;
    sim_view_t view = view_of(job);
    sim->result->views++;
    if (sim->options.trace) {
        char members[64] = "";
        for (uint32_t i = 0; i < view.world; i++)
            snprintf(members + strlen(members), sizeof members - strlen(members), " %u", view.numbers[i]);
        sim_note(sim, "manager stores view %llu:%s (%s)", (unsigned long long)view.number, members,
                 job->news);
    }
    return sim_registry_write(sim, SIM_ROW_VIEW, job, &view, NULL);
}

static void cool_down(sim_t *sim, uint32_t number)
{
    node_t *node = &sim->manager->nodes[sim->manager->job.ranks[number].node];
    const uint32_t n = node->losses < 3 ? node->losses++ : 3;
    node->cool_until = sim->now + (sim->config.cool_down << n);
}

/* false: the manager is dead. */
static bool carry_out(sim_t *sim, const control_action_t *action)
{
    control_job_t *job = &sim->manager->job;
    sim_msg_t *msg;
    sim_record(sim, (uint64_t)action->kind << 32 ^ action->rank);
    switch (action->kind) {
    case CONTROL_STORE:
    case CONTROL_NOTE:
    case CONTROL_NOTE_RANK: return sim_registry_write(sim, SIM_ROW_JOB, job, NULL, NULL);
    case CONTROL_STORE_VIEW: return store_view(sim);
    case CONTROL_START_WORKER: send_start(sim, action->rank); break;
    case CONTROL_ANNOUNCE_VIEW: announce(sim, action->rank); break;
    case CONTROL_STOP_WORKER:
        msg = sim_msg(SIM_M_STOP, NULL, 0);
        msg->b = action->kill;
        send_to(sim, action->rank, msg);
        break;
    case CONTROL_ASK_TO_LEAVE: send_to(sim, action->rank, sim_msg(SIM_M_LEAVE, NULL, 0)); break;
    case CONTROL_LOST_WORKER: cool_down(sim, action->rank); break;
    case CONTROL_ENDED: sim_check_ended(sim); break;
    default: break;
    }
    return sim_alive(sim, SIM_MANAGER);
}

/* Planted REUSE: the announcement goes out before the view is durable. */
static void swap_store_and_announce(control_job_t *job)
{
    for (size_t i = 0; i + 1 < job->actions.n; i++) {
        control_action_t store = job->actions.items[i];
        if (store.kind != CONTROL_STORE_VIEW) continue;
        while (i + 1 < job->actions.n && job->actions.items[i + 1].kind == CONTROL_ANNOUNCE_VIEW) {
            job->actions.items[i] = job->actions.items[i + 1];
            job->actions.items[++i] = store;
        }
    }
}

static void act(sim_t *sim)
{
    sim_manager_t *manager = sim->manager;
    if (manager->acting || !manager->job_open) return;
    manager->acting = true;
    if (sim_planted(REUSE)) swap_store_and_announce(&manager->job);
    for (size_t i = 0; i < manager->job.actions.n && !sim->over; i++)
        if (!carry_out(sim, &manager->job.actions.items[i])) break;
    manager->acting = false;
    if (sim_alive(sim, SIM_MANAGER)) control_job_acted(&manager->job);
}

/* ---- Placement --------------------------------------------------------------------------------- */

static bool ready(const sim_t *sim, const node_t *node)
{
    return node->known && !node->draining && node->down != NULL && node->life.state == LIVENESS_ATTACHED &&
           sim->now >= node->cool_until;
}

static uint32_t list_nodes(const sim_t *sim, sched_node_t *list, uint32_t *hosts)
{
    const sim_manager_t *manager = sim->manager;
    uint32_t n = 0;
    for (uint32_t h = 1; h < SIM_HOSTS; h++) {
        const node_t *node = &manager->nodes[h];
        if (!node->known) continue;
        hosts[n] = h;
        list[n++] = (sched_node_t){.name = node->name,
                                   .machine = node->name,
                                   .memory_bytes = 1u << 30,
                                   .cores = 4,
                                   .ready = ready(sim, node),
                                   .busy = manager->job_open && control_job_holds(&manager->job, h)};
    }
    return n;
}

static control_rank_t rank_on(const sim_t *sim, uint32_t host)
{
    control_rank_t rank = {.node = host};
    snprintf(rank.node_name, sizeof rank.node_name, "%s", sim->manager->nodes[host].name);
    snprintf(rank.node_id, sizeof rank.node_id, "id%u", host);
    snprintf(rank.address, sizeof rank.address, "10.0.0.%u", host);
    return rank;
}

static uint32_t place(const sim_t *sim, uint32_t least, uint32_t most, control_rank_t *ranks)
{
    sched_node_t nodes[SIM_HOSTS];
    uint32_t hosts[SIM_HOSTS];
    static sched_placement_t placement; /* too big for a stack; filled anew */
    const uint32_t n = list_nodes(sim, nodes, hosts);
    const sched_job_t wanted = {.id = 1, .memory_bytes = 1000, .min_nodes = least, .max_nodes = most};
    sched_round(&wanted, 1, nodes, n, &placement);
    if (!placement.starts) return 0;
    for (uint32_t i = 0; i < placement.n_nodes; i++) ranks[i] = rank_on(sim, hosts[placement.nodes[i]]);
    return placement.n_nodes;
}

static void schedule(sim_t *sim)
{
    sim_manager_t *manager = sim->manager;
    control_job_t *job = &manager->job;
    if (!manager->job_open) return;
    control_rank_t ranks[SIM_HOSTS];
    const ns_t now = clock_of(sim);
    if (job->state == CONTROL_QUEUED && sim->now > 60 * NS_PER_MS) {
        const uint32_t n = place(sim, sim->config.min_nodes, sim->config.max_nodes, ranks);
        if (n > 0 && control_job_start(job, ranks, n, now) == INSPAN_OK) act(sim);
    }
    while (!sim->over && sim_alive(sim, SIM_MANAGER) && job->world < SIM_WORKERS &&
           control_job_wants(job) > 0) {
        if (place(sim, 1, 1, ranks) == 0 || control_job_grow(job, &ranks[0], now) != INSPAN_OK) break;
        act(sim);
    }
}

/* ---- Life -------------------------------------------------------------------------------------- */

static void load(sim_t *sim)
{
    sim_manager_t *manager = sim->manager;
    control_job_t *job = &manager->job;
    const sim_registry_t *registry = &sim->disks->registry;
    control_limits_t limits = CONTROL_LIMITS_DEFAULT;
    limits.start = 8 * NS_PER_S;
    limits.in_a_row = 1000;
    if (control_job_open(job, 1, &limits) != INSPAN_OK) abort();
    control_job_elastic(job, sim->config.min_nodes, sim->config.max_nodes);
    job->limits.settle = sim->config.settle;
    manager->job_open = true;
    if (!registry->job) return;
    const ns_t now = clock_of(sim);
    control_view_t view = registry->view;
    if (sim_planted(FORGETVIEW)) view.number = view.number > 1 ? view.number - 1 : 1;
    if (control_job_restore(job, registry->state, registry->outcome, registry->ranks, registry->world,
                            view.number > 0 ? &view : NULL, now) != INSPAN_OK)
        abort();
    if (control_job_over(job)) sim_check_ended(sim); /* its end is stored: told again */
    act(sim);
    if (registry->result.there && sim_alive(sim, SIM_MANAGER)) {
        control_job_result(job, now);
        act(sim);
    }
}

void sim_manager_start(sim_t *sim)
{
    sim_manager_t *manager = sim->manager;
    sim_life_t *process = &sim->processes[SIM_MANAGER];
    process->alive = true;
    process->life++;
    process->frozen_until = 0;
    close_job(manager);
    manager->last_tick = sim->now;
    const ns_t now = clock_of(sim);
    for (uint32_t h = 1; h < SIM_HOSTS; h++) {
        node_t *node = &manager->nodes[h];
        node->up = node->down = NULL;
        if (node->known) liveness_restore(&node->life, now);
    }
    load(sim);
    sim_push(sim, tick_period, SIM_EV_MANAGER_TICK, 0, 0, process->life);
}

/* Its memory is kept until it starts again: it may be at work when it dies. */
void sim_manager_died(sim_t *sim)
{
    for (uint32_t h = 1; h < SIM_HOSTS; h++) sim->manager->nodes[h].up = sim->manager->nodes[h].down = NULL;
}

/* ---- Words from agents ------------------------------------------------------------------------- */

static void drop_session(sim_t *sim, node_t *node)
{
    sim_pipe_close_from(sim, node->down);
    sim_pipe_close_to(sim, node->up);
    node->up = node->down = NULL;
}

static void attached(sim_t *sim, sim_pipe_t *pipe, const sim_msg_t *msg)
{
    sim_manager_t *manager = sim->manager;
    const uint32_t host = msg->a;
    node_t *node = &manager->nodes[host];
    const ns_t now = clock_of(sim);
    if (node->down != NULL) drop_session(sim, node);
    node->known = true;
    snprintf(node->name, sizeof node->name, "node%u", host);
    node->up = pipe;
    node->down = sim->pipes[msg->b];
    liveness_attach(&node->life, now);
    control_job_node_attached(&manager->job, host, (const control_report_t *)msg->data,
                              msg->bytes / (uint32_t)sizeof(control_report_t), now);
    act(sim);
    if (node->draining && sim_alive(sim, SIM_MANAGER)) {
        control_job_leave(&manager->job, host, now);
        act(sim);
    }
}

static bool take_artifact(sim_t *sim, const sim_msg_t *msg)
{
    sim_manager_t *manager = sim->manager;
    sim_artifact_t artifact = {.there = true, .step = msg->b, .view = msg->view, .worker = msg->c};
    memcpy(&artifact.model, msg->data, sizeof artifact.model);
    const sim_artifact_t *known =
        msg->a == SIM_KIND_RESULT ? &sim->disks->registry.result : &sim->disks->registry.checkpoint;
    if (known->there && known->step == msg->b && known->view == msg->view && known->worker == msg->c)
        return true; /* said again */
    /* P1, in the same transaction */
    if (msg->view != manager->job.view && !sim_planted(NOFENCE)) return false;
    if (known->there && known->step >= artifact.step && !sim_planted(NOFENCE))
        return msg->a == SIM_KIND_RESULT;
    if (!sim_registry_write(sim, msg->a == SIM_KIND_RESULT ? SIM_ROW_RESULT : SIM_ROW_CHECKPOINT,
                            &manager->job, NULL, &artifact))
        return false;
    sim_note(sim, "manager registers %s of step %u by rank %u, view %llu",
             msg->a == SIM_KIND_RESULT ? "the result" : "a checkpoint", msg->b, msg->c,
             (unsigned long long)msg->view);
    return true;
}

static void register_artifact(sim_t *sim, const node_t *node, const sim_msg_t *msg)
{
    sim_manager_t *manager = sim->manager;
    sim_msg_t *reply = sim_msg(SIM_M_REGISTERED, NULL, 0);
    reply->a = msg->a;
    reply->b = msg->b;
    reply->c = msg->c;
    reply->view = msg->view;
    if (sim_planted(ACKFIRST)) { /* acknowledged before it is durable */
        sim_msg_t *early = sim_msg(SIM_M_REGISTERED, NULL, 0);
        early->a = msg->a;
        early->b = msg->b;
        early->c = msg->c;
        early->view = msg->view;
        early->d = true;
        sim_send(sim, node->down, SIM_LANE_WORDS, early);
        sim_check_acked(sim, msg->a, msg->b);
    }
    reply->d = take_artifact(sim, msg);
    if (!sim_alive(sim, SIM_MANAGER)) {
        free(reply);
        return;
    }
    if (reply->d) sim_check_acked(sim, msg->a, msg->b);
    const bool result = msg->a == SIM_KIND_RESULT && reply->d != 0;
    sim_send(sim, node->down, SIM_LANE_WORDS, reply);
    if (result) {
        control_job_result(&manager->job, clock_of(sim));
        act(sim);
    }
}

void sim_manager_up(sim_t *sim, sim_pipe_t *pipe, sim_msg_t *msg)
{
    sim_manager_t *manager = sim->manager;
    node_t *node = &manager->nodes[pipe->from];
    const ns_t now = clock_of(sim);
    if (msg->type == SIM_M_REGISTER) {
        attached(sim, pipe, msg);
    } else if (pipe == node->up) {
        liveness_heard(&node->life, now);
        switch (msg->type) {
        case SIM_M_REPORT:
            control_job_report(&manager->job, (const control_report_t *)msg->data, now);
            act(sim);
            break;
        case SIM_M_ARTIFACT: register_artifact(sim, node, msg); break;
        default: break;
        }
    }
    free(msg);
    if (sim_alive(sim, SIM_MANAGER) && !sim->over) schedule(sim);
}

void sim_manager_ended(sim_t *sim, sim_pipe_t *pipe)
{
    const uint32_t host = pipe->kind == SIM_PIPE_UP ? pipe->from : pipe->to;
    node_t *node = &sim->manager->nodes[host];
    if (pipe != node->up && pipe != node->down) return;
    drop_session(sim, node);
    liveness_broke(&node->life, clock_of(sim));
    control_job_node_broke(&sim->manager->job, host);
}

void sim_manager_drain(sim_t *sim, uint32_t host)
{
    sim_manager_t *manager = sim->manager;
    manager->nodes[host].draining = true;
    if (!sim_alive(sim, SIM_MANAGER) || sim_frozen(sim, SIM_MANAGER) || !manager->job_open)
        return; /* at its next attach */
    control_job_leave(&manager->job, host, clock_of(sim));
    act(sim);
}

/* ---- Time -------------------------------------------------------------------------------------- */

static void look_at_node(sim_t *sim, uint32_t host, ns_t now, ns_t gap)
{
    sim_manager_t *manager = sim->manager;
    node_t *node = &manager->nodes[host];
    if (!node->known) return;
    if (gap > NS_PER_S) liveness_forgive(&node->life, gap, now);
    const sim_process_t agent = sim_agent(host);
    if (node->up != NULL && sim_alive(sim, agent) && !sim_frozen(sim, agent) && sim_net_reaches(sim, host, 0))
        liveness_heard(&node->life, now); /* its heartbeats, looked up instead of sent */
    if (!liveness_check(&node->life, now, sim->config.failure_timeout)) return;
    sim_note(sim, "manager: node %u is lost", host);
    if (node->down != NULL) drop_session(sim, node);
    char text[64];
    snprintf(text, sizeof text, "agent silent for %.1f s", ns_to_s(sim->config.failure_timeout));
    control_job_node_gone(&manager->job, host, text, now);
    act(sim);
}

void sim_manager_event(sim_t *sim, const sim_event_t *event)
{
    const sim_life_t *process = &sim->processes[SIM_MANAGER];
    if (!process->alive || process->life != event->life) return;
    if (process->frozen_until > sim->now) {
        sim_push(sim, process->frozen_until - sim->now, event->type, event->a, event->b, event->life);
        return;
    }
    sim_manager_t *manager = sim->manager;
    const ns_t now = clock_of(sim), gap = sim->now - manager->last_tick;
    manager->last_tick = sim->now;
    for (uint32_t h = 1; h < SIM_HOSTS && sim_alive(sim, SIM_MANAGER) && !sim->over; h++)
        look_at_node(sim, h, now, gap);
    if (!sim_alive(sim, SIM_MANAGER) || sim->over) return;
    control_job_tick(&manager->job, now);
    act(sim);
    if (sim_alive(sim, SIM_MANAGER) && !sim->over) schedule(sim);
    if (sim_alive(sim, SIM_MANAGER)) sim_push(sim, tick_period, SIM_EV_MANAGER_TICK, 0, 0, process->life);
}
