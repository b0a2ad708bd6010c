/* How fast this machine trains a job's model: a few seconds of it, alone. */
#ifndef CLI_PLAN_MEASURE_H
#define CLI_PLAN_MEASURE_H

#include "nn/nn.h"
#include "train/job.h"

typedef struct plan_measured {
    double sample_s, step_s; /* of one sample; of an update */
} plan_measured_t;

/*
 * Forward and backward over the job's own samples, with the threads that a worker would have here; then
 * updates. Takes about 3 s, longer where one micro-batch does, and a worker's memory. data, labels: where the
 * files are. Errors of the data and of the model; NO_MEMORY.
 */
inspan_status_t plan_measure(const job_config_t *job, const char *data, const char *labels,
                             uint32_t micro_batch, plan_measured_t *measured, inspan_error_t *err);

#endif
