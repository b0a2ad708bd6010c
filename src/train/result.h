/* The end of a training: the model is written, stored and registered, by whichever member is asked. */
#ifndef TRAIN_RESULT_H
#define TRAIN_RESULT_H

#include "train/trainer.h"

typedef struct result {
    const char *folder; /* the worker's; the result goes to its "out" */
    bool written;       /* asked again, it need not be written again */
} result_t;

/*
 * Write, say SAVED, wait for the answer of agent and manager: as long as the files travel, until the views
 * change, an hour at most (TIMEOUT). OK: registered. PENDING: the view changed first. IO, INVALID, or why the
 * manager will not have it.
 */
inspan_status_t result_save(result_t *result, const trainer_t *trainer, const inspan_views_t *views,
                            uint64_t view, inspan_error_t *err);

#endif
