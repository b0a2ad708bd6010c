#include "agent/inbox.h"

#include <pthread.h>
#include <stdlib.h>

#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

struct inbox {
    pthread_mutex_t mutex;
    os_cond_t room, arrived;
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
    pthread_mutex_init(&inbox->mutex, NULL);
    os_cond_open(&inbox->room);
    os_cond_open(&inbox->arrived);
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
    os_cond_close(&inbox->room);
    os_cond_close(&inbox->arrived);
    pthread_mutex_destroy(&inbox->mutex);
    free(inbox);
}

inspan_status_t inbox_post(inbox_t *inbox, inbox_message_t message)
{
    pthread_mutex_lock(&inbox->mutex);
    while (inbox->n == inbox->capacity && !inbox->shut)
        os_cond_wait(&inbox->room, &inbox->mutex); /* its owner takes, or shuts it */
    bool queued = !inbox->shut;
    if (queued) inbox->messages[(inbox->first + inbox->n++) % inbox->capacity] = message;
    os_cond_signal(&inbox->arrived);
    pthread_mutex_unlock(&inbox->mutex);
    if (queued && inbox->wake != NULL) inbox->wake(inbox->context);
    return queued ? INSPAN_OK : INSPAN_ABORTED;
}

void inbox_shut(inbox_t *inbox)
{
    pthread_mutex_lock(&inbox->mutex);
    inbox->shut = true;
    os_cond_broadcast(&inbox->room);
    pthread_mutex_unlock(&inbox->mutex);
}

bool inbox_take(inbox_t *inbox, inbox_message_t *message, ns_t timeout)
{
    ns_t deadline = timeout > 0 ? os_now() + timeout : 0;
    pthread_mutex_lock(&inbox->mutex);
    while (inbox->n == 0 && timeout > 0)
        if (!os_cond_wait_until(&inbox->arrived, &inbox->mutex, deadline)) break;
    bool taken = inbox->n > 0;
    if (taken) {
        *message = inbox->messages[inbox->first];
        inbox->first = (inbox->first + 1) % inbox->capacity;
        inbox->n--;
        os_cond_signal(&inbox->room);
    }
    pthread_mutex_unlock(&inbox->mutex);
    return taken;
}
