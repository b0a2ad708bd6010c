/*
 * The tcp transport: one socket per pair, on the I/O thread's epoll. How the sockets come to be is in
 * tcp_open.c; what is tuned on them and why, in os_socket.h.
 */
#include "comm/transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/backends/engine.h"
#include "comm/io.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"

typedef struct tcp tcp_t;

typedef struct tcp_peer {
    tcp_t *tcp;
    uint32_t peer;
    int fd;
    bool wants, armed; /* to write: wanted, and asked of epoll */
} tcp_peer_t;

struct tcp {
    comm_io_t *io;
    inspan_comm_t *comm;
    int wake;
    uint32_t world;
    uint32_t tick, once; /* timers; 0: none */
    ns_t once_due;
    bool started;
    tcp_peer_t *peers; /* (world) */
};

static ssize_t tcp_send(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    tcp_t *tcp = self;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};
    for (;;) {
        const ssize_t sent = sendmsg(tcp->peers[peer].fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) return sent;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return 0;
        if (errno != EINTR) return -1;
    }
}

static ssize_t tcp_receive(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    tcp_t *tcp = self;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};
    for (;;) {
        const ssize_t got = recvmsg(tcp->peers[peer].fd, &message, MSG_DONTWAIT);
        if (got > 0) return got;
        if (got == 0) errno = 0;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (errno != EINTR) return -1;
    }
}

static void arm(tcp_peer_t *peer)
{
    if (peer->wants == peer->armed || peer->fd < 0) return;
    peer->armed = peer->wants;
    (void)comm_io_modify(peer->tcp->io, peer->fd, peer->armed ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void tcp_want_write(void *self, uint32_t peer, bool on)
{
    tcp_t *tcp = self;
    tcp->peers[peer].wants = on;
    if (on) arm(&tcp->peers[peer]);
}

static bool tcp_drained(void *self, uint32_t peer)
{
    tcp_t *tcp = self;
    return os_socket_unacked(tcp->peers[peer].fd) == 0;
}

static ns_t tcp_latency(void *self, uint32_t peer)
{
    return os_socket_latency(((tcp_t *)self)->peers[peer].fd);
}

static void tcp_drop(void *self, uint32_t peer)
{
    tcp_t *tcp = self;
    tcp_peer_t *p = &tcp->peers[peer];
    if (p->fd < 0) return;
    comm_io_remove(tcp->io, p->fd);
    close(p->fd);
    p->fd = -1;
}

static void on_socket(void *context, uint32_t events)
{
    tcp_peer_t *peer = context;
    inspan_comm_t *comm = peer->tcp->comm;
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) exec_readable(comm, peer->peer);
    if ((events & EPOLLOUT) && peer->fd >= 0) {
        peer->wants = false;
        exec_writable(comm, peer->peer);
        arm(peer); /* only what is no longer wanted: a busy stream stays armed */
    }
}

static void on_tick(void *context, ns_t now)
{
    (void)now;
    exec_tick(((tcp_t *)context)->comm);
}

/* The rest is set up on the I/O thread itself, so that nothing of it runs before all is in place. */
static void tcp_start(tcp_t *tcp)
{
    inspan_comm_t *comm = tcp->comm;
    inspan_status_t status = INSPAN_OK;
    tcp->started = true;
    for (uint32_t peer = 0; peer < tcp->world && status == INSPAN_OK; peer++)
        if (tcp->peers[peer].fd >= 0)
            status = comm_io_add(tcp->io, tcp->peers[peer].fd, EPOLLIN, on_socket, &tcp->peers[peer]);
    if (status == INSPAN_OK) /* also of one rank: it makes up for a one-shot timer that was not to be had */
        status = comm_io_timer(tcp->io, comm->failure_timeout / 8, false, on_tick, tcp, &tcp->tick);
    if (status != INSPAN_OK)
        fail_peer(comm, comm->rank, status, "cannot watch the connections of %u ranks", tcp->world);
}

static void on_wake(void *context, uint32_t events)
{
    tcp_t *tcp = context;
    uint64_t count;
    (void)events;
    if (read(tcp->wake, &count, sizeof count) != sizeof count) return;
    if (!tcp->started) tcp_start(tcp);
    exec_wake(tcp->comm);
}

static void on_once(void *context, ns_t now)
{
    tcp_t *tcp = context;
    (void)now;
    tcp->once = 0;
    exec_tick(tcp->comm);
}

static void tcp_tick_in(void *self, ns_t after)
{
    tcp_t *tcp = self;
    const ns_t due = os_now() + after;
    if (tcp->once != 0 && tcp->once_due <= due) return;
    comm_io_timer_cancel(tcp->io, tcp->once);
    tcp->once = 0;
    tcp->once_due = due;
    (void)comm_io_timer(tcp->io, after > 0 ? after : 1, true, on_once, tcp, &tcp->once);
}

static ns_t tcp_now(void *self)
{
    (void)self;
    return os_now();
}

static void tcp_wake(void *self)
{
    tcp_t *tcp = self;
    const uint64_t one = 1;
    const ssize_t ignored = write(tcp->wake, &one, sizeof one); /* it cannot be full: wakes are sent once */
    (void)ignored;
}

static void tcp_spin(void *self, bool on)
{
    comm_io_spin(((tcp_t *)self)->io, on);
}

static ns_t tcp_cpu(void *self)
{
    return comm_io_cpu(((tcp_t *)self)->io);
}

static bool tcp_is_current(void *self)
{
    return comm_io_is_current(((tcp_t *)self)->io);
}

/* On the I/O thread: no callback of ours begins any more. */
static void tcp_stop(void *self)
{
    tcp_t *tcp = self;
    comm_io_remove(tcp->io, tcp->wake);
    comm_io_timer_cancel(tcp->io, tcp->tick);
    comm_io_timer_cancel(tcp->io, tcp->once);
    for (uint32_t peer = 0; peer < tcp->world; peer++) tcp_drop(tcp, peer);
}

static void tcp_close(void *self)
{
    tcp_t *tcp = self;
    comm_io_barrier(tcp->io); /* the callback that stopped us may still run */
    for (uint32_t peer = 0; peer < tcp->world; peer++)
        if (tcp->peers[peer].fd >= 0) close(tcp->peers[peer].fd);
    close(tcp->wake);
    free(tcp->peers);
    free(tcp);
}

static const comm_transport_t tcp_transport = {
    tcp_send, tcp_receive, tcp_want_write, tcp_drained,    tcp_drop, tcp_tick_in, tcp_now, tcp_wake,
    tcp_spin, tcp_cpu,     tcp_latency,    tcp_is_current, tcp_stop, tcp_close,   true};

static tcp_t *tcp_create(const comm_options_t *options)
{
    tcp_t *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL) return NULL;
    tcp->io = options->io;
    tcp->world = options->world;
    tcp->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->peers = calloc(options->world, sizeof *tcp->peers);
    if (tcp->wake < 0 || tcp->peers == NULL) {
        if (tcp->wake >= 0) close(tcp->wake);
        free(tcp->peers);
        free(tcp);
        return NULL;
    }
    for (uint32_t peer = 0; peer < options->world; peer++)
        tcp->peers[peer] = (tcp_peer_t){.tcp = tcp, .peer = peer, .fd = -1};
    return tcp;
}

/* All are connected: the second connection of each pair is the backend's. Who gives up says why. */
static inspan_status_t open_backend(const comm_options_t *options, const backend_t *backend,
                                    inspan_comm_t *comm, const int *kept, const int *sockets,
                                    inspan_error_t *err)
{
    inspan_error_t own = {.status = INSPAN_OK};
    inspan_cause_t cause = {.status = INSPAN_OK};
    inspan_status_t status = backend_agree(options, backend, kept, sockets, &cause, &own);
    if (status == INSPAN_OK) {
        status = engine_open(comm, backend, options->members[options->rank].address, sockets, &own);
        if (status != INSPAN_OK) comm_own_cause(comm, &cause, "connect", own.text);
        if (status != INSPAN_OK) cause.status = status;
    }
    if (status == INSPAN_OK) return INSPAN_OK;
    for (uint32_t peer = 0; peer < options->world; peer++)
        if (kept[peer] >= 0) tcp_say_farewell(kept[peer], &cause);
    if (err != NULL) *err = own;
    if (options->cause != NULL) *options->cause = cause;
    return status;
}

/* Connections for the communicator and, where it has a backend of its own, for that one. */
static inspan_status_t connect_all(const comm_options_t *options, tcp_t *tcp, inspan_comm_t *comm,
                                   inspan_error_t *err)
{
    const backend_t *backend = backend_find(options->backend);
    const uint32_t world = options->world;
    const bool two = backend->create != NULL && world > 1;
    int *fds = calloc(world, sizeof *fds), *others = calloc(world, sizeof *others);
    inspan_status_t status = INSPAN_OK;
    if (fds == NULL || others == NULL)
        status = error_set(err, INSPAN_NO_MEMORY, "no memory for the connections of %u ranks", world);
    if (status == INSPAN_OK && world > 1) {
        status = tcp_connect_all(options, fds, two ? others : NULL, err);
        for (uint32_t peer = 0; peer < world && status == INSPAN_OK; peer++) tcp->peers[peer].fd = fds[peer];
        if (status == INSPAN_OK && two) {
            status = open_backend(options, backend, comm, fds, others, err);
            for (uint32_t peer = 0; peer < world; peer++)
                if (others[peer] >= 0) close(others[peer]);
        }
    }
    for (uint32_t peer = 0; peer < world; peer++)
        comm->peers[peer].heard = comm->peers[peer].tx.last = os_now();
    free(fds);
    free(others);
    return status;
}

inspan_status_t comm_open(const comm_options_t *options, inspan_comm_t **out, inspan_error_t *err)
{
    inspan_status_t status = comm_check_options(options, err);
    if (status != INSPAN_OK) return status;
    if (options->io == NULL || (options->world > 1 && options->listener == NULL))
        return error_set(err, INSPAN_INVALID,
                         "a communicator needs an I/O thread and, of several ranks, a listener");
    tcp_t *tcp = tcp_create(options);
    inspan_comm_t *comm = NULL;
    if (tcp == NULL)
        status = error_set(err, INSPAN_NO_MEMORY, "no memory or descriptors for the connections of %u ranks",
                           options->world);
    /* Everything that can fail for lack of memory comes first: afterwards others rely on this rank. */
    if (status == INSPAN_OK) status = comm_create(options, &tcp_transport, tcp, &comm, err);
    if (status == INSPAN_OK) status = connect_all(options, tcp, comm, err);
    if (status == INSPAN_OK) {
        tcp->comm = comm;
        status = comm_io_add(tcp->io, tcp->wake, EPOLLIN, on_wake, tcp);
        if (status != INSPAN_OK)
            error_set(err, status, "cannot watch the connections of %u ranks", options->world);
    }
    if (status != INSPAN_OK) {
        if (comm != NULL) comm_free(comm);
        if (tcp != NULL) tcp_close(tcp);
        return status;
    }
    comm_wake(comm);
    *out = comm;
    return INSPAN_OK;
}

/* ---- Listening ------------------------------------------------------------------------------- */

inspan_status_t comm_listen(uint16_t first_port, uint16_t last_port, comm_listener_t **out, uint16_t *port,
                            inspan_error_t *err)
{
    comm_listener_t *listener = calloc(1, sizeof *listener);
    if (listener == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the data port");
    const inspan_status_t status =
        os_listen(first_port, last_port, 1024, &listener->fd, &listener->port, err);
    if (status != INSPAN_OK) {
        free(listener);
        error_prefix(err, "data port");
        return status;
    }
    *port = listener->port;
    *out = listener;
    return INSPAN_OK;
}

void comm_listener_close(comm_listener_t *listener)
{
    if (listener == NULL) return;
    close(listener->fd);
    free(listener);
}
