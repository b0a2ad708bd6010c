/* The services, from registration to results: see service_test_rig.h. */
#include "manager/service/service_test_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

static void put_file(const char *data, size_t bytes, char hash[33])
{
    inspan_error_t err = {0};
    hash_stream_t *hashing = hash_stream_open();
    hash_stream_add(hashing, data, bytes);
    hash_stream_finish128_hex(hashing, hash);
    Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
    chunk.hash = hash;
    chunk.total_bytes = bytes;
    size_t first = bytes / 3;
    chunk.data.data = (uint8_t *)data;
    chunk.data.len = first;
    rpc_stream_t *stream =
        open_stream(manager.people, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor, &chunk.base);
    chunk.data.data = (uint8_t *)data + first;
    chunk.data.len = bytes - first;
    assert_int_equal(rpc_stream_send(stream, &chunk.base, PATIENT, &err), INSPAN_OK);
    rpc_stream_half_close(stream);
    ProtobufCMessage *message = NULL;
    if (rpc_stream_next(stream, PATIENT, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_true(((Inspan__V1__FileStat *)message)->present);
    assert_int_equal(((Inspan__V1__FileStat *)message)->bytes, bytes);
    release(message);
    rpc_stream_close(stream);
}

static void expect_file(const char *hash, const char *data, size_t bytes)
{
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)hash;
    rpc_stream_t *stream =
        open_stream(manager.people, "/inspan.v1.Files/Get", &inspan__v1__file_chunk__descriptor, &id.base);
    rpc_stream_half_close(stream);
    inspan_error_t err = {0};
    size_t got = 0;
    for (;;) {
        ProtobufCMessage *message = NULL;
        if (rpc_stream_next(stream, PATIENT, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
        if (message == NULL) break;
        Inspan__V1__FileChunk *chunk = (Inspan__V1__FileChunk *)message;
        assert_int_equal(chunk->total_bytes, bytes);
        assert_true(got + chunk->data.len <= bytes);
        if (chunk->data.len > 0) assert_memory_equal(chunk->data.data, data + got, chunk->data.len);
        got += chunk->data.len;
        release(chunk);
    }
    assert_int_equal(got, bytes);
    rpc_stream_close(stream);
}

static void three_nodes_run_a_job_through(void **state)
{
    (void)state;
    agent_t agents[3];
    for (uint32_t k = 0; k < 3; k++) {
        agents[k] = new_agent(k);
        attach(&agents[k], "box", NULL);
    }
    assert_string_equal(agents[0].name, "box");
    assert_string_equal(agents[1].name, "box-2");
    assert_string_equal(agents[2].name, "box-3");
    uint64_t id = run_job(agents, 3);
    wait_for_state(id, "running");
    Inspan__V1__NodeList *nodes = list_nodes();
    assert_int_equal(nodes->n_nodes, 3);
    assert_string_equal(nodes->nodes[2]->state, "busy");
    assert_int_equal(nodes->nodes[2]->job_id, id);
    release(nodes);

    char hash[33];
    put_file("weights", 7, hash);
    for (uint32_t k = 0; k < 3; k++) {
        Inspan__V1__WorkerReport report = report_of(&agents[k], INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
        Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
        progress.step = 10;
        progress.loss = 2.5;
        report.progress = &progress;
        send_report(&agents[k], &report);
        report = report_of(&agents[k], INSPAN__V1__WORKER_STATE__WORKER_DONE);
        report.summary_json = (char *)"{\"steps\":10}";
        Inspan__V1__ResultFile result = INSPAN__V1__RESULT_FILE__INIT, *results[] = {&result};
        result.name = (char *)"model.safetensors";
        result.hash = hash;
        result.bytes = 7;
        report.results = results;
        report.n_results = agents[k].rank == 0;
        send_report(&agents[k], &report);
    }
    Inspan__V1__JobEvent *last = watch_to_the_end(id);
    assert_string_equal(last->job->state, "done");
    assert_int_equal(last->job->n_ranks, 3);
    assert_string_equal(last->job->ranks[1]->node_id, agents[1].id);
    assert_int_equal(last->job->n_results, 1);
    assert_string_equal(last->job->results[0]->name, "model.safetensors");
    assert_string_equal(last->job->ranks[2]->summary_json, "{\"steps\":10}");
    assert_int_equal(last->job->progress->step, 10); /* kept, though the last report had none */
    expect_file(last->job->results[0]->hash, "weights", 7);
    release(last);
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    Inspan__V1__JobList *jobs =
        call("/inspan.v1.Cluster/ListJobs", &empty.base, &inspan__v1__job_list__descriptor);
    assert_int_equal(jobs->n_jobs, 1);
    release(jobs);
    nodes = list_nodes();
    assert_string_equal(nodes->nodes[0]->state, "ready");
    release(nodes);
    for (uint32_t k = 0; k < 3; k++) detach(&agents[k]);
}

static void a_killed_worker_ends_the_job(void **state)
{
    (void)state;
    agent_t agents[3];
    for (uint32_t k = 0; k < 3; k++) {
        agents[k] = new_agent(k);
        attach(&agents[k], "box", NULL);
    }
    uint64_t id = run_job(agents, 3);
    wait_for_state(id, "running");
    Inspan__V1__WorkerReport report = report_of(&agents[2], INSPAN__V1__WORKER_STATE__WORKER_FAILED);
    report.exit_signal = 9;
    send_report(&agents[2], &report);
    for (uint32_t k = 0; k < 2; k++) {
        Inspan__V1__AgentDown *down = expect(&agents[k], INSPAN__V1__AGENT_DOWN__KIND_LOST);
        assert_int_equal(down->lost->failure->rank, 2);
        assert_non_null(strstr(down->lost->failure->text, "signal 9"));
        release(down);
        down = expect(&agents[k], INSPAN__V1__AGENT_DOWN__KIND_STOP);
        assert_true(down->stop->kill);
        release(down);
        report = report_of(&agents[k], INSPAN__V1__WORKER_STATE__WORKER_FAILED);
        report.exit_signal = 15;
        send_report(&agents[k], &report);
    }
    Inspan__V1__JobEvent *last = watch_to_the_end(id);
    assert_string_equal(last->job->state, "failed");
    assert_string_equal(last->job->reason,
                        "rank 2 on node box-3 (127.0.0.1:7502): worker killed by signal 9 (Killed)");
    assert_int_equal(last->job->failure->rank, 2);
    release(last);
    for (uint32_t k = 0; k < 3; k++) detach(&agents[k]);
}

static void a_vanished_agent_is_noticed_and_named(void **state)
{
    (void)state;
    agent_t agents[2];
    for (uint32_t k = 0; k < 2; k++) {
        agents[k] = new_agent(k);
        attach(&agents[k], "box", NULL);
    }
    uint64_t id = run_job(agents, 2);
    wait_for_state(id, "running");
    detach(&agents[1]);
    Inspan__V1__AgentDown *down = expect(&agents[0], INSPAN__V1__AGENT_DOWN__KIND_LOST);
    assert_non_null(strstr(down->lost->failure->text, "node box-2: the connection of its agent broke"));
    release(down);
    tell(&agents[0], INSPAN__V1__WORKER_STATE__WORKER_FAILED);
    Inspan__V1__JobEvent *last = watch_to_the_end(id);
    assert_string_equal(last->job->state, "failed");
    assert_int_equal(last->job->failure->rank, 1);
    release(last);
    Inspan__V1__NodeList *nodes = list_nodes();
    assert_string_equal(nodes->nodes[1]->state, "lost");
    release(nodes);

    rpc_stream_half_close(agents[0].stream); /* this one says good-bye */
    ProtobufCMessage *message = NULL;
    inspan_error_t err;
    while (rpc_stream_next(agents[0].stream, PATIENT, &message, &err) == INSPAN_OK && message != NULL)
        release(message);
    nodes = list_nodes();
    assert_string_equal(nodes->nodes[0]->state, "left");
    release(nodes);
    detach(&agents[0]);
}

static void cancelling_asks_the_workers(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    attach(&agent, "solo", NULL);
    uint64_t id = run_job(&agent, 1);
    Inspan__V1__SubmitRequest request = request_for(1, 1);
    uint64_t waiting = submit(&request, "queued");
    Inspan__V1__JobInfo *job = get_job(waiting);
    assert_string_equal(job->reason, "needs 1 node: 0 are ready (solo is busy)");
    release(job);
    Inspan__V1__JobRequest which = INSPAN__V1__JOB_REQUEST__INIT;
    which.id = waiting;
    job = call("/inspan.v1.Cluster/Cancel", &which.base, &inspan__v1__job_info__descriptor);
    assert_string_equal(job->state, "cancelled");
    release(job);
    which.id = id;
    job = call("/inspan.v1.Cluster/Cancel", &which.base, &inspan__v1__job_info__descriptor);
    release(job);
    Inspan__V1__AgentDown *down = expect(&agent, INSPAN__V1__AGENT_DOWN__KIND_STOP);
    assert_false(down->stop->kill);
    release(down);
    tell(&agent, INSPAN__V1__WORKER_STATE__WORKER_FAILED);
    Inspan__V1__JobEvent *last = watch_to_the_end(id);
    assert_string_equal(last->job->state, "cancelled");
    release(last);
    inspan_error_t err;
    which.id = 77;
    assert_int_equal(
        call_refused("/inspan.v1.Cluster/Cancel", &which.base, &inspan__v1__job_info__descriptor, &err),
        INSPAN_NOT_FOUND);
    detach(&agent);
}

static void logs_are_relayed(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    attach(&agent, "solo", NULL);
    uint64_t id = run_job(&agent, 1);
    Inspan__V1__LogRequest wanted = INSPAN__V1__LOG_REQUEST__INIT;
    wanted.job_id = id;
    wanted.rank = -1;
    rpc_stream_t *reader = open_stream(manager.people, "/inspan.v1.Cluster/ReadLog",
                                       &inspan__v1__log_chunk__descriptor, &wanted.base);
    rpc_stream_half_close(reader);
    Inspan__V1__AgentDown *down = expect(&agent, INSPAN__V1__AGENT_DOWN__KIND_LOG);
    Inspan__V1__LogChunk chunk = INSPAN__V1__LOG_CHUNK__INIT;
    chunk.request_id = down->log->request_id;
    release(down);
    chunk.data.data = (uint8_t *)"line 1\n";
    chunk.data.len = 7;
    rpc_stream_t *push =
        open_stream(agent.client, "/inspan.v1.Agents/PushLog", &inspan__v1__empty__descriptor, &chunk.base);
    inspan_error_t err = {0};
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_OK);
    assert_memory_equal(((Inspan__V1__LogChunk *)message)->data.data, "line 1\n", 7);
    release(message);
    rpc_stream_half_close(push);
    assert_int_equal(rpc_stream_next(push, PATIENT, &message, &err), INSPAN_OK);
    release(message);
    rpc_stream_close(push);
    assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_OK);
    assert_true(((Inspan__V1__LogChunk *)message)->end);
    release(message);
    assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_OK);
    assert_null(message);
    rpc_stream_close(reader);

    push =
        open_stream(agent.client, "/inspan.v1.Agents/PushLog", &inspan__v1__empty__descriptor, &chunk.base);
    assert_int_equal(rpc_stream_next(push, PATIENT, &message, &err), INSPAN_NOT_FOUND); /* nobody asked */
    rpc_stream_close(push);

    reader = open_stream(manager.people, "/inspan.v1.Cluster/ReadLog", &inspan__v1__log_chunk__descriptor,
                         &wanted.base);
    down = expect(&agent, INSPAN__V1__AGENT_DOWN__KIND_LOG);
    chunk.request_id = down->log->request_id;
    release(down);
    push =
        open_stream(agent.client, "/inspan.v1.Agents/PushLog", &inspan__v1__empty__descriptor, &chunk.base);
    assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_OK);
    release(message);
    rpc_stream_close(reader); /* the reader goes: the push is ended, not left to fill memory */
    assert_int_equal(rpc_stream_next(push, PATIENT, &message, &err), INSPAN_ABORTED);
    rpc_stream_close(push);
    wanted.rank = 5;
    reader = open_stream(manager.people, "/inspan.v1.Cluster/ReadLog", &inspan__v1__log_chunk__descriptor,
                         &wanted.base);
    assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_NOT_FOUND);
    rpc_stream_close(reader);
    detach(&agent);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    inspan_error_t err = {0};
    ProtobufCMessage *message = NULL;
    agent_t stranger = new_agent(7);
    assert_int_equal(rpc_client_open(manager.target, TOKEN, &stranger.client, &err), INSPAN_OK);
    send_register(&stranger, "old", 9, NULL);
    assert_int_equal(rpc_stream_next(stranger.stream, PATIENT, &message, &err), INSPAN_VERSION);
    assert_non_null(strstr(err.text, "protocol 9.0"));
    assert_non_null(strstr(err.text, "this manager 1.0"));
    detach(&stranger);
    assert_int_equal(rpc_client_open(manager.target, "wrong", &stranger.client, &err), INSPAN_OK);
    stranger.memory = GB;
    snprintf(stranger.id, sizeof stranger.id, "00000000-0000-4000-8000-000000000009");
    send_register(&stranger, "thief", PROTOCOL_MAJOR, NULL);
    assert_int_equal(rpc_stream_next(stranger.stream, PATIENT, &message, &err), INSPAN_AUTH);
    detach(&stranger);
    Inspan__V1__NodeList *nodes = list_nodes();
    assert_int_equal(nodes->n_nodes, 0);
    release(nodes);

    agent_t agent = new_agent(0);
    attach(&agent, "solo", NULL);
    Inspan__V1__SubmitRequest request = request_for(1, 1);
    request.memory_bytes = 9 * GB;
    request.model_bytes = 2 * GB;
    const ProtobufCMessageDescriptor *info = &inspan__v1__job_info__descriptor;
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_LIMIT);
    assert_non_null(
        strstr(err.text, "needs 9.0 GB on each node (weights 2.0 GB), the largest node solo has 8.0 GB"));
    request = request_for(2, 1);
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_INVALID);
    request = request_for(1, 1);
    request.failure_timeout_ns = 0;
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_INVALID);
    request = request_for(1, 1);
    Inspan__V1__DataFile file = INSPAN__V1__DATA_FILE__INIT, *files[] = {&file};
    file.hash = (char *)"../../../../etc/passwd";
    file.path = (char *)"book.txt";
    file.fetch = true;
    request.data = files;
    request.n_data = 1;
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_NOT_FOUND);
    file.bytes = 300000000;
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "256.0 MB"));
    request = request_for(1, 1);
    char *pinned[] = {(char *)"nobody"};
    request.pinned = pinned;
    request.n_pinned = 1;
    assert_int_equal(call_refused("/inspan.v1.Cluster/Submit", &request.base, info, &err), INSPAN_NOT_FOUND);
    Inspan__V1__JobRequest which = INSPAN__V1__JOB_REQUEST__INIT;
    which.id = 5;
    assert_int_equal(call_refused("/inspan.v1.Cluster/GetJob", &which.base, info, &err), INSPAN_NOT_FOUND);
    detach(&agent);
}

static void files_are_verified(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 262143, 262144, 262145, 3000000};
    char *data = malloc(3000000);
    assert_non_null(data);
    for (size_t i = 0; i < 3000000; i++) data[i] = (char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char hash[33];
        put_file(data, sizes[i], hash);
        put_file(data, sizes[i], hash); /* again: there already */
        expect_file(hash, data, sizes[i]);
    }
    free(data);

    static const struct {
        const char *hash;
        uint64_t total;
        inspan_status_t status;
    } wrong[] = {
        {"00000000000000000000000000000000", 5, INSPAN_CORRUPT},
        {"../0000000000000000000000000000x", 5, INSPAN_INVALID},
        {"00000000000000000000000000000000", 4, INSPAN_LIMIT},
        {"00000000000000000000000000000000", 6, INSPAN_CORRUPT},
        {"00000000000000000000000000000000", 2000000000, INSPAN_LIMIT},
        {"", 5, INSPAN_INVALID},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        inspan_error_t err = {0};
        ProtobufCMessage *message = NULL;
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.hash = (char *)wrong[i].hash;
        chunk.total_bytes = wrong[i].total;
        chunk.data.data = (uint8_t *)"12345";
        chunk.data.len = 5;
        rpc_stream_t *stream = open_stream(manager.people, "/inspan.v1.Files/Put",
                                           &inspan__v1__file_stat__descriptor, &chunk.base);
        rpc_stream_half_close(stream);
        assert_int_equal(rpc_stream_next(stream, PATIENT, &message, &err), wrong[i].status);
        rpc_stream_close(stream);
    }
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)"00000000000000000000000000000000";
    Inspan__V1__FileStat *stat = call("/inspan.v1.Files/Stat", &id.base, &inspan__v1__file_stat__descriptor);
    assert_false(stat->present);
    release(stat);
}

static void a_copied_state_folder_gets_a_new_id(void **state)
{
    (void)state;
    agent_t first = new_agent(3), copy = new_agent(3), again = new_agent(3);
    copy.incarnation = 999;
    attach(&first, "box", NULL);
    heartbeat(&first);
    attach(&copy, "box", NULL);
    assert_string_not_equal(copy.id, first.id);
    assert_string_equal(copy.name, "box-2");
    Inspan__V1__NodeList *nodes = list_nodes();
    assert_int_equal(nodes->n_nodes, 2);
    assert_string_equal(nodes->nodes[0]->node_id, first.id);
    release(nodes);
    attach(&again, "box", NULL); /* the same agent on a new stream: the old one is replaced */
    assert_string_equal(again.id, first.id);
    assert_string_equal(again.name, "box");
    ProtobufCMessage *message = NULL;
    inspan_error_t err;
    assert_int_equal(rpc_stream_next(first.stream, PATIENT, &message, &err), INSPAN_ABORTED);
    nodes = list_nodes();
    assert_int_equal(nodes->n_nodes, 2);
    assert_string_equal(nodes->nodes[0]->state, "ready");
    release(nodes);
    detach(&first);
    detach(&copy);
    detach(&again);
}

static void a_restarted_manager_carries_jobs_on(void **state)
{
    (void)state;
    agent_t agents[2];
    for (uint32_t k = 0; k < 2; k++) {
        agents[k] = new_agent(k);
        attach(&agents[k], "box", NULL);
    }
    assert_int_equal(agents[0].manager_incarnation, 1);
    uint64_t id = run_job(agents, 2);
    wait_for_state(id, "running");
    Inspan__V1__SubmitRequest request = request_for(2, 2);
    uint64_t queued = submit(&request, "queued");
    stop_manager();
    for (uint32_t k = 0; k < 2; k++) {
        rpc_stream_close(agents[k].stream);
        rpc_client_close(agents[k].client);
        agents[k].stream = NULL;
        agents[k].client = NULL;
    }
    start_manager();
    Inspan__V1__JobInfo *job = get_job(id);
    assert_string_equal(job->state, "running");
    assert_int_equal(job->view, 1);
    assert_int_equal(job->ranks[1]->port, 7501);
    release(job);
    for (uint32_t k = 0; k < 2; k++) {
        Inspan__V1__WorkerReport report = report_of(&agents[k], INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
        attach(&agents[k], "box", &report);
        assert_int_equal(agents[k].manager_incarnation, 2);
    }
    for (uint32_t k = 0; k < 2; k++) tell(&agents[k], INSPAN__V1__WORKER_STATE__WORKER_DONE);
    Inspan__V1__JobEvent *last = watch_to_the_end(id);
    assert_string_equal(last->job->state, "done");
    release(last);
    take_start(&agents[0]); /* the one that waited is next */
    assert_int_equal(agents[0].job, queued);
    take_start(&agents[1]);

    /* a worker of a job that nobody knows is stopped */
    agents[1].job = 4711;
    Inspan__V1__WorkerReport stray = report_of(&agents[1], INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    rpc_stream_close(agents[1].stream);
    attach(&agents[1], "box", &stray);
    for (;;) {
        Inspan__V1__AgentDown *down = expect(&agents[1], INSPAN__V1__AGENT_DOWN__KIND_STOP);
        bool found = down->stop->job_id == 4711 && down->stop->kill;
        release(down);
        if (found) break;
    }
    for (uint32_t k = 0; k < 2; k++) detach(&agents[k]);
}

static Inspan__V1__ArtifactAnswer *register_checkpoint(agent_t *agent, uint64_t view)
{
    Inspan__V1__ResultFile file = INSPAN__V1__RESULT_FILE__INIT, *files[] = {&file};
    Inspan__V1__Artifact artifact = INSPAN__V1__ARTIFACT__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    inspan_error_t err;
    char hash[33];
    put_file("weights", 7, hash);
    file.name = (char *)"model.safetensors";
    file.hash = hash;
    file.bytes = 7;
    artifact.job_id = agent->job;
    artifact.rank = agent->rank;
    artifact.view = view;
    artifact.step = 200;
    artifact.files = files;
    artifact.n_files = 1;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_ARTIFACT;
    up.artifact = &artifact;
    assert_int_equal(rpc_stream_send(agent->stream, &up.base, PATIENT, &err), INSPAN_OK);
    Inspan__V1__AgentDown *down = expect(agent, INSPAN__V1__AGENT_DOWN__KIND_ARTIFACT);
    Inspan__V1__ArtifactAnswer *answer = down->artifact;
    down->kind_case = INSPAN__V1__AGENT_DOWN__KIND__NOT_SET;
    down->artifact = NULL;
    release(down);
    return answer;
}

static void checkpoints_and_the_ledger_are_answered(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    inspan_error_t err;
    attach(&agent, "solo", NULL);
    uint64_t id = run_job(&agent, 1);
    wait_for_state(id, "running");
    Inspan__V1__ArtifactAnswer *answer = register_checkpoint(&agent, 7);
    assert_int_equal(answer->status, INSPAN_ABORTED);
    assert_non_null(strstr(answer->text, "the newest is 1"));
    release(answer);
    answer = register_checkpoint(&agent, 1);
    assert_int_equal(answer->status, INSPAN_OK);
    assert_int_equal(answer->step, 200);
    release(answer);
    Inspan__V1__JobInfo *job = get_job(id);
    assert_int_equal(job->n_checkpoints, 1);
    assert_string_equal(job->checkpoints[0]->files[0]->name, "model.safetensors");
    release(job);

    Inspan__V1__LedgerShare share = INSPAN__V1__LEDGER_SHARE__INIT, *shares[] = {&share};
    Inspan__V1__LedgerSpan span = INSPAN__V1__LEDGER_SPAN__INIT, *spans[] = {&span};
    Inspan__V1__LedgerSpans ledger = INSPAN__V1__LEDGER_SPANS__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_LEDGER;
    up.ledger = &ledger;
    ledger.job_id = id;
    ledger.seed = 3;
    ledger.batch = 64;
    ledger.spans = spans;
    ledger.n_spans = 1;
    span.shares = shares;
    span.n_shares = 1;
    span.view = 1;
    for (uint64_t step = 0; step < 250; step++) { /* no two alike: more than one message */
        span.first_step = span.last_step = step;
        share.n = step + 1;
        assert_int_equal(rpc_stream_send(agent.stream, &up.base, PATIENT, &err), INSPAN_OK);
    }
    tell(&agent, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    release(watch_to_the_end(id));
    Inspan__V1__JobRequest which = INSPAN__V1__JOB_REQUEST__INIT;
    which.id = id;
    rpc_stream_t *reader = open_stream(manager.people, "/inspan.v1.Cluster/ReadLedger",
                                       &inspan__v1__ledger_spans__descriptor, &which.base);
    rpc_stream_half_close(reader);
    uint64_t step = 0;
    for (ProtobufCMessage *message = NULL;; release(message)) {
        assert_int_equal(rpc_stream_next(reader, PATIENT, &message, &err), INSPAN_OK);
        if (message == NULL) break;
        const Inspan__V1__LedgerSpans *part = (const Inspan__V1__LedgerSpans *)message;
        assert_int_equal(part->seed, 3);
        assert_int_equal(part->batch, 64);
        for (size_t i = 0; i < part->n_spans; i++, step++) {
            assert_int_equal(part->spans[i]->first_step, step);
            assert_int_equal(part->spans[i]->shares[0]->n, step + 1);
        }
    }
    assert_int_equal(step, 250);
    rpc_stream_close(reader);
    which.id = 99;
    ProtobufCMessage *none = NULL;
    reader = open_stream(manager.people, "/inspan.v1.Cluster/ReadLedger",
                         &inspan__v1__ledger_spans__descriptor, &which.base);
    assert_int_equal(rpc_stream_next(reader, PATIENT, &none, &err), INSPAN_NOT_FOUND);
    rpc_stream_close(reader);
    detach(&agent);
}

static void nodes_are_drained_and_used_again(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    attach(&agent, "solo", NULL);
    Inspan__V1__NodeRequest which = INSPAN__V1__NODE_REQUEST__INIT;
    which.node = (char *)"solo";
    Inspan__V1__Node *node = call("/inspan.v1.Cluster/Drain", &which.base, &inspan__v1__node__descriptor);
    assert_string_equal(node->state, "drained");
    release(node);
    Inspan__V1__SubmitRequest request = request_for(1, 1);
    uint64_t id = submit(&request, "queued");
    Inspan__V1__JobInfo *job = get_job(id);
    assert_string_equal(job->reason, "needs 1 node: 0 are ready (solo is drained)");
    release(job);
    which.node = agent.id;
    node = call("/inspan.v1.Cluster/Unban", &which.base, &inspan__v1__node__descriptor);
    assert_string_equal(node->state, "ready");
    release(node);
    take_start(&agent);
    assert_int_equal(agent.job, id);
    inspan_error_t err;
    which.node = (char *)"nobody";
    assert_int_equal(
        call_refused("/inspan.v1.Cluster/Drain", &which.base, &inspan__v1__node__descriptor, &err),
        INSPAN_NOT_FOUND);
    detach(&agent);
}

static void expect_event(rpc_stream_t *stream, const char *text)
{
    inspan_error_t err = {0};
    for (bool seen = false; !seen;) {
        ProtobufCMessage *message = NULL;
        if (rpc_stream_next(stream, PATIENT, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
        assert_non_null(message);
        seen = strcmp(((Inspan__V1__JobEvent *)message)->text, text) == 0;
        release(message);
    }
}

static Inspan__V1__SpeedList *list_speeds(const char *model)
{
    Inspan__V1__SpeedsRequest request = INSPAN__V1__SPEEDS_REQUEST__INIT;
    request.model_key = (char *)model;
    return call("/inspan.v1.Cluster/ListSpeeds", &request.base, &inspan__v1__speed_list__descriptor);
}

static void verdicts_reach_who_watches_and_speeds_are_listed(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    inspan_error_t err = {0};
    attach(&agent, "solo", NULL);
    Inspan__V1__SubmitRequest request = request_for(1, 1);
    request.model_key = (char *)"mlp-2x64-fp32";
    uint64_t id = submit(&request, "starting");
    take_start(&agent);
    tell(&agent, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    release(expect(&agent, INSPAN__V1__AGENT_DOWN__KIND_VIEW));
    tell(&agent, INSPAN__V1__WORKER_STATE__WORKER_RUNNING);
    Inspan__V1__JobRequest which = INSPAN__V1__JOB_REQUEST__INIT;
    which.id = id;
    rpc_stream_t *watcher = open_stream(manager.people, "/inspan.v1.Cluster/Watch",
                                        &inspan__v1__job_event__descriptor, &which.base);
    ProtobufCMessage *first = NULL; /* it watches */
    assert_int_equal(rpc_stream_next(watcher, PATIENT, &first, &err), INSPAN_OK);
    release(first);
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__Verdict verdict = INSPAN__V1__VERDICT__INIT;
    verdict.job_id = id;
    verdict.step = verdict.started_step = 7;
    verdict.factor = 0.5;
    verdict.evidence = (char *)"CPU clock 1.2 GHz, was 2.4";
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_VERDICT;
    up.verdict = &verdict;
    assert_int_equal(rpc_stream_send(agent.stream, &up.base, PATIENT, &err), INSPAN_OK);
    expect_event(watcher, "rank 0 (solo) slowed to 0.50x since step 7: CPU clock 1.2 GHz, was 2.4");
    Inspan__V1__WorkerReport report = report_of(&agent, INSPAN__V1__WORKER_STATE__WORKER_DONE);
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    progress.pace_sample_ns = 2000000;
    progress.pace_step_ns = 30000;
    progress.run_samples = 16;
    report.progress = &progress;
    send_report(&agent, &report);
    expect_event(watcher, "done");
    rpc_stream_close(watcher);
    Inspan__V1__JobInfo *job = get_job(id);
    assert_int_equal(job->n_verdicts, 1);
    assert_int_equal(job->ranks[0]->progress->pace_sample_ns, 2000000);
    release(job);
    Inspan__V1__SpeedList *list = list_speeds("");
    assert_int_equal(list->n_speeds, 1);
    assert_string_equal(list->speeds[0]->node_id, agent.id);
    assert_string_equal(list->speeds[0]->model_key, "mlp-2x64-fp32");
    assert_int_equal(list->speeds[0]->sample_ns, 2000000);
    assert_int_equal(list->speeds[0]->micro_batch, 16);
    release(list);
    list = list_speeds("gpt");
    assert_int_equal(list->n_speeds, 0);
    release(list);
    detach(&agent);
}

static void a_backup_is_a_registry(void **state)
{
    (void)state;
    agent_t agent = new_agent(0);
    inspan_error_t err = {0};
    attach(&agent, "solo", NULL);
    char folder[64] = "/tmp/inspan-backup-XXXXXX", path[96];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/registry.db", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    rpc_stream_t *stream = open_stream(manager.people, "/inspan.v1.Cluster/Backup",
                                       &inspan__v1__file_chunk__descriptor, &empty.base);
    rpc_stream_half_close(stream);
    uint64_t bytes = 0, total = 0;
    for (ProtobufCMessage *message = NULL;; release(message)) {
        assert_int_equal(rpc_stream_next(stream, PATIENT, &message, &err), INSPAN_OK);
        if (message == NULL) break;
        const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)message;
        total = chunk->total_bytes;
        bytes += chunk->data.len;
        assert_int_equal(fwrite(chunk->data.data, 1, chunk->data.len, file), chunk->data.len);
    }
    rpc_stream_close(stream);
    assert_int_equal(fclose(file), 0);
    assert_true(bytes > 0 && bytes == total);
    registry_t *copy = NULL;
    if (registry_open(folder, 0, &copy, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_string_equal(registry_notice(copy), "");
    assert_string_equal(registry_cluster_id(copy), registry_cluster_id(manager.registry));
    registry_close(copy);
    assert_int_equal(os_remove_all(folder, NULL), INSPAN_OK);
    detach(&agent);
}

int main(void)
{
#define WITH_MANAGER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_MANAGER(three_nodes_run_a_job_through),
        WITH_MANAGER(a_killed_worker_ends_the_job),
        WITH_MANAGER(a_vanished_agent_is_noticed_and_named),
        WITH_MANAGER(cancelling_asks_the_workers),
        WITH_MANAGER(logs_are_relayed),
        WITH_MANAGER(what_cannot_be_is_refused),
        WITH_MANAGER(files_are_verified),
        WITH_MANAGER(a_copied_state_folder_gets_a_new_id),
        WITH_MANAGER(a_restarted_manager_carries_jobs_on),
        WITH_MANAGER(checkpoints_and_the_ledger_are_answered),
        WITH_MANAGER(nodes_are_drained_and_used_again),
        WITH_MANAGER(verdicts_reach_who_watches_and_speeds_are_listed),
        WITH_MANAGER(a_backup_is_a_registry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
