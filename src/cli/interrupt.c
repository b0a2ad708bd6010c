#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

bool interrupt_open(interrupt_t *interrupt)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    interrupt->count = 0;
    signal(SIGPIPE, SIG_IGN); /* a reader that went away must not keep us from taking things down */
    sigprocmask(SIG_BLOCK, &set, NULL);
    interrupt->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return interrupt->fd >= 0;
}

void interrupt_close(interrupt_t *interrupt)
{
    if (interrupt->fd >= 0) close(interrupt->fd);
    interrupt->fd = -1;
}

uint32_t interrupt_wait(interrupt_t *interrupt, ns_t timeout)
{
    struct signalfd_siginfo info;
    struct pollfd ready = {.fd = interrupt->fd, .events = POLLIN};
    if (interrupt->fd < 0 || poll(&ready, 1, (int)((timeout + NS_PER_MS - 1) / NS_PER_MS)) != 1)
        return interrupt->count;
    while (read(interrupt->fd, &info, sizeof info) == (ssize_t)sizeof info) interrupt->count++;
    return interrupt->count;
}
