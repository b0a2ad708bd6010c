#include "base/cpu.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const NAMES[CPU_ISAS] = {"scalar", "avx2", "avx512"};

const char *cpu_isa_name(cpu_isa_t isa)
{
    return (unsigned)isa < CPU_ISAS ? NAMES[isa] : "unknown";
}

/* __builtin_cpu_supports asks the operating system too (XGETBV): a set whose registers it does not save is
 * absent. F16C, which has no name in it with older compilers, uses the registers of AVX2. */
static cpu_isa_t detect(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CPU_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return CPU_AVX512;
    return CPU_AVX2;
#else
    return CPU_SCALAR;
#endif
}

/* CPUID is slow inside a virtual machine, so what was found is kept: 0 not yet, else 1 + set. Finding it
 * twice at once is harmless. */
cpu_isa_t cpu_isa_found(void)
{
    static _Atomic int kept;
    int isa = atomic_load_explicit(&kept, memory_order_relaxed);
    if (isa == 0) {
        isa = 1 + (int)detect();
        atomic_store_explicit(&kept, isa, memory_order_relaxed);
    }
    return (cpu_isa_t)(isa - 1);
}

cpu_isa_t cpu_isa(void)
{
    const cpu_isa_t found = cpu_isa_found();
    const char *cap = getenv("INSPAN_ISA");
    if (cap == NULL || *cap == '\0') return found;
    for (int i = 0; i < CPU_ISAS; i++)
        if (strcmp(cap, NAMES[i]) == 0) return i < (int)found ? (cpu_isa_t)i : found;
    log_warn("INSPAN_ISA: expected scalar, avx2 or avx512, found \"%s\": ignored, %s is used", cap,
             NAMES[found]);
    return found;
}
