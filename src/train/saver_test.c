#include "train/saver.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "train/checkpoint_test.h"

#define BOUND (60 * NS_PER_S)
#define STEPS 40 /* of the job */

/* The views, as far as a saver sees them: the test plays agent and manager. */
typedef struct scene {
    char folder[64];
    training_t training;
    inspan_views_t views;
    saver_t *saver;
    bool changed, busy; /* busy: no room for one more announcement */
    local_saved_t said[STEPS];
    unsigned n_said;
    worker_registered_t answers[STEPS];
    unsigned n_answers, taken;
    char note[1024];
    unsigned notes;
} scene_t;

static bool on_changed(void *context)
{
    return ((scene_t *)context)->changed;
}

static bool on_saved(void *context, const local_saved_t *saved)
{
    scene_t *scene = context;
    char path[PATH_MAX];
    uint64_t step = 0;
    inspan_error_t err;
    if (scene->busy) return false;
    assert_true(scene->n_said < STEPS);
    assert_false(saved->result);
    snprintf(path, sizeof path, "%s/%s", scene->folder, saved->folder); /* it is whole when it is said */
    if (checkpoint_verify(path, &step, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(step, saved->step);
    scene->said[scene->n_said++] = *saved;
    return true;
}

static bool on_registered(void *context, worker_registered_t *answer)
{
    scene_t *scene = context;
    if (scene->taken == scene->n_answers) return false;
    *answer = scene->answers[scene->taken++];
    return true;
}

/* Nobody else is there who could answer: the views change instead. */
static void on_await(void *context, ns_t until)
{
    scene_t *scene = context;
    (void)until;
    assert_int_equal(scene->taken, scene->n_answers);
    scene->changed = true;
}

static void on_note(void *context, const char *text)
{
    scene_t *scene = context;
    snprintf(scene->note, sizeof scene->note, "%s", text);
    scene->notes++;
}

static void answer(scene_t *scene, uint64_t step, inspan_status_t status, const char *text)
{
    worker_registered_t *to = &scene->answers[scene->n_answers++];
    *to = (worker_registered_t){.step = step, .status = status};
    snprintf(to->text, sizeof to->text, "%s", text);
}

static scene_t *open_scene(void **state, uint64_t every, uint32_t keep)
{
    scene_t *scene = *state;
    inspan_error_t err;
    const saver_options_t options = {.views = &scene->views,
                                     .folder = scene->folder,
                                     .every = every,
                                     .keep = keep,
                                     .config = scene->training.config,
                                     .arrays = scene->training.arrays,
                                     .context = scene,
                                     .note = on_note};
    if (saver_open(&options, &scene->saver, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return scene;
}

static int set_up(void **state)
{
    scene_t *scene = calloc(1, sizeof *scene);
    *state = scene;
    snprintf(scene->folder, sizeof scene->folder, "/tmp/inspan-saver-XXXXXX");
    if (mkdtemp(scene->folder) == NULL) return -1;
    training_open(&scene->training);
    scene->training.config.optimizer.steps = STEPS;
    scene->views = (inspan_views_t){.context = scene,
                                    .changed = on_changed,
                                    .saved = on_saved,
                                    .registered = on_registered,
                                    .await = on_await};
    return 0;
}

static int tear_down(void **state)
{
    scene_t *scene = *state;
    saver_close(scene->saver);
    training_close(&scene->training);
    os_remove_all(scene->folder, NULL);
    free(scene);
    return 0;
}

static bool is_there(const scene_t *scene, uint64_t step)
{
    char path[PATH_MAX], name[32];
    checkpoint_name(step, name);
    snprintf(path, sizeof path, "%s/checkpoints/%s/manifest.json", scene->folder, name);
    return access(path, F_OK) == 0;
}

static void await_written(const scene_t *scene, uint64_t step)
{
    for (const ns_t end = os_now() + BOUND; !is_there(scene, step);) assert_true(os_now() < end);
}

/* Until the saver has seen what its thread did: by commits of a step that is not due. */
static void await_said(scene_t *scene, uint64_t step, uint64_t committed)
{
    const ns_t end = os_now() + BOUND;
    while (scene->n_said == 0 || scene->said[scene->n_said - 1].step != step) {
        saver_committed(scene->saver, committed, 1, true);
        assert_true(os_now() < end);
    }
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void said_after_the_next_commit_alone(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    for (uint64_t step = 0; step < 4; step++) saver_committed(scene->saver, step, 1, true);
    training_step(&scene->training, 0);
    saver_committed(scene->saver, 4, 1, true); /* 5 steps are in the weights */
    await_written(scene, 5);
    assert_int_equal(saver_finish(scene->saver, 1), INSPAN_OK); /* written; and not said (R4) */
    assert_int_equal(scene->n_said, 0);
    saver_committed(scene->saver, 5, 7, true);
    assert_int_equal(scene->n_said, 1);
    assert_int_equal(scene->said[0].step, 5);
    assert_int_equal(scene->said[0].view, 7);
    assert_string_equal(scene->said[0].folder, "checkpoints/step-00000005");
    assert_int_equal(scene->notes, 0);
}

static void only_a_leader_writes(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    for (uint64_t step = 0; step < 20; step++) saver_committed(scene->saver, step, 1, false);
    assert_false(is_there(scene, 5));
    assert_int_equal(saver_finish(scene->saver, 1), INSPAN_OK);
    saver_committed(scene->saver, 24, 2, true); /* it leads from now on */
    await_written(scene, 25);
    char path[PATH_MAX];
    struct stat info;
    snprintf(path, sizeof path, "%s/checkpoints", scene->folder);
    assert_int_equal(stat(path, &info), 0);
}

static void nothing_is_written_without_a_wish(void **state)
{
    scene_t *scene = open_scene(state, 0, 1);
    for (uint64_t step = 0; step < STEPS + 2; step++) saver_committed(scene->saver, step, 1, true);
    assert_int_equal(saver_finish(scene->saver, 1), INSPAN_OK);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/checkpoints", scene->folder);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void a_stale_view_is_followed_by_a_newer_one(void **state)
{
    scene_t *scene = open_scene(state, 5, 3);
    saver_committed(scene->saver, 4, 1, true);
    await_said(scene, 5, 5);
    answer(scene, 5, INSPAN_ABORTED, "view 1 is not the newest");
    saver_committed(scene->saver, 6, 1, true); /* the new view has not come yet: no use */
    assert_int_equal(scene->n_said, 1);
    saver_committed(scene->saver, 7, 2, true);
    assert_int_equal(scene->n_said, 2);
    assert_int_equal(scene->said[1].step, 5);
    assert_int_equal(scene->said[1].view, 2);
    answer(scene, 5, INSPAN_OK, "");
    saver_committed(scene->saver, 8, 2, true);
    assert_int_equal(scene->n_said, 2);
    assert_int_equal(scene->notes, 0);
}

static void a_slow_link_leaves_some_out(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    saver_committed(scene->saver, 4, 1, true);
    await_said(scene, 5, 5);
    saver_committed(scene->saver, 9, 1, true);
    await_written(scene, 10);
    saver_committed(scene->saver, 10, 1, true); /* 5 is said, 10 is ready */
    while (scene->notes == 0) saver_committed(scene->saver, 14, 1, true);
    assert_non_null(strstr(scene->note, "step 15 is left out"));
    assert_true(is_there(scene, 5)); /* though one is to be kept: it is being sent */
    assert_int_equal(scene->n_said, 1);
    answer(scene, 5, INSPAN_OK, "");
    await_said(scene, 10, 16);
    assert_int_equal(scene->n_said, 2);
}

static void failures_are_told_and_end_nothing(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    char path[PATH_MAX];
    saver_committed(scene->saver, 4, 1, true);
    await_said(scene, 5, 5);
    answer(scene, 5, INSPAN_IO, "the manager's disk is full");
    saver_committed(scene->saver, 6, 1, true);
    assert_string_equal(scene->note,
                        "the checkpoint of step 5 was not registered: the manager's disk is full");
    /* the folder is gone: a file lies there */
    snprintf(path, sizeof path, "%s/checkpoints", scene->folder);
    assert_int_equal(os_remove_all(path, NULL), INSPAN_OK);
    assert_int_equal(os_file_write(path, "x", 1, 0644, NULL), INSPAN_OK);
    saver_committed(scene->saver, 9, 1, true);
    const ns_t end = os_now() + BOUND;
    while (scene->notes < 2) {
        saver_committed(scene->saver, 10, 1, true);
        assert_true(os_now() < end);
    }
    assert_non_null(strstr(scene->note, "the checkpoint of step 10 was not written"));
    assert_int_equal(unlink(path), 0);
    saver_committed(scene->saver, 14, 1, true);
    await_said(scene, 15, 15);
}

/* A folder that cannot be made is told once. */
static void no_folder_is_told_once(void **state)
{
    scene_t *scene = *state;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/checkpoints", scene->folder);
    assert_int_equal(os_file_write(path, "x", 1, 0644, NULL), INSPAN_OK);
    open_scene(state, 5, 1);
    for (uint64_t step = 0; step < 20; step++) saver_committed(scene->saver, step, 1, true);
    assert_int_equal(scene->notes, 1);
    assert_non_null(strstr(scene->note, "no checkpoints will be written: cannot make the folder"));
    assert_int_equal(saver_finish(scene->saver, 1), INSPAN_OK);
}

static void the_end_waits_for_the_last(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    saver_committed(scene->saver, STEPS - 1, 1, true); /* the last training step: due */
    saver_committed(scene->saver, STEPS, 1, true);     /* the closing step */
    scene->busy = true;
    scene->changed = true;
    assert_int_equal(saver_finish(scene->saver, 1), INSPAN_PENDING); /* the views changed first */
    scene->changed = scene->busy = false;
    await_written(scene, STEPS);
    await_said(scene, STEPS, STEPS);
    answer(scene, STEPS, INSPAN_OK, "");
    scene->answers[scene->n_answers++] = (worker_registered_t){.step = STEPS, .result = true};
    assert_int_equal(saver_finish(scene->saver, 2), INSPAN_OK);
    assert_int_equal(scene->n_said, 1);
}

static void results_answers_are_passed_on(void **state)
{
    scene_t *scene = open_scene(state, 5, 1);
    worker_registered_t got = {0};
    assert_false(saver_answer(scene->saver, &got));
    answer(scene, 3, INSPAN_OK, ""); /* of a checkpoint that nobody knows: ignored */
    scene->answers[scene->n_answers++] = (worker_registered_t){.step = STEPS, .result = true};
    assert_true(saver_answer(scene->saver, &got));
    assert_true(got.result && got.step == STEPS);
    assert_false(saver_answer(scene->saver, &got));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(said_after_the_next_commit_alone),
        TEST(only_a_leader_writes),
        TEST(nothing_is_written_without_a_wish),
        TEST(a_stale_view_is_followed_by_a_newer_one),
        TEST(a_slow_link_leaves_some_out),
        TEST(failures_are_told_and_end_nothing),
        TEST(no_folder_is_told_once),
        TEST(the_end_waits_for_the_last),
        TEST(results_answers_are_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
