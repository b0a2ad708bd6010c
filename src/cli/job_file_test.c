#include "cli/job_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"

static const char whole_file[] = "# a comment\n"
                                 "name: small-gpt\n"
                                 "model: {kind: gpt, layers: 5, heads: 4, dim: 128, context: 64}\n"
                                 "data: {kind: text, path: 'book with space.txt', validation: 0.1}\n"
                                 "train:\n"
                                 "  steps: 1e3\n"
                                 "  global_batch: 48\n"
                                 "  micro_batch: auto\n"
                                 "  lr: 1e-3\n"
                                 "  dtype: \"fp64\"\n"
                                 "failure_timeout: 1500ms\n"
                                 "checkpoint: {dir: out}\n";

static void a_whole_file_is_read(void **state)
{
    (void)state;
    job_config_t job;
    inspan_error_t err = {0};
    if (job_file_parse("job.yaml", whole_file, strlen(whole_file), &job, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    assert_string_equal(job.name, "small-gpt");
    assert_int_equal(job.model.layers, 5);
    assert_int_equal(job.model.context, 64);
    assert_string_equal(job.data.path, "book with space.txt");
    assert_true(job.data.validation == 0.1);
    assert_int_equal(job.train.steps, 1000);
    assert_int_equal(job.train.global_batch, 48);
    assert_true(job.train.lr == 1e-3);
    assert_string_equal(job.train.dtype, "fp64");
    assert_int_equal(job.failure_timeout, 1500000000);
    assert_int_equal(job.train.seed, 1); /* a default */
}

static void faults_have_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "f.yaml:1: the file is empty"},
        {"# nothing but a comment\n", "f.yaml:1: the file is empty"},
        {"just words\n", "f.yaml:1: expected fields"},
        {"- a\n- b\n", "f.yaml:1: expected fields"},
        {"name: a\nmodel: {kind: gpt, layer: 3}\n",
         "f.yaml:2: unknown field model.layer: did you mean model.layers?"},
        {"name: a\nmodel:\n  kind: gpt\n  zzz: 3\n", "f.yaml:4: unknown field model.zzz"},
        {"name: a\n\ntrian:\n  steps: 3\n", "f.yaml:3: unknown field trian: did you mean train?"},
        {"nmae: a\n", "f.yaml:1: unknown field nmae: did you mean name?"},
        {"train:\n  steps: many\n", "f.yaml:2: train.steps: expected a whole number"},
        {"train:\n  lr:\n    fast\n", "f.yaml:3: train.lr: expected a number"},
        {"train: {steps: -5}\n", "f.yaml:1: train.steps: expected a whole number"},
        {"train: {steps: 0}\n", "f.yaml:1: train.steps"},
        {"model: {kind: cnn}\n", "f.yaml:1: model.kind: expected one of gpt|mlp|conv"},
        {"failure_timeout: 10ms\n", "f.yaml:1: failure_timeout"},
        {"name: a\nname: b\n", "f.yaml:2: name is given twice, first on line 1"},
        {"train: {steps: 3}\nname: a\ntrain: {steps: 4}\n",
         "f.yaml:3: train.steps is given twice, first on line 1"},
        {"train:\n\tsteps: 3\n", "f.yaml:2: not YAML: found character that cannot start any token"},
        {"train: {steps: 3\n", "not YAML"},
        {"train: [1, 2]\n", "f.yaml:1: train: expected a single value, found a list"},
        {"train:\n  steps:\n  - 1\n", "f.yaml:3: train.steps: expected a single value, found a list"},
        {"train:\n  steps: {a: 1}\n", "f.yaml:2: train.steps: expected a single value, found fields"},
        {"train: 5\n", "f.yaml:1: train: expected fields"},
        {"name: {first: a}\n", "f.yaml:1: name: expected a single value, found fields"},
        {"train:\n  steps:\n", "train.steps has no value"},
        {"name: ~\n", "f.yaml:1: name has no value"},
        {"name: &a x\non_loss: *a\n", "f.yaml:2: aliases"},
        {"name: a\n---\nname: b\n", "f.yaml:2: a second document"},
        {"? {a: b}\n: c\n", "f.yaml:1: a field's name must be a plain text"},
        {"? [a]\n: c\n", "found a list"},
        {"name: \"a\\0b\"\n", "f.yaml:1: a text holds a byte 0"},
        {"name: a\nname2: \xff\xfe\n", "at byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job_config_t job;
        inspan_error_t err = {0};
        inspan_status_t status = job_file_parse("f.yaml", cases[i].text, strlen(cases[i].text), &job, &err);
        if (status != INSPAN_INVALID || strstr(err.text, cases[i].says) == NULL)
            fail_msg("case %zu: status %d: %s", i, (int)status, err.text);
        if (strchr(err.text, '\n') != NULL) fail_msg("case %zu: more than a line", i);
    }
}

static void long_words_are_refused(void **state)
{
    (void)state;
    char text[3000];
    job_config_t job;
    inspan_error_t err = {0};
    for (size_t length = 40; length < 2000; length += length < 60 ? 1 : 97) {
        char word[2001];
        memset(word, 'k', length);
        word[length] = '\0';
        snprintf(text, sizeof text, "%s: 1\n", word);
        assert_int_equal(job_file_parse("f.yaml", text, strlen(text), &job, &err), INSPAN_INVALID);
        snprintf(text, sizeof text, "%s: {a: 1}\n", word);
        assert_int_equal(job_file_parse("f.yaml", text, strlen(text), &job, &err), INSPAN_INVALID);
        snprintf(text, sizeof text, "train: {%s: 1}\n", word);
        assert_int_equal(job_file_parse("f.yaml", text, strlen(text), &job, &err), INSPAN_INVALID);
        snprintf(text, sizeof text, "train: {steps: %s}\n", word);
        assert_int_equal(job_file_parse("f.yaml", text, strlen(text), &job, &err), INSPAN_INVALID);
    }
}

/* Whatever stands in the file: an answer, no crash, and one line of text. */
static void mutations_never_crash(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 7, 0);
    for (int round = 0; round < 3000; round++) {
        char text[sizeof whole_file];
        memcpy(text, whole_file, sizeof text);
        size_t bytes = rng_below(&rng, sizeof text);
        for (int i = 0; i < 4; i++) text[rng_below(&rng, sizeof text - 1)] = (char)rng_below(&rng, 256);
        job_config_t job;
        inspan_error_t err = {0};
        inspan_status_t status = job_file_parse("f.yaml", text, bytes, &job, &err);
        assert_true(status == INSPAN_OK || status == INSPAN_INVALID);
        assert_true(status == INSPAN_OK || err.text[0] != '\0');
    }
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    job_config_t job;
    inspan_error_t err = {0};
    assert_int_equal(job_file_load("/no/such/job.yaml", &job, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "/no/such/job.yaml"));
    assert_int_equal(job_file_load("/", &job, &err), INSPAN_IO);
    char path[] = "/tmp/inspan-yaml-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)JOB_FILE_MAX + 1), 0);
    inspan_status_t status = job_file_load(path, &job, &err);
    close(fd);
    unlink(path);
    assert_int_equal(status, INSPAN_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_is_read),      cmocka_unit_test(faults_have_their_line),
        cmocka_unit_test(long_words_are_refused),    cmocka_unit_test(mutations_never_crash),
        cmocka_unit_test(files_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
