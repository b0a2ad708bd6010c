/*
 * N ranks give what one gives: the trainer in processes, each a rank with a session and sockets of its own on
 * loopback, against a world of one (DESIGN section 5, "same result"), and what every rank sees when one of
 * them fails.
 */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "train/cluster_test.h"

static inspan_error_t err;

static cluster_t *run_world(const job_config_t *job, uint32_t n)
{
    cluster_t *cluster = cluster_open(job, n);
    cluster_run(cluster);
    return cluster;
}

static const outcome_t *rank(const cluster_t *cluster, uint32_t number)
{
    return &cluster->workers[number].outcome;
}

/* ---- The same result ------------------------------------------------------------------------- */

typedef enum measure { GRADIENT, WEIGHTS, HELD_OUT } measure_t;

static double measured(const outcome_t *found, const outcome_t *expected, measure_t measure)
{
    switch (measure) {
    case GRADIENT: return relative(found->gradient, expected->gradient, expected->n);
    case WEIGHTS: return relative(found->weights, expected->weights, expected->n);
    case HELD_OUT: return fabs(found->validation_last / expected->validation_last - 1);
    }
    return NAN;
}

static void compare_worlds(const job_config_t *job, measure_t measure, double tolerance)
{
    static const uint32_t worlds[] = {2, 3, 5};
    cluster_t *one = run_world(job, 1);
    cluster_assert_well(one);
    const outcome_t *expected = rank(one, 0);
    if (job->train.steps > 10) assert_true(expected->validation_last < expected->validation_first);
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        cluster_t *many = run_world(job, worlds[i]);
        cluster_assert_well(many);
        cluster_assert_same_bits(many);
        cluster_assert_ledger(many);
        double off = measured(rank(many, 0), expected, measure);
        if (!(off <= tolerance))
            fail_msg("%s %s %s, %u ranks: off by %g, at most %g is right", job->model.kind, job->train.dtype,
                     job->train.optimizer, worlds[i], off, tolerance);
        assert_true(fabs(rank(many, 0)->validation_first / expected->validation_first - 1) < 1e-5);
        cluster_close(many);
    }
    cluster_close(one);
}

static const char *const kinds[] = {"gpt", "mlp", "conv"};

static void one_steps_gradient_is_the_same(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        job_config_t job = jobs_of(kinds[k], "fp32", "sgd", 1);
        compare_worlds(&job, GRADIENT, 1e-5);
        job = jobs_of(kinds[k], "fp64", "sgd", 1);
        compare_worlds(&job, GRADIENT, 1e-12);
    }
}

static void whole_runs_end_the_same_in_fp64(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        job_config_t job = jobs_of(kinds[k], "fp64", "adamw", 20);
        compare_worlds(&job, WEIGHTS, 1e-9);
        job = jobs_of(kinds[k], "fp64", "sgd", 20);
        compare_worlds(&job, WEIGHTS, 1e-9);
    }
}

static void whole_runs_end_the_same_in_fp32(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        job_config_t job = jobs_of(kinds[k], "fp32", "sgd", 50);
        compare_worlds(&job, WEIGHTS, 1e-4);
        job = jobs_of(kinds[k], "fp32", "adamw", 50);
        compare_worlds(&job, HELD_OUT, 0.005);
    }
}

/* The measures above can fail: one sample of thirteen less is far outside of
 * them. */
static void a_lost_sample_would_show(void **state)
{
    (void)state;
    static double found[ELEMENTS_MAX];
    job_config_t job = jobs_of("gpt", "fp32", "sgd", 1);
    cluster_t *whole = run_world(&job, 1);
    jobs_set(&job, "train.global_batch", "12");
    cluster_t *less = run_world(&job, 2);
    cluster_assert_well(less);
    const outcome_t *expected = rank(whole, 0);
    for (size_t i = 0; i < expected->n; i++)
        found[i] = rank(less, 0)->gradient[i] * 13.0 / 12.0; /* the mean, as sums compare */
    assert_true(relative(found, expected->gradient, expected->n) > 1e-2);
    cluster_close(whole);
    cluster_close(less);
}

/* B1: whoever receives a bucket sees that a lease is not in it. Nothing is applied. */
static void a_lost_lease_is_found_and_named(void **state)
{
    (void)state;
    job_config_t job = jobs_of("gpt", "fp32", "sgd", 10);
    jobs_set(&job, "sync.split", "equal"); /* it has a lease to lose */
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[1].trouble = (trouble_t){LOSE_A_LEASE, 4};
    cluster_run(cluster);
    uint32_t found = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const outcome_t *outcome = rank(cluster, i);
        assert_int_not_equal(outcome->status, INSPAN_OK);
        assert_true(outcome->hashes[3] != 0 && outcome->hashes[4] == 0);
        found += outcome->status == INSPAN_MISMATCH &&
                 strstr(outcome->err.text, "is in the sum 0 times, expected 1") != NULL;
    }
    assert_true(found >= 1); /* the others may be stopped before they see it */
    cluster_close(cluster);
}

static void ranks_without_samples_take_part(void **state)
{
    (void)state;
    job_config_t job = jobs_of("gpt", "fp64", "adamw", 6);
    jobs_set(&job, "train.global_batch", "2");
    compare_worlds(&job, WEIGHTS, 1e-9);
    jobs_set(&job, "train.global_batch", "1");
    compare_worlds(&job, WEIGHTS, 1e-9);
}

/* The communicator keeps memory for as many operations of a kind as were ever
 * under way together; by the tenth step that has been seen, but for rare
 * chances of timing, and what is told to the agent now and then. One allocation a step would be 50. */
static void steps_take_no_memory(void **state)
{
    (void)state;
    enum { CHANCES = 10 };
    job_config_t job = jobs_of("gpt", "fp32", "adamw", 60);
    for (uint32_t n = 1; n <= 3; n += 2) {
        cluster_t *cluster = run_world(&job, n);
        cluster_assert_well(cluster);
        for (uint32_t i = 0; i < n;
             i++) /* the ledger is told every 200 ms: on a busy machine that is often */
            if (rank(cluster, i)->allocations > CHANCES + cluster_retold(rank(cluster, i), 60) +
                                                    (uint64_t)(rank(cluster, i)->wall / (200 * NS_PER_MS)))
                fail_msg("rank %u of %u: %llu allocations in 50 steps", i, n,
                         (unsigned long long)rank(cluster, i)->allocations);
        cluster_close(cluster);
    }
}

static void the_summary_has_what_the_job_needs(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "\"steps\":4",           "\"samples\":",         "\"samples_per_s\":",
        "\"loss_first\":",       "\"loss_last\":",       "\"compute_s\":",
        "\"exposed_comm_s\":",   "\"bytes_sent\":",      "\"views\":1",
        "\"wall_s\":",           "\"param_hash\":\"",    "\"node\":\"node-0\"",
        "\"validation_first\":", "\"validation_last\":", "\"samples_recomputed\":0",
        "\"gemm\":\"",           "\"micro_batch\":",     "\"recoveries\":0",
        "\"members\":2",         "\"verdicts\":[",       "\"pace_sample_s\":",
        "\"steals\":",           "\"resplits\":",        "\"memory_peak\":"};
    job_config_t job = jobs_of("mlp", "fp32", "adamw", 4);
    jobs_set(&job, "train.global_batch", "3");
    cluster_t *cluster = run_world(&job, 2);
    cluster_assert_well(cluster);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strstr(rank(cluster, 0)->summary, keys[i]) == NULL)
            fail_msg("%s lacks %s", rank(cluster, 0)->summary, keys[i]);
    assert_int_equal(rank(cluster, 0)->stats.samples + rank(cluster, 1)->stats.samples, 4 * 3);
    cluster_close(cluster);
    jobs_set(&job, "data.validation", "0");
    cluster = run_world(&job, 2); /* nothing held out */
    cluster_assert_well(cluster);
    assert_non_null(strstr(rank(cluster, 1)->summary, "\"validation_last\":null"));
    cluster_close(cluster);
}

/* No time is counted twice, whatever ranks wait for: compute, exposed communication, input and evaluation are
 * parts of the run. */
static void times_add_up(void **state)
{
    (void)state;
    job_config_t job = jobs_of("gpt", "fp32", "sgd", 12);
    jobs_set(&job, "train.evaluate_every", "1");
    cluster_t *cluster = run_world(&job, 3);
    cluster_assert_well(cluster);
    for (uint32_t i = 0; i < 3; i++) {
        const outcome_t *outcome = rank(cluster, i);
        assert_true(outcome->stats.exposed_ns > 0);
        if (outcome->accounted > outcome->wall)
            fail_msg("rank %u: %lld ns accounted for of %lld", i, (long long)outcome->accounted,
                     (long long)outcome->wall);
    }
    cluster_close(cluster);
}

static void weights_are_hashed_when_compared(void **state)
{
    (void)state;
    job_config_t job = jobs_of("mlp", "fp32", "sgd", 10);
    jobs_set(&job, "sync.split", "equal"); /* two runs with the same bits */
    cluster_t *every = run_world(&job, 2);
    cluster_assert_well(every);
    jobs_set(&job, "train.check_every", "4");
    cluster_t *quiet = cluster_open(&job, 2);
    quiet->quiet = true;
    cluster_run(quiet);
    cluster_assert_well(quiet);
    const uint64_t *hashes = rank(every, 0)->hashes;
    for (uint64_t step = 0; step <= 10; step++) {
        uint64_t expected = step == 10 ? hashes[9] : step < 4 ? 0 : hashes[step / 4 * 4 - 1];
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(rank(quiet, i)->reported[step], expected);
    }
    cluster_close(every);
    cluster_close(quiet);
}

static void the_model_is_saved_once_and_for_all(void **state)
{
    (void)state;
    char out[PATH_MAX];
    nn_model_t *model = NULL;
    const nn_param_t *params = NULL;
    job_config_t job = jobs_of("gpt", "fp64", "adamw", 3);
    cluster_t *cluster = cluster_open(&job, 3);
    snprintf(cluster->save_to, sizeof cluster->save_to, "%s", jobs_folder());
    cluster_run(cluster);
    cluster_assert_well(cluster);
    assert_int_equal(cluster->saves, 1);
    snprintf(out, sizeof out, "%s/out", cluster->save_to);
    if (nn_model_load(out, 1, 1, &model, &err) != INSPAN_OK) fail_msg("%s", err.text);
    uint32_t n = nn_model_params(model, &params);
    const double *at = rank(cluster, 0)->weights;
    for (uint32_t i = 0; i < n; at += params[i].count, i++)
        assert_memory_equal(params[i].weights, at, params[i].count * sizeof(double));
    nn_model_close(model);
    cluster_close(cluster);

    cluster = cluster_open(&job, 3);
    snprintf(cluster->save_to, sizeof cluster->save_to, "%s/text", jobs_folder()); /* a file, no folder */
    cluster_run(cluster);
    assert_int_equal(rank(cluster, 0)->status, INSPAN_IO);
    assert_non_null(strstr(rank(cluster, 0)->err.text, cluster->save_to));
    for (uint32_t i = 1; i < 3; i++) assert_int_not_equal(rank(cluster, i)->status, INSPAN_OK);
    cluster_close(cluster);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void a_cancelled_job_ends_between_steps(void **state)
{
    (void)state;
    job_config_t job = jobs_of("mlp", "fp32", "sgd", 60);
    jobs_set(&job, "sync.split", "equal"); /* it computes in that step */
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[1].trouble = (trouble_t){CANCEL, 2};
    ns_t start = os_now();
    cluster_run(cluster);
    assert_true(os_now() - start < 20 * NS_PER_S);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(rank(cluster, i)->status, INSPAN_ABORTED);
    assert_non_null(strstr(rank(cluster, 1)->err.text, "cancelled after step 3 of 60"));
    cluster_close(cluster);
}

static void damaged_weights_are_noticed_and_named(void **state)
{
    (void)state;
    job_config_t job = jobs_of("mlp", "fp64", "sgd", 60);
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->workers[1].trouble = (trouble_t){DAMAGE_WEIGHTS, 4};
    cluster_run(cluster);
    const outcome_t *leader = rank(cluster, 0);
    assert_int_equal(leader->status, INSPAN_MISMATCH);
    if (strstr(leader->err.text, "rank 1") == NULL || strstr(leader->err.text, "weights") == NULL)
        fail_msg("%s", leader->err.text);
    for (uint32_t i = 1; i < 3; i++) assert_int_not_equal(rank(cluster, i)->status, INSPAN_OK);
    cluster_close(cluster);
}

static void a_training_that_diverges_says_so(void **state)
{
    (void)state;
    job_config_t job = jobs_of("mlp", "fp32", "sgd", 60);
    jobs_set(&job, "train.lr", "1e6");
    jobs_set(&job, "train.clip", "0");
    cluster_t *cluster = run_world(&job, 2);
    uint32_t said = 0;
    for (uint32_t i = 0; i < 2; i++) {
        /* The first rank to see it tells the manager, who stops the others, who may not have come that far.
         */
        const outcome_t *outcome = rank(cluster, i);
        assert_true(outcome->status == INSPAN_INVALID || outcome->status == INSPAN_ABORTED);
        said += outcome->status == INSPAN_INVALID && strstr(outcome->err.text, "diverged") != NULL;
    }
    assert_true(said >= 1);
    cluster_close(cluster);
}

static void a_rank_that_cannot_start_says_why(void **state)
{
    (void)state;
    char path[PATH_MAX];
    job_config_t job = jobs_of("mlp", "fp32", "sgd", 60);
    cluster_t *cluster = cluster_open(&job, 3);
    snprintf(path, sizeof path, "%s/missing", jobs_folder());
    cluster->workers[2].job = job;
    jobs_set(&cluster->workers[2].job, "data.path", path);
    ns_t start = os_now();
    cluster_run(cluster);
    assert_true(os_now() - start < 20 * NS_PER_S);
    assert_int_equal(rank(cluster, 2)->status, INSPAN_NOT_FOUND);
    for (uint32_t i = 0; i < 2; i++) assert_int_not_equal(rank(cluster, i)->status, INSPAN_OK);
    cluster_close(cluster);

    cluster = cluster_open(&job, 2);
    cluster->workers[1].job = job;
    jobs_set(&cluster->workers[1].job, "train.seed", "2"); /* other initial weights */
    cluster_run(cluster);
    uint32_t said = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const outcome_t *outcome = rank(cluster, i);
        assert_int_not_equal(outcome->status, INSPAN_OK);
        said +=
            outcome->status == INSPAN_MISMATCH && strstr(outcome->err.text, "differs between ranks") != NULL;
    }
    assert_true(said >= 1);
    cluster_close(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_steps_gradient_is_the_same),
        cmocka_unit_test(whole_runs_end_the_same_in_fp64),
        cmocka_unit_test(whole_runs_end_the_same_in_fp32),
        cmocka_unit_test(a_lost_sample_would_show),
        cmocka_unit_test(a_lost_lease_is_found_and_named),
        cmocka_unit_test(ranks_without_samples_take_part),
        cmocka_unit_test(steps_take_no_memory),
        cmocka_unit_test(the_summary_has_what_the_job_needs),
        cmocka_unit_test(times_add_up),
        cmocka_unit_test(weights_are_hashed_when_compared),
        cmocka_unit_test(the_model_is_saved_once_and_for_all),
        cmocka_unit_test(a_cancelled_job_ends_between_steps),
        cmocka_unit_test(damaged_weights_are_noticed_and_named),
        cmocka_unit_test(a_training_that_diverges_says_so),
        cmocka_unit_test(a_rank_that_cannot_start_says_why),
    };
    return cmocka_run_group_tests(tests, jobs_make_data, jobs_remove_data);
}
