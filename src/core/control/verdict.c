/* Weighs what is said about a failure: see "Whose fault" in job.h. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/control/job_internal.h"

static bool valid_rank(const control_job_t *job, int32_t rank)
{
    return rank >= 0 && (uint32_t)rank < job->world;
}

/* Fill in what the speaker left out, so that every cause names rank, node and address. */
static void complete_cause(const control_job_t *job, inspan_cause_t *cause)
{
    if (!valid_rank(job, cause->rank)) {
        cause->rank = -1;
        return;
    }
    const control_rank_t *rank = &job->ranks[cause->rank];
    if (cause->node[0] == '\0') snprintf(cause->node, sizeof cause->node, "%s", rank->node_name);
    if (cause->address[0] == '\0' && rank->port != 0) {
        const char *format = strchr(rank->address, ':') != NULL ? "[%.50s]:%u" : "%.50s:%u";
        snprintf(cause->address, sizeof cause->address, format, rank->address, rank->port);
    }
    if (cause->status == INSPAN_OK) cause->status = INSPAN_JOB_FAILED;
}

static bool is_word_byte(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_';
}

static bool mentions(const char *text, const char *words)
{
    size_t n = strlen(words);
    for (const char *at = text; n > 0 && (at = strstr(at, words)) != NULL; at++)
        if ((at == text || !is_word_byte(at[-1])) && !is_word_byte(at[n])) return true;
    return false;
}

/* Does the text say already which rank and node it is about? */
static bool names_culprit(const inspan_cause_t *cause, const char *text)
{
    char node[INSPAN_NAME_MAX + 8], rank[16];
    snprintf(node, sizeof node, "node %s", cause->node);
    snprintf(rank, sizeof rank, "rank %d", cause->rank);
    return mentions(text, node) || (mentions(text, rank) && mentions(text, cause->node));
}

void control_describe(const inspan_cause_t *cause, char *text, size_t size)
{
    const char *what = cause->text[0] != '\0' ? cause->text : inspan_status_text(cause->status);
    if (cause->rank < 0 || names_culprit(cause, what))
        snprintf(text, size, "%s", what);
    else if (cause->address[0] != '\0')
        snprintf(text, size, "rank %d on node %s (%s): %s", cause->rank, cause->node, cause->address, what);
    else
        snprintf(text, size, "rank %d on node %s: %s", cause->rank, cause->node, what);
}

static void verdict(control_job_t *job, const inspan_cause_t *cause, ns_t now)
{
    char text[CONTROL_REASON_MAX];
    control_describe(cause, text, sizeof text);
    control_end(job, CONTROL_FAILED, text, cause, now);
}

/* Nobody can say more: every rank has ended. */
static bool all_heard(const control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (control_rank_active(&job->ranks[r])) return false;
    return true;
}

void control_settle(control_job_t *job, ns_t now, bool at_once)
{
    if (job->settle_at == 0 || !control_is_open(job)) return;
    bool blamed = valid_rank(job, job->blame.rank);
    bool matches = job->has_root && blamed && job->root.rank == job->blame.rank;
    if (!at_once && now < job->settle_at && !matches && !all_heard(job)) return;
    if (job->has_root) {
        verdict(job, &job->root, now);
        return;
    }
    if (job->has_result && control_any_done(job) &&
        control_is_open(job)) { /* who is through has closed its connections */
        job->reason[0] = '\0';
        control_be_over(job, CONTROL_DONE, now);
        return;
    }
    inspan_cause_t cause = job->blame;
    if (blamed && !job->ranks[cause.rank].attached) {
        /* the silent agent explains the silent worker */
        snprintf(cause.text, sizeof cause.text,
                 "the connection of the agent of node %s broke, and its worker does not answer (noticed by "
                 "rank %d)",
                 cause.node, cause.noticed_by);
    }
    verdict(job, &cause, now);
}

void control_evidence_root(control_job_t *job, uint32_t rank, const inspan_cause_t *cause, ns_t now)
{
    if (job->state != CONTROL_STARTING && job->state != CONTROL_RUNNING) return;
    if (!job->has_root || (valid_rank(job, job->blame.rank) && (int32_t)rank == job->blame.rank)) {
        job->root = *cause;
        job->root.rank = (int32_t)rank;
        complete_cause(job, &job->root);
        job->has_root = true;
    }
    if (job->settle_at == 0) {
        verdict(job, &job->root, now);
        return;
    }
    control_settle(job, now, false);
}

/* Its own end, or only the echo of another's? */
static bool is_root(const control_report_t *report)
{
    if (report->exit_signal != 0) return true;
    if (!report->has_cause) return true; /* it exited and says nothing: its own doing */
    if (report->cause.rank == (int32_t)report->rank) return true;
    if (report->cause.rank >= 0) return false;
    switch (report->cause.status) {
    case INSPAN_ABORTED:
    case INSPAN_PEER_LOST:
    case INSPAN_TIMEOUT:
    case INSPAN_UNREACHABLE:
    case INSPAN_REFUSED: return false;
    default: return true;
    }
}

/* As it was reported; one that says nothing is about its speaker. */
static inspan_cause_t reported_cause(const control_report_t *report)
{
    inspan_cause_t cause = report->cause;
    if (report->has_cause) return cause;
    memset(&cause, 0, sizeof cause);
    cause.rank = (int32_t)report->rank;
    cause.noticed_by = -1;
    return cause;
}

static void fill_text(const control_job_t *job, const control_report_t *report, inspan_cause_t *cause)
{
    if (cause->text[0] != '\0') return;
    if (report->exit_signal != 0)
        snprintf(cause->text, sizeof cause->text, "worker killed by signal %d (%s)", report->exit_signal,
                 strsignal(report->exit_signal));
    else
        snprintf(cause->text, sizeof cause->text,
                 "worker exited with code %d; see `inspan logs %llu --rank %u`", report->exit_code,
                 (unsigned long long)job->id, report->rank);
}

inspan_cause_t control_cause_of(const control_job_t *job, const control_report_t *report)
{
    inspan_cause_t cause = reported_cause(report);
    if (cause.rank < 0) cause.rank = (int32_t)report->rank;
    fill_text(job, report, &cause);
    complete_cause(job, &cause);
    return cause;
}

static void take_blame(control_job_t *job, const control_report_t *report, const inspan_cause_t *blame,
                       ns_t now)
{
    inspan_cause_t cause = *blame;
    complete_cause(job, &cause);
    if (cause.noticed_by < 0) cause.noticed_by = (int32_t)report->rank;
    job->blame = cause;
    job->settle_at = now + job->limits.settle;
    control_settle(job, now, false);
}

void control_evidence_report(control_job_t *job, const control_report_t *report, ns_t now)
{
    if (job->state != CONTROL_STARTING && job->state != CONTROL_RUNNING) return;
    inspan_cause_t cause = reported_cause(report);
    if (is_root(report)) {
        fill_text(job, report, &cause);
        control_evidence_root(job, report->rank, &cause, now);
        return;
    }
    if (job->settle_at != 0) {
        control_settle(job, now, false);
        return;
    }
    take_blame(job, report, &cause, now);
}

void control_evidence_blame(control_job_t *job, const control_report_t *report, ns_t now)
{
    const bool running = job->state == CONTROL_STARTING || job->state == CONTROL_RUNNING;
    if (!running || job->settle_at != 0 || report->blame_view != job->view) return;
    take_blame(job, report, &report->blame, now);
}

static bool is_blamed(const control_report_t *reports, uint32_t n, uint32_t rank)
{
    for (uint32_t i = 0; i < n; i++)
        if (!is_root(&reports[i]) && reports[i].cause.rank == (int32_t)rank) return true;
    return false;
}

/* A root of a rank blamed, any root, the first blame: in one go, for a first root or blame would end the
 * search. */
static const control_report_t *best_evidence(const control_report_t *reports, uint32_t n)
{
    const control_report_t *best = n > 0 ? &reports[0] : NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_root(&reports[i])) continue;
        if (is_blamed(reports, n, reports[i].rank)) return &reports[i];
        if (!is_root(best)) best = &reports[i];
    }
    return best;
}

void control_job_recall(control_job_t *job, const control_report_t *reports, uint32_t n, ns_t now)
{
    if (job->elastic) { /* who is out is known from the states; only what repeats ends the job */
        for (uint32_t i = 0; i < n; i++) {
            if (reports[i].rank >= job->world) continue;
            const inspan_cause_t of = control_cause_of(job, &reports[i]);
            job->ranks[reports[i].rank].unsaved = control_is_unsaved(&reports[i], &of);
            if (control_job_member(job, reports[i].rank) && job->ranks[reports[i].rank].full &&
                reports[i].exit_signal == 0 && control_repeats(reports[i].cause.status)) {
                inspan_cause_t cause = control_cause_of(job, &reports[i]);
                if (job->state == CONTROL_STARTING || job->state == CONTROL_RUNNING)
                    verdict(job, &cause, now);
            }
        }
        control_views_move(job, now);
        return;
    }
    const control_report_t *best = best_evidence(reports, n);
    if (best == NULL || best->rank >= job->world) return;
    control_evidence_report(job, best, now);
    if (job->settle_at != 0 && valid_rank(job, job->blame.rank) && !job->ranks[job->blame.rank].attached)
        job->settle_at = now + job->limits.start; /* its agent is not back yet: it may know more */
}
