#include "platform/wire/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "platform/wire/auth.h"
#include "platform/wire/bytes.h"

static void handshake_roundtrip(void **state)
{
    (void)state;
    data_hello_t hello = {.major = DATA_MAJOR,
                          .minor = 7,
                          .job = UINT64_MAX,
                          .view = 3,
                          .world = 5,
                          .from = 4,
                          .to = 1,
                          .from_incarnation = 11,
                          .to_incarnation = 12},
                 back;
    memset(hello.nonce, 0xa5, sizeof hello.nonce);
    uint8_t bytes[DATA_HELLO_BYTES];
    data_encode_hello(&hello, bytes);
    assert_memory_equal(bytes, "ISPD", 4);
    assert_int_equal(data_decode_hello(bytes, &back), INSPAN_OK);
    assert_true(back.job == hello.job && back.view == 3 && back.world == 5 && back.from == 4 && back.to == 1);
    assert_true(back.from_incarnation == 11 && back.to_incarnation == 12 && back.minor == 7);
    assert_memory_equal(back.nonce, hello.nonce, sizeof hello.nonce);

    put_u16(bytes + 4, DATA_MAJOR + 1);
    assert_int_equal(data_decode_hello(bytes, &back), INSPAN_VERSION);
    assert_int_equal(back.major, DATA_MAJOR + 1);
    bytes[0] ^= 1;
    assert_int_equal(data_decode_hello(bytes, &back), INSPAN_CORRUPT);
    struct {
        uint32_t world, from, to;
    } wrong[] = {{0, 0, 0}, {2, 0, 0}, {2, 2, 0}, {2, 0, 2}, {1, 0, 0}, {UINT32_MAX, UINT32_MAX, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hello.world = wrong[i].world, hello.from = wrong[i].from, hello.to = wrong[i].to;
        data_encode_hello(&hello, bytes);
        assert_int_equal(data_decode_hello(bytes, &back), INSPAN_CORRUPT);
    }
    data_welcome_t welcome = {.major = DATA_MAJOR,
                              .status = INSPAN_AUTH,
                              .refusal = DATA_WRONG_KEY,
                              .view = 9,
                              .rank = 2},
                   answer;
    data_encode_welcome(&welcome, bytes);
    assert_int_equal(data_decode_welcome(bytes, &answer), INSPAN_OK);
    assert_true(answer.status == INSPAN_AUTH && answer.refusal == DATA_WRONG_KEY && answer.view == 9 &&
                answer.rank == 2);
    put_u32(bytes + 12, DATA_REFUSALS);
    assert_int_equal(data_decode_welcome(bytes, &answer), INSPAN_CORRUPT);
    put_u32(bytes + 12, DATA_ACCEPTED); /* a refusal without a reason */
    assert_int_equal(data_decode_welcome(bytes, &answer), INSPAN_CORRUPT);
    put_u32(bytes + 8, 1000);
    assert_int_equal(data_decode_welcome(bytes, &answer), INSPAN_CORRUPT);
}

static void frame_lengths_are_checked(void **state)
{
    (void)state;
    static const struct {
        data_type_t type;
        uint8_t flags;
        uint32_t length;
        bool ok;
    } cases[] = {{DATA_PIECE, 0, 0, true},
                 {DATA_PIECE, DATA_EAGER, DATA_PIECE_MAX, true},
                 {DATA_PIECE, 0, DATA_PIECE_MAX + 1, false},
                 {DATA_PIECE, 3, 5, false},
                 {DATA_PIECE, 0, UINT32_MAX, false},
                 {DATA_POST, 0, DATA_CALL_BYTES, true},
                 {DATA_POST, 0, DATA_CALL_BYTES + 1, false},
                 {DATA_POST, DATA_EAGER, DATA_CALL_BYTES, false},
                 {DATA_MESSAGE, 0, 0, false},
                 {DATA_MESSAGE, 0, DATA_MESSAGE_MAX, true},
                 {DATA_MESSAGE, 0, DATA_MESSAGE_MAX + 1, false},
                 {DATA_ABORT, 0, DATA_CAUSE_MAX + 1, false},
                 {DATA_CREDIT, 0, 1, false},
                 {DATA_PING, 0, 0, true},
                 {DATA_BYE, 0, 4, false},
                 {DATA_READY, 0, 0, true},
                 {0, 0, 0, false},
                 {DATA_WANT, INSPAN_DTYPES - 1, 0, true},
                 {DATA_WANT, INSPAN_DTYPES, 0, false},
                 {DATA_WANT, 0, 1, false},
                 {DATA_PART, 0, 0, true},
                 {DATA_PART, 0, DATA_PIECE_MAX, true},
                 {DATA_PART, 0, DATA_PIECE_MAX + 1, false},
                 {DATA_PART, DATA_WINDOW, 5, false},
                 {DATA_PART + 1, 0, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        data_frame_t frame = {cases[i].type, cases[i].flags, cases[i].length, UINT64_MAX, 7, 8, 1ull << 40},
                     back;
        uint8_t bytes[DATA_HEADER_BYTES];
        data_encode_frame(&frame, bytes);
        assert_int_equal(data_decode_frame(bytes, &back), cases[i].ok ? INSPAN_OK : INSPAN_CORRUPT);
        if (!cases[i].ok) continue;
        assert_true(back.type == frame.type && back.length == frame.length && back.seq == frame.seq &&
                    back.chunk == 7);
        assert_true(back.tag == 8 && back.offset == frame.offset && back.flags == frame.flags);
        bytes[3] = 1; /* reserved */
        assert_int_equal(data_decode_frame(bytes, &back), INSPAN_CORRUPT);
    }
}

static void causes(void **state)
{
    (void)state;
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = -1, .waited_ns = 1ll << 40, .noticed_by = 6},
                   back;
    memset(cause.node, 'n', sizeof cause.node - 1);
    memset(cause.address, 'a', sizeof cause.address - 1);
    memset(cause.operation, 'o', sizeof cause.operation - 1);
    memset(cause.text, 't', sizeof cause.text - 1);
    uint8_t bytes[DATA_CAUSE_MAX];
    size_t used = data_encode_cause(&cause, bytes);
    assert_true(used <= DATA_CAUSE_MAX);
    assert_int_equal(data_decode_cause(bytes, used, &back), INSPAN_OK);
    assert_memory_equal(&back, &cause, sizeof cause);
    for (size_t n = 0; n < used; n++) assert_int_equal(data_decode_cause(bytes, n, &back), INSPAN_CORRUPT);
    bytes[22] = '\n';
    assert_int_equal(data_decode_cause(bytes, used, &back), INSPAN_OK);
    assert_int_equal(back.node[0], '?');
    put_u32(bytes, INSPAN_OK);
    assert_int_equal(data_decode_cause(bytes, used, &back), INSPAN_CORRUPT);
}

/* Bytes of a stranger: whatever they are, nothing is read or written outside. */
static void random_bytes(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 1, 0);
    uint8_t bytes[DATA_CAUSE_MAX];
    for (int round = 0; round < 20000; round++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)rng_below(&rng, rng_below(&rng, 2) ? 256 : 3);
        data_frame_t frame;
        if (data_decode_frame(bytes, &frame) == INSPAN_OK) assert_true(frame.length <= DATA_PIECE_MAX);
        inspan_cause_t cause;
        size_t n = rng_below(&rng, sizeof bytes + 1);
        if (data_decode_cause(bytes, n, &cause) == INSPAN_OK)
            assert_true(strnlen(cause.text, sizeof cause.text) < 256);
        data_hello_t hello;
        data_decode_hello(bytes, &hello);
        data_welcome_t welcome;
        data_decode_welcome(bytes, &welcome);
        data_call_t call;
        data_decode_call(bytes, &call);
    }
}

static void proofs(void **state)
{
    (void)state;
    uint8_t key[AUTH_KEY_BYTES], hello[DATA_HELLO_BYTES] = {1}, welcome[DATA_SIGNED_BYTES] = {2};
    for (int i = 0; i < AUTH_KEY_BYTES; i++) key[i] = (uint8_t)i;
    /* Made with Python: hmac.new(bytes(range(32)), b"inspan acceptor\0" + b"\1" + 95 * b"\0" + b"\2" + 63 *
     * b"\0", sha256) */
    static const uint8_t expected[DATA_MAC_BYTES] = {
        0x27, 0x2f, 0xa5, 0xea, 0x8e, 0xf7, 0xf3, 0x7e, 0x1c, 0x95, 0x85, 0xe2, 0x9c, 0x09, 0xc1, 0xf1,
        0xb7, 0xe0, 0xc2, 0xc2, 0xed, 0x7a, 0xf4, 0x97, 0x3b, 0xf1, 0x0b, 0x5b, 0x2d, 0xb7, 0x24, 0xec};
    uint8_t a[DATA_MAC_BYTES], b[DATA_MAC_BYTES];
    assert_int_equal(auth_mac(key, AUTH_ACCEPTOR, hello, welcome, a), INSPAN_OK);
    assert_memory_equal(a, expected, sizeof expected);
    assert_true(auth_equal(a, expected));
    assert_int_equal(auth_mac(key, AUTH_CONNECTOR, hello, welcome, b), INSPAN_OK);
    assert_false(auth_equal(a, b)); /* a proof cannot be reflected */
    key[31] ^= 1;
    assert_int_equal(auth_mac(key, AUTH_ACCEPTOR, hello, welcome, b), INSPAN_OK);
    assert_false(auth_equal(a, b));
    key[31] ^= 1;
    hello[95] ^= 1;
    assert_int_equal(auth_mac(key, AUTH_ACCEPTOR, hello, welcome, b), INSPAN_OK);
    assert_false(auth_equal(a, b));
    hello[95] ^= 1;
    welcome[63] ^= 1;
    assert_int_equal(auth_mac(key, AUTH_ACCEPTOR, hello, welcome, b), INSPAN_OK);
    assert_false(auth_equal(a, b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handshake_roundtrip),
        cmocka_unit_test(frame_lengths_are_checked),
        cmocka_unit_test(causes),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(proofs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
