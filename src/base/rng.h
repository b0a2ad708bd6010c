/*
 * Random numbers from a seed, the same bits on every machine: xoshiro256** (Blackman, Vigna 2018), seeded by
 * splitmix64; reals by + - * / and sqrt alone, without contraction (base is compiled so) and without libm.
 * Never for secrets: os_random() is for these.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t s[4];
    double normal; /* the second of a pair, where there is one */
    bool has_normal;
} rng_t;

/* stream separates independent sequences of one seed (weights, data order, sampling, ...). */
void rng_seed(rng_t *rng, uint64_t seed, uint64_t stream);
uint64_t rng_next(rng_t *rng);
uint64_t rng_below(rng_t *rng, uint64_t bound); /* uniform in [0, bound), bound > 0, unbiased (Lemire 2019) */
double rng_uniform(rng_t *rng);                 /* uniform in [0, 1), 53 bits */
double rng_normal(rng_t *rng);                  /* mean 0, variance 1, by the polar method */

/* Natural logarithm of x in (0, 1], within a few units in the last place. Exposed for its test. */
double rng_log(double x);

#endif
