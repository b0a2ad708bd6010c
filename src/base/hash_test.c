#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Files are found by these again, and ranks compare by them: they are part of the formats. */
static void known_digests(void **state)
{
    (void)state;
    char hex[33];
    assert_true(hash64("", 0, 0) == 0x2d06800538d394c2u); /* XXH3 of nothing, published with it */
    hash_stream_t *stream = hash_stream_open();
    hash_stream_finish128_hex(stream, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    assert_true(hash_stream_finish64(hash_stream_open()) == 0x6001c324468d497fu); /* its low half */
    assert_true(hash64("inspan", 6, 0) != hash64("inspan", 6, 1));
}

static void pieces_hash_like_the_whole(void **state)
{
    (void)state;
    enum { BYTES = 5000 };
    static const size_t cuts[] = {1, 3, 64, 239, 240, 241, 256, 1024, 4999};
    static unsigned char data[BYTES + 1];
    char whole[33], pieces[33];
    for (size_t i = 0; i <= BYTES; i++) data[i] = (unsigned char)(i * 31 + i / 251);
    hash_stream_t *stream = hash_stream_open();
    hash_stream_add(stream, data + 1, BYTES); /* not aligned */
    hash_stream_finish128_hex(stream, whole);
    assert_int_equal(strlen(whole), 32);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        stream = hash_stream_open();
        for (size_t at = 0; at < BYTES; at += cuts[c]) {
            hash_stream_add(stream, data + 1 + at, cuts[c] < BYTES - at ? cuts[c] : BYTES - at);
            hash_stream_add(stream, data, 0);
        }
        hash_stream_finish128_hex(stream, pieces);
        assert_string_equal(pieces, whole);
    }
    data[BYTES] ^= 1;
    stream = hash_stream_open();
    hash_stream_add(stream, data + 1, BYTES);
    hash_stream_finish128_hex(stream, pieces);
    assert_string_not_equal(pieces, whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_digests),
        cmocka_unit_test(pieces_hash_like_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
