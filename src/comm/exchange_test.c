/* Conformance: gather, scatter, all-to-all, reduce, and collectives on blocks, over every transport. */
#include "comm/conformance_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const harness_t *harness;

static const uint32_t worlds[] = {1, 2, 3, 5, 7};
#define WORLDS (sizeof worlds / sizeof worlds[0])
#define GUARD  16

typedef enum what {
    GATHER,
    SCATTER,
    ALLTOALL,
    REDUCE,
    REDUCE_SCATTER,
    ALLGATHER,
    ALLGATHER_IN_PLACE,
    KINDS
} what_t;

typedef struct call {
    what_t what;
    uint64_t count; /* of a part, at the most */
    uint32_t root;
    int repeat; /* so many at once */
} call_t;

/* Element i of what goes from one rank to another, small enough that sums are exact. */
static int32_t value(uint32_t from, uint32_t to, uint64_t i)
{
    return (int32_t)(i * 7 % 1009) + (int32_t)(from * 100 + to);
}

/* Parts of unlike lengths, some of nothing. */
static uint64_t part_count(const call_t *call, uint32_t from, uint32_t to)
{
    if (call->what >= REDUCE) return call->count;
    return (from + 2 * to) % 4 == 1 ? 0 : call->count * ((from + to) % 3 + 1) / 3;
}

typedef struct buffers {
    int32_t *in[16], *out[16]; /* by the other rank; guards around each out */
    inspan_part_t to[16], from[16];
    int32_t *flat_in, *flat_out; /* (world, count) with guards, where blocks lie side by side */
} buffers_t;

static int32_t *guarded(uint64_t count)
{
    int32_t *memory = malloc((count + 2 * GUARD) * sizeof *memory);
    memset(memory, 0xee, (count + 2 * GUARD) * sizeof *memory);
    return memory + GUARD;
}

static bool guards_hold(const int32_t *data, uint64_t count)
{
    for (uint64_t i = 0; i < GUARD; i++)
        if (data[-1 - (ptrdiff_t)i] != (int32_t)0xeeeeeeee || data[count + i] != (int32_t)0xeeeeeeee)
            return false;
    return true;
}

static void prepare(const world_t *world, uint32_t rank, const call_t *call, buffers_t *b)
{
    const uint64_t all = world->n * call->count;
    b->flat_in = guarded(all);
    b->flat_out = guarded(all);
    for (uint32_t r = 0; r < world->n; r++) {
        const uint64_t gives = part_count(call, rank, r), gets = part_count(call, r, rank);
        b->in[r] = guarded(gives);
        b->out[r] = guarded(gets);
        for (uint64_t i = 0; i < gives; i++) b->in[r][i] = value(rank, r, i);
        for (uint64_t i = 0; i < call->count; i++) b->flat_in[r * call->count + i] = value(rank, r, i);
        b->to[r] = (inspan_part_t){b->in[r], gives};
        b->from[r] = (inspan_part_t){b->out[r], gets};
    }
}

static void clean_up(const world_t *world, buffers_t *b)
{
    for (uint32_t r = 0; r < world->n; r++) {
        free(b->in[r] - GUARD);
        free(b->out[r] - GUARD);
    }
    free(b->flat_in - GUARD);
    free(b->flat_out - GUARD);
}

static inspan_status_t start(inspan_comm_t *comm, const call_t *call, buffers_t *b, inspan_op_t **op)
{
    const uint32_t rank = inspan_comm_rank(comm), root = call->root;
    const uint64_t count = call->count;
    switch (call->what) {
    case GATHER:
        return inspan_gather(comm, b->in[root], b->to[root].count, rank == root ? b->from : NULL,
                             INSPAN_INT32, root, op);
    case SCATTER:
        return inspan_scatter(comm, rank == root ? b->to : NULL, b->out[root], b->from[root].count,
                              INSPAN_INT32, root, op);
    case ALLTOALL: return inspan_alltoall(comm, b->to, b->from, INSPAN_INT32, op);
    case REDUCE:
        return inspan_reduce(comm, b->in[root], rank == root ? b->flat_out : NULL, count, INSPAN_INT32,
                             INSPAN_SUM, root, op);
    case REDUCE_SCATTER:
        return inspan_reduce_scatter_blocks(comm, b->flat_in, b->out[0], count, INSPAN_INT32, INSPAN_SUM, op);
    case ALLGATHER: return inspan_allgather_blocks(comm, b->in[0], b->flat_out, count, INSPAN_INT32, op);
    default:
        memcpy(b->flat_out + rank * count, b->in[0], count * sizeof(int32_t));
        return inspan_allgather_blocks(comm, b->flat_out + rank * count, b->flat_out, count, INSPAN_INT32,
                                       op);
    }
}

/* What must lie in a result's element that rank got, of other where there are parts. */
static bool parts_are_right(const world_t *world, uint32_t rank, const call_t *call, const buffers_t *b)
{
    for (uint32_t r = 0; r < world->n; r++) {
        const bool written = call->what == ALLTOALL || (call->what == GATHER && rank == call->root) ||
                             (call->what == SCATTER && r == call->root);
        for (uint64_t i = 0; written && i < b->from[r].count; i++)
            if (b->out[r][i] != value(r, rank, i)) return false;
        if (!guards_hold(b->out[r], b->from[r].count)) return false;
        for (uint64_t i = 0; i < b->to[r].count; i++) /* what was sent is what it was */
            if (b->in[r][i] != value(rank, r, i)) return false;
    }
    return true;
}

static int32_t sum_of(const world_t *world, uint32_t to, uint64_t i)
{
    int32_t sum = 0;
    for (uint32_t r = 0; r < world->n; r++) sum += value(r, to, i);
    return sum;
}

static bool is_right(const world_t *world, uint32_t rank, const call_t *call, const buffers_t *b)
{
    const uint64_t count = call->count;
    if (!guards_hold(b->flat_out, world->n * count) || !guards_hold(b->out[0], b->from[0].count))
        return false;
    if (call->what < REDUCE) return parts_are_right(world, rank, call, b);
    for (uint64_t i = 0; i < count; i++) {
        if (call->what == REDUCE && rank == call->root && b->flat_out[i] != sum_of(world, rank, i))
            return false;
        if (call->what == REDUCE_SCATTER && b->out[0][i] != sum_of(world, rank, i)) return false;
    }
    for (uint32_t r = 0; call->what >= ALLGATHER && r < world->n; r++)
        for (uint64_t i = 0; i < count; i++)
            if (b->flat_out[r * count + i] != value(r, 0, i)) return false;
    return true;
}

static void run_call(world_t *world, uint32_t rank, void *context)
{
    const call_t *call = context;
    buffers_t buffers[4];
    inspan_op_t *ops[4];
    for (int i = 0; i < call->repeat; i++) {
        prepare(world, rank, call, &buffers[i]);
        CHECK(start(world->comms[rank], call, &buffers[i], &ops[i]) == INSPAN_OK);
    }
    for (int i = call->repeat; i-- > 0;) {
        const inspan_status_t status = world->wait(world, rank, ops[i]);
        inspan_cause_t cause = {0};
        if (status != INSPAN_OK && inspan_comm_cause(world->comms[rank], &cause))
            fprintf(stderr, "%s (call %d of %llu)\n", cause.text, (int)call->what,
                    (unsigned long long)call->count);
        CHECK(status == INSPAN_OK);
        CHECK(is_right(world, rank, call, &buffers[i]));
        clean_up(world, &buffers[i]);
    }
}

static comm_options_t plain_options(void)
{
    return (comm_options_t){.failure_timeout = 20 * NS_PER_S};
}

static void every_kind_every_world(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 1, 17, 1000, 33001};
    for (size_t w = 0; w < WORLDS; w++)
        for (int schedule = INSPAN_SCHEDULE_AUTO; schedule <= INSPAN_SCHEDULE_RING; schedule += 3) {
            comm_options_t options = plain_options();
            options.schedule = (inspan_schedule_t)schedule;
            world_t world = {0};
            harness->open(&world, worlds[w], &options);
            for (size_t c = 0; c<sizeof counts / sizeof counts[0]; c += LESS> 1 ? 2 : 1)
                for (int what = 0; what < KINDS; what++) {
                    call_t call = {(what_t)what, counts[c], (uint32_t)c % worlds[w], c % 2 ? 3 : 1};
                    world.each(&world, run_call, &call);
                    assert_int_equal(conformance_failures, 0);
                }
            harness->close(&world);
        }
}

/* Weights say who makes which sums; blocks and roots are what they are. */
static void weights_change_no_block(void **state)
{
    (void)state;
    double shares[5] = {1, 0, 0.3, 2, 0};
    comm_options_t options = plain_options();
    options.weights = shares;
    world_t world = {0};
    harness->open(&world, 5, &options);
    for (int what = REDUCE; what < KINDS; what++) {
        call_t call = {(what_t)what, 5003, 1, 2};
        world.each(&world, run_call, &call);
        assert_int_equal(conformance_failures, 0);
    }
    harness->close(&world);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void disagree(world_t *world, uint32_t rank, void *context)
{
    const int *how = context;
    inspan_comm_t *comm = world->comms[rank];
    static int32_t in[3][8], out[3][8];
    inspan_part_t parts[3];
    for (int i = 0; i < 3; i++) parts[i] = (inspan_part_t){out[i], 4};
    inspan_op_t *op = NULL;
    const uint64_t count = rank == 1 ? 5 : 4;
    inspan_status_t status =
        *how == 0   ? inspan_gather(comm, in[rank], count, rank == 0 ? parts : NULL, INSPAN_INT32, 0, &op)
        : *how == 1 ? inspan_scatter(comm, rank == 0 ? parts : NULL, in[rank], count, INSPAN_INT32, 0, &op)
        : *how == 2 ? inspan_reduce(comm, in[rank], out[rank], 4, INSPAN_INT32, INSPAN_SUM, rank == 1, &op)
        : rank == 1
            ? inspan_reduce_scatter(comm, in[rank], out[rank], 6, INSPAN_INT32, INSPAN_SUM, &op)
            : inspan_reduce_scatter_blocks(comm, in[rank], out[rank], 2, INSPAN_INT32, INSPAN_SUM, &op);
    /* the others may have found out, even before this call, or this rank's part is through */
    if (status == INSPAN_OK) status = world->wait(world, rank, op);
    if (status == INSPAN_OK && inspan_barrier(comm, &op) == INSPAN_OK) status = world->wait(world, rank, op);
    inspan_cause_t cause = {0};
    CHECK(inspan_comm_cause(comm, &cause) && cause.status == INSPAN_MISMATCH);
    static const char *const texts[] = {"must name the same count", "must name the same count", "to rank 1",
                                        "all ranks must make the same calls"};
    CHECK(strstr(cause.text, texts[*how]) != NULL);
}

static void ranks_that_disagree(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, 3, &options);
        world.each(&world, disagree, &how);
        assert_int_equal(conformance_failures, 0);
        harness->close(&world);
    }
}

static void arguments(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 2, &options);
    inspan_comm_t *comm = world.comms[0];
    float x[16], y[16];
    inspan_part_t parts[2] = {{x, 4}, {x + 4, 4}}, wrong[2] = {{x, 4}, {NULL, 4}};
    inspan_op_t *op = NULL;
    assert_int_equal(inspan_gather(comm, x, 4, NULL, INSPAN_FP32, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_gather(comm, x, 4, wrong, INSPAN_FP32, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_gather(comm, x, 4, parts, INSPAN_FP32, 2, &op), INSPAN_INVALID);
    assert_int_equal(inspan_scatter(comm, NULL, x, 4, INSPAN_FP32, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_scatter(comm, parts, NULL, 4, INSPAN_FP32, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_alltoall(comm, parts, NULL, INSPAN_FP32, &op), INSPAN_INVALID);
    assert_int_equal(inspan_alltoall(comm, parts, wrong, INSPAN_FP32, &op), INSPAN_INVALID);
    assert_int_equal(inspan_alltoall(comm, parts, parts, INSPAN_DTYPES, &op), INSPAN_INVALID);
    assert_int_equal(inspan_reduce(comm, x, NULL, 4, INSPAN_FP32, INSPAN_SUM, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_reduce(comm, x, x + 2, 4, INSPAN_FP32, INSPAN_SUM, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_reduce(comm, x, y, 4, INSPAN_FP32, INSPAN_BIT_OR, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_reduce_scatter_blocks(comm, x, x + 7, 4, INSPAN_FP32, INSPAN_SUM, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_reduce_scatter_blocks(comm, x, y, UINT64_MAX / 8, INSPAN_FP32, INSPAN_SUM, &op),
                     INSPAN_INVALID);
    assert_int_equal(inspan_allgather_blocks(comm, x + 1, x, 4, INSPAN_FP32, &op), INSPAN_INVALID);
    assert_int_equal(inspan_allgather_blocks(comm, x, NULL, 4, INSPAN_FP32, &op), INSPAN_INVALID);
    harness->close(&world);
}

/* Handles: all that an exchange needs, or none. */
static void handles_run_out(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 2, &options);
    static int32_t x[2], y[2];
    const inspan_part_t to[2] = {{&x[0], 1}, {&x[1], 1}}, from[2] = {{&y[0], 1}, {&y[1], 1}};
    inspan_op_t *ops[256], *op = NULL;
    for (int i = 0; i < 252; i++) /* one rank alone: nothing finishes */
        assert_int_equal(inspan_barrier(world.comms[0], &ops[i]), INSPAN_OK);
    assert_int_equal(inspan_alltoall(world.comms[0], to, from, INSPAN_INT32, &op), INSPAN_LIMIT);
    for (int i = 252; i < 256; i++) assert_int_equal(inspan_barrier(world.comms[0], &ops[i]), INSPAN_OK);
    assert_int_equal(inspan_barrier(world.comms[0], &op), INSPAN_LIMIT);
    inspan_comm_abort(world.comms[0], "enough");
    for (int i = 0; i < 256; i++) assert_int_equal(world.wait(&world, 0, ops[i]), INSPAN_ABORTED);
    harness->close(&world);
}

int exchange_conformance_run(const harness_t *which)
{
    harness = which;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_every_world), cmocka_unit_test(weights_change_no_block),
        cmocka_unit_test(ranks_that_disagree),    cmocka_unit_test(arguments),
        cmocka_unit_test(handles_run_out),
    };
    return cmocka_run_group_tests_name(which->name, tests, NULL, NULL);
}
