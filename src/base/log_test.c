#include "base/log.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOM 65536 /* what a pipe holds at the least, so that nobody needs to read meanwhile */

/* What write_all logs, by a child of its own (the level is set once a process). n: bytes. */
static char *logged(const char *level, void (*write_all)(void), size_t *n)
{
    static char text[ROOM + 1];
    int ends[2], status = 0;
    *n = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (level != NULL)
            setenv("INSPAN_LOG", level, 1);
        else
            unsetenv("INSPAN_LOG");
        write_all();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; *n < ROOM && (got = read(ends[0], text + *n, ROOM - *n)) > 0;) *n += (size_t)got;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    text[*n] = '\0';
    return text;
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++) n += *text == '\n';
    return n;
}

static void one_of_each(void)
{
    log_set_component("agent");
    log_debug("d %d", 1);
    log_info("i %d", 2);
    log_warn("w %d", 3);
    log_error("e %d", 4);
}

static void levels(void **state)
{
    (void)state;
    static const struct {
        const char *level;
        int lines;
    } rows[] = {{NULL, 2}, {"debug", 4}, {"info", 3}, {"warn", 2}, {"error", 1}, {"nonsense", 2}, {"", 2}};
    size_t n;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(lines_of(logged(rows[i].level, one_of_each, &n)), rows[i].lines);
}

static void silent(void)
{
    log_set_level(LOG_NONE);
    one_of_each();
    log_write(LOG_NONE, "no level");
}

static void set_by_the_program(void **state)
{
    (void)state;
    size_t n;
    assert_string_equal(logged("debug", silent, &n), "");
}

static void a_line_has_time_level_and_component(void **state)
{
    (void)state;
    size_t n;
    int year, month, day, hour, minute, second, ms, used = 0;
    const char *text = logged("error", one_of_each, &n);
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3d %n", &year, &month, &day, &hour, &minute,
                            &second, &ms, &used),
                     7);
    assert_int_equal(used, 24);
    assert_true(year >= 2024 && month >= 1 && month <= 12);
    assert_string_equal(text + used, "ERROR agent: e 4\n");
}

static void long_lines(void)
{
    char text[5000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    log_error("%s", text);
    for (size_t length = 950; length < 1000; length++) log_error("%.*s", (int)length, text);
}

static void a_long_line_is_cut_and_ended(void **state)
{
    (void)state;
    size_t n;
    const char *text = logged(NULL, long_lines, &n);
    assert_int_equal(lines_of(text), 51);
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        size_t length = (size_t)(strchr(at, '\n') - at);
        assert_true(length > 900 && length < 1024);
        assert_int_equal(at[length - 1], 'a');
    }
}

enum { THREADS = 4, TIMES = 100 };

static void *chatter(void *letter)
{
    char text[61];
    memset(text, *(const char *)letter, 60);
    text[60] = '\0';
    for (int i = 0; i < TIMES; i++) log_error("%s", text);
    return NULL;
}

static void many_threads(void)
{
    static char letters[THREADS] = {'w', 'x', 'y', 'z'};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, chatter, &letters[i]) != 0) _exit(1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    size_t n;
    const char *text = logged(NULL, many_threads, &n);
    assert_int_equal(lines_of(text), THREADS * TIMES);
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        const char *end = strchr(at, '\n');
        assert_true(end - at > 60);
        for (int i = 2; i <= 60; i++) assert_int_equal(end[-i], end[-1]);
        assert_int_equal(end[-61], ' ');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels),
        cmocka_unit_test(set_by_the_program),
        cmocka_unit_test(a_line_has_time_level_and_component),
        cmocka_unit_test(a_long_line_is_cut_and_ended),
        cmocka_unit_test(lines_of_threads_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
