#include "platform/wire/local.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

static uint8_t frame[LOCAL_FRAME_MAX + 8];

static const uint8_t *whole_frame(size_t used, local_frame_type_t expected, size_t *body_bytes)
{
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t whole = 0;
    assert_int_equal(local_peek(frame, used, &type, &body, body_bytes, &whole), INSPAN_OK);
    assert_int_equal(type, expected);
    assert_int_equal(whole, used);
    return body;
}

static void test_hello_and_welcome(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    local_hello_t hello = {.major = 1, .minor = 3, .pid = 77, .incarnation = 0x1122334455667788u}, hello2;
    assert_int_equal(local_encode_hello(&hello, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t golden[] = {
        24, 0, 0,  0, 1, 0, 0,    0,    'I',  'S',  'P',  'N',  1,    0,
        3,  0, 77, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}; /* the layout is a promise */
    assert_int_equal(used, sizeof golden);
    assert_memory_equal(frame, golden, sizeof golden);
    const uint8_t *body = whole_frame(used, LOCAL_HELLO, &n);
    assert_int_equal(local_decode_hello(body, n, &hello2), INSPAN_OK);
    assert_memory_equal(&hello, &hello2, sizeof hello);

    local_welcome_t welcome = {.major = 1,
                               .job = 9,
                               .node = "attic",
                               .failure_timeout = 5 * NS_PER_S,
                               .threads = 3,
                               .first_port = 7500,
                               .last_port = 7599};
    local_welcome_t welcome2;
    assert_int_equal(local_encode_welcome(&welcome, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_WELCOME, &n);
    assert_int_equal(local_decode_welcome(body, n, &welcome2), INSPAN_OK);
    assert_string_equal(welcome2.node, "attic");
    assert_int_equal(welcome2.failure_timeout, 5 * NS_PER_S);
    assert_int_equal(welcome2.last_port, 7599);

    welcome.threads = 0;
    assert_int_equal(local_encode_welcome(&welcome, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_WELCOME, &n);
    assert_int_equal(local_decode_welcome(body, n, &welcome2), INSPAN_CORRUPT);
}

static void test_another_major_is_readable(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    local_hello_t hello = {.major = 2, .minor = 7, .pid = 1}, found;
    assert_int_equal(local_encode_hello(&hello, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_HELLO, &n);
    assert_int_equal(local_decode_hello(body, 8, &found), INSPAN_OK); /* whatever follows in that version */
    assert_int_equal(found.major, 2);
    assert_int_equal(found.minor, 7);
    frame[8] ^= 1;
    assert_int_equal(local_decode_hello(body, n, &found), INSPAN_CORRUPT); /* not our magic */
}

static void test_view_of_the_largest_world(void **state)
{
    (void)state;
    inspan_member_t *members = calloc(LOCAL_WORLD_MAX, sizeof *members);
    for (int i = 0; i < LOCAL_WORLD_MAX; i++) {
        memset(members[i].node, 'n', INSPAN_NAME_MAX - 1);
        memset(members[i].address, '1', INSPAN_NAME_MAX - 1);
        members[i].number = (uint32_t)(2 * i + 1);
        members[i].port = (uint16_t)(60000 + i);
        members[i].incarnation = ~(uint64_t)i;
        members[i].pace_sample_ns = UINT64_MAX - (uint64_t)i;
        members[i].pace_step_ns = (uint64_t)i;
    }
    static const uint32_t worlds[] = {1, 2, 3, 5, 7, LOCAL_WORLD_MAX};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        local_view_t view = {.view = 4, .rank = worlds[i] - 1, .world = worlds[i], .members = members}, found;
        view.first = i % 2 == 0;
        memset(view.key, 0xa5, sizeof view.key);
        size_t used = 0, n = 0;
        assert_int_equal(local_encode_view(&view, LOCAL_MINOR, frame, sizeof frame, &used), INSPAN_OK);
        const uint8_t *body = whole_frame(used, LOCAL_VIEW, &n);
        assert_int_equal(local_decode_view(body, n, &found), INSPAN_OK);
        assert_int_equal(found.rank, view.rank);
        assert_int_equal(found.first, view.first);
        assert_memory_equal(found.key, view.key, sizeof view.key);
        assert_memory_equal(found.members, members, worlds[i] * sizeof *members);
        free(found.members);
        size_t whole = used;
        for (size_t less = 1; less < 16 * worlds[i] && less < 40;
             less++) /* paces of all members or of none */
            assert_int_equal(local_decode_view(body, n - less, &found), INSPAN_CORRUPT);
        assert_int_equal(local_encode_view(&view, 1, frame, sizeof frame, &used), INSPAN_OK);
        assert_int_equal(used, whole - 16 * worlds[i]);
        body = whole_frame(used, LOCAL_VIEW, &n);
        assert_int_equal(local_decode_view(body, n, &found), INSPAN_OK);
        assert_int_equal(found.members[0].pace_sample_ns, 0);
        assert_int_equal(found.members[worlds[i] - 1].incarnation, members[worlds[i] - 1].incarnation);
        free(found.members);
        assert_int_equal(local_encode_view(&view, LOCAL_MINOR, frame, whole - 1, &used), INSPAN_LIMIT);
    }
    local_view_t wrong = {.world = LOCAL_WORLD_MAX + 1, .members = members};
    size_t used = 0;
    assert_int_equal(local_encode_view(&wrong, LOCAL_MINOR, frame, sizeof frame, &used), INSPAN_LIMIT);
    wrong = (local_view_t){.world = 2, .rank = 2, .members = members};
    size_t n = 0;
    assert_int_equal(local_encode_view(&wrong, LOCAL_MINOR, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_VIEW, &n);
    local_view_t found;
    assert_int_equal(local_decode_view(body, n, &found), INSPAN_CORRUPT); /* rank outside the world */
    members[1].number = members[0].number;                                /* numbers only rise */
    wrong = (local_view_t){.world = 2, .rank = 1, .members = members};
    assert_int_equal(local_encode_view(&wrong, LOCAL_MINOR, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_VIEW, &n);
    assert_int_equal(local_decode_view(body, n, &found), INSPAN_CORRUPT);
    free(members);
}

static void test_tick_and_end(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    inspan_progress_t progress = {.step = 1,
                                  .steps = 2,
                                  .samples = 3,
                                  .loss = 1.5,
                                  .validation_loss = NAN,
                                  .samples_per_s = 1e3,
                                  .bytes_sent = UINT64_MAX,
                                  .param_hash = 42,
                                  .pace_sample_ns = 5,
                                  .pace_step_ns = 6,
                                  .share_samples = 7,
                                  .run_samples = 8,
                                  .samples_recomputed = 9},
                      found;
    assert_int_equal(local_encode_tick(&progress, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_TICK, &n);
    assert_int_equal(local_decode_tick(body, n, &found), INSPAN_OK);
    assert_memory_equal(&found, &progress, sizeof found); /* the NaN's bits too */
    assert_int_equal(local_decode_tick(body, n - 1, &found), INSPAN_CORRUPT);
    assert_int_equal(local_decode_tick(body, 88, &found), INSPAN_OK); /* of an older worker */
    assert_int_equal(found.param_hash, 42);
    assert_int_equal(found.pace_sample_ns + found.share_samples, 0);

    static local_end_t end, end2;
    end.status = INSPAN_PEER_LOST;
    end.cause = (inspan_cause_t){.status = INSPAN_PEER_LOST,
                                 .rank = -1,
                                 .noticed_by = 2,
                                 .waited_ns = -5,
                                 .node = "b",
                                 .address = "[fd00::1]:7500",
                                 .operation = "allreduce #3",
                                 .text = "x"};
    memset(end.text, 't', sizeof end.text - 1);
    assert_int_equal(local_encode_end(LOCAL_FAILED, &end, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_FAILED, &n);
    assert_int_equal(local_decode_end(body, n, &end2), INSPAN_OK);
    assert_int_equal(end2.cause.rank, -1);
    assert_int_equal(end2.cause.waited_ns, -5);
    assert_string_equal(end2.cause.address, end.cause.address);
    assert_string_equal(end2.text, end.text);
    memset(frame + 8, 0xff, 4); /* a status of a later version is some failure, never OK */
    assert_int_equal(local_decode_end(body, n, &end2), INSPAN_OK);
    assert_int_equal(end2.status, INSPAN_INTERNAL);
}

/* Each body with every byte missing at its end, and with one too many. */
#define REFUSES_OTHER_LENGTHS(decode, body, n, into)                                                         \
    do {                                                                                                     \
        for (size_t cut = 0; cut < (n); cut++) assert_int_equal(decode(body, cut, into), INSPAN_CORRUPT);    \
        assert_int_equal(decode(body, (n) + 1, into), INSPAN_CORRUPT);                                       \
    } while (0)

static void test_ready_state_and_blame(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    uint64_t view = 0;
    assert_int_equal(local_encode_ready(0x1122334455667788u, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_READY, &n);
    assert_int_equal(local_decode_ready(body, n, &view), INSPAN_OK);
    assert_true(view == 0x1122334455667788u);
    REFUSES_OTHER_LENGTHS(local_decode_ready, body, n, &view);
    assert_int_equal(local_encode_left(0x8877665544332211u, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_LEFT, &n);
    assert_int_equal(local_decode_left(body, n, &view), INSPAN_OK);
    assert_true(view == 0x8877665544332211u);
    REFUSES_OTHER_LENGTHS(local_decode_left, body, n, &view);

    bool full = false;
    assert_int_equal(local_encode_state(true, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_STATE, &n);
    assert_int_equal(local_decode_state(body, n, &full), INSPAN_OK);
    assert_true(full);
    REFUSES_OTHER_LENGTHS(local_decode_state, body, n, &full);
    char long_note[LOCAL_NOTE_MAX + 50], note[LOCAL_NOTE_MAX];
    memset(long_note, 'x', sizeof long_note);
    long_note[sizeof long_note - 1] = '\0';
    assert_int_equal(local_encode_note(long_note, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_NOTE, &n);
    assert_int_equal(local_decode_note(body, n, note), INSPAN_OK);
    assert_int_equal(strlen(note), LOCAL_NOTE_MAX - 1);
    REFUSES_OTHER_LENGTHS(local_decode_note, body, n, note);
    assert_int_equal(local_encode_state(true, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_STATE, &n);
    frame[8] = 2; /* neither yes nor no */
    assert_int_equal(local_decode_state(body, n, &full), INSPAN_CORRUPT);

    local_blame_t blame = {.view = 7,
                           .cause = {.status = INSPAN_PEER_LOST,
                                     .rank = 41,
                                     .noticed_by = -1,
                                     .waited_ns = 12,
                                     .node = "attic",
                                     .address = "10.0.0.1:7500",
                                     .operation = "allreduce #3",
                                     .text = "rank 41 is gone"}},
                  found;
    assert_int_equal(local_encode_blame(&blame, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_BLAME, &n);
    assert_int_equal(local_decode_blame(body, n, &found), INSPAN_OK);
    assert_int_equal(found.view, 7);
    assert_int_equal(found.cause.rank, 41);
    assert_int_equal(found.cause.noticed_by, -1);
    assert_string_equal(found.cause.text, blame.cause.text);
    REFUSES_OTHER_LENGTHS(local_decode_blame, body, n, &found);
    assert_int_equal(local_encode_blame(&blame, frame, used - 1, &used), INSPAN_LIMIT);
}

static void test_saved_and_registered(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    local_saved_t saved = {.step = 200, .view = 3, .result = true, .folder = "out/step-00000200"}, found;
    assert_int_equal(local_encode_saved(&saved, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_SAVED, &n);
    assert_int_equal(local_decode_saved(body, n, &found), INSPAN_OK);
    assert_int_equal(found.step, 200);
    assert_int_equal(found.view, 3);
    assert_true(found.result);
    assert_string_equal(found.folder, saved.folder);
    REFUSES_OTHER_LENGTHS(local_decode_saved, body, n, &found);
    static const char *const outside[] = {"", "/etc", "..", "../x", "out/..", "out/../../x"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        snprintf(saved.folder, sizeof saved.folder, "%s", outside[i]);
        assert_int_equal(local_encode_saved(&saved, frame, sizeof frame, &used), INSPAN_OK);
        body = whole_frame(used, LOCAL_SAVED, &n);
        assert_int_equal(local_decode_saved(body, n, &found), INSPAN_CORRUPT);
    }
    snprintf(saved.folder, sizeof saved.folder, "..out/a..b/.."); /* a name may begin with dots */
    saved.folder[11] = '\0';
    assert_int_equal(local_encode_saved(&saved, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_SAVED, &n);
    assert_int_equal(local_decode_saved(body, n, &found), INSPAN_OK);

    local_registered_t registered = {.step = 200, .status = INSPAN_IO, .text = "no space"}, back;
    assert_int_equal(local_encode_registered(&registered, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_REGISTERED, &n);
    assert_int_equal(local_decode_registered(body, n, &back), INSPAN_OK);
    assert_int_equal(back.step, 200);
    assert_false(back.result);
    assert_int_equal(back.status, INSPAN_IO);
    assert_string_equal(back.text, "no space");
    REFUSES_OTHER_LENGTHS(local_decode_registered, body, n, &back);
}

static void test_verdict(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    local_verdict_t verdict = {.step = 51,
                               .started = 50,
                               .about = 7,
                               .cause = LOCAL_CAUSE_QUOTA,
                               .factor = 0.3,
                               .share_before = 57,
                               .share_after = 24,
                               .leave = true,
                               .evidence = "CPU quota 0.24 cores, was 0.80"},
                    found;
    assert_int_equal(local_encode_verdict(&verdict, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_VERDICT, &n);
    assert_int_equal(local_decode_verdict(body, n, &found), INSPAN_OK);
    assert_int_equal(found.step, 51);
    assert_int_equal(found.started, 50);
    assert_int_equal(found.about, 7);
    assert_int_equal(found.cause, LOCAL_CAUSE_QUOTA);
    assert_true(found.factor == 0.3 && found.leave);
    assert_int_equal(found.share_before, 57);
    assert_int_equal(found.share_after, 24);
    assert_string_equal(found.evidence, verdict.evidence);
    REFUSES_OTHER_LENGTHS(local_decode_verdict, body, n, &found);
    frame[8 + 20] = 200; /* a cause of a later version */
    assert_int_equal(local_decode_verdict(body, n, &found), INSPAN_OK);
    assert_int_equal(found.cause, LOCAL_CAUSE_UNKNOWN);
    static const double wrong[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        verdict.factor = wrong[i];
        assert_int_equal(local_encode_verdict(&verdict, frame, sizeof frame, &used), INSPAN_OK);
        body = whole_frame(used, LOCAL_VERDICT, &n);
        assert_int_equal(local_decode_verdict(body, n, &found), INSPAN_CORRUPT);
    }
}

static void test_vitals(void **state)
{
    (void)state;
    size_t used = 0, n = 0;
    const local_vitals_t vitals = {.cores = 0.8,
                                   .throttled = 0.25,
                                   .clock_mhz = 2900,
                                   .clock_best_mhz = 4200,
                                   .temperature_c = 71.5,
                                   .others_cores = NAN,
                                   .swap_bytes_per_s = 4096,
                                   .allowed = 0.5,
                                   .on_battery = true,
                                   .limit = LOCAL_LIMIT_BATTERY};
    local_vitals_t found;
    assert_int_equal(local_encode_vitals(&vitals, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_VITALS, &n);
    assert_int_equal(n, 67);
    assert_int_equal(local_decode_vitals(body, n, &found), INSPAN_OK);
    assert_true(found.cores == 0.8 && found.throttled == 0.25 && found.clock_mhz == 2900);
    assert_true(found.clock_best_mhz == 4200 && found.temperature_c == 71.5 && isnan(found.others_cores));
    assert_true(found.swap_bytes_per_s == 4096 && found.allowed == 0.5);
    assert_true(found.on_battery && !found.owner_active);
    assert_int_equal(found.limit, LOCAL_LIMIT_BATTERY);
    REFUSES_OTHER_LENGTHS(local_decode_vitals, body, n, &found);
    frame[8 + 66] = 200; /* of a newer version */
    assert_int_equal(local_decode_vitals(body, n, &found), INSPAN_OK);
    assert_int_equal(found.limit, LOCAL_LIMIT_OTHER);
    frame[8 + 65] = 2; /* neither yes nor no */
    assert_int_equal(local_decode_vitals(body, n, &found), INSPAN_CORRUPT);
    static const double bad[] = {-1e-9, -INFINITY, INFINITY, NAN};
    for (size_t field = 0; field < 8; field++)
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            const bool may_be_unknown = field == 5 || field == 6;
            assert_int_equal(local_encode_vitals(&vitals, frame, sizeof frame, &used), INSPAN_OK);
            memcpy(frame + 8 + 8 * field, &bad[i], 8); /* doubles travel as they are on such machines */
            body = whole_frame(used, LOCAL_VITALS, &n);
            assert_int_equal(local_decode_vitals(body, n, &found),
                             may_be_unknown && isnan(bad[i]) ? INSPAN_OK : INSPAN_CORRUPT);
        }
    local_vitals_t wrong = vitals;
    wrong.allowed = 1.001;
    assert_int_equal(local_encode_vitals(&wrong, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_VITALS, &n);
    assert_int_equal(local_decode_vitals(body, n, &found), INSPAN_CORRUPT);
    assert_int_equal(local_encode_vitals(&vitals, frame, used - 1, &used), INSPAN_LIMIT);
}

static void test_ledger(void **state)
{
    (void)state;
    static local_ledger_t ledger, found;
    size_t used = 0, n = 0;
    ledger = (local_ledger_t){
        .seed = 1, .batch = 2 * LOCAL_SHARES, .first_step = 4, .last_step = 9, .view = 2, .n = LOCAL_SHARES};
    for (uint32_t i = 0; i < LOCAL_SHARES; i++)
        ledger.shares[i] = (local_share_t){.rank = (int32_t)i - 1, .first = 2 * i, .n = 2};
    assert_int_equal(local_encode_ledger(&ledger, frame, sizeof frame, &used), INSPAN_OK);
    const uint8_t *body = whole_frame(used, LOCAL_LEDGER, &n);
    assert_int_equal(local_decode_ledger(body, n, &found), INSPAN_OK);
    assert_int_equal(found.last_step, 9);
    assert_int_equal(found.n, LOCAL_SHARES);
    assert_int_equal(found.shares[0].rank, -1);
    assert_int_equal(found.shares[LOCAL_SHARES - 1].first, 2 * LOCAL_SHARES - 2);
    REFUSES_OTHER_LENGTHS(local_decode_ledger, body, n, &found);
    ledger.n = LOCAL_SHARES + 1;
    assert_int_equal(local_encode_ledger(&ledger, frame, sizeof frame, &used), INSPAN_LIMIT);
    ledger.n = 1;
    ledger.shares[0] = (local_share_t){.first = 1, .n = UINT64_MAX}; /* outside the batch, by an overflow */
    assert_int_equal(local_encode_ledger(&ledger, frame, sizeof frame, &used), INSPAN_OK);
    body = whole_frame(used, LOCAL_LEDGER, &n);
    assert_int_equal(local_decode_ledger(body, n, &found), INSPAN_CORRUPT);
}

static void test_peek(void **state)
{
    (void)state;
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t used = 0, n = 0, whole = 0;
    assert_int_equal(local_encode_empty(LOCAL_STOP, frame, sizeof frame, &used), INSPAN_OK);
    assert_int_equal(used, 8);
    for (size_t i = 0; i < used; i++)
        assert_int_equal(local_peek(frame, i, &type, &body, &n, &whole), INSPAN_PENDING);
    assert_int_equal(local_peek(frame, used, &type, &body, &n, &whole), INSPAN_OK);
    assert_int_equal(n, 0);
    const uint8_t bad[][8] = {
        {3, 0, 0, 0, 5, 0, 0, 0},           /* shorter than its head */
        {1, 0, 1, 0, 5, 0, 0, 0},           /* one above the cap */
        {4, 0, 0, 0, 0, 0, 0, 0},           /* no such type */
        {4, 0, 0, 0, LOCAL_TYPES, 0, 0, 0}, /* no such type */
        {4, 0, 0, 0, 5, 1, 0, 0},           /* type above 255 */
        {4, 0, 0, 0, 5, 0, 0, 1},           /* not zero */
        {255, 255, 255, 255, 5, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(local_peek(bad[i], 8, &type, &body, &n, &whole), INSPAN_CORRUPT);
}

/* Any bytes whatsoever: a status, never a read outside (run under ASan: the body is an allocation of its own
 * size). */
static void decode_any(const uint8_t *body, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, body, n);
    local_hello_t hello;
    local_welcome_t welcome;
    local_view_t view;
    static local_end_t end;
    inspan_progress_t progress;
    uint16_t port;
    local_decode_hello(copy, n, &hello);
    local_decode_welcome(copy, n, &welcome);
    local_decode_bound(copy, n, &port);
    if (local_decode_view(copy, n, &view) == INSPAN_OK) free(view.members);
    local_decode_tick(copy, n, &progress);
    uint64_t view_number;
    bool full;
    static local_ledger_t ledger;
    local_blame_t blame;
    local_saved_t saved;
    local_registered_t registered;
    local_decode_ready(copy, n, &view_number);
    local_decode_left(copy, n, &view_number);
    local_decode_state(copy, n, &full);
    char note[LOCAL_NOTE_MAX];
    local_decode_note(copy, n, note);
    local_verdict_t verdict;
    if (local_decode_verdict(copy, n, &verdict) == INSPAN_OK) assert_true(verdict.cause < LOCAL_CAUSES);
    local_vitals_t vitals;
    if (local_decode_vitals(copy, n, &vitals) == INSPAN_OK)
        assert_true(vitals.allowed >= 0 && vitals.allowed <= 1 && vitals.limit <= LOCAL_LIMIT_OTHER);
    local_decode_blame(copy, n, &blame);
    local_decode_saved(copy, n, &saved);
    local_decode_registered(copy, n, &registered);
    if (local_decode_ledger(copy, n, &ledger) == INSPAN_OK) assert_true(ledger.n <= LOCAL_SHARES);
    if (local_decode_end(copy, n, &end) == INSPAN_OK) assert_true(strlen(end.text) < sizeof end.text);
    free(copy);
}

static void test_hostile_bytes(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 7, 1);
    inspan_member_t members[3] = {
        {.node = "a", .address = "10.0.0.1", .port = 1}, {.node = "b"}, {.node = "c"}};
    local_view_t view = {.view = 1, .rank = 1, .world = 3, .members = members};
    static local_end_t end = {.text = "text", .cause = {.node = "b", .operation = "connect"}};
    local_welcome_t welcome = {.major = 1, .node = "a", .failure_timeout = NS_PER_S, .threads = 1};
    static local_ledger_t ledger = {.batch = 9, .n = 3};
    local_saved_t saved = {.folder = "out"};
    local_verdict_t verdict = {.factor = 1, .evidence = "e"};
    const local_vitals_t vitals = {.cores = 2, .allowed = 1, .others_cores = NAN};
    for (int round = 0; round < 10000; round++) {
        size_t used = 0;
        if (round % 6 == 3) local_encode_ledger(&ledger, frame, sizeof frame, &used);
        if (round % 6 == 4) local_encode_saved(&saved, frame, sizeof frame, &used);
        if (round % 6 == 5) local_encode_verdict(&verdict, frame, sizeof frame, &used);
        if (round % 6 == 0) local_encode_view(&view, LOCAL_MINOR, frame, sizeof frame, &used);
        if (round % 6 == 1) local_encode_end(LOCAL_DONE, &end, frame, sizeof frame, &used);
        if (round % 12 == 8) local_encode_vitals(&vitals, frame, sizeof frame, &used);
        if (round % 12 == 2) local_encode_welcome(&welcome, frame, sizeof frame, &used);
        for (uint64_t flips = rng_below(&rng, 6); flips > 0; flips--)
            frame[rng_below(&rng, used)] = (uint8_t)rng_next(&rng);
        decode_any(frame + 8, rng_below(&rng, used - 8 + 1));
        decode_any(frame + 8, used - 8);
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        if (local_peek(frame, used, &type, &body, &n, &whole) == INSPAN_OK) assert_true(whole <= used);
    }
    for (int round = 0; round < 2000; round++) {
        size_t n = rng_below(&rng, 300);
        for (size_t i = 0; i < n; i++) frame[i] = (uint8_t)rng_next(&rng);
        decode_any(frame, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello_and_welcome),
        cmocka_unit_test(test_another_major_is_readable),
        cmocka_unit_test(test_view_of_the_largest_world),
        cmocka_unit_test(test_tick_and_end),
        cmocka_unit_test(test_ready_state_and_blame),
        cmocka_unit_test(test_saved_and_registered),
        cmocka_unit_test(test_vitals),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_peek),
        cmocka_unit_test(test_hostile_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
