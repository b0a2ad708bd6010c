#include "nn/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "platform/os/os_time.h"

#define SPIN_NS (50 * NS_PER_US)

typedef struct pool_thread {
    pool_t *pool;
    pthread_t id;
    uint32_t index;
} pool_thread_t;

struct pool {
    uint32_t threads;
    uint32_t started; /* threads that pool_close must join */
    void (*enter)(void);
    pool_fn_t fn; /* written before generation rises, read after it was seen to rise */
    void *context;
    atomic_uint generation; /* number of runs begun */
    atomic_uint unfinished; /* threads of this run still at work */
    atomic_bool closing;
    pthread_mutex_t lock; /* only for the two conditions: no state is under it */
    pthread_cond_t begun, finished;
    pool_thread_t thread[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Look for up to SPIN_NS whether *word has left `value`; reading the clock is rare enough to cost nothing. */
static bool spin_until_changed(atomic_uint *word, unsigned value)
{
    ns_t end = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
        relax();
        if (i % 64 != 0) continue;
        ns_t now = os_now();
        if (end == 0) end = now + SPIN_NS;
        if (now >= end) return false;
    }
}

static unsigned wait_for_run(pool_t *pool, unsigned seen)
{
    if (!spin_until_changed(&pool->generation, seen)) {
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->begun, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
    return atomic_load(&pool->generation);
}

static void *thread_main(void *argument)
{
    pool_thread_t *self = argument;
    pool_t *pool = self->pool;
    if (pool->enter != NULL) pool->enter();
    for (unsigned seen = 0;;) {
        seen = wait_for_run(pool, seen);
        if (atomic_load(&pool->closing)) return NULL;
        pool->fn(pool->context, self->index, pool->threads);
        if (atomic_fetch_sub(&pool->unfinished, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

/* The lock around the change is what makes it impossible that a thread checks, sees nothing, and then sleeps
 * over it. */
static void begin_run(pool_t *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(pool_t *pool, pool_fn_t fn, void *context)
{
    if (pool->threads == 1) {
        fn(context, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    atomic_store(&pool->unfinished, pool->threads - 1);
    begin_run(pool);
    fn(context, 0, pool->threads);
    ns_t end = os_now() + SPIN_NS;
    while (atomic_load(&pool->unfinished) != 0 && os_now() < end) relax();
    if (atomic_load(&pool->unfinished) == 0) return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->unfinished) != 0) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

/* Signals are the business of the program's own threads. */
static inspan_status_t start_threads(pool_t *pool, inspan_error_t *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (uint32_t i = 1; i < pool->threads && failed == 0; i++) {
        pool->thread[i] = (pool_thread_t){.pool = pool, .index = i};
        failed = pthread_create(&pool->thread[i].id, NULL, thread_main, &pool->thread[i]);
        if (failed == 0) pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0) return INSPAN_OK;
    return error_set(
        err, INSPAN_LIMIT,
        "could start only %u of %u compute threads: the system's limit of threads (ulimit -u, pids.max) "
        "is reached",
        pool->started + 1, pool->threads);
}

inspan_status_t pool_open(uint32_t threads, void (*enter)(void), pool_t **out, inspan_error_t *err)
{
    *out = NULL;
    if (threads == 0 || threads > POOL_THREADS_MAX)
        return error_set(err, INSPAN_INVALID, "compute threads: expected 1 to %d, found %u", POOL_THREADS_MAX,
                         threads);
    pool_t *pool = calloc(1, sizeof *pool + threads * sizeof pool->thread[0]);
    if (pool == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for %u compute threads", threads);
    pool->threads = threads;
    pool->enter = enter;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pthread_cond_init(&pool->finished, NULL);
    inspan_status_t status = start_threads(pool, err);
    if (status != INSPAN_OK) {
        pool_close(pool);
        return status;
    }
    *out = pool;
    return INSPAN_OK;
}

void pool_close(pool_t *pool)
{
    if (pool == NULL) return;
    atomic_store(&pool->closing, true);
    begin_run(pool);
    for (uint32_t i = 1; i <= pool->started; i++) pthread_join(pool->thread[i].id, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->begun);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

uint32_t pool_threads(const pool_t *pool)
{
    return pool->threads;
}
