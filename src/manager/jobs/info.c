/* JobInfo of a job: arrays of its own, strings borrowed from the job. */
#include <stdlib.h>
#include <string.h>

#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"

#define SUMMARIES_BYTES (1u << 20) /* a message has at most 4 MiB; rank 0's is always there */
#define RESULTS_BYTES   (1u << 20)

struct fleet_info {
    Inspan__V1__JobInfo message;
    Inspan__V1__Failure failure;
    Inspan__V1__Rank *ranks;
    Inspan__V1__Rank **pointers;
    Inspan__V1__ResultFile **results;
};

/* *summaries: bytes of them so far; NULL: without. */
static void fill_rank(const fleet_job_t *job, uint32_t r, size_t *summaries, Inspan__V1__Rank *rank)
{
    const control_rank_t *from = &job->control.ranks[r];
    const Inspan__V1__WorkerReport *report = job->reports != NULL ? job->reports[r] : NULL;
    inspan__v1__rank__init(rank);
    rank->rank = r;
    rank->node = (char *)from->node_name;
    rank->node_id = (char *)from->node_id;
    rank->address = (char *)from->address;
    rank->port = from->port;
    rank->pid = from->pid;
    rank->incarnation = from->incarnation;
    rank->state = (char *)control_rank_state_text(from->state);
    if (report == NULL) return;
    rank->progress = report->progress;
    rank->failure = report->failure;
    if (summaries == NULL) return;
    *summaries += strlen(report->summary_json);
    if (*summaries <= SUMMARIES_BYTES) rank->summary_json = report->summary_json;
}

/* As many as fit. */
static size_t count_results(const fleet_job_t *job)
{
    size_t n = 0, bytes = 0;
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        for (size_t i = 0; job->reports[r] != NULL && i < job->reports[r]->n_results; i++) {
            bytes += protobuf_c_message_get_packed_size(&job->reports[r]->results[i]->base);
            if (bytes > RESULTS_BYTES) return n;
            n++;
        }
    return n;
}

static void fill_results(const fleet_job_t *job, size_t most, fleet_info_t *info)
{
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        for (size_t i = 0;
             job->reports[r] != NULL && i < job->reports[r]->n_results && info->message.n_results < most; i++)
            info->results[info->message.n_results++] = job->reports[r]->results[i];
    info->message.results = info->results;
}

/* The lowest of those that work on it now, or did last. */
static uint32_t lead_of(const fleet_job_t *job)
{
    const control_job_t *control = &job->control;
    for (uint32_t i = 0; i < control->members.n && control->elastic; i++) {
        uint32_t r = control->members.members[i];
        if (job->reports[r] != NULL && control->ranks[r].state != CONTROL_RANK_FAILED) return r;
    }
    return 0;
}

fleet_info_t *fleet_job_info(const fleet_job_t *job, bool whole)
{
    const control_job_t *control = &job->control;
    size_t world = control->world, n_results = whole && job->result == NULL ? count_results(job) : 0;
    fleet_info_t *info = calloc(1, sizeof *info);
    if (info == NULL) return NULL;
    info->ranks = calloc(world + 1, sizeof *info->ranks);
    info->pointers = calloc(world + 1, sizeof(Inspan__V1__Rank *));
    info->results = calloc(n_results + 1, sizeof(Inspan__V1__ResultFile *));
    if (info->ranks == NULL || info->pointers == NULL || info->results == NULL) {
        fleet_info_free(info);
        return NULL;
    }
    Inspan__V1__JobInfo *message = &info->message;
    inspan__v1__job_info__init(message);
    message->id = control->id;
    message->name = job->request->name;
    message->state = (char *)control_job_text(control);
    message->reason = (char *)(control->state == CONTROL_QUEUED ? job->why : control->reason);
    message->submitted_wall_ns = job->submitted_wall;
    message->started_wall_ns = job->started_wall;
    message->ended_wall_ns = job->ended_wall;
    message->view = control->view;
    message->n_ranks = world;
    message->ranks = info->pointers;
    size_t summaries = 0;
    for (uint32_t r = 0; r < world; r++) {
        fill_rank(job, r, whole ? &summaries : NULL, &info->ranks[r]);
        info->pointers[r] = &info->ranks[r];
    }
    uint32_t lead = lead_of(job);
    message->workers_lost = control->workers_lost;
    if (world > 0) message->progress = info->ranks[lead].progress;
    if (control->has_cause) {
        convert_failure(&control->cause, &info->failure);
        message->failure = &info->failure;
    }
    if (job->n_checkpoints > 0) { /* who watches fetches the newest */
        message->n_checkpoints = 1;
        message->checkpoints = &job->checkpoints[job->n_checkpoints - 1];
    }
    if (!whole) return info;
    if (job->said != NULL) {
        message->n_verdicts = job->said->n_verdicts;
        message->verdicts = job->said->verdicts;
        message->n_left_out = job->said->n_left_out;
        message->left_out = job->said->left_out;
    }
    message->config = job->request->config;
    for (uint32_t r = lead; r < world && message->summary_json[0] == '\0'; r++)
        if (info->ranks[r].summary_json[0] != '\0') message->summary_json = info->ranks[r].summary_json;
    fill_results(job, n_results, info);
    if (job->result != NULL) {
        message->n_results = job->result->n_files;
        message->results = job->result->files;
    }
    message->n_checkpoints = job->n_checkpoints;
    message->checkpoints = job->checkpoints;
    return info;
}

Inspan__V1__JobInfo *fleet_info_message(fleet_info_t *info)
{
    return &info->message;
}

void fleet_info_free(fleet_info_t *info)
{
    if (info == NULL) return;
    free(info->ranks);
    free(info->pointers);
    free(info->results);
    free(info);
}
