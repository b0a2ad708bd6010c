/*
 * The agent of a node: starts workers, watches them, passes word on. Its records die with it; a new agent
 * kills what the old one left behind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/words.h"

enum { RECORDS = 8, UPLOADS = 4 };

typedef struct record {
    bool used, gone;
    ns_t told; /* gone: when that was told last; kept until the word has certainly arrived */
    uint32_t number;
    control_report_t report;
    ns_t heard;
    sim_pipe_t *up, *down; /* the worker's local socket */
    bool bound, has_view;
    sim_view_t view;
} record_t;

typedef struct upload { /* what is to be registered, until the manager has answered */
    bool used, ready;
    uint32_t kind, step, worker;
    uint64_t view;
    sim_model_t model;
} upload_t;

typedef struct agent {
    sim_pipe_t *up, *down; /* to and from the manager */
    ns_t manager_heard, last_tick;
    record_t records[RECORDS];
    upload_t uploads[UPLOADS];
    uint64_t draw;
    bool draining;
} agent_t;

struct sim_agents {
    agent_t of[SIM_HOSTS];
};

static agent_t *agent_of(sim_t *sim, uint32_t host)
{
    return &sim->agents->of[host];
}

inspan_status_t sim_agents_open(sim_t *sim)
{
    sim->agents = calloc(1, sizeof *sim->agents);
    return sim->agents != NULL ? INSPAN_OK : INSPAN_NO_MEMORY;
}

void sim_agents_free(sim_t *sim)
{
    free(sim->agents);
}

static uint32_t life(const sim_t *sim, uint32_t host)
{
    return sim->processes[sim_agent(host)].life;
}

/* ---- To the manager ---------------------------------------------------------------------------- */

static void report(sim_t *sim, uint32_t host, const record_t *record)
{
    agent_t *agent = agent_of(sim, host);
    if (agent->up == NULL) return; /* all is told when it attaches again */
    sim_send(sim, agent->up, SIM_LANE_WORDS, sim_msg(SIM_M_REPORT, &record->report, sizeof record->report));
}

static void send_artifact(sim_t *sim, uint32_t host, const upload_t *upload)
{
    agent_t *agent = agent_of(sim, host);
    if (agent->up == NULL || !upload->ready) return;
    sim_msg_t *msg = sim_msg(SIM_M_ARTIFACT, &upload->model, sizeof upload->model);
    msg->a = upload->kind;
    msg->b = upload->step;
    msg->c = upload->worker;
    msg->view = upload->view;
    sim_send(sim, agent->up, SIM_LANE_WORDS, msg);
}

static void attach(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    agent->up = sim_pipe_open(sim, SIM_PIPE_UP, sim_agent(host), SIM_MANAGER, 0);
    agent->down = sim_pipe_open(sim, SIM_PIPE_DOWN, SIM_MANAGER, sim_agent(host), 0);
    agent->manager_heard = sim->now;
    control_report_t reports[RECORDS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < RECORDS; i++)
        if (agent->records[i].used) reports[n++] = agent->records[i].report;
    sim_msg_t *msg = sim_msg(SIM_M_REGISTER, reports, n * (uint32_t)sizeof *reports);
    msg->a = host;
    msg->b = agent->down->index;
    sim_send(sim, agent->up, SIM_LANE_WORDS, msg);
    for (uint32_t i = 0; i < UPLOADS; i++)
        if (agent->uploads[i].used) send_artifact(sim, host, &agent->uploads[i]);
    for (uint32_t i = 0; i < RECORDS; i++) agent->records[i].told = sim->now;
}

static void detach(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    if (agent->up == NULL) return;
    sim_pipe_close_from(sim, agent->up);
    sim_pipe_close_to(sim, agent->down);
    agent->up = agent->down = NULL;
    sim_push(sim, NS_PER_MS * (ns_t)(20 + sim_draw_below(&agent->draw, 100)), SIM_EV_CONNECT, host, 0,
             life(sim, host));
}

static void try_connect(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    if (agent->up != NULL) return;
    const bool there = sim_alive(sim, SIM_MANAGER) && !sim_frozen(sim, SIM_MANAGER) &&
                       sim_net_reaches(sim, host, 0) && sim_net_reaches(sim, 0, host);
    if (there) {
        sim_note(sim, "agent of node %u attaches", host);
        attach(sim, host);
        return;
    }
    sim_push(sim, NS_PER_MS * (ns_t)(100 + sim_draw_below(&agent->draw, 200)), SIM_EV_CONNECT, host, 0,
             life(sim, host));
}

/* ---- Records ----------------------------------------------------------------------------------- */

static record_t *find(agent_t *agent, uint32_t number)
{
    for (uint32_t i = 0; i < RECORDS; i++)
        if (agent->records[i].used && agent->records[i].number == number) return &agent->records[i];
    return NULL;
}

static record_t *room(agent_t *agent)
{
    record_t *gone = NULL;
    for (uint32_t i = 0; i < RECORDS; i++) {
        if (!agent->records[i].used) return &agent->records[i];
        if (agent->records[i].gone) gone = &agent->records[i];
    }
    return gone;
}

static void open_record(sim_t *sim, uint32_t host, record_t *record, sim_worker_t *worker)
{
    const sim_process_t process = sim_worker_process(worker->slot);
    memset(record, 0, sizeof *record);
    record->used = true;
    record->number = worker->slot;
    record->heard = sim->now;
    record->up = worker->up = sim_pipe_open(sim, SIM_PIPE_LOCAL_UP, process, sim_agent(host), 0);
    record->down = worker->down = sim_pipe_open(sim, SIM_PIPE_LOCAL_DOWN, sim_agent(host), process, 0);
    record->report = (control_report_t){.node = host,
                                        .rank = worker->slot,
                                        .state = CONTROL_RANK_STARTED,
                                        .pid = 1000 + worker->slot,
                                        .incarnation = worker->incarnation,
                                        .steps = sim->config.steps,
                                        .speed = worker->speed};
}

/* A worker that an earlier life of this agent has started goes on under this one. */
static bool adopt(sim_t *sim, uint32_t host, uint32_t number)
{
    record_t *record = room(agent_of(sim, host));
    if (record == NULL || sim_frozen(sim, sim_worker_process(number))) return false;
    sim_note(sim, "node %u: its agent takes over rank %u", host, number);
    open_record(sim, host, record, sim->workers[number]);
    sim_worker_adopted(sim, sim->workers[number]);
    return true;
}

/* ---- Life -------------------------------------------------------------------------------------- */

void sim_agent_start(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    const bool draining = agent->draining;
    memset(agent, 0, sizeof *agent);
    agent->draining = draining;
    sim_life_t *process = &sim->processes[sim_agent(host)];
    process->alive = true;
    process->life++;
    process->host = host;
    process->frozen_until = 0;
    agent->draw = sim_mix(sim->options.seed + 77 * host + 1000 * process->life);
    agent->last_tick = sim->now;
    const bool adopts = sim_draw_below(&agent->draw, 4) > 0;
    for (uint32_t i = 0; i < sim->n_workers; i++) { /* leftovers, by pid and start time */
        if (sim->workers[i] == NULL || sim->workers[i]->host != host) continue;
        if (sim_planted(LEFTOVERS) || !sim_alive(sim, sim_worker_process(i))) continue;
        if (!adopts || !adopt(sim, host, i)) sim_kill(sim, sim_worker_process(i));
    }
    /* what adopted workers tell again comes before it attaches */
    const ns_t after = NS_PER_MS * (ns_t)(1 + sim_draw_below(&agent->draw, 20));
    sim_push(sim, after, SIM_EV_CONNECT, host, 0, process->life);
    sim_push(sim, sim->config.failure_timeout / 5, SIM_EV_AGENT_TICK, host, 0, process->life);
}

void sim_agent_died(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    agent->up = agent->down = NULL;
    memset(agent->records, 0, sizeof agent->records);
    memset(agent->uploads, 0, sizeof agent->uploads);
}

/* ---- Starting and ending of workers ---------------------------------------------------- */

static void start_worker(sim_t *sim, uint32_t host, const sim_msg_t *msg)
{
    agent_t *agent = agent_of(sim, host);
    record_t *record = find(agent, msg->a);
    if (record != NULL) { /* the order came twice */
        report(sim, host, record);
        return;
    }
    record = room(agent);
    if (record == NULL) return;
    sim_worker_t *worker =
        sim_worker_start(sim, msg->a, host, msg->c != 0, msg->b, (const sim_model_t *)msg->data);
    if (sim->over) return;
    open_record(sim, host, record, worker);
    sim_note(sim, "node %u starts rank %u%s", host, msg->a, msg->c != 0 ? " as a newcomer" : "");
    report(sim, host, record);
}

static void record_failed(sim_t *sim, uint32_t host, record_t *record, inspan_status_t status,
                          const char *what)
{
    control_report_t *r = &record->report;
    if (r->state == CONTROL_RANK_FAILED || r->state == CONTROL_RANK_DONE || r->state == CONTROL_RANK_LEFT)
        return;
    r->state = CONTROL_RANK_FAILED;
    r->has_cause = true;
    r->cause = (inspan_cause_t){
        .status = status, .rank = (int32_t)record->number, .noticed_by = (int32_t)record->number};
    snprintf(r->cause.node, sizeof r->cause.node, "node%u", host);
    snprintf(r->cause.text, sizeof r->cause.text, "worker of rank %u on node node%u: %s", record->number,
             host, what);
    report(sim, host, record);
}

static void exited(sim_t *sim, uint32_t host, uint32_t number)
{
    agent_t *agent = agent_of(sim, host);
    record_t *record = find(agent, number);
    if (record == NULL || sim_alive(sim, sim_worker_process(number)) || record->gone) return;
    record->gone = true;
    record->report.pid = 0;
    if (record->report.state < CONTROL_RANK_LEFT) record->report.exit_signal = 9;
    const bool told = record->report.state >= CONTROL_RANK_LEFT;
    record_failed(sim, host, record, INSPAN_PEER_LOST, "killed by signal 9");
    if (record->report.state == CONTROL_RANK_LEFT) { /* LEFT is a word, its end another */
        record->report.state = CONTROL_RANK_FAILED;
        record->report.exit_code = 1;
    }
    if (told) report(sim, host, record);
    record->told = sim->now;
}

/* ---- Words from the manager -------------------------------------------------------------------- */

static void unknown(sim_t *sim, uint32_t host, uint32_t number)
{
    record_t none = {.number = number,
                     .report = {.node = host, .rank = number, .state = CONTROL_RANK_FAILED, .exit_code = 1}};
    report(sim, host, &none);
}

static void stop(sim_t *sim, uint32_t host, uint32_t number, bool kill)
{
    record_t *record = find(agent_of(sim, host), number);
    if (record == NULL) {
        unknown(sim, host, number);
    } else if (record->gone) {
        report(sim, host, record);
    } else if (kill) {
        sim_note(sim, "node %u kills rank %u", host, number);
        if (record->report.state < CONTROL_RANK_LEFT) record->report.state = CONTROL_RANK_FAILED;
        sim_kill(sim, sim_worker_process(number));
    } else if (!kill) {
        sim_send(sim, record->down, SIM_LANE_WORDS, sim_msg(SIM_L_BYE, NULL, 0));
    }
}

static void take_view(sim_t *sim, uint32_t host, const sim_msg_t *msg)
{
    record_t *record = find(agent_of(sim, host), msg->a);
    const sim_view_t *view = (const sim_view_t *)msg->data;
    if (record == NULL || (record->has_view && view->number <= record->view.number)) return;
    record->view = *view;
    record->has_view = true;
    control_report_t *r = &record->report;
    if (r->state == CONTROL_RANK_LEFT && r->left_view < view->number)
        r->state = CONTROL_RANK_RUNNING; /* G3 */
    if (record->bound) sim_send(sim, record->down, SIM_LANE_WORDS, sim_msg(SIM_L_VIEW, view, sizeof *view));
}

static void answered(sim_t *sim, uint32_t host, const sim_msg_t *msg)
{
    agent_t *agent = agent_of(sim, host);
    for (uint32_t i = 0; i < UPLOADS; i++) {
        upload_t *upload = &agent->uploads[i];
        if (upload->used && upload->kind == msg->a && upload->step == msg->b && upload->worker == msg->c &&
            upload->view == msg->view)
            upload->used = false;
    }
    record_t *record = find(agent, msg->c);
    if (record == NULL || record->gone) return;
    sim_msg_t *word = sim_msg(SIM_L_REGISTERED, NULL, 0);
    word->a = msg->a;
    word->b = msg->b;
    word->c = msg->d;
    sim_send(sim, record->down, SIM_LANE_WORDS, word);
}

void sim_agent_down(sim_t *sim, uint32_t host, sim_pipe_t *pipe, sim_msg_t *msg)
{
    agent_t *agent = agent_of(sim, host);
    record_t *record;
    if (pipe == agent->down) {
        agent->manager_heard = sim->now;
        switch (msg->type) {
        case SIM_M_START: start_worker(sim, host, msg); break;
        case SIM_M_VIEW: take_view(sim, host, msg); break;
        case SIM_M_STOP: stop(sim, host, msg->a, msg->b != 0); break;
        case SIM_M_LEAVE:
            record = find(agent, msg->a);
            if (record != NULL && !record->gone)
                sim_send(sim, record->down, SIM_LANE_WORDS, sim_msg(SIM_L_LEAVE, NULL, 0));
            break;
        case SIM_M_REGISTERED: answered(sim, host, msg); break;
        default: break;
        }
    }
    free(msg);
}

/* ---- Words from workers ------------------------------------------------------------------------ */

static void take_saved(sim_t *sim, uint32_t host, const record_t *record, const sim_msg_t *msg)
{
    agent_t *agent = agent_of(sim, host);
    const bool result =
        msg->a == SIM_KIND_RESULT; /* it has a place of its own; a checkpoint may be left out */
    for (uint32_t i = result ? 0 : 1; i < (result ? 1 : UPLOADS); i++) {
        upload_t *upload = &agent->uploads[i];
        if (upload->used && !result) continue;
        *upload = (upload_t){
            .used = true, .kind = msg->a, .step = msg->b, .worker = record->number, .view = msg->view};
        memcpy(&upload->model, msg->data, sizeof upload->model);
        sim_push(sim, NS_PER_MS * (ns_t)(1 + sim_draw_below(&agent->draw, 30)), SIM_EV_UPLOAD, host, i,
                 life(sim, host));
        return;
    }
}

static void take_blame(sim_t *sim, record_t *record, const sim_msg_t *msg)
{
    control_report_t *r = &record->report;
    r->has_blame = true;
    r->blame_view = msg->view;
    const uint32_t culprit = msg->a & (SIM_BLAME_OPENING - 1);
    r->blame = (inspan_cause_t){.status = INSPAN_PEER_LOST,
                                .rank = culprit > 0 ? (int32_t)culprit - 1 : -1,
                                .noticed_by = (int32_t)record->number};
    snprintf(r->blame.operation, sizeof r->blame.operation, "allreduce");
    snprintf(r->blame.text, sizeof r->blame.text, "%s", (const char *)msg->data);
    if (strstr(r->blame.text, "rank ") == NULL)
        sim_broken(sim, "I6", "rank %u's error about view %llu names no rank: \"%s\"", record->number,
                   (unsigned long long)msg->view, r->blame.text);
}

void sim_agent_local(sim_t *sim, uint32_t host, sim_pipe_t *pipe, sim_msg_t *msg)
{
    record_t *record = find(agent_of(sim, host), pipe->from - SIM_FIRST_WORKER);
    if (record == NULL || record->up != pipe) {
        free(msg);
        return;
    }
    control_report_t *r = &record->report;
    record->heard = sim->now;
    const control_rank_state_t before = r->state;
    switch (msg->type) {
    case SIM_L_BOUND:
        record->bound = true;
        r->port = (uint16_t)(7000 + record->number);
        if (before < CONTROL_RANK_BOUND) r->state = CONTROL_RANK_BOUND;
        if (record->has_view)
            sim_send(sim, record->down, SIM_LANE_WORDS,
                     sim_msg(SIM_L_VIEW, &record->view, sizeof record->view));
        break;
    case SIM_L_READY:
        if (before < CONTROL_RANK_READY) r->state = CONTROL_RANK_READY;
        r->view = msg->view;
        break;
    case SIM_L_FULL: r->full = true; break;
    case SIM_L_BLAME: take_blame(sim, record, msg); break;
    case SIM_L_LEFT:
        if (record->has_view && msg->view < record->view.number) break; /* G3 */
        if (before <= CONTROL_RANK_LEFT) r->state = CONTROL_RANK_LEFT;
        r->left_view = msg->view;
        break;
    case SIM_L_SAVED: take_saved(sim, host, record, msg); break;
    case SIM_L_DONE:
        if (before <= CONTROL_RANK_LEFT) r->state = CONTROL_RANK_DONE;
        sim_send(sim, record->down, SIM_LANE_WORDS, sim_msg(SIM_L_BYE, NULL, 0));
        break;
    default: break;
    }
    if (msg->type != SIM_L_SAVED && !record->gone) report(sim, host, record);
    free(msg);
}

void sim_agent_ended(sim_t *sim, uint32_t host, sim_pipe_t *pipe)
{
    agent_t *agent = agent_of(sim, host);
    if (pipe == agent->up || pipe == agent->down) detach(sim, host);
}

/* ---- Time -------------------------------------------------------------------------------------- */

static void look_at_worker(sim_t *sim, uint32_t host, record_t *record)
{
    const sim_process_t process = sim_worker_process(record->number);
    sim_worker_t *worker = sim->workers[record->number];
    if (record->gone) return;
    if (!sim_alive(sim, process)) {
        exited(sim, host, record->number);
        return;
    }
    if (!sim_frozen(sim, process)) record->heard = sim->now; /* its ticks, looked up instead of sent */
    if (sim->now - record->heard > sim->config.failure_timeout) {
        sim_note(sim, "node %u: rank %u is silent, it is killed", host, record->number);
        record_failed(sim, host, record, INSPAN_PEER_LOST, "silent: stopped or frozen");
        sim_kill(sim, process);
        return;
    }
    if (sim_frozen(sim, process) || worker->committed <= record->report.step || !worker->any_commit) return;
    record->report.step = worker->committed;
    if (record->report.state == CONTROL_RANK_READY) record->report.state = CONTROL_RANK_RUNNING;
    report(sim, host, record);
}

static void tick(sim_t *sim, uint32_t host)
{
    agent_t *agent = agent_of(sim, host);
    const ns_t period = sim->config.failure_timeout / 5, gap = sim->now - agent->last_tick;
    agent->last_tick = sim->now;
    for (uint32_t i = 0; i < RECORDS; i++) {
        record_t *record = &agent->records[i];
        if (!record->used) continue;
        if (record->gone && agent->up != NULL && sim->now - record->told > sim->config.failure_timeout)
            record->used = false;
        if (gap > 2 * period) record->heard += gap - period; /* we stood still ourselves */
        look_at_worker(sim, host, record);
    }
    if (agent->up != NULL) {
        if (sim_alive(sim, SIM_MANAGER) && !sim_frozen(sim, SIM_MANAGER) && sim_net_reaches(sim, 0, host))
            agent->manager_heard = sim->now;
        if (sim->now - agent->manager_heard > sim->config.failure_timeout + (gap > 2 * period ? gap : 0)) {
            sim_note(sim, "agent of node %u: the manager is silent", host);
            detach(sim, host);
        }
    }
    sim_push(sim, period, SIM_EV_AGENT_TICK, host, 0, life(sim, host));
}

void sim_agent_event(sim_t *sim, const sim_event_t *event)
{
    const uint32_t host =
        event->type == SIM_EV_EXITED ? sim->processes[sim_worker_process(event->a)].host : event->a;
    const sim_life_t *process = &sim->processes[sim_agent(host)];
    if (!process->alive || process->life != event->life) return;
    if (process->frozen_until > sim->now) {
        sim_push(sim, process->frozen_until - sim->now, event->type, event->a, event->b, event->life);
        return;
    }
    agent_t *agent = agent_of(sim, host);
    switch (event->type) {
    case SIM_EV_CONNECT: try_connect(sim, host); break;
    case SIM_EV_AGENT_TICK: tick(sim, host); break;
    case SIM_EV_EXITED: exited(sim, host, event->a); break;
    case SIM_EV_UPLOAD:
        agent->uploads[event->b].ready = true;
        if (agent->uploads[event->b].used) send_artifact(sim, host, &agent->uploads[event->b]);
        break;
    default: break;
    }
}
