/* A small training for the tests of checkpoints: three parameters, AdamW, a gradient that is a function of
 * the step. */
#ifndef TRAIN_CHECKPOINT_TEST_H
#define TRAIN_CHECKPOINT_TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "nn/nn.h"
#include "train/checkpoint.h"

#define TRAINING_PARAMS 3
#ifndef TRAINING_COUNT
#define TRAINING_COUNT 6 /* numbers of each parameter, even */
#endif

typedef struct training {
    float weights[TRAINING_PARAMS][TRAINING_COUNT];
    nn_param_t params[TRAINING_PARAMS];
    nn_optimizer_t *optimizer;
    checkpoint_config_t config;
    checkpoint_arrays_t arrays;
} training_t;

static inline void training_open(training_t *t)
{
    static const char *const names[TRAINING_PARAMS] = {"0.weight", "0.bias", "1.weight"};
    inspan_error_t err;
    memset(t, 0, sizeof *t);
    for (uint32_t i = 0; i < TRAINING_PARAMS; i++) {
        t->params[i] = (nn_param_t){
            .n_dims = 2, .shape = {2, TRAINING_COUNT / 2}, .count = TRAINING_COUNT, .weights = t->weights[i]};
        snprintf(t->params[i].name, sizeof t->params[i].name, "%s", names[i]);
    }
    t->config = (checkpoint_config_t){
        .model = {.kind = NN_MLP, .seed = UINT64_MAX - 1, .layers = 1, .dim = 3, .inputs = 2, .classes = 3},
        .optimizer = {.kind = NN_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .steps = 100000},
        .global_batch = 64,
        .data_samples = 5000,
    };
    if (nn_optimizer_open(&t->config.optimizer, t->params, TRAINING_PARAMS, NN_FP32, &t->optimizer, &err) !=
        INSPAN_OK)
        fail_msg("%s", err.text);
    t->arrays = (checkpoint_arrays_t){.params = t->params, .n_params = TRAINING_PARAMS};
    t->arrays.n_moments = nn_optimizer_state(t->optimizer, &t->arrays.moments);
}

static inline void training_close(training_t *t)
{
    nn_optimizer_close(t->optimizer);
}

static inline void training_step(training_t *t, uint64_t step)
{
    static float gradient[TRAINING_COUNT];
    const void *gradients[TRAINING_PARAMS] = {gradient, gradient, gradient};
    inspan_error_t err;
    double norm;
    for (uint64_t i = 0; i < TRAINING_COUNT; i++) gradient[i] = (float)((step * 7 + i * 3) % 11) - 5;
    if (nn_optimizer_apply(t->optimizer, gradients, 1, step, &norm, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
}

/* Bit for bit. */
static inline bool training_equal(const void *a, const void *b)
{
    return memcmp(a, b, TRAINING_COUNT * sizeof(float)) == 0;
}

static inline bool training_same(const training_t *a, const training_t *b)
{
    bool same = true;
    for (uint32_t i = 0; i < TRAINING_PARAMS; i++)
        same = same && training_equal(a->weights[i], b->weights[i]);
    for (uint32_t i = 0; i < a->arrays.n_moments; i++)
        same = same && training_equal(a->arrays.moments[i].weights, b->arrays.moments[i].weights);
    return same;
}

#endif
