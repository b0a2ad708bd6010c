/* How fast nodes are: kept from the reports of running jobs, given to the next view. */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_time.h"

#define WRITE_EVERY (30 * NS_PER_S)
#define TAKEN_BACK  1.25                           /* so much more must a node give than when it was let go */
#define SAMPLE_MAX  ((uint64_t)1000000 * NS_PER_S) /* what is longer is no measurement */

/* Its quota may have changed since it registered. */
static uint32_t centicores_of(const fleet_node_t *node)
{
    const Inspan__V1__Inventory *inventory = node->registration->inventory;
    double cores = inventory != NULL ? inventory->usable_cores : 0;
    if (node->has_vitals && node->vitals.cores > 0) cores = node->vitals.cores;
    return cores > 0 && cores < 1e6 ? (uint32_t)lround(100 * cores) : 0;
}

static bool is_pace(uint64_t sample_ns, uint64_t step_ns)
{
    return sample_ns > 0 && sample_ns <= SAMPLE_MAX && step_ns <= SAMPLE_MAX;
}

/* Within 2 %: not worth a transaction. */
static bool is_like(uint64_t a, uint64_t b)
{
    return (a > b ? a - b : b - a) <= b / 50;
}

void fleet_note_speed(fleet_t *fleet, const fleet_job_t *job, fleet_node_t *node,
                      const Inspan__V1__WorkerReport *message, ns_t now)
{
    const Inspan__V1__Progress *progress = message->progress;
    const bool ends = message->state == INSPAN__V1__WORKER_STATE__WORKER_DONE ||
                      message->state == INSPAN__V1__WORKER_STATE__WORKER_FAILED;
    if (progress == NULL || job->request->model_key[0] == '\0' ||
        !is_pace(progress->pace_sample_ns, progress->pace_step_ns))
        return;
    if (node->speed.job != job->control.id) /* the first steps of a job are no good measurement */
        node->speed = (fleet_speed_t){.job = job->control.id, .at = now};
    if (!ends && now - node->speed.at < WRITE_EVERY) return;
    node->speed.at = now;
    const uint32_t centicores = centicores_of(node);
    if (is_like(progress->pace_sample_ns, node->speed.sample_ns) &&
        is_like(progress->pace_step_ns, node->speed.step_ns) && centicores == node->speed.centicores)
        return;
    registry_speed_t speed = {.node_id = node->node_id,
                              .model_key = job->request->model_key,
                              .centicores = centicores,
                              .micro_batch = progress->run_samples <= INT32_MAX ? progress->run_samples : 0,
                              .sample_ns = progress->pace_sample_ns,
                              .step_ns = progress->pace_step_ns,
                              .wall = os_wall_now()};
    inspan_error_t err;
    if (registry_put_speed(fleet->registry, &speed, &err) != INSPAN_OK) {
        log_warn("the speed of node %s is not stored: %s", node->name, err.text);
        return;
    }
    node->speed.sample_ns = speed.sample_ns;
    node->speed.step_ns = speed.step_ns;
    node->speed.centicores = centicores;
}

/* Not its clock: an idle CPU runs slowly. */
double fleet_power(const fleet_node_t *node)
{
    const bool known = node->has_vitals && node->vitals.cores > 0 && node->vitals.cores < 1e6;
    return known ? node->vitals.cores * node->vitals.allowed : 0;
}

void fleet_look_at_left_out(fleet_t *fleet, const fleet_node_t *node)
{
    const double power = fleet_power(node);
    for (size_t j = 0; j < fleet->jobs.n && power > 0; j++) {
        control_job_t *control = &fleet->jobs.items[j]->control;
        for (size_t i = 0; i < control->left_out.n && !control_job_over(control); i++) {
            const control_left_out_t *entry = &control->left_out.items[i];
            if (entry->node == node->handle && entry->power > 0 && power > TAKEN_BACK * entry->power)
                control_job_take_back(control, node->handle);
        }
    }
}

/* What it said in this job, else what the registry knows of its node. */
static fleet_pace_t pace_of(fleet_t *fleet, const fleet_job_t *job, uint32_t r)
{
    const Inspan__V1__WorkerReport *report = job->reports != NULL ? job->reports[r] : NULL;
    const Inspan__V1__Progress *progress = report != NULL ? report->progress : NULL;
    if (progress != NULL && is_pace(progress->pace_sample_ns, progress->pace_step_ns))
        return (fleet_pace_t){progress->pace_sample_ns, progress->pace_step_ns};
    const fleet_node_t *node = fleet_node_by_handle(fleet, job->control.ranks[r].node);
    if (node == NULL || job->request->model_key[0] == '\0') return (fleet_pace_t){0};
    registry_speed_t speed = {
        .node_id = node->node_id, .model_key = job->request->model_key, .centicores = centicores_of(node)};
    inspan_error_t err;
    if (registry_find_speed(fleet->registry, &speed, &err) != INSPAN_OK) {
        log_warn("the speed of node %s cannot be read: %s", node->name, err.text);
        return (fleet_pace_t){0};
    }
    return is_pace(speed.sample_ns, speed.step_ns) ? (fleet_pace_t){speed.sample_ns, speed.step_ns}
                                                   : (fleet_pace_t){0};
}

void fleet_paces(fleet_t *fleet, const fleet_job_t *job, fleet_pace_t paces[CONTROL_ELASTIC_MAX])
{
    const control_view_t *view = &job->control.members;
    for (uint32_t i = 0; i < CONTROL_ELASTIC_MAX; i++)
        paces[i] =
            job->control.elastic && i < view->n ? pace_of(fleet, job, view->members[i]) : (fleet_pace_t){0};
}
