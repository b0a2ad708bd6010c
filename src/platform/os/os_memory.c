#include "platform/os/os_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CACHE_LINE ((size_t)64)
#define HUGE_PAGE  ((size_t)2 << 20)
/* No machine has that; asked for more, a sanitizer would end the program. */
#define MOST ((size_t)1 << 39)

void *os_memory_take(size_t bytes)
{
    const bool huge = bytes >= 2 * HUGE_PAGE;
    void *memory = NULL;
    if (bytes > MOST || posix_memalign(&memory, huge ? HUGE_PAGE : CACHE_LINE, bytes) != 0) {
        errno = ENOMEM;
        return NULL;
    }
    if (huge) madvise(memory, bytes, MADV_HUGEPAGE); /* advice: a refusal is none */
    memset(memory, 0, bytes);
    return memory;
}
