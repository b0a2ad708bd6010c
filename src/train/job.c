#include "train/job.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "base/words.h"

#define AT(member)  offsetof(job_config_t, member)
#define NO_LIMIT    9.2e18
#define KEY_MAX     64
#define CHOICE_ROOM 16 /* of every member that holds a choice, its final 0 included */

/* One row a field; everything that knows the fields (YAML, --set, job.conf, the help) reads this table. */
static const job_field_t fields[] = {
    {"name", JOB_STRING, AT(name), "job", NULL, 1, 63, "the job's name, for people"},

    {"model.kind", JOB_CHOICE, AT(model.kind), "gpt", "gpt|mlp|conv", 0, 0, "what is trained"},
    {"model.layers", JOB_U32, AT(model.layers), "4", NULL, 1, 1000, "gpt: blocks; mlp: hidden layers"},
    {"model.heads", JOB_U32, AT(model.heads), "4", NULL, 1, 1024, "gpt: attention heads; divides dim"},
    {"model.dim", JOB_U32, AT(model.dim), "128", NULL, 1, 65536, "width of a layer"},
    {"model.context", JOB_U32, AT(model.context), "128", NULL, 1, 65536, "gpt: tokens in a window"},
    {"model.filters", JOB_U32, AT(model.filters), "16", NULL, 1, 4096,
     "conv: filters of the first convolution"},

    {"data.kind", JOB_CHOICE, AT(data.kind), "text", "text|idx|csv", 0, 0, "format of the data file"},
    {"data.path", JOB_STRING, AT(data.path), NULL, NULL, 1, JOB_TEXT_MAX - 1,
     "text, IDX images, or CSV file"},
    {"data.labels", JOB_STRING, AT(data.labels), "", NULL, 0, JOB_TEXT_MAX - 1, "idx: the file of labels"},
    {"data.validation", JOB_REAL, AT(data.validation), "0.05", NULL, 0, 0.95, "share of the data held out"},

    {"train.steps", JOB_U64, AT(train.steps), "500", NULL, 1, 1e12, "optimiser steps"},
    {"train.global_batch", JOB_U64, AT(train.global_batch), "64", NULL, 1, 16777216,
     "samples of a step, all nodes together"},
    {"train.micro_batch", JOB_U64, AT(train.micro_batch), "auto", "auto", 1, 65536,
     "samples of one forward and backward"},
    {"train.optimizer", JOB_CHOICE, AT(train.optimizer), "adamw", "adamw|sgd", 0, 0, "update rule"},
    {"train.dtype", JOB_CHOICE, AT(train.dtype), "fp32", "fp32|fp64", 0, 0,
     "numbers of weights and gradients"},
    {"train.lr", JOB_REAL, AT(train.lr), "1e-3", NULL, 0, 1e6, "highest learning rate"},
    {"train.min_lr", JOB_REAL, AT(train.min_lr), "0", NULL, 0, 1e6, "learning rate at the end of the cosine"},
    {"train.momentum", JOB_REAL, AT(train.momentum), "0.9", NULL, 0, 0.999999, "sgd: momentum"},
    {"train.beta1", JOB_REAL, AT(train.beta1), "0.9", NULL, 0, 0.999999, "adamw: decay of the first moment"},
    {"train.beta2", JOB_REAL, AT(train.beta2), "0.999", NULL, 0, 0.99999999,
     "adamw: decay of the second moment"},
    {"train.eps", JOB_REAL, AT(train.eps), "1e-8", NULL, 1e-30, 1, "adamw: added to the denominator"},
    {"train.weight_decay", JOB_REAL, AT(train.weight_decay), "0.01", NULL, 0, 1e3,
     "decay of matrices (not of biases and norms)"},
    {"train.clip", JOB_REAL, AT(train.clip), "1.0", NULL, 0, 1e12,
     "largest global norm of the gradient; 0: no clipping"},
    {"train.warmup", JOB_U64, AT(train.warmup), "50", NULL, 0, 1e12, "steps of linear warm-up"},
    {"train.seed", JOB_U64, AT(train.seed), "1", NULL, 0, NO_LIMIT,
     "fixes initial weights and the order of samples"},
    {"train.evaluate_every", JOB_U64, AT(train.evaluate_every), "0", NULL, 0, 1e12,
     "steps between held-out losses; 0: only at the start and the end"},
    {"train.evaluate_samples", JOB_U64, AT(train.evaluate_samples), "2000", NULL, 0, 1e12,
     "held-out samples that count for the held-out loss, from the first; 0: all"},
    {"train.check_every", JOB_U64, AT(train.check_every), "50", NULL, 1, 1e12,
     "steps between comparisons of all ranks' weights"},

    {"nodes.min", JOB_U32, AT(nodes.min), "1", NULL, 1, 256, "fewest nodes to start and to go on with"},
    {"nodes.max", JOB_U32, AT(nodes.max), "8", NULL, 1, 256, "most nodes to use"},
    {"nodes.memory", JOB_SIZE, AT(nodes.memory), "0", NULL, 0, NO_LIMIT,
     "memory a node must have; 0: what the model needs"},
    {"nodes.gpu", JOB_STRING, AT(nodes.gpu), "", NULL, 0, 15, "kind of GPU that a node must have"},
    {"nodes.labels", JOB_STRING, AT(nodes.labels), "", NULL, 0, JOB_TEXT_MAX - 1,
     "labels that a node must have"},

    {"sync.mode", JOB_CHOICE, AT(sync.mode), "exact", "exact|eager|local|auto", 0, 0,
     "how ranks agree on weights"},
    {"sync.local_batch", JOB_U64, AT(sync.local_batch), "8", NULL, 1, 1e12,
     "mode local: samples behind which a node updates its own weights"},
    {"sync.outer_lr", JOB_REAL, AT(sync.outer_lr), "1", NULL, 0, 1e3,
     "mode local: how far the job's weights follow the mean way of the nodes"},
    {"sync.outer_momentum", JOB_REAL, AT(sync.outer_momentum), "0.3", NULL, 0, 0.999,
     "mode local: how much of the way of the steps before is gone again"},
    {"sync.wire", JOB_CHOICE, AT(sync.wire), "auto", "auto|fp32|bf16|fp16|int8", 0, 0,
     "gradients on the wire: as they are, or rounded (int8 makes up for it later); auto: by sync.exactness"},
    {"sync.backend", JOB_CHOICE, AT(sync.backend), "auto", "auto|native|gloo|nccl|mpi", 0, 0,
     "who carries collectives: native or gloo; auto: native"},
    {"sync.bucket", JOB_STRING, AT(sync.bucket), "auto", NULL, 1, 15,
     "bytes of a gradient bucket (25M); auto: first a 32nd of the gradients, 1 to 25 MB, then as measured"},
    {"sync.order", JOB_CHOICE, AT(sync.order), "reversed", "reversed|registered", 0, 0,
     "order of the gradients in the buckets: from the model's end or its start; with bucket auto at first"},
    {"sync.split", JOB_CHOICE, AT(sync.split), "auto", "auto|equal", 0, 0,
     "a node's share of a step: by its speed, or as large as any other's"},
    {"sync.exactness", JOB_CHOICE, AT(sync.exactness), "exact", "exact|close|loose", 0, 0,
     "what auto may choose: nothing that changes sums; rounded gradients; local updates too"},

    {"failure_timeout", JOB_DURATION, AT(failure_timeout), "5s", NULL, 1e9, 3.6e12,
     "silence after which a node is lost"},
    {"on_loss", JOB_CHOICE, AT(on_loss), "recompute", "recompute|drop|abort", 0, 0,
     "what becomes of a lost node's samples"},

    {"checkpoint.every", JOB_U64, AT(checkpoint.every), "0", NULL, 0, 1e12,
     "steps between checkpoints; 0: the model at the end alone"},
    {"checkpoint.keep", JOB_U64, AT(checkpoint.keep), "3", NULL, 1, 1e6, "checkpoints kept"},
    {"checkpoint.dir", JOB_STRING, AT(checkpoint.dir), "out", NULL, 1, JOB_TEXT_MAX - 1, "folder of results"},
};

_Static_assert(sizeof((job_config_t *)0)->model.kind == CHOICE_ROOM, "choices share one size");
_Static_assert(sizeof((job_config_t *)0)->data.kind == CHOICE_ROOM, "choices share one size");
_Static_assert(sizeof((job_config_t *)0)->train.optimizer == CHOICE_ROOM, "choices share one size");
_Static_assert(sizeof((job_config_t *)0)->train.dtype == CHOICE_ROOM, "choices share one size");
_Static_assert(sizeof((job_config_t *)0)->sync.mode == CHOICE_ROOM, "choices share one size");
_Static_assert(sizeof((job_config_t *)0)->on_loss == CHOICE_ROOM, "choices share one size");

#define N_FIELDS (sizeof fields / sizeof fields[0])

const job_field_t *job_fields(size_t *n)
{
    *n = N_FIELDS;
    return fields;
}

/* ---- One field from text --------------------------------------------------------------------- */

static bool is_choice(const char *choices, const char *value)
{
    size_t length = strlen(value);
    for (const char *at = choices; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, "|");
        if (n == length && strncmp(at, value, n) == 0) return true;
        at += n + (at[n] == '|');
    }
    return false;
}

static inspan_status_t wrong(inspan_error_t *err, const job_field_t *field, const char *value,
                             const char *expected)
{
    return error_set(err, INSPAN_INVALID, "%s: expected %s, found '%.60s'", field->key, expected, value);
}

static inspan_status_t out_of_range(inspan_error_t *err, const job_field_t *field, const char *value)
{
    if (field->most >= NO_LIMIT)
        return error_set(err, INSPAN_INVALID, "%s: expected at least %g, found %.60s", field->key,
                         field->least, value);
    return error_set(err, INSPAN_INVALID, "%s: expected %.12g to %.12g, found %.60s", field->key,
                     field->least, field->most, value);
}

static inspan_status_t set_text(job_config_t *job, const job_field_t *field, const char *value,
                                inspan_error_t *err)
{
    size_t length = strlen(value);
    if ((double)length < field->least) return wrong(err, field, value, "a text that is not empty");
    if ((double)length > field->most)
        return error_set(err, INSPAN_INVALID, "%s: %zu bytes long, at most %zu are allowed", field->key,
                         length, (size_t)field->most);
    for (size_t i = 0, n = 0; i < length; i += n) {
        const unsigned char c = (unsigned char)value[i];
        n = utf8_length(value + i, length - i);
        if (n == 0)
            return error_set(err, INSPAN_INVALID, "%s: the byte 0x%02x at %zu is not UTF-8", field->key, c,
                             i);
        if (c < 0x20 || c == 0x7f)
            return error_set(err, INSPAN_INVALID, "%s: holds the control character 0x%02x", field->key, c);
    }
    memcpy((char *)job + field->offset, value, length + 1);
    return INSPAN_OK;
}

/* "12", "1000"; also "1e3", which YAML writers use for whole numbers. */
static bool parse_whole(const char *value, uint64_t *number)
{
    if (!isdigit((unsigned char)value[0])) return false;
    char *end = NULL;
    errno = 0;
    *number = strtoull(value, &end, 10);
    if (*end == '\0') return errno == 0;
    if (strspn(value, "0123456789.eE+") != strlen(value)) return false;
    double real = strtod(value, &end);
    if (*end != '\0' || !(real <= 9007199254740992.0) || real != floor(real)) return false;
    *number = (uint64_t)real;
    return true;
}

static bool parse_real(const char *value, double *number)
{
    if (value[0] == '\0' || strspn(value, "0123456789.eE+-") != strlen(value)) return false;
    char *end = NULL;
    *number = strtod(value, &end);
    return *end == '\0' && isfinite(*number);
}

static inspan_status_t set_whole(job_config_t *job, const job_field_t *field, const char *value,
                                 inspan_error_t *err)
{
    uint64_t number = 0;
    if (field->choices != NULL && strcmp(value, field->choices) == 0) {
        memcpy((char *)job + field->offset, &number, sizeof number); /* "auto" is 0 */
        return INSPAN_OK;
    }
    if (!parse_whole(value, &number))
        return wrong(err, field, value, field->choices != NULL ? "a whole number or auto" : "a whole number");
    if ((double)number < field->least || (double)number > field->most) return out_of_range(err, field, value);
    if (field->type == JOB_U32) {
        uint32_t small = (uint32_t)number;
        memcpy((char *)job + field->offset, &small, sizeof small);
    } else {
        memcpy((char *)job + field->offset, &number, sizeof number);
    }
    return INSPAN_OK;
}

static inspan_status_t set_field(job_config_t *job, const job_field_t *field, const char *value,
                                 inspan_error_t *err)
{
    void *to = (char *)job + field->offset;
    double real = 0;
    uint64_t size = 0;
    ns_t duration = 0;
    switch (field->type) {
    case JOB_STRING: return set_text(job, field, value, err);
    case JOB_CHOICE:
        if (!is_choice(field->choices, value)) {
            char expected[128];
            snprintf(expected, sizeof expected, "one of %s", field->choices);
            return wrong(err, field, value, expected);
        }
        memcpy(to, value, strlen(value) + 1);
        return INSPAN_OK;
    case JOB_U32:
    case JOB_U64: return set_whole(job, field, value, err);
    case JOB_REAL:
        if (!parse_real(value, &real)) return wrong(err, field, value, "a number");
        if (real < field->least || real > field->most) return out_of_range(err, field, value);
        memcpy(to, &real, sizeof real);
        return INSPAN_OK;
    case JOB_SIZE:
        if (units_parse_size(value, &size) != INSPAN_OK)
            return wrong(err, field, value, "a size like 500M or 4G");
        memcpy(to, &size, sizeof size);
        return INSPAN_OK;
    case JOB_DURATION:
        if (units_parse_duration(value, &duration) != INSPAN_OK)
            return wrong(err, field, value, "a duration like 5s or 500ms");
        if ((double)duration < field->least || (double)duration > field->most)
            return error_set(err, INSPAN_INVALID, "%s: expected 1s to 1h, found %.60s", field->key, value);
        memcpy(to, &duration, sizeof duration);
        return INSPAN_OK;
    }
    return error_set(err, INSPAN_INTERNAL, "%s: field of unknown type", field->key);
}

static const char *nearest_key(words_search_t *search)
{
    const char *key = search->typed;
    size_t length = strlen(key);
    for (size_t i = 0; i < N_FIELDS; i++) { /* "steps" for "train.steps"; "nodes", which is a section */
        const char *known = fields[i].key, *dot = strchr(known, '.');
        if (dot == NULL) continue;
        if (strcmp(dot + 1, key) == 0 || ((size_t)(dot - known) == length && memcmp(known, key, length) == 0))
            return known;
    }
    for (size_t i = 0; i < N_FIELDS; i++) words_offer(search, fields[i].key);
    return words_found(search);
}

inspan_status_t job_set(job_config_t *job, const char *key, const char *value, inspan_error_t *err)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (strcmp(fields[i].key, key) == 0) return set_field(job, &fields[i], value, err);
    words_search_t search = {.typed = key};
    const char *nearest = nearest_key(&search);
    if (nearest != NULL)
        return error_set(err, INSPAN_INVALID, "unknown field %.60s: did you mean %s?", key, nearest);
    return error_set(err, INSPAN_INVALID, "unknown field %.60s", key);
}

void job_defaults(job_config_t *job)
{
    memset(job, 0, sizeof *job);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].initial != NULL) set_field(job, &fields[i], fields[i].initial, NULL);
}

/* ---- The flat text --------------------------------------------------------------------------- */

static int format_value(const job_config_t *job, const job_field_t *field, char *text, size_t size)
{
    const void *from = (const char *)job + field->offset;
    uint64_t number = 0;
    uint32_t small = 0;
    double real = 0;
    switch (field->type) {
    case JOB_STRING:
    case JOB_CHOICE: return snprintf(text, size, "%s=%s\n", field->key, (const char *)from);
    case JOB_U32:
        memcpy(&small, from, sizeof small);
        return snprintf(text, size, "%s=%" PRIu32 "\n", field->key, small);
    case JOB_REAL:
        memcpy(&real, from, sizeof real);
        return snprintf(text, size, "%s=%.17g\n", field->key, real);
    case JOB_DURATION:
    case JOB_U64:
    case JOB_SIZE: break;
    }
    memcpy(&number, from, sizeof number);
    if (field->choices != NULL && number == 0)
        return snprintf(text, size, "%s=%s\n", field->key, field->choices);
    return snprintf(text, size, "%s=%" PRIu64 "%s\n", field->key, number,
                    field->type == JOB_DURATION ? "ns" : "");
}

inspan_status_t job_format(const job_config_t *job, char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < N_FIELDS; i++) {
        int n = format_value(job, &fields[i], text + used, size - used);
        if (n < 0 || (size_t)n >= size - used) return INSPAN_LIMIT;
        used += (size_t)n;
    }
    return INSPAN_OK;
}

inspan_status_t job_parse(const char *text, job_config_t *job, inspan_error_t *err)
{
    char line[KEY_MAX + JOB_TEXT_MAX + 2];
    unsigned number = 0;
    job_defaults(job);
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        number++;
        if (length >= sizeof line)
            return error_set(err, INSPAN_INVALID, "line %u is %zu bytes long", number, length);
        memcpy(line, at, length);
        line[length] = '\0';
        at += length + (at[length] == '\n');
        if (length == 0) continue;
        char *equals = strchr(line, '=');
        if (equals == NULL) return error_set(err, INSPAN_INVALID, "line %u: expected key=value", number);
        *equals = '\0';
        /* An empty text is what a field without a value holds; only job_validate may find it missing. */
        if (equals[1] == '\0' && strcmp(line, "data.path") == 0) continue;
        inspan_status_t status = job_set(job, line, equals + 1, err);
        if (status != INSPAN_OK) {
            error_prefix(err, "line %u", number);
            return status;
        }
    }
    return INSPAN_OK;
}

/* ---- What no single field shows -------------------------------------------------------------- */

typedef struct later {
    size_t offset;
    const char *built; /* choices that this version has */
    const char *key;
} later_t;

/* Choices that the format fixes already and this version does not have. */
static inspan_status_t check_built(const job_config_t *job, inspan_error_t *err)
{
    static const later_t later[] = {
        {AT(sync.mode), "exact|local|auto", "sync.mode"},
        {AT(sync.backend), "auto|native|gloo", "sync.backend"},
        {AT(sync.exactness), "exact|close", "sync.exactness"},
    };
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        const char *value = (const char *)job + later[i].offset;
        if (!is_choice(later[i].built, value))
            return error_set(err, INSPAN_UNSUPPORTED, "%s: %s is not in this version; it has %s",
                             later[i].key, value, later[i].built);
    }
    if (job->nodes.labels[0] != '\0')
        return error_set(err, INSPAN_UNSUPPORTED,
                         "nodes.labels: choosing nodes by label is not in this version");
    if (job->nodes.gpu[0] != '\0' && strcmp(job->nodes.gpu, "none") != 0)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "nodes.gpu: native training on a GPU is not in this version");
    return INSPAN_OK;
}

static inspan_status_t check_model(const job_config_t *job, inspan_error_t *err)
{
    bool text = strcmp(job->data.kind, "text") == 0;
    if (strcmp(job->model.kind, "gpt") == 0) {
        if (!text)
            return error_set(err, INSPAN_INVALID, "model.kind gpt needs data.kind text, found %s",
                             job->data.kind);
        if (job->model.dim % job->model.heads != 0)
            return error_set(err, INSPAN_INVALID, "model.dim %u cannot be divided by model.heads %u",
                             job->model.dim, job->model.heads);
    } else if (text) {
        return error_set(err, INSPAN_INVALID, "model.kind %s needs data.kind idx or csv, found text",
                         job->model.kind);
    }
    if (strcmp(job->model.kind, "conv") == 0 && strcmp(job->data.kind, "idx") != 0)
        return error_set(err, INSPAN_INVALID, "model.kind conv needs images: data.kind idx, found %s",
                         job->data.kind);
    if (strcmp(job->data.kind, "idx") == 0 && job->data.labels[0] == '\0')
        return error_set(err, INSPAN_INVALID, "data.kind idx needs data.labels, the file of labels");
    return INSPAN_OK;
}

static nn_dtype_t dtype_of(const job_config_t *job)
{
    return strcmp(job->train.dtype, "fp64") == 0 ? NN_FP64 : NN_FP32;
}

inspan_wire_t job_wire(const job_config_t *job)
{
    if (strcmp(job->sync.wire, "auto") == 0) return job_wires(job) != 0 ? INSPAN_WIRE_BF16 : INSPAN_WIRE_FP32;
    int wire = INSPAN_WIRES - 1; /* it is one of them */
    while (wire > 0 && strcmp(inspan_wire_name((inspan_wire_t)wire), job->sync.wire) != 0) wire--;
    return (inspan_wire_t)wire;
}

uint32_t job_wires(const job_config_t *job)
{
    const bool open = strcmp(job->sync.wire, "auto") == 0 && strcmp(job->sync.exactness, "exact") != 0;
    return open && dtype_of(job) == NN_FP32
               ? 1u << INSPAN_WIRE_FP32 | 1u << INSPAN_WIRE_BF16 | 1u << INSPAN_WIRE_INT8
               : 0;
}

bool job_is_local(const job_config_t *job)
{
    return strcmp(job->sync.mode, "local") == 0;
}

inspan_status_t job_validate(const job_config_t *job, inspan_error_t *err)
{
    if (job->data.path[0] == '\0')
        return error_set(err, INSPAN_INVALID, "data.path is missing: name the file to learn from");
    inspan_status_t status = check_model(job, err);
    if (status == INSPAN_OK) status = check_built(job, err);
    if (status != INSPAN_OK) return status;
    if (job->nodes.min > job->nodes.max)
        return error_set(err, INSPAN_INVALID, "nodes.min %u is more than nodes.max %u", job->nodes.min,
                         job->nodes.max);
    if (job->train.min_lr > job->train.lr)
        return error_set(err, INSPAN_INVALID, "train.min_lr %g is more than train.lr %g", job->train.min_lr,
                         job->train.lr);
    if (job_is_local(job) && job->sync.local_batch > job->train.global_batch)
        return error_set(err, INSPAN_INVALID,
                         "sync.local_batch %" PRIu64 " is more than train.global_batch %" PRIu64
                         ", the samples of a step of all nodes",
                         job->sync.local_batch, job->train.global_batch);
    if (job_wire(job) != INSPAN_WIRE_FP32 && dtype_of(job) != NN_FP32)
        return error_set(err, INSPAN_INVALID, "sync.wire %s needs train.dtype fp32, found %s", job->sync.wire,
                         job->train.dtype);
    if (job_wire(job) != INSPAN_WIRE_FP32 && strcmp(job->sync.backend, "gloo") == 0)
        return error_set(err, INSPAN_INVALID,
                         "sync.backend gloo sends gradients as they are: sync.wire must be fp32 or auto with "
                         "sync.exactness exact, or take sync.backend native");
    uint64_t bucket = 0;
    return job_bucket_bytes(job, &bucket, err);
}

inspan_status_t job_bucket_bytes(const job_config_t *job, uint64_t *bytes, inspan_error_t *err)
{
    *bytes = 0;
    if (strcmp(job->sync.bucket, "auto") == 0) return INSPAN_OK;
    if (units_parse_size(job->sync.bucket, bytes) != INSPAN_OK || *bytes < 1024)
        return error_set(err, INSPAN_INVALID,
                         "sync.bucket: expected auto or a size of 1K or more, found '%s'", job->sync.bucket);
    return INSPAN_OK;
}

/* ---- Configs of the parts -------------------------------------------------------------------- */

void job_model_config(const job_config_t *job, nn_model_config_t *model)
{
    memset(model, 0, sizeof *model);
    model->kind = NN_GPT;
    if (strcmp(job->model.kind, "mlp") == 0) model->kind = NN_MLP;
    if (strcmp(job->model.kind, "conv") == 0) model->kind = NN_CONV;
    model->dtype = dtype_of(job);
    model->seed = job->train.seed;
    model->layers = job->model.layers;
    model->heads = job->model.heads;
    model->dim = job->model.dim;
    model->context = job->model.context;
    model->filters = job->model.filters;
}

void job_data_config(const job_config_t *job, nn_data_config_t *data)
{
    memset(data, 0, sizeof *data);
    data->kind = NN_DATA_TEXT;
    if (strcmp(job->data.kind, "idx") == 0) data->kind = NN_DATA_IDX;
    if (strcmp(job->data.kind, "csv") == 0) data->kind = NN_DATA_CSV;
    data->path = job->data.path;
    data->labels = job->data.labels[0] != '\0' ? job->data.labels : NULL;
    data->validation = job->data.validation;
    data->context = job->model.context;
    data->seed = job->train.seed;
    data->dtype = dtype_of(job);
}

void job_optimizer_config(const job_config_t *job, nn_optimizer_config_t *optimizer)
{
    memset(optimizer, 0, sizeof *optimizer);
    optimizer->kind = strcmp(job->train.optimizer, "sgd") == 0 ? NN_SGD : NN_ADAMW;
    optimizer->lr = job->train.lr;
    optimizer->min_lr = job->train.min_lr;
    optimizer->momentum = job->train.momentum;
    optimizer->beta1 = job->train.beta1;
    optimizer->beta2 = job->train.beta2;
    optimizer->eps = job->train.eps;
    optimizer->weight_decay = job->train.weight_decay;
    optimizer->clip = job->train.clip;
    optimizer->steps = job->train.steps;
    optimizer->warmup = job->train.warmup;
}

/* Rows that keep the matrix products efficient; a GPT's rows are tokens. */
uint32_t job_micro_batch(const job_config_t *job, uint64_t largest_share)
{
    uint64_t wanted = job->train.micro_batch;
    if (wanted == 0) {
        if (strcmp(job->model.kind, "gpt") == 0)
            wanted = job->model.context >= 2048 ? 1 : 2048 / job->model.context;
        else
            wanted = strcmp(job->model.kind, "mlp") == 0 ? 256 : 32;
        if (wanted > 256) wanted = 256;
    }
    if (largest_share < 1) largest_share = 1;
    return (uint32_t)(wanted < largest_share ? wanted : largest_share);
}
