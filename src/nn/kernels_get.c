#include "nn/gemm.h"
#include "nn/kernels.h"

#define NAMED(isa) NN_PASTE3(kernels, NN_REAL_SUFFIX, isa)

extern const kernels_t NAMED(scalar);
#if defined(__x86_64__)
extern const kernels_t NAMED(avx2), NAMED(avx512);
#endif

const kernels_t *REAL(kernels_get)(cpu_isa_t isa)
{
#if defined(__x86_64__)
    if (isa == CPU_AVX512) return &NAMED(avx512);
    if (isa == CPU_AVX2) return &NAMED(avx2);
#endif
    (void)isa;
    return &NAMED(scalar);
}

NN_PASTE3(gemm, NN_REAL_SUFFIX, t) REAL(gemm_builtin)(cpu_isa_t isa)
{
    return REAL(kernels_get)(isa)->gemm;
}
