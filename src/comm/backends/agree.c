/*
 * Before a backend is used: every pair of ranks tells each other, over the connection that will be the
 * backend's, whether it can be used there, 256 bytes each way. All ranks hear the same, so all come to the
 * same end.
 *
 *   OFFSET SIZE MEANING
 *        0    4 magic "ISPB"
 *        4    4 1: it can be used here, else 0
 *        8   24 the backend's name, zeros after it, as in all that follow
 *       32   32 its version
 *       64  192 why not
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "comm/backends/engine.h"
#include "platform/os/os_time.h"

#define TOLD_BYTES 256
#define TOLD_MAGIC 0x42505349u /* "ISPB" */

#define FAREWELL_MS 100 /* for a reason that was said before a connection was closed */

_Static_assert(BACKEND_NAME_MAX == 24 && BACKEND_VERSION_MAX == 32 && BACKEND_WHY_MAX == 192 &&
                   64 + BACKEND_WHY_MAX == TOLD_BYTES,
               "what ranks tell of a backend");

typedef struct told { /* by one rank */
    uint8_t bytes[TOLD_BYTES];
    uint32_t sent, got; /* to it, from it */
} told_t;

typedef struct agreeing {
    const comm_options_t *options;
    const backend_t *backend;
    const int *sockets, *kept;
    inspan_cause_t *cause;
    told_t *told; /* (world) what each says; [rank]: what this one says */
    struct pollfd *polls;
} agreeing_t;

static void put_u32(uint8_t *bytes, uint32_t v)
{
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void fill_own(const backend_t *backend, uint8_t *bytes)
{
    backend_probe_t probe;
    backend->probe(&probe);
    memset(bytes, 0, TOLD_BYTES);
    put_u32(bytes, TOLD_MAGIC);
    put_u32(bytes + 4, probe.available);
    snprintf((char *)bytes + 8, BACKEND_NAME_MAX, "%s", backend->name);
    snprintf((char *)bytes + 32, BACKEND_VERSION_MAX, "%s", probe.version);
    if (!probe.available) snprintf((char *)bytes + 64, BACKEND_WHY_MAX, "%s", probe.why);
}

static inspan_status_t fail(const agreeing_t *a, uint32_t rank, inspan_status_t status, const char *what,
                            inspan_error_t *err)
{
    const inspan_member_t *member = &a->options->members[rank];
    *a->cause = (inspan_cause_t){.status = status,
                                 .rank = status == INSPAN_ABORTED ? -1 : (int32_t)rank,
                                 .noticed_by = (int32_t)a->options->rank};
    memcpy(a->cause->node, member->node, sizeof a->cause->node);
    snprintf(a->cause->address, sizeof a->cause->address, "%.50s:%u", member->address, member->port);
    snprintf(a->cause->operation, sizeof a->cause->operation, "connect");
    error_set(err, status, "rank %u (node %s, %s:%u) %s", member->number, member->node, member->address,
              member->port, what);
    snprintf(a->cause->text, sizeof a->cause->text, "rank %u (node %.24s, %.30s) %.160s", member->number,
             member->node, a->cause->address, what);
    return status;
}

/* A peer that gave up while all connected has said why, on the connection that is the communicator's. */
static bool said_why(agreeing_t *a, uint32_t peer)
{
    uint8_t bytes[DATA_HEADER_BYTES + DATA_CAUSE_MAX];
    struct pollfd poll_fd = {.fd = a->kept[peer], .events = POLLIN};
    if (poll(&poll_fd, 1, FAREWELL_MS) <= 0) return false;
    const ssize_t n = recv(a->kept[peer], bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    data_frame_t frame;
    if (n < DATA_HEADER_BYTES || data_decode_frame(bytes, &frame) != INSPAN_OK || frame.type != DATA_ABORT ||
        n < (ssize_t)(DATA_HEADER_BYTES + frame.length))
        return false;
    inspan_cause_t cause;
    if (data_decode_cause(bytes + DATA_HEADER_BYTES, frame.length, &cause) != INSPAN_OK ||
        cause.status == INSPAN_OK || cause.rank >= (int32_t)a->options->world)
        return false;
    *a->cause = cause;
    return true;
}

/* As much as goes now, both ways. */
static inspan_status_t exchange(agreeing_t *a, uint32_t peer, inspan_error_t *err)
{
    told_t *told = &a->told[peer];
    const int fd = a->sockets[peer];
    if (told->sent < TOLD_BYTES) {
        const ssize_t n = send(fd, a->told[a->options->rank].bytes + told->sent, TOLD_BYTES - told->sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) told->sent += (uint32_t)n;
    } /* an error of it shows in what comes */
    if (told->got == TOLD_BYTES) return INSPAN_OK;
    const ssize_t n = recv(fd, told->bytes + told->got, TOLD_BYTES - told->got, MSG_DONTWAIT);
    if (n > 0) told->got += (uint32_t)n;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return INSPAN_OK;
    char what[200];
    if (said_why(a, peer)) return error_set(err, a->cause->status, "%s", a->cause->text);
    snprintf(what, sizeof what,
             "closed its connection for %s: it has ended, or does not use this backend (give all ranks the "
             "same one)",
             a->backend->name);
    return fail(a, peer, INSPAN_PEER_LOST, what, err);
}

static bool all_said(const agreeing_t *a)
{
    for (uint32_t peer = 0; peer < a->options->world; peer++)
        if (peer != a->options->rank && (a->told[peer].sent < TOLD_BYTES || a->told[peer].got < TOLD_BYTES))
            return false;
    return true;
}

static inspan_status_t exchange_all(agreeing_t *a, inspan_error_t *err)
{
    const comm_options_t *options = a->options;
    const ns_t until = os_now() + options->failure_timeout;
    inspan_status_t status = INSPAN_OK;
    while (status == INSPAN_OK && !all_said(a)) {
        const ns_t now = os_now();
        if (now >= until)
            for (uint32_t peer = 0; peer < options->world; peer++)
                if (peer != options->rank && a->told[peer].got < TOLD_BYTES)
                    return fail(a, peer, INSPAN_TIMEOUT, "does not say which backend it uses", err);
        for (uint32_t peer = 0; peer < options->world; peer++) {
            const told_t *told = &a->told[peer];
            const bool out = told->sent < TOLD_BYTES, in = told->got < TOLD_BYTES;
            a->polls[peer] = (struct pollfd){.fd = in || out ? a->sockets[peer] : -1,
                                             .events = (short)((out ? POLLOUT : 0) | (in ? POLLIN : 0))};
        }
        a->polls[options->rank].fd = options->cancel != NULL ? *options->cancel : -1;
        a->polls[options->rank].events = POLLIN;
        const ns_t wait = until > now ? until - now : 0;
        if (poll(a->polls, options->world, (int)((wait + NS_PER_MS - 1) / NS_PER_MS)) <= 0) continue;
        if (a->polls[options->rank].revents != 0)
            return fail(a, options->rank, INSPAN_ABORTED, "was stopped, or a newer view is there", err);
        for (uint32_t peer = 0; peer < options->world && status == INSPAN_OK; peer++)
            if (peer != options->rank && a->polls[peer].revents != 0) status = exchange(a, peer, err);
    }
    return status;
}

/* The lowest rank with which it cannot be: the same for all. */
static inspan_status_t judge(agreeing_t *a, inspan_error_t *err)
{
    char what[400];
    const char *first = NULL;
    for (uint32_t rank = 0; rank < a->options->world; rank++) {
        uint8_t *bytes = a->told[rank].bytes;
        char *name = (char *)bytes + 8, *version = (char *)bytes + 32, *why = (char *)bytes + 64;
        name[BACKEND_NAME_MAX - 1] = version[BACKEND_VERSION_MAX - 1] = why[BACKEND_WHY_MAX - 1] = '\0';
        if (get_u32(bytes) != TOLD_MAGIC)
            return fail(a, rank, INSPAN_CORRUPT, "sent bytes that say nothing of a backend", err);
        if (strcmp(name, (const char *)a->told[0].bytes + 8) != 0) {
            snprintf(what, sizeof what, "uses the backend %s, rank %u %s: give all ranks the same one", name,
                     a->options->members[0].number, (const char *)a->told[0].bytes + 8);
            return fail(a, rank, INSPAN_MISMATCH, what, err);
        }
        if (get_u32(bytes + 4) == 0) {
            snprintf(what, sizeof what, "cannot use %s: %s", name, why);
            return fail(a, rank, INSPAN_UNSUPPORTED, what, err);
        }
        if (first == NULL) first = version;
        if (strcmp(first, version) != 0) {
            snprintf(what, sizeof what, "has %s %s, rank %u %s: install the same version on both nodes", name,
                     version, a->options->members[0].number, first);
            return fail(a, rank, INSPAN_MISMATCH, what, err);
        }
    }
    return INSPAN_OK;
}

inspan_status_t backend_agree(const comm_options_t *options, const backend_t *backend, const int *kept,
                              const int *sockets, inspan_cause_t *cause, inspan_error_t *err)
{
    agreeing_t a = {.options = options, .backend = backend, .kept = kept, .sockets = sockets, .cause = cause};
    a.told = calloc(options->world, sizeof *a.told);
    a.polls = calloc(options->world, sizeof *a.polls);
    inspan_status_t status = a.told != NULL && a.polls != NULL
                                 ? INSPAN_OK
                                 : error_set(err, INSPAN_NO_MEMORY, "no memory for a backend");
    if (status == INSPAN_OK) {
        fill_own(backend, a.told[options->rank].bytes);
        status = exchange_all(&a, err);
    }
    if (status == INSPAN_OK) status = judge(&a, err);
    free(a.told);
    free(a.polls);
    return status;
}
