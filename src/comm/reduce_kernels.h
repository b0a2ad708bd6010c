/* Tables of reduction kernels, one per instruction set; private to reduce*.c. */
#ifndef COMM_REDUCE_KERNELS_H
#define COMM_REDUCE_KERNELS_H

#include <stdint.h>

#include "comm/reduce.h"

/* NULL in the scalar table: there is no such reduction. In another: the scalar one is good enough (what
 * training does not reduce by the gigabyte). */
typedef void (*reduce_kernel_fn)(void *dst, const void *src, size_t count);
typedef reduce_kernel_fn reduce_table_t[INSPAN_DTYPES][INSPAN_REDUCTIONS];

extern const reduce_table_t reduce_scalar;
#if defined(__x86_64__)
extern const reduce_table_t reduce_avx2, reduce_avx512;
#endif

/* Elements as they lie in a caller's buffer: any alignment, any declared type. */
typedef float reduce_f32_t __attribute__((aligned(1), may_alias));
typedef double reduce_f64_t __attribute__((aligned(1), may_alias));
typedef uint8_t reduce_u8_t __attribute__((aligned(1), may_alias));
typedef uint16_t reduce_u16_t __attribute__((aligned(1), may_alias));
typedef uint32_t reduce_u32_t __attribute__((aligned(1), may_alias));
typedef uint64_t reduce_u64_t __attribute__((aligned(1), may_alias));

#endif
