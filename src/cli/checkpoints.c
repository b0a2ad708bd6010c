#include "cli/checkpoints.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/results.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "rpc/rpc_files.h"
#include "train/checkpoint.h"

#define FILES_MAX   8
#define TRIES       4
#define RETRY_FIRST (500 * NS_PER_MS) /* then twice as long each time */
#define LOOK_PERIOD (100 * NS_PER_MS)
#define TOLD_SIZE   (INSPAN_ERROR_TEXT + 64)

/* A registered checkpoint, as far as fetching it goes. */
typedef struct wanted {
    uint64_t step;
    uint32_t n_files;
    struct {
        char name[64], hash[RPC_FILE_HASH];
        uint64_t bytes;
    } file[FILES_MAX];
} wanted_t;

struct checkpoint_fetch {
    rpc_client_t *client;
    char folder[CHECKPOINT_PATH_MAX];
    uint32_t keep;
    pthread_t thread;

    pthread_mutex_t lock; /* of all below */
    os_cond_t changed;
    wanted_t wanted; /* the newest offered; n_files 0: none */
    uint64_t here;   /* step of the newest that was fetched */
    uint32_t tries;  /* at the wanted one */
    inspan_error_t error;
    bool stop, fresh; /* fresh: told is not taken yet */
    char told[TOLD_SIZE];
    rpc_stream_t *stream; /* under way, to be cancelled by stop */
};

/* ---- One checkpoint -------------------------------------------------------------------------- */

static inspan_status_t take_artifact(const Inspan__V1__Artifact *artifact, wanted_t *wanted,
                                     inspan_error_t *err)
{
    *wanted = (wanted_t){.step = artifact->step};
    if (artifact->n_files == 0 || artifact->n_files > FILES_MAX)
        return error_set(err, INSPAN_CORRUPT, "the checkpoint of step %" PRIu64 " is said to have %zu files",
                         artifact->step, artifact->n_files);
    for (size_t i = 0; i < artifact->n_files; i++) {
        const Inspan__V1__ResultFile *file = artifact->files[i];
        if (!results_name_is_safe(file->name) || strchr(file->name, '/') != NULL ||
            strlen(file->name) >= sizeof wanted->file[i].name || strlen(file->hash) != RPC_FILE_HASH - 1)
            return error_set(err, INSPAN_CORRUPT,
                             "a node offers a checkpoint that has a file with the name \"%.60s\"",
                             file->name);
        snprintf(wanted->file[i].name, sizeof wanted->file[i].name, "%s", file->name);
        snprintf(wanted->file[i].hash, sizeof wanted->file[i].hash, "%s", file->hash);
        wanted->file[i].bytes = file->bytes;
    }
    wanted->n_files = (uint32_t)artifact->n_files;
    return INSPAN_OK;
}

/* Fetched before: its manifest, which has the checksums of all, lies there with the same content. */
static bool is_here(const wanted_t *wanted, const char *folder)
{
    char name[32], path[CHECKPOINT_PATH_MAX], hash[RPC_FILE_HASH];
    uint64_t bytes = 0;
    checkpoint_name(wanted->step, name);
    for (uint32_t i = 0; i < wanted->n_files; i++) {
        if (strcmp(wanted->file[i].name, "manifest.json") != 0) continue;
        int length = snprintf(path, sizeof path, "%s/%s/manifest.json", folder, name);
        return length < (int)sizeof path && rpc_file_hash(path, NULL, hash, &bytes, NULL) == INSPAN_OK &&
               strcmp(hash, wanted->file[i].hash) == 0;
    }
    return false;
}

static inspan_status_t fetch_wanted(rpc_client_t *client, const wanted_t *wanted, const char *folder,
                                    uint32_t keep, const rpc_file_watch_t *watch, inspan_error_t *err)
{
    char staged[CHECKPOINT_PATH_MAX], path[CHECKPOINT_PATH_MAX];
    if (is_here(wanted, folder)) return INSPAN_OK;
    inspan_status_t status = checkpoint_stage(folder, wanted->step, staged, err);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < wanted->n_files && status == INSPAN_OK; i++) {
        const rpc_file_t file = {path, wanted->file[i].hash, wanted->file[i].bytes};
        if (snprintf(path, sizeof path, "%s/%s", staged, wanted->file[i].name) >= (int)sizeof path)
            status = error_set(err, INSPAN_INVALID, "path too long: %.100s...", staged);
        if (status == INSPAN_OK) status = rpc_file_get(client, &file, 0644, watch, err);
    }
    if (status == INSPAN_OK) return checkpoint_install(folder, staged, wanted->step, keep, err);
    os_remove_all(staged, NULL);
    return status;
}

inspan_status_t checkpoint_fetch_one(rpc_client_t *client, const Inspan__V1__Artifact *artifact,
                                     const char *folder, uint32_t keep, inspan_error_t *err)
{
    wanted_t wanted;
    inspan_status_t status = take_artifact(artifact, &wanted, err);
    if (status == INSPAN_OK) status = fetch_wanted(client, &wanted, folder, keep, NULL, err);
    if (status != INSPAN_OK) error_prefix(err, "the checkpoint of step %" PRIu64, artifact->step);
    return status;
}

/* ---- The thread ------------------------------------------------------------------------------ */

static inspan_status_t on_chunk(void *context, uint64_t done, uint64_t all, inspan_error_t *err)
{
    checkpoint_fetch_t *fetch = context;
    (void)done, (void)all;
    pthread_mutex_lock(&fetch->lock);
    const bool stop = fetch->stop;
    pthread_mutex_unlock(&fetch->lock);
    return stop ? error_set(err, INSPAN_ABORTED, "interrupted") : INSPAN_OK;
}

static bool on_stream(void *context, rpc_stream_t *stream)
{
    checkpoint_fetch_t *fetch = context;
    pthread_mutex_lock(&fetch->lock);
    const bool stop = fetch->stop;
    fetch->stream = stop ? NULL : stream;
    pthread_mutex_unlock(&fetch->lock);
    return !stop;
}

static bool is_wanted(const checkpoint_fetch_t *fetch)
{
    return fetch->wanted.n_files > 0 && fetch->wanted.step > fetch->here && fetch->tries < TRIES;
}

/* With the lock held. One that was overtaken meanwhile failed for being removed, most likely: no news. */
static void note_outcome(checkpoint_fetch_t *fetch, const wanted_t *tried, const inspan_error_t *error)
{
    char name[32];
    checkpoint_name(tried->step, name);
    const bool overtaken = fetch->wanted.step != tried->step;
    if (error->status == INSPAN_OK) {
        fetch->here = tried->step;
        snprintf(fetch->told, sizeof fetch->told, "checkpoint of step %" PRIu64 ": %.400s/%s", tried->step,
                 fetch->folder, name);
        fetch->fresh = true;
    } else if (!overtaken) {
        fetch->error = *error;
        if (fetch->tries++ == 0 && !fetch->stop) {
            snprintf(fetch->told, sizeof fetch->told,
                     "the checkpoint of step %" PRIu64 " was not fetched: %s", tried->step, error->text);
            fetch->fresh = true;
        }
    }
    os_cond_broadcast(&fetch->changed);
}

static void *run(void *context)
{
    checkpoint_fetch_t *fetch = context;
    const rpc_file_watch_t watch = {.context = fetch, .chunk = on_chunk, .stream = on_stream};
    pthread_mutex_lock(&fetch->lock);
    while (!fetch->stop) {
        if (!is_wanted(fetch)) {
            /* woken by offer and close: the one who watches the job has the bounds */
            os_cond_wait(&fetch->changed, &fetch->lock);
            continue;
        }
        const wanted_t tried = fetch->wanted;
        inspan_error_t error = {0};
        pthread_mutex_unlock(&fetch->lock);
        error.status = fetch_wanted(fetch->client, &tried, fetch->folder, fetch->keep, &watch, &error);
        pthread_mutex_lock(&fetch->lock);
        note_outcome(fetch, &tried, &error);
        const ns_t again = os_now() + (RETRY_FIRST << (fetch->tries > 0 ? fetch->tries - 1 : 0));
        while (error.status != INSPAN_OK && !fetch->stop && fetch->wanted.step == tried.step &&
               os_cond_wait_until(&fetch->changed, &fetch->lock, again)) {
        }
    }
    pthread_mutex_unlock(&fetch->lock);
    return NULL;
}

/* ---- Its owner's side ------------------------------------------------------------------------ */

inspan_status_t checkpoint_fetch_open(rpc_client_t *client, const char *folder, uint32_t keep,
                                      checkpoint_fetch_t **out, inspan_error_t *err)
{
    checkpoint_fetch_t *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to fetch checkpoints");
    fetch->client = client;
    fetch->keep = keep > 0 ? keep : 1;
    snprintf(fetch->folder, sizeof fetch->folder, "%s", folder);
    pthread_mutex_init(&fetch->lock, NULL);
    os_cond_open(&fetch->changed);
    checkpoint_sweep(folder);
    if (pthread_create(&fetch->thread, NULL, run, fetch) == 0) {
        *out = fetch;
        return INSPAN_OK;
    }
    os_cond_close(&fetch->changed);
    pthread_mutex_destroy(&fetch->lock);
    free(fetch);
    return error_set(err, INSPAN_NO_MEMORY, "no thread to fetch checkpoints");
}

void checkpoint_fetch_close(checkpoint_fetch_t *fetch)
{
    if (fetch == NULL) return;
    pthread_mutex_lock(&fetch->lock);
    fetch->stop = true;
    if (fetch->stream != NULL) rpc_stream_cancel(fetch->stream);
    os_cond_broadcast(&fetch->changed);
    pthread_mutex_unlock(&fetch->lock);
    pthread_join(fetch->thread, NULL);
    os_cond_close(&fetch->changed);
    pthread_mutex_destroy(&fetch->lock);
    free(fetch);
}

void checkpoint_fetch_offer(checkpoint_fetch_t *fetch, const Inspan__V1__JobInfo *job)
{
    const Inspan__V1__Artifact *newest = NULL;
    wanted_t wanted;
    inspan_error_t err;
    for (size_t i = 0; i < job->n_checkpoints; i++)
        if (newest == NULL || job->checkpoints[i]->step >= newest->step) newest = job->checkpoints[i];
    if (newest == NULL) return;
    inspan_status_t status = take_artifact(newest, &wanted, &err);
    pthread_mutex_lock(&fetch->lock);
    if (newest->step > fetch->wanted.step || fetch->wanted.n_files == 0) {
        fetch->wanted = wanted; /* without files where it is not to be trusted: never tried */
        fetch->tries = 0;
        if (status != INSPAN_OK) {
            snprintf(fetch->told, sizeof fetch->told, "%s", err.text);
            fetch->fresh = true;
            fetch->error = err;
        }
        os_cond_broadcast(&fetch->changed);
    }
    pthread_mutex_unlock(&fetch->lock);
}

bool checkpoint_fetch_told(checkpoint_fetch_t *fetch, char *text, size_t size)
{
    pthread_mutex_lock(&fetch->lock);
    const bool fresh = fetch->fresh;
    if (fresh) snprintf(text, size, "%s", fetch->told);
    fetch->fresh = false;
    pthread_mutex_unlock(&fetch->lock);
    return fresh;
}

inspan_status_t checkpoint_fetch_finish(checkpoint_fetch_t *fetch, interrupt_t *interrupt, uint64_t *step,
                                        inspan_error_t *err)
{
    const uint32_t before = interrupt != NULL ? interrupt_wait(interrupt, 0) : 0;
    inspan_status_t status = INSPAN_OK;
    pthread_mutex_lock(&fetch->lock);
    while (is_wanted(fetch) && status == INSPAN_OK) {
        os_cond_wait_until(&fetch->changed, &fetch->lock, os_now() + LOOK_PERIOD);
        if (interrupt != NULL && interrupt_wait(interrupt, 0) > before)
            status = error_set(err, INSPAN_ABORTED,
                               "interrupted while the checkpoint of step %" PRIu64 " was fetched",
                               fetch->wanted.step);
    }
    *step = fetch->here;
    if (status == INSPAN_OK && fetch->wanted.step > fetch->here) {
        *err = fetch->error;
        status = error_prefix(err, "the checkpoint of step %" PRIu64, fetch->wanted.step);
    }
    pthread_mutex_unlock(&fetch->lock);
    return status;
}
