#include "manager/service/store.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "platform/os/os_file.h"

static char folder[64];
static store_t *store;

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-store-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    return store_open(folder, &store, NULL) == INSPAN_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    store_close(store);
    return os_remove_all(folder, NULL) == INSPAN_OK ? 0 : -1;
}

static void hash_of(const char *text, char hash[STORE_HASH_TEXT])
{
    hash_stream_t *stream = hash_stream_open();
    hash_stream_add(stream, text, strlen(text));
    hash_stream_finish128_hex(stream, hash);
}

static void put(const char *text, char hash[STORE_HASH_TEXT])
{
    store_put_t *one = NULL;
    hash_of(text, hash);
    assert_int_equal(store_put_begin(store, hash, strlen(text), &one, NULL), INSPAN_OK);
    assert_int_equal(store_put_add(one, text, strlen(text), NULL), INSPAN_OK);
    assert_int_equal(store_put_commit(one, NULL), INSPAN_OK);
}

static void only_whole_files_are_there(void **state)
{
    (void)state;
    char hash[STORE_HASH_TEXT];
    uint64_t bytes = 0;
    store_put_t *first = NULL, *second = NULL;
    hash_of("hello", hash);
    assert_int_equal(store_put_begin(store, hash, 5, &first, NULL), INSPAN_OK);
    assert_int_equal(store_put_begin(store, hash, 5, &second, NULL), INSPAN_OK); /* two senders of one file */
    assert_int_equal(store_put_add(first, "hel", 3, NULL), INSPAN_OK);
    assert_int_equal(store_stat(store, hash, &bytes), INSPAN_NOT_FOUND);
    assert_int_equal(store_put_add(second, "hello", 5, NULL), INSPAN_OK);
    assert_int_equal(store_put_add(second, "!", 1, NULL), INSPAN_LIMIT);
    assert_int_equal(store_put_commit(second, NULL), INSPAN_OK);
    assert_int_equal(store_put_commit(first, NULL), INSPAN_CORRUPT); /* too short: the good one stays */
    assert_int_equal(store_stat(store, hash, &bytes), INSPAN_OK);
    assert_int_equal(bytes, 5);
    int fd = -1;
    assert_int_equal(store_get(store, hash, &fd, &bytes, NULL), INSPAN_OK);
    char text[8] = "";
    assert_int_equal(read(fd, text, sizeof text), 5);
    assert_string_equal(text, "hello");
    close(fd);
}

static void a_crash_leaves_nothing(void **state)
{
    (void)state;
    char hash[STORE_HASH_TEXT], path[128];
    store_put_t *one = NULL;
    hash_of("hello", hash);
    assert_int_equal(store_put_begin(store, hash, 5, &one, NULL), INSPAN_OK);
    snprintf(path, sizeof path, "%s/.incoming-0", folder);
    assert_int_equal(access(path, F_OK), 0);
    store_t *again = NULL; /* as after kill -9 */
    assert_int_equal(store_open(folder, &again, NULL), INSPAN_OK);
    assert_int_equal(access(path, F_OK), -1);
    store_close(again);
    store_put_abandon(one);
}

static void names_are_hashes_only(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "..",
                                        "../../etc/passwd",
                                        "0123456789abcdef0123456789abcde",
                                        "0123456789ABCDEF0123456789ABCDEF",
                                        "0123456789abcdef0123456789abcdef0",
                                        "/123456789abcdef0123456789abcdef"};
    inspan_error_t err;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint64_t bytes;
        int fd;
        store_put_t *one;
        assert_false(store_valid_hash(wrong[i]));
        assert_int_equal(store_stat(store, wrong[i], &bytes), INSPAN_INVALID);
        assert_int_equal(store_get(store, wrong[i], &fd, &bytes, &err), INSPAN_INVALID);
        assert_int_equal(store_put_begin(store, wrong[i], 1, &one, &err), INSPAN_INVALID);
    }
    /* a link planted in the folder is no file of ours */
    char path[128];
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef", folder);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    uint64_t bytes;
    assert_int_equal(store_stat(store, "0123456789abcdef0123456789abcdef", &bytes), INSPAN_NOT_FOUND);
}

static bool is_the_one(void *context, const char *hash)
{
    return strcmp(hash, context) == 0;
}

static void the_sweep_keeps_what_is_wanted_or_young(void **state)
{
    (void)state;
    char wanted[STORE_HASH_TEXT], other[STORE_HASH_TEXT];
    uint64_t bytes;
    put("wanted", wanted);
    put("other", other);
    assert_int_equal(store_sweep(store, is_the_one, wanted, 3600), 0);
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, other);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    store_touch(store, other);
    assert_int_equal(store_sweep(store, is_the_one, wanted, 3600), 0);
    assert_int_equal(store_sweep(store, is_the_one, wanted, 0), 1);
    assert_int_equal(store_stat(store, wanted, &bytes), INSPAN_OK);
    assert_int_equal(store_stat(store, other, &bytes), INSPAN_NOT_FOUND);
}

int main(void)
{
#define IN_STORE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_STORE(only_whole_files_are_there),
        IN_STORE(a_crash_leaves_nothing),
        IN_STORE(names_are_hashes_only),
        IN_STORE(the_sweep_keeps_what_is_wanted_or_young),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
