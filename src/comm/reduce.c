#include "comm/reduce.h"

#include <assert.h>
#include <stdatomic.h>

#include "comm/reduce_kernels.h"

size_t inspan_dtype_size(inspan_dtype_t dtype)
{
    static const uint8_t sizes[INSPAN_DTYPES] = {
        [INSPAN_FP32] = 4,  [INSPAN_FP64] = 8,  [INSPAN_FP16] = 2, [INSPAN_BF16] = 2,  [INSPAN_INT32] = 4,
        [INSPAN_INT64] = 8, [INSPAN_UINT8] = 1, [INSPAN_INT8] = 1, [INSPAN_INT16] = 2,
    };
    return (unsigned)dtype < INSPAN_DTYPES ? sizes[dtype] : 0;
}

bool inspan_reduces(inspan_dtype_t dtype, inspan_reduction_t reduction)
{
    return (unsigned)dtype < INSPAN_DTYPES && (unsigned)reduction < INSPAN_REDUCTIONS &&
           reduce_scalar[dtype][reduction] != NULL;
}

/* Read once, as pieces come at every rate: 0 not yet, else 1 + set. Asking twice at once is harmless. */
cpu_isa_t reduce_isa(void)
{
    static _Atomic int kept;
    int isa = atomic_load_explicit(&kept, memory_order_relaxed);
    if (isa == 0) {
        isa = 1 + (int)cpu_isa();
        atomic_store_explicit(&kept, isa, memory_order_relaxed);
    }
    return (cpu_isa_t)(isa - 1);
}

static void apply(cpu_isa_t isa, inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst,
                  const void *src, size_t count)
{
    assert(inspan_reduces(dtype, reduction));
    if (count == 0) return;
#if defined(__x86_64__)
    static const reduce_table_t *const tables[CPU_ISAS] = {&reduce_scalar, &reduce_avx2, &reduce_avx512};
#else
    static const reduce_table_t *const tables[CPU_ISAS] = {&reduce_scalar, &reduce_scalar, &reduce_scalar};
#endif
    const reduce_kernel_fn kernel = (*tables[isa])[dtype][reduction];
    (kernel != NULL ? kernel : reduce_scalar[dtype][reduction])(dst, src, count);
}

void reduce_apply(inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst, const void *src,
                  size_t count)
{
    apply(reduce_isa(), dtype, reduction, dst, src, count);
}

void reduce_apply_isa(cpu_isa_t cap, inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst,
                      const void *src, size_t count)
{
    const cpu_isa_t best = cpu_isa_found();
    apply(cap < best ? cap : best, dtype, reduction, dst, src, count);
}
