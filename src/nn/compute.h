/*
 * What the layers are made of: kernels and gemm over the threads of one model. Work is divided by index
 * alone, and sums over rows that several threads share are folded in the order of the threads: the same
 * threads give the same bits.
 *
 * Shapes: x (rows, in), w (in, out), y (rows, out). Gradients are added to what is there unless said
 * otherwise.
 */
#ifndef NN_COMPUTE_H
#define NN_COMPUTE_H

#include "nn/arena.h"
#include "nn/kernels.h"
#include "nn/model.h"
#include "nn/pool.h"

typedef void (*REAL(compute_gemm_t))(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                                     real_t alpha, const real_t *a, size_t lda, const real_t *b, size_t ldb,
                                     real_t beta, real_t *c, size_t ldc);

typedef struct REAL(compute) {
    pool_t *pool;
    const kernels_t *kernels;
    REAL(compute_gemm_t) gemm; /* on the calling thread alone */
    uint32_t threads;
    size_t sums_size; /* room of one thread in `sums` */
    real_t *sums;     /* (threads, sums_size) where threads > 1 */
} REAL(compute_t);

typedef REAL(compute_t) compute_t;

/* Kernels, gemm and pool of this model; takes room for sums of up to `sums` numbers from the arena. */
void REAL(compute_init)(compute_t *c, const nn_model_t *model, size_t sums, arena_t *arena);

/* c (m, n) = op(a) op(b) + beta c, divided over the threads. */
void REAL(compute_matmul)(const compute_t *c, bool transpose_a, bool transpose_b, size_t m, size_t n,
                          size_t k, const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta,
                          real_t *out, size_t ldc);

/* Thread's part [first, end) of the rows; a, b: where it adds its sums (NULL where there are none). */
typedef void (*REAL(compute_part_t))(const compute_t *c, void *context, size_t first, size_t end,
                                     uint32_t thread, real_t *a, real_t *b);

/* Divide the rows. a (n_a) and b (n_b) have every thread's sums added, in the order of the threads. */
void REAL(compute_rows)(const compute_t *c, size_t rows, size_t grain, REAL(compute_part_t) part,
                        void *context, real_t *a, size_t n_a, real_t *b, size_t n_b);

/* ---- Layers ---------------------------------------------------------------------------------- */

/* y = x w + beta y; biases apart, as they fuse with what follows. */
void REAL(linear_forward)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *x,
                          const real_t *w, real_t beta, real_t *y);
/* dw (in, out) += x^T dy */
void REAL(linear_backward_weight)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *x,
                                  const real_t *dy, real_t *dw);
/* dx (rows, in) = dy w^T */
void REAL(linear_backward_input)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *dy,
                                 const real_t *w, real_t *dx);
/* db (out) += column sums of dy */
void REAL(bias_backward)(const compute_t *c, size_t rows, size_t out, const real_t *dy, real_t *db);

void REAL(bias_add)(const compute_t *c, size_t rows, size_t n, const real_t *bias, real_t *x);
void REAL(bias_sum)(const compute_t *c, size_t rows, size_t n, const real_t *x, const real_t *bias,
                    real_t *y);
void REAL(bias_gelu)(const compute_t *c, size_t rows, size_t n, const real_t *bias, real_t *x, real_t *y);
void REAL(gelu_backward)(const compute_t *c, size_t rows, size_t n, const real_t *x, real_t *d,
                         real_t *dbias);

void REAL(layernorm_forward)(const compute_t *c, size_t rows, size_t n, const real_t *x, const real_t *gamma,
                             const real_t *beta, real_t *y, real_t *mean, real_t *rstd);
/* dx = (add: +=) */
void REAL(layernorm_backward)(const compute_t *c, size_t rows, size_t n, const real_t *dy, const real_t *x,
                              const real_t *gamma, const real_t *mean, const real_t *rstd, bool add,
                              real_t *dx, real_t *dgamma, real_t *dbeta);

/* kernels.h: cross_entropy. */
void REAL(cross_entropy)(const compute_t *c, size_t rows, size_t classes, const uint32_t *target,
                         bool gradient, real_t scale, real_t *logits, double *loss, bool *hit);

/*
 * Causal attention of all heads, scores never stored whole. qkv (samples * time, 3 * heads * head) holds
 * queries, keys, values of a token one after the other; out (samples * time, heads * head); lse (samples *
 * heads, time). scratch: attention_scratch(time) numbers for each thread.
 */
typedef struct REAL(attention) {
    size_t samples, time, heads, head;
    real_t *scratch;
} REAL(attention_t);

typedef REAL(attention_t) attention_t;

size_t REAL(attention_scratch)(size_t time);
void REAL(attention_forward)(const compute_t *c, const attention_t *attention, const real_t *qkv, real_t *out,
                             real_t *lse);
/* dqkv (as qkv) = ; dout and out (as out). */
void REAL(attention_backward)(const compute_t *c, const attention_t *attention, const real_t *qkv,
                              const real_t *out, const real_t *lse, const real_t *dout, real_t *dqkv);

#endif
