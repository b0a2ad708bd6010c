#include "platform/host/lab_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"

struct lab {
    uint32_t machines;
    bool has_links, has_cores;
    int lock; /* of LAB_FOLDER/tag */
    char tag[LAB_TAG_SIZE];
    lab_cpu_t cpu;
    char host_address[24];
    char (*addresses)[24];            /* (machines) */
    char (*where)[LAB_PATH_SIZE * 2]; /* (machines) */
};

/* ---- What the user writes -------------------------------------------------------------------- */

/* The next item of a comma-separated list, or the only one again; false: malformed or at its end. */
static bool next_item(const char **at, const char *text, uint32_t i, char *item, size_t size)
{
    if (i > 0 && strchr(text, ',') == NULL) *at = text;
    size_t length = strcspn(*at, ",");
    if (length == 0 || length >= size) return false;
    memcpy(item, *at, length);
    item[length] = '\0';
    *at += length;
    if (**at == ',') *at += 1;
    return true;
}

static inspan_status_t check_count(const char *text, uint32_t machines, const char *what, inspan_error_t *err)
{
    uint32_t items = 1;
    for (const char *at = text; *at != '\0'; at++) items += *at == ',';
    if (items == 1 || items == machines) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "%s \"%.80s\" has %u values, expected %u (one a machine) or 1",
                     what, text, items, machines);
}

inspan_status_t lab_parse_cores(const char *text, uint32_t machines, double *cores, inspan_error_t *err)
{
    const char *at = text;
    char item[32];
    inspan_status_t status = check_count(text, machines, "cores", err);
    for (uint32_t i = 0; i < machines && status == INSPAN_OK; i++) {
        char *end = item;
        bool whole = next_item(&at, text, i, item, sizeof item);
        if (whole) cores[i] = strtod(item, &end);
        if (!whole || end == item || *end != '\0' || !(cores[i] >= 0.05 && cores[i] <= 1024))
            status = error_set(err, INSPAN_INVALID,
                               "cores of machine %u in \"%.80s\": expected a number from 0.05 to "
                               "1024, as in 0.8,0.4",
                               i, text);
    }
    return status;
}

inspan_status_t lab_parse_links(const char *text, uint32_t machines, lab_link_t *links, inspan_error_t *err)
{
    const char *at = text;
    char item[64];
    inspan_status_t status = check_count(text, machines, "links", err);
    for (uint32_t i = 0; i < machines && status == INSPAN_OK; i++) {
        bool right = next_item(&at, text, i, item, sizeof item);
        if (right) {
            char *down = strchr(item, '/');
            if (down != NULL) *down++ = '\0';
            right = units_parse_rate(item, &links[i].up_bits_per_s) == INSPAN_OK &&
                    units_parse_rate(down != NULL ? down : item, &links[i].down_bits_per_s) == INSPAN_OK;
        }
        if (!right)
            status = error_set(err, INSPAN_INVALID,
                               "link of machine %u in \"%.80s\": expected a rate as 1gbit, or up "
                               "and down as 100mbit/400mbit",
                               i, text);
    }
    return status;
}

/* ---- Locks and leftovers --------------------------------------------------------------------- */

/* Lock LAB_FOLDER/name without waiting; -1 with errno, EWOULDBLOCK if another holds it. */
static int lock_file(const char *name)
{
    char path[LAB_PATH_SIZE];
    snprintf(path, sizeof path, LAB_FOLDER "/%s", name);
    for (int attempt = 0; attempt < 8; attempt++) {
        struct stat opened, there;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0) return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int cause = errno;
            close(fd);
            errno = cause;
            return -1;
        }
        /* a cleaner may have removed the name between open and lock: then this is a lock of nothing */
        if (fstat(fd, &opened) == 0 && stat(path, &there) == 0 && opened.st_ino == there.st_ino) return fd;
        close(fd);
    }
    errno = EWOULDBLOCK;
    return -1;
}

static void unlock_file(int fd, const char *name)
{
    char path[LAB_PATH_SIZE];
    snprintf(path, sizeof path, LAB_FOLDER "/%s", name);
    unlink(path);
    close(fd);
}

/* One builder or cleaner at a time, so that two laboratories do not pick one subnet. */
static inspan_status_t lock_building(int *fd, inspan_error_t *err)
{
    if (mkdir(LAB_FOLDER, 0700) != 0 && errno != EEXIST)
        return error_set_errno(err, INSPAN_IO, "laboratory: folder %s", LAB_FOLDER);
    ns_t deadline = os_now() + 6 * LAB_BOUND;
    while ((*fd = lock_file("building")) < 0) {
        if (errno != EWOULDBLOCK)
            return error_set_errno(err, INSPAN_IO, "laboratory: lock in %s", LAB_FOLDER);
        if (os_now() >= deadline)
            return error_set(err, INSPAN_TIMEOUT, "laboratory: another one has held %s/building for %d s",
                             LAB_FOLDER, (int)ns_to_s(6 * LAB_BOUND));
        poll(NULL, 0, 20);
    }
    return INSPAN_OK;
}

/* The folder of its groups stands in the lock file: this process may be in another group than the owner was.
 */
static void remove_tag(const char *tag, int lock)
{
    char parent[LAB_PATH_SIZE];
    lab_net_close(tag);
    const ssize_t length = pread(lock, parent, sizeof parent - 1, 0);
    if (length <= 0) return;
    parent[length] = '\0';
    lab_cpu_close(parent, tag);
}

static inspan_status_t note_parent(const lab_t *lab, inspan_error_t *err)
{
    const size_t length = strlen(lab->cpu.parent);
    if (pwrite(lab->lock, lab->cpu.parent, length, 0) == (ssize_t)length) return INSPAN_OK;
    return error_set_errno(err, INSPAN_IO, "laboratory: writing %s/%s", LAB_FOLDER, lab->tag);
}

/* What owners that died without lab_close have left: their locks are free. */
static void remove_leftovers(void)
{
    DIR *folder = opendir(LAB_FOLDER);
    if (folder == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        size_t digits = strspn(entry->d_name, "0123456789");
        if (digits == 0 || strlen(entry->d_name) != digits + 1 || digits + 2 > LAB_TAG_SIZE) continue;
        int fd = lock_file(entry->d_name);
        if (fd < 0) continue;
        log_info("laboratory: removing what %s left behind", entry->d_name);
        remove_tag(entry->d_name, fd);
        unlock_file(fd, entry->d_name);
    }
    closedir(folder);
}

/* ---- Open, close, enter ---------------------------------------------------------------------- */

static bool has_capability(unsigned bit)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL) return false;
    char line[256];
    unsigned long long effective = 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "CapEff: %llx", &effective) == 1) break;
    fclose(file);
    return (effective >> bit & 1) != 0;
}

/* Some containers have the rights and still cannot: ip mounts things of its own before it enters a namespace.
 */
static inspan_status_t probe_namespace(inspan_error_t *err)
{
    char name[LAB_NAME_SIZE];
    inspan_error_t why = {0};
    snprintf(name, sizeof name, "inspan-probe-%ld", (long)getpid());
    inspan_status_t status = lab_run(&why, "ip", "netns", "add", name);
    if (status != INSPAN_OK)
        return error_set(err, INSPAN_UNSUPPORTED, "--link does not work in this container: %.300s", why.text);
    status = lab_run(&why, "ip", "-n", name, "link", "set", "lo", "up");
    lab_run(NULL, "ip", "netns", "del", name);
    if (status == INSPAN_OK) return INSPAN_OK;
    return error_set(err, INSPAN_UNSUPPORTED, "--link does not work in this container: %.300s", why.text);
}

inspan_status_t lab_probe(bool links, bool cores, inspan_error_t *err)
{
    char path[64];
    if (!links && !cores) return INSPAN_OK;
    if (geteuid() != 0)
        return error_set(err, INSPAN_UNSUPPORTED,
                         "the laboratory (--cpu, --link) needs root: try again with sudo");
    if (links && !(has_capability(12) && has_capability(21))) /* CAP_NET_ADMIN, CAP_SYS_ADMIN */
        return error_set(err, INSPAN_UNSUPPORTED,
                         "this container may not make network namespaces (capabilities "
                         "NET_ADMIN and SYS_ADMIN are missing): --link does not work here");
    static const char *const programs[] = {"ip", "tc"};
    for (size_t i = 0; links && i < 2; i++)
        if (!lab_find_program(programs[i], path, sizeof path))
            return error_set(err, INSPAN_UNSUPPORTED,
                             "--link needs the program %s: install the package iproute2", programs[i]);
    if (links) {
        const inspan_status_t status = probe_namespace(err);
        if (status != INSPAN_OK) return status;
    }
    lab_cpu_t cpu;
    inspan_status_t status = cores ? lab_cpu_find("", &cpu, err) : INSPAN_OK;
    if (status == INSPAN_OK && cores) status = lab_cpu_enable(&cpu, err);
    return status;
}

static inspan_status_t take_tag(lab_t *lab, inspan_error_t *err)
{
    for (int letter = 'a'; letter <= 'j'; letter++) {
        snprintf(lab->tag, sizeof lab->tag, "%ld%c", (long)getpid(), letter);
        lab->lock = lock_file(lab->tag);
        if (lab->lock >= 0) return INSPAN_OK;
        if (errno != EWOULDBLOCK)
            return error_set_errno(err, INSPAN_IO, "laboratory: %s/%s", LAB_FOLDER, lab->tag);
    }
    return error_set(err, INSPAN_LIMIT, "laboratory: this process has 10 of them open already");
}

static inspan_status_t build(lab_t *lab, const lab_options_t *options, inspan_error_t *err)
{
    uint32_t subnet = 0;
    inspan_status_t status = take_tag(lab, err);
    if (status == INSPAN_OK && lab->has_links)
        status = lab_net_open(lab->tag, lab->machines, options->links, &subnet, err);
    if (status == INSPAN_OK && lab->has_cores) status = lab_cpu_find("", &lab->cpu, err);
    if (status == INSPAN_OK && lab->has_cores) status = lab_cpu_enable(&lab->cpu, err);
    if (status == INSPAN_OK && lab->has_cores) status = note_parent(lab, err);
    snprintf(lab->host_address, sizeof lab->host_address, "127.0.0.1");
    if (lab->has_links)
        snprintf(lab->host_address, sizeof lab->host_address, "%u.%u.%u.254", subnet >> 24,
                 subnet >> 16 & 255, subnet >> 8 & 255);
    for (uint32_t i = 0; i < lab->machines && status == INSPAN_OK; i++) {
        char name[LAB_NAME_SIZE] = "-", group[LAB_PATH_SIZE] = "-";
        snprintf(lab->addresses[i], sizeof lab->addresses[i], "127.0.0.1");
        if (lab->has_links) {
            lab_namespace_name(lab->tag, i, name);
            snprintf(lab->addresses[i], sizeof lab->addresses[i], "%u.%u.%u.%u", subnet >> 24,
                     subnet >> 16 & 255, subnet >> 8 & 255, i + 1);
        }
        if (lab->has_cores) status = lab_cpu_make(&lab->cpu, lab->tag, i, group, err);
        if (lab->has_cores && status == INSPAN_OK)
            status = lab_cpu_set(lab->cpu.unified, group, options->cores[i], err);
        snprintf(lab->where[i], sizeof lab->where[i], "%s:%s", name, group);
    }
    return status;
}

inspan_status_t lab_open(const lab_options_t *options, lab_t **out, inspan_error_t *err)
{
    if (options->machines == 0 || options->machines > LAB_MACHINES_MAX)
        return error_set(err, INSPAN_INVALID, "laboratory: %u machines, expected 1 to %d", options->machines,
                         LAB_MACHINES_MAX);
    inspan_status_t status = lab_probe(options->links != NULL, options->cores != NULL, err);
    if (status != INSPAN_OK) return status;
    lab_t *lab = calloc(1, sizeof *lab);
    if (lab == NULL) return error_set(err, INSPAN_NO_MEMORY, "laboratory: out of memory");
    lab->machines = options->machines;
    lab->has_links = options->links != NULL;
    lab->has_cores = options->cores != NULL;
    lab->lock = -1;
    lab->addresses = calloc(lab->machines, sizeof *lab->addresses);
    lab->where = calloc(lab->machines, sizeof *lab->where);
    if (lab->addresses == NULL || lab->where == NULL) {
        lab_close(lab);
        return error_set(err, INSPAN_NO_MEMORY, "laboratory: out of memory");
    }
    int building = -1;
    bool real = lab->has_links || lab->has_cores; /* else nothing is built: no root, no lock needed */
    if (real) status = lock_building(&building, err);
    if (real && status == INSPAN_OK) {
        remove_leftovers();
        status = build(lab, options, err);
        close(building); /* the name stays: its lock is what counts */
    } else if (status == INSPAN_OK) {
        snprintf(lab->host_address, sizeof lab->host_address, "127.0.0.1");
        for (uint32_t i = 0; i < lab->machines; i++) {
            snprintf(lab->addresses[i], sizeof lab->addresses[i], "127.0.0.1");
            snprintf(lab->where[i], sizeof lab->where[i], "-:-");
        }
    }
    if (status != INSPAN_OK) {
        lab_close(lab);
        return status;
    }
    *out = lab;
    return INSPAN_OK;
}

void lab_close(lab_t *lab)
{
    if (lab == NULL) return;
    if (lab->lock >= 0) {
        if (lab->has_links) lab_net_close(lab->tag);
        if (lab->has_cores && lab->cpu.parent[0] != '\0') lab_cpu_close(lab->cpu.parent, lab->tag);
        unlock_file(lab->lock, lab->tag);
    }
    free(lab->addresses);
    free(lab->where);
    free(lab);
}

const char *lab_host_address(const lab_t *lab)
{
    return lab->host_address;
}

const char *lab_address(const lab_t *lab, uint32_t machine)
{
    return lab->addresses[machine];
}

const char *lab_where(const lab_t *lab, uint32_t machine)
{
    return lab->where[machine];
}

static inspan_status_t enter_namespace(const char *name, inspan_error_t *err)
{
    char path[LAB_PATH_SIZE];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(err, INSPAN_IO, "laboratory: %s", path);
    int failed = setns(fd, CLONE_NEWNET);
    int cause = errno;
    close(fd);
    errno = cause;
    return failed ? error_set_errno(err, INSPAN_IO, "laboratory: entering %s", path) : INSPAN_OK;
}

static inspan_status_t enter_group(const char *group, inspan_error_t *err)
{
    char path[LAB_PATH_SIZE + 32];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(err, INSPAN_IO, "laboratory: %s", path);
    bool failed = write(fd, "0", 1) != 1; /* 0: the writer itself */
    int cause = errno;
    close(fd);
    errno = cause;
    return failed ? error_set_errno(err, INSPAN_IO, "laboratory: entering %s", path) : INSPAN_OK;
}

inspan_status_t lab_enter(const char *where, inspan_error_t *err)
{
    const char *colon = strchr(where, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - where);
    if (length == 0 || length >= LAB_NAME_SIZE || colon[1] == '\0' || strlen(colon + 1) >= LAB_PATH_SIZE ||
        memchr(where, '/', length) != NULL)
        return error_set(err, INSPAN_INVALID, "--enter-lab \"%.100s\": not a place that the laboratory gave",
                         where);
    char name[LAB_NAME_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)length, where);
    inspan_status_t status = INSPAN_OK;
    if (strcmp(colon + 1, "-") != 0) status = enter_group(colon + 1, err);
    if (status == INSPAN_OK && strcmp(name, "-") != 0) status = enter_namespace(name, err);
    return status;
}
