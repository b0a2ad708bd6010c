/* Cluster's unary calls: for people and their tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/protocol.h"
#include "base/vec.h"
#include "manager/jobs/convert.h"
#include "manager/service/service_internal.h"

#define JOBS_LISTED 200
#define LIST_BYTES  (3u << 20) /* a message has at most 4 MiB */

static void reply_no_memory(rpc_call_t *call)
{
    rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
}

static void reply_job(rpc_call_t *call, const fleet_job_t *job)
{
    fleet_info_t *info = fleet_job_info(job, true);
    if (info == NULL) {
        reply_no_memory(call);
        return;
    }
    rpc_call_reply(call, &fleet_info_message(info)->base);
    fleet_info_free(info);
}

void people_info(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    const service_t *service = context;
    (void)message;
    Inspan__V1__ClusterInfo info = INSPAN__V1__CLUSTER_INFO__INIT;
    info.cluster_id = (char *)registry_cluster_id(service->registry);
    info.version = (char *)INSPAN_VERSION_TEXT;
    info.manager_incarnation = registry_incarnation(service->registry);
    info.protocol_major = PROTOCOL_MAJOR;
    info.protocol_minor = PROTOCOL_MINOR;
    info.uptime_ns = os_now() - service->started;
    rpc_call_reply(call, &info.base);
}

static void fill_node(const fleet_t *fleet, const fleet_node_t *from, ns_t now, Inspan__V1__Node *node)
{
    const fleet_job_t *job = fleet_job_on(fleet, from);
    inspan__v1__node__init(node);
    node->node_id = (char *)from->node_id;
    node->name = (char *)from->name;
    node->address = (char *)from->address;
    node->state = (char *)fleet_node_state(fleet, from);
    node->inventory = from->registration->inventory;
    node->last_heartbeat_ns_ago = now > from->life.heard ? now - from->life.heard : 0;
    node->registered_wall_ns = from->registered_wall;
    node->load = from->load;
    if (from->has_vitals) node->vitals = (Inspan__V1__Vitals *)&from->vitals;
    node->job_id = job != NULL ? job->control.id : 0;
    node->skew_s = from->skew_s;
    ns_t wall = os_wall_now();
    node->cool_down_ns = rest_left(&from->rest, wall);
    node->losses = rest_losses(&from->rest, wall);
}

static void reply_node(const service_t *service, rpc_call_t *call, const fleet_node_t *from)
{
    Inspan__V1__Node node;
    fill_node(service->fleet, from, os_now(), &node);
    rpc_call_reply(call, &node.base);
}

void people_drain(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const char *name = ((const Inspan__V1__NodeRequest *)message)->node;
    fleet_node_t *node = NULL;
    inspan_error_t err;
    if (fleet_drain(service->fleet, name, os_now(), &node, &err) != INSPAN_OK)
        service_fail(call, &err);
    else
        reply_node(service, call, node);
}

void people_unban(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const char *name = ((const Inspan__V1__NodeRequest *)message)->node;
    fleet_node_t *node = NULL;
    inspan_error_t err;
    if (fleet_unban(service->fleet, name, &node, &err) != INSPAN_OK)
        service_fail(call, &err);
    else
        reply_node(service, call, node);
}

void people_list_nodes(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    const service_t *service = context;
    (void)message;
    uint32_t n = fleet_n_nodes(service->fleet);
    Inspan__V1__Node *nodes = calloc(n + 1, sizeof *nodes);
    Inspan__V1__Node **pointers = calloc(n + 1, sizeof(Inspan__V1__Node *));
    if (nodes != NULL && pointers != NULL) {
        Inspan__V1__NodeList list = INSPAN__V1__NODE_LIST__INIT;
        ns_t now = os_now();
        size_t bytes = 0;
        for (uint32_t i = 0; i < n; i++) {
            fill_node(service->fleet, fleet_node_at(service->fleet, i), now, &nodes[i]);
            bytes += protobuf_c_message_get_packed_size(&nodes[i].base);
            if (bytes > LIST_BYTES)
                nodes[i].inventory = NULL; /* all nodes are listed, the last ones shorter */
            pointers[i] = &nodes[i];
        }
        list.n_nodes = n;
        list.nodes = pointers;
        list.notice = (char *)registry_notice(service->registry);
        rpc_call_reply(call, &list.base);
    } else {
        reply_no_memory(call);
    }
    free(nodes);
    free(pointers);
}

void people_submit(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    fleet_job_t *job = NULL;
    inspan_error_t err;
    if (fleet_submit(service->fleet, (const Inspan__V1__SubmitRequest *)message, os_now(), &job, &err) !=
        INSPAN_OK)
        service_fail(call, &err);
    else
        reply_job(call, job);
}

typedef struct listing {
    fleet_info_t *infos[JOBS_LISTED];
    Inspan__V1__JobInfo *pointers[JOBS_LISTED];
    uint32_t n;
    size_t bytes;
    bool no_memory;
} listing_t;

/* The newest that fit, of those that hold nodes or of the others. */
static void list_jobs(listing_t *listing, const fleet_t *fleet, bool active)
{
    for (uint32_t left = fleet_n_jobs(fleet); left > 0; left--) {
        const fleet_job_t *job = fleet_job_at(fleet, left - 1);
        const control_state_t state = job->control.state;
        if ((state != CONTROL_QUEUED && !control_job_over(&job->control)) != active) continue;
        if (listing->n == JOBS_LISTED || listing->bytes > LIST_BYTES || listing->no_memory) return;
        fleet_info_t *info = fleet_job_info(job, false);
        listing->no_memory = info == NULL;
        if (info == NULL) return;
        listing->bytes += protobuf_c_message_get_packed_size(&fleet_info_message(info)->base);
        listing->pointers[listing->n] = fleet_info_message(info);
        listing->infos[listing->n++] = info;
    }
}

static int by_id(const void *a, const void *b)
{
    const uint64_t x = (*(Inspan__V1__JobInfo *const *)a)->id, y = (*(Inspan__V1__JobInfo *const *)b)->id;
    return x < y ? -1 : x > y;
}

/* As many as fit one message, oldest first: all that run, then the newest. */
void people_list_jobs(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    const service_t *service = context;
    (void)message;
    listing_t listing = {.n = 0};
    list_jobs(&listing, service->fleet, true);
    list_jobs(&listing, service->fleet, false);
    qsort(listing.pointers, listing.n, sizeof listing.pointers[0], by_id);
    Inspan__V1__JobList list = INSPAN__V1__JOB_LIST__INIT;
    list.jobs = listing.pointers;
    list.n_jobs = listing.n;
    if (listing.no_memory)
        reply_no_memory(call);
    else
        rpc_call_reply(call, &list.base);
    for (uint32_t i = 0; i < listing.n; i++) fleet_info_free(listing.infos[i]);
}

void people_get_job(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)message)->id;
    fleet_job_t *loaded = NULL;
    inspan_error_t err;
    const fleet_job_t *job = fleet_job_or_load(service->fleet, id, os_now(), &loaded, &err);
    if (job != NULL)
        reply_job(call, job);
    else
        service_fail(call, &err);
    fleet_job_free(loaded);
}

void people_cancel(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)message)->id;
    char text[128];
    snprintf(text, sizeof text, "cancelled by a user at %.64s", rpc_call_peer(call));
    fleet_job_t *job = NULL;
    inspan_error_t err;
    if (fleet_job(service->fleet, id) == NULL) {
        people_get_job(context, call, message); /* ended long ago, or never heard of */
        return;
    }
    if (fleet_cancel(service->fleet, id, text, os_now(), &job, &err) != INSPAN_OK)
        service_fail(call, &err);
    else
        reply_job(call, job);
}

typedef struct speed_list {
    vec_of(Inspan__V1__Speed *) speeds;
    size_t bytes;
    bool good;
} speed_list_t;

static bool take_speed(void *context, const registry_speed_t *row)
{
    speed_list_t *list = context;
    Inspan__V1__Speed speed = INSPAN__V1__SPEED__INIT;
    speed.node_id = (char *)row->node_id;
    speed.model_key = (char *)row->model_key;
    speed.cores = row->centicores / 100.0;
    speed.micro_batch = row->micro_batch;
    speed.sample_ns = row->sample_ns;
    speed.step_ns = row->step_ns;
    speed.wall_ns = row->wall;
    list->bytes += protobuf_c_message_get_packed_size(&speed.base) + 8;
    if (list->bytes > LIST_BYTES) return false;
    Inspan__V1__Speed *copy = convert_copy(&speed.base); /* the row is gone after the visit */
    list->good = copy != NULL && VEC_PUSH(&list->speeds, copy);
    if (!list->good && copy != NULL) inspan__v1__speed__free_unpacked(copy, NULL);
    return list->good;
}

void people_list_speeds(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const char *key = ((const Inspan__V1__SpeedsRequest *)message)->model_key;
    speed_list_t list = {.good = true};
    inspan_error_t err;
    inspan_status_t status = registry_each_speed(service->registry, key[0] != '\0' ? key : NULL,
                                                 FLEET_SPEEDS_MAX, take_speed, &list, &err);
    Inspan__V1__SpeedList reply = INSPAN__V1__SPEED_LIST__INIT;
    reply.speeds = list.speeds.items;
    reply.n_speeds = list.speeds.n;
    if (status != INSPAN_OK)
        service_fail(call, &err);
    else if (list.good)
        rpc_call_reply(call, &reply.base);
    else
        reply_no_memory(call);
    for (size_t i = 0; i < list.speeds.n; i++) inspan__v1__speed__free_unpacked(list.speeds.items[i], NULL);
    vec_free(&list.speeds);
}
