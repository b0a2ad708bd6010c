/* Eight 16-bit numbers to and from fp32 with AVX2 and F16C, by target attributes: functions that use them
 * carry AVX2, too. The bits of base/half.h. */
#ifndef COMM_HALF_X86_H
#define COMM_HALF_X86_H

#include <immintrin.h>

#define AVX2   __attribute__((target("avx2,f16c")))
#define INLINE static inline __attribute__((always_inline))

AVX2 INLINE __m256 avx2_load_fp16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

AVX2 INLINE void avx2_store_fp16(void *p, __m256 v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

AVX2 INLINE __m256 avx2_load_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

AVX2 INLINE void avx2_store_bf16(void *p, __m256 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i halves = _mm256_blendv_epi8(rounded, quiet, nan);
    _mm_storeu_si128(p,
                     _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}

#endif
