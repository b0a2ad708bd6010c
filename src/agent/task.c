/*
 * What takes long for a worker, each in a thread of its own: its folder and data before it starts, its
 * results after it said DONE. The thread reads process_t's order and paths, which stay as they are until
 * task_finish.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/internal.h"
#include "agent/job_files.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

static const ns_t data_patience = 60 * NS_PER_S;
static const ns_t results_patience = 600 * NS_PER_S; /* hours of training are in them */

struct agent_task {
    task_kind_t kind;
    uint64_t serial;
    process_t *process;
    transfer_t *transfer;
    pthread_t thread;
    char folder[LOCAL_PATH_MAX]; /* of an artifact, below the worker's */
    inspan_error_t err;
    agent_result_t results[AGENT_RESULTS];
    uint32_t n_results;
};

/* ---- Before the start ------------------------------------------------------------------------ */

/* The file lies at the same path on every node (too large to travel): is it the same? */
static inspan_status_t check_local(agent_task_t *task, const Inspan__V1__DataFile *file, inspan_error_t *err)
{
    char hash[RPC_FILE_HASH] = "";
    uint64_t bytes = 0;
    struct stat info;
    const char *node = task->process->node;
    if (stat(file->path, &info) != 0)
        return error_set_errno(err, INSPAN_NOT_FOUND, "data file %s is needed on node %s too", file->path,
                               node);
    if ((uint64_t)info.st_size != file->bytes)
        return error_set(err, INSPAN_MISMATCH,
                         "data file %s has %lld bytes on node %s, %llu where the job came from", file->path,
                         (long long)info.st_size, node, (unsigned long long)file->bytes);
    inspan_status_t status = transfer_hash(task->transfer, file->path, hash, &bytes, err);
    if (status != INSPAN_OK) return status;
    if (strcmp(hash, file->hash) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_MISMATCH, "data file %s differs on node %s: hash %s, expected %s",
                     file->path, node, hash, file->hash);
}

/* In the cache under its hash; checked again when found there: disks and people change files. */
static inspan_status_t fetch_cached(agent_task_t *task, const char *hash, uint64_t size, char path[PATH_MAX],
                                    inspan_error_t *err)
{
    agent_t *agent = task->process->agent;
    char found[RPC_FILE_HASH] = "";
    uint64_t bytes = 0;
    snprintf(path, PATH_MAX, "%.3900s/cache/%s", agent->folder, hash);
    if (transfer_hash(task->transfer, path, found, &bytes, NULL) == INSPAN_OK && strcmp(found, hash) == 0 &&
        bytes == size) {
        job_files_touch(path);
        return INSPAN_OK;
    }
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.3900s/cache", agent->folder);
    inspan_status_t status = job_files_make_room(folder, size, err);
    if (status == INSPAN_OK)
        status = transfer_get(task->transfer, &(rpc_file_t){path, hash, size}, data_patience, err);
    return status;
}

/* A name of its own in the job's folder (below: "" or "resume/") keeps the file there when the cache lets it
 * go. */
static void give_link(const process_t *process, const char *below, const char *key, char path[PATH_MAX])
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/%s%.64s", process->folder, below, key);
    unlink(name);
    if (link(path, name) == 0) snprintf(path, PATH_MAX, "%s", name);
}

static inspan_status_t get_data(agent_task_t *task, const Inspan__V1__DataFile *file, char **config,
                                inspan_error_t *err)
{
    char path[PATH_MAX];
    if (!job_files_good_key(file->key) || (file->fetch && !job_files_good_hash(file->hash)))
        return error_set(err, INSPAN_CORRUPT, "the manager sent a data file that cannot be right");
    inspan_status_t status = INSPAN_OK;
    if (file->fetch) {
        pthread_mutex_lock(&task->process->agent->fetching);
        status = fetch_cached(task, file->hash, file->bytes, path, err);
        if (status == INSPAN_OK) give_link(task->process, "", file->key, path);
        pthread_mutex_unlock(&task->process->agent->fetching);
    } else {
        status = check_local(task, file, err);
        snprintf(path, sizeof path, "%s", file->path);
    }
    if (status != INSPAN_OK) return status;
    if (strlen(path) > JOB_FILES_VALUE_MAX || strchr(path, '\n') != NULL)
        return error_set(err, INSPAN_LIMIT,
                         "the path of %s is longer than %d bytes on node %s (%.40s...): use a shorter --dir",
                         file->key, JOB_FILES_VALUE_MAX, task->process->node, path);
    char *changed = job_files_set(*config, file->key, path);
    if (changed == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the job's settings");
    free(*config);
    *config = changed;
    return INSPAN_OK;
}

/* The checkpoint to start from, as resume/NAME in the worker's folder. */
static inspan_status_t get_resume(agent_task_t *task, const Inspan__V1__Artifact *resume, inspan_error_t *err)
{
    char path[PATH_MAX], name[PATH_MAX];
    snprintf(name, sizeof name, "%s/resume", task->process->folder);
    inspan_status_t status = os_remove_all(name, err);
    if (status == INSPAN_OK) status = os_mkdir_all(name, 0700, err);
    for (size_t i = 0; i < resume->n_files && status == INSPAN_OK; i++) {
        const Inspan__V1__ResultFile *file = resume->files[i];
        if (!job_files_good_key(file->name) || strlen(file->name) > 64 || !job_files_good_hash(file->hash))
            return error_set(err, INSPAN_CORRUPT,
                             "the manager sent a file of a checkpoint that cannot be right");
        pthread_mutex_lock(&task->process->agent->fetching);
        status = fetch_cached(task, file->hash, file->bytes, path, err);
        if (status == INSPAN_OK) give_link(task->process, "resume/", file->name, path);
        pthread_mutex_unlock(&task->process->agent->fetching);
        snprintf(name, sizeof name, "%s/resume/%.64s", task->process->folder, file->name);
        if (status == INSPAN_OK && strcmp(name, path) != 0 && symlink(path, name) != 0) /* no hard links */
            status = error_set_errno(err, INSPAN_IO, "cannot write %s", name);
        if (status != INSPAN_OK)
            error_prefix(err, "checkpoint of step %llu", (unsigned long long)resume->step);
    }
    return status;
}

static void remove_artifacts(const char *folder)
{
    static const char *const kinds[] = {"out", "resume"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char path[PATH_MAX];
        inspan_error_t err;
        snprintf(path, sizeof path, "%.3900s/%s", folder, kinds[i]);
        if (os_remove_all(path, &err) != INSPAN_OK) log_warn("%s", err.text);
    }
}

/* Checkpoints of workers of this job that are gone from here: those that count are registered, and a job
 * whose members come and go must not fill the disk. */
static void sweep_earlier_ranks(const process_t *process)
{
    char job_folder[PATH_MAX];
    snprintf(job_folder, sizeof job_folder, "%.3300s/jobs/%llu", process->agent->folder,
             (unsigned long long)process->order->job_id);
    if (!process->job_folder_in_use && !process->fresh) remove_artifacts(job_folder);
    DIR *listing = opendir(job_folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        char path[PATH_MAX];
        unsigned rank = 0;
        int end = 0;
        if (sscanf(entry->d_name, "rank-%u%n", &rank, &end) != 1 || entry->d_name[end] != '\0') continue;
        bool used = rank == process->order->rank;
        for (size_t i = 0; i < process->n_ranks_in_use; i++) used |= process->ranks_in_use[i] == rank;
        snprintf(path, sizeof path, "%.3600s/%s", job_folder, entry->d_name);
        if (!used) remove_artifacts(path);
    }
    if (listing != NULL) closedir(listing);
}

static inspan_status_t prepare(agent_task_t *task, inspan_error_t *err)
{
    const process_t *process = task->process;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/jobs", process->agent->folder);
    job_files_prune(path, process->jobs_in_use, process->n_jobs_in_use);
    sweep_earlier_ranks(process);
    inspan_status_t status = process->fresh ? os_remove_all(process->folder, err) : INSPAN_OK;
    if (status == INSPAN_OK) status = os_mkdir_all(process->folder, 0700, err);
    if (status != INSPAN_OK) return status;
    char *config = strdup(process->order->config);
    if (config == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the job's settings");
    for (size_t i = 0; i < process->order->n_data && status == INSPAN_OK; i++)
        status = get_data(task, process->order->data[i], &config, err);
    if (status == INSPAN_OK && process->order->resume != NULL)
        status = get_resume(task, process->order->resume, err);
    snprintf(path, sizeof path, "%s/job.conf", process->folder);
    if (status == INSPAN_OK) status = os_file_write(path, config, strlen(config), 0600, err);
    free(config);
    return status;
}

/* ---- After DONE ------------------------------------------------------------------------------ */

/* Files below out/ by their path there, at most two folders deep ("step-00000200/model.safetensors"). */
static inspan_status_t upload_folder(agent_task_t *task, const char *folder, const char *prefix, int depth,
                                     inspan_error_t *err)
{
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return errno == ENOENT ? INSPAN_OK : error_set_errno(err, INSPAN_IO, "cannot read %s", folder);
    inspan_status_t status = INSPAN_OK;
    for (struct dirent *entry; status == INSPAN_OK && (entry = readdir(listing)) != NULL;) {
        char path[PATH_MAX], name[256];
        struct stat info;
        if (entry->d_name[0] == '.' || strstr(entry->d_name, ".tmp-") != NULL) continue;
        int length = snprintf(name, sizeof name, "%s%s", prefix, entry->d_name);
        if (length >= (int)sizeof name - 1 ||
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= PATH_MAX ||
            lstat(path, &info) != 0)
            continue;
        if (S_ISDIR(info.st_mode) && depth < 2) {
            strcat(name, "/");
            status = upload_folder(task, path, name, depth + 1, err);
        }
        if (!S_ISREG(info.st_mode)) continue;
        if (task->n_results == AGENT_RESULTS) {
            status = error_set(err, INSPAN_LIMIT, "more than %d result files", AGENT_RESULTS);
            break;
        }
        agent_result_t *result = &task->results[task->n_results++];
        memcpy(result->name, name, sizeof result->name);
        status = transfer_hash(task->transfer, path, result->hash, &result->bytes, err);
        if (status == INSPAN_OK)
            status = transfer_put(task->transfer, &(rpc_file_t){path, result->hash, result->bytes},
                                  results_patience, err);
        if (status != INSPAN_OK)
            error_prefix(err, "result %s of rank %u is not safe", name, task->process->order->rank);
    }
    closedir(listing);
    return status;
}

static inspan_status_t upload(agent_task_t *task, inspan_error_t *err)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/%s", task->process->folder,
             task->kind == TASK_STORE ? task->folder : "out");
    return upload_folder(task, folder, "", task->kind == TASK_STORE ? 2 : 0, err);
}

/* ---- The thread ------------------------------------------------------------------------------ */

static void *run(void *context)
{
    agent_task_t *task = context;
    inbox_t *inbox = task->process->agent->inbox;
    inspan_error_t err = {.status = INSPAN_OK};
    err.status = task->kind == TASK_PREPARE ? prepare(task, &err) : upload(task, &err);
    task->err = err;
    inbox_post(inbox,
               (inbox_message_t){AGENT_TASK_DONE, task->serial, task}); /* shut: agent_close discards it */
    return NULL;
}

inspan_status_t task_start(process_t *process, task_kind_t kind, const char *folder, inspan_error_t *err)
{
    agent_task_t *task = calloc(1, sizeof *task);
    if (task != NULL) task->transfer = transfer_open(process->agent->client);
    if (task == NULL || task->transfer == NULL) {
        free(task);
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a worker's files");
    }
    task->kind = kind;
    if (folder != NULL) snprintf(task->folder, sizeof task->folder, "%s", folder);
    task->serial = process->worker->serial;
    task->process = process;
    if (pthread_create(&task->thread, NULL, run, task) != 0) {
        transfer_close(task->transfer);
        free(task);
        return error_set(err, INSPAN_IO, "cannot start a thread for a worker's files");
    }
    *(kind == TASK_STORE ? &process->store : &process->task) = task;
    return INSPAN_OK;
}

void task_abandon(agent_task_t *task)
{
    if (task != NULL) transfer_cancel(task->transfer);
}

void task_discard(agent_task_t *task)
{
    pthread_join(task->thread, NULL);
    transfer_close(task->transfer);
    free(task);
}

void task_finish(agent_t *agent, agent_task_t *task)
{
    ns_t now = os_now();
    *(task->kind == TASK_STORE ? &task->process->store : &task->process->task) = NULL;
    if (task->kind == TASK_STORE)
        agent_core_stored(agent->core, now, task->serial, task->err.status, task->err.text, task->results,
                          task->n_results);
    else if (task->kind == TASK_PREPARE)
        agent_core_prepared(agent->core, now, task->serial, task->err.status, task->err.text);
    else
        agent_core_uploaded(agent->core, now, task->serial, task->err.status, task->err.text, task->results,
                            task->n_results);
    task_discard(task);
}
