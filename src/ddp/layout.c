#include "ddp/layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define AUTO_BUCKETS      32u
#define AUTO_BUCKET_LEAST (1u * 1000 * 1000)
#define AUTO_BUCKET_MOST  (25u * 1000 * 1000)
#define FIRST_BUCKET_MOST (1u * 1000 * 1000)

static uint64_t aligned(uint64_t count)
{
    return (count + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
}

uint64_t layout_auto_bytes(const uint64_t *counts, uint32_t n_params, size_t element_size,
                           uint32_t most_buckets)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < n_params; i++) all += counts[i] * element_size;
    uint64_t bytes = all / AUTO_BUCKETS;
    if (bytes < AUTO_BUCKET_LEAST) bytes = AUTO_BUCKET_LEAST;
    if (bytes > AUTO_BUCKET_MOST) bytes = AUTO_BUCKET_MOST;
    /* Two neighbours hold more than one bucket's bytes together. */
    const uint64_t least = all / (most_buckets / 2 > 1 ? most_buckets / 2 - 1 : 1);
    return bytes > least ? bytes : least;
}

uint64_t layout_first_bytes(uint64_t bucket_bytes)
{
    return bucket_bytes < FIRST_BUCKET_MOST ? bucket_bytes : FIRST_BUCKET_MOST;
}

static uint64_t layout_hash(const layout_t *layout)
{
    uint64_t hash = hash64(layout->order, layout->n_params * sizeof layout->order[0], layout->n_buckets);
    hash = hash64(layout->bucket, layout->n_params * sizeof layout->bucket[0], hash);
    hash = hash64(layout->offset, layout->n_params * sizeof layout->offset[0], hash);
    for (uint32_t b = 0; b < layout->n_buckets; b++)
        hash = hash64(&layout->buckets[b].count, sizeof layout->buckets[b].count, hash);
    return hash;
}

static inspan_status_t open_layout(uint32_t n_params, layout_t *layout)
{
    memset(layout, 0, sizeof *layout);
    layout->n_params = n_params;
    layout->order = calloc(n_params, sizeof layout->order[0]);
    layout->bucket = calloc(n_params, sizeof layout->bucket[0]);
    layout->offset = calloc(n_params, sizeof layout->offset[0]);
    layout->buckets = calloc(n_params, sizeof layout->buckets[0]); /* at most one bucket a parameter */
    if (layout->order && layout->bucket && layout->offset && layout->buckets) return INSPAN_OK;
    layout_free(layout);
    return INSPAN_NO_MEMORY;
}

/* The next one, behind those that are there: in a bucket of its own, or in the last one. */
static void place(layout_t *layout, uint32_t at, uint32_t parameter, uint64_t count, bool opens)
{
    if (opens) layout->buckets[layout->n_buckets++].first_order = at;
    layout_bucket_t *bucket = &layout->buckets[layout->n_buckets - 1];
    layout->order[at] = parameter;
    layout->bucket[parameter] = layout->n_buckets - 1;
    layout->offset[parameter] = bucket->count;
    bucket->count += aligned(count);
    bucket->n_params++;
}

static void close_layout(layout_t *layout, uint32_t tail)
{
    for (uint32_t b = 0; b < layout->n_buckets; b++) {
        layout->buckets[b].tail = layout->buckets[b].count;
        layout->buckets[b].count += tail;
    }
    layout->hash = layout_hash(layout);
}

inspan_status_t layout_build(const uint64_t *counts, uint32_t n_params, size_t element_size,
                             uint64_t bucket_bytes, uint64_t first_bucket_bytes, bool registered,
                             uint32_t tail, uint32_t most_buckets, layout_t *layout)
{
    inspan_status_t status = open_layout(n_params, layout);
    for (uint32_t at = 0; at < n_params && status == INSPAN_OK; at++) {
        const uint32_t parameter = registered ? at : n_params - 1 - at;
        const uint64_t limit = layout->n_buckets <= 1 ? first_bucket_bytes : bucket_bytes;
        const uint64_t there = at > 0 ? layout->buckets[layout->n_buckets - 1].count : 0;
        const bool opens = at == 0 || (there + counts[parameter]) * element_size > limit;
        place(layout, at, parameter, counts[parameter], opens);
    }
    if (status != INSPAN_OK) return status;
    close_layout(layout, tail);
    if (layout->n_buckets <= most_buckets) return INSPAN_OK;
    layout_free(layout);
    return INSPAN_LIMIT;
}

static bool is_whole(uint32_t n_params, const uint32_t *order, const uint32_t *sizes, uint32_t n_buckets,
                     bool *seen)
{
    uint64_t all = 0;
    for (uint32_t b = 0; b < n_buckets; b++) {
        if (sizes[b] == 0) return false;
        all += sizes[b];
    }
    for (uint32_t i = 0; i < n_params; i++) {
        if (order[i] >= n_params || seen[order[i]]) return false;
        seen[order[i]] = true;
    }
    return all == n_params;
}

inspan_status_t layout_cut(const uint64_t *counts, uint32_t n_params, const uint32_t *order,
                           const uint32_t *sizes, uint32_t n_buckets, uint32_t tail, layout_t *layout)
{
    memset(layout, 0, sizeof *layout);
    bool *seen = calloc(n_params, sizeof *seen);
    if (seen == NULL) return INSPAN_NO_MEMORY;
    const bool whole = is_whole(n_params, order, sizes, n_buckets, seen);
    free(seen);
    if (!whole) return INSPAN_INVALID;
    inspan_status_t status = open_layout(n_params, layout);
    if (status != INSPAN_OK) return status;
    for (uint32_t b = 0, at = 0; b < n_buckets; b++)
        for (uint32_t i = 0; i < sizes[b]; i++, at++) place(layout, at, order[at], counts[order[at]], i == 0);
    close_layout(layout, tail);
    return INSPAN_OK;
}

void layout_free(layout_t *layout)
{
    free(layout->order);
    free(layout->bucket);
    free(layout->offset);
    free(layout->buckets);
    memset(layout, 0, sizeof *layout);
}
