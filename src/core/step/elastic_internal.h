/* Inside of the elastic step; see elastic.h. */
#ifndef STEP_ELASTIC_INTERNAL_H
#define STEP_ELASTIC_INTERNAL_H

#include <string.h>

#include "core/step/elastic.h"

/* A planted bug costs nothing in production: the condition is constant there. */
#ifdef INSPAN_PLANTED
#include "core/step/planted.h"
#define PLANTED(e, bug)      (((e)->config.planted & PLANTED_##bug) != 0)
#define PLANTED_ANY(e, bugs) (((e)->config.planted & (bugs)) != 0)
#else
#define PLANTED(e, bug)      ((void)(e), false)
#define PLANTED_ANY(e, bugs) ((void)(e), false)
#endif

#define LEADER     0u   /* the lowest rank of a view */
#define NOBODY     255u /* owner of a lease, chunk of a plan: none */
#define RESERVED   128u /* added to the owner of a lease: not granted yet */
#define EMPTY_SET  ((elastic_set_t){{0}})
#define VIEW_LIMIT UINT32_MAX /* view numbers: tags take 4 bytes on the wire */

/* ---- sets ---- */

static inline void set_add(elastic_set_t *set, uint32_t i)
{
    set->words[i / 64] |= 1ull << (i % 64);
}

static inline elastic_set_t set_first(uint32_t n) /* {0 .. n - 1} */
{
    elastic_set_t set = EMPTY_SET;
    for (uint32_t w = 0; w < 4 && n > 64 * w; w++)
        set.words[w] = n - 64 * w >= 64 ? UINT64_MAX : (1ull << (n - 64 * w)) - 1;
    return set;
}

static inline elastic_set_t set_or(elastic_set_t a, elastic_set_t b)
{
    for (int w = 0; w < 4; w++) a.words[w] |= b.words[w];
    return a;
}

static inline elastic_set_t set_and(elastic_set_t a, elastic_set_t b)
{
    for (int w = 0; w < 4; w++) a.words[w] &= b.words[w];
    return a;
}

static inline elastic_set_t set_minus(elastic_set_t a, elastic_set_t b)
{
    for (int w = 0; w < 4; w++) a.words[w] &= ~b.words[w];
    return a;
}

static inline bool set_empty(elastic_set_t a)
{
    return (a.words[0] | a.words[1] | a.words[2] | a.words[3]) == 0;
}

static inline bool set_equal(elastic_set_t a, elastic_set_t b)
{
    return memcmp(a.words, b.words, sizeof a.words) == 0;
}

static inline uint32_t set_count(elastic_set_t a)
{
    uint32_t n = 0;
    for (int w = 0; w < 4; w++) n += (uint32_t)__builtin_popcountll(a.words[w]);
    return n;
}

static inline uint32_t set_lowest(elastic_set_t a) /* of a set that is not empty */
{
    uint32_t w = 0;
    while (w < 3 && a.words[w] == 0) w++;
    return 64 * w + (uint32_t)__builtin_ctzll(a.words[w]);
}

/* Members of a view are one word. */
static inline bool in(uint64_t members, uint32_t i)
{
    return i < 64 && (members >> i & 1) != 0;
}

static inline uint64_t all_members(uint32_t n)
{
    return n >= 64 ? UINT64_MAX : (1ull << n) - 1;
}

/* ---- messages ---- */

typedef enum elastic_message_type {
    ELASTIC_REPORT = 1,
    ELASTIC_DECIDE,
    ELASTIC_VOTE,
    ELASTIC_COMMIT,
    ELASTIC_LEAVE,
    ELASTIC_CLAIM,
    ELASTIC_GRANT
} elastic_message_type_t;

/* A message as fields; each type uses its own (elastic.h has them by type). */
typedef struct elastic_message {
    elastic_message_type_t type;
    bool complete, leave, last;
    uint64_t view, step, layout, known;
    uint32_t leases, buckets, members;
    elastic_role_t role;
    elastic_set_t computed, given_up, dropped;
    elastic_set_t held; /* REPORT: held buckets; DECIDE: salvaged ones */
    elastic_set_t chunks;
    elastic_set_t granted; /* GRANT */
    uint32_t done;         /* CLAIM: computed of those granted in this step and view */
    elastic_pace_t pace;
    uint64_t hint;
    uint64_t full;
    uint8_t wire;
    uint8_t plan[ELASTIC_MEMBERS_MAX];
    uint8_t shares[ELASTIC_MEMBERS_MAX];
    uint8_t owner[ELASTIC_LEASES_MAX];
    uint32_t tag[ELASTIC_BUCKETS_MAX];   /* of held buckets */
    uint8_t source[ELASTIC_BUCKETS_MAX]; /* of salvaged buckets: who has it, who needs it */
    uint64_t need[ELASTIC_BUCKETS_MAX];
} elastic_message_t;

/* MISMATCH where it is none of config.wires. From COMMIT or DECIDE. */
inspan_status_t elastic_take_wire(elastic_t *e, const elastic_message_t *m);
/* Y1: from the step on that is open now. */
void elastic_take_layout(elastic_t *e, elastic_layout_t layout);

/* Returns the bytes written, at most ELASTIC_MESSAGE_MAX. */
size_t elastic_message_encode(const elastic_message_t *message, uint8_t bytes[ELASTIC_MESSAGE_MAX]);
/* Type, view and step alone, so that a view can be told before the rest is looked at. CORRUPT. */
inspan_status_t elastic_message_peek(const uint8_t *bytes, size_t n, elastic_message_t *message);
/* CORRUPT: any length, count, index or bit out of range; *why says which. */
inspan_status_t elastic_message_decode(const uint8_t *bytes, size_t n, elastic_message_t *message,
                                       const char **why);

/* ---- the member ---- */

/* What a REPORT said, kept by the leader until it decides. */
typedef struct elastic_report {
    uint64_t step;
    elastic_layout_t layout;
    elastic_role_t role;
    bool leave;
    elastic_set_t computed, given_up, dropped, held, chunks;
    elastic_pace_t pace;
    uint32_t tag[ELASTIC_BUCKETS_MAX];
} elastic_report_t;

struct elastic {
    elastic_config_t config;
    elastic_do_fn perform;
    void *context;
    inspan_error_t error;

    /* the view */
    uint64_t view;
    uint32_t n, index;
    uint32_t numbers[ELASTIC_MEMBERS_MAX];
    elastic_phase_t phase;
    elastic_role_t role;
    uint64_t full; /* members; in RUN */

    /* the step worked on: one above the last committed */
    uint64_t step, hint;
    bool voted, live; /* live: grants of this view count (L1): from entering RUN to the next VIEW */
    elastic_set_t granted, computed, dropped;
    elastic_set_t begun;                           /* of the granted ones */
    bool sealed, claimed;                          /* LAST is here; a claim is open */
    uint8_t owner[ELASTIC_LEASES_MAX];             /* or RESERVED for it */
    elastic_pace_t pace;                           /* own, of the next vote or report */
    uint8_t shares[ELASTIC_MEMBERS_MAX];           /* of the sums, in this step */
    uint8_t wire;                                  /* of the gradients, in this step */
    elastic_layout_t layout;                       /* in this step */
    elastic_layout_t known[ELASTIC_LAYOUTS_KNOWN]; /* that this member can take up, the newest first */
    uint64_t stolen;
    elastic_set_t held, salvaged, ready;
    uint32_t tag[ELASTIC_BUCKETS_MAX];
    uint32_t next_reduce; /* buckets below are started, held or salvaged */

    /* newcomer: version of each chunk + 1, 0: not here; promised ones not yet in */
    uint64_t chunk[ELASTIC_BUCKETS_MAX];
    elastic_set_t promised;

    bool wants_leave, told_leave; /* told: in this view, by REPORT or LEAVE */
    bool left, stuck, ended;      /* LEFT, STUCK (of this view both), END were done */
    bool said_complete;           /* in this step's vote (N2) */
    /* By the table and grants that a VIEW ended: number + 1 of the worker that each lease of this step was
     * for. */
    uint64_t grantee[ELASTIC_LEASES_MAX];

    /* leader */
    uint64_t reported, votes, complete, wish; /* members; wish: full ones that want to leave */
    uint64_t hints[ELASTIC_MEMBERS_MAX];
    elastic_set_t here[ELASTIC_MEMBERS_MAX]; /* chunks that a member needs no copy of */
    elastic_report_t reports[ELASTIC_MEMBERS_MAX];
    elastic_pace_t paces[ELASTIC_MEMBERS_MAX]; /* in a first view: everyone's */
    uint8_t next_shares[ELASTIC_MEMBERS_MAX], next_wire;
    elastic_layout_t next_layout;
    uint64_t knows[ELASTIC_MEMBERS_MAX];                 /* the newest layout that each knows, by its vote */
    uint32_t share[ELASTIC_MEMBERS_MAX];                 /* of the last whole step of this view; 0: none */
    elastic_progress_of_t progress[ELASTIC_MEMBERS_MAX]; /* of this step */
    int64_t now, opened_at;

    elastic_message_t out, message; /* being sent, being read: kept here, too big for a stack */
    uint8_t bytes[ELASTIC_MESSAGE_MAX];
};

/* elastic.c */
void elastic_do(elastic_t *e, elastic_action_type_t type, uint32_t bucket, uint32_t peer);
/* A message about this view and step; the caller fills the rest of what comes back, then sends it (again). */
elastic_message_t *elastic_draft(elastic_t *e, elastic_message_type_t type);
void elastic_send(elastic_t *e, uint32_t to);
/* Status for good (MISMATCH, CORRUPT), or of this event alone. */
inspan_status_t elastic_fail(elastic_t *e, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
inspan_status_t elastic_misuse(elastic_t *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* elastic_query.c */
bool elastic_light_step(const elastic_t *e, uint64_t step);
uint64_t elastic_end(const elastic_t *e); /* the step after the last */
/* Those that the step reduces, of so many. */
elastic_set_t elastic_buckets_of(const elastic_t *e, uint64_t step, uint32_t buckets);
bool elastic_same_layout(elastic_layout_t a, elastic_layout_t b);
bool elastic_knows(const elastic_t *e, elastic_layout_t layout);
bool elastic_holds_all(const elastic_t *e);
elastic_pace_t elastic_sound_pace(const elastic_pace_t *pace); /* within its limits */
elastic_set_t elastic_chunks_here(const elastic_t *e);         /* those that need no copy */

/* elastic_reconcile.c */
void elastic_reconcile(elastic_t *e); /* after a VIEW: report */
inspan_status_t elastic_on_report(elastic_t *e, uint32_t from);
inspan_status_t elastic_on_decide(elastic_t *e, uint32_t from);
inspan_status_t elastic_decide_if_all_reported(elastic_t *e);

/* elastic_decide.c: the leader's decision, into e->out (what is common to all members). */
inspan_status_t elastic_decide(elastic_t *e, bool *stuck);

/* elastic_commit.c */
void elastic_commit_step(elastic_t *e);                    /* DO_COMMIT; then all is about the next step */
void elastic_open_step(elastic_t *e, const uint8_t *plan); /* RUN, with the member's full, owner, salvaged */
inspan_status_t elastic_progress(elastic_t *e);            /* vote and, as the leader, commit if it is time */
inspan_status_t elastic_on_vote(elastic_t *e, uint32_t from);
inspan_status_t elastic_on_commit(elastic_t *e, uint32_t from);
void elastic_tell_leave(elastic_t *e);
void elastic_left_if_free(elastic_t *e);

/* elastic_claim.c */
void elastic_open_claims(elastic_t *e); /* a step begins, with the member's table */
/* The member claims if it is time; the leader answers itself. */
void elastic_claim_if_due(elastic_t *e);
inspan_status_t elastic_on_claim(elastic_t *e, uint32_t from);
inspan_status_t elastic_on_grant(elastic_t *e, uint32_t from);

/* elastic_table.c */
/* Grant `leases` to the full members in equal shares, none of the others to anybody. */
void elastic_table(uint64_t full, elastic_set_t leases, bool saving, uint8_t owner[ELASTIC_LEASES_MAX]);
/* `leases` of `step` to the full members by the policy and the members' paces: what of a share is not granted
 * is reserved. share (n): see elastic_policy_t. */
void elastic_share_out(const elastic_t *e, uint64_t full, elastic_set_t leases, uint64_t step,
                       uint32_t *share, uint8_t owner[ELASTIC_LEASES_MAX]);
/* N1, N2: which chunk member `to` gives to (a full one) or takes from (others) each member; NOBODY: none.
 * here: chunks that each member needs no copy of. */
void elastic_plan(uint64_t full, uint32_t n, const elastic_set_t *here, uint32_t chunks, uint32_t to,
                  uint8_t row[ELASTIC_MEMBERS_MAX]);

#endif
