/*
 * gRPC from C: the one entry header of rpc and the only way to the network for manager, agent and cli.
 * Messages are protobuf-c structs of proto/inspan/v1. Every wait has a bound, every queue a cap.
 */
#ifndef RPC_RPC_H
#define RPC_RPC_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/status.h>
#include <protobuf-c/protobuf-c.h>

#include "base/units.h"

/* ---- Server ---- */

typedef struct rpc_server rpc_server_t;
typedef struct rpc_call rpc_call_t; /* one call, until its on_closed has returned */

/* All callbacks run on the server's one thread (the one that called rpc_server_run). */
typedef struct rpc_method {
    const char *path; /* "/inspan.v1.Cluster/Submit" */
    const ProtobufCMessageDescriptor *request;
    bool client_streams, server_streams;
    void (*on_open)(void *context, rpc_call_t *call); /* may be NULL */
    /* a message of the client; it is freed after the return. Unary: the one request; answer now or later. */
    void (*on_message)(void *context, rpc_call_t *call, const ProtobufCMessage *message);
    void (*on_half_close)(void *context, rpc_call_t *call); /* the client will send no more; may be NULL */
    void (*on_closed)(void *context, rpc_call_t *call);     /* over, in whatever way; may be NULL */
    /* A queued message has left and less than RPC_CALL_LOW_WATER is queued now: send more (bulk streams: send
     * until rpc_call_queued reaches 1 MiB, go on here). Not once the call was finished. May be NULL. */
    void (*on_writable)(void *context, rpc_call_t *call);
} rpc_method_t;

#define RPC_CALL_LOW_WATER (256u << 10) /* bytes */

typedef struct rpc_server_options {
    const char *listen; /* "[::]:7461" or "127.0.0.1:0" */
    const char *token;  /* every call must carry it (compared in constant time), but health and reflection;
                           NULL: none */
    const rpc_method_t *methods;
    uint32_t n_methods;
    void *context;
    void (*tick)(void *context, ns_t now); /* on the server's thread every tick_period */
    ns_t tick_period;
    size_t queue_bytes; /* most that waits to be sent to all clients together; 0: 256 MiB */
} rpc_server_options_t;

/* Binds; *port the bound one. EXISTS (port taken: says by what address), IO, INVALID. Health and reflection
 * included. */
inspan_status_t rpc_server_open(const rpc_server_options_t *options, rpc_server_t **server, uint16_t *port,
                                inspan_error_t *err);
void rpc_server_run(rpc_server_t *server); /* until rpc_server_stop; then drains live calls (at most 1 s) */
void rpc_server_stop(
    rpc_server_t *server); /* any thread, and from a signal handler's thread, not from a handler */
void rpc_server_close(rpc_server_t *server);

/* From callbacks (any of the server's, tick too), until the call's on_closed has returned. Send queues at
 * most 1024 messages or 16 MiB a call, queue_bytes a server, 4 MiB a message: LIMIT (whether to finish the
 * call then is the caller's choice); ABORTED: the call is finished or the client has gone. Finish ends the
 * call with OK, after what is queued, or with another status, which overtakes what is queued; its text
 * reaches the client's inspan_error_t. Only the first finish counts. A client that takes nothing for 10 s
 * after it is cut off. */
inspan_status_t rpc_call_send(rpc_call_t *call, const ProtobufCMessage *message);
void rpc_call_finish(rpc_call_t *call, inspan_status_t status, const char *text);
void rpc_call_reply(rpc_call_t *call, const ProtobufCMessage *message); /* send and finish with OK */
void rpc_call_set_data(rpc_call_t *call, void *data);
void *rpc_call_data(const rpc_call_t *call);
const char *rpc_call_peer(const rpc_call_t *call); /* numeric address of the client, without port */
size_t
rpc_call_queued(const rpc_call_t *call); /* bytes waiting to be sent: for flow control of bulk streams */

/* ---- Client (any thread) ---- */

typedef struct rpc_client rpc_client_t;
typedef struct rpc_stream rpc_stream_t;

/* Does not connect yet. token may be NULL. INVALID. */
inspan_status_t rpc_client_open(const char *target, const char *token, rpc_client_t **client,
                                inspan_error_t *err);
void rpc_client_close(rpc_client_t *client);
const char *rpc_client_target(const rpc_client_t *client);

/* The address of this machine from which packets to the manager leave (kernel's choice of source), numeric.
 * Sends nothing; blocks only to resolve the manager's name, the first time and after its connection failed.
 * UNREACHABLE: no route, or no such name. */
inspan_status_t rpc_client_local_address(rpc_client_t *client, char *address, size_t size,
                                         inspan_error_t *err);

/* Unary, blocking. *reply: protobuf_c_message_free_unpacked(reply, NULL). UNREACHABLE (names the address),
 * TIMEOUT, AUTH, VERSION, or the status that the server gave, with its text. */
inspan_status_t rpc_call_unary(rpc_client_t *client, const char *path, const ProtobufCMessage *request,
                               const ProtobufCMessageDescriptor *reply_type, ns_t timeout,
                               ProtobufCMessage **reply, inspan_error_t *err);

/* Open a stream in any direction. Its receive side is read with rpc_stream_next by one thread, its send side
 * by one. */
inspan_status_t rpc_stream_open(rpc_client_t *client, const char *path,
                                const ProtobufCMessageDescriptor *reply_type, rpc_stream_t **stream,
                                inspan_error_t *err);
/* Blocks while 1 MiB is queued, at most timeout. TIMEOUT, or how the stream ended. */
inspan_status_t rpc_stream_send(rpc_stream_t *stream, const ProtobufCMessage *message, ns_t timeout,
                                inspan_error_t *err);
void rpc_stream_half_close(rpc_stream_t *stream);
/* OK: *message; *message NULL: the server finished with OK. TIMEOUT: nothing came, try again. Else how it
 * ended. */
inspan_status_t rpc_stream_next(rpc_stream_t *stream, ns_t timeout, ProtobufCMessage **message,
                                inspan_error_t *err);
void rpc_stream_cancel(rpc_stream_t *stream); /* any thread: next and send return ABORTED */
void rpc_stream_close(rpc_stream_t *stream);  /* cancels if still open; frees */

#endif
