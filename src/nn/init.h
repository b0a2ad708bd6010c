/*
 * Initial weights: value + deviation * normal, from the seed and the parameter's index alone, the same bits
 * on every machine (base/rng.h; init.c is compiled without contraction, too).
 */
#ifndef NN_INIT_H
#define NN_INIT_H

#include <stdint.h>

#include "nn/nn.h"

typedef struct init_rule {
    double value, deviation; /* deviation 0: constant */
} init_rule_t;

void init_weights(const nn_param_t *param, nn_dtype_t dtype, init_rule_t rule, uint64_t seed, uint32_t index);

#endif
