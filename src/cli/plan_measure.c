#include "cli/plan_measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/host/inventory.h"
#include "platform/os/os_time.h"

#define COMPUTE_FOR (2 * NS_PER_S)
#define UPDATE_FOR  (500 * NS_PER_MS)
#define ROUNDS      64u

typedef struct bench {
    nn_data_t *data;
    nn_model_t *model;
    nn_optimizer_t *optimizer;
    const nn_param_t *params;
    uint32_t n_params, micro_batch;
    uint8_t *memory; /* of the gradients */
    void **gradients;
} bench_t;

static inspan_status_t open_bench(const job_config_t *job, const char *path, const char *labels,
                                  bench_t *bench, inspan_error_t *err)
{
    inventory_t here;
    nn_data_config_t data;
    nn_model_config_t model;
    nn_optimizer_config_t optimizer;
    job_data_config(job, &data);
    job_model_config(job, &model);
    job_optimizer_config(job, &optimizer);
    data.path = path;
    data.labels = labels;
    inventory_read("", "/", &here);
    inspan_status_t status = nn_data_open(&data, &bench->data, err);
    if (status != INSPAN_OK) return status;
    nn_data_shape(bench->data, &model);
    if (nn_data_reserve(bench->data, bench->micro_batch) != INSPAN_OK)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for batches of %u samples", bench->micro_batch);
    status =
        nn_model_open(&model, bench->micro_batch, inventory_threads(here.usable_cores), &bench->model, err);
    if (status != INSPAN_OK) return status;
    bench->n_params = nn_model_params(bench->model, &bench->params);
    const size_t size = model.dtype == NN_FP64 ? 8 : 4;
    uint64_t all = 64; /* never nothing */
    for (uint32_t i = 0; i < bench->n_params; i++) all += (bench->params[i].count * size + 63) / 64 * 64;
    bench->memory = calloc(1, all);
    bench->gradients = calloc((size_t)bench->n_params + 1, sizeof *bench->gradients);
    if (bench->memory == NULL || bench->gradients == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the gradients");
    for (uint64_t i = 0, at = 0; i < bench->n_params; i++) {
        bench->gradients[i] = bench->memory + at;
        at += (bench->params[i].count * size + 63) / 64 * 64;
    }
    return nn_optimizer_open(&optimizer, bench->params, bench->n_params, model.dtype, &bench->optimizer, err);
}

static void close_bench(bench_t *bench)
{
    nn_optimizer_close(bench->optimizer);
    nn_model_close(bench->model);
    nn_data_close(bench->data);
    free(bench->gradients);
    free(bench->memory);
}

static int by_size(const void *a, const void *b)
{
    const ns_t x = *(const ns_t *)a, y = *(const ns_t *)b;
    return (x > y) - (x < y);
}

/* One piece of the work that is measured. */
typedef inspan_status_t (*piece_t)(bench_t *bench, uint32_t round, inspan_error_t *err);

static inspan_status_t compute(bench_t *bench, uint32_t round, inspan_error_t *err)
{
    nn_batch_t batch;
    double loss = 0;
    nn_data_batch(bench->data, (uint64_t)round * bench->micro_batch, bench->micro_batch, &batch);
    return nn_model_backward(bench->model, &batch, bench->gradients, NULL, NULL, &loss, err);
}

static inspan_status_t update(bench_t *bench, uint32_t round, inspan_error_t *err)
{
    double norm = 0;
    return nn_optimizer_apply(bench->optimizer, (const void *const *)bench->gradients, 1e6, round, &norm,
                              err);
}

/* The middle one of as many as fit into that time, after one to warm up, but of one at least. */
static inspan_status_t time_of(bench_t *bench, piece_t piece, ns_t bound, double *seconds,
                               inspan_error_t *err)
{
    ns_t took[ROUNDS];
    uint32_t n = 0;
    inspan_status_t status = piece(bench, 0, err);
    for (const ns_t begin = os_now();
         status == INSPAN_OK && n < ROUNDS && (n == 0 || os_now() - begin < bound); n++) {
        const ns_t start = os_now();
        status = piece(bench, n + 1, err);
        took[n] = os_now() - start;
    }
    if (status != INSPAN_OK) return status;
    qsort(took, n, sizeof took[0], by_size);
    *seconds = ns_to_s(took[n / 2]);
    return INSPAN_OK;
}

inspan_status_t plan_measure(const job_config_t *job, const char *data, const char *labels,
                             uint32_t micro_batch, plan_measured_t *measured, inspan_error_t *err)
{
    bench_t bench = {.micro_batch = micro_batch > 0 ? micro_batch : 1};
    double run_s = 0, step_s = 0;
    inspan_status_t status = open_bench(job, data, labels, &bench, err);
    if (status == INSPAN_OK) status = time_of(&bench, compute, COMPUTE_FOR, &run_s, err);
    if (status == INSPAN_OK) status = time_of(&bench, update, UPDATE_FOR, &step_s, err);
    if (status == INSPAN_OK) *measured = (plan_measured_t){run_s / bench.micro_batch, step_s};
    close_bench(&bench);
    return status;
}
