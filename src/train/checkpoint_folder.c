/* The folder of checkpoints: names, the newest complete one, atomic replacement, what is removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "train/checkpoint_internal.h"

#define PREFIX   "step-"
#define STAGED   ".tmp-" /* then the process that writes */
#define LIST_MAX 100000  /* entries looked at: a folder that holds more is not ours */

/* ---- Names ----------------------------------------------------------------------------------- */

void checkpoint_name(uint64_t step, char name[32])
{
    snprintf(name, 32, PREFIX "%08" PRIu64, step);
}

static bool parse_name(const char *name, uint64_t *step)
{
    char again[32];
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) return false;
    errno = 0;
    *step = strtoull(name + strlen(PREFIX), NULL, 10);
    if (errno != 0) return false;
    checkpoint_name(*step, again);
    return strcmp(name, again) == 0;
}

/* The process that put a temporary folder of this name there; 0: not a temporary one. */
static pid_t staged_by(const char *name)
{
    const char *mark = strstr(name, STAGED);
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || mark == NULL) return 0;
    const char *digits = mark + strlen(STAGED);
    char *end = NULL;
    long pid = strtol(digits, &end, 10);
    return end != digits && *end == '\0' && pid > 0 ? (pid_t)pid : 0;
}

/* DIR/step-N + suffix */
static inspan_status_t step_path(const char *folder, uint64_t step, const char *suffix,
                                 char path[CHECKPOINT_PATH_MAX], inspan_error_t *err)
{
    char name[32], whole[80];
    checkpoint_name(step, name);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    return checkpoint_path(folder, whole, path, err);
}

static inspan_status_t staged_path(const char *folder, uint64_t step, const char *what,
                                   char path[CHECKPOINT_PATH_MAX], inspan_error_t *err)
{
    char suffix[48];
    snprintf(suffix, sizeof suffix, "%s" STAGED "%ld", what, (long)getpid());
    return step_path(folder, step, suffix, path, err);
}

/* ---- What is there --------------------------------------------------------------------------- */

typedef struct steps {
    uint64_t *step; /* falling */
    size_t n;
} steps_t;

static int falling(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

static inspan_status_t list_steps(const char *folder, steps_t *steps, inspan_error_t *err)
{
    size_t room = 0;
    *steps = (steps_t){0};
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return error_set_errno(err, errno == ENOENT || errno == ENOTDIR ? INSPAN_NOT_FOUND : INSPAN_IO,
                               "cannot read the folder %s", folder);
    for (const struct dirent *entry; steps->n < LIST_MAX && (entry = readdir(dir)) != NULL;) {
        uint64_t step = 0;
        if (!parse_name(entry->d_name, &step)) continue;
        if (steps->n == room) {
            room = room * 2 + 16;
            uint64_t *grown = realloc(steps->step, room * sizeof *grown);
            if (grown == NULL) {
                closedir(dir);
                free(steps->step);
                *steps = (steps_t){0};
                return error_set(err, INSPAN_NO_MEMORY, "no memory to list %s", folder);
            }
            steps->step = grown;
        }
        steps->step[steps->n++] = step;
    }
    closedir(dir);
    if (steps->n > 0) qsort(steps->step, steps->n, sizeof *steps->step, falling);
    return INSPAN_OK;
}

void checkpoint_sweep(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    unsigned looked = 0;
    for (const struct dirent *entry; looked < LIST_MAX && (entry = readdir(dir)) != NULL; looked++) {
        char path[CHECKPOINT_PATH_MAX];
        inspan_error_t err;
        pid_t pid = staged_by(entry->d_name);
        if (pid == 0 || (pid != getpid() && !(kill(pid, 0) != 0 && errno == ESRCH))) continue;
        if (checkpoint_path(folder, entry->d_name, path, &err) != INSPAN_OK ||
            os_remove_all(path, &err) != INSPAN_OK)
            log_warn("%s", err.text);
    }
    closedir(dir);
}

/* ---- The newest ------------------------------------------------------------------------------ */

static inspan_status_t verify_step(const char *path, uint64_t step, inspan_error_t *err)
{
    uint64_t found = 0;
    inspan_status_t status = checkpoint_verify(path, &found, err);
    if (status == INSPAN_OK && found != step)
        status =
            error_set(err, INSPAN_CORRUPT,
                      "%s/" CHECKPOINT_MANIFEST " is of step %" PRIu64 ", the folder's name says %" PRIu64,
                      path, found, step);
    return status;
}

static void pass_by(checkpoint_warn_fn warn, void *context, uint64_t step, const inspan_error_t *cause)
{
    char text[INSPAN_ERROR_TEXT + 80];
    snprintf(text, sizeof text, "the checkpoint of step %" PRIu64 " is damaged and passed by: %s", step,
             cause->text);
    if (warn != NULL) warn(context, text);
}

inspan_status_t checkpoint_find_newest(const char *folder, checkpoint_warn_fn warn, void *context,
                                       checkpoint_found_t *found, inspan_error_t *err)
{
    steps_t steps;
    inspan_error_t cause;
    if (err == NULL) err = &cause;
    inspan_status_t status = list_steps(folder, &steps, err);
    if (status == INSPAN_NOT_FOUND)
        return error_set(err, status, "there is no checkpoint in %s: there is no such folder", folder);
    if (status != INSPAN_OK) return status;
    for (size_t i = 0; i < steps.n; i++) {
        found->step = steps.step[i];
        status = step_path(folder, found->step, "", found->path, err);
        if (status == INSPAN_OK) status = verify_step(found->path, found->step, &cause);
        if (status == INSPAN_OK || status == INSPAN_NO_MEMORY || status == INSPAN_INVALID) {
            if (status == INSPAN_NO_MEMORY) *err = cause;
            free(steps.step);
            return status;
        }
        pass_by(warn, context, found->step, &cause);
    }
    free(steps.step);
    if (steps.n == 0)
        return error_set(err, INSPAN_NOT_FOUND, "there is no checkpoint (step-*) in %s", folder);
    return error_set(err, INSPAN_NOT_FOUND, "there is no complete checkpoint in %s: %zu %s damaged", folder,
                     steps.n, steps.n == 1 ? "is" : "are");
}

bool checkpoint_highest(const char *folder, uint64_t *step)
{
    steps_t steps;
    if (list_steps(folder, &steps, NULL) != INSPAN_OK) return false;
    const bool any = steps.n > 0;
    if (any) *step = steps.step[0];
    free(steps.step);
    return any;
}

/* ---- Putting one in place -------------------------------------------------------------------- */

inspan_status_t checkpoint_stage(const char *folder, uint64_t step, char path[CHECKPOINT_PATH_MAX],
                                 inspan_error_t *err)
{
    inspan_status_t status = staged_path(folder, step, "", path, err);
    if (status == INSPAN_OK) status = os_mkdir_all(folder, 0755, err);
    if (status == INSPAN_OK) status = os_remove_all(path, err);
    return status == INSPAN_OK ? os_mkdir_all(path, 0755, err) : status;
}

/* Never a moment without one of the two under the final name, where the file system can exchange names. */
static inspan_status_t replace(const char *folder, const char *staged, uint64_t step, const char *final,
                               inspan_error_t *err)
{
    char old[CHECKPOINT_PATH_MAX];
    if (renameat2(AT_FDCWD, staged, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        os_remove_all(staged, NULL); /* else swept later */
        return INSPAN_OK;
    }
    inspan_status_t status = staged_path(folder, step, ".old", old, err);
    if (status == INSPAN_OK) status = os_remove_all(old, err);
    if (status == INSPAN_OK && rename(final, old) != 0)
        status = error_set_errno(err, INSPAN_IO, "cannot replace %s", final);
    if (status != INSPAN_OK) return status;
    if (rename(staged, final) != 0) {
        error_set_errno(err, INSPAN_IO, "cannot replace %s", final);
        rename(old, final);
        return INSPAN_IO;
    }
    os_remove_all(old, NULL);
    return INSPAN_OK;
}

/* First to another name, for a removal cut short must not leave half a checkpoint under a good one. */
static void remove_step(const char *folder, uint64_t step)
{
    char path[CHECKPOINT_PATH_MAX], away[CHECKPOINT_PATH_MAX] = "";
    inspan_error_t err;
    inspan_status_t status = step_path(folder, step, "", path, &err);
    if (status == INSPAN_OK) status = staged_path(folder, step, ".old", away, &err);
    if (status == INSPAN_OK) status = os_remove_all(away, &err);
    if (status == INSPAN_OK && rename(path, away) != 0)
        status = error_set_errno(&err, INSPAN_IO, "cannot remove the old checkpoint %s", path);
    if (status == INSPAN_OK) status = os_remove_all(away, &err);
    if (status != INSPAN_OK) log_warn("%s", err.text);
}

/* Newer ones are of a history that this one does not continue: neither counted nor touched. */
static void remove_oldest(const char *folder, uint64_t newest, uint32_t keep)
{
    steps_t steps;
    uint32_t kept = 0;
    if (list_steps(folder, &steps, NULL) != INSPAN_OK) return;
    for (size_t i = 0; i < steps.n; i++) {
        char manifest[CHECKPOINT_PATH_MAX];
        if (steps.step[i] > newest ||
            step_path(folder, steps.step[i], "/" CHECKPOINT_MANIFEST, manifest, NULL) != INSPAN_OK ||
            access(manifest, F_OK) != 0)
            continue;
        if (++kept > keep) remove_step(folder, steps.step[i]);
    }
    free(steps.step);
}

inspan_status_t checkpoint_publish(const char *folder, const char *staged, uint64_t step, uint32_t keep,
                                   inspan_error_t *err)
{
    char final[CHECKPOINT_PATH_MAX];
    inspan_status_t status = step_path(folder, step, "", final, err);
    if (status == INSPAN_OK) status = os_folder_sync(staged, err);
    if (status != INSPAN_OK) return status;
    if (rename(staged, final) != 0) {
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
            return error_set_errno(err, INSPAN_IO, "cannot rename %s to %s", staged, final);
        status = replace(folder, staged, step, final, err);
    }
    if (status == INSPAN_OK) status = os_folder_sync(folder, err);
    if (status == INSPAN_OK) remove_oldest(folder, step, keep);
    return status;
}

inspan_status_t checkpoint_install(const char *folder, const char *staged, uint64_t step, uint32_t keep,
                                   inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    inspan_status_t status = verify_step(staged, step, err);
    if (status == INSPAN_OK) status = checkpoint_publish(folder, staged, step, keep, err);
    if (status != INSPAN_OK) os_remove_all(staged, NULL);
    return status;
}
