/*
 * What the server's and the client's half of rpc share: the library's life, messages as byte buffers, the
 * mapping of statuses, tags of a completion queue, and the bounded queue of packed messages.
 */
#ifndef RPC_RPC_INTERNAL_H
#define RPC_RPC_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/status.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#if defined __has_include
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h> /* moved there in gRPC 1.64 */
#endif
#endif
#include <stddef.h>

#include "rpc/rpc.h"

#define RPC_MESSAGE_LIMIT   (4u << 20)  /* bytes of one message, either way */
#define RPC_UNPACKED_LIMIT  (64u << 20) /* bytes that one received message may take once decoded */
#define RPC_STATUS_METADATA "inspan-status"

/* ---- Library: each server and client holds it; the first starts gRPC's threads, the last ends them. ---- */

void rpc_library_acquire(void);
void rpc_library_release(void); /* waits for the threads of gRPC if it was the last */

/* gRPC's threads must not take signals that are meant for ours: block all around whatever may start one. */
void rpc_signals_block(void *saved); /* sigset_t */
void rpc_signals_restore(const void *saved);

/* ---- Messages ---- */

/* NULL: larger than RPC_MESSAGE_LIMIT (*bytes says how large). */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message, size_t *bytes);

/* NULL: not such a message, or one that takes more than RPC_UNPACKED_LIMIT decoded, or out of memory.
 * Free with protobuf_c_message_free_unpacked(message, NULL). Keeps the buffer. */
ProtobufCMessage *rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type);

/* Oldest first. Owns the buffers in it. */
typedef struct rpc_queue {
    struct rpc_item {
        grpc_byte_buffer *buffer;
        size_t bytes;
    } * items; /* ring */
    uint32_t head, n, capacity;
    size_t bytes; /* of all */
} rpc_queue_t;

bool rpc_queue_push(rpc_queue_t *queue, grpc_byte_buffer *buffer, size_t bytes); /* false: out of memory */
grpc_byte_buffer *rpc_queue_pop(rpc_queue_t *queue, size_t *bytes);              /* NULL: empty */
void rpc_queue_clear(rpc_queue_t *queue);

/* ---- Statuses: docs/rpc.md has the table ---- */

grpc_status_code rpc_status_to_grpc(inspan_status_t status);
inspan_status_t rpc_status_from_grpc(grpc_status_code code);
const char *rpc_status_name(inspan_status_t status); /* "NOT_FOUND" */
bool rpc_status_find(const grpc_metadata_array *trailing,
                     inspan_status_t *status); /* the server's own status */

/* ---- Completion queues ---- */

/* What a batch is started with: the queue's thread calls done when it has ended. */
typedef struct rpc_tag {
    void (*done)(struct rpc_tag *tag, bool ok);
} rpc_tag_t;

#define RPC_OWNER(tag, type, member) ((type *)(void *)((char *)(tag)-offsetof(type, member)))

gpr_timespec rpc_deadline(ns_t from_now); /* negative: none */

#endif
