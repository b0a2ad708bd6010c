/*
 * One worker's training loop, without the process around it: the worker (train.c) gives it the agent's views,
 * tests give it theirs.
 *
 * The loop asks the step driver (<inspan/elastic.h>) for work. COMPUTE: forward and backward over a run of
 * leases of the step's samples, in micro-batches; each bucket of gradients is reduced while the last backward
 * pass goes on. APPLY: every member has voted; each applies the same mean gradient. Members may come and go
 * at any time. Where held out samples are to be looked at, each lease of the step that follows looks at its
 * slice of them, with the weights before that step; the sums ride in the step's tally, so every sample counts
 * once and nobody waits. After the first steps nothing is allocated while the members stay the same.
 *
 * Threads: the caller's one; the communicator's I/O thread works behind it. Blocks for as long as the
 * training lasts; every wait inside is bounded.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdio.h>

#include <inspan/elastic.h>

#include "train/job.h"
#include "worker/views.h"

typedef struct trainer trainer_t;

/* Called on the trainer's thread; each may be NULL. */
typedef struct trainer_hooks {
    void *context;
    /* This rank fails first: tell the others too. NULL: the view's communicator is poisoned. */
    void (*failed)(void *context, inspan_status_t status, const char *text);
    void (*progress)(void *context, const inspan_progress_t *progress);
    void (*computing)(void *context, const inspan_work_t *work);        /* before its samples */
    void (*applied)(void *context, uint64_t step, uint64_t param_hash); /* step's update is in the weights */
    /*
     * All steps are done, and this member is to save the result (trainer_save) and to have it registered
     * under `view`. OK: it is. PENDING: the view changed first, and whoever is asked then does it again.
     * Else: it cannot be.
     */
    inspan_status_t (*save)(void *context, trainer_t *trainer, uint64_t view, inspan_error_t *err);
    void (*note)(void *context, const char *text); /* for those who watch the job: it ends nothing */
} trainer_hooks_t;

typedef struct trainer_options {
    const job_config_t *job;     /* copied */
    const inspan_views_t *views; /* the caller's; outlive the trainer */
    bool newcomer;               /* the job runs already: weights come from the members */
    const char *folder;          /* the worker's own, checkpoints lie below it; NULL: none are written */
    const char *resume;          /* a checkpoint's folder, to go on from; NULL: from the start */
    bool shuffle_buckets;        /* for tests: inspan_elastic_options_t */
    uint32_t threads;
    FILE *out; /* lines for people; NULL: none */
    trainer_hooks_t hooks;
} trainer_options_t;

/* Load the data, make model, optimiser and driver, load the checkpoint; waits for nobody. What nn_data_open,
 * nn_model_open, nn_optimizer_open, checkpoint_load, inspan_elastic_open give. */
inspan_status_t trainer_open(const trainer_options_t *options, trainer_t **trainer, inspan_error_t *err);
void trainer_close(trainer_t *trainer);

/*
 * All steps, until the result is registered or this member was let go (both OK). ABORTED: stopped; MISMATCH:
 * weights differ between ranks (names them), or a lease was not counted once; INVALID: it diverged; what else
 * inspan_elastic_next gives. A lost member is no failure.
 */
inspan_status_t trainer_run(trainer_t *trainer, inspan_error_t *err);

/* Write model.safetensors and config.json into folder. IO. */
inspan_status_t trainer_save(const trainer_t *trainer, const char *folder, inspan_error_t *err);

/* The next answer about the result; those about checkpoints are taken on the way. false: none yet. */
bool trainer_answer(const trainer_t *trainer, worker_registered_t *answer);

/* true: the views have something new; a save hook that waits gives up then. */
bool trainer_view_changed(const trainer_t *trainer);

/* This rank's summary as JSON text; the caller frees. NULL: no memory. */
char *trainer_summary(const trainer_t *trainer);

const nn_model_t *trainer_model(const trainer_t *trainer);

#endif
