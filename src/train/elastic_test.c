/*
 * Members come and go in the middle of a training: the result is that of an undisturbed run, all ranks hold
 * the same bits at every step, and every sample counts once.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "comm/backends/other_backend_test.h"
#include "train/cluster_test.h"

enum { STEPS = 14 };

static const char *backend = "native";

static cluster_t *undisturbed; /* of the fp64 job, alone */

static job_config_t disturbed_job(void)
{
    job_config_t job = jobs_of("gpt", "fp64", "adamw", STEPS);
    jobs_set(&job, "sync.backend", backend);
    jobs_set(&job, "train.evaluate_every", "3");
    jobs_set(&job, "sync.split", "equal"); /* everyone has leases at every step; unequal: split_test.c */
    jobs_set(&job, "sync.bucket",
             "16K"); /* a newcomer gets one from each member a step: it is full before the end */
    return job;
}

static void run_and_compare(cluster_t *cluster)
{
    if (undisturbed == NULL) {
        job_config_t job = disturbed_job();
        undisturbed = cluster_open(&job, 1);
        cluster_run(undisturbed);
        cluster_assert_well(undisturbed);
    }
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    const outcome_t *found = cluster_result(cluster), *expected = &undisturbed->workers[0].outcome;
    const double off = relative(found->weights, expected->weights, expected->n);
    if (!(off <= 1e-9)) fail_msg("off by %g, at most 1e-9 is right", off);
    assert_true(fabs(found->validation_last / expected->validation_last - 1) < 1e-9);
    assert_true(cluster->saves >= 1); /* again where the one that did it is lost */
}

static void one_is_lost(uint32_t n, uint32_t who, trouble_type_t type, uint64_t step)
{
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, n);
    cluster->workers[who].trouble = (trouble_t){type, step};
    run_and_compare(cluster);
    assert_true(cluster->workers[who].was_killed);
    assert_int_equal(cluster_result(cluster)->stats.recoveries, 1);
    uint64_t recomputed = 0; /* no more than the lost one had */
    for (uint32_t i = 0; i < n; i++)
        if (i != who) recomputed += cluster->workers[i].outcome.stats.samples_recomputed;
    assert_true(recomputed <= (13 + n - 1) / n);
    cluster_close(cluster);
}

static void killed_in_compute(void **state)
{
    (void)state;
    one_is_lost(3, 1, KILL_IN_COMPUTE, 5);
    one_is_lost(2, 1, KILL_IN_COMPUTE, 0);
}

static void killed_in_the_middle_of_a_bucket(void **state)
{
    (void)state;
    one_is_lost(3, 2, KILL_IN_BUCKET, 6);
    one_is_lost(5, 3, KILL_IN_BUCKET, 13);
}

static void killed_between_vote_and_commit(void **state)
{
    (void)state;
    one_is_lost(3, 1, KILL_AFTER_VOTE, 5);
    one_is_lost(4, 3, KILL_AFTER_VOTE, STEPS); /* the closing step */
}

static void killed_after_the_update(void **state)
{
    (void)state;
    one_is_lost(3, 1, KILL_AFTER_APPLY, 4);
}

static void the_leader_is_lost(void **state)
{
    (void)state;
    one_is_lost(3, 0, KILL_IN_COMPUTE, 3);
    one_is_lost(3, 0, KILL_BEFORE_COMMIT, 5);
    one_is_lost(3, 0, KILL_IN_COMMIT, 7);
    one_is_lost(3, 0, KILL_IN_COMMIT, STEPS);
}

/* Silent, its connections stand: noticed by the others' failure timeout. */
static void stopped_like_a_closed_lid(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->failure_timeout = NS_PER_S;
    cluster->workers[2].trouble = (trouble_t){STOP_IN_COMPUTE, 5};
    run_and_compare(cluster);
    assert_true(cluster->workers[2].was_killed);
    cluster_close(cluster);
}

static void two_are_lost_one_after_the_other(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 4);
    cluster->workers[1].trouble = (trouble_t){KILL_IN_BUCKET, 5};
    cluster->workers[3].trouble = (trouble_t){KILL_AFTER_VOTE, 5};
    run_and_compare(cluster);
    assert_true(cluster->workers[1].was_killed && cluster->workers[3].was_killed);
    cluster_close(cluster);
}

/* All others are lost at once: the last one goes on alone. */
static void the_last_one_goes_on(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[0].trouble = (trouble_t){KILL_IN_COMPUTE, 4};
    cluster->workers[1].trouble = (trouble_t){KILL_IN_COMPUTE, 4};
    run_and_compare(cluster);
    assert_int_equal(cluster_result(cluster)->stats.members, 1);
    cluster_close(cluster);
}

static void newcomers(uint32_t n, uint32_t joiners, uint64_t step)
{
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, n);
    cluster->joiners = joiners;
    cluster->join_at = step;
    run_and_compare(cluster);
    for (uint32_t i = n; i < n + joiners; i++) {
        const outcome_t *outcome = &cluster->workers[i].outcome;
        assert_true(outcome->stats.full && outcome->stats.bytes_copied > 0);
        assert_true(outcome->stats.samples > 0);
    }
    assert_int_equal(cluster_result(cluster)->stats.recoveries, 0);
    assert_int_equal(cluster_result(cluster)->stats.samples_recomputed, 0);
    cluster_close(cluster);
}

static void a_newcomer_joins(void **state)
{
    (void)state;
    newcomers(2, 1, 2);
    newcomers(1, 1, 0);
}

static void two_newcomers_at_once(void **state)
{
    (void)state;
    newcomers(3, 2, 3);
}

/* It dies while weights are being copied to it, or right after. */
static void a_newcomer_is_lost(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->joiners = 1;
    cluster->join_at = 2;
    cluster->workers[2].trouble = (trouble_t){KILL_AFTER_VOTE, 4};
    run_and_compare(cluster);
    assert_true(cluster->workers[2].was_killed);
    cluster_close(cluster);
}

/* It says so itself and goes; those that train do not hear of its model. */
static void a_newcomer_with_another_model(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->joiners = 1;
    cluster->join_at = 2;
    cluster->workers[2].job = job;
    jobs_set(&cluster->workers[2].job, "model.layers", "3");
    cluster_run(cluster);
    assert_false(cluster->failed);
    const outcome_t *newcomer = &cluster->workers[2].outcome;
    assert_int_equal(newcomer->status, INSPAN_MISMATCH);
    if (strstr(newcomer->err.text, "(rank 2) joins with another model than rank 0") == NULL)
        fail_msg("%s", newcomer->err.text);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(cluster->workers[i].outcome.status, INSPAN_OK);
    cluster_close(cluster);
}

/* The donor dies while a newcomer takes its weights: another gives them. */
static void a_donor_is_lost(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->joiners = 1;
    cluster->join_at = 2;
    cluster->workers[1].trouble = (trouble_t){KILL_IN_COMPUTE, 4};
    run_and_compare(cluster);
    assert_true(cluster->workers[1].was_killed && cluster->workers[2].outcome.stats.full);
    cluster_close(cluster);
}

/* Asked to go it hands over: nobody computes a sample twice, and no bit differs. */
static void leaves(uint32_t who)
{
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[who].trouble = (trouble_t){LEAVE, 4};
    run_and_compare(cluster);
    assert_true(cluster->workers[who].has_left && !cluster->workers[who].was_killed);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(cluster->workers[i].outcome.stats.samples_recomputed, 0);
    cluster_close(cluster);
}

static void a_member_leaves(void **state)
{
    (void)state;
    leaves(2);
    leaves(0); /* the leader */
}

/* G4: it has handed over, but who took over is lost before the view without it is out. It trains on to the
 * end: the last one is never let go. */
static void a_leaver_is_taken_back(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->widow = true;
    cluster->workers[1].trouble = (trouble_t){LEAVE, 4};
    run_and_compare(cluster);
    assert_int_equal(cluster->taken_back, 1);
    assert_true(cluster->workers[0].was_killed && !cluster->workers[1].has_left);
    cluster_close(cluster);
}

/* Storing takes long, members come and go meanwhile: an answer to what was said in an older view ends
 * nothing. */
static void the_view_changes_while_the_result_is_stored(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    for (uint32_t n = 1; n <= 3; n += 2) {
        cluster_t *cluster = cluster_open(&job, n);
        cluster->late_answer = true;
        run_and_compare(cluster);
        assert_false(cluster->failed);
        assert_int_equal(cluster->saves, 1);
        assert_int_equal(cluster->views, 2);
        cluster_close(cluster);
    }
}

static void lost_in_fp32(void **state)
{
    (void)state;
    job_config_t job = jobs_of("gpt", "fp32", "sgd", STEPS);
    cluster_t *alone = cluster_open(&job, 1), *cluster = cluster_open(&job, 3);
    cluster_run(alone);
    cluster->workers[1].trouble = (trouble_t){KILL_IN_BUCKET, 5};
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    const outcome_t *found = cluster_result(cluster), *expected = cluster_result(alone);
    assert_true(relative(found->weights, expected->weights, expected->n) < 1e-5);
    cluster_close(alone);
    cluster_close(cluster);
}

/* on_loss: drop. What the lost one had in that step is left out and recorded; no other step lacks anything.
 */
static void what_is_lost_may_be_dropped(void **state)
{
    (void)state;
    job_config_t job = disturbed_job();
    jobs_set(&job, "on_loss", "drop");
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[1].trouble = (trouble_t){KILL_IN_COMPUTE, 5};
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    const outcome_t *found = cluster_result(cluster);
    for (uint64_t step = 0; step < STEPS; step++) {
        uint32_t dropped = 0;
        for (uint32_t lease = 0; lease < 13; lease++) dropped += found->owners[step][lease] < 0;
        assert_true(step == 5 ? dropped > 0 && dropped <= 5 : dropped == 0);
    }
    assert_int_equal(found->stats.samples_recomputed, 0);
    cluster_close(cluster);
}

/* One step alone: the gradient to the last bits. */
static void the_gradient_of_a_disturbed_step(void **state)
{
    (void)state;
    job_config_t job = jobs_of("gpt", "fp64", "sgd", 1);
    static const trouble_type_t troubles[] = {KILL_IN_COMPUTE, KILL_IN_BUCKET, KILL_AFTER_VOTE};
    cluster_t *alone = cluster_open(&job, 1);
    cluster_run(alone);
    for (size_t i = 0; i < sizeof troubles / sizeof troubles[0]; i++) {
        cluster_t *cluster = cluster_open(&job, 3);
        cluster->workers[2].trouble = (trouble_t){troubles[i], 0};
        cluster_run(cluster);
        cluster_assert_well(cluster);
        const outcome_t *found = cluster_result(cluster), *expected = cluster_result(alone);
        assert_true(relative(found->gradient, expected->gradient, expected->n) < 1e-12);
        cluster_close(cluster);
    }
    cluster_close(alone);
}

static int remove_all(void **state)
{
    if (undisturbed != NULL) cluster_close(undisturbed);
    undisturbed = NULL;
    return jobs_remove_data(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_in_compute),
        cmocka_unit_test(killed_in_the_middle_of_a_bucket),
        cmocka_unit_test(killed_between_vote_and_commit),
        cmocka_unit_test(killed_after_the_update),
        cmocka_unit_test(the_leader_is_lost),
        cmocka_unit_test(stopped_like_a_closed_lid),
        cmocka_unit_test(two_are_lost_one_after_the_other),
        cmocka_unit_test(the_last_one_goes_on),
        cmocka_unit_test(a_newcomer_joins),
        cmocka_unit_test(two_newcomers_at_once),
        cmocka_unit_test(a_newcomer_is_lost),
        cmocka_unit_test(a_newcomer_with_another_model),
        cmocka_unit_test(a_donor_is_lost),
        cmocka_unit_test(a_member_leaves),
        cmocka_unit_test(a_leaver_is_taken_back),
        cmocka_unit_test(the_view_changes_while_the_result_is_stored),
        cmocka_unit_test(lost_in_fp32),
        cmocka_unit_test(what_is_lost_may_be_dropped),
        cmocka_unit_test(the_gradient_of_a_disturbed_step),
    };
    int failed = cmocka_run_group_tests(tests, jobs_make_data, remove_all);
    for (uint32_t i = 1; (backend = other_backend(&i)) != NULL;)
        failed += cmocka_run_group_tests_name(backend, tests, jobs_make_data, remove_all);
    return failed;
}
