#include "rpc/rpc_test_fixture.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

static void *run_server(void *argument)
{
    rpc_server_run(argument);
    return NULL;
}

void fixture_open(fixture_t *f, const char *listen)
{
    memset(f, 0, sizeof *f);
    rpc_server_options_t options = {.listen = listen, .token = TOKEN};
    test_service_fill(&f->service, &options);
    inspan_error_t err = {0};
    if (rpc_server_open(&options, &f->server, &f->port, &err) != INSPAN_OK) fail_msg("%s", err.text);
    snprintf(f->target, sizeof f->target, "127.0.0.1:%u", f->port);
    assert_int_equal(pthread_create(&f->thread, NULL, run_server, f->server), 0);
}

void fixture_close(fixture_t *f)
{
    rpc_server_stop(f->server);
    pthread_join(f->thread, NULL);
    rpc_server_close(f->server);
}

rpc_client_t *client_of(const char *target, const char *token)
{
    rpc_client_t *client = NULL;
    inspan_error_t err = {0};
    if (rpc_client_open(target, token, &client, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return client;
}

bool wait_for(atomic_uint *value, unsigned wanted)
{
    for (ns_t end = os_now() + LONG; os_now() < end; poll(NULL, 0, 5)) /* not a wait: the deadline decides */
        if (atomic_load(value) == wanted) return true;
    return false;
}

inspan_status_t get_job(rpc_client_t *client, uint64_t id, ns_t timeout, Inspan__V1__JobInfo **job,
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

void expect_job(rpc_client_t *client, uint64_t id)
{
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    if (get_job(client, id, LONG, &job, &err) != INSPAN_OK) fail_msg("job %d: %s", (int)id, err.text);
    assert_int_equal(job->id, id);
    assert_string_equal(job->name, "xxx");
    protobuf_c_message_free_unpacked(&job->base, NULL);
}

void send_heartbeat(rpc_stream_t *stream, uint64_t sequence)
{
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__Heartbeat heartbeat = INSPAN__V1__HEARTBEAT__INIT;
    heartbeat.sequence = sequence;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_HEARTBEAT;
    up.heartbeat = &heartbeat;
    inspan_error_t err = {0};
    if (rpc_stream_send(stream, &up.base, LONG, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

void expect_sequence(rpc_stream_t *stream, uint64_t sequence)
{
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    if (rpc_stream_next(stream, LONG, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_non_null(message);
    assert_int_equal(((Inspan__V1__AgentDown *)message)->log->request_id, sequence);
    protobuf_c_message_free_unpacked(message, NULL);
}

rpc_stream_t *attach(rpc_client_t *client)
{
    rpc_stream_t *stream = NULL;
    inspan_error_t err = {0};
    if (rpc_stream_open(client, "/inspan.v1.Agents/Attach", &inspan__v1__agent_down__descriptor, &stream,
                        &err))
        fail_msg("%s", err.text);
    return stream;
}
