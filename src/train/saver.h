/*
 * When a worker writes checkpoints and when it says so: the leader copies at the commit of a due step, the
 * writer's thread writes, and the checkpoint is announced when it is complete and a later step has committed
 * (rule R4): that proves that every member has the step in its weights.
 *
 *   due -> written (checkpoint.h's thread) -> ready -R4-> said -answer-> registered
 *
 * At most one is said and one more ready or being written; what comes due then is left out, and that is
 * shown: a slow disk or link never slows the training. The training thread's alone.
 */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H

#include <stdio.h>

#include "train/checkpoint.h"
#include "worker/views.h"

typedef struct saver saver_t;

typedef struct saver_options {
    const inspan_views_t *views; /* outlive the saver */
    const char *folder;          /* the worker's own; checkpoints lie below it */
    uint64_t every;              /* steps between checkpoints; 0: none are written */
    uint32_t keep;
    checkpoint_config_t config; /* copied */
    checkpoint_arrays_t arrays; /* outlive the saver */
    FILE *out;                  /* lines for people; NULL: none */
    void *context;
    void (*note)(void *context, const char *text); /* what went wrong, for who watches the job; may be NULL */
    /* Before one is announced: the ledger must reach the manager first, for all workers may die right after
     * it is registered. May be NULL. */
    void (*announcing)(void *owner);
    void *owner;
} saver_options_t;

/* Takes no memory for a copy yet: only a leader needs it. NO_MEMORY, INVALID (path too long). */
inspan_status_t saver_open(const saver_options_t *options, saver_t **saver, inspan_error_t *err);
/* Gives up what is being written. The worker's own checkpoints are removed, unless one is on its way to the
 * manager. NULL is fine. */
void saver_close(saver_t *saver);

/*
 * Step `step` has committed and its update is in the weights (a light step has none). leads: this member is
 * the leader of the view and holds all weights. Blocks for a copy at most. Failures are told and end nothing.
 */
void saver_committed(saver_t *saver, uint64_t step, uint64_t view, bool leads);

/* At the end, before the result: see the last checkpoint written, announced and answered. OK, also where that
 * failed (it is told); PENDING: the views have changed first. */
inspan_status_t saver_finish(saver_t *saver, uint64_t view);

/* The next answer about a *result*; those about checkpoints are taken on the way. false: none. All answers
 * must be asked for here. */
bool saver_answer(saver_t *saver, worker_registered_t *answer);

#endif
