/* Carries out what the controller of a job decided: stores, sends, tells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

/* ---- Storing ---- */

typedef struct rank_rows {
    registry_rank_t *rows;
    uint32_t n;
    bool good;
} rank_rows_t;

static registry_rank_t row_of(const fleet_job_t *job, uint32_t r, bool *good)
{
    const control_rank_t *rank = &job->control.ranks[r];
    registry_rank_t row = {.job = job->control.id,
                           .rank = r,
                           .node = rank->node,
                           .node_name = rank->node_name,
                           .node_id = rank->node_id,
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

static rank_rows_t rows_of(const fleet_job_t *job)
{
    rank_rows_t rows = {.n = job->control.world, .good = true};
    rows.rows = calloc(rows.n > 0 ? rows.n : 1, sizeof *rows.rows);
    if (rows.rows == NULL) return (rank_rows_t){0};
    for (uint32_t r = 0; r < rows.n; r++) rows.rows[r] = row_of(job, r, &rows.good);
    return rows;
}

static void free_rows(rank_rows_t *rows)
{
    for (uint32_t r = 0; r < rows->n; r++) free((void *)rows->rows[r].report.data);
    free(rows->rows);
}

inspan_status_t fleet_store_job(fleet_t *fleet, fleet_job_t *job, inspan_error_t *err)
{
    Inspan__V1__Failure failure;
    convert_packed_t packed = {NULL, 0}, request = {NULL, 0};
    if (job->control.has_cause) {
        convert_failure(&job->control.cause, &failure);
        packed = convert_pack(&failure.base);
    }
    if (job->control.id == 0) request = convert_pack(&job->request->base);
    rank_rows_t rows = rows_of(job);
    registry_job_t row = {.id = job->control.id,
                          .name = job->request->name,
                          .state = control_state_text(job->control.state),
                          .outcome = control_state_text(job->control.outcome),
                          .reason = job->control.reason,
                          .submitted_wall = job->submitted_wall,
                          .started_wall = job->started_wall,
                          .ended_wall = job->ended_wall,
                          .request = {request.data, request.bytes},
                          .failure = {packed.data, packed.bytes},
                          .elastic = job->control.elastic,
                          .workers_lost = job->control.workers_lost};
    inspan_status_t status = rows.good ? registry_put_job(fleet->registry, &row, rows.rows, rows.n, err)
                                       : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK) job->control.id = row.id;
    free_rows(&rows);
    free(packed.data);
    free(request.data);
    return status;
}

static inspan_status_t store_rank(fleet_t *fleet, fleet_job_t *job, uint32_t r, inspan_error_t *err)
{
    bool good = true;
    registry_rank_t row = row_of(job, r, &good);
    inspan_status_t status = good ? registry_put_rank(fleet->registry, &row, err)
                                  : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    free((void *)row.report.data);
    return status;
}

/* ---- The view ---- */

typedef struct view_message {
    Inspan__V1__View view;
    Inspan__V1__Member members[CONTROL_WORLD_MAX];
    Inspan__V1__Member *pointers[CONTROL_WORLD_MAX];
} view_message_t;

static void fill_view(const fleet_job_t *job, const fleet_pace_t *paces, view_message_t *message)
{
    const control_job_t *control = &job->control;
    inspan__v1__view__init(&message->view);
    message->view.job_id = control->id;
    message->view.view = control->view;
    message->view.n_members = control->elastic ? control->members.n : control->world;
    message->view.members = message->pointers;
    message->view.first = !control->elastic || control->members.first;
    for (uint32_t i = 0; i < message->view.n_members; i++) {
        uint32_t r = control->elastic ? control->members.members[i] : i;
        Inspan__V1__Member *member = &message->members[i];
        inspan__v1__member__init(member);
        member->rank = r;
        member->node = (char *)control->ranks[r].node_name;
        member->address = (char *)control->ranks[r].address;
        member->port = control->ranks[r].port;
        member->incarnation = control->ranks[r].incarnation;
        member->pace_sample_ns = i < CONTROL_ELASTIC_MAX ? paces[i].sample_ns : 0;
        member->pace_step_ns = i < CONTROL_ELASTIC_MAX ? paces[i].step_ns : 0;
        message->pointers[i] = member;
    }
}

static inspan_status_t store_view(fleet_t *fleet, fleet_job_t *job, inspan_error_t *err)
{
    uint8_t key[FLEET_KEY_BYTES]; /* the old one stays good until the new view is stored, as the paces */
    fleet_pace_t paces[CONTROL_ELASTIC_MAX];
    if (os_random(key, sizeof key) != INSPAN_OK)
        return error_set(err, INSPAN_INTERNAL, "the kernel gives no random bytes for the job's key");
    view_message_t *message = malloc(sizeof *message);
    if (message == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    fleet_paces(fleet, job, paces);
    fill_view(job, paces, message);
    convert_packed_t packed = convert_pack(&message->view.base);
    rank_rows_t rows = rows_of(job);
    registry_view_t row = {.job = job->control.id,
                           .view = job->control.view,
                           .key = {key, sizeof key},
                           .members = {packed.data, packed.bytes}};
    inspan_status_t status = rows.good && packed.data != NULL
                                 ? registry_put_view(fleet->registry, &row, rows.rows, rows.n, err)
                                 : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK) memcpy(job->key, key, sizeof key);
    if (status == INSPAN_OK) memcpy(job->paces, paces, sizeof paces);
    free_rows(&rows);
    free(packed.data);
    free(message);
    return status;
}

/* ---- Carrying out the controller's actions ---- */

static void send_to_rank(fleet_t *fleet, fleet_job_t *job, uint32_t r, const Inspan__V1__AgentDown *down)
{
    fleet_node_t *node = fleet_node_by_handle(fleet, job->control.ranks[r].node);
    /* one that has no stream now gets it when it attaches again (fleet_catch_up) */
    if (node != NULL && node->session != NULL) fleet->ports.send(fleet->ports.context, node, down);
}

static void send_start(fleet_t *fleet, fleet_job_t *job, uint32_t r)
{
    const control_job_t *control = &job->control;
    Inspan__V1__StartWorker start = INSPAN__V1__START_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    start.job_id = job->control.id;
    start.rank = r;
    start.config = job->request->config;
    start.n_data = job->request->n_data;
    start.data = job->request->data;
    start.failure_timeout_ns = job->request->failure_timeout_ns;
    start.memory_bytes = job->request->memory_bytes;
    start.newcomer = control->elastic && control->members.n > 0 && !control_job_member(control, r);
    start.resume = job->n_checkpoints > 0 ? job->checkpoints[job->n_checkpoints - 1] : job->request->resume;
    if (start.newcomer) start.resume = NULL;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_START;
    down.start = &start;
    send_to_rank(fleet, job, r, &down);
}

static void send_view(fleet_t *fleet, fleet_job_t *job, uint32_t r)
{
    view_message_t *message = malloc(sizeof *message);
    if (message == NULL) {
        log_error("job %llu: no memory to announce view %llu", (unsigned long long)job->control.id,
                  (unsigned long long)job->control.view);
        return; /* the start's bound ends the job */
    }
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    fill_view(job, job->paces, message);
    message->view.key.data = job->key;
    message->view.key.len = sizeof job->key;
    message->view.rank = r;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_VIEW;
    down.view = &message->view;
    send_to_rank(fleet, job, r, &down);
    free(message);
}

static void send_lost(fleet_t *fleet, fleet_job_t *job, uint32_t r)
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
    send_to_rank(fleet, job, r, &down);
}

static void send_stop(fleet_t *fleet, fleet_job_t *job, uint32_t r, bool kill, bool leave)
{
    Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    stop.job_id = job->control.id;
    stop.rank = r;
    stop.kill = kill;
    stop.leave = leave;
    stop.reason = job->control.reason[0] != '\0' ? job->control.reason : job->control.ranks[r].why;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
    down.stop = &stop;
    send_to_rank(fleet, job, r, &down);
}

/* A line for people when the job's own state moved; NULL: only a rank's did. */
static const char *news(fleet_job_t *job, char *text, size_t size)
{
    control_job_t *control = &job->control;
    uint32_t n = control->elastic ? control_job_active(control) : control->world;
    if (!control->elastic && control->view != job->told_view) {
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
        if (n == 0) return NULL; /* a new lineage, for which no node is there yet */
        used = snprintf(text, size, "starting on");
        for (uint32_t r = 0, named = 0; r < control->world && (size_t)used < size; r++)
            if (!control->elastic || control->ranks[r].state < CONTROL_RANK_LEFT)
                used += snprintf(text + used, size - (size_t)used, "%s %s", named++ > 0 ? "," : "",
                                 control->ranks[r].node_name);
        break;
    case CONTROL_RUNNING: snprintf(text, size, "running on %u node%s", n, n == 1 ? "" : "s"); break;
    case CONTROL_ENDING: snprintf(text, size, "ending: %s", control->reason); break;
    case CONTROL_DONE: snprintf(text, size, "done"); break;
    case CONTROL_FAILED: snprintf(text, size, "failed: %s", control->reason); break;
    case CONTROL_CANCELLED: snprintf(text, size, "cancelled: %s", control->reason); break;
    }
    return text;
}

static void record(fleet_t *fleet, const fleet_job_t *job, const char *line)
{
    log_info("job %llu %s", (unsigned long long)job->control.id, line);
    fleet_event(fleet, job->control.id, 0, line);
}

static void changed(fleet_t *fleet, fleet_job_t *job)
{
    char text[CONTROL_REASON_MAX + 32];
    if (control_job_over(&job->control))
        return; /* told once it is stored, with everything that belongs to it */
    const char *line = news(job, text, sizeof text);
    if (line != NULL) record(fleet, job, line);
    fleet->ports.job_changed(fleet->ports.context, job, line, false);
}

/* Views come and go while the job runs on. */
static void tell(fleet_t *fleet, fleet_job_t *job)
{
    char line[CONTROL_REASON_MAX + 32];
    const control_job_t *control = &job->control;
    if (control->news[0] == '\0') return;
    if (control->view != job->told_view)
        snprintf(line, sizeof line, "view %llu: %s", (unsigned long long)control->view, control->news);
    else
        snprintf(line, sizeof line, "%s", control->news);
    job->told_view = control->view;
    record(fleet, job, line);
    fleet->ports.job_changed(fleet->ports.context, job, line, false);
}

static void ended(fleet_t *fleet, fleet_job_t *job)
{
    char text[CONTROL_REASON_MAX + 32];
    job->told = CONTROL_QUEUED;
    job->told_view = job->control.view;
    fleet->look_at_queue = true;
    const char *line = news(job, text, sizeof text);
    record(fleet, job, line);
    fleet->ports.job_changed(fleet->ports.context, job, line, true);
}

static inspan_status_t store_for(fleet_t *fleet, fleet_job_t *job, const control_action_t *action,
                                 inspan_error_t *err)
{
    if (job->control.state == CONTROL_STARTING && job->started_wall == 0) job->started_wall = os_wall_now();
    if (control_job_over(&job->control) && job->ended_wall == 0) {
        job->ended_wall = os_wall_now();
        job->ended_at = os_now();
    }
    if (action->kind == CONTROL_STORE_VIEW) return store_view(fleet, job, err);
    if (action->kind == CONTROL_NOTE_RANK) return store_rank(fleet, job, action->rank, err);
    return fleet_store_job(fleet, job, err);
}

/* One action. false: the rest must be dropped. */
static bool act_once(fleet_t *fleet, fleet_job_t *job, const control_action_t *action, ns_t now)
{
    inspan_error_t err = {0};
    switch (action->kind) {
    case CONTROL_STORE:
    case CONTROL_NOTE:
    case CONTROL_NOTE_RANK:
    case CONTROL_STORE_VIEW:
        if (store_for(fleet, job, action, &err) == INSPAN_OK) {
            if (action->kind != CONTROL_NOTE_RANK) job->unsaved = false;
            break;
        }
        job->unsaved = true;
        job->save_at = now + NS_PER_S;
        log_error("job %llu: %s", (unsigned long long)job->control.id, err.text);
        return !control_job_unstored(&job->control, action->kind, err.text, now);
    case CONTROL_START_WORKER: send_start(fleet, job, action->rank); break;
    case CONTROL_ANNOUNCE_VIEW: send_view(fleet, job, action->rank); break;
    case CONTROL_MEMBER_LOST: send_lost(fleet, job, action->rank); break;
    case CONTROL_STOP_WORKER: send_stop(fleet, job, action->rank, action->kill, false); break;
    case CONTROL_ASK_TO_LEAVE: send_stop(fleet, job, action->rank, false, true); break;
    case CONTROL_LOST_WORKER: fleet_worker_lost(fleet, job, action->rank); break;
    case CONTROL_TELL: tell(fleet, job); break;
    case CONTROL_CHANGED: changed(fleet, job); break;
    case CONTROL_ENDED: ended(fleet, job); break;
    }
    return true;
}

void fleet_act(fleet_t *fleet, fleet_job_t *job, ns_t now)
{
    control_job_t *control = &job->control;
    bool moved = control->actions.n > 0;
    while (control->actions.n > 0) {
        bool whole = true;
        for (size_t i = 0; i < control->actions.n && whole; i++) {
            control_action_t action = control->actions.items[i];
            whole = act_once(fleet, job, &action, now);
        }
        if (whole) control_job_acted(control);
    }
    /* a process that is gone frees its node */
    if (control_job_over(control) || (control->elastic && moved)) fleet->look_at_queue = true;
}
