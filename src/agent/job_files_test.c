#include "agent/job_files.h"

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

#include "platform/os/os_file.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/inspan-files-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

static void assert_set(const char *config, const char *key, const char *value, const char *expected)
{
    char *text = job_files_set(config, key, value);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

static void test_set(void **state)
{
    (void)state;
    assert_set("", "data.path", "/x", "data.path=/x\n");
    assert_set("a=1\ndata.path=book.txt\nb=2\n", "data.path", "/x", "a=1\ndata.path=/x\nb=2\n");
    assert_set("a=1\ndata.path=book.txt", "data.path", "/x=y",
               "a=1\ndata.path=/x=y\n"); /* no newline at the end */
    assert_set("data.path2=1\n", "data.path", "/x",
               "data.path2=1\ndata.path=/x\n"); /* a longer key is another */
    assert_set("data.path=1\n\n\ndata.path=2\n", "data.path", "",
               "data.path=\n"); /* said twice, empty lines */
    assert_set("x=data.path=1\n", "data.path", "v", "x=data.path=1\ndata.path=v\n");
}

static void test_names(void **state)
{
    (void)state;
    assert_true(job_files_good_key("data.path"));
    assert_true(job_files_good_key("data.labels_2-x"));
    static const char *const bad[] = {"", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "a=b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(job_files_good_key(bad[i]));
    assert_true(job_files_good_hash("0123456789abcdef0123456789abcdef"));
    assert_false(job_files_good_hash("0123456789abcdef0123456789abcde"));
    assert_false(job_files_good_hash("0123456789ABCDEF0123456789abcdef"));
    assert_false(job_files_good_hash("../456789abcdef0123456789abcdef00"));
}

/* A sparse file of that size, last used `age` seconds ago. */
static void put(const char *name, off_t bytes, long age)
{
    char path[160];
    struct timespec times[2] = {{.tv_sec = 2000000000 - age}, {.tv_sec = 2000000000 - age}};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static bool is_there(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void test_cache_lets_the_oldest_go(void **state)
{
    (void)state;
    char names[4][33];
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "%032d", i);
        put(names[i], 1000000000, i == 2 ? 900 : 100 - i); /* 2 is the oldest, then 0, 1, 3 */
    }
    put("not-a-hash", 1000000000, 5000);
    assert_int_equal(job_files_make_room(folder, 0, NULL), INSPAN_OK);
    assert_true(is_there(names[2])); /* 4 GB are the cap */
    assert_int_equal(job_files_make_room(folder, 1, NULL), INSPAN_OK);
    assert_false(is_there(names[2]));
    assert_true(is_there(names[0]));
    assert_int_equal(job_files_make_room(folder, 2500 * UINT64_C(1000000), NULL), INSPAN_OK);
    assert_false(is_there(names[0]));
    assert_false(is_there(names[1]));
    assert_true(is_there(names[3]));
    assert_true(is_there("not-a-hash")); /* not ours to remove */
    inspan_error_t err;
    assert_int_equal(job_files_make_room(folder, UINT64_C(1) << 60, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, folder));
}

static void test_prune(void **state)
{
    (void)state;
    const uint64_t used[] = {3};
    char path[160], name[16];
    for (int i = 1; i <= JOB_FILES_KEPT + 5; i++) {
        struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/%d/job.conf", folder, i);
        assert_int_equal(os_file_write(path, "x", 1, 0600, NULL), INSPAN_OK);
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    put("notes.txt", 10, 100000);
    job_files_prune(folder, used, 1);
    for (int i = 1; i <= JOB_FILES_KEPT + 5; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(is_there(name), i > 5 || i == 3);
    }
    assert_true(is_there("notes.txt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_cache_lets_the_oldest_go, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_prune, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
