#include "rpc/rpc_gate.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

static bool listens_at(int fd, uint16_t port)
{
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening) return false;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } name = {.any.sa_family = AF_UNSPEC};
    size = sizeof name;
    if (getsockname(fd, &name.any, &size) != 0) return false;
    if (name.any.sa_family == AF_INET) return ntohs(name.v4.sin_port) == port;
    return name.any.sa_family == AF_INET6 && ntohs(name.v6.sin6_port) == port;
}

void gate_open(rpc_gate_t *gate, uint16_t port)
{
    pthread_mutex_init(&gate->lock, NULL);
    gate->listener = -1;
    gate->closed = false;
    DIR *folder = port != 0 ? opendir("/proc/self/fd") : NULL;
    if (folder == NULL) return;
    for (struct dirent *entry; gate->listener < 0 && (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && listens_at(fd, port)) gate->listener = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    closedir(folder);
    if (gate->listener < 0)
        log_warn("rpc: the listener at port %u has no guard against too many connections", port);
}

/* Descriptors in use; SIZE_MAX when there is not even one to count them with. */
static size_t count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return SIZE_MAX;
    size_t n = 0;
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n - 3; /* ".", "..", and the folder */
}

static size_t most_descriptors(void)
{
    struct rlimit limit = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t most = limit.rlim_cur / 4 * 3;
    return most < GATE_MOST_DESCRIPTORS ? (size_t)most : GATE_MOST_DESCRIPTORS;
}

static void set_closed(rpc_gate_t *gate, bool closed, size_t used)
{
    struct sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {.len = 1, .filter = drop_all};
    int none = 0;
    int failed = closed ? setsockopt(gate->listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program)
                        : setsockopt(gate->listener, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
    if (failed != 0) {
        log_warn("rpc: cannot guard the listener: it dies if descriptors run out");
        return;
    }
    gate->closed = closed;
    if (closed)
        log_warn("rpc: %zu descriptors are in use: no new connection until some are free", used);
    else
        log_info("rpc: new connections are welcome again");
}

void gate_check(rpc_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->listener >= 0) {
        size_t used = count_descriptors(), most = most_descriptors();
        if (!gate->closed && used >= most)
            set_closed(gate, true, used);
        else if (gate->closed && used < most - most / 8)
            set_closed(gate, false, used);
    }
    pthread_mutex_unlock(&gate->lock);
}

void gate_release(rpc_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->listener >= 0) close(gate->listener);
    gate->listener = -1;
    pthread_mutex_unlock(&gate->lock);
}

void gate_destroy(rpc_gate_t *gate)
{
    gate_release(gate);
    pthread_mutex_destroy(&gate->lock);
}
