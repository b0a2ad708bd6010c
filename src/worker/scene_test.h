/* A world of sessions as threads, each with an agent that the test plays frame by frame. */
#ifndef WORKER_SCENE_TEST_H
#define WORKER_SCENE_TEST_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "platform/wire/local.h"
#include "worker/views.h"
#include "worker/worker_internal.h"

#define PATIENCE (20 * NS_PER_S)

typedef struct scene scene_t;

typedef struct rank {
    scene_t *scene;
    uint32_t rank;
    char path[108];
    int listener, fd;
    uint8_t in[2 * (LOCAL_FRAME_MAX + 8)];
    size_t in_used;
    /* of what came */
    local_hello_t hello;
    uint16_t port;
    unsigned ticks;
    inspan_progress_t progress;
    local_end_t end;
    uint64_t ready, left; /* views */
    local_blame_t blame;
    local_saved_t saved;
    local_ledger_t span;
    local_verdict_t verdict;
    bool full;
    /* the session's side */
    pthread_t thread;
    inspan_worker_t *worker;
    inspan_status_t opened;
    inspan_error_t err;
    sem_t go, done;               /* a user's thread that is stuck until the test lets it */
    atomic_uint_least64_t summed; /* view in which a sum was right */
    atomic_bool quit;
    inspan_cause_t cause;
    double sum;
} rank_t;

struct scene {
    char folder[32];
    uint32_t world;
    ns_t failure_timeout;
    void (*user)(rank_t *rank); /* after open, to finish */
    rank_t *ranks;
};

extern uint8_t scene_frame[LOCAL_FRAME_MAX + 8]; /* for the next frame to say */

void scene_accept_session(rank_t *rank);
local_frame_type_t scene_hear(rank_t *rank, bool ticks_too);
void scene_say(rank_t *rank, inspan_status_t encoded, const size_t *n);
void scene_say_welcome(rank_t *rank, uint16_t major);
void scene_say_end(rank_t *rank, local_frame_type_t type, inspan_status_t status, const char *text);
/* Number of a rank in the job: not its place in any view. */
uint32_t scene_number(uint32_t rank);
/* A view of the ranks in `members` (bits), said to those in `to`. */
void scene_announce(scene_t *scene, uint64_t number, uint32_t members, uint32_t to);
void scene_start(scene_t *scene, uint32_t world, void (*user)(rank_t *));
void scene_start_bound(scene_t *scene, uint32_t world, ns_t failure_timeout,
                       void (*user)(rank_t *)); /* until all are BOUND */
/* Users open view 1, of all, with next. */
void scene_start_until_ready(scene_t *scene, uint32_t world, void (*user)(rank_t *));
void scene_join(rank_t *rank);
void scene_end(scene_t *scene);
void scene_bye(rank_t *rank);

#endif
