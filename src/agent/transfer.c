#include "agent/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

enum { CHUNK_BYTES = 1 << 20 };

static const ns_t unary_timeout = 10 * NS_PER_S;
static const ns_t chunk_timeout = 20 * NS_PER_S; /* a chunk each way on a bad Wi-Fi */

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

/* false: cancelled */
static bool set_stream(transfer_t *transfer, rpc_stream_t *stream)
{
    pthread_mutex_lock(&transfer->mutex);
    transfer->stream = stream;
    bool go_on = !transfer->cancelled;
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

static inspan_status_t open_stream(transfer_t *transfer, const char *path,
                                   const ProtobufCMessageDescriptor *reply, rpc_stream_t **stream,
                                   inspan_error_t *err)
{
    inspan_status_t status = rpc_stream_open(transfer->client, path, reply, stream, err);
    if (status != INSPAN_OK) return status;
    if (set_stream(transfer, *stream)) return INSPAN_OK;
    set_stream(transfer, NULL);
    rpc_stream_close(*stream);
    return error_set(err, INSPAN_ABORTED, "transfer given up");
}

static void close_stream(transfer_t *transfer, rpc_stream_t *stream)
{
    set_stream(transfer, NULL);
    rpc_stream_close(stream);
}

/* ---- Hash ------------------------------------------------------------------------------------ */

inspan_status_t transfer_hash(transfer_t *transfer, const char *path, char hash[33], uint64_t *bytes,
                              inspan_error_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno == ENOENT ? INSPAN_NOT_FOUND : INSPAN_IO, "cannot read %s", path);
    hash_stream_t *stream = hash_stream_open();
    char *buffer = malloc(CHUNK_BYTES);
    inspan_status_t status = stream == NULL || buffer == NULL
                                 ? error_set(err, INSPAN_NO_MEMORY, "no memory to hash %s", path)
                                 : INSPAN_OK;
    *bytes = 0;
    while (status == INSPAN_OK) {
        ssize_t got = read(fd, buffer, CHUNK_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = error_set_errno(err, INSPAN_IO, "cannot read %s", path);
        if (got <= 0) break;
        hash_stream_add(stream, buffer, (size_t)got);
        *bytes += (uint64_t)got;
        if (is_cancelled(transfer))
            status = error_set(err, INSPAN_ABORTED, "given up while reading %s", path);
    }
    if (stream != NULL) hash_stream_finish128_hex(stream, hash);
    free(buffer);
    close(fd);
    return status;
}

/* ---- Get ------------------------------------------------------------------------------------- */

static inspan_status_t receive(rpc_stream_t *stream, uint64_t bytes, os_file_writer_t *writer,
                               hash_stream_t *hash, inspan_error_t *err)
{
    uint64_t got = 0;
    for (;;) {
        ProtobufCMessage *message = NULL;
        inspan_status_t status = rpc_stream_next(stream, chunk_timeout, &message, err);
        if (status != INSPAN_OK) return status;
        if (message == NULL) break;
        const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)message;
        if (chunk->data.len > bytes - got) {
            status =
                error_set(err, INSPAN_CORRUPT, "the manager sent more than the %llu bytes that the file has",
                          (unsigned long long)bytes);
        } else {
            hash_stream_add(hash, chunk->data.data, chunk->data.len);
            got += chunk->data.len;
            status = os_file_writer_add(writer, chunk->data.data, chunk->data.len, err);
        }
        protobuf_c_message_free_unpacked(message, NULL);
        if (status != INSPAN_OK) return status;
    }
    if (got == bytes) return INSPAN_OK;
    return error_set(err, INSPAN_CORRUPT, "the manager sent %llu of the file's %llu bytes",
                     (unsigned long long)got, (unsigned long long)bytes);
}

static inspan_status_t get_once(transfer_t *transfer, const char *hash, uint64_t bytes, const char *path,
                                inspan_error_t *err)
{
    rpc_stream_t *stream = NULL;
    os_file_writer_t *writer = NULL;
    inspan_status_t status =
        open_stream(transfer, "/inspan.v1.Files/Get", &inspan__v1__file_chunk__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)(uintptr_t)hash;
    id.bytes = bytes;
    status = rpc_stream_send(stream, &id.base, unary_timeout, err);
    rpc_stream_half_close(stream);
    hash_stream_t *hasher = hash_stream_open();
    if (status == INSPAN_OK && hasher == NULL)
        status = error_set(err, INSPAN_NO_MEMORY, "no memory for a transfer");
    if (status == INSPAN_OK) status = os_file_writer_open(path, 0600, &writer, err);
    if (status == INSPAN_OK) status = receive(stream, bytes, writer, hasher, err);
    close_stream(transfer, stream);
    char found[33] = "";
    if (hasher != NULL) hash_stream_finish128_hex(hasher, found);
    if (status == INSPAN_OK && strcmp(found, hash) != 0)
        status = error_set(err, INSPAN_CORRUPT, "a fetched file has hash %s, not %s", found, hash);
    if (status == INSPAN_OK) return os_file_writer_commit(writer, err);
    if (writer != NULL) os_file_writer_abandon(writer);
    return status;
}

/* A status that another try may mend: the manager is away or restarts, the network hiccups. */
static bool may_mend(inspan_status_t status)
{
    return status == INSPAN_UNREACHABLE || status == INSPAN_TIMEOUT || status == INSPAN_PEER_LOST ||
           status == INSPAN_ABORTED;
}

typedef struct job { /* one transfer, to be tried again */
    bool put;
    const char *path, *hash;
    uint64_t bytes;
} job_t;

static inspan_status_t put_once(transfer_t *transfer, const job_t *job, inspan_error_t *err);

static inspan_status_t persist(transfer_t *transfer, const job_t *job, ns_t patience, inspan_error_t *err)
{
    ns_t deadline = os_now() + patience, pause = 100 * NS_PER_MS;
    for (;;) {
        inspan_status_t status = job->put ? put_once(transfer, job, err)
                                          : get_once(transfer, job->hash, job->bytes, job->path, err);
        if (status == INSPAN_OK) return status;
        if (is_cancelled(transfer))
            return error_set(err, INSPAN_ABORTED, "transfer of %s given up", job->path);
        if (!may_mend(status) || os_now() >= deadline) return status;
        pause_for(transfer, pause);
        pause = pause * 2 < NS_PER_S ? pause * 2 : NS_PER_S;
    }
}

inspan_status_t transfer_get(transfer_t *transfer, const char *hash, uint64_t bytes, const char *path,
                             ns_t patience, inspan_error_t *err)
{
    job_t job = {.path = path, .hash = hash, .bytes = bytes};
    return persist(transfer, &job, patience, err);
}

/* ---- Put ------------------------------------------------------------------------------------- */

/* One question and one answer, as a stream: those can be cancelled. */
static inspan_status_t is_present(transfer_t *transfer, const job_t *job, bool *present, inspan_error_t *err)
{
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    ProtobufCMessage *reply = NULL;
    rpc_stream_t *stream = NULL;
    id.hash = (char *)(uintptr_t)job->hash;
    id.bytes = job->bytes;
    inspan_status_t status =
        open_stream(transfer, "/inspan.v1.Files/Stat", &inspan__v1__file_stat__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(stream, &id.base, unary_timeout, err);
    rpc_stream_half_close(stream);
    if (status == INSPAN_OK) status = rpc_stream_next(stream, unary_timeout, &reply, err);
    if (status == INSPAN_OK && reply == NULL)
        status = error_set(err, INSPAN_CORRUPT, "the manager does not say whether it has %s", job->path);
    close_stream(transfer, stream);
    if (reply == NULL) return status;
    *present = ((const Inspan__V1__FileStat *)reply)->present;
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

/* The first chunk names the file; an empty file is that chunk alone. */
static inspan_status_t send_chunks(rpc_stream_t *stream, int fd, const job_t *job, inspan_error_t *err)
{
    uint8_t *buffer = malloc(CHUNK_BYTES);
    if (buffer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to send %s", job->path);
    inspan_status_t status = INSPAN_OK;
    uint64_t sent = 0;
    do {
        ssize_t got = read(fd, buffer, CHUNK_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 || (got == 0 && sent < job->bytes)) {
            status = error_set(err, INSPAN_IO, "%s changed or cannot be read while it is sent", job->path);
            break;
        }
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        if (sent == 0) {
            chunk.hash = (char *)(uintptr_t)job->hash;
            chunk.total_bytes = job->bytes;
        }
        chunk.data.data = buffer;
        chunk.data.len = (size_t)got;
        status = rpc_stream_send(stream, &chunk.base, chunk_timeout, err);
        sent += (uint64_t)got;
    } while (status == INSPAN_OK && sent < job->bytes);
    free(buffer);
    return status;
}

static inspan_status_t put_once(transfer_t *transfer, const job_t *job, inspan_error_t *err)
{
    bool present = false;
    inspan_status_t status = is_present(transfer, job, &present, err);
    if (status != INSPAN_OK || present) return status;
    rpc_stream_t *stream = NULL;
    int fd = open(job->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(err, INSPAN_IO, "cannot read %s", job->path);
    status = open_stream(transfer, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor, &stream, err);
    if (status != INSPAN_OK) {
        close(fd);
        return status;
    }
    inspan_error_t why = {.status = INSPAN_OK};
    inspan_status_t sent = send_chunks(stream, fd, job, &why);
    rpc_stream_half_close(stream);
    ProtobufCMessage *reply = NULL;
    /* Where sending failed because the manager ended the call, its own words say more. */
    status = rpc_stream_next(stream, sent == INSPAN_OK ? 60 * NS_PER_S : NS_PER_S, &reply, err);
    if (status == INSPAN_OK && reply == NULL)
        status = error_set(err, INSPAN_IO, "the manager did not keep %s", job->path);
    if (reply != NULL) protobuf_c_message_free_unpacked(reply, NULL);
    if (sent != INSPAN_OK && (status == INSPAN_OK || status == INSPAN_TIMEOUT)) {
        status = sent;
        if (err != NULL) *err = why;
    }
    close_stream(transfer, stream);
    close(fd);
    return status;
}

inspan_status_t transfer_put(transfer_t *transfer, const char *path, const char *hash, uint64_t bytes,
                             ns_t patience, inspan_error_t *err)
{
    job_t job = {.put = true, .path = path, .hash = hash, .bytes = bytes};
    return persist(transfer, &job, patience, err);
}
