/*
 * Vectors of real_t in the compiler's own vector extension, as wide as the instruction set that the file is
 * compiled for: the same source gives SSE2, NEON, AVX2 and AVX-512. Only kernel files include this.
 *
 * FOR_VECTORS(i, w, n) runs over [0, n) in steps of LANES with w = lanes in use; loads and stores of a part
 * touch nothing beyond it.
 */
#ifndef NN_SIMD_H
#define NN_SIMD_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "nn/real.h"

#if defined(__AVX512F__)
#define SIMD_BYTES 64
#elif defined(__AVX2__)
#define SIMD_BYTES 32
#else
#define SIMD_BYTES 16
#endif
#define LANES (SIMD_BYTES / sizeof(real_t))

typedef real_t vec_real_t __attribute__((vector_size(SIMD_BYTES)));
typedef real_int_t vec_int_t __attribute__((vector_size(SIMD_BYTES)));
typedef real_t vec_real_unaligned_t
    __attribute__((vector_size(SIMD_BYTES), aligned(sizeof(real_t)), may_alias));

#define FOR_VECTORS(i, w, n)                                                                                 \
    for (size_t i = 0, w; i < (n) && (w = (n)-i < LANES ? (n)-i : LANES, 1); i += LANES)

static inline vec_real_t v_load(const real_t *p)
{
    return *(const vec_real_unaligned_t *)p;
}

static inline void v_store(real_t *p, vec_real_t v)
{
    *(vec_real_unaligned_t *)p = v;
}

/* Tails are rare and stay out of line, so that loops are short and straight. */
static __attribute__((noinline, unused)) vec_real_t v_load_tail(const real_t *p, size_t w, real_t fill)
{
    real_t lanes[LANES] __attribute__((aligned(SIMD_BYTES)));
    for (size_t i = 0; i < LANES; i++) lanes[i] = i < w ? p[i] : fill;
    return v_load(lanes);
}

static __attribute__((noinline, unused)) void v_store_tail(real_t *p, size_t w, vec_real_t v)
{
    real_t lanes[LANES] __attribute__((aligned(SIMD_BYTES)));
    v_store(lanes, v);
    for (size_t i = 0; i < w; i++) p[i] = lanes[i];
}

/* Lanes beyond w are `fill`. */
static inline vec_real_t v_load_part(const real_t *p, size_t w, real_t fill)
{
    return __builtin_expect(w == LANES, 1) ? v_load(p) : v_load_tail(p, w, fill);
}

static inline void v_store_part(real_t *p, size_t w, vec_real_t v)
{
    if (__builtin_expect(w == LANES, 1))
        v_store(p, v);
    else
        v_store_tail(p, w, v);
}

/* x - 0 is x for every x, so nothing but the broadcast remains. */
static inline vec_real_t v_set(real_t x)
{
    return x - (vec_real_t){0};
}

static inline vec_real_t v_select(vec_int_t mask, vec_real_t yes, vec_real_t no)
{
    return (vec_real_t)((mask & (vec_int_t)yes) | (~mask & (vec_int_t)no));
}

/* A NaN in x stays one. */
static inline vec_real_t v_max(vec_real_t x, vec_real_t least)
{
    return v_select(x < least, least, x);
}

static inline vec_real_t v_min(vec_real_t x, vec_real_t most)
{
    return v_select(x > most, most, x);
}

static inline real_t v_sum(vec_real_t v)
{
    real_t part[LANES];
    v_store(part, v);
    for (size_t step = LANES / 2; step > 0; step /= 2)
        for (size_t i = 0; i < step; i++) part[i] += part[i + step];
    return part[0];
}

/* The largest lane; NaN if any lane is. */
static inline real_t v_largest(vec_real_t v)
{
    real_t most = v[0];
    for (size_t i = 1; i < LANES; i++)
        if (v[i] > most || v[i] != v[i]) most = v[i];
    return most;
}

/* Lane i is first + i. */
static inline vec_int_t v_count_from(real_int_t first)
{
    vec_int_t v = {0};
    for (size_t i = 0; i < LANES; i++) v[i] = first + (real_int_t)i;
    return v;
}

#if NN_REAL_BITS == 32

/*
 * e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; e^r by a polynomial of degree 6 (minimax fit of
 * our own, relative error 3e-9), ln 2 in two parts so that n ln 2 is exact. Together about 1e-7 with FMA,
 * 2e-7 without. Saturates at e^-87 and e^88; NaN gives NaN.
 */
static inline vec_real_t v_exp(vec_real_t x)
{
    x = v_min(v_max(x, v_set(-87.0f)), v_set(88.0f));
    const vec_real_t magic = v_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec_real_t shifted = x * 1.44269504f + magic;
    vec_real_t n = shifted - magic;
    vec_real_t r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec_real_t p = v_set(1.381313195e-3f);
    p = p * r + 8.369419724e-3f;
    p = p * r + 4.166845605e-2f;
    p = p * r + 1.666651517e-1f;
    p = p * r + 4.999999404e-1f;
    p = (p * (r * r) + r) + 1.0f;
    vec_int_t power = (((vec_int_t)shifted - (vec_int_t)magic) + 127) << 23;
    return p * (vec_real_t)power;
}

#else

/* fp64 is for exactness: libm's, which is right to the last bits. */
static inline vec_real_t v_exp(vec_real_t x)
{
    vec_real_t y = {0};
    for (size_t i = 0; i < LANES; i++) y[i] = exp(x[i]);
    return y;
}

#endif
#endif
