/* The table of methods, and what they share. */
#include "manager/service/service.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/service/service_internal.h"

#define SWEEP_PERIOD (24 * 3600 * NS_PER_S)
#define SWEEP_AGE_S  (24u * 3600)

static const rpc_method_t methods[] = {
    {.path = "/inspan.v1.Agents/Attach",
     .request = &inspan__v1__agent_up__descriptor,
     .client_streams = true,
     .server_streams = true,
     .on_open = agents_on_open,
     .on_message = agents_on_message,
     .on_half_close = agents_on_half_close,
     .on_closed = agents_on_closed},
    {.path = "/inspan.v1.Agents/PushLog",
     .request = &inspan__v1__log_chunk__descriptor,
     .client_streams = true,
     .on_message = logs_push,
     .on_half_close = logs_push_half_close,
     .on_closed = logs_push_closed},
    {.path = "/inspan.v1.Cluster/Info", .request = &inspan__v1__empty__descriptor, .on_message = people_info},
    {.path = "/inspan.v1.Cluster/ListNodes",
     .request = &inspan__v1__empty__descriptor,
     .on_message = people_list_nodes},
    {.path = "/inspan.v1.Cluster/Submit",
     .request = &inspan__v1__submit_request__descriptor,
     .on_message = people_submit},
    {.path = "/inspan.v1.Cluster/ListJobs",
     .request = &inspan__v1__empty__descriptor,
     .on_message = people_list_jobs},
    {.path = "/inspan.v1.Cluster/GetJob",
     .request = &inspan__v1__job_request__descriptor,
     .on_message = people_get_job},
    {.path = "/inspan.v1.Cluster/Cancel",
     .request = &inspan__v1__job_request__descriptor,
     .on_message = people_cancel},
    {.path = "/inspan.v1.Cluster/Watch",
     .request = &inspan__v1__job_request__descriptor,
     .server_streams = true,
     .on_message = watch_on_message,
     .on_closed = watch_on_closed},
    {.path = "/inspan.v1.Cluster/ReadLog",
     .request = &inspan__v1__log_request__descriptor,
     .server_streams = true,
     .on_message = logs_read,
     .on_closed = logs_read_closed},
    {.path = "/inspan.v1.Cluster/ReadLedger",
     .request = &inspan__v1__job_request__descriptor,
     .server_streams = true,
     .on_message = spans_read,
     .on_writable = spans_read_writable,
     .on_closed = spans_read_closed},
    {.path = "/inspan.v1.Cluster/Drain",
     .request = &inspan__v1__node_request__descriptor,
     .on_message = people_drain},
    {.path = "/inspan.v1.Cluster/Unban",
     .request = &inspan__v1__node_request__descriptor,
     .on_message = people_unban},
    {.path = "/inspan.v1.Cluster/ListSpeeds",
     .request = &inspan__v1__speeds_request__descriptor,
     .on_message = people_list_speeds},
    {.path = "/inspan.v1.Cluster/Backup",
     .request = &inspan__v1__empty__descriptor,
     .server_streams = true,
     .on_message = files_backup,
     .on_writable = files_get_writable,
     .on_closed = files_get_closed},
    {.path = "/inspan.v1.Files/Stat", .request = &inspan__v1__file_id__descriptor, .on_message = files_stat},
    {.path = "/inspan.v1.Files/Put",
     .request = &inspan__v1__file_chunk__descriptor,
     .client_streams = true,
     .on_message = files_put,
     .on_half_close = files_put_half_close,
     .on_closed = files_put_closed},
    {.path = "/inspan.v1.Files/Get",
     .request = &inspan__v1__file_id__descriptor,
     .server_streams = true,
     .on_message = files_get,
     .on_writable = files_get_writable,
     .on_closed = files_get_closed},
};

const rpc_method_t *service_methods(uint32_t *n)
{
    *n = sizeof methods / sizeof methods[0];
    return methods;
}

inspan_status_t service_open(const char *folder, registry_t *registry, ns_t now, service_t **out,
                             inspan_error_t *err)
{
    service_t *service = calloc(1, sizeof *service);
    if (service == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    service->registry = registry;
    service->started = now;
    snprintf(service->folder, sizeof service->folder, "%.4000s", folder);
    fleet_ports_t ports = {.context = service,
                           .send = agents_send,
                           .drop = agents_drop,
                           .job_changed = watch_job_changed,
                           .file_present = files_present,
                           .file_dropped = files_dropped};
    char files[PATH_MAX];
    snprintf(files, sizeof files, "%.4000s/files", folder);
    inspan_status_t status = store_open(files, &service->store, err);
    if (status == INSPAN_OK) status = fleet_open(registry, &ports, now, &service->fleet, err);
    if (status != INSPAN_OK) {
        service_close(service);
        return status;
    }
    *out = service;
    return INSPAN_OK;
}

static bool is_wanted(void *context, const char *hash)
{
    const service_t *service = context;
    return fleet_names_file(service->fleet, hash);
}

/* Once a day: data and results that none of the jobs kept in memory names any more. */
static void sweep_files(service_t *service, ns_t now)
{
    if (now < service->sweep_at) return;
    service->sweep_at = now + SWEEP_PERIOD;
    uint32_t removed = store_sweep(service->store, is_wanted, service, SWEEP_AGE_S);
    if (removed > 0) log_info("%u files of old jobs are removed", removed);
}

void service_close(service_t *service)
{
    if (service == NULL) return;
    fleet_close(service->fleet);
    store_close(service->store);
    free(service);
}

void service_tick(void *context, ns_t now)
{
    service_t *service = context;
    fleet_tick(service->fleet, now);
    agents_tick(service, now);
    watch_tick(service, now);
    logs_tick(service, now);
    files_tick(service);
    spans_tick(service);
    sweep_files(service, now);
}
