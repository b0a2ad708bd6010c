/* At start all ranks compare what they hold: parameters (name, shape, bits) and layout. */
#ifndef DDP_MANIFEST_H
#define DDP_MANIFEST_H

#include <inspan/elastic.h>

/*
 * Collective: every rank calls it with its own. OK on all ranks, or MISMATCH on all ranks with the first
 * parameter that differs, by rank and node. Or the communicator's cause. with_weights: their bits, too.
 */
inspan_status_t manifest_compare(inspan_comm_t *comm, const inspan_parameter_t *parameters, uint32_t n,
                                 inspan_dtype_t dtype, uint64_t layout_hash, bool with_weights,
                                 int64_t timeout_ns, inspan_error_t *err);

/* Collective: every rank's row of `words` numbers, by rank, on every rank: the same bits. NO_MEMORY, or the
 * communicator's cause. */
inspan_status_t manifest_gather(inspan_comm_t *comm, const uint64_t *row, uint64_t words, uint64_t *rows,
                                int64_t timeout_ns, inspan_error_t *err);

/* One rank's manifest as numbers, without weights, for a comparison that the caller makes: the same on two
 * ranks that may train together. */
#define MANIFEST_WORDS 4u
void manifest_row(const inspan_parameter_t *parameters, uint32_t n, inspan_dtype_t dtype,
                  uint64_t layout_hash, uint64_t row[MANIFEST_WORDS]);

#endif
