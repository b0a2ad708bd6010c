/* The two libraries behind the gemm table. The only includer of dnnl.h. */
#include <dlfcn.h>
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nn/gemm.h"

/* ---- oneDNN ---------------------------------------------------------------------------------- */

static __typeof__(&dnnl_sgemm) onednn_sgemm; /* set once by gemm_load, before any use */
static void (*onednn_set_threads)(int);

static void onednn_f32(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                       const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                       size_t ldc)
{
    onednn_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n,
                 (dnnl_dim_t)k, alpha, a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
}

/* Debian's oneDNN divides over OpenMP threads, whose number is each thread's own setting. */
void gemm_enter_thread(void)
{
    if (onednn_set_threads != NULL) onednn_set_threads(1);
}

static void cap_onednn(void *library, cpu_isa_t isa)
{
    __typeof__(&dnnl_set_max_cpu_isa) set = dlsym(library, "dnnl_set_max_cpu_isa");
    if (set == NULL || isa == CPU_AVX512) return;
    set(isa == CPU_AVX2 ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_sse41);
}

static bool load_onednn(cpu_isa_t isa, gemm_candidate_t *candidate)
{
    void *library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        log_info("nn: no oneDNN: %s", dlerror());
        return false;
    }
    onednn_sgemm = (__typeof__(&dnnl_sgemm))dlsym(library, "dnnl_sgemm");
    onednn_set_threads =
        (void (*)(int))dlsym(library, "omp_set_num_threads"); /* NULL: a build without OpenMP */
    __typeof__(&dnnl_version) version = (__typeof__(&dnnl_version))dlsym(library, "dnnl_version");
    if (onednn_sgemm == NULL || version == NULL) {
        dlclose(library);
        onednn_set_threads = NULL;
        return false;
    }
    cap_onednn(library, isa);
    const dnnl_version_t *v = version();
    snprintf(candidate->name, sizeof candidate->name, "oneDNN %d.%d", v->major, v->minor);
    candidate->f32 = onednn_f32;
    return true; /* stays loaded until the process ends */
}

/* ---- OpenBLAS -------------------------------------------------------------------------------- */

enum {
    CBLAS_ROW_MAJOR = 101,
    CBLAS_NO_TRANSPOSE = 111,
    CBLAS_TRANSPOSE = 112
}; /* fixed by the CBLAS standard */

typedef void (*cblas_sgemm_t)(int, int, int, int, int, int, float, const float *, int, const float *, int,
                              float, float *, int);
typedef void (*cblas_dgemm_t)(int, int, int, int, int, int, double, const double *, int, const double *, int,
                              double, double *, int);

static cblas_sgemm_t openblas_sgemm;
static cblas_dgemm_t openblas_dgemm;

static void openblas_f32(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                         const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                         size_t ldc)
{
    openblas_sgemm(CBLAS_ROW_MAJOR, transpose_a ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE,
                   transpose_b ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE, (int)m, (int)n, (int)k, alpha, a,
                   (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

static void openblas_f64(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, double alpha,
                         const double *a, size_t lda, const double *b, size_t ldb, double beta, double *c,
                         size_t ldc)
{
    openblas_dgemm(CBLAS_ROW_MAJOR, transpose_a ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE,
                   transpose_b ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE, (int)m, (int)n, (int)k, alpha, a,
                   (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/*
 * OpenBLAS tells processors by model and takes its oldest kernels for one newer than itself; features say
 * what runs. NULL: let it decide (another architecture, where it asks for features itself).
 */
static const char *openblas_core(cpu_isa_t isa)
{
#if defined(__x86_64__)
    if (isa == CPU_AVX512) return "SkylakeX";
    if (isa == CPU_AVX2) return "Haswell";
    if (__builtin_cpu_supports("sse4.2")) return "Nehalem";
    return "Prescott";
#else
    (void)isa;
    return NULL;
#endif
}

/* Set while OpenBLAS reads its variables as it is loaded; taken back so that child processes do not inherit
 * ours. */
static bool set_if_unset(const char *variable, const char *value)
{
    return value != NULL && getenv(variable) == NULL && setenv(variable, value, 0) == 0;
}

static void *open_openblas(cpu_isa_t isa)
{
    bool core = set_if_unset("OPENBLAS_CORETYPE", openblas_core(isa));
    const char *before = getenv("OPENBLAS_NUM_THREADS");
    char *kept = before == NULL ? NULL : strdup(before);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) log_info("nn: no OpenBLAS: %s", dlerror());
    if (core) unsetenv("OPENBLAS_CORETYPE");
    if (kept == NULL)
        unsetenv("OPENBLAS_NUM_THREADS");
    else
        setenv("OPENBLAS_NUM_THREADS", kept, 1);
    free(kept);
    return library;
}

static bool load_openblas(cpu_isa_t isa, gemm_candidate_t *candidate)
{
    void *library = open_openblas(isa);
    if (library == NULL) return false;
    openblas_sgemm = (cblas_sgemm_t)dlsym(library, "cblas_sgemm");
    openblas_dgemm = (cblas_dgemm_t)dlsym(library, "cblas_dgemm");
    if (openblas_sgemm == NULL || openblas_dgemm == NULL) {
        dlclose(library);
        return false;
    }
    char *(*config)(void) = (char *(*)(void))dlsym(library, "openblas_get_config");
    char *(*core)(void) = (char *(*)(void))dlsym(library, "openblas_get_corename");
    char version[24] = "OpenBLAS";
    if (config != NULL) sscanf(config(), "OpenBLAS %14s", version + snprintf(version, 10, "OpenBLAS "));
    snprintf(candidate->name, sizeof candidate->name, "%.23s %.20s", version, core == NULL ? "" : core());
    candidate->f32 = openblas_f32;
    candidate->f64 = openblas_f64;
    return true;
}

/* ---- All ------------------------------------------------------------------------------------- */

size_t gemm_load(cpu_isa_t isa, gemm_candidate_t candidates[GEMM_CANDIDATES])
{
    size_t n = 0;
    memset(candidates, 0, GEMM_CANDIDATES * sizeof candidates[0]);
    if (load_onednn(isa, &candidates[n])) n++;
    if (load_openblas(isa, &candidates[n])) n++;
    snprintf(candidates[n].name, sizeof candidates[n].name, "built-in %s", cpu_isa_name(isa));
    candidates[n].f32 = gemm_builtin_f32(isa);
    candidates[n].f64 = gemm_builtin_f64(isa);
    return n + 1;
}
