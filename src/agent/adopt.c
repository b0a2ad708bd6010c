/*
 * Workers outlive their agent: what a later life of it needs to find them again lies in run/.
 *
 *   worker-JOB-RANK   "PID START FRESH\n": the process, and whether its folder is the job's
 *   order-JOB-RANK    the manager's order, packed
 *   output-JOB-RANK   named pipe of its output
 *
 * The worker calls again at the same socket by itself (src/worker/socket.c) and says again all that counts.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/internal.h"
#include "agent/job_files.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

enum { ORDER_BYTES_MAX = 4 << 20 };

/* ---- Recording ------------------------------------------------------------------------------- */

/* Without syncing it to the disk: after a power cut there is no worker either. */
static void record(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        log_warn("cannot write %s: should this agent be killed, it would not find its worker again", path);
    if (fd >= 0) close(fd);
}

void adopt_record_order(const process_t *process)
{
    const size_t bytes = inspan__v1__start_worker__get_packed_size(process->order);
    uint8_t *packed = bytes <= ORDER_BYTES_MAX ? malloc(bytes > 0 ? bytes : 1) : NULL;
    if (packed == NULL) return; /* it will not be found again; that is all */
    inspan__v1__start_worker__pack(process->order, packed);
    record(process->order_path, packed, bytes);
    free(packed);
}

void adopt_record_pid(const process_t *process)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%d %llu %d\n", (int)process->process.pid,
                     (unsigned long long)process->process.start_ticks, process->fresh);
    record(process->pid_path, text, (size_t)n);
}

void adopt_forget(const process_t *process)
{
    unlink(process->pid_path);
    unlink(process->order_path);
    unlink(process->output_path);
}

inspan_status_t adopt_open_output(process_t *process, int *write_end, inspan_error_t *err)
{
    unlink(process->output_path);
    int ends[2] = {-1, -1};
    if (mkfifo(process->output_path, 0600) == 0) {
        ends[1] = open(process->output_path, O_RDWR | O_CLOEXEC);
        ends[0] = ends[1] >= 0 ? open(process->output_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
        if (ends[0] < 0 && ends[1] >= 0) close(ends[1]);
        /* holds what is printed until the next life reads; a smaller one does as well, the worker then waits
         */
        if (ends[0] >= 0) (void)fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
    }
    if (ends[0] < 0) { /* a file system without them: its output ends with this agent */
        if (pipe2(ends, O_CLOEXEC) != 0)
            return error_set_errno(err, INSPAN_IO, "cannot make a pipe for a worker's output");
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    process->output = ends[0];
    *write_end = ends[1];
    return INSPAN_OK;
}

/* ---- Taking over ----------------------------------------------------------------------------- */

typedef struct leftover {
    unsigned long long job, start;
    unsigned rank;
    int pid, fresh;
} leftover_t;

static bool read_leftover(const char *folder, const char *name, leftover_t *left)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    *left = (leftover_t){.pid = 0};
    if (sscanf(name, "worker-%llu-%u", &left->job, &left->rank) != 2) return false;
    snprintf(path, sizeof path, "%.3500s/%.256s", folder, name);
    bool read = os_file_read(path, 256, &text, &bytes, NULL) == INSPAN_OK &&
                sscanf(text, "%d %llu %d", &left->pid, &left->start, &left->fresh) >= 2;
    free(text);
    return read;
}

/* The order as a message of the manager's, as process_t keeps it. NULL: none that could be right. */
static Inspan__V1__AgentDown *read_order(const char *folder, const leftover_t *left)
{
    char path[PATH_MAX];
    char *packed = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%.3500s/order-%llu-%u", folder, left->job, left->rank);
    if (os_file_read(path, ORDER_BYTES_MAX, &packed, &bytes, NULL) != INSPAN_OK) return NULL;
    Inspan__V1__StartWorker *order = inspan__v1__start_worker__unpack(NULL, bytes, (const uint8_t *)packed);
    free(packed);
    Inspan__V1__AgentDown *message = order != NULL ? malloc(sizeof *message) : NULL;
    if (message == NULL || order->job_id != left->job || order->rank != left->rank) {
        if (order != NULL) inspan__v1__start_worker__free_unpacked(order, NULL);
        free(message);
        return NULL;
    }
    inspan__v1__agent_down__init(message);
    message->kind_case = INSPAN__V1__AGENT_DOWN__KIND_START;
    message->start = order;
    return message;
}

static process_t *open_process(agent_t *agent, const leftover_t *left, Inspan__V1__AgentDown *message)
{
    process_t *process = calloc(1, sizeof *process);
    if (process == NULL) return NULL;
    process->agent = agent;
    process->message = message;
    process->order = message->start;
    process->listener = process->connection = process->output = process->process.pidfd = -1;
    process->fresh = left->fresh != 0;
    process_set_paths(process);
    return process;
}

/* Its socket, its output, its end. */
static inspan_status_t attach(process_t *process, inspan_error_t *err)
{
    process->in = malloc(PROCESS_BUFFER);
    process->out = malloc(PROCESS_BUFFER);
    if (process->in == NULL || process->out == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a worker");
    inspan_status_t status = worker_log_continue(process->log_path, WORKER_LOG_CAP, &process->log, NULL);
    if (status != INSPAN_OK)
        status = worker_log_create(process->log_path, WORKER_LOG_CAP, &process->log, err);
    if (status == INSPAN_OK) status = process_listen(process, err);
    if (status != INSPAN_OK) return status;
    process->output = open(process->output_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    process_watch(process);
    return INSPAN_OK;
}

/* false: it is not to be taken over. */
static bool take_over(agent_t *agent, const char *folder, const leftover_t *left)
{
    os_process_t running;
    inspan_error_t err = {.status = INSPAN_OK};
    Inspan__V1__AgentDown *message = read_order(folder, left);
    if (message == NULL) return false;
    process_t *process = NULL;
    if (os_process_adopt(left->pid, left->start, &running)) {
        process = open_process(agent, left, message);
        if (process == NULL && running.pidfd >= 0) close(running.pidfd);
    }
    inspan_status_t status = INSPAN_NOT_FOUND;
    if (process != NULL) {
        process->process = running;
        status =
            agent_core_adopt(agent->core, os_now(), left->job, left->rank, message->start->failure_timeout_ns,
                             (uint32_t)left->pid, process, &process->worker);
        if (status != INSPAN_OK) { /* the process ends by the caller */
            if (running.pidfd >= 0) close(running.pidfd);
            free(process);
        }
    }
    if (status != INSPAN_OK) {
        inspan__v1__agent_down__free_unpacked(message, NULL);
        return false;
    }
    status = attach(process, &err);
    if (status != INSPAN_OK) {
        log_error("job %llu, rank %u: %s", left->job, left->rank, err.text);
        agent_core_stop(agent->core, os_now(), left->job, left->rank, true, err.text);
        return true;
    }
    log_info("job %llu, rank %u: worker is process %d still", left->job, left->rank, left->pid);
    return true;
}

static void remove_records(const char *folder, const leftover_t *left)
{
    static const char *const kinds[] = {"worker", "order", "output"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.3500s/%s-%llu-%u", folder, kinds[i], left->job, left->rank);
        unlink(path);
    }
}

void adopt_leftovers(agent_t *agent)
{
    char folder[PATH_MAX];
    unsigned adopted = 0;
    snprintf(folder, sizeof folder, "%.3300s/run", agent->folder);
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        leftover_t left;
        if (!read_leftover(folder, entry->d_name, &left)) continue;
        if (take_over(agent, folder, &left)) {
            adopted++;
            continue;
        }
        if (os_process_kill_leftover(left.pid, left.start))
            log_warn("ended process %d, which an earlier agent of this folder left behind", left.pid);
        remove_records(folder, &left);
    }
    closedir(listing);
    agent->adopted_until = adopted > 0 ? os_now() + NS_PER_S : 0;
    snprintf(folder, sizeof folder, "%.3300s/jobs", agent->folder);
    if (adopted == 0) job_files_drop_halves(folder); /* else one of them may be writing */
    snprintf(folder, sizeof folder, "%.3300s/cache", agent->folder);
    job_files_drop_halves(folder);
}
