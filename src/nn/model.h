/*
 * What the kinds of models share. A kind and type gives one table of operations (gpt.c, mlp.c, conv.c, each
 * compiled for fp32 and fp64); model.c checks what comes from outside, takes the memory and calls them.
 */
#ifndef NN_MODEL_H
#define NN_MODEL_H

#include "nn/arena.h"
#include "nn/init.h"
#include "nn/nn.h"
#include "nn/pool.h"

typedef struct model_ops model_ops_t;

struct nn_model {
    nn_model_config_t config;
    uint32_t micro_batch, threads;
    const model_ops_t *ops;
    uint32_t n_params;
    nn_param_t *params;
    init_rule_t *rules; /* (n_params) */
    pool_t *pool;
    void *state;       /* of the kind: pointers into memory */
    uint32_t *inputs;  /* gpt: tokens of the pass (samples * context) */
    uint32_t *targets; /* tokens or labels of the pass (samples * targets_per_sample) */
    double *losses;    /* of each target */
    bool *hits;
    char *memory; /* weights, then activations */
    uint64_t memory_bytes;
};

/* One backward pass; model_done tells the caller that a parameter's gradient is complete. */
typedef struct model_pass {
    const nn_batch_t *batch;
    void *const *grads;
    nn_ready_fn ready;
    void *context;
} model_pass_t;

static inline void model_done(const model_pass_t *pass, uint32_t index)
{
    if (pass->ready != NULL) pass->ready(pass->context, index);
}

/* Check the config, and lay a model out without taking memory for it: names and shapes of its parameters are
 * there, their weights are not. INVALID, NO_MEMORY. nn_model_close frees. */
inspan_status_t model_plan(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                           nn_model_t **model, uint64_t *weights_bytes, uint64_t *activation_bytes,
                           inspan_error_t *err);

/* Take the memory that the plan names, start the threads, set the initial weights. After a failure the model
 * is good for nn_model_close alone. */
inspan_status_t model_start(nn_model_t *model, uint64_t weights_bytes, uint64_t activation_bytes,
                            inspan_error_t *err);

struct model_ops {
    uint32_t (*count_params)(const nn_model_config_t *config);
    size_t (*state_bytes)(const nn_model_config_t *config);
    /* Register every parameter with model_param and cut the activations. Runs twice: for the sizes, then for
     * real. */
    void (*layout)(nn_model_t *model, arena_t *weights, arena_t *activations);
    /* Inputs and targets are checked and in model->inputs, ->targets. Losses (and hits unless NULL) go to
     * model. */
    void (*backward)(nn_model_t *model, const model_pass_t *pass);
    void (*evaluate)(nn_model_t *model, const nn_batch_t *batch, bool *hits);
    void (*next)(nn_model_t *model, uint32_t n, double *logits); /* gpt only, else NULL */
};

/* Register the next parameter: weight decay applies from two dimensions on. Name as printf. */
void model_param(nn_model_t *model, arena_t *weights, init_rule_t rule, uint32_t n_dims,
                 const uint64_t *shape, const char *name, ...) __attribute__((format(printf, 6, 7)));

extern const model_ops_t gpt_ops_f32, gpt_ops_f64, mlp_ops_f32, mlp_ops_f64, conv_ops_f32, conv_ops_f64;

#define MODEL_CONSTANT(x) ((init_rule_t){.value = (x)})
#define MODEL_NORMAL(d)   ((init_rule_t){.deviation = (d)})

#endif
