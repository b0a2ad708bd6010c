/*
 * One block of memory that is cut into pieces of 64-byte alignment. With base NULL nothing is cut and only
 * `used` grows: the same layout code tells first how much is needed and then takes it. Under the address
 * sanitizer a poisoned gap follows each piece.
 */
#ifndef NN_ARENA_H
#define NN_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_GAP 64
#include <sanitizer/asan_interface.h>
#else
#define ARENA_GAP 0
#endif

typedef struct arena {
    char *base;
    uint64_t used;
    bool overflow; /* the sizes do not fit into 64 bits */
} arena_t;

/* count things of `size` bytes; NULL while base is NULL. */
static inline void *arena_take(arena_t *arena, uint64_t count, uint64_t size)
{
    uint64_t bytes, end;
    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(arena->used, bytes, &end) ||
        end > INT64_MAX - 128 - ARENA_GAP) {
        arena->overflow = true;
        return NULL;
    }
    void *piece = arena->base == NULL ? NULL : arena->base + arena->used;
    uint64_t next = (end + ARENA_GAP + 63) & ~(uint64_t)63;
#if ARENA_GAP
    if (piece != NULL) __asan_poison_memory_region(arena->base + end, next - end);
#endif
    arena->used = next;
    return piece;
}

#endif
