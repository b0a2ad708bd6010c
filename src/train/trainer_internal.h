/* What the trainer's files share. */
#ifndef TRAIN_TRAINER_INTERNAL_H
#define TRAIN_TRAINER_INTERNAL_H

#include <inspan/ddp.h>

#include "core/step/step.h"
#include "train/trainer.h"

#define TRAIN_WAIT                                                                                           \
    (600 * NS_PER_S)    /* bound of a wait for slower ranks; lost ones are noticed much sooner               \
                         */
#define TRAIN_RECENT 16 /* steps that the shown speed is taken over */
#define EVALUATE_SUM 3  /* loss, samples, right answers */

struct trainer {
    job_config_t job;
    inspan_comm_t *comm;
    uint64_t view;
    uint32_t rank, world, threads, micro_batch;
    FILE *out;
    trainer_hooks_t hooks;

    nn_data_t *data;
    nn_model_t *model;
    nn_model_config_t model_config;
    nn_optimizer_t *optimizer;
    inspan_ddp_t *ddp;
    const nn_param_t *params; /* (n_params) */
    uint32_t n_params;
    void **local;         /* (n_params) gradients of this rank */
    const void **reduced; /* (n_params) of all ranks */
    double *hashes[2];    /* (world x 2) halves of each rank's hash: given, received */

    uint64_t step;    /* steps applied */
    uint64_t samples; /* of this rank */
    double loss, loss_first, validation, validation_first, accuracy;
    uint64_t validation_step;     /* whose weights the held-out loss is of */
    uint64_t param_hash;          /* of the weights when they were last compared */
    ns_t started, ended;          /* of trainer_run */
    ns_t compute, exposed, input; /* of steps; exposed: waiting for others, comparisons of weights too */
    ns_t evaluation, evaluation_compute; /* all of it; without waiting for others */
    ns_t recent[TRAIN_RECENT];           /* when the last steps ended, evaluations left out, by step %
                                            TRAIN_RECENT */
    ns_t line_at;                        /* when the last line for people was written */
};

/* A collective on `what` failed with status: the communicator's cause as text, where it has one. Gives err's
 * status. */
inspan_status_t trainer_fault(const trainer_t *trainer, inspan_status_t status, const char *what,
                              inspan_error_t *err);

/* Wait for op within TRAIN_WAIT. A failure's text is the communicator's cause. */
inspan_status_t trainer_wait(trainer_t *trainer, inspan_op_t *op, const char *what, inspan_error_t *err);

/* A failure that only this rank sees: poison the communicator, so that the others end as well. Gives err's
 * status. */
inspan_status_t trainer_fail(trainer_t *trainer, inspan_error_t *err);

/* The held-out loss, all ranks together: into ->validation and ->accuracy; NaN where nothing is held out. */
inspan_status_t trainer_evaluate(trainer_t *trainer, inspan_error_t *err);

/* Hash of the weights as they lie in memory. */
uint64_t trainer_hash(const trainer_t *trainer);

/* All ranks compare hashes (->param_hash); the time counts as exposed. MISMATCH names those that differ from
 * the most common one (of two equally common: the lowest rank's). The same text on every rank. */
inspan_status_t trainer_compare(trainer_t *trainer, inspan_error_t *err);

/* The ranks that do not hold the most common hash, as "1, 4" into text; their number. halves: (world x 2). */
uint32_t trainer_odd_ones(const double *halves, uint32_t world, char *text, size_t size);

/* The largest micro-batch that is efficient and fits into a share. Where the job leaves the choice: for which
 * the activations also take at most half of `memory`, and the whole worker (data_bytes of files, too) no more
 * than that; at least 1. INVALID. */
inspan_status_t trainer_micro_batch(const job_config_t *job, const nn_model_config_t *model,
                                    uint64_t largest_share, uint64_t data_bytes, uint64_t memory,
                                    uint32_t *micro_batch, inspan_error_t *err);

/* Samples per second of all ranks over the last steps, without evaluations; the present step ended at `now`.
 */
double trainer_speed(trainer_t *trainer, ns_t now);

void trainer_report(trainer_t *trainer); /* progress to the hook, now and then a line for people */

#endif
