/* For rpc's tests: the test service on a server in a thread, and the calls of its clients. Failures end the
 * test. */
#ifndef RPC_RPC_TEST_FIXTURE_H
#define RPC_RPC_TEST_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "inspan/v1/inspan.pb-c.h"
#include "platform/os/os_time.h"
#include "rpc/rpc.h"
#include "rpc/rpc_test_service.h"

#define TOKEN "KRUGKIDROVUWG2ZA"
#define LONG  (20 * NS_PER_S) /* bound of what must come: generous for slow machines */

#define GET_JOB "/inspan.v1.Cluster/GetJob"

typedef struct fixture {
    test_service_t service;
    rpc_server_t *server;
    pthread_t thread;
    uint16_t port;
    char target[64];
} fixture_t;

void fixture_open(fixture_t *f, const char *listen);
void fixture_close(fixture_t *f);
rpc_client_t *client_of(const char *target, const char *token);
bool wait_for(atomic_uint *value, unsigned wanted);
inspan_status_t get_job(rpc_client_t *client, uint64_t id, ns_t timeout, Inspan__V1__JobInfo **job,
                        inspan_error_t *err);
void expect_job(rpc_client_t *client, uint64_t id);
void send_heartbeat(rpc_stream_t *stream, uint64_t sequence);
void expect_sequence(rpc_stream_t *stream, uint64_t sequence);
rpc_stream_t *attach(rpc_client_t *client);

#endif
