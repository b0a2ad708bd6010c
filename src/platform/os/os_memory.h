/*
 * Memory for arrays that every step walks through (weights, gradients, moments): on huge pages where the
 * system has them. Walking 44 MB takes 11,000 entries of the address table on pages of 4 KiB, 21 on huge
 * ones.
 */
#ifndef OS_MEMORY_H
#define OS_MEMORY_H

#include <stddef.h>

/* Zeroed, aligned to a cache line at least, for free(). Each page is touched: memory that is not there shows
 * here and not in the middle of a step. NULL: no memory, errno says so. */
void *os_memory_take(size_t bytes);

#endif
