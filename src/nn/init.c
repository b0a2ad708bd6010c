#include "nn/init.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)), x = m 2^e, m in [1/sqrt 2, sqrt 2]; the series ends below
 * 2^-53. */
double init_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1) / (m + 1), square = s * s, series = 0;
    for (int k = 21; k >= 1; k -= 2) series = series * square + 1.0 / k;
    return exponent * 0.69314718055994531 + 2 * s * series;
}

/* Polar method (Marsaglia, Bray 1964), both numbers of a pair used. */
typedef struct normal {
    rng_t rng;
    double kept;
    int has_kept;
} normal_t;

static double next_normal(normal_t *normal)
{
    if (normal->has_kept) {
        normal->has_kept = 0;
        return normal->kept;
    }
    double u, v, s;
    do {
        u = 2 * rng_uniform(&normal->rng) - 1;
        v = 2 * rng_uniform(&normal->rng) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    double scale = sqrt(-2 * init_log(s) / s);
    normal->kept = v * scale;
    normal->has_kept = 1;
    return u * scale;
}

void init_weights(const nn_param_t *param, nn_dtype_t dtype, init_rule_t rule, uint64_t seed, uint32_t index)
{
    normal_t normal = {.has_kept = 0};
    rng_seed(&normal.rng, seed,
             (uint64_t)0x6e6e << 32 | index); /* streams of their own among the seed's users */
    for (uint64_t i = 0; i < param->count; i++) {
        double w = rule.deviation == 0 ? rule.value : rule.value + rule.deviation * next_normal(&normal);
        if (dtype == NN_FP32)
            ((float *)param->weights)[i] = (float)w;
        else
            ((double *)param->weights)[i] = w;
    }
}
