/*
 * Child processes: started by posix_spawn (never a bare fork: gRPC's threads would be copied half-way), each
 * the leader of its own session so that it and all its children are one killable unit, with no descriptor but
 * 0, 1, 2.
 *
 * The leader stays a zombie until os_process_poll has ended the rest of its session: only while its pid is
 * held is a signal to "the session PID" sure to hit no stranger.
 *
 * No parent-death signal is used: it fires when the *thread* that started the child ends, and it is lost at
 * exec of a set-user-id program. A worker notices its agent's end by its socket, a restarted agent finds
 * leftovers by pid and start time.
 */
#ifndef OS_SPAWN_H
#define OS_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <inspan/status.h>

typedef struct os_spawn_options {
    const char *program;          /* path */
    const char *const *arguments; /* argv, from argv[0], ended by NULL */
    const char *const
        *environment;   /* "NAME=value", ended by NULL: replaces or adds to the inherited; NULL: none */
    const char *folder; /* working folder; NULL: inherited */
    int output;         /* becomes 1 and 2; -1: these are inherited */
} os_spawn_options_t;

typedef struct os_oom_count {
    uint64_t group,
        machine; /* OOM kills so far: of the own control group (a child inherits it), of the machine */
} os_oom_count_t;

typedef struct os_process {
    pid_t pid;            /* also its session and process group; 0: none, or reaped */
    int pidfd;            /* readable when it has ended; -1: the kernel has none (before 5.3), poll by time */
    uint64_t start_ticks; /* field 22 of /proc/PID/stat: with the pid, unique since boot */
    os_oom_count_t
        ooms[2]; /* counts one look and two looks ago: only a kill of the last seconds can be its end */
    int64_t looked_ns;
    bool adopted; /* not our child: how it ends stays unknown */
} os_process_t;

/* stdin is /dev/null, signals are reset. NOT_FOUND (no such program), IO, NO_MEMORY. */
inspan_status_t os_spawn(const os_spawn_options_t *options, os_process_t *process, inspan_error_t *err);

/* A process of an earlier life that runs still: true, and os_process_poll and os_process_signal work for it;
 * the caller closes pidfd where it gives it up before it ended. */
bool os_process_adopt(pid_t pid, uint64_t start_ticks, os_process_t *process);

typedef struct os_exit {
    bool unknown;          /* it was adopted: all that is known is that it ended */
    int code;              /* exit code, or -1 */
    int signal;            /* that ended it, or 0 */
    bool out_of_memory;    /* it was the OOM killer's SIGKILL */
    uint64_t memory_limit; /* of its group; UINT64_MAX: none */
    uint64_t peak_bytes;   /* largest resident size */
} os_exit_t;

/* true: the leader has ended: what was left of its session is killed, it is reaped, pidfd is closed. Never
 * blocks; to be called now and then while the process runs (OOM counts). */
bool os_process_poll(os_process_t *process, os_exit_t *result);

/* Signal every process of the session (not only of the leader's group). Does nothing when pid is 0. */
void os_process_signal(const os_process_t *process, int signal);

/* start_ticks of a process; 0: no such process, or a zombie. */
uint64_t os_process_start_ticks(pid_t pid);

/* Kill -9 the session of a process of an earlier life, if pid still is the process that started then. true:
 * it was. */
bool os_process_kill_leftover(pid_t pid, uint64_t start_ticks);

/* "killed by signal 9 (Killed)", "exit code 3", "out of memory: the kernel ended it (limit ..., peak ...)".
 */
const char *os_exit_text(const os_exit_t *result, char *text, size_t size);

#endif
