/* Between the files of service/. */
#ifndef MANAGER_SERVICE_INTERNAL_H
#define MANAGER_SERVICE_INTERNAL_H

#include <limits.h>

#include "inspan/v1/inspan.pb-c.h"
#include "manager/jobs/fleet.h"
#include "manager/service/service.h"
#include "manager/service/store.h"
#include "platform/os/os_time.h"

typedef struct session session_t;
typedef struct watch watch_t;
typedef struct log_read log_read_t;
typedef struct download download_t;
typedef struct ledger_read ledger_read_t;

struct service {
    registry_t *registry;
    fleet_t *fleet;
    store_t *store;
    ns_t started;
    ns_t sweep_at;
    session_t *sessions;
    log_read_t *log_reads;
    download_t *downloads;
    ledger_read_t *ledger_reads;
    char folder[PATH_MAX];
    uint64_t last_log_request;
    uint32_t n_sessions, n_log_reads, n_puts;
};

/* Ends a call with the error's status and text. */
static inline void service_fail(rpc_call_t *call, const inspan_error_t *err)
{
    rpc_call_finish(call, err->status, err->text);
}

/* agents.c */
void agents_on_open(void *context, rpc_call_t *call);
void agents_on_message(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void agents_on_half_close(void *context, rpc_call_t *call);
void agents_on_closed(void *context, rpc_call_t *call);
void agents_tick(service_t *service, ns_t now);
bool agents_send(void *context, fleet_node_t *node, const Inspan__V1__AgentDown *message);
void agents_drop(void *context, void *session, inspan_status_t status, const char *text);

/* people.c */
void people_info(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_list_nodes(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_submit(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_list_jobs(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_get_job(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_cancel(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_drain(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_list_speeds(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void people_unban(void *context, rpc_call_t *call, const ProtobufCMessage *message);

/* spans.c */
void spans_read(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void spans_read_writable(void *context, rpc_call_t *call);
void spans_read_closed(void *context, rpc_call_t *call);
void spans_tick(service_t *service);

/* watch.c */
void watch_on_message(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void watch_on_closed(void *context, rpc_call_t *call);
void watch_job_changed(void *context, fleet_job_t *job, const char *text, bool ended);
void watch_tick(service_t *service, ns_t now);

/* logs.c */
void logs_read(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void logs_read_closed(void *context, rpc_call_t *call);
void logs_push(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void logs_push_half_close(void *context, rpc_call_t *call);
void logs_push_closed(void *context, rpc_call_t *call);
void logs_tick(service_t *service, ns_t now);

/* files.c */
void files_stat(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void files_put(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void files_put_half_close(void *context, rpc_call_t *call);
void files_put_closed(void *context, rpc_call_t *call);
void files_backup(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void files_get(void *context, rpc_call_t *call, const ProtobufCMessage *message);
void files_get_writable(void *context, rpc_call_t *call);
void files_get_closed(void *context, rpc_call_t *call);
void files_tick(service_t *service);
bool files_present(void *context, const char *hash, uint64_t bytes);
void files_dropped(void *context, const char *hash);

#endif
