/* Every layer on its own, fp64: against figures from PyTorch and against finite differences, on one thread
 * and three. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/compute.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"

#define FIGURES "tests/data/torch_layers.json"
#define MOST    2048 /* numbers in one array */
#define INPUTS  3

/* A layer as the tests see it: y = f(inputs), and gradients of the inputs for a given dy. */
typedef struct layer {
    const char *name; /* in the figures */
    const char *inputs[INPUTS];
    size_t sizes[INPUTS], n_y;
    void (*forward)(const compute_t *c, const double *const *x, double *y);
    void (*backward)(const compute_t *c, const double *const *x, const double *dy, double **dx);
} layer_t;

static json_t *figures;

/* ---- The layers, in the sizes of the figures ------------------------------------------------- */

enum { L_ROWS = 5, L_IN = 7, L_OUT = 9 };

static void linear(const compute_t *c, const double *const *x, double *y)
{
    REAL(linear_forward)(c, L_ROWS, L_IN, L_OUT, x[0], x[1], 0, y);
    REAL(bias_add)(c, L_ROWS, L_OUT, x[2], y);
}

static void linear_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    REAL(linear_backward_input)(c, L_ROWS, L_IN, L_OUT, dy, x[1], dx[0]);
    REAL(linear_backward_weight)(c, L_ROWS, L_IN, L_OUT, x[0], dy, dx[1]);
    REAL(bias_backward)(c, L_ROWS, L_OUT, dy, dx[2]);
}

enum { N_ROWS = 4, N_WIDTH = 19 };

static void layernorm(const compute_t *c, const double *const *x, double *y)
{
    double mean[N_ROWS], rstd[N_ROWS];
    REAL(layernorm_forward)(c, N_ROWS, N_WIDTH, x[0], x[1], x[2], y, mean, rstd);
}

static void layernorm_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    double mean[N_ROWS], rstd[N_ROWS], y[N_ROWS * N_WIDTH];
    REAL(layernorm_forward)(c, N_ROWS, N_WIDTH, x[0], x[1], x[2], y, mean, rstd);
    REAL(layernorm_backward)(c, N_ROWS, N_WIDTH, dy, x[0], x[1], mean, rstd, false, dx[0], dx[1], dx[2]);
}

enum { G_ROWS = 4, G_WIDTH = 21 };

static void gelu(const compute_t *c, const double *const *x, double *y)
{
    double before[G_ROWS * G_WIDTH];
    memcpy(before, x[0], sizeof before);
    REAL(bias_gelu)(c, G_ROWS, G_WIDTH, x[1], before, y);
}

static void gelu_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    double with_bias[G_ROWS * G_WIDTH];
    REAL(bias_sum)(c, G_ROWS, G_WIDTH, x[0], x[1], with_bias);
    memcpy(dx[0], dy, sizeof with_bias);
    REAL(gelu_backward)(c, G_ROWS, G_WIDTH, with_bias, dx[0], dx[1]);
}

enum { A_SAMPLES = 2, A_TIME = 7, A_HEADS = 2, A_HEAD = 3, A_OUT = A_SAMPLES * A_TIME * A_HEADS * A_HEAD };

static attention_t attention_shape(void)
{
    static double scratch[3 * 8192];
    assert_true(REAL(attention_scratch)(A_TIME) <= 8192);
    return (attention_t){A_SAMPLES, A_TIME, A_HEADS, A_HEAD, scratch};
}

static void attention(const compute_t *c, const double *const *x, double *y)
{
    double lse[A_SAMPLES * A_HEADS * A_TIME];
    attention_t shape = attention_shape();
    REAL(attention_forward)(c, &shape, x[0], y, lse);
}

static void attention_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    double lse[A_SAMPLES * A_HEADS * A_TIME], y[A_OUT];
    attention_t shape = attention_shape();
    REAL(attention_forward)(c, &shape, x[0], y, lse);
    REAL(attention_backward)(c, &shape, x[0], y, lse, dy, dx[0]);
}

enum { E_ROWS = 6, E_TIME = 3, E_TOKENS = 5, E_WIDTH = 6 };
static const uint32_t EMBEDDED[E_ROWS] = {4, 0, 4, 1, 2, 4};

static void embedding(const compute_t *c, const double *const *x, double *y)
{
    c->kernels->embed(E_ROWS, E_WIDTH, E_TIME, EMBEDDED, x[0], x[1], y);
}

static void embedding_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    (void)x;
    c->kernels->embed_backward(E_ROWS, E_WIDTH, E_WIDTH, E_TIME, EMBEDDED, dy, dx[0], dx[1]);
}

enum { C_ROWS = 5, C_CLASSES = 9 };
static const uint32_t TARGETS[C_ROWS] = {0, 8, 3, 3, 5};

static void cross_entropy(const compute_t *c, const double *const *x, double *y)
{
    double logits[C_ROWS * C_CLASSES];
    memcpy(logits, x[0], sizeof logits);
    REAL(cross_entropy)(c, C_ROWS, C_CLASSES, TARGETS, false, 1, logits, y, NULL);
}

/* dy differs from row to row here: one call for each. */
static void cross_entropy_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    double loss;
    memcpy(dx[0], x[0], C_ROWS * C_CLASSES * sizeof(double));
    for (size_t row = 0; row < C_ROWS; row++) REAL(cross_entropy)
    (c, 1, C_CLASSES, TARGETS + row, true, dy[row], dx[0] + row * C_CLASSES, &loss, NULL);
}

enum { V_SAMPLES = 2, V_CHANNELS = 2, V_HEIGHT = 7, V_WIDTH = 6, V_FILTERS = 3 };
enum {
    V_AREA = V_HEIGHT * V_WIDTH,
    V_OUT = V_FILTERS * (V_HEIGHT / 2) * (V_WIDTH / 2),
    V_DEPTH = 9 * V_CHANNELS
};

static void convolve(const compute_t *c, const double *const *x, size_t sample, double *columns, double *y,
                     uint8_t *which)
{
    double before[V_FILTERS * V_AREA];
    c->kernels->im2col(V_CHANNELS, V_HEIGHT, V_WIDTH, x[0] + sample * V_CHANNELS * V_AREA, columns);
    c->gemm(false, false, V_FILTERS, V_AREA, V_DEPTH, 1, x[1], V_DEPTH, columns, V_AREA, 0, before, V_AREA);
    c->kernels->relu_pool_forward(V_FILTERS, V_HEIGHT, V_WIDTH, before, x[2], y, which);
}

static void conv(const compute_t *c, const double *const *x, double *y)
{
    double columns[V_DEPTH * V_AREA];
    uint8_t which[V_OUT];
    for (size_t i = 0; i < V_SAMPLES; i++) convolve(c, x, i, columns, y + i * V_OUT, which);
}

static void conv_back(const compute_t *c, const double *const *x, const double *dy, double **dx)
{
    double columns[V_DEPTH * V_AREA], y[V_OUT], before[V_FILTERS * V_AREA];
    uint8_t which[V_OUT];
    for (size_t i = 0; i < V_SAMPLES; i++) {
        convolve(c, x, i, columns, y, which);
        c->kernels->relu_pool_backward(V_FILTERS, V_HEIGHT, V_WIDTH, dy + i * V_OUT, y, which, before, dx[2]);
        c->gemm(false, true, V_FILTERS, V_DEPTH, V_AREA, 1, before, V_AREA, columns, V_AREA, 1, dx[1],
                V_DEPTH);
        c->gemm(true, false, V_DEPTH, V_AREA, V_FILTERS, 1, x[1], V_DEPTH, before, V_AREA, 0, columns,
                V_AREA);
        c->kernels->col2im(V_CHANNELS, V_HEIGHT, V_WIDTH, columns, dx[0] + i * V_CHANNELS * V_AREA);
    }
}

static const layer_t LAYERS[] = {
    {"linear", {"x", "w", "b"}, {L_ROWS * L_IN, L_IN *L_OUT, L_OUT}, L_ROWS *L_OUT, linear, linear_back},
    {"layernorm",
     {"x", "gamma", "beta"},
     {N_ROWS * N_WIDTH, N_WIDTH, N_WIDTH},
     N_ROWS *N_WIDTH,
     layernorm,
     layernorm_back},
    {"gelu", {"x", "b"}, {G_ROWS * G_WIDTH, G_WIDTH}, G_ROWS *G_WIDTH, gelu, gelu_back},
    {"attention", {"qkv"}, {3 * A_OUT}, A_OUT, attention, attention_back},
    {"embedding",
     {"wte", "wpe"},
     {E_TOKENS * E_WIDTH, E_TIME *E_WIDTH},
     E_ROWS *E_WIDTH,
     embedding,
     embedding_back},
    {"cross_entropy", {"x"}, {C_ROWS * C_CLASSES}, C_ROWS, cross_entropy, cross_entropy_back},
    {"conv",
     {"x", "w", "b"},
     {V_SAMPLES * V_CHANNELS * V_AREA, V_FILTERS *V_DEPTH, V_FILTERS},
     V_SAMPLES *V_OUT,
     conv,
     conv_back}};
#define N_LAYERS (sizeof LAYERS / sizeof LAYERS[0])

/* ---- Harness --------------------------------------------------------------------------------- */

typedef struct bench {
    nn_model_t model; /* only pool and threads are in use */
    compute_t compute;
    char *memory;
} bench_t;

static void open_bench(bench_t *b, uint32_t threads)
{
    inspan_error_t err;
    *b = (bench_t){.model.threads = threads};
    if (pool_open(threads, NULL, &b->model.pool, &err) != INSPAN_OK) fail_msg("%s", err.text);
    b->memory = aligned_alloc(64, 1 << 20);
    arena_t arena = {.base = b->memory};
    REAL(compute_init)(&b->compute, &b->model, MOST, &arena);
    assert_true(arena.used <= 1 << 20);
}

static void close_bench(bench_t *b)
{
    pool_close(b->model.pool);
#if ARENA_GAP
    __asan_unpoison_memory_region(b->memory, 1 << 20);
#endif
    free(b->memory);
}

static void read_numbers(const json_t *entry, const char *prefix, const char *name, double *x, size_t n)
{
    char key[32] = "";
    strcat(strcat(key, prefix), name);
    const json_t *array = json_get(entry, key);
    if (array == NULL || json_size(array) != n) fail_msg("figures of %s: expected %zu numbers", key, n);
    size_t i = 0;
    for (const json_t *value = json_first(array); value != NULL; value = json_next(value))
        x[i++] = json_number(value, NAN);
}

static void near(const char *layer, const char *what, const double *found, const double *expected, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    if (!(difference <= 1e-24 * size))
        fail_msg("%s: %s is off by %g of its length", layer, what, sqrt(difference / size));
}

static double inputs[INPUTS][MOST], gradients[INPUTS][MOST], y[MOST], dy[MOST], expected[MOST];

static void run_backward(const layer_t *l, const bench_t *b)
{
    const double *const x[INPUTS] = {inputs[0], inputs[1], inputs[2]};
    double *dx[INPUTS] = {gradients[0], gradients[1], gradients[2]};
    memset(gradients, 0, sizeof gradients);
    l->backward(&b->compute, x, dy, dx);
}

static double loss(const layer_t *l, const bench_t *b)
{
    const double *const x[INPUTS] = {inputs[0], inputs[1], inputs[2]};
    l->forward(&b->compute, x, y);
    double sum = 0;
    for (size_t i = 0; i < l->n_y; i++) sum += y[i] * dy[i];
    return sum;
}

static void check_torch(const layer_t *l, const bench_t *b)
{
    const json_t *entry = json_get(json_get(figures, "layers"), l->name);
    if (entry == NULL) fail_msg("no figures of %s", l->name);
    for (int i = 0; i < INPUTS && l->inputs[i] != NULL; i++)
        read_numbers(entry, "", l->inputs[i], inputs[i], l->sizes[i]);
    read_numbers(entry, "", "dy", dy, l->n_y);
    read_numbers(entry, "", "y", expected, l->n_y);
    loss(l, b);
    near(l->name, "y", y, expected, l->n_y);
    run_backward(l, b);
    for (int i = 0; i < INPUTS && l->inputs[i] != NULL; i++) {
        read_numbers(entry, "d", l->inputs[i], expected, l->sizes[i]);
        near(l->name, l->inputs[i], gradients[i], expected, l->sizes[i]);
    }
}

/* At every number of every input; the figures' inputs are still there. */
static void check_differences(const layer_t *l, const bench_t *b)
{
    const double h = 1e-5;
    for (int i = 0; i < INPUTS && l->inputs[i] != NULL; i++) {
        for (size_t j = 0; j < l->sizes[i]; j++) {
            double kept = inputs[i][j];
            inputs[i][j] = kept + h;
            double more = loss(l, b);
            inputs[i][j] = kept - h;
            double less = loss(l, b);
            inputs[i][j] = kept;
            double difference = (more - less) / (2 * h);
            if (!(fabs(gradients[i][j] - difference) <= 1e-7 + 1e-7 * fabs(difference)))
                fail_msg("%s: d%s[%zu] is %.12g, finite difference %.12g", l->name, l->inputs[i], j,
                         gradients[i][j], difference);
        }
    }
}

static void test_layers(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        bench_t b;
        open_bench(&b, threads);
        for (size_t i = 0; i < N_LAYERS; i++) {
            check_torch(&LAYERS[i], &b);
            check_differences(&LAYERS[i], &b);
        }
        close_bench(&b);
    }
}

/* Gradients of weights are added to what is there; the others replace it. */
static void test_weights_accumulate(void **state)
{
    (void)state;
    bench_t b;
    open_bench(&b, 3);
    for (size_t i = 0; i < 3; i++) { /* linear, layernorm, gelu */
        const layer_t *l = &LAYERS[i];
        check_torch(l, &b);
        static double once[INPUTS][MOST];
        memcpy(once, gradients, sizeof once);
        const double *const x[INPUTS] = {inputs[0], inputs[1], inputs[2]};
        double *dx[INPUTS] = {gradients[0], gradients[1], gradients[2]};
        l->backward(&b.compute, x, dy, dx);
        near(l->name, l->inputs[0], gradients[0], once[0], l->sizes[0]);
        for (int p = 1; p < INPUTS && l->inputs[p] != NULL; p++) {
            for (size_t j = 0; j < l->sizes[p]; j++) once[p][j] *= 2;
            near(l->name, l->inputs[p], gradients[p], once[p], l->sizes[p]);
        }
    }
    close_bench(&b);
}

static int read_figures(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    inspan_error_t err;
    if (os_file_read(FIGURES, 1 << 20, &text, &bytes, &err) != INSPAN_OK) fail_msg("%s", err.text);
    if (json_parse(text, bytes, &figures, &err) != INSPAN_OK) fail_msg("%s: %s", FIGURES, err.text);
    free(text);
    return 0;
}

static int free_figures(void **state)
{
    (void)state;
    json_free(figures);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_weights_accumulate)};
    return cmocka_run_group_tests(tests, read_figures, free_figures);
}
