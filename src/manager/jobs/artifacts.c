/* Checkpoints and results of elastic jobs, and their ledger: checked, registered, kept in memory too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_time.h"

#define NAME_BYTES 255

static void free_artifact(Inspan__V1__Artifact *artifact)
{
    if (artifact != NULL) protobuf_c_message_free_unpacked(&artifact->base, NULL);
}

void fleet_free_artifacts(fleet_job_t *job)
{
    for (uint32_t i = 0; i < job->n_checkpoints; i++) free_artifact(job->checkpoints[i]);
    free(job->checkpoints);
    free_artifact(job->result);
    job->checkpoints = NULL;
    job->n_checkpoints = 0;
    job->result = NULL;
}

static bool take_row(void *context, const registry_artifact_t *row)
{
    fleet_job_t *job = context;
    Inspan__V1__Artifact *artifact = (Inspan__V1__Artifact *)protobuf_c_message_unpack(
        &inspan__v1__artifact__descriptor, NULL, row->message.bytes, row->message.data);
    if (artifact == NULL) {
        log_error("registry: the %s of step %llu of job %llu cannot be read and is passed over",
                  row->result ? "result" : "checkpoint", (unsigned long long)row->step,
                  (unsigned long long)row->job);
        return true;
    }
    if (row->result) {
        free_artifact(job->result);
        job->result = artifact;
        return true;
    }
    Inspan__V1__Artifact **list = realloc(job->checkpoints, (job->n_checkpoints + 1) * sizeof(void *));
    if (list == NULL) {
        free_artifact(artifact);
        return false;
    }
    job->checkpoints = list;
    list[job->n_checkpoints++] = artifact;
    return true;
}

inspan_status_t fleet_load_artifacts(fleet_t *fleet, fleet_job_t *job, inspan_error_t *err)
{
    fleet_free_artifacts(job);
    inspan_status_t status = registry_each_artifact(fleet->registry, job->control.id, take_row, job, err);
    if (status == INSPAN_OK && job->result != NULL) job->control.has_result = true;
    return status;
}

/* Does this worker of the job run on this node? */
static bool is_worker_of(const fleet_job_t *job, uint32_t rank, const fleet_node_t *node)
{
    return job != NULL && rank < job->control.world && job->control.ranks[rank].node == node->handle;
}

/* One file in a folder of its own: no way out of it. */
static bool is_plain_name(const char *name)
{
    char copy[NAME_BYTES + 2];
    size_t length = strlen(name);
    if (length == 0 || length > NAME_BYTES || name[0] == '.' || strchr(name, '/') != NULL) return false;
    convert_text(name, copy, sizeof copy);
    return strcmp(name, copy) == 0;
}

static inspan_status_t check_artifact(const fleet_t *fleet, const Inspan__V1__Artifact *message,
                                      inspan_error_t *err)
{
    if (message->n_files == 0 || message->n_files > FLEET_RESULTS_MAX)
        return error_set(err, INSPAN_INVALID, "%zu files to be registered: expected 1 to %d",
                         message->n_files, FLEET_RESULTS_MAX);
    if (message->step > INT64_MAX || message->view > INT64_MAX)
        return error_set(err, INSPAN_INVALID, "step %llu, view %llu: out of range",
                         (unsigned long long)message->step, (unsigned long long)message->view);
    for (size_t i = 0; i < message->n_files; i++) {
        const Inspan__V1__ResultFile *file = message->files[i];
        if (!is_plain_name(file->name))
            return error_set(err, INSPAN_INVALID, "'%.64s' is no name of a file to be registered",
                             file->name);
        if (!fleet->ports.file_present(fleet->ports.context, file->hash, file->bytes))
            return error_set(err, INSPAN_NOT_FOUND, "the file %.200s (%.64s) is not in the manager's store",
                             file->name, file->hash);
    }
    return INSPAN_OK;
}

/* The list anew; files of checkpoints that are not kept any more go at once: they are large. */
static void reload(fleet_t *fleet, fleet_job_t *job)
{
    Inspan__V1__Artifact **old = job->checkpoints;
    uint32_t n = job->n_checkpoints;
    inspan_error_t err;
    job->checkpoints = NULL;
    job->n_checkpoints = 0;
    bool whole = fleet_load_artifacts(fleet, job, &err) == INSPAN_OK;
    if (!whole) log_warn("%s", err.text);
    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 0; whole && k < old[i]->n_files; k++)
            if (!fleet_names_file(fleet, old[i]->files[k]->hash))
                fleet->ports.file_dropped(fleet->ports.context, old[i]->files[k]->hash);
        free_artifact(old[i]);
    }
    free(old);
}

static uint32_t kept_of(const fleet_job_t *job)
{
    uint32_t keep = job->request->keep_checkpoints;
    if (keep == 0) return FLEET_CHECKPOINTS;
    return keep < FLEET_KEEP_MAX ? keep : FLEET_KEEP_MAX;
}

static inspan_status_t register_artifact(fleet_t *fleet, fleet_job_t *job,
                                         const Inspan__V1__Artifact *message, inspan_error_t *err)
{
    inspan_status_t status = check_artifact(fleet, message, err);
    if (status != INSPAN_OK) return status;
    convert_packed_t packed = convert_pack(&message->base);
    if (packed.data == NULL) return error_set(err, INSPAN_NO_MEMORY, "the manager is out of memory");
    registry_artifact_t row = {.job = job->control.id,
                               .step = message->step,
                               .view = message->view,
                               .result = message->result,
                               .wall = os_wall_now(),
                               .message = {packed.data, packed.bytes}};
    status = registry_put_artifact(fleet->registry, &row, kept_of(job), err);
    free(packed.data);
    if (status == INSPAN_OK) reload(fleet, job);
    return status;
}

static void tell(fleet_t *fleet, fleet_job_t *job, const Inspan__V1__Artifact *message)
{
    char text[128];
    if (message->result)
        snprintf(text, sizeof text, "the result of step %llu is registered",
                 (unsigned long long)message->step);
    else
        snprintf(text, sizeof text, "checkpoint of step %llu is registered",
                 (unsigned long long)message->step);
    log_info("job %llu: %s", (unsigned long long)job->control.id, text);
    fleet_event(fleet, job->control.id, 0, text);
    fleet->ports.job_changed(fleet->ports.context, job, text, false);
}

void fleet_artifact(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Artifact *message, ns_t now,
                    Inspan__V1__ArtifactAnswer *answer, inspan_error_t *err)
{
    liveness_heard(&node->life, now);
    fleet_job_t *job = fleet_job(fleet, message->job_id);
    *err = (inspan_error_t){.status = INSPAN_OK};
    inspan_status_t status = INSPAN_OK;
    if (!is_worker_of(job, message->rank, node))
        status = error_set(err, INSPAN_NOT_FOUND, "no worker %u of job %llu is known on node %s",
                           message->rank, (unsigned long long)message->job_id, node->name);
    else
        status = register_artifact(fleet, job, message, err);
    if (status != INSPAN_OK)
        log_warn("node %s: %s", node->name, err->text);
    else
        tell(fleet, job, message);
    inspan__v1__artifact_answer__init(answer);
    answer->job_id = message->job_id;
    answer->rank = message->rank;
    answer->step = message->step;
    answer->result = message->result;
    answer->status = status;
    answer->text = err->text;
    if (status != INSPAN_OK || !message->result) return;
    control_job_result(&job->control, now);
    fleet_act(fleet, job, now);
}

/* ---- The ledger ---- */

static bool is_good_span(const Inspan__V1__LedgerSpan *span)
{
    return span->last_step >= span->first_step && span->last_step < INT64_MAX && span->view <= INT64_MAX &&
           span->n_shares <= FLEET_SHARES_MAX;
}

/* The shares alone: two spans are alike when these bytes are. */
static convert_packed_t pack_shares(const Inspan__V1__LedgerSpan *span)
{
    Inspan__V1__LedgerSpan shares = *span;
    shares.first_step = shares.last_step = shares.view = 0;
    return convert_pack(&shares.base);
}

void fleet_ledger(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__LedgerSpans *message, ns_t now)
{
    liveness_heard(&node->life, now);
    const fleet_job_t *job = fleet_job(fleet, message->job_id);
    bool known = false;
    for (uint32_t r = 0; job != NULL && r < job->control.world; r++)
        known = known || is_worker_of(job, r, node);
    if (!known || message->n_spans == 0 || message->n_spans > FLEET_SPANS_MAX) return;
    registry_span_t *rows = calloc(message->n_spans, sizeof *rows);
    uint32_t n = 0;
    bool good = rows != NULL;
    for (size_t i = 0; i < message->n_spans && good; i++) {
        const Inspan__V1__LedgerSpan *span = message->spans[i];
        if (!is_good_span(span)) continue;
        convert_packed_t packed = pack_shares(span);
        good = packed.data != NULL;
        rows[n++] = (registry_span_t){.job = message->job_id,
                                      .first_step = span->first_step,
                                      .last_step = span->last_step,
                                      .view = span->view,
                                      .shares = {packed.data, packed.bytes}};
    }
    inspan_error_t err = {.text = "out of memory"};
    if (!good || registry_put_spans(fleet->registry, message->job_id, message->seed, message->batch, rows, n,
                                    &err) != INSPAN_OK)
        log_error("the ledger of job %llu is not stored: %s", (unsigned long long)message->job_id, err.text);
    for (uint32_t i = 0; i < n; i++) free((void *)rows[i].shares.data);
    free(rows);
}
