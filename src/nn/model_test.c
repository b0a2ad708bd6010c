/* Whole models: gradients against finite differences, and every promise of nn.h about a pass. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/nn.h"

#define MOST_PARAMS 128

/* ---- Models and data of the tests ------------------------------------------------------------ */

static const nn_model_config_t GPT = {.kind = NN_GPT,
                                      .dtype = NN_FP64,
                                      .seed = 7,
                                      .layers = 2,
                                      .heads = 2,
                                      .dim = 10,
                                      .context = 5,
                                      .vocabulary = 13};
/* More queries than one block of attention, and not a multiple of it. */
static const nn_model_config_t GPT_LONG = {.kind = NN_GPT,
                                           .dtype = NN_FP64,
                                           .seed = 8,
                                           .layers = 1,
                                           .heads = 3,
                                           .dim = 9,
                                           .context = 131,
                                           .vocabulary = 5};
static const nn_model_config_t MLP = {
    .kind = NN_MLP, .dtype = NN_FP64, .seed = 9, .layers = 2, .dim = 11, .inputs = 7, .classes = 3};
static const nn_model_config_t LINEAR = {
    .kind = NN_MLP, .dtype = NN_FP64, .seed = 9, .inputs = 7, .classes = 3};
static const nn_model_config_t CONV = {.kind = NN_CONV,
                                       .dtype = NN_FP64,
                                       .seed = 10,
                                       .channels = 2,
                                       .height = 7,
                                       .width = 10,
                                       .inputs = 140,
                                       .classes = 4,
                                       .filters = 3};

static const struct {
    const char *name;
    const nn_model_config_t *config;
} MODELS[] = {{"gpt", &GPT}, {"gpt, long", &GPT_LONG}, {"mlp", &MLP}, {"linear", &LINEAR}, {"conv", &CONV}};
#define N_MODELS (sizeof MODELS / sizeof MODELS[0])

typedef struct fixture {
    nn_model_config_t config;
    nn_model_t *model;
    const nn_param_t *params;
    uint32_t n;
    uint16_t *tokens;
    double *features;
    float *features32;
    uint32_t *labels;
    void *grads[MOST_PARAMS]; /* in the model's dtype */
} fixture_t;

static size_t element(const nn_model_config_t *config)
{
    return config->dtype == NN_FP32 ? sizeof(float) : sizeof(double);
}

static void open_fixture(fixture_t *f, const nn_model_config_t *config, uint32_t samples, uint32_t threads)
{
    inspan_error_t err;
    *f = (fixture_t){.config = *config};
    if (nn_model_open(config, samples, threads, &f->model, &err) != INSPAN_OK) fail_msg("open: %s", err.text);
    f->n = nn_model_params(f->model, &f->params);
    assert_true(f->n <= MOST_PARAMS);
    for (uint32_t i = 0; i < f->n; i++) f->grads[i] = calloc(f->params[i].count, sizeof(double));
    rng_t rng;
    rng_seed(&rng, 42, 0);
    size_t tokens = (size_t)samples * (config->context + 1), numbers = (size_t)samples * config->inputs;
    f->tokens = calloc(tokens, sizeof *f->tokens);
    f->features = calloc(numbers + 1, sizeof *f->features);
    f->features32 = calloc(numbers + 1, sizeof *f->features32);
    f->labels = calloc(samples, sizeof *f->labels);
    for (size_t i = 0; config->kind == NN_GPT && i < tokens; i++)
        f->tokens[i] = (uint16_t)rng_below(&rng, config->vocabulary);
    for (size_t i = 0; i < numbers; i++) f->features[i] = f->features32[i] = (float)rng_normal(&rng);
    for (size_t i = 0; config->kind != NN_GPT && i < samples; i++)
        f->labels[i] = (uint32_t)rng_below(&rng, config->classes);
}

/* Weights far from their start: biases and norms too must matter, and GELU must not be at its middle. */
static void shake_weights(fixture_t *f)
{
    rng_t rng;
    rng_seed(&rng, 43, 0);
    for (uint32_t i = 0; i < f->n; i++)
        for (uint64_t j = 0; j < f->params[i].count; j++) {
            double change = 0.3 * rng_normal(&rng);
            if (f->config.dtype == NN_FP32)
                ((float *)f->params[i].weights)[j] += (float)change;
            else
                ((double *)f->params[i].weights)[j] += change;
        }
}

static void close_fixture(fixture_t *f)
{
    nn_model_close(f->model);
    for (uint32_t i = 0; i < f->n; i++) free(f->grads[i]);
    free(f->tokens), free(f->features), free(f->features32), free(f->labels);
}

static nn_batch_t batch_of(const fixture_t *f, uint32_t first, uint32_t samples)
{
    const nn_model_config_t *c = &f->config;
    return (nn_batch_t){.samples = samples,
                        .tokens = f->tokens + (size_t)first * (c->context + 1),
                        .features = c->dtype == NN_FP32
                                        ? (const void *)(f->features32 + (size_t)first * c->inputs)
                                        : f->features + (size_t)first * c->inputs,
                        .labels = f->labels + first};
}

static double backward(fixture_t *f, uint32_t first, uint32_t samples, nn_ready_fn ready, void *context)
{
    inspan_error_t err;
    double loss;
    nn_batch_t batch = batch_of(f, first, samples);
    if (nn_model_backward(f->model, &batch, f->grads, ready, context, &loss, &err) != INSPAN_OK)
        fail_msg("backward: %s", err.text);
    return loss;
}

static double evaluate(fixture_t *f, uint32_t samples, uint64_t *correct)
{
    inspan_error_t err;
    double loss;
    nn_batch_t batch = batch_of(f, 0, samples);
    if (nn_model_evaluate(f->model, &batch, &loss, correct, &err) != INSPAN_OK)
        fail_msg("evaluate: %s", err.text);
    return loss;
}

static double grad_at(const fixture_t *f, uint32_t param, uint64_t i)
{
    const void *grad = f->grads[param];
    return f->config.dtype == NN_FP32 ? ((const float *)grad)[i] : ((const double *)grad)[i];
}

/* Relative L2 distance of all gradients of two models, b the reference. */
static double distance(const fixture_t *a, const fixture_t *b)
{
    double difference = 0, size = 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint64_t j = 0; j < a->params[i].count; j++) {
            double x = grad_at(a, i, j), y = grad_at(b, i, j);
            difference += (x - y) * (x - y);
            size += y * y;
        }
    return sqrt(difference / size);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Central differences at up to 24 places of each parameter. */
static void check_gradient(fixture_t *f, const char *name, uint32_t samples)
{
    const double h = 1e-5;
    rng_t rng;
    rng_seed(&rng, 44, 0);
    for (uint32_t i = 0; i < f->n; i++) {
        const nn_param_t *p = &f->params[i];
        for (uint64_t trial = 0; trial < p->count && trial < 24; trial++) {
            uint64_t at = p->count <= 24 ? trial : rng_below(&rng, p->count);
            double *w = (double *)p->weights + at, kept = *w;
            *w = kept + h;
            double more = evaluate(f, samples, NULL);
            *w = kept - h;
            double less = evaluate(f, samples, NULL);
            *w = kept;
            double expected = (more - less) / (2 * h), found = grad_at(f, i, at);
            if (!(fabs(found - expected) <= 1e-7 + 1e-6 * fabs(expected)))
                fail_msg("%s: %s[%llu]: gradient %.12g, finite difference %.12g", name, p->name,
                         (unsigned long long)at, found, expected);
        }
    }
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            fixture_t f;
            open_fixture(&f, MODELS[i].config, 3, threads);
            shake_weights(&f);
            double loss = backward(&f, 0, 3, NULL, NULL);
            assert_true(fabs(loss - evaluate(&f, 3, NULL)) <= 1e-12 * fabs(loss));
            check_gradient(&f, MODELS[i].name, 3);
            close_fixture(&f);
        }
    }
}

static void test_micro_batches_sum(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture_t whole, parts;
        open_fixture(&whole, MODELS[i].config, 7, 1);
        open_fixture(&parts, MODELS[i].config, 7, 1);
        shake_weights(&whole);
        shake_weights(&parts);
        double loss = backward(&whole, 0, 7, NULL, NULL);
        double sum = backward(&parts, 0, 1, NULL, NULL) + backward(&parts, 1, 4, NULL, NULL) +
                     backward(&parts, 5, 0, NULL, NULL) + backward(&parts, 5, 2, NULL, NULL);
        if (!(fabs(loss - sum) <= 1e-12 * fabs(loss)))
            fail_msg("%s: loss %.17g in one, %.17g in parts", MODELS[i].name, loss, sum);
        assert_true(distance(&parts, &whole) <= 1e-12);
        close_fixture(&whole);
        close_fixture(&parts);
    }
}

/* A vocabulary so large that the output layer takes its rows in several runs (64 each). */
static void test_output_in_runs(void **state)
{
    (void)state;
    nn_model_config_t config = GPT;
    config.vocabulary = 65536, config.context = 33, config.layers = 1;
    fixture_t whole, parts;
    open_fixture(&whole, &config, 3, 1);
    open_fixture(&parts, &config, 3, 2);
    double loss = backward(&whole, 0, 3, NULL, NULL), sum = 0;
    for (uint32_t i = 0; i < 3; i++) sum += backward(&parts, i, 1, NULL, NULL);
    assert_true(fabs(loss - sum) <= 1e-12 * loss);
    assert_true(fabs(loss - evaluate(&whole, 3, NULL)) <= 1e-12 * loss);
    assert_true(distance(&parts, &whole) <= 1e-12);
    close_fixture(&whole);
    close_fixture(&parts);
}

static void test_threads_agree_and_repeat(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture_t one;
        open_fixture(&one, MODELS[i].config, 5, 1);
        shake_weights(&one);
        backward(&one, 0, 5, NULL, NULL);
        for (uint32_t threads = 2; threads <= 7; threads++) {
            fixture_t many, again;
            open_fixture(&many, MODELS[i].config, 5, threads);
            open_fixture(&again, MODELS[i].config, 5, threads);
            shake_weights(&many);
            shake_weights(&again);
            double loss = backward(&many, 0, 5, NULL, NULL);
            assert_true(distance(&many, &one) <= 1e-12);
            assert_true(loss == backward(&again, 0, 5, NULL, NULL));
            for (uint32_t p = 0; p < many.n; p++)
                assert_memory_equal(many.grads[p], again.grads[p], many.params[p].count * sizeof(double));
            close_fixture(&many);
            close_fixture(&again);
        }
        close_fixture(&one);
    }
}

/* fp32 on every instruction set against fp64: a forgotten tail or a poor approximation shows far above 1e-5.
 */
static void test_instruction_sets_agree(void **state)
{
    (void)state;
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    for (size_t i = 0; i < N_MODELS; i++) {
        nn_model_config_t config32 = *MODELS[i].config;
        config32.dtype = NN_FP32;
        fixture_t exact;
        open_fixture(&exact, MODELS[i].config, 5, 1);
        for (uint32_t p = 0; p < exact.n; p++) /* the same weights as fp32 will have */
            for (uint64_t j = 0; j < exact.params[p].count; j++)
                ((double *)exact.params[p].weights)[j] = (float)((double *)exact.params[p].weights)[j];
        double loss = backward(&exact, 0, 5, NULL, NULL);
        for (int isa = 0; isa < 3; isa++) {
            setenv("INSPAN_ISA", ISAS[isa], 1);
            fixture_t f, f64;
            open_fixture(&f, &config32, 5, 1);
            open_fixture(&f64, MODELS[i].config, 5, 1);
            assert_true(fabs(backward(&f, 0, 5, NULL, NULL) - loss) <= 2e-6 * loss);
            assert_true(distance(&f, &exact) <= 5e-6);
            backward(&f64, 0, 5, NULL, NULL);
            assert_true(distance(&f64, &exact) <= 2e-6); /* weights before rounding to fp32 */
            unsetenv("INSPAN_ISA");
            close_fixture(&f);
            close_fixture(&f64);
        }
        close_fixture(&exact);
    }
}

/* ---- Ready callbacks ------------------------------------------------------------------------- */

typedef struct readiness {
    fixture_t *f;
    uint32_t calls[MOST_PARAMS], order[MOST_PARAMS], n;
    double *copies[MOST_PARAMS];
} readiness_t;

static void on_ready(void *context, uint32_t index)
{
    readiness_t *r = context;
    assert_true(index < r->f->n);
    r->calls[index]++;
    assert_true(r->n < MOST_PARAMS);
    r->order[r->n++] = index;
    memcpy(r->copies[index], r->f->grads[index], r->f->params[index].count * sizeof(double));
}

static void test_ready_once_and_final(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        for (uint32_t samples = 0; samples <= 4; samples += 2) {
            fixture_t f;
            open_fixture(&f, MODELS[i].config, 4, 2);
            backward(&f, 0, 4, NULL, NULL); /* as an earlier micro-batch */
            readiness_t r = {.f = &f};
            for (uint32_t p = 0; p < f.n; p++) r.copies[p] = calloc(f.params[p].count, sizeof(double));
            backward(&f, 0, samples, on_ready, &r);
            for (uint32_t p = 0; p < f.n; p++) {
                assert_int_equal(r.calls[p], 1);
                assert_memory_equal(r.copies[p], f.grads[p], f.params[p].count * sizeof(double));
                free(r.copies[p]);
            }
            /* Tied or first: the last to be complete; the output's side comes first. */
            assert_int_equal(r.order[f.n - 1], 0);
            assert_true(r.order[0] >= f.n - 2);
            close_fixture(&f);
        }
    }
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

static void expect_invalid(fixture_t *f, const nn_batch_t *batch, const char *text)
{
    inspan_error_t err;
    double loss = -1;
    readiness_t r = {.f = f};
    assert_int_equal(nn_model_backward(f->model, batch, f->grads, on_ready, &r, &loss, &err), INSPAN_INVALID);
    if (strstr(err.text, text) == NULL) fail_msg("expected '%s' in '%s'", text, err.text);
    assert_int_equal(r.n, 0);
    assert_int_equal(nn_model_evaluate(f->model, batch, &loss, NULL, &err), INSPAN_INVALID);
    for (uint32_t i = 0; i < f->n; i++)
        for (uint64_t j = 0; j < f->params[i].count; j++) assert_true(grad_at(f, i, j) == 0);
}

static void test_batches_out_of_range(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, &GPT, 3, 1);
    nn_batch_t batch = batch_of(&f, 0, 3);
    f.tokens[2 * 6 + 5] = 13; /* the last target alone: vocabulary is 13 */
    expect_invalid(&f, &batch, "token 5 of sample 2 is 13: the vocabulary has 13");
    batch.samples = 4;
    expect_invalid(&f, &batch, "at most 3");
    batch = (nn_batch_t){.samples = 1};
    expect_invalid(&f, &batch, "needs tokens");
    close_fixture(&f);

    open_fixture(&f, &MLP, 3, 1);
    batch = batch_of(&f, 0, 3);
    f.labels[1] = 3;
    expect_invalid(&f, &batch, "label of sample 1 is 3: there are 3 classes");
    close_fixture(&f);
}

static void test_zero_samples(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        fixture_t f;
        uint64_t correct = 9;
        open_fixture(&f, MODELS[i].config, 2, 1);
        assert_true(backward(&f, 0, 0, NULL, NULL) == 0);
        assert_true(evaluate(&f, 0, &correct) == 0);
        assert_int_equal(correct, 0);
        for (uint32_t p = 0; p < f.n; p++)
            for (uint64_t j = 0; j < f.params[p].count; j++) assert_true(grad_at(&f, p, j) == 0);
        close_fixture(&f);
    }
}

static void test_bad_configs(void **state)
{
    (void)state;
    static const struct {
        const nn_model_config_t *base;
        size_t field;
        uint32_t value;
        const char *text;
    } CASES[] = {{&GPT, offsetof(nn_model_config_t, heads), 3,
                  "model.dim is 10, not a multiple of model.heads, which is 3"},
                 {&GPT, offsetof(nn_model_config_t, heads), 0, "model.heads is 0"},
                 {&GPT, offsetof(nn_model_config_t, layers), 0, "model.layers is 0"},
                 {&GPT, offsetof(nn_model_config_t, context), 0, "model.context is 0"},
                 {&GPT, offsetof(nn_model_config_t, vocabulary), 65537, "model.vocabulary is 65537"},
                 {&GPT, offsetof(nn_model_config_t, kind), 17, "model.kind 17"},
                 {&GPT, offsetof(nn_model_config_t, dtype), 17, "dtype 17"},
                 {&MLP, offsetof(nn_model_config_t, inputs), 0, "model.inputs is 0"},
                 {&MLP, offsetof(nn_model_config_t, dim), 0, "model.dim is 0"},
                 {&CONV, offsetof(nn_model_config_t, inputs), 141, "model.inputs is 141"},
                 {&CONV, offsetof(nn_model_config_t, width), 3, "model.width is 3"},
                 {&CONV, offsetof(nn_model_config_t, filters), 0, "model.filters is 0"}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        nn_model_config_t config = *CASES[i].base;
        memcpy((char *)&config + CASES[i].field, &CASES[i].value, sizeof(uint32_t));
        nn_model_t *model;
        inspan_error_t err;
        uint64_t weights, activations;
        assert_int_equal(nn_model_open(&config, 1, 1, &model, &err), INSPAN_INVALID);
        if (strstr(err.text, CASES[i].text) == NULL)
            fail_msg("expected '%s' in '%s'", CASES[i].text, err.text);
        assert_null(model);
        assert_int_equal(nn_model_memory(&config, 1, &weights, &activations, &err), INSPAN_INVALID);
    }
    inspan_error_t err;
    nn_model_t *model;
    uint64_t weights, activations;
    nn_model_config_t wide = CONV; /* the head's rows pass what libraries count with */
    wide.channels = 1, wide.height = wide.width = 8192, wide.inputs = 8192 * 8192, wide.filters = 256;
    assert_int_equal(nn_model_memory(&wide, 1, &weights, &activations, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "has 2147483648 inputs, at most 2147483647"));
    wide.filters = 255;
    assert_int_equal(nn_model_memory(&wide, 1, &weights, &activations, &err), INSPAN_OK);
    assert_int_equal(nn_model_open(&GPT, 0, 1, &model, &err), INSPAN_INVALID);
    assert_int_equal(nn_model_open(&GPT, 1, 0, &model, &err), INSPAN_INVALID);
    assert_int_equal(nn_model_open(&GPT, UINT32_MAX, 1, &model, &err), INSPAN_INVALID);
}

/* A size that no machine has is refused by the figures or by the system, not by a crash. */
static void test_too_large(void **state)
{
    (void)state;
    nn_model_config_t config = GPT;
    config.dim = 65536;
    config.heads = 16;
    config.layers = 1024;
    uint64_t weights = 0, activations = 0;
    inspan_error_t err;
    assert_int_equal(nn_model_memory(&config, 1, &weights, &activations, &err), INSPAN_OK);
    assert_true(weights > (uint64_t)400e12 && weights < (uint64_t)450e12); /* 1024 * 12 * 65536^2 * 8 bytes */
    nn_model_t *model;
    assert_int_equal(nn_model_open(&config, 1, 1, &model, &err), INSPAN_NO_MEMORY);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu", &size, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_memory_estimate(void **state)
{
    (void)state;
    nn_model_config_t configs[] = {GPT, MLP, CONV};
    configs[0].dim = 64, configs[0].context = 64, configs[0].vocabulary = 256, configs[0].dtype = NN_FP32;
    configs[1].dim = 1024, configs[1].inputs = 784;
    configs[2].height = configs[2].width = 32, configs[2].inputs = 2048, configs[2].filters = 16;
    nn_gemm_report();
    for (int i = 0; i < 3; i++) {
        uint32_t micro_batch = i == 0 ? 32 : 512;
        fixture_t warm; /* what libraries take on first use is not the model's */
        open_fixture(&warm, &configs[i], micro_batch, 1);
        backward(&warm, 0, micro_batch, NULL, NULL);
        close_fixture(&warm);
        uint64_t weights, activations, before = resident_bytes();
        inspan_error_t err;
        nn_model_t *model;
        assert_int_equal(nn_model_memory(&configs[i], micro_batch, &weights, &activations, &err), INSPAN_OK);
        assert_int_equal(nn_model_open(&configs[i], micro_batch, 1, &model, &err), INSPAN_OK);
        double found = (double)(resident_bytes() - before), estimate = (double)(weights + activations);
        if (!(fabs(found - estimate) <= 0.1 * estimate))
            fail_msg("model %d: estimate %.0f bytes, taken %.0f", i, estimate, found);
        nn_model_close(model);
    }
}

/* ---- The rest -------------------------------------------------------------------------------- */

static void test_initial_weights(void **state)
{
    (void)state;
    nn_model_config_t config = GPT;
    config.dim = 64, config.vocabulary = 256, config.layers = 8;
    fixture_t f, same, other, f32;
    open_fixture(&f, &config, 1, 1);
    open_fixture(&same, &config, 1, 2);
    config.seed++;
    open_fixture(&other, &config, 1, 1);
    config.seed--;
    config.dtype = NN_FP32;
    open_fixture(&f32, &config, 1, 1);
    assert_string_equal(f.params[0].name, "wte.weight");
    assert_string_equal(f.params[4].name, "h.0.attn.c_attn.weight");
    assert_int_equal(f.params[4].shape[0], 64);
    assert_int_equal(f.params[4].shape[1], 192);
    assert_true(f.params[4].decay);
    assert_false(f.params[5].decay);
    assert_string_equal(f.params[f.n - 1].name, "ln_f.bias");
    for (uint32_t i = 0; i < f.n; i++) {
        const double *w = f.params[i].weights;
        double sum = 0, squares = 0, n = (double)f.params[i].count;
        for (uint64_t j = 0; j < f.params[i].count; j++) {
            sum += w[j], squares += w[j] * w[j];
            assert_true(((float *)f32.params[i].weights)[j] == (float)w[j]);
        }
        assert_memory_equal(w, same.params[i].weights, f.params[i].count * sizeof *w);
        if (!f.params[i].decay) continue;
        if (i > 0)
            assert_memory_not_equal(w, f.params[0].weights, 64 * sizeof *w); /* each has its own numbers */
        assert_memory_not_equal(w, other.params[i].weights, f.params[i].count * sizeof *w);
        double expected = strstr(f.params[i].name, "c_proj") ? 0.02 / 4 : 0.02;
        assert_true(fabs(sum / n) < 5 * expected / sqrt(n));
        assert_true(fabs(sqrt(squares / n) / expected - 1) < 4 / sqrt(n));
    }
    close_fixture(&f), close_fixture(&same), close_fixture(&other), close_fixture(&f32);
}

/* Bits that every machine must have: a change here changes what a seed means. */
static void test_initial_weights_golden(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, &GPT, 1, 1);
    const double *w = f.params[0].weights;
    assert_true(w[0] == -0x1.e2ff54ebd8911p-5 && w[1] == 0x1.58f6b57abc3d7p-6 &&
                w[2] == -0x1.9197cf734bb41p-8 && w[3] == -0x1.651c218764df1p-7);
    close_fixture(&f);
}

/* The next token after a prefix is what the whole window says at that place. */
static void test_next_agrees_with_evaluate(void **state)
{
    (void)state;
    for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++) {
        nn_model_config_t config = GPT_LONG;
        config.dtype = (nn_dtype_t)dtype;
        fixture_t f;
        open_fixture(&f, &config, 1, 2);
        shake_weights(&f);
        uint64_t correct = 0, hits = 0;
        double loss = evaluate(&f, 1, &correct), sum = 0, logits[5];
        for (uint32_t n = 1; n <= config.context; n++) {
            inspan_error_t err;
            assert_int_equal(nn_model_next(f.model, f.tokens, n, logits, &err), INSPAN_OK);
            double total = 0;
            int best = 0;
            for (int i = 0; i < 5; i++) total += exp(logits[i]);
            for (int i = 1; i < 5; i++)
                if (logits[i] > logits[best]) best = i;
            sum += log(total) - logits[f.tokens[n]];
            hits += best == f.tokens[n];
        }
        assert_true(fabs(sum / config.context - loss) <= (dtype == NN_FP32 ? 1e-5 : 1e-12) * loss);
        assert_int_equal(hits, correct);
        inspan_error_t err;
        assert_int_equal(nn_model_next(f.model, f.tokens, 0, logits, &err), INSPAN_INVALID);
        assert_int_equal(nn_model_next(f.model, f.tokens, config.context + 1, logits, &err), INSPAN_INVALID);
        f.tokens[0] = 5;
        assert_int_equal(nn_model_next(f.model, f.tokens, 1, logits, &err), INSPAN_INVALID);
        close_fixture(&f);
    }
}

/* A NaN anywhere in the weights must come out as a loss that is not finite: no model trains on in silence. */
static void test_nan_shows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++) {
            nn_model_config_t config = *MODELS[i].config;
            config.dtype = (nn_dtype_t)dtype;
            fixture_t f;
            open_fixture(&f, &config, 2, 1);
            for (uint32_t p = 1; p < f.n; p++) { /* not wte, of which rows may stay unused */
                size_t size = element(&config);
                char kept[8];
                memcpy(kept, f.params[p].weights, size);
                if (dtype == NN_FP32)
                    *(float *)f.params[p].weights = NAN;
                else
                    *(double *)f.params[p].weights = NAN;
                if (isfinite(evaluate(&f, 2, NULL)))
                    fail_msg("%s: NaN in %s gave a finite loss", MODELS[i].name, f.params[p].name);
                memcpy(f.params[p].weights, kept, size);
            }
            assert_true(isfinite(evaluate(&f, 2, NULL)));
            close_fixture(&f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_finite_differences),
                                       cmocka_unit_test(test_micro_batches_sum),
                                       cmocka_unit_test(test_output_in_runs),
                                       cmocka_unit_test(test_threads_agree_and_repeat),
                                       cmocka_unit_test(test_instruction_sets_agree),
                                       cmocka_unit_test(test_ready_once_and_final),
                                       cmocka_unit_test(test_batches_out_of_range),
                                       cmocka_unit_test(test_zero_samples),
                                       cmocka_unit_test(test_bad_configs),
                                       cmocka_unit_test(test_too_large),
                                       cmocka_unit_test(test_memory_estimate),
                                       cmocka_unit_test(test_initial_weights),
                                       cmocka_unit_test(test_initial_weights_golden),
                                       cmocka_unit_test(test_next_agrees_with_evaluate),
                                       cmocka_unit_test(test_nan_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
