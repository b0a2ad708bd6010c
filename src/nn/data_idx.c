/*
 * IDX files (MNIST's format; LeCun, Cortes, Burges 1998), unsigned bytes:
 *
 *   OFFSET SIZE MEANING                    all integers big-endian
 *        0    2 zero
 *        2    1 type: 8 is unsigned bytes
 *        3    1 d: number of dimensions (images 2 to 4, labels 1)
 *        4   4d extents: samples; then inputs, or height, width, or channels, height, width
 *     4+4d    . the numbers, row-major, to the end of the file
 */
#include <stdlib.h>

#include "base/error.h"
#include "nn/data_internal.h"
#include "platform/os/os_file.h"

enum { IDX_UNSIGNED_BYTE = 8, IDX_DIMS_MAX = 4 };

typedef struct idx {
    uint32_t n_dims;
    uint64_t extents[IDX_DIMS_MAX];
    const uint8_t *numbers;
} idx_t;

static uint64_t big_endian(const uint8_t *at)
{
    return (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

static const char *type_name(uint8_t type)
{
    switch (type) {
    case 0x08: return "unsigned bytes";
    case 0x09: return "signed bytes";
    case 0x0b: return "16-bit integers";
    case 0x0c: return "32-bit integers";
    case 0x0d: return "32-bit reals";
    case 0x0e: return "64-bit reals";
    default: return NULL;
    }
}

static inspan_status_t check_magic(const char *path, const uint8_t *bytes, size_t n, inspan_error_t *err)
{
    if (n == 0) return error_set(err, INSPAN_INVALID, "%s is empty", path);
    if (n >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b)
        return error_set(err, INSPAN_UNSUPPORTED, "%s is compressed with gzip: unpack it first (gunzip %s)",
                         path, path);
    if (n < 4)
        return error_set(err, INSPAN_CORRUPT, "%s: %zu bytes long, an IDX file has at least 8", path, n);
    if (bytes[0] != 0 || bytes[1] != 0 || type_name(bytes[2]) == NULL)
        return error_set(err, INSPAN_CORRUPT, "%s is not an IDX file: it starts with %02x %02x %02x %02x",
                         path, bytes[0], bytes[1], bytes[2], bytes[3]);
    if (bytes[2] != IDX_UNSIGNED_BYTE)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "%s holds %s: IDX files of unsigned bytes alone can be read", path,
                         type_name(bytes[2]));
    return INSPAN_OK;
}

static inspan_status_t parse_idx(const char *path, const char *file, size_t n, uint32_t least, uint32_t most,
                                 idx_t *idx, inspan_error_t *err)
{
    const uint8_t *bytes = (const uint8_t *)file;
    inspan_status_t status = check_magic(path, bytes, n, err);
    if (status != INSPAN_OK) return status;
    idx->n_dims = bytes[3];
    if (idx->n_dims < least || idx->n_dims > most)
        return error_set(err, INSPAN_CORRUPT, "%s has %u dimensions, %s: are images and labels swapped?",
                         path, idx->n_dims, most == 1 ? "labels have 1" : "images have 2 to 4");
    uint64_t header = 4 + 4 * (uint64_t)idx->n_dims, numbers = 1;
    if (n < header)
        return error_set(err, INSPAN_CORRUPT, "%s: %zu bytes long, its header alone has %llu (truncated?)",
                         path, n, (unsigned long long)header);
    for (uint32_t i = 0; i < idx->n_dims; i++) {
        idx->extents[i] = big_endian(bytes + 4 + 4 * i);
        if (__builtin_mul_overflow(numbers, idx->extents[i], &numbers))
            return error_set(err, INSPAN_CORRUPT, "%s: its extents pass 2^64 numbers", path);
    }
    if (numbers != n - header)
        return error_set(err, INSPAN_CORRUPT, "%s: its header promises %llu numbers, the file has %llu (%s)",
                         path, (unsigned long long)numbers, (unsigned long long)(n - header),
                         numbers > n - header ? "truncated?" : "bytes too many");
    if (numbers == 0) return error_set(err, INSPAN_INVALID, "%s holds no samples", path);
    idx->numbers = bytes + header;
    return INSPAN_OK;
}

static inspan_status_t read_images(const char *path, data_content_t *content, inspan_error_t *err)
{
    size_t bytes = 0;
    idx_t idx = {0};
    inspan_status_t status = os_file_read(path, DATA_FILE_MAX, &content->file, &bytes, err);
    if (status == INSPAN_OK) status = parse_idx(path, content->file, bytes, 2, 4, &idx, err);
    if (status != INSPAN_OK) return status;
    uint64_t inputs = 1;
    for (uint32_t i = 1; i < idx.n_dims; i++) inputs *= idx.extents[i]; /* at most the file's length */
    if (inputs > UINT32_MAX)
        return error_set(err, INSPAN_INVALID, "%s: a sample has 2^32 numbers or more", path);
    content->rows = idx.extents[0];
    content->inputs = (uint32_t)inputs;
    content->channels = idx.n_dims == 4 ? (uint32_t)idx.extents[1] : 1;
    content->height = idx.n_dims > 2 ? (uint32_t)idx.extents[idx.n_dims - 2] : 1;
    content->width = (uint32_t)idx.extents[idx.n_dims - 1];
    content->pixels = (uint8_t *)content->file + (idx.numbers - (const uint8_t *)content->file);
    return INSPAN_OK;
}

static inspan_status_t read_labels(const nn_data_config_t *config, data_content_t *content,
                                   inspan_error_t *err)
{
    char *file = NULL;
    size_t bytes = 0;
    idx_t idx = {0};
    inspan_status_t status = os_file_read(config->labels, DATA_FILE_MAX, &file, &bytes, err);
    if (status == INSPAN_OK) status = parse_idx(config->labels, file, bytes, 1, 1, &idx, err);
    if (status == INSPAN_OK && idx.extents[0] != content->rows)
        status =
            error_set(err, INSPAN_CORRUPT, "%s has %llu labels, %s has %llu images", config->labels,
                      (unsigned long long)idx.extents[0], config->path, (unsigned long long)content->rows);
    if (status == INSPAN_OK) {
        content->labels = malloc(content->rows * sizeof *content->labels);
        if (content->labels == NULL)
            status = error_set(err, INSPAN_NO_MEMORY, "no memory for %s", config->labels);
    }
    for (uint64_t i = 0; status == INSPAN_OK && i < content->rows; i++) {
        content->labels[i] = idx.numbers[i];
        if (content->labels[i] >= content->classes) content->classes = content->labels[i] + 1;
    }
    free(file);
    if (status == INSPAN_OK && content->classes < 2)
        return error_set(err, INSPAN_INVALID, "%s holds one label alone: nothing to tell apart",
                         config->labels);
    return status;
}

inspan_status_t data_read_idx(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err)
{
    inspan_status_t status = read_images(config->path, content, err);
    return status != INSPAN_OK ? status : read_labels(config, content, err);
}
