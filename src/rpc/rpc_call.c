#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "platform/os/os_time.h"
#include "rpc/rpc_server.h"

#define STUCK_AFTER (10 * NS_PER_S)

static void call_release(rpc_call_t *call)
{
    if (!call->closed || call->receiving || call->sending) return;
    grpc_call_unref(call->grpc);
    rpc_queue_clear(&call->queue);
    grpc_slice_unref(call->status_text);
    free(call);
}

/* ---- Sending: one batch at a time; the status rides on the last message's. ---- */

static void call_pump(rpc_call_t *call)
{
    if (call->sending || call->closed || call->status_sent) return;
    if (call->queue.n == 0 && !call->finishing) return;
    grpc_op ops[3];
    size_t n = 0;
    memset(ops, 0, sizeof ops);
    if (!call->open_sent) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->outgoing_bytes = 0;
    call->outgoing = rpc_queue_pop(&call->queue, &call->outgoing_bytes);
    if (call->outgoing != NULL) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = call->outgoing;
    }
    bool last = call->finishing && call->queue.n == 0;
    if (last) {
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = rpc_status_to_grpc(call->status);
        ops[n].data.send_status_from_server.status_details = &call->status_text;
        ops[n].data.send_status_from_server.trailing_metadata_count = 1;
        ops[n++].data.send_status_from_server.trailing_metadata = &call->status_metadata;
    }
    grpc_call_error error = grpc_call_start_batch(call->grpc, ops, n, &call->sent, NULL);
    if (error != GRPC_CALL_OK) {
        log_error("rpc: cannot send to %s: %s", call->peer, grpc_call_error_to_string(error));
        grpc_byte_buffer_destroy(call->outgoing);
        call->outgoing = NULL;
        call->server->queued_bytes -= call->outgoing_bytes;
        call->outgoing_bytes = 0;
        grpc_call_cancel(call->grpc, NULL);
        return;
    }
    call->sending = true;
    call->open_sent = true;
    call->status_sent = last;
}

static void drop_queue(rpc_call_t *call)
{
    call->server->queued_bytes -= call->queue.bytes;
    rpc_queue_clear(&call->queue);
}

static void sent_done(rpc_tag_t *tag, bool ok)
{
    rpc_call_t *call = RPC_OWNER(tag, rpc_call_t, sent);
    call->sending = false;
    call->server->queued_bytes -= call->outgoing_bytes;
    grpc_byte_buffer_destroy(call->outgoing);
    call->outgoing = NULL;
    call->outgoing_bytes = 0;
    call->progress = os_now();
    if (!ok || call->closed) { /* the client has gone: `over` follows, or came already */
        drop_queue(call);
        call_release(call);
        return;
    }
    call_pump(call);
    if (call->finishing || call->method == NULL || call->method->on_writable == NULL) return;
    if (rpc_call_queued(call) < RPC_CALL_LOW_WATER) call->method->on_writable(call->context, call);
}

inspan_status_t rpc_call_send(rpc_call_t *call, const ProtobufCMessage *message)
{
    if (call->closed || call->finishing) return INSPAN_ABORTED;
    if (call->queue.n >= RPC_CALL_QUEUE_LIMIT) return INSPAN_LIMIT;
    size_t bytes = 0;
    grpc_byte_buffer *buffer = rpc_pack(message, &bytes);
    if (buffer == NULL) return INSPAN_LIMIT;
    if (rpc_call_queued(call) + bytes > RPC_CALL_BYTES_LIMIT ||
        call->server->queued_bytes + bytes > call->server->options.queue_bytes) {
        grpc_byte_buffer_destroy(buffer);
        return INSPAN_LIMIT;
    }
    if (!rpc_queue_push(&call->queue, buffer, bytes)) {
        grpc_byte_buffer_destroy(buffer);
        return INSPAN_NO_MEMORY;
    }
    call->server->queued_bytes += bytes;
    call_pump(call);
    return INSPAN_OK;
}

void rpc_call_finish(rpc_call_t *call, inspan_status_t status, const char *text)
{
    if (call->closed || call->finishing) return;
    call->finishing = true;
    call->progress = os_now();
    call->status = status;
    call->status_text = grpc_slice_from_copied_string(status != INSPAN_OK && text != NULL ? text : "");
    call->status_metadata.key = grpc_slice_from_static_string(RPC_STATUS_METADATA);
    call->status_metadata.value = grpc_slice_from_static_string(rpc_status_name(status));
    if (status != INSPAN_OK) drop_queue(call);
    call_pump(call);
}

void rpc_call_reply(rpc_call_t *call, const ProtobufCMessage *message)
{
    if (call->closed || call->finishing) return;
    /* Message and status go out in one batch: the queue must not be pumped in between. */
    bool sending = call->sending;
    call->sending = true;
    inspan_status_t status = rpc_call_send(call, message);
    call->sending = sending;
    if (status == INSPAN_OK)
        rpc_call_finish(call, INSPAN_OK, NULL);
    else
        rpc_call_finish(call, status, "the answer is larger than a message may be, or too much is queued");
}

void rpc_call_sweep(rpc_server_t *server, ns_t now)
{
    for (rpc_call_t *call = server->calls; call != NULL; call = call->next)
        if (call->finishing && now - call->progress > STUCK_AFTER) grpc_call_cancel(call->grpc, NULL);
}

/* ---- Receiving ---- */

static void receive(rpc_call_t *call)
{
    if (call->receiving || call->closed || call->finishing) return;
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->incoming;
    if (grpc_call_start_batch(call->grpc, &op, 1, &call->received, NULL) == GRPC_CALL_OK)
        call->receiving = true;
    else
        grpc_call_cancel(call->grpc, NULL);
}

static void half_closed(rpc_call_t *call)
{
    if (!call->method->client_streams)
        rpc_call_finish(call, INSPAN_INVALID, "the call brought no request");
    else if (call->method->on_half_close != NULL)
        call->method->on_half_close(call->context, call);
}

static void deliver(rpc_call_t *call, grpc_byte_buffer *buffer)
{
    ProtobufCMessage *message = rpc_unpack(buffer, call->method->request);
    if (message == NULL) {
        char text[160];
        snprintf(text, sizeof text, "%s: the message is not a valid %s", call->method->path,
                 call->method->request->name);
        rpc_call_finish(call, INSPAN_INVALID, text);
        return;
    }
    call->got_message = true;
    call->method->on_message(call->context, call, message);
    protobuf_c_message_free_unpacked(message, NULL);
    if (call->method->client_streams) receive(call);
}

static void received_done(rpc_tag_t *tag, bool ok)
{
    rpc_call_t *call = RPC_OWNER(tag, rpc_call_t, received);
    grpc_byte_buffer *buffer = call->incoming;
    call->incoming = NULL;
    call->receiving = false;
    if (call->closed) {
        call_release(call);
    } else if (!call->finishing && ok) {
        if (buffer != NULL)
            deliver(call, buffer);
        else if (!grpc_call_failed_before_recv_message(
                     call->grpc)) /* else it was cancelled: `over` follows */
            half_closed(call);
    }
    grpc_byte_buffer_destroy(buffer);
}

/* ---- Beginning and end ---- */

static void over_done(rpc_tag_t *tag, bool ok)
{
    (void)ok;
    rpc_call_t *call = RPC_OWNER(tag, rpc_call_t, over);
    drop_queue(call);
    if (call->method != NULL && call->method->on_closed != NULL) call->method->on_closed(call->context, call);
    call->closed = true;
    drop_queue(call); /* what on_closed may have sent */
    if (call->previous != NULL)
        call->previous->next = call->next;
    else
        call->server->calls = call->next;
    if (call->next != NULL) call->next->previous = call->previous;
    call->server->n_calls--;
    call_release(call);
}

/* "ipv4:127.0.0.1:50000", "ipv6:%5Bfe80::1%2525eth0%5D:50000" -> "127.0.0.1", "fe80::1%eth0" */
static void set_peer(rpc_call_t *call)
{
    char *uri = grpc_call_get_peer(call->grpc);
    const char *from = uri;
    if (strncmp(uri, "ipv4:", 5) == 0 || strncmp(uri, "ipv6:", 5) == 0) from += 5;
    size_t n = 0;
    for (; *from != 0 && n + 1 < sizeof call->peer; from++) {
        unsigned code = 0;
        if (*from == '%' && sscanf(from + 1, "%2x", &code) == 1 && code >= 0x20 && code < 0x7f) {
            call->peer[n++] = (char)code;
            from += 2;
        } else {
            call->peer[n++] = *from;
        }
    }
    call->peer[n] = 0;
    gpr_free(uri);
    char *port = strrchr(call->peer, ':');
    if (port != NULL) *port = 0;
    n = strlen(call->peer);
    if (n >= 2 && call->peer[0] == '[' && call->peer[n - 1] == ']') {
        call->peer[n - 1] = 0;
        memmove(call->peer, call->peer + 1, n - 1);
    }
    char *escape = strstr(call->peer, "%25");
    if (escape != NULL) memmove(escape + 1, escape + 3, strlen(escape + 3) + 1);
}

/* Time depends on the length of the given text alone, which is no secret of ours. */
static bool equal_in_constant_time(grpc_slice given, const char *expected)
{
    size_t n = strlen(expected), given_n = GRPC_SLICE_LENGTH(given);
    const uint8_t *bytes = GRPC_SLICE_START_PTR(given);
    volatile uint8_t difference = given_n == n ? 0 : 1;
    for (size_t i = 0; i < given_n; i++) difference |= bytes[i] ^ (uint8_t)expected[i % (n + 1)];
    return difference == 0;
}

static bool authorised(const rpc_server_t *server, const grpc_metadata_array *metadata)
{
    if (server->bearer == NULL) return true;
    for (size_t i = 0; i < metadata->count; i++)
        if (grpc_slice_str_cmp(metadata->metadata[i].key, "authorization") == 0)
            return equal_in_constant_time(metadata->metadata[i].value, server->bearer);
    return false;
}

static const rpc_method_t *find_method(rpc_server_t *server, grpc_slice path, rpc_service_t **service)
{
    for (int s = 0; s < RPC_N_SERVICES; s++)
        for (uint32_t m = 0; m < server->services[s].n_methods; m++)
            if (grpc_slice_str_cmp(path, server->services[s].methods[m].path) == 0) {
                *service = &server->services[s];
                return &server->services[s].methods[m];
            }
    return NULL;
}

/* NULL: the call may begin; else why not, with *status. */
static const char *objection(rpc_server_t *server, const rpc_service_t *service, inspan_status_t *status)
{
    *status = INSPAN_UNREACHABLE;
    if (atomic_load(&server->stopping)) return "the manager is stopping";
    *status = INSPAN_LIMIT;
    if (server->n_calls > RPC_CALLS_LIMIT)
        return "the manager has as many calls open as it may: try again later";
    *status = INSPAN_UNSUPPORTED;
    if (service == NULL)
        return "the manager (inspan " INSPAN_VERSION_TEXT ") does not know this call: update the older side";
    *status = INSPAN_AUTH;
    bool open_to_all = service != &server->services[RPC_SERVICE_USER];
    if (!open_to_all && !authorised(server, &server->accept.metadata))
        return "wrong or missing cluster token: the join command that `inspan up` prints has the right one";
    return NULL;
}

static bool watch_end(rpc_call_t *call)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    return grpc_call_start_batch(call->grpc, &op, 1, &call->over, NULL) == GRPC_CALL_OK;
}

void rpc_call_accept(rpc_server_t *server)
{
    rpc_call_t *call = calloc(1, sizeof *call);
    if (call != NULL) {
        call->grpc = server->accept.call;
        call->over.done = over_done;
        call->received.done = received_done;
        call->sent.done = sent_done;
        call->status_text = grpc_empty_slice();
    }
    if (call == NULL || !watch_end(call)) {
        grpc_call_unref(server->accept.call); /* the client sees it cancelled */
        free(call);
        return;
    }
    call->server = server;
    call->next = server->calls;
    if (server->calls != NULL) server->calls->previous = call;
    server->calls = call;
    server->n_calls++;
    set_peer(call);

    rpc_service_t *service = NULL;
    const rpc_method_t *method = find_method(server, server->accept.details.method, &service);
    inspan_status_t status = INSPAN_OK;
    const char *text = objection(server, service, &status);
    if (text != NULL) {
        rpc_call_finish(call, status, text);
        return;
    }
    call->method = method;
    call->context = service->context;
    if (method->on_open != NULL) method->on_open(call->context, call);
    receive(call);
}

void rpc_call_set_data(rpc_call_t *call, void *data)
{
    call->data = data;
}

void *rpc_call_data(const rpc_call_t *call)
{
    return call->data;
}

const char *rpc_call_peer(const rpc_call_t *call)
{
    return call->peer;
}

size_t rpc_call_queued(const rpc_call_t *call)
{
    return call->queue.bytes + call->outgoing_bytes;
}
