#include "platform/os/os_time.h"

#include <time.h>

static ns_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (ns_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

ns_t os_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

ns_t os_wall_now(void)
{
    return read_clock(CLOCK_REALTIME);
}

ns_t os_thread_cpu(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

ns_t os_process_cpu(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
