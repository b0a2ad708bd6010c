/*
 * The agent's core: what becomes of each worker. Pure: events and the time come in, actions go out through a
 * table; no socket, clock, thread, process or protobuf here. One thread at a time.
 *
 *              start                 spawned               HELLO                BOUND
 *      (none) ------> PREPARING ------------> STARTING ------------> WELCOMED ---------> BOUND
 *                        |                       |                       |                 | READY
 *                        |                       |                       |                 v
 *                        | stop, cannot          | exit, silence, stop   |   TICK        READY
 *                        v                       v                       v   with steps    |
 *                      GONE <------------- ENDING <------------------- RUNNING <-----------+
 *                        ^   process gone          FAILED, exit, silence    | DONE
 *                        +------------------- FINISHING <-------------------+
 *                          process gone and results at the manager
 *
 * A failure is reported at once, on the way into ENDING, and once more when the process is gone (pid 0: the
 * node is free); DONE only when the process is gone and the results are safe. A worker in GONE is kept until
 * its last report has certainly reached the manager: a link that stays up for a failure_timeout after the
 * report carried it.
 *
 * Silence counts from the last frame, on this machine's monotonic clock; time in which the agent itself did
 * not run (a suspended laptop, SIGSTOP) is not held against its workers.
 */
#ifndef AGENT_CORE_H
#define AGENT_CORE_H

#include <inspan/worker.h>

#include "base/units.h"
#include "platform/os/os_spawn.h"
#include "platform/wire/local.h"

typedef enum agent_phase {
    AGENT_PREPARING, /* data is fetched, the folder is made: no process */
    AGENT_STARTING,  /* a process, no HELLO yet */
    AGENT_WELCOMED,
    AGENT_BOUND, /* has its data port, waits for the view */
    AGENT_READY,
    AGENT_RUNNING,
    AGENT_FINISHING, /* said DONE */
    AGENT_ENDING,    /* failure reported, process not gone yet */
    AGENT_GONE,
} agent_phase_t;

typedef enum agent_state { /* what the manager is told; the numbers of the proto's WorkerState */
                           AGENT_STATE_STARTED = 1,
                           AGENT_STATE_BOUND,
                           AGENT_STATE_READY,
                           AGENT_STATE_RUNNING,
                           AGENT_STATE_DONE,
                           AGENT_STATE_FAILED,
                           AGENT_STATE_LEFT, /* handed over its work, still there */
} agent_state_t;

enum { AGENT_RESULTS = 64, AGENT_WORKERS = 64, AGENT_ARTIFACTS = 6, AGENT_SPANS = 256, AGENT_VERDICTS = 8 };

typedef struct agent_result {
    char name[256];
    char hash[33];
    uint64_t bytes;
} agent_result_t;

typedef enum agent_artifact_stage {
    AGENT_ARTIFACT_QUEUED,
    AGENT_ARTIFACT_STORING,
    AGENT_ARTIFACT_STORED, /* the manager has its files; its answer to the registration is awaited */
    AGENT_ARTIFACT_ANSWERED
} agent_artifact_stage_t;

typedef struct agent_artifact { /* a checkpoint, or the result */
    local_saved_t saved;
    agent_artifact_stage_t stage;
    inspan_status_t status; /* the answer, with its text */
    char text[256];
    agent_result_t *files; /* (n_files) STORED */
    uint32_t n_files;
} agent_artifact_t;

typedef struct agent_span { /* of the ledger, as the frame's body */
    uint64_t first_step;
    uint8_t *body;
    size_t bytes;
    bool sent;
} agent_span_t;

/* One worker. The shell reads it in actions; only the core writes, but for `shell` and what spawn fills in.
 */
typedef struct agent_worker {
    uint64_t serial; /* never used twice by one agent: for answers that come late */
    uint64_t job;
    uint32_t rank;
    ns_t failure_timeout;
    agent_phase_t phase;
    void *shell; /* given at start */

    uint32_t pid; /* 0: no process */
    uint64_t incarnation;
    uint16_t minor; /* of its local protocol; 0: not known yet */
    uint16_t port;
    uint64_t view;      /* the newest that came from the manager */
    uint64_t open_view; /* whose communicator it has open */
    bool connected;
    inspan_progress_t progress;
    bool has_progress;

    agent_state_t state; /* last one to tell */
    bool failed;
    inspan_cause_t cause; /* failed: cause.rank is this rank if the fault is here */
    char text[INSPAN_ERROR_TEXT];
    char *summary; /* of DONE */
    agent_result_t *results;
    uint32_t n_results;
    int exit_code, exit_signal; /* -1 and 0 until it exits */

    /* elastic jobs */
    bool elastic; /* it has said STATE */
    bool full, has_blame;
    local_blame_t blame; /* of the newest view */
    uint64_t left_view;  /* LEFT: in which view; an older one than the newest is void */
    agent_artifact_t artifacts[AGENT_ARTIFACTS];
    uint32_t n_artifacts;
    agent_span_t spans[AGENT_SPANS]; /* the newest */
    uint32_t n_spans;
    bool lost_spans;                          /* told once */
    local_verdict_t verdicts[AGENT_VERDICTS]; /* the newest, oldest first */
    uint32_t n_verdicts;

    local_vitals_t vitals; /* what it was told last, */
    ns_t vitals_at;        /* and when; 0: nothing */

    /* the core's own */
    ns_t since, heard;     /* of the phase; last frame */
    ns_t term_at, kill_at; /* when to send SIGTERM, SIGKILL; 0: not */
    ns_t progress_sent;
    ns_t told_at; /* when the last report went out */
    bool progress_due, stopping, uploaded, uploading, preparing, warned;
    bool leaving, storing, saves;
    bool adopted; /* of an earlier life of the agent, and has not told yet all that it has to tell again */
    char stop_reason[256];
    uint8_t *view_frame; /* kept for a worker that is not bound yet */
    size_t view_bytes;
} agent_worker_t;

/* All are called within an event; none may call the core. */
typedef struct agent_actions {
    void (*report)(void *context, const agent_worker_t *worker); /* to the manager, if there is a link */
    /* Begin what ends in agent_core_prepared and agent_core_uploaded; not OK: it did not begin, err says why.
     */
    inspan_status_t (*prepare)(void *context, agent_worker_t *worker, inspan_error_t *err);
    inspan_status_t (*upload)(void *context, agent_worker_t *worker, inspan_error_t *err);
    /* The same of an artifact's folder, which ends in agent_core_stored; besides an upload none goes on. */
    inspan_status_t (*store)(void *context, agent_worker_t *worker, const agent_artifact_t *artifact,
                             inspan_error_t *err);
    void (*abandon)(void *context, agent_worker_t *worker); /* hurry what goes on of these */
    inspan_status_t (*spawn)(void *context, agent_worker_t *worker,
                             inspan_error_t *err); /* fills worker->pid */
    void (*send)(void *context, agent_worker_t *worker, const uint8_t *frame, size_t bytes);
    void (*signal)(void *context, agent_worker_t *worker, int signal); /* to its whole session */
    /* To the manager; only while there is a link. */
    void (*register_artifact)(void *context, const agent_worker_t *worker, const agent_artifact_t *artifact);
    void (*ledger)(void *context, const agent_worker_t *worker, const local_ledger_t *span);
    void (*note)(void *context, const agent_worker_t *worker, const char *text);
    void (*verdict)(void *context, const agent_worker_t *worker, const local_verdict_t *verdict);
    void (*release)(void *context, agent_worker_t *worker); /* about to be forgotten: free shell */
} agent_actions_t;

typedef struct agent_core agent_core_t;

agent_core_t *agent_core_open(const agent_actions_t *actions, void *context); /* NULL: out of memory */
void agent_core_close(agent_core_t *core);                                    /* releases all */

/* What WELCOME says. Before the first start. */
void agent_core_configure(agent_core_t *core, const char *node, const char *address, uint32_t threads,
                          uint16_t first_port, uint16_t last_port);

/* ---- Events: orders of the manager ----------------------------------------------------------- */

/*
 * Run rank of job. shell is the core's afterwards, until release; where the job's rank is here already, it is
 * reported again (a repeated order) and EXISTS comes back; LIMIT: too many workers (reported as failed). Then
 * shell stays the caller's.
 */
inspan_status_t agent_core_start(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank,
                                 ns_t failure_timeout, void *shell);
/* rank: the worker, by its number in the job; view->rank is its place among the members. */
/*
 * A worker of an earlier life of this agent, whose process runs still: it is expected to call again within
 * its failure_timeout. shell is the core's afterwards. EXISTS, LIMIT: it stays the caller's.
 */
inspan_status_t agent_core_adopt(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank,
                                 ns_t failure_timeout, uint32_t pid, void *shell, agent_worker_t **worker);
/* Have all adopted workers told again what the manager must know (or ended)? */
bool agent_core_settled(const agent_core_t *core);
void agent_core_view(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, const local_view_t *view);
void agent_core_lost(agent_core_t *core, ns_t now, uint64_t job, const inspan_cause_t *cause);
void agent_core_stop(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, bool kill,
                     const char *reason);
/* Ask it to hand over its work: LEAVE; its LEFT is reported. One that does not train yet is stopped. */
void agent_core_leave(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, const char *reason);
/* All of elastic jobs; others are stopped. true: some have been asked. */
bool agent_core_leave_all(agent_core_t *core, ns_t now, const char *reason);
void agent_core_registered(agent_core_t *core, ns_t now, uint64_t job, uint32_t rank, uint64_t step,
                           bool result, inspan_status_t status, const char *text);
void agent_core_stop_all(agent_core_t *core, ns_t now, const char *reason); /* SIGTERM, 2 s, SIGKILL */

/* How this machine does: passed on to its workers. allowed 0: those of elastic jobs are asked to leave. */
void agent_core_vitals(agent_core_t *core, ns_t now, const local_vitals_t *vitals);

/* The link to the manager came up (all in agent_core_each was just told) or went down. */
void agent_core_link(agent_core_t *core, ns_t now, bool up);

/* ---- Events: of a worker --------------------------------------------------------------------- */

/* By serial, so that an answer that comes after the worker is forgotten does no harm. */
void agent_core_prepared(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                         const char *text);
/* results are copied. A failed upload makes the job's results incomplete: FAILED. */
void agent_core_uploaded(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                         const char *text, const agent_result_t *results, uint32_t n);

/* files are copied. The artifact that was being stored is, or is not. */
void agent_core_stored(agent_core_t *core, ns_t now, uint64_t serial, inspan_status_t status,
                       const char *text, const agent_result_t *files, uint32_t n);

/* A whole frame. CORRUPT, VERSION: the connection must be closed (the worker has been failed). */
inspan_status_t agent_core_frame(agent_core_t *core, ns_t now, agent_worker_t *worker,
                                 local_frame_type_t type, const uint8_t *body, size_t bytes);
void agent_core_disconnected(agent_core_t *core, ns_t now, agent_worker_t *worker);
/* Its process is gone, its session too. All that it sent before must have been given to agent_core_frame. */
void agent_core_exited(agent_core_t *core, ns_t now, agent_worker_t *worker, const os_exit_t *result);

/* Every 100 ms or so: silence, graces, held-back progress. */
void agent_core_tick(agent_core_t *core, ns_t now);

/* ---- Looking --------------------------------------------------------------------------------- */

/* Those to register with: NULL at the end. worker NULL: the first. */
agent_worker_t *agent_core_each(agent_core_t *core, const agent_worker_t *worker);
agent_worker_t *agent_core_by_serial(agent_core_t *core, uint64_t serial);
agent_worker_t *agent_core_find(agent_core_t *core, uint64_t job, uint32_t rank);
ns_t agent_core_failure_timeout(const agent_core_t *core); /* the shortest of its workers' jobs; INT64_MAX */
uint32_t agent_core_running(const agent_core_t *core);     /* processes, prepares and uploads that go on */

#endif
