#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "nn/nn.h"
#include "platform/os/os_file.h"

static inspan_error_t err;
static char folder[64], path[PATH_MAX];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-model-file-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

static nn_model_config_t config_of(nn_kind_t kind, nn_dtype_t dtype)
{
    nn_model_config_t config = {.kind = kind, .dtype = dtype, .seed = 5};
    if (kind == NN_GPT)
        config.layers = 2, config.heads = 2, config.dim = 16, config.context = 8, config.vocabulary = 256;
    if (kind == NN_MLP) config.layers = 2, config.dim = 9, config.inputs = 7, config.classes = 3;
    if (kind == NN_CONV)
        config.channels = 2, config.height = 8, config.width = 12, config.filters = 3, config.classes = 4,
        config.inputs = 192;
    return config;
}

static nn_model_t *opened(const nn_model_config_t *config)
{
    nn_model_t *model = NULL;
    if (nn_model_open(config, 4, 1, &model, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return model;
}

static void put(const char *name, const char *text)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(os_file_write(path, text, strlen(text), 0600, &err), INSPAN_OK);
}

/* ---- Save and load --------------------------------------------------------------------------- */

static void a_saved_model_is_the_same_one(void **state)
{
    (void)state;
    for (int kind = NN_GPT; kind <= NN_CONV; kind++) {
        for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++) {
            nn_model_config_t config = config_of((nn_kind_t)kind, (nn_dtype_t)dtype);
            nn_model_t *model = opened(&config), *back = NULL;
            const nn_param_t *a = NULL, *b = NULL;
            uint32_t n = nn_model_params(model, &a);
            memset(a[0].weights, 0x3c, 8); /* not what the seed gives */
            if (nn_model_save(model, folder, &err) != INSPAN_OK) fail_msg("%s", err.text);
            if (nn_model_load(folder, 3, 1, &back, &err) != INSPAN_OK) fail_msg("%s", err.text);
            assert_int_equal(nn_model_params(back, &b), n);
            assert_int_equal(nn_model_config(back)->dtype, dtype);
            assert_int_equal(nn_model_config(back)->inputs, config.inputs);
            for (uint32_t i = 0; i < n; i++) {
                assert_string_equal(a[i].name, b[i].name);
                assert_int_equal(a[i].count, b[i].count);
                assert_memory_equal(a[i].weights, b[i].weights, a[i].count * (dtype == NN_FP64 ? 8 : 4));
            }
            nn_model_close(model);
            nn_model_close(back);
        }
    }
}

typedef struct fault {
    const char *text;
    inspan_status_t status;
    const char *found;
} fault_t;

#define GPT                                                                                                  \
    "{\"model_type\":\"gpt2\",\"n_embd\":16,\"n_head\":2,\"n_layer\":2,\"n_positions\":8,\"vocab_size\":"    \
    "256,"

static const fault_t faults[] = {
    {"", INSPAN_CORRUPT, "not JSON"},
    {"[]", INSPAN_CORRUPT, "not a JSON object"},
    {"{}", INSPAN_UNSUPPORTED, "model_type is missing"},
    {"{\"model_type\":\"llama\"}", INSPAN_UNSUPPORTED, "model_type is llama"},
    {"{\"model_type\":\"gpt2\"}", INSPAN_CORRUPT, "n_embd is missing"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":-16}", INSPAN_CORRUPT, "n_embd"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":1.5}", INSPAN_CORRUPT, "n_embd"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":5e9}", INSPAN_CORRUPT, "n_embd"},
    {GPT "\"activation_function\":\"relu\"}", INSPAN_UNSUPPORTED, "gelu_new"},
    {GPT "\"activation_function\":\"gelu_new\",\"n_inner\":48}", INSPAN_UNSUPPORTED, "n_inner"},
    {GPT "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-6}", INSPAN_UNSUPPORTED, "epsilon"},
    {GPT "\"activation_function\":\"gelu_new\",\"tie_word_embeddings\":false}", INSPAN_UNSUPPORTED,
     "tie_word"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":16,\"n_head\":3,\"n_layer\":2,\"n_positions\":8,\"vocab_size\":256,"
     "\"activation_function\":\"gelu_new\"}",
     INSPAN_INVALID, "config.json"},
    {"{\"model_type\":\"inspan-mlp\",\"layers\":1}", INSPAN_CORRUPT, "dim"},
    {"{\"model_type\":\"inspan-conv\",\"channels\":4000000000,\"height\":4000000000,\"width\":4000000000,"
     "\"filters\":1,\"classes\":2}",
     INSPAN_CORRUPT, "2^32"},
    {GPT "\"activation_function\":\"gelu_new\",\"n_ctx\":8}", INSPAN_MISMATCH,
     "shape"}, /* of the model before */
};

static void broken_configs_are_refused(void **state)
{
    (void)state;
    nn_model_config_t config = config_of(NN_GPT, NN_FP32);
    config.dim = 32;
    nn_model_t *model = opened(&config), *back = NULL;
    assert_int_equal(nn_model_save(model, folder, &err), INSPAN_OK);
    nn_model_close(model);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        put("config.json", faults[i].text);
        memset(&err, 0, sizeof err);
        inspan_status_t status = nn_model_load(folder, 1, 1, &back, &err);
        if (status != faults[i].status || strstr(err.text, faults[i].found) == NULL)
            fail_msg("%s: %s, '%s' lacks '%s'", faults[i].text, inspan_status_text(status), err.text,
                     faults[i].found);
    }
    assert_int_equal(nn_model_load("/nonexistent", 1, 1, &back, &err), INSPAN_NOT_FOUND);
}

/* A config that asks for more memory than there is must be refused by the file beside it, before any is
 * taken. */
static void foreign_sizes_are_compared_with_the_file(void **state)
{
    (void)state;
    static const char *const sizes[] = {
        "\"n_embd\":65536,\"n_head\":1,\"n_layer\":1024,\"n_positions\":1048576,\"vocab_size\":65536",
        "\"n_embd\":16,\"n_head\":1,\"n_layer\":2,\"n_positions\":1048576,\"vocab_size\":256",
        "\"n_embd\":16384,\"n_head\":2,\"n_layer\":1,\"n_positions\":8,\"vocab_size\":256"};
    nn_model_config_t config = config_of(NN_GPT, NN_FP32);
    nn_model_t *model = opened(&config), *back = NULL;
    assert_int_equal(nn_model_save(model, folder, &err), INSPAN_OK);
    nn_model_close(model);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_new\",%s}",
                 sizes[i]);
        put("config.json", text);
        inspan_status_t status = nn_model_load(folder, 1, 1, &back, &err);
        if (status != INSPAN_MISMATCH) fail_msg("%s: %s", inspan_status_text(status), err.text);
    }
}

/* Files may be large and hold nothing (sparse): then the machine's memory decides. */
static void a_model_larger_than_memory_is_refused_with_figures(void **state)
{
    (void)state;
    static const uint64_t dim = 1 << 20, weights = dim * dim * 4; /* 4.4 TB */
    char header[512], text[256];
    snprintf(text, sizeof text,
             "{\"model_type\":\"inspan-mlp\",\"layers\":1,\"dim\":%llu,\"inputs\":%llu,\"classes\":2}",
             (unsigned long long)dim, (unsigned long long)dim);
    put("config.json", text);
    uint64_t at[5] = {0, weights, weights + 4 * dim, weights + 12 * dim, weights + 12 * dim + 8};
    unsigned long long a[5];
    for (int i = 0; i < 5; i++) a[i] = at[i];
    uint64_t length = (uint64_t)snprintf(
        header, sizeof header,
        "{\"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[%llu,%llu],\"data_offsets\":[%llu,%llu]},"
        "\"layers.0.bias\":{\"dtype\":\"F32\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]},"
        "\"layers.1.weight\":{\"dtype\":\"F32\",\"shape\":[%llu,2],\"data_offsets\":[%llu,%llu]},"
        "\"layers.1.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%llu,%llu]}}",
        (unsigned long long)dim, (unsigned long long)dim, a[0], a[1], (unsigned long long)dim, a[1], a[2],
        (unsigned long long)dim, a[2], a[3], a[3], a[4]);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 1, 8, file), 8);
    assert_int_equal(fwrite(header, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    if (truncate(path, (off_t)(8 + length + at[4])) != 0) skip(); /* a file system without so large files */
    nn_model_t *model = NULL;
    assert_int_equal(nn_model_load(folder, 1, 1, &model, &err), INSPAN_NO_MEMORY);
    if (strstr(err.text, "needs 8796.1 GB of memory") == NULL || strstr(err.text, "this machine has") == NULL)
        fail_msg("%s", err.text);
}

/* ---- Generating ------------------------------------------------------------------------------ */

typedef struct text {
    uint8_t bytes[64];
    size_t n;
} text_t;

static void collect(void *context, uint8_t byte)
{
    text_t *text = context;
    assert_true(text->n < sizeof text->bytes);
    text->bytes[text->n++] = byte;
}

static text_t generated(nn_model_t *model, const char *prompt, nn_generate_options_t options)
{
    text_t text = {.n = 0};
    if (nn_generate(model, prompt, &options, collect, &text, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(text.n, options.tokens);
    return text;
}

static void sampling_follows_the_model(void **state)
{
    (void)state;
    nn_model_config_t config = config_of(NN_GPT, NN_FP32);
    nn_model_t *model = opened(&config);
    nn_generate_options_t greedy = {.tokens = 20}, warm = {.tokens = 20, .temperature = 1, .seed = 3};
    static const char *const prompts[] = {"", "a", "seven..", "eight...", "a prompt longer than the context"};
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        text_t a = generated(model, prompts[i], greedy), b = generated(model, prompts[i], greedy);
        assert_memory_equal(a.bytes, b.bytes, a.n);
        nn_generate_options_t first = warm;
        first.top_k = 1; /* whatever the temperature: the likeliest */
        b = generated(model, prompts[i], first);
        assert_memory_equal(a.bytes, b.bytes, a.n);
        a = generated(model, prompts[i], warm);
        b = generated(model, prompts[i], warm);
        assert_memory_equal(a.bytes, b.bytes, a.n);
        warm.seed++;
        b = generated(model, prompts[i], warm);
        assert_memory_not_equal(a.bytes, b.bytes, a.n);
    }
    /* The first byte is the argmax of nn_model_next after the prompt's last tokens. */
    uint16_t tokens[8];
    double logits[256];
    for (int i = 0; i < 8; i++) tokens[i] = (uint8_t) "eight..."[i];
    assert_int_equal(nn_model_next(model, tokens, 8, logits, &err), INSPAN_OK);
    int best = 0;
    for (int i = 0; i < 256; i++)
        if (logits[i] > logits[best]) best = i;
    text_t one = generated(model, "long before, eight...", greedy);
    assert_int_equal(one.bytes[0], best);
    nn_model_close(model);
}

static void generating_is_refused_where_it_cannot_be(void **state)
{
    (void)state;
    text_t text = {.n = 0};
    nn_generate_options_t options = {.tokens = 3, .temperature = -1};
    nn_model_config_t config = config_of(NN_GPT, NN_FP64);
    nn_model_t *model = opened(&config);
    assert_int_equal(nn_generate(model, "a", &options, collect, &text, &err), INSPAN_INVALID);
    options.temperature = NAN;
    assert_int_equal(nn_generate(model, "a", &options, collect, &text, &err), INSPAN_INVALID);
    options.temperature = 1;
    const nn_param_t *params = NULL;
    nn_model_params(model, &params);
    ((double *)params[0].weights)[97 * 16] = NAN;
    assert_int_equal(nn_generate(model, "a", &options, collect, &text, &err), INSPAN_CORRUPT);
    nn_model_close(model);
    config = config_of(NN_MLP, NN_FP32);
    model = opened(&config);
    assert_int_equal(nn_generate(model, "a", &options, collect, &text, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "the model is of kind mlp"));
    nn_model_close(model);
    assert_int_equal(text.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_model_is_the_same_one),
        cmocka_unit_test(broken_configs_are_refused),
        cmocka_unit_test(foreign_sizes_are_compared_with_the_file),
        cmocka_unit_test(a_model_larger_than_memory_is_refused_with_figures),
        cmocka_unit_test(sampling_follows_the_model),
        cmocka_unit_test(generating_is_refused_where_it_cannot_be),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
