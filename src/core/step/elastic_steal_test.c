/* Reserves, claims, grants and steals: L1, L3, and that everyone comes to LAST. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_rig_test.h"

/* ---- a policy that a test dictates ---- */

static struct {
    uint32_t share[RIG_MEMBERS]; /* all 0: equal */
    uint32_t from, n;            /* of the next steals */
    uint32_t splits, asked, to;
    elastic_pace_t pace[RIG_MEMBERS];
    elastic_progress_of_t members[RIG_MEMBERS];
    uint32_t before[RIG_MEMBERS];
    int64_t now, opened_at;
} told;

static void split(void *context, uint32_t leases, uint64_t full, uint32_t n, const elastic_pace_t *pace,
                  uint32_t *share)
{
    (void)context;
    told.splits++;
    memcpy(told.before, share, n * sizeof *share);
    memcpy(told.pace, pace, n * sizeof *pace);
    uint32_t members = (uint32_t)__builtin_popcountll(full), sum = 0, given = 0;
    for (uint32_t i = 0; i < n; i++) sum += told.share[i];
    for (uint32_t i = 0; i < n; i++) share[i] = told.share[i];
    for (uint32_t i = 0, k = 0; i < n && (sum == 0 || leases != sum); i++) {
        share[i] = in(full, i) ? leases * ++k / members - given : 0;
        given += share[i];
    }
}

static void split_as_told(void *context, uint32_t leases, uint64_t full, uint32_t n,
                          const elastic_pace_t *pace, uint32_t *share)
{
    (void)context, (void)leases, (void)full, (void)pace;
    memcpy(share, told.share, n * sizeof *share);
}

static uint32_t steal(void *context, int64_t now, int64_t opened_at, uint32_t n,
                      const elastic_progress_of_t *members, uint32_t to, uint32_t *from)
{
    (void)context;
    told.asked++;
    told.to = to;
    told.now = now;
    told.opened_at = opened_at;
    memcpy(told.members, members, n * sizeof *members);
    *from = told.from;
    uint32_t leases = told.n;
    told.n = 0;
    return leases;
}

static void set_pace(rig_t *rig, uint32_t number, uint32_t run, uint32_t last)
{
    elastic_pace_t pace = {
        .lease_ns = 1000 + number, .step_ns = 7, .run = run, .last = last, .most = ELASTIC_LEASES_MAX};
    elastic_set_pace(rig_member(rig, number), &pace);
}

/* Members 0 .. n - 1, at work on step 1, all with runs of `run` and a last one of `last`. */
static rig_t *unequal(uint32_t n, uint32_t leases, uint32_t run, uint32_t last, const uint32_t *share)
{
    uint32_t numbers[RIG_MEMBERS] = {0};
    memset(&told, 0, sizeof told);
    rig_t *rig = rig_open(leases, 2, 50);
    rig->config.policy = (elastic_policy_t){split, steal, NULL};
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = i;
        rig_join(rig, i, false);
        set_pace(rig, i, run, last);
    }
    rig_view(rig, true, n, numbers);
    if (share) memcpy(told.share, share, n * sizeof *share);
    rig_run_to(rig, 1);
    return rig;
}

static void begin(rig_t *rig, uint32_t number, uint32_t lease, uint32_t n)
{
    rig_ok(rig, number, (elastic_event_t){.type = ELASTIC_EV_BEGIN, .lease = lease, .n = n});
}

/* Of a table of 30: its first runs, each asking for more. */
static void rank_1_computes_six(rig_t *rig)
{
    begin(rig, 1, 10, 4);
    rig_deliver(rig);
    rig_ok(rig, 1, computed(10, 4));
    begin(rig, 1, 14, 2);
    rig_deliver(rig);
    rig_ok(rig, 1, computed(14, 2));
}

/* What it may compute next; run 0: nothing. */
static void assert_next(rig_t *rig, uint32_t number, uint32_t lease, uint32_t run, bool is_last)
{
    uint32_t first, n;
    bool last;
    elastic_grant(rig_member(rig, number), ELASTIC_LEASES_MAX, &first, &n, &last);
    assert_int_equal(n, run);
    assert_int_equal(last, is_last);
    if (run > 0) assert_int_equal(first, lease);
}

/* ---- the table ---- */

static void the_table_grants_two_runs_and_reserves_the_rest(void **state)
{
    (void)state;
    rig_t *rig = unequal(2, 24, 2, 3, (uint32_t[]){20, 4});
    assert_int_equal(told.splits, 3); /* both for the first view, the leader for step 1 */
    assert_true(told.pace[1].lease_ns == 1001 && told.pace[1].step_ns == 7 && told.pace[1].last == 3);
    assert_true(told.before[0] == 12 && told.before[1] == 12);
    assert_set(elastic_contribution(rig_member(rig, 0)), 0xf);
    assert_set(elastic_contribution(rig_member(rig, 1)), 1u << 20); /* the last three come with LAST */
    assert_next(rig, 0, 0, 4, false);
    assert_next(rig, 1, 20, 1, false);
    assert_int_equal(elastic_owner(rig_member(rig, 1), 10), 0); /* reserved */
    assert_int_equal(elastic_pace_of(rig_member(rig, 0), 1).lease_ns, 1001);
    rig_run_to(rig, 3);
    rig_close(rig);
    rig = unequal(2, 24, 4, 4, (uint32_t[]){20, 4}); /* one run alone: sealed by the table */
    assert_next(rig, 1, 20, 4, true);
    begin(rig, 1, 20, 4);
    assert_int_equal(rig->n_queue, 0);
    rig_run_to(rig, 3);
    rig_close(rig);
}

/* As before there was a policy: without one, with one full member, in light steps. */
static void nobody_claims_where_nothing_can_be_stolen(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        memset(&told, 0, sizeof told);
        rig_t *rig = rig_open(12, 2, which == 3 ? 0 : 50);
        if (which > 0) rig->config.policy = (elastic_policy_t){split, which == 2 ? NULL : steal, NULL};
        uint32_t n = which == 1 ? 1 : 2;
        for (uint32_t i = 0; i < n; i++) {
            rig_join(rig, i, false);
            set_pace(rig, i, 1, 1);
        }
        rig_view(rig, true, n, (uint32_t[]){0, 1});
        for (uint64_t step = 1; step < 3; step++) rig_run_to(rig, step);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(rig_count(rig, i, ELASTIC_DO_MORE), 0);
            assert_int_equal(rig_count(rig, i, ELASTIC_DO_SEND), n == 1 ? 0 : 2); /* VOTE or COMMIT */
        }
        assert_int_equal(told.asked, 0);
        rig_close(rig);
    }
}

static void a_split_that_does_not_add_up_is_not_taken(void **state)
{
    (void)state;
    static const struct {
        uint32_t share[3], expected[3]; /* of 12 leases, for members 0 and 1; 2 is not full */
    } cases[] = {{{12, 0, 0}, {12, 0, 0}},
                 {{0, 0, 12}, {6, 6, 0}},
                 {{5, 6, 0}, {6, 6, 0}},
                 {{UINT32_MAX, 13, 0}, {6, 6, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig_t *rig = unequal(3, 12, 1, 1, NULL);
        uint32_t share[ELASTIC_MEMBERS_MAX] = {0};
        uint8_t owner[ELASTIC_LEASES_MAX];
        rig_member(rig, 0)->config.policy.split = split_as_told;
        memcpy(told.share, cases[i].share, sizeof cases[i].share);
        elastic_share_out(rig_member(rig, 0), 3, set_first(12), 2, share, owner);
        assert_memory_equal(share, cases[i].expected, sizeof cases[i].expected);
        rig_close(rig);
    }
}

/* ---- claims ---- */

static void each_run_is_claimed_as_the_one_before_begins(void **state)
{
    (void)state;
    rig_t *rig = unequal(2, 22, 3, 2, (uint32_t[]){2, 20});
    assert_next(rig, 0, 0, 2, true); /* its only run: sealed */
    assert_set(elastic_contribution(rig_member(rig, 1)), 0x3f << 2);
    begin(rig, 1, 2, 3);
    assert_int_equal(rig->n_queue, 0); /* another one is granted */
    rig_ok(rig, 1, computed(2, 3));
    begin(rig, 1, 5, 3);
    begin(rig, 1, 5, 3); /* a shell that looked twice */
    assert_int_equal(rig->n_queue, 1);
    rig_deliver(rig); /* the answer is here before the run ends */
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_MORE), 1);
    rig_ok(rig, 1, computed(5, 3));
    assert_next(rig, 1, 8, 3, false);
    begin(rig, 1, 8, 3);
    rig_deliver(rig);
    rig_ok(rig, 1, computed(8, 3));
    assert_next(rig, 1, 11, 3, false);
    rig_ok(rig, 1, computed(11, 3)); /* a shell that says no BEGIN: claims late, but does */
    rig_deliver(rig);
    assert_next(rig, 1, 14, 3, false);
    begin(rig, 1, 14, 3);
    rig_deliver(rig);
    rig_ok(rig, 1, computed(14, 3));
    assert_next(rig, 1, 17, 3, false); /* the last run stays for LAST */
    assert_int_equal(told.asked, 0);   /* plenty left of its own */
    begin(rig, 1, 17, 3);
    rig_deliver(rig);
    assert_true(told.asked == 1 && told.to == 1 && told.members[1].reserved == 2);
    assert_true(told.members[1].granted == 18 && told.members[1].computed == 15 && told.members[0].sealed);
    assert_true(told.members[1].heard_at > told.opened_at);
    assert_true(elastic_sealed(rig_member(rig, 1)));
    rig_ok(rig, 1, computed(17, 3));
    assert_next(rig, 1, 20, 2, true);
    begin(rig, 1, 20, 2);
    assert_int_equal(rig->n_queue, 0);
    rig_run_to(rig, 2);
    assert_int_equal(elastic_stolen(rig_member(rig, 1)), 0);
    rig_close(rig);
}

static void the_leader_claims_from_itself(void **state)
{
    (void)state;
    rig_t *rig = unequal(2, 12, 2, 2, (uint32_t[]){10, 2});
    begin(rig, 0, 0, 4);
    assert_int_equal(rig->n_queue, 0);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_MORE), 1);
    rig_ok(rig, 0, computed(0, 4));
    assert_next(rig, 0, 4, 2, false);
    begin(rig, 0, 4, 2);
    rig_ok(rig, 0, computed(4, 2));
    assert_next(rig, 0, 6, 2, false);
    begin(rig, 0, 6, 2);
    rig_ok(rig, 0, computed(6, 2));
    assert_next(rig, 0, 8, 2, true);
    rig_run_to(rig, 2);
    rig_close(rig);
}

static void buckets_are_not_ready_before_last(void **state)
{
    (void)state;
    rig_t *rig = unequal(2, 12, 2, 2, (uint32_t[]){2, 10});
    elastic_event_t ready = {.type = ELASTIC_EV_READY, .view = 1, .bucket = 0};
    rig_ok(rig, 1, computed(2, 4));
    assert_int_equal(rig_feed(rig, 1, ready), INSPAN_INVALID);
    rig_deliver(rig);
    rig_ok(rig, 1, computed(6, 2));
    rig_deliver(rig);
    rig_ok(rig, 1, computed(8, 2));
    rig_deliver(rig);
    rig_ok(rig, 1, ready); /* in the backward pass of the last one */
    ready.bucket = 1;
    rig_ok(rig, 1, ready);
    rig_ok(rig, 1, computed(10, 2));
    rig_run_to(rig, 2);
    rig_close(rig);
}

/* ---- steals ---- */

static void a_steal_takes_the_tail_of_a_reserve(void **state)
{
    (void)state;
    rig_t *rig = unequal(2, 20, 2, 2, (uint32_t[]){10, 10});
    told.from = 0;
    told.n = 4; /* of the leader's 4 .. 9 */
    rank_1_computes_six(rig);
    assert_int_equal(told.asked, 0);
    begin(rig, 1, 16, 2); /* two left: its last run, so the leader asks */
    rig_deliver(rig);
    assert_int_equal(told.asked, 1);
    rig_ok(rig, 1, computed(16, 2));
    assert_next(rig, 1, 6, 2, false); /* of 6 .. 9, 18 and 19 */
    assert_int_equal(elastic_stolen(rig_member(rig, 1)), 2);
    assert_int_equal(elastic_owner(rig_member(rig, 0), 9), 1);
    begin(rig, 0, 0, 4); /* the victim: two are left, and they are its last */
    rig_ok(rig, 0, computed(0, 4));
    assert_next(rig, 0, 4, 2, true);
    rig_run_to(rig, 2);
    assert_int_equal(elastic_stolen(rig_member(rig, 1)), 4);
    assert_int_equal(elastic_stolen(rig_member(rig, 0)), 0);
    rig_close(rig);
}

/* Its whole reserve went to others: LAST without a lease, and the sums are final as they are. */
static void a_victim_with_nothing_left_gets_last(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 2; victim++) {
        uint32_t thief = 1 - victim, own = victim == 0 ? 0 : 2, its = victim == 0 ? 18 : 0;
        rig_t *rig = unequal(2, 20, 1, 1, victim == 0 ? (uint32_t[]){18, 2} : (uint32_t[]){2, 18});
        told.from = victim;
        told.n = UINT32_MAX; /* more than there is */
        begin(rig, thief, its, 1);
        rig_deliver(rig);
        rig_ok(rig, thief, computed(its, 1));
        begin(rig, victim, own, 2);
        rig_deliver(rig);
        assert_int_equal(rig_count(rig, victim, ELASTIC_DO_MORE), 1);
        rig_ok(rig, victim, computed(own, 2));
        assert_next(rig, victim, 0, 0, true);
        for (uint32_t b = 0; b < 2; b++)
            rig_ok(rig, victim, (elastic_event_t){.type = ELASTIC_EV_READY, .view = rig->view, .bucket = b});
        rig_run_to(rig, 2);
        assert_int_equal(elastic_stolen(rig_member(rig, thief)), 16);
        rig_close(rig);
    }
}

static void what_a_policy_says_is_bounded(void **state)
{
    (void)state;
    static const struct {
        uint32_t from, n, most, moved;
    } cases[] = {{1, 3, 256, 3}, {0, 3, 256, 0}, {2, 3, 256, 0}, {9, 3, 256, 0},
                 {1, 9, 256, 6}, {1, 9, 5, 3},   {1, 9, 1, 0},   {UINT32_MAX, 1, 256, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig_t *rig = unequal(3, 20, 2, 2, (uint32_t[]){2, 10, 8});
        rig_member(rig, 0)->progress[2].pace.most = cases[i].most;
        elastic_t *leader = rig_member(rig, 0);
        memset(&leader->owner[12], 2, 8); /* nothing of its own is left to it but two */
        memset(&leader->owner[12], RESERVED | 2, cases[i].most == 5 ? 2 : 0);
        leader->progress[2].granted = cases[i].most == 5 ? 0 : 8;
        leader->progress[2].reserved = cases[i].most == 5 ? 2 : 0;
        told.from = cases[i].from;
        told.n = cases[i].n;
        elastic_message_t claim = rig_message(rig, ELASTIC_CLAIM, 1);
        assert_int_equal(rig_say(rig, 0, 2, &claim), INSPAN_OK);
        uint32_t moved = 0;
        for (uint32_t lease = 2; lease < 12; lease++) moved += elastic_owner(leader, lease) == 2;
        assert_int_equal(moved, cases[i].moved);
        rig_close(rig);
    }
}

/* ---- views ---- */

/* V1: a claim that crosses a change of the view is void, and so is its answer. */
static void a_claim_does_not_outlive_its_view(void **state)
{
    (void)state;
    rig_t *rig = unequal(3, 30, 2, 2, NULL);
    begin(rig, 1, 10, 4);
    begin(rig, 2, 20, 4);
    elastic_message_t claim = rig_message(rig, ELASTIC_CLAIM, 1), grant = rig_message(rig, ELASTIC_GRANT, 1);
    set_add(&grant.granted, 14);
    rig_ok(rig, 1, computed(10, 4));
    rig_ok(rig, 2, computed(20, 4));
    rig_view(rig, false, NUMBERS(0, 1, 2));
    assert_int_equal(rig_say(rig, 0, 1, &claim), INSPAN_OK);
    assert_int_equal(rig_say(rig, 1, 0, &grant), INSPAN_OK);
    assert_set(elastic_computed(rig_member(rig, 1)), 0xf << 10);
    rig_deliver(rig);
    elastic_set_t all = EMPTY_SET; /* the table of the decision: what nobody computed */
    for (uint32_t i = 0; i < 3; i++) all = set_or(all, elastic_contribution(rig_member(rig, i)));
    assert_true(set_count(all) < 30); /* and some of it is reserved */
    rig_run_to(rig, 3);
    rig_close(rig);
}

/* The leader dies in the middle of it: whoever leads next knows what everyone has. */
static void the_next_leader_goes_on(void **state)
{
    (void)state;
    rig_t *rig = unequal(3, 30, 2, 2, NULL);
    told.from = 2;
    told.n = 3;
    rank_1_computes_six(rig);
    assert_next(rig, 1, 16, 2, false);
    rig_view(rig, false, NUMBERS(1, 2));
    rig_deliver(rig);
    assert_int_equal(elastic_pace_of(rig_member(rig, 1), 1).lease_ns, 1002); /* index 1 is rank 2 now */
    rig_run_to(rig, 4);
    rig_close(rig);
}

/* D1: what was granted to survivors, or reserved for them, is not the lost ones'. */
static void drop_leaves_out_the_lost_ones_share(void **state)
{
    (void)state;
    memset(&told, 0, sizeof told);
    rig_t *rig = rig_open(30, 2, 50);
    rig->config.drop = true;
    rig->config.policy = (elastic_policy_t){split, steal, NULL};
    for (uint32_t i = 0; i < 3; i++) {
        rig_join(rig, i, false);
        set_pace(rig, i, 2, 2);
    }
    rig_view(rig, true, NUMBERS(0, 1, 2));
    rig_run_to(rig, 1);
    told.from = 2;
    told.n = 2;
    rank_1_computes_six(rig); /* then two of its own, and two of 24 .. 29 */
    rig_ok(rig, 1, computed(16, 2));
    rig_deliver(rig);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    elastic_set_t dropped = elastic_dropped(rig_member(rig, 0));
    assert_set(dropped, 0xffull << 20); /* 28 and 29 went to rank 1, which is here */
    rig_run_to(rig, 3);
    rig_close(rig);
}

/* ---- the first view ---- */

static void a_first_view_splits_by_the_paces_it_brings(void **state)
{
    (void)state;
    memset(&told, 0, sizeof told);
    rig_t *rig = rig_open(12, 2, 50);
    rig->config.policy = (elastic_policy_t){split, steal, NULL};
    told.share[0] = 3, told.share[1] = 9;
    elastic_pace_t paces[2] = {{10, 1, 1, 1, ELASTIC_LEASES_MAX}, {5, 1, 2, 999, ELASTIC_LEASES_MAX}};
    rig->n = 2, rig->view = 1, rig->numbers[1] = 1;
    for (uint32_t i = 0; i < 2; i++) {
        rig_join(rig, i, false);
        set_pace(rig, i, 3, 3); /* its own does not count yet: all derive one table */
        rig_ok(rig, i,
               (elastic_event_t){.type = ELASTIC_EV_VIEW,
                                 .view = 1,
                                 .first_view = true,
                                 .numbers = rig->numbers,
                                 .n = 2,
                                 .index = i,
                                 .paces = paces});
        assert_int_equal(told.pace[1].last, ELASTIC_LEASES_MAX); /* within its limits */
    }
    assert_set(elastic_contribution(rig_member(rig, 0)), 3);
    assert_set(elastic_contribution(rig_member(rig, 1)), 0x1ff << 3); /* its last run is all of it */
    assert_memory_equal(rig_member(rig, 0)->owner, rig_member(rig, 1)->owner, 12);
    rig_run_to(rig, 2);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_grants_two_runs_and_reserves_the_rest),
        cmocka_unit_test(nobody_claims_where_nothing_can_be_stolen),
        cmocka_unit_test(a_split_that_does_not_add_up_is_not_taken),
        cmocka_unit_test(each_run_is_claimed_as_the_one_before_begins),
        cmocka_unit_test(the_leader_claims_from_itself),
        cmocka_unit_test(buckets_are_not_ready_before_last),
        cmocka_unit_test(a_steal_takes_the_tail_of_a_reserve),
        cmocka_unit_test(a_victim_with_nothing_left_gets_last),
        cmocka_unit_test(what_a_policy_says_is_bounded),
        cmocka_unit_test(a_claim_does_not_outlive_its_view),
        cmocka_unit_test(the_next_leader_goes_on),
        cmocka_unit_test(drop_leaves_out_the_lost_ones_share),
        cmocka_unit_test(a_first_view_splits_by_the_paces_it_brings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
