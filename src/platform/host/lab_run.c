/* Running the programs ip and tc. */
#include "platform/host/lab_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_time.h"

extern char **environ;

bool lab_find_program(const char *name, char *path, size_t size)
{
    static const char *const folders[] = {"/usr/sbin", "/sbin", "/usr/bin", "/bin"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, size, "%s/%s", folders[i], name);
        if (access(path, X_OK) == 0) return true;
    }
    return false;
}

static pid_t start_program(const char *path, char *const *words, int stderr_fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, stderr_fd, STDERR_FILENO);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    /* a group of its own: Ctrl-C must not cut it off in the middle of building or removing */
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    pid_t pid = -1;
    int cause = posix_spawn(&pid, path, &files, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    errno = cause;
    return cause == 0 ? pid : -1;
}

/* Read what the program complains about until it closes its end; kill it at the deadline. */
static void read_complaint(int fd, pid_t pid, ns_t deadline, char *text, size_t size)
{
    size_t used = 0;
    for (;;) {
        char rest[256];
        bool full = used + 1 >= size;
        ns_t left = deadline - os_now();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int n = left <= 0 ? 0 : poll(&ready, 1, (int)(left / NS_PER_MS) + 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            kill(pid, SIGKILL);
            break;
        }
        ssize_t got = full ? read(fd, rest, sizeof rest) : read(fd, text + used, size - 1 - used);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (!full) used += (size_t)got;
    }
    text[used] = '\0';
    for (char *at = text; *at != '\0'; at++)
        if (*at == '\n') *at = at[1] == '\0' ? '\0' : ' ';
}

inspan_status_t lab_run(inspan_error_t *err, const char *program, ...)
{
    char path[64], complaint[256] = "", line[256] = "";
    char *words[32];
    size_t n = 0, used = 0;
    va_list args;
    va_start(args, program);
    for (const char *word = program; word != NULL && n < 31; word = va_arg(args, const char *)) {
        words[n++] = (char *)(uintptr_t)word;
        if (used < sizeof line)
            used += (size_t)snprintf(line + used, sizeof line - used, n > 1 ? " %s" : "%s", word);
    }
    va_end(args);
    words[n] = NULL;
    if (!lab_find_program(program, path, sizeof path))
        return error_set(err, INSPAN_UNSUPPORTED, "program %s is not installed (package iproute2)", program);

    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return error_set_errno(err, INSPAN_IO, "pipe");
    pid_t pid = start_program(path, words, ends[1]);
    int cause = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        errno = cause;
        return error_set_errno(err, INSPAN_IO, "starting %s", path);
    }
    read_complaint(ends[0], pid, os_now() + LAB_BOUND, complaint, sizeof complaint);
    close(ends[0]);
    int result = 0;
    while (waitpid(pid, &result, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_IO, "laboratory: \"%s\" failed: %s", line,
                     complaint[0] != '\0' ? complaint : "no message");
}
