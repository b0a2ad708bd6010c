/*
 * What the files of opening share: tcp_open.c (loop, bytes, readiness), tcp_connect.c (outgoing) and
 * tcp_accept.c (incoming). The protocol is described in tcp_open.c.
 */
#ifndef COMM_TCP_OPENING_H
#define COMM_TCP_OPENING_H

#include "base/error.h"
#include "comm/transport/tcp.h"

#define TCP_MAX_UNPROVEN 64

typedef enum link_state {
    LINK_FREE,
    LINK_PAUSE,   /* outgoing: until `due`, then connect again */
    LINK_CONNECT, /* outgoing: TCP handshake */
    LINK_HELLO,   /* outgoing: HELLO out, WELCOME in. incoming: HELLO in */
    LINK_PROOF,   /* outgoing: PROOF and probe out, RESULT in. incoming: PROOF in */
    LINK_PROBE,   /* the other side's probe in */
    LINK_RESULT,  /* incoming: RESULT and probe out */
    LINK_REFUSE,  /* incoming: the reason out, then closed */
    LINK_DONE
} link_state_t;

typedef struct tcp_link {
    int fd;
    link_state_t state;
    bool outgoing, connected; /* connected: TCP answered at least once */
    uint32_t peer;
    ns_t due;   /* PAUSE: try again; unproven incoming: closed then */
    ns_t pause; /* outgoing: the last one */
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
} tcp_link_t;

typedef struct tcp_opening {
    const comm_options_t *options;
    bool keep_both;       /* connections of each pair */
    tcp_link_t *outgoing; /* (world) */
    tcp_link_t *members;  /* (world) incoming, proven */
    tcp_link_t *unproven; /* (TCP_MAX_UNPROVEN) incoming */
    ns_t begin, connect_until, ready_until;
    inspan_status_t status; /* the first failure */
    inspan_error_t error;
    inspan_cause_t cause; /* of it, for the others */
} tcp_opening_t;

/* "rank 2 (node n2, 192.0.2.7:7000)" into text. */
const char *tcp_opening_name(const tcp_opening_t *o, uint32_t rank, char text[160]);

/* This rank gives up, and `peer` is at fault; only the first failure counts. */
void tcp_opening_fail(tcp_opening_t *o, uint32_t peer, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What people call this rank. */
static inline uint32_t tcp_opening_number(const tcp_opening_t *o)
{
    return o->options->members[o->options->rank].number;
}

void tcp_link_close(tcp_link_t *link);
void tcp_link_expect(tcp_link_t *link, uint32_t bytes, uint32_t probe_bytes);
void tcp_link_say(tcp_link_t *link, const uint8_t *bytes, uint32_t n, uint32_t probe_bytes);

/* Outgoing connections. */
void tcp_outgoing_begin(tcp_opening_t *o, tcp_link_t *link);
/* After a pause. why NULL: link->why says it already. */
void tcp_outgoing_again(tcp_link_t *link, const char *why);
void tcp_outgoing_connected(tcp_opening_t *o, tcp_link_t *link);
void tcp_outgoing_received(tcp_opening_t *o, tcp_link_t *link); /* all that was expected */

/* Incoming connections. */
void tcp_incoming_accept(tcp_opening_t *o);
void tcp_incoming_received(tcp_opening_t *o, tcp_link_t *link); /* all that was expected */
void tcp_incoming_sent(tcp_link_t *link);                       /* all that was to be said */

#endif
