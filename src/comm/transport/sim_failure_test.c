/*
 * Failures, over sim: what a member that breaks the protocol does to the others, and on which cause ranks end
 * when two fail at once. Frames are put into a member's stream through its transport, between two events, so
 * they are a right stream but for what is wrong on purpose.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/internal.h"

enum { MOST = 5, COUNT = 6000 };

typedef struct world {
    uint32_t n;
    comm_sim_t *sim;
    inspan_comm_t *comms[MOST];
    inspan_op_t *ops[MOST];
    bool crashed[MOST];
    float *in, *out; /* (COUNT), (n, COUNT) */
} world_t;

static void world_open(world_t *world, uint32_t n, uint64_t seed)
{
    static const inspan_member_t nobody;
    inspan_member_t members[MOST];
    *world = (world_t){.n = n};
    assert_int_equal(comm_sim_open(n, seed, &world->sim), INSPAN_OK);
    for (uint32_t r = 0; r < n; r++) {
        members[r] = nobody;
        members[r].number = r;
        snprintf(members[r].node, sizeof members[r].node, "node-%u", r);
    }
    for (uint32_t r = 0; r < n; r++) {
        const comm_options_t options = {.rank = r,
                                        .world = n,
                                        .members = members,
                                        .failure_timeout = NS_PER_S,
                                        .schedule = INSPAN_SCHEDULE_DIRECT};
        assert_int_equal(comm_sim_comm(world->sim, &options, &world->comms[r]), INSPAN_OK);
    }
    world->in = calloc(COUNT, sizeof(float));
    world->out = calloc((size_t)n * COUNT, sizeof(float));
}

static void world_close(world_t *world)
{
    for (uint32_t r = 0; r < world->n; r++) inspan_comm_close(world->comms[r]);
    comm_sim_close(world->sim);
    free(world->in);
    free(world->out);
}

static void start(world_t *world, uint32_t rank)
{
    assert_int_equal(inspan_allreduce(world->comms[rank], world->in, world->out + (size_t)rank * COUNT, COUNT,
                                      INSPAN_FP32, INSPAN_SUM, &world->ops[rank]),
                     INSPAN_OK);
}

static ns_t now(const world_t *world)
{
    return world->comms[0]->transport->now(world->comms[0]->transport_self);
}

/* All living ranks fail with one cause, this rank's, within 100 ms from now on; it. */
static inspan_cause_t must_blame(world_t *world, int32_t rank)
{
    const ns_t begin = now(world);
    inspan_cause_t causes[MOST];
    uint32_t failed = 0, living = 0, first = MOST;
    for (uint32_t r = 0; r < world->n; r++) living += !world->crashed[r];
    while (failed < living && comm_sim_run(world->sim, 1) == 1) {
        failed = 0;
        for (uint32_t r = 0; r < world->n; r++)
            failed += !world->crashed[r] && inspan_comm_cause(world->comms[r], &causes[r]);
    }
    if (failed != living) print_message("%u of %u failed\n", failed, living);
    assert_int_equal(failed, living);
    assert_in_range(now(world) - begin, 0, 100 * NS_PER_MS);
    for (uint32_t r = 0; r < world->n; r++) {
        if (world->crashed[r]) continue;
        if (first == MOST) first = r;
        if (causes[r].rank != rank) print_message("rank %u: %s\n", r, causes[r].text);
        assert_int_equal(causes[r].rank, rank);
        assert_int_equal(causes[r].status, causes[first].status);
        assert_string_equal(causes[r].text, causes[first].text);
        if (world->ops[r] != NULL) {
            const inspan_status_t status = inspan_op_test(world->ops[r]);
            assert_true(status == INSPAN_OK || status == causes[r].status);
        }
    }
    return causes[first];
}

/* ---- A member that breaks the protocol ------------------------------------------------------- */

static void inject(world_t *world, uint32_t from, uint32_t to, const void *bytes, size_t n)
{
    inspan_comm_t *comm = world->comms[from];
    for (size_t at = 0; at < n;) {
        const struct iovec iov = {(uint8_t *)(uintptr_t)bytes + at, n - at};
        const ssize_t sent = comm->transport->send(comm->transport_self, to, &iov, 1);
        assert_true(sent >= 0);
        at += (size_t)sent;
        if (at < n) comm_sim_run(world->sim, 1);
    }
}

static void inject_frame(world_t *world, uint32_t from, uint32_t to, data_frame_t frame, const void *payload)
{
    static const uint8_t zeros[DATA_PIECE_MAX];
    uint8_t header[DATA_HEADER_BYTES];
    data_encode_frame(&frame, header);
    inject(world, from, to, header, sizeof header);
    inject(world, from, to, payload != NULL ? payload : zeros, frame.length);
}

static void inject_call(world_t *world, uint32_t from, uint32_t to, uint64_t seq, data_call_t call)
{
    uint8_t bytes[DATA_CALL_BYTES];
    data_encode_call(&call, bytes);
    inject_frame(world, from, to, (data_frame_t){.type = DATA_POST, .length = sizeof bytes, .seq = seq},
                 bytes);
}

static void inject_cause(world_t *world, uint32_t from, uint32_t to, const inspan_cause_t *cause)
{
    uint8_t bytes[DATA_CAUSE_MAX];
    const uint32_t n = (uint32_t)data_encode_cause(cause, bytes);
    inject_frame(world, from, to, (data_frame_t){.type = DATA_ABORT, .length = n}, bytes);
}

/* The call that the others make. */
static data_call_t right_call(const world_t *world, uint32_t of)
{
    return world->comms[of]->calls[1];
}

/* A transfer that `to` expects of `from` in operation 1, as its first piece. */
static data_frame_t right_piece(const world_t *world, uint32_t from, uint32_t to)
{
    const comm_run_t *run = exec_run(world->comms[to], 1);
    assert_non_null(run);
    for (uint32_t op = 0; op < run->plan->schedule->n_ops; op++) {
        const sched_op_t *what = &run->plan->schedule->ops[op];
        if ((what->kind != SCHED_RECV && what->kind != SCHED_RECV_REDUCE) || what->peer != from) continue;
        return (data_frame_t){.type = DATA_PIECE,
                              .flags = DATA_EAGER,
                              .length = (uint32_t)plan_bytes(run->plan, op),
                              .seq = 1,
                              .chunk = what->chunk,
                              .tag = what->tag};
    }
    fail();
    return (data_frame_t){.length = 0};
}

typedef enum evil {
    NO_FRAME,
    NO_PLACE,
    POST_SKIPS,
    POST_UNKNOWN,
    POST_ODD_WINDOW,
    POST_TOO_FAR,
    CREDIT_NONE,
    CREDIT_OF_NOTHING,
    CREDIT_EAGER,
    ABORT_UNREADABLE,
    ABORT_OF_NOBODY,
    ABORT_WITHOUT_REASON,
    PIECE_NOT_ANNOUNCED,
    PIECE_OF_ZERO,
    EARLY_WINDOW,
    EARLY_FREE,
    EARLY_TOO_MUCH,
    EARLY_OUT_OF_ORDER,
    EARLY_OF_NOTHING, /* found when the operation starts */
    PIECE_OF_NOTHING,
    PIECE_OUT_OF_ORDER,
    PIECE_TOO_LONG,
    PIECE_SPLIT,
    PIECE_EMPTY,
    PIECE_WINDOW,
    PIECE_AGAIN,
    PIECE_OF_FINISHED,
    EVILS
} evil_t;

static const char *const refusals[EVILS] = {
    [NO_FRAME] = "bytes that are no frame",
    [NO_PLACE] = "a frame that has no place here",
    [POST_SKIPS] = "a call that cannot be",
    [POST_UNKNOWN] = "a call that cannot be",
    [POST_ODD_WINDOW] = "a call that cannot be",
    [POST_TOO_FAR] = "a call that cannot be",
    [CREDIT_NONE] = "a credit that cannot be",
    [CREDIT_OF_NOTHING] = "a credit that cannot be",
    [CREDIT_EAGER] = "a credit that cannot be",
    [ABORT_UNREADABLE] = "a cause that cannot be",
    [ABORT_OF_NOBODY] = "a cause that cannot be",
    [ABORT_WITHOUT_REASON] = "a cause that cannot be",
    [PIECE_NOT_ANNOUNCED] = "a piece of an operation that it has not announced",
    [PIECE_OF_ZERO] = "a piece of an operation that it has not announced",
    [EARLY_WINDOW] = "more data than it has credit for",
    [EARLY_FREE] = "a piece without credit of an operation not started here",
    [EARLY_TOO_MUCH] = "more eager data than it has credit for",
    [EARLY_OUT_OF_ORDER] = "a piece out of order",
    [EARLY_OF_NOTHING] = "a transfer that the operation does not have",
    [PIECE_OF_NOTHING] = "a transfer that the operation does not have",
    [PIECE_OUT_OF_ORDER] = "a piece out of order",
    [PIECE_TOO_LONG] = "a piece of a wrong length",
    [PIECE_SPLIT] = "a piece that splits an element",
    [PIECE_EMPTY] = "a piece of a wrong length",
    [PIECE_WINDOW] = "more data than it has credit for",
    [PIECE_AGAIN] = "a piece out of order",
    [PIECE_OF_FINISHED] = "a piece of a finished operation",
};

/* Before the operation exists at `to`. */
static void early_evil(world_t *world, evil_t evil, uint32_t from, uint32_t to)
{
    const data_call_t call = {.collective = SCHED_BARRIER};
    data_frame_t piece = {.type = DATA_PIECE, .flags = DATA_EAGER, .length = 4096, .seq = 1};
    inspan_cause_t cause = {.status = INSPAN_ABORTED, .rank = 1, .noticed_by = 1};
    uint8_t junk[DATA_HEADER_BYTES];
    memset(junk, 0xff, sizeof junk);
    if (evil >= EARLY_WINDOW) inject_call(world, from, to, 1, call);
    switch (evil) {
    case NO_FRAME: inject(world, from, to, junk, sizeof junk); break;
    case NO_PLACE: inject_frame(world, from, to, (data_frame_t){.type = DATA_READY}, NULL); break;
    case POST_SKIPS: inject_call(world, from, to, 2, call); break;
    case POST_UNKNOWN: inject_call(world, from, to, 1, (data_call_t){.dtype = 200}); break;
    case POST_ODD_WINDOW: inject_call(world, from, to, 1, (data_call_t){.window = 100}); break;
    case POST_TOO_FAR:
        for (uint64_t seq = 1; seq <= COMM_MAX_AHEAD + 1; seq++) {
            inject_call(world, from, to, seq, call);
            comm_sim_run(world->sim, 20);
        }
        break;
    case CREDIT_NONE: inject_frame(world, from, to, (data_frame_t){.type = DATA_CREDIT}, NULL); break;
    case CREDIT_OF_NOTHING:
        inject_frame(world, from, to, (data_frame_t){.type = DATA_CREDIT, .seq = 1, .offset = COMM_PAGE},
                     NULL);
        break;
    case CREDIT_EAGER:
        inject_frame(world, from, to, (data_frame_t){.type = DATA_CREDIT, .offset = COMM_PAGE}, NULL);
        break;
    case ABORT_UNREADABLE:
        inject_frame(world, from, to, (data_frame_t){.type = DATA_ABORT, .length = sizeof junk}, junk);
        break;
    case ABORT_OF_NOBODY:
        cause.rank = 3;
        inject_cause(world, from, to, &cause);
        break;
    case ABORT_WITHOUT_REASON:
        cause.status = INSPAN_OK;
        inject_cause(world, from, to, &cause);
        break;
    case PIECE_NOT_ANNOUNCED: inject_frame(world, from, to, piece, NULL); break;
    case PIECE_OF_ZERO:
        piece.seq = 0;
        inject_frame(world, from, to, piece, NULL);
        break;
    case EARLY_WINDOW:
        piece.flags = DATA_WINDOW;
        inject_frame(world, from, to, piece, NULL);
        break;
    case EARLY_FREE:
        piece.flags = 0;
        inject_frame(world, from, to, piece, NULL);
        break;
    case EARLY_TOO_MUCH:
        for (piece.offset = 0; piece.offset <= COMM_EAGER_BUDGET; piece.offset += piece.length)
            inject_frame(world, from, to, piece, NULL);
        break;
    case EARLY_OUT_OF_ORDER:
        piece.offset = 4096;
        inject_frame(world, from, to, piece, NULL);
        break;
    default: fail();
    }
}

/* `to` is in operation 1, or just about to be. */
static void late_evil(world_t *world, evil_t evil, uint32_t from, uint32_t to)
{
    data_frame_t piece = right_piece(world, from, to);
    inject_call(world, from, to, 1, right_call(world, to));
    switch (evil) {
    case PIECE_OF_NOTHING: piece.chunk += 1000; break;
    case PIECE_OUT_OF_ORDER: piece.offset = 4; break;
    case PIECE_TOO_LONG: piece.length += 4; break;
    case PIECE_SPLIT: piece.length = 6; break;
    case PIECE_EMPTY: piece.length = 0; break;
    case PIECE_WINDOW:
        piece.flags = DATA_WINDOW;
        world->comms[to]->runs[1]->window[from] = 0; /* as if it were used up */
        break;
    case PIECE_AGAIN: inject_frame(world, from, to, piece, NULL); break;
    default: fail();
    }
    inject_frame(world, from, to, piece, NULL);
}

static void do_evil(world_t *world, evil_t evil, uint32_t from, uint32_t to)
{
    if (evil == PIECE_OF_FINISHED) {
        for (uint32_t r = 0; r < 3; r++) start(world, r);
        comm_sim_run(world->sim, UINT64_MAX);
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(inspan_op_test(world->ops[r]), INSPAN_OK);
        memset(world->ops, 0, sizeof world->ops);
        inject_frame(world, from, to,
                     (data_frame_t){.type = DATA_PIECE, .flags = DATA_EAGER, .length = 4, .seq = 1}, NULL);
        return;
    }
    if (evil == EARLY_OF_NOTHING) {
        start(world, 1);
        comm_sim_run(world->sim, UINT64_MAX);
        inject_call(world, from, to, 1, right_call(world, 1));
        inject_frame(
            world, from, to,
            (data_frame_t){.type = DATA_PIECE, .flags = DATA_EAGER, .length = 4, .seq = 1, .chunk = 9999},
            NULL);
        comm_sim_run(world->sim, UINT64_MAX);
        start(world, to);
        return;
    }
    for (uint32_t r = 0; r < 3 && evil > EARLY_OF_NOTHING; r++)
        if (r != from) start(world, r);
    comm_sim_run(world->sim, UINT64_MAX);
    if (evil > EARLY_OF_NOTHING)
        late_evil(world, evil, from, to);
    else
        early_evil(world, evil, from, to);
}

/* The one who notices says who it was, and to that one too: all three agree, whichever rank is lower. */
static void hostile_frames(void **state)
{
    (void)state;
    for (evil_t evil = 0; evil < EVILS; evil++)
        for (uint32_t from = 0; from < 3; from += 2) {
            const uint32_t to = 2 - from;
            world_t world;
            world_open(&world, 3, 10 + evil);
            do_evil(&world, evil, from, to);
            const inspan_cause_t cause = must_blame(&world, (int32_t)from);
            const bool told = strstr(cause.text, refusals[evil]) != NULL;
            if (cause.status != INSPAN_CORRUPT || !told)
                print_message("evil %d: %s\n", (int)evil, cause.text);
            assert_int_equal(cause.status, INSPAN_CORRUPT);
            assert_true(told);
            assert_int_equal(cause.noticed_by, to);
            inject_frame(&world, from, to, (data_frame_t){.type = DATA_PING}, NULL); /* and says more */
            comm_sim_run(world.sim, UINT64_MAX);
            world_close(&world);
        }
}

/* ---- Two failures at once -------------------------------------------------------------------- */

/* Up to `most` events, all within a few milliseconds; false: it was the timers' turn already. */
static bool run_shortly(world_t *world, uint64_t most)
{
    const ns_t begin = now(world);
    comm_sim_run(world->sim, most);
    return now(world) - begin < 10 * NS_PER_MS;
}

static void lowest_of_two_aborts(void **state)
{
    (void)state;
    rng_t rng;
    int both = 0;
    rng_seed(&rng, 4, 0);
    for (uint64_t seed = 0; seed < 200; seed++) {
        world_t world;
        world_open(&world, 5, seed);
        for (uint32_t r = 0; r < 5; r++)
            if (r != seed % 7) start(&world, r); /* all in it, or one computes */
        comm_sim_run(world.sim, rng_below(&rng, 200));
        inspan_comm_abort(world.comms[3], "third");
        const bool soon = run_shortly(&world, rng_below(&rng, 40));
        inspan_comm_abort(world.comms[1], "first");
        if (soon) assert_non_null(strstr(must_blame(&world, 1).text, "first"));
        both += soon;
        world_close(&world);
    }
    assert_true(both > 100);
}

static void a_known_rank_before_an_unknown(void **state)
{
    (void)state;
    rng_t rng;
    int both = 0;
    rng_seed(&rng, 5, 0);
    for (uint64_t seed = 0; seed < 100; seed++) {
        const inspan_cause_t unknown = {
            .status = INSPAN_PEER_LOST, .rank = -1, .noticed_by = -1, .text = "somebody"};
        world_t world;
        world_open(&world, 5, seed);
        for (uint32_t r = 0; r < 5; r++) start(&world, r);
        comm_sim_run(world.sim, rng_below(&rng, 100));
        comm_poison(world.comms[seed % 4], &unknown);
        const bool soon = run_shortly(&world, rng_below(&rng, 40));
        inspan_comm_abort(world.comms[4], "known");
        if (soon) assert_non_null(strstr(must_blame(&world, 4).text, "known"));
        both += soon;
        world_close(&world);
    }
    assert_true(both > 50);
}

/* A newer view: there is no cause to be found out, so all know within a round trip or two. */
static void nobody_at_fault(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        const inspan_cause_t view = {
            .status = INSPAN_ABORTED, .rank = -1, .noticed_by = -1, .text = "view 2 was announced"};
        world_t world;
        world_open(&world, 5, seed);
        for (uint32_t r = 0; r < 5; r++) start(&world, r);
        comm_sim_run(world.sim, 20);
        const ns_t begin = now(&world);
        for (uint32_t r = 0; r < 1 + seed % 5; r++) comm_poison(world.comms[r], &view);
        assert_non_null(strstr(must_blame(&world, -1).text, "view 2"));
        assert_in_range(now(&world) - begin, 0, 10 * NS_PER_MS);
        world_close(&world);
    }
}

/* Two ranks crash at one moment, any two, the lowest too; the survivors agree on the lower one. */
static void two_crashes(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 6, 0);
    for (uint64_t seed = 0; seed < 200; seed++) {
        world_t world;
        world_open(&world, 5, seed);
        for (uint32_t r = 0; r < 5; r++) start(&world, r);
        comm_sim_run(world.sim, rng_below(&rng, 150));
        const uint32_t low = (uint32_t)(seed % 4), high = low + 1 + (uint32_t)rng_below(&rng, 4 - low);
        comm_sim_crash(world.sim, high);
        comm_sim_crash(world.sim, low);
        world.crashed[low] = world.crashed[high] = true;
        must_blame(&world, (int32_t)low);
        world_close(&world);
    }
}

/* ---- Streams that are not as they should be -------------------------------------------------- */

static comm_transport_t odd; /* a rank's own, with one part replaced */
static const comm_transport_t *plain;
static ns_t hears_from;

static ssize_t hears_late(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    return plain->now(self) < hears_from ? 0 : plain->receive(self, peer, iov, n);
}

/* A rank with a slow link hears of the lower cause after its own 20 ms are over: it still takes it. */
static void a_slow_link(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        world_t world;
        world_open(&world, 4, seed);
        for (uint32_t r = 0; r < 4; r++) start(&world, r);
        comm_sim_run(world.sim, 5);
        plain = world.comms[2]->transport;
        odd = *plain;
        odd.receive = hears_late;
        world.comms[2]->transport = &odd;
        hears_from = now(&world) + 50 * NS_PER_MS;
        inspan_comm_abort(world.comms[2], "second");
        inspan_comm_abort(world.comms[1], "first");
        assert_non_null(strstr(must_blame(&world, 1).text, "first"));
        world_close(&world);
    }
}

static int error_of_send;

static ssize_t fails_to_send(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    if (peer != 0) return plain->send(self, peer, iov, n);
    errno = error_of_send;
    return -1;
}

static ssize_t sees_the_end(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    if (peer != 0) return plain->receive(self, peer, iov, n);
    errno = 0; /* sendmsg took the socket's error with it */
    return -1;
}

/* A link that broke is told as such, though reading afterwards sees a plain end. */
static void errors_of_sending_are_told(void **state)
{
    (void)state;
    static const struct {
        int error;
        const char *text;
    } cases[] = {{ETIMEDOUT, "does not answer any more (connection timed out)"},
                 {EHOSTUNREACH, "cannot be reached: No route to host"},
                 {ECONNRESET, "reset its connection"},
                 {EPIPE, "closed its connection (its process ended)"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world_t world;
        world_open(&world, 3, i);
        plain = world.comms[1]->transport;
        odd = *plain;
        odd.send = fails_to_send;
        odd.receive = sees_the_end;
        error_of_send = cases[i].error;
        world.comms[1]->transport = &odd;
        start(&world, 1);
        const inspan_cause_t cause = must_blame(&world, 0);
        assert_int_equal(cause.status, INSPAN_PEER_LOST);
        if (strstr(cause.text, cases[i].text) == NULL) print_message("%s\n", cause.text);
        assert_non_null(strstr(cause.text, cases[i].text));
        world_close(&world);
    }
}

/* Who closes in the middle of an operation is named as the one who noticed, too. */
static void closing_in_the_middle(void **state)
{
    (void)state;
    world_t world;
    world_open(&world, 3, 1);
    for (uint32_t r = 0; r < 3; r++) start(&world, r);
    inspan_comm_close(world.comms[2]);
    world.comms[2] = NULL;
    world.crashed[2] = true;
    const inspan_cause_t cause = must_blame(&world, 2);
    assert_int_equal(cause.status, INSPAN_ABORTED);
    assert_int_equal(cause.noticed_by, 2);
    assert_string_equal(cause.node, "node-2");
    assert_string_equal(cause.operation, "close");
    assert_non_null(strstr(cause.text, "closed the communicator with operations pending"));
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_frames),
        cmocka_unit_test(lowest_of_two_aborts),
        cmocka_unit_test(a_known_rank_before_an_unknown),
        cmocka_unit_test(nobody_at_fault),
        cmocka_unit_test(two_crashes),
        cmocka_unit_test(a_slow_link),
        cmocka_unit_test(errors_of_sending_are_told),
        cmocka_unit_test(closing_in_the_middle),
    };
    return cmocka_run_group_tests_name("failures over sim", tests, NULL, NULL);
}
