#include "agent/worker_log.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/inspan-log-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/rank-0.log", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

/* Position p holds the byte p % 251: a reader can tell where it is. */
static void fill(char *bytes, size_t n, uint64_t at)
{
    for (size_t i = 0; i < n; i++) bytes[i] = (char)((at + i) % 251);
}

static uint64_t read_all(worker_log_t *log, uint64_t at, uint64_t *first)
{
    char bytes[777];
    *first = UINT64_MAX;
    for (size_t n; (n = worker_log_read(log, &at, bytes, sizeof bytes)) > 0; at += n) {
        if (*first == UINT64_MAX) *first = at;
        for (size_t i = 0; i < n; i++) assert_int_equal((unsigned char)bytes[i], (at + i) % 251);
    }
    return at;
}

static void test_cap_and_tail(void **state)
{
    (void)state;
    static char bytes[5000];
    worker_log_t *log = NULL;
    assert_int_equal(worker_log_create(path, 10000, &log, NULL), INSPAN_OK);
    uint64_t end = 0, first = 0;
    assert_int_equal(read_all(log, 0, &first), 0);
    for (size_t n = 1; end < 100000; n = n * 7 % 4999 + 1) { /* odd sizes around the switch-over */
        fill(bytes, n, end);
        worker_log_append(log, bytes, n);
        end += n;
        worker_log_extent_t extent;
        worker_log_look(log, &extent);
        assert_int_equal(extent.end, end);
        assert_true(extent.end - extent.first <= 10000);
        assert_true(extent.end - extent.first >=
                    (end < 5000 ? end : 5000)); /* half of the cap is always there */
        assert_int_equal(read_all(log, 0, &first), end);
        assert_int_equal(first, extent.first);
    }
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size <= 5000);
    worker_log_extent_t live, later;
    worker_log_look(log, &live);
    worker_log_end(log);
    worker_log_release(log);
    assert_int_equal(worker_log_open(path, &log, NULL), INSPAN_OK); /* as a later life of the agent sees it */
    worker_log_look(log, &later);
    assert_int_equal(later.first, live.first);
    assert_int_equal(later.end, live.end);
    assert_true(later.ended);
    assert_int_equal(read_all(log, 0, &first), end);
    worker_log_release(log);
}

static void test_no_log(void **state)
{
    (void)state;
    worker_log_t *log = NULL;
    inspan_error_t err;
    assert_int_equal(worker_log_open(path, &log, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(worker_log_create("/no/such/folder/x.log", 100, &log, &err), INSPAN_IO);
}

/* A full disk loses output; it never blocks the writer, and says how much. */
static void test_full_disk(void **state)
{
    (void)state;
    worker_log_t *log = NULL;
    if (worker_log_create("/dev/full", 1000, &log, NULL) != INSPAN_OK) skip();
    worker_log_append(log, "123", 3);
    worker_log_extent_t extent;
    worker_log_look(log, &extent);
    assert_int_equal(extent.end, 0);
    assert_int_equal(extent.lost, 3);
    worker_log_release(log);
}

/* Somebody empties the files to get his disk back: what is gone is passed over, also before the end. */
static void test_cut_short(void **state)
{
    (void)state;
    char bytes[1000], older[160];
    worker_log_t *log = NULL;
    uint64_t at = 0;
    fill(bytes, sizeof bytes, 0);
    assert_int_equal(worker_log_create(path, 1200, &log, NULL), INSPAN_OK);
    worker_log_append(log, bytes, sizeof bytes); /* 600 in PATH.1, 400 in PATH */
    snprintf(older, sizeof older, "%s.1", path);
    assert_int_equal(truncate(older, 100), 0);
    assert_int_equal(truncate(path, 50), 0);
    assert_int_equal(worker_log_read(log, &at, bytes, sizeof bytes), 100);
    at += 100;
    assert_int_equal(worker_log_read(log, &at, bytes, sizeof bytes), 50);
    assert_int_equal(at, 600);
    assert_int_equal((unsigned char)bytes[0], 600 % 251);
    at += 50;
    assert_int_equal(worker_log_read(log, &at, bytes, sizeof bytes), 0);
    assert_int_equal(at, 1000); /* nobody waits for these any more */
    worker_log_release(log);
}

static void *follow(void *context)
{
    worker_log_t *log = context;
    uint64_t at = 0;
    char bytes[100];
    worker_log_extent_t extent;
    do {
        size_t n = worker_log_read(log, &at, bytes, sizeof bytes);
        for (size_t i = 0; i < n; i++) assert_int_equal((unsigned char)bytes[i], (at + i) % 251);
        at += n;
        if (n == 0) worker_log_wait(log, at, 20 * NS_PER_S);
        worker_log_look(log, &extent);
    } while (!extent.ended || at < extent.end);
    worker_log_release(log);
    return (void *)(uintptr_t)at;
}

static void test_follow(void **state)
{
    (void)state;
    worker_log_t *log = NULL;
    pthread_t thread;
    void *seen = NULL;
    char bytes[64];
    assert_int_equal(worker_log_create(path, 4096, &log, NULL), INSPAN_OK);
    assert_int_equal(pthread_create(&thread, NULL, follow, worker_log_hold(log)), 0);
    for (uint64_t at = 0; at < 64000; at += sizeof bytes) {
        fill(bytes, sizeof bytes, at);
        worker_log_append(log, bytes, sizeof bytes);
    }
    worker_log_end(log);
    pthread_join(thread, &seen);
    assert_int_equal((uintptr_t)seen, 64000);
    worker_log_release(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cap_and_tail, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_no_log, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_full_disk, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_cut_short, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_follow, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
