/* Inside the client: shared by unary calls and streams. */
#ifndef RPC_RPC_CLIENT_H
#define RPC_RPC_CLIENT_H

#include <pthread.h>

#include "platform/os/os_socket.h"
#include "rpc/rpc_internal.h"

struct rpc_client {
    char *target; /* as given: for people */
    char *grpc_target;
    char *bearer;      /* "Bearer TOKEN", or NULL */
    os_target_t place; /* where that is */
    grpc_metadata authorization;

    pthread_mutex_t lock; /* of all below */
    grpc_channel *channel;
    grpc_completion_queue *queue; /* of all streams; made with the first */
    pthread_t thread;
    /* The manager's address, as the name was last resolved: kept as long as the channel, so that a machine
     * whose name service is down can still ask for its own address. */
    os_address_t manager; /* length 0: not known */
};

/* A call that will make a connection attempt of its own if the last one failed: never an old failure, never a
 * back-off. The caller owns it. NULL: out of memory. */
grpc_call *rpc_client_call(rpc_client_t *client, const char *path, grpc_completion_queue *queue,
                           ns_t timeout);

/* The queue of streams, with its thread. NULL: no thread to be had. */
grpc_completion_queue *rpc_client_queue(rpc_client_t *client);

void rpc_client_metadata(const rpc_client_t *client, grpc_op *send_initial_metadata);

/* The end of a call, as gRPC tells it, as our status and a text for people. OK leaves err alone. */
inspan_status_t rpc_client_outcome(const rpc_client_t *client, const char *path, grpc_status_code code,
                                   grpc_slice details, const grpc_metadata_array *trailing,
                                   inspan_error_t *err);

#endif
