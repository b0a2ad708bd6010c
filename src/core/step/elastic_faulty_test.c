/* Members that break the protocol: each message is refused with a text that names who sent it, what was
 * expected and what was found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_rig_test.h"

static void other_settings_are_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t leases, buckets;
        uint64_t layout;
        const char *text;
    } cases[] = {
        {4, 2, 0xabd,
         "rank 7 reports in view 2 the bucket layout 0000000000000abd (2 buckets) of step 0, "
         "rank 3 reports 0000000000000abc (2)"},
        {5, 2, 0xabc, "rank 7 has leases in a step 5, rank 3 has 4"},
        {4, 3, 0xabc, "0000000000000abc (3 buckets) of step 0, rank 3 reports 0000000000000abc (2)"}};
    for (size_t i = 0; i < 3; i++) {
        rig_t *rig = rig_open(4, 2, 9);
        rig_join(rig, 3, false);
        rig_view(rig, true, NUMBERS(3));
        rig_view(rig, false, NUMBERS(3, 7));
        elastic_message_t report = rig_message(rig, ELASTIC_REPORT, 0);
        report.leases = cases[i].leases;
        report.buckets = cases[i].buckets;
        report.layout = cases[i].layout;
        assert_int_equal(rig_say(rig, 3, 7, &report), INSPAN_MISMATCH); /* Y1 */
        assert_non_null(strstr(elastic_error(rig_member(rig, 3))->text, cases[i].text));
        rig_close(rig);
    }
}

/* The hints of a vote are compared, and the odd ones named. */
static void other_weights_are_named(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 3, 2, 9);
    for (uint32_t i = 0; i < 3; i++) {
        elastic_hint(rig_member(rig, i), i == 0 ? 0xbad : 0x900d);
        rig_compute(rig, i);
    }
    for (uint32_t i = 3; i-- > 0;)
        for (uint32_t b = 0; b < 2; b++) rig_reduced(rig, i, b);
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i < 2; i++)
        status = rig_feed(rig, 0,
                          (elastic_event_t){.type = ELASTIC_EV_MESSAGE,
                                            .from = rig->queue[i].from,
                                            .data = rig->queue[i].data,
                                            .bytes = rig->queue[i].bytes});
    assert_int_equal(status, INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 0))->text,
                           "rank 0 has 0000000000000bad, the others 000000000000900d"));
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_COMMIT), 0);
    rig_close(rig);
}

/* What a member may not say while step 0 of view 1 runs; each fails its receiver with a text that names the
 * sender. */
static void messages_out_of_place_fail(void **state)
{
    (void)state;
    static const struct {
        uint32_t to, from;
        elastic_message_type_t type;
        uint64_t step;
        bool complete;
    } cases[] = {
        {0, 1, ELASTIC_REPORT, 0, false}, {1, 0, ELASTIC_REPORT, 0, false}, {1, 0, ELASTIC_DECIDE, 0, false},
        {1, 2, ELASTIC_DECIDE, 0, false}, {1, 0, ELASTIC_COMMIT, 0, false}, {0, 1, ELASTIC_COMMIT, 0, false},
        {1, 2, ELASTIC_COMMIT, 0, false}, {1, 2, ELASTIC_VOTE, 0, false},   {0, 1, ELASTIC_VOTE, 1, false},
        {0, 1, ELASTIC_VOTE, 0, true},    {1, 2, ELASTIC_LEAVE, 0, false},  {0, 1, ELASTIC_CLAIM, 0, false},
        {1, 2, ELASTIC_CLAIM, 0, false},  {0, 1, ELASTIC_CLAIM, 1, false},  {1, 0, ELASTIC_GRANT, 0, false},
        {1, 2, ELASTIC_GRANT, 0, false},  {0, 1, ELASTIC_GRANT, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig_t *rig = rig_first(3, 3, 2, 9);
        elastic_message_t m = rig_message(rig, cases[i].type, cases[i].step);
        m.complete = cases[i].complete;
        inspan_status_t status = rig_say(rig, cases[i].to, cases[i].from, &m);
        assert_int_equal(status, cases[i].complete ? INSPAN_CORRUPT : INSPAN_MISMATCH);
        char name[] = "rank ?";
        name[5] = (char)('0' + cases[i].from);
        assert_non_null(strstr(elastic_error(rig_member(rig, cases[i].to))->text, name));
        assert_int_equal(elastic_phase(rig_member(rig, cases[i].to)), ELASTIC_FAILED);
        rig_close(rig);
    }
}

static void a_second_vote_fails(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 3, 2, 9);
    elastic_message_t vote = rig_message(rig, ELASTIC_VOTE, 0);
    assert_int_equal(rig_say(rig, 0, 1, &vote), INSPAN_OK);
    assert_int_equal(rig_say(rig, 0, 1, &vote), INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 0))->text, "it voted already"));
    rig_close(rig);
}

static void damaged_bytes_fail(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 3, 2, 9);
    uint8_t bytes[40] = {3, 0, 0, 0, 0, 0, 0, 0, 1};
    elastic_event_t event = {.type = ELASTIC_EV_MESSAGE, .from = 1, .data = bytes, .bytes = sizeof bytes};
    assert_int_equal(rig_feed(rig, 0, event), INSPAN_CORRUPT);
    assert_non_null(strstr(elastic_error(rig_member(rig, 0))->text,
                           "rank 1 sent a message that cannot be right: VOTE of 40 bytes, view 1"));
    rig_close(rig);
    rig = rig_first(2, 3, 2, 9);
    elastic_message_t vote = rig_message(rig, ELASTIC_VOTE, 0);
    uint8_t right[ELASTIC_MESSAGE_MAX];
    event = (elastic_event_t){.type = ELASTIC_EV_MESSAGE, .from = 2, .data = right};
    event.bytes = elastic_message_encode(&vote, right);
    assert_int_equal(rig_feed(rig, 0, event), INSPAN_INVALID); /* of nobody: the shell's mistake */
    rig_close(rig);
}

/* Decisions that do not fit what this member reported. */
static void decisions_are_checked(void **state)
{
    (void)state;
    for (int bad = 0; bad < 8; bad++) {
        rig_t *rig = rig_first(2, 4, 3, 9);
        rig_run_to(rig, 1);
        rig_compute(rig, 1);
        rig_compute(rig, 0);
        rig_reduced(rig, 1, 0);
        rig_view(rig, false, NUMBERS(0, 1));
        elastic_message_t m = rig_message(rig, ELASTIC_DECIDE, 1);
        set_add(&m.held, 0);
        m.tag[0] = 1;
        m.source[0] = 1;
        m.need[0] = 1;
        memset(m.owner, NOBODY, sizeof m.owner);
        if (bad == 1) m.step = 0;         /* I4 */
        if (bad == 2) m.step = 2;         /* R1: it does not hold all of step 1 */
        if (bad == 3) m.held = EMPTY_SET; /* R2 */
        if (bad == 4) m.tag[0] = 1, rig_member(rig, 1)->tag[0] = 2, rig_member(rig, 1)->view = 2; /* I1 */
        if (bad == 5) m.owner[2] = 0; /* L1: it has computed that one */
        if (bad == 6) m.full = 1;
        if (bad == 7) m.source[0] = 0, m.need[0] = 2;
        assert_int_equal(rig_say(rig, 1, 0, &m), bad == 0 ? INSPAN_OK : INSPAN_MISMATCH);
        rig_close(rig);
    }
}

/* Reports that no honest members can give together. */
static void reports_are_checked(void **state)
{
    (void)state;
    for (int bad = 0; bad < 6; bad++) {
        rig_t *rig = rig_first(2, 4, 3, 9);
        rig_compute(rig, 0);
        rig_reduced(rig, 0, 0);
        rig_view(rig, false, NUMBERS(0, 1));
        elastic_message_t m = rig_message(rig, ELASTIC_REPORT, 0);
        set_add(&m.computed, 2);
        set_add(&m.held, 0);
        m.tag[0] = 1;
        if (bad == 1) m.step = 2;
        if (bad == 2) m.step = 1;              /* it committed step 0, of which rank 0 does not hold all */
        if (bad == 3) set_add(&m.computed, 0); /* I2 */
        if (bad == 4) rig_member(rig, 0)->reports[0].tag[0] = 2; /* I1 */
        if (bad == 5) m.step = 12;
        assert_int_equal(rig_say(rig, 0, 1, &m), bad == 0 ? INSPAN_OK : INSPAN_MISMATCH);
        if (bad == 0) assert_int_equal(rig_say(rig, 0, 1, &m), INSPAN_MISMATCH); /* twice */
        rig_close(rig);
    }
}

/* ---- claims and grants ---- */

static uint32_t never(void *context, int64_t now, int64_t opened_at, uint32_t n,
                      const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    (void)context, (void)now, (void)opened_at, (void)n, (void)members, (void)to, (void)from;
    return 0;
}

static void leave_it(void *context, uint32_t leases, uint64_t full, uint32_t n, const elastic_pace_t *pace,
                     uint32_t *share)
{
    (void)context, (void)leases, (void)full, (void)n, (void)pace, (void)share; /* equal shares are taken */
}

/* Members 0 to 2 of 10 leases each at work on step 1: four granted, six reserved. */
static rig_t *with_reserves(void)
{
    rig_t *rig = rig_open(30, 2, 50);
    rig->config.policy = (elastic_policy_t){leave_it, never, NULL};
    for (uint32_t i = 0; i < 3; i++) {
        rig_join(rig, i, false);
        elastic_set_pace(rig_member(rig, i),
                         &(elastic_pace_t){.run = 2, .last = 2, .most = ELASTIC_LEASES_MAX});
    }
    rig_view(rig, true, NUMBERS(0, 1, 2));
    rig_run_to(rig, 1);
    return rig;
}

static void claims_are_checked(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "CLAIM for step 0",
                                        "not the leader",
                                        "it is not full",
                                        "computed 5 leases of the 4",
                                        "it has its last lease"};
    for (int bad = 0; bad < 6; bad++) {
        rig_t *rig = with_reserves();
        elastic_message_t m = rig_message(rig, ELASTIC_CLAIM, bad == 1 ? 0 : 1);
        uint32_t to = bad == 2 ? 2 : 0;
        if (bad == 3) rig_member(rig, 0)->progress[1].full = false;
        if (bad == 4) m.done = 5;
        for (int i = 0; i < 3 && bad == 5; i++) assert_int_equal(rig_say(rig, 0, 1, &m), INSPAN_OK);
        assert_int_equal(rig_say(rig, to, 1, &m), bad == 0 ? INSPAN_OK : INSPAN_MISMATCH);
        if (bad > 0) assert_non_null(strstr(elastic_error(rig_member(rig, to))->text, texts[bad]));
        if (bad > 0) assert_non_null(strstr(elastic_error(rig_member(rig, to))->text, "rank 1"));
        rig_close(rig);
    }
}

static void grants_are_checked(void **state)
{
    (void)state;
    static const struct {
        uint32_t lease, from; /* lease 99: none */
        uint64_t step;
        bool claimed, last;
        const char *text; /* NULL: right */
    } cases[] = {{14, 0, 1, true, false, NULL},
                 {26, 0, 1, true, true, NULL}, /* another's reserve: stolen */
                 {99, 0, 1, true, true, NULL},
                 {99, 0, 1, true, false, "it gives nothing"},
                 {14, 0, 1, false, false, "nothing is claimed"},
                 {14, 0, 2, true, false, "GRANT for step 2"},
                 {14, 2, 1, true, false, "not from the leader"},
                 {10, 0, 1, true, false, "granted lease 10"}, /* it has that one */
                 {20, 0, 1, true, true, "granted lease 20"},  /* the table granted it to another */
                 {31, 0, 1, true, true, "granted lease 31"}}; /* there is none */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig_t *rig = with_reserves();
        elastic_message_t m = rig_message(rig, ELASTIC_GRANT, cases[i].step);
        if (cases[i].lease < 99) set_add(&m.granted, cases[i].lease);
        m.last = cases[i].last;
        if (cases[i].claimed)
            rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_BEGIN, .lease = 10, .n = 4});
        assert_int_equal(rig_say(rig, 1, cases[i].from, &m), cases[i].text ? INSPAN_MISMATCH : INSPAN_OK);
        const char *text = elastic_error(rig_member(rig, 1))->text;
        if (cases[i].text && !strstr(text, cases[i].text)) fail_msg("%s: %s", cases[i].text, text);
        if (!cases[i].text && !cases[i].last) /* the same again */
            assert_int_equal(rig_say(rig, 1, 0, &m), INSPAN_MISMATCH);
        rig_close(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_settings_are_named),   cmocka_unit_test(other_weights_are_named),
        cmocka_unit_test(messages_out_of_place_fail), cmocka_unit_test(a_second_vote_fails),
        cmocka_unit_test(damaged_bytes_fail),         cmocka_unit_test(decisions_are_checked),
        cmocka_unit_test(reports_are_checked),        cmocka_unit_test(claims_are_checked),
        cmocka_unit_test(grants_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
