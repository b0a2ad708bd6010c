/* Messages of the elastic step to bytes and back; their layouts are in elastic.h. Everything read is checked
 * here for range by the counts that the message itself names; that these are the receiver's is checked by the
 * rules. */
#include <assert.h>

#include "core/step/elastic_internal.h"

#define SET_BYTES     32u
#define SALVAGE_BYTES 13u
#define PACE_BYTES    32u
#define REPORT_BYTES  232u
#define DECIDE_BYTES  112u
#define VOTE_BYTES    112u
#define COMMIT_BYTES  56u
#define CLAIM_BYTES   40u
#define GRANT_BYTES   64u
#define FLAG_COMPLETE 1u
#define FLAG_LEAVE    2u
#define FLAG_LAST     4u
#define AT(offset)    (bytes + (offset))

static_assert(REPORT_BYTES + 4 * ELASTIC_BUCKETS_MAX <= ELASTIC_MESSAGE_MAX, "a REPORT fits");
static_assert(DECIDE_BYTES + ELASTIC_MEMBERS_MAX + ELASTIC_LEASES_MAX + SALVAGE_BYTES * ELASTIC_BUCKETS_MAX <=
                  ELASTIC_MESSAGE_MAX,
              "a DECIDE fits");
static_assert(COMMIT_BYTES + 2 * ELASTIC_MEMBERS_MAX + ELASTIC_LEASES_MAX <= ELASTIC_MESSAGE_MAX,
              "a COMMIT fits");
static_assert(ELASTIC_LEASES_MAX <= 8 * SET_BYTES && ELASTIC_BUCKETS_MAX <= 8 * SET_BYTES, "sets fit");
static_assert(ELASTIC_MEMBERS_MAX <= RESERVED && ((ELASTIC_MEMBERS_MAX - 1) | RESERVED) < NOBODY,
              "owners are a byte");
static_assert(ELASTIC_MEMBERS_MAX < NOBODY && ELASTIC_BUCKETS_MAX - 2 < NOBODY, "an index is never NOBODY");

/* ---- numbers and sets ---- */

static void put(uint8_t *to, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *from, int n)
{
    uint64_t value = 0;
    while (n-- > 0) value = value << 8 | from[n];
    return value;
}

static void put_set(uint8_t *to, elastic_set_t set)
{
    for (int w = 0; w < 4; w++) put(to + 8 * w, set.words[w], 8);
}

static elastic_set_t get_set(const uint8_t *from)
{
    elastic_set_t set;
    for (int w = 0; w < 4; w++) set.words[w] = get(from + 8 * w, 8);
    return set;
}

static bool within(elastic_set_t set, uint32_t n)
{
    return set_empty(set_minus(set, set_first(n)));
}

static void put_pace(uint8_t *to, const elastic_pace_t *pace)
{
    put(to, pace->lease_ns, 8);
    put(to + 8, pace->step_ns, 8);
    put(to + 16, pace->run, 4);
    put(to + 20, pace->last, 4);
    put(to + 24, pace->most, 8);
}

/* false: beyond its limits. */
static bool get_pace(const uint8_t *from, elastic_pace_t *pace)
{
    pace->lease_ns = get(from, 8);
    pace->step_ns = get(from + 8, 8);
    pace->run = (uint32_t)get(from + 16, 4);
    pace->last = (uint32_t)get(from + 20, 4);
    pace->most = (uint32_t)get(from + 24, 4);
    elastic_pace_t sound = elastic_sound_pace(pace);
    return sound.lease_ns == pace->lease_ns && sound.step_ns == pace->step_ns && sound.run == pace->run &&
           sound.last == pace->last && sound.most == pace->most && get(from + 28, 4) == 0;
}

/* ---- encode ---- */

static size_t put_report(const elastic_message_t *m, uint8_t *bytes)
{
    put(AT(32), m->leases, 2);
    put(AT(34), m->buckets, 2);
    put(AT(36), m->role, 4);
    put_set(AT(40), m->computed);
    put_set(AT(72), m->given_up);
    put_set(AT(104), m->dropped);
    put_set(AT(136), m->held);
    put_set(AT(168), m->chunks);
    put_pace(AT(200), &m->pace);
    size_t at = REPORT_BYTES;
    for (uint32_t b = 0; b < m->buckets; b++) {
        if (!elastic_has(&m->held, b)) continue;
        put(AT(at), m->tag[b], 4);
        at += 4;
    }
    return at;
}

static size_t put_plan_and_owners(const elastic_message_t *m, uint8_t *bytes, size_t at)
{
    memcpy(AT(at), m->plan, m->members);
    memcpy(AT(at + m->members), m->owner, m->leases);
    return at + m->members + m->leases;
}

/* And how gradients go. */
static void put_members(const elastic_message_t *m, uint8_t *to)
{
    put(to, m->members, 1);
    put(to + 1, m->wire, 1);
    put(to + 2, 0, 2);
}

static size_t put_decide(const elastic_message_t *m, uint8_t *bytes)
{
    put(AT(32), m->full, 8);
    put(AT(40), m->leases, 2);
    put(AT(42), m->buckets, 2);
    put_members(m, AT(44));
    put_set(AT(48), m->dropped);
    put_set(AT(80), m->held);
    size_t at = put_plan_and_owners(m, bytes, DECIDE_BYTES);
    for (uint32_t b = 0; b < m->buckets; b++) {
        if (!elastic_has(&m->held, b)) continue;
        put(AT(at), m->tag[b], 4);
        put(AT(at + 4), m->source[b], 1);
        put(AT(at + 5), m->need[b], 8);
        at += SALVAGE_BYTES;
    }
    return at;
}

static size_t put_commit(const elastic_message_t *m, uint8_t *bytes)
{
    put(AT(32), m->hint, 8);
    put(AT(40), m->full, 8);
    put(AT(48), m->leases, 2);
    put(AT(50), m->buckets, 2);
    put_members(m, AT(52));
    const size_t at = put_plan_and_owners(m, bytes, COMMIT_BYTES);
    memcpy(AT(at), m->shares, m->members);
    return at + m->members;
}

size_t elastic_message_encode(const elastic_message_t *m, uint8_t bytes[ELASTIC_MESSAGE_MAX])
{
    put(bytes, m->type, 4);
    put(AT(4), (m->complete ? FLAG_COMPLETE : 0) | (m->leave ? FLAG_LEAVE : 0) | (m->last ? FLAG_LAST : 0),
        4);
    put(AT(8), m->view, 8);
    put(AT(16), m->step, 8);
    put(AT(24), m->layout, 8);
    switch (m->type) {
    case ELASTIC_REPORT: return put_report(m, bytes);
    case ELASTIC_DECIDE: return put_decide(m, bytes);
    case ELASTIC_COMMIT: return put_commit(m, bytes);
    case ELASTIC_VOTE:
        put(AT(32), m->hint, 8);
        put_set(AT(40), m->chunks);
        put_pace(AT(72), &m->pace);
        put(AT(104), m->known, 8);
        return VOTE_BYTES;
    case ELASTIC_CLAIM: put(AT(32), m->done, 8); return CLAIM_BYTES;
    case ELASTIC_GRANT: put_set(AT(32), m->granted); return GRANT_BYTES;
    case ELASTIC_LEAVE: break;
    }
    return ELASTIC_HEADER_BYTES;
}

/* ---- decode: each returns NULL or what is wrong ---- */

static const char *get_counts(const uint8_t *bytes, size_t at, elastic_message_t *m)
{
    m->leases = (uint32_t)get(AT(at), 2);
    m->buckets = (uint32_t)get(AT(at + 2), 2);
    if (m->leases == 0 || m->leases > ELASTIC_LEASES_MAX) return "its number of leases";
    if (m->buckets == 0 || m->buckets > ELASTIC_BUCKETS_MAX) return "its number of buckets";
    return NULL;
}

static const char *get_report(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n < REPORT_BYTES) return "its length";
    const char *why = get_counts(bytes, 32, m);
    if (why) return why;
    uint64_t role = get(AT(36), 4);
    if (role > ELASTIC_LEAVING) return "its role";
    m->role = (elastic_role_t)role;
    m->computed = get_set(AT(40));
    m->given_up = get_set(AT(72));
    m->dropped = get_set(AT(104));
    m->held = get_set(AT(136));
    m->chunks = get_set(AT(168));
    if (!get_pace(AT(200), &m->pace)) return "its pace";
    if (!within(set_or(m->computed, set_or(m->given_up, m->dropped)), m->leases)) return "a lease";
    if (!within(m->held, m->buckets)) return "a bucket";
    if (n != REPORT_BYTES + 4u * set_count(m->held)) return "its length";
    size_t at = REPORT_BYTES;
    for (uint32_t b = 0; b < m->buckets; b++) {
        if (!elastic_has(&m->held, b)) continue;
        m->tag[b] = (uint32_t)get(AT(at), 4);
        if (m->tag[b] == 0 || m->tag[b] >= m->view) return "a tag"; /* reduced in a view before this one */
        at += 4;
    }
    return NULL;
}

static const char *get_plan_and_owners(const uint8_t *bytes, size_t at, elastic_message_t *m)
{
    memcpy(m->plan, AT(at), m->members);
    memcpy(m->owner, AT(at + m->members), m->leases);
    if (m->full & ~all_members(m->members)) return "its full set";
    for (uint32_t l = 0; l < m->leases; l++)
        if (m->owner[l] != NOBODY && (m->owner[l] & ~RESERVED) >= m->members) return "the owner of a lease";
    return NULL;
}

static const char *get_members(const uint8_t *bytes, size_t at, elastic_message_t *m)
{
    uint64_t members = get(AT(at), 1);
    if (members == 0 || members > ELASTIC_MEMBERS_MAX || get(AT(at + 2), 2) != 0)
        return "its number of members";
    m->members = (uint32_t)members;
    m->wire = AT(at)[1];
    return NULL;
}

static const char *get_decide(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n < DECIDE_BYTES) return "its length";
    const char *why = get_counts(bytes, 40, m);
    if (!why) why = get_members(bytes, 44, m);
    if (why) return why;
    m->full = get(AT(32), 8);
    m->dropped = get_set(AT(48));
    m->held = get_set(AT(80));
    if (!within(m->dropped, m->leases)) return "a lease";
    if (!within(m->held, m->buckets)) return "a bucket";
    size_t at = DECIDE_BYTES + m->members + m->leases;
    if (n != at + SALVAGE_BYTES * set_count(m->held)) return "its length";
    why = get_plan_and_owners(bytes, DECIDE_BYTES, m);
    for (uint32_t b = 0; b < m->buckets && !why; b++) {
        if (!elastic_has(&m->held, b)) continue;
        m->tag[b] = (uint32_t)get(AT(at), 4);
        m->source[b] = AT(at)[4];
        m->need[b] = get(AT(at + 5), 8);
        at += SALVAGE_BYTES;
        if (m->tag[b] == 0 || m->tag[b] >= m->view) why = "a tag";
        if (m->source[b] >= m->members) why = "the source of a bucket";
        if (m->need[b] & ~all_members(m->members)) why = "who needs a bucket";
        if (!why && in(m->need[b], m->source[b])) why = "a bucket whose source needs it";
    }
    return why;
}

static const char *get_commit(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n < COMMIT_BYTES) return "its length";
    const char *why = get_counts(bytes, 48, m);
    if (!why) why = get_members(bytes, 52, m);
    if (why) return why;
    if (n != COMMIT_BYTES + 2 * m->members + m->leases) return "its length";
    m->hint = get(AT(32), 8);
    m->full = get(AT(40), 8);
    memcpy(m->shares, AT(n - m->members), m->members);
    return get_plan_and_owners(bytes, COMMIT_BYTES, m);
}

inspan_status_t elastic_message_peek(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n < ELASTIC_HEADER_BYTES || n > ELASTIC_MESSAGE_MAX) return INSPAN_CORRUPT;
    uint64_t type = get(bytes, 4);
    m->view = get(AT(8), 8);
    m->step = get(AT(16), 8);
    m->layout = get(AT(24), 8);
    if (type < ELASTIC_REPORT || type > ELASTIC_GRANT || m->view == 0 || m->view > VIEW_LIMIT)
        return INSPAN_CORRUPT;
    m->type = (elastic_message_type_t)type;
    return INSPAN_OK;
}

static const char *get_vote(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n != VOTE_BYTES) return "its length";
    m->hint = get(AT(32), 8);
    m->chunks = get_set(AT(40)); /* it names no number of chunks: the receiver compares with its own */
    m->known = get(AT(104), 8);
    return get_pace(AT(72), &m->pace) ? NULL : "its pace";
}

static const char *get_claim(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n != CLAIM_BYTES) return "its length";
    uint64_t done = get(AT(32), 8);
    m->done = (uint32_t)done;
    return done <= ELASTIC_LEASES_MAX ? NULL : "its number of leases";
}

static const char *get_grant(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    if (n != GRANT_BYTES) return "its length";
    m->granted = get_set(AT(32));
    return NULL; /* it names no number of leases: the receiver compares with its own */
}

static const char *get_body(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    switch (m->type) {
    case ELASTIC_REPORT: return get_report(bytes, n, m);
    case ELASTIC_DECIDE: return get_decide(bytes, n, m);
    case ELASTIC_COMMIT: return get_commit(bytes, n, m);
    case ELASTIC_VOTE: return get_vote(bytes, n, m);
    case ELASTIC_CLAIM: return get_claim(bytes, n, m);
    case ELASTIC_GRANT: return get_grant(bytes, n, m);
    case ELASTIC_LEAVE: break;
    }
    return n == ELASTIC_HEADER_BYTES ? NULL : "its length";
}

static uint64_t flags_of(elastic_message_type_t type)
{
    switch (type) {
    case ELASTIC_VOTE: return FLAG_COMPLETE;
    case ELASTIC_REPORT: return FLAG_LEAVE;
    case ELASTIC_GRANT: return FLAG_LAST;
    default: return 0;
    }
}

inspan_status_t elastic_message_decode(const uint8_t *bytes, size_t n, elastic_message_t *m, const char **why)
{
    *why = "its header";
    if (elastic_message_peek(bytes, n, m) != INSPAN_OK) return INSPAN_CORRUPT;
    uint64_t flags = get(AT(4), 4);
    *why = "its flags";
    if (flags & ~flags_of(m->type)) return INSPAN_CORRUPT;
    m->complete = (flags & FLAG_COMPLETE) != 0;
    m->leave = (flags & FLAG_LEAVE) != 0;
    m->last = (flags & FLAG_LAST) != 0;
    *why = get_body(bytes, n, m);
    return *why ? INSPAN_CORRUPT : INSPAN_OK;
}

const char *elastic_message_name(const uint8_t *bytes, size_t n, uint64_t *view, uint64_t *step)
{
    static const char *const names[] = {"", "REPORT", "DECIDE", "VOTE", "COMMIT", "LEAVE", "CLAIM", "GRANT"};
    *view = *step = 0;
    if (n < ELASTIC_HEADER_BYTES) return "damaged";
    uint64_t type = get(bytes, 4);
    *view = get(AT(8), 8);
    *step = get(AT(16), 8);
    return type >= ELASTIC_REPORT && type <= ELASTIC_GRANT ? names[type] : "damaged";
}
