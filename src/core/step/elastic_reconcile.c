/* After a view change: what members report, and how they act on the leader's decision. */
#include <inttypes.h>

#include "core/step/elastic_internal.h"

/* ---- the report ---- */

/* Leases that the ended view had granted to somebody who is still here, or reserved for it. */
static elastic_set_t given_up(const elastic_t *e)
{
    elastic_set_t set = EMPTY_SET;
    for (uint32_t lease = 0; lease < e->config.leases; lease++)
        for (uint32_t i = 0; i < e->n && e->grantee[lease] != 0; i++)
            if (e->grantee[lease] == e->numbers[i] + 1ull) set_add(&set, lease);
    return set_minus(set, e->computed);
}

static void fill_report(const elastic_t *e, elastic_report_t *report)
{
    report->step = e->step;
    report->layout = e->layout;
    report->role = e->role;
    if (PLANTED(e, SELFFULL) && e->role == ELASTIC_LISTENER && elastic_complete(e))
        report->role = ELASTIC_FULL;
    report->leave = e->wants_leave;
    report->computed = e->computed;
    report->given_up = given_up(e);
    report->dropped = e->dropped;
    report->held = e->held;
    report->chunks = elastic_chunks_here(e);
    report->pace = e->pace;
    memcpy(report->tag, e->tag, sizeof report->tag);
}

/* V2: the member reports, and changes nothing of what it reported until DECIDE. */
void elastic_reconcile(elastic_t *e)
{
    elastic_report_t *own = &e->reports[LEADER];
    fill_report(e, own);
    e->told_leave = e->wants_leave;
    if (e->index == LEADER) {
        e->reported = 1ull << LEADER;
        e->paces[LEADER] = e->pace;
        return;
    }
    elastic_message_t *out = elastic_draft(e, ELASTIC_REPORT);
    out->role = own->role;
    out->leave = own->leave;
    out->computed = own->computed;
    out->given_up = own->given_up;
    out->dropped = own->dropped;
    out->held = own->held;
    out->chunks = own->chunks;
    out->pace = own->pace;
    memcpy(out->tag, own->tag, sizeof out->tag);
    elastic_send(e, LEADER);
}

inspan_status_t elastic_on_report(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    if (e->index != LEADER || e->phase != ELASTIC_RECONCILE || in(e->reported, from)) {
        if (PLANTED(e, NOTALL) && e->index == LEADER) return INSPAN_OK;
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent REPORT to rank %u in view %" PRIu64
                            " (%s): each member reports once,"
                            " to the leader, before it decides",
                            e->numbers[from], e->config.number, e->view,
                            e->index != LEADER      ? "not the leader"
                            : in(e->reported, from) ? "it reported already"
                                                    : elastic_phase_name(e->phase));
    }
    bool beyond = m->step > elastic_end(e);
    if (beyond || !set_empty(set_minus(m->held, elastic_buckets_of(e, m->step, m->buckets))))
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u reports step %" PRIu64
                            " with buckets that it does not have (rank %u: %" PRIu64 " training steps)",
                            e->numbers[from], m->step, e->config.number, e->config.steps);
    elastic_report_t *report = &e->reports[from];
    report->step = m->step;
    report->layout = (elastic_layout_t){m->layout, m->buckets};
    report->role = m->role;
    report->leave = m->leave;
    report->computed = m->computed;
    report->given_up = m->given_up;
    report->dropped = m->dropped;
    report->held = m->held;
    report->chunks = m->chunks;
    report->pace = e->paces[from] = m->pace;
    memcpy(report->tag, m->tag, sizeof report->tag);
    e->reported |= 1ull << from;
    return elastic_decide_if_all_reported(e);
}

/* ---- the decision, as each member takes it ---- */

static inspan_status_t bad_decision(elastic_t *e, const char *what, uint64_t theirs, uint64_t own)
{
    return elastic_fail(e, INSPAN_MISMATCH,
                        "rank %u decided view %" PRIu64 " against what rank %u reported: %s (%" PRIu64
                        ", reported %" PRIu64 ")",
                        e->numbers[LEADER], e->view, e->config.number, what, theirs, own);
}

/* What I4, R1, N2 promise of any decision. */
static inspan_status_t check_step_and_role(elastic_t *e, const elastic_message_t *m)
{
    bool fresh = e->role == ELASTIC_FRESH, full = e->role == ELASTIC_FULL;
    if (PLANTED(e, SELFFULL) && e->role == ELASTIC_LISTENER && elastic_complete(e)) full = true;
    if (m->step > elastic_end(e)) return bad_decision(e, "a step beyond the last", m->step, e->step);
    if (!fresh && m->step < e->step)
        return bad_decision(e, "a committed step would be undone", m->step, e->step); /* I4 */
    if (!fresh && m->step > e->step && (m->step != e->step + 1 || !elastic_holds_all(e)))
        return bad_decision(e, "a step committed of which not every bucket is here", m->step,
                            e->step);                                             /* R1 */
    bool may = full || e->role == ELASTIC_LEAVING, named = in(m->full, e->index); /* N2, G4 */
    if (m->step != elastic_end(e) && (named ? !may : full))
        return bad_decision(e, full ? "full, and not named" : "named full, and is not", named, full);
    return INSPAN_OK;
}

/* R2 and L1: what was reported of the step that goes on is used, and used once. */
static inspan_status_t check_salvage(elastic_t *e, const elastic_message_t *m)
{
    bool here = e->role != ELASTIC_FRESH && m->step == e->step;
    if (here && m->layout != e->layout.hash)
        return bad_decision(e, "another bucket layout", m->layout, e->layout.hash); /* Y2 */
    for (uint32_t b = 0; b < m->buckets; b++) {
        bool held = here && elastic_has(&e->held, b), salvaged = elastic_has(&m->held, b);
        if (held && !salvaged && !PLANTED(e, NOSALV))
            return bad_decision(e, "a held bucket is not salvaged", b, b);
        if (held && salvaged && m->tag[b] != e->tag[b])
            return bad_decision(e, "a held bucket was reduced in another view", m->tag[b], e->tag[b]);
        if (salvaged && (in(m->need[b], e->index) == held || (m->source[b] == e->index && !held)))
            return bad_decision(e, "who holds a salvaged bucket, and who needs it", b, b);
    }
    if (here && !set_empty(set_minus(e->dropped, m->dropped)))
        return bad_decision(e, "a dropped lease counts again", 0, set_lowest(e->dropped)); /* D2 */
    elastic_set_t needed = elastic_buckets_of(e, m->step, m->buckets);
    bool end = m->step == elastic_end(e), anew = !end && !set_empty(set_minus(needed, m->held));
    if (!set_empty(set_minus(m->held, end ? EMPTY_SET : needed)))
        return bad_decision(e, "a salvaged bucket that the step does not reduce", m->step, e->step);
    for (uint32_t lease = 0; lease < e->config.leases; lease++) {
        bool granted = m->owner[lease] != NOBODY;
        bool taken = here && elastic_has(&e->computed, lease);
        if (granted &&
            (!in(m->full, m->owner[lease] & ~RESERVED) || !anew || taken || elastic_has(&m->dropped, lease)))
            return bad_decision(e,
                                "a lease granted that is computed, dropped or not needed, or to a member that"
                                " is not full",
                                lease, taken ? lease : 0);
        if (taken && elastic_has(&m->dropped, lease))
            return bad_decision(e, "a computed lease is dropped", lease, lease);
    }
    return INSPAN_OK;
}

/* R2: the source passes each salvaged bucket to those that lack it. */
static void pass_and_take(elastic_t *e, const elastic_message_t *m)
{
    for (uint32_t b = 0; b < m->buckets; b++) {
        if (!elastic_has(&e->salvaged, b)) continue;
        if (in(m->need[b], e->index)) elastic_do(e, ELASTIC_DO_TAKE, b, m->source[b]);
        for (uint32_t i = 0; i < e->n && m->source[b] == e->index; i++)
            if (in(m->need[b], i)) elastic_do(e, ELASTIC_DO_PASS, b, i);
    }
}

static inspan_status_t act_on_decision(elastic_t *e)
{
    const elastic_message_t *m = &e->message;
    inspan_status_t status = check_step_and_role(e, m);
    if (status == INSPAN_OK) status = check_salvage(e, m);
    if (status == INSPAN_OK) status = elastic_take_wire(e, m);
    if (status != INSPAN_OK) return status;
    if (e->role == ELASTIC_FRESH) { /* R1: it joins at the decided step, and listens */
        e->role = ELASTIC_LISTENER;
        e->step = m->step;
    } else if (m->step > e->step) {
        elastic_commit_step(e); /* R1 */
    }
    elastic_take_layout(e, (elastic_layout_t){m->layout, m->buckets});
    if (e->role != ELASTIC_FULL && in(m->full, e->index)) { /* G4, or planted: SELFFULL */
        e->role = ELASTIC_FULL;
        elastic_do(e, ELASTIC_DO_FULL, 0, 0);
    }
    e->full = m->full;
    e->dropped = m->dropped;
    e->salvaged = m->held;
    e->held = set_and(e->held, e->salvaged);
    for (uint32_t b = 0; b < m->buckets; b++)
        if (elastic_has(&e->salvaged, b)) e->tag[b] = m->tag[b];
    memcpy(e->owner, m->owner, e->config.leases);
    elastic_left_if_free(e);
    pass_and_take(e, m);
    uint8_t plan[ELASTIC_MEMBERS_MAX];
    memcpy(plan, m->plan, sizeof plan);
    elastic_open_step(e, plan);
    return elastic_progress(e);
}

inspan_status_t elastic_on_decide(elastic_t *e, uint32_t from)
{
    if (from != LEADER || e->phase != ELASTIC_RECONCILE)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent DECIDE to rank %u in view %" PRIu64
                            " (%s): a decision comes once, from the leader, after every report",
                            e->numbers[from], e->config.number, e->view,
                            from != LEADER ? "not from the leader" : elastic_phase_name(e->phase));
    return act_on_decision(e);
}

/* V3: only with the report of every member of the view. */
inspan_status_t elastic_decide_if_all_reported(elastic_t *e)
{
    if (e->index != LEADER || e->phase != ELASTIC_RECONCILE) return INSPAN_OK;
    uint64_t all = all_members(e->n);
    if (e->reported != all && !PLANTED(e, NOTALL)) return INSPAN_OK;
    for (uint32_t i = 0; i < e->n; i++) /* planted: who has not reported is taken for a new one */
        if (!in(e->reported, i)) memset(&e->reports[i], 0, sizeof e->reports[i]);
    bool stuck = false;
    inspan_status_t status = elastic_decide(e, &stuck);
    if (status != INSPAN_OK) return status;
    if (stuck) { /* P2 */
        if (!e->stuck) elastic_do(e, ELASTIC_DO_STUCK, 0, 0);
        e->stuck = true;
        return INSPAN_OK;
    }
    elastic_set_t here[ELASTIC_MEMBERS_MAX];
    for (uint32_t i = 0; i < e->n; i++) here[i] = e->reports[i].chunks;
    uint32_t chunks = elastic_light_step(e, e->out.step) ? 0 : e->config.chunks;
    for (uint32_t i = e->n; i-- > 0;) {
        elastic_plan(e->out.full, e->n, here, chunks, i, e->out.plan);
        if (i != LEADER) elastic_send(e, i);
    }
    e->message = e->out; /* the leader's own, with its own plan: made last */
    return act_on_decision(e);
}
