/*
 * Files between an agent and the manager's store: the calls of rpc_files.h, tried again while the manager is
 * away. All block, and end early with ABORTED after transfer_cancel. One call at a time per transfer; cancel
 * from any thread.
 */
#ifndef AGENT_TRANSFER_H
#define AGENT_TRANSFER_H

#include <stdint.h>

#include <inspan/status.h>

#include "base/units.h"
#include "rpc/rpc_files.h"

typedef struct transfer transfer_t;

transfer_t *transfer_open(rpc_client_t *client); /* NULL: out of memory; the client must outlive it */
void transfer_close(transfer_t *transfer);
void transfer_cancel(transfer_t *transfer);

/*
 * Fetch the file: written aside, checked, then renamed.
 * patience: how long a manager that cannot be reached is tried again. CORRUPT (other bytes than promised),
 * LIMIT, NOT_FOUND, UNREACHABLE, IO.
 */
inspan_status_t transfer_get(transfer_t *transfer, const rpc_file_t *file, ns_t patience,
                             inspan_error_t *err);

/* Store a file whose hash and size were taken by transfer_hash; nothing is sent if the manager has it. */
inspan_status_t transfer_put(transfer_t *transfer, const rpc_file_t *file, ns_t patience,
                             inspan_error_t *err);

/* Hash a local file. NOT_FOUND, IO, ABORTED. */
inspan_status_t transfer_hash(transfer_t *transfer, const char *path, char hash[RPC_FILE_HASH],
                              uint64_t *bytes, inspan_error_t *err);

#endif
