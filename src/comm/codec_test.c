#include "comm/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

enum { LONGEST = 2000, ROUNDS = 300 };

static const inspan_wire_t types[] = {INSPAN_WIRE_BF16, INSPAN_WIRE_FP16, INSPAN_WIRE_INT8};
#define TYPES (sizeof types / sizeof types[0])

/* Lengths at and around whole units, and any. */
static size_t some_length(rng_t *rng)
{
    static const size_t lengths[] = {0, 1, 7, 8, 254, 255, 256, 509, 510, 511, 1020};
    return rng_below(rng, 2) ? lengths[rng_below(rng, sizeof lengths / sizeof *lengths)]
                             : rng_below(rng, LONGEST + 1);
}

static void fill(float *values, size_t n, rng_t *rng)
{
    const double scale = ldexp(1, (int)rng_below(rng, 30) - 20);
    for (size_t i = 0; i < n; i++) values[i] = (float)(rng_normal(rng) * scale);
}

/* Some numbers, what they are sent as, and what arrives; how many. */
static size_t send_something(inspan_wire_t wire, rng_t *rng, float *in, uint8_t *bytes, float *out)
{
    const size_t n = some_length(rng);
    fill(in, n, rng);
    codec_encode(wire, bytes, in, n);
    codec_decode(wire, out, bytes, n);
    return n;
}

static void sizes_go_there_and_back(void **state)
{
    (void)state;
    for (int wire = 0; wire < INSPAN_WIRES; wire++)
        for (uint64_t n = 0; n < 2000; n++)
            assert_int_equal(codec_elements((inspan_wire_t)wire, codec_bytes((inspan_wire_t)wire, n)), n);
    assert_int_equal(codec_bytes(INSPAN_WIRE_INT8, 255), 256);
    assert_int_equal(codec_bytes(INSPAN_WIRE_INT8, 256), 258);
    assert_int_equal(codec_bytes(INSPAN_WIRE_BF16, 256), 512);
}

/* How far a number may be moved: half a unit in the last place of what it is sent as. */
static double most_off(inspan_wire_t wire, float value, float greatest)
{
    switch (wire) {
    case INSPAN_WIRE_BF16: return fabs(value) * 0x1p-8;
    case INSPAN_WIRE_FP16: return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    case INSPAN_WIRE_INT8:
        return fabs(greatest) / 127; /* half of 2^k, which is less than 2/127 of the greatest */
    default: return 0;
    }
}

static void values_stay_near_and_do_not_move_again(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    static float in[LONGEST], out[LONGEST], again[LONGEST], sum[LONGEST];
    static uint8_t bytes[4 * LONGEST], twice[4 * LONGEST];
    for (int round = 0; round < ROUNDS; round++)
        for (size_t t = 0; t < TYPES; t++) {
            const size_t n = send_something(types[t], &rng, in, bytes, out);
            for (size_t i = 0; i < n; i++) {
                float greatest = 0;
                for (size_t j = i / 255 * 255; j < n && j < i / 255 * 255 + 255; j++)
                    greatest = fmaxf(greatest, fabsf(in[j]));
                assert_true(fabs((double)in[i] - out[i]) <= most_off(types[t], in[i], greatest));
            }
            codec_encode(types[t], twice, out, n);
            assert_memory_equal(bytes, twice, codec_bytes(types[t], n));
            memcpy(again, in, sizeof again);
            codec_round(types[t], again, twice, NULL, n);
            assert_memory_equal(again, out, n * sizeof *out);
            assert_memory_equal(bytes, twice, codec_bytes(types[t], n));
            for (size_t i = 0; i < n; i++) sum[i] = again[i] = (float)i;
            codec_add(types[t], sum, bytes, n);
            for (size_t i = 0; i < n; i++) again[i] += out[i];
            assert_memory_equal(sum, again, n * sizeof *sum);
        }
}

/* What is sent and what is kept are the value; keeping it makes the mean of many sends right. */
static void errors_make_up_for_rounding(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    static float in[LONGEST], out[LONGEST], error[LONGEST], other[LONGEST], kept[LONGEST];
    static uint8_t bytes[4 * LONGEST];
    for (int round = 0; round < ROUNDS; round++)
        for (size_t t = 0; t < TYPES; t++) {
            const size_t n = send_something(types[t], &rng, in, bytes, out);
            codec_error(types[t], error, in, bytes, n);
            for (size_t i = 0; i < n; i++) assert_true(error[i] == in[i] - out[i]);
            codec_pass(types[t], false, other, in, kept, n);
            assert_memory_equal(other, out, n * sizeof *out);
            assert_memory_equal(kept, error, n * sizeof *error);
            codec_pass(types[t], true, other, in, NULL, n);
            for (size_t i = 0; i < n; i++) assert_true(other[i] == out[i] + out[i]);
            codec_round(types[t], in, bytes, kept, n);
            for (size_t i = 0; i < n; i++) assert_true(kept[i] == error[i] + error[i] && in[i] == out[i]);
        }
    double total = 0;
    memset(kept, 0, sizeof kept);
    for (size_t i = 0; i < 255; i++) in[i] = i == 0 ? 1 : 0.0003f; /* far below a unit of int8 */
    for (int step = 0; step < 1000; step++) {
        for (size_t i = 0; i < 255; i++) other[i] = in[i] + kept[i];
        codec_encode(INSPAN_WIRE_INT8, bytes, other, 255);
        codec_decode(INSPAN_WIRE_INT8, out, bytes, 255);
        codec_error(INSPAN_WIRE_INT8, kept, other, bytes, 255);
        total += out[7];
    }
    assert_true(fabs(total - 0.3) < 0.01);
}

static void what_is_no_number_stays_visible(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3.38e38f, -3e38f};
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++)
        for (size_t t = 0; t < TYPES; t++)
            for (size_t at = 0; at < 300; at += 13) {
                float in[300], out[300], error[300];
                uint8_t bytes[4 * 300];
                for (size_t i = 0; i < 300; i++) in[i] = 0.5f;
                in[at] = bad[b];
                codec_encode(types[t], bytes, in, 300);
                codec_decode(types[t], out, bytes, 300);
                codec_error(types[t], error, in, bytes, 300);
                if (isfinite(bad[b]) && types[t] == INSPAN_WIRE_BF16)
                    assert_true(fabsf(out[at] - in[at]) <= fabsf(in[at]) / 256);
                else
                    assert_false(isfinite(out[at]));
                for (size_t i = 0; i < 300; i++) {
                    assert_true(isfinite(error[i]));
                    const bool shared = types[t] == INSPAN_WIRE_INT8 && i / 255 == at / 255;
                    if (i != at) assert_true(shared ? isnan(out[i]) : out[i] == 0.5f);
                }
            }
}

/* Vector kernels give the bits of the plain ones, whatever is in the array. */
static void same_bits_by_all_kernels(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 5, 0);
    static float in[LONGEST];
    static uint32_t outs[2][LONGEST];
    static uint8_t bytes[2][4 * LONGEST + 3];
    for (int round = 0; round < ROUNDS; round++)
        for (size_t t = 0; t < TYPES; t++) {
            const size_t n = some_length(&rng), shift = rng_below(&rng, 4);
            const uint64_t any = rng_below(&rng, 3);
            fill(in, n, &rng);
            for (size_t i = 0; i < n; i++) /* any bits that are no NaN: their payload is not fixed */
                if (any > 0 && rng_below(&rng, any == 1 ? 300 : 1 + i) == 0) {
                    uint32_t bits = (uint32_t)rng_next(&rng);
                    if ((bits & 0x7fffffff) > 0x7f800000) bits &= 0xff800000;
                    memcpy(&in[i], &bits, sizeof bits);
                }
            for (int k = 0; k < 2; k++) {
                codec_encode_isa(k ? CPU_AVX2 : CPU_SCALAR, types[t], bytes[k] + shift, in, n);
                for (size_t i = 0; i < n; i++) outs[k][i] = 0;
            }
            assert_memory_equal(bytes[0] + shift, bytes[1] + shift, codec_bytes(types[t], n));
            for (int add = 0; add < 2; add++) {
                for (int k = 0; k < 2; k++)
                    codec_decode_isa(k ? CPU_AVX2 : CPU_SCALAR, types[t], add, outs[k], bytes[k] + shift, n);
                for (size_t i = 0; i < n; i++) {
                    float a, b;
                    memcpy(&a, &outs[0][i], 4);
                    memcpy(&b, &outs[1][i], 4);
                    assert_true(outs[0][i] == outs[1][i] || (isnan(a) && isnan(b)));
                }
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_go_there_and_back),
        cmocka_unit_test(values_stay_near_and_do_not_move_again),
        cmocka_unit_test(errors_make_up_for_rounding),
        cmocka_unit_test(what_is_no_number_stays_visible),
        cmocka_unit_test(same_bits_by_all_kernels),
    };
    return cmocka_run_group_tests_name("comm-codec", tests, NULL, NULL);
}
