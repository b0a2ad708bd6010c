#include "base/words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void distances(void **state)
{
    (void)state;
    assert_int_equal(words_distance("", ""), 0);
    assert_int_equal(words_distance("", "abc"), 3);
    assert_int_equal(words_distance("kitten", "sitting"), 3);
    assert_int_equal(words_distance("jsno", "json"), 1);
    assert_int_equal(words_distance("steps", "steps"), 0);
    char far[200];
    memset(far, 'a', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    assert_int_equal(words_distance(far, "a"), UINT32_MAX);
    far[WORDS_MAX] = '\0'; /* the longest one that is compared */
    assert_int_equal(words_distance(far, "a"), WORDS_MAX - 1);
    assert_int_equal(words_distance("a", far), WORDS_MAX - 1);
}

static const char *nearest(const char *typed)
{
    static words_search_t search;
    static const char *const known[] = {"up", "jobs", "job", "nodes", "train.steps", "train.lr"};
    search = (words_search_t){.typed = typed};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) words_offer(&search, known[i]);
    return words_found(&search);
}

static void only_what_is_near_is_proposed(void **state)
{
    (void)state;
    assert_string_equal(nearest("jobs"), "jobs");
    assert_string_equal(nearest("jbo"), "job");
    assert_string_equal(nearest("joba"), "jobs"); /* as near as job, and first */
    assert_string_equal(nearest("nodse"), "nodes");
    assert_string_equal(nearest("trian.setps"), "train.steps");
    assert_null(nearest("zz"));
    assert_null(nearest("zebra"));
    assert_null(nearest(""));
    const words_search_t nothing_offered = {.typed = "a"};
    assert_null(words_found(&nothing_offered));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances),
        cmocka_unit_test(only_what_is_near_is_proposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
