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
#define LOCAL_MINOR     0
#define LOCAL_FRAME_MAX 65536
#define LOCAL_TEXT_MAX  16384
#define LOCAL_KEY_BYTES 32

typedef enum local_frame_type {
    LOCAL_HELLO = 1, /* worker -> agent: version, pid, own incarnation                                      */
    LOCAL_WELCOME,   /* agent -> worker: job, node, timeouts, threads, data port range                     */
    LOCAL_BOUND,     /* worker -> agent: data port                                                         */
    LOCAL_VIEW,      /* agent -> worker: view, rank, members, job key                                      */
    LOCAL_READY,     /* worker -> agent: communicator open, pairs checked                                  */
    LOCAL_TICK,      /* worker -> agent: alive, progress                                                   */
    LOCAL_FAILED,    /* worker -> agent: status, cause, text; the agent acknowledges with BYE              */
    LOCAL_DONE,      /* worker -> agent: summary JSON; the agent acknowledges with BYE                     */
    LOCAL_STOP,      /* agent -> worker: cancel (between steps)                                            */
    LOCAL_LOST,      /* agent -> worker: a member is lost (cause): poison                                  */
    LOCAL_BYE        /* either way: the last frame, status and text                                        */
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
    uint32_t rank, world;
    uint8_t key[LOCAL_KEY_BYTES];
    inspan_member_t *members; /* (world) */
} local_view_t;

typedef struct local_end { /* FAILED, LOST, DONE, BYE: cause.rank -1 where there is none */
    inspan_status_t status;
    inspan_cause_t cause;
    char text[LOCAL_TEXT_MAX];
} local_end_t;

#define LOCAL_WORLD_MAX 256

/* A frame as bytes with its length field; *used is its whole size. LIMIT: does not fit `size`. */
inspan_status_t local_encode_hello(const local_hello_t *hello, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_welcome(const local_welcome_t *welcome, uint8_t *bytes, size_t size,
                                     size_t *used);
inspan_status_t local_encode_bound(uint16_t port, uint8_t *bytes, size_t size, size_t *used);
inspan_status_t local_encode_view(const local_view_t *view, uint8_t *bytes, size_t size, size_t *used);
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
inspan_status_t local_decode_tick(const uint8_t *body, size_t n, inspan_progress_t *progress);
inspan_status_t local_decode_end(const uint8_t *body, size_t n, local_end_t *end);

#endif
