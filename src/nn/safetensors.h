/*
 * safetensors files, format 1, as the public format description has it:
 *
 *   OFFSET SIZE MEANING                          all integers little-endian
 *        0    8 n: length of the header (the format allows 100 MB; 16 MB are taken here)
 *        8    n header: one JSON object in UTF-8 that starts with '{', padded with spaces; per tensor
 *               "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, and, if wanted,
 *               "__metadata__": {"key": "text", ...}
 *      8+n    . data: the tensors in some order, row-major, without holes or overlaps, to the end of the file
 *
 * A header is checked whole before anything is loaded: so a file is either right or refused, never half used.
 */
#ifndef NN_SAFETENSORS_H
#define NN_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

/* Parsed, a hostile header takes some twenty times its length; 16 MB are the names of 100,000 tensors. */
#define SAFETENSORS_HEADER_MAX  (16u * 1000 * 1000)
#define SAFETENSORS_TENSORS_MAX 1000000u
#define SAFETENSORS_DIMS_MAX    8

typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_OTHER /* integers, booleans, 8-bit reals: checked, not loaded */
} safetensors_dtype_t;

typedef struct safetensors_entry {
    const char *name; /* owned by the header */
    safetensors_dtype_t dtype;
    const char *dtype_name;
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t count;        /* elements */
    uint64_t begin, bytes; /* from the start of the data */
} safetensors_entry_t;

typedef struct safetensors_header safetensors_header_t;

/*
 * Check the header text (bytes long) against data_bytes of data behind it. CORRUPT (the text says where,
 * expected and found; the caller puts the file's name before it), NO_MEMORY.
 */
inspan_status_t safetensors_header_parse(const char *text, size_t bytes, uint64_t data_bytes,
                                         safetensors_header_t **header, inspan_error_t *err);
void safetensors_header_free(safetensors_header_t *header);

/* Sorted by name; NULL where there is none of that name. */
const safetensors_entry_t *safetensors_find(const safetensors_header_t *header, const char *name);
const safetensors_entry_t *safetensors_entries(const safetensors_header_t *header, size_t *n);

#endif
