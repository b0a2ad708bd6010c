/* The rules of the elastic step one by one; the name of each rule is in its test's comment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_rig_test.h"

static elastic_event_t ready(uint64_t view, uint32_t bucket)
{
    return (elastic_event_t){.type = ELASTIC_EV_READY, .view = view, .bucket = bucket};
}

static elastic_event_t reduced(uint64_t view, uint32_t bucket)
{
    return (elastic_event_t){.type = ELASTIC_EV_REDUCED, .view = view, .bucket = bucket};
}

/* ---- the plain step ---- */

static void first_view_grants_the_table_to_all(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 7, 3, 4);
    elastic_set_t all = EMPTY_SET;
    for (uint32_t i = 0; i < 3; i++) {
        elastic_t *e = rig_member(rig, i);
        assert_int_equal(elastic_phase(e), ELASTIC_RUN);
        assert_int_equal(elastic_full_set(e), 7);
        assert_int_equal(rig_count(rig, i, ELASTIC_DO_WORK), 1);
        assert_int_equal(elastic_is_leader(e), i == 0);
        assert_true(set_empty(set_and(all, elastic_contribution(e))));
        all = set_or(all, elastic_contribution(e));
    }
    assert_set(all, 0x7f);
    uint32_t first, n;
    bool last;
    elastic_grant(rig_member(rig, 2), 2, &first, &n, &last);
    assert_true(first == 4 && n == 2 && !last);
    elastic_grant(rig_member(rig, 2), 9, &first, &n, &last);
    assert_true(first == 4 && n == 3 && last);
    assert_int_equal(elastic_owner(rig_member(rig, 0), 6), 2);
    assert_int_equal(elastic_owner(rig_member(rig, 0), 7), ELASTIC_MEMBERS_MAX);
    rig_close(rig);
}

/* C1: nobody commits before the leader has every vote; it tells all before it commits. */
static void a_commit_needs_every_vote(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 3, 2, 4);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t b = 0; b < 2 && i != 1; b++) rig_reduced(rig, i, b);
    rig_deliver(rig);
    assert_true(elastic_voted(rig_member(rig, 0)) && elastic_voted(rig_member(rig, 2)));
    rig_reduced(rig, 1, 0);
    rig_deliver(rig);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(rig_count(rig, i, ELASTIC_DO_COMMIT), 0);
    rig_reduced(rig, 1, 1);
    rig_deliver(rig);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rig_count(rig, i, ELASTIC_DO_COMMIT), 1);
        assert_int_equal(elastic_step(rig_member(rig, i)), 1);
        assert_false(elastic_held(rig_member(rig, i), 0, NULL));
    }
    rig_close(rig);
}

/* L3: in one order everywhere, whatever order buckets become ready in; with no lease, too. */
static void reductions_start_in_one_order(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 1, 3, 4);
    uint32_t idle = elastic_owner(rig_member(rig, 0), 0) == 0 ? 1 : 0, first, n;
    bool last;
    elastic_grant(rig_member(rig, idle), 9, &first, &n, &last);
    assert_true(n == 0 && last);
    rig_ok(rig, idle, ready(1, 2));
    rig_ok(rig, idle, ready(1, 1));
    assert_int_equal(rig_count(rig, idle, ELASTIC_DO_REDUCE), 0);
    rig_ok(rig, idle, ready(1, 0));
    assert_int_equal(rig_count(rig, idle, ELASTIC_DO_REDUCE), 3);
    for (uint32_t b = 0; b < 3; b++) assert_int_equal(rig->done[rig->n_done - 3 + b].action.bucket, b);
    rig_close(rig);
}

/* L1: only what this view granted, once; and nothing is ready before the last run. */
static void what_was_not_granted_is_refused(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 6, 2, 4);
    assert_int_equal(rig_feed(rig, 0, computed(3, 1)), INSPAN_INVALID); /* the other's */
    assert_int_equal(rig_feed(rig, 0, computed(2, 2)), INSPAN_INVALID);
    assert_int_equal(rig_feed(rig, 0, computed(5, UINT32_MAX)), INSPAN_INVALID);
    assert_int_equal(rig_feed(rig, 0, computed(0, 0)), INSPAN_INVALID);
    rig_ok(rig, 0, computed(1, 1));
    assert_int_equal(rig_feed(rig, 0, computed(1, 1)), INSPAN_INVALID); /* twice */
    assert_int_equal(rig_feed(rig, 0, ready(1, 0)), INSPAN_INVALID);    /* 0 and 2 are two runs */
    rig_ok(rig, 0, computed(0, 1));
    rig_ok(rig, 0, ready(1, 0)); /* in the backward pass of the last run */
    assert_int_equal(rig_feed(rig, 0, ready(1, 0)), INSPAN_INVALID);
    assert_int_equal(rig_feed(rig, 0, ready(1, 2)), INSPAN_INVALID);
    assert_int_equal(rig_feed(rig, 0, reduced(1, 1)), INSPAN_INVALID); /* never started */
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_RUN);  /* a misuse changes nothing */
    assert_non_null(strstr(elastic_error(rig_member(rig, 0))->text, "phase run"));
    rig_close(rig);
}

static void a_job_runs_to_its_end(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 7; n += 2) {
        rig_t *rig = rig_first(n, 4, 3, 2);
        rig_run_to(rig, 2);
        for (uint32_t i = 0; i < n; i++) assert_true(elastic_light(rig_member(rig, i)));
        rig_run_to(rig, 3); /* the saving step: all leases of the lowest full member */
        for (uint32_t i = 0; i < n; i++)
            assert_set(elastic_contribution(rig_member(rig, i)), i == 0 ? 0xf : 0);
        rig_run_to(rig, 4);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(elastic_phase(rig_member(rig, i)), ELASTIC_DONE);
            assert_int_equal(rig_count(rig, i, ELASTIC_DO_END), 1);
            assert_int_equal(rig_count(rig, i, ELASTIC_DO_COMMIT), 4);
            assert_int_equal(rig_count(rig, i, ELASTIC_DO_REDUCE), 3 * 2 + 2); /* light: the tally alone */
        }
        rig_close(rig);
    }
}

/* ---- views ---- */

/* V1 */
static void old_messages_are_dropped_and_new_ones_wait(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 2, 4);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    elastic_message_t vote = rig_message(rig, ELASTIC_VOTE, 0);
    vote.view = 1;
    assert_int_equal(rig_say(rig, 0, 1, &vote), INSPAN_OK);
    assert_int_equal(rig_member(rig, 0)->votes, 0);
    vote.view = 3;
    assert_int_equal(rig_say(rig, 0, 1, &vote), INSPAN_PENDING);
    assert_int_equal(rig_feed(rig, 0, reduced(1, 0)), INSPAN_OK);
    assert_false(elastic_held(rig_member(rig, 0), 0, NULL));
    elastic_t *idle;
    elastic_config_t config = rig->config;
    assert_int_equal(elastic_open(&config, rig_member(rig, 0)->perform, NULL, &idle), INSPAN_OK);
    uint8_t bytes[ELASTIC_MESSAGE_MAX];
    elastic_event_t event = {.type = ELASTIC_EV_MESSAGE, .data = bytes};
    event.bytes = elastic_message_encode(&vote, bytes);
    assert_int_equal(elastic_handle(idle, &event), INSPAN_PENDING);
    elastic_close(idle);
    rig_close(rig);
}

/* V2: the report says what was computed and held, and stays the same until a decision. */
static void a_report_stands_until_the_decision(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, 2, 4);
    rig_compute(rig, 0);
    rig_ok(rig, 1, computed(2, 1));
    rig_compute(rig, 2);
    rig_member(rig, 1)->ready.words[0] = 0; /* bucket 0 is through at 2, nowhere else */
    rig_reduced(rig, 2, 0);
    for (int view = 2; view < 5; view++) {
        rig_view(rig, false, NUMBERS(0, 1, 2));
        assert_int_equal(elastic_phase(rig_member(rig, 1)), ELASTIC_RECONCILE);
        assert_int_equal(rig_feed(rig, 1, computed(3, 1)), INSPAN_INVALID);
        assert_int_equal(rig_feed(rig, 2, reduced(1, 1)), INSPAN_OK); /* late, of an older view */
        assert_set(elastic_computed(rig_member(rig, 1)), 1u << 2);
        uint64_t tag;
        assert_true(elastic_held(rig_member(rig, 2), 0, &tag) && tag == 1);
        assert_false(elastic_held(rig_member(rig, 2), 1, NULL));
        uint32_t first, n;
        bool last;
        elastic_grant(rig_member(rig, 1), 9, &first, &n, &last);
        assert_true(n == 0 && !last);
    }
    rig_run_to(rig, 1);
    rig_close(rig);
}

/* A micro-batch under way when the view breaks counts; a new one is not begun. */
static void a_broken_view_lets_the_micro_batch_end(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 4, 2, 4);
    rig_ok(rig, 0, (elastic_event_t){.type = ELASTIC_EV_BROKEN, .view = 1});
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_BROKEN);
    uint32_t first, n;
    bool last;
    elastic_grant(rig_member(rig, 0), 9, &first, &n, &last);
    assert_true(n == 0 && !last);
    rig_ok(rig, 0, ready(1, 0));
    rig_ok(rig, 0, reduced(1, 0));
    elastic_message_t vote = rig_message(rig, ELASTIC_VOTE, 0);
    assert_int_equal(rig_say(rig, 0, 1, &vote), INSPAN_OK); /* nothing of the view counts */
    rig_ok(rig, 0, computed(0, 1));
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_REDUCE), 0);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_ok(rig, 0, (elastic_event_t){.type = ELASTIC_EV_BROKEN, .view = 1}); /* of the older one */
    assert_set(elastic_computed(rig_member(rig, 0)), 1);
    rig_run_to(rig, 1);
    rig_close(rig);
}

static void malformed_views_are_refused(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 4, 2, 4);
    uint32_t numbers[] = {0, 1, 2}, turned[] = {1, 0}, many[65];
    for (uint32_t i = 0; i < 65; i++) many[i] = i;
    elastic_event_t view = {.type = ELASTIC_EV_VIEW, .view = 2, .numbers = numbers, .n = 3, .index = 0}, bad;
    bad = view, bad.n = 0;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    bad = view, bad.n = 65, bad.numbers = many;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    bad = view, bad.index = 1;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID); /* not its own number there */
    bad = view, bad.index = 3;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    bad = view, bad.numbers = turned, bad.n = 2, bad.index = 1;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    bad = view, bad.view = 1ull << 32;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    bad = view, bad.first_view = true;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_INVALID);
    assert_int_equal(elastic_view(rig_member(rig, 0)), 1);
    bad = view, bad.view = 1, bad.n = 2;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_OK); /* announced again */
    bad.n = 3;
    assert_int_equal(rig_feed(rig, 0, bad), INSPAN_MISMATCH); /* I3 */
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_FAILED);
    assert_int_equal(rig_feed(rig, 0, view), INSPAN_MISMATCH); /* for good */
    rig_close(rig);
}

/* ---- reconcile ---- */

/* V3 */
static void the_leader_waits_for_every_report(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 3, 2, 4);
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(0, 1, 2, 3));
    assert_int_equal(rig->n_queue, 3);
    for (uint32_t left = 3; left > 0; left--) {
        assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_RECONCILE);
        elastic_event_t event = {.type = ELASTIC_EV_MESSAGE,
                                 .from = rig->queue[left - 1].from,
                                 .data = rig->queue[left - 1].data,
                                 .bytes = rig->queue[left - 1].bytes};
        rig_ok(rig, 0, event);
    }
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_RUN);
    rig_close(rig);
}

/* Two of three hold all and voted; the leader commits, tells `told` and is gone. */
static rig_t *leader_commits_and_dies(bool told)
{
    rig_t *rig = rig_first(3, 3, 2, 4);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    for (uint32_t i = 3; i-- > 0;)
        for (uint32_t b = 0; b < 2; b++) rig_reduced(rig, i, b);
    while (rig->n_queue > 0 && rig_count(rig, 0, ELASTIC_DO_COMMIT) == 0) {
        rig_ok(rig, 0,
               (elastic_event_t){.type = ELASTIC_EV_MESSAGE,
                                 .from = rig->queue[0].from,
                                 .data = rig->queue[0].data,
                                 .bytes = rig->queue[0].bytes});
        memmove(&rig->queue[0], &rig->queue[1], --rig->n_queue * sizeof rig->queue[0]);
    }
    assert_int_equal(rig->n_queue, 2); /* COMMIT to 1 and 2 */
    if (told)
        rig_ok(rig, 1,
               (elastic_event_t){.type = ELASTIC_EV_MESSAGE,
                                 .from = 0,
                                 .data = rig->queue[0].data,
                                 .bytes = rig->queue[0].bytes});
    rig_view(rig, false, NUMBERS(1, 2));
    return rig;
}

/* R1: a step that any survivor committed is committed by all. */
static void a_step_that_one_committed_is_committed_by_all(void **state)
{
    (void)state;
    rig_t *rig = leader_commits_and_dies(true);
    assert_int_equal(rig_count(rig, 2, ELASTIC_DO_COMMIT), 0);
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_COMMIT), 1);
    assert_int_equal(rig_count(rig, 2, ELASTIC_DO_COMMIT), 1);
    rig_run_to(rig, 2);
    rig_close(rig);
}

/* R1, second clause: so is one that every survivor holds, though none knows of a commit. */
static void a_step_that_all_hold_is_committed(void **state)
{
    (void)state;
    rig_t *rig = leader_commits_and_dies(false);
    rig_deliver(rig);
    for (uint32_t i = 1; i < 3; i++) {
        assert_int_equal(rig_count(rig, i, ELASTIC_DO_COMMIT), 1);
        assert_int_equal(elastic_step(rig_member(rig, i)), 1);
        assert_int_equal(set_count(elastic_contribution(rig_member(rig, i))), i == 1 ? 1 : 2);
    }
    rig_close(rig);
}

/* R2: what somebody holds is passed on with its tag, by different sources; the rest, and the lost leases,
 * anew. */
static void held_buckets_are_salvaged(void **state)
{
    (void)state;
    rig_t *rig = rig_first(4, 8, 5, 4);
    for (uint32_t i = 0; i < 4; i++) rig_compute(rig, i);
    for (uint32_t b = 0; b < 4; b++) { /* 0 and 1 hold four buckets, 2 holds none of them, 3 dies */
        rig_reduced(rig, 0, b);
        rig_reduced(rig, 1, b);
    }
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_PASS), 2);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_PASS), 2);
    assert_int_equal(rig_count(rig, 2, ELASTIC_DO_TAKE), 4);
    elastic_set_t again = EMPTY_SET;
    for (uint32_t i = 0; i < 3; i++) again = set_or(again, rig_member(rig, i)->granted);
    assert_set(again, 0xc0); /* the lost one's leases */
    rig_round(rig, true);
    uint64_t tag;
    assert_true(elastic_step(rig_member(rig, 2)) == 1 ||
                (elastic_held(rig_member(rig, 2), 0, &tag) && tag == 1));
    rig_run_to(rig, 2);
    rig_close(rig);
}

/* R2: if none must be reduced anew, no lease is granted, though the dead one's are in no D. */
static void nothing_is_computed_where_every_bucket_is_held(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 6, 2, 4);
    for (uint32_t i = 0; i < 3; i++) rig_compute(rig, i);
    rig_reduced(rig, 0, 0);
    rig_reduced(rig, 1, 1);
    rig_view(rig, false, NUMBERS(0, 1));
    uint32_t work = rig_count(rig, 0, ELASTIC_DO_WORK);
    rig_deliver(rig);
    assert_int_equal(elastic_step(rig_member(rig, 0)), 0);
    assert_true(set_empty(rig_member(rig, 0)->granted) && set_empty(rig_member(rig, 1)->granted));
    assert_int_equal(rig_count(rig, 0, ELASTIC_DO_WORK), work);
    rig_reduced(rig, 0, 1);
    rig_reduced(rig, 1, 0);
    rig_deliver(rig);
    assert_int_equal(elastic_step(rig_member(rig, 1)), 1);
    rig_close(rig);
}

/* P2: without a full member nothing goes on, and the leader says so. */
static void without_a_full_member_the_leader_is_stuck(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 2, 3, 9);
    rig_join(rig, 1, true);
    rig_join(rig, 2, true);
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_deliver(rig);
    rig_view(rig, false, NUMBERS(1, 2));
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_STUCK), 1);
    assert_int_equal(rig_count(rig, 2, ELASTIC_DO_STUCK), 0);
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(3)); /* all fresh */
    assert_int_equal(rig_count(rig, 3, ELASTIC_DO_STUCK), 1);
    rig_close(rig);
}

/* ---- newcomers ---- */

/* N1, N2: complete after at most ceil(chunks / donors) committed steps; full by the commit after that. */
static void newcomers_become_full_within_a_bound(void **state)
{
    (void)state;
    static const struct {
        uint32_t donors, chunks, newcomers;
    } cases[] = {{1, 3, 1}, {2, 5, 2}, {3, 7, 3}, {4, 4, 2}, {5, 2, 4}, {1, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t donors = cases[i].donors, n = donors + cases[i].newcomers, numbers[16];
        rig_t *rig = rig_first(donors, 8, cases[i].chunks + 1, 50);
        rig_run_to(rig, 2);
        for (uint32_t k = 0; k < n; k++) numbers[k] = k;
        for (uint32_t k = donors; k < n; k++) rig_join(rig, k, true);
        rig_view(rig, false, n, numbers);
        uint32_t rounds = (cases[i].chunks + donors - 1) / donors;
        for (uint32_t k = 0; k < rounds; k++) {
            for (uint32_t m = donors; m < n; m++) assert_int_equal(rig_count(rig, m, ELASTIC_DO_FULL), 0);
            rig_run_to(rig, 3 + k);
        }
        if (rounds == 0) rig_run_to(rig, 3);
        for (uint32_t m = donors; m < n; m++) {
            assert_true(elastic_complete(rig_member(rig, m)));
            assert_int_equal(elastic_role(rig_member(rig, m)), ELASTIC_FULL);
            assert_int_equal(rig_count(rig, m, ELASTIC_DO_FULL), 1);
            assert_int_equal(rig_count(rig, m, ELASTIC_DO_TAKE_CHUNK), cases[i].chunks);
            assert_false(set_empty(elastic_contribution(rig_member(rig, m))));
        }
        rig_close(rig);
    }
}

/* N1: a donor gives at most one chunk to each newcomer at a commit, and several donors share the work. */
static void donors_share_the_copies(void **state)
{
    (void)state;
    rig_t *rig = rig_first(3, 3, 7, 50);
    rig_join(rig, 3, true);
    rig_join(rig, 4, true);
    rig_view(rig, false, NUMBERS(0, 1, 2, 3, 4));
    rig_deliver(rig);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(rig_count(rig, i, ELASTIC_DO_GIVE_CHUNK), 2);
    for (uint32_t i = 3; i < 5; i++) assert_int_equal(rig_count(rig, i, ELASTIC_DO_TAKE_CHUNK), 3);
    rig_close(rig);
}

/* N1: no vote before the promised chunks are in; a view change voids the promises, and a late copy is not
 * stored. */
static void a_newcomer_waits_for_its_chunks(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 2, 3, 50);
    rig_join(rig, 1, true);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    for (int i = 0; i < 3; i++) rig_round(rig, false);
    assert_true(elastic_holds_all(rig_member(rig, 1)) && !elastic_voted(rig_member(rig, 1)));
    elastic_event_t chunk = {.type = ELASTIC_EV_CHUNK, .view = 2, .bucket = 1, .step = 0};
    assert_int_equal(rig_feed(rig, 1, chunk), INSPAN_INVALID); /* promised is 0 */
    chunk.bucket = 0;
    chunk.step = 1;
    assert_int_equal(rig_feed(rig, 1, chunk), INSPAN_INVALID); /* another version */
    rig_view(rig, false, NUMBERS(0, 1));
    chunk.step = 0;
    rig_ok(rig, 1, chunk);
    assert_false(elastic_chunk(rig_member(rig, 1), 0));
    rig_deliver(rig); /* all hold the step: it is committed without the chunk (R1) */
    assert_int_equal(elastic_step(rig_member(rig, 1)), 1);
    assert_false(elastic_chunk(rig_member(rig, 1), 0));
    assert_int_equal(rig_last(rig, 1, ELASTIC_DO_TAKE_CHUNK)->step, 1);
    rig_run_to(rig, 3);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_FULL);
    rig_close(rig);
}

/* N1: at a commit, the update goes to chunks of the version before it alone. C1: listeners vote. */
static void listeners_vote_and_apply_what_they_have(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 2, 4, 50);
    rig_join(rig, 1, true);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_deliver(rig);
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_CHUNK, .view = 2, .bucket = 0});
    assert_true(elastic_applies(rig_member(rig, 1), 0) && !elastic_applies(rig_member(rig, 1), 1));
    assert_true(elastic_applies(rig_member(rig, 0), 1) &&
                !elastic_applies(rig_member(rig, 0), 3)); /* the tally */
    rig_run_to(rig, 1);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_COMMIT), 1);
    assert_true(elastic_chunk(rig_member(rig, 1), 0));
    rig_close(rig);
}

/* N2: a complete newcomer stays a listener through a reconcile; a decision that names it full is refused. */
static void a_reconcile_makes_nobody_full(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 2, 50);
    rig_join(rig, 2, true);
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_deliver(rig);
    rig_ok(rig, 2, (elastic_event_t){.type = ELASTIC_EV_CHUNK, .view = 2, .bucket = 0});
    assert_true(elastic_complete(rig_member(rig, 2)));
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_deliver(rig);
    assert_int_equal(elastic_role(rig_member(rig, 2)), ELASTIC_LISTENER);
    assert_int_equal(elastic_full_set(rig_member(rig, 2)), 3);
    rig_view(rig, false, NUMBERS(0, 1, 2));
    elastic_message_t decide = rig_message(rig, ELASTIC_DECIDE, 0);
    assert_int_equal(rig_say(rig, 2, 0, &decide), INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 2))->text, "rank 0 decided view 4"));
    rig_close(rig);
}

/* A chain of losses leaves a listener as the lowest: it decides and leads, but becomes full by a commit
 * alone. */
static void a_listener_can_lead(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 4, 3, 50);
    rig_join(rig, 1, true);
    rig_join(rig, 2, true);
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_ok(rig, 1, (elastic_event_t){.type = ELASTIC_EV_LEAVE}); /* so that 2 becomes full before it */
    rig_run_to(rig, 2);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LISTENER);
    assert_int_equal(elastic_role(rig_member(rig, 2)), ELASTIC_FULL);
    rig_compute(rig, 2);
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(1, 2, 3));
    rig_deliver(rig);
    assert_true(elastic_is_leader(rig_member(rig, 1)));
    assert_int_equal(elastic_full_set(rig_member(rig, 1)), 2);
    rig_run_to(rig, 4);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LISTENER);
    assert_int_equal(elastic_role(rig_member(rig, 3)), ELASTIC_FULL);
    rig_close(rig);
}

/* ---- the end ---- */

/* Who missed the last commit gets it by R1 from one that has ended. */
static void stragglers_end_with_the_others(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 2, 1);
    rig_run_to(rig, 2);
    rig_compute(rig, 0);
    rig_compute(rig, 1);
    rig_reduced(rig, 1, 1);
    rig_reduced(rig, 0, 1);
    rig_ok(
        rig, 0,
        (elastic_event_t){
            .type = ELASTIC_EV_MESSAGE, .from = 1, .data = rig->queue[0].data, .bytes = rig->queue[0].bytes});
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_DONE);
    rig_ok(rig, 0, (elastic_event_t){.type = ELASTIC_EV_BROKEN, .view = 1});
    assert_int_equal(elastic_phase(rig_member(rig, 0)), ELASTIC_DONE);
    rig_join(rig, 2, true);
    rig_view(rig, false, NUMBERS(0, 1, 2));
    rig_deliver(rig);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(elastic_phase(rig_member(rig, i)), ELASTIC_DONE);
        assert_int_equal(rig_count(rig, i, ELASTIC_DO_END), 1);
    }
    rig_close(rig);
}

/* A listener that is left alone after the last commit has nothing to be stuck with; and light steps copy no
 * chunks. */
static void a_listener_alone_at_the_end_is_done(void **state)
{
    (void)state;
    rig_t *rig = rig_first(1, 2, 4, 0);
    rig_join(rig, 1, true);
    rig_view(rig, false, NUMBERS(0, 1));
    rig_run_to(rig, 2);
    assert_int_equal(elastic_role(rig_member(rig, 1)), ELASTIC_LISTENER);
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_TAKE_CHUNK), 0);
    rig_view(rig, false, NUMBERS(1));
    assert_int_equal(rig_count(rig, 1, ELASTIC_DO_STUCK), 0);
    assert_int_equal(elastic_phase(rig_member(rig, 1)), ELASTIC_DONE);
    rig_close(rig);
}

/* ---- sizes ---- */

static void the_largest_view_reconciles_and_commits(void **state)
{
    (void)state;
    uint32_t numbers[ELASTIC_MEMBERS_MAX];
    rig_t *rig = rig_open(ELASTIC_LEASES_MAX, ELASTIC_BUCKETS_MAX, 3);
    for (uint32_t i = 0; i < ELASTIC_MEMBERS_MAX; i++) {
        numbers[i] = i;
        if (i < 62) rig_join(rig, i, false);
    }
    rig_view(rig, true, 62, numbers);
    for (uint32_t i = 0; i < 62; i++) rig_compute(rig, i);
    for (uint32_t b = 0; b < ELASTIC_BUCKETS_MAX; b += 2) rig_reduced(rig, b % 62, b);
    rig_join(rig, 62, true);
    rig_join(rig, 63, true);
    rig_view(rig, false, ELASTIC_MEMBERS_MAX, numbers);
    for (uint32_t i = 0; i < rig->n_queue; i++) assert_in_range(rig->queue[i].bytes, 1, ELASTIC_MESSAGE_MAX);
    rig_deliver(rig);
    assert_int_equal(rig_count(rig, 63, ELASTIC_DO_TAKE), 128);
    for (uint32_t i = 0; i < 62; i += 2) /* the holders */
        assert_in_range(rig_count(rig, i, ELASTIC_DO_PASS), 63 * 4, 63 * 5);
    rig_run_to(rig, 5);
    for (uint32_t i = 0; i < ELASTIC_MEMBERS_MAX; i++)
        assert_int_equal(elastic_phase(rig_member(rig, i)), ELASTIC_DONE);
    rig_close(rig);
}

static void samples_of_leases_cover_the_batch_once(void **state)
{
    (void)state;
    static const uint64_t batches[] = {0, 1, 2, 5, 64, 1000003, UINT64_MAX};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        for (uint32_t leases = 1; leases <= ELASTIC_LEASES_MAX; leases += 17) {
            uint64_t next = 0, first, n, least = UINT64_MAX, most = 0;
            for (uint32_t lease = 0; lease < leases; lease++) {
                elastic_samples(batches[b], leases, lease, &first, &n);
                assert_int_equal(first, next);
                next += n;
                least = n < least ? n : least;
                most = n > most ? n : most;
            }
            assert_int_equal(next, batches[b]);
            assert_true(most - least <= 1);
        }
}

static void assert_wires(rig_t *rig, uint32_t first, uint32_t last, uint8_t wire)
{
    for (uint32_t i = first; i <= last; i++) assert_int_equal(elastic_wire(rig_member(rig, i)), wire);
}

/* From the next step on; in new views too, for newcomers too. */
static void the_leader_says_how_gradients_go(void **state)
{
    (void)state;
    rig_t *rig = rig_open(6, 2, 12);
    rig->config.wires = 4;
    rig->config.wire = 1;
    for (uint32_t i = 0; i < 3; i++) rig_join(rig, i, false);
    rig_view(rig, true, NUMBERS(0, 1, 2));
    elastic_set_wire(rig_member(rig, 1), 2); /* it does not lead */
    elastic_set_wire(rig_member(rig, 0), 4); /* there is no such way */
    rig_run_to(rig, 1);
    assert_wires(rig, 0, 2, 1);
    elastic_set_wire(rig_member(rig, 0), 3);
    assert_wires(rig, 0, 2, 1);
    rig_run_to(rig, 2);
    assert_wires(rig, 0, 2, 3);
    rig_join(rig, 3, true);
    rig_view(rig, false, NUMBERS(0, 1, 2, 3));
    rig_deliver(rig);
    assert_wires(rig, 0, 3, 3);
    elastic_set_wire(rig_member(rig, 0), 2); /* goes with its leader, before a COMMIT carries it */
    rig_view(rig, false, NUMBERS(1, 2, 3));
    rig_deliver(rig);
    assert_wires(rig, 1, 3, 3);
    elastic_set_wire(rig_member(rig, 1), 0);
    rig_run_to(rig, 3);
    assert_wires(rig, 1, 3, 0);
    rig_close(rig);
}

static void an_unknown_way_is_refused(void **state)
{
    (void)state;
    rig_t *rig = rig_first(2, 2, 1, 4);
    rig_compute(rig, 1);
    rig_reduced(rig, 1, 0);
    elastic_message_t commit = rig_message(rig, ELASTIC_COMMIT, 0);
    commit.full = 3;
    commit.owner[0] = 0, commit.owner[1] = 1;
    memset(commit.plan, NOBODY, sizeof commit.plan);
    commit.wire = 1;
    assert_int_equal(rig_say(rig, 1, 0, &commit), INSPAN_MISMATCH);
    assert_non_null(strstr(elastic_error(rig_member(rig, 1))->text, "with way 1 of gradients"));
    rig_close(rig);
}

static void settings_out_of_range_are_refused(void **state)
{
    (void)state;
    const elastic_config_t good = {.steps = 3, .leases = 1, .buckets = 1};
    elastic_config_t bad[8];
    for (int i = 0; i < 8; i++) bad[i] = good;
    bad[0].leases = 0;
    bad[1].leases = ELASTIC_LEASES_MAX + 1;
    bad[2].buckets = 0;
    bad[3].buckets = ELASTIC_BUCKETS_MAX + 1;
    bad[4].first_step = 4;
    bad[5].steps = UINT64_MAX;
    bad[6].wires = UINT8_MAX + 2;
    bad[7].wires = bad[7].wire = 3;
    elastic_t *e = NULL;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(elastic_open(&bad[i], NULL, NULL, &e), INSPAN_INVALID);
        assert_null(e);
    }
    elastic_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_view_grants_the_table_to_all),
        cmocka_unit_test(a_commit_needs_every_vote),
        cmocka_unit_test(reductions_start_in_one_order),
        cmocka_unit_test(what_was_not_granted_is_refused),
        cmocka_unit_test(a_job_runs_to_its_end),
        cmocka_unit_test(old_messages_are_dropped_and_new_ones_wait),
        cmocka_unit_test(a_report_stands_until_the_decision),
        cmocka_unit_test(a_broken_view_lets_the_micro_batch_end),
        cmocka_unit_test(malformed_views_are_refused),
        cmocka_unit_test(the_leader_waits_for_every_report),
        cmocka_unit_test(a_step_that_one_committed_is_committed_by_all),
        cmocka_unit_test(a_step_that_all_hold_is_committed),
        cmocka_unit_test(held_buckets_are_salvaged),
        cmocka_unit_test(nothing_is_computed_where_every_bucket_is_held),
        cmocka_unit_test(without_a_full_member_the_leader_is_stuck),
        cmocka_unit_test(newcomers_become_full_within_a_bound),
        cmocka_unit_test(donors_share_the_copies),
        cmocka_unit_test(a_newcomer_waits_for_its_chunks),
        cmocka_unit_test(listeners_vote_and_apply_what_they_have),
        cmocka_unit_test(a_reconcile_makes_nobody_full),
        cmocka_unit_test(a_listener_can_lead),
        cmocka_unit_test(stragglers_end_with_the_others),
        cmocka_unit_test(a_listener_alone_at_the_end_is_done),
        cmocka_unit_test(the_largest_view_reconciles_and_commits),
        cmocka_unit_test(samples_of_leases_cover_the_batch_once),
        cmocka_unit_test(the_leader_says_how_gradients_go),
        cmocka_unit_test(an_unknown_way_is_refused),
        cmocka_unit_test(settings_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
