#include "base/words.h"

#include <stdio.h>
#include <string.h>

/* Optimal string alignment (Damerau 1964): the two rows before and this one are enough. */
uint32_t words_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > WORDS_MAX || m > WORDS_MAX) return UINT32_MAX;
    uint32_t rows[3][WORDS_MAX + 1];
    uint32_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = (uint32_t)j;
    memcpy(before, last, sizeof rows[0]);
    for (size_t i = 1; i <= n; i++) {
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= m; j++) {
            uint32_t least = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < least) least = last[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < least) least = before[j - 2] + 1;
            row[j] = least;
        }
        uint32_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[m];
}

void words_offer(words_search_t *search, const char *known)
{
    uint32_t distance = words_distance(search->typed, known);
    if (distance == UINT32_MAX || (search->nearest[0] != '\0' && distance >= search->distance)) return;
    search->distance = distance;
    snprintf(search->nearest, sizeof search->nearest, "%s", known);
}

const char *words_found(const words_search_t *search)
{
    size_t length = strlen(search->typed);
    uint32_t most = length < 4 ? 1 : length < 9 ? 2 : 3;
    return search->nearest[0] != '\0' && search->distance <= most ? search->nearest : NULL;
}
