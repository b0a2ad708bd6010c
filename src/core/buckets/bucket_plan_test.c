/* The bucket planner against every order and every way to cut it. */
#include "core/buckets/bucket_plan.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define FEW  5u
#define MANY 400u

static const bucket_costs_t costs = {.bucket_s = 1e-3, .byte_s = 1e-8, .tail_bytes = 256, .most = 255};

typedef struct plan {
    uint32_t order[MANY], sizes[MANY];
    bucket_cuts_t cuts;
    double exposed_s;
} plan_t;

static void plan(const bucket_gradient_t *gradients, uint32_t n, const bucket_costs_t *with, plan_t *out)
{
    out->cuts = (bucket_cuts_t){0, out->order, out->sizes};
    void *room = malloc(bucket_plan_bytes(n));
    assert_non_null(room);
    out->exposed_s = bucket_plan(gradients, n, with, &out->cuts, room);
    free(room);
    bool seen[MANY] = {false};
    uint32_t all = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(out->order[i] < n && !seen[out->order[i]]);
        seen[out->order[i]] = true;
    }
    assert_in_range(out->cuts.n_buckets, 1, with->most);
    for (uint32_t b = 0; b < out->cuts.n_buckets; b++) {
        assert_true(out->sizes[b] > 0);
        all += out->sizes[b];
    }
    assert_int_equal(all, n);
    assert_true(out->exposed_s == bucket_exposed(gradients, &out->cuts, with));
}

static void random_gradients(rng_t *rng, bucket_gradient_t *gradients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gradients[i] = (bucket_gradient_t){4 + rng_below(rng, 4000000), 1e-3 * (double)rng_below(rng, 100)};
}

/* Cuts of one order: bit i of mask: a bucket ends behind gradient i. */
static double least_of_order(const bucket_gradient_t *gradients, uint32_t *order, const bucket_costs_t *with)
{
    double least = INFINITY;
    for (uint32_t mask = 0; mask < 1u << (FEW - 1); mask++) {
        uint32_t sizes[FEW] = {0};
        bucket_cuts_t cuts = {1, order, sizes};
        for (uint32_t i = 0; i < FEW; i++) {
            sizes[cuts.n_buckets - 1]++;
            if (i + 1 < FEW && mask >> i & 1) cuts.n_buckets++;
        }
        if (cuts.n_buckets > with->most) continue;
        const double exposed = bucket_exposed(gradients, &cuts, with);
        if (exposed < least) least = exposed;
    }
    return least;
}

static double least_of_all(const bucket_gradient_t *gradients, uint32_t *order, uint32_t from,
                           const bucket_costs_t *with)
{
    if (from == FEW) return least_of_order(gradients, order, with);
    double least = INFINITY;
    for (uint32_t i = from; i < FEW; i++) {
        const uint32_t kept = order[from];
        order[from] = order[i];
        order[i] = kept;
        const double exposed = least_of_all(gradients, order, from + 1, with);
        if (exposed < least) least = exposed;
        order[i] = order[from];
        order[from] = kept;
    }
    return least;
}

static void nothing_is_better(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 150; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 0xb0c);
        bucket_gradient_t gradients[FEW];
        random_gradients(&rng, gradients, FEW);
        bucket_costs_t with = costs;
        with.bucket_s = 1e-5 * (double)(1 + rng_below(&rng, 2000));
        with.byte_s = 1e-9 * (double)rng_below(&rng, 40);
        uint32_t order[FEW] = {0, 1, 2, 3, 4};
        plan_t found;
        plan(gradients, FEW, &with, &found);
        const double least = least_of_all(gradients, order, 0, &with);
        if (found.exposed_s > least + 1e-11)
            fail_msg("seed %u: the plan exposes %.9f s, %.9f s are possible", seed, found.exposed_s, least);
    }
}

/* Everything ready at the end: one reduction. Everything long before: as few as end in time. */
static void cuts_where_they_win(void **state)
{
    (void)state;
    bucket_gradient_t gradients[MANY];
    plan_t found;
    for (uint32_t i = 0; i < MANY; i++) gradients[i] = (bucket_gradient_t){100000, 0};
    plan(gradients, MANY, &costs, &found);
    assert_int_equal(found.cuts.n_buckets, 1);
    for (uint32_t i = 0; i < MANY; i++) gradients[i].gap_s = i < MANY / 2 ? 0.01 : 10;
    plan(gradients, MANY, &costs, &found);
    assert_int_equal(found.cuts.n_buckets, 2); /* the second half goes while the first is computed */
    assert_int_equal(found.sizes[0], MANY / 2);
    /* 2 ms each, ready every 3 ms, the last one first: all but one are hidden */
    for (uint32_t i = 0; i < MANY; i++) gradients[i].gap_s = 3e-3 * (double)i;
    plan(gradients, MANY, &costs, &found);
    assert_int_equal(found.order[0], MANY - 1);
    assert_true(found.cuts.n_buckets > 1);
    assert_true(found.exposed_s < 2.1e-3);
}

static void never_more_than_asked_for(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 0xb0d);
        bucket_gradient_t gradients[MANY];
        random_gradients(&rng, gradients, MANY);
        bucket_costs_t with = costs;
        with.bucket_s = 1e-9;
        with.most = 1 + (uint32_t)rng_below(&rng, 20);
        plan_t found;
        plan(gradients, MANY, &with, &found);
    }
}

static void what_a_wrong_order_costs(void **state)
{
    (void)state;
    enum { N = 32 };
    bucket_gradient_t gradients[N];
    uint32_t order[N], sizes[N];
    for (uint32_t i = 0; i < N; i++) {
        gradients[i] = (bucket_gradient_t){1000000, 10e-3 * i}; /* the last is ready first */
        order[i] = i;                                           /* and is sent last */
        sizes[i] = 1;
    }
    const bucket_cuts_t wrong = {N, order, sizes};
    plan_t found;
    plan(gradients, N, &costs, &found);
    assert_true(bucket_exposed(gradients, &wrong, &costs) > 32 * 10e-3);
    assert_true(found.exposed_s < 0.08 && found.exposed_s > 0);
}

static void a_change_must_win_and_rests_after_it(void **state)
{
    (void)state;
    bucket_planner_t planner = {0};
    uint32_t changes[3] = {0}, n = 0;
    assert_false(bucket_change_due(&planner, 0.119, 0.1, 1));
    for (uint32_t i = 0; i < 100 && n < 3; i++)
        if (bucket_change_due(&planner, 0.13, 0.1, 1)) changes[n++] = i;
    assert_int_equal(n, 3);
    assert_int_equal(changes[0], BUCKET_PLAN_CALLS - 1);
    assert_true(changes[2] - changes[1] > changes[1] - changes[0]);
    memset(&planner, 0, sizeof planner);
    for (uint32_t i = 0; i < 100; i++) /* not in a row */
        assert_false(bucket_change_due(&planner, i % 3 == 2 ? 0.11 : 0.2, 0.1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_better),
        cmocka_unit_test(cuts_where_they_win),
        cmocka_unit_test(never_more_than_asked_for),
        cmocka_unit_test(what_a_wrong_order_costs),
        cmocka_unit_test(a_change_must_win_and_rests_after_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
