/* For tests of the tcp transport: worlds of ranks as threads of this process, with sockets on loopback. */
#ifndef COMM_TCP_WORLD_TEST_H
#define COMM_TCP_WORLD_TEST_H

#include "comm/conformance_test.h"

#define PATIENCE (60 * NS_PER_S)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

extern const char *tcp_test_host; /* where ranks listen; IPv4 at first */

typedef struct tcp_net {
    comm_io_t *ios[16];
    comm_listener_t *listeners[16];
    inspan_member_t members[16];
} tcp_net_t;

typedef struct tcp_open_all {
    tcp_net_t *net;
    comm_options_t options[16];
    inspan_status_t status[16];
    inspan_error_t errors[16];
    inspan_cause_t causes[16];
    ns_t took[16];
} tcp_open_all_t;

/* A port and an I/O thread for each of n ranks. */
void tcp_net_listen(tcp_net_t *net, uint32_t n);
void tcp_net_close(tcp_net_t *net, uint32_t n);

/* These options for all ranks of the net, with what differs between them. */
void tcp_fill_options(tcp_open_all_t *all, tcp_net_t *net, uint32_t n, const comm_options_t *options);

/* Open and close one rank; for tcp_world_each, with a tcp_open_all_t and with nothing. */
void tcp_open_rank(world_t *world, uint32_t rank, void *context);
void tcp_close_rank(world_t *world, uint32_t rank, void *context);

/* The harness of the conformance suite; open fails the test where a rank cannot. */
void tcp_world_open(world_t *world, uint32_t n, const comm_options_t *options);
void tcp_world_close(world_t *world);
void tcp_world_each(world_t *world, void (*fn)(world_t *, uint32_t, void *), void *context);
inspan_status_t tcp_world_wait(world_t *world, uint32_t rank, inspan_op_t *op);

#endif
