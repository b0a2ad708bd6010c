#include "core/collective/schedule.h"

/* The end of rank's shard, given the share of all shards up to and with it. Monotonic in share. */
static uint64_t boundary(uint64_t count, double share, uint64_t align)
{
    if (share >= 1) return count;
    const double exact = (double)count * share;
    const uint64_t whole = exact >= (double)count ? count : (uint64_t)exact;
    return whole / align * align;
}

void sched_shard(uint64_t count, uint32_t world, const double *weights, uint32_t rank, uint64_t *first,
                 uint64_t *n)
{
    /* 32 elements are at least 64 bytes for every type of 2 bytes and more. The cut moves a boundary by at
     * most one such block: allowed up to 1/16 of a mean shard. */
    uint64_t align = 32;
    while (align > 1 && count / world < 16 * align) align /= 2;
    double before = 0, with = 0, total = 0;
    for (uint32_t i = 0; i < world; i++) {
        const double weight = weights != NULL ? weights[i] : 1;
        if (i < rank) before += weight;
        if (i <= rank) with += weight;
        total += weight; /* the same additions in the same order, so with == total for the last owner */
    }
    *first = before > 0 ? boundary(count, before / total, align) : 0;
    *n = boundary(count, with / total, align) - *first;
}
