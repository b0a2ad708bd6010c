#include "platform/wire/data.h"

#include <string.h>

#include "platform/wire/bytes.h"

#define STATUSES (INSPAN_INTERNAL + 1)

_Static_assert(DATA_HELLO_BYTES == 64 + DATA_NONCE_BYTES, "HELLO: the nonce ends it");
_Static_assert(DATA_WELCOME_BYTES == 32 + DATA_NONCE_BYTES + DATA_MAC_BYTES, "WELCOME: nonce and MAC end it");
_Static_assert(DATA_SIGNED_BYTES == DATA_WELCOME_BYTES - DATA_MAC_BYTES, "the MAC covers all before it");
_Static_assert(DATA_CALL_BYTES <= DATA_MESSAGE_MAX && DATA_CAUSE_MAX <= DATA_MESSAGE_MAX,
               "control fits a buffer");
_Static_assert(DATA_MESSAGE_MAX <= DATA_PIECE_MAX, "one cap covers every payload");

void data_encode_hello(const data_hello_t *hello, uint8_t bytes[DATA_HELLO_BYTES])
{
    memset(bytes, 0, DATA_HELLO_BYTES);
    put_u32(bytes, DATA_MAGIC);
    put_u16(bytes + 4, hello->major);
    put_u16(bytes + 6, hello->minor);
    put_u64(bytes + 8, hello->job);
    put_u64(bytes + 16, hello->view);
    put_u32(bytes + 24, hello->world);
    put_u32(bytes + 28, hello->from);
    put_u32(bytes + 32, hello->to);
    put_u64(bytes + 40, hello->from_incarnation);
    put_u64(bytes + 48, hello->to_incarnation);
    memcpy(bytes + 64, hello->nonce, DATA_NONCE_BYTES);
}

inspan_status_t data_decode_hello(const uint8_t bytes[DATA_HELLO_BYTES], data_hello_t *hello)
{
    memset(hello, 0, sizeof *hello);
    if (get_u32(bytes) != DATA_MAGIC) return INSPAN_CORRUPT;
    hello->major = get_u16(bytes + 4);
    hello->minor = get_u16(bytes + 6);
    if (hello->major != DATA_MAJOR) return INSPAN_VERSION;
    hello->job = get_u64(bytes + 8);
    hello->view = get_u64(bytes + 16);
    hello->world = get_u32(bytes + 24);
    hello->from = get_u32(bytes + 28);
    hello->to = get_u32(bytes + 32);
    hello->from_incarnation = get_u64(bytes + 40);
    hello->to_incarnation = get_u64(bytes + 48);
    memcpy(hello->nonce, bytes + 64, DATA_NONCE_BYTES);
    if (hello->from >= hello->world || hello->to >= hello->world || hello->from == hello->to)
        return INSPAN_CORRUPT;
    return INSPAN_OK;
}

void data_encode_welcome(const data_welcome_t *welcome, uint8_t bytes[DATA_WELCOME_BYTES])
{
    memset(bytes, 0, DATA_WELCOME_BYTES);
    put_u32(bytes, DATA_MAGIC);
    put_u16(bytes + 4, welcome->major);
    put_u16(bytes + 6, welcome->minor);
    put_u32(bytes + 8, welcome->status);
    put_u32(bytes + 12, welcome->refusal);
    put_u64(bytes + 16, welcome->view);
    put_u32(bytes + 24, welcome->rank);
    memcpy(bytes + 32, welcome->nonce, DATA_NONCE_BYTES);
    memcpy(bytes + 64, welcome->mac, DATA_MAC_BYTES);
}

inspan_status_t data_decode_welcome(const uint8_t bytes[DATA_WELCOME_BYTES], data_welcome_t *welcome)
{
    memset(welcome, 0, sizeof *welcome);
    if (get_u32(bytes) != DATA_MAGIC) return INSPAN_CORRUPT;
    welcome->major = get_u16(bytes + 4);
    welcome->minor = get_u16(bytes + 6);
    if (welcome->major != DATA_MAJOR) return INSPAN_VERSION;
    uint32_t status = get_u32(bytes + 8), refusal = get_u32(bytes + 12);
    if (status >= STATUSES || refusal >= DATA_REFUSALS) return INSPAN_CORRUPT;
    if ((status == INSPAN_OK) != (refusal == DATA_ACCEPTED)) return INSPAN_CORRUPT;
    welcome->status = (inspan_status_t)status;
    welcome->refusal = (data_refusal_t)refusal;
    welcome->view = get_u64(bytes + 16);
    welcome->rank = get_u32(bytes + 24);
    memcpy(welcome->nonce, bytes + 32, DATA_NONCE_BYTES);
    memcpy(welcome->mac, bytes + 64, DATA_MAC_BYTES);
    return INSPAN_OK;
}

void data_encode_frame(const data_frame_t *frame, uint8_t bytes[DATA_HEADER_BYTES])
{
    bytes[0] = (uint8_t)frame->type;
    bytes[1] = frame->flags;
    put_u16(bytes + 2, 0);
    put_u32(bytes + 4, frame->length);
    put_u64(bytes + 8, frame->seq);
    put_u32(bytes + 16, frame->chunk);
    put_u32(bytes + 20, frame->tag);
    put_u64(bytes + 24, frame->offset);
}

/* The lengths that a frame of this type may have. */
static bool length_fits(uint8_t type, uint32_t length)
{
    switch (type) {
    case DATA_PIECE:
    case DATA_PART: return length <= DATA_PIECE_MAX;
    case DATA_POST: return length == DATA_CALL_BYTES;
    case DATA_MESSAGE: return length >= 1 && length <= DATA_MESSAGE_MAX;
    case DATA_ABORT: return length >= 1 && length <= DATA_CAUSE_MAX;
    case DATA_CREDIT:
    case DATA_PING:
    case DATA_READY:
    case DATA_BYE:
    case DATA_WANT: return length == 0;
    default: return false;
    }
}

inspan_status_t data_decode_frame(const uint8_t bytes[DATA_HEADER_BYTES], data_frame_t *frame)
{
    uint8_t type = bytes[0], flags = bytes[1];
    uint32_t length = get_u32(bytes + 4);
    if (get_u16(bytes + 2) != 0 || !length_fits(type, length)) return INSPAN_CORRUPT;
    if (flags > (type == DATA_PIECE ? DATA_WINDOW : type == DATA_WANT ? INSPAN_DTYPES - 1 : 0))
        return INSPAN_CORRUPT;
    *frame = (data_frame_t){.type = (data_type_t)type,
                            .flags = flags,
                            .length = length,
                            .seq = get_u64(bytes + 8),
                            .chunk = get_u32(bytes + 16),
                            .tag = get_u32(bytes + 20),
                            .offset = get_u64(bytes + 24)};
    return INSPAN_OK;
}

void data_encode_call(const data_call_t *call, uint8_t bytes[DATA_CALL_BYTES])
{
    memset(bytes, 0, DATA_CALL_BYTES);
    bytes[0] = call->collective;
    bytes[1] = call->algorithm;
    bytes[2] = call->dtype;
    bytes[3] = call->reduction;
    put_u32(bytes + 4, call->root);
    bytes[8] = call->wire;
    bytes[9] = call->owners;
    put_u32(bytes + 12, call->exact_tail);
    put_u64(bytes + 16, call->count);
    put_u64(bytes + 24, call->layout);
    put_u64(bytes + 32, call->window);
}

inspan_status_t data_decode_call(const uint8_t bytes[DATA_CALL_BYTES], data_call_t *call)
{
    *call = (data_call_t){.collective = bytes[0],
                          .algorithm = bytes[1],
                          .dtype = bytes[2],
                          .reduction = bytes[3],
                          .root = get_u32(bytes + 4),
                          .wire = bytes[8],
                          .owners = bytes[9],
                          .exact_tail = get_u32(bytes + 12),
                          .count = get_u64(bytes + 16),
                          .layout = get_u64(bytes + 24),
                          .window = get_u64(bytes + 32)};
    if (call->dtype >= INSPAN_DTYPES || call->reduction >= INSPAN_REDUCTIONS || call->wire >= INSPAN_WIRES)
        return INSPAN_CORRUPT;
    return INSPAN_OK;
}

/*
 * A cause:
 *
 *   OFFSET SIZE MEANING
 *        0    4 status
 *        4    4 rank at fault, -1 unknown
 *        8    4 rank that noticed
 *       12    8 waited, ns
 *       20    . node, address, operation, text: each u16 length + bytes
 */
#define CAUSE_FIXED 20
_Static_assert(CAUSE_FIXED + 4 * 2 + 3 * (INSPAN_NAME_MAX - 1) + 255 <= DATA_CAUSE_MAX,
               "the longest cause fits");

static size_t put_text(uint8_t *p, const char *text, size_t size)
{
    size_t n = strnlen(text, size - 1);
    put_u16(p, (uint16_t)n);
    memcpy(p + 2, text, n);
    return n + 2;
}

size_t data_encode_cause(const inspan_cause_t *cause, uint8_t bytes[DATA_CAUSE_MAX])
{
    put_u32(bytes, cause->status);
    put_u32(bytes + 4, (uint32_t)cause->rank);
    put_u32(bytes + 8, (uint32_t)cause->noticed_by);
    put_u64(bytes + 12, (uint64_t)cause->waited_ns);
    size_t used = CAUSE_FIXED;
    used += put_text(bytes + used, cause->node, sizeof cause->node);
    used += put_text(bytes + used, cause->address, sizeof cause->address);
    used += put_text(bytes + used, cause->operation, sizeof cause->operation);
    used += put_text(bytes + used, cause->text, sizeof cause->text);
    return used;
}

/* Text of a foreign rank goes to logs and terminals: control characters become '?'. */
static bool get_text(const uint8_t *bytes, size_t n, size_t *at, char *text, size_t size)
{
    if (n - *at < 2) return false;
    size_t length = get_u16(bytes + *at);
    *at += 2;
    if (length >= size || length > n - *at) return false;
    for (size_t i = 0; i < length; i++) {
        uint8_t c = bytes[*at + i];
        text[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    text[length] = 0;
    *at += length;
    return true;
}

inspan_status_t data_decode_cause(const uint8_t *bytes, size_t n, inspan_cause_t *cause)
{
    memset(cause, 0, sizeof *cause);
    if (n < CAUSE_FIXED) return INSPAN_CORRUPT;
    uint32_t status = get_u32(bytes);
    if (status <= INSPAN_PENDING || status >= STATUSES) return INSPAN_CORRUPT;
    cause->status = (inspan_status_t)status;
    cause->rank = (int32_t)get_u32(bytes + 4);
    cause->noticed_by = (int32_t)get_u32(bytes + 8);
    if (cause->rank < -1) cause->rank = -1;
    cause->waited_ns = (int64_t)get_u64(bytes + 12);
    size_t at = CAUSE_FIXED;
    bool ok = get_text(bytes, n, &at, cause->node, sizeof cause->node) &&
              get_text(bytes, n, &at, cause->address, sizeof cause->address) &&
              get_text(bytes, n, &at, cause->operation, sizeof cause->operation) &&
              get_text(bytes, n, &at, cause->text, sizeof cause->text) && at == n;
    return ok ? INSPAN_OK : INSPAN_CORRUPT;
}
