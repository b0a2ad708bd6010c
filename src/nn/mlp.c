/* Multi-layer perceptron: `layers` hidden layers of `dim` with GELU, then one linear layer to the classes. */
#include <math.h>

#include "nn/compute.h"

typedef struct layer {
    real_t *before; /* (samples, dim), before GELU */
    real_t *after;  /* (samples, dim) */
} layer_t;

typedef struct mlp {
    compute_t compute;
    real_t *logits;       /* (samples, classes) */
    real_t *d, *d_before; /* (samples, dim): gradients of a layer's result and of the one before it */
    layer_t layers[];
} mlp_t;

static uint32_t count_params(const nn_model_config_t *config)
{
    return 2 * (config->layers + 1);
}

static size_t state_bytes(const nn_model_config_t *config)
{
    return sizeof(mlp_t) + config->layers * sizeof(layer_t);
}

static size_t layer_inputs(const nn_model_config_t *config, uint32_t layer)
{
    return layer == 0 ? config->inputs : config->dim;
}

static void layout(nn_model_t *model, arena_t *weights, arena_t *arena)
{
    const nn_model_config_t *config = &model->config;
    mlp_t *mlp = model->state;
    uint64_t n = model->micro_batch;
    for (uint32_t i = 0; i <= config->layers; i++) {
        uint64_t in = layer_inputs(config, i), out = i < config->layers ? config->dim : config->classes;
        /* He et al. 2015 for what a rectifier follows; the last layer starts without an opinion on the
         * classes. */
        init_rule_t rule = MODEL_NORMAL(sqrt((i < config->layers ? 2.0 : 1.0) / (double)in));
        model_param(model, weights, rule, 2, (uint64_t[]){in, out}, "layers.%u.weight", i);
        model_param(model, weights, MODEL_CONSTANT(0), 1, &out, "layers.%u.bias", i);
    }
    REAL(compute_init)(&mlp->compute, model, config->layers == 0 ? 0 : config->dim, arena);
    for (uint32_t i = 0; i < config->layers; i++) {
        mlp->layers[i].before = arena_take(arena, n, (uint64_t)config->dim * sizeof(real_t));
        mlp->layers[i].after = arena_take(arena, n, (uint64_t)config->dim * sizeof(real_t));
    }
    mlp->logits = arena_take(arena, n, (uint64_t)config->classes * sizeof(real_t));
    if (config->layers == 0) return;
    mlp->d = arena_take(arena, n, (uint64_t)config->dim * sizeof(real_t));
    mlp->d_before = arena_take(arena, n, (uint64_t)config->dim * sizeof(real_t));
}

static void forward(nn_model_t *model, const nn_batch_t *batch, bool gradient, bool *hits)
{
    mlp_t *mlp = model->state;
    const compute_t *c = &mlp->compute;
    const nn_model_config_t *config = &model->config;
    const real_t *x = batch->features;
    for (uint32_t i = 0; i < config->layers; i++) {
        layer_t *l = &mlp->layers[i];
        REAL(linear_forward)
        (c, batch->samples, layer_inputs(config, i), config->dim, x, model->params[2 * i].weights, 0,
         l->before);
        REAL(bias_gelu)
        (c, batch->samples, config->dim, model->params[2 * i + 1].weights, l->before, l->after);
        x = l->after;
    }
    uint32_t head = 2 * config->layers;
    REAL(linear_forward)
    (c, batch->samples, layer_inputs(config, config->layers), config->classes, x, model->params[head].weights,
     0, mlp->logits);
    REAL(bias_add)(c, batch->samples, config->classes, model->params[head + 1].weights, mlp->logits);
    REAL(cross_entropy)
    (c, batch->samples, config->classes, model->targets, gradient, 1, mlp->logits, model->losses, hits);
}

static void backward(nn_model_t *model, const model_pass_t *pass)
{
    mlp_t *mlp = model->state;
    const compute_t *c = &mlp->compute;
    const nn_model_config_t *config = &model->config;
    size_t n = pass->batch->samples;
    forward(model, pass->batch, true, NULL);
    real_t *d = mlp->logits, *before = mlp->d, *spare = mlp->d_before;
    for (uint32_t i = config->layers + 1; i-- > 0;) {
        size_t in = layer_inputs(config, i), out = i < config->layers ? config->dim : config->classes;
        const real_t *x = i == 0 ? pass->batch->features : mlp->layers[i - 1].after;
        if (i < config->layers)
            REAL(gelu_backward)(c, n, out, mlp->layers[i].before, d, pass->grads[2 * i + 1]);
        else
            REAL(bias_backward)(c, n, out, d, pass->grads[2 * i + 1]);
        model_done(pass, 2 * i + 1);
        REAL(linear_backward_weight)(c, n, in, out, x, d, pass->grads[2 * i]);
        model_done(pass, 2 * i);
        if (i == 0) break; /* nobody needs the gradient of the features */
        REAL(linear_backward_input)(c, n, in, out, d, model->params[2 * i].weights, before);
        d = before;
        before = spare;
        spare = d;
    }
}

static void evaluate(nn_model_t *model, const nn_batch_t *batch, bool *hits)
{
    forward(model, batch, false, hits);
}

const model_ops_t REAL(mlp_ops) = {.count_params = count_params,
                                   .state_bytes = state_bytes,
                                   .layout = layout,
                                   .backward = backward,
                                   .evaluate = evaluate};
