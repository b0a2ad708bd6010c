#include "manager/service/service_test_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

manager_t manager;

static void *serve(void *server)
{
    rpc_server_run(server);
    return NULL;
}

void start_manager(void)
{
    inspan_error_t err = {0};
    uint16_t port = 0;
    if (registry_open(manager.folder, 0, &manager.registry, &err) != INSPAN_OK ||
        service_open(manager.folder, manager.registry, os_now(), &manager.service, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    rpc_server_options_t options = {.listen = "127.0.0.1:0",
                                    .token = TOKEN,
                                    .context = manager.service,
                                    .tick = service_tick,
                                    .tick_period = SERVICE_TICK_NS,
                                    .queue_bytes = manager.queue_bytes};
    options.methods = service_methods(&options.n_methods);
    if (rpc_server_open(&options, &manager.server, &port, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(pthread_create(&manager.thread, NULL, serve, manager.server), 0);
    snprintf(manager.target, sizeof manager.target, "127.0.0.1:%u", port);
    assert_int_equal(rpc_client_open(manager.target, TOKEN, &manager.people, &err), INSPAN_OK);
}

void stop_manager(void)
{
    rpc_client_close(manager.people);
    rpc_server_stop(manager.server);
    pthread_join(manager.thread, NULL);
    rpc_server_close(manager.server);
    service_close(manager.service);
    registry_close(manager.registry);
}

int set_up(void **state)
{
    (void)state;
    memset(&manager, 0, sizeof manager);
    snprintf(manager.folder, sizeof manager.folder, "/tmp/inspan-manager-XXXXXX");
    if (mkdtemp(manager.folder) == NULL) return -1;
    start_manager();
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    stop_manager();
    return os_remove_all(manager.folder, NULL) == INSPAN_OK ? 0 : -1;
}

/* ---- People ---- */

void *call(const char *path, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type)
{
    inspan_error_t err = {0};
    ProtobufCMessage *reply = NULL;
    if (rpc_call_unary(manager.people, path, request, type, PATIENT, &reply, &err) != INSPAN_OK)
        fail_msg("%s: %s", path, err.text);
    return reply;
}

inspan_status_t call_refused(const char *path, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *type, inspan_error_t *err)
{
    ProtobufCMessage *reply = NULL;
    inspan_status_t status = rpc_call_unary(manager.people, path, request, type, PATIENT, &reply, err);
    if (status == INSPAN_OK) protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

void release(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

Inspan__V1__SubmitRequest request_for(uint32_t min, uint32_t max)
{
    Inspan__V1__SubmitRequest request = INSPAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)"test";
    request.config = (char *)"name=test\n";
    request.min_nodes = min;
    request.max_nodes = max;
    request.failure_timeout_ns = NS_PER_S;
    return request;
}

uint64_t submit(const Inspan__V1__SubmitRequest *request, const char *state)
{
    Inspan__V1__JobInfo *job =
        call("/inspan.v1.Cluster/Submit", &request->base, &inspan__v1__job_info__descriptor);
    uint64_t id = job->id;
    assert_string_equal(job->state, state);
    release(job);
    return id;
}

Inspan__V1__JobInfo *get_job(uint64_t id)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    request.id = id;
    return call("/inspan.v1.Cluster/GetJob", &request.base, &inspan__v1__job_info__descriptor);
}

Inspan__V1__NodeList *list_nodes(void)
{
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    return call("/inspan.v1.Cluster/ListNodes", &empty.base, &inspan__v1__node_list__descriptor);
}

rpc_stream_t *open_stream(rpc_client_t *client, const char *path, const ProtobufCMessageDescriptor *type,
                          const ProtobufCMessage *first)
{
    inspan_error_t err = {0};
    rpc_stream_t *stream = NULL;
    if (rpc_stream_open(client, path, type, &stream, &err) != INSPAN_OK) fail_msg("%s", err.text);
    if (first != NULL && rpc_stream_send(stream, first, PATIENT, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return stream;
}

/* Watch until the job has ended; the last event. */
Inspan__V1__JobEvent *watch_to_the_end(uint64_t id)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    request.id = id;
    rpc_stream_t *stream = open_stream(manager.people, "/inspan.v1.Cluster/Watch",
                                       &inspan__v1__job_event__descriptor, &request.base);
    rpc_stream_half_close(stream);
    Inspan__V1__JobEvent *last = NULL;
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    for (;;) {
        if (rpc_stream_next(stream, PATIENT, &message, &err) != INSPAN_OK) fail_msg("%s", err.text);
        if (message == NULL) break;
        if (last != NULL) release(last);
        last = (Inspan__V1__JobEvent *)message;
    }
    rpc_stream_close(stream);
    assert_non_null(last);
    return last;
}

/* ---- Agents ---- */

static void up_send(agent_t *agent, const Inspan__V1__AgentUp *up)
{
    inspan_error_t err = {0};
    if (rpc_stream_send(agent->stream, &up->base, PATIENT, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

void heartbeat(agent_t *agent)
{
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__Heartbeat beat = INSPAN__V1__HEARTBEAT__INIT;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_HEARTBEAT;
    up.heartbeat = &beat;
    up_send(agent, &up);
}

void send_register(agent_t *agent, const char *name, uint32_t major, Inspan__V1__WorkerReport *worker)
{
    Inspan__V1__Register registration = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    inventory.boot_id = (char *)"this-boot";
    inventory.memory_bytes = agent->memory;
    inventory.usable_cores = 2;
    inventory.version = (char *)"0.1";
    registration.node_id = agent->id;
    registration.name = (char *)name;
    registration.address = (char *)"127.0.0.1";
    registration.inventory = &inventory;
    registration.incarnation = agent->incarnation;
    registration.wall_ns = os_wall_now();
    registration.protocol_major = major;
    registration.workers = &worker;
    registration.n_workers = worker != NULL;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE;
    up.register_node = &registration;
    agent->stream =
        open_stream(agent->client, "/inspan.v1.Agents/Attach", &inspan__v1__agent_down__descriptor, &up.base);
}

/* The next order of this kind, within the bound; others before it are dropped. */
Inspan__V1__AgentDown *expect(agent_t *agent, Inspan__V1__AgentDown__KindCase kind)
{
    inspan_error_t err = {0};
    ns_t deadline = os_now() + PATIENT;
    while (os_now() < deadline) {
        ProtobufCMessage *message = NULL;
        inspan_status_t status = rpc_stream_next(agent->stream, 300 * NS_PER_MS, &message, &err);
        if (status == INSPAN_TIMEOUT) {
            heartbeat(agent);
            continue;
        }
        if (status != INSPAN_OK) fail_msg("%s waits for %d: %s", agent->name, kind, err.text);
        assert_non_null(message);
        Inspan__V1__AgentDown *down = (Inspan__V1__AgentDown *)message;
        if (down->kind_case == kind) return down;
        release(down);
    }
    fail_msg("%s got no order %d", agent->name, kind);
    return NULL;
}

void attach(agent_t *agent, const char *name, Inspan__V1__WorkerReport *worker)
{
    inspan_error_t err = {0};
    if (agent->client == NULL)
        assert_int_equal(rpc_client_open(manager.target, TOKEN, &agent->client, &err), INSPAN_OK);
    send_register(agent, name, PROTOCOL_MAJOR, worker);
    Inspan__V1__AgentDown *down = expect(agent, INSPAN__V1__AGENT_DOWN__KIND_REGISTERED);
    snprintf(agent->id, sizeof agent->id, "%s", down->registered->node_id);
    snprintf(agent->name, sizeof agent->name, "%s", down->registered->name);
    agent->manager_incarnation = down->registered->manager_incarnation;
    assert_true(down->registered->heartbeat_ns * 5 == down->registered->failure_timeout_ns);
    release(down);
}

agent_t new_agent(uint32_t k)
{
    agent_t agent = {.incarnation = 100 + k, .memory = 8 * GB};
    snprintf(agent.id, sizeof agent.id, "00000000-0000-4000-8000-%012u", k);
    return agent;
}

void detach(agent_t *agent)
{
    if (agent->stream != NULL) rpc_stream_close(agent->stream);
    if (agent->client != NULL) rpc_client_close(agent->client);
    memset(agent, 0, sizeof *agent);
}

Inspan__V1__WorkerReport report_of(const agent_t *agent, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport report = INSPAN__V1__WORKER_REPORT__INIT;
    report.job_id = agent->job;
    report.rank = agent->rank;
    report.state = state;
    report.pid = 4000 + agent->rank;
    report.data_port = 7500 + agent->rank;
    report.incarnation = 9;
    return report;
}

void send_report(agent_t *agent, Inspan__V1__WorkerReport *report)
{
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_WORKER;
    up.worker = report;
    up_send(agent, &up);
}

void tell(agent_t *agent, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport report = report_of(agent, state);
    send_report(agent, &report);
}

void take_start(agent_t *agent)
{
    Inspan__V1__AgentDown *down = expect(agent, INSPAN__V1__AGENT_DOWN__KIND_START);
    agent->job = down->start->job_id;
    agent->rank = down->start->rank;
    assert_string_equal(down->start->config, "name=test\n");
    release(down);
}

/* All agents in one job, up to RUNNING. */
uint64_t run_job(agent_t *agents, uint32_t n)
{
    Inspan__V1__SubmitRequest request = request_for(n, n);
    uint64_t id = submit(&request, "starting");
    for (uint32_t i = 0; i < n; i++) take_start(&agents[i]);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(agents[i].job, id);
        tell(&agents[i], INSPAN__V1__WORKER_STATE__WORKER_STARTED);
        tell(&agents[i], INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    }
    for (uint32_t i = 0; i < n; i++) {
        Inspan__V1__AgentDown *down = expect(&agents[i], INSPAN__V1__AGENT_DOWN__KIND_VIEW);
        assert_int_equal(down->view->view, 1);
        assert_int_equal(down->view->n_members, n);
        assert_int_equal(down->view->key.len, 32);
        assert_int_equal(down->view->rank, agents[i].rank);
        for (uint32_t r = 0; r < n; r++) assert_int_equal(down->view->members[r]->port, 7500 + r);
        release(down);
    }
    for (uint32_t i = 0; i < n; i++) tell(&agents[i], INSPAN__V1__WORKER_STATE__WORKER_READY);
    return id;
}

void wait_for_state(uint64_t id, const char *state)
{
    for (ns_t deadline = os_now() + PATIENT; os_now() < deadline;) {
        Inspan__V1__JobInfo *job = get_job(id);
        bool there = strcmp(job->state, state) == 0;
        release(job);
        if (there) return;
        usleep(2000); /* not a wait: the deadline decides */
    }
    fail_msg("job %llu never was %s", (unsigned long long)id, state);
}
