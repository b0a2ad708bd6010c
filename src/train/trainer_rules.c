/* The trainer's rules that need neither ranks nor clocks. */
#include <stdio.h>

#include "train/trainer_internal.h"

void train_share(uint64_t batch, uint32_t world, uint32_t rank, uint64_t *first, uint64_t *n)
{
    *first = (uint64_t)((unsigned __int128)batch * rank / world);
    *n = (uint64_t)((unsigned __int128)batch * (rank + 1) / world) - *first;
}

static bool same_hash(const double *halves, uint32_t a, uint32_t b)
{
    return halves[2 * a] == halves[2 * b] && halves[2 * a + 1] == halves[2 * b + 1];
}

uint32_t trainer_odd_ones(const double *halves, uint32_t world, char *text, size_t size)
{
    uint32_t common = 0, most = 0, odd = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < world; i++) {
        uint32_t holders = 0;
        for (uint32_t k = 0; k < world; k++) holders += same_hash(halves, i, k);
        if (holders > most) {
            most = holders;
            common = i;
        }
    }
    if (size > 0) text[0] = '\0';
    for (uint32_t i = 0; i < world; i++) {
        if (same_hash(halves, i, common)) continue;
        int n = used < size ? snprintf(text + used, size - used, "%s%u", odd > 0 ? ", " : "", i) : 0;
        used += n > 0 ? (size_t)n : 0;
        odd++;
    }
    return odd;
}
