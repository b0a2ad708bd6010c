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

inspan_status_t layout_build(const uint64_t *counts, uint32_t n_params, size_t element_size,
                             uint64_t bucket_bytes, uint64_t first_bucket_bytes, uint32_t tail,
                             uint32_t most_buckets, layout_t *layout)
{
    memset(layout, 0, sizeof *layout);
    layout->n_params = n_params;
    layout->order = calloc(n_params, sizeof layout->order[0]);
    layout->bucket = calloc(n_params, sizeof layout->bucket[0]);
    layout->offset = calloc(n_params, sizeof layout->offset[0]);
    layout->buckets = calloc(n_params, sizeof layout->buckets[0]); /* at most one bucket a parameter */
    if (!layout->order || !layout->bucket || !layout->offset || !layout->buckets) {
        layout_free(layout);
        return INSPAN_NO_MEMORY;
    }
    for (uint32_t at = 0; at < n_params; at++) {
        uint32_t parameter = n_params - 1 - at;
        uint64_t limit = layout->n_buckets <= 1 ? first_bucket_bytes : bucket_bytes;
        layout_bucket_t *open = layout->n_buckets > 0 ? &layout->buckets[layout->n_buckets - 1] : NULL;
        if (open == NULL || (open->count + counts[parameter]) * element_size > limit) {
            open = &layout->buckets[layout->n_buckets++];
            open->first_order = at;
        }
        layout->order[at] = parameter;
        layout->bucket[parameter] = layout->n_buckets - 1;
        layout->offset[parameter] = open->count;
        open->count += aligned(counts[parameter]);
        open->n_params++;
    }
    for (uint32_t b = 0; b < layout->n_buckets; b++) {
        layout->buckets[b].tail = layout->buckets[b].count;
        layout->buckets[b].count += tail;
    }
    if (layout->n_buckets > most_buckets) {
        layout_free(layout);
        return INSPAN_LIMIT;
    }
    layout->hash = layout_hash(layout);
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
