#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The definition itself: decode, then ask whether the shortest form of that number has so many bytes. */
static size_t by_definition(const unsigned char *u, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = (u[0] & 0x80) == 0      ? 1
               : (u[0] & 0xe0) == 0xc0 ? 2
               : (u[0] & 0xf0) == 0xe0 ? 3
               : (u[0] & 0xf8) == 0xf0 ? 4
                                       : 0;
    if (n == 0 || n > left) return 0;
    uint32_t code = n == 1 ? u[0] : u[0] & (0x7f >> n);
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (u[i] & 0x3f);
    }
    return code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

/* All pairs of first bytes, with third and fourth bytes at every bound. */
static void every_beginning_is_judged_by_the_definition(void **state)
{
    (void)state;
    static const unsigned char ends[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    unsigned char at[4];
    for (unsigned first = 0; first < 0x10000; first++)
        for (size_t i = 0; i < sizeof ends * sizeof ends; i++) {
            at[0] = (unsigned char)(first >> 8);
            at[1] = (unsigned char)first;
            at[2] = ends[i / sizeof ends];
            at[3] = ends[i % sizeof ends];
            for (size_t left = 1; left <= 4; left++)
                if (utf8_length((const char *)at, left) != by_definition(at, left))
                    fail_msg("%02x %02x %02x %02x, %zu left", at[0], at[1], at[2], at[3], left);
        }
}

static void known_characters(void **state)
{
    (void)state;
    assert_int_equal(utf8_length("", 1), 1);
    assert_int_equal(utf8_length("a", 1), 1);
    assert_int_equal(utf8_length("\xc3\xbc", 2), 2);
    assert_int_equal(utf8_length("\xe2\x82\xac", 3), 3);
    assert_int_equal(utf8_length("\xf0\x9f\x8c\x8d", 4), 4);
    static const char *const wrong[] = {"\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xff", "\xe2\x82"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(utf8_length(wrong[i], strlen(wrong[i])), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_beginning_is_judged_by_the_definition),
        cmocka_unit_test(known_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
