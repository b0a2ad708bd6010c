/*
 * The controller of one job, pure: events and times in, actions out. Members are fixed here (view 1); a view
 * number is never used twice, so that changing members can follow.
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

#define CONTROL_REASON_MAX 512
#define CONTROL_WORLD_MAX  256

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
    CONTROL_RANK_DONE,
    CONTROL_RANK_FAILED
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
} control_rank_t;

typedef enum control_action_kind {
    CONTROL_STORE,      /* the job and all its ranks, durably, before the actions that follow */
    CONTROL_NOTE,       /* the same, but what follows does not depend on it */
    CONTROL_NOTE_RANK,  /* one rank only */
    CONTROL_STORE_VIEW, /* job->view with its members, durably, before the actions that follow */
    CONTROL_START_WORKER,
    CONTROL_ANNOUNCE_VIEW, /* to one rank */
    CONTROL_MEMBER_LOST,   /* job->cause, to one rank */
    CONTROL_STOP_WORKER,   /* one rank; kill: by signal */
    CONTROL_CHANGED,       /* the job's state changed: tell who watches */
    CONTROL_ENDED          /* DONE, FAILED or CANCELLED for good; exactly once */
} control_action_kind_t;

typedef struct control_action {
    control_action_kind_t kind;
    uint32_t rank;
    bool kill;
} control_action_t;

typedef struct control_limits {
    ns_t start;  /* from placement to all READY */
    ns_t settle; /* blame to verdict */
    ns_t leave;  /* failed: verdict to kill */
    ns_t cancel; /* cancelled: request to kill */
    ns_t gone;   /* kill to the end without confirmation; also how often a kill is repeated */
} control_limits_t;

#define CONTROL_LIMITS_DEFAULT                                                                               \
    (control_limits_t)                                                                                       \
    {                                                                                                        \
        60 * NS_PER_S, 500 * NS_PER_MS, 250 * NS_PER_MS, 10 * NS_PER_S, 3 * NS_PER_S                         \
    }

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
    vec_of(control_action_t) actions;

    /* the rest is the controller's own */
    ns_t deadline;  /* STARTING: all ready; ENDING: kill, then end; after it: the next kill */
    ns_t settle_at; /* evidence is weighed then; 0: none yet */
    bool killed, unstored;
    ns_t retry_at;
    inspan_cause_t blame, root;
    bool has_root;
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
} control_report_t;

/* A job in QUEUED. NO_MEMORY. */
inspan_status_t control_job_open(control_job_t *job, uint64_t id, const control_limits_t *limits);
void control_job_close(control_job_t *job);

/* QUEUED -> STARTING. ranks (world) is copied: node, node_name, address of each. INVALID (not queued, no
 * ranks), NO_MEMORY: nothing changed. */
inspan_status_t control_job_start(control_job_t *job, const control_rank_t *ranks, uint32_t world, ns_t now);

/* What the registry knew about an unfinished job, after a restart of the manager; no agent is attached yet.
 * Its actions are to be carried out. NO_MEMORY. */
inspan_status_t control_job_restore(control_job_t *job, control_state_t state, control_state_t outcome,
                                    const control_rank_t *ranks, uint32_t world, uint64_t view, ns_t now);

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

void control_job_cancel(control_job_t *job, const char *text, ns_t now); /* an ended job: no effect */
void control_job_tick(control_job_t *job, ns_t now);

void control_job_acted(control_job_t *job);
/* A store failed. true: the remaining actions must be dropped (call control_job_acted, then look at the new
 * ones). */
bool control_job_unstored(control_job_t *job, control_action_kind_t kind, const char *text, ns_t now);

bool control_job_over(const control_job_t *job);  /* DONE, FAILED, CANCELLED */
bool control_job_quiet(const control_job_t *job); /* over and no process left: needs no more ticks */
bool control_job_holds(const control_job_t *job, uint64_t node);

/* For people and tools: ENDING, and an end that is not stored yet, read "running". */
const char *control_job_text(const control_job_t *job);
const char *control_state_text(control_state_t state);
const char *control_rank_state_text(control_rank_state_t state);

#endif
