/*
 * Every kernel of every instruction set against a plain loop in fp64, at sizes about the widths of vectors;
 * with guard values around each result. Compiled for fp32 and for fp64.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/kernels.h"

enum { ROWS = 5, WIDEST = 131, GUARD = 16 };
#define SIZE (ROWS * 160 + 2 * GUARD)
#define TINY (sizeof(real_t) == 4 ? 4e-6 : 1e-14)

static const size_t WIDTHS[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, WIDEST};
#define N_WIDTHS (sizeof WIDTHS / sizeof WIDTHS[0])

typedef struct buffer {
    real_t all[SIZE];
} buffer_t;

static rng_t rng;

static real_t *fill(buffer_t *buffer, double scale)
{
    for (size_t i = 0; i < SIZE; i++) buffer->all[i] = (real_t)(scale * rng_normal(&rng));
    return buffer->all + GUARD + 1; /* unaligned on purpose */
}

/* found (n) near expected, relative to `size` (the size of the terms that made it). */
static void near(const char *what, size_t width, const real_t *found, const double *expected, size_t n,
                 double size)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)found[i] - expected[i]) <= TINY * (size + fabs(expected[i]))))
            fail_msg("%s, width %zu: element %zu is %.17g, expected %.17g", what, width, i, (double)found[i],
                     expected[i]);
}

static void same_guards(const buffer_t *before, const buffer_t *after, size_t n)
{
    size_t used = GUARD + 1;
    assert_memory_equal(before->all, after->all, used * sizeof(real_t));
    assert_memory_equal(before->all + used + n, after->all + used + n, (SIZE - used - n) * sizeof(real_t));
}

typedef void (*check_t)(const kernels_t *k, size_t n);

static void over_all(check_t check)
{
    rng_seed(&rng, 5, 0);
    cpu_isa_t best = cpu_isa();
    for (int isa = 0; isa <= (int)best; isa++)
        for (size_t i = 0; i < N_WIDTHS; i++) check(REAL(kernels_get)((cpu_isa_t)isa), WIDTHS[i]);
}

/* ---- References ------------------------------------------------------------------------------ */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void check_layernorm(const kernels_t *k, size_t n)
{
    static buffer_t bx, bg, bb, by, bdy, bdx, before;
    static double y[ROWS * WIDEST], dx[ROWS * WIDEST], dgamma[WIDEST], dbeta[WIDEST];
    real_t *x = fill(&bx, 3), *gamma = fill(&bg, 1), *beta = fill(&bb, 1), *out = fill(&by, 1);
    real_t *dy = fill(&bdy, 1), *d = fill(&bdx, 1), mean[ROWS], rstd[ROWS], dg[WIDEST], db[WIDEST];
    for (size_t i = 0; i < ROWS * n; i++) x[i] += 50; /* a mean much larger than the deviation */
    for (size_t i = 0; i < n; i++) dg[i] = db[i] = (real_t)(dgamma[i] = dbeta[i] = 0.5);
    for (size_t row = 0; row < ROWS; row++) {
        const real_t *xr = x + row * n, *dr = dy + row * n;
        double m = 0, variance = 0, a = 0, b = 0;
        for (size_t i = 0; i < n; i++) m += (double)xr[i] / (double)n;
        for (size_t i = 0; i < n; i++) variance += ((double)xr[i] - m) * ((double)xr[i] - m) / (double)n;
        double r = 1 / sqrt(variance + 1e-5);
        for (size_t i = 0; i < n; i++) {
            double normal = ((double)xr[i] - m) * r, g = (double)dr[i] * (double)gamma[i];
            y[row * n + i] = normal * (double)gamma[i] + (double)beta[i];
            a += g / (double)n, b += g * normal / (double)n;
            dgamma[i] += (double)dr[i] * normal, dbeta[i] += (double)dr[i];
        }
        for (size_t i = 0; i < n; i++)
            dx[row * n + i] = (double)d[row * n + i] +
                              r * ((double)dr[i] * (double)gamma[i] - a - ((double)xr[i] - m) * r * b);
    }
    before = by;
    k->layernorm_forward(ROWS, n, x, gamma, beta, out, mean, rstd);
    near("layernorm", n, out, y, ROWS * n, 50);
    same_guards(&before, &by, ROWS * n);
    before = bdx;
    if (n < 3) return; /* of one or two numbers the gradient is the difference of equal ones */
    k->layernorm_backward(ROWS, n, dy, x, gamma, mean, rstd, true, d, dg, db);
    near("d layernorm", n, d, dx, ROWS * n, 500);
    near("d gamma", n, dg, dgamma, n, 200);
    near("d beta", n, db, dbeta, n, 10);
    same_guards(&before, &bdx, ROWS * n);
}

static void check_gelu(const kernels_t *k, size_t n)
{
    static buffer_t bx, bb, by, bd, before_x, before_y, before_d;
    static double with_bias[ROWS * WIDEST], y[ROWS * WIDEST], dx[ROWS * WIDEST], dbias[WIDEST];
    real_t *x = fill(&bx, 4), *bias = fill(&bb, 1), *out = fill(&by, 1), *d = fill(&bd, 1), db[WIDEST];
    for (size_t i = 0; i < n; i++) db[i] = (real_t)(dbias[i] = -0.25);
    for (size_t i = 0; i < ROWS * n; i++) {
        double v = (double)(real_t)(x[i] + bias[i % n]);
        with_bias[i] = v, y[i] = gelu(v), dx[i] = (double)d[i] * gelu_slope(v);
        dbias[i % n] += dx[i];
    }
    before_x = bx, before_y = by, before_d = bd;
    k->bias_gelu_forward(ROWS, n, bias, x, out);
    near("bias", n, x, with_bias, ROWS * n, 0);
    near("gelu", n, out, y, ROWS * n, 0.1);
    k->gelu_backward(ROWS, n, x, d, db);
    near("d gelu", n, d, dx, ROWS * n, 1);
    near("d bias", n, db, dbias, n, 4);
    same_guards(&before_x, &bx, ROWS * n);
    same_guards(&before_y, &by, ROWS * n);
    same_guards(&before_d, &bd, ROWS * n);
}

static void check_sums(const kernels_t *k, size_t n)
{
    static buffer_t bx, bb, by, before;
    static double sum[ROWS * WIDEST];
    real_t *x = fill(&bx, 1), *bias = fill(&bb, 1), *y = fill(&by, 1);
    before = by;
    for (size_t i = 0; i < ROWS * n; i++) sum[i] = (double)(real_t)(x[i] + bias[i % n]);
    k->sum_bias(ROWS, n, x, bias, y);
    near("sum_bias", n, y, sum, ROWS * n, 0);
    same_guards(&before, &by, ROWS * n);
    for (size_t i = 0; i < ROWS * n; i++) sum[i] = (double)y[i] + (double)bias[i % n];
    k->add_bias(ROWS, n, bias, y);
    near("add_bias", n, y, sum, ROWS * n, 1);
    for (size_t i = 0; i < n; i++) sum[i] = (double)y[i] + (double)x[i];
    k->add(n, x, y);
    near("add", n, y, sum, n, 1);
    same_guards(&before, &by, ROWS * n);
    /* A part of the columns of a wider matrix, as threads take it. */
    size_t part = (n + 1) / 2;
    before = by;
    for (size_t i = 0; i < part; i++) {
        sum[i] = (double)y[i];
        for (size_t row = 0; row < ROWS; row++) sum[i] += (double)x[row * n + i];
    }
    k->column_sum(ROWS, part, n, x, y);
    near("column_sum", n, y, sum, part, 2);
    same_guards(&before, &by, part);
    real_t dot[ROWS];
    for (size_t row = 0; row < ROWS; row++) {
        sum[row] = 0;
        for (size_t i = 0; i < part; i++) sum[row] += (double)x[row * n + i] * (double)y[row * n + i];
    }
    k->row_dot(ROWS, part, n, x, y, dot);
    near("row_dot", n, dot, sum, ROWS, 10);
}

static void check_cross_entropy(const kernels_t *k, size_t n)
{
    static buffer_t bx, before;
    static double d[ROWS * WIDEST];
    real_t *x = fill(&bx, 3);
    uint32_t target[ROWS];
    double loss[ROWS], expected[ROWS];
    bool hit[ROWS], expected_hit[ROWS];
    x[0] += 60; /* exponentials without the largest taken away would overflow */
    for (size_t row = 0; row < ROWS; row++) {
        real_t *r = x + row * n;
        double total = 1; /* the largest one's own */
        size_t best = 0;
        if (row == 1 && n > 2) r[1] = r[2] = 40; /* a tie: the first counts */
        target[row] = row == 1 && n > 2 ? 1 + (uint32_t)(n % 2) : (uint32_t)rng_below(&rng, n);
        for (size_t i = 0; i < n; i++) best = r[i] > r[best] ? i : best;
        for (size_t i = 0; i < n; i++) total += i == best ? 0 : exp((double)r[i] - (double)r[best]);
        expected[row] = log(total) + (double)r[best] - (double)r[target[row]];
        expected_hit[row] = best == target[row];
        for (size_t i = 0; i < n; i++)
            d[row * n + i] = 0.5 * (exp((double)r[i] - (double)r[best]) / total - (i == target[row]));
    }
    before = bx;
    k->cross_entropy(ROWS, n, target, true, (real_t)0.5, x, loss, hit);
    near("d cross_entropy", n, x, d, ROWS * n, 1);
    same_guards(&before, &bx, ROWS * n);
    for (size_t row = 0; row < ROWS; row++) {
        assert_true(fabs(loss[row] - expected[row]) <= 20 * TINY * (1 + expected[row]));
        assert_int_equal(hit[row], expected_hit[row]);
    }
}

static void check_attention(const kernels_t *k, size_t keys)
{
    static buffer_t bs, bdp;
    static double p[ROWS * 160], ds[ROWS * 160];
    size_t rows = keys < ROWS ? keys : ROWS, first = keys - rows, ld = (keys + 15) / 16 * 16;
    real_t *s = fill(&bs, 4), *dp = fill(&bdp, 1), lse[ROWS], dot[ROWS], scale = (real_t)0.3;
    double exact_dot[ROWS];
    for (size_t row = 0; row < rows; row++) { /* what is not seen must not matter, not even a NaN */
        for (size_t i = first + row + 1; i < ld; i++) s[row * ld + i] = dp[row * ld + i] = (real_t)NAN;
        double total = 0, most = -INFINITY;
        size_t seen = first + row + 1;
        for (size_t i = 0; i < seen; i++) most = fmax(most, (double)scale * (double)s[row * ld + i]);
        for (size_t i = 0; i < seen; i++) total += exp((double)scale * (double)s[row * ld + i] - most);
        exact_dot[row] = 0;
        for (size_t i = 0; i < keys; i++)
            p[row * keys + i] = i < seen ? exp((double)scale * (double)s[row * ld + i] - most) / total : 0;
        for (size_t i = 0; i < seen; i++) exact_dot[row] += p[row * keys + i] * (double)dp[row * ld + i];
        for (size_t i = 0; i < keys; i++)
            ds[row * keys + i] =
                i < seen ? p[row * keys + i] * ((double)dp[row * ld + i] - exact_dot[row]) * (double)scale
                         : 0;
        dot[row] = (real_t)exact_dot[row];
    }
    static buffer_t scores;
    scores = bs;
    k->attention_softmax(rows, keys, ld, first, scale, s, lse);
    for (size_t row = 0; row < rows; row++) near("softmax", keys, s + row * ld, p + row * keys, keys, 1);
    bs = scores;
    k->attention_softmax_backward(rows, keys, ld, first, scale, lse, dot, s, dp);
    for (size_t row = 0; row < rows; row++) {
        near("softmax again", keys, s + row * ld, p + row * keys, keys, 1);
        near("d scores", keys, dp + row * ld, ds + row * keys, keys, 1);
    }
}

static void test_layernorm(void **state)
{
    (void)state;
    over_all(check_layernorm);
}

static void test_gelu(void **state)
{
    (void)state;
    over_all(check_gelu);
}

static void test_sums(void **state)
{
    (void)state;
    over_all(check_sums);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    over_all(check_cross_entropy);
}

static void test_attention(void **state)
{
    (void)state;
    over_all(check_attention);
}

/* Accuracy of the exponential over its range, through the loss of two classes: sigmoid(x) = 1 - d. */
static void test_exponential(void **state)
{
    (void)state;
    cpu_isa_t best = cpu_isa();
    double bound = sizeof(real_t) == 4 ? 4e-7 : 4e-16;
    for (int isa = 0; isa <= (int)best; isa++) {
        const kernels_t *k = REAL(kernels_get)((cpu_isa_t)isa);
        for (double x = -80; x <= 0; x += 0.0371) {
            real_t logits[2] = {0, (real_t)x};
            uint32_t target = 0;
            double loss, e = exp((double)logits[1]);
            k->cross_entropy(1, 2, &target, true, 1, logits, &loss, NULL);
            double expected = e / (1 + e);
            if (!(fabs((double)logits[1] - expected) <= bound * expected))
                fail_msg("%s: exp(%g) is off by %g", cpu_isa_name((cpu_isa_t)isa), x,
                         ((double)logits[1] - expected) / expected);
        }
    }
}

static void test_embedding(void **state)
{
    (void)state;
    enum { TOKENS = 4, TIME = 3, SAMPLES = 2 };
    static const uint32_t TOKEN[TIME * SAMPLES] = {3, 0, 3, 1, 3, 2};
    cpu_isa_t best = cpu_isa();
    rng_seed(&rng, 6, 0);
    for (int isa = 0; isa <= (int)best; isa++) {
        for (size_t n = 1; n < 40; n += 6) {
            static buffer_t bt, bp, by;
            real_t *table = fill(&bt, 1), *position = fill(&bp, 1), *y = fill(&by, 1);
            const kernels_t *k = REAL(kernels_get)((cpu_isa_t)isa);
            k->embed(TIME * SAMPLES, n, TIME, TOKEN, table, position, y);
            for (size_t i = 0; i < TIME * SAMPLES * n; i++)
                assert_true(y[i] == table[TOKEN[i / n] * n + i % n] + position[i / n % TIME * n + i % n]);
            real_t dt[TOKENS * 40], dp[TIME * 40], et[TOKENS * 40], ep[TIME * 40];
            for (size_t i = 0; i < TOKENS * n; i++) dt[i] = et[i] = 1;
            for (size_t i = 0; i < TIME * n; i++) dp[i] = ep[i] = 2;
            size_t part = (n + 1) / 2;
            for (size_t i = 0; i < TIME * SAMPLES * n; i++)
                if (i % n < part) et[TOKEN[i / n] * n + i % n] += y[i], ep[i / n % TIME * n + i % n] += y[i];
            k->embed_backward(TIME * SAMPLES, n, part, TIME, TOKEN, y, dt, dp);
            assert_memory_equal(dt, et, TOKENS * n * sizeof(real_t));
            assert_memory_equal(dp, ep, TIME * n * sizeof(real_t));
        }
    }
}

/* im2col against its definition; col2im is its transpose: <im2col(x), c> = <x, col2im(c)>. */
static void check_columns(const kernels_t *k, size_t height, size_t width)
{
    enum { CHANNELS = 2, MOST = CHANNELS * 9 * 9 * 19 };
    static real_t x[MOST], columns[MOST], c[MOST], dx[MOST];
    size_t area = height * width;
    for (size_t i = 0; i < MOST; i++) x[i] = (real_t)rng_normal(&rng), c[i] = (real_t)rng_normal(&rng);
    k->im2col(CHANNELS, height, width, x, columns);
    double left = 0, right = 0, size = 0;
    for (size_t i = 0; i < CHANNELS * 9 * area; i++) {
        size_t channel = i / (9 * area), row = i / width % height, column = i % width;
        long from_row = (long)row + (long)(i / area % 9 / 3) - 1,
             from = (long)column + (long)(i / area % 3) - 1;
        bool inside = from_row >= 0 && from_row < (long)height && from >= 0 && from < (long)width;
        real_t expected = inside ? x[channel * area + (size_t)from_row * width + (size_t)from] : 0;
        if (columns[i] != expected) fail_msg("im2col %zux%zu: element %zu", height, width, i);
        left += (double)columns[i] * (double)c[i];
        size += fabs((double)columns[i] * (double)c[i]);
    }
    k->col2im(CHANNELS, height, width, c, dx);
    for (size_t i = 0; i < CHANNELS * area; i++) right += (double)x[i] * (double)dx[i];
    assert_true(fabs(left - right) <= TINY * (1 + size));
}

static void test_columns(void **state)
{
    (void)state;
    rng_seed(&rng, 7, 0);
    cpu_isa_t best = cpu_isa();
    for (int isa = 0; isa <= (int)best; isa++)
        for (size_t height = 1; height <= 9; height += 2)
            for (size_t width = 1; width <= 19; width += 3)
                check_columns(REAL(kernels_get)((cpu_isa_t)isa), height, width);
}

static void test_relu_pool(void **state)
{
    (void)state;
    enum {
        FILTERS = 2,
        HEIGHT = 5,
        WIDTH = 7,
        ROWS2 = HEIGHT / 2,
        COLUMNS2 = WIDTH / 2,
        OUT = ROWS2 * COLUMNS2
    };
    rng_seed(&rng, 8, 0);
    cpu_isa_t best = cpu_isa();
    for (int isa = 0; isa <= (int)best; isa++) {
        const kernels_t *k = REAL(kernels_get)((cpu_isa_t)isa);
        real_t x[FILTERS * HEIGHT * WIDTH], y[FILTERS * OUT], dy[FILTERS * OUT], dx[FILTERS * HEIGHT * WIDTH];
        real_t bias[FILTERS] = {(real_t)0.25, (real_t)-0.5}, dbias[FILTERS] = {1, 2};
        uint8_t which[FILTERS * OUT];
        for (size_t i = 0; i < FILTERS * HEIGHT * WIDTH; i++) x[i] = (real_t)rng_normal(&rng), dx[i] = 9;
        for (size_t i = 0; i < FILTERS * OUT; i++) dy[i] = (real_t)rng_normal(&rng);
        k->relu_pool_forward(FILTERS, HEIGHT, WIDTH, x, bias, y, which);
        k->relu_pool_backward(FILTERS, HEIGHT, WIDTH, dy, y, which, dx, dbias);
        double sums[FILTERS] = {1, 2}, total = 0, found = 0;
        for (size_t i = 0; i < FILTERS * OUT; i++) {
            size_t filter = i / OUT, row = i % OUT / COLUMNS2, column = i % COLUMNS2;
            size_t at = filter * HEIGHT * WIDTH + 2 * row * WIDTH + 2 * column;
            size_t places[4] = {at, at + 1, at + WIDTH, at + WIDTH + 1}, largest = 0;
            for (size_t p = 1; p < 4; p++) largest = x[places[p]] > x[places[largest]] ? p : largest;
            real_t expected = x[places[largest]] + bias[filter];
            assert_true(y[i] == (expected > 0 ? expected : 0));
            for (size_t p = 0; p < 4; p++)
                assert_true(dx[places[p]] == (p == largest && expected > 0 ? dy[i] : 0));
            if (expected > 0) sums[filter] += (double)dy[i], total += (double)dy[i];
        }
        for (size_t i = 0; i < FILTERS * HEIGHT * WIDTH; i++)
            found += (double)dx[i]; /* nothing in the odd edge */
        assert_true(fabs(found - total) <= 10 * TINY);
        near("d bias", WIDTH, dbias, sums, FILTERS, 5);
        x[8] = (real_t)NAN; /* the last of the first four: a NaN is never passed over */
        k->relu_pool_forward(FILTERS, HEIGHT, WIDTH, x, bias, y, which);
        assert_true(y[0] != y[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layernorm), cmocka_unit_test(test_gelu),
                                       cmocka_unit_test(test_sums),      cmocka_unit_test(test_cross_entropy),
                                       cmocka_unit_test(test_attention), cmocka_unit_test(test_exponential),
                                       cmocka_unit_test(test_embedding), cmocka_unit_test(test_columns),
                                       cmocka_unit_test(test_relu_pool)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
