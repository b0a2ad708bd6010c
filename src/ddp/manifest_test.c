/* What must be the same on all ranks at the start: every rank is told of the first difference, in the same
 * words. */
#include "ddp/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
#include "comm/loopback_world_test.h"

#define N_PARAMS 5

static const uint64_t counts[N_PARAMS] = {3, 1000, 1, 701, 64};

/* What a test makes of one rank. */
typedef struct plan {
    uint32_t n_params[LOOPBACK_RANKS_MAX]; /* 0: all */
    void (*change)(uint32_t rank, inspan_parameter_t *parameters, float *weights);
    bool with_weights;
    inspan_status_t status[LOOPBACK_RANKS_MAX];
    inspan_error_t errors[LOOPBACK_RANKS_MAX];
    uint64_t rows[LOOPBACK_RANKS_MAX][MANIFEST_WORDS];
} plan_t;

static void run_rank(inspan_comm_t *comm, uint32_t rank, void *context)
{
    plan_t *plan = context;
    inspan_parameter_t parameters[N_PARAMS];
    char names[N_PARAMS][16];
    uint64_t shapes[N_PARAMS][2];
    float weights[1000] = {0};
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        snprintf(names[p], sizeof names[p], "layer.%u", p);
        shapes[p][0] = counts[p];
        shapes[p][1] = 1;
        parameters[p] = (inspan_parameter_t){names[p], counts[p], 2, shapes[p], weights};
    }
    if (plan->change != NULL) plan->change(rank, parameters, weights);
    const uint32_t n = plan->n_params[rank] ? plan->n_params[rank] : N_PARAMS;
    manifest_row(parameters, n, INSPAN_FP32, 77, plan->rows[rank]);
    plan->status[rank] = manifest_compare(comm, parameters, n, INSPAN_FP32, 77, plan->with_weights,
                                          20 * NS_PER_S, &plan->errors[rank]);
}

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
    plan_t plan = {.change = other_shape};
    expect_mismatch(&plan, "parameter 1 differs between ranks: rank 0 (node node-0) has layer.1 (1000, 1)");
    assert_true(memcmp(plan.rows[0], plan.rows[1], sizeof plan.rows[0]) != 0);
    plan = (plan_t){.change = other_order, .with_weights = true};
    expect_mismatch(&plan, "rank 1 (node node-1) has layer.4");
    plan = (plan_t){.change = other_weights, .with_weights = true};
    expect_mismatch(&plan, "rank 2 (node node-2) has layer.0 (3, 1)");
    assert_memory_equal(plan.rows[0], plan.rows[2],
                        sizeof plan.rows[0]); /* a newcomer's weights are copied */
    plan = (plan_t){.n_params = {0, N_PARAMS - 1}};
    expect_mismatch(&plan, "rank 1 (node node-1) has 4");
}

static void like_models_pass(void **state)
{
    (void)state;
    plan_t plan = {.with_weights = true};
    loopback_world_run(3, run_rank, &plan);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(plan.status[r], INSPAN_OK);
    plan = (plan_t){.change = other_weights}; /* of weights nothing was asked */
    loopback_world_run(3, run_rank, &plan);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(plan.status[r], INSPAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unlike_models_are_refused_on_every_rank),
        cmocka_unit_test(like_models_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
