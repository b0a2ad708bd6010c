/* Hashes of content: xxHash (XXH3, 64 and 128 bits). Not for secrets and not against an attacker. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct hash_stream hash_stream_t;

uint64_t hash64(const void *data, size_t bytes, uint64_t seed);

/* A hash over pieces. open gives NULL when out of memory; finish frees the stream. */
hash_stream_t *hash_stream_open(void);
void hash_stream_add(hash_stream_t *stream, const void *data, size_t bytes);
uint64_t hash_stream_finish64(hash_stream_t *stream);
void hash_stream_finish128_hex(hash_stream_t *stream, char hex[33]); /* 32 digits and the end */

#endif
