/*
 * sync.mode local: members update weights of their own within a step, and the job's follow the mean of their
 * ways. The step is the transaction that it always is: members come and go, all hold the same bits, every
 * sample counts once.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/cluster_test.h"

enum { STEPS = 20 }; /* three times as many are below STEPS_MAX */

static job_config_t local_job(const char *dtype, const char *local_batch)
{
    job_config_t job = jobs_of("gpt", dtype, "adamw", STEPS);
    jobs_set(&job, "train.global_batch", "24");
    jobs_set(&job, "train.warmup", "1");
    jobs_set(&job, "sync.mode", "local");
    jobs_set(&job, "sync.local_batch", local_batch);
    jobs_set(&job, "sync.split", "equal");
    jobs_set(&job, "sync.bucket", "16K");
    return job;
}

static cluster_t *run_job(const job_config_t *job, uint32_t n)
{
    cluster_t *cluster = cluster_open(job, n);
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    return cluster;
}

/* In local mode one node, whose weights the job's follow all the way: where `same` trains without it, the two
 * end with the same weights and held-out losses. */
static void local_is_exact(job_config_t *job, const job_config_t *same)
{
    jobs_set(job, "sync.outer_lr", "1");
    jobs_set(job, "sync.outer_momentum", "0");
    cluster_t *local = run_job(job, 1), *exact = run_job(same, 1);
    const outcome_t *found = cluster_result(local), *expected = cluster_result(exact);
    const double off = relative(found->weights, expected->weights, expected->n);
    if (!(off < 1e-10)) fail_msg("weights off by %g", off);
    assert_true(fabs(found->validation_first / expected->validation_first - 1) < 1e-12);
    assert_true(fabs(found->validation_last / expected->validation_last - 1) < 1e-9);
    cluster_close(local);
    cluster_close(exact);
}

static void one_update_a_step_is_exact(void **state)
{
    (void)state;
    job_config_t job = local_job("fp64", "24");
    jobs_set(&job, "train.micro_batch", "24"); /* one run a step */
    job_config_t same = job;
    jobs_set(&same, "sync.mode", "exact");
    local_is_exact(&job, &same);
}

/* A step of three updates is three steps, whatever runs it is cut into, and held-out samples are looked at
 * with the weights of the step's beginning. */
static void many_updates_a_step_are_as_many_steps(void **state)
{
    (void)state;
    job_config_t job = local_job("fp64", "8"), same = jobs_of("gpt", "fp64", "adamw", 3 * STEPS);
    jobs_set(&job, "train.micro_batch", "8");
    jobs_set(&same, "train.global_batch", "8");
    jobs_set(&same, "train.micro_batch", "8");
    jobs_set(&same, "train.warmup", "3");
    local_is_exact(&job, &same);
}

static void learns(const cluster_t *cluster)
{
    const outcome_t *found = cluster_result(cluster);
    if (!(found->validation_last < 0.9 * found->validation_first))
        fail_msg("held out %g at first, %g in the end", found->validation_first, found->validation_last);
}

/* As many samples give a model about as good as that of exact training with updates of as many samples. */
static void any_number_of_members_learns(void **state)
{
    (void)state;
    job_config_t exact = jobs_of("gpt", "fp32", "adamw", STEPS * 2);
    jobs_set(&exact, "train.global_batch", "12");
    cluster_t *reference = run_job(&exact, 1);
    const double expected = cluster_result(reference)->validation_last;
    job_config_t job = local_job("fp32", "4");
    for (uint32_t n = 1; n <= 4; n++) {
        cluster_t *cluster = run_job(&job, n);
        learns(cluster);
        const double ratio = cluster_result(cluster)->validation_last / expected;
        if (!(ratio < 1.05))
            fail_msg("%u members: the held-out loss is %g times that of exact training", n, ratio);
        assert_non_null(strstr(cluster_result(cluster)->summary, "\"local_updates\":"));
        cluster_close(cluster);
    }
    cluster_close(reference);
}

static void members_are_lost(void **state)
{
    (void)state;
    static const trouble_type_t troubles[] = {KILL_IN_COMPUTE,    KILL_IN_BUCKET, KILL_AFTER_VOTE,
                                              KILL_BEFORE_COMMIT, KILL_IN_COMMIT, KILL_AFTER_APPLY};
    for (size_t t = 0; t < sizeof troubles / sizeof troubles[0]; t++) {
        job_config_t job = local_job("fp32", "4");
        jobs_set(&job, "train.evaluate_every", "3");
        if (t % 2) jobs_set(&job, "sync.wire", "int8");
        const uint32_t who = troubles[t] == KILL_BEFORE_COMMIT || troubles[t] == KILL_IN_COMMIT ? 0 : 1;
        cluster_t *cluster = cluster_open(&job, 3);
        cluster->workers[who].trouble = (trouble_t){troubles[t], 9};
        cluster_run(cluster);
        cluster_assert_well(cluster);
        cluster_assert_same_bits(cluster);
        cluster_assert_ledger(cluster);
        assert_true(cluster->workers[who].was_killed);
        learns(cluster);
        cluster_close(cluster);
    }
}

static void newcomers_join_and_members_leave(void **state)
{
    (void)state;
    job_config_t job = local_job("fp32", "4");
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->joiners = 1;
    cluster->join_at = 4;
    cluster->workers[1].trouble = (trouble_t){LEAVE, 18};
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    learns(cluster);
    cluster_close(cluster);
}

/* By speed: who computes more counts for more, and who runs dry takes what is left. */
static ns_t second_is_slow(uint32_t number, uint64_t step)
{
    (void)step;
    return number == 1 ? 16 * NS_PER_MS : NS_PER_MS; /* far more than a busy machine adds to either */
}

static void unequal_members_share_by_speed(void **state)
{
    (void)state;
    job_config_t job = local_job("fp32", "4");
    jobs_set(&job, "sync.split", "auto");
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->slow = second_is_slow;
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
    learns(cluster);
    assert_true(cluster->workers[0].outcome.stats.samples > cluster->workers[1].outcome.stats.samples);
    cluster_close(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_update_a_step_is_exact),
        cmocka_unit_test(many_updates_a_step_are_as_many_steps),
        cmocka_unit_test(any_number_of_members_learns),
        cmocka_unit_test(members_are_lost),
        cmocka_unit_test(newcomers_join_and_members_leave),
        cmocka_unit_test(unequal_members_share_by_speed),
    };
    return cmocka_run_group_tests_name("train-local", tests, jobs_make_data, jobs_remove_data);
}
