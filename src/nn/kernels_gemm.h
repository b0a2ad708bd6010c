/* The built-in gemm of this type and instruction set: see kernels.h. */
#ifndef NN_KERNELS_GEMM_H
#define NN_KERNELS_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include "nn/real.h"

#ifndef NN_ISA
#define NN_ISA scalar /* for analysers, as in real.h */
#endif
#define KERNEL(name) NN_PASTE3(name, NN_REAL_SUFFIX, NN_ISA)

void KERNEL(gemm)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, real_t alpha,
                  const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta, real_t *c,
                  size_t ldc);

#endif
