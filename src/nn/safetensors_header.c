#include "nn/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/json/json.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53: whole numbers of JSON are exact up to here */

struct safetensors_header {
    json_t *json;
    size_t n;
    safetensors_entry_t *entries; /* (n), sorted by name */
};

typedef struct dtype_row {
    const char *name;
    uint32_t bytes;
    safetensors_dtype_t dtype;
} dtype_row_t;

static const dtype_row_t dtypes[] = {
    {"F32", 4, SAFETENSORS_F32},    {"F64", 8, SAFETENSORS_F64},       {"F16", 2, SAFETENSORS_F16},
    {"BF16", 2, SAFETENSORS_BF16},  {"I64", 8, SAFETENSORS_OTHER},     {"I32", 4, SAFETENSORS_OTHER},
    {"I16", 2, SAFETENSORS_OTHER},  {"I8", 1, SAFETENSORS_OTHER},      {"U64", 8, SAFETENSORS_OTHER},
    {"U32", 4, SAFETENSORS_OTHER},  {"U16", 2, SAFETENSORS_OTHER},     {"U8", 1, SAFETENSORS_OTHER},
    {"BOOL", 1, SAFETENSORS_OTHER}, {"F8_E5M2", 1, SAFETENSORS_OTHER}, {"F8_E4M3", 1, SAFETENSORS_OTHER},
};

/* A JSON number that is a whole one in [0, 2^53]. */
static bool get_whole(const json_t *value, uint64_t *number)
{
    double real = json_number(value, -1);
    if (!json_is_number(value) || !(real >= 0 && real <= EXACT_MAX) || real != floor(real)) return false;
    *number = (uint64_t)real;
    return true;
}

static inspan_status_t wrong(inspan_error_t *err, const char *name, const char *what)
{
    return error_set(err, INSPAN_CORRUPT, "tensor \"%.80s\": %s", name, what);
}

static inspan_status_t read_dtype(const json_t *value, safetensors_entry_t *entry, uint64_t *size,
                                  inspan_error_t *err)
{
    const char *name = json_string(value);
    if (name == NULL) return wrong(err, entry->name, "dtype is missing or not a text");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        entry->dtype = dtypes[i].dtype;
        entry->dtype_name = dtypes[i].name;
        *size = dtypes[i].bytes;
        return INSPAN_OK;
    }
    return error_set(err, INSPAN_CORRUPT, "tensor \"%.80s\": unknown dtype \"%.20s\"", entry->name, name);
}

/* The shape, and the bytes that it asks for. */
static inspan_status_t read_shape(const json_t *value, safetensors_entry_t *entry, uint64_t size,
                                  inspan_error_t *err)
{
    if (!json_is_array(value)) return wrong(err, entry->name, "shape is missing or not a list");
    entry->count = 1;
    for (const json_t *item = json_first(value); item != NULL; item = json_next(item)) {
        uint64_t extent = 0;
        if (!get_whole(item, &extent))
            return wrong(err, entry->name, "shape holds something else than whole numbers");
        if (entry->n_dims == SAFETENSORS_DIMS_MAX)
            return wrong(err, entry->name, "shape has more than 8 dimensions");
        entry->shape[entry->n_dims++] = extent;
        if (__builtin_mul_overflow(entry->count, extent, &entry->count))
            return wrong(err, entry->name, "shape passes 2^64 elements");
    }
    if (__builtin_mul_overflow(entry->count, size, &entry->bytes))
        return wrong(err, entry->name, "shape passes 2^64 bytes");
    return INSPAN_OK;
}

static inspan_status_t read_offsets(const json_t *value, safetensors_entry_t *entry, uint64_t data_bytes,
                                    inspan_error_t *err)
{
    const json_t *first = json_is_array(value) ? json_first(value) : NULL;
    const json_t *second = first != NULL ? json_next(first) : NULL;
    uint64_t end = 0;
    if (second == NULL || json_next(second) != NULL || !get_whole(first, &entry->begin) ||
        !get_whole(second, &end))
        return wrong(err, entry->name, "data_offsets is not a list of two whole numbers");
    if (entry->begin > end)
        return error_set(err, INSPAN_CORRUPT,
                         "tensor \"%.80s\": data_offsets end at %" PRIu64 " before they begin at %" PRIu64,
                         entry->name, end, entry->begin);
    if (end > data_bytes)
        return error_set(err, INSPAN_CORRUPT,
                         "tensor \"%.80s\": its data end at byte %" PRIu64 ", the file has %" PRIu64
                         " bytes of data (truncated?)",
                         entry->name, end, data_bytes);
    if (end - entry->begin != entry->bytes)
        return error_set(err, INSPAN_CORRUPT,
                         "tensor \"%.80s\": shape and dtype need %" PRIu64
                         " bytes, data_offsets have %" PRIu64,
                         entry->name, entry->bytes, end - entry->begin);
    return INSPAN_OK;
}

static inspan_status_t read_entry(const json_t *value, uint64_t data_bytes, safetensors_entry_t *entry,
                                  inspan_error_t *err)
{
    uint64_t size = 0;
    entry->name = json_key(value);
    if (!json_is_object(value)) return wrong(err, entry->name, "not an object");
    for (const json_t *field = json_first(value); field != NULL; field = json_next(field)) {
        const char *key = json_key(field);
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return error_set(err, INSPAN_CORRUPT, "tensor \"%.80s\": unknown field \"%.40s\"", entry->name,
                             key);
        for (const json_t *later = json_next(field); later != NULL; later = json_next(later))
            if (strcmp(json_key(later), key) == 0)
                return error_set(err, INSPAN_CORRUPT, "tensor \"%.80s\": %s is there twice", entry->name,
                                 key);
    }
    inspan_status_t status = read_dtype(json_get(value, "dtype"), entry, &size, err);
    if (status == INSPAN_OK) status = read_shape(json_get(value, "shape"), entry, size, err);
    if (status == INSPAN_OK) status = read_offsets(json_get(value, "data_offsets"), entry, data_bytes, err);
    return status;
}

static inspan_status_t check_metadata(const json_t *value, inspan_error_t *err)
{
    if (!json_is_object(value)) return error_set(err, INSPAN_CORRUPT, "__metadata__ is not an object");
    for (const json_t *item = json_first(value); item != NULL; item = json_next(item))
        if (json_string(item) == NULL)
            return error_set(err, INSPAN_CORRUPT, "__metadata__: \"%.80s\" is not a text", json_key(item));
    return INSPAN_OK;
}

static int by_place(const void *a, const void *b)
{
    const safetensors_entry_t *left = a, *right = b;
    if (left->begin != right->begin) return left->begin < right->begin ? -1 : 1;
    return left->bytes < right->bytes ? -1 : left->bytes > right->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_entry_t *)a)->name, ((const safetensors_entry_t *)b)->name);
}

/* Each byte of the data belongs to one tensor: no overlap, no hole, nothing behind the last. */
static inspan_status_t check_places(safetensors_header_t *header, uint64_t data_bytes, inspan_error_t *err)
{
    uint64_t expected = 0;
    if (header->n > 0) qsort(header->entries, header->n, sizeof *header->entries, by_place);
    for (size_t i = 0; i < header->n; i++) {
        const safetensors_entry_t *entry = &header->entries[i];
        if (entry->begin != expected)
            return error_set(err, INSPAN_CORRUPT,
                             "tensor \"%.80s\": its data begin at byte %" PRIu64 ", expected %" PRIu64
                             " (%s)",
                             entry->name, entry->begin, expected,
                             entry->begin < expected ? "tensors overlap" : "a hole between tensors");
        expected += entry->bytes;
    }
    if (expected != data_bytes)
        return error_set(err, INSPAN_CORRUPT,
                         "the tensors need %" PRIu64 " bytes of data, the file has %" PRIu64
                         " (bytes too many)",
                         expected, data_bytes);
    return INSPAN_OK;
}

static inspan_status_t check_names(safetensors_header_t *header, inspan_error_t *err)
{
    if (header->n > 0) qsort(header->entries, header->n, sizeof *header->entries, by_name);
    for (size_t i = 1; i < header->n; i++)
        if (strcmp(header->entries[i - 1].name, header->entries[i].name) == 0)
            return wrong(err, header->entries[i].name, "is there twice");
    return INSPAN_OK;
}

static inspan_status_t read_entries(safetensors_header_t *header, uint64_t data_bytes, inspan_error_t *err)
{
    size_t members = 0, metadata = 0;
    if (!json_is_object(header->json))
        return error_set(err, INSPAN_CORRUPT, "the header is not a JSON object");
    for (const json_t *item = json_first(header->json); item != NULL; item = json_next(item)) members++;
    if (members > SAFETENSORS_TENSORS_MAX)
        return error_set(err, INSPAN_CORRUPT, "the header has %zu tensors, at most %u are allowed", members,
                         SAFETENSORS_TENSORS_MAX);
    header->entries = calloc(members + 1, sizeof *header->entries);
    if (header->entries == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %zu tensors' names", members);
    for (const json_t *item = json_first(header->json); item != NULL; item = json_next(item)) {
        inspan_status_t status = INSPAN_OK;
        if (strcmp(json_key(item), "__metadata__") == 0) {
            if (metadata++ > 0) return error_set(err, INSPAN_CORRUPT, "__metadata__ is there twice");
            status = check_metadata(item, err);
        } else {
            status = read_entry(item, data_bytes, &header->entries[header->n++], err);
        }
        if (status != INSPAN_OK) return status;
    }
    return INSPAN_OK;
}

inspan_status_t safetensors_header_parse(const char *text, size_t bytes, uint64_t data_bytes,
                                         safetensors_header_t **out, inspan_error_t *err)
{
    if (bytes == 0 || text[0] != '{')
        return error_set(err, INSPAN_CORRUPT, "the header does not start with '{'");
    safetensors_header_t *header = calloc(1, sizeof *header);
    if (header == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a header");
    inspan_status_t status = json_parse(text, bytes, &header->json, err);
    if (status == INSPAN_OK) status = read_entries(header, data_bytes, err);
    if (status == INSPAN_OK) status = check_places(header, data_bytes, err);
    if (status == INSPAN_OK) status = check_names(header, err);
    if (status != INSPAN_OK) {
        safetensors_header_free(header);
        return status;
    }
    *out = header;
    return INSPAN_OK;
}

void safetensors_header_free(safetensors_header_t *header)
{
    if (header == NULL) return;
    json_free(header->json);
    free(header->entries);
    free(header);
}

const safetensors_entry_t *safetensors_find(const safetensors_header_t *header, const char *name)
{
    safetensors_entry_t key = {.name = name};
    if (header->n == 0) return NULL;
    return bsearch(&key, header->entries, header->n, sizeof key, by_name);
}

const safetensors_entry_t *safetensors_entries(const safetensors_header_t *header, size_t *n)
{
    *n = header->n;
    return header->entries;
}
