#include "cli/chaos.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/processes.h"

static const char *const kind_texts[CHAOS_KINDS] = {"worker", "agent", "manager", "freeze", "link"};

const char *chaos_kind_text(chaos_kind_t kind)
{
    return kind_texts[kind];
}

inspan_status_t chaos_parse_kinds(const char *text, uint32_t *kinds, inspan_error_t *err)
{
    *kinds = (1u << CHAOS_KINDS) - 1;
    if (text == NULL) return INSPAN_OK;
    *kinds = 0;
    while (*text != '\0') {
        const size_t n = strcspn(text, ",");
        uint32_t kind = 0;
        while (kind < CHAOS_KINDS &&
               (strlen(kind_texts[kind]) != n || memcmp(kind_texts[kind], text, n) != 0))
            kind++;
        if (kind == CHAOS_KINDS)
            return error_set(err, INSPAN_INVALID,
                             "--kinds: \"%.*s\" is none of worker, agent, manager, freeze, link", (int)n,
                             text);
        *kinds |= 1u << kind;
        text += n + (text[n] == ',');
    }
    return *kinds != 0 ? INSPAN_OK : error_set(err, INSPAN_INVALID, "--kinds names no kind of fault");
}

/* ---- Processes ------------------------------------------------------------------------------- */

/* Is `path` inside `folder`? */
static bool is_inside(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    return n > 0 && strncmp(path, folder, n) == 0 && path[n] == '/';
}

typedef struct search {
    const char *command, *inside;
    pid_t found;
} search_t;

static bool is_it(void *context, pid_t pid, const process_line_t *line)
{
    search_t *search = context;
    char root[4096];
    const char *folder = process_option(line, "folder");
    snprintf(root, sizeof root, "%s", folder != NULL ? folder : "");
    if (strcmp(search->command, "manager") == 0) { /* ROOT/manager and ROOT/agents/K */
        char *slash = strrchr(root, '/');
        if (slash != NULL) *slash = '\0';
    }
    if (is_inside(search->inside, root)) search->found = pid;
    return search->found == 0;
}

/* The agent whose folder holds the worker's; or the manager whose state folder holds the agent's. */
static pid_t find_process(const char *command, const char *inside)
{
    search_t search = {.command = command, .inside = inside};
    process_each(command, is_it, &search);
    return search.found;
}

/* The worker's folder if pid is a worker of ours; the caller frees. */
static char *worker_folder(pid_t pid)
{
    process_line_t line;
    char *folder = NULL;
    if (pid <= 0) return NULL;
    const char *word = process_line_read(pid, &line) ? process_command(&line) : NULL;
    if (word != NULL && strcmp(word, "worker") == 0 && line.n > 2) folder = strdup(line.words[line.n - 1]);
    process_line_free(&line);
    return folder;
}

static bool is_active(const Inspan__V1__Rank *rank)
{
    return strcmp(rank->state, "running") == 0 || strcmp(rank->state, "ready") == 0;
}

static inspan_status_t aim(chaos_kind_t kind, const char *folder, chaos_fault_t *fault, inspan_error_t *err)
{
    if (kind == CHAOS_LINK) return lab_link_of(fault->pid, fault->device, err);
    if (kind == CHAOS_WORKER || kind == CHAOS_FREEZE) return INSPAN_OK;
    const pid_t pid = find_process(chaos_kind_text(kind), folder);
    if (pid == 0)
        return error_set(err, INSPAN_NOT_FOUND, "the %s of node %s does not run on this machine",
                         chaos_kind_text(kind), fault->node);
    fault->pid = pid;
    if (kind == CHAOS_MANAGER) fault->rank = -1;
    return INSPAN_OK;
}

inspan_status_t chaos_pick(chaos_kind_t kind, const Inspan__V1__JobInfo *job, rng_t *rng,
                           chaos_fault_t *fault, inspan_error_t *err)
{
    if (job->n_ranks == 0) return error_set(err, INSPAN_NOT_FOUND, "the job has no worker now");
    const size_t start = rng_below(rng, job->n_ranks);
    for (size_t i = 0; i < job->n_ranks; i++) {
        const Inspan__V1__Rank *rank = job->ranks[(start + i) % job->n_ranks];
        char *folder = is_active(rank) ? worker_folder((pid_t)rank->pid) : NULL;
        if (folder == NULL) continue;
        *fault = (chaos_fault_t){.kind = kind, .rank = (int32_t)rank->rank, .pid = (pid_t)rank->pid};
        snprintf(fault->node, sizeof fault->node, "%s", rank->node);
        inspan_status_t status = aim(kind, folder, fault, err);
        free(folder);
        return status;
    }
    return error_set(err, INSPAN_NOT_FOUND, "no running worker of job %llu lives on this machine",
                     (unsigned long long)job->id);
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static inspan_status_t send_signal(pid_t pid, int signal_number, inspan_error_t *err)
{
    if (kill(pid, signal_number) == 0 || errno == ESRCH) return INSPAN_OK;
    return error_set_errno(err, INSPAN_IO, "cannot signal process %ld", (long)pid);
}

inspan_status_t chaos_do(const chaos_fault_t *fault, inspan_error_t *err)
{
    if (fault->kind == CHAOS_LINK) return lab_link_set(fault->device, false, err);
    return send_signal(fault->pid, fault->kind == CHAOS_FREEZE ? SIGSTOP : SIGKILL, err);
}

inspan_status_t chaos_undo(const chaos_fault_t *fault, inspan_error_t *err)
{
    if (fault->kind == CHAOS_LINK) return lab_link_set(fault->device, true, err);
    char *folder = fault->kind == CHAOS_FREEZE ? worker_folder(fault->pid) : NULL;
    inspan_status_t status = folder != NULL ? send_signal(fault->pid, SIGCONT, err) : INSPAN_OK;
    free(folder);
    return status;
}
