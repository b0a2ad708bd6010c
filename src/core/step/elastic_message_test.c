#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "core/step/elastic_internal.h"

static const elastic_message_type_t types[] = {ELASTIC_REPORT, ELASTIC_DECIDE, ELASTIC_VOTE, ELASTIC_COMMIT,
                                               ELASTIC_LEAVE,  ELASTIC_CLAIM,  ELASTIC_GRANT};
#define TYPES (sizeof types / sizeof types[0])

static elastic_set_t random_set(rng_t *rng, uint32_t n)
{
    elastic_set_t set = EMPTY_SET;
    for (uint32_t i = 0; i < n; i++)
        if (rng_below(rng, 2)) set_add(&set, i);
    return set;
}

/* A right message of the type, all of its fields random within the counts. */
static elastic_message_t random_message(rng_t *rng, elastic_message_type_t type, uint32_t members,
                                        uint32_t leases, uint32_t buckets)
{
    elastic_message_t m = {.type = type,
                           .view = 300 + rng_below(rng, 1000),
                           .step = rng_next(rng),
                           .layout = rng_next(rng),
                           .hint = rng_next(rng),
                           .known = rng_next(rng),
                           .leases = leases,
                           .buckets = buckets,
                           .members = members,
                           .full = rng_next(rng) & all_members(members)};
    m.complete = type == ELASTIC_VOTE && rng_below(rng, 2);
    m.leave = type == ELASTIC_REPORT && rng_below(rng, 2);
    m.last = type == ELASTIC_GRANT && rng_below(rng, 2);
    m.granted = random_set(rng, leases);
    m.done = (uint32_t)rng_below(rng, leases + 1);
    m.pace = (elastic_pace_t){.lease_ns = rng_below(rng, ELASTIC_PACE_NS_MAX + 1),
                              .step_ns = rng_below(rng, ELASTIC_PACE_NS_MAX + 1),
                              .run = (uint32_t)rng_below(rng, ELASTIC_LEASES_MAX + 1),
                              .last = (uint32_t)rng_below(rng, ELASTIC_LEASES_MAX + 1),
                              .most = (uint32_t)rng_below(rng, ELASTIC_LEASES_MAX + 1)};
    m.role = (elastic_role_t)rng_below(rng, 4);
    m.wire = (uint8_t)rng_below(rng, UINT8_MAX + 1);
    m.computed = random_set(rng, leases);
    m.given_up = random_set(rng, leases);
    m.dropped = random_set(rng, leases);
    m.held = random_set(rng, buckets);
    m.chunks = random_set(rng, buckets - 1);
    for (uint32_t i = 0; i < members; i++)
        m.plan[i] = buckets > 1 && rng_below(rng, 2) ? (uint8_t)rng_below(rng, buckets - 1) : NOBODY;
    for (uint32_t i = 0; i < members; i++) m.shares[i] = (uint8_t)rng_below(rng, UINT8_MAX + 1);
    for (uint32_t i = 0; i < leases; i++)
        m.owner[i] =
            rng_below(rng, 3) ? (uint8_t)(rng_below(rng, members) | rng_below(rng, 2) * RESERVED) : NOBODY;
    for (uint32_t i = 0; i < buckets; i++) {
        m.tag[i] = 1 + (uint32_t)rng_below(rng, 299);
        m.source[i] = (uint8_t)rng_below(rng, members);
        m.need[i] = rng_next(rng) & all_members(members) & ~(1ull << m.source[i]);
    }
    return m;
}

static void assert_sets(elastic_set_t a, elastic_set_t b)
{
    assert_true(set_equal(a, b));
}

static void assert_same_pace(const elastic_pace_t *a, const elastic_pace_t *b)
{
    assert_int_equal(a->lease_ns, b->lease_ns);
    assert_int_equal(a->step_ns, b->step_ns);
    assert_int_equal(a->run, b->run);
    assert_int_equal(a->last, b->last);
    assert_int_equal(a->most, b->most);
}

static void assert_same(const elastic_message_t *a, const elastic_message_t *b)
{
    bool report = a->type == ELASTIC_REPORT, decide = a->type == ELASTIC_DECIDE,
         commit = a->type == ELASTIC_COMMIT;
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->view, b->view);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->layout, b->layout);
    assert_int_equal(a->complete, b->complete);
    assert_int_equal(a->leave, b->leave);
    if (a->type == ELASTIC_VOTE || commit) assert_int_equal(a->hint, b->hint);
    if (a->type == ELASTIC_VOTE || report) assert_sets(a->chunks, b->chunks);
    if (a->type == ELASTIC_VOTE) assert_int_equal(a->known, b->known);
    assert_int_equal(a->last, b->last);
    if (a->type == ELASTIC_GRANT) assert_sets(a->granted, b->granted);
    if (a->type == ELASTIC_CLAIM) assert_int_equal(a->done, b->done);
    if (a->type == ELASTIC_VOTE || report) assert_same_pace(&a->pace, &b->pace);
    if (report || decide) assert_sets(a->dropped, b->dropped);
    if (report) {
        assert_int_equal(a->role, b->role);
        assert_sets(a->computed, b->computed);
        assert_sets(a->given_up, b->given_up);
    }
    if (report || decide || commit) {
        assert_int_equal(a->leases, b->leases);
        assert_int_equal(a->buckets, b->buckets);
    }
    if (decide || commit) {
        assert_int_equal(a->full, b->full);
        assert_int_equal(a->members, b->members);
        assert_int_equal(a->wire, b->wire);
        assert_memory_equal(a->plan, b->plan, a->members);
        assert_memory_equal(a->owner, b->owner, a->leases);
    }
    if (commit) assert_memory_equal(a->shares, b->shares, a->members);
    if (!report && !decide) return;
    assert_sets(a->held, b->held);
    for (uint32_t i = 0; i < a->buckets; i++) {
        if (!elastic_has(&a->held, i)) continue;
        assert_int_equal(a->tag[i], b->tag[i]);
        if (!decide) continue;
        assert_int_equal(a->source[i], b->source[i]);
        assert_int_equal(a->need[i], b->need[i]);
    }
}

static inspan_status_t decode(const uint8_t *bytes, size_t n, elastic_message_t *m)
{
    uint8_t *exact = malloc(n ? n : 1); /* so that a read beyond the end is seen */
    const char *why = NULL;
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    inspan_status_t status = elastic_message_decode(exact, n, m, &why);
    assert_true((status == INSPAN_OK) == (why == NULL));
    free(exact);
    return status;
}

static void what_is_encoded_decodes(void **state)
{
    (void)state;
    static const uint32_t sizes[][3] = {{1, 1, 1}, {2, 3, 2}, {5, 64, 65}, {64, 256, 256}, {63, 255, 128}};
    rng_t rng;
    rng_seed(&rng, 1, 0);
    for (int round = 0; round < 280; round++) {
        const uint32_t *size = sizes[round % 5];
        elastic_message_t m = random_message(&rng, types[round / 5 % TYPES], size[0], size[1], size[2]), back;
        uint8_t bytes[ELASTIC_MESSAGE_MAX];
        size_t n = elastic_message_encode(&m, bytes);
        assert_in_range(n, ELASTIC_HEADER_BYTES, ELASTIC_MESSAGE_MAX);
        assert_int_equal(decode(bytes, n, &back), INSPAN_OK);
        assert_same(&m, &back);
    }
}

static void largest_messages_fit(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 2, 0);
    for (size_t t = 0; t < TYPES; t++) {
        elastic_message_t back,
            m = random_message(&rng, types[t], ELASTIC_MEMBERS_MAX, ELASTIC_LEASES_MAX, ELASTIC_BUCKETS_MAX);
        m.held = set_first(ELASTIC_BUCKETS_MAX);
        uint8_t bytes[ELASTIC_MESSAGE_MAX];
        size_t n = elastic_message_encode(&m, bytes);
        assert_in_range(n, ELASTIC_HEADER_BYTES, ELASTIC_MESSAGE_MAX);
        assert_int_equal(decode(bytes, n, &back), INSPAN_OK);
        assert_same(&m, &back);
    }
}

static void every_other_length_is_corrupt(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (size_t t = 0; t < TYPES; t++) {
        elastic_message_t back, m = random_message(&rng, types[t], 5, 9, 7);
        m.held = set_first(7);
        uint8_t bytes[ELASTIC_MESSAGE_MAX + 1] = {0};
        size_t whole = elastic_message_encode(&m, bytes);
        for (size_t n = 0; n < whole; n++) assert_int_equal(decode(bytes, n, &back), INSPAN_CORRUPT);
        assert_int_equal(decode(bytes, whole + 1, &back), INSPAN_CORRUPT);
        assert_int_equal(decode(bytes, sizeof bytes, &back), INSPAN_CORRUPT);
    }
}

/* Whatever decodes is within the counts, so that no index of it leads outside. */
static void assert_in_bounds(const elastic_message_t *m)
{
    assert_in_range(m->view, 1, UINT32_MAX);
    if (m->type == ELASTIC_VOTE || m->type == ELASTIC_REPORT)
        assert_true(m->pace.run <= ELASTIC_LEASES_MAX && m->pace.most <= ELASTIC_LEASES_MAX);
    if (m->type == ELASTIC_CLAIM) assert_in_range(m->done, 0, ELASTIC_LEASES_MAX);
    if (m->type == ELASTIC_VOTE || m->type >= ELASTIC_LEAVE) return;
    assert_in_range(m->leases, 1, ELASTIC_LEASES_MAX);
    assert_in_range(m->buckets, 1, ELASTIC_BUCKETS_MAX);
    if (m->type == ELASTIC_REPORT) return;
    assert_in_range(m->members, 1, ELASTIC_MEMBERS_MAX);
    for (uint32_t i = 0; i < m->leases; i++)
        assert_true(m->owner[i] == NOBODY || (m->owner[i] & ~RESERVED) < m->members);
    for (uint32_t i = 0; m->type == ELASTIC_DECIDE && i < m->buckets; i++)
        if (elastic_has(&m->held, i)) assert_true(m->source[i] < m->members && m->tag[i] < m->view);
}

static void damaged_bytes_stay_in_bounds(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        elastic_message_t back = {0}, m = random_message(&rng, types[(size_t)round % TYPES], 3, 5, 4);
        uint8_t bytes[ELASTIC_MESSAGE_MAX];
        size_t n = elastic_message_encode(&m, bytes);
        for (uint64_t k = 1 + rng_below(&rng, 4); k > 0; k--)
            bytes[rng_below(&rng, n)] ^= (uint8_t)(1u << rng_below(&rng, 8));
        if (decode(bytes, n, &back) == INSPAN_OK)
            assert_in_bounds(&back);
        else
            refused++;
    }
    assert_true(refused > 1000);
}

/* The bytes themselves, once: other versions must read them. */
static void layout_is_as_documented(void **state)
{
    (void)state;
    elastic_message_t m = {.type = ELASTIC_VOTE,
                           .view = 0x01020304,
                           .step = 0x05060708090a0b0cull,
                           .layout = 0x1112131415161718ull,
                           .hint = 0x2122232425262728ull,
                           .pace = {0x0102, 3, 4, 5, 0x100},
                           .known = 0x0304,
                           .complete = true};
    set_add(&m.chunks, 0);
    set_add(&m.chunks, 9);
    uint8_t bytes[ELASTIC_MESSAGE_MAX];
    static const uint8_t expected[112] = {
        3,    0,    0,    0,        1,    0,        0,        0,        4,        3,         2,    1,    0,
        0,    0,    0,    0x0c,     0x0b, 0x0a,     0x09,     8,        7,        6,         5,    0x18, 0x17,
        0x16, 0x15, 0x14, 0x13,     0x12, 0x11,     0x28,     0x27,     0x26,     0x25,      0x24, 0x23, 0x22,
        0x21, 1,    2,    [72] = 2, 1,    [80] = 3, [88] = 4, [92] = 5, [97] = 1, [104] = 4, 3};
    assert_int_equal(elastic_message_encode(&m, bytes), 112);
    assert_memory_equal(bytes, expected, 112);
    uint64_t view, step;
    assert_string_equal(elastic_message_name(bytes, 112, &view, &step), "VOTE");
    assert_int_equal(view, 0x01020304);
    assert_string_equal(elastic_message_name(bytes, 31, &view, &step), "damaged");
}

static void sets_count(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= 256; n++) {
        elastic_set_t set = set_first(n);
        assert_int_equal(set_count(set), n);
        assert_true(n == 0 || elastic_has(&set, n - 1));
        assert_false(elastic_has(&set, n));
        assert_true(n == 0 || set_lowest(set_minus(set, set_first(n - 1))) == n - 1);
    }
    assert_false(elastic_has(&(elastic_set_t){{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}}, UINT32_MAX));
    assert_int_equal(all_members(64), UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_encoded_decodes),       cmocka_unit_test(largest_messages_fit),
        cmocka_unit_test(every_other_length_is_corrupt), cmocka_unit_test(damaged_bytes_stay_in_bounds),
        cmocka_unit_test(layout_is_as_documented),       cmocka_unit_test(sets_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
