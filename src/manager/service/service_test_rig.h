/*
 * The rig of the service's tests: the whole manager but its process, a real rpc server on loopback; agents
 * and people are played by rpc clients. Every wait is for an event, with a deadline; what does not come fails
 * the test.
 */
#ifndef MANAGER_SERVICE_TEST_RIG_H
#define MANAGER_SERVICE_TEST_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/protocol.h"
#include "inspan/v1/inspan.pb-c.h"
#include "manager/service/service.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define TOKEN   "a-token-for-this-test"
#define PATIENT (20 * NS_PER_S) /* a bound for a slow machine, not an expectation */
#define GB      1000000000ull

typedef struct manager {
    char folder[64];
    registry_t *registry;
    service_t *service;
    rpc_server_t *server;
    pthread_t thread;
    char target[32];
    rpc_client_t *people;
    size_t queue_bytes; /* the server's; 0: as in the product */
} manager_t;

extern manager_t manager;

typedef struct agent {
    rpc_client_t *client;
    rpc_stream_t *stream;
    char id[64], name[64];
    uint64_t incarnation, manager_incarnation;
    uint64_t job;
    uint32_t rank;
    uint64_t memory;
} agent_t;

void start_manager(void);
void stop_manager(void);
int set_up(void **state);
int tear_down(void **state);
void *call(const char *path, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type);
inspan_status_t call_refused(const char *path, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *type, inspan_error_t *err);
void release(void *message);
Inspan__V1__SubmitRequest request_for(uint32_t min, uint32_t max);
uint64_t submit(const Inspan__V1__SubmitRequest *request, const char *state);
Inspan__V1__JobInfo *get_job(uint64_t id);
Inspan__V1__NodeList *list_nodes(void);
rpc_stream_t *open_stream(rpc_client_t *client, const char *path, const ProtobufCMessageDescriptor *type,
                          const ProtobufCMessage *first);
Inspan__V1__JobEvent *watch_to_the_end(uint64_t id);
void heartbeat(agent_t *agent);
void send_register(agent_t *agent, const char *name, uint32_t major, Inspan__V1__WorkerReport *worker);
Inspan__V1__AgentDown *expect(agent_t *agent, Inspan__V1__AgentDown__KindCase kind);
void attach(agent_t *agent, const char *name, Inspan__V1__WorkerReport *worker);
agent_t new_agent(uint32_t k);
void detach(agent_t *agent);
Inspan__V1__WorkerReport report_of(const agent_t *agent, Inspan__V1__WorkerState state);
void send_report(agent_t *agent, Inspan__V1__WorkerReport *report);
void tell(agent_t *agent, Inspan__V1__WorkerState state);
void take_start(agent_t *agent);
uint64_t run_job(agent_t *agents, uint32_t n);
void wait_for_state(uint64_t id, const char *state);

#endif
