/* Compiled with -ffp-contract=off; see the header for the rule that every line here obeys. */
#include "nn/optimizer_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "excess precision (x87) would change the bits: build with SSE2"
#endif

/* One body for both dtypes and all instruction sets: inlined into functions that differ in their target
 * alone. */
#define BODY static inline __attribute__((always_inline)) void

#define DEFINE_BODIES(real, suffix, root_of)                                                                 \
    BODY adamw_##suffix(real *restrict weights, real *restrict m, real *restrict v,                          \
                        const real *restrict sums, size_t n, const adamw_factors_t *factors)                 \
    {                                                                                                        \
        const real scale = (real)factors->scale, beta1 = (real)factors->beta1, beta2 = (real)factors->beta2; \
        const real rest1 = (real)(1 - factors->beta1), rest2 = (real)(1 - factors->beta2);                   \
        const real keep = (real)factors->keep, step = (real)factors->step, eps = (real)factors->eps;         \
        const real root = (real)factors->root;                                                               \
        for (size_t i = 0; i < n; i++) {                                                                     \
            real gradient = sums[i] * scale;                                                                 \
            real first = m[i] * beta1 + gradient * rest1;                                                    \
            real second = v[i] * beta2 + (gradient * gradient) * rest2;                                      \
            m[i] = first;                                                                                    \
            v[i] = second;                                                                                   \
            weights[i] = weights[i] * keep - step * (first / (root_of(second) * root + eps));                \
        }                                                                                                    \
    }                                                                                                        \
    BODY sgd_##suffix(real *restrict weights, real *restrict momentum, const real *restrict sums, size_t n,  \
                      const sgd_factors_t *factors)                                                          \
    {                                                                                                        \
        const real scale = (real)factors->scale, decay = (real)factors->weight_decay,                        \
                   lr = (real)factors->lr;                                                                   \
        const real kept = (real)factors->momentum;                                                           \
        if (momentum == NULL) {                                                                              \
            for (size_t i = 0; i < n; i++)                                                                   \
                weights[i] = weights[i] - lr * (sums[i] * scale + weights[i] * decay);                       \
            return;                                                                                          \
        }                                                                                                    \
        for (size_t i = 0; factors->nesterov && i < n; i++) {                                                \
            real gradient = sums[i] * scale + weights[i] * decay;                                            \
            real moved = momentum[i] * kept + gradient;                                                      \
            momentum[i] = moved;                                                                             \
            weights[i] = weights[i] - lr * (gradient + moved * kept);                                        \
        }                                                                                                    \
        for (size_t i = 0; !factors->nesterov && i < n; i++) {                                               \
            real moved = momentum[i] * kept + (sums[i] * scale + weights[i] * decay);                        \
            momentum[i] = moved;                                                                             \
            weights[i] = weights[i] - lr * moved;                                                            \
        }                                                                                                    \
    }                                                                                                        \
    /* Lanes as vectors, so that the compiler keeps the order by index whatever the width of its registers.  \
     */                                                                                                      \
    typedef real block_##suffix##_t __attribute__((vector_size(VECTOR * sizeof(real))));                     \
    BODY add_squares_##suffix(const real *sums, size_t n, double lanes[OPTIMIZER_LANES])                     \
    {                                                                                                        \
        lanes_t a, b, c, d;                                                                                  \
        memcpy(&a, lanes, sizeof a);                                                                         \
        memcpy(&b, lanes + VECTOR, sizeof b);                                                                \
        memcpy(&c, lanes + 2 * VECTOR, sizeof c);                                                            \
        memcpy(&d, lanes + 3 * VECTOR, sizeof d);                                                            \
        size_t i = 0;                                                                                        \
        for (; i + OPTIMIZER_LANES <= n; i += OPTIMIZER_LANES) {                                             \
            block_##suffix##_t blocks[4];                                                                    \
            memcpy(blocks, sums + i, sizeof blocks);                                                         \
            lanes_t w = __builtin_convertvector(blocks[0], lanes_t),                                         \
                    x = __builtin_convertvector(blocks[1], lanes_t);                                         \
            lanes_t y = __builtin_convertvector(blocks[2], lanes_t),                                         \
                    z = __builtin_convertvector(blocks[3], lanes_t);                                         \
            a += w * w;                                                                                      \
            b += x * x;                                                                                      \
            c += y * y;                                                                                      \
            d += z * z;                                                                                      \
        }                                                                                                    \
        memcpy(lanes, &a, sizeof a);                                                                         \
        memcpy(lanes + VECTOR, &b, sizeof b);                                                                \
        memcpy(lanes + 2 * VECTOR, &c, sizeof c);                                                            \
        memcpy(lanes + 3 * VECTOR, &d, sizeof d);                                                            \
        for (size_t lane = 0; i < n; i++, lane++) lanes[lane] += (double)sums[i] * (double)sums[i];          \
    }

#define VECTOR 4 /* lanes in a vector: the width of AVX2; two of SSE2 or half of AVX-512 */
_Static_assert(OPTIMIZER_LANES == 4 * VECTOR, "four vectors of lanes");
typedef double lanes_t __attribute__((vector_size(VECTOR * sizeof(double))));

DEFINE_BODIES(float, fp32, sqrtf)
DEFINE_BODIES(double, fp64, sqrt)

#define DEFINE_KERNELS(real, suffix, level, target)                                                          \
    target static void adamw_##suffix##_##level(void *weights, void *m, void *v, const void *sums, size_t n, \
                                                const adamw_factors_t *factors)                              \
    {                                                                                                        \
        adamw_##suffix(weights, m, v, sums, n, factors);                                                     \
    }                                                                                                        \
    target static void sgd_##suffix##_##level(void *weights, void *momentum, const void *sums, size_t n,     \
                                              const sgd_factors_t *factors)                                  \
    {                                                                                                        \
        sgd_##suffix(weights, momentum, sums, n, factors);                                                   \
    }                                                                                                        \
    target static void add_squares_##suffix##_##level(const void *sums, size_t n,                            \
                                                      double lanes[OPTIMIZER_LANES])                         \
    {                                                                                                        \
        add_squares_##suffix(sums, n, lanes);                                                                \
    }                                                                                                        \
    static const optimizer_kernels_t kernels_##suffix##_##level = {                                          \
        #level, adamw_##suffix##_##level, sgd_##suffix##_##level, add_squares_##suffix##_##level};

#define ANY_TARGET
DEFINE_KERNELS(float, fp32, scalar, ANY_TARGET)
DEFINE_KERNELS(double, fp64, scalar, ANY_TARGET)

#if defined(__x86_64__)
#define AVX2_TARGET   __attribute__((target("avx2")))
#define AVX512_TARGET __attribute__((target("avx512f,avx512vl,avx512dq")))
DEFINE_KERNELS(float, fp32, avx2, AVX2_TARGET)
DEFINE_KERNELS(double, fp64, avx2, AVX2_TARGET)
DEFINE_KERNELS(float, fp32, avx512, AVX512_TARGET)
DEFINE_KERNELS(double, fp64, avx512, AVX512_TARGET)
#endif

const optimizer_kernels_t *optimizer_kernels_at(int level, int fp64)
{
    if (level == 0) return fp64 ? &kernels_fp64_scalar : &kernels_fp32_scalar;
#if defined(__x86_64__)
    if (level > (int)cpu_isa_found()) return NULL;
    if (level == CPU_AVX2) return fp64 ? &kernels_fp64_avx2 : &kernels_fp32_avx2;
    if (level == CPU_AVX512) return fp64 ? &kernels_fp64_avx512 : &kernels_fp32_avx512;
#endif
    return NULL;
}

const optimizer_kernels_t *optimizer_kernels_best(int fp64)
{
    int level = (int)cpu_isa();
    while (optimizer_kernels_at(level, fp64) == NULL) level--;
    return optimizer_kernels_at(level, fp64);
}

double optimizer_fold(const double lanes[OPTIMIZER_LANES])
{
    double sums[OPTIMIZER_LANES];
    memcpy(sums, lanes, sizeof sums);
    for (size_t half = OPTIMIZER_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    return sums[0];
}

double optimizer_power(double base, uint64_t exponent)
{
    double power = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) power = power * base;
        base = base * base;
    }
    return power;
}

/* Taylor's series up to y^22 on [0, pi/2]: the next term is below 1e-19. */
double optimizer_cos_pi(double x)
{
    if (x > 0.5) return -optimizer_cos_pi(1 - x);
    const double y = x * 3.14159265358979323846;
    const double square = y * y;
    double sum = 1;
    for (int k = 22; k > 0; k -= 2) sum = 1 - sum * square / (double)(k * (k - 1));
    return sum;
}

double optimizer_sqrt(double x)
{
    return sqrt(x);
}
