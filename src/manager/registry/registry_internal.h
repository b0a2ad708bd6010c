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
    REGISTRY_EVENTS,
    REGISTRY_STATEMENTS
} registry_statement_t;

struct registry {
    char path[PATH_MAX];
    int lock_fd;
    sqlite3 *db;
    sqlite3_stmt *statements[REGISTRY_STATEMENTS];
    char cluster_id[37];
    uint64_t incarnation;
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

/* Status and text of the connection's last error. */
inspan_status_t registry_fail(const registry_t *registry, const char *what, inspan_error_t *err);

#endif
