#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "nn/data_internal.h"

#define STREAM_SHIFT 0x7368696674u /* rng stream of the windows' shifts; the pass is added */

struct nn_data {
    nn_data_config_t config; /* path and labels are not kept */
    data_content_t content;
    uint64_t train_bytes;    /* text: bytes before the held-out end */
    uint64_t training, held; /* samples */
    uint32_t *training_rows; /* tables: (training) */
    uint32_t *held_rows;     /* tables: (held) */
    uint32_t largest;
    uint16_t *tokens; /* (largest, context + 1) */
    void *features;   /* (largest, inputs) */
    uint32_t *labels; /* (largest) */
};

/* ---- The order of samples -------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t data_permute(uint64_t seed, uint64_t pass, uint64_t n, uint64_t i)
{
    unsigned half = 1;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < n) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    const uint64_t key = mix(seed + 0x9e3779b97f4a7c15u) ^ mix(pass + 0x632be59bd9b4e019u);
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (mix(key + (round << 56) + right) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

/* First byte of window k of a pass: windows follow each other from a shift that is drawn anew for each pass.
 */
static uint64_t window_start(const nn_data_t *data, uint64_t pass, uint64_t k)
{
    const uint64_t context = data->config.context;
    uint64_t spare = data->train_bytes - 1 - data->training * context;
    uint64_t shifts = spare + 1 < context ? spare + 1 : context;
    rng_t rng;
    rng_seed(&rng, data->config.seed, STREAM_SHIFT + pass);
    return rng_below(&rng, shifts) + k * context;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* The end of a text is held out, so that no window crosses from one part into the other. */
static inspan_status_t split_text(nn_data_t *data, const char *path, inspan_error_t *err)
{
    const uint64_t bytes = data->content.n_bytes, context = data->config.context, window = context + 1;
    uint64_t held_bytes = (uint64_t)((double)bytes * data->config.validation);
    data->train_bytes = bytes - held_bytes;
    if (data->train_bytes < window)
        return error_set(
            err, INSPAN_INVALID,
            "%s: %llu bytes to train on (%llu in the file), one window of the model needs %llu: a longer "
            "text or a smaller model.context helps",
            path, (unsigned long long)data->train_bytes, (unsigned long long)bytes,
            (unsigned long long)window);
    if (data->config.validation > 0 && held_bytes < window)
        return error_set(
            err, INSPAN_INVALID,
            "%s: the held-out share %g is %llu bytes, one window of the model needs %llu: a longer text, "
            "another data.validation or 0 helps",
            path, data->config.validation, (unsigned long long)held_bytes, (unsigned long long)window);
    /* A window less than fit, so that the shift has room; a very short text has one all the same. */
    data->training = data->train_bytes / context > 1 ? data->train_bytes / context - 1 : 1;
    data->held = held_bytes >= window ? (held_bytes - 1) / context : 0;
    return INSPAN_OK;
}

/* Every 1/validation-th row is held out. */
static inspan_status_t split_rows(nn_data_t *data, const char *path, inspan_error_t *err)
{
    const uint64_t rows = data->content.rows;
    data->training_rows = malloc((rows + 1) * sizeof *data->training_rows);
    data->held_rows = malloc((rows + 1) * sizeof *data->held_rows);
    if (data->training_rows == NULL || data->held_rows == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the order of %s", path);
    for (uint64_t i = 0; i < rows; i++) {
        bool held =
            floor((double)(i + 1) * data->config.validation) > floor((double)i * data->config.validation);
        if (held)
            data->held_rows[data->held++] = (uint32_t)i;
        else
            data->training_rows[data->training++] = (uint32_t)i;
    }
    if (data->training == 0)
        return error_set(err, INSPAN_INVALID, "%s: none of its %llu samples is left to train on", path,
                         (unsigned long long)rows);
    if (data->config.validation > 0 && data->held == 0)
        return error_set(
            err, INSPAN_INVALID,
            "%s: the held-out share %g of its %llu samples is not even one: give more samples, another "
            "data.validation or 0",
            path, data->config.validation, (unsigned long long)rows);
    return INSPAN_OK;
}

static inspan_status_t check_config(const nn_data_config_t *config, inspan_error_t *err)
{
    if (config->path == NULL || config->path[0] == '\0')
        return error_set(err, INSPAN_INVALID, "data: no path given");
    if (!(config->validation >= 0 && config->validation < 1))
        return error_set(err, INSPAN_INVALID, "data: the held-out share %g is not in [0, 1)",
                         config->validation);
    if (config->kind == NN_DATA_TEXT && config->context == 0)
        return error_set(err, INSPAN_INVALID, "data: a text needs a context of 1 or more");
    if (config->kind == NN_DATA_IDX && (config->labels == NULL || config->labels[0] == '\0'))
        return error_set(err, INSPAN_INVALID, "data: IDX images need a file of labels");
    return INSPAN_OK;
}

static inspan_status_t read_content(nn_data_t *data, const nn_data_config_t *config, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    switch (config->kind) {
    case NN_DATA_TEXT:
        status = data_read_text(config, &data->content, err);
        return status != INSPAN_OK ? status : split_text(data, config->path, err);
    case NN_DATA_IDX: status = data_read_idx(config, &data->content, err); break;
    case NN_DATA_CSV: status = data_read_csv(config, &data->content, err); break;
    default: return error_set(err, INSPAN_INVALID, "data: unknown kind %d", (int)config->kind);
    }
    return status != INSPAN_OK ? status : split_rows(data, config->path, err);
}

inspan_status_t nn_data_open(const nn_data_config_t *config, nn_data_t **out, inspan_error_t *err)
{
    inspan_status_t status = check_config(config, err);
    if (status != INSPAN_OK) return status;
    nn_data_t *data = calloc(1, sizeof *data);
    if (data == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for %s", config->path);
    data->config = *config;
    data->config.path = data->config.labels = NULL;
    status = read_content(data, config, err);
    if (status != INSPAN_OK) {
        nn_data_close(data);
        return status;
    }
    *out = data;
    return INSPAN_OK;
}

void data_content_free(data_content_t *content)
{
    free(content->file);
    free(content->features);
    free(content->labels);
}

static void free_batch(nn_data_t *data)
{
    free(data->tokens);
    free(data->features);
    free(data->labels);
    data->tokens = NULL;
    data->features = NULL;
    data->labels = NULL;
    data->largest = 0;
}

void nn_data_close(nn_data_t *data)
{
    if (data == NULL) return;
    free_batch(data);
    free(data->training_rows);
    free(data->held_rows);
    data_content_free(&data->content);
    free(data);
}

void nn_data_shape(const nn_data_t *data, nn_model_config_t *config)
{
    if (data->config.kind == NN_DATA_TEXT) {
        config->vocabulary = 256;
        return;
    }
    config->inputs = data->content.inputs;
    config->classes = data->content.classes;
    config->channels = data->content.channels;
    config->height = data->content.height;
    config->width = data->content.width;
}

uint64_t nn_data_samples(const nn_data_t *data)
{
    return data->training;
}

uint64_t nn_data_validation_samples(const nn_data_t *data)
{
    return data->held;
}

/* ---- Batches --------------------------------------------------------------------------------- */

inspan_status_t nn_data_reserve(nn_data_t *data, uint32_t largest)
{
    free_batch(data);
    if (data->config.kind == NN_DATA_TEXT) {
        data->tokens = calloc((size_t)largest + 1, ((size_t)data->config.context + 1) * sizeof *data->tokens);
    } else {
        size_t size = data->config.dtype == NN_FP64 ? sizeof(double) : sizeof(float);
        data->features = calloc((size_t)largest + 1, (size_t)data->content.inputs * size);
        data->labels = calloc((size_t)largest + 1, sizeof *data->labels);
    }
    bool taken = data->tokens != NULL || (data->features != NULL && data->labels != NULL);
    if (!taken) free_batch(data);
    data->largest = taken ? largest : 0;
    return taken ? INSPAN_OK : INSPAN_NO_MEMORY;
}

static void put_window(nn_data_t *data, uint32_t place, uint64_t start)
{
    const size_t window = (size_t)data->config.context + 1;
    uint16_t *to = data->tokens + place * window;
    for (size_t i = 0; i < window; i++) to[i] = data->content.bytes[start + i];
}

static void put_row(nn_data_t *data, uint32_t place, uint32_t row)
{
    const size_t inputs = data->content.inputs;
    const size_t size = data->config.dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    char *to = (char *)data->features + place * inputs * size;
    data->labels[place] = data->content.labels[row];
    if (data->content.pixels == NULL) {
        memcpy(to, (const char *)data->content.features + row * inputs * size, inputs * size);
        return;
    }
    const uint8_t *pixels = data->content.pixels + row * inputs;
    if (data->config.dtype == NN_FP64)
        for (size_t i = 0; i < inputs; i++) ((double *)(void *)to)[i] = pixels[i] * 0x1p-8;
    else
        for (size_t i = 0; i < inputs; i++) ((float *)(void *)to)[i] = (float)pixels[i] * 0x1p-8f;
}

static void point(const nn_data_t *data, uint32_t n, nn_batch_t *batch)
{
    *batch = (nn_batch_t){
        .samples = n, .tokens = data->tokens, .features = data->features, .labels = data->labels};
}

void nn_data_batch(nn_data_t *data, uint64_t first, uint32_t n, nn_batch_t *batch)
{
    if (n > data->largest) n = data->largest;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t pass = (first + k) / data->training, place = (first + k) % data->training;
        uint64_t sample = data_permute(data->config.seed, pass, data->training, place);
        if (data->tokens != NULL)
            put_window(data, k, window_start(data, pass, sample));
        else
            put_row(data, k, data->training_rows[sample]);
    }
    point(data, n, batch);
}

void nn_data_validation_batch(nn_data_t *data, uint64_t first, uint32_t n, nn_batch_t *batch)
{
    if (n > data->largest) n = data->largest;
    if (first >= data->held) n = 0;
    if (n > data->held - first && n > 0) n = (uint32_t)(data->held - first);
    for (uint32_t k = 0; k < n; k++) {
        if (data->tokens != NULL)
            put_window(data, k, data->train_bytes + (first + k) * data->config.context);
        else
            put_row(data, k, data->held_rows[first + k]);
    }
    point(data, n, batch);
}
