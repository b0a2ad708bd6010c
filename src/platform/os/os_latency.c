/* A file of its own: the kernel's tcp_info knows the least delay, the C library's does not, and the two
 * headers exclude each other. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "platform/os/os_socket.h"

ns_t os_socket_latency(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    const size_t needed = offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < needed) return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : (ns_t)info.tcpi_min_rtt * NS_PER_US / 2;
}
