/*
 * Elastic jobs. First by hand, then in a small world: nodes with agents and processes, a registry that may
 * fail, a manager that may be killed between two actions; the harness asserts the invariants at each action.
 */
#include "core/control/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define S     NS_PER_S
#define MS    NS_PER_MS
#define NODES 6
#define RANKS 400

typedef struct process {
    bool exists;
    uint32_t rank;
    control_rank_state_t state;
    bool full, leaving;
    uint64_t view; /* it is in */
    uint64_t blamed_view;
} process_t;

typedef struct stored {
    uint32_t world;
    control_rank_t ranks[RANKS];
    control_view_t view;
    control_state_t state, outcome;
    bool result;
} stored_t;

typedef struct world {
    control_job_t job;
    ns_t now;
    bool attached[NODES], known[NODES];
    process_t processes[NODES];
    stored_t stored;
    control_view_t told; /* the newest that was acknowledged as stored */
    bool was_out[RANKS];
    uint32_t starts[RANKS], announces[RANKS], stops[RANKS], kills[RANKS], asked[RANKS], lost[RANKS];
    uint32_t min, max, ended;
    uint64_t highest;
    bool fail_stores;
    int32_t crash_after; /* actions; -1: never */
    char news[CONTROL_REASON_MAX];
} world_t;

static uint32_t node_of(const world_t *w, uint32_t rank)
{
    return (uint32_t)w->job.ranks[rank].node - 10;
}

static bool is_out(control_rank_state_t state)
{
    return state == CONTROL_RANK_FAILED || state == CONTROL_RANK_LEFT;
}

static control_report_t report_of(const world_t *w, uint32_t rank, control_rank_state_t state)
{
    const process_t *process = &w->processes[node_of(w, rank)];
    return (control_report_t){.node = w->job.ranks[rank].node,
                              .rank = rank,
                              .state = state,
                              .port = state >= CONTROL_RANK_BOUND ? (uint16_t)(7500 + rank) : 0,
                              .pid = 1000 + rank,
                              .incarnation = 7,
                              .view = process->rank == rank ? process->view : 0,
                              .full = process->rank == rank && process->full};
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

static void attach(world_t *w, uint32_t node);

/* kill -9 of the manager: only what was stored is known. */
static void restart(world_t *w)
{
    w->crash_after = -1;
    control_job_close(&w->job);
    assert_int_equal(control_job_open(&w->job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_job_elastic(&w->job, w->min, w->max);
    const control_view_t *view = w->stored.view.number > 0 ? &w->stored.view : NULL;
    assert_int_equal(control_job_restore(&w->job, w->stored.state, w->stored.outcome, w->stored.ranks,
                                         w->stored.world, view, w->now),
                     INSPAN_OK);
    if (w->stored.result) control_job_result(&w->job, w->now);
    w->told = w->stored.view;
    if (control_job_over(&w->job)) w->ended = 1; /* who asks is told as it is */
    bool was[NODES];
    memcpy(was, w->attached, sizeof was);
    memset(w->attached, 0, sizeof w->attached);
    memset(w->known, 0, sizeof w->known);
    w->crash_after = -1;
    for (uint32_t node = 0; node < NODES; node++)
        if (was[node]) attach(w, node);
}

static void act(world_t *w)
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

static void attach(world_t *w, uint32_t node)
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

static void begin(world_t *w, uint32_t nodes, uint32_t min, uint32_t max)
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

static void end(world_t *w)
{
    control_job_close(&w->job);
}

/* ---- By hand */

static void tell(world_t *w, uint32_t r, control_rank_state_t state)
{
    process_t *process = &w->processes[node_of(w, r)];
    if (process->rank == r) process->state = state;
    control_report_t report = report_of(w, r, state);
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void killed(world_t *w, uint32_t r)
{
    process_t *process = &w->processes[node_of(w, r)];
    if (process->rank == r) process->exists = false;
    control_report_t report = report_of(w, r, CONTROL_RANK_FAILED);
    report.exit_signal = 9;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void failed(world_t *w, uint32_t r, inspan_status_t status, const char *text)
{
    control_report_t report = report_of(w, r, CONTROL_RANK_FAILED);
    report.pid = 0;
    report.has_cause = true;
    report.cause = (inspan_cause_t){.status = status, .rank = (int32_t)r, .noticed_by = -1};
    snprintf(report.cause.text, sizeof report.cause.text, "%s", text);
    w->processes[node_of(w, r)].exists = false;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void blame(world_t *w, uint32_t r, int32_t blamed, bool opened)
{
    control_report_t report = report_of(w, r, CONTROL_RANK_RUNNING);
    report.view = opened ? w->job.view : w->job.view - 1;
    report.has_blame = true;
    report.blame_view = w->job.view;
    report.blame = (inspan_cause_t){.status = INSPAN_PEER_LOST, .rank = blamed, .noticed_by = -1};
    snprintf(report.blame.text, sizeof report.blame.text, "connection reset");
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void committed(world_t *w, uint32_t r, uint64_t step)
{
    control_report_t report = report_of(w, r, CONTROL_RANK_RUNNING);
    report.step = step;
    report.steps = 100;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void pass(world_t *w, ns_t time)
{
    w->now += time;
    control_job_tick(&w->job, w->now);
    act(w);
}

static inspan_status_t grow(world_t *w, uint32_t node)
{
    control_rank_t rank = {.node = 10 + node};
    snprintf(rank.node_name, sizeof rank.node_name, "%c", 'a' + (char)node);
    snprintf(rank.address, sizeof rank.address, "10.0.0.%u", node + 1);
    inspan_status_t status = control_job_grow(&w->job, &rank, w->now);
    act(w);
    return status;
}

/* Every member has the newest view open. */
static void open_view(world_t *w)
{
    for (uint32_t i = 0; i < w->job.members.n; i++) tell(w, w->job.members.members[i], CONTROL_RANK_RUNNING);
}

static void run_up(world_t *w, uint32_t nodes, uint32_t min, uint32_t max)
{
    begin(w, nodes, min, max);
    for (uint32_t r = 0; r < nodes; r++) tell(w, r, CONTROL_RANK_BOUND);
    assert_int_equal(w->job.view, 1);
    assert_true(w->job.members.first);
    for (uint32_t r = 0; r < nodes; r++) tell(w, r, CONTROL_RANK_READY);
    open_view(w);
    assert_int_equal(w->job.state, CONTROL_RUNNING);
}

static void survivors_go_on_at_once(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 3, 1, 3);
    killed(&w, 1);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_int_equal(w.job.view, 2);
    assert_false(w.job.members.first);
    assert_int_equal(w.job.members.n, 2);
    assert_int_equal(w.announces[0], 2);
    assert_int_equal(w.announces[1], 1);
    assert_int_equal(w.lost[1], 1);
    assert_string_equal(w.news, "lost worker 1 on node b (killed by signal 9 (Killed)); 2 members go on");
    assert_int_equal(w.job.workers_lost, 1);
    assert_false(control_job_holds(&w.job, 11));
    blame(&w, 0, 1, true); /* late word about it: of no effect */
    w.job.ranks[0].blames = CONTROL_NO_BLAME;
    assert_int_equal(control_job_wants(&w.job), 1);
    open_view(&w);
    control_job_node_gone(&w.job, 12, "agent silent for 5.0 s", w.now);
    act(&w);
    assert_int_equal(w.job.view, 3);
    assert_string_equal(w.news, "lost worker 2 on node c (agent silent for 5.0 s); 1 member goes on");
    control_job_result(&w.job, w.now);
    act(&w);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    tell(&w, 0, CONTROL_RANK_DONE);
    assert_int_equal(w.job.state, CONTROL_DONE);
    end(&w);
}

static void what_repeats_anywhere_ends_the_job(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 2);
    failed(&w, 1, INSPAN_CORRUPT, "data.path: bad magic");
    assert_int_equal(w.job.state, CONTROL_ENDING);
    assert_string_equal(w.job.reason, "rank 1 on node b (10.0.0.2:7501): data.path: bad magic");
    end(&w);
    run_up(&w, 2, 1, 2);
    failed(&w, 1, INSPAN_NO_MEMORY, "out of memory");
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_int_equal(grow(&w, 3), INSPAN_OK);
    tell(&w, 2, CONTROL_RANK_STARTED);
    failed(&w, 2, INSPAN_NOT_FOUND, "no file there"); /* the newcomer's own trouble */
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.lost[2], 1);
    assert_int_equal(w.job.workers_lost, 1);
    end(&w);
}

static void a_broken_connection_is_nobodys_fault_at_first(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 3, 1, 3);
    blame(&w, 0, 2, true);
    blame(&w, 1, 2, true);
    pass(&w, 99 * MS);
    assert_int_equal(w.job.view, 1);
    pass(&w, MS);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.members.n, 3);
    assert_string_equal(w.news, "a connection broke (connection reset); 3 members connect again");
    open_view(&w);
    blame(&w, 0, 2, true); /* again, and no step between */
    blame(&w, 2, 0, true);
    blame(&w, 1, 2, true);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.view, 3);
    assert_false(control_job_member(&w.job, 2));
    assert_int_equal(w.kills[2], 1);
    assert_non_null(strstr(w.job.ranks[2].why, "2 of 3 members cannot reach it"));
    open_view(&w);
    committed(&w, 0, 9); /* a step: it may happen again */
    blame(&w, 0, 1, true);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.members.n, 2);
    assert_int_equal(w.job.view, 4);
    end(&w);

    run_up(&w, 3, 1, 3); /* a root comes within the window */
    blame(&w, 0, 2, true);
    pass(&w, 50 * MS);
    killed(&w, 2);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.members.n, 2);
    pass(&w, S);
    assert_int_equal(w.job.view, 2);
    end(&w);
}

static void who_cannot_be_reached_goes(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 2); /* the view could not be opened, both blame each other */
    blame(&w, 0, 1, true);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.view, 2);
    w.job.ranks[0].speed = 3;
    w.job.ranks[1].speed = 8;
    blame(&w, 0, 1, false);
    blame(&w, 1, 0, false);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.view, 3);
    assert_false(control_job_member(&w.job, 0)); /* the slower one */
    end(&w);

    run_up(&w, 2, 1, 2); /* its agent's stream broke, too: no second try */
    control_job_node_broke(&w.job, 10);
    blame(&w, 1, 0, true);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.view, 2);
    assert_false(control_job_member(&w.job, 0));
    w.processes[0].state = CONTROL_RANK_RUNNING;
    attach(&w, 0); /* it comes back with the worker that is out: fenced */
    assert_int_equal(w.kills[0], 1);
    assert_true(control_job_holds(&w.job, 10));
    pass(&w, 3 * S); /* asked again, until it is gone */
    assert_int_equal(w.kills[0], 2);
    killed(&w, 0);
    assert_false(control_job_holds(&w.job, 10));
    assert_int_equal(grow(&w, 0), INSPAN_OK); /* its machine comes back under a new number */
    assert_int_equal(w.starts[2], 1);
    end(&w);
}

static void newcomers_join_between_steps(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 1, 1, 3);
    assert_int_equal(control_job_wants(&w.job), 2);
    assert_int_equal(grow(&w, 0), INSPAN_INVALID); /* one worker a node */
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    assert_int_equal(grow(&w, 2), INSPAN_OK);
    assert_int_equal(grow(&w, 3), INSPAN_INVALID);
    tell(&w, 2, CONTROL_RANK_BOUND); /* waits for the lower number */
    pass(&w, S);
    assert_int_equal(w.job.view, 1);
    tell(&w, 1, CONTROL_RANK_BOUND);
    pass(&w, 100 * MS);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.members.n, 3);
    assert_string_equal(w.news, "worker 1 on node b joins; worker 2 on node c joins; 3 members");
    assert_false(w.job.ranks[1].full);
    open_view(&w);
    killed(&w, 2);
    assert_int_equal(w.job.members.n, 2);
    assert_int_equal(grow(&w, 4), INSPAN_OK);
    tell(&w, 3, CONTROL_RANK_BOUND);
    pass(&w, S);
    assert_int_equal(w.job.view, 3); /* not yet open on all: no newcomer */
    open_view(&w);
    assert_int_equal(w.job.view, 4);
    open_view(&w);
    killed(&w, 2);
    killed(&w, 3);
    assert_int_equal(grow(&w, 5), INSPAN_OK);
    tell(&w, 4, CONTROL_RANK_STARTED);
    pass(&w, 60 * S); /* it does not bind: nobody else notices */
    assert_int_equal(w.job.ranks[4].state, CONTROL_RANK_FAILED);
    assert_int_equal(w.job.view, 5);
    assert_int_equal(w.lost[4], 1);
    open_view(&w);
    committed(&w, 0, 97);
    assert_int_equal(control_job_wants(&w.job), 1);
    committed(&w, 0, 98);
    assert_int_equal(control_job_wants(&w.job), 0); /* the end is near */
    end(&w);
}

static void too_few_wait(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 2, 2);
    killed(&w, 0);
    assert_int_equal(w.job.view, 1);
    assert_string_equal(w.job.reason, "waits for nodes: 1 of 2");
    assert_string_equal(w.news,
                        "lost worker 0 on node a (killed by signal 9 (Killed)); waits for nodes: 1 of 2");
    blame(&w, 1, 0, true);
    pass(&w, S);
    assert_int_equal(w.job.view, 1);
    committed(&w, 1, 99); /* near its end or not: it needs one */
    assert_int_equal(grow(&w, 3), INSPAN_OK);
    tell(&w, 2, CONTROL_RANK_BOUND);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.members.n, 2);
    assert_string_equal(w.job.reason, "");
    end(&w);
}

/* It takes no newcomers any more: waiting for some would be for ever. */
static void with_the_result_registered_too_few_end_the_job(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 2, 2);
    control_job_result(&w.job, w.now);
    act(&w);
    killed(&w, 1);
    assert_int_equal(control_job_wants(&w.job), 0);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.members.n, 1);
    tell(&w, 0, CONTROL_RANK_DONE);
    assert_int_equal(w.job.state, CONTROL_DONE);
    end(&w);
}

static void a_leaver_costs_nothing(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 3, 1, 3);
    control_job_leave(&w.job, 11, w.now);
    act(&w);
    assert_int_equal(w.asked[1], 1);
    assert_int_equal(w.job.view, 1);
    tell(&w, 1, CONTROL_RANK_LEFT);
    assert_int_equal(w.job.view, 2);
    assert_string_equal(w.news, "worker 1 on node b left; 2 members go on");
    assert_int_equal(w.stops[1], 1);
    assert_int_equal(w.kills[1] + w.lost[1], 0);
    control_report_t gone = report_of(&w, 1, CONTROL_RANK_FAILED);
    gone.pid = 0;
    control_job_report(&w.job, &gone, w.now);
    act(&w);
    assert_int_equal(w.job.ranks[1].state, CONTROL_RANK_LEFT);
    assert_int_equal(w.job.workers_lost, 0);
    assert_false(control_job_holds(&w.job, 11));
    end(&w);
}

static void nobody_left_begins_a_new_lineage(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 1, 1, 2);
    committed(&w, 0, 50);
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    tell(&w, 1, CONTROL_RANK_BOUND);
    pass(&w, S);
    assert_int_equal(w.job.view, 2);
    killed(&w, 0); /* the newcomer has no whole model yet */
    assert_int_equal(w.job.view, 3);
    assert_int_equal(w.job.members.n, 0); /* the fence: nothing of the old lineage is registered any more */
    assert_int_equal(w.kills[1], 1);
    assert_int_equal(w.lost[1], 0);
    assert_int_equal(w.job.state, CONTROL_STARTING);
    killed(&w, 1);
    assert_int_equal(grow(&w, 4), INSPAN_OK);
    tell(&w, 2, CONTROL_RANK_BOUND);
    assert_int_equal(w.job.view, 4);
    assert_true(w.job.members.first);
    assert_true(w.job.ranks[2].full);
    open_view(&w);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    for (uint32_t i = 3; i < 6; i++) { /* the same again and again: it is the job's own fault */
        pass(&w, S);
        killed(&w, i - 1);
        assert_int_equal(grow(&w, i), INSPAN_OK);
        tell(&w, i, CONTROL_RANK_BOUND);
        open_view(&w);
    }
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    pass(&w, S);
    killed(&w, 5);
    assert_int_equal(w.job.state, CONTROL_FAILED);
    assert_non_null(strstr(w.job.reason,
                           "5 failures in a row without a committed step between them, the last: "
                           "rank 5 on node f (10.0.0.6:7505): worker killed by signal 9"));
    end(&w);
}

static void a_restarted_manager_announces_the_same_view(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 3, 1, 3);
    killed(&w, 2);
    open_view(&w);
    restart(&w);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_int_equal(w.announces[0], 3);
    assert_int_equal(grow(&w, 3), INSPAN_OK);
    assert_int_equal(w.job.world, 4); /* number 3: none is used twice */
    w.crash_after = 1;                /* its end is stored, the view without it is not */
    killed(&w, 1);
    assert_int_equal(w.job.view, 3);
    assert_int_equal(w.job.members.n, 1);
    end(&w);
}

/* A node that was here before has old ranks and a lost member: two views in one event would both be stored,
 * and announced, as the second. */
static void an_event_issues_one_view(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 3);
    killed(&w, 1);
    open_view(&w);
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    tell(&w, 2, CONTROL_RANK_BOUND);
    pass(&w, S);
    assert_int_equal(w.job.members.n, 2);
    w.processes[1].full = true;
    open_view(&w);
    killed(&w, 0); /* now all hangs on rank 2 */
    open_view(&w);
    assert_int_equal(w.job.view, 4);
    assert_int_equal(grow(&w, 3), INSPAN_OK);
    tell(&w, 3, CONTROL_RANK_BOUND);
    w.now += S; /* it may join at the next event: the word that rank 2 is gone */
    w.processes[1].exists = false;
    attach(&w, 1);
    assert_int_equal(w.job.view, 5);
    assert_int_equal(w.job.members.n, 0);
    end(&w);
}

/* ---- At random */

static uint32_t some_process(const world_t *w, rng_t *rng)
{
    uint32_t node = (uint32_t)rng_below(rng, NODES);
    for (uint32_t i = 0; i < NODES; i++, node = (node + 1) % NODES)
        if (w->processes[node].exists) return node;
    return NODES;
}

static void speak(world_t *w, uint32_t node, rng_t *rng)
{
    process_t *process = &w->processes[node];
    if (process->state < CONTROL_RANK_RUNNING && (process->state < CONTROL_RANK_BOUND || process->view > 0))
        process->state++;
    if (process->view > 0 && rng_below(rng, 3) == 0) process->full = true;
    if (process->leaving && process->state == CONTROL_RANK_RUNNING) process->state = CONTROL_RANK_LEFT;
    if (!w->attached[node]) return;
    control_report_t report = report_of(w, process->rank, process->state);
    report.step = w->job.step + rng_below(rng, 2);
    report.steps = 1000000;
    report.speed = (double)rng_below(rng, 5);
    if (process->state == CONTROL_RANK_RUNNING && process->view == w->job.view && rng_below(rng, 10) == 0) {
        report.has_blame = true;
        report.blame_view = process->view;
        report.view -= rng_below(rng, 2);
        report.blame = (inspan_cause_t){.status = INSPAN_PEER_LOST, .noticed_by = -1};
        report.blame.rank = (int32_t)rng_below(rng, w->job.world + 1) - 1;
    }
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void one_event(world_t *w, rng_t *rng)
{
    uint32_t node = (uint32_t)rng_below(rng, NODES), some = some_process(w, rng);
    w->fail_stores = rng_below(rng, 25) == 0;
    if (!w->fail_stores && rng_below(rng, 25) == 0) w->crash_after = (int32_t)rng_below(rng, 6);
    switch (rng_below(rng, 20)) {
    case 0:
        if (some < NODES && w->attached[some]) killed(w, w->processes[some].rank);
        break;
    case 1:
        if (w->attached[node]) control_job_node_broke(&w->job, node + 10);
        w->attached[node] = false;
        break;
    case 2: /* processes live on while their agent is away */
        if (!w->attached[node] && w->known[node]) control_job_node_gone(&w->job, node + 10, "silent", w->now);
        w->known[node] = false;
        break;
    case 3:
    case 4:
        if (!w->attached[node]) attach(w, node);
        break;
    case 5: pass(w, (ns_t)rng_below(rng, 3) * S); break;
    case 6: pass(w, 100 * MS); break;
    case 7:
        if (rng_below(rng, 4) == 0) control_job_leave(&w->job, node + 10, w->now);
        break;
    case 8:
    case 9:
    case 10:
        if (w->attached[node] && !control_job_holds(&w->job, node + 10)) grow(w, node);
        break;
    case 11:
        if (rng_below(rng, 30) == 0) restart(w);
        break;
    case 12:
        if (w->job.state == CONTROL_RUNNING && w->job.members.n > 0 && rng_below(rng, 200) == 0) {
            control_job_result(&w->job, w->now);
            w->stored.result = true;
        }
        break;
    default:
        if (some < NODES) speak(w, some, rng);
        break;
    }
    act(w);
    w->crash_after = -1;
}

/* Faults stop: the job must end within a bound (I5). */
static void calm_down(world_t *w)
{
    w->fail_stores = false;
    for (int round = 0; round < 400 && !control_job_over(&w->job); round++) {
        pass(w, S);
        for (uint32_t node = 0; node < NODES && !control_job_over(&w->job); node++) {
            process_t *process = &w->processes[node];
            process->leaving = false;
            if (!w->attached[node]) attach(w, node);
            if (!process->exists && w->job.world < RANKS && !control_job_over(&w->job)) {
                for (uint32_t r = 0; r < w->job.world; r++) /* what was killed is reported */
                    if (w->job.ranks[r].node == node + 10 && w->job.ranks[r].alive) killed(w, r);
                if (!control_job_holds(&w->job, node + 10)) grow(w, node);
            }
            if (!process->exists) continue;
            if (process->state < CONTROL_RANK_BOUND ||
                (process->view > 0 && process->state < CONTROL_RANK_RUNNING))
                process->state++;
            else if (process->state == CONTROL_RANK_RUNNING && process->view == w->job.view && round > 200)
                process->state = CONTROL_RANK_DONE;
            control_report_t report = report_of(w, process->rank, process->state);
            report.full = report.view > 0;
            report.step = w->job.step + 1;
            if (process->state == CONTROL_RANK_DONE) {
                control_job_result(&w->job, w->now);
                w->stored.result = true;
                process->exists = false;
            }
            control_job_report(&w->job, &report, w->now);
            act(w);
        }
    }
    assert_true(control_job_over(&w->job));
    pass(w, 2 * S); /* an end that could not be stored is stored, and told, later */
    assert_int_equal(w->ended, 1);
    for (int i = 0; i < 5; i++) {
        for (uint32_t r = 0; r < w->job.world; r++)
            if (w->job.ranks[r].alive && !w->processes[node_of(w, r)].exists) killed(w, r);
        pass(w, 10 * S);
    }
    assert_true(control_job_quiet(&w->job));
}

static void random_histories_keep_the_invariants(void **state)
{
    (void)state;
    static world_t w;
    for (uint64_t seed = 0; seed < 1500; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 2);
        uint32_t min = 1 + (uint32_t)rng_below(&rng, 3);
        uint32_t max = min + (uint32_t)rng_below(&rng, NODES - min + 1);
        begin(&w, min + (uint32_t)rng_below(&rng, max - min + 1), min, max);
        for (int i = 0; i < 250 && w.job.world < RANKS - 100 && !control_job_over(&w.job); i++)
            one_event(&w, &rng);
        calm_down(&w);
        end(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_go_on_at_once),
        cmocka_unit_test(what_repeats_anywhere_ends_the_job),
        cmocka_unit_test(a_broken_connection_is_nobodys_fault_at_first),
        cmocka_unit_test(who_cannot_be_reached_goes),
        cmocka_unit_test(newcomers_join_between_steps),
        cmocka_unit_test(too_few_wait),
        cmocka_unit_test(with_the_result_registered_too_few_end_the_job),
        cmocka_unit_test(a_leaver_costs_nothing),
        cmocka_unit_test(nobody_left_begins_a_new_lineage),
        cmocka_unit_test(a_restarted_manager_announces_the_same_view),
        cmocka_unit_test(an_event_issues_one_view),
        cmocka_unit_test(random_histories_keep_the_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
