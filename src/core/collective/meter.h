/*
 * What one rank learns about the links from the traffic that it sends. Pure: times come in.
 *
 *   A stream is *backlogged* while its socket takes no more bytes. What it takes from then on, until it is
 *   empty, is as fast as the narrowest place on the way: the rank's own port, or the receiver's.
 *   - While the streams to all peers are backlogged, it is the own port: their sum is `up`.
 *   - While some are and others are not, those are held back by their receivers' ports: `towards`. The sum
 * over all senders is what the receiver's port takes.
 *   - Faster than what is known is always learnt: a link that has become faster need not be backlogged.
 *
 * A sample is METER_BYTES of each stream in it (many times what a socket's buffers, which are not seen, can
 * hide) in METER_TIME, or more. Of the newest ones, `towards` is the median; `up` is the upper
 * quartile, for a port is often held up, but seldom (in a burst) faster than it is.
 */
#ifndef COLLECTIVE_METER_H
#define COLLECTIVE_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"

#define METER_BYTES   (1u << 20)
#define METER_TIME    (20 * NS_PER_MS)
#define METER_SAMPLES 9

typedef struct meter_rate {
    double samples[METER_SAMPLES]; /* bytes per second, a ring */
    uint32_t n;
    uint64_t bytes; /* of the sample in the making */
    ns_t taken;
} meter_rate_t;

typedef struct meter_stream {
    bool backlogged;
    uint64_t bytes; /* taken since `since` of the meter, */
    uint64_t whole; /* and since `begun` */
    meter_rate_t towards;
} meter_stream_t;

typedef struct meter {
    uint32_t n, n_backlogged; /* streams: all peers but oneself */
    ns_t since;               /* the present stretch, in which no stream changed its state, began */
    ns_t begun;               /* the last rest ended */
    meter_rate_t up;
    meter_stream_t *streams; /* (world) the caller's */
} meter_t;

void meter_open(meter_t *meter, meter_stream_t *streams, uint32_t world);

/* The socket to peer took so many bytes. */
void meter_sent(meter_t *meter, uint32_t peer, uint64_t bytes);

/* The socket to peer takes no more (true), or all is gone (false). */
void meter_backlog(meter_t *meter, uint32_t peer, bool on, ns_t now);

/* Something is to be sent from now on, after a rest; all of it is gone. What went in between, however it
 * went, was not faster than the ports. */
void meter_begin(meter_t *meter, ns_t now);
void meter_rest(meter_t *meter, ns_t now);

/* Bytes per second; 0: not known; negative: it wavers, so more than this port (a processor, a radio) is
 * behind it. */
double meter_up(const meter_t *meter);
double meter_towards(const meter_t *meter, uint32_t peer);

#endif
