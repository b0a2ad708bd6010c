/*
 * The gemm table: c (m, n) = alpha op(a) op(b) + beta c, row-major, op(a) (m, k), op(b) (k, n), each call on
 * the calling thread alone. Candidates are oneDNN, OpenBLAS (both by dlopen, with local symbols: the program
 * starts without them) and the built-in. Each is compared with a naive product over many shapes and
 * transposes; a wrong one is left out, with a line in the log; the fastest of the right ones is taken, for
 * each type. Sizes stay below 2^31.
 *
 * $INSPAN_GEMM=oneDNN|OpenBLAS|built-in takes that one if it is right.
 *
 * The choice is made once, by the first gemm_choose() of the process, which should come before the program
 * starts threads: it sets environment variables while it loads OpenBLAS (and takes them back).
 */
#ifndef NN_GEMM_H
#define NN_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cpu.h"

typedef void (*gemm_f32_t)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                           const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                           size_t ldc);
typedef void (*gemm_f64_t)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, double alpha,
                           const double *a, size_t lda, const double *b, size_t ldb, double beta, double *c,
                           size_t ldc);

typedef struct gemm_choice {
    gemm_f32_t f32; /* NULL: not one right candidate */
    gemm_f64_t f64;
    char name32[48], name64[48]; /* of the candidates taken; "none" */
    char report[512];            /* for people: every candidate with its speed or its fault */
} gemm_choice_t;

const gemm_choice_t *gemm_choose(void); /* Any thread; blocks for about a tenth of a second the first time. */

/* To be called once in each thread that will call the chosen functions (makes OpenMP inside the library use
 * one). */
void gemm_enter_thread(void);

/* ---- Parts, for the tests -------------------------------------------------------------------- */

typedef struct gemm_candidate {
    char name[48];
    gemm_f32_t f32; /* NULL: has none */
    gemm_f64_t f64;
} gemm_candidate_t;

#define GEMM_CANDIDATES 3

/* Load what this machine has; the number found. The first two are libraries, the built-in is always the last.
 */
size_t gemm_load(cpu_isa_t isa, gemm_candidate_t candidates[GEMM_CANDIDATES]);

gemm_f32_t gemm_builtin_f32(cpu_isa_t isa);
gemm_f64_t gemm_builtin_f64(cpu_isa_t isa);

/* Compare with a naive product in fp64. false: `fault` says for which shape and what was found. */
bool gemm_check_f32(gemm_f32_t gemm, char *fault, size_t size);
bool gemm_check_f64(gemm_f64_t gemm, char *fault, size_t size);

/* GFLOP/s over the products of a small GPT's step. */
double gemm_speed_f32(gemm_f32_t gemm);
double gemm_speed_f64(gemm_f64_t gemm);

#endif
