/*
 * GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, GELU by tanh, output tied to the token
 * embedding. N = samples * time rows, C = dim, V = vocabulary, H = heads.
 *
 * The output layer runs in runs of rows, forward and backward at once, so that logits of all rows never
 * exist: for a large vocabulary they would be most of the memory. Its loss gradient goes straight into the
 * tied embedding's.
 */
#include <math.h>
#include <string.h>

#include "nn/compute.h"

/* Order of a block's parameters, in registration. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, FC2_W, FC2_B, BLOCK_PARAMS };
enum { WTE, WPE, FIRST_BLOCK };

#define LOGITS_MOST ((size_t)1 << 22) /* numbers in one run of the output layer */
#define ROWS_LEAST  ((size_t)64)

typedef struct layer {
    real_t *input;         /* (N, C), the residual stream */
    real_t *ln1;           /* (N, C) */
    real_t *mean1, *rstd1; /* (N) */
    real_t *qkv;           /* (N, 3 C) */
    real_t *lse;           /* (samples * H, time) */
    real_t *heads;         /* (N, C), attention's result */
    real_t *middle;        /* (N, C), the residual stream between the two halves */
    real_t *ln2;           /* (N, C) */
    real_t *mean2, *rstd2; /* (N) */
    real_t *fc;            /* (N, 4 C), before GELU */
    real_t *gelu;          /* (N, 4 C) */
} layer_t;

typedef struct gpt {
    compute_t compute;
    real_t *scratch;       /* attention's, each thread's */
    real_t *last;          /* (N, C), the residual stream at the end */
    real_t *lnf;           /* (N, C) */
    real_t *meanf, *rstdf; /* (N) */
    size_t run_rows;
    real_t *logits;    /* (run_rows, V) */
    real_t *dresidual; /* (N, C) */
    real_t *dwide;     /* (N, 4 C): of fc, of qkv */
    real_t *dnarrow;   /* (N, C): of a norm's result, of heads */
    layer_t layers[];
} gpt_t;

static uint32_t count_params(const nn_model_config_t *config)
{
    return FIRST_BLOCK + config->layers * BLOCK_PARAMS + 2;
}

static size_t state_bytes(const nn_model_config_t *config)
{
    return sizeof(gpt_t) + config->layers * sizeof(layer_t);
}

/* ---- Layout ---------------------------------------------------------------------------------- */

static void register_params(nn_model_t *model, arena_t *weights)
{
    const nn_model_config_t *config = &model->config;
    uint64_t c = config->dim;
    /* Projections into the residual stream are smaller, for its variance grows with their number
     * (GPT-2, 2.3). */
    init_rule_t normal = MODEL_NORMAL(0.02), residual = MODEL_NORMAL(0.02 / sqrt(2.0 * config->layers));
    init_rule_t zero = MODEL_CONSTANT(0), one = MODEL_CONSTANT(1);
#define P(rule, name, ...)                                                                                   \
    model_param(model, weights, rule, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t),                  \
                (uint64_t[]){__VA_ARGS__}, name, layer)
    uint32_t layer = 0;
    model_param(model, weights, normal, 2, (uint64_t[]){config->vocabulary, c}, "wte.weight");
    model_param(model, weights, normal, 2, (uint64_t[]){config->context, c}, "wpe.weight");
    for (; layer < config->layers; layer++) {
        P(one, "h.%u.ln_1.weight", c);
        P(zero, "h.%u.ln_1.bias", c);
        P(normal, "h.%u.attn.c_attn.weight", c, 3 * c);
        P(zero, "h.%u.attn.c_attn.bias", 3 * c);
        P(residual, "h.%u.attn.c_proj.weight", c, c);
        P(zero, "h.%u.attn.c_proj.bias", c);
        P(one, "h.%u.ln_2.weight", c);
        P(zero, "h.%u.ln_2.bias", c);
        P(normal, "h.%u.mlp.c_fc.weight", c, 4 * c);
        P(zero, "h.%u.mlp.c_fc.bias", 4 * c);
        P(residual, "h.%u.mlp.c_proj.weight", 4 * c, c);
        P(zero, "h.%u.mlp.c_proj.bias", c);
    }
#undef P
    model_param(model, weights, one, 1, (uint64_t[]){c}, "ln_f.weight");
    model_param(model, weights, zero, 1, (uint64_t[]){c}, "ln_f.bias");
}

static void layout_layer(layer_t *l, arena_t *arena, uint64_t n, uint64_t c, uint64_t heads)
{
    l->input = arena_take(arena, n, c * sizeof(real_t));
    l->ln1 = arena_take(arena, n, c * sizeof(real_t));
    l->mean1 = arena_take(arena, n, sizeof(real_t));
    l->rstd1 = arena_take(arena, n, sizeof(real_t));
    l->qkv = arena_take(arena, n, 3 * c * sizeof(real_t));
    l->lse = arena_take(arena, n, heads * sizeof(real_t));
    l->heads = arena_take(arena, n, c * sizeof(real_t));
    l->middle = arena_take(arena, n, c * sizeof(real_t));
    l->ln2 = arena_take(arena, n, c * sizeof(real_t));
    l->mean2 = arena_take(arena, n, sizeof(real_t));
    l->rstd2 = arena_take(arena, n, sizeof(real_t));
    l->fc = arena_take(arena, n, 4 * c * sizeof(real_t));
    l->gelu = arena_take(arena, n, 4 * c * sizeof(real_t));
}

static void layout(nn_model_t *model, arena_t *weights, arena_t *arena)
{
    const nn_model_config_t *config = &model->config;
    gpt_t *gpt = model->state;
    uint64_t n = (uint64_t)model->micro_batch * config->context, c = config->dim;
    register_params(model, weights);
    REAL(compute_init)(&gpt->compute, model, 4 * c, arena);
    gpt->scratch =
        arena_take(arena, model->threads, REAL(attention_scratch)(config->context) * sizeof(real_t));
    for (uint32_t i = 0; i < config->layers; i++) layout_layer(&gpt->layers[i], arena, n, c, config->heads);
    gpt->last = arena_take(arena, n, c * sizeof(real_t));
    gpt->lnf = arena_take(arena, n, c * sizeof(real_t));
    gpt->meanf = arena_take(arena, n, sizeof(real_t));
    gpt->rstdf = arena_take(arena, n, sizeof(real_t));
    size_t rows = LOGITS_MOST / config->vocabulary;
    if (rows < ROWS_LEAST) rows = ROWS_LEAST;
    gpt->run_rows = rows < n ? rows : n;
    gpt->logits = arena_take(arena, gpt->run_rows, config->vocabulary * sizeof(real_t));
    gpt->dresidual = arena_take(arena, n, c * sizeof(real_t));
    gpt->dwide = arena_take(arena, n, 4 * c * sizeof(real_t));
    gpt->dnarrow = arena_take(arena, n, c * sizeof(real_t));
}

/* ---- Forward --------------------------------------------------------------------------------- */

static const real_t *weight(const nn_model_t *model, uint32_t index)
{
    return model->params[index].weights;
}

static uint32_t block_param(uint32_t layer, uint32_t which)
{
    return FIRST_BLOCK + layer * BLOCK_PARAMS + which;
}

static void forward_layer(nn_model_t *model, uint32_t index, size_t samples, size_t time, real_t *output)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    layer_t *l = &gpt->layers[index];
    size_t n = samples * time, dim = model->config.dim, heads = model->config.heads;
#define W(which) weight(model, block_param(index, which))
    attention_t attention = {samples, time, heads, dim / heads, gpt->scratch};
    REAL(layernorm_forward)(c, n, dim, l->input, W(LN1_W), W(LN1_B), l->ln1, l->mean1, l->rstd1);
    REAL(linear_forward)(c, n, dim, 3 * dim, l->ln1, W(QKV_W), 0, l->qkv);
    REAL(bias_add)(c, n, 3 * dim, W(QKV_B), l->qkv);
    REAL(attention_forward)(c, &attention, l->qkv, l->heads, l->lse);
    REAL(bias_sum)(c, n, dim, l->input, W(PROJ_B), l->middle);
    REAL(linear_forward)(c, n, dim, dim, l->heads, W(PROJ_W), 1, l->middle);
    REAL(layernorm_forward)(c, n, dim, l->middle, W(LN2_W), W(LN2_B), l->ln2, l->mean2, l->rstd2);
    REAL(linear_forward)(c, n, dim, 4 * dim, l->ln2, W(FC_W), 0, l->fc);
    REAL(bias_gelu)(c, n, 4 * dim, W(FC_B), l->fc, l->gelu);
    REAL(bias_sum)(c, n, dim, l->middle, W(FC2_B), output);
    REAL(linear_forward)(c, n, 4 * dim, dim, l->gelu, W(FC2_W), 1, output);
#undef W
}

typedef struct embed_job {
    const nn_model_t *model;
    size_t time;
    real_t *y;
} embed_job_t;

static void embed_part(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                       real_t *a, real_t *b)
{
    (void)thread, (void)a, (void)b;
    const embed_job_t *job = context;
    size_t dim = job->model->config.dim;
    c->kernels->embed((end - first) * job->time, dim, job->time, job->model->inputs + first * job->time,
                      weight(job->model, WTE), weight(job->model, WPE), job->y + first * job->time * dim);
}

/* Up to the last norm. Rows lie sample after sample, `time` in each (less than context for the next token
 * alone). */
static void forward(nn_model_t *model, size_t samples, size_t time)
{
    gpt_t *gpt = model->state;
    uint32_t layers = model->config.layers;
    size_t dim = model->config.dim;
    embed_job_t job = {model, time, gpt->layers[0].input};
    REAL(compute_rows)(&gpt->compute, samples, 1, embed_part, &job, NULL, 0, NULL, 0);
    for (uint32_t i = 0; i < layers; i++)
        forward_layer(model, i, samples, time, i + 1 < layers ? gpt->layers[i + 1].input : gpt->last);
    uint32_t norm = block_param(layers, 0);
    REAL(layernorm_forward)
    (&gpt->compute, samples * time, dim, gpt->last, weight(model, norm), weight(model, norm + 1), gpt->lnf,
     gpt->meanf, gpt->rstdf);
}

static void evaluate(nn_model_t *model, const nn_batch_t *batch, bool *hits)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    size_t dim = model->config.dim, vocabulary = model->config.vocabulary;
    size_t n = (size_t)batch->samples * model->config.context;
    forward(model, batch->samples, model->config.context);
    for (size_t first = 0; first < n; first += gpt->run_rows) {
        size_t rows = n - first < gpt->run_rows ? n - first : gpt->run_rows;
        REAL(linear_backward_input)
        (c, rows, vocabulary, dim, gpt->lnf + first * dim, weight(model, WTE), gpt->logits);
        REAL(cross_entropy)
        (c, rows, vocabulary, model->targets + first, false, 1, gpt->logits, model->losses + first,
         hits == NULL ? NULL : hits + first);
    }
}

static void next(nn_model_t *model, uint32_t n, double *logits)
{
    gpt_t *gpt = model->state;
    size_t dim = model->config.dim, vocabulary = model->config.vocabulary;
    forward(model, 1, n);
    REAL(linear_backward_input)
    (&gpt->compute, 1, vocabulary, dim, gpt->lnf + (n - 1) * dim, weight(model, WTE), gpt->logits);
    for (size_t i = 0; i < vocabulary; i++) logits[i] = (double)gpt->logits[i];
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Logits, losses, their gradient; dnarrow = d lnf; the embedding's gradient gets the output layer's share. */
static void backward_output(nn_model_t *model, const model_pass_t *pass, size_t n)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    size_t dim = model->config.dim, vocabulary = model->config.vocabulary;
    const real_t *wte = weight(model, WTE);
    real_t *dwte = pass->grads[WTE], scale = 1 / (real_t)model->config.context;
    for (size_t first = 0; first < n; first += gpt->run_rows) {
        size_t rows = n - first < gpt->run_rows ? n - first : gpt->run_rows;
        const real_t *x = gpt->lnf + first * dim;
        /* wte is (V, C): logits = x wte^T has the form of an input's gradient. */
        REAL(linear_backward_input)(c, rows, vocabulary, dim, x, wte, gpt->logits);
        REAL(cross_entropy)
        (c, rows, vocabulary, model->targets + first, true, scale, gpt->logits, model->losses + first, NULL);
        REAL(linear_backward_weight)(c, rows, vocabulary, dim, gpt->logits, x, dwte);
        REAL(linear_forward)(c, rows, vocabulary, dim, gpt->logits, wte, 0, gpt->dnarrow + first * dim);
    }
}

/* dresidual: gradient of the block's result, becomes that of `middle`. */
static void backward_mlp(nn_model_t *model, const model_pass_t *pass, uint32_t index, size_t n)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    layer_t *l = &gpt->layers[index];
    size_t dim = model->config.dim;
#define W(which)    weight(model, block_param(index, which))
#define G(which)    (pass->grads[block_param(index, which)])
#define DONE(which) model_done(pass, block_param(index, which))
    REAL(bias_backward)(c, n, dim, gpt->dresidual, G(FC2_B));
    DONE(FC2_B);
    REAL(linear_backward_weight)(c, n, 4 * dim, dim, l->gelu, gpt->dresidual, G(FC2_W));
    DONE(FC2_W);
    REAL(linear_backward_input)(c, n, 4 * dim, dim, gpt->dresidual, W(FC2_W), gpt->dwide);
    REAL(gelu_backward)(c, n, 4 * dim, l->fc, gpt->dwide, G(FC_B));
    DONE(FC_B);
    REAL(linear_backward_weight)(c, n, dim, 4 * dim, l->ln2, gpt->dwide, G(FC_W));
    DONE(FC_W);
    REAL(linear_backward_input)(c, n, dim, 4 * dim, gpt->dwide, W(FC_W), gpt->dnarrow);
    REAL(layernorm_backward)
    (c, n, dim, gpt->dnarrow, l->middle, W(LN2_W), l->mean2, l->rstd2, true, gpt->dresidual, G(LN2_W),
     G(LN2_B));
    DONE(LN2_B);
    DONE(LN2_W);
}

/* dresidual: gradient of `middle`, becomes that of the block's input. */
static void backward_attention(nn_model_t *model, const model_pass_t *pass, uint32_t index)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    layer_t *l = &gpt->layers[index];
    size_t dim = model->config.dim, heads = model->config.heads, time = model->config.context;
    size_t n = pass->batch->samples * time;
    attention_t attention = {pass->batch->samples, time, heads, dim / heads, gpt->scratch};
    REAL(bias_backward)(c, n, dim, gpt->dresidual, G(PROJ_B));
    DONE(PROJ_B);
    REAL(linear_backward_weight)(c, n, dim, dim, l->heads, gpt->dresidual, G(PROJ_W));
    DONE(PROJ_W);
    REAL(linear_backward_input)(c, n, dim, dim, gpt->dresidual, W(PROJ_W), gpt->dnarrow);
    REAL(attention_backward)(c, &attention, l->qkv, l->heads, l->lse, gpt->dnarrow, gpt->dwide);
    REAL(bias_backward)(c, n, 3 * dim, gpt->dwide, G(QKV_B));
    DONE(QKV_B);
    REAL(linear_backward_weight)(c, n, dim, 3 * dim, l->ln1, gpt->dwide, G(QKV_W));
    DONE(QKV_W);
    REAL(linear_backward_input)(c, n, dim, 3 * dim, gpt->dwide, W(QKV_W), gpt->dnarrow);
    REAL(layernorm_backward)
    (c, n, dim, gpt->dnarrow, l->input, W(LN1_W), l->mean1, l->rstd1, true, gpt->dresidual, G(LN1_W),
     G(LN1_B));
    DONE(LN1_B);
    DONE(LN1_W);
#undef W
#undef G
#undef DONE
}

typedef struct embed_backward_job {
    const nn_model_t *model;
    const model_pass_t *pass;
    size_t n;
} embed_backward_job_t;

/* By columns: rows of one token are summed in their own order, whatever the number of threads. */
static void embed_backward_part(const compute_t *c, void *context, size_t first, size_t end, uint32_t thread,
                                real_t *a, real_t *b)
{
    (void)thread, (void)a, (void)b;
    const embed_backward_job_t *job = context;
    const gpt_t *gpt = job->model->state;
    real_t *dwte = job->pass->grads[WTE], *dwpe = job->pass->grads[WPE];
    c->kernels->embed_backward(job->n, job->model->config.dim, end - first, job->model->config.context,
                               job->model->inputs, gpt->dresidual + first, dwte + first, dwpe + first);
}

static void backward(nn_model_t *model, const model_pass_t *pass)
{
    gpt_t *gpt = model->state;
    const compute_t *c = &gpt->compute;
    uint32_t layers = model->config.layers, norm = block_param(layers, 0);
    size_t dim = model->config.dim, n = (size_t)pass->batch->samples * model->config.context;
    forward(model, pass->batch->samples, model->config.context);
    backward_output(model, pass, n);
    REAL(layernorm_backward)
    (c, n, dim, gpt->dnarrow, gpt->last, weight(model, norm), gpt->meanf, gpt->rstdf, false, gpt->dresidual,
     pass->grads[norm], pass->grads[norm + 1]);
    model_done(pass, norm + 1);
    model_done(pass, norm);
    for (uint32_t i = layers; i-- > 0;) {
        backward_mlp(model, pass, i, n);
        backward_attention(model, pass, i);
    }
    embed_backward_job_t job = {model, pass, n};
    REAL(compute_rows)(c, dim, 64 / sizeof(real_t), embed_backward_part, &job, NULL, 0, NULL, 0);
    model_done(pass, WPE);
    model_done(pass, WTE);
}

const model_ops_t REAL(gpt_ops) = {.count_params = count_params,
                                   .state_bytes = state_bytes,
                                   .layout = layout,
                                   .backward = backward,
                                   .evaluate = evaluate,
                                   .next = next};
