/* Elastic jobs: a broken view without a root. Who goes, or nobody? See "A blame alone" in job.h. */
#include <stdio.h>
#include <string.h>

#include "core/control/job_internal.h"

static uint32_t votes_against(const control_job_t *job, uint32_t r)
{
    uint32_t n = 0;
    for (uint32_t other = 0; other < job->world; other++)
        n += other != r && job->ranks[other].blames == (int32_t)r;
    return n;
}

/* Of two equally blamed: who goes? */
static bool goes_first(const control_job_t *job, uint32_t a, uint32_t b)
{
    const control_rank_t *x = &job->ranks[a], *y = &job->ranks[b];
    bool x_away = x->broke && !x->attached, y_away = y->broke && !y->attached;
    if (x_away != y_away) return x_away;
    if (x->speed != y->speed) return x->speed < y->speed;
    return a > b;
}

static int32_t most_blamed(const control_job_t *job, uint32_t *votes)
{
    int32_t worst = -1;
    *votes = 0;
    for (uint32_t i = 0; i < job->members.n; i++) {
        uint32_t r = job->members.members[i], n = votes_against(job, r);
        if (n == 0 || control_is_gone(&job->ranks[r])) continue;
        if (worst >= 0 && (n < *votes || (n == *votes && !goes_first(job, r, (uint32_t)worst)))) continue;
        worst = (int32_t)r;
        *votes = n;
    }
    return worst;
}

static bool was_open_for_a_speaker(const control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].blames != CONTROL_NO_BLAME && job->ranks[r].view == job->view) return true;
    return false;
}

void control_weigh_blames(control_job_t *job, ns_t now)
{
    uint32_t votes = 0;
    int32_t worst = most_blamed(job, &votes);
    bool away = worst >= 0 && job->ranks[worst].broke && !job->ranks[worst].attached;
    inspan_cause_t cause = job->blame;
    if (control_any_done(job)) { /* the others cannot go on without those that are done */
        char text[CONTROL_REASON_MAX];
        control_describe(&cause, text, sizeof text);
        control_end(job, CONTROL_FAILED, text, &cause, now);
        return;
    }
    if (worst >= 0 && !(was_open_for_a_speaker(job) && !job->retried && !away)) {
        cause.rank = worst;
        snprintf(cause.text, sizeof cause.text, "%u of %u members cannot reach it: %.180s", votes,
                 job->members.n, job->blame.text);
        control_views_lost(job, (uint32_t)worst, &cause, now);
        return;
    }
    if (job->retried) control_count_loss(job, -1, &cause, now);
    if (!control_is_open(job)) return;
    char text[240];
    snprintf(text, sizeof text, "a connection broke (%.200s)", job->blame.text);
    control_append_news(job, text);
    job->retried = true;
    job->retry = true;
}

void control_take_blame(control_job_t *job, const control_report_t *report, ns_t now)
{
    control_rank_t *rank = &job->ranks[report->rank];
    if (!report->has_blame || report->blame_view != job->view || job->changed || control_is_gone(rank))
        return;
    if (!control_job_member(job, report->rank) || rank->blames != CONTROL_NO_BLAME) return;
    inspan_cause_t cause = report->blame;
    bool other = cause.rank >= 0 && (uint32_t)cause.rank != report->rank &&
                 control_job_member(job, (uint32_t)cause.rank);
    rank->blames = other ? cause.rank : -1;
    if (job->settle_at != 0) return;
    if (!other) cause.rank = -1;
    if (cause.noticed_by < 0) cause.noticed_by = (int32_t)report->rank;
    if (cause.text[0] == '\0')
        snprintf(cause.text, sizeof cause.text, "%s", inspan_status_text(cause.status));
    job->blame = cause;
    job->settle_at = now + job->limits.settle;
}
