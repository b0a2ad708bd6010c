/*
 * AVX2 (with F16C) and AVX-512F kernels; what does not fill a vector goes to the scalar kernel. They are
 * compiled with target attributes, so that this file needs no flags and the choice is made at run time
 * (reduce.c).
 *
 * AVX512_BF16's own conversion flushes subnormals, so bf16 is rounded with integers, as the scalar kernel
 * does it.
 */
#include "comm/reduce_kernels.h"

#if defined(__x86_64__)
#include "comm/half_x86.h"

#define AVX512 __attribute__((target("avx512f")))

/* One kernel: vectors of `step` elements, then the scalar kernel for the rest. */
#define KERNEL(target, name, stored_t, step, vector_t, load, store, op, dtype, reduction)                    \
    target static void name(void *dst, const void *src, size_t count)                                        \
    {                                                                                                        \
        stored_t *d = dst;                                                                                   \
        const stored_t *s = src;                                                                             \
        size_t i = 0;                                                                                        \
        for (; count - i >= (step); i += (step)) {                                                           \
            const vector_t a = load(d + i), b = load(s + i);                                                 \
            store(d + i, op(a, b));                                                                          \
        }                                                                                                    \
        if (i < count) reduce_scalar[dtype][reduction](d + i, s + i, count - i);                             \
    }

#define KERNELS(target, set, type, stored_t, step, vector_t, load, store, sum, min, max, dtype)              \
    KERNEL(target, set##_##type##_sum, stored_t, step, vector_t, load, store, sum, dtype, INSPAN_SUM)        \
    KERNEL(target, set##_##type##_min, stored_t, step, vector_t, load, store, min, dtype, INSPAN_MIN)        \
    KERNEL(target, set##_##type##_max, stored_t, step, vector_t, load, store, max, dtype, INSPAN_MAX)

#define TABLE(set)                                                                                           \
    {                                                                                                        \
        [INSPAN_FP32] = {set##_fp32_sum, set##_fp32_min, set##_fp32_max},                                    \
        [INSPAN_FP64] = {set##_fp64_sum, set##_fp64_min, set##_fp64_max},                                    \
        [INSPAN_FP16] = {set##_fp16_sum, set##_fp16_min, set##_fp16_max},                                    \
        [INSPAN_BF16] = {set##_bf16_sum, set##_bf16_min, set##_bf16_max},                                    \
        [INSPAN_INT32] = {set##_int32_sum, set##_int32_min, set##_int32_max},                                \
        [INSPAN_INT64] = {set##_int64_sum, set##_int64_min, set##_int64_max},                                \
    }

/* ---- AVX2 ------------------------------------------------------------------------------------ */

/* Take b where it is smaller (greater), or a NaN: see MIN of the scalar kernels. */
#define PS_PICK(a, b, compare)                                                                               \
    _mm256_blendv_ps(a, b, _mm256_or_ps(_mm256_cmp_ps(b, a, compare), _mm256_cmp_ps(b, b, _CMP_UNORD_Q)))
#define PD_PICK(a, b, compare)                                                                               \
    _mm256_blendv_pd(a, b, _mm256_or_pd(_mm256_cmp_pd(b, a, compare), _mm256_cmp_pd(b, b, _CMP_UNORD_Q)))

AVX2 INLINE __m256 avx2_ps_min(__m256 a, __m256 b)
{
    return PS_PICK(a, b, _CMP_LT_OQ);
}

AVX2 INLINE __m256 avx2_ps_max(__m256 a, __m256 b)
{
    return PS_PICK(a, b, _CMP_GT_OQ);
}

AVX2 INLINE __m256d avx2_pd_min(__m256d a, __m256d b)
{
    return PD_PICK(a, b, _CMP_LT_OQ);
}

AVX2 INLINE __m256d avx2_pd_max(__m256d a, __m256d b)
{
    return PD_PICK(a, b, _CMP_GT_OQ);
}

AVX2 INLINE __m256i avx2_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

AVX2 INLINE void avx2_store(void *p, __m256i v)
{
    _mm256_storeu_si256(p, v);
}

AVX2 INLINE __m256i avx2_i64_min(__m256i a, __m256i b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b));
}

AVX2 INLINE __m256i avx2_i64_max(__m256i a, __m256i b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(b, a));
}

#define LOAD_PS(p)     _mm256_loadu_ps((const float *)(p))
#define STORE_PS(p, v) _mm256_storeu_ps((float *)(p), v)
#define LOAD_PD(p)     _mm256_loadu_pd((const double *)(p))
#define STORE_PD(p, v) _mm256_storeu_pd((double *)(p), v)

KERNELS(AVX2, avx2, fp32, reduce_f32_t, 8, __m256, LOAD_PS, STORE_PS, _mm256_add_ps, avx2_ps_min, avx2_ps_max,
        INSPAN_FP32)
KERNELS(AVX2, avx2, fp64, reduce_f64_t, 4, __m256d, LOAD_PD, STORE_PD, _mm256_add_pd, avx2_pd_min,
        avx2_pd_max, INSPAN_FP64)
KERNELS(AVX2, avx2, fp16, reduce_u16_t, 8, __m256, avx2_load_fp16, avx2_store_fp16, _mm256_add_ps,
        avx2_ps_min, avx2_ps_max, INSPAN_FP16)
KERNELS(AVX2, avx2, bf16, reduce_u16_t, 8, __m256, avx2_load_bf16, avx2_store_bf16, _mm256_add_ps,
        avx2_ps_min, avx2_ps_max, INSPAN_BF16)
KERNELS(AVX2, avx2, int32, reduce_u32_t, 8, __m256i, avx2_load, avx2_store, _mm256_add_epi32,
        _mm256_min_epi32, _mm256_max_epi32, INSPAN_INT32)
KERNELS(AVX2, avx2, int64, reduce_u64_t, 4, __m256i, avx2_load, avx2_store, _mm256_add_epi64, avx2_i64_min,
        avx2_i64_max, INSPAN_INT64)

const reduce_table_t reduce_avx2 = TABLE(avx2);

/* ---- AVX-512F -------------------------------------------------------------------------------- */

#define PS512_PICK(a, b, compare)                                                                            \
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask(b, a, compare) | _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a, b)
#define PD512_PICK(a, b, compare)                                                                            \
    _mm512_mask_blend_pd(_mm512_cmp_pd_mask(b, a, compare) | _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q), a, b)

AVX512 INLINE __m512 avx512_ps_min(__m512 a, __m512 b)
{
    return PS512_PICK(a, b, _CMP_LT_OQ);
}

AVX512 INLINE __m512 avx512_ps_max(__m512 a, __m512 b)
{
    return PS512_PICK(a, b, _CMP_GT_OQ);
}

AVX512 INLINE __m512d avx512_pd_min(__m512d a, __m512d b)
{
    return PD512_PICK(a, b, _CMP_LT_OQ);
}

AVX512 INLINE __m512d avx512_pd_max(__m512d a, __m512d b)
{
    return PD512_PICK(a, b, _CMP_GT_OQ);
}

AVX512 INLINE __m512i avx512_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

AVX512 INLINE void avx512_store(void *p, __m512i v)
{
    _mm512_storeu_si512(p, v);
}

AVX512 INLINE __m512 avx512_load_fp16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

AVX512 INLINE void avx512_store_fp16(void *p, __m512 v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

AVX512 INLINE __m512 avx512_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

AVX512 INLINE void avx512_store_bf16(void *p, __m512 v)
{
    const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __m512i halves = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(halves));
}

#define LOAD_PS512(p)     _mm512_loadu_ps((const float *)(p))
#define STORE_PS512(p, v) _mm512_storeu_ps((float *)(p), v)
#define LOAD_PD512(p)     _mm512_loadu_pd((const double *)(p))
#define STORE_PD512(p, v) _mm512_storeu_pd((double *)(p), v)

KERNELS(AVX512, avx512, fp32, reduce_f32_t, 16, __m512, LOAD_PS512, STORE_PS512, _mm512_add_ps, avx512_ps_min,
        avx512_ps_max, INSPAN_FP32)
KERNELS(AVX512, avx512, fp64, reduce_f64_t, 8, __m512d, LOAD_PD512, STORE_PD512, _mm512_add_pd, avx512_pd_min,
        avx512_pd_max, INSPAN_FP64)
KERNELS(AVX512, avx512, fp16, reduce_u16_t, 16, __m512, avx512_load_fp16, avx512_store_fp16, _mm512_add_ps,
        avx512_ps_min, avx512_ps_max, INSPAN_FP16)
KERNELS(AVX512, avx512, bf16, reduce_u16_t, 16, __m512, avx512_load_bf16, avx512_store_bf16, _mm512_add_ps,
        avx512_ps_min, avx512_ps_max, INSPAN_BF16)
KERNELS(AVX512, avx512, int32, reduce_u32_t, 16, __m512i, avx512_load, avx512_store, _mm512_add_epi32,
        _mm512_min_epi32, _mm512_max_epi32, INSPAN_INT32)
KERNELS(AVX512, avx512, int64, reduce_u64_t, 8, __m512i, avx512_load, avx512_store, _mm512_add_epi64,
        _mm512_min_epi64, _mm512_max_epi64, INSPAN_INT64)

const reduce_table_t reduce_avx512 = TABLE(avx512);

#endif
