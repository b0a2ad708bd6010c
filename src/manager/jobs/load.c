/* From the registry into memory: at the start of the manager, and an old job when somebody asks for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"

typedef struct unreadable { /* a row that stays as it is in the registry */
    uint64_t job, node;
    char text[160];
} unreadable_t;

typedef struct loading {
    fleet_t *fleet;
    ns_t now;
    inspan_status_t status;
    inspan_error_t *err;
    fleet_job_t *single; /* one job only, not into the list */
    bool only_one;
    vec_of(unreadable_t) unreadable;
} loading_t;

static bool fail(loading_t *loading, inspan_status_t status, const char *what, uint64_t id)
{
    loading->status =
        error_set(loading->err, status, "the registry's %s %llu: %s", what, (unsigned long long)id,
                  status == INSPAN_NO_MEMORY ? "out of memory" : "cannot be read");
    return false;
}

/* One bad row must not keep the others from being served. The events follow when the reading is over. */
static bool pass_over(loading_t *loading, uint64_t job, uint64_t node, const char *text)
{
    unreadable_t row = {.job = job, .node = node};
    snprintf(row.text, sizeof row.text, "%s", text);
    log_error("registry: %s", text);
    if (VEC_PUSH(&loading->unreadable, row)) return true;
    return fail(loading, INSPAN_NO_MEMORY, job != 0 ? "job" : "node", job != 0 ? job : node);
}

static bool pass_over_job(loading_t *loading, uint64_t id)
{
    char text[160];
    if (loading->only_one) return fail(loading, INSPAN_CORRUPT, "job", id);
    snprintf(text, sizeof text, "job %llu cannot be read and is left out: its row is damaged",
             (unsigned long long)id);
    return pass_over(loading, id, 0, text);
}

static void tell_of_unreadable(loading_t *loading)
{
    for (size_t i = 0; i < loading->unreadable.n; i++) {
        const unreadable_t *row = &loading->unreadable.items[i];
        fleet_event(loading->fleet, row->job, row->node, row->text);
    }
    vec_free(&loading->unreadable);
}

static void *unpack(const ProtobufCMessageDescriptor *type, registry_blob_t blob)
{
    return protobuf_c_message_unpack(type, NULL, blob.bytes,
                                     blob.data != NULL ? blob.data : (const void *)"");
}

static bool load_node(void *context, const registry_node_t *row)
{
    loading_t *loading = context;
    if (strcmp(row->state, "forgotten") == 0) return true;
    fleet_node_t *node = calloc(1, sizeof *node);
    if (node == NULL) return fail(loading, INSPAN_NO_MEMORY, "node", row->handle);
    node->registration = unpack(&inspan__v1__register__descriptor, row->registration);
    bool damaged = node->registration == NULL;
    if (damaged) /* its name and id are taken all the same, and its agent says the rest anew */
        node->registration = unpack(&inspan__v1__register__descriptor, (registry_blob_t){NULL, 0});
    if (node->registration == NULL || !VEC_PUSH(&loading->fleet->nodes, node)) {
        if (node->registration != NULL) protobuf_c_message_free_unpacked(&node->registration->base, NULL);
        free(node);
        return fail(loading, INSPAN_NO_MEMORY, "node", row->handle);
    }
    node->handle = row->handle;
    snprintf(node->node_id, sizeof node->node_id, "%s", row->node_id);
    snprintf(node->name, sizeof node->name, "%s", row->name);
    snprintf(node->address, sizeof node->address, "%s", row->address);
    node->incarnation = row->incarnation;
    node->registered_wall = row->registered_wall;
    node->rest = (rest_t){.drained = row->drained,
                          .quarantined = row->quarantined,
                          .until = row->cool_until_wall,
                          .in_a_row = row->losses_in_a_row};
    if (row->losses.bytes == sizeof node->rest.losses)
        memcpy(node->rest.losses, row->losses.data, sizeof node->rest.losses);
    liveness_restore(&node->life, loading->now);
    if (strcmp(row->state, "left") == 0) node->life.state = LIVENESS_LEFT;
    if (strcmp(row->state, "lost") == 0) node->life.state = LIVENESS_LOST;
    if (!damaged) return true;
    char text[160];
    snprintf(text, sizeof text, "what node %.63s said of itself cannot be read, until it registers again",
             node->name);
    return pass_over(loading, 0, row->handle, text);
}

static control_state_t state_of(const char *text)
{
    for (int state = CONTROL_QUEUED; state <= CONTROL_CANCELLED; state++)
        if (strcmp(control_state_text((control_state_t)state), text) == 0) return (control_state_t)state;
    return CONTROL_FAILED;
}

static control_rank_state_t rank_state_of(const char *text)
{
    for (int state = CONTROL_RANK_ASSIGNED; state <= CONTROL_RANK_FAILED; state++)
        if (strcmp(control_rank_state_text((control_rank_state_t)state), text) == 0)
            return (control_rank_state_t)state;
    return CONTROL_RANK_FAILED;
}

typedef struct rank_list {
    vec_of(control_rank_t) ranks;
    vec_of(Inspan__V1__WorkerReport *) reports;
    bool good;
} rank_list_t;

static bool load_rank(void *context, const registry_rank_t *row)
{
    rank_list_t *list = context;
    control_rank_t rank = {.node = row->node,
                           .state = rank_state_of(row->state),
                           .port = (uint16_t)row->port,
                           .pid = row->pid,
                           .incarnation = row->incarnation};
    snprintf(rank.node_name, sizeof rank.node_name, "%s", row->node_name);
    snprintf(rank.node_id, sizeof rank.node_id, "%s", row->node_id);
    snprintf(rank.address, sizeof rank.address, "%s", row->address);
    Inspan__V1__WorkerReport *report = NULL;
    if (row->report.bytes > 0) report = unpack(&inspan__v1__worker_report__descriptor, row->report);
    if (report != NULL) rank.full = report->full;
    list->good = row->rank == list->ranks.n && list->ranks.n < CONTROL_RANKS_MAX &&
                 VEC_PUSH(&list->ranks, rank) && VEC_PUSH(&list->reports, report);
    if (!list->good && report != NULL) protobuf_c_message_free_unpacked(&report->base, NULL);
    return list->good;
}

typedef struct last_view {
    fleet_job_t *job;
    control_view_t view;
    bool damaged;
} last_view_t;

static bool take_view(void *context, const registry_view_t *row)
{
    last_view_t *last = context;
    fleet_job_t *job = last->job;
    if (row->key.bytes == sizeof job->key) memcpy(job->key, row->key.data, sizeof job->key);
    last->view.number = row->view;
    Inspan__V1__View *view = unpack(&inspan__v1__view__descriptor, row->members);
    last->damaged = view == NULL || view->n_members > CONTROL_WORLD_MAX;
    if (!last->damaged) {
        last->view.first = view->first;
        last->view.n = (uint32_t)view->n_members;
        for (uint32_t i = 0; i < last->view.n; i++) last->view.members[i] = view->members[i]->rank;
        for (uint32_t i = 0; i < last->view.n && i < CONTROL_ELASTIC_MAX; i++)
            job->paces[i] = (fleet_pace_t){view->members[i]->pace_sample_ns, view->members[i]->pace_step_ns};
    }
    if (view != NULL) protobuf_c_message_free_unpacked(&view->base, NULL);
    return true;
}

/* Its members are workers that the registry knows, in their order. */
static bool is_good_view(const last_view_t *last, uint32_t world)
{
    bool good = !last->damaged;
    for (uint32_t i = 0; i < last->view.n; i++)
        good = good && last->view.members[i] < world &&
               (i == 0 || last->view.members[i] > last->view.members[i - 1]);
    return good;
}

static void take_row(fleet_job_t *job, const registry_job_t *row)
{
    control_job_t *control = &job->control;
    snprintf(control->reason, sizeof control->reason, "%s", row->reason);
    job->submitted_wall = row->submitted_wall;
    job->started_wall = row->started_wall;
    job->ended_wall = row->ended_wall;
    control->workers_lost = row->workers_lost;
    if (row->elastic) fleet_make_elastic(job);
    if (row->verdicts.bytes > 0) /* damaged: as if nothing had been said */
        job->said = unpack(&inspan__v1__job_info__descriptor, row->verdicts);
    if (row->failure.bytes == 0) return;
    Inspan__V1__Failure *failure = unpack(&inspan__v1__failure__descriptor, row->failure);
    if (failure == NULL) return;
    convert_cause(failure, &control->cause);
    control->has_cause = true;
    protobuf_c_message_free_unpacked(&failure->base, NULL);
}

/* Ranks, view and state of a job that was started before. */
static inspan_status_t restore(loading_t *loading, fleet_job_t *job, control_state_t state,
                               control_state_t outcome)
{
    control_job_t *control = &job->control;
    rank_list_t list = {.good = true};
    last_view_t last = {.job = job};
    inspan_status_t status =
        registry_each_rank(loading->fleet->registry, control->id, load_rank, &list, loading->err);
    if (status == INSPAN_OK)
        status = registry_last_view(loading->fleet->registry, control->id, take_view, &last, loading->err);
    if (status == INSPAN_OK && !(list.good && is_good_view(&last, (uint32_t)list.ranks.n)))
        status = INSPAN_CORRUPT;
    if (status == INSPAN_OK)
        status = control_job_restore(control, state, outcome, list.ranks.items, (uint32_t)list.ranks.n,
                                     last.view.number > 0 ? &last.view : NULL, loading->now);
    vec_free(&list.ranks);
    if (status != INSPAN_OK) {
        for (size_t i = 0; i < list.reports.n; i++)
            if (list.reports.items[i] != NULL)
                protobuf_c_message_free_unpacked(&list.reports.items[i]->base, NULL);
        vec_free(&list.reports);
        return status;
    }
    job->reports = list.reports.items;
    fleet_recall_left_out(loading->fleet, job, loading->now);
    status = fleet_load_artifacts(loading->fleet, job, loading->err);
    if (status != INSPAN_OK) return status;
    job->told = state;
    job->told_view = control->view;
    if (!control_job_over(control)) return INSPAN_OK;
    control->killed = true; /* should a process of it still live, its agent says so when it attaches */
    for (uint32_t r = 0; r < control->world; r++) control->ranks[r].alive = false;
    return INSPAN_OK;
}

static bool load_job(void *context, const registry_job_t *row)
{
    loading_t *loading = context;
    Inspan__V1__SubmitRequest *request = unpack(&inspan__v1__submit_request__descriptor, row->request);
    if (request == NULL) return pass_over_job(loading, row->id);
    fleet_job_t *job = fleet_job_new(row->id, request);
    protobuf_c_message_free_unpacked(&request->base, NULL);
    if (job == NULL) return fail(loading, INSPAN_NO_MEMORY, "job", row->id);
    take_row(job, row);
    control_state_t state = state_of(row->state);
    inspan_status_t status = INSPAN_OK;
    if (state != CONTROL_QUEUED) status = restore(loading, job, state, state_of(row->outcome));
    if (status == INSPAN_OK && loading->only_one) {
        loading->single = job;
        return true;
    }
    if (status == INSPAN_OK && !VEC_PUSH(&loading->fleet->jobs, job)) status = INSPAN_NO_MEMORY;
    if (status == INSPAN_OK) return true;
    fleet_job_free(job);
    if (status == INSPAN_CORRUPT || status == INSPAN_INVALID) return pass_over_job(loading, row->id);
    return fail(loading, status, "job", row->id);
}

static control_report_t recalled(const fleet_job_t *job, uint32_t r)
{
    const control_rank_t *rank = &job->control.ranks[r];
    control_report_t report = {0};
    if (job->reports[r] == NULL || !convert_report(job->reports[r], rank->node, &report) ||
        report.state != CONTROL_RANK_FAILED) { /* its end was seen by us, not reported */
        report = (control_report_t){.state = CONTROL_RANK_FAILED, .has_cause = true};
        report.cause = (inspan_cause_t){.status = INSPAN_JOB_FAILED, .rank = (int32_t)r, .noticed_by = -1};
        snprintf(report.cause.text, sizeof report.cause.text, "it had failed before the manager restarted");
    }
    report.rank = r;
    return report;
}

/* Ends of ranks that were stored, while the job's own was not any more. */
static inspan_status_t recall_failures(fleet_t *fleet, ns_t now, inspan_error_t *err)
{
    control_report_t *reports = malloc(CONTROL_RANKS_MAX * sizeof *reports);
    if (reports == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    for (size_t j = 0; j < fleet->jobs.n; j++) {
        fleet_job_t *job = fleet->jobs.items[j];
        uint32_t n = 0;
        for (uint32_t r = 0; r < job->control.world; r++)
            if (job->control.ranks[r].state == CONTROL_RANK_FAILED) reports[n++] = recalled(job, r);
        control_job_recall(&job->control, reports, n, now);
        fleet_act(fleet, job, now);
    }
    free(reports);
    return INSPAN_OK;
}

/* A node that was gone before we died, and a job that did not hear of it any more. */
static void tell_of_the_gone(fleet_t *fleet, ns_t now)
{
    for (size_t i = 0; i < fleet->nodes.n; i++) {
        const fleet_node_t *node = fleet->nodes.items[i];
        if (node->life.state != LIVENESS_LOST && node->life.state != LIVENESS_LEFT) continue;
        for (size_t j = 0; j < fleet->jobs.n; j++) {
            fleet_job_t *job = fleet->jobs.items[j];
            if (control_job_over(&job->control)) continue;
            control_job_node_gone(&job->control, node->handle, "it was lost before the manager restarted",
                                  now);
            fleet_act(fleet, job, now);
        }
    }
}

inspan_status_t fleet_load(fleet_t *fleet, ns_t now, inspan_error_t *err)
{
    loading_t loading = {.fleet = fleet, .now = now, .err = err};
    inspan_status_t status = registry_each_node(fleet->registry, load_node, &loading, err);
    if (status == INSPAN_OK) status = loading.status;
    if (status == INSPAN_OK)
        status = registry_each_job(fleet->registry, 0, FLEET_JOBS_KEPT, load_job, &loading, err);
    if (status == INSPAN_OK) status = loading.status;
    tell_of_unreadable(&loading);
    if (status == INSPAN_OK) status = recall_failures(fleet, now, err);
    if (status == INSPAN_OK) tell_of_the_gone(fleet, now);
    return status;
}

inspan_status_t fleet_job_load(fleet_t *fleet, uint64_t id, ns_t now, fleet_job_t **job, inspan_error_t *err)
{
    loading_t loading = {.fleet = fleet, .now = now, .err = err, .only_one = true};
    if (id == 0) return error_set(err, INSPAN_INVALID, "jobs are numbered from 1");
    inspan_status_t status = registry_each_job(fleet->registry, id, 1, load_job, &loading, err);
    if (status == INSPAN_OK) status = loading.status;
    if (status != INSPAN_OK) return status;
    if (loading.single == NULL)
        return error_set(err, INSPAN_NOT_FOUND, "no job %llu: see `inspan jobs`", (unsigned long long)id);
    *job = loading.single;
    return INSPAN_OK;
}

const fleet_job_t *fleet_job_or_load(fleet_t *fleet, uint64_t id, ns_t now, fleet_job_t **loaded,
                                     inspan_error_t *err)
{
    *loaded = NULL;
    const fleet_job_t *job = fleet_job(fleet, id);
    if (job != NULL) return job;
    return fleet_job_load(fleet, id, now, loaded, err) == INSPAN_OK ? *loaded : NULL;
}
