/* Between the files of the registry: connection, schema, statements. */
#ifndef MANAGER_REGISTRY_INTERNAL_H
#define MANAGER_REGISTRY_INTERNAL_H

#include <limits.h>
#include <sqlite3.h>

#include "manager/registry/registry.h"

typedef enum registry_statement {
    REGISTRY_BEGIN,
    REGISTRY_COMMIT,
    REGISTRY_ROLLBACK,
    REGISTRY_INSERT_NODE,
    REGISTRY_UPDATE_NODE,
    REGISTRY_INSERT_JOB,
    REGISTRY_UPDATE_JOB,
    REGISTRY_PUT_RANK,
    REGISTRY_INSERT_VIEW,
    REGISTRY_INSERT_EVENT,
    REGISTRY_TRIM_EVENTS,
    REGISTRY_NODES,
    REGISTRY_JOBS,
    REGISTRY_JOB,
    REGISTRY_RANKS,
    REGISTRY_LAST_VIEW,
    REGISTRY_NEWEST_VIEW,
    REGISTRY_FIND_ARTIFACT,
    REGISTRY_PUT_ARTIFACT,
    REGISTRY_TRIM_CHECKPOINTS,
    REGISTRY_ARTIFACTS,
    REGISTRY_PUT_LEDGER,
    REGISTRY_LEDGER,
    REGISTRY_DROP_SPANS,
    REGISTRY_CUT_SPANS,
    REGISTRY_NEXT_SPAN,
    REGISTRY_EXTEND_SPAN,
    REGISTRY_INSERT_SPAN,
    REGISTRY_SPANS,
    REGISTRY_PUT_VERDICTS,
    REGISTRY_PUT_SPEED,
    REGISTRY_TRIM_SPEEDS,
    REGISTRY_SPEEDS,
    REGISTRY_SPEED,
    REGISTRY_PUT_META,
    REGISTRY_GET_META,
    REGISTRY_EVENTS,
    REGISTRY_STATEMENTS
} registry_statement_t;

struct registry {
    char path[PATH_MAX];
    int lock_fd;
    sqlite3 *db;
    sqlite3_stmt *statements[REGISTRY_STATEMENTS];
    char cluster_id[37];
    uint64_t incarnation, last_job;
    char notice[512];
};

extern const char *const registry_sql[REGISTRY_STATEMENTS];

/* One step forward each; user_version counts those done. A step is never changed once released. */
typedef struct registry_migration {
    const char *sql;
} registry_migration_t;
extern const registry_migration_t registry_migrations[];
extern const uint32_t registry_n_migrations;

/* Bring the schema forward, all steps in one transaction. VERSION: it is newer than ours. */
inspan_status_t registry_migrate(registry_t *registry, const registry_migration_t *migrations, uint32_t n,
                                 inspan_error_t *err);

/* The same cluster after the file was lost: <folder>/cluster, see recover.c. cluster_id "" where none is
 * known. */
typedef struct registry_identity {
    char cluster_id[37];
    uint64_t incarnation, last_job;
} registry_identity_t;
registry_identity_t registry_identity_read(const char *folder);
inspan_status_t registry_identity_write(const char *folder, const registry_t *registry, inspan_error_t *err);
/* Out of the way, under a name that tells when; text: what happened, for people. IO. */
inspan_status_t registry_move_aside(const char *path, ns_t wall, char *text, size_t size,
                                    inspan_error_t *err);

/* ---- Statements: rows.c */
sqlite3_stmt *registry_statement_of(registry_t *registry, registry_statement_t which);
inspan_status_t registry_begin(registry_t *registry, inspan_error_t *err);
/* Commit, or take everything back; the caller's steps decide which. */
inspan_status_t registry_end(registry_t *registry, bool good, inspan_error_t *err);
inspan_status_t registry_finish_reading(const registry_t *registry, sqlite3_stmt *rows, int result,
                                        inspan_error_t *err);

static inline bool registry_step(sqlite3_stmt *statement)
{
    bool done = sqlite3_step(statement) == SQLITE_DONE;
    if (done) sqlite3_reset(statement); /* after a failure the reset would hide the text of the error */
    return done;
}

/* Bindings cannot fail but for lack of memory, which the step then reports by a NOT NULL column. */
static inline void registry_bind_text(sqlite3_stmt *statement, int column, const char *text)
{
    sqlite3_bind_text(statement, column, text != NULL ? text : "", -1, SQLITE_STATIC);
}

static inline void registry_bind_blob(sqlite3_stmt *statement, int column, registry_blob_t blob)
{
    if (blob.data != NULL || blob.bytes == 0)
        sqlite3_bind_blob64(statement, column, blob.data != NULL ? blob.data : "", blob.bytes, SQLITE_STATIC);
}

static inline void registry_bind_u64(sqlite3_stmt *statement, int column, uint64_t number)
{
    sqlite3_bind_int64(statement, column, (sqlite3_int64)number);
}

static inline uint64_t registry_u64_of(sqlite3_stmt *row, int column)
{
    return (uint64_t)sqlite3_column_int64(row, column);
}

static inline const char *registry_text_of(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

static inline registry_blob_t registry_blob_of(sqlite3_stmt *row, int column)
{
    const void *data = sqlite3_column_blob(row, column);
    return (registry_blob_t){data, (size_t)sqlite3_column_bytes(row, column)};
}

/* Status and text of the connection's last error. */
inspan_status_t registry_fail(const registry_t *registry, const char *what, inspan_error_t *err);

#endif
