#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_cgroup.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

/* ---- Opening --------------------------------------------------------------------------------- */

static uint64_t file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > 0 ? (uint64_t)info.st_size : 0;
}

/* This machine's memory, divided among the ranks that live at this rank's address. */
static uint64_t own_memory(const trainer_t *trainer)
{
    const char *here = inspan_comm_member(trainer->comm, trainer->rank)->address;
    uint64_t together = 0;
    for (uint32_t i = 0; i < trainer->world; i++)
        together += strcmp(inspan_comm_member(trainer->comm, i)->address, here) == 0;
    return os_memory_bytes() / (together > 0 ? together : 1);
}

static inspan_status_t choose_micro_batch(trainer_t *trainer, inspan_error_t *err)
{
    const uint64_t largest_share = (trainer->job.train.global_batch + trainer->world - 1) / trainer->world;
    const uint64_t data = file_bytes(trainer->job.data.path) + file_bytes(trainer->job.data.labels);
    return trainer_micro_batch(&trainer->job, &trainer->model_config, largest_share, data,
                               own_memory(trainer), &trainer->micro_batch, err);
}

static inspan_status_t open_data_and_model(trainer_t *trainer, inspan_error_t *err)
{
    nn_data_config_t data;
    nn_optimizer_config_t optimizer;
    job_data_config(&trainer->job, &data);
    job_model_config(&trainer->job, &trainer->model_config);
    job_optimizer_config(&trainer->job, &optimizer);
    inspan_status_t status = nn_data_open(&data, &trainer->data, err);
    if (status != INSPAN_OK) return status;
    nn_data_shape(trainer->data, &trainer->model_config);
    status = choose_micro_batch(trainer, err);
    if (status == INSPAN_OK && nn_data_reserve(trainer->data, trainer->micro_batch) != INSPAN_OK)
        status =
            error_set(err, INSPAN_NO_MEMORY, "no memory for batches of %u samples", trainer->micro_batch);
    if (status == INSPAN_OK)
        status = nn_model_open(&trainer->model_config, trainer->micro_batch, trainer->threads,
                               &trainer->model, err);
    if (status != INSPAN_OK) return status;
    trainer->n_params = nn_model_params(trainer->model, &trainer->params);
    return nn_optimizer_open(&optimizer, trainer->params, trainer->n_params, trainer->model_config.dtype,
                             &trainer->optimizer, err);
}

static inspan_status_t open_reducer(trainer_t *trainer, inspan_error_t *err)
{
    const uint32_t n = trainer->n_params;
    inspan_ddp_options_t options = {.timeout_ns = TRAIN_WAIT};
    options.dtype = trainer->model_config.dtype == NN_FP64 ? INSPAN_FP64 : INSPAN_FP32;
    inspan_status_t status = job_bucket_bytes(&trainer->job, &options.bucket_bytes, err);
    if (status != INSPAN_OK) return status;
    inspan_parameter_t *parameters = calloc(n, sizeof *parameters);
    trainer->local = calloc(n, sizeof *trainer->local);
    trainer->reduced = calloc(n, sizeof *trainer->reduced);
    for (int i = 0; i < 2; i++) trainer->hashes[i] = calloc((size_t)trainer->world * 2, sizeof(double));
    if (!parameters || !trainer->local || !trainer->reduced || !trainer->hashes[0] || !trainer->hashes[1]) {
        free(parameters);
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u parameters", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const nn_param_t *param = &trainer->params[i];
        parameters[i] = (inspan_parameter_t){.name = param->name,
                                             .count = param->count,
                                             .n_dims = param->n_dims,
                                             .shape = param->shape,
                                             .weights = param->weights};
    }
    status = inspan_ddp_open(trainer->comm, parameters, n, &options, &trainer->ddp, err);
    free(parameters);
    for (uint32_t i = 0; i < n && status == INSPAN_OK; i++) {
        trainer->local[i] = inspan_ddp_local(trainer->ddp, i);
        trainer->reduced[i] = inspan_ddp_reduced(trainer->ddp, i);
    }
    return status;
}

inspan_status_t trainer_open(const trainer_options_t *options, trainer_t **out, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    trainer_t *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the trainer");
    trainer->job = *options->job;
    trainer->comm = options->comm;
    trainer->view = options->view;
    trainer->rank = inspan_comm_rank(options->comm);
    trainer->world = inspan_comm_world(options->comm);
    trainer->threads = options->threads;
    trainer->out = options->out;
    trainer->hooks = options->hooks;
    trainer->loss = trainer->loss_first = NAN;
    trainer->validation = trainer->validation_first = trainer->accuracy = NAN;
    inspan_status_t status = job_validate(&trainer->job, err);
    if (status == INSPAN_OK) status = open_data_and_model(trainer, err);
    if (status == INSPAN_OK) status = open_reducer(trainer, err);
    if (status != INSPAN_OK) {
        trainer_fail(trainer, err);
        trainer_close(trainer);
        return status;
    }
    *out = trainer;
    return INSPAN_OK;
}

void trainer_close(trainer_t *trainer)
{
    if (trainer == NULL) return;
    inspan_ddp_close(trainer->ddp);
    nn_optimizer_close(trainer->optimizer);
    nn_model_close(trainer->model);
    nn_data_close(trainer->data);
    free(trainer->local);
    free(trainer->reduced);
    free(trainer->hashes[0]);
    free(trainer->hashes[1]);
    free(trainer);
}

const nn_model_t *trainer_model(const trainer_t *trainer)
{
    return trainer->model;
}

/* ---- Failures -------------------------------------------------------------------------------- */

inspan_status_t trainer_fail(trainer_t *trainer, inspan_error_t *err)
{
    inspan_cause_t cause;
    if (inspan_comm_cause(trainer->comm, &cause)) return err->status;
    if (trainer->hooks.failed != NULL)
        trainer->hooks.failed(trainer->hooks.context, err->status, err->text);
    else
        inspan_comm_abort(trainer->comm, err->text);
    return err->status;
}

inspan_status_t trainer_fault(const trainer_t *trainer, inspan_status_t status, const char *what,
                              inspan_error_t *err)
{
    inspan_cause_t cause;
    if (inspan_comm_cause(trainer->comm, &cause))
        return error_set(err, cause.status, "%s: %s", what, cause.text);
    return error_set(err, status, "%s: %s", what, inspan_status_text(status));
}

inspan_status_t trainer_wait(trainer_t *trainer, inspan_op_t *op, const char *what, inspan_error_t *err)
{
    inspan_status_t status = inspan_op_wait(op, TRAIN_WAIT);
    if (status == INSPAN_TIMEOUT) {
        inspan_comm_abort(trainer->comm, what);
        status = inspan_op_wait(op, TRAIN_WAIT); /* poisoned: at once */
        if (status == INSPAN_OK) status = INSPAN_TIMEOUT;
    }
    return status == INSPAN_OK ? INSPAN_OK : trainer_fault(trainer, status, what, err);
}

/* ---- One step -------------------------------------------------------------------------------- */

/* After a failure in mid-step: finish sees that gradients are missing, gives up for all and waits for what
 * was begun. */
static void break_off(trainer_t *trainer, inspan_error_t *err)
{
    inspan_ddp_result_t result;
    trainer_fail(trainer, err);
    inspan_ddp_finish(trainer->ddp, 0, &result, NULL);
}

static void on_ready(void *context, uint32_t index)
{
    inspan_ddp_ready(((trainer_t *)context)->ddp, index);
}

/* Forward and backward over this rank's samples; *loss_sum is their loss. */
static inspan_status_t compute(trainer_t *trainer, double *loss_sum, inspan_error_t *err)
{
    uint64_t first = 0, n = 0;
    step_share(trainer->step, trainer->job.train.global_batch, trainer->rank, trainer->world, &first, &n);

    *loss_sum = 0;
    if (n == 0) return inspan_ddp_seal(trainer->ddp, 0, err);
    for (uint64_t done = 0; done < n;) {
        nn_batch_t batch;
        double loss = 0;
        uint32_t size = n - done < trainer->micro_batch ? (uint32_t)(n - done) : trainer->micro_batch;
        bool last = done + size == n;
        ns_t start = os_now();
        nn_data_batch(trainer->data, first + done, size, &batch);
        ns_t loaded = os_now();
        inspan_status_t status = last ? inspan_ddp_seal(trainer->ddp, n, err) : INSPAN_OK;
        if (status == INSPAN_OK)
            status = nn_model_backward(trainer->model, &batch, trainer->local, last ? on_ready : NULL,
                                       trainer, &loss, err);
        if (status != INSPAN_OK) return status;
        trainer->input += loaded - start;
        trainer->compute += os_now() - loaded;
        *loss_sum += loss;
        done += size;
    }
    trainer->samples += n;
    return INSPAN_OK;
}

/* After every so many steps, and after the last. */
static bool is_due(uint64_t every, const trainer_t *trainer)
{
    return trainer->step == trainer->job.train.steps || (every > 0 && trainer->step % every == 0);
}

static inspan_status_t run_step(trainer_t *trainer, inspan_error_t *err)
{
    double loss_sum = 0, norm = 0;
    inspan_ddp_result_t result;
    inspan_status_t status = inspan_ddp_begin(trainer->ddp, trainer->step, err);
    if (status != INSPAN_OK) return trainer_fail(trainer, err);
    status = compute(trainer, &loss_sum, err);
    if (status != INSPAN_OK) {
        break_off(trainer, err);
        return status;
    }
    status = inspan_ddp_finish(trainer->ddp, loss_sum, &result, err);
    if (status != INSPAN_OK) return status;
    trainer->exposed += result.exposed_ns;
    if (result.samples != trainer->job.train.global_batch) {
        error_set(err, INSPAN_MISMATCH, "step %" PRIu64 " covers %" PRIu64 " samples, expected %" PRIu64,
                  trainer->step, result.samples, trainer->job.train.global_batch);
        return trainer_fail(trainer, err);
    }
    ns_t start = os_now();
    status = nn_optimizer_apply(trainer->optimizer, trainer->reduced, (double)result.samples, trainer->step,
                                &norm, err);
    if (status != INSPAN_OK) return trainer_fail(trainer, err);
    trainer->loss = result.loss_sum / (double)result.samples;
    if (trainer->step == 0) trainer->loss_first = trainer->loss;
    trainer->step++;
    /* A pass over all weights, so only where somebody looks at it. */
    if (trainer->hooks.applied != NULL || is_due(trainer->job.train.check_every, trainer))
        trainer->param_hash = trainer_hash(trainer);
    trainer->compute += os_now() - start;
    if (trainer->hooks.applied != NULL)
        trainer->hooks.applied(trainer->hooks.context, trainer->step - 1, trainer->param_hash);
    return INSPAN_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

static inspan_status_t between_steps(trainer_t *trainer, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    if (is_due(trainer->job.train.check_every, trainer)) status = trainer_compare(trainer, err);
    if (status == INSPAN_OK && is_due(trainer->job.train.evaluate_every, trainer))
        status = trainer_evaluate(trainer, err);
    if (status == INSPAN_OK) trainer_report(trainer);
    return status;
}

static bool is_cancelled(const trainer_t *trainer)
{
    return trainer->hooks.cancelled != NULL && trainer->hooks.cancelled(trainer->hooks.context);
}

inspan_status_t trainer_run(trainer_t *trainer, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    trainer->started = trainer->ended = os_now();
    inspan_status_t status = trainer_evaluate(trainer, err);
    trainer->validation_first = trainer->validation;
    trainer->recent[TRAIN_RECENT - 1] = os_now() - trainer->evaluation;
    if (status == INSPAN_OK) trainer_report(trainer);
    while (status == INSPAN_OK && trainer->step < trainer->job.train.steps && !is_cancelled(trainer)) {
        status = run_step(trainer, err);
        if (status == INSPAN_OK) status = between_steps(trainer, err);
    }
    trainer->ended = os_now();
    /* ABORTED: another rank was cancelled first. Any other failure came before, and is told as what it is. */
    bool stopped = status == INSPAN_OK || status == INSPAN_ABORTED;
    if (stopped && trainer->step < trainer->job.train.steps && is_cancelled(trainer)) {
        status = error_set(err, INSPAN_ABORTED, "cancelled after step %" PRIu64 " of %" PRIu64, trainer->step,
                           trainer->job.train.steps);
        trainer_fail(trainer, err);
    }
    return status;
}

inspan_status_t trainer_save(trainer_t *trainer, const char *folder, inspan_error_t *err)
{
    static const char what[] = "waiting for the model to be saved";
    inspan_error_t unused;
    inspan_op_t *op = NULL;
    if (err == NULL) err = &unused;
    if (trainer->rank == 0 && nn_model_save(trainer->model, folder, err) != INSPAN_OK)
        return trainer_fail(trainer, err);
    inspan_status_t status = inspan_barrier(trainer->comm, &op);
    return status == INSPAN_OK ? trainer_wait(trainer, op, what, err)
                               : trainer_fault(trainer, status, what, err);
}
