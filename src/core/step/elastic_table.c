/* Who computes which lease, and who copies which chunk to whom: pure functions, the leader's alone to apply.
 */
#include "core/step/elastic_internal.h"

/* Sizes differing by at most one. */
static void equal_shares(uint64_t full, uint32_t leases, uint32_t share[ELASTIC_MEMBERS_MAX])
{
    uint32_t members = (uint32_t)__builtin_popcountll(full), nth = 0;
    memset(share, 0, ELASTIC_MEMBERS_MAX * sizeof share[0]);
    for (; full != 0; full &= full - 1, nth++)
        share[__builtin_ctzll(full)] = leases * (nth + 1) / members - leases * nth / members;
}

/* Contiguous runs, in the order of the members: a run is a micro-batch without gaps. */
static void lay_out(const uint32_t share[ELASTIC_MEMBERS_MAX], elastic_set_t leases,
                    uint8_t owner[ELASTIC_LEASES_MAX])
{
    uint32_t member = 0, given = 0;
    for (uint32_t lease = 0; lease < ELASTIC_LEASES_MAX; lease++) {
        if (!elastic_has(&leases, lease)) continue;
        while (member < ELASTIC_MEMBERS_MAX && given == share[member]) {
            member++;
            given = 0;
        }
        if (member == ELASTIC_MEMBERS_MAX) return; /* the shares make up the leases: cannot be */
        owner[lease] = (uint8_t)member;
        given++;
    }
}

void elastic_table(uint64_t full, elastic_set_t leases, bool saving, uint8_t owner[ELASTIC_LEASES_MAX])
{
    uint32_t share[ELASTIC_MEMBERS_MAX];
    memset(owner, NOBODY, ELASTIC_LEASES_MAX);
    if (full == 0) return;
    if (saving) full &= ~full + 1; /* one member saves */
    equal_shares(full, set_count(leases), share);
    lay_out(share, leases, owner);
}

/* ---- by pace ---- */

static bool makes_up(const uint32_t *share, uint64_t full, uint32_t n, uint32_t leases)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (share[i] != 0 && !in(full, i)) return false;
        sum += share[i];
    }
    return sum == leases;
}

/* Two runs at once, so that a claim has the time of one to be answered. The last run is never among them: it
 * comes with LAST, which says that reductions can start behind it. Who has that run alone has LAST. */
static uint32_t at_once(const elastic_pace_t *pace, uint32_t share)
{
    uint32_t last = pace->last != 0 ? pace->last : pace->run, most = 2 * pace->run;
    if (pace->run == 0 || share <= last) return share;
    return share - last < most ? share - last : most;
}

static void reserve(const elastic_t *e, const uint32_t share[ELASTIC_MEMBERS_MAX],
                    uint8_t owner[ELASTIC_LEASES_MAX])
{
    uint32_t given[ELASTIC_MEMBERS_MAX] = {0};
    for (uint32_t lease = 0; lease < ELASTIC_LEASES_MAX; lease++) {
        uint8_t member = owner[lease];
        if (member == NOBODY) continue;
        if (given[member]++ >= at_once(&e->paces[member], share[member])) owner[lease] = RESERVED | member;
    }
}

void elastic_share_out(const elastic_t *e, uint64_t full, elastic_set_t leases, uint64_t step,
                       uint32_t *share, uint8_t owner[ELASTIC_LEASES_MAX])
{
    const elastic_policy_t *policy = &e->config.policy;
    uint32_t total = set_count(leases), shares[ELASTIC_MEMBERS_MAX] = {0};
    bool one = (full & (full - 1)) == 0;
    if (policy->split == NULL || one || total == 0 || elastic_light_step(e, step)) {
        elastic_table(full, leases, step + 1 == elastic_end(e), owner);
        return;
    }
    memcpy(shares, share, e->n * sizeof shares[0]);
    policy->split(policy->context, total, full, e->n, e->paces, shares);
    if (!makes_up(shares, full, e->n, total)) equal_shares(full, total, shares);
    memcpy(share, shares, e->n * sizeof shares[0]);
    memset(owner, NOBODY, ELASTIC_LEASES_MAX);
    lay_out(shares, leases, owner);
    if (policy->steal != NULL) reserve(e, shares, owner);
}

/* ---- copies ---- */

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
