/* What the trainer's files share. */
#ifndef TRAIN_TRAINER_INTERNAL_H
#define TRAIN_TRAINER_INTERNAL_H

#include "train/saver.h"
#include "train/trainer.h"

#define TRAIN_RECENT 16 /* steps that the shown speed is taken over */

typedef struct trainer_local trainer_local_t; /* of trainer_local.c */

struct trainer {
    job_config_t job;
    uint32_t threads, micro_batch;
    uint64_t memory_predicted; /* bytes that this worker takes with that micro-batch */
    FILE *out;
    trainer_hooks_t hooks;

    nn_data_t *data;
    nn_model_t *model;
    nn_model_config_t model_config;
    nn_optimizer_t *optimizer;   /* of params */
    trainer_local_t *local_mode; /* NULL: sync.mode exact */
    inspan_elastic_t *elastic;
    const inspan_views_t *views;
    saver_t *saver;           /* NULL: nowhere to write checkpoints to */
    const nn_param_t *params; /* (n_params) the job's weights: the model's, or in local mode the anchor */
    uint32_t n_params;
    inspan_parameter_t *parameters; /* (n_params) the driver's view of them */
    void **local;                   /* (n_params) gradients of this rank */
    const void **reduced;           /* (n_params) of all ranks */
    uint64_t layout;                /* of the buckets that both lie in: inspan_work_t */

    uint64_t first_step; /* steps that were in the weights at the start */
    uint64_t step;       /* steps in the weights, as far as this rank knows */
    uint64_t applied;    /* of them, here */
    double loss, loss_first, validation, validation_first, accuracy;
    uint64_t validation_step; /* whose weights the held-out loss is of */
    uint64_t param_hash;      /* of the weights when they were last compared */
    ns_t started, ended;      /* the first work, the end of trainer_run */
    ns_t trained;             /* when the last step was applied, evaluations left out */
    ns_t compute, update;     /* of steps: forward and backward; the optimiser */
    ns_t input;               /* of steps */
    ns_t evaluation;          /* looking at held-out samples */
    ns_t
        recent[TRAIN_RECENT]; /* when the last steps ended, evaluations left out, by applied % TRAIN_RECENT */
    char wire_reason[sizeof((inspan_elastic_stats_t *)0)->wire_reason]; /* told */
    char layout_reason[sizeof((inspan_elastic_stats_t *)0)->layout_reason];
    ns_t line_at; /* when the last line for people was written */
};

/* A failure that only this rank sees: the others shall know. Gives err's status. */
inspan_status_t trainer_fail(trainer_t *trainer, inspan_error_t *err);

/* After every so many steps, at the start and after the last: `step` steps are in the weights. */
bool trainer_is_due(const trainer_t *trainer, uint64_t every, uint64_t step);

/* The held-out samples of these leases, with the weights as they are, added to *tally. */
inspan_status_t trainer_evaluate(trainer_t *trainer, const inspan_work_t *work, inspan_tally_t *tally,
                                 inspan_error_t *err);

/*
 * sync.mode local (trainer_local.c). open: behind the model, before anything else looks at params, which
 * become the anchor; on failure close, too. outer: how the anchor is updated. evaluate and compute are those
 * of a step; return makes the model the anchor again, for who saves it.
 */
inspan_status_t trainer_local_open(trainer_t *trainer, inspan_error_t *err);
void trainer_local_close(trainer_t *trainer);
void trainer_local_outer(const job_config_t *job, nn_optimizer_config_t *config);
inspan_status_t trainer_local_evaluate(trainer_t *trainer, const inspan_work_t *work, inspan_tally_t *tally,
                                       inspan_error_t *err);
inspan_status_t trainer_local_compute(trainer_t *trainer, const inspan_work_t *work, double *loss_sum,
                                      inspan_error_t *err);
void trainer_local_return(const trainer_t *trainer);
uint64_t trainer_local_run(uint64_t micro_batch, uint64_t batch); /* samples of a run: whole updates */
uint64_t trainer_local_updates(const trainer_t *trainer);         /* made by this member */

/* For inspan_elastic_options_t: what micro-batches of some sizes take here, a second in all. */
void trainer_calibrate(void *trainer);

/* Hash of the weights as they lie in memory. */
uint64_t trainer_hash(const trainer_t *trainer);

/* The largest micro-batch that is efficient and fits into a step. Where the job leaves the choice: for which
 * the activations also take at most half of `memory`, and the whole worker (data_bytes of files, too) no more
 * than that; at least 1. INVALID. */
inspan_status_t trainer_micro_batch(const job_config_t *job, const nn_model_config_t *model,
                                    uint64_t data_bytes, uint64_t memory, uint32_t *micro_batch,
                                    inspan_error_t *err);

/* Samples per second of all ranks over the last steps, without evaluations; the present step ended at `now`.
 */
double trainer_speed(trainer_t *trainer, ns_t now);

void trainer_report(trainer_t *trainer); /* progress to the hook, now and then a line for people */

#endif
