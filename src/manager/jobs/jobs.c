/* Jobs: submitted, placed, moved by the controller; carries out its actions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "core/sched/sched.h"
#include "manager/jobs/address.h"
#include "manager/jobs/cluster_internal.h"
#include "manager/jobs/convert.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define NAME_MAX_BYTES   100
#define DATA_BYTES_PER_S 1000000 /* the slowest link that a data file is given time for */

cluster_job_t *cluster_job(const cluster_t *cluster, uint64_t id)
{
    for (size_t i = cluster->jobs.n; i-- > 0;)
        if (cluster->jobs.items[i]->control.id == id) return cluster->jobs.items[i];
    return NULL;
}

uint32_t cluster_n_jobs(const cluster_t *cluster)
{
    return (uint32_t)cluster->jobs.n;
}

cluster_job_t *cluster_job_at(const cluster_t *cluster, uint32_t index)
{
    return cluster->jobs.items[index];
}

cluster_job_t *cluster_job_new(uint64_t id, const Inspan__V1__SubmitRequest *request)
{
    cluster_job_t *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    control_limits_t limits = CONTROL_LIMITS_DEFAULT;
    for (size_t i = 0; i < request->n_data; i++)
        if (request->data[i]->fetch)
            limits.start += (ns_t)(request->data[i]->bytes / DATA_BYTES_PER_S) * NS_PER_S;
    job->request = convert_copy(&request->base);
    if (job->request == NULL || control_job_open(&job->control, id, &limits) != INSPAN_OK) {
        cluster_job_free(job);
        return NULL;
    }
    return job;
}

static void free_reports(cluster_job_t *job)
{
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        if (job->reports[r] != NULL) protobuf_c_message_free_unpacked(&job->reports[r]->base, NULL);
    free(job->reports);
    job->reports = NULL;
}

void cluster_job_free(cluster_job_t *job)
{
    if (job == NULL) return;
    free_reports(job);
    if (job->request != NULL) protobuf_c_message_free_unpacked(&job->request->base, NULL);
    control_job_close(&job->control);
    free(job);
}

/* ---- Storing
 * ------------------------------------------------------------------------------------------------------ */

typedef struct rank_rows {
    registry_rank_t *rows;
    uint32_t n;
    bool good;
} rank_rows_t;

static registry_rank_t row_of(const cluster_t *cluster, const cluster_job_t *job, uint32_t r, bool *good)
{
    const control_rank_t *rank = &job->control.ranks[r];
    const cluster_node_t *node = cluster_node_by_handle(cluster, rank->node);
    registry_rank_t row = {.job = job->control.id,
                           .rank = r,
                           .node = rank->node,
                           .node_name = rank->node_name,
                           .node_id = node != NULL ? node->node_id : "",
                           .address = rank->address,
                           .state = control_rank_state_text(rank->state),
                           .port = rank->port,
                           .pid = rank->pid,
                           .incarnation = rank->incarnation};
    if (job->reports != NULL && job->reports[r] != NULL) {
        convert_packed_t packed = convert_pack(&job->reports[r]->base);
        row.report = (registry_blob_t){packed.data, packed.bytes};
        *good = *good && packed.data != NULL;
    }
    return row;
}

static rank_rows_t rows_of(const cluster_t *cluster, const cluster_job_t *job)
{
    rank_rows_t rows = {.n = job->control.world, .good = true};
    rows.rows = calloc(rows.n > 0 ? rows.n : 1, sizeof *rows.rows);
    if (rows.rows == NULL) return (rank_rows_t){0};
    for (uint32_t r = 0; r < rows.n; r++) rows.rows[r] = row_of(cluster, job, r, &rows.good);
    return rows;
}

static void free_rows(rank_rows_t *rows)
{
    for (uint32_t r = 0; r < rows->n; r++) free((void *)rows->rows[r].report.data);
    free(rows->rows);
}

inspan_status_t cluster_store_job(cluster_t *cluster, cluster_job_t *job, inspan_error_t *err)
{
    Inspan__V1__Failure failure;
    convert_packed_t packed = {NULL, 0}, request = {NULL, 0};
    if (job->control.has_cause) {
        convert_failure(&job->control.cause, &failure);
        packed = convert_pack(&failure.base);
    }
    if (job->control.id == 0) request = convert_pack(&job->request->base);
    rank_rows_t rows = rows_of(cluster, job);
    registry_job_t row = {.id = job->control.id,
                          .name = job->request->name,
                          .state = control_state_text(job->control.state),
                          .outcome = control_state_text(job->control.outcome),
                          .reason = job->control.reason,
                          .submitted_wall = job->submitted_wall,
                          .started_wall = job->started_wall,
                          .ended_wall = job->ended_wall,
                          .request = {request.data, request.bytes},
                          .failure = {packed.data, packed.bytes}};
    inspan_status_t status = rows.good ? registry_put_job(cluster->registry, &row, rows.rows, rows.n, err)
                                       : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK) job->control.id = row.id;
    free_rows(&rows);
    free(packed.data);
    free(request.data);
    return status;
}

static inspan_status_t store_rank(cluster_t *cluster, cluster_job_t *job, uint32_t r, inspan_error_t *err)
{
    bool good = true;
    registry_rank_t row = row_of(cluster, job, r, &good);
    inspan_status_t status = good ? registry_put_rank(cluster->registry, &row, err)
                                  : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    free((void *)row.report.data);
    return status;
}

/* ---- The view
 * ----------------------------------------------------------------------------------------------------- */

typedef struct view_message {
    Inspan__V1__View view;
    Inspan__V1__Member members[CONTROL_WORLD_MAX];
    Inspan__V1__Member *pointers[CONTROL_WORLD_MAX];
} view_message_t;

static void fill_view(const cluster_job_t *job, view_message_t *message)
{
    const control_job_t *control = &job->control;
    inspan__v1__view__init(&message->view);
    message->view.job_id = control->id;
    message->view.view = control->view;
    message->view.n_members = control->world;
    message->view.members = message->pointers;
    for (uint32_t r = 0; r < control->world; r++) {
        Inspan__V1__Member *member = &message->members[r];
        inspan__v1__member__init(member);
        member->rank = r;
        member->node = (char *)control->ranks[r].node_name;
        member->address = (char *)control->ranks[r].address;
        member->port = control->ranks[r].port;
        member->incarnation = control->ranks[r].incarnation;
        message->pointers[r] = member;
    }
}

static inspan_status_t store_view(cluster_t *cluster, cluster_job_t *job, inspan_error_t *err)
{
    if (os_random(job->key, sizeof job->key) != INSPAN_OK)
        return error_set(err, INSPAN_INTERNAL, "the kernel gives no random bytes for the job's key");
    view_message_t *message = malloc(sizeof *message);
    if (message == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    fill_view(job, message);
    convert_packed_t packed = convert_pack(&message->view.base);
    rank_rows_t rows = rows_of(cluster, job);
    registry_view_t row = {.job = job->control.id,
                           .view = job->control.view,
                           .key = {job->key, sizeof job->key},
                           .members = {packed.data, packed.bytes}};
    inspan_status_t status = rows.good && packed.data != NULL
                                 ? registry_put_view(cluster->registry, &row, rows.rows, rows.n, err)
                                 : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    free_rows(&rows);
    free(packed.data);
    free(message);
    return status;
}

/* ---- Carrying out the controller's actions
 * ------------------------------------------------------------------------- */

static void send_to_rank(cluster_t *cluster, cluster_job_t *job, uint32_t r,
                         const Inspan__V1__AgentDown *down)
{
    cluster_node_t *node = cluster_node_by_handle(cluster, job->control.ranks[r].node);
    /* one that has no stream now gets it when it attaches again (cluster_catch_up) */
    if (node != NULL && node->session != NULL) cluster->ports.send(cluster->ports.context, node, down);
}

static void send_start(cluster_t *cluster, cluster_job_t *job, uint32_t r)
{
    Inspan__V1__StartWorker start = INSPAN__V1__START_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    start.job_id = job->control.id;
    start.rank = r;
    start.config = job->request->config;
    start.n_data = job->request->n_data;
    start.data = job->request->data;
    start.failure_timeout_ns = job->request->failure_timeout_ns;
    start.memory_bytes = job->request->memory_bytes;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_START;
    down.start = &start;
    send_to_rank(cluster, job, r, &down);
}

static void send_view(cluster_t *cluster, cluster_job_t *job, uint32_t r)
{
    view_message_t *message = malloc(sizeof *message);
    if (message == NULL) {
        log_error("job %llu: no memory to announce view %llu", (unsigned long long)job->control.id,
                  (unsigned long long)job->control.view);
        return; /* the start's bound ends the job */
    }
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    fill_view(job, message);
    message->view.key.data = job->key;
    message->view.key.len = sizeof job->key;
    message->view.rank = r;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_VIEW;
    down.view = &message->view;
    send_to_rank(cluster, job, r, &down);
    free(message);
}

static void send_lost(cluster_t *cluster, cluster_job_t *job, uint32_t r)
{
    Inspan__V1__MemberLost lost = INSPAN__V1__MEMBER_LOST__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    Inspan__V1__Failure failure;
    convert_failure(&job->control.cause, &failure);
    lost.job_id = job->control.id;
    lost.view = job->control.view;
    lost.failure = &failure;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_LOST;
    down.lost = &lost;
    send_to_rank(cluster, job, r, &down);
}

static void send_stop(cluster_t *cluster, cluster_job_t *job, uint32_t r, bool kill)
{
    Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    stop.job_id = job->control.id;
    stop.rank = r;
    stop.kill = kill;
    stop.reason = job->control.reason;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
    down.stop = &stop;
    send_to_rank(cluster, job, r, &down);
}

/* A line for people when the job's own state moved; NULL: only a rank's did. */
static const char *news(cluster_job_t *job, char *text, size_t size)
{
    control_job_t *control = &job->control;
    if (control->view != job->told_view) {
        job->told_view = control->view;
        snprintf(text, size, "view %llu: %u rank%s", (unsigned long long)control->view, control->world,
                 control->world == 1 ? "" : "s");
        return text;
    }
    if (control->state == job->told) return NULL;
    job->told = control->state;
    int used = 0;
    switch (control->state) {
    case CONTROL_QUEUED: snprintf(text, size, "queued"); break;
    case CONTROL_STARTING:
        used = snprintf(text, size, "starting on");
        for (uint32_t r = 0; r < control->world && (size_t)used < size; r++)
            used += snprintf(text + used, size - (size_t)used, "%s %s", r > 0 ? "," : "",
                             control->ranks[r].node_name);
        break;
    case CONTROL_RUNNING:
        snprintf(text, size, "running on %u node%s", control->world, control->world == 1 ? "" : "s");
        break;
    case CONTROL_ENDING: snprintf(text, size, "ending: %s", control->reason); break;
    case CONTROL_DONE: snprintf(text, size, "done"); break;
    case CONTROL_FAILED: snprintf(text, size, "failed: %s", control->reason); break;
    case CONTROL_CANCELLED: snprintf(text, size, "cancelled: %s", control->reason); break;
    }
    return text;
}

static void changed(cluster_t *cluster, cluster_job_t *job)
{
    char text[CONTROL_REASON_MAX + 32];
    const char *line = news(job, text, sizeof text);
    if (line != NULL) {
        log_info("job %llu %s", (unsigned long long)job->control.id, line);
        cluster_event(cluster, job->control.id, 0, line);
    }
    /* the end is told once, with everything that belongs to it */
    if (!control_job_over(&job->control))
        cluster->ports.job_changed(cluster->ports.context, job, line, false);
}

static void ended(cluster_t *cluster, cluster_job_t *job)
{
    char text[CONTROL_REASON_MAX + 32];
    job->told = CONTROL_QUEUED;
    cluster->look_at_queue = true;
    cluster->ports.job_changed(cluster->ports.context, job, news(job, text, sizeof text), true);
}

static inspan_status_t store_for(cluster_t *cluster, cluster_job_t *job, const control_action_t *action,
                                 inspan_error_t *err)
{
    if (job->control.state == CONTROL_STARTING && job->started_wall == 0) job->started_wall = os_wall_now();
    if (control_job_over(&job->control) && job->ended_wall == 0) job->ended_wall = os_wall_now();
    if (action->kind == CONTROL_STORE_VIEW) return store_view(cluster, job, err);
    if (action->kind == CONTROL_NOTE_RANK) return store_rank(cluster, job, action->rank, err);
    return cluster_store_job(cluster, job, err);
}

/* One action. false: the rest must be dropped. */
static bool act_once(cluster_t *cluster, cluster_job_t *job, const control_action_t *action, ns_t now)
{
    inspan_error_t err = {0};
    switch (action->kind) {
    case CONTROL_STORE:
    case CONTROL_NOTE:
    case CONTROL_NOTE_RANK:
    case CONTROL_STORE_VIEW:
        if (store_for(cluster, job, action, &err) == INSPAN_OK) break;
        log_error("job %llu: %s", (unsigned long long)job->control.id, err.text);
        return !control_job_unstored(&job->control, action->kind, err.text, now);
    case CONTROL_START_WORKER: send_start(cluster, job, action->rank); break;
    case CONTROL_ANNOUNCE_VIEW: send_view(cluster, job, action->rank); break;
    case CONTROL_MEMBER_LOST: send_lost(cluster, job, action->rank); break;
    case CONTROL_STOP_WORKER: send_stop(cluster, job, action->rank, action->kill); break;
    case CONTROL_CHANGED: changed(cluster, job); break;
    case CONTROL_ENDED: ended(cluster, job); break;
    }
    return true;
}

void cluster_act(cluster_t *cluster, cluster_job_t *job, ns_t now)
{
    control_job_t *control = &job->control;
    while (control->actions.n > 0) {
        bool whole = true;
        for (size_t i = 0; i < control->actions.n && whole; i++) {
            control_action_t action = control->actions.items[i];
            whole = act_once(cluster, job, &action, now);
        }
        if (whole) control_job_acted(control);
    }
    /* a process that is gone frees its node */
    if (control_job_over(control)) cluster->look_at_queue = true;
}

/* ---- Submitting
 * --------------------------------------------------------------------------------------------------- */

static inspan_status_t check_data(const cluster_t *cluster, const Inspan__V1__SubmitRequest *request,
                                  inspan_error_t *err)
{
    if (request->n_data > CLUSTER_DATA_FILES)
        return error_set(err, INSPAN_LIMIT, "%zu data files, at most %d", request->n_data,
                         CLUSTER_DATA_FILES);
    for (size_t i = 0; i < request->n_data; i++) {
        const Inspan__V1__DataFile *file = request->data[i];
        char has[32], most[32];
        if (!file->fetch) continue;
        if (file->bytes > CLUSTER_DATA_MAX)
            return error_set(err, INSPAN_LIMIT,
                             "%.200s has %s, more than %s: it must lie at the same path on each node",
                             file->path, units_format_size(file->bytes, has, sizeof has),
                             units_format_size(CLUSTER_DATA_MAX, most, sizeof most));
        if (!cluster->ports.file_present(cluster->ports.context, file->hash, file->bytes))
            return error_set(err, INSPAN_NOT_FOUND, "the data file %.200s (%.64s) was not uploaded",
                             file->path, file->hash);
    }
    return INSPAN_OK;
}

static inspan_status_t check_request(const cluster_t *cluster, const Inspan__V1__SubmitRequest *request,
                                     inspan_error_t *err)
{
    if (strlen(request->name) > NAME_MAX_BYTES)
        return error_set(err, INSPAN_INVALID, "the job's name is longer than %d bytes", NAME_MAX_BYTES);
    if (request->config[0] == '\0') return error_set(err, INSPAN_INVALID, "the job has no configuration");
    if (strlen(request->config) > CLUSTER_CONFIG_MAX)
        return error_set(err, INSPAN_LIMIT, "the job's configuration is longer than %d bytes",
                         CLUSTER_CONFIG_MAX);
    if (request->failure_timeout_ns < NS_PER_S || request->failure_timeout_ns > 3600 * NS_PER_S)
        return error_set(err, INSPAN_INVALID, "failure_timeout %.3f s: expected 1 s to 1 h",
                         ns_to_s(request->failure_timeout_ns));
    uint32_t waiting = 0;
    for (size_t i = 0; i < cluster->jobs.n; i++)
        waiting += cluster->jobs.items[i]->control.state == CONTROL_QUEUED;
    if (waiting >= CLUSTER_QUEUE_MAX)
        return error_set(err, INSPAN_LIMIT, "%u jobs wait already: cancel some", waiting);
    return check_data(cluster, request, err);
}

/* `nodes.gpu` of the job's own text: any kind but none is a wish. */
static bool wishes_gpu(const char *config)
{
    const char *line = strncmp(config, "nodes.gpu=", 10) == 0 ? config : strstr(config, "\nnodes.gpu=");
    if (line == NULL) return false;
    const char *value = strchr(line, '=') + 1;
    size_t length = strcspn(value, "\r\n");
    return length > 0 && !(length == 4 && strncmp(value, "none", 4) == 0);
}

static sched_job_t wish_of(uint64_t id, const Inspan__V1__SubmitRequest *request)
{
    return (sched_job_t){.id = id,
                         .memory_bytes = request->memory_bytes,
                         .model_bytes = request->model_bytes,
                         .gpu = wishes_gpu(request->config),
                         .min_nodes = request->min_nodes,
                         .max_nodes = request->max_nodes,
                         .pinned = (const char *const *)request->pinned,
                         .n_pinned = (uint32_t)request->n_pinned};
}

static sched_node_t offer_of(const cluster_t *cluster, const cluster_node_t *node)
{
    const Inspan__V1__Inventory *inventory = node->registration->inventory;
    sched_node_t offer = {.name = node->name,
                          .machine = "",
                          .ready = node->life.state == LIVENESS_ATTACHED && node->session != NULL,
                          .busy = cluster_job_on(cluster, node) != NULL,
                          .local_only = !address_has_routable(node->address, inventory)};
    if (inventory == NULL) return offer;
    offer.machine = inventory->boot_id;
    offer.memory_bytes = inventory->memory_bytes;
    offer.cores = inventory->usable_cores;
    offer.gpus = (uint32_t)inventory->n_gpus;
    return offer;
}

static inspan_status_t offers_of(const cluster_t *cluster, sched_node_t **offers, inspan_error_t *err)
{
    *offers = calloc(cluster->nodes.n > 0 ? cluster->nodes.n : 1, sizeof **offers);
    if (*offers == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < cluster->nodes.n; i++) (*offers)[i] = offer_of(cluster, cluster->nodes.items[i]);
    return INSPAN_OK;
}

inspan_status_t cluster_submit(cluster_t *cluster, const Inspan__V1__SubmitRequest *request, ns_t now,
                               cluster_job_t **out, inspan_error_t *err)
{
    inspan_status_t status = check_request(cluster, request, err);
    if (status != INSPAN_OK) return status;
    sched_node_t *offers = NULL;
    status = offers_of(cluster, &offers, err);
    if (status != INSPAN_OK) return status;
    sched_job_t wish = wish_of(0, request);
    status = sched_admit(&wish, offers, (uint32_t)cluster->nodes.n, err);
    free(offers);
    if (status != INSPAN_OK) return status;
    cluster_job_t *job = cluster_job_new(0, request);
    if (job == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    job->submitted_wall = os_wall_now();
    job->told = CONTROL_QUEUED;
    status = cluster_store_job(cluster, job, err); /* gives the id */
    if (status == INSPAN_OK && !VEC_PUSH(&cluster->jobs, job)) {
        snprintf(job->control.reason, sizeof job->control.reason, "the manager was out of memory");
        job->control.state = CONTROL_FAILED;
        cluster_store_job(cluster, job, NULL);
        status = error_set(err, INSPAN_NO_MEMORY, "out of memory");
    }
    if (status != INSPAN_OK) {
        cluster_job_free(job);
        return status;
    }
    cluster_event(cluster, job->control.id, 0, "submitted");
    cluster->look_at_queue = true;
    cluster_schedule(cluster, now); /* so that the answer says whether it starts or why it waits */
    *out = job;
    return INSPAN_OK;
}

inspan_status_t cluster_cancel(cluster_t *cluster, uint64_t id, const char *text, ns_t now,
                               cluster_job_t **out, inspan_error_t *err)
{
    cluster_job_t *job = cluster_job(cluster, id);
    if (job == NULL)
        return error_set(err, INSPAN_NOT_FOUND, "no unfinished job %llu: see `inspan jobs`",
                         (unsigned long long)id);
    control_job_cancel(&job->control, text, now);
    cluster_act(cluster, job, now);
    *out = job;
    if (job->control.unstored)
        return error_set(err, INSPAN_IO,
                         "the registry cannot be written: job %llu will be cancelled as soon as it can",
                         (unsigned long long)id);
    return INSPAN_OK;
}

/* ---- The queue
 * ---------------------------------------------------------------------------------------------------- */

/* Loopback serves only ranks of one machine; where the job spans several, each gets the address towards the
 * others. */
static const char *address_for(const cluster_t *cluster, const sched_placement_t *placement, uint32_t r)
{
    const cluster_node_t *node = cluster->nodes.items[placement->nodes[r]];
    if (!address_is_loopback(node->address)) return node->address;
    const Inspan__V1__Inventory *own = node->registration->inventory;
    for (uint32_t i = 0; i < placement->n_nodes; i++) {
        const cluster_node_t *other = cluster->nodes.items[placement->nodes[i]];
        if (address_is_loopback(other->address)) continue;
        const char *found = address_towards(own, other->address);
        return found != NULL ? found : node->address;
    }
    return node->address; /* all of them loopback: the scheduler made sure that they share the machine */
}

static void start(cluster_t *cluster, cluster_job_t *job, const sched_placement_t *placement, ns_t now)
{
    control_rank_t *ranks = calloc(placement->n_nodes, sizeof *ranks);
    Inspan__V1__WorkerReport **reports = calloc(placement->n_nodes, sizeof(Inspan__V1__WorkerReport *));
    for (uint32_t r = 0; ranks != NULL && r < placement->n_nodes; r++) {
        const cluster_node_t *node = cluster->nodes.items[placement->nodes[r]];
        ranks[r].node = node->handle;
        snprintf(ranks[r].node_name, sizeof ranks[r].node_name, "%s", node->name);
        snprintf(ranks[r].address, sizeof ranks[r].address, "%s", address_for(cluster, placement, r));
    }
    if (ranks == NULL || reports == NULL ||
        control_job_start(&job->control, ranks, placement->n_nodes, now) != INSPAN_OK) {
        free(reports);
        snprintf(job->why, sizeof job->why, "the manager is out of memory");
        log_error("job %llu cannot start: out of memory", (unsigned long long)job->control.id);
    } else {
        free_reports(job);
        job->reports = reports;
        job->why[0] = '\0';
        cluster_act(cluster, job, now);
    }
    free(ranks);
}

void cluster_schedule(cluster_t *cluster, ns_t now)
{
    cluster->look_at_queue = false;
    vec_of(cluster_job_t *) queue = {0};
    vec_of(sched_job_t) wishes = {0};
    sched_node_t *offers = NULL;
    sched_placement_t *placements = NULL;
    bool good = true;
    for (size_t i = 0; i < cluster->jobs.n && good; i++) {
        cluster_job_t *job = cluster->jobs.items[i];
        if (job->control.state != CONTROL_QUEUED) continue;
        good = VEC_PUSH(&queue, job) && VEC_PUSH(&wishes, wish_of(job->control.id, job->request));
    }
    if (good && queue.n > 0) {
        placements = calloc(queue.n, sizeof *placements);
        good = placements != NULL && offers_of(cluster, &offers, NULL) == INSPAN_OK;
    }
    if (good && queue.n > 0) {
        sched_round(wishes.items, (uint32_t)queue.n, offers, (uint32_t)cluster->nodes.n, placements);
        for (size_t i = 0; i < queue.n; i++) {
            cluster_job_t *job = queue.items[i];
            if (placements[i].starts) {
                start(cluster, job, &placements[i], now);
            } else if (strcmp(job->why, placements[i].why) != 0) {
                snprintf(job->why, sizeof job->why, "%s", placements[i].why);
                char text[CONTROL_REASON_MAX + 16];
                snprintf(text, sizeof text, "waits: %s", job->why);
                cluster->ports.job_changed(cluster->ports.context, job, text, false);
            }
        }
    }
    if (!good) cluster->look_at_queue = true; /* no memory now: at the next tick */
    free(offers);
    free(placements);
    vec_free(&queue);
    vec_free(&wishes);
}

/* ---- Reports
 * ------------------------------------------------------------------------------------------------------ */

static bool is_end(const Inspan__V1__WorkerReport *message)
{
    return message->state == INSPAN__V1__WORKER_STATE__WORKER_DONE ||
           message->state == INSPAN__V1__WORKER_STATE__WORKER_FAILED;
}

/* The last report of a rank; what a newer one does not say is kept from the older. */
void cluster_keep_report(cluster_job_t *job, const Inspan__V1__WorkerReport *message)
{
    if (job->reports == NULL || message->rank >= job->control.world) return;
    if (strlen(message->summary_json) > CLUSTER_SUMMARY_MAX || message->n_results > CLUSTER_RESULTS_MAX)
        return;
    Inspan__V1__WorkerReport *old = job->reports[message->rank];
    if (old != NULL && is_end(old) && !is_end(message)) return; /* late */
    Inspan__V1__WorkerReport *fresh = convert_copy(&message->base);
    if (fresh == NULL) return; /* the next one replaces it */
    if (old != NULL && fresh->progress == NULL) {
        fresh->progress = old->progress;
        old->progress = NULL;
    }
    if (old != NULL && fresh->failure == NULL && is_end(fresh)) {
        fresh->failure = old->failure;
        old->failure = NULL;
    }
    if (old != NULL) protobuf_c_message_free_unpacked(&old->base, NULL);
    job->reports[message->rank] = fresh;
}

void cluster_report(cluster_t *cluster, cluster_node_t *node, const Inspan__V1__WorkerReport *message,
                    ns_t now)
{
    liveness_heard(&node->life, now);
    cluster_job_t *job = cluster_job(cluster, message->job_id);
    control_report_t report;
    if (job == NULL || !convert_report(message, node->handle, &report)) return;
    if (report.rank >= job->control.world || job->control.ranks[report.rank].node != node->handle) return;
    cluster_keep_report(job, message);
    control_job_report(&job->control, &report, now);
    bool silent = job->control.actions.n == 0;
    cluster_act(cluster, job, now);
    if (silent) cluster->ports.job_changed(cluster->ports.context, job, NULL, false);
}
