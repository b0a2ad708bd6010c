/*
 * Cluster.ReadLog: the manager keeps no log of a worker, its agent does. For every rank wanted, the agent is
 * asked over its stream and pushes the lines over a stream of its own (Agents.PushLog); both meet here by the
 * request's number.
 *
 *   reader ---ReadLog(job, rank)---> manager ---LogRequest(request_id)---> agent
 *   reader <--------LogChunk-------- manager <---PushLog(request_id)------ agent
 *
 * A part (one rank) has ended by its `end` chunk, by the end of its push, or when its node is gone; the read
 * ends with its last part. A reader that is slower than the agents loses whole chunks, which are counted in
 * dropped_bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/service/service_internal.h"

#define READS_MAX   64
#define SLOW_BYTES  (12u << 20)
#define PUSH_WITHIN (10 * NS_PER_S)

typedef struct log_part {
    uint64_t request_id;
    uint64_t node;
    uint32_t rank;
    rpc_call_t *push;
    bool ended;
    uint64_t dropped;
} log_part_t;

struct log_read {
    rpc_call_t *call;
    ns_t asked;
    uint32_t n;
    bool over, any;
    char trouble[256];
    log_part_t *parts;
    log_read_t *next;
};

static log_part_t *find_part(service_t *service, uint64_t request_id, log_read_t **owner)
{
    for (log_read_t *read = service->log_reads; read != NULL; read = read->next)
        for (uint32_t i = 0; i < read->n; i++)
            if (read->parts[i].request_id == request_id) {
                *owner = read;
                return &read->parts[i];
            }
    return NULL;
}

static void finish_when_all_ended(log_read_t *read)
{
    if (read->over) return;
    for (uint32_t i = 0; i < read->n; i++)
        if (!read->parts[i].ended) return;
    read->over = true;
    if (read->any || read->trouble[0] == '\0')
        rpc_call_finish(read->call, INSPAN_OK, "");
    else
        rpc_call_finish(read->call, INSPAN_UNREACHABLE, read->trouble);
}

static void end_part(log_read_t *read, log_part_t *part)
{
    if (part->ended) return;
    part->ended = true;
    Inspan__V1__LogChunk chunk = INSPAN__V1__LOG_CHUNK__INIT;
    chunk.rank = part->rank;
    chunk.end = true;
    chunk.dropped_bytes = part->dropped;
    if (!read->over && read->any)
        (void)rpc_call_send(read->call, &chunk.base); /* a closed reader needs no end */
    finish_when_all_ended(read);
}

static bool ask(service_t *service, const Inspan__V1__LogRequest *wanted, log_part_t *part)
{
    fleet_node_t *node = fleet_node_by_handle(service->fleet, part->node);
    Inspan__V1__LogRequest request = INSPAN__V1__LOG_REQUEST__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    request.job_id = wanted->job_id;
    request.rank = (int32_t)part->rank;
    request.follow = wanted->follow;
    request.tail_bytes = wanted->tail_bytes;
    request.request_id = part->request_id;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_LOG;
    down.log = &request;
    return node != NULL && agents_send(service, node, &down);
}

static log_read_t *open_read(service_t *service, rpc_call_t *call, const fleet_job_t *job, int32_t rank)
{
    log_read_t *read = calloc(1, sizeof *read);
    uint32_t world = job->control.world;
    if (read != NULL) read->parts = calloc(world, sizeof *read->parts);
    if (read == NULL || read->parts == NULL) {
        free(read);
        return NULL;
    }
    read->call = call;
    read->asked = os_now();
    for (uint32_t r = 0; r < world; r++) {
        if (rank >= 0 && (uint32_t)rank != r) continue;
        log_part_t *part = &read->parts[read->n++];
        part->rank = r;
        part->node = job->control.ranks[r].node;
        part->request_id = ++service->last_log_request;
    }
    read->next = service->log_reads;
    service->log_reads = read;
    service->n_log_reads++;
    rpc_call_set_data(call, read);
    return read;
}

static void start_read(service_t *service, rpc_call_t *call, const fleet_job_t *job,
                       const Inspan__V1__LogRequest *wanted)
{
    char text[256];
    if (job->control.world == 0) {
        snprintf(text, sizeof text, "job %llu has no worker and no log (%s)",
                 (unsigned long long)wanted->job_id, control_job_text(&job->control));
        rpc_call_finish(call, INSPAN_NOT_FOUND, text);
        return;
    }
    if (wanted->rank >= (int32_t)job->control.world) {
        snprintf(text, sizeof text, "job %llu has ranks 0 to %u, not %d", (unsigned long long)wanted->job_id,
                 job->control.world - 1, wanted->rank);
        rpc_call_finish(call, INSPAN_NOT_FOUND, text);
        return;
    }
    log_read_t *read = service->n_log_reads < READS_MAX ? open_read(service, call, job, wanted->rank) : NULL;
    if (read == NULL) {
        rpc_call_finish(call, INSPAN_LIMIT, "too many readers of logs at once");
        return;
    }
    for (uint32_t i = 0; i < read->n; i++) {
        log_part_t *part = &read->parts[i];
        if (ask(service, wanted, part)) continue;
        part->ended = true;
        snprintf(
            read->trouble, sizeof read->trouble,
            "node %s is not connected: the log of rank %u lies there, in jobs/%llu/rank-%u.log of its agent",
            job->control.ranks[part->rank].node_name, part->rank, (unsigned long long)wanted->job_id,
            part->rank);
    }
    finish_when_all_ended(read);
}

void logs_read(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const Inspan__V1__LogRequest *wanted = (const Inspan__V1__LogRequest *)message;
    fleet_job_t *loaded = NULL;
    inspan_error_t err;
    const fleet_job_t *job = fleet_job_or_load(service->fleet, wanted->job_id, os_now(), &loaded, &err);
    if (job != NULL)
        start_read(service, call, job, wanted);
    else
        service_fail(call, &err);
    fleet_job_free(loaded);
}

void logs_read_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    log_read_t *read = rpc_call_data(call);
    if (read == NULL) return;
    read->over = true;
    for (uint32_t i = 0; i < read->n; i++)
        if (read->parts[i].push != NULL)
            rpc_call_finish(read->parts[i].push, INSPAN_ABORTED, "nobody reads this log any more");
    for (log_read_t **at = &service->log_reads; *at != NULL; at = &(*at)->next)
        if (*at == read) {
            *at = read->next;
            break;
        }
    service->n_log_reads--;
    free(read->parts);
    free(read);
}

/* ---- The agents' side: a push knows only its request's number, so that the reader may go at any time ----
 */

typedef struct push {
    uint64_t request_id;
} push_t;

static void forward(log_read_t *read, log_part_t *part, const Inspan__V1__LogChunk *from)
{
    read->any = true;
    part->dropped += from->dropped_bytes;
    if (rpc_call_queued(read->call) > SLOW_BYTES) {
        part->dropped += from->data.len;
        return;
    }
    Inspan__V1__LogChunk chunk = *from;
    chunk.request_id = 0;
    chunk.rank = part->rank;
    chunk.dropped_bytes = part->dropped;
    chunk.end = false;
    if (from->data.len == 0 && chunk.dropped_bytes == 0) return;
    if (rpc_call_send(read->call, &chunk.base) == INSPAN_OK)
        part->dropped = 0;
    else
        part->dropped += from->data.len;
}

static push_t *begin_push(rpc_call_t *call, log_part_t *part)
{
    push_t *push = part != NULL && part->push == NULL && !part->ended ? calloc(1, sizeof *push) : NULL;
    if (push == NULL) {
        rpc_call_finish(call, INSPAN_NOT_FOUND, "nobody waits for this log");
        return NULL;
    }
    push->request_id = part->request_id;
    part->push = call;
    rpc_call_set_data(call, push);
    return push;
}

void logs_push(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const Inspan__V1__LogChunk *chunk = (const Inspan__V1__LogChunk *)message;
    push_t *push = rpc_call_data(call);
    log_read_t *read = NULL;
    log_part_t *part = find_part(service, push != NULL ? push->request_id : chunk->request_id, &read);
    if (push == NULL && begin_push(call, part) == NULL) return;
    if (part == NULL || part->ended || read->over) return;
    forward(read, part, chunk);
    if (chunk->end) end_part(read, part);
}

void logs_push_half_close(void *context, rpc_call_t *call)
{
    service_t *service = context;
    const push_t *push = rpc_call_data(call);
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    if (push == NULL) {
        rpc_call_finish(call, INSPAN_INVALID, "no log came");
        return;
    }
    log_read_t *read = NULL;
    log_part_t *part = find_part(service, push->request_id, &read);
    if (part != NULL) end_part(read, part);
    rpc_call_reply(call, &empty.base);
}

void logs_push_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    push_t *push = rpc_call_data(call);
    if (push == NULL) return;
    log_read_t *read = NULL;
    log_part_t *part = find_part(service, push->request_id, &read);
    free(push);
    if (part == NULL) return;
    part->push = NULL;
    end_part(read, part);
}

void logs_tick(service_t *service, ns_t now)
{
    for (log_read_t *read = service->log_reads; read != NULL; read = read->next) {
        if (read->over || now - read->asked < PUSH_WITHIN) continue;
        for (uint32_t i = 0; i < read->n; i++) {
            log_part_t *part = &read->parts[i];
            if (part->ended || part->push != NULL) continue;
            snprintf(read->trouble, sizeof read->trouble,
                     "the agent of rank %u did not send its log within 10 s", part->rank);
            end_part(read, part);
        }
    }
}
