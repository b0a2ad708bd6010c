#include "train/result.h"

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"
#include "worker/views.h"

#define RESULT_FOLDER "out"
#define ANSWER_PERIOD (10 * NS_PER_MS)  /* an answer takes as long as the files take to travel */
#define ANSWER_BOUND  (3600 * NS_PER_S) /* as the others wait; the manager may be away */

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

/* Until then another member must be able to do it again. Whoever stops this worker changes its views.
 * PENDING: they have changed. */
static inspan_status_t await_answer(const trainer_t *trainer, ns_t until, worker_registered_t *answer,
                                    inspan_error_t *err)
{
    while (!trainer_answer(trainer, answer) || !answer->result) {
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (os_now() > until)
            return error_set(err, INSPAN_TIMEOUT, "the result was not stored and registered within %.0f s",
                             ns_to_s(ANSWER_BOUND));
        pause_for_answer();
    }
    return INSPAN_OK;
}

static inspan_status_t say(const trainer_t *trainer, const inspan_views_t *views, const local_saved_t *saved)
{
    worker_registered_t ignored;
    while (!views->saved(views->context, saved)) { /* earlier ones wait for their answers */
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (!trainer_answer(trainer, &ignored)) pause_for_answer();
    }
    return INSPAN_OK;
}

/*
 * P1: "of an older view" may be the answer to what was said in the view before this one, whose files were
 * still on their way; or the newest view is not known here yet. So it is said once more.
 */
inspan_status_t result_save(result_t *result, const trainer_t *trainer, const inspan_views_t *views,
                            uint64_t view, inspan_error_t *err)
{
    const local_saved_t saved = {
        .step = trainer->job.train.steps, .view = view, .result = true, .folder = RESULT_FOLDER};
    const ns_t until = os_now() + ANSWER_BOUND;
    inspan_status_t status = write_once(result, trainer, err);
    while (status == INSPAN_OK) {
        worker_registered_t answer = {.status = INSPAN_OK};
        status = say(trainer, views, &saved);
        if (status == INSPAN_OK) status = await_answer(trainer, until, &answer, err);
        if (status != INSPAN_OK || answer.status == INSPAN_OK) break;
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (answer.status != INSPAN_ABORTED)
            return error_set(err, answer.status, "the result could not be registered: %s", answer.text);
        pause_for_answer();
    }
    return status;
}
