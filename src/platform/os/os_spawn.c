#include "platform/os/os_spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/units.h"
#include "platform/os/os_cgroup.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

extern char **environ;

/* Fields of /proc/PID/stat that are used here; they follow the name, which may hold spaces and parentheses.
 */
typedef struct proc_stat {
    char state;
    pid_t session;
    uint64_t start_ticks;
} proc_stat_t;

static bool read_stat(pid_t pid, proc_stat_t *stat)
{
    char path[64];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (os_file_read(path, 65536, &text, &bytes, NULL) != INSPAN_OK) return false;
    const char *after = strrchr(text, ')');
    int session = 0;
    unsigned long long start = 0;
    bool ok =
        after != NULL &&
        sscanf(after + 1, " %c %*d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &stat->state, &session, &start) == 3;
    stat->session = session;
    stat->start_ticks = start;
    free(text);
    return ok;
}

uint64_t os_process_start_ticks(pid_t pid)
{
    proc_stat_t stat;
    return pid > 0 && read_stat(pid, &stat) && stat.state != 'Z' ? stat.start_ticks : 0;
}

/* The OOM kills of the whole machine: tells of one outside any limited group. */
static uint64_t machine_oom_kills(void)
{
    char *text = NULL;
    size_t bytes = 0;
    uint64_t kills = 0;
    if (os_file_read("/proc/vmstat", 262144, &text, &bytes, NULL) != INSPAN_OK) return 0;
    const char *at = strstr(text, "\noom_kill ");
    if (at != NULL) kills = strtoull(at + 10, NULL, 10);
    free(text);
    return kills;
}

static os_oom_count_t count_ooms(void)
{
    os_oom_count_t count = {.machine = machine_oom_kills()};
    os_cgroup_oom_kills("", 0, &count.group);
    return count;
}

/* environ with these replaced or added; the strings stay others', free only the array. NULL: out of memory.
 */
static char **make_environment(const char *const *added)
{
    size_t n = 0, n_added = 0;
    while (environ != NULL && environ[n] != NULL) n++;
    while (added != NULL && added[n_added] != NULL) n_added++;
    char **all = calloc(n + n_added + 1, sizeof *all);
    if (all == NULL) return NULL;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        bool replaced = false;
        for (size_t k = 0; k < n_added && !replaced; k++)
            replaced = strncmp(environ[i], added[k], strcspn(added[k], "=") + 1) == 0;
        if (!replaced) all[used++] = environ[i];
    }
    for (size_t k = 0; k < n_added; k++) all[used++] = (char *)(uintptr_t)added[k];
    return all;
}

static int set_actions(posix_spawn_file_actions_t *actions, const os_spawn_options_t *options)
{
    int failed = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (options->output >= 0) {
        failed |= posix_spawn_file_actions_adddup2(actions, options->output, STDOUT_FILENO);
        failed |= posix_spawn_file_actions_adddup2(actions, options->output, STDERR_FILENO);
    }
    /* Close-on-exec is the rule everywhere; this is for descriptors of libraries that do not keep it. */
    failed |= posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
    if (options->folder != NULL) failed |= posix_spawn_file_actions_addchdir_np(actions, options->folder);
    return failed;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int failed = posix_spawnattr_setflags(
        attributes, (short)(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    failed |= posix_spawnattr_setsigmask(attributes, &none);
    failed |= posix_spawnattr_setsigdefault(attributes, &all);
    return failed;
}

inspan_status_t os_spawn(const os_spawn_options_t *options, os_process_t *process, inspan_error_t *err)
{
    *process = (os_process_t){.pidfd = -1};
    char **environment = make_environment(options->environment);
    if (environment == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory to start %s", options->program);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int failed = set_actions(&actions, options) | set_attributes(&attributes) ? ENOMEM : 0;
    if (!failed)
        failed = posix_spawn(&pid, options->program, &actions, &attributes,
                             (char *const *)(uintptr_t)options->arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    if (failed) {
        inspan_status_t status = failed == ENOENT   ? INSPAN_NOT_FOUND
                                 : failed == ENOMEM ? INSPAN_NO_MEMORY
                                                    : INSPAN_IO;
        return error_set(err, status, "cannot start %s: %s", options->program, strerror(failed));
    }
    process->pid = pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    proc_stat_t stat;
    if (read_stat(pid, &stat)) process->start_ticks = stat.start_ticks; /* a zombie has it too */
    process->ooms[0] = process->ooms[1] = count_ooms();
    process->looked_ns = os_now();
    return INSPAN_OK;
}

/* Signal the members of the session that left the leader's group; their number, without zombies. */
static int signal_session(pid_t session, int signal)
{
    DIR *proc = opendir("/proc");
    if (proc == NULL) return 0;
    int found = 0;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        proc_stat_t stat;
        if (pid <= 0 || pid == session || !read_stat(pid, &stat)) continue;
        if (stat.session != session || stat.state == 'Z' || stat.state == 'X') continue;
        kill(pid, signal);
        found++;
    }
    closedir(proc);
    return found;
}

void os_process_signal(const os_process_t *process, int signal)
{
    if (process->pid <= 0) return;
    kill(-process->pid, signal);
    signal_session(process->pid, signal);
}

/* SIGKILL until a look around finds nobody: one that forks while it is looked for is met in the next round.
 */
static void kill_session(pid_t session)
{
    for (int round = 0; round < 8; round++) {
        kill(-session, SIGKILL);
        if (signal_session(session, SIGKILL) == 0) return;
    }
}

bool os_process_adopt(pid_t pid, uint64_t start_ticks, os_process_t *process)
{
    *process = (os_process_t){.pidfd = -1};
    if (pid <= 1 || start_ticks == 0) return false;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (os_process_start_ticks(pid) != start_ticks) { /* asked while the pidfd holds whom it is about */
        if (pidfd >= 0) close(pidfd);
        return false;
    }
    *process = (os_process_t){.pid = pid, .pidfd = pidfd, .start_ticks = start_ticks, .adopted = true};
    return true;
}

/* Its parent reaps it. Of its session somebody may be left, who then keeps its number from being used again.
 */
static bool poll_adopted(os_process_t *process, os_exit_t *result)
{
    const uint64_t start = os_process_start_ticks(process->pid);
    if (start == process->start_ticks) return false;
    *result = (os_exit_t){.unknown = true, .code = -1, .memory_limit = os_cgroup_memory_limit("", 0)};
    for (int round = 0; round < 8 && start == 0 && signal_session(process->pid, SIGKILL) > 0; round++) {
    }
    if (process->pidfd >= 0) close(process->pidfd);
    process->pidfd = -1;
    process->pid = 0;
    return true;
}

bool os_process_poll(os_process_t *process, os_exit_t *result)
{
    if (process->pid <= 0) return false;
    if (process->adopted) return poll_adopted(process, result);
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
        if (os_now() - process->looked_ns < NS_PER_S) return false;
        process->looked_ns = os_now();
        process->ooms[0] = process->ooms[1];
        process->ooms[1] = count_ooms();
        return false;
    }
    *result = (os_exit_t){.code = -1, .memory_limit = os_cgroup_memory_limit("", 0)};
    kill_session(process->pid);
    int status = 0;
    struct rusage usage = {0};
    while (wait4(process->pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status)) result->code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result->signal = WTERMSIG(status);
    result->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
    if (result->signal == SIGKILL) {
        os_oom_count_t now = count_ooms();
        result->out_of_memory = now.group > process->ooms[0].group || now.machine > process->ooms[0].machine;
    }
    if (process->pidfd >= 0) close(process->pidfd);
    process->pidfd = -1;
    process->pid = 0;
    return true;
}

bool os_process_kill_leftover(pid_t pid, uint64_t start_ticks)
{
    if (pid <= 1 || start_ticks == 0 || os_process_start_ticks(pid) != start_ticks) return false;
    proc_stat_t stat;
    if (read_stat(pid, &stat) && stat.session == pid) kill_session(pid);
    kill(pid, SIGKILL);
    return true;
}

const char *os_exit_text(const os_exit_t *result, char *text, size_t size)
{
    char limit[32], peak[32];
    units_format_size(result->peak_bytes, peak, sizeof peak);
    if (result->unknown)
        snprintf(text, size, "ended (nobody saw how: its agent had been restarted meanwhile)");
    else if (result->out_of_memory && result->memory_limit != UINT64_MAX)
        snprintf(text, size, "out of memory: ended by the kernel (limit %s, peak %s)",
                 units_format_size(result->memory_limit, limit, sizeof limit), peak);
    else if (result->out_of_memory)
        snprintf(text, size, "out of memory: ended by the kernel (the machine's memory ran out, peak %s)",
                 peak);
    else if (result->signal != 0)
        snprintf(text, size, "killed by signal %d (%s)", result->signal, strsignal(result->signal));
    else
        snprintf(text, size, "exit code %d", result->code);
    return text;
}
