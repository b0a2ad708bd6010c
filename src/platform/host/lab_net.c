/* Links: network namespaces on a bridge, each link shaped at both its ends, through the programs ip and tc.
 */
#include "platform/host/lab_parts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"

#define NETNS_FOLDER "/run/netns"
/* 198.18.0.0/15 is set aside for benchmarks (RFC 2544): 512 networks of 254 addresses that no LAN should use.
 */
#define POOL         0xc6120000u
#define POOL_SUBNETS 512u
#define SUBNET_MASK  0xffffff00u
#define BRIDGE_HOST  254u

void lab_namespace_name(const char *tag, uint32_t machine, char name[LAB_NAME_SIZE])
{
    snprintf(name, LAB_NAME_SIZE, "inspan-%s-%u", tag, machine);
}

/* ---- A free subnet --------------------------------------------------------------------------- */

static bool taken_by_interface(uint32_t subnet)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) return false;
    bool taken = false;
    for (const struct ifaddrs *at = list; at != NULL && !taken; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_netmask == NULL || at->ifa_addr->sa_family != AF_INET) continue;
        uint32_t address = ntohl(((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr.s_addr);
        uint32_t mask = ntohl(((const struct sockaddr_in *)(const void *)at->ifa_netmask)->sin_addr.s_addr);
        taken = ((address ^ subnet) & mask & SUBNET_MASK) == 0;
    }
    freeifaddrs(list);
    return taken;
}

static bool taken_by_route(uint32_t subnet)
{
    FILE *file = fopen("/proc/net/route", "re");
    if (file == NULL) return false;
    char line[256];
    bool taken = false;
    while (!taken && fgets(line, sizeof line, file) != NULL) {
        unsigned destination, mask; /* as the kernel prints them: network byte order read as a number */
        if (sscanf(line, "%*s %x %*x %*x %*d %*d %*d %x", &destination, &mask) != 2 || mask == 0) continue;
        taken = ((ntohl(destination) ^ subnet) & ntohl(mask) & SUBNET_MASK) == 0;
    }
    fclose(file);
    return taken;
}

static inspan_status_t free_subnet(uint32_t *subnet, inspan_error_t *err)
{
    uint32_t start = (uint32_t)getpid() % POOL_SUBNETS;
    for (uint32_t i = 0; i < POOL_SUBNETS; i++) {
        *subnet = POOL + ((start + i) % POOL_SUBNETS << 8);
        if (!taken_by_interface(*subnet) && !taken_by_route(*subnet)) return INSPAN_OK;
    }
    return error_set(err, INSPAN_EXISTS,
                     "no free network in 198.18.0.0/15: this machine has addresses or routes "
                     "there already");
}

/* ---- Building -------------------------------------------------------------------------------- */

static const char *dotted(uint32_t address, char text[24], const char *suffix)
{
    snprintf(text, 24, "%u.%u.%u.%u%s", address >> 24, address >> 16 & 255, address >> 8 & 255, address & 255,
             suffix);
    return text;
}

/* "tc ACTION dev DEVICE ...", in the namespace if there is one. */
#define TC_WORDS 20
static inspan_status_t run_tc(const char *namespace_name, const char *const *action, char *text, size_t size,
                              inspan_error_t *err)
{
    const char *words[TC_WORDS + 1] = {"tc"};
    uint32_t n = 1;
    if (namespace_name != NULL) {
        words[n++] = "-n";
        words[n++] = namespace_name;
    }
    for (uint32_t i = 0; action[i] != NULL && n < TC_WORDS; i++) words[n++] = action[i];
    return lab_run_output(words, text, size, err);
}

inspan_status_t lab_net_shape(const char *namespace_name, const char *device, uint64_t bits_per_s,
                              inspan_error_t *err)
{
    char rate[32], text[256];
    if (bits_per_s == 0) return INSPAN_OK;
    snprintf(rate, sizeof rate, "%llubit", (unsigned long long)bits_per_s);
    const char *const action[] = {"qdisc", "replace", "dev",   device,    "root", "tbf", "rate",
                                  rate,    "burst",   "128kb", "latency", "20ms", NULL};
    return run_tc(namespace_name, action, text, sizeof text, err);
}

inspan_status_t lab_net_rate(const char *namespace_name, const char *device, uint64_t *bits_per_s,
                             inspan_error_t *err)
{
    char text[1024];
    const char *const action[] = {"-j", "qdisc", "show", "dev", device, NULL};
    const inspan_status_t status = run_tc(namespace_name, action, text, sizeof text, err);
    if (status != INSPAN_OK) return status;
    static const char key[] = "\"rate\":";
    const char *shaper = strstr(text, "\"tbf\""), *at = shaper == NULL ? NULL : strstr(shaper, key);
    *bits_per_s = at == NULL ? 0 : 8 * strtoull(at + strlen(key), NULL, 10); /* JSON has it in bytes */
    return INSPAN_OK;
}

static inspan_status_t add_machine(const char *tag, uint32_t machine, const lab_link_t *link, uint32_t subnet,
                                   inspan_error_t *err)
{
    char bridge[IFNAMSIZ], outside[IFNAMSIZ], inside[LAB_NAME_SIZE], address[24];
    snprintf(bridge, sizeof bridge, "isb%s", tag);
    snprintf(outside, sizeof outside, "isv%.8s.%u", tag, machine % 100);
    lab_namespace_name(tag, machine, inside);
    dotted(subnet + machine + 1, address, "/24");
    inspan_status_t status = lab_run(err, "ip", "netns", "add", inside);
    if (status == INSPAN_OK)
        status = lab_run(err, "ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns",
                         inside);
    if (status == INSPAN_OK) status = lab_run(err, "ip", "link", "set", outside, "master", bridge, "up");
    if (status == INSPAN_OK) status = lab_run(err, "ip", "-n", inside, "addr", "add", address, "dev", "eth0");
    if (status == INSPAN_OK) status = lab_run(err, "ip", "-n", inside, "link", "set", "eth0", "up");
    if (status == INSPAN_OK) status = lab_run(err, "ip", "-n", inside, "link", "set", "lo", "up");
    if (status == INSPAN_OK) status = lab_net_shape(inside, "eth0", link->up_bits_per_s, err);
    if (status == INSPAN_OK) status = lab_net_shape(NULL, outside, link->down_bits_per_s, err);
    return status;
}

inspan_status_t lab_net_open(const char *tag, uint32_t machines, const lab_link_t *links, uint32_t *subnet,
                             inspan_error_t *err)
{
    char bridge[IFNAMSIZ], address[24];
    inspan_status_t status = free_subnet(subnet, err);
    if (status != INSPAN_OK) return status;
    snprintf(bridge, sizeof bridge, "isb%s", tag);
    dotted(*subnet + BRIDGE_HOST, address, "/24");
    status = lab_run(err, "ip", "link", "add", bridge, "type", "bridge");
    if (status == INSPAN_OK) status = lab_run(err, "ip", "addr", "add", address, "dev", bridge);
    if (status == INSPAN_OK) status = lab_run(err, "ip", "link", "set", bridge, "up");
    for (uint32_t i = 0; i < machines && status == INSPAN_OK; i++)
        status = add_machine(tag, i, &links[i], *subnet, err);
    return status;
}

/* ---- Removing -------------------------------------------------------------------------------- */

typedef struct inside {
    dev_t device;
    ino_t inode;
} inside_t;

/* SIGKILL to every process whose network namespace is one of these; how many there were. */
static uint32_t kill_inside(const inside_t *namespaces, uint32_t n)
{
    DIR *proc = opendir("/proc");
    if (proc == NULL) return 0;
    uint32_t found = 0;
    const struct dirent *entry;
    while ((entry = readdir(proc)) != NULL) {
        char *end, path[64];
        long pid = strtol(entry->d_name, &end, 10);
        struct stat info;
        if (*end != '\0' || pid <= 1 || pid == (long)getpid()) continue;
        snprintf(path, sizeof path, "/proc/%ld/ns/net", pid);
        if (stat(path, &info) != 0) continue;
        for (uint32_t i = 0; i < n; i++) {
            if (info.st_dev != namespaces[i].device || info.st_ino != namespaces[i].inode) continue;
            kill((pid_t)pid, SIGKILL);
            found++;
        }
    }
    closedir(proc);
    return found;
}

static uint32_t list_namespaces(const char *tag, char names[][LAB_NAME_SIZE], inside_t *namespaces,
                                uint32_t most)
{
    char prefix[LAB_NAME_SIZE];
    int length = snprintf(prefix, sizeof prefix, "inspan-%s-", tag);
    DIR *folder = opendir(NETNS_FOLDER);
    if (folder == NULL) return 0;
    uint32_t n = 0;
    const struct dirent *entry;
    while (n < most && (entry = readdir(folder)) != NULL) {
        char path[sizeof NETNS_FOLDER + 256];
        struct stat info;
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0 || strlen(entry->d_name) >= LAB_NAME_SIZE)
            continue;
        snprintf(path, sizeof path, NETNS_FOLDER "/%s", entry->d_name);
        if (stat(path, &info) != 0) continue;
        snprintf(names[n], LAB_NAME_SIZE, "%.*s", LAB_NAME_SIZE - 1, entry->d_name);
        namespaces[n++] = (inside_t){info.st_dev, info.st_ino};
    }
    closedir(folder);
    return n;
}

static void remove_interfaces(const char *prefix)
{
    struct if_nameindex *list = if_nameindex();
    if (list == NULL) return;
    for (const struct if_nameindex *at = list; at->if_name != NULL; at++) {
        inspan_error_t err = {0};
        if (strncmp(at->if_name, prefix, strlen(prefix)) != 0) continue;
        if (lab_run(&err, "ip", "link", "del", at->if_name) != INSPAN_OK)
            log_warn("laboratory: %s", err.text);
    }
    if_freenameindex(list);
}

void lab_net_close(const char *tag)
{
    char names[LAB_MACHINES_MAX][LAB_NAME_SIZE];
    inside_t namespaces[LAB_MACHINES_MAX];
    uint32_t n = list_namespaces(tag, names, namespaces, LAB_MACHINES_MAX);
    ns_t deadline = os_now() + LAB_BOUND;
    while (n > 0 && kill_inside(namespaces, n) > 0 && os_now() < deadline) poll(NULL, 0, 5);

    char prefix[IFNAMSIZ];
    snprintf(prefix, sizeof prefix, "isv%.8s.", tag);
    remove_interfaces(prefix); /* first: a namespace alone takes its links away only some time later */
    for (uint32_t i = 0; i < n; i++) {
        inspan_error_t err = {0};
        if (lab_run(&err, "ip", "netns", "del", names[i]) != INSPAN_OK) log_warn("laboratory: %s", err.text);
    }
    snprintf(prefix, sizeof prefix, "isb%s", tag);
    remove_interfaces(prefix);
}
