/* From one view to the next. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define COMPARE_BOUND   (600 * NS_PER_S) /* peers that load slowly; lost ones are noticed much sooner */
#define LAST_COPY_BOUND NS_PER_S

/* ---- What the I/O thread says ---------------------------------------------------------------- */

static void on_message(void *context, uint32_t from, const void *data, size_t bytes)
{
    inspan_elastic_t *e = context;
    const elastic_event_t event = {.type = ELASTIC_EV_MESSAGE, .from = from, .data = data, .bytes = bytes};
    pthread_mutex_lock(&e->lock);
    if (!driver_links_message(e, from, data, bytes) && !driver_layout_message(e, from, data, bytes))
        driver_feed(e, &event);
    pthread_mutex_unlock(&e->lock);
}

static void on_failure(void *context, const inspan_cause_t *cause)
{
    inspan_elastic_t *e = context;
    const elastic_event_t event = {.type = ELASTIC_EV_BROKEN, .view = e->view};
    log_debug("view %" PRIu64 ": broken: %s", e->view, cause->text);
    pthread_mutex_lock(&e->lock);
    if (e->broken_at == 0) e->broken_at = os_now();
    driver_feed(e, &event);
    pthread_mutex_unlock(&e->lock);
}

/* ---- Leaving --------------------------------------------------------------------------------- */

/* A COMMIT and what came of it stay: they have happened. */
static bool outlives_view(elastic_action_type_t type)
{
    return type == ELASTIC_DO_COMMIT || type == ELASTIC_DO_LAYOUT || type == ELASTIC_DO_FULL ||
           type == ELASTIC_DO_LEFT || type == ELASTIC_DO_END;
}

static void drop_todo(inspan_elastic_t *e)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < e->todo_n; i++) {
        const driver_todo_t todo = e->todo[(e->todo_first + i) % e->todo_size];
        if (outlives_view(todo.type)) e->todo[(e->todo_first + kept++) % e->todo_size] = todo;
    }
    e->todo_n = kept;
}

void driver_detach(inspan_elastic_t *e)
{
    inspan_comm_t *comm = e->comm;
    inspan_comm_stats_t stats = {0};
    if (comm == NULL) return;
    driver_tell_ledger(e);
    comm_set_message_handler(comm, NULL, NULL);
    comm_remove_failure_handler(comm, on_failure, e);
    /* At the end others may still have to hear of it: a copy in flight is awaited rather than broken off. */
    if (exchange_drain(e->exchange, e->ended ? LAST_COPY_BOUND : 0) != INSPAN_OK) {
        /* No rank is at fault: no one is to be blamed. */
        inspan_cause_t cause = {
            .status = INSPAN_ABORTED, .rank = -1, .noticed_by = (int32_t)e->rank, .operation = "view"};
        snprintf(cause.text, sizeof cause.text, "rank %u is no longer in view %" PRIu64, e->stats.number,
                 e->view);
        comm_poison(comm, &cause);
        /* Poisoned now: all ends at once; until it has, it may still write into our memory. */
        while (exchange_drain(e->exchange, NS_PER_S) != INSPAN_OK)
            log_warn("waiting for operations of view %" PRIu64, e->view);
    }
    exchange_attach(e->exchange, NULL);
    inspan_comm_stats(comm, &stats);
    pthread_mutex_lock(&e->lock);
    e->stats.bytes_sent += stats.bytes_sent;
    e->comm = NULL;
    drop_todo(e);
    memset(e->copies, 0, sizeof e->copies);
    pthread_mutex_unlock(&e->lock);
    e->n_copies = 0;
    e->attached = e->working = false;
    free(e->rows);
    e->rows = NULL;
}

/* ---- The same model -------------------------------------------------------------------------- */

/* In a first view all start from the same bits. */
static inspan_status_t compare_all(inspan_elastic_t *e, inspan_error_t *err)
{
    return manifest_compare(e->comm, e->parameters, e->buckets.n_params, e->buckets.dtype, e->layout.first,
                            true, COMPARE_BOUND, err);
}

/* Later only a newcomer can differ, and only it waits for the answer: the others report at once. */
static inspan_status_t start_comparison(inspan_elastic_t *e, inspan_error_t *err)
{
    const uint64_t words = (uint64_t)e->world * MANIFEST_WORDS;
    e->rows = calloc(2 * words, sizeof e->rows[0]);
    if (e->rows == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to compare %u members", e->world);
    manifest_row(e->parameters, e->buckets.n_params, e->buckets.dtype, e->layout.first,
                 e->rows + (uint64_t)e->rank * MANIFEST_WORDS);
    exchange_compare(e->exchange, e->rows, e->rows + words, words); /* fails only where the view is over */
    return INSPAN_OK;
}

static inspan_status_t await_comparison(inspan_elastic_t *e, inspan_error_t *err)
{
    const ns_t until = os_now() + COMPARE_BOUND;
    inspan_cause_t cause;
    bool compared = false, late = false;
    pthread_mutex_lock(&e->lock);
    while (!compared && !late) {
        if (e->views->changed(e->views->context) || inspan_comm_cause(e->comm, &cause))
            break; /* told by a poke */
        if (!e->compared) late = !os_cond_wait_until(&e->changed, &e->lock, until);
        compared = e->compared;
    }
    pthread_mutex_unlock(&e->lock);
    if (!compared)
        return late ? error_set(err, INSPAN_TIMEOUT, "no other member compared its model within 10 minutes")
                    : INSPAN_OK;
    const uint64_t *leader = e->rows + (uint64_t)e->world * MANIFEST_WORDS,
                   *own = e->rows + (uint64_t)e->rank * MANIFEST_WORDS;
    e->same_model = memcmp(leader, own, MANIFEST_WORDS * sizeof own[0]) == 0;
    if (e->same_model) return INSPAN_OK;
    return error_set(err, INSPAN_MISMATCH,
                     "this member (rank %u) joins with another model than rank %u (node %s) trains: %" PRIu64
                     " parameters, names and shapes %08" PRIx32 ", layout %08" PRIx32 "; expected %" PRIu64
                     ", %08" PRIx32 ", %08" PRIx32 ": are both machines on one version of Inspan?",
                     e->stats.number, e->numbers[0], inspan_comm_member(e->comm, 0)->node, own[0],
                     (uint32_t)own[2], (uint32_t)own[3], leader[0], (uint32_t)leader[2], (uint32_t)leader[3]);
}

/* ---- Entering -------------------------------------------------------------------------------- */

static bool is_member(const uint32_t *numbers, uint32_t n, uint32_t number)
{
    for (uint32_t i = 0; i < n; i++)
        if (numbers[i] == number) return true;
    return false;
}

/* What the last view had and this one has not. */
static void note_losses(inspan_elastic_t *e, const worker_view_t *view, ns_t since)
{
    bool lost = false;
    for (uint32_t i = 0; i < e->world; i++) lost |= !is_member(view->numbers, view->world, e->numbers[i]);
    pthread_mutex_lock(&e->lock);
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++)
        e->recompute[lease] |=
            e->owner[lease] != UINT32_MAX && !is_member(view->numbers, view->world, e->owner[lease]);
    pthread_mutex_unlock(&e->lock);
    if (!lost) return;
    e->stats.recoveries++;
    if (e->recovering_since == 0) e->recovering_since = since;
}

static void tell_machine(inspan_elastic_t *e, const worker_view_t *view, const elastic_pace_t *paces)
{
    const elastic_event_t event = {.type = ELASTIC_EV_VIEW,
                                   .view = view->number,
                                   .first_view = view->first,
                                   .n = view->world,
                                   .numbers = view->numbers,
                                   .index = view->rank,
                                   .paces = paces};
    pthread_mutex_lock(&e->lock);
    e->voted_at = 0;
    driver_pace_view(e);
    driver_links_view(e);
    driver_pace_tell(e); /* the report follows */
    driver_layout_view(e);
    driver_feed(e, &event);
    pthread_mutex_unlock(&e->lock);
}

static inspan_status_t compare(inspan_elastic_t *e, const worker_view_t *view, inspan_error_t *err)
{
    if (view->first) return compare_all(e, err);
    inspan_status_t status = start_comparison(e, err);
    if (status == INSPAN_OK && e->options.newcomer && !e->same_model) status = await_comparison(e, err);
    return status;
}

static inspan_status_t listen(inspan_elastic_t *e, const worker_view_t *view, inspan_error_t *err)
{
    if (comm_add_failure_handler(e->comm, on_failure, e) != INSPAN_OK)
        return error_set(err, INSPAN_LIMIT, "too many parts listen for the communicator's failure");
    comm_set_message_handler(e->comm, on_message, e);
    e->attached = true;
    if (!e->is_full && !e->options.newcomer) {
        e->is_full = true;
        e->views->full(e->views->context, true);
    }
    snprintf(e->stats.node, sizeof e->stats.node, "%s", inspan_comm_member(e->comm, view->rank)->node);
    return INSPAN_OK;
}

inspan_status_t driver_enter_view(inspan_elastic_t *e, inspan_error_t *err)
{
    worker_view_t view = {0};
    inspan_cause_t cause;
    elastic_pace_t paces[ELASTIC_MEMBERS_MAX];
    pthread_mutex_lock(&e->lock);
    const ns_t since = e->broken_at != 0 ? e->broken_at : os_now();
    pthread_mutex_unlock(&e->lock);
    inspan_status_t status = e->views->next(e->views->context, e->view, e->options.timeout_ns, &view, err);
    if (status != INSPAN_OK) return status;
    if (view.world > ELASTIC_MEMBERS_MAX)
        return error_set(err, INSPAN_LIMIT, "view %" PRIu64 " has %u members; %d are possible", view.number,
                         view.world, ELASTIC_MEMBERS_MAX);
    if (e->machine == NULL) status = driver_open_machine(e, view.numbers[view.rank], err);
    if (status != INSPAN_OK) return status;
    log_debug("view %" PRIu64 ": entered as rank %u of %u", view.number, view.numbers[view.rank], view.world);
    note_losses(e, &view, since);
    e->view = view.number;
    e->views_seen++;
    e->world = view.world;
    e->rank = view.rank;
    memcpy(e->numbers, view.numbers, view.world * sizeof e->numbers[0]);
    pthread_mutex_lock(&e->lock);
    e->comm = view.comm;
    e->compared = e->send_failed = false;
    pthread_mutex_unlock(&e->lock);
    exchange_attach(e->exchange, view.comm);
    status = compare(e, &view, err);
    const bool shares = view.first && !e->options.equal_shares;
    if (status == INSPAN_OK && shares) status = driver_pace_share(e, paces, err);
    if (status == INSPAN_OK && inspan_comm_cause(view.comm, &cause) == false) {
        tell_machine(e, &view, shares ? paces : NULL);
        return listen(e, &view, err);
    }
    /* Over before it began: a member is lost already. */
    const bool over = inspan_comm_cause(view.comm, &cause);
    driver_detach(e);
    return over ? INSPAN_OK : status;
}
