/* grpc.health.v1: a service that the server has is SERVING until the server stops. */
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "rpc/rpc_server.h"

#define WATCHERS_LIMIT 256

typedef Grpc__Health__V1__HealthCheckResponse response_t;

struct rpc_health {
    rpc_server_t *server;
    rpc_call_t *watchers[WATCHERS_LIMIT];
    uint32_t n_watchers;
};

static bool known(const rpc_health_t *health, const Grpc__Health__V1__HealthCheckRequest *request)
{
    return request->service[0] == 0 ||
           rpc_server_serves(health->server, request->service, strlen(request->service));
}

static void check(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    response_t response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    if (known(context, (const Grpc__Health__V1__HealthCheckRequest *)message))
        rpc_call_reply(call, &response.base);
    else
        rpc_call_finish(call, INSPAN_NOT_FOUND, "no such service");
}

static void watch(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    rpc_health_t *health = context;
    response_t response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = known(health, (const Grpc__Health__V1__HealthCheckRequest *)message)
                          ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                          : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    if (health->n_watchers == WATCHERS_LIMIT) {
        rpc_call_finish(call, INSPAN_LIMIT, "too many watchers of the health");
        return;
    }
    health->watchers[health->n_watchers++] = call;
    rpc_call_send(call, &response.base);
}

static void watch_closed(void *context, rpc_call_t *call)
{
    rpc_health_t *health = context;
    for (uint32_t i = 0; i < health->n_watchers; i++)
        if (health->watchers[i] == call) {
            health->watchers[i] = health->watchers[--health->n_watchers];
            return;
        }
}

static const rpc_method_t methods[] = {
    {.path = "/grpc.health.v1.Health/Check",
     .request = &grpc__health__v1__health_check_request__descriptor,
     .on_message = check},
    {.path = "/grpc.health.v1.Health/Watch",
     .request = &grpc__health__v1__health_check_request__descriptor,
     .server_streams = true,
     .on_message = watch,
     .on_closed = watch_closed},
};

rpc_health_t *rpc_health_open(rpc_server_t *server, rpc_service_t *service)
{
    rpc_health_t *health = calloc(1, sizeof *health);
    if (health == NULL) return NULL;
    health->server = server;
    *service = (rpc_service_t){methods, sizeof methods / sizeof methods[0], health};
    return health;
}

void rpc_health_stop(rpc_health_t *health)
{
    response_t response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    for (uint32_t i = 0; i < health->n_watchers; i++) {
        rpc_call_send(health->watchers[i], &response.base);
        rpc_call_finish(health->watchers[i], INSPAN_OK, NULL);
    }
}

void rpc_health_close(rpc_health_t *health)
{
    free(health);
}
