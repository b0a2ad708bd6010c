#include "agent/transfer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

struct transfer {
    rpc_client_t *client;
    pthread_mutex_t mutex;
    os_cond_t changed;
    rpc_stream_t *stream; /* that cancel ends */
    bool cancelled;
};

transfer_t *transfer_open(rpc_client_t *client)
{
    transfer_t *transfer = calloc(1, sizeof *transfer);
    if (transfer == NULL) return NULL;
    pthread_mutex_init(&transfer->mutex, NULL);
    os_cond_open(&transfer->changed);
    transfer->client = client;
    return transfer;
}

void transfer_close(transfer_t *transfer)
{
    if (transfer == NULL) return;
    os_cond_close(&transfer->changed);
    pthread_mutex_destroy(&transfer->mutex);
    free(transfer);
}

void transfer_cancel(transfer_t *transfer)
{
    pthread_mutex_lock(&transfer->mutex);
    transfer->cancelled = true;
    if (transfer->stream != NULL) rpc_stream_cancel(transfer->stream);
    os_cond_broadcast(&transfer->changed);
    pthread_mutex_unlock(&transfer->mutex);
}

static bool is_cancelled(transfer_t *transfer)
{
    pthread_mutex_lock(&transfer->mutex);
    bool cancelled = transfer->cancelled;
    pthread_mutex_unlock(&transfer->mutex);
    return cancelled;
}

static bool on_stream(void *context, rpc_stream_t *stream)
{
    transfer_t *transfer = context;
    pthread_mutex_lock(&transfer->mutex);
    const bool go_on = stream == NULL || !transfer->cancelled;
    transfer->stream = go_on ? stream : NULL;
    pthread_mutex_unlock(&transfer->mutex);
    return go_on;
}

static void pause_for(transfer_t *transfer, ns_t duration)
{
    ns_t deadline = os_now() + duration;
    pthread_mutex_lock(&transfer->mutex);
    while (!transfer->cancelled)
        if (!os_cond_wait_until(&transfer->changed, &transfer->mutex, deadline)) break;
    pthread_mutex_unlock(&transfer->mutex);
}

static inspan_status_t on_chunk(void *context, uint64_t done, uint64_t all, inspan_error_t *err)
{
    (void)done, (void)all;
    return is_cancelled(context) ? error_set(err, INSPAN_ABORTED, "transfer given up") : INSPAN_OK;
}

inspan_status_t transfer_hash(transfer_t *transfer, const char *path, char hash[RPC_FILE_HASH],
                              uint64_t *bytes, inspan_error_t *err)
{
    const rpc_file_watch_t watch = {.context = transfer, .chunk = on_chunk};
    return rpc_file_hash(path, &watch, hash, bytes, err);
}

/* A status that another try may mend: the manager is away or restarts, the network hiccups. */
static bool may_mend(inspan_status_t status)
{
    return status == INSPAN_UNREACHABLE || status == INSPAN_TIMEOUT || status == INSPAN_PEER_LOST ||
           status == INSPAN_ABORTED;
}

static inspan_status_t persist(transfer_t *transfer, bool put, const rpc_file_t *file, ns_t patience,
                               inspan_error_t *err)
{
    const rpc_file_watch_t watch = {.context = transfer, .chunk = on_chunk, .stream = on_stream};
    ns_t deadline = os_now() + patience, pause = 100 * NS_PER_MS;
    for (;;) {
        inspan_status_t status = put ? rpc_file_put(transfer->client, file, &watch, err)
                                     : rpc_file_get(transfer->client, file, 0600, &watch, err);
        if (status == INSPAN_OK) return status;
        if (is_cancelled(transfer))
            return error_set(err, INSPAN_ABORTED, "transfer of %s given up", file->path);
        if (!may_mend(status) || os_now() >= deadline) return status;
        pause_for(transfer, pause);
        pause = pause * 2 < NS_PER_S ? pause * 2 : NS_PER_S;
    }
}

inspan_status_t transfer_get(transfer_t *transfer, const rpc_file_t *file, ns_t patience, inspan_error_t *err)
{
    return persist(transfer, false, file, patience, err);
}

inspan_status_t transfer_put(transfer_t *transfer, const rpc_file_t *file, ns_t patience, inspan_error_t *err)
{
    return persist(transfer, true, file, patience, err);
}
