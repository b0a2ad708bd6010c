/*
 * Which parameter lies where in which bucket. Pure.
 *
 * Buckets follow the order in which backward finishes gradients, at first the reverse order of registration
 * (core/buckets plans better ones from what is measured). The first bucket is small, so that the wire starts
 * early. A parameter is never split. Each bucket ends with
 * a tail of elements that says what its sums cover, since what influences weights must ride in a reduced
 * bucket (docs/step-protocol.md, C2): one element a lease (buckets.h).
 */
#ifndef DDP_LAYOUT_H
#define DDP_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define LAYOUT_ALIGN 16u /* elements: vector kernels and optimiser read each parameter at a line's start */

typedef struct layout_bucket {
    uint64_t count;                 /* elements, tail included */
    uint64_t tail;                  /* where the tail starts */
    uint32_t first_order, n_params; /* params order[first_order .. + n_params) */
} layout_bucket_t;

typedef struct layout {
    uint32_t n_params, n_buckets;
    uint32_t *order;  /* (n_params) parameters in the order in which they lie */
    uint32_t *bucket; /* (n_params) bucket of each parameter */
    uint64_t *offset; /* (n_params) its first element in the bucket */
    layout_bucket_t *buckets;
    uint64_t hash; /* of all of it: two members with one hash agree on every offset */
} layout_t;

/* counts: (n_params) elements of each parameter, in order of registration; registered: they lie in it, and
 * not in the reverse one; tail: elements behind each bucket.
 * LIMIT: more than most_buckets. NO_MEMORY. */
inspan_status_t layout_build(const uint64_t *counts, uint32_t n_params, size_t element_size,
                             uint64_t bucket_bytes, uint64_t first_bucket_bytes, bool registered,
                             uint32_t tail, uint32_t most_buckets, layout_t *layout);

/* The same from an order of the parameters and the number of them in each bucket. INVALID: no permutation, or
 * the sizes are not those of n_params (none may be 0). NO_MEMORY. */
inspan_status_t layout_cut(const uint64_t *counts, uint32_t n_params, const uint32_t *order,
                           const uint32_t *sizes, uint32_t n_buckets, uint32_t tail, layout_t *layout);

/* Where no bucket size is asked for: small enough that the wire is busy during backward (docs/decisions/004),
 * and large enough that there are at most most_buckets. */
uint64_t layout_auto_bytes(const uint64_t *counts, uint32_t n_params, size_t element_size,
                           uint32_t most_buckets);
uint64_t layout_first_bytes(uint64_t bucket_bytes); /* of the first bucket */
void layout_free(layout_t *layout);

#endif
