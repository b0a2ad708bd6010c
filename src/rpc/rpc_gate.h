/*
 * The gate before a listener: gRPC closes its listener for good when an accept fails for want of descriptors.
 * So no connection may come in when few are left: a packet filter on the listening socket then drops what
 * arrives there. Clients that try meanwhile wait in their connect (the kernel repeats it) and get in when
 * others have left.
 *
 * Thread-safe. gate_check is cheap (it counts /proc/self/fd) and is to be called some times a second.
 */
#ifndef RPC_RPC_GATE_H
#define RPC_RPC_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_MOST_DESCRIPTORS 8192 /* of the process: where the gate closes, if its limit allows so many */

typedef struct rpc_gate {
    pthread_mutex_t lock;
    int listener; /* a duplicate of gRPC's, or -1 */
    bool closed;
} rpc_gate_t;

void gate_open(rpc_gate_t *gate, uint16_t port); /* finds this process's listener at port (0: none) */
void gate_check(rpc_gate_t *gate);
void gate_release(rpc_gate_t *gate); /* the listener is about to go; again: does nothing */
void gate_destroy(rpc_gate_t *gate);

#endif
