/*
 * Small convolutional net: twice (3 x 3 convolution with zero padding, ReLU, 2 x 2 max pool that drops an odd
 * last row or column), then one linear layer. Images are (channels, height, width).
 *
 * A convolution is im2col and one product per image. The columns of an image are made again in backward:
 * kept, they would be nine times the images. Images are divided over the threads.
 */
#include <math.h>

#include "nn/compute.h"

enum { CONV1_W, CONV1_B, CONV2_W, CONV2_B, HEAD_W, HEAD_B, PARAMS };

typedef struct stage {
    size_t channels, height, width, filters;
    real_t *pooled; /* (samples, filters, height / 2, width / 2) */
    uint8_t *which; /* the same shape */
} stage_t;

typedef struct conv {
    compute_t compute;
    stage_t stages[2];
    size_t scratch_size;
    real_t *scratch; /* (threads, scratch_size): columns of one image, and its convolution */
    real_t *logits;  /* (samples, classes) */
    real_t *d[2];    /* gradients of the stages' results */
} conv_t;

static uint32_t count_params(const nn_model_config_t *config)
{
    (void)config;
    return PARAMS;
}

static size_t state_bytes(const nn_model_config_t *config)
{
    (void)config;
    return sizeof(conv_t);
}

static size_t pooled_size(const stage_t *s)
{
    return s->filters * (s->height / 2) * (s->width / 2);
}

static size_t columns_size(const stage_t *s)
{
    return s->channels * 9 * s->height * s->width;
}

static void register_params(nn_model_t *model, arena_t *weights)
{
    conv_t *conv = model->state;
    for (uint32_t i = 0; i < 2; i++) {
        stage_t *s = &conv->stages[i];
        uint64_t filters = s->filters;
        model_param(model, weights, MODEL_NORMAL(sqrt(2.0 / (9.0 * (double)s->channels))), 4,
                    (uint64_t[]){filters, s->channels, 3, 3}, "conv%u.weight", i + 1);
        model_param(model, weights, MODEL_CONSTANT(0), 1, &filters, "conv%u.bias", i + 1);
    }
    uint64_t in = pooled_size(&conv->stages[1]), out = model->config.classes;
    model_param(model, weights, MODEL_NORMAL(1 / sqrt((double)in)), 2, (uint64_t[]){in, out}, "head.weight");
    model_param(model, weights, MODEL_CONSTANT(0), 1, &out, "head.bias");
}

static void layout(nn_model_t *model, arena_t *weights, arena_t *arena)
{
    const nn_model_config_t *config = &model->config;
    conv_t *conv = model->state;
    uint64_t n = model->micro_batch;
    stage_t *one = &conv->stages[0], *two = &conv->stages[1];
    *one = (stage_t){config->channels, config->height, config->width, config->filters, NULL, NULL};
    *two = (stage_t){
        config->filters, config->height / 2, config->width / 2, 2 * (size_t)config->filters, NULL, NULL};
    register_params(model, weights);
    size_t sums = 0;
    for (int i = 0; i < 2; i++) {
        stage_t *s = &conv->stages[i];
        s->pooled = arena_take(arena, n, pooled_size(s) * sizeof(real_t));
        s->which = arena_take(arena, n, pooled_size(s));
        conv->d[i] = arena_take(arena, n, pooled_size(s) * sizeof(real_t));
        size_t scratch = columns_size(s) + s->filters * s->height * s->width;
        if (scratch > conv->scratch_size) conv->scratch_size = (scratch + 15) / 16 * 16;
        if (s->filters * (9 * s->channels + 1) > sums) sums = s->filters * (9 * s->channels + 1);
    }
    conv->scratch = arena_take(arena, model->threads, conv->scratch_size * sizeof(real_t));
    REAL(compute_init)(&conv->compute, model, sums, arena);
    conv->logits = arena_take(arena, n, (uint64_t)config->classes * sizeof(real_t));
}

/* ---- One stage over images [first, end) ------------------------------------------------------ */

typedef struct stage_job {
    const conv_t *conv;
    const stage_t *stage;
    const real_t *x;     /* (samples, channels, height, width) */
    const real_t *w, *b; /* (filters, channels * 9), (filters) */
    const real_t *d;     /* gradient of pooled */
    real_t *dx;          /* NULL: nobody needs it */
} stage_job_t;

static void stage_forward(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                          real_t *a, real_t *b)
{
    (void)a, (void)b;
    const stage_job_t *job = context;
    const stage_t *s = job->stage;
    size_t area = s->height * s->width, depth = 9 * s->channels;
    real_t *columns = job->conv->scratch + thread * job->conv->scratch_size, *y = columns + columns_size(s);
    for (size_t i = first; i < end; i++) {
        c->kernels->im2col(s->channels, s->height, s->width, job->x + i * s->channels * area, columns);
        c->gemm(false, false, s->filters, area, depth, 1, job->w, depth, columns, area, 0, y, area);
        c->kernels->relu_pool_forward(s->filters, s->height, s->width, y, job->b,
                                      s->pooled + i * pooled_size(s), s->which + i * pooled_size(s));
    }
}

/* dw, db: where this thread adds. The columns are needed first for dw, then their room holds their gradient.
 */
static void stage_backward(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                           real_t *dw, real_t *db)
{
    const stage_job_t *job = context;
    const stage_t *s = job->stage;
    size_t area = s->height * s->width, depth = 9 * s->channels, size = pooled_size(s);
    real_t *columns = job->conv->scratch + thread * job->conv->scratch_size, *dy = columns + columns_size(s);
    for (size_t i = first; i < end; i++) {
        c->kernels->relu_pool_backward(s->filters, s->height, s->width, job->d + i * size,
                                       s->pooled + i * size, s->which + i * size, dy, db);
        c->kernels->im2col(s->channels, s->height, s->width, job->x + i * s->channels * area, columns);
        c->gemm(false, true, s->filters, depth, area, 1, dy, area, columns, area, 1, dw, depth);
        if (job->dx == NULL) continue;
        c->gemm(true, false, depth, area, s->filters, 1, job->w, depth, dy, area, 0, columns, area);
        c->kernels->col2im(s->channels, s->height, s->width, columns, job->dx + i * s->channels * area);
    }
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static stage_job_t stage_job(const nn_model_t *model, const nn_batch_t *batch, uint32_t i)
{
    conv_t *conv = model->state;
    return (stage_job_t){.conv = conv,
                         .stage = &conv->stages[i],
                         .x = i == 0 ? batch->features : conv->stages[0].pooled,
                         .w = model->params[2 * i].weights,
                         .b = model->params[2 * i + 1].weights,
                         .d = conv->d[i],
                         .dx = i == 0 ? NULL : conv->d[0]};
}

static void forward(nn_model_t *model, const nn_batch_t *batch, bool gradient, bool *hits)
{
    conv_t *conv = model->state;
    const compute_t *c = &conv->compute;
    size_t n = batch->samples, in = pooled_size(&conv->stages[1]), classes = model->config.classes;
    for (uint32_t i = 0; i < 2; i++) {
        stage_job_t job = stage_job(model, batch, i);
        REAL(compute_rows)(c, n, 1, stage_forward, &job, NULL, 0, NULL, 0);
    }
    REAL(linear_forward)
    (c, n, in, classes, conv->stages[1].pooled, model->params[HEAD_W].weights, 0, conv->logits);
    REAL(bias_add)(c, n, classes, model->params[HEAD_B].weights, conv->logits);
    REAL(cross_entropy)(c, n, classes, model->targets, gradient, 1, conv->logits, model->losses, hits);
}

static void backward(nn_model_t *model, const model_pass_t *pass)
{
    conv_t *conv = model->state;
    const compute_t *c = &conv->compute;
    size_t n = pass->batch->samples, in = pooled_size(&conv->stages[1]), classes = model->config.classes;
    forward(model, pass->batch, true, NULL);
    REAL(bias_backward)(c, n, classes, conv->logits, pass->grads[HEAD_B]);
    model_done(pass, HEAD_B);
    REAL(linear_backward_weight)
    (c, n, in, classes, conv->stages[1].pooled, conv->logits, pass->grads[HEAD_W]);
    model_done(pass, HEAD_W);
    REAL(linear_backward_input)(c, n, in, classes, conv->logits, model->params[HEAD_W].weights, conv->d[1]);
    for (uint32_t i = 2; i-- > 0;) {
        stage_job_t job = stage_job(model, pass->batch, i);
        REAL(compute_rows)
        (c, n, 1, stage_backward, &job, pass->grads[2 * i], model->params[2 * i].count,
         pass->grads[2 * i + 1], model->params[2 * i + 1].count);
        model_done(pass, 2 * i + 1);
        model_done(pass, 2 * i);
    }
}

static void evaluate(nn_model_t *model, const nn_batch_t *batch, bool *hits)
{
    forward(model, batch, false, hits);
}

const model_ops_t REAL(conv_ops) = {.count_params = count_params,
                                    .state_bytes = state_bytes,
                                    .layout = layout,
                                    .backward = backward,
                                    .evaluate = evaluate};
