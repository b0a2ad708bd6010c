#include "nn/init.h"

#include "base/rng.h"

void init_weights(const nn_param_t *param, nn_dtype_t dtype, init_rule_t rule, uint64_t seed, uint32_t index)
{
    rng_t rng;
    rng_seed(&rng, seed, (uint64_t)0x6e6e << 32 | index); /* streams of their own among the seed's users */
    for (uint64_t i = 0; i < param->count; i++) {
        double w = rule.deviation == 0 ? rule.value : rule.value + rule.deviation * rng_normal(&rng);
        if (dtype == NN_FP32)
            ((float *)param->weights)[i] = (float)w;
        else
            ((double *)param->weights)[i] = w;
    }
}
