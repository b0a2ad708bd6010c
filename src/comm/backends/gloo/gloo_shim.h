/*
 * What the plug-in inspan-gloo.so offers: Gloo's collectives over given sockets, behind C functions. It is a
 * module of its own because it is C++ and linked to libgloo; it is loaded with local symbols, so that it does
 * not meet another Gloo (PyTorch's) in the same process.
 */
#ifndef COMM_GLOO_SHIM_H
#define COMM_GLOO_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLOO_SHIM_ABI    1
#define GLOO_SHIM_SYMBOL "inspan_gloo_shim"

typedef struct gloo_engine gloo_engine_t;

typedef enum gloo_operation { GLOO_ALLREDUCE, GLOO_ALLGATHER, GLOO_BROADCAST, GLOO_BARRIER } gloo_operation_t;

typedef struct gloo_call {
    gloo_operation_t operation;
    uint32_t tag; /* another one for each call, the same on all ranks */
    uint32_t root;
    uint32_t element_size; /* 1, 2, 4 or 8 bytes */
    uint64_t count;        /* elements; all-gather: of the result */
    const void *in;        /* all-gather: the own part alone */
    void *out;
    const size_t *parts; /* (world) elements of each rank's part; all-gather */
    /* dst = dst op src, n elements */
    void (*combine)(const void *context, void *dst, const void *src, size_t n);
    const void *context;
} gloo_call_t;

typedef struct gloo_fault {
    int32_t rank; /* whose connection broke first, -1: none did */
    char text[160];
} gloo_fault_t;

typedef struct gloo_shim {
    uint32_t abi;
    const char *version; /* of Gloo */
    /* sockets (world): the caller's, copied; sockets[rank] is not looked at. address: this rank's own,
     * numeric. NULL: text says why. */
    gloo_engine_t *(*open)(uint32_t rank, uint32_t world, const int *sockets, const char *address,
                           int64_t patience_ms, char *text, size_t size);
    /* Blocks. 0, or -1 with the fault filled. One call at a time. All signals must be blocked in the calling
     * thread: Gloo writes to sockets that may be closed, which raises SIGPIPE. */
    int (*run)(gloo_engine_t *engine, const gloo_call_t *call, gloo_fault_t *fault);
    void (*abort)(gloo_engine_t *engine); /* any thread: run ends now, and every later one */
    void (*traffic)(gloo_engine_t *engine, uint64_t *sent, uint64_t *received); /* bytes; any thread */
    void (*close)(gloo_engine_t *engine);                                       /* nothing runs */
} gloo_shim_t;

typedef const gloo_shim_t *(*gloo_shim_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
