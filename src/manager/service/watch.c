/* Cluster.Watch: changes at once, progress at most 5 times a second, until the job has ended. */
#include <stdlib.h>

#include "manager/service/service_internal.h"

#define PROGRESS_PERIOD (200 * NS_PER_MS)
#define SLOW_BYTES      (1u << 20) /* so much unread: progress is skipped */

struct watch {
    rpc_call_t *call;
    fleet_job_t *job; /* NULL: has ended */
    ns_t sent_at;
    bool dirty;
    watch_t *next; /* of the same job */
};

static void send_event(rpc_call_t *call, const fleet_job_t *job, const char *text, bool whole)
{
    fleet_info_t *info = fleet_job_info(job, whole);
    if (info == NULL) {
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    Inspan__V1__JobEvent event = INSPAN__V1__JOB_EVENT__INIT;
    event.job = fleet_info_message(info);
    event.text = (char *)(text != NULL ? text : "");
    event.wall_ns = os_wall_now();
    if (rpc_call_send(call, &event.base) == INSPAN_LIMIT)
        rpc_call_finish(call, INSPAN_LIMIT, "the watcher does not read its stream");
    fleet_info_free(info);
}

void watch_on_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)message)->id;
    fleet_job_t *job = fleet_job(service->fleet, id), *loaded = NULL;
    inspan_error_t err;
    const fleet_job_t *shown = fleet_job_or_load(service->fleet, id, os_now(), &loaded, &err);
    if (shown == NULL) {
        service_fail(call, &err);
        return;
    }
    send_event(call, shown, NULL, true);
    if (job == NULL || (control_job_over(&job->control) && !job->control.unstored)) {
        bool over = control_job_over(&shown->control);
        rpc_call_finish(call, over ? INSPAN_OK : INSPAN_INTERNAL,
                        over ? "" : "the manager does not follow this job: start the manager anew");
        fleet_job_free(loaded);
        return;
    }
    watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL) {
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    watch->call = call;
    watch->job = job;
    watch->sent_at = os_now();
    watch->next = job->watchers;
    job->watchers = watch;
    rpc_call_set_data(call, watch);
}

void watch_on_closed(void *context, rpc_call_t *call)
{
    (void)context;
    watch_t *watch = rpc_call_data(call);
    if (watch == NULL) return;
    if (watch->job != NULL) {
        watch_t *head = watch->job->watchers;
        for (watch_t **at = &head; *at != NULL; at = &(*at)->next)
            if (*at == watch) {
                *at = watch->next;
                break;
            }
        watch->job->watchers = head;
    }
    free(watch);
}

void watch_job_changed(void *context, fleet_job_t *job, const char *text, bool ended)
{
    (void)context;
    for (watch_t *watch = job->watchers, *next; watch != NULL; watch = next) {
        next = watch->next;
        if (!ended && text == NULL) {
            watch->dirty = true;
            continue;
        }
        send_event(watch->call, job, text, ended);
        watch->sent_at = os_now();
        watch->dirty = false;
        if (!ended) continue;
        watch->job = NULL;
        watch->next = NULL;
        rpc_call_finish(watch->call, INSPAN_OK, "");
    }
    if (ended) job->watchers = NULL;
}

void watch_tick(service_t *service, ns_t now)
{
    for (uint32_t i = 0; i < fleet_n_jobs(service->fleet); i++) {
        fleet_job_t *job = fleet_job_at(service->fleet, i);
        for (watch_t *watch = job->watchers; watch != NULL; watch = watch->next) {
            if (!watch->dirty || now - watch->sent_at < PROGRESS_PERIOD) continue;
            if (rpc_call_queued(watch->call) > SLOW_BYTES) continue;
            send_event(watch->call, job, NULL, false);
            watch->sent_at = now;
            watch->dirty = false;
        }
    }
}
