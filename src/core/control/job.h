/*
 * The controller of one job, pure: events and times in, actions out. Two kinds of job: one whose members are
 * fixed (view 1; the loss of one ends it), and an elastic one, whose members change from view to view
 * (below). A view number is never used twice.
 *
 *            placed            all ranks READY            all ranks DONE
 *   QUEUED ---------> STARTING ----------------> RUNNING ----------------> DONE
 *     |                  |                          |
 *     | cancel           +-----------+--------------+
 *     v                              | cancel, or a failure whose cause is settled
 *   CANCELLED                        v
 *                                 ENDING --- all its processes gone, or ENDING's bound ---> FAILED or
 * CANCELLED
 *
 *   a rank: ASSIGNED -> STARTED -> BOUND -> READY -> RUNNING -> DONE or FAILED      (never backwards)
 *
 * Starting: every worker binds its data port; when all have, view 1 (members, key) is stored, then announced;
 * when all are READY the job runs. Bound: limits.start.
 *
 * Whose fault: a *root* (a worker that ended by a signal or by its own error, a node lost) settles the cause
 * at once, unless somebody blamed another rank before. A *blame* ("rank 2: peer lost", said by rank 0) waits
 * up to limits.settle for the root of the rank blamed; then the best evidence counts: a root of the rank
 * blamed, any root, the first blame.
 *
 * Ending a failed job: survivors are told who is lost at once (they fail their pending calls and leave by
 * themselves); who is still there after limits.leave is killed. A cancelled job: workers are asked to stop
 * between two steps, and killed after limits.cancel. A node is held until the job's process on it is gone:
 * control_job_holds.
 *
 * Elastic jobs (control_job_elastic; rules: docs/step-protocol.md). ranks[] are then the workers of the job,
 * numbered once in the order of their start: the array only grows, and one that was lost or has left never
 * returns. A view is a list of these numbers, growing (newcomers rank after all members).
 *
 *              all started are BOUND, at least min
 *   GATHERING ------------------------------------> view w (first) --- loss, leave, blame, join ---> view w+1
 * ... ^                                              |
 *       +----- view w+1 without members (fence) <------+ no full member is left: a new lineage, from the last
 *                                                        registered checkpoint
 *
 *   - A root takes its worker out at once: view w+1 goes on without it; its agent kills what is left of it. A
 *     failure that would repeat anywhere (control_repeats) ends the job, and so do limits.in_a_row losses
 *     without a committed step between them. The result that three workers could not save (their own IO error
 *     after the last step), or two on the last node left, ends it, too.
 *   - A blame alone waits limits.settle for the root. Then: a connection that was open before broke, and it
 *     is the first time since a step was committed: the same members in a new view. Else the member that most
 *     others blame goes; equal: the one whose agent broke, the slower, the higher number.
 *   - A leaver goes when it has said LEFT in the newest view (G3: a newer one may have taken it back), and
 *     never as the last one with all weights, as far as is known here.
 *   - A member that the job is predicted to be faster without (control_job_leave_out) is asked to leave, one
 * at a time, where the others are enough. Its node is not taken again for 1, 2, 4, ... 60 min, unless too few
 *     are left otherwise.
 *   - Newcomers (control_job_wants, control_job_grow) join when they are BOUND and the present view is open
 *     on all its members, in the order of their numbers; one that does not bind in time is dropped.
 *   - Fewer than min are left: no view until newcomers are BOUND (once the result is registered: who is left
 * ends it).
 *   - The end: a member is DONE and the result is registered, or all members are DONE.
 *
 * After every call the owner carries out job->actions in their order, then calls control_job_acted. When an
 * action that stores fails: control_job_unstored. Nothing blocks; single thread; all memory is the job's.
 */
#ifndef CORE_CONTROL_JOB_H
#define CORE_CONTROL_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/comm.h>

#include "base/units.h"
#include "base/vec.h"

#define CONTROL_REASON_MAX   512
#define CONTROL_WORLD_MAX    256            /* members of one view */
#define CONTROL_STRAGGLERS   (2 * NS_PER_S) /* elastic: for the last words of members once all is done */
#define CONTROL_ELASTIC_MAX  64             /* of an elastic job: the step machine's cap */
#define CONTROL_RANKS_MAX    1024           /* workers that a job ever has */
#define CONTROL_LEFT_OUT_MAX 64             /* nodes of which a job remembers that */
#define CONTROL_STEPS_NEAR   3 /* so close to its end a job takes no newcomer: it would only listen */

typedef enum control_state {
    CONTROL_QUEUED,
    CONTROL_STARTING,
    CONTROL_RUNNING,
    CONTROL_ENDING,
    CONTROL_DONE,
    CONTROL_FAILED,
    CONTROL_CANCELLED
} control_state_t;

typedef enum control_rank_state {
    CONTROL_RANK_ASSIGNED,
    CONTROL_RANK_STARTED,
    CONTROL_RANK_BOUND,
    CONTROL_RANK_READY,
    CONTROL_RANK_RUNNING,
    CONTROL_RANK_LEFT, /* handed over its work; elastic jobs only */
    CONTROL_RANK_DONE,
    CONTROL_RANK_FAILED /* elastic: or taken out; its process may still exist */
} control_rank_state_t;

typedef struct control_rank {
    uint64_t node; /* the manager's handle of the node */
    char node_name[INSPAN_NAME_MAX], node_id[INSPAN_NAME_MAX];
    char address[INSPAN_NAME_MAX];
    control_rank_state_t state;
    uint16_t port;
    uint32_t pid;
    uint64_t incarnation; /* of the worker */
    bool attached;        /* its agent's stream is up */
    bool alive;           /* its process may exist */

    /* elastic jobs */
    bool full;          /* holds weights and optimiser state whole */
    bool broke;         /* its agent's stream broke in this life of the manager */
    bool leaving;       /* was asked to leave */
    bool unsaved;       /* failed to save the result */
    int32_t blames;     /* whom it blames for the present view; -1 nobody in particular, CONTROL_NO_BLAME */
    uint64_t view;      /* newest whose communicator it had open */
    uint64_t left_view; /* said LEFT in it; counts only while it is the newest (G3) */
    ns_t until;         /* BOUND is due, or (taken out, alive) the next kill */
    double speed;       /* samples per second */
    char why[160];      /* it was taken out: "killed by signal 9 (Killed)" */
} control_rank_t;

#define CONTROL_NO_BLAME (-2)

typedef enum control_action_kind {
    CONTROL_STORE,      /* the job and all its ranks, durably, before the actions that follow */
    CONTROL_NOTE,       /* the same, but what follows does not depend on it */
    CONTROL_NOTE_RANK,  /* one rank only */
    CONTROL_STORE_VIEW, /* job->view with its members, durably, before the actions that follow */
    CONTROL_START_WORKER,
    CONTROL_ANNOUNCE_VIEW, /* to one rank */
    CONTROL_MEMBER_LOST,   /* job->cause, to one rank */
    CONTROL_STOP_WORKER,   /* one rank; kill: by signal */
    CONTROL_ASK_TO_LEAVE,  /* one rank */
    CONTROL_LOST_WORKER,   /* one rank was lost by its machine's or its own doing: its node cools down */
    CONTROL_TELL,          /* job->news, for people */
    CONTROL_CHANGED,       /* the job's state changed: tell who watches */
    CONTROL_ENDED          /* DONE, FAILED or CANCELLED for good; exactly once */
} control_action_kind_t;

typedef struct control_action {
    control_action_kind_t kind;
    uint32_t rank;
    bool kill;
} control_action_t;

typedef struct control_limits {
    ns_t start;        /* from placement to all READY */
    ns_t settle;       /* blame to verdict; elastic: also from the first newcomer BOUND to its view */
    ns_t leave;        /* failed: verdict to kill */
    ns_t cancel;       /* cancelled: request to kill */
    ns_t gone;         /* kill to the end without confirmation; also how often a kill is repeated */
    ns_t opened;       /* elastic: so long a view that does not open keeps newcomers waiting */
    uint32_t in_a_row; /* elastic: losses (at most one a second counts) without a step between */
} control_limits_t;

#define CONTROL_LIMITS_DEFAULT                                                                               \
    (control_limits_t)                                                                                       \
    {                                                                                                        \
        60 * NS_PER_S, 500 * NS_PER_MS, 250 * NS_PER_MS, 10 * NS_PER_S, 3 * NS_PER_S, 10 * NS_PER_S, 5       \
    }
#define CONTROL_SETTLE_ELASTIC (100 * NS_PER_MS)

/* The members of a view by their numbers, growing. None: a fence before a new lineage. */
typedef struct control_view {
    uint64_t number; /* 0: none yet */
    bool first;      /* of a lineage: every member starts full, nobody reconciles */
    uint32_t n;
    uint32_t members[CONTROL_WORLD_MAX];
} control_view_t;

/* A node that the job did without. */
typedef struct control_left_out {
    uint64_t node;
    char node_name[INSPAN_NAME_MAX];
    char reason[160];
    uint32_t times;
    uint64_t step;     /* the job's, the last time */
    ns_t since, until; /* not used before, unless too few are left */
    double power;      /* the owner's: what the node could do when it was let go */
} control_left_out_t;

typedef struct control_job {
    uint64_t id;
    control_state_t state;
    control_state_t outcome; /* of ENDING: FAILED or CANCELLED */
    char reason[CONTROL_REASON_MAX];
    bool has_cause;
    inspan_cause_t cause;
    uint32_t world;
    control_rank_t *ranks;
    uint64_t view; /* newest; 0: none yet */
    control_limits_t limits;
    bool elastic;
    uint32_t min_nodes, max_nodes;
    control_view_t members; /* of the newest view; elastic jobs */
    uint64_t step, steps;   /* as the reports say: the last one committed, of how many; 0 unknown */
    uint32_t workers_lost;
    bool has_result;               /* it is registered */
    ns_t done_at;                  /* ... and a member said DONE; 0: not yet */
    char news[CONTROL_REASON_MAX]; /* what the newest view changed; "": nothing to say */
    vec_of(control_action_t) actions;
    vec_of(control_left_out_t) left_out;

    /* the rest is the controller's own */
    ns_t deadline;  /* STARTING: all ready; ENDING: kill, then end; after it: the next kill */
    ns_t settle_at; /* evidence is weighed then; 0: none yet */
    bool killed, unstored;
    ns_t retry_at;
    inspan_cause_t blame, root;
    bool has_root;
    bool changed;                     /* elastic: a member was lost or left: the next view is due */
    bool retry;                       /* the next view has the same members */
    bool waiting;                     /* fewer than min */
    bool retried;                     /* the same members had another view since a step was committed */
    uint32_t growing;                 /* newest ranks that are not stored yet */
    bool fence;                       /* the view without members could not be stored yet */
    uint64_t last_view;               /* the highest number ever tried */
    char pending[CONTROL_REASON_MAX]; /* of the news of the next view */
    uint32_t in_a_row;
    ns_t counted_at; /* the last loss that counted */
    ns_t issued_at, join_at, again_at;
    ns_t stuck_at;         /* since when nobody is known to have the whole model; 0: somebody is */
    control_view_t before; /* the view before `members`, should that one not be stored */
} control_job_t;

/* One report of a worker's state, from the agent of `node`. */
typedef struct control_report {
    uint64_t node;
    uint32_t rank;
    control_rank_state_t state;
    uint16_t port;
    uint32_t pid;
    uint64_t incarnation;
    uint64_t view;
    int32_t exit_code, exit_signal;
    bool has_cause;
    inspan_cause_t cause;
    bool full, has_blame;
    uint64_t left_view; /* of LEFT */
    uint64_t blame_view;
    inspan_cause_t blame;
    uint64_t step, steps; /* 0: not said */
    double speed;
} control_report_t;

/* A job in QUEUED. NO_MEMORY. */
inspan_status_t control_job_open(control_job_t *job, uint64_t id, const control_limits_t *limits);
void control_job_close(control_job_t *job);

/* QUEUED, or just opened: members may change, between min and max (at most CONTROL_ELASTIC_MAX). */
void control_job_elastic(control_job_t *job, uint32_t min_nodes, uint32_t max_nodes);

/* QUEUED -> STARTING. ranks (world) is copied: node, node_name, address of each. INVALID (not queued, no
 * ranks), NO_MEMORY: nothing changed. */
inspan_status_t control_job_start(control_job_t *job, const control_rank_t *ranks, uint32_t world, ns_t now);

/* What the registry knew about an unfinished job, after a restart of the manager; no agent is attached yet.
 * view: the newest stored; NULL: none. Elastic: after control_job_elastic; ranks say `full` as it was stored;
 * members get the view again as their agents attach. Its actions are to be carried out. NO_MEMORY. */
inspan_status_t control_job_restore(control_job_t *job, control_state_t state, control_state_t outcome,
                                    const control_rank_t *ranks, uint32_t world, const control_view_t *view,
                                    ns_t now);

/* After control_job_restore: what the registry knows of the ranks that had FAILED, so that the verdict is
 * found again. Only the best evidence counts; a blame waits for the agent of the rank blamed, at most
 * limits.start. */
void control_job_recall(control_job_t *job, const control_report_t *reports, uint32_t n, ns_t now);

void control_job_report(control_job_t *job, const control_report_t *report, ns_t now);

/* The agent of node attached (again), with reports about the workers of this job that it still has; those
 * that it does not have any more have ended unseen. */
void control_job_node_attached(control_job_t *job, uint64_t node, const control_report_t *reports, uint32_t n,
                               ns_t now);
void control_job_node_broke(control_job_t *job, uint64_t node);
/* Lost or left for good; text: "agent silent for 5.0 s". */
void control_job_node_gone(control_job_t *job, uint64_t node, const char *text, ns_t now);

/* Elastic: how many more nodes the job would take now; 0 near its end. Ask again after each control_job_grow.
 */
uint32_t control_job_wants(const control_job_t *job);
/* A worker more, with the next number: node, its names and address are copied. INVALID: not wanted, or the
 * node is held or avoided by this job; NO_MEMORY. */
inspan_status_t control_job_grow(control_job_t *job, const control_rank_t *rank, ns_t now);
/* Elastic: its worker on this node is to hand over its work and go. Repeated as its agent attaches again. */
void control_job_leave(control_job_t *job, uint64_t node, ns_t now);
/* Elastic: the job is predicted to be faster without this member. true: it is asked to leave, and its node is
 * in left_out; false: it must stay, or leaves already, or this is no time for it. */
bool control_job_leave_out(control_job_t *job, uint32_t r, const char *reason, ns_t now);
/* As left_out says, after a restart of the manager. false: no memory. */
bool control_job_keep_out(control_job_t *job, const control_left_out_t *entry);
/* It can do more than when it was let go: it is taken again when a sixth of its pause is over, so that one
 * that comes and goes is not let in and out each time. */
void control_job_take_back(control_job_t *job, uint64_t node);
bool control_job_avoids(const control_job_t *job, uint64_t node, ns_t now); /* would not take this node now */
/* The final model is registered. */
void control_job_result(control_job_t *job, ns_t now);

void control_job_cancel(control_job_t *job, const char *text, ns_t now); /* an ended job: no effect */
void control_job_tick(control_job_t *job, ns_t now);

void control_job_acted(control_job_t *job);
/* A store failed. true: the remaining actions must be dropped (call control_job_acted, then look at the new
 * ones). */
bool control_job_unstored(control_job_t *job, control_action_kind_t kind, const char *text, ns_t now);

bool control_job_over(const control_job_t *job);  /* DONE, FAILED, CANCELLED */
bool control_job_quiet(const control_job_t *job); /* over and no process left: needs no more ticks */
bool control_job_holds(const control_job_t *job, uint64_t node);
/* Is this worker a member of the newest view? Not elastic: every rank is. */
bool control_job_member(const control_job_t *job, uint32_t rank);
/* Workers that are neither out nor done. */
uint32_t control_job_active(const control_job_t *job);
/* A failure of a worker's own that any other machine would meet, too. */
bool control_repeats(inspan_status_t status);

/* For people and tools: ENDING, and an end that is not stored yet, read "running". */
const char *control_job_text(const control_job_t *job);
const char *control_state_text(control_state_t state);
const char *control_rank_state_text(control_rank_state_t state);

#endif
