/*
 * sync.mode local: in a step each member updates its own copy of the weights after every few samples, and
 * what is summed over the members is how far they went (local SGD: Stich 2019; DiLoCo: Douillard and others
 * 2023).
 *
 *   anchor     the job's weights: what members agree on, hash, save and copy to newcomers
 *   model      this member's copy: the anchor as a step begins, then moved by the inner optimiser
 *   local      the sums that are reduced: samples computed x (anchor - model) behind each run, so that the
 * sum over the members divided by all samples is the mean way, each member counting by its samples
 *
 * The outer optimiser (Nesterov) takes that mean for a gradient of the anchor. To the step machine such a
 * step is like any other: leases, steals, recovery, the commit. The moments of the inner optimiser are each
 * member's own.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/os/os_memory.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

struct trainer_local {
    nn_optimizer_t *inner;
    nn_param_t *anchors;   /* (n_params) */
    const nn_param_t *own; /* (n_params) the model's */
    void *memory;          /* behind the anchors, and */
    uint8_t *spare;        /* (bytes) behind the gradients */
    void *
        *gradients; /* (n_params) of an update; between runs, the own weights while the anchor is evaluated */
    size_t bytes, element_size;
    uint64_t batch, per_step; /* samples of an update; updates of a step, were one member alone */
    bool moved;               /* the model is not the anchor */
    bool in_step;
    uint64_t step, samples, updates; /* the present step; computed and made in it */
    uint64_t all_updates;
};

/* ---- Opening --------------------------------------------------------------------------------- */

static size_t bytes_of(const trainer_t *trainer, uint32_t i)
{
    return trainer->params[i].count * trainer->local_mode->element_size;
}

static size_t room_of(const trainer_t *trainer, uint32_t i)
{
    const size_t line = 64;
    return (bytes_of(trainer, i) + line - 1) / line * line;
}

static inspan_status_t open_inner(trainer_t *trainer, trainer_local_t *local, inspan_error_t *err)
{
    nn_optimizer_config_t config;
    job_optimizer_config(&trainer->job, &config);
    config.steps *= local->per_step; /* the learning rate goes on within a step */
    config.warmup *= local->per_step;
    return nn_optimizer_open(&config, local->own, trainer->n_params, trainer->model_config.dtype,
                             &local->inner, err);
}

inspan_status_t trainer_local_open(trainer_t *trainer, inspan_error_t *err)
{
    const uint32_t n = trainer->n_params;
    trainer_local_t *local = calloc(1, sizeof *local);
    if (local == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for sync.mode local");
    trainer->local_mode = local;
    local->own = trainer->params;
    local->element_size = trainer->model_config.dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    local->batch = trainer->job.sync.local_batch;
    local->per_step = (trainer->job.train.global_batch + local->batch - 1) / local->batch;
    for (uint32_t i = 0; i < n; i++) local->bytes += room_of(trainer, i);
    local->anchors = calloc(n + 1, sizeof *local->anchors);
    local->gradients = calloc(n + 1, sizeof local->gradients[0]);
    local->memory = os_memory_take(2 * local->bytes);
    if (local->anchors == NULL || local->gradients == NULL || local->memory == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for two copies of the weights, %.1f MB each",
                         (double)local->bytes / 1e6);
    uint8_t *at = local->memory;
    for (uint32_t i = 0; i < n; at += room_of(trainer, i), i++) {
        local->anchors[i] = local->own[i];
        local->anchors[i].weights = at;
        local->gradients[i] = at + local->bytes;
        memcpy(at, local->own[i].weights, bytes_of(trainer, i));
    }
    local->spare = at;
    trainer->params = local->anchors;
    return open_inner(trainer, local, err);
}

void trainer_local_close(trainer_t *trainer)
{
    trainer_local_t *local = trainer->local_mode;
    if (local == NULL) return;
    nn_optimizer_close(local->inner);
    free(local->memory);
    free(local->gradients);
    free(local->anchors);
    free(local);
}

void trainer_local_outer(const job_config_t *job, nn_optimizer_config_t *config)
{
    *config = (nn_optimizer_config_t){.kind = NN_SGD,
                                      .lr = job->sync.outer_lr,
                                      .min_lr = job->sync.outer_lr,
                                      .momentum = job->sync.outer_momentum,
                                      .nesterov = true,
                                      .steps = 1};
}

/* ---- The model and the anchor ---------------------------------------------------------------- */

void trainer_local_return(const trainer_t *trainer)
{
    const trainer_local_t *local = trainer->local_mode;
    for (uint32_t i = 0; i < trainer->n_params; i++)
        memcpy(local->own[i].weights, local->anchors[i].weights, bytes_of(trainer, i));
}

static void begin_step(trainer_t *trainer, uint64_t step)
{
    trainer_local_t *local = trainer->local_mode;
    if (local->in_step && local->step == step) return;
    trainer_local_return(trainer);
    local->in_step = true;
    local->moved = false;
    local->step = step;
    local->samples = local->updates = 0;
}

inspan_status_t trainer_local_evaluate(trainer_t *trainer, const inspan_work_t *work, inspan_tally_t *tally,
                                       inspan_error_t *err)
{
    const trainer_local_t *local = trainer->local_mode;
    begin_step(trainer, work->step);
    if (!local->moved) return trainer_evaluate(trainer, work, tally, err);
    for (uint32_t i = 0; i < trainer->n_params; i++)
        memcpy(local->gradients[i], local->own[i].weights, bytes_of(trainer, i));
    trainer_local_return(trainer);
    const inspan_status_t status = trainer_evaluate(trainer, work, tally, err);
    for (uint32_t i = 0; i < trainer->n_params; i++)
        memcpy(local->own[i].weights, local->gradients[i], bytes_of(trainer, i));
    return status;
}

/* ---- A run ----------------------------------------------------------------------------------- */

/* Forward and backward over n samples, in micro-batches, then an update of the own weights. */
static inspan_status_t update(trainer_t *trainer, uint64_t first, uint64_t n, double *loss_sum,
                              inspan_error_t *err)
{
    trainer_local_t *local = trainer->local_mode;
    memset(local->spare, 0, local->bytes);
    for (uint64_t done = 0; done < n;) {
        nn_batch_t batch;
        double loss = 0;
        const uint64_t left = n - done;
        const uint32_t size = left < trainer->micro_batch ? (uint32_t)left : trainer->micro_batch;
        const ns_t start = os_now();
        nn_data_batch(trainer->data, first + done, size, &batch);
        const ns_t loaded = os_now();
        const inspan_status_t status =
            nn_model_backward(trainer->model, &batch, local->gradients, NULL, NULL, &loss, err);
        if (status != INSPAN_OK) return status;
        trainer->input += loaded - start;
        trainer->compute += os_now() - loaded;
        *loss_sum += loss;
        done += size;
    }
    /* Where the learning rate stands: as many updates as all members have made by now, about. */
    const uint32_t *numbers = NULL;
    const uint64_t members = inspan_elastic_members(trainer->elastic, &numbers);
    const uint64_t by_all = local->updates * (members > 0 ? members : 1);
    const uint64_t at =
        local->step * local->per_step + (by_all < local->per_step ? by_all : local->per_step - 1);
    double norm = 0;
    const ns_t start = os_now();
    const inspan_status_t status = nn_optimizer_apply_at(local->inner, (const void *const *)local->gradients,
                                                         (double)n, at, local->all_updates, NULL, &norm, err);
    trainer->update += os_now() - start;
    local->updates++;
    local->all_updates++;
    local->moved = true;
    return status;
}

/* local += times x (anchor - model). Added, and taken away before the model moves on: what else lies there
 * (what int8 makes up for) stays. */
static void add_way(trainer_t *trainer, double times)
{
    const trainer_local_t *local = trainer->local_mode;
    for (uint32_t i = 0; i < trainer->n_params; i++) {
        const uint64_t n = trainer->params[i].count;
        if (local->element_size == sizeof(double)) {
            const double *anchor = local->anchors[i].weights, *own = local->own[i].weights;
            double *to = trainer->local[i];
            for (uint64_t k = 0; k < n; k++) to[k] += times * (anchor[k] - own[k]);
        } else {
            const float *anchor = local->anchors[i].weights, *own = local->own[i].weights,
                        factor = (float)times;
            float *to = trainer->local[i];
            for (uint64_t k = 0; k < n; k++) to[k] += factor * (anchor[k] - own[k]);
        }
    }
}

inspan_status_t trainer_local_compute(trainer_t *trainer, const inspan_work_t *work, double *loss_sum,
                                      inspan_error_t *err)
{
    trainer_local_t *local = trainer->local_mode;
    if (work->samples == 0) return INSPAN_OK;
    begin_step(trainer, work->step);
    if (local->samples > 0) add_way(trainer, -(double)local->samples);
    for (uint64_t done = 0; done < work->samples;) {
        const uint64_t left = work->samples - done, n = left < local->batch ? left : local->batch;
        const inspan_status_t status = update(trainer, work->first_sample + done, n, loss_sum, err);
        if (status != INSPAN_OK) return status;
        done += n;
    }
    local->samples += work->samples;
    add_way(trainer, (double)local->samples);
    for (uint32_t i = trainer->n_params; work->last && i-- > 0;) inspan_elastic_ready(trainer->elastic, i);
    return INSPAN_OK;
}

uint64_t trainer_local_run(uint64_t micro_batch, uint64_t batch)
{
    return (micro_batch + batch - 1) / batch * batch;
}

uint64_t trainer_local_updates(const trainer_t *trainer)
{
    return trainer->local_mode->all_updates;
}
