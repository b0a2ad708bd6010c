/* Files to and from the manager, by content: data on its way to the nodes, results on their way back. */
#ifndef CLI_EXCHANGE_H
#define CLI_EXCHANGE_H

#include "cli/interrupt.h"
#include "rpc/rpc.h"

#define EXCHANGE_HASH_SIZE 33
#define EXCHANGE_CHUNK     ((size_t)1 << 20)
#define EXCHANGE_BOUND     (60 * NS_PER_S) /* without any progress */

/* Hash (xxh128, hex) and size of a file. NOT_FOUND, IO. */
inspan_status_t exchange_hash(const char *path, char hash[EXCHANGE_HASH_SIZE], uint64_t *bytes,
                              inspan_error_t *err);

/* Called before the first chunk and after each one. */
typedef void (*exchange_progress_fn)(void *context, uint64_t sent, uint64_t bytes);

typedef struct exchange_put_options {
    interrupt_t *interrupt;        /* NULL: none */
    exchange_progress_fn progress; /* NULL: none */
    void *context;                 /* of progress */
} exchange_put_options_t;

/* Send the file unless the manager has it. CORRUPT: it changed meanwhile; ABORTED: interrupted; what the
 * calls give. */
inspan_status_t exchange_put(rpc_client_t *client, const char *path, const char *hash, uint64_t bytes,
                             const exchange_put_options_t *options, inspan_error_t *err);

/* Fetch into path, whole or not at all; the hash is checked. CORRUPT, IO, what the calls give. */
inspan_status_t exchange_get(rpc_client_t *client, const char *hash, uint64_t bytes, const char *path,
                             inspan_error_t *err);

#endif
