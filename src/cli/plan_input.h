/*
 * What `inspan plan` knows: the job as the pure planner wants it, and of each machine speed, link and memory,
 * with where that comes from. Speeds, best source first: --speed, the running job's ranks, what earlier jobs
 * of this model reached (the manager's registry), a measurement on this machine, a guess from cores, clock
 * and instruction set. Links: --link, else the interface's speed.
 */
#ifndef CLI_PLAN_INPUT_H
#define CLI_PLAN_INPUT_H

#include "cli/options.h"
#include "core/partition/plan.h"
#include "inspan/v1/inspan.pb-c.h"
#include "train/job.h"

typedef enum plan_speed_from {
    PLAN_SPEED_GUESS,
    PLAN_SPEED_MEASURED,
    PLAN_SPEED_REGISTRY,
    PLAN_SPEED_RUN,
    PLAN_SPEED_OPTION
} plan_speed_from_t;

typedef enum plan_link_from {
    PLAN_LINK_UNKNOWN,
    PLAN_LINK_GUESS, /* Wi-Fi */
    PLAN_LINK_INTERFACE,
    PLAN_LINK_OPTION
} plan_link_from_t;

#define PLAN_NAME_MAX 64

typedef struct plan_machine {
    char name[PLAN_NAME_MAX];
    char node_id[PLAN_NAME_MAX], boot_id[PLAN_NAME_MAX]; /* "": a machine that is not there */
    plan_speed_from_t speed_from;
    plan_link_from_t link_from;
    double link_bits_per_s;                  /* the slower way; 0: unknown */
    double cores, clock_hz, flops_per_cycle; /* usable cores; of one core */
    double allowed;                          /* by its owner, of it: (0, 1] */
    bool member;                             /* of the running job */
} plan_machine_t;

typedef struct plan_input {
    job_config_t job;
    nn_model_config_t model; /* with the data's shape */
    uint64_t data_bytes;
    char key[JOB_KEY_MAX];
    plan_job_t plan;
    inspan_wire_t wire;      /* of the gradients in `plan` */
    uint64_t gradient_bytes; /* in memory */
    uint64_t bucket_bytes;   /* as the job asks for it; 0: chosen */
    double sample_flops;     /* forward and backward */
    double update_bytes;     /* that an update of all weights moves */
    uint32_t n, unused;      /* machines; nodes that cannot be used now, or are too many */
    plan_machine_t machines[PLAN_NODES_MAX];
    plan_node_t nodes[PLAN_NODES_MAX];
} plan_input_t;

/* job, model and data_bytes are there: the rest of what follows from them. INVALID. */
inspan_status_t plan_input_job(plan_input_t *input, inspan_error_t *err);

/* Gradients go over the wire in this type. */
void plan_input_wire(plan_input_t *input, inspan_wire_t wire);

/* The cluster's nodes that could be used, speeds guessed. */
void plan_input_nodes(plan_input_t *input, const Inspan__V1__NodeList *list);

/* What earlier jobs of this model reached on the nodes, newest first in the list. */
void plan_input_registry(plan_input_t *input, const Inspan__V1__SpeedList *list);

/* Speeds of the running job's ranks; marks its members. */
void plan_input_run(plan_input_t *input, const Inspan__V1__JobInfo *job);

/* "NODE=1gbit", "NODE=100mbit/400mbit"; "NODE=12.5" samples a second, also of a machine that is not there
 * yet. INVALID: malformed; NOT_FOUND: no such node. */
inspan_status_t plan_input_links(plan_input_t *input, const cli_list_t *links, inspan_error_t *err);
inspan_status_t plan_input_speeds(plan_input_t *input, const cli_list_t *speeds, inspan_error_t *err);

/* Keeps a better source's. */
void plan_input_set_speed(plan_input_t *input, uint32_t machine, plan_speed_from_t from, double sample_s,
                          double step_s);

/* The largest of wanted, wanted / 2, ... samples that go through the model at once in that much memory (0:
 * unknown), as the trainer chooses it. */
uint32_t plan_input_micro_batch(const plan_input_t *input, uint64_t memory, uint32_t wanted);

/* Once all speeds are in: guesses are scaled by what the known machines reach against theirs, and what owners
 * keep is taken off where the speed's source did not know of it. */
void plan_input_settle(plan_input_t *input);

/* Only the machines of "A,B" stay. NOT_FOUND. */
inspan_status_t plan_input_choose(plan_input_t *input, const char *names, inspan_error_t *err);

const char *plan_speed_source(plan_speed_from_t from); /* "guess", "measured", "earlier jobs", ... */

/* Index of the one node that lives on this machine and shares it with no other; PLAN_NONE. */
uint32_t plan_input_own(const plan_input_t *input);

#endif
