#include "core/partition/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <string.h>

#include "base/rng.h"

#define MS 1000000ull

static partition_pace_t pace(uint64_t lease_ms, uint64_t step_ms)
{
    return (partition_pace_t){
        .lease_ns = lease_ms * MS, .step_ns = step_ms * MS, .run = 1, .last = 1, .most = 256};
}

static uint64_t everyone(uint32_t n)
{
    return n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

static uint32_t sum(const uint32_t *share, uint32_t n)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < n; i++) all += share[i];
    return all;
}

/* ---- split ---- */

/* The earliest finish of all splits within `most`; UINT64_MAX: there is none. */
static uint64_t brute_force(uint32_t leases, uint64_t full, uint32_t n, const partition_pace_t *paces,
                            uint32_t *share, uint32_t i)
{
    if (i == n) return leases == 0 ? partition_finish(full, n, paces, share) : UINT64_MAX;
    uint64_t best = UINT64_MAX;
    const uint32_t most = (full >> i & 1) == 0 ? 0 : paces[i].most < leases ? paces[i].most : leases;
    for (share[i] = 0;; share[i]++) {
        const uint64_t finish = brute_force(leases - share[i], full, n, paces, share, i + 1);
        if (finish < best) best = finish;
        if (share[i] == most) return best;
    }
}

static void no_split_finishes_earlier(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 1, 0);
    for (int round = 0; round < 3000; round++) {
        const uint32_t n = 1 + (uint32_t)rng_below(&rng, 5), leases = 1 + (uint32_t)rng_below(&rng, 12);
        partition_pace_t paces[5];
        for (uint32_t i = 0; i < n; i++) {
            paces[i] = pace(1 + rng_below(&rng, 30), rng_below(&rng, 2) * rng_below(&rng, 60));
            paces[i].most = rng_below(&rng, 3) == 0 ? (uint32_t)rng_below(&rng, 6) : 256;
        }
        uint64_t full = 1 + rng_below(&rng, everyone(n));
        uint32_t share[5] = {0}, scratch[5];
        const uint64_t best = brute_force(leases, full, n, paces, scratch, 0);
        partition_split(NULL, leases, full, n, paces, share);
        assert_int_equal(sum(share, n), leases);
        for (uint32_t i = 0; i < n; i++) assert_true((full >> i & 1) != 0 || share[i] == 0);
        if (best == UINT64_MAX) continue; /* `most` leaves no room: the rest goes somewhere */
        for (uint32_t i = 0; i < n; i++) assert_true(share[i] <= paces[i].most);
        assert_int_equal(partition_finish(full, n, paces, share), best);
    }
}

static void is_in_proportion_to_speed(void **state)
{
    (void)state;
    const partition_pace_t paces[] = {pace(125, 0), pace(250, 0), pace(250, 0), pace(500, 0)};
    uint32_t share[4] = {0};
    partition_split(NULL, 36, 15, 4, paces, share);
    assert_int_equal(share[0], 16);
    assert_int_equal(share[1], 8);
    assert_int_equal(share[2], 8);
    assert_int_equal(share[3], 4);
}

/* 50 leases or more for the slowest: rounding costs under 2 %. */
static void rounding_costs_little(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 2, 0);
    uint32_t seen = 0;
    for (int round = 0; round < 5000; round++) {
        const uint32_t n = 2 + (uint32_t)rng_below(&rng, 4);
        partition_pace_t paces[5];
        double speed = 0;
        uint32_t share[5] = {0};
        for (uint32_t i = 0; i < n; i++) {
            paces[i] = pace(50 + rng_below(&rng, 150), 0);
            speed += 1.0 / (double)paces[i].lease_ns;
        }
        partition_split(NULL, 256, everyone(n), n, paces, share);
        uint32_t least = 256;
        for (uint32_t i = 0; i < n; i++) least = share[i] < least ? share[i] : least;
        if (least < 50) continue;
        seen++;
        assert_true((double)partition_finish(everyone(n), n, paces, share) * speed / 256 < 1.02);
    }
    assert_true(seen > 200);
}

static void leaves_out_who_would_hold_the_others_up(void **state)
{
    (void)state;
    const partition_pace_t paces[] = {pace(100, 0), pace(100, 0), pace(2000, 0)};
    uint32_t share[3] = {0};
    partition_split(NULL, 32, 7, 3, paces, share); /* its one lease takes longer than all of the others' 16 */
    assert_int_equal(share[2], 0);
    partition_split(NULL, 64, 7, 3, paces, share);
    assert_int_equal(share[2], 1);
}

static void counts_what_each_step_costs(void **state)
{
    (void)state;
    const partition_pace_t paces[] = {pace(100, 1000), pace(100, 0)};
    uint32_t share[2] = {0};
    partition_split(NULL, 30, 3, 2, paces, share);
    assert_int_equal(share[0], 10);
    assert_int_equal(share[1], 20);
}

static void small_gains_change_nothing(void **state)
{
    (void)state;
    partition_pace_t paces[] = {pace(100, 0), pace(100, 0)};
    uint32_t share[2] = {0};
    partition_split(NULL, 200, 3, 2, paces, share);
    assert_int_equal(share[0], 100);
    paces[0].lease_ns = 105 * MS; /* 2.5 % to gain */
    partition_split(NULL, 200, 3, 2, paces, share);
    assert_int_equal(share[0], 100);
    paces[0].lease_ns = 108 * MS;
    partition_split(NULL, 200, 3, 2, paces, share);
    assert_int_equal(share[0], 96);
    partition_split(NULL, 200, 1, 2, paces, share); /* one left: no choice */
    assert_int_equal(share[0], 200);
    partition_split(NULL, 100, 3, 2, paces, share); /* another batch */
    assert_int_equal(sum(share, 2), 100);
    share[0] = 50, share[1] = 50;
    paces[0].most = 40; /* its owner gives less */
    partition_split(NULL, 100, 3, 2, paces, share);
    assert_int_equal(share[0], 40);
}

static void a_newcomer_gets_leases_in_a_large_cluster(void **state)
{
    (void)state;
    partition_pace_t paces[64];
    uint32_t share[64] = {0};
    for (uint32_t i = 0; i < 64; i++) paces[i] = pace(100, 0);
    partition_split(NULL, 256, everyone(63), 64, paces, share);
    assert_int_equal(share[63], 0);
    partition_split(NULL, 256, everyone(64), 64, paces, share);
    assert_int_equal(share[63], 4);
}

static void unknown_paces(void **state)
{
    (void)state;
    partition_pace_t paces[] = {pace(0, 0), pace(0, 0), pace(0, 0)};
    uint32_t share[3] = {0};
    partition_split(NULL, 10, 7, 3, paces, share);
    assert_int_equal(share[0], 3); /* the leader has other things to do, too */
    assert_int_equal(share[1], 3);
    assert_int_equal(share[2], 4);
    paces[0] = pace(100, 0), paces[2] = pace(300, 0);
    memset(share, 0, sizeof share);
    partition_split(NULL, 22, 7, 3, paces, share); /* as if the second took 200 */
    assert_int_equal(share[0], 12);
    assert_int_equal(share[1], 6);
    assert_int_equal(share[2], 4);
}

static void what_fits_nowhere_is_computed_all_the_same(void **state)
{
    (void)state;
    partition_pace_t paces[] = {pace(100, 0), pace(100, 0), pace(100, 0)};
    paces[0].most = 0, paces[1].most = 2, paces[2].most = 3;
    uint32_t share[3] = {0};
    partition_split(NULL, 9, 7, 3, paces, share);
    assert_int_equal(share[0], 0);
    assert_int_equal(sum(share, 3), 9);
    paces[1].most = paces[2].most = 0;
    memset(share, 0, sizeof share);
    partition_split(NULL, 9, 7, 3, paces, share);
    assert_int_equal(sum(share, 3), 9);
}

static void hostile_numbers(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (int round = 0; round < 500; round++) {
        partition_pace_t paces[64];
        uint32_t share[64];
        for (uint32_t i = 0; i < 64; i++) {
            paces[i] = (partition_pace_t){.lease_ns = rng_next(&rng) >> rng_below(&rng, 64),
                                          .step_ns = rng_next(&rng) >> rng_below(&rng, 64),
                                          .run = (uint32_t)rng_next(&rng),
                                          .last = (uint32_t)rng_next(&rng),
                                          .most = (uint32_t)rng_next(&rng) >> rng_below(&rng, 32)};
            share[i] = (uint32_t)rng_next(&rng);
        }
        partition_split(NULL, 256, rng_next(&rng) | 1, 64, paces, share);
        assert_int_equal(sum(share, 64), 256);
    }
}

/* ---- steal ---- */

static partition_progress_t progress(uint64_t lease_ms, uint32_t reserved, uint32_t granted,
                                     uint32_t computed, int64_t heard_ms)
{
    partition_pace_t says = pace(lease_ms, 0);
    says.last = 0;
    return (partition_progress_t){.pace = says,
                                  .reserved = reserved,
                                  .granted = granted,
                                  .computed = computed,
                                  .heard_at = heard_ms * (int64_t)MS};
}

static void nobody_late_nothing_to_steal(void **state)
{
    (void)state;
    const partition_progress_t members[] = {progress(100, 0, 10, 9, 900), progress(100, 1, 9, 8, 850)};
    uint32_t from;
    assert_int_equal(partition_steal(NULL, 900 * (int64_t)MS, 0, 2, members, 0, &from), 0);
}

static void takes_what_makes_both_finish_together(void **state)
{
    (void)state;
    /* Both have one second's lease under way at 9 s; the other has 8 more reserved. */
    const partition_progress_t members[] = {progress(1000, 0, 10, 9, 9000), progress(1000, 8, 10, 9, 9000)};
    uint32_t from = 9;
    assert_int_equal(partition_steal(NULL, 9000 * (int64_t)MS, 0, 2, members, 0, &from), 4);
    assert_int_equal(from, 1);
    partition_progress_t capped[] = {members[0], members[1]};
    capped[0].pace.most = 12;
    assert_int_equal(partition_steal(NULL, 9000 * (int64_t)MS, 0, 2, capped, 0, &from), 2);
    capped[0].pace.most = 0;
    assert_int_equal(partition_steal(NULL, 9000 * (int64_t)MS, 0, 2, capped, 0, &from), 0);
    capped[0] = members[0];
    capped[1].pace.last = 6; /* keeps its last run */
    assert_int_equal(partition_steal(NULL, 9000 * (int64_t)MS, 0, 2, capped, 0, &from), 2);
    capped[1].sealed = true;
    assert_int_equal(partition_steal(NULL, 9000 * (int64_t)MS, 0, 2, capped, 0, &from), 0);
}

static void believes_progress_where_it_is_slower_than_the_pace(void **state)
{
    (void)state;
    /* The second said 100 ms a lease, but took 300 for each of its 10. */
    const partition_progress_t members[] = {progress(100, 0, 30, 29, 3000), progress(100, 8, 12, 10, 3000)};
    uint32_t from;
    assert_int_equal(partition_predict(3000 * (int64_t)MS, 0, &members[1]), 6000 * (int64_t)MS);
    const uint32_t leases = partition_steal(NULL, 3000 * (int64_t)MS, 0, 2, members, 0, &from);
    assert_true(leases >= 6 && leases <= 8);
    assert_int_equal(from, 1);
}

static void silence_is_slowness(void **state)
{
    (void)state;
    /* Granted 2 at the opening, no claim in 5 s although the first lease takes 100 ms. */
    const partition_progress_t members[] = {progress(100, 0, 50, 49, 5000), progress(100, 20, 2, 0, 0)};
    uint32_t from;
    const uint32_t leases = partition_steal(NULL, 5000 * (int64_t)MS, 0, 2, members, 0, &from);
    assert_int_equal(leases, 20);
}

static void the_latest_is_relieved(void **state)
{
    (void)state;
    const partition_progress_t members[] = {progress(100, 0, 10, 9, 900), progress(100, 5, 10, 9, 900),
                                            progress(200, 5, 5, 4, 800), progress(900, 0, 2, 1, 900)};
    uint32_t from;
    assert_true(partition_steal(NULL, 900 * (int64_t)MS, 0, 4, members, 0, &from) > 0);
    assert_int_equal(from, 2);
}

static void an_unknown_thief_takes_nothing(void **state)
{
    (void)state;
    const partition_progress_t members[] = {progress(0, 0, 1, 0, 0), progress(100, 50, 2, 1, 100)};
    uint32_t from;
    assert_int_equal(partition_steal(NULL, 100 * (int64_t)MS, 0, 2, members, 0, &from), 0);
}

/* Whatever is stolen: within the reserve and `most`, and both together finish earlier, by half of what it
 * costs at least. */
static void stealing_never_makes_it_later(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    uint32_t stolen = 0;
    for (int round = 0; round < 20000; round++) {
        const uint32_t n = 2 + (uint32_t)rng_below(&rng, 4);
        partition_progress_t members[5];
        const int64_t now = (int64_t)(1000 * MS);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t granted = 1 + (uint32_t)rng_below(&rng, 20);
            members[i] = progress(10 + rng_below(&rng, 200), (uint32_t)rng_below(&rng, 20), granted,
                                  (uint32_t)rng_below(&rng, granted + 1), (int64_t)rng_below(&rng, 1001));
            members[i].pace.run = (uint32_t)rng_below(&rng, 5);
            members[i].pace.last = (uint32_t)rng_below(&rng, 5);
            members[i].sealed = rng_below(&rng, 5) == 0;
            if (rng_below(&rng, 5) == 0) members[i].pace.most = (uint32_t)rng_below(&rng, 30);
        }
        members[0].heard_at = now;
        uint32_t from = n;
        const uint32_t leases = partition_steal(NULL, now, 0, n, members, 0, &from);
        if (leases == 0) continue;
        stolen++;
        assert_true(from > 0 && from < n && !members[from].sealed && !members[0].sealed);
        assert_true(leases <= members[from].reserved);
        assert_true(members[0].reserved + members[0].granted + leases <= members[0].pace.most);
        const int64_t late = partition_predict(now, 0, &members[from]);
        members[from].reserved -= leases;
        members[0].reserved += leases;
        assert_true(partition_predict(now, 0, &members[from]) < late);
        assert_true(partition_predict(now, 0, &members[0]) < late);
    }
    assert_true(stolen > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_finishes_earlier),
        cmocka_unit_test(is_in_proportion_to_speed),
        cmocka_unit_test(rounding_costs_little),
        cmocka_unit_test(leaves_out_who_would_hold_the_others_up),
        cmocka_unit_test(counts_what_each_step_costs),
        cmocka_unit_test(small_gains_change_nothing),
        cmocka_unit_test(a_newcomer_gets_leases_in_a_large_cluster),
        cmocka_unit_test(unknown_paces),
        cmocka_unit_test(what_fits_nowhere_is_computed_all_the_same),
        cmocka_unit_test(hostile_numbers),
        cmocka_unit_test(nobody_late_nothing_to_steal),
        cmocka_unit_test(takes_what_makes_both_finish_together),
        cmocka_unit_test(believes_progress_where_it_is_slower_than_the_pace),
        cmocka_unit_test(silence_is_slowness),
        cmocka_unit_test(the_latest_is_relieved),
        cmocka_unit_test(an_unknown_thief_takes_nothing),
        cmocka_unit_test(stealing_never_makes_it_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
