/*
 * Opening: connect every pair of ranks in both directions, prove membership, carry a probe of 64 KiB each way
 * over each connection, keep the one that the lower rank made, agree that everybody is ready. One thread, one
 * poll loop.
 *
 *   outgoing  CONNECT -> HELLO out, WELCOME in -> PROOF and probe out -> RESULT and probe in -> DONE
 *   incoming  HELLO in -> WELCOME out -> PROOF in -> probe in -> RESULT and probe out -> DONE
 *             HELLO in, wrong -> REFUSE: WELCOME with the reason out, closed
 *   kept      DONE -> READY out when all of this rank's are DONE; READY (or ABORT with a cause) in
 *
 * Strangers. Before its PROOF is verified an incoming connection has a fixed slot and 2 s; there are at most
 * TCP_MAX_UNPROVEN of them, and the oldest gives way to a new one. A member that was pushed out so tries
 * again. Nothing that a stranger sends changes anything but its own slot.
 *
 * What is final and what is tried again until failure_timeout: a member that opens later than we (its backlog
 * takes the connection), that has another view of the job, or whose connection was pushed out, is tried
 * again. A refusal for any other reason is final. A closed port is tried for up to a second: members listen
 * before anybody is told of them.
 *
 * Views. Members hear of a new one at different moments; one that is still busy opening the view before is
 * told by options->cancel and gives up at once, so its peers try again with pauses that begin at 2 ms.
 * Connections of older views that wait at the listener are refused and change nothing.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/transport/tcp_opening.h"
#include "platform/os/os_time.h"

/* ---- Failing --------------------------------------------------------------------------------- */

const char *tcp_opening_name(const tcp_opening_t *o, uint32_t rank, char text[160])
{
    const inspan_member_t *member = &o->options->members[rank];
    const bool v6 = strchr(member->address, ':') != NULL;
    snprintf(text, 160, "rank %u (node %s, %s%s%s:%u)", member->number, member->node, v6 ? "[" : "",
             member->address, v6 ? "]" : "", member->port);
    return text;
}

void tcp_opening_fail(tcp_opening_t *o, uint32_t peer, inspan_status_t status, const char *format, ...)
{
    if (o->status != INSPAN_OK) return;
    va_list args;
    va_start(args, format);
    o->status = status;
    o->error.status = status;
    vsnprintf(o->error.text, sizeof o->error.text, format, args);
    va_end(args);
    const inspan_member_t *member = &o->options->members[peer];
    inspan_cause_t *cause = &o->cause;
    *cause = (inspan_cause_t){.status = status,
                              .rank = (int32_t)peer,
                              .noticed_by = (int32_t)o->options->rank,
                              .waited_ns = os_now() - o->begin};
    snprintf(cause->node, sizeof cause->node, "%s", member->node);
    snprintf(cause->address, sizeof cause->address, "%.50s:%u", member->address, member->port);
    snprintf(cause->operation, sizeof cause->operation, "connect");
    snprintf(cause->text, sizeof cause->text, "%.255s", o->error.text);
}

void tcp_link_close(tcp_link_t *link)
{
    if (link->fd >= 0) close(link->fd);
    link->fd = -1;
    link->state = LINK_FREE;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static uint8_t probe[DATA_PROBE_BYTES]; /* zeros; only its length matters */

void tcp_link_expect(tcp_link_t *link, uint32_t bytes, uint32_t probe_bytes)
{
    link->in_at = 0;
    link->in_end = bytes;
    link->probe_in = probe_bytes;
}

void tcp_link_say(tcp_link_t *link, const uint8_t *bytes, uint32_t n, uint32_t probe_bytes)
{
    memcpy(link->out, bytes, n);
    link->out_at = 0;
    link->out_end = n;
    link->probe_out = probe_bytes;
}

static bool link_wants_out(const tcp_link_t *link)
{
    return link->out_at < link->out_end || link->probe_out > 0;
}

static bool link_wants_in(const tcp_link_t *link)
{
    return link->in_at < link->in_end || link->probe_in > 0;
}

static void read_ready(tcp_opening_t *o, tcp_link_t *link);

static void link_broken(tcp_opening_t *o, tcp_link_t *link)
{
    char who[160];
    if (link->state == LINK_DONE) { /* checked already: the peer would refuse a second one */
        read_ready(o, link);        /* perhaps it said why */
        tcp_opening_fail(o, link->peer, INSPAN_PEER_LOST,
                         "%s closed its connection while all were connecting",
                         tcp_opening_name(o, link->peer, who));
    } else if (link->outgoing)
        tcp_outgoing_again(
            link, "closes the connection: something else may listen there, or too many connect to it");
    else
        tcp_link_close(link);
}

static void link_send(tcp_opening_t *o, tcp_link_t *link)
{
    while (link->fd >= 0 && link_wants_out(link)) {
        const bool head = link->out_at < link->out_end;
        const ssize_t sent =
            send(link->fd, head ? link->out + link->out_at : probe,
                 head ? link->out_end - link->out_at : link->probe_out, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (sent < 0) {
            if (link->state == LINK_PROOF && link->outgoing) { /* perhaps it said why before it closed */
                link->out_at = link->out_end = link->probe_out = 0;
                return;
            }
            link_broken(o, link);
            return;
        }
        if (head)
            link->out_at += (uint32_t)sent;
        else
            link->probe_out -= (uint32_t)sent;
    }
    if (!link->outgoing && link->fd >= 0) tcp_incoming_sent(link);
}

static void link_receive(tcp_opening_t *o, tcp_link_t *link)
{
    static _Thread_local uint8_t sink[16384];
    while (link->fd >= 0 && link_wants_in(link)) {
        const bool head = link->in_at < link->in_end;
        const size_t room = link->probe_in < sizeof sink ? link->probe_in : sizeof sink;
        const ssize_t got = recv(link->fd, head ? link->in + link->in_at : sink,
                                 head ? link->in_end - link->in_at : room, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (got <= 0) {
            link_broken(o, link);
            return;
        }
        if (head)
            link->in_at += (uint32_t)got;
        else
            link->probe_in -= (uint32_t)got;
        if (link_wants_in(link)) continue;
        if (link->outgoing)
            tcp_outgoing_received(o, link);
        else
            tcp_incoming_received(o, link);
        if (o->status != INSPAN_OK) return;
    }
}

/* ---- Readiness ------------------------------------------------------------------------------- */

static tcp_link_t *kept(tcp_opening_t *o, uint32_t peer)
{
    return peer > o->options->rank ? &o->outgoing[peer] : &o->members[peer];
}

static bool pair_checked(const tcp_opening_t *o, uint32_t peer)
{
    return o->outgoing[peer].state == LINK_DONE && o->members[peer].state == LINK_DONE;
}

static bool all_checked(const tcp_opening_t *o)
{
    for (uint32_t peer = 0; peer < o->options->world; peer++)
        if (peer != o->options->rank && !pair_checked(o, peer)) return false;
    return true;
}

static bool all_ready(tcp_opening_t *o)
{
    for (uint32_t peer = 0; peer < o->options->world; peer++)
        if (peer != o->options->rank && !(kept(o, peer)->ready && kept(o, peer)->ready_sent)) return false;
    return true;
}

static void say_ready(tcp_opening_t *o)
{
    const data_frame_t frame = {.type = DATA_READY};
    for (uint32_t peer = 0; peer < o->options->world; peer++) {
        tcp_link_t *link = kept(o, peer);
        if (peer == o->options->rank || link->ready_sent) continue;
        uint8_t bytes[DATA_HEADER_BYTES];
        data_encode_frame(&frame, bytes);
        tcp_link_say(link, bytes, sizeof bytes, 0);
        link->ready_sent = true;
    }
}

/* The peer gives up and says why: the others, and whoever asks this rank, hear its cause, not that of ours.
 */
static void read_farewell(tcp_opening_t *o, tcp_link_t *link, uint32_t length)
{
    char who[160];
    inspan_cause_t cause;
    if (data_decode_cause(link->frame + DATA_HEADER_BYTES, length, &cause) != INSPAN_OK ||
        cause.status == INSPAN_OK || cause.rank >= (int32_t)o->options->world) {
        tcp_opening_fail(o, link->peer, INSPAN_CORRUPT, "%s sent a cause that cannot be",
                         tcp_opening_name(o, link->peer, who));
        return;
    }
    tcp_opening_fail(o, link->peer, cause.status, "%s could not open: %s",
                     tcp_opening_name(o, link->peer, who), cause.text);
    o->cause = cause;
}

/* A kept connection after its probes: exactly one frame is read from it, what follows belongs to the
 * communicator. */
static void read_ready(tcp_opening_t *o, tcp_link_t *link)
{
    char who[160];
    while (!link->ready) {
        data_frame_t frame = {.length = 0};
        if (link->frame_at >= DATA_HEADER_BYTES && (data_decode_frame(link->frame, &frame) != INSPAN_OK ||
                                                    (frame.type != DATA_READY && frame.type != DATA_ABORT))) {
            tcp_opening_fail(o, link->peer, INSPAN_CORRUPT, "%s sent bytes that are no frame",
                             tcp_opening_name(o, link->peer, who));
            return;
        }
        const uint32_t wanted = DATA_HEADER_BYTES + frame.length;
        if (link->frame_at == wanted) {
            link->ready = frame.type == DATA_READY;
            if (!link->ready) read_farewell(o, link, frame.length);
            return;
        }
        const ssize_t got =
            recv(link->fd, link->frame + link->frame_at, wanted - link->frame_at, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (got <= 0) {
            tcp_opening_fail(o, link->peer, INSPAN_PEER_LOST,
                             "%s closed its connection while all were connecting",
                             tcp_opening_name(o, link->peer, who));
            return;
        }
        link->frame_at += (uint32_t)got;
    }
}

/* ---- The loop -------------------------------------------------------------------------------- */

static short link_events(tcp_opening_t *o, const tcp_link_t *link)
{
    switch (link->state) {
    case LINK_FREE:
    case LINK_PAUSE: return 0;
    case LINK_CONNECT: return POLLOUT;
    case LINK_DONE:
        if (link->fd < 0 || link != kept(o, link->peer)) return 0;
        return (short)((link_wants_out(link) ? POLLOUT : 0) | (link->ready ? 0 : POLLIN));
    default: return (short)((link_wants_out(link) ? POLLOUT : 0) | (link_wants_in(link) ? POLLIN : 0));
    }
}

static void link_event(tcp_opening_t *o, tcp_link_t *link, short events)
{
    if (link->state == LINK_CONNECT) {
        tcp_outgoing_connected(o, link);
        if (o->status == INSPAN_OK && link->state == LINK_HELLO) link_send(o, link);
        return;
    }
    if ((events & POLLOUT) && link->fd >= 0) link_send(o, link);
    if (!(events & (POLLIN | POLLHUP | POLLERR)) || link->fd < 0 || o->status != INSPAN_OK) return;
    if (link->state == LINK_DONE)
        read_ready(o, link);
    else
        link_receive(o, link);
}

/* This rank's connection to the peer is not checked, and its time is over. */
static void fail_outgoing(tcp_opening_t *o, uint32_t peer, ns_t now)
{
    char who[160];
    const tcp_link_t *link = &o->outgoing[peer];
    const uint32_t rank = tcp_opening_number(o);
    const double waited = ns_to_s(now - o->begin);
    tcp_opening_name(o, peer, who);
    if (!link->connected)
        tcp_opening_fail(o, peer, INSPAN_UNREACHABLE,
                         "rank %u cannot connect to %s: no answer in %.1f s; the machine is off, or a "
                         "firewall drops this port (allow the data ports in both directions)",
                         rank, who, waited);
    else if (link->state >= LINK_PROOF)
        tcp_opening_fail(o, peer, INSPAN_TIMEOUT,
                         "rank %u is connected to %s, but its 64 KiB did not get through in %.1f s: large "
                         "packets may be lost on the way (check the MTU of both machines)",
                         rank, who, waited);
    else
        tcp_opening_fail(o, peer, INSPAN_TIMEOUT, "rank %u reached %s, but it did not answer in %.1f s%s%s",
                         rank, who, waited, link->why[0] != 0 ? ": " : " (stopped, or busy)", link->why);
}

/* The same of the peer's connection to this rank. */
static void fail_incoming(tcp_opening_t *o, uint32_t peer, ns_t now)
{
    char who[160];
    const inspan_member_t *own = &o->options->members[o->options->rank];
    tcp_opening_fail(o, peer, INSPAN_UNREACHABLE,
                     "%s did not connect to rank %u (%s:%u) in %.1f s, though the other direction works: a "
                     "firewall may drop this port",
                     tcp_opening_name(o, peer, who), own->number, own->address, own->port,
                     ns_to_s(now - o->begin));
}

/* Deadlines; the time until the next one. */
static ns_t check_times(tcp_opening_t *o)
{
    const ns_t now = os_now();
    const uint32_t world = o->options->world, rank = o->options->rank;
    const bool late = now >= o->connect_until;
    ns_t next = o->ready_until;
    char who[160];
    for (uint32_t i = 0; i < TCP_MAX_UNPROVEN; i++) {
        tcp_link_t *link = &o->unproven[i];
        if (link->state == LINK_FREE) continue;
        if (link->due <= now) tcp_link_close(link);
        if (link->state != LINK_FREE && link->due < next) next = link->due;
    }
    for (uint32_t peer = 0; peer < world && o->status == INSPAN_OK; peer++) {
        tcp_link_t *link = &o->outgoing[peer];
        if (peer == rank) continue;
        if (link->state == LINK_PAUSE && link->due <= now) tcp_outgoing_begin(o, link);
        if (link->state == LINK_PAUSE && link->due < next) next = link->due;
        if (late && link->state != LINK_DONE) fail_outgoing(o, peer, now);
    }
    for (uint32_t peer = 0; late && peer < world; peer++)
        if (peer != rank && o->members[peer].state != LINK_DONE) fail_incoming(o, peer, now);
    for (uint32_t peer = 0; now >= o->ready_until && peer < world; peer++)
        if (peer != rank && !kept(o, peer)->ready)
            tcp_opening_fail(o, peer, INSPAN_TIMEOUT, "%s did not become ready in %.1f s",
                             tcp_opening_name(o, peer, who), ns_to_s(now - o->begin));
    if (!all_checked(o) && o->connect_until < next && o->connect_until > now) next = o->connect_until;
    return next > now ? next - now : 0;
}

/* This process does not want the communicator any more: nobody's fault. */
static void fail_cancelled(tcp_opening_t *o)
{
    if (o->status != INSPAN_OK) return;
    tcp_opening_fail(o, o->options->rank, INSPAN_ABORTED,
                     "rank %u gave up opening view %llu: it was stopped, or a newer view is there",
                     tcp_opening_number(o), (unsigned long long)o->options->view);
    o->cause.rank = -1;
}

static void open_loop(tcp_opening_t *o, struct pollfd *fds, tcp_link_t **links)
{
    const uint32_t world = o->options->world;
    while (o->status == INSPAN_OK && !(all_ready(o))) {
        if (all_checked(o)) {
            say_ready(o);
            o->connect_until = INT64_MAX; /* checked: from now on only readiness is waited for */
        }
        const ns_t wait = check_times(o);
        if (o->status != INSPAN_OK) return;
        nfds_t n = 0;
        fds[n] = (struct pollfd){.fd = o->options->listener->fd, .events = POLLIN};
        links[n++] = NULL;
        fds[n] =
            (struct pollfd){.fd = o->options->cancel != NULL ? *o->options->cancel : -1, .events = POLLIN};
        links[n++] = NULL;
        tcp_link_t *const groups[] = {o->outgoing, o->members, o->unproven};
        for (int g = 0; g < 3; g++)
            for (uint32_t i = 0; i < (g == 2 ? TCP_MAX_UNPROVEN : world); i++) {
                tcp_link_t *link = groups[g] + i;
                const short events = link_events(o, link);
                if (events == 0) continue;
                fds[n] = (struct pollfd){.fd = link->fd, .events = events};
                links[n++] = link;
            }
        if (poll(fds, n, (int)((wait + NS_PER_MS - 1) / NS_PER_MS)) <= 0) continue;
        if (fds[1].revents != 0) fail_cancelled(o);
        for (nfds_t i = 2; i < n && o->status == INSPAN_OK; i++)
            if (fds[i].revents != 0 && links[i]->fd == fds[i].fd) link_event(o, links[i], fds[i].revents);
        if (fds[0].revents != 0 && o->status == INSPAN_OK) tcp_incoming_accept(o);
    }
    for (uint32_t peer = 0; peer < world && o->status == INSPAN_OK; peer++) {
        tcp_link_t *link = kept(o, peer);
        if (peer == o->options->rank || !link_wants_out(link)) continue;
        link_send(o, link); /* READY is 32 bytes and the socket empty */
        if (link_wants_out(link))
            tcp_opening_fail(o, peer, INSPAN_PEER_LOST,
                             "the connection to rank %u broke while all were connecting",
                             o->options->members[peer].number);
    }
}

void tcp_say_farewell(int fd, const inspan_cause_t *cause)
{
    uint8_t bytes[DATA_HEADER_BYTES + DATA_CAUSE_MAX];
    const uint32_t n = (uint32_t)data_encode_cause(cause, bytes + DATA_HEADER_BYTES);
    const data_frame_t frame = {.type = DATA_ABORT, .length = n};
    data_encode_frame(&frame, bytes);
    (void)send(fd, bytes, DATA_HEADER_BYTES + n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
}

/* Tell those that are connected why this rank gives up, as far as it goes out at once. */
static void say_farewell(tcp_opening_t *o)
{
    for (uint32_t peer = 0; peer < o->options->world; peer++) {
        tcp_link_t *link = kept(o, peer);
        if (peer == o->options->rank || link->state != LINK_DONE || link->fd < 0) continue;
        if (link_wants_out(link)) link_send(o, link); /* a READY half said; then the cause follows it */
        if (!link_wants_out(link))
            tcp_say_farewell(link->fd, &o->cause);
        else
            shutdown(link->fd, SHUT_WR);
    }
}

static bool opening_allocate(tcp_opening_t *o, struct pollfd **fds, tcp_link_t ***links)
{
    const size_t world = o->options->world, most = 2 * world + TCP_MAX_UNPROVEN + 2;
    o->outgoing = calloc(world, sizeof *o->outgoing);
    o->members = calloc(world, sizeof *o->members);
    o->unproven = calloc(TCP_MAX_UNPROVEN, sizeof *o->unproven);
    *fds = calloc(most, sizeof **fds);
    *links = calloc(most, sizeof **links);
    if (!o->outgoing || !o->members || !o->unproven || !*fds || !*links) return false;
    for (uint32_t peer = 0; peer < world; peer++) {
        o->outgoing[peer] = (tcp_link_t){.fd = -1, .outgoing = true, .peer = peer, .begun = o->begin};
        o->members[peer] = (tcp_link_t){.fd = -1, .peer = peer};
        if (peer != o->options->rank) o->outgoing[peer].state = LINK_PAUSE;
    }
    for (uint32_t i = 0; i < TCP_MAX_UNPROVEN; i++) o->unproven[i].fd = -1;
    return true;
}

inspan_status_t tcp_connect_all(const comm_options_t *options, int *fds, int *others, inspan_error_t *err)
{
    struct pollfd *polls = NULL;
    tcp_link_t **links = NULL;
    tcp_opening_t o = {.options = options, .keep_both = others != NULL, .begin = os_now()};
    o.connect_until = o.begin + options->failure_timeout;
    o.ready_until = o.begin + 2 * options->failure_timeout;
    if (opening_allocate(&o, &polls, &links))
        open_loop(&o, polls, links);
    else
        tcp_opening_fail(&o, options->rank, INSPAN_NO_MEMORY, "no memory for the connections of %u ranks",
                         options->world);
    if (o.status != INSPAN_OK && o.outgoing != NULL && o.members != NULL) say_farewell(&o);
    for (uint32_t peer = 0; peer < options->world && o.outgoing != NULL && o.members != NULL; peer++) {
        tcp_link_t *keep = o.status == INSPAN_OK && peer != options->rank ? kept(&o, peer) : NULL;
        tcp_link_t *other = keep == NULL                ? NULL
                            : keep == &o.outgoing[peer] ? &o.members[peer]
                                                        : &o.outgoing[peer];
        fds[peer] = keep != NULL ? keep->fd : -1;
        if (others != NULL) others[peer] = other != NULL ? other->fd : -1;
        if (keep != NULL) keep->fd = -1;
        if (other != NULL && others != NULL) other->fd = -1;
        tcp_link_close(&o.outgoing[peer]);
        tcp_link_close(&o.members[peer]);
    }
    for (uint32_t i = 0; i < TCP_MAX_UNPROVEN && o.unproven != NULL; i++) tcp_link_close(&o.unproven[i]);
    free(o.outgoing);
    free(o.members);
    free(o.unproven);
    free(polls);
    free(links);
    if (o.status != INSPAN_OK && err != NULL) *err = o.error;
    if (o.status != INSPAN_OK && options->cause != NULL) *options->cause = o.cause;
    return o.status;
}
