/* The manager as a process: ready file, token, signals, a taken port, a second manager. gRPC runs in children
 * only. */
#include "manager/manager.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define PATIENT (20 * NS_PER_S)

static char folder[64], state_folder[96], ready[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-main-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(state_folder, sizeof state_folder, "%s/manager", folder);
    snprintf(ready, sizeof ready, "%s/ready", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) == INSPAN_OK ? 0 : -1;
}

typedef struct child {
    pid_t pid;
    int errors; /* its stderr */
} child_t;

static child_t start(const char *listen)
{
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    unlink(ready);
    child_t child = {.pid = fork(), .errors = pipes[0]};
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        dup2(pipes[1], STDERR_FILENO);
        manager_options_t options = {.folder = state_folder, .listen = listen, .ready_file = ready};
        _exit(manager_main(&options));
    }
    close(pipes[1]);
    return child;
}

/* The exit code, or -1: ended by a signal. errors gets what it printed. */
static int finish(child_t *child, char *errors, size_t size)
{
    size_t used = 0;
    ns_t deadline = os_now() + PATIENT;
    for (;;) {
        struct pollfd poller = {.fd = child->errors, .events = POLLIN};
        char spill[256];
        if (os_now() > deadline || poll(&poller, 1, 1000) < 0) kill(child->pid, SIGKILL);
        if (poller.revents == 0) continue;
        ssize_t got = used + 1 < size ? read(child->errors, errors + used, size - 1 - used)
                                      : read(child->errors, spill, sizeof spill);
        if (got <= 0) break;
        if (used + 1 < size) used += (size_t)got;
    }
    errors[used] = '\0';
    close(child->errors);
    int how = 0;
    assert_int_equal(waitpid(child->pid, &how, 0), child->pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

static uint16_t wait_until_ready(child_t *child, char token[80])
{
    for (ns_t deadline = os_now() + PATIENT; os_now() < deadline;
         usleep(2000)) { /* not a wait: the deadline decides */
        char *text = NULL;
        size_t bytes = 0;
        if (os_file_read(ready, 200, &text, &bytes, NULL) != INSPAN_OK) continue;
        unsigned port = 0;
        int fields = sscanf(text, "%u\n%79s\n", &port, token);
        free(text);
        assert_int_equal(fields, 2);
        return (uint16_t)port;
    }
    kill(child->pid, SIGKILL);
    fail_msg("not ready");
    return 0;
}

static bool answers(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return good;
}

static unsigned mode_of(const char *name)
{
    char path[160];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", state_folder, name);
    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 0777;
}

static void starts_answers_and_stops(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    char token[80] = "", again[80] = "", errors[2000];
    for (int round = 0; round < 2; round++) {
        child_t child = start("127.0.0.1:0");
        uint16_t port = wait_until_ready(&child, round == 0 ? token : again);
        assert_true(answers(port));
        kill(child.pid, signals[round]);
        assert_int_equal(finish(&child, errors, sizeof errors), 0);
        assert_string_equal(errors, "");
        assert_false(answers(port));
    }
    assert_int_equal(strlen(token), 48);
    assert_string_equal(again, token); /* join commands given out go on working */
    assert_int_equal(mode_of("token"), 0600);
    assert_int_equal(mode_of("registry.db"), 0600);
    struct stat info;
    assert_int_equal(stat(ready, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

static void a_taken_port_is_a_clear_error(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    char where[64], errors[2000];
    snprintf(where, sizeof where, "127.0.0.1:%u", ntohs(address.sin_port));
    child_t child = start(where);
    assert_int_equal(finish(&child, errors, sizeof errors), 1);
    assert_non_null(strstr(errors, "inspan: "));
    assert_non_null(strstr(errors, where));
    assert_int_equal(access(ready, F_OK), -1);
    close(fd);
}

static void a_folder_has_one_manager(void **state)
{
    (void)state;
    char token[80], errors[2000];
    child_t first = start("127.0.0.1:0");
    wait_until_ready(&first, token);
    child_t second = start("127.0.0.1:0");
    assert_int_equal(finish(&second, errors, sizeof errors), 1);
    assert_non_null(strstr(errors, "another manager (process "));
    kill(first.pid, SIGKILL); /* nothing is left in the way of the next one */
    assert_int_equal(finish(&first, errors, sizeof errors), -1);
    child_t third = start("127.0.0.1:0");
    wait_until_ready(&third, token);
    kill(third.pid, SIGTERM);
    assert_int_equal(finish(&third, errors, sizeof errors), 0);
}

static void a_bad_token_file_is_named(void **state)
{
    (void)state;
    char path[160], errors[2000];
    assert_int_equal(os_mkdir_all(state_folder, 0700, NULL), INSPAN_OK);
    snprintf(path, sizeof path, "%s/token", state_folder);
    assert_int_equal(os_file_write(path, "short\n", 6, 0600, NULL), INSPAN_OK);
    child_t child = start("127.0.0.1:0");
    assert_int_equal(finish(&child, errors, sizeof errors), 1);
    assert_non_null(strstr(errors, path));
    assert_null(strstr(errors, "short")); /* no secret goes into a log */
}

/* Moved aside, and the manager serves: it is no reason to keep agents and people waiting. */
static void a_damaged_registry_is_moved_aside(void **state)
{
    (void)state;
    char path[160], errors[4000], bytes[4096];
    assert_int_equal(os_mkdir_all(state_folder, 0700, NULL), INSPAN_OK);
    snprintf(path, sizeof path, "%s/registry.db", state_folder);
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(os_file_write(path, bytes, sizeof bytes, 0600, NULL), INSPAN_OK);
    child_t child = start("127.0.0.1:0");
    char token[80] = "";
    (void)wait_until_ready(&child, token);
    assert_int_equal(kill(child.pid, SIGTERM), 0);
    assert_int_equal(finish(&child, errors, sizeof errors), 0);
    assert_non_null(strstr(errors, "was moved to"));
    assert_non_null(strstr(errors, "registry.db.damaged-"));
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(starts_answers_and_stops),          IN_FOLDER(a_taken_port_is_a_clear_error),
        IN_FOLDER(a_folder_has_one_manager),          IN_FOLDER(a_bad_token_file_is_named),
        IN_FOLDER(a_damaged_registry_is_moved_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
