/*
 * fp32 and fp64 from one source: a file that includes this is compiled twice, with NN_REAL_BITS 32 and 64.
 * REAL(name) gives the function or type its own name in each (name_f32, name_f64).
 */
#ifndef NN_REAL_H
#define NN_REAL_H

#include <stdint.h>

#define NN_PASTE_(a, b) a##_##b
#define NN_PASTE(a, b)  NN_PASTE_(a, b)

#if NN_REAL_BITS == 32
typedef float real_t;
typedef int32_t real_int_t; /* an integer as wide as real_t: masks of comparisons */
#define REAL(name) NN_PASTE(name, f32)
#elif NN_REAL_BITS == 64
typedef double real_t;
typedef int64_t real_int_t;
#define REAL(name) NN_PASTE(name, f64)
#else
#error "NN_REAL_BITS must be 32 or 64"
#endif

#endif
