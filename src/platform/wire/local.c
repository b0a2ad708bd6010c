#include "platform/wire/local.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Bodies, all integers little-endian, doubles as their IEEE-754 bits (str: u16 length, then that many bytes):
 *
 *   HELLO    OFFSET SIZE MEANING            WELCOME  OFFSET SIZE MEANING
 *                 0    4 magic                            0    4 magic
 *                 4    2 major                            4    2 major
 *                 6    2 minor                            6    2 minor
 *                 8    4 pid                              8    8 job
 *                12    8 incarnation                     16    8 failure timeout, ns
 *                                                        24    4 threads
 *   BOUND         0    2 data port                       28    2 first data port
 *                                                        30    2 last data port
 *                                                        32  str node
 *
 *   VIEW          0    8 view               TICK          0    8 step
 *                 8    4 rank                             8    8 steps
 *                12    4 world                           16    8 samples
 *                16    1 first of a lineage (0, 1)               24    8 loss
 *                17   32 job key                         32    8 validation loss
 *                49    . members, each:                  40    8 samples per second
 *                      4 number                          48    8 compute, s
 *                        str node                        56    8 exposed communication, s
 *                        str address                     64    8 input, s
 *                      2 port                            72    8 bytes sent
 *                      8 incarnation                     80    8 parameter hash
 *                      from minor 2, after all of them:    from minor 2:
 *                      each 8 ns a sample,                88    8 ns a sample
 *                      8 ns a step                        96    8 ns a step
 *                                                        104    8 samples of the last step
 *                                                        112    8 samples of a micro-batch
 *
 *   READY, LEFT   0    8 view               STATE         0    1 full (0, 1)
 *
 *   STOP, LEAVE: empty
 *
 *   FAILED, DONE, LOST, BYE
 *                 0    4 status
 *                 4    4 cause: status
 *                 8    4 cause: rank
 *                12    4 cause: noticed by
 *                16    8 cause: waited, ns
 *                24    . str node, address, operation, cause text, text
 *
 *   BLAME         0    8 view               SAVED         0    8 step
 *                 8   20 cause, as above                  8    8 view
 *                28    . str node, address,              16    1 result (0, 1)
 *                        operation, cause text           17  str folder
 *
 *   REGISTERED    0    8 step               LEDGER        0    8 seed
 *                 8    1 result (0, 1)                    8    8 batch
 *                 9    4 status                          16    8 first step
 *                13  str text                            24    8 last step
 *                                                        32    8 view
 *                                                        40    4 shares, each:
 *                                                              4 rank, 8 first sample, 8 samples
 *
 *   NOTE          0  str text               VERDICT       0    8 step
 *                                                         8    8 step in which it began
 *                                                        16    4 about: number of a worker
 *                                                        20    1 cause
 *                                                        21    1 leave (0, 1)
 *                                                        22    8 factor
 *                                                        30    8 share before
 *                                                        38    8 share after
 *                                                        46  str evidence
 *
 *   VITALS        0    8 cores              VITALS       48    8 swap, bytes/s or NaN
 *                 8    8 throttled, 0..1                 56    8 allowed, 0..1
 *                16    8 clock, MHz                      64    1 on battery (0, 1)
 *                24    8 best clock, MHz                 65    1 owner active (0, 1)
 *                32    8 temperature, C                  66    1 limit
 *                40    8 others' cores, or NaN
 */
enum {
    HEADER_BYTES = 8,
    PREFIX_BYTES = 4,      /* the length field does not count itself */
    HEAD_AFTER_PREFIX = 4, /* type and zero, which it counts */
    VERSION_BYTES = 8,     /* magic, major, minor: the same in every version, for ever */
    HELLO_BYTES = 20,
    WELCOME_FIXED_BYTES = 32,
    BOUND_BYTES = 2,
    VIEW_FIXED_BYTES = 49,
    MEMBER_BYTES_MAX = 4 + 2 + (INSPAN_NAME_MAX - 1) + 2 + (INSPAN_NAME_MAX - 1) + 2 + 8,
    PACE_BYTES = 16,
    TICK_BYTES_1 = 88, /* of minor 1 */
    TICK_BYTES = 128,
    END_FIXED_BYTES = 24,
    LEDGER_FIXED_BYTES = 44,
    SHARE_BYTES = 20,
};
static_assert(HEADER_BYTES == PREFIX_BYTES + HEAD_AFTER_PREFIX, "frame header");
static_assert(HELLO_BYTES == VERSION_BYTES + 4 + 8, "HELLO");
static_assert(WELCOME_FIXED_BYTES == VERSION_BYTES + 8 + 8 + 4 + 2 + 2, "WELCOME");
static_assert(VIEW_FIXED_BYTES == 8 + 4 + 4 + 1 + LOCAL_KEY_BYTES, "VIEW");
static_assert(VIEW_FIXED_BYTES + LOCAL_WORLD_MAX * (MEMBER_BYTES_MAX + PACE_BYTES) <= LOCAL_FRAME_MAX,
              "the largest view fits");
static_assert(TICK_BYTES == 16 * 8, "TICK");
static_assert(END_FIXED_BYTES + LOCAL_TEXT_MAX + 512 <= LOCAL_FRAME_MAX, "the longest end fits");
static_assert(LEDGER_FIXED_BYTES + LOCAL_SHARES * SHARE_BYTES <= LOCAL_FRAME_MAX, "the longest span fits");
static_assert(sizeof(double) == 8, "doubles travel as 64 bits");

/* ---- Writing: a cursor that remembers an overflow -------------------------------------------- */

typedef struct writer {
    uint8_t *bytes;
    size_t size, used;
    bool overflow;
} writer_t;

static void put_bytes(writer_t *w, const void *data, size_t n)
{
    if (w->overflow || n > w->size - w->used) {
        w->overflow = true;
        return;
    }
    memcpy(w->bytes + w->used, data, n);
    w->used += n;
}

static void put_uint(writer_t *w, uint64_t value, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    put_bytes(w, bytes, n);
}

static void put_double(writer_t *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_uint(w, bits, 8);
}

/* At most size - 1 bytes of an array of `size` that should be terminated. */
static void put_string(writer_t *w, const char *text, size_t size)
{
    size_t n = strnlen(text, size - 1);
    put_uint(w, n, 2);
    put_bytes(w, text, n);
}

static void frame_begin(writer_t *w, uint8_t *bytes, size_t size, local_frame_type_t type)
{
    *w = (writer_t){.bytes = bytes, .size = size};
    put_uint(w, 0, 4); /* the length, known at the end */
    put_uint(w, (uint64_t)type, 2);
    put_uint(w, 0, 2);
}

static inspan_status_t frame_end(writer_t *w, size_t *used)
{
    if (w->overflow || w->used - PREFIX_BYTES > LOCAL_FRAME_MAX) return INSPAN_LIMIT;
    writer_t length = {.bytes = w->bytes, .size = PREFIX_BYTES};
    put_uint(&length, w->used - PREFIX_BYTES, 4);
    *used = w->used;
    return INSPAN_OK;
}

inspan_status_t local_encode_hello(const local_hello_t *hello, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_HELLO);
    put_uint(&w, LOCAL_MAGIC, 4);
    put_uint(&w, hello->major, 2);
    put_uint(&w, hello->minor, 2);
    put_uint(&w, hello->pid, 4);
    put_uint(&w, hello->incarnation, 8);
    return frame_end(&w, used);
}

inspan_status_t local_encode_welcome(const local_welcome_t *welcome, uint8_t *bytes, size_t size,
                                     size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_WELCOME);
    put_uint(&w, LOCAL_MAGIC, 4);
    put_uint(&w, welcome->major, 2);
    put_uint(&w, welcome->minor, 2);
    put_uint(&w, welcome->job, 8);
    put_uint(&w, (uint64_t)welcome->failure_timeout, 8);
    put_uint(&w, welcome->threads, 4);
    put_uint(&w, welcome->first_port, 2);
    put_uint(&w, welcome->last_port, 2);
    put_string(&w, welcome->node, sizeof welcome->node);
    return frame_end(&w, used);
}

inspan_status_t local_encode_bound(uint16_t port, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_BOUND);
    put_uint(&w, port, 2);
    return frame_end(&w, used);
}

inspan_status_t local_encode_view(const local_view_t *view, uint16_t minor, uint8_t *bytes, size_t size,
                                  size_t *used)
{
    if (view->world == 0 || view->world > LOCAL_WORLD_MAX) return INSPAN_LIMIT;
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_VIEW);
    put_uint(&w, view->view, 8);
    put_uint(&w, view->rank, 4);
    put_uint(&w, view->world, 4);
    put_uint(&w, view->first, 1);
    put_bytes(&w, view->key, sizeof view->key);
    for (uint32_t i = 0; i < view->world; i++) {
        const inspan_member_t *member = &view->members[i];
        put_uint(&w, member->number, 4);
        put_string(&w, member->node, sizeof member->node);
        put_string(&w, member->address, sizeof member->address);
        put_uint(&w, member->port, 2);
        put_uint(&w, member->incarnation, 8);
    }
    for (uint32_t i = 0; i < view->world && minor >= 2; i++) {
        put_uint(&w, view->members[i].pace_sample_ns, 8);
        put_uint(&w, view->members[i].pace_step_ns, 8);
    }
    return frame_end(&w, used);
}

inspan_status_t local_encode_tick(const inspan_progress_t *progress, uint8_t *bytes, size_t size,
                                  size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_TICK);
    put_uint(&w, progress->step, 8);
    put_uint(&w, progress->steps, 8);
    put_uint(&w, progress->samples, 8);
    put_double(&w, progress->loss);
    put_double(&w, progress->validation_loss);
    put_double(&w, progress->samples_per_s);
    put_double(&w, progress->compute_s);
    put_double(&w, progress->exposed_comm_s);
    put_double(&w, progress->input_s);
    put_uint(&w, progress->bytes_sent, 8);
    put_uint(&w, progress->param_hash, 8);
    put_uint(&w, progress->pace_sample_ns, 8);
    put_uint(&w, progress->pace_step_ns, 8);
    put_uint(&w, progress->share_samples, 8);
    put_uint(&w, progress->run_samples, 8);
    put_uint(&w, progress->samples_recomputed, 8);
    return frame_end(&w, used);
}

static void put_cause(writer_t *w, const inspan_cause_t *cause)
{
    put_uint(w, (uint32_t)cause->status, 4);
    put_uint(w, (uint32_t)cause->rank, 4);
    put_uint(w, (uint32_t)cause->noticed_by, 4);
    put_uint(w, (uint64_t)cause->waited_ns, 8);
    put_string(w, cause->node, sizeof cause->node);
    put_string(w, cause->address, sizeof cause->address);
    put_string(w, cause->operation, sizeof cause->operation);
    put_string(w, cause->text, sizeof cause->text);
}

inspan_status_t local_encode_end(local_frame_type_t type, const local_end_t *end, uint8_t *bytes, size_t size,
                                 size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, type);
    put_uint(&w, (uint32_t)end->status, 4);
    put_cause(&w, &end->cause);
    put_string(&w, end->text, sizeof end->text);
    return frame_end(&w, used);
}

inspan_status_t local_encode_empty(local_frame_type_t type, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, type);
    return frame_end(&w, used);
}

inspan_status_t local_encode_ready(uint64_t view, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_READY);
    put_uint(&w, view, 8);
    return frame_end(&w, used);
}

inspan_status_t local_encode_left(uint64_t view, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_LEFT);
    put_uint(&w, view, 8);
    return frame_end(&w, used);
}

inspan_status_t local_encode_state(bool full, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_STATE);
    put_uint(&w, full, 1);
    return frame_end(&w, used);
}

inspan_status_t local_encode_note(const char *text, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    char cut[LOCAL_NOTE_MAX];
    snprintf(cut, sizeof cut, "%s", text);
    frame_begin(&w, bytes, size, LOCAL_NOTE);
    put_string(&w, cut, sizeof cut);
    return frame_end(&w, used);
}

inspan_status_t local_encode_verdict(const local_verdict_t *verdict, uint8_t *bytes, size_t size,
                                     size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_VERDICT);
    put_uint(&w, verdict->step, 8);
    put_uint(&w, verdict->started, 8);
    put_uint(&w, verdict->about, 4);
    put_uint(&w, (uint32_t)verdict->cause, 1);
    put_uint(&w, verdict->leave, 1);
    put_double(&w, verdict->factor);
    put_uint(&w, verdict->share_before, 8);
    put_uint(&w, verdict->share_after, 8);
    put_string(&w, verdict->evidence, sizeof verdict->evidence);
    return frame_end(&w, used);
}

inspan_status_t local_encode_vitals(const local_vitals_t *vitals, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_VITALS);
    put_double(&w, vitals->cores);
    put_double(&w, vitals->throttled);
    put_double(&w, vitals->clock_mhz);
    put_double(&w, vitals->clock_best_mhz);
    put_double(&w, vitals->temperature_c);
    put_double(&w, vitals->others_cores);
    put_double(&w, vitals->swap_bytes_per_s);
    put_double(&w, vitals->allowed);
    put_uint(&w, vitals->on_battery, 1);
    put_uint(&w, vitals->owner_active, 1);
    put_uint(&w, (uint64_t)vitals->limit, 1);
    return frame_end(&w, used);
}

inspan_status_t local_encode_blame(const local_blame_t *blame, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_BLAME);
    put_uint(&w, blame->view, 8);
    put_cause(&w, &blame->cause);
    return frame_end(&w, used);
}

inspan_status_t local_encode_saved(const local_saved_t *saved, uint8_t *bytes, size_t size, size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_SAVED);
    put_uint(&w, saved->step, 8);
    put_uint(&w, saved->view, 8);
    put_uint(&w, saved->result, 1);
    put_string(&w, saved->folder, sizeof saved->folder);
    return frame_end(&w, used);
}

inspan_status_t local_encode_registered(const local_registered_t *registered, uint8_t *bytes, size_t size,
                                        size_t *used)
{
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_REGISTERED);
    put_uint(&w, registered->step, 8);
    put_uint(&w, registered->result, 1);
    put_uint(&w, (uint32_t)registered->status, 4);
    put_string(&w, registered->text, sizeof registered->text);
    return frame_end(&w, used);
}

inspan_status_t local_encode_ledger(const local_ledger_t *ledger, uint8_t *bytes, size_t size, size_t *used)
{
    if (ledger->n > LOCAL_SHARES) return INSPAN_LIMIT;
    writer_t w;
    frame_begin(&w, bytes, size, LOCAL_LEDGER);
    put_uint(&w, ledger->seed, 8);
    put_uint(&w, ledger->batch, 8);
    put_uint(&w, ledger->first_step, 8);
    put_uint(&w, ledger->last_step, 8);
    put_uint(&w, ledger->view, 8);
    put_uint(&w, ledger->n, 4);
    for (uint32_t i = 0; i < ledger->n; i++) {
        put_uint(&w, (uint32_t)ledger->shares[i].rank, 4);
        put_uint(&w, ledger->shares[i].first, 8);
        put_uint(&w, ledger->shares[i].n, 8);
    }
    return frame_end(&w, used);
}

/* ---- Reading: a cursor that remembers that something was missing ----------------------------- */

typedef struct reader {
    const uint8_t *bytes;
    size_t n, at;
    bool bad;
} reader_t;

static const uint8_t *get_bytes(reader_t *r, size_t n)
{
    if (r->bad || n > r->n - r->at) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *from = r->bytes + r->at;
    r->at += n;
    return from;
}

static uint64_t get_uint(reader_t *r, size_t n)
{
    const uint8_t *from = get_bytes(r, n);
    uint64_t value = 0;
    for (size_t i = 0; from != NULL && i < n; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static double get_double(reader_t *r)
{
    uint64_t bits = get_uint(r, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void get_string(reader_t *r, char *text, size_t size)
{
    size_t n = (size_t)get_uint(r, 2);
    const uint8_t *from = n < size ? get_bytes(r, n) : NULL;
    if (from == NULL || memchr(from, 0, n) != NULL) {
        r->bad = true;
        text[0] = '\0';
        return;
    }
    memcpy(text, from, n);
    text[n] = '\0';
}

/* A status that this build knows; a newer minor version's unknown one is still a failure. */
static inspan_status_t get_status(reader_t *r)
{
    uint64_t value = get_uint(r, 4);
    return value <= INSPAN_INTERNAL ? (inspan_status_t)value : INSPAN_INTERNAL;
}

static bool get_bool(reader_t *r)
{
    uint64_t value = get_uint(r, 1);
    r->bad |= value > 1;
    return value == 1;
}

static inspan_status_t finish(const reader_t *r)
{
    return r->bad || r->at != r->n ? INSPAN_CORRUPT : INSPAN_OK;
}

inspan_status_t local_peek(const uint8_t *bytes, size_t n, local_frame_type_t *type, const uint8_t **body,
                           size_t *body_bytes, size_t *whole)
{
    reader_t r = {.bytes = bytes, .n = n};
    if (n < PREFIX_BYTES) return INSPAN_PENDING;
    uint64_t length = get_uint(&r, 4);
    if (length < HEAD_AFTER_PREFIX || length > LOCAL_FRAME_MAX) return INSPAN_CORRUPT;
    if (n < HEADER_BYTES) return INSPAN_PENDING;
    uint64_t kind = get_uint(&r, 2);
    uint64_t zero = get_uint(&r, 2);
    if (kind < LOCAL_HELLO || kind >= LOCAL_TYPES || zero != 0) return INSPAN_CORRUPT;
    if (n - PREFIX_BYTES < length) return INSPAN_PENDING;
    *type = (local_frame_type_t)kind;
    *body = bytes + HEADER_BYTES;
    *body_bytes = (size_t)length - HEAD_AFTER_PREFIX;
    *whole = (size_t)length + PREFIX_BYTES;
    return INSPAN_OK;
}

/* false: not our protocol at all. Another major leaves the rest of the body unread: its layout is not known
 * here. */
static bool get_version(reader_t *r, uint16_t *major, uint16_t *minor)
{
    bool ours = get_uint(r, 4) == LOCAL_MAGIC;
    *major = (uint16_t)get_uint(r, 2);
    *minor = (uint16_t)get_uint(r, 2);
    return ours && !r->bad;
}

inspan_status_t local_decode_hello(const uint8_t *body, size_t n, local_hello_t *hello)
{
    reader_t r = {.bytes = body, .n = n};
    *hello = (local_hello_t){0};
    if (!get_version(&r, &hello->major, &hello->minor)) return INSPAN_CORRUPT;
    if (hello->major != LOCAL_MAJOR) return INSPAN_OK;
    hello->pid = (uint32_t)get_uint(&r, 4);
    hello->incarnation = get_uint(&r, 8);
    return finish(&r);
}

inspan_status_t local_decode_welcome(const uint8_t *body, size_t n, local_welcome_t *welcome)
{
    reader_t r = {.bytes = body, .n = n};
    *welcome = (local_welcome_t){0};
    if (!get_version(&r, &welcome->major, &welcome->minor)) return INSPAN_CORRUPT;
    if (welcome->major != LOCAL_MAJOR) return INSPAN_OK;
    welcome->job = get_uint(&r, 8);
    uint64_t timeout = get_uint(&r, 8);
    welcome->threads = (uint32_t)get_uint(&r, 4);
    welcome->first_port = (uint16_t)get_uint(&r, 2);
    welcome->last_port = (uint16_t)get_uint(&r, 2);
    get_string(&r, welcome->node, sizeof welcome->node);
    if (timeout < (uint64_t)NS_PER_S || timeout > (uint64_t)(24 * 3600 * NS_PER_S)) return INSPAN_CORRUPT;
    if (welcome->threads == 0 || welcome->first_port > welcome->last_port) return INSPAN_CORRUPT;
    welcome->failure_timeout = (ns_t)timeout;
    return finish(&r);
}

inspan_status_t local_decode_bound(const uint8_t *body, size_t n, uint16_t *port)
{
    reader_t r = {.bytes = body, .n = n};
    *port = (uint16_t)get_uint(&r, 2);
    return finish(&r);
}

inspan_status_t local_decode_view(const uint8_t *body, size_t n, local_view_t *view)
{
    reader_t r = {.bytes = body, .n = n};
    *view = (local_view_t){0};
    view->view = get_uint(&r, 8);
    view->rank = (uint32_t)get_uint(&r, 4);
    view->world = (uint32_t)get_uint(&r, 4);
    view->first = get_bool(&r);
    const uint8_t *key = get_bytes(&r, sizeof view->key);
    if (key == NULL || view->world == 0 || view->world > LOCAL_WORLD_MAX || view->rank >= view->world)
        return INSPAN_CORRUPT;
    memcpy(view->key, key, sizeof view->key);
    inspan_member_t *members = calloc(view->world, sizeof *members);
    if (members == NULL) return INSPAN_NO_MEMORY;
    for (uint32_t i = 0; i < view->world && !r.bad; i++) {
        members[i].number = (uint32_t)get_uint(&r, 4);
        if (i > 0 && members[i].number <= members[i - 1].number) r.bad = true;
        get_string(&r, members[i].node, sizeof members[i].node);
        get_string(&r, members[i].address, sizeof members[i].address);
        members[i].port = (uint16_t)get_uint(&r, 2);
        members[i].incarnation = get_uint(&r, 8);
    }
    const bool paces = r.at != r.n; /* an older agent sends none */
    for (uint32_t i = 0; i < view->world && !r.bad && paces; i++) {
        members[i].pace_sample_ns = get_uint(&r, 8);
        members[i].pace_step_ns = get_uint(&r, 8);
    }
    if (finish(&r) != INSPAN_OK) {
        free(members);
        return INSPAN_CORRUPT;
    }
    view->members = members;
    return INSPAN_OK;
}

inspan_status_t local_decode_tick(const uint8_t *body, size_t n, inspan_progress_t *progress)
{
    reader_t r = {.bytes = body, .n = n};
    progress->step = get_uint(&r, 8);
    progress->steps = get_uint(&r, 8);
    progress->samples = get_uint(&r, 8);
    progress->loss = get_double(&r);
    progress->validation_loss = get_double(&r);
    progress->samples_per_s = get_double(&r);
    progress->compute_s = get_double(&r);
    progress->exposed_comm_s = get_double(&r);
    progress->input_s = get_double(&r);
    progress->bytes_sent = get_uint(&r, 8);
    progress->param_hash = get_uint(&r, 8);
    progress->pace_sample_ns = progress->pace_step_ns = 0;
    progress->share_samples = progress->run_samples = progress->samples_recomputed = 0;
    if (n == TICK_BYTES_1) return finish(&r); /* of an older worker */
    progress->pace_sample_ns = get_uint(&r, 8);
    progress->pace_step_ns = get_uint(&r, 8);
    progress->share_samples = get_uint(&r, 8);
    progress->run_samples = get_uint(&r, 8);
    progress->samples_recomputed = get_uint(&r, 8);
    return finish(&r);
}

static void get_cause(reader_t *r, inspan_cause_t *cause)
{
    cause->status = get_status(r);
    cause->rank = (int32_t)get_uint(r, 4);
    cause->noticed_by = (int32_t)get_uint(r, 4);
    cause->waited_ns = (int64_t)get_uint(r, 8);
    get_string(r, cause->node, sizeof cause->node);
    get_string(r, cause->address, sizeof cause->address);
    get_string(r, cause->operation, sizeof cause->operation);
    get_string(r, cause->text, sizeof cause->text);
}

inspan_status_t local_decode_end(const uint8_t *body, size_t n, local_end_t *end)
{
    reader_t r = {.bytes = body, .n = n};
    end->status = get_status(&r);
    get_cause(&r, &end->cause);
    get_string(&r, end->text, sizeof end->text);
    return finish(&r);
}

inspan_status_t local_decode_ready(const uint8_t *body, size_t n, uint64_t *view)
{
    reader_t r = {.bytes = body, .n = n};
    *view = get_uint(&r, 8);
    return finish(&r);
}

inspan_status_t local_decode_left(const uint8_t *body, size_t n, uint64_t *view)
{
    return local_decode_ready(body, n, view); /* a view alone, too */
}

inspan_status_t local_decode_state(const uint8_t *body, size_t n, bool *full)
{
    reader_t r = {.bytes = body, .n = n};
    *full = get_bool(&r);
    return finish(&r);
}

inspan_status_t local_decode_note(const uint8_t *body, size_t n, char text[LOCAL_NOTE_MAX])
{
    reader_t r = {.bytes = body, .n = n};
    get_string(&r, text, LOCAL_NOTE_MAX);
    return finish(&r);
}

inspan_status_t local_decode_verdict(const uint8_t *body, size_t n, local_verdict_t *verdict)
{
    reader_t r = {.bytes = body, .n = n};
    *verdict = (local_verdict_t){.step = get_uint(&r, 8)};
    verdict->started = get_uint(&r, 8);
    verdict->about = (uint32_t)get_uint(&r, 4);
    uint64_t cause = get_uint(&r, 1); /* one of a newer minor version is not known here */
    verdict->cause = cause < LOCAL_CAUSES ? (local_cause_t)cause : LOCAL_CAUSE_UNKNOWN;
    verdict->leave = get_bool(&r);
    verdict->factor = get_double(&r);
    verdict->share_before = get_uint(&r, 8);
    verdict->share_after = get_uint(&r, 8);
    get_string(&r, verdict->evidence, sizeof verdict->evidence);
    if (!(verdict->factor > 0 && verdict->factor <= 1e9)) return INSPAN_CORRUPT;
    return finish(&r);
}

/* A number from 0 to `most`. */
static double get_amount(reader_t *r, double most)
{
    const double value = get_double(r);
    if (!(value >= 0 && value <= most)) r->bad = true; /* a NaN too */
    return value;
}

/* The same, or NaN: not known. */
static double get_perhaps(reader_t *r, double most)
{
    const double value = get_double(r);
    if (!isnan(value) && !(value >= 0 && value <= most)) r->bad = true;
    return value;
}

inspan_status_t local_decode_vitals(const uint8_t *body, size_t n, local_vitals_t *vitals)
{
    reader_t r = {.bytes = body, .n = n};
    vitals->cores = get_amount(&r, 1e6);
    vitals->throttled = get_amount(&r, 1);
    vitals->clock_mhz = get_amount(&r, 1e6);
    vitals->clock_best_mhz = get_amount(&r, 1e6);
    vitals->temperature_c = get_amount(&r, 1e3);
    vitals->others_cores = get_perhaps(&r, 1e6);
    vitals->swap_bytes_per_s = get_perhaps(&r, 1e15);
    vitals->allowed = get_amount(&r, 1);
    vitals->on_battery = get_bool(&r);
    vitals->owner_active = get_bool(&r);
    const uint64_t limit = get_uint(&r, 1);
    vitals->limit = limit < LOCAL_LIMIT_OTHER ? (local_limit_t)limit : LOCAL_LIMIT_OTHER;
    return finish(&r);
}

inspan_status_t local_decode_blame(const uint8_t *body, size_t n, local_blame_t *blame)
{
    reader_t r = {.bytes = body, .n = n};
    blame->view = get_uint(&r, 8);
    get_cause(&r, &blame->cause);
    return finish(&r);
}

/* Nothing that leads out of the worker's folder. */
static bool good_folder(const char *folder)
{
    if (folder[0] == '\0' || folder[0] == '/') return false;
    for (const char *part = folder; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0')) return false;
    }
    return true;
}

inspan_status_t local_decode_saved(const uint8_t *body, size_t n, local_saved_t *saved)
{
    reader_t r = {.bytes = body, .n = n};
    saved->step = get_uint(&r, 8);
    saved->view = get_uint(&r, 8);
    saved->result = get_bool(&r);
    get_string(&r, saved->folder, sizeof saved->folder);
    if (!r.bad && !good_folder(saved->folder)) return INSPAN_CORRUPT;
    return finish(&r);
}

inspan_status_t local_decode_registered(const uint8_t *body, size_t n, local_registered_t *registered)
{
    reader_t r = {.bytes = body, .n = n};
    registered->step = get_uint(&r, 8);
    registered->result = get_bool(&r);
    registered->status = get_status(&r);
    get_string(&r, registered->text, sizeof registered->text);
    return finish(&r);
}

inspan_status_t local_decode_ledger(const uint8_t *body, size_t n, local_ledger_t *ledger)
{
    reader_t r = {.bytes = body, .n = n};
    ledger->seed = get_uint(&r, 8);
    ledger->batch = get_uint(&r, 8);
    ledger->first_step = get_uint(&r, 8);
    ledger->last_step = get_uint(&r, 8);
    ledger->view = get_uint(&r, 8);
    ledger->n = (uint32_t)get_uint(&r, 4);
    if (r.bad || ledger->n > LOCAL_SHARES || ledger->last_step < ledger->first_step) return INSPAN_CORRUPT;
    for (uint32_t i = 0; i < ledger->n; i++) {
        local_share_t *share = &ledger->shares[i];
        share->rank = (int32_t)get_uint(&r, 4);
        share->first = get_uint(&r, 8);
        share->n = get_uint(&r, 8);
        if (share->rank < -1 || share->first > ledger->batch || share->n > ledger->batch - share->first)
            return INSPAN_CORRUPT;
    }
    return finish(&r);
}
