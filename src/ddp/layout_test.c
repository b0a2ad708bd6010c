#include "ddp/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"

#define LAYOUT_TAIL 7u

static void check_layout(const layout_t *layout, const uint64_t *counts, uint32_t n)
{
    uint32_t seen = 0;
    for (uint32_t b = 0; b < layout->n_buckets; b++) {
        const layout_bucket_t *bucket = &layout->buckets[b];
        uint64_t end = 0;
        assert_int_equal(bucket->first_order, seen);
        for (uint32_t i = 0; i < bucket->n_params; i++, seen++) {
            uint32_t parameter = layout->order[seen];
            assert_int_equal(parameter, n - 1 - seen);
            assert_int_equal(layout->bucket[parameter], b);
            assert_int_equal(layout->offset[parameter] % LAYOUT_ALIGN, 0);
            assert_true(layout->offset[parameter] >= end);
            end = layout->offset[parameter] + counts[parameter];
        }
        assert_true(bucket->tail >= end);
        assert_int_equal(bucket->count, bucket->tail + LAYOUT_TAIL);
    }
    assert_int_equal(seen, n);
}

static void every_parameter_has_one_place(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 200; seed++) {
        rng_t rng;
        rng_seed(&rng, seed, 0);
        uint64_t counts[50];
        uint32_t n = 1 + (uint32_t)rng_below(&rng, 50);
        for (uint32_t i = 0; i < n; i++) counts[i] = 1 + rng_below(&rng, 3000);
        layout_t layout, again;
        uint64_t bytes = 1 + rng_below(&rng, 20000);
        assert_int_equal(layout_build(counts, n, 4, bytes, bytes / 2 + 1, false, LAYOUT_TAIL, 4096, &layout),
                         INSPAN_OK);
        assert_int_equal(layout_build(counts, n, 4, bytes, bytes / 2 + 1, false, LAYOUT_TAIL, 4096, &again),
                         INSPAN_OK);
        check_layout(&layout, counts, n);
        assert_int_equal(layout.hash, again.hash);
        layout_free(&again);
        counts[n - 1] += LAYOUT_ALIGN;
        assert_int_equal(layout_build(counts, n, 4, bytes, bytes / 2 + 1, false, LAYOUT_TAIL, 4096, &again),
                         INSPAN_OK);
        assert_int_not_equal(layout.hash, again.hash);
        layout_free(&again);
        layout_free(&layout);
    }
}

static void buckets_keep_their_size(void **state)
{
    (void)state;
    uint64_t counts[40];
    for (uint32_t i = 0; i < 40; i++) counts[i] = 1000;
    layout_t layout;
    assert_int_equal(layout_build(counts, 40, 4, 40000, 8000, false, LAYOUT_TAIL, 4096, &layout), INSPAN_OK);
    assert_true(layout.buckets[0].count * 4 <= 8000 + 64 + LAYOUT_TAIL * 4);
    for (uint32_t b = 1; b < layout.n_buckets; b++) assert_true(layout.buckets[b].count * 4 <= 40000 + 1024);
    assert_true(layout.n_buckets >= 5 && layout.n_buckets <= 7);
    layout_free(&layout);
    counts[20] = 1000000; /* larger than a bucket: not split */
    assert_int_equal(layout_build(counts, 40, 4, 40000, 8000, false, LAYOUT_TAIL, 4096, &layout), INSPAN_OK);
    check_layout(&layout, counts, 40);
    layout_free(&layout);
}

/* However large the model: the size that is chosen keeps within the number of buckets. */
static void the_chosen_size_keeps_the_number(void **state)
{
    (void)state;
    static uint64_t counts[3000];
    rng_t rng;
    rng_seed(&rng, 7, 0);
    for (int scale = 1; scale <= 1000000; scale *= 100) {
        for (int i = 0; i < 3000; i++) counts[i] = 1 + rng_below(&rng, 100) * (uint64_t)scale;
        layout_t layout;
        uint64_t bytes = layout_auto_bytes(counts, 3000, 4, 255);
        assert_true(bytes >= 1000000);
        assert_int_equal(
            layout_build(counts, 3000, 4, bytes, layout_first_bytes(bytes), false, 256, 255, &layout),
            INSPAN_OK);
        layout_free(&layout);
        assert_int_equal(layout_build(counts, 3000, 4, 1, 1, false, 256, 255, &layout), INSPAN_LIMIT);
    }
}

static void any_order_can_be_cut_anywhere(void **state)
{
    (void)state;
    static const uint64_t counts[4] = {5, 40, 16, 1};
    static const uint32_t order[4] = {2, 0, 3, 1}, sizes[4] = {3, 1}, twice[4] = {2, 0, 2, 1},
                          far[4] = {2, 0, 4, 1}, empty[4] = {3, 0, 1}, more[4] = {3, 2};
    layout_t layout, other;
    assert_int_equal(layout_cut(counts, 4, order, sizes, 2, LAYOUT_TAIL, &layout), INSPAN_OK);
    assert_int_equal(layout.n_buckets, 2);
    assert_int_equal(layout.buckets[0].tail, 3 * LAYOUT_ALIGN);
    assert_int_equal(layout.buckets[1].count, 3 * LAYOUT_ALIGN + LAYOUT_TAIL);
    assert_int_equal(layout.offset[3], 2 * LAYOUT_ALIGN);
    assert_int_equal(layout.bucket[1], 1);
    assert_int_equal(layout_cut(counts, 4, order, (uint32_t[]){2, 2}, 2, LAYOUT_TAIL, &other), INSPAN_OK);
    assert_int_not_equal(layout.hash, other.hash);
    layout_free(&other);
    assert_int_equal(layout_cut(counts, 4, twice, sizes, 2, LAYOUT_TAIL, &other), INSPAN_INVALID);
    assert_int_equal(layout_cut(counts, 4, far, sizes, 2, LAYOUT_TAIL, &other), INSPAN_INVALID);
    assert_int_equal(layout_cut(counts, 4, order, empty, 3, LAYOUT_TAIL, &other), INSPAN_INVALID);
    assert_int_equal(layout_cut(counts, 4, order, more, 2, LAYOUT_TAIL, &other), INSPAN_INVALID);
    layout_free(&layout);
    /* greedy, in order of registration */
    assert_int_equal(layout_build(counts, 4, 4, 256, 256, true, LAYOUT_TAIL, 9, &layout), INSPAN_OK);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(layout.order[i], i);
    layout_free(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_can_be_cut_anywhere),
        cmocka_unit_test(every_parameter_has_one_place),
        cmocka_unit_test(buckets_keep_their_size),
        cmocka_unit_test(the_chosen_size_keeps_the_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
