#include "core/control/views_world_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint32_t node_of(const world_t *w, uint32_t rank)
{
    return (uint32_t)w->job.ranks[rank].node - 10;
}

static bool is_out(control_rank_state_t state)
{
    return state == CONTROL_RANK_FAILED || state == CONTROL_RANK_LEFT;
}

control_report_t report_of(const world_t *w, uint32_t rank, control_rank_state_t state)
{
    const process_t *process = &w->processes[node_of(w, rank)];
    return (control_report_t){.node = w->job.ranks[rank].node,
                              .rank = rank,
                              .state = state,
                              .port = state >= CONTROL_RANK_BOUND ? (uint16_t)(7500 + rank) : 0,
                              .pid = 1000 + rank,
                              .incarnation = 7,
                              .view = process->rank == rank ? process->view : 0,
                              .full = process->rank == rank && process->full,
                              .left_view = process->rank == rank ? process->view : 0};
}

/* ---- Carrying out actions */

static void check_view(world_t *w)
{
    const control_view_t *view = &w->job.members;
    assert_int_equal(view->number, w->job.view);
    assert_true(view->number > w->highest); /* I3 */
    assert_true(view->n == 0 || ((view->n >= w->min || w->job.has_result) && view->n <= w->max));
    if (view->first) assert_int_equal(w->told.n, 0);
    for (uint32_t i = 0; i < view->n; i++) {
        uint32_t r = view->members[i];
        if (i > 0) assert_true(r > view->members[i - 1]);
        assert_false(w->was_out[r] || is_out(w->job.ranks[r].state));
        assert_true(w->job.ranks[r].state >= CONTROL_RANK_BOUND);
        bool member = false;
        for (uint32_t k = 0; k < w->told.n; k++) member = member || w->told.members[k] == r;
        if (!member && w->told.n > 0) /* a newcomer ranks after all members */
            assert_true(r > w->told.members[w->told.n - 1]);
    }
}

static void keep_ranks(world_t *w)
{
    w->stored.world = w->job.world;
    memcpy(w->stored.ranks, w->job.ranks, w->job.world * sizeof *w->job.ranks);
    for (uint32_t r = 0; r < w->job.world; r++)
        w->was_out[r] = w->was_out[r] || is_out(w->job.ranks[r].state);
}

static bool store(world_t *w, const control_action_t *action)
{
    if (w->fail_stores) {
        if (action->kind == CONTROL_STORE_VIEW &&
            w->job.view % 2 != 0) { /* failed, they say, but it is there */
            w->stored.view = w->job.members;
            w->highest = w->job.view;
            keep_ranks(w);
        }
        return !control_job_unstored(&w->job, action->kind, "disk full", w->now);
    }
    if (action->kind == CONTROL_NOTE_RANK) {
        assert_true(action->rank < w->stored.world);
        w->stored.ranks[action->rank] = w->job.ranks[action->rank];
        return true;
    }
    if (action->kind == CONTROL_STORE_VIEW) {
        check_view(w);
        w->stored.view = w->told = w->job.members;
        w->highest = w->job.view;
    } else {
        w->stored.state = w->job.state;
        w->stored.outcome = w->job.outcome;
    }
    keep_ranks(w);
    return true;
}

static void start_worker(world_t *w, uint32_t r)
{
    uint32_t node = node_of(w, r);
    assert_true(r < w->stored.world); /* its number is stored before it is used */
    assert_int_equal(w->ended, 0);
    if (!w->attached[node]) return;
    if (w->processes[node].exists) assert_int_equal(w->processes[node].rank, r); /* never two on a node */
    if (w->processes[node].exists) return;
    assert_false(w->was_out[r]);
    w->processes[node] = (process_t){.exists = true, .rank = r, .state = CONTROL_RANK_ASSIGNED};
    w->starts[r]++;
}

static void announce(world_t *w, uint32_t r)
{
    assert_int_equal(w->told.number, w->job.view); /* stored before it is announced */
    assert_true(control_job_member(&w->job, r));
    assert_false(is_out(w->job.ranks[r].state));
    assert_false(control_job_over(&w->job));
    w->announces[r]++;
    process_t *process = &w->processes[node_of(w, r)];
    if (w->attached[node_of(w, r)] && process->exists && process->rank == r && process->view < w->job.view) {
        process->view = w->job.view;
        if (process->state == CONTROL_RANK_LEFT) process->state = CONTROL_RANK_RUNNING; /* G3 */
        if (w->job.members.first) process->full = true;
    }
}

static void stop_worker(world_t *w, uint32_t r, bool kill)
{
    uint32_t node = node_of(w, r);
    process_t *process = &w->processes[node];
    w->stops[r]++;
    w->kills[r] += kill;
    if (w->attached[node] && process->exists && process->rank == r) process->exists = false;
}

static bool act_once(world_t *w, const control_action_t *action)
{
    uint32_t r = action->rank;
    switch (action->kind) {
    case CONTROL_STORE:
    case CONTROL_NOTE:
    case CONTROL_NOTE_RANK:
    case CONTROL_STORE_VIEW: return store(w, action);
    case CONTROL_START_WORKER: start_worker(w, r); break;
    case CONTROL_ANNOUNCE_VIEW: announce(w, r); break;
    case CONTROL_STOP_WORKER: stop_worker(w, r, action->kill); break;
    case CONTROL_ASK_TO_LEAVE:
        w->asked[r]++;
        w->processes[node_of(w, r)].leaving = true;
        break;
    case CONTROL_LOST_WORKER: w->lost[r]++; break;
    case CONTROL_TELL: snprintf(w->news, sizeof w->news, "%s", w->job.news); break;
    case CONTROL_MEMBER_LOST:
    case CONTROL_CHANGED: break;
    case CONTROL_ENDED:
        assert_true(control_job_over(&w->job));
        assert_int_equal(w->stored.state, w->job.state);
        w->ended++;
        assert_int_equal(w->ended, 1);
        break;
    }
    return true;
}

void restart(world_t *w)
{
    w->crash_after = -1;
    control_job_close(&w->job);
    assert_int_equal(control_job_open(&w->job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_job_elastic(&w->job, w->min, w->max);
    const control_view_t *view = w->stored.view.number > 0 ? &w->stored.view : NULL;
    assert_int_equal(control_job_restore(&w->job, w->stored.state, w->stored.outcome, w->stored.ranks,
                                         w->stored.world, view, w->now),
                     INSPAN_OK);
    /* who asks is told as it is; an end that follows from what was stored is told yet */
    if (control_job_over(&w->job) && w->stored.state == w->job.state) w->ended = 1;
    if (w->stored.result) control_job_result(&w->job, w->now);
    w->told = w->stored.view;
    bool was[NODES];
    memcpy(was, w->attached, sizeof was);
    memset(w->attached, 0, sizeof w->attached);
    memset(w->known, 0, sizeof w->known);
    w->crash_after = -1;
    for (uint32_t node = 0; node < NODES; node++)
        if (was[node]) attach(w, node);
}

void act(world_t *w)
{
    while (w->job.actions.n > 0) {
        bool whole = true;
        for (size_t i = 0; i < w->job.actions.n && whole; i++) {
            control_action_t action = w->job.actions.items[i];
            if (w->crash_after >= 0 && w->crash_after-- == 0) {
                restart(w);
                whole = false;
                break;
            }
            whole = act_once(w, &action);
        }
        if (whole) control_job_acted(&w->job);
    }
}

void attach(world_t *w, uint32_t node)
{
    const process_t *process = &w->processes[node];
    w->attached[node] = w->known[node] = true;
    control_report_t report;
    uint32_t n = 0;
    if (process->exists && process->rank < w->job.world && w->job.ranks[process->rank].node == node + 10) {
        report = report_of(w, process->rank, process->state);
        n = process->state >= CONTROL_RANK_STARTED;
    }
    if (process->exists && n == 0 && process->state < CONTROL_RANK_STARTED)
        w->processes[node].exists = false; /* it had not begun */
    control_job_node_attached(&w->job, node + 10, &report, n, w->now);
    act(w);
}

void begin(world_t *w, uint32_t nodes, uint32_t min, uint32_t max)
{
    memset(w, 0, sizeof *w);
    w->now = 100 * S;
    w->crash_after = -1;
    w->min = min;
    w->max = max;
    for (uint32_t node = 0; node < NODES; node++) w->attached[node] = w->known[node] = true;
    assert_int_equal(control_job_open(&w->job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_job_elastic(&w->job, min, max);
    control_rank_t ranks[NODES] = {0};
    for (uint32_t r = 0; r < nodes; r++) {
        ranks[r].node = 10 + r;
        snprintf(ranks[r].node_name, sizeof ranks[r].node_name, "%c", 'a' + (char)r);
        snprintf(ranks[r].address, sizeof ranks[r].address, "10.0.0.%u", r + 1);
    }
    assert_int_equal(control_job_start(&w->job, ranks, nodes, w->now), INSPAN_OK);
    act(w);
}

void end(world_t *w)
{
    control_job_close(&w->job);
}

void tell(world_t *w, uint32_t r, control_rank_state_t state)
{
    process_t *process = &w->processes[node_of(w, r)];
    if (process->rank == r) process->state = state;
    control_report_t report = report_of(w, r, state);
    control_job_report(&w->job, &report, w->now);
    act(w);
}

void killed(world_t *w, uint32_t r)
{
    process_t *process = &w->processes[node_of(w, r)];
    if (process->rank == r) process->exists = false;
    control_report_t report = report_of(w, r, CONTROL_RANK_FAILED);
    report.exit_signal = 9;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

void pass(world_t *w, ns_t time)
{
    w->now += time;
    control_job_tick(&w->job, w->now);
    act(w);
}

inspan_status_t grow(world_t *w, uint32_t node)
{
    control_rank_t rank = {.node = 10 + node};
    snprintf(rank.node_name, sizeof rank.node_name, "%c", 'a' + (char)node);
    snprintf(rank.address, sizeof rank.address, "10.0.0.%u", node + 1);
    inspan_status_t status = control_job_grow(&w->job, &rank, w->now);
    act(w);
    return status;
}
