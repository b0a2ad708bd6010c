/* Opening, the outgoing half: connect, prove membership, try again what may still come right. See tcp_open.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/transport/tcp_opening.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/auth.h"

#define REFUSED_TIME NS_PER_S
#define RETRY_FIRST  (2 * NS_PER_MS) /* a member that is a little late costs no more than that */
#define RETRY_MOST   (50 * NS_PER_MS)

void tcp_outgoing_again(tcp_link_t *link, const char *why)
{
    tcp_link_close(link);
    if (why != NULL) snprintf(link->why, sizeof link->why, "%s", why);
    link->state = LINK_PAUSE;
    link->pause = link->pause == 0               ? RETRY_FIRST
                  : link->pause * 2 < RETRY_MOST ? link->pause * 2
                                                 : RETRY_MOST;
    link->due = os_now() + link->pause;
}

static void connect_failed(tcp_opening_t *o, tcp_link_t *link, int error)
{
    char who[160];
    const ns_t tried = os_now() - link->begun, patience = o->options->failure_timeout / 2;
    if (error == ECONNREFUSED && tried < (patience < REFUSED_TIME ? patience : REFUSED_TIME)) {
        tcp_outgoing_again(link, "refused");
    } else if (error == ECONNREFUSED) {
        tcp_opening_fail(
            o, link->peer, INSPAN_REFUSED,
            "rank %u cannot connect to %s: refused; nobody listens there: is its worker still running, and "
            "does a firewall reject this port?",
            tcp_opening_number(o), tcp_opening_name(o, link->peer, who));
    } else if (error == ECONNRESET || error == EPIPE) {
        tcp_outgoing_again(link, "closes the connection");
    } else if (error == ETIMEDOUT) {
        tcp_outgoing_again(link, "no answer");
    } else {
        tcp_opening_fail(o, link->peer, INSPAN_UNREACHABLE, "rank %u cannot connect to %s: %s",
                         tcp_opening_number(o), tcp_opening_name(o, link->peer, who), strerror(error));
    }
}

void tcp_outgoing_begin(tcp_opening_t *o, tcp_link_t *link)
{
    const inspan_member_t *member = &o->options->members[link->peer];
    os_address_t address;
    if (os_address_parse(member->address, member->port, &address) != INSPAN_OK) {
        tcp_opening_fail(o, link->peer, INSPAN_INVALID, "rank %u (node %s): \"%s\" is no numeric address",
                         member->number, member->node, member->address);
        return;
    }
    inspan_error_t err;
    if (os_connect(&address, &link->fd, &err) != INSPAN_OK) {
        if (err.status == INSPAN_REFUSED)
            connect_failed(o, link, ECONNREFUSED);
        else
            tcp_opening_fail(o, link->peer, err.status, "rank %u: %s", tcp_opening_number(o), err.text);
        return;
    }
    link->state = LINK_CONNECT;
}

void tcp_outgoing_connected(tcp_opening_t *o, tcp_link_t *link)
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
        tcp_opening_fail(o, options->rank, INSPAN_INTERNAL, "no random numbers from the kernel");
        return;
    }
    data_encode_hello(&hello, link->hello);
    tcp_link_say(link, link->hello, DATA_HELLO_BYTES, 0);
    tcp_link_expect(link, DATA_WELCOME_BYTES, 0);
    link->state = LINK_HELLO;
}

/* The other side said no. */
static void outgoing_refused(tcp_opening_t *o, tcp_link_t *link, const data_welcome_t *welcome)
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
    if (welcome->refusal == DATA_WRONG_VIEW) { /* one of the two is about to hear of a newer view */
        snprintf(link->why, sizeof link->why, "it has view %llu, this rank view %llu",
                 (unsigned long long)welcome->view, (unsigned long long)o->options->view);
        tcp_outgoing_again(link, NULL);
        return;
    }
    tcp_opening_fail(o, link->peer, welcome->status, "%s refuses rank %u: %s",
                     tcp_opening_name(o, link->peer, who), tcp_opening_number(o), reasons[welcome->refusal]);
}

/* A whole WELCOME or RESULT is there; false: the link is not to be used. */
static bool outgoing_check(tcp_opening_t *o, tcp_link_t *link, data_welcome_t *welcome)
{
    char who[160];
    const inspan_status_t status = data_decode_welcome(link->in, welcome);
    if (status == INSPAN_VERSION)
        tcp_opening_fail(
            o, link->peer, INSPAN_VERSION,
            "%s speaks data protocol %u.%u, this rank %u.%u; install the same version of Inspan on both",
            tcp_opening_name(o, link->peer, who), welcome->major, welcome->minor, DATA_MAJOR, DATA_MINOR);
    else if (status != INSPAN_OK)
        tcp_opening_fail(o, link->peer, INSPAN_MISMATCH, "what answers at %s is no Inspan worker",
                         tcp_opening_name(o, link->peer, who));
    else if (welcome->status != INSPAN_OK)
        outgoing_refused(o, link, welcome);
    else
        return true;
    return false;
}

static void outgoing_welcomed(tcp_opening_t *o, tcp_link_t *link)
{
    data_welcome_t welcome;
    uint8_t mac[DATA_MAC_BYTES];
    char who[160];
    if (!outgoing_check(o, link, &welcome)) return;
    memcpy(link->welcome, link->in, DATA_WELCOME_BYTES);
    if (auth_mac(o->options->key, AUTH_ACCEPTOR, link->hello, link->welcome, mac) != INSPAN_OK ||
        !auth_equal(mac, welcome.mac)) {
        tcp_opening_fail(o, link->peer, INSPAN_AUTH,
                         "%s cannot prove that it belongs to the job: its key is another one",
                         tcp_opening_name(o, link->peer, who));
        return;
    }
    if (auth_mac(o->options->key, AUTH_CONNECTOR, link->hello, link->welcome, mac) != INSPAN_OK) {
        tcp_opening_fail(o, o->options->rank, INSPAN_INTERNAL, "libcrypto gives no HMAC-SHA256");
        return;
    }
    tcp_link_say(link, mac, DATA_MAC_BYTES, DATA_PROBE_BYTES);
    tcp_link_expect(link, DATA_WELCOME_BYTES, 0);
    link->state = LINK_PROOF;
}

void tcp_outgoing_received(tcp_opening_t *o, tcp_link_t *link)
{
    data_welcome_t result;
    switch (link->state) {
    case LINK_HELLO: outgoing_welcomed(o, link); return;
    case LINK_PROOF:
        if (!outgoing_check(o, link, &result)) return;
        tcp_link_expect(link, 0, DATA_PROBE_BYTES);
        link->state = LINK_PROBE;
        return;
    case LINK_PROBE:
        link->state = LINK_DONE;
        if (link->peer < o->options->rank && !o->keep_both) { /* checked; the lower rank's is kept */
            close(link->fd);
            link->fd = -1;
        }
        return;
    default: return;
    }
}
