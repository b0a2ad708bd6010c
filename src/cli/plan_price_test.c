/* The price that `inspan plan` uses: near the closed form, remembered, and chosen as the communicator does.
 */
#include "cli/plan_price.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define GIGABIT PLAN_CABLE_BYTES_PER_S

static plan_node_t node(double up, double down)
{
    return (plan_node_t){.sample_s = 1, .up_bytes_per_s = up, .down_bytes_per_s = down, .micro_batch = 1};
}

static plan_reduction_t priced(plan_pricer_t *pricer, const plan_node_t *nodes, uint32_t n, uint64_t bytes)
{
    const plan_node_t *members[PLAN_NODES_MAX];
    plan_reduction_t reduction = {0};
    const plan_price_t price = plan_pricer_price(pricer);
    for (uint32_t i = 0; i < n; i++) members[i] = &nodes[i];
    price.fn(price.context, members, n, bytes, &reduction);
    return reduction;
}

static void bulk_is_near_the_closed_form(void **state)
{
    (void)state;
    plan_pricer_t *pricer = plan_pricer_open(1375000);
    for (uint32_t n = 2; n <= 8; n++)
        for (int slow = 0; slow < 2; slow++) {
            plan_node_t nodes[8];
            const plan_node_t *members[8];
            plan_reduction_t closed = {0};
            for (uint32_t i = 0; i < n; i++) members[i] = &nodes[i], nodes[i] = node(GIGABIT, GIGABIT);
            if (slow) nodes[n - 1] = node(GIGABIT / 5, GIGABIT / 2);
            plan_price_direct(NULL, members, n, 44000000, &closed);
            double least = closed.seconds; /* who has a slow link makes no sums */
            if (slow) least = fmax(44e6 / (GIGABIT / 5), (2 * n - 2) * 44e6 / ((n - 1 + 0.2) * GIGABIT));
            const plan_reduction_t got = priced(pricer, nodes, n, 44000000);
            if (fabs(got.seconds / least - 1) > 0.06)
                fail_msg("%u members, slow %d: %g s, closed form %g s", n, slow, got.seconds, least);
            if (!slow) assert_float_equal(got.moved[0], closed.moved[0], 1);
            if (slow) assert_float_equal(got.moved[n - 1], 2 * 44e6, 1);
        }
    plan_pricer_close(pricer);
}

static void without_limits_only_latency_is_left(void **state)
{
    (void)state;
    plan_pricer_t *pricer = plan_pricer_open(1375000);
    const plan_node_t nodes[] = {node(INFINITY, INFINITY), node(INFINITY, INFINITY)};
    const plan_reduction_t got = priced(pricer, nodes, 2, 44000000);
    assert_true(got.seconds > 0 && got.seconds < 0.01);
    plan_pricer_close(pricer);
}

static void what_is_small_takes_one_hop(void **state)
{
    (void)state;
    plan_pricer_t *pricer = plan_pricer_open(1000000);
    const plan_node_t nodes[] = {node(GIGABIT, GIGABIT), node(GIGABIT, GIGABIT), node(GIGABIT, GIGABIT)};
    const plan_reduction_t got = priced(pricer, nodes, 3, 4000);
    assert_float_equal(got.moved[0], 2 * 2 * 4000, 1e-6);
    plan_pricer_close(pricer);
}

static void the_same_links_have_the_same_price(void **state)
{
    (void)state;
    plan_pricer_t *pricer = plan_pricer_open(1375000);
    const plan_node_t one[] = {node(GIGABIT, GIGABIT), node(GIGABIT / 3, GIGABIT),
                               node(GIGABIT, GIGABIT / 7)};
    const plan_node_t other[] = {one[2], one[0], one[1]};
    const double first = priced(pricer, one, 3, 44000000).seconds;
    assert_true(priced(pricer, other, 3, 44000000).seconds == first);
    assert_true(priced(pricer, one, 3, 44000000).seconds == first);
    assert_true(priced(pricer, one, 2, 44000000).seconds != first);
    for (int i = 1; i < 6000; i++) { /* more than are remembered */
        const plan_node_t pair[] = {node(GIGABIT * i, GIGABIT), node(GIGABIT, GIGABIT)};
        assert_true(priced(pricer, pair, 2, 4000).seconds > 0);
    }
    assert_true(priced(pricer, one, 3, 44000000).seconds == first);
    plan_pricer_close(pricer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bulk_is_near_the_closed_form),
        cmocka_unit_test(without_limits_only_latency_is_left),
        cmocka_unit_test(what_is_small_takes_one_hop),
        cmocka_unit_test(the_same_links_have_the_same_price),
    };
    return cmocka_run_group_tests_name("plan-price", tests, NULL, NULL);
}
