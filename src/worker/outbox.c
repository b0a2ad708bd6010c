/*
 * What the agent must get even if it was away: spans of the ledger (the newest ones, said again to an agent
 * that was restarted: it takes a span it has for the same), artifacts until they are answered, the newest
 * verdicts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "worker/session.h"

/* ---- The ledger ------------------------------------------------------------------------------ */

static void drop_oldest(inspan_worker_t *worker)
{
    if (worker->spans[0].unsent && worker->lost_spans++ == 0)
        log_error("the agent takes no part of the ledger: from step %llu on some of it is missing",
                  (unsigned long long)worker->spans[0].first_step);
    free(worker->spans[0].frame);
    worker->n_spans--;
    memmove(&worker->spans[0], &worker->spans[1], worker->n_spans * sizeof worker->spans[0]);
}

void outbox_ledger(inspan_worker_t *worker, const local_ledger_t *span)
{
    size_t bytes = 0;
    uint8_t *copy = NULL;
    session_span_t *last = worker->n_spans > 0 ? &worker->spans[worker->n_spans - 1] : NULL;
    if (local_encode_ledger(span, worker->frame, sizeof worker->frame, &bytes) == INSPAN_OK)
        copy = malloc(bytes);
    if (copy == NULL) {
        log_error("the ledger lacks steps %llu to %llu: no memory, or too many shares",
                  (unsigned long long)span->first_step, (unsigned long long)span->last_step);
        return;
    }
    memcpy(copy, worker->frame, bytes);
    if (last != NULL && last->first_step == span->first_step) {
        free(last->frame);
    } else {
        if (worker->n_spans == SESSION_SPANS) drop_oldest(worker);
        last = &worker->spans[worker->n_spans++];
    }
    *last = (session_span_t){span->first_step, copy, bytes, true};
}

void outbox_send(inspan_worker_t *worker)
{
    if (worker->fd < 0 || !worker->welcomed || worker->lost_at != 0) return;
    for (uint32_t i = 0; i < worker->n_spans; i++) {
        session_span_t *span = &worker->spans[i];
        if (!span->unsent) continue;
        if (span->bytes + SESSION_RESERVE > SESSION_BUFFER - worker->out_used) return;
        memcpy(worker->frame, span->frame, span->bytes);
        session_send(worker, INSPAN_OK, span->bytes);
        span->unsent = false;
    }
}

static bool ledger_is_sent(const inspan_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_spans; i++)
        if (worker->spans[i].unsent) return false;
    return true;
}

bool outbox_is_sent(const inspan_worker_t *worker)
{
    return ledger_is_sent(worker) && worker->out_used == 0;
}

/* ---- Artifacts ------------------------------------------------------------------------------- */

static void send_saved(inspan_worker_t *worker, const local_saved_t *saved)
{
    size_t n = 0;
    inspan_status_t status = local_encode_saved(saved, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

/* One that is said again, under a newer view, takes its own place: there is one answer to both. The ledger of
 * its steps goes first: who starts again from it may be the last to know of them. */
bool outbox_saved(inspan_worker_t *worker, const local_saved_t *saved)
{
    const bool connected = worker->welcomed && worker->lost_at == 0;
    uint32_t at = 0;
    outbox_send(worker);
    if (connected && !ledger_is_sent(worker)) return false;
    while (at < worker->n_artifacts && (worker->artifacts[at].saved.step != saved->step ||
                                        worker->artifacts[at].saved.result != saved->result))
        at++;
    if (at == SESSION_SAVED) return false;
    if (at == worker->n_artifacts) worker->n_artifacts++;
    worker->artifacts[at] = (session_artifact_t){.saved = *saved};
    if (connected) send_saved(worker, saved);
    return true;
}

void outbox_registered(inspan_worker_t *worker, const local_registered_t *registered)
{
    for (uint32_t i = 0; i < worker->n_artifacts; i++) {
        session_artifact_t *artifact = &worker->artifacts[i];
        if (artifact->answered || artifact->saved.step != registered->step ||
            artifact->saved.result != registered->result)
            continue;
        artifact->answered = true;
        artifact->answer =
            (worker_registered_t){registered->step, registered->result, registered->status, ""};
        snprintf(artifact->answer.text, sizeof artifact->answer.text, "%s", registered->text);
        return;
    }
}

bool outbox_has_answer(const inspan_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_artifacts; i++)
        if (worker->artifacts[i].answered) return true;
    return false;
}

bool outbox_answer(inspan_worker_t *worker, worker_registered_t *answer)
{
    for (uint32_t i = 0; i < worker->n_artifacts; i++) {
        if (!worker->artifacts[i].answered) continue;
        *answer = worker->artifacts[i].answer;
        worker->n_artifacts--;
        memmove(&worker->artifacts[i], &worker->artifacts[i + 1],
                (worker->n_artifacts - i) * sizeof worker->artifacts[0]);
        return true;
    }
    return false;
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

static void send_verdict(inspan_worker_t *worker, const local_verdict_t *verdict)
{
    size_t n = 0;
    inspan_status_t status = local_encode_verdict(verdict, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

/* A full socket loses it for now: the next connection brings it. */
void outbox_verdict(inspan_worker_t *worker, const local_verdict_t *verdict)
{
    if (worker->n_verdicts == SESSION_VERDICTS)
        memmove(&worker->verdicts[0], &worker->verdicts[1],
                --worker->n_verdicts * sizeof worker->verdicts[0]);
    worker->verdicts[worker->n_verdicts++] = *verdict;
    if (worker->welcomed && worker->lost_at == 0 && worker->out_used < SESSION_RESERVE)
        send_verdict(worker, verdict);
}

/* ---- All ------------------------------------------------------------------------------------- */

void outbox_say_again(inspan_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_verdicts; i++) send_verdict(worker, &worker->verdicts[i]);
    for (uint32_t i = 0; i < worker->n_spans; i++) worker->spans[i].unsent = true;
    outbox_send(worker);
    for (uint32_t i = 0; i < worker->n_artifacts; i++)
        if (!worker->artifacts[i].answered) send_saved(worker, &worker->artifacts[i].saved);
}

void outbox_free(inspan_worker_t *worker)
{
    for (uint32_t i = 0; i < worker->n_spans; i++) free(worker->spans[i].frame);
    worker->n_spans = 0;
}
