/* Opening, closing, identity. */
#include "manager/registry/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/registry/registry_internal.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define WAL_LIMIT_BYTES (64 << 20)
#define NOTICE_NS       (24 * 3600 * NS_PER_S)
#define JOBS_UNSEEN                                                                                          \
    1000 /* at most so many jobs came after <folder>/cluster was written: numbers that are not given again   \
          */

inspan_status_t registry_fail(const registry_t *registry, const char *what, inspan_error_t *err)
{
    int code = sqlite3_extended_errcode(registry->db) & 0xff;
    const char *text = sqlite3_errmsg(registry->db);
    switch (code) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return error_set(
            err, INSPAN_CORRUPT,
            "%s: %s is damaged (%s): restore a copy, or move it away to begin with an empty registry", what,
            registry->path, text);
    case SQLITE_FULL: return error_set(err, INSPAN_IO, "%s: %s: disk full", what, registry->path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return error_set(err, INSPAN_IO, "%s: %s is locked by another program for too long", what,
                         registry->path);
    case SQLITE_NOMEM: return error_set(err, INSPAN_NO_MEMORY, "%s: out of memory", what);
    default: return error_set(err, INSPAN_IO, "%s: %s: %s", what, registry->path, text);
    }
}

/* Held as long as the process lives, whatever ends it. */
static inspan_status_t take_lock(registry_t *registry, const char *folder, inspan_error_t *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/lock", folder);
    registry->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (registry->lock_fd < 0) return error_set_errno(err, INSPAN_IO, "cannot open %s", path);
    char pid[32] = "";
    if (flock(registry->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return error_set_errno(err, INSPAN_IO, "cannot lock %s", path);
        ssize_t got = pread(registry->lock_fd, pid, sizeof pid - 1, 0);
        pid[got > 0 ? got : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        return error_set(
            err, INSPAN_EXISTS,
            "another manager (process %s) uses the folder %s: stop it first, or give another --dir",
            pid[0] != '\0' ? pid : "?", folder);
    }
    int length = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(registry->lock_fd, 0) != 0 || pwrite(registry->lock_fd, pid, (size_t)length, 0) != length)
        return error_set_errno(err, INSPAN_IO, "cannot write %s", path);
    return INSPAN_OK;
}

static inspan_status_t quick_check(registry_t *registry, inspan_error_t *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(registry->db, "PRAGMA quick_check(1)", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        sqlite3_finalize(statement);
        return registry_fail(registry, "cannot check the registry", err);
    }
    char answer[200];
    const char *text = (const char *)sqlite3_column_text(statement, 0);
    snprintf(answer, sizeof answer, "%s", text != NULL ? text : "no answer");
    for (char *c = answer; (c = strchr(c, '\n')) != NULL;) *c = ' ';
    inspan_status_t status = INSPAN_OK;
    if (strcmp(answer, "ok") != 0)
        status = error_set(
            err, INSPAN_CORRUPT,
            "%s is damaged (%.200s): restore a copy, or move it away to begin with an empty registry",
            registry->path, answer);
    sqlite3_finalize(statement);
    return status;
}

static inspan_status_t configure(registry_t *registry, ns_t busy_timeout, inspan_error_t *err)
{
    sqlite3_extended_result_codes(registry->db, 1);
    sqlite3_busy_timeout(registry->db, (int)((busy_timeout > 0 ? busy_timeout : 5 * NS_PER_S) / NS_PER_MS));
    char pragmas[320];
    sqlite3_snprintf(
        sizeof pragmas, pragmas,
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
        "PRAGMA wal_autocheckpoint=1000; PRAGMA journal_size_limit=%d; PRAGMA trusted_schema=OFF;",
        WAL_LIMIT_BYTES);
    if (sqlite3_exec(registry->db, pragmas, NULL, NULL, NULL) != SQLITE_OK)
        return registry_fail(registry, "cannot open the registry", err);
    return INSPAN_OK;
}

static int take_identity(void *context, int columns, char **values, char **names)
{
    registry_t *registry = context;
    (void)names;
    if (columns != 3 || values[0] == NULL || values[1] == NULL) return 1;
    snprintf(registry->cluster_id, sizeof registry->cluster_id, "%s", values[0]);
    registry->incarnation = strtoull(values[1], NULL, 10);
    registry->last_job = values[2] != NULL ? strtoull(values[2], NULL, 10) : 0;
    return 0;
}

/* The cluster's id once, the incarnation raised at every start: one transaction, before anybody is answered.
 * Nothing goes back behind what <folder>/cluster knows, should the file be new, or an old copy. */
static inspan_status_t identify(registry_t *registry, const char *folder, inspan_error_t *err)
{
    registry_identity_t before = registry_identity_read(folder);
    char id[OS_UUID_TEXT];
    if (os_uuid(id) != INSPAN_OK) return error_set(err, INSPAN_INTERNAL, "the kernel gives no random bytes");
    char *sql = sqlite3_mprintf("BEGIN IMMEDIATE;"
                                "INSERT OR IGNORE INTO meta VALUES('cluster_id', %Q), ('incarnation', 0);"
                                "INSERT INTO sqlite_sequence(name, seq) SELECT 'jobs', 0 WHERE NOT EXISTS "
                                " (SELECT 1 FROM sqlite_sequence WHERE name='jobs');"
                                "UPDATE sqlite_sequence SET seq = max(seq, %lld) WHERE name='jobs' AND "
                                " (SELECT value FROM meta WHERE key='incarnation') < %lld;"
                                "UPDATE meta SET value = max(value, %lld) + 1 WHERE key='incarnation';"
                                "SELECT (SELECT value FROM meta WHERE key='cluster_id'),"
                                "       (SELECT value FROM meta WHERE key='incarnation'),"
                                "       (SELECT seq FROM sqlite_sequence WHERE name='jobs');"
                                "COMMIT",
                                before.cluster_id[0] != '\0' ? before.cluster_id : id,
                                (long long)before.last_job + JOBS_UNSEEN, (long long)before.incarnation,
                                (long long)before.incarnation);
    if (sql == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    int result = sqlite3_exec(registry->db, sql, take_identity, registry, NULL);
    sqlite3_free(sql);
    if (result == SQLITE_OK) return registry_identity_write(folder, registry, err);
    inspan_status_t status = registry_fail(registry, "cannot write the registry", err);
    sqlite3_exec(registry->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static inspan_status_t prepare(registry_t *registry, inspan_error_t *err)
{
    for (int i = 0; i < REGISTRY_STATEMENTS; i++)
        if (sqlite3_prepare_v3(registry->db, registry_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &registry->statements[i], NULL) != SQLITE_OK)
            return registry_fail(registry, registry_sql[i], err);
    return INSPAN_OK;
}

static inspan_status_t open_file(registry_t *registry, const char *folder, ns_t busy_timeout,
                                 inspan_error_t *err)
{
    mode_t old = umask(0077); /* the log files beside it too are for the owner only */
    int result = sqlite3_open_v2(registry->path, &registry->db,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
    umask(old);
    if (result != SQLITE_OK) return registry_fail(registry, "cannot open the registry", err);
    inspan_status_t status = configure(registry, busy_timeout, err);
    if (status == INSPAN_OK) status = quick_check(registry, err);
    if (status == INSPAN_OK)
        status = registry_migrate(registry, registry_migrations, registry_n_migrations, err);
    if (status == INSPAN_OK) status = identify(registry, folder, err);
    if (status == INSPAN_OK) status = prepare(registry, err);
    return status;
}

static void close_file(registry_t *registry)
{
    for (int i = 0; i < REGISTRY_STATEMENTS; i++) {
        sqlite3_finalize(registry->statements[i]);
        registry->statements[i] = NULL;
    }
    if (sqlite3_close(registry->db) != SQLITE_OK) log_error("registry: closed with statements still open");
    registry->db = NULL;
}

static inspan_status_t put_meta(registry_t *registry, const char *key, const char *text, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_META);
    registry_bind_text(put, 1, key);
    registry_bind_text(put, 2, text);
    return registry_end(registry, registry_step(put), err);
}

static void get_meta(registry_t *registry, const char *key, char *text, size_t size)
{
    sqlite3_stmt *get = registry_statement_of(registry, REGISTRY_GET_META);
    registry_bind_text(get, 1, key);
    text[0] = '\0';
    if (sqlite3_step(get) == SQLITE_ROW && sqlite3_column_text(get, 0) != NULL)
        snprintf(text, size, "%s", (const char *)sqlite3_column_text(get, 0));
    sqlite3_reset(get);
}

static inspan_status_t begin_anew(registry_t *registry, const char *folder, ns_t busy_timeout,
                                  inspan_error_t *err)
{
    char notice[sizeof registry->notice], wall[32];
    log_error("%s", err != NULL ? err->text : "the registry is damaged");
    close_file(registry);
    inspan_status_t status = registry_move_aside(registry->path, os_wall_now(), notice, sizeof notice, err);
    if (status == INSPAN_OK) status = open_file(registry, folder, busy_timeout, err);
    if (status != INSPAN_OK) return status;
    log_error("%s", notice);
    snprintf(wall, sizeof wall, "%lld", (long long)os_wall_now());
    status = put_meta(registry, "notice", notice, err);
    if (status == INSPAN_OK) status = put_meta(registry, "notice_wall", wall, err);
    if (status == INSPAN_OK) status = registry_put_event(registry, os_wall_now(), 0, 0, notice, err);
    return status;
}

static inspan_status_t open_all(registry_t *registry, const char *folder, ns_t busy_timeout,
                                inspan_error_t *err)
{
    inspan_status_t status = take_lock(registry, folder, err);
    if (status != INSPAN_OK) return status;
    status = open_file(registry, folder, busy_timeout, err);
    if (status == INSPAN_CORRUPT) status = begin_anew(registry, folder, busy_timeout, err);
    if (status != INSPAN_OK) return status;
    char wall[32];
    get_meta(registry, "notice_wall", wall, sizeof wall);
    if (wall[0] != '\0' && os_wall_now() - strtoll(wall, NULL, 10) < NOTICE_NS)
        get_meta(registry, "notice", registry->notice, sizeof registry->notice);
    return INSPAN_OK;
}

inspan_status_t registry_open(const char *folder, ns_t busy_timeout, registry_t **out, inspan_error_t *err)
{
    if (strlen(folder) > 4000) return error_set(err, INSPAN_INVALID, "path too long: %.100s...", folder);
    registry_t *registry = calloc(1, sizeof *registry);
    if (registry == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    snprintf(registry->path, sizeof registry->path, "%.4000s/registry.db", folder);
    registry->lock_fd = -1;
    inspan_status_t status = os_mkdir_all(folder, 0700, err);
    if (status == INSPAN_OK) status = open_all(registry, folder, busy_timeout, err);
    if (status != INSPAN_OK) {
        registry_close(registry);
        return status;
    }
    *out = registry;
    return INSPAN_OK;
}

void registry_close(registry_t *registry)
{
    if (registry == NULL) return;
    close_file(registry);
    if (registry->lock_fd >= 0) close(registry->lock_fd);
    free(registry);
}

const char *registry_cluster_id(const registry_t *registry)
{
    return registry->cluster_id;
}

uint64_t registry_incarnation(const registry_t *registry)
{
    return registry->incarnation;
}

const char *registry_notice(const registry_t *registry)
{
    return registry->notice;
}

uint64_t registry_wal_bytes(const registry_t *registry)
{
    char path[PATH_MAX];
    struct stat info;
    snprintf(path, sizeof path, "%.4080s-wal", registry->path);
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}
