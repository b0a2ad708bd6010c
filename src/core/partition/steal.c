/* What moves within a step. See split.h. */
#include "core/partition/split.h"

#define NS_MOST (INT64_C(1) << 50)

static int64_t bounded(uint64_t ns)
{
    return ns < NS_MOST ? (int64_t)ns : NS_MOST;
}

/* Leases that may go: a victim keeps its last run, which is to hide the reduction. */
static uint32_t movable(const partition_progress_t *member)
{
    if (member->sealed || member->reserved <= member->pace.last) return 0;
    return member->reserved - member->pace.last;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Leases of the run that a member claims at the beginning of. */
static uint32_t last_granted(const partition_progress_t *member)
{
    const uint32_t open = member->granted - member->computed;
    return member->pace.run > 0 && member->pace.run < open ? member->pace.run : open;
}

/*
 * Time per lease: the pace; where they are slower, its progress up to its last claim, and its silence since:
 * a member claims when it begins its last granted run, so what it was to compute before that takes at least
 * the time since it was heard.
 */
static int64_t lease_ns(int64_t now, int64_t opened_at, const partition_progress_t *member)
{
    const int64_t step_ns = bounded(member->pace.step_ns);
    int64_t rate = larger(1, bounded(member->pace.lease_ns));
    const int64_t worked = member->heard_at - opened_at - step_ns;
    if (member->computed > 0 && worked > 0) rate = larger(rate, worked / member->computed);
    const uint32_t open = member->granted - member->computed, before = open - last_granted(member);
    const int64_t silent = now - member->heard_at - (member->computed == 0 ? step_ns : 0);
    if (before > 0 && silent > 0) rate = larger(rate, silent / before);
    return rate < NS_MOST ? rate : NS_MOST;
}

int64_t partition_predict(int64_t now, int64_t opened_at, const partition_progress_t *member)
{
    const int64_t begin = member->heard_at + (member->computed == 0 ? bounded(member->pace.step_ns) : 0);
    const uint32_t left = member->reserved + member->granted - member->computed;
    return larger(now, begin + left * lease_ns(now, opened_at, member));
}

/* Of the members that can give leases, the one that finishes last; n: nobody finishes later than `to`. */
static uint32_t find_victim(int64_t now, int64_t opened_at, uint32_t n, const partition_progress_t *members,
                            uint32_t to, int64_t *late)
{
    uint32_t victim = n;
    *late = partition_predict(now, opened_at, &members[to]);
    for (uint32_t i = 0; i < n; i++) {
        if (i == to || movable(&members[i]) == 0) continue;
        const int64_t finish = partition_predict(now, opened_at, &members[i]);
        if (finish <= *late) continue;
        *late = finish;
        victim = i;
    }
    return victim;
}

/* How much earlier both are done when `leases` move. */
static int64_t gain_of(int64_t gap, int64_t victim_ns, int64_t thief_ns, uint32_t leases)
{
    const int64_t saved = leases * victim_ns, left = gap - leases * thief_ns;
    return saved < left ? saved : left;
}

uint32_t partition_steal(void *context, int64_t now, int64_t opened_at, uint32_t n,
                         const partition_progress_t *members, uint32_t to, uint32_t *from)
{
    (void)context;
    if (to >= n || members[to].sealed) return 0;
    const partition_progress_t *thief = &members[to];
    const uint32_t has = thief->reserved + thief->granted;
    if (has >= thief->pace.most) return 0;
    int64_t late;
    const uint32_t victim = find_victim(now, opened_at, n, members, to, &late);
    if (victim == n) return 0;
    const int64_t victim_ns = lease_ns(now, opened_at, &members[victim]),
                  thief_ns = lease_ns(now, opened_at, thief);
    if (thief_ns <= 1) return 0; /* nothing is known of it yet */
    const int64_t gap = late - partition_predict(now, opened_at, thief);
    uint32_t most = movable(&members[victim]);
    if (most > thief->pace.most - has) most = thief->pace.most - has;
    if (gap / 2 / thief_ns < most) most = (uint32_t)(gap / 2 / thief_ns);
    uint32_t leases = 0;
    for (uint32_t k = 1; k <= most; k++)
        if (gain_of(gap, victim_ns, thief_ns, k) > gain_of(gap, victim_ns, thief_ns, leases)) leases = k;
    if (leases == 0 || gain_of(gap, victim_ns, thief_ns, leases) < leases * thief_ns / 2) return 0;
    *from = victim;
    return leases;
}
