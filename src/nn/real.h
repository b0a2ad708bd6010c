/*
 * fp32 and fp64 from one source: a file that includes this is compiled twice, with NN_REAL_BITS 32 and 64.
 * REAL(name) gives the function or type its own name in each (name_f32, name_f64).
 */
#ifndef NN_REAL_H
#define NN_REAL_H

#include <stdint.h>

#define NN_PASTE_(a, b)     a##_##b
#define NN_PASTE(a, b)      NN_PASTE_(a, b)
#define NN_PASTE3_(a, b, c) a##_##b##_##c
#define NN_PASTE3(a, b, c)  NN_PASTE3_(a, b, c)
#define REAL(name)          NN_PASTE(name, NN_REAL_SUFFIX)

#ifndef NN_REAL_BITS
#define NN_REAL_BITS 32 /* for analysers, which read the file without the build's options */
#endif

#if NN_REAL_BITS == 32
typedef float real_t;
typedef int32_t real_int_t; /* an integer as wide as real_t: masks of comparisons */
#define NN_REAL_SUFFIX f32
#elif NN_REAL_BITS == 64
typedef double real_t;
typedef int64_t real_int_t;
#define NN_REAL_SUFFIX f64
#else
#error "NN_REAL_BITS must be 32 or 64"
#endif

#endif
