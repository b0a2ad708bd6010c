#include "platform/os/os_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"

#define PIPE_PATIENCE_MS 5000

struct os_file_writer {
    int fd;
    char path[PATH_MAX];
    char temporary[PATH_MAX + 32];
};

/* Of a pipe or a terminal: bytes, its end or an error can be read. */
static bool has_more(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int n;
    do n = poll(&ready, 1, PIPE_PATIENCE_MS);
    while (n < 0 && errno == EINTR);
    return n != 0;
}

inspan_status_t os_file_read(const char *path, size_t cap, char **data, size_t *bytes, inspan_error_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes must not hold us */
    if (fd < 0) {
        inspan_status_t status = errno == ENOENT || errno == ENOTDIR ? INSPAN_NOT_FOUND : INSPAN_IO;
        return error_set_errno(err, status, "cannot read %s", path);
    }
    inspan_status_t status = INSPAN_OK;
    size_t used = 0, capacity = 4096;
    struct stat info;
    const bool known = fstat(fd, &info) == 0;
    const bool may_wait = known && !S_ISREG(info.st_mode);
    if (known && info.st_size > 0 && (size_t)info.st_size <= cap) capacity = (size_t)info.st_size + 1;
    char *buffer = malloc(capacity + 1);
    while (buffer != NULL) {
        if (may_wait && !has_more(fd)) {
            status = error_set(err, INSPAN_TIMEOUT, "%s: nothing to read came within %d s", path,
                               PIPE_PATIENCE_MS / 1000);
            break;
        }
        ssize_t got = read(fd, buffer + used, capacity - used);
        if (got < 0 && (errno == EINTR || (may_wait && errno == EAGAIN))) continue;
        if (got < 0) status = error_set_errno(err, INSPAN_IO, "cannot read %s", path);
        if (got <= 0) break;
        used += (size_t)got;
        if (used > cap) {
            status = error_set(err, INSPAN_LIMIT, "%s is longer than the %zu bytes allowed here", path, cap);
            break;
        }
        if (used < capacity) continue;
        char *grown = realloc(buffer, capacity * 2 + 1);
        if (grown == NULL) free(buffer);
        buffer = grown;
        capacity *= 2;
    }
    close(fd);
    if (buffer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to read %s", path);
    if (status != INSPAN_OK) {
        free(buffer);
        return status;
    }
    buffer[used] = '\0';
    *data = buffer;
    *bytes = used;
    return INSPAN_OK;
}

inspan_status_t os_file_writer_open(const char *path, mode_t mode, os_file_writer_t **out,
                                    inspan_error_t *err)
{
    if (strlen(path) >= PATH_MAX) return error_set(err, INSPAN_INVALID, "path too long: %.100s...", path);
    os_file_writer_t *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to write %s", path);
    snprintf(writer->path, sizeof writer->path, "%s", path);
    snprintf(writer->temporary, sizeof writer->temporary, "%s.tmp-%d", path, (int)getpid());
    writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (writer->fd < 0) {
        error_set_errno(err, INSPAN_IO, "cannot write %s", path);
        free(writer);
        return INSPAN_IO;
    }
    *out = writer;
    return INSPAN_OK;
}

inspan_status_t os_file_writer_add(os_file_writer_t *writer, const void *data, size_t bytes,
                                   inspan_error_t *err)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = write(writer->fd, from, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return error_set_errno(err, INSPAN_IO, "cannot write %s", writer->path);
        from += written;
        bytes -= (size_t)written;
    }
    return INSPAN_OK;
}

static int sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    int result = fsync(fd);
    close(fd);
    return result;
}

/* A rename is durable once its folder is. */
static int sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else if (slash == folder)
        folder[1] = '\0';
    else
        *slash = '\0';
    return sync_folder(folder);
}

inspan_status_t os_file_writer_commit(os_file_writer_t *writer, inspan_error_t *err)
{
    bool failed = fsync(writer->fd) != 0;
    if (close(writer->fd) != 0) failed = true;
    if (!failed && rename(writer->temporary, writer->path) != 0) failed = true;
    if (!failed && sync_folder_of(writer->path) != 0) failed = true;
    inspan_status_t status = INSPAN_OK;
    if (failed) {
        status = error_set_errno(err, INSPAN_IO, "cannot write %s", writer->path);
        unlink(writer->temporary);
    }
    free(writer);
    return status;
}

void os_file_writer_abandon(os_file_writer_t *writer)
{
    close(writer->fd);
    unlink(writer->temporary);
    free(writer);
}

inspan_status_t os_file_write(const char *path, const void *data, size_t bytes, mode_t mode,
                              inspan_error_t *err)
{
    os_file_writer_t *writer = NULL;
    inspan_status_t status = os_file_writer_open(path, mode, &writer, err);
    if (status != INSPAN_OK) return status;
    status = os_file_writer_add(writer, data, bytes, err);
    if (status != INSPAN_OK) {
        os_file_writer_abandon(writer);
        return status;
    }
    return os_file_writer_commit(writer, err);
}

/* Keeps errno where it is none. */
static bool is_folder(const char *path)
{
    struct stat info;
    int cause = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return true;
    errno = cause;
    return false;
}

inspan_status_t os_mkdir_all(const char *path, mode_t mode, inspan_error_t *err)
{
    char partial[PATH_MAX];
    if (strlen(path) >= sizeof partial)
        return error_set(err, INSPAN_INVALID, "path too long: %.100s...", path);
    if (path[0] == '\0') return error_set(err, INSPAN_INVALID, "a folder without a name");
    snprintf(partial, sizeof partial, "%s", path);
    for (char *at = partial + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(partial, mode) != 0 && !(errno == EEXIST && is_folder(partial)))
            return error_set_errno(err, INSPAN_IO, "cannot make the folder %s", partial);
        *at = kept;
        if (kept == '\0') return INSPAN_OK;
    }
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1; /* gone meanwhile: as wanted */
}

inspan_status_t os_remove_all(const char *path, inspan_error_t *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return error_set_errno(err, INSPAN_IO, "cannot remove %s", path);
    return INSPAN_OK;
}

inspan_status_t os_folder_sync(const char *path, inspan_error_t *err)
{
    return sync_folder(path) == 0 ? INSPAN_OK
                                  : error_set_errno(err, INSPAN_IO, "cannot sync the folder %s", path);
}

inspan_status_t os_disk_free(const char *path, uint64_t *bytes, inspan_error_t *err)
{
    struct statvfs disk;
    if (statvfs(path, &disk) != 0)
        return error_set_errno(err, INSPAN_IO, "cannot ask how much room there is at %s", path);
    *bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    return INSPAN_OK;
}

inspan_status_t os_random(void *bytes, size_t n)
{
    char *to = bytes;
    while (n > 0) {
        ssize_t got = getrandom(to, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return INSPAN_INTERNAL;
        to += got;
        n -= (size_t)got;
    }
    return INSPAN_OK;
}

inspan_status_t os_uuid(char text[OS_UUID_TEXT])
{
    uint8_t b[16];
    if (os_random(b, sizeof b) != INSPAN_OK) return INSPAN_INTERNAL;
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* version 4 */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80); /* of the variant that the RFC describes */
    snprintf(text, OS_UUID_TEXT, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return INSPAN_OK;
}
