#include "rpc/rpc_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/os/os_file.h"

#define BOUND    (60 * NS_PER_S) /* a chunk on a bad line; the manager's disk */
#define ITS_WORD NS_PER_S        /* for the manager's reason, when it ended a call while we sent */

static inspan_status_t look(const rpc_file_watch_t *watch, uint64_t done, uint64_t all, inspan_error_t *err)
{
    if (watch == NULL || watch->chunk == NULL) return INSPAN_OK;
    return watch->chunk(watch->context, done, all, err);
}

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct source {
    const char *path;
    int fd;
    uint8_t *buffer; /* (RPC_FILE_CHUNK) */
} source_t;

/* Without O_NONBLOCK a named pipe would hold us until somebody writes. */
static inspan_status_t open_source(const char *path, source_t *source, inspan_error_t *err)
{
    struct stat info;
    *source = (source_t){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (source->fd < 0)
        return error_set_errno(err, errno == ENOENT ? INSPAN_NOT_FOUND : INSPAN_IO, "%s", path);
    bool plain = fstat(source->fd, &info) == 0 && S_ISREG(info.st_mode);
    if (plain) source->buffer = malloc(RPC_FILE_CHUNK);
    if (source->buffer != NULL) return INSPAN_OK;
    close(source->fd);
    if (plain) return error_set(err, INSPAN_NO_MEMORY, "%s: no memory to read it", path);
    return error_set(err, INSPAN_IO, "%s: not a plain file", path);
}

static void close_source(source_t *source)
{
    close(source->fd);
    free(source->buffer);
}

/* The next chunk; *n 0 at the end. */
static inspan_status_t read_source(source_t *source, size_t *n, inspan_error_t *err)
{
    *n = 0;
    while (*n < RPC_FILE_CHUNK) {
        ssize_t got = read(source->fd, source->buffer + *n, RPC_FILE_CHUNK - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_errno(err, INSPAN_IO, "%s: reading", source->path);
        if (got == 0) break;
        *n += (size_t)got;
    }
    return INSPAN_OK;
}

inspan_status_t rpc_file_hash(const char *path, const rpc_file_watch_t *watch, char hash[RPC_FILE_HASH],
                              uint64_t *bytes, inspan_error_t *err)
{
    source_t source;
    inspan_status_t status = open_source(path, &source, err);
    if (status != INSPAN_OK) return status;
    hash_stream_t *stream = hash_stream_open();
    if (stream == NULL) status = error_set(err, INSPAN_NO_MEMORY, "%s: no memory to hash it", path);
    *bytes = 0;
    while (status == INSPAN_OK) {
        size_t n = 0;
        status = look(watch, *bytes, 0, err);
        if (status == INSPAN_OK) status = read_source(&source, &n, err);
        if (status != INSPAN_OK || n == 0) break;
        hash_stream_add(stream, source.buffer, n);
        *bytes += n;
    }
    if (stream != NULL) hash_stream_finish128_hex(stream, hash);
    close_source(&source);
    return status;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static inspan_status_t open_stream(rpc_client_t *client, const char *method, const rpc_file_watch_t *watch,
                                   const ProtobufCMessageDescriptor *reply, rpc_stream_t **stream,
                                   inspan_error_t *err)
{
    inspan_status_t status = rpc_stream_open(client, method, reply, stream, err);
    if (status != INSPAN_OK || watch == NULL || watch->stream == NULL) return status;
    if (watch->stream(watch->context, *stream)) return INSPAN_OK;
    rpc_stream_close(*stream);
    return error_set(err, INSPAN_ABORTED, "transfer given up");
}

static void close_stream(rpc_stream_t *stream, const rpc_file_watch_t *watch)
{
    if (watch != NULL && watch->stream != NULL) watch->stream(watch->context, NULL);
    rpc_stream_close(stream);
}

/* A call whose request names the file: also a unary one is a stream, since those can be cancelled. */
static inspan_status_t ask(rpc_client_t *client, const char *method, const rpc_file_t *file,
                           const rpc_file_watch_t *watch, const ProtobufCMessageDescriptor *reply,
                           rpc_stream_t **stream, inspan_error_t *err)
{
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = (char *)(uintptr_t)file->hash;
    id.bytes = file->bytes;
    inspan_status_t status = open_stream(client, method, watch, reply, stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(*stream, &id.base, BOUND, err);
    rpc_stream_half_close(*stream);
    if (status != INSPAN_OK) close_stream(*stream, watch);
    return status;
}

/* The one answer of Stat and Put: whether the manager has the file. */
static inspan_status_t read_stat(rpc_stream_t *stream, ns_t bound, bool *present, inspan_error_t *err)
{
    ProtobufCMessage *reply = NULL;
    inspan_status_t status = rpc_stream_next(stream, bound, &reply, err);
    *present = reply != NULL && ((const Inspan__V1__FileStat *)(const void *)reply)->present;
    if (reply != NULL) protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

/* ---- Put ------------------------------------------------------------------------------------- */

/* The first chunk names the file; an empty file is that chunk alone. *ended: it was the call that failed. */
static inspan_status_t send_chunks(rpc_stream_t *stream, source_t *source, const rpc_file_t *file,
                                   const rpc_file_watch_t *watch, bool *ended, inspan_error_t *err)
{
    uint64_t sent = 0;
    for (;;) {
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        size_t n = 0;
        inspan_status_t status = look(watch, sent, file->bytes, err);
        if (status == INSPAN_OK) status = read_source(source, &n, err);
        if (status != INSPAN_OK) return status;
        if (n > file->bytes - sent || (n == 0 && sent < file->bytes))
            return error_set(err, INSPAN_CORRUPT, "%s changed while it was sent: had %llu bytes", file->path,
                             (unsigned long long)file->bytes);
        if (n == 0 && sent > 0) return INSPAN_OK;
        if (sent == 0) {
            chunk.hash = (char *)(uintptr_t)file->hash;
            chunk.total_bytes = file->bytes;
        }
        chunk.data = (ProtobufCBinaryData){.len = n, .data = source->buffer};
        status = rpc_stream_send(stream, &chunk.base, BOUND, err);
        *ended = status != INSPAN_OK;
        if (status != INSPAN_OK || n == 0) return status;
        sent += n;
    }
}

static inspan_status_t send_file(rpc_client_t *client, source_t *source, const rpc_file_t *file,
                                 const rpc_file_watch_t *watch, inspan_error_t *err)
{
    rpc_stream_t *stream = NULL;
    inspan_error_t its_word = {.status = INSPAN_OK};
    bool present = false, ended = false;
    inspan_status_t status =
        open_stream(client, "/inspan.v1.Files/Put", watch, &inspan__v1__file_stat__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = send_chunks(stream, source, file, watch, &ended, err);
    rpc_stream_half_close(stream);
    if (status == INSPAN_OK) {
        status = read_stat(stream, BOUND, &present, err);
        if (status == INSPAN_OK && !present)
            status = error_set(err, INSPAN_IO, "%s: the manager did not keep it", file->path);
    } else if (ended) { /* perhaps by the manager: then its own words say more */
        const inspan_status_t why = read_stat(stream, ITS_WORD, &present, &its_word);
        if (why != INSPAN_OK && why != INSPAN_TIMEOUT) {
            status = why;
            if (err != NULL) *err = its_word;
        }
    }
    close_stream(stream, watch);
    return status;
}

inspan_status_t rpc_file_put(rpc_client_t *client, const rpc_file_t *file, const rpc_file_watch_t *watch,
                             inspan_error_t *err)
{
    rpc_stream_t *stream = NULL;
    source_t source;
    bool present = false;
    inspan_status_t status =
        ask(client, "/inspan.v1.Files/Stat", file, watch, &inspan__v1__file_stat__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = read_stat(stream, BOUND, &present, err);
    close_stream(stream, watch);
    if (status != INSPAN_OK || present) return status;
    status = open_source(file->path, &source, err);
    if (status != INSPAN_OK) return status;
    status = send_file(client, &source, file, watch, err);
    close_source(&source);
    return status;
}

/* ---- Get ------------------------------------------------------------------------------------- */

/* Chunks until the end of the stream, into writer and hash. */
static inspan_status_t receive(rpc_stream_t *stream, const rpc_file_t *file, const rpc_file_watch_t *watch,
                               os_file_writer_t *writer, hash_stream_t *hash, inspan_error_t *err)
{
    uint64_t got = 0;
    for (;;) {
        ProtobufCMessage *message = NULL;
        inspan_status_t status = look(watch, got, file->bytes, err);
        if (status == INSPAN_OK) status = rpc_stream_next(stream, BOUND, &message, err);
        if (status != INSPAN_OK) return status;
        if (message == NULL) break;
        const Inspan__V1__FileChunk *chunk = (const void *)message;
        const size_t n = chunk->data.len;
        if (n > file->bytes - got)
            status = error_set(err, INSPAN_CORRUPT, "the manager sends more than the file's %llu bytes",
                               (unsigned long long)file->bytes);
        else
            status = os_file_writer_add(writer, chunk->data.data, n, err);
        if (status == INSPAN_OK) hash_stream_add(hash, chunk->data.data, n);
        got += n;
        protobuf_c_message_free_unpacked(message, NULL);
        if (status != INSPAN_OK) return status;
    }
    if (got == file->bytes) return INSPAN_OK;
    return error_set(err, INSPAN_CORRUPT, "the manager sent %llu of the file's %llu bytes",
                     (unsigned long long)got, (unsigned long long)file->bytes);
}

inspan_status_t rpc_file_get(rpc_client_t *client, const rpc_file_t *file, mode_t permissions,
                             const rpc_file_watch_t *watch, inspan_error_t *err)
{
    rpc_stream_t *stream = NULL;
    os_file_writer_t *writer = NULL;
    char found[RPC_FILE_HASH] = "";
    inspan_status_t status =
        ask(client, "/inspan.v1.Files/Get", file, watch, &inspan__v1__file_chunk__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    hash_stream_t *hash = hash_stream_open();
    if (hash == NULL) status = error_set(err, INSPAN_NO_MEMORY, "no memory for a transfer");
    if (status == INSPAN_OK) status = os_file_writer_open(file->path, permissions, &writer, err);
    if (status == INSPAN_OK) status = receive(stream, file, watch, writer, hash, err);
    close_stream(stream, watch);
    if (hash != NULL) hash_stream_finish128_hex(hash, found);
    if (status == INSPAN_OK && strcmp(found, file->hash) != 0)
        status = error_set(err, INSPAN_CORRUPT, "what came has hash %s, expected %.40s", found, file->hash);
    if (status == INSPAN_OK) return os_file_writer_commit(writer, err);
    if (writer != NULL) os_file_writer_abandon(writer);
    return status;
}
