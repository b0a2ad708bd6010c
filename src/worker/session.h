/*
 * The session's inside, shared by its files:
 *
 *   session.c  life: meeting the agent, the end, the public calls
 *   socket.c   the agent's socket: frames out and in, calling again, ticks
 *   views.c    the source of views: announced, opened, broken
 *   outbox.c   what the agent must get even where it is away for a while: ledger, artifacts, verdicts
 *
 * The I/O thread owns the local socket's receive side and the timer; frames are sent by whoever has something
 * to say, under `mutex`. Lock order: mutex, then what comm_io and the communicator lock. comm_poison and
 * inspan_comm_abort are called under the mutex (so that nobody closes the communicator meanwhile);
 * comm_add_failure_handler and comm_remove_failure_handler are not: handlers take the mutex.
 *
 *   open:   HELLO -> WELCOME; the first view is asked for -> BOUND, VIEW ->, communicator -> READY
 *   then:   TICK each fifth of failure_timeout, within 200 ms where there is new progress; VIEW, STOP, LEAVE
 *           and LOST come in; BLAME where a view's communicator is poisoned or cannot be opened
 *   end:    FAILED or DONE -> BYE
 *
 * A communicator's end is BLAME, and the next view is waited for.
 *
 * Where the socket breaks the session goes on and calls again, for failure_timeout; it then says again all
 * that the agent needs (port, ready, blame, ledger, end). After that time the agent counts as gone.
 */
#ifndef WORKER_SESSION_H
#define WORKER_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "comm/comm.h"
#include "platform/os/os_cond.h"
#include "platform/wire/local.h"
#include "worker/views.h"
#include "worker/worker_internal.h"

enum {
    SESSION_BUFFER = 2 * (LOCAL_FRAME_MAX + 8),
    SESSION_RESERVE = LOCAL_FRAME_MAX / 2, /* of the buffer: the ledger leaves it to what cannot wait */
    SESSION_SPANS = 256,
    SESSION_SAVED = 4,
    SESSION_VERDICTS = 16,
    SESSION_RETIRED = 4
};

typedef struct session_span { /* of the ledger, as a frame */
    uint64_t first_step;
    uint8_t *frame;
    size_t bytes;
    bool unsent;
} session_span_t;

typedef struct session_artifact {
    local_saved_t saved;
    worker_registered_t answer;
    bool answered;
} session_artifact_t;

struct inspan_worker {
    comm_io_t *io;
    uint32_t timer;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint64_t incarnation;
    comm_listener_t *listener; /* over all views */
    char backend[16];          /* of the views' communicators; "": auto */
    int cancel; /* eventfd: readable while the view that is being opened is not wanted any more */
    inspan_views_t views;
    void (*wake)(void *argument); /* under mutex: of views->watch */
    void *wake_argument;
    atomic_bool cancelled, leaving;
    atomic_bool view_changed; /* `next` must be called */

    pthread_mutex_t mutex;
    os_cond_t changed;
    /* all below: under mutex */
    int fd;       /* -1: not connected */
    bool closing; /* the socket is the closing thread's */
    bool welcomed, bound, bye, agent_gone;
    bool over; /* this rank is through: what the communicator does from now on is no failure */
    local_welcome_t welcome;
    uint16_t port;
    bool has_view;
    local_view_t announced; /* the newest */
    local_view_t open;      /* the one whose communicator is opened, or open; members: may be NULL */
    uint32_t *numbers;      /* (open.world) */
    inspan_comm_t *comm;    /* of `open`; NULL: none */
    inspan_comm_t *retired[SESSION_RETIRED]; /* closing; the driver's thread alone */
    uint32_t n_retired;
    uint64_t ready; /* view told by READY; 0: none */
    bool has_lost;  /* nothing goes on: the agent is gone */
    inspan_cause_t lost;
    inspan_cause_t unopen; /* why the communicator did not open; status OK: no peer's doing */
    bool has_blame, full, full_told;
    uint64_t left_view; /* LEFT was said in it, and it is the newest; 0: no */
    local_blame_t blame;
    bool has_vitals;
    local_vitals_t vitals; /* the newest */
    inspan_progress_t progress;
    bool progress_changed;
    session_span_t spans[SESSION_SPANS]; /* the newest, oldest first */
    uint32_t n_spans;
    uint64_t lost_spans;
    session_artifact_t artifacts[SESSION_SAVED]; /* oldest first */
    uint32_t n_artifacts;
    local_verdict_t verdicts[SESSION_VERDICTS]; /* the newest, oldest first */
    uint32_t n_verdicts;
    local_frame_type_t end_type; /* 0: nothing said yet */
    local_end_t end;
    inspan_error_t refusal; /* status not OK: the agent will not have this worker */
    ns_t lost_at, ticked_at;
    size_t out_used;
    uint8_t out[SESSION_BUFFER];
    uint8_t frame[LOCAL_FRAME_MAX + 8];

    /* the I/O thread's */
    size_t in_used;
    uint8_t in[SESSION_BUFFER];
    local_end_t received;
};

/* socket.c; with the mutex held where it says so */
int session_connect(const char *path);
bool session_adopt(inspan_worker_t *worker, int fd);
void session_on_timer(void *context, ns_t now);
void session_send(inspan_worker_t *worker, inspan_status_t encoded, size_t bytes); /* frame; mutex held */
void session_send_bound(inspan_worker_t *worker);                                  /* mutex held */
void session_send_ready(inspan_worker_t *worker);                                  /* mutex held */
void session_send_blame(inspan_worker_t *worker);                                  /* mutex held */
void session_send_state(inspan_worker_t *worker);                                  /* mutex held */
void session_send_left(inspan_worker_t *worker);                                   /* mutex held */
void session_send_tick(inspan_worker_t *worker, ns_t now);                         /* mutex held */
/* The first end counts. cause NULL: this rank's own. Its ranks are numbers. Mutex held. */
void session_say_end(inspan_worker_t *worker, inspan_status_t status, const inspan_cause_t *cause,
                     const char *text);

/* views.c */
void views_fill(inspan_worker_t *worker);                                /* worker->views */
void views_announced(inspan_worker_t *worker, const local_view_t *view); /* taken over; mutex held */
void views_wake(inspan_worker_t *worker); /* who watches the views; mutex held */
void views_disturb(inspan_worker_t *worker, const inspan_cause_t *cause); /* end what is open or opened; mutex
                                                                             held */
void views_close(inspan_worker_t *worker);
void views_to_numbers(const local_view_t *view, inspan_cause_t *cause); /* dense ranks -> numbers */
int32_t views_dense(const local_view_t *view, int32_t number);          /* -1: no member */

/* outbox.c; all with the mutex held */
void outbox_ledger(inspan_worker_t *worker, const local_ledger_t *span);
bool outbox_saved(inspan_worker_t *worker, const local_saved_t *saved);
void outbox_registered(inspan_worker_t *worker, const local_registered_t *registered);
bool outbox_has_answer(const inspan_worker_t *worker);
bool outbox_answer(inspan_worker_t *worker, worker_registered_t *answer);
void outbox_send(inspan_worker_t *worker); /* what of the ledger is unsent, as far as there is room */
bool outbox_is_sent(const inspan_worker_t *worker);
void outbox_verdict(inspan_worker_t *worker, const local_verdict_t *verdict);
void outbox_say_again(inspan_worker_t *worker); /* to an agent that called again */
void outbox_free(inspan_worker_t *worker);

#endif
