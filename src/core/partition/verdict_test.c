#include "core/partition/verdict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static partition_vitals_t healthy(void)
{
    partition_vitals_t v = partition_vitals_unknown();
    v.cores = 0.8, v.machine_cores = 8;
    v.clock_mhz = 3400, v.clock_best_mhz = 3600;
    v.temperature_c = 62;
    v.others_cores = 0.1, v.swap_bytes_per_s = 0, v.allowed = 1, v.throttled = 0.02;
    v.input_wait = 0.01, v.link_mbit = 930;
    return v;
}

static void judged(double factor, partition_vitals_t before, partition_vitals_t now, partition_cause_t cause,
                   const char *evidence)
{
    const pace_estimate_t estimate = {.known = true, .factor = factor, .changes = 1, .steps_ago = 2};
    partition_verdict_t verdict;
    verdict_judge(&estimate, &before, &now, &verdict);
    if (verdict.cause != cause || strcmp(verdict.evidence, evidence) != 0)
        fail_msg("%s: '%s' instead of %s: '%s'", partition_cause_name(verdict.cause), verdict.evidence,
                 partition_cause_name(cause), evidence);
    assert_true(verdict.factor == factor);
    assert_int_equal(verdict.steps_ago, 2);
}

static void names_the_cause(void **state)
{
    (void)state;
    const partition_vitals_t before = healthy();
    partition_vitals_t now = before;
    now.cores = 0.24;
    judged(0.31, before, now, PARTITION_QUOTA, "CPU quota 0.24 cores, was 0.80");
    judged(3.2, now, before, PARTITION_QUOTA, "CPU quota 0.80 cores, was 0.24");
    now = before, now.clock_mhz = 1800;
    judged(0.55, before, now, PARTITION_CLOCK, "clock 1.80 GHz, was 3.40; 62 C, was 62");
    now.temperature_c = 97;
    judged(0.55, before, now, PARTITION_HEAT, "clock 1.80 GHz, was 3.40; 97 C, was 62");
    judged(1.8, now, before, PARTITION_HEAT, "clock 3.40 GHz, was 1.80; 62 C, was 97");
    now = before, now.clock_mhz = 1800, now.on_battery = true;
    judged(0.5, before, now, PARTITION_BATTERY, "clock 1.80 GHz, was 3.40; 62 C, was 62, on battery");
    now = before, now.allowed = 0.5, now.owner_active = true;
    judged(0.5, before, now, PARTITION_OWNER, "its owner gives 50 %, was 100, its owner is active");
    now = before, now.allowed = 0.3, now.on_battery = true;
    judged(0.3, before, now, PARTITION_BATTERY, "its owner gives 30 %, was 100, on battery");
    now = before, now.others_cores = 7.6, now.cores = 8;
    partition_vitals_t wide = before;
    wide.cores = 8;
    judged(0.52, wide, now, PARTITION_OTHERS, "other programs use 7.60 cores, was 0.10");
    now = before, now.swap_bytes_per_s = 40e6;
    judged(0.2, before, now, PARTITION_SWAP, "swaps 40.0 MB/s, was 0.0");
    partition_vitals_t unseen = before; /* a quota that cannot be read */
    unseen.cores = 0;
    now = unseen, now.throttled = 0.7;
    judged(0.3, unseen, now, PARTITION_QUOTA, "stopped by its CPU quota 70 % of the time, was 2");
    now = before, now.input_wait = 0.4;
    judged(0.6, before, now, PARTITION_INPUT, "waits for its data 40 % of the step, was 1");
    now = before, now.link_mbit = 95;
    judged(0.6, before, now, PARTITION_LINK, "link 95 Mbit/s, was 930");
}

static void an_unknown_cause_is_said_to_be_unknown(void **state)
{
    (void)state;
    const char *evidence =
        "its own compute time per sample is 2.00 times what it was; no vital sign explains it";
    judged(0.5, healthy(), healthy(), PARTITION_UNKNOWN, evidence);
    judged(0.5, partition_vitals_unknown(), partition_vitals_unknown(), PARTITION_UNKNOWN, evidence);
    partition_vitals_t faster = healthy();
    faster.cores = 1.6; /* the wrong way */
    judged(0.5, healthy(), faster, PARTITION_UNKNOWN, evidence);
    partition_vitals_t little = healthy();
    little.clock_mhz = 3250; /* explains 4 % of a halving */
    judged(0.5, healthy(), little, PARTITION_UNKNOWN, evidence);
}

static void of_two_the_one_that_explains_it(void **state)
{
    (void)state;
    partition_vitals_t now = healthy();
    now.cores = 0.24, now.clock_mhz = 2900;
    judged(0.3, healthy(), now, PARTITION_QUOTA, "CPU quota 0.24 cores, was 0.80");
    judged(0.85, healthy(), now, PARTITION_CLOCK, "clock 2.90 GHz, was 3.40; 62 C, was 62");
}

static void predicts(void **state)
{
    (void)state;
    const partition_vitals_t before = healthy(), unknown = partition_vitals_unknown();
    partition_vitals_t now = before;
    assert_true(verdict_expected_factor(&before, &now) == 1);
    assert_true(verdict_expected_factor(&unknown, &now) == 1);
    assert_true(verdict_expected_factor(&before, &unknown) == 1);
    now.clock_mhz = 3340; /* 2 %: nothing */
    assert_true(verdict_expected_factor(&before, &now) == 1);
    now = before, now.cores = 0.4, now.clock_mhz = 1700;
    assert_true(fabs(verdict_expected_factor(&before, &now) - 0.25) < 1e-9);
    now = before, now.allowed = 0;
    assert_true(fabs(verdict_expected_factor(&before, &now) - 0.01) < 1e-9);
    partition_vitals_t all = before, busy;
    all.cores = 8, all.others_cores = 0;
    busy = all, busy.others_cores = 4; /* four of eight cores are taken, but all 8 + 4 compete fairly */
    assert_true(fabs(verdict_expected_factor(&all, &busy) - 2.0 / 3) < 1e-9);
    now = before, now.others_cores = 5; /* room enough beside them */
    assert_true(verdict_expected_factor(&before, &now) == 1);
}

static void names_and_texts(void **state)
{
    (void)state;
    for (int cause = 0; cause < PARTITION_CAUSES; cause++) {
        assert_true(strlen(partition_cause_name((partition_cause_t)cause)) > 0);
        assert_true(strlen(partition_cause_text((partition_cause_t)cause)) > 0);
    }
    assert_string_equal(partition_cause_name((partition_cause_t)99), "unknown");
    assert_string_equal(partition_cause_name(PARTITION_QUOTA), "quota");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_cause),
        cmocka_unit_test(an_unknown_cause_is_said_to_be_unknown),
        cmocka_unit_test(of_two_the_one_that_explains_it),
        cmocka_unit_test(predicts),
        cmocka_unit_test(names_and_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
