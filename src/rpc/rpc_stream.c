/*
 * A stream of the client. The client's stream thread runs the completions; the owner's threads read, send and
 * cancel. `lock` guards all of it; the core is entered with it held (core never calls back into us from
 * there).
 *
 * Its end comes in two parts: the receive side runs dry (`no_more`) and the status has arrived
 * (`has_status`).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"
#include "rpc/rpc_client.h"

#define OUT_BYTES_LIMIT    (1u << 20)
#define IN_BYTES_LIMIT     (1u << 20)
#define QUEUE_MESSAGES_MAX 1024

struct rpc_stream {
    rpc_client_t *client;
    grpc_call *call;
    char *path;
    const ProtobufCMessageDescriptor *type;

    pthread_mutex_t lock;
    os_cond_t changed;
    rpc_tag_t opened, received, sent, ended;
    bool opening, receiving, sending; /* batches in flight, with the one of `ended` until has_status */
    bool no_more, has_status, cancelled;
    bool half_close_wanted, half_closed;
    rpc_queue_t in, out;
    grpc_byte_buffer *incoming, *outgoing;
    size_t outgoing_bytes;

    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
};

/* ---- Batches (lock held) ---- */

static bool start(rpc_stream_t *stream, const grpc_op *ops, size_t n, rpc_tag_t *tag)
{
    if (grpc_call_start_batch(stream->call, ops, n, tag, NULL) == GRPC_CALL_OK) return true;
    grpc_call_cancel(stream->call, NULL);
    return false;
}

static void pump_in(rpc_stream_t *stream)
{
    if (stream->receiving || stream->no_more) return;
    if (stream->in.bytes >= IN_BYTES_LIMIT || stream->in.n >= QUEUE_MESSAGES_MAX)
        return; /* the reader is slow */
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &stream->incoming;
    stream->receiving = start(stream, &op, 1, &stream->received);
    if (!stream->receiving) stream->no_more = true;
}

static void pump_out(rpc_stream_t *stream)
{
    if (stream->sending || stream->has_status) return;
    grpc_op op;
    memset(&op, 0, sizeof op);
    stream->outgoing = rpc_queue_pop(&stream->out, &stream->outgoing_bytes);
    if (stream->outgoing != NULL) {
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = stream->outgoing;
    } else if (stream->half_close_wanted && !stream->half_closed) {
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        stream->half_closed = true;
    } else {
        return;
    }
    stream->sending = start(stream, &op, 1, &stream->sent);
    if (stream->sending) return;
    grpc_byte_buffer_destroy(stream->outgoing);
    stream->outgoing = NULL;
    stream->outgoing_bytes = 0;
}

/* ---- Completions (the client's stream thread) ---- */

static void opened_done(rpc_tag_t *tag, bool ok)
{
    (void)ok;
    rpc_stream_t *stream = RPC_OWNER(tag, rpc_stream_t, opened);
    pthread_mutex_lock(&stream->lock);
    stream->opening = false;
    os_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void received_done(rpc_tag_t *tag, bool ok)
{
    rpc_stream_t *stream = RPC_OWNER(tag, rpc_stream_t, received);
    pthread_mutex_lock(&stream->lock);
    grpc_byte_buffer *buffer = stream->incoming;
    stream->incoming = NULL;
    stream->receiving = false;
    if (!ok || buffer == NULL || !rpc_queue_push(&stream->in, buffer, grpc_byte_buffer_length(buffer))) {
        if (buffer != NULL) { /* out of memory: a gap must not go unnoticed */
            grpc_byte_buffer_destroy(buffer);
            grpc_call_cancel(stream->call, NULL);
        }
        stream->no_more = true;
    }
    pump_in(stream);
    os_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void sent_done(rpc_tag_t *tag, bool ok)
{
    (void)ok; /* a failed send means that the call is over: the status tells */
    rpc_stream_t *stream = RPC_OWNER(tag, rpc_stream_t, sent);
    pthread_mutex_lock(&stream->lock);
    grpc_byte_buffer_destroy(stream->outgoing);
    stream->outgoing = NULL;
    stream->outgoing_bytes = 0;
    stream->sending = false;
    if (ok) pump_out(stream);
    os_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void ended_done(rpc_tag_t *tag, bool ok)
{
    (void)ok;
    rpc_stream_t *stream = RPC_OWNER(tag, rpc_stream_t, ended);
    pthread_mutex_lock(&stream->lock);
    stream->has_status = true;
    os_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

/* ---- The owner's threads ---- */

static void stream_free(rpc_stream_t *stream)
{
    if (stream->call != NULL) grpc_call_unref(stream->call);
    rpc_queue_clear(&stream->in);
    rpc_queue_clear(&stream->out);
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_slice_unref(stream->details);
    pthread_mutex_destroy(&stream->lock);
    os_cond_close(&stream->changed);
    free(stream->path);
    free(stream);
}

static bool begin(rpc_stream_t *stream)
{
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &stream->trailing;
    ops[0].data.recv_status_on_client.status = &stream->code;
    ops[0].data.recv_status_on_client.status_details = &stream->details;
    if (!start(stream, ops, 1, &stream->ended)) {
        stream->has_status = true; /* so that close waits for nothing */
        stream->code = GRPC_STATUS_INTERNAL;
        return false;
    }
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    rpc_client_metadata(stream->client, &ops[0]);
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    stream->opening = start(stream, ops, 2, &stream->opened);
    if (!stream->opening) return false;
    pump_in(stream);
    return true;
}

inspan_status_t rpc_stream_open(rpc_client_t *client, const char *path,
                                const ProtobufCMessageDescriptor *reply_type, rpc_stream_t **stream,
                                inspan_error_t *err)
{
    *stream = NULL;
    grpc_completion_queue *queue = rpc_client_queue(client);
    rpc_stream_t *made = calloc(1, sizeof *made);
    if (queue == NULL || made == NULL) {
        free(made);
        return error_set(err, INSPAN_NO_MEMORY, "%s: no memory or no thread for a stream", path);
    }
    pthread_mutex_init(&made->lock, NULL);
    os_cond_open(&made->changed);
    grpc_metadata_array_init(&made->initial);
    grpc_metadata_array_init(&made->trailing);
    made->details = grpc_empty_slice();
    made->client = client;
    made->type = reply_type;
    made->opened.done = opened_done;
    made->received.done = received_done;
    made->sent.done = sent_done;
    made->ended.done = ended_done;
    made->path = strdup(path);
    made->call = made->path != NULL ? rpc_client_call(client, path, queue, -1) : NULL;
    if (made->call == NULL) {
        stream_free(made);
        return error_set(err, INSPAN_NO_MEMORY, "%s: no memory for a stream", path);
    }
    pthread_mutex_lock(&made->lock);
    bool ok = begin(made);
    pthread_mutex_unlock(&made->lock);
    if (!ok) {
        rpc_stream_close(made);
        return error_set(err, INSPAN_INTERNAL, "%s: the call could not begin", path);
    }
    *stream = made;
    return INSPAN_OK;
}

static inspan_status_t how_it_ended(rpc_stream_t *stream, inspan_error_t *err)
{
    if (stream->cancelled) return error_set(err, INSPAN_ABORTED, "%s was cancelled", stream->path);
    return rpc_client_outcome(stream->client, stream->path, stream->code, stream->details, &stream->trailing,
                              err);
}

inspan_status_t rpc_stream_next(rpc_stream_t *stream, ns_t timeout, ProtobufCMessage **message,
                                inspan_error_t *err)
{
    *message = NULL;
    ns_t deadline = os_now() + timeout;
    pthread_mutex_lock(&stream->lock);
    while (!stream->cancelled && stream->in.n == 0 && !(stream->no_more && stream->has_status))
        if (!os_cond_wait_until(&stream->changed, &stream->lock, deadline)) {
            pthread_mutex_unlock(&stream->lock);
            return error_set(err, INSPAN_TIMEOUT, "%s: nothing came", stream->path);
        }
    if (stream->cancelled || stream->in.n == 0) {
        inspan_status_t status = how_it_ended(stream, err);
        pthread_mutex_unlock(&stream->lock);
        return status;
    }
    size_t bytes;
    grpc_byte_buffer *buffer = rpc_queue_pop(&stream->in, &bytes);
    pump_in(stream);
    pthread_mutex_unlock(&stream->lock);
    *message = rpc_unpack(buffer, stream->type);
    grpc_byte_buffer_destroy(buffer);
    if (*message != NULL) return INSPAN_OK;
    return error_set(err, INSPAN_CORRUPT, "%s: a message of the manager at %s is not a valid %s",
                     stream->path, stream->client->target, stream->type->name);
}

/* The server may end a call that the client still sends on: also with OK. */
static inspan_status_t closed_to_sends(rpc_stream_t *stream, inspan_error_t *err)
{
    inspan_status_t status = how_it_ended(stream, err);
    if (status != INSPAN_OK) return status;
    return error_set(err, INSPAN_REFUSED, "%s: the manager ended the call and takes no more", stream->path);
}

inspan_status_t rpc_stream_send(rpc_stream_t *stream, const ProtobufCMessage *message, ns_t timeout,
                                inspan_error_t *err)
{
    ns_t deadline = os_now() + timeout;
    size_t bytes = 0;
    grpc_byte_buffer *buffer = rpc_pack(message, &bytes);
    if (buffer == NULL)
        return error_set(err, INSPAN_LIMIT, "%s: the message has %zu bytes, more than the %u allowed",
                         stream->path, bytes, RPC_MESSAGE_LIMIT);
    inspan_status_t status = INSPAN_OK;
    pthread_mutex_lock(&stream->lock);
    while (!stream->cancelled && !stream->has_status &&
           (stream->out.bytes + stream->outgoing_bytes >= OUT_BYTES_LIMIT ||
            stream->out.n >= QUEUE_MESSAGES_MAX))
        if (!os_cond_wait_until(&stream->changed, &stream->lock, deadline)) {
            status = error_set(err, INSPAN_TIMEOUT, "%s: the manager at %s does not take what was sent",
                               stream->path, stream->client->target);
            break;
        }
    if (status != INSPAN_OK) {
        /* the buffer goes */
    } else if (stream->cancelled || stream->has_status) {
        status = closed_to_sends(stream, err);
    } else if (stream->half_close_wanted) {
        status = error_set(err, INSPAN_INVALID, "%s: sent after the half-close", stream->path);
    } else if (rpc_queue_push(&stream->out, buffer, bytes)) {
        buffer = NULL;
        pump_out(stream);
    } else {
        status = error_set(err, INSPAN_NO_MEMORY, "%s: no memory for a message", stream->path);
    }
    pthread_mutex_unlock(&stream->lock);
    if (buffer != NULL) grpc_byte_buffer_destroy(buffer);
    return status;
}

void rpc_stream_half_close(rpc_stream_t *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->half_close_wanted = true;
    pump_out(stream);
    pthread_mutex_unlock(&stream->lock);
}

void rpc_stream_cancel(rpc_stream_t *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->cancelled = true;
    grpc_call_cancel(stream->call, NULL);
    os_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

void rpc_stream_close(rpc_stream_t *stream)
{
    if (stream == NULL) return;
    pthread_mutex_lock(&stream->lock);
    if (!stream->has_status) grpc_call_cancel(stream->call, NULL);
    /* A cancelled call ends all its batches at once: the bound of this wait. */
    while (stream->opening || stream->receiving || stream->sending || !stream->has_status)
        os_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    stream_free(stream);
}
