/* Elastic jobs at random: the world asserts the invariants, and every history must come to its end. */
#include "core/control/views_world_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

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
        act(w);
        if (some < NODES && rng_below(rng, 4) == 0)
            control_job_leave_out(&w->job, w->processes[some].rank, "slow", w->now);
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
            else if (process->state >= CONTROL_RANK_RUNNING && process->view == w->job.view && round > 200)
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
    for (uint32_t node = 0; node < NODES;
         node++) /* its end did not wait for newcomers of nodes that are away */
        if (!w->attached[node]) attach(w, node);
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
        cmocka_unit_test(random_histories_keep_the_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
