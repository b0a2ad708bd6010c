/* The reference kernels: plain C, every processor. The vector kernels must give these bits. */
#include <string.h>

#include "comm/reduce_kernels.h"

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float fp16_to_fp32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31,
                   fraction = half & 0x3ffu;
    if (exponent == 31) /* infinity, or a NaN: quiet, as the hardware makes it */
        return float_of_bits(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
    if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 is exact in fp32 */
        const uint32_t magnitude = bits_of_float((float)fraction * 0x1p-24f);
        return float_of_bits(sign | magnitude);
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To nearest, ties to even; overflow gives infinity. */
static uint16_t fp32_to_fp16(float value)
{
    const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more */
    if (magnitude >=
        0x38800000u) { /* normal in fp16 (2^-14 and more); a carry out of the fraction is what it should be */
        const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
        return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
    }
    /* Subnormal: adding 0.5 puts the unit of fp16's subnormals, 2^-24, in fp32's last place, so the adder
     * rounds. */
    const uint32_t shifted = bits_of_float(float_of_bits(magnitude) + 0.5f);
    return (uint16_t)(sign | (shifted - 0x3f000000u));
}

static float bf16_to_fp32(uint16_t brain)
{
    return float_of_bits((uint32_t)brain << 16);
}

static uint16_t fp32_to_bf16(float value)
{
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Where b is a NaN it wins; where a is one, b < a fails and a stays. */
#define SAME(x)    (x)
#define SUM(a, b)  ((a) + (b))
#define MIN(a, b)  ((b) < (a) || (b) != (b) ? (b) : (a))
#define MAX(a, b)  ((b) > (a) || (b) != (b) ? (b) : (a))
#define IMIN(a, b) ((b) < (a) ? (b) : (a))
#define IMAX(a, b) ((b) > (a) ? (b) : (a))

#define KERNEL(name, stored_t, value_t, from, to, op)                                                        \
    static void name(void *dst, const void *src, size_t count)                                               \
    {                                                                                                        \
        stored_t *d = dst;                                                                                   \
        const stored_t *s = src;                                                                             \
        for (size_t i = 0; i < count; i++) {                                                                 \
            const value_t a = (value_t)from(d[i]), b = (value_t)from(s[i]);                                  \
            d[i] = (stored_t)to(op(a, b));                                                                   \
        }                                                                                                    \
    }

KERNEL(fp32_sum, reduce_f32_t, float, SAME, SAME, SUM)
KERNEL(fp32_min, reduce_f32_t, float, SAME, SAME, MIN)
KERNEL(fp32_max, reduce_f32_t, float, SAME, SAME, MAX)
KERNEL(fp64_sum, reduce_f64_t, double, SAME, SAME, SUM)
KERNEL(fp64_min, reduce_f64_t, double, SAME, SAME, MIN)
KERNEL(fp64_max, reduce_f64_t, double, SAME, SAME, MAX)
KERNEL(fp16_sum, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, SUM)
KERNEL(fp16_min, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, MIN)
KERNEL(fp16_max, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, MAX)
KERNEL(bf16_sum, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, SUM)
KERNEL(bf16_min, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, MIN)
KERNEL(bf16_max, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, MAX)
KERNEL(int32_sum, reduce_u32_t, uint32_t, SAME, SAME, SUM)
KERNEL(int32_min, reduce_u32_t, int32_t, SAME, SAME, IMIN)
KERNEL(int32_max, reduce_u32_t, int32_t, SAME, SAME, IMAX)
KERNEL(int64_sum, reduce_u64_t, uint64_t, SAME, SAME, SUM)
KERNEL(int64_min, reduce_u64_t, int64_t, SAME, SAME, IMIN)
KERNEL(int64_max, reduce_u64_t, int64_t, SAME, SAME, IMAX)

const reduce_table_t reduce_scalar = {
    [INSPAN_FP32] = {fp32_sum, fp32_min, fp32_max},     [INSPAN_FP64] = {fp64_sum, fp64_min, fp64_max},
    [INSPAN_FP16] = {fp16_sum, fp16_min, fp16_max},     [INSPAN_BF16] = {bf16_sum, bf16_min, bf16_max},
    [INSPAN_INT32] = {int32_sum, int32_min, int32_max}, [INSPAN_INT64] = {int64_sum, int64_min, int64_max},
};
