/* Elastic jobs, rule by rule. */
#include "core/control/views_world_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    failed(&w, 1, INSPAN_NO_MEMORY, "worker of rank 1 on node b: out of memory");
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_string_equal(w.news, "lost worker 1 on node b (out of memory); 1 member goes on");
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

static void said_left(world_t *w, uint32_t r, uint64_t view)
{
    control_report_t report = report_of(w, r, CONTROL_RANK_LEFT);
    report.left_view = view;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void it_left(world_t *w, uint32_t r)
{
    said_left(w, r, report_of(w, r, CONTROL_RANK_LEFT).left_view);
}

/* Its slow link, say: the others are faster without it. */
static void who_slows_the_others_is_left_out(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 3, 2, 3);
    assert_false(control_job_leave_out(&w.job, 7, "", w.now)); /* no such worker */
    assert_true(control_job_leave_out(&w.job, 2, "its link takes 1.2 s of a step", w.now));
    act(&w);
    assert_int_equal(w.asked[2], 1);
    assert_false(control_job_leave_out(&w.job, 1, "so does this one", w.now)); /* one at a time */
    control_job_node_broke(&w.job, 12);
    attach(&w, 2); /* said again to an agent that was away */
    assert_int_equal(w.asked[2], 2);
    it_left(&w, 2);
    assert_int_equal(w.job.members.n, 2);
    assert_string_equal(w.news, "worker 2 on node c left (the job is predicted to be faster without it: its "
                                "link takes 1.2 s of a step); 2 members go on");
    assert_int_equal(w.lost[2], 0);
    killed(&w, 2); /* it has gone */
    open_view(&w);
    assert_false(control_job_leave_out(&w.job, 1, "too few would be left", w.now));
    assert_int_equal(control_job_wants(&w.job), 1);
    assert_true(control_job_avoids(&w.job, 12, w.now));
    assert_false(control_job_avoids(&w.job, 11, w.now));
    assert_int_equal(grow(&w, 2), INSPAN_INVALID);
    pass(&w, 59 * S);
    assert_int_equal(grow(&w, 2), INSPAN_INVALID);
    pass(&w, S); /* it may have recovered */
    assert_int_equal(grow(&w, 2), INSPAN_OK);
    tell(&w, 3, CONTROL_RANK_BOUND);
    pass(&w, 100 * MS);
    open_view(&w);
    assert_true(control_job_leave_out(&w.job, 3, "its link", w.now)); /* again: for longer */
    act(&w);
    assert_int_equal(w.job.left_out.n, 1);
    assert_int_equal(w.job.left_out.items[0].times, 2);
    assert_int_equal(w.job.left_out.items[0].until, w.now + 120 * S);
    it_left(&w, 3);
    killed(&w, 3);
    open_view(&w);
    killed(&w, 1); /* better a slow one than none */
    assert_false(control_job_avoids(&w.job, 12, w.now));
    assert_int_equal(grow(&w, 2), INSPAN_OK);
    end(&w);
}

static void a_pause_grows_and_is_forgotten(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 2);
    ns_t pause = 60 * S;
    for (int i = 0; i < 9; i++) {
        uint32_t r = w.job.world - 1;
        assert_true(control_job_leave_out(&w.job, r, "", w.now));
        act(&w);
        assert_int_equal(w.job.left_out.items[0].until, w.now + pause);
        if (pause < 3600 * S) pause *= 2;
        if (pause > 3600 * S) pause = 3600 * S;
        it_left(&w, r);
        killed(&w, r);
        open_view(&w);
        pass(&w, w.job.left_out.items[0].until - w.now);
        assert_int_equal(grow(&w, 1), INSPAN_OK);
        tell(&w, r + 1, CONTROL_RANK_BOUND);
        pass(&w, 100 * MS);
        open_view(&w);
    }
    assert_int_equal(w.job.left_out.items[0].times, 9);
    pass(&w, 600 * S);
    assert_true(control_job_leave_out(&w.job, w.job.world - 1, "", w.now));
    act(&w);
    assert_int_equal(w.job.left_out.items[0].times, 1);
    end(&w);
}

static void who_can_do_more_is_taken_back_sooner(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 2);
    control_job_take_back(&w.job, 11); /* nobody has let it go */
    assert_true(control_job_leave_out(&w.job, 1, "slow", w.now));
    act(&w);
    it_left(&w, 1);
    killed(&w, 1);
    open_view(&w);
    control_job_take_back(&w.job, 11);
    assert_true(control_job_avoids(&w.job, 11, w.now + 9 * S));
    assert_false(control_job_avoids(&w.job, 11, w.now + 10 * S));
    control_job_take_back(&w.job, 11); /* and no sooner for being asked again */
    assert_true(control_job_avoids(&w.job, 11, w.now + 9 * S));
    end(&w);
}

static void nobody_is_left_out_at_the_wrong_time(void **state)
{
    (void)state;
    static world_t w;
    begin(&w, 2, 1, 2);
    for (uint32_t r = 0; r < 2; r++) tell(&w, r, CONTROL_RANK_BOUND);
    assert_false(control_job_leave_out(&w.job, 1, "", w.now)); /* nobody trains yet */
    end(&w);
    run_up(&w, 2, 1, 2);
    committed(&w, 0, 98); /* of 100 */
    assert_false(control_job_leave_out(&w.job, 1, "", w.now));
    end(&w);
    run_up(&w, 2, 1, 2);
    assert_int_equal(w.job.members.n, 2);
    control_job_leave(&w.job, 10, w.now); /* drained */
    act(&w);
    assert_false(control_job_leave_out(&w.job, 1, "", w.now));
    end(&w);
    run_up(&w, 1, 1, 2); /* the one that knows everything */
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    tell(&w, 1, CONTROL_RANK_BOUND);
    pass(&w, 100 * MS);
    open_view(&w);
    assert_int_equal(w.job.members.n, 2);
    assert_false(control_job_leave_out(&w.job, 0, "", w.now));
    assert_true(control_job_leave_out(&w.job, 1, "", w.now));
    end(&w);
}

/* G3: two members, one leaves; the other is lost first. By G4 the leaver is taken back, it has the only whole
 * model: its LEFT of the view before must not take it out. */
static void an_old_left_is_void(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 2);
    control_job_leave(&w.job, 11, w.now);
    act(&w);
    killed(&w, 0);
    assert_int_equal(w.job.view, 2);
    said_left(&w, 1, 1);
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.ranks[1].state, CONTROL_RANK_RUNNING);
    open_view(&w);
    said_left(&w, 1, 1); /* as an agent that attaches again repeats it */
    said_left(&w, 1, 3); /* and one that cannot be */
    assert_int_equal(w.job.view, 2);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    assert_int_equal(w.stops[1], 0);
    end(&w);

    run_up(&w, 2, 1, 2); /* the view without the lost one could not be stored yet */
    w.fail_stores = true;
    killed(&w, 0);
    w.fail_stores = false;
    said_left(&w, 1, 1);
    pass(&w, 2 * S);
    assert_int_equal(w.job.members.n, 1);
    assert_true(control_job_member(&w.job, 1));
    end(&w);
}

/* The COMMIT that lets it go makes the newcomer full: whose word may come later. */
static void a_leaver_waits_for_the_word_of_who_takes_over(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 1, 1, 2);
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    tell(&w, 1, CONTROL_RANK_BOUND);
    pass(&w, S);
    open_view(&w);
    assert_int_equal(w.job.view, 2);
    control_job_leave(&w.job, 10, w.now);
    act(&w);
    said_left(&w, 0, 2);
    pass(&w, S);
    assert_int_equal(w.job.view, 2);
    w.processes[1].full = true;
    tell(&w, 1, CONTROL_RANK_RUNNING);
    assert_int_equal(w.job.view, 3);
    assert_int_equal(w.job.members.n, 1);
    assert_int_equal(w.job.ranks[0].state, CONTROL_RANK_LEFT);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    end(&w);
}

/* A newcomer that has just been started is no member: nobody waits for it, and it goes at once. */
static void the_end_does_not_wait_for_a_newcomer(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 2, 1, 3);
    committed(&w, 0, 50);
    assert_int_equal(grow(&w, 2), INSPAN_OK);
    tell(&w, 2, CONTROL_RANK_STARTED);
    control_job_result(&w.job, w.now);
    act(&w);
    tell(&w, 0, CONTROL_RANK_DONE);
    assert_int_equal(w.job.state, CONTROL_RUNNING); /* the other's summary is on its way */
    tell(&w, 1, CONTROL_RANK_DONE);
    assert_int_equal(w.job.state, CONTROL_DONE);
    assert_int_equal(w.stops[2], 1);
    end(&w);
}

/* A newcomer becomes full by a commit, and its word may come after the end of the one it has it from: what is
 * committed must not be undone then. */
static void who_has_just_become_full_goes_on(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 1, 1, 2);
    assert_int_equal(grow(&w, 1), INSPAN_OK);
    tell(&w, 1, CONTROL_RANK_BOUND);
    pass(&w, S);
    open_view(&w);
    killed(&w, 0);
    assert_int_equal(w.job.view, 2);
    w.processes[1].full = true;
    tell(&w, 1, CONTROL_RANK_RUNNING);
    assert_int_equal(w.job.view, 3);
    assert_int_equal(w.job.members.n, 1);
    assert_false(w.job.members.first);
    assert_int_equal(w.kills[1], 0);
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
    killed(&w, 0); /* the newcomer has no whole model yet, as far as is known */
    assert_int_equal(w.job.view, 2);
    pass(&w, S / 2);
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

/* Its own failure after the last step. */
static void cannot_save(world_t *w, uint32_t r)
{
    control_report_t report = report_of(w, r, CONTROL_RANK_FAILED);
    report.pid = 0;
    report.has_cause = true;
    report.step = report.steps = 100;
    report.cause = (inspan_cause_t){.status = INSPAN_IO, .rank = (int32_t)r, .noticed_by = (int32_t)r};
    snprintf(report.cause.text, sizeof report.cause.text,
             "cannot write /srv/out/model.safetensors: No space left on device");
    w->processes[node_of(w, r)].exists = false;
    control_job_report(&w->job, &report, w->now);
    act(w);
}

static void start_over(world_t *w, uint32_t node, uint32_t r)
{
    pass(w, S);
    assert_int_equal(grow(w, node), INSPAN_OK);
    tell(w, r, CONTROL_RANK_BOUND);
    pass(w, S);
    open_view(w);
    assert_int_equal(w->job.state, CONTROL_RUNNING);
}

static void a_result_that_cannot_be_saved_ends_the_job(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 4, 1, 4); /* three leaders, one after the other */
    committed(&w, 0, 100);
    cannot_save(&w, 0);
    open_view(&w);
    cannot_save(&w, 1);
    open_view(&w);
    assert_int_equal(w.job.state, CONTROL_RUNNING);
    cannot_save(&w, 2);
    assert_int_equal(w.job.state, CONTROL_ENDING);
    assert_int_equal(w.job.outcome, CONTROL_FAILED);
    assert_string_equal(
        w.job.reason,
        "3 workers could not save the result, the last: rank 2 on node c (10.0.0.3:7502): cannot "
        "write /srv/out/model.safetensors: No space left on device; make room or repair the disk "
        "there, then go on from the last checkpoint: inspan train FILE --resume");
    assert_int_equal(w.job.cause.status, INSPAN_IO);
    end(&w);

    run_up(&w, 1, 1, 1); /* alone: the second time */
    cannot_save(&w, 0);
    assert_int_equal(w.job.state, CONTROL_STARTING);
    start_over(&w, 0, 1);
    cannot_save(&w, 1);
    assert_int_equal(w.job.state, CONTROL_FAILED);
    assert_non_null(strstr(w.job.reason, "2 workers could not save the result, the last: rank 1 on node a"));
    end(&w);

    run_up(&w, 1, 1, 1); /* on another node the second time: it may have been the last one left by chance */
    cannot_save(&w, 0);
    start_over(&w, 1, 1);
    cannot_save(&w, 1);
    assert_int_equal(w.job.state, CONTROL_STARTING);
    end(&w);

    run_up(&w, 1, 1,
           1); /* a disk that fails in mid-job, a process that is killed at the end: lost, as ever */
    failed(&w, 0, INSPAN_IO, "cannot read /srv/data/part-0: Input/output error");
    start_over(&w, 0, 1);
    committed(&w, 1, 100);
    killed(&w, 1);
    start_over(&w, 0, 2);
    cannot_save(&w, 2);
    assert_int_equal(w.job.state, CONTROL_STARTING);
    end(&w);
}

/* What the registry kept of the first failure counts. */
static void a_restarted_manager_knows_who_could_not_save(void **state)
{
    (void)state;
    static world_t w;
    run_up(&w, 1, 1, 1);
    cannot_save(&w, 0);
    control_report_t report = report_of(&w, 0, CONTROL_RANK_FAILED);
    report.has_cause = true;
    report.step = report.steps = 100;
    report.cause = (inspan_cause_t){.status = INSPAN_IO, .rank = 0, .noticed_by = 0};
    restart(&w);
    control_job_recall(&w.job, &report, 1, w.now);
    act(&w);
    start_over(&w, 0, 1);
    cannot_save(&w, 1);
    assert_int_equal(w.job.state, CONTROL_FAILED);
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
        cmocka_unit_test(who_slows_the_others_is_left_out),
        cmocka_unit_test(a_pause_grows_and_is_forgotten),
        cmocka_unit_test(who_can_do_more_is_taken_back_sooner),
        cmocka_unit_test(nobody_is_left_out_at_the_wrong_time),
        cmocka_unit_test(an_old_left_is_void),
        cmocka_unit_test(a_leaver_waits_for_the_word_of_who_takes_over),
        cmocka_unit_test(the_end_does_not_wait_for_a_newcomer),
        cmocka_unit_test(who_has_just_become_full_goes_on),
        cmocka_unit_test(nobody_left_begins_a_new_lineage),
        cmocka_unit_test(a_result_that_cannot_be_saved_ends_the_job),
        cmocka_unit_test(a_restarted_manager_knows_who_could_not_save),
        cmocka_unit_test(a_restarted_manager_announces_the_same_view),
        cmocka_unit_test(an_event_issues_one_view),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
