/* The gemm table: each candidate is right, planted faults are found, and loading leaves no trace. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "nn/gemm.h"
#include "nn/nn.h"

static void test_builtin_is_right(void **state)
{
    (void)state;
    char fault[160] = "";
    cpu_isa_t best = cpu_isa();
    for (int isa = 0; isa <= (int)best; isa++) {
        if (!gemm_check_f32(gemm_builtin_f32((cpu_isa_t)isa), fault, sizeof fault))
            fail_msg("%s fp32: %s", cpu_isa_name((cpu_isa_t)isa), fault);
        if (!gemm_check_f64(gemm_builtin_f64((cpu_isa_t)isa), fault, sizeof fault))
            fail_msg("%s fp64: %s", cpu_isa_name((cpu_isa_t)isa), fault);
    }
}

/* Sizes about every block of the built-in, and none at all; checked in integers, where sums are exact. */
static void test_builtin_at_block_edges(void **state)
{
    (void)state;
    static const size_t SIZES[] = {0, 1, 4, 6, 11, 12, 13, 31, 32, 33, 95, 97, 255, 256, 257};
    enum { N = sizeof SIZES / sizeof SIZES[0], LARGEST = 257 };
    double *a = malloc(LARGEST * LARGEST * sizeof *a), *b = malloc(LARGEST * LARGEST * sizeof *b);
    double *c = malloc(LARGEST * LARGEST * sizeof *c);
    for (size_t i = 0; i < LARGEST * LARGEST; i++) a[i] = (double)(i % 7) - 3, b[i] = (double)(i % 5) - 2;
    gemm_f64_t gemm = gemm_builtin_f64(cpu_isa());
    for (size_t t = 0; t < (size_t)N * N; t++) {
        size_t m = SIZES[t % N], k = SIZES[t / N], n = SIZES[(t + t / N) % N];
        for (size_t i = 0; i < m * n; i++) c[i] = (double)i;
        gemm(false, false, m, n, k, 2, a, k, b, n, 3, c, n);
        for (size_t s = 0; s < 50 && m * n > 0; s++) { /* a sample of the elements, the last one first */
            size_t at = s == 0 ? m * n - 1 : s * 7919 % (m * n), i = at / n, j = at % n;
            double sum = 0;
            for (size_t p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            if (c[at] != 2 * sum + 3 * (double)at) fail_msg("%zux%zux%zu at (%zu, %zu)", m, n, k, i, j);
        }
    }
    free(a), free(b), free(c);
}

/* ---- Planted faults -------------------------------------------------------------------------- */

#define SIGNATURE                                                                                            \
    bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b, \
        size_t ldb, float beta, float *c, size_t ldc

static void right(SIGNATURE)
{
    gemm_builtin_f32(CPU_SCALAR)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void ignores_beta(SIGNATURE)
{
    (void)beta;
    right(ta, tb, m, n, k, alpha, a, lda, b, ldb, 0, c, ldc);
}

static void reads_old_contents(SIGNATURE) /* 0 * NaN */
{
    float old = c[0];
    right(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    c[0] += 0 * old;
}

static void forgets_last_product(SIGNATURE)
{
    right(ta, tb, m, n, k > 64 ? k - 1 : k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void wrong_last_column(SIGNATURE)
{
    right(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (n % 16 == 1) c[(m - 1) * ldc + n - 1] *= 1.001f;
}

static void writes_beyond(SIGNATURE)
{
    right(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    c[n] = 0;
}

static void confuses_transposes(SIGNATURE)
{
    bool confused = ta && tb && m == k;
    right(ta, tb != confused, m, n, k, alpha, a, lda, b, confused ? n : ldb, beta, c, ldc);
}

static void zero_results(SIGNATURE)
{
    (void)ta, (void)tb, (void)k, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta;
    for (size_t i = 0; i < m; i++) memset(c + i * ldc, 0, n * sizeof *c);
}

static void half_precision(SIGNATURE) /* as a library that takes bf16 for fp32 */
{
    right(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    for (size_t i = 0; i < m * ldc; i += ldc)
        for (size_t j = i; j < i + n; j++) c[j] *= 1 + 1.0f / 256;
}

static void test_planted_faults_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        gemm_f32_t gemm;
    } WRONG[] = {{"ignores beta", ignores_beta},
                 {"reads old contents", reads_old_contents},
                 {"forgets the last product", forgets_last_product},
                 {"wrong last column", wrong_last_column},
                 {"writes beyond", writes_beyond},
                 {"confuses transposes", confuses_transposes},
                 {"zero", zero_results},
                 {"half precision", half_precision}};
    char fault[160];
    assert_true(gemm_check_f32(right, fault, sizeof fault));
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) {
        fault[0] = '\0';
        if (gemm_check_f32(WRONG[i].gemm, fault, sizeof fault)) fail_msg("'%s' was not found", WRONG[i].name);
        assert_non_null(strstr(fault, "expected"));
    }
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int count_threads(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* In a process of its own, as the choice is made once in each; its exit code is the number of the promise
 * broken. */
static int in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(body());
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int body_no_trace(void)
{
    unsetenv("OPENBLAS_CORETYPE");
    setenv("OPENBLAS_NUM_THREADS", "7", 1);
    const gemm_choice_t *choice = gemm_choose();
    if (choice->f32 == NULL || choice->f64 == NULL) return 1;
    if (getenv("OPENBLAS_CORETYPE") != NULL) return 2;
    if (getenv("OPENBLAS_NUM_THREADS") == NULL || strcmp(getenv("OPENBLAS_NUM_THREADS"), "7") != 0) return 3;
    enum { N = 512 };
    float *x = calloc(N * N, sizeof *x);
    double *y = calloc(N * N, sizeof *y);
    choice->f32(false, true, N, N, N, 1, x, N, x, N, 1, x, N);
    choice->f64(false, true, N, N, N, 1, y, N, y, N, 1, y, N);
    free(x), free(y);
    return count_threads() == 1 ? 0 : 4; /* neither library may have started any */
}

static void test_one_thread_and_no_trace(void **state)
{
    (void)state;
    assert_int_equal(in_child(body_no_trace), 0);
}

static int body_user_core_stays(void)
{
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    gemm_candidate_t candidates[GEMM_CANDIDATES];
    size_t n = gemm_load(cpu_isa(), candidates);
    if (strcmp(getenv("OPENBLAS_CORETYPE"), "Prescott") != 0) return 1;
    for (size_t i = 0; i < n; i++)
        if (strstr(candidates[i].name, "OpenBLAS") != NULL && strstr(candidates[i].name, "Prescott") == NULL)
            return 2;
    return 0;
}

static void test_users_core_type_stays(void **state)
{
    (void)state;
#if defined(__x86_64__)
    assert_int_equal(in_child(body_user_core_stays), 0);
#else
    skip();
#endif
}

static int body_wanted(void)
{
    setenv("INSPAN_GEMM", "built-in", 1);
    setenv("INSPAN_ISA", "scalar", 1);
    return strstr(nn_gemm_report(), "taken: built-in scalar for fp32, built-in scalar for fp64") == NULL;
}

/* oneDNN has no fp64, and an unknown name has nothing: another one serves. */
static int body_wanted_lacks(void)
{
    setenv("INSPAN_GEMM", "no such library", 1);
    const gemm_choice_t *choice = gemm_choose();
    return choice->f32 == NULL || choice->f64 == NULL;
}

static void test_wanted_candidate(void **state)
{
    (void)state;
    assert_int_equal(in_child(body_wanted), 0);
    assert_int_equal(in_child(body_wanted_lacks), 0);
}

static void test_report(void **state)
{
    (void)state;
    const char *report = nn_gemm_report();
    assert_non_null(strstr(report, "built-in"));
    assert_non_null(strstr(report, "GFLOP/s"));
    assert_non_null(strstr(report, "taken: "));
    assert_null(strstr(report, "none"));
    assert_ptr_equal(report, nn_gemm_report());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_builtin_is_right),
                                       cmocka_unit_test(test_builtin_at_block_edges),
                                       cmocka_unit_test(test_planted_faults_are_found),
                                       cmocka_unit_test(test_one_thread_and_no_trace),
                                       cmocka_unit_test(test_users_core_type_stays),
                                       cmocka_unit_test(test_wanted_candidate),
                                       cmocka_unit_test(test_report)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
