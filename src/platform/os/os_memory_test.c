#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "platform/os/os_memory.h"

/* Small ones, and those that are large enough for huge pages. */
static void it_is_zeroed_and_aligned(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 64, 100000, (4u << 20) - 1, 4u << 20, (9u << 20) + 13};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *memory = os_memory_take(sizes[i]), any = 0;
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++) any |= memory[k];
        assert_int_equal(any, 0);
        memory[sizes[i] - 1] = 1;
        free(memory);
    }
}

static void what_no_machine_has_is_refused(void **state)
{
    (void)state;
    errno = 0;
    assert_null(os_memory_take(SIZE_MAX / 2));
    assert_int_equal(errno, ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_zeroed_and_aligned),
        cmocka_unit_test(what_no_machine_has_is_refused),
    };
    return cmocka_run_group_tests_name("os-memory", tests, NULL, NULL);
}
