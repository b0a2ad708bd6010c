/* Writing and reading rows: every writer is one immediate transaction. */
#include <string.h>

#include "base/error.h"
#include "manager/registry/registry_internal.h"

sqlite3_stmt *registry_statement_of(registry_t *registry, registry_statement_t which)
{
    sqlite3_stmt *statement = registry->statements[which];
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return statement;
}

static bool run(registry_t *registry, registry_statement_t which)
{
    return registry_step(registry_statement_of(registry, which));
}

inspan_status_t registry_begin(registry_t *registry, inspan_error_t *err)
{
    return run(registry, REGISTRY_BEGIN) ? INSPAN_OK
                                         : registry_fail(registry, "cannot write the registry", err);
}

inspan_status_t registry_end(registry_t *registry, bool good, inspan_error_t *err)
{
    if (good && run(registry, REGISTRY_COMMIT)) return INSPAN_OK;
    inspan_status_t status = registry_fail(registry, "cannot write the registry", err);
    for (int i = 0; i < REGISTRY_STATEMENTS; i++) sqlite3_reset(registry->statements[i]);
    if (!sqlite3_get_autocommit(registry->db)) run(registry, REGISTRY_ROLLBACK);
    return status;
}

inspan_status_t registry_put_node(registry_t *registry, registry_node_t *node, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put =
        registry_statement_of(registry, node->handle == 0 ? REGISTRY_INSERT_NODE : REGISTRY_UPDATE_NODE);
    if (node->handle != 0) registry_bind_u64(put, 1, node->handle);
    registry_bind_text(put, 2, node->node_id);
    registry_bind_text(put, 3, node->name);
    registry_bind_text(put, 4, node->address);
    registry_bind_text(put, 5, node->state);
    registry_bind_u64(put, 6, node->incarnation);
    sqlite3_bind_int64(put, 7, node->registered_wall);
    sqlite3_bind_int64(put, 8, node->seen_wall);
    registry_bind_blob(put, 9, node->registration);
    sqlite3_bind_int(put, 10, node->drained);
    sqlite3_bind_int(put, 11, node->quarantined);
    sqlite3_bind_int64(put, 12, node->cool_until_wall);
    registry_bind_u64(put, 13, node->losses_in_a_row);
    registry_bind_blob(put, 14, node->losses);
    uint64_t handle = node->handle;
    bool good = true;
    if (handle == 0) {
        good = sqlite3_step(put) == SQLITE_ROW; /* RETURNING: also the handle of a row that was there */
        if (good) handle = (uint64_t)sqlite3_column_int64(put, 0);
    }
    status = registry_end(registry, good && registry_step(put), err);
    if (status == INSPAN_OK) node->handle = handle;
    return status;
}

static bool write_rank(registry_t *registry, const registry_rank_t *rank, uint64_t job)
{
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_RANK);
    registry_bind_u64(put, 1, job);
    registry_bind_u64(put, 2, rank->rank);
    registry_bind_u64(put, 3, rank->node);
    registry_bind_text(put, 4, rank->node_name);
    registry_bind_text(put, 5, rank->node_id);
    registry_bind_text(put, 6, rank->address);
    registry_bind_text(put, 7, rank->state);
    registry_bind_u64(put, 8, rank->port);
    registry_bind_u64(put, 9, rank->pid);
    registry_bind_u64(put, 10, rank->incarnation);
    if (rank->report.data != NULL) registry_bind_blob(put, 11, rank->report);
    return registry_step(put);
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
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put =
        registry_statement_of(registry, job->id == 0 ? REGISTRY_INSERT_JOB : REGISTRY_UPDATE_JOB);
    if (job->id != 0) registry_bind_u64(put, 1, job->id);
    registry_bind_text(put, 2, job->name);
    registry_bind_text(put, 3, job->state);
    registry_bind_text(put, 4, job->outcome);
    registry_bind_text(put, 5, job->reason);
    sqlite3_bind_int64(put, 6, job->submitted_wall);
    sqlite3_bind_int64(put, 7, job->started_wall);
    sqlite3_bind_int64(put, 8, job->ended_wall);
    if (job->failure.data != NULL) registry_bind_blob(put, 9, job->failure);
    if (job->id == 0) registry_bind_blob(put, 10, job->request);
    sqlite3_bind_int(put, 11, job->elastic);
    registry_bind_u64(put, 12, job->workers_lost);
    bool good = registry_step(put);
    uint64_t id = job->id != 0 ? job->id : (uint64_t)sqlite3_last_insert_rowid(registry->db);
    status = registry_end(registry, good && write_ranks(registry, ranks, n_ranks, id), err);
    if (status == INSPAN_OK) job->id = id;
    return status;
}

inspan_status_t registry_put_rank(registry_t *registry, const registry_rank_t *rank, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    return registry_end(registry, write_rank(registry, rank, rank->job), err);
}

inspan_status_t registry_put_view(registry_t *registry, const registry_view_t *view,
                                  const registry_rank_t *ranks, uint32_t n_ranks, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_INSERT_VIEW);
    registry_bind_u64(put, 1, view->job);
    registry_bind_u64(put, 2, view->view);
    registry_bind_blob(put, 3, view->key);
    registry_bind_blob(put, 4, view->members);
    bool good = registry_step(put);
    int code = sqlite3_extended_errcode(registry->db);
    bool twice = !good && code == SQLITE_CONSTRAINT_PRIMARYKEY;
    status = registry_end(registry, good && write_ranks(registry, ranks, n_ranks, view->job), err);
    if (!twice) return status;
    return error_set(err, INSPAN_EXISTS, "view %llu of job %llu was issued before",
                     (unsigned long long)view->view, (unsigned long long)view->job);
}

inspan_status_t registry_put_event(registry_t *registry, ns_t wall, uint64_t job, uint64_t node,
                                   const char *text, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_INSERT_EVENT);
    sqlite3_bind_int64(put, 1, wall);
    if (job != 0) registry_bind_u64(put, 2, job);
    if (node != 0) registry_bind_u64(put, 3, node);
    registry_bind_text(put, 4, text);
    bool good = registry_step(put);
    if (good && sqlite3_last_insert_rowid(registry->db) % 1000 == 0)
        good = run(registry, REGISTRY_TRIM_EVENTS);
    return registry_end(registry, good, err);
}

/* ---- Reading ---- */

inspan_status_t registry_finish_reading(const registry_t *registry, sqlite3_stmt *rows, int result,
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
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_NODES);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_node_t node = {.handle = registry_u64_of(rows, 0),
                                .node_id = registry_text_of(rows, 1),
                                .name = registry_text_of(rows, 2),
                                .address = registry_text_of(rows, 3),
                                .state = registry_text_of(rows, 4),
                                .incarnation = registry_u64_of(rows, 5),
                                .registered_wall = sqlite3_column_int64(rows, 6),
                                .seen_wall = sqlite3_column_int64(rows, 7),
                                .registration = registry_blob_of(rows, 8),
                                .drained = sqlite3_column_int(rows, 9) != 0,
                                .quarantined = sqlite3_column_int(rows, 10) != 0,
                                .cool_until_wall = sqlite3_column_int64(rows, 11),
                                .losses_in_a_row = (uint32_t)registry_u64_of(rows, 12),
                                .losses = registry_blob_of(rows, 13)};
        if (!visit(context, &node)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_job(registry_t *registry, uint64_t id, uint32_t limit,
                                  registry_job_visit_t visit, void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, id == 0 ? REGISTRY_JOBS : REGISTRY_JOB);
    registry_bind_u64(rows, 1, id == 0 ? limit : id);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_job_t job = {.id = registry_u64_of(rows, 0),
                              .name = registry_text_of(rows, 1),
                              .state = registry_text_of(rows, 2),
                              .outcome = registry_text_of(rows, 3),
                              .reason = registry_text_of(rows, 4),
                              .submitted_wall = sqlite3_column_int64(rows, 5),
                              .started_wall = sqlite3_column_int64(rows, 6),
                              .ended_wall = sqlite3_column_int64(rows, 7),
                              .request = registry_blob_of(rows, 8),
                              .failure = registry_blob_of(rows, 9),
                              .elastic = sqlite3_column_int(rows, 10) != 0,
                              .workers_lost = (uint32_t)registry_u64_of(rows, 11),
                              .verdicts = registry_blob_of(rows, 12)};
        if (!visit(context, &job)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_rank(registry_t *registry, uint64_t job, registry_rank_visit_t visit,
                                   void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_RANKS);
    registry_bind_u64(rows, 1, job);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_rank_t rank = {.job = registry_u64_of(rows, 0),
                                .rank = (uint32_t)registry_u64_of(rows, 1),
                                .node = registry_u64_of(rows, 2),
                                .node_name = registry_text_of(rows, 3),
                                .node_id = registry_text_of(rows, 4),
                                .address = registry_text_of(rows, 5),
                                .state = registry_text_of(rows, 6),
                                .port = (uint32_t)registry_u64_of(rows, 7),
                                .pid = (uint32_t)registry_u64_of(rows, 8),
                                .incarnation = registry_u64_of(rows, 9),
                                .report = registry_blob_of(rows, 10)};
        if (!visit(context, &rank)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_last_view(registry_t *registry, uint64_t job, registry_view_visit_t visit,
                                   void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_LAST_VIEW);
    registry_bind_u64(rows, 1, job);
    int result = sqlite3_step(rows);
    if (result == SQLITE_ROW) {
        registry_view_t view = {.job = registry_u64_of(rows, 0),
                                .view = registry_u64_of(rows, 1),
                                .key = registry_blob_of(rows, 2),
                                .members = registry_blob_of(rows, 3)};
        visit(context, &view);
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_event(registry_t *registry, uint64_t job, registry_event_visit_t visit,
                                    void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_EVENTS);
    registry_bind_u64(rows, 1, job);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW)
        if (!visit(context, sqlite3_column_int64(rows, 0), registry_text_of(rows, 1))) break;
    return registry_finish_reading(registry, rows, result, err);
}
