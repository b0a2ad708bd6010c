#include "comm/conformance_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/reduce.h"
#include "platform/os/os_time.h"

static const harness_t *harness;
int conformance_failures;

static const uint32_t worlds[] = {1, 2, 3, 5, 7};
#define WORLDS (sizeof worlds / sizeof worlds[0])

/* Element i of rank's input: small integers, so that every order of addition gives the same in all types. */
static double value(uint32_t rank, uint64_t i)
{
    return (double)((i * 7 + rank * 3 + 1) % 11);
}

/* A whole number below 2048 as fp16. */
static uint16_t half_of(uint32_t n)
{
    if (n == 0) return 0;
    const uint32_t exponent = 31 - (uint32_t)__builtin_clz(n);
    return (uint16_t)((exponent + 15) << 10 | ((n << 10 >> exponent) & 0x3ff));
}

static void put(void *buffer, inspan_dtype_t dtype, uint64_t i, double v)
{
    switch (dtype) {
    case INSPAN_FP32: {
        float f = (float)v;
        memcpy((uint8_t *)buffer + i * 4, &f, 4);
        break;
    }
    case INSPAN_FP64: memcpy((uint8_t *)buffer + i * 8, &v, 8); break;
    case INSPAN_INT32: {
        int32_t n = (int32_t)v;
        memcpy((uint8_t *)buffer + i * 4, &n, 4);
        break;
    }
    case INSPAN_INT64: {
        int64_t n = (int64_t)v;
        memcpy((uint8_t *)buffer + i * 8, &n, 8);
        break;
    }
    case INSPAN_BF16: { /* exact for integers up to 256 */
        float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy((uint8_t *)buffer + i * 2, &half, 2);
        break;
    }
    case INSPAN_FP16: {
        const uint16_t half = half_of((uint32_t)v);
        memcpy((uint8_t *)buffer + i * 2, &half, 2);
        break;
    }
    case INSPAN_UINT8:
    case INSPAN_INT8: ((uint8_t *)buffer)[i] = (uint8_t)(int64_t)v; break;
    case INSPAN_INT16: {
        int16_t n = (int16_t)v;
        memcpy((uint8_t *)buffer + i * 2, &n, 2);
        break;
    }
    case INSPAN_DTYPES: break;
    }
}

typedef struct call {
    int what; /* 0 allreduce, 1 reduce-scatter, 2 all-gather, 3 broadcast, 4 barrier, 5 allreduce with `wire`
               */
    uint64_t count;
    inspan_dtype_t dtype;
    inspan_reduction_t reduction;
    uint32_t root;
    size_t shift; /* bytes that the buffers lie beside their natural alignment */
    int repeat;   /* so many at once */
    inspan_wire_t wire;
} call_t;

#define GUARD 64

static double combined(const world_t *world, const call_t *call, uint64_t i)
{
    double result = value(0, i);
    for (uint32_t r = 1; r < world->n; r++) {
        const double v = value(r, i);
        switch (call->reduction) {
        case INSPAN_SUM: result += v; break;
        case INSPAN_MIN: result = v < result ? v : result; break;
        case INSPAN_MAX: result = v > result ? v : result; break;
        case INSPAN_PRODUCT: result *= v; break;
        case INSPAN_BIT_AND: result = (unsigned)result & (unsigned)v; break;
        case INSPAN_BIT_OR: result = (unsigned)result | (unsigned)v; break;
        default: result = (unsigned)result ^ (unsigned)v; break;
        }
    }
    return result;
}

static inspan_status_t start(inspan_comm_t *comm, const call_t *call, void *in, void *out, inspan_op_t **op)
{
    switch (call->what) {
    case 0: return inspan_allreduce(comm, in, out, call->count, call->dtype, call->reduction, op);
    case 1: return inspan_reduce_scatter(comm, in, out, call->count, call->dtype, call->reduction, op);
    case 2: return inspan_allgather(comm, in, out, call->count, call->dtype, op);
    case 5:
        return inspan_allreduce_wire(comm, in, out, NULL, call->count, (uint32_t)(call->count / 9),
                                     call->wire, op);
    case 3: return inspan_broadcast(comm, out, call->count, call->dtype, call->root, op);
    default: return inspan_barrier(comm, op);
    }
}

/* One rank's buffers of one call: what goes in, what is expected to come out (outside the result: guards). */
typedef struct buffers {
    uint8_t *in, *out, *expected;
    size_t bytes, first, n; /* [first, first + n) of out is compared, bytes */
    uint8_t *memory;
} buffers_t;

static void prepare(world_t *world, uint32_t rank, const call_t *call, buffers_t *b)
{
    const size_t size = inspan_dtype_size(call->dtype);
    b->bytes = call->count * size;
    const size_t each = b->bytes + 3 * GUARD;
    b->memory = aligned_alloc(64, (3 * each + 63) / 64 * 64);
    memset(b->memory, 0xee, 3 * each);
    b->in = b->memory + GUARD + call->shift;
    b->out = b->in + each;
    b->expected = b->out + each;
    uint64_t shard = 0, n = 0;
    inspan_shard(world->comms[rank], call->count, rank, &shard, &n);
    b->first = 0;
    b->n = b->bytes;
    for (uint64_t i = 0; i < call->count; i++) {
        put(b->in, call->dtype, i, value(rank, i));
        double v = combined(world, call, i);
        if (call->what == 3) v = value(call->root, i);
        put(b->expected, call->dtype, i, v);
    }
    if (call->what == 1) b->first = shard * size, b->n = n * size;
    if (call->what == 2) {
        for (uint32_t r = 0; r < world->n; r++) {
            inspan_shard(world->comms[rank], call->count, r, &shard, &n);
            for (uint64_t i = shard; i < shard + n; i++) put(b->expected, call->dtype, i, value(r, i));
        }
    }
    if (call->what == 3 && rank == call->root) memcpy(b->out, b->in, b->bytes);
}

static bool guards_hold(const buffers_t *b)
{
    for (size_t i = 0; i < GUARD; i++)
        if (b->out[-1 - (ptrdiff_t)i] != 0xee || b->out[b->bytes + i] != 0xee) return false;
    return true;
}

static void run_call(world_t *world, uint32_t rank, void *context)
{
    const call_t *call = context;
    buffers_t buffers[8];
    inspan_op_t *ops[8];
    for (int i = 0; i < call->repeat; i++) {
        prepare(world, rank, call, &buffers[i]);
        CHECK(start(world->comms[rank], call, buffers[i].in, buffers[i].out, &ops[i]) == INSPAN_OK);
    }
    for (int i = call->repeat; i-- > 0;) { /* the last one first: order of waiting is free */
        const inspan_status_t status = world->wait(world, rank, ops[i]);
        if (status != INSPAN_OK) {
            inspan_cause_t cause = {0};
            inspan_comm_cause(world->comms[rank], &cause);
            fprintf(stderr, "%s: %s (call %d of %llu, %d times)\n", inspan_status_text(status), cause.text,
                    call->what, (unsigned long long)call->count, call->repeat);
        }
        CHECK(status == INSPAN_OK);
        if (call->what != 4) {
            CHECK(memcmp(buffers[i].out + buffers[i].first, buffers[i].expected + buffers[i].first,
                         buffers[i].n) == 0);
            CHECK(guards_hold(&buffers[i]));
        }
        free(buffers[i].memory);
    }
}

static void run(world_t *world, call_t call)
{
    if (call.repeat == 0) call.repeat = 1;
    world->each(world, run_call, &call);
    assert_int_equal(conformance_failures, 0);
}

static comm_options_t plain_options(void)
{
    return (comm_options_t){.failure_timeout = 20 * NS_PER_S};
}

/* Schedules are the executor's: a backend has none to choose from. */
static inspan_schedule_t last_schedule(void)
{
    return harness->backend == NULL ? INSPAN_SCHEDULE_TREES : INSPAN_SCHEDULE_AUTO;
}

/* Did the backend carry what it can, and nothing else? */
static void check_carried(const world_t *world, uint64_t operations)
{
    if (harness->backend == NULL || world->n == 1) return;
    for (uint32_t r = 0; r < world->n; r++) {
        assert_string_equal(comm_backend_name(world->comms[r]), harness->backend->name);
        assert_int_equal(comm_backend_operations(world->comms[r]), operations);
    }
}

static bool carries(int what)
{
    static const uint8_t collectives[] = {SCHED_ALLREDUCE, SCHED_REDUCE_SCATTER, SCHED_ALLGATHER,
                                          SCHED_BROADCAST, SCHED_BARRIER};
    return harness->backend != NULL && harness->backend->caps.operations >> collectives[what] & 1;
}

static void every_collective_every_world(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 1, 2, 17, 1000, 4099, 33000};
    for (size_t w = 0; w < WORLDS; w++)
        for (int schedule = INSPAN_SCHEDULE_AUTO; schedule <= (int)last_schedule(); schedule++) {
            comm_options_t options = plain_options();
            options.schedule = (inspan_schedule_t)schedule;
            options.chunk_bytes = schedule == INSPAN_SCHEDULE_AUTO ? 0 : 5000;
            world_t world = {0};
            uint64_t carried = 0;
            harness->open(&world, worlds[w], &options);
            for (size_t c = 0; c<sizeof counts / sizeof counts[0]; c += LESS> 1 ? 2 : 1)
                for (int what = 0; what < 5; what++) {
                    run(&world, (call_t){.what = what, .count = counts[c], .root = (uint32_t)c % worlds[w]});
                    carried += carries(what);
                }
            check_carried(&world, carried);
            harness->close(&world);
        }
}

static void every_type_and_alignment(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 3, &options);
    for (int dtype = 0; dtype < INSPAN_DTYPES; dtype++)
        for (int reduction = INSPAN_SUM; reduction < INSPAN_REDUCTIONS; reduction++)
            for (size_t shift = 0; shift<3; shift += LESS> 1 ? 2 : 1)
                for (uint64_t count = 1; count < 40000; count = count * 200 - 1)
                    for (int what = 0; what < 4; what++) {
                        if (!inspan_reduces((inspan_dtype_t)dtype, (inspan_reduction_t)reduction)) continue;
                        if (dtype == INSPAN_BF16 && reduction == INSPAN_PRODUCT) continue; /* not exact */
                        run(&world, (call_t){.what = what,
                                             .count = count,
                                             .dtype = (inspan_dtype_t)dtype,
                                             .reduction = (inspan_reduction_t)reduction,
                                             .root = 1,
                                             .shift = shift});
                    }
    harness->close(&world);
}

static void many_at_once(void **state)
{
    (void)state;
    for (size_t w = 1; w<WORLDS; w += LESS> 1 ? 2 : 1) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, worlds[w], &options);
        for (int what = 0; what < 5; what++) {
            run(&world, (call_t){.what = what, .count = 700, .repeat = 8});
            run(&world,
                (call_t){.what = what, .count = 300001, .repeat = 5 - (LESS > 1) * 2, .root = worlds[w] - 1});
        }
        harness->close(&world);
    }
}

static void weights(void **state)
{
    (void)state;
    double shares[7] = {1, 0, 0.3, 2, 0, 1, 1};
    for (size_t w = 1; w < WORLDS; w++) {
        comm_options_t options = plain_options();
        options.weights = shares;
        world_t world = {0};
        harness->open(&world, worlds[w], &options);
        for (int what = 0; what < 4; what++)
            run(&world, (call_t){.what = what, .count = 100003, .repeat = 2});
        harness->close(&world);
    }
}

/* Sums of numbers whose order of addition shows: all ranks hold the same bits, and the same ones each time.
 */
typedef struct bits {
    float *out[16];
    uint64_t count;
} bits_t;

static void sum_of_anything(world_t *world, uint32_t rank, void *context)
{
    bits_t *bits = context;
    float *in = malloc(bits->count * sizeof *in);
    rng_t rng;
    rng_seed(&rng, 5, rank);
    for (uint64_t i = 0; i < bits->count; i++) in[i] = (float)(rng_normal(&rng) * (rank % 2 ? 1e6 : 1e-3));
    inspan_op_t *op = NULL;
    CHECK(inspan_allreduce(world->comms[rank], in, bits->out[rank], bits->count, INSPAN_FP32, INSPAN_SUM,
                           &op) == INSPAN_OK);
    CHECK(world->wait(world, rank, op) == INSPAN_OK);
    free(in);
}

static void same_bits_on_all_ranks(void **state)
{
    (void)state;
    const int first_schedule = harness->backend == NULL ? INSPAN_SCHEDULE_ONE_SHOT : INSPAN_SCHEDULE_AUTO;
    for (int schedule = first_schedule; schedule <= (int)last_schedule(); schedule++) {
        comm_options_t options = plain_options();
        options.schedule = (inspan_schedule_t)schedule;
        float *first = NULL;
        for (int round = 0; round < 3; round++) {
            bits_t bits = {.count = 50021};
            world_t world = {0};
            harness->open(&world, 5, &options);
            for (uint32_t r = 0; r < 5; r++) bits.out[r] = calloc(bits.count, sizeof(float));
            world.each(&world, sum_of_anything, &bits);
            assert_int_equal(conformance_failures, 0);
            for (uint32_t r = 1; r < 5; r++)
                assert_memory_equal(bits.out[0], bits.out[r], bits.count * sizeof(float));
            if (first != NULL) assert_memory_equal(bits.out[0], first, bits.count * sizeof(float));
            for (uint32_t r = 1; r < 5; r++) free(bits.out[r]);
            free(first);
            first = bits.out[0];
            harness->close(&world);
        }
        free(first);
    }
}

/* Of a case that needs what this backend does not have: skipped, and named. */
static bool lacks_wire_types(void)
{
    if (harness->backend == NULL || harness->backend->caps.wire_types) return false;
    print_message(
        "skipped: %s has no other type than fp32 for fp32 on the wire; the executor carries those\n",
        harness->backend->name);
    return true;
}

/* Small whole numbers are what they are in every wire type: the sums are right to the bit. */
static void every_wire_type(void **state)
{
    (void)state;
    if (lacks_wire_types()) skip();
    static const uint64_t counts[] = {0, 1, 5000, 33000, 120001};
    static double shares[7] = {1, 0, 0.3, 2, 0, 1, 1};
    for (size_t w = 0; w<WORLDS; w += LESS> 1 ? 2 : 1)
        for (int weighted = LESS > 1; weighted < 2; weighted++) {
            comm_options_t options = plain_options();
            options.weights = weighted ? shares : NULL;
            options.chunk_bytes = weighted ? 5000 : 0;
            world_t world = {0};
            harness->open(&world, worlds[w], &options);
            for (size_t c = LESS > 1 ? 2 : 0; c < sizeof counts / sizeof counts[0]; c++)
                for (int wire = 0; wire < INSPAN_WIRES; wire++)
                    run(&world,
                        (call_t){.what = 5, .count = counts[c], .wire = (inspan_wire_t)wire, .repeat = 3});
            harness->close(&world);
        }
}

#define TAIL 300u

/* What all give is what all get, and what is kept of it as errors. */
typedef struct rounded {
    inspan_wire_t wire;
    uint64_t count;
    float *in[16], *out[16], *error[16];
} rounded_t;

static void sum_rounded(world_t *world, uint32_t rank, void *context)
{
    rounded_t *rounded = context;
    rng_t rng;
    rng_seed(&rng, 6, rank);
    for (uint64_t i = 0; i < rounded->count; i++) rounded->in[rank][i] = (float)rng_normal(&rng);
    inspan_op_t *op = NULL;
    CHECK(inspan_allreduce_wire(world->comms[rank], rounded->in[rank], rounded->out[rank],
                                rounded->error[rank], rounded->count, TAIL, rounded->wire, &op) == INSPAN_OK);
    CHECK(world->wait(world, rank, op) == INSPAN_OK);
}

static void rounding_is_kept_as_error(void **state)
{
    (void)state;
    if (lacks_wire_types()) skip();
    static const uint64_t counts[] = {1000, 70001};
    for (int wire = 0; wire < INSPAN_WIRES; wire++)
        for (size_t c = 0; c < 2; c++)
            for (uint32_t n = LESS > 1 ? 3 : 1; n <= (LESS > 1 ? 3 : 5); n += 2) {
                rounded_t rounded = {.wire = (inspan_wire_t)wire, .count = counts[c]};
                const bool exact = wire == INSPAN_WIRE_FP32 || n == 1 || c == 0;
                comm_options_t options = plain_options();
                world_t world = {0};
                harness->open(&world, n, &options);
                for (uint32_t r = 0; r < n; r++) {
                    rounded.in[r] = calloc(rounded.count, sizeof(float));
                    rounded.out[r] = calloc(rounded.count, sizeof(float));
                    rounded.error[r] = malloc(rounded.count * sizeof(float));
                    memset(rounded.error[r], 0xff, rounded.count * sizeof(float));
                }
                world.each(&world, sum_rounded, &rounded);
                assert_int_equal(conformance_failures, 0);
                double most = 0;
                for (uint64_t i = 0; i < rounded.count; i++) {
                    double given = 0, kept = 0;
                    for (uint32_t r = 0; r < n; r++) {
                        given += (double)rounded.in[r][i];
                        kept += (double)rounded.error[r][i];
                        if (exact || i >= rounded.count - TAIL) assert_true(rounded.error[r][i] == 0);
                    }
                    const double off = given - ((double)rounded.out[0][i] + kept);
                    assert_true(off < 1e-5 && off > -1e-5);
                    const double moved = given - (double)rounded.out[0][i];
                    most = moved > most ? moved : most;
                }
                assert_true(exact ? most < 1e-5 : most > 1e-4); /* it did go over the wire in that type */
                for (uint32_t r = 0; r < n; r++) {
                    assert_memory_equal(rounded.out[0], rounded.out[r], rounded.count * sizeof(float));
                    if (r > 0) free(rounded.out[r]);
                    free(rounded.in[r]);
                    free(rounded.error[r]);
                }
                free(rounded.out[0]);
                harness->close(&world);
            }
}

static void call_wrongly(world_t *world, uint32_t rank, void *context)
{
    const int how = *(int *)context;
    static float in[5000], outs[16][5000]; /* in int8, too, more than goes in one hop */
    float *out = outs[rank];
    inspan_op_t *op = NULL;
    inspan_comm_t *comm = world->comms[rank];
    const bool odd = rank == 2;
    inspan_status_t status =
        how == 5          ? inspan_allreduce_wire(comm, in, out, NULL, 5000, 0,
                                         odd ? INSPAN_WIRE_BF16 : INSPAN_WIRE_INT8, &op)
        : how == 0 && odd ? inspan_barrier(comm, &op)
        : how == 1 && odd ? inspan_allreduce(comm, in, out, 4999, INSPAN_FP32, INSPAN_SUM, &op)
        : how == 2 && odd ? inspan_allreduce(comm, in, out, 5000, INSPAN_INT32, INSPAN_SUM, &op)
        : how == 3 && odd ? inspan_allreduce(comm, in, out, 5000, INSPAN_FP32, INSPAN_MAX, &op)
        : how == 4        ? inspan_broadcast(comm, out, 5000, INSPAN_FP32, odd ? 1 : 0, &op)
                          : inspan_allreduce(comm, in, out, 5000, INSPAN_FP32, INSPAN_SUM, &op);
    if (status == INSPAN_OK) status = world->wait(world, rank, op);
    if (how == 4 && status == INSPAN_OK) { /* a broadcast needs its root only: then the next call tells */
        status = inspan_barrier(comm, &op);
        if (status == INSPAN_OK) status = world->wait(world, rank, op);
    }
    CHECK(status == INSPAN_MISMATCH);
    inspan_cause_t cause;
    CHECK(inspan_comm_cause(comm, &cause));
    CHECK(cause.status == INSPAN_MISMATCH);
    CHECK(strstr(cause.text, "rank 2") != NULL && strstr(cause.text, "#1") != NULL);
    ns_t begin = os_now(); /* and no later call does anything but tell it again, at once */
    CHECK(inspan_allreduce(comm, in, out, 1, INSPAN_FP32, INSPAN_SUM, &op) == INSPAN_MISMATCH);
    CHECK(os_now() - begin < 100 * NS_PER_MS);
    CHECK(comm_message(comm, 0, "x", 1) == INSPAN_MISMATCH);
}

static void mismatched_calls(void **state)
{
    (void)state;
    for (int how = 0; how < 6; how++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, 5, &options);
        world.each(&world, call_wrongly, &how);
        assert_int_equal(conformance_failures, 0);
        harness->close(&world);
    }
}

static void give_up(world_t *world, uint32_t rank, void *context)
{
    float *buffer = context;
    inspan_op_t *op = NULL;
    if (rank == 1) {
        inspan_comm_abort(world->comms[rank], "tired");
        inspan_status_t status = inspan_barrier(world->comms[rank], &op);
        CHECK(status == INSPAN_ABORTED || world->wait(world, rank, op) == INSPAN_ABORTED);
        return;
    }
    inspan_status_t status = inspan_allreduce(world->comms[rank], buffer, buffer + 4000000 * (rank + 1),
                                              4000000, INSPAN_FP32, INSPAN_SUM, &op);
    if (status == INSPAN_OK) status = world->wait(world, rank, op);
    CHECK(status == INSPAN_ABORTED);
    inspan_cause_t cause;
    CHECK(inspan_comm_cause(world->comms[rank], &cause) && cause.rank == 1);
    CHECK(strstr(cause.text, "tired") != NULL);
}

static void abort_reaches_all(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    options.schedule = INSPAN_SCHEDULE_RING; /* non-neighbours too */
    world_t world = {0};
    harness->open(&world, 5, &options);
    float *buffer = calloc(4000000 * 6, sizeof *buffer);
    world.each(&world, give_up, buffer);
    assert_int_equal(conformance_failures, 0);
    harness->close(&world);
    free(buffer);
}

/* ---- Messages -------------------------------------------------------------------------------- */

typedef struct inbox {
    uint32_t next[16]; /* number expected from each rank */
    int wrong;
} inbox_t;

static void on_message(void *context, uint32_t from, const void *data, size_t bytes)
{
    inbox_t *inbox = context;
    uint32_t number = 0;
    if (bytes < sizeof number) {
        __atomic_fetch_add(&inbox->wrong, 1, __ATOMIC_RELAXED);
        return;
    }
    memcpy(&number, data, sizeof number);
    const size_t expected = number % 2 ? COMM_MESSAGE_MAX : sizeof number;
    if (number != inbox->next[from] || bytes != expected)
        __atomic_fetch_add(&inbox->wrong, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&inbox->next[from], 1, __ATOMIC_RELAXED);
}

typedef struct mail {
    inbox_t inboxes[16];
    bool late; /* handlers are set after a barrier */
} mail_t;

#define MAILS 20

static void send_mail(world_t *world, uint32_t rank, void *context)
{
    mail_t *mail = context;
    inspan_comm_t *comm = world->comms[rank];
    if (!mail->late) comm_set_message_handler(comm, on_message, &mail->inboxes[rank]);
    uint8_t bytes[COMM_MESSAGE_MAX] = {0};
    for (uint32_t number = 0; number < MAILS; number++)
        for (uint32_t to = 0; to < world->n; to++) {
            memcpy(bytes, &number, sizeof number);
            CHECK(comm_message(comm, to, bytes, number % 2 ? sizeof bytes : sizeof number) == INSPAN_OK);
        }
    inspan_op_t *op = NULL; /* messages of before the barrier have arrived after it: they share its streams */
    CHECK(inspan_barrier(comm, &op) == INSPAN_OK);
    CHECK(world->wait(world, rank, op) == INSPAN_OK);
    if (mail->late) comm_set_message_handler(comm, on_message, &mail->inboxes[rank]);
}

static void messages(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        mail_t mail = {.late = late};
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, 3, &options);
        world.each(&world, send_mail, &mail);
        assert_int_equal(conformance_failures, 0);
        run(&world, (call_t){.what = 4}); /* the handlers set late have run after this one */
        run(&world, (call_t){.what = 4});
        for (uint32_t to = 0; to < 3; to++) {
            comm_set_message_handler(world.comms[to], NULL, NULL);
            assert_int_equal(mail.inboxes[to].wrong, 0);
            for (uint32_t from = 0; from < 3; from++) assert_int_equal(mail.inboxes[to].next[from], MAILS);
        }
        assert_int_equal(comm_message(world.comms[0], 3, "x", 1), INSPAN_INVALID);
        assert_int_equal(comm_message(world.comms[0], 1, "x", 0), INSPAN_INVALID);
        assert_int_equal(comm_message(world.comms[0], 1, &mail, COMM_MESSAGE_MAX + 1), INSPAN_INVALID);
        harness->close(&world);
    }
}

/* ---- Arguments, limits, callbacks ------------------------------------------------------------ */

static void arguments(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 2, &options);
    inspan_comm_t *comm = world.comms[0];
    float buffer[20];
    inspan_op_t *op = NULL;
    assert_int_equal(inspan_allreduce(comm, buffer, buffer + 3, 4, INSPAN_FP32, INSPAN_SUM, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce(comm, NULL, buffer, 4, INSPAN_FP32, INSPAN_SUM, &op), INSPAN_INVALID);
    assert_int_equal(inspan_allreduce(comm, buffer, buffer + 4, 4, INSPAN_DTYPES, INSPAN_SUM, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce(comm, buffer, buffer + 4, 4, INSPAN_FP32, INSPAN_REDUCTIONS, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce(comm, buffer, buffer + 4, 4, INSPAN_FP32, INSPAN_BIT_AND, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce(comm, buffer, buffer + 4, UINT64_MAX / 2, INSPAN_FP32, INSPAN_SUM, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce_wire(comm, buffer, buffer + 4, NULL, 4, 0, INSPAN_WIRES, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce_wire(comm, buffer, buffer + 4, buffer + 6, 4, 0, INSPAN_WIRE_INT8, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allreduce_wire(comm, buffer, buffer + 4, NULL, 4, 5, INSPAN_WIRE_INT8, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_broadcast(comm, buffer, 4, INSPAN_FP32, 2, &op), INSPAN_INVALID);
    assert_int_equal(inspan_comm_rank(world.comms[1]), 1);
    assert_int_equal(inspan_comm_world(comm), 2);
    assert_null(inspan_comm_member(comm, 2));
    assert_false(inspan_comm_cause(comm, NULL));
    uint64_t first = 1, n = 1;
    inspan_shard(comm, 1000, 2, &first, &n);
    assert_int_equal(n, 0);
    harness->close(&world);
}

static void count_done(void *context, inspan_status_t status)
{
    if (status == INSPAN_OK) __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
}

static void fill_up(world_t *world, uint32_t rank, void *context)
{
    int *done = context;
    static float in[16][4], out[16][4];
    inspan_comm_t *comm = world->comms[rank];
    inspan_op_t *ops[257], *op = NULL;
    for (int i = 0; i < 256; i++) {
        CHECK(inspan_allreduce(comm, in[rank], out[rank], i % 5, INSPAN_FP32, INSPAN_SUM, &ops[i]) ==
              INSPAN_OK);
        if (i % 2) comm_op_on_done(ops[i], count_done, &done[rank]);
    }
    for (int i = 0; i < 256; i += 2) CHECK(world->wait(world, rank, ops[i]) == INSPAN_OK);
    CHECK(inspan_barrier(comm, &op) == INSPAN_OK);
    CHECK(world->wait(world, rank, op) == INSPAN_OK);
    CHECK(__atomic_load_n(&done[rank], __ATOMIC_RELAXED) == 128);
}

static void limits_and_callbacks(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 3, &options);
    int done[16] = {0};
    world.each(&world, fill_up, done);
    assert_int_equal(conformance_failures, 0);
    inspan_op_t *ops[257]; /* one rank alone: nothing finishes, 256 is the cap */
    for (int i = 0; i < 256; i++) assert_int_equal(inspan_barrier(world.comms[0], &ops[i]), INSPAN_OK);
    assert_int_equal(inspan_barrier(world.comms[0], &ops[256]), INSPAN_LIMIT);
    assert_int_equal(inspan_op_test(ops[0]), INSPAN_PENDING);
    assert_int_equal(inspan_op_wait(ops[0], NS_PER_MS), INSPAN_TIMEOUT);
    for (int i = 0; i < 256; i++) { /* the others follow */
        assert_int_equal(inspan_barrier(world.comms[1], &ops[256]), INSPAN_OK);
        comm_op_on_done(ops[256], count_done, &done[1]);
        assert_int_equal(inspan_barrier(world.comms[2], &ops[256]), INSPAN_OK);
        comm_op_on_done(ops[256], count_done, &done[2]);
        assert_int_equal(world.wait(&world, 0, ops[i]), INSPAN_OK);
    }
    inspan_comm_stats_t stats;
    inspan_comm_stats(world.comms[0], &stats);
    assert_int_equal(stats.operations, 256 + 1 + 256);
    assert_true(stats.busy_ns > 0);
    harness->close(&world);
}

/* A rank that leaves while others go on is named. */
static void go_on_alone(world_t *world, uint32_t rank, void *context)
{
    (void)context;
    inspan_op_t *op = NULL;
    CHECK(inspan_barrier(world->comms[rank], &op) == INSPAN_OK);
    inspan_status_t status = world->wait(world, rank, op); /* the other may be through, and have found out */
    if (rank == 2) {
        CHECK(status == INSPAN_OK);
        inspan_comm_close(world->comms[2]);
        world->comms[2] = NULL;
        return;
    }
    if (status == INSPAN_OK) {
        status = inspan_barrier(world->comms[rank], &op);
        if (status == INSPAN_OK) status = world->wait(world, rank, op);
    }
    CHECK(status == INSPAN_PEER_LOST);
    inspan_cause_t cause;
    CHECK(inspan_comm_cause(world->comms[rank], &cause));
    CHECK(cause.rank == 2 && strstr(cause.text, "closed after 1 operations") != NULL);
}

static void leaving_early(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 3, &options);
    world.each(&world, go_on_alone, NULL);
    assert_int_equal(conformance_failures, 0);
    harness->close(&world);
}

static int forget_failures(void **state)
{
    (void)state;
    conformance_failures = 0;
    return 0;
}

int conformance_run(const harness_t *which)
{
    harness = which;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_collective_every_world, forget_failures),
        cmocka_unit_test_setup(every_type_and_alignment, forget_failures),
        cmocka_unit_test_setup(many_at_once, forget_failures),
        cmocka_unit_test_setup(weights, forget_failures),
        cmocka_unit_test_setup(same_bits_on_all_ranks, forget_failures),
        cmocka_unit_test_setup(every_wire_type, forget_failures),
        cmocka_unit_test_setup(rounding_is_kept_as_error, forget_failures),
        cmocka_unit_test_setup(mismatched_calls, forget_failures),
        cmocka_unit_test_setup(abort_reaches_all, forget_failures),
        cmocka_unit_test_setup(messages, forget_failures),
        cmocka_unit_test_setup(arguments, forget_failures),
        cmocka_unit_test_setup(limits_and_callbacks, forget_failures),
        cmocka_unit_test_setup(leaving_early, forget_failures),
    };
    const int failed = cmocka_run_group_tests_name(which->name, tests, NULL, NULL);
    return failed + transfer_conformance_run(which) + exchange_conformance_run(which);
}
