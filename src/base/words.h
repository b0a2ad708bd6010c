/* "did you mean": the known word that is nearest to a mistyped one. */
#ifndef BASE_WORDS_H
#define BASE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#define WORDS_MAX 64 /* longer words are near to nothing */

/* Single edits (insert, delete, replace, swap of neighbours) that turn a into b; UINT32_MAX if one is too
 * long. */
uint32_t words_distance(const char *a, const char *b);

/* The nearest of the words offered so far. Begin with {.typed = word}. */
typedef struct words_search {
    const char *typed;
    char nearest[WORDS_MAX + 1]; /* a copy; empty: none yet */
    uint32_t distance;
} words_search_t;

/* Of words equally near the first one stays. */
void words_offer(words_search_t *search, const char *known);

/* The nearest one if it is worth proposing, else NULL: one edit in a word of up to 3 letters, two up to 8,
 * else three. */
const char *words_found(const words_search_t *search);

#endif
