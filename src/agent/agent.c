#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/internal.h"
#include "agent/job_files.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

enum { EXIT_OK = 0, EXIT_USER = 1, EXIT_CLUSTER = 2, INBOX_MESSAGES = 256 };
/* Room for "/jobs/ID/rank-R/data.labels" in a value of a job's settings. */
enum { FOLDER_MAX = JOB_FILES_VALUE_MAX - 50 };

static const ns_t tick_period = 100 * NS_PER_MS;
enum { BEATS = 5 }; /* heartbeats in a failure timeout */
static const ns_t default_timeout = 5 * NS_PER_S;
static const ns_t sight_bound = 500 * NS_PER_MS; /* for the first look at the machine's vitals */
static const ns_t leave_bound = 10 * NS_PER_S;   /* for workers to hand over their work */
static const ns_t end_bound =
    6 * NS_PER_S; /* 2 s for SIGTERM, 2 s for SIGKILL, the rest for a slow machine */

/* ---- Sending --------------------------------------------------------------------------------- */

void agent_send(agent_t *agent, const ProtobufCMessage *message)
{
    if (agent->stream == NULL) return;
    /* Never wait: heartbeats are small, and a manager that takes none for so long that the queue is full is
     * gone. */
    if (rpc_stream_send(agent->stream, message, 0, NULL) != INSPAN_OK) rpc_stream_cancel(agent->stream);
}

/* ---- The session ----------------------------------------------------------------------------- */

/* What the manager hears first of a worker of an earlier life should be true: not before it has called again.
 */
static void register_if_due(agent_t *agent)
{
    if (!agent->register_due || agent->stream == NULL) return;
    if (!agent_core_settled(agent->core) && os_now() < agent->adopted_until) return;
    if (!agent->has_sight && os_now() - agent->up_at < sight_bound) return;
    agent->register_due = false;
    messages_send_register(agent);
}

static void on_up(agent_t *agent, link_up_t *up)
{
    if (agent->half_closed) { /* the good-bye is said: no new session */
        rpc_stream_cancel(up->stream);
        free(up);
        return;
    }
    agent->stream = up->stream;
    agent->up_at = os_now();
    agent->registered = false;
    snprintf(agent->address, sizeof agent->address, "%s", up->address);
    free(up);
    agent->register_due = true;
    register_if_due(agent);
}

static void begin_end(agent_t *agent, int exit_code, const char *reason)
{
    if (agent->ending) return;
    agent->ending = true;
    agent->exit_code = exit_code;
    agent->leave_by = 0;
    agent->end_by = os_now() + end_bound;
    agent_core_stop_all(agent->core, os_now(), reason);
}

static void on_down(agent_t *agent, bool was_up, inspan_error_t *err)
{
    bool was_registered = agent->registered;
    agent->stream = NULL;
    agent->registered = false;
    agent_core_link(agent->core, os_now(), false);
    if (was_up) link_let_go(agent->link);
    if (err == NULL || agent->ending) {
        if (agent->half_closed) loop_stop(agent->loop); /* the manager has heard the good-bye */
        free(err);
        return;
    }
    if (err->status == INSPAN_AUTH || err->status == INSPAN_VERSION) {
        fprintf(stderr, "inspan: node %s cannot join the cluster at %s: %s\n", agent->name,
                agent->options->manager, err->text);
        begin_end(agent, EXIT_USER, "the manager refused this node");
    } else if (was_registered || !agent->told_down) {
        log_warn("no session with the manager at %s: %s; trying on", agent->options->manager, err->text);
        agent->told_down = true;
    }
    free(err);
}

static void keep_id(agent_t *agent)
{
    char path[PATH_MAX], text[80];
    inspan_error_t err;
    snprintf(path, sizeof path, "%.3900s/id", agent->folder);
    int n = snprintf(text, sizeof text, "%s\n", agent->node_id);
    if (os_file_write(path, text, (size_t)n, 0600, &err) != INSPAN_OK)
        log_warn("%s: this node will have another id after a restart", err.text);
}

static void on_beat(void *context)
{
    agent_t *agent = context;
    if (!agent->registered) return;
    messages_send_heartbeat(agent);
    agent->beat_at = os_now();
}

/* A job may be more impatient than the cluster: its agents beat as often in its timeout. */
static void beat_for_jobs(agent_t *agent, ns_t now)
{
    if (now - agent->beat_at >= agent_core_failure_timeout(agent->core) / BEATS) on_beat(agent);
}

static void on_registered(agent_t *agent, const Inspan__V1__Registered *reply)
{
    if (reply->node_id[0] != '\0' && strcmp(reply->node_id, agent->node_id) != 0) {
        snprintf(agent->node_id, sizeof agent->node_id, "%s", reply->node_id);
        keep_id(agent);
    }
    const char *wish = agent->options->name;
    if (reply->name[0] != '\0') snprintf(agent->name, sizeof agent->name, "%s", reply->name);
    if (!agent->was_registered && wish != NULL && strcmp(wish, agent->name) != 0)
        log_warn("this node is called %s in its cluster, not %.60s: another node has that name, or it is too "
                 "long or has other characters than letters, digits, '.', '_' and '-'",
                 agent->name, wish);
    agent->was_registered = true;
    if (reply->failure_timeout_ns >= NS_PER_S) agent->failure_timeout = reply->failure_timeout_ns;
    ns_t period =
        reply->heartbeat_ns >= 10 * NS_PER_MS ? reply->heartbeat_ns : agent->failure_timeout / BEATS;
    if (period != agent->heartbeat) {
        loop_timer_stop(agent->beat);
        agent->beat = NULL;
        inspan_error_t err;
        agent->heartbeat = period;
        if (loop_timer(agent->loop, period, period, on_beat, agent, &agent->beat, &err) != INSPAN_OK)
            begin_end(agent, EXIT_CLUSTER, err.text);
    }
    agent_core_configure(agent->core, agent->name, agent->address, agent->threads, agent->options->first_port,
                         agent->options->last_port);
    agent->registered = true;
    agent->told_down = false;
    messages_send_due_reports(agent);
    agent_core_link(agent->core, os_now(), true);
    log_info("registered with the manager at %s as node %s, address %s", agent->options->manager, agent->name,
             agent->address);
    if (agent->options->on_registered != NULL)
        agent->options->on_registered(agent->options->context, agent->node_id, agent->name, agent->address);
}

/* Message is freed, but where a worker's order keeps it. */
static void on_message(agent_t *agent, Inspan__V1__AgentDown *message)
{
    const Inspan__V1__StopWorker *stop = message->stop;
    switch (message->kind_case) {
    case INSPAN__V1__AGENT_DOWN__KIND_REGISTERED: on_registered(agent, message->registered); break;
    case INSPAN__V1__AGENT_DOWN__KIND_START:
        if (agent->ending || agent->leave_by != 0) break;
        process_start(agent, message);
        return;
    case INSPAN__V1__AGENT_DOWN__KIND_VIEW: messages_take_view(agent, message->view); break;
    case INSPAN__V1__AGENT_DOWN__KIND_STOP:
        if (stop->leave && !stop->kill)
            agent_core_leave(agent->core, os_now(), stop->job_id, stop->rank, stop->reason);
        else
            agent_core_stop(agent->core, os_now(), stop->job_id, stop->rank, stop->kill, stop->reason);
        break;
    case INSPAN__V1__AGENT_DOWN__KIND_ARTIFACT: messages_take_artifact(agent, message->artifact); break;
    case INSPAN__V1__AGENT_DOWN__KIND_LOST: messages_take_lost(agent, message->lost); break;
    case INSPAN__V1__AGENT_DOWN__KIND_LOG: push_start(agent, message->log); break;
    default: log_debug("an order of a kind that this version does not know"); break;
    }
    inspan__v1__agent_down__free_unpacked(message, NULL);
}

static void on_inbox(void *context)
{
    agent_t *agent = context;
    inbox_message_t message;
    while (inbox_take(agent->inbox, &message, 0)) {
        switch (message.kind) {
        case LINK_UP: on_up(agent, message.payload); break;
        case LINK_MESSAGE: on_message(agent, message.payload); break;
        case LINK_DOWN: on_down(agent, message.id == LINK_WAS_UP, message.payload); break;
        case AGENT_TASK_DONE: task_finish(agent, message.payload); break;
        case AGENT_PUSH_DONE: push_finish(agent, message.payload); break;
        case AGENT_SIGHT:
            vitals_take(agent);
            register_if_due(agent);
            break;
        default: break;
        }
    }
}

/* What is left in the inbox when it closes. Tasks and pushes are joined by their owners before. */
static void drop_message(const inbox_message_t *message)
{
    if (message->kind == LINK_MESSAGE) inspan__v1__agent_down__free_unpacked(message->payload, NULL);
    if (message->kind == LINK_UP || message->kind == LINK_DOWN) free(message->payload);
}

static void wake_loop(void *context)
{
    loop_wake(((agent_t *)context)->loop);
}

/* ---- Time ------------------------------------------------------------------------------------ */

static void on_last_wait(void *context)
{
    loop_stop(((agent_t *)context)->loop);
}

/* Workers gone: say good-bye, and give it a moment to arrive. */
static void finish_end(agent_t *agent, ns_t now)
{
    bool quiet = agent_core_running(agent->core) == 0;
    if (!quiet && now < agent->end_by) return;
    if (!quiet) log_error("workers of this node do not end: their processes stay behind");
    if (!agent->half_closed && agent->stream != NULL) {
        rpc_stream_half_close(agent->stream);
        loop_timer(agent->loop, NS_PER_S, 0, on_last_wait, agent, &agent->last_wait, NULL);
    }
    bool waits = agent->stream != NULL && agent->last_wait != NULL;
    agent->half_closed = true;
    if (!waits) loop_stop(agent->loop);
}

static void on_tick(void *context)
{
    agent_t *agent = context;
    ns_t now = os_now();
    process_poll_all(agent);
    agent_core_tick(agent->core, now);
    vitals_tend(agent);
    register_if_due(agent);
    beat_for_jobs(agent, now);
    ns_t patience = agent->failure_timeout > default_timeout ? agent->failure_timeout : default_timeout;
    if (agent->stream != NULL && !agent->registered && now - agent->up_at > patience) {
        agent->up_at = now; /* cancel once, not on each tick */
        rpc_stream_cancel(agent->stream);
    }
    if (agent->leave_by != 0 && (now >= agent->leave_by || agent_core_running(agent->core) == 0))
        begin_end(agent, EXIT_OK, agent->reason);
    if (agent->ending) finish_end(agent, now);
}

static void on_end_signal(void *context)
{
    agent_t *agent = context;
    snprintf(agent->reason, sizeof agent->reason, "the agent of node %s was stopped", agent->name);
    begin_end(agent, EXIT_OK, agent->reason);
}

/* Workers of elastic jobs hand over their work first; asked twice, it does not wait. */
static void on_leave_signal(void *context)
{
    agent_t *agent = context;
    snprintf(agent->reason, sizeof agent->reason, "the agent of node %s was stopped", agent->name);
    const bool again = agent->leave_by != 0 || agent->ending;
    if (!again && agent->registered && agent_core_leave_all(agent->core, os_now(), agent->reason))
        agent->leave_by = os_now() + leave_bound;
    else
        begin_end(agent, EXIT_OK, agent->reason);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int user_error(const inspan_error_t *err)
{
    fprintf(stderr, "inspan: %s\n", err->text);
    return EXIT_USER;
}

/* One agent a folder; the lock goes with the process, however it ends. */
static inspan_status_t lock_folder(const agent_t *agent, int *lock, inspan_error_t *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/lock", agent->folder);
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*lock < 0) return error_set_errno(err, INSPAN_IO, "cannot write %s", path);
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return INSPAN_OK;
    close(*lock);
    *lock = -1;
    return error_set(err, INSPAN_EXISTS,
                     "another agent runs on %s: stop it, or give this one a --dir of its own", agent->folder);
}

static inspan_status_t read_id(agent_t *agent, inspan_error_t *err)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%.3900s/id", agent->folder);
    if (os_file_read(path, 256, &text, &bytes, NULL) == INSPAN_OK) {
        text[strcspn(text, "\n")] = '\0';
        snprintf(agent->node_id, sizeof agent->node_id, "%s", text);
    }
    free(text);
    if (agent->node_id[0] != '\0') return INSPAN_OK;
    inspan_status_t status = os_uuid(agent->node_id);
    if (status != INSPAN_OK) return error_set(err, status, "the kernel gives no random numbers");
    keep_id(agent);
    return INSPAN_OK;
}

/*
 * A folder of ours that nobody else may enter: made, or found so. One that others can only read (a backup was
 * restored) is closed to them; what they could write to is not to be trusted.
 */
static inspan_status_t private_folder(const char *path, inspan_error_t *err)
{
    struct stat info;
    if ((mkdir(path, 0700) != 0 && errno != EEXIST) || lstat(path, &info) != 0)
        return error_set_errno(err, INSPAN_IO, "cannot make the private folder %s", path);
    bool ours = S_ISDIR(info.st_mode) && info.st_uid == geteuid();
    unsigned mode = info.st_mode & 0777;
    if (ours && (mode & 077) == 0) return INSPAN_OK;
    if (ours && (mode & 022) == 0 && chmod(path, 0700) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID,
                     "%s is %s of user %u with mode %03o: expected a folder of user %u with mode 700, for "
                     "workers' sockets; remove it, or correct its owner and mode",
                     path, S_ISDIR(info.st_mode) ? "a folder" : "no folder, but a file",
                     (unsigned)info.st_uid, mode, (unsigned)geteuid());
}

/* Sockets' paths are at most 107 bytes: the state folder if it is short enough, else the runtime folder, else
 * /tmp. */
static inspan_status_t find_runtime(agent_t *agent, inspan_error_t *err)
{
    enum { LONGEST = 107 - 1 - 20 - 1 - 10 }; /* "/JOB-RANK" */
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%.3900s/run", agent->folder);
    inspan_status_t status = private_folder(parent, err);
    if (status != INSPAN_OK) return status;
    snprintf(agent->runtime, sizeof agent->runtime, "%s", parent);
    if (strlen(agent->runtime) <= LONGEST) return INSPAN_OK;
    for (int way = xdg != NULL && xdg[0] == '/' ? 0 : 1; way < 2; way++) {
        if (way == 0)
            snprintf(parent, sizeof parent, "%.3900s/inspan", xdg);
        else
            snprintf(parent, sizeof parent, "/tmp/inspan-%u", (unsigned)geteuid());
        int n = snprintf(agent->runtime, sizeof agent->runtime, "%.3900s/%.8s", parent, agent->node_id);
        if (n <= LONGEST && private_folder(parent, NULL) == INSPAN_OK &&
            private_folder(agent->runtime, NULL) == INSPAN_OK)
            return INSPAN_OK;
    }
    return error_set(err, INSPAN_IO,
                     "no private folder with a short path for sockets: tried %s; set XDG_RUNTIME_DIR",
                     agent->runtime);
}

static inspan_status_t open_folder(agent_t *agent, int *lock, inspan_error_t *err)
{
    char path[PATH_MAX];
    inspan_status_t status = os_mkdir_all(agent->options->folder, 0700, err);
    if (status != INSPAN_OK) return status;
    if (realpath(agent->options->folder, path) == NULL)
        return error_set_errno(err, INSPAN_IO, "cannot use the folder %s", agent->options->folder);
    if (strlen(path) > FOLDER_MAX)
        return error_set(err, INSPAN_INVALID,
                         "the path of the folder %.100s... is longer than %d bytes, and those of data files "
                         "below it would not fit a job's settings: use a shorter --dir",
                         path, FOLDER_MAX);
    memcpy(agent->folder, path, sizeof agent->folder);
    status = lock_folder(agent, lock, err);
    if (status == INSPAN_OK) status = read_id(agent, err);
    if (status == INSPAN_OK) status = find_runtime(agent, err);
    return status;
}

static void set_identity(agent_t *agent)
{
    const agent_options_t *options = agent->options;
    inventory_read("", agent->folder, &agent->inventory);
    if (options->cores > 0) agent->inventory.usable_cores = options->cores;
    agent->threads = inventory_threads(agent->inventory.usable_cores);
    snprintf(agent->name, sizeof agent->name, "%s",
             options->name != NULL && options->name[0] != '\0' ? options->name : agent->inventory.hostname);
    agent->failure_timeout = default_timeout;
    if (os_random(&agent->incarnation, sizeof agent->incarnation) != INSPAN_OK)
        agent->incarnation = (uint64_t)os_wall_now();
    agent_core_configure(agent->core, agent->name, "", agent->threads, options->first_port,
                         options->last_port);
}

static inspan_status_t open_watch(agent_t *agent, inspan_error_t *err)
{
    char path[PATH_MAX];
    const char *root = agent->options->root != NULL ? agent->options->root : "";
    snprintf(path, sizeof path, "%.3900s/" OWNER_FILE, agent->folder);
    return watch_open(root, path, agent->inbox, AGENT_SIGHT, &agent->watch, err);
}

static inspan_status_t open_parts(agent_t *agent, inspan_error_t *err)
{
    const agent_options_t *options = agent->options;
    agent->core = agent_core_open(&process_actions, agent);
    inspan_status_t status = loop_open(on_inbox, agent, &agent->loop, err);
    if (status != INSPAN_OK) return status;
    agent->inbox = inbox_open(INBOX_MESSAGES, wake_loop, agent, drop_message);
    if (agent->core == NULL || agent->inbox == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the agent");
    set_identity(agent);
    status = loop_signal(agent->loop, SIGTERM, on_leave_signal, agent, err);
    if (status == INSPAN_OK) status = loop_signal(agent->loop, SIGINT, on_leave_signal, agent, err);
    if (status == INSPAN_OK) status = loop_signal(agent->loop, SIGQUIT, on_end_signal, agent, err);
    if (status == INSPAN_OK)
        status = loop_timer(agent->loop, tick_period, tick_period, on_tick, agent, &agent->tick, err);
    if (status == INSPAN_OK) status = rpc_client_open(options->manager, options->token, &agent->client, err);
    if (status == INSPAN_OK) status = open_watch(agent, err);
    if (status == INSPAN_OK)
        status = link_open(agent->client, options->address, agent->inbox, &agent->link, err);
    return status;
}

/* Where it is not in the state folder nobody else would ever remove it. */
static void leave_runtime(const agent_t *agent)
{
    size_t length = strlen(agent->folder);
    if (strncmp(agent->runtime, agent->folder, length) != 0 || agent->runtime[length] != '/')
        rmdir(agent->runtime); /* stays if a worker's socket is still there */
}

static void discard_task(agent_task_t **task, bool join)
{
    task_abandon(*task);
    if (!join || *task == NULL) return;
    task_discard(*task);
    *task = NULL;
}

/* All are told first: one may wait for what another holds. */
static void discard_tasks(agent_t *agent)
{
    for (int pass = 0; pass < 2; pass++)
        for (agent_worker_t *worker = NULL; (worker = agent_core_each(agent->core, worker)) != NULL;) {
            process_t *process = worker->shell;
            if (process == NULL) continue;
            discard_task(&process->task, pass == 1);
            discard_task(&process->store, pass == 1);
        }
}

/* Threads first, so that nobody posts or uses the client when these go. */
static void close_parts(agent_t *agent)
{
    if (agent->inbox != NULL) inbox_shut(agent->inbox);
    agent->stream = NULL;
    agent->registered = false;
    watch_close(agent->watch);
    link_close(agent->link);
    if (agent->core != NULL) discard_tasks(agent);
    push_cancel_all(agent);
    agent_core_close(agent->core);
    inbox_close(agent->inbox);
    if (agent->client != NULL) rpc_client_close(agent->client);
    loop_close(agent->loop);
}

int agent_main(const agent_options_t *options)
{
    inspan_error_t err = {.status = INSPAN_OK};
    int lock = -1;
    agent_t *agent = calloc(1, sizeof *agent);
    if (agent == NULL) {
        error_set(&err, INSPAN_NO_MEMORY, "no memory for the agent");
        return user_error(&err);
    }
    log_set_component("agent");
    signal(SIGPIPE, SIG_IGN);
    agent->options = options;
    pthread_mutex_init(&agent->fetching, NULL);
    inspan_status_t status = open_folder(agent, &lock, &err);
    if (status == INSPAN_OK) {
        status = open_parts(agent, &err);
        if (status == INSPAN_OK) adopt_leftovers(agent);
        if (status == INSPAN_OK) loop_run(agent->loop);
        close_parts(agent);
        leave_runtime(agent);
    }
    int exit_code = status == INSPAN_OK ? agent->exit_code : user_error(&err);
    if (lock >= 0) close(lock);
    pthread_mutex_destroy(&agent->fetching);
    free(agent);
    return exit_code;
}
