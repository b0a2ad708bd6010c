/*
 * Data sets behind nn_data_*: a format fills a table of rows or a text, the order of samples is common to
 * all.
 */
#ifndef NN_DATA_INTERNAL_H
#define NN_DATA_INTERNAL_H

#include "nn/nn.h"

#define DATA_FILE_MAX    ((size_t)16 << 30) /* files are held in memory */
#define DATA_CLASSES_MAX 65536u

/* What a format reads. Texts have bytes alone; tables have either pixels or features, and labels. */
typedef struct data_content {
    uint8_t *bytes; /* text: (n_bytes) */
    uint64_t n_bytes;
    uint64_t rows;
    uint32_t inputs, classes, channels, height, width;
    uint8_t *pixels;  /* idx: (rows, inputs), a part of file */
    void *features;   /* csv: (rows, inputs) in the data's dtype */
    uint32_t *labels; /* (rows) */
    char *file;       /* the memory that bytes or pixels lie in */
} data_content_t;

/* Fill content (all zero before); what was filled is freed by data_content_free, on failure too. */
inspan_status_t data_read_text(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err);
inspan_status_t data_read_idx(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err);
inspan_status_t data_read_csv(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err);
void data_content_free(data_content_t *content);

/*
 * Place i < n of pass `pass` in a permutation of [0, n) that seed and pass fix: a Feistel network on the next
 * power of four, walked until it falls below n (Black, Rogaway 2002). Needs no memory and no order of calls.
 */
uint64_t data_permute(uint64_t seed, uint64_t pass, uint64_t n, uint64_t i);

#endif
