/*
 * Element-wise kernels and the built-in gemm: one table for each instruction set and type, all from kernels.c
 * and kernels_gemm.c. Matrices are row-major and dense unless a leading dimension is named. "+=" marks a
 * result that is added to what is there. No kernel allocates, locks or fails. A NaN in gives a NaN out.
 *
 * rows x n below: one row is one token (or sample), n its channels.
 */
#ifndef NN_KERNELS_H
#define NN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "nn/real.h"

#define NN_LAYERNORM_EPS 1e-5
#define ATTENTION_PAD    16 /* lanes of the widest vector */

typedef struct REAL(kernels) {
    /* y = (x - mean) rstd gamma + beta, rstd = 1 / sqrt(variance + eps), variance over n (not n - 1). */
    void (*layernorm_forward)(size_t rows, size_t n, const real_t *x, const real_t *gamma, const real_t *beta,
                              real_t *y, real_t *mean /* (rows) */, real_t *rstd /* (rows) */);
    /* dx (+)= by add; dgamma, dbeta (n) +=. */
    void (*layernorm_backward)(size_t rows, size_t n, const real_t *dy, const real_t *x, const real_t *gamma,
                               const real_t *mean, const real_t *rstd, bool add, real_t *dx, real_t *dgamma,
                               real_t *dbeta);

    void (*add_bias)(size_t rows, size_t n, const real_t *bias, real_t *x); /* x += bias */
    void (*sum_bias)(size_t rows, size_t n, const real_t *x, const real_t *bias,
                     real_t *y);                                                        /* y = x + bias */
    void (*column_sum)(size_t rows, size_t n, size_t ld, const real_t *x, real_t *sum); /* sum (n) += */
    void (*add)(size_t n, const real_t *x, real_t *y);                                  /* y += x */

    /* x += bias; y = gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is the tanh form.
     */
    void (*bias_gelu_forward)(size_t rows, size_t n, const real_t *bias, real_t *x, real_t *y);
    /* d *= gelu'(x), where x has its bias; dbias (n) += column sums of d. */
    void (*gelu_backward)(size_t rows, size_t n, const real_t *x, real_t *d, real_t *dbias);

    /*
     * Scores to probabilities, causal. Row i of s (rows, ld; keys in use) belongs to query first + i, which
     * sees keys 0 .. first + i: softmax of scale * s over these, 0 for the other keys. lse (rows): log of the
     * sum of exponentials.
     * ld is a multiple of ATTENTION_PAD, at least keys: columns beyond keys may be read and written, their
     * contents (even a NaN) change nothing.
     */
    void (*attention_softmax)(size_t rows, size_t keys, size_t ld, size_t first, real_t scale, real_t *s,
                              real_t *lse);
    /* The same probabilities again from scores and lse, in s; and dp (d probabilities) becomes
     * p (dp - dot) scale (d scores). dot (rows): sum of p dp over the row. */
    void (*attention_softmax_backward)(size_t rows, size_t keys, size_t ld, size_t first, real_t scale,
                                       const real_t *lse, const real_t *dot, real_t *s, real_t *dp);
    /* dot (rows) = sum over n of x y. */
    void (*row_dot)(size_t rows, size_t n, size_t ld, const real_t *x, const real_t *y, real_t *dot);

    /*
     * loss (rows) = -log softmax(logits)[target]. gradient: logits become scale (softmax - onehot(target)).
     * hit (may be NULL; rows): the first largest logit is the target.
     */
    void (*cross_entropy)(size_t rows, size_t classes, const uint32_t *target, bool gradient, real_t scale,
                          real_t *logits, double *loss, bool *hit);

    /* y (rows, n) = token_table[token[row]] + position_table[row % time]. */
    void (*embed)(size_t rows, size_t n, size_t time, const uint32_t *token, const real_t *token_table,
                  const real_t *position_table, real_t *y);
    /* Columns [0, width) of (rows, n): token_table[token[row]] +=, position_table[row % time] += . */
    void (*embed_backward)(size_t rows, size_t n, size_t width, size_t time, const uint32_t *token,
                           const real_t *dy, real_t *dtoken_table, real_t *dposition_table);

    /* 3 x 3 neighbourhoods, zero outside: columns (channels * 9, height * width) of x (channels, height,
     * width). */
    void (*im2col)(size_t channels, size_t height, size_t width, const real_t *x, real_t *columns);
    void (*col2im)(size_t channels, size_t height, size_t width, const real_t *columns,
                   real_t *dx); /* dx = */
    /* y (filters, height / 2, width / 2) = largest of relu(x + bias) in each 2 x 2; which (same shape): 0 ..
     * 3, where. */
    void (*relu_pool_forward)(size_t filters, size_t height, size_t width, const real_t *x,
                              const real_t *bias, real_t *y, uint8_t *which);
    /* dx (filters, height, width) = ; dbias (filters) += . */
    void (*relu_pool_backward)(size_t filters, size_t height, size_t width, const real_t *dy, const real_t *y,
                               const uint8_t *which, real_t *dx, real_t *dbias);

    /* c (m, n) = alpha op(a) op(b) + beta c; op(a) (m, k), op(b) (k, n); beta 0 does not read c. */
    void (*gemm)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, real_t alpha,
                 const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta, real_t *c,
                 size_t ldc);
} REAL(kernels_t);

typedef REAL(kernels_t) kernels_t;

/* The table of this set, or of the best set below it that this build has. */
const kernels_t *REAL(kernels_get)(cpu_isa_t isa);

#endif
