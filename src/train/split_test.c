/*
 * Unequal machines: shares follow speeds, leases of who is late are taken over, and nothing of it changes the
 * result. Workers are slowed by the test; all else is real.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/cluster_test.h"

#define MS NS_PER_MS

static job_config_t unequal_job(const char *optimizer, uint64_t steps)
{
    job_config_t job = jobs_of("gpt", "fp64", optimizer, steps);
    jobs_set(&job, "train.global_batch", "28");
    jobs_set(&job, "train.micro_batch", "4");
    return job;
}

static void assert_right(const cluster_t *cluster)
{
    cluster_assert_well(cluster);
    cluster_assert_same_bits(cluster);
    cluster_assert_ledger(cluster);
}

static const inspan_elastic_stats_t *stats_of(const cluster_t *cluster, uint32_t number)
{
    return &cluster->workers[number].outcome.stats;
}

/* ---- Shares ---------------------------------------------------------------------------------- */

static ns_t one_two_four(uint32_t number, uint64_t step)
{
    (void)step;
    return number == 0 ? 4 * MS : number == 1 ? 8 * MS : 16 * MS;
}

static void assert_share(const cluster_t *cluster, uint32_t number, uint64_t least, uint64_t most)
{
    const uint64_t share = stats_of(cluster, number)->share;
    if (share < least || share > most)
        fail_msg("worker %u has %" PRIu64 " samples of 28; %" PRIu64 " to %" PRIu64 " are right\n%s", number,
                 share, least, most, cluster->workers[number].outcome.summary);
}

/* What it has done, stolen leases included, as samples of a batch of 28: one step's share may follow a
 * disturbance. */
static void assert_work(const cluster_t *cluster, uint32_t number, uint64_t steps, uint64_t least,
                        uint64_t most)
{
    const uint64_t samples = stats_of(cluster, number)->samples;
    if (samples < least * steps || samples > most * steps)
        fail_msg("worker %u did %" PRIu64 " samples in %" PRIu64 " steps; %" PRIu64 " to %" PRIu64
                 " of 28 a step are right\n%s",
                 number, samples, steps, least, most, cluster->workers[number].outcome.summary);
}

/* 16, 8 and 4 of 28 where nothing but computing takes time; and steady steps take no memory. */
static void shares_follow_speeds(void **state)
{
    (void)state;
    enum { CHANCES = 10, STEPS = 40 };
    job_config_t job = unequal_job("adamw", STEPS);
    cluster_t *alone = cluster_open(&job, 1), *cluster = cluster_open(&job, 3);
    cluster_run(alone);
    cluster->slow = one_two_four;
    cluster_run(cluster);
    assert_right(cluster);
    assert_work(cluster, 0, STEPS, 13, 19);
    assert_work(cluster, 1, STEPS, 6, 10);
    assert_work(cluster, 2, STEPS, 2, 6);
    for (uint32_t i = 0; i < 3; i++) {
        const outcome_t *outcome = &cluster->workers[i].outcome;
        if (outcome->allocations >
            CHANCES + cluster_retold(outcome, STEPS) + (uint64_t)(outcome->wall / (200 * MS)))
            fail_msg("rank %u: %" PRIu64 " allocations in 30 steps", i, outcome->allocations);
    }
    const outcome_t *found = cluster_result(cluster), *expected = cluster_result(alone);
    assert_true(relative(found->weights, expected->weights, expected->n) < 1e-9);
    cluster_close(alone);
    cluster_close(cluster);
}

static void equal_shares_where_asked_for(void **state)
{
    (void)state;
    job_config_t job = unequal_job("sgd", 20);
    jobs_set(&job, "sync.split", "equal");
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->slow = one_two_four;
    cluster_run(cluster);
    assert_right(cluster);
    for (uint32_t i = 0; i < 3; i++) {
        assert_share(cluster, i, 9, 10);
        assert_int_equal(stats_of(cluster, i)->steals + stats_of(cluster, i)->resplits, 0);
    }
    cluster_close(cluster);
}

/* ---- In the middle of a step ------------------------------------------------------------------- */

static ns_t slow_from_ten(uint32_t number, uint64_t step)
{
    return number == 2 && step >= 10 ? 100 * MS : 10 * MS;
}

/* Who becomes slow loses what it has not begun, in the same step; then it has less. */
static void a_slow_member_is_helped(void **state)
{
    (void)state;
    job_config_t job = unequal_job("adamw", 24);
    cluster_t *cluster = cluster_open(&job, 3);
    cluster->slow = slow_from_ten;
    cluster_run(cluster);
    assert_right(cluster);
    const uint64_t taken = stats_of(cluster, 0)->samples_stolen + stats_of(cluster, 1)->samples_stolen;
    assert_true(taken > 0);
    assert_share(cluster, 2, 0, 3);
    if (strstr(cluster->workers[2].outcome.summary, "\"cause\":\"unknown\"") == NULL)
        fail_msg("no verdict: %s", cluster->workers[2].outcome.summary);
    cluster_close(cluster);
}

static ns_t all_alike(uint32_t number, uint64_t step)
{
    (void)number;
    (void)step;
    return 4 * MS;
}

/* It rests between its micro-batches, and its share shrinks; nobody waits for its rests. */
static void an_owner_is_obeyed(void **state)
{
    (void)state;
    job_config_t job = unequal_job("sgd", 30);
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->slow = all_alike;
    cluster->workers[1].trouble = (trouble_t){GIVE_HALF, 8};
    cluster_run(cluster);
    assert_right(cluster);
    assert_share(cluster, 0, 17, 20);
    const inspan_elastic_stats_t *stats = stats_of(cluster, 1);
    assert_true(stats->rested_ns > 20 * 4 * MS && stats_of(cluster, 0)->rested_ns == 0);
    if (strstr(cluster->workers[1].outcome.summary, "\"cause\":\"owner\"") == NULL)
        fail_msg("no verdict: %s", cluster->workers[1].outcome.summary);
    cluster_close(cluster);
}

/* ---- Any split ------------------------------------------------------------------------------- */

static uint64_t chance_seed;

static ns_t by_chance(uint32_t number, uint64_t step)
{
    rng_t rng;
    rng_seed(&rng, chance_seed * 1000 + number, step);
    const ns_t times[] = {8 * MS, 16 * MS, 32 * MS, 64 * MS};
    return times[rng_below(&rng, 4)];
}

/* Speeds change at every step, one member is lost in the middle of one: the gradient is the single process's.
 */
static void any_split_gives_the_same_gradient(void **state)
{
    (void)state;
    enum { ROUNDS = 6, WORKERS = 4 };
    static const trouble_type_t troubles[] = {NO_TROUBLE, KILL_IN_COMPUTE, KILL_IN_BUCKET, KILL_AFTER_VOTE};
    uint64_t taken = 0;
    for (uint64_t steps = 1; steps <= 6; steps += 5) {
        job_config_t job = unequal_job("sgd", steps);
        cluster_t *alone = cluster_open(&job, 1);
        cluster_run(alone);
        const outcome_t *expected = cluster_result(alone);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            cluster_t *cluster = cluster_open(&job, WORKERS);
            chance_seed = steps * 100 + round;
            cluster->slow = by_chance;
            cluster->workers[round % WORKERS].trouble =
                (trouble_t){troubles[round % 4], steps == 1 ? 0 : 2 + round % 3};
            cluster_run(cluster);
            assert_right(cluster);
            const outcome_t *found = cluster_result(cluster);
            const double off = relative(found->gradient, expected->gradient, expected->n);
            if (!(off < (steps == 1 ? 1e-12 : 1e-9)))
                fail_msg("round %u of %" PRIu64 " steps: off by %g", round, steps, off);
            for (uint32_t i = 0; i < WORKERS; i++) taken += stats_of(cluster, i)->samples_stolen;
            cluster_close(cluster);
        }
        cluster_close(alone);
    }
    assert_true(taken > 0);
}

/* Who joins or leaves has what its speed gives it. */
static void members_come_and_go_among_unequal_ones(void **state)
{
    (void)state;
    job_config_t job = unequal_job("adamw", 30);
    cluster_t *alone = cluster_open(&job, 1), *cluster = cluster_open(&job, 2);
    jobs_set(&cluster->job, "sync.bucket", "16K"); /* the newcomer is full soon */
    cluster_run(alone);
    cluster->slow = one_two_four;
    cluster->joiners = 1;
    cluster->join_at = 2;
    cluster->workers[1].trouble = (trouble_t){LEAVE, 20};
    cluster_run(cluster);
    assert_right(cluster);
    assert_true(cluster->workers[1].has_left);
    assert_true(stats_of(cluster, 2)->full && stats_of(cluster, 2)->samples > 0);
    assert_share(cluster, 0, 19, 25); /* of 28, four to one */
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(stats_of(cluster, i)->samples_recomputed, 0);
    const outcome_t *found = cluster_result(cluster), *expected = cluster_result(alone);
    assert_true(relative(found->weights, expected->weights, expected->n) < 1e-9);
    cluster_close(alone);
    cluster_close(cluster);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void micro_batches_that_do_not_fit_are_halved(void **state)
{
    (void)state;
    job_config_t job = unequal_job("sgd", 4);
    cluster_t *cluster = cluster_open(&job, 2);
    cluster->workers[1].fits = 1;
    cluster_run(cluster);
    assert_right(cluster);
    const outcome_t *small = &cluster->workers[1].outcome;
    assert_string_equal(small->note, "no memory for micro-batches of 4 samples: goes on with 1");
    assert_non_null(strstr(small->summary, "\"micro_batch\":1,"));
    assert_non_null(strstr(cluster->workers[0].outcome.summary, "\"micro_batch\":4,"));
    cluster_close(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_speeds),
        cmocka_unit_test(equal_shares_where_asked_for),
        cmocka_unit_test(a_slow_member_is_helped),
        cmocka_unit_test(an_owner_is_obeyed),
        cmocka_unit_test(any_split_gives_the_same_gradient),
        cmocka_unit_test(members_come_and_go_among_unequal_ones),
        cmocka_unit_test(micro_batches_that_do_not_fit_are_halved),
    };
    return cmocka_run_group_tests(tests, jobs_make_data, jobs_remove_data);
}
