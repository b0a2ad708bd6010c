/* Small messages between ranks. A fixed number of nodes carries all that are on their way out, whatever their
 * peer. */
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

inspan_status_t message_open(inspan_comm_t *comm)
{
    comm->message_nodes = malloc(COMM_MAX_MESSAGES * sizeof *comm->message_nodes);
    if (comm->message_nodes == NULL) return INSPAN_NO_MEMORY;
    for (uint32_t i = 0; i < COMM_MAX_MESSAGES; i++) {
        comm->message_nodes[i].next = comm->free_messages;
        comm->free_messages = &comm->message_nodes[i];
    }
    return INSPAN_OK;
}

static void push(message_queue_t *queue, comm_message_node_t *node)
{
    node->next = NULL;
    if (queue->first == NULL)
        queue->first = node;
    else
        queue->last->next = node;
    queue->last = node;
    queue->n++;
}

static comm_message_node_t *pop(message_queue_t *queue)
{
    comm_message_node_t *node = queue->first;
    if (node != NULL) {
        queue->first = node->next;
        queue->n--;
    }
    return node;
}

void message_close(inspan_comm_t *comm)
{
    for (uint32_t peer = 0; comm->peers != NULL && peer < comm->world; peer++)
        for (comm_message_node_t *node; (node = pop(&comm->peers[peer].kept)) != NULL;) free(node);
    free(comm->message_nodes);
}

inspan_status_t comm_message(inspan_comm_t *comm, uint32_t to, const void *data, size_t bytes)
{
    if (to >= comm->world || bytes == 0 || bytes > COMM_MESSAGE_MAX) return INSPAN_INVALID;
    pthread_mutex_lock(&comm->lock);
    inspan_status_t status = comm->failed ? comm->cause.status : comm->closing ? INSPAN_ABORTED : INSPAN_OK;
    comm_message_node_t *node = comm->free_messages;
    if (status == INSPAN_OK && node == NULL) status = INSPAN_LIMIT;
    if (status == INSPAN_OK) {
        comm->free_messages = node->next;
        node->bytes = (uint32_t)bytes;
        memcpy(node->data, data, bytes);
        push(&comm->peers[to].messages, node);
    }
    pthread_mutex_unlock(&comm->lock);
    if (status == INSPAN_OK) comm_wake(comm);
    return status;
}

size_t message_take(inspan_comm_t *comm, uint32_t peer, uint8_t *frames, size_t room)
{
    size_t used = 0;
    pthread_mutex_lock(&comm->lock);
    message_queue_t *queue = &comm->peers[peer].messages;
    while (queue->first != NULL && room - used >= DATA_HEADER_BYTES + queue->first->bytes) {
        comm_message_node_t *node = pop(queue);
        data_frame_t frame = {.type = DATA_MESSAGE, .length = node->bytes};
        data_encode_frame(&frame, frames + used);
        memcpy(frames + used + DATA_HEADER_BYTES, node->data, node->bytes);
        used += DATA_HEADER_BYTES + node->bytes;
        node->next = comm->free_messages;
        comm->free_messages = node;
    }
    pthread_mutex_unlock(&comm->lock);
    return used;
}

/* Call the handler; false: there is none. The lock must not be held. */
static bool deliver(inspan_comm_t *comm, uint32_t from, const uint8_t *data, size_t bytes)
{
    pthread_mutex_lock(&comm->lock);
    comm_message_fn fn = comm->on_message;
    void *context = comm->on_message_context;
    comm->handler_running = fn != NULL;
    pthread_mutex_unlock(&comm->lock);
    if (fn == NULL) return false;
    fn(context, from, data, bytes);
    pthread_mutex_lock(&comm->lock);
    comm->handler_running = false;
    os_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return true;
}

void message_arrived(inspan_comm_t *comm, uint32_t peer, const uint8_t *data, size_t bytes)
{
    message_queue_t *kept = &comm->peers[peer].kept;
    message_deliver_kept(comm);
    if (kept->first == NULL && deliver(comm, peer, data, bytes)) return;
    if (kept->n >= COMM_MAX_KEPT) {
        fail_peer(comm, peer, INSPAN_LIMIT, "sent more than %d messages before rank %u took the first",
                  COMM_MAX_KEPT, comm_number(comm, comm->rank));
        return;
    }
    comm_message_node_t *node = malloc(sizeof *node);
    if (node == NULL) {
        fail_peer(comm, comm->rank, INSPAN_NO_MEMORY, "has no memory for a message");
        return;
    }
    node->bytes = (uint32_t)bytes;
    memcpy(node->data, data, bytes);
    push(kept, node);
}

/* The oldest of one's own messages to oneself, which wait among those to be sent. */
static comm_message_node_t *pop_own(inspan_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm_message_node_t *node = comm->on_message != NULL ? pop(&comm->peers[comm->rank].messages) : NULL;
    pthread_mutex_unlock(&comm->lock);
    return node;
}

void message_deliver_kept(inspan_comm_t *comm)
{
    for (comm_message_node_t *node; (node = pop_own(comm)) != NULL;) {
        deliver(comm, comm->rank, node->data, node->bytes);
        pthread_mutex_lock(&comm->lock);
        node->next = comm->free_messages;
        comm->free_messages = node;
        pthread_mutex_unlock(&comm->lock);
    }
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        message_queue_t *kept = &comm->peers[peer].kept;
        while (kept->first != NULL && deliver(comm, peer, kept->first->data, kept->first->bytes))
            free(pop(kept));
    }
}

void message_wait_for_handler(inspan_comm_t *comm)
{
    if (comm->transport->is_current(comm->transport_self) || !comm->transport->blocking) return;
    while (comm->handler_running) os_cond_wait(&comm->changed, &comm->lock);
}

void comm_set_message_handler(inspan_comm_t *comm, comm_message_fn fn, void *context)
{
    pthread_mutex_lock(&comm->lock);
    comm->on_message = fn;
    comm->on_message_context = context;
    message_wait_for_handler(comm);
    pthread_mutex_unlock(&comm->lock);
    if (fn != NULL) comm_wake(comm);
}
