/*
 * Instruction sets that parts of the program are compiled for, and which of them this machine has: asked here
 * alone. $INSPAN_ISA=scalar|avx2|avx512 caps what is used (for tests and for hunting faults). "scalar" is the
 * compiler's baseline of the architecture, the only one outside x86-64.
 */
#ifndef BASE_CPU_H
#define BASE_CPU_H

/* In this order, each has what those before it have. */
typedef enum cpu_isa {
    CPU_SCALAR,
    CPU_AVX2,   /* with FMA and F16C, as every such processor has them */
    CPU_AVX512, /* F, VL, DQ and BW */
    CPU_ISAS
} cpu_isa_t;

cpu_isa_t cpu_isa_found(void); /* the best one that processor and operating system have; any thread */
cpu_isa_t
cpu_isa(void); /* capped by $INSPAN_ISA, which is read at each call: not while others set variables */
const char *cpu_isa_name(cpu_isa_t isa); /* "scalar", "avx2", "avx512" */

#endif
