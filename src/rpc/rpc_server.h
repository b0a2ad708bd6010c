/*
 * Inside the server: its state, and one call's. All of it belongs to the server's thread (the one in
 * rpc_server_run); only `stopping` is set from others.
 *
 * A call:
 *
 *   accepted --on_open--> open --finish--> finishing --queue sent, status sent--+
 *      |                   |                  |                                 v
 *      +--reject-----------|------------------+            core reports "over" (RECV_CLOSE) --on_closed-->
 * closed
 *                          +--client cancelled, connection lost, deadline-------^ | freed when no batch is
 * pending
 */
#ifndef RPC_RPC_SERVER_H
#define RPC_RPC_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "rpc/rpc_gate.h"
#include "rpc/rpc_internal.h"

#define RPC_CALLS_LIMIT        4096 /* calls of a server at a time; above: LIMIT */
#define RPC_CALL_QUEUE_LIMIT   1024 /* messages */
#define RPC_CALL_BYTES_LIMIT   (16u << 20)
#define RPC_SERVER_BYTES_LIMIT (256u << 20)
#define RPC_PEER_SIZE          64

struct rpc_call {
    rpc_server_t *server;
    grpc_call *grpc;
    const rpc_method_t *method; /* NULL: the call was rejected, nobody hears of it */
    void *context;
    void *data;
    rpc_call_t *next, *previous; /* in the server's list, until closed */
    char peer[RPC_PEER_SIZE];

    rpc_tag_t over, received, sent;
    int cancelled; /* RECV_CLOSE's result: read by nobody, but core writes it */
    bool receiving, sending, closed;
    bool got_message; /* at least one */
    bool open_sent;   /* initial metadata */
    bool finishing;   /* rpc_call_finish was called */
    bool status_sent; /* its batch has begun */
    grpc_byte_buffer *incoming;
    grpc_byte_buffer *outgoing; /* of the batch in flight */
    size_t outgoing_bytes;
    rpc_queue_t queue;
    ns_t progress; /* when a batch was last sent, or the call finished */

    inspan_status_t status;
    grpc_slice status_text;
    grpc_metadata status_metadata;
};

typedef struct rpc_service {
    const rpc_method_t *methods;
    uint32_t n_methods;
    void *context;
} rpc_service_t;

enum { RPC_SERVICE_USER, RPC_SERVICE_HEALTH, RPC_SERVICE_REFLECTION, RPC_N_SERVICES };

struct rpc_server {
    rpc_server_options_t options;
    char *bearer; /* "Bearer TOKEN", or NULL */
    grpc_server *grpc;
    grpc_completion_queue *queue;
    rpc_service_t services[RPC_N_SERVICES];
    struct rpc_health *health;
    struct rpc_reflection *reflection;

    struct rpc_accept { /* the one outstanding request for a new call */
        rpc_tag_t tag;
        grpc_call *call;
        grpc_call_details details;
        grpc_metadata_array metadata;
    } accept;
    rpc_tag_t shut_down;
    bool is_shut_down;
    bool drained; /* rpc_server_run has ended */
    atomic_bool stopping;

    grpc_completion_queue
        *poll_queue; /* only polled, so that pings are answered while a callback takes long */
    pthread_t poll_thread;
    rpc_gate_t gate; /* checked by that thread */

    rpc_call_t *calls;
    uint32_t n_calls;
    size_t queued_bytes; /* of all calls */
    ns_t next_tick, next_sweep;
};

/* ---- rpc_call.c ---- */

/* Take over what accept holds. Gives the call to its method, or rejects it. */
void rpc_call_accept(rpc_server_t *server);
/* Give up finishing calls whose client takes nothing. */
void rpc_call_sweep(rpc_server_t *server, ns_t now);

/* ---- rpc_health.c, rpc_reflection.c: built-in services. NULL: out of memory. ---- */

typedef struct rpc_health rpc_health_t;
rpc_health_t *rpc_health_open(rpc_server_t *server, rpc_service_t *service);
void rpc_health_stop(rpc_health_t *health); /* watchers learn that nothing is served any more */
void rpc_health_close(rpc_health_t *health);

typedef struct rpc_reflection rpc_reflection_t;
rpc_reflection_t *rpc_reflection_open(rpc_server_t *server, rpc_service_t *service);
void rpc_reflection_close(rpc_reflection_t *reflection);

/* Is a method of "/NAME/..." served? */
bool rpc_server_serves(const rpc_server_t *server, const char *name, size_t length);

#endif
