/* Is a ledger exact? And what chaos makes of what it saw. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chaos.h"
#include "cli/ledger.h"

#define SHARES_MAX 4
#define SPANS_MAX  3

typedef struct row { /* one share of one span; n 0 ends the span's */
    int32_t rank;
    uint64_t first, n;
} row_t;

typedef struct world {
    ledger_t ledger;
    Inspan__V1__LedgerSpan spans[SPANS_MAX];
    Inspan__V1__LedgerShare shares[SPANS_MAX][SHARES_MAX];
    Inspan__V1__LedgerShare *pointers[SPANS_MAX][SHARES_MAX];
} world_t;

static void add(world_t *world, uint64_t first, uint64_t last, const row_t *rows)
{
    const size_t i = world->ledger.spans.n;
    Inspan__V1__LedgerSpan *span = &world->spans[i];
    inspan__v1__ledger_span__init(span);
    span->first_step = first;
    span->last_step = last;
    span->view = i + 1;
    span->shares = world->pointers[i];
    for (; rows[span->n_shares].n > 0; span->n_shares++) {
        Inspan__V1__LedgerShare *share = &world->shares[i][span->n_shares];
        inspan__v1__ledger_share__init(share);
        share->rank = rows[span->n_shares].rank;
        share->first = rows[span->n_shares].first;
        share->n = rows[span->n_shares].n;
        world->pointers[i][span->n_shares] = share;
    }
    assert_true(VEC_PUSH(&world->ledger.spans, span));
}

static inspan_status_t check(world_t *world, ledger_totals_t *totals, inspan_error_t *err)
{
    world->ledger.batch = 8;
    inspan_status_t status = ledger_check(&world->ledger, totals, err);
    json_t *json = ledger_json(&world->ledger);
    assert_int_equal(json_get_bool(json, "exact", false), status == INSPAN_OK);
    json_free(json);
    ledger_free(&world->ledger);
    return status;
}

static void test_exact(void **state)
{
    (void)state;
    world_t world = {0};
    inspan_error_t err = {0};
    ledger_totals_t totals;
    add(&world, 0, 9, (row_t[]){{1, 4, 4}, {0, 0, 4}, {0}}); /* in any order */
    add(&world, 10, 10, (row_t[]){{0, 0, 4}, {-1, 4, 4}, {0}});
    assert_int_equal(check(&world, &totals, &err), INSPAN_OK);
    assert_int_equal(totals.steps, 11);
    assert_int_equal(totals.samples, 10 * 8 + 4);
    assert_int_equal(totals.dropped, 4);
}

static void refuse(uint64_t second_first, const row_t *rows, const char *words)
{
    world_t world = {0};
    inspan_error_t err = {0};
    ledger_totals_t totals;
    add(&world, 0, 9, (row_t[]){{0, 0, 8}, {0}});
    add(&world, second_first, 12, rows);
    assert_int_equal(check(&world, &totals, &err), INSPAN_MISMATCH);
    if (strstr(err.text, words) == NULL) fail_msg("%s", err.text);
}

static void test_faults(void **state)
{
    (void)state;
    refuse(11, (row_t[]){{0, 0, 8}, {0}}, "step 10 was expected");
    refuse(9, (row_t[]){{0, 0, 8}, {0}}, "step 10 was expected");
    refuse(10, (row_t[]){{0, 0, 5}, {1, 4, 4}, {0}}, "sample 4 of 8 is there more than once");
    refuse(10, (row_t[]){{0, 0, 3}, {1, 4, 4}, {0}}, "sample 3 of 8 is there not once");
    refuse(10, (row_t[]){{0, 0, 4}, {0}}, "4 of 8 samples are there");
    refuse(10, (row_t[]){{0, 0, 4}, {1, 4, UINT64_MAX}, {0}}, "step 10");
}

static void test_kinds(void **state)
{
    (void)state;
    uint32_t kinds = 0;
    inspan_error_t err = {0};
    assert_int_equal(chaos_parse_kinds(NULL, &kinds, &err), INSPAN_OK);
    assert_int_equal(kinds, (1u << CHAOS_KINDS) - 1);
    assert_int_equal(chaos_parse_kinds("freeze,worker", &kinds, &err), INSPAN_OK);
    assert_int_equal(kinds, 1u << CHAOS_FREEZE | 1u << CHAOS_WORKER);
    assert_int_equal(chaos_parse_kinds("freeze,wrk", &kinds, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "\"wrk\""));
    assert_int_equal(chaos_parse_kinds("", &kinds, &err), INSPAN_INVALID);
}

static void test_goodput(void **state)
{
    (void)state;
    chaos_report_t report = {
        .quiet = 10 * NS_PER_S, .quiet_steps = 100, .length = 20 * NS_PER_S, .steps = 150};
    chaos_fault_t fault = {
        .kind = CHAOS_FREEZE, .at = NS_PER_S, .known = 5 * NS_PER_S, .committed = 6 * NS_PER_S};
    assert_true(VEC_PUSH(&report.faults, fault));
    assert_true(fabs(chaos_goodput(&report, false) - 0.75) < 1e-9);
    assert_true(fabs(chaos_goodput(&report, true) - 150.0 / 160) < 1e-9);
    json_t *json = chaos_json(&report);
    const json_t *freeze = json_get(json_get(json, "kinds"), "freeze");
    assert_true(fabs(json_get_number(freeze, "detected_worst_s", 0) - 4) < 1e-9);
    assert_true(fabs(json_get_number(freeze, "committed_median_s", 0) - 1) < 1e-9);
    json_free(json);
    vec_free(&report.faults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_kinds), cmocka_unit_test(test_goodput)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
