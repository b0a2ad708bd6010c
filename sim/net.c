/*
 * Pipes between processes: what TCP gives. What is sent arrives in order of its lane, after a delay of its
 * own; a cut link holds it back until the link is mended; a process that dies loses a random tail of what it
 * sent, and whoever sends to it gets a reset. Lanes: small messages overtake bulk, as the communicator's
 * control frames do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/internal.h"

enum { LANE_MOST = 4096 };

sim_msg_t *sim_msg(uint32_t type, const void *data, uint32_t bytes)
{
    sim_msg_t *msg = malloc(sizeof *msg + bytes);
    if (msg == NULL) abort();
    memset(msg, 0, sizeof *msg);
    msg->type = type;
    msg->bytes = bytes;
    if (bytes > 0) memcpy(msg->data, data, bytes);
    return msg;
}

void sim_msgs_free(sim_msg_t *first)
{
    while (first != NULL) {
        sim_msg_t *next = first->next;
        free(first);
        first = next;
    }
}

sim_pipe_t *sim_pipe_open(sim_t *sim, sim_pipe_kind_t kind, sim_process_t from, sim_process_t to,
                          uint64_t view)
{
    if (sim->n_pipes == sim->pipe_capacity) {
        uint32_t capacity = sim->pipe_capacity > 0 ? 2 * sim->pipe_capacity : 64;
        sim_pipe_t **grown = realloc(sim->pipes, capacity * sizeof *grown);
        if (grown == NULL) abort();
        sim->pipes = grown;
        sim->pipe_capacity = capacity;
    }
    sim_pipe_t *pipe = calloc(1, sizeof *pipe);
    if (pipe == NULL) abort();
    pipe->kind = kind;
    pipe->index = sim->n_pipes;
    pipe->from = from;
    pipe->to = to;
    pipe->from_life = sim->processes[from].life;
    pipe->to_life = sim->processes[to].life;
    pipe->view = view;
    pipe->draw = sim_mix(sim->options.seed * 31 + sim->n_pipes) ^ (uint64_t)from << 32 ^ to;
    for (uint32_t i = 0; i < SIM_LANES; i++) pipe->lanes[i].last = &pipe->lanes[i].first;
    pipe->to_closed = !sim->processes[to].alive;
    sim->pipes[sim->n_pipes++] = pipe;
    return pipe;
}

static bool is_local(const sim_pipe_t *pipe);

/* A connection of a view that its receiver has not opened yet waits in its backlog. */
static bool in_backlog(const sim_t *sim, const sim_pipe_t *pipe)
{
    if (pipe->kind != SIM_PIPE_DATA) return false;
    const sim_worker_t *to = sim->workers[pipe->to - SIM_FIRST_WORKER];
    return pipe->view > to->comm.view;
}

static bool is_local(const sim_pipe_t *pipe)
{
    return pipe->kind == SIM_PIPE_LOCAL_UP || pipe->kind == SIM_PIPE_LOCAL_DOWN;
}

static uint32_t host_of(const sim_t *sim, sim_process_t process)
{
    return sim->processes[process].host;
}

static ns_t delay(sim_t *sim, sim_pipe_t *pipe, uint32_t lane)
{
    if (is_local(pipe)) return 10 * NS_PER_US + (ns_t)sim_draw_below(&pipe->draw, 40 * NS_PER_US);
    const sim_config_t *config = &sim->config;
    uint32_t from = host_of(sim, pipe->from), to = host_of(sim, pipe->to);
    ns_t spread = config->delay_most - config->delay_least + 1;
    ns_t ns = config->delay_least + (ns_t)sim_draw_below(&pipe->draw, (uint64_t)spread);
    if (sim->slow_until[from][to] > sim->now) ns *= 10;
    if (sim_draw_below(&pipe->draw, 64) == 0) { /* a retransmission */
        const ns_t again = 20 * config->delay_most;
        ns += again < 200 * NS_PER_MS ? again : 200 * NS_PER_MS;
    }
    if (config->dense && lane != SIM_LANE_WORDS &&
        sim_draw_below(&pipe->draw, lane == SIM_LANE_BULK ? 8 : 2) == 0)
        ns += (ns_t)sim_draw_below(&pipe->draw, 20 * NS_PER_MS); /* long data on a thin link */
    return ns;
}

/* ---- Sending ----------------------------------------------------------------------------------- */

static void schedule(sim_t *sim, sim_pipe_t *pipe, uint32_t lane)
{
    sim_lane_t *l = &pipe->lanes[lane];
    if (l->pending || l->first == NULL) return;
    l->pending = true;
    sim_push(sim, l->first->due - sim->now, SIM_EV_PIPE, pipe->index, lane, 0);
}

void sim_net_kick(sim_t *sim, sim_pipe_t *pipe)
{
    for (uint32_t i = 0; i < SIM_LANES; i++) schedule(sim, pipe, i);
}

static void reset_sender(sim_t *sim, sim_pipe_t *pipe)
{
    if (pipe->reset_told || pipe->from_closed) return;
    pipe->reset_told = true;
    sim_push(sim, delay(sim, pipe, SIM_LANE_WORDS), SIM_EV_RESET, pipe->index, 0, pipe->from_life);
}

static void drop_lane(sim_lane_t *lane)
{
    sim_msgs_free(lane->first);
    lane->first = NULL;
    lane->last = &lane->first;
    lane->n = 0;
}

void sim_send(sim_t *sim, sim_pipe_t *pipe, uint32_t lane, sim_msg_t *msg)
{
    if (pipe == NULL || pipe->from_closed) {
        free(msg);
        return;
    }
    sim_lane_t *l = &pipe->lanes[lane];
    if (pipe->to_closed) {
        reset_sender(sim, pipe);
        free(msg);
        return;
    }
    if (l->n >= LANE_MOST)
        sim_broken(sim, "I6", "a queue grows without bound: pipe %u -> %u", pipe->from, pipe->to);
    ns_t due = sim->now + delay(sim, pipe, lane);
    if (due < l->latest) due = l->latest;
    if (sim_planted(DUPPIECE) && pipe->kind == SIM_PIPE_DATA && lane == SIM_LANE_BULK &&
        due > sim->now + 20 * sim->config.delay_most)
        msg->c |= SIM_MSG_TWICE;
    l->latest = msg->due = due;
    msg->next = NULL;
    *l->last = msg;
    l->last = &msg->next;
    l->n++;
    schedule(sim, pipe, lane);
}

void sim_pipe_close_from(sim_t *sim, sim_pipe_t *pipe)
{
    if (pipe == NULL || pipe->from_closed) return;
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        const bool last = i + 1 == SIM_LANES && pipe->fins_due == 0;
        if (pipe->lanes[i].first == NULL && !last) continue;
        pipe->fins_due++;
        sim_send(sim, pipe, i, sim_msg(SIM_MSG_FIN, NULL, 0));
    }
    pipe->from_closed = true;
}

void sim_pipe_close_to(sim_t *sim, sim_pipe_t *pipe)
{
    if (pipe == NULL || pipe->to_closed) return;
    pipe->to_closed = true;
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        if (pipe->lanes[i].first != NULL) reset_sender(sim, pipe);
        drop_lane(&pipe->lanes[i]);
    }
}

/* What a dead process had under way: of each lane a random tail is lost. */
static void lose_tail(sim_pipe_t *pipe, sim_lane_t *lane)
{
    if (lane->n == 0) return;
    uint32_t keep = (uint32_t)sim_draw_below(&pipe->draw, lane->n + 1);
    sim_msg_t **at = &lane->first;
    for (uint32_t i = 0; i < keep; i++) at = &(*at)->next;
    sim_msgs_free(*at);
    *at = NULL;
    lane->last = at;
    lane->n = keep;
}

void sim_net_died(sim_t *sim, sim_process_t process)
{
    for (uint32_t i = 0; i < sim->n_pipes; i++) {
        sim_pipe_t *pipe = sim->pipes[i];
        if (pipe->from == process && !pipe->from_closed && pipe->from_life == sim->processes[process].life) {
            for (uint32_t k = 0; k < SIM_LANES; k++) lose_tail(pipe, &pipe->lanes[k]);
            sim_pipe_close_from(sim, pipe);
        } else if (pipe->to == process && !pipe->to_closed && pipe->to_life == sim->processes[process].life) {
            pipe->to_closed = true;
            for (uint32_t k = 0; k < SIM_LANES; k++) drop_lane(&pipe->lanes[k]);
            reset_sender(sim, pipe);
        }
    }
}

/* ---- Links ------------------------------------------------------------------------------------- */

void sim_net_cut(sim_t *sim, uint32_t from, uint32_t to, ns_t until)
{
    if (from != to && sim->cut_until[from][to] < until) sim->cut_until[from][to] = until;
}

bool sim_net_reaches(const sim_t *sim, uint32_t from, uint32_t to)
{
    return sim->cut_until[from][to] <= sim->now;
}

/* ---- Delivery ---------------------------------------------------------------------------------- */

static void ended(sim_t *sim, sim_pipe_t *pipe)
{
    pipe->ended = true;
    switch (pipe->kind) {
    case SIM_PIPE_DATA: sim_comm_ended(sim, sim->workers[pipe->to - SIM_FIRST_WORKER], pipe); break;
    case SIM_PIPE_UP: sim_manager_ended(sim, pipe); break;
    case SIM_PIPE_DOWN: sim_agent_ended(sim, pipe->to, pipe); break;
    case SIM_PIPE_LOCAL_UP: sim_agent_ended(sim, pipe->to, pipe); break;
    case SIM_PIPE_LOCAL_DOWN: sim_worker_local_ended(sim, sim->workers[pipe->to - SIM_FIRST_WORKER]); break;
    }
}

static void deliver(sim_t *sim, sim_pipe_t *pipe, sim_msg_t *msg)
{
    sim_record(sim, (uint64_t)pipe->index << 32 ^ (uint64_t)msg->type << 20 ^ msg->bytes);
    switch (pipe->kind) {
    case SIM_PIPE_DATA: sim_comm_msg(sim, sim->workers[pipe->to - SIM_FIRST_WORKER], pipe, msg); break;
    case SIM_PIPE_UP: sim_manager_up(sim, pipe, msg); break;
    case SIM_PIPE_DOWN: sim_agent_down(sim, pipe->to, pipe, msg); break;
    case SIM_PIPE_LOCAL_UP: sim_agent_local(sim, pipe->to, pipe, msg); break;
    case SIM_PIPE_LOCAL_DOWN: sim_worker_local(sim, sim->workers[pipe->to - SIM_FIRST_WORKER], msg); break;
    }
}

/* When the head of a lane may arrive: 0: now. */
static ns_t held_until(const sim_t *sim, const sim_pipe_t *pipe)
{
    ns_t until = sim->processes[pipe->to].frozen_until;
    if (!is_local(pipe)) {
        ns_t cut = sim->cut_until[host_of(sim, pipe->from)][host_of(sim, pipe->to)];
        if (cut > until) until = cut;
    }
    return until > sim->now ? until : 0;
}

static void pipe_event(sim_t *sim, sim_pipe_t *pipe, uint32_t lane)
{
    sim_lane_t *l = &pipe->lanes[lane];
    l->pending = false;
    if (l->first == NULL || in_backlog(sim, pipe)) return;
    ns_t until = held_until(sim, pipe);
    if (until != 0 || l->first->due > sim->now) {
        ns_t at = until != 0 ? until + NS_PER_US * (ns_t)(pipe->index % 97) : l->first->due;
        l->pending = true;
        sim_push(sim, at - sim->now, SIM_EV_PIPE, pipe->index, lane, 0);
        return;
    }
    sim_msg_t *msg = l->first;
    l->first = msg->next;
    if (l->first == NULL) l->last = &l->first;
    l->n--;
    if (msg->type == SIM_MSG_FIN) {
        free(msg);
        if (++pipe->fins >= pipe->fins_due && !pipe->ended) ended(sim, pipe);
    } else {
        msg->next = NULL;
        deliver(sim, pipe, msg);
    }
    schedule(sim, pipe, lane);
}

static void reset_event(sim_t *sim, sim_pipe_t *pipe)
{
    sim_life_t *from = &sim->processes[pipe->from];
    if (!from->alive || from->life != pipe->from_life || pipe->from_closed) return;
    ns_t until = from->frozen_until;
    if (!is_local(pipe)) { /* the reset comes the other way */
        ns_t cut = sim->cut_until[host_of(sim, pipe->to)][host_of(sim, pipe->from)];
        if (cut > until) until = cut;
    }
    if (until > sim->now) {
        sim_push(sim, until - sim->now + NS_PER_US, SIM_EV_RESET, pipe->index, 0, 0);
        return;
    }
    pipe->from_closed = true;
    switch (pipe->kind) {
    case SIM_PIPE_DATA: sim_comm_ended(sim, sim->workers[pipe->from - SIM_FIRST_WORKER], pipe); break;
    case SIM_PIPE_UP: sim_agent_ended(sim, pipe->from, pipe); break;
    case SIM_PIPE_DOWN: sim_manager_ended(sim, pipe); break;
    case SIM_PIPE_LOCAL_UP: sim_worker_local_ended(sim, sim->workers[pipe->from - SIM_FIRST_WORKER]); break;
    case SIM_PIPE_LOCAL_DOWN: sim_agent_ended(sim, pipe->from, pipe); break;
    }
}

void sim_net_event(sim_t *sim, const sim_event_t *event)
{
    sim_pipe_t *pipe = sim->pipes[event->a];
    if (event->type == SIM_EV_PIPE)
        pipe_event(sim, pipe, event->b);
    else
        reset_event(sim, pipe);
}

void sim_net_free(sim_t *sim)
{
    for (uint32_t i = 0; i < sim->n_pipes; i++) {
        for (uint32_t k = 0; k < SIM_LANES; k++) sim_msgs_free(sim->pipes[i]->lanes[k].first);
        free(sim->pipes[i]);
    }
    free(sim->pipes);
}
