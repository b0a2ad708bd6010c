#include "rpc/rpc_test_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspan/v1/inspan.pb-c.h"

#define CHUNK (256u << 10)

static void on_open(void *context, rpc_call_t *call)
{
    test_service_t *service = context;
    snprintf(service->peer, sizeof service->peer, "%s", rpc_call_peer(call));
    atomic_fetch_add(&service->opened, 1);
}

static void on_closed(void *context, rpc_call_t *call)
{
    test_service_t *service = context;
    if (service->waiting == call) service->waiting = NULL;
    free(rpc_call_data(call));
    atomic_fetch_add(&service->closed, 1);
}

static void reply_job(rpc_call_t *call, uint64_t id, size_t name_bytes)
{
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    char *name = malloc(name_bytes + 1);
    if (name == NULL) abort();
    memset(name, 'x', name_bytes);
    name[name_bytes] = 0;
    job.id = id;
    job.name = name;
    rpc_call_reply(call, &job.base);
    free(name);
}

static void get_job(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_service_t *service = context;
    const Inspan__V1__JobRequest *request = (const Inspan__V1__JobRequest *)message;
    atomic_fetch_add(&service->messages, 1);
    switch (request->id) {
    case 2: rpc_call_finish(call, INSPAN_NOT_FOUND, "no job 2 – one of 3"); break;
    case 3: break;
    case 4: service->waiting = call; break;
    case 5: reply_job(call, 5, 5u << 20); break;
    default: reply_job(call, request->id, 3); break;
    }
}

static void watch(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    (void)context;
    const Inspan__V1__JobRequest *request = (const Inspan__V1__JobRequest *)message;
    Inspan__V1__JobEvent event = INSPAN__V1__JOB_EVENT__INIT;
    for (uint64_t i = 0; i < request->id; i++) {
        event.wall_ns = (int64_t)i;
        if (rpc_call_send(call, &event.base) != INSPAN_OK) return;
    }
    rpc_call_finish(call, INSPAN_OK, NULL);
}

static void put(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    (void)context;
    const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)message;
    uint64_t *bytes = rpc_call_data(call);
    if (bytes == NULL) {
        bytes = calloc(1, sizeof *bytes);
        if (bytes == NULL) abort();
        rpc_call_set_data(call, bytes);
    }
    *bytes += chunk->data.len;
    if (chunk->total_bytes == 666) rpc_call_finish(call, INSPAN_LIMIT, "the file is too large");
}

static void put_half_close(void *context, rpc_call_t *call)
{
    test_service_t *service = context;
    atomic_fetch_add(&service->half_closed, 1);
    uint64_t *bytes = rpc_call_data(call);
    Inspan__V1__FileStat stat = INSPAN__V1__FILE_STAT__INIT;
    stat.bytes = bytes != NULL ? *bytes : 0;
    stat.present = true;
    rpc_call_reply(call, &stat.base);
}

static void get_more(void *context, rpc_call_t *call)
{
    test_service_t *service = context;
    uint64_t *left = rpc_call_data(call);
    static uint8_t zeros[CHUNK];
    while (*left > 0 && rpc_call_queued(call) < (1u << 20)) {
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.data.data = zeros;
        chunk.data.len = *left < CHUNK ? (size_t)*left : CHUNK;
        if (rpc_call_send(call, &chunk.base) != INSPAN_OK) return;
        *left -= chunk.data.len;
    }
    if (rpc_call_queued(call) > atomic_load(&service->most_queued))
        atomic_store(&service->most_queued, rpc_call_queued(call));
    if (*left == 0) rpc_call_finish(call, INSPAN_OK, NULL);
}

static void get(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    uint64_t *left = malloc(sizeof *left);
    if (left == NULL) abort();
    *left = ((const Inspan__V1__FileId *)message)->bytes;
    rpc_call_set_data(call, left);
    get_more(context, call);
}

static void attach(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_service_t *service = context;
    const Inspan__V1__AgentUp *up = (const Inspan__V1__AgentUp *)message;
    atomic_fetch_add(&service->messages, 1);
    if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_HEARTBEAT) return;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    Inspan__V1__LogRequest log = INSPAN__V1__LOG_REQUEST__INIT;
    log.request_id = up->heartbeat->sequence;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_LOG;
    down.log = &log;
    if (up->heartbeat->sequence == 13) {
        rpc_call_finish(call, INSPAN_VERSION, "protocol 2 here, 1 there");
        return;
    }
    if (up->heartbeat->sequence != 99) {
        rpc_call_send(call, &down.base);
        return;
    }
    unsigned n = 0;
    inspan_status_t status;
    while ((status = rpc_call_send(call, &down.base)) == INSPAN_OK) n++;
    if (status == INSPAN_LIMIT) atomic_store(&service->limit_after, n);
}

static void attach_half_close(void *context, rpc_call_t *call)
{
    test_service_t *service = context;
    atomic_fetch_add(&service->half_closed, 1);
    rpc_call_finish(call, INSPAN_OK, NULL);
}

static void tick(void *context, ns_t now)
{
    (void)now;
    test_service_t *service = context;
    if (service->waiting == NULL) return;
    rpc_call_t *call = service->waiting;
    service->waiting = NULL;
    reply_job(call, 4, 3);
}

static const rpc_method_t methods[] = {
    {.path = "/inspan.v1.Cluster/GetJob",
     .request = &inspan__v1__job_request__descriptor,
     .on_open = on_open,
     .on_message = get_job,
     .on_closed = on_closed},
    {.path = "/inspan.v1.Cluster/Watch",
     .request = &inspan__v1__job_request__descriptor,
     .server_streams = true,
     .on_message = watch},
    {.path = "/inspan.v1.Files/Put",
     .request = &inspan__v1__file_chunk__descriptor,
     .client_streams = true,
     .on_open = on_open,
     .on_message = put,
     .on_half_close = put_half_close,
     .on_closed = on_closed},
    {.path = "/inspan.v1.Files/Get",
     .request = &inspan__v1__file_id__descriptor,
     .server_streams = true,
     .on_open = on_open,
     .on_message = get,
     .on_closed = on_closed,
     .on_writable = get_more},
    {.path = "/inspan.v1.Agents/Attach",
     .request = &inspan__v1__agent_up__descriptor,
     .client_streams = true,
     .server_streams = true,
     .on_open = on_open,
     .on_message = attach,
     .on_half_close = attach_half_close,
     .on_closed = on_closed},
};

void test_service_fill(test_service_t *service, rpc_server_options_t *options)
{
    options->methods = methods;
    options->n_methods = sizeof methods / sizeof methods[0];
    options->context = service;
    options->tick = tick;
    options->tick_period = 20 * NS_PER_MS;
}
