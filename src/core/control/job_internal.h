/* Between the files of the job controller. */
#ifndef CORE_CONTROL_JOB_INTERNAL_H
#define CORE_CONTROL_JOB_INTERNAL_H

#include "core/control/job.h"

void control_push(control_job_t *job, control_action_kind_t kind, uint32_t rank, bool kill);

/* Is this a rank whose process may still take part? */
static inline bool control_rank_active(const control_rank_t *rank)
{
    return rank->alive && rank->state != CONTROL_RANK_DONE && rank->state != CONTROL_RANK_FAILED;
}

/* Enter ENDING (or the end itself, when no process is left). cause NULL: none (cancelled, not bound in time).
 */
void control_end(control_job_t *job, control_state_t outcome, const char *reason, const inspan_cause_t *cause,
                 ns_t now);
void control_maybe_over(control_job_t *job, ns_t now);

/* Evidence about a failure: `speaker` is the rank that it comes from. */
void control_evidence_report(control_job_t *job, const control_report_t *report, ns_t now);
void control_evidence_root(control_job_t *job, uint32_t rank, const inspan_cause_t *cause, ns_t now);
void control_settle(control_job_t *job, ns_t now, bool at_once);

#endif
