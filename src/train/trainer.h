/*
 * One rank's training loop over a communicator, without the process around it: the worker (train.c) gives it
 * the agent's communicator, tests give it one of theirs.
 *
 * Per step s, with fixed members: every rank computes its share of the samples [s B, (s + 1) B) in
 * micro-batches, each bucket of gradients is reduced while the last backward pass goes on, all ranks commit,
 * each applies the same mean gradient. After the first step nothing is allocated.
 *
 * Threads: the caller's one; the communicator's I/O thread works behind it. Blocks for as long as the
 * training lasts; every wait inside is bounded.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdio.h>

#include <inspan/comm.h>
#include <inspan/worker.h>

#include "train/job.h"

typedef struct trainer trainer_t;

/* Called on the trainer's thread, between steps; each may be NULL. */
typedef struct trainer_hooks {
    void *context;
    bool (*cancelled)(void *context);
    /* This rank fails first: tell the others too. NULL: inspan_comm_abort. */
    void (*failed)(void *context, inspan_status_t status, const char *text);
    void (*progress)(void *context, const inspan_progress_t *progress);
    void (*applied)(void *context, uint64_t step, uint64_t param_hash); /* step's update is in the weights */
} trainer_hooks_t;

typedef struct trainer_options {
    const job_config_t *job; /* copied */
    inspan_comm_t *comm;     /* stays the caller's; outlives the trainer */
    uint64_t view;
    uint32_t threads;
    FILE *out; /* lines for people; NULL: none */
    trainer_hooks_t hooks;
} trainer_options_t;

/* Load the data, make model, optimiser and reducer; all ranks meet here: MISMATCH where their weights differ.
 * What nn_data_open, nn_model_open, nn_optimizer_open, inspan_ddp_open give. */
inspan_status_t trainer_open(const trainer_options_t *options, trainer_t **trainer, inspan_error_t *err);
void trainer_close(trainer_t *trainer);

/* All steps. ABORTED: cancelled; MISMATCH: weights differ between ranks (names them); INVALID: it diverged;
 * or the communicator's cause. After a failure no rank goes on: either all see it, or the communicator is
 * poisoned.
 */
inspan_status_t trainer_run(trainer_t *trainer, inspan_error_t *err);

/* Rank 0 writes model.safetensors and config.json into folder; all ranks return when that is done (or
 * failed), so that none says it is finished while the result is not there. IO on rank 0, its cause on the
 * others. */
inspan_status_t trainer_save(trainer_t *trainer, const char *folder, inspan_error_t *err);

/* This rank's summary as JSON text; the caller frees. NULL: no memory. */
char *trainer_summary(const trainer_t *trainer);

const nn_model_t *trainer_model(const trainer_t *trainer);

#endif
