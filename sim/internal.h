/* Between the files of the simulator. */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include <inspan/status.h>

#include "core/collective/schedule.h"
#include "core/control/job.h"
#include "core/control/liveness.h"
#include "core/step/elastic.h"
#include "core/step/planted.h"
#include "sim/sim.h"

/* ---- Processes: the manager, an agent a node, workers ---------------------------------------- */

typedef uint32_t sim_process_t;
enum { SIM_MANAGER = 0, SIM_FIRST_WORKER = 16, SIM_PROCESSES = SIM_FIRST_WORKER + SIM_WORKERS };
static inline sim_process_t sim_agent(uint32_t host)
{
    return host; /* 1 .. SIM_NODES */
}
static inline sim_process_t sim_worker_process(uint32_t slot)
{
    return SIM_FIRST_WORKER + slot;
}

typedef struct sim_life {
    bool alive;
    uint32_t life;     /* counts restarts: what was addressed to an earlier life is dropped */
    uint32_t host;     /* */
    ns_t frozen_until; /* 0: runs */
} sim_life_t;

/* ---- Events ------------------------------------------------------------------------------------ */

typedef enum sim_event_type {
    SIM_EV_PIPE,         /* a: pipe, b: lane */
    SIM_EV_RESET,        /* a: pipe: its sender learns that the other side is gone */
    SIM_EV_AGENT_TICK,   /* a: host */
    SIM_EV_MANAGER_TICK, /* */
    SIM_EV_CONNECT,      /* a: host: its agent tries the manager */
    SIM_EV_WORK,         /* a: slot, b: token: the next part of its computation */
    SIM_EV_WORKER_TICK,  /* a: slot */
    SIM_EV_SPAWNED,      /* a: slot: its process runs */
    SIM_EV_EXITED,       /* a: slot: its agent sees that it is gone */
    SIM_EV_WRITE,        /* a: slot, b: what: its checkpoint gets on */
    SIM_EV_UPLOAD,       /* a: host, b: index: the agent's upload gets on */
    SIM_EV_FAULT,        /* a: index, b: host */
    SIM_EV_RESTART,      /* a: process */
    SIM_EV_TYPES
} sim_event_type_t;

typedef struct sim_event {
    ns_t at;
    uint64_t seq;
    sim_event_type_t type;
    uint32_t a, b;
    uint32_t life; /* of the process concerned, where there is one */
} sim_event_t;

/* ---- Pipes ------------------------------------------------------------------------------------- */

typedef struct sim_msg {
    struct sim_msg *next;
    uint32_t type, bytes;
    uint32_t a, b, c, d;
    uint64_t view;
    ns_t due;
    uint64_t data[]; /* bytes of it */
} sim_msg_t;

typedef enum sim_pipe_kind {
    SIM_PIPE_DATA,
    SIM_PIPE_UP,
    SIM_PIPE_DOWN,
    SIM_PIPE_LOCAL_UP,
    SIM_PIPE_LOCAL_DOWN
} sim_pipe_kind_t;
enum { SIM_LANE_WORDS, SIM_LANE_BULK, SIM_LANE_PASSES, SIM_LANE_COPIES, SIM_LANES };

typedef struct sim_lane {
    sim_msg_t *first, **last;
    bool pending; /* its event is in the heap */
    ns_t latest;  /* due of the last one queued: FIFO */
    uint32_t n;
} sim_lane_t;

struct sim_pipe {
    sim_pipe_kind_t kind;
    uint32_t index;
    sim_process_t from, to;
    uint32_t from_life, to_life;
    uint64_t view; /* DATA */
    sim_lane_t lanes[SIM_LANES];
    bool from_closed; /* nothing more is sent; FIN is in the lanes */
    bool to_closed;   /* nobody reads it */
    bool reset_told;
    bool ended; /* FIN was delivered */
    uint8_t fins, fins_due;
    uint64_t draw; /* own random state */
};

enum { SIM_MSG_FIN = 1000, SIM_MSG_TWICE = 1 << 30 };

/* ---- A worker ---------------------------------------------------------------------------------- */

/* Data plane messages. */
enum {
    SIM_HELLO = 1,
    SIM_OPENED, /* all of the sender's connections are there */
    SIM_WORDS,  /* a message of the step */
    SIM_PIECE,  /* a: collective's number, b: chunk | tag << 16, c: bucket, d: elements; data: doubles */
    SIM_PASS,   /* a: bucket, b: is a chunk of weights, c: step; data */
    SIM_ABORT   /* a: dense rank at fault + 1, b: status; data: text */
};

enum { SIM_OPS = 256 }; /* of a schedule */

typedef struct sim_op {
    const schedule_t *schedule;
    uint32_t bucket, number, left;
    bool done[SIM_OPS];
    sim_msg_t *early; /* pieces that no receive took yet */
    double tmp[SIM_WORLD * SIM_WIDTH];
} sim_op_t;

typedef enum sim_comm_state {
    SIM_COMM_NONE,
    SIM_COMM_OPENING,
    SIM_COMM_OPEN,
    SIM_COMM_POISONED
} sim_comm_state_t;

typedef struct sim_comm {
    sim_comm_state_t state;
    uint64_t view;
    uint32_t world, me;
    uint32_t slots[SIM_WORLD];
    sim_pipe_t *out[SIM_WORLD], *in[SIM_WORLD];
    bool hello[SIM_WORLD], opened[SIM_WORLD], bye[SIM_WORLD];
    bool told_opened;
    ns_t since, heard[SIM_WORLD], stood[SIM_WORLD];
    sim_op_t ops[SIM_BUCKETS];
    uint32_t n_ops;      /* collectives started in this view */
    uint32_t n_finished; /* */
    sim_msg_t *early;    /* pieces of collectives not started yet, and passes not taken yet */
    uint32_t n_takes;    /* passes that are waited for */
    struct {
        uint32_t from, bucket;
        bool chunk;
        ns_t since;
    } takes[2 * SIM_BUCKETS];
    uint32_t cause_rank; /* dense + 1; 0 unknown */
    char cause_text[200];
    bool cause_opening;
} sim_comm_t;

typedef struct sim_view {
    uint64_t number;
    bool first;
    uint32_t world;
    uint32_t numbers[SIM_WORLD];
} sim_view_t;

typedef struct sim_sums {
    double values[SIM_BUCKETS][SIM_WIDTH]; /* by the layout: its parameters' gradients, then a mark a lease */
} sim_sums_t;

typedef struct sim_model {
    double weights[SIM_BUCKETS][SIM_ELEMENTS], moments[SIM_BUCKETS][SIM_ELEMENTS]; /* by parameter */
} sim_model_t;

enum { SIM_LATER = 64 };

struct sim_worker {
    sim_t *sim;
    uint32_t slot; /* = its number in the job */
    uint32_t host;
    uint64_t incarnation, draw;
    double speed;
    elastic_t *core;
    bool newcomer, handling; /* handling: the core is at work */
    bool holding;            /* actions that are due wait */
    uint64_t first_step;
    sim_pipe_t *up, *down; /* to and from its agent */
    ns_t agent_gone;       /* 0: it is there */

    /* views */
    sim_view_t announced;   /* the newest that the agent told */
    sim_view_t opened_view; /* the newest whose communicator opened */
    bool view_due;          /* the core was not told of it yet */
    uint64_t entered;       /* the newest that the core was told */
    sim_comm_t comm;
    sim_msg_t *kept; /* messages of a view that the core is not in yet */
    elastic_action_t later[SIM_LATER];
    uint32_t n_later;

    /* the step */
    sim_sums_t local, reduced;
    uint32_t layout, known; /* how parameters lie in them; the newest that this member can take up */
    sim_model_t model;
    bool work_due; /* the core said DO_WORK */
    uint64_t work_view;
    uint32_t computing, first_lease, stage; /* leases of the micro-batch under way; buckets that have it */
    uint64_t batch_step;
    bool last_batch;
    uint32_t token;
    bool ready_told[SIM_BUCKETS];
    uint64_t committed; /* the next step to commit */
    bool any_commit, full, leaving, ended, done_told;
    uint64_t left_view; /* LEFT was said in it; 0: never */
    uint32_t commits_in_view;
    uint64_t late; /* planted OLDMSG: buckets whose reduction was under way as their view ended */
    uint64_t late_view;

    /* the checkpoint being written, the result */
    bool saving, saved_due;
    uint64_t save_step, saved_step;
    sim_model_t save_model;
    bool result_registered;
    uint64_t result_view;
};

/* ---- The whole --------------------------------------------------------------------------------- */

struct sim;
typedef struct sim_manager sim_manager_t;
typedef struct sim_agents sim_agents_t;
typedef struct sim_disks sim_disks_t;
typedef struct sim_checks sim_checks_t;
typedef struct sim_artifact sim_artifact_t;

enum { SIM_SHARES = 64, SIM_WIRES = 4 };

struct sim {
    sim_options_t options;
    sim_config_t config;
    sim_result_t *result;
    ns_t now;
    uint64_t next_seq;
    sim_event_t *heap;
    size_t heap_n, heap_capacity;
    uint64_t hash;
    sim_life_t processes[SIM_PROCESSES];
    sim_pipe_t **pipes;
    uint32_t n_pipes, pipe_capacity;
    ns_t cut_until[SIM_HOSTS][SIM_HOSTS]; /* [from][to] nothing gets through before */
    ns_t slow_until[SIM_HOSTS][SIM_HOSTS];
    ns_t node_slow_until[SIM_HOSTS];
    ns_t mono_offset[SIM_HOSTS], wall_offset[SIM_HOSTS];
    sim_fault_t faults[SIM_FAULTS];
    uint32_t n_faults;
    uint32_t moments[SIM_MOMENTS];
    ns_t calm; /* all faults are over from here on */
    bool over; /* stop: the job ended, or an invariant is broken */
    sim_worker_t *workers[SIM_WORKERS];
    uint32_t n_workers; /* highest slot used + 1 */
    sim_manager_t *manager;
    sim_agents_t *agents;
    sim_disks_t *disks;
    sim_checks_t *checks;
    struct {
        uint64_t view, hash;
        uint32_t number;
    } shares[SIM_SHARES]; /* of the sums, by collective: the same for all of a view */
};

/* events.c */
void sim_push(sim_t *sim, ns_t after, sim_event_type_t type, uint32_t a, uint32_t b, uint32_t life);
bool sim_pop(sim_t *sim, sim_event_t *event);
uint64_t sim_mix(uint64_t x);
uint64_t sim_draw(uint64_t *state); /* a random state of one's own */
uint64_t sim_draw_below(uint64_t *state, uint64_t bound);
void sim_record(sim_t *sim, uint64_t what); /* into the history's hash */
/* A line of the history, for people; costs nothing where it is not shown. */
#define sim_note(sim, ...)                                                                                   \
    do {                                                                                                     \
        if ((sim)->options.trace) sim_note_line(sim, __VA_ARGS__);                                           \
    } while (0)
void sim_note_line(sim_t *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An invariant is broken: the first one counts, the history ends. */
void sim_broken(sim_t *sim, const char *invariant, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
ns_t sim_mono(const sim_t *sim, uint32_t host); /* the monotonic clock of a machine */

/* net.c */
sim_pipe_t *sim_pipe_open(sim_t *sim, sim_pipe_kind_t kind, sim_process_t from, sim_process_t to,
                          uint64_t view);
sim_msg_t *sim_msg(uint32_t type, const void *data, uint32_t bytes);
void sim_send(sim_t *sim, sim_pipe_t *pipe, uint32_t lane, sim_msg_t *msg);
void sim_pipe_close_from(sim_t *sim, sim_pipe_t *pipe); /* in order: FIN after what was sent */
void sim_pipe_close_to(sim_t *sim, sim_pipe_t *pipe);   /* nobody reads any more: the sender gets a reset */
void sim_net_died(sim_t *sim, sim_process_t process);   /* its pipes lose random tails, and end */
void sim_net_cut(sim_t *sim, uint32_t from, uint32_t to, ns_t until);
bool sim_net_reaches(const sim_t *sim, uint32_t from, uint32_t to);
void sim_net_kick(sim_t *sim, sim_pipe_t *pipe); /* its receiver is ready for it now */
void sim_net_event(sim_t *sim, const sim_event_t *event);
void sim_net_free(sim_t *sim);
void sim_msgs_free(sim_msg_t *first);

/* processes: run.c */
bool sim_alive(const sim_t *sim, sim_process_t process);
bool sim_frozen(const sim_t *sim, sim_process_t process);
void sim_kill(sim_t *sim, sim_process_t process);
const char *sim_process_name(sim_process_t process, char text[32]);

/* tensor.c */
void sim_model_first(const sim_t *sim, sim_model_t *model);
/* Layouts, 0 .. SIM_LAYOUTS - 1: 0 has one parameter a bucket. */
uint32_t sim_buckets(const sim_t *sim, uint32_t layout); /* the tally included */
uint32_t sim_width(const sim_t *sim, uint32_t layout, uint32_t bucket);
uint32_t sim_marks(const sim_t *sim, uint32_t layout, uint32_t bucket); /* where they begin */
/* Of the parameter's gradients. */
const double *sim_sum(const sim_t *sim, const sim_sums_t *sums, uint32_t layout, uint32_t parameter);
elastic_layout_t sim_layout(const sim_t *sim, uint32_t layout);
uint32_t sim_layout_of(uint64_t hash);
void sim_add_lease(const sim_t *sim, sim_sums_t *sums, const sim_model_t *model, uint64_t step,
                   uint32_t lease, uint32_t layout, uint32_t bucket, uint32_t number);
void sim_apply(const sim_t *sim, sim_model_t *model, const double *sum, uint32_t parameter);
bool sim_light(const sim_t *sim, uint64_t step);
uint64_t sim_model_hash(const sim_t *sim, const sim_model_t *model, uint32_t bucket);

/* comm.c */
void sim_comm_drop(sim_worker_t *worker); /* memory */
void sim_comm_open(sim_t *sim, sim_worker_t *worker, const sim_view_t *view);
void sim_comm_close(sim_t *sim, sim_worker_t *worker); /* in order */
void sim_comm_poison(sim_t *sim, sim_worker_t *worker, uint32_t culprit, bool tell, const char *text);
void sim_comm_reduce(sim_t *sim, sim_worker_t *worker, uint32_t bucket);
void sim_comm_words(sim_t *sim, sim_worker_t *worker, uint32_t to, const void *data, uint32_t bytes);
void sim_comm_give(sim_t *sim, sim_worker_t *worker, uint32_t to, uint32_t bucket, bool chunk, uint64_t step,
                   const double *data, uint32_t n);
void sim_comm_take(sim_t *sim, sim_worker_t *worker, uint32_t from, uint32_t bucket, bool chunk);
void sim_comm_msg(sim_t *sim, sim_worker_t *worker, sim_pipe_t *pipe, sim_msg_t *msg); /* owns msg */
void sim_comm_ended(sim_t *sim, sim_worker_t *worker, sim_pipe_t *pipe);               /* FIN or reset */
void sim_comm_tick(sim_t *sim, sim_worker_t *worker);
void sim_comm_free_cache(void);

/* policy.c */
elastic_policy_t sim_policy(sim_t *sim);
elastic_pace_t sim_pace(const sim_t *sim, const sim_worker_t *worker, ns_t lease);
/* false: nothing is known. */
bool sim_first_paces(const sim_t *sim, const sim_view_t *view, elastic_pace_t paces[SIM_WORLD]);

/* worker.c */
sim_worker_t *sim_worker_start(sim_t *sim, uint32_t number, uint32_t host, bool newcomer, uint64_t first_step,
                               const sim_model_t *model);
void sim_worker_local(sim_t *sim, sim_worker_t *worker, sim_msg_t *msg); /* from its agent; owns msg */
void sim_worker_local_ended(sim_t *sim, sim_worker_t *worker);
void sim_worker_comm_open(sim_t *sim, sim_worker_t *worker); /* comm.c tells */
void sim_worker_poisoned(sim_t *sim, sim_worker_t *worker);
void sim_worker_words(sim_t *sim, sim_worker_t *worker, uint32_t from, const void *data, uint32_t bytes);
void sim_worker_reduced(sim_t *sim, sim_worker_t *worker, uint32_t bucket);
void sim_worker_chunk(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg, uint64_t view);
void sim_worker_taken(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg);
void sim_worker_event(sim_t *sim, const sim_event_t *event);
void sim_worker_adopted(sim_t *sim, sim_worker_t *worker);
void sim_worker_died(sim_worker_t *worker);
void sim_worker_forget(sim_worker_t *worker);
void sim_workers_free(sim_t *sim);

/* agent.c */
inspan_status_t sim_agents_open(sim_t *sim);
void sim_agents_free(sim_t *sim);
void sim_agent_start(sim_t *sim, uint32_t host);
void sim_agent_died(sim_t *sim, uint32_t host);
void sim_agent_event(sim_t *sim, const sim_event_t *event);
void sim_agent_down(sim_t *sim, uint32_t host, sim_pipe_t *pipe, sim_msg_t *msg);  /* from the manager */
void sim_agent_local(sim_t *sim, uint32_t host, sim_pipe_t *pipe, sim_msg_t *msg); /* from a worker */
void sim_agent_ended(sim_t *sim, uint32_t host, sim_pipe_t *pipe);

/* manager.c */
inspan_status_t sim_manager_open(sim_t *sim);
void sim_manager_free(sim_t *sim);
void sim_manager_start(sim_t *sim);
void sim_manager_died(sim_t *sim);
void sim_manager_event(sim_t *sim, const sim_event_t *event);
void sim_manager_up(sim_t *sim, sim_pipe_t *pipe, sim_msg_t *msg); /* from an agent */
void sim_manager_ended(sim_t *sim, sim_pipe_t *pipe);
void sim_manager_drain(sim_t *sim, uint32_t host);
const control_job_t *sim_manager_job(const sim_t *sim);

/* disk.c */
inspan_status_t sim_disks_open(sim_t *sim);
void sim_disks_free(sim_t *sim);
void sim_worker_checkpoint(sim_t *sim, sim_worker_t *worker, uint64_t step);
void sim_disk_write_event(sim_t *sim, sim_worker_t *worker, uint32_t stage);
void sim_disk_save_result(sim_t *sim, sim_worker_t *worker);
void sim_disk_power_cut(sim_t *sim, uint32_t host);

/* faults.c */
void sim_faults_draw(sim_t *sim);
void sim_faults_start(sim_t *sim);
void sim_fault_event(sim_t *sim, const sim_event_t *event);
/* Something happens at a process: a fault may wait for it. true: the process is dead now. */
bool sim_moment(sim_t *sim, sim_moment_t moment, sim_process_t process);
void sim_print_faults(const sim_t *sim);
void sim_config_draw(sim_t *sim);

/* check.c */
inspan_status_t sim_checks_open(sim_t *sim);
void sim_checks_free(sim_t *sim);
void sim_checks_computed(sim_t *sim, uint32_t n);
void sim_check_event(sim_t *sim);
void sim_check_view_stored(sim_t *sim, const sim_view_t *view);
void sim_check_announced(sim_t *sim, const sim_view_t *view);
void sim_check_view_entered(sim_t *sim, const sim_worker_t *worker, const sim_view_t *view);
void sim_check_commit(sim_t *sim, sim_worker_t *worker, uint64_t step);
uint64_t sim_check_first_commit(sim_t *sim, const sim_worker_t *worker, uint64_t step);
void sim_check_weights(sim_t *sim, const sim_worker_t *worker, uint64_t step);
void sim_check_listens(sim_t *sim, const sim_worker_t *worker);
void sim_check_bucket(sim_t *sim, const sim_worker_t *worker, uint32_t bucket);
void sim_check_registered(sim_t *sim, uint32_t kind, const sim_artifact_t *artifact);
void sim_check_acked(sim_t *sim, uint32_t kind, uint32_t step);
void sim_check_acknowledged(sim_t *sim, const sim_worker_t *worker, uint32_t kind, uint32_t step,
                            bool accepted);
void sim_check_ended(sim_t *sim);

/* planted.c */
#define SIM_PLANT_OWN(X)                                                                                     \
    X(LOSTLEASE, "driver: of a micro-batch only the first lease gets into the first bucket")                 \
    X(PASSLOCAL, "driver: a salvaged bucket is passed on as its local sum")                                  \
    X(NOMORE, "driver: after an answered claim it does not look again")                                      \
    X(KEEPSUMS, "driver: local sums stay after a commit")                                                    \
    X(CHUNKVERSION, "driver: a chunk of weights is sent with a version that it does not have")               \
    X(FULLNEWCOMER, "manager: a newcomer is started as if it had all weights")                               \
    X(DUPPIECE, "transport: after a retransmission a piece counts twice")                                    \
    X(SHORTPIECE, "transport: the last element of a long piece stays behind")                                \
    X(CARRYOVER, "transport: pieces of a broken view are kept for the next one")                             \
    X(OLDCONN, "transport: a connection of an older view is taken for one of the new view")                  \
    X(EARLYDONE, "transport: a collective is finished while its last receive is outstanding")                \
    X(TORNVIEW, "registry: half of a torn transaction is taken for whole")                                   \
    X(FORGETVIEW, "recovery: a restarted manager takes the view before the newest")                          \
    X(NORESUME, "recovery: a new lineage begins without the registered checkpoint")                          \
    X(LEFTOVERS, "recovery: a restarted agent leaves its old workers running")                               \
    X(WALLCLOCK, "manager: timeouts by the wall clock")                                                      \
    X(ACKFIRST, "checkpoint: registration is acknowledged before it is durable")                             \
    X(LIVEWRITE, "checkpoint: written from memory that trains on")                                           \
    X(RENAMEFIRST, "checkpoint: named complete before its data is synced")

enum {
    SIM_PLANT_NONE,
#define X(name, where, text) SIM_PLANT_##name,
    PLANTED_LIST(X)
#undef X
#define X(name, text) SIM_PLANT_##name,
        SIM_PLANT_OWN(X)
#undef X
};
extern int sim_plant_now;
#define sim_planted(name) (sim_plant_now == SIM_PLANT_##name)
uint32_t sim_planted_core(void); /* bits for the step machine */

#endif
