/* Checkpoints, results and the ledger of samples. */
#include <string.h>

#include "base/error.h"
#include "manager/registry/registry_internal.h"

/* ---- Artifacts ---- */

static bool is_there(registry_t *registry, const registry_artifact_t *artifact)
{
    sqlite3_stmt *find = registry_statement_of(registry, REGISTRY_FIND_ARTIFACT);
    registry_bind_u64(find, 1, artifact->job);
    sqlite3_bind_int(find, 2, artifact->result);
    registry_bind_u64(find, 3, artifact->step);
    bool same = false;
    if (sqlite3_step(find) == SQLITE_ROW) {
        registry_blob_t old = registry_blob_of(find, 0);
        same = old.bytes == artifact->message.bytes &&
               (old.bytes == 0 || memcmp(old.data, artifact->message.data, old.bytes) == 0);
    }
    sqlite3_reset(find);
    return same;
}

static uint64_t newest_view(registry_t *registry, uint64_t job)
{
    sqlite3_stmt *find = registry_statement_of(registry, REGISTRY_NEWEST_VIEW);
    registry_bind_u64(find, 1, job);
    uint64_t view = sqlite3_step(find) == SQLITE_ROW ? registry_u64_of(find, 0) : 0;
    sqlite3_reset(find);
    return view;
}

static bool write_artifact(registry_t *registry, const registry_artifact_t *artifact, uint32_t keep)
{
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_ARTIFACT);
    registry_bind_u64(put, 1, artifact->job);
    sqlite3_bind_int(put, 2, artifact->result);
    registry_bind_u64(put, 3, artifact->step);
    registry_bind_u64(put, 4, artifact->view);
    sqlite3_bind_int64(put, 5, artifact->wall);
    registry_bind_blob(put, 6, artifact->message);
    if (!registry_step(put)) return false;
    if (artifact->result) return true;
    sqlite3_stmt *trim = registry_statement_of(registry, REGISTRY_TRIM_CHECKPOINTS);
    registry_bind_u64(trim, 1, artifact->job);
    sqlite3_bind_int64(trim, 2, keep > 0 ? keep : 1);
    return registry_step(trim);
}

inspan_status_t registry_put_artifact(registry_t *registry, const registry_artifact_t *artifact,
                                      uint32_t keep, inspan_error_t *err)
{
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    if (is_there(registry, artifact)) return registry_end(registry, true, err);
    uint64_t newest = newest_view(registry, artifact->job);
    if (newest != artifact->view || newest == 0) {
        status = registry_end(registry, true, err); /* nothing was written */
        if (status != INSPAN_OK) return status;
        return error_set(
            err, INSPAN_ABORTED,
            "%s of step %llu of job %llu was made under view %llu, the newest is %llu: not accepted",
            artifact->result ? "the result" : "the checkpoint", (unsigned long long)artifact->step,
            (unsigned long long)artifact->job, (unsigned long long)artifact->view,
            (unsigned long long)newest);
    }
    return registry_end(registry, write_artifact(registry, artifact, keep), err);
}

inspan_status_t registry_each_artifact(registry_t *registry, uint64_t job, registry_artifact_visit_t visit,
                                       void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_ARTIFACTS);
    registry_bind_u64(rows, 1, job);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_artifact_t artifact = {.job = registry_u64_of(rows, 0),
                                        .result = sqlite3_column_int(rows, 1) != 0,
                                        .step = registry_u64_of(rows, 2),
                                        .view = registry_u64_of(rows, 3),
                                        .wall = sqlite3_column_int64(rows, 4),
                                        .message = registry_blob_of(rows, 5)};
        if (!visit(context, &artifact)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}

/* ---- The ledger ---- */

/* What older views said of these steps and of those after them is void: they are worked on anew. */
static bool make_room(registry_t *registry, const registry_span_t *span)
{
    static const registry_statement_t both[] = {REGISTRY_DROP_SPANS, REGISTRY_CUT_SPANS};
    for (int i = 0; i < 2; i++) {
        sqlite3_stmt *cut = registry_statement_of(registry, both[i]);
        registry_bind_u64(cut, 1, span->job);
        registry_bind_u64(cut, 2, span->first_step);
        registry_bind_u64(cut, 3, span->view);
        if (!registry_step(cut)) return false;
    }
    return true;
}

/* The first record that ends at `step` or later. */
static bool next_span(registry_t *registry, uint64_t job, uint64_t step, uint64_t *first, uint64_t *last)
{
    sqlite3_stmt *next = registry_statement_of(registry, REGISTRY_NEXT_SPAN);
    registry_bind_u64(next, 1, job);
    registry_bind_u64(next, 2, step);
    bool found = sqlite3_step(next) == SQLITE_ROW;
    if (found) {
        *first = registry_u64_of(next, 0);
        *last = registry_u64_of(next, 1);
    }
    sqlite3_reset(next);
    return found;
}

static bool write_piece(registry_t *registry, const registry_span_t *span, uint64_t first, uint64_t last)
{
    sqlite3_stmt *extend = registry_statement_of(registry, REGISTRY_EXTEND_SPAN);
    registry_bind_u64(extend, 1, span->job);
    registry_bind_u64(extend, 2, first);
    registry_bind_u64(extend, 3, last);
    registry_bind_u64(extend, 4, span->view);
    registry_bind_blob(extend, 5, span->shares);
    if (!registry_step(extend)) return false;
    if (sqlite3_changes(registry->db) > 0) return true;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_INSERT_SPAN);
    registry_bind_u64(put, 1, span->job);
    registry_bind_u64(put, 2, first);
    registry_bind_u64(put, 3, last);
    registry_bind_u64(put, 4, span->view);
    registry_bind_blob(put, 5, span->shares);
    return registry_step(put);
}

/* The steps of the span that have no record yet. */
static bool write_span(registry_t *registry, const registry_span_t *span)
{
    if (!make_room(registry, span)) return false;
    uint64_t step = span->first_step;
    while (step <= span->last_step) {
        uint64_t first = 0, last = 0, end = span->last_step;
        if (next_span(registry, span->job, step, &first, &last)) {
            if (first <= step) {
                step = last + 1;
                continue;
            }
            if (first <= end) end = first - 1;
        }
        if (!write_piece(registry, span, step, end)) return false;
        step = end + 1;
    }
    return true;
}

inspan_status_t registry_put_spans(registry_t *registry, uint64_t job, uint64_t seed, uint64_t batch,
                                   const registry_span_t *spans, uint32_t n, inspan_error_t *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (spans[i].last_step < spans[i].first_step || spans[i].last_step >= INT64_MAX ||
            spans[i].job != job)
            return error_set(err, INSPAN_INVALID, "a span from step %llu to %llu",
                             (unsigned long long)spans[i].first_step, (unsigned long long)spans[i].last_step);
    inspan_status_t status = registry_begin(registry, err);
    if (status != INSPAN_OK) return status;
    sqlite3_stmt *put = registry_statement_of(registry, REGISTRY_PUT_LEDGER);
    registry_bind_u64(put, 1, job);
    registry_bind_u64(put, 2, seed);
    registry_bind_u64(put, 3, batch);
    bool good = registry_step(put);
    for (uint32_t i = 0; i < n && good; i++) good = write_span(registry, &spans[i]);
    return registry_end(registry, good, err);
}

inspan_status_t registry_each_span(registry_t *registry, uint64_t job, uint64_t from, uint32_t limit,
                                   registry_span_visit_t visit, void *context, inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_SPANS);
    registry_bind_u64(rows, 1, job);
    registry_bind_u64(rows, 2, from);
    registry_bind_u64(rows, 3, limit);
    int result;
    while ((result = sqlite3_step(rows)) == SQLITE_ROW) {
        registry_span_t span = {.job = registry_u64_of(rows, 0),
                                .first_step = registry_u64_of(rows, 1),
                                .last_step = registry_u64_of(rows, 2),
                                .view = registry_u64_of(rows, 3),
                                .shares = registry_blob_of(rows, 4)};
        if (!visit(context, &span)) break;
    }
    return registry_finish_reading(registry, rows, result, err);
}

inspan_status_t registry_ledger(registry_t *registry, uint64_t job, uint64_t *seed, uint64_t *batch,
                                inspan_error_t *err)
{
    sqlite3_stmt *rows = registry_statement_of(registry, REGISTRY_LEDGER);
    registry_bind_u64(rows, 1, job);
    *seed = *batch = 0;
    int result = sqlite3_step(rows);
    if (result == SQLITE_ROW) {
        *seed = registry_u64_of(rows, 0);
        *batch = registry_u64_of(rows, 1);
    }
    return registry_finish_reading(registry, rows, result, err);
}
