/* The proof of a schedule: form and pairing here, order in check_order.c, what is computed in check_value.c.
 */
#include "core/collective/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "core/collective/pairs.h"

uint32_t check_rank_of(const checker_t *checker, uint64_t number)
{
    uint32_t low = 0,
             high = checker->world - 1; /* the last rank whose first operation is not beyond number */
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (checker->base[middle] <= number)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

const sched_op_t *check_op(const checker_t *checker, uint64_t number)
{
    const uint32_t rank = check_rank_of(checker, number);
    return &checker->ranks[rank]->ops[number - checker->base[rank]];
}

inspan_status_t check_fault(const checker_t *checker, uint64_t number, const char *format, ...)
{
    static const char *const kinds[] = {"send", "receive", "receive-reduce", "copy", "reduce"};
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const uint32_t rank = check_rank_of(checker, number);
    const schedule_t *schedule = checker->ranks[rank];
    const sched_op_t *op = check_op(checker, number);
    const char *kind = op->kind <= SCHED_REDUCE ? kinds[op->kind] : "unknown kind";
    char peer[32] = "";
    if (check_has_peer(op))
        snprintf(peer, sizeof peer, " %s %u", op->kind == SCHED_SEND ? "to" : "from", op->peer);
    const sched_chunk_t none = {0},
                        *chunk = op->chunk < schedule->n_chunks ? &schedule->chunks[op->chunk] : &none;
    return error_set(
        checker->err, INSPAN_INVALID,
        "schedule: rank %u, operation %" PRIu64 " (%s%s, chunk %u [%" PRIu64 ", +%" PRIu64 "), tag %u): %s",
        rank, number - checker->base[rank], kind, peer, op->chunk, chunk->first, chunk->count, op->tag, text);
}

/* ---- Form ------------------------------------------------------------------------------------ */

static int by_first(const void *a, const void *b)
{
    const sched_chunk_t *const *x = a, *const *y = b;
    if ((*x)->first != (*y)->first) return (*x)->first < (*y)->first ? -1 : 1;
    return ((*x)->count > (*y)->count) - ((*x)->count < (*y)->count);
}

/* The chunks cut [0, count) without gap or overlap. */
static inspan_status_t check_chunks(const checker_t *checker)
{
    const schedule_t *schedule = checker->ranks[0];
    const sched_chunk_t **sorted = calloc(schedule->n_chunks + (size_t)1, sizeof *sorted);
    if (sorted == NULL) return check_no_memory(checker);
    for (uint32_t c = 0; c < schedule->n_chunks; c++) sorted[c] = &schedule->chunks[c];
    qsort(sorted, schedule->n_chunks, sizeof *sorted, by_first);
    uint64_t at = 0;
    inspan_status_t status = INSPAN_OK;
    for (uint32_t c = 0; c < schedule->n_chunks && status == INSPAN_OK; c++) {
        if (sorted[c]->first != at || sorted[c]->count > schedule->count - at)
            status = error_set(
                checker->err, INSPAN_INVALID,
                "schedule: chunk %td [%" PRIu64 ", +%" PRIu64 "): expected one that begins at %" PRIu64
                " and ends within %" PRIu64 " elements",
                sorted[c] - schedule->chunks, sorted[c]->first, sorted[c]->count, at, schedule->count);
        else
            at += sorted[c]->count;
    }
    const bool owned =
        schedule->collective == SCHED_ALLGATHER || schedule->collective == SCHED_REDUCE_SCATTER;
    for (uint32_t c = 0; owned && c < schedule->n_chunks && status == INSPAN_OK; c++)
        if (schedule->chunks[c].owner >= checker->world)
            status = error_set(checker->err, INSPAN_INVALID, "schedule: chunk %u: its owner %u is no rank", c,
                               schedule->chunks[c].owner);
    if (status == INSPAN_OK && at != schedule->count)
        status = error_set(checker->err, INSPAN_INVALID,
                           "schedule: the chunks end at %" PRIu64 ", expected %" PRIu64 " elements", at,
                           schedule->count);
    free(sorted);
    return status;
}

static inspan_status_t check_header(const checker_t *checker, uint32_t rank)
{
    const schedule_t *a = checker->ranks[0], *b = checker->ranks[rank];
    bool same = b->rank == rank && b->world == checker->world && a->collective == b->collective &&
                a->root == b->root && a->count == b->count && a->n_chunks == b->n_chunks &&
                a->root < a->world;
    for (uint32_t c = 0; same && c < a->n_chunks; c++)
        same = a->chunks[c].first == b->chunks[c].first && a->chunks[c].count == b->chunks[c].count &&
               a->chunks[c].owner == b->chunks[c].owner && a->chunks[c].exact == b->chunks[c].exact;
    if (same && (unsigned)a->collective <= SCHED_BARRIER) return INSPAN_OK;
    return error_set(
        checker->err, INSPAN_INVALID,
        "schedule: rank %u: its world, rank, collective, root, count or chunks are not those of rank 0",
        rank);
}

static inspan_status_t check_form(const checker_t *checker, uint64_t number)
{
    const uint32_t rank = check_rank_of(checker, number);
    const schedule_t *schedule = checker->ranks[rank];
    const sched_op_t *op = check_op(checker, number);
    const uint64_t index = number - checker->base[rank];
    if (op->kind > SCHED_REDUCE) return check_fault(checker, number, "no such kind (%u)", op->kind);
    if (op->chunk >= schedule->n_chunks)
        return check_fault(checker, number, "no such chunk, there are %u", schedule->n_chunks);
    if (check_has_peer(op) && (op->peer >= checker->world || op->peer == rank))
        return check_fault(checker, number, "peer: expected another rank below %u", checker->world);
    for (int i = 0; i < 2; i++)
        if (op->after[i] != SCHED_NONE && op->after[i] >= index)
            return check_fault(checker, number, "waits for operation %u, expected an earlier one",
                               op->after[i]);
    const uint64_t count = schedule->chunks[op->chunk].count;
    const bool tmp =
        (check_reads_src(op) && op->src == SCHED_TMP) || (check_writes(op) && op->dst == SCHED_TMP);
    if (tmp && (op->tmp_offset > schedule->tmp_elements || count > schedule->tmp_elements - op->tmp_offset))
        return check_fault(checker, number, "TMP at %" PRIu64 ": outside, it has %" PRIu64 " elements",
                           op->tmp_offset, schedule->tmp_elements);
    if (check_reads_src(op) && op->src > SCHED_TMP)
        return check_fault(checker, number, "no such source buffer");
    if (check_writes(op) && op->dst != SCHED_OUT && op->dst != SCHED_TMP)
        return check_fault(checker, number, "writes to a buffer that is neither OUT nor TMP");
    if (schedule->collective == SCHED_BROADCAST && rank == schedule->root && check_writes(op) &&
        op->dst == SCHED_OUT && count > 0 && !(op->kind == SCHED_COPY && op->src == SCHED_IN))
        return check_fault(checker, number, "writes to the root's OUT, which may be its IN");
    return INSPAN_OK;
}

/* ---- Pairing --------------------------------------------------------------------------------- */

static inspan_status_t check_pairs(checker_t *checker)
{
    pairs_fault_t fault = {0};
    const inspan_status_t status =
        pairs_match(checker->ranks, checker->world, checker->base, checker->partner, &fault);
    if (status == INSPAN_NO_MEMORY) return check_no_memory(checker);
    if (status == INSPAN_OK) return INSPAN_OK;
    if (fault.twice) return check_fault(checker, fault.number, "the same transfer twice");
    const sched_op_t *op = check_op(checker, fault.number);
    return check_fault(checker, fault.number, "has no %s on rank %u",
                       op->kind == SCHED_SEND ? "receive" : "send", op->peer);
}

/* ---- The way in ------------------------------------------------------------------------------ */

static inspan_status_t check_all(checker_t *checker)
{
    inspan_status_t status = INSPAN_OK;
    for (uint32_t rank = 0; rank < checker->world && status == INSPAN_OK; rank++)
        status = check_header(checker, rank);
    if (status == INSPAN_OK) status = check_chunks(checker);
    for (uint64_t i = 0; i < checker->base[checker->world] && status == INSPAN_OK; i++)
        status = check_form(checker, i);
    if (status == INSPAN_OK) status = check_pairs(checker);
    if (status == INSPAN_OK) status = check_deadlock(checker);
    if (status == INSPAN_OK) status = check_races(checker);
    if (status == INSPAN_OK) status = check_values(checker);
    return status;
}

inspan_status_t sched_check(const schedule_t *const *ranks, uint32_t world, inspan_error_t *err)
{
    checker_t checker = {.ranks = ranks, .world = world, .err = err};
    if (world == 0) return error_set(err, INSPAN_INVALID, "schedule: a world of no ranks");
    checker.base = calloc((size_t)world + 1, sizeof *checker.base);
    if (checker.base == NULL) return check_no_memory(&checker);
    for (uint32_t rank = 0; rank < world; rank++)
        checker.base[rank + 1] = checker.base[rank] + ranks[rank]->n_ops;
    checker.partner = calloc(checker.base[world] + 1, sizeof *checker.partner);
    checker.order = calloc(checker.base[world] + 1, sizeof *checker.order);
    const bool memory = checker.partner != NULL && checker.order != NULL;
    const inspan_status_t status = memory ? check_all(&checker) : check_no_memory(&checker);
    free(checker.base);
    free(checker.partner);
    free(checker.order);
    return status;
}
