#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "nn/gemm.h"
#include "nn/real.h"
#include "platform/os/os_time.h"

typedef NN_PASTE3(gemm, NN_REAL_SUFFIX, t) gemm_fn_t; /* gemm_f32_t or gemm_f64_t */
#define EPSILON (sizeof(real_t) == 4 ? (double)FLT_EPSILON : DBL_EPSILON)

#define PAD     3 /* columns beyond the matrix, which must stay as they are */
#define LARGEST ((size_t)300)
#define BUFFER  (LARGEST * (LARGEST + PAD))

typedef struct shape {
    size_t m, n, k;
} shape_t;

/* One, odd, around the widths of vectors and of register blocks, long and thin; the last are a GPT's. */
static const shape_t SHAPES[] = {{1, 1, 1},    {1, 17, 5},   {3, 1, 7},     {2, 3, 1},    {5, 7, 11},
                                 {15, 16, 17}, {33, 31, 64}, {16, 300, 2},  {2, 16, 300}, {300, 3, 33},
                                 {48, 48, 48}, {65, 129, 7}, {127, 63, 65}, {64, 96, 128}};

typedef struct trial {
    bool transpose_a, transpose_b;
    size_t m, n, k, lda, ldb, ldc;
    double alpha, beta;
    real_t *a, *b, *c, *before;
} trial_t;

static void fill(rng_t *rng, real_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (real_t)(2 * rng_uniform(rng) - 1);
}

/* Element (i, j) right? The error of any order of summation is below (k + 2) eps sum |a b|. */
static bool element_right(const trial_t *t, size_t i, size_t j, double *expected)
{
    double sum = 0, size = 0;
    for (size_t p = 0; p < t->k; p++) {
        double a = (double)t->a[t->transpose_a ? p * t->lda + i : i * t->lda + p];
        double b = (double)t->b[t->transpose_b ? j * t->ldb + p : p * t->ldb + j];
        sum += a * b;
        size += fabs(a * b);
    }
    double old = t->beta == 0 ? 0 : t->beta * (double)t->before[i * t->ldc + j];
    *expected = t->alpha * sum + old;
    double bound = 2 * ((double)t->k + 4) * EPSILON * (fabs(t->alpha) * size + fabs(old));
    return fabs((double)t->c[i * t->ldc + j] - *expected) <= bound; /* false for a NaN */
}

static bool trial_right(gemm_fn_t gemm, trial_t *t, char *fault, size_t size)
{
    for (size_t i = 0; i < t->m * t->ldc; i++) t->c[i] = t->before[i];
    gemm(t->transpose_a, t->transpose_b, t->m, t->n, t->k, (real_t)t->alpha, t->a, t->lda, t->b, t->ldb,
         (real_t)t->beta, t->c, t->ldc);
    for (size_t i = 0; i < t->m; i++) {
        for (size_t j = 0; j < t->ldc; j++) {
            double expected = (double)t->before[i * t->ldc + j];
            bool right = j < t->n ? element_right(t, i, j, &expected)
                                  : t->c[i * t->ldc + j] == t->before[i * t->ldc + j];
            if (right) continue;
            snprintf(fault, size, "%zux%zux%zu %c%c beta %g: element (%zu, %zu) is %.9g, expected %.9g", t->m,
                     t->n, t->k, t->transpose_a ? 'T' : 'N', t->transpose_b ? 'T' : 'N', t->beta, i, j,
                     (double)t->c[i * t->ldc + j], expected);
            return false;
        }
    }
    return true;
}

/* With beta 0 the old contents must not count, not even a NaN: freshly taken memory can hold one. */
static bool shape_right(gemm_fn_t gemm, trial_t *t, rng_t *rng, char *fault, size_t size)
{
    for (int variant = 0; variant < 8; variant++) {
        t->transpose_a = variant & 1;
        t->transpose_b = variant & 2;
        t->beta = variant & 4 ? 1 : 0;
        t->alpha = 1;
        t->lda = (t->transpose_a ? t->m : t->k) + PAD;
        t->ldb = (t->transpose_b ? t->k : t->n) + PAD;
        t->ldc = t->n + PAD;
        fill(rng, t->before, t->m * t->ldc);
        if (t->beta == 0) t->before[0] = (real_t)NAN;
        if (!trial_right(gemm, t, fault, size)) return false;
    }
    return true;
}

bool REAL(gemm_check)(gemm_fn_t gemm, char *fault, size_t size)
{
    trial_t t = {.a = calloc(BUFFER, sizeof(real_t)), .b = calloc(BUFFER, sizeof(real_t))};
    t.c = calloc(BUFFER, sizeof(real_t));
    t.before = calloc(BUFFER, sizeof(real_t));
    bool right = t.a && t.b && t.c && t.before;
    if (!right) snprintf(fault, size, "no memory to check it");
    rng_t rng;
    rng_seed(&rng, 1, 0);
    for (size_t i = 0; right && i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        t.m = SHAPES[i].m, t.n = SHAPES[i].n, t.k = SHAPES[i].k;
        fill(&rng, t.a, (t.m + PAD) * (t.k + PAD));
        fill(&rng, t.b, (t.k + PAD) * (t.n + PAD));
        right = shape_right(gemm, &t, &rng, fault, size);
    }
    free(t.a), free(t.b), free(t.c), free(t.before);
    return right;
}

/* Forward, gradient of the input, gradient of the weights, of a layer of 128 to 384 over 512 tokens; best of
 * five. */
double REAL(gemm_speed)(gemm_fn_t gemm)
{
    enum { TOKENS = 512, IN = 128, OUT = 384 };
    real_t *x = calloc(TOKENS * IN, sizeof *x), *y = calloc(TOKENS * OUT, sizeof *y),
           *w = calloc(IN * OUT, sizeof *w);
    ns_t best = INT64_MAX;
    for (int i = 0; x && y && w && i < 5; i++) {
        ns_t start = os_thread_cpu(); /* of this thread: other programs may take their share meanwhile */
        gemm(false, false, TOKENS, OUT, IN, 1, x, IN, w, OUT, 0, y, OUT);
        gemm(false, true, TOKENS, IN, OUT, 1, y, OUT, w, OUT, 0, x, IN);
        gemm(true, false, IN, OUT, TOKENS, 1, x, IN, y, OUT, 1, w, OUT);
        ns_t took = os_thread_cpu() - start;
        if (took > 0 && took < best) best = took;
    }
    free(x), free(y), free(w);
    return 3 * 2.0 * TOKENS * IN * OUT / (double)best;
}
