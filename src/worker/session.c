/* The session's life: meeting the agent, the public calls, the end. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "worker/session.h"

static const ns_t welcome_bound = 30 * NS_PER_S; /* a busy agent on a small machine */
static const ns_t timer_period = 200 * NS_PER_MS;
static const ns_t bye_bound = 5 * NS_PER_S;

static_assert(COMM_KEY_BYTES == LOCAL_KEY_BYTES, "the job's key travels as it is");

/* ---- Opening --------------------------------------------------------------------------------- */

/* Wait until *flag is set, or what ends all waiting comes. */
static inspan_status_t wait_for(inspan_worker_t *worker, const bool *flag, ns_t bound, const char *what,
                                inspan_error_t *err)
{
    ns_t deadline = os_now() + bound;
    inspan_status_t status = INSPAN_OK;
    pthread_mutex_lock(&worker->mutex);
    while (!*flag && status == INSPAN_OK) {
        if (worker->refusal.status != INSPAN_OK) {
            status = worker->refusal.status;
            if (err != NULL) *err = worker->refusal;
        } else if (atomic_load(&worker->cancelled)) {
            status = error_set(err, INSPAN_ABORTED, "cancelled while waiting for %s", what);
        } else if (!os_cond_wait_until(&worker->changed, &worker->mutex, deadline)) {
            status = error_set(err, INSPAN_TIMEOUT, "no %s from the agent at %s within %.0f s", what,
                               worker->path, ns_to_s(bound));
        }
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

static inspan_status_t meet_agent(inspan_worker_t *worker, inspan_error_t *err)
{
    inspan_status_t status = comm_io_open(&worker->io, err);
    if (status != INSPAN_OK) return status;
    int fd = session_connect(worker->path);
    if (fd < 0)
        return error_set_errno(err, INSPAN_REFUSED, "no agent answers at %s ($INSPAN_SOCKET)", worker->path);
    if (!session_adopt(worker, fd))
        return error_set(err, INSPAN_IO, "cannot watch the agent's socket %s", worker->path);
    status = wait_for(worker, &worker->welcomed, welcome_bound, "WELCOME", err);
    if (status != INSPAN_OK) return status;
    status = comm_io_timer(worker->io, timer_period, false, session_on_timer, worker, &worker->timer);
    return status == INSPAN_OK ? status : error_set(err, status, "no timer for ticks to the agent");
}

static inspan_status_t bind_data_port(inspan_worker_t *worker, inspan_error_t *err)
{
    uint16_t port = 0;
    inspan_status_t status =
        comm_listen(worker->welcome.first_port, worker->welcome.last_port, &worker->listener, &port, err);
    if (status != INSPAN_OK) return status;
    pthread_mutex_lock(&worker->mutex);
    worker->port = port; /* told when this member is there to connect: views.c */
    pthread_mutex_unlock(&worker->mutex);
    return INSPAN_OK;
}

/* Until the agent has the end, but not for ever: the process's exit tells it too. */
static void wait_for_bye(inspan_worker_t *worker)
{
    ns_t deadline = os_now() + bye_bound;
    pthread_mutex_lock(&worker->mutex);
    while (worker->welcomed && !worker->bye && !worker->agent_gone)
        if (!os_cond_wait_until(&worker->changed, &worker->mutex, deadline)) break;
    pthread_mutex_unlock(&worker->mutex);
}

/* The socket's callbacks end first, then what they use. */
static void destroy(inspan_worker_t *worker)
{
    if (worker->timer != 0) comm_io_timer_cancel(worker->io, worker->timer);
    pthread_mutex_lock(&worker->mutex);
    worker->closing = true;
    int fd = worker->fd;
    pthread_mutex_unlock(&worker->mutex);
    if (fd >= 0) {
        comm_io_remove(worker->io, fd);
        close(fd);
    }
    views_close(worker);
    if (worker->listener != NULL) comm_listener_close(worker->listener);
    if (worker->io != NULL) comm_io_close(worker->io);
    outbox_free(worker);
    if (worker->cancel >= 0) close(worker->cancel);
    os_cond_close(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
}

static inspan_status_t open_steps(inspan_worker_t *worker, inspan_error_t *err)
{
    inspan_status_t status = os_random(&worker->incarnation, sizeof worker->incarnation);
    if (status == INSPAN_OK && worker->cancel < 0)
        status = error_set(err, INSPAN_LIMIT, "no descriptor left for the worker's session");
    if (status == INSPAN_OK) status = meet_agent(worker, err);
    if (status == INSPAN_OK) status = bind_data_port(worker, err);
    return status;
}

inspan_status_t worker_open_at(const char *path, inspan_worker_t **out, inspan_error_t *err)
{
    inspan_worker_t *worker = calloc(1, sizeof *worker);
    inspan_error_t why = {.status = INSPAN_OK};
    if (worker == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the worker's session");
    if (strlen(path) >= sizeof worker->path) {
        free(worker);
        return error_set(err, INSPAN_INVALID, "$INSPAN_SOCKET is longer than %zu bytes",
                         sizeof worker->path - 1);
    }
    pthread_mutex_init(&worker->mutex, NULL);
    os_cond_open(&worker->changed);
    memcpy(worker->path, path, strlen(path) + 1);
    worker->fd = -1;
    worker->cancel = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    views_fill(worker);
    inspan_status_t status = open_steps(worker, &why);
    if (status == INSPAN_OK) {
        *out = worker;
        return INSPAN_OK;
    }
    pthread_mutex_lock(&worker->mutex);
    if (worker->welcomed) session_say_end(worker, status, worker->has_lost ? &worker->lost : NULL, why.text);
    pthread_mutex_unlock(&worker->mutex);
    wait_for_bye(worker);
    destroy(worker);
    if (err != NULL) *err = why;
    return status;
}

/* ---- The public calls ------------------------------------------------------------------------ */

inspan_status_t inspan_worker_attach(inspan_worker_t **worker, inspan_error_t *err)
{
    const char *path = getenv("INSPAN_SOCKET");
    if (path == NULL || path[0] == '\0')
        return error_set(err, INSPAN_NOT_FOUND,
                         "$INSPAN_SOCKET is not set: a worker is started by its agent (see `inspan train`)");
    return worker_open_at(path, worker, err);
}

inspan_views_t *inspan_worker_views(inspan_worker_t *worker)
{
    return &worker->views;
}

inspan_status_t inspan_worker_backend(inspan_worker_t *worker, const char *name)
{
    if (name == NULL || !comm_backend_exists(name)) return INSPAN_INVALID;
    snprintf(worker->backend, sizeof worker->backend, "%s", name);
    return INSPAN_OK;
}

uint32_t inspan_worker_threads(const inspan_worker_t *worker)
{
    return worker->welcome.threads;
}

void inspan_worker_progress(inspan_worker_t *worker, const inspan_progress_t *progress)
{
    pthread_mutex_lock(&worker->mutex);
    worker->progress = *progress;
    worker->progress_changed = true;
    pthread_mutex_unlock(&worker->mutex);
}

/* ---- The end --------------------------------------------------------------------------------- */

/* The whole ledger goes before the end. Mutex held. */
static void drain_outbox(inspan_worker_t *worker)
{
    const ns_t deadline = os_now() + bye_bound;
    outbox_send(worker);
    while (!outbox_is_sent(worker) && !worker->agent_gone)
        if (!os_cond_wait_until(&worker->changed, &worker->mutex, deadline)) break;
}

/* The failure is this member's own, whatever the communicator says: that only ends a view. Mutex held. */
static void say_failure(inspan_worker_t *worker, inspan_status_t status, const char *text)
{
    inspan_cause_t cause;
    if (worker->end_type == 0) session_send_tick(worker, os_now()); /* the last progress is part of the end */
    session_say_end(worker, status, worker->has_lost ? &worker->lost : NULL, text);
    if (worker->comm != NULL && !inspan_comm_cause(worker->comm, &cause))
        inspan_comm_abort(worker->comm, text);
}

void inspan_worker_note(inspan_worker_t *worker, const char *text)
{
    size_t n = 0;
    pthread_mutex_lock(&worker->mutex);
    if (worker->fd >= 0 && worker->out_used < SESSION_RESERVE) {
        inspan_status_t status = local_encode_note(text, worker->frame, sizeof worker->frame, &n);
        session_send(worker, status, n);
    }
    pthread_mutex_unlock(&worker->mutex);
}

void inspan_worker_fail(inspan_worker_t *worker, inspan_status_t status, const char *text)
{
    pthread_mutex_lock(&worker->mutex);
    say_failure(worker, status != INSPAN_OK ? status : INSPAN_INVALID, text);
    pthread_mutex_unlock(&worker->mutex);
}

void inspan_worker_finish(inspan_worker_t *worker, inspan_status_t status, const char *text)
{
    if (text == NULL) text = "";
    pthread_mutex_lock(&worker->mutex);
    worker->over = worker->over || status == INSPAN_OK; /* others that close now break nothing */
    drain_outbox(worker);
    if (status != INSPAN_OK) {
        say_failure(worker, status, text);
    } else {
        if (worker->end_type == 0) session_send_tick(worker, os_now());
        session_say_end(worker, INSPAN_OK, NULL, text);
    }
    worker->over = true;
    pthread_mutex_unlock(&worker->mutex);
    wait_for_bye(worker);
    destroy(worker);
}
