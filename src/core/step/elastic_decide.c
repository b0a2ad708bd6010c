/* The leader's decision, from the reports of all members: V3, R1, R2, L1. */
#include <inttypes.h>

#include "core/step/elastic_internal.h"

static bool fresh(const elastic_t *e, uint32_t i)
{
    return e->reports[i].role == ELASTIC_FRESH;
}

static bool holds(const elastic_t *e, uint32_t i, uint64_t step)
{
    const elastic_report_t *report = &e->reports[i];
    elastic_set_t buckets = elastic_buckets_of(e, step, report->layout.buckets);
    return report->step == step && set_empty(set_minus(buckets, report->held));
}

/* Takes part in the step with what it reported: leases, buckets. */
static bool at(const elastic_t *e, uint32_t i, uint64_t step)
{
    return !fresh(e, i) && e->reports[i].step == step;
}

/* V3: the highest committed step of those that are not fresh, as the step after it. */
static bool highest_step(const elastic_t *e, uint64_t *step)
{
    bool any = false;
    for (uint32_t i = 0; i < e->n; i++) {
        if (fresh(e, i)) continue;
        bool better = PLANTED(e, NOR1) ? e->reports[i].step < *step : e->reports[i].step > *step;
        if (!any || better) *step = e->reports[i].step;
        any = true;
    }
    return any;
}

/* R1: who is one step behind holds all of it; and what every survivor holds is committed as well. */
static inspan_status_t choose_step(elastic_t *e, uint64_t *step)
{
    bool all_hold = *step != elastic_end(e);
    for (uint32_t i = 0; i < e->n; i++) {
        if (fresh(e, i)) continue;
        bool behind = e->reports[i].step + 1 == *step && holds(e, i, e->reports[i].step);
        if (!at(e, i, *step) && !behind && !PLANTED(e, NOR1))
            return elastic_fail(e, INSPAN_MISMATCH,
                                "rank %u reports in view %" PRIu64 " that it works on step %" PRIu64
                                " with %u reduced buckets, while step %" PRIu64
                                " is committed: nobody can commit without its vote",
                                e->numbers[i], e->view, e->reports[i].step, set_count(e->reports[i].held),
                                *step - 1);
        all_hold = all_hold && holds(e, i, *step);
    }
    if (all_hold && !PLANTED(e, NOC2)) ++*step;
    return INSPAN_OK;
}

/* Y2: the layout of the step is that of those who work on it, one for all; of a step that nobody has opened
 * yet, that of the one before. */
static inspan_status_t choose_layout(elastic_t *e, uint64_t step, elastic_layout_t *layout)
{
    uint32_t by = ELASTIC_MEMBERS_MAX;
    for (uint32_t i = 0; i < e->n; i++) {
        if (fresh(e, i)) continue;
        const elastic_layout_t *reported = &e->reports[i].layout;
        if (by < e->n && at(e, i, step) && at(e, by, step) && !elastic_same_layout(*reported, *layout))
            return elastic_fail(e, INSPAN_MISMATCH,
                                "rank %u reports in view %" PRIu64 " the bucket layout %016" PRIx64
                                " (%u buckets) of step %" PRIu64 ", rank %u reports %016" PRIx64
                                " (%u): do the models differ?",
                                e->numbers[i], e->view, reported->hash, reported->buckets, step,
                                e->numbers[by], layout->hash, layout->buckets);
        if (by < e->n && (at(e, by, step) || !at(e, i, step))) continue;
        by = i;
        *layout = *reported;
    }
    if (elastic_knows(e, *layout)) return INSPAN_OK;
    return elastic_fail(e, INSPAN_MISMATCH,
                        "rank %u reports in view %" PRIu64 " the bucket layout %016" PRIx64
                        ", which rank %u does not know: do the models differ?",
                        e->numbers[by], e->view, layout->hash, e->config.number);
}

/* I2: the leases that survivors have computed, disjoint. */
static inspan_status_t gather_leases(elastic_t *e, uint64_t step, elastic_set_t *computed,
                                     elastic_set_t *given_up)
{
    *computed = *given_up = EMPTY_SET;
    for (uint32_t i = 0; i < e->n; i++) {
        const elastic_report_t *report = &e->reports[i];
        if (!at(e, i, step)) continue;
        elastic_set_t twice = set_and(*computed, report->computed);
        if (!set_empty(twice))
            return elastic_fail(e, INSPAN_MISMATCH,
                                "rank %u reports in view %" PRIu64
                                " that it computed lease %u of step %" PRIu64
                                ", and so does a rank before it",
                                e->numbers[i], e->view, set_lowest(twice), step);
        *computed = set_or(*computed, report->computed);
        *given_up = set_or(*given_up, report->given_up);
    }
    *given_up = set_minus(*given_up, *computed);
    return INSPAN_OK;
}

/* R2: what survivors hold of the step, each bucket with one tag (I1). */
static inspan_status_t gather_buckets(elastic_t *e, uint64_t step)
{
    elastic_message_t *out = &e->out;
    out->held = EMPTY_SET;
    for (uint32_t i = 0; i < e->n; i++) {
        const elastic_report_t *report = &e->reports[i];
        for (uint32_t b = 0; b < out->buckets && at(e, i, step); b++) {
            if (!elastic_has(&report->held, b)) continue;
            if (elastic_has(&out->held, b) && out->tag[b] != report->tag[b])
                return elastic_fail(e, INSPAN_MISMATCH,
                                    "rank %u holds bucket %u of step %" PRIu64
                                    " as reduced in view %u, a rank"
                                    " before it as reduced in view %u",
                                    e->numbers[i], b, step, report->tag[b], out->tag[b]);
            set_add(&out->held, b);
            out->tag[b] = report->tag[b];
        }
    }
    return INSPAN_OK;
}

/* R2: one holder of each salvaged bucket passes it on; the one with the fewest passes so far. */
static void choose_sources(elastic_t *e, uint64_t step)
{
    elastic_message_t *out = &e->out;
    uint32_t passes[ELASTIC_MEMBERS_MAX] = {0};
    for (uint32_t b = 0; b < out->buckets; b++) {
        if (!elastic_has(&out->held, b)) continue;
        uint32_t best = ELASTIC_MEMBERS_MAX;
        out->need[b] = all_members(e->n);
        for (uint32_t i = 0; i < e->n; i++) {
            if (!at(e, i, step) || !elastic_has(&e->reports[i].held, b)) continue;
            out->need[b] &= ~(1ull << i);
            if (best == ELASTIC_MEMBERS_MAX || passes[i] < passes[best]) best = i;
        }
        if (best == ELASTIC_MEMBERS_MAX) continue; /* held is the union of what they hold: cannot be */
        out->source[b] = (uint8_t)best;
        passes[best] += (uint32_t)__builtin_popcountll(out->need[b]);
    }
}

/* D1: leases that nobody here has computed or was granted are the lost ones'. Never all of a step. */
static elastic_set_t lost_leases(const elastic_t *e, elastic_set_t left, elastic_set_t computed,
                                 elastic_set_t given_up)
{
    elastic_set_t lost = set_minus(left, given_up);
    bool all = set_empty(computed) && set_equal(lost, left);
    return all || !set_empty(e->out.held) ? EMPTY_SET : lost;
}

/* L1, R2: if at least one bucket must be reduced anew, all leases outside the union of the D are granted
 * again. D1: under drop but for the lost ones, where no held bucket counts them already. D2: what was dropped
 * stays dropped. */
static elastic_set_t leases_to_grant(elastic_t *e, uint64_t step, elastic_set_t computed,
                                     elastic_set_t given_up)
{
    e->out.dropped = EMPTY_SET;
    if (step == elastic_end(e)) return EMPTY_SET;
    for (uint32_t i = 0; i < e->n; i++)
        if (at(e, i, step)) e->out.dropped = set_or(e->out.dropped, e->reports[i].dropped);
    if (set_empty(set_minus(elastic_buckets_of(e, step, e->out.buckets), e->out.held))) return EMPTY_SET;
    elastic_set_t left = set_minus(set_minus(set_first(e->config.leases), computed), e->out.dropped);
    if (!e->config.drop || elastic_light_step(e, step)) return left;
    elastic_set_t lost = lost_leases(e, left, computed, given_up);
    e->out.dropped = set_or(e->out.dropped, lost);
    return set_minus(left, lost);
}

/* N2: nobody who never was full becomes so here. G4: but where nobody else is left, leavers do their duty
 * again. */
static uint64_t full_members(elastic_t *e)
{
    uint64_t full = 0, leaving = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        elastic_role_t role = e->reports[i].role;
        if (role == ELASTIC_FULL) full |= 1ull << i;
        if (role == ELASTIC_LEAVING) leaving |= 1ull << i;
        if (role >= ELASTIC_FULL && e->reports[i].leave) e->wish |= 1ull << i;
    }
    return full ? full : leaving;
}

inspan_status_t elastic_decide(elastic_t *e, bool *stuck)
{
    uint64_t step = 0;
    *stuck = !highest_step(e, &step);
    if (*stuck) return INSPAN_OK;
    inspan_status_t status = choose_step(e, &step);
    if (status != INSPAN_OK) return status;
    uint64_t full = full_members(e);
    *stuck = full == 0 && step != elastic_end(e);
    if (*stuck) return INSPAN_OK;
    elastic_layout_t layout = e->layout;
    status = choose_layout(e, step, &layout);
    if (status != INSPAN_OK) return status;
    elastic_message_t *out = elastic_draft(e, ELASTIC_DECIDE);
    out->step = step;
    out->layout = layout.hash;
    out->buckets = layout.buckets;
    out->full = full;
    out->wire = e->wire;
    elastic_set_t computed, given_up;
    status = gather_leases(e, step, &computed, &given_up);
    if (status == INSPAN_OK) status = gather_buckets(e, step);
    if (status != INSPAN_OK) return status;
    if (PLANTED(e, NOSALV)) out->held = EMPTY_SET;
    elastic_set_t grant = leases_to_grant(e, step, computed, given_up);
    choose_sources(e, step);
    uint32_t share[ELASTIC_MEMBERS_MAX] = {0}; /* of what is left: nothing to compare with */
    elastic_share_out(e, full, grant, step, share, out->owner);
    return INSPAN_OK;
}
