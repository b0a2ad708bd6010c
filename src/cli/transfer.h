/* Files to and from the manager, by content: data on its way to the nodes, results on their way back. */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include "rpc/rpc.h"

#define TRANSFER_HASH_SIZE 33
#define TRANSFER_CHUNK     ((size_t)1 << 20)
#define TRANSFER_BOUND     (60 * NS_PER_S) /* without any progress */

/* Hash (xxh128, hex) and size of a file. NOT_FOUND, IO. */
inspan_status_t transfer_hash(const char *path, char hash[TRANSFER_HASH_SIZE], uint64_t *bytes,
                              inspan_error_t *err);

/* Send the file unless the manager has it. CORRUPT: it changed meanwhile; what the calls give. */
inspan_status_t transfer_put(rpc_client_t *client, const char *path, const char *hash, uint64_t bytes,
                             inspan_error_t *err);

/* Fetch into path, whole or not at all; the hash is checked. CORRUPT, IO, what the calls give. */
inspan_status_t transfer_get(rpc_client_t *client, const char *hash, uint64_t bytes, const char *path,
                             inspan_error_t *err);

#endif
