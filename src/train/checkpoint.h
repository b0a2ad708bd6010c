/*
 * Checkpoints: what a training needs to go on, as a folder that is complete or not there.
 *
 *   DIR/step-00000200/          200 steps are in the weights; step 200, counted from 0, is the next one
 *     model.safetensors         weights, as in a result
 *     config.json               of the model, as in a result: the folder opens in transformers, too
 *     optimizer.safetensors     moments, "exp_avg.h.0.attn.c_attn.weight"
 *     state.json                step, view, and what a job that goes on from here must agree with
 *     manifest.json             written last: name, bytes and xxh128 of each of the others
 *   DIR/step-00000200.tmp-PID   being written (or left behind by a crash; swept when a writer opens)
 *
 * All is written under the temporary name, each file and then the folder synced to the disk, and renamed at
 * the end. So a folder named step-N without a manifest, or whose files are not as its manifest says, was
 * damaged later: checkpoint_find_newest passes it by.
 *
 * The position in the data is a function of the step, the batch and the seed: nothing of it is stored but
 * these.
 */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "nn/nn.h"
#include "train/job.h"

#define CHECKPOINT_PATH_MAX 4096

/* The files of a checkpoint, the manifest last. */
#define CHECKPOINT_FILES 5
extern const char *const checkpoint_files[CHECKPOINT_FILES];

/* What a checkpoint and a job that goes on from it must agree on. Of the optimiser only the kind and which
 * moments it has: a new learning rate or number of steps is the user's right. */
typedef struct checkpoint_config {
    nn_model_config_t model; /* with the data's shape; its seed is compared as well: it orders the samples */
    nn_optimizer_config_t optimizer;
    uint64_t global_batch;
    uint64_t data_samples; /* nn_data_samples; 0: not known, not compared */
} checkpoint_config_t;

/* Of a job; model with the data's shape, data_samples as nn_data_samples gives them. */
void checkpoint_config_of(const job_config_t *job, const nn_model_config_t *model, uint64_t data_samples,
                          checkpoint_config_t *config);

/* Weights and moments, as nn_model_params and nn_optimizer_state give them; the arrays stay the caller's. */
typedef struct checkpoint_arrays {
    const nn_param_t *params, *moments;
    uint32_t n_params, n_moments;
} checkpoint_arrays_t;

/* ---- Writing --------------------------------------------------------------------------------- */

typedef struct checkpoint_writer checkpoint_writer_t;

typedef struct checkpoint_options {
    const char *folder; /* DIR, made if it is not there; copied */
    uint32_t keep; /* complete checkpoints that stay, at least 1; older ones are removed after a new one */
    checkpoint_config_t config; /* copied */
    checkpoint_arrays_t arrays; /* read by checkpoint_begin alone; must outlive the writer */
} checkpoint_options_t;

/* How a checkpoint ended. */
typedef struct checkpoint_result {
    inspan_status_t status; /* OK: it is complete on the disk, and stays when the machine loses its power */
    uint64_t step, view;    /* as given to checkpoint_begin */
    uint64_t bytes;         /* of all its files */
    ns_t took;
    char path[CHECKPOINT_PATH_MAX]; /* DIR/step-00000200 */
    inspan_error_t error;           /* else: what failed and what to do; the training may go on */
} checkpoint_result_t;

/*
 * Memory for one copy of weights and moments, and the one thread that writes; left-overs of crashed writers
 * in the folder are removed. NO_MEMORY, INVALID (keep 0, path too long), IO (the folder cannot be made).
 * One thread at a time uses a writer.
 */
inspan_status_t checkpoint_open(const checkpoint_options_t *options, checkpoint_writer_t **writer,
                                inspan_error_t *err);

/* Is there room for one checkpoint more, and for the result, which must not fail for it? IO: "a checkpoint
 * needs 1.2 GB and the result 400 MB, /x has 300 MB free". Looked at before each one is written, too; for the
 * start of a training, so that a full disk is known then. */
inspan_status_t checkpoint_check_room(const checkpoint_writer_t *writer, inspan_error_t *err);

/*
 * Copy weights and moments as they are now, with `step` steps in them, and have them written. Blocks for the
 * copy alone (memory speed). LIMIT: the one before is not finished, or its result was not polled: nothing is
 * copied, this one is left out (the text says so: to be shown, no reason to stop). Never waits for the disk.
 */
inspan_status_t checkpoint_begin(checkpoint_writer_t *writer, uint64_t step, uint64_t view,
                                 inspan_error_t *err);

/* true, once for each checkpoint_begin: it is complete or has failed, as *result says. Does not block. */
bool checkpoint_poll(checkpoint_writer_t *writer, checkpoint_result_t *result);

/* The same, waiting up to `bound` for one that is being written; false: none was, or the bound has passed. */
bool checkpoint_wait(checkpoint_writer_t *writer, ns_t bound, checkpoint_result_t *result);

/* Gives up what is being written, after the file that is under way, and joins the thread: as long as the disk
 * takes for one file. A result not polled is lost (its folder is not). NULL is fine. */
void checkpoint_close(checkpoint_writer_t *writer);

/* ---- Finding and loading --------------------------------------------------------------------- */

typedef struct checkpoint_found {
    uint64_t step;
    char path[CHECKPOINT_PATH_MAX];
} checkpoint_found_t;

/* Called for each damaged checkpoint that is passed by; the text names the file and what is wrong. */
typedef void (*checkpoint_warn_fn)(void *context, const char *text);

/* The newest complete checkpoint in a folder: sizes and checksums of all its files are right (so each byte is
 * read). warn may be NULL. NOT_FOUND: none (the text says what there is), IO, INVALID (path too long). */
inspan_status_t checkpoint_find_newest(const char *folder, checkpoint_warn_fn warn, void *context,
                                       checkpoint_found_t *found, inspan_error_t *err);

/* The highest step of which there is a folder, whole or not; false: none. */
bool checkpoint_highest(const char *folder, uint64_t *step);

/* Is the folder `path` a complete checkpoint? *step: its step. CORRUPT, NOT_FOUND, IO, VERSION, NO_MEMORY:
 * the text names the file, expected and found. */
inspan_status_t checkpoint_verify(const char *path, uint64_t *step, inspan_error_t *err);

typedef struct checkpoint_state {
    uint64_t step, view; /* the training goes on with step `step` (counted from 0) */
} checkpoint_state_t;

/*
 * checkpoint_verify, then compare with the job, then load weights and moments. MISMATCH: the text names the
 * field, what the job has and what the checkpoint has. Nothing is loaded unless everything agrees; after IO
 * or NO_MEMORY in the middle of it, moments may be loaded and weights not: load another or end.
 */
inspan_status_t checkpoint_load(const char *path, const checkpoint_config_t *config,
                                const checkpoint_arrays_t *arrays, checkpoint_state_t *state,
                                inspan_error_t *err);

/* The comparison alone, without arrays or checksums (the CLI's, before it submits). */
inspan_status_t checkpoint_agrees(const char *path, const checkpoint_config_t *config,
                                  checkpoint_state_t *state, inspan_error_t *err);

/* ---- Folders that come from elsewhere -------------------------------------------------------- */

/* "step-00000200" */
void checkpoint_name(uint64_t step, char name[32]);

/* Where a checkpoint of this step is to be put together: DIR/step-00000200.tmp-PID, made anew. IO, INVALID.
 */
inspan_status_t checkpoint_stage(const char *folder, uint64_t step, char path[CHECKPOINT_PATH_MAX],
                                 inspan_error_t *err);

/*
 * All files lie in `staged`: check them (checkpoint_verify), sync, rename to DIR/step-N in place of what is
 * there, remove the oldest so that `keep` with steps up to this one stay. What fails leaves the folder as it
 * was, but for `staged`, which is removed. CORRUPT, IO.
 */
inspan_status_t checkpoint_install(const char *folder, const char *staged, uint64_t step, uint32_t keep,
                                   inspan_error_t *err);

/* Remove temporary folders whose process is gone, or is this one. */
void checkpoint_sweep(const char *folder);

#endif
