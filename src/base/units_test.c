#include "base/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void sizes_are_powers_of_ten(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_int_equal(units_parse_size("25M", &bytes), INSPAN_OK);
    assert_int_equal(bytes, 25000000);
    assert_int_equal(units_parse_size("4K", &bytes), INSPAN_OK);
    assert_int_equal(bytes, 4000);
    assert_int_equal(units_parse_size("7", &bytes), INSPAN_OK);
    assert_int_equal(bytes, 7);
    const char *wrong[] = {"", "M", "-1", "1.2.3", "5X", "1e9", " 5", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(units_parse_size(wrong[i], &bytes), INSPAN_INVALID);
}

static void durations_and_rates(void **state)
{
    (void)state;
    ns_t duration = 0;
    uint64_t rate = 0;
    assert_int_equal(units_parse_duration("1.5s", &duration), INSPAN_OK);
    assert_int_equal(duration, 1500000000);
    assert_int_equal(units_parse_duration("5", &duration), INSPAN_OK);
    assert_int_equal(duration, 5 * NS_PER_S);
    assert_int_equal(units_parse_duration("5 s", &duration), INSPAN_INVALID);
    assert_int_equal(units_parse_rate("200mbit", &rate), INSPAN_OK);
    assert_int_equal(rate, 200000000);
    assert_int_equal(units_parse_rate("0gbit", &rate), INSPAN_INVALID);
    assert_int_equal(units_parse_rate("200", &rate), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_powers_of_ten),
        cmocka_unit_test(durations_and_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
