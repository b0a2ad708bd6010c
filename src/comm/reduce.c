#include "comm/reduce.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/reduce_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

size_t inspan_dtype_size(inspan_dtype_t dtype)
{
    static const uint8_t sizes[INSPAN_DTYPES] = {
        [INSPAN_FP32] = 4, [INSPAN_FP64] = 8,  [INSPAN_FP16] = 2,
        [INSPAN_BF16] = 2, [INSPAN_INT32] = 4, [INSPAN_INT64] = 8,
    };
    return (unsigned)dtype < INSPAN_DTYPES ? sizes[dtype] : 0;
}

static const char *const isa_names[REDUCE_ISAS] = {"scalar", "avx2", "avx512"};

const char *reduce_isa_name(reduce_isa_t isa)
{
    return (unsigned)isa < REDUCE_ISAS ? isa_names[isa] : "unknown";
}

static reduce_isa_t processor_isa(void)
{
#if defined(__x86_64__)
    /* F16C has no name in __builtin_cpu_supports of older compilers; the builtin also knows whether the
     * operating system saves the wide registers, and F16C uses those of AVX2. */
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return REDUCE_SCALAR;
    if (!__builtin_cpu_supports("avx512f")) return REDUCE_AVX2;
    return REDUCE_AVX512;
#else
    return REDUCE_SCALAR;
#endif
}

static reduce_isa_t find_isa(void)
{
    reduce_isa_t best = processor_isa();
    const char *cap = getenv("INSPAN_ISA");
    if (cap == NULL || *cap == '\0') return best;
    for (unsigned i = 0; i < REDUCE_ISAS; i++)
        if (strcmp(cap, isa_names[i]) == 0) return i < best ? (reduce_isa_t)i : best;
    log_warn("INSPAN_ISA: expected scalar, avx2 or avx512, found \"%s\": ignored, %s is used", cap,
             isa_names[best]);
    return best;
}

/* CPUID is slow inside a virtual machine, so what was found is kept: 0 not yet, else 1 + set. Finding it
 * twice at once is harmless. */
static reduce_isa_t once(_Atomic int *kept, reduce_isa_t (*find)(void))
{
    int isa = atomic_load_explicit(kept, memory_order_relaxed);
    if (isa == 0) {
        isa = 1 + (int)find();
        atomic_store_explicit(kept, isa, memory_order_relaxed);
    }
    return (reduce_isa_t)(isa - 1);
}

reduce_isa_t reduce_isa(void)
{
    static _Atomic int kept;
    return once(&kept, find_isa);
}

static void apply(reduce_isa_t isa, inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst,
                  const void *src, size_t count)
{
    assert((unsigned)dtype < INSPAN_DTYPES && (unsigned)reduction < REDUCE_REDUCTIONS);
    if (count == 0) return;
#if defined(__x86_64__)
    static const reduce_table_t *const tables[REDUCE_ISAS] = {&reduce_scalar, &reduce_avx2, &reduce_avx512};
#else
    static const reduce_table_t *const tables[REDUCE_ISAS] = {&reduce_scalar, &reduce_scalar, &reduce_scalar};
#endif
    (*tables[isa])[dtype][reduction](dst, src, count);
}

void reduce_apply(inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst, const void *src,
                  size_t count)
{
    apply(reduce_isa(), dtype, reduction, dst, src, count);
}

void reduce_apply_isa(reduce_isa_t cap, inspan_dtype_t dtype, inspan_reduction_t reduction, void *dst,
                      const void *src, size_t count)
{
    static _Atomic int kept;
    const reduce_isa_t best = once(&kept, processor_isa);
    apply(cap < best ? cap : best, dtype, reduction, dst, src, count);
}
