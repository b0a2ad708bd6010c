#include "core/control/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/control/job_internal.h"

void control_push(control_job_t *job, control_action_kind_t kind, uint32_t rank, bool kill)
{
    /* room was reserved at the start for all that one event can cause; growing is only the second line */
    (void)VEC_PUSH(&job->actions, (control_action_t){kind, rank, kill});
}

bool control_reserve(control_job_t *job, uint32_t world)
{
    return vec_grow((void **)&job->actions.items, &job->actions.capacity, 8 * (size_t)world + 32,
                    sizeof *job->actions.items);
}

inspan_status_t control_job_open(control_job_t *job, uint64_t id, const control_limits_t *limits)
{
    memset(job, 0, sizeof *job);
    job->id = id;
    job->limits = *limits;
    job->blame.rank = -1;
    return control_reserve(job, 0) ? INSPAN_OK : INSPAN_NO_MEMORY;
}

void control_job_close(control_job_t *job)
{
    free(job->ranks);
    vec_free(&job->actions);
    vec_free(&job->left_out);
    job->ranks = NULL;
    job->world = 0;
}

static inspan_status_t take_ranks(control_job_t *job, const control_rank_t *ranks, uint32_t world)
{
    control_rank_t *copy = malloc((world > 0 ? world : 1) * sizeof *copy);
    if (copy == NULL || !control_reserve(job, world)) {
        free(copy);
        return INSPAN_NO_MEMORY;
    }
    if (world > 0) memcpy(copy, ranks, world * sizeof *copy);
    job->ranks = copy;
    job->world = world;
    return INSPAN_OK;
}

void control_rank_fresh(control_rank_t *rank, ns_t until)
{
    rank->state = CONTROL_RANK_ASSIGNED;
    rank->port = 0;
    rank->pid = 0;
    rank->incarnation = 0;
    rank->attached = true;
    rank->alive = true;
    rank->full = rank->broke = rank->leaving = false;
    rank->blames = CONTROL_NO_BLAME;
    rank->view = 0;
    rank->until = until;
    rank->speed = 0;
    rank->why[0] = '\0';
}

inspan_status_t control_job_start(control_job_t *job, const control_rank_t *ranks, uint32_t world, ns_t now)
{
    uint32_t most = job->elastic ? CONTROL_ELASTIC_MAX : CONTROL_WORLD_MAX;
    if (job->state != CONTROL_QUEUED || world == 0 || world > most) return INSPAN_INVALID;
    inspan_status_t status = take_ranks(job, ranks, world);
    if (status != INSPAN_OK) return status;
    for (uint32_t r = 0; r < world; r++) control_rank_fresh(&job->ranks[r], now + job->limits.start);
    job->state = CONTROL_STARTING;
    job->reason[0] = '\0';
    job->deadline = now + job->limits.start;
    control_push(job, CONTROL_STORE, 0, false);
    control_push(job, CONTROL_CHANGED, 0, false);
    for (uint32_t r = 0; r < world; r++) control_push(job, CONTROL_START_WORKER, r, false);
    return INSPAN_OK;
}

inspan_status_t control_job_restore(control_job_t *job, control_state_t state, control_state_t outcome,
                                    const control_rank_t *ranks, uint32_t world, const control_view_t *view,
                                    ns_t now)
{
    inspan_status_t status = take_ranks(job, ranks, world);
    if (status != INSPAN_OK) return status;
    for (uint32_t r = 0; r < world; r++) {
        control_rank_t *rank = &job->ranks[r];
        rank->attached = rank->broke = false;
        rank->alive = rank->state != CONTROL_RANK_DONE && rank->state != CONTROL_RANK_FAILED;
        rank->blames = CONTROL_NO_BLAME;
    }
    job->state = state;
    job->outcome = outcome;
    if (view != NULL) {
        job->view = view->number;
        job->members = *view;
    }
    if (state == CONTROL_STARTING) job->deadline = now + job->limits.start;
    if (state == CONTROL_ENDING) job->deadline = now;
    if (job->elastic) control_views_restore(job, now);
    control_maybe_over(job, now); /* the last DONE was stored, the end of the job no more */
    return INSPAN_OK;
}

/* ---- The end ---- */

bool control_job_over(const control_job_t *job)
{
    return job->state == CONTROL_DONE || job->state == CONTROL_FAILED || job->state == CONTROL_CANCELLED;
}

static bool any_active(const control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (control_rank_active(&job->ranks[r])) return true;
    return false;
}

static bool any_alive(const control_job_t *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].alive) return true;
    return false;
}

bool control_job_quiet(const control_job_t *job)
{
    bool stops_sent = job->killed || job->state == CONTROL_DONE || job->world == 0;
    return control_job_over(job) && !any_alive(job) && !job->unstored && stops_sent;
}

bool control_job_holds(const control_job_t *job, uint64_t node)
{
    for (uint32_t r = 0; r < job->world; r++) {
        const control_rank_t *rank = &job->ranks[r];
        if (rank->node != node) continue;
        /* elastic: one that is out holds its node as long as its process exists */
        bool used = !control_job_over(job) && !(job->elastic && rank->state > CONTROL_RANK_RUNNING);
        if (rank->alive || used) return true;
    }
    return false;
}

void control_be_over(control_job_t *job, control_state_t state, ns_t now)
{
    job->state = state;
    job->deadline = now + job->limits.gone;
    control_push(job, CONTROL_STORE, 0, false);
    control_push(job, CONTROL_CHANGED, 0, false);
    control_push(job, CONTROL_ENDED, 0, false);
}

void control_maybe_over(control_job_t *job, ns_t now)
{
    if (job->state == CONTROL_ENDING) {
        if (!any_active(job)) control_be_over(job, job->outcome, now);
        return;
    }
    if (job->elastic) return; /* control_views_move */
    if (job->state != CONTROL_RUNNING && job->state != CONTROL_STARTING) return;
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].state != CONTROL_RANK_DONE) return;
    job->reason[0] = '\0';
    control_be_over(job, CONTROL_DONE, now);
}

static void stop_all(control_job_t *job, bool kill)
{
    /* also those that said FAILED: the agent knows best whether the process is gone */
    for (uint32_t r = 0; r < job->world; r++) {
        const control_rank_t *rank = &job->ranks[r];
        if (rank->attached && rank->state != CONTROL_RANK_DONE && (rank->alive || (kill && !job->elastic)))
            control_push(job, CONTROL_STOP_WORKER, r, kill);
    }
}

void control_end(control_job_t *job, control_state_t outcome, const char *reason, const inspan_cause_t *cause,
                 ns_t now)
{
    snprintf(job->reason, sizeof job->reason, "%s", reason);
    job->outcome = outcome;
    job->has_cause = cause != NULL;
    if (cause != NULL) job->cause = *cause;
    job->state = CONTROL_ENDING;
    job->settle_at = 0;
    job->killed = false;
    control_push(job, CONTROL_NOTE, 0, false);
    control_push(job, CONTROL_CHANGED, 0, false);
    if (outcome == CONTROL_CANCELLED) {
        job->deadline = now + job->limits.cancel;
        stop_all(job, false);
    } else {
        job->deadline = now + job->limits.leave;
        for (uint32_t r = 0; r < job->world; r++)
            if (cause != NULL && job->ranks[r].attached && control_rank_active(&job->ranks[r]))
                control_push(job, CONTROL_MEMBER_LOST, r, false);
    }
    control_maybe_over(job, now);
}

/* ---- Starting ---- */

static bool all_at_least(const control_job_t *job, control_rank_state_t state)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].state < state || job->ranks[r].state == CONTROL_RANK_FAILED) return false;
    return true;
}

static void advance_start(control_job_t *job)
{
    if (job->state != CONTROL_STARTING) return;
    if (job->view == 0 && all_at_least(job, CONTROL_RANK_BOUND)) {
        job->view = 1;
        control_push(job, CONTROL_STORE_VIEW, 0, false);
        control_push(job, CONTROL_CHANGED, 0, false);
        for (uint32_t r = 0; r < job->world; r++)
            if (job->ranks[r].state == CONTROL_RANK_BOUND) control_push(job, CONTROL_ANNOUNCE_VIEW, r, false);
    }
    if (job->view != 0 && all_at_least(job, CONTROL_RANK_READY)) {
        job->state = CONTROL_RUNNING;
        control_push(job, CONTROL_NOTE, 0, false);
        control_push(job, CONTROL_CHANGED, 0, false);
    }
}

void control_start_timed_out(control_job_t *job, ns_t now)
{
    static const char *const missing[] = {
        [CONTROL_RANK_ASSIGNED] = "its worker did not start",
        [CONTROL_RANK_STARTED] = "its worker did not bind a data port",
        [CONTROL_RANK_BOUND] = "its worker did not reach all others",
    };
    bool announced = job->elastic ? job->members.n > 0 : job->view != 0;
    control_rank_state_t needed = announced ? CONTROL_RANK_READY : CONTROL_RANK_BOUND;
    inspan_cause_t cause = {
        .status = INSPAN_TIMEOUT, .rank = -1, .noticed_by = -1, .waited_ns = job->limits.start};
    char text[CONTROL_REASON_MAX];
    int used = snprintf(text, sizeof text, "not started within %.0f s:", ns_to_s(job->limits.start));
    uint32_t told = 0;
    for (uint32_t r = 0; r < job->world && told < 4; r++) {
        const control_rank_t *rank = &job->ranks[r];
        if (rank->state >= needed || used >= (int)sizeof text) continue;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s rank %u on node %s (%s): %s",
                         told > 0 ? ";" : "", r, rank->node_name, rank->address, missing[rank->state]);
        if (told++ > 0) continue;
        cause.rank = (int32_t)r;
        snprintf(cause.node, sizeof cause.node, "%s", rank->node_name);
        snprintf(cause.address, sizeof cause.address, "%s", rank->address);
    }
    snprintf(cause.text, sizeof cause.text, "%.250s", text);
    control_end(job, CONTROL_FAILED, text, &cause, now);
}

/* ---- Events ---- */

/* A rank moves only forward, and only by word of the node that it was given to. */
static bool take_report(control_job_t *job, const control_report_t *report)
{
    if (report->rank >= job->world) return false;
    control_rank_t *rank = &job->ranks[report->rank];
    if (rank->node != report->node) return false;
    /* FAILED is said at once, while the process may still be ending: the agent then gives its pid */
    if (report->state == CONTROL_RANK_DONE) rank->alive = false;
    if (report->state == CONTROL_RANK_FAILED)
        rank->alive = report->pid != 0 && report->exit_signal == 0 && report->exit_code == 0;
    if (report->state <= rank->state || rank->state == CONTROL_RANK_DONE) return false;
    if (report->state == CONTROL_RANK_BOUND && report->port == 0) return false;
    rank->state = report->state;
    if (report->port != 0 && job->view == 0) {
        rank->port = report->port; /* what the view says is settled */
        rank->incarnation = report->incarnation;
    }
    if (report->pid != 0) rank->pid = report->pid;
    return true;
}

/* First the worker said that it failed, now its agent says how the process ended. */
static bool is_later_word(const control_job_t *job, const control_report_t *report)
{
    return job->settle_at != 0 && report->state == CONTROL_RANK_FAILED && report->rank < job->world &&
           job->ranks[report->rank].node == report->node &&
           job->ranks[report->rank].state == CONTROL_RANK_FAILED;
}

void control_job_report(control_job_t *job, const control_report_t *report, ns_t now)
{
    if (job->elastic) {
        control_views_report(job, report, now);
        control_views_move(job, now);
        return;
    }
    if (take_report(job, report)) {
        control_rank_state_t state = report->state;
        bool finished = state == CONTROL_RANK_DONE || state == CONTROL_RANK_FAILED;
        if (finished) control_push(job, CONTROL_NOTE_RANK, report->rank, false);
        control_push(job, CONTROL_CHANGED, report->rank, false);
        if (state == CONTROL_RANK_FAILED) control_evidence_report(job, report, now);
        advance_start(job);
        if (finished) control_settle(job, now, false);
    } else if (report->exit_signal != 0 && is_later_word(job, report)) {
        control_evidence_report(job, report, now);
    }
    if (report->has_blame) control_evidence_blame(job, report, now);
    if (job->state == CONTROL_RUNNING || job->state == CONTROL_ENDING) control_maybe_over(job, now);
}

static const control_report_t *find_report(const control_report_t *reports, uint32_t n, uint32_t rank)
{
    for (uint32_t i = 0; i < n; i++)
        if (reports[i].rank == rank) return &reports[i];
    return NULL;
}

static void rank_attached(control_job_t *job, uint32_t r, const control_report_t *report, ns_t now)
{
    control_rank_t *rank = &job->ranks[r];
    bool over = job->state == CONTROL_ENDING || control_job_over(job);
    rank->attached = true;
    if ((int32_t)r == job->blame.rank && job->settle_at > now + job->limits.settle)
        job->settle_at = now + job->limits.settle; /* recalled after a restart: now it can say more */
    if (report != NULL) {
        bool ended = report->state == CONTROL_RANK_DONE || report->state == CONTROL_RANK_FAILED;
        if (!ended) rank->alive = true;
        control_job_report(job, report, now);
        if (over && !ended) control_push(job, CONTROL_STOP_WORKER, r, true);
        if (job->state == CONTROL_STARTING && job->view != 0 && rank->state == CONTROL_RANK_BOUND)
            control_push(job, CONTROL_ANNOUNCE_VIEW, r,
                         false); /* the first may be lost with the old stream */
        return;
    }
    if (over || rank->state == CONTROL_RANK_DONE || rank->state == CONTROL_RANK_FAILED) {
        rank->alive = false;
        control_maybe_over(job, now);
    } else if (rank->state == CONTROL_RANK_ASSIGNED && job->view == 0) {
        control_push(job, CONTROL_START_WORKER, r, false); /* the order was lost with the old stream */
    } else {
        inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .noticed_by = -1};
        snprintf(cause.text, sizeof cause.text,
                 "the agent of node %s came back without its worker (agent restarted)", rank->node_name);
        rank->alive = false;
        rank->state = CONTROL_RANK_FAILED;
        control_push(job, CONTROL_NOTE_RANK, r, false);
        control_evidence_root(job, r, &cause, now);
    }
}

void control_job_node_attached(control_job_t *job, uint64_t node, const control_report_t *reports, uint32_t n,
                               ns_t now)
{
    const uint64_t view = job->view;
    for (uint32_t r = 0; r < job->world; r++) {
        if (job->ranks[r].node != node) continue;
        if (job->elastic)
            control_views_attached(job, r, find_report(reports, n, r), now);
        else
            rank_attached(job, r, find_report(reports, n, r), now);
    }
    if (!job->elastic) return;
    control_views_move(job, now);
    if (job->view == view) control_views_again(job, node);
}

void control_job_node_broke(control_job_t *job, uint64_t node)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (job->ranks[r].node == node) {
            job->ranks[r].attached = false;
            job->ranks[r].broke = true;
        }
}

void control_job_node_gone(control_job_t *job, uint64_t node, const char *text, ns_t now)
{
    for (uint32_t r = 0; r < job->world; r++) {
        control_rank_t *rank = &job->ranks[r];
        if (rank->node != node) continue;
        rank->attached = false;
        rank->alive = false;
        if (rank->state == CONTROL_RANK_DONE || rank->state == CONTROL_RANK_FAILED) continue;
        inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = (int32_t)r, .noticed_by = -1};
        snprintf(cause.text, sizeof cause.text, "node %s: %s", rank->node_name, text);
        if (job->elastic) {
            control_views_lost(job, r, &cause, now);
            continue;
        }
        rank->state = CONTROL_RANK_FAILED;
        control_push(job, CONTROL_CHANGED, r, false);
        control_evidence_root(job, r, &cause, now);
    }
    control_maybe_over(job, now);
    control_views_move(job, now);
}

void control_job_cancel(control_job_t *job, const char *text, ns_t now)
{
    if (job->state == CONTROL_QUEUED) {
        snprintf(job->reason, sizeof job->reason, "%s", text);
        control_be_over(job, CONTROL_CANCELLED, now);
    } else if (job->state == CONTROL_STARTING || job->state == CONTROL_RUNNING) {
        control_end(job, CONTROL_CANCELLED, text, NULL, now);
    }
}

static void tick_ending(control_job_t *job, ns_t now)
{
    if (now < job->deadline) return;
    if (!job->killed) {
        job->killed = true;
        job->deadline = now + job->limits.gone;
        stop_all(job, true);
        control_maybe_over(job, now);
        return;
    }
    control_be_over(job, job->outcome,
                    now); /* its processes are held against their nodes until they are gone */
}

/* The job is over; what is left is that its nodes get free. */
static void tick_over(control_job_t *job, ns_t now)
{
    if (now < job->deadline || !(any_alive(job) || (job->state != CONTROL_DONE && !job->killed))) return;
    /* who said FAILED, and was told to be killed, and still is not reported gone: its agent sees to that */
    for (uint32_t r = 0; r < job->world; r++)
        if (job->killed && job->ranks[r].state == CONTROL_RANK_FAILED) job->ranks[r].alive = false;
    job->killed = true;
    job->deadline = now + job->limits.gone;
    stop_all(job, true);
}

void control_job_tick(control_job_t *job, ns_t now)
{
    switch (job->state) {
    case CONTROL_QUEUED: break;
    case CONTROL_STARTING:
    case CONTROL_RUNNING:
        if (job->elastic) {
            control_views_tick(job, now);
            break;
        }
        control_settle(job, now, false);
        if (job->state == CONTROL_STARTING && now >= job->deadline) control_start_timed_out(job, now);
        break;
    case CONTROL_ENDING: tick_ending(job, now); break;
    case CONTROL_DONE:
    case CONTROL_FAILED:
    case CONTROL_CANCELLED:
        if (job->unstored && now >= job->retry_at) {
            job->unstored = false;
            control_push(job, CONTROL_STORE, 0, false);
            control_push(job, CONTROL_CHANGED, 0, false);
            control_push(job, CONTROL_ENDED, 0, false);
        }
        tick_over(job, now);
        break;
    }
}

void control_job_acted(control_job_t *job)
{
    job->actions.n = 0;
    job->growing = 0;
}

bool control_job_unstored(control_job_t *job, control_action_kind_t kind, const char *text, ns_t now)
{
    if (kind != CONTROL_STORE && kind != CONTROL_STORE_VIEW) return false;
    job->actions.n = 0;
    if (control_job_over(job)) {
        job->unstored = true; /* not told to anybody before it is stored */
        job->retry_at = now + NS_PER_S;
        return true;
    }
    if (job->elastic && (kind == CONTROL_STORE_VIEW || job->growing > 0)) {
        control_views_unstored(job, kind, now);
        return true;
    }
    char reason[CONTROL_REASON_MAX];
    snprintf(reason, sizeof reason, "the manager cannot write its registry: %.400s", text);
    if (kind == CONTROL_STORE && job->state == CONTROL_STARTING) job->world = 0; /* no worker was started */
    if (kind == CONTROL_STORE_VIEW) job->view--;
    control_end(job, CONTROL_FAILED, reason, NULL, now);
    return true;
}

const char *control_job_text(const control_job_t *job)
{
    if (job->unstored) return job->world == 0 ? "queued" : "running";
    return job->state == CONTROL_ENDING ? "running" : control_state_text(job->state);
}

const char *control_state_text(control_state_t state)
{
    static const char *const texts[] = {"queued", "starting", "running",  "ending",
                                        "done",   "failed",   "cancelled"};
    return texts[state];
}

const char *control_rank_state_text(control_rank_state_t state)
{
    static const char *const texts[] = {"assigned", "started", "bound", "ready",
                                        "running",  "left",    "done",  "failed"};
    return texts[state];
}
