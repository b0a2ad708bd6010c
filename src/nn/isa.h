/*
 * Instruction sets that the kernels of nn are compiled for. The best one that processor and operating system
 * have is found at run time; $INSPAN_ISA=scalar|avx2|avx512 caps it (for tests and for hunting faults),
 * oneDNN and OpenBLAS included. "scalar" is the compiler's baseline of the architecture, the only one outside
 * x86-64.
 */
#ifndef NN_ISA_H
#define NN_ISA_H

typedef enum nn_isa { NN_ISA_SCALAR, NN_ISA_AVX2, NN_ISA_AVX512, NN_ISA_COUNT } nn_isa_t;

nn_isa_t nn_isa_best(void); /* what to use. Any thread. */
const char *nn_isa_name(nn_isa_t isa);

#endif
