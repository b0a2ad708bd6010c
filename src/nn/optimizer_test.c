#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/hash.h"
#include "base/rng.h"
#include "nn/nn.h"
#include "nn/optimizer_kernels.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"

static inspan_error_t err;

/* ---- Golden bits ----------------------------------------------------------------------------- */

enum { ELEMENTS = 1003, GOLDEN_STEPS = 20 }; /* odd: every kernel has a tail */

static void put(void *array, nn_dtype_t dtype, int i, double value)
{
    if (dtype == NN_FP64)
        ((double *)array)[i] = value;
    else
        ((float *)array)[i] = (float)value;
}

/* Floating-point mode of the caller of nn_optimizer_apply. */
static int rounding = FE_TONEAREST;

static inspan_status_t apply(nn_optimizer_t *optimizer, const void *const *sums, double samples,
                             uint64_t step, double *norm)
{
    fesetround(rounding);
    inspan_status_t status = nn_optimizer_apply(optimizer, sums, samples, step, norm, &err);
    assert_int_equal(fegetround(), rounding); /* it stays the caller's */
    fesetround(FE_TONEAREST);
    return status;
}

/* Bits of weights, moments and norms after some steps, for one level of instruction set. */
static uint64_t run_golden(nn_optimizer_kind_t kind, nn_dtype_t dtype)
{
    static double weights[ELEMENTS], gradients[ELEMENTS];
    const size_t split = 340;
    const size_t size = dtype == NN_FP64 ? 8 : 4;
    nn_param_t params[2] = {{.name = "a", .count = split, .decay = true},
                            {.name = "b", .count = ELEMENTS - split}};
    params[0].weights = weights;
    params[1].weights = (char *)weights + split * size;
    const void *sums[2] = {gradients, (char *)gradients + split * size};
    nn_optimizer_config_t config = {.kind = kind,
                                    .lr = 0.01,
                                    .momentum = 0.9,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .clip = 1,
                                    .steps = 30,
                                    .warmup = 4};
    rng_t rng;
    rng_seed(&rng, 42, 1);
    for (int i = 0; i < ELEMENTS; i++) {
        double value = rng_uniform(&rng) - 0.5;
        put(weights, dtype, i, value);
    }
    nn_optimizer_t *optimizer = NULL;
    assert_int_equal(nn_optimizer_open(&config, params, 2, dtype, &optimizer, &err), INSPAN_OK);
    uint64_t hash = 0;
    for (uint64_t step = 0; step < GOLDEN_STEPS; step++) {
        for (int i = 0; i < ELEMENTS; i++) {
            double value = (rng_uniform(&rng) - 0.5) * 8;
            put(gradients, dtype, i, value);
        }
        double norm = 0;
        assert_int_equal(apply(optimizer, sums, 7, step, &norm), INSPAN_OK);
        hash = hash64(&norm, sizeof norm, hash);
    }
    hash = hash64(weights, ELEMENTS * size, hash);
    const nn_param_t *state = NULL;
    uint32_t n = nn_optimizer_state(optimizer, &state);
    for (uint32_t i = 0; i < n; i++) hash = hash64(state[i].weights, state[i].count * size, hash);
    nn_optimizer_close(optimizer);
    return hash;
}

static const uint64_t golden[2][2] = {
    [NN_SGD] = {[NN_FP32] = 0xef3c299180d39977, [NN_FP64] = 0xc66b074987e1ecaa},
    [NN_ADAMW] = {[NN_FP32] = 0xe4fea49b7361d3cd, [NN_FP64] = 0x3a1c317869728d51},
};

static void bits_are_the_same_on_every_instruction_set(void **state)
{
    (void)state;
    static const char *const levels[] = {"scalar", "avx2", "avx512"};
    for (int level = 0; level < OPTIMIZER_LEVELS; level++) {
        if (optimizer_kernels_at(level, 0) == NULL) {
            print_message("skipped: this machine has no %s\n", levels[level]);
            continue;
        }
        setenv("INSPAN_ISA", levels[level], 1);
        assert_string_equal(optimizer_kernels_best(0)->isa, levels[level]);
        for (int kind = NN_SGD; kind <= NN_ADAMW; kind++)
            for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++) {
                uint64_t found = run_golden((nn_optimizer_kind_t)kind, (nn_dtype_t)dtype);
                if (found != golden[kind][dtype])
                    fail_msg("%s, kind %d, dtype %d: bits 0x%016llx", levels[level], kind, dtype,
                             (unsigned long long)found);
            }
    }
    unsetenv("INSPAN_ISA");
}

static void bits_do_not_depend_on_the_callers_rounding(void **state)
{
    (void)state;
    rounding = FE_UPWARD;
    for (int kind = NN_SGD; kind <= NN_ADAMW; kind++)
        for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++)
            assert_true(run_golden((nn_optimizer_kind_t)kind, (nn_dtype_t)dtype) == golden[kind][dtype]);
    rounding = FE_TONEAREST;
}

#if defined(__x86_64__)
#define FLUSH_AND_DENORMALS_ARE_ZERO 0x8040u

/* One step from gradients so small that the moments are subnormal. */
static void tiny_step(float moments[2][8])
{
    float weights[8], gradients[8];
    nn_param_t param = {.name = "w", .count = 8, .weights = weights};
    const void *sums[1] = {gradients};
    const nn_param_t *kept = NULL;
    nn_optimizer_t *optimizer = NULL;
    nn_optimizer_config_t config = {.kind = NN_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
    double norm = 0;
    for (int i = 0; i < 8; i++) weights[i] = 1, gradients[i] = (float)(i + 1) * (i < 4 ? 2e-38f : 1e-20f);
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP32, &optimizer, &err), INSPAN_OK);
    assert_int_equal(nn_optimizer_apply(optimizer, sums, 3, 0, &norm, &err), INSPAN_OK);
    assert_int_equal(nn_optimizer_state(optimizer, &kept), 2);
    for (int i = 0; i < 2; i++) memcpy(moments[i], kept[i].weights, 8 * sizeof(float));
    nn_optimizer_close(optimizer);
}

static void bits_do_not_depend_on_flush_to_zero(void **state)
{
    (void)state;
    float right[2][8], found[2][8];
    const unsigned mode = _mm_getcsr();
    tiny_step(right);
    assert_true(fpclassify(right[0][0]) == FP_SUBNORMAL && fpclassify(right[1][4]) == FP_SUBNORMAL);
    _mm_setcsr(mode | FLUSH_AND_DENORMALS_ARE_ZERO);
    tiny_step(found);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(mode);
    assert_memory_equal(found, right, sizeof right);
    assert_int_equal(after & FLUSH_AND_DENORMALS_ARE_ZERO, FLUSH_AND_DENORMALS_ARE_ZERO);
}
#endif

/* Each kernel at every small length and odd address against the scalar one. */
static void tails_and_unaligned_arrays(void **state)
{
    (void)state;
    enum { MOST = 70 };
    adamw_factors_t factors = {0.5, 0.9, 0.99, 0.999, 0.01, 1.5, 1e-8};
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (int level = 1; level < OPTIMIZER_LEVELS; level++) {
        const optimizer_kernels_t *plain = optimizer_kernels_at(0, 0), *fast = optimizer_kernels_at(level, 0);
        if (fast == NULL) continue;
        for (size_t n = 0; n <= MOST - 3; n++) {
            float a[4][MOST], b[4][MOST];
            for (int k = 0; k < 4; k++)
                for (int i = 0; i < MOST; i++) a[k][i] = (float)rng_uniform(&rng);
            memcpy(b, a, sizeof a);
            double left[OPTIMIZER_LANES] = {0}, right[OPTIMIZER_LANES] = {0};
            plain->adamw(a[0] + 1, a[1] + 2, a[2] + 3, a[3] + 1, n, &factors);
            fast->adamw(b[0] + 1, b[1] + 2, b[2] + 3, b[3] + 1, n, &factors);
            plain->add_squares(a[3] + 1, n, left);
            fast->add_squares(b[3] + 1, n, right);
            assert_memory_equal(a, b, sizeof a);
            assert_memory_equal(left, right, sizeof left);
        }
    }
}

/* ---- PyTorch's figures ----------------------------------------------------------------------- */

static const char *const names[] = {"matrix", "bias", "odd"};

static uint64_t load(const json_t *array, nn_dtype_t dtype, void *to)
{
    uint64_t n = 0;
    for (const json_t *item = json_first(array); item != NULL; item = json_next(item), n++) {
        if (dtype == NN_FP64)
            ((double *)to)[n] = json_number(item, NAN);
        else
            ((float *)to)[n] = (float)json_number(item, NAN);
    }
    return n;
}

static double at(const void *array, nn_dtype_t dtype, uint64_t i)
{
    return dtype == NN_FP64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

static void compare_run(const json_t *figures, const json_t *run, nn_dtype_t dtype, double tolerance)
{
    double weights[3][64], gradients[3][64], expected[3][64];
    nn_param_t params[3] = {
        {.name = "matrix", .decay = true}, {.name = "bias"}, {.name = "odd", .decay = true}};
    const void *sums[3] = {gradients[0], gradients[1], gradients[2]};
    for (int i = 0; i < 3; i++) {
        params[i].count = load(json_get(json_get(figures, "start"), names[i]), dtype, weights[i]);
        params[i].weights = weights[i];
        assert_true(params[i].count > 0 && params[i].count <= 64);
        load(json_get(json_get(run, "weights"), names[i]), NN_FP64, expected[i]);
    }
    nn_optimizer_config_t config = {.lr = json_get_number(figures, "lr", NAN),
                                    .momentum = 0.9,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1};
    config.kind = strcmp(json_get_string(run, "kind"), "sgd") == 0 ? NN_SGD : NN_ADAMW;
    config.min_lr = json_get_number(figures, "min_lr", NAN);
    config.clip = json_get_number(run, "clip", NAN);
    config.steps = (uint64_t)json_get_number(figures, "steps", 0);
    config.warmup = (uint64_t)json_get_number(figures, "warmup", 0);
    nn_optimizer_t *optimizer = NULL;
    assert_int_equal(nn_optimizer_open(&config, params, 3, dtype, &optimizer, &err), INSPAN_OK);
    const json_t *step_gradients = json_first(json_get(figures, "gradients"));
    const json_t *expected_norm = json_first(json_get(run, "norms"));
    for (uint64_t step = 0; step < config.steps; step++) {
        double norm = 0;
        for (int i = 0; i < 3; i++) load(json_get(step_gradients, names[i]), dtype, gradients[i]);
        double samples = json_get_number(figures, "samples", NAN);
        assert_int_equal(nn_optimizer_apply(optimizer, sums, samples, step, &norm, &err), INSPAN_OK);
        double right = json_number(expected_norm, NAN);
        assert_true(fabs(norm - right) <= tolerance * right);
        step_gradients = json_next(step_gradients);
        expected_norm = json_next(expected_norm);
    }
    for (int i = 0; i < 3; i++)
        for (uint64_t k = 0; k < params[i].count; k++)
            if (!(fabs(at(weights[i], dtype, k) - expected[i][k]) <= tolerance))
                fail_msg("%s, clip %g, %s[%d]: %.12g, PyTorch has %.12g", json_get_string(run, "kind"),
                         config.clip, names[i], (int)k, at(weights[i], dtype, k), expected[i][k]);
    nn_optimizer_close(optimizer);
}

/* PyTorch's rule: buffer = momentum x buffer + gradient, weight -= lr x (gradient + momentum x buffer). */
static void nesterov_looks_ahead(void **state)
{
    (void)state;
    double weights[20], gradient[20], expected[20], buffer[20] = {0};
    nn_param_t param = {.name = "w", .weights = weights, .count = 20};
    const nn_optimizer_config_t config = {
        .kind = NN_SGD, .lr = 0.7, .min_lr = 0.7, .momentum = 0.9, .nesterov = true, .steps = 1};
    nn_optimizer_t *optimizer = NULL;
    const void *sums[1] = {gradient};
    for (int i = 0; i < 20; i++) weights[i] = expected[i] = i * 0.1;
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP64, &optimizer, &err), INSPAN_OK);
    for (uint64_t step = 0; step < 5; step++) {
        double norm = 0;
        for (int i = 0; i < 20; i++) gradient[i] = (double)((i * 7 + (int)step * 3) % 5) - 2;
        assert_int_equal(nn_optimizer_apply(optimizer, sums, 4, step, &norm, &err), INSPAN_OK);
        for (int i = 0; i < 20; i++) {
            buffer[i] = 0.9 * buffer[i] + gradient[i] / 4;
            expected[i] -= 0.7 * (gradient[i] / 4 + 0.9 * buffer[i]);
            assert_true(fabs(weights[i] - expected[i]) < 1e-13);
        }
    }
    nn_optimizer_close(optimizer);
}

static void agrees_with_pytorch(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    json_t *figures = NULL;
    if (os_file_read("tests/data/torch_optimizer.json", 1 << 20, &text, &bytes, &err) != INSPAN_OK ||
        json_parse(text, bytes, &figures, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    int runs = 0;
    for (const json_t *run = json_first(json_get(figures, "runs")); run != NULL;
         run = json_next(run), runs++) {
        compare_run(figures, run, NN_FP64, 1e-13);
        compare_run(figures, run, NN_FP32, 1e-6);
    }
    assert_int_equal(runs, 4);
    json_free(figures);
    free(text);
}

/* ---- Schedule, limits ------------------------------------------------------------------------ */

static void own_routines_are_exact_enough(void **state)
{
    (void)state;
    for (int i = 0; i <= 1000; i++) {
        double x = i / 1000.0;
        assert_true(fabs(optimizer_cos_pi(x) - cos(acos(-1.0) * x)) < 2e-15);
        assert_true(fabs(optimizer_power(0.999, (uint64_t)i) - pow(0.999, i)) < 1e-13);
    }
    assert_true(optimizer_cos_pi(0) == 1 && optimizer_cos_pi(1) == -1);
    assert_true(optimizer_power(0, 0) == 1 && optimizer_power(0.9, 1) == 0.9 &&
                optimizer_power(0.5, 3) == 0.125);
    assert_true(optimizer_power(0.9, UINT64_MAX) == 0);
}

static void learning_rate_warms_up_and_falls(void **state)
{
    (void)state;
    nn_optimizer_config_t config = {.lr = 1, .min_lr = 0.1, .steps = 110, .warmup = 10};
    assert_true(fabs(nn_learning_rate(&config, 0) - 0.1) < 1e-15);
    assert_true(nn_learning_rate(&config, 9) == 1 && nn_learning_rate(&config, 10) == 1);
    assert_true(fabs(nn_learning_rate(&config, 60) - 0.55) < 1e-12);
    assert_true(nn_learning_rate(&config, 110) == 0.1 && nn_learning_rate(&config, 1000) == 0.1);
    for (uint64_t step = 11; step < 120; step++)
        assert_true(nn_learning_rate(&config, step) <= nn_learning_rate(&config, step - 1));
    config.warmup = 0;
    assert_true(nn_learning_rate(&config, 0) == 1);
    config.warmup = 200; /* longer than the training */
    assert_true(nn_learning_rate(&config, 109) == 0.55);
    assert_true(nn_learning_rate(&config, 300) == 0.1);
    config.steps = config.warmup = 0;
    assert_true(nn_learning_rate(&config, 0) == 1);
}

static void bad_gradients_and_configs_are_refused(void **state)
{
    (void)state;
    float weights[3] = {1, 2, 3}, gradients[3] = {1, NAN, 1};
    nn_param_t param = {.name = "w", .count = 3, .weights = weights};
    const void *sums[1] = {gradients};
    nn_optimizer_config_t config = {.kind = NN_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    nn_optimizer_t *optimizer = NULL;
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP32, &optimizer, &err), INSPAN_OK);
    double norm = 0;
    assert_int_equal(nn_optimizer_apply(optimizer, sums, 2, 5, &norm, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "step 5"));
    gradients[1] = INFINITY;
    assert_int_equal(nn_optimizer_apply(optimizer, sums, 2, 5, &norm, &err), INSPAN_INVALID);
    gradients[1] = 0;
    assert_int_equal(nn_optimizer_apply(optimizer, sums, 0, 5, &norm, &err), INSPAN_INVALID);
    assert_true(weights[0] == 1 && weights[1] == 2 && weights[2] == 3); /* nothing was applied */
    assert_int_equal(nn_optimizer_apply(optimizer, sums, 2, 0, &norm, &err), INSPAN_OK);
    assert_true(weights[0] < 1 && weights[1] == 2);
    const nn_param_t *moments = NULL;
    assert_int_equal(nn_optimizer_state(optimizer, &moments), 2);
    assert_string_equal(moments[0].name, "exp_avg.w");
    assert_string_equal(moments[1].name, "exp_avg_sq.w");
    nn_optimizer_close(optimizer);

    config.beta1 = 1;
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP32, &optimizer, &err), INSPAN_INVALID);
    config.beta1 = NAN;
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP32, &optimizer, &err), INSPAN_INVALID);
    config.beta1 = 0.9;
    memset(param.name, 'w', sizeof param.name - 1);
    assert_int_equal(nn_optimizer_open(&config, &param, 1, NN_FP32, &optimizer, &err), INSPAN_INVALID);
    nn_optimizer_close(NULL);
}

/* What is updated gets the bits that it would get with all; what is not stays; the norm is of all gradients.
 */
static void some_parameters_alone_are_updated(void **state)
{
    (void)state;
    for (int kind = NN_SGD; kind <= NN_ADAMW; kind++) {
        double weights[2][2][4], gradients[2][4] = {{1, 2, 3, 4}, {50, 60, 70, 80}}, norms[2];
        uint64_t moments[2][2] = {{0}};
        for (int run = 0; run < 2; run++) {
            nn_param_t params[2] = {{.name = "a", .count = 4, .weights = weights[run][0]},
                                    {.name = "b", .count = 4, .weights = weights[run][1]}};
            const void *sums[2] = {gradients[0], gradients[1]};
            const bool only[2] = {true, run == 0};
            const nn_param_t *kept = NULL;
            nn_optimizer_t *optimizer = NULL;
            nn_optimizer_config_t config = {.kind = (nn_optimizer_kind_t)kind,
                                            .lr = 0.1,
                                            .momentum = 0.9,
                                            .beta1 = 0.9,
                                            .beta2 = 0.9,
                                            .eps = 1e-8,
                                            .clip = 1};
            for (int i = 0; i < 8; i++) weights[run][i / 4][i % 4] = i;
            assert_int_equal(nn_optimizer_open(&config, params, 2, NN_FP64, &optimizer, &err), INSPAN_OK);
            assert_int_equal(nn_optimizer_apply_some(optimizer, sums, 3, 0, only, &norms[run], &err),
                             INSPAN_OK);
            nn_optimizer_state(optimizer, &kept);
            for (int i = 0; i < 2; i++) moments[run][i] = hash64(kept[i].weights, 4 * sizeof(double), 0);
            nn_optimizer_close(optimizer);
        }
        const double untouched[4] = {4, 5, 6, 7}, zero[4] = {0};
        assert_true(norms[0] == norms[1]);
        assert_memory_equal(weights[1][0], weights[0][0], sizeof weights[0][0]);
        assert_memory_equal(weights[1][1], untouched, sizeof untouched);
        assert_int_equal(moments[0][0], moments[1][0]);
        assert_int_equal(moments[1][1], hash64(zero, sizeof zero, 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_same_on_every_instruction_set),
        cmocka_unit_test(bits_do_not_depend_on_the_callers_rounding),
#if defined(__x86_64__)
        cmocka_unit_test(bits_do_not_depend_on_flush_to_zero),
#endif
        cmocka_unit_test(tails_and_unaligned_arrays),
        cmocka_unit_test(agrees_with_pytorch),
        cmocka_unit_test(nesterov_looks_ahead),
        cmocka_unit_test(own_routines_are_exact_enough),
        cmocka_unit_test(learning_rate_warms_up_and_falls),
        cmocka_unit_test(some_parameters_alone_are_updated),
        cmocka_unit_test(bad_gradients_and_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
