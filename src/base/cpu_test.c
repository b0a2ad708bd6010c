#include "base/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void the_setting_is_a_cap(void **state)
{
    (void)state;
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    const cpu_isa_t found = cpu_isa_found();
    assert_in_range(found, CPU_SCALAR, CPU_AVX512);
    unsetenv("INSPAN_ISA");
    assert_int_equal(cpu_isa(), found);
    for (int i = 0; i < CPU_ISAS; i++) {
        assert_string_equal(cpu_isa_name((cpu_isa_t)i), names[i]);
        setenv("INSPAN_ISA", names[i], 1);
        assert_int_equal(cpu_isa(), i < (int)found ? i : (int)found);
    }
    static const char *const unknown[] = {"", "avx", "AVX2", "avx5122", "sse4"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        setenv("INSPAN_ISA", unknown[i], 1);
        assert_int_equal(cpu_isa(), found);
    }
    unsetenv("INSPAN_ISA");
    assert_string_equal(cpu_isa_name(CPU_ISAS), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_setting_is_a_cap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
