/*
 * A trained model as a folder: model.safetensors and config.json. A gpt has the names, layout and fields of
 * Hugging Face's GPT-2, so that either side opens the other's; the other kinds have "model_type":
 * "inspan-mlp", "inspan-conv".
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/units.h"
#include "nn/model.h"
#include "platform/json/json.h"
#include "platform/os/os_cgroup.h"
#include "platform/os/os_file.h"

#define CONFIG_MAX         (1u << 20)
#define PRODUCER           "inspan " INSPAN_VERSION_TEXT
#define LAYER_NORM_EPSILON 1e-5

/* ---- config.json ----------------------------------------------------------------------------- */

static void describe_gpt(const nn_model_config_t *config, json_t *out)
{
    json_t *architectures = json_array();
    json_append_string(architectures, "GPT2LMHeadModel");
    json_set(out, "architectures", architectures);
    json_set_string(out, "model_type", "gpt2");
    json_set_string(out, "activation_function", "gelu_new");
    json_set_number(out, "attn_pdrop", 0);
    json_set_string(out, "bos_token_id", NULL);
    json_set_number(out, "embd_pdrop", 0);
    json_set_string(out, "eos_token_id", NULL);
    json_set_number(out, "initializer_range", 0.02);
    json_set_number(out, "layer_norm_epsilon", LAYER_NORM_EPSILON);
    json_set_number(out, "n_ctx", config->context);
    json_set_number(out, "n_embd", config->dim);
    json_set_number(out, "n_head", config->heads);
    json_set_string(out, "n_inner", NULL);
    json_set_number(out, "n_layer", config->layers);
    json_set_number(out, "n_positions", config->context);
    json_set_bool(out, "reorder_and_upcast_attn", false);
    json_set_number(out, "resid_pdrop", 0);
    json_set_bool(out, "scale_attn_by_inverse_layer_idx", false);
    json_set_bool(out, "scale_attn_weights", true);
    json_set_bool(out, "tie_word_embeddings", true);
    json_set_number(out, "vocab_size", config->vocabulary);
}

static void describe_mlp(const nn_model_config_t *config, json_t *out)
{
    json_set_string(out, "model_type", "inspan-mlp");
    json_set_string(out, "activation_function", "gelu_new");
    json_set_number(out, "layers", config->layers);
    json_set_number(out, "dim", config->dim);
    json_set_number(out, "inputs", config->inputs);
    json_set_number(out, "classes", config->classes);
}

static void describe_conv(const nn_model_config_t *config, json_t *out)
{
    json_set_string(out, "model_type", "inspan-conv");
    json_set_string(out, "activation_function", "relu");
    json_set_number(out, "channels", config->channels);
    json_set_number(out, "height", config->height);
    json_set_number(out, "width", config->width);
    json_set_number(out, "filters", config->filters);
    json_set_number(out, "classes", config->classes);
}

static char *format_config(const nn_model_config_t *config)
{
    json_t *out = json_object();
    switch (config->kind) {
    case NN_GPT: describe_gpt(config, out); break;
    case NN_MLP: describe_mlp(config, out); break;
    case NN_CONV: describe_conv(config, out); break;
    }
    json_set_string(out, "torch_dtype", config->dtype == NN_FP64 ? "float64" : "float32");
    char *text = json_print(out, true);
    json_free(out);
    return text;
}

/* A field that must be a whole number from 1 up. */
static inspan_status_t get_count(const json_t *json, const char *key, uint32_t *value, inspan_error_t *err)
{
    double number = json_get_number(json, key, -1);
    if (!(number >= 1 && number <= UINT32_MAX) || number != floor(number))
        return error_set(err, INSPAN_CORRUPT, "%s is missing or not a whole number from 1 up", key);
    *value = (uint32_t)number;
    return INSPAN_OK;
}

typedef struct count_field {
    const char *key;
    uint32_t *value;
} count_field_t;

static inspan_status_t get_counts(const json_t *json, const count_field_t *fields, size_t n,
                                  inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (size_t i = 0; i < n && status == INSPAN_OK; i++)
        status = get_count(json, fields[i].key, fields[i].value, err);
    return status;
}

static bool is_text(const json_t *json, const char *key, const char *expected)
{
    const char *text = json_get_string(json, key);
    return text != NULL && strcmp(text, expected) == 0;
}

/* Variants of GPT-2 that Hugging Face's class has and this model does not. */
static inspan_status_t check_gpt(const json_t *json, const nn_model_config_t *config, inspan_error_t *err)
{
    if (!is_text(json, "activation_function", "gelu_new"))
        return error_set(err, INSPAN_UNSUPPORTED, "activation_function is not gelu_new");
    if (json_get_number(json, "layer_norm_epsilon", LAYER_NORM_EPSILON) != LAYER_NORM_EPSILON)
        return error_set(err, INSPAN_UNSUPPORTED, "layer_norm_epsilon is not 1e-5");
    if (json_get_number(json, "n_inner", 4.0 * config->dim) != 4.0 * config->dim)
        return error_set(err, INSPAN_UNSUPPORTED, "n_inner is not 4 x n_embd");
    if (json_get_bool(json, "scale_attn_by_inverse_layer_idx", false) ||
        !json_get_bool(json, "scale_attn_weights", true))
        return error_set(err, INSPAN_UNSUPPORTED,
                         "attention is not scaled by the square root of a head's width alone");
    if (json_get_bool(json, "add_cross_attention", false))
        return error_set(err, INSPAN_UNSUPPORTED, "add_cross_attention is set");
    if (!json_get_bool(json, "tie_word_embeddings", true))
        return error_set(err, INSPAN_UNSUPPORTED, "tie_word_embeddings is false");
    return INSPAN_OK;
}

static inspan_status_t parse_kind(const json_t *json, nn_model_config_t *config, inspan_error_t *err)
{
    if (is_text(json, "model_type", "gpt2")) {
        const count_field_t fields[] = {{"n_embd", &config->dim},
                                        {"n_head", &config->heads},
                                        {"n_layer", &config->layers},
                                        {"n_positions", &config->context},
                                        {"vocab_size", &config->vocabulary}};
        config->kind = NN_GPT;
        inspan_status_t status = get_counts(json, fields, sizeof fields / sizeof fields[0], err);
        return status != INSPAN_OK ? status : check_gpt(json, config, err);
    }
    if (is_text(json, "model_type", "inspan-mlp")) {
        const count_field_t fields[] = {{"layers", &config->layers},
                                        {"dim", &config->dim},
                                        {"inputs", &config->inputs},
                                        {"classes", &config->classes}};
        config->kind = NN_MLP;
        return get_counts(json, fields, sizeof fields / sizeof fields[0], err);
    }
    if (is_text(json, "model_type", "inspan-conv")) {
        const count_field_t fields[] = {{"channels", &config->channels},
                                        {"height", &config->height},
                                        {"width", &config->width},
                                        {"filters", &config->filters},
                                        {"classes", &config->classes}};
        config->kind = NN_CONV;
        inspan_status_t status = get_counts(json, fields, sizeof fields / sizeof fields[0], err);
        uint64_t inputs = 0;
        if (status == INSPAN_OK &&
            (__builtin_mul_overflow((uint64_t)config->channels * config->height, config->width, &inputs) ||
             inputs > UINT32_MAX))
            return error_set(err, INSPAN_CORRUPT, "channels x height x width passes 2^32");
        config->inputs = (uint32_t)inputs;
        return status;
    }
    const char *type = json_get_string(json, "model_type");
    return error_set(err, INSPAN_UNSUPPORTED, "model_type is %.40s, expected gpt2, inspan-mlp or inspan-conv",
                     type != NULL ? type : "missing");
}

static inspan_status_t read_config(const char *path, nn_model_config_t *config, inspan_error_t *err)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *json = NULL;
    memset(config, 0, sizeof *config);
    inspan_status_t status = os_file_read(path, CONFIG_MAX, &text, &bytes, err);
    if (status != INSPAN_OK) return status;
    status = json_parse(text, bytes, &json, err);
    if (status == INSPAN_OK && !json_is_object(json))
        status = error_set(err, INSPAN_CORRUPT, "not a JSON object");
    if (status == INSPAN_OK) status = parse_kind(json, config, err);
    if (status == INSPAN_OK)
        config->dtype =
            is_text(json, "torch_dtype", "float64") || is_text(json, "dtype", "float64") ? NN_FP64 : NN_FP32;
    else
        error_prefix(err, "%s", path);
    json_free(json);
    free(text);
    return status;
}

/* ---- The folder ------------------------------------------------------------------------------ */

static inspan_status_t path_in(const char *folder, const char *name, char path[PATH_MAX], inspan_error_t *err)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_MAX)
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", folder);
    return INSPAN_OK;
}

inspan_status_t nn_model_write(const nn_model_config_t *config, const nn_param_t *params, uint32_t n,
                               const char *folder, inspan_error_t *err)
{
    char path[PATH_MAX];
    static const char *const metadata[] = {"format", "pt", "producer", PRODUCER};
    inspan_status_t status = os_mkdir_all(folder, 0755, err);
    if (status == INSPAN_OK) status = path_in(folder, "model.safetensors", path, err);
    if (status == INSPAN_OK) status = nn_safetensors_write(path, params, n, config->dtype, metadata, 2, err);
    if (status == INSPAN_OK) status = path_in(folder, "config.json", path, err);
    if (status != INSPAN_OK) return status;
    char *text = format_config(config);
    if (text == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to write %s", path);
    status = os_file_write(path, text, strlen(text), 0644, err);
    free(text);
    return status;
}

inspan_status_t nn_model_save(const nn_model_t *model, const char *folder, inspan_error_t *err)
{
    const nn_param_t *params = NULL;
    uint32_t n = nn_model_params(model, &params);
    return nn_model_write(nn_model_config(model), params, n, folder, err);
}

/* Weights, the file's tensors while they are read in, and activations, against what there is. */
static inspan_status_t check_memory(const char *folder, uint64_t weights, uint64_t file, uint64_t activations,
                                    inspan_error_t *err)
{
    char need[32], parts[3][32], has[32];
    const uint64_t memory = os_memory_bytes();
    uint64_t all = 0;
    if (__builtin_add_overflow(weights, file, &all) || __builtin_add_overflow(all, activations, &all))
        all = UINT64_MAX;
    if (all <= memory) return INSPAN_OK;
    return error_set(
        err, INSPAN_NO_MEMORY,
        "the model in %s needs %s of memory (weights %s, the file while it is read %s, activations %s): "
        "this machine has %s",
        folder, units_format_size(all, need, sizeof need),
        units_format_size(weights, parts[0], sizeof parts[0]),
        units_format_size(file, parts[1], sizeof parts[1]),
        units_format_size(activations, parts[2], sizeof parts[2]),
        units_format_size(memory, has, sizeof has));
}

/* What config.json asks for is compared with the file and with the machine before any of it is taken. */
static inspan_status_t open_checked(const char *folder, const nn_model_config_t *config, uint32_t micro_batch,
                                    uint32_t threads, nn_model_t **model, inspan_error_t *err)
{
    char path[PATH_MAX];
    const nn_param_t *params = NULL;
    uint64_t weights = 0, activations = 0, file = 0;
    inspan_status_t status = model_plan(config, micro_batch, threads, model, &weights, &activations, err);
    if (status != INSPAN_OK) {
        error_prefix(err, "%s/config.json", folder);
        return status;
    }
    const uint32_t n = nn_model_params(*model, &params);
    status = path_in(folder, "model.safetensors", path, err);
    if (status == INSPAN_OK) status = nn_safetensors_check(path, params, n, &file, err);
    if (status == INSPAN_OK) status = check_memory(folder, weights, file, activations, err);
    return status == INSPAN_OK ? model_start(*model, weights, activations, err) : status;
}

static inspan_status_t read_weights(const char *folder, const nn_model_t *model, inspan_error_t *err)
{
    char path[PATH_MAX];
    const nn_param_t *params = NULL;
    const uint32_t n = nn_model_params(model, &params);
    inspan_status_t status = path_in(folder, "model.safetensors", path, err);
    if (status != INSPAN_OK) return status;
    nn_param_t *into = malloc((n + 1) * sizeof *into);
    if (into == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to read %s", path);
    memcpy(into, params, n * sizeof *into);
    status = nn_safetensors_read(path, into, n, nn_model_config(model)->dtype, err);
    free(into);
    return status;
}

inspan_status_t nn_model_load(const char *folder, uint32_t micro_batch, uint32_t threads, nn_model_t **out,
                              inspan_error_t *err)
{
    char path[PATH_MAX];
    nn_model_config_t config;
    nn_model_t *model = NULL;
    inspan_status_t status = path_in(folder, "config.json", path, err);
    if (status == INSPAN_OK) status = read_config(path, &config, err);
    if (status == INSPAN_OK) status = open_checked(folder, &config, micro_batch, threads, &model, err);
    if (status == INSPAN_OK) status = read_weights(folder, model, err);
    if (status != INSPAN_OK) {
        nn_model_close(model);
        return status;
    }
    *out = model;
    return INSPAN_OK;
}
