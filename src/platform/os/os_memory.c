#include "platform/os/os_memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CACHE_LINE ((size_t)64)
#define HUGE_PAGE  ((size_t)2 << 20)
#define SMALL_PAGE ((size_t)4096)
#define MOST                                                                                                 \
    ((size_t)1 << 39) /* no machine has that; where sanitizers are, asking for more ends the program */

void *os_memory_take(size_t bytes)
{
    const bool huge = bytes >= 2 * HUGE_PAGE;
    void *memory = NULL;
    if (bytes > MOST) return NULL;
    if (posix_memalign(&memory, huge ? HUGE_PAGE : CACHE_LINE, bytes) != 0) return NULL;
    if (huge) madvise(memory, bytes / SMALL_PAGE * SMALL_PAGE, MADV_HUGEPAGE); /* advice: a refusal is none */
    memset(memory, 0, bytes);
    return memory;
}
