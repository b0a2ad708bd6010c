#include "core/step/elastic_policy_test.h"

#include <stdio.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x7f4a7c15ull) * 0xff51afd7ed558ccdull;
    return x ^ x >> 29;
}

elastic_pace_t random_pace(uint64_t draw)
{
    return (elastic_pace_t){.lease_ns = draw % 1000,
                            .step_ns = draw >> 10 & 255,
                            .run = (draw >> 32 & 15) ? 1 + (draw >> 18 & 1) + (draw >> 19 & 1) : 0,
                            .last = draw >> 20 & 3,
                            .most = (draw >> 22 & 3) == 0 ? draw >> 24 & 7 : ELASTIC_LEASES_MAX};
}

static void split(void *context, uint32_t leases, uint64_t full, uint32_t n, const elastic_pace_t *pace,
                  uint32_t *share)
{
    const random_policy_t *policy = context;
    uint64_t draw = mix(policy->salt, full << 32 | leases);
    for (uint32_t i = 0; i < n; i++) {
        draw = mix(draw, pace[i].lease_ns + pace[i].run + share[i]);
        share[i] = 0;
    }
    if (draw >> 13 & 15) /* else: not what it must be */
        for (uint32_t given = 0; given < leases;) {
            draw = mix(draw, given);
            uint32_t i = (uint32_t)(draw >> 7) % n, more = 1 + (uint32_t)(draw >> 20) % (1 + leases / 2);
            if (!(full >> i & 1)) continue;
            if (more > leases - given) more = leases - given;
            share[i] += more;
            given += more;
        }
}

static void check(random_policy_t *policy, int64_t now, int64_t opened_at, uint32_t n,
                  const elastic_progress_of_t *members, uint32_t to)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < n; i++) {
        const elastic_progress_of_t *m = &members[i];
        all += m->reserved + m->granted;
        bool sound = m->computed <= m->granted && (!m->sealed || m->reserved == 0) &&
                     (m->full || m->reserved + m->granted == 0);
        if (!sound || m->heard_at < opened_at || m->heard_at > now)
            snprintf(policy->wrong, sizeof policy->wrong,
                     "member %u of %u: granted %u, reserved %u, computed %u%s%s", i, n, m->granted,
                     m->reserved, m->computed, m->full ? ", full" : "", m->sealed ? ", sealed" : "");
    }
    if (to >= n || members[to].sealed || !members[to].full || all > policy->leases)
        snprintf(policy->wrong, sizeof policy->wrong, "asked for member %u, who is sealed or not full", to);
}

static uint32_t steal(void *context, int64_t now, int64_t opened_at, uint32_t n,
                      const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    random_policy_t *policy = context;
    check(policy, now, opened_at, n, members, to);
    *from = (uint32_t)rng_below(&policy->rng, n + 1);
    for (uint32_t i = 0; i < n && rng_below(&policy->rng, 8);
         i++) /* most often one that can be stolen from */
        if (i != to && members[i].reserved > 0) *from = i;
    return rng_below(&policy->rng, 4) ? (uint32_t)rng_below(&policy->rng, policy->leases + 1) : 0;
}

elastic_policy_t random_policy(random_policy_t *policy)
{
    return (elastic_policy_t){split, steal, policy};
}
