#include "agent/worker_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

struct worker_log {
    pthread_mutex_t mutex;
    os_cond_t grown;
    unsigned references;
    int fd, older_fd; /* PATH; PATH.1 or -1 */
    uint64_t older_base, base, end, lost, half;
    bool ended, writes;
    char path[PATH_MAX], older_path[PATH_MAX + 8], base_path[PATH_MAX + 8];
};

static worker_log_t *make(const char *path)
{
    worker_log_t *log = strlen(path) < PATH_MAX ? calloc(1, sizeof *log) : NULL;
    if (log == NULL) return NULL;
    pthread_mutex_init(&log->mutex, NULL);
    os_cond_open(&log->grown);
    log->references = 1;
    log->fd = log->older_fd = -1;
    snprintf(log->path, sizeof log->path, "%s", path);
    snprintf(log->older_path, sizeof log->older_path, "%s.1", path);
    snprintf(log->base_path, sizeof log->base_path, "%s.base", path);
    return log;
}

static void destroy(worker_log_t *log)
{
    if (log->fd >= 0) close(log->fd);
    if (log->older_fd >= 0) close(log->older_fd);
    os_cond_close(&log->grown);
    pthread_mutex_destroy(&log->mutex);
    free(log);
}

/* PATH.base: the position of PATH.1's first byte, for readers of a later life of the agent. */
static void write_base(const worker_log_t *log)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)log->older_base);
    int fd = open(log->base_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    ssize_t written = write(fd, text, (size_t)n);
    (void)written; /* a full disk: positions of a later life start at 0, the text is there all the same */
    close(fd);
}

inspan_status_t worker_log_create(const char *path, uint64_t cap, worker_log_t **out, inspan_error_t *err)
{
    worker_log_t *log = make(path);
    if (log == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the log %s", path);
    unlink(log->older_path);
    unlink(log->base_path);
    log->writes = true;
    log->half = cap / 2 > 0 ? cap / 2 : 1;
    log->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (log->fd < 0) {
        error_set_errno(err, INSPAN_IO, "cannot write the log %s", path);
        destroy(log);
        return INSPAN_IO;
    }
    *out = log;
    return INSPAN_OK;
}

static inspan_status_t open_existing(const char *path, int flags, worker_log_t **out, inspan_error_t *err)
{
    worker_log_t *log = make(path);
    if (log == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the log %s", path);
    log->fd = open(path, flags | O_CLOEXEC);
    if (log->fd < 0) {
        inspan_status_t status = errno == ENOENT || errno == ENOTDIR ? INSPAN_NOT_FOUND : INSPAN_IO;
        error_set_errno(err, status, "cannot read the log %s", path);
        destroy(log);
        return status;
    }
    char *text = NULL;
    size_t bytes = 0;
    struct stat older, newer;
    if (os_file_read(log->base_path, 64, &text, &bytes, NULL) == INSPAN_OK)
        log->older_base = strtoull(text, NULL, 10);
    free(text);
    log->base = log->older_base;
    log->older_fd = open(log->older_path, O_RDONLY | O_CLOEXEC);
    if (log->older_fd >= 0 && fstat(log->older_fd, &older) == 0) log->base += (uint64_t)older.st_size;
    log->end = log->base + (fstat(log->fd, &newer) == 0 ? (uint64_t)newer.st_size : 0);
    *out = log;
    return INSPAN_OK;
}

inspan_status_t worker_log_open(const char *path, worker_log_t **out, inspan_error_t *err)
{
    inspan_status_t status = open_existing(path, O_RDONLY, out, err);
    if (status == INSPAN_OK) (*out)->ended = true;
    return status;
}

inspan_status_t worker_log_continue(const char *path, uint64_t cap, worker_log_t **out, inspan_error_t *err)
{
    inspan_status_t status = open_existing(path, O_RDWR, out, err);
    if (status != INSPAN_OK) return status;
    (*out)->writes = true;
    (*out)->half = cap / 2 > 0 ? cap / 2 : 1;
    return INSPAN_OK;
}

worker_log_t *worker_log_hold(worker_log_t *log)
{
    pthread_mutex_lock(&log->mutex);
    log->references++;
    pthread_mutex_unlock(&log->mutex);
    return log;
}

void worker_log_release(worker_log_t *log)
{
    if (log == NULL) return;
    pthread_mutex_lock(&log->mutex);
    bool last = --log->references == 0;
    pthread_mutex_unlock(&log->mutex);
    if (last) destroy(log);
}

/* PATH becomes PATH.1. If a new PATH cannot be made, the old one is begun again: the cap stands. */
static void rotate(worker_log_t *log)
{
    int fresh = -1;
    if (rename(log->path, log->older_path) == 0)
        fresh = open(log->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (log->older_fd >= 0) close(log->older_fd);
    if (fresh >= 0) {
        log->older_fd = log->fd;
        log->older_base = log->base;
        log->fd = fresh;
    } else {
        log->older_fd = -1;
        log->older_base = log->end;
        if (ftruncate(log->fd, 0) != 0) log->ended = true;
    }
    log->base = log->end;
    write_base(log);
}

void worker_log_append(worker_log_t *log, const void *data, size_t bytes)
{
    const char *from = data;
    pthread_mutex_lock(&log->mutex);
    while (bytes > 0 && log->writes) {
        if (log->end - log->base >= log->half) rotate(log);
        uint64_t room = log->half - (log->end - log->base);
        size_t piece = bytes < room ? bytes : (size_t)room;
        ssize_t written = pwrite(log->fd, from, piece, (off_t)(log->end - log->base));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            log->lost += bytes;
            break;
        }
        from += written;
        bytes -= (size_t)written;
        log->end += (uint64_t)written;
    }
    os_cond_broadcast(&log->grown);
    pthread_mutex_unlock(&log->mutex);
}

void worker_log_end(worker_log_t *log)
{
    pthread_mutex_lock(&log->mutex);
    log->ended = true;
    os_cond_broadcast(&log->grown);
    pthread_mutex_unlock(&log->mutex);
}

void worker_log_look(worker_log_t *log, worker_log_extent_t *extent)
{
    pthread_mutex_lock(&log->mutex);
    *extent = (worker_log_extent_t){log->older_fd >= 0 ? log->older_base : log->base, log->end, log->lost,
                                    log->ended};
    pthread_mutex_unlock(&log->mutex);
}

/* Of one of the two files. What a file should have and has not (somebody cut it short, the disk is bad) is
 * passed over. */
static size_t read_part(int fd, uint64_t base, uint64_t end, uint64_t *at, void *data, size_t size)
{
    size_t wanted = size < end - *at ? size : (size_t)(end - *at);
    ssize_t got = pread(fd, data, wanted, (off_t)(*at - base));
    if (got <= 0) *at = end;
    return got > 0 ? (size_t)got : 0;
}

size_t worker_log_read(worker_log_t *log, uint64_t *at, void *data, size_t size)
{
    size_t got = 0;
    pthread_mutex_lock(&log->mutex);
    uint64_t first = log->older_fd >= 0 ? log->older_base : log->base;
    if (*at < first) *at = first;
    if (*at < log->base) got = read_part(log->older_fd, log->older_base, log->base, at, data, size);
    if (got == 0 && *at < log->end) got = read_part(log->fd, log->base, log->end, at, data, size);
    pthread_mutex_unlock(&log->mutex);
    return got;
}

void worker_log_wait(worker_log_t *log, uint64_t at, ns_t timeout)
{
    ns_t deadline = os_now() + timeout;
    pthread_mutex_lock(&log->mutex);
    while (log->end <= at && !log->ended)
        if (!os_cond_wait_until(&log->grown, &log->mutex, deadline)) break;
    pthread_mutex_unlock(&log->mutex);
}
