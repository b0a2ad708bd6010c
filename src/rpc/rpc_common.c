#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "rpc/rpc_internal.h"

/* ---- Library ---- */

static void set_defaults(void)
{
    setenv("GRPC_VERBOSITY", "NONE",
           0); /* our errors say what matters; gRPC's own lines would come between */
    setenv("GRPC_DNS_RESOLVER", "native", 0); /* the machine's resolver: it knows mDNS names and /etc/hosts */
}

void rpc_signals_block(void *saved)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, saved);
}

void rpc_signals_restore(const void *saved)
{
    pthread_sigmask(SIG_SETMASK, saved, NULL);
}

void rpc_library_acquire(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_defaults);
    sigset_t saved;
    rpc_signals_block(&saved);
    grpc_init();
    rpc_signals_restore(&saved);
}

void rpc_library_release(void)
{
    grpc_shutdown_blocking();
}

/* ---- Messages ---- */

grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message, size_t *bytes)
{
    *bytes = protobuf_c_message_get_packed_size(message);
    if (*bytes > RPC_MESSAGE_LIMIT) return NULL;
    grpc_slice slice = grpc_slice_malloc(*bytes);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/* Two bytes on the wire can become a hundred in memory (an empty element of a repeated field): decoding has a
 * budget. */
static void *budget_alloc(void *left, size_t bytes)
{
    size_t *budget = left;
    if (bytes > *budget) return NULL;
    *budget -= bytes;
    return malloc(bytes);
}

static void budget_free(void *left, void *pointer)
{
    (void)left;
    free(pointer);
}

ProtobufCMessage *rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    size_t budget = RPC_UNPACKED_LIMIT;
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
    ProtobufCMessage *message =
        protobuf_c_message_unpack(type, &allocator, GRPC_SLICE_LENGTH(slice), GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

static bool queue_grow(rpc_queue_t *queue)
{
    uint32_t capacity = queue->capacity ? queue->capacity * 2 : 4;
    struct rpc_item *items = malloc(capacity * sizeof *items);
    if (items == NULL) return false;
    for (uint32_t i = 0; i < queue->n; i++) items[i] = queue->items[(queue->head + i) % queue->capacity];
    free(queue->items);
    queue->items = items;
    queue->head = 0;
    queue->capacity = capacity;
    return true;
}

bool rpc_queue_push(rpc_queue_t *queue, grpc_byte_buffer *buffer, size_t bytes)
{
    if (queue->n == queue->capacity && !queue_grow(queue)) return false;
    queue->items[(queue->head + queue->n++) % queue->capacity] = (struct rpc_item){buffer, bytes};
    queue->bytes += bytes;
    return true;
}

grpc_byte_buffer *rpc_queue_pop(rpc_queue_t *queue, size_t *bytes)
{
    if (queue->n == 0) return NULL;
    struct rpc_item item = queue->items[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->n--;
    queue->bytes -= item.bytes;
    *bytes = item.bytes;
    return item.buffer;
}

void rpc_queue_clear(rpc_queue_t *queue)
{
    size_t bytes;
    for (grpc_byte_buffer *buffer; (buffer = rpc_queue_pop(queue, &bytes)) != NULL;)
        grpc_byte_buffer_destroy(buffer);
    free(queue->items);
    *queue = (rpc_queue_t){0};
}

/* ---- Statuses ---- */

static const struct {
    const char *name;
    grpc_status_code code;
} statuses[] = {
    [INSPAN_OK] = {"OK", GRPC_STATUS_OK},
    [INSPAN_PENDING] = {"PENDING", GRPC_STATUS_INTERNAL},
    [INSPAN_INVALID] = {"INVALID", GRPC_STATUS_INVALID_ARGUMENT},
    [INSPAN_NO_MEMORY] = {"NO_MEMORY", GRPC_STATUS_RESOURCE_EXHAUSTED},
    [INSPAN_TIMEOUT] = {"TIMEOUT", GRPC_STATUS_DEADLINE_EXCEEDED},
    [INSPAN_ABORTED] = {"ABORTED", GRPC_STATUS_CANCELLED},
    [INSPAN_PEER_LOST] = {"PEER_LOST", GRPC_STATUS_ABORTED},
    [INSPAN_REFUSED] = {"REFUSED", GRPC_STATUS_FAILED_PRECONDITION},
    [INSPAN_UNREACHABLE] = {"UNREACHABLE", GRPC_STATUS_UNAVAILABLE},
    [INSPAN_AUTH] = {"AUTH", GRPC_STATUS_UNAUTHENTICATED},
    [INSPAN_VERSION] = {"VERSION", GRPC_STATUS_FAILED_PRECONDITION},
    [INSPAN_MISMATCH] = {"MISMATCH", GRPC_STATUS_FAILED_PRECONDITION},
    [INSPAN_NOT_FOUND] = {"NOT_FOUND", GRPC_STATUS_NOT_FOUND},
    [INSPAN_EXISTS] = {"EXISTS", GRPC_STATUS_ALREADY_EXISTS},
    [INSPAN_LIMIT] = {"LIMIT", GRPC_STATUS_RESOURCE_EXHAUSTED},
    [INSPAN_CORRUPT] = {"CORRUPT", GRPC_STATUS_DATA_LOSS},
    [INSPAN_IO] = {"IO", GRPC_STATUS_INTERNAL},
    [INSPAN_UNSUPPORTED] = {"UNSUPPORTED", GRPC_STATUS_UNIMPLEMENTED},
    [INSPAN_JOB_FAILED] = {"JOB_FAILED", GRPC_STATUS_ABORTED},
    [INSPAN_INTERNAL] = {"INTERNAL", GRPC_STATUS_INTERNAL},
};
#define N_STATUSES (sizeof statuses / sizeof statuses[0])

#define X(name, text) +1
_Static_assert(N_STATUSES == INSPAN_STATUS_LIST(X), "every status has its line in the table");
#undef X

grpc_status_code rpc_status_to_grpc(inspan_status_t status)
{
    return (unsigned)status < N_STATUSES ? statuses[status].code : GRPC_STATUS_INTERNAL;
}

const char *rpc_status_name(inspan_status_t status)
{
    return (unsigned)status < N_STATUSES ? statuses[status].name : "INTERNAL";
}

inspan_status_t rpc_status_from_grpc(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK: return INSPAN_OK;
    case GRPC_STATUS_CANCELLED: return INSPAN_ABORTED;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE: return INSPAN_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED: return INSPAN_TIMEOUT;
    case GRPC_STATUS_NOT_FOUND: return INSPAN_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS: return INSPAN_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED: return INSPAN_AUTH;
    case GRPC_STATUS_RESOURCE_EXHAUSTED: return INSPAN_LIMIT;
    case GRPC_STATUS_FAILED_PRECONDITION: return INSPAN_REFUSED;
    case GRPC_STATUS_ABORTED: return INSPAN_ABORTED;
    case GRPC_STATUS_UNIMPLEMENTED: return INSPAN_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE: return INSPAN_UNREACHABLE;
    case GRPC_STATUS_DATA_LOSS: return INSPAN_CORRUPT;
    default: return INSPAN_INTERNAL;
    }
}

bool rpc_status_find(const grpc_metadata_array *trailing, inspan_status_t *status)
{
    for (size_t i = 0; i < trailing->count; i++) {
        if (grpc_slice_str_cmp(trailing->metadata[i].key, RPC_STATUS_METADATA) != 0) continue;
        for (size_t s = 0; s < N_STATUSES; s++)
            if (grpc_slice_str_cmp(trailing->metadata[i].value, statuses[s].name) == 0) {
                *status = (inspan_status_t)s;
                return true;
            }
    }
    return false;
}

/* ---- Time ---- */

gpr_timespec rpc_deadline(ns_t from_now)
{
    if (from_now < 0) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(from_now, GPR_TIMESPAN));
}
