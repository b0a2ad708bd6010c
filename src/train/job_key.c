/* The name under which speeds of machines are kept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "train/job.h"

void job_model_key(const job_config_t *job, const nn_model_config_t *model, char key[JOB_KEY_MAX])
{
    const char *type = job->train.dtype, *rule = job->train.optimizer;
    switch (model->kind) {
    case NN_GPT:
        snprintf(key, JOB_KEY_MAX,
                 "gpt %" PRIu32 "x%" PRIu32 " heads %" PRIu32 " context %" PRIu32 " vocabulary %" PRIu32
                 " %s %s",
                 model->layers, model->dim, model->heads, model->context, model->vocabulary, type, rule);
        break;
    case NN_MLP:
        snprintf(key, JOB_KEY_MAX, "mlp %" PRIu32 "x%" PRIu32 " inputs %" PRIu32 " classes %" PRIu32 " %s %s",
                 model->layers, model->dim, model->inputs, model->classes, type, rule);
        break;
    case NN_CONV:
        snprintf(key, JOB_KEY_MAX,
                 "conv %" PRIu32 " filters image %" PRIu32 "x%" PRIu32 "x%" PRIu32 " classes %" PRIu32
                 " %s %s",
                 model->filters, model->channels, model->height, model->width, model->classes, type, rule);
        break;
    }
    const size_t used = strlen(key); /* a node's own updates take their time, too */
    if (job_is_local(job)) snprintf(key + used, JOB_KEY_MAX - used, " local %" PRIu64, job->sync.local_batch);
}
