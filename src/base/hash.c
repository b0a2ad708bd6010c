#include "base/hash.h"

#include <stdio.h>
#include <xxhash.h>

uint64_t hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

hash_stream_t *hash_stream_open(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state != NULL) XXH3_128bits_reset(state);
    return (hash_stream_t *)state;
}

void hash_stream_add(hash_stream_t *stream, const void *data, size_t bytes)
{
    XXH3_128bits_update((XXH3_state_t *)stream, data, bytes);
}

uint64_t hash_stream_finish64(hash_stream_t *stream)
{
    uint64_t digest = XXH3_128bits_digest((XXH3_state_t *)stream).low64;
    XXH3_freeState((XXH3_state_t *)stream);
    return digest;
}

void hash_stream_finish128_hex(hash_stream_t *stream, char hex[33])
{
    XXH128_hash_t digest = XXH3_128bits_digest((XXH3_state_t *)stream);
    XXH3_freeState((XXH3_state_t *)stream);
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)digest.high64, (unsigned long long)digest.low64);
}
