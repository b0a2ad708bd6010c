/*
 * The elastic step of one member as a pure state machine: events in, actions out. No socket, clock, thread or
 * include beyond base; no allocation after elastic_open. The same object runs in production, in the simulator
 * and in tests. Its rules have names (V1 ... D3); docs/step-protocol.md has their text, the code names each
 * rule where it lives.
 *
 *             VIEW (first)             every bucket held, grants computed,
 *    IDLE ------------------> RUN ---- promised chunks in: VOTE ---------> VOTED
 *      |                       ^ ^                                           |
 *      | VIEW                  | +------- COMMIT (the leader: all votes) ----+---- of step steps + 1 --->
 * DONE v          DECIDE       |          next step                               (END) RECONCILE
 * ----------------+------------------ nothing is left to do -------------------------------> DONE
 *      ^
 *      |  a newer VIEW in any phase.  BROKEN in any phase: -> BROKEN, which waits for a newer VIEW
 *
 *    A message that breaks the protocol: -> FAILED, for good. (VOTED is a flag of RUN here.)
 *
 * A *member* is an index into its view (0 is the leader); a *number* names a worker of the job for people,
 * "rank N".
 *
 * Steps. [0, steps) train. Step `steps` (closing) and `steps + 1` (saving) are *light*: the tally alone is
 * reduced and no weights change. The saving step's leases all go to the lowest full member: lease 0 means
 * "the result is saved and registered". Its commit ends the job (END).
 *
 * Buckets. The last one is the tally; buckets 0 .. buckets - 2 hold gradients, chunk i is the weights and
 * optimiser moments of bucket i. One all-reduce over all members of the view per bucket, started in one order
 * everywhere; members that are not full contribute zeros. B1 (each lease exactly once in each reduced bucket)
 * is checked by the shell: local sums carry elastic_contribution() behind the gradients, the reduced bucket
 * must have elastic_expected().
 *
 * Leases. The table rides on the view's first step, on COMMIT (for the next step) and on DECIDE (for what is
 * left of this one). It grants leases (GRANT, L1), and with a policy it may only *reserve* the tail of a
 * member's share. LAST rides there too, for every member for which it reserves nothing. A shell takes a run
 * by elastic_grant, says BEGIN, adds it to the local sums of *all* buckets (L2: salvaged ones too), then
 * feeds COMPUTED. In the backward pass of the run that elastic_grant called `last` (or at once, when it gives
 * none and says last) it feeds READY for each bucket.
 *
 * Stealing. A member that begins the last run it was granted, and has no LAST yet, sends CLAIM; the leader
 * answers with GRANT: the next run of its reserve, there when the run ends. What is left for its last run
 * comes with LAST. Before that the leader asks the policy whether leases that are still *reserved* for
 * somebody else, who will be late, are better done by this one. A granted lease is never taken back. Every
 * claim is answered with a lease or with LAST (L4), so all end: also for a member whose whole reserve went to
 * others. A claim that crosses a change of the view is void (V1). How the shell learns of an answer: DO_MORE,
 * then elastic_grant says what there is now (n = 0 and last: the local sums are final at once, as they are).
 * Without a policy, with one full member and in light steps the table grants everything, and nobody claims.
 *
 * drop. Where a bucket must be reduced anew and none is held, leases that neither any survivor has computed
 * nor any survivor was granted (the lost ones') are not granted again but recorded as dropped (D1 - D3):
 * every bucket of the step counts the others, and the mean is over these. Never all of a step; light steps
 * never drop.
 *
 * Leaving. After EV_LEAVE the next COMMIT takes the member out of the full set (G1): it contributes zeros,
 * votes, passes what it holds, and may go (LEFT) when a view without it is out. The last full member is kept
 * (G2). LEFT is said again in each view (G3). A listener may go from the next COMMIT or DECIDE on. Where no
 * full member is left in a view, its leavers are full again (G4, FULL) until the next COMMIT that can let
 * them go.
 */
#ifndef STEP_ELASTIC_H
#define STEP_ELASTIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define ELASTIC_MEMBERS_MAX 64 /* of one view */
#define ELASTIC_LEASES_MAX  256
#define ELASTIC_BUCKETS_MAX 256 /* the tally included */
#define ELASTIC_MESSAGE_MAX 4096

/* A set of leases, buckets or chunks: bit i of word i / 64. */
typedef struct elastic_set {
    uint64_t words[4];
} elastic_set_t;

static inline bool elastic_has(const elastic_set_t *set, uint32_t i)
{
    return i < 256 && (set->words[i / 64] >> (i % 64) & 1) != 0;
}

/*
 * What a member says of itself with VOTE and REPORT: hints, they decide who computes what and never a result
 * (C2). In leases.
 */
typedef struct elastic_pace {
    uint64_t lease_ns; /* pure compute of one lease; 0: unknown */
    uint64_t step_ns;  /* of each step whatever the share: update, reductions, input that is not hidden */
    uint32_t run;      /* leases of one micro-batch as it likes them; 0: it wants all at once */
    uint32_t last;     /* leases of the last one: as many as hiding the reduction needs; 0: like run */
    uint32_t most;     /* at most so many in a step (memory, its owner); 0: takes part without leases */
} elastic_pace_t;

#define ELASTIC_PACE_NS_MAX 1000000000000000u /* of a lease or a step; larger ones are taken for this */
#define ELASTIC_LAYOUTS_KNOWN                                                                                \
    4 /* that a member keeps, the oldest goes: what they mean is kept by the shell */

/* How parameters lie in buckets: what it means is the shell's. */
typedef struct elastic_layout {
    uint64_t hash;
    uint32_t buckets; /* 1 .. ELASTIC_BUCKETS_MAX, the tally included */
} elastic_layout_t;

/* Nothing known: everything at once, as many as there are. */
#define ELASTIC_PACE_UNKNOWN ((elastic_pace_t){.most = ELASTIC_LEASES_MAX})

/* Of one member in this step, as the leader knows it. In leases. */
typedef struct elastic_progress_of {
    elastic_pace_t pace;
    uint32_t reserved; /* not granted yet */
    uint32_t granted;  /* in this step and view */
    uint32_t computed; /* of these: so many were, at its last claim */
    int64_t heard_at;  /* its last claim, or the opening of the step */
    bool full, sealed; /* sealed: it has LAST */
} elastic_progress_of_t;

/*
 * Who computes what; pure functions, called inside elastic_handle. What they return is checked: no answer of
 * theirs can break the accounting. In a first view every member calls split, with the same arguments: it must
 * give the same on every machine.
 */
typedef struct elastic_policy {
    /* Shares of `leases` for the members in `full` (bit per index), 0 for the others; their sum is `leases`,
     * or equal shares are taken instead. share (n): in: those of the step before, so that small gains change
     * nothing (all 0: none). */
    void (*split)(void *context, uint32_t leases, uint64_t full, uint32_t n, const elastic_pace_t *pace,
                  uint32_t *share);
    /* Member `to` has claimed, and has no more than its last run reserved: so many leases of *from's reserve
     * are better done by it; 0: none, it gets LAST. members: (n). */
    uint32_t (*steal)(void *context, int64_t now, int64_t opened_at, uint32_t n,
                      const elastic_progress_of_t *members, uint32_t to, uint32_t *from);
    void *context;
} elastic_policy_t;

typedef struct elastic_config {
    uint32_t number; /* of this worker in the job */
    bool newcomer;   /* starts fresh: no weights yet (a member of a `first` view: false) */
    uint64_t
        first_step;   /* what a member that is no newcomer starts with (0, or from a checkpoint); <= steps */
    uint64_t steps;   /* training steps; then the closing and the saving step */
    uint32_t leases;  /* of a step, 1 .. ELASTIC_LEASES_MAX */
    uint32_t buckets; /* 1 .. ELASTIC_BUCKETS_MAX, the tally included; and */
    uint64_t layout;  /* the hash of their layout: both of the first one (Y1) */
    uint32_t chunks;  /* pieces of weights for newcomers, whatever the layout; 0: as the buckets, no tally */
    uint32_t wires;   /* gradients may go over the wire in so many ways, 256 at most; 0 is taken for 1 */
    uint8_t wire;     /* how they go until the leader says otherwise; < wires */
    bool drop;        /* on_loss: drop */
    elastic_policy_t policy; /* split NULL: equal shares. steal NULL: everything is granted by the table */
    uint32_t planted;        /* PLANTED_* bits of planted.h: read only in a build with INSPAN_PLANTED */
} elastic_config_t;

typedef enum elastic_phase {
    ELASTIC_IDLE,      /* in no view yet */
    ELASTIC_RECONCILE, /* reported, waits for DECIDE (the leader: for reports) */
    ELASTIC_RUN,       /* compute, reduce, vote */
    ELASTIC_BROKEN,    /* this view is over, waits for the next one */
    ELASTIC_DONE,      /* the job is committed to its end */
    ELASTIC_FAILED
} elastic_phase_t;

typedef enum elastic_role {
    ELASTIC_FRESH,    /* a newcomer that has not acted on any decision yet */
    ELASTIC_LISTENER, /* a newcomer that takes part but has not all weights, or is not yet named full */
    ELASTIC_FULL,
    ELASTIC_LEAVING /* all weights, no leases any more */
} elastic_role_t;

/*
 * Events. `view` is the view that the event belongs to; REDUCED, CHUNK, READY and BROKEN of an older view
 * than the member's own are ignored (V1), so that what was under way when a view ended may still be fed.
 */
typedef enum elastic_event_type {
    ELASTIC_EV_VIEW, /* view, first_view, n, numbers, index. Only between two micro-batches (V2). A view that
                        is not above the member's own is ignored. */
    ELASTIC_EV_BROKEN,   /* view: its communicator is poisoned, nothing of it counts any more. A micro-batch
                            under   way goes on to its COMPUTED. */
    ELASTIC_EV_MESSAGE,  /* from, data, bytes (read during the call alone) */
    ELASTIC_EV_BEGIN,    /* lease, n: the run, as elastic_grant gave it, is begun: whoever begins its last one
                            claims. Before any other event, or a run may be claimed too late (COMPUTED says
                            BEGIN where it was not said) */
    ELASTIC_EV_COMPUTED, /* lease, n: these leases are in the local sums of all buckets. Counts until the next
                            VIEW */
    ELASTIC_EV_READY,   /* view, bucket: its local sum is final for this view. Gradients: in any order, before
                           the   COMPUTED of the last run. The tally: just before or after it, also where it is
                           salvaged   (the vote waits for it). Of other salvaged buckets: nothing to do, may be
                           left out */
    ELASTIC_EV_REDUCED, /* view, bucket: reduced or taken, whole, checked */
    ELASTIC_EV_CHUNK,   /* view, bucket (the chunk), step (version): the promised copy is in, whole, checked.
                           Believe   elastic_chunk() afterwards. */
    ELASTIC_EV_LEAVE    /* this member wants to go */
} elastic_event_type_t;

typedef struct elastic_event {
    elastic_event_type_t type;
    uint64_t view;
    bool first_view;         /* everyone starts full at its first_step: nobody reconciles */
    const uint32_t *numbers; /* (n) strictly increasing; read during the call alone */
    uint32_t n;              /* VIEW: members; COMPUTED: leases */
    uint32_t index;          /* own one */
    uint32_t from;           /* index in the view whose communicator brought the message */
    const uint8_t *data;
    size_t bytes;
    uint32_t lease, bucket;
    uint64_t step;
    int64_t now; /* monotonic time of the shell, ns: for the policy alone; 0: as before */
    /* VIEW: (n) what is known of the members; NULL: nothing. With first_view the same on all of them. */
    const elastic_pace_t *paces;
} elastic_event_t;

/*
 * Actions, in the order in which they must be carried out. A crash between any two of them is harmless. Each
 * has the view and the step (its own meaning below) they belong to; all of an older view are void when a
 * newer begins.
 */
typedef enum elastic_action_type {
    ELASTIC_DO_SEND, /* peer, data, bytes (valid during the call alone) */
    ELASTIC_DO_WORK, /* a step begins or goes on: ask elastic_grant; there are leases to compute, or the local
                        sums are final at once. Not done where nothing is to be reduced. */
    ELASTIC_DO_MORE, /* a claim was answered: ask elastic_grant again */
    ELASTIC_DO_REDUCE,     /* bucket: start its all-reduce; in one order on all members of the view */
    ELASTIC_DO_PASS,       /* bucket, peer: send it the held bucket (its reduced value, not the local sum) */
    ELASTIC_DO_TAKE,       /* bucket, peer: receive it; then REDUCED */
    ELASTIC_DO_GIVE_CHUNK, /* bucket (the chunk), peer, step (version): from live memory, before this step
                              commits */
    ELASTIC_DO_TAKE_CHUNK, /* bucket (the chunk), peer, step (version); then CHUNK */
    ELASTIC_DO_LAYOUT, /* from this step on buckets lie as elastic_layout_of_step says; nothing is in them */
    ELASTIC_DO_COMMIT, /* step is committed. Inside the call the queries still answer for that step: apply the
                          update to the chunks of elastic_applies() alone, count all leases but
                          elastic_dropped(). Then local sums and held buckets are empty. */
    ELASTIC_DO_FULL,   /* this member is full from now on */
    ELASTIC_DO_LEFT,   /* this member is no longer needed, as long as its view is the newest (G3); it votes on
                          until a view without it is out */
    ELASTIC_DO_STUCK,  /* the leader: no full member is left in this view, nothing goes on (P2) */
    ELASTIC_DO_END     /* the saving step is committed */
} elastic_action_type_t;

typedef struct elastic_action {
    elastic_action_type_t type;
    uint64_t view, step;
    uint32_t bucket, peer; /* peer: index in the view */
    const uint8_t *data;
    size_t bytes;
} elastic_action_t;

typedef struct elastic elastic_t;

/* The shell; called inside elastic_handle, in order; must not call elastic_handle, may call the queries. */
typedef void (*elastic_do_fn)(void *context, const elastic_action_t *action);

/* INVALID: a count of config out of range; NO_MEMORY. The caller owns *e and closes it. config is copied. */
inspan_status_t elastic_open(const elastic_config_t *config, elastic_do_fn perform, void *context,
                             elastic_t **e);
void elastic_close(elastic_t *e); /* NULL: nothing */

/*
 * Feed one event. Never blocks.
 * OK        done, or nothing to do (an older view's: V1)
 * PENDING   a message of a newer view: the caller keeps it (bounded) and feeds it again after that VIEW
 * INVALID   the caller's mistake (event out of place); nothing changes
 * MISMATCH  another member breaks the protocol or has other settings (layout, leases, buckets, weights)
 * CORRUPT   a message that cannot be right, whoever sent it
 * With the last two the phase is FAILED for good and every later event returns the same status.
 * elastic_error has a text for all but OK and PENDING.
 */
inspan_status_t elastic_handle(elastic_t *e, const elastic_event_t *event);
const inspan_error_t *elastic_error(const elastic_t *e);

/* A hint that rides on this step's vote: hash of the weights before the step (0: none). The leader compares;
 * other weights are a MISMATCH that names the odd ones. Never enters weights (C2). Call it before the step's
 * last READY. */
void elastic_hint(elastic_t *e, uint64_t hash);

/* What this member is like, from its next vote or report on: also how it is granted. Values beyond their
 * limits are taken for these. Until the first call: ELASTIC_PACE_UNKNOWN. */
void elastic_set_pace(elastic_t *e, const elastic_pace_t *pace);

/* The leader of a view: of which part of the sums which member is the owner, from the next step on that a
 * COMMIT opens. shares: (members) any scale; all 0: equal, as in each new view. A hint too: sums are made in
 * one order whoever makes them. Elsewhere: nothing. */
void elastic_set_shares(elastic_t *e, const uint8_t *shares);

/* The leader: how gradients go over the wire from the next step on that a COMMIT opens; < config.wires, else
 * nothing changes. What it means is the shell's. Unlike shares it stays in a new view: DECIDE carries it. */
void elastic_set_wire(elastic_t *e, uint8_t wire);

/* This member can take up that layout from now on (it keeps the last four that it was told of), and its votes
 * say which is the newest. At the start of a view every member tells every other one its present layout and
 * its newest, before the machine gets VIEW: a newcomer, or who leads, may need them before DECIDE. More than
 * ELASTIC_BUCKETS_MAX buckets, or none: nothing. */
void elastic_know_layout(elastic_t *e, const elastic_layout_t *layout);

/* The leader: buckets lie so from the next step on that a COMMIT opens in this view, once every member's vote
 * says that it knows this layout. Unknown here: nothing. */
void elastic_set_layout(elastic_t *e, uint64_t hash);

/* ---- queries: pure ---- */

/* Next run of leases that are granted and not computed: [*first, *first + *n), contiguous, *n <= most. *last:
 * after it there are none and none will come (the local sums become final). None left: *n = 0 and *last =
 * true; or, before LAST, *n = 0 and *last = false: DO_MORE will come. Outside RUN: *n = 0, *last = false. It
 * gives the same answer until COMPUTED or DO_MORE. */
void elastic_grant(const elastic_t *e, uint32_t most, uint32_t *first, uint32_t *n, bool *last);

/* LAST is here: in this step and view there will be no other leases than those of elastic_contribution. */
bool elastic_sealed(const elastic_t *e);

elastic_phase_t elastic_phase(const elastic_t *e);
elastic_role_t elastic_role(const elastic_t *e);
bool elastic_is_leader(const elastic_t *e);
uint64_t elastic_view(const elastic_t *e); /* 0: none yet */
uint64_t elastic_step(const elastic_t *e); /* worked on; all below are committed; steps + 2 at the end */
bool elastic_light(const elastic_t *e);    /* that step is the closing or the saving one */
const uint8_t *
elastic_shares(const elastic_t *e);       /* (members) in this step, as elastic_set_shares has them */
uint8_t elastic_wire(const elastic_t *e); /* in this step, as elastic_set_wire has it */
elastic_layout_t elastic_layout_of_step(const elastic_t *e);
uint32_t elastic_members(const elastic_t *e, const uint32_t **numbers,
                         uint32_t *index);     /* returns how many */
uint64_t elastic_full_set(const elastic_t *e); /* bit per index; in RUN */

/* Owner (index) of a lease in this step and view, as far as this member knows: by the table (granted or
 * reserved), by grants to this member, on the leader by all. ELASTIC_MEMBERS_MAX: none. In RUN. */
uint32_t elastic_owner(const elastic_t *e, uint32_t lease);
elastic_set_t elastic_computed(const elastic_t *e); /* D: in the local sums of this step */
elastic_set_t
elastic_contribution(const elastic_t *e); /* D and what is still granted: what a READY bucket holds */
/* Of a member, the newest that is known here: the leader knows what each said last, another member what the
 * view brought. */
elastic_pace_t elastic_pace_of(const elastic_t *e, uint32_t member);
/* Leases that this member was given and another's were by the table, since it was opened. */
uint64_t elastic_stolen(const elastic_t *e);
elastic_set_t elastic_dropped(const elastic_t *e); /* leases that do not count in this step */
elastic_set_t
elastic_expected(const elastic_t *e); /* what a reduced bucket of this view must count, once each */
bool elastic_held(const elastic_t *e, uint32_t bucket, uint64_t *tag); /* tag: view in which it was reduced */
bool elastic_voted(const elastic_t *e);

bool elastic_applies(const elastic_t *e,
                     uint32_t chunk); /* in DO_COMMIT: the update goes to this chunk (N1) */
bool elastic_chunk(const elastic_t *e,
                   uint32_t chunk);        /* its weights are here, at the version before this step */
bool elastic_complete(const elastic_t *e); /* all chunks are */

/* Samples of a lease within the step's batch: [*first, *first + *n), contiguous, sizes differing by at most
 * one. */
void elastic_samples(uint64_t batch, uint32_t leases, uint32_t lease, uint64_t *first, uint64_t *n);

const char *elastic_phase_name(elastic_phase_t phase);
const char *elastic_role_name(elastic_role_t role);
const char *elastic_action_name(elastic_action_type_t type);
/* Name of an encoded message ("REPORT"), view and step; "damaged" if it has no whole header. For logs and
 * histories. */
const char *elastic_message_name(const uint8_t *bytes, size_t n, uint64_t *view, uint64_t *step);

/* clang-format off */
/*
 * Messages, little-endian. A set is 32 bytes, bit i % 8 of byte i / 8; bits beyond the count are zero. All
 * have
 *
 *   OFFSET SIZE MEANING
 *        0    4 type: 1 REPORT, 2 DECIDE, 3 VOTE, 4 COMMIT, 5 LEAVE, 6 CLAIM, 7 GRANT
 *        4    4 flags: 1 complete (VOTE), 2 wants to leave (REPORT), 4 last (GRANT); others zero
 *        8    8 view, 1 .. 2^32 - 1
 *       16    8 step: REPORT, VOTE, LEAVE, CLAIM, GRANT: the one its sender works on; DECIDE: the one that
 *               goes on; COMMIT: the committed one
 *       24    8 hash of the bucket layout of that step (COMMIT, DECIDE: of the step that they open; Y1)
 *
 * A pace is 32 bytes: 8 lease_ns, 8 step_ns, 4 run, 4 last, 4 most, 4 zero.
 * An owner is a byte: the member's index; with 128 added: reserved for it; 255: nobody.
 *
 * REPORT, member -> leader                            DECIDE, leader -> member (each its own)
 *       32    2 leases                                      32    8 full set, bit per index
 *       34    2 buckets                                     40    2 leases
 *       36    1 role                                        42    2 buckets
 *       37    3 zero                                        44    1 members
 *       40   32 computed leases (D)                         45    1 wire; 2 zero
 *       72   32 given up: granted, not computed             48   32 dropped leases
 *      104   32 dropped leases                              80   32 salvaged buckets
 *      136   32 held buckets                               112    m per index: chunk to give it (a full
 *      168   32 chunks here                                         receiver) or to take from it (a newcomer);
 *      200   32 pace                                                255: none
 *      232   4h per held bucket: tag                          +    l owner of each lease
 *                                                             +  13s per salvaged bucket: 4 tag, 1 source,
 *                                                                   8 who needs it
 * VOTE, member -> leader                              COMMIT, leader -> member (each its own)
 *       32    8 hint                                        32    8 hint
 *       40   32 chunks here                                 40    8 full set
 *       72   32 pace                                        48    2 leases
 *      104    8 hash of the newest layout that it knows       50    2 buckets
 *                                                           52    1 members
 * LEAVE, member -> leader: the header alone                 53    1 wire; 2 zero
 * CLAIM, member -> leader                                   56    m chunks, as in DECIDE
 *       32    4 leases computed of those granted here        +    l owners, as in DECIDE
 *       36    4 zero                                         +    m shares of the sums
 *                                                     GRANT, leader -> member
 *                                                           32   32 leases; none: with last only
 */
/* clang-format on */
#define ELASTIC_HEADER_BYTES 32

#endif
