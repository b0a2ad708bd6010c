/*
 * What only elastic jobs need of the core: blame, leaving, artifacts, the ledger, verdicts.
 *
 * An artifact: SAVED -> its files are stored (a task of the shell) -> registration goes up, again with each
 * new link, until the manager answers -> REGISTERED. A worker that says SAVED again (its agent was away) gets
 * the answer again, or waits on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core_internal.h"
#include "base/log.h"

/* ---- The view -------------------------------------------------------------------------------- */

inspan_status_t core_on_blame(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n)
{
    local_blame_t blame;
    if (local_decode_blame(body, n, &blame) != INSPAN_OK) return INSPAN_CORRUPT;
    if (blame.view < worker->view) return INSPAN_OK; /* a newer one is on its way to it */
    worker->has_blame = true;
    worker->blame = blame;
    log_info("job %llu, rank %u: view %llu is broken: %s", (unsigned long long)worker->job, worker->rank,
             (unsigned long long)blame.view, blame.cause.text);
    if (!core_is_over(worker)) core_tell(core, now, worker);
    return INSPAN_OK;
}

inspan_status_t core_on_state(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n)
{
    bool full = false;
    if (local_decode_state(body, n, &full) != INSPAN_OK) return INSPAN_CORRUPT;
    const bool changed = full != worker->full;
    worker->full = full;
    worker->elastic = true;
    if (changed && worker->phase >= AGENT_BOUND && !core_is_over(worker)) core_tell(core, now, worker);
    return INSPAN_OK;
}

void core_elastic_new_view(agent_worker_t *worker)
{
    if (worker->blame.view < worker->view) worker->has_blame = false;
    if (worker->state == AGENT_STATE_LEFT && worker->left_view < worker->view)
        worker->state = worker->phase == AGENT_READY ? AGENT_STATE_READY : AGENT_STATE_RUNNING;
}

/* ---- Leaving --------------------------------------------------------------------------------- */

inspan_status_t core_on_left(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                             size_t n)
{
    uint64_t view = 0;
    if (local_decode_left(body, n, &view) != INSPAN_OK) return INSPAN_CORRUPT;
    if (view < worker->view) return INSPAN_OK; /* G3: it may be needed again in the newer one */
    if (worker->phase != AGENT_READY && worker->phase != AGENT_RUNNING) return INSPAN_OK;
    const bool told = worker->state == AGENT_STATE_LEFT && worker->left_view == view;
    worker->state = AGENT_STATE_LEFT;
    worker->left_view = view;
    if (!told) core_tell(core, now, worker);
    return INSPAN_OK;
}

void agent_core_leave(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, const char *reason)
{
    agent_worker_t *worker = agent_core_find(core, job, rank);
    const bool trains = worker != NULL && (worker->phase == AGENT_READY || worker->phase == AGENT_RUNNING);
    if (!trains) { /* it has nothing to hand over */
        agent_core_stop(core, now, job, rank, false, reason);
        return;
    }
    worker->leaving = true;
    if (worker->connected) core_send_empty(core, worker, LOCAL_LEAVE);
}

bool agent_core_leave_all(agent_core_t *core, ns_t now, const char *reason)
{
    bool any = false;
    for (uint32_t i = 0; i < core->n_workers; i++) {
        agent_worker_t *worker = core->workers[i];
        if (core_is_over(worker)) continue;
        if (worker->elastic && (worker->phase == AGENT_READY || worker->phase == AGENT_RUNNING)) {
            any = true;
            agent_core_leave(core, now, worker->job, worker->rank, reason);
        } else {
            agent_core_stop(core, now, worker->job, worker->rank, true, reason);
        }
    }
    return any;
}

/* ---- Artifacts ------------------------------------------------------------------------------- */

static agent_artifact_t *find_artifact(agent_worker_t *worker, uint64_t step, bool result)
{
    for (uint32_t i = 0; i < worker->n_artifacts; i++)
        if (worker->artifacts[i].saved.step == step && worker->artifacts[i].saved.result == result)
            return &worker->artifacts[i];
    return NULL;
}

static void send_registered(agent_core_t *core, agent_worker_t *worker, const agent_artifact_t *artifact)
{
    size_t used = 0;
    local_registered_t registered = {
        .step = artifact->saved.step, .result = artifact->saved.result, .status = artifact->status};
    snprintf(registered.text, sizeof registered.text, "%s", artifact->text);
    if (worker->connected &&
        local_encode_registered(&registered, core->frame, sizeof core->frame, &used) == INSPAN_OK)
        core->actions.send(core->context, worker, core->frame, used);
}

static void answer(agent_core_t *core, agent_worker_t *worker, agent_artifact_t *artifact,
                   inspan_status_t status, const char *text)
{
    artifact->stage = AGENT_ARTIFACT_ANSWERED;
    artifact->status = status;
    snprintf(artifact->text, sizeof artifact->text, "%.255s", text);
    free(artifact->files);
    artifact->files = NULL;
    artifact->n_files = 0;
    if (status != INSPAN_OK)
        log_warn("job %llu, rank %u: %s of step %llu is not registered: %s", (unsigned long long)worker->job,
                 worker->rank, artifact->saved.result ? "the result" : "the checkpoint",
                 (unsigned long long)artifact->saved.step, text);
    send_registered(core, worker, artifact);
}

/* One at a time is stored. */
static void store_next(agent_core_t *core, agent_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_artifacts && !worker->storing && !core_is_over(worker); i++) {
        agent_artifact_t *artifact = &worker->artifacts[i];
        inspan_error_t err = {.status = INSPAN_OK};
        if (artifact->stage != AGENT_ARTIFACT_QUEUED) continue;
        artifact->stage = AGENT_ARTIFACT_STORING;
        inspan_status_t status = core->actions.store(core->context, worker, artifact, &err);
        worker->storing = status == INSPAN_OK;
        if (status != INSPAN_OK) answer(core, worker, artifact, status, err.text);
    }
}

/* Room for one more: the oldest answered one goes. */
static agent_artifact_t *new_artifact(agent_worker_t *worker)
{
    for (uint32_t i = 0; worker->n_artifacts == AGENT_ARTIFACTS && i < worker->n_artifacts; i++) {
        if (worker->artifacts[i].stage != AGENT_ARTIFACT_ANSWERED) continue;
        worker->n_artifacts--;
        memmove(&worker->artifacts[i], &worker->artifacts[i + 1],
                (worker->n_artifacts - i) * sizeof worker->artifacts[0]);
    }
    return worker->n_artifacts < AGENT_ARTIFACTS ? &worker->artifacts[worker->n_artifacts++] : NULL;
}

inspan_status_t core_on_saved(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n)
{
    local_saved_t saved;
    (void)now;
    if (local_decode_saved(body, n, &saved) != INSPAN_OK) return INSPAN_CORRUPT;
    if (core_is_over(worker)) return INSPAN_OK;
    agent_artifact_t *artifact = find_artifact(worker, saved.step, saved.result);
    if (artifact != NULL && artifact->stage == AGENT_ARTIFACT_ANSWERED &&
        artifact->saved.view == saved.view) {
        send_registered(core, worker, artifact);
        return INSPAN_OK;
    }
    if (artifact != NULL && artifact->stage != AGENT_ARTIFACT_ANSWERED) return INSPAN_OK;
    if (artifact == NULL) artifact = new_artifact(worker);
    if (artifact == NULL) return INSPAN_CORRUPT; /* a worker has 4 under way at the most */
    *artifact = (agent_artifact_t){.saved = saved, .stage = AGENT_ARTIFACT_QUEUED};
    worker->saves = true;
    store_next(core, worker);
    return INSPAN_OK;
}

void agent_core_stored(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                       const char *text, const agent_result_t *files, uint32_t n)
{
    agent_worker_t *worker = agent_core_by_serial(core, serial);
    if (worker == NULL || !worker->storing) return;
    worker->storing = false;
    for (uint32_t i = 0; i < worker->n_artifacts; i++) {
        agent_artifact_t *artifact = &worker->artifacts[i];
        if (artifact->stage != AGENT_ARTIFACT_STORING) continue;
        if (status == INSPAN_OK && (n == 0 || (artifact->files = calloc(n, sizeof *files)) == NULL)) {
            status = n == 0 ? INSPAN_NOT_FOUND : INSPAN_NO_MEMORY;
            text = n == 0 ? "there is no file in its folder" : "the agent has no memory for it";
        }
        if (status != INSPAN_OK) {
            answer(core, worker, artifact, status, text);
            continue;
        }
        memcpy(artifact->files, files, n * sizeof *files);
        artifact->n_files = n;
        artifact->stage = AGENT_ARTIFACT_STORED;
        if (core->link_up) core->actions.register_artifact(core->context, worker, artifact);
    }
    store_next(core, worker);
    core_gone_if_finished(core, now, worker);
}

void agent_core_registered(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, uint64_t step,
                           bool result, inspan_status_t status, const char *text)
{
    agent_worker_t *worker = agent_core_find(core, job, rank);
    (void)now;
    agent_artifact_t *artifact = worker != NULL ? find_artifact(worker, step, result) : NULL;
    if (artifact != NULL && artifact->stage == AGENT_ARTIFACT_STORED)
        answer(core, worker, artifact, status, text);
}

/* ---- Notes ----------------------------------------------------------------------------------- */

/* It ends nothing, so it is not kept for a manager that is away. */
inspan_status_t core_on_note(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n)
{
    char text[LOCAL_NOTE_MAX];
    if (local_decode_note(body, n, text) != INSPAN_OK) return INSPAN_CORRUPT;
    log_info("job %llu, rank %u: %s", (unsigned long long)worker->job, worker->rank, text);
    if (core->link_up) core->actions.note(core->context, worker, text);
    return INSPAN_OK;
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* The newest are kept for a manager that is away; it knows one that comes twice. */
inspan_status_t core_on_verdict(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n)
{
    local_verdict_t verdict;
    if (local_decode_verdict(body, n, &verdict) != INSPAN_OK) return INSPAN_CORRUPT;
    if (worker->n_verdicts == AGENT_VERDICTS)
        memmove(&worker->verdicts[0], &worker->verdicts[1],
                --worker->n_verdicts * sizeof worker->verdicts[0]);
    worker->verdicts[worker->n_verdicts++] = verdict;
    if (core->link_up) core->actions.verdict(core->context, worker, &verdict);
    return INSPAN_OK;
}

/* ---- The ledger ------------------------------------------------------------------------------ */

static void send_span(agent_core_t *core, agent_worker_t *worker, agent_span_t *span)
{
    if (!core->link_up || local_decode_ledger(span->body, span->bytes, &core->ledger) != INSPAN_OK) return;
    core->actions.ledger(core->context, worker, &core->ledger);
    span->sent = true;
}

inspan_status_t core_on_ledger(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n)
{
    if (local_decode_ledger(body, n, &core->ledger) != INSPAN_OK) return INSPAN_CORRUPT;
    const uint64_t first = core->ledger.first_step;
    uint32_t at = 0;
    while (at < worker->n_spans && worker->spans[at].first_step != first) at++;
    uint8_t *copy = malloc(n);
    if (copy == NULL) {
        log_error("job %llu: no memory for the ledger's span from step %llu", (unsigned long long)worker->job,
                  (unsigned long long)first);
        return INSPAN_OK;
    }
    memcpy(copy, body, n);
    if (at == AGENT_SPANS) { /* the oldest goes */
        const bool lost = !worker->spans[0].sent;
        if (lost && !worker->lost_spans)
            log_error("job %llu: the manager was away for too long: from step %llu on the ledger lacks some",
                      (unsigned long long)worker->job, (unsigned long long)worker->spans[0].first_step);
        worker->lost_spans |= lost;
        free(worker->spans[0].body);
        memmove(&worker->spans[0], &worker->spans[1], (AGENT_SPANS - 1) * sizeof worker->spans[0]);
        worker->n_spans = at = AGENT_SPANS - 1;
    }
    if (at == worker->n_spans)
        worker->n_spans++;
    else
        free(worker->spans[at].body);
    worker->spans[at] = (agent_span_t){.first_step = first, .body = copy, .bytes = n};
    send_span(core, worker, &worker->spans[at]);
    return INSPAN_OK;
}

/* ---- Links, ends ----------------------------------------------------------------------------- */

/* A manager that was restarted may have lost what it did not acknowledge; it takes the same span twice. */
void core_elastic_link_up(agent_core_t *core, agent_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_spans; i++) send_span(core, worker, &worker->spans[i]);
    for (uint32_t i = 0; i < worker->n_verdicts; i++)
        core->actions.verdict(core->context, worker, &worker->verdicts[i]);
    for (uint32_t i = 0; i < worker->n_artifacts; i++)
        if (worker->artifacts[i].stage == AGENT_ARTIFACT_STORED)
            core->actions.register_artifact(core->context, worker, &worker->artifacts[i]);
}

void core_elastic_forget(agent_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_artifacts; i++) free(worker->artifacts[i].files);
    for (uint32_t i = 0; i < worker->n_spans; i++) free(worker->spans[i].body);
    worker->n_artifacts = worker->n_spans = 0;
}
