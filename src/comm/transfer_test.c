/* Sends and receives: the part of the conformance suite that every transport must pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/conformance_test.h"

static const harness_t *harness;

static const uint32_t worlds[] = {1, 2, 3, 5};
#define WORLDS (sizeof worlds / sizeof worlds[0])

static comm_options_t plain_options(void)
{
    return (comm_options_t){.failure_timeout = 20 * NS_PER_S};
}

/* What a sender's transfer number `which` to a receiver is made of. */
static void fill(uint8_t *bytes, size_t n, uint32_t from, uint32_t to, uint64_t which)
{
    rng_t rng;
    rng_seed(&rng, which, (uint64_t)from << 32 | to);
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0) word = rng_next(&rng);
        bytes[i] = (uint8_t)(word >> 8 * (i % 8));
    }
}

#define GUARD 32

/* One end of a transfer: the sender's copy has the data, the receiver's gets it between guards. */
typedef struct end {
    uint8_t *memory, *data, *expected; /* expected: NULL for a send */
    size_t bytes;
    inspan_op_t *op;
} end_t;

static void end_prepare(end_t *end, bool receive, uint64_t count, inspan_dtype_t dtype, size_t shift,
                        uint32_t from, uint32_t to, uint64_t which)
{
    end->bytes = count * inspan_dtype_size(dtype);
    end->memory = malloc(end->bytes + 2 * GUARD + shift);
    memset(end->memory, 0xee, end->bytes + 2 * GUARD + shift);
    end->data = end->memory + GUARD + shift;
    end->expected = receive ? malloc(end->bytes + 1) : NULL;
    fill(receive ? end->expected : end->data, end->bytes, from, to, which);
}

static bool end_is_right(const end_t *end)
{
    if (end->expected == NULL) return true;
    for (size_t i = 0; i < GUARD; i++)
        if (end->data[-1 - (ptrdiff_t)i] != 0xee || end->data[end->bytes + i] != 0xee) return false;
    return memcmp(end->data, end->expected, end->bytes) == 0;
}

static void end_free(end_t *end)
{
    free(end->memory);
    free(end->expected);
}

/* ---- All pairs at once ----------------------------------------------------------------------- */

typedef struct size_case {
    uint64_t count;
    inspan_dtype_t dtype;
    size_t shift;
} size_case_t;

static void exchange_with_all(world_t *world, uint32_t rank, void *context)
{
    const size_case_t *what = context;
    inspan_comm_t *comm = world->comms[rank];
    end_t ends[32];
    const uint32_t n = 2 * world->n;
    for (uint32_t i = 0; i < n; i++) { /* odd ranks send first, even ones receive first */
        const bool receive = (i < world->n) == (rank % 2 == 0);
        const uint32_t peer = (rank + i) % world->n, from = receive ? peer : rank, to = receive ? rank : peer;
        end_prepare(&ends[i], receive, what->count, what->dtype, what->shift, from, to, what->count);
        CHECK((receive ? inspan_receive(comm, ends[i].data, what->count, what->dtype, peer, 7, &ends[i].op)
                       : inspan_send(comm, ends[i].data, what->count, what->dtype, peer, 7, &ends[i].op)) ==
              INSPAN_OK);
    }
    for (uint32_t i = n; i-- > 0;) { /* order of waiting is free */
        CHECK(world->wait(world, rank, ends[i].op) == INSPAN_OK);
        CHECK(end_is_right(&ends[i]));
        end_free(&ends[i]);
    }
}

static void all_pairs_every_size(void **state)
{
    (void)state;
    static const size_case_t cases[] = {
        {0, INSPAN_FP32, 0},
        {1, INSPAN_BF16, 1},
        {1, INSPAN_FP64, 0},
        {17, INSPAN_FP16, 3},
        {1001, INSPAN_INT64, 1},
        {16383, INSPAN_FP32, 0},
        {16384, INSPAN_FP32, 1},
        {16385, INSPAN_INT32, 0},
        {32767, INSPAN_BF16, 0},
        {65537, INSPAN_BF16, 1},
        {5000001 / 4 / LESS, INSPAN_FP32, 1},
    };
    for (size_t w = 0; w < WORLDS; w++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, worlds[w], &options);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            size_case_t what = cases[c];
            world.each(&world, exchange_with_all, &what);
            assert_int_equal(conformance_failures, 0);
        }
        inspan_comm_stats_t stats; /* an empty pair of ends counts too */
        inspan_comm_stats(world.comms[0], &stats);
        assert_int_equal(stats.operations, 2 * worlds[w] * sizeof cases / sizeof cases[0]);
        harness->close(&world);
    }
}

/* ---- Tags in any order, all-reduces between -------------------------------------------------- */

enum { LETTERS = 64, SUMS = 6, SUM_COUNT = 30011 };

typedef struct letter {
    uint32_t tag;
    uint64_t count;
} letter_t;

/* The model: the n letters of one rank to another, in the order in which they are sent. */
static void write_letters(letter_t *letters, uint32_t n, uint64_t seed, uint32_t from, uint32_t to)
{
    static const uint32_t tags[] = {0, 1, 2, UINT32_MAX - 16};
    rng_t rng;
    rng_seed(&rng, seed, 100 + from * 16 + to);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t limits[] = {2, 300, 20000, 100000 / LESS};
        letters[i].tag = tags[rng_below(&rng, 4)];
        letters[i].count = rng_below(&rng, limits[rng_below(&rng, 4)]);
    }
}

typedef struct post {
    uint64_t seed;
    uint32_t each; /* letters of every pair */
} post_t;

/* One rank's share of the game: what it has still to start. */
typedef struct player {
    letter_t out[16][LETTERS], in[16][LETTERS];
    uint32_t sent[16];
    bool taken[16][LETTERS];
    uint32_t left; /* sends and receives */
    float *sums_in, *sums_out;
    inspan_op_t *sums[SUMS];
    uint32_t n_sums;
    end_t ends[256];
    uint32_t n_ends;
} player_t;

/* Start one that is left: of sends to a rank the next one; of receives any, but of each tag the next one. */
static inspan_status_t play(world_t *world, uint32_t rank, const post_t *post, player_t *player, rng_t *rng)
{
    end_t *end = &player->ends[player->n_ends++];
    for (;;) {
        const uint32_t peer = (uint32_t)rng_below(rng, world->n);
        if (rng_below(rng, 2)) {
            if (player->sent[peer] == post->each) continue;
            const uint32_t i = player->sent[peer]++;
            const letter_t *letter = &player->out[peer][i];
            end_prepare(end, false, letter->count, INSPAN_FP16, 0, rank, peer, i);
            return inspan_send(world->comms[rank], end->data, letter->count, INSPAN_FP16, peer, letter->tag,
                               &end->op);
        }
        uint32_t i = (uint32_t)rng_below(rng, post->each);
        if (player->taken[peer][i]) continue;
        for (uint32_t k = i; k-- > 0;) /* the first one of its tag */
            if (!player->taken[peer][k] && player->in[peer][k].tag == player->in[peer][i].tag) i = k;
        player->taken[peer][i] = true;
        const letter_t *letter = &player->in[peer][i];
        end_prepare(end, true, letter->count, INSPAN_FP16, 0, peer, rank, i);
        return inspan_receive(world->comms[rank], end->data, letter->count, INSPAN_FP16, peer, letter->tag,
                              &end->op);
    }
}

static inspan_status_t start_sum(world_t *world, uint32_t rank, player_t *player)
{
    float *in = player->sums_in + player->n_sums * SUM_COUNT,
          *out = player->sums_out + player->n_sums * SUM_COUNT;
    for (uint32_t i = 0; i < SUM_COUNT; i++) in[i] = (float)((i + rank + player->n_sums) % 7);
    return inspan_allreduce(world->comms[rank], in, out, SUM_COUNT, INSPAN_FP32, INSPAN_SUM,
                            &player->sums[player->n_sums++]);
}

static bool sums_are_right(const world_t *world, const player_t *player)
{
    for (uint32_t k = 0; k < SUMS; k++)
        for (uint32_t i = 0; i < SUM_COUNT; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < world->n; r++) sum += (float)((i + r + k) % 7);
            if (player->sums_out[k * SUM_COUNT + i] != sum) return false;
        }
    return true;
}

static void play_post(world_t *world, uint32_t rank, void *context)
{
    const post_t *post = context;
    player_t *player = calloc(1, sizeof *player);
    player->sums_in = calloc(SUMS * SUM_COUNT, sizeof(float));
    player->sums_out = calloc(SUMS * SUM_COUNT, sizeof(float));
    rng_t rng;
    rng_seed(&rng, post->seed, rank);
    for (uint32_t peer = 0; peer < world->n; peer++) {
        write_letters(player->out[peer], post->each, post->seed, rank, peer);
        write_letters(player->in[peer], post->each, post->seed, peer, rank);
    }
    const uint32_t all = 2 * post->each * world->n;
    for (player->left = all; player->left > 0; player->left--) {
        if (player->left % (all / SUMS) == 0 && player->n_sums < SUMS)
            CHECK(start_sum(world, rank, player) == INSPAN_OK);
        CHECK(play(world, rank, post, player, &rng) == INSPAN_OK);
        if (player->left % (all / 3) == 1) { /* others get their turn in the middle of it */
            inspan_op_t *op = NULL;
            CHECK(inspan_barrier(world->comms[rank], &op) == INSPAN_OK);
            CHECK(world->wait(world, rank, op) == INSPAN_OK);
        }
    }
    while (player->n_sums < SUMS) CHECK(start_sum(world, rank, player) == INSPAN_OK);
    for (uint32_t i = 0; i < all; i++) {
        end_t *end = &player->ends[i];
        CHECK(world->wait(world, rank, end->op) == INSPAN_OK);
        CHECK(end_is_right(end));
        end_free(end);
    }
    for (uint32_t i = 0; i < SUMS; i++) CHECK(world->wait(world, rank, player->sums[i]) == INSPAN_OK);
    CHECK(sums_are_right(world, player));
    free(player->sums_in);
    free(player->sums_out);
    free(player);
}

static void tags_in_any_order(void **state)
{
    (void)state;
    static const uint32_t each[WORLDS] = {LETTERS, 40, 24, 16};
    for (size_t w = 0; w < WORLDS; w++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, worlds[w], &options);
        for (uint64_t round = 0; round < 6 / LESS + 1; round++) {
            post_t post = {.seed = 31 * round + w, .each = each[w]};
            world.each(&world, play_post, &post);
            assert_int_equal(conformance_failures, 0);
        }
        harness->close(&world);
    }
}

/* ---- Beside collectives ---------------------------------------------------------------------- */

enum { LARGE = 6000000 / LESS };

/*
 * A large send that nobody receives yet, and one under way, hold up no all-reduce; an all-reduce that waits
 * for rank 2 holds up no send: rank 2 joins it only once told by one.
 */
static void beside_collectives(world_t *world, uint32_t rank, void *context)
{
    (void)context;
    inspan_comm_t *comm = world->comms[rank];
    end_t large[2] = {0};
    for (uint32_t k = 0; k < 2; k++) end_prepare(&large[k], rank == 1, LARGE, INSPAN_FP32, 0, 0, 1, k);
    float in[4] = {1, 2, 3, 4}, out[4], word = 5;
    inspan_op_t *op = NULL, *sum = NULL;
    if (rank == 0) {
        CHECK(inspan_send(comm, large[0].data, LARGE, INSPAN_FP32, 1, 1, &large[0].op) == INSPAN_OK);
        CHECK(inspan_send(comm, large[1].data, LARGE, INSPAN_FP32, 1, 2, &large[1].op) == INSPAN_OK);
    }
    if (rank == 1)
        CHECK(inspan_receive(comm, large[1].data, LARGE, INSPAN_FP32, 0, 2, &large[1].op) == INSPAN_OK);
    for (int i = 0; i < 20; i++) {
        CHECK(inspan_allreduce(comm, in, out, 4, INSPAN_FP32, INSPAN_SUM, &sum) == INSPAN_OK);
        CHECK(world->wait(world, rank, sum) == INSPAN_OK && out[3] == 12);
    }
    if (rank == 0) { /* only then may rank 1 receive it */
        CHECK(inspan_op_test(large[0].op) == INSPAN_PENDING);
        CHECK(inspan_send(comm, &word, 1, INSPAN_FP32, 1, 3, &op) == INSPAN_OK);
        CHECK(world->wait(world, rank, op) == INSPAN_OK);
    }
    if (rank == 2) { /* not before rank 0 has got rid of both */
        CHECK(inspan_receive(comm, &word, 1, INSPAN_FP32, 0, 0, &op) == INSPAN_OK);
        CHECK(world->wait(world, rank, op) == INSPAN_OK && word == 6);
    }
    CHECK(inspan_allreduce(comm, in, out, 4, INSPAN_FP32, INSPAN_SUM, &sum) == INSPAN_OK);
    if (rank == 1) {
        CHECK(inspan_receive(comm, &word, 1, INSPAN_FP32, 0, 3, &op) == INSPAN_OK);
        CHECK(world->wait(world, rank, op) == INSPAN_OK);
        CHECK(inspan_receive(comm, large[0].data, LARGE, INSPAN_FP32, 0, 1, &large[0].op) == INSPAN_OK);
    }
    for (uint32_t k = 0; k < 2 && rank < 2; k++) {
        CHECK(world->wait(world, rank, large[k].op) == INSPAN_OK);
        CHECK(end_is_right(&large[k]));
    }
    if (rank == 0) {
        word = 6;
        CHECK(inspan_op_test(sum) == INSPAN_PENDING);
        CHECK(inspan_send(comm, &word, 1, INSPAN_FP32, 2, 0, &op) == INSPAN_OK);
        CHECK(world->wait(world, rank, op) == INSPAN_OK);
    }
    CHECK(world->wait(world, rank, sum) == INSPAN_OK && out[0] == 3);
    for (uint32_t k = 0; k < 2; k++) end_free(&large[k]);
}

static void nothing_holds_up_the_other(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 3, &options);
    world.each(&world, beside_collectives, NULL);
    assert_int_equal(conformance_failures, 0);
    harness->close(&world);
}

/* ---- Failures -------------------------------------------------------------------------------- */

typedef struct wrong {
    uint32_t to; /* of rank 0's send */
    uint64_t count;
    inspan_dtype_t dtype;
    const char *text;
    bool receive_late;
} wrong_t;

static inspan_status_t pass_barrier(world_t *world, uint32_t rank)
{
    inspan_op_t *op = NULL;
    const inspan_status_t status = inspan_barrier(world->comms[rank], &op);
    return status == INSPAN_OK ? world->wait(world, rank, op) : status;
}

static void disagree(world_t *world, uint32_t rank, void *context)
{
    const wrong_t *wrong = context;
    inspan_comm_t *comm = world->comms[rank];
    static float buffer[5000], others[16][5000];
    inspan_op_t *ops[2] = {NULL, NULL};
    const bool late = wrong->receive_late;
    if (rank == 0 && late)
        CHECK(inspan_send(comm, buffer, 5000, INSPAN_FP32, wrong->to, 9, &ops[0]) == INSPAN_OK);
    if (rank == wrong->to && !late)
        CHECK(inspan_receive(comm, others[rank], wrong->count, wrong->dtype, 0, 9, &ops[1]) == INSPAN_OK);
    inspan_status_t status = pass_barrier(world, rank); /* others may be through it, and have found out */
    if (rank == wrong->to && late && status == INSPAN_OK)
        status = inspan_receive(comm, others[rank], wrong->count, wrong->dtype, 0, 9, &ops[1]);
    if (rank == 0 && !late && status == INSPAN_OK)
        status = inspan_send(comm, buffer, 5000, INSPAN_FP32, wrong->to, 9, &ops[0]);
    CHECK(status == INSPAN_OK || status == INSPAN_MISMATCH);
    for (int k = 0; k < 2; k++)
        if (ops[k] != NULL) CHECK(world->wait(world, rank, ops[k]) == INSPAN_MISMATCH);
    if (rank == 0 || rank == wrong->to) { /* who takes no part fails too, in what it waits for */
        inspan_op_t *op = NULL;
        CHECK(inspan_send(comm, buffer, 1, INSPAN_FP32, 2, 1, &op) == INSPAN_MISMATCH);
    } else {
        CHECK(pass_barrier(world, rank) == INSPAN_MISMATCH);
    }
    inspan_cause_t cause;
    CHECK(inspan_comm_cause(comm, &cause) && cause.status == INSPAN_MISMATCH);
    CHECK(strstr(cause.text, wrong->text) != NULL);
}

static void count_and_type_must_agree(void **state)
{
    (void)state;
    static const wrong_t cases[] = {
        {1, 4999, INSPAN_FP32,
         "rank 0 sends 5000 elements of fp32 to rank 1 with tag 9, which receives 4999 of fp32", false},
        {1, 5000, INSPAN_INT32,
         "rank 0 sends 5000 elements of fp32 to rank 1 with tag 9, which receives 5000 of int32", false},
        {1, 2500, INSPAN_FP64, "which receives 2500 of fp64", true},
        {1, 0, INSPAN_FP32, "which receives 0 of fp32", true},
        {0, 4999, INSPAN_FP32, "to rank 0 with tag 9, which receives 4999", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, 3, &options);
        wrong_t wrong = cases[i];
        world.each(&world, disagree, &wrong);
        assert_int_equal(conformance_failures, 0);
        harness->close(&world);
    }
}

/* A rank that closes in order, though another waits for it, is named. */
typedef struct left {
    bool send;  /* what rank 0 does with the one who leaves; else it receives */
    bool early; /* it begins before that one leaves */
} left_t;

static void wait_for_one_who_left(world_t *world, uint32_t rank, void *context)
{
    const left_t *left = context;
    inspan_comm_t *comm = world->comms[rank];
    inspan_op_t *op = NULL;
    uint8_t buffer[8] = {0};
    inspan_status_t status = INSPAN_OK;
    for (int late = 0; late < 2; late++) {
        if (rank == 0 && status == INSPAN_OK && late == !left->early)
            status = left->send ? inspan_send(comm, buffer, 1, INSPAN_FP64, 1, 0, &op)
                                : inspan_receive(comm, buffer, 1, INSPAN_FP64, 1, 0, &op);
        if (late == 0) status = pass_barrier(world, rank); /* others may be through, and have found out */
    }
    if (rank == 1) {
        CHECK(status == INSPAN_OK);
        inspan_comm_close(comm);
        world->comms[1] = NULL;
        return;
    }
    if (rank == 2 && status == INSPAN_OK) /* has nothing to do with it, and is told */
        status = inspan_receive(comm, buffer, 1, INSPAN_FP64, 0, 0, &op);
    if (op != NULL) status = world->wait(world, rank, op);
    CHECK(status == INSPAN_PEER_LOST);
    inspan_cause_t cause;
    CHECK(inspan_comm_cause(comm, &cause));
    CHECK(cause.rank == 1 && strstr(cause.text, "closed") != NULL);
}

static void waiting_for_one_who_left(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        comm_options_t options = plain_options();
        world_t world = {0};
        harness->open(&world, 3, &options);
        left_t left = {.send = i % 2, .early = i / 2};
        world.each(&world, wait_for_one_who_left, &left);
        assert_int_equal(conformance_failures, 0);
        harness->close(&world);
    }
}

/* ---- Limits ---------------------------------------------------------------------------------- */

enum { MOST = 256 };

static void count_done(void *context, inspan_status_t status)
{
    if (status == INSPAN_OK) __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
}

static void fill_up(world_t *world, uint32_t rank, void *context)
{
    int *done = context;
    inspan_comm_t *comm = world->comms[rank];
    static uint32_t received[MOST], sent[MOST];
    inspan_op_t *ops[MOST], *op = NULL;
    if (rank == 0) { /* as many receives as there are handles, met in the opposite order */
        for (uint32_t i = 0; i < MOST; i++) {
            CHECK(inspan_receive(comm, &received[i], 1, INSPAN_INT32, 1, i, &ops[i]) == INSPAN_OK);
        }
        CHECK(inspan_receive(comm, &received[0], 1, INSPAN_INT32, 1, 0, &op) == INSPAN_LIMIT);
        for (uint32_t i = 1; i < MOST; i += 2) comm_op_on_done(ops[i], count_done, done);
        for (uint32_t i = 0; i < MOST; i += 2) CHECK(world->wait(world, rank, ops[i]) == INSPAN_OK);
        CHECK(pass_barrier(world, rank) == INSPAN_OK);
        for (uint32_t i = 0; i < MOST; i++) CHECK(received[i] == 1000 + i);
        return;
    }
    for (uint32_t i = MOST; i-- > 0;) {
        sent[i] = 1000 + i;
        CHECK(inspan_send(comm, &sent[i], 1, INSPAN_INT32, 0, i, &ops[i]) == INSPAN_OK);
    }
    CHECK(inspan_send(comm, &sent[0], 1, INSPAN_INT32, 0, 0, &op) == INSPAN_LIMIT);
    for (uint32_t i = 0; i < MOST; i++) CHECK(world->wait(world, rank, ops[i]) == INSPAN_OK);
    CHECK(pass_barrier(world, rank) == INSPAN_OK);
}

static void limits_and_arguments(void **state)
{
    (void)state;
    comm_options_t options = plain_options();
    world_t world = {0};
    harness->open(&world, 2, &options);
    int done = 0;
    for (int round = 1; round <= 3; round++) {
        world.each(&world, fill_up, &done);
        assert_int_equal(conformance_failures, 0);
        assert_int_equal(__atomic_load_n(&done, __ATOMIC_RELAXED), round * MOST / 2);
    }
    inspan_comm_t *comm = world.comms[0];
    float x = 0;
    inspan_op_t *op = NULL;
    assert_int_equal(inspan_send(comm, &x, 1, INSPAN_FP32, 2, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_receive(comm, &x, 1, INSPAN_FP32, 2, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_send(comm, NULL, 1, INSPAN_FP32, 1, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_receive(comm, &x, 1, INSPAN_DTYPES, 1, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_send(comm, &x, 1, INSPAN_FP32, 1, UINT32_MAX - 15, &op), INSPAN_INVALID);
    assert_int_equal(inspan_send(comm, &x, UINT64_MAX / 2, INSPAN_FP32, 1, 0, &op), INSPAN_INVALID);
    assert_int_equal(inspan_send(comm, &x, 1, INSPAN_FP32, 1, 0, NULL), INSPAN_INVALID);
    harness->close(&world);
}

static int forget_failures(void **state)
{
    (void)state;
    conformance_failures = 0;
    return 0;
}

int transfer_conformance_run(const harness_t *which)
{
    harness = which;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_pairs_every_size, forget_failures),
        cmocka_unit_test_setup(tags_in_any_order, forget_failures),
        cmocka_unit_test_setup(nothing_holds_up_the_other, forget_failures),
        cmocka_unit_test_setup(count_and_type_must_agree, forget_failures),
        cmocka_unit_test_setup(waiting_for_one_who_left, forget_failures),
        cmocka_unit_test_setup(limits_and_arguments, forget_failures),
    };
    char name[64];
    snprintf(name, sizeof name, "%s: transfers", which->name);
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
