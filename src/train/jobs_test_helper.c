#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "platform/os/os_file.h"
#include "train/cluster_test.h"

static char folder[64];

const char *jobs_folder(void)
{
    return folder;
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[PATH_MAX];
    inspan_error_t err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(os_file_write(path, bytes, n, 0600, &err), INSPAN_OK);
}

int jobs_make_data(void **state)
{
    (void)state;
    enum { TEXT = 6000, IMAGES = 120, SIDE = 8 };
    static char text[TEXT], table[IMAGES * 32];
    static uint8_t images[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, IMAGES,
                                                        0, 0, 0, SIDE, 0, 0, 0, SIDE};
    static uint8_t labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES};
    rng_t rng;
    rng_seed(&rng, 1, 1);
    snprintf(folder, sizeof folder, "/tmp/inspan-exact-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    for (int i = 0; i < TEXT; i++) text[i] = "the quick brown fox. "[(i + (int)rng_below(&rng, 2)) % 21];
    size_t used = 0;
    for (int i = 0; i < IMAGES; i++) {
        labels[8 + i] = (uint8_t)rng_below(&rng, 3);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[16 + i * SIDE * SIDE + k] = (uint8_t)(labels[8 + i] * 60 + rng_below(&rng, 60));
        used += (size_t)snprintf(table + used, sizeof table - used, "%.4f,%.4f,%d\n",
                                 rng_normal(&rng) + labels[8 + i], rng_normal(&rng), labels[8 + i]);
    }
    put("text", text, sizeof text);
    put("images", images, sizeof images);
    put("labels", labels, sizeof labels);
    put("table", table, used);
    nn_gemm_report(); /* before workers are forked: they need not choose again */
    return 0;
}

int jobs_remove_data(void **state)
{
    (void)state;
    inspan_error_t err;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

void jobs_set(job_config_t *job, const char *key, const char *value)
{
    inspan_error_t err;
    if (job_set(job, key, value, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static void set_path(job_config_t *job, const char *key, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    jobs_set(job, key, path);
}

job_config_t jobs_of(const char *kind, const char *dtype, const char *optimizer, uint64_t steps)
{
    job_config_t job;
    char count[24];
    job_defaults(&job);
    snprintf(count, sizeof count, "%llu", (unsigned long long)steps);
    jobs_set(&job, "model.kind", kind);
    jobs_set(&job, "train.dtype", dtype);
    jobs_set(&job, "train.optimizer", optimizer);
    jobs_set(&job, "train.steps", count);
    jobs_set(&job, "train.global_batch", "13"); /* no world divides it */
    jobs_set(&job, "train.micro_batch", "3");
    jobs_set(&job, "train.warmup", "3");
    jobs_set(&job, "train.lr", strcmp(optimizer, "sgd") == 0 ? "0.05" : "3e-3");
    jobs_set(&job, "train.check_every", "1");
    jobs_set(&job, "data.validation", "0.1");
    jobs_set(&job, "sync.bucket", "4K"); /* several buckets */
    if (strcmp(kind, "gpt") == 0) {
        set_path(&job, "data.path", "text");
        jobs_set(&job, "model.layers", "2");
        jobs_set(&job, "model.heads", "2");
        jobs_set(&job, "model.dim", "16");
        jobs_set(&job, "model.context", "12");
    } else if (strcmp(kind, "mlp") == 0) {
        jobs_set(&job, "data.kind", "csv");
        set_path(&job, "data.path", "table");
        jobs_set(&job, "model.layers", "2");
        jobs_set(&job, "model.dim", "17");
    } else {
        jobs_set(&job, "data.kind", "idx");
        set_path(&job, "data.path", "images");
        set_path(&job, "data.labels", "labels");
        jobs_set(&job, "model.filters", "4");
    }
    return job;
}

double relative(const double *a, const double *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}
