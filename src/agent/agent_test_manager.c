#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "agent/agent_test.h"
#include "base/hash.h"
#include "base/vec.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "rpc/rpc.h"

typedef struct pushed {
    uint64_t request_id, bytes, dropped;
    char *text;
    bool ended;
} pushed_t;

typedef struct upload { /* the state of one Put */
    char hash[33];
    uint64_t total;
    vec_of(uint8_t) data;
    bool named;
} upload_t;

struct test_manager {
    char folder[256];
    rpc_server_t *server;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t mutex;
    os_cond_t changed;
    rpc_call_t *session;
    vec_of(ProtobufCMessage *) orders;
    vec_of(Inspan__V1__AgentUp *) ups;
    vec_of(pushed_t *) logs;
    unsigned heartbeats, left, gets, muted;
    bool has_vitals;
    Inspan__V1__Vitals vitals; /* of the last heartbeat */
    char limit[64];
    bool mute, hold, held; /* hold: registrations are not answered; held: one is not */
    inspan_status_t refusal;
    char refusal_text[128], given_id[64], held_id[64];
};

/* ---- On the server's thread */

static void *copy_of(const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);
    protobuf_c_message_pack(message, bytes);
    void *copy = protobuf_c_message_unpack(message->descriptor, NULL, n, bytes);
    free(bytes);
    return copy;
}

static void answer_registration(test_manager_t *manager)
{
    Inspan__V1__Registered registered = INSPAN__V1__REGISTERED__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    registered.node_id = manager->given_id[0] ? manager->given_id : manager->held_id;
    registered.name = (char *)"attic-2";
    registered.heartbeat_ns = 50 * NS_PER_MS;
    registered.failure_timeout_ns = NS_PER_S;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_REGISTERED;
    down.registered = &registered;
    rpc_call_send(manager->session, &down.base);
}

static void attach_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_manager_t *manager = context;
    const Inspan__V1__AgentUp *up = (const Inspan__V1__AgentUp *)message;
    pthread_mutex_lock(&manager->mutex);
    if (up->kind_case == INSPAN__V1__AGENT_UP__KIND_HEARTBEAT) {
        manager->heartbeats++;
        if (up->heartbeat->vitals != NULL) {
            manager->vitals = *up->heartbeat->vitals;
            snprintf(manager->limit, sizeof manager->limit, "%s", manager->vitals.limit);
            manager->vitals.limit = manager->limit;
            manager->has_vitals = true;
        }
    } else {
        Inspan__V1__AgentUp *copy = copy_of(message);
        VEC_PUSH(&manager->ups, copy);
    }
    if (up->kind_case == INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE && manager->refusal != INSPAN_OK) {
        rpc_call_finish(call, manager->refusal, manager->refusal_text);
    } else if (up->kind_case == INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE) {
        manager->session = call;
        snprintf(manager->held_id, sizeof manager->held_id, "%s", up->register_node->node_id);
        manager->held = manager->hold;
        if (!manager->hold) answer_registration(manager);
    }
    os_cond_broadcast(&manager->changed);
    pthread_mutex_unlock(&manager->mutex);
}

static void attach_half_close(void *context, rpc_call_t *call)
{
    test_manager_t *manager = context;
    pthread_mutex_lock(&manager->mutex);
    manager->left++;
    os_cond_broadcast(&manager->changed);
    pthread_mutex_unlock(&manager->mutex);
    rpc_call_finish(call, INSPAN_OK, "");
}

static void attach_closed(void *context, rpc_call_t *call)
{
    test_manager_t *manager = context;
    pthread_mutex_lock(&manager->mutex);
    if (manager->session == call) manager->session = NULL;
    pthread_mutex_unlock(&manager->mutex);
}

static void log_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_manager_t *manager = context;
    const Inspan__V1__LogChunk *chunk = (const Inspan__V1__LogChunk *)message;
    (void)call;
    pthread_mutex_lock(&manager->mutex);
    pushed_t *log = NULL;
    for (size_t i = 0; i < manager->logs.n; i++)
        if (manager->logs.items[i]->request_id == chunk->request_id) log = manager->logs.items[i];
    if (log == NULL) {
        log = calloc(1, sizeof *log);
        log->request_id = chunk->request_id;
        VEC_PUSH(&manager->logs, log);
    }
    log->text = realloc(log->text, log->bytes + chunk->data.len + 1);
    if (chunk->data.len > 0) memcpy(log->text + log->bytes, chunk->data.data, chunk->data.len);
    log->bytes += chunk->data.len;
    log->text[log->bytes] = '\0';
    log->dropped += chunk->dropped_bytes;
    log->ended |= chunk->end;
    os_cond_broadcast(&manager->changed);
    pthread_mutex_unlock(&manager->mutex);
}

static void log_half_close(void *context, rpc_call_t *call)
{
    (void)context;
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    rpc_call_reply(call, &empty.base);
}

static void file_path(const test_manager_t *manager, const char *hash, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", manager->folder, hash);
}

static void stat_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_manager_t *manager = context;
    pthread_mutex_lock(&manager->mutex);
    bool mute = manager->mute;
    manager->muted += mute;
    os_cond_broadcast(&manager->changed);
    pthread_mutex_unlock(&manager->mutex);
    if (mute) return;
    const Inspan__V1__FileId *id = (const Inspan__V1__FileId *)message;
    Inspan__V1__FileStat reply = INSPAN__V1__FILE_STAT__INIT;
    reply.hash = id->hash;
    reply.bytes = id->bytes;
    reply.present = test_manager_has(context, id->hash, NULL, 0);
    rpc_call_reply(call, &reply.base);
}

static void put_open(void *context, rpc_call_t *call)
{
    (void)context;
    rpc_call_set_data(call, calloc(1, sizeof(upload_t)));
}

static void put_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    (void)context;
    upload_t *upload = rpc_call_data(call);
    const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)message;
    if (!upload->named) {
        snprintf(upload->hash, sizeof upload->hash, "%s", chunk->hash);
        upload->total = chunk->total_bytes;
        upload->named = true;
    }
    for (size_t i = 0; i < chunk->data.len; i++) VEC_PUSH(&upload->data, chunk->data.data[i]);
}

static void put_half_close(void *context, rpc_call_t *call)
{
    test_manager_t *manager = context;
    upload_t *upload = rpc_call_data(call);
    char found[33];
    hash_stream_t *hash = hash_stream_open();
    hash_stream_add(hash, upload->data.items, upload->data.n);
    hash_stream_finish128_hex(hash, found);
    if (!upload->named || strcmp(found, upload->hash) != 0 || upload->data.n != upload->total) {
        rpc_call_finish(call, INSPAN_CORRUPT, "hash or size is wrong");
        return;
    }
    test_manager_put(manager, upload->data.items, upload->data.n, found);
    Inspan__V1__FileStat reply = INSPAN__V1__FILE_STAT__INIT;
    reply.hash = upload->hash;
    reply.bytes = upload->total;
    reply.present = true;
    rpc_call_reply(call, &reply.base);
}

static void put_closed(void *context, rpc_call_t *call)
{
    (void)context;
    upload_t *upload = rpc_call_data(call);
    vec_free(&upload->data);
    free(upload);
}

/* In pieces of 1 MiB; files of tests fit the queue. A hash that starts with "bad" is answered with other
 * bytes. */
static void get_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    test_manager_t *manager = context;
    const Inspan__V1__FileId *id = (const Inspan__V1__FileId *)message;
    char path[512];
    char *data = NULL;
    size_t bytes = 0;
    file_path(manager, id->hash, path, sizeof path);
    pthread_mutex_lock(&manager->mutex);
    manager->gets++;
    pthread_mutex_unlock(&manager->mutex);
    if (os_file_read(path, 1 << 24, &data, &bytes, NULL) != INSPAN_OK) {
        rpc_call_finish(call, INSPAN_NOT_FOUND, "no such file");
        return;
    }
    for (size_t at = 0; at < bytes; at += 1 << 20) {
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.data.data = (uint8_t *)data + at;
        chunk.data.len = bytes - at < (1 << 20) ? bytes - at : 1 << 20;
        rpc_call_send(call, &chunk.base);
    }
    rpc_call_finish(call, INSPAN_OK, "");
    free(data);
}

static void send_orders(void *context, ns_t now)
{
    test_manager_t *manager = context;
    (void)now;
    pthread_mutex_lock(&manager->mutex);
    if (manager->session != NULL && manager->held && !manager->hold) {
        manager->held = false;
        answer_registration(manager);
    }
    if (manager->session != NULL && !manager->held) {
        for (size_t i = 0; i < manager->orders.n; i++) {
            rpc_call_send(manager->session, manager->orders.items[i]);
            protobuf_c_message_free_unpacked(manager->orders.items[i], NULL);
        }
        manager->orders.n = 0;
    }
    pthread_mutex_unlock(&manager->mutex);
}

static const rpc_method_t methods[] = {
    {.path = "/inspan.v1.Agents/Attach",
     .request = &inspan__v1__agent_up__descriptor,
     .client_streams = true,
     .server_streams = true,
     .on_message = attach_message,
     .on_half_close = attach_half_close,
     .on_closed = attach_closed},
    {.path = "/inspan.v1.Agents/PushLog",
     .request = &inspan__v1__log_chunk__descriptor,
     .client_streams = true,
     .on_message = log_message,
     .on_half_close = log_half_close},
    {.path = "/inspan.v1.Files/Stat",
     .request = &inspan__v1__file_id__descriptor,
     .on_message = stat_message},
    {.path = "/inspan.v1.Files/Put",
     .request = &inspan__v1__file_chunk__descriptor,
     .client_streams = true,
     .on_open = put_open,
     .on_message = put_message,
     .on_half_close = put_half_close,
     .on_closed = put_closed},
    {.path = "/inspan.v1.Files/Get",
     .request = &inspan__v1__file_id__descriptor,
     .server_streams = true,
     .on_message = get_message},
};

static void *serve(void *context)
{
    rpc_server_run(((test_manager_t *)context)->server);
    return NULL;
}

/* ---- On the test's thread */

test_manager_t *test_manager_open(const char *folder, uint16_t port, const char *token)
{
    test_manager_t *manager = calloc(1, sizeof *manager);
    char listen[64];
    inspan_error_t err = {.text = ""};
    snprintf(manager->folder, sizeof manager->folder, "%s", folder);
    pthread_mutex_init(&manager->mutex, NULL);
    os_cond_open(&manager->changed);
    snprintf(listen, sizeof listen, "127.0.0.1:%u", port);
    rpc_server_options_t options = {.listen = listen,
                                    .token = token,
                                    .methods = methods,
                                    .n_methods = sizeof methods / sizeof methods[0],
                                    .context = manager,
                                    .tick = send_orders,
                                    .tick_period = 5 * NS_PER_MS};
    inspan_status_t status = rpc_server_open(&options, &manager->server, &manager->port, &err);
    if (status != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(pthread_create(&manager->thread, NULL, serve, manager), 0);
    return manager;
}

void test_manager_close(test_manager_t *manager)
{
    rpc_server_stop(manager->server);
    pthread_join(manager->thread, NULL);
    rpc_server_close(manager->server);
    for (size_t i = 0; i < manager->ups.n; i++)
        inspan__v1__agent_up__free_unpacked(manager->ups.items[i], NULL);
    for (size_t i = 0; i < manager->orders.n; i++)
        protobuf_c_message_free_unpacked(manager->orders.items[i], NULL);
    for (size_t i = 0; i < manager->logs.n; i++) {
        free(manager->logs.items[i]->text);
        free(manager->logs.items[i]);
    }
    vec_free(&manager->ups);
    vec_free(&manager->orders);
    vec_free(&manager->logs);
    free(manager);
}

uint16_t test_manager_port(const test_manager_t *manager)
{
    return manager->port;
}

void test_manager_refuse(test_manager_t *manager, inspan_status_t status, const char *text)
{
    pthread_mutex_lock(&manager->mutex);
    manager->refusal = status;
    snprintf(manager->refusal_text, sizeof manager->refusal_text, "%s", text);
    pthread_mutex_unlock(&manager->mutex);
}

void test_manager_give_id(test_manager_t *manager, const char *node_id)
{
    pthread_mutex_lock(&manager->mutex);
    snprintf(manager->given_id, sizeof manager->given_id, "%s", node_id);
    pthread_mutex_unlock(&manager->mutex);
}

void test_manager_hold(test_manager_t *manager, bool hold)
{
    pthread_mutex_lock(&manager->mutex);
    manager->hold = hold;
    pthread_mutex_unlock(&manager->mutex);
}

void test_manager_order(test_manager_t *manager, const Inspan__V1__AgentDown *message)
{
    ProtobufCMessage *copy = copy_of(&message->base);
    pthread_mutex_lock(&manager->mutex);
    VEC_PUSH(&manager->orders, copy);
    pthread_mutex_unlock(&manager->mutex);
}

/* Under the mutex: wait for the next change; the test fails at the deadline. */
static void wait_change(test_manager_t *manager, ns_t deadline, const char *what)
{
    if (os_cond_wait_until(&manager->changed, &manager->mutex, deadline)) return;
    for (size_t i = 0; i < manager->ups.n; i++) {
        const Inspan__V1__AgentUp *up = manager->ups.items[i];
        if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_WORKER) continue;
        print_message("  job %llu rank %u state %d: %s\n", (unsigned long long)up->worker->job_id,
                      up->worker->rank, (int)up->worker->state,
                      up->worker->failure ? up->worker->failure->text : "");
    }
    pthread_mutex_unlock(&manager->mutex);
    fail_msg("waited 20 s for %s", what);
}

const Inspan__V1__Register *test_manager_wait_register(test_manager_t *manager, unsigned number)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        unsigned seen = 0;
        for (size_t i = 0; i < manager->ups.n; i++) {
            Inspan__V1__AgentUp *up = manager->ups.items[i];
            if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE || ++seen < number) continue;
            pthread_mutex_unlock(&manager->mutex);
            return up->register_node;
        }
        wait_change(manager, deadline, "a registration");
    }
}

const Inspan__V1__WorkerReport *test_manager_wait_state(test_manager_t *manager, uint64_t job,
                                                        Inspan__V1__WorkerState state)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        for (size_t i = manager->ups.n; i-- > 0;) { /* the newest */
            Inspan__V1__AgentUp *up = manager->ups.items[i];
            if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_WORKER || up->worker->job_id != job ||
                up->worker->state != state)
                continue;
            pthread_mutex_unlock(&manager->mutex);
            return up->worker;
        }
        wait_change(manager, deadline, "a worker's state");
    }
}

static const Inspan__V1__AgentUp *wait_kind(test_manager_t *manager, Inspan__V1__AgentUp__KindCase kind,
                                            unsigned number)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        unsigned seen = 0;
        for (size_t i = 0; i < manager->ups.n; i++) {
            const Inspan__V1__AgentUp *up = manager->ups.items[i];
            if (up->kind_case != kind || ++seen < number) continue;
            pthread_mutex_unlock(&manager->mutex);
            return up;
        }
        wait_change(manager, deadline, "a message of a kind");
    }
}

const Inspan__V1__Artifact *test_manager_wait_artifact(test_manager_t *manager, unsigned number)
{
    return wait_kind(manager, INSPAN__V1__AGENT_UP__KIND_ARTIFACT, number)->artifact;
}

const Inspan__V1__LedgerSpans *test_manager_wait_ledger(test_manager_t *manager, unsigned number)
{
    return wait_kind(manager, INSPAN__V1__AGENT_UP__KIND_LEDGER, number)->ledger;
}

const Inspan__V1__Verdict *test_manager_wait_verdict(test_manager_t *manager, unsigned number)
{
    return wait_kind(manager, INSPAN__V1__AGENT_UP__KIND_VERDICT, number)->verdict;
}

const Inspan__V1__WorkerReport *test_manager_wait_rank(test_manager_t *manager, uint64_t job, uint32_t rank,
                                                       Inspan__V1__WorkerState state, bool without_process)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        for (size_t i = 0; i < manager->ups.n; i++) {
            const Inspan__V1__AgentUp *up = manager->ups.items[i];
            if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_WORKER || up->worker->job_id != job ||
                up->worker->rank != rank || up->worker->state != state ||
                (without_process && up->worker->pid != 0))
                continue;
            pthread_mutex_unlock(&manager->mutex);
            return up->worker;
        }
        wait_change(manager, deadline, "the state of one of a job's workers");
    }
}

const Inspan__V1__WorkerReport *test_manager_wait_view(test_manager_t *manager, uint64_t job, uint64_t view)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        for (size_t i = 0; i < manager->ups.n; i++) {
            const Inspan__V1__AgentUp *up = manager->ups.items[i];
            if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_WORKER || up->worker->job_id != job ||
                up->worker->view != view || up->worker->blame_view != view)
                continue;
            pthread_mutex_unlock(&manager->mutex);
            return up->worker;
        }
        wait_change(manager, deadline, "a worker's view");
    }
}

void test_manager_wait_freed(test_manager_t *manager, uint64_t job)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    bool freed = false;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        for (size_t i = 0; i < manager->ups.n; i++) {
            const Inspan__V1__AgentUp *up = manager->ups.items[i];
            freed = freed ||
                    (up->kind_case == INSPAN__V1__AGENT_UP__KIND_WORKER && up->worker->job_id == job &&
                     up->worker->state == INSPAN__V1__WORKER_STATE__WORKER_FAILED && up->worker->pid == 0);
        }
        if (freed) break;
        wait_change(manager, deadline, "the end of a failed worker's process");
    }
    pthread_mutex_unlock(&manager->mutex);
}

unsigned test_manager_reports(test_manager_t *manager, uint64_t job, Inspan__V1__WorkerState state)
{
    unsigned n = 0;
    pthread_mutex_lock(&manager->mutex);
    for (size_t i = 0; i < manager->ups.n; i++) {
        const Inspan__V1__AgentUp *up = manager->ups.items[i];
        n += up->kind_case == INSPAN__V1__AGENT_UP__KIND_WORKER && up->worker->job_id == job &&
             up->worker->state == state;
    }
    pthread_mutex_unlock(&manager->mutex);
    return n;
}

void test_manager_wait_heartbeats(test_manager_t *manager, unsigned number)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    while (manager->heartbeats < number) wait_change(manager, deadline, "heartbeats");
    pthread_mutex_unlock(&manager->mutex);
}

Inspan__V1__Vitals test_manager_wait_allowed(test_manager_t *manager, double allowed)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    while (!manager->has_vitals || manager->vitals.allowed != allowed)
        wait_change(manager, deadline, "what the owner gives");
    Inspan__V1__Vitals vitals = manager->vitals;
    pthread_mutex_unlock(&manager->mutex);
    return vitals;
}

unsigned test_manager_heartbeats(test_manager_t *manager)
{
    pthread_mutex_lock(&manager->mutex);
    unsigned n = manager->heartbeats;
    pthread_mutex_unlock(&manager->mutex);
    return n;
}

void test_manager_wait_left(test_manager_t *manager)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    while (manager->left == 0) wait_change(manager, deadline, "the agent's good-bye");
    pthread_mutex_unlock(&manager->mutex);
}

void test_manager_mute_stat(test_manager_t *manager, bool mute)
{
    pthread_mutex_lock(&manager->mutex);
    manager->mute = mute;
    pthread_mutex_unlock(&manager->mutex);
}

void test_manager_wait_muted(test_manager_t *manager)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    while (manager->muted == 0) wait_change(manager, deadline, "a question of the agent");
    pthread_mutex_unlock(&manager->mutex);
}

const char *test_manager_wait_log(test_manager_t *manager, uint64_t request_id, uint64_t *bytes,
                                  uint64_t *dropped)
{
    ns_t deadline = os_now() + 20 * NS_PER_S;
    pthread_mutex_lock(&manager->mutex);
    for (;;) {
        for (size_t i = 0; i < manager->logs.n; i++) {
            pushed_t *log = manager->logs.items[i];
            if (log->request_id != request_id || !log->ended) continue;
            *bytes = log->bytes;
            *dropped = log->dropped;
            pthread_mutex_unlock(&manager->mutex);
            return log->text;
        }
        wait_change(manager, deadline, "the end of a log");
    }
}

void test_manager_put(test_manager_t *manager, const void *data, size_t bytes, char hash[33])
{
    char path[512];
    hash_stream_t *stream = hash_stream_open();
    hash_stream_add(stream, data, bytes);
    hash_stream_finish128_hex(stream, hash);
    file_path(manager, hash, path, sizeof path);
    assert_int_equal(os_file_write(path, data, bytes, 0600, NULL), INSPAN_OK);
}

bool test_manager_has(test_manager_t *manager, const char *hash, char *text, size_t size)
{
    char path[512];
    char *data = NULL;
    size_t bytes = 0;
    file_path(manager, hash, path, sizeof path);
    if (os_file_read(path, 1 << 24, &data, &bytes, NULL) != INSPAN_OK) return false;
    if (text != NULL) snprintf(text, size, "%s", data);
    free(data);
    return true;
}

unsigned test_manager_gets(test_manager_t *manager)
{
    pthread_mutex_lock(&manager->mutex);
    unsigned n = manager->gets;
    pthread_mutex_unlock(&manager->mutex);
    return n;
}
