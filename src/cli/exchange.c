#include "cli/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "cli/client.h"
#include "platform/os/os_file.h"

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct source {
    const char *path;
    int fd;
    uint8_t *buffer; /* (EXCHANGE_CHUNK) */
} source_t;

/* Without O_NONBLOCK a named pipe would hold us until somebody writes. */
static inspan_status_t open_source(const char *path, source_t *source, inspan_error_t *err)
{
    struct stat info;
    *source = (source_t){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (source->fd < 0)
        return error_set_errno(err, errno == ENOENT ? INSPAN_NOT_FOUND : INSPAN_IO, "%s", path);
    bool plain = fstat(source->fd, &info) == 0 && S_ISREG(info.st_mode);
    if (plain) source->buffer = malloc(EXCHANGE_CHUNK);
    if (source->buffer != NULL) return INSPAN_OK;
    close(source->fd);
    source->fd = -1;
    if (plain) return error_set(err, INSPAN_NO_MEMORY, "%s: no memory to read it", path);
    return error_set(err, INSPAN_IO, "%s: not a plain file", path);
}

static void close_source(source_t *source)
{
    if (source->fd >= 0) close(source->fd);
    free(source->buffer);
}

/* The next chunk; *n 0 at the end. */
static inspan_status_t read_source(source_t *source, size_t *n, inspan_error_t *err)
{
    size_t used = 0;
    while (used < EXCHANGE_CHUNK) {
        ssize_t got = read(source->fd, source->buffer + used, EXCHANGE_CHUNK - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_errno(err, INSPAN_IO, "%s: reading", source->path);
        if (got == 0) break;
        used += (size_t)got;
    }
    *n = used;
    return INSPAN_OK;
}

inspan_status_t exchange_hash(const char *path, char hash[EXCHANGE_HASH_SIZE], uint64_t *bytes,
                              inspan_error_t *err)
{
    source_t source;
    inspan_status_t status = open_source(path, &source, err);
    if (status != INSPAN_OK) return status;
    hash_stream_t *stream = hash_stream_open();
    if (stream == NULL) status = error_set(err, INSPAN_NO_MEMORY, "%s: out of memory", path);
    size_t n = 1;
    *bytes = 0;
    while (status == INSPAN_OK && n > 0) {
        status = read_source(&source, &n, err);
        if (status != INSPAN_OK || n == 0) break;
        hash_stream_add(stream, source.buffer, n);
        *bytes += n;
    }
    if (stream != NULL) hash_stream_finish128_hex(stream, hash);
    close_source(&source);
    return status;
}

/* ---- Sending --------------------------------------------------------------------------------- */

static inspan_status_t is_there(rpc_client_t *client, const char *hash, uint64_t bytes, bool *there,
                                inspan_error_t *err)
{
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)(uintptr_t)hash;
    id.bytes = bytes;
    Inspan__V1__FileStat *reply =
        client_call(client, "Files/Stat", &id.base, &inspan__v1__file_stat__descriptor, err);
    if (reply == NULL) return err->status;
    *there = reply->present;
    client_free(reply);
    return INSPAN_OK;
}

static inspan_status_t send_chunks(rpc_stream_t *stream, source_t *source, const char *hash, uint64_t bytes,
                                   const exchange_put_options_t *options, inspan_error_t *err)
{
    uint64_t sent = 0;
    size_t n = 1;
    inspan_status_t status = INSPAN_OK;
    if (options->progress != NULL) options->progress(options->context, 0, bytes);
    do { /* an empty file is one empty chunk */
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        status = read_source(source, &n, err);
        if (status != INSPAN_OK || (n == 0 && sent > 0)) break;
        chunk.hash = (char *)(uintptr_t)hash;
        chunk.total_bytes = bytes;
        chunk.data = (ProtobufCBinaryData){.len = n, .data = source->buffer};
        sent += n;
        if (sent > bytes) break;
        if (options->interrupt != NULL && interrupt_wait(options->interrupt, 0) > 0)
            return error_set(err, INSPAN_ABORTED, "interrupted while %s was sent", source->path);
        status = rpc_stream_send(stream, &chunk.base, EXCHANGE_BOUND, err);
        if (status == INSPAN_OK && options->progress != NULL)
            options->progress(options->context, sent, bytes);
    } while (status == INSPAN_OK && n > 0);
    if (status == INSPAN_OK && sent != bytes)
        return error_set(err, INSPAN_CORRUPT, "%s changed while it was sent: had %" PRIu64 " bytes",
                         source->path, bytes);
    return status;
}

inspan_status_t exchange_put(rpc_client_t *client, const char *path, const char *hash, uint64_t bytes,
                             const exchange_put_options_t *options, inspan_error_t *err)
{
    static const exchange_put_options_t none = {0};
    bool there = false;
    inspan_status_t status = is_there(client, hash, bytes, &there, err);
    if (status != INSPAN_OK || there) return status;
    source_t source;
    status = open_source(path, &source, err);
    if (status != INSPAN_OK) return status;
    rpc_stream_t *stream = NULL;
    ProtobufCMessage *reply = NULL;
    status =
        rpc_stream_open(client, "/inspan.v1.Files/Put", &inspan__v1__file_stat__descriptor, &stream, err);
    if (status == INSPAN_OK)
        status = send_chunks(stream, &source, hash, bytes, options != NULL ? options : &none, err);
    if (status == INSPAN_OK) {
        rpc_stream_half_close(stream);
        status = rpc_stream_next(stream, EXCHANGE_BOUND, &reply, err);
    }
    if (status == INSPAN_OK &&
        (reply == NULL || !((const Inspan__V1__FileStat *)(const void *)reply)->present))
        status = error_set(err, INSPAN_IO, "%s: the manager did not keep it", path);
    client_free(reply);
    if (stream != NULL) rpc_stream_close(stream);
    close_source(&source);
    return status;
}

/* ---- Fetching -------------------------------------------------------------------------------- */

/* Chunks until the end of the stream into the writer; the hash of all. */
static inspan_status_t receive(rpc_stream_t *stream, uint64_t bytes, os_file_writer_t *writer, char *hash,
                               inspan_error_t *err)
{
    hash_stream_t *sum = hash_stream_open();
    if (sum == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    inspan_status_t status;
    uint64_t got = 0;
    for (;;) {
        ProtobufCMessage *message = NULL;
        status = rpc_stream_next(stream, EXCHANGE_BOUND, &message, err);
        if (status != INSPAN_OK || message == NULL) break;
        const Inspan__V1__FileChunk *chunk = (const void *)message;
        got += chunk->data.len;
        if (got > bytes)
            status =
                error_set(err, INSPAN_CORRUPT, "the manager sends more than the %" PRIu64 " bytes", bytes);
        if (status == INSPAN_OK) status = os_file_writer_add(writer, chunk->data.data, chunk->data.len, err);
        if (status == INSPAN_OK) hash_stream_add(sum, chunk->data.data, chunk->data.len);
        client_free(message);
        if (status != INSPAN_OK) break;
    }
    hash_stream_finish128_hex(sum, hash);
    if (status == INSPAN_OK && got != bytes)
        status = error_set(err, INSPAN_CORRUPT, "only %" PRIu64 " of %" PRIu64 " bytes came", got, bytes);
    return status;
}

inspan_status_t exchange_get(rpc_client_t *client, const char *hash, uint64_t bytes, const char *path,
                             inspan_error_t *err)
{
    char found[EXCHANGE_HASH_SIZE] = "";
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)(uintptr_t)hash;
    id.bytes = bytes;
    rpc_stream_t *stream = NULL;
    os_file_writer_t *writer = NULL;
    inspan_status_t status =
        rpc_stream_open(client, "/inspan.v1.Files/Get", &inspan__v1__file_chunk__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(stream, &id.base, EXCHANGE_BOUND, err);
    if (status == INSPAN_OK) {
        rpc_stream_half_close(stream);
        status = os_file_writer_open(path, 0644, &writer, err);
    }
    if (status == INSPAN_OK) status = receive(stream, bytes, writer, found, err);
    if (status == INSPAN_OK && strcmp(found, hash) != 0)
        status = error_set(err, INSPAN_CORRUPT, "its content has hash %s, expected %.40s", found, hash);
    if (status == INSPAN_OK)
        status = os_file_writer_commit(writer, err);
    else if (writer != NULL)
        os_file_writer_abandon(writer);
    rpc_stream_close(stream);
    return status;
}
