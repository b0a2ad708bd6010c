/* Sampling bytes from a gpt. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "nn/nn.h"

#define STREAM_GENERATE 0x67656eu
#define BYTES           256
#define START_TOKEN     '\n' /* stands before an empty prompt */

static int descending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? 1 : left > right ? -1 : 0;
}

static uint32_t likeliest(const double *logits)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < BYTES; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Draw from softmax(logits / temperature) over the top_k likeliest (ties with the last of them stay in). */
static uint32_t draw(const double *logits, const nn_generate_options_t *options, rng_t *rng)
{
    double sorted[BYTES], weights[BYTES], sum = 0;
    if (options->temperature == 0) return likeliest(logits);
    memcpy(sorted, logits, sizeof sorted);
    qsort(sorted, BYTES, sizeof sorted[0], descending);
    double least =
        options->top_k > 0 && options->top_k < BYTES ? sorted[options->top_k - 1] : sorted[BYTES - 1];
    for (uint32_t i = 0; i < BYTES; i++) {
        weights[i] = logits[i] < least ? 0 : exp((logits[i] - sorted[0]) / options->temperature);
        sum += weights[i];
    }
    double at = rng_uniform(rng) * sum;
    for (uint32_t i = 0; i < BYTES; i++) {
        if (at < weights[i]) return i;
        at -= weights[i];
    }
    return likeliest(logits); /* rounding left nothing */
}

static inspan_status_t check(const nn_model_config_t *config, const nn_generate_options_t *options,
                             inspan_error_t *err)
{
    if (config->kind != NN_GPT)
        return error_set(err, INSPAN_INVALID, "the model is of kind %s: only a gpt can generate text",
                         config->kind == NN_MLP ? "mlp" : "conv");
    if (config->vocabulary != BYTES)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "the model has %u tokens; only a gpt over bytes (256) can generate here",
                         config->vocabulary);
    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return error_set(err, INSPAN_INVALID, "temperature: expected 0 or more, found %g",
                         options->temperature);
    return INSPAN_OK;
}

inspan_status_t nn_generate(nn_model_t *model, const char *prompt, const nn_generate_options_t *options,
                            void (*emit)(void *context, uint8_t byte), void *context, inspan_error_t *err)
{
    const nn_model_config_t *config = nn_model_config(model);
    inspan_status_t status = check(config, options, err);
    if (status != INSPAN_OK) return status;
    uint16_t *window = calloc(config->context, sizeof *window); /* the last tokens, at most (context) */
    if (window == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for %u tokens", config->context);
    const size_t length = strlen(prompt);
    uint32_t n = length < config->context ? (uint32_t)length : config->context;
    for (uint32_t i = 0; i < n; i++) window[i] = (uint8_t)prompt[length - n + i];
    if (n == 0) window[n++] = START_TOKEN;
    rng_t rng;
    rng_seed(&rng, options->seed, STREAM_GENERATE);
    for (uint32_t k = 0; k < options->tokens && status == INSPAN_OK; k++) {
        double logits[BYTES];
        status = nn_model_next(model, window, n, logits, err);
        for (uint32_t i = 0; i < BYTES && status == INSPAN_OK; i++)
            if (!isfinite(logits[i]))
                status = error_set(err, INSPAN_CORRUPT,
                                   "the model gives numbers that are not finite: its training "
                                   "diverged or its file is damaged");
        if (status != INSPAN_OK) break;
        uint32_t token = draw(logits, options, &rng);
        emit(context, (uint8_t)token);
        if (n == config->context) memmove(window, window + 1, --n * sizeof *window);
        window[n++] = (uint16_t)token;
    }
    free(window);
    return status;
}
