/* The pricer against closed forms and against what a prototype measured on shaped links; the choice it makes.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "core/collective/link_model.h"

enum { MOST_RANKS = 17, CHUNK = 128 * 1024 };

#define GIGABIT 119.6e6 /* bytes/s of payload that a shaped link of 1 Gbit/s carries */

typedef struct lan {
    link_model_t model;
    link_port_t ports[MOST_RANKS];
    ns_t latency[MOST_RANKS * MOST_RANKS];
} lan_t;

static void lan_init(lan_t *lan, uint32_t world, double bytes_per_s, ns_t latency, ns_t per_message)
{
    lan->model = (link_model_t){world, lan->ports, lan->latency, 4e9, per_message};
    for (uint32_t i = 0; i < world; i++) lan->ports[i] = (link_port_t){bytes_per_s, bytes_per_s};
    for (uint32_t i = 0; i < world * world; i++) lan->latency[i] = latency;
}

static double priced_chunks(const lan_t *lan, sched_collective_t collective, sched_algorithm_t algorithm,
                            uint64_t bytes, const double *weights, uint64_t chunk_bytes)
{
    const schedule_t *ranks[MOST_RANKS] = {0};
    const uint32_t world = lan->model.world;
    for (uint32_t r = 0; r < world; r++) {
        const sched_request_t request = {.collective = collective,
                                         .algorithm = algorithm,
                                         .world = world,
                                         .rank = r,
                                         .count = bytes / 4,
                                         .element_size = 4,
                                         .chunk_bytes = chunk_bytes,
                                         .weights = weights};
        schedule_t *built = NULL;
        assert_int_equal(sched_build(&request, &built), INSPAN_OK);
        ranks[r] = built;
    }
    ns_t time = 0;
    assert_int_equal(price_schedule(ranks, 4, &lan->model, &time), INSPAN_OK);
    for (uint32_t r = 0; r < world; r++) sched_free((schedule_t *)(uintptr_t)ranks[r]);
    return ns_to_s(time);
}

static double priced(const lan_t *lan, sched_collective_t collective, sched_algorithm_t algorithm,
                     uint64_t bytes, const double *weights)
{
    return priced_chunks(lan, collective, algorithm, bytes, weights, CHUNK);
}

static void near(const char *what, double got, double want, double less, double more)
{
    if (!(got >= want * (1 - less) && got <= want * (1 + more)))
        fail_msg("%s: %.3f ms, expected %.3f (-%g%%, +%g%%)", what, got * 1e3, want * 1e3, less * 100,
                 more * 100);
}

/* Never below the bound of the busiest port, and not more above it than filling the pipeline costs. */
static void bulk_follows_the_closed_forms(void **state)
{
    (void)state;
    const double bytes = 25e6, seconds = bytes / GIGABIT;
    for (uint32_t n = 2; n <= MOST_RANKS; n += n < 5 ? 1 : 4) {
        lan_t lan;
        lan_init(&lan, n, GIGABIT, 30 * NS_PER_US, 2 * NS_PER_US);
        const double shards = (n - 1.0) / n;
        near("all-reduce direct", priced(&lan, SCHED_ALLREDUCE, SCHED_DIRECT, 25000000, NULL),
             (1 + (n - 2.0) / n) * seconds, 1e-3, 0.05);
        near("all-reduce ring", priced(&lan, SCHED_ALLREDUCE, SCHED_RING, 25000000, NULL),
             2 * shards * seconds, 1e-3, 0.05);
        near("all-reduce one-shot", priced(&lan, SCHED_ALLREDUCE, SCHED_ONE_SHOT, 25000000, NULL),
             (n - 1) * seconds, 1e-3, 0.05);
        const double power = floor(log2(n)), fold = power<log2(n), across = n> 3 ? 2 : n / 2.0;
        near("all-reduce doubling", priced(&lan, SCHED_ALLREDUCE, SCHED_DOUBLING, 25000000, NULL),
             (power + fold) * seconds, 1e-3, 0.1);
        near("all-reduce trees", priced(&lan, SCHED_ALLREDUCE, SCHED_TREES, 25000000, NULL), across * seconds,
             1e-3, 0.25); /* their halves meet in all ports */
        near("reduce-scatter direct", priced(&lan, SCHED_REDUCE_SCATTER, SCHED_DIRECT, 25000000, NULL),
             shards * seconds, 1e-3, 0.05);
        near("reduce-scatter ring", priced(&lan, SCHED_REDUCE_SCATTER, SCHED_RING, 25000000, NULL),
             shards * seconds, 1e-3, 0.05);
        near("all-gather direct", priced(&lan, SCHED_ALLGATHER, SCHED_DIRECT, 25000000, NULL),
             shards * seconds, 1e-3, 0.05);
        near("all-gather ring", priced(&lan, SCHED_ALLGATHER, SCHED_RING, 25000000, NULL), shards * seconds,
             1e-3, 0.05);
        near("broadcast direct", priced(&lan, SCHED_BROADCAST, SCHED_DIRECT, 25000000, NULL),
             (n - 1) * seconds, 1e-3, 0.05);
        near("broadcast ring", priced(&lan, SCHED_BROADCAST, SCHED_RING, 25000000, NULL),
             seconds + (n - 2) * (double)CHUNK / GIGABIT, 5e-3, 0.05);
    }
}

/* Four ranks in namespaces, links shaped to 1 Gbit/s, some of one rank less; medians. */
static void measurements_are_met(void **state)
{
    (void)state;
    static const double equal[] = {1, 1, 1, 1}, fifth[] = {1, 1, 1, 0.2}, none[] = {1, 1, 1, 0};
    static const struct {
        uint64_t bytes;
        double slow; /* share of a gigabit that rank 3 has */
        const double *weights;
        double measured_ms;
    } cases[] = {
        {1000000, 1, equal, 12.57},   {25000000, 1, equal, 314.1},  {100000000, 1, equal, 1261},
        {25000000, 0.2, equal, 1583}, {25000000, 0.2, fifth, 1191}, {25000000, 0.2, none, 1054},
        {1000000, 0.2, none, 43.2},   {25000000, 0.1, none, 2113},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lan_t lan;
        lan_init(&lan, 4, GIGABIT, 20 * NS_PER_US, 2 * NS_PER_US);
        lan.ports[3] = (link_port_t){GIGABIT * cases[i].slow, GIGABIT * cases[i].slow};
        char what[64];
        snprintf(what, sizeof what, "case %zu", i);
        /* The last chunk's results come after the last contribution: short operations want short chunks. */
        const uint64_t chunk = cases[i].bytes < 4000000 ? CHUNK / 8 : CHUNK;
        near(what,
             priced_chunks(&lan, SCHED_ALLREDUCE, SCHED_DIRECT, cases[i].bytes, cases[i].weights, chunk),
             cases[i].measured_ms * 1e-3, 0.05, 0.05);
    }
}

static void small_messages_cost_latency(void **state)
{
    (void)state;
    const ns_t hop = 100 * NS_PER_US, handling = 5 * NS_PER_US;
    for (uint32_t n = 2; n <= 8; n++) {
        lan_t lan;
        lan_init(&lan, n, GIGABIT, hop, handling);
        const double each = 64 / GIGABIT;
        /* One hop; all sends are handled before the first receive, then the receives one by one. */
        near("one-shot", priced(&lan, SCHED_ALLREDUCE, SCHED_ONE_SHOT, 64, NULL),
             ns_to_s(hop) + 2 * (n - 1) * ns_to_s(handling) + each, 0.05 * (n - 1), 0.05);
        int rounds = 0;
        while (1u << rounds < n) rounds++;
        near("barrier", priced(&lan, SCHED_BARRIER, SCHED_ONE_SHOT, 0, NULL),
             rounds * ns_to_s(hop + 2 * handling), 0.01, 0.01);
        near("ring", priced(&lan, SCHED_ALLREDUCE, SCHED_RING, 64 * n, NULL),
             2 * (n - 1) * (ns_to_s(hop + 2 * handling) + each), 0.05, 0.05);
    }
}

static void adding_costs_time(void **state)
{
    (void)state;
    lan_t lan;
    lan_init(&lan, 4, 1e12, 0, 0);
    lan.model.reduce_bytes_per_s = 1e9;
    /* Each rank works through its quarter four times: one copy, three additions. */
    near("direct", priced(&lan, SCHED_ALLREDUCE, SCHED_DIRECT, 4000000, NULL), 4e-3, 0.01, 0.1);
    near("one-shot", priced(&lan, SCHED_ALLREDUCE, SCHED_ONE_SHOT, 4000000, NULL), 16e-3, 0.3, 0.01);
}

static ns_t choose(const lan_t *lan, uint64_t bytes, sched_algorithm_t *algorithm, double *weights)
{
    ns_t time = 0;
    assert_int_equal(price_choose(SCHED_ALLREDUCE, lan->model.world, bytes / 4, 4, CHUNK, &lan->model,
                                  algorithm, weights, &time),
                     INSPAN_OK);
    double total = 0;
    for (uint32_t i = 0; i < lan->model.world; i++) total += weights[i];
    assert_true(fabs(total - 1) < 1e-9);
    return time;
}

static void the_choice_fits_size_and_links(void **state)
{
    (void)state;
    lan_t lan;
    sched_algorithm_t algorithm = SCHED_ALGORITHMS;
    double weights[MOST_RANKS];
    lan_init(&lan, 4, GIGABIT, 100 * NS_PER_US, 5 * NS_PER_US);
    choose(&lan, 4096, &algorithm, weights);
    assert_int_equal(algorithm, SCHED_ONE_SHOT);
    near("equal links", ns_to_s(choose(&lan, 25000000, &algorithm, weights)), 0.3135, 1e-3, 0.03);
    assert_int_equal(algorithm, SCHED_DIRECT);
    assert_true(weights[0] == weights[3]);

    lan.ports[3] = (link_port_t){GIGABIT / 5, GIGABIT / 5}; /* S/B is the bound: it owns nothing */
    near("a slow link", ns_to_s(choose(&lan, 25000000, &algorithm, weights)), 1.045, 1e-3, 0.03);
    assert_int_equal(algorithm, SCHED_DIRECT);
    assert_true(weights[3] == 0 && weights[0] > 0.3);

    lan.ports[3] = (link_port_t){GIGABIT, GIGABIT / 5}; /* slow one way only */
    near("a slow way", ns_to_s(choose(&lan, 25000000, &algorithm, weights)), 1.045, 1e-3, 0.03);
    assert_true(weights[3] == 0);

    lan.ports[3] = (link_port_t){GIGABIT * 0.8, GIGABIT * 0.8}; /* a little slower: it owns a little less */
    near("uneven links", ns_to_s(choose(&lan, 25000000, &algorithm, weights)), 6 * 25e6 / (3.8 * GIGABIT),
         1e-3, 0.03);
    assert_true(weights[3] > 0 && weights[3] < weights[0]);
}

/* The closed form, with the shares that fit the ports, against the simulation. */
static void shares_fit_the_ports(void **state)
{
    (void)state;
    lan_t lan;
    double weights[MOST_RANKS];
    lan_init(&lan, 4, GIGABIT, 100 * NS_PER_US, 5 * NS_PER_US);
    assert_false(link_shares(&lan.model, weights));
    near("equal", link_direct_seconds(&lan.model, weights, 25e6, NULL), 1.5 * 25e6 / GIGABIT, 1e-9, 1e-9);
    const double slow[] = {0.9, 0.6, 0.3, 0.1, 0.01};
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) {
        lan.ports[1] = (link_port_t){slow[i] * GIGABIT, GIGABIT};
        assert_true(link_shares(&lan.model, weights));
        const double least = fmax(25e6 / (slow[i] * GIGABIT), 6 * 25e6 / ((3 + slow[i]) * GIGABIT));
        near("bound", link_direct_seconds(&lan.model, weights, 25e6, NULL), least, 1e-3, 0.01);
        near("simulated", priced(&lan, SCHED_ALLREDUCE, SCHED_DIRECT, 25000000, weights), least, 1e-3, 0.1);
    }
    lan_init(&lan, 2, GIGABIT, 100 * NS_PER_US, 5 * NS_PER_US);
    lan.ports[1].down_bytes_per_s = GIGABIT / 10;
    assert_false(link_shares(&lan.model, weights)); /* two have no choice */
    near("two", link_direct_seconds(&lan.model, weights, 25e6, NULL), 10 * 25e6 / GIGABIT, 1e-9, 1e-9);
}

static void other_collectives_have_a_choice_too(void **state)
{
    (void)state;
    lan_t lan;
    lan_init(&lan, 5, GIGABIT, 100 * NS_PER_US, 5 * NS_PER_US);
    double weights[MOST_RANKS];
    ns_t time = 0;
    sched_algorithm_t algorithm = SCHED_ALGORITHMS;
    assert_int_equal(
        price_choose(SCHED_BROADCAST, 5, 2500000, 4, CHUNK, &lan.model, &algorithm, weights, &time),
        INSPAN_OK);
    assert_int_equal(algorithm, SCHED_RING);
    assert_int_equal(price_choose(SCHED_BROADCAST, 5, 16, 4, CHUNK, &lan.model, &algorithm, weights, &time),
                     INSPAN_OK);
    assert_int_equal(algorithm, SCHED_DIRECT);
    assert_int_equal(price_choose(SCHED_BARRIER, 5, 0, 1, CHUNK, &lan.model, &algorithm, weights, &time),
                     INSPAN_OK);
    assert_true(time > 300 * NS_PER_US);
    for (sched_collective_t c = SCHED_REDUCE_SCATTER; c <= SCHED_ALLGATHER; c++)
        assert_int_equal(price_choose(c, 5, 100000, 4, CHUNK, &lan.model, &algorithm, weights, &time),
                         INSPAN_OK);
}

static void odd_worlds_and_sizes(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 5, 0);
    for (int round = 0; round < 60; round++) {
        lan_t lan;
        const uint32_t world = 1 + (uint32_t)rng_below(&rng, 7);
        lan_init(&lan, world, 1e6, 1000, 100);
        for (uint32_t i = 0; i < world; i++)
            lan.ports[i] = (link_port_t){1e6 + 1e8 * rng_uniform(&rng), 1e6 + 1e8 * rng_uniform(&rng)};
        sched_algorithm_t algorithm = SCHED_ALGORITHMS;
        double weights[MOST_RANKS];
        const uint64_t bytes = rng_below(&rng, 3) == 0 ? rng_below(&rng, 12) : rng_below(&rng, 3000000);
        const ns_t time = choose(&lan, bytes, &algorithm, weights);
        assert_true(time >= 0 && algorithm < SCHED_ALGORITHMS);
        if (bytes < 4) assert_true(time == 0);
    }
}

static void bad_models_are_refused(void **state)
{
    (void)state;
    lan_t lan;
    double weights[MOST_RANKS];
    ns_t time = 0;
    sched_algorithm_t algorithm = SCHED_ALGORITHMS;
    for (int fault = 0; fault < 6; fault++) {
        lan_init(&lan, 3, GIGABIT, 1000, 0);
        if (fault == 0) lan.ports[1].up_bytes_per_s = 0;
        if (fault == 1) lan.ports[2].down_bytes_per_s = NAN;
        if (fault == 2) lan.latency[1] = -1;
        if (fault == 3) lan.model.reduce_bytes_per_s = 0;
        if (fault == 4) lan.model.world = 2;
        if (fault == 5) lan.model.per_message = -1;
        assert_int_equal(
            price_choose(SCHED_ALLREDUCE, 3, 100, 4, CHUNK, &lan.model, &algorithm, weights, &time),
            INSPAN_INVALID);
    }
    /* A schedule that never ends: rank 1's send waits for a receive from itself, in effect. */
    lan_init(&lan, 2, GIGABIT, 1000, 0);
    schedule_t *ranks[2];
    for (uint32_t r = 0; r < 2; r++) {
        const sched_request_t request = {.collective = SCHED_BARRIER, .world = 2, .rank = r};
        assert_int_equal(sched_build(&request, &ranks[r]), INSPAN_OK);
        const sched_op_t send = ranks[r]->ops[0];
        ranks[r]->ops[0] = ranks[r]->ops[1];
        ranks[r]->ops[1] = send;
        ranks[r]->ops[1].after[0] = 0;
    }
    assert_int_equal(price_schedule((const schedule_t *const *)ranks, 4, &lan.model, &time), INSPAN_INVALID);
    for (uint32_t r = 0; r < 2; r++) sched_free(ranks[r]);
}

/* A step's tuner calls it: 50 ms are allowed for 8 ranks and 25 MB; ten times that here, for sanitizers. */
static void choosing_is_fast(void **state)
{
    (void)state;
    lan_t lan;
    lan_init(&lan, 8, GIGABIT, 100 * NS_PER_US, 5 * NS_PER_US);
    lan.ports[7] = (link_port_t){GIGABIT / 5, GIGABIT / 5};
    double weights[MOST_RANKS];
    sched_algorithm_t algorithm = SCHED_ALGORITHMS;
    const clock_t start = clock();
    choose(&lan, 25000000, &algorithm, weights);
    const double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    print_message("8 ranks, 25 MB: chosen in %.1f ms of CPU time\n", ms);
    assert_true(ms < 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bulk_follows_the_closed_forms),
        cmocka_unit_test(measurements_are_met),
        cmocka_unit_test(small_messages_cost_latency),
        cmocka_unit_test(adding_costs_time),
        cmocka_unit_test(the_choice_fits_size_and_links),
        cmocka_unit_test(shares_fit_the_ports),
        cmocka_unit_test(other_collectives_have_a_choice_too),
        cmocka_unit_test(odd_worlds_and_sizes),
        cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(choosing_is_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
