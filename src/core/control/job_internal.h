/* Between the files of the job controller. */
#ifndef CORE_CONTROL_JOB_INTERNAL_H
#define CORE_CONTROL_JOB_INTERNAL_H

#include "core/control/job.h"

void control_push(control_job_t *job, control_action_kind_t kind, uint32_t rank, bool kill);

/* Of a worker that is about to be started. */
void control_rank_fresh(control_rank_t *rank, ns_t until);

/* Is this a rank whose process may still take part? */
static inline bool control_rank_active(const control_rank_t *rank)
{
    return rank->alive && rank->state != CONTROL_RANK_DONE && rank->state != CONTROL_RANK_FAILED;
}

static inline bool control_is_out(const control_rank_t *rank)
{
    return rank->state == CONTROL_RANK_FAILED || rank->state == CONTROL_RANK_LEFT;
}

/* It takes no part in a coming view. */
static inline bool control_is_gone(const control_rank_t *rank)
{
    return control_is_out(rank) || rank->state == CONTROL_RANK_DONE;
}

static inline bool control_is_open(const control_job_t *job)
{
    return job->state == CONTROL_STARTING || job->state == CONTROL_RUNNING;
}

/* Enter ENDING (or the end itself, when no process is left). cause NULL: none (cancelled, not bound in time).
 */
void control_end(control_job_t *job, control_state_t outcome, const char *reason, const inspan_cause_t *cause,
                 ns_t now);
void control_maybe_over(control_job_t *job, ns_t now);

/* Evidence about a failure: `speaker` is the rank that it comes from. */
void control_evidence_report(control_job_t *job, const control_report_t *report, ns_t now);
/* Its view is broken: of fixed members that is the end, though none of them has ended yet. */
void control_evidence_blame(control_job_t *job, const control_report_t *report, ns_t now);
void control_evidence_root(control_job_t *job, uint32_t rank, const inspan_cause_t *cause, ns_t now);
void control_settle(control_job_t *job, ns_t now, bool at_once);
/* What a report says of the end of its worker, complete: rank, node, address, text. */
inspan_cause_t control_cause_of(const control_job_t *job, const control_report_t *report);
/* Room for the actions that one event can cause with so many ranks. */
bool control_reserve(control_job_t *job, uint32_t world);
void control_be_over(control_job_t *job, control_state_t state, ns_t now);
void control_start_timed_out(control_job_t *job, ns_t now);
void control_describe(const inspan_cause_t *cause, char *text, size_t size);

/* Elastic jobs: views.c. An event is taken in whole before control_views_move issues what follows from it: at
 * most one view an event, for its announcements say the newest one and stand behind its store. */
void control_views_restore(control_job_t *job, ns_t now);
void control_views_report(control_job_t *job, const control_report_t *report, ns_t now);
void control_views_attached(control_job_t *job, uint32_t r, const control_report_t *report, ns_t now);
void control_views_again(control_job_t *job, uint64_t node);
/* Its process or its node is gone, whatever it says. */
void control_views_lost(control_job_t *job, uint32_t r, const inspan_cause_t *cause, ns_t now);
void control_views_tick(control_job_t *job, ns_t now);
bool control_any_done(const control_job_t *job);
/* Of the news of the next view: "lost worker 2 on node b". */
void control_append_news(control_job_t *job, const char *text);
/* One more failure without a step since the last; too many end the job. r -1: of nobody in particular. */
void control_count_loss(control_job_t *job, int32_t r, const inspan_cause_t *cause, ns_t now);
/* blames.c */
void control_take_blame(control_job_t *job, const control_report_t *report, ns_t now);
void control_weigh_blames(control_job_t *job, ns_t now);
/* saving.c */
/* Its own failure, of its disk, after the last step. */
bool control_is_unsaved(const control_report_t *report, const inspan_cause_t *cause);
/* One more worker could not save the result. true: one too many, the job ends. */
bool control_saving_failed(control_job_t *job, uint32_t r, const inspan_cause_t *cause, ns_t now);
void control_views_unstored(control_job_t *job, control_action_kind_t kind, ns_t now);
/* At the end of every event: issue the view, or the end, that is due. */
void control_views_move(control_job_t *job, ns_t now);

#endif
