#include "comm/codec.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "comm/codec_kernels.h"
#include "comm/reduce.h"

uint32_t codec_unit_bytes(inspan_wire_t wire)
{
    static const uint32_t bytes[INSPAN_WIRES] = {
        [INSPAN_WIRE_FP32] = 4, [INSPAN_WIRE_BF16] = 2, [INSPAN_WIRE_FP16] = 2, [INSPAN_WIRE_INT8] = 256};
    return bytes[wire];
}

uint32_t codec_unit_elements(inspan_wire_t wire)
{
    return wire == INSPAN_WIRE_INT8 ? CODEC_INT8_ELEMENTS : 1;
}

uint64_t codec_bytes(inspan_wire_t wire, uint64_t elements)
{
    const uint32_t unit = codec_unit_elements(wire);
    const uint64_t rest = elements % unit; /* only of int8 */
    return elements / unit * codec_unit_bytes(wire) + (rest > 0 ? rest + 1 : 0);
}

uint64_t codec_elements(inspan_wire_t wire, uint64_t bytes)
{
    const uint32_t unit = codec_unit_bytes(wire);
    const uint64_t rest = bytes % unit;
    return bytes / unit * codec_unit_elements(wire) + (rest > 0 ? rest - 1 : 0);
}

/* ---- Plain C: every processor ---------------------------------------------------------------- */

#define HALF(name, to, from)                                                                                 \
    static void name##_encode(void *dst, const void *src, size_t n)                                          \
    {                                                                                                        \
        codec_u16_t *d = dst;                                                                                \
        const codec_f32_t *s = src;                                                                          \
        for (size_t i = 0; i < n; i++) d[i] = to(s[i]);                                                      \
    }                                                                                                        \
    static void name##_decode(void *dst, const void *src, size_t n)                                          \
    {                                                                                                        \
        codec_f32_t *d = dst;                                                                                \
        const codec_u16_t *s = src;                                                                          \
        for (size_t i = 0; i < n; i++) d[i] = from(s[i]);                                                    \
    }                                                                                                        \
    static void name##_add(void *dst, const void *src, size_t n)                                             \
    {                                                                                                        \
        codec_f32_t *d = dst;                                                                                \
        const codec_u16_t *s = src;                                                                          \
        for (size_t i = 0; i < n; i++) d[i] += from(s[i]);                                                   \
    }

HALF(bf16, fp32_to_bf16, bf16_to_fp32)
HALF(fp16, fp32_to_fp16, fp16_to_fp32)

static void int8_encode(void *dst, const void *src, size_t n)
{
    uint8_t *d = dst;
    const codec_f32_t *s = src;
    for (size_t left = n; left > 0;) {
        const size_t m = left < CODEC_INT8_ELEMENTS ? left : CODEC_INT8_ELEMENTS;
        uint32_t greatest = 0;
        for (size_t i = 0; i < m; i++) {
            const uint32_t magnitude = half_bits_of_float(s[i]) & 0x7fffffffu;
            if (magnitude > greatest) greatest = magnitude;
        }
        const int k = codec_exponent(greatest);
        const float scale = k == CODEC_NOT_FINITE ? 0 : codec_power(-k);
        d[0] = (uint8_t)k;
        for (size_t i = 0; i < m; i++)
            d[1 + i] = k == CODEC_NOT_FINITE ? 0 : (uint8_t)(int)rintf(s[i] * scale);
        d += m + 1;
        s += m;
        left -= m;
    }
}

static void int8_take(bool add, void *dst, const void *src, size_t n)
{
    codec_f32_t *d = dst;
    const uint8_t *s = src;
    for (size_t left = n; left > 0;) {
        const size_t m = left < CODEC_INT8_ELEMENTS ? left : CODEC_INT8_ELEMENTS;
        const int k = codec_exponent_in(s[0]);
        const float scale = k < CODEC_LEAST ? NAN : codec_power(k);
        for (size_t i = 0; i < m; i++) {
            const float value = (float)(int8_t)s[1 + i] * scale;
            d[i] = add ? d[i] + value : value;
        }
        s += m + 1;
        d += m;
        left -= m;
    }
}

static void int8_decode(void *dst, const void *src, size_t n)
{
    int8_take(false, dst, src, n);
}

static void int8_add(void *dst, const void *src, size_t n)
{
    int8_take(true, dst, src, n);
}

const codec_kernels_t codec_scalar[INSPAN_WIRES] = {
    [INSPAN_WIRE_BF16] = {bf16_encode, bf16_decode, bf16_add},
    [INSPAN_WIRE_FP16] = {fp16_encode, fp16_decode, fp16_add},
    [INSPAN_WIRE_INT8] = {int8_encode, int8_decode, int8_add},
};

/* ---- The way in ------------------------------------------------------------------------------ */

static const codec_kernels_t *kernels(cpu_isa_t isa, inspan_wire_t wire)
{
    assert(wire != INSPAN_WIRE_FP32 && (unsigned)wire < INSPAN_WIRES);
#if defined(__x86_64__)
    if (isa >= CPU_AVX2) return &codec_avx2[wire];
#else
    (void)isa;
#endif
    return &codec_scalar[wire];
}

void codec_encode(inspan_wire_t wire, void *dst, const void *src, size_t n)
{
    kernels(reduce_isa(), wire)->encode(dst, src, n);
}

void codec_decode(inspan_wire_t wire, void *dst, const void *src, size_t n)
{
    kernels(reduce_isa(), wire)->decode(dst, src, n);
}

void codec_add(inspan_wire_t wire, void *dst, const void *src, size_t n)
{
    kernels(reduce_isa(), wire)->add(dst, src, n);
}

void codec_encode_isa(cpu_isa_t cap, inspan_wire_t wire, void *dst, const void *src, size_t n)
{
    const cpu_isa_t best = cpu_isa_found();
    kernels(cap < best ? cap : best, wire)->encode(dst, src, n);
}

void codec_decode_isa(cpu_isa_t cap, inspan_wire_t wire, bool add, void *dst, const void *src, size_t n)
{
    const cpu_isa_t best = cpu_isa_found();
    const codec_kernels_t *found = kernels(cap < best ? cap : best, wire);
    (add ? found->add : found->decode)(dst, src, n);
}

/* ---- Errors: in blocks that stay in the cache ------------------------------------------------ */

#define BLOCK (8 * CODEC_INT8_ELEMENTS) /* elements: whole units of every type */

/* error = a - b, or error + a - b; nothing where that is no finite number. */
static void note_error(bool grow, codec_f32_t *error, const codec_f32_t *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float lost = a[i] - b[i], kept = lost - lost == 0 ? lost : 0;
        error[i] = grow ? error[i] + kept : kept;
    }
}

void codec_error(inspan_wire_t wire, void *error, const void *src, const void *encoded, size_t n)
{
    float block[BLOCK];
    const uint8_t *from = encoded;
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        codec_decode(wire, block, from, m);
        note_error(false, (codec_f32_t *)error + at, (const codec_f32_t *)src + at, block, m);
        from += codec_bytes(wire, m);
    }
}

/* codec_pass, and codec_round in place of add: then encoded keeps all, else room for a block is enough. */
static void pass(inspan_wire_t wire, bool round, bool add, codec_f32_t *dst, const codec_f32_t *src,
                 uint8_t *encoded, codec_f32_t *error, size_t n)
{
    float block[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        uint8_t *bytes = encoded + (round ? codec_bytes(wire, at) : 0);
        codec_encode(wire, bytes, src + at, m);
        codec_decode(wire, block, bytes, m);
        if (error != NULL) note_error(round, error + at, src + at, block, m);
        if (add)
            reduce_apply(INSPAN_FP32, INSPAN_SUM, dst + at, block, m);
        else
            memcpy(dst + at, block, m * sizeof *block);
    }
}

void codec_pass(inspan_wire_t wire, bool add, void *dst, const void *src, void *error, size_t n)
{
    uint8_t encoded[BLOCK * sizeof(float)];
    pass(wire, false, add, dst, src, encoded, error, n);
}

void codec_round(inspan_wire_t wire, void *data, void *encoded, void *error, size_t n)
{
    pass(wire, true, false, data, data, encoded, error, n);
}
