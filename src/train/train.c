/* The worker process around the trainer. */
#include "train/train.h"

#include <inspan/worker.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "train/result.h"
#include "train/trainer.h"

#define JOB_FILE_MAX    65536
#define EXIT_JOB_FAILED 3

typedef struct process {
    job_config_t job;
    inspan_worker_t *worker;
    result_t result;
} process_t;

static inspan_status_t read_job(const char *folder, job_config_t *job, inspan_error_t *err)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    if (snprintf(path, sizeof path, "%s/job.conf", folder) >= (int)sizeof path)
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", folder);
    inspan_status_t status = os_file_read(path, JOB_FILE_MAX, &text, &bytes, err);
    if (status != INSPAN_OK) return status;
    status = job_parse(text, job, err);
    if (status != INSPAN_OK) error_prefix(err, "%s", path);
    free(text);
    return status;
}

/* The agent hears the true status before the others' answer comes: freeing a large model takes its time. */
static void on_failed(void *context, inspan_status_t status, const char *text)
{
    inspan_worker_fail(((process_t *)context)->worker, status, text);
}

static void on_progress(void *context, const inspan_progress_t *progress)
{
    inspan_worker_progress(((process_t *)context)->worker, progress);
}

static void on_note(void *context, const char *text)
{
    inspan_worker_note(((process_t *)context)->worker, text);
}

static inspan_status_t on_save(void *context, trainer_t *trainer, uint64_t view, inspan_error_t *err)
{
    process_t *process = context;
    return result_save(&process->result, trainer, inspan_worker_views(process->worker), view, err);
}

/* The agent has put a checkpoint there: this training goes on from it. */
static bool find_resume(const char *folder, char resume[PATH_MAX])
{
    return snprintf(resume, PATH_MAX, "%s/resume", folder) < PATH_MAX && access(resume, F_OK) == 0;
}

/* Train and save; *summary is the caller's to free. */
static inspan_status_t train(process_t *process, char **summary, inspan_error_t *err)
{
    trainer_t *trainer = NULL;
    const char *newcomer = getenv("INSPAN_NEWCOMER"); /* the agent's word: the job runs already */
    trainer_options_t options = {
        .job = &process->job,
        .views = inspan_worker_views(process->worker),
        .newcomer = newcomer != NULL && strcmp(newcomer, "1") == 0,
        .threads = inspan_worker_threads(process->worker),
        .out = stdout,
        .folder = process->result.folder,
        .hooks = {.context = process,
                  .failed = on_failed,
                  .progress = on_progress,
                  .note = on_note,
                  .save = on_save},
    };
    char resume[PATH_MAX];
    if (!options.newcomer && find_resume(process->result.folder, resume)) options.resume = resume;
    inspan_status_t status = trainer_open(&options, &trainer, err);
    if (status != INSPAN_OK) return status;
    printf("%s\n", nn_gemm_report());
    status = trainer_run(trainer, err);
    if (status == INSPAN_OK) {
        *summary = trainer_summary(trainer);
        if (*summary == NULL) status = error_set(err, INSPAN_NO_MEMORY, "no memory for the summary");
    }
    trainer_close(trainer);
    return status;
}

int train_worker_main(const char *folder)
{
    inspan_error_t err = {0}, job_err = {0};
    process_t process = {0};
    char *summary = NULL;
    /* The agent that drains our output may die first: then a print fails, and the session says why it ends.
     */
    signal(SIGPIPE, SIG_IGN);
    nn_gemm_report(); /* chooses before there are threads */
    /* A job file that cannot be read is told to the agent, so the session comes first. */
    process.result.folder = folder;
    inspan_status_t job_status = read_job(folder, &process.job, &job_err);
    inspan_status_t status = inspan_worker_attach(&process.worker, &err);
    if (status != INSPAN_OK) {
        fprintf(stderr, "inspan: %s\n", err.text);
        return EXIT_JOB_FAILED;
    }
    if (job_status == INSPAN_OK) job_status = inspan_worker_backend(process.worker, process.job.sync.backend);
    if (job_status != INSPAN_OK) {
        err = job_err;
        status = job_status;
        inspan_worker_fail(process.worker, status, err.text);
    } else {
        status = train(&process, &summary, &err);
    }
    if (status != INSPAN_OK) fprintf(stderr, "inspan: %s\n", err.text);
    inspan_worker_finish(process.worker, status, status == INSPAN_OK ? summary : err.text);
    free(summary);
    return status == INSPAN_OK ? EXIT_SUCCESS : EXIT_JOB_FAILED;
}
