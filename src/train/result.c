#include "train/result.h"

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "train/trainer_internal.h"
#include "worker/views.h"

#define RESULT_FOLDER "out"
#define ANSWER_PERIOD (10 * NS_PER_MS) /* an answer takes as long as the files take to travel */

static void pause_for_answer(void)
{
    nanosleep(&(struct timespec){.tv_nsec = ANSWER_PERIOD}, NULL);
}

static inspan_status_t write_once(result_t *result, const trainer_t *trainer, inspan_error_t *err)
{
    char path[PATH_MAX];
    if (result->written) return INSPAN_OK;
    if (snprintf(path, sizeof path, "%s/" RESULT_FOLDER, result->folder) >= (int)sizeof path)
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", result->folder);
    inspan_status_t status = trainer_save(trainer, path, err);
    result->written = status == INSPAN_OK;
    return status;
}

/* Until then another member must be able to do it again. Whoever stops this worker changes its views. */
static inspan_status_t await_answer(const trainer_t *trainer, inspan_error_t *err)
{
    worker_registered_t answer;
    while (!trainer_answer(trainer, &answer) || !answer.result) {
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        pause_for_answer();
    }
    if (answer.status == INSPAN_OK) return INSPAN_OK;
    if (trainer_view_changed(trainer)) return INSPAN_PENDING;
    return error_set(err, answer.status, "the result could not be registered: %s", answer.text);
}

inspan_status_t result_save(result_t *result, const trainer_t *trainer, const inspan_views_t *views,
                            uint64_t view, inspan_error_t *err)
{
    const local_saved_t saved = {
        .step = trainer->job.train.steps, .view = view, .result = true, .folder = RESULT_FOLDER};
    worker_registered_t ignored;
    inspan_status_t status = write_once(result, trainer, err);
    if (status != INSPAN_OK) return status;
    while (!views->saved(views->context, &saved)) { /* earlier ones wait for their answers */
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (!trainer_answer(trainer, &ignored)) pause_for_answer();
    }
    return await_answer(trainer, err);
}
