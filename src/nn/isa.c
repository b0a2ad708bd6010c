#include "nn/isa.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static const char *const NAMES[NN_ISA_COUNT] = {"scalar", "avx2", "avx512"};

const char *nn_isa_name(nn_isa_t isa)
{
    return (unsigned)isa < NN_ISA_COUNT ? NAMES[isa] : "unknown";
}

/* __builtin_cpu_supports asks the operating system too (XGETBV): a set whose registers it does not save is
 * absent. */
static nn_isa_t detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return NN_ISA_AVX512;
    if (avx2) return NN_ISA_AVX2;
#endif
    return NN_ISA_SCALAR;
}

nn_isa_t nn_isa_best(void)
{
    nn_isa_t found = detect();
    const char *cap = getenv("INSPAN_ISA");
    if (cap == NULL || *cap == '\0') return found;
    for (int i = 0; i < NN_ISA_COUNT; i++)
        if (strcmp(cap, NAMES[i]) == 0) return (int)found < i ? found : (nn_isa_t)i;
    log_warn("nn: INSPAN_ISA=%s is not known (scalar, avx2, avx512): ignored", cap);
    return found;
}
