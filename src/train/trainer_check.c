/* What ranks find out together: the held-out loss, and that all hold the same weights. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

/* ---- Held-out loss --------------------------------------------------------------------------- */

/* The first so many: the same samples whatever the number of ranks. */
static uint64_t evaluated_samples(const trainer_t *trainer)
{
    const uint64_t all = nn_data_validation_samples(trainer->data),
                   most = trainer->job.train.evaluate_samples;
    return most > 0 && most < all ? most : all;
}

static inspan_status_t evaluate_share(trainer_t *trainer, double sums[EVALUATE_SUM], inspan_error_t *err)
{
    uint64_t first = 0, n = 0, targets = 1;
    step_share(0, evaluated_samples(trainer), trainer->rank, trainer->world, &first, &n);
    if (trainer->model_config.kind == NN_GPT) targets = trainer->model_config.context;
    for (uint64_t done = 0; done < n;) {
        nn_batch_t batch;
        double loss = 0;
        uint64_t correct = 0;
        uint32_t size = n - done < trainer->micro_batch ? (uint32_t)(n - done) : trainer->micro_batch;
        nn_data_validation_batch(trainer->data, first + done, size, &batch);
        inspan_status_t status = nn_model_evaluate(trainer->model, &batch, &loss, &correct, err);
        if (status != INSPAN_OK) return trainer_fail(trainer, err);
        sums[0] += loss;
        sums[1] += size;
        sums[2] += (double)correct / (double)targets;
        done += size;
    }
    return INSPAN_OK;
}

inspan_status_t trainer_evaluate(trainer_t *trainer, inspan_error_t *err)
{
    static const char what[] = "adding up the held-out loss";
    double mine[EVALUATE_SUM] = {0}, all[EVALUATE_SUM] = {0};
    inspan_op_t *op = NULL;
    if (nn_data_validation_samples(trainer->data) == 0) return INSPAN_OK;
    ns_t start = os_now();
    inspan_status_t status = evaluate_share(trainer, mine, err);
    if (status != INSPAN_OK) return status;
    trainer->evaluation_compute += os_now() - start;
    status = inspan_allreduce(trainer->comm, mine, all, EVALUATE_SUM, INSPAN_FP64, INSPAN_SUM, &op);
    status = status == INSPAN_OK ? trainer_wait(trainer, op, what, err)
                                 : trainer_fault(trainer, status, what, err);
    trainer->evaluation += os_now() - start;
    if (status != INSPAN_OK) return status;
    trainer->validation = all[0] / all[1];
    trainer->validation_step = trainer->step;
    trainer->accuracy = all[2] / all[1];
    return INSPAN_OK;
}

/* ---- The same weights ------------------------------------------------------------------------ */

uint64_t trainer_hash(const trainer_t *trainer)
{
    const size_t size = trainer->model_config.dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < trainer->n_params; i++)
        hash = hash64(trainer->params[i].weights, trainer->params[i].count * size, hash);
    return hash;
}

inspan_status_t trainer_compare(trainer_t *trainer, inspan_error_t *err)
{
    static const char what[] = "comparing weights";
    /* Halves of 32 bits are exact in fp64, and a sum with zeros is a gather that every schedule does. */
    const size_t n = (size_t)trainer->world * 2;
    inspan_op_t *op = NULL;
    const ns_t start = os_now();
    memset(trainer->hashes[0], 0, n * sizeof(double));
    trainer->hashes[0][2 * trainer->rank] = (double)(uint32_t)trainer->param_hash;
    trainer->hashes[0][2 * trainer->rank + 1] = (double)(uint32_t)(trainer->param_hash >> 32);
    inspan_status_t status = inspan_allreduce(trainer->comm, trainer->hashes[0], trainer->hashes[1], n,
                                              INSPAN_FP64, INSPAN_SUM, &op);
    status = status == INSPAN_OK ? trainer_wait(trainer, op, what, err)
                                 : trainer_fault(trainer, status, what, err);
    trainer->exposed += os_now() - start;
    if (status != INSPAN_OK) return status;
    char odd[128];
    if (trainer_odd_ones(trainer->hashes[1], trainer->world, odd, sizeof odd) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_MISMATCH,
                     "after step %" PRIu64
                     " the weights of rank %s differ from the others': that machine computes or "
                     "stores wrongly (memory, overclocking, another build of Inspan?)",
                     trainer->step, odd);
}
