/* The closed loop of pace, split and steal: what the mechanism as a whole must do. LOOP_TRACE=1 prints each
 * step. */
#include "core/partition/partition_world_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND    1000000000ll
#define SETTLED   10 /* steps in which paces become known */
#define SEEDS     12
#define STEPS_MAX 400

static const double quotas[] = {0.8, 0.4, 0.4, 0.2};

static void open_world(world_t *world, world_options_t options, const double *cores)
{
    options.trace = getenv("LOOP_TRACE") != NULL;
    world_open(world, &options, cores);
}

/* Steps from here on; their throughput against the sum of the machines alone. */
static double efficiency(world_t *world, uint32_t steps)
{
    const uint64_t samples = world->samples;
    const double ideal = world->ideal;
    for (uint32_t i = 0; i < steps; i++) world_step(world);
    return (double)(world->samples - samples) / (world->ideal - ideal);
}

static double steady(uint32_t batch, double outliers, bool equal, bool no_steal, uint64_t *resplits)
{
    double sum = 0, worst = 1;
    *resplits = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        world_t world;
        world_options_t options = world_defaults(4, batch, seed);
        options.outliers = outliers, options.equal = equal, options.no_steal = no_steal;
        open_world(&world, options, quotas);
        efficiency(&world, SETTLED);
        const uint64_t before = world.resplits;
        const double e = efficiency(&world, 100);
        *resplits += world.resplits - before;
        sum += e;
        worst = fmin(worst, e);
    }
    printf("batch %3u, %.1f %% outliers%s%s: %.1f %% of the sum of speeds, at worst %.1f %%, %.1f re-splits "
           "in 100 steps\n",
           batch, 100 * outliers, equal ? ", equal shares" : "", no_steal ? ", no stealing" : "",
           100 * sum / SEEDS, 100 * worst, (double)*resplits / SEEDS);
    return sum / SEEDS;
}

static void unequal_machines_give_their_sum(void **state)
{
    (void)state;
    uint64_t resplits;
    steady(32, 0, true, true, &resplits);
    assert_true(steady(32, 0, false, false, &resplits) > 0.85);
    assert_true(resplits <= SEEDS);
    steady(32, 0.003, false, false, &resplits);
    assert_true(steady(128, 0, false, false, &resplits) > 0.965);
    assert_true(resplits <= SEEDS);
    assert_true(steady(128, 0.003, false, false, &resplits) > 0.95);
    assert_true(resplits <= 2 * SEEDS);
    const double stolen = steady(128, 0.01, false, false, &resplits);
    assert_true(steady(128, 0.01, false, true, &resplits) < stolen);
}

static int by_length(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The 0.8 core is cut to 30 % in step 50, and restored in step 100. */
static void cut_and_restored(uint32_t batch, bool vitals, bool no_steal)
{
    uint32_t found_most = 0;
    double longest = 0, worst = 1;
    uint64_t resplits = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        world_t world;
        world_options_t options = world_defaults(4, batch, seed);
        options.vitals = vitals, options.no_steal = no_steal, options.outliers = 0;
        open_world(&world, options, quotas);
        int64_t steps[150];
        uint32_t found[2] = {0, 0};
        double after[2] = {0, 0};
        for (uint32_t i = 0; i < 150; i++) {
            if (i == SETTLED) resplits -= world.resplits;
            if (i == 50 || i == 100) {
                const double part = 0.1 + 0.8 * (double)seed / SEEDS;
                world_set_quota(&world, 0, world.now + (int64_t)(part * (double)world.step_ns),
                                i == 50 ? 0.24 : 0.8);
            }
            world_step(&world);
            steps[i] = world.step_ns;
            const uint32_t c = i >= 100;
            if (i >= 50 && world.machines[0].changed && found[c] == 0) found[c] = i + 1 - (c == 0 ? 50 : 100);
            if (i % 50 >= 5 && i % 50 < 15 && i >= 50) after[c] += options.batch / world.step_ideal / 10;
        }
        resplits += world.resplits;
        for (int c = 0; c < 2; c++) {
            if (found[c] == 0) fail_msg("seed %u: the change was not found", (unsigned)seed);
            found_most = found[c] > found_most ? found[c] : found_most;
            worst = fmin(worst, after[c]);
        }
        int64_t sorted[150];
        memcpy(sorted, steps, sizeof sorted);
        qsort(sorted, 150, sizeof sorted[0], by_length);
        for (uint32_t i = SETTLED; i < 150; i++)
            longest = fmax(longest, (double)steps[i] / (double)sorted[75]);
    }
    printf("batch %u%s%s, 0.8 core cut to 0.24 and restored: found in %u steps at most, then at worst %.1f "
           "%% of the new sum, the longest step "
           "%.2f medians, %.1f re-splits for 2 changes\n",
           batch, vitals ? ", vitals" : "", no_steal ? ", no stealing" : "", found_most, 100 * worst, longest,
           (double)resplits / SEEDS);
    assert_true(found_most <= 3);
    if (no_steal) return;
    if (batch == 128) assert_true(longest < 2);
    assert_true(worst > (batch == 128 ? 0.94 : 0.8));
}

static void a_cut_stalls_nobody(void **state)
{
    (void)state;
    cut_and_restored(128, false, true);
    cut_and_restored(128, false, false);
    cut_and_restored(128, true, false);
    cut_and_restored(32, false, false);
}

static void to_and_fro_does_not_oscillate(void **state)
{
    (void)state;
    double sum = 0;
    uint64_t resplits = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        world_t world;
        open_world(&world, world_defaults(4, 128, seed), quotas);
        efficiency(&world, 20);
        for (uint32_t i = 0; i < 120; i++) {
            if (i % 3 == 0) world_set_quota(&world, 0, world.now, i / 3 % 2 == 0 ? 0.3 : 0.8);
            if (i == 30) resplits -= world.resplits;
            const double e = efficiency(&world, 1);
            if (i >= 30) sum += e / 90;
        }
        resplits += world.resplits;
        assert_true(world.machines[0].estimate.unsteady);
    }
    printf("0.8 core at 0.3 and back every 3 steps: %.1f %% of the sum, %.2f re-splits in 90 steps with 30 "
           "changes\n",
           100 * sum / SEEDS, (double)resplits / SEEDS);
    assert_true(resplits <= 2 * SEEDS);
    assert_true(sum / SEEDS > 0.85);
}

typedef struct soak {
    double efficiency, worst;
    uint64_t changes, resplits, told;
} soak_t;

/* Ten minutes in which the quota of a random machine changes at random times. */
static void random_changes(uint32_t n, uint32_t batch, double every, uint64_t seed, bool vitals, soak_t *soak)
{
    world_t world;
    world_options_t options = world_defaults(n, batch, seed);
    options.vitals = vitals;
    double cores[PARTITION_MEMBERS_MAX];
    rng_t rng;
    rng_seed(&rng, seed, 1);
    for (uint32_t i = 0; i < n; i++) cores[i] = 0.2 + 0.8 * rng_uniform(&rng);
    open_world(&world, options, cores);
    efficiency(&world, SETTLED);
    const int64_t from = world.now;
    for (int64_t at = from;;) {
        at += (int64_t)(-every * log(1 - rng_uniform(&rng)) * (double)SECOND);
        if (at >= from + 600 * SECOND) break;
        const uint32_t who = (uint32_t)rng_below(&rng, n);
        double next = 0.2 + 0.8 * rng_uniform(&rng);
        while (fabs(log(next / cores[who])) < 0.1) next = 0.2 + 0.8 * rng_uniform(&rng); /* a real change */
        cores[who] = next;
        world_set_quota(&world, who, at, next);
        soak->changes++;
    }
    const uint64_t samples = world.samples, resplits = world.resplits;
    const double ideal = world.ideal;
    uint32_t told = 0;
    for (uint32_t i = 0; i < n; i++) told += world.machines[i].estimate.changes;
    while (world.now < from + 600 * SECOND) world_step(&world);
    const double e = (double)(world.samples - samples) / (world.ideal - ideal);
    soak->efficiency += e / SEEDS;
    soak->worst = fmin(soak->worst, e);
    soak->resplits += world.resplits - resplits;
    for (uint32_t i = 0; i < n; i++) soak->told += world.machines[i].estimate.changes;
    soak->told -= told;
}

static void soaked(uint32_t n, uint32_t batch, double every, bool vitals)
{
    soak_t soak = {.worst = 1};
    for (uint64_t seed = 0; seed < SEEDS; seed++) random_changes(n, batch, every, seed, vitals, &soak);
    const double each = (double)soak.resplits / (double)soak.changes;
    printf("%u machines, batch %3u, a change every %2.0f s%s: %.1f %% of the sum (at worst %.1f %%) over 10 "
           "minutes, %.2f re-splits and %.2f "
           "changes told for each of %.0f real changes\n",
           n, batch, every, vitals ? ", vitals" : "", 100 * soak.efficiency, 100 * soak.worst, each,
           (double)soak.told / (double)soak.changes, (double)soak.changes / SEEDS);
    assert_true(soak.efficiency > 0.9 && soak.worst > 0.86);
    assert_true(each < 1);
}

static void ten_minutes_of_random_changes(void **state)
{
    (void)state;
    soaked(4, 128, 30, false);
    soaked(4, 128, 30, true);
    soaked(2, 64, 30, false);
    soaked(8, 256, 20, false);
}

static void the_slowest_is_left_without_leases_and_comes_back(void **state)
{
    (void)state;
    world_t world;
    world_options_t options = world_defaults(3, 32, 1);
    options.update_ns = options.reduce_ns =
        4e6; /* else it is better drained: they alone would hold the others up */
    open_world(&world, options, (double[]){1, 1, 1});
    efficiency(&world, 20);
    world_set_quota(&world, 2, world.now, 0.02); /* a sample takes longer than the whole step */
    efficiency(&world, 30);
    assert_int_equal(world.shares[2], 0);
    printf("a machine at a fiftieth: %.1f %% of the sum\n", 100 * efficiency(&world, 60));
    world_set_quota(&world, 2, world.now, 1);
    uint32_t steps = 0;
    while (world.shares[2] < 8 && steps < STEPS_MAX) {
        world_step(&world);
        steps++;
    }
    printf("restored: it has its share again after %u steps\n", steps);
    assert_true(steps < 100);
}

/* A machine never makes the others slower than they are without it. */
static void never_worse_than_the_best_alone(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 5, 0);
    double worst = 9;
    for (uint64_t round = 0; round < 20; round++) {
        const uint32_t n = 2 + (uint32_t)rng_below(&rng, 4), batch = 16u << rng_below(&rng, 4);
        double cores[5], best = 0;
        for (uint32_t i = 0; i < n; i++) {
            cores[i] = exp(log(0.05) * rng_uniform(&rng));
            best = fmax(best, cores[i]);
        }
        world_t world;
        open_world(&world, world_defaults(n, batch, round), cores);
        efficiency(&world, 20);
        const int64_t from = world.now;
        efficiency(&world, 40);
        const world_options_t *o = &world.options;
        const double alone =
            best / (o->sample_ns + (o->run_ns + o->update_ns) / 8) * (double)(world.now - from);
        worst = fmin(worst, 40.0 * batch / alone);
    }
    printf("20 random sets of machines: at worst %.2f times the best one alone\n", worst);
    assert_true(worst > 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unequal_machines_give_their_sum),
        cmocka_unit_test(a_cut_stalls_nobody),
        cmocka_unit_test(to_and_fro_does_not_oscillate),
        cmocka_unit_test(ten_minutes_of_random_changes),
        cmocka_unit_test(the_slowest_is_left_without_leases_and_comes_back),
        cmocka_unit_test(never_worse_than_the_best_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
