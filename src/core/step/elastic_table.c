/* Who computes which lease, and who copies which chunk to whom: pure functions, the leader's alone to apply.
 */
#include "core/step/elastic_internal.h"

/* Contiguous runs, in the order of the members, sizes differing by at most one: a run is a micro-batch
 * without gaps. (Speeds and steals come in here: only leases not yet granted may be redirected, L1.) */
void elastic_table(uint64_t full, elastic_set_t leases, bool saving, uint8_t owner[ELASTIC_LEASES_MAX])
{
    memset(owner, NOBODY, ELASTIC_LEASES_MAX);
    if (full == 0) return;
    if (saving) full &= ~full + 1; /* one member saves */
    uint32_t shares = (uint32_t)__builtin_popcountll(full), total = set_count(leases), given = 0, share = 0;
    for (uint32_t lease = 0; lease < ELASTIC_LEASES_MAX; lease++) {
        if (!elastic_has(&leases, lease)) continue;
        while (given >= total * (share + 1) / shares) {
            share++;
            full &= full - 1;
        }
        owner[lease] = (uint8_t)__builtin_ctzll(full);
        given++;
    }
}

static uint8_t nth_missing(elastic_set_t here, uint32_t chunks, uint32_t nth)
{
    elastic_set_t missing = set_minus(set_first(chunks), here);
    for (uint32_t chunk = 0; chunk < chunks; chunk++)
        if (elastic_has(&missing, chunk) && nth-- == 0) return (uint8_t)chunk;
    return NOBODY;
}

/* Each full member gives at most one chunk to each newcomer at a commit: so a newcomer is complete after at
 * most ceil(chunks / full members) committed steps, and no step copies more than that. The k-th newcomer's
 * first chunk comes from the k-th donor, so that few missing chunks do not all come from one. */
void elastic_plan(uint64_t full, uint32_t n, const elastic_set_t *here, uint32_t chunks, uint32_t to,
                  uint8_t row[ELASTIC_MEMBERS_MAX])
{
    memset(row, NOBODY, ELASTIC_MEMBERS_MAX);
    uint32_t donors = (uint32_t)__builtin_popcountll(full), newcomer = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (in(full, i)) continue;
        uint32_t donor = 0;
        for (uint32_t d = 0; d < n; d++) {
            if (!in(full, d)) continue;
            uint32_t nth = (donor++ + donors - newcomer % donors) % donors;
            if (d == to) row[i] = nth_missing(here[i], chunks, nth);
            if (i == to) row[d] = nth_missing(here[i], chunks, nth);
        }
        newcomer++;
    }
}
