/* The agent's socket: frames out and in, calling again where it broke, ticks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"
#include "worker/session.h"

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

/* Queue worker->frame. Room: at most an end, a tick, artifacts and a few small ones are ever queued, besides
 * the ledger, which leaves room for them. */
void session_send(inspan_worker_t *worker, inspan_status_t encoded, size_t bytes)
{
    if (worker->fd < 0 || encoded != INSPAN_OK || bytes > SESSION_BUFFER - worker->out_used) return;
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
    session_send(worker, status, n);
}

void session_send_bound(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_bound(worker->port, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_send_ready(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_ready(worker->ready, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_send_blame(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_blame(&worker->blame, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_send_state(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_state(worker->full, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_send_left(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status = local_encode_left(worker->left_view, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_send_tick(inspan_worker_t *worker, ns_t now)
{
    size_t n = 0;
    if (worker->out_used > 0) return; /* the agent does not read just now: one tick is as good as ten */
    inspan_status_t status = local_encode_tick(&worker->progress, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
    worker->progress_changed = false;
    worker->ticked_at = now;
}

static void send_end(inspan_worker_t *worker)
{
    size_t n = 0;
    inspan_status_t status =
        local_encode_end(worker->end_type, &worker->end, worker->frame, sizeof worker->frame, &n);
    session_send(worker, status, n);
}

void session_say_end(inspan_worker_t *worker, inspan_status_t status, const inspan_cause_t *cause,
                     const char *text)
{
    if (worker->end_type != 0) return;
    worker->end_type = status == INSPAN_OK ? LOCAL_DONE : LOCAL_FAILED;
    worker->end.status = status;
    snprintf(worker->end.text, sizeof worker->end.text, "%s", text);
    if (cause != NULL) {
        worker->end.cause = *cause;
    } else if (status != INSPAN_OK) {
        const local_view_t *view = &worker->announced;
        int32_t rank = worker->has_view ? (int32_t)view->members[view->rank].number : -1;
        worker->end.cause = (inspan_cause_t){.status = status, .rank = rank, .noticed_by = rank};
        memcpy(worker->end.cause.node, worker->welcome.node, sizeof worker->end.cause.node);
        snprintf(worker->end.cause.text, sizeof worker->end.cause.text, "%s", text);
    }
    send_end(worker);
}

/* ---- Receiving (I/O thread, mutex held) ------------------------------------------------------ */

/* An agent that was restarted, or lost the connection, knows nothing of what was said before. */
static void say_again(inspan_worker_t *worker)
{
    if (worker->bound) session_send_bound(worker);
    if (worker->ready != 0) session_send_ready(worker);
    if (worker->full_told) session_send_state(worker);
    if (worker->has_blame) session_send_blame(worker);
    if (worker->left_view != 0) session_send_left(worker);
    outbox_say_again(worker);
    if (worker->end_type != 0) send_end(worker);
}

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
    if (again) say_again(worker);
}

static void on_view(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    local_view_t view;
    inspan_status_t status = local_decode_view(body, n, &view);
    if (status != INSPAN_OK)
        error_set(&worker->refusal, status, "the agent sent a view that cannot be right");
    else
        views_announced(worker, &view);
}

/* The step is given up. */
static void on_stop(inspan_worker_t *worker)
{
    const local_view_t *view = &worker->open;
    atomic_store(&worker->cancelled, true);
    atomic_store(&worker->view_changed, true);
    views_wake(worker);
    inspan_cause_t cause = {.status = INSPAN_ABORTED, .rank = -1, .noticed_by = -1, .operation = "stop"};
    if (view->members != NULL) cause.rank = cause.noticed_by = (int32_t)view->rank;
    snprintf(cause.node, sizeof cause.node, "%s", worker->welcome.node);
    snprintf(cause.text, sizeof cause.text, "rank %d (node %s) was stopped by its agent",
             view->members != NULL ? (int)view->members[view->rank].number : -1, cause.node);
    views_disturb(worker, &cause);
}

static void on_bye(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    if (local_decode_end(body, n, &worker->received) != INSPAN_OK) worker->received.status = INSPAN_CORRUPT;
    worker->bye = true;
    if (!worker->welcomed && worker->received.status != INSPAN_OK)
        error_set(&worker->refusal, worker->received.status, "%.480s", worker->received.text);
    else if (worker->end_type == 0)
        on_stop(worker); /* not wanted any more */
}

/* A rank that the view does not know would make the others call this one a liar: views_dense. */
static void on_lost(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    if (local_decode_end(body, n, &worker->received) != INSPAN_OK) return;
    inspan_cause_t cause = worker->received.cause;
    cause.rank = views_dense(&worker->open, cause.rank);
    cause.noticed_by = views_dense(&worker->open, cause.noticed_by);
    views_disturb(worker, &cause);
}

static void on_registered(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    local_registered_t registered;
    if (local_decode_registered(body, n, &registered) == INSPAN_OK) outbox_registered(worker, &registered);
}

/* Whoever computes is woken where its owner gives more or less from now on. */
static void on_vitals(inspan_worker_t *worker, const uint8_t *body, size_t n)
{
    local_vitals_t vitals;
    if (local_decode_vitals(body, n, &vitals) != INSPAN_OK) return;
    const bool news = !worker->has_vitals || vitals.allowed != worker->vitals.allowed;
    worker->vitals = vitals;
    worker->has_vitals = true;
    if (news) views_wake(worker);
}

static void take_frame(inspan_worker_t *worker, local_frame_type_t type, const uint8_t *body, size_t n)
{
    pthread_mutex_lock(&worker->mutex);
    switch (type) {
    case LOCAL_WELCOME: on_welcome(worker, body, n); break;
    case LOCAL_VIEW: on_view(worker, body, n); break;
    case LOCAL_STOP: on_stop(worker); break;
    case LOCAL_LEAVE:
        atomic_store(&worker->leaving, true);
        views_wake(worker);
        break;
    case LOCAL_LOST: on_lost(worker, body, n); break;
    case LOCAL_REGISTERED: on_registered(worker, body, n); break;
    case LOCAL_VITALS: on_vitals(worker, body, n); break;
    case LOCAL_BYE: on_bye(worker, body, n); break;
    default: break; /* of a later minor version */
    }
    os_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

static void drop_connection(inspan_worker_t *worker)
{
    pthread_mutex_lock(&worker->mutex);
    int fd = worker->fd;
    bool closing = worker->closing;
    if (!closing) {
        worker->fd = -1;
        worker->out_used = 0;
        if (worker->lost_at == 0) worker->lost_at = os_now(); /* else: not WELCOME since */
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
        take_frame(worker, type, body, n);
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
        outbox_send(worker);
        want_writable(worker);
        os_cond_broadcast(&worker->changed);
        pthread_mutex_unlock(&worker->mutex);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t got =
        recv(worker->fd, worker->in + worker->in_used, SESSION_BUFFER - worker->in_used, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) worker->in_used += (size_t)got;
    if (got <= 0 || !take_frames(worker)) drop_connection(worker);
}

/* ---- Connecting, ticking (I/O thread; the first connect: the user's) ------------------------- */

int session_connect(const char *path)
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
bool session_adopt(inspan_worker_t *worker, int fd)
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

/*
 * The agent gives a worker its output as a named pipe, open for both ways so that it outlives the agent
 * (src/agent/adopt.c). With nobody to come and read it, a thread that prints must not stand still for ever:
 * what is in it goes, and a full one refuses from now on.
 */
static void let_go_of_output(void)
{
    char discarded[4096];
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat info;
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || (flags & O_ACCMODE) != O_RDWR || fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode))
            continue;
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
        while (read(fd, discarded, sizeof discarded) > 0) {
        }
    }
}

static void agent_is_gone(inspan_worker_t *worker, ns_t silent)
{
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = -1, .noticed_by = -1, .waited_ns = silent};
    pthread_mutex_lock(&worker->mutex);
    worker->agent_gone = true;
    if (worker->open.members != NULL) cause.rank = cause.noticed_by = (int32_t)worker->open.rank;
    snprintf(cause.node, sizeof cause.node, "%s", worker->welcome.node);
    snprintf(cause.operation, sizeof cause.operation, "connection to the agent");
    snprintf(cause.text, sizeof cause.text, "agent of node %s is gone: its socket closed %.1f s ago",
             cause.node, ns_to_s(silent));
    if (!worker->has_lost) {
        worker->lost = cause;
        views_to_numbers(&worker->open, &worker->lost);
    }
    worker->has_lost = true;
    atomic_store(&worker->cancelled, true);
    atomic_store(&worker->view_changed, true);
    views_disturb(worker, &cause);
    os_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    let_go_of_output();
    log_error("%s", cause.text);
}

void session_on_timer(void *context, ns_t now)
{
    inspan_worker_t *worker = context;
    pthread_mutex_lock(&worker->mutex);
    bool connected = worker->fd >= 0, gone = worker->agent_gone;
    ns_t timeout = worker->welcome.failure_timeout, lost_at = worker->lost_at;
    if (connected && worker->welcomed && lost_at == 0 &&
        (worker->progress_changed || now - worker->ticked_at >= timeout / 5 - NS_PER_MS))
        session_send_tick(worker, now);
    outbox_send(worker);
    bool welcomed = worker->welcomed;
    pthread_mutex_unlock(&worker->mutex);
    if (gone || lost_at == 0) return;
    if (welcomed && now - lost_at > timeout) {
        agent_is_gone(worker, now - lost_at);
        return;
    }
    int fd = connected ? -1 : session_connect(worker->path);
    if (fd >= 0) session_adopt(worker, fd);
}
