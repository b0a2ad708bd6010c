/*
 * What this machine's vitals say: what its owner allows, how fast it will be before that is measured, and why
 * it became slower or faster.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define SCALE_LEAST   0.05               /* a smaller change of speed is left to the measurements */
#define DOUBT_BOUND   (1500 * NS_PER_MS) /* vitals come once a second: a cause may show a little later */
#define ALLOWED_LEAST 0.01
#define TOLD_FACTOR                                                                                          \
    1.4 /* a change without a cause is told from here on: machines waver by less all the time */

static partition_vitals_t converted(const local_vitals_t *vitals)
{
    partition_vitals_t out = partition_vitals_unknown();
    out.cores = vitals->cores;
    out.throttled = vitals->throttled;
    out.clock_mhz = vitals->clock_mhz;
    out.clock_best_mhz = vitals->clock_best_mhz;
    out.temperature_c = vitals->temperature_c;
    out.others_cores = vitals->others_cores;
    out.swap_bytes_per_s = vitals->swap_bytes_per_s;
    out.on_battery = vitals->on_battery;
    out.owner_active = vitals->owner_active;
    return out; /* what the owner allows is no speed of this member: it rests (driver_pace.c) */
}

static local_cause_t cause_of(partition_cause_t cause)
{
    static const local_cause_t causes[PARTITION_CAUSES] = {
        [PARTITION_QUOTA] = LOCAL_CAUSE_QUOTA, [PARTITION_CLOCK] = LOCAL_CAUSE_CLOCK,
        [PARTITION_HEAT] = LOCAL_CAUSE_HEAT,   [PARTITION_BATTERY] = LOCAL_CAUSE_BATTERY,
        [PARTITION_OWNER] = LOCAL_CAUSE_OWNER, [PARTITION_OTHERS] = LOCAL_CAUSE_OTHERS,
        [PARTITION_SWAP] = LOCAL_CAUSE_SWAP,   [PARTITION_LINK] = LOCAL_CAUSE_LINK,
        [PARTITION_INPUT] = LOCAL_CAUSE_INPUT, [PARTITION_UNKNOWN] = LOCAL_CAUSE_UNKNOWN};
    return causes[cause];
}

static void tell(inspan_elastic_t *e, uint64_t step, const partition_verdict_t *verdict,
                 uint64_t share_before, uint64_t share_after)
{
    driver_pace_t *pace = &e->pace;
    inspan_verdict_t *kept = &pace->verdicts[pace->n_verdicts++ % INSPAN_VERDICTS_MAX];
    kept->step = step + 1 > verdict->steps_ago ? step + 1 - verdict->steps_ago : 0;
    if (kept->step > step) kept->step = step;
    kept->factor = verdict->factor;
    snprintf(kept->cause, sizeof kept->cause, "%s", partition_cause_name(verdict->cause));
    snprintf(kept->evidence, sizeof kept->evidence, "%s", verdict->evidence);
    if (e->views->verdict == NULL) return;
    local_verdict_t said = {.step = step,
                            .started = kept->step,
                            .about = e->stats.number,
                            .cause = cause_of(verdict->cause),
                            .factor = verdict->factor,
                            .share_before = share_before,
                            .share_after = share_after};
    snprintf(said.evidence, sizeof said.evidence, "%s", verdict->evidence);
    e->views->verdict(e->views->context, &said);
}

/* ---- The owner ------------------------------------------------------------------------------- */

static partition_cause_t cause_of_limit(local_limit_t limit)
{
    switch (limit) {
    case LOCAL_LIMIT_BATTERY: return PARTITION_BATTERY;
    case LOCAL_LIMIT_HEAT: return PARTITION_HEAT;
    default: return PARTITION_OWNER;
    }
}

static void obey(inspan_elastic_t *e, const local_vitals_t *vitals)
{
    driver_pace_t *pace = &e->pace;
    const double before = pace->allowed;
    const double now = vitals->allowed >= 0 && vitals->allowed < 1 ? vitals->allowed : 1;
    if (before == now) return;
    pace->allowed = now;
    partition_verdict_t verdict = {.cause = cause_of_limit(now < before ? vitals->limit : pace->limit),
                                   .factor = fmax(now, ALLOWED_LEAST) / fmax(before, ALLOWED_LEAST)};
    snprintf(verdict.evidence, sizeof verdict.evidence, "its owner gives %.0f %% of it now, was %.0f %%",
             100 * now, 100 * before);
    pace->limit = vitals->limit;
    pthread_mutex_lock(&e->lock);
    const uint64_t step = e->machine != NULL ? elastic_step(e->machine) : 0;
    pthread_mutex_unlock(&e->lock);
    tell(e, step, &verdict, 0, 0);
}

/* Early: what the vitals predict is believed until runs were measured. */
void driver_look_at_vitals(inspan_elastic_t *e)
{
    driver_pace_t *pace = &e->pace;
    local_vitals_t vitals;
    if (e->views->vitals == NULL || !e->views->vitals(e->views->context, &vitals)) return;
    pace->vitals = converted(&vitals);
    if (!pace->has_vitals) {
        pace->applied = pace->vitals;
        for (uint32_t i = 0; i < DRIVER_VITALS; i++) pace->history[i] = pace->vitals;
    }
    pace->has_vitals = true;
    obey(e, &vitals);
    const double factor = verdict_expected_factor(&pace->applied, &pace->vitals);
    if (!(factor > 0) || fabs(factor - 1) < SCALE_LEAST) return;
    pace_scale(&pace->model, factor);
    pace->applied = pace->vitals;
}

/* ---- Causes ---------------------------------------------------------------------------------- */

/* Of a step before the change began. (The model counts this step as over: 1 step ago is in this one.) */
static const partition_vitals_t *vitals_before(const driver_pace_t *pace, uint32_t steps_ago)
{
    const uint64_t back = (uint64_t)steps_ago + 1, n = pace->steps;
    const uint64_t most = n < DRIVER_VITALS ? n : DRIVER_VITALS;
    return &pace->history[(n - (back < most ? back : most)) % DRIVER_VITALS];
}

static uint64_t share_now(inspan_elastic_t *e)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t share = e->stats.share;
    pthread_mutex_unlock(&e->lock);
    return share;
}

void driver_notice_change(inspan_elastic_t *e)
{
    driver_pace_t *pace = &e->pace;
    pace_estimate_t estimate;
    pace_estimate(&pace->model, &estimate);
    if (estimate.changes == pace->changes) return;
    pace->changes = estimate.changes;
    pace->doubted_at = os_now();
    pace->share_before = share_now(e);
}

static void judge(inspan_elastic_t *e, uint64_t step)
{
    driver_pace_t *pace = &e->pace;
    pace_estimate_t estimate;
    partition_verdict_t verdict;
    if (pace->doubted_at == 0) return;
    pace_estimate(&pace->model, &estimate);
    partition_vitals_t now = pace->has_vitals ? pace->vitals : partition_vitals_unknown();
    partition_vitals_t before = pace->has_vitals ? *vitals_before(pace, estimate.steps_ago) : now;
    verdict_judge(&estimate, &before, &now, &verdict);
    const bool waits = verdict.cause == PARTITION_UNKNOWN && pace->has_vitals;
    if (waits && os_now() < pace->doubted_at + DOUBT_BOUND) return;
    pace->doubted_at = 0;
    const bool wavers = verdict.factor < TOLD_FACTOR && verdict.factor > 1 / TOLD_FACTOR;
    if (verdict.cause != PARTITION_UNKNOWN || !wavers)
        tell(e, step, &verdict, pace->share_before, share_now(e));
}

/* A step's measurements are in the model, and the next one's table, made after this step's vote, is here. */
void driver_judge_step(inspan_elastic_t *e, uint64_t step)
{
    driver_pace_t *pace = &e->pace;
    driver_notice_change(e);
    judge(e, step);
    pace->history[pace->steps++ % DRIVER_VITALS] = pace->vitals;
}

uint32_t inspan_elastic_verdicts(const inspan_elastic_t *e, inspan_verdict_t verdicts[INSPAN_VERDICTS_MAX])
{
    const uint32_t ever = e->pace.n_verdicts, n = ever < INSPAN_VERDICTS_MAX ? ever : INSPAN_VERDICTS_MAX;
    for (uint32_t i = 0; i < n; i++) verdicts[i] = e->pace.verdicts[(ever - n + i) % INSPAN_VERDICTS_MAX];
    return n;
}
