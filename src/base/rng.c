#include "base/rng.h"

#include <math.h>
#include <string.h>

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void rng_seed(rng_t *rng, uint64_t seed, uint64_t stream)
{
    uint64_t state = seed;
    state = splitmix64(&state) ^ stream;
    for (int i = 0; i < 4; i++) rng->s[i] = splitmix64(&state);
    rng->has_normal = false;
}

static inline uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t rng_next(rng_t *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t rng_below(rng_t *rng, uint64_t bound)
{
    unsigned __int128 product = (unsigned __int128)rng_next(rng) * bound;
    if ((uint64_t)product < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)product < threshold) product = (unsigned __int128)rng_next(rng) * bound;
    }
    return (uint64_t)(product >> 64);
}

double rng_uniform(rng_t *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)), x = m 2^e, m in [1/sqrt 2, sqrt 2]; the series ends below
 * 2^-53. */
double rng_log(double x)
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
double rng_normal(rng_t *rng)
{
    if (rng->has_normal) {
        rng->has_normal = false;
        return rng->normal;
    }
    double u, v, s;
    do {
        u = 2 * rng_uniform(rng) - 1;
        v = 2 * rng_uniform(rng) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    double scale = sqrt(-2 * rng_log(s) / s);
    rng->normal = v * scale;
    rng->has_normal = true;
    return u * scale;
}
