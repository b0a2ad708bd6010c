/* Leaving by wish, and on_loss: drop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_rig_test.h"

/* ---- leaving ---- */

static void a_leaver_goes_at_the_next_commit(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, 2, 50);
    rig_run_to(rig, 1);
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 0);
    assert_int_equal(set_count(elastic_contribution(rig_member(rig, 1))), 2); /* it finishes its leases */
    rig_run_to(rig, 2);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 1);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LEAVING);
    assert_int_equal(elastic_full_set(rig_member(rig, 0)), 5);
    rig_run_to(rig, 4); /* it votes on, with zeros, for as long as it is there */
    assert_true(set_empty(elastic_contribution(rig_member(rig, 1))));
    rig_view(rig, false, NUMBERS(0, 2));
    rig_deliver(rig);
    for (uint32_t i = 0; i < 3; i += 2)
        assert_int_equal(set_count(elastic_contribution(rig_member(rig, i))), 3); /* no lease is done again */
    rig_run_to(rig, 5);
    rig_close(rig);
}

static void the_leader_can_leave_and_the_last_full_one_cannot(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 6, 2, 50);
    rig_ok(rig, 0, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_run_to(rig, 3);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_LEFT) + rig_count(rig, 1, ELASTIC_DO_LEFT), 1);
    assert_int_equal(elastic_role(rig_member(rig, 0)), ELASTIC_FULL); /* the lowest is kept */
    rig_join(rig, 2, true);
    rig_view(rig, false, NUMBERS(0, 2));
    rig_run_to(rig, 5); /* with another full one, it may go */
    assert_int_equal(elastic_role(rig_member(rig, 2)), ELASTIC_FULL);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_LEFT), 1);
    rig_close(rig);
}

/* The wish is not lost with the leader that heard it, nor with a view; a newcomer may go without becoming
 * full. */
static void a_wish_to_leave_outlives_the_view(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, 3, 50);
    rig_ok(rig, 2, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_join(rig, 3, true);
    rig_ok(rig, 3, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    assert_int_equal(rig_count(rig, 3, ELASTIC_DO_LEFT), 1);
    rig_join(rig, 4, true);
    rig_view(rig, false, NUMBERS(1, 2, 4));
    rig_ok(rig, 4, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    assert_int_equal(rig_count(rig, 4, ELASTIC_DO_LEFT), 0);
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 4, ELASTIC_DO_LEFT), 1);
    rig_run_to(rig, 1);
    assert_int_equal(rig_count(rig, 2, ELASTIC_DO_LEFT), 1);
    rig_run_to(rig, 4);
    assert_int_equal(elastic_role(rig_member(rig, 4)), ELASTIC_LISTENER);
    rig_close(rig);
}

/* Wished after the report and before the decision: told with the step that goes on. */
static void a_wish_during_a_reconcile_is_told(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 6, 2, 50);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_ok(rig, 0, (elastic_event_t){.type = ELASTIC_EV_BROKEN, .view = 2});
    rig_view(rig, false, NUMBERS(0, 1));
    rig_run_to(rig, 1);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LEAVING);
    rig_close(rig);

    rig = rig_first(2, 6, 2, 50);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_run_to(rig, 1);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LEAVING);
    rig_close(rig);
}

/* G4: where only leavers are left they are full again, until another one is; LEFT is said in each view (G3).
 */
static void leavers_come_back_where_nobody_else_is_full(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, 2, 50);
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
    rig_run_to(rig, 1);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 1);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 2);
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(1, 3));
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_STUCK), 0);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 2);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_FULL), 1);
    assert_set(elastic_contribution(rig_member(rig, 1)), 0x3f);
    rig_run_to(rig, 2);
    assert_int_equal(elastic_role(rig_member(rig, 3)), ELASTIC_FULL);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LEAVING);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_LEFT), 3);
    rig_close(rig);
}

/* ---- drop ---- */

static rig_t *two_of_three_with_drop(uint64_t steps)
{
    rig_t *rig = rig_open(9, 3, steps);
    rig->config.drop = true;
    for (uint32_t i = 0; i < 3; i++) rig_join(rig, i, false);
    rig_view(rig, true, NUMBERS(0, 1, 2));
    return rig;
}

/* The lost one's leases are recorded as dropped, survivors' are granted again; nothing that counts others is
 * salvaged. */
static void drop_leaves_out_the_lost_leases_alone(void **state)
{
    (void)state;
    rig_t *rig = two_of_three_with_drop(50);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    rig_reduced(rig, 0, 0);
    rig_run_to(rig, 1);
    rig_compute(rig, 0); /* 1 has not begun, 2 is lost in the middle */
    rig_ok(rig, 2, computed(6, 1));
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    for (uint32_t i = 0; i < 2; i++) {
        assert_set(elastic_dropped(rig_member(rig, i)), 7u << 6);
        assert_set(elastic_expected(rig_member(rig, i)), 0x3f);
    }
    assert_set(set_or(elastic_contribution(rig_member(rig, 0)), elastic_contribution(rig_member(rig, 1))),
               0x3f);
    rig_run_to(rig, 2);
    assert_set(elastic_dropped(rig_member(rig, 0)), 0);
    rig_close(rig);
}

/* D1: where a bucket is held, it counts the lost leases already: they are granted again. D2: dropped is
 * dropped. */
static void drop_does_not_drop_what_a_held_bucket_counts(void **state)
{
    (void)state;
    rig_t *rig = two_of_three_with_drop(50);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    for (uint32_t b = 0; b < 3; b++) rig_reduced(rig, 0, b);
    rig_view(rig, false, NUMBERS(0, 1)); /* every bucket is held */
    rig_deliver(rig);
    assert_set(elastic_dropped(rig_member(rig, 0)), 0);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_PASS), 3);
    rig_close(rig);

    rig = two_of_three_with_drop(50);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    rig_reduced(rig, 0, 0);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_PASS), 1);
    assert_set(elastic_dropped(rig_member(rig, 0)), 0);
    rig_run_to(rig, 1);
    rig_compute(rig, 0); /* of the next step nothing is held when 1 is lost */
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(0, 3));
    rig_deliver(rig);
    elastic_set_t dropped = elastic_dropped(rig_member(rig, 0));
    assert_false(set_empty(dropped));
    for (uint32_t i = 0; i < 2; i++) {
        rig_view(rig, false, NUMBERS(0, 3));
        rig_deliver(rig);
        assert_true(set_equal(elastic_dropped(rig_member(rig, 0)), dropped));
        assert_true(set_equal(elastic_dropped(rig_member(rig, 3)), dropped));
        rig_compute(rig, 0);
        rig_compute(rig, 3);
        rig_reduced(rig, 3, i);
    }
    rig_run_to(rig, 2);
    rig_close(rig);
}

/* With nothing left to count, and in light steps, the lost leases are granted again. */
static void drop_never_drops_a_whole_step_or_a_light_one(void **state)
{
    (void)state;
    rig_t *rig = rig_open(1, 2, 50);
    rig->config.drop = true;
    rig_join(rig, 0, false);
    rig_join(rig, 1, false);
    rig_view(rig, true, NUMBERS(0, 1));
    assert_int_equal(elastic_owner(rig_member(rig, 0), 0), 1);
    rig_view(rig, false, NUMBERS(0)); /* the only lease is lost */
    assert_set(elastic_dropped(rig_member(rig, 0)), 0);
    assert_set(elastic_contribution(rig_member(rig, 0)), 1);
    rig_run_to(rig, 1);
    rig_close(rig);

    rig = two_of_three_with_drop(1);
    rig_run_to(rig, 1);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    assert_set(elastic_dropped(rig_member(rig, 0)), 0);
    rig_run_to(rig, 3);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leaver_goes_at_the_next_commit),
        cmocka_unit_test(the_leader_can_leave_and_the_last_full_one_cannot),
        cmocka_unit_test(a_wish_to_leave_outlives_the_view),
        cmocka_unit_test(a_wish_during_a_reconcile_is_told),
        cmocka_unit_test(leavers_come_back_where_nobody_else_is_full),
        cmocka_unit_test(drop_leaves_out_the_lost_leases_alone),
        cmocka_unit_test(drop_does_not_drop_what_a_held_bucket_counts),
        cmocka_unit_test(drop_never_drops_a_whole_step_or_a_light_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
