/*
 * Data-parallel training over a communicator: parameters in buckets, each all-reduced the moment its last
 * gradient is ready, while backward goes on; sums of gradients and of samples, divided once by the total. The
 * elastic step's rules (plan, compute, reduce, vote, commit) are inside.
 *
 * Gradient memory: DDP owns, per parameter, a *local* array (the caller adds its gradients there, over any
 * number of micro-batches) and a *reduced* array (the sum over all ranks, valid after inspan_ddp_finish until
 * the next begin). The reduction is out of place: local sums stay until commit.
 *
 * Threads: the caller's one training thread; reductions go on behind it.
 */
#ifndef INSPAN_DDP_H
#define INSPAN_DDP_H

#include <inspan/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct inspan_ddp inspan_ddp_t;

typedef struct inspan_parameter {
    const char *name;
    uint64_t count; /* elements */
    uint32_t n_dims;
    const uint64_t *shape; /* (n_dims) */
    void *weights;         /* (count): hashed at start, all ranks must hold the same bits */
} inspan_parameter_t;

typedef struct inspan_ddp_options {
    inspan_dtype_t dtype;  /* of weights and gradients: fp32 or fp64 */
    uint64_t bucket_bytes; /* 0: all gradients / 32, between 1 MB and 25 MB; the first bucket at most 1 MB */
    int64_t timeout_ns;    /* bound of each wait inside; 0: 10 minutes (a peer may compute for long) */
} inspan_ddp_options_t;

/*
 * Lay out the buckets (reverse order of registration) and check with all ranks that parameters (names,
 * shapes, dtype, weights' hashes) and layout are the same: MISMATCH names the first parameter that differs,
 * where and how, on every rank. NO_MEMORY, INVALID, or the communicator's cause.
 */
INSPAN_API inspan_status_t inspan_ddp_open(inspan_comm_t *comm, const inspan_parameter_t *parameters,
                                           uint32_t n, const inspan_ddp_options_t *options,
                                           inspan_ddp_t **ddp, inspan_error_t *err);
INSPAN_API void inspan_ddp_close(inspan_ddp_t *ddp);

INSPAN_API void *inspan_ddp_local(inspan_ddp_t *ddp, uint32_t parameter); /* (count) */
INSPAN_API const void *inspan_ddp_reduced(inspan_ddp_t *ddp,
                                          uint32_t parameter); /* (count) sums, not yet divided */

/* Begin step `step` (one more than the last committed): zeroes the local sums. INVALID, or the cause. */
INSPAN_API inspan_status_t inspan_ddp_begin(inspan_ddp_t *ddp, uint64_t step, inspan_error_t *err);

/*
 * Before the backward of the last micro-batch: all samples and the loss of this rank are known but for the
 * last micro-batch's loss, which inspan_ddp_finish adds. samples: this rank's total in this step (0 is
 * allowed: an empty contribution; then call finish at once).
 */
INSPAN_API inspan_status_t inspan_ddp_seal(inspan_ddp_t *ddp, uint64_t samples, inspan_error_t *err);

/* In that backward: parameter's local sum is complete. Starts its bucket's all-reduce when it is the last
 * one. */
INSPAN_API void inspan_ddp_ready(inspan_ddp_t *ddp, uint32_t parameter);

typedef struct inspan_ddp_result {
    uint64_t samples;   /* of all ranks: divide the reduced sums by it */
    double loss_sum;    /* of all ranks */
    int64_t exposed_ns; /* time that finish waited for communication */
    uint64_t bytes_reduced;
} inspan_ddp_result_t;

/* All buckets reduced, all ranks voted, the step is committed: the caller applies its optimiser now. Any
 * failure means that nothing may be applied. MISMATCH (samples disagree between buckets), or the cause. */
INSPAN_API inspan_status_t inspan_ddp_finish(inspan_ddp_t *ddp, double loss_sum, inspan_ddp_result_t *result,
                                             inspan_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
