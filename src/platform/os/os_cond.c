#include "platform/os/os_cond.h"

#include <time.h>

#include "platform/os/os_time.h"

/* On Linux none of these can fail for a valid object: the clock is always there. */
void os_cond_open(os_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&cond->cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void os_cond_close(os_cond_t *cond)
{
    pthread_cond_destroy(&cond->cond);
}

bool os_cond_wait_until(os_cond_t *cond, pthread_mutex_t *mutex, ns_t deadline)
{
    if (os_now() >= deadline) return false;
    struct timespec until = {.tv_sec = deadline / NS_PER_S, .tv_nsec = deadline % NS_PER_S};
    pthread_cond_timedwait(&cond->cond, mutex, &until);
    return true;
}

void os_cond_wait(os_cond_t *cond, pthread_mutex_t *mutex)
{
    pthread_cond_wait(&cond->cond, mutex);
}

void os_cond_signal(os_cond_t *cond)
{
    pthread_cond_signal(&cond->cond);
}

void os_cond_broadcast(os_cond_t *cond)
{
    pthread_cond_broadcast(&cond->cond);
}
