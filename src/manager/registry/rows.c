/* Writing and reading rows: every writer is one immediate transaction. */
#include <string.h>

#include "base/error.h"
#include "manager/registry/registry_internal.h"

static sqlite3_stmt *statement_of(registry_t *registry, registry_statement_t which)
{
    sqlite3_stmt *statement = registry->statements[which];
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return statement;
}

static bool run(registry_t *registry, registry_statement_t which)
{
    sqlite3_stmt *statement = statement_of(registry, which);
    bool done = sqlite3_step(statement) == SQLITE_DONE;
    if (done) sqlite3_reset(statement); /* after a failure the reset would hide the text of the error */
    return done;
}

/* Bindings cannot fail but for lack of memory, which the step then reports by a NOT NULL column. */
static void bind_text(sqlite3_stmt *statement, int column, const char *text)
{
    sqlite3_bind_text(statement, column, text != NULL ? text : "", -1, SQLITE_STATIC);
}

static void bind_blob(sqlite3_stmt *statement, int column, registry_blob_t blob)
{
    if (blob.data != NULL || blob.bytes == 0)
        sqlite3_bind_blob64(statement, column, blob.data != NULL ? blob.data : "", blob.bytes, SQLITE_STATIC);
}

static void bind_u64(sqlite3_stmt *statement, int column, uint64_t number)
{
    sqlite3_bind_int64(statement, column, (sqlite3_int64)number);
}

static inspan_status_t begin(registry_t *registry, inspan_error_t *err)
{
    return run(registry, REGISTRY_BEGIN) ? INSPAN_OK
                                         : registry_fail(registry, "cannot write the registry", err);
}

/* Commit, or take everything back; the caller's step decides which. */
static inspan_status_t end(registry_t *registry, bool good, inspan_error_t *err)
{
    if (good && run(registry, REGISTRY_COMMIT)) return INSPAN_OK;
    inspan_status_t status = registry_fail(registry, "cannot write the registry", err);
    for (int i = 0; i < REGISTRY_STATEMENTS; i++) sqlite3_reset(registry->statements[i]);
    if (!sqlite3_get_autocommit(registry->db)) run(registry, REGISTRY_ROLLBACK);
    return status;
}

static bool step(sqlite3_stmt *statement)
{
    bool done = sqlite3_step(statement) == SQLITE_DONE;
    if (done) sqlite3_reset(statement);
    return done;
}

inspan_status_t registry_put_node(registry_t *registry, registry_node_t *node, inspan_error_t *err)
{
    inspan_status_t status = begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put =
        statement_of(registry, node->handle == 0 ? REGISTRY_INSERT_NODE : REGISTRY_UPDATE_NODE);
    if (node->handle != 0) bind_u64(put, 1, node->handle);
    bind_text(put, 2, node->node_id);
    bind_text(put, 3, node->name);
    bind_text(put, 4, node->address);
    bind_text(put, 5, node->state);
    bind_u64(put, 6, node->incarnation);
    sqlite3_bind_int64(put, 7, node->registered_wall);
    sqlite3_bind_int64(put, 8, node->seen_wall);
    bind_blob(put, 9, node->registration);
    uint64_t handle = node->handle;
    bool good = true;
    if (handle == 0) {
        good = sqlite3_step(put) == SQLITE_ROW; /* RETURNING: also the handle of a row that was there */
        if (good) handle = (uint64_t)sqlite3_column_int64(put, 0);
    }
    status = end(registry, good && step(put), err);
    if (status == INSPAN_OK) node->handle = handle;
    return status;
}

static bool write_rank(registry_t *registry, const registry_rank_t *rank, uint64_t job)
{
    sqlite3_stmt *put = statement_of(registry, REGISTRY_PUT_RANK);
    bind_u64(put, 1, job);
    bind_u64(put, 2, rank->rank);
    bind_u64(put, 3, rank->node);
    bind_text(put, 4, rank->node_name);
    bind_text(put, 5, rank->node_id);
    bind_text(put, 6, rank->address);
    bind_text(put, 7, rank->state);
    bind_u64(put, 8, rank->port);
    bind_u64(put, 9, rank->pid);
    bind_u64(put, 10, rank->incarnation);
    if (rank->report.data != NULL) bind_blob(put, 11, rank->report);
    return step(put);
}

static bool write_ranks(registry_t *registry, const registry_rank_t *ranks, uint32_t n, uint64_t job)
{
    for (uint32_t i = 0; i < n; i++)
        if (!write_rank(registry, &ranks[i], job)) return false;
    return true;
}

inspan_status_t registry_put_job(registry_t *registry, registry_job_t *job, const registry_rank_t *ranks,
                                 uint32_t n_ranks, inspan_error_t *err)
{
    inspan_status_t status = begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = statement_of(registry, job->id == 0 ? REGISTRY_INSERT_JOB : REGISTRY_UPDATE_JOB);
    if (job->id != 0) bind_u64(put, 1, job->id);
    bind_text(put, 2, job->name);
    bind_text(put, 3, job->state);
    bind_text(put, 4, job->outcome);
    bind_text(put, 5, job->reason);
    sqlite3_bind_int64(put, 6, job->submitted_wall);
    sqlite3_bind_int64(put, 7, job->started_wall);
    sqlite3_bind_int64(put, 8, job->ended_wall);
    if (job->failure.data != NULL) bind_blob(put, 9, job->failure);
    if (job->id == 0) bind_blob(put, 10, job->request);
    bool good = step(put);
    uint64_t id = job->id != 0 ? job->id : (uint64_t)sqlite3_last_insert_rowid(registry->db);
    status = end(registry, good && write_ranks(registry, ranks, n_ranks, id), err);
    if (status == INSPAN_OK) job->id = id;
    return status;
}

inspan_status_t registry_put_rank(registry_t *registry, const registry_rank_t *rank, inspan_error_t *err)
{
    inspan_status_t status = begin(registry, err);
    if (status != INSPAN_OK) return status;
    return end(registry, write_rank(registry, rank, rank->job), err);
}

inspan_status_t registry_put_view(registry_t *registry, const registry_view_t *view,
                                  const registry_rank_t *ranks, uint32_t n_ranks, inspan_error_t *err)
{
    inspan_status_t status = begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = statement_of(registry, REGISTRY_INSERT_VIEW);
    bind_u64(put, 1, view->job);
    bind_u64(put, 2, view->view);
    bind_blob(put, 3, view->key);
    bind_blob(put, 4, view->members);
    bool good = step(put);
    int code = sqlite3_extended_errcode(registry->db);
    bool twice = !good && code == SQLITE_CONSTRAINT_PRIMARYKEY;
    status = end(registry, good && write_ranks(registry, ranks, n_ranks, view->job), err);
    if (!twice) return status;
    return error_set(err, INSPAN_EXISTS, "view %llu of job %llu was issued before",
                     (unsigned long long)view->view, (unsigned long long)view->job);
}

inspan_status_t registry_put_event(registry_t *registry, ns_t wall, uint64_t job, uint64_t node,
                                   const char *text, inspan_error_t *err)
{
    inspan_status_t status = begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = statement_of(registry, REGISTRY_INSERT_EVENT);
    sqlite3_bind_int64(put, 1, wall);
    if (job != 0) bind_u64(put, 2, job);
    if (node != 0) bind_u64(put, 3, node);
    bind_text(put, 4, text);
    bool good = step(put);
    if (good && sqlite3_last_insert_rowid(registry->db) % 1000 == 0)
        good = run(registry, REGISTRY_TRIM_EVENTS);
    return end(registry, good, err);
}

/* ---- Reading ---- */

static const char *text_of(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

static registry_blob_t blob_of(sqlite3_stmt *row, int column)
{
    const void *data = sqlite3_column_blob(row, column);
    return (registry_blob_t){data, (size_t)sqlite3_column_bytes(row, column)};
}

static uint64_t u64_of(sqlite3_stmt *row, int column)
{
    return (uint64_t)sqlite3_column_int64(row, column);
}

static inspan_status_t finish_reading(registry_t *registry, sqlite3_stmt *rows, int result,
                                      inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    if (result != SQLITE_DONE && result != SQLITE_ROW)
        status = registry_fail(registry, "cannot read the registry", err);
    sqlite3_reset(rows);
    return status;
}

inspan_status_t registry_each_node(registry_t *registry, registry_node_visit_t visit, void *context,
                                   inspan_error_t *err)
{
    sqlite3_stmt *rows = statement_of(registry, REGISTRY_NODES);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_node_t node = {.handle = u64_of(rows, 0),
                                .node_id = text_of(rows, 1),
                                .name = text_of(rows, 2),
                                .address = text_of(rows, 3),
                                .state = text_of(rows, 4),
                                .incarnation = u64_of(rows, 5),
                                .registered_wall = sqlite3_column_int64(rows, 6),
                                .seen_wall = sqlite3_column_int64(rows, 7),
                                .registration = blob_of(rows, 8)};
        if (!visit(context, &node)) break;
    }
    return finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_job(registry_t *registry, uint64_t id, uint32_t limit,
                                  registry_job_visit_t visit, void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = statement_of(registry, id == 0 ? REGISTRY_JOBS : REGISTRY_JOB);
    bind_u64(rows, 1, id == 0 ? limit : id);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_job_t job = {.id = u64_of(rows, 0),
                              .name = text_of(rows, 1),
                              .state = text_of(rows, 2),
                              .outcome = text_of(rows, 3),
                              .reason = text_of(rows, 4),
                              .submitted_wall = sqlite3_column_int64(rows, 5),
                              .started_wall = sqlite3_column_int64(rows, 6),
                              .ended_wall = sqlite3_column_int64(rows, 7),
                              .request = blob_of(rows, 8),
                              .failure = blob_of(rows, 9)};
        if (!visit(context, &job)) break;
    }
    return finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_rank(registry_t *registry, uint64_t job, registry_rank_visit_t visit,
                                   void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = statement_of(registry, REGISTRY_RANKS);
    bind_u64(rows, 1, job);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_rank_t rank = {.job = u64_of(rows, 0),
                                .rank = (uint32_t)u64_of(rows, 1),
                                .node = u64_of(rows, 2),
                                .node_name = text_of(rows, 3),
                                .node_id = text_of(rows, 4),
                                .address = text_of(rows, 5),
                                .state = text_of(rows, 6),
                                .port = (uint32_t)u64_of(rows, 7),
                                .pid = (uint32_t)u64_of(rows, 8),
                                .incarnation = u64_of(rows, 9),
                                .report = blob_of(rows, 10)};
        if (!visit(context, &rank)) break;
    }
    return finish_reading(registry, rows, result, err);
}

inspan_status_t registry_last_view(registry_t *registry, uint64_t job, registry_view_visit_t visit,
                                   void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = statement_of(registry, REGISTRY_LAST_VIEW);
    bind_u64(rows, 1, job);
    int result = sqlite3_step(rows);
    if (result == SQLITE_ROW) {
        registry_view_t view = {.job = u64_of(rows, 0),
                                .view = u64_of(rows, 1),
                                .key = blob_of(rows, 2),
                                .members = blob_of(rows, 3)};
        visit(context, &view);
    }
    return finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_event(registry_t *registry, uint64_t job, registry_event_visit_t visit,
                                    void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = statement_of(registry, REGISTRY_EVENTS);
    bind_u64(rows, 1, job);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW)
        if (!visit(context, sqlite3_column_int64(rows, 0), text_of(rows, 1))) break;
    return finish_reading(registry, rows, result, err);
}
