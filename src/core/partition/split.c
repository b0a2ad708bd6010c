/* Shares of a step. See split.h. */
#include "core/partition/split.h"

#include <string.h>

#define LEASE_NS_MOST (UINT64_C(1) << 50) /* 13 days: sums of 256 of them stay far below 2^63 */
#define KEEP_PERCENT  3

static uint64_t bounded(uint64_t ns)
{
    return ns < LEASE_NS_MOST ? ns : LEASE_NS_MOST;
}

static bool is_full(uint64_t full, uint32_t i)
{
    return (full >> i & 1) != 0;
}

/* Copies the paces of the full members; unknown ones become the mean of the known, or all equal. */
static void fill_unknown(uint64_t full, uint32_t n, const partition_pace_t *pace, partition_pace_t *filled)
{
    uint64_t lease_ns = 0, step_ns = 0, known = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_full(full, i) || pace[i].lease_ns == 0) continue;
        lease_ns += bounded(pace[i].lease_ns);
        step_ns += bounded(pace[i].step_ns);
        known++;
    }
    for (uint32_t i = 0; i < n; i++) {
        filled[i] = pace[i];
        if (pace[i].lease_ns == 0) {
            filled[i].lease_ns = known > 0 ? lease_ns / known : 1;
            filled[i].step_ns = known > 0 ? step_ns / known : 0;
        }
        filled[i].lease_ns = bounded(filled[i].lease_ns);
        filled[i].step_ns = bounded(filled[i].step_ns);
    }
}

static uint64_t finish_of(const partition_pace_t *pace, uint32_t share)
{
    return bounded(pace->step_ns) + share * bounded(pace->lease_ns);
}

/* Who would finish its next lease first; n: nobody. level 0: within `most`; 1: above it, where it is not 0;
 * 2: anyone. */
static uint32_t next_owner(uint64_t full, uint32_t n, const partition_pace_t *pace, const uint32_t *share,
                           int level)
{
    uint32_t best = n;
    uint64_t best_finish = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_full(full, i) || (level == 0 && share[i] >= pace[i].most) ||
            (level == 1 && pace[i].most == 0))
            continue;
        const uint64_t finish = finish_of(&pace[i], share[i] + 1);
        if (best < n && finish > best_finish) continue;
        best = i;
        best_finish = finish;
    }
    return best;
}

/* One lease after the other to who finishes it first: with a time per lease that is constant for each member,
 * no split finishes earlier (an exchange of two leases never helps). */
static void best_split(uint32_t leases, uint64_t full, uint32_t n, const partition_pace_t *pace,
                       uint32_t *share)
{
    memset(share, 0, n * sizeof *share);
    for (uint32_t given = 0; given < leases; given++) {
        uint32_t owner = n;
        for (int level = 0; level <= 2 && owner == n; level++)
            owner = next_owner(full, n, pace, share, level);
        if (owner == n) return; /* nobody is full */
        share[owner]++;
    }
}

/* The old shares fit these members and are nearly as good. */
static bool keeps(uint32_t leases, uint64_t full, uint32_t n, const partition_pace_t *pace,
                  const uint32_t *old, const uint32_t *best)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (old[i] > 0 && (!is_full(full, i) || (old[i] > pace[i].most && old[i] > best[i]))) return false;
        if (old[i] == 0 && best[i] >= 2) return false;
        sum += old[i];
    }
    if (sum != leases) return false;
    const uint64_t then = partition_finish(full, n, pace, old), now = partition_finish(full, n, pace, best);
    return then - now <= now / 100 * KEEP_PERCENT;
}

void partition_split(void *context, uint32_t leases, uint64_t full, uint32_t n, const partition_pace_t *pace,
                     uint32_t *share)
{
    (void)context;
    partition_pace_t filled[PARTITION_MEMBERS_MAX];
    uint32_t best[PARTITION_MEMBERS_MAX];
    if (n > PARTITION_MEMBERS_MAX) n = PARTITION_MEMBERS_MAX;
    fill_unknown(full, n, pace, filled);
    best_split(leases, full, n, filled, best);
    if (!keeps(leases, full, n, filled, share, best)) memcpy(share, best, n * sizeof *share);
}

uint64_t partition_finish(uint64_t full, uint32_t n, const partition_pace_t *pace, const uint32_t *share)
{
    uint64_t latest = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_full(full, i)) continue;
        const uint64_t finish = finish_of(&pace[i], share[i]);
        if (finish > latest) latest = finish;
    }
    return latest;
}
