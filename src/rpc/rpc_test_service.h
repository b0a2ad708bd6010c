/*
 * A small service under the names of inspan.v1, one method of each kind, for rpc's own tests and for the
 * program that foreign clients are tried on:
 *
 *   Cluster/GetJob  unary          id 1: answers; 2: NOT_FOUND; 3: never answers; 4: answers at the next
 * tick; 5: an answer larger than a message may be Cluster/Watch   server stream  `id` events, then OK
 *   Files/Put       client stream  answers with the bytes it got
 *   Files/Get       server stream  `bytes` bytes in chunks of 256 KiB, by on_writable
 *   Agents/Attach   both           a heartbeat comes back as a log request with its sequence; sequence 13 is
 * refused with VERSION; 99 floods until LIMIT
 */
#ifndef RPC_RPC_TEST_SERVICE_H
#define RPC_RPC_TEST_SERVICE_H

#include <stdatomic.h>

#include "rpc/rpc.h"

typedef struct test_service {
    rpc_call_t *waiting; /* a GetJob 4 */
    atomic_uint opened, closed, half_closed, messages;
    atomic_uint limit_after; /* messages that a flood queued */
    atomic_size_t most_queued;
    char peer[64];
} test_service_t;

/* Methods, context and tick into options. */
void test_service_fill(test_service_t *service, rpc_server_options_t *options);

#endif
