#include "core/step/elastic.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "core/step/elastic_internal.h"

inspan_status_t elastic_open(const elastic_config_t *config, elastic_do_fn perform, void *context,
                             elastic_t **e)
{
    *e = NULL;
    if (config->leases == 0 || config->leases > ELASTIC_LEASES_MAX || config->buckets == 0 ||
        config->buckets > ELASTIC_BUCKETS_MAX || config->steps > UINT64_MAX - 4 ||
        config->first_step > config->steps || config->wires > UINT8_MAX + 1 ||
        (config->wire > 0 && config->wire >= config->wires) || config->chunks >= ELASTIC_BUCKETS_MAX)
        return INSPAN_INVALID;
    elastic_t *made = calloc(1, sizeof *made);
    if (!made) return INSPAN_NO_MEMORY;
    made->config = *config;
    if (made->config.wires == 0) made->config.wires = 1;
    made->perform = perform;
    made->context = context;
    made->step = config->newcomer ? 0 : config->first_step;
    made->role = config->newcomer ? ELASTIC_FRESH : ELASTIC_FULL;
    made->pace = ELASTIC_PACE_UNKNOWN;
    made->wire = made->next_wire = config->wire;
    if (config->chunks == 0) made->config.chunks = config->buckets - 1;
    made->layout = made->next_layout = (elastic_layout_t){config->layout, config->buckets};
    memset(made->owner, NOBODY, sizeof made->owner);
    *e = made;
    return INSPAN_OK;
}

void elastic_close(elastic_t *e)
{
    free(e);
}

/* ---- actions and errors ---- */

void elastic_do(elastic_t *e, elastic_action_type_t type, uint32_t bucket, uint32_t peer)
{
    elastic_action_t action = {
        .type = type, .view = e->view, .step = e->step, .bucket = bucket, .peer = peer};
    e->perform(e->context, &action);
}

elastic_message_t *elastic_draft(elastic_t *e, elastic_message_type_t type)
{
    elastic_message_t *out = &e->out;
    out->type = type;
    out->complete = out->leave = out->last = false;
    out->view = e->view;
    out->step = e->step;
    out->layout = e->layout.hash; /* Y1: the layout of the step that it opens or is about */
    out->leases = e->config.leases;
    out->buckets = e->layout.buckets;
    out->members = e->n;
    return out;
}

void elastic_send(elastic_t *e, uint32_t to)
{
    elastic_action_t send = {
        .type = ELASTIC_DO_SEND, .view = e->view, .step = e->step, .peer = to, .data = e->bytes};
    send.bytes = elastic_message_encode(&e->out, e->bytes);
    e->perform(e->context, &send);
}

inspan_status_t elastic_fail(elastic_t *e, inspan_status_t status, const char *format, ...)
{
    char text[INSPAN_ERROR_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    e->phase = ELASTIC_FAILED;
    e->live = false;
    return error_set(&e->error, status, "%s", text);
}

inspan_status_t elastic_misuse(elastic_t *e, const char *format, ...)
{
    char text[INSPAN_ERROR_TEXT / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(&e->error, INSPAN_INVALID, "%s in phase %s, view %" PRIu64 ", step %" PRIu64, text,
                     elastic_phase_name(e->phase), e->view, e->step);
}

/* ---- views ---- */

static bool view_is_sound(const elastic_t *e, const elastic_event_t *event)
{
    if (event->view > VIEW_LIMIT || event->n == 0 || event->n > ELASTIC_MEMBERS_MAX ||
        event->index >= event->n || event->numbers[event->index] != e->config.number)
        return false;
    for (uint32_t i = 1; i < event->n; i++)
        if (event->numbers[i] <= event->numbers[i - 1]) return false;
    return true;
}

/* What the ended view had granted or reserved, by number: under drop, survivors' leases are not dropped with
 * those of the lost. */
static void remember_grants(elastic_t *e)
{
    if (!e->live) return;
    for (uint32_t lease = 0; lease < e->config.leases; lease++)
        e->grantee[lease] = e->owner[lease] == NOBODY ? 0 : e->numbers[e->owner[lease] & ~RESERVED] + 1ull;
}

static void enter_view(elastic_t *e, const elastic_event_t *event)
{
    remember_grants(e);
    e->view = event->view;
    e->n = event->n;
    e->index = event->index;
    memcpy(e->numbers, event->numbers, event->n * sizeof e->numbers[0]);
    /* V2: what the old view granted and voted is void, and so are its promises of chunks (N1); D, local sums
     * and held buckets stay as they are until DECIDE. */
    e->live = e->voted = e->stuck = e->told_leave = e->left = false;
    e->full = e->reported = e->votes = e->complete = e->wish = 0;
    e->salvaged = e->ready = e->promised = EMPTY_SET;
    memset(e->share, 0, sizeof e->share);
    if (!PLANTED(e, OLDSHARES)) memset(e->shares, 0, sizeof e->shares); /* by then they differed: equal */
    memset(e->next_shares, 0, sizeof e->next_shares);
    e->next_wire = e->wire;
    e->next_layout = e->layout;
    for (uint32_t i = 0; i < e->n; i++)
        e->paces[i] = event->paces != NULL ? elastic_sound_pace(&event->paces[i]) : ELASTIC_PACE_UNKNOWN;
    if (PLANTED(e, DROPHELD)) e->held = EMPTY_SET;
}

static inspan_status_t on_view(elastic_t *e, const elastic_event_t *event)
{
    if (event->view < e->view) return INSPAN_OK;
    if (event->view == e->view) { /* I3 */
        if (e->view == 0) return elastic_misuse(e, "a view without a number");
        if (event->n != e->n || memcmp(event->numbers, e->numbers, e->n * sizeof e->numbers[0]) != 0)
            return elastic_fail(e, INSPAN_MISMATCH, "view %" PRIu64 " was announced with two memberships",
                                e->view);
        return INSPAN_OK;
    }
    if (!view_is_sound(e, event)) return elastic_misuse(e, "view %" PRIu64 " is malformed", event->view);
    if (event->first_view && (e->view != 0 || e->role != ELASTIC_FULL))
        return elastic_misuse(e, "first view %" PRIu64 " for a member that is not new and full", event->view);
    enter_view(e, event);
    if (!event->first_view) {
        e->phase = ELASTIC_RECONCILE;
        elastic_reconcile(e);
        return elastic_decide_if_all_reported(e);
    }
    /* Everyone derives the same table from the same view: the grants of this view (L1). */
    e->full = all_members(e->n);
    elastic_share_out(e, e->full, set_first(e->config.leases), e->step, e->share, e->owner);
    e->dropped = EMPTY_SET;
    elastic_open_step(e, NULL);
    return elastic_progress(e);
}

static inspan_status_t on_broken(elastic_t *e, const elastic_event_t *event)
{
    if (event->view < e->view) return INSPAN_OK;
    if (event->view > e->view) return elastic_misuse(e, "view %" PRIu64 " broke, not entered", event->view);
    if (e->phase != ELASTIC_DONE) e->phase = ELASTIC_BROKEN;
    return INSPAN_OK;
}

/* ---- computing and reducing ---- */

/* L1: a lease counts only by a grant of this view. */
static inspan_status_t check_run(elastic_t *e, const elastic_event_t *event)
{
    bool late = PLANTED(e, LATEDONE);
    if (!e->live && !late) return elastic_misuse(e, "leases computed without a grant of this view");
    if (event->n == 0 || event->lease >= e->config.leases || event->n > e->config.leases - event->lease)
        return elastic_misuse(e, "computed leases out of range");
    for (uint32_t lease = event->lease; lease < event->lease + event->n; lease++)
        if ((!elastic_has(&e->granted, lease) || elastic_has(&e->computed, lease)) && !late)
            return elastic_misuse(e, "lease %u computed twice or not granted", lease);
    return INSPAN_OK;
}

static inspan_status_t on_begin(elastic_t *e, const elastic_event_t *event)
{
    inspan_status_t status = check_run(e, event);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < event->n; i++) set_add(&e->begun, event->lease + i);
    elastic_claim_if_due(e);
    return INSPAN_OK;
}

/* L2, that it is in the local sums of all buckets, is the shell's. */
static inspan_status_t on_computed(elastic_t *e, const elastic_event_t *event)
{
    inspan_status_t status = check_run(e, event);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < event->n; i++) set_add(&e->computed, event->lease + i);
    elastic_claim_if_due(e);
    return elastic_progress(e);
}

/* One run may be under way: its backward pass is what makes buckets ready. */
static bool sealed(const elastic_t *e)
{
    elastic_set_t left = set_minus(e->granted, e->computed);
    uint32_t first, n;
    bool last;
    elastic_grant(e, ELASTIC_LEASES_MAX, &first, &n, &last);
    return last && n == set_count(left);
}

/* L3: every member contributes to each bucket that is not salvaged, with zeros where it has no lease; in one
 * order. */
static void start_reductions(elastic_t *e)
{
    elastic_set_t needed = set_minus(elastic_buckets_of(e, e->step, e->layout.buckets), e->salvaged);
    for (; e->next_reduce < e->layout.buckets; e->next_reduce++) {
        if (!elastic_has(&needed, e->next_reduce)) continue;
        if (!elastic_has(&e->ready, e->next_reduce)) break;
        if (PLANTED(e, NOEMPTY) && set_empty(elastic_contribution(e)) && e->role == ELASTIC_FULL) continue;
        elastic_do(e, ELASTIC_DO_REDUCE, e->next_reduce, 0);
    }
}

static inspan_status_t on_ready(elastic_t *e, const elastic_event_t *event)
{
    if (event->view < e->view || e->phase == ELASTIC_BROKEN) return INSPAN_OK;
    elastic_set_t buckets = elastic_buckets_of(e, e->step, e->layout.buckets);
    if (event->view != e->view || e->phase != ELASTIC_RUN || !elastic_has(&buckets, event->bucket))
        return elastic_misuse(e, "bucket %u ready", event->bucket);
    bool salvaged = elastic_has(&e->salvaged, event->bucket);
    if (!salvaged && elastic_has(&e->ready, event->bucket))
        return elastic_misuse(e, "bucket %u ready twice", event->bucket);
    if (!salvaged && !sealed(e))
        return elastic_misuse(e, "bucket %u ready before the last leases", event->bucket);
    set_add(&e->ready, event->bucket);
    start_reductions(e);
    return elastic_progress(e);
}

static inspan_status_t on_reduced(elastic_t *e, const elastic_event_t *event)
{
    bool old = event->view < e->view;
    if (old && PLANTED(e, OLDMSG) && e->phase == ELASTIC_RUN && !elastic_has(&e->held, event->bucket)) {
        set_add(&e->held, event->bucket);
        e->tag[event->bucket] = (uint32_t)event->view;
        return elastic_progress(e);
    }
    if (old || e->phase == ELASTIC_BROKEN) return INSPAN_OK; /* V1 */
    uint32_t bucket = event->bucket;
    bool taken = elastic_has(&e->salvaged, bucket);
    bool started = !taken && elastic_has(&e->ready, bucket) && bucket < e->next_reduce;
    if (PLANTED(e, OLDMSG) && elastic_has(&e->held, bucket)) return INSPAN_OK;
    if (event->view != e->view || e->phase != ELASTIC_RUN || !(taken || started) ||
        elastic_has(&e->held, bucket))
        return elastic_misuse(e, "bucket %u reduced twice or never asked for", bucket);
    set_add(&e->held, bucket);
    if (!taken) e->tag[bucket] = (uint32_t)e->view; /* a salvaged one keeps its old tag (R2) */
    return elastic_progress(e);
}

/* N1: stored only at the version that this member works on, and by a promise of this view. */
static inspan_status_t on_chunk(elastic_t *e, const elastic_event_t *event)
{
    bool newcomer = e->role == ELASTIC_FRESH || e->role == ELASTIC_LISTENER;
    if (event->view < e->view && newcomer && event->bucket < e->config.chunks) {
        if (PLANTED(e, LATECHUNK)) e->chunk[event->bucket] = e->step + 1;
        if (PLANTED(e, BLINDCHUNK)) e->chunk[event->bucket] = event->step + 1;
    }
    if (event->view < e->view || e->phase == ELASTIC_BROKEN) return INSPAN_OK;
    if (event->view != e->view || e->phase != ELASTIC_RUN || !elastic_has(&e->promised, event->bucket) ||
        event->step != e->step)
        return elastic_misuse(e, "chunk %u of step %" PRIu64 " that was not promised", event->bucket,
                              event->step);
    elastic_set_t one = EMPTY_SET;
    set_add(&one, event->bucket);
    e->promised = set_minus(e->promised, one);
    e->chunk[event->bucket] = e->step + 1;
    return elastic_progress(e);
}

static inspan_status_t on_leave(elastic_t *e)
{
    if (e->wants_leave) return INSPAN_OK;
    e->wants_leave = true;
    if (e->phase == ELASTIC_IDLE) elastic_left_if_free(e);
    if (e->phase == ELASTIC_RUN) elastic_tell_leave(e);
    return INSPAN_OK;
}

/* ---- messages ---- */

static inspan_status_t differs(elastic_t *e, uint32_t from, const char *what, uint64_t theirs, uint64_t ours)
{
    return elastic_fail(e, INSPAN_MISMATCH,
                        "rank %u has %s %" PRIu64 ", rank %u has %" PRIu64 " (view %" PRIu64
                        "): all ranks of a job need the same job file and data",
                        e->numbers[from], what, theirs, e->config.number, ours, e->view);
}

/* Y1: of one step all have one layout; one that a step is opened with must be known here. A report is of the
 * step that its sender works on: the leader decides. */
static inspan_status_t check_layout(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    const bool opens = m->type == ELASTIC_DECIDE || m->type == ELASTIC_COMMIT;
    const bool same = m->layout == e->layout.hash;
    if (m->type == ELASTIC_REPORT || (!opens && m->step != e->step)) return INSPAN_OK;
    if (opens ? elastic_knows(e, (elastic_layout_t){m->layout, m->buckets}) : same) return INSPAN_OK;
    if (opens && same) return differs(e, from, "buckets", m->buckets, e->layout.buckets);
    return elastic_fail(e, INSPAN_MISMATCH,
                        "rank %u has the bucket layout %016" PRIx64 ", rank %u has %016" PRIx64
                        " (view %" PRIu64 ", step %" PRIu64 "): do the models differ?",
                        e->numbers[from], m->layout, e->config.number, e->layout.hash, e->view, m->step);
}

static inspan_status_t check_chunks(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    bool in_range = true;
    if (m->type == ELASTIC_REPORT)
        in_range = set_empty(set_minus(m->chunks, set_first(e->config.chunks)));
    else
        for (uint32_t i = 0; i < e->n; i++) in_range &= m->plan[i] == NOBODY || m->plan[i] < e->config.chunks;
    if (in_range) return INSPAN_OK;
    return elastic_fail(e, INSPAN_CORRUPT,
                        "rank %u names a chunk of weights that is none of %u (view %" PRIu64 ")",
                        e->numbers[from], e->config.chunks, e->view);
}

/* The settings that a message names must be this member's own. */
static inspan_status_t check_settings(elastic_t *e, uint32_t from)
{
    const elastic_message_t *m = &e->message;
    inspan_status_t status = check_layout(e, from);
    bool counts = m->type == ELASTIC_REPORT || m->type == ELASTIC_DECIDE || m->type == ELASTIC_COMMIT;
    if (status != INSPAN_OK || !counts) return status;
    if (m->leases != e->config.leases)
        return differs(e, from, "leases in a step", m->leases, e->config.leases);
    if (m->type != ELASTIC_REPORT && m->members != e->n)
        return differs(e, from, "members in this view", m->members, e->n);
    return check_chunks(e, from);
}

static inspan_status_t on_wish(elastic_t *e, uint32_t from)
{
    if (e->index != LEADER)
        return elastic_fail(e, INSPAN_MISMATCH,
                            "rank %u sent LEAVE to rank %u, which does not lead view %" PRIu64,
                            e->numbers[from], e->config.number, e->view);
    e->wish |= 1ull << from;
    return INSPAN_OK;
}

static inspan_status_t take_message(elastic_t *e, uint32_t from)
{
    inspan_status_t status = check_settings(e, from);
    if (status != INSPAN_OK) return status;
    switch (e->message.type) {
    case ELASTIC_REPORT: return elastic_on_report(e, from);
    case ELASTIC_DECIDE: return elastic_on_decide(e, from);
    case ELASTIC_VOTE: return elastic_on_vote(e, from);
    case ELASTIC_COMMIT: return elastic_on_commit(e, from);
    case ELASTIC_CLAIM: return elastic_on_claim(e, from);
    case ELASTIC_GRANT: return elastic_on_grant(e, from);
    case ELASTIC_LEAVE: break;
    }
    return on_wish(e, from);
}

/* Planted: a vote or commit of an older view counts if its step fits. */
static bool old_counts(const elastic_t *e, const elastic_event_t *event, const elastic_message_t *m)
{
    if (!PLANTED(e, OLDMSG) || e->phase != ELASTIC_RUN || m->step != e->step) return false;
    if (event->from >= e->n || event->from == e->index) return false;
    return m->type == ELASTIC_VOTE && e->index == LEADER && !in(e->votes, event->from);
}

static inspan_status_t on_message(elastic_t *e, const elastic_event_t *event)
{
    elastic_message_t *m = &e->message;
    const char *why = "its header";
    bool known = event->from < e->n;
    if (elastic_message_peek(event->data, event->bytes, m) == INSPAN_OK) {
        if (m->view < e->view && !old_counts(e, event, m)) return INSPAN_OK; /* V1 */
        if (m->view > e->view) return INSPAN_PENDING;                        /* V1 */
        if (e->phase == ELASTIC_BROKEN) return INSPAN_OK;                    /* the view is over */
        if (!known || event->from == e->index)
            return elastic_misuse(e, "a message from member %u of %u", event->from, e->n);
        if (elastic_message_decode(event->data, event->bytes, m, &why) == INSPAN_OK)
            return take_message(e, event->from);
    }
    uint64_t view, step;
    const char *name = elastic_message_name(event->data, event->bytes, &view, &step);
    return elastic_fail(e, INSPAN_CORRUPT,
                        "rank %" PRId64 " sent a message that cannot be right: %s of %zu bytes, view %" PRIu64
                        ", step %" PRIu64 ", wrong: %s",
                        known ? (int64_t)e->numbers[event->from] : -1, name, event->bytes, view, step, why);
}

inspan_status_t elastic_handle(elastic_t *e, const elastic_event_t *event)
{
    if (e->phase == ELASTIC_FAILED) return e->error.status;
    if (event->now > e->now) e->now = event->now;
    switch (event->type) {
    case ELASTIC_EV_VIEW: return on_view(e, event);
    case ELASTIC_EV_BROKEN: return on_broken(e, event);
    case ELASTIC_EV_MESSAGE: return on_message(e, event);
    case ELASTIC_EV_BEGIN: return on_begin(e, event);
    case ELASTIC_EV_COMPUTED: return on_computed(e, event);
    case ELASTIC_EV_READY: return on_ready(e, event);
    case ELASTIC_EV_REDUCED: return on_reduced(e, event);
    case ELASTIC_EV_CHUNK: return on_chunk(e, event);
    case ELASTIC_EV_LEAVE: return on_leave(e);
    }
    return elastic_misuse(e, "an unknown event");
}
