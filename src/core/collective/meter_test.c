/* What traffic shows of ports whose speed is known: senders' streams are played as fluid. */
#include "core/collective/meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WORLD = 4, PEERS = 3 };

static meter_t meter;
static meter_stream_t streams[WORLD];

static int open_meter(void **state)
{
    (void)state;
    meter_open(&meter, streams, WORLD);
    return 0;
}

/* For so many milliseconds the streams of rank 0 to ranks 1, 2, 3 are backlogged or not, and go at these
 * rates, bytes a millisecond. */
static ns_t play(ns_t from, int ms, const bool backlogged[PEERS], const uint64_t rates[PEERS])
{
    for (int i = 0; i < PEERS; i++) meter_backlog(&meter, (uint32_t)i + 1, backlogged[i], from);
    for (int t = 0; t < ms; t++)
        for (int i = 0; i < PEERS; i++) meter_sent(&meter, (uint32_t)i + 1, rates[i]);
    const ns_t to = from + ms * NS_PER_MS;
    for (int i = 0; i < PEERS; i++) meter_backlog(&meter, (uint32_t)i + 1, false, to);
    return to;
}

static void nothing_is_known_at_first(void **state)
{
    (void)state;
    assert_true(meter_up(&meter) == 0 && meter_towards(&meter, 1) == 0);
    const uint64_t little[PEERS] = {100, 100, 100};
    const bool all[PEERS] = {true, true, true};
    const uint64_t some[PEERS] = {5000, 5000, 5000};
    ns_t now = play(0, 100, all, little); /* too little to tell */
    assert_true(meter_up(&meter) == 0);
    play(now, 150, all, some); /* enough of one stream, not of three: each hides something in its socket */
    assert_true(meter_up(&meter) == 0);
}

static void all_backlogged_show_the_own_port(void **state)
{
    (void)state;
    const bool all[PEERS] = {true, true, true};
    const uint64_t rates[PEERS] = {40000, 40000, 20000};
    ns_t now = play(0, 40, all, rates);
    for (int i = 0; i < 3; i++) now = play(now, 40, all, rates);
    assert_true(meter_up(&meter) < 0); /* four samples may be alike by chance */
    play(now, 40, all, rates);
    assert_true(meter_up(&meter) > 99.9e6 && meter_up(&meter) < 100.1e6);
    assert_true(meter_towards(&meter, 3) == 0);
}

static void one_backlogged_shows_the_receivers_port(void **state)
{
    (void)state;
    const bool third[PEERS] = {false, false, true};
    const uint64_t rates[PEERS] = {40000, 40000, 8000};
    ns_t now = 0;
    for (int i = 0; i < 5; i++) now = play(now, 150, third, rates);
    assert_true(meter_up(&meter) == 0);
    assert_true(meter_towards(&meter, 1) == 0 && meter_towards(&meter, 2) == 0);
    assert_true(meter_towards(&meter, 3) > 7.99e6 && meter_towards(&meter, 3) < 8.01e6);
}

static void what_is_old_is_forgotten(void **state)
{
    (void)state;
    const bool all[PEERS] = {true, true, true};
    const uint64_t fast[PEERS] = {40000, 40000, 20000}, slow[PEERS] = {4000, 4000, 2000};
    ns_t now = 0;
    for (int i = 0; i < METER_SAMPLES; i++) now = play(now, 40, all, fast);
    for (int i = 0; i < 6; i++) now = play(now, 400, all, slow);
    assert_true(meter_up(&meter) < -99e6); /* held up, perhaps; it wavers */
    play(now, 400, all, slow);
    assert_true(meter_up(&meter) > 9e6 && meter_up(&meter) < 11e6);
}

/* From one rest to the next: so many bytes to a peer in so many milliseconds. */
static void go(uint32_t peer, uint64_t bytes, int ms)
{
    meter_begin(&meter, NS_PER_S);
    meter_sent(&meter, peer, bytes);
    meter_rest(&meter, NS_PER_S + ms * NS_PER_MS);
}

/* A port that has become faster is seen though nothing is backlogged any more. */
static void what_goes_faster_is_faster(void **state)
{
    (void)state;
    const bool third[PEERS] = {false, false, true};
    const uint64_t rates[PEERS] = {40000, 40000, 8000};
    ns_t now = 0;
    for (int i = 0; i < METER_SAMPLES; i++) now = play(now, 150, third, rates);
    go(3, 3000000, 100);
    assert_true(meter_towards(&meter, 3) > 29e6 && meter_towards(&meter, 3) < 31e6);
    go(3, 300000, 300);        /* slower says nothing, */
    go(3, METER_BYTES - 1, 1); /* nor does little */
    go(1, 3000000, 100);       /* never held back: not known */
    assert_true(meter_towards(&meter, 3) > 29e6 && meter_towards(&meter, 3) < 31e6);
    assert_true(meter_towards(&meter, 1) == 0);
}

static void two_ranks_have_one_stream(void **state)
{
    (void)state;
    meter_open(&meter, streams, 2);
    for (int i = 0; i < 5; i++) {
        meter_backlog(&meter, 1, true, 40 * i * NS_PER_MS);
        meter_sent(&meter, 1, 1 << 20);
        meter_backlog(&meter, 1, false, (40 * i + 20) * NS_PER_MS);
    }
    assert_true(meter_up(&meter) > 52e6 && meter_up(&meter) < 53e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_is_known_at_first, open_meter),
        cmocka_unit_test_setup(all_backlogged_show_the_own_port, open_meter),
        cmocka_unit_test_setup(one_backlogged_shows_the_receivers_port, open_meter),
        cmocka_unit_test_setup(what_is_old_is_forgotten, open_meter),
        cmocka_unit_test_setup(what_goes_faster_is_faster, open_meter),
        cmocka_unit_test_setup(two_ranks_have_one_stream, open_meter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
