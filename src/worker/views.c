/*
 * The source of views. The I/O thread hears of a view and ends what is open or being opened; the driver's
 * thread, in `next`, closes the old communicator and opens the new one. Closing is begun before the
 * opening and nobody waits for it (it takes up to a second where a peer is gone): what is closed is freed
 * later.
 *
 * A view whose communicator is poisoned is blamed (BLAME), but not where the cause is a newer view, here or
 * at a peer: the manager has issued it, so it knows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"
#include "worker/session.h"

static const char newer_view[] = "view"; /* cause.operation of a communicator that a newer view has ended */
static const ns_t longest_wait = 3600 * NS_PER_S; /* others may still fetch data; the manager's is shorter */

int32_t views_dense(const local_view_t *view, int32_t number)
{
    for (uint32_t i = 0; view->members != NULL && number >= 0 && i < view->world; i++)
        if (view->members[i].number == (uint32_t)number) return (int32_t)i;
    return -1;
}

static int32_t number_of(const local_view_t *view, int32_t rank)
{
    bool member = view->members != NULL && rank >= 0 && rank < (int32_t)view->world;
    return member ? (int32_t)view->members[rank].number : -1;
}

void views_to_numbers(const local_view_t *view, inspan_cause_t *cause)
{
    cause->rank = number_of(view, cause->rank);
    cause->noticed_by = number_of(view, cause->noticed_by);
}

/* ---- Ending what is open (any thread, mutex held) -------------------------------------------- */

/* Readable until await_view takes it. */
static void give_up_opening(inspan_worker_t *worker)
{
    const uint64_t one = 1;
    ssize_t ignored = write(worker->cancel, &one, sizeof one);
    (void)ignored;
}

void views_wake(inspan_worker_t *worker)
{
    os_cond_broadcast(&worker->changed);
    if (worker->wake != NULL) worker->wake(worker->wake_argument);
}

void views_disturb(inspan_worker_t *worker, const inspan_cause_t *cause)
{
    atomic_store(&worker->view_changed, true);
    views_wake(worker);
    give_up_opening(worker);
    if (worker->comm != NULL) comm_poison(worker->comm, cause);
}

void views_announced(inspan_worker_t *worker, const local_view_t *view)
{
    if (worker->has_view && view->view <= worker->announced.view) {
        free(view->members); /* I3 */
        return;
    }
    free(worker->announced.members);
    worker->announced = *view;
    worker->has_view = true;
    worker->has_blame = false;
    worker->left_view = 0;
    inspan_cause_t cause = {.status = INSPAN_ABORTED, .rank = -1, .noticed_by = -1};
    if (worker->open.members != NULL) cause.noticed_by = (int32_t)worker->open.rank;
    snprintf(cause.operation, sizeof cause.operation, "%s", newer_view);
    snprintf(cause.text, sizeof cause.text, "view %llu was announced", (unsigned long long)view->view);
    views_disturb(worker, &cause);
}

/* ---- Blame ----------------------------------------------------------------------------------- */

/* Mutex held. Ranks of the cause are dense ones of worker->open. */
static void blame(inspan_worker_t *worker, const inspan_cause_t *cause)
{
    const bool over = worker->over || worker->end_type != 0 || atomic_load(&worker->cancelled);
    if (over || worker->announced.view > worker->open.view) return;
    if (cause->rank < 0 && cause->status == INSPAN_ABORTED) return; /* a newer view, at a peer */
    worker->blame = (local_blame_t){.view = worker->open.view, .cause = *cause};
    views_to_numbers(&worker->open, &worker->blame.cause);
    worker->has_blame = true;
    session_send_blame(worker);
}

static void on_comm_failure(void *context, const inspan_cause_t *cause)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    atomic_store(&worker->view_changed, true);
    views_wake(worker);
    if (worker->comm != NULL) blame(worker, cause);
    pthread_mutex_unlock(&worker->mutex);
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Free what has closed meanwhile; all: wait for the rest (1 s at most). */
static void reap(inspan_worker_t *worker, bool all)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < worker->n_retired; i++) {
        inspan_comm_t *comm = worker->retired[i];
        const bool full = worker->n_retired == SESSION_RETIRED && i == 0;
        if (!all && !full && comm_close_waits(comm))
            worker->retired[left++] = comm;
        else
            inspan_comm_close(comm);
    }
    worker->n_retired = left;
}

/* The communicator is nobody's any more, and closing. */
static void retire(inspan_worker_t *worker)
{
    pthread_mutex_lock(&worker->mutex);
    inspan_comm_t *comm = worker->comm;
    worker->comm = NULL;
    pthread_mutex_unlock(&worker->mutex);
    if (comm == NULL) return;
    comm_remove_failure_handler(comm, on_comm_failure, worker);
    comm_close_begin(comm);
    reap(worker, false);
    worker->retired[worker->n_retired++] = comm;
}

/* Mutex held. What ends all waiting; OK: nothing does. */
static inspan_status_t stopped(const inspan_worker_t *worker, inspan_error_t *err)
{
    if (worker->refusal.status != INSPAN_OK) {
        if (err != NULL) *err = worker->refusal;
        return worker->refusal.status;
    }
    if (worker->has_lost) return error_set(err, worker->lost.status, "%s", worker->lost.text);
    if (atomic_load(&worker->cancelled)) return error_set(err, INSPAN_ABORTED, "stopped by the agent");
    return INSPAN_OK;
}

/* Mutex held: the announced view becomes the one to open. */
static inspan_status_t take_announced(inspan_worker_t *worker, inspan_error_t *err)
{
    const local_view_t *view = &worker->announced;
    inspan_member_t *members = calloc(view->world, sizeof *members);
    uint32_t *numbers = calloc(view->world, sizeof *numbers);
    if (members == NULL || numbers == NULL) {
        free(members);
        free(numbers);
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a view of %u members", view->world);
    }
    memcpy(members, view->members, view->world * sizeof *members);
    for (uint32_t i = 0; i < view->world; i++) numbers[i] = members[i].number;
    free(worker->open.members);
    free(worker->numbers);
    worker->open = *view;
    worker->open.members = members;
    worker->numbers = numbers;
    worker->unopen.status = INSPAN_OK;
    uint64_t count;
    ssize_t ignored = read(worker->cancel, &count, sizeof count);
    (void)ignored;
    atomic_store(&worker->view_changed, false);
    return INSPAN_OK;
}

static inspan_status_t await_view(inspan_worker_t *worker, uint64_t above, ns_t deadline, inspan_error_t *err)
{
    pthread_mutex_lock(&worker->mutex);
    inspan_status_t status = stopped(worker, err);
    while (status == INSPAN_OK && (!worker->has_view || worker->announced.view <= above)) {
        if (!os_cond_wait_until(&worker->changed, &worker->mutex, deadline))
            status = error_set(err, INSPAN_TIMEOUT, "no view above %llu from the agent at %s in time",
                               (unsigned long long)above, worker->path);
        else
            status = stopped(worker, err);
    }
    if (status == INSPAN_OK) status = take_announced(worker, err);
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

/* PENDING: the next view is to be waited for. */
static inspan_status_t opening_failed(inspan_worker_t *worker, const inspan_error_t *why, inspan_error_t *err)
{
    const inspan_cause_t *cause = &worker->unopen;
    const int32_t own = (int32_t)worker->open.rank;
    inspan_status_t status = INSPAN_PENDING;
    pthread_mutex_lock(&worker->mutex);
    const bool unwanted = worker->announced.view > worker->open.view || atomic_load(&worker->cancelled) ||
                          why->status == INSPAN_ABORTED;
    const bool mine = cause->status == INSPAN_OK || (cause->rank == own && cause->noticed_by == own);
    if (mine && !unwanted) {
        status = why->status;
        if (err != NULL) *err = *why;
    } else {
        log_info("view %llu was not opened: %s", (unsigned long long)worker->open.view, why->text);
        blame(worker, cause);
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

static inspan_status_t connect_all(inspan_worker_t *worker, inspan_comm_t **comm, inspan_error_t *err)
{
    const local_view_t *view = &worker->open; /* only this thread changes it */
    comm_options_t options = {.io = worker->io,
                              .job = worker->welcome.job,
                              .view = view->view,
                              .rank = view->rank,
                              .world = view->world,
                              .members = view->members,
                              .listener = view->world > 1 ? worker->listener : NULL,
                              .failure_timeout = worker->welcome.failure_timeout,
                              .schedule = INSPAN_SCHEDULE_AUTO,
                              .backend = worker->backend[0] != '\0' ? worker->backend : NULL,
                              .cancel = &worker->cancel,
                              .cause = &worker->unopen};
    memcpy(options.key, view->key, sizeof options.key);
    inspan_status_t status = comm_open(&options, comm, err);
    explicit_bzero(options.key, sizeof options.key);
    return status;
}

/* PENDING: reported, or overtaken; `next` goes on with the next view. */
static inspan_status_t open_view(inspan_worker_t *worker, inspan_error_t *err)
{
    inspan_comm_t *comm = NULL;
    inspan_error_t why = {.status = INSPAN_OK};
    inspan_status_t status = connect_all(worker, &comm, &why);
    if (status != INSPAN_OK) return opening_failed(worker, &why, err);
    pthread_mutex_lock(&worker->mutex);
    worker->comm = comm;
    const bool lost = worker->has_lost, overtaken = worker->announced.view > worker->open.view;
    inspan_cause_t cause = worker->lost;
    pthread_mutex_unlock(&worker->mutex);
    status = comm_add_failure_handler(comm, on_comm_failure, worker);
    if (status != INSPAN_OK) return error_set(err, status, "the communicator takes no more listeners");
    if (lost) { /* while it was being opened */
        cause.rank = views_dense(&worker->open, cause.rank);
        cause.noticed_by = views_dense(&worker->open, cause.noticed_by);
        comm_poison(comm, &cause);
        return error_set(err, cause.status, "%s", cause.text);
    }
    if (overtaken) {
        retire(worker);
        return INSPAN_PENDING;
    }
    pthread_mutex_lock(&worker->mutex);
    worker->ready = worker->open.view;
    if (worker->end_type == 0) session_send_ready(worker);
    pthread_mutex_unlock(&worker->mutex);
    return INSPAN_OK;
}

/* ---- The source ------------------------------------------------------------------------------ */

/* A view begins as soon as all of its members are bound, and they wait for each other no longer than
 * failure_timeout: so a member says so when it has loaded its data and model, however slow it is at that. */
static void say_bound(inspan_worker_t *worker)
{
    pthread_mutex_lock(&worker->mutex);
    const bool told = worker->bound;
    worker->bound = true;
    if (!told && worker->end_type == 0) session_send_bound(worker);
    pthread_mutex_unlock(&worker->mutex);
}

static inspan_status_t source_next(void *context, uint64_t above, ns_t timeout, worker_view_t *view,
                                   inspan_error_t *err)
{
    inspan_worker_t *worker = context;
    say_bound(worker);
    retire(worker);
    const ns_t deadline = os_now() + (timeout < longest_wait ? timeout : longest_wait);
    inspan_status_t status;
    do {
        status = await_view(worker, above, deadline, err);
        if (status != INSPAN_OK) break;
        above = worker->open.view;
        status = open_view(worker, err);
    } while (status == INSPAN_PENDING);
    if (status == INSPAN_OK)
        *view = (worker_view_t){.number = worker->open.view,
                                .first = worker->open.first,
                                .world = worker->open.world,
                                .rank = worker->open.rank,
                                .numbers = worker->numbers,
                                .comm = worker->comm};
    return status;
}

static bool source_changed(void *context)
{
    return atomic_load(&((inspan_worker_t *)context)->view_changed);
}

static void source_watch(void *context, void (*wake)(void *argument), void *argument)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    worker->wake = wake;
    worker->wake_argument = argument;
    pthread_mutex_unlock(&worker->mutex);
}

static bool source_leaving(void *context)
{
    return atomic_load(&((inspan_worker_t *)context)->leaving);
}

/* G3: of an older view it would be void. */
static void source_left(void *context, uint64_t view)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    if (worker->has_view && view == worker->announced.view) {
        worker->left_view = view;
        session_send_left(worker);
    }
    pthread_mutex_unlock(&worker->mutex);
}

static void source_full(void *context, bool full)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    const bool told = worker->full_told && worker->full == full;
    worker->full = full;
    worker->full_told = true;
    if (!told) session_send_state(worker);
    pthread_mutex_unlock(&worker->mutex);
}

static void source_ledger(void *context, const local_ledger_t *span)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    outbox_ledger(worker, span);
    pthread_mutex_unlock(&worker->mutex);
}

static bool source_saved(void *context, const local_saved_t *saved)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    const bool taken = outbox_saved(worker, saved);
    pthread_mutex_unlock(&worker->mutex);
    return taken;
}

static bool source_registered(void *context, worker_registered_t *answer)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    const bool answered = outbox_answer(worker, answer);
    pthread_mutex_unlock(&worker->mutex);
    return answered;
}

static void source_await(void *context, ns_t until)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    while (!outbox_has_answer(worker) && !atomic_load(&worker->view_changed) &&
           os_cond_wait_until(&worker->changed, &worker->mutex, until)) {
    }
    pthread_mutex_unlock(&worker->mutex);
}

static void source_verdict(void *context, const local_verdict_t *verdict)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    outbox_verdict(worker, verdict);
    pthread_mutex_unlock(&worker->mutex);
}

static bool source_vitals(void *context, local_vitals_t *vitals)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    const bool known = worker->has_vitals;
    if (known) *vitals = worker->vitals;
    pthread_mutex_unlock(&worker->mutex);
    return known;
}

void views_fill(inspan_worker_t *worker)
{
    worker->views = (inspan_views_t){.context = worker,
                                     .next = source_next,
                                     .changed = source_changed,
                                     .watch = source_watch,
                                     .leaving = source_leaving,
                                     .left = source_left,
                                     .full = source_full,
                                     .ledger = source_ledger,
                                     .saved = source_saved,
                                     .registered = source_registered,
                                     .await = source_await,
                                     .verdict = source_verdict,
                                     .vitals = source_vitals};
}

void views_close(inspan_worker_t *worker)
{
    retire(worker);
    reap(worker, true);
    explicit_bzero(worker->announced.key, sizeof worker->announced.key);
    explicit_bzero(worker->open.key, sizeof worker->open.key);
    free(worker->announced.members);
    free(worker->open.members);
    free(worker->numbers);
}
