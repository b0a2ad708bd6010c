/*
 * Threads inside one model. pool_run gives every thread one call with its index; the caller is thread 0. Work
 * is divided by index and never by who comes first, so that the same number of threads gives the same bits.
 *
 * A pool belongs to one thread, which alone calls these. Between runs the threads wait: at most 50 us awake
 * (the next piece of a pass usually follows sooner), then asleep.
 */
#ifndef NN_POOL_H
#define NN_POOL_H

#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define POOL_THREADS_MAX 256

typedef struct pool pool_t;
typedef void (*pool_fn_t)(void *context, uint32_t thread, uint32_t threads);

/* threads from 1 to POOL_THREADS_MAX; enter (may be NULL) runs once in each new thread. INVALID, NO_MEMORY,
 * LIMIT (the system gives no more threads). */
inspan_status_t pool_open(uint32_t threads, void (*enter)(void), pool_t **pool, inspan_error_t *err);
void pool_close(pool_t *pool); /* NULL is fine */

uint32_t pool_threads(const pool_t *pool);

/* Call fn(context, i, threads) for every thread and wait until all have returned. */
void pool_run(pool_t *pool, pool_fn_t fn, void *context);

/* Thread's part [*first, *end) of n things, in multiples of `grain` but for the last. */
static inline void pool_part(size_t n, size_t grain, uint32_t thread, uint32_t threads, size_t *first,
                             size_t *end)
{
    size_t grains = (n + grain - 1) / grain;
    *first = grains * thread / threads * grain;
    *end = grains * (thread + 1) / threads * grain;
    if (*first > n) *first = n;
    if (*end > n) *end = n;
}

#endif
