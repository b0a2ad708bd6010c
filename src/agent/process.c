/*
 * A worker's process as the core's actions want it: local socket, spawn, output into its log, signals, end.
 * An end is told to the core only after all that the worker had sent was read.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/internal.h"
#include "agent/job_files.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

enum { OUTPUT_PIECE = 32768, OUTPUT_ROUNDS = 32 };

/* ---- The connection -------------------------------------------------------------------------- */

static void disconnect(process_t *process)
{
    loop_unwatch(process->connection_watch);
    process->connection_watch = NULL;
    if (process->connection >= 0) close(process->connection);
    process->connection = -1;
    process->in_used = process->out_used = 0;
    agent_core_disconnected(process->agent->core, os_now(), process->worker);
}

/* false: the connection is broken. */
static bool flush(process_t *process)
{
    while (process->out_used > 0) {
        ssize_t sent =
            send(process->connection, process->out, process->out_used, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (sent < 0) return false;
        process->out_used -= (size_t)sent;
        memmove(process->out, process->out + sent, process->out_used);
    }
    loop_watch_change(process->connection_watch, true, process->out_used > 0);
    return true;
}

/* Give whole frames to the core; false: a frame that ends the connection. */
static bool take_frames(process_t *process)
{
    size_t at = 0;
    inspan_status_t status = INSPAN_OK;
    while (status == INSPAN_OK && process->connection >= 0) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        status = local_peek(process->in + at, process->in_used - at, &type, &body, &n, &whole);
        if (status == INSPAN_CORRUPT) /* nothing after it can be read: let the core judge it */
            status =
                agent_core_frame(process->agent->core, os_now(), process->worker, LOCAL_WELCOME, NULL, 0);
        else if (status == INSPAN_OK)
            status = agent_core_frame(process->agent->core, os_now(), process->worker, type, body, n);
        if (status == INSPAN_OK) at += whole;
    }
    if (process->connection < 0) return true;
    process->in_used -= at;
    memmove(process->in, process->in + at, process->in_used);
    return status == INSPAN_PENDING;
}

/* Read all that is there. */
static void drain_connection(process_t *process)
{
    while (process->connection >= 0) {
        ssize_t got = recv(process->connection, process->in + process->in_used,
                           PROCESS_BUFFER - process->in_used, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got > 0) process->in_used += (size_t)got;
        if (got <= 0 || !take_frames(process)) {
            if (process->connection >= 0) disconnect(process);
            return;
        }
    }
}

static void on_connection(void *context, bool readable, bool writable)
{
    process_t *process = context;
    if (writable && !flush(process)) {
        disconnect(process);
        return;
    }
    if (readable) drain_connection(process);
}

static void on_listener(void *context, bool readable, bool writable)
{
    process_t *process = context;
    (void)writable;
    if (!readable) return;
    int fd = accept4(process->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    bool ours = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
    if (process->connection >= 0) drain_connection(process); /* an old one that just broke */
    if (!ours || process->connection >= 0 || process->worker->pid == 0) {
        close(fd);
        return;
    }
    process->connection = fd;
    process->in_used = process->out_used = 0;
    if (loop_watch(process->agent->loop, fd, true, false, on_connection, process, &process->connection_watch,
                   NULL) != INSPAN_OK) {
        close(fd);
        process->connection = -1;
    }
}

inspan_status_t process_listen(process_t *process, inspan_error_t *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(process->socket_path, sizeof process->socket_path, "%.90s/%llu-%u", process->agent->runtime,
                 (unsigned long long)process->worker->job, process->worker->rank);
    if (length >= (int)sizeof address.sun_path)
        return error_set(err, INSPAN_LIMIT, "the socket path %s is too long", process->socket_path);
    memcpy(address.sun_path, process->socket_path, (size_t)length + 1);
    unlink(process->socket_path);
    process->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (process->listener < 0 || bind(process->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(process->listener, 4) != 0)
        return error_set_errno(err, INSPAN_IO, "cannot make the worker's socket %s", process->socket_path);
    return loop_watch(process->agent->loop, process->listener, true, false, on_listener, process,
                      &process->listener_watch, err);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static void close_output(process_t *process)
{
    loop_unwatch(process->output_watch);
    process->output_watch = NULL;
    if (process->output >= 0) close(process->output);
    process->output = -1;
    if (process->log != NULL) worker_log_end(process->log);
}

/* rounds bounds the time for one worker, so that one that prints without end does not starve the others. */
static void drain_output(process_t *process, int rounds)
{
    char piece[OUTPUT_PIECE];
    while (process->output >= 0 && rounds-- > 0) {
        ssize_t got = read(process->output, piece, sizeof piece);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            close_output(process);
            return;
        }
        worker_log_append(process->log, piece, (size_t)got);
    }
}

static void on_output(void *context, bool readable, bool writable)
{
    (void)writable;
    if (readable) drain_output(context, OUTPUT_ROUNDS);
}

/* ---- Start and end --------------------------------------------------------------------------- */

static void check_end(process_t *process)
{
    os_exit_t result;
    if (!os_process_poll(&process->process, &result)) return;
    loop_unwatch(process->end_watch);
    process->end_watch = NULL;
    adopt_forget(process);
    drain_connection(process);
    drain_output(process, 2048);
    close_output(process); /* somebody outside its session may hold the other end: not waited for */
    loop_unwatch(process->listener_watch);
    process->listener_watch = NULL;
    if (process->listener >= 0) close(process->listener);
    process->listener = -1;
    unlink(process->socket_path);
    if (process->connection >= 0) disconnect(process);
    char results[PATH_MAX];
    snprintf(results, sizeof results, "%s/out", process->folder);
    job_files_drop_halves(results);
    agent_core_exited(process->agent->core, os_now(), process->worker, &result);
}

static void on_end(void *context, bool readable, bool writable)
{
    (void)writable;
    if (readable) check_end(context);
}

void process_poll_all(agent_t *agent)
{
    for (agent_worker_t *worker = NULL; (worker = agent_core_each(agent->core, worker)) != NULL;)
        if (worker->pid != 0 && worker->shell != NULL) check_end(worker->shell);
}

/* Where the machine runs out of memory, the training goes before what the owner works with. */
static void prefer_for_oom(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t written = write(fd, "500", 3);
    (void)written;
    close(fd);
}

static inspan_status_t spawn_worker(process_t *process, int output, inspan_error_t *err)
{
    char environment_socket[160];
    const agent_options_t *options = process->agent->options;
    const char *program = options->worker_program != NULL ? options->worker_program : "/proc/self/exe";
    snprintf(environment_socket, sizeof environment_socket, "INSPAN_SOCKET=%s", process->socket_path);
    const char *const arguments[] = {"inspan", "worker", process->folder, NULL};
    const char *newcomer = process->order->newcomer ? "INSPAN_NEWCOMER=1" : "INSPAN_NEWCOMER=0";
    const char *const environment[] = {environment_socket, newcomer, NULL};
    os_spawn_options_t spawn = {program, arguments, environment, process->folder, output};
    return os_spawn(&spawn, &process->process, err);
}

void process_watch(process_t *process)
{
    inspan_error_t ignored; /* without watches: the tick looks */
    loop_t *loop = process->agent->loop;
    if (process->output >= 0)
        loop_watch(loop, process->output, true, false, on_output, process, &process->output_watch, &ignored);
    if (process->process.pidfd >= 0)
        loop_watch(loop, process->process.pidfd, true, false, on_end, process, &process->end_watch, &ignored);
}

static inspan_status_t start_process(process_t *process, inspan_error_t *err)
{
    int write_end = -1;
    process->in = malloc(PROCESS_BUFFER);
    process->out = malloc(PROCESS_BUFFER);
    if (process->in == NULL || process->out == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a worker");
    inspan_status_t status = worker_log_create(process->log_path, WORKER_LOG_CAP, &process->log, err);
    if (status == INSPAN_OK) status = process_listen(process, err);
    if (status != INSPAN_OK) return status;
    status = adopt_open_output(process, &write_end, err);
    if (status != INSPAN_OK) return status;
    adopt_record_order(process);
    status = spawn_worker(process, write_end, err);
    close(write_end);
    if (status != INSPAN_OK) {
        adopt_forget(process);
        return status;
    }
    adopt_record_pid(process);
    prefer_for_oom(process->process.pid);
    process->worker->pid = (uint32_t)process->process.pid;
    process_watch(process);
    log_info("job %llu, rank %u: worker is process %d", (unsigned long long)process->worker->job,
             process->worker->rank, (int)process->process.pid);
    return INSPAN_OK;
}

/* ---- Actions of the core --------------------------------------------------------------------- */

static void act_report(void *context, const agent_worker_t *worker)
{
    messages_send_report(context, worker);
}

static inspan_status_t act_prepare(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context;
    process_t *process = worker->shell;
    process->worker = worker;
    return task_start(process, TASK_PREPARE, NULL, err);
}

static inspan_status_t act_upload(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context;
    return task_start(worker->shell, TASK_UPLOAD, NULL, err);
}

static inspan_status_t act_store(void *context, agent_worker_t *worker, const agent_artifact_t *artifact,
                                 inspan_error_t *err)
{
    (void)context;
    return task_start(worker->shell, TASK_STORE, artifact->saved.folder, err);
}

static void act_register(void *context, const agent_worker_t *worker, const agent_artifact_t *artifact)
{
    messages_send_artifact(context, worker, artifact);
}

static void act_ledger(void *context, const agent_worker_t *worker, const local_ledger_t *span)
{
    messages_send_ledger(context, worker, span);
}

static void act_note(void *context, const agent_worker_t *worker, const char *text)
{
    messages_send_note(context, worker, text);
}

static void act_verdict(void *context, const agent_worker_t *worker, const local_verdict_t *verdict)
{
    messages_send_verdict(context, worker, verdict);
}

static void act_abandon(void *context, agent_worker_t *worker)
{
    (void)context;
    process_t *process = worker->shell;
    task_abandon(process->task);
    task_abandon(process->store);
}

static inspan_status_t act_spawn(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context;
    return start_process(worker->shell, err);
}

static void act_send(void *context, agent_worker_t *worker, const uint8_t *frame, size_t bytes)
{
    (void)context;
    process_t *process = worker->shell;
    if (process->connection < 0) return;
    if (bytes > PROCESS_BUFFER - process->out_used) { /* it reads nothing: its silence will show */
        log_warn("job %llu, rank %u does not read its agent's frames", (unsigned long long)worker->job,
                 worker->rank);
        return;
    }
    memcpy(process->out + process->out_used, frame, bytes);
    process->out_used += bytes;
    if (!flush(process)) shutdown(process->connection, SHUT_RDWR); /* the loop sees it as a hang-up */
}

static void act_signal(void *context, agent_worker_t *worker, int signal)
{
    (void)context;
    process_t *process = worker->shell;
    os_process_signal(&process->process, signal);
    if (signal == SIGTERM)
        os_process_signal(&process->process, SIGCONT); /* a stopped one hears nothing else */
}

static void act_release(void *context, agent_worker_t *worker)
{
    (void)context;
    process_t *process = worker->shell;
    if (process == NULL) return;
    worker->shell = NULL;
    if (process->process.pid != 0) os_process_signal(&process->process, SIGKILL);
    loop_unwatch(process->listener_watch);
    loop_unwatch(process->connection_watch);
    loop_unwatch(process->end_watch);
    if (process->listener >= 0) {
        close(process->listener);
        unlink(process->socket_path);
    }
    if (process->connection >= 0) close(process->connection);
    if (process->process.pidfd >= 0) close(process->process.pidfd);
    close_output(process);
    worker_log_release(process->log);
    inspan__v1__agent_down__free_unpacked(process->message, NULL);
    free(process->in);
    free(process->out);
    free(process);
}

const agent_actions_t process_actions = {act_report, act_prepare, act_upload, act_store,    act_abandon,
                                         act_spawn,  act_send,    act_signal, act_register, act_ledger,
                                         act_note,   act_verdict, act_release};

/* ---- Orders ---------------------------------------------------------------------------------- */

/* process->fresh is set. */
void process_set_paths(process_t *process)
{
    const agent_t *agent = process->agent;
    unsigned long long job = process->order->job_id;
    unsigned rank = process->order->rank;
    char job_folder[PATH_MAX - 600];
    memcpy(process->node, agent->name, sizeof process->node);
    snprintf(job_folder, sizeof job_folder, "%.3300s/jobs/%llu", agent->folder, job);
    if (process->fresh)
        snprintf(process->folder, sizeof process->folder, "%s", job_folder);
    else
        snprintf(process->folder, sizeof process->folder, "%s/rank-%u", job_folder, rank);
    snprintf(process->log_path, sizeof process->log_path, "%s/rank-%u.log", job_folder, rank);
    snprintf(process->pid_path, sizeof process->pid_path, "%.3300s/run/worker-%llu-%u", agent->folder, job,
             rank);
    snprintf(process->order_path, sizeof process->order_path, "%.3300s/run/order-%llu-%u", agent->folder, job,
             rank);
    snprintf(process->output_path, sizeof process->output_path, "%.3300s/run/output-%llu-%u", agent->folder,
             job, rank);
}

/* The only worker of its job here begins with an empty folder; a newcomer leaves alone what the job's earlier
 * workers have written here. */
static void choose_folder(process_t *process)
{
    const agent_t *agent = process->agent;
    const uint64_t job = process->order->job_id;
    process->fresh = !process->order->newcomer;
    for (agent_worker_t *other = NULL; (other = agent_core_each(agent->core, other)) != NULL;) {
        if (other->job == job) process->fresh = false;
        process->jobs_in_use[process->n_jobs_in_use++] = other->job;
        if (other->job != job || other->phase == AGENT_GONE) continue;
        process->ranks_in_use[process->n_ranks_in_use++] = other->rank;
        process->job_folder_in_use |= other->shell != NULL && ((process_t *)other->shell)->fresh;
    }
    process_set_paths(process);
}

void process_start(agent_t *agent, Inspan__V1__AgentDown *message)
{
    Inspan__V1__StartWorker *order = message->start;
    process_t *process = calloc(1, sizeof *process);
    inspan_status_t status = INSPAN_NO_MEMORY;
    if (process != NULL) {
        process->agent = agent;
        process->message = message;
        process->order = order;
        process->listener = process->connection = process->output = process->process.pidfd = -1;
        choose_folder(process);
        status = agent_core_start(agent->core, os_now(), order->job_id, order->rank,
                                  order->failure_timeout_ns, process);
    }
    if (status == INSPAN_OK) return;
    if (status == INSPAN_NO_MEMORY) log_error("no memory to start a worker");
    free(process);
    inspan__v1__agent_down__free_unpacked(message, NULL);
}
