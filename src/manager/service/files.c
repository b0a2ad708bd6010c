/* Files.Stat, Put, Get: bulk, one piece in memory at a time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "manager/service/service_internal.h"

#define PIECE_BYTES (256u << 10)
#define AHEAD_BYTES (1u << 20) /* so much may wait for a slow reader */
#define PUTS_MAX    64

bool files_present(void *context, const char *hash, uint64_t bytes)
{
    const service_t *service = context;
    uint64_t has = 0;
    return store_stat(service->store, hash, &has) == INSPAN_OK && has == bytes;
}

void files_dropped(void *context, const char *hash)
{
    const service_t *service = context;
    store_remove(service->store, hash);
}

void files_stat(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    const service_t *service = context;
    const Inspan__V1__FileId *id = (const Inspan__V1__FileId *)message;
    Inspan__V1__FileStat reply = INSPAN__V1__FILE_STAT__INIT;
    if (!store_valid_hash(id->hash)) {
        rpc_call_finish(call, INSPAN_INVALID, "a file is named by its hash of 32 digits");
        return;
    }
    reply.hash = id->hash;
    reply.present = store_stat(service->store, id->hash, &reply.bytes) == INSPAN_OK;
    store_touch(service->store, id->hash);
    rpc_call_reply(call, &reply.base);
}

/* ---- Put ---- */

typedef struct upload {
    store_put_t *put; /* NULL: the file is there already, what comes is not looked at; or over */
    bool over;
    char hash[STORE_HASH_TEXT];
} upload_t;

static upload_t *begin_upload(service_t *service, rpc_call_t *call, const Inspan__V1__FileChunk *chunk)
{
    if (service->n_puts >= PUTS_MAX) {
        rpc_call_finish(call, INSPAN_LIMIT, "too many files are being sent to the manager: try again later");
        return NULL;
    }
    upload_t *upload = calloc(1, sizeof *upload);
    if (upload == NULL) {
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return NULL;
    }
    rpc_call_set_data(call, upload);
    service->n_puts++;
    inspan_error_t err;
    if (store_valid_hash(chunk->hash) && files_present(service, chunk->hash, chunk->total_bytes)) {
        snprintf(upload->hash, sizeof upload->hash, "%s", chunk->hash);
    } else if (store_put_begin(service->store, chunk->hash, chunk->total_bytes, &upload->put, &err) !=
               INSPAN_OK) {
        upload->over = true;
        service_fail(call, &err);
    } else {
        snprintf(upload->hash, sizeof upload->hash, "%s", chunk->hash);
    }
    return upload;
}

void files_put(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)message;
    upload_t *upload = rpc_call_data(call);
    if (upload == NULL) upload = begin_upload(context, call, chunk);
    if (upload == NULL || upload->over || upload->put == NULL) return;
    inspan_error_t err;
    if (store_put_add(upload->put, chunk->data.data, chunk->data.len, &err) == INSPAN_OK) return;
    store_put_abandon(upload->put);
    upload->put = NULL;
    upload->over = true;
    service_fail(call, &err);
}

void files_put_half_close(void *context, rpc_call_t *call)
{
    const service_t *service = context;
    upload_t *upload = rpc_call_data(call);
    if (upload == NULL) {
        rpc_call_finish(call, INSPAN_INVALID, "no file came: the first message says its hash and length");
        return;
    }
    if (upload->over) return;
    upload->over = true;
    inspan_error_t err;
    store_put_t *put = upload->put;
    upload->put = NULL;
    if (put != NULL && store_put_commit(put, &err) != INSPAN_OK) {
        service_fail(call, &err);
        return;
    }
    Inspan__V1__FileStat reply = INSPAN__V1__FILE_STAT__INIT;
    reply.hash = upload->hash;
    reply.present = store_stat(service->store, upload->hash, &reply.bytes) == INSPAN_OK;
    rpc_call_reply(call, &reply.base);
}

void files_put_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    upload_t *upload = rpc_call_data(call);
    if (upload == NULL) return;
    store_put_abandon(upload->put);
    service->n_puts--;
    free(upload);
}

/* ---- Get ---- */

struct download {
    rpc_call_t *call;
    int fd;
    char hash[STORE_HASH_TEXT];
    uint64_t bytes, sent;
    bool begun, over;
    download_t *next;
};

/* One piece: false when there is nothing more to do for now. */
static bool send_piece(rpc_call_t *call, download_t *download, uint8_t *buffer)
{
    if (download->over) return false;
    if (download->begun && download->sent == download->bytes) {
        download->over = true;
        rpc_call_finish(call, INSPAN_OK, "");
        return false;
    }
    uint64_t left = download->bytes - download->sent;
    size_t wanted = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
    ssize_t got = 0;
    do got = pread(download->fd, buffer, wanted, (off_t)download->sent);
    while (got < 0 && errno == EINTR);
    if (got < 0 || (size_t)got != wanted) {
        download->over = true;
        rpc_call_finish(call, INSPAN_IO, "the manager cannot read the file from its disk");
        return false;
    }
    Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
    chunk.hash = download->hash;
    chunk.total_bytes = download->bytes;
    chunk.data.data = buffer;
    chunk.data.len = wanted;
    inspan_status_t status = rpc_call_send(call, &chunk.base);
    if (status == INSPAN_LIMIT)
        return false; /* the whole server has much to send: goes on by on_writable or the tick */
    if (status != INSPAN_OK) {
        download->over = true;
        rpc_call_finish(call, status, "the file cannot be sent");
        return false;
    }
    download->begun = true;
    download->sent += wanted;
    return true;
}

static void pump(rpc_call_t *call, download_t *download)
{
    uint8_t *buffer = malloc(PIECE_BYTES);
    if (buffer == NULL) {
        download->over = true;
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    while (rpc_call_queued(call) < AHEAD_BYTES && send_piece(call, download, buffer)) {
    }
    free(buffer);
}

/* fd is the download's from now on. */
static void begin_download(service_t *service, rpc_call_t *call, int fd, uint64_t bytes, const char *hash)
{
    download_t *download = calloc(1, sizeof *download);
    if (download == NULL) {
        close(fd);
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    download->call = call;
    download->next = service->downloads;
    service->downloads = download;
    download->fd = fd;
    download->bytes = bytes;
    snprintf(download->hash, sizeof download->hash, "%s", hash);
    rpc_call_set_data(call, download);
    pump(call, download);
}

void files_get(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    const Inspan__V1__FileId *id = (const Inspan__V1__FileId *)message;
    inspan_error_t err;
    int fd = -1;
    uint64_t bytes = 0;
    if (store_get(service->store, id->hash, &fd, &bytes, &err) != INSPAN_OK)
        service_fail(call, &err);
    else
        begin_download(service, call, fd, bytes, id->hash);
}

/* A copy of the registry, made in one go, sent from a file that has no name any more. */
void files_backup(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    char path[PATH_MAX];
    struct stat info;
    inspan_error_t err = {0};
    (void)message;
    snprintf(path, sizeof path, "%.4000s/backup.tmp", service->folder);
    unlink(path); /* of a crash */
    if (registry_backup(service->registry, path, &err) != INSPAN_OK) {
        service_fail(call, &err);
        return;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool good = fd >= 0 && fstat(fd, &info) == 0;
    if (!good) error_set_errno(&err, INSPAN_IO, "cannot read %s", path);
    unlink(path);
    if (good) {
        begin_download(service, call, fd, (uint64_t)info.st_size, "");
        return;
    }
    if (fd >= 0) close(fd);
    service_fail(call, &err);
}

void files_get_writable(void *context, rpc_call_t *call)
{
    (void)context;
    download_t *download = rpc_call_data(call);
    if (download != NULL && !download->over) pump(call, download);
}

/* Those that found the server's queues full have nothing queued that would wake them. */
void files_tick(service_t *service)
{
    for (download_t *download = service->downloads; download != NULL; download = download->next)
        if (!download->over && rpc_call_queued(download->call) == 0) pump(download->call, download);
}

void files_get_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    download_t *download = rpc_call_data(call);
    if (download == NULL) return;
    for (download_t **at = &service->downloads; *at != NULL; at = &(*at)->next)
        if (*at == download) {
            *at = download->next;
            break;
        }
    close(download->fd);
    free(download);
}
