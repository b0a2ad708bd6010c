#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/cli.h"
#include "platform/host/lab.h"

/*
 * Where 0, 1 or 2 is closed the next descriptor that is opened would take its place, and output would go into
 * a socket or a file. Libraries open some when they are loaded, so this runs before them, from
 * .preinit_array; plain system calls, since nothing is set up by then.
 */
static void open_standard(int argc, char **argv, char **environment)
{
    (void)argc, (void)argv, (void)environment;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (syscall(SYS_fcntl, fd, F_GETFD) < 0) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
}

static void (*const first)(int, char **, char **)
    __attribute__((section(".preinit_array"), used)) = open_standard;

/* A machine of the laboratory: "inspan --enter-lab WHERE agent ..." moves there before anything else happens.
 */
int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--enter-lab") == 0) {
        inspan_error_t err = {0};
        if (lab_enter(argv[2], &err) != INSPAN_OK) return cli_fail(&err, false);
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    return cli_main(argc, argv);
}
