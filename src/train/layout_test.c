/*
 * Gradients that come to lie in other buckets every other step, while members come and go: the result is that
 * of an undisturbed run, all ranks hold the same bits at every step, and every sample counts once.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/cluster_test.h"

enum { STEPS = 14 };

static job_config_t shuffled_job(const char *dtype)
{
    job_config_t job = jobs_of("gpt", dtype, "adamw", STEPS);
    jobs_set(&job, "train.evaluate_every", "3");
    jobs_set(&job, "sync.split", "equal");
    jobs_set(&job, "sync.bucket", "16K");
    return job;
}

static cluster_t *open_cluster(uint32_t n)
{
    job_config_t job = shuffled_job("fp64");
    cluster_t *cluster = cluster_open(&job, n);
    cluster->shuffled = true;
    return cluster;
}

static void run_and_compare(cluster_t *cluster)
{
    job_config_t job = shuffled_job("fp64");
    cluster_t *alone = cluster_open(&job, 1);
    cluster_run(alone);
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    const outcome_t *found = cluster_result(cluster), *expected = &alone->workers[0].outcome;
    const double off = relative(found->weights, expected->weights, expected->n);
    if (!(off <= 1e-9)) fail_msg("off by %g, at most 1e-9 is right", off);
    if (found->stats.layouts < 3)
        fail_msg("only %" PRIu64 " changes of the layout in %d steps", found->stats.layouts, STEPS);
    cluster_close(alone);
}

static void nobody_is_lost(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        cluster_t *cluster = open_cluster(n);
        run_and_compare(cluster);
        assert_true(cluster_result(cluster)->stats.layouts >= STEPS / 2 - 2);
        cluster_close(cluster);
    }
}

static void one_is_lost(uint32_t who, trouble_type_t type, uint64_t step)
{
    cluster_t *cluster = open_cluster(3);
    cluster->workers[who].trouble = (trouble_t){type, step};
    run_and_compare(cluster);
    assert_true(cluster->workers[who].was_killed);
    cluster_close(cluster);
}

/* Steps of both kinds: such as begin with another layout, and such as do not. */
static void lost_while_the_layout_changes(void **state)
{
    (void)state;
    for (uint64_t step = 5; step <= 6; step++) {
        one_is_lost(1, KILL_IN_BUCKET, step);
        one_is_lost(2, KILL_AFTER_VOTE, step);
        one_is_lost(0, KILL_BEFORE_COMMIT, step);
        one_is_lost(0, KILL_IN_COMMIT, step);
    }
}

/* They begin with the first layout, and take up the present one. */
static void newcomers_find_the_layout(void **state)
{
    (void)state;
    cluster_t *cluster = open_cluster(2);
    cluster->joiners = 2;
    cluster->join_at = 3;
    run_and_compare(cluster);
    for (uint32_t i = 2; i < 4; i++) {
        const outcome_t *outcome = &cluster->workers[i].outcome;
        assert_true(outcome->stats.full && outcome->stats.samples > 0 && outcome->stats.layouts > 0);
    }
    cluster_close(cluster);
}

/* What rounding took from a gradient moves along with it. */
static void rounding_is_made_up_for(void **state)
{
    (void)state;
    job_config_t job = shuffled_job("fp32");
    jobs_set(&job, "sync.wire", "int8");
    jobs_set(&job, "sync.exactness", "close");
    cluster_t *still = cluster_open(&job, 2), *shuffled = cluster_open(&job, 2);
    shuffled->shuffled = true;
    cluster_run(still);
    cluster_run(shuffled);
    cluster_assert_well(shuffled);
    cluster_assert_same_bits(shuffled);
    const outcome_t *found = cluster_result(shuffled), *expected = cluster_result(still);
    assert_true(found->stats.layouts >= 3);
    assert_true(fabs(found->validation_last / expected->validation_last - 1) < 0.02);
    cluster_close(still);
    cluster_close(shuffled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_lost),
        cmocka_unit_test(lost_while_the_layout_changes),
        cmocka_unit_test(newcomers_find_the_layout),
        cmocka_unit_test(rounding_is_made_up_for),
    };
    return cmocka_run_group_tests(tests, jobs_make_data, jobs_remove_data);
}
