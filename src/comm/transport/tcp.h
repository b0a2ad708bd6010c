/* What tcp.c (running) and tcp_open.c (opening) share. */
#ifndef COMM_TCP_H
#define COMM_TCP_H

#include "comm/internal.h"

struct comm_listener {
    int fd;
    uint16_t port;
};

#define TCP_NOTSENT                                                                                          \
    (128 * 1024) /* measured: 64 to 128 KB best; more only makes results wait behind contributions */

/*
 * Connect every pair and agree that all are ready: fds[peer] is the kept connection (-1 for oneself), with
 * everything of the handshake read from it and not a byte more. others: NULL, or gets the pairs' second
 * connections, those that the higher ranks made, in the same state; a peer that does not want its closes it.
 * On failure none is left open.
 */
inspan_status_t tcp_connect_all(const comm_options_t *options, int *fds, int *others, inspan_error_t *err);

/* The last that is sent on a connection: why this rank gives up, as far as it goes out at once. */
void tcp_say_farewell(int fd, const inspan_cause_t *cause);

#endif
