/*
 * Native models: the one entry header of nn. A model owns its weights and activations; gradients go where the
 * caller says. A *sample* is one row of the batch: a text window of `context` tokens, an image, a row of a
 * table. The loss of a sample is the mean over its targets (tokens of a window); losses and gradients are
 * *sums* over the samples of the micro-batch, added to what the gradient buffers hold.
 *
 * All buffers are of the model's dtype (fp32 or fp64). One model belongs to one thread; it uses `threads`
 * inside.
 */
#ifndef NN_NN_H
#define NN_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

/* ---- Models ---------------------------------------------------------------------------------- */

typedef enum nn_kind { NN_GPT, NN_MLP, NN_CONV } nn_kind_t;
typedef enum nn_dtype { NN_FP32, NN_FP64 } nn_dtype_t;

typedef struct nn_model_config {
    nn_kind_t kind;
    nn_dtype_t dtype;
    uint64_t seed;
    uint32_t layers, heads, dim, context; /* gpt: pre-norm, GELU(tanh), learned positions, tied output; mlp:
                                             layers hidden layers of dim (GELU) */
    uint32_t vocabulary;                  /* gpt: 256 for bytes */
    uint32_t inputs, classes;         /* mlp, conv: numbers in a sample, classes (softmax cross-entropy) */
    uint32_t channels, height, width; /* conv: the image; inputs = channels * height * width */
    uint32_t filters; /* conv: 3x3 convolution to filters, ReLU, 2x2 max pool; again to 2 x filters; linear */
} nn_model_config_t;

typedef struct nn_param {
    char name[64]; /* Hugging Face GPT-2's names and (in, out) layout for a gpt: "h.0.attn.c_attn.weight" */
    uint32_t n_dims;
    uint64_t shape[4];
    uint64_t count; /* elements */
    void *weights;  /* (count) in the model's dtype, owned by the model */
    bool decay;     /* weight decay applies (matrices yes; biases, norms no) */
} nn_param_t;

typedef struct nn_model nn_model_t;

/* Input of one forward pass. tokens (samples, context + 1) for a gpt: targets are the tokens one further on;
 * else features (samples, inputs) in the model's dtype and labels (samples). */
typedef struct nn_batch {
    uint32_t samples;
    const uint16_t *tokens;
    const void *features;
    const uint32_t *labels;
} nn_batch_t;

/* Bytes that a model with this micro-batch needs (weights, activations; gradients and optimiser state apart),
 * exact to 10 %, without allocating, on one thread; each further thread adds scratch of less than one
 * sample's activations. INVALID names the field that cannot be. */
inspan_status_t nn_model_memory(const nn_model_config_t *config, uint32_t micro_batch,
                                uint64_t *weights_bytes, uint64_t *activation_bytes, inspan_error_t *err);

/* Initial weights depend on the seed and the config alone (bits are the same on every machine). micro_batch:
 * the most samples of one pass; all memory is taken here, none later. INVALID, NO_MEMORY, UNSUPPORTED (no
 * right gemm). */
inspan_status_t nn_model_open(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                              nn_model_t **model, inspan_error_t *err);
void nn_model_close(nn_model_t *model);

/* Parameters in order of registration (forward order); backward finishes them in about the reverse order. */
uint32_t nn_model_params(const nn_model_t *model, const nn_param_t **params);
const nn_model_config_t *nn_model_config(const nn_model_t *model);

/* Called on the calling thread in backward when the gradient of parameter `index` is complete for this pass.
 */
typedef void (*nn_ready_fn)(void *context, uint32_t index);

/*
 * Forward and backward. grads[i] (count of parameter i) has the gradient *added* to it. *loss_sum: sum over
 * samples. ready may be NULL (not the last micro-batch). INVALID (too many samples, token or label out of
 * range).
 */
inspan_status_t nn_model_backward(nn_model_t *model, const nn_batch_t *batch, void *const *grads,
                                  nn_ready_fn ready, void *context, double *loss_sum, inspan_error_t *err);

/* Forward alone; *correct (may be NULL): samples (gpt: tokens) whose most likely class was right. */
inspan_status_t nn_model_evaluate(nn_model_t *model, const nn_batch_t *batch, double *loss_sum,
                                  uint64_t *correct, inspan_error_t *err);

/* gpt: logits (vocabulary, as double) of the token after tokens[0..n), n <= context. */
inspan_status_t nn_model_next(nn_model_t *model, const uint16_t *tokens, uint32_t n, double *logits,
                              inspan_error_t *err);

/* Which gemm was taken at the start and why, for `inspan version` and logs ("oneDNN 2.6: fp32 104 GFLOP/s;
 * OpenBLAS
 * ..."). The first call (or the first nn_model_open) makes the choice: a program calls this before it starts
 * threads, as loading OpenBLAS sets environment variables for a moment. Blocks about a tenth of a second
 * then. */
const char *nn_gemm_report(void);

/* The gemm of this type by its name ("oneDNN 2.6"), as $INSPAN_GEMM takes it; "none". Makes the choice as
 * above. */
const char *nn_gemm_name(nn_dtype_t dtype);

/* ---- Optimisers: elementwise over the flat parameter list, the same bits on every instruction set  */

typedef enum nn_optimizer_kind { NN_SGD, NN_ADAMW } nn_optimizer_kind_t;

typedef struct nn_optimizer_config {
    nn_optimizer_kind_t kind;
    double lr, momentum, beta1, beta2, eps, weight_decay;
    bool nesterov;          /* sgd with momentum */
    double clip;            /* global norm, 0: none */
    uint64_t steps, warmup; /* cosine from lr to min_lr after a linear warm-up */
    double min_lr;
} nn_optimizer_config_t;

typedef struct nn_optimizer nn_optimizer_t;

/* State (momenta) for these parameters, in dtype; memory taken here. NO_MEMORY, INVALID. */
inspan_status_t nn_optimizer_open(const nn_optimizer_config_t *config, const nn_param_t *params,
                                  uint32_t n_params, nn_dtype_t dtype, nn_optimizer_t **optimizer,
                                  inspan_error_t *err);
void nn_optimizer_close(nn_optimizer_t *optimizer);

/*
 * Apply the mean gradient: grad_sums[i] / total_samples, clipped by its global norm, at step `step` (from 0,
 * gives learning rate and bias correction by our own routines: + - * / sqrt alone, no contraction, so that
 * all machines get the same bits, whatever floating-point mode the calling thread has). *norm: the global
 * norm before clipping. INVALID if the norm is not finite (nothing is applied).
 */
inspan_status_t nn_optimizer_apply(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                   double total_samples, uint64_t step, double *norm, inspan_error_t *err);

/* The same for some parameters only: those with only[i] (n_params; NULL: all), while the norm is of all
 * gradients. A member to which weights are still being copied so updates what it holds already. */
inspan_status_t nn_optimizer_apply_some(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                        double total_samples, uint64_t step, const bool *only, double *norm,
                                        inspan_error_t *err);

/* The same where the learning rate's place in its schedule is not the number of updates that were made
 * before. */
inspan_status_t nn_optimizer_apply_at(nn_optimizer_t *optimizer, const void *const *grad_sums,
                                      double total_samples, uint64_t step, uint64_t updates, const bool *only,
                                      double *norm, inspan_error_t *err);

/* State arrays for checkpoints and copies to another member: names like "exp_avg.h.0.attn.c_attn.weight";
 * their number. Moment m of parameter i is (*state)[m * n_params + i], its `weights` are the moment itself,
 * owned by the optimiser; they may be written between two applies. */
uint32_t nn_optimizer_state(const nn_optimizer_t *optimizer, const nn_param_t **state);

double nn_learning_rate(const nn_optimizer_config_t *config, uint64_t step);

/* ---- Data ------------------------------------------------------------------------------------ */

typedef enum nn_data_kind { NN_DATA_TEXT, NN_DATA_IDX, NN_DATA_CSV } nn_data_kind_t;

typedef struct nn_data_config {
    nn_data_kind_t kind;
    const char *path;   /* text: bytes are tokens. idx: images; csv: numbers, the last column is the label */
    const char *labels; /* idx: the file of labels; NULL otherwise */
    double validation;  /* share held out, [0, 1): the end of a text, every k-th sample of the others */
    uint32_t context;   /* text */
    uint64_t seed;      /* order of samples */
    nn_dtype_t dtype;   /* of features */
} nn_data_config_t;

typedef struct nn_data nn_data_t;

/* NOT_FOUND, IO, CORRUPT (the text says file, place, expected and found), INVALID (too short for one sample),
 * UNSUPPORTED (compressed, or IDX numbers other than unsigned bytes), LIMIT (over 16 GiB), NO_MEMORY. IDX
 * pixels become v / 256, in [0, 1); CSV numbers are taken as they are. */
inspan_status_t nn_data_open(const nn_data_config_t *config, nn_data_t **data, inspan_error_t *err);
void nn_data_close(nn_data_t *data);

/* What the file fixes of the model: inputs, classes, channels, height, width, vocabulary. */
void nn_data_shape(const nn_data_t *data, nn_model_config_t *config);
uint64_t nn_data_samples(const nn_data_t *data);            /* training samples in one pass */
uint64_t nn_data_validation_samples(const nn_data_t *data); /* held out */

/*
 * Training samples [first, first + n) of the endless order that the seed fixes (passes are permuted anew, a
 * text is cut into windows whose start is shifted anew each pass): the same on every machine, a function of
 * the position alone. The batch points into data's buffers until the next call. n <= the largest n of
 * nn_data_reserve.
 */
inspan_status_t nn_data_reserve(nn_data_t *data, uint32_t largest); /* OK, NO_MEMORY */
void nn_data_batch(nn_data_t *data, uint64_t first, uint32_t n, nn_batch_t *batch);
/* Held-out samples [first, first + n), fewer at their end, in the file's order. */
void nn_data_validation_batch(nn_data_t *data, uint64_t first, uint32_t n, nn_batch_t *batch);

/* ---- safetensors ----------------------------------------------------------------------------- */

/* Write the tensors atomically, metadata as key=value pairs (n_metadata x 2 strings). IO. */
inspan_status_t nn_safetensors_write(const char *path, const nn_param_t *tensors, uint32_t n,
                                     nn_dtype_t dtype, const char *const *metadata, uint32_t n_metadata,
                                     inspan_error_t *err);

/* All checks first (header length, JSON, names, offsets, overlaps, sizes, trailing bytes), then load every
 * tensor of `into` by name and shape (F32, F64, F16, BF16 convert to dtype). NOT_FOUND, CORRUPT, MISMATCH,
 * IO, NO_MEMORY; never half loaded. */
inspan_status_t nn_safetensors_read(const char *path, nn_param_t *into, uint32_t n, nn_dtype_t dtype,
                                    inspan_error_t *err);

/* The same checks without loading: does the file hold every tensor of `tensors` (weights are not looked at)?
 * *bytes: what these take in the file. */
inspan_status_t nn_safetensors_check(const char *path, const nn_param_t *tensors, uint32_t n, uint64_t *bytes,
                                     inspan_error_t *err);

/* model.safetensors + config.json (Hugging Face's fields for a gpt) in a folder; and a model from such a
 * folder: all checks come before memory is taken, NO_MEMORY where the machine (or the control group) has
 * less. */
inspan_status_t nn_model_save(const nn_model_t *model, const char *folder, inspan_error_t *err);
inspan_status_t nn_model_load(const char *folder, uint32_t micro_batch, uint32_t threads, nn_model_t **model,
                              inspan_error_t *err);

/* The same two files from parameters that lie elsewhere (a copy of a model's). IO, NO_MEMORY, INVALID. */
inspan_status_t nn_model_write(const nn_model_config_t *config, const nn_param_t *params, uint32_t n,
                               const char *folder, inspan_error_t *err);

/* Sample `n` bytes after `prompt` from a gpt over bytes: temperature >= 0 (0: the likeliest), top_k 0: all.
 * emit is called per byte. */
typedef struct nn_generate_options {
    uint32_t tokens, top_k;
    double temperature;
    uint64_t seed;
} nn_generate_options_t;
inspan_status_t nn_generate(nn_model_t *model, const char *prompt, const nn_generate_options_t *options,
                            void (*emit)(void *context, uint8_t byte), void *context, inspan_error_t *err);

#endif
