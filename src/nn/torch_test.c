/* Whole models against figures from PyTorch (tests/data/torch_layers.json, tools/make_torch_figures.py),
 * fp64, fp32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/nn.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"

#define FIGURES "tests/data/torch_layers.json"

static json_t *figures;

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

static uint32_t field(const json_t *config, const char *name)
{
    return (uint32_t)json_get_number(config, name, 0);
}

static nn_model_config_t config_of(const json_t *entry, nn_dtype_t dtype)
{
    const json_t *c = json_get(entry, "config");
    const char *kind = json_get_string(c, "kind");
    assert_non_null(kind);
    return (nn_model_config_t){.kind = strcmp(kind, "gpt") == 0   ? NN_GPT
                                       : strcmp(kind, "mlp") == 0 ? NN_MLP
                                                                  : NN_CONV,
                               .dtype = dtype,
                               .layers = field(c, "layers"),
                               .heads = field(c, "heads"),
                               .dim = field(c, "dim"),
                               .context = field(c, "context"),
                               .vocabulary = field(c, "vocabulary"),
                               .inputs = field(c, "inputs"),
                               .classes = field(c, "classes"),
                               .channels = field(c, "channels"),
                               .height = field(c, "height"),
                               .width = field(c, "width"),
                               .filters = field(c, "filters")};
}

static void set(nn_dtype_t dtype, void *array, size_t i, double x)
{
    if (dtype == NN_FP32)
        ((float *)array)[i] = (float)x;
    else
        ((double *)array)[i] = x;
}

static double get(nn_dtype_t dtype, const void *array, size_t i)
{
    return dtype == NN_FP32 ? ((const float *)array)[i] : ((const double *)array)[i];
}

/* The array's numbers into fresh memory of this type. */
static void *numbers(const json_t *array, nn_dtype_t dtype)
{
    size_t n = json_size(array), i = 0;
    void *copy = calloc(n + 1, sizeof(double));
    assert_non_null(copy);
    for (const json_t *x = json_first(array); x != NULL; x = json_next(x))
        set(dtype, copy, i++, json_number(x, NAN));
    return copy;
}

static nn_batch_t batch_of(const json_t *entry, nn_dtype_t dtype)
{
    const json_t *b = json_get(entry, "batch");
    nn_batch_t batch = {.samples = field(b, "samples")};
    if (json_get(b, "features") != NULL) {
        batch.features = numbers(json_get(b, "features"), dtype);
        uint32_t *labels = calloc(batch.samples, sizeof *labels), i = 0;
        for (const json_t *x = json_first(json_get(b, "labels")); x != NULL; x = json_next(x))
            labels[i++] = (uint32_t)json_number(x, 0);
        batch.labels = labels;
    } else {
        const json_t *array = json_get(b, "tokens");
        uint16_t *tokens = calloc(json_size(array), sizeof *tokens);
        size_t i = 0;
        for (const json_t *x = json_first(array); x != NULL; x = json_next(x))
            tokens[i++] = (uint16_t)json_number(x, 0);
        batch.tokens = tokens;
    }
    return batch;
}

/* Relative L2 of one parameter's gradient; gradients that are zero in exact arithmetic (a key's bias) get a
 * floor. */
static void check_param(const nn_param_t *p, const json_t *expected, const void *grad, nn_dtype_t dtype)
{
    assert_int_equal(json_size(expected), p->count);
    double difference = 0, size = 1e-6;
    size_t i = 0;
    for (const json_t *x = json_first(expected); x != NULL; x = json_next(x), i++) {
        double want = json_number(x, NAN), d = want - get(dtype, grad, i);
        difference += d * d;
        size += want * want;
    }
    double bound = dtype == NN_FP32 ? 2e-5 : 1e-12;
    if (!(sqrt(difference / size) <= bound))
        fail_msg("%s: gradient is off by %g of its length (bound %g)", p->name, sqrt(difference / size),
                 bound);
}

static void check_model(const json_t *entry, nn_dtype_t dtype)
{
    inspan_error_t err;
    nn_model_config_t config = config_of(entry, dtype);
    nn_batch_t batch = batch_of(entry, dtype);
    nn_model_t *model = NULL;
    const nn_param_t *params;
    if (nn_model_open(&config, batch.samples, 1, &model, &err) != INSPAN_OK) fail_msg("%s", err.text);
    uint32_t n = nn_model_params(model, &params);
    void *grads[64];
    assert_true(n <= 64);
    assert_int_equal(json_size(json_get(entry, "weights")), n);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *w = json_get(json_get(entry, "weights"), params[i].name);
        if (w == NULL || json_size(w) != params[i].count) fail_msg("no figures for %s", params[i].name);
        void *values = numbers(w, dtype);
        memcpy(params[i].weights, values, params[i].count * (dtype == NN_FP32 ? 4 : 8));
        free(values);
        grads[i] = calloc(params[i].count, 8);
    }
    double loss = 0, expected = json_get_number(entry, "loss", NAN);
    if (nn_model_backward(model, &batch, grads, NULL, NULL, &loss, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    if (!(fabs(loss - expected) <= (dtype == NN_FP32 ? 1e-6 : 1e-13) * expected))
        fail_msg("%s: loss %.17g, expected %.17g", json_get_string(json_get(entry, "config"), "kind"), loss,
                 expected);
    for (uint32_t i = 0; i < n; i++) {
        check_param(&params[i], json_get(json_get(entry, "grads"), params[i].name), grads[i], dtype);
        free(grads[i]);
    }
    free((void *)(uintptr_t)batch.tokens), free((void *)(uintptr_t)batch.features);
    free((void *)(uintptr_t)batch.labels);
    nn_model_close(model);
}

static void test_models_fp64(void **state)
{
    (void)state;
    assert_int_equal(json_size(json_get(figures, "models")), 3);
    for (const json_t *m = json_first(json_get(figures, "models")); m != NULL; m = json_next(m))
        check_model(m, NN_FP64);
}

static void test_models_fp32(void **state)
{
    (void)state;
    for (const json_t *m = json_first(json_get(figures, "models")); m != NULL; m = json_next(m))
        check_model(m, NN_FP32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models_fp64),
                                       cmocka_unit_test(test_models_fp32)};
    return cmocka_run_group_tests(tests, read_figures, free_figures);
}
