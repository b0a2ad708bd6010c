/* The schema, its migrations and every statement, in one place. */
#include "base/error.h"
#include "manager/registry/registry_internal.h"

static const char schema_1[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE nodes("
    " handle INTEGER PRIMARY KEY AUTOINCREMENT,"
    " node_id TEXT NOT NULL UNIQUE,"
    " name TEXT NOT NULL UNIQUE,"
    " address TEXT NOT NULL,"
    " state TEXT NOT NULL,"
    " incarnation INTEGER NOT NULL,"
    " registered_wall INTEGER NOT NULL,"
    " seen_wall INTEGER NOT NULL,"
    " registration BLOB NOT NULL);"
    "CREATE TABLE jobs("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " name TEXT NOT NULL,"
    " state TEXT NOT NULL,"
    " outcome TEXT NOT NULL,"
    " reason TEXT NOT NULL,"
    " submitted_wall INTEGER NOT NULL,"
    " started_wall INTEGER NOT NULL,"
    " ended_wall INTEGER NOT NULL,"
    " request BLOB NOT NULL,"
    " failure BLOB);"
    "CREATE TABLE ranks("
    " job INTEGER NOT NULL REFERENCES jobs(id),"
    " rank INTEGER NOT NULL,"
    " node INTEGER NOT NULL REFERENCES nodes(handle),"
    " node_name TEXT NOT NULL,"
    " node_id TEXT NOT NULL,"
    " address TEXT NOT NULL,"
    " state TEXT NOT NULL,"
    " port INTEGER NOT NULL,"
    " pid INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL,"
    " report BLOB,"
    " PRIMARY KEY(job, rank)) WITHOUT ROWID;"
    "CREATE TABLE views("
    " job INTEGER NOT NULL REFERENCES jobs(id),"
    " view INTEGER NOT NULL,"
    " key BLOB NOT NULL,"
    " members BLOB NOT NULL,"
    " PRIMARY KEY(job, view)) WITHOUT ROWID;"
    "CREATE TABLE events("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " wall INTEGER NOT NULL,"
    " job INTEGER,"
    " node INTEGER,"
    " text TEXT NOT NULL);"
    "CREATE INDEX events_of_job ON events(job, id);"
    "CREATE INDEX jobs_by_state ON jobs(state) WHERE state NOT IN ('done', 'failed', 'cancelled');";

/* Elastic jobs: members, checkpoints, the ledger; nodes that are not used for a while. */
static const char schema_2[] = "ALTER TABLE nodes ADD COLUMN drained INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE nodes ADD COLUMN quarantined INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE nodes ADD COLUMN cool_until_wall INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE nodes ADD COLUMN losses_in_a_row INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE nodes ADD COLUMN losses BLOB NOT NULL DEFAULT x'';"
                               "ALTER TABLE jobs ADD COLUMN elastic INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE jobs ADD COLUMN workers_lost INTEGER NOT NULL DEFAULT 0;"
                               "CREATE TABLE artifacts("
                               " job INTEGER NOT NULL REFERENCES jobs(id),"
                               " result INTEGER NOT NULL,"
                               " step INTEGER NOT NULL,"
                               " view INTEGER NOT NULL,"
                               " wall INTEGER NOT NULL,"
                               " message BLOB NOT NULL,"
                               " PRIMARY KEY(job, result, step)) WITHOUT ROWID;"
                               "CREATE TABLE ledgers("
                               " job INTEGER PRIMARY KEY REFERENCES jobs(id),"
                               " seed INTEGER NOT NULL,"
                               " batch INTEGER NOT NULL);"
                               "CREATE TABLE spans("
                               " job INTEGER NOT NULL REFERENCES jobs(id),"
                               " first_step INTEGER NOT NULL,"
                               " last_step INTEGER NOT NULL,"
                               " view INTEGER NOT NULL,"
                               " shares BLOB NOT NULL,"
                               " PRIMARY KEY(job, first_step)) WITHOUT ROWID;";

/* Unequal machines: how fast each was with each model, what was said of it. */
static const char schema_3[] = "ALTER TABLE jobs ADD COLUMN verdicts BLOB NOT NULL DEFAULT x'';"
                               "CREATE TABLE speeds("
                               " node_id TEXT NOT NULL,"
                               " model_key TEXT NOT NULL,"
                               " centicores INTEGER NOT NULL,"
                               " micro_batch INTEGER NOT NULL,"
                               " sample_ns INTEGER NOT NULL,"
                               " step_ns INTEGER NOT NULL,"
                               " wall INTEGER NOT NULL,"
                               " PRIMARY KEY(node_id, model_key, centicores)) WITHOUT ROWID;";

const registry_migration_t registry_migrations[] = {{schema_1}, {schema_2}, {schema_3}};
const uint32_t registry_n_migrations = sizeof registry_migrations / sizeof registry_migrations[0];

#define JOB_COLUMNS                                                                                          \
    "id, name, state, outcome, reason, submitted_wall, started_wall, ended_wall, request, failure, "         \
    "elastic, workers_lost, verdicts"

const char *const registry_sql[REGISTRY_STATEMENTS] = {
    [REGISTRY_BEGIN] = "BEGIN IMMEDIATE",
    [REGISTRY_COMMIT] = "COMMIT",
    [REGISTRY_ROLLBACK] = "ROLLBACK",
    [REGISTRY_INSERT_NODE] =
        "INSERT INTO nodes(node_id, name, address, state, incarnation, registered_wall, seen_wall, "
        "registration, drained, quarantined, cool_until_wall, losses_in_a_row, losses) "
        "VALUES(?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT(node_id) DO UPDATE SET "
        "name=excluded.name, address=excluded.address, state=excluded.state, "
        "incarnation=excluded.incarnation, "
        "registered_wall=excluded.registered_wall, seen_wall=excluded.seen_wall, "
        "registration=excluded.registration, drained=excluded.drained, quarantined=excluded.quarantined, "
        "cool_until_wall=excluded.cool_until_wall, losses_in_a_row=excluded.losses_in_a_row, "
        "losses=excluded.losses RETURNING handle",
    [REGISTRY_UPDATE_NODE] = "UPDATE nodes SET node_id=?2, name=?3, address=?4, state=?5, incarnation=?6, "
                             "registered_wall=?7, seen_wall=?8, registration=?9, drained=?10, "
                             "quarantined=?11, cool_until_wall=?12, losses_in_a_row=?13, losses=?14 "
                             "WHERE handle=?1",
    [REGISTRY_INSERT_JOB] =
        "INSERT INTO jobs(name, state, outcome, reason, submitted_wall, started_wall, ended_wall, "
        "request, failure, elastic, workers_lost) "
        "VALUES(?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10, ?9, ?11, ?12)",
    [REGISTRY_UPDATE_JOB] = "UPDATE jobs SET name=?2, state=?3, outcome=?4, reason=?5, submitted_wall=?6, "
                            "started_wall=?7, ended_wall=?8, failure=?9, elastic=?11, workers_lost=?12 "
                            "WHERE id=?1",
    [REGISTRY_PUT_RANK] =
        "INSERT OR REPLACE INTO ranks(job, rank, node, node_name, node_id, address, state, port, pid, "
        "incarnation, report) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    [REGISTRY_INSERT_VIEW] = "INSERT INTO views(job, view, key, members) VALUES(?1, ?2, ?3, ?4)",
    [REGISTRY_INSERT_EVENT] = "INSERT INTO events(wall, job, node, text) VALUES(?1, ?2, ?3, ?4)",
    [REGISTRY_TRIM_EVENTS] = "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - 100000",
    [REGISTRY_NODES] =
        "SELECT handle, node_id, name, address, state, incarnation, registered_wall, seen_wall, "
        "registration, drained, quarantined, cool_until_wall, losses_in_a_row, losses FROM nodes ORDER BY "
        "handle",
    [REGISTRY_JOBS] =
        "SELECT " JOB_COLUMNS " FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id DESC LIMIT ?1) OR "
        "state NOT IN ('done', 'failed', 'cancelled') ORDER BY id",
    [REGISTRY_JOB] = "SELECT " JOB_COLUMNS " FROM jobs WHERE id=?1",
    [REGISTRY_RANKS] =
        "SELECT job, rank, node, node_name, node_id, address, state, port, pid, incarnation, report "
        "FROM ranks WHERE job=?1 ORDER BY rank",
    [REGISTRY_LAST_VIEW] =
        "SELECT job, view, key, members FROM views WHERE job=?1 ORDER BY view DESC LIMIT 1",
    [REGISTRY_NEWEST_VIEW] = "SELECT max(view) FROM views WHERE job=?1",
    [REGISTRY_FIND_ARTIFACT] = "SELECT message FROM artifacts WHERE job=?1 AND result=?2 AND step=?3",
    [REGISTRY_PUT_ARTIFACT] =
        "INSERT OR REPLACE INTO artifacts(job, result, step, view, wall, message) VALUES(?1, ?2, ?3, ?4, ?5, "
        "?6)",
    [REGISTRY_TRIM_CHECKPOINTS] =
        "DELETE FROM artifacts WHERE job=?1 AND result=0 AND step NOT IN (SELECT step FROM artifacts WHERE "
        "job=?1 AND result=0 ORDER BY step DESC LIMIT ?2)",
    [REGISTRY_ARTIFACTS] =
        "SELECT job, result, step, view, wall, message FROM artifacts WHERE job=?1 ORDER BY result, step",
    [REGISTRY_PUT_LEDGER] = "INSERT OR REPLACE INTO ledgers(job, seed, batch) VALUES(?1, ?2, ?3)",
    [REGISTRY_LEDGER] = "SELECT seed, batch FROM ledgers WHERE job=?1",
    [REGISTRY_DROP_SPANS] = "DELETE FROM spans WHERE job=?1 AND first_step>=?2 AND view<?3",
    [REGISTRY_CUT_SPANS] =
        "UPDATE spans SET last_step=?2-1 WHERE job=?1 AND first_step<?2 AND last_step>=?2 AND view<?3",
    [REGISTRY_NEXT_SPAN] = "SELECT first_step, last_step FROM spans WHERE job=?1 AND last_step>=?2 "
                           "ORDER BY first_step LIMIT 1",
    [REGISTRY_EXTEND_SPAN] =
        "UPDATE spans SET last_step=?3 WHERE job=?1 AND last_step=?2-1 AND view=?4 AND shares=?5",
    [REGISTRY_INSERT_SPAN] =
        "INSERT INTO spans(job, first_step, last_step, view, shares) VALUES(?1, ?2, ?3, ?4, ?5)",
    [REGISTRY_SPANS] = "SELECT job, first_step, last_step, view, shares FROM spans WHERE job=?1 AND "
                       "first_step>=?2 ORDER BY first_step LIMIT ?3",
    [REGISTRY_PUT_VERDICTS] = "UPDATE jobs SET verdicts=?2 WHERE id=?1",
    [REGISTRY_PUT_SPEED] =
        "INSERT OR REPLACE INTO speeds(node_id, model_key, centicores, micro_batch, sample_ns, step_ns, "
        "wall) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    [REGISTRY_TRIM_SPEEDS] =
        "DELETE FROM speeds WHERE node_id=?1 AND (model_key, centicores) NOT IN (SELECT model_key, "
        "centicores FROM speeds WHERE node_id=?1 ORDER BY wall DESC, model_key LIMIT ?2)",
    [REGISTRY_SPEEDS] =
        "SELECT node_id, model_key, centicores, micro_batch, sample_ns, step_ns, wall FROM speeds WHERE "
        "(?1 IS NULL OR model_key=?1) ORDER BY wall DESC, node_id, model_key, centicores LIMIT ?2",
    [REGISTRY_SPEED] = "SELECT micro_batch, sample_ns, step_ns, wall FROM speeds WHERE node_id=?1 AND "
                       "model_key=?2 AND centicores=?3",
    [REGISTRY_PUT_META] = "INSERT OR REPLACE INTO meta(key, value) VALUES(?1, ?2)",
    [REGISTRY_GET_META] = "SELECT value FROM meta WHERE key=?1",
    [REGISTRY_EVENTS] = "SELECT wall, text FROM events WHERE job=?1 ORDER BY id",
};

static inspan_status_t read_version(const registry_t *registry, uint32_t *version, inspan_error_t *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(registry->db, "PRAGMA user_version", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        sqlite3_finalize(statement);
        return registry_fail(registry, "cannot read the version of the registry", err);
    }
    *version = (uint32_t)sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return INSPAN_OK;
}

inspan_status_t registry_migrate(registry_t *registry, const registry_migration_t *migrations, uint32_t n,
                                 inspan_error_t *err)
{
    uint32_t version = 0;
    inspan_status_t status = read_version(registry, &version, err);
    if (status != INSPAN_OK) return status;
    if (version > n)
        return error_set(
            err, INSPAN_VERSION,
            "the registry %s has schema version %u, this Inspan (%s) knows up to %u: use the newer Inspan "
            "that wrote it, or another --dir",
            registry->path, version, INSPAN_VERSION_TEXT, n);
    if (version == n) return INSPAN_OK;
    bool failed = sqlite3_exec(registry->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK;
    for (uint32_t i = version; i < n && !failed; i++)
        failed = sqlite3_exec(registry->db, migrations[i].sql, NULL, NULL, NULL) != SQLITE_OK;
    char set[64];
    sqlite3_snprintf(sizeof set, set, "PRAGMA user_version=%u", n);
    failed = failed || sqlite3_exec(registry->db, set, NULL, NULL, NULL) != SQLITE_OK;
    failed = failed || sqlite3_exec(registry->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK;
    if (!failed) return INSPAN_OK;
    status = registry_fail(registry, "cannot bring the registry's schema forward", err);
    sqlite3_exec(registry->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}
