#include "cli/submit.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/client.h"
#include "cli/job_file.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "platform/os/os_time.h"

#define CONFIG_MAX 32768

/* ---- Reading and checking -------------------------------------------------------------------- */

/* The fields that are paths. */
typedef enum path_field { DATA_PATH, DATA_LABELS, CHECKPOINT_DIR, PATH_FIELDS } path_field_t;
static const char *const path_keys[PATH_FIELDS] = {"data.path", "data.labels", "checkpoint.dir"};

/* Where each path starts: the job file's folder, or "." for one that --set gives. */
typedef struct bases {
    const char *folder[PATH_FIELDS];
} bases_t;

/* As the parser of job files sees to it there. */
static bool is_utf8(const char *text)
{
    size_t left = strlen(text), n = 0;
    for (; left > 0 && (n = utf8_length(text, left)) > 0; text += n) left -= n;
    return left == 0;
}

static inspan_status_t override(job_config_t *job, const cli_list_t *set, bases_t *bases, inspan_error_t *err)
{
    for (uint32_t i = 0; i < set->n; i++) {
        char key[96];
        const char *equals = strchr(set->items[i], '=');
        if (equals == NULL || equals == set->items[i] || (size_t)(equals - set->items[i]) >= sizeof key)
            return error_set(err, INSPAN_INVALID, "--set %.80s: expected KEY=VALUE as in train.steps=50",
                             set->items[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - set->items[i]), set->items[i]);
        inspan_status_t status = is_utf8(equals + 1)
                                     ? job_set(job, key, equals + 1, err)
                                     : error_set(err, INSPAN_INVALID, "%s: the value is not UTF-8", key);
        if (status != INSPAN_OK) {
            error_prefix(err, "--set");
            return status;
        }
        for (path_field_t field = 0; field < PATH_FIELDS; field++)
            if (strcmp(key, path_keys[field]) == 0) bases->folder[field] = ".";
    }
    return INSPAN_OK;
}

static inspan_status_t resolve(const char *folder, const char *path, char out[PLACE_PATH_MAX],
                               inspan_error_t *err)
{
    int length = path[0] == '/' || strcmp(folder, ".") == 0
                     ? snprintf(out, PLACE_PATH_MAX, "%s", path)
                     : snprintf(out, PLACE_PATH_MAX, "%s/%s", folder, path);
    if (length < PLACE_PATH_MAX) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "path %.100s... is too long", path);
}

static inspan_status_t add_data(submit_t *submit, const bases_t *bases, path_field_t field, const char *path,
                                inspan_error_t *err)
{
    submit_data_t *data = &submit->data[submit->n_data];
    data->key = path_keys[field];
    inspan_status_t status = resolve(bases->folder[field], path, data->path, err);
    if (status == INSPAN_OK) status = rpc_file_hash(data->path, NULL, data->hash, &data->bytes, err);
    if (status == INSPAN_OK) submit->n_data++;
    if (status != INSPAN_OK) error_prefix(err, "%s", data->key);
    return status;
}

/* Open the data as a worker will, for its faults and for what it fixes of the model. */
static inspan_status_t check_data(submit_t *submit, nn_model_config_t *model, inspan_error_t *err)
{
    nn_data_config_t config = {0};
    nn_data_t *data = NULL;
    job_data_config(&submit->job, &config);
    config.path = submit->data[0].path;
    config.labels = submit->n_data > 1 ? submit->data[1].path : NULL;
    inspan_status_t status = nn_data_open(&config, &data, err);
    if (status != INSPAN_OK) return status;
    nn_data_shape(data, model);
    submit->samples = nn_data_samples(data);
    nn_data_close(data);
    return INSPAN_OK;
}

static inspan_status_t check_memory(submit_t *submit, const nn_model_config_t *model, inspan_error_t *err)
{
    uint64_t data_bytes = 0;
    for (uint32_t i = 0; i < submit->n_data; i++) data_bytes += submit->data[i].bytes;
    inspan_status_t status = job_memory(&submit->job, model, 0, data_bytes, &submit->memory_bytes, err);
    if (status == INSPAN_OK) status = job_memory(&submit->job, model, 0, 0, &submit->model_bytes, err);
    if (submit->job.nodes.memory > submit->memory_bytes) submit->memory_bytes = submit->job.nodes.memory;
    return status;
}

inspan_status_t submit_prepare(const char *path, const cli_list_t *set, submit_t *submit, inspan_error_t *err)
{
    bases_t bases;
    const char *slash = strrchr(path, '/');
    memset(submit, 0, sizeof *submit);
    for (path_field_t field = 0; field < PATH_FIELDS; field++) bases.folder[field] = submit->folder;
    snprintf(submit->folder, sizeof submit->folder, "%.*s",
             slash == NULL ? 1 : (int)(slash - path) + (slash == path), slash == NULL ? "." : path);
    inspan_status_t status = job_file_load(path, &submit->job, err);
    if (status == INSPAN_OK) status = override(&submit->job, set, &bases, err);
    if (status == INSPAN_OK && job_validate(&submit->job, err) != INSPAN_OK) {
        status = err->status;
        error_prefix(err, "%s", path);
    }
    if (status == INSPAN_OK)
        status = resolve(bases.folder[CHECKPOINT_DIR], submit->job.checkpoint.dir, submit->results, err);
    if (status == INSPAN_OK) status = add_data(submit, &bases, DATA_PATH, submit->job.data.path, err);
    if (status == INSPAN_OK && submit->job.data.labels[0] != '\0')
        status = add_data(submit, &bases, DATA_LABELS, submit->job.data.labels, err);
    if (status != INSPAN_OK) return status;
    job_model_config(&submit->job, &submit->model);
    status = check_data(submit, &submit->model, err);
    if (status == INSPAN_OK) status = check_memory(submit, &submit->model, err);
    return status;
}

static void warn(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
}

static inspan_status_t note_files(submit_resume_t *resume, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (size_t i = 0; i < CHECKPOINT_FILES && status == INSPAN_OK; i++) {
        submit_data_t *file = &resume->files[i];
        file->key = checkpoint_files[i];
        if (snprintf(file->path, sizeof file->path, "%s/%s", resume->path, file->key) >=
            (int)sizeof file->path)
            return error_set(err, INSPAN_INVALID, "path too long: %.100s...", resume->path);
        status = rpc_file_hash(file->path, NULL, file->hash, &file->bytes, err);
    }
    return status;
}

inspan_status_t submit_find_checkpoint(submit_t *submit, inspan_error_t *err)
{
    checkpoint_found_t found;
    checkpoint_config_t config;
    checkpoint_state_t state;
    submit_resume_t *resume = &submit->resume;
    inspan_status_t status = checkpoint_find_newest(submit->results, warn, NULL, &found, err);
    if (status == INSPAN_NOT_FOUND) {
        char text[INSPAN_ERROR_TEXT];
        snprintf(text, sizeof text, "%s", err->text);
        return error_set(err, status,
                         "--resume: %.300s; train without --resume, or name the folder: --set "
                         "checkpoint.dir=FOLDER",
                         text);
    }
    if (status != INSPAN_OK) return error_prefix(err, "--resume");
    checkpoint_config_of(&submit->job, &submit->model, submit->samples, &config);
    status = checkpoint_agrees(found.path, &config, &state, err);
    if (status == INSPAN_OK && state.step >= submit->job.train.steps)
        status =
            error_set(err, INSPAN_INVALID,
                      "all %" PRIu64 " steps are done: %.200s has the model; to go on, raise train.steps",
                      state.step, found.path);
    if (status != INSPAN_OK) return error_prefix(err, "--resume");
    resume->step = state.step;
    resume->view = state.view;
    snprintf(resume->path, sizeof resume->path, "%s", found.path);
    status = note_files(resume, err);
    resume->given = status == INSPAN_OK;
    return status;
}

static inspan_status_t check_mixing(const submit_t *submit, inspan_error_t *err)
{
    uint64_t step = 0;
    if (submit->job.checkpoint.every == 0 || submit->resume.given ||
        !checkpoint_highest(submit->results, &step))
        return INSPAN_OK;
    return error_set(
        err, INSPAN_INVALID,
        "checkpoint.dir %.200s holds checkpoints of an earlier training, up to step %" PRIu64
        ": go on with it by --resume, remove its step-* folders, or choose another folder: --set "
        "checkpoint.dir=FOLDER",
        submit->results, step);
}

inspan_status_t submit_check_results(const submit_t *submit, inspan_error_t *err)
{
    char path[PLACE_PATH_MAX];
    struct stat info;
    snprintf(path, sizeof path, "%s", submit->results);
    while (stat(path, &info) != 0) { /* up to the first folder that is there */
        char *slash = strrchr(path, '/');
        if ((errno != ENOENT && errno != ENOTDIR) || strcmp(path, ".") == 0 || slash == path)
            return error_set_errno(err, INSPAN_IO, "checkpoint.dir %s", submit->results);
        if (slash != NULL)
            *slash = '\0';
        else
            snprintf(path, sizeof path, ".");
    }
    if (!S_ISDIR(info.st_mode))
        return error_set(err, INSPAN_INVALID, "checkpoint.dir %s: %s is no folder", submit->results, path);
    if (access(path, W_OK | X_OK) != 0)
        return error_set_errno(err, INSPAN_IO, "checkpoint.dir %s: cannot write in %s", submit->results,
                               path);
    return check_mixing(submit, err);
}

uint32_t submit_keep(const submit_t *submit)
{
    const uint64_t keep = submit->job.checkpoint.keep;
    return keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX;
}

inspan_status_t submit_pin(submit_t *submit, char *nodes, inspan_error_t *err)
{
    char *rest = NULL;
    for (char *name = strtok_r(nodes, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        if (submit->n_pinned == SUBMIT_NODES_MAX)
            return error_set(err, INSPAN_INVALID, "--nodes: at most %d names", SUBMIT_NODES_MAX);
        submit->pinned[submit->n_pinned++] = name;
    }
    if (submit->n_pinned == 0) return error_set(err, INSPAN_INVALID, "--nodes: expected names as in A,B");
    return INSPAN_OK;
}

/* ---- Sending --------------------------------------------------------------------------------- */

typedef struct sending {
    char name[256]; /* of the file, fit for a terminal */
    progress_t line;
    ns_t started;
    interrupt_t *interrupt;
} sending_t;

static inspan_status_t show_sent(void *context, uint64_t sent, uint64_t bytes, inspan_error_t *err)
{
    sending_t *sending = context;
    char line[400], done[32], all[32], rest[32], left[48] = "";
    const double seconds = ns_to_s(os_now() - sending->started);
    if (sent > 0 && sent < bytes && seconds > 1) {
        const double more = seconds * (double)(bytes - sent) / (double)sent;
        units_format_duration(more < 1e9 ? (ns_t)(more * 1e9) : INT64_MAX, rest, sizeof rest);
        snprintf(left, sizeof left, "  left %s", rest);
    }
    snprintf(line, sizeof line, "sending %s: %s of %s%s", sending->name,
             units_format_size(sent, done, sizeof done), units_format_size(bytes, all, sizeof all), left);
    progress_show(&sending->line, line, sent == bytes);
    if (interrupt_wait(sending->interrupt, 0) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_ABORTED, "interrupted while %s was sent", sending->name);
}

static inspan_status_t put_data(const submit_data_t *data, rpc_client_t *client, interrupt_t *interrupt,
                                inspan_error_t *err)
{
    sending_t sending = {.started = os_now(), .interrupt = interrupt};
    const char *slash = strrchr(data->path, '/');
    const rpc_file_t file = {data->path, data->hash, data->bytes};
    const rpc_file_watch_t watch = {.context = &sending, .chunk = show_sent};
    snprintf(sending.name, sizeof sending.name, "%.255s", slash != NULL ? slash + 1 : data->path);
    table_clean(sending.name);
    progress_open(&sending.line);
    sending.line.shown_at = sending.started; /* where stderr is no terminal: only what takes long */
    inspan_status_t status = rpc_file_put(client, &file, &watch, err);
    progress_end(&sending.line);
    return status;
}

/* An Artifact with room for its files. */
typedef struct artifact {
    Inspan__V1__Artifact message;
    Inspan__V1__ResultFile files[CHECKPOINT_FILES], *list[CHECKPOINT_FILES];
} artifact_t;

static inspan_status_t send_data(const submit_data_t *data, rpc_client_t *client, Inspan__V1__DataFile *file,
                                 char absolute[PATH_MAX], interrupt_t *interrupt, inspan_error_t *err)
{
    if (realpath(data->path, absolute) == NULL) return error_set_errno(err, INSPAN_IO, "%s", data->path);
    file->key = (char *)(uintptr_t)data->key;
    file->hash = (char *)(uintptr_t)data->hash;
    file->bytes = data->bytes;
    file->path = absolute;
    file->fetch = data->bytes <= SUBMIT_PUT_LIMIT;
    if (file->fetch) return put_data(data, client, interrupt, err);
    fprintf(stderr, "%s is larger than %" PRIu64 " MB: it must lie at %s on every node\n", data->path,
            SUBMIT_PUT_LIMIT / 1000000, absolute);
    return INSPAN_OK;
}

/* The checkpoint's files into the store, and their list into the request. */
static inspan_status_t send_resume(const submit_resume_t *resume, rpc_client_t *client,
                                   interrupt_t *interrupt, artifact_t *artifact, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    inspan__v1__artifact__init(&artifact->message);
    for (size_t i = 0; i < CHECKPOINT_FILES && status == INSPAN_OK; i++) {
        Inspan__V1__ResultFile *file = artifact->list[i] = &artifact->files[i];
        inspan__v1__result_file__init(file);
        file->name = (char *)(uintptr_t)resume->files[i].key;
        file->hash = (char *)(uintptr_t)resume->files[i].hash;
        file->bytes = resume->files[i].bytes;
        status = put_data(&resume->files[i], client, interrupt, err);
    }
    artifact->message.step = resume->step;
    artifact->message.view = resume->view;
    artifact->message.n_files = CHECKPOINT_FILES;
    artifact->message.files = artifact->list;
    return status;
}

inspan_status_t submit_send(const submit_t *submit, rpc_client_t *client, interrupt_t *interrupt,
                            uint64_t *id, inspan_error_t *err)
{
    char config[CONFIG_MAX], key[JOB_KEY_MAX], absolute[SUBMIT_DATA_MAX][PATH_MAX];
    Inspan__V1__DataFile files[SUBMIT_DATA_MAX], *list[SUBMIT_DATA_MAX];
    Inspan__V1__SubmitRequest request = INSPAN__V1__SUBMIT_REQUEST__INIT;
    artifact_t resume;
    if (job_format(&submit->job, config, sizeof config) != INSPAN_OK)
        return error_set(err, INSPAN_LIMIT, "the job's fields are too long");
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i < submit->n_data && status == INSPAN_OK; i++) {
        inspan__v1__data_file__init(&files[i]);
        list[i] = &files[i];
        status = send_data(&submit->data[i], client, &files[i], absolute[i], interrupt, err);
    }
    if (status == INSPAN_OK && submit->resume.given) {
        status = send_resume(&submit->resume, client, interrupt, &resume, err);
        request.resume = &resume.message;
    }
    if (status != INSPAN_OK) return status;
    request.keep_checkpoints = submit_keep(submit);
    request.abort_on_loss = strcmp(submit->job.on_loss, "abort") == 0;
    request.name = (char *)(uintptr_t)submit->job.name;
    request.config = config;
    job_model_key(&submit->job, &submit->model, key);
    request.model_key = key;
    request.n_data = submit->n_data;
    request.data = list;
    request.min_nodes = submit->job.nodes.min;
    request.start_nodes = submit->start_nodes;
    request.max_nodes = submit->job.nodes.max;
    request.memory_bytes = submit->memory_bytes;
    request.model_bytes = submit->model_bytes;
    request.failure_timeout_ns = submit->job.failure_timeout;
    request.n_pinned = submit->n_pinned;
    request.pinned = (char **)(uintptr_t)submit->pinned;
    Inspan__V1__JobInfo *job =
        client_call(client, "Cluster/Submit", &request.base, &inspan__v1__job_info__descriptor, err);
    if (job == NULL) return err->status;
    *id = job->id;
    client_free(job);
    return INSPAN_OK;
}
