/*
 * Gradient memory of the elastic step: parameters in buckets, each twice, *local* (this member's sums, which
 * stay until the commit) and *reduced* (the sum over all members, out of place). Behind the gradients each
 * bucket has one element a lease: 1 where this member's sums hold the lease's samples, else 0; after the sum
 * over the members each must be exactly 1 (rule B1: every lease once), which every receiver checks.
 *
 * The last bucket is the *tally*, in fp64:
 *
 *   ELEMENT            MEANING
 *   0 .. L-1           number + 1 of the worker that computed the lease; 0: not here
 *   L .. 2L-1          1 where computed, as in the other buckets
 *   2L .. 2L+3         sums: loss; of the held-out samples loss, number, right answers
 *
 * Where gradients are rounded for the wire so much that it must be made up for (int8), or may be, each bucket
 * has a third array: what rounding took from this member's sums. It goes into the sums of the next step,
 * once, when they are reduced.
 *
 * No socket, no thread: exchange.h moves these buckets. One thread at a time; a bucket that is being reduced
 * is only read (local) or only written (reduced) by the communicator.
 */
#ifndef DDP_BUCKETS_H
#define DDP_BUCKETS_H

#include <stdbool.h>

#include <inspan/elastic.h>

#include "ddp/layout.h"

#define BUCKETS_MAX 256 /* the tally included */
#define LEASES_MAX  256

typedef struct ddp_tally {
    double loss_sum;
    double evaluation_loss_sum, evaluation_samples, evaluation_right;
} ddp_tally_t;

typedef struct ddp_buckets {
    inspan_dtype_t dtype;
    inspan_wire_t wire; /* of the gradients; the elements of leases, and the tally, go as they are. May be
                           set between steps: to int8 only with errors kept */
    size_t element_size;
    uint32_t n_params, leases;
    uint32_t n;      /* buckets, the tally included */
    layout_t layout; /* of the n - 1 others */
    uint64_t hash;   /* of the layout, number of leases and dtype included */
    uint8_t *memory;
    size_t bytes;      /* of all local (or all reduced) buckets, and what there is for them: */
    size_t room;       /* enough for any layout */
    uint8_t **local;   /* (n), with room for BUCKETS_MAX as all of these */
    uint8_t **reduced; /* (n) */
    float **error;     /* (n) or NULL: nothing is made up for; the tally's is NULL */
    bool *made_up;     /* (n) errors are in the local sums of this step */
    uint8_t *error_memory;
    uint32_t *missing; /* (n) parameters whose gradient is not complete yet in this round */
    bool *seen;        /* (n_params) complete in this round */
} ddp_buckets_t;

/* LIMIT: more than BUCKETS_MAX buckets (the text says what to do). INVALID, NO_MEMORY. bucket_bytes 0:
 * chosen. registered: parameters lie in the order of registration, not in the reverse one. wire: FP32 for
 * gradients in fp64. */
inspan_status_t ddp_buckets_open(const inspan_parameter_t *parameters, uint32_t n, inspan_dtype_t dtype,
                                 inspan_wire_t wire, uint64_t bucket_bytes, bool registered, uint32_t leases,
                                 ddp_buckets_t *buckets, inspan_error_t *err);
/* Between two steps, the local sums cleared: parameters lie as `layout` says from now on, which is taken over
 * (layout_cut with buckets->leases as its tail, fewer than BUCKETS_MAX buckets). What is to be made up for
 * moves along; reduced sums are lost. Allocates nothing. */
void ddp_buckets_lay_out(ddp_buckets_t *buckets, layout_t *layout);
uint64_t ddp_buckets_layout_hash(const ddp_buckets_t *buckets, const layout_t *layout); /* as buckets->hash */
/* Errors are kept from now on, whatever the wire type; with int8 they are from the beginning. NO_MEMORY. */
inspan_status_t ddp_buckets_keep_errors(ddp_buckets_t *buckets, inspan_error_t *err);
void ddp_buckets_close(ddp_buckets_t *buckets); /* also what is all zero */

void *ddp_buckets_local(ddp_buckets_t *buckets, uint32_t parameter);         /* (count) */
void *ddp_buckets_reduced(const ddp_buckets_t *buckets, uint32_t parameter); /* (count) sums, not divided */

uint64_t ddp_buckets_count(const ddp_buckets_t *buckets, uint32_t bucket); /* elements, all in all */
inspan_dtype_t ddp_buckets_dtype(const ddp_buckets_t *buckets, uint32_t bucket);
size_t ddp_buckets_bytes(const ddp_buckets_t *buckets, uint32_t bucket);

size_t ddp_buckets_wire_bytes(const ddp_buckets_t *buckets, inspan_wire_t wire); /* all of them, sent once */

void ddp_buckets_clear(ddp_buckets_t *buckets); /* a step begins: no lease, sums zero */

/* Leases [first, first + n) of worker `number` go into the local sums now: before the gradients that hold
 * them are complete. */
void ddp_buckets_mark(ddp_buckets_t *buckets, uint32_t first, uint32_t n, uint32_t number);
void ddp_buckets_add(ddp_buckets_t *buckets, const ddp_tally_t *sums);

/* Before a backward pass that completes gradients: none is complete. */
void ddp_buckets_begin_round(ddp_buckets_t *buckets);
/* The parameter's gradient is complete: *full where it was the bucket's last, *bucket. INVALID: no such
 * parameter, or complete already in this round. */
inspan_status_t ddp_buckets_ready(ddp_buckets_t *buckets, uint32_t parameter, uint32_t *bucket, bool *full);
/* A bucket with gradients that are not complete in this round, or n - 1: none. */
uint32_t ddp_buckets_incomplete(const ddp_buckets_t *buckets);

/* B1 on a reduced bucket: each lease of `expected` (bitmap) exactly once, the others not at all. MISMATCH
 * names step, bucket, lease, expected and found. */
inspan_status_t ddp_buckets_check(const ddp_buckets_t *buckets, uint32_t bucket, uint64_t step,
                                  const uint64_t expected[LEASES_MAX / 64], inspan_error_t *err);

/* Before the bucket is reduced: what is to be made up for goes into the local sums, unless it is there
 * already. */
void ddp_buckets_make_up(ddp_buckets_t *buckets, uint32_t bucket);

/* From the reduced tally: its sums; who computed the lease (-1: it was dropped). */
void ddp_buckets_tally(const ddp_buckets_t *buckets, ddp_tally_t *sums);
int64_t ddp_buckets_owner(const ddp_buckets_t *buckets, uint32_t lease);

#endif
