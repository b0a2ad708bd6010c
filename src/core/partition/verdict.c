/* Causes of a measured change of speed. See verdict.h. */
#include "core/partition/verdict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOVED       0.03 /* relative: less is no change of a vital */
#define EXPLAINS    3    /* a cause explains at least a third of the change */
#define SWAPS       1e6  /* bytes per second from which swapping is felt */
#define HOT_C       80
#define WARMER_C    5
#define THROTTLED   0.15
#define INPUT_WAIT  0.10
#define LINK_MOVED  0.20
#define FACTOR_MOST 100.0

static const struct {
    const char *name, *text;
} causes[PARTITION_CAUSES] = {
    [PARTITION_QUOTA] = {"quota", "its CPU quota"},
    [PARTITION_CLOCK] = {"clock", "its processor's clock"},
    [PARTITION_HEAT] = {"heat", "heat"},
    [PARTITION_BATTERY] = {"battery", "running on battery"},
    [PARTITION_OWNER] = {"owner", "its owner using it"},
    [PARTITION_OTHERS] = {"others", "other programs"},
    [PARTITION_SWAP] = {"swap", "swapping"},
    [PARTITION_LINK] = {"link", "its link"},
    [PARTITION_INPUT] = {"input", "waiting for its data"},
    [PARTITION_UNKNOWN] = {"unknown", "an unknown cause"},
};

const char *partition_cause_name(partition_cause_t cause)
{
    return causes[(unsigned)cause < PARTITION_CAUSES ? cause : PARTITION_UNKNOWN].name;
}

const char *partition_cause_text(partition_cause_t cause)
{
    return causes[(unsigned)cause < PARTITION_CAUSES ? cause : PARTITION_UNKNOWN].text;
}

partition_vitals_t partition_vitals_unknown(void)
{
    return (partition_vitals_t){.others_cores = NAN,
                                .swap_bytes_per_s = NAN,
                                .allowed = NAN,
                                .throttled = NAN,
                                .input_wait = NAN,
                                .link_mbit = NAN};
}

/* after / before; 1 where one is unknown or they hardly differ. */
static double ratio(double before, double after)
{
    if (!(before > 0) || !(after > 0) || !isfinite(before) || !isfinite(after)) return 1;
    const double moved = after / before;
    return fabs(moved - 1) < MOVED ? 1 : fmax(1 / FACTOR_MOST, fmin(moved, FACTOR_MOST));
}

/* Cores that a worker gets beside other programs: what is free, or its fair part. NAN: unknown. */
static double cores_left(const partition_vitals_t *v)
{
    if (!(v->machine_cores > 0) || !(v->others_cores >= 0) || !isfinite(v->others_cores)) return NAN;
    const double wants = v->cores > 0 ? fmin(v->cores, v->machine_cores) : v->machine_cores;
    const double fair = v->machine_cores * wants / (wants + v->others_cores);
    return fmin(wants, fmax(v->machine_cores - v->others_cores, fair));
}

/* Load of others, apart from a quota that moved too. */
static double others_ratio(const partition_vitals_t *before, const partition_vitals_t *now)
{
    partition_vitals_t same = *before;
    same.others_cores = now->others_cores;
    return ratio(cores_left(before), cores_left(&same));
}

/* 0 (the owner gives nothing) counts as a hundredth. */
static double allowed_ratio(const partition_vitals_t *before, const partition_vitals_t *now)
{
    if (isnan(before->allowed) || isnan(now->allowed)) return 1;
    return ratio(fmax(before->allowed, 1 / FACTOR_MOST), fmax(now->allowed, 1 / FACTOR_MOST));
}

double verdict_expected_factor(const partition_vitals_t *before, const partition_vitals_t *now)
{
    const double factor = ratio(before->cores, now->cores) * ratio(before->clock_mhz, now->clock_mhz) *
                          allowed_ratio(before, now) * others_ratio(before, now);
    return fmax(1 / FACTOR_MOST, fmin(factor, FACTOR_MOST));
}

typedef struct candidate {
    partition_cause_t cause;
    double factor; /* that this cause alone predicts; 1: none */
} candidate_t;

/* Why the clock moved. */
static partition_cause_t clock_cause(const partition_vitals_t *before, const partition_vitals_t *now)
{
    const partition_vitals_t *slow = now->clock_mhz < before->clock_mhz ? now : before,
                             *fast = slow == now ? before : now;
    if (slow->on_battery && !fast->on_battery) return PARTITION_BATTERY;
    if (slow->temperature_c >= HOT_C ||
        (fast->temperature_c > 0 && slow->temperature_c > fast->temperature_c + WARMER_C))
        return PARTITION_HEAT;
    return PARTITION_CLOCK;
}

/* Why the owner gives another part. */
static partition_cause_t allowed_cause(const partition_vitals_t *before, const partition_vitals_t *now)
{
    const partition_vitals_t *less = now->allowed < before->allowed ? now : before,
                             *more = less == now ? before : now;
    if (less->owner_active && !more->owner_active) return PARTITION_OWNER;
    if (less->on_battery && !more->on_battery) return PARTITION_BATTERY;
    if (less->temperature_c >= HOT_C && !(more->temperature_c >= HOT_C)) return PARTITION_HEAT;
    return PARTITION_OWNER;
}

/* Of the vitals whose effect can be computed, the cause that predicts the measured factor best. */
static candidate_t best_counted(const partition_vitals_t *before, const partition_vitals_t *now,
                                double measured)
{
    const candidate_t all[] = {
        {PARTITION_QUOTA, ratio(before->cores, now->cores)},
        {allowed_cause(before, now), allowed_ratio(before, now)},
        {clock_cause(before, now), ratio(before->clock_mhz, now->clock_mhz)},
        {PARTITION_OTHERS, others_ratio(before, now)},
    };
    candidate_t best = {PARTITION_UNKNOWN, 1};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        const double log_factor = log(all[i].factor), wanted = log(measured);
        if (log_factor * wanted <= 0 || fabs(log_factor) * EXPLAINS < fabs(wanted)) continue;
        if (best.cause == PARTITION_UNKNOWN || fabs(log_factor - wanted) < fabs(log(best.factor) - wanted))
            best = all[i];
    }
    return best;
}

/* Vitals that say that something is wrong, but not how much. slow: the side on which the machine is slow. */
static partition_cause_t find_sign(const partition_vitals_t *fast, const partition_vitals_t *slow)
{
    if (slow->swap_bytes_per_s > SWAPS && !(fast->swap_bytes_per_s * 3 > slow->swap_bytes_per_s))
        return PARTITION_SWAP;
    /* Under a quota that stays, how often it stops a worker only follows how much that waits for others. */
    const bool unseen = !(fast->cores > 0 && slow->cores > 0);
    if (unseen && slow->throttled > THROTTLED && !(fast->throttled > slow->throttled - THROTTLED))
        return PARTITION_QUOTA;
    if (slow->input_wait > INPUT_WAIT && !(fast->input_wait * 2 > slow->input_wait)) return PARTITION_INPUT;
    if (slow->others_cores > 0.25 && fast->others_cores < 0.7 * slow->others_cores) return PARTITION_OTHERS;
    if (slow->owner_active && !fast->owner_active) return PARTITION_OWNER;
    if (slow->on_battery && !fast->on_battery) return PARTITION_BATTERY;
    if (slow->temperature_c >= HOT_C && fast->temperature_c < slow->temperature_c - WARMER_C)
        return PARTITION_HEAT;
    if (slow->link_mbit < (1 - LINK_MOVED) * fast->link_mbit) return PARTITION_LINK;
    return PARTITION_UNKNOWN;
}

static const char *also(const partition_vitals_t *now)
{
    return now->on_battery ? ", on battery" : now->owner_active ? ", its owner is active" : "";
}

static void clock_evidence(const partition_vitals_t *before, const partition_vitals_t *now, char *text)
{
    const size_t n = PARTITION_EVIDENCE_MAX;
    const int used =
        snprintf(text, n, "clock %.2f GHz, was %.2f", now->clock_mhz / 1e3, before->clock_mhz / 1e3);
    if (now->temperature_c > 0 && before->temperature_c > 0)
        snprintf(text + used, n - (size_t)used, "; %.0f C, was %.0f%s", now->temperature_c,
                 before->temperature_c, now->on_battery ? ", on battery" : "");
    else
        snprintf(text + used, n - (size_t)used, "%s", now->on_battery ? ", on battery" : "");
}

/* The vital that speaks for the cause, with its value before. */
static void write_evidence(partition_cause_t cause, double factor, const partition_vitals_t *before,
                           const partition_vitals_t *now, char *text)
{
    const size_t n = PARTITION_EVIDENCE_MAX;
    const bool allowed = allowed_ratio(before, now) != 1;
    switch (cause) {
    case PARTITION_QUOTA:
        if (ratio(before->cores, now->cores) != 1)
            snprintf(text, n, "CPU quota %.2f cores, was %.2f", now->cores, before->cores);
        else
            snprintf(text, n, "stopped by its CPU quota %.0f %% of the time, was %.0f", 100 * now->throttled,
                     fmax(0, 100 * before->throttled));
        return;
    case PARTITION_OTHERS:
        snprintf(text, n, "other programs use %.2f cores, was %.2f", now->others_cores, before->others_cores);
        return;
    case PARTITION_SWAP:
        snprintf(text, n, "swaps %.1f MB/s, was %.1f", now->swap_bytes_per_s / 1e6,
                 fmax(0, before->swap_bytes_per_s) / 1e6);
        return;
    case PARTITION_INPUT:
        snprintf(text, n, "waits for its data %.0f %% of the step, was %.0f", 100 * now->input_wait,
                 fmax(0, 100 * before->input_wait));
        return;
    case PARTITION_LINK:
        snprintf(text, n, "link %.0f Mbit/s, was %.0f", now->link_mbit, before->link_mbit);
        return;
    case PARTITION_UNKNOWN:
        snprintf(text, n,
                 "its own compute time per sample is %.2f times what it was; no vital sign explains it",
                 1 / factor);
        return;
    case PARTITION_CLOCK:
    case PARTITION_HEAT:
    case PARTITION_BATTERY:
    case PARTITION_OWNER: break;
    }
    if (allowed && cause != PARTITION_CLOCK)
        snprintf(text, n, "its owner gives %.0f %%, was %.0f%s", 100 * now->allowed, 100 * before->allowed,
                 also(now));
    else if (ratio(before->clock_mhz, now->clock_mhz) != 1)
        clock_evidence(before, now, text);
    else if (cause == PARTITION_HEAT)
        snprintf(text, n, "%.0f C, was %.0f", now->temperature_c, before->temperature_c);
    else if (cause == PARTITION_BATTERY)
        snprintf(text, n, "on battery: %s", now->on_battery ? "now" : "no longer");
    else
        snprintf(text, n, "owner active: %s", now->owner_active ? "now" : "no longer");
}

void verdict_judge(const pace_estimate_t *estimate, const partition_vitals_t *before,
                   const partition_vitals_t *now, partition_verdict_t *verdict)
{
    const double factor = estimate->factor > 0 ? estimate->factor : 1;
    *verdict = (partition_verdict_t){.factor = factor, .steps_ago = estimate->steps_ago};
    verdict->cause = best_counted(before, now, factor).cause;
    if (verdict->cause == PARTITION_UNKNOWN)
        verdict->cause = factor < 1 ? find_sign(before, now) : find_sign(now, before);
    write_evidence(verdict->cause, factor, before, now, verdict->evidence);
}
