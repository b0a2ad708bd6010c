/*
 * The one background thread of a writer. The trainer copies into the writer's memory and goes on:
 *
 *   IDLE -begin-> COPIED -thread-> WRITING -thread-> FINISHED -poll-> IDLE
 *
 * The copy belongs to the trainer's thread while IDLE or FINISHED, to the writer's else.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_memory.h"
#include "platform/os/os_time.h"
#include "train/checkpoint_internal.h"

#define ALIGNMENT    64
#define NICENESS     10           /* training has the processors first */
#define HEADER_BYTES 512          /* of a tensor in a file's header, at most */
#define OTHER_BYTES  (128u << 10) /* the JSON files, folders */

typedef enum writer_state { IDLE, COPIED, WRITING, FINISHED } writer_state_t;

struct checkpoint_writer {
    char folder[CHECKPOINT_PATH_MAX];
    uint32_t keep;
    checkpoint_config_t config;
    checkpoint_arrays_t arrays;
    nn_param_t *copies; /* (n_params + n_moments), weights first; their memory is below */
    void *memory;
    uint64_t tensor_bytes;

    pthread_t thread;
    pthread_mutex_t lock;
    os_cond_t changed;
    writer_state_t state;
    bool stop;
    uint64_t step, view;
    checkpoint_result_t result;
};

static uint64_t bytes_of(const checkpoint_writer_t *writer, const nn_param_t *tensor)
{
    return tensor->count * (writer->config.model.dtype == NN_FP64 ? 8 : 4);
}

static uint32_t n_tensors(const checkpoint_writer_t *writer)
{
    return writer->arrays.n_params + writer->arrays.n_moments;
}

static const nn_param_t *tensor_at(const checkpoint_writer_t *writer, uint32_t i)
{
    const checkpoint_arrays_t *arrays = &writer->arrays;
    return i < arrays->n_params ? &arrays->params[i] : &arrays->moments[i - arrays->n_params];
}

/* ---- The thread ------------------------------------------------------------------------------ */

inspan_status_t checkpoint_check_room(const checkpoint_writer_t *writer, inspan_error_t *err)
{
    char needs[32], result[32], has[32];
    uint64_t room = 0, weights = 0;
    const uint64_t wanted = writer->tensor_bytes + (uint64_t)n_tensors(writer) * HEADER_BYTES + OTHER_BYTES;
    for (uint32_t i = 0; i < writer->arrays.n_params; i++) weights += bytes_of(writer, &writer->copies[i]);
    inspan_status_t status = os_disk_free(writer->folder, &room, err);
    if (status != INSPAN_OK || room >= wanted + weights) return status;
    return error_set(err, INSPAN_IO,
                     "a checkpoint needs %s and the result %s, %s has %s free: make room there, keep fewer "
                     "(checkpoint.keep is "
                     "%u) or choose another checkpoint.dir",
                     units_format_size(wanted, needs, sizeof needs),
                     units_format_size(weights, result, sizeof result), writer->folder,
                     units_format_size(room, has, sizeof has), writer->keep);
}

static bool must_stop(checkpoint_writer_t *writer)
{
    pthread_mutex_lock(&writer->lock);
    bool stop = writer->stop;
    pthread_mutex_unlock(&writer->lock);
    return stop;
}

static inspan_status_t write_moments(const checkpoint_writer_t *writer, const char *folder,
                                     inspan_error_t *err)
{
    char path[CHECKPOINT_PATH_MAX];
    static const char *const metadata[] = {"format", "pt"};
    inspan_status_t status = checkpoint_path(folder, CHECKPOINT_OPTIMIZER, path, err);
    return status != INSPAN_OK
               ? status
               : nn_safetensors_write(path, writer->copies + writer->arrays.n_params,
                                      writer->arrays.n_moments, writer->config.model.dtype, metadata, 1, err);
}

static inspan_status_t write_files(checkpoint_writer_t *writer, const char *staged, uint64_t *bytes,
                                   inspan_error_t *err)
{
    const checkpoint_state_t state = {.step = writer->step, .view = writer->view};
    inspan_status_t status =
        nn_model_write(&writer->config.model, writer->copies, writer->arrays.n_params, staged, err);
    if (status == INSPAN_OK && must_stop(writer)) status = error_set(err, INSPAN_ABORTED, "given up");
    if (status == INSPAN_OK) status = write_moments(writer, staged, err);
    if (status == INSPAN_OK && must_stop(writer)) status = error_set(err, INSPAN_ABORTED, "given up");
    if (status == INSPAN_OK) status = checkpoint_state_write(staged, &writer->config, &state, err);
    if (status == INSPAN_OK) status = checkpoint_manifest_write(staged, writer->step, bytes, err);
    return status;
}

static inspan_status_t write_checkpoint(checkpoint_writer_t *writer, checkpoint_result_t *result)
{
    char name[32], staged[CHECKPOINT_PATH_MAX], text[INSPAN_ERROR_TEXT];
    inspan_error_t *err = &result->error;
    checkpoint_name(writer->step, name);
    inspan_status_t status = checkpoint_path(writer->folder, name, result->path, err);
    if (status == INSPAN_OK) status = checkpoint_stage(writer->folder, writer->step, staged, err);
    if (status == INSPAN_OK) {
        status = checkpoint_check_room(writer, err);
        if (status == INSPAN_OK) status = write_files(writer, staged, &result->bytes, err);
        if (status == INSPAN_OK)
            status = checkpoint_publish(writer->folder, staged, writer->step, writer->keep, err);
        if (status != INSPAN_OK) os_remove_all(staged, NULL);
    }
    if (status == INSPAN_OK) return status;
    snprintf(text, sizeof text, "%s", err->text);
    return error_set(err, status,
                     "the checkpoint of step %" PRIu64 " was not written: %.380s; training goes on, the ones "
                     "before are whole",
                     writer->step, text);
}

static void *run(void *context)
{
    checkpoint_writer_t *writer = context;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS); /* best effort */
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        /* woken by begin or close, which the owner of the writer calls: it has the bounds */
        while (writer->state != COPIED && !writer->stop) os_cond_wait(&writer->changed, &writer->lock);
        if (writer->stop) break;
        writer->state = WRITING;
        pthread_mutex_unlock(&writer->lock);
        const ns_t start = os_now();
        checkpoint_result_t *result = &writer->result;
        *result = (checkpoint_result_t){.step = writer->step, .view = writer->view};
        result->status = write_checkpoint(writer, result);
        result->took = os_now() - start;
        pthread_mutex_lock(&writer->lock);
        writer->state = FINISHED;
        os_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static inspan_status_t take_memory(checkpoint_writer_t *writer, inspan_error_t *err)
{
    char size[32];
    const uint32_t n = n_tensors(writer);
    uint64_t bytes = ALIGNMENT;
    for (uint32_t i = 0; i < n; i++) {
        writer->tensor_bytes += bytes_of(writer, tensor_at(writer, i));
        bytes += (bytes_of(writer, tensor_at(writer, i)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    writer->copies = calloc((size_t)n + 1, sizeof *writer->copies);
    writer->memory = os_memory_take(bytes);
    if (writer->copies == NULL || writer->memory == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the %s that a checkpoint is copied to",
                         units_format_size(bytes, size, sizeof size));
    char *at = writer->memory;
    for (uint32_t i = 0; i < n; i++) {
        writer->copies[i] = *tensor_at(writer, i);
        writer->copies[i].weights = at;
        at += (bytes_of(writer, tensor_at(writer, i)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return INSPAN_OK;
}

static void release(checkpoint_writer_t *writer)
{
    os_cond_close(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer->memory);
    free(writer->copies);
    free(writer);
}

/* Signals are the business of the program's own threads. */
static inspan_status_t start_thread(checkpoint_writer_t *writer, inspan_error_t *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&writer->thread, NULL, run, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0 ? INSPAN_OK : error_set(err, INSPAN_NO_MEMORY, "no thread to write checkpoints");
}

inspan_status_t checkpoint_open(const checkpoint_options_t *options, checkpoint_writer_t **out,
                                inspan_error_t *err)
{
    if (options->keep < 1)
        return error_set(err, INSPAN_INVALID, "checkpoint.keep: at least one checkpoint must stay");
    if (strlen(options->folder) + 64 > CHECKPOINT_PATH_MAX)
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", options->folder);
    inspan_status_t status = os_mkdir_all(options->folder, 0755, err);
    if (status != INSPAN_OK) return status;
    checkpoint_writer_t *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for checkpoints");
    snprintf(writer->folder, sizeof writer->folder, "%s", options->folder);
    writer->keep = options->keep;
    writer->config = options->config;
    writer->arrays = options->arrays;
    pthread_mutex_init(&writer->lock, NULL);
    os_cond_open(&writer->changed);
    status = take_memory(writer, err);
    if (status == INSPAN_OK) {
        checkpoint_sweep(writer->folder);
        status = start_thread(writer, err);
    }
    if (status == INSPAN_OK)
        *out = writer;
    else
        release(writer);
    return status;
}

void checkpoint_close(checkpoint_writer_t *writer)
{
    if (writer == NULL) return;
    pthread_mutex_lock(&writer->lock);
    writer->stop = true;
    os_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    pthread_join(writer->thread, NULL);
    release(writer);
}

/* ---- The trainer's side ---------------------------------------------------------------------- */

inspan_status_t checkpoint_begin(checkpoint_writer_t *writer, uint64_t step, uint64_t view,
                                 inspan_error_t *err)
{
    pthread_mutex_lock(&writer->lock);
    const bool idle = writer->state == IDLE;
    pthread_mutex_unlock(&writer->lock);
    if (!idle)
        return error_set(err, INSPAN_LIMIT,
                         "the checkpoint of step %" PRIu64 " is left out: that of step %" PRIu64
                         " is still being written; a faster disk or a larger checkpoint.every helps",
                         step, writer->step);
    for (uint32_t i = 0; i < n_tensors(writer); i++) {
        const nn_param_t *tensor = tensor_at(writer, i);
        memcpy(writer->copies[i].weights, tensor->weights, bytes_of(writer, tensor));
    }
    pthread_mutex_lock(&writer->lock);
    writer->step = step;
    writer->view = view;
    writer->state = COPIED;
    os_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return INSPAN_OK;
}

bool checkpoint_wait(checkpoint_writer_t *writer, ns_t bound, checkpoint_result_t *result)
{
    const ns_t deadline = os_now() + bound;
    pthread_mutex_lock(&writer->lock);
    while ((writer->state == COPIED || writer->state == WRITING) &&
           os_cond_wait_until(&writer->changed, &writer->lock, deadline)) {
    }
    const bool finished = writer->state == FINISHED;
    if (finished) {
        *result = writer->result;
        writer->state = IDLE;
    }
    pthread_mutex_unlock(&writer->lock);
    return finished;
}

bool checkpoint_poll(checkpoint_writer_t *writer, checkpoint_result_t *result)
{
    return checkpoint_wait(writer, 0, result);
}
