/*
 * Elastic jobs: a member that cannot save the result (its disk is full) counts as lost, and the next leader
 * saves it. Where that fails, too, the job would start over again and again, to fail at its very end each
 * time.
 */
#include <stdio.h>

#include "core/control/job_internal.h"

#define UNSAVED_MAX 3u /* workers that failed to */

bool control_is_unsaved(const control_report_t *report, const inspan_cause_t *cause)
{
    const bool own = report->has_cause && report->exit_signal == 0 && cause->rank == (int32_t)report->rank;
    return own && cause->status == INSPAN_IO && report->steps > 0 && report->step >= report->steps;
}

static uint32_t count_unsaved(const control_job_t *job, uint64_t node, uint32_t *here)
{
    uint32_t n = 0;
    *here = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        n += job->ranks[r].unsaved;
        *here += job->ranks[r].unsaved && job->ranks[r].node == node;
    }
    return n;
}

bool control_saving_failed(control_job_t *job, uint32_t r, const inspan_cause_t *cause, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    char what[CONTROL_REASON_MAX], text[CONTROL_REASON_MAX];
    uint32_t here = 0;
    rank->unsaved = true;
    const uint32_t n = count_unsaved(job, rank->node, &here);
    const bool last = control_job_active(job) == 1; /* itself */
    if (job->has_result || (n < UNSAVED_MAX && !(last && here > 1))) return false;
    rank->state = CONTROL_RANK_FAILED;
    control_push(job, CONTROL_NOTE_RANK, r, false);
    control_describe(cause, what, sizeof what);
    snprintf(text, sizeof text,
             "%u workers could not save the result, the last: %.320s; make room or repair the disk there, "
             "then go on "
             "from the last checkpoint: inspan train FILE --resume",
             n, what);
    control_end(job, CONTROL_FAILED, text, cause, now);
    return true;
}
