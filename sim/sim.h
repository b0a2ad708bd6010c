/*
 * The deterministic simulator: a whole cluster in one thread. Real: the elastic step, the job controller,
 * liveness, the scheduler, the builders of collectives. Simulated: network, clocks, disks, processes, and the
 * thin shells around the cores. docs/simulation.md says what is what and how to read a failure.
 *
 *   events.c    time and its heap, random draws, history (trace and hash)
 *   net.c       pipes: FIFO byte streams between processes, with delay, cuts, and tails that are lost
 *   tensor.c    tiny real tensors and the oracle: what one machine alone would compute
 *   comm.c      the communicator of a view: opening, executor of schedules, transfers, poison
 *   policy.c    who computes how much: shares and steals
 *   worker.c    session and step driver of a worker, around core/step/elastic
 *   agent.c     supervision of workers on a node
 *   manager.c   shell around core/control and core/sched
 *   disk.c      the registry and the checkpoint folders as stores that lose what was not durable
 *   faults.c    what goes wrong, drawn from the seed
 *   check.c     invariants I1 to I7
 *   planted.c   bugs that can be switched on, to prove that they are found
 *   run.c       one history; shrinking          main.c  command line
 *
 * Everything about one history hangs on sim_t; one seed is one history, to the bit.
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/units.h"

enum {
    SIM_NODES = 8,             /* machines of workers; host 0 is the manager's, hosts 1 .. SIM_NODES theirs */
    SIM_HOSTS = SIM_NODES + 1, /* */
    SIM_WORKERS = 128,         /* numbers that one job may use in one history */
    SIM_WORLD = 8,             /* members of a view */
    SIM_BUCKETS = 4,           /* the tally included */
    SIM_ELEMENTS = 6,          /* gradients of a parameter */
    SIM_LAYOUTS = 6,           /* ways in which parameters lie in buckets */
    SIM_LEASES = 24,           /* of a step */
    SIM_WIDTH = (SIM_BUCKETS - 1) * SIM_ELEMENTS + SIM_LEASES, /* most elements of a reduced bucket */
    SIM_STEPS = 12,                                            /* training steps */
    SIM_FAULTS = 32,
    SIM_VIEWS = 512
};

typedef struct sim sim_t;
typedef struct sim_worker sim_worker_t;
typedef struct sim_pipe sim_pipe_t;

/* ---- What a history is made of: drawn from the seed ------------------------------------------- */

typedef enum sim_policy_kind { SIM_POLICY_NONE, SIM_POLICY_PACE, SIM_POLICY_RANDOM } sim_policy_kind_t;

typedef struct sim_config {
    uint32_t first_nodes, more_nodes; /* there at the start; arriving later */
    uint32_t min_nodes, max_nodes;
    uint32_t leases, buckets, steps; /* buckets: of the first layout, one a parameter, and the tally */
    uint32_t elements;
    uint32_t algorithm; /* sched_algorithm_t */
    uint32_t micro;     /* leases of a micro-batch at most */
    sim_policy_kind_t policy;
    uint32_t keep_every; /* a checkpoint every so many steps; 0: none */
    bool drop;
    bool dense; /* few members and buckets, many faults of which one comes on top of the other */
    ns_t failure_timeout;
    ns_t delay_least, delay_most; /* of a message */
    ns_t lease_time;              /* compute */
    ns_t settle, cool_down;       /* of the controller and of a node whose worker was lost */
} sim_config_t;

typedef enum sim_fault_kind {
    SIM_FAULT_CRASH_WORKER,
    SIM_FAULT_CRASH_AGENT,
    SIM_FAULT_CRASH_NODE,
    SIM_FAULT_CRASH_MANAGER,
    SIM_FAULT_FREEZE_WORKER,
    SIM_FAULT_FREEZE_NODE,
    SIM_FAULT_FREEZE_MANAGER,
    SIM_FAULT_SLOW_NODE,
    SIM_FAULT_SLOW_LINK,
    SIM_FAULT_CUT_LINK,
    SIM_FAULT_ONE_WAY,
    SIM_FAULT_PARTITION,
    SIM_FAULT_RESET,
    SIM_FAULT_CLOCK,
    SIM_FAULT_TORN,
    SIM_FAULT_JOIN,
    SIM_FAULT_DRAIN,
    SIM_FAULT_KINDS
} sim_fault_kind_t;

/* Where a fault may strike: at a time, or the n-th time that something happens. */
typedef enum sim_moment {
    SIM_AT_TIME,
    SIM_AT_COMPUTED, /* a worker has computed leases */
    SIM_AT_REDUCED,  /* a bucket is reduced at a worker */
    SIM_AT_VOTE,     /* a worker sends a vote */
    SIM_AT_COMMIT,   /* a worker commits */
    SIM_AT_REPORT,   /* a worker reports in a reconcile */
    SIM_AT_DECIDE,   /* a leader decides */
    SIM_AT_STORE,    /* the manager is about to store (torn) or has just stored */
    SIM_AT_ANNOUNCE, /* the manager has announced a view to one member */
    SIM_AT_CHUNK,    /* a newcomer has a chunk; whose it is */
    SIM_AT_SAVE,     /* a checkpoint is being written */
    SIM_MOMENTS
} sim_moment_t;

typedef struct sim_fault {
    sim_fault_kind_t kind;
    sim_moment_t moment;
    uint32_t nth;  /* of the moment */
    ns_t at;       /* AT_TIME */
    ns_t lasts;    /* of what ends by itself */
    uint32_t a, b; /* hosts; a: 0 means who is at the moment */
    uint64_t draw; /* for what else is to be chosen */
    bool dropped;  /* by the shrinker */
    bool struck;
} sim_fault_t;

typedef struct sim_options {
    uint64_t seed;
    uint32_t kinds;   /* bit a fault kind */
    uint32_t dropped; /* bit a fault: left out by the shrinker */
    const char *plant;
    bool trace;       /* print the history */
    bool dense;       /* few members, faults on top of each other: otherwise every fourth history */
    bool list_faults; /* print the faults that struck, at the end */
} sim_options_t;

typedef struct sim_result {
    bool failed;
    char invariant[4]; /* "I1" */
    char text[1024];   /* what, where, expected, found */
    uint64_t hash;     /* of the history */
    uint64_t events;
    ns_t ended;
    ns_t worst; /* longest wait for a step to commit with no fault under way */
    uint32_t views, commits, faults, struck;
    bool done; /* the job came to its end */
} sim_result_t;

/* One history. All memory is given back. */
void sim_run(const sim_options_t *options, sim_result_t *result);
/* Leaves out faults of a failing history one by one as long as it fails in the same invariant;
 * options->dropped is updated. */
void sim_shrink(sim_options_t *options, sim_result_t *result);

const char *sim_fault_name(sim_fault_kind_t kind);
bool sim_fault_kinds(const char *list, uint32_t *kinds);

/* ---- Planted bugs ------------------------------------------------------------------------------ */

typedef struct sim_plant {
    const char *name, *text;
} sim_plant_t;

extern const sim_plant_t sim_plants[];
extern const size_t sim_n_plants;
/* It is found within so many histories from seed 1 on (0: no bug by itself), and these are dense ones. */
uint32_t sim_plant_seeds(const sim_plant_t *plant);
bool sim_plant_dense(const sim_plant_t *plant);
/* Switch one on (NULL: none) for the process. false: no such bug. */
bool sim_plant(const char *name);

#endif
