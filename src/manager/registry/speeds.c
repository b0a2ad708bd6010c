/* How fast nodes were with models, and what was said of the speeds in a job. */
#include "base/error.h"
#include "manager/registry/registry_internal.h"

inspan_status_t registry_put_verdicts(registry_t *registry, uint64_t job, registry_blob_t verdicts,
                                      inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_VERDICTS);
    registry_bind_u64(put, 1, job);
    registry_bind_blob(put, 2, verdicts);
    return registry_end(registry, registry_step(put), err);
}

inspan_status_t registry_put_speed(registry_t *registry, const registry_speed_t *speed, inspan_error_t *err)
{
    if (speed->micro_batch > INT64_MAX || speed->sample_ns > INT64_MAX || speed->step_ns > INT64_MAX)
        return error_set(err, INSPAN_INVALID, "a speed of node %s that cannot be right", speed->node_id);
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_SPEED);
    registry_bind_text(put, 1, speed->node_id);
    registry_bind_text(put, 2, speed->model_key);
    registry_bind_u64(put, 3, speed->centicores);
    registry_bind_u64(put, 4, speed->micro_batch);
    registry_bind_u64(put, 5, speed->sample_ns);
    registry_bind_u64(put, 6, speed->step_ns);
    sqlite3_bind_int64(put, 7, speed->wall);
    bool good = registry_step(put);
    sqlite3_stmt *trim = registry_statement_of(registry, REGISTRY_TRIM_SPEEDS);
    registry_bind_text(trim, 1, speed->node_id);
    registry_bind_u64(trim, 2, REGISTRY_SPEEDS_OF_NODE);
    return registry_end(registry, good && registry_step(trim), err);
}

inspan_status_t registry_find_speed(registry_t *registry, registry_speed_t *speed, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_SPEED);
    registry_bind_text(rows, 1, speed->node_id);
    registry_bind_text(rows, 2, speed->model_key);
    registry_bind_u64(rows, 3, speed->centicores);
    speed->micro_batch = speed->sample_ns = speed->step_ns = 0;
    speed->wall = 0;
    int result = sqlite3_step(rows);
    if (result == SQLITE_ROW) {
        speed->micro_batch = registry_u64_of(rows, 0);
        speed->sample_ns = registry_u64_of(rows, 1);
        speed->step_ns = registry_u64_of(rows, 2);
        speed->wall = sqlite3_column_int64(rows, 3);
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_each_speed(registry_t *registry, const char *model_key, uint32_t limit,
                                    registry_speed_visit_t visit, void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_SPEEDS);
    if (model_key != NULL) registry_bind_text(rows, 1, model_key); /* else NULL: any */
    registry_bind_u64(rows, 2, limit);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_speed_t speed = {.node_id = registry_text_of(rows, 0),
                                  .model_key = registry_text_of(rows, 1),
                                  .centicores = (uint32_t)registry_u64_of(rows, 2),
                                  .micro_batch = registry_u64_of(rows, 3),
                                  .sample_ns = registry_u64_of(rows, 4),
                                  .step_ns = registry_u64_of(rows, 5),
                                  .wall = sqlite3_column_int64(rows, 6)};
        if (!visit(context, &speed)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}
