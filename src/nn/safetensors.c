#include "nn/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/half.h"
#include "nn/nn.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"

#define LENGTH_BYTES 8
#define ALIGNMENT    8 /* of the data's start, as other writers have it */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");
_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "F32 and F64");

/* ---- Writing --------------------------------------------------------------------------------- */

static json_t *describe(const nn_param_t *tensor, nn_dtype_t dtype, uint64_t begin, uint64_t bytes)
{
    json_t *entry = json_object(), *shape = json_array(), *offsets = json_array();
    for (uint32_t i = 0; i < tensor->n_dims; i++) json_append_number(shape, (double)tensor->shape[i]);
    json_append_number(offsets, (double)begin);
    json_append_number(offsets, (double)(begin + bytes));
    json_set_string(entry, "dtype", dtype == NN_FP64 ? "F64" : "F32");
    json_set(entry, "shape", shape);
    json_set(entry, "data_offsets", offsets);
    return entry;
}

/* The header as text; the caller frees. NULL: no memory. */
static char *make_header(const nn_param_t *tensors, uint32_t n, nn_dtype_t dtype, const char *const *metadata,
                         uint32_t n_metadata)
{
    uint64_t at = 0;
    json_t *header = json_object();
    if (n_metadata > 0) {
        json_t *pairs = json_object();
        for (uint32_t i = 0; i < n_metadata; i++)
            json_set_string(pairs, metadata[2 * i], metadata[2 * i + 1]);
        json_set(header, "__metadata__", pairs);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = tensors[i].count * (dtype == NN_FP64 ? 8 : 4);
        json_set(header, tensors[i].name, describe(&tensors[i], dtype, at, bytes));
        at += bytes;
    }
    char *text = json_print(header, false);
    json_free(header);
    return text;
}

inspan_status_t nn_safetensors_write(const char *path, const nn_param_t *tensors, uint32_t n,
                                     nn_dtype_t dtype, const char *const *metadata, uint32_t n_metadata,
                                     inspan_error_t *err)
{
    char *header = make_header(tensors, n, dtype, metadata, n_metadata);
    if (header == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to write %s", path);
    os_file_writer_t *writer = NULL;
    inspan_status_t status = os_file_writer_open(path, 0644, &writer, err);
    if (status != INSPAN_OK) {
        free(header);
        return status;
    }
    uint64_t length = strlen(header), padding = (ALIGNMENT - length % ALIGNMENT) % ALIGNMENT;
    uint64_t padded = length + padding;
    status = os_file_writer_add(writer, &padded, LENGTH_BYTES, err);
    if (status == INSPAN_OK) status = os_file_writer_add(writer, header, length, err);
    if (status == INSPAN_OK) status = os_file_writer_add(writer, "        ", padding, err);
    for (uint32_t i = 0; i < n && status == INSPAN_OK; i++)
        status = os_file_writer_add(writer, tensors[i].weights, tensors[i].count * (dtype == NN_FP64 ? 8 : 4),
                                    err);
    free(header);
    if (status == INSPAN_OK) return os_file_writer_commit(writer, err);
    os_file_writer_abandon(writer);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    int fd;
    uint64_t size, data_start;
    safetensors_header_t *header;
} reader_t;

static inspan_status_t read_at(const reader_t *reader, uint64_t offset, void *to, uint64_t bytes,
                               inspan_error_t *err)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(reader->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_errno(err, INSPAN_IO, "cannot read %s", reader->path);
        if (got == 0)
            return error_set(err, INSPAN_CORRUPT,
                             "%s became shorter while it was read: nothing at byte %" PRIu64, reader->path,
                             offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return INSPAN_OK;
}

static inspan_status_t open_file(reader_t *reader, inspan_error_t *err)
{
    struct stat info;
    reader->fd = open(reader->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe must not hold us */
    if (reader->fd < 0) {
        inspan_status_t status = errno == ENOENT || errno == ENOTDIR ? INSPAN_NOT_FOUND : INSPAN_IO;
        return error_set_errno(err, status, "cannot read %s", reader->path);
    }
    if (fstat(reader->fd, &info) != 0) return error_set_errno(err, INSPAN_IO, "cannot read %s", reader->path);
    if (!S_ISREG(info.st_mode)) return error_set(err, INSPAN_IO, "%s is not a file", reader->path);
    reader->size = (uint64_t)info.st_size;
    return INSPAN_OK;
}

static inspan_status_t read_header(reader_t *reader, inspan_error_t *err)
{
    uint64_t length = 0;
    if (reader->size < LENGTH_BYTES)
        return error_set(err, INSPAN_CORRUPT,
                         "%s: %" PRIu64 " bytes long, a safetensors file has at least 10", reader->path,
                         reader->size);
    inspan_status_t status = read_at(reader, 0, &length, LENGTH_BYTES, err);
    if (status != INSPAN_OK) return status;
    if (length > SAFETENSORS_HEADER_MAX)
        return error_set(err, INSPAN_CORRUPT,
                         "%s: its header claims %" PRIu64
                         " bytes, at most %u are allowed (not a safetensors file?)",
                         reader->path, length, SAFETENSORS_HEADER_MAX);
    if (length > reader->size - LENGTH_BYTES)
        return error_set(err, INSPAN_CORRUPT,
                         "%s: its header claims %" PRIu64 " bytes, the file has %" PRIu64
                         " in all (truncated?)",
                         reader->path, length, reader->size);
    char *text = malloc(length + 1);
    if (text == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the header of %s", reader->path);
    text[length] = '\0';
    status = read_at(reader, LENGTH_BYTES, text, length, err);
    reader->data_start = LENGTH_BYTES + length;
    if (status == INSPAN_OK) {
        status =
            safetensors_header_parse(text, length, reader->size - reader->data_start, &reader->header, err);
        if (status != INSPAN_OK) error_prefix(err, "%s", reader->path);
    }
    free(text);
    return status;
}

static void shape_text(const uint64_t *shape, uint32_t n, char text[96])
{
    size_t used = (size_t)snprintf(text, 96, "(");
    for (uint32_t i = 0; i < n && used < 90; i++)
        used += (size_t)snprintf(text + used, 96 - used, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    if (used < 95) snprintf(text + used, 96 - used, ")");
}

/* Names may stand under Hugging Face's "transformer." where a file holds the model with its head. */
static const safetensors_entry_t *find(const reader_t *reader, const char *name)
{
    char prefixed[96];
    const safetensors_entry_t *entry = safetensors_find(reader->header, name);
    if (entry != NULL) return entry;
    snprintf(prefixed, sizeof prefixed, "transformer.%s", name);
    return safetensors_find(reader->header, prefixed);
}

static inspan_status_t check_tensor(const reader_t *reader, const nn_param_t *tensor, inspan_error_t *err)
{
    const safetensors_entry_t *entry = find(reader, tensor->name);
    if (entry == NULL)
        return error_set(err, INSPAN_NOT_FOUND, "%s has no tensor \"%s\"", reader->path, tensor->name);
    if (entry->dtype == SAFETENSORS_OTHER)
        return error_set(err, INSPAN_MISMATCH,
                         "%s: tensor \"%s\" is of dtype %s, expected F32, F64, F16 or BF16", reader->path,
                         tensor->name, entry->dtype_name);
    bool same = entry->n_dims == tensor->n_dims && entry->count == tensor->count;
    for (uint32_t i = 0; i < tensor->n_dims && same; i++) same = entry->shape[i] == tensor->shape[i];
    if (same) return INSPAN_OK;
    char expected[96], found[96];
    shape_text(tensor->shape, tensor->n_dims, expected);
    shape_text(entry->shape, entry->n_dims, found);
    return error_set(err, INSPAN_MISMATCH, "%s: tensor \"%s\" has shape %s, expected %s", reader->path,
                     tensor->name, found, expected);
}

static double element(const safetensors_entry_t *entry, const char *data, uint64_t i)
{
    float single;
    double real;
    uint16_t half;
    switch (entry->dtype) {
    case SAFETENSORS_F64: memcpy(&real, data + 8 * i, 8); return real;
    case SAFETENSORS_F32: memcpy(&single, data + 4 * i, 4); return (double)single;
    case SAFETENSORS_F16: memcpy(&half, data + 2 * i, 2); return (double)fp16_to_fp32(half);
    case SAFETENSORS_BF16: memcpy(&half, data + 2 * i, 2); return (double)bf16_to_fp32(half);
    case SAFETENSORS_OTHER: break;
    }
    return 0;
}

static void convert(const safetensors_entry_t *entry, const char *data, nn_dtype_t dtype, void *to)
{
    if (entry->dtype == (dtype == NN_FP64 ? SAFETENSORS_F64 : SAFETENSORS_F32)) {
        memcpy(to, data, entry->bytes);
        return;
    }
    for (uint64_t i = 0; i < entry->count; i++) {
        if (dtype == NN_FP64)
            ((double *)to)[i] = element(entry, data, i);
        else
            ((float *)to)[i] = (float)element(entry, data, i);
    }
}

/* Each is a part of the file, without overlaps: no sum of them overflows. */
static uint64_t bytes_of(const reader_t *reader, const nn_param_t *tensors, uint32_t n)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += find(reader, tensors[i].name)->bytes;
    return bytes;
}

/* All tensors into one staging area first, so that an error of the disk leaves the model as it was. */
static inspan_status_t load(const reader_t *reader, nn_param_t *into, uint32_t n, nn_dtype_t dtype,
                            inspan_error_t *err)
{
    const uint64_t bytes = bytes_of(reader, into, n);
    uint64_t at = 0;
    char *staging = malloc(bytes + 1);
    if (staging == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %" PRIu64 " bytes of %s", bytes, reader->path);
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i < n && status == INSPAN_OK; i++) {
        const safetensors_entry_t *entry = find(reader, into[i].name);
        status = read_at(reader, reader->data_start + entry->begin, staging + at, entry->bytes, err);
        at += entry->bytes;
    }
    at = 0;
    for (uint32_t i = 0; i < n && status == INSPAN_OK; i++) {
        const safetensors_entry_t *entry = find(reader, into[i].name);
        convert(entry, staging + at, dtype, into[i].weights);
        at += entry->bytes;
    }
    free(staging);
    return status;
}

static inspan_status_t open_checked(reader_t *reader, const nn_param_t *tensors, uint32_t n,
                                    inspan_error_t *err)
{
    inspan_status_t status = open_file(reader, err);
    if (status == INSPAN_OK) status = read_header(reader, err);
    for (uint32_t i = 0; i < n && status == INSPAN_OK; i++) status = check_tensor(reader, &tensors[i], err);
    return status;
}

static void close_reader(reader_t *reader)
{
    safetensors_header_free(reader->header);
    if (reader->fd >= 0) close(reader->fd);
}

inspan_status_t nn_safetensors_check(const char *path, const nn_param_t *tensors, uint32_t n, uint64_t *bytes,
                                     inspan_error_t *err)
{
    reader_t reader = {.path = path};
    inspan_status_t status = open_checked(&reader, tensors, n, err);
    if (status == INSPAN_OK) *bytes = bytes_of(&reader, tensors, n);
    close_reader(&reader);
    return status;
}

inspan_status_t nn_safetensors_read(const char *path, nn_param_t *into, uint32_t n, nn_dtype_t dtype,
                                    inspan_error_t *err)
{
    reader_t reader = {.path = path};
    inspan_status_t status = open_checked(&reader, into, n, err);
    if (status == INSPAN_OK) status = load(&reader, into, n, dtype, err);
    close_reader(&reader);
    return status;
}
