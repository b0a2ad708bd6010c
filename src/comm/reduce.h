/*
 * Element-wise reduction, dst[i] = dst[i] op src[i]: the arithmetic of every collective.
 *
 * The same bits on every machine: all kernels (scalar, AVX2, AVX-512) give the bits of the scalar one, so
 * ranks with unlike processors agree. fp16 and bf16 are widened to fp32, combined, and rounded to nearest
 * even, once per call. Integers wrap around. MIN and MAX: a NaN on either side wins; of two equal values (-0
 * and +0) dst's stays. The one thing not fixed is the payload of a sum of two NaNs: NaNs are made canonical
 * before hashing.
 *
 * Threads: any, no state but the instruction set found at the first call. The calling thread must be in the
 * default floating-point environment (round to nearest, no flush to zero). Nothing allocates or blocks.
 */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <inspan/comm.h>

#include "base/cpu.h"

/* The set that reduce_apply uses: cpu_isa() at the first call. */
cpu_isa_t reduce_isa(void);

/*
 * dst = dst op src for count elements, any alignment; they may be the same memory but must not overlap
 * otherwise. An unknown dtype or reduction is a broken promise of the caller (asserted).
 */
void reduce_apply(inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst, const void *src,
                  size_t count);

/* The same with kernels of at most `cap` (and of at most what the processor has): for tests and benchmarks.
 */
void reduce_apply_isa(cpu_isa_t cap, inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst,
                      const void *src, size_t count);

#endif
