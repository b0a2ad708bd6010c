/* A step's beginning and end: grants and promises at its start, votes and the commit at its end. */
#include <inttypes.h>
#include <stdio.h>

#include "core/step/elastic_internal.h"

/* ---- the beginning ---- */

void elastic_tell_leave(elastic_t *e)
{
    if (!e->wants_leave || e->told_leave || e->role != ELASTIC_FULL) return;
    e->told_leave = true;
    e->wish |= 1ull << e->index;
    if (e->index == LEADER) return;
    elastic_draft(e, ELASTIC_LEAVE);
    elastic_send(e, LEADER);
}

void elastic_left_if_free(elastic_t *e)
{
    bool free = e->role != ELASTIC_FULL || e->phase == ELASTIC_IDLE;
    if (!e->wants_leave || e->left || !free) return;
    e->left = true;
    elastic_do(e, ELASTIC_DO_LEFT, 0, 0);
}

/* N1: chunks promised for this step. A donor sends them from live memory: weights do not change before the
 * newcomer's vote, which waits for them. */
static void promise_chunks(elastic_t *e, const uint8_t *plan)
{
    bool donor = in(e->full, e->index);
    for (uint32_t i = 0; i < e->n && plan; i++) {
        if (plan[i] == NOBODY) continue;
        if (!donor) set_add(&e->promised, plan[i]);
        elastic_do(e, donor ? ELASTIC_DO_GIVE_CHUNK : ELASTIC_DO_TAKE_CHUNK, plan[i], i);
    }
}

void elastic_open_step(elastic_t *e, const uint8_t *plan)
{
    e->granted = EMPTY_SET;
    if (e->step == elastic_end(e)) {
        e->phase = ELASTIC_DONE;
        if (!e->ended) elastic_do(e, ELASTIC_DO_END, 0, 0);
        e->ended = true;
        return;
    }
    e->phase = ELASTIC_RUN;
    e->live = true;
    e->next_reduce = 0;
    for (uint32_t lease = 0; lease < e->config.leases; lease++) /* L1: the grants of this view */
        if (e->owner[lease] == e->index) set_add(&e->granted, lease);
    elastic_open_claims(e);
    promise_chunks(e, plan);
    elastic_tell_leave(e);
    if (!set_empty(set_minus(elastic_buckets_of(e, e->step, e->layout.buckets), e->salvaged)))
        elastic_do(e, ELASTIC_DO_WORK, 0, 0);
    elastic_claim_if_due(e);
}

/* ---- the commit ---- */

void elastic_commit_step(elastic_t *e)
{
    elastic_do(e, ELASTIC_DO_COMMIT, 0, 0);
    for (uint32_t i = 0; i < e->config.chunks; i++) /* N1: the others stay where they are, and are stale */
        if (e->chunk[i] == e->step + 1 || (PLANTED(e, BLINDCHUNK) && e->chunk[i] != 0)) e->chunk[i]++;
    e->step++;
    e->hint = 0;
    e->voted = e->said_complete = false;
    e->computed = e->granted = e->dropped = e->held = e->salvaged = e->ready = e->promised = EMPTY_SET;
    e->votes = e->complete = 0;
    memset(e->grantee, 0, sizeof e->grantee);
}

/* Grants and full set of the step that a COMMIT opens. Checked by each member: whoever leads may be wrong. */
static inspan_status_t check_commit(elastic_t *e, const elastic_message_t *m)
{
    uint32_t leader = e->numbers[LEADER];
    bool named = in(m->full, e->index), full = e->role == ELASTIC_FULL;
    if (full && !named && !e->wants_leave)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u committed step %" PRIu64
                            " and left out rank %u, which is full and stays",
                            leader, m->step, e->config.number);
    if (!full && named && !e->said_complete) /* N2 */
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u committed step %" PRIu64 " and named rank %u full, which is %s", leader,
                            m->step, e->config.number, elastic_role_name(e->role));
    bool end = m->step + 1 == elastic_end(e);
    for (uint32_t lease = 0; lease < e->config.leases; lease++)
        if (end ? m->owner[lease] != NOBODY : !in(m->full, m->owner[lease] & ~RESERVED))
            return elastic_fail(e, INSPAN_MISMATCH,
                                "rank %u committed step %" PRIu64
                                " and granted lease %u to member %u, which is"
                                " not full",
                                leader, m->step, lease, m->owner[lease] & ~RESERVED);
    if (e->hint != 0 && m->hint != 0 && e->hint != m->hint)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "weights before step %" PRIu64 " differ: rank %u has %016" PRIx64
                            ", the others %016" PRIx64,
                            m->step, e->config.number, e->hint, m->hint);
    return INSPAN_OK;
}

inspan_status_t elastic_take_wire(elastic_t *e, const elastic_message_t *m)
{
    if (m->wire >= e->config.wires)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u opened step %" PRIu64
                            " with way %u of gradients over the wire, rank %u knows %u",
                            e->numbers[LEADER], m->step, m->wire, e->config.number, e->config.wires);
    if (!PLANTED(e, OLDWIRE)) e->wire = m->wire;
    return INSPAN_OK;
}

void elastic_take_layout(elastic_t *e, elastic_layout_t layout)
{
    if (layout.hash == e->layout.hash || (PLANTED(e, OLDLAYOUT) && e->index != LEADER)) return;
    e->layout = layout;
    elastic_do(e, ELASTIC_DO_LAYOUT, 0, 0);
}

/* The commit at this member, and the step that it opens. */
static void take_commit(elastic_t *e, uint64_t full, elastic_layout_t layout, const uint8_t *owner,
                        const uint8_t *plan, const uint8_t *shares)
{
    bool early = PLANTED(e, EARLYAPPLY) && e->index != LEADER;
    if (!early) elastic_commit_step(e);
    elastic_take_layout(e, layout);
    e->full = full;
    memcpy(e->owner, owner, e->config.leases);
    memcpy(e->shares, shares, e->n);
    if (e->role == ELASTIC_FULL && !in(full, e->index)) e->role = ELASTIC_LEAVING;
    if (e->role == ELASTIC_LISTENER && in(full, e->index)) {
        e->role = ELASTIC_FULL; /* N2 */
        elastic_do(e, ELASTIC_DO_FULL, 0, 0);
    }
    elastic_left_if_free(e);
    elastic_open_step(e, plan);
}

inspan_status_t elastic_on_commit(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    uint64_t expected = e->step - (PLANTED(e, EARLYAPPLY) ? 1 : 0);
    bool voted = e->voted || PLANTED_ANY(e, PLANTED_EARLYAPPLY | PLANTED_NOLASTVOTE | PLANTED_LISTENNOVOTE);
    if (from != LEADER || e->phase != ELASTIC_RUN || !voted || m->step != expected)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent COMMIT of step %" PRIu64 " to rank %u, which works on step %" PRIu64
                            " of view %" PRIu64 " (%s, %s): a commit comes from the leader, after every vote",
                            e->numbers[from], m->step, e->config.number, e->step, e->view,
                            elastic_phase_name(e->phase), e->voted ? "voted" : "not voted");
    inspan_status_t status = check_commit(e, m);
    if (status == INSPAN_OK) status = elastic_take_wire(e, m);
    if (status != INSPAN_OK) return status;
    take_commit(e, m->full, (elastic_layout_t){m->layout, m->buckets}, m->owner, m->plan, m->shares);
    return elastic_progress(e);
}

/* ---- votes ---- */

/* C1: with every bucket held; listeners too. N1: and with the promised chunks. Where it computed in this
 * view, its shell is through with that: all is computed, and the tally, which comes last, was ready. (With
 * the tally salvaged the step could be over while its backward pass goes on, and the next step would take
 * what is left of it for its own.) */
static bool may_vote(const elastic_t *e)
{
    bool through = set_empty(e->granted) || elastic_has(&e->ready, e->layout.buckets - 1);
    return !e->voted && e->sealed && elastic_holds_all(e) && set_empty(e->promised) && through &&
           set_empty(set_minus(e->granted, e->computed));
}

/* C2: nothing on a vote enters weights: chunks, whether complete, and a hint to compare. */
static void vote(elastic_t *e)
{
    e->voted = true;
    e->said_complete = e->role == ELASTIC_LISTENER && !e->wants_leave && elastic_complete(e);
    elastic_set_t chunks = elastic_chunks_here(e);
    if (PLANTED(e, ADDUP) && e->role == ELASTIC_FULL) chunks = e->computed;
    if (e->index == LEADER) {
        e->votes |= 1ull << LEADER;
        if (e->said_complete) e->complete |= 1ull << LEADER;
        e->hints[LEADER] = e->hint;
        e->here[LEADER] = chunks;
        e->paces[LEADER] = e->pace;
        e->knows[LEADER] = e->known[0].hash;
        return;
    }
    elastic_message_t *out = elastic_draft(e, ELASTIC_VOTE);
    out->complete = e->said_complete;
    out->chunks = chunks;
    out->hint = e->hint;
    out->pace = e->pace;
    out->known = e->known[0].hash;
    elastic_send(e, LEADER);
    if (PLANTED(e, EARLYAPPLY)) elastic_commit_step(e);
}

inspan_status_t elastic_on_vote(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    if (e->index != LEADER || e->phase != ELASTIC_RUN || m->step != e->step || in(e->votes, from)) {
        bool late =
            PLANTED_ANY(e, PLANTED_NOLASTVOTE | PLANTED_LISTENNOVOTE | PLANTED_NOTALL | PLANTED_OLDMSG);
        if (late && e->index == LEADER) return INSPAN_OK;
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent VOTE for step %" PRIu64 " to rank %u, which works on step %" PRIu64
                            " of view %" PRIu64 " (%s): a vote goes once to the leader, for its step",
                            e->numbers[from], m->step, e->config.number, e->step, e->view,
                            e->index != LEADER   ? "not the leader"
                            : in(e->votes, from) ? "it voted already"
                                                 : elastic_phase_name(e->phase));
    }
    uint32_t chunks = PLANTED(e, ADDUP) ? ELASTIC_LEASES_MAX : e->config.chunks;
    if (!set_empty(set_minus(m->chunks, set_first(chunks))) || (m->complete && in(e->full, from)))
        return elastic_fail(e, INSPAN_CORRUPT,
                            "rank %u voted with a chunk that is none of %u, or complete while it is full",
                            e->numbers[from], e->config.chunks);
    e->votes |= 1ull << from;
    if (m->complete) e->complete |= 1ull << from;
    e->hints[from] = m->hint;
    e->here[from] = m->chunks;
    e->paces[from] = m->pace;
    e->knows[from] = m->known;
    return elastic_progress(e);
}

/* ---- the leader ---- */

/* The hint most members have, the leader's where equal; 0: nobody gave one. */
static uint64_t common_hint(const elastic_t *e)
{
    uint64_t best = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < e->n; k++) same += e->hints[k] == e->hints[i];
        if (e->hints[i] == 0 || same <= most) continue;
        best = e->hints[i];
        most = same;
    }
    return best;
}

static inspan_status_t check_hints(elastic_t *e, uint64_t common)
{
    char odd[INSPAN_ERROR_TEXT / 2] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < e->n && used + 48 < sizeof odd; i++)
        if (e->hints[i] != 0 && e->hints[i] != common)
            used += (size_t)snprintf(odd + used, sizeof odd - used, "%srank %u has %016" PRIx64,
                                     used ? ", " : "", e->numbers[i], e->hints[i]);
    if (used == 0) return INSPAN_OK;
    return elastic_fail(e, INSPAN_MISMATCH,
                        "weights before step %" PRIu64 " differ (view %" PRIu64
                        "): %s, the others %016" PRIx64,
                        e->step, e->view, odd, common);
}

static bool all_voted(const elastic_t *e)
{
    uint64_t needed = all_members(e->n);
    if (PLANTED(e, NOLASTVOTE) && e->n > 1) needed &= ~(1ull << (e->n - 1));
    if (PLANTED(e, LISTENNOVOTE)) needed &= e->full | 1ull << LEADER;
    if (PLANTED(e, ADDUP)) {
        elastic_set_t sum = e->computed;
        for (uint32_t i = 1; i < e->n; i++)
            if (in(e->full & e->votes, i)) sum = set_or(sum, e->here[i]);
        if (!set_equal(sum, elastic_expected(e))) return false;
    }
    return e->voted && (e->votes & needed) == needed;
}

/* N2: whoever voted complete becomes full. G1: who wants to leave does not stay full. G2: but the last one
 * does. */
static uint64_t next_full(const elastic_t *e)
{
    uint64_t full = e->full | e->complete;
    uint64_t staying = full & ~e->wish;
    return staying ? staying : full & (~full + 1);
}

/* Y2: only a COMMIT changes the layout, to one that every member can take up. */
static elastic_layout_t opened_layout(const elastic_t *e)
{
    for (uint32_t i = 0; i < e->n && !PLANTED(e, BLINDLAYOUT); i++)
        if (e->knows[i] != e->next_layout.hash) return e->layout;
    return e->next_layout;
}

/* C1: with the vote of every member the leader tells all and commits. */
static inspan_status_t commit_if_all_voted(elastic_t *e)
{
    if (e->index != LEADER || e->phase != ELASTIC_RUN || !all_voted(e)) return INSPAN_OK;
    uint64_t hint = common_hint(e);
    inspan_status_t status = check_hints(e, hint);
    if (status != INSPAN_OK) return status;
    uint64_t opened = e->step + 1, full = next_full(e);
    elastic_message_t *out = elastic_draft(e, ELASTIC_COMMIT);
    out->hint = hint;
    out->full = full;
    memcpy(out->shares, e->next_shares, e->n);
    out->wire = e->wire = e->next_wire;
    const elastic_layout_t layout = opened_layout(e);
    out->layout = layout.hash;
    out->buckets = layout.buckets;
    elastic_set_t leases = opened == elastic_end(e) ? EMPTY_SET : set_first(e->config.leases);
    elastic_share_out(e, full, leases, opened, e->share, out->owner);
    uint32_t chunks = elastic_light_step(e, opened) ? 0 : e->config.chunks; /* too late to be of use */
    for (uint32_t i = 1; i < e->n; i++) {
        elastic_plan(full, e->n, e->here, chunks, i, out->plan);
        elastic_send(e, i);
    }
    uint8_t plan[ELASTIC_MEMBERS_MAX], owner[ELASTIC_LEASES_MAX];
    elastic_plan(full, e->n, e->here, chunks, LEADER, plan);
    memcpy(owner, out->owner, sizeof owner);
    for (uint32_t lease = e->config.leases; lease-- > 0 && PLANTED(e, STEALBUG);) /* its last one as well */
        if (owner[lease] != LEADER && owner[lease] < RESERVED) {
            owner[lease] = LEADER;
            break;
        }
    e->wish &= full;
    take_commit(e, full, layout, owner, plan, e->next_shares);
    return elastic_progress(e);
}

inspan_status_t elastic_progress(elastic_t *e)
{
    if (e->phase != ELASTIC_RUN) return INSPAN_OK;
    if (may_vote(e)) vote(e);
    return commit_if_all_voted(e);
}
