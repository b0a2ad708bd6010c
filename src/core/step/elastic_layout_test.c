/* How parameters lie in buckets changes between two steps: Y1 and Y2 of docs/step-protocol.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_rig_test.h"

static const elastic_layout_t FIRST = {0xabc, 3}, FEW = {0xf, 2}, MANY = {0xa, 6};

static void know(rig_t *rig, uint32_t first, uint32_t last, elastic_layout_t layout)
{
    for (uint32_t i = first; i <= last; i++) elastic_know_layout(rig_member(rig, i), &layout);
}

static void assert_layout(rig_t *rig, uint32_t first, uint32_t last, elastic_layout_t layout)
{
    for (uint32_t i = first; i <= last; i++) {
        const elastic_layout_t found = elastic_layout_of_step(rig_member(rig, i));
        assert_int_equal(found.hash, layout.hash);
        assert_int_equal(found.buckets, layout.buckets);
    }
}

static void it_changes_once_all_know_it(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, FIRST.buckets, 12);
    elastic_set_layout(rig_member(rig, 0), MANY.hash); /* known to nobody */
    rig_run_to(rig, 1);
    know(rig, 0, 1, MANY);
    elastic_set_layout(rig_member(rig, 1), MANY.hash); /* it does not lead */
    rig_run_to(rig, 2);
    elastic_set_layout(rig_member(rig, 0), MANY.hash);
    rig_run_to(rig, 3);
    assert_layout(rig, 0, 2, FIRST); /* rank 2 does not know it yet */
    know(rig, 2, 2, MANY);
    rig_run_to(rig, 4);
    assert_layout(rig, 0, 2, MANY);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(rig_count(rig, i, ELASTIC_DO_LAYOUT), 1);
    rig_run_to(rig, 5); /* six buckets are reduced */
    know(rig, 0, 2, FEW);
    elastic_set_layout(rig_member(rig, 0), FEW.hash);
    rig_run_to(rig, 6);
    assert_layout(rig, 0, 2, FEW);
    rig_run_to(rig, 12);
    rig_close(rig);
}

static void counts_beyond_the_limits_are_not_known(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 2, FIRST.buckets, 9);
    const elastic_layout_t none = {1, 0}, many = {2, ELASTIC_BUCKETS_MAX + 1};
    know(rig, 0, 0, none);
    elastic_set_layout(rig_member(rig, 0), none.hash);
    rig_run_to(rig, 1);
    know(rig, 0, 0, many);
    elastic_set_layout(rig_member(rig, 0), many.hash);
    rig_run_to(rig, 2);
    assert_layout(rig, 0, 0, FIRST);
    rig_close(rig);
}

/* Its chunks are those of the first layout, whatever the present one. */
static void a_newcomer_takes_up_the_present_one(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 6, FIRST.buckets, 20);
    know(rig, 0, 0, MANY);
    elastic_set_layout(rig_member(rig, 0), MANY.hash);
    rig_run_to(rig, 1);
    assert_layout(rig, 0, 0, MANY);
    rig_join(rig, 1, true);
    know(rig, 1, 1, MANY); /* by its shell, before DECIDE */
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    assert_layout(rig, 0, 1, MANY);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LAYOUT), 1);
    know(rig, 0, 1, FEW);
    elastic_set_layout(rig_member(rig, 0), FEW.hash); /* while it still listens */
    rig_run_to(rig, 2);
    assert_layout(rig, 0, 1, FEW);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LISTENER);
    rig_run_to(rig, 3);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_FULL);
    rig_close(rig);
}

/* All have voted; the leader has committed and told only rank 1 before it died. */
static void it_outlives_the_leader_that_changed_it(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, FIRST.buckets, 12);
    know(rig, 0, 2, MANY);
    elastic_set_layout(rig_member(rig, 0), MANY.hash);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    for (uint32_t b = 0; b < FIRST.buckets; b++)
        for (uint32_t i = 3; i-- > 0;) rig_reduced(rig, i, b);
    while (elastic_step(rig_member(rig, 1)) == 0) { /* one message after the other */
        const uint32_t n = rig->n_queue;
        assert_true(n > 0);
        if (rig->queue[0].to != 2)
            rig_ok(rig, rig->queue[0].to,
                   (elastic_event_t){.type = ELASTIC_EV_MESSAGE,
                                     .from = rig->queue[0].from,
                                     .data = rig->queue[0].data,
                                     .bytes = rig->queue[0].bytes});
        memmove(&rig->queue[0], &rig->queue[1], (rig->n_queue - 1) * sizeof rig->queue[0]);
        rig->n_queue--;
    }
    rig->n_queue = 0;
    assert_layout(rig, 1, 1, MANY);
    assert_layout(rig, 2, 2, FIRST);
    rig_view(rig, false, NUMBERS(1, 2));
    rig_deliver(rig);
    assert_int_equal(elastic_step(rig_member(rig, 2)), 1);
    assert_layout(rig, 1, 2, MANY);
    rig_run_to(rig, 12);
    rig_close(rig);
}

/* Nobody has committed: what the dead leader wished is void. */
static void it_goes_with_its_leader_before_a_commit(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, FIRST.buckets, 12);
    know(rig, 0, 2, MANY);
    elastic_set_layout(rig_member(rig, 0), MANY.hash);
    rig_compute(rig, 1);
    rig_view(rig, false, NUMBERS(1, 2));
    rig_run_to(rig, 3);
    assert_layout(rig, 1, 2, FIRST);
    rig_close(rig);
}

static void an_unknown_one_is_refused(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 1, 4);
    rig_compute(rig, 1);
    rig_reduced(rig, 1, 0);
    elastic_message_t commit = rig_message(rig, ELASTIC_COMMIT, 0);
    commit.owner[0] = 0, commit.owner[1] = 1;
    commit.layout = 0xbad;
    assert_int_equal(rig_say(rig, 1, 0, &commit), INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 1))->text,
                           "rank 0 has the bucket layout 0000000000000bad, rank 1 has 0000000000000abc"));
    rig_close(rig);
}

static void a_step_keeps_its_own(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 2, 4);
    know(rig, 1, 1, MANY);
    rig_view(rig, false, NUMBERS(0, 1));
    elastic_message_t decide = rig_message(rig, ELASTIC_DECIDE, 0);
    decide.layout = MANY.hash;
    decide.buckets = MANY.buckets;
    assert_int_equal(rig_say(rig, 1, 0, &decide), INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 1))->text, "another bucket layout"));
    rig_close(rig);
}

static void a_chunk_beyond_the_last_is_refused(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 3, 4);
    rig_view(rig, false, NUMBERS(0, 1));
    elastic_message_t decide = rig_message(rig, ELASTIC_DECIDE, 0);
    decide.plan[0] = 2;
    assert_int_equal(rig_say(rig, 1, 0, &decide), INSPAN_CORRUPT);
    assert_non_null(strstr(elastic_error(rig_member(rig, 1))->text, "a chunk of weights that is none of 2"));
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_changes_once_all_know_it),
        cmocka_unit_test(counts_beyond_the_limits_are_not_known),
        cmocka_unit_test(a_newcomer_takes_up_the_present_one),
        cmocka_unit_test(it_outlives_the_leader_that_changed_it),
        cmocka_unit_test(it_goes_with_its_leader_before_a_commit),
        cmocka_unit_test(an_unknown_one_is_refused),
        cmocka_unit_test(a_step_keeps_its_own),
        cmocka_unit_test(a_chunk_beyond_the_last_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
