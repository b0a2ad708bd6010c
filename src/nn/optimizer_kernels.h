/*
 * The arithmetic of the optimisers: element-wise updates, the gradient's global norm, learning rate and
 * powers.
 *
 * Every member of a job applies the same reduced gradient on its own machine, and all must hold the same bits
 * afterwards. So these kernels use add, subtract, multiply, divide and square root alone, all of which IEEE
 * 754 rounds correctly, without contraction into fused multiply-adds (the files are compiled with
 * -ffp-contract=off), in an order that the element's index fixes. An instruction set then changes the speed
 * and no bit. Golden bits in optimizer_test.c.
 */
#ifndef NN_OPTIMIZER_KERNELS_H
#define NN_OPTIMIZER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTIMIZER_LANES 16 /* partial sums of the norm: element i goes to lane i % 16 */

/* Factors of one AdamW update (Loshchilov, Hutter 2019), the same for all elements of a parameter. */
typedef struct adamw_factors {
    double scale;        /* of the gradient sum: clipping / samples */
    double beta1, beta2; /* decay of the moments */
    double keep;         /* of the weights: 1 - lr * weight_decay */
    double step;         /* lr / (1 - beta1^t) */
    double root;         /* 1 / sqrt(1 - beta2^t) */
    double eps;
} adamw_factors_t;

typedef struct sgd_factors {
    double scale, momentum, weight_decay, lr;
    bool nesterov; /* the momentum looks one update ahead */
} sgd_factors_t;

/* For one dtype on one instruction set; arrays are (n) of that dtype, aligned to an element alone. */
typedef struct optimizer_kernels {
    const char *isa; /* scalar, avx2, avx512 */
    void (*adamw)(void *weights, void *m, void *v, const void *grad_sums, size_t n,
                  const adamw_factors_t *factors);
    void (*sgd)(void *weights, void *momentum, const void *grad_sums, size_t n, const sgd_factors_t *factors);
    void (*add_squares)(const void *grad_sums, size_t n, double lanes[OPTIMIZER_LANES]);
} optimizer_kernels_t;

/* Levels are those of base/cpu.h. Level 0 is there everywhere; NULL: this machine (or build) does not have
 * that level. fp64: 0 or 1. */
#define OPTIMIZER_LEVELS 3
const optimizer_kernels_t *optimizer_kernels_at(int level, int fp64);

/* The best level that the machine has and $INSPAN_ISA (scalar, avx2, avx512) allows. */
const optimizer_kernels_t *optimizer_kernels_best(int fp64);

/* lanes 0 + 8, 1 + 9, ...; then 0 + 4, ...; 0 + 2, 1 + 3; 0 + 1. */
double optimizer_fold(const double lanes[OPTIMIZER_LANES]);

double optimizer_power(double base, uint64_t exponent); /* by squaring */
double optimizer_cos_pi(double x);                      /* cos(pi x), 0 <= x <= 1, to 1e-15 */
double optimizer_sqrt(double x);

#endif
