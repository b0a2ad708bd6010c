#include "nn/compute.h"

#include <string.h>

#include "nn/gemm.h"

/* A part below this many rows or columns is not worth a thread; multiples keep the libraries' blocks whole.
 */
#define GEMM_GRAIN 16
#define ROW_GRAIN  8
#define LINE_REALS (64 / sizeof(real_t))

void REAL(compute_init)(compute_t *c, const nn_model_t *model, size_t sums, arena_t *arena)
{
    *c = (compute_t){.pool = model->pool, .threads = model->threads};
    c->sums_size = (sums + LINE_REALS - 1) / LINE_REALS * LINE_REALS;
    if (c->threads > 1) c->sums = arena_take(arena, (uint64_t)c->threads * c->sums_size, sizeof(real_t));
    if (arena->base == NULL) return;
    c->kernels = REAL(kernels_get)(cpu_isa());
#if NN_REAL_BITS == 32
    c->gemm = gemm_choose()->f32;
#else
    c->gemm = gemm_choose()->f64;
#endif
}

/* ---- Division over threads ------------------------------------------------------------------- */

typedef struct matmul {
    const compute_t *c;
    bool transpose_a, transpose_b, by_rows;
    size_t m, n, k, lda, ldb, ldc;
    const real_t *a, *b;
    real_t beta, *out;
} matmul_t;

static void matmul_part(void *context, uint32_t thread, uint32_t threads)
{
    const matmul_t *g = context;
    size_t first, end;
    pool_part(g->by_rows ? g->m : g->n, GEMM_GRAIN, thread, threads, &first, &end);
    if (first == end) return;
    if (g->by_rows) {
        const real_t *a = g->a + (g->transpose_a ? first : first * g->lda);
        g->c->gemm(g->transpose_a, g->transpose_b, end - first, g->n, g->k, 1, a, g->lda, g->b, g->ldb,
                   g->beta, g->out + first * g->ldc, g->ldc);
    } else {
        const real_t *b = g->b + (g->transpose_b ? first * g->ldb : first);
        g->c->gemm(g->transpose_a, g->transpose_b, g->m, end - first, g->k, 1, g->a, g->lda, b, g->ldb,
                   g->beta, g->out + first, g->ldc);
    }
}

void REAL(compute_matmul)(const compute_t *c, bool transpose_a, bool transpose_b, size_t m, size_t n,
                          size_t k, const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta,
                          real_t *out, size_t ldc)
{
    matmul_t g = {.c = c,
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .by_rows = m >= n,
                  .m = m,
                  .n = n,
                  .k = k,
                  .lda = lda,
                  .ldb = ldb,
                  .ldc = ldc,
                  .a = a,
                  .b = b,
                  .beta = beta,
                  .out = out};
    pool_run(c->pool, matmul_part, &g);
}

typedef struct rows_job {
    const compute_t *c;
    size_t rows, grain;
    REAL(compute_part_t) part;
    void *context;
    real_t *a, *b;
    size_t n_a, n_b;
} rows_job_t;

static void rows_part(void *context, uint32_t thread, uint32_t threads)
{
    const rows_job_t *job = context;
    size_t first, end;
    pool_part(job->rows, job->grain, thread, threads, &first, &end);
    real_t *a = job->a, *b = job->b;
    if (threads > 1 && a != NULL) {
        a = job->c->sums + thread * job->c->sums_size;
        memset(a, 0, (job->n_a + job->n_b) * sizeof *a);
        if (b != NULL) b = a + job->n_a;
    }
    if (first < end) job->part(job->c, job->context, first, end, thread, a, b);
}

void REAL(compute_rows)(const compute_t *c, size_t rows, size_t grain, REAL(compute_part_t) part,
                        void *context, real_t *a, size_t n_a, real_t *b, size_t n_b)
{
    rows_job_t job = {c, rows, grain, part, context, a, b, n_a, n_b};
    pool_run(c->pool, rows_part, &job);
    if (c->threads == 1 || a == NULL) return;
    for (uint32_t thread = 0; thread < c->threads; thread++) {
        const real_t *sums = c->sums + thread * c->sums_size;
        c->kernels->add(n_a, sums, a);
        if (b != NULL) c->kernels->add(n_b, sums + n_a, b);
    }
}

/* ---- Linear ---------------------------------------------------------------------------------- */

void REAL(linear_forward)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *x,
                          const real_t *w, real_t beta, real_t *y)
{
    REAL(compute_matmul)(c, false, false, rows, out, in, x, in, w, out, beta, y, out);
}

void REAL(linear_backward_weight)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *x,
                                  const real_t *dy, real_t *dw)
{
    REAL(compute_matmul)(c, true, false, in, out, rows, x, in, dy, out, 1, dw, out);
}

void REAL(linear_backward_input)(const compute_t *c, size_t rows, size_t in, size_t out, const real_t *dy,
                                 const real_t *w, real_t *dx)
{
    REAL(compute_matmul)(c, false, true, rows, in, out, dy, out, w, out, 0, dx, in);
}

/* ---- Element-wise: each thread has its rows -------------------------------------------------- */

#define PART(name)                                                                                           \
    static void name(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,           \
                     real_t *a, real_t *b)

typedef struct bias_job {
    size_t rows, n;
    const real_t *x, *bias;
    real_t *y, *d;
} bias_job_t;

/* By columns: no sums to fold. */
PART(bias_backward_part)
{
    (void)thread, (void)a, (void)b;
    const bias_job_t *job = context;
    c->kernels->column_sum(job->rows, end - first, job->n, job->x + first, job->d + first);
}

void REAL(bias_backward)(const compute_t *c, size_t rows, size_t out, const real_t *dy, real_t *db)
{
    bias_job_t job = {.rows = rows, .n = out, .x = dy, .d = db};
    REAL(compute_rows)(c, out, 4 * LINE_REALS, bias_backward_part, &job, NULL, 0, NULL, 0);
}

PART(bias_add_part)
{
    (void)thread, (void)a, (void)b;
    const bias_job_t *job = context;
    c->kernels->add_bias(end - first, job->n, job->bias, job->y + first * job->n);
}

void REAL(bias_add)(const compute_t *c, size_t rows, size_t n, const real_t *bias, real_t *x)
{
    bias_job_t job = {.n = n, .bias = bias, .y = x};
    REAL(compute_rows)(c, rows, ROW_GRAIN, bias_add_part, &job, NULL, 0, NULL, 0);
}

PART(bias_sum_part)
{
    (void)thread, (void)a, (void)b;
    const bias_job_t *job = context;
    size_t at = first * job->n;
    c->kernels->sum_bias(end - first, job->n, job->x + at, job->bias, job->y + at);
}

void REAL(bias_sum)(const compute_t *c, size_t rows, size_t n, const real_t *x, const real_t *bias, real_t *y)
{
    bias_job_t job = {.n = n, .x = x, .bias = bias, .y = y};
    REAL(compute_rows)(c, rows, ROW_GRAIN, bias_sum_part, &job, NULL, 0, NULL, 0);
}

PART(bias_gelu_part)
{
    (void)thread, (void)a, (void)b;
    const bias_job_t *job = context;
    size_t at = first * job->n;
    c->kernels->bias_gelu_forward(end - first, job->n, job->bias, job->d + at, job->y + at);
}

void REAL(bias_gelu)(const compute_t *c, size_t rows, size_t n, const real_t *bias, real_t *x, real_t *y)
{
    bias_job_t job = {.n = n, .bias = bias, .d = x, .y = y};
    REAL(compute_rows)(c, rows, ROW_GRAIN, bias_gelu_part, &job, NULL, 0, NULL, 0);
}

PART(gelu_backward_part)
{
    (void)thread, (void)b;
    const bias_job_t *job = context;
    size_t at = first * job->n;
    c->kernels->gelu_backward(end - first, job->n, job->x + at, job->d + at, a);
}

void REAL(gelu_backward)(const compute_t *c, size_t rows, size_t n, const real_t *x, real_t *d, real_t *dbias)
{
    bias_job_t job = {.n = n, .x = x, .d = d};
    REAL(compute_rows)(c, rows, ROW_GRAIN, gelu_backward_part, &job, dbias, n, NULL, 0);
}

typedef struct layernorm_job {
    size_t n;
    const real_t *x, *dy, *gamma, *beta;
    real_t *y, *mean, *rstd;
    bool add;
} layernorm_job_t;

PART(layernorm_forward_part)
{
    (void)thread, (void)a, (void)b;
    const layernorm_job_t *job = context;
    size_t at = first * job->n;
    c->kernels->layernorm_forward(end - first, job->n, job->x + at, job->gamma, job->beta, job->y + at,
                                  job->mean + first, job->rstd + first);
}

void REAL(layernorm_forward)(const compute_t *c, size_t rows, size_t n, const real_t *x, const real_t *gamma,
                             const real_t *beta, real_t *y, real_t *mean, real_t *rstd)
{
    layernorm_job_t job = {.n = n, .x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd};
    REAL(compute_rows)(c, rows, ROW_GRAIN, layernorm_forward_part, &job, NULL, 0, NULL, 0);
}

PART(layernorm_backward_part)
{
    (void)thread;
    const layernorm_job_t *job = context;
    size_t at = first * job->n;
    c->kernels->layernorm_backward(end - first, job->n, job->dy + at, job->x + at, job->gamma,
                                   job->mean + first, job->rstd + first, job->add, job->y + at, a, b);
}

void REAL(layernorm_backward)(const compute_t *c, size_t rows, size_t n, const real_t *dy, const real_t *x,
                              const real_t *gamma, const real_t *mean, const real_t *rstd, bool add,
                              real_t *dx, real_t *dgamma, real_t *dbeta)
{
    layernorm_job_t job = {.n = n,
                           .x = x,
                           .dy = dy,
                           .gamma = gamma,
                           .mean = (real_t *)mean,
                           .rstd = (real_t *)rstd,
                           .add = add,
                           .y = dx};
    REAL(compute_rows)(c, rows, ROW_GRAIN, layernorm_backward_part, &job, dgamma, n, dbeta, n);
}

typedef struct loss_job {
    size_t classes;
    const uint32_t *target;
    bool gradient;
    real_t scale, *logits;
    double *loss;
    bool *hit;
} loss_job_t;

PART(cross_entropy_part)
{
    (void)thread, (void)a, (void)b;
    const loss_job_t *job = context;
    c->kernels->cross_entropy(end - first, job->classes, job->target + first, job->gradient, job->scale,
                              job->logits + first * job->classes, job->loss + first,
                              job->hit == NULL ? NULL : job->hit + first);
}

void REAL(cross_entropy)(const compute_t *c, size_t rows, size_t classes, const uint32_t *target,
                         bool gradient, real_t scale, real_t *logits, double *loss, bool *hit)
{
    loss_job_t job = {classes, target, gradient, scale, logits, loss, hit};
    REAL(compute_rows)(c, rows, ROW_GRAIN, cross_entropy_part, &job, NULL, 0, NULL, 0);
}
