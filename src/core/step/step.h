/*
 * One training step as a pure state machine: events in, actions out. No socket, clock, thread or memory
 * allocation. The same object runs under DDP in production and in the simulator. Here the members are fixed:
 * a failure ends it.
 *
 *            BEGIN            SEAL             every bucket REDUCED            COMMIT
 *   IDLE ------------> COMPUTE -----> REDUCE --------------------> VOTED ----------------> IDLE (step + 1)
 *                                  READY(b): REDUCE(b)           VOTE to leader    COMMITTED(step)
 *     any phase -- FAIL, or a message that cannot be --> FAILED (for good)
 *
 * Rules of the elastic step that hold here (STEP_PROTOCOL's names): V1 a message of an older view is dropped.
 * L3 every member contributes to every bucket, with an empty contribution too. C1 a member votes when it
 * holds every bucket; the leader (the lowest rank) commits with the vote of every member, the others on
 * COMMIT; nothing is applied earlier. C2 nothing that influences weights rides on a vote. Y1 votes and
 * commits name the bucket layout.
 *
 * Buckets are reduced in layout order on all members, whatever order they become ready in: collectives must
 * be started in one order everywhere.
 */
#ifndef STEP_STEP_H
#define STEP_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define STEP_MEMBERS_MAX 256
#define STEP_BUCKETS_MAX 4096

typedef enum step_phase { STEP_IDLE, STEP_COMPUTE, STEP_REDUCE, STEP_VOTED, STEP_FAILED } step_phase_t;

typedef enum step_message_type { STEP_VOTE = 1, STEP_COMMIT = 2 } step_message_type_t;

/* What members say to each other. On the wire: see step_message_encode. */
typedef struct step_message {
    step_message_type_t type;
    uint64_t view, step, layout;
} step_message_t;

/*
 *   OFFSET SIZE MEANING      little-endian
 *        0    4 type
 *        4    4 zero
 *        8    8 view
 *       16    8 step
 *       24    8 hash of the bucket layout
 */
#define STEP_MESSAGE_BYTES 32

typedef enum step_event_type {
    STEP_EV_BEGIN,   /* step                                                     */
    STEP_EV_SEAL,    /* no further micro-batch after the one about to run        */
    STEP_EV_READY,   /* bucket: its local sum is complete                        */
    STEP_EV_REDUCED, /* bucket: its reduced sum is here                          */
    STEP_EV_MESSAGE, /* from, message                                            */
    STEP_EV_FAIL     /* a member or a link is lost: give up                      */
} step_event_type_t;

typedef struct step_event {
    step_event_type_t type;
    uint64_t step;
    uint32_t bucket, from;
    step_message_t message;
} step_event_t;

typedef enum step_action_type {
    STEP_DO_REDUCE, /* start the reduction of `bucket`                              */
    STEP_DO_SEND,   /* send `message` to rank `to`                                  */
    STEP_DO_COMMIT  /* `step` is committed: the optimiser may be applied            */
} step_action_type_t;

typedef struct step_action {
    step_action_type_t type;
    uint32_t bucket, to;
    uint64_t step;
    step_message_t message;
} step_action_t;

/* The shell that carries out actions; called inside step_handle, in order; must not call step_handle. */
typedef void (*step_do_fn)(void *context, const step_action_t *action);

typedef struct step_machine {
    uint32_t rank, world, buckets;
    uint64_t view, layout;
    step_phase_t phase;
    uint64_t step;        /* the one being worked on; IDLE: the next one */
    uint32_t next_bucket; /* buckets [0, next_bucket) are being reduced or reduced */
    uint32_t n_reduced;
    bool ready[STEP_BUCKETS_MAX], reduced[STEP_BUCKETS_MAX];
    uint64_t voted[STEP_MEMBERS_MAX]; /* leader: step + 1 of each member's last vote, 0 none */
    step_do_fn perform;
    void *context;
    inspan_error_t error; /* why it FAILED */
} step_machine_t;

/* first_step: the one that BEGIN must name first. INVALID: world or buckets 0 or above the caps, rank not in
 * world. */
inspan_status_t step_init(step_machine_t *machine, uint32_t rank, uint32_t world, uint64_t view,
                          uint64_t layout, uint32_t buckets, uint64_t first_step, step_do_fn perform,
                          void *context);

/* Feed one event. OK; INVALID: the caller's mistake (event out of place), nothing changes; MISMATCH: another
 * member breaks the protocol; the phase is FAILED then and stays so. machine->error has the text. */
inspan_status_t step_handle(step_machine_t *machine, const step_event_t *event);

void step_message_encode(const step_message_t *message, uint8_t bytes[STEP_MESSAGE_BYTES]);
/* CORRUPT: wrong length or type. */
inspan_status_t step_message_decode(const uint8_t *bytes, size_t n, step_message_t *message);

/* Samples of a step are [step * batch, (step + 1) * batch); rank's part of them is [*first, *first + *n):
 * contiguous, in rank order, sizes differing by at most one. */
void step_share(uint64_t step, uint64_t batch, uint32_t rank, uint32_t world, uint64_t *first, uint64_t *n);

#endif
