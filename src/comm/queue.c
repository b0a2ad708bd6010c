/* Finished operations for a thread that waits for all of them at once (<inspan/open.h>). */
#include <inspan/open.h>

#include <stdlib.h>

#include "comm/internal.h"
#include "platform/os/os_time.h"

typedef struct queue_entry {
    inspan_queue_t *queue;
    inspan_finished_t finished;
    struct queue_entry *next;
} queue_entry_t;

struct inspan_queue {
    pthread_mutex_t lock;
    os_cond_t changed;
    queue_entry_t *first, *last;
    bool woken;
};

inspan_status_t inspan_queue_open(inspan_queue_t **out)
{
    inspan_queue_t *queue = calloc(1, sizeof *queue);
    if (queue == NULL) return INSPAN_NO_MEMORY;
    pthread_mutex_init(&queue->lock, NULL);
    os_cond_open(&queue->changed);
    *out = queue;
    return INSPAN_OK;
}

void inspan_queue_close(inspan_queue_t *queue)
{
    if (queue == NULL) return;
    while (queue->first != NULL) {
        queue_entry_t *entry = queue->first;
        queue->first = entry->next;
        free(entry);
    }
    os_cond_close(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/* On the I/O thread, or on the caller's where it had finished already. */
static void put(void *context, inspan_status_t status)
{
    queue_entry_t *entry = context;
    inspan_queue_t *queue = entry->queue;
    entry->finished.status = status;
    pthread_mutex_lock(&queue->lock);
    if (queue->first == NULL)
        queue->first = entry;
    else
        queue->last->next = entry;
    queue->last = entry;
    os_cond_signal(&queue->changed); /* under the lock: it may be closed once what we put is taken */
    pthread_mutex_unlock(&queue->lock);
}

inspan_status_t inspan_op_to_queue(inspan_op_t *op, inspan_queue_t *queue, uint64_t token)
{
    queue_entry_t *entry = malloc(sizeof *entry);
    if (entry == NULL) return INSPAN_NO_MEMORY;
    *entry = (queue_entry_t){.queue = queue, .finished = {.token = token}};
    comm_op_on_done(op, put, entry);
    return INSPAN_OK;
}

inspan_status_t inspan_queue_take(inspan_queue_t *queue, int64_t timeout_ns, inspan_finished_t *finished,
                                  size_t most, size_t *n)
{
    const ns_t now = os_now();
    const ns_t until = timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
    *n = 0;
    pthread_mutex_lock(&queue->lock);
    bool waiting = true;
    while (queue->first == NULL && !queue->woken && waiting)
        waiting = os_cond_wait_until(&queue->changed, &queue->lock, until);
    const inspan_status_t status = queue->first != NULL || queue->woken ? INSPAN_OK : INSPAN_TIMEOUT;
    queue->woken = false;
    while (queue->first != NULL && *n < most) {
        queue_entry_t *entry = queue->first;
        queue->first = entry->next;
        finished[(*n)++] = entry->finished;
        free(entry);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

void inspan_queue_wake(inspan_queue_t *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->woken = true;
    os_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
