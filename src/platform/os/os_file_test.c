#include "platform/os/os_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/inspan-os-file-XXXXXX";
static char path[PATH_MAX]; /* of the test's file: root/file */

static int open_folder(void **state)
{
    (void)state;
    umask(022);
    if (mkdtemp(root) == NULL) return -1;
    snprintf(path, sizeof path, "%s/file", root);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    return os_remove_all(root, NULL) != INSPAN_OK;
}

/* Entries of a folder; with /proc/self/fd: descriptors that are open. */
static int entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    if (dir == NULL) return -1;
    for (const struct dirent *at; (at = readdir(dir)) != NULL;) n += at->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void holds(const char *name, const char *text)
{
    char *data = NULL;
    size_t bytes = 0;
    assert_int_equal(os_file_read(name, 1 << 20, &data, &bytes, NULL), INSPAN_OK);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static void written_bytes_are_read(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 8192, 100001};
    uint8_t *bytes = malloc(100001);
    for (size_t i = 0; i < 100001; i++) bytes[i] = (uint8_t)(i * 7 + i / 256); /* zeros among them */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *data = NULL;
        size_t n = 77;
        assert_int_equal(os_file_write(path, bytes, sizes[i], 0600, NULL), INSPAN_OK);
        assert_int_equal(os_file_read(path, 1 << 20, &data, &n, NULL), INSPAN_OK);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(data, bytes, n);
        assert_int_equal(data[n], 0);
        free(data);
    }
    free(bytes);
    assert_int_equal(entries(root), 1); /* no temporary file */
}

static void the_cap_is_exact(void **state)
{
    (void)state;
    static const size_t caps[] = {0, 1, 2, 4095, 4096, 4097, 8193};
    char *bytes = calloc(1, 8194);
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        char *data = NULL;
        size_t n = 0;
        inspan_error_t err;
        assert_int_equal(os_file_write(path, bytes, caps[i], 0600, NULL), INSPAN_OK);
        assert_int_equal(os_file_read(path, caps[i], &data, &n, &err), INSPAN_OK);
        assert_int_equal(n, caps[i]);
        free(data);
        data = NULL;
        assert_int_equal(os_file_write(path, bytes, caps[i] + 1, 0600, NULL), INSPAN_OK);
        assert_int_equal(os_file_read(path, caps[i], &data, &n, &err), INSPAN_LIMIT);
        assert_null(data);
        assert_non_null(strstr(err.text, path));
    }
    free(bytes);
}

/* The kernel's files say that they are empty. */
static void a_file_that_hides_its_length_is_read(void **state)
{
    (void)state;
    char *data = NULL;
    size_t bytes = 0;
    assert_int_equal(os_file_read("/proc/self/status", 1 << 20, &data, &bytes, NULL), INSPAN_OK);
    assert_true(bytes > 100 && strlen(data) == bytes);
    free(data);
}

static void *write_pipe(void *pipe)
{
    int fd = open(pipe, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    (void)!write(fd, "from ", 5);
    (void)!write(fd, "a pipe", 6);
    close(fd);
    return NULL;
}

static void a_pipe_is_read_but_not_awaited_for_ever(void **state)
{
    (void)state;
    char *data = NULL, pipe[PATH_MAX + 8];
    size_t bytes = 0;
    inspan_error_t err;
    pthread_t writer;
    snprintf(pipe, sizeof pipe, "%s.pipe", path);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    alarm(50); /* without its bound it would block */
    assert_int_equal(os_file_read(pipe, 100, &data, &bytes, &err), INSPAN_TIMEOUT);
    assert_non_null(strstr(err.text, pipe));
    assert_int_equal(pthread_create(&writer, NULL, write_pipe, pipe), 0);
    holds(pipe, "from a pipe");
    pthread_join(writer, NULL);
    alarm(0);
    assert_int_equal(unlink(pipe), 0);
}

static void what_cannot_be_read_is_named(void **state)
{
    (void)state;
    char *data = NULL, below[PATH_MAX + 8];
    size_t bytes = 0;
    inspan_error_t err;
    int before = entries("/proc/self/fd");
    assert_int_equal(os_file_write(path, "x", 1, 0600, NULL), INSPAN_OK);
    assert_int_equal(os_file_read("/nowhere/at/all", 10, &data, &bytes, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    snprintf(below, sizeof below, "%s/x", path);
    assert_int_equal(os_file_read(below, 10, &data, &bytes, NULL), INSPAN_NOT_FOUND);
    assert_int_equal(os_file_read(root, 10, &data, &bytes, &err), INSPAN_IO);
    assert_non_null(strstr(err.text, root));
    if (geteuid() != 0) { /* root may read all */
        chmod(path, 0);
        assert_int_equal(os_file_read(path, 10, &data, &bytes, &err), INSPAN_IO);
        assert_non_null(strstr(err.text, strerror(EACCES)));
    }
    assert_null(data);
    assert_int_equal(entries("/proc/self/fd"), before);
}

static void the_mode_is_the_one_asked_for(void **state)
{
    (void)state;
    struct stat info;
    unlink(path);
    assert_int_equal(os_file_write(path, "secret", 6, 0600, NULL), INSPAN_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(os_file_write(path, "public", 6, 0644, NULL), INSPAN_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
}

/* Nothing of the new file is to be seen before the commit, nor after an abandon. */
static void a_writer_shows_all_or_nothing(void **state)
{
    (void)state;
    os_file_writer_t *writer = NULL;
    assert_int_equal(os_file_write(path, "old", 3, 0600, NULL), INSPAN_OK);
    assert_int_equal(os_file_writer_open(path, 0600, &writer, NULL), INSPAN_OK);
    assert_int_equal(os_file_writer_add(writer, "ne", 2, NULL), INSPAN_OK);
    holds(path, "old");
    os_file_writer_abandon(writer);
    holds(path, "old");
    assert_int_equal(entries(root), 1);
    assert_int_equal(os_file_writer_open(path, 0600, &writer, NULL), INSPAN_OK);
    assert_int_equal(os_file_writer_add(writer, "n", 1, NULL), INSPAN_OK);
    assert_int_equal(os_file_writer_add(writer, "", 0, NULL), INSPAN_OK);
    assert_int_equal(os_file_writer_add(writer, "ew", 2, NULL), INSPAN_OK);
    holds(path, "old");
    assert_int_equal(os_file_writer_commit(writer, NULL), INSPAN_OK);
    holds(path, "new");
    assert_int_equal(entries(root), 1);
}

/* A relative path and one without a folder are synced, too. */
static void a_relative_path_is_written(void **state)
{
    (void)state;
    char before[PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(root), 0);
    assert_int_equal(os_file_write("file", "here", 4, 0600, NULL), INSPAN_OK);
    assert_int_equal(os_file_write("./file", "there", 5, 0600, NULL), INSPAN_OK);
    assert_int_equal(chdir(before), 0);
    holds(path, "there");
}

static void where_nothing_can_be_written_nothing_changes(void **state)
{
    (void)state;
    char folder[PATH_MAX + 16], inside[PATH_MAX + 32], *too_long = malloc(PATH_MAX + 2);
    inspan_error_t err;
    int before = entries("/proc/self/fd");
    assert_int_equal(os_file_write("/nowhere/file", "x", 1, 0600, &err), INSPAN_IO);
    assert_non_null(strstr(err.text, "/nowhere/file"));
    assert_non_null(strstr(err.text, strerror(ENOENT)));
    memset(too_long, 'a', PATH_MAX + 1);
    too_long[PATH_MAX + 1] = '\0';
    assert_int_equal(os_file_write(too_long, "x", 1, 0600, &err), INSPAN_INVALID);
    free(too_long);
    snprintf(folder, sizeof folder, "%s/folder", root);
    snprintf(inside, sizeof inside, "%s/inside", folder);
    assert_int_equal(os_mkdir_all(folder, 0700, NULL), INSPAN_OK);
    assert_int_equal(os_file_write(inside, "kept", 4, 0600, NULL), INSPAN_OK);
    assert_int_equal(os_file_write(folder, "x", 1, 0600, &err), INSPAN_IO); /* the rename fails */
    assert_non_null(strstr(err.text, folder));
    holds(inside, "kept");
    assert_int_equal(entries(root), 2); /* file and folder */
    assert_int_equal(os_remove_all(folder, NULL), INSPAN_OK);
    assert_int_equal(entries("/proc/self/fd"), before);
}

/* ---- A full disk ----------------------------------------------------------------------------- */

/* path stays "old", the new file is nowhere, and the text says why. Returns what is wrong, or NULL. */
static const char *refused_whole(const char *folder, size_t bytes, int cause)
{
    char name[PATH_MAX];
    inspan_error_t err = {.status = INSPAN_OK};
    char *data = NULL;
    size_t n = 0;
    snprintf(name, sizeof name, "%s/disk", folder);
    if (os_file_write(name, "old", 3, 0600, &err) != INSPAN_OK) return "the old file was not written";
    char *big = calloc(1, bytes);
    if (big == NULL) return "memory";
    inspan_status_t status = os_file_write(name, big, bytes, 0600, &err);
    free(big);
    if (status != INSPAN_IO || err.status != INSPAN_IO) return "no IO error";
    if (strstr(err.text, name) == NULL) return "the text does not name the file";
    if (strstr(err.text, strerror(cause)) == NULL) return "the text does not name the cause";
    if (os_file_read(name, 100, &data, &n, &err) != INSPAN_OK || n != 3 || memcmp(data, "old", 3) != 0)
        return "the old file is not as it was";
    free(data);
    if (entries(folder) != 1) return "the temporary file is still there";
    if (os_file_write(name, "new", 3, 0600, &err) != INSPAN_OK) return "no room again";
    return NULL;
}

static void a_file_beyond_the_limit_leaves_the_old_one(void **state)
{
    (void)state;
    char folder[PATH_MAX];
    struct rlimit before;
    snprintf(folder, sizeof folder, "%s/limited", root);
    assert_int_equal(os_mkdir_all(folder, 0700, NULL), INSPAN_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = {.rlim_cur = 10000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const char *fault = refused_whole(folder, 10001, EFBIG);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    if (fault != NULL) fail_msg("%s", fault);
    assert_int_equal(os_remove_all(folder, NULL), INSPAN_OK);
}

enum { CHILD_SKIPPED = 77 };

static bool write_text(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

/* Mounts of one's own: as root, or as the root of a user namespace. */
static bool unshare_mounts(void)
{
    char uids[40], gids[40];
    if (geteuid() == 0) return unshare(CLONE_NEWNS) == 0;
    snprintf(uids, sizeof uids, "0 %u 1", geteuid());
    snprintf(gids, sizeof gids, "0 %u 1", getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/setgroups", "deny") &&
           write_text("/proc/self/uid_map", uids) && write_text("/proc/self/gid_map", gids);
}

/* A disk of 1 MB that only this process sees. */
static int fill_disk(const char *folder)
{
    if (!unshare_mounts() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", 0, "size=1m") != 0)
        return CHILD_SKIPPED;
    const char *fault = refused_whole(folder, 3 << 20, ENOSPC);
    if (fault == NULL) return 0;
    fprintf(stderr, "%s\n", fault);
    return 1;
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    char folder[PATH_MAX];
    int status = 0;
    snprintf(folder, sizeof folder, "%s/disk", root);
    assert_int_equal(os_mkdir_all(folder, 0700, NULL), INSPAN_OK);
    pid_t pid = fork();
    if (pid == 0) _exit(fill_disk(folder));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(os_remove_all(folder, NULL), INSPAN_OK);
    if (WEXITSTATUS(status) == CHILD_SKIPPED) {
        print_message("skipped: no disk of one's own may be mounted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_killed_writer_leaves_the_old_file(void **state)
{
    (void)state;
    int status = 0;
    assert_int_equal(os_file_write(path, "old", 3, 0600, NULL), INSPAN_OK);
    pid_t pid = fork();
    if (pid == 0) {
        os_file_writer_t *writer = NULL;
        if (os_file_writer_open(path, 0600, &writer, NULL) != INSPAN_OK ||
            os_file_writer_add(writer, "half", 4, NULL) != INSPAN_OK)
            _exit(1);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    holds(path, "old");
    char left[PATH_MAX + 32];
    snprintf(left, sizeof left, "%s.tmp-%d", path, (int)pid); /* the name that others know to pass over */
    holds(left, "half");
    unlink(left);
}

/* ---- Folders --------------------------------------------------------------------------------- */

static void folders_are_made_whole(void **state)
{
    (void)state;
    char deep[PATH_MAX], with_slashes[PATH_MAX + 8];
    struct stat info;
    snprintf(deep, sizeof deep, "%s/a/b/c", root);
    for (int twice = 0; twice < 2; twice++) assert_int_equal(os_mkdir_all(deep, 0700, NULL), INSPAN_OK);
    assert_int_equal(stat(deep, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    assert_int_equal(info.st_mode & 0777, 0700);
    snprintf(with_slashes, sizeof with_slashes, "%s/a//b/c/d/", root);
    assert_int_equal(os_mkdir_all(with_slashes, 0700, NULL), INSPAN_OK);
    snprintf(deep, sizeof deep, "%s/a/b/c/d", root);
    assert_int_equal(stat(deep, &info), 0);
    snprintf(deep, sizeof deep, "%s/a", root);
    assert_int_equal(os_remove_all(deep, NULL), INSPAN_OK);
    assert_int_equal(os_mkdir_all("/", 0700, NULL), INSPAN_OK);
}

static void a_file_in_the_way_of_a_folder_is_told(void **state)
{
    (void)state;
    char below[PATH_MAX + 8], *too_long = malloc(PATH_MAX + 1);
    inspan_error_t err;
    assert_int_equal(os_file_write(path, "x", 1, 0600, NULL), INSPAN_OK);
    assert_int_equal(os_mkdir_all(path, 0700, &err), INSPAN_IO);
    assert_non_null(strstr(err.text, path));
    snprintf(below, sizeof below, "%s/b", path);
    assert_int_equal(os_mkdir_all(below, 0700, &err), INSPAN_IO);
    assert_int_equal(os_mkdir_all("", 0700, &err), INSPAN_INVALID);
    memset(too_long, 'a', PATH_MAX);
    too_long[PATH_MAX] = '\0';
    assert_int_equal(os_mkdir_all(too_long, 0700, &err), INSPAN_INVALID);
    free(too_long);
    holds(path, "x");
}

static void removing_does_not_follow_links(void **state)
{
    (void)state;
    char tree[PATH_MAX], link[PATH_MAX + 16];
    assert_int_equal(os_file_write(path, "kept", 4, 0600, NULL), INSPAN_OK);
    snprintf(tree, sizeof tree, "%s/tree/deeper", root);
    assert_int_equal(os_mkdir_all(tree, 0700, NULL), INSPAN_OK);
    snprintf(link, sizeof link, "%s/to-file", tree);
    assert_int_equal(symlink(path, link), 0);
    snprintf(link, sizeof link, "%s/to-folder", tree);
    assert_int_equal(symlink(root, link), 0);
    snprintf(tree, sizeof tree, "%s/tree", root);
    for (int twice = 0; twice < 2; twice++) assert_int_equal(os_remove_all(tree, NULL), INSPAN_OK);
    holds(path, "kept");
    assert_int_equal(entries(root), 1);
}

static void random_bytes_differ(void **state)
{
    (void)state;
    uint8_t a[32] = {0}, b[32] = {0};
    assert_int_equal(os_random(a, sizeof a), INSPAN_OK);
    assert_int_equal(os_random(b, sizeof b), INSPAN_OK);
    assert_memory_not_equal(a, b, sizeof a);
    memcpy(b, a, sizeof b);
    assert_int_equal(os_random(a, 0), INSPAN_OK);
    assert_memory_equal(a, b, sizeof a);
}

static void uuids_are_random_and_well_formed(void **state)
{
    (void)state;
    char before[OS_UUID_TEXT] = "", text[OS_UUID_TEXT];
    for (int i = 0; i < 100; i++) {
        assert_int_equal(os_uuid(text), INSPAN_OK);
        assert_int_equal(strlen(text), 36);
        assert_int_equal(strspn(text, "0123456789abcdef-"), 36);
        assert_true(text[8] == '-' && text[13] == '-' && text[18] == '-' && text[23] == '-');
        assert_int_equal(text[14], '4');
        assert_non_null(strchr("89ab", text[19]));
        assert_string_not_equal(text, before);
        memcpy(before, text, sizeof before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_bytes_are_read),
        cmocka_unit_test(the_cap_is_exact),
        cmocka_unit_test(a_file_that_hides_its_length_is_read),
        cmocka_unit_test(a_pipe_is_read_but_not_awaited_for_ever),
        cmocka_unit_test(what_cannot_be_read_is_named),
        cmocka_unit_test(the_mode_is_the_one_asked_for),
        cmocka_unit_test(a_writer_shows_all_or_nothing),
        cmocka_unit_test(a_relative_path_is_written),
        cmocka_unit_test(where_nothing_can_be_written_nothing_changes),
        cmocka_unit_test(a_file_beyond_the_limit_leaves_the_old_one),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(a_killed_writer_leaves_the_old_file),
        cmocka_unit_test(folders_are_made_whole),
        cmocka_unit_test(a_file_in_the_way_of_a_folder_is_told),
        cmocka_unit_test(removing_does_not_follow_links),
        cmocka_unit_test(random_bytes_differ),
        cmocka_unit_test(uuids_are_random_and_well_formed),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
