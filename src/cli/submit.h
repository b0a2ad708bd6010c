/*
 * From a job file to a running job: read and check everything that can be checked on this machine (fields,
 * data, model size) before anything is sent; then data to the manager, then the job.
 *
 * Relative paths in the job file start at its folder, those that --set gives at the current one.
 */
#ifndef CLI_SUBMIT_H
#define CLI_SUBMIT_H

#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/place.h"
#include "rpc/rpc_files.h"
#include "train/checkpoint.h"
#include "train/job.h"

#define SUBMIT_DATA_MAX  2                     /* data.path, data.labels */
#define SUBMIT_PUT_LIMIT ((uint64_t)256000000) /* larger data must lie at the same path on the nodes */
#define SUBMIT_NODES_MAX 256

typedef struct submit_data {
    const char *key; /* "data.path" */
    char path[PLACE_PATH_MAX];
    char hash[RPC_FILE_HASH];
    uint64_t bytes;
} submit_data_t;

/* The checkpoint from which the job goes on. */
typedef struct submit_resume {
    bool given;
    uint64_t step, view;
    submit_data_t files[CHECKPOINT_FILES]; /* key: the file's name */
    char path[CHECKPOINT_PATH_MAX];
} submit_resume_t;

typedef struct submit {
    job_config_t job;
    char folder[PLACE_PATH_MAX];  /* of the job file */
    char results[PLACE_PATH_MAX]; /* checkpoint.dir */
    submit_data_t data[SUBMIT_DATA_MAX];
    uint32_t n_data;
    uint64_t memory_bytes, model_bytes; /* that a node needs in all; without the data */
    uint64_t samples;                   /* training samples in the data */
    nn_model_config_t model;            /* with the data's shape */
    submit_resume_t resume;
    char *pinned[SUBMIT_NODES_MAX];
    uint32_t n_pinned;
    uint32_t start_nodes; /* to begin with; 0: nodes.min */
} submit_t;

/* Read FILE.yaml, apply the "key=value" overrides and check. All faults are the user's: any status. */
inspan_status_t submit_prepare(const char *path, const cli_list_t *set, submit_t *submit,
                               inspan_error_t *err);

/* Go on from the newest complete checkpoint in checkpoint.dir (damaged ones are told on stderr). NOT_FOUND:
 * there is none; MISMATCH: it is of another job; INVALID: the job has ended with it. */
inspan_status_t submit_find_checkpoint(submit_t *submit, inspan_error_t *err);

/* Whether results can be written to checkpoint.dir, before hours of training; makes nothing. INVALID
 * (also where checkpoints of an earlier training lie there, which new ones would mix with), IO. */
inspan_status_t submit_check_results(const submit_t *submit, inspan_error_t *err);

uint32_t submit_keep(const submit_t *submit); /* checkpoint.keep */

/* "A,B" -> pinned nodes; the text is cut up in place and must outlive submit. INVALID. */
inspan_status_t submit_pin(submit_t *submit, char *nodes, inspan_error_t *err);

/* Send the data unless it is there (with a progress line on stderr), and the job. *id: its number. ABORTED:
 * interrupted before. */
inspan_status_t submit_send(const submit_t *submit, rpc_client_t *client, interrupt_t *interrupt,
                            uint64_t *id, inspan_error_t *err);

#endif
