#include "ddp/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "ddp/fail.h"

/* One row a rank; a sum over ranks of tables that are zero but for the own row brings every row to every
 * rank. */
enum { ROW_PARAMS, ROW_DTYPE, ROW_ALL, ROW_LAYOUT, ROW_WORDS };
_Static_assert(ROW_WORDS == MANIFEST_WORDS, "a row");
#define TEXT_WORDS 20u /* a parameter's description, 8 bytes a word */

inspan_status_t manifest_gather(inspan_comm_t *comm, const uint64_t *row, uint64_t words, uint64_t *rows,
                                int64_t timeout_ns, inspan_error_t *err)
{
    uint32_t rank = inspan_comm_rank(comm), world = inspan_comm_world(comm);
    uint64_t *mine = calloc(world * words + 1, sizeof mine[0]); /* a model may have no parameters */
    if (mine == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory to compare the parameters of %u ranks", world);
    memcpy(mine + rank * words, row, words * sizeof row[0]);
    inspan_op_t *op = NULL;
    inspan_status_t status = inspan_allreduce(comm, mine, rows, world * words, INSPAN_INT64, INSPAN_SUM, &op);
    if (status == INSPAN_OK) status = ddp_wait(comm, op, timeout_ns);
    free(mine);
    return status == INSPAN_OK ? status : ddp_fail(comm, status, "comparing parameters among ranks", err);
}

static uint64_t parameter_hash(const inspan_parameter_t *parameter, size_t element_size, bool with_weights)
{
    uint64_t hash = hash64(parameter->name, strlen(parameter->name), parameter->n_dims);
    hash = hash64(parameter->shape, parameter->n_dims * sizeof parameter->shape[0], hash);
    if (!with_weights) return hash64(&parameter->count, sizeof parameter->count, hash);
    return hash64(parameter->weights, parameter->count * element_size, hash);
}

/* "h.0.ln_1.weight (128) bits 1a2b3c4d" */
static void describe(const inspan_parameter_t *parameter, uint64_t hash, uint64_t words[TEXT_WORDS])
{
    char text[TEXT_WORDS * 8] = {0};
    int used = snprintf(text, sizeof text, "%.80s (", parameter->name);
    for (uint32_t d = 0; d < parameter->n_dims && used < 130; d++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRIu64, d ? ", " : "",
                         parameter->shape[d]);
    snprintf(text + used, sizeof text - (size_t)used, "), hash %08" PRIx32, (uint32_t)hash);
    memcpy(words, text, sizeof text);
}

/* All ranks are here, with the first parameter that differs: they exchange its descriptions and say the same.
 */
static inspan_status_t name_difference(inspan_comm_t *comm, const inspan_parameter_t *parameter,
                                       uint32_t index, uint32_t other, uint64_t hash, int64_t timeout_ns,
                                       inspan_error_t *err)
{
    uint32_t world = inspan_comm_world(comm);
    uint64_t words[TEXT_WORDS];
    describe(parameter, hash, words);
    uint64_t *rows = calloc(world * TEXT_WORDS, sizeof rows[0]);
    if (rows == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to name the parameter that differs");
    inspan_status_t status = manifest_gather(comm, words, TEXT_WORDS, rows, timeout_ns, err);
    if (status == INSPAN_OK) {
        char texts[2][TEXT_WORDS * 8];
        memcpy(texts[0], rows, sizeof texts[0]);
        memcpy(texts[1], rows + other * TEXT_WORDS, sizeof texts[1]);
        texts[0][sizeof texts[0] - 1] = texts[1][sizeof texts[1] - 1] = '\0';
        status = error_set(
            err, INSPAN_MISMATCH,
            "parameter %u differs between ranks: rank 0 (node %s) has %s, rank %u (node %s) has %s; "
            "all ranks must build the same model from the same seed or file",
            index, inspan_comm_member(comm, 0)->node, texts[0], other, inspan_comm_member(comm, other)->node,
            texts[1]);
    }
    free(rows);
    return status;
}

static inspan_status_t find_difference(inspan_comm_t *comm, const inspan_parameter_t *parameters,
                                       uint32_t least, const uint64_t *hashes, int64_t timeout_ns,
                                       inspan_error_t *err)
{
    uint32_t world = inspan_comm_world(comm);
    uint64_t *rows = calloc((uint64_t)world * least + 1, sizeof rows[0]);
    if (rows == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to compare %u parameters", least);
    inspan_status_t status = manifest_gather(comm, hashes, least, rows, timeout_ns, err);
    for (uint32_t i = 0; status == INSPAN_OK && i < least; i++)
        for (uint32_t rank = 1; status == INSPAN_OK && rank < world; rank++)
            if (rows[(uint64_t)rank * least + i] != rows[i])
                status = name_difference(comm, &parameters[i], i, rank, hashes[i], timeout_ns, err);
    free(rows);
    return status;
}

void manifest_row(const inspan_parameter_t *parameters, uint32_t n, inspan_dtype_t dtype,
                  uint64_t layout_hash, uint64_t row[MANIFEST_WORDS])
{
    row[ROW_PARAMS] = n;
    row[ROW_DTYPE] = (uint64_t)dtype;
    row[ROW_ALL] = 0;
    row[ROW_LAYOUT] = layout_hash;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t hash = parameter_hash(&parameters[i], 0, false);
        row[ROW_ALL] = hash64(&hash, sizeof hash, row[ROW_ALL]);
    }
}

inspan_status_t manifest_compare(inspan_comm_t *comm, const inspan_parameter_t *parameters, uint32_t n,
                                 inspan_dtype_t dtype, uint64_t layout_hash, bool with_weights,
                                 int64_t timeout_ns, inspan_error_t *err)
{
    uint32_t world = inspan_comm_world(comm);
    size_t element_size = inspan_dtype_size(dtype);
    uint64_t *hashes = calloc(n + (uint64_t)world * ROW_WORDS, sizeof hashes[0]);
    if (hashes == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to compare %u parameters", n);
    uint64_t *rows = hashes + n;
    for (uint32_t i = 0; i < n; i++) hashes[i] = parameter_hash(&parameters[i], element_size, with_weights);
    uint64_t row[ROW_WORDS] = {n, (uint64_t)dtype, hash64(hashes, n * sizeof hashes[0], 0), layout_hash};
    inspan_status_t status = manifest_gather(comm, row, ROW_WORDS, rows, timeout_ns, err);
    uint32_t least = n, differs = 0;
    bool kinds_differ = false;
    for (uint32_t rank = 1; status == INSPAN_OK && rank < world; rank++) {
        const uint64_t *theirs = rows + (uint64_t)rank * ROW_WORDS;
        if (memcmp(theirs, rows, sizeof row) == 0) continue;
        if (differs == 0) differs = rank;
        if (theirs[ROW_DTYPE] != rows[ROW_DTYPE]) kinds_differ = true;
    }
    for (uint32_t rank = 0; status == INSPAN_OK && rank < world; rank++)
        if (rows[(uint64_t)rank * ROW_WORDS] < least) least = (uint32_t)rows[(uint64_t)rank * ROW_WORDS];
    if (status == INSPAN_OK && differs != 0 && !kinds_differ)
        status = find_difference(comm, parameters, least, hashes, timeout_ns, err);
    if (status == INSPAN_OK && differs != 0) {
        const uint64_t *theirs = rows + (uint64_t)differs * ROW_WORDS;
        status = error_set(err, INSPAN_MISMATCH,
                           "ranks disagree: rank 0 (node %s) has %" PRIu64 " parameters of dtype %" PRIu64
                           ", layout %08" PRIx32 "; rank %u (node %s) has %" PRIu64 " of dtype %" PRIu64
                           ", layout %08" PRIx32 "; all ranks must build the same model",
                           inspan_comm_member(comm, 0)->node, rows[ROW_PARAMS], rows[ROW_DTYPE],
                           (uint32_t)rows[ROW_LAYOUT], differs, inspan_comm_member(comm, differs)->node,
                           theirs[ROW_PARAMS], theirs[ROW_DTYPE], (uint32_t)theirs[ROW_LAYOUT]);
    }
    free(hashes);
    return status;
}
