/* Gradient memory of the elastic step, and its exchange over real sockets: sums, leases exactly once, passes.
 */
#include "ddp/buckets.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/units.h"
#include "comm/loopback_world_test.h"
#include "ddp/exchange.h"

#define N_PARAMS 4
#define LEASES   7

static const uint64_t all[4] = {(1u << LEASES) - 1};

static const uint64_t counts[N_PARAMS] = {3, 1000, 1, 70001};

static void parameters_of(inspan_parameter_t parameters[N_PARAMS])
{
    for (uint32_t p = 0; p < N_PARAMS; p++)
        parameters[p] = (inspan_parameter_t){"w", counts[p], 1, &counts[p], NULL};
}

static ddp_buckets_t open_rounded(inspan_dtype_t dtype, inspan_wire_t wire, uint64_t bytes)
{
    ddp_buckets_t buckets;
    inspan_parameter_t parameters[N_PARAMS];
    inspan_error_t err;
    parameters_of(parameters);
    if (ddp_buckets_open(parameters, N_PARAMS, dtype, wire, bytes, false, LEASES, &buckets, &err) !=
        INSPAN_OK)
        fail_msg("%s", err.text);
    return buckets;
}

static ddp_buckets_t open_buckets(inspan_dtype_t dtype, uint64_t bytes)
{
    return open_rounded(dtype, INSPAN_WIRE_FP32, bytes);
}

static void take_over(ddp_buckets_t *buckets) /* a world of one: the sum is the local one */
{
    memcpy(buckets->memory + buckets->room, buckets->memory, buckets->bytes);
}

static void every_lease_must_be_there_once(void **state)
{
    (void)state;
    for (int dtype = INSPAN_FP32; dtype <= INSPAN_FP64; dtype++) {
        ddp_buckets_t buckets = open_buckets((inspan_dtype_t)dtype, 5000);
        inspan_error_t err;
        char text[80];
        assert_true(buckets.n >= 3);
        ddp_buckets_mark(&buckets, 0, 3, 5);
        ddp_buckets_mark(&buckets, 4, 3, 0);
        take_over(&buckets);
        const uint64_t but_3[4] = {all[0] & ~(UINT64_C(1) << 3)};
        for (uint32_t b = 0; b < buckets.n; b++) {
            assert_int_equal(ddp_buckets_check(&buckets, b, 12, all, &err), INSPAN_MISMATCH);
            snprintf(text, sizeof text, "step 12, bucket %u: lease 3 is in the sum 0 times, expected 1", b);
            if (strstr(err.text, text) == NULL) fail_msg("%s", err.text);
            assert_int_equal(ddp_buckets_check(&buckets, b, 12, but_3, &err), INSPAN_OK);
        }
        ddp_buckets_mark(&buckets, 3, 2, 1); /* 4 is there twice now */
        take_over(&buckets);
        for (uint32_t b = 0; b < buckets.n; b++) {
            assert_int_equal(ddp_buckets_check(&buckets, b, 12, all, &err), INSPAN_MISMATCH);
            if (strstr(err.text, "lease 4 is in the sum 2 times, expected 1") == NULL)
                fail_msg("%s", err.text);
        }
        ddp_buckets_clear(&buckets);
        ddp_buckets_mark(&buckets, 0, LEASES, 9);
        take_over(&buckets);
        for (uint32_t b = 0; b < buckets.n; b++)
            assert_int_equal(ddp_buckets_check(&buckets, b, 12, all, &err), INSPAN_OK);
        assert_int_equal(ddp_buckets_check(&buckets, 0, 12, but_3, &err), INSPAN_MISMATCH);
        ddp_buckets_close(&buckets);
    }
}

static void the_tally_says_who_computed_what(void **state)
{
    (void)state;
    ddp_buckets_t buckets = open_buckets(INSPAN_FP32, 0);
    ddp_tally_t sums = {1.5, 2, 3, 4}, found;
    ddp_buckets_mark(&buckets, 0, 2, 0);
    ddp_buckets_mark(&buckets, 2, 1, 4000000000u);
    ddp_buckets_add(&buckets, &sums);
    ddp_buckets_add(&buckets, &sums);
    take_over(&buckets);
    ddp_buckets_tally(&buckets, &found);
    assert_true(found.loss_sum == 3 && found.evaluation_loss_sum == 4 && found.evaluation_samples == 6 &&
                found.evaluation_right == 8);
    assert_int_equal(ddp_buckets_owner(&buckets, 1), 0);
    assert_true(ddp_buckets_owner(&buckets, 2) == 4000000000);
    assert_int_equal(ddp_buckets_owner(&buckets, 3), -1);
    ddp_buckets_close(&buckets);
}

static void gradients_complete_a_bucket_once_a_round(void **state)
{
    (void)state;
    ddp_buckets_t buckets = open_buckets(INSPAN_FP32, 5000);
    for (int round = 0; round < 2; round++) {
        uint32_t full_buckets = 0, bucket = 0;
        bool full = false;
        ddp_buckets_begin_round(&buckets);
        assert_int_equal(ddp_buckets_incomplete(&buckets), 0);
        for (uint32_t p = N_PARAMS; p-- > 0;) {
            assert_int_equal(ddp_buckets_ready(&buckets, p, &bucket, &full), INSPAN_OK);
            full_buckets += full;
        }
        assert_int_equal(full_buckets, buckets.n - 1);
        assert_int_equal(ddp_buckets_incomplete(&buckets), buckets.n - 1);
        assert_int_equal(ddp_buckets_ready(&buckets, 1, &bucket, &full), INSPAN_INVALID);
        assert_int_equal(ddp_buckets_ready(&buckets, N_PARAMS, &bucket, &full), INSPAN_INVALID);
    }
    ddp_buckets_close(&buckets);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    ddp_buckets_t buckets;
    inspan_error_t err;
    inspan_parameter_t parameters[N_PARAMS], many[300];
    parameters_of(parameters);
    for (int i = 0; i < 300; i++) many[i] = parameters[1];
    assert_int_equal(
        ddp_buckets_open(parameters, 0, INSPAN_FP32, INSPAN_WIRE_FP32, 0, false, 1, &buckets, &err),
        INSPAN_INVALID);
    assert_int_equal(
        ddp_buckets_open(parameters, 4, INSPAN_BF16, INSPAN_WIRE_FP32, 0, false, 1, &buckets, &err),
        INSPAN_INVALID);
    assert_int_equal(
        ddp_buckets_open(parameters, 4, INSPAN_FP32, INSPAN_WIRE_FP32, 0, false, 0, &buckets, &err),
        INSPAN_INVALID);
    assert_int_equal(
        ddp_buckets_open(parameters, 4, INSPAN_FP32, INSPAN_WIRE_FP32, 0, false, 257, &buckets, &err),
        INSPAN_INVALID);
    assert_int_equal(
        ddp_buckets_open(many, 300, INSPAN_FP32, INSPAN_WIRE_FP32, 1024, false, 1, &buckets, &err),
        INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "sync.bucket"));
    parameters[2].count = 0;
    assert_int_equal(
        ddp_buckets_open(parameters, 4, INSPAN_FP32, INSPAN_WIRE_FP32, 0, false, 1, &buckets, &err),
        INSPAN_INVALID);
    ddp_buckets_t one = open_buckets(INSPAN_FP32, 5000), other = open_buckets(INSPAN_FP64, 10000);
    assert_int_not_equal(one.hash, other.hash);
    ddp_buckets_close(&one);
    ddp_buckets_close(&other);
}

static void assert_errors(const ddp_buckets_t *buckets)
{
    for (uint32_t p = 0; p < N_PARAMS; p++)
        for (uint64_t i = 0; i < counts[p]; i += 1 + i / 2)
            assert_true(buckets->error[buckets->layout.bucket[p]][buckets->layout.offset[p] + i] ==
                        (float)(1000 * p + i % 500));
}

/* Any order and any cuts; sums go where the new layout says, what rounding took moves along. */
static void parameters_lie_another_way(void **state)
{
    (void)state;
    static const uint32_t orders[3][N_PARAMS] = {{2, 0, 3, 1}, {0, 1, 2, 3}, {3, 2, 1, 0}},
                          sizes[3][N_PARAMS] = {{1, 1, 1, 1}, {4}, {2, 2}}, n[3] = {4, 1, 2};
    ddp_buckets_t buckets = open_rounded(INSPAN_FP32, INSPAN_WIRE_INT8, 5000);
    for (uint32_t p = 0; p < N_PARAMS; p++)
        for (uint64_t i = 0; i < counts[p]; i++)
            buckets.error[buckets.layout.bucket[p]][buckets.layout.offset[p] + i] =
                (float)(1000 * p + i % 500);
    for (uint32_t k = 0; k < 3; k++) {
        layout_t layout;
        inspan_error_t err;
        const uint64_t before = buckets.hash;
        ddp_buckets_clear(&buckets);
        assert_int_equal(layout_cut(counts, N_PARAMS, orders[k], sizes[k], n[k], LEASES, &layout), INSPAN_OK);
        const uint64_t expected = ddp_buckets_layout_hash(&buckets, &layout);
        ddp_buckets_lay_out(&buckets, &layout);
        assert_true(buckets.hash == expected && buckets.hash != before);
        assert_int_equal(buckets.n, n[k] + 1);
        assert_true(buckets.bytes <= buckets.room && buckets.error[n[k]] == NULL);
        for (size_t i = 0; i < buckets.room; i++) assert_int_equal(buckets.memory[i], 0);
        assert_errors(&buckets);
        for (uint32_t p = 0; p < N_PARAMS; p++)
            for (uint64_t i = 0; i < counts[p]; i++)
                ((float *)ddp_buckets_local(&buckets, p))[i] = (float)p + 1;
        ddp_buckets_mark(&buckets, 0, LEASES, 1);
        take_over(&buckets);
        for (uint32_t b = 0; b < buckets.n; b++)
            assert_int_equal(ddp_buckets_check(&buckets, b, 1, all, &err), INSPAN_OK);
        for (uint32_t p = 0; p < N_PARAMS; p++)
            assert_true(((float *)ddp_buckets_reduced(&buckets, p))[counts[p] - 1] == (float)p + 1);
    }
    ddp_buckets_close(&buckets);
}

/* ---- Over sockets ---------------------------------------------------------------------------- */

typedef struct member {
    atomic_uint done[4], failed; /* by kind */
} member_t;

static void on_done(void *context, exchange_kind_t kind, uint32_t index, inspan_status_t status)
{
    member_t *member = context;
    (void)index;
    atomic_fetch_add(&member->done[kind], 1);
    if (status != INSPAN_OK) atomic_fetch_add(&member->failed, 1);
}

/* Three ranks share the leases; rank 1 is a listener. All buckets but the first are reduced, the first passed
 * on. */
static void exchange_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    (void)context;
    member_t member = {0};
    exchange_t *exchange = NULL;
    inspan_error_t err;
    ddp_buckets_t buckets = open_buckets(INSPAN_FP32, 5000);
    assert_int_equal(exchange_open(&buckets, on_done, &member, &exchange), INSPAN_OK);
    exchange_attach(exchange, comm);
    if (rank != 1) ddp_buckets_mark(&buckets, rank == 0 ? 0 : 4, rank == 0 ? 4 : 3, rank);
    for (uint32_t p = 0; p < N_PARAMS; p++) ((float *)ddp_buckets_local(&buckets, p))[0] = (float)(rank + p);
    if (rank == 2) { /* as if it had been reduced in the view before */
        for (uint32_t i = 0; i < LEASES; i++)
            ((float *)(void *)buckets.reduced[0])[buckets.layout.buckets[0].tail + i] = 1;
        ((float *)ddp_buckets_reduced(&buckets, 3))[9] = 17;
        assert_int_equal(exchange_pass(exchange, 0, 0), INSPAN_OK);
        assert_int_equal(exchange_pass(exchange, 0, 1), INSPAN_OK);
    } else {
        assert_int_equal(exchange_take(exchange, 0, 2), INSPAN_OK);
    }
    for (uint32_t b = 1; b < buckets.n; b++) assert_int_equal(exchange_reduce(exchange, b), INSPAN_OK);
    float copied[3] = {(float)rank, 2, 3}, got[3] = {0};
    assert_int_equal(exchange_send(exchange, copied, 3, INSPAN_FP32, (rank + 1) % 3, EXCHANGE_TAGS, 0),
                     INSPAN_OK);
    assert_int_equal(exchange_receive(exchange, got, 3, INSPAN_FP32, (rank + 2) % 3, EXCHANGE_TAGS, 0),
                     INSPAN_OK);
    assert_int_equal(exchange_drain(exchange, 20 * NS_PER_S), INSPAN_OK);
    assert_int_equal(atomic_load(&member.failed), 0);
    assert_int_equal(atomic_load(&member.done[EXCHANGE_REDUCE]), buckets.n - 1);
    assert_int_equal(exchange_room(exchange), EXCHANGE_MAX);
    assert_true(got[0] == (float)((rank + 2) % 3) && got[2] == 3);
    assert_true(((float *)ddp_buckets_reduced(&buckets, 3))[9] == 17);
    assert_true(((float *)ddp_buckets_reduced(&buckets, 1))[0] == 0 + 1 + 2 + 3 * 1);
    for (uint32_t b = 0; b < buckets.n; b++)
        if (ddp_buckets_check(&buckets, b, 0, all, &err) != INSPAN_OK)
            fail_msg("rank %u: %s", rank, err.text);
    for (uint32_t lease = 0; lease < LEASES; lease++)
        assert_int_equal(ddp_buckets_owner(&buckets, lease), lease < 4 ? 0 : 2);
    exchange_close(exchange);
    ddp_buckets_close(&buckets);
}

static void buckets_are_reduced_and_passed(void **state)
{
    (void)state;
    loopback_world_run(3, exchange_rank, NULL);
}

/* Rounded to int8 the sums of many steps are those of fp32: what one step loses comes with the next, and once
 * only, though the bucket is reduced twice in the step (as after a loss). Coverage is exact all along. */
#if defined(__SANITIZE_THREAD__)
enum { ROUNDED_STEPS = 6 };
#else
enum { ROUNDED_STEPS = 60 };
#endif

static float gradient_of(uint64_t i, uint32_t rank)
{
    return i % 255 == 0 ? 100
                        : (float)((i * 7 + rank * 13) % 17) * 0.01f; /* most are far below a unit of int8 */
}

static void rounding_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    static const uint32_t first[3] = {0, 2, 5}, n[3] = {2, 3, 2};
    member_t member = {0};
    exchange_t *exchange = NULL;
    inspan_error_t err;
    const bool changing = context != NULL;
    static const inspan_wire_t types[] = {INSPAN_WIRE_FP32, INSPAN_WIRE_INT8, INSPAN_WIRE_BF16,
                                          INSPAN_WIRE_INT8};
    ddp_buckets_t buckets = open_rounded(INSPAN_FP32, changing ? INSPAN_WIRE_FP32 : INSPAN_WIRE_INT8, 0);
    assert_int_equal(ddp_buckets_keep_errors(&buckets, &err), INSPAN_OK);
    assert_true(ddp_buckets_wire_bytes(&buckets, INSPAN_WIRE_INT8) * 3 < buckets.bytes);
    double *total = calloc(counts[3], sizeof *total);
    float *once = malloc(counts[3] * sizeof *once);
    const float *reduced = ddp_buckets_reduced(&buckets, 3);
    float *local = ddp_buckets_local(&buckets, 3);
    assert_int_equal(exchange_open(&buckets, on_done, &member, &exchange), INSPAN_OK);
    exchange_attach(exchange, comm);
    for (int step = 0; step < ROUNDED_STEPS; step++) {
        if (changing) buckets.wire = types[(ROUNDED_STEPS - 1 - step) % 4]; /* the last one: fp32 */
        ddp_buckets_clear(&buckets);
        ddp_buckets_mark(&buckets, first[rank], n[rank], rank);
        for (uint64_t i = 0; i < counts[3]; i++) local[i] = gradient_of(i, rank);
        for (int again = 0; again < 2; again++) {
            for (uint32_t b = 0; b < buckets.n; b++)
                assert_int_equal(exchange_reduce(exchange, b), INSPAN_OK);
            assert_int_equal(exchange_drain(exchange, 20 * NS_PER_S), INSPAN_OK);
            if (again) assert_memory_equal(once, reduced, counts[3] * sizeof *once);
            memcpy(once, reduced, counts[3] * sizeof *once);
        }
        for (uint32_t b = 0; b < buckets.n; b++)
            if (ddp_buckets_check(&buckets, b, 0, all, &err) != INSPAN_OK)
                fail_msg("rank %u: %s", rank, err.text);
        for (uint64_t i = 0; i < counts[3]; i++) total[i] += (double)reduced[i];
    }
    for (uint64_t i = 0; i < counts[3]; i++) {
        double expected = 0;
        for (uint32_t r = 0; r < 3; r++) expected += (double)gradient_of(i, r);
        const double unit = changing ? 0.01 : 300.0 / 127; /* what one step may be off by, nearly */
        assert_true(fabs(total[i] / ROUNDED_STEPS - expected) < 3 * unit / ROUNDED_STEPS);
    }
    free(total);
    free(once);
    exchange_close(exchange);
    ddp_buckets_close(&buckets);
}

static void rounding_is_made_up_for(void **state)
{
    (void)state;
    loopback_world_run(3, rounding_rank, NULL);
}

/* What int8 and bf16 took away is in the sums when fp32 has had its turn. */
static void rounding_is_made_up_for_by_another_type(void **state)
{
    bool changing = true;
    (void)state;
    loopback_world_run(3, rounding_rank, &changing);
}

/* What is pending ends when the communicator is poisoned, and the next one starts clean. */
static void abort_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    member_t member = {0};
    exchange_t *exchange = NULL;
    ddp_buckets_t buckets = open_buckets(INSPAN_FP32, 0);
    assert_int_equal(exchange_open(&buckets, on_done, &member, &exchange), INSPAN_OK);
    exchange_attach(exchange, comm);
    if (rank == 0) {
        assert_int_equal(exchange_reduce(exchange, 0), INSPAN_OK);
        assert_int_equal(exchange_take(exchange, 1, 1), INSPAN_OK);
        assert_int_equal(exchange_drain(exchange, 0), INSPAN_TIMEOUT);
        inspan_comm_abort(comm, "a test");
        assert_int_equal(exchange_drain(exchange, 20 * NS_PER_S), INSPAN_OK);
        assert_int_equal(atomic_load(&member.failed), 2);
        assert_int_not_equal(exchange_reduce(exchange, 0), INSPAN_OK);
        assert_int_equal(exchange_room(exchange), EXCHANGE_MAX);
    }
    pthread_barrier_wait(context); /* the other one is there as long as it is waited for */
    exchange_close(exchange);
    ddp_buckets_close(&buckets);
}

static void what_is_pending_ends_with_the_communicator(void **state)
{
    (void)state;
    pthread_barrier_t met;
    pthread_barrier_init(&met, NULL, 2);
    loopback_world_run(2, abort_rank, &met);
    pthread_barrier_destroy(&met);
}

/* Who is woken by an operation's end, before its callback has returned, finds it ended: a leader that hears
 * so of the job's end must not take its own last operation for a pending one, and break the others' view. */
typedef struct slow_teller {
    pthread_barrier_t told;
    sem_t drained;
    bool overtaken;
    atomic_bool returned;
} slow_teller_t;

/* Returns when who was woken has gone on, which it must not; or when it has had time enough to. */
static void tell_slowly(void *context, exchange_kind_t kind, uint32_t index, inspan_status_t status)
{
    slow_teller_t *teller = context;
    struct timespec until;
    (void)kind, (void)index, (void)status;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50 * NS_PER_MS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    pthread_barrier_wait(&teller->told);
    teller->overtaken = sem_timedwait(&teller->drained, &until) == 0;
    atomic_store(&teller->returned, true);
}

/* The other one begins when the first has its callback in place: so it comes on the I/O thread. */
static void slow_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    slow_teller_t teller = {.returned = false};
    member_t member = {0};
    exchange_t *exchange = NULL;
    ddp_buckets_t buckets = open_buckets(INSPAN_FP32, 0);
    pthread_barrier_init(&teller.told, NULL, 2);
    sem_init(&teller.drained, 0, 0);
    assert_int_equal(exchange_open(&buckets, rank == 0 ? tell_slowly : on_done,
                                   rank == 0 ? (void *)&teller : (void *)&member, &exchange),
                     INSPAN_OK);
    exchange_attach(exchange, comm);
    if (rank != 0) pthread_barrier_wait(context);
    assert_int_equal(exchange_reduce(exchange, 0), INSPAN_OK);
    if (rank == 0) {
        pthread_barrier_wait(context);
        pthread_barrier_wait(&teller.told);
        assert_int_equal(exchange_drain(exchange, 0), INSPAN_OK);
        sem_post(&teller.drained);
        assert_true(atomic_load(&teller.returned) && !teller.overtaken);
    }
    assert_int_equal(exchange_drain(exchange, 20 * NS_PER_S), INSPAN_OK);
    exchange_close(exchange);
    ddp_buckets_close(&buckets);
    pthread_barrier_destroy(&teller.told);
    sem_destroy(&teller.drained);
}

static void an_operation_has_ended_when_its_callback_runs(void **state)
{
    (void)state;
    pthread_barrier_t met;
    pthread_barrier_init(&met, NULL, 2);
    loopback_world_run(2, slow_rank, &met);
    pthread_barrier_destroy(&met);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lease_must_be_there_once),
        cmocka_unit_test(the_tally_says_who_computed_what),
        cmocka_unit_test(gradients_complete_a_bucket_once_a_round),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(parameters_lie_another_way),
        cmocka_unit_test(buckets_are_reduced_and_passed),
        cmocka_unit_test(rounding_is_made_up_for),
        cmocka_unit_test(rounding_is_made_up_for_by_another_type),
        cmocka_unit_test(what_is_pending_ends_with_the_communicator),
        cmocka_unit_test(an_operation_has_ended_when_its_callback_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
