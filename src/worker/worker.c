/*
 * The session of one rank. The I/O thread owns the local socket's receive side and the timer; frames are sent
 * by whoever has something to say, under `mutex`. Lock order: mutex, then what comm_io locks; communicator
 * calls are made without the mutex, since they may call the failure handler at once.
 *
 *   open:   HELLO -> WELCOME, bind -> BOUND, VIEW ->, communicator -> READY
 *   then:   TICK each fifth of failure_timeout, within 200 ms where there is new progress; STOP and LOST come
 * in end:    FAILED (the moment the communicator is poisoned, whatever the user's thread does) or DONE -> BYE
 *
 * Where the socket breaks the session goes on and calls again, for failure_timeout; it then says again all
 * that the agent needs (port, ready, end). After that time the agent counts as gone and the communicator is
 * poisoned.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/comm.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "platform/wire/local.h"
#include "worker/worker_internal.h"

enum { BUFFER_BYTES = 2 * (LOCAL_FRAME_MAX + 8) };

static const ns_t timer_period = 200 * NS_PER_MS;
static const ns_t welcome_bound = 30 * NS_PER_S; /* a busy agent on a small machine */
static const ns_t view_bound =
    3600 * NS_PER_S; /* others may still fetch their data; the manager's bound is shorter */
static const ns_t bye_bound = 5 * NS_PER_S;

struct inspan_worker {
    comm_io_t *io;
    uint32_t timer;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint64_t incarnation;
    comm_listener_t *listener;
    atomic_bool cancelled;

    pthread_mutex_t mutex;
    os_cond_t changed;
    /* all below: under mutex */
    int fd;       /* -1: not connected */
    bool closing; /* the socket is the closing thread's */
    bool welcomed, has_view, bound, ready, bye, agent_gone;
    bool over; /* all ranks are through: what the communicator does from now on is no failure */
    local_welcome_t welcome;
    local_view_t view;
    uint16_t port;
    inspan_comm_t *comm;
    bool has_lost;
    inspan_cause_t lost;   /* told by the agent */
    inspan_cause_t unopen; /* why the communicator did not open; status OK: no peer's doing */
    inspan_progress_t progress;
    bool progress_changed;
    local_frame_type_t end_type; /* 0: nothing said yet */
    local_end_t end;
    inspan_error_t refusal; /* status not OK: the agent will not have this worker */
    ns_t lost_at, ticked_at;
    size_t out_used;
    uint8_t out[BUFFER_BYTES];
    uint8_t frame[LOCAL_FRAME_MAX + 8];

    /* the I/O thread's */
    size_t in_used;
    uint8_t in[BUFFER_BYTES];
    local_end_t received;
};

/* ---- Sending (mutex held) -------------------------------------------------------------------- */

static void flush(inspan_worker_t *worker)
{
    size_t sent = 0;
    while (worker->fd >= 0 && sent < worker->out_used) {
        ssize_t n =
            send(worker->fd, worker->out + sent, worker->out_used - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* full, or broken: the I/O thread sees which */
        sent += (size_t)n;
    }
    if (sent == 0) return;
    worker->out_used -= sent;
    memmove(worker->out, worker->out + sent, worker->out_used);
}

static void want_writable(inspan_worker_t *worker)
{
    if (worker->fd >= 0)
        comm_io_modify(worker->io, worker->fd, worker->out_used > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Queue worker->frame. Room: at most an end, a tick, and a few small ones are ever queued. */
static void send_frame(inspan_worker_t *worker, inspan_status_t encoded, size_t bytes)
{
    if (worker->fd < 0 || encoded != INSPAN_OK || bytes > BUFFER_BYTES - worker->out_used) return;
    memcpy(worker->out + worker->out_used, worker->frame, bytes);
    worker->out_used += bytes;
    flush(worker);
    want_writable(worker);
}

static void send_hello(inspan_worker_t *worker)
{
    size_t n = 0;
    local_hello_t hello = {LOCAL_MAJOR, LOCAL_MINOR, (uint32_t)getpid(), worker->incarnation};
    inspan_status_t status = local_encode_hello(&hello, worker->frame, sizeof worker->frame, &n);
    send_frame(worker, status, n);
}

static void send_bound(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_bound(worker->port, worker->frame, sizeof worker->frame, &n);
    send_frame(worker, status, n);
}

static void send_ready(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_ready(worker->view.view, worker->frame, sizeof worker->frame, &n);
    send_frame(worker, status, n);
}

static void send_tick(inspan_worker_t *worker, ns_t now)
{
    size_t n = 0;
    if (worker->out_used > 0) return; /* the agent does not read just now: one tick is as good as ten */
    inspan_status_t status = local_encode_tick(&worker->progress, worker->frame, sizeof worker->frame, &n);
    send_frame(worker, status, n);
    worker->progress_changed = false;
    worker->ticked_at = now;
}

static void send_end(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status =
        local_encode_end(worker->end_type, &worker->end, worker->frame, sizeof worker->frame, &n);
    send_frame(worker, status, n);
}

/* The first end counts. cause NULL: this rank's own. */
static void say_end(inspan_worker_t *worker, inspan_status_t status, const inspan_cause_t *cause,
                    const char *text)
{
    if (worker->end_type != 0) return;
    worker->end_type = status == INSPAN_OK ? LOCAL_DONE : LOCAL_FAILED;
    worker->end.status = status;
    snprintf(worker->end.text, sizeof worker->end.text, "%s", text);
    if (cause != NULL) {
        worker->end.cause = *cause;
    } else if (status != INSPAN_OK) {
        int32_t rank = worker->has_view ? (int32_t)worker->view.rank : -1;
        worker->end.cause = (inspan_cause_t){.status = status, .rank = rank, .noticed_by = rank};
        memcpy(worker->end.cause.node, worker->welcome.node, sizeof worker->end.cause.node);
        snprintf(worker->end.cause.text, sizeof worker->end.cause.text, "%s", text);
    }
    send_end(worker);
}

/* ---- The communicator's failure -------------------------------------------------------------- */

static void on_comm_failure(void *context, const inspan_cause_t *cause)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    if (!worker->over) say_end(worker, cause->status, cause, cause->text);
    pthread_mutex_unlock(&worker->mutex);
}

/* Not under the mutex: the handler above may run within. */
static void poison(inspan_comm_t *comm, const inspan_cause_t *cause)
{
    if (comm != NULL) comm_poison(comm, cause);
}

/* ---- Receiving (I/O thread) ------------------------------------------------------------------ */

static void on_welcome(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    local_welcome_t welcome;
    inspan_status_t status = local_decode_welcome(body, n, &welcome);
    if (status == INSPAN_OK && welcome.major != LOCAL_MAJOR) {
        error_set(&worker->refusal, INSPAN_VERSION,
                  "the agent speaks version %u.%u of the local protocol, this worker %d.%d", welcome.major,
                  welcome.minor, LOCAL_MAJOR, LOCAL_MINOR);
        return;
    }
    if (status != INSPAN_OK) {
        error_set(&worker->refusal, INSPAN_CORRUPT, "the agent sent a WELCOME that cannot be right");
        return;
    }
    bool again = worker->welcomed;
    if (!again) worker->welcome = welcome;
    worker->welcomed = true;
    worker->lost_at = 0;
    if (!again) return;
    if (worker->bound) send_bound(worker);
    if (worker->ready) send_ready(worker);
    if (worker->end_type != 0) send_end(worker);
}

/* A rank that the view does not know would make the others call this one a liar. */
static void clamp_lost(inspan_worker_t *worker)
{
    if (worker->has_view && worker->lost.rank >= (int32_t)worker->view.world) worker->lost.rank = -1;
}

static void on_view(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    local_view_t view;
    inspan_status_t status = local_decode_view(body, n, &view);
    if (status != INSPAN_OK) {
        error_set(&worker->refusal, status, "the agent sent a view that cannot be right");
        return;
    }
    if (worker->has_view) { /* members are fixed: the first view stays */
        free(view.members);
        return;
    }
    worker->view = view;
    worker->has_view = true;
    clamp_lost(worker);
}

static void on_bye(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    if (local_decode_end(body, n, &worker->received) != INSPAN_OK) worker->received.status = INSPAN_CORRUPT;
    worker->bye = true;
    if (!worker->welcomed && worker->received.status != INSPAN_OK)
        error_set(&worker->refusal, worker->received.status, "%.480s", worker->received.text);
}

/* One frame; the cause to poison with, if it is a LOST. */
static bool take_frame(inspan_worker_t *worker, local_frame_type_t type, const uint8_t *body, size_t n)
{
    bool lost = false;
    pthread_mutex_lock(&worker->mutex);
    switch (type) {
    case LOCAL_WELCOME: on_welcome(worker, body, n); break;
    case LOCAL_VIEW: on_view(worker, body, n); break;
    case LOCAL_STOP: atomic_store(&worker->cancelled, true); break;
    case LOCAL_LOST:
        lost = local_decode_end(body, n, &worker->received) == INSPAN_OK;
        if (lost && !worker->has_lost) worker->lost = worker->received.cause;
        worker->has_lost |= lost;
        clamp_lost(worker);
        break;
    case LOCAL_BYE: on_bye(worker, body, n); break;
    default: break; /* of a later minor version */
    }
    os_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    return lost;
}

static void drop_connection(inspan_worker_t *worker)
{
    pthread_mutex_lock(&worker->mutex);
    int fd = worker->fd;
    bool closing = worker->closing;
    if (!closing) {
        worker->fd = -1;
        worker->out_used = 0;
        worker->lost_at = os_now();
    }
    pthread_mutex_unlock(&worker->mutex);
    if (closing) return;
    worker->in_used = 0;
    comm_io_remove(worker->io, fd);
    close(fd);
}

/* false: bytes that are no frames. */
static bool take_frames(inspan_worker_t *worker)
{
    size_t at = 0;
    for (;;) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        inspan_status_t status = local_peek(worker->in + at, worker->in_used - at, &type, &body, &n, &whole);
        if (status == INSPAN_CORRUPT) return false;
        if (status != INSPAN_OK) break;
        if (take_frame(worker, type, body, n)) {
            pthread_mutex_lock(&worker->mutex);
            inspan_comm_t *comm = worker->comm;
            inspan_cause_t cause = worker->lost;
            pthread_mutex_unlock(&worker->mutex);
            poison(comm, &cause);
        }
        at += whole;
    }
    worker->in_used -= at;
    memmove(worker->in, worker->in + at, worker->in_used);
    return true;
}

static void on_socket(void *context, uint32_t events)
{
    inspan_worker_t *worker = context;
    if (events & EPOLLOUT) {
        pthread_mutex_lock(&worker->mutex);
        flush(worker);
        want_writable(worker);
        pthread_mutex_unlock(&worker->mutex);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t got =
        recv(worker->fd, worker->in + worker->in_used, BUFFER_BYTES - worker->in_used, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) worker->in_used += (size_t)got;
    if (got <= 0 || !take_frames(worker)) drop_connection(worker);
}

/* ---- Connecting, ticking (I/O thread; the first connect: the user's) ------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

/* Watched first: once the mutex is free, frames may come. */
static bool adopt(inspan_worker_t *worker, int fd)
{
    pthread_mutex_lock(&worker->mutex);
    worker->fd = fd;
    bool watched = comm_io_add(worker->io, fd, EPOLLIN, on_socket, worker) == INSPAN_OK;
    if (watched) send_hello(worker);
    if (!watched) worker->fd = -1;
    pthread_mutex_unlock(&worker->mutex);
    if (!watched) close(fd);
    return watched;
}

static void agent_is_gone(inspan_worker_t *worker, ns_t silent)
{
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = -1, .noticed_by = -1, .waited_ns = silent};
    pthread_mutex_lock(&worker->mutex);
    worker->agent_gone = true;
    inspan_comm_t *comm = worker->comm;
    if (worker->has_view) cause.rank = cause.noticed_by = (int32_t)worker->view.rank;
    snprintf(cause.node, sizeof cause.node, "%s", worker->welcome.node);
    snprintf(cause.operation, sizeof cause.operation, "connection to the agent");
    snprintf(cause.text, sizeof cause.text, "agent of node %s is gone: its socket closed %.1f s ago",
             cause.node, ns_to_s(silent));
    if (!worker->has_lost) worker->lost = cause;
    worker->has_lost = true;
    os_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    log_error("%s", cause.text);
    atomic_store(&worker->cancelled, true);
    poison(comm, &cause);
}

static void on_timer(void *context, ns_t now)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    bool connected = worker->fd >= 0, gone = worker->agent_gone;
    ns_t timeout = worker->welcome.failure_timeout, lost_at = worker->lost_at;
    if (connected && worker->welcomed && lost_at == 0 &&
        (worker->progress_changed || now - worker->ticked_at >= timeout / 5 - NS_PER_MS))
        send_tick(worker, now);
    bool welcomed = worker->welcomed;
    pthread_mutex_unlock(&worker->mutex);
    if (gone || lost_at == 0) return;
    if (welcomed && now - lost_at > timeout) {
        agent_is_gone(worker, now - lost_at);
        return;
    }
    int fd = connected ? -1 : connect_to(worker->path);
    if (fd >= 0) adopt(worker, fd);
}

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
        } else if (worker->has_lost) {
            status = error_set(err, worker->lost.status, "%s", worker->lost.text);
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
    int fd = connect_to(worker->path);
    if (fd < 0)
        return error_set_errno(err, INSPAN_REFUSED, "no agent answers at %s ($INSPAN_SOCKET)", worker->path);
    if (!adopt(worker, fd))
        return error_set(err, INSPAN_IO, "cannot watch the agent's socket %s", worker->path);
    status = wait_for(worker, &worker->welcomed, welcome_bound, "WELCOME", err);
    if (status != INSPAN_OK) return status;
    status = comm_io_timer(worker->io, timer_period, false, on_timer, worker, &worker->timer);
    return status == INSPAN_OK ? status : error_set(err, status, "no timer for ticks to the agent");
}

static inspan_status_t bind_data_port(inspan_worker_t *worker, inspan_error_t *err)
{
    uint16_t port = 0;
    inspan_status_t status =
        comm_listen(worker->welcome.first_port, worker->welcome.last_port, &worker->listener, &port, err);
    if (status != INSPAN_OK) return status;
    pthread_mutex_lock(&worker->mutex);
    worker->port = port;
    worker->bound = true;
    send_bound(worker);
    pthread_mutex_unlock(&worker->mutex);
    return INSPAN_OK;
}

static inspan_status_t open_comm(inspan_worker_t *worker, inspan_error_t *err)
{
    const local_view_t *view = &worker->view; /* fixed once has_view */
    comm_options_t options = {.io = worker->io,
                              .job = worker->welcome.job,
                              .view = view->view,
                              .rank = view->rank,
                              .world = view->world,
                              .members = view->members,
                              .listener = view->world > 1 ? worker->listener : NULL,
                              .failure_timeout = worker->welcome.failure_timeout,
                              .schedule = INSPAN_SCHEDULE_AUTO,
                              .cause = &worker->unopen};
    inspan_comm_t *comm = NULL;
    memcpy(options.key, view->key, sizeof options.key);
    inspan_status_t status = comm_open(&options, &comm, err);
    explicit_bzero(options.key, sizeof options.key);
    if (status != INSPAN_OK) return status;
    pthread_mutex_lock(&worker->mutex);
    worker->comm = comm;
    bool lost = worker->has_lost;
    inspan_cause_t cause = worker->lost;
    pthread_mutex_unlock(&worker->mutex);
    status = comm_add_failure_handler(comm, on_comm_failure, worker);
    if (status != INSPAN_OK) return error_set(err, status, "the communicator takes no more listeners");
    if (lost) {
        poison(comm, &cause);
        return error_set(err, cause.status, "%s", cause.text);
    }
    pthread_mutex_lock(&worker->mutex);
    worker->ready = true;
    if (worker->end_type == 0) send_ready(worker);
    pthread_mutex_unlock(&worker->mutex);
    return INSPAN_OK;
}

static_assert(COMM_KEY_BYTES == LOCAL_KEY_BYTES, "the job's key travels as it is");

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
    if (worker->comm != NULL) {
        comm_remove_failure_handler(worker->comm, on_comm_failure, worker);
        inspan_comm_close(worker->comm);
    }
    if (worker->listener != NULL) comm_listener_close(worker->listener);
    if (worker->io != NULL) comm_io_close(worker->io);
    explicit_bzero(worker->view.key, sizeof worker->view.key);
    free(worker->view.members);
    os_cond_close(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
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
    inspan_status_t status = os_random(&worker->incarnation, sizeof worker->incarnation);
    if (status == INSPAN_OK) status = meet_agent(worker, &why);
    if (status == INSPAN_OK) status = bind_data_port(worker, &why);
    if (status == INSPAN_OK) status = wait_for(worker, &worker->has_view, view_bound, "view", &why);
    if (status == INSPAN_OK) status = open_comm(worker, &why);
    if (status == INSPAN_OK) {
        *out = worker;
        return INSPAN_OK;
    }
    pthread_mutex_lock(&worker->mutex);
    /* The agent's word, then what the opening found out; else it is this rank's own. */
    const inspan_cause_t *cause = worker->has_lost ? &worker->lost : NULL;
    if (cause == NULL && worker->unopen.status != INSPAN_OK) cause = &worker->unopen;
    if (worker->welcomed) say_end(worker, status, cause, why.text);
    pthread_mutex_unlock(&worker->mutex);
    wait_for_bye(worker);
    destroy(worker);
    if (err != NULL) *err = why;
    return status;
}

/* ---- The public calls ------------------------------------------------------------------------ */

inspan_status_t inspan_worker_open(inspan_worker_t **worker, inspan_error_t *err)
{
    const char *path = getenv("INSPAN_SOCKET");
    if (path == NULL || path[0] == '\0')
        return error_set(err, INSPAN_NOT_FOUND,
                         "$INSPAN_SOCKET is not set: a worker is started by its agent (see `inspan train`)");
    return worker_open_at(path, worker, err);
}

inspan_comm_t *inspan_worker_comm(inspan_worker_t *worker)
{
    return worker->comm;
}

uint64_t inspan_worker_view(const inspan_worker_t *worker)
{
    return worker->view.view;
}

uint32_t inspan_worker_threads(const inspan_worker_t *worker)
{
    return worker->welcome.threads;
}

int64_t inspan_worker_failure_timeout(const inspan_worker_t *worker)
{
    return worker->welcome.failure_timeout;
}

bool inspan_worker_cancelled(const inspan_worker_t *worker)
{
    return atomic_load(&worker->cancelled);
}

void inspan_worker_progress(inspan_worker_t *worker, const inspan_progress_t *progress)
{
    pthread_mutex_lock(&worker->mutex);
    worker->progress = *progress;
    worker->progress_changed = true;
    pthread_mutex_unlock(&worker->mutex);
}

static inspan_status_t barrier(inspan_comm_t *comm, ns_t bound)
{
    inspan_op_t *op = NULL;
    inspan_status_t status = inspan_barrier(comm, &op);
    if (status != INSPAN_OK) return status;
    status = inspan_op_wait(op, bound);
    if (status != INSPAN_TIMEOUT) return status;
    inspan_comm_abort(comm, "a rank did not come to the end of the job in time");
    while (inspan_op_wait(op, NS_PER_S) == INSPAN_TIMEOUT) {
    }
    return INSPAN_TIMEOUT;
}

/*
 * All ranks leave together: a rank that closes its sockets while another still has work to do (the lowest one
 * writes the model) would look like a lost peer. The first barrier shows that all are through; from then on
 * nothing that happens to the communicator is a failure. The second keeps a rank from closing before all have
 * seen the first: one that stands still for less than failure_timeout (a lid, a swap) must still find the
 * others there.
 */
static void leave_together(inspan_worker_t *worker)
{
    if (inspan_comm_world(worker->comm) == 1 || barrier(worker->comm, view_bound) != INSPAN_OK) return;
    pthread_mutex_lock(&worker->mutex);
    worker->over = true;
    pthread_mutex_unlock(&worker->mutex);
    barrier(worker->comm, 2 * worker->welcome.failure_timeout);
}

void inspan_worker_fail(inspan_worker_t *worker, inspan_status_t status, const char *text)
{
    inspan_cause_t cause;
    const bool poisoned = inspan_comm_cause(worker->comm, &cause);
    if (status == INSPAN_OK) status = INSPAN_INVALID;
    pthread_mutex_lock(&worker->mutex);
    if (worker->end_type == 0) send_tick(worker, os_now()); /* the last progress is part of the end */
    say_end(worker, status, poisoned ? &cause : NULL, text);
    pthread_mutex_unlock(&worker->mutex);
    if (!poisoned) inspan_comm_abort(worker->comm, text);
}

void inspan_worker_finish(inspan_worker_t *worker, inspan_status_t status, const char *text)
{
    inspan_cause_t cause;
    if (text == NULL) text = "";
    if (status == INSPAN_OK) leave_together(worker);
    bool poisoned = inspan_comm_cause(worker->comm, &cause);
    pthread_mutex_lock(&worker->mutex);
    if (worker->end_type == 0) send_tick(worker, os_now()); /* the last progress is part of the end */
    if (status == INSPAN_OK && poisoned && !worker->over)
        say_end(worker, cause.status, &cause, cause.text); /* unless the handler has said it */
    else
        say_end(worker, status, status != INSPAN_OK && poisoned ? &cause : NULL, text);
    worker->over = true;
    pthread_mutex_unlock(&worker->mutex);
    if (status != INSPAN_OK && !poisoned) inspan_comm_abort(worker->comm, text);
    wait_for_bye(worker);
    destroy(worker);
}
