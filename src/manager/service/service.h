/*
 * What the manager answers: the services Agents, Cluster and Files of proto/inspan/v1 over src/rpc. All runs
 * on the rpc server's one thread.
 */
#ifndef MANAGER_SERVICE_H
#define MANAGER_SERVICE_H

#include "base/units.h"
#include "manager/registry/registry.h"
#include "rpc/rpc.h"

typedef struct service service_t;

/* folder: where the files go. Borrows the registry. */
inspan_status_t service_open(const char *folder, registry_t *registry, ns_t now, service_t **service,
                             inspan_error_t *err);
/* After the server has been closed. */
void service_close(service_t *service);

const rpc_method_t *service_methods(uint32_t *n); /* their context is the service */
void service_tick(void *service, ns_t now);
#define SERVICE_TICK_NS (100 * NS_PER_MS)

#endif
