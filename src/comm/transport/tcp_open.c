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
 * MAX_UNPROVEN of them, and the oldest gives way to a new one. A member that was pushed out so tries again.
 * Nothing that a stranger sends changes anything but its own slot.
 *
 * What is final and what is tried again until failure_timeout: a member that opens later than we (its backlog
 * takes the connection), that still has the view before ours, or whose connection was pushed out, is tried
 * again. A refusal for any other reason is final. A closed port is tried for up to a second: members listen
 * before anybody is told of them.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/transport/tcp.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/auth.h"

#define MAX_UNPROVEN  64
#define STRANGER_TIME (2 * NS_PER_S)
#define REFUSED_TIME  NS_PER_S
#define RETRY_PAUSE   (50 * NS_PER_MS)

typedef enum link_state {
    LINK_FREE,
    LINK_PAUSE,   /* outgoing: until `due`, then connect again */
    LINK_CONNECT, /* outgoing: TCP handshake */
    LINK_HELLO,   /* outgoing: HELLO out, WELCOME in. incoming: HELLO in */
    LINK_WELCOME, /* incoming: WELCOME out */
    LINK_PROOF,   /* outgoing: PROOF and probe out, RESULT in. incoming: PROOF in */
    LINK_PROBE,   /* the other side's probe in */
    LINK_RESULT,  /* incoming: RESULT and probe out */
    LINK_REFUSE,  /* incoming: the reason out, then closed */
    LINK_DONE
} link_state_t;

typedef struct link {
    int fd;
    link_state_t state;
    bool outgoing, connected; /* connected: TCP answered at least once */
    uint32_t peer;
    ns_t due;   /* PAUSE: try again; unproven incoming: closed then */
    ns_t begun; /* first try, or accepted */
    uint8_t hello[DATA_HELLO_BYTES], welcome[DATA_WELCOME_BYTES];
    uint8_t out[DATA_WELCOME_BYTES]; /* bytes to send, then probe_out of the probe */
    uint32_t out_at, out_end, probe_out;
    uint8_t in[DATA_WELCOME_BYTES]; /* bytes awaited, then probe_in of the probe */
    uint32_t in_at, in_end, probe_in;
    bool ready_sent, ready;
    uint8_t frame[DATA_HEADER_BYTES + DATA_CAUSE_MAX]; /* kept ones, once DONE */
    uint32_t frame_at;
    char why[160]; /* why the last try failed */
} link_t;

typedef struct opening {
    const comm_options_t *options;
    link_t *outgoing; /* (world) */
    link_t *members;  /* (world) incoming, proven */
    link_t *unproven; /* (MAX_UNPROVEN) incoming */
    ns_t begin, connect_until, ready_until;
    inspan_status_t status; /* the first failure */
    inspan_error_t error;
    inspan_cause_t cause; /* of it, for the others */
} opening_t;

static uint8_t probe[DATA_PROBE_BYTES]; /* zeros; only its length matters */

/* ---- Failing --------------------------------------------------------------------------------- */

static const char *name(const opening_t *o, uint32_t rank, char text[160])
{
    const inspan_member_t *member = &o->options->members[rank];
    const bool v6 = strchr(member->address, ':') != NULL;
    snprintf(text, 160, "rank %u (node %s, %s%s%s:%u)", rank, member->node, v6 ? "[" : "", member->address,
             v6 ? "]" : "", member->port);
    return text;
}

static void fail(opening_t *o, uint32_t peer, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void fail(opening_t *o, uint32_t peer, inspan_status_t status, const char *format, ...)
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

static void link_close(link_t *link)
{
    if (link->fd >= 0) close(link->fd);
    link->fd = -1;
    link->state = LINK_FREE;
}

/* ---- Outgoing -------------------------------------------------------------------------------- */

static void link_expect(link_t *link, uint32_t bytes, uint32_t probe_bytes)
{
    link->in_at = 0;
    link->in_end = bytes;
    link->probe_in = probe_bytes;
}

static void link_say(link_t *link, const uint8_t *bytes, uint32_t n, uint32_t probe_bytes)
{
    memcpy(link->out, bytes, n);
    link->out_at = 0;
    link->out_end = n;
    link->probe_out = probe_bytes;
}

static void try_again(link_t *link, const char *why)
{
    link_close(link);
    snprintf(link->why, sizeof link->why, "%s", why);
    link->state = LINK_PAUSE;
    link->due = os_now() + RETRY_PAUSE;
}

static void connect_failed(opening_t *o, link_t *link, int error)
{
    char who[160];
    const ns_t tried = os_now() - link->begun, patience = o->options->failure_timeout / 2;
    if (error == ECONNREFUSED && tried < (patience < REFUSED_TIME ? patience : REFUSED_TIME)) {
        try_again(link, "refused");
    } else if (error == ECONNREFUSED) {
        fail(o, link->peer, INSPAN_REFUSED,
             "rank %u cannot connect to %s: refused; nobody listens there: is its worker still running, and "
             "does a "
             "firewall reject this port?",
             o->options->rank, name(o, link->peer, who));
    } else if (error == ECONNRESET || error == EPIPE) {
        try_again(link, "closes the connection");
    } else if (error == ETIMEDOUT) {
        try_again(link, "no answer");
    } else {
        fail(o, link->peer, INSPAN_UNREACHABLE, "rank %u cannot connect to %s: %s", o->options->rank,
             name(o, link->peer, who), strerror(error));
    }
}

static void outgoing_begin(opening_t *o, link_t *link)
{
    const inspan_member_t *member = &o->options->members[link->peer];
    os_address_t address;
    if (os_address_parse(member->address, member->port, &address) != INSPAN_OK) {
        fail(o, link->peer, INSPAN_INVALID, "rank %u (node %s): \"%s\" is no numeric address", link->peer,
             member->node, member->address);
        return;
    }
    inspan_error_t err;
    if (os_connect(&address, &link->fd, &err) != INSPAN_OK) {
        if (err.status == INSPAN_REFUSED)
            connect_failed(o, link, ECONNREFUSED);
        else
            fail(o, link->peer, err.status, "rank %u: %s", o->options->rank, err.text);
        return;
    }
    link->state = LINK_CONNECT;
}

static void outgoing_connected(opening_t *o, link_t *link)
{
    const comm_options_t *options = o->options;
    const int error = os_socket_error(link->fd);
    if (error != 0) {
        connect_failed(o, link, error);
        return;
    }
    link->connected = true;
    os_socket_tune(link->fd, 2 * options->failure_timeout, TCP_NOTSENT);
    data_hello_t hello = {.major = DATA_MAJOR,
                          .minor = DATA_MINOR,
                          .job = options->job,
                          .view = options->view,
                          .world = options->world,
                          .from = options->rank,
                          .to = link->peer,
                          .from_incarnation = options->members[options->rank].incarnation,
                          .to_incarnation = options->members[link->peer].incarnation};
    if (os_random(hello.nonce, sizeof hello.nonce) != INSPAN_OK) {
        fail(o, options->rank, INSPAN_INTERNAL, "no random numbers from the kernel");
        return;
    }
    data_encode_hello(&hello, link->hello);
    link_say(link, link->hello, DATA_HELLO_BYTES, 0);
    link_expect(link, DATA_WELCOME_BYTES, 0);
    link->state = LINK_HELLO;
}

/* The other side said no. */
static void outgoing_refused(opening_t *o, link_t *link, const data_welcome_t *welcome)
{
    static const char *const reasons[DATA_REFUSALS] = {
        "",
        "its protocol version is another one",
        "it works for another job",
        "",
        "its view has other members",
        "it is another rank",
        "one of the two processes is not the one that the view names (restarted?)",
        "the job's keys differ"};
    char who[160];
    const uint32_t rank = o->options->rank;
    if (welcome->refusal == DATA_WRONG_VIEW && welcome->view < o->options->view) {
        try_again(link, "still has an older view");
        return;
    }
    if (welcome->refusal == DATA_WRONG_VIEW)
        fail(o, link->peer, INSPAN_MISMATCH,
             "%s refuses rank %u: it has view %llu, this rank still view %llu", name(o, link->peer, who),
             rank, (unsigned long long)welcome->view, (unsigned long long)o->options->view);
    else
        fail(o, link->peer, welcome->status, "%s refuses rank %u: %s", name(o, link->peer, who), rank,
             reasons[welcome->refusal]);
}

/* A whole WELCOME or RESULT is there; false: the link is not to be used. */
static bool outgoing_check(opening_t *o, link_t *link, data_welcome_t *welcome)
{
    char who[160];
    const inspan_status_t status = data_decode_welcome(link->in, welcome);
    if (status == INSPAN_VERSION)
        fail(o, link->peer, INSPAN_VERSION,
             "%s speaks data protocol %u.%u, this rank %u.%u; install the same version of Inspan on both",
             name(o, link->peer, who), welcome->major, welcome->minor, DATA_MAJOR, DATA_MINOR);
    else if (status != INSPAN_OK)
        fail(o, link->peer, INSPAN_MISMATCH, "what answers at %s is no Inspan worker",
             name(o, link->peer, who));
    else if (welcome->status != INSPAN_OK)
        outgoing_refused(o, link, welcome);
    else
        return true;
    return false;
}

static void outgoing_welcomed(opening_t *o, link_t *link)
{
    data_welcome_t welcome;
    uint8_t mac[DATA_MAC_BYTES];
    char who[160];
    if (!outgoing_check(o, link, &welcome)) return;
    memcpy(link->welcome, link->in, DATA_WELCOME_BYTES);
    if (auth_mac(o->options->key, AUTH_ACCEPTOR, link->hello, link->welcome, mac) != INSPAN_OK ||
        !auth_equal(mac, welcome.mac)) {
        fail(o, link->peer, INSPAN_AUTH, "%s cannot prove that it belongs to the job: its key is another one",
             name(o, link->peer, who));
        return;
    }
    if (auth_mac(o->options->key, AUTH_CONNECTOR, link->hello, link->welcome, mac) != INSPAN_OK) {
        fail(o, o->options->rank, INSPAN_INTERNAL, "libcrypto gives no HMAC-SHA256");
        return;
    }
    link_say(link, mac, DATA_MAC_BYTES, DATA_PROBE_BYTES);
    link_expect(link, DATA_WELCOME_BYTES, 0);
    link->state = LINK_PROOF;
}

static void outgoing_received(opening_t *o, link_t *link)
{
    data_welcome_t result;
    switch (link->state) {
    case LINK_HELLO: outgoing_welcomed(o, link); return;
    case LINK_PROOF:
        if (!outgoing_check(o, link, &result)) return;
        link_expect(link, 0, DATA_PROBE_BYTES);
        link->state = LINK_PROBE;
        return;
    case LINK_PROBE:
        link->state = LINK_DONE;
        if (link->peer < o->options->rank) { /* checked; the one that the lower rank made is kept */
            close(link->fd);
            link->fd = -1;
        }
        return;
    default: return;
    }
}

/* ---- Incoming -------------------------------------------------------------------------------- */

static data_refusal_t judge(const opening_t *o, inspan_status_t decoded, const data_hello_t *hello)
{
    const comm_options_t *mine = o->options;
    if (decoded == INSPAN_VERSION) return DATA_WRONG_VERSION;
    if (hello->job != mine->job) return DATA_WRONG_JOB;
    if (hello->view != mine->view) return DATA_WRONG_VIEW;
    if (hello->world != mine->world) return DATA_WRONG_WORLD;
    if (hello->to != mine->rank) return DATA_WRONG_RANK;
    if (hello->to_incarnation != mine->members[mine->rank].incarnation ||
        hello->from_incarnation != mine->members[hello->from].incarnation)
        return DATA_WRONG_INCARNATION;
    return DATA_ACCEPTED;
}

static inspan_status_t refusal_status(data_refusal_t refusal)
{
    return refusal == DATA_ACCEPTED        ? INSPAN_OK
           : refusal == DATA_WRONG_VERSION ? INSPAN_VERSION
           : refusal == DATA_WRONG_KEY     ? INSPAN_AUTH
                                           : INSPAN_MISMATCH;
}

static data_welcome_t answer(const opening_t *o, data_refusal_t refusal)
{
    return (data_welcome_t){.major = DATA_MAJOR,
                            .minor = DATA_MINOR,
                            .status = refusal_status(refusal),
                            .refusal = refusal,
                            .view = o->options->view,
                            .rank = o->options->rank};
}

static void refuse(opening_t *o, link_t *link, data_refusal_t refusal)
{
    const data_welcome_t no = answer(o, refusal);
    data_encode_welcome(&no, link->welcome);
    link_say(link, link->welcome, DATA_WELCOME_BYTES, 0);
    link_expect(link, 0, 0);
    link->state = LINK_REFUSE;
}

static void incoming_hello(opening_t *o, link_t *link)
{
    data_hello_t hello;
    memcpy(link->hello, link->in, DATA_HELLO_BYTES);
    const inspan_status_t decoded = data_decode_hello(link->hello, &hello);
    if (decoded == INSPAN_CORRUPT) {
        link_close(link); /* not one of us: no answer */
        return;
    }
    const data_refusal_t refusal = judge(o, decoded, &hello);
    if (refusal != DATA_ACCEPTED) {
        refuse(o, link, refusal);
        return;
    }
    data_welcome_t welcome = answer(o, DATA_ACCEPTED);
    link->peer = hello.from;
    bool ok = os_random(welcome.nonce, sizeof welcome.nonce) == INSPAN_OK;
    data_encode_welcome(&welcome, link->welcome);
    ok = ok && auth_mac(o->options->key, AUTH_ACCEPTOR, link->hello, link->welcome, welcome.mac) == INSPAN_OK;
    if (!ok) {
        link_close(link);
        return;
    }
    data_encode_welcome(&welcome, link->welcome);
    link_say(link, link->welcome, DATA_WELCOME_BYTES, 0);
    link_expect(link, DATA_MAC_BYTES, 0);
    link->state = LINK_PROOF;
}

/* PROOF is there: if it is right, the connection becomes the member's. */
static void incoming_proof(opening_t *o, link_t *link)
{
    uint8_t mac[DATA_MAC_BYTES];
    if (auth_mac(o->options->key, AUTH_CONNECTOR, link->hello, link->welcome, mac) != INSPAN_OK ||
        !auth_equal(mac, link->in)) {
        refuse(o, link, DATA_WRONG_KEY);
        return;
    }
    link_t *member = &o->members[link->peer];
    if (member->state == LINK_DONE) { /* it has one already: nothing of ours asks for a second */
        link_close(link);
        return;
    }
    link_close(member);
    *member = *link;
    link->fd = -1;
    link->state = LINK_FREE;
    os_socket_tune(member->fd, 2 * o->options->failure_timeout, TCP_NOTSENT);
    link_expect(member, 0, DATA_PROBE_BYTES);
    member->state = LINK_PROBE;
}

static void incoming_received(opening_t *o, link_t *link)
{
    switch (link->state) {
    case LINK_HELLO: incoming_hello(o, link); return;
    case LINK_PROOF: incoming_proof(o, link); return;
    case LINK_PROBE: {
        const data_welcome_t result = answer(o, DATA_ACCEPTED);
        uint8_t bytes[DATA_WELCOME_BYTES];
        data_encode_welcome(&result, bytes);
        link_say(link, bytes, DATA_WELCOME_BYTES, DATA_PROBE_BYTES);
        link_expect(link, 0, 0);
        link->state = LINK_RESULT;
        return;
    }
    default: return;
    }
}

static void incoming_sent(link_t *link)
{
    if (link->state == LINK_RESULT) link->state = LINK_DONE;
    if (link->state == LINK_REFUSE) {
        shutdown(link->fd, SHUT_WR); /* the reason arrives, whatever lies unread here */
        link_close(link);
    }
}

static void accept_all(opening_t *o)
{
    for (int i = 0; i < MAX_UNPROVEN; i++) { /* per look at the listener */
        os_address_t from;
        const int fd = os_accept(o->options->listener->fd, &from);
        const bool exhausted = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !exhausted) return;
        link_t *slot = &o->unproven[0];
        for (uint32_t k = 0; k < MAX_UNPROVEN && slot->state != LINK_FREE; k++)
            if (o->unproven[k].state == LINK_FREE || o->unproven[k].begun < slot->begun)
                slot = &o->unproven[k];
        if (exhausted && slot->state == LINK_FREE) {
            fail(o, o->options->rank, INSPAN_LIMIT,
                 "rank %u has no descriptors left for the connections of %u ranks: raise the limit (ulimit "
                 "-n)",
                 o->options->rank, o->options->world);
            return;
        }
        link_close(slot);
        if (exhausted) return;
        const ns_t now = os_now();
        *slot = (link_t){.fd = fd, .state = LINK_HELLO, .begun = now, .due = now + STRANGER_TIME};
        link_expect(slot, DATA_HELLO_BYTES, 0);
    }
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static bool link_wants_out(const link_t *link)
{
    return link->out_at < link->out_end || link->probe_out > 0;
}

static bool link_wants_in(const link_t *link)
{
    return link->in_at < link->in_end || link->probe_in > 0;
}

static void read_ready(opening_t *o, link_t *link);

static void link_broken(opening_t *o, link_t *link)
{
    char who[160];
    if (link->state == LINK_DONE) { /* checked already: the peer would refuse a second one */
        read_ready(o, link);        /* perhaps it said why */
        fail(o, link->peer, INSPAN_PEER_LOST, "%s closed its connection while all were connecting",
             name(o, link->peer, who));
    } else if (link->outgoing)
        try_again(link, "closes the connection: something else may listen there, or too many connect to it");
    else
        link_close(link);
}

static void link_send(opening_t *o, link_t *link)
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
    if (!link->outgoing && link->fd >= 0) incoming_sent(link);
}

static void link_receive(opening_t *o, link_t *link)
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
            outgoing_received(o, link);
        else
            incoming_received(o, link);
        if (o->status != INSPAN_OK) return;
    }
}

/* ---- Readiness ------------------------------------------------------------------------------- */

static link_t *kept(opening_t *o, uint32_t peer)
{
    return peer > o->options->rank ? &o->outgoing[peer] : &o->members[peer];
}

static bool pair_checked(const opening_t *o, uint32_t peer)
{
    return o->outgoing[peer].state == LINK_DONE && o->members[peer].state == LINK_DONE;
}

static bool all_checked(const opening_t *o)
{
    for (uint32_t peer = 0; peer < o->options->world; peer++)
        if (peer != o->options->rank && !pair_checked(o, peer)) return false;
    return true;
}

static bool all_ready(opening_t *o)
{
    for (uint32_t peer = 0; peer < o->options->world; peer++)
        if (peer != o->options->rank && !(kept(o, peer)->ready && kept(o, peer)->ready_sent)) return false;
    return true;
}

static void say_ready(opening_t *o)
{
    const data_frame_t frame = {.type = DATA_READY};
    for (uint32_t peer = 0; peer < o->options->world; peer++) {
        link_t *link = kept(o, peer);
        if (peer == o->options->rank || link->ready_sent) continue;
        uint8_t bytes[DATA_HEADER_BYTES];
        data_encode_frame(&frame, bytes);
        link_say(link, bytes, sizeof bytes, 0);
        link->ready_sent = true;
    }
}

/* The peer gives up and says why: the others, and whoever asks this rank, hear its cause, not that of ours.
 */
static void read_farewell(opening_t *o, link_t *link, uint32_t length)
{
    char who[160];
    inspan_cause_t cause;
    if (data_decode_cause(link->frame + DATA_HEADER_BYTES, length, &cause) != INSPAN_OK ||
        cause.status == INSPAN_OK || cause.rank >= (int32_t)o->options->world) {
        fail(o, link->peer, INSPAN_CORRUPT, "%s sent a cause that cannot be", name(o, link->peer, who));
        return;
    }
    fail(o, link->peer, cause.status, "%s could not open: %s", name(o, link->peer, who), cause.text);
    o->cause = cause;
}

/* A kept connection after its probes: exactly one frame is read from it, what follows belongs to the
 * communicator. */
static void read_ready(opening_t *o, link_t *link)
{
    char who[160];
    while (!link->ready) {
        data_frame_t frame = {.length = 0};
        if (link->frame_at >= DATA_HEADER_BYTES && (data_decode_frame(link->frame, &frame) != INSPAN_OK ||
                                                    (frame.type != DATA_READY && frame.type != DATA_ABORT))) {
            fail(o, link->peer, INSPAN_CORRUPT, "%s sent bytes that are no frame", name(o, link->peer, who));
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
            fail(o, link->peer, INSPAN_PEER_LOST, "%s closed its connection while all were connecting",
                 name(o, link->peer, who));
            return;
        }
        link->frame_at += (uint32_t)got;
    }
}

/* ---- The loop -------------------------------------------------------------------------------- */

static short link_events(opening_t *o, const link_t *link)
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

static void link_event(opening_t *o, link_t *link, short events)
{
    if (link->state == LINK_CONNECT) {
        outgoing_connected(o, link);
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

/* Deadlines; the time until the next one. */
static ns_t check_times(opening_t *o)
{
    const ns_t now = os_now();
    ns_t next = o->ready_until;
    char who[160];
    for (uint32_t i = 0; i < MAX_UNPROVEN; i++) {
        link_t *link = &o->unproven[i];
        if (link->state == LINK_FREE) continue;
        if (link->due <= now) link_close(link);
        if (link->state != LINK_FREE && link->due < next) next = link->due;
    }
    for (uint32_t peer = 0; peer < o->options->world && o->status == INSPAN_OK; peer++) {
        link_t *link = &o->outgoing[peer];
        if (peer == o->options->rank) continue;
        if (link->state == LINK_PAUSE && link->due <= now) outgoing_begin(o, link);
        if (link->state == LINK_PAUSE && link->due < next) next = link->due;
        if (now < o->connect_until || o->status != INSPAN_OK) continue;
        const double waited = ns_to_s(now - o->begin);
        if (link->state != LINK_DONE && !link->connected)
            fail(o, peer, INSPAN_UNREACHABLE,
                 "rank %u cannot connect to %s: no answer in %.1f s; the machine is off, or a firewall drops "
                 "this port "
                 "(allow the data ports in both directions)",
                 o->options->rank, name(o, peer, who), waited);
        else if (link->state != LINK_DONE && link->state >= LINK_PROOF)
            fail(o, peer, INSPAN_TIMEOUT,
                 "rank %u is connected to %s, but its 64 KiB did not get through in %.1f s: large packets "
                 "may be lost "
                 "on the way (check the MTU of both machines)",
                 o->options->rank, name(o, peer, who), waited);
        else if (link->state != LINK_DONE)
            fail(o, peer, INSPAN_TIMEOUT, "rank %u reached %s, but it did not answer in %.1f s%s%s",
                 o->options->rank, name(o, peer, who), waited,
                 link->why[0] != 0 ? ": " : " (stopped, or busy)", link->why);
    }
    for (uint32_t peer = 0; peer < o->options->world && o->status == INSPAN_OK && now >= o->connect_until;
         peer++)
        if (peer != o->options->rank && o->members[peer].state != LINK_DONE)
            fail(o, peer, INSPAN_UNREACHABLE,
                 "%s did not connect to rank %u (%s:%u) in %.1f s, though the other direction works: a "
                 "firewall may drop "
                 "this port",
                 name(o, peer, who), o->options->rank, o->options->members[o->options->rank].address,
                 o->options->members[o->options->rank].port, ns_to_s(now - o->begin));
    if (now >= o->ready_until)
        for (uint32_t peer = 0; peer < o->options->world && o->status == INSPAN_OK; peer++)
            if (peer != o->options->rank && !kept(o, peer)->ready)
                fail(o, peer, INSPAN_TIMEOUT, "%s did not become ready in %.1f s", name(o, peer, who),
                     ns_to_s(now - o->begin));
    if (!all_checked(o) && o->connect_until < next && o->connect_until > now) next = o->connect_until;
    return next > now ? next - now : 0;
}

static void open_loop(opening_t *o, struct pollfd *fds, link_t **links)
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
        link_t *const groups[] = {o->outgoing, o->members, o->unproven};
        for (int g = 0; g < 3; g++)
            for (uint32_t i = 0; i < (g == 2 ? MAX_UNPROVEN : world); i++) {
                link_t *link = groups[g] + i;
                const short events = link_events(o, link);
                if (events == 0) continue;
                fds[n] = (struct pollfd){.fd = link->fd, .events = events};
                links[n++] = link;
            }
        if (poll(fds, n, (int)((wait + NS_PER_MS - 1) / NS_PER_MS)) <= 0) continue;
        for (nfds_t i = 1; i < n && o->status == INSPAN_OK; i++)
            if (fds[i].revents != 0 && links[i]->fd == fds[i].fd) link_event(o, links[i], fds[i].revents);
        if (fds[0].revents != 0 && o->status == INSPAN_OK) accept_all(o);
    }
    for (uint32_t peer = 0; peer < world && o->status == INSPAN_OK; peer++) {
        link_t *link = kept(o, peer);
        if (peer == o->options->rank || !link_wants_out(link)) continue;
        link_send(o, link); /* READY is 32 bytes and the socket empty */
        if (link_wants_out(link))
            fail(o, peer, INSPAN_PEER_LOST, "the connection to rank %u broke while all were connecting",
                 peer);
    }
}

/* Tell those that are connected why this rank gives up, as far as it goes out at once. */
static void say_farewell(opening_t *o)
{
    uint8_t bytes[DATA_HEADER_BYTES + DATA_CAUSE_MAX];
    const uint32_t n = (uint32_t)data_encode_cause(&o->cause, bytes + DATA_HEADER_BYTES);
    const data_frame_t frame = {.type = DATA_ABORT, .length = n};
    data_encode_frame(&frame, bytes);
    for (uint32_t peer = 0; peer < o->options->world; peer++) {
        link_t *link = kept(o, peer);
        if (peer == o->options->rank || link->state != LINK_DONE || link->fd < 0) continue;
        if (link_wants_out(link)) link_send(o, link); /* a READY half said; then the cause follows it */
        if (!link_wants_out(link))
            (void)send(link->fd, bytes, DATA_HEADER_BYTES + n, MSG_NOSIGNAL | MSG_DONTWAIT);
        shutdown(link->fd, SHUT_WR);
    }
}

static bool opening_allocate(opening_t *o, struct pollfd **fds, link_t ***links)
{
    const size_t world = o->options->world, most = 2 * world + MAX_UNPROVEN + 1;
    o->outgoing = calloc(world, sizeof *o->outgoing);
    o->members = calloc(world, sizeof *o->members);
    o->unproven = calloc(MAX_UNPROVEN, sizeof *o->unproven);
    *fds = calloc(most, sizeof **fds);
    *links = calloc(most, sizeof **links);
    if (!o->outgoing || !o->members || !o->unproven || !*fds || !*links) return false;
    for (uint32_t peer = 0; peer < world; peer++) {
        o->outgoing[peer] = (link_t){.fd = -1, .outgoing = true, .peer = peer, .begun = o->begin};
        o->members[peer] = (link_t){.fd = -1, .peer = peer};
        if (peer != o->options->rank) o->outgoing[peer].state = LINK_PAUSE;
    }
    for (uint32_t i = 0; i < MAX_UNPROVEN; i++) o->unproven[i].fd = -1;
    return true;
}

inspan_status_t tcp_connect_all(const comm_options_t *options, int *fds, inspan_error_t *err)
{
    struct pollfd *polls = NULL;
    link_t **links = NULL;
    opening_t o = {.options = options, .begin = os_now()};
    o.connect_until = o.begin + options->failure_timeout;
    o.ready_until = o.begin + 2 * options->failure_timeout;
    if (opening_allocate(&o, &polls, &links))
        open_loop(&o, polls, links);
    else
        fail(&o, options->rank, INSPAN_NO_MEMORY, "no memory for the connections of %u ranks",
             options->world);
    if (o.status != INSPAN_OK && o.outgoing != NULL && o.members != NULL) say_farewell(&o);
    for (uint32_t peer = 0; peer < options->world && o.outgoing != NULL && o.members != NULL; peer++) {
        link_t *keep = o.status == INSPAN_OK && peer != options->rank ? kept(&o, peer) : NULL;
        fds[peer] = keep != NULL ? keep->fd : -1;
        if (keep != NULL) keep->fd = -1;
        link_close(&o.outgoing[peer]);
        link_close(&o.members[peer]);
    }
    for (uint32_t i = 0; i < MAX_UNPROVEN && o.unproven != NULL; i++) link_close(&o.unproven[i]);
    free(o.outgoing);
    free(o.members);
    free(o.unproven);
    free(polls);
    free(links);
    if (o.status != INSPAN_OK && err != NULL) *err = o.error;
    if (o.status != INSPAN_OK && options->cause != NULL) *options->cause = o.cause;
    return o.status;
}
