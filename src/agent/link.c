#include "agent/link.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

struct link {
    rpc_client_t *client;
    inbox_t *inbox;
    char fixed_address[64]; /* empty: looked up */
    pthread_t thread;
    pthread_mutex_t mutex;
    os_cond_t changed;
    rpc_stream_t *stream;
    bool stopping, in_use; /* in_use: the loop thread may send on the stream */
};

static bool is_stopping(link_t *link)
{
    pthread_mutex_lock(&link->mutex);
    bool stopping = link->stopping;
    pthread_mutex_unlock(&link->mutex);
    return stopping;
}

static void pause_for(link_t *link, ns_t duration)
{
    ns_t deadline = os_now() + duration;
    pthread_mutex_lock(&link->mutex);
    while (!link->stopping)
        if (!os_cond_wait_until(&link->changed, &link->mutex, deadline)) break;
    pthread_mutex_unlock(&link->mutex);
}

static inspan_status_t own_address(const link_t *link, char address[64], inspan_error_t *err)
{
    if (link->fixed_address[0] == '\0') return rpc_client_local_address(link->client, address, 64, err);
    memcpy(address, link->fixed_address, 64);
    return INSPAN_OK;
}

/* Read until it ends. true: at least one message came. */
static bool read_stream(link_t *link, rpc_stream_t *stream, const char *address, inspan_error_t *err)
{
    bool any = false;
    for (;;) {
        ProtobufCMessage *message = NULL;
        inspan_status_t status = rpc_stream_next(stream, NS_PER_S, &message, err);
        if (status == INSPAN_TIMEOUT) {
            char now[64] = "";
            if (own_address(link, now, NULL) == INSPAN_OK && strcmp(now, address) != 0) {
                error_set(err, INSPAN_UNREACHABLE, "this machine's address changed from %s to %s", address,
                          now);
                rpc_stream_cancel(stream);
                return any;
            }
            continue;
        }
        if (status != INSPAN_OK || message == NULL) {
            if (status == INSPAN_OK) error_set(err, INSPAN_OK, "the manager ended the session");
            return any;
        }
        any = true;
        if (inbox_post(link->inbox, (inbox_message_t){LINK_MESSAGE, 0, message}) != INSPAN_OK)
            protobuf_c_message_free_unpacked(message, NULL);
    }
}

static void post_down(link_t *link, uint64_t kind, const inspan_error_t *err)
{
    inspan_error_t *copy = malloc(sizeof *copy);
    if (copy != NULL) *copy = *err;
    if (inbox_post(link->inbox, (inbox_message_t){LINK_DOWN, kind, copy}) != INSPAN_OK) free(copy);
}

/* The stream is not closed under the loop thread's hands. */
static void wait_until_let_go(link_t *link)
{
    pthread_mutex_lock(&link->mutex);
    while (link->in_use && !link->stopping)
        os_cond_wait(&link->changed, &link->mutex); /* LINK_DOWN is posted: the loop lets go, or closes */
    link->stream = NULL;
    pthread_mutex_unlock(&link->mutex);
}

/* One stream from open to end. true: the manager spoke on it. */
static bool run_stream(link_t *link, inspan_error_t *err)
{
    link_up_t *up = calloc(1, sizeof *up);
    rpc_stream_t *stream = NULL;
    char address[64];
    if (up == NULL) error_set(err, INSPAN_NO_MEMORY, "no memory for the session with the manager");
    if (up == NULL || own_address(link, up->address, err) != INSPAN_OK ||
        rpc_stream_open(link->client, "/inspan.v1.Agents/Attach", &inspan__v1__agent_down__descriptor,
                        &stream, err) != INSPAN_OK) {
        free(up);
        post_down(link, LINK_NEVER_UP, err);
        return false;
    }
    up->stream = stream;
    memcpy(address, up->address, sizeof address);
    pthread_mutex_lock(&link->mutex);
    link->stream = stream;
    link->in_use = true;
    bool stopping = link->stopping;
    pthread_mutex_unlock(&link->mutex);
    bool spoke = false;
    if (stopping || inbox_post(link->inbox, (inbox_message_t){LINK_UP, 0, up}) != INSPAN_OK)
        free(up);
    else
        spoke = read_stream(link, stream, address, err);
    post_down(link, LINK_WAS_UP, err);
    wait_until_let_go(link);
    rpc_stream_close(stream);
    return spoke;
}

static void *run(void *context)
{
    link_t *link = context;
    ns_t pause = 100 * NS_PER_MS;
    while (!is_stopping(link)) {
        inspan_error_t err = {.status = INSPAN_OK};
        if (run_stream(link, &err)) pause = 100 * NS_PER_MS;
        pause_for(link, pause);
        pause = pause * 2 < NS_PER_S ? pause * 2 : NS_PER_S;
    }
    return NULL;
}

inspan_status_t link_open(rpc_client_t *client, const char *address, inbox_t *inbox, link_t **out,
                          inspan_error_t *err)
{
    link_t *link = calloc(1, sizeof *link);
    if (link == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the session with the manager");
    pthread_mutex_init(&link->mutex, NULL);
    os_cond_open(&link->changed);
    link->client = client;
    link->inbox = inbox;
    if (address != NULL) snprintf(link->fixed_address, sizeof link->fixed_address, "%s", address);
    if (pthread_create(&link->thread, NULL, run, link) != 0) {
        free(link);
        return error_set(err, INSPAN_IO, "cannot start a thread");
    }
    *out = link;
    return INSPAN_OK;
}

void link_let_go(link_t *link)
{
    pthread_mutex_lock(&link->mutex);
    link->in_use = false;
    os_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
}

void link_close(link_t *link)
{
    if (link == NULL) return;
    pthread_mutex_lock(&link->mutex);
    link->stopping = true;
    link->in_use = false;
    if (link->stream != NULL) rpc_stream_cancel(link->stream);
    os_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
    pthread_join(link->thread, NULL);
    os_cond_close(&link->changed);
    pthread_mutex_destroy(&link->mutex);
    free(link);
}
