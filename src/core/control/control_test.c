#include "core/control/job.h"
#include "core/control/liveness.h"
#include "core/control/rest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define S  NS_PER_S
#define MS NS_PER_MS

/* ---- Liveness ---- */

static void a_silent_node_is_lost_once(void **state)
{
    (void)state;
    liveness_t node;
    liveness_attach(&node, 10 * S);
    assert_false(liveness_check(&node, 15 * S - 1, 5 * S));
    liveness_heard(&node, 14 * S);
    assert_false(liveness_check(&node, 19 * S - 1, 5 * S));
    assert_true(liveness_check(&node, 19 * S, 5 * S));
    assert_int_equal(node.state, LIVENESS_LOST);
    assert_false(liveness_check(&node, 30 * S, 5 * S));
    liveness_heard(&node, 31 * S); /* a late message does not revive it */
    assert_int_equal(node.state, LIVENESS_LOST);
    liveness_attach(&node, 40 * S);
    assert_false(liveness_check(&node, 41 * S, 5 * S));
}

static void a_broken_stream_may_come_back(void **state)
{
    (void)state;
    liveness_t node;
    liveness_attach(&node, 0);
    liveness_heard(&node, 3 * S);
    liveness_broke(&node, 4 * S);
    assert_int_equal(node.state, LIVENESS_DISCONNECTED);
    assert_false(liveness_check(&node, 9 * S - 1, 5 * S));
    liveness_attach(&node, 9 * S - 1);
    assert_int_equal(node.state, LIVENESS_ATTACHED);
    liveness_heard(&node, 20 * S);
    liveness_broke(&node, 20 * S);
    assert_false(liveness_check(&node, 25 * S - 1, 5 * S));
    assert_true(liveness_check(&node, 25 * S, 5 * S));
    liveness_attach(&node, 30 * S);
    liveness_broke(&node, 34 * S); /* cut for its silence: that is no fresh start */
    assert_false(liveness_check(&node, 35 * S - 1, 5 * S));
    assert_true(liveness_check(&node, 35 * S, 5 * S));
    liveness_attach(&node, 36 * S);
    liveness_left(&node, 37 * S);
    assert_int_equal(node.state, LIVENESS_LEFT);
    liveness_broke(&node, 38 * S); /* the stream's end after the good-bye says nothing new */
    assert_int_equal(node.state, LIVENESS_LEFT);
    assert_false(liveness_check(&node, 99 * S, 5 * S));
}

static void a_restarted_manager_gives_twice_the_time(void **state)
{
    (void)state;
    liveness_t node;
    liveness_restore(&node, 100 * S);
    assert_false(liveness_check(&node, 110 * S - 1, 5 * S));
    assert_true(liveness_check(&node, 110 * S, 5 * S));
    liveness_restore(&node, 100 * S);
    liveness_attach(&node, 101 * S); /* the grace is for coming back only */
    assert_true(liveness_check(&node, 106 * S, 5 * S));
}

static void a_stall_of_our_own_is_forgiven(void **state)
{
    (void)state;
    liveness_t node;
    liveness_attach(&node, 0);
    liveness_forgive(&node, 8 * S, 8 * S);
    assert_false(liveness_check(&node, 8 * S + 1, 5 * S));
    liveness_heard(&node, 12 * S);
    liveness_forgive(&node, 4 * S, 12 * S); /* its message waited while we stood still */
    assert_false(liveness_check(&node, 17 * S - 1, 5 * S));
    assert_true(liveness_check(&node, 17 * S, 5 * S));
}

/* ---- Rest ---- */

static void a_flapping_node_is_rested_longer_and_longer(void **state)
{
    (void)state;
    rest_t rest = {0};
    ns_t wall = 1000000 * S;
    static const int pauses[] = {1, 2, 4, 8, 16, 32, 60, 60};
    for (int i = 0; i < 8; i++) { /* seldom enough to stay out of quarantine */
        assert_true(rest_usable(&rest, wall));
        rest_lost(&rest, wall);
        assert_int_equal(rest_left(&rest, wall), pauses[i] * S);
        assert_false(rest_usable(&rest, wall));
        wall += 200 * S;
    }
    assert_int_equal(rest_losses(&rest, wall), 2);
    wall += 600 * S;
    rest_lost(&rest, wall); /* it was well for long enough */
    assert_int_equal(rest_left(&rest, wall), S);
    assert_int_equal(rest_left(&rest, wall - 3600 * S), 0); /* the clock was set back: not for an hour more */
    for (int i = 0; i < 4; i++) {
        assert_false(rest.quarantined);
        rest_lost(&rest, wall += S);
    }
    assert_true(rest.quarantined);
    assert_false(rest_usable(&rest, wall + 3600 * S));
    rest_end(&rest);
    assert_true(rest_usable(&rest, wall));
    assert_int_equal(rest_losses(&rest, wall), 0);
}

/* ---- Jobs: a harness that carries out actions into counters ---- */

#define WORLD 8

typedef struct harness {
    control_job_t job;
    ns_t now;
    uint64_t node_of[WORLD];
    uint32_t started[WORLD], announced[WORLD], lost[WORLD], stopped[WORLD], killed[WORLD];
    uint32_t stores, ended;
    uint64_t stored_view, announced_view;
    control_state_t stored;
    bool fail_stores;
} harness_t;

static void act(harness_t *h)
{
    while (h->job.actions.n > 0) {
        bool dropped = false;
        for (size_t i = 0; i < h->job.actions.n && !dropped; i++) {
            control_action_t action = h->job.actions.items[i];
            control_rank_t *rank = action.rank < h->job.world ? &h->job.ranks[action.rank] : NULL;
            switch (action.kind) {
            case CONTROL_STORE:
            case CONTROL_NOTE:
            case CONTROL_STORE_VIEW:
                if (h->fail_stores) {
                    dropped = control_job_unstored(&h->job, action.kind, "disk full", h->now);
                    break;
                }
                h->stores++;
                if (action.kind != CONTROL_STORE_VIEW) {
                    h->stored = h->job.state;
                    break;
                }
                assert_true(h->job.view > h->stored_view); /* I3 */
                h->stored_view = h->job.view;
                break;
            case CONTROL_NOTE_RANK: break;
            case CONTROL_START_WORKER:
                assert_int_equal(h->stored, CONTROL_STARTING);
                assert_int_equal(h->ended, 0);
                h->started[action.rank]++;
                break;
            case CONTROL_ANNOUNCE_VIEW:
                assert_int_equal(h->stored_view, h->job.view); /* never told before it is stored */
                assert_false(control_job_over(&h->job));
                assert_true(rank->port != 0);
                h->announced[action.rank]++;
                break;
            case CONTROL_MEMBER_LOST:
                assert_true(h->job.has_cause && h->started[action.rank] > 0);
                h->lost[action.rank]++;
                break;
            case CONTROL_STOP_WORKER:
                assert_true(h->started[action.rank] > 0);
                assert_true(rank->attached);
                h->stopped[action.rank]++;
                h->killed[action.rank] += action.kill;
                break;
            case CONTROL_CHANGED: break;
            case CONTROL_TELL:
            case CONTROL_ASK_TO_LEAVE:
            case CONTROL_LOST_WORKER: fail_msg("only elastic jobs do that"); break;
            case CONTROL_ENDED:
                assert_true(control_job_over(&h->job));
                assert_int_equal(h->stored, h->job.state); /* stored before it is told */
                h->ended++;
                assert_int_equal(h->ended, 1);
                break;
            }
        }
        if (!dropped) control_job_acted(&h->job);
    }
}

static void begin(harness_t *h, uint32_t world)
{
    memset(h, 0, sizeof *h);
    h->now = 100 * S;
    assert_int_equal(control_job_open(&h->job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_rank_t ranks[WORLD] = {0};
    for (uint32_t r = 0; r < world; r++) {
        h->node_of[r] = ranks[r].node = 10 + r;
        snprintf(ranks[r].node_name, sizeof ranks[r].node_name, "%c", 'a' + (char)r);
        snprintf(ranks[r].address, sizeof ranks[r].address, "10.0.0.%u", r + 1);
    }
    assert_int_equal(control_job_start(&h->job, ranks, world, h->now), INSPAN_OK);
    assert_int_equal(control_job_start(&h->job, ranks, world, h->now), INSPAN_INVALID);
    act(h);
}

static void report(harness_t *h, uint32_t rank, control_rank_state_t state)
{
    control_report_t one = {.node = h->node_of[rank],
                            .rank = rank,
                            .state = state,
                            .port = (uint16_t)(7500 + rank),
                            .pid = 1000 + rank,
                            .incarnation = 5};
    control_job_report(&h->job, &one, h->now);
    act(h);
}

static void fail_report(harness_t *h, uint32_t rank, int32_t blamed, inspan_status_t status, int signal,
                        const char *text)
{
    control_report_t one = {.node = h->node_of[rank],
                            .rank = rank,
                            .state = CONTROL_RANK_FAILED,
                            .exit_signal = signal,
                            .has_cause = text != NULL};
    one.cause = (inspan_cause_t){.status = status, .rank = blamed, .noticed_by = (int32_t)rank};
    if (text != NULL) snprintf(one.cause.text, sizeof one.cause.text, "%s", text);
    control_job_report(&h->job, &one, h->now);
    act(h);
}

static void tick(harness_t *h, ns_t later)
{
    h->now += later;
    control_job_tick(&h->job, h->now);
    act(h);
}

static void all_report(harness_t *h, control_rank_state_t state)
{
    for (uint32_t r = 0; r < h->job.world; r++) report(h, r, state);
}

static void run_up(harness_t *h, uint32_t world)
{
    begin(h, world);
    all_report(h, CONTROL_RANK_STARTED);
    all_report(h, CONTROL_RANK_BOUND);
    all_report(h, CONTROL_RANK_READY);
    assert_int_equal(h->job.state, CONTROL_RUNNING);
}

static void finish(harness_t *h)
{
    for (int i = 0; i < 100 && !control_job_quiet(&h->job); i++) {
        tick(h, S);
        for (uint32_t r = 0; r < h->job.world;
             r++) { /* who was killed dies; who cannot be reached is given up */
            if (h->job.ranks[r].alive && h->killed[r] > 0) fail_report(h, r, -1, INSPAN_OK, 9, NULL);
            if (!h->job.ranks[r].attached) control_job_node_gone(&h->job, h->node_of[r], "gone", h->now);
        }
        act(h);
    }
    assert_true(control_job_quiet(&h->job));
    assert_int_equal(h->ended, 1);
    control_job_close(&h->job);
}

static void a_job_runs_through(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5, 7};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        harness_t h;
        begin(&h, worlds[w]);
        assert_string_equal(control_job_text(&h.job), "starting");
        all_report(&h, CONTROL_RANK_STARTED);
        for (uint32_t r = 0; r < worlds[w]; r++) {
            assert_int_equal(h.job.view, 0);
            report(&h, r, CONTROL_RANK_BOUND);
        }
        assert_int_equal(h.job.view, 1);
        for (uint32_t r = 0; r < worlds[w]; r++) assert_int_equal(h.announced[r], 1);
        all_report(&h, CONTROL_RANK_READY);
        all_report(&h, CONTROL_RANK_RUNNING);
        assert_string_equal(control_job_text(&h.job), "running");
        all_report(&h, CONTROL_RANK_DONE);
        assert_int_equal(h.job.state, CONTROL_DONE);
        for (uint32_t r = 0; r < worlds[w]; r++) {
            assert_int_equal(h.started[r], 1);
            assert_int_equal(h.stopped[r] + h.lost[r], 0);
            assert_false(control_job_holds(&h.job, h.node_of[r]));
        }
        finish(&h);
    }
}

static void the_root_settles_at_once(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 3);
    fail_report(&h, 2, -1, INSPAN_OK, 9, NULL);
    assert_int_equal(h.job.state, CONTROL_ENDING);
    assert_string_equal(control_job_text(&h.job), "running");
    assert_string_equal(h.job.reason, "rank 2 on node c (10.0.0.3:7502): worker killed by signal 9 (Killed)");
    assert_int_equal(h.lost[0], 1);
    assert_int_equal(h.lost[1], 1);
    assert_int_equal(h.lost[2], 0);
    tick(&h, 249 * MS);
    assert_int_equal(h.killed[0], 0);
    fail_report(&h, 0, 2, INSPAN_PEER_LOST, 0, "rank 2 lost");
    tick(&h, MS);
    assert_int_equal(h.killed[1], 1);
    assert_true(control_job_holds(&h.job, h.node_of[1]));
    fail_report(&h, 1, -1, INSPAN_OK, 15, NULL);
    assert_int_equal(h.job.state, CONTROL_FAILED);
    assert_int_equal(h.job.cause.rank, 2);
    assert_false(control_job_holds(&h.job, h.node_of[1]));
    finish(&h);
}

static void blame_report(harness_t *h, uint32_t rank, int32_t blamed, const char *text)
{
    control_report_t one = {.node = h->node_of[rank],
                            .rank = rank,
                            .state = CONTROL_RANK_RUNNING,
                            .port = (uint16_t)(7500 + rank),
                            .pid = 1000 + rank,
                            .has_blame = true,
                            .blame_view = 1};
    one.blame = (inspan_cause_t){.status = INSPAN_PEER_LOST, .rank = blamed, .noticed_by = (int32_t)rank};
    snprintf(one.blame.text, sizeof one.blame.text, "%s", text);
    control_job_report(&h->job, &one, h->now);
    act(h);
}

/* A worker does not end where its view breaks, it waits for the next: of fixed members there is none. */
static void a_broken_view_ends_a_fixed_job(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 3);
    blame_report(&h, 0, 2, "connection reset by rank 2 on node c");
    blame_report(&h, 1, 2, "connection closed by rank 2 on node c"); /* the first counts */
    tick(&h, 499 * MS);
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    tick(&h, MS);
    assert_int_equal(h.job.state, CONTROL_ENDING);
    assert_string_equal(h.job.reason, "connection reset by rank 2 on node c");
    finish(&h);

    run_up(&h, 3); /* the root comes in time */
    blame_report(&h, 0, 2, "connection closed by rank 2 on node c");
    tick(&h, 100 * MS);
    fail_report(&h, 2, 2, INSPAN_JOB_FAILED, 9, "out of memory: limit 300 MB");
    assert_string_equal(h.job.reason, "rank 2 on node c (10.0.0.3:7502): out of memory: limit 300 MB");
    finish(&h);

    run_up(&h, 2); /* one is through: it closes its connections; the other is slow */
    control_job_result(&h.job, h.now);
    blame_report(&h, 1, 0, "connection closed by rank 0 on node a");
    report(&h, 0, CONTROL_RANK_DONE);
    tick(&h, S);
    assert_int_equal(h.job.state, CONTROL_DONE);
    finish(&h);
}

static void a_blame_waits_for_its_root(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 3); /* the peers are quicker than the agent of the dead worker */
    fail_report(&h, 0, 2, INSPAN_PEER_LOST, 0, "connection closed by rank 2");
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    tick(&h, 100 * MS);
    fail_report(&h, 2, 2, INSPAN_JOB_FAILED, 9, "out of memory: limit 300 MB");
    assert_int_equal(h.job.state, CONTROL_ENDING);
    assert_string_equal(h.job.reason, "rank 2 on node c (10.0.0.3:7502): out of memory: limit 300 MB");
    finish(&h);

    run_up(&h, 3); /* no root comes: the blame stands after the window */
    fail_report(&h, 0, 2, INSPAN_PEER_LOST, 0, "connection closed by rank 2 on node c");
    tick(&h, 499 * MS);
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    tick(&h, MS);
    assert_string_equal(h.job.reason, "connection closed by rank 2 on node c");
    assert_int_equal(h.job.cause.noticed_by, 0);
    finish(&h);

    run_up(&h, 3); /* another's trouble does not hide the one blamed, but beats a mere blame in the end */
    fail_report(&h, 0, 2, INSPAN_PEER_LOST, 0, "closed");
    fail_report(&h, 1, 1, INSPAN_IO, 0, "disk full");
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    fail_report(&h, 2, -1, INSPAN_OK, 11, NULL);
    assert_int_equal(h.job.cause.rank, 2);
    finish(&h);

    run_up(&h, 2); /* everybody has spoken: nothing to wait for */
    fail_report(&h, 0, 1, INSPAN_PEER_LOST, 0, "closed");
    fail_report(&h, 1, 0, INSPAN_PEER_LOST, 0, "closed");
    assert_int_equal(h.job.state, CONTROL_FAILED);
    assert_string_equal(h.job.reason, "rank 1 on node b (10.0.0.2:7501): closed");
    finish(&h);
}

static void a_broken_agent_explains_a_silent_worker(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 3);
    control_job_node_broke(&h.job, h.node_of[1]);
    fail_report(&h, 0, 1, INSPAN_PEER_LOST, 0, "no tick");
    tick(&h, 500 * MS);
    assert_non_null(strstr(h.job.reason, "the agent of node b broke"));
    assert_int_equal(h.killed[1], 0);
    finish(&h);

    run_up(&h, 3);
    control_job_node_broke(&h.job, h.node_of[1]);
    tick(&h, 5 * S);
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    control_job_node_gone(&h.job, h.node_of[1], "agent silent for 5.0 s", h.now);
    act(&h);
    assert_string_equal(h.job.reason, "node b: agent silent for 5.0 s");
    assert_int_equal(h.job.cause.rank, 1);
    assert_int_equal(h.lost[0], 1);
    assert_int_equal(h.lost[1], 0);
    finish(&h);
}

static void who_does_not_start_is_named(void **state)
{
    (void)state;
    harness_t h;
    begin(&h, 3);
    report(&h, 0, CONTROL_RANK_BOUND);
    report(&h, 2, CONTROL_RANK_STARTED);
    tick(&h, 60 * S - 1);
    assert_int_equal(h.job.state, CONTROL_STARTING);
    tick(&h, 1);
    assert_non_null(strstr(h.job.reason, "rank 1 on node b (10.0.0.2): its worker did not start"));
    assert_non_null(strstr(h.job.reason, "rank 2 on node c (10.0.0.3): its worker did not bind"));
    assert_null(strstr(h.job.reason, "rank 0"));
    tick(&h, 250 * MS);
    assert_int_equal(h.killed[0] + h.killed[1] + h.killed[2], 3);
    tick(&h, 3 * S); /* nobody confirms: over, but the nodes stay held */
    assert_int_equal(h.job.state, CONTROL_FAILED);
    assert_true(control_job_holds(&h.job, h.node_of[1]));
    tick(&h, 3 * S);
    assert_int_equal(h.killed[1], 2); /* asked again */
    for (uint32_t r = 0; r < 3; r++) fail_report(&h, r, -1, INSPAN_OK, 9, NULL);
    assert_false(control_job_holds(&h.job, h.node_of[1]));
    finish(&h);
}

static void cancel_asks_before_it_kills(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 2);
    control_job_cancel(&h.job, "cancelled by alice", h.now);
    act(&h);
    assert_int_equal(h.stopped[0], 1);
    assert_int_equal(h.killed[0], 0);
    fail_report(&h, 0, -1, INSPAN_ABORTED, 0, "cancelled");
    tick(&h, 10 * S);
    assert_int_equal(h.killed[1], 1);
    fail_report(&h, 1, -1, INSPAN_OK, 15, NULL);
    assert_int_equal(h.job.state, CONTROL_CANCELLED);
    assert_string_equal(h.job.reason, "cancelled by alice");
    control_job_cancel(&h.job, "again", h.now);
    act(&h);
    assert_string_equal(h.job.reason, "cancelled by alice");
    finish(&h);

    memset(&h, 0, sizeof h); /* one that waits is simply taken out */
    assert_int_equal(control_job_open(&h.job, 1, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_job_cancel(&h.job, "no", 1);
    act(&h);
    assert_int_equal(h.job.state, CONTROL_CANCELLED);
    finish(&h);
}

static void reattached_agents_carry_the_job_on(void **state)
{
    (void)state;
    harness_t h;
    begin(&h, 2); /* the manager dies before it heard of any port; the registry has the ranks as assigned */
    control_rank_t ranks[2];
    memcpy(ranks, h.job.ranks, sizeof ranks);
    control_job_close(&h.job);
    assert_int_equal(control_job_open(&h.job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    assert_int_equal(control_job_restore(&h.job, CONTROL_STARTING, 0, ranks, 2, NULL, h.now), INSPAN_OK);
    control_report_t there = {.node = h.node_of[0], .rank = 0, .state = CONTROL_RANK_BOUND, .port = 7500};
    control_job_node_attached(&h.job, h.node_of[0], &there, 1, h.now);
    act(&h);
    assert_int_equal(h.started[0], 1);
    control_job_node_attached(&h.job, h.node_of[1], NULL, 0, h.now); /* it never got the order */
    act(&h);
    assert_int_equal(h.started[1], 2);
    report(&h, 1, CONTROL_RANK_BOUND);
    assert_int_equal(h.announced[0] + h.announced[1], 2);
    control_job_node_broke(&h.job, h.node_of[0]); /* the view may be lost with the stream: told again */
    control_job_node_attached(&h.job, h.node_of[0], &there, 1, h.now);
    act(&h);
    assert_int_equal(h.announced[0], 2);
    all_report(&h, CONTROL_RANK_READY);
    control_job_node_broke(&h.job, h.node_of[0]);
    there.state = CONTROL_RANK_DONE;
    control_job_node_attached(&h.job, h.node_of[0], &there, 1, h.now);
    report(&h, 1, CONTROL_RANK_DONE);
    assert_int_equal(h.job.state, CONTROL_DONE);
    finish(&h);

    run_up(&h, 2); /* a restarted agent has no worker any more */
    control_job_node_broke(&h.job, h.node_of[1]);
    control_job_node_attached(&h.job, h.node_of[1], NULL, 0, h.now);
    act(&h);
    assert_non_null(strstr(h.job.reason, "node b came back without its worker"));
    finish(&h);
}

/* Killed between two transactions: the ranks' ends are stored, the job's is not. */
static void half_stored_ends_are_found_again(void **state)
{
    (void)state;
    static const control_rank_state_t ends[] = {CONTROL_RANK_DONE, CONTROL_RANK_FAILED};
    for (int i = 0; i < 2; i++) {
        harness_t h;
        run_up(&h, 2);
        control_rank_t ranks[2];
        memcpy(ranks, h.job.ranks, sizeof ranks);
        ranks[0].state = ranks[1].state = ends[i];
        control_job_close(&h.job);
        assert_int_equal(control_job_open(&h.job, 7, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
        assert_int_equal(
            control_job_restore(&h.job, CONTROL_RUNNING, 0, ranks, 2, &(control_view_t){.number = 1}, h.now),
            INSPAN_OK);
        act(&h);
        if (ends[i] == CONTROL_RANK_DONE) {
            assert_int_equal(h.job.state, CONTROL_DONE);
        } else {
            control_report_t echo = {.rank = 0, .state = CONTROL_RANK_FAILED, .has_cause = true};
            echo.cause = (inspan_cause_t){.status = INSPAN_PEER_LOST, .rank = 1, .text = "closed"};
            control_report_t root = {.rank = 1, .state = CONTROL_RANK_FAILED, .exit_signal = 9};
            control_report_t all[] = {echo, root};
            control_job_recall(&h.job, all, 2, h.now);
            act(&h);
            assert_int_equal(h.job.state, CONTROL_FAILED);
            assert_int_equal(h.job.cause.rank, 1);
            assert_non_null(strstr(h.job.reason, "killed by signal 9"));
        }
        finish(&h);
    }
}

/* FAILED is said at once; the node is free when the process is. */
static void a_node_is_held_until_the_process_is_gone(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 1);
    control_report_t one = {
        .node = h.node_of[0], .state = CONTROL_RANK_FAILED, .pid = 1000, .has_cause = true};
    one.cause = (inspan_cause_t){.status = INSPAN_IO, .rank = 0, .text = "no data"};
    control_job_report(&h.job, &one, h.now);
    act(&h);
    assert_int_equal(h.job.state, CONTROL_FAILED);
    assert_true(control_job_holds(&h.job, h.node_of[0]));
    one.pid = 0;
    control_job_report(&h.job, &one, h.now);
    act(&h);
    assert_false(control_job_holds(&h.job, h.node_of[0]));
    finish(&h);
}

static void a_registry_that_fails_is_no_secret(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 2);
    h.fail_stores = true;
    all_report(&h, CONTROL_RANK_DONE);
    assert_int_equal(h.ended, 0); /* not told before it is stored */
    assert_string_equal(control_job_text(&h.job), "running");
    tick(&h, S);
    assert_int_equal(h.ended, 0);
    h.fail_stores = false;
    tick(&h, S);
    assert_int_equal(h.ended, 1);
    assert_int_equal(h.stored, CONTROL_DONE);
    finish(&h);

    memset(&h, 0, sizeof h);
    h.fail_stores = true;
    assert_int_equal(control_job_open(&h.job, 1, &CONTROL_LIMITS_DEFAULT), INSPAN_OK);
    control_rank_t one = {.node = 3, .node_name = "n"};
    assert_int_equal(control_job_start(&h.job, &one, 1, 0), INSPAN_OK);
    act(&h);
    assert_int_equal(h.started[0], 0);
    h.fail_stores = false;
    tick(&h, 2 * S);
    assert_int_equal(h.job.state, CONTROL_FAILED);
    assert_non_null(strstr(h.job.reason, "disk full"));
    finish(&h);
}

static void hostile_reports_change_nothing(void **state)
{
    (void)state;
    harness_t h;
    run_up(&h, 2);
    control_report_t wrong[] = {
        {.node = h.node_of[0], .rank = 1, .state = CONTROL_RANK_FAILED},
        {.node = 999, .rank = 0, .state = CONTROL_RANK_DONE},
        {.node = h.node_of[0], .rank = 77, .state = CONTROL_RANK_DONE},
        {.node = h.node_of[0], .rank = 0, .state = CONTROL_RANK_BOUND, .port = 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) control_job_report(&h.job, &wrong[i], h.now);
    act(&h);
    assert_int_equal(h.job.state, CONTROL_RUNNING);
    assert_int_equal(h.job.ranks[0].port, 7500);
    fail_report(&h, 0, 4000, INSPAN_PEER_LOST, 0, "rank 4000 did it"); /* a rank that does not exist */
    tick(&h, 500 * MS);
    assert_int_equal(h.job.cause.rank, -1);
    assert_string_equal(h.job.reason, "rank 4000 did it");
    finish(&h);
}

/* Random histories; the harness asserts the invariants, and every history must come to its end. */
static void random_histories_end_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 1);
        harness_t h;
        begin(&h, 1 + (uint32_t)rng_below(&rng, WORLD));
        for (int i = 0; i < 60; i++) {
            uint32_t r = (uint32_t)rng_below(&rng, h.job.world);
            control_report_t one = {
                .node = h.node_of[r], .rank = r, .state = CONTROL_RANK_RUNNING, .port = 9};
            h.fail_stores = rng_below(&rng, 20) == 0;
            switch (rng_below(&rng, 12)) {
            case 0: fail_report(&h, r, (int32_t)rng_below(&rng, 9) - 1, INSPAN_PEER_LOST, 0, "x"); break;
            case 1:
                if (rng_below(&rng, 6) == 0) fail_report(&h, r, -1, INSPAN_OK, 9, NULL);
                break;
            case 2: control_job_node_broke(&h.job, h.node_of[r]); break;
            case 3:
                if (rng_below(&rng, 6) == 0) control_job_node_gone(&h.job, h.node_of[r], "gone", h.now);
                break;
            case 4:
                control_job_node_attached(&h.job, h.node_of[r], &one, (uint32_t)rng_below(&rng, 2), h.now);
                break;
            case 5:
                if (rng_below(&rng, 8) == 0) control_job_cancel(&h.job, "cancelled", h.now);
                break;
            case 6: tick(&h, (ns_t)rng_below(&rng, 2) * S); break;
            default: report(&h, r, (control_rank_state_t)rng_below(&rng, CONTROL_RANK_FAILED)); break;
            }
            act(&h);
        }
        h.fail_stores = false;
        for (uint32_t r = 0; r < h.job.world; r++) control_job_node_gone(&h.job, h.node_of[r], "gone", h.now);
        act(&h);
        finish(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_node_is_lost_once),
        cmocka_unit_test(a_broken_stream_may_come_back),
        cmocka_unit_test(a_restarted_manager_gives_twice_the_time),
        cmocka_unit_test(a_stall_of_our_own_is_forgiven),
        cmocka_unit_test(a_flapping_node_is_rested_longer_and_longer),
        cmocka_unit_test(a_job_runs_through),
        cmocka_unit_test(the_root_settles_at_once),
        cmocka_unit_test(a_broken_view_ends_a_fixed_job),
        cmocka_unit_test(a_blame_waits_for_its_root),
        cmocka_unit_test(a_broken_agent_explains_a_silent_worker),
        cmocka_unit_test(who_does_not_start_is_named),
        cmocka_unit_test(cancel_asks_before_it_kills),
        cmocka_unit_test(reattached_agents_carry_the_job_on),
        cmocka_unit_test(half_stored_ends_are_found_again),
        cmocka_unit_test(a_node_is_held_until_the_process_is_gone),
        cmocka_unit_test(a_registry_that_fails_is_no_secret),
        cmocka_unit_test(hostile_reports_change_nothing),
        cmocka_unit_test(random_histories_end_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
