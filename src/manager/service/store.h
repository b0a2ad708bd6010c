/*
 * Content-addressed files: <folder>/<hash>, the hash being XXH3-128 of the content in 32 hexadecimal digits.
 * A file is there whole, verified and durable, or not at all. One thread; blocks for the disk.
 */
#ifndef MANAGER_SERVICE_STORE_H
#define MANAGER_SERVICE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define STORE_FILE_MAX                                                                                       \
    ((uint64_t)1000 * 1000 * 1000) /* results; data files have a lower cap at submission                     \
                                    */
#define STORE_HASH_TEXT  33
#define STORE_DISK_SPARE ((uint64_t)64 << 20) /* never fill the disk that the registry needs */

typedef struct store store_t;
typedef struct store_put store_put_t;

/* Makes the folder, removes what a crash left half-written. IO. */
inspan_status_t store_open(const char *folder, store_t **store, inspan_error_t *err);
void store_close(store_t *store);

/* Remove every file that `wanted` does not want and that nobody has put for min_age_s (wall clock of the file
 * system): an upload whose job is about to be submitted stays. Returns how many went. */
uint32_t store_sweep(store_t *store, bool (*wanted)(void *context, const char *hash), void *context,
                     uint32_t min_age_s);

/* One file; who reads it now reads it to its end. */
void store_remove(store_t *store, const char *hash);

bool store_valid_hash(const char *hash);
/* NOT_FOUND; INVALID: no hash. */
inspan_status_t store_stat(const store_t *store, const char *hash, uint64_t *bytes);
/* Somebody counts on this file: for the sweep it is as young as one just put. */
void store_touch(store_t *store, const char *hash);
/* An open descriptor (the caller closes it) and the length. NOT_FOUND, INVALID, IO. */
inspan_status_t store_get(const store_t *store, const char *hash, int *fd, uint64_t *bytes,
                          inspan_error_t *err);

/* LIMIT: larger than STORE_FILE_MAX, or than the disk has room for. INVALID, IO. */
inspan_status_t store_put_begin(store_t *store, const char *hash, uint64_t bytes, store_put_t **put,
                                inspan_error_t *err);
/* LIMIT: more than announced. IO. After an error only abandon. */
inspan_status_t store_put_add(store_put_t *put, const void *data, size_t bytes, inspan_error_t *err);
/* CORRUPT: length or hash is not as announced. Frees put, ok or not. */
inspan_status_t store_put_commit(store_put_t *put, inspan_error_t *err);
void store_put_abandon(store_put_t *put);

#endif
