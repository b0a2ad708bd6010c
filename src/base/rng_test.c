#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Weights and the order of the data hang on these: another number here is another model from the same seed.
 */
static void numbers_are_those_of_xoshiro256(void **state)
{
    (void)state;
    static const uint64_t published[] = {11520u,
                                         0u,
                                         1509978240u,
                                         1215971899390074240u,
                                         1216172134540287360u,
                                         607988272756665600u,
                                         16172922978634559625u,
                                         8476171486693032832u,
                                         10595114339597558777u,
                                         2904607092377533576u};
    rng_t rng = {.s = {1, 2, 3, 4}};
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++)
        assert_true(rng_next(&rng) == published[i]);
}

static void a_seed_gives_the_same_everywhere(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, stream, numbers[4];
    } golden[] = {
        {0, 0, {0xfb5405f7bd79c540u, 0x780c98e26cea5883u, 0x2a146e0980febc66u, 0x4851477db8791fcau}},
        {1, 0, {0xee127fe613436e33u, 0xd6dad8d34a1874eau, 0x2a52c16cec1116a9u, 0x9af9091d9f77d551u}},
        {1, 1, {0x309714ec38d33b4cu, 0x1bc11473d28024a0u, 0xaa4f7bbef2a5a194u, 0xe418b571ccc48341u}},
        {UINT64_MAX, 7, {0xd462b6158c719d40u, 0x13996d876c18be87u, 0x889bca4975ae69e0u, 0x780b858a3b02504cu}},
    };
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        rng_t rng;
        rng_seed(&rng, golden[i].seed, golden[i].stream);
        for (int k = 0; k < 4; k++) assert_true(rng_next(&rng) == golden[i].numbers[k]);
    }
}

static void below_stays_below_and_is_even(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(rng_below(&rng, 1), 0);
    static const uint64_t bounds[] = {2, 3, 10, 1u << 31, UINT64_MAX / 2 + 2, UINT64_MAX};
    for (size_t b = 0; b < sizeof bounds / sizeof bounds[0]; b++)
        for (int i = 0; i < 1000; i++) assert_true(rng_below(&rng, bounds[b]) < bounds[b]);
    enum { BOUND = 7, TIMES = 70000 };
    unsigned counts[BOUND] = {0};
    for (int i = 0; i < TIMES; i++) counts[rng_below(&rng, BOUND)]++;
    /* 10000 each, standard deviation 93; the seed is fixed */
    for (int i = 0; i < BOUND; i++) assert_in_range(counts[i], 9600, 10400);
}

/* A bound of 3/4 of the range: taking the remainder would give the lower third twice as often. */
static void a_large_bound_is_even_too(void **state)
{
    (void)state;
    const uint64_t bound = UINT64_MAX / 4 * 3;
    unsigned low = 0;
    rng_t rng;
    rng_seed(&rng, 5, 0);
    for (int i = 0; i < 30000; i++) low += rng_below(&rng, bound) < bound / 3;
    assert_in_range(low, 9600, 10400); /* standard deviation 82 */
}

static void uniform_is_in_its_range(void **state)
{
    (void)state;
    double sum = 0;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    for (int i = 0; i < 100000; i++) {
        double x = rng_uniform(&rng);
        assert_true(x >= 0 && x < 1);
        sum += x;
    }
    assert_true(sum > 49500 && sum < 50500);
    rng_t ones = {.s = {0, 0x1c71c71c71c71c72u, 0, 0}}; /* next is near its largest */
    assert_true(rng_uniform(&ones) < 1);
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Initial weights, each rank's own: only + - * / and sqrt, so no libm and no contraction changes them. */
static void reals_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 42, 7);
    const uint64_t next[] = {0x4150452ab869a892, 0x63980fc0383ce41b, 0x6276ee9c4552e56d, 0x96a8154c710ce93c};
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++)
        if (rng_next(&rng) != next[i]) fail_msg("number %zu", i);
    const uint64_t uniform[] = {0x3fed6a70b90d9d14, 0x3fe6024f9300ed00};
    for (size_t i = 0; i < sizeof uniform / sizeof uniform[0]; i++)
        if (bits_of(rng_uniform(&rng)) != uniform[i]) fail_msg("uniform number %zu", i);
    const uint64_t normal[] = {0xc003e3c8e5d2e426, 0x3fea65d042f18578, 0xbff01a4636bb53c3, 0x3feccfdbe6223eca,
                               0x3fd3c2065417eafd};
    for (size_t i = 0; i < sizeof normal / sizeof normal[0]; i++)
        if (bits_of(rng_normal(&rng)) != normal[i]) fail_msg("normal number %zu", i);
}

static void streams_and_seeds_differ(void **state)
{
    (void)state;
    rng_t a, b, c;
    rng_seed(&a, 1, 0);
    rng_seed(&b, 1, 1);
    rng_seed(&c, 2, 0);
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = rng_next(&a), y = rng_next(&b), z = rng_next(&c);
        same += (x == y) + (x == z) + (y == z);
    }
    assert_int_equal(same, 0);
    rng_seed(&a, 1, 0);
    rng_normal(&a);
    rng_seed(&a, 1, 0); /* the kept half of a pair does not outlive a new seed */
    rng_seed(&b, 1, 0);
    assert_true(rng_normal(&a) == rng_normal(&b));
}

static void normal_numbers_have_their_moments(void **state)
{
    (void)state;
    enum { DRAWS = 100000 };
    double sum = 0, squares = 0, pairs = 0, before = 0;
    int outside = 0;
    rng_t rng;
    rng_seed(&rng, 9, 3);
    for (int i = 0; i < DRAWS; i++) {
        double x = rng_normal(&rng);
        sum += x;
        squares += x * x;
        pairs += x * before;
        outside += fabs(x) > 1.959964;
        before = x;
    }
    assert_true(fabs(sum / DRAWS) < 0.015 && fabs(squares / DRAWS - 1) < 0.02 && fabs(pairs / DRAWS) < 0.015);
    assert_in_range(outside, DRAWS / 20 - 300, DRAWS / 20 + 300);
}

static void the_logarithm_is_right(void **state)
{
    (void)state;
    assert_true(rng_log(1) == 0);
    for (double x = 1; x > 1e-300; x *= 0.97) {
        double found = rng_log(x), expected = log(x);
        if (!(fabs(found - expected) <= 4e-16 * fabs(expected) + 1e-18))
            fail_msg("log(%g): %.17g, expected %.17g", x, found, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_xoshiro256),
        cmocka_unit_test(a_seed_gives_the_same_everywhere),
        cmocka_unit_test(below_stays_below_and_is_even),
        cmocka_unit_test(a_large_bound_is_even_too),
        cmocka_unit_test(uniform_is_in_its_range),
        cmocka_unit_test(reals_have_the_same_bits_everywhere),
        cmocka_unit_test(streams_and_seeds_differ),
        cmocka_unit_test(normal_numbers_have_their_moments),
        cmocka_unit_test(the_logarithm_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
