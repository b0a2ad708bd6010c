/* Stealing: claims of the members, answers of the leader. L1: each lease is granted once and never taken
 * back; only what is reserved goes to somebody else. L3: every claim is answered with a lease or with LAST.
 */
#include <inttypes.h>

#include "core/step/elastic_internal.h"

/* ---- the leader: what everyone has ---- */

static void count_leases(elastic_t *e)
{
    for (uint32_t i = 0; i < e->n; i++) e->progress[i].granted = e->progress[i].reserved = 0;
    for (uint32_t lease = 0; lease < e->config.leases; lease++) {
        uint8_t owner = e->owner[lease];
        if (owner == NOBODY) continue;
        if (owner & RESERVED)
            e->progress[owner & ~RESERVED].reserved++;
        else
            e->progress[owner].granted++;
    }
}

void elastic_open_claims(elastic_t *e)
{
    e->begun = EMPTY_SET;
    e->claimed = false;
    e->sealed = true; /* LAST rides on the table where it reserves nothing */
    for (uint32_t lease = 0; lease < e->config.leases; lease++)
        if (e->owner[lease] == (RESERVED | e->index)) e->sealed = false;
    if (e->index != LEADER) return;
    e->opened_at = e->now;
    for (uint32_t i = 0; i < e->n; i++)
        e->progress[i] =
            (elastic_progress_of_t){.pace = e->paces[i], .heard_at = e->now, .full = in(e->full, i)};
    count_leases(e);
    for (uint32_t i = 0; i < e->n; i++) e->progress[i].sealed = e->progress[i].reserved == 0;
}

/* ---- the leader: an answer ---- */

/* The tail of what is reserved for `from`. */
static void move(elastic_t *e, uint32_t from, uint32_t to, uint32_t n)
{
    for (uint32_t lease = e->config.leases; lease-- > 0 && n > 0;) {
        uint32_t owner = PLANTED(e, STEALGRANTED) ? from : RESERVED | from;
        if (e->owner[lease] != owner) continue;
        e->owner[lease] = (uint8_t)(RESERVED | to);
        n--;
    }
}

/* Leases that go from another's reserve to that of `to`; what the policy says is bounded by what there is. */
static void steal(elastic_t *e, uint32_t to)
{
    const elastic_policy_t *policy = &e->config.policy;
    const elastic_progress_of_t *thief = &e->progress[to];
    uint32_t has = thief->granted + thief->reserved, from = to;
    if (policy->steal == NULL || thief->pace.most <= has) return;
    uint32_t n = policy->steal(policy->context, e->now, e->opened_at, e->n, e->progress, to, &from);
    if (n == 0 || from >= e->n || from == to) return;
    if (n > e->progress[from].reserved) n = e->progress[from].reserved;
    if (n > thief->pace.most - has) n = thief->pace.most - has;
    move(e, from, to, n);
    count_leases(e);
    if (to == LEADER) e->stolen += n;
}

/* The first n of what is reserved for `to` are its own now. */
static elastic_set_t grant_reserved(elastic_t *e, uint32_t to, uint32_t n)
{
    elastic_set_t granted = EMPTY_SET;
    for (uint32_t lease = 0; lease < e->config.leases && n > 0; lease++) {
        if (e->owner[lease] != (RESERVED | to)) continue;
        e->owner[lease] = (uint8_t)to;
        set_add(&granted, lease);
        n--;
    }
    count_leases(e);
    return granted;
}

static void take_grant(elastic_t *e, elastic_set_t granted, bool last)
{
    e->granted = set_or(e->granted, granted);
    e->claimed = false;
    e->sealed = last;
    elastic_do(e, ELASTIC_DO_MORE, 0, 0);
}

static void tell_grant(elastic_t *e, uint32_t to, elastic_set_t granted, bool last)
{
    if (to == LEADER) {
        take_grant(e, granted, last);
        return;
    }
    elastic_message_t *out = elastic_draft(e, ELASTIC_GRANT);
    out->granted = granted;
    out->last = last;
    elastic_send(e, to);
}

/* Planted: what `to` has just been granted is reserved for somebody else as well. */
static void reserve_again(elastic_t *e, uint32_t to, elastic_set_t granted)
{
    for (uint32_t i = 0; i < e->n && !set_empty(granted); i++) {
        if (i == to || !e->progress[i].full || e->progress[i].sealed) continue;
        e->owner[set_lowest(granted)] = (uint8_t)(RESERVED | i);
        count_leases(e);
        return;
    }
}

/* The next run, up to the last one. That comes with LAST, so that the reductions can hide behind it, and as
 * late as possible: until then the member can steal, and be stolen from. */
static void answer(elastic_t *e, uint32_t to, uint32_t done)
{
    elastic_progress_of_t *member = &e->progress[to];
    const elastic_pace_t *pace = &member->pace;
    uint32_t last = pace->last != 0 ? pace->last : pace->run;
    member->computed = done;
    member->heard_at = e->now;
    if (member->reserved <= last) steal(e, to);
    uint32_t n = member->reserved;
    if (pace->run > 0 && n > last) n = n - last < pace->run ? n - last : pace->run;
    if (PLANTED(e, GRANTLATE) && n == member->reserved && n > 1) n--;
    bool sealed = n == member->reserved || (PLANTED(e, GRANTLATE) && n + 1 == member->reserved);
    member->sealed = sealed;
    elastic_set_t granted = grant_reserved(e, to, n);
    tell_grant(e, to, granted, sealed);
    if (PLANTED(e, GRANTLATE) && sealed && member->reserved > 0)
        tell_grant(e, to, grant_reserved(e, to, member->reserved), true);
    if (PLANTED(e, GRANTTWICE)) reserve_again(e, to, granted);
}

inspan_status_t elastic_on_claim(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    const elastic_progress_of_t *member = &e->progress[from];
    bool here = e->index == LEADER && e->phase == ELASTIC_RUN && m->step == e->step;
    if (!here || !member->full || member->sealed)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent CLAIM for step %" PRIu64 " to rank %u, which works on step %" PRIu64
                            " of view %" PRIu64
                            " (%s): a full member claims from the leader, until it was told its last lease",
                            e->numbers[from], m->step, e->config.number, e->step, e->view,
                            e->index != LEADER ? "not the leader"
                            : !here            ? elastic_phase_name(e->phase)
                            : !member->full    ? "it is not full"
                                               : "it has its last lease");
    if (m->done > member->granted)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u claims in step %" PRIu64
                            " and says that it computed %u leases of the %u that it was granted",
                            e->numbers[from], m->step, m->done, member->granted);
    answer(e, from, m->done);
    return INSPAN_OK;
}

/* ---- the member ---- */

void elastic_claim_if_due(elastic_t *e)
{
    if (e->phase != ELASTIC_RUN || e->sealed || e->claimed) return;
    if (!set_empty(set_minus(set_minus(e->granted, e->begun), e->computed))) return;
    e->claimed = true;
    uint32_t done = set_count(set_and(e->granted, e->computed));
    if (e->index == LEADER) {
        answer(e, LEADER, done);
        return;
    }
    elastic_draft(e, ELASTIC_CLAIM)->done = done;
    elastic_send(e, LEADER);
}

/* L1, as far as this member can see: of what the table reserved, and not what it has already. */
static bool may_be_granted(const elastic_t *e, uint32_t lease)
{
    return lease < e->config.leases && e->owner[lease] != NOBODY && (e->owner[lease] & RESERVED) != 0;
}

inspan_status_t elastic_on_grant(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    bool asked = from == LEADER && e->phase == ELASTIC_RUN && m->step == e->step && e->claimed;
    if (!asked || (set_empty(m->granted) && !m->last))
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent GRANT for step %" PRIu64 " to rank %u, which works on step %" PRIu64
                            " of view %" PRIu64
                            " (%s): the leader answers each claim once, with a lease or the last word",
                            e->numbers[from], m->step, e->config.number, e->step, e->view,
                            from != LEADER ? "not from the leader"
                            : !asked       ? "nothing is claimed"
                                           : "it gives nothing");
    for (uint32_t lease = 0; lease < ELASTIC_LEASES_MAX; lease++)
        if (elastic_has(&m->granted, lease) && !may_be_granted(e, lease))
            return elastic_fail(e, INSPAN_MISMATCH,
                                "rank %u granted lease %u of step %" PRIu64
                                " to rank %u: it was granted before, or is not to be computed",
                                e->numbers[from], lease, m->step, e->config.number);
    for (uint32_t lease = 0; lease < e->config.leases; lease++) {
        if (!elastic_has(&m->granted, lease)) continue;
        e->stolen += e->owner[lease] != (RESERVED | e->index);
        e->owner[lease] = (uint8_t)e->index;
    }
    take_grant(e, m->granted, m->last);
    return INSPAN_OK;
}
