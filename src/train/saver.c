#include "train/saver.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define FOLDER       "checkpoints"     /* in the worker's */
#define WRITE_LOOK   (200 * NS_PER_MS) /* while the disk is waited for: have the views changed? */
#define FINISH_BOUND (600 * NS_PER_S)  /* a large one on a slow disk and link */
#define NOTE_SIZE    (INSPAN_ERROR_TEXT + 80)

/* A checkpoint that is complete on the disk and not registered. */
typedef struct complete {
    bool there;
    uint64_t step, view; /* view: under which it was said */
} complete_t;

struct saver {
    saver_options_t options;
    char folder[PATH_MAX];
    checkpoint_writer_t *writer; /* opened when this member first leads */
    bool failed;                 /* it could not be opened: told once, not tried again */
    bool writing;
    uint64_t committed;     /* the last step */
    complete_t ready, said; /* ready.view: the view that is too old to be said again */
};

inspan_status_t saver_open(const saver_options_t *options, saver_t **out, inspan_error_t *err)
{
    saver_t *saver = calloc(1, sizeof *saver);
    if (saver == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for checkpoints");
    saver->options = *options;
    if (snprintf(saver->folder, sizeof saver->folder, "%s/" FOLDER, options->folder) >=
        (int)sizeof saver->folder) {
        free(saver);
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", options->folder);
    }
    saver->options.folder = NULL; /* the caller's */
    *out = saver;
    return INSPAN_OK;
}

void saver_close(saver_t *saver)
{
    if (saver == NULL) return;
    checkpoint_close(saver->writer);
    /* what is registered lies in the manager's store; what is said is being read by the agent */
    if (saver->writer != NULL && !saver->said.there) os_remove_all(saver->folder, NULL);
    free(saver);
}

/* ---- What people are told -------------------------------------------------------------------- */

static void tell(const saver_t *saver, const char *text)
{
    if (saver->options.out == NULL) return;
    fprintf(saver->options.out, "%s\n", text);
    fflush(saver->options.out);
}

static void complain(const saver_t *saver, const char *text)
{
    tell(saver, text);
    log_warn("%s", text);
    if (saver->options.note != NULL) saver->options.note(saver->options.context, text);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* The first time that this member leads: memory, and whether the disk has room, long before it matters. */
static void open_writer(saver_t *saver)
{
    inspan_error_t err = {0};
    char text[NOTE_SIZE];
    const uint32_t keep = saver->options.keep > 2 ? saver->options.keep : 2; /* the said one must stay */
    const checkpoint_options_t options = {.folder = saver->folder,
                                          .keep = keep,
                                          .config = saver->options.config,
                                          .arrays = saver->options.arrays};
    inspan_status_t status = checkpoint_open(&options, &saver->writer, &err);
    saver->failed = status != INSPAN_OK;
    if (status == INSPAN_OK) status = checkpoint_check_room(saver->writer, &err);
    if (status == INSPAN_OK) return;
    snprintf(text, sizeof text, "%s: %s", saver->failed ? "no checkpoints will be written" : "checkpoints",
             err.text);
    complain(saver, text);
}

static void begin(saver_t *saver, uint64_t steps, uint64_t view)
{
    inspan_error_t err = {0};
    char text[NOTE_SIZE];
    inspan_status_t status = INSPAN_OK;
    if (saver->said.there && saver->ready.there)
        status = error_set(&err, INSPAN_LIMIT,
                           "the checkpoint of step %" PRIu64 " is left out: that of step %" PRIu64
                           " is still on its way to the manager; a larger checkpoint.every helps",
                           steps, saver->said.step);
    if (status == INSPAN_OK) status = checkpoint_begin(saver->writer, steps, view, &err);
    saver->writing = saver->writing || status == INSPAN_OK;
    if (status == INSPAN_OK) return;
    snprintf(text, sizeof text, "%s", err.text);
    complain(saver, text);
}

static void take_result(saver_t *saver, const checkpoint_result_t *result)
{
    char text[NOTE_SIZE], took[32], size[32];
    saver->writing = false;
    if (result->status != INSPAN_OK) {
        complain(saver, result->error.text);
        return;
    }
    snprintf(text, sizeof text, "checkpoint of step %" PRIu64 ": %s written in %s", result->step,
             units_format_size(result->bytes, size, sizeof size),
             units_format_duration(result->took, took, sizeof took));
    tell(saver, text);
    saver->ready = (complete_t){.there = true, .step = result->step}; /* one before it is overtaken */
}

/* ---- Announcing ------------------------------------------------------------------------------ */

static void announce(saver_t *saver, uint64_t view)
{
    const inspan_views_t *views = saver->options.views;
    local_saved_t saved = {.step = saver->ready.step, .view = view};
    char name[32];
    if (!saver->ready.there || saver->said.there || saver->committed < saver->ready.step) return;
    if (view <= saver->ready.view) return;
    checkpoint_name(saver->ready.step, name);
    snprintf(saved.folder, sizeof saved.folder, FOLDER "/%s", name);
    if (saver->options.announcing != NULL) saver->options.announcing(saver->options.owner);
    if (!views->saved(views->context, &saved)) return; /* another time */
    saver->said = (complete_t){.there = true, .step = saver->ready.step, .view = view};
    saver->ready.there = false;
}

static void take_answer(saver_t *saver, const worker_registered_t *answer)
{
    char text[NOTE_SIZE];
    if (!saver->said.there || answer->step != saver->said.step) return;
    const complete_t said = saver->said;
    saver->said.there = false;
    if (answer->status == INSPAN_OK) return;
    if (answer->status == INSPAN_ABORTED) { /* P1: a newer view was issued: once more, under that one */
        if (!saver->ready.there) saver->ready = said;
        return;
    }
    snprintf(text, sizeof text, "the checkpoint of step %" PRIu64 " was not registered: %s", answer->step,
             answer->text);
    complain(saver, text);
}

bool saver_answer(saver_t *saver, worker_registered_t *answer)
{
    const inspan_views_t *views = saver->options.views;
    while (views->registered(views->context, answer)) {
        if (answer->result) return true;
        take_answer(saver, answer);
    }
    return false;
}

static void look(saver_t *saver, uint64_t view)
{
    checkpoint_result_t result;
    worker_registered_t ignored;
    if (saver->writing && checkpoint_poll(saver->writer, &result)) take_result(saver, &result);
    saver_answer(saver, &ignored); /* about a result: nobody waits for one yet */
    announce(saver, view);
}

void saver_committed(saver_t *saver, uint64_t step, uint64_t view, bool leads)
{
    const bool light = step >= saver->options.config.optimizer.steps;
    const uint64_t steps = step + 1; /* in the weights */
    if (saver->options.every == 0) return;
    saver->committed = step;
    if (leads && saver->writer == NULL && !saver->failed) open_writer(saver);
    look(saver, view);
    if (leads && !light && !saver->failed && steps % saver->options.every == 0) begin(saver, steps, view);
}

inspan_status_t saver_finish(saver_t *saver, uint64_t view)
{
    const inspan_views_t *views = saver->options.views;
    const ns_t end = os_now() + FINISH_BOUND;
    for (;;) {
        checkpoint_result_t result;
        look(saver, view);
        const bool due = saver->ready.there && saver->committed >= saver->ready.step;
        if (!saver->writing && !saver->said.there && !due) return INSPAN_OK;
        if (views->changed(views->context)) return INSPAN_PENDING;
        if (os_now() > end) {
            complain(saver, "the last checkpoint was given up: it was not written and registered in time");
            return INSPAN_OK;
        }
        if (!saver->writing)
            views->await(views->context, end);
        else if (checkpoint_wait(saver->writer, WRITE_LOOK, &result))
            take_result(saver, &result);
    }
}
