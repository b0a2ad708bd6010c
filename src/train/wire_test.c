/*
 * Gradients rounded for the wire: all ranks hold the same bits, every sample counts once, members come and
 * go, and the model learns as it does without.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/cluster_test.h"

enum { STEPS = 40 };

static const char *const wires[] = {"bf16", "fp16", "int8"};
#define WIRES (sizeof wires / sizeof wires[0])

static cluster_t *exact; /* the same in fp32 */

static cluster_t *open_job(const char *wire, uint32_t n)
{
    job_config_t job = jobs_of("gpt", "fp32", "adamw", STEPS);
    jobs_set(&job, "model.dim", "32");
    jobs_set(&job, "sync.bucket", "40K"); /* more than goes in one hop, and as it is, among three */
    jobs_set(&job, "sync.split", "equal");
    jobs_set(&job, "sync.wire", wire);
    return cluster_open(&job, n);
}

static void run_well(cluster_t *cluster)
{
    cluster_run(cluster);
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
}

/* A model as good as that of fp32, but not just that one. */
static void run_and_compare(cluster_t *cluster)
{
    if (exact == NULL) {
        exact = open_job("fp32", 3);
        run_well(exact);
        const outcome_t *first = cluster_result(exact);
        assert_true(first->validation_last < 0.9 * first->validation_first);
    }
    run_well(cluster);
    const outcome_t *found = cluster_result(cluster), *expected = cluster_result(exact);
    const double off = relative(found->weights, expected->weights, expected->n);
    if (!(off > 1e-6)) fail_msg("%s: weights off by %g", cluster->job.sync.wire, off);
    const double loss = found->validation_last / expected->validation_last;
    if (!(fabs(loss - 1) < 0.01))
        fail_msg("%s: the loss is %g times that of fp32", cluster->job.sync.wire, loss);
}

static void every_type_learns_the_same(void **state)
{
    (void)state;
    for (size_t w = 0; w < WIRES; w++) {
        cluster_t *cluster = open_job(wires[w], 3);
        run_and_compare(cluster);
        cluster_close(cluster);
    }
}

static void members_are_lost(void **state)
{
    (void)state;
    static const trouble_type_t troubles[] = {KILL_IN_COMPUTE, KILL_IN_BUCKET, KILL_AFTER_VOTE,
                                              KILL_AFTER_APPLY};
    for (size_t w = 0; w < WIRES; w++)
        for (size_t t = 0; t < sizeof troubles / sizeof troubles[0]; t++) {
            cluster_t *cluster = open_job(wires[w], 3);
            cluster->workers[t % 3].trouble = (trouble_t){troubles[t], 12};
            run_and_compare(cluster);
            assert_true(cluster->workers[t % 3].was_killed);
            cluster_close(cluster);
        }
}

static void newcomers_join(void **state)
{
    (void)state;
    for (size_t w = 0; w < WIRES; w++) {
        cluster_t *cluster = open_job(wires[w], 2);
        cluster->joiners = 1;
        cluster->join_at = 10;
        cluster->workers[1].trouble = (trouble_t){KILL_IN_BUCKET, 30};
        run_and_compare(cluster);
        assert_true(cluster->workers[2].outcome.ended);
        cluster_close(cluster);
    }
}

/* Which type is taken hangs on the machine: but all take the same one, in all views, and make up for it. */
static void the_type_may_change(void **state)
{
    (void)state;
    uint64_t changes = 0;
    for (uint32_t round = 0; round < 4; round++) {
        cluster_t *cluster = open_job("auto", 3);
        jobs_set(&cluster->job, "sync.exactness", "close");
        cluster->joiners = 1;
        cluster->join_at = 10;
        cluster->workers[round % 3].trouble = (trouble_t){KILL_IN_BUCKET, 25 + round};
        run_and_compare(cluster);
        const inspan_elastic_stats_t *first = &cluster_result(cluster)->stats;
        for (uint32_t i = 0; i < 4; i++)
            if (i != round % 3) assert_int_equal(cluster->workers[i].outcome.stats.wire, first->wire);
        changes += first->rewires;
        cluster_close(cluster);
    }
    assert_true(changes > 0);
}

static int close_exact(void **state)
{
    if (exact != NULL) cluster_close(exact);
    return jobs_remove_data(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_learns_the_same),
        cmocka_unit_test(members_are_lost),
        cmocka_unit_test(newcomers_join),
        cmocka_unit_test(the_type_may_change),
    };
    return cmocka_run_group_tests_name("train-wire", tests, jobs_make_data, close_exact);
}
