#include "train/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "platform/os/os_file.h"

static inspan_error_t err;

static void assert_refused(job_config_t *job, const char *key, const char *value, const char *text)
{
    job_config_t before = *job;
    memset(&err, 0, sizeof err);
    assert_int_equal(job_set(job, key, value, &err), INSPAN_INVALID);
    if (strstr(err.text, text) == NULL) fail_msg("'%s' lacks '%s'", err.text, text);
    assert_memory_equal(&before, job, sizeof before); /* a refused value changes nothing */
}

static void every_field_has_a_good_default(void **state)
{
    (void)state;
    size_t n = 0;
    const job_field_t *fields = job_fields(&n);
    job_config_t job, again;
    job_defaults(&job);
    assert_int_equal(job.train.steps, 500);
    assert_int_equal(job.failure_timeout, 5 * NS_PER_S);
    assert_string_equal(job.sync.mode, "exact");
    assert_true(job.train.lr == 1e-3);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(fields[i].help);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(fields[i].key, fields[k].key);
        if (fields[i].initial == NULL) continue;
        again = job;
        assert_int_equal(job_set(&again, fields[i].key, fields[i].initial, &err), INSPAN_OK);
        assert_memory_equal(&job, &again, sizeof job);
    }
}

static void values_are_checked(void **state)
{
    (void)state;
    job_config_t job;
    job_defaults(&job);
    assert_refused(&job, "train.stepz", "5", "did you mean train.steps?");
    assert_refused(&job, "steps", "5", "did you mean train.steps?");
    assert_refused(&job, "trian.steps", "5", "did you mean train.steps?"); /* a swap is one slip */
    assert_refused(&job, "nodes", "3", "did you mean nodes.min?");
    assert_refused(&job, "colour", "red", "unknown field colour");
    assert_refused(&job, "train.steps", "many", "train.steps: expected a whole number, found 'many'");
    assert_refused(&job, "train.steps", "-1", "expected a whole number");
    assert_refused(&job, "train.steps", "1.5", "expected a whole number");
    assert_refused(&job, "train.steps", "", "expected a whole number");
    assert_refused(&job, "train.steps", "0", "expected 1 to");
    assert_refused(&job, "train.steps", "99999999999999999999999", "expected");
    assert_refused(&job, "model.layers", "4294967297", "expected 1 to 1000");
    assert_refused(&job, "train.lr", "fast", "expected a number");
    assert_refused(&job, "train.lr", "nan", "expected a number");
    assert_refused(&job, "train.lr", "inf", "expected a number");
    assert_refused(&job, "train.lr", "0x1p3", "expected a number");
    assert_refused(&job, "train.lr", "-0.1", "expected 0 to");
    assert_refused(&job, "train.micro_batch", "big", "a whole number or auto");
    assert_refused(&job, "model.kind", "lstm", "one of gpt|mlp|conv");
    assert_refused(&job, "model.kind", "gpt|mlp", "one of");
    assert_refused(&job, "model.kind", "", "one of");
    assert_refused(&job, "failure_timeout", "0.5s", "expected 1s to 1h");
    assert_refused(&job, "failure_timeout", "soon", "a duration");
    assert_refused(&job, "nodes.memory", "lots", "a size");
    assert_refused(&job, "data.path", "", "not empty");
    assert_refused(&job, "data.path", "a\nb", "control character 0x0a");
    assert_refused(&job, "name", "\xff", "the byte 0xff at 0 is not UTF-8");
    assert_refused(&job, "data.path", "gr\xc3\xbcn\xc3", "the byte 0xc3 at 5 is not UTF-8");
    assert_int_equal(job_set(&job, "name", "gr\xc3\xbcn \xf0\x9f\x90\x82", &err), INSPAN_OK);
    char longer[JOB_TEXT_MAX + 1];
    memset(longer, 'a', sizeof longer);
    longer[JOB_TEXT_MAX] = '\0';
    assert_refused(&job, "data.path", longer, "at most 255");
    longer[JOB_TEXT_MAX - 1] = '\0';
    assert_int_equal(job_set(&job, "data.path", longer, &err), INSPAN_OK);
    assert_int_equal(job_set(&job, "train.steps", "1e3", &err), INSPAN_OK);
    assert_int_equal(job.train.steps, 1000);
    assert_int_equal(job_set(&job, "train.lr", "1e-3", &err), INSPAN_OK);
    assert_int_equal(job_set(&job, "train.micro_batch", "auto", &err), INSPAN_OK);
    assert_int_equal(job.train.micro_batch, 0);
    assert_int_equal(job_set(&job, "failure_timeout", "1500ms", &err), INSPAN_OK);
    assert_int_equal(job.failure_timeout, 1500 * NS_PER_MS);
}

static void flat_text_goes_there_and_back(void **state)
{
    (void)state;
    job_config_t job, back;
    char text[8192];
    job_defaults(&job);
    assert_int_equal(job_set(&job, "data.path", "/tmp/a=b c.txt", &err), INSPAN_OK);
    assert_int_equal(job_set(&job, "train.lr", "0.1", &err), INSPAN_OK);
    assert_int_equal(job_set(&job, "train.seed", "9007199254740993", &err), INSPAN_OK);
    assert_int_equal(job_format(&job, text, sizeof text), INSPAN_OK);
    assert_int_equal(job_parse(text, &back, &err), INSPAN_OK);
    assert_memory_equal(&job, &back, sizeof job);
    for (size_t size = 1; size < 200; size += 7) assert_int_equal(job_format(&job, text, size), INSPAN_LIMIT);

    job_defaults(&job); /* without a path */
    assert_int_equal(job_format(&job, text, sizeof text), INSPAN_OK);
    assert_int_equal(job_parse(text, &back, &err), INSPAN_OK);
    assert_memory_equal(&job, &back, sizeof job);
}

static void broken_flat_text_is_refused(void **state)
{
    (void)state;
    job_config_t job;
    assert_int_equal(job_parse("name=x\ntrain.steps\n", &job, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "line 2"));
    assert_int_equal(job_parse("train.stepz=4\n", &job, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "line 1: unknown field train.stepz"));
    char text[1000];
    memset(text, 'k', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(job_parse(text, &job, &err), INSPAN_INVALID);
    assert_int_equal(job_parse("", &job, &err), INSPAN_OK);
}

/* What an agent hands to a worker may be damaged on its disk. */
static void damaged_flat_text(void **state)
{
    (void)state;
    job_config_t job, back;
    char text[8192];
    rng_t rng;
    size_t right = 0;
    job_defaults(&job);
    rng_seed(&rng, 2, 0);
    for (int round = 0; round < 5000; round++) {
        assert_int_equal(job_format(&job, text, sizeof text), INSPAN_OK);
        size_t n = strlen(text);
        for (uint64_t k = rng_below(&rng, 3) + 1; k > 0; k--)
            text[rng_below(&rng, n)] =
                rng_below(&rng, 2) ? "=\n.0e-x"[rng_below(&rng, 7)] : (char)rng_next(&rng);
        memset(&err, 0, sizeof err);
        inspan_status_t status = job_parse(text, &back, &err);
        assert_true(status == INSPAN_OK || (status == INSPAN_INVALID && strstr(err.text, "line ") != NULL));
        right += status == INSPAN_OK;
    }
    assert_true(right > 50 && right < 4000);
}

typedef struct fault {
    const char *key, *value;
    inspan_status_t status;
    const char *text;
} fault_t;

static void faults_of_several_fields(void **state)
{
    (void)state;
    static const fault_t faults[] = {
        {"model.heads", "3", INSPAN_INVALID, "model.dim 128 cannot be divided by model.heads 3"},
        {"model.kind", "mlp", INSPAN_INVALID, "needs data.kind idx or csv"},
        {"data.kind", "csv", INSPAN_INVALID, "gpt needs data.kind text"},
        {"nodes.min", "9", INSPAN_INVALID, "nodes.min 9 is more than nodes.max 8"},
        {"train.min_lr", "1", INSPAN_INVALID, "train.min_lr"},
        {"sync.bucket", "tiny", INSPAN_INVALID, "sync.bucket"},
        {"sync.bucket", "1", INSPAN_INVALID, "sync.bucket"},
        {"sync.mode", "eager", INSPAN_UNSUPPORTED, "eager is not in this version"},
        {"sync.backend", "nccl", INSPAN_UNSUPPORTED, "it has auto|native|gloo"},
        {"sync.exactness", "loose", INSPAN_UNSUPPORTED, "it has exact|close"},
        {"nodes.labels", "fast", INSPAN_UNSUPPORTED, "nodes.labels"},
        {"nodes.gpu", "cuda", INSPAN_UNSUPPORTED, "nodes.gpu"},
    };
    job_config_t good;
    job_defaults(&good);
    assert_int_equal(job_validate(&good, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "data.path is missing"));
    assert_int_equal(job_set(&good, "data.path", "book.txt", &err), INSPAN_OK);
    assert_int_equal(job_validate(&good, &err), INSPAN_OK);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        job_config_t job = good;
        assert_int_equal(job_set(&job, faults[i].key, faults[i].value, &err), INSPAN_OK);
        assert_int_equal(job_validate(&job, &err), faults[i].status);
        if (strstr(err.text, faults[i].text) == NULL) fail_msg("'%s' lacks '%s'", err.text, faults[i].text);
    }
    job_config_t local = good;
    job_set(&local, "sync.mode", "local", &err);
    assert_int_equal(job_validate(&local, &err), INSPAN_OK);
    job_set(&local, "train.global_batch", "7", &err);
    assert_int_equal(job_validate(&local, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "sync.local_batch 8 is more than train.global_batch 7"));
    job_config_t wire = good;
    assert_int_equal(job_wire(&wire), INSPAN_WIRE_FP32);
    assert_int_equal(job_wires(&wire), 0);
    job_set(&wire, "sync.exactness", "close", &err);
    assert_int_equal(job_validate(&wire, &err), INSPAN_OK);
    assert_int_equal(job_wire(&wire), INSPAN_WIRE_BF16);
    assert_int_equal(job_wires(&wire), 1 << INSPAN_WIRE_FP32 | 1 << INSPAN_WIRE_BF16 | 1 << INSPAN_WIRE_INT8);
    job_set(&wire, "train.dtype", "fp64", &err);
    assert_int_equal(job_wires(&wire), 0);
    job_set(&wire, "train.dtype", "fp32", &err);
    job_set(&wire, "sync.wire", "int8", &err);
    assert_int_equal(job_wires(&wire), 0);
    assert_int_equal(job_validate(&wire, &err), INSPAN_OK);
    assert_int_equal(job_wire(&wire), INSPAN_WIRE_INT8);
    job_set(&wire, "train.dtype", "fp64", &err);
    assert_int_equal(job_validate(&wire, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "sync.wire int8 needs train.dtype fp32, found fp64"));
    job_config_t conv = good;
    job_set(&conv, "model.kind", "conv", &err);
    job_set(&conv, "data.kind", "csv", &err);
    assert_int_equal(job_validate(&conv, &err), INSPAN_INVALID);
    job_set(&conv, "data.kind", "idx", &err);
    assert_int_equal(job_validate(&conv, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "data.labels"));
    job_set(&conv, "data.labels", "labels", &err);
    assert_int_equal(job_validate(&conv, &err), INSPAN_OK);
}

static void micro_batches_stay_in_the_share(void **state)
{
    (void)state;
    job_config_t job;
    job_defaults(&job);
    assert_int_equal(job_micro_batch(&job, 64), 16);
    assert_int_equal(job_micro_batch(&job, 5), 5);
    assert_int_equal(job_micro_batch(&job, 0), 1);
    job_set(&job, "model.context", "4096", &err);
    assert_int_equal(job_micro_batch(&job, 64), 1);
    job_set(&job, "train.micro_batch", "3", &err);
    assert_int_equal(job_micro_batch(&job, 64), 3);
}

/* docs/jobs.md has a row for each field, with its default and meaning, and for no other. */
static void the_documentation_has_every_field(void **state)
{
    (void)state;
    char *text = NULL, row[256];
    size_t bytes = 0, n = 0, rows = 0;
    const job_field_t *fields = job_fields(&n);
    if (os_file_read("docs/jobs.md", 1 << 20, &text, &bytes, &err) != INSPAN_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < n; i++) {
        const char *initial = fields[i].initial == NULL      ? "(required)"
                              : fields[i].initial[0] == '\0' ? "(none)"
                                                             : fields[i].initial;
        snprintf(row, sizeof row, "\n| `%s` | %s | %s |\n", fields[i].key, initial, fields[i].help);
        if (strstr(text, row) == NULL) fail_msg("docs/jobs.md lacks the row:%s", row);
    }
    const char *end = strstr(text, "## Models");
    assert_non_null(end);
    for (const char *at = strstr(text, "\n| `"); at != NULL && at < end; at = strstr(at + 1, "\n| `")) rows++;
    assert_int_equal(rows, n);
    free(text);
}

static void memory_counts_every_copy(void **state)
{
    (void)state;
    job_config_t job;
    nn_model_config_t model;
    uint64_t weights = 0, activations = 0, adamw = 0, sgd = 0, plain = 0;
    job_defaults(&job);
    job_model_config(&job, &model);
    model.vocabulary = 256;
    assert_int_equal(nn_model_memory(&model, 16, &weights, &activations, &err), INSPAN_OK);
    assert_int_equal(job_memory(&job, &model, 16, 1000000, &adamw, &err), INSPAN_OK);
    assert_true(adamw >= 5 * weights + activations + 1000000);
    assert_true(adamw <= 5 * weights + activations + 1000000 + (128u << 20));
    job_set(&job, "train.optimizer", "sgd", &err);
    assert_int_equal(job_memory(&job, &model, 16, 1000000, &sgd, &err), INSPAN_OK);
    assert_int_equal(adamw - sgd, weights);
    job_set(&job, "train.momentum", "0", &err);
    assert_int_equal(job_memory(&job, &model, 16, 1000000, &plain, &err), INSPAN_OK);
    assert_int_equal(sgd - plain, weights);
    /* A worker may choose: the least is what the job needs. */
    job_set(&job, "train.global_batch", "512", &err);
    assert_int_equal(job_memory(&job, &model, 1, 0, &sgd, &err), INSPAN_OK);
    assert_int_equal(job_memory(&job, &model, 0, 0, &plain, &err), INSPAN_OK);
    assert_int_equal(plain, sgd);
    job_set(&job, "train.micro_batch", "64", &err);
    assert_int_equal(job_memory(&job, &model, 64, 0, &sgd, &err), INSPAN_OK);
    assert_int_equal(job_memory(&job, &model, 0, 0, &plain, &err), INSPAN_OK);
    assert_int_equal(plain, sgd);
    assert_int_equal(job_memory(&job, &model, 1, UINT64_MAX, &plain, &err), INSPAN_INVALID);
    model.heads = 3;
    assert_int_equal(job_memory(&job, &model, 16, 0, &plain, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_has_a_good_default),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(flat_text_goes_there_and_back),
        cmocka_unit_test(broken_flat_text_is_refused),
        cmocka_unit_test(damaged_flat_text),
        cmocka_unit_test(faults_of_several_fields),
        cmocka_unit_test(micro_batches_stay_in_the_share),
        cmocka_unit_test(memory_counts_every_copy),
        cmocka_unit_test(the_documentation_has_every_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
