#include "ddp/buckets.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/comm.h"
#include "platform/os/os_memory.h"

#define TALLY_SUMS 4u
#define LINE       64u /* each bucket starts on a cache line */

static uint32_t tally_of(const ddp_buckets_t *buckets)
{
    return buckets->n - 1;
}

uint64_t ddp_buckets_count(const ddp_buckets_t *buckets, uint32_t bucket)
{
    return bucket == tally_of(buckets) ? 2 * (uint64_t)buckets->leases + TALLY_SUMS
                                       : buckets->layout.buckets[bucket].count;
}

inspan_dtype_t ddp_buckets_dtype(const ddp_buckets_t *buckets, uint32_t bucket)
{
    return bucket == tally_of(buckets) ? INSPAN_FP64 : buckets->dtype;
}

size_t ddp_buckets_bytes(const ddp_buckets_t *buckets, uint32_t bucket)
{
    return ddp_buckets_count(buckets, bucket) * inspan_dtype_size(ddp_buckets_dtype(buckets, bucket));
}

/* ---- Opening --------------------------------------------------------------------------------- */

static inspan_status_t check_arguments(const inspan_parameter_t *parameters, uint32_t n, inspan_dtype_t dtype,
                                       inspan_wire_t wire, uint32_t leases, inspan_error_t *err)
{
    if (n == 0) return error_set(err, INSPAN_INVALID, "a model without parameters cannot be trained");
    if (dtype != INSPAN_FP32 && dtype != INSPAN_FP64)
        return error_set(err, INSPAN_INVALID, "gradients must be fp32 or fp64");
    if ((unsigned)wire >= INSPAN_WIRES || (wire != INSPAN_WIRE_FP32 && dtype != INSPAN_FP32))
        return error_set(err, INSPAN_INVALID, "only gradients in fp32 can go over the wire in another type");
    if (leases == 0 || leases > LEASES_MAX)
        return error_set(err, INSPAN_INVALID, "a step has %u leases; 1 to %u are possible", leases,
                         LEASES_MAX);
    for (uint32_t i = 0; i < n; i++)
        if (parameters[i].count == 0)
            return error_set(err, INSPAN_INVALID, "parameter %u (%s) has no elements", i, parameters[i].name);
    return INSPAN_OK;
}

uint64_t ddp_buckets_layout_hash(const ddp_buckets_t *buckets, const layout_t *layout)
{
    const uint64_t more[3] = {layout->hash, buckets->leases, (uint64_t)buckets->dtype};
    return hash64(more, sizeof more, 0);
}

static void take_layout(ddp_buckets_t *buckets, layout_t *layout)
{
    buckets->layout = *layout;
    memset(layout, 0, sizeof *layout);
    buckets->n = buckets->layout.n_buckets + 1;
    buckets->hash = ddp_buckets_layout_hash(buckets, &buckets->layout);
}

static inspan_status_t first_layout(ddp_buckets_t *buckets, const inspan_parameter_t *parameters,
                                    uint64_t bytes, bool registered, inspan_error_t *err)
{
    layout_t layout;
    const uint32_t n = buckets->n_params;
    uint64_t *counts = calloc(n, sizeof counts[0]);
    if (counts == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for %u parameters", n);
    for (uint32_t i = 0; i < n; i++) counts[i] = parameters[i].count;
    if (bytes == 0) bytes = layout_auto_bytes(counts, n, buckets->element_size, BUCKETS_MAX - 1);
    inspan_status_t status = layout_build(counts, n, buckets->element_size, bytes, layout_first_bytes(bytes),
                                          registered, buckets->leases, BUCKETS_MAX - 1, &layout);
    free(counts);
    if (status == INSPAN_LIMIT)
        return error_set(err, status,
                         "buckets of %" PRIu64
                         " bytes for %u parameters would be more than %u; make sync.bucket larger",
                         bytes, n, BUCKETS_MAX - 1);
    if (status != INSPAN_OK) return error_set(err, status, "no memory for the layout of %u parameters", n);
    take_layout(buckets, &layout);
    return INSPAN_OK;
}

static size_t room_of(const ddp_buckets_t *buckets, uint32_t bucket)
{
    return (ddp_buckets_bytes(buckets, bucket) + LINE - 1) / LINE * LINE;
}

/* Where each bucket begins. */
static void place_buckets(ddp_buckets_t *buckets)
{
    buckets->bytes = 0;
    for (uint32_t b = 0; b < buckets->n; b++) {
        buckets->local[b] = buckets->memory + buckets->bytes;
        buckets->reduced[b] = buckets->local[b] + buckets->room;
        if (buckets->error != NULL)
            buckets->error[b] =
                b == tally_of(buckets) ? NULL : (float *)(void *)(buckets->error_memory + buckets->bytes);
        buckets->bytes += room_of(buckets, b);
    }
}

/* Buckets differ from one layout to another by their number of tails and by what fills up lines. */
static size_t room_for_any(const ddp_buckets_t *buckets)
{
    const uint32_t more = BUCKETS_MAX - buckets->n;
    size_t bytes = more * (buckets->leases * buckets->element_size + LINE);
    for (uint32_t b = 0; b < buckets->n; b++) bytes += room_of(buckets, b);
    return (bytes + LINE - 1) / LINE * LINE;
}

static inspan_status_t take_memory(ddp_buckets_t *buckets, inspan_error_t *err)
{
    buckets->local = calloc(BUCKETS_MAX, sizeof buckets->local[0]);
    buckets->reduced = calloc(BUCKETS_MAX, sizeof buckets->reduced[0]);
    buckets->missing = calloc(BUCKETS_MAX, sizeof buckets->missing[0]);
    buckets->seen = calloc(buckets->n_params, sizeof buckets->seen[0]);
    buckets->room = room_for_any(buckets);
    buckets->memory = os_memory_take(2 * buckets->room); /* padding must stay zero: it is reduced too */
    if (!buckets->local || !buckets->reduced || !buckets->missing || !buckets->seen || !buckets->memory)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u gradient buckets of %.1f MB in all, twice",
                         buckets->n, (double)buckets->room / 1e6);
    place_buckets(buckets);
    return INSPAN_OK;
}

size_t ddp_buckets_wire_bytes(const ddp_buckets_t *buckets, inspan_wire_t wire)
{
    size_t bytes = 0;
    for (uint32_t b = 0; b < buckets->n; b++)
        bytes += comm_wire_bytes(wire, ddp_buckets_bytes(buckets, b) / sizeof(float));
    return bytes;
}

/* As large as the local sums, of which it is a copy in shape. */
inspan_status_t ddp_buckets_keep_errors(ddp_buckets_t *buckets, inspan_error_t *err)
{
    if (buckets->error != NULL) return INSPAN_OK;
    buckets->error = calloc(BUCKETS_MAX, sizeof buckets->error[0]);
    buckets->made_up = calloc(BUCKETS_MAX, sizeof buckets->made_up[0]);
    buckets->error_memory = os_memory_take(buckets->room);
    if (!buckets->error || !buckets->made_up || !buckets->error_memory)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %.1f MB of what rounding takes from gradients",
                         (double)buckets->room / 1e6);
    place_buckets(buckets);
    return INSPAN_OK;
}

inspan_status_t ddp_buckets_open(const inspan_parameter_t *parameters, uint32_t n, inspan_dtype_t dtype,
                                 inspan_wire_t wire, uint64_t bucket_bytes, bool registered, uint32_t leases,
                                 ddp_buckets_t *buckets, inspan_error_t *err)
{
    memset(buckets, 0, sizeof *buckets);
    inspan_status_t status = check_arguments(parameters, n, dtype, wire, leases, err);
    if (status != INSPAN_OK) return status;
    buckets->dtype = dtype;
    buckets->wire = wire;
    buckets->element_size = inspan_dtype_size(dtype);
    buckets->n_params = n;
    buckets->leases = leases;
    status = first_layout(buckets, parameters, bucket_bytes, registered, err);
    if (status == INSPAN_OK) status = take_memory(buckets, err);
    if (status == INSPAN_OK && wire == INSPAN_WIRE_INT8) status = ddp_buckets_keep_errors(buckets, err);
    if (status != INSPAN_OK) ddp_buckets_close(buckets);
    return status;
}

void ddp_buckets_close(ddp_buckets_t *buckets)
{
    layout_free(&buckets->layout);
    free(buckets->memory);
    free(buckets->error_memory);
    free(buckets->error);
    free(buckets->made_up);
    free(buckets->local);
    free(buckets->reduced);
    free(buckets->missing);
    free(buckets->seen);
    memset(buckets, 0, sizeof *buckets);
}

/* ---- Another layout -------------------------------------------------------------------------- */

static uint64_t count_of(const layout_t *layout, uint32_t parameter)
{
    const layout_bucket_t *bucket = &layout->buckets[layout->bucket[parameter]];
    for (uint32_t i = bucket->first_order; i + 1 < bucket->first_order + bucket->n_params; i++)
        if (layout->order[i] == parameter)
            return layout->offset[layout->order[i + 1]] - layout->offset[parameter];
    return bucket->tail - layout->offset[parameter];
}

/* Errors of all parameters, to or from where the reduced sums are: between two steps nobody needs these. */
static void move_errors(ddp_buckets_t *buckets, float *apart, bool back)
{
    for (uint32_t p = 0; p < buckets->n_params; p++) {
        float *error = buckets->error[buckets->layout.bucket[p]] + buckets->layout.offset[p];
        const uint64_t count = count_of(&buckets->layout, p);
        memcpy(back ? error : apart, back ? apart : error, count * sizeof *error);
        apart += count;
    }
}

void ddp_buckets_lay_out(ddp_buckets_t *buckets, layout_t *layout)
{
    float *apart = (float *)(void *)(buckets->memory + buckets->room);
    if (buckets->error != NULL) move_errors(buckets, apart, false);
    layout_free(&buckets->layout);
    take_layout(buckets, layout);
    place_buckets(buckets);
    if (buckets->error == NULL) return;
    memset(buckets->error_memory, 0, buckets->room);
    move_errors(buckets, apart, true);
}

/* ---- Filling --------------------------------------------------------------------------------- */

static size_t place(const ddp_buckets_t *buckets, uint32_t parameter)
{
    return buckets->layout.offset[parameter] * buckets->element_size;
}

void *ddp_buckets_local(ddp_buckets_t *buckets, uint32_t parameter)
{
    return buckets->local[buckets->layout.bucket[parameter]] + place(buckets, parameter);
}

void *ddp_buckets_reduced(const ddp_buckets_t *buckets, uint32_t parameter)
{
    return buckets->reduced[buckets->layout.bucket[parameter]] + place(buckets, parameter);
}

void ddp_buckets_clear(ddp_buckets_t *buckets)
{
    memset(buckets->memory, 0, buckets->bytes);
    if (buckets->made_up != NULL) memset(buckets->made_up, 0, buckets->n * sizeof buckets->made_up[0]);
}

void ddp_buckets_make_up(ddp_buckets_t *buckets, uint32_t bucket)
{
    if (buckets->error == NULL || buckets->error[bucket] == NULL || buckets->made_up[bucket]) return;
    float *local = (float *)(void *)buckets->local[bucket];
    const float *error = buckets->error[bucket];
    for (uint64_t i = 0; i < buckets->layout.buckets[bucket].tail; i++) local[i] += error[i];
    buckets->made_up[bucket] = true;
}

static double *tally_local(ddp_buckets_t *buckets)
{
    return (double *)(void *)buckets->local[tally_of(buckets)];
}

static const double *tally_reduced(const ddp_buckets_t *buckets)
{
    return (const double *)(const void *)buckets->reduced[tally_of(buckets)];
}

void ddp_buckets_mark(ddp_buckets_t *buckets, uint32_t first, uint32_t n, uint32_t number)
{
    double *tally = tally_local(buckets);
    for (uint32_t lease = first; lease < first + n; lease++) {
        for (uint32_t b = 0; b < tally_of(buckets); b++) {
            void *bucket = buckets->local[b];
            const uint64_t at = buckets->layout.buckets[b].tail + lease;
            if (buckets->dtype == INSPAN_FP64)
                ((double *)bucket)[at] += 1;
            else
                ((float *)bucket)[at] += 1;
        }
        tally[lease] += (double)number + 1;
        tally[buckets->leases + lease] += 1;
    }
}

void ddp_buckets_add(ddp_buckets_t *buckets, const ddp_tally_t *sums)
{
    double *at = tally_local(buckets) + 2 * buckets->leases;
    at[0] += sums->loss_sum;
    at[1] += sums->evaluation_loss_sum;
    at[2] += sums->evaluation_samples;
    at[3] += sums->evaluation_right;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

void ddp_buckets_begin_round(ddp_buckets_t *buckets)
{
    for (uint32_t b = 0; b < tally_of(buckets); b++)
        buckets->missing[b] = buckets->layout.buckets[b].n_params;
    memset(buckets->seen, 0, buckets->n_params * sizeof buckets->seen[0]);
}

inspan_status_t ddp_buckets_ready(ddp_buckets_t *buckets, uint32_t parameter, uint32_t *bucket, bool *full)
{
    if (parameter >= buckets->n_params || buckets->seen[parameter]) return INSPAN_INVALID;
    buckets->seen[parameter] = true;
    *bucket = buckets->layout.bucket[parameter];
    *full = --buckets->missing[*bucket] == 0;
    return INSPAN_OK;
}

uint32_t ddp_buckets_incomplete(const ddp_buckets_t *buckets)
{
    uint32_t b = 0;
    while (b < tally_of(buckets) && buckets->missing[b] == 0) b++;
    return b;
}

/* ---- What came out --------------------------------------------------------------------------- */

static double covered(const ddp_buckets_t *buckets, uint32_t bucket, uint32_t lease)
{
    const void *reduced = buckets->reduced[bucket];
    if (bucket == tally_of(buckets)) return ((const double *)reduced)[buckets->leases + lease];
    const uint64_t at = buckets->layout.buckets[bucket].tail + lease;
    return buckets->dtype == INSPAN_FP64 ? ((const double *)reduced)[at]
                                         : (double)((const float *)reduced)[at];
}

inspan_status_t ddp_buckets_check(const ddp_buckets_t *buckets, uint32_t bucket, uint64_t step,
                                  const uint64_t expected[LEASES_MAX / 64], inspan_error_t *err)
{
    for (uint32_t lease = 0; lease < buckets->leases; lease++) {
        const double right = expected[lease / 64] >> lease % 64 & 1 ? 1 : 0,
                     found = covered(buckets, bucket, lease);
        if (found != right) /* NaN, too */
            return error_set(err, INSPAN_MISMATCH,
                             "step %" PRIu64
                             ", bucket %u: lease %u is in the sum %g times, expected %g; nothing of this "
                             "step was applied (please report this)",
                             step, bucket, lease, found, right);
    }
    return INSPAN_OK;
}

void ddp_buckets_tally(const ddp_buckets_t *buckets, ddp_tally_t *sums)
{
    const double *at = tally_reduced(buckets) + 2 * buckets->leases;
    *sums = (ddp_tally_t){at[0], at[1], at[2], at[3]};
}

int64_t ddp_buckets_owner(const ddp_buckets_t *buckets, uint32_t lease)
{
    return (int64_t)tally_reduced(buckets)[lease] - 1;
}
