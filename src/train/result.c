#include "train/result.h"

#include <limits.h>
#include <stdio.h>

#include "base/error.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"
#include "worker/views.h"

#define RESULT_FOLDER "out"
#define ANSWER_BOUND  (3600 * NS_PER_S) /* as the others wait; the manager may be away */
#define NEWS_BOUND    (100 * NS_PER_MS) /* of a view that the manager has announced already */

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
static inspan_status_t await_answer(const trainer_t *trainer, const inspan_views_t *views, ns_t until,
                                    worker_registered_t *answer, inspan_error_t *err)
{
    while (!trainer_answer(trainer, answer) || !answer->result) {
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (os_now() > until)
            return error_set(err, INSPAN_TIMEOUT, "the result was not stored and registered within %.0f s",
                             ns_to_s(ANSWER_BOUND));
        views->await(views->context, until);
    }
    return INSPAN_OK;
}

static inspan_status_t say(const trainer_t *trainer, const inspan_views_t *views, ns_t until,
                           const local_saved_t *saved, inspan_error_t *err)
{
    worker_registered_t ignored;
    while (!views->saved(views->context, saved)) { /* earlier ones wait for their answers */
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (os_now() > until)
            return error_set(err, INSPAN_TIMEOUT, "earlier checkpoints were not registered within %.0f s",
                             ns_to_s(ANSWER_BOUND));
        if (!trainer_answer(trainer, &ignored)) views->await(views->context, until);
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
        status = say(trainer, views, until, &saved, err);
        if (status == INSPAN_OK) status = await_answer(trainer, views, until, &answer, err);
        if (status != INSPAN_OK || answer.status == INSPAN_OK) break;
        if (trainer_view_changed(trainer)) return INSPAN_PENDING;
        if (answer.status != INSPAN_ABORTED)
            return error_set(err, answer.status, "the result could not be registered: %s", answer.text);
        views->await(views->context, os_now() + NEWS_BOUND);
    }
    return status;
}
