/*
 * The job file's fields: one table (key, type, default, range) from which parsing, --set, printing and the
 * flat `key=value` text that travels to the workers are made. YAML itself is the CLI's.
 */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include <inspan/comm.h>

#include "base/units.h"
#include "nn/nn.h"

#define JOB_TEXT_MAX 256

typedef struct job_config {
    char name[JOB_TEXT_MAX];
    struct {
        char kind[16]; /* gpt, mlp, conv */
        uint32_t layers, heads, dim, context, filters;
    } model;
    struct {
        char kind[16]; /* text, idx, csv */
        char path[JOB_TEXT_MAX], labels[JOB_TEXT_MAX];
        double validation;
    } data;
    struct {
        uint64_t steps, global_batch, micro_batch; /* micro_batch 0: auto */
        char optimizer[16], dtype[16];             /* adamw, sgd; fp32, fp64 */
        double lr, min_lr, momentum, beta1, beta2, eps, weight_decay, clip;
        uint64_t warmup, seed, evaluate_every; /* evaluate_every 0: at the start and the end */
        uint64_t evaluate_samples;             /* the first of the held-out samples; 0: all */
        uint64_t check_every;                  /* steps between comparisons of the ranks' weights */
    } train;
    struct {
        uint32_t min, max;
        uint64_t memory; /* bytes that a node must have, 0: what the model needs */
        char gpu[16], labels[JOB_TEXT_MAX];
    } nodes;
    struct {
        char mode[16], wire[16], backend[16], bucket[16],
            exactness[16];               /* exact, auto, auto, auto (or a size), exact */
        char order[16];                  /* reversed, registered: of gradients in the first buckets */
        char split[16];                  /* auto, equal */
        uint64_t local_batch;            /* mode local: samples of an update of a node's own weights */
        double outer_lr, outer_momentum; /* mode local: how the job's weights follow */
    } sync;
    ns_t failure_timeout;
    char on_loss[16]; /* recompute, drop, abort */
    struct {
        uint64_t every, keep;
        char dir[JOB_TEXT_MAX];
    } checkpoint;
} job_config_t;

typedef enum job_field_type {
    JOB_STRING,
    JOB_CHOICE,
    JOB_U32,
    JOB_U64,
    JOB_REAL,
    JOB_SIZE,
    JOB_DURATION
} job_field_type_t;

typedef struct job_field {
    const char *key; /* "train.lr" */
    job_field_type_t type;
    size_t offset;
    const char *initial; /* default as text; NULL: required */
    const char *choices; /* "adamw|sgd" */
    double least, most;
    const char *help;
} job_field_t;

const job_field_t *job_fields(size_t *n);
void job_defaults(job_config_t *job);

/* Set one field from text. INVALID: unknown key (with the nearest known one), wrong type, out of range. */
inspan_status_t job_set(job_config_t *job, const char *key, const char *value, inspan_error_t *err);

/* What no single field shows: divisibility (dim by heads), data.path given, choices not built yet
 * (UNSUPPORTED). */
inspan_status_t job_validate(const job_config_t *job, inspan_error_t *err);

/* The flat text, one `key=value` a line, and back. */
inspan_status_t job_format(const job_config_t *job, char *text, size_t size);
inspan_status_t job_parse(const char *text, job_config_t *job, inspan_error_t *err);

/* Model, data and optimiser configs of a job; the data's shape must be filled in by nn_data_shape afterwards.
 */
void job_model_config(const job_config_t *job, nn_model_config_t *model);
void job_data_config(const job_config_t *job, nn_data_config_t *data);
void job_optimizer_config(const job_config_t *job, nn_optimizer_config_t *optimizer);

/* sync.bucket in bytes, 0 for auto. INVALID. */
inspan_status_t job_bucket_bytes(const job_config_t *job, uint64_t *bytes, inspan_error_t *err);

/* sync.wire; auto: what the job begins with. */
inspan_wire_t job_wire(const job_config_t *job);
uint32_t job_wires(const job_config_t *job); /* auto: bit of each type that may be chosen; 0: no other */
bool job_is_local(const job_config_t *job);  /* sync.mode local */

/* Samples of one forward and backward: the job's, or for auto what keeps matrix products efficient; never
 * more than the largest share of a step that a rank can get, at least 1. */
uint32_t job_micro_batch(const job_config_t *job, uint64_t largest_share);

/* What decides how long a sample and a step take on a machine, as a text: "gpt 6x384 heads 6 context 128
 * vocabulary 256 fp32 adamw". Speeds of machines are kept under it. `model` with the data's shape. */
#define JOB_KEY_MAX 128
void job_model_key(const job_config_t *job, const nn_model_config_t *model, char key[JOB_KEY_MAX]);

/* Bytes a worker needs in all: weights, gradients, reduced copies, optimiser state, activations, data.
 * `model` with the data's shape; micro_batch 0: the least with which the job can run, that is the job's own,
 * or 1 where it leaves the choice, as a worker then takes what fits. INVALID. */
inspan_status_t job_memory(const job_config_t *job, const nn_model_config_t *model, uint32_t micro_batch,
                           uint64_t data_bytes, uint64_t *bytes, inspan_error_t *err);

#endif
