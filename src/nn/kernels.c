#include "nn/kernels.h"

#include "nn/kernels_gemm.h"
#include "nn/simd.h"

static void layernorm_forward(size_t rows, size_t n, const real_t *x, const real_t *gamma, const real_t *beta,
                              real_t *y, real_t *mean, real_t *rstd)
{
    for (size_t row = 0; row < rows; row++, x += n, y += n) {
        vec_real_t sum = {0}, squares = {0};
        FOR_VECTORS(i, w, n) sum += v_load_part(x + i, w, 0);
        real_t m = v_sum(sum) / (real_t)n;
        /* Around the mean: the difference of two large sums would lose all digits where |mean| >> deviation.
         */
        FOR_VECTORS(i, w, n)
        {
            vec_real_t d = v_load_part(x + i, w, m) - m;
            squares += d * d;
        }
        real_t r = 1 / (real_t)sqrt((double)(v_sum(squares) / (real_t)n) + NN_LAYERNORM_EPS);
        FOR_VECTORS(i, w, n)
        {
            vec_real_t normal = (v_load_part(x + i, w, 0) - m) * r;
            v_store_part(y + i, w, normal * v_load_part(gamma + i, w, 0) + v_load_part(beta + i, w, 0));
        }
        mean[row] = m;
        rstd[row] = r;
    }
}

/* dx = rstd (g - mean(g) - normal mean(g normal)), g = dy gamma (Ba, Kiros, Hinton 2016). */
static void layernorm_backward(size_t rows, size_t n, const real_t *dy, const real_t *x, const real_t *gamma,
                               const real_t *mean, const real_t *rstd, bool add, real_t *dx, real_t *dgamma,
                               real_t *dbeta)
{
    for (size_t row = 0; row < rows; row++, dy += n, x += n, dx += n) {
        real_t m = mean[row], r = rstd[row];
        vec_real_t sum = {0}, sum_normal = {0};
        FOR_VECTORS(i, w, n)
        {
            vec_real_t d = v_load_part(dy + i, w, 0);
            vec_real_t normal = (v_load_part(x + i, w, m) - m) * r;
            vec_real_t d_normal = d * normal, g = v_load_part(gamma + i, w, 0);
            v_store_part(dbeta + i, w, v_load_part(dbeta + i, w, 0) + d);
            v_store_part(dgamma + i, w, v_load_part(dgamma + i, w, 0) + d_normal);
            sum += d * g;
            sum_normal += d_normal * g;
        }
        real_t a = v_sum(sum) / (real_t)n, b = v_sum(sum_normal) / (real_t)n;
        FOR_VECTORS(i, w, n)
        {
            vec_real_t normal = (v_load_part(x + i, w, 0) - m) * r;
            vec_real_t g = v_load_part(dy + i, w, 0) * v_load_part(gamma + i, w, 0);
            vec_real_t d = (g - a - normal * b) * r;
            v_store_part(dx + i, w, add ? v_load_part(dx + i, w, 0) + d : d);
        }
    }
}

static void sum_bias(size_t rows, size_t n, const real_t *x, const real_t *bias, real_t *y)
{
    for (size_t row = 0; row < rows; row++, x += n, y += n)
        FOR_VECTORS(i, w, n) v_store_part(y + i, w, v_load_part(x + i, w, 0) + v_load_part(bias + i, w, 0));
}

static void add_bias(size_t rows, size_t n, const real_t *bias, real_t *x)
{
    sum_bias(rows, n, x, bias, x);
}

/* Columns outside: the sums stay in registers, and each line of x is still read once. */
static void column_sum(size_t rows, size_t n, size_t ld, const real_t *x, real_t *sum)
{
    size_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        vec_real_t s0 = v_load(sum + i), s1 = v_load(sum + i + LANES);
        vec_real_t s2 = v_load(sum + i + 2 * LANES), s3 = v_load(sum + i + 3 * LANES);
        const real_t *p = x + i;
        for (size_t row = 0; row < rows; row++, p += ld) {
            s0 += v_load(p);
            s1 += v_load(p + LANES);
            s2 += v_load(p + 2 * LANES);
            s3 += v_load(p + 3 * LANES);
        }
        v_store(sum + i, s0);
        v_store(sum + i + LANES, s1);
        v_store(sum + i + 2 * LANES, s2);
        v_store(sum + i + 3 * LANES, s3);
    }
    for (; i < n; i += LANES) {
        size_t w = n - i < LANES ? n - i : LANES;
        vec_real_t s = v_load_part(sum + i, w, 0);
        for (size_t row = 0; row < rows; row++) s += v_load_part(x + row * ld + i, w, 0);
        v_store_part(sum + i, w, s);
    }
}

static void add(size_t n, const real_t *x, real_t *y)
{
    FOR_VECTORS(i, w, n) v_store_part(y + i, w, v_load_part(y + i, w, 0) + v_load_part(x + i, w, 0));
}

/* 2 u = x (A + B x^2); sigmoid keeps its relative accuracy where 1 + tanh(u) cancels. */
#define GELU_A ((real_t)1.59576912160573071176)
#define GELU_B ((real_t)0.07135481627260024878)

static inline vec_real_t gelu_sigmoid(vec_real_t x)
{
    return (real_t)1 / ((real_t)1 + v_exp(-x * (GELU_A + GELU_B * (x * x))));
}

static void bias_gelu_forward(size_t rows, size_t n, const real_t *bias, real_t *x, real_t *y)
{
    for (size_t row = 0; row < rows; row++, x += n, y += n) {
        FOR_VECTORS(i, w, n)
        {
            vec_real_t v = v_load_part(x + i, w, 0) + v_load_part(bias + i, w, 0);
            v_store_part(x + i, w, v);
            v_store_part(y + i, w, v * gelu_sigmoid(v));
        }
    }
}

static void gelu_backward(size_t rows, size_t n, const real_t *x, real_t *d, real_t *dbias)
{
    for (size_t row = 0; row < rows; row++, x += n, d += n) {
        FOR_VECTORS(i, w, n)
        {
            vec_real_t v = v_load_part(x + i, w, 0), s = gelu_sigmoid(v);
            vec_real_t slope = v * (GELU_A + 3 * GELU_B * (v * v)); /* x d(2u)/dx */
            vec_real_t g = v_load_part(d + i, w, 0) * (s + s * (1 - s) * slope);
            v_store_part(d + i, w, g);
            v_store_part(dbias + i, w, v_load_part(dbias + i, w, 0) + g);
        }
    }
}

/* Lanes of a vector at column i that are before `seen`. */
static inline vec_int_t lanes_before(size_t i, size_t seen)
{
    return v_count_from(0) < (real_int_t)(seen - i);
}

/* Whole vectors throughout: what lies beyond `seen` is masked, never read into a result. */
static void attention_softmax(size_t rows, size_t keys, size_t ld, size_t first, real_t scale, real_t *s,
                              real_t *lse)
{
    for (size_t row = 0; row < rows; row++, s += ld) {
        size_t seen = first + row + 1, i;
        vec_real_t lowest = v_set((real_t)-INFINITY), most = lowest, sum = {0}, zero = {0};
        for (i = 0; i < seen; i += LANES) {
            vec_real_t v = v_select(lanes_before(i, seen), v_load(s + i), lowest);
            most = v_select(most > v, most, v);
        }
        real_t top = v_largest(most) * scale;
        for (i = 0; i < seen; i += LANES) {
            vec_real_t e = v_select(lanes_before(i, seen), v_exp(v_load(s + i) * scale - top), zero);
            v_store(s + i, e);
            sum += e;
        }
        real_t total = v_sum(sum), one_over = 1 / total;
        for (i = 0; i < seen; i += LANES) v_store(s + i, v_load(s + i) * one_over);
        for (; i < keys; i += LANES) v_store(s + i, zero);
        lse[row] = top + (real_t)log((double)total);
    }
}

static void attention_softmax_backward(size_t rows, size_t keys, size_t ld, size_t first, real_t scale,
                                       const real_t *lse, const real_t *dot, real_t *s, real_t *dp)
{
    for (size_t row = 0; row < rows; row++, s += ld, dp += ld) {
        size_t seen = first + row + 1, i;
        vec_real_t zero = {0};
        for (i = 0; i < seen; i += LANES) {
            vec_int_t mask = lanes_before(i, seen);
            vec_real_t p = v_select(mask, v_exp(v_load(s + i) * scale - lse[row]), zero);
            v_store(s + i, p);
            v_store(dp + i, v_select(mask, p * (v_load(dp + i) - dot[row]) * scale, zero));
        }
        for (; i < keys; i += LANES) {
            v_store(s + i, zero);
            v_store(dp + i, zero);
        }
    }
}

static void row_dot(size_t rows, size_t n, size_t ld, const real_t *x, const real_t *y, real_t *dot)
{
    for (size_t row = 0; row < rows; row++, x += ld, y += ld) {
        vec_real_t sum = {0};
        FOR_VECTORS(i, w, n) sum += v_load_part(x + i, w, 0) * v_load_part(y + i, w, 0);
        dot[row] = v_sum(sum);
    }
}

static bool is_first_largest(size_t n, const real_t *x, size_t index)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] > x[index] || (i < index && x[i] == x[index])) return false;
    return x[index] == x[index];
}

static void cross_entropy(size_t rows, size_t classes, const uint32_t *target, bool gradient, real_t scale,
                          real_t *logits, double *loss, bool *hit)
{
    for (size_t row = 0; row < rows; row++, logits += classes) {
        vec_real_t most = v_set((real_t)-INFINITY), sum = {0};
        FOR_VECTORS(i, w, classes)
        {
            vec_real_t v = v_load_part(logits + i, w, (real_t)-INFINITY);
            most = v_select(most > v, most, v);
        }
        real_t top = v_largest(most), chosen = logits[target[row]];
        if (hit != NULL) hit[row] = is_first_largest(classes, logits, target[row]);
        FOR_VECTORS(i, w, classes)
        {
            v_store_part(logits + i, w, v_exp(v_load_part(logits + i, w, 0) - top));
            sum += v_load_part(logits + i, w, 0);
        }
        real_t total = v_sum(sum), factor = scale / total;
        loss[row] = log((double)total) + ((double)top - (double)chosen);
        if (!gradient) continue;
        FOR_VECTORS(i, w, classes) v_store_part(logits + i, w, v_load_part(logits + i, w, 0) * factor);
        logits[target[row]] -= scale;
    }
}

static void embed(size_t rows, size_t n, size_t time, const uint32_t *token, const real_t *token_table,
                  const real_t *position_table, real_t *y)
{
    for (size_t row = 0; row < rows; row++, y += n)
        sum_bias(1, n, token_table + token[row] * n, position_table + row % time * n, y);
}

static void embed_backward(size_t rows, size_t n, size_t width, size_t time, const uint32_t *token,
                           const real_t *dy, real_t *dtoken_table, real_t *dposition_table)
{
    for (size_t row = 0; row < rows; row++, dy += n) {
        add(width, dy, dtoken_table + token[row] * n);
        add(width, dy, dposition_table + row % time * n);
    }
}

/* One row of one neighbour: out[x] = in[x + shift], zero where x + shift is outside. */
static void shift_row(size_t width, int shift, const real_t *in, real_t *out)
{
    size_t left = shift<0, right = shift> 0;
    if (left) out[0] = 0;
    if (width > left + right) memcpy(out + left, in + right, (width - left - right) * sizeof *out);
    if (right) out[width - 1] = 0;
}

static void im2col(size_t channels, size_t height, size_t width, const real_t *x, real_t *columns)
{
    for (size_t channel = 0; channel < channels; channel++, x += height * width) {
        for (int dy = -1; dy <= 1; dy++) {
            for (int dx = -1; dx <= 1; dx++) {
                for (size_t row = 0; row < height; row++, columns += width) {
                    bool outside = (dy < 0 && row == 0) || (dy > 0 && row + 1 == height);
                    if (outside)
                        memset(columns, 0, width * sizeof *columns);
                    else
                        shift_row(width, dx, x + (row + (size_t)(dy + 1) - 1) * width, columns);
                }
            }
        }
    }
}

static void col2im(size_t channels, size_t height, size_t width, const real_t *columns, real_t *dx)
{
    memset(dx, 0, channels * height * width * sizeof *dx);
    for (size_t channel = 0; channel < channels; channel++, dx += height * width) {
        for (int down = -1; down <= 1; down++) {
            for (int across = -1; across <= 1; across++) {
                size_t left = across<0, right = across> 0;
                for (size_t row = 0; row < height; row++, columns += width) {
                    bool outside = (down < 0 && row == 0) || (down > 0 && row + 1 == height);
                    if (outside || width <= left + right) continue;
                    real_t *line = dx + (row + (size_t)(down + 1) - 1) * width;
                    add(width - left - right, columns + left, line + right);
                }
            }
        }
    }
}

/* x is larger, or a NaN: once `most` is a NaN it stays. */
static inline bool exceeds(real_t x, real_t most)
{
    return !(x <= most) && most == most;
}

/* relu and max change places freely: the largest is found first and cut at 0 once. */
static void relu_pool_forward(size_t filters, size_t height, size_t width, const real_t *x,
                              const real_t *bias, real_t *y, uint8_t *which)
{
    size_t rows = height / 2, columns = width / 2;
    for (size_t filter = 0; filter < filters; filter++, x += height * width) {
        for (size_t row = 0; row < rows; row++, y += columns, which += columns) {
            const real_t *top = x + 2 * row * width, *bottom = top + width;
            for (size_t i = 0; i < columns; i++) {
                real_t most = top[2 * i];
                uint8_t at = 0;
                if (exceeds(top[2 * i + 1], most)) most = top[2 * i + 1], at = 1;
                if (exceeds(bottom[2 * i], most)) most = bottom[2 * i], at = 2;
                if (exceeds(bottom[2 * i + 1], most)) most = bottom[2 * i + 1], at = 3;
                most += bias[filter];
                y[i] = most < 0 ? 0 : most;
                which[i] = at;
            }
        }
    }
}

static void relu_pool_backward(size_t filters, size_t height, size_t width, const real_t *dy, const real_t *y,
                               const uint8_t *which, real_t *dx, real_t *dbias)
{
    size_t rows = height / 2, columns = width / 2;
    memset(dx, 0, filters * height * width * sizeof *dx);
    for (size_t filter = 0; filter < filters; filter++, dx += height * width) {
        real_t sum = 0;
        for (size_t row = 0; row < rows; row++, y += columns, dy += columns, which += columns) {
            for (size_t i = 0; i < columns; i++) {
                if (y[i] <= 0) continue;
                dx[(2 * row + which[i] / 2) * width + 2 * i + which[i] % 2] = dy[i];
                sum += dy[i];
            }
        }
        dbias[filter] += sum;
    }
}

extern const kernels_t KERNEL(kernels);

const kernels_t KERNEL(kernels) = {
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .add_bias = add_bias,
    .sum_bias = sum_bias,
    .column_sum = column_sum,
    .add = add,
    .bias_gelu_forward = bias_gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_softmax = attention_softmax,
    .attention_softmax_backward = attention_softmax_backward,
    .row_dot = row_dot,
    .cross_entropy = cross_entropy,
    .embed = embed,
    .embed_backward = embed_backward,
    .im2col = im2col,
    .col2im = col2im,
    .relu_pool_forward = relu_pool_forward,
    .relu_pool_backward = relu_pool_backward,
    .gemm = KERNEL(gemm),
};
