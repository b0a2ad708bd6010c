#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "inspan/v1/inspan.pb-c.h"
#include "platform/os/os_time.h"
#include "rpc/rpc.h"
#include "rpc/rpc_test_service.h"

#define TOKEN "KRUGKIDROVUWG2ZA"
#define LONG  (20 * NS_PER_S) /* bound of what must come: generous for slow machines */

#define GET_JOB "/inspan.v1.Cluster/GetJob"

/* ---- A server in a thread
 * ------------------------------------------------------------------------------------------ */

typedef struct fixture {
    test_service_t service;
    rpc_server_t *server;
    pthread_t thread;
    uint16_t port;
    char target[64];
} fixture_t;

static void *run_server(void *argument)
{
    rpc_server_run(argument);
    return NULL;
}

static void fixture_open(fixture_t *f, const char *listen)
{
    memset(f, 0, sizeof *f);
    rpc_server_options_t options = {.listen = listen, .token = TOKEN};
    test_service_fill(&f->service, &options);
    inspan_error_t err = {0};
    if (rpc_server_open(&options, &f->server, &f->port, &err) != INSPAN_OK) fail_msg("%s", err.text);
    snprintf(f->target, sizeof f->target, "127.0.0.1:%u", f->port);
    assert_int_equal(pthread_create(&f->thread, NULL, run_server, f->server), 0);
}

static void fixture_close(fixture_t *f)
{
    rpc_server_stop(f->server);
    pthread_join(f->thread, NULL);
    rpc_server_close(f->server);
}

static rpc_client_t *client_of(const char *target, const char *token)
{
    rpc_client_t *client = NULL;
    inspan_error_t err = {0};
    if (rpc_client_open(target, token, &client, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return client;
}

static bool wait_for(atomic_uint *value, unsigned wanted)
{
    for (ns_t end = os_now() + LONG; os_now() < end; poll(NULL, 0, 5))
        if (atomic_load(value) == wanted) return true;
    return false;
}

static inspan_status_t get_job(rpc_client_t *client, uint64_t id, ns_t timeout, Inspan__V1__JobInfo **job,
                               inspan_error_t *err)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    request.id = id;
    ProtobufCMessage *reply = NULL;
    inspan_status_t status = rpc_call_unary(client, GET_JOB, &request.base, &inspan__v1__job_info__descriptor,
                                            timeout, &reply, err);
    *job = (Inspan__V1__JobInfo *)reply;
    return status;
}

static void expect_job(rpc_client_t *client, uint64_t id)
{
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    if (get_job(client, id, LONG, &job, &err) != INSPAN_OK) fail_msg("job %d: %s", (int)id, err.text);
    assert_int_equal(job->id, id);
    assert_string_equal(job->name, "xxx");
    protobuf_c_message_free_unpacked(&job->base, NULL);
}

static void send_heartbeat(rpc_stream_t *stream, uint64_t sequence)
{
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__Heartbeat heartbeat = INSPAN__V1__HEARTBEAT__INIT;
    heartbeat.sequence = sequence;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_HEARTBEAT;
    up.heartbeat = &heartbeat;
    inspan_error_t err = {0};
    if (rpc_stream_send(stream, &up.base, LONG, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static void expect_sequence(rpc_stream_t *stream, uint64_t sequence)
{
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    if (rpc_stream_next(stream, LONG, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_non_null(message);
    assert_int_equal(((Inspan__V1__AgentDown *)message)->log->request_id, sequence);
    protobuf_c_message_free_unpacked(message, NULL);
}

static rpc_stream_t *attach(rpc_client_t *client)
{
    rpc_stream_t *stream = NULL;
    inspan_error_t err = {0};
    if (rpc_stream_open(client, "/inspan.v1.Agents/Attach", &inspan__v1__agent_down__descriptor, &stream,
                        &err))
        fail_msg("%s", err.text);
    return stream;
}

/* ---- Unary
 * ---------------------------------------------------------------------------------------------------------
 */

static void unary_calls_and_their_statuses(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    expect_job(client, 1);
    expect_job(client, 4); /* answered later, from the tick */
    assert_string_equal(f.service.peer, "127.0.0.1");
    assert_int_equal(get_job(client, 2, LONG, &job, &err), INSPAN_NOT_FOUND);
    assert_string_equal(err.text, "no job 2 – one of 3");
    assert_null(job);
    assert_int_equal(get_job(client, 5, LONG, &job, &err), INSPAN_LIMIT);

    ns_t start = os_now();
    assert_int_equal(get_job(client, 3, 200 * NS_PER_MS, &job, &err), INSPAN_TIMEOUT);
    assert_true(os_now() - start >= 200 * NS_PER_MS && os_now() - start < 10 * NS_PER_S);
    assert_non_null(strstr(err.text, f.target));
    assert_non_null(strstr(err.text, "200"));
    /* Every call that was opened is closed, the one without an answer too. */
    assert_true(wait_for(&f.service.closed, atomic_load(&f.service.opened)));
    rpc_client_close(client);
    fixture_close(&f);
}

static void unknown_methods_and_wrong_tokens_are_refused(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    inspan_error_t err = {0};
    rpc_client_t *client = client_of(f.target, TOKEN);
    const char *unknown[] = {"/inspan.v1.Cluster/Nothing", "/x", "/inspan.v1.Cluster/GetJo",
                             "/inspan.v1.Cluster/GetJobs"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        ns_t start = os_now();
        assert_int_equal(rpc_call_unary(client, unknown[i], &request.base, &inspan__v1__job_info__descriptor,
                                        LONG, &reply, &err),
                         INSPAN_UNSUPPORTED);
        assert_true(os_now() - start < LONG / 2);
    }
    rpc_client_close(client);

    const char *wrong[] = {NULL, "", "K", "KRUGKIDROVUWG2Za", "KRUGKIDROVUWG2Z", TOKEN "A", TOKEN TOKEN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Inspan__V1__JobInfo *job = NULL;
        client = client_of(f.target, wrong[i]);
        assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_AUTH);
        assert_non_null(strstr(err.text, "token"));
        if (wrong[i] != NULL && wrong[i][0] != 0) assert_null(strstr(err.text, wrong[i]));
        rpc_stream_t *stream = attach(client);
        assert_int_equal(rpc_stream_next(stream, LONG, &reply, &err), INSPAN_AUTH);
        rpc_stream_close(stream);
        rpc_client_close(client);
    }
    assert_int_equal(atomic_load(&f.service.opened), 0); /* no handler heard of any of these */
    fixture_close(&f);
}

static void *many_calls(void *argument)
{
    rpc_client_t *client = argument;
    uintptr_t good = 0;
    for (uint64_t i = 0; i < 5; i++) {
        Inspan__V1__JobInfo *job = NULL;
        if (get_job(client, 100 + i, LONG, &job, NULL) != INSPAN_OK) continue;
        good += job->id == 100 + i;
        protobuf_c_message_free_unpacked(&job->base, NULL);
    }
    return (void *)good;
}

static void a_hundred_calls_at_once(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    pthread_t threads[100];
    for (int i = 0; i < 100; i++) assert_int_equal(pthread_create(&threads[i], NULL, many_calls, client), 0);
    for (int i = 0; i < 100; i++) {
        void *good = NULL;
        pthread_join(threads[i], &good);
        assert_int_equal((uintptr_t)good, 5);
    }
    assert_true(wait_for(&f.service.closed, 500));
    rpc_client_close(client);
    fixture_close(&f);
}

static void messages_have_a_limit(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    const size_t limit = 4u << 20;
    uint8_t *data = calloc(1, limit);
    assert_non_null(data);
    inspan_error_t err = {0};
    for (int over = 0; over < 2; over++) {
        rpc_stream_t *stream = NULL;
        assert_int_equal(rpc_stream_open(client, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor,
                                         &stream, &err),
                         INSPAN_OK);
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.data.data = data;
        chunk.data.len = limit - 5 + (size_t)over; /* key and a length of four bytes come before it */
        assert_int_equal(rpc_stream_send(stream, &chunk.base, LONG, &err), over ? INSPAN_LIMIT : INSPAN_OK);
        rpc_stream_half_close(stream);
        ProtobufCMessage *message = NULL;
        assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_OK);
        assert_int_equal(((Inspan__V1__FileStat *)message)->bytes, over ? 0 : limit - 5);
        protobuf_c_message_free_unpacked(message, NULL);
        rpc_stream_close(stream);
    }
    free(data);
    rpc_client_close(client);
    fixture_close(&f);
}

/* ---- Streams
 * ------------------------------------------------------------------------------------------------------- */

static void client_streams(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    static uint8_t block[100000];
    const int counts[] = {0, 1, 7, 300};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        rpc_stream_t *stream = NULL;
        inspan_error_t err = {0};
        assert_int_equal(rpc_stream_open(client, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor,
                                         &stream, &err),
                         INSPAN_OK);
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.data.data = block;
        chunk.data.len = sizeof block;
        for (int i = 0; i < counts[c]; i++)
            assert_int_equal(rpc_stream_send(stream, &chunk.base, LONG, &err), INSPAN_OK);
        rpc_stream_half_close(stream);
        assert_int_equal(rpc_stream_send(stream, &chunk.base, LONG, &err) == INSPAN_OK, false);
        ProtobufCMessage *message = NULL;
        assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_OK);
        assert_int_equal(((Inspan__V1__FileStat *)message)->bytes, counts[c] * (int)sizeof block);
        protobuf_c_message_free_unpacked(message, NULL);
        assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_OK);
        assert_null(message);
        rpc_stream_close(stream);
    }
    rpc_client_close(client);
    fixture_close(&f);
}

/* A server that has heard enough: the sender learns why, and does not fill its queue for ever. */
static void a_refused_upload_ends(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = NULL;
    inspan_error_t err = {0};
    static uint8_t block[500000];
    rpc_stream_open(client, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor, &stream, &err);
    Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
    chunk.data.data = block;
    chunk.data.len = sizeof block;
    chunk.total_bytes = 666;
    inspan_status_t status = INSPAN_OK;
    for (int i = 0; i < 1000 && status == INSPAN_OK; i++)
        status = rpc_stream_send(stream, &chunk.base, LONG, &err);
    assert_int_equal(status, INSPAN_LIMIT);
    assert_string_equal(err.text, "the file is too large");
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_LIMIT);
    rpc_stream_close(stream);
    rpc_client_close(client);
    assert_int_equal(atomic_load(&f.service.half_closed), 0);
    fixture_close(&f);
}

static void an_abandoned_upload_is_no_half_close(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    for (int i = 0; i < 20; i++) {
        rpc_client_t *client = client_of(f.target, TOKEN);
        rpc_stream_t *stream = NULL;
        inspan_error_t err = {0};
        rpc_stream_open(client, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor, &stream, &err);
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        for (int k = 0; k < i; k++)
            assert_int_equal(rpc_stream_send(stream, &chunk.base, LONG, &err), INSPAN_OK);
        if (i % 2) assert_true(wait_for(&f.service.opened, (unsigned)i / 2 + 1) || true);
        if (i % 3 == 0) rpc_stream_cancel(stream);
        rpc_stream_close(stream);
        rpc_client_close(client);
    }
    assert_true(wait_for(&f.service.closed, atomic_load(&f.service.opened)));
    assert_int_equal(atomic_load(&f.service.half_closed), 0);
    fixture_close(&f);
}

static void server_streams(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    const unsigned counts[] = {0, 1, 5, 700};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        rpc_stream_t *stream = NULL;
        inspan_error_t err = {0};
        rpc_stream_open(client, "/inspan.v1.Cluster/Watch", &inspan__v1__job_event__descriptor, &stream,
                        &err);
        Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
        request.id = counts[c];
        assert_int_equal(rpc_stream_send(stream, &request.base, LONG, &err), INSPAN_OK);
        rpc_stream_half_close(stream);
        ProtobufCMessage *message = NULL;
        unsigned n = 0;
        while (rpc_stream_next(stream, LONG, &message, &err) == INSPAN_OK && message != NULL) {
            assert_int_equal(((Inspan__V1__JobEvent *)message)->wall_ns, n++);
            protobuf_c_message_free_unpacked(message, NULL);
        }
        assert_int_equal(n, counts[c]);
        assert_int_equal(rpc_stream_next(stream, 0, &message, &err), INSPAN_OK); /* the end stays */
        assert_null(message);
        rpc_stream_close(stream);
    }
    rpc_client_close(client);
    fixture_close(&f);
}

static void bulk_is_never_queued_whole(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = NULL;
    inspan_error_t err = {0};
    const uint64_t total = (64u << 20) + 1;
    rpc_stream_open(client, "/inspan.v1.Files/Get", &inspan__v1__file_chunk__descriptor, &stream, &err);
    Inspan__V1__FileId request = INSPAN__V1__FILE_ID__INIT;
    request.bytes = total;
    assert_int_equal(rpc_stream_send(stream, &request.base, LONG, &err), INSPAN_OK);
    ProtobufCMessage *message = NULL;
    uint64_t got = 0;
    while (rpc_stream_next(stream, LONG, &message, &err) == INSPAN_OK && message != NULL) {
        got += ((Inspan__V1__FileChunk *)message)->data.len;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    assert_int_equal(got, total);
    assert_true(atomic_load(&f.service.most_queued) <= (1u << 20) + (257u << 10));
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void both_ways(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, 50 * NS_PER_MS, &message, &err), INSPAN_TIMEOUT);
    for (uint64_t i = 200; i < 250; i++) {
        send_heartbeat(stream, i);
        expect_sequence(stream, i);
    }
    for (uint64_t i = 300; i < 600; i++) send_heartbeat(stream, i);
    for (uint64_t i = 300; i < 600; i++) expect_sequence(stream, i);
    rpc_stream_half_close(stream);
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_OK);
    assert_null(message);
    rpc_stream_close(stream);

    stream = attach(client); /* the server's own status and text arrive */
    send_heartbeat(stream, 13);
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_VERSION);
    assert_string_equal(err.text, "protocol 2 here, 1 there");
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void a_slow_reader_costs_a_bounded_queue(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 99);
    for (ns_t end = os_now() + LONG; os_now() < end && atomic_load(&f.service.limit_after) == 0;)
        poll(NULL, 0, 5);
    unsigned queued = atomic_load(&f.service.limit_after);
    assert_in_range(queued, 1024, 1 + 1024 + 1); /* in flight, queue, and the margin of an early completion */
    for (unsigned i = 0; i < queued; i++) expect_sequence(stream, 99); /* none was lost */
    send_heartbeat(stream, 7);
    expect_sequence(stream, 7);
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void *cancel_soon(void *stream)
{
    poll(NULL, 0, 50);
    rpc_stream_cancel(stream);
    return NULL;
}

static void a_cancel_ends_a_waiting_reader(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 5);
    expect_sequence(stream, 5);
    pthread_t thread;
    pthread_create(&thread, NULL, cancel_soon, stream);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_ABORTED);
    pthread_join(thread, NULL);
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    assert_int_equal(rpc_stream_send(stream, &up.base, LONG, &err), INSPAN_ABORTED);
    rpc_stream_close(stream);
    assert_true(wait_for(&f.service.closed, 1));
    assert_int_equal(atomic_load(&f.service.half_closed), 0);
    rpc_client_close(client);
    fixture_close(&f);
}

/* ---- Connections
 * --------------------------------------------------------------------------------------------------- */

static uint16_t free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void nobody_listens(void **state)
{
    (void)state;
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", free_port());
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    for (int i = 0; i < 3; i++) {
        ns_t start = os_now();
        assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
        assert_true(os_now() - start < 3 * NS_PER_S);
        assert_non_null(strstr(err.text, target));
        assert_non_null(strstr(err.text, "manager unreachable"));
        assert_non_null(strstr(err.text, "Connection refused"));
    }
    rpc_stream_t *stream = attach(client);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    rpc_stream_close(stream);
    rpc_client_close(client);

    client = client_of("no-such-host.invalid:7461", NULL);
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
    assert_non_null(strstr(err.text, "no-such-host.invalid:7461"));
    rpc_client_close(client);
}

/* Accepts, says nothing: a call ends at its bound. Then something that is no gRPC. */
static void a_stranger_listens(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(address.sin_port));
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    ns_t start = os_now();
    assert_int_equal(get_job(client, 1, 300 * NS_PER_MS, &job, &err), INSPAN_TIMEOUT);
    assert_true(os_now() - start < 5 * NS_PER_S);
    rpc_client_close(client);
    close(fd);
}

/* A listener whose backlog is full: the kernel drops what comes, as a firewall or a machine that is off
 * would. */
static void nobody_answers(void **state)
{
    (void)state;
    enum { FILL = 4 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[FILL];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    for (int i = 0; i < FILL; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fill[i], (struct sockaddr *)&address, sizeof address);
    }
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(address.sin_port));
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    ns_t start = os_now();
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 10 * NS_PER_S); /* 2 s by the settings */
    assert_non_null(strstr(err.text, "no answer"));
    rpc_client_close(client);
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(fd);
}

static void a_dying_server_ends_streams_and_its_successor_is_found(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    fixture_close(&f);
    assert_true(os_now() - start < 5 * NS_PER_S);
    assert_int_equal(atomic_load(&f.service.closed), 1);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    assert_int_equal(rpc_stream_send(stream, &up.base, LONG, &err), INSPAN_UNREACHABLE);
    rpc_stream_close(stream);
    Inspan__V1__JobInfo *job = NULL;
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);

    char listen_at[64];
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", f.port);
    fixture_open(&f, listen_at);
    expect_job(client, 1); /* at once: the first call after the restart goes through */
    stream = attach(client);
    send_heartbeat(stream, 2);
    expect_sequence(stream, 2);
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void a_taken_port_is_named(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "[::]:0");
    char listen_at[3][64];
    snprintf(listen_at[0], sizeof listen_at[0], "[::]:%u", f.port);
    snprintf(listen_at[1], sizeof listen_at[1], "0.0.0.0:%u", f.port);
    snprintf(listen_at[2], sizeof listen_at[2], "127.0.0.1:%u", f.port);
    for (int i = 0; i < 3; i++) {
        rpc_server_options_t options = {.listen = listen_at[i]};
        rpc_server_t *second = NULL;
        uint16_t port = 0;
        inspan_error_t err = {0};
        assert_int_equal(rpc_server_open(&options, &second, &port, &err), INSPAN_EXISTS);
        assert_null(second);
        assert_non_null(strstr(err.text, listen_at[i]));
    }
    rpc_client_t *client = client_of(f.target, TOKEN); /* the first one is none the worse */
    expect_job(client, 1);
    rpc_client_close(client);
    fixture_close(&f);

    const char *wrong[] = {"nonsense", "203.0.113.7:0", "1.2.3.4:99999", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rpc_server_options_t options = {.listen = wrong[i]};
        rpc_server_t *server = NULL;
        uint16_t port = 0;
        inspan_error_t err = {0};
        inspan_status_t status = rpc_server_open(&options, &server, &port, &err);
        assert_true(status == INSPAN_INVALID || status == INSPAN_IO);
        assert_true(err.text[0] != 0);
    }
}

static void addresses(void **state)
{
    (void)state;
    rpc_client_t *client = NULL;
    inspan_error_t err = {0};
    const char *wrong[] = {"",     ":1",   "a:",     "a:0",   "a:65536", "a:-1",
                           "a:1x", "[::1", "[::1]x", "a b:1", "[]:1",    "http://a:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(rpc_client_open(wrong[i], NULL, &client, &err), INSPAN_INVALID);
    assert_int_equal(rpc_client_open("a:1", "two\nlines", &client, &err), INSPAN_INVALID);

    const struct {
        const char *target, *source;
    } right[] = {{"127.0.0.1:1", "127.0.0.1"}, {"localhost", NULL}, {"127.9.9.9", "127.0.0.1"}};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        char address[64] = "";
        client = client_of(right[i].target, NULL);
        assert_string_equal(rpc_client_target(client), right[i].target);
        assert_int_equal(rpc_client_local_address(client, address, sizeof address, &err), INSPAN_OK);
        if (right[i].source != NULL) assert_string_equal(address, right[i].source);
        rpc_client_close(client);
    }
}

static void ipv6(void **state)
{
    (void)state;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool usable = fd >= 0 && bind(fd, (struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0) close(fd);
    if (!usable) {
        print_message("skipped: this machine has no IPv6 loopback\n");
        skip();
    }
    fixture_t f;
    fixture_open(&f, "[::]:0");
    char target[64], address[64];
    inspan_error_t err = {0};
    snprintf(target, sizeof target, "[::1]:%u", f.port);
    rpc_client_t *client = client_of(target, TOKEN);
    expect_job(client, 1);
    assert_string_equal(f.service.peer, "::1");
    assert_int_equal(rpc_client_local_address(client, address, sizeof address, &err), INSPAN_OK);
    assert_string_equal(address, "::1");
    rpc_client_close(client);
    client = client_of(f.target, TOKEN); /* IPv4 to the same listener: the peer is no mapped address */
    expect_job(client, 1);
    assert_string_equal(f.service.peer, "127.0.0.1");
    rpc_client_close(client);
    fixture_close(&f);
}

/* ---- Hostile bytes, descriptors
 * ------------------------------------------------------------------------------------ */

static void garbage_harms_nothing(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    const char *garbage[] = {"GET / HTTP/1.1\r\n\r\n",
                             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                             "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "x"};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(f.port)};
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        assert_true(write(fd, garbage[i], strlen(garbage[i])) > 0);
        close(fd);
    }
    rpc_client_t *client = client_of(f.target, TOKEN);
    /* A valid call with a message that is none: a JobRequest whose field 1 is text. The server answers, the
     * call ends. */
    Inspan__V1__FileId wrong = INSPAN__V1__FILE_ID__INIT;
    wrong.hash = (char *)(uintptr_t) "not a number";
    ProtobufCMessage *reply = NULL;
    inspan_error_t err = {0};
    assert_int_equal(
        rpc_call_unary(client, GET_JOB, &wrong.base, &inspan__v1__job_info__descriptor, LONG, &reply, &err),
        INSPAN_INVALID);
    assert_non_null(strstr(err.text, "GetJob"));
    /* Two bytes each on the wire, two hundred in memory: the budget of decoding stops it. */
    enum { MANY = 1000000 };
    Inspan__V1__WorkerReport nothing = INSPAN__V1__WORKER_REPORT__INIT;
    Inspan__V1__WorkerReport **reports = malloc(MANY * sizeof *reports);
    assert_non_null(reports);
    for (int k = 0; k < MANY; k++) reports[k] = &nothing;
    Inspan__V1__Register bomb = INSPAN__V1__REGISTER__INIT;
    bomb.n_workers = MANY;
    bomb.workers = reports;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE;
    up.register_node = &bomb;
    rpc_stream_t *stream = attach(client);
    assert_int_equal(rpc_stream_send(stream, &up.base, LONG, &err), INSPAN_OK);
    assert_int_equal(rpc_stream_next(stream, LONG, &reply, &err), INSPAN_INVALID);
    assert_int_equal(atomic_load(&f.service.messages), 0);
    rpc_stream_close(stream);
    free(reports);
    expect_job(client, 1);
    rpc_client_close(client);
    fixture_close(&f);
}

static void descriptors_close_on_exec(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    int sockets = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name), type = 0;
        socklen_t length = sizeof type;
        if (fd <= 2 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) continue;
        struct sockaddr_storage name;
        length = sizeof name;
        if (getsockname(fd, (struct sockaddr *)&name, &length) != 0) continue;
        if (name.ss_family != AF_INET && name.ss_family != AF_INET6) continue;
        sockets++;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    closedir(folder);
    assert_true(sockets >= 3); /* listener and both ends */
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void a_server_that_never_ran_closes(void **state)
{
    (void)state;
    test_service_t service = {0};
    rpc_server_options_t options = {.listen = "127.0.0.1:0"};
    test_service_fill(&service, &options);
    rpc_server_t *server = NULL;
    uint16_t port = 0;
    inspan_error_t err = {0};
    assert_int_equal(rpc_server_open(&options, &server, &port, &err), INSPAN_OK);
    assert_true(port > 0);
    rpc_server_close(server);
    assert_int_equal(rpc_server_open(&options, &server, &port, &err), INSPAN_OK);
    rpc_server_stop(server); /* before run: run ends at once */
    rpc_server_run(server);
    rpc_server_close(server);
}

/* ---- A server of its own process
 * ----------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int input; /* its standard input: it stops when this closes */
    char target[64];
} child_t;

/* The program lies beside this one in the build tree. */
static void child_path(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/../src/rpc/rpc-test-server");
    if (access(path, X_OK) != 0) fail_msg("%s is not built", path);
}

static void child_open(child_t *child, const char *setting)
{
    char path[4096], command[5000], line[32] = "";
    child_path(path);
    snprintf(command, sizeof command, "%s exec '%s'", setting, path);
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    char shell[] = "sh", option[] = "-c", *words[] = {shell, option, command, NULL};
    assert_int_equal(posix_spawn(&child->pid, "/bin/sh", &actions, NULL, words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child->input = in[1];
    assert_true(read(out[0], line, sizeof line - 1) > 0);
    close(out[0]);
    snprintf(child->target, sizeof child->target, "127.0.0.1:%d", atoi(line));
}

static void child_close(child_t *child, int expected_signal)
{
    int status = 0;
    close(child->input);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), expected_signal);
}

static void a_killed_server_is_noticed_at_once(void **state)
{
    (void)state;
    child_t child;
    child_open(&child, "");
    rpc_client_t *client = client_of(child.target, "secret");
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    kill(child.pid, SIGKILL);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 2 * NS_PER_S);
    assert_non_null(strstr(err.text, child.target));
    rpc_stream_close(stream);
    rpc_client_close(client);
    child_close(&child, SIGKILL);
}

static void a_frozen_server_is_noticed(void **state)
{
    (void)state;
    child_t child;
    child_open(&child, "");
    rpc_client_t *client = client_of(child.target, "secret");
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    kill(child.pid, SIGSTOP);
    Inspan__V1__JobInfo *job = NULL;
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(get_job(client, 1, 200 * NS_PER_MS, &job, &err), INSPAN_TIMEOUT);
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 8 * NS_PER_S); /* 4 s by the settings */
    rpc_stream_close(stream);
    kill(child.pid, SIGCONT);
    expect_job(client, 1); /* and its return */
    rpc_client_close(client);
    child_close(&child, 0);
}

/* More connections than the server has descriptors: it lives, and serves on when they have gone. */
static void connections_beyond_the_descriptors(void **state)
{
    (void)state;
    enum { MANY = 300 };
    child_t child;
    child_open(&child, "ulimit -n 256; export INSPAN_LOG=error;");
    rpc_client_t *client = client_of(child.target, "secret");
    expect_job(client, 1);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strchr(child.target, ':') + 1))};
    int sockets[MANY];
    for (int i = 0; i < MANY; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(sockets[i], (struct sockaddr *)&address, sizeof address);
        poll(NULL, 0, 8); /* a quarter of the descriptors lasts longer than the gate looks away */
    }
    expect_job(client, 1); /* who is in stays in */
    for (int i = 0; i < MANY; i++) close(sockets[i]);
    rpc_client_t *late = client_of(child.target, "secret");
    Inspan__V1__JobInfo *job = NULL;
    inspan_status_t status = INSPAN_UNREACHABLE;
    for (ns_t end = os_now() + LONG; os_now() < end && status != INSPAN_OK;)
        status = get_job(late, 1, LONG, &job, NULL);
    assert_int_equal(status, INSPAN_OK);
    protobuf_c_message_free_unpacked(&job->base, NULL);
    rpc_client_close(late);
    rpc_client_close(client);
    child_close(&child, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_calls_and_their_statuses),
        cmocka_unit_test(unknown_methods_and_wrong_tokens_are_refused),
        cmocka_unit_test(a_hundred_calls_at_once),
        cmocka_unit_test(messages_have_a_limit),
        cmocka_unit_test(client_streams),
        cmocka_unit_test(a_refused_upload_ends),
        cmocka_unit_test(an_abandoned_upload_is_no_half_close),
        cmocka_unit_test(server_streams),
        cmocka_unit_test(bulk_is_never_queued_whole),
        cmocka_unit_test(both_ways),
        cmocka_unit_test(a_slow_reader_costs_a_bounded_queue),
        cmocka_unit_test(a_cancel_ends_a_waiting_reader),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(a_stranger_listens),
        cmocka_unit_test(nobody_answers),
        cmocka_unit_test(a_dying_server_ends_streams_and_its_successor_is_found),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(addresses),
        cmocka_unit_test(ipv6),
        cmocka_unit_test(garbage_harms_nothing),
        cmocka_unit_test(descriptors_close_on_exec),
        cmocka_unit_test(a_server_that_never_ran_closes),
        cmocka_unit_test(a_killed_server_is_noticed_at_once),
        cmocka_unit_test(a_frozen_server_is_noticed),
        cmocka_unit_test(connections_beyond_the_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
