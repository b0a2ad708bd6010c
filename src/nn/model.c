#include "nn/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nn/gemm.h"
#include "platform/os/os_memory.h"

/* ---- What a config may say ------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    uint32_t value, least, most;
} field_t;

static inspan_status_t check_fields(const field_t *fields, size_t n, inspan_error_t *err)
{
    for (size_t i = 0; i < n; i++) {
        const field_t *f = &fields[i];
        if (f->value < f->least || f->value > f->most)
            return error_set(err, INSPAN_INVALID, "model.%s is %u: expected %u to %u", f->name, f->value,
                             f->least, f->most);
    }
    return INSPAN_OK;
}

static inspan_status_t check_gpt(const nn_model_config_t *c, inspan_error_t *err)
{
    const field_t fields[] = {{"layers", c->layers, 1, 1024},
                              {"heads", c->heads, 1, 1024},
                              {"dim", c->dim, 1, 65536},
                              {"context", c->context, 1, 1 << 20},
                              {"vocabulary", c->vocabulary, 1, 65536}};
    inspan_status_t status = check_fields(fields, sizeof fields / sizeof fields[0], err);
    if (status != INSPAN_OK) return status;
    if (c->dim % c->heads != 0)
        return error_set(err, INSPAN_INVALID, "model.dim is %u, not a multiple of model.heads, which is %u",
                         c->dim, c->heads);
    return INSPAN_OK;
}

static inspan_status_t check_mlp(const nn_model_config_t *c, inspan_error_t *err)
{
    const field_t fields[] = {{"inputs", c->inputs, 1, 1 << 26},
                              {"classes", c->classes, 1, 1 << 24},
                              {"layers", c->layers, 0, 1024},
                              {"dim", c->layers == 0 ? 1 : c->dim, 1, 1 << 20}};
    return check_fields(fields, sizeof fields / sizeof fields[0], err);
}

static inspan_status_t check_conv(const nn_model_config_t *c, inspan_error_t *err)
{
    const field_t fields[] = {{"channels", c->channels, 1, 4096},
                              {"height", c->height, 4, 8192},
                              {"width", c->width, 4, 8192},
                              {"classes", c->classes, 1, 1 << 24},
                              {"filters", c->filters, 1, 16384}};
    inspan_status_t status = check_fields(fields, sizeof fields / sizeof fields[0], err);
    if (status != INSPAN_OK) return status;
    if (c->inputs != (uint64_t)c->channels * c->height * c->width)
        return error_set(err, INSPAN_INVALID,
                         "model.inputs is %u: expected channels * height * width = %u * %u * %u", c->inputs,
                         c->channels, c->height, c->width);
    const uint64_t pooled =
        (uint64_t)2 * c->filters * (c->height / 4) * (c->width / 4); /* the head's inputs */
    if (pooled > INT32_MAX)
        return error_set(
            err, INSPAN_INVALID,
            "model.filters is %u: for images of %u x %u the last layer has %llu inputs, at most %d; "
            "take fewer filters or smaller images",
            c->filters, c->height, c->width, (unsigned long long)pooled, INT32_MAX);
    return INSPAN_OK;
}

static uint64_t targets_per_sample(const nn_model_config_t *config)
{
    return config->kind == NN_GPT ? config->context : 1;
}

/* Sizes of matrices are ints inside the libraries. */
static inspan_status_t check_batch_size(const nn_model_config_t *config, uint32_t micro_batch,
                                        inspan_error_t *err)
{
    if (micro_batch == 0)
        return error_set(err, INSPAN_INVALID, "micro-batch is 0: expected at least 1 sample");
    uint64_t rows = micro_batch * targets_per_sample(config);
    if (rows > INT32_MAX)
        return error_set(err, INSPAN_INVALID,
                         "micro-batch of %u samples is %llu rows: at most %d; take a smaller one",
                         micro_batch, (unsigned long long)rows, INT32_MAX);
    return INSPAN_OK;
}

static inspan_status_t check_config(const nn_model_config_t *config, uint32_t micro_batch,
                                    inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    if (config->dtype != NN_FP32 && config->dtype != NN_FP64)
        return error_set(err, INSPAN_INVALID, "dtype %d is not known: expected fp32 or fp64",
                         (int)config->dtype);
    switch (config->kind) {
    case NN_GPT: status = check_gpt(config, err); break;
    case NN_MLP: status = check_mlp(config, err); break;
    case NN_CONV: status = check_conv(config, err); break;
    default: return error_set(err, INSPAN_INVALID, "model.kind %d is not known", (int)config->kind);
    }
    return status == INSPAN_OK ? check_batch_size(config, micro_batch, err) : status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

void model_param(nn_model_t *model, arena_t *weights, init_rule_t rule, uint32_t n_dims,
                 const uint64_t *shape, const char *name, ...)
{
    nn_param_t *param = &model->params[model->n_params];
    *param = (nn_param_t){.n_dims = n_dims, .count = 1, .decay = n_dims >= 2};
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(param->name, sizeof param->name, name, arguments);
    va_end(arguments);
    for (uint32_t i = 0; i < n_dims; i++) {
        param->shape[i] = shape[i];
        if (__builtin_mul_overflow(param->count, shape[i], &param->count)) weights->overflow = true;
    }
    param->weights = arena_take(weights, param->count, model->config.dtype == NN_FP32 ? 4 : 8);
    model->rules[model->n_params++] = rule;
}

static void layout(nn_model_t *model, arena_t *weights, arena_t *activations)
{
    model->n_params = 0;
    uint64_t targets = model->micro_batch * targets_per_sample(&model->config);
    if (model->config.kind == NN_GPT) model->inputs = arena_take(activations, targets, sizeof *model->inputs);
    model->targets = arena_take(activations, targets, sizeof *model->targets);
    model->losses = arena_take(activations, targets, sizeof *model->losses);
    model->hits = arena_take(activations, targets, sizeof *model->hits);
    model->ops->layout(model, weights, activations);
}

static const model_ops_t *find_ops(const nn_model_config_t *config)
{
    static const model_ops_t *const OPS[3][2] = {[NN_GPT] = {&gpt_ops_f32, &gpt_ops_f64},
                                                 [NN_MLP] = {&mlp_ops_f32, &mlp_ops_f64},
                                                 [NN_CONV] = {&conv_ops_f32, &conv_ops_f64}};
    return OPS[config->kind][config->dtype];
}

inspan_status_t model_plan(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                           nn_model_t **out, uint64_t *weights_bytes, uint64_t *activation_bytes,
                           inspan_error_t *err)
{
    if (threads == 0 || threads > POOL_THREADS_MAX)
        return error_set(err, INSPAN_INVALID, "compute threads: expected 1 to %d, found %u", POOL_THREADS_MAX,
                         threads);
    inspan_status_t status = check_config(config, micro_batch, err);
    if (status != INSPAN_OK) return status;
    const model_ops_t *ops = find_ops(config);
    nn_model_t *model = calloc(1, sizeof *model);
    if (model == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a model");
    *model = (nn_model_t){.config = *config, .micro_batch = micro_batch, .threads = threads, .ops = ops};
    model->params = calloc(ops->count_params(config), sizeof *model->params);
    model->rules = calloc(ops->count_params(config), sizeof *model->rules);
    model->state = calloc(1, ops->state_bytes(config));
    if (model->params == NULL || model->rules == NULL || model->state == NULL) {
        nn_model_close(model);
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the description of a model");
    }
    arena_t weights = {0}, activations = {0};
    layout(model, &weights, &activations);
    if (weights.overflow || activations.overflow) {
        nn_model_close(model);
        return error_set(err, INSPAN_INVALID,
                         "the model's size does not fit into 64 bits: take smaller layers");
    }
    *weights_bytes = weights.used;
    *activation_bytes = activations.used;
    *out = model;
    return INSPAN_OK;
}

inspan_status_t nn_model_memory(const nn_model_config_t *config, uint32_t micro_batch,
                                uint64_t *weights_bytes, uint64_t *activation_bytes, inspan_error_t *err)
{
    nn_model_t *model = NULL;
    inspan_status_t status = model_plan(config, micro_batch, 1, &model, weights_bytes, activation_bytes, err);
    if (status == INSPAN_OK) nn_model_close(model);
    return status;
}

static inspan_status_t take_memory(nn_model_t *model, uint64_t weights_bytes, uint64_t activation_bytes,
                                   inspan_error_t *err)
{
    const uint64_t bytes = weights_bytes + activation_bytes;
    void *memory = os_memory_take(bytes);
    if (memory == NULL)
        return error_set_errno(err, INSPAN_NO_MEMORY,
                               "no memory for a model: weights %llu bytes, activations %llu",
                               (unsigned long long)weights_bytes, (unsigned long long)activation_bytes);
    model->memory = memory;
    model->memory_bytes = bytes;
    arena_t weights = {.base = memory}, activations = {.base = model->memory + weights_bytes};
    layout(model, &weights, &activations);
    return INSPAN_OK;
}

inspan_status_t model_start(nn_model_t *model, uint64_t weights_bytes, uint64_t activation_bytes,
                            inspan_error_t *err)
{
    const gemm_choice_t *gemm = gemm_choose();
    if (gemm->f32 == NULL || gemm->f64 == NULL)
        return error_set(err, INSPAN_UNSUPPORTED, "no right matrix product on this machine: %s",
                         gemm->report);
    gemm_enter_thread();
    inspan_status_t status = pool_open(model->threads, gemm_enter_thread, &model->pool, err);
    if (status != INSPAN_OK) return status;
    status = take_memory(model, weights_bytes, activation_bytes, err);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < model->n_params; i++)
        init_weights(&model->params[i], model->config.dtype, model->rules[i], model->config.seed, i);
    return INSPAN_OK;
}

inspan_status_t nn_model_open(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                              nn_model_t **out, inspan_error_t *err)
{
    *out = NULL;
    nn_model_t *model = NULL;
    uint64_t weights_bytes = 0, activation_bytes = 0;
    inspan_status_t status =
        model_plan(config, micro_batch, threads, &model, &weights_bytes, &activation_bytes, err);
    if (status == INSPAN_OK) status = model_start(model, weights_bytes, activation_bytes, err);
    if (status != INSPAN_OK) {
        nn_model_close(model);
        return status;
    }
    *out = model;
    return INSPAN_OK;
}

void nn_model_close(nn_model_t *model)
{
    if (model == NULL) return;
    pool_close(model->pool);
    if (model->memory != NULL) {
#if ARENA_GAP
        __asan_unpoison_memory_region(model->memory, model->memory_bytes);
#endif
        free(model->memory);
    }
    free(model->state);
    free(model->rules);
    free(model->params);
    free(model);
}

uint32_t nn_model_params(const nn_model_t *model, const nn_param_t **params)
{
    *params = model->params;
    return model->n_params;
}

const nn_model_config_t *nn_model_config(const nn_model_t *model)
{
    return &model->config;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static inspan_status_t take_tokens(nn_model_t *model, const nn_batch_t *batch, inspan_error_t *err)
{
    size_t context = model->config.context;
    if (batch->samples > 0 && batch->tokens == NULL)
        return error_set(err, INSPAN_INVALID, "a gpt's batch needs tokens, and has none");
    for (size_t sample = 0; sample < batch->samples; sample++) {
        const uint16_t *tokens = batch->tokens + sample * (context + 1);
        for (size_t i = 0; i <= context; i++) {
            if (tokens[i] >= model->config.vocabulary)
                return error_set(err, INSPAN_INVALID, "token %zu of sample %zu is %u: the vocabulary has %u",
                                 i, sample, tokens[i], model->config.vocabulary);
            if (i < context) model->inputs[sample * context + i] = tokens[i];
            if (i > 0) model->targets[sample * context + i - 1] = tokens[i];
        }
    }
    return INSPAN_OK;
}

static inspan_status_t take_labels(nn_model_t *model, const nn_batch_t *batch, inspan_error_t *err)
{
    if (batch->samples > 0 && (batch->features == NULL || batch->labels == NULL))
        return error_set(err, INSPAN_INVALID, "the batch needs features and labels, and has not both");
    for (size_t sample = 0; sample < batch->samples; sample++) {
        if (batch->labels[sample] >= model->config.classes)
            return error_set(err, INSPAN_INVALID, "label of sample %zu is %u: there are %u classes", sample,
                             batch->labels[sample], model->config.classes);
        model->targets[sample] = batch->labels[sample];
    }
    return INSPAN_OK;
}

/* Check and take in what comes from outside; nothing has been added to any gradient when this fails. */
static inspan_status_t take_batch(nn_model_t *model, const nn_batch_t *batch, inspan_error_t *err)
{
    if (batch->samples > model->micro_batch)
        return error_set(err, INSPAN_INVALID, "batch of %u samples: the model was opened for at most %u",
                         batch->samples, model->micro_batch);
    gemm_enter_thread(); /* the caller may be another thread than the one that opened the model */
    return model->config.kind == NN_GPT ? take_tokens(model, batch, err) : take_labels(model, batch, err);
}

/* Sum over samples of the mean over a sample's targets. */
static double sum_losses(const nn_model_t *model, uint32_t samples)
{
    uint64_t per_sample = targets_per_sample(&model->config);
    double sum = 0;
    for (uint64_t i = 0; i < samples * per_sample; i++) sum += model->losses[i];
    return sum / (double)per_sample;
}

inspan_status_t nn_model_backward(nn_model_t *model, const nn_batch_t *batch, void *const *grads,
                                  nn_ready_fn ready, void *context, double *loss_sum, inspan_error_t *err)
{
    inspan_status_t status = take_batch(model, batch, err);
    if (status != INSPAN_OK) return status;
    model_pass_t pass = {.batch = batch, .grads = grads, .ready = ready, .context = context};
    if (batch->samples > 0)
        model->ops->backward(model, &pass);
    else /* nothing to add: every gradient is complete as it is */
        for (uint32_t i = model->n_params; i-- > 0;) model_done(&pass, i);
    *loss_sum = sum_losses(model, batch->samples);
    return INSPAN_OK;
}

inspan_status_t nn_model_evaluate(nn_model_t *model, const nn_batch_t *batch, double *loss_sum,
                                  uint64_t *correct, inspan_error_t *err)
{
    inspan_status_t status = take_batch(model, batch, err);
    if (status != INSPAN_OK) return status;
    if (batch->samples > 0) model->ops->evaluate(model, batch, correct == NULL ? NULL : model->hits);
    *loss_sum = sum_losses(model, batch->samples);
    if (correct == NULL) return INSPAN_OK;
    *correct = 0;
    for (uint64_t i = 0; i < batch->samples * targets_per_sample(&model->config); i++)
        *correct += model->hits[i];
    return INSPAN_OK;
}

inspan_status_t nn_model_next(nn_model_t *model, const uint16_t *tokens, uint32_t n, double *logits,
                              inspan_error_t *err)
{
    if (model->ops->next == NULL) return error_set(err, INSPAN_INVALID, "only a gpt can say the next token");
    if (n == 0 || n > model->config.context)
        return error_set(err, INSPAN_INVALID, "%u tokens before the next one: expected 1 to %u (the context)",
                         n, model->config.context);
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= model->config.vocabulary)
            return error_set(err, INSPAN_INVALID, "token %u is %u: the vocabulary has %u", i, tokens[i],
                             model->config.vocabulary);
        model->inputs[i] = tokens[i];
    }
    gemm_enter_thread();
    model->ops->next(model, n, logits);
    return INSPAN_OK;
}
