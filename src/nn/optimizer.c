#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nn/nn.h"
#include "nn/optimizer_kernels.h"
#include "platform/os/os_memory.h"

#define STATE_ALIGNMENT 64
#define CLIP_MARGIN     1e-6 /* added to the norm as PyTorch's clip_grad_norm_ does, so that both agree */
#define MOMENTS_MAX     2    /* arrays of state per parameter */

struct nn_optimizer {
    nn_optimizer_config_t config;
    const optimizer_kernels_t *kernels;
    nn_dtype_t dtype;
    uint32_t n_params, n_moments;
    nn_param_t *params; /* (n_params), weights are the model's */
    nn_param_t *state;  /* (n_moments x n_params), all of the first moment come first */
    void *memory;       /* behind state */
};

static size_t dtype_bytes(nn_dtype_t dtype)
{
    return dtype == NN_FP64 ? sizeof(double) : sizeof(float);
}

/* ---- The schedule ---------------------------------------------------------------------------- */

double nn_learning_rate(const nn_optimizer_config_t *config, uint64_t step)
{
    if (step < config->warmup) return config->lr * ((double)(step + 1) / (double)config->warmup);
    uint64_t span = config->steps > config->warmup ? config->steps - config->warmup : 1;
    uint64_t done = step - config->warmup;
    double progress = done < span ? (double)done / (double)span : 1;
    return config->min_lr + (config->lr - config->min_lr) * (0.5 * (1 + optimizer_cos_pi(progress)));
}

/* ---- Opening --------------------------------------------------------------------------------- */

static const char *const moment_names[2][MOMENTS_MAX] = {
    [NN_SGD] = {"momentum_buffer", NULL},
    [NN_ADAMW] = {"exp_avg", "exp_avg_sq"},
};

static uint32_t moments_of(const nn_optimizer_config_t *config)
{
    if (config->kind == NN_ADAMW) return 2;
    return config->momentum > 0 ? 1 : 0;
}

static inspan_status_t check_config(const nn_optimizer_config_t *config, inspan_error_t *err)
{
    if (config->kind != NN_SGD && config->kind != NN_ADAMW)
        return error_set(err, INSPAN_INVALID, "optimiser: unknown kind %d", (int)config->kind);
    if (!(config->lr >= 0) || !(config->min_lr >= 0) || !(config->clip >= 0) || !(config->weight_decay >= 0))
        return error_set(err, INSPAN_INVALID,
                         "optimiser: lr, min_lr, clip and weight_decay must not be negative");
    if (config->kind == NN_SGD && !(config->momentum >= 0 && config->momentum < 1))
        return error_set(err, INSPAN_INVALID, "optimiser: momentum %g is not in [0, 1)", config->momentum);
    if (config->kind == NN_ADAMW && !(config->beta1 >= 0 && config->beta1 < 1 && config->beta2 >= 0 &&
                                      config->beta2 < 1 && config->eps > 0))
        return error_set(err, INSPAN_INVALID,
                         "optimiser: beta1 %g, beta2 %g must be in [0, 1), eps %g above 0", config->beta1,
                         config->beta2, config->eps);
    return INSPAN_OK;
}

static size_t padded_bytes(const nn_param_t *param, nn_dtype_t dtype)
{
    size_t bytes = param->count * dtype_bytes(dtype);
    return (bytes + STATE_ALIGNMENT - 1) / STATE_ALIGNMENT * STATE_ALIGNMENT;
}

/* All moments from one zeroed block; each array starts on a cache line. */
static inspan_status_t lay_out_state(nn_optimizer_t *optimizer, inspan_error_t *err)
{
    size_t bytes = STATE_ALIGNMENT;
    for (uint32_t i = 0; i < optimizer->n_params; i++)
        bytes += optimizer->n_moments * padded_bytes(&optimizer->params[i], optimizer->dtype);
    optimizer->memory = os_memory_take(bytes);
    if (optimizer->memory == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %zu bytes of optimiser state", bytes);
    char *at = optimizer->memory;
    for (uint32_t moment = 0; moment < optimizer->n_moments; moment++) {
        for (uint32_t i = 0; i < optimizer->n_params; i++) {
            nn_param_t *state = &optimizer->state[moment * optimizer->n_params + i];
            *state = optimizer->params[i];
            const char *prefix = moment_names[optimizer->config.kind][moment];
            int length =
                snprintf(state->name, sizeof state->name, "%s.%s", prefix, optimizer->params[i].name);
            if (length < 0 || (size_t)length >= sizeof state->name)
                return error_set(err, INSPAN_INVALID,
                                 "name of parameter %s is too long for its optimiser state",
                                 optimizer->params[i].name);
            state->weights = at;
            at += padded_bytes(&optimizer->params[i], optimizer->dtype);
        }
    }
    return INSPAN_OK;
}

inspan_status_t nn_optimizer_open(const nn_optimizer_config_t *config, const nn_param_t *params,
                                  uint32_t n_params, nn_dtype_t dtype, nn_optimizer_t **out,
                                  inspan_error_t *err)
{
    inspan_status_t status = check_config(config, err);
    if (status != INSPAN_OK) return status;
    nn_optimizer_t *optimizer = calloc(1, sizeof *optimizer);
    if (optimizer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the optimiser");
    optimizer->config = *config;
    optimizer->kernels = optimizer_kernels_best(dtype == NN_FP64);
    optimizer->dtype = dtype;
    optimizer->n_params = n_params;
    optimizer->n_moments = moments_of(config);
    optimizer->params = calloc(n_params + 1, sizeof *optimizer->params);
    optimizer->state = calloc((size_t)n_params * MOMENTS_MAX + 1, sizeof *optimizer->state);
    if (optimizer->params == NULL || optimizer->state == NULL) {
        status = error_set(err, INSPAN_NO_MEMORY, "no memory for the optimiser");
    } else {
        if (n_params > 0) memcpy(optimizer->params, params, n_params * sizeof *params);
        status = lay_out_state(optimizer, err);
    }
    if (status != INSPAN_OK) {
        nn_optimizer_close(optimizer);
        return status;
    }
    *out = optimizer;
    return INSPAN_OK;
}

void nn_optimizer_close(nn_optimizer_t *optimizer)
{
    if (optimizer == NULL) return;
    free(optimizer->memory);
    free(optimizer->state);
    free(optimizer->params);
    free(optimizer);
}

uint32_t nn_optimizer_state(const nn_optimizer_t *optimizer, const nn_param_t **state)
{
    *state = optimizer->state;
    return optimizer->n_moments * optimizer->n_params;
}

/* ---- One step -------------------------------------------------------------------------------- */

static double global_norm(const nn_optimizer_t *optimizer, const void *const *grad_sums)
{
    double lanes[OPTIMIZER_LANES] = {0};
    for (uint32_t i = 0; i < optimizer->n_params; i++)
        optimizer->kernels->add_squares(grad_sums[i], optimizer->params[i].count, lanes);
    return optimizer_sqrt(optimizer_fold(lanes));
}

static void apply_adamw(nn_optimizer_t *optimizer, const void *const *grad_sums, double scale, uint64_t step,
                        uint64_t updates, const bool *only)
{
    const nn_optimizer_config_t *config = &optimizer->config;
    double lr = nn_learning_rate(config, step);
    adamw_factors_t factors = {
        .scale = scale, .beta1 = config->beta1, .beta2 = config->beta2, .eps = config->eps};
    factors.step = lr / (1 - optimizer_power(config->beta1, updates + 1));
    factors.root = 1 / optimizer_sqrt(1 - optimizer_power(config->beta2, updates + 1));
    for (uint32_t i = 0; i < optimizer->n_params; i++) {
        const nn_param_t *param = &optimizer->params[i];
        if (only != NULL && !only[i]) continue;
        factors.keep = param->decay ? 1 - lr * config->weight_decay : 1;
        optimizer->kernels->adamw(param->weights, optimizer->state[i].weights,
                                  optimizer->state[optimizer->n_params + i].weights, grad_sums[i],
                                  param->count, &factors);
    }
}

static void apply_sgd(nn_optimizer_t *optimizer, const void *const *grad_sums, double scale, uint64_t step,
                      const bool *only)
{
    const nn_optimizer_config_t *config = &optimizer->config;
    sgd_factors_t factors = {.scale = scale, .momentum = config->momentum, .nesterov = config->nesterov};
    factors.lr = nn_learning_rate(config, step);
    for (uint32_t i = 0; i < optimizer->n_params; i++) {
        const nn_param_t *param = &optimizer->params[i];
        if (only != NULL && !only[i]) continue;
        factors.weight_decay = param->decay ? config->weight_decay : 0;
        optimizer->kernels->sgd(param->weights, optimizer->n_moments > 0 ? optimizer->state[i].weights : NULL,
                                grad_sums[i], param->count, &factors);
    }
}

/* Out of line, so that no arithmetic of it moves out of the floating-point mode set around the call. */
static __attribute__((noinline)) inspan_status_t apply(nn_optimizer_t *optimizer,
                                                       const void *const *grad_sums, double total_samples,
                                                       uint64_t step, uint64_t updates, const bool *only,
                                                       double *norm, inspan_error_t *err)
{
    if (!(total_samples > 0))
        return error_set(err, INSPAN_INVALID, "optimiser: step %llu has no samples",
                         (unsigned long long)step);
    *norm = global_norm(optimizer, grad_sums) / total_samples;
    if (!isfinite(*norm))
        return error_set(
            err, INSPAN_INVALID,
            "the gradient of step %llu is not finite (its norm is %g): the training diverged; a smaller "
            "train.lr, a longer train.warmup or train.clip help",
            (unsigned long long)step,
            isnan(*norm) ? (double)NAN : *norm); /* without the sign that some NaNs have */
    double scale = 1 / total_samples;
    double shrink = optimizer->config.clip > 0 ? optimizer->config.clip / (*norm + CLIP_MARGIN) : 1;
    if (shrink < 1) scale = scale * shrink;
    if (optimizer->config.kind == NN_ADAMW)
        apply_adamw(optimizer, grad_sums, scale, step, updates, only);
    else
        apply_sgd(optimizer, grad_sums, scale, step, only);
    return INSPAN_OK;
}

inspan_status_t nn_optimizer_apply_at(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                      double total_samples, uint64_t step, uint64_t updates, const bool *only,
                                      double *norm, inspan_error_t *err)
{
    /* Another rounding, or flush-to-zero that some library has set on this thread, would change bits. */
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    inspan_status_t status = apply(optimizer, grad_sums, total_samples, step, updates, only, norm, err);
    fesetenv(&callers);
    return status;
}

inspan_status_t nn_optimizer_apply_some(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                        double total_samples, uint64_t step, const bool *only, double *norm,
                                        inspan_error_t *err)
{
    return nn_optimizer_apply_at(optimizer, grad_sums, total_samples, step, step, only, norm, err);
}

inspan_status_t nn_optimizer_apply(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                   double total_samples, uint64_t step, double *norm, inspan_error_t *err)
{
    return nn_optimizer_apply_some(optimizer, grad_sums, total_samples, step, NULL, norm, err);
}
