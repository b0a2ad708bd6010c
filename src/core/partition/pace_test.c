#include "core/partition/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"

#define MS 1000000.0

/* A machine that takes a + b c (+ e) ms, with 3 % of noise and one outlier in a hundred, and its model. */
typedef struct machine {
    pace_model_t model;
    rng_t rng;
    double a, c, e, noise, outliers;
} machine_t;

static machine_t machine(uint64_t seed)
{
    machine_t m = {.c = 100, .noise = 0.03, .outliers = 0.01};
    rng_seed(&m.rng, seed, 0);
    pace_init(&m.model);
    return m;
}

/* slowness: times what the machine takes else. */
static bool run(machine_t *m, uint32_t samples, bool last, double slowness)
{
    double ms = (m->a + samples * m->c + (last ? m->e : 0)) * slowness * exp(m->noise * rng_normal(&m->rng));
    if (rng_uniform(&m->rng) < m->outliers) ms *= 2 + 3 * rng_uniform(&m->rng);
    return pace_run(&m->model, samples, (int64_t)(ms * MS), last);
}

/* Whether a change was found in this step, of `runs` equal runs. */
static bool step(machine_t *m, uint32_t runs, uint32_t samples, double slowness)
{
    bool found = false;
    for (uint32_t i = 0; i < runs; i++) found |= run(m, samples, i + 1 == runs, slowness);
    pace_step(&m->model, (int64_t)(50 * MS));
    pace_estimate_t now;
    pace_estimate(&m->model, &now);
    return found || now.changed;
}

static pace_estimate_t estimate(const machine_t *m)
{
    pace_estimate_t now;
    pace_estimate(&m->model, &now);
    return now;
}

static void assert_near(double value, double expected, double tolerance)
{
    if (fabs(value / expected - 1) > tolerance)
        fail_msg("%.4g instead of %.4g (%.1f %% allowed)", value, expected, 100 * tolerance);
}

static void learns_the_speed(void **state)
{
    (void)state;
    machine_t m = machine(1);
    assert_false(estimate(&m).known);
    assert_near(estimate(&m).usual, 1, 0);
    for (int i = 0; i < 10; i++) step(&m, 4, 4, 1);
    assert_true(estimate(&m).known);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.025);
    assert_near(estimate(&m).step_ns, 50 * MS, 0.4); /* in it the noise of last runs of 400 */
    assert_true(estimate(&m).uncertainty < 0.015);
    assert_int_equal(estimate(&m).changes, 0);
}

static void the_first_run_warms_up(void **state)
{
    (void)state;
    machine_t m = machine(2);
    run(&m, 4, false, 10);
    assert_true(estimate(&m).known && estimate(&m).predicted);
    run(&m, 4, false, 1);
    run(&m, 4, false, 1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.06);
    assert_false(estimate(&m).predicted);
}

static void fits_the_cost_of_a_run(void **state)
{
    (void)state;
    uint32_t changes = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        machine_t m = machine(seed);
        m.a = 60;
        for (int i = 0; i < 30; i++) {
            uint32_t size, last;
            pace_runs(&m.model, 50, 16, 0, &size, &last);
            step(&m, 5, size, 1);
        }
        /* What it says for the sizes that matter; a alone is less sure. */
        const pace_estimate_t now = estimate(&m);
        assert_near(pace_sample_ns(&now, 8), 107.5 * MS, 0.04);
        assert_near(pace_sample_ns(&now, 2), 130 * MS, 0.25);
        assert_near(pace_run_ns(&m.model, 8, false), 860 * MS, 0.04);
        assert_true(pace_best_run(&m.model, 16, 1) >= 6 && pace_best_run(&m.model, 16, 1) <= 13);
        assert_true(pace_best_run(&m.model, 4, 1) >= 3);
        assert_int_equal(pace_best_run(&m.model, 16, 15), 15);
        assert_int_equal(pace_best_run(&m.model, 16, 99), 16);
        changes += estimate(&m).changes;
    }
    assert_true(changes <= 2); /* two outliers in a row */
}

static void keeps_what_last_runs_do_besides_apart(void **state)
{
    (void)state;
    machine_t m = machine(3);
    m.e = 150;
    for (int i = 0; i < 20; i++) step(&m, 3, 2, 1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.03);
    assert_near(estimate(&m).last_ns, 150 * MS, 0.15);
    assert_near(estimate(&m).step_ns, 200 * MS, 0.15);
    /* From now on last runs alone: the speed is known all the same. */
    for (int i = 0; i < 20; i++) step(&m, 1, 1, 1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.1);
    assert_int_equal(estimate(&m).changes, 0);
}

static void outliers_are_no_changes(void **state)
{
    (void)state;
    uint32_t changes = 0;
    double worst = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        machine_t m = machine(seed);
        m.outliers = 0.02;
        for (int i = 0; i < 250; i++) {
            step(&m, 4, 4, 1);
            if (i > 4) worst = fmax(worst, fabs(estimate(&m).sample_ns / (100 * MS) - 1));
        }
        changes += estimate(&m).changes;
    }
    printf("20,000 runs, 400 of them outliers: %u changes, at worst %.1f %% off\n", changes, 100 * worst);
    assert_true(changes <= 6);
}

/* A cut to `slowness` in the middle of a run: steps until it is found, 0: in the same step. */
static uint32_t steps_to_find(machine_t *m, uint32_t runs, uint32_t samples, double slowness)
{
    const uint32_t cut = (uint32_t)rng_below(&m->rng, runs);
    const double part = rng_uniform(&m->rng);
    bool found = false;
    for (uint32_t i = 0; i < runs; i++)
        found |= run(m, samples, i + 1 == runs,
                     i < cut    ? 1
                     : i == cut ? 1 + part * (slowness - 1)
                                : slowness);
    pace_step(&m->model, 0);
    uint32_t steps = 0;
    while (!found && ++steps < 20) found = step(m, runs, samples, slowness);
    return steps;
}

static void a_cut_is_found(uint32_t runs, uint32_t samples, double slowness, uint32_t within, double often)
{
    uint32_t late = 0;
    double off = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        machine_t m = machine(seed);
        for (int i = 0; i < 20; i++) step(&m, runs, samples, 1);
        const uint32_t changes = estimate(&m).changes, steps = steps_to_find(&m, runs, samples, slowness);
        late += steps > within;
        const pace_estimate_t now = estimate(&m);
        if (now.changes == changes) fail_msg("seed %u: a change was found but not counted", (unsigned)seed);
        for (int i = 0; i < 3; i++) step(&m, runs, samples, slowness);
        off = fmax(off, fabs(estimate(&m).sample_ns / (100 * MS * slowness) - 1));
    }
    printf("%u runs of %u a step, slower by %.2f: later than %u steps %u times of 300; 3 steps later %.1f %% "
           "off\n",
           runs, samples, slowness, within, late, 100 * off);
    assert_true(late <= (1 - often) * 300);
    assert_true(off < 0.15);
}

static void a_cut_is_found_soon(void **state)
{
    (void)state;
    a_cut_is_found(6, 8, 3.33, 1, 0.99);
    a_cut_is_found(3, 2, 3.33, 1, 0.98);
    a_cut_is_found(2, 2, 3.33, 2, 0.99);
    a_cut_is_found(1, 1, 3.33, 3, 0.99);
    a_cut_is_found(6, 8, 0.3, 1, 0.99);
    a_cut_is_found(1, 4, 0.3, 3, 0.99);
    a_cut_is_found(6, 8, 1.3, 1, 0.97);
    a_cut_is_found(3, 4, 1.5, 2, 0.99);
    a_cut_is_found(6, 8, 1.2, 3, 0.97);
}

/* In mid-step: of six runs after a clean cut, which one says so. */
static void two_or_three_runs_say_so(void **state)
{
    (void)state;
    uint32_t when[8] = {0}, early = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        machine_t m = machine(seed);
        for (int i = 0; i < 20; i++) step(&m, 6, 8, 1);
        uint32_t runs = 1;
        while (!run(&m, 8, false, 3.33) && runs < 7) runs++;
        when[runs]++;
        const pace_estimate_t now = estimate(&m);
        assert_true(now.changed);
        early += now.steps_ago > 0; /* an outlier just before it */
        if (runs <= 3 && m.outliers == 0) assert_near(now.factor, 0.3, 0.1);
    }
    printf("a cut to 30 %% is found with run 1: %u, 2: %u, 3: %u, later: %u times\n", when[1], when[2],
           when[3], 300 - when[1] - when[2] - when[3]);
    assert_true(early <= 6);
    assert_true(when[1] <= 3 && when[2] + when[3] >= 297);
}

static void says_how_much_and_since_when(void **state)
{
    (void)state;
    machine_t m = machine(5);
    m.outliers = 0;
    for (int i = 0; i < 20; i++) step(&m, 2, 4, 1);
    step(&m, 2, 4, 2);
    while (!estimate(&m).changes) step(&m, 2, 4, 2);
    assert_near(estimate(&m).factor, 0.5, 0.06);
    assert_near(estimate(&m).usual, 0.5, 0.06);
    assert_int_equal(estimate(&m).steps_ago, m.model.step - 20);
    for (int i = 0; i < 10; i++) step(&m, 2, 4, 1);
    assert_near(estimate(&m).factor, 2, 0.06);
    assert_near(estimate(&m).usual, 1, 0.04);
}

static void a_drift_is_followed_and_told(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        machine_t m = machine(seed);
        for (int i = 0; i < 30; i++) step(&m, 4, 4, 1);
        double slowness = 1;
        uint32_t told_after = 0;
        for (uint32_t i = 1; i <= 60; i++) {
            slowness *= 1.01;
            if (step(&m, 4, 4, slowness) && told_after == 0) told_after = i;
            assert_near(estimate(&m).sample_ns, 100 * MS * slowness, 0.12);
        }
        if (told_after == 0 || told_after > 30)
            fail_msg("seed %u: told after %u steps", (unsigned)seed, told_after);
        assert_near(estimate(&m).usual, 1 / slowness, 0.16);
    }
}

static void to_and_fro_settles_on_the_mean(void **state)
{
    (void)state;
    const uint32_t runs_of[] = {8, 4, 2};
    for (uint64_t seed = 0; seed < 60; seed++) {
        machine_t m = machine(seed);
        const uint32_t runs = runs_of[seed % 3];
        for (int i = 0; i < 20; i++) step(&m, runs, 4, 1);
        uint32_t moves = 0, changes = 0;
        for (int i = 0; i < 120; i++) {
            const double before = estimate(&m).sample_ns;
            step(&m, runs, 4, i / 3 % 2 == 0 ? 2 : 1);
            if (i == 29) changes = estimate(&m).changes;
            if (i < 30) continue;
            moves += fabs(estimate(&m).sample_ns / before - 1) > 0.05;
            assert_true(estimate(&m).unsteady);
            assert_near(estimate(&m).sample_ns, 141 * MS, 0.15);
        }
        assert_true(moves <= 2);
        assert_int_equal(estimate(&m).changes, changes);
        for (int i = 0; i < 20; i++) step(&m, runs, 4, 1);
        assert_false(estimate(&m).unsteady);
        assert_near(estimate(&m).sample_ns, 100 * MS, 0.04);
    }
}

/* A machine that wavers is cut for good: told, and followed at once. */
static void beyond_the_to_and_fro_is_a_change(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        machine_t m = machine(seed);
        for (int i = 0; i < 20; i++) step(&m, 8, 4, 1);
        for (int i = 0; i < 30; i++) step(&m, 8, 4, i / 3 % 2 == 0 ? 1.5 : 1);
        assert_true(estimate(&m).unsteady);
        const uint32_t changes = estimate(&m).changes;
        step(&m, 8, 4, 5);
        assert_false(estimate(&m).unsteady);
        assert_int_equal(estimate(&m).changes, changes + 1);
        assert_near(estimate(&m).factor, 1 / (5 / sqrt(1.5)), 0.25);
        assert_near(estimate(&m).sample_ns, 500 * MS, 0.1);
    }
}

static void vitals_shift_it_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        machine_t m = machine(seed);
        m.outliers = 0;
        for (int i = 0; i < 10; i++) step(&m, 4, 4, 1);
        pace_scale(&m.model, 0.3);
        assert_near(estimate(&m).sample_ns, 333 * MS, 0.06);
        assert_true(estimate(&m).predicted);
        assert_int_equal(estimate(&m).changes, 0); /* not before it is measured */
        run(&m, 4, false, 3.33);
        run(&m, 4, false, 3.33);
        assert_int_equal(estimate(&m).changes, 1);
        assert_false(estimate(&m).predicted);
        assert_near(estimate(&m).factor, 0.3, 0.1);
        for (int i = 0; i < 5; i++) step(&m, 4, 4, 3.33);
        assert_int_equal(estimate(&m).changes, 1);
    }
}

static void wrong_vitals_are_undone(void **state)
{
    (void)state;
    machine_t m = machine(6);
    m.outliers = 0;
    for (int i = 0; i < 10; i++) step(&m, 4, 4, 1);
    pace_scale(&m.model, 0.3);
    for (int i = 0; i < 3; i++) run(&m, 4, false, 1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.05);
    assert_int_equal(estimate(&m).changes, 0);
}

static void late_vitals_are_not_counted_twice(void **state)
{
    (void)state;
    machine_t m = machine(7);
    m.outliers = 0;
    for (int i = 0; i < 10; i++) step(&m, 4, 4, 1);
    while (!run(&m, 4, false, 3.33)) {
    }
    pace_scale(&m.model, 0.3);
    assert_near(estimate(&m).sample_ns, 333 * MS, 0.07);
    pace_scale(&m.model, 0.5); /* another one */
    assert_near(estimate(&m).sample_ns, 667 * MS, 0.08);
}

/* Runs of 2 ms under a quota of 4 ms in each 20: most take 2, some 18. */
static void short_runs_measure_the_machine_and_not_the_period(void **state)
{
    (void)state;
    machine_t m = machine(8);
    int64_t now = 0;
    uint32_t changes = 0;
    for (int i = 0; i < 2000; i++) {
        const int64_t begin = now;
        for (int64_t left = 200; left > 0; now++) /* in 10 us */
            left -= now % 2000 < 400;
        pace_run(&m.model, 1, (now - begin) * 10000, false);
        if (i % 20 == 19) pace_step(&m.model, 0);
        if (i > 200) assert_near(estimate(&m).sample_ns, 10 * MS, 0.12);
        changes = estimate(&m).changes;
    }
    assert_int_equal(changes, 0);
}

static void without_leases_it_hopes_to_be_as_fast_as_usual(void **state)
{
    (void)state;
    machine_t m = machine(9);
    for (int i = 0; i < 20; i++) step(&m, 4, 4, 1);
    for (int i = 0; i < 6; i++) step(&m, 4, 4, 10);
    const double slow = estimate(&m).sample_ns;
    assert_near(slow, 1000 * MS, 0.1);
    uint32_t steps = 0;
    while (estimate(&m).sample_ns > 500 * MS && steps < 100) {
        pace_step(&m.model, 0);
        steps++;
    }
    assert_true(steps >= 12 && steps < 20);
    /* Tried, and it is still slow: it waits longer before it hopes again. */
    step(&m, 1, 1, 10);
    assert_near(estimate(&m).sample_ns, slow, 0.2);
    for (int i = 0; i < 16; i++) pace_step(&m.model, 0);
    assert_near(estimate(&m).sample_ns, slow, 0.2);
    for (int i = 0; i < 100; i++) pace_step(&m.model, 0);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.05); /* never faster than usual */
}

static void an_earlier_job_is_believed_until_it_is_measured(void **state)
{
    (void)state;
    machine_t m = machine(10);
    pace_seed(&m.model, 80 * MS, 40 * MS);
    assert_true(estimate(&m).known && estimate(&m).predicted);
    assert_near(estimate(&m).sample_ns, 80 * MS, 0.001);
    assert_near(estimate(&m).step_ns, 40 * MS, 0.001);
    for (int i = 0; i < 3; i++) run(&m, 4, false, 1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.06);
    pace_seed(&m.model, 80 * MS, 40 * MS); /* too late */
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.06);
}

static void runs_fit_the_share(void **state)
{
    (void)state;
    machine_t m = machine(11);
    m.a = 20;
    for (int i = 0; i < 60; i++) {
        for (uint32_t share = 0; share <= 256; share = share < 20 ? share + 1 : share * 2)
            for (uint32_t capacity = 1; capacity <= 64; capacity *= 4)
                for (double reduction = 0; reduction < 4e9; reduction = 2 * reduction + 1e8) {
                    uint32_t size, last;
                    pace_runs(&m.model, share, capacity, reduction, &size, &last);
                    assert_true(size >= 1 && size <= capacity && last >= 1 && last <= capacity);
                    if (share > 1) assert_true(size < share && last <= share);
                    if (reduction == 0 && share > 1) assert_true(size + last <= share);
                }
        step(&m, 4, i % 2 == 0 ? 8 : 3, 1);
    }
    uint32_t size, last;
    pace_runs(&m.model, 60, 16, 500 * MS, &size, &last);
    assert_true(size >= 3 && size <= 10);
    assert_int_equal(last, 8); /* two thirds of 750 ms */
    pace_runs(&m.model, 14, 16, 0, &size, &last);
    assert_true(size <= 6);
    pace_runs(&m.model, 6, 16, 500 * MS, &size, &last);
    assert_int_equal(last, 6); /* all of it, where all of it is needed */
}

/* Many runs, one run, a dear one, a cheap one: the line has the share's real cost, and no part of it is
 * negative. */
static void the_line_goes_through_what_the_share_costs(void **state)
{
    (void)state;
    for (double run_ns = 0; run_ns < 100; run_ns += 33)
        for (double step_ns = -5; step_ns < 50; step_ns += 27)
            for (uint32_t share = 1; share <= 40; share++)
                for (uint32_t run = 1; run <= 9; run += 2)
                    for (uint32_t last = 1; last <= 20; last += 3) {
                        const pace_estimate_t estimate = {
                            .known = true, .slope_ns = 10, .run_ns = run_ns, .step_ns = step_ns};
                        double cost = fmax(step_ns, 0), sample, rest;
                        for (uint32_t left = share; left > 0;) {
                            const uint32_t n = left <= last ? left : left - last < run ? left - last : run;
                            cost += run_ns + 10.0 * n;
                            left -= n;
                        }
                        pace_line(&estimate, share, run, last, &sample, &rest);
                        assert_true(sample > 0 && rest >= 0);
                        assert_true(fabs(rest + share * sample - cost) < 1e-9 * cost);
                    }
    const pace_estimate_t estimate = {.known = true, .slope_ns = 10, .run_ns = 8, .step_ns = 3};
    double sample, rest;
    pace_line(&estimate, 0, 4, 4, &sample, &rest);
    assert_true(sample == 12 && rest == 3);
}

static void nonsense_is_no_measurement(void **state)
{
    (void)state;
    machine_t m = machine(12);
    assert_false(pace_run(&m.model, 0, 1000, false));
    assert_false(pace_run(&m.model, 1, 0, false));
    assert_false(pace_run(&m.model, 1, -5, true));
    pace_scale(&m.model, 0.5);
    pace_seed(&m.model, NAN, NAN);
    assert_false(estimate(&m).known);
    for (int i = 0; i < 10; i++) step(&m, 2, 4, 1);
    pace_scale(&m.model, NAN);
    pace_scale(&m.model, 0);
    pace_scale(&m.model, -1);
    assert_near(estimate(&m).sample_ns, 100 * MS, 0.05);
    pace_step(&m.model, -1);
    assert_near(estimate(&m).step_ns, 50 * MS, 0.3);
}

/* Whatever is fed, in whatever order: nothing but positive, finite numbers, and it finds back. */
static void any_times_give_a_sane_estimate(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        machine_t m = machine(seed);
        for (int i = 0; i < 2000; i++) {
            const uint32_t samples = 1 + (uint32_t)rng_below(&m.rng, 1u << rng_below(&m.rng, 10));
            const int64_t ns = (int64_t)(rng_next(&m.rng) >> (1 + rng_below(&m.rng, 63)));
            switch (rng_below(&m.rng, 8)) {
            case 0: pace_step(&m.model, ns); break;
            case 1: pace_scale(&m.model, exp(8 * rng_normal(&m.rng))); break;
            case 2: pace_seed(&m.model, (double)ns, (double)ns); break;
            default: pace_run(&m.model, samples, ns, rng_below(&m.rng, 4) == 0); break;
            }
            const pace_estimate_t now = estimate(&m);
            uint32_t size, last;
            pace_runs(&m.model, samples, 1 + samples / 3, (double)ns, &size, &last);
            assert_true(size >= 1 && last >= 1 && size <= 1 + samples / 3);
            if (!now.known) continue;
            assert_true(isfinite(now.sample_ns) && now.sample_ns > 0);
            assert_true(isfinite(now.step_ns) && now.step_ns >= 0);
            assert_true(isfinite(now.factor) && now.factor > 0 && isfinite(now.usual) && now.usual > 0);
            assert_true(isfinite(now.uncertainty) && now.run_ns >= 0);
        }
        for (int i = 0; i < 60; i++) step(&m, 6, i % 4 < 2 ? 8 : 4, 1);
        assert_near(
            pace_sample_ns(
                &(pace_estimate_t){.slope_ns = estimate(&m).slope_ns, .run_ns = estimate(&m).run_ns}, 8),
            100 * MS, 0.2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_the_speed),
        cmocka_unit_test(the_first_run_warms_up),
        cmocka_unit_test(fits_the_cost_of_a_run),
        cmocka_unit_test(keeps_what_last_runs_do_besides_apart),
        cmocka_unit_test(outliers_are_no_changes),
        cmocka_unit_test(a_cut_is_found_soon),
        cmocka_unit_test(two_or_three_runs_say_so),
        cmocka_unit_test(says_how_much_and_since_when),
        cmocka_unit_test(a_drift_is_followed_and_told),
        cmocka_unit_test(to_and_fro_settles_on_the_mean),
        cmocka_unit_test(beyond_the_to_and_fro_is_a_change),
        cmocka_unit_test(vitals_shift_it_at_once),
        cmocka_unit_test(wrong_vitals_are_undone),
        cmocka_unit_test(late_vitals_are_not_counted_twice),
        cmocka_unit_test(short_runs_measure_the_machine_and_not_the_period),
        cmocka_unit_test(without_leases_it_hopes_to_be_as_fast_as_usual),
        cmocka_unit_test(an_earlier_job_is_believed_until_it_is_measured),
        cmocka_unit_test(runs_fit_the_share),
        cmocka_unit_test(the_line_goes_through_what_the_share_costs),
        cmocka_unit_test(nonsense_is_no_measurement),
        cmocka_unit_test(any_times_give_a_sane_estimate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
