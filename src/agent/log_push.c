/*
 * One thread per log request: sends the log's files on a PushLog stream of its own, follows them where asked,
 * and ends when the logs have ended or the manager hangs up. dropped_bytes of a chunk: what the cap or a full
 * disk took between the chunk before and this one. The last chunk has `end`.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/internal.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"

enum { PIECE = 65536, LINE = 4096 };

static const ns_t send_timeout = 20 * NS_PER_S;
static const ns_t follow_period = 500 * NS_PER_MS; /* how soon a hung-up viewer is noticed */

typedef struct source {
    uint32_t rank;
    worker_log_t *log;
    uint64_t at, lost_told;
    bool done;
} source_t;

struct agent_push {
    agent_t *agent;
    uint64_t request_id;
    bool follow;
    source_t sources[AGENT_WORKERS];
    uint32_t n;
    pthread_t thread;
    pthread_mutex_t mutex;
    rpc_stream_t *stream;
    bool cancelled;
    uint8_t piece[PIECE];
};

static inspan_status_t send_chunk(agent_push_t *push, rpc_stream_t *stream, uint32_t rank, uint64_t offset,
                                  size_t n, uint64_t dropped, bool end)
{
    Inspan__V1__LogChunk chunk = INSPAN__V1__LOG_CHUNK__INIT;
    chunk.request_id = push->request_id;
    chunk.rank = rank;
    chunk.offset = offset;
    chunk.data.data = push->piece;
    chunk.data.len = n;
    chunk.dropped_bytes = dropped;
    chunk.end = end;
    return rpc_stream_send(stream, &chunk.base, send_timeout, NULL);
}

/* What is there of one log; *moved when something was sent. */
static inspan_status_t send_source(agent_push_t *push, rpc_stream_t *stream, source_t *source, bool *moved)
{
    worker_log_extent_t extent;
    worker_log_look(source->log, &extent); /* before reading: what comes later is for the next round */
    for (;;) {
        uint64_t wanted = source->at;
        size_t n = worker_log_read(source->log, &source->at, push->piece, PIECE);
        uint64_t dropped = source->at - wanted + (extent.lost - source->lost_told);
        if (n == 0 && dropped == 0) break;
        inspan_status_t status = send_chunk(push, stream, source->rank, source->at, n, dropped, false);
        if (status != INSPAN_OK) return status;
        source->at += n;
        source->lost_told = extent.lost;
        *moved = true;
        if (source->at >= extent.end) break;
    }
    source->done = source->at >= extent.end && (extent.ended || !push->follow);
    return INSPAN_OK;
}

/* TIMEOUT: the viewer is still there. */
static inspan_status_t check_viewer(rpc_stream_t *stream)
{
    ProtobufCMessage *message = NULL;
    inspan_status_t status = rpc_stream_next(stream, 0, &message, NULL);
    if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
    return status;
}

static void send_logs(agent_push_t *push, rpc_stream_t *stream)
{
    uint32_t last_rank = push->n > 0 ? push->sources[push->n - 1].rank : 0;
    for (;;) {
        bool moved = false;
        source_t *open = NULL;
        for (uint32_t i = 0; i < push->n; i++) {
            if (push->sources[i].done) continue;
            if (send_source(push, stream, &push->sources[i], &moved) != INSPAN_OK) return;
            if (!push->sources[i].done) open = &push->sources[i];
        }
        if (open == NULL) break;
        if (check_viewer(stream) != INSPAN_TIMEOUT) return;
        if (!moved) worker_log_wait(open->log, open->at, follow_period);
    }
    if (send_chunk(push, stream, last_rank, push->n > 0 ? push->sources[push->n - 1].at : 0, 0, 0, true) !=
        INSPAN_OK)
        return;
    rpc_stream_half_close(stream);
    ProtobufCMessage *reply = NULL;
    if (rpc_stream_next(stream, send_timeout, &reply, NULL) == INSPAN_OK && reply != NULL)
        protobuf_c_message_free_unpacked(reply, NULL);
}

static void *run(void *context)
{
    agent_push_t *push = context;
    rpc_stream_t *stream = NULL;
    inspan_error_t err;
    if (rpc_stream_open(push->agent->client, "/inspan.v1.Agents/PushLog", &inspan__v1__empty__descriptor,
                        &stream, &err) != INSPAN_OK) {
        log_warn("cannot send a log: %s", err.text);
    } else {
        pthread_mutex_lock(&push->mutex);
        push->stream = stream;
        bool go_on = !push->cancelled;
        pthread_mutex_unlock(&push->mutex);
        if (go_on) send_logs(push, stream);
        pthread_mutex_lock(&push->mutex);
        push->stream = NULL;
        pthread_mutex_unlock(&push->mutex);
        rpc_stream_close(stream);
    }
    inbox_post(push->agent->inbox,
               (inbox_message_t){AGENT_PUSH_DONE, 0, push}); /* shut: push_cancel_all joins */
    return NULL;
}

/* ---- Which logs ------------------------------------------------------------------------------ */

/* The beginning of the line that `at` lies in, unless that is longer than people read. */
static uint64_t line_start(agent_push_t *push, worker_log_t *log, uint64_t first, uint64_t at)
{
    uint64_t from = at - first > LINE ? at - LINE : first, start = from == first ? first : at;
    while (from < at) {
        size_t n = worker_log_read(log, &from, push->piece, at - from);
        for (size_t i = 0; i < n; i++)
            if (push->piece[i] == '\n') start = from + i + 1;
        if (n == 0) break;
        from += n;
    }
    return start <= at ? start : at;
}

static void add_source(agent_push_t *push, uint32_t rank, worker_log_t *log, uint64_t tail_bytes)
{
    if (push->n == AGENT_WORKERS) {
        worker_log_release(log);
        return;
    }
    worker_log_extent_t extent;
    worker_log_look(log, &extent);
    uint64_t kept = extent.end - extent.first;
    uint64_t at = 0;
    if (tail_bytes >= kept && tail_bytes > 0) at = extent.first;
    if (tail_bytes < kept && tail_bytes > 0)
        at = line_start(push, log, extent.first, extent.end - tail_bytes);
    push->sources[push->n++] = (source_t){.rank = rank, .log = log, .at = at};
}

static bool has_rank(const agent_push_t *push, uint32_t rank)
{
    for (uint32_t i = 0; i < push->n; i++)
        if (push->sources[i].rank == rank) return true;
    return false;
}

/* Of workers that this agent knows, then of files that earlier ones left. */
static void find_sources(agent_push_t *push, const Inspan__V1__LogRequest *request)
{
    char folder[PATH_MAX];
    for (agent_worker_t *worker = NULL; (worker = agent_core_each(push->agent->core, worker)) != NULL;) {
        process_t *process = worker->shell;
        if (worker->job != request->job_id || process == NULL || process->log == NULL) continue;
        if (request->rank >= 0 && (uint32_t)request->rank != worker->rank) continue;
        add_source(push, worker->rank, worker_log_hold(process->log), request->tail_bytes);
    }
    snprintf(folder, sizeof folder, "%.3300s/jobs/%llu", push->agent->folder,
             (unsigned long long)request->job_id);
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        char path[PATH_MAX];
        unsigned rank = 0;
        int length = 0;
        worker_log_t *log = NULL;
        if (sscanf(entry->d_name, "rank-%u.log%n", &rank, &length) != 1 || entry->d_name[length] != '\0')
            continue;
        if ((request->rank >= 0 && (uint32_t)request->rank != rank) || has_rank(push, rank)) continue;
        snprintf(path, sizeof path, "%.3500s/%.255s", folder, entry->d_name);
        if (worker_log_open(path, &log, NULL) == INSPAN_OK) add_source(push, rank, log, request->tail_bytes);
    }
    if (listing != NULL) closedir(listing);
}

static void destroy(agent_push_t *push)
{
    for (uint32_t i = 0; i < push->n; i++) worker_log_release(push->sources[i].log);
    pthread_mutex_destroy(&push->mutex);
    free(push);
}

void push_start(agent_t *agent, const Inspan__V1__LogRequest *request)
{
    uint32_t slot = 0;
    while (slot < AGENT_PUSHES && agent->pushes[slot] != NULL) slot++;
    agent_push_t *push = slot < AGENT_PUSHES ? calloc(1, sizeof *push) : NULL;
    if (push == NULL) {
        log_warn("log request %llu is not served: %d are served already",
                 (unsigned long long)request->request_id, AGENT_PUSHES);
        return;
    }
    push->agent = agent;
    push->request_id = request->request_id;
    push->follow = request->follow;
    pthread_mutex_init(&push->mutex, NULL);
    find_sources(push, request);
    if (pthread_create(&push->thread, NULL, run, push) != 0) {
        log_warn("log request %llu is not served: no thread", (unsigned long long)request->request_id);
        destroy(push);
        return;
    }
    agent->pushes[slot] = push;
}

void push_finish(agent_t *agent, agent_push_t *push)
{
    for (uint32_t i = 0; i < AGENT_PUSHES; i++)
        if (agent->pushes[i] == push) agent->pushes[i] = NULL;
    pthread_join(push->thread, NULL);
    destroy(push);
}

void push_cancel_all(agent_t *agent)
{
    for (uint32_t i = 0; i < AGENT_PUSHES; i++) {
        agent_push_t *push = agent->pushes[i];
        if (push == NULL) continue;
        pthread_mutex_lock(&push->mutex);
        push->cancelled = true;
        if (push->stream != NULL) rpc_stream_cancel(push->stream);
        pthread_mutex_unlock(&push->mutex);
        push_finish(agent, push);
    }
}
