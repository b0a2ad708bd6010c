#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void a_status_and_its_text(void **state)
{
    (void)state;
    inspan_error_t err;
    assert_int_equal(error_set(&err, INSPAN_LIMIT, "%d of %s", 7, "ten"), INSPAN_LIMIT);
    assert_int_equal(err.status, INSPAN_LIMIT);
    assert_string_equal(err.text, "7 of ten");
    assert_int_equal(error_set(NULL, INSPAN_IO, "nobody reads this"), INSPAN_IO);
    assert_int_equal(error_set_errno(NULL, INSPAN_IO, "nor this"), INSPAN_IO);
}

static void errno_is_told_as_it_was(void **state)
{
    (void)state;
    inspan_error_t err;
    errno = ENOSPC;
    assert_int_equal(error_set_errno(&err, INSPAN_IO, "cannot write %s", "x"), INSPAN_IO);
    assert_string_equal(err.text, "cannot write x: No space left on device");
}

static void a_long_text_is_cut_and_ended(void **state)
{
    (void)state;
    char text[2 * INSPAN_ERROR_TEXT];
    inspan_error_t err;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&err, INSPAN_IO, "%s", text);
    assert_int_equal(strlen(err.text), INSPAN_ERROR_TEXT - 1);
    errno = EIO;
    error_set_errno(&err, INSPAN_IO, "%s", text);
    assert_int_equal(strlen(err.text), INSPAN_ERROR_TEXT - 1);
    assert_int_equal(error_prefix(&err, "in front"), INSPAN_IO);
    assert_int_equal(strlen(err.text), INSPAN_ERROR_TEXT - 1);
    assert_memory_equal(err.text, "in front: aaaa", 14);
    assert_int_equal(error_prefix(&err, "%s", text), INSPAN_IO); /* no room for the old one */
    assert_int_equal(strlen(err.text), INSPAN_ERROR_TEXT - 1);
}

static void a_prefix_says_where(void **state)
{
    (void)state;
    inspan_error_t err;
    error_set(&err, INSPAN_NOT_FOUND, "no such row");
    assert_int_equal(error_prefix(&err, "job %d", 3), INSPAN_NOT_FOUND);
    assert_int_equal(error_prefix(&err, "%s", err.text), INSPAN_NOT_FOUND); /* of itself */
    assert_string_equal(err.text, "job 3: no such row: job 3: no such row");
    assert_int_equal(error_prefix(NULL, "nobody"), INSPAN_INTERNAL);
}

static void every_status_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (int a = INSPAN_OK; a <= INSPAN_INTERNAL; a++) {
        assert_true(strlen(inspan_status_text((inspan_status_t)a)) > 0);
        assert_string_not_equal(inspan_status_text((inspan_status_t)a), "unknown status");
        for (int b = INSPAN_OK; b < a; b++)
            assert_string_not_equal(inspan_status_text((inspan_status_t)a),
                                    inspan_status_text((inspan_status_t)b));
    }
    assert_string_equal(inspan_status_text((inspan_status_t)(INSPAN_INTERNAL + 1)), "unknown status");
    assert_string_equal(inspan_status_text((inspan_status_t)-1), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_and_its_text),
        cmocka_unit_test(errno_is_told_as_it_was),
        cmocka_unit_test(a_long_text_is_cut_and_ended),
        cmocka_unit_test(a_prefix_says_where),
        cmocka_unit_test(every_status_has_a_text_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
