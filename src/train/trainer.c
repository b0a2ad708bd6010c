#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
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

static uint64_t data_bytes(const trainer_t *trainer)
{
    return file_bytes(trainer->job.data.path) + file_bytes(trainer->job.data.labels);
}

/* This machine's memory, divided among as many workers as get such a share of its processors. */
static uint64_t own_memory(const trainer_t *trainer)
{
    cpu_set_t set;
    double cores = os_cgroup_cores("", 0);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < cores) cores = CPU_COUNT(&set);
    const uint64_t sharers = isfinite(cores) && trainer->threads > 0 ? (uint64_t)cores / trainer->threads : 1;
    return os_memory_bytes() / (sharers > 1 ? sharers : 1);
}

/* The same on every rank and in every view where the machines are alike; it changes no result but by
 * rounding. */
static inspan_status_t choose_micro_batch(trainer_t *trainer, inspan_error_t *err)
{
    return trainer_micro_batch(&trainer->job, &trainer->model_config, data_bytes(trainer),
                               own_memory(trainer), &trainer->micro_batch, err);
}

/* All memory that passes need is taken here, so here is where it may lack. */
static inspan_status_t open_model(trainer_t *trainer, inspan_error_t *err)
{
    if (nn_data_reserve(trainer->data, trainer->micro_batch) != INSPAN_OK)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for batches of %u samples", trainer->micro_batch);
    return nn_model_open(&trainer->model_config, trainer->micro_batch, trainer->threads, &trainer->model,
                         err);
}

static void note(const trainer_t *trainer, const char *text)
{
    if (trainer->out != NULL) fprintf(trainer->out, "%s\n", text);
    if (trainer->hooks.note != NULL) trainer->hooks.note(trainer->hooks.context, text);
}

/* What does not fit is halved: results differ by rounding alone. */
static inspan_status_t open_fitting_model(trainer_t *trainer, inspan_error_t *err)
{
    char text[256];
    const uint32_t wished = trainer->micro_batch;
    inspan_status_t status = open_model(trainer, err);
    while (status == INSPAN_NO_MEMORY && trainer->micro_batch > 1) {
        trainer->micro_batch /= 2;
        status = open_model(trainer, err);
    }
    if (status != INSPAN_OK || trainer->micro_batch == wished) return status;
    snprintf(text, sizeof text, "no memory for micro-batches of %u samples: goes on with %u", wished,
             trainer->micro_batch);
    note(trainer, text);
    return INSPAN_OK;
}

static inspan_status_t open_data_and_model(trainer_t *trainer, inspan_error_t *err)
{
    nn_data_config_t data;
    nn_optimizer_config_t optimizer;
    job_data_config(&trainer->job, &data);
    job_model_config(&trainer->job, &trainer->model_config);
    if (job_is_local(&trainer->job))
        trainer_local_outer(&trainer->job, &optimizer);
    else
        job_optimizer_config(&trainer->job, &optimizer);
    inspan_status_t status = nn_data_open(&data, &trainer->data, err);
    if (status != INSPAN_OK) return status;
    nn_data_shape(trainer->data, &trainer->model_config);
    status = choose_micro_batch(trainer, err);
    if (status == INSPAN_OK) status = open_fitting_model(trainer, err);
    if (status == INSPAN_OK)
        status = job_memory(&trainer->job, &trainer->model_config, trainer->micro_batch, data_bytes(trainer),
                            &trainer->memory_predicted, err);
    if (status != INSPAN_OK) return status;
    trainer->n_params = nn_model_params(trainer->model, &trainer->params);
    if (job_is_local(&trainer->job)) status = trainer_local_open(trainer, err);
    if (status != INSPAN_OK) return status;
    return nn_optimizer_open(&optimizer, trainer->params, trainer->n_params, trainer->model_config.dtype,
                             &trainer->optimizer, err);
}

static void on_announcing(void *owner)
{
    inspan_elastic_tell_ledger(((trainer_t *)owner)->elastic);
}

/* Where checkpoints go, and the one that this training goes on from. */
static inspan_status_t open_checkpoints(trainer_t *trainer, const trainer_options_t *given,
                                        inspan_error_t *err)
{
    saver_options_t options = {.views = given->views,
                               .folder = given->folder,
                               .every = trainer->job.checkpoint.every,
                               .keep = trainer->job.checkpoint.keep < UINT32_MAX
                                           ? (uint32_t)trainer->job.checkpoint.keep
                                           : UINT32_MAX,
                               .out = given->out,
                               .context = given->hooks.context,
                               .note = given->hooks.note,
                               .announcing = on_announcing,
                               .owner = trainer};
    checkpoint_state_t state;
    checkpoint_config_of(&trainer->job, &trainer->model_config, nn_data_samples(trainer->data),
                         &options.config);
    options.arrays.params = trainer->params;
    options.arrays.n_params = trainer->n_params;
    options.arrays.n_moments = nn_optimizer_state(trainer->optimizer, &options.arrays.moments);
    inspan_status_t status = INSPAN_OK;
    if (given->resume != NULL) {
        status = checkpoint_load(given->resume, &options.config, &options.arrays, &state, err);
        if (status == INSPAN_OK) trainer->first_step = trainer->step = state.step;
    }
    if (status == INSPAN_OK && given->folder != NULL) status = saver_open(&options, &trainer->saver, err);
    return status;
}

static inspan_status_t describe_parameters(trainer_t *trainer, inspan_error_t *err)
{
    const uint32_t n = trainer->n_params;
    trainer->parameters = calloc(n, sizeof *trainer->parameters);
    trainer->local = calloc(n, sizeof *trainer->local);
    trainer->reduced = calloc(n, sizeof *trainer->reduced);
    if (!trainer->parameters || !trainer->local || !trainer->reduced)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u parameters", n);
    for (uint32_t i = 0; i < n; i++) {
        const nn_param_t *param = &trainer->params[i];
        trainer->parameters[i] = (inspan_parameter_t){.name = param->name,
                                                      .count = param->count,
                                                      .n_dims = param->n_dims,
                                                      .shape = param->shape,
                                                      .weights = param->weights};
    }
    return INSPAN_OK;
}

/* The gradients' arrays move with the layout of the buckets. */
static void find_gradients(trainer_t *trainer, uint64_t layout)
{
    for (uint32_t i = 0; i < trainer->n_params; i++) {
        trainer->local[i] = inspan_elastic_local(trainer->elastic, i);
        trainer->reduced[i] = inspan_elastic_reduced(trainer->elastic, i);
    }
    trainer->layout = layout;
}

static inspan_status_t open_driver(trainer_t *trainer, const trainer_options_t *given, inspan_error_t *err)
{
    const uint32_t n = trainer->n_params;
    const nn_param_t *moments = NULL;
    inspan_elastic_options_t options = {.newcomer = given->newcomer,
                                        .batch = trainer->job.train.global_batch,
                                        .steps = trainer->job.train.steps,
                                        .first_step = trainer->first_step,
                                        .seed = trainer->job.train.seed,
                                        .micro_batch = trainer->micro_batch,
                                        .equal_shares = strcmp(trainer->job.sync.split, "equal") == 0,
                                        .calibrate = trainer_calibrate,
                                        .context = trainer,
                                        .drop = strcmp(trainer->job.on_loss, "drop") == 0};
    options.dtype = trainer->model_config.dtype == NN_FP64 ? INSPAN_FP64 : INSPAN_FP32;
    options.wire = job_wire(&trainer->job);
    options.wires = job_wires(&trainer->job);
    if (job_is_local(&trainer->job)) /* whole updates in a run */
        options.micro_batch = trainer_local_run(trainer->micro_batch, trainer->job.sync.local_batch);
    options.n_state = nn_optimizer_state(trainer->optimizer, &moments);
    options.shuffle_buckets = given->shuffle_buckets;
    inspan_status_t status = job_bucket_bytes(&trainer->job, &options.bucket_bytes, err);
    options.registered = strcmp(trainer->job.sync.order, "registered") == 0;
    options.plan_buckets =
        options.bucket_bytes == 0 && !options.equal_shares; /* equal: the same from run to run */
    if (status == INSPAN_OK) status = describe_parameters(trainer, err);
    if (status != INSPAN_OK) return status;
    inspan_state_t *state = calloc(options.n_state + 1, sizeof *state);
    if (state == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a list of optimiser state");
    for (uint32_t i = 0; i < options.n_state; i++)
        state[i] = (inspan_state_t){i % n, moments[i].weights, moments[i].count};
    options.state = state;
    status = inspan_elastic_open(given->views, trainer->parameters, n, &options, &trainer->elastic, err);
    free(state);
    if (status == INSPAN_OK) find_gradients(trainer, 0);
    return status;
}

inspan_status_t trainer_open(const trainer_options_t *options, trainer_t **out, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    trainer_t *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the trainer");
    trainer->job = *options->job;
    trainer->views = options->views;
    trainer->threads = options->threads;
    trainer->out = options->out;
    trainer->hooks = options->hooks;
    trainer->loss = trainer->loss_first = NAN;
    trainer->validation = trainer->validation_first = trainer->accuracy = NAN;
    inspan_status_t status = job_validate(&trainer->job, err);
    if (status == INSPAN_OK) status = open_data_and_model(trainer, err);
    if (status == INSPAN_OK) status = open_checkpoints(trainer, options, err);
    if (status == INSPAN_OK) status = open_driver(trainer, options, err);
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
    inspan_elastic_close(trainer->elastic);
    saver_close(trainer->saver);
    nn_optimizer_close(trainer->optimizer);
    trainer_local_close(trainer);
    nn_model_close(trainer->model);
    nn_data_close(trainer->data);
    free(trainer->parameters);
    free(trainer->local);
    free(trainer->reduced);
    free(trainer);
}

const nn_model_t *trainer_model(const trainer_t *trainer)
{
    return trainer->model;
}

bool trainer_view_changed(const trainer_t *trainer)
{
    return inspan_elastic_changed(trainer->elastic);
}

bool trainer_answer(const trainer_t *trainer, worker_registered_t *answer)
{
    if (trainer->saver != NULL) return saver_answer(trainer->saver, answer);
    return trainer->views->registered(trainer->views->context, answer);
}

inspan_status_t trainer_fail(trainer_t *trainer, inspan_error_t *err)
{
    if (trainer->hooks.failed != NULL)
        trainer->hooks.failed(trainer->hooks.context, err->status, err->text);
    else if (trainer->elastic != NULL)
        inspan_elastic_abort(trainer->elastic, err->status, err->text);
    return err->status;
}

/* ---- One step -------------------------------------------------------------------------------- */

static void on_ready(void *context, uint32_t index)
{
    inspan_elastic_ready(((trainer_t *)context)->elastic, index);
}

/* Forward and backward over samples [first, first + n), in micro-batches, an odd rest first. */
static inspan_status_t backward(trainer_t *trainer, const inspan_work_t *work, double *loss_sum,
                                inspan_error_t *err)
{
    for (uint64_t done = 0; done < work->samples;) {
        nn_batch_t batch;
        double loss = 0;
        const uint64_t left = work->samples - done, rest = left % trainer->micro_batch;
        const uint32_t size = rest > 0 ? (uint32_t)rest : trainer->micro_batch;
        const bool last = work->last && size == left;
        ns_t start = os_now();
        nn_data_batch(trainer->data, work->first_sample + done, size, &batch);
        ns_t loaded = os_now();
        inspan_status_t status = nn_model_backward(trainer->model, &batch, trainer->local,
                                                   last ? on_ready : NULL, trainer, &loss, err);
        if (status != INSPAN_OK) return status;
        trainer->input += loaded - start;
        trainer->compute += os_now() - loaded;
        *loss_sum += loss;
        done += size;
    }
    return INSPAN_OK;
}

static inspan_status_t compute(trainer_t *trainer, const inspan_work_t *work, inspan_error_t *err)
{
    inspan_tally_t tally = {0};
    inspan_status_t status = INSPAN_OK;
    const ns_t input = trainer->input, evaluation = trainer->evaluation;
    if (trainer->hooks.computing != NULL) trainer->hooks.computing(trainer->hooks.context, work);
    if (work->saving) {
        if (trainer->saver != NULL && saver_finish(trainer->saver, work->view) == INSPAN_PENDING)
            return INSPAN_OK;
        if (trainer->hooks.save != NULL)
            status = trainer->hooks.save(trainer->hooks.context, trainer, work->view, err);
        if (status == INSPAN_PENDING) return INSPAN_OK;
    } else {
        if (trainer_is_due(trainer, trainer->job.train.evaluate_every, work->step))
            status = (trainer->local_mode != NULL ? trainer_local_evaluate : trainer_evaluate)(trainer, work,
                                                                                               &tally, err);
        if (status == INSPAN_OK)
            status = (trainer->local_mode != NULL ? trainer_local_compute : backward)(trainer, work,
                                                                                      &tally.loss_sum, err);
    }
    const inspan_timing_t apart = {trainer->input - input, trainer->evaluation - evaluation};
    inspan_elastic_timing(trainer->elastic, &apart);
    return status == INSPAN_OK ? inspan_elastic_computed(trainer->elastic, &tally, err) : status;
}

static void take_evaluation(trainer_t *trainer, const inspan_work_t *work)
{
    const inspan_tally_t *tally = &work->tally;
    if (tally->evaluation_samples <= 0) return;
    trainer->validation = tally->evaluation_loss_sum / tally->evaluation_samples;
    trainer->accuracy = tally->evaluation_right / tally->evaluation_samples;
    trainer->validation_step = work->step;
    if (work->step == trainer->first_step) trainer->validation_first = trainer->validation;
}

/* The lowest of the members, with all weights. */
static bool leads(const trainer_t *trainer, const inspan_work_t *work)
{
    const uint32_t *numbers = NULL;
    inspan_elastic_stats_t stats;
    inspan_elastic_stats(trainer->elastic, &stats);
    return work->apply == NULL && stats.full && inspan_elastic_members(trainer->elastic, &numbers) > 0 &&
           numbers[0] == stats.number;
}

static inspan_status_t apply(trainer_t *trainer, const inspan_work_t *work, inspan_error_t *err)
{
    double norm = 0;
    take_evaluation(trainer, work);
    if (work->light) {
        if (trainer->saver != NULL)
            saver_committed(trainer->saver, work->step, work->view, leads(trainer, work));
        if (!work->saving) trainer_report(trainer);
        return INSPAN_OK;
    }
    const ns_t start = os_now();
    inspan_status_t status =
        nn_optimizer_apply_some(trainer->optimizer, trainer->reduced, (double)work->samples_counted,
                                work->step, work->apply, &norm, err);
    const ns_t updated = os_now();
    if (status != INSPAN_OK) return status;
    trainer->loss = work->tally.loss_sum / (double)work->samples_counted;
    if (work->step == trainer->first_step) trainer->loss_first = trainer->loss;
    trainer->step = work->step + 1;
    trainer->applied++;
    /* A pass over all weights, so only where somebody looks at it. */
    const bool compared = trainer_is_due(trainer, trainer->job.train.check_every, trainer->step);
    if (trainer->hooks.applied != NULL || compared) trainer->param_hash = trainer_hash(trainer);
    if (compared) inspan_elastic_hint(trainer->elastic, trainer->param_hash);
    trainer->update += os_now() - start;
    trainer->trained = os_now() - trainer->evaluation;
    if (trainer->saver != NULL) saver_committed(trainer->saver, work->step, work->view, leads(trainer, work));
    const inspan_timing_t apart = {.other_ns = os_now() - updated};
    inspan_elastic_timing(trainer->elastic, &apart);
    if (trainer->hooks.applied != NULL)
        trainer->hooks.applied(trainer->hooks.context, work->step, trainer->param_hash);
    trainer_report(trainer);
    return INSPAN_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

static inspan_status_t run(trainer_t *trainer, inspan_error_t *err)
{
    for (bool first = true;; first = false) {
        inspan_work_t work;
        inspan_status_t status = inspan_elastic_next(trainer->elastic, &work, err);
        if (first)
            trainer->started = trainer->recent[TRAIN_RECENT - 1] = os_now(); /* all members are there */
        if (status == INSPAN_ABORTED)
            return error_prefix(err, "cancelled after step %" PRIu64 " of %" PRIu64, trainer->step,
                                trainer->job.train.steps);
        const bool works = work.type == INSPAN_WORK_COMPUTE || work.type == INSPAN_WORK_APPLY;
        if (status == INSPAN_OK && works && work.layout != trainer->layout)
            find_gradients(trainer, work.layout);
        if (status == INSPAN_OK && work.type == INSPAN_WORK_COMPUTE) status = compute(trainer, &work, err);
        if (status == INSPAN_OK && work.type == INSPAN_WORK_APPLY) status = apply(trainer, &work, err);
        if (status != INSPAN_OK) return trainer_fail(trainer, err);
        if (work.type == INSPAN_WORK_END || work.type == INSPAN_WORK_LEFT) return INSPAN_OK;
    }
}

inspan_status_t trainer_run(trainer_t *trainer, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    trainer->started = os_now();
    trainer_report(trainer);
    inspan_status_t status = run(trainer, err);
    trainer->ended = os_now();
    return status;
}

inspan_status_t trainer_save(const trainer_t *trainer, const char *folder, inspan_error_t *err)
{
    if (trainer->local_mode != NULL) trainer_local_return(trainer);
    return nn_model_save(trainer->model, folder, err);
}
