/*
 * The one growing array. `vec_of(int) v = {0}; VEC_PUSH(&v, 7)` gives false when out of memory;
 * v.items[0..v.n); vec_free(&v) at the end.
 */
#ifndef BASE_VEC_H
#define BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define vec_of(type)                                                                                         \
    struct {                                                                                                 \
        type *items;                                                                                         \
        size_t n, capacity;                                                                                  \
    }

static inline bool vec_grow(void **items, size_t *capacity, size_t needed, size_t item_size)
{
    if (needed <= *capacity) return true;
    size_t wanted = *capacity ? *capacity * 2 : 8;
    if (wanted < needed) wanted = needed;
    void *grown = reallocarray(*items, wanted, item_size);
    if (grown == NULL) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

#define VEC_PUSH(v, ...)                                                                                     \
    (vec_grow((void **)&(v)->items, &(v)->capacity, (v)->n + 1, sizeof *(v)->items)                          \
         ? ((v)->items[(v)->n++] = (__VA_ARGS__), true)                                                      \
         : false)

#define vec_free(v) (free((v)->items), (v)->items = NULL, (v)->n = (v)->capacity = 0)

#endif
