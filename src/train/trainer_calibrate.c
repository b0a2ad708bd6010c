/* How fast this machine is at this model, before the first step is split. */
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

#define BOUND     NS_PER_S        /* all in all, but for the first pass */
#define WORTH     (5 * NS_PER_MS) /* of the largest micro-batch: below that a wrong first split costs nothing */
#define LONG_RUNS (300 * NS_PER_MS) /* of largest micro-batches: longer than a quota's period */

/* Forward and backward over the first samples; the gradients are thrown away. 0: it failed, and will say why
 * when it counts. */
static ns_t try_size(trainer_t *trainer, uint32_t size)
{
    nn_batch_t batch;
    double loss = 0;
    inspan_error_t err;
    nn_data_batch(trainer->data, 0, size, &batch);
    const ns_t start = os_now();
    if (nn_model_backward(trainer->model, &batch, trainer->local, NULL, NULL, &loss, &err) != INSPAN_OK)
        return 0;
    const ns_t took = os_now() - start;
    inspan_elastic_calibrated(trainer->elastic, size, took);
    return took;
}

void trainer_calibrate(void *context)
{
    trainer_t *trainer = context;
    const uint32_t largest = trainer->micro_batch;
    ns_t took = try_size(trainer, 1); /* warms up */
    const ns_t until = os_now() + BOUND;
    ns_t largest_took = 0;
    for (uint32_t size = 1, next = 0; took > 0; size = next) {
        took = try_size(trainer, size);
        next = size < largest - size ? 2 * size : largest;
        if (size == largest) largest_took += took;
        if (size == largest && (took < WORTH || largest_took > LONG_RUNS)) return;
        if (os_now() + took * next / size > until) return;
    }
}
