#include "agent/core_internal.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static const ns_t hello_bound =
    30 * NS_PER_S; /* from exec to HELLO: a cold disk and a slow core have their time */
static const ns_t term_grace = 2 * NS_PER_S; /* from SIGTERM to SIGKILL */
static const ns_t end_grace = 2 * NS_PER_S;  /* from a worker's own end to SIGTERM */
static const ns_t progress_period = 200 * NS_PER_MS;

agent_core_t *agent_core_open(const agent_actions_t *actions, void *context)
{
    agent_core_t *core = calloc(1, sizeof *core);
    if (core == NULL) return NULL;
    core->actions = *actions;
    core->context = context;
    core->next_serial = 1;
    core->threads = 1;
    return core;
}

static void forget(agent_core_t *core, uint32_t index)
{
    agent_worker_t *worker = core->workers[index];
    core->ended[core->n_ended++ % CORE_REMEMBERED] = (core_ended_t){worker->job, worker->rank};
    core->actions.release(core->context, worker);
    free(worker->summary);
    free(worker->results);
    free(worker->view_frame);
    core_elastic_forget(worker);
    free(worker);
    core->n_workers--;
    memmove(&core->workers[index], &core->workers[index + 1],
            (core->n_workers - index) * sizeof core->workers[0]); /* the oldest stays first */
}

void agent_core_close(agent_core_t *core)
{
    if (core == NULL) return;
    while (core->n_workers > 0) forget(core, core->n_workers - 1);
    free(core);
}

void agent_core_configure(agent_core_t *core, const char *node, const char *address, uint32_t threads,
                          uint16_t first_port, uint16_t last_port)
{
    snprintf(core->node, sizeof core->node, "%s", node);
    snprintf(core->address, sizeof core->address, "%s", address);
    core->threads = threads > 0 ? threads : 1;
    core->first_port = first_port;
    core->last_port = last_port;
}

/* ---- Looking --------------------------------------------------------------------------------- */

agent_worker_t *agent_core_each(agent_core_t *core, const agent_worker_t *worker)
{
    for (uint32_t i = 0; i < core->n_workers; i++) {
        if (worker == NULL) return core->workers[i];
        if (core->workers[i] == worker) return i + 1 < core->n_workers ? core->workers[i + 1] : NULL;
    }
    return NULL;
}

agent_worker_t *agent_core_by_serial(agent_core_t *core, uint64_t serial)
{
    for (uint32_t i = 0; i < core->n_workers; i++)
        if (core->workers[i]->serial == serial) return core->workers[i];
    return NULL;
}

agent_worker_t *agent_core_find(agent_core_t *core, uint64_t job, uint32_t rank)
{
    for (uint32_t i = 0; i < core->n_workers; i++)
        if (core->workers[i]->job == job && core->workers[i]->rank == rank) return core->workers[i];
    return NULL;
}

static bool busy(const agent_worker_t *worker)
{
    return worker->pid != 0 || worker->preparing || worker->uploading || worker->storing;
}

uint32_t agent_core_running(const agent_core_t *core)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < core->n_workers; i++) n += busy(core->workers[i]);
    return n;
}

ns_t agent_core_failure_timeout(const agent_core_t *core)
{
    ns_t shortest = INT64_MAX;
    for (uint32_t i = 0; i < core->n_workers; i++)
        if (!core_is_over(core->workers[i]) && core->workers[i]->failure_timeout < shortest)
            shortest = core->workers[i]->failure_timeout;
    return shortest;
}

static bool was_here(const agent_core_t *core, uint64_t job, uint32_t rank)
{
    for (uint64_t i = 0; i < core->n_ended && i < CORE_REMEMBERED; i++)
        if (core->ended[i].job == job && core->ended[i].rank == rank) return true;
    return false;
}

/* ---- Telling --------------------------------------------------------------------------------- */

void core_tell(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    worker->progress_due = false;
    worker->progress_sent = worker->told_at = now;
    core->actions.report(core->context, worker);
}

static void enter(agent_worker_t *worker, ns_t now, agent_phase_t phase)
{
    worker->phase = phase;
    worker->since = now;
}

bool core_is_over(const agent_worker_t *worker)
{
    return worker->phase == AGENT_ENDING || worker->phase == AGENT_GONE;
}

void core_send_empty(agent_core_t *core, agent_worker_t *worker, local_frame_type_t type)
{
    size_t used = 0;
    if (local_encode_empty(type, core->frame, sizeof core->frame, &used) == INSPAN_OK)
        core->actions.send(core->context, worker, core->frame, used);
}

static void send_bye(agent_core_t *core, agent_worker_t *worker, inspan_status_t status, const char *text)
{
    size_t used = 0;
    if (!worker->connected) return;
    memset(&core->end, 0, sizeof core->end);
    core->end.status = status;
    core->end.cause.rank = core->end.cause.noticed_by = -1;
    snprintf(core->end.text, sizeof core->end.text, "%s", text);
    if (local_encode_end(LOCAL_BYE, &core->end, core->frame, sizeof core->frame, &used) == INSPAN_OK)
        core->actions.send(core->context, worker, core->frame, used);
}

/* The first failure counts. cause NULL: the fault is this worker's. */
static void fail(agent_core_t *core, ns_t now, agent_worker_t *worker, inspan_status_t status,
                 const inspan_cause_t *cause, const char *text)
{
    if (core_is_over(worker)) return;
    worker->failed = true;
    worker->state = AGENT_STATE_FAILED;
    if (cause != NULL) worker->cause = *cause;
    if (cause == NULL || cause->status == INSPAN_OK) {
        worker->cause = (inspan_cause_t){
            .status = status, .rank = (int32_t)worker->rank, .noticed_by = (int32_t)worker->rank};
        snprintf(worker->cause.node, sizeof worker->cause.node, "%s", core->node);
        snprintf(worker->cause.address, sizeof worker->cause.address, "%s", core->address);
        snprintf(worker->cause.text, sizeof worker->cause.text, "%s", text);
    }
    snprintf(worker->text, sizeof worker->text, "%s", text);
    enter(worker, now, busy(worker) ? AGENT_ENDING : AGENT_GONE);
    log_info("job %llu, rank %u failed: %s", (unsigned long long)worker->job, worker->rank, worker->text);
    if (worker->preparing || worker->uploading || worker->storing)
        core->actions.abandon(core->context, worker);
    core_tell(core, now, worker);
}

static void kill_at_once(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    if (worker->pid == 0) return;
    core->actions.signal(core->context, worker, SIGKILL);
    worker->term_at = 0;
    worker->kill_at = now + term_grace; /* again, should one have slipped through */
}

static void terminate(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    if (worker->pid == 0) return;
    core->actions.signal(core->context, worker, SIGTERM);
    worker->term_at = 0;
    worker->kill_at = now + term_grace;
}

/* Report of a worker that this agent does not have. */
static void tell_unknown(agent_core_t *core, uint64_t job, uint32_t rank)
{
    if (was_here(core, job, rank)) return;
    agent_worker_t worker = {.job = job,
                             .rank = rank,
                             .phase = AGENT_GONE,
                             .state = AGENT_STATE_FAILED,
                             .failed = true,
                             .exit_code = -1};
    worker.cause =
        (inspan_cause_t){.status = INSPAN_NOT_FOUND, .rank = (int32_t)rank, .noticed_by = (int32_t)rank};
    snprintf(worker.cause.node, sizeof worker.cause.node, "%s", core->node);
    snprintf(worker.text, sizeof worker.text, "node %s has no worker of this job: its agent was restarted",
             core->node);
    snprintf(worker.cause.text, sizeof worker.cause.text, "%.255s", worker.text);
    core->actions.report(core->context, &worker);
}

/* ---- Orders ---------------------------------------------------------------------------------- */

/* Make room among those that only wait for their last report's delivery. */
static bool make_room(agent_core_t *core)
{
    for (uint32_t i = 0; core->n_workers == AGENT_WORKERS && i < core->n_workers; i++)
        if (core->workers[i]->phase == AGENT_GONE && !busy(core->workers[i])) forget(core, i);
    return core->n_workers < AGENT_WORKERS;
}

inspan_status_t agent_core_start(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank,
                                 ns_t failure_timeout, void *shell)
{
    agent_worker_t *old = agent_core_find(core, job, rank);
    if (old != NULL) {
        core_tell(core, now, old);
        return INSPAN_EXISTS;
    }
    agent_worker_t *worker = make_room(core) ? calloc(1, sizeof *worker) : NULL;
    if (worker == NULL) {
        agent_worker_t refused = {.job = job,
                                  .rank = rank,
                                  .phase = AGENT_GONE,
                                  .state = AGENT_STATE_FAILED,
                                  .failed = true,
                                  .exit_code = -1,
                                  .cause = {.status = INSPAN_LIMIT}};
        refused.cause.rank = refused.cause.noticed_by = (int32_t)rank;
        snprintf(refused.cause.node, sizeof refused.cause.node, "%s", core->node);
        snprintf(refused.text, sizeof refused.text, "node %s runs %d workers already", core->node,
                 AGENT_WORKERS);
        snprintf(refused.cause.text, sizeof refused.cause.text, "%.255s", refused.text);
        core->actions.report(core->context, &refused);
        return INSPAN_LIMIT;
    }
    *worker = (agent_worker_t){.serial = core->next_serial++,
                               .job = job,
                               .rank = rank,
                               .failure_timeout = failure_timeout >= NS_PER_S ? failure_timeout : NS_PER_S,
                               .shell = shell,
                               .since = now,
                               .heard = now,
                               .exit_code = -1,
                               .preparing = true};
    core->workers[core->n_workers++] = worker;
    inspan_error_t err = {.status = INSPAN_OK};
    inspan_status_t status = core->actions.prepare(core->context, worker, &err);
    if (status != INSPAN_OK) {
        worker->preparing = false;
        fail(core, now, worker, status, NULL, err.text);
    }
    return INSPAN_OK;
}

inspan_status_t agent_core_adopt(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank,
                                 ns_t failure_timeout, uint32_t pid, void *shell, agent_worker_t **out)
{
    if (agent_core_find(core, job, rank) != NULL) return INSPAN_EXISTS;
    agent_worker_t *worker = core->n_workers < AGENT_WORKERS ? calloc(1, sizeof *worker) : NULL;
    if (worker == NULL) return INSPAN_LIMIT;
    *worker = (agent_worker_t){.serial = core->next_serial++,
                               .job = job,
                               .rank = rank,
                               .failure_timeout = failure_timeout >= NS_PER_S ? failure_timeout : NS_PER_S,
                               .phase = AGENT_STARTING,
                               .state = AGENT_STATE_STARTED,
                               .pid = pid,
                               .shell = shell,
                               .since = now,
                               .heard = now,
                               .exit_code = -1,
                               .adopted = true};
    core->workers[core->n_workers++] = worker;
    *out = worker;
    return INSPAN_OK;
}

bool agent_core_settled(const agent_core_t *core)
{
    for (uint32_t i = 0; i < core->n_workers; i++)
        if (core->workers[i]->adopted && !core_is_over(core->workers[i])) return false;
    return true;
}

void agent_core_prepared(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                         const char *text)
{
    agent_worker_t *worker = agent_core_by_serial(core, serial);
    if (worker == NULL || !worker->preparing) return;
    worker->preparing = false;
    if (worker->phase == AGENT_ENDING) { /* stopped meanwhile, and reported */
        enter(worker, now, AGENT_GONE);
        return;
    }
    if (status != INSPAN_OK) {
        fail(core, now, worker, status, NULL, text);
        return;
    }
    inspan_error_t err = {.status = INSPAN_OK};
    status = core->actions.spawn(core->context, worker, &err);
    if (status != INSPAN_OK) {
        fail(core, now, worker, status, NULL, err.text);
        return;
    }
    worker->state = AGENT_STATE_STARTED;
    worker->heard = now;
    enter(worker, now, AGENT_STARTING);
    core_tell(core, now, worker);
}

static void send_view(agent_core_t *core, agent_worker_t *worker)
{
    if (worker->view_frame == NULL || !worker->connected) return;
    core->actions.send(core->context, worker, worker->view_frame, worker->view_bytes);
}

void agent_core_view(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, const local_view_t *view)
{
    (void)now;
    agent_worker_t *worker = agent_core_find(core, job, rank);
    size_t used = 0;
    if (worker == NULL) {
        tell_unknown(core, job, rank);
        return;
    }
    if (core_is_over(worker) || view->view <= worker->view) return; /* a repeated or an old one */
    if (local_encode_view(view, worker->minor, core->frame, sizeof core->frame, &used) != INSPAN_OK) {
        fail(core, now, worker, INSPAN_CORRUPT, NULL, "the manager sent a view that does not fit a frame");
        terminate(core, now, worker);
        return;
    }
    uint8_t *copy = malloc(used);
    if (copy == NULL) {
        fail(core, now, worker, INSPAN_NO_MEMORY, NULL, "the agent has no memory for the view");
        terminate(core, now, worker);
        return;
    }
    memcpy(copy, core->frame, used);
    free(worker->view_frame);
    worker->view_frame = copy;
    worker->view_bytes = used;
    worker->view = view->view;
    core_elastic_new_view(worker);
    if (worker->phase >= AGENT_BOUND) send_view(core, worker);
}

void agent_core_lost(agent_core_t *core, ns_t now, uint64_t job, const inspan_cause_t *cause)
{
    (void)now;
    for (uint32_t i = 0; i < core->n_workers; i++) {
        agent_worker_t *worker = core->workers[i];
        size_t used = 0;
        if (worker->job != job || core_is_over(worker) || !worker->connected) continue;
        memset(&core->end, 0, sizeof core->end);
        core->end.status = cause->status;
        core->end.cause = *cause;
        snprintf(core->end.text, sizeof core->end.text, "%s", cause->text);
        if (local_encode_end(LOCAL_LOST, &core->end, core->frame, sizeof core->frame, &used) == INSPAN_OK)
            core->actions.send(core->context, worker, core->frame, used);
    }
}

static void stop_worker(agent_core_t *core, ns_t now, agent_worker_t *worker, bool kill, const char *reason)
{
    if (core_is_over(worker)) {
        if (kill && worker->kill_at == 0) terminate(core, now, worker);
        return;
    }
    worker->stopping = true;
    snprintf(worker->stop_reason, sizeof worker->stop_reason, "%s",
             reason != NULL && *reason ? reason : "stopped");
    if (worker->phase == AGENT_PREPARING) {
        fail(core, now, worker, INSPAN_ABORTED, NULL, worker->stop_reason);
        return;
    }
    if (worker->phase == AGENT_FINISHING && !kill)
        return; /* it has finished already: let the results arrive */
    if (worker->connected) core_send_empty(core, worker, LOCAL_STOP);
    if (worker->phase == AGENT_FINISHING) fail(core, now, worker, INSPAN_ABORTED, NULL, worker->stop_reason);
    if (kill || !worker->connected)
        terminate(core, now, worker);
    else if (worker->term_at == 0)
        worker->term_at = now + 2 * worker->failure_timeout; /* a step has that long to end */
}

void agent_core_stop(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, bool kill, const char *reason)
{
    agent_worker_t *worker = agent_core_find(core, job, rank);
    if (worker != NULL)
        stop_worker(core, now, worker, kill, reason);
    else
        tell_unknown(core, job, rank);
}

void agent_core_stop_all(agent_core_t *core, ns_t now, const char *reason)
{
    for (uint32_t i = 0; i < core->n_workers; i++) stop_worker(core, now, core->workers[i], true, reason);
}

void agent_core_link(agent_core_t *core, ns_t now, bool up)
{
    core->link_up = up;
    core->link_since = now;
    for (uint32_t i = 0; up && i < core->n_workers; i++) {
        core->workers[i]->told_at = now;
        core_elastic_link_up(core, core->workers[i]);
    }
}

/* ---- Of a worker ----------------------------------------------------------------------------- */

static inspan_status_t on_hello(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                                size_t n)
{
    local_hello_t hello;
    char text[160];
    if (local_decode_hello(body, n, &hello) != INSPAN_OK) return INSPAN_CORRUPT;
    worker->connected = true;
    if (hello.major != LOCAL_MAJOR) {
        snprintf(text, sizeof text, "worker speaks version %u.%u of the local protocol, the agent %d.%d",
                 hello.major, hello.minor, LOCAL_MAJOR, LOCAL_MINOR);
        send_bye(core, worker, INSPAN_VERSION, text);
        fail(core, now, worker, INSPAN_VERSION, NULL, text);
        terminate(core, now, worker);
        return INSPAN_VERSION;
    }
    /* A second HELLO is the same process that lost its connection; another process may not take its place. */
    if (worker->phase > AGENT_STARTING && hello.incarnation != worker->incarnation) return INSPAN_CORRUPT;
    worker->incarnation = hello.incarnation;
    worker->minor = hello.minor;
    local_welcome_t welcome = {.major = LOCAL_MAJOR,
                               .minor = LOCAL_MINOR,
                               .job = worker->job,
                               .failure_timeout = worker->failure_timeout,
                               .threads = core->threads,
                               .first_port = core->first_port,
                               .last_port = core->last_port};
    memcpy(welcome.node, core->node, sizeof welcome.node);
    size_t used = 0;
    if (local_encode_welcome(&welcome, core->frame, sizeof core->frame, &used) != INSPAN_OK)
        return INSPAN_CORRUPT;
    core->actions.send(core->context, worker, core->frame, used);
    if (worker->phase == AGENT_STARTING) enter(worker, now, AGENT_WELCOMED);
    if (worker->stopping) core_send_empty(core, worker, LOCAL_STOP);
    if (worker->leaving) core_send_empty(core, worker, LOCAL_LEAVE);
    worker->vitals_at = 0; /* also to one that called again */
    core_send_vitals(core, now, worker);
    return INSPAN_OK;
}

static inspan_status_t on_bound(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                                size_t n)
{
    uint16_t port = 0;
    if (local_decode_bound(body, n, &port) != INSPAN_OK) return INSPAN_CORRUPT;
    worker->port = port;
    if (worker->phase == AGENT_WELCOMED) {
        worker->state = AGENT_STATE_BOUND;
        enter(worker, now, AGENT_BOUND);
        core_tell(core, now, worker);
    }
    send_view(core, worker); /* also to one that was away when it came */
    return INSPAN_OK;
}

static inspan_status_t on_ready(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                                size_t n)
{
    uint64_t view = 0;
    if (local_decode_ready(body, n, &view) != INSPAN_OK) return INSPAN_CORRUPT;
    const bool newer = view > worker->open_view;
    worker->open_view = view;
    if (newer && (worker->phase == AGENT_READY || worker->phase == AGENT_RUNNING))
        core_tell(core, now, worker);
    if (worker->phase != AGENT_BOUND) return worker->phase > AGENT_BOUND ? INSPAN_OK : INSPAN_CORRUPT;
    worker->state = AGENT_STATE_READY;
    enter(worker, now, AGENT_READY);
    core_tell(core, now, worker);
    return INSPAN_OK;
}

static inspan_status_t on_tick_frame(agent_core_t *core, ns_t now, agent_worker_t *worker,
                                     const uint8_t *body, size_t n)
{
    inspan_progress_t progress;
    if (local_decode_tick(body, n, &progress) != INSPAN_OK) return INSPAN_CORRUPT;
    static_assert(sizeof progress == 16 * 8, "no padding: bits may be compared, and a NaN is like itself");
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    bool changed = memcmp(&progress, &worker->progress, sizeof progress) != 0;
    worker->adopted = false;
    worker->progress = progress;
    worker->has_progress |= changed;
    if (!changed || worker->phase < AGENT_READY || worker->phase > AGENT_RUNNING) return INSPAN_OK;
    bool first = worker->phase == AGENT_READY;
    if (first) {
        if (worker->state != AGENT_STATE_LEFT) worker->state = AGENT_STATE_RUNNING;
        enter(worker, now, AGENT_RUNNING);
    }
    worker->progress_due = true;
    if (first || now - worker->progress_sent >= progress_period) core_tell(core, now, worker);
    return INSPAN_OK;
}

static inspan_status_t on_end(agent_core_t *core, ns_t now, agent_worker_t *worker, local_frame_type_t type,
                              const uint8_t *body, size_t n)
{
    local_end_t *end = &core->end;
    if (local_decode_end(body, n, end) != INSPAN_OK) return INSPAN_CORRUPT;
    if (core_is_over(worker) || worker->phase == AGENT_FINISHING) { /* said again after a reconnect */
        send_bye(core, worker, INSPAN_OK, "");
        return INSPAN_OK;
    }
    if (type == LOCAL_FAILED) {
        char text[INSPAN_ERROR_TEXT];
        snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, end->text);
        inspan_status_t status = end->status != INSPAN_OK ? end->status : INSPAN_JOB_FAILED;
        inspan_cause_t cause = end->cause;
        worker->term_at = now + end_grace;
        fail(core, now, worker, status, &cause, text);
    } else {
        worker->summary = strdup(end->text);
        worker->term_at = now + end_grace;
        worker->uploading = !worker->saves; /* else all that counts is registered already */
        enter(worker, now, AGENT_FINISHING);
        inspan_error_t err = {.status = INSPAN_OK};
        inspan_status_t status =
            worker->uploading ? core->actions.upload(core->context, worker, &err) : INSPAN_OK;
        if (status != INSPAN_OK) {
            worker->uploading = false;
            fail(core, now, worker, status, NULL, err.text);
        }
    }
    send_bye(core, worker, INSPAN_OK, "");
    return INSPAN_OK;
}

static inspan_status_t handle(agent_core_t *core, ns_t now, agent_worker_t *worker, local_frame_type_t type,
                              const uint8_t *body, size_t n)
{
    if (type == LOCAL_HELLO) return on_hello(core, now, worker, body, n);
    if (!worker->connected) return INSPAN_CORRUPT; /* HELLO comes first */
    switch (type) {
    case LOCAL_BOUND: return on_bound(core, now, worker, body, n);
    case LOCAL_READY: return on_ready(core, now, worker, body, n);
    case LOCAL_TICK: return on_tick_frame(core, now, worker, body, n);
    case LOCAL_FAILED:
    case LOCAL_DONE: return on_end(core, now, worker, type, body, n);
    case LOCAL_BYE: return INSPAN_OK;
    case LOCAL_HELLO:
    case LOCAL_WELCOME:
    case LOCAL_VIEW:
    case LOCAL_STOP:
    case LOCAL_LOST:
    case LOCAL_LEAVE:
    case LOCAL_REGISTERED:
    case LOCAL_VITALS:
    case LOCAL_TYPES: break;
    case LOCAL_BLAME: return core_on_blame(core, now, worker, body, n);
    case LOCAL_LEFT: return core_on_left(core, now, worker, body, n);
    case LOCAL_SAVED: return core_on_saved(core, now, worker, body, n);
    case LOCAL_LEDGER: return core_on_ledger(core, worker, body, n);
    case LOCAL_STATE: return core_on_state(core, now, worker, body, n);
    case LOCAL_NOTE: return core_on_note(core, worker, body, n);
    case LOCAL_VERDICT: return core_on_verdict(core, worker, body, n);
    }
    return INSPAN_CORRUPT;
}

inspan_status_t agent_core_frame(agent_core_t *core, ns_t now, agent_worker_t *worker,
                                 local_frame_type_t type, const uint8_t *body, size_t bytes)
{
    worker->heard = now;
    inspan_status_t status = handle(core, now, worker, type, body, bytes);
    if (status == INSPAN_CORRUPT) {
        char text[128];
        snprintf(text, sizeof text, "worker sent its agent a frame of type %d that cannot be right",
                 (int)type);
        fail(core, now, worker, INSPAN_CORRUPT, NULL, text);
        kill_at_once(core, now, worker);
    }
    return status;
}

void agent_core_disconnected(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    (void)core;
    worker->connected = false;
    worker->heard = now; /* it has failure_timeout to come back, or to exit */
}

void core_gone_if_finished(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    if (worker->phase == AGENT_ENDING && !busy(worker)) enter(worker, now, AGENT_GONE);
    if (worker->phase != AGENT_FINISHING || busy(worker)) return;
    worker->state = AGENT_STATE_DONE;
    enter(worker, now, AGENT_GONE);
    core_tell(core, now, worker);
}

void agent_core_exited(agent_core_t *core, ns_t now, agent_worker_t *worker, const os_exit_t *result)
{
    char how[256], text[INSPAN_ERROR_TEXT];
    worker->pid = 0;
    worker->connected = false;
    worker->exit_code = result->code;
    /* after its failure was told, a signal of ours says nothing about the cause */
    bool told = core_is_over(worker), ours = told && worker->kill_at != 0;
    worker->exit_signal = ours ? 0 : result->signal;
    worker->term_at = worker->kill_at = 0;
    if (!core_is_over(worker) && worker->phase != AGENT_FINISHING) {
        os_exit_text(result, how, sizeof how);
        if (worker->stopping) {
            fail(core, now, worker, INSPAN_ABORTED, NULL, worker->stop_reason);
        } else {
            snprintf(text, sizeof text, "worker of rank %u on node %s: %s%s", worker->rank, core->node, how,
                     result->code == 0 ? ", without having said that it is done" : "");
            inspan_status_t status = result->out_of_memory                    ? INSPAN_NO_MEMORY
                                     : result->signal != 0 || result->unknown ? INSPAN_PEER_LOST
                                                                              : INSPAN_JOB_FAILED;
            fail(core, now, worker, status, NULL, text);
        }
    }
    core_gone_if_finished(core, now, worker);
    if (told) core_tell(core, now, worker); /* again, without a pid: the node is free */
}

void agent_core_uploaded(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                         const char *text, const agent_result_t *results, uint32_t n)
{
    agent_worker_t *worker = agent_core_by_serial(core, serial);
    if (worker == NULL || !worker->uploading) return;
    worker->uploading = false;
    if (worker->phase == AGENT_FINISHING && status != INSPAN_OK) {
        fail(core, now, worker, status, NULL, text);
        terminate(core, now, worker);
    } else if (worker->phase == AGENT_FINISHING && n > 0) {
        worker->results = calloc(n, sizeof *results);
        if (worker->results != NULL) {
            memcpy(worker->results, results, n * sizeof *results);
            worker->n_results = n;
        }
    }
    core_gone_if_finished(core, now, worker);
}

/* ---- Time ------------------------------------------------------------------------------------ */

static void check_silence(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    char text[160];
    if (worker->pid == 0 || core_is_over(worker) || worker->phase == AGENT_FINISHING) return;
    ns_t silent = now - worker->heard;
    if (worker->phase == AGENT_STARTING && !worker->adopted) {
        if (silent <= hello_bound) return;
        snprintf(text, sizeof text,
                 "worker of rank %u on node %s did not call its agent within %.0f s of its start",
                 worker->rank, core->node, ns_to_s(silent));
    } else {
        if (silent <= worker->failure_timeout) return;
        snprintf(text, sizeof text, "worker of rank %u on node %s silent for %.1f s: stopped or frozen",
                 worker->rank, core->node, ns_to_s(silent));
    }
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST,
                            .rank = (int32_t)worker->rank,
                            .waited_ns = silent,
                            .noticed_by = (int32_t)worker->rank};
    snprintf(cause.node, sizeof cause.node, "%s", core->node);
    snprintf(cause.address, sizeof cause.address, "%s", core->address);
    snprintf(cause.operation, sizeof cause.operation, "ticks to the agent");
    snprintf(cause.text, sizeof cause.text, "%s", text);
    fail(core, now, worker, INSPAN_PEER_LOST, &cause, text);
    kill_at_once(core, now, worker);
}

static void check_graces(agent_core_t *core, ns_t now, agent_worker_t *worker)
{
    if (worker->pid == 0) return;
    if (worker->kill_at != 0 && now >= worker->kill_at) {
        if (!worker->warned && now - worker->since > 5 * NS_PER_S)
            log_warn(
                "job %llu, rank %u: process %u does not die of SIGKILL (waiting for a disk or a device?)",
                (unsigned long long)worker->job, worker->rank, worker->pid);
        worker->warned |= now - worker->since > 5 * NS_PER_S;
        kill_at_once(core, now, worker);
    } else if (worker->term_at != 0 && now >= worker->term_at) {
        terminate(core, now, worker);
    }
}

/* Time in which the agent itself stood still counts against nobody. */
static void forgive_own_absence(agent_core_t *core, ns_t now)
{
    ns_t gap = core->last_tick != 0 ? now - core->last_tick : 0;
    core->last_tick = now;
    for (uint32_t i = 0; i < core->n_workers; i++)
        if (gap > core->workers[i]->failure_timeout / 5) {
            ns_t heard = core->workers[i]->heard + gap;
            core->workers[i]->heard = heard < now ? heard : now;
        }
}

void agent_core_tick(agent_core_t *core, ns_t now)
{
    forgive_own_absence(core, now);
    for (uint32_t i = 0; i < core->n_workers; i++) {
        agent_worker_t *worker = core->workers[i];
        check_silence(core, now, worker);
        check_graces(core, now, worker);
        if (worker->progress_due && now - worker->progress_sent >= progress_period)
            core_tell(core, now, worker);
    }
    for (uint32_t i = core->n_workers; i-- > 0;) {
        agent_worker_t *worker = core->workers[i];
        if (worker->phase != AGENT_GONE || busy(worker) || !core->link_up) continue;
        if (worker->told_at >= core->link_since && now - worker->told_at > worker->failure_timeout)
            forget(core, i);
    }
}
