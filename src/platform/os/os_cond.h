/*
 * A condition variable on the monotonic clock: what waits with a deadline waits by os_now(), whatever is done
 * to the date. The mutex is the user's own, and held in every wait; a wait may return for no reason, so each
 * stands in a loop that looks at what is waited for:
 *
 *     while (!ready && os_cond_wait_until(&changed, &lock, deadline)) {}
 */
#ifndef OS_COND_H
#define OS_COND_H

#include <pthread.h>
#include <stdbool.h>

#include "base/units.h"

typedef struct os_cond {
    pthread_cond_t cond; /* never for pthread_cond_timedwait of one's own with another clock's time */
} os_cond_t;

void os_cond_open(os_cond_t *cond);
void os_cond_close(os_cond_t *cond); /* nobody waits any more */

/* Blocks until woken or until the deadline: true, look again. False: os_now() has reached the deadline
 * already; the mutex was not let go of, so what was not there when looked at is still not there. */
bool os_cond_wait_until(os_cond_t *cond, pthread_mutex_t *mutex, ns_t deadline);

/* Blocks until woken: only where the one who wakes has a bound of its own (say which). */
void os_cond_wait(os_cond_t *cond, pthread_mutex_t *mutex);

void os_cond_signal(os_cond_t *cond);    /* one waiter, where any of them will do */
void os_cond_broadcast(os_cond_t *cond); /* all waiters */

#endif
