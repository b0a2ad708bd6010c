/*
 * Causal attention by blocks of queries: a block sees only the keys up to its last query, so that about half
 * of the square is never computed, and backward makes the probabilities again from the scores and one number
 * per row instead of keeping them (Dao et al. 2022). Heads are divided over the threads.
 */
#include "nn/compute.h"

#define QUERIES ((size_t)64) /* in a block */

typedef struct job {
    const attention_t *shape;
    const real_t *qkv, *out_const, *dout, *lse_const;
    real_t *out, *lse, *dqkv;
} job_t;

/* Row of scores in whole vectors. */
static size_t padded(size_t keys)
{
    return (keys + ATTENTION_PAD - 1) / ATTENTION_PAD * ATTENTION_PAD;
}

size_t REAL(attention_scratch)(size_t time)
{
    return 2 * QUERIES * padded(time) + QUERIES;
}

static void forward_head(const compute_t *c, const job_t *job, size_t head, real_t *scores)
{
    const attention_t *s = job->shape;
    size_t width = s->heads * s->head, ld = 3 * width;
    const real_t *q = job->qkv + head / s->heads * s->time * ld + head % s->heads * s->head;
    const real_t *k = q + width, *v = k + width;
    real_t *out = job->out + head / s->heads * s->time * width + head % s->heads * s->head;
    real_t scale = 1 / (real_t)__builtin_sqrt((double)s->head);
    for (size_t first = 0; first < s->time; first += QUERIES) {
        size_t rows = s->time - first < QUERIES ? s->time - first : QUERIES, keys = first + rows,
               row = padded(keys);
        c->gemm(false, true, rows, keys, s->head, 1, q + first * ld, ld, k, ld, 0, scores, row);
        c->kernels->attention_softmax(rows, keys, row, first, scale, scores,
                                      job->lse + head * s->time + first);
        c->gemm(false, false, rows, s->head, keys, 1, scores, row, v, ld, 0, out + first * width, width);
    }
}

static void forward_part(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                         real_t *a, real_t *b)
{
    (void)a, (void)b;
    const job_t *job = context;
    real_t *scratch = job->shape->scratch + thread * REAL(attention_scratch)(job->shape->time);
    for (size_t head = first; head < end; head++) forward_head(c, job, head, scratch);
}

void REAL(attention_forward)(const compute_t *c, const attention_t *attention, const real_t *qkv, real_t *out,
                             real_t *lse)
{
    job_t job = {.shape = attention, .qkv = qkv, .out = out, .lse = lse};
    REAL(compute_rows)(c, attention->samples * attention->heads, 1, forward_part, &job, NULL, 0, NULL, 0);
}

/* The last block comes first: it writes the gradients of all keys and values, the others add to them. */
static void backward_head(const compute_t *c, const job_t *job, size_t head, real_t *scratch)
{
    const attention_t *s = job->shape;
    size_t width = s->heads * s->head, ld = 3 * width;
    size_t at = head / s->heads * s->time * width + head % s->heads * s->head;
    size_t at_qkv = head / s->heads * s->time * ld + head % s->heads * s->head;
    const real_t *q = job->qkv + at_qkv, *k = q + width, *v = k + width;
    real_t *dq = job->dqkv + at_qkv, *dk = dq + width, *dv = dk + width;
    real_t scale = 1 / (real_t)__builtin_sqrt((double)s->head), beta = 0;
    real_t *p = scratch, *dp = p + QUERIES * padded(s->time), *dot = dp + QUERIES * padded(s->time);
    for (size_t block = (s->time + QUERIES - 1) / QUERIES; block-- > 0; beta = 1) {
        size_t first = block * QUERIES;
        size_t rows = s->time - first < QUERIES ? s->time - first : QUERIES, keys = first + rows,
               row = padded(keys);
        const real_t *dout = job->dout + at + first * width, *out = job->out_const + at + first * width;
        c->gemm(false, true, rows, keys, s->head, 1, q + first * ld, ld, k, ld, 0, p, row);
        c->gemm(false, true, rows, keys, s->head, 1, dout, width, v, ld, 0, dp, row);
        c->kernels->row_dot(rows, s->head, width, out, dout, dot); /* sum of p dp = out . dout */
        c->kernels->attention_softmax_backward(rows, keys, row, first, scale,
                                               job->lse_const + head * s->time + first, dot, p, dp);
        c->gemm(true, false, keys, s->head, rows, 1, p, row, dout, width, beta, dv, ld);
        c->gemm(true, false, keys, s->head, rows, 1, dp, row, q + first * ld, ld, beta, dk, ld);
        c->gemm(false, false, rows, s->head, keys, 1, dp, row, k, ld, 0, dq + first * ld, ld);
    }
}

static void backward_part(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                          real_t *a, real_t *b)
{
    (void)a, (void)b;
    const job_t *job = context;
    real_t *scratch = job->shape->scratch + thread * REAL(attention_scratch)(job->shape->time);
    for (size_t head = first; head < end; head++) backward_head(c, job, head, scratch);
}

void REAL(attention_backward)(const compute_t *c, const attention_t *attention, const real_t *qkv,
                              const real_t *out, const real_t *lse, const real_t *dout, real_t *dqkv)
{
    job_t job = {
        .shape = attention, .qkv = qkv, .out_const = out, .lse_const = lse, .dout = dout, .dqkv = dqkv};
    REAL(compute_rows)(c, attention->samples * attention->heads, 1, backward_part, &job, NULL, 0, NULL, 0);
}
