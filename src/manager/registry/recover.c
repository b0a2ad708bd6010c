/* A damaged file is moved aside and the cluster goes on as itself; copies while it is in use. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "manager/registry/registry_internal.h"
#include "platform/os/os_file.h"

#define IDENTITY_CAP 1000

/* <folder>/cluster:  "cluster UUID\nincarnation N\nlast_job N\n" */
registry_identity_t registry_identity_read(const char *folder)
{
    registry_identity_t identity = {.cluster_id = ""};
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%.4000s/cluster", folder);
    if (os_file_read(path, IDENTITY_CAP, &text, &bytes, NULL) != INSPAN_OK) return identity;
    int n = sscanf(text, "cluster %36[0-9a-f-]\nincarnation %" SCNu64 "\nlast_job %" SCNu64,
                   identity.cluster_id, &identity.incarnation, &identity.last_job);
    if (n != 3 || strlen(identity.cluster_id) != 36 || identity.incarnation >= INT64_MAX / 2 ||
        identity.last_job >= INT64_MAX / 2)
        identity = (registry_identity_t){.cluster_id = ""};
    free(text);
    return identity;
}

inspan_status_t registry_identity_write(const char *folder, const registry_t *registry, inspan_error_t *err)
{
    char path[PATH_MAX], text[256];
    snprintf(path, sizeof path, "%.4000s/cluster", folder);
    int length = snprintf(text, sizeof text, "cluster %s\nincarnation %" PRIu64 "\nlast_job %" PRIu64 "\n",
                          registry->cluster_id, registry->incarnation, registry->last_job);
    return os_file_write(path, text, (size_t)length, 0600, err);
}

/* Also what SQLite keeps beside it, under the names by which it is found again. */
inspan_status_t registry_move_aside(const char *path, ns_t wall, char *text, size_t size, inspan_error_t *err)
{
    static const char *const parts[] = {"-wal", "-shm",
                                        ""}; /* the file itself last: a crash repeats it all */
    char to[PATH_MAX];
    long long seconds = wall / NS_PER_S;
    do snprintf(to, sizeof to, "%.4000s.damaged-%lld", path, seconds++);
    while (access(to, F_OK) == 0);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char from[PATH_MAX], part[PATH_MAX];
        snprintf(from, sizeof from, "%.4080s%s", path, parts[i]);
        snprintf(part, sizeof part, "%.4080s%s", to, parts[i]);
        if (rename(from, part) != 0 && errno != ENOENT)
            return error_set_errno(err, INSPAN_IO, "cannot move the damaged %s aside", from);
    }
    snprintf(text, size,
             "the registry was damaged: it was moved to %.200s and an empty one was made; nodes come back by "
             "themselves, jobs that were running are stopped, older jobs are not known any more",
             to);
    return INSPAN_OK;
}

inspan_status_t registry_backup(registry_t *registry, const char *path, inspan_error_t *err)
{
    if (access(path, F_OK) == 0) return error_set(err, INSPAN_EXISTS, "%s is there already", path);
    sqlite3 *copy = NULL;
    int result = sqlite3_open_v2(path, &copy,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
    sqlite3_backup *backup =
        result == SQLITE_OK ? sqlite3_backup_init(copy, "main", registry->db, "main") : NULL;
    if (backup != NULL) {
        result = sqlite3_backup_step(backup, -1);
        int finished = sqlite3_backup_finish(backup);
        if (result == SQLITE_DONE) result = finished;
    } else if (result == SQLITE_OK) {
        result = sqlite3_errcode(copy);
    }
    /* one file without a log beside it */
    if (result == SQLITE_OK) result = sqlite3_exec(copy, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL);
    inspan_status_t status = INSPAN_OK;
    if (result != SQLITE_OK)
        status =
            error_set(err, INSPAN_IO, "cannot copy the registry to %s: %s", path, sqlite3_errstr(result));
    sqlite3_close(copy);
    if (status != INSPAN_OK) unlink(path);
    return status;
}
