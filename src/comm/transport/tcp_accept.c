/* Opening, the incoming half: strangers, and members that prove themselves. See tcp_open.c. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/transport/tcp_opening.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/auth.h"

#define STRANGER_TIME (2 * NS_PER_S)

static data_refusal_t judge(const tcp_opening_t *o, inspan_status_t decoded, const data_hello_t *hello)
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

static data_welcome_t answer(const tcp_opening_t *o, data_refusal_t refusal)
{
    return (data_welcome_t){.major = DATA_MAJOR,
                            .minor = DATA_MINOR,
                            .status = refusal_status(refusal),
                            .refusal = refusal,
                            .view = o->options->view,
                            .rank = o->options->rank};
}

static void refuse(tcp_opening_t *o, tcp_link_t *link, data_refusal_t refusal)
{
    const data_welcome_t no = answer(o, refusal);
    data_encode_welcome(&no, link->welcome);
    tcp_link_say(link, link->welcome, DATA_WELCOME_BYTES, 0);
    tcp_link_expect(link, 0, 0);
    link->state = LINK_REFUSE;
}

static void incoming_hello(tcp_opening_t *o, tcp_link_t *link)
{
    data_hello_t hello;
    memcpy(link->hello, link->in, DATA_HELLO_BYTES);
    const inspan_status_t decoded = data_decode_hello(link->hello, &hello);
    if (decoded == INSPAN_CORRUPT) {
        tcp_link_close(link); /* not one of us: no answer */
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
        tcp_link_close(link);
        return;
    }
    data_encode_welcome(&welcome, link->welcome);
    tcp_link_say(link, link->welcome, DATA_WELCOME_BYTES, 0);
    tcp_link_expect(link, DATA_MAC_BYTES, 0);
    link->state = LINK_PROOF;
}

/* PROOF is there: if it is right, the connection becomes the member's. */
static void incoming_proof(tcp_opening_t *o, tcp_link_t *link)
{
    uint8_t mac[DATA_MAC_BYTES];
    if (auth_mac(o->options->key, AUTH_CONNECTOR, link->hello, link->welcome, mac) != INSPAN_OK ||
        !auth_equal(mac, link->in)) {
        refuse(o, link, DATA_WRONG_KEY);
        return;
    }
    tcp_link_t *member = &o->members[link->peer];
    if (member->state == LINK_DONE) { /* it has one already: nothing of ours asks for a second */
        tcp_link_close(link);
        return;
    }
    tcp_link_close(member);
    *member = *link;
    link->fd = -1;
    link->state = LINK_FREE;
    os_socket_tune(member->fd, 2 * o->options->failure_timeout, TCP_NOTSENT);
    tcp_link_expect(member, 0, DATA_PROBE_BYTES);
    member->state = LINK_PROBE;
}

void tcp_incoming_received(tcp_opening_t *o, tcp_link_t *link)
{
    switch (link->state) {
    case LINK_HELLO: incoming_hello(o, link); return;
    case LINK_PROOF: incoming_proof(o, link); return;
    case LINK_PROBE: {
        const data_welcome_t result = answer(o, DATA_ACCEPTED);
        uint8_t bytes[DATA_WELCOME_BYTES];
        data_encode_welcome(&result, bytes);
        tcp_link_say(link, bytes, DATA_WELCOME_BYTES, DATA_PROBE_BYTES);
        tcp_link_expect(link, 0, 0);
        link->state = LINK_RESULT;
        return;
    }
    default: return;
    }
}

void tcp_incoming_sent(tcp_link_t *link)
{
    if (link->state == LINK_RESULT) link->state = LINK_DONE;
    if (link->state == LINK_REFUSE) {
        shutdown(link->fd, SHUT_WR); /* the reason arrives, whatever lies unread here */
        tcp_link_close(link);
    }
}

void tcp_incoming_accept(tcp_opening_t *o)
{
    for (int i = 0; i < TCP_MAX_UNPROVEN; i++) { /* per look at the listener */
        os_address_t from;
        const int fd = os_accept(o->options->listener->fd, &from);
        const bool exhausted = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !exhausted) return;
        tcp_link_t *slot = &o->unproven[0];
        for (uint32_t k = 0; k < TCP_MAX_UNPROVEN && slot->state != LINK_FREE; k++)
            if (o->unproven[k].state == LINK_FREE || o->unproven[k].begun < slot->begun)
                slot = &o->unproven[k];
        if (exhausted && slot->state == LINK_FREE) {
            tcp_opening_fail(
                o, o->options->rank, INSPAN_LIMIT,
                "rank %u has no descriptors left for the connections of %u ranks: raise the limit (ulimit "
                "-n)",
                tcp_opening_number(o), o->options->world);
            return;
        }
        tcp_link_close(slot);
        if (exhausted) return;
        const ns_t now = os_now();
        *slot = (tcp_link_t){.fd = fd, .state = LINK_HELLO, .begun = now, .due = now + STRANGER_TIME};
        tcp_link_expect(slot, DATA_HELLO_BYTES, 0);
    }
}
