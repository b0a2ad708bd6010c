#include "nn/gemm.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nn/nn.h"

/* A candidate further down must be this much faster, so that two equal ones do not change places from run to
 * run. */
#define CLEARLY_FASTER 1.15

static gemm_choice_t choice;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void __attribute__((format(printf, 1, 2))) report(const char *format, ...)
{
    size_t used = strlen(choice.report);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(choice.report + used, sizeof choice.report - used, format, arguments);
    va_end(arguments);
}

/* $INSPAN_GEMM names the start of a candidate's name. */
static bool is_wanted(const gemm_candidate_t *candidate)
{
    const char *wanted = getenv("INSPAN_GEMM");
    return wanted == NULL || *wanted == '\0' || strncmp(candidate->name, wanted, strlen(wanted)) == 0;
}

static void reject(const gemm_candidate_t *candidate, const char *type, const char *fault)
{
    log_warn("nn: %s computes wrong %s products on this processor (%s): not used", candidate->name, type,
             fault);
    report("%s %s: wrong, not used; ", candidate->name, type);
}

static void try_f32(const gemm_candidate_t *candidate, double *speed)
{
    char fault[160] = "";
    if (candidate->f32 == NULL) return;
    if (!gemm_check_f32(candidate->f32, fault, sizeof fault)) {
        reject(candidate, "fp32", fault);
        return;
    }
    double found = gemm_speed_f32(candidate->f32);
    report("%s: fp32 %.0f GFLOP/s; ", candidate->name, found);
    if (choice.f32 != NULL && found < *speed * CLEARLY_FASTER) return;
    choice.f32 = candidate->f32;
    memcpy(choice.name32, candidate->name, sizeof choice.name32);
    *speed = found;
}

static void try_f64(const gemm_candidate_t *candidate, double *speed)
{
    char fault[160] = "";
    if (candidate->f64 == NULL) return;
    if (!gemm_check_f64(candidate->f64, fault, sizeof fault)) {
        reject(candidate, "fp64", fault);
        return;
    }
    double found = gemm_speed_f64(candidate->f64);
    report("%s: fp64 %.0f GFLOP/s; ", candidate->name, found);
    if (choice.f64 != NULL && found < *speed * CLEARLY_FASTER) return;
    choice.f64 = candidate->f64;
    memcpy(choice.name64, candidate->name, sizeof choice.name64);
    *speed = found;
}

/* A wanted one that is wrong or has no fp64 leaves the others: nothing refuses to run for a setting. */
static void choose(void)
{
    gemm_candidate_t candidates[GEMM_CANDIDATES];
    size_t n = gemm_load(cpu_isa(), candidates);
    gemm_enter_thread();
    strcpy(choice.name32, "none");
    strcpy(choice.name64, "none");
    double speed32 = 0, speed64 = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(&candidates[i])) continue;
        try_f32(&candidates[i], &speed32);
        try_f64(&candidates[i], &speed64);
    }
    for (size_t i = 0; i < n; i++) {
        if (choice.f32 == NULL) try_f32(&candidates[i], &speed32);
        if (choice.f64 == NULL) try_f64(&candidates[i], &speed64);
    }
    report("taken: %s for fp32, %s for fp64", choice.name32, choice.name64);
    log_info("nn: %s", choice.report);
}

const gemm_choice_t *gemm_choose(void)
{
    pthread_once(&chosen_once, choose);
    return &choice;
}

const char *nn_gemm_name(nn_dtype_t dtype)
{
    const gemm_choice_t *taken = gemm_choose();
    return dtype == NN_FP64 ? taken->name64 : taken->name32;
}

const char *nn_gemm_report(void)
{
    return gemm_choose()->report;
}
