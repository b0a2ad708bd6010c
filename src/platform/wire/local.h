/*
 * Frames between a worker and its agent on the local socket (AF_UNIX stream, a path in $INSPAN_SOCKET).
 *
 *   OFFSET SIZE MEANING                      all integers little-endian
 *        0    4 length of what follows (at most 65536)
 *        4    2 type (local_frame_type_t)
 *        6    2 zero
 *        8    . body, see each type; strings are u16 length + bytes, no terminator
 *
 * The first frame each way is HELLO and WELCOME, with magic and version; another major is refused with BYE.
 */
#ifndef WIRE_LOCAL_H
#define WIRE_LOCAL_H

#include <inspan/comm.h>
#include <inspan/worker.h>

#include "base/units.h"

#define LOCAL_MAGIC     0x4e505349u /* "ISPN" */
#define LOCAL_MAJOR     1
#define LOCAL_MINOR     2
#define LOCAL_FRAME_MAX 65536
#define LOCAL_TEXT_MAX  16384
#define LOCAL_KEY_BYTES 32
#define LOCAL_PATH_MAX  256 /* with its terminator */
#define LOCAL_SHARES    1024
#define LOCAL_NOTE_MAX  512 /* with its terminator */
#define LOCAL_EVIDENCE  201 /* the same */

typedef enum local_frame_type {
    LOCAL_HELLO = 1, /* worker -> agent: version, pid, own incarnation                                      */
    LOCAL_WELCOME,   /* agent -> worker: job, node, timeouts, threads, data port range                     */
    LOCAL_BOUND,     /* worker -> agent: data port                                                         */
    LOCAL_VIEW,      /* agent -> worker: view, rank, members, job key; at any time, numbers only rise      */
    LOCAL_READY,     /* worker -> agent: this view's communicator is open, pairs checked                   */
    LOCAL_TICK,      /* worker -> agent: alive, progress                                                   */
    LOCAL_FAILED,    /* worker -> agent: status, cause, text; the agent acknowledges with BYE              */
    LOCAL_DONE,      /* worker -> agent: summary JSON; the agent acknowledges with BYE                     */
    LOCAL_STOP,      /* agent -> worker: cancel (between steps)                                            */
    LOCAL_LOST,      /* agent -> worker: a member is lost (cause): poison                                  */
    LOCAL_BYE,       /* either way: the last frame, status and text                                        */
    LOCAL_BLAME,     /* worker -> agent: this view is broken, and whose fault it seems                     */
    LOCAL_LEAVE,     /* agent -> worker: hand over, then LEFT                                              */
    LOCAL_LEFT,      /* worker -> agent: handed over in this view; may be left out of the next             */
    LOCAL_SAVED,     /* worker -> agent: an artifact is complete in a folder: store and register it        */
    LOCAL_REGISTERED, /* agent -> worker: what became of it                                                */
    LOCAL_LEDGER,  /* worker -> agent: a span of the ledger; one with the same first step replaces it     */
    LOCAL_STATE,   /* worker -> agent: has all weights and optimiser state, or not                       */
    LOCAL_NOTE,    /* worker -> agent: a line for those who watch the job                                */
    LOCAL_VITALS,  /* agent -> worker: how its machine does */
    LOCAL_VERDICT, /* worker -> agent: who became slower or faster, since when, why                    */
    LOCAL_TYPES    /* one more than the last */
} local_frame_type_t;

typedef struct local_hello {
    uint16_t major, minor;
    uint32_t pid;
    uint64_t incarnation;
} local_hello_t;

typedef struct local_welcome {
    uint16_t major, minor;
    uint64_t job;
    char node[INSPAN_NAME_MAX];
    ns_t failure_timeout;
    uint32_t threads;
    uint16_t first_port, last_port;
} local_welcome_t;

typedef struct local_view {
    uint64_t view;
    uint32_t rank, world; /* rank: this worker's place among the members */
    bool first;           /* of a lineage: nobody reconciles */
    uint8_t key[LOCAL_KEY_BYTES];
    inspan_member_t *members; /* (world) by increasing number */
} local_view_t;

typedef struct local_end { /* FAILED, LOST, DONE, BYE: cause.rank -1 where there is none */
    inspan_status_t status;
    inspan_cause_t cause;
    char text[LOCAL_TEXT_MAX];
} local_end_t;

typedef struct local_blame {
    uint64_t view;
    inspan_cause_t cause; /* rank and noticed_by are numbers of the job, -1 unknown */
} local_blame_t;

typedef struct local_saved {
    uint64_t step;               /* applied */
    uint64_t view;               /* of the writer */
    bool result;                 /* the final model; else a checkpoint */
    char folder[LOCAL_PATH_MAX]; /* below the worker's own: no "/" at its front, no ".." */
} local_saved_t;

typedef struct local_registered {
    uint64_t step;
    bool result;
    inspan_status_t status;
    char text[256];
} local_registered_t;

typedef struct local_share {
    int32_t rank; /* number of the worker; -1: dropped */
    uint64_t first, n;
} local_share_t;

/* Committed steps [first_step, last_step] in which the same workers computed the same shares of the batch. */
typedef struct local_ledger {
    uint64_t seed, batch; /* of the job: the order of samples, samples of a step */
    uint64_t first_step, last_step;
    uint64_t view;
    uint32_t n;
    local_share_t shares[LOCAL_SHARES];
} local_ledger_t;

/* Why a machine is slower or faster than it was. */
typedef enum local_cause {
    LOCAL_CAUSE_UNKNOWN,
    LOCAL_CAUSE_QUOTA, /* what its control group allows */
    LOCAL_CAUSE_CLOCK, /* of the CPU */
    LOCAL_CAUSE_HEAT,
    LOCAL_CAUSE_BATTERY,
    LOCAL_CAUSE_OWNER,  /* uses it himself */
    LOCAL_CAUSE_OTHERS, /* other programs */
    LOCAL_CAUSE_SWAP,
    LOCAL_CAUSE_LINK,
    LOCAL_CAUSE_INPUT,
    LOCAL_CAUSES /* one more than the last */
} local_cause_t;

/* On a worker's speed: its own word, or that of one who sees all. */
typedef struct local_verdict {
    uint64_t step, started; /* found in this step; the first one that was so */
    uint32_t about;         /* number of the worker */
    local_cause_t cause;
    /* Its speed against before: below 1 it is slower. With leave and 1 or more: the job's without it. */
    double factor;
    uint64_t share_before, share_after; /* samples of a step; 0 both: not said */
    bool leave;                         /* the job is predicted to be faster without it */
    char evidence[LOCAL_EVIDENCE];      /* "CPU quota 0.24 cores, was 0.80" */
} local_verdict_t;

#define LOCAL_WORLD_MAX 256

#define LOCAL_MINOR_VITALS 2 /* from which on workers take VITALS */

typedef enum local_limit { /* which wish of the owner's makes `allowed` less than 1 */
                           LOCAL_LIMIT_NONE,
                           LOCAL_LIMIT_ALWAYS,
                           LOCAL_LIMIT_BATTERY,
                           LOCAL_LIMIT_HEAT,
                           LOCAL_LIMIT_OWNER, /* is using it */
                           LOCAL_LIMIT_OTHER  /* of a newer minor version */
} local_limit_t;

/* How this machine does just now. 0: not known; others_cores and swap_bytes_per_s: NaN. */
typedef struct local_vitals {
    double cores;     /* that this agent's workers may use */
    double throttled; /* 0..1: of the quota's periods, in how many they were held back */
    double clock_mhz, clock_best_mhz;
    double temperature_c;
    double others_cores; /* used by programs that are not this agent's workers */
    double swap_bytes_per_s;
    double allowed; /* 0..1: the share that its owner gives */
    bool on_battery, owner_active;
    local_limit_t limit;
} local_vitals_t;

/* A frame as bytes with its length field; *used is its whole size. LIMIT: does not fit `size`. */
inspan_status_t local_encode_hello(const local_hello_t *hello, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_welcome(const local_welcome_t *welcome, uint8_t *bytes, size_t size,
                                     size_t *used);
inspan_status_t local_encode_bound(uint16_t port, uint8_t *bytes, size_t size, size_t *used);
/* A worker of a minor version below 2 knows no paces: they stay away. */
inspan_status_t local_encode_view(const local_view_t *view, uint16_t minor, uint8_t *bytes, size_t size,
                                  size_t *used);
inspan_status_t local_encode_ready(uint64_t view, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_left(uint64_t view, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_blame(const local_blame_t *blame, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_saved(const local_saved_t *saved, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_registered(const local_registered_t *registered, uint8_t *bytes, size_t size,
                                        size_t *used);
inspan_status_t local_encode_ledger(const local_ledger_t *ledger, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_state(bool full, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_note(const char *text, uint8_t *bytes, size_t size, size_t *used); /* cut */
inspan_status_t local_encode_verdict(const local_verdict_t *verdict, uint8_t *bytes, size_t size,
                                     size_t *used);
inspan_status_t local_encode_vitals(const local_vitals_t *vitals, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_tick(const inspan_progress_t *progress, uint8_t *bytes, size_t size,
                                  size_t *used);
inspan_status_t local_encode_end(local_frame_type_t type, const local_end_t *end, uint8_t *bytes, size_t size,
                                 size_t *used);
inspan_status_t local_encode_empty(local_frame_type_t type, uint8_t *bytes, size_t size, size_t *used);

/* Look at the front of a byte stream: PENDING (more needed), OK (*type, body, *whole = size of the frame),
 * CORRUPT. */
inspan_status_t local_peek(const uint8_t *bytes, size_t n, local_frame_type_t *type, const uint8_t **body,
                           size_t *body_bytes, size_t *whole);

/* Bodies. CORRUPT for anything too short, too long or out of range; never reads outside. */
inspan_status_t local_decode_hello(const uint8_t *body, size_t n, local_hello_t *hello);
inspan_status_t local_decode_welcome(const uint8_t *body, size_t n, local_welcome_t *welcome);
inspan_status_t local_decode_bound(const uint8_t *body, size_t n, uint16_t *port);
inspan_status_t local_decode_view(const uint8_t *body, size_t n,
                                  local_view_t *view); /* members: the caller frees */
inspan_status_t local_decode_ready(const uint8_t *body, size_t n, uint64_t *view);
inspan_status_t local_decode_left(const uint8_t *body, size_t n, uint64_t *view);
inspan_status_t local_decode_blame(const uint8_t *body, size_t n, local_blame_t *blame);
inspan_status_t local_decode_saved(const uint8_t *body, size_t n, local_saved_t *saved);
inspan_status_t local_decode_registered(const uint8_t *body, size_t n, local_registered_t *registered);
inspan_status_t local_decode_ledger(const uint8_t *body, size_t n, local_ledger_t *ledger);
inspan_status_t local_decode_state(const uint8_t *body, size_t n, bool *full);
inspan_status_t local_decode_note(const uint8_t *body, size_t n, char text[LOCAL_NOTE_MAX]);
inspan_status_t local_decode_verdict(const uint8_t *body, size_t n, local_verdict_t *verdict);
inspan_status_t local_decode_vitals(const uint8_t *body, size_t n, local_vitals_t *vitals);
inspan_status_t local_decode_tick(const uint8_t *body, size_t n, inspan_progress_t *progress);
inspan_status_t local_decode_end(const uint8_t *body, size_t n, local_end_t *end);

#endif
