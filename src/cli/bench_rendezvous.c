#include "cli/bench_rendezvous.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/bytes.h"

#define MAGIC        0x42505349u /* "ISPB" */
#define VERSION      1
#define JOIN_BYTES   28
#define ANSWER_BYTES 44
#define MEMBER_BYTES (INSPAN_NAME_MAX + 2 + 8)
#define JOIN_TIME    (2 * NS_PER_S) /* a stranger that says nothing holds the place up for no longer */
#define LOOK_PERIOD  (100 * NS_PER_MS)
#define RETRY_PAUSE  100 /* ms */

_Static_assert(MEMBER_BYTES == 74 && ANSWER_BYTES == 12 + COMM_KEY_BYTES, "the table in the header");

/* Move all n bytes before the deadline; false: it passed, or the connection broke. */
static bool move_all(int fd, uint8_t *bytes, size_t n, bool out, ns_t deadline)
{
    while (n > 0) {
        const ns_t left = deadline - os_now();
        struct pollfd ready = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        if (left <= 0 || poll(&ready, 1, (int)(left / NS_PER_MS) + 1) < 0) return false;
        const ssize_t moved = out ? send(fd, bytes, n, MSG_NOSIGNAL) : recv(fd, bytes, n, 0);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (moved <= 0) return false;
        bytes += moved;
        n -= (size_t)moved;
    }
    return true;
}

typedef struct server {
    bench_group_t *group;
    int fds[BENCH_WORLD_MAX]; /* -1: not there yet */
    uint32_t missing;
} server_t;

static void refuse(int fd)
{
    uint8_t answer[ANSWER_BYTES] = {0};
    put_u32(answer, MAGIC);
    put_u32(answer + 4, VERSION);
    put_u32(answer + 8, INSPAN_REFUSED);
    (void)send(fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
}

/* One connection says who it is. What is no JOIN is closed without a word. */
static void admit(server_t *server, int fd, const os_address_t *from)
{
    uint8_t join[JOIN_BYTES];
    if (!move_all(fd, join, sizeof join, false, os_now() + JOIN_TIME) || get_u32(join) != MAGIC) {
        close(fd);
        return;
    }
    const uint32_t rank = get_u32(join + 8), port = get_u32(join + 16);
    bench_group_t *group = server->group;
    if (get_u32(join + 4) != VERSION || get_u32(join + 12) != group->world || rank >= group->world ||
        server->fds[rank] >= 0 || port == 0 || port > UINT16_MAX) {
        refuse(fd);
        return;
    }
    inspan_member_t *member = &group->members[rank];
    os_address_host(from, member->address, sizeof member->address);
    member->port = (uint16_t)port;
    member->incarnation = get_u64(join + 20);
    server->fds[rank] = fd;
    server->missing--;
}

static void encode_answer(const bench_group_t *group, uint8_t *bytes)
{
    memset(bytes, 0, ANSWER_BYTES);
    put_u32(bytes, MAGIC);
    put_u32(bytes + 4, VERSION);
    put_u32(bytes + 8, INSPAN_OK);
    memcpy(bytes + 12, group->key, COMM_KEY_BYTES);
    for (uint32_t r = 0; r < group->world; r++) {
        uint8_t *at = bytes + ANSWER_BYTES + (size_t)r * MEMBER_BYTES;
        memcpy(at, group->members[r].address, INSPAN_NAME_MAX);
        put_u16(at + INSPAN_NAME_MAX, group->members[r].port);
        put_u64(at + INSPAN_NAME_MAX + 2, group->members[r].incarnation);
    }
}

static void name_members(bench_group_t *group)
{
    for (uint32_t r = 0; r < group->world; r++) {
        group->members[r].number = r;
        snprintf(group->members[r].node, sizeof group->members[r].node, "rank-%u", r);
    }
}

/* Our own address is the one under which the others reached us. */
static void find_own_address(server_t *server, uint32_t own)
{
    os_address_t address = {.length = sizeof address.storage};
    for (uint32_t r = 0; r < server->group->world; r++)
        if (server->fds[r] >= 0 &&
            getsockname(server->fds[r], (struct sockaddr *)&address.storage, &address.length) == 0) {
            os_address_host(&address, server->group->members[own].address, INSPAN_NAME_MAX);
            return;
        }
    snprintf(server->group->members[own].address, INSPAN_NAME_MAX, "127.0.0.1");
}

inspan_status_t bench_serve(int listener, bench_group_t *group, bool own, ns_t timeout, bench_look_fn look,
                            void *context, inspan_error_t *err)
{
    server_t server = {.group = group, .missing = group->world - own};
    const ns_t deadline = os_now() + timeout;
    for (uint32_t r = 0; r < BENCH_WORLD_MAX; r++) server.fds[r] = -1;
    inspan_status_t status = os_random(group->key, sizeof group->key);
    while (status == INSPAN_OK && server.missing > 0) {
        const ns_t left = deadline - os_now();
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (look != NULL) status = look(context, err);
        if (status == INSPAN_OK && left <= 0) status = INSPAN_TIMEOUT;
        if (status != INSPAN_OK) break;
        const ns_t slice = left < LOOK_PERIOD ? left : LOOK_PERIOD;
        if (poll(&ready, 1, (int)(slice / NS_PER_MS) + 1) <= 0) continue;
        os_address_t from;
        const int fd = os_accept(listener, &from);
        if (fd >= 0) admit(&server, fd, &from);
    }
    if (status == INSPAN_TIMEOUT && os_now() >= deadline) {
        uint32_t r = 0;
        while (server.fds[r] >= 0 || (own && r == group->rank)) r++;
        error_set(err, status,
                  "%u of %u ranks did not come in %.0f s, rank %u is one of them; start them with the same "
                  "--world and --rendezvous",
                  server.missing, group->world, ns_to_s(timeout), r);
    }
    if (own) find_own_address(&server, group->rank);
    name_members(group);
    uint8_t answer[ANSWER_BYTES + BENCH_WORLD_MAX * MEMBER_BYTES];
    encode_answer(group, answer);
    for (uint32_t r = 0; r < group->world; r++) {
        if (server.fds[r] < 0) continue;
        const size_t bytes = ANSWER_BYTES + (size_t)group->world * MEMBER_BYTES;
        if (status == INSPAN_OK && !move_all(server.fds[r], answer, bytes, true, os_now() + JOIN_TIME))
            status = error_set(err, INSPAN_PEER_LOST, "rank %u went away before all had come", r);
        close(server.fds[r]);
    }
    return status;
}

/* One try. PENDING: to be tried again. */
static inspan_status_t try_join(const os_address_t *to, bench_group_t *group, ns_t deadline,
                                inspan_error_t *err)
{
    int fd = -1;
    if (os_connect(to, &fd, err) != INSPAN_OK) return INSPAN_PENDING;
    uint8_t join[JOIN_BYTES], answer[ANSWER_BYTES], member[MEMBER_BYTES];
    const inspan_member_t *own = &group->members[group->rank];
    put_u32(join, MAGIC);
    put_u32(join + 4, VERSION);
    put_u32(join + 8, group->rank);
    put_u32(join + 12, group->world);
    put_u32(join + 16, own->port);
    put_u64(join + 20, own->incarnation);
    inspan_status_t status = INSPAN_PENDING;
    if (move_all(fd, join, sizeof join, true, deadline) &&
        move_all(fd, answer, sizeof answer, false, deadline)) {
        status =
            get_u32(answer) != MAGIC || get_u32(answer + 4) != VERSION || get_u32(answer + 8) != INSPAN_OK
                ? error_set(
                      err, INSPAN_REFUSED,
                      "the rendezvous refuses rank %u of %u: another --world, a rank that is there already, "
                      "or no Inspan of this version",
                      group->rank, group->world)
                : INSPAN_OK;
        memcpy(group->key, answer + 12, COMM_KEY_BYTES);
    }
    for (uint32_t r = 0; r < group->world && status == INSPAN_OK; r++) {
        if (!move_all(fd, member, sizeof member, false, deadline)) {
            status = error_set(err, INSPAN_PEER_LOST, "the rendezvous closed before it had named all ranks");
            break;
        }
        memcpy(group->members[r].address, member, INSPAN_NAME_MAX);
        group->members[r].address[INSPAN_NAME_MAX - 1] = 0;
        group->members[r].port = get_u16(member + INSPAN_NAME_MAX);
        group->members[r].incarnation = get_u64(member + INSPAN_NAME_MAX + 2);
    }
    close(fd);
    return status;
}

static inspan_status_t resolve(const char *host, uint16_t port, os_address_t *address, inspan_error_t *err)
{
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    const int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0)
        return error_set(err, INSPAN_INVALID, "--rendezvous: cannot find host %s: %s", host,
                         gai_strerror(rc));
    memset(address, 0, sizeof *address);
    memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
    address->length = found->ai_addrlen;
    freeaddrinfo(found);
    return INSPAN_OK;
}

inspan_status_t bench_join(const char *host, uint16_t port, bench_group_t *group, ns_t timeout,
                           inspan_error_t *err)
{
    os_address_t to;
    inspan_status_t status = resolve(host, port, &to, err);
    if (status != INSPAN_OK) return status;
    const ns_t deadline = os_now() + timeout;
    do {
        status = try_join(&to, group, deadline, err);
        if (status == INSPAN_PENDING) poll(NULL, 0, RETRY_PAUSE);
    } while (status == INSPAN_PENDING && os_now() < deadline);
    if (status == INSPAN_PENDING)
        status = error_set(err, INSPAN_TIMEOUT,
                           "nobody answers at %s:%u for %.0f s: is rank 0 running, and the port open?", host,
                           port, ns_to_s(timeout));
    name_members(group);
    return status;
}
