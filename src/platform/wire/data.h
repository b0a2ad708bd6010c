/*
 * The data plane's bytes: the handshake of a connection between two ranks, then frames. All integers
 * little-endian.
 *
 * Handshake (C connects, A accepts; MAC = HMAC-SHA256 with the job's key):
 *
 *   C -> A  HELLO      who C is and whom it wants, a nonce
 *   A -> C  WELCOME    status; if OK: A's nonce, MAC("A", HELLO, WELCOME without its MAC)
 *   C -> A  PROOF      MAC("C", HELLO, WELCOME without its MAC), then the probe, DATA_PROBE_BYTES
 *   A -> C  RESULT     a WELCOME again, status only, sent when the whole probe is there; if OK followed by a
 * probe
 *
 * Nothing is allocated and no state changes before PROOF is verified. A WELCOME with another status than OK
 * is the last thing A says. After the second probe the connection carries frames, both ways at once.
 *
 *   HELLO, 96 bytes            WELCOME, 96 bytes            PROOF, 32 bytes
 *   OFFSET SIZE MEANING        OFFSET SIZE MEANING          OFFSET SIZE MEANING
 *        0    4 magic "ISPD"        0    4 magic                 0   32 MAC
 *        4    2 major               4    2 major
 *        6    2 minor               6    2 minor
 *        8    8 job                 8    4 status (X-macro list of status.h)
 *       16    8 view               12    4 what disagrees (data_refusal_t)
 *       24    4 world              16    8 A's view
 *       28    4 from (C's rank)    24    4 A's rank
 *       32    4 to (A's rank)      28    4 zero
 *       36    4 zero               32   32 nonce
 *       40    8 C's incarnation    64   32 MAC
 *       48    8 A's, as C knows it
 *       56    8 zero
 *       64   32 nonce
 *
 * Frame header, 32 bytes, then `length` bytes of payload:
 *
 *   OFFSET SIZE MEANING
 *        0    1 type (data_type_t)
 *        1    1 flags: who is charged for a PIECE (DATA_EAGER, DATA_WINDOW, or 0: nobody); WANT: dtype
 *        2    2 zero
 *        4    4 length of the payload: at most DATA_PIECE_MAX, for each type what its line says
 *        8    8 sequence number of the operation (CREDIT: 0 for the eager budget); WANT, PART: number of the
 *               receive among the receiver's from this sender, 1, 2, ...
 *       16    4 chunk; WANT, PART: the receiver's slot for the receive
 *       20    4 tag
 *       24    8 offset of this piece in its transfer, bytes; CREDIT: bytes of credit; WANT: count, elements
 */
#ifndef WIRE_DATA_H
#define WIRE_DATA_H

#include <inspan/comm.h>

#include "base/units.h"

#define DATA_MAGIC         0x44505349u /* "ISPD" */
#define DATA_MAJOR         3 /* 3: a VOTE names a layout; small integers, products, blocks; backends */
#define DATA_MINOR         0
#define DATA_HELLO_BYTES   96
#define DATA_WELCOME_BYTES 96
#define DATA_SIGNED_BYTES  64 /* of a WELCOME: what its MAC covers */
#define DATA_MAC_BYTES     32
#define DATA_NONCE_BYTES   32
#define DATA_PROBE_BYTES   65536

#define DATA_HEADER_BYTES 32
#define DATA_PIECE_MAX    65536
#define DATA_CALL_BYTES   40
#define DATA_CAUSE_MAX    640
#define DATA_MESSAGE_MAX  4096

typedef enum data_type {
    DATA_PIECE = 1, /* a piece of a transfer                                                          */
    DATA_POST,      /* the sender has started operation `seq`: a call (DATA_CALL_BYTES)               */
    DATA_CREDIT,    /* the sender consumed staged bytes: so many more may be sent. No payload         */
    DATA_MESSAGE,   /* a small message, 1 to DATA_MESSAGE_MAX                                         */
    DATA_ABORT,     /* the communicator failed: a cause. Sequence number 1: the sender's last word    */
    DATA_PING,      /* alive. No payload                                                              */
    DATA_READY,     /* all pairs of the sender are checked. No payload; only while opening            */
    DATA_BYE,       /* the sender closes in order. No payload; the last frame                         */
    DATA_WANT,      /* the sender of this has started a receive and has a place for all of it. No payload */
    DATA_PART       /* a piece of what a WANT asked for                                               */
} data_type_t;

/* Flags of a PIECE: what it is charged to. Neither: the receiver has a place for it by the schedule's
 * promise. */
#define DATA_EAGER  1 /* the eager budget of the pair */
#define DATA_WINDOW 2 /* the operation's window */

typedef enum data_refusal {
    DATA_ACCEPTED,
    DATA_WRONG_VERSION,
    DATA_WRONG_JOB,
    DATA_WRONG_VIEW,
    DATA_WRONG_WORLD,       /* another number of ranks, or a rank outside it */
    DATA_WRONG_RANK,        /* the acceptor is another rank than wanted */
    DATA_WRONG_INCARNATION, /* of either side: a process was restarted */
    DATA_WRONG_KEY,
    DATA_REFUSALS
} data_refusal_t;

typedef struct data_hello {
    uint16_t major, minor;
    uint64_t job, view;
    uint32_t world, from, to;
    uint64_t from_incarnation, to_incarnation;
    uint8_t nonce[DATA_NONCE_BYTES];
} data_hello_t;

typedef struct data_welcome {
    uint16_t major, minor;
    inspan_status_t status;
    data_refusal_t refusal;
    uint64_t view;
    uint32_t rank;
    uint8_t nonce[DATA_NONCE_BYTES];
    uint8_t mac[DATA_MAC_BYTES];
} data_welcome_t;

typedef struct data_frame {
    data_type_t type;
    uint8_t flags;
    uint32_t length;
    uint64_t seq;
    uint32_t chunk, tag;
    uint64_t offset;
} data_frame_t;

/*
 * A call, the payload of POST:
 *
 *   OFFSET SIZE MEANING
 *        0    1 collective          16    8 count, elements
 *        1    1 algorithm           24    8 hash of shard weights and chunk size
 *        2    1 dtype               32    8 window: staged bytes that may be sent at once
 *        3    1 reduction
 *        4    4 root
 *        8    1 wire type
 *        9    1 whose which elements are (sched_owners_t of core/collective/schedule.h)
 *       10    2 zero
 *       12    4 elements at the end that go as they are
 */
#define DATA_BY_BACKEND 255 /* algorithm: a backend's own (comm/backends) */

typedef struct data_call {
    uint8_t collective, algorithm, dtype, reduction, wire, owners;
    uint32_t root, exact_tail;
    uint64_t count, layout, window;
} data_call_t;

void data_encode_hello(const data_hello_t *hello, uint8_t bytes[DATA_HELLO_BYTES]);
void data_encode_welcome(const data_welcome_t *welcome, uint8_t bytes[DATA_WELCOME_BYTES]);
void data_encode_frame(const data_frame_t *frame, uint8_t bytes[DATA_HEADER_BYTES]);
void data_encode_call(const data_call_t *call, uint8_t bytes[DATA_CALL_BYTES]);
/* Bytes used, at most DATA_CAUSE_MAX: texts are cut to what fits their fields. */
size_t data_encode_cause(const inspan_cause_t *cause, uint8_t bytes[DATA_CAUSE_MAX]);

/* CORRUPT: not our magic, or fields out of range. VERSION: another major; then only major and minor are set.
 */
inspan_status_t data_decode_hello(const uint8_t bytes[DATA_HELLO_BYTES], data_hello_t *hello);
inspan_status_t data_decode_welcome(const uint8_t bytes[DATA_WELCOME_BYTES], data_welcome_t *welcome);

/* CORRUPT: unknown type or flag, a length that its type cannot have. What follows can be trusted in size
 * only. */
inspan_status_t data_decode_frame(const uint8_t bytes[DATA_HEADER_BYTES], data_frame_t *frame);
inspan_status_t data_decode_call(const uint8_t bytes[DATA_CALL_BYTES], data_call_t *call);
inspan_status_t data_decode_cause(const uint8_t *bytes, size_t n, inspan_cause_t *cause); /* CORRUPT */

#endif
