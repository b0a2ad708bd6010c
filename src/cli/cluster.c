#include "cli/cluster.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/place.h"
#include "platform/host/inventory.h"
#include "platform/host/lab.h"
#include "platform/os/os_file.h"
#include "platform/os/os_spawn.h"
#include "platform/os/os_time.h"

#define WORDS_MAX    32
#define START_BOUND  (30 * NS_PER_S)
#define LOOK_PERIOD  (20 * NS_PER_MS)
#define STOP_GRACE   (8 * NS_PER_S) /* an agent gives its workers 2 s */
#define KILL_GRACE   (5 * NS_PER_S) /* one that hangs in the kernel (dead disk, dead NFS) outlives SIGKILL */
#define BACK_OFF     (100 * NS_PER_MS) /* workers go on without their agent for failure_timeout */
#define BACK_OFF_MAX (3 * NS_PER_S)
#define STEADY       (2 * NS_PER_S) /* ran that long: the next fault is a new one */
#define TEMPORARY    "inspan-local-"
#define OWNER_LOCK   "owner.lock"

typedef struct child {
    char name[64]; /* "manager", "agent node-2" */
    char *words[WORDS_MAX + 1];
    uint32_t n_words;
    os_process_t process;
    ns_t started, restart_at, back_off;
} child_t;

struct cluster {
    char folder[PLACE_PATH_MAX], program[PLACE_PATH_MAX];
    int owner_lock; /* of a temporary folder; -1 */
    char host[64];  /* where the manager is reached from here */
    bool open_to_lan;
    uint16_t port;
    char manager[PLACE_TARGET_MAX], token[PLACE_TOKEN_MAX];
    lab_t *lab;
    double *cores; /* (agents) quota for --cores; 0: all */
    uint32_t agents;
    child_t *children; /* (agents + 1), the manager first */
};

/* ---- Children -------------------------------------------------------------------------------- */

static void add_word(child_t *child, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_word(child_t *child, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (child->n_words < WORDS_MAX && vasprintf(&child->words[child->n_words], format, args) >= 0)
        child->n_words++;
    va_end(args);
    child->words[child->n_words] = NULL;
}

static void free_words(child_t *child)
{
    for (uint32_t i = 0; i < child->n_words; i++) free(child->words[i]);
    child->n_words = 0;
}

static inspan_status_t start(const cluster_t *cluster, child_t *child, inspan_error_t *err)
{
    os_spawn_options_t options = {
        .program = cluster->program, .arguments = (const char *const *)child->words, .output = STDERR_FILENO};
    child->started = os_now();
    child->restart_at = 0;
    return os_spawn(&options, &child->process, err);
}

static void describe_manager(cluster_t *cluster)
{
    child_t *child = &cluster->children[0];
    free_words(child);
    snprintf(child->name, sizeof child->name, "manager");
    add_word(child, "inspan");
    add_word(child, "manager");
    add_word(child, "--folder=%s/manager", cluster->folder);
    if (cluster->open_to_lan)
        add_word(child, "--listen=[::]:%u", cluster->port);
    else
        add_word(child, "--listen=%s:%u", cluster->host, cluster->port);
    add_word(child, "--ready-file=%s/manager/ready", cluster->folder);
    add_word(child, "--parent=%ld", (long)getpid());
}

static void describe_agent(cluster_t *cluster, const cluster_options_t *options, uint32_t i)
{
    child_t *child = &cluster->children[i + 1];
    char name[48] = "";
    if (cluster->agents > 1 || cluster->lab != NULL) snprintf(name, sizeof name, "node-%u", i + 1);
    if (cluster->agents == 1 && options->name != NULL) snprintf(name, sizeof name, "%s", options->name);
    snprintf(child->name, sizeof child->name, "agent%s%s", name[0] != '\0' ? " " : "", name);
    add_word(child, "inspan");
    if (cluster->lab != NULL) {
        add_word(child, "--enter-lab");
        add_word(child, "%s", lab_where(cluster->lab, i));
    }
    add_word(child, "agent");
    add_word(child, "--folder=%s/agents/%u", cluster->folder, i);
    add_word(child, "--manager=%s", cluster->manager);
    add_word(child, "--token-file=%s/manager/token", cluster->folder);
    add_word(child, "--parent=%ld", (long)getpid());
    if (name[0] != '\0') add_word(child, "--name=%s", name);
    if (cluster->lab != NULL)
        add_word(child, "--address=%s", lab_address(cluster->lab, i));
    else if (options->agent_address != NULL)
        add_word(child, "--address=%s", options->agent_address);
    if (options->data_ports != NULL) add_word(child, "--data-ports=%s", options->data_ports);
    /* A quota the agent sees by itself, and as it is at that time: `inspan lab` changes it. */
    if (cluster->cores[i] > 0 && options->cpu == NULL) add_word(child, "--cores=%.17g", cluster->cores[i]);
}

/* ---- Folder ---------------------------------------------------------------------------------- */

static int lock_owner(const char *folder, int flags)
{
    char path[PLACE_PATH_MAX + 400];
    snprintf(path, sizeof path, "%s/" OWNER_LOCK, folder);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Folders of private clusters whose owner was killed: nobody holds their lock. */
static void remove_dead_folders(const char *where)
{
    DIR *folder = opendir(where);
    if (folder == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        char path[PLACE_PATH_MAX + 300];
        struct stat info;
        if (strncmp(entry->d_name, TEMPORARY, strlen(TEMPORARY)) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", where, entry->d_name);
        if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) continue;
        int fd = lock_owner(path, 0);
        if (fd < 0) continue;
        os_remove_all(path, NULL);
        close(fd);
    }
    closedir(folder);
}

static inspan_status_t make_folder(cluster_t *cluster, const char *given, inspan_error_t *err)
{
    char path[PLACE_PATH_MAX + 32];
    if (given != NULL) {
        snprintf(cluster->folder, sizeof cluster->folder, "%s", given);
        inspan_status_t status = os_mkdir_all(cluster->folder, 0700, err);
        if (status != INSPAN_OK) return status;
    } else {
        const char *where = getenv("TMPDIR");
        if (where == NULL || where[0] != '/' || strlen(where) > PLACE_FOLDER_MAX - 64) where = "/tmp";
        remove_dead_folders(where);
        snprintf(cluster->folder, sizeof cluster->folder, "%s/" TEMPORARY "XXXXXX", where);
        if (mkdtemp(cluster->folder) == NULL) {
            error_set_errno(err, INSPAN_IO, "a temporary folder %s", cluster->folder);
            cluster->folder[0] = '\0';
            return INSPAN_IO;
        }
        cluster->owner_lock = lock_owner(cluster->folder, O_CREAT);
        if (cluster->owner_lock < 0) {
            error_set_errno(err, INSPAN_IO, "%s/" OWNER_LOCK, cluster->folder);
            os_remove_all(cluster->folder, NULL);
            return INSPAN_IO;
        }
    }
    snprintf(path, sizeof path, "%s/manager", cluster->folder);
    return os_mkdir_all(path, 0700, err);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static inspan_status_t open_lab(cluster_t *cluster, const cluster_options_t *options, inspan_error_t *err)
{
    lab_link_t links[CLUSTER_AGENTS_MAX];
    inspan_status_t status = INSPAN_OK;
    if (options->cpu != NULL) status = lab_parse_cores(options->cpu, cluster->agents, cluster->cores, err);
    if (status == INSPAN_OK && options->link != NULL)
        status = lab_parse_links(options->link, cluster->agents, links, err);
    if (status != INSPAN_OK || (options->cpu == NULL && options->link == NULL)) return status;
    lab_options_t lab = {.machines = cluster->agents,
                         .cores = options->cpu != NULL ? cluster->cores : NULL,
                         .links = options->link != NULL ? links : NULL};
    status = lab_open(&lab, &cluster->lab, err);
    if (status == INSPAN_OK)
        snprintf(cluster->host, sizeof cluster->host, "%s", lab_host_address(cluster->lab));
    return status;
}

/* Several agents on one machine, no quotas: each gets its part of the cores. */
static void share_cores(cluster_t *cluster, const cluster_options_t *options)
{
    if (options->cpu != NULL || cluster->agents < 2) return;
    inventory_t *inventory = calloc(1, sizeof *inventory);
    if (inventory == NULL) return;
    inventory_read("", cluster->folder, inventory);
    for (uint32_t i = 0; i < cluster->agents; i++)
        cluster->cores[i] = inventory->usable_cores / cluster->agents;
    free(inventory);
}

/* The ready file has "PORT\nTOKEN\n"; false: it is not there yet. */
static bool read_ready_file(cluster_t *cluster, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    if (os_file_read(path, 4096, &text, &bytes, NULL) != INSPAN_OK) return false;
    unsigned port = 0;
    bool read = sscanf(text, "%u %255s", &port, cluster->token) == 2 && port >= 1 && port <= 65535;
    cluster->port = (uint16_t)port;
    free(text);
    return read;
}

static inspan_status_t start_manager(cluster_t *cluster, interrupt_t *interrupt, inspan_error_t *err)
{
    char path[PLACE_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/manager/ready", cluster->folder);
    unlink(path);
    describe_manager(cluster);
    inspan_status_t status = start(cluster, &cluster->children[0], err);
    ns_t deadline = os_now() + START_BOUND;
    while (status == INSPAN_OK && !read_ready_file(cluster, path)) {
        os_exit_t result;
        char text[160];
        if (os_process_poll(&cluster->children[0].process, &result))
            return error_set(err, result.code == 1 ? INSPAN_INVALID : INSPAN_IO,
                             "the manager did not start (%s); its own message stands on stderr",
                             os_exit_text(&result, text, sizeof text));
        if (os_now() >= deadline)
            return error_set(err, INSPAN_TIMEOUT, "the manager did not get ready within %.0f s",
                             ns_to_s(START_BOUND));
        if (interrupt_wait(interrupt, LOOK_PERIOD) > 0) return error_set(err, INSPAN_ABORTED, "interrupted");
    }
    snprintf(cluster->manager, sizeof cluster->manager, "%s:%u", cluster->host, cluster->port);
    describe_manager(cluster); /* a later start takes the same port */
    return status;
}

static inspan_status_t start_all(cluster_t *cluster, const cluster_options_t *options, interrupt_t *interrupt,
                                 inspan_error_t *err)
{
    ssize_t length = readlink("/proc/self/exe", cluster->program, sizeof cluster->program - 1);
    if (length <= 0 || access(cluster->program, X_OK) != 0)
        snprintf(cluster->program, sizeof cluster->program, "/proc/self/exe");
    inspan_status_t status = make_folder(cluster, options->folder, err);
    if (status == INSPAN_OK) status = open_lab(cluster, options, err);
    if (status == INSPAN_OK) status = start_manager(cluster, interrupt, err);
    if (status == INSPAN_OK) share_cores(cluster, options);
    for (uint32_t i = 0; i < cluster->agents && status == INSPAN_OK; i++) {
        describe_agent(cluster, options, i);
        status = start(cluster, &cluster->children[i + 1], err);
    }
    return status;
}

inspan_status_t cluster_open(const cluster_options_t *options, interrupt_t *interrupt, cluster_t **out,
                             inspan_error_t *err)
{
    if (options->agents == 0 || options->agents > CLUSTER_AGENTS_MAX)
        return error_set(err, INSPAN_INVALID, "--local %u: expected 1 to %d", options->agents,
                         CLUSTER_AGENTS_MAX);
    cluster_t *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    cluster->owner_lock = -1;
    cluster->agents = options->agents;
    cluster->open_to_lan = options->open_to_lan;
    cluster->port = options->port;
    cluster->children = calloc(cluster->agents + 1, sizeof *cluster->children);
    cluster->cores = calloc(cluster->agents, sizeof *cluster->cores);
    snprintf(cluster->host, sizeof cluster->host, "127.0.0.1");
    inspan_status_t status = INSPAN_NO_MEMORY;
    if (cluster->children != NULL && cluster->cores != NULL)
        status = start_all(cluster, options, interrupt, err);
    else
        error_set(err, status, "out of memory");
    if (status != INSPAN_OK) {
        cluster_close(cluster);
        return status;
    }
    *out = cluster;
    return INSPAN_OK;
}

/* ---- Closing --------------------------------------------------------------------------------- */

static bool all_ended(child_t *children, uint32_t n)
{
    bool ended = true;
    for (uint32_t i = 0; i < n; i++) {
        os_exit_t result;
        if (children[i].process.pid > 0 && !os_process_poll(&children[i].process, &result)) ended = false;
    }
    return ended;
}

static bool end_within(child_t *children, uint32_t n, ns_t grace)
{
    const ns_t deadline = os_now() + grace;
    bool ended;
    while (!(ended = all_ended(children, n)) && os_now() < deadline) poll(NULL, 0, 10);
    return ended;
}

static void stop(child_t *children, uint32_t n, int how)
{
    for (uint32_t i = 0; i < n; i++)
        if (children[i].process.pid > 0) kill(children[i].process.pid, how);
    if (end_within(children, n, STOP_GRACE)) return;
    for (uint32_t i = 0; i < n; i++) os_process_signal(&children[i].process, SIGKILL);
    if (end_within(children, n, KILL_GRACE)) return;
    for (uint32_t i = 0; i < n; i++)
        if (children[i].process.pid > 0)
            fprintf(stderr, "inspan: %s (process %ld) cannot be ended: it is left behind\n", children[i].name,
                    (long)children[i].process.pid);
}

void cluster_close(cluster_t *cluster)
{
    if (cluster == NULL) return;
    if (cluster->children != NULL) {
        /* The manager hears that they leave; QUIT: with the whole cluster nobody is left to hand work over
         * to. */
        stop(cluster->children + 1, cluster->agents, SIGQUIT);
        stop(cluster->children, 1, SIGTERM);
        for (uint32_t i = 0; i <= cluster->agents; i++) free_words(&cluster->children[i]);
    }
    lab_close(cluster->lab);
    if (cluster->owner_lock >= 0) {
        inspan_error_t err = {0};
        if (os_remove_all(cluster->folder, &err) != INSPAN_OK) fprintf(stderr, "inspan: %s\n", err.text);
        close(cluster->owner_lock);
    }
    free(cluster->children);
    free(cluster->cores);
    free(cluster);
}

/* ---- While it runs --------------------------------------------------------------------------- */

const char *cluster_manager(const cluster_t *cluster)
{
    return cluster->manager;
}

uint16_t cluster_port(const cluster_t *cluster)
{
    return cluster->port;
}

const char *cluster_token(const cluster_t *cluster)
{
    return cluster->token;
}

const char *cluster_folder(const cluster_t *cluster)
{
    return cluster->folder;
}

inspan_status_t cluster_look(cluster_t *cluster, inspan_error_t *err)
{
    for (uint32_t i = 0; i <= cluster->agents; i++) {
        os_exit_t result;
        char text[160];
        child_t *child = &cluster->children[i];
        if (child->process.pid == 0)
            return error_set(err, INSPAN_PEER_LOST, "the cluster's %s has ended", child->name);
        if (os_process_poll(&child->process, &result))
            return error_set(err, result.code == 1 ? INSPAN_INVALID : INSPAN_PEER_LOST,
                             "the cluster's %s has ended: %s%s", child->name,
                             os_exit_text(&result, text, sizeof text),
                             result.code == 1 ? " (its own message stands on stderr)" : "");
    }
    return INSPAN_OK;
}

/* The next start of a child that has ended, or could not be started; each time later. */
static double put_off(child_t *child)
{
    const ns_t now = os_now(), pause = child->back_off;
    child->restart_at = now + pause;
    child->back_off = pause * 2 < BACK_OFF_MAX ? pause * 2 : BACK_OFF_MAX;
    return ns_to_s(pause);
}

static void start_again(const cluster_t *cluster, child_t *child)
{
    inspan_error_t err = {0};
    if (os_now() < child->restart_at || start(cluster, child, &err) == INSPAN_OK) return;
    /* no memory or no process left at this moment: the others go on */
    fprintf(stderr, "inspan: %s cannot be started: %s; trying again in %.1f s\n", child->name, err.text,
            put_off(child));
}

static inspan_status_t tend_child(cluster_t *cluster, child_t *child, inspan_error_t *err)
{
    os_exit_t result;
    char text[160];
    ns_t now = os_now();
    if (child->process.pid == 0) {
        start_again(cluster, child);
        return INSPAN_OK;
    }
    if (!os_process_poll(&child->process, &result)) return INSPAN_OK;
    os_exit_text(&result, text, sizeof text);
    if (result.code == 1) {
        child->restart_at = INT64_MAX;
        return error_set(err, INSPAN_INVALID, "%s has ended with a fault that a new start does not mend (%s)",
                         child->name, text);
    }
    if (child->back_off == 0 || now - child->started > STEADY) child->back_off = BACK_OFF;
    fprintf(stderr, "inspan: %s has ended (%s): starting it again in %.1f s\n", child->name, text,
            put_off(child));
    return INSPAN_OK;
}

inspan_status_t cluster_tend(cluster_t *cluster, inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i <= cluster->agents && status == INSPAN_OK; i++)
        status = tend_child(cluster, &cluster->children[i], err);
    return status;
}

static uint32_t ready_nodes(const Inspan__V1__NodeList *list)
{
    uint32_t ready = 0;
    for (size_t i = 0; i < list->n_nodes; i++)
        ready += strcmp(list->nodes[i]->state, "ready") == 0 || strcmp(list->nodes[i]->state, "busy") == 0 ||
                 strcmp(list->nodes[i]->state, "kept") == 0;
    return ready;
}

inspan_status_t cluster_await_nodes(cluster_t *cluster, rpc_client_t *client, interrupt_t *interrupt,
                                    ns_t timeout, inspan_error_t *err)
{
    ns_t deadline = os_now() + timeout;
    for (;;) {
        Inspan__V1__NodeList *list = client_nodes(client, err);
        if (list == NULL) return err->status;
        uint32_t ready = ready_nodes(list);
        client_free(list);
        if (ready >= cluster->agents) return INSPAN_OK;
        inspan_status_t status = cluster_look(cluster, err);
        if (status != INSPAN_OK) return status;
        if (os_now() >= deadline)
            return error_set(err, INSPAN_TIMEOUT, "only %u of %u agents have registered within %.0f s", ready,
                             cluster->agents, ns_to_s(timeout));
        if (interrupt_wait(interrupt, 2 * LOOK_PERIOD) > 0)
            return error_set(err, INSPAN_ABORTED, "interrupted");
    }
}
