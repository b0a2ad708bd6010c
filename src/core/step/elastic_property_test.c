/* Random histories of the elastic step in production's build: no violation in many thousand seeds. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_world_test.h"

#define SEEDS 8000

/* ELASTIC_FROM, ELASTIC_SEEDS: others and more than the fixed ones. */
static void histories(const world_options_t *options, uint64_t from, uint64_t n, world_result_t *result)
{
    if (getenv("ELASTIC_FROM")) from = strtoull(getenv("ELASTIC_FROM"), NULL, 10);
    if (getenv("ELASTIC_SEEDS")) n = strtoull(getenv("ELASTIC_SEEDS"), NULL, 10);
    for (uint64_t seed = from; seed < from + n; seed++) {
        world_run(seed, options, result);
        if (result->violation[0]) fail_msg("seed %" PRIu64 ": %s", seed, result->violation);
    }
}

static void no_fault_no_loss(void **state)
{
    (void)state;
    world_result_t result = {0};
    world_options_t options = {0};
    histories(&options, 0, SEEDS / 10, &result);
    assert_true(result.commits > result.views && result.dropped == 0 && result.salvaged == 0);
}

static void random_histories_keep_the_invariants(void **state)
{
    (void)state;
    world_result_t result = {0};
    histories(&world_all_faults, 0, SEEDS, &result);
    printf("commits %" PRIu64 ", views %" PRIu64 ", salvaged %" PRIu64 ", rejoined %" PRIu64
           ", dropped %" PRIu64 ", left %" PRIu64 ", led by others than full ones %" PRIu64 ", stuck %" PRIu64
           ", light reconciles %" PRIu64 ", commits of old views' bits %" PRIu64 "\n",
           result.commits, result.views, result.salvaged, result.rejoined, result.dropped, result.left,
           result.listener_leads, result.stuck, result.light_reconciles, result.recommits);
    /* What is interesting does happen. */
    assert_true(result.salvaged > 100 && result.rejoined > 100 && result.dropped > 100 && result.left > 100);
    assert_true(result.listener_leads > 10 && result.stuck > 10 && result.light_reconciles > 100);
    assert_true(result.recommits > 100 && result.layouts > 1000);
}

/* Many faults within few steps: what goes wrong only after two or three of them. */
static void crowded_histories_keep_the_invariants(void **state)
{
    (void)state;
    world_result_t result = {0};
    histories(&world_small, 0, SEEDS, &result);
    assert_true(result.rejoined > 100 && result.salvaged > 100);
    world_options_t layouts = world_small;
    layouts.layouts = true;
    histories(&layouts, SEEDS, SEEDS, &result);
    assert_true(result.layouts > 100);
}

/* Random shares, reserves and steals, with everything else that goes wrong. */
static void histories_with_steals_keep_the_invariants(void **state)
{
    (void)state;
    world_result_t result = {0};
    histories(&world_steals, 0, SEEDS, &result);
    printf("claims %" PRIu64 ", stolen leases %" PRIu64 ", LAST without a lease %" PRIu64 ", commits %" PRIu64
           ", salvaged %" PRIu64 ", dropped %" PRIu64 "\n",
           result.claims, result.stolen, result.dry, result.commits, result.salvaged, result.dropped);
    assert_true(result.claims > 1000 && result.stolen > 1000 && result.dry > 100);
    assert_true(result.salvaged > 100 && result.rejoined > 100 && result.dropped > 100 && result.left > 100);
}

static void without_faults_steals_lose_nothing(void **state)
{
    (void)state;
    world_result_t result = {0};
    world_options_t options = {.steals = true};
    histories(&options, 0, SEEDS / 2, &result);
    assert_true(result.stolen > 1000 && result.dropped == 0 && result.salvaged == 0);
}

int main(void)
{
    const char *seed = getenv(
        "ELASTIC_SEED"); /* one history, with what happens; ELASTIC_SMALL: a crowded one; ELASTIC_STEALS */
    if (seed) {
        world_result_t result = {0};
        world_options_t options = getenv("ELASTIC_SMALL")    ? world_small
                                  : getenv("ELASTIC_STEALS") ? world_steals
                                                             : world_all_faults;
        options.trace = true;
        world_run(strtoull(seed, NULL, 10), &options, &result);
        return result.violation[0] != 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_fault_no_loss),
        cmocka_unit_test(random_histories_keep_the_invariants),
        cmocka_unit_test(crowded_histories_keep_the_invariants),
        cmocka_unit_test(histories_with_steals_keep_the_invariants),
        cmocka_unit_test(without_faults_steals_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
