/*
 * The step machine's policy is core/partition's. Neither core includes the other: this carries numbers from
 * one's types into the other's.
 */
#include "core/partition/split.h"
#include "worker/driver_internal.h"

_Static_assert(PARTITION_MEMBERS_MAX >= ELASTIC_MEMBERS_MAX && PARTITION_LEASES_MAX >= ELASTIC_LEASES_MAX,
               "limits");

static partition_pace_t pace_of(const elastic_pace_t *pace)
{
    return (partition_pace_t){.lease_ns = pace->lease_ns,
                              .step_ns = pace->step_ns,
                              .run = pace->run,
                              .last = pace->last,
                              .most = pace->most};
}

static void split(void *context, uint32_t leases, uint64_t full, uint32_t n, const elastic_pace_t *pace,
                  uint32_t *share)
{
    partition_pace_t paces[ELASTIC_MEMBERS_MAX];
    for (uint32_t i = 0; i < n; i++) paces[i] = pace_of(&pace[i]);
    partition_split(context, leases, full, n, paces, share);
}

static uint32_t steal(void *context, int64_t now, int64_t opened_at, uint32_t n,
                      const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    partition_progress_t progress[ELASTIC_MEMBERS_MAX];
    for (uint32_t i = 0; i < n; i++)
        progress[i] = (partition_progress_t){.pace = pace_of(&members[i].pace),
                                             .reserved = members[i].reserved,
                                             .granted = members[i].granted,
                                             .computed = members[i].computed,
                                             .heard_at = members[i].heard_at,
                                             .sealed = members[i].sealed || !members[i].full};
    return partition_steal(context, now, opened_at, n, progress, to, from);
}

elastic_policy_t driver_policy(void)
{
    return (elastic_policy_t){.split = split, .steal = steal};
}
