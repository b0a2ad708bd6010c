#include "platform/os/os_spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_cgroup.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

/* Wait for its end: by pidfd, with a deadline. */
static os_exit_t wait_end(os_process_t *process)
{
    os_exit_t result = {0};
    ns_t deadline = os_now() + 20 * NS_PER_S;
    while (!os_process_poll(process, &result)) {
        assert_true(os_now() < deadline);
        struct pollfd fd = {.fd = process->pidfd, .events = POLLIN};
        poll(&fd, 1, process->pidfd >= 0 ? 1000 : 20);
    }
    return result;
}

/* Run a shell script with its output in a pipe; the output's bytes. */
static os_exit_t run_script(const char *script, char *output, size_t size)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const char *const arguments[] = {"sh", "-c", script, NULL};
    const char *const environment[] = {"INSPAN_TEST_A=one two", "HOME=/nowhere", NULL};
    os_spawn_options_t options = {"/bin/sh", arguments, environment, "/", ends[1]};
    os_process_t process;
    inspan_error_t err;
    assert_int_equal(os_spawn(&options, &process, &err), INSPAN_OK);
    assert_true(process.start_ticks > 0);
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; used + 1 < size && (got = read(ends[0], output + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    output[used] = '\0';
    close(ends[0]);
    return wait_end(&process);
}

static void test_exit_codes_and_signals(void **state)
{
    (void)state;
    char output[512], text[256];
    os_exit_t result =
        run_script("echo out; echo err >&2; pwd; echo \"$INSPAN_TEST_A $HOME\"; exit 7", output, 512);
    assert_string_equal(output, "out\nerr\n/\none two /nowhere\n");
    assert_int_equal(result.code, 7);
    assert_int_equal(result.signal, 0);
    assert_string_equal(os_exit_text(&result, text, sizeof text), "exit code 7");
    result = run_script("kill -9 $$", output, sizeof output);
    assert_int_equal(result.code, -1);
    assert_int_equal(result.signal, SIGKILL);
    assert_false(result.out_of_memory);
    assert_string_equal(os_exit_text(&result, text, sizeof text), "killed by signal 9 (Killed)");
    result = run_script("kill -ILL $$", output, sizeof output);
    assert_string_equal(os_exit_text(&result, text, sizeof text), "killed by signal 4 (Illegal instruction)");
}

/* Case 31: nothing but 0, 1, 2, whatever this process leaves open; stdin is empty; no signal stays blocked.
 */
static void test_nothing_is_inherited(void **state)
{
    (void)state;
    char output[512];
    int leaked = open("/dev/null", O_RDONLY); /* without close-on-exec, as a careless library does */
    sigset_t blocked, old;
    sigfillset(&blocked);
    sigprocmask(SIG_BLOCK, &blocked, &old);
    run_script("cat; ls /proc/self/fd | tr '\\n' ' '; grep -c 'SigBlk:.0000000000000000' /proc/self/status",
               output, 512);
    sigprocmask(SIG_SETMASK, &old, NULL);
    close(leaked);
    assert_string_equal(output, "0 1 2 3 1\n"); /* 3 is the folder that ls itself reads */
}

static void test_no_such_program(void **state)
{
    (void)state;
    const char *const arguments[] = {"x", NULL};
    os_spawn_options_t options = {"/no/such/program", arguments, NULL, NULL, -1};
    os_process_t process;
    inspan_error_t err;
    assert_int_equal(os_spawn(&options, &process, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "/no/such/program"));
    os_exit_t result;
    assert_false(os_process_poll(&process, &result));
}

/* Case 34: grandchildren that ignore SIGTERM, one of them in a group of its own, are gone when the leader is.
 */
static void test_session_dies_with_its_leader(void **state)
{
    (void)state;
    char output[256];
    os_exit_t result =
        run_script("exec perl -e '$SIG{TERM} = \"IGNORE\"; $| = 1; for $i (0, 1) { pipe R, W; $p = fork;"
                   "if (!$p) { setpgrp(0, 0) if $i; close STDOUT; close STDERR; close W; sleep 300 }"
                   "close W; <R>; print \"$p\\n\" } exit 5'",
                   output, sizeof output);
    assert_int_equal(result.code, 5);
    int pids[2] = {0, 0};
    assert_int_equal(sscanf(output, "%d %d", &pids[0], &pids[1]), 2);
    ns_t deadline = os_now() + 5 * NS_PER_S;
    for (int i = 0; i < 2; i++)
        while (os_process_start_ticks(pids[i]) != 0) { /* the kernel is on it */
            assert_true(os_now() < deadline);
            poll(NULL, 0, 5); /* not a wait: the deadline decides */
        }
}

static void test_leftover_is_known_by_start_time(void **state)
{
    (void)state;
    const char *const arguments[] = {"sleep", "300", NULL};
    os_spawn_options_t options = {"/bin/sleep", arguments, NULL, NULL, -1};
    os_process_t process;
    assert_int_equal(os_spawn(&options, &process, NULL), INSPAN_OK);
    pid_t pid = process.pid;
    assert_int_equal(os_process_start_ticks(pid), process.start_ticks);
    assert_false(os_process_kill_leftover(pid, process.start_ticks + 1)); /* somebody else's pid by now */
    assert_false(os_process_kill_leftover(getpid(), 0));
    os_exit_t result;
    assert_false(os_process_poll(&process, &result));
    assert_true(os_process_kill_leftover(pid, process.start_ticks));
    result = wait_end(&process);
    assert_int_equal(result.signal, SIGKILL);
    assert_int_equal(os_process_start_ticks(pid), 0);
}

/* Case 35: in a group with a limit of its own an OOM kill is told from a plain kill -9. Needs root and a
 * memory group (v1 here; v2 where it delegates memory); this process moves in, as the agent would be inside,
 * and out again. */
static void test_out_of_memory(void **state)
{
    (void)state;
    char group[128], procs[160], value[64];
    snprintf(group, sizeof group, "/sys/fs/cgroup/memory/inspan-test-%d", (int)getpid());
    FILE *own = fopen("/proc/self/cgroup", "re");
    char line[512], home[512] = "";
    while (own != NULL && fgets(line, sizeof line, own) != NULL)
        if (strstr(line, ":memory:") != NULL) sscanf(strstr(line, ":memory:") + 8, "%511s", home);
    if (own != NULL) fclose(own);
    if (home[0] == '\0' || mkdir(group, 0755) != 0) {
        print_message("no memory group can be made here: skipped\n");
        skip();
    }
    snprintf(procs, sizeof procs, "%s/memory.limit_in_bytes", group);
    FILE *file = fopen(procs, "we");
    bool limited = file != NULL && fputs("67108864", file) >= 0 && fclose(file) == 0;
    snprintf(value, sizeof value, "%d", (int)getpid());
    snprintf(procs, sizeof procs, "%s/cgroup.procs", group);
    file = fopen(procs, "we");
    bool inside = limited && file != NULL && fputs(value, file) >= 0 && fclose(file) == 0;
    char output[64], text[256] = "";
    os_exit_t result = {0};
    uint64_t limit = 0;
    if (inside) {
        limit = os_cgroup_memory_limit("", 0);
        result =
            run_script("exec perl -e '$x = \"a\" x 200_000_000; print length $x'", output, sizeof output);
        os_exit_text(&result, text, sizeof text);
        char back[700];
        snprintf(back, sizeof back, "/sys/fs/cgroup/memory%s/cgroup.procs", home);
        file = fopen(back, "we");
        if (file != NULL) {
            fputs(value, file);
            fclose(file);
        }
    }
    rmdir(group);
    if (!inside) skip();
    assert_int_equal(limit, 67108864);
    assert_int_equal(result.signal, SIGKILL);
    assert_true(result.out_of_memory);
    assert_non_null(strstr(text, "out of memory"));
    assert_non_null(strstr(text, "67.1 MB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_codes_and_signals),
        cmocka_unit_test(test_nothing_is_inherited),
        cmocka_unit_test(test_no_such_program),
        cmocka_unit_test(test_session_dies_with_its_leader),
        cmocka_unit_test(test_leftover_is_known_by_start_time),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
