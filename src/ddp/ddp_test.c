/* The reducer over real sockets: sums, empty contributions, what must be the same at start, and failures. */
#include <inspan/ddp.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
#include "comm/loopback_world_test.h"

#define N_PARAMS 5
#define STEPS    4

static const uint64_t counts[N_PARAMS] = {3, 1000, 1, 70001, 64};

/* What a test makes of one rank. */
typedef struct plan {
    inspan_dtype_t dtype;
    uint64_t bucket_bytes;
    uint32_t empty_rank; /* has no samples; LOOPBACK_RANKS_MAX: none */
    uint32_t n_params[LOOPBACK_RANKS_MAX];
    void (*change)(uint32_t rank, inspan_parameter_t *parameters, float *weights);
    inspan_status_t status[LOOPBACK_RANKS_MAX];
    inspan_error_t errors[LOOPBACK_RANKS_MAX];
    uint64_t committed[LOOPBACK_RANKS_MAX];
    uint64_t break_step; /* rank 1 gives up in this step */
} plan_t;

/* A value that every rank can compute for every other; small integers, so that sums are exact in fp32. */
static double gradient_of(uint32_t rank, uint64_t step, uint32_t parameter, uint64_t i)
{
    return (double)((rank * 31 + step * 7 + parameter * 3 + i) % 17) - 8;
}

static uint64_t samples_of(const plan_t *plan, uint32_t rank)
{
    return rank == plan->empty_rank ? 0 : 3 + rank;
}

static void add(inspan_dtype_t dtype, void *array, uint64_t i, double value)
{
    if (dtype == INSPAN_FP64)
        ((double *)array)[i] += value;
    else
        ((float *)array)[i] += (float)value;
}

static double value_at(inspan_dtype_t dtype, const void *array, uint64_t i)
{
    return dtype == INSPAN_FP64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

static void check_sums(const plan_t *plan, inspan_ddp_t *ddp, uint32_t world, uint64_t step)
{
    for (uint32_t p = 0; p < N_PARAMS; p++)
        for (uint64_t i = 0; i<counts[p]; i += counts[p]> 2000 ? 97 : 1) {
            double expected = 0;
            for (uint32_t r = 0; r < world; r++)
                if (r != plan->empty_rank) expected += 2 * gradient_of(r, step, p, i);
            if (value_at(plan->dtype, inspan_ddp_reduced(ddp, p), i) != expected)
                fail_msg("step %d parameter %u element %d", (int)step, p, (int)i);
        }
}

static inspan_status_t run_step(plan_t *plan, inspan_ddp_t *ddp, inspan_comm_t *comm, uint64_t step)
{
    uint32_t rank = inspan_comm_rank(comm), world = inspan_comm_world(comm);
    inspan_error_t *err = &plan->errors[rank];
    inspan_ddp_result_t result;
    inspan_status_t status = inspan_ddp_begin(ddp, step, err);
    if (status != INSPAN_OK) return status;
    for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
        bool last = micro_batch == 1, empty = rank == plan->empty_rank;
        if (last) status = inspan_ddp_seal(ddp, samples_of(plan, rank), err);
        if (status != INSPAN_OK) return status;
        for (uint32_t done = 0; !empty && done < N_PARAMS; done++) {
            const uint32_t p = N_PARAMS - 1 - done; /* as backward does */
            for (uint64_t i = 0; i < counts[p]; i++)
                add(plan->dtype, inspan_ddp_local(ddp, p), i, gradient_of(rank, step, p, i));
            if (last && rank == 1 && step == plan->break_step && p == 2) break; /* gives up in mid-backward */
            if (last) inspan_ddp_ready(ddp, p);
        }
    }
    status = inspan_ddp_finish(ddp, rank + 0.5, &result, err);
    if (status != INSPAN_OK) return status;
    uint64_t samples = 0;
    for (uint32_t r = 0; r < world; r++) samples += samples_of(plan, r);
    assert_int_equal(result.samples, samples);
    assert_true(result.loss_sum == world * (world - 1) / 2 + world * 0.5);
    check_sums(plan, ddp, world, step);
    plan->committed[rank]++;
    return INSPAN_OK;
}

static void run_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    plan_t *plan = context;
    inspan_parameter_t parameters[N_PARAMS];
    char names[N_PARAMS][16];
    uint64_t shapes[N_PARAMS][2];
    void *weights = calloc(70001, sizeof(double)); /* enough for either dtype */
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        snprintf(names[p], sizeof names[p], "layer.%u", p);
        shapes[p][0] = counts[p];
        shapes[p][1] = 1;
        parameters[p] = (inspan_parameter_t){names[p], counts[p], 2, shapes[p], weights};
    }
    if (plan->change != NULL) plan->change(rank, parameters, weights);
    inspan_ddp_t *ddp = NULL;
    inspan_ddp_options_t options = {plan->dtype, plan->bucket_bytes, 20 * NS_PER_S};
    uint32_t n = plan->n_params[rank] ? plan->n_params[rank] : N_PARAMS;
    plan->status[rank] = inspan_ddp_open(comm, parameters, n, &options, &ddp, &plan->errors[rank]);
    for (uint64_t step = 0; plan->status[rank] == INSPAN_OK && step < STEPS; step++)
        plan->status[rank] = run_step(plan, ddp, comm, step);
    inspan_ddp_close(ddp);
    free(weights);
}

static plan_t base_plan(void)
{
    return (plan_t){.dtype = INSPAN_FP32, .empty_rank = LOOPBACK_RANKS_MAX, .break_step = STEPS};
}

static void sums_of_all_ranks_are_exact(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5};
    static const uint64_t buckets[] = {0, 1, 5000, 300000};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        for (size_t b = 0; b < sizeof buckets / sizeof buckets[0]; b++) {
            plan_t plan = base_plan();
            plan.bucket_bytes = buckets[b];
            plan.dtype = b % 2 ? INSPAN_FP64 : INSPAN_FP32;
            loopback_world_run(worlds[w], run_rank, &plan);
            for (uint32_t r = 0; r < worlds[w]; r++) {
                if (plan.status[r] != INSPAN_OK) fail_msg("rank %u: %s", r, plan.errors[r].text);
                assert_int_equal(plan.committed[r], STEPS);
            }
        }
}

static void a_rank_without_samples_takes_part(void **state)
{
    (void)state;
    for (uint32_t empty = 0; empty < 3; empty++) {
        plan_t plan = base_plan();
        plan.empty_rank = empty;
        plan.bucket_bytes = 5000;
        loopback_world_run(3, run_rank, &plan);
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(plan.committed[r], STEPS);
    }
}

/* The four ways of case 47, and unlike weights: every rank is told, with the first difference. */
static const uint64_t transposed[2] = {1, 1000};

static void other_shape(uint32_t rank, inspan_parameter_t *parameters, float *weights)
{
    (void)weights;
    if (rank == 1) parameters[1].shape = transposed;
}

static void other_order(uint32_t rank, inspan_parameter_t *parameters, float *weights)
{
    (void)weights;
    if (rank != 1) return;
    inspan_parameter_t kept = parameters[2];
    parameters[2] = parameters[4];
    parameters[4] = kept;
}

static void other_weights(uint32_t rank, inspan_parameter_t *parameters, float *weights)
{
    (void)parameters;
    if (rank == 2) weights[2] = 1e-30f;
}

static void expect_mismatch(plan_t *plan, const char *text)
{
    loopback_world_run(3, run_rank, plan);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(plan->status[r], INSPAN_MISMATCH);
        if (strstr(plan->errors[r].text, text) == NULL) fail_msg("rank %u says: %s", r, plan->errors[r].text);
        assert_string_equal(plan->errors[r].text, plan->errors[0].text);
    }
}

static void unlike_models_are_refused_on_every_rank(void **state)
{
    (void)state;
    plan_t plan = base_plan();
    plan.change = other_shape;
    expect_mismatch(&plan, "parameter 1 differs between ranks: rank 0 (node node-0) has layer.1 (1000, 1)");
    plan = base_plan();
    plan.change = other_order;
    expect_mismatch(&plan, "rank 1 (node node-1) has layer.4");
    plan = base_plan();
    plan.change = other_weights;
    expect_mismatch(&plan, "rank 2 (node node-2) has layer.0 (3, 1)");
    plan = base_plan();
    plan.n_params[1] = N_PARAMS - 1;
    expect_mismatch(&plan, "rank 1 (node node-1) has 4");
}

static void a_rank_that_breaks_off_ends_the_step_for_all(void **state)
{
    (void)state;
    plan_t plan = base_plan();
    plan.break_step = 2;
    plan.bucket_bytes = 5000;
    loopback_world_run(3, run_rank, &plan);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(plan.committed[r], 2);
        assert_int_not_equal(plan.status[r], INSPAN_OK);
    }
    assert_non_null(strstr(plan.errors[1].text, "never ready"));
    assert_non_null(strstr(plan.errors[0].text, "rank 1"));
}

/* ---- More buckets than may be pending, on a rank that waits for another
 * ------------------------------------------------ */

enum { MANY = 300 };

typedef struct many {
    pthread_barrier_t met;
    inspan_status_t status[2];
    inspan_error_t errors[2];
    int32_t twice; /* rank 0 says that this parameter is ready twice; -1: none */
    bool leave;    /* rank 0 leaves before finish */
} many_t;

static void run_many(inspan_comm_t *comm, uint32_t rank, void *context)
{
    many_t *many = context;
    static float weights[16];
    static const uint64_t shape[1] = {16};
    inspan_parameter_t parameters[MANY];
    for (uint32_t p = 0; p < MANY; p++) parameters[p] = (inspan_parameter_t){"w", 16, 1, shape, weights};
    inspan_ddp_t *ddp = NULL;
    inspan_error_t *err = &many->errors[rank];
    inspan_ddp_options_t options = {INSPAN_FP32, 1, 20 * NS_PER_S};
    inspan_ddp_result_t result = {0};
    assert_int_equal(inspan_ddp_open(comm, parameters, MANY, &options, &ddp, err), INSPAN_OK);
    assert_int_equal(inspan_ddp_begin(ddp, 0, err), INSPAN_OK);
    assert_int_equal(inspan_ddp_seal(ddp, 1, err), INSPAN_OK);
    if (rank == 1) pthread_barrier_wait(&many->met); /* every bucket of rank 0 is ready by now */
    for (uint32_t p = MANY; p-- > 0;) {
        ((float *)inspan_ddp_local(ddp, p))[3] = (float)p;
        inspan_ddp_ready(ddp, p);
        if (rank == 0 && (int32_t)p == many->twice) inspan_ddp_ready(ddp, p);
    }
    if (rank == 0) pthread_barrier_wait(&many->met);
    if (rank != 0 || !many->leave) many->status[rank] = inspan_ddp_finish(ddp, 1, &result, err);
    for (uint32_t p = 0; many->status[rank] == INSPAN_OK && !many->leave && p < MANY; p++)
        assert_true(((const float *)inspan_ddp_reduced(ddp, p))[3] == 2 * (float)p);
    inspan_ddp_close(ddp);
}

static many_t many_buckets(int32_t twice, bool leave)
{
    many_t many = {.twice = twice, .leave = leave};
    pthread_barrier_init(&many.met, NULL, 2);
    loopback_world_run(2, run_many, &many);
    pthread_barrier_destroy(&many.met);
    return many;
}

static void a_rank_may_be_hundreds_of_buckets_ahead(void **state)
{
    (void)state;
    many_t many = many_buckets(-1, false);
    for (int r = 0; r < 2; r++)
        if (many.status[r] != INSPAN_OK) fail_msg("rank %d: %s", r, many.errors[r].text);
}

static void a_gradient_ready_twice_fails_the_step_everywhere(void **state)
{
    (void)state;
    many_t many = many_buckets(17, false);
    assert_int_equal(many.status[0], INSPAN_INVALID);
    assert_non_null(strstr(many.errors[0].text, "parameter 17 was ready twice"));
    assert_int_not_equal(many.status[1], INSPAN_OK);
    assert_non_null(strstr(many.errors[1].text, "parameter 17 was ready twice"));
}

static void a_rank_that_leaves_in_mid_step_is_named(void **state)
{
    (void)state;
    many_t many = many_buckets(-1, true);
    assert_int_not_equal(many.status[1], INSPAN_OK);
    assert_non_null(strstr(many.errors[1].text, "rank 0"));
}

static void calls_out_of_place_are_refused(void **state)
{
    (void)state;
    inspan_ddp_t *ddp = NULL;
    inspan_error_t err;
    inspan_ddp_options_t options = {INSPAN_BF16, 0, NS_PER_S};
    inspan_parameter_t parameter = {.name = "w", .count = 1};
    assert_int_equal(inspan_ddp_open(NULL, &parameter, 1, &options, &ddp, &err), INSPAN_INVALID);
    options.dtype = INSPAN_FP32;
    assert_int_equal(inspan_ddp_open(NULL, &parameter, 0, &options, &ddp, &err), INSPAN_INVALID);
    parameter.count = 0;
    assert_int_equal(inspan_ddp_open(NULL, &parameter, 1, &options, &ddp, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_all_ranks_are_exact),
        cmocka_unit_test(a_rank_without_samples_takes_part),
        cmocka_unit_test(unlike_models_are_refused_on_every_rank),
        cmocka_unit_test(a_rank_that_breaks_off_ends_the_step_for_all),
        cmocka_unit_test(a_rank_may_be_hundreds_of_buckets_ahead),
        cmocka_unit_test(a_gradient_ready_twice_fails_the_step_everywhere),
        cmocka_unit_test(a_rank_that_leaves_in_mid_step_is_named),
        cmocka_unit_test(calls_out_of_place_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
