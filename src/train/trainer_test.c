#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/trainer_internal.h"

static void shares_cover_the_batch_once(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5, 7, 256};
    static const uint64_t batches[] = {0, 1, 2, 3, 7, 64, 1000003, UINT64_MAX / 2};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
            uint64_t expected = 0, least = UINT64_MAX, most = 0;
            for (uint32_t rank = 0; rank < worlds[w]; rank++) {
                uint64_t first = 0, n = 0;
                train_share(batches[b], worlds[w], rank, &first, &n);
                assert_int_equal(first, expected);
                expected += n;
                if (n < least) least = n;
                if (n > most) most = n;
            }
            assert_int_equal(expected, batches[b]);
            assert_true(most - least <= 1);
        }
}

static void ranks_with_other_weights_are_named(void **state)
{
    (void)state;
    char text[32];
    const double same[] = {1, 2, 1, 2, 1, 2}, one[] = {1, 2, 1, 3, 1, 2},
                 two[] = {5, 2, 1, 2, 1, 2, 1, 2, 1, 9};
    const double split[] = {1, 1, 2, 2}, alone[] = {7, 7};
    assert_int_equal(trainer_odd_ones(same, 3, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(trainer_odd_ones(one, 3, text, sizeof text), 1);
    assert_string_equal(text, "1");
    assert_int_equal(trainer_odd_ones(two, 5, text, sizeof text), 2);
    assert_string_equal(text, "0, 4");
    assert_int_equal(trainer_odd_ones(split, 2, text, sizeof text), 1);
    assert_string_equal(text, "1");
    assert_int_equal(trainer_odd_ones(alone, 1, text, sizeof text), 0);
    double many[512];
    for (int i = 0; i < 512; i++) many[i] = i; /* all differ: the text is cut, not overrun */
    assert_int_equal(trainer_odd_ones(many, 256, text, sizeof text), 255);
    assert_true(strlen(text) < sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_cover_the_batch_once),
        cmocka_unit_test(ranks_with_other_weights_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
