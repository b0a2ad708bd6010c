/*
 * Files to and from the manager's store (inspan.v1.Files), each named by the hash of its content and its
 * size. All calls block; without any progress they end after a minute with TIMEOUT.
 */
#ifndef RPC_RPC_FILES_H
#define RPC_RPC_FILES_H

#include <sys/types.h>

#include "rpc/rpc.h"

#define RPC_FILE_HASH  33 /* XXH3 128 in hex, and the end */
#define RPC_FILE_CHUNK ((size_t)1 << 20)

typedef struct rpc_file {
    const char *path, *hash;
    uint64_t bytes;
} rpc_file_t;

/* How others watch and end a transfer. Each may be NULL. */
typedef struct rpc_file_watch {
    void *context;
    /* Before the first chunk and after each one; all is 0 while a file is hashed. Not OK: ends it so. */
    inspan_status_t (*chunk)(void *context, uint64_t done, uint64_t all, inspan_error_t *err);
    /* This stream is used from now on, NULL: none is. Whoever is told may cancel it, from any thread. false:
     * do not begin (ABORTED). */
    bool (*stream)(void *context, rpc_stream_t *stream);
} rpc_file_watch_t;

/* Hash and size of a local file. NOT_FOUND, IO (also what is no plain file), NO_MEMORY. watch may be NULL, as
 * below. */
inspan_status_t rpc_file_hash(const char *path, const rpc_file_watch_t *watch, char hash[RPC_FILE_HASH],
                              uint64_t *bytes, inspan_error_t *err);

/* Send the file unless the manager has it. CORRUPT: it changed since it was hashed; NOT_FOUND, IO, or what
 * the call gives. */
inspan_status_t rpc_file_put(rpc_client_t *client, const rpc_file_t *file, const rpc_file_watch_t *watch,
                             inspan_error_t *err);

/* Fetch into file->path with these permissions, whole or not at all. CORRUPT: other bytes than promised; IO,
 * or what the call gives. */
inspan_status_t rpc_file_get(rpc_client_t *client, const rpc_file_t *file, mode_t permissions,
                             const rpc_file_watch_t *watch, inspan_error_t *err);

#endif
