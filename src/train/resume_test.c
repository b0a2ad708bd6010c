/* Checkpoints of a whole training, and trainings that go on from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "nn/nn.h"
#include "platform/os/os_file.h"
#include "train/checkpoint.h"
#include "train/cluster_test.h"

enum { STEPS = 14, AT = 8 }; /* one checkpoint a run: several so short after each other may be left out */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-resume-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

static job_config_t the_job(const char *optimizer)
{
    job_config_t job = jobs_of("gpt", "fp64", optimizer, STEPS);
    jobs_set(&job, "checkpoint.every", "8");
    jobs_set(&job, "train.evaluate_every", "3");
    jobs_set(&job, "sync.split", "equal"); /* whoever is to be killed in a step computes in it */
    return job;
}

static cluster_t *run(const job_config_t *job, uint32_t n, const char *resume)
{
    cluster_t *cluster = cluster_open(job, n);
    snprintf(cluster->own, sizeof cluster->own, "%s", folder);
    snprintf(cluster->resume, sizeof cluster->resume, "%s", resume);
    cluster_run(cluster);
    return cluster;
}

/* As it was announced, after `step` steps. */
static const char *checkpoint_of(uint64_t step)
{
    static char path[160];
    char name[32];
    checkpoint_name(step, name);
    snprintf(path, sizeof path, "%s/kept/%s", folder, name);
    return path;
}

static void close_to(const cluster_t *found, const cluster_t *expected)
{
    const outcome_t *a = cluster_result(found), *b = cluster_result(expected);
    const double off = relative(a->weights, b->weights, b->n);
    if (!(off <= 1e-9)) fail_msg("off by %g, at most 1e-9 is right", off);
}

static void a_job_goes_on_with_any_number_of_nodes(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"adamw", "sgd"};
    for (size_t i = 0; i < 2; i++) {
        const job_config_t job = the_job(optimizers[i]);
        cluster_t *whole = run(&job, 2, "");
        cluster_assert_well(whole);
        assert_int_equal(whole->checkpoints[AT], 1);
        assert_int_equal(whole->checkpoint_by[AT], 0);
        assert_int_equal(whole->saves, 1);
        char from[160];
        snprintf(from, sizeof from, "%s/from", folder);
        assert_int_equal(rename(checkpoint_of(AT), from), 0);
        for (uint32_t n = 1; n <= 3; n++) {
            cluster_t *rest = run(&job, n, from);
            cluster_assert_well(rest);
            cluster_assert_same_bits(rest);
            close_to(rest, whole);
            const outcome_t *found = cluster_result(rest);
            for (uint64_t step = 0; step < STEPS; step++) /* none is done again */
                assert_int_equal(found->hashes[step] != 0, step >= AT);
            assert_int_equal(rest->checkpoints[AT], 0);
            cluster_close(rest);
        }
        cluster_close(whole);
        for (uint32_t number = 0; number < 3; number++) { /* nothing is left behind */
            char own[160];
            snprintf(own, sizeof own, "%s/%u/checkpoints", folder, number);
            assert_int_not_equal(access(own, F_OK), 0);
        }
        assert_int_equal(os_remove_all(from, NULL), INSPAN_OK);
    }
}

/* The one that leads when the step commits writes. */
static void the_next_leader_writes(void **state)
{
    (void)state;
    const job_config_t job = the_job("adamw");
    cluster_t *cluster = cluster_open(&job, 3);
    snprintf(cluster->own, sizeof cluster->own, "%s", folder);
    cluster->workers[0].trouble = (trouble_t){KILL_IN_COMPUTE, 5};
    cluster_run(cluster);
    cluster_assert_well(cluster);
    assert_true(cluster->workers[0].was_killed);
    assert_int_equal(cluster->checkpoints[AT], 1);
    assert_int_equal(cluster->checkpoint_by[AT], 1);
    char from[160];
    snprintf(from, sizeof from, "%s/from", folder);
    assert_int_equal(rename(checkpoint_of(AT), from), 0);
    cluster_t *rest = run(&job, 2, from);
    cluster_assert_well(rest);
    close_to(rest, cluster);
    cluster_close(rest);
    cluster_close(cluster);
}

/* A job that ends on a due step has its last checkpoint registered before its result. */
static void the_last_one_is_not_lost(void **state)
{
    (void)state;
    job_config_t job = the_job("adamw");
    jobs_set(&job, "checkpoint.every", "14");
    cluster_t *cluster = run(&job, 2, "");
    cluster_assert_well(cluster);
    assert_int_equal(cluster->checkpoints[STEPS], 1);
    assert_int_equal(cluster->saves, 1);
    cluster_close(cluster);
    jobs_set(&job, "train.steps", "16"); /* more steps: from there */
    cluster = run(&job, 1, checkpoint_of(STEPS));
    cluster_assert_well(cluster);
    assert_true(cluster_result(cluster)->hashes[STEPS] != 0);
    cluster_close(cluster);
}

static void another_jobs_checkpoint_ends_the_job(void **state)
{
    (void)state;
    job_config_t job = the_job("adamw");
    cluster_close(run(&job, 1, ""));
    jobs_set(&job, "train.seed", "77");
    cluster_t *cluster = run(&job, 2, checkpoint_of(AT));
    for (uint32_t i = 0; i < 2; i++) {
        const outcome_t *outcome = &cluster->workers[i].outcome;
        assert_false(outcome->ended);
        assert_true(outcome->status == INSPAN_MISMATCH || outcome->status == INSPAN_ABORTED);
    }
    assert_true(cluster->workers[0].outcome.status == INSPAN_MISMATCH ||
                cluster->workers[1].outcome.status == INSPAN_MISMATCH);
    cluster_close(cluster);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_goes_on_with_any_number_of_nodes),
        TEST(the_next_leader_writes),
        TEST(the_last_one_is_not_lost),
        TEST(another_jobs_checkpoint_ends_the_job),
    };
    return cmocka_run_group_tests(tests, jobs_make_data, jobs_remove_data);
}
