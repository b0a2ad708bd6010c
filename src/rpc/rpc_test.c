/* Calls: their kinds, statuses, bounds, and bytes that are none. */
#include "rpc/rpc_test_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Unary ---- */

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

/* ---- Streams ---- */

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
        poll(NULL, 0, 5); /* not a wait: the deadline decides */
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
    poll(NULL, 0, 50); /* not a wait: the reader is to be the first, but need not */
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

/* ---- Hostile bytes ---- */

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
        cmocka_unit_test(garbage_harms_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
