#include "cli/ledger.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/table.h"

#define QUIET_BOUND (10 * NS_PER_S)

static inspan_status_t take_part(ledger_t *ledger, Inspan__V1__LedgerSpans *part, inspan_error_t *err)
{
    bool kept = VEC_PUSH(&ledger->parts, part);
    if (!kept) client_free(part);
    for (size_t i = 0; kept && i < part->n_spans; i++) kept = VEC_PUSH(&ledger->spans, part->spans[i]);
    if (!kept) return error_set(err, INSPAN_NO_MEMORY, "no memory for the ledger");
    if (part->batch != 0) {
        ledger->batch = part->batch;
        ledger->seed = part->seed;
    }
    return INSPAN_OK;
}

inspan_status_t ledger_read(rpc_client_t *client, uint64_t job, ledger_t *ledger, inspan_error_t *err)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    rpc_stream_t *stream = NULL;
    memset(ledger, 0, sizeof *ledger);
    request.id = job;
    inspan_status_t status = rpc_stream_open(client, "/inspan.v1.Cluster/ReadLedger",
                                             &inspan__v1__ledger_spans__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(stream, &request.base, CLIENT_BOUND, err);
    if (status == INSPAN_OK) rpc_stream_half_close(stream);
    while (status == INSPAN_OK) {
        ProtobufCMessage *message = NULL;
        status = rpc_stream_next(stream, QUIET_BOUND, &message, err);
        if (status != INSPAN_OK || message == NULL) break;
        status = take_part(ledger, (Inspan__V1__LedgerSpans *)(void *)message, err);
    }
    rpc_stream_close(stream);
    return status;
}

void ledger_free(ledger_t *ledger)
{
    for (size_t i = 0; i < ledger->parts.n; i++) client_free(ledger->parts.items[i]);
    vec_free(&ledger->parts);
    vec_free(&ledger->spans);
}

/* ---- Checking -------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b)
{
    const Inspan__V1__LedgerShare *const *x = a, *const *y = b;
    return (*x)->first < (*y)->first ? -1 : (*x)->first > (*y)->first;
}

/* The shares of one step: they tile [0, batch). */
static inspan_status_t check_span(const Inspan__V1__LedgerSpan *span, uint64_t batch, uint64_t *dropped,
                                  inspan_error_t *err)
{
    uint64_t next = 0;
    *dropped = 0;
    if (span->n_shares > 0) qsort(span->shares, span->n_shares, sizeof span->shares[0], by_first);
    for (size_t i = 0; i < span->n_shares; i++) {
        const Inspan__V1__LedgerShare *share = span->shares[i];
        if (share->first != next || share->n > batch - next)
            return error_set(err, INSPAN_MISMATCH,
                             "step %" PRIu64 ": sample %" PRIu64 " of %" PRIu64
                             " is there %s (share of rank %d begins at %" PRIu64 " and has %" PRIu64 ")",
                             span->first_step, share->first < next ? share->first : next, batch,
                             share->first > next ? "not once" : "more than once", share->rank, share->first,
                             share->n);
        next += share->n;
        if (share->rank < 0) *dropped += share->n;
    }
    if (next == batch) return INSPAN_OK;
    return error_set(err, INSPAN_MISMATCH, "step %" PRIu64 ": %" PRIu64 " of %" PRIu64 " samples are there",
                     span->first_step, next, batch);
}

inspan_status_t ledger_check(const ledger_t *ledger, ledger_totals_t *totals, inspan_error_t *err)
{
    memset(totals, 0, sizeof *totals);
    if (ledger->spans.n > 0) totals->first_step = ledger->spans.items[0]->first_step;
    for (size_t i = 0; i < ledger->spans.n; i++) {
        const Inspan__V1__LedgerSpan *span = ledger->spans.items[i];
        const uint64_t expected = totals->first_step + totals->steps;
        uint64_t dropped = 0;
        if (span->first_step != expected || span->last_step < span->first_step)
            return error_set(err, INSPAN_MISMATCH,
                             "step %" PRIu64 " was expected, steps %" PRIu64 " to %" PRIu64 " come", expected,
                             span->first_step, span->last_step);
        inspan_status_t status = check_span(span, ledger->batch, &dropped, err);
        if (status != INSPAN_OK) return status;
        const uint64_t steps = span->last_step - span->first_step + 1;
        totals->steps += steps;
        totals->samples += steps * (ledger->batch - dropped);
        totals->dropped += steps * dropped;
    }
    return INSPAN_OK;
}

/* ---- Showing --------------------------------------------------------------------------------- */

static json_t *span_json(const Inspan__V1__LedgerSpan *span)
{
    json_t *object = json_object(), *shares = json_array();
    json_set_number(object, "first_step", (double)span->first_step);
    json_set_number(object, "last_step", (double)span->last_step);
    json_set_number(object, "view", (double)span->view);
    for (size_t i = 0; i < span->n_shares; i++) {
        json_t *share = json_object();
        json_set_number(share, "rank", span->shares[i]->rank); /* -1: dropped */
        json_set_number(share, "first", (double)span->shares[i]->first);
        json_set_number(share, "samples", (double)span->shares[i]->n);
        json_append(shares, share);
    }
    json_set(object, "shares", shares);
    return object;
}

json_t *ledger_json(const ledger_t *ledger)
{
    inspan_error_t fault = {0};
    ledger_totals_t totals;
    const bool exact = ledger_check(ledger, &totals, &fault) == INSPAN_OK;
    json_t *object = json_object(), *spans = json_array();
    json_set_number(object, "seed", (double)ledger->seed);
    json_set_number(object, "batch", (double)ledger->batch);
    json_set_bool(object, "exact", exact);
    if (!exact) json_set_string(object, "fault", fault.text);
    json_set_number(object, "first_step", (double)totals.first_step);
    json_set_number(object, "steps", (double)totals.steps);
    json_set_number(object, "samples", (double)totals.samples);
    json_set_number(object, "dropped", (double)totals.dropped);
    for (size_t i = 0; i < ledger->spans.n; i++) json_append(spans, span_json(ledger->spans.items[i]));
    json_set(object, "spans", spans);
    return object;
}

/* "rank 0: 0-31, rank 2: 32-63" */
static void shares_text(const Inspan__V1__LedgerSpan *span, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < span->n_shares && used < size; i++) {
        const Inspan__V1__LedgerShare *share = span->shares[i];
        char who[24] = "dropped";
        if (share->rank >= 0) snprintf(who, sizeof who, "rank %d", share->rank);
        if (share->n == 0) continue;
        int n = snprintf(text + used, size - used, "%s%s: %" PRIu64 "-%" PRIu64, used > 0 ? ", " : "", who,
                         share->first, share->first + share->n - 1);
        used += n > 0 ? (size_t)n : 0;
    }
}

void ledger_show(FILE *out, const ledger_t *ledger)
{
    static const char *const headings[] = {">STEPS", ">VIEW", "SAMPLES OF THE BATCH", NULL};
    inspan_error_t fault = {0};
    ledger_totals_t totals;
    if (ledger->spans.n == 0) {
        fprintf(out, "no step is committed yet\n");
        return;
    }
    table_t *table = table_open(headings);
    for (size_t i = 0; table != NULL && i < ledger->spans.n; i++) {
        const Inspan__V1__LedgerSpan *span = ledger->spans.items[i];
        char text[512];
        shares_text(span, text, sizeof text);
        table_add(table, "%" PRIu64 "-%" PRIu64, span->first_step, span->last_step);
        table_add(table, "%" PRIu64, span->view);
        table_add(table, "%s", text);
    }
    if (table != NULL) {
        table_print(table, out);
        table_close(table);
    }
    if (ledger_check(ledger, &totals, &fault) == INSPAN_OK)
        fprintf(
            out, "%" PRIu64 " steps of %" PRIu64 " samples (seed %" PRIu64 "): every sample exactly once%s\n",
            totals.steps, ledger->batch, ledger->seed, totals.dropped > 0 ? ", or recorded as dropped" : "");
    else
        fprintf(out, "NOT EXACT: %s\n", fault.text);
}
