/*
 * TCP sockets over numeric IPv4 and IPv6 addresses: listen, connect, options, what people write and read. All
 * sockets are non-blocking and close-on-exec. Any thread; nothing blocks.
 */
#ifndef OS_SOCKET_H
#define OS_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/units.h"

#define OS_ADDRESS_MAX 80 /* "[fe80::1%interface]:65535" and the end */

typedef struct os_address {
    struct sockaddr_storage storage;
    socklen_t length;
} os_address_t;

/* Numeric address, no brackets, %scope allowed. INVALID: anything else (names are not resolved). */
inspan_status_t os_address_parse(const char *text, uint16_t port, os_address_t *address);

/* "10.0.0.1:7500" or "[fe80::1%eth0]:7500"; "?" for what is no IP address. Returns text. IPv4 seen through an
 * IPv6 socket is written as IPv4. */
const char *os_address_format(const os_address_t *address, char *text, size_t size);

/* The address alone: "10.0.0.1", "fe80::1%eth0", "?". Returns text. */
const char *os_address_host(const os_address_t *address, char *text, size_t size);

#define OS_HOST_MAX 254 /* bytes of a host name, and the end */

typedef struct os_target {
    char host[OS_HOST_MAX]; /* without brackets */
    uint16_t port;
} os_target_t;

/*
 * What people write for a place in the network: "host", "host:7461", "10.0.0.1", "fe80::1%eth0",
 * "[::1]:7461". default_port: where none is written; is it 0, then 0 may be written too, else 1 to 65535.
 * Names are not resolved. INVALID: says what was expected.
 */
inspan_status_t os_target_parse(const char *text, uint16_t default_port, os_target_t *target,
                                inspan_error_t *err);

/* The address of this machine from which packets to `to` leave: the kernel's choice of route and source.
 * Sends nothing (a datagram socket is connected). 0, or an errno. */
int os_source_towards(const os_address_t *to, os_address_t *source);

/*
 * Listen on all addresses, IPv6 and IPv4 in one socket (IPv4 alone where the machine has no IPv6), on the
 * first free port of [first, last]; 0, 0: any. *port: the one taken. EXISTS: none is free; IO. A port in
 * TIME_WAIT counts as free.
 */
inspan_status_t os_listen(uint16_t first, uint16_t last, int backlog, int *fd, uint16_t *port,
                          inspan_error_t *err);

/* Next queued connection: its descriptor, or -1 (none now, or a passing error of that connection). */
int os_accept(int listener, os_address_t *from);

/* Begin to connect: *fd becomes writable when it is decided (os_socket_error tells how). IO, UNREACHABLE at
 * once. */
inspan_status_t os_connect(const os_address_t *to, int *fd, inspan_error_t *err);

int os_socket_error(int fd); /* SO_ERROR: 0, or an errno; clears it */

/*
 * For the data plane: no delay; at most notsent_bytes wait unsent in the kernel; peers silent for `timeout`
 * while data is unacknowledged, or not answering keepalives for about as long, are given up; cubic congestion
 * control where it may be set (many-to-one bursts suit it). An option that the kernel refuses keeps
 * its default: they tune, they are not needed. false: congestion control is another one than cubic.
 */
bool os_socket_tune(int fd, ns_t timeout, int notsent_bytes);

/* one way to the other side's kernel, the least of the last minutes; 0: not known */
ns_t os_socket_latency(int fd);
size_t os_socket_unacked(int fd); /* bytes written that the other side's kernel has not yet confirmed */

#endif
