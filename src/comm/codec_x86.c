/* AVX2 (with F16C) kernels, by target attributes as in reduce_x86.c; what does not fill a vector goes to the
 * scalar ones. */
#include "comm/codec_kernels.h"

#if defined(__x86_64__)
#include <math.h>

#include "comm/half_x86.h"

#define HALF(name, wire, load, store)                                                                        \
    AVX2 static void name##_encode(void *dst, const void *src, size_t n)                                     \
    {                                                                                                        \
        codec_u16_t *d = dst;                                                                                \
        const codec_f32_t *s = src;                                                                          \
        size_t i = 0;                                                                                        \
        for (; n - i >= 8; i += 8) store(d + i, _mm256_loadu_ps((const float *)(s + i)));                    \
        codec_scalar[wire].encode(d + i, s + i, n - i);                                                      \
    }                                                                                                        \
    AVX2 static void name##_decode(void *dst, const void *src, size_t n)                                     \
    {                                                                                                        \
        codec_f32_t *d = dst;                                                                                \
        const codec_u16_t *s = src;                                                                          \
        size_t i = 0;                                                                                        \
        for (; n - i >= 8; i += 8) _mm256_storeu_ps((float *)(d + i), load(s + i));                          \
        codec_scalar[wire].decode(d + i, s + i, n - i);                                                      \
    }                                                                                                        \
    AVX2 static void name##_add(void *dst, const void *src, size_t n)                                        \
    {                                                                                                        \
        codec_f32_t *d = dst;                                                                                \
        const codec_u16_t *s = src;                                                                          \
        size_t i = 0;                                                                                        \
        for (; n - i >= 8; i += 8)                                                                           \
            _mm256_storeu_ps((float *)(d + i),                                                               \
                             _mm256_add_ps(_mm256_loadu_ps((const float *)(d + i)), load(s + i)));           \
        codec_scalar[wire].add(d + i, s + i, n - i);                                                         \
    }

HALF(bf16, INSPAN_WIRE_BF16, avx2_load_bf16, avx2_store_bf16)
HALF(fp16, INSPAN_WIRE_FP16, avx2_load_fp16, avx2_store_fp16)

/* ---- int8 ------------------------------------------------------------------------------------ */

/* Bits of the greatest of 255 elements, without sign. */
AVX2 INLINE uint32_t greatest_of(const codec_f32_t *s)
{
    const __m256i sign = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    size_t i = 0;
    for (; CODEC_INT8_ELEMENTS - i >= 8; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_loadu_si256((const void *)(s + i)), sign));
    /* The last eight again, some of them twice: 255 is no multiple. */
    i = CODEC_INT8_ELEMENTS - 8;
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_loadu_si256((const void *)(s + i)), sign));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

AVX2 INLINE void encode_eight(uint8_t *d, const codec_f32_t *s, __m256 scale)
{
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps((const float *)s), scale));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64((void *)d, _mm_packs_epi16(words, words));
}

AVX2 static void int8_encode(void *dst, const void *src, size_t n)
{
    uint8_t *d = dst;
    const codec_f32_t *s = src;
    for (; n >= CODEC_INT8_ELEMENTS; n -= CODEC_INT8_ELEMENTS) {
        const int k = codec_exponent(greatest_of(s));
        d[0] = (uint8_t)k;
        if (k == CODEC_NOT_FINITE) {
            for (size_t i = 0; i < CODEC_INT8_ELEMENTS; i++) d[1 + i] = 0;
        } else {
            const __m256 scale = _mm256_set1_ps(codec_power(-k));
            for (size_t i = 0; CODEC_INT8_ELEMENTS - i >= 8; i += 8) encode_eight(d + 1 + i, s + i, scale);
            encode_eight(d + 1 + CODEC_INT8_ELEMENTS - 8, s + CODEC_INT8_ELEMENTS - 8, scale);
        }
        d += CODEC_INT8_ELEMENTS + 1;
        s += CODEC_INT8_ELEMENTS;
    }
    codec_scalar[INSPAN_WIRE_INT8].encode(d, s, n);
}

AVX2 INLINE __m256 decode_eight(const uint8_t *s, __m256 scale)
{
    const __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)s));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(q), scale);
}

AVX2 static void int8_decode(void *dst, const void *src, size_t n)
{
    codec_f32_t *d = dst;
    const uint8_t *s = src;
    for (; n >= CODEC_INT8_ELEMENTS; n -= CODEC_INT8_ELEMENTS) {
        const int k = codec_exponent_in(s[0]);
        const __m256 scale = _mm256_set1_ps(k < CODEC_LEAST ? NAN : codec_power(k));
        for (size_t i = 0; CODEC_INT8_ELEMENTS - i >= 8; i += 8)
            _mm256_storeu_ps((float *)(d + i), decode_eight(s + 1 + i, scale));
        const size_t last = CODEC_INT8_ELEMENTS - 8;
        _mm256_storeu_ps((float *)(d + last), decode_eight(s + 1 + last, scale));
        s += CODEC_INT8_ELEMENTS + 1;
        d += CODEC_INT8_ELEMENTS;
    }
    codec_scalar[INSPAN_WIRE_INT8].decode(d, s, n);
}

AVX2 static void int8_add(void *dst, const void *src, size_t n)
{
    codec_f32_t *d = dst;
    const uint8_t *s = src;
    for (; n >= CODEC_INT8_ELEMENTS; n -= CODEC_INT8_ELEMENTS) {
        const int k = codec_exponent_in(s[0]);
        const float power = k < CODEC_LEAST ? NAN : codec_power(k);
        const __m256 scale = _mm256_set1_ps(power);
        size_t i = 0;
        for (; CODEC_INT8_ELEMENTS - i >= 8; i += 8)
            _mm256_storeu_ps((float *)(d + i), _mm256_add_ps(_mm256_loadu_ps((const float *)(d + i)),
                                                             decode_eight(s + 1 + i, scale)));
        for (; i < CODEC_INT8_ELEMENTS; i++) d[i] += (float)(int8_t)s[1 + i] * power;
        s += CODEC_INT8_ELEMENTS + 1;
        d += CODEC_INT8_ELEMENTS;
    }
    codec_scalar[INSPAN_WIRE_INT8].add(d, s, n);
}

#define TYPE(name)                                                                                           \
    {                                                                                                        \
        name##_encode, name##_decode, name##_add                                                             \
    }

const codec_kernels_t codec_avx2[INSPAN_WIRES] = {
    [INSPAN_WIRE_BF16] = TYPE(bf16),
    [INSPAN_WIRE_FP16] = TYPE(fp16),
    [INSPAN_WIRE_INT8] = TYPE(int8),
};

#endif
