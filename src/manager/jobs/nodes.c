/* Nodes: who they are (id, name, address), whether they live. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "core/sched/sched.h"
#include "manager/jobs/address.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define HEARTBEAT_NS   (CLUSTER_FAILURE_TIMEOUT_NS / 5)
#define NAME_LENGTH    40
#define WORKERS_LISTED 64
#define REGISTER_BYTES (64u << 10) /* inventory and all; the workers listed come on top */

uint32_t fleet_n_nodes(const fleet_t *fleet)
{
    return (uint32_t)fleet->nodes.n;
}

fleet_node_t *fleet_node_at(const fleet_t *fleet, uint32_t index)
{
    return fleet->nodes.items[index];
}

fleet_node_t *fleet_node_by_handle(const fleet_t *fleet, uint64_t handle)
{
    for (size_t i = 0; i < fleet->nodes.n; i++)
        if (fleet->nodes.items[i]->handle == handle) return fleet->nodes.items[i];
    return NULL;
}

static fleet_node_t *node_by_id(const fleet_t *fleet, const char *node_id)
{
    for (size_t i = 0; i < fleet->nodes.n; i++)
        if (strcmp(fleet->nodes.items[i]->node_id, node_id) == 0) return fleet->nodes.items[i];
    return NULL;
}

const fleet_job_t *fleet_job_on(const fleet_t *fleet, const fleet_node_t *node)
{
    for (size_t i = 0; i < fleet->jobs.n; i++)
        if (control_job_holds(&fleet->jobs.items[i]->control, node->handle)) return fleet->jobs.items[i];
    return NULL;
}

bool fleet_node_kept(const fleet_node_t *node)
{
    return node->has_vitals && !(node->vitals.allowed > 0);
}

/* Numbers only: nothing of the message is kept. What cannot be right counts as not limited. */
static void take_vitals(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Vitals *from)
{
    const bool kept = fleet_node_kept(node);
    node->has_vitals = from != NULL;
    if (from == NULL) return;
    convert_text(from->limit, node->limit, sizeof node->limit);
    node->vitals = *from;
    node->vitals.base.n_unknown_fields = 0;
    node->vitals.base.unknown_fields = NULL;
    node->vitals.limit = node->limit;
    if (!(from->allowed >= 0 && from->allowed <= 1)) node->vitals.allowed = 1;
    if (kept && !fleet_node_kept(node)) fleet->look_at_queue = true;
    fleet_look_at_left_out(fleet, node);
}

const char *fleet_node_state(const fleet_t *fleet, const fleet_node_t *node)
{
    switch (node->life.state) {
    case LIVENESS_ATTACHED:
        if (node->rest.drained) return "drained";
        if (node->rest.quarantined) return "quarantined";
        if (fleet_job_on(fleet, node) != NULL) return "busy";
        if (fleet_node_kept(node)) return "kept";
        return rest_left(&node->rest, os_wall_now()) > 0 ? "cooling" : "ready";
    case LIVENESS_DISCONNECTED: return "disconnected";
    case LIVENESS_LEFT: return "left";
    case LIVENESS_LOST: break;
    }
    return "lost";
}

static bool name_is_free(const fleet_t *fleet, const char *name, const fleet_node_t *self)
{
    for (size_t i = 0; i < fleet->nodes.n; i++)
        if (fleet->nodes.items[i] != self && strcmp(fleet->nodes.items[i]->name, name) == 0) return false;
    return true;
}

/* What an agent is called before it has a name of ours. */
static const char *called(const Inspan__V1__Register *message)
{
    if (message->name[0] != '\0') return message->name;
    return message->inventory != NULL ? message->inventory->hostname : "";
}

/* A name that fits the command line (--nodes A,B) and that no other node has. */
static void choose_name(const fleet_t *fleet, const Inspan__V1__Register *message, const fleet_node_t *self,
                        char *name, size_t size)
{
    const char *wanted = called(message);
    char base[NAME_LENGTH + 1];
    size_t n = 0;
    for (; n < NAME_LENGTH && wanted[n] != '\0'; n++) {
        char c = wanted[n];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                    c == '_';
        base[n] = fine ? c : '-';
    }
    base[n] = '\0';
    if (n == 0) snprintf(base, sizeof base, "node");
    snprintf(name, size, "%s", base);
    for (uint32_t suffix = 2; !name_is_free(fleet, name, self); suffix++)
        snprintf(name, size, "%s-%u", base, suffix);
}

static registry_node_t row_of(const fleet_node_t *node, const char *state, convert_packed_t packed)
{
    return (registry_node_t){.handle = node->handle,
                             .node_id = node->node_id,
                             .name = node->name,
                             .address = node->address,
                             .state = state,
                             .incarnation = node->incarnation,
                             .registered_wall = node->registered_wall,
                             .seen_wall = os_wall_now(),
                             .registration = {packed.data, packed.bytes},
                             .drained = node->rest.drained,
                             .quarantined = node->rest.quarantined,
                             .cool_until_wall = node->rest.until,
                             .losses_in_a_row = node->rest.in_a_row,
                             .losses = {node->rest.losses, sizeof node->rest.losses}};
}

bool fleet_store_node(fleet_t *fleet, fleet_node_t *node, const char *state)
{
    convert_packed_t packed = convert_pack(&node->registration->base);
    registry_node_t row = row_of(node, state, packed);
    inspan_error_t err;
    bool stored = packed.data != NULL && registry_put_node(fleet->registry, &row, &err) == INSPAN_OK;
    if (!stored)
        log_error("state of node %s is not stored: %s", node->name,
                  packed.data != NULL ? err.text : "no memory");
    free(packed.data);
    return stored;
}

/* ---- Registration ---- */

static inspan_status_t check_registration(const Inspan__V1__Register *message, inspan_error_t *err)
{
    if (message->protocol_major != PROTOCOL_MAJOR)
        return error_set(
            err, INSPAN_VERSION,
            "the agent of %s speaks protocol %u.%u (Inspan %s), this manager %d.%d (Inspan %s): install the "
            "same Inspan on both",
            called(message), message->protocol_major, message->protocol_minor,
            message->inventory != NULL ? message->inventory->version : "?", PROTOCOL_MAJOR, PROTOCOL_MINOR,
            INSPAN_VERSION_TEXT);
    size_t length = strlen(message->node_id);
    if (length < 8 || length > 63 || strspn(message->node_id, "0123456789abcdefABCDEF-") != length)
        return error_set(err, INSPAN_INVALID, "node id of %zu bytes: expected a UUID", length);
    if (message->first_port > UINT16_MAX || message->last_port > UINT16_MAX ||
        message->first_port > message->last_port)
        return error_set(err, INSPAN_INVALID, "data ports %u-%u: expected FIRST-LAST within 0-65535",
                         message->first_port, message->last_port);
    Inspan__V1__Register alone = *message;
    alone.n_workers = 0;
    size_t bytes = protobuf_c_message_get_packed_size(&alone.base);
    if (bytes > REGISTER_BYTES)
        return error_set(err, INSPAN_LIMIT, "a registration of %zu bytes, at most %u", bytes, REGISTER_BYTES);
    if (message->n_workers > WORKERS_LISTED)
        return error_set(err, INSPAN_LIMIT, "%zu workers listed, at most %d", message->n_workers,
                         WORKERS_LISTED);
    return INSPAN_OK;
}

/* The same id twice: a copied state folder (the first one lives), or the same agent again (its old stream is
 * dead). */
static bool is_copy(const fleet_node_t *known, const Inspan__V1__Register *message, ns_t now)
{
    if (known->life.state != LIVENESS_ATTACHED || known->session == NULL) return false;
    if (known->incarnation == message->incarnation) return false;
    return now - known->life.heard < CLUSTER_FAILURE_TIMEOUT_NS / 2;
}

static inspan_status_t commit_registration(fleet_t *fleet, fleet_node_t *wanted, inspan_error_t *err)
{
    convert_packed_t packed = convert_pack(&wanted->registration->base);
    if (packed.data == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    registry_node_t row = row_of(wanted, "ready", packed);
    inspan_status_t status = registry_put_node(fleet->registry, &row, err);
    free(packed.data);
    wanted->handle = row.handle;
    return status;
}

/* Everything is made ready in `wanted`, stored, and only then taken over: a failed call has changed nothing.
 */
static inspan_status_t prepare(fleet_t *fleet, const Inspan__V1__Register *message, const char *peer,
                               fleet_node_t *known, ns_t now, fleet_node_t *wanted, inspan_error_t *err)
{
    memset(wanted, 0, sizeof *wanted);
    Inspan__V1__Register kept = *message;
    kept.n_workers = 0; /* they are the jobs' matter, and of this moment */
    kept.vitals = NULL;
    wanted->registration = convert_copy(&kept.base);
    if (wanted->registration == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (known != NULL) {
        wanted->handle = known->handle;
        wanted->rest = known->rest;
        snprintf(wanted->node_id, sizeof wanted->node_id, "%s", known->node_id);
        snprintf(wanted->name, sizeof wanted->name, "%s", known->name);
        if (message->name[0] != '\0') /* a wish, which may be new; without one the name stays */
            choose_name(fleet, message, known, wanted->name, sizeof wanted->name);
    } else {
        bool taken = node_by_id(fleet, message->node_id) != NULL;
        if (taken && os_uuid(wanted->node_id) != INSPAN_OK)
            return error_set(err, INSPAN_INTERNAL, "the kernel gives no random bytes");
        if (!taken) snprintf(wanted->node_id, sizeof wanted->node_id, "%s", message->node_id);
        choose_name(fleet, message, known, wanted->name, sizeof wanted->name);
    }
    convert_text(address_of_node(message->address, peer), wanted->address, sizeof wanted->address);
    wanted->incarnation = message->incarnation;
    wanted->registered_wall = os_wall_now();
    wanted->skew_s = message->wall_ns != 0 ? ns_to_s(message->wall_ns) - ns_to_s(wanted->registered_wall) : 0;
    liveness_attach(&wanted->life, now);
    if (!address_is_numeric(wanted->address))
        return error_set(err, INSPAN_INVALID,
                         "no routable address: the agent of %s says '%s' and comes from '%s'; give it "
                         "--address",
                         wanted->name, message->address, peer != NULL ? peer : "?");
    return commit_registration(fleet, wanted, err);
}

/* old_name NULL: a node that was not known. */
static void tell_of_arrival(fleet_t *fleet, const fleet_node_t *node, bool copied, const char *old_name)
{
    char text[256];
    if (copied)
        snprintf(text, sizeof text,
                 "node %s got a new id: another live agent has the same one (copied state folder?)",
                 node->name);
    else if (old_name == NULL)
        snprintf(text, sizeof text, "node %s joined from %s", node->name, node->address);
    else if (strcmp(old_name, node->name) != 0)
        snprintf(text, sizeof text, "node %s, until now named %s, attached again from %s", node->name,
                 old_name, node->address);
    else
        snprintf(text, sizeof text, "node %s attached again from %s", node->name, node->address);
    fleet_event(fleet, 0, node->handle, text);
    log_info("%s", text);
    if (node->skew_s > 1 || node->skew_s < -1)
        log_warn("the clock of node %s is %.1f s %s: times in its logs are off, nothing else depends on it",
                 node->name, node->skew_s > 0 ? node->skew_s : -node->skew_s,
                 node->skew_s > 0 ? "ahead" : "behind");
}

/* Full: the node that has been away for longest makes room; its row stays, without its name. */
static bool forget_one(fleet_t *fleet)
{
    size_t oldest = fleet->nodes.n;
    for (size_t i = 0; i < fleet->nodes.n; i++) {
        const fleet_node_t *node = fleet->nodes.items[i];
        if (node->life.state != LIVENESS_LOST && node->life.state != LIVENESS_LEFT) continue;
        if (fleet_job_on(fleet, node) != NULL) continue;
        if (oldest == fleet->nodes.n || node->life.since < fleet->nodes.items[oldest]->life.since) oldest = i;
    }
    if (oldest == fleet->nodes.n) return false;
    fleet_node_t *node = fleet->nodes.items[oldest];
    char name[sizeof node->name];
    memcpy(name, node->name, sizeof name);
    snprintf(node->name, sizeof node->name, "#%llu",
             (unsigned long long)node->handle); /* no agent can have it */
    if (!fleet_store_node(fleet, node, "forgotten")) {
        memcpy(node->name, name, sizeof name); /* its row still has the name: it must not be given away */
        return false;
    }
    protobuf_c_message_free_unpacked(&node->registration->base, NULL);
    free(node);
    fleet->nodes.items[oldest] = fleet->nodes.items[--fleet->nodes.n];
    return true;
}

inspan_status_t fleet_register(fleet_t *fleet, const Inspan__V1__Register *message, const char *peer,
                               void *session, ns_t now, fleet_node_t **out, Inspan__V1__Registered *reply,
                               inspan_error_t *err)
{
    inspan_status_t status = check_registration(message, err);
    if (status != INSPAN_OK) return status;
    fleet_node_t *known = node_by_id(fleet, message->node_id);
    bool copied = known != NULL && is_copy(known, message, now);
    if (copied) known = NULL;
    if (known == NULL && fleet->nodes.n >= SCHED_NODES_MAX && !forget_one(fleet))
        return error_set(err, INSPAN_LIMIT, "this cluster has %d nodes already", SCHED_NODES_MAX);

    fleet_node_t *node = known != NULL ? known : calloc(1, sizeof *node);
    fleet_node_t wanted = {0};
    status = node != NULL ? prepare(fleet, message, peer, known, now, &wanted, err)
                          : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK && known == NULL && !VEC_PUSH(&fleet->nodes, node))
        status = error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status != INSPAN_OK) {
        if (wanted.registration != NULL) protobuf_c_message_free_unpacked(&wanted.registration->base, NULL);
        if (known == NULL) free(node);
        return status;
    }
    void *old = known != NULL ? known->session : NULL;
    char old_name[sizeof node->name] = "";
    if (known != NULL) memcpy(old_name, known->name, sizeof old_name);
    if (known != NULL) protobuf_c_message_free_unpacked(&known->registration->base, NULL);
    *node = wanted;
    node->session = session;
    take_vitals(fleet, node, message->vitals);
    if (old != NULL)
        fleet->ports.drop(fleet->ports.context, old, INSPAN_ABORTED, "replaced by a newer stream");
    tell_of_arrival(fleet, node, copied, known != NULL ? old_name : NULL);
    fleet->look_at_queue = true;
    *out = node;
    inspan__v1__registered__init(reply);
    reply->node_id = node->node_id;
    reply->name = node->name;
    reply->cluster_id = (char *)registry_cluster_id(fleet->registry);
    reply->manager_incarnation = registry_incarnation(fleet->registry);
    reply->heartbeat_ns = HEARTBEAT_NS;
    reply->failure_timeout_ns = CLUSTER_FAILURE_TIMEOUT_NS;
    return INSPAN_OK;
}

void fleet_catch_up(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Register *message, ns_t now)
{
    control_report_t reports[WORKERS_LISTED];
    for (size_t j = 0; j < fleet->jobs.n; j++) {
        fleet_job_t *job = fleet->jobs.items[j];
        uint32_t n = 0;
        for (size_t i = 0; i < message->n_workers; i++) {
            if (message->workers[i]->job_id != job->control.id) continue;
            if (!convert_report(message->workers[i], node->handle, &reports[n])) continue;
            if (reports[n].rank < job->control.world &&
                job->control.ranks[reports[n].rank].node == node->handle)
                fleet_keep_report(job, message->workers[i]);
            n++;
        }
        control_job_node_attached(&job->control, node->handle, reports, n, now);
        fleet_act(fleet, job, now); /* each event is acted out before the next one: one view an event */
        if (!node->rest.drained) continue;
        control_job_leave(&job->control, node->handle, now);
        fleet_act(fleet, job, now);
    }
    for (size_t i = 0; i < message->n_workers; i++) {
        if (fleet_job(fleet, message->workers[i]->job_id) != NULL) continue;
        Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
        Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
        stop.job_id = message->workers[i]->job_id;
        stop.rank = message->workers[i]->rank;
        stop.kill = true;
        stop.reason = (char *)"the manager does not know this job";
        down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
        down.stop = &stop;
        fleet->ports.send(fleet->ports.context, node, &down);
    }
}

/* ---- Life ---- */

void fleet_heartbeat(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Heartbeat *message, ns_t now)
{
    liveness_heard(&node->life, now);
    node->load = message->load;
    take_vitals(fleet, node, message->vitals);
    if (node->registration->inventory == NULL) return;
    node->registration->inventory->memory_free_bytes = message->memory_free_bytes;
    node->registration->inventory->on_battery = message->on_battery;
}

void fleet_broke(fleet_t *fleet, fleet_node_t *node, ns_t now)
{
    node->session = NULL;
    if (node->life.state != LIVENESS_ATTACHED) return;
    liveness_broke(&node->life, now);
    log_info("the connection of node %s broke", node->name);
    for (size_t i = 0; i < fleet->jobs.n; i++)
        control_job_node_broke(&fleet->jobs.items[i]->control, node->handle);
}

void fleet_node_gone(fleet_t *fleet, fleet_node_t *node, const char *text, ns_t now)
{
    char event[256];
    snprintf(event, sizeof event, "node %s: %s", node->name, text);
    log_info("%s", event);
    for (size_t i = 0; i < fleet->jobs.n; i++) { /* the jobs first: their survivors wait for it */
        control_job_node_gone(&fleet->jobs.items[i]->control, node->handle, text, now);
        fleet_act(fleet, fleet->jobs.items[i], now);
    }
    fleet_store_node(fleet, node, node->life.state == LIVENESS_LEFT ? "left" : "lost");
    fleet_event(fleet, 0, node->handle, event);
    fleet->look_at_queue = true;
}

void fleet_left(fleet_t *fleet, fleet_node_t *node, ns_t now)
{
    node->session = NULL;
    liveness_left(&node->life, now);
    fleet_node_gone(fleet, node, "its agent was stopped", now);
}

/* ---- Rest ---- */

static const char *stored_state(const fleet_node_t *node)
{
    if (node->life.state == LIVENESS_LEFT) return "left";
    return node->life.state == LIVENESS_LOST ? "lost" : "ready";
}

void fleet_worker_lost(fleet_t *fleet, const fleet_job_t *job, uint32_t rank)
{
    const control_rank_t *worker = &job->control.ranks[rank];
    fleet_node_t *node = fleet_node_by_handle(fleet, worker->node);
    if (node == NULL || node->life.state == LIVENESS_LEFT || node->rest.drained) return;
    bool before = node->rest.quarantined;
    ns_t wall = os_wall_now();
    rest_lost(&node->rest, wall);
    fleet_store_node(fleet, node, stored_state(node));
    char text[512];
    int used = snprintf(text, sizeof text, "node %s: worker %u of job %llu was lost (%s): ", node->name, rank,
                        (unsigned long long)job->control.id, worker->why);
    if (node->rest.quarantined)
        snprintf(text + used, sizeof text - (size_t)used,
                 "%d losses within 10 minutes, the node is in quarantine until `inspan unban %s`",
                 REST_LOSSES, node->name);
    else
        snprintf(text + used, sizeof text - (size_t)used, "the node is not used for %.0f s",
                 ns_to_s(rest_left(&node->rest, wall)));
    if (node->rest.quarantined && !before)
        log_warn("%s", text);
    else
        log_info("%s", text);
    fleet_event(fleet, job->control.id, node->handle, text);
}

static fleet_node_t *find_node(const fleet_t *fleet, const char *name, inspan_error_t *err)
{
    for (size_t i = 0; i < fleet->nodes.n; i++)
        if (strcmp(fleet->nodes.items[i]->name, name) == 0) return fleet->nodes.items[i];
    fleet_node_t *node = node_by_id(fleet, name);
    if (node == NULL) error_set(err, INSPAN_NOT_FOUND, "no node is named %.64s: see `inspan nodes`", name);
    return node;
}

static inspan_status_t set_rest(fleet_t *fleet, fleet_node_t *node, rest_t rest, const char *what,
                                inspan_error_t *err)
{
    rest_t before = node->rest;
    node->rest = rest;
    if (!fleet_store_node(fleet, node, stored_state(node))) {
        node->rest = before;
        return error_set(err, INSPAN_IO, "the registry cannot be written: node %s stays as it is",
                         node->name);
    }
    char text[128];
    snprintf(text, sizeof text, "node %s %s", node->name, what);
    log_info("%s", text);
    fleet_event(fleet, 0, node->handle, text);
    fleet->look_at_queue = true;
    return INSPAN_OK;
}

inspan_status_t fleet_drain(fleet_t *fleet, const char *name, ns_t now, fleet_node_t **out,
                            inspan_error_t *err)
{
    fleet_node_t *node = find_node(fleet, name, err);
    if (node == NULL) return INSPAN_NOT_FOUND;
    rest_t rest = node->rest;
    rest.drained = true;
    inspan_status_t status = set_rest(fleet, node, rest, "is drained", err);
    if (status != INSPAN_OK) return status;
    for (size_t i = 0; i < fleet->jobs.n; i++) {
        control_job_leave(&fleet->jobs.items[i]->control, node->handle, now);
        fleet_act(fleet, fleet->jobs.items[i], now);
    }
    *out = node;
    return INSPAN_OK;
}

inspan_status_t fleet_unban(fleet_t *fleet, const char *name, fleet_node_t **out, inspan_error_t *err)
{
    fleet_node_t *node = find_node(fleet, name, err);
    if (node == NULL) return INSPAN_NOT_FOUND;
    rest_t rest = {0};
    inspan_status_t status = set_rest(fleet, node, rest, "may be used again", err);
    if (status == INSPAN_OK) *out = node;
    return status;
}
