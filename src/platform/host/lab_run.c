/* Running the programs ip and tc. */
#include "platform/host/lab_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_spawn.h"
#include "platform/os/os_time.h"

bool lab_find_program(const char *name, char *path, size_t size)
{
    static const char *const folders[] = {"/usr/sbin", "/sbin", "/usr/bin", "/bin"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, size, "%s/%s", folders[i], name);
        if (access(path, X_OK) == 0) return true;
    }
    return false;
}

/* Read what the program says until it closes its end; false: it did not before the deadline. */
static bool read_all(int fd, ns_t deadline, char *text, size_t size)
{
    size_t used = 0;
    bool ended = false;
    while (!ended) {
        char rest[256];
        bool full = used + 1 >= size;
        ns_t left = deadline - os_now();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int n = left <= 0 ? 0 : poll(&ready, 1, (int)(left / NS_PER_MS) + 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        ssize_t got = full ? read(fd, rest, sizeof rest) : read(fd, text + used, size - 1 - used);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) ended = true;
        if (got > 0 && !full) used += (size_t)got;
    }
    text[used] = '\0';
    for (char *at = text; *at != '\0'; at++)
        if (*at == '\n') *at = at[1] == '\0' ? '\0' : ' ';
    return ended;
}

/* Wait for its end, which follows at once on that of its output; kill it at the deadline. */
static void await_end(os_process_t *process, os_exit_t *result, ns_t deadline)
{
    while (!os_process_poll(process, result)) {
        struct pollfd ended = {.fd = process->pidfd, .events = POLLIN};
        poll(&ended, process->pidfd >= 0, 5);
        if (os_now() >= deadline) os_process_signal(process, SIGKILL);
    }
}

inspan_status_t lab_run_words(const char *const *words, inspan_error_t *err)
{
    char complaint[256];
    return lab_run_output(words, complaint, sizeof complaint, err);
}

inspan_status_t lab_run_output(const char *const *words, char *text, size_t size, inspan_error_t *err)
{
    char path[64], line[256] = "";
    const char *program = words[0];
    text[0] = '\0';
    for (size_t i = 0, used = 0; words[i] != NULL && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, i > 0 ? " %s" : "%s", words[i]);
    if (!lab_find_program(program, path, sizeof path))
        return error_set(err, INSPAN_UNSUPPORTED, "program %s is not installed (package iproute2)", program);

    int ends[2];
    os_process_t process;
    os_exit_t result = {0};
    if (pipe2(ends, O_CLOEXEC) != 0) return error_set_errno(err, INSPAN_IO, "pipe");
    os_spawn_options_t options = {.program = path, .arguments = words, .output = ends[1]};
    inspan_status_t status = os_spawn(&options, &process, err);
    close(ends[1]);
    if (status == INSPAN_OK) {
        ns_t deadline = os_now() + LAB_BOUND;
        if (!read_all(ends[0], deadline, text, size)) os_process_signal(&process, SIGKILL);
        await_end(&process, &result, deadline);
    }
    close(ends[0]);
    if (status != INSPAN_OK || result.code == 0) return status;
    return error_set(err, INSPAN_IO, "laboratory: \"%s\" failed: %s", line,
                     text[0] != '\0' ? text : "no message");
}
