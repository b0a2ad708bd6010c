/* state.json, and loading a checkpoint: everything is compared with the job before anything is loaded. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/checkpoint_internal.h"

#define FIELDS_MAX 16
#define VALUE_MAX  32

void checkpoint_config_of(const job_config_t *job, const nn_model_config_t *model, uint64_t data_samples,
                          checkpoint_config_t *config)
{
    memset(config, 0, sizeof *config);
    config->model = *model;
    job_optimizer_config(job, &config->optimizer);
    config->global_batch = job->train.global_batch;
    config->data_samples = data_samples;
}

/* ---- What must agree ------------------------------------------------------------------------- */

/* One fact as text, under the name that a job file has for it. */
typedef struct field {
    const char *key;
    char value[VALUE_MAX];
} field_t;

typedef struct fields {
    field_t field[FIELDS_MAX];
    size_t n;
} fields_t;

static void add_text(fields_t *fields, const char *key, const char *value)
{
    field_t *field = &fields->field[fields->n++];
    field->key = key;
    snprintf(field->value, sizeof field->value, "%s", value);
}

/* As text, for a seed has more digits than a number of JSON. */
static void add_number(fields_t *fields, const char *key, uint64_t number)
{
    char value[VALUE_MAX];
    snprintf(value, sizeof value, "%" PRIu64, number);
    add_text(fields, key, value);
}

/* Those fields of the model that its kind looks at. */
static void add_model(fields_t *fields, const nn_model_config_t *model)
{
    static const char *const kinds[] = {[NN_GPT] = "gpt", [NN_MLP] = "mlp", [NN_CONV] = "conv"};
    add_text(fields, "model.kind", kinds[model->kind]);
    add_text(fields, "train.dtype", model->dtype == NN_FP64 ? "fp64" : "fp32");
    switch (model->kind) {
    case NN_GPT:
        add_number(fields, "model.layers", model->layers);
        add_number(fields, "model.heads", model->heads);
        add_number(fields, "model.dim", model->dim);
        add_number(fields, "model.context", model->context);
        add_number(fields, "the vocabulary", model->vocabulary);
        break;
    case NN_MLP:
        add_number(fields, "model.layers", model->layers);
        add_number(fields, "model.dim", model->dim);
        add_number(fields, "inputs of the data", model->inputs);
        add_number(fields, "classes of the data", model->classes);
        break;
    case NN_CONV:
        add_number(fields, "model.filters", model->filters);
        add_number(fields, "channels of the data", model->channels);
        add_number(fields, "height of the data", model->height);
        add_number(fields, "width of the data", model->width);
        add_number(fields, "classes of the data", model->classes);
        break;
    }
}

static void list_fields(const checkpoint_config_t *config, fields_t *fields)
{
    const nn_optimizer_config_t *optimizer = &config->optimizer;
    fields->n = 0;
    add_model(fields, &config->model);
    add_text(fields, "train.optimizer", optimizer->kind == NN_SGD ? "sgd" : "adamw");
    if (optimizer->kind == NN_SGD) /* only whether there is a moment */
        add_text(fields, "train.momentum", optimizer->momentum > 0 ? "above 0" : "0");
    add_number(fields, "train.global_batch", config->global_batch);
    add_number(fields, "train.seed", config->model.seed);
    if (config->data_samples > 0) add_number(fields, "samples of the data", config->data_samples);
}

inspan_status_t checkpoint_state_write(const char *folder, const checkpoint_config_t *config,
                                       const checkpoint_state_t *state, inspan_error_t *err)
{
    char path[CHECKPOINT_PATH_MAX];
    fields_t fields;
    inspan_status_t status = checkpoint_path(folder, CHECKPOINT_STATE, path, err);
    if (status != INSPAN_OK) return status;
    json_t *out = json_object(), *job = json_object();
    json_set_number(out, "version", CHECKPOINT_VERSION);
    json_set_number(out, "step", (double)state->step);
    json_set_number(out, "view", (double)state->view);
    list_fields(config, &fields);
    for (size_t i = 0; i < fields.n; i++) json_set_string(job, fields.field[i].key, fields.field[i].value);
    json_set(out, "job", job);
    return checkpoint_write_json(path, out, err);
}

/* ---- The comparison -------------------------------------------------------------------------- */

static inspan_status_t compare(const char *path, const json_t *json, const checkpoint_config_t *config,
                               inspan_error_t *err)
{
    fields_t fields;
    list_fields(config, &fields);
    for (size_t i = 0; i < fields.n; i++) {
        const field_t *field = &fields.field[i];
        const char *found = json_get_string(json, field->key);
        if (found == NULL && strcmp(field->key, "samples of the data") == 0) continue; /* not known there */
        if (found == NULL)
            return error_set(err, INSPAN_CORRUPT, "%s/" CHECKPOINT_STATE " does not say its %s", path,
                             field->key);
        if (strcmp(found, field->value) != 0)
            return error_set(
                err, INSPAN_MISMATCH,
                "checkpoint %.200s does not belong to this job: %s is %s in the job, %.31s in the "
                "checkpoint; make the job agree, or train anew in another checkpoint.dir",
                path, field->key, field->value, found);
    }
    return INSPAN_OK;
}

inspan_status_t checkpoint_agrees(const char *folder, const checkpoint_config_t *config,
                                  checkpoint_state_t *state, inspan_error_t *err)
{
    inspan_error_t unused;
    char path[CHECKPOINT_PATH_MAX];
    json_t *json = NULL;
    uint64_t version = 0;
    if (err == NULL) err = &unused;
    inspan_status_t status = checkpoint_path(folder, CHECKPOINT_STATE, path, err);
    if (status == INSPAN_OK) status = checkpoint_read_json(path, &json, err);
    if (status != INSPAN_OK) return status;
    status = checkpoint_whole(json, "version", &version, err);
    if (status == INSPAN_OK && version != CHECKPOINT_VERSION)
        status = error_set(err, INSPAN_VERSION, "version %" PRIu64 ", this program reads version %d", version,
                           CHECKPOINT_VERSION);
    if (status == INSPAN_OK) status = checkpoint_whole(json, "step", &state->step, err);
    if (status == INSPAN_OK) status = checkpoint_whole(json, "view", &state->view, err);
    if (status != INSPAN_OK) error_prefix(err, "%s", path);
    if (status == INSPAN_OK) status = compare(folder, json_get(json, "job"), config, err);
    json_free(json);
    if (status == INSPAN_OK && state->step > config->optimizer.steps)
        status = error_set(err, INSPAN_MISMATCH,
                           "checkpoint %.200s has %" PRIu64
                           " steps behind it, the job ends at train.steps %" PRIu64 ": raise train.steps",
                           folder, state->step, config->optimizer.steps);
    return status;
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* nn_safetensors_read writes through the pointers of a list of its caller's. */
static inspan_status_t read_tensors(const char *folder, const char *name, const nn_param_t *tensors,
                                    uint32_t n, nn_dtype_t dtype, inspan_error_t *err)
{
    char path[CHECKPOINT_PATH_MAX];
    inspan_status_t status = checkpoint_path(folder, name, path, err);
    if (status != INSPAN_OK) return status;
    nn_param_t *into = calloc((size_t)n + 1, sizeof *into);
    if (into == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to read %s", path);
    if (n > 0) memcpy(into, tensors, n * sizeof *into);
    status = nn_safetensors_read(path, into, n, dtype, err);
    free(into);
    return status;
}

static inspan_status_t check_tensors(const char *folder, const char *name, const nn_param_t *tensors,
                                     uint32_t n, inspan_error_t *err)
{
    char path[CHECKPOINT_PATH_MAX];
    uint64_t bytes = 0;
    inspan_status_t status = checkpoint_path(folder, name, path, err);
    return status == INSPAN_OK ? nn_safetensors_check(path, tensors, n, &bytes, err) : status;
}

inspan_status_t checkpoint_load(const char *path, const checkpoint_config_t *config,
                                const checkpoint_arrays_t *arrays, checkpoint_state_t *state,
                                inspan_error_t *err)
{
    inspan_error_t unused;
    uint64_t step = 0;
    if (err == NULL) err = &unused;
    inspan_status_t status = checkpoint_verify(path, &step, err);
    if (status == INSPAN_OK) status = checkpoint_agrees(path, config, state, err);
    if (status == INSPAN_OK && state->step != step)
        status = error_set(err, INSPAN_CORRUPT,
                           "%s: " CHECKPOINT_MANIFEST " is of step %" PRIu64 ", " CHECKPOINT_STATE
                           " of step %" PRIu64,
                           path, step, state->step);
    if (status == INSPAN_OK)
        status = check_tensors(path, CHECKPOINT_OPTIMIZER, arrays->moments, arrays->n_moments, err);
    if (status == INSPAN_OK)
        status = check_tensors(path, CHECKPOINT_WEIGHTS, arrays->params, arrays->n_params, err);
    if (status == INSPAN_OK)
        status = read_tensors(path, CHECKPOINT_OPTIMIZER, arrays->moments, arrays->n_moments,
                              config->model.dtype, err);
    if (status == INSPAN_OK)
        status = read_tensors(path, CHECKPOINT_WEIGHTS, arrays->params, arrays->n_params, config->model.dtype,
                              err);
    return status;
}
