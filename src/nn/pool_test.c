#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "nn/pool.h"
#include "platform/os/os_time.h"

enum { MOST = 7 };

typedef struct tally {
    uint32_t threads;
    uint64_t calls[MOST]; /* plain: each thread has its own, and pool_run orders them before its return */
} tally_t;

static void count(void *context, uint32_t thread, uint32_t threads)
{
    tally_t *tally = context;
    assert_int_equal(threads, tally->threads);
    assert_true(thread < threads);
    tally->calls[thread]++;
}

static atomic_uint entered;

static void enter(void)
{
    atomic_fetch_add(&entered, 1);
}

static void test_each_thread_once(void **state)
{
    (void)state;
    enum { RUNS = 300 };
    for (uint32_t threads = 1; threads <= MOST; threads++) {
        pool_t *pool = NULL;
        inspan_error_t err;
        tally_t tally = {.threads = threads};
        atomic_store(&entered, 0);
        assert_int_equal(pool_open(threads, enter, &pool, &err), INSPAN_OK);
        assert_int_equal(pool_threads(pool), threads);
        for (uint64_t run = 1; run <= RUNS; run++) {
            pool_run(pool, count, &tally);
            for (uint32_t i = 0; i < threads; i++) assert_int_equal(tally.calls[i], run);
        }
        assert_int_equal(atomic_load(&entered), threads - 1); /* each has run by now */
        pool_close(pool);
    }
}

static void test_close_without_run(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= MOST; threads++) {
        pool_t *pool = NULL;
        assert_int_equal(pool_open(threads, NULL, &pool, NULL), INSPAN_OK);
        pool_close(pool);
    }
    pool_close(NULL);
}

static void test_bounds(void **state)
{
    (void)state;
    pool_t *pool = NULL;
    inspan_error_t err;
    assert_int_equal(pool_open(0, NULL, &pool, &err), INSPAN_INVALID);
    assert_int_equal(pool_open(POOL_THREADS_MAX + 1, NULL, &pool, &err), INSPAN_INVALID);
    assert_null(pool);
}

/* The pause is what is measured, not a wait for something: sleeping threads leave the processor alone. */
static void test_waiting_costs_nothing(void **state)
{
    (void)state;
    pool_t *pool = NULL;
    tally_t tally = {.threads = 4};
    assert_int_equal(pool_open(4, NULL, &pool, NULL), INSPAN_OK);
    pool_run(pool, count, &tally);
    ns_t before = os_process_cpu();
    nanosleep(&(struct timespec){.tv_nsec = 300 * NS_PER_MS}, NULL); /* not a wait: measured */
    assert_true(os_process_cpu() - before < 20 * NS_PER_MS);         /* awake they would burn 900 ms */
    pool_close(pool);
}

static void test_parts_cover_everything_once(void **state)
{
    (void)state;
    for (size_t n = 0; n < 70; n++) {
        for (size_t grain = 1; grain <= 17; grain += 8) {
            for (uint32_t threads = 1; threads <= MOST; threads++) {
                size_t next = 0;
                for (uint32_t i = 0; i < threads; i++) {
                    size_t first, end;
                    pool_part(n, grain, i, threads, &first, &end);
                    assert_int_equal(first, next);
                    assert_true(end >= first && (end % grain == 0 || end == n));
                    next = end;
                }
                assert_int_equal(next, n);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_thread_once), cmocka_unit_test(test_close_without_run),
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_waiting_costs_nothing),
        cmocka_unit_test(test_parts_cover_everything_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
