/* The 16-bit floating-point types, fp16 (IEEE 754 binary16) and bf16, to and from fp32 in plain C: the same
 * bits on every processor, and those of the instructions that do it in hardware. */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t half_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float fp16_to_fp32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31,
                   fraction = half & 0x3ffu;
    if (exponent == 31) /* infinity, or a NaN: quiet, as the hardware makes it */
        return half_float_of_bits(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
    if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 is exact in fp32 */
        const uint32_t magnitude = half_bits_of_float((float)fraction * 0x1p-24f);
        return half_float_of_bits(sign | magnitude);
    }
    return half_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To nearest, ties to even; overflow gives infinity. */
static inline uint16_t fp32_to_fp16(float value)
{
    const uint32_t bits = half_bits_of_float(value), sign = bits >> 16 & 0x8000u,
                   magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more */
    if (magnitude >= 0x38800000u) { /* 2^-14 and more: normal; a carry out of the fraction is right, too */
        const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
        return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
    }
    /* Subnormal: adding 0.5 puts the unit of fp16's subnormals, 2^-24, in fp32's last place, so the adder
     * rounds. */
    const uint32_t shifted = half_bits_of_float(half_float_of_bits(magnitude) + 0.5f);
    return (uint16_t)(sign | (shifted - 0x3f000000u));
}

static inline float bf16_to_fp32(uint16_t brain)
{
    return half_float_of_bits((uint32_t)brain << 16);
}

static inline uint16_t fp32_to_bf16(float value)
{
    const uint32_t bits = half_bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
