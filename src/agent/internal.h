/*
 * The agent's shell, shared by its parts: agent.c (loop, orders), process.c (a worker's process, socket and
 * output), adopt.c (workers of an earlier life),
 * task.c (threads that fetch data and store results), log_push.c (logs to the manager), vitals.c (of the
 * machine), messages.c (protobuf). Everything here belongs to the loop thread, but where it says otherwise.
 */
#ifndef AGENT_INTERNAL_H
#define AGENT_INTERNAL_H

#include <limits.h>
#include <pthread.h>

#include "agent/agent.h"
#include "agent/core.h"
#include "agent/inbox.h"
#include "agent/link.h"
#include "agent/transfer.h"
#include "agent/watch.h"
#include "agent/worker_log.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/host/inventory.h"
#include "platform/host/loop.h"
#include "platform/os/os_spawn.h"
#include "rpc/rpc.h"

#define AGENT_PROTOCOL_MAJOR 1
#define AGENT_PROTOCOL_MINOR 2 /* 1: its workers are members of elastic jobs; 2: vitals, verdicts */

enum {
    AGENT_TASK_DONE = 10,
    AGENT_PUSH_DONE = 11,
    AGENT_SIGHT = 12
}; /* kinds of the inbox, besides link_event_t */
enum { PROCESS_BUFFER = 2 * (LOCAL_FRAME_MAX + 8) };
enum { AGENT_PUSHES = 8 }; /* logs that are sent at a time */

typedef struct agent_task agent_task_t;
typedef struct agent_push agent_push_t;

typedef struct agent {
    const agent_options_t *options;
    char folder[PATH_MAX];  /* absolute */
    char runtime[PATH_MAX]; /* where workers' sockets are */
    char node_id[64], name[INSPAN_NAME_MAX], address[64];
    uint64_t incarnation;
    inventory_t inventory;
    uint32_t threads;

    loop_t *loop;
    loop_timer_t *tick, *beat, *last_wait;
    inbox_t *inbox;
    agent_core_t *core;
    rpc_client_t *client;
    link_t *link;

    rpc_stream_t *stream; /* NULL: no session */
    bool registered, was_registered, told_down;
    bool register_due; /* once workers of an earlier life have called again */
    bool reports_due;  /* a worker's state has changed since the registration was sent */
    ns_t up_at, heartbeat, failure_timeout, beat_at;
    uint64_t beats;

    watch_t *watch;
    watch_sight_t sight; /* the newest; cores: this agent's part of them */
    bool has_sight;
    ns_t sight_at;
    double first_cores; /* usable ones at the first sight */
    pid_t watched[AGENT_WORKERS];
    uint32_t n_watched;

    agent_push_t *pushes[AGENT_PUSHES];
    pthread_mutex_t fetching; /* one data file at a time: two workers may want the same. Any thread */
    bool ending, half_closed;
    ns_t end_by, leave_by; /* leave_by: workers are handing over their work until then; 0: not */
    ns_t adopted_until;    /* registration waits that long for workers of an earlier life to call again */
    int exit_code;
    char reason[160]; /* why it ends */
} agent_t;

/* ---- agent.c */
void agent_send(agent_t *agent, const ProtobufCMessage *message); /* up; a full or broken stream is ended */

/* ---- messages.c */
void messages_send_register(agent_t *agent);
void messages_send_report(agent_t *agent, const agent_worker_t *worker);
/* What happened between the registration and its answer: all states once more, as a registration has them. */
void messages_send_due_reports(agent_t *agent);
void messages_send_heartbeat(agent_t *agent);
void messages_take_view(agent_t *agent, const Inspan__V1__View *message);
void messages_send_artifact(agent_t *agent, const agent_worker_t *worker, const agent_artifact_t *artifact);
void messages_send_note(agent_t *agent, const agent_worker_t *worker, const char *text);
void messages_send_verdict(agent_t *agent, const agent_worker_t *worker, const local_verdict_t *verdict);
void messages_send_ledger(agent_t *agent, const agent_worker_t *worker, const local_ledger_t *ledger);
void messages_take_artifact(agent_t *agent, const Inspan__V1__ArtifactAnswer *message);
void messages_take_lost(agent_t *agent, const Inspan__V1__MemberLost *message);

/* ---- vitals.c */
void vitals_take(agent_t *agent); /* AGENT_SIGHT: to workers, and up where the owner gives more or less */
void vitals_tend(agent_t *agent); /* with each tick */

/* ---- process.c */

typedef struct process {
    agent_t *agent;
    agent_worker_t *worker;
    char
        node[INSPAN_NAME_MAX]; /* the agent's name at the start: tasks read it, a new session may change it */
    Inspan__V1__AgentDown *message; /* owns order */
    Inspan__V1__StartWorker *order;
    char folder[PATH_MAX - 512]; /* of this rank */
    char log_path[PATH_MAX], socket_path[108];
    char pid_path[PATH_MAX], order_path[PATH_MAX], output_path[PATH_MAX]; /* for a later life of the agent */
    int listener, connection, output;
    loop_watch_t *listener_watch, *connection_watch, *output_watch, *end_watch;
    uint8_t *in, *out; /* (PROCESS_BUFFER) */
    size_t in_used, out_used;
    os_process_t process;
    worker_log_t *log;
    agent_task_t *task;  /* before the start, or after DONE */
    agent_task_t *store; /* an artifact */
    bool fresh;          /* the only rank of its job here: what an earlier job of that number left goes */
    uint64_t jobs_in_use[AGENT_WORKERS];
    size_t n_jobs_in_use;
    uint32_t ranks_in_use[AGENT_WORKERS]; /* of its job, here, that still run */
    size_t n_ranks_in_use;
    bool job_folder_in_use; /* by one of them */
} process_t;

/* The manager's order to start a worker; message is taken over. */
void process_start(agent_t *agent, Inspan__V1__AgentDown *message);
void process_poll_all(agent_t *agent);        /* ends that no descriptor showed (kernels without pidfd) */
extern const agent_actions_t process_actions; /* context: agent_t */

inspan_status_t process_listen(process_t *process, inspan_error_t *err); /* its local socket */
void process_watch(process_t *process);                                  /* output and end */
void process_set_paths(process_t *process);                              /* but for folder and log_path */

/* ---- adopt.c */

/* So that a later life of the agent finds the worker again: before and after its process was started. */
void adopt_record_order(const process_t *process);
void adopt_record_pid(const process_t *process);
void adopt_forget(const process_t *process);
/* A named pipe, so that a later life can read on: the worker holds it open for both ways and never sees it
 * broken. */
inspan_status_t adopt_open_output(process_t *process, int *write_end, inspan_error_t *err);

/*
 * Leftovers of an earlier life of this agent. Workers that run still are taken over; what cannot be is ended
 * (kill -9 by recorded pid and start time, never by name); half-written files of processes that are gone are
 * removed. Before the loop runs.
 */
void adopt_leftovers(agent_t *agent);

/* ---- task.c */

typedef enum task_kind { TASK_PREPARE, TASK_UPLOAD, TASK_STORE } task_kind_t;

/* Start a thread for this worker's files; its end arrives at task_finish. process stays valid until then.
 * folder: of an artifact, below the worker's; else NULL. */
inspan_status_t task_start(process_t *process, task_kind_t kind, const char *folder, inspan_error_t *err);
void task_abandon(agent_task_t *task);
void task_finish(agent_t *agent, agent_task_t *task); /* on the loop thread: tells the core */
void task_discard(agent_task_t *task);                /* joins and frees without telling */

/* ---- log_push.c */

void push_start(agent_t *agent, const Inspan__V1__LogRequest *request);
void push_finish(agent_t *agent, agent_push_t *push); /* AGENT_PUSH_DONE */
void push_cancel_all(agent_t *agent);                 /* and joins */

#endif
