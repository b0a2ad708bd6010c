/* Elastic jobs: members change from view to view. See "Elastic jobs" in job.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/control/job_internal.h"

#define VIEWS_MAX   ((uint64_t)1 << 62) /* no real number is near */
#define COUNT_EVERY NS_PER_S            /* a storm that takes many at once is one loss in a row */

bool control_job_member(const control_job_t *job, uint32_t rank)
{
    if (!job->elastic) return rank < job->world;
    for (uint32_t i = 0; i < job->members.n; i++)
        if (job->members.members[i] == rank) return true;
    return false;
}

uint32_t control_job_active(const control_job_t *job)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < job->world; r++) n += !control_is_gone(&job->ranks[r]);
    return n;
}

bool control_any_done(const control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].state == CONTROL_RANK_DONE) return true;
    return false;
}

bool control_repeats(inspan_status_t status)
{
    switch (status) {
    case INSPAN_INVALID:
    case INSPAN_UNSUPPORTED:
    case INSPAN_CORRUPT:
    case INSPAN_MISMATCH:
    case INSPAN_NOT_FOUND:
    case INSPAN_VERSION:
    case INSPAN_AUTH: return true;
    default: return false;
    }
}

void control_job_elastic(control_job_t *job, uint32_t min_nodes, uint32_t max_nodes)
{
    job->elastic = true;
    job->max_nodes = max_nodes < CONTROL_ELASTIC_MAX ? max_nodes : CONTROL_ELASTIC_MAX;
    job->min_nodes = min_nodes > 0 ? min_nodes : 1;
    if (job->max_nodes < job->min_nodes) job->max_nodes = job->min_nodes;
    job->limits.settle = CONTROL_SETTLE_ELASTIC;
}

/* ---- News: "lost worker 2 on node b (killed by signal 9)" */

void control_append_news(control_job_t *job, const char *text)
{
    size_t used = strlen(job->pending);
    snprintf(job->pending + used, sizeof job->pending - used, "%s%s", used > 0 ? "; " : "", text);
}

static void news_of(control_job_t *job, uint32_t r, const char *before, const char *after, const char *why)
{
    char text[INSPAN_NAME_MAX + 240];
    snprintf(text, sizeof text, "%sworker %u on node %s%s%s%s%s", before, r, job->ranks[r].node_name, after,
             why[0] != '\0' ? " (" : "", why, why[0] != '\0' ? ")" : "");
    control_append_news(job, text);
}

/* What is said before it already: whose worker, which node. */
static const char *short_text(const control_rank_t *rank, const char *text)
{
    char node[INSPAN_NAME_MAX + 16];
    int length = snprintf(node, sizeof node, "node %s: ", rank->node_name);
    if (strncmp(text, node, (size_t)length) == 0) return text + length;
    length = snprintf(node, sizeof node, " on node %s", rank->node_name);
    const char *at = strncmp(text, "worker of rank ", 15) == 0 ? strstr(text, node) : NULL;
    if (at != NULL) return at + length + strspn(at + length, ": ");
    return strncmp(text, "worker ", 7) == 0 ? text + 7 : text;
}

static void tell(control_job_t *job, const char *outcome)
{
    int used = snprintf(job->news, sizeof job->news, "%.380s%s", job->pending,
                        job->pending[0] != '\0' && outcome[0] != '\0' ? "; " : "");
    snprintf(job->news + used, sizeof job->news - (size_t)used, "%s", outcome);
    job->pending[0] = '\0';
    control_push(job, CONTROL_TELL, 0, false);
    control_push(job, CONTROL_CHANGED, 0, false);
}

/* ---- Taking workers out */

static void take_out(control_job_t *job, uint32_t r, control_rank_state_t state, const char *why, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    rank->state = state;
    rank->blames = CONTROL_NO_BLAME;
    rank->until = now + job->limits.gone;
    snprintf(rank->why, sizeof rank->why, "%.150s", short_text(rank, why));
    if (rank->alive && rank->attached) control_push(job, CONTROL_STOP_WORKER, r, true);
}

void control_count_loss(control_job_t *job, int32_t r, const inspan_cause_t *cause, ns_t now)
{
    if (job->in_a_row > 0 && now - job->counted_at < COUNT_EVERY) return;
    job->counted_at = now;
    if (++job->in_a_row < job->limits.in_a_row) return;
    char what[CONTROL_REASON_MAX], text[CONTROL_REASON_MAX];
    inspan_cause_t last = *cause;
    if (last.rank < 0) last.rank = r;
    control_describe(&last, what, sizeof what);
    snprintf(text, sizeof text,
             "%u failures in a row without a committed step between them, the last: %.400s", job->in_a_row,
             what);
    control_end(job, CONTROL_FAILED, text, &last, now);
}

void control_views_lost(control_job_t *job, uint32_t r, const inspan_cause_t *cause, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    if (control_is_gone(rank)) return;
    if (!control_is_open(job)) { /* it ends anyway */
        rank->state = CONTROL_RANK_FAILED;
        control_push(job, CONTROL_NOTE_RANK, r, false);
        control_push(job, CONTROL_CHANGED, r, false);
        return;
    }
    bool newcomer = job->members.n > 0 && !control_job_member(job, r);
    take_out(job, r, CONTROL_RANK_FAILED,
             cause->text[0] != '\0' ? cause->text : inspan_status_text(cause->status), now);
    control_push(job, CONTROL_NOTE_RANK, r, false);
    control_push(job, CONTROL_LOST_WORKER, r, false);
    control_push(job, CONTROL_CHANGED, r, false);
    if (newcomer) return; /* it never was in a view: nobody else notices */
    job->workers_lost++;
    job->changed = true;
    news_of(job, r, "lost ", "", rank->why);
    control_count_loss(job, (int32_t)r, cause, now);
}

/* ---- Issuing */

static void forget_blames(control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++) job->ranks[r].blames = CONTROL_NO_BLAME;
    job->settle_at = 0;
}

/* Those that handed over their work are not needed any more. */
static void dismiss_left(control_job_t *job, ns_t now)
{
    for (uint32_t r = 0; r < job->world; r++) {
        control_rank_t *rank = &job->ranks[r];
        if (rank->state != CONTROL_RANK_LEFT || rank->until != 0) continue;
        rank->until = now + job->limits.cancel;
        if (rank->alive && rank->attached) control_push(job, CONTROL_STOP_WORKER, r, false);
    }
}

static void issue(control_job_t *job, const control_view_t *next, const char *outcome, ns_t now)
{
    if (job->last_view < job->view) job->last_view = job->view;
    job->before = job->members;
    job->members = *next;
    job->members.number = job->view = ++job->last_view; /* one that could not be stored is not used again */
    forget_blames(job);
    job->changed = job->retry = job->waiting = false;
    job->join_at = job->stuck_at = 0;
    job->issued_at = now;
    job->reason[0] = '\0';
    if (job->state == CONTROL_STARTING) job->deadline = now + job->limits.start;
    for (uint32_t i = 0; i < next->n && next->first; i++) job->ranks[next->members[i]].full = true;
    control_push(job, CONTROL_STORE_VIEW, 0, false);
    for (uint32_t i = 0; i < next->n; i++)
        if (job->ranks[next->members[i]].attached)
            control_push(job, CONTROL_ANNOUNCE_VIEW, next->members[i], false);
    tell(job, outcome);
    dismiss_left(job, now);
}

void control_views_unstored(control_job_t *job, control_action_kind_t kind, ns_t now)
{
    if (kind == CONTROL_STORE) { /* workers that were not started */
        job->world -= job->growing;
        job->growing = 0;
        return;
    }
    bool fence = job->members.n == 0;
    job->members = job->before;
    job->view = job->before.number;
    job->changed = !fence && job->view > 0 && job->members.n > 0;
    job->fence = fence;
    job->again_at = now + NS_PER_S;
    job->news[0] = '\0';
}

/* Members only: who has just been started, or has not joined yet, has nothing to say. */
static bool any_member_active(const control_job_t *job)
{
    for (uint32_t i = 0; i < job->members.n; i++)
        if (!control_is_gone(&job->ranks[job->members.members[i]])) return true;
    return false;
}

static bool be_done(control_job_t *job, ns_t now)
{
    bool done = control_any_done(job), alone = !any_member_active(job);
    if (!(job->has_result && (done || alone)) && !(done && alone)) return false;
    if (job->done_at == 0) job->done_at = now;
    if (!alone && now < job->done_at + CONTROL_STRAGGLERS) return true; /* their summaries are on their way */
    job->reason[0] = '\0';
    for (uint32_t r = 0; r < job->world; r++)
        if (!control_is_gone(&job->ranks[r]) && job->ranks[r].alive && job->ranks[r].attached)
            control_push(job, CONTROL_STOP_WORKER, r, false);
    control_be_over(job, CONTROL_DONE, now);
    return true;
}

/* Nobody that is left has the whole model: P2. */
static void new_lineage(control_job_t *job, ns_t now)
{
    static const control_view_t none = {0};
    for (uint32_t r = 0; r < job->world; r++)
        if (!control_is_gone(&job->ranks[r]))
            take_out(job, r, CONTROL_RANK_FAILED, "no member with the whole model was left", now);
    job->fence = false;
    if (be_done(job, now)) return; /* all that was left to do was done */
    issue(job, &none, "no member with the whole model is left: starts again from the last checkpoint", now);
    job->state = CONTROL_STARTING;
    control_push(job, CONTROL_NOTE, 0, false);
}

static void wait_for_nodes(control_job_t *job, uint32_t n, ns_t now)
{
    char text[64];
    snprintf(text, sizeof text, "waits for nodes: %u of %u", n, job->min_nodes);
    forget_blames(job);
    job->waiting = true;
    dismiss_left(job, now);
    if (strcmp(text, job->reason) == 0) return;
    snprintf(job->reason, sizeof job->reason, "%s", text);
    control_push(job, CONTROL_NOTE, 0, false);
    tell(job, text);
}

/* ---- The first view of a lineage */

static void did_not_start(control_job_t *job, uint32_t r, ns_t now)
{
    inspan_cause_t cause = {.status = INSPAN_TIMEOUT, .rank = (int32_t)r, .noticed_by = -1};
    snprintf(cause.text, sizeof cause.text, "it did not start within %.0f s", ns_to_s(job->limits.start));
    control_views_lost(job, r, &cause, now);
}

static void late_starters(control_job_t *job, uint32_t bound, ns_t now)
{
    bool late = false;
    for (uint32_t r = 0; r < job->world; r++) {
        const control_rank_t *rank = &job->ranks[r];
        late = late || (!control_is_gone(rank) && rank->state < CONTROL_RANK_BOUND && now >= rank->until);
    }
    if (!late) return;
    if (job->view == 0 && bound < job->min_nodes) {
        control_start_timed_out(job, now);
        return;
    }
    for (uint32_t r = 0; r < job->world && control_is_open(job); r++) {
        const control_rank_t *rank = &job->ranks[r];
        if (control_is_gone(rank) || rank->state >= CONTROL_RANK_BOUND || now < rank->until) continue;
        did_not_start(job, r, now);
    }
}

static void gather(control_job_t *job, ns_t now)
{
    uint32_t bound = 0;
    for (uint32_t r = 0; r < job->world; r++)
        bound += !control_is_gone(&job->ranks[r]) && job->ranks[r].state >= CONTROL_RANK_BOUND;
    late_starters(job, bound, now);
    if (!control_is_open(job)) return;
    control_view_t next = {.first = true};
    for (uint32_t r = 0; r < job->world; r++)
        if (!control_is_gone(&job->ranks[r]) && next.n < CONTROL_WORLD_MAX) next.members[next.n++] = r;
    if (next.n < job->min_nodes) {
        wait_for_nodes(job, next.n, now);
        return;
    }
    if (bound < next.n || now < job->again_at) return;
    char text[64];
    snprintf(text, sizeof text, "%u member%s", next.n, next.n == 1 ? "" : "s");
    issue(job, &next, text, now);
}

/* ---- Joining */

static bool joins(const control_job_t *job, uint32_t r)
{
    return !control_is_gone(&job->ranks[r]) && !control_job_member(job, r);
}

/* Newcomers rank after all members: one that is BOUND waits for a lower number that is not yet. */
static void add_newcomers(const control_job_t *job, control_view_t *next)
{
    for (uint32_t r = 0; r < job->world && next->n < job->max_nodes; r++) {
        if (!joins(job, r)) continue;
        if (job->ranks[r].state < CONTROL_RANK_BOUND) return;
        next->members[next->n++] = r;
    }
}

static void drop_late_newcomers(control_job_t *job, ns_t now)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (!joins(job, r) || job->ranks[r].state >= CONTROL_RANK_BOUND || now < job->ranks[r].until)
            continue;
        did_not_start(job, r, now);
    }
}

static bool view_is_open(const control_job_t *job)
{
    for (uint32_t i = 0; i < job->members.n; i++)
        if (job->ranks[job->members.members[i]].view != job->view) return false;
    return true;
}

static bool join_due(control_job_t *job, ns_t now)
{
    control_view_t newcomers = {0};
    add_newcomers(job, &newcomers);
    if (newcomers.n == 0 || job->has_result) return false;
    if (job->join_at == 0) job->join_at = now + job->limits.settle; /* others may be about to bind, too */
    if (now < job->join_at) return false;
    bool open = job->state == CONTROL_RUNNING && view_is_open(job);
    return open || now - job->issued_at >= job->limits.opened;
}

/* ---- The next view */

/* Nobody who is left is known to have the whole model. That one has may still be on its way here: a newcomer
 * has just become full, or the agents have not all come back to a manager that was away. */
static bool nobody_has_it(control_job_t *job, const control_view_t *left, ns_t now)
{
    for (uint32_t i = 0; i < left->n; i++)
        if (!job->ranks[left->members[i]].attached) return false; /* it comes back, or is lost */
    if (job->stuck_at == 0) job->stuck_at = now;
    return left->n == 0 || now - job->stuck_at >= job->limits.settle;
}

static void issue_next(control_job_t *job, ns_t now)
{
    control_view_t next = {0};
    bool full = false;
    for (uint32_t i = 0; i < job->members.n; i++) {
        uint32_t r = job->members.members[i];
        if (control_is_gone(&job->ranks[r])) continue;
        full = full || job->ranks[r].full;
        next.members[next.n++] = r;
    }
    if (!full) {
        if (nobody_has_it(job, &next, now)) new_lineage(job, now);
        return;
    }
    job->stuck_at = 0;
    uint32_t old = next.n;
    add_newcomers(job, &next);
    if (next.n < job->min_nodes && !job->has_result) { /* once it is there, who is left may end it */
        wait_for_nodes(job, next.n, now);
        return;
    }
    for (uint32_t i = old; i < next.n; i++) news_of(job, next.members[i], "", " joins", "");
    char text[64];
    const char *how = next.n > old ? "" : job->changed ? " go on" : " connect again";
    snprintf(text, sizeof text, "%u member%s%s", next.n, next.n == 1 ? "" : "s",
             next.n == 1 && next.n == old ? (job->changed ? " goes on" : " connects again") : how);
    issue(job, &next, text, now);
}

/* ---- Leaving */

static void leave(control_job_t *job, uint32_t r, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    if (control_job_member(job, r)) {
        rank->state = CONTROL_RANK_LEFT;
        rank->until = 0; /* stopped when the view without it is out */
        job->changed = true;
        news_of(job, r, "", " left", rank->why);
    } else {
        take_out(job, r, CONTROL_RANK_LEFT, "left before it had joined", now);
        if (job->members.n == 0) news_of(job, r, "", " left", "");
    }
    control_push(job, CONTROL_NOTE_RANK, r, false);
    control_push(job, CONTROL_CHANGED, r, false);
}

/* Does a member besides r have all weights? */
static bool another_is_full(const control_job_t *job, uint32_t r)
{
    for (uint32_t i = 0; i < job->members.n; i++) {
        uint32_t other = job->members.members[i];
        if (other != r && job->ranks[other].full && !control_is_gone(&job->ranks[other])) return true;
    }
    return false;
}

/* G3. That another member has become full may be heard later than LEFT: the leaver waits for that word. */
static void leavers_go(control_job_t *job, ns_t now)
{
    for (uint32_t i = 0; i < job->members.n; i++) {
        uint32_t r = job->members.members[i];
        const control_rank_t *rank = &job->ranks[r];
        if (control_is_gone(rank) || rank->left_view != job->view) continue;
        if (!rank->full || another_is_full(job, r)) leave(job, r, now);
    }
}

/* STARTING: its first view is announced. */
static void watch_opening(control_job_t *job, ns_t now)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; i < job->members.n; i++)
        ready += job->ranks[job->members.members[i]].state >= CONTROL_RANK_READY;
    if (ready == job->members.n) {
        job->state = CONTROL_RUNNING;
        control_push(job, CONTROL_NOTE, 0, false);
        control_push(job, CONTROL_CHANGED, 0, false);
        return;
    }
    if (now < job->deadline) return;
    if (ready == 0) {
        control_start_timed_out(job, now);
        return;
    }
    for (uint32_t i = 0; i < job->members.n && control_is_open(job); i++) {
        uint32_t r = job->members.members[i];
        if (job->ranks[r].state >= CONTROL_RANK_READY) continue;
        inspan_cause_t cause = {.status = INSPAN_TIMEOUT, .rank = (int32_t)r, .noticed_by = -1};
        snprintf(cause.text, sizeof cause.text, "its worker did not reach all others within %.0f s",
                 ns_to_s(job->limits.start));
        control_views_lost(job, r, &cause, now);
    }
}

void control_views_move(control_job_t *job, ns_t now)
{
    if (!job->elastic || !control_is_open(job) || be_done(job, now)) return;
    if (job->fence && now < job->again_at) return;
    if (job->fence) {
        new_lineage(job, now);
        return;
    }
    if (job->members.n == 0) {
        gather(job, now);
        return;
    }
    drop_late_newcomers(job, now);
    leavers_go(job, now);
    if (job->settle_at != 0 && !job->changed && now >= job->settle_at) control_weigh_blames(job, now);
    if (control_is_open(job) && job->state == CONTROL_STARTING && !job->changed && !job->retry)
        watch_opening(job, now);
    if (!control_is_open(job) || control_any_done(job)) return;
    if (now < job->again_at || !(job->changed || job->retry || join_due(job, now))) return;
    issue_next(job, now);
}

/* ---- Events */

static void heard(control_job_t *job, uint32_t r, const control_report_t *report)
{
    control_rank_t *rank = &job->ranks[r];
    if (report->view > rank->view) rank->view = report->view;
    if (report->view > job->last_view && report->view < VIEWS_MAX &&
        control_job_member(job, r)) { /* an old copy of the registry was put back */
        job->last_view = report->view;
        job->changed = true;
    }
    if (report->speed > 0) rank->speed = report->speed;
    if (report->steps > 0) job->steps = report->steps;
    if (report->step > job->step) {
        job->step = report->step;
        job->in_a_row = 0;
        job->retried = false;
    }
    if (!report->full || rank->full || !control_job_member(job, r)) return;
    rank->full = true;
    control_push(job, CONTROL_NOTE_RANK, r, false); /* a restarted manager must know it */
}

static void ended(control_job_t *job, const control_report_t *report, ns_t now)
{
    const control_rank_t *rank = &job->ranks[report->rank];
    inspan_cause_t cause = control_cause_of(job, report);
    bool starts_fresh = job->members.n > 0 && !(control_job_member(job, report->rank) && rank->full);
    if (control_is_open(job) && report->has_cause && report->exit_signal == 0 &&
        control_repeats(cause.status) && !starts_fresh) {
        char text[CONTROL_REASON_MAX];
        job->ranks[report->rank].state = CONTROL_RANK_FAILED;
        control_push(job, CONTROL_NOTE_RANK, report->rank, false);
        control_describe(&cause, text, sizeof text);
        control_end(job, CONTROL_FAILED, text, &cause, now);
        return;
    }
    if (control_is_open(job) && control_is_unsaved(report, &cause) &&
        control_saving_failed(job, report->rank, &cause, now))
        return;
    control_views_lost(job, report->rank, &cause, now);
}

static void move_rank(control_job_t *job, const control_report_t *report, ns_t now)
{
    control_rank_t *rank = &job->ranks[report->rank];
    control_rank_state_t state = report->state;
    if (state == CONTROL_RANK_FAILED) {
        ended(job, report, now);
        return;
    }
    if (state == CONTROL_RANK_LEFT) { /* a wish only: leavers_go */
        if (report->left_view > rank->left_view) rank->left_view = report->left_view;
        state = CONTROL_RANK_RUNNING;
    }
    if (state <= rank->state || (state == CONTROL_RANK_BOUND && report->port == 0)) return;
    if (rank->state < CONTROL_RANK_BOUND && state >= CONTROL_RANK_BOUND) {
        if (report->port == 0) return; /* it cannot be reached: BOUND is due still */
        rank->port = report->port;
        rank->incarnation = report->incarnation;
    }
    rank->state = state;
    if (state == CONTROL_RANK_DONE) control_push(job, CONTROL_NOTE_RANK, report->rank, false);
    control_push(job, CONTROL_CHANGED, report->rank, false);
}

void control_views_report(control_job_t *job, const control_report_t *report, ns_t now)
{
    if (report->rank >= job->world || job->ranks[report->rank].node != report->node) return;
    control_rank_t *rank = &job->ranks[report->rank];
    bool was_alive = rank->alive;
    if (report->pid != 0) rank->pid = report->pid;
    if (report->state == CONTROL_RANK_DONE) rank->alive = false;
    if (report->state == CONTROL_RANK_FAILED)
        rank->alive = report->pid != 0 && report->exit_signal == 0 && report->exit_code == 0;
    if (!control_is_gone(rank)) {
        heard(job, report->rank, report);
        move_rank(job, report, now);
        if (control_is_open(job)) control_take_blame(job, report, now);
    }
    if (was_alive && !rank->alive) control_push(job, CONTROL_CHANGED, report->rank, false);
    if (job->state == CONTROL_ENDING) control_maybe_over(job, now);
}

static void there_again(control_job_t *job, uint32_t r, const control_report_t *report, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    bool ended = report->state == CONTROL_RANK_DONE || report->state == CONTROL_RANK_FAILED;
    if (!ended) rank->alive = true;
    control_views_report(job, report, now);
    if (ended) return;
    if (!control_is_open(job) || (control_is_gone(rank) && rank->until != 0)) {
        rank->until = now + job->limits.gone;
        control_push(job, CONTROL_STOP_WORKER, r, true);
    } else if (control_job_member(job, r) && !control_is_gone(rank) && rank->leaving) {
        control_push(job, CONTROL_ASK_TO_LEAVE, r, false);
    }
}

void control_views_attached(control_job_t *job, uint32_t r, const control_report_t *report, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    rank->attached = true;
    rank->broke = false;
    if (report != NULL) {
        there_again(job, r, report, now);
        return;
    }
    if (!control_is_open(job) || control_is_gone(rank)) {
        rank->alive = false;
        control_push(job, CONTROL_CHANGED, r, false);
        control_maybe_over(job, now);
    } else if (rank->state == CONTROL_RANK_ASSIGNED) {
        rank->until = now + job->limits.start;
        control_push(job, CONTROL_START_WORKER, r, false); /* the order was lost with the old stream */
    } else {
        inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = (int32_t)r, .noticed_by = -1};
        rank->alive = false;
        snprintf(cause.text, sizeof cause.text,
                 "the agent of node %s came back without its worker (agent restarted)", rank->node_name);
        control_views_lost(job, r, &cause, now);
    }
}

/* The last announcement may be lost with the old stream. */
void control_views_again(control_job_t *job, uint64_t node)
{
    for (uint32_t r = 0; r < job->world && control_is_open(job); r++)
        if (job->ranks[r].node == node && control_job_member(job, r) && !control_is_gone(&job->ranks[r]))
            control_push(job, CONTROL_ANNOUNCE_VIEW, r, false);
}

/* What is out and still there is killed again and again: its node is held until it is gone. */
void control_views_tick(control_job_t *job, ns_t now)
{
    for (uint32_t r = 0; r < job->world; r++) {
        control_rank_t *rank = &job->ranks[r];
        if (!control_is_out(rank) || !rank->alive || !rank->attached || rank->until == 0 || now < rank->until)
            continue;
        rank->until = now + job->limits.gone;
        control_push(job, CONTROL_STOP_WORKER, r, true);
    }
    control_views_move(job, now);
}

void control_views_restore(control_job_t *job, ns_t now)
{
    job->last_view = job->view;
    job->issued_at = now;
    job->deadline = now + job->limits.start;
    for (uint32_t r = 0; r < job->world; r++) {
        control_rank_t *rank = &job->ranks[r];
        bool member = control_job_member(job, r);
        rank->until = now + job->limits.start;
        rank->full = member && (rank->full || job->members.first);
        if (control_is_out(rank)) rank->until = now;
        if (!member || !control_is_out(rank)) continue;
        job->changed = true; /* the view without it was not stored any more */
        news_of(job, r, rank->state == CONTROL_RANK_LEFT ? "" : "lost ",
                rank->state == CONTROL_RANK_LEFT ? " left" : "", "");
    }
}

/* ---- Growing, leaving, the result */

uint32_t control_job_wants(const control_job_t *job)
{
    if (!job->elastic || !control_is_open(job) || job->has_result || job->fence || control_any_done(job))
        return 0;
    uint32_t active = control_job_active(job);
    if (active >= job->max_nodes || job->world >= CONTROL_RANKS_MAX) return 0;
    if (active >= job->min_nodes) {
        if (job->state != CONTROL_RUNNING || job->members.n == 0) return 0;
        if (job->steps > 0 && job->step + CONTROL_STEPS_NEAR > job->steps) return 0;
    }
    uint32_t wanted = job->max_nodes - active, room = CONTROL_RANKS_MAX - job->world;
    return wanted < room ? wanted : room;
}

inspan_status_t control_job_grow(control_job_t *job, const control_rank_t *from, ns_t now)
{
    if (control_job_wants(job) == 0 || control_job_holds(job, from->node) ||
        control_job_avoids(job, from->node, now))
        return INSPAN_INVALID;
    control_rank_t *ranks = realloc(job->ranks, ((size_t)job->world + 1) * sizeof *ranks);
    if (ranks == NULL) return INSPAN_NO_MEMORY;
    job->ranks = ranks;
    if (!control_reserve(job, job->world + 1)) return INSPAN_NO_MEMORY;
    control_rank_t *rank = &ranks[job->world];
    *rank = *from;
    control_rank_fresh(rank, now + job->limits.start);
    job->growing++;
    control_push(job, CONTROL_STORE, 0, false);
    control_push(job, CONTROL_START_WORKER, job->world++, false);
    control_push(job, CONTROL_CHANGED, 0, false);
    return INSPAN_OK;
}

void control_job_leave(control_job_t *job, uint64_t node, ns_t now)
{
    if (!job->elastic || !control_is_open(job)) return;
    for (uint32_t r = 0; r < job->world; r++) {
        control_rank_t *rank = &job->ranks[r];
        if (rank->node != node || control_is_gone(rank)) continue;
        rank->leaving = true;
        if (!control_job_member(job, r))
            leave(job, r, now);
        else if (rank->attached)
            control_push(job, CONTROL_ASK_TO_LEAVE, r, false);
    }
    control_views_move(job, now);
}

void control_job_result(control_job_t *job, ns_t now)
{
    job->has_result = true;
    control_views_move(job, now);
}
