#include "comm/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"

enum { LONGEST = 300, MAX_SIZE = 8 };

static const char *const dtype_names[INSPAN_DTYPES] = {"fp32",  "fp64",  "fp16", "bf16", "int32",
                                                       "int64", "uint8", "int8", "int16"};

/* Interesting bit patterns of each type: zeros, subnormals, ties, limits, infinities, quiet and signalling
 * NaNs. */
static uint64_t special(inspan_dtype_t dtype, rng_t *rng)
{
    static const uint64_t fp32[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                    0x3f800000, 0xbf800001, 0x7f7fffff, 0xff7fffff, 0x7f800000,
                                    0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345};
    static const uint64_t fp64[] = {0,
                                    1ull << 63,
                                    1,
                                    0x3ff0000000000000,
                                    0xbff0000000000001,
                                    0x7fefffffffffffff,
                                    0x7ff0000000000000,
                                    0xfff0000000000000,
                                    0x7ff8000000000000,
                                    0x7ff0000000000001};
    static const uint64_t fp16[] = {0,      0x8000, 1,      0x03ff, 0x0400, 0x83ff, 0x3c00, 0xbc01, 0x7bff,
                                    0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfe12, 0x3c01, 0x1001};
    static const uint64_t bf16[] = {0,      0x8000, 1,      0x007f, 0x0080, 0x3f80, 0xbf81, 0x7f7f,
                                    0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffc1, 0x3b80};
    static const uint64_t ints[] = {0,          1, UINT64_MAX, 1ull << 63, INT64_MAX, 0x80000000,
                                    0x7fffffff, 5, 0x80,       0x7f,       0x8000,    0x7fff};
#define PICK(list) (list)[rng_below(rng, sizeof(list) / sizeof(list)[0])]
    switch (dtype) {
    case INSPAN_FP32: return PICK(fp32);
    case INSPAN_FP64: return PICK(fp64);
    case INSPAN_FP16: return PICK(fp16);
    case INSPAN_BF16: return PICK(bf16);
    default: return PICK(ints);
    }
#undef PICK
}

static void fill(inspan_dtype_t dtype, uint8_t *to, size_t count, rng_t *rng)
{
    const size_t size = inspan_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = rng_below(rng, 4) == 0 ? special(dtype, rng) : rng_next(rng);
        memcpy(to + i * size, &bits, size);
    }
}

static bool is_nan(inspan_dtype_t dtype, const uint8_t *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, inspan_dtype_size(dtype));
    switch (dtype) {
    case INSPAN_FP32: return (bits & 0x7fffffff) > 0x7f800000;
    case INSPAN_FP64: return (bits & INT64_MAX) > 0x7ff0000000000000;
    case INSPAN_FP16: return (bits & 0x7fff) > 0x7c00;
    case INSPAN_BF16: return (bits & 0x7fff) > 0x7f80;
    default: return false;
    }
}

/* The value as a long double, which holds every one of the types exactly on x86 and never worse than
 * fp64. */
static long double value(inspan_dtype_t dtype, const uint8_t *at)
{
    uint16_t u16;
    float f32;
    double f64;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case INSPAN_FP32: return memcpy(&f32, at, 4), f32;
    case INSPAN_FP64: return memcpy(&f64, at, 8), f64;
    case INSPAN_INT32: return memcpy(&i32, at, 4), i32;
    case INSPAN_INT64: return memcpy(&i64, at, 8), i64;
    case INSPAN_UINT8: return at[0];
    case INSPAN_INT8: return memcpy(&i8, at, 1), i8;
    case INSPAN_INT16: return memcpy(&i16, at, 2), i16;
    case INSPAN_FP16: {
        memcpy(&u16, at, 2);
        const int exponent = u16 >> 10 & 31, fraction = u16 & 1023;
        if (exponent == 31) return fraction ? NAN : u16 & 0x8000 ? -INFINITY : INFINITY;
        const long double magnitude =
            exponent ? ldexpl(1024 + fraction, exponent - 25) : ldexpl(fraction, -24);
        return u16 & 0x8000 ? -magnitude : magnitude;
    }
    default: {
        memcpy(&u16, at, 2);
        const uint32_t bits = (uint32_t)u16 << 16;
        return memcpy(&f32, &bits, 4), f32;
    }
    }
}

/* dst of every instruction set against that of the scalar kernels, at every length and misaligned. */
static void vector_kernels_give_the_scalar_bits(void **state)
{
    (void)state;
    static uint8_t before[LONGEST * MAX_SIZE + 16], src[LONGEST * MAX_SIZE + 16],
        want[LONGEST * MAX_SIZE + 16], got[LONGEST * MAX_SIZE + 16];
    rng_t rng;
    rng_seed(&rng, 7, 0);
    for (inspan_dtype_t dtype = 0; dtype < INSPAN_DTYPES; dtype++)
        for (inspan_reduction_t reduction = INSPAN_SUM; reduction < INSPAN_REDUCTIONS; reduction++)
            for (size_t count = 0; count <= LONGEST; count += count < 70 ? 1 : 23) {
                if (!inspan_reduces(dtype, reduction)) break;
                const size_t size = inspan_dtype_size(dtype), at = rng_below(&rng, 9),
                             from = rng_below(&rng, 9);
                memset(before, 0xa5, sizeof before);
                fill(dtype, before + at, count, &rng);
                fill(dtype, src + from, count, &rng);
                memcpy(want, before, sizeof want);
                reduce_apply_isa(CPU_SCALAR, dtype, reduction, want + at, src + from, count);
                for (cpu_isa_t isa = CPU_AVX2; isa < CPU_ISAS; isa++) {
                    memcpy(got, before, sizeof got);
                    reduce_apply_isa(isa, dtype, reduction, got + at, src + from, count);
                    if (memcmp(got, want, at) != 0 ||
                        memcmp(got + at + count * size, want + at + count * size,
                               sizeof got - at - count * size) != 0)
                        fail_msg("%s %s: wrote outside [0, %zu)", cpu_isa_name(isa), dtype_names[dtype],
                                 count);
                    for (size_t i = 0; i < count; i++) {
                        const uint8_t *g = got + at + i * size, *w = want + at + i * size;
                        if (memcmp(g, w, size) == 0) continue;
                        if ((reduction == INSPAN_SUM || reduction == INSPAN_PRODUCT) &&
                            is_nan(dtype, before + at + i * size) && is_nan(dtype, src + from + i * size) &&
                            is_nan(dtype, g) && is_nan(dtype, w))
                            continue; /* which of two NaNs survives is not fixed */
                        fail_msg("%s %s reduction %d count %zu: element %zu differs from scalar",
                                 cpu_isa_name(isa), dtype_names[dtype], (int)reduction, count, i);
                    }
                }
            }
}

/* Integers: what arithmetic on 64 bits gives, cut to the type. */
static void check_integers(inspan_dtype_t dtype, inspan_reduction_t reduction, const uint8_t *a,
                           const uint8_t *b, const uint8_t *result)
{
    const uint64_t x = (uint64_t)(int64_t)value(dtype, a), y = (uint64_t)(int64_t)value(dtype, b);
    const uint64_t wanted[INSPAN_REDUCTIONS] = {
        [INSPAN_SUM] = x + y,
        [INSPAN_MIN] = (int64_t)y < (int64_t)x ? y : x,
        [INSPAN_MAX] = (int64_t)y > (int64_t)x ? y : x,
        [INSPAN_PRODUCT] = x * y,
        [INSPAN_BIT_AND] = x & y,
        [INSPAN_BIT_OR] = x | y,
        [INSPAN_BIT_XOR] = x ^ y,
    };
    uint8_t want[8];
    memcpy(want, &wanted[reduction], 8);
    if (memcmp(result, want, inspan_dtype_size(dtype)) != 0)
        fail_msg("%s reduction %d of %lld and %lld", dtype_names[dtype], (int)reduction, (long long)x,
                 (long long)y);
}

static bool is_integer(inspan_dtype_t dtype)
{
    return dtype >= INSPAN_INT32;
}

static void integers_wrap_around(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 9, 0);
    for (inspan_dtype_t dtype = 0; dtype < INSPAN_DTYPES; dtype++)
        for (inspan_reduction_t reduction = INSPAN_SUM; reduction < INSPAN_REDUCTIONS; reduction++)
            for (int round = 0; is_integer(dtype) && round < 4000; round++) {
                uint8_t a[8] = {0}, b[8] = {0}, result[8] = {0};
                fill(dtype, a, 1, &rng);
                fill(dtype, b, 1, &rng);
                memcpy(result, a, 8);
                reduce_apply_isa(CPU_SCALAR, dtype, reduction, result, b, 1);
                check_integers(dtype, reduction, a, b, result);
            }
}

static void products_of_floats(void **state)
{
    (void)state;
    const float x[3] = {1.5f, -0.0f, INFINITY}, y[3] = {-2, 3, 2}, want[3] = {-3, -0.0f, INFINITY};
    float f[3];
    memcpy(f, x, sizeof f);
    reduce_apply(INSPAN_FP32, INSPAN_PRODUCT, f, y, 3);
    assert_memory_equal(f, want, sizeof want);
    double d = 1e200, e = 1e-100;
    reduce_apply(INSPAN_FP64, INSPAN_PRODUCT, &d, &e, 1);
    assert_true(d == 1e200 * 1e-100);
    uint16_t h = 0x3e00, k = 0x4000; /* fp16: 1.5 x 2 = 3 */
    reduce_apply(INSPAN_FP16, INSPAN_PRODUCT, &h, &k, 1);
    assert_int_equal(h, 0x4200);
    uint16_t b = 0x3fc0, c = 0x4000; /* bf16: 1.5 x 2 = 3 */
    reduce_apply(INSPAN_BF16, INSPAN_PRODUCT, &b, &c, 1);
    assert_int_equal(b, 0x4040);
}

static void which_reductions_there_are(void **state)
{
    (void)state;
    for (inspan_dtype_t dtype = 0; dtype <= INSPAN_DTYPES; dtype++)
        for (inspan_reduction_t reduction = INSPAN_SUM; reduction <= INSPAN_REDUCTIONS; reduction++) {
            const bool there = dtype < INSPAN_DTYPES && reduction < INSPAN_REDUCTIONS &&
                               (is_integer(dtype) || reduction <= INSPAN_PRODUCT);
            assert_int_equal(inspan_reduces(dtype, reduction), there);
        }
}

/* The scalar kernels against exact arithmetic in long double, rounded by searching the nearest value of the
 * type. */
static void scalar_kernels_are_right(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 8, 0);
    for (inspan_dtype_t dtype = 0; dtype < INSPAN_DTYPES; dtype++)
        for (inspan_reduction_t reduction = INSPAN_SUM; reduction <= INSPAN_MAX; reduction++)
            for (int round = 0; !is_integer(dtype) && round < 4000; round++) {
                uint8_t a[8] = {0}, b[8] = {0}, result[8] = {0};
                fill(dtype, a, 1, &rng);
                fill(dtype, b, 1, &rng);
                memcpy(result, a, 8);
                reduce_apply_isa(CPU_SCALAR, dtype, reduction, result, b, 1);
                const long double x = value(dtype, a), y = value(dtype, b), r = value(dtype, result);
                const bool nan = is_nan(dtype, a) || is_nan(dtype, b);
                if (reduction != INSPAN_SUM) {
                    const long double want = reduction == INSPAN_MIN ? (y < x ? y : x) : (y > x ? y : x);
                    assert_true(nan ? is_nan(dtype, result) : r == want);
                    continue;
                }
                if (nan || (isinf(x) && isinf(y) && x != y)) {
                    assert_true(is_nan(dtype, result));
                    continue;
                }
                if (dtype == INSPAN_FP32 || dtype == INSPAN_FP64) {
                    assert_true(r == (dtype == INSPAN_FP32 ? (long double)((float)x + (float)y)
                                                           : (long double)((double)x + (double)y)));
                    continue;
                }
                /* 16 bits: no neighbour of the result is nearer to the fp32 sum, and a tie went to the even
                 * one. */
                const long double sum = (float)x + (float)y;
                uint16_t bits;
                memcpy(&bits, result, 2);
                if (isinf(r)) {
                    assert_true((r > 0) == (sum > 0));
                    const uint16_t largest = (uint16_t)(bits - 1);
                    const long double limit = value(dtype, (const uint8_t *)&largest);
                    const uint16_t second = (uint16_t)(largest - 1);
                    const long double ulp = limit - value(dtype, (const uint8_t *)&second);
                    assert_true(isinf(sum) || fabsl(sum) >= fabsl(limit + ulp / 2));
                    continue;
                }
                for (int step = -1; step <= 1; step += 2) {
                    const uint16_t next = (uint16_t)(bits + step);
                    const long double other = value(dtype, (const uint8_t *)&next);
                    if ((next ^ bits) & 0x8000 || is_nan(dtype, (const uint8_t *)&next)) continue;
                    const long double here = fabsl(r - sum), there = fabsl(other - sum);
                    assert_true(here < there || (here == there && (bits & 1) == 0));
                }
            }
}

static void every_half_and_brain_float_survives_adding_zero(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++)
        for (inspan_dtype_t dtype = INSPAN_FP16; dtype <= INSPAN_BF16; dtype++) {
            uint16_t x = (uint16_t)bits, minus_zero = 0x8000;
            reduce_apply_isa(CPU_SCALAR, dtype, INSPAN_SUM, &x, &minus_zero, 1);
            const uint16_t quiet = dtype == INSPAN_FP16 ? 0x200 : 0x40;
            const uint16_t given = (uint16_t)bits;
            const bool nan = is_nan(dtype, (const uint8_t *)&given);
            assert_int_equal(x, nan ? bits | quiet : bits);
        }
}

/* All 65536 values of a 16-bit type plus each of a few, by every instruction set: rounding has no untried
 * case. */
static void all_sixteen_bit_values_agree(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    static uint16_t want[ALL], got[ALL], other[ALL];
    const uint16_t others[] = {0x0001, 0x1001, 0x3c00, 0x3f80, 0x8400,
                               0xbb80, 0x7bff, 0x7f7f, 0xfc00, 0xff80};
    for (size_t o = 0; o < sizeof others / sizeof others[0]; o++)
        for (inspan_dtype_t dtype = INSPAN_FP16; dtype <= INSPAN_BF16; dtype++) {
            if (is_nan(dtype, (const uint8_t *)&others[o]))
                continue; /* which of two NaNs survives is not fixed */
            for (uint32_t i = 0; i < ALL; i++) want[i] = (uint16_t)i, other[i] = others[o];
            reduce_apply_isa(CPU_SCALAR, dtype, INSPAN_SUM, want, other, ALL);
            for (cpu_isa_t isa = CPU_AVX2; isa < CPU_ISAS; isa++) {
                for (uint32_t i = 0; i < ALL; i++) got[i] = (uint16_t)i;
                reduce_apply_isa(isa, dtype, INSPAN_SUM, got, other, ALL);
                assert_memory_equal(got, want, sizeof got);
            }
        }
}

/* What a fresh process with this $INSPAN_ISA uses. */
static cpu_isa_t isa_with(const char *cap)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (cap != NULL)
            setenv("INSPAN_ISA", cap, 1);
        else
            unsetenv("INSPAN_ISA");
        _exit((int)reduce_isa());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (cpu_isa_t)WEXITSTATUS(status);
}

/* Before any other test calls reduce_isa in this process. */
static void the_environment_caps_the_set(void **state)
{
    (void)state;
    const cpu_isa_t best = isa_with(NULL);
    assert_true(best < CPU_ISAS);
    assert_int_equal(isa_with("scalar"), CPU_SCALAR);
    assert_true(isa_with("avx2") == (best < CPU_AVX2 ? best : CPU_AVX2));
    assert_true(isa_with("avx512") == best);
    assert_true(isa_with("") == best);
    assert_true(isa_with("mmx") == best); /* warned about, ignored */
}

static void same_memory_doubles(void **state)
{
    (void)state;
    float x[37];
    for (int i = 0; i < 37; i++) x[i] = (float)i;
    reduce_apply(INSPAN_FP32, INSPAN_SUM, x, x, 37);
    for (int i = 0; i < 37; i++) assert_true(x[i] == 2 * (float)i);
}

static void sizes_and_names(void **state)
{
    (void)state;
    const size_t sizes[INSPAN_DTYPES] = {4, 8, 2, 2, 4, 8, 1, 1, 2};
    for (inspan_dtype_t dtype = 0; dtype < INSPAN_DTYPES; dtype++)
        assert_int_equal(inspan_dtype_size(dtype), sizes[dtype]);
    assert_int_equal(inspan_dtype_size(INSPAN_DTYPES), 0);
    assert_int_equal(inspan_dtype_size((inspan_dtype_t)-1), 0);
    assert_true(reduce_isa() < CPU_ISAS);
    assert_string_equal(cpu_isa_name(CPU_AVX2), "avx2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_caps_the_set),
        cmocka_unit_test(vector_kernels_give_the_scalar_bits),
        cmocka_unit_test(scalar_kernels_are_right),
        cmocka_unit_test(integers_wrap_around),
        cmocka_unit_test(products_of_floats),
        cmocka_unit_test(which_reductions_there_are),
        cmocka_unit_test(every_half_and_brain_float_survives_adding_zero),
        cmocka_unit_test(all_sixteen_bit_values_agree),
        cmocka_unit_test(same_memory_doubles),
        cmocka_unit_test(sizes_and_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
