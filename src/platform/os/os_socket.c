#include "platform/os/os_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"

inspan_status_t os_address_parse(const char *text, uint16_t port, os_address_t *address)
{
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM},
                    *found = NULL;
    if (getaddrinfo(text, service, &hints, &found) != 0) return INSPAN_INVALID;
    bool fits = found->ai_addrlen <= sizeof address->storage;
    memset(address, 0, sizeof *address);
    if (fits) {
        memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
        address->length = found->ai_addrlen;
    }
    freeaddrinfo(found);
    return fits ? INSPAN_OK : INSPAN_INVALID;
}

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "one place");

const char *os_address_host(const os_address_t *address, char *text, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?", name[IF_NAMESIZE];
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address->storage;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address->storage;
    if (address->storage.ss_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    } else if (address->storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, host, sizeof host);
    } else if (address->storage.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        if (v6->sin6_scope_id != 0 && if_indextoname(v6->sin6_scope_id, name) != NULL) {
            snprintf(text, size, "%s%%%s", host, name);
            return text;
        }
    }
    snprintf(text, size, "%s", host);
    return text;
}

const char *os_address_format(const os_address_t *address, char *text, size_t size)
{
    char host[OS_ADDRESS_MAX];
    os_address_host(address, host, sizeof host);
    const uint16_t port = ntohs(((const struct sockaddr_in *)&address->storage)->sin_port);
    if (host[0] == '?')
        snprintf(text, size, "?");
    else
        snprintf(text, size, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, port);
    return text;
}

static bool parse_port(const char *text, unsigned least, uint16_t *port)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return false;
    const unsigned long number = strtoul(text, NULL, 10);
    *port = (uint16_t)number;
    return number >= least && number <= UINT16_MAX;
}

static bool is_host(const char *host, size_t length, bool v6)
{
    if (length == 0 || length >= OS_HOST_MAX) return false;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)host[i];
        const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!plain && c != '.' && c != '-' && c != '_' && c != '%' && !(v6 && c == ':')) return false;
    }
    return true;
}

inspan_status_t os_target_parse(const char *text, uint16_t default_port, os_target_t *target,
                                inspan_error_t *err)
{
    const char *host = text, *colon = strchr(text, ':'), *port = NULL;
    size_t length = strlen(text);
    bool v6 = false;
    if (text[0] == '[') {
        const char *end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return error_set(err, INSPAN_INVALID, "\"%.100s\" is no address: expected [IPv6]:PORT", text);
        v6 = true;
        host++;
        length = (size_t)(end - host);
        if (end[1] == ':') port = end + 2;
    } else if (colon != NULL && strchr(colon + 1, ':') != NULL) {
        v6 = true; /* two colons without brackets: an IPv6 address without port */
    } else if (colon != NULL) {
        length = (size_t)(colon - text);
        port = colon + 1;
    }
    const unsigned least = default_port != 0;
    target->port = default_port;
    if (port != NULL && !parse_port(port, least, &target->port))
        return error_set(err, INSPAN_INVALID, "\"%.100s\": the port must be a number from %u to 65535", text,
                         least);
    if (!is_host(host, length, v6))
        return error_set(err, INSPAN_INVALID, "\"%.100s\" is no address: expected HOST or HOST:PORT", text);
    snprintf(target->host, sizeof target->host, "%.*s", (int)length, host);
    return INSPAN_OK;
}

int os_source_towards(const os_address_t *to, os_address_t *source)
{
    const int fd = socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    source->length = sizeof source->storage;
    const bool found = connect(fd, (const struct sockaddr *)&to->storage, to->length) == 0 &&
                       getsockname(fd, (struct sockaddr *)&source->storage, &source->length) == 0;
    const int cause = found ? 0 : errno;
    close(fd);
    return cause;
}

static int open_listener(int family, uint16_t port, int backlog)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* over TIME_WAIT, never over a listener */
    struct sockaddr_storage storage = {.ss_family = (sa_family_t)family};
    socklen_t length = sizeof(struct sockaddr_in);
    if (family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        ((struct sockaddr_in6 *)&storage)->sin6_port = htons(port);
        length = sizeof(struct sockaddr_in6);
    } else {
        ((struct sockaddr_in *)&storage)->sin_port = htons(port);
    }
    if (bind(fd, (struct sockaddr *)&storage, length) == 0 && listen(fd, backlog) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_in6 address = {0};
    socklen_t length = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &length) == 0 ? ntohs(address.sin6_port) : 0;
}

inspan_status_t os_listen(uint16_t first, uint16_t last, int backlog, int *fd, uint16_t *port,
                          inspan_error_t *err)
{
    if (last < first) return error_set(err, INSPAN_INVALID, "ports %u-%u: the range is empty", first, last);
    for (uint32_t candidate = first; candidate <= last; candidate++) {
        int listener = open_listener(AF_INET6, (uint16_t)candidate, backlog);
        if (listener < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL))
            listener = open_listener(AF_INET, (uint16_t)candidate, backlog);
        if (listener >= 0) {
            *fd = listener;
            *port = bound_port(listener);
            return INSPAN_OK;
        }
        if (errno != EADDRINUSE && errno != EACCES)
            return error_set_errno(err, INSPAN_IO, "cannot listen on port %u", candidate);
    }
    if (first == last)
        return error_set_errno(err, INSPAN_EXISTS,
                               "port %u cannot be used; stop what holds it or choose another", first);
    return error_set(err, INSPAN_EXISTS, "no free port in %u-%u; stop what holds them or give a wider range",
                     first, last);
}

int os_accept(int listener, os_address_t *from)
{
    from->length = sizeof from->storage;
    return accept4(listener, (struct sockaddr *)&from->storage, &from->length, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

inspan_status_t os_connect(const os_address_t *to, int *out, inspan_error_t *err)
{
    char text[OS_ADDRESS_MAX];
    int fd = socket(to->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set_errno(err, INSPAN_IO, "no socket for %s", os_address_format(to, text, sizeof text));
    if (connect(fd, (const struct sockaddr *)&to->storage, to->length) == 0 || errno == EINPROGRESS) {
        *out = fd;
        return INSPAN_OK;
    }
    bool no_route = errno == ENETUNREACH || errno == EHOSTUNREACH || errno == EADDRNOTAVAIL;
    error_set_errno(err,
                    no_route                ? INSPAN_UNREACHABLE
                    : errno == ECONNREFUSED ? INSPAN_REFUSED
                                            : INSPAN_IO,
                    "cannot connect to %s", os_address_format(to, text, sizeof text));
    close(fd);
    return err != NULL ? err->status : no_route ? INSPAN_UNREACHABLE : INSPAN_IO;
}

int os_socket_error(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

static void set_int(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value); /* a refusal keeps the default, see the header */
}

bool os_socket_tune(int fd, ns_t timeout, int notsent_bytes)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, notsent_bytes);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(timeout / NS_PER_MS));
    int probe_s = (int)(timeout / 4 / NS_PER_S);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s > 0 ? probe_s : 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s > 0 ? probe_s : 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) == 0;
}

size_t os_socket_unacked(int fd)
{
    int bytes = 0;
    return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}
