/* Tables of codec kernels, one per instruction set; private to codec*.c. */
#ifndef COMM_CODEC_KERNELS_H
#define COMM_CODEC_KERNELS_H

#include <stdint.h>

#include "comm/codec.h"

typedef void (*codec_kernel_fn)(void *dst, const void *src, size_t n);

typedef struct codec_kernels {
    codec_kernel_fn encode, decode, add;
} codec_kernels_t;

extern const codec_kernels_t codec_scalar[INSPAN_WIRES];
#if defined(__x86_64__)
extern const codec_kernels_t codec_avx2[INSPAN_WIRES];
#endif

/* Elements as they lie in a caller's buffer: any alignment, any declared type. */
typedef float codec_f32_t __attribute__((aligned(1), may_alias));
typedef uint16_t codec_u16_t __attribute__((aligned(1), may_alias));
typedef uint32_t codec_u32_t __attribute__((aligned(1), may_alias));

/* ---- int8: a unit ---------------------------------------------------------------------------- */

#define CODEC_INT8_ELEMENTS 255u
#define CODEC_NOT_FINITE    (-128) /* as exponent */
#define CODEC_LEAST                                                                                          \
    (-120) /* exponent: 2^120 times any element is finite, where it is the least that fits                   \
            */

/* The least k with magnitude <= 127 x 2^k; magnitude: the bits of the greatest of a unit, without sign. */
static inline int codec_exponent(uint32_t magnitude)
{
    if (magnitude >= 0x7f000000u) return CODEC_NOT_FINITE;
    /* 127 x 2^k has the fraction 0.984375 and the exponent k + 6. */
    const int exponent = (int)(magnitude >> 23) - 127 - 6 + ((magnitude & 0x7fffffu) > 0x7e0000u);
    return exponent < CODEC_LEAST ? CODEC_LEAST : exponent;
}

static inline int codec_exponent_in(uint8_t byte)
{
    return byte < 128 ? byte : byte - 256;
}

static inline float codec_power(int k) /* 2^k, normal */
{
    const uint32_t bits = (uint32_t)(k + 127) << 23;
    float power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return power;
}

#endif
