#include "agent/inbox.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "platform/os/os_time.h"

struct inbox {
    pthread_mutex_t mutex;
    pthread_cond_t room, arrived;
    inbox_wake_fn wake;
    void *context;
    inbox_drop_fn drop;
    bool shut;
    size_t capacity, first, n;
    inbox_message_t messages[]; /* (capacity) a ring */
};

inbox_t *inbox_open(size_t capacity, inbox_wake_fn wake, void *context, inbox_drop_fn drop)
{
    inbox_t *inbox = calloc(1, sizeof *inbox + capacity * sizeof inbox->messages[0]);
    if (inbox == NULL) return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&inbox->mutex, NULL);
    pthread_cond_init(&inbox->room, &monotonic);
    pthread_cond_init(&inbox->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    inbox->wake = wake;
    inbox->context = context;
    inbox->drop = drop;
    inbox->capacity = capacity;
    return inbox;
}

void inbox_close(inbox_t *inbox)
{
    inbox_message_t message;
    if (inbox == NULL) return;
    while (inbox_take(inbox, &message, 0))
        if (inbox->drop != NULL) inbox->drop(&message);
    pthread_cond_destroy(&inbox->room);
    pthread_cond_destroy(&inbox->arrived);
    pthread_mutex_destroy(&inbox->mutex);
    free(inbox);
}

inspan_status_t inbox_post(inbox_t *inbox, inbox_message_t message)
{
    pthread_mutex_lock(&inbox->mutex);
    while (inbox->n == inbox->capacity && !inbox->shut) pthread_cond_wait(&inbox->room, &inbox->mutex);
    bool queued = !inbox->shut;
    if (queued) inbox->messages[(inbox->first + inbox->n++) % inbox->capacity] = message;
    pthread_cond_signal(&inbox->arrived);
    pthread_mutex_unlock(&inbox->mutex);
    if (queued && inbox->wake != NULL) inbox->wake(inbox->context);
    return queued ? INSPAN_OK : INSPAN_ABORTED;
}

void inbox_shut(inbox_t *inbox)
{
    pthread_mutex_lock(&inbox->mutex);
    inbox->shut = true;
    pthread_cond_broadcast(&inbox->room);
    pthread_mutex_unlock(&inbox->mutex);
}

bool inbox_take(inbox_t *inbox, inbox_message_t *message, ns_t timeout)
{
    ns_t deadline = timeout > 0 ? os_now() + timeout : 0;
    struct timespec until = {.tv_sec = deadline / NS_PER_S, .tv_nsec = deadline % NS_PER_S};
    pthread_mutex_lock(&inbox->mutex);
    while (inbox->n == 0 && timeout > 0)
        if (pthread_cond_timedwait(&inbox->arrived, &inbox->mutex, &until) != 0) break;
    bool taken = inbox->n > 0;
    if (taken) {
        *message = inbox->messages[inbox->first];
        inbox->first = (inbox->first + 1) % inbox->capacity;
        inbox->n--;
        pthread_cond_signal(&inbox->room);
    }
    pthread_mutex_unlock(&inbox->mutex);
    return taken;
}
