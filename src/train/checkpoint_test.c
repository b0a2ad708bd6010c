#include "train/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/nn.h"
#include "platform/os/os_file.h"
#include "train/checkpoint_test.h"

#define BOUND (60 * NS_PER_S)

static inspan_error_t err;
static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-checkpoint-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

/* The disk's room, as the writer sees it (statvfs under the name that it has with 64-bit offsets). */
static uint64_t room = UINT64_MAX;
int __real_statvfs64(const char *path, struct statvfs *disk);
int __wrap_statvfs64(const char *path, struct statvfs *disk);
int __wrap_statvfs64(const char *path, struct statvfs *disk)
{
    int result = __real_statvfs64(path, disk);
    if (room != UINT64_MAX) *disk = (struct statvfs){.f_frsize = 1, .f_bavail = room};
    return result;
}

/* ---- Writing ---------------------------------------------------------------------------------- */

static checkpoint_writer_t *open_writer(const training_t *t, uint32_t keep)
{
    checkpoint_writer_t *writer = NULL;
    const checkpoint_options_t options = {
        .folder = folder, .keep = keep, .config = t->config, .arrays = t->arrays};
    if (checkpoint_open(&options, &writer, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return writer;
}

static checkpoint_result_t write_one(checkpoint_writer_t *writer, uint64_t step)
{
    static checkpoint_result_t result;
    if (checkpoint_begin(writer, step, 3, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_true(checkpoint_wait(writer, BOUND, &result));
    assert_int_equal(result.step, step);
    assert_int_equal(result.view, 3);
    return result;
}

static void must_write(checkpoint_writer_t *writer, uint64_t step)
{
    checkpoint_result_t result = write_one(writer, step);
    if (result.status != INSPAN_OK) fail_msg("%s", result.error.text);
}

/* Checkpoints of these steps, each with that many steps of training in it; t is then at the last one. */
static void write_steps(training_t *t, uint32_t keep, const uint64_t *steps, size_t n)
{
    training_open(t);
    checkpoint_writer_t *writer = open_writer(t, keep);
    for (uint64_t step = 0, i = 0; i < n; i++) {
        for (; step < steps[i]; step++) training_step(t, step);
        must_write(writer, step);
    }
    checkpoint_close(writer);
}

static const char *path_of(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static bool is_there(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

static size_t entries(void)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n - 2;
}

/* ---- There and back -------------------------------------------------------------------------- */

static void training_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    training_t through, stopped, resumed;
    const uint64_t steps[] = {2, 5};
    checkpoint_found_t found;
    checkpoint_state_t at;
    write_steps(&stopped, 2, steps, 2);
    training_open(&through);
    for (uint64_t step = 0; step < 9; step++) training_step(&through, step);
    training_open(&resumed);
    assert_int_equal(checkpoint_find_newest(folder, NULL, NULL, &found, &err), INSPAN_OK);
    assert_int_equal(found.step, 5);
    assert_string_equal(found.path, path_of("step-00000005"));
    if (checkpoint_load(found.path, &resumed.config, &resumed.arrays, &at, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(at.step, 5);
    assert_int_equal(at.view, 3);
    assert_true(training_same(&stopped, &resumed));
    for (uint64_t step = at.step; step < 9; step++) training_step(&resumed, step);
    assert_true(training_same(&through, &resumed));
    training_close(&through), training_close(&stopped), training_close(&resumed);
}

/* What is written is what was there at begin, whatever the training does meanwhile. */
static void the_copy_is_of_the_moment(void **state)
{
    (void)state;
    training_t t, back;
    checkpoint_state_t at;
    checkpoint_result_t result;
    training_open(&t);
    training_step(&t, 0);
    training_t then = t;
    checkpoint_writer_t *writer = open_writer(&t, 1);
    assert_false(checkpoint_poll(writer, &result));
    assert_int_equal(checkpoint_begin(writer, 1, 3, &err), INSPAN_OK);
    memset(t.weights, 0x55, sizeof t.weights);
    /* one is on its way: the next is left out and told, and the training does not wait */
    assert_int_equal(checkpoint_begin(writer, 2, 3, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "step 2 is left out"));
    assert_true(checkpoint_wait(writer, BOUND, &result));
    assert_int_equal(result.step, 1);
    assert_true(result.bytes > 0 && result.took >= 0);
    assert_false(checkpoint_poll(writer, &result));
    checkpoint_close(writer);
    training_open(&back);
    assert_int_equal(checkpoint_load(result.path, &back.config, &back.arrays, &at, &err), INSPAN_OK);
    assert_memory_equal(back.weights, then.weights, sizeof then.weights);
    training_close(&t), training_close(&back);
}

static void the_folder_opens_as_a_model(void **state)
{
    (void)state;
    nn_model_config_t config = {.kind = NN_GPT,
                                .dtype = NN_FP64,
                                .seed = 7,
                                .layers = 1,
                                .heads = 2,
                                .dim = 8,
                                .context = 8,
                                .vocabulary = 256};
    nn_optimizer_config_t sgd = {.kind = NN_SGD, .lr = 0.1, .steps = 10}; /* no moments at all */
    nn_model_t *model = NULL, *back = NULL;
    nn_optimizer_t *optimizer = NULL;
    checkpoint_writer_t *writer = NULL;
    checkpoint_state_t at;
    checkpoint_options_t options = {
        .folder = folder, .keep = 1, .config = {.model = config, .optimizer = sgd}};
    assert_int_equal(nn_model_open(&config, 1, 1, &model, &err), INSPAN_OK);
    options.arrays.n_params = nn_model_params(model, &options.arrays.params);
    assert_int_equal(
        nn_optimizer_open(&sgd, options.arrays.params, options.arrays.n_params, NN_FP64, &optimizer, &err),
        INSPAN_OK);
    options.arrays.n_moments = nn_optimizer_state(optimizer, &options.arrays.moments);
    if (checkpoint_open(&options, &writer, &err) != INSPAN_OK) fail_msg("%s", err.text);
    must_write(writer, 0);
    checkpoint_close(writer);
    if (nn_model_load(path_of("step-00000000"), 1, 1, &back, &err) != INSPAN_OK) fail_msg("%s", err.text);
    const nn_param_t *params = NULL;
    assert_int_equal(nn_model_params(back, &params), options.arrays.n_params);
    for (uint32_t i = 0; i < options.arrays.n_params; i++)
        assert_memory_equal(params[i].weights, options.arrays.params[i].weights, params[i].count * 8);
    nn_model_close(back);
    memset(options.arrays.params[0].weights, 0, 64);
    if (checkpoint_load(path_of("step-00000000"), &options.config, &options.arrays, &at, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    assert_true(((const double *)options.arrays.params[0].weights)[0] != 0);
    nn_optimizer_close(optimizer);
    nn_model_close(model);
}

/* ---- Which stay ------------------------------------------------------------------------------ */

static void the_last_ones_stay(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1, 2, 3, 10, 11};
    write_steps(&t, 2, steps, 5);
    assert_true(is_there("step-00000010") && is_there("step-00000011"));
    assert_int_equal(entries(), 2);
    /* going on from step 10: 11 is of another history, it is replaced when its step comes, never counted */
    checkpoint_writer_t *writer = open_writer(&t, 1);
    must_write(writer, 10);
    assert_true(is_there("step-00000010") && is_there("step-00000011"));
    must_write(writer, 11);
    assert_false(is_there("step-00000010"));
    assert_true(is_there("step-00000011"));
    checkpoint_close(writer);
    training_close(&t);
}

static void what_is_not_a_checkpoint_stays(void **state)
{
    (void)state;
    training_t t;
    static const char *const strangers[] = {"step-1",        "step-00000001.txt", "steps",
                                            "step--0000001", "model.safetensors", "step-00000000x"};
    char own[64];
    assert_int_equal(os_mkdir_all(path_of("step-00000000"), 0755, &err), INSPAN_OK); /* empty: not ours */
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        assert_int_equal(os_mkdir_all(path_of(strangers[i]), 0755, &err), INSPAN_OK);
    /* left-overs: of this process, of one that is gone, of one that lives (the first of the system) */
    snprintf(own, sizeof own, "step-00000007.tmp-%ld", (long)getpid());
    assert_int_equal(os_mkdir_all(path_of(own), 0755, &err), INSPAN_OK);
    assert_int_equal(os_mkdir_all(path_of("step-00000008.old.tmp-2147483000/x"), 0755, &err), INSPAN_OK);
    assert_int_equal(os_mkdir_all(path_of("step-00000009.tmp-1"), 0755, &err), INSPAN_OK);
    const uint64_t steps[] = {1, 2};
    write_steps(&t, 1, steps, 2);
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++) assert_true(is_there(strangers[i]));
    assert_false(is_there(own));
    assert_false(is_there("step-00000008.old.tmp-2147483000"));
    assert_true(is_there("step-00000009.tmp-1") && is_there("step-00000000") && is_there("step-00000002"));
    assert_false(is_there("step-00000001"));
    training_close(&t);
}

static void a_file_in_the_way_is_replaced(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1};
    assert_int_equal(os_file_write(path_of("step-00000001"), "x", 1, 0644, &err), INSPAN_OK);
    write_steps(&t, 1, steps, 1);
    assert_int_equal(entries(), 1);
    assert_true(is_there("step-00000001/manifest.json"));
    training_close(&t);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static const char *const files[] = {"model.safetensors", "config.json", "optimizer.safetensors", "state.json",
                                    "manifest.json"};
#define N_FILES (sizeof files / sizeof files[0])

typedef struct warnings {
    int n;
    char last[1024];
} warnings_t;

static void take_warning(void *context, const char *text)
{
    warnings_t *warnings = context;
    warnings->n++;
    snprintf(warnings->last, sizeof warnings->last, "%s", text);
}

static void put(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0644); /* not os_file_write: it waits for the disk */
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

static void falls_back(const char *damaged)
{
    checkpoint_found_t found;
    warnings_t warnings = {0};
    if (checkpoint_find_newest(folder, take_warning, &warnings, &found, &err) != INSPAN_OK)
        fail_msg("%s: %s", damaged, err.text);
    assert_int_equal(found.step, 1);
    assert_int_equal(warnings.n, 1);
    if (strstr(warnings.last, damaged) == NULL) fail_msg("\"%s\" does not name %s", warnings.last, damaged);
}

static void cut_files_are_found(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1, 2};
    write_steps(&t, 2, steps, 2);
    for (size_t i = 0; i < N_FILES; i++) {
        char path[PATH_MAX], *whole = NULL;
        size_t bytes = 0;
        snprintf(path, sizeof path, "%s/step-00000002/%s", folder, files[i]);
        assert_int_equal(os_file_read(path, 1 << 20, &whole, &bytes, &err), INSPAN_OK);
        for (size_t cut = 0; cut < bytes; cut += cut < 64 || cut + 64 > bytes ? 1 : 61) {
            put(path, whole, cut);
            falls_back(files[i]);
        }
        char *longer = calloc(1, bytes + 1);
        memcpy(longer, whole, bytes);
        put(path, longer, bytes + 1);
        falls_back(files[i]);
        free(longer);
        assert_int_equal(unlink(path), 0);
        falls_back(files[i]);
        assert_int_equal(mkdir(path, 0755), 0);
        falls_back(files[i]);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(mkfifo(path, 0644), 0); /* nobody is waited for */
        falls_back(files[i]);
        assert_int_equal(unlink(path), 0);
        put(path, whole, bytes);
        free(whole);
    }
    training_close(&t);
}

/* Each byte of each file, one bit or a random value: found, or without a consequence. */
static void flipped_bytes_are_found(void **state)
{
    (void)state;
    training_t t, back;
    const uint64_t steps[] = {1, 2};
    rng_t rng;
    rng_seed(&rng, 20, 0);
    write_steps(&t, 2, steps, 2);
    training_open(&back);
    for (size_t i = 0; i < N_FILES; i++) {
        char path[PATH_MAX], *bytes = NULL;
        size_t n = 0;
        const bool manifest = strcmp(files[i], "manifest.json") == 0;
        snprintf(path, sizeof path, "%s/step-00000002/%s", folder, files[i]);
        assert_int_equal(os_file_read(path, 1 << 20, &bytes, &n, &err), INSPAN_OK);
        for (size_t at = 0; at < n; at++) {
            const char was = bytes[at];
            checkpoint_found_t found;
            checkpoint_state_t loaded;
            warnings_t warnings = {0};
            bytes[at] = at % 2 == 0 ? (char)(was ^ 1 << rng_below(&rng, 8)) : (char)rng_below(&rng, 256);
            put(path, bytes, n);
            assert_int_equal(checkpoint_find_newest(folder, take_warning, &warnings, &found, &err),
                             INSPAN_OK);
            if (!manifest && bytes[at] != was) assert_int_equal(found.step, 1);
            if (found.step == 2) { /* white space of the manifest, say */
                assert_int_equal(checkpoint_load(found.path, &back.config, &back.arrays, &loaded, &err),
                                 INSPAN_OK);
                assert_true(training_same(&t, &back) && loaded.step == 2);
            } else if (strstr(warnings.last, files[i]) == NULL && !manifest) {
                fail_msg("\"%s\" does not name %s", warnings.last, files[i]);
            }
            bytes[at] = was;
        }
        put(path, bytes, n);
        free(bytes);
    }
    training_close(&t), training_close(&back);
}

typedef struct hostile {
    const char *manifest;
    inspan_status_t status;
    const char *text;
} hostile_t;

#define HEAD "{\"format\":\"inspan-checkpoint\",\"version\":1,\"step\":2,\"files\":"
#define ONE  "{\"name\":\"state.json\",\"bytes\":1,\"xxh128\":\"00000000000000000000000000000000\"}"

static void hostile_manifests_are_refused(void **state)
{
    (void)state;
    static const hostile_t hostile[] = {
        {"", INSPAN_CORRUPT, "manifest.json"},
        {"[]", INSPAN_CORRUPT, "not a JSON object"},
        {"{}", INSPAN_CORRUPT, "format is not"},
        {"{\"format\":\"inspan-checkpoint\",\"version\":2}", INSPAN_VERSION, "version 2"},
        {"{\"format\":\"inspan-checkpoint\",\"version\":1}", INSPAN_CORRUPT, "step is missing"},
        {"{\"format\":\"inspan-checkpoint\",\"version\":1,\"step\":-1}", INSPAN_CORRUPT, "step is missing"},
        {"{\"format\":\"inspan-checkpoint\",\"version\":1,\"step\":1e300}", INSPAN_CORRUPT,
         "step is missing"},
        {HEAD "{}}", INSPAN_CORRUPT, "does not list"},
        {HEAD "[" ONE "]}", INSPAN_CORRUPT, "does not list"},
        {HEAD "[" ONE "," ONE "," ONE "," ONE "]}", INSPAN_CORRUPT, "twice"},
        {HEAD "[1,2,3,4]}", INSPAN_CORRUPT, "does not have"},
        {HEAD "[{\"name\":\"../../etc/passwd\"},1,2,3]}", INSPAN_CORRUPT, "does not have"},
        {HEAD "[{\"name\":\"state.json\",\"bytes\":1,\"xxh128\":\"0\"},1,2,3]}", INSPAN_CORRUPT, "32 digits"},
        {HEAD
         "[{\"name\":\"state.json\",\"bytes\":-1,\"xxh128\":\"00000000000000000000000000000000\"},1,2,3]}",
         INSPAN_CORRUPT, "bytes is missing"},
    };
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        uint64_t step;
        put(path_of("manifest.json"), hostile[i].manifest, strlen(hostile[i].manifest));
        assert_int_equal(checkpoint_verify(folder, &step, &err), hostile[i].status);
        if (strstr(err.text, hostile[i].text) == NULL) fail_msg("%s", err.text);
    }
    char *large = malloc(1 << 20);
    memset(large, ' ', 1 << 20);
    put(path_of("manifest.json"), large, 1 << 20);
    uint64_t step;
    assert_int_equal(checkpoint_verify(folder, &step, &err), INSPAN_CORRUPT);
    free(large);
}

static void an_empty_place_is_told(void **state)
{
    (void)state;
    checkpoint_found_t found;
    assert_int_equal(checkpoint_find_newest(folder, NULL, NULL, &found, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "there is no checkpoint (step-*)"));
    assert_int_equal(checkpoint_find_newest(path_of("none"), NULL, NULL, &found, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "no such folder"));
    assert_int_equal(os_mkdir_all(path_of("step-00000004"), 0755, &err), INSPAN_OK);
    assert_int_equal(checkpoint_find_newest(folder, NULL, NULL, &found, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "1 is damaged"));
}

static void a_renamed_folder_is_found(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1, 2};
    char to[PATH_MAX];
    write_steps(&t, 2, steps, 2);
    snprintf(to, sizeof to, "%s", path_of("step-00000009"));
    assert_int_equal(rename(path_of("step-00000002"), to), 0);
    falls_back("the folder's name says 9");
    training_close(&t);
}

/* ---- Another job's checkpoint ---------------------------------------------------------------- */

static void another_job_is_refused(void **state)
{
    (void)state;
    training_t t, untouched;
    checkpoint_state_t at;
    const uint64_t steps[] = {2};
    write_steps(&t, 1, steps, 1);
    training_open(&untouched);
    const char *path = path_of("step-00000002");
    typedef struct other {
        void *field;
        uint64_t value;
        size_t bytes;
        const char *text;
    } other_t;
    checkpoint_config_t c = t.config;
    const other_t others[] = {
        {&c.global_batch, 32, 8, "train.global_batch is 32 in the job, 64 in the checkpoint"},
        {&c.data_samples, 4999, 8, "samples of the data is 4999 in the job, 5000 in the checkpoint"},
        {&c.model.seed, 1, 8, "train.seed is 1 in the job, 18446744073709551614 in the checkpoint"},
        {&c.model.dim, 4, 4, "model.dim is 4 in the job, 3 in the checkpoint"},
        {&c.model.layers, 2, 4, "model.layers is 2"},
        {&c.model.classes, 4, 4, "classes of the data is 4"},
        {&c.model.dtype, NN_FP64, sizeof c.model.dtype, "train.dtype is fp64 in the job, fp32"},
        {&c.model.kind, NN_CONV, sizeof c.model.kind, "model.kind is conv in the job, mlp"},
        {&c.optimizer.kind, NN_SGD, sizeof c.optimizer.kind, "train.optimizer is sgd in the job, adamw"},
        {&c.optimizer.steps, 1, 8, "raise train.steps"},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        c = t.config;
        memcpy(others[i].field, &others[i].value, others[i].bytes); /* little-endian, as all of this file */
        assert_int_equal(checkpoint_load(path, &c, &untouched.arrays, &at, &err), INSPAN_MISMATCH);
        if (strstr(err.text, others[i].text) == NULL) fail_msg("%s", err.text);
        assert_int_equal(checkpoint_agrees(path, &c, &at, &err), INSPAN_MISMATCH);
        assert_true(untouched.weights[0][0] == 0);
    }
    /* the user's right: how fast and how long, heads that an mlp does not have, data not known */
    c = t.config;
    c.optimizer.lr = 0.5, c.optimizer.steps = 2000, c.model.heads = 9, c.data_samples = 0;
    assert_int_equal(checkpoint_load(path, &c, &untouched.arrays, &at, &err), INSPAN_OK);
    assert_true(training_same(&t, &untouched));
    /* arrays that are not the config's */
    untouched.params[1].shape[0] = 3;
    assert_int_equal(checkpoint_load(path, &c, &untouched.arrays, &at, &err), INSPAN_MISMATCH);
    assert_non_null(strstr(err.text, "\"0.bias\" has shape"));
    training_close(&t), training_close(&untouched);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void a_full_disk_is_told_before(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1};
    write_steps(&t, 1, steps, 1);
    checkpoint_writer_t *writer = open_writer(&t, 1);
    assert_int_equal(checkpoint_check_room(writer, &err), INSPAN_OK);
    room = 1000;
    assert_int_equal(checkpoint_check_room(writer, &err), INSPAN_IO);
    checkpoint_result_t result = write_one(writer, 2);
    assert_int_equal(result.status, INSPAN_IO);
    if (strstr(result.error.text, "step 2 was not written: a checkpoint needs 13") == NULL ||
        strstr(result.error.text, "1.0 KB free") == NULL ||
        strstr(result.error.text, "training goes on") == NULL)
        fail_msg("%s", result.error.text);
    assert_int_equal(entries(), 1);
    room = UINT64_MAX; /* somebody made room */
    must_write(writer, 3);
    assert_true(is_there("step-00000003"));
    checkpoint_close(writer);
    training_close(&t);
}

/* The disk is full in the middle of it (here: a limit of a file's size). */
static void a_failed_write_leaves_the_one_before(void **state)
{
    (void)state;
    training_t t;
    struct rlimit before, small;
    checkpoint_found_t found;
    const uint64_t steps[] = {1};
    write_steps(&t, 1, steps, 1);
    checkpoint_writer_t *writer = open_writer(&t, 1);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    for (rlim_t limit = 0; limit < 600; limit += 60) {
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        checkpoint_result_t result = write_one(writer, 2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(result.status, INSPAN_IO);
        assert_non_null(strstr(result.error.text, "cannot write"));
        assert_int_equal(entries(), 1);
        assert_int_equal(checkpoint_find_newest(folder, NULL, NULL, &found, &err), INSPAN_OK);
        assert_int_equal(found.step, 1);
    }
    must_write(writer, 2);
    checkpoint_close(writer);
    training_close(&t);
}

static void wrong_options_are_told(void **state)
{
    (void)state;
    training_t t;
    char path[PATH_MAX + 8];
    checkpoint_writer_t *writer = NULL;
    training_open(&t);
    checkpoint_options_t options = {.folder = folder, .config = t.config, .arrays = t.arrays};
    assert_int_equal(checkpoint_open(&options, &writer, &err), INSPAN_INVALID);
    options.keep = 1;
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    options.folder = path;
    assert_int_equal(checkpoint_open(&options, &writer, &err), INSPAN_INVALID);
    put(path_of("file"), "x", 1);
    options.folder = path_of("file");
    assert_int_equal(checkpoint_open(&options, &writer, &err), INSPAN_IO);
    checkpoint_close(NULL);
    training_close(&t);
}

/* Closing in the middle of it leaves nothing half-done under a good name. */
static void closing_gives_up(void **state)
{
    (void)state;
    training_t t;
    checkpoint_found_t found;
    training_open(&t);
    for (int i = 0; i < 20; i++) {
        checkpoint_writer_t *writer = open_writer(&t, 1);
        assert_int_equal(checkpoint_begin(writer, 1, 3, &err), INSPAN_OK);
        checkpoint_close(writer);
        inspan_status_t status = checkpoint_find_newest(folder, NULL, NULL, &found, &err);
        assert_true(status == INSPAN_OK || status == INSPAN_NOT_FOUND);
        assert_int_equal(entries(), status == INSPAN_OK);
    }
    training_close(&t);
}

/* ---- From elsewhere -------------------------------------------------------------------------- */

static void a_fetched_one_is_installed(void **state)
{
    (void)state;
    training_t t;
    const uint64_t steps[] = {1, 2};
    char staged[CHECKPOINT_PATH_MAX], from[PATH_MAX], to[CHECKPOINT_PATH_MAX + 64];
    checkpoint_found_t found;
    write_steps(&t, 2, steps, 2);
    for (int damaged = 1; damaged >= 0; damaged--) {
        assert_int_equal(checkpoint_stage(path_of("fetched"), 2, staged, &err), INSPAN_OK);
        for (size_t i = 0; i < N_FILES; i++) {
            char *bytes = NULL;
            size_t n = 0;
            snprintf(from, sizeof from, "%s/step-00000002/%s", folder, files[i]);
            snprintf(to, sizeof to, "%s/%s", staged, files[i]);
            assert_int_equal(os_file_read(from, 1 << 20, &bytes, &n, &err), INSPAN_OK);
            put(to, bytes, damaged && i == 2 ? n - 1 : n);
            free(bytes);
        }
        char into[PATH_MAX];
        snprintf(into, sizeof into, "%s", path_of("fetched"));
        inspan_status_t status = checkpoint_install(into, staged, 2, 1, &err);
        assert_int_equal(status, damaged ? INSPAN_CORRUPT : INSPAN_OK);
        assert_int_not_equal(access(staged, F_OK), 0);
        status = checkpoint_find_newest(into, NULL, NULL, &found, &err);
        assert_int_equal(status, damaged ? INSPAN_NOT_FOUND : INSPAN_OK);
    }
    training_close(&t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(training_goes_on_with_the_same_bits),
        TEST(the_copy_is_of_the_moment),
        TEST(the_folder_opens_as_a_model),
        TEST(the_last_ones_stay),
        TEST(what_is_not_a_checkpoint_stays),
        TEST(a_file_in_the_way_is_replaced),
        TEST(cut_files_are_found),
        TEST(flipped_bytes_are_found),
        TEST(hostile_manifests_are_refused),
        TEST(an_empty_place_is_told),
        TEST(a_renamed_folder_is_found),
        TEST(another_job_is_refused),
        TEST(a_full_disk_is_told_before),
        TEST(a_failed_write_leaves_the_one_before),
        TEST(wrong_options_are_told),
        TEST(closing_gives_up),
        TEST(a_fetched_one_is_installed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
