/*
 * How fast this member is. What was measured of its runs goes into core/partition's model; what the model
 * says goes into the machine (it rides on votes and reports) and into the size of the runs.
 *
 * The time of a run is what passes between handing it out and its `computed`, without what the caller says
 * was something else: waiting for other members is never in it. An owner who gives less of a machine
 * (`allowed`) is obeyed by rests between the runs; rests are not in the model, so the pace that is told is
 * that much slower.
 */
#include <math.h>
#include <string.h>

#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define RUN_BOUND     (1500 * NS_PER_MS) /* of a run that is not the last: its owner may want the machine */
#define REST_BOUND    NS_PER_S
#define ALLOWED_LEAST 0.01
#define ALLOWED_LAST  0.25
#define INPUT_WEIGHT  0.2
#define PACE_BOUND    (600 * NS_PER_S) /* like the comparison of models before it */
#define STEALS_FROM   (40 * NS_PER_MS) /* of a share: a shorter one is over before asking helps */
#define HOLDS         NS_PER_S         /* a pace that was told stays, but for a large change */
#define HOLDS_LEAST   0.7              /* old / new of what is no large one */

void driver_pace_open(inspan_elastic_t *e)
{
    pace_init(&e->pace.model);
    e->pace.told.most = ELASTIC_LEASES_MAX;
    e->pace.allowed = 1;
}

/* ---- What was measured (training thread) ----------------------------------------------------- */

void driver_pace_handed(inspan_elastic_t *e)
{
    e->pace.handed_at = os_now();
    e->pace.apart = (inspan_timing_t){0};
}

void inspan_elastic_timing(inspan_elastic_t *e, const inspan_timing_t *timing)
{
    e->pace.apart.input_ns += timing->input_ns;
    e->pace.apart.other_ns += timing->other_ns;
}

static ns_t worked(const inspan_elastic_t *e)
{
    const driver_pace_t *pace = &e->pace;
    const ns_t took = os_now() - pace->handed_at - pace->apart.input_ns - pace->apart.other_ns;
    return pace->handed_at != 0 && took > 0 ? took : 0;
}

/* Who is to give nothing still has to finish what it was granted. */
static double given(const driver_pace_t *pace)
{
    return pace->allowed <= 0 ? ALLOWED_LAST : fmax(pace->allowed, ALLOWED_LEAST);
}

/* The owner's part of the time that this member has worked. */
static void owe_rest(inspan_elastic_t *e)
{
    driver_pace_t *pace = &e->pace;
    if (pace->allowed >= 1 || pace->handed_at == 0) return;
    const ns_t now = os_now();
    const double rest = (double)(now - pace->handed_at) * (1 - given(pace)) / given(pace);
    const ns_t from = pace->rest_until > now ? pace->rest_until : now;
    pace->rest_until = from + (ns_t)fmin(rest, (double)(100 * REST_BOUND));
}

/* A lease with more samples than a micro-batch is computed in several. */
static void take_run_time(inspan_elastic_t *e, uint64_t samples, ns_t took, bool last)
{
    const uint64_t most = e->options.micro_batch > 0 ? e->options.micro_batch : samples;
    const uint64_t parts = (samples + most - 1) / most;
    for (uint64_t i = 0; i < parts && took > 0; i++) {
        const uint64_t n = samples * (i + 1) / parts - samples * i / parts;
        pace_run(&e->pace.model, (uint32_t)n, (int64_t)((double)took * (double)n / (double)samples),
                 last && i + 1 == parts);
    }
}

void driver_pace_computed(inspan_elastic_t *e, const inspan_work_t *work)
{
    driver_pace_t *pace = &e->pace;
    if (work->light || work->samples == 0) return;
    const double input = (double)pace->apart.input_ns / (double)work->samples;
    take_run_time(e, work->samples, worked(e), work->last);
    pace->input_ns = pace->input_ns == 0 ? input : pace->input_ns + INPUT_WEIGHT * (input - pace->input_ns);
    owe_rest(e);
    pace->handed_at = 0;
    driver_notice_change(e);
}

/* The update of the APPLY that was handed out is over. */
void driver_pace_applied(inspan_elastic_t *e, bool light)
{
    const ns_t took = worked(e);
    if (!light) pace_step(&e->pace.model, took > 0 ? took : -1);
    owe_rest(e);
    e->pace.handed_at = 0;
}

void inspan_elastic_calibrated(inspan_elastic_t *e, uint64_t samples, int64_t compute_ns)
{
    if (samples == 0 || compute_ns <= 0) return;
    take_run_time(e, samples, compute_ns, false);
}

/* ---- What reductions take (lock held) -------------------------------------------------------- */

void driver_pace_reduced(inspan_elastic_t *e, uint32_t bucket)
{
    driver_pace_t *pace = &e->pace;
    const ns_t now = os_now(), started = pace->reduce_started[bucket];
    pace->reducing += now - (started > pace->reduced_at ? started : pace->reduced_at);
    pace->reduced_at = now;
}

/* Where this member is the last one, others' waiting is not in it: of some steps the shortest is nearest to
 * what the wire takes. */
void driver_pace_committed(inspan_elastic_t *e, bool light)
{
    driver_pace_t *pace = &e->pace;
    if (!light && pace->reducing > 0)
        pace->reductions[pace->n_reductions++ % DRIVER_REDUCTIONS] = pace->reducing;
    pace->reducing = 0;
    const ns_t now = os_now();
    if (!light && pace->committed_at > 0)
        pace->durations[pace->n_durations++ % DRIVER_REDUCTIONS] = now - pace->committed_at;
    pace->committed_at = now;
}

/* A table that differs though the members are the same: somebody's pace did. */
void driver_pace_opened(inspan_elastic_t *e, uint64_t share)
{
    driver_pace_t *pace = &e->pace;
    const uint64_t step = elastic_step(e->machine), view = elastic_view(e->machine);
    if (elastic_light(e->machine) || pace->table_step == step + 1) return;
    if (pace->table_step == step && pace->table_view == view && share != e->stats.share) e->stats.resplits++;
    pace->table_step = step + 1;
    pace->table_view = view;
    e->stats.share = share;
}

void driver_pace_rewired(inspan_elastic_t *e, double factor)
{
    driver_pace_t *pace = &e->pace;
    for (uint32_t i = 0; i < DRIVER_REDUCTIONS; i++)
        pace->reductions[i] = (ns_t)((double)pace->reductions[i] * factor);
    pace->n_durations = 0;
    pace->committed_at = 0;
}

/* Another view has other links. */
void driver_pace_view(inspan_elastic_t *e)
{
    e->pace.reducing = 0;
    e->pace.n_reductions = e->pace.n_durations = 0;
    e->pace.committed_at = 0;
    e->pace.view_at = os_now();
    e->pace.view_step = elastic_step(e->machine);
}

ns_t driver_pace_reduce_ns(const inspan_elastic_t *e)
{
    const driver_pace_t *pace = &e->pace;
    ns_t least = 0;
    for (uint32_t i = 0; i < pace->n_reductions && i < DRIVER_REDUCTIONS; i++)
        if (least == 0 || pace->reductions[i] < least) least = pace->reductions[i];
    return least;
}

ns_t driver_pace_whole_step(const inspan_elastic_t *e)
{
    const driver_pace_t *pace = &e->pace;
    double durations[DRIVER_REDUCTIONS];
    const uint32_t n = pace->n_durations < DRIVER_REDUCTIONS ? pace->n_durations : DRIVER_REDUCTIONS;
    for (uint32_t i = 0; i < n; i++) durations[i] = (double)pace->durations[i];
    return (ns_t)pace_median(durations, n);
}

/* ---- What is asked for (lock held) ----------------------------------------------------------- */

/* Leases that fit into a micro-batch. */
static uint32_t leases_that_fit(const inspan_elastic_t *e)
{
    const uint64_t fit = e->options.micro_batch / e->largest_lease;
    return fit < 1 ? 1 : fit > ELASTIC_LEASES_MAX ? ELASTIC_LEASES_MAX : (uint32_t)fit;
}

static double samples_of_lease(const inspan_elastic_t *e)
{
    return (double)e->options.batch / (double)e->buckets.leases;
}

static uint32_t leases_of(const inspan_elastic_t *e, double samples, uint32_t fit)
{
    const double leases = samples / samples_of_lease(e);
    return leases < 1 ? 1 : leases > fit ? fit : (uint32_t)leases;
}

/* A run that is soon over: its owner may want the machine. */
static uint32_t bounded(const inspan_elastic_t *e, const pace_estimate_t *estimate, uint32_t run)
{
    while (run > 1 && pace_sample_ns(estimate, run) * run + e->pace.input_ns * run > (double)RUN_BOUND) run--;
    return run;
}

static void choose_runs(const inspan_elastic_t *e, const pace_estimate_t *estimate, elastic_pace_t *ask)
{
    const uint32_t fit = leases_that_fit(e);
    const uint64_t most =
        e->options.micro_batch > e->largest_lease ? e->options.micro_batch : e->largest_lease;
    const uint64_t share =
        e->stats.share > 0 ? e->stats.share : e->options.batch / (e->world > 0 ? e->world : 1);
    const ns_t reducing = driver_pace_reduce_ns(e);
    uint32_t run = 0, last = 0;
    pace_runs(&e->pace.model, (uint32_t)(share < UINT32_MAX ? share : UINT32_MAX), (uint32_t)most,
              (double)reducing, &run, &last);
    ask->run = leases_of(e, bounded(e, estimate, run), fit);
    ask->last = reducing > 0 ? leases_of(e, ceil(last / samples_of_lease(e)) * samples_of_lease(e), fit)
                             : fit; /* not known yet: as long as can be */
}

static elastic_pace_t asked(const inspan_elastic_t *e)
{
    elastic_pace_t ask = {.most = e->pace.allowed > 0 ? ELASTIC_LEASES_MAX : 0};
    pace_estimate_t estimate;
    pace_estimate(&e->pace.model, &estimate);
    if (!estimate.known) return ask;
    choose_runs(e, &estimate, &ask);
    const double lease = samples_of_lease(e);
    double sample = 0, rest = 0;
    pace_line(&estimate, (double)e->stats.share, ask.run * lease, ask.last * lease, &sample, &rest);
    ask.lease_ns = (uint64_t)((sample + e->pace.input_ns) * lease / given(&e->pace));
    ask.step_ns = (uint64_t)(rest / given(&e->pace));
    const uint64_t leases = e->stats.share > 0 ? e->stats.share / e->largest_lease + 1 : 1;
    if (ask.lease_ns * leases < (uint64_t)STEALS_FROM) ask.run = ask.last = 0; /* all at once */
    return ask;
}

/* Many small steps a second waver: each other split would be a span of the ledger, and gain nothing. */
static bool stays(const inspan_elastic_t *e, const elastic_pace_t *ask, ns_t now)
{
    const elastic_pace_t *told = &e->pace.told;
    if (told->lease_ns == 0 || ask->lease_ns == 0 || now - e->pace.told_at >= HOLDS) return false;
    const double ratio = (double)told->lease_ns / (double)ask->lease_ns;
    return told->most == ask->most && ratio > HOLDS_LEAST && ratio < 1 / HOLDS_LEAST;
}

/* Before a vote and a report. */
void driver_pace_tell(inspan_elastic_t *e)
{
    const ns_t now = os_now();
    const elastic_pace_t ask = asked(e);
    if (!stays(e, &ask, now)) {
        e->pace.told = ask;
        e->pace.told_at = now;
    }
    if (e->machine != NULL) elastic_set_pace(e->machine, &e->pace.told);
}

/* Of `left` leases, all that there will be where `sealed`: the odd rest comes first, so that the last run,
 * behind which reductions hide, is as long as that needs. */
uint32_t driver_pace_next_run(const inspan_elastic_t *e, uint32_t left, bool sealed)
{
    const uint32_t fit = leases_that_fit(e), run = e->pace.told.run;
    const uint32_t last = e->pace.told.last > 0 ? e->pace.told.last : run;
    if (e->options.equal_shares || run == 0 || e->world == 1) {
        const uint32_t rest = left % fit;
        return sealed && rest > 0 ? rest : fit;
    }
    if (!sealed || left == 0) return run;
    if (left <= last || (left <= fit && left - last < run)) return left;
    const uint32_t before = left - last, runs = (before + run - 1) / run;
    return (before + runs - 1) / runs;
}

/* ---- The owner ------------------------------------------------------------------------------- */

/* Until when no run is to begin; 0: it may. */
ns_t driver_pace_rest(inspan_elastic_t *e, ns_t now)
{
    if (e->pace.allowed >= 1 || e->pace.rest_until <= now) return 0;
    return e->pace.rest_until < now + REST_BOUND ? e->pace.rest_until : now + REST_BOUND;
}

/* ---- Together ---------------------------------------------------------------------------------- */

#define PACE_WORDS 4u /* lease_ns, step_ns, run and last, most */

/* What is known of this member before its first step: by the registry (it rode on the view), or tried now. */
static void learn(inspan_elastic_t *e)
{
    const inspan_member_t *own = inspan_comm_member(e->comm, e->rank);
    if (own->pace_sample_ns > 0)
        pace_seed(&e->pace.model, (double)own->pace_sample_ns, (double)own->pace_step_ns);
    else if (e->options.calibrate != NULL) {
        e->options.calibrate(e->options.context);
        ddp_buckets_clear(&e->buckets); /* gradients of nothing */
    }
}

inspan_status_t driver_pace_share(inspan_elastic_t *e, elastic_pace_t paces[ELASTIC_MEMBERS_MAX],
                                  inspan_error_t *err)
{
    uint64_t rows[ELASTIC_MEMBERS_MAX * PACE_WORDS];
    learn(e);
    pthread_mutex_lock(&e->lock);
    driver_pace_tell(e);
    pthread_mutex_unlock(&e->lock);
    const elastic_pace_t *own = &e->pace.told;
    const uint64_t row[PACE_WORDS] = {own->lease_ns, own->step_ns, (uint64_t)own->run << 32 | own->last,
                                      own->most};
    const inspan_status_t status = manifest_gather(e->comm, row, PACE_WORDS, rows, PACE_BOUND, err);
    for (uint32_t i = 0; status == INSPAN_OK && i < e->world; i++) {
        const uint64_t *at = rows + (size_t)i * PACE_WORDS;
        paces[i] = (elastic_pace_t){at[0], at[1], (uint32_t)(at[2] >> 32), (uint32_t)at[2], (uint32_t)at[3]};
    }
    return status;
}

void driver_pace_stats(const inspan_elastic_t *e, inspan_elastic_stats_t *stats)
{
    const double lease = samples_of_lease(e);
    pace_estimate_t estimate;
    pace_estimate(&e->pace.model, &estimate);
    stats->run = (uint64_t)lround(e->pace.told.run * lease);
    stats->last_run = (uint64_t)lround(e->pace.told.last * lease);
    stats->sample_ns =
        estimate.known ? pace_sample_ns(&estimate, stats->run > 0 ? (uint32_t)stats->run : 1) : 0;
    stats->uncertainty = estimate.known ? estimate.uncertainty : 0;
    stats->step_ns = estimate.known ? estimate.step_ns : 0;
    stats->reduce_ns = driver_pace_reduce_ns(e);
}
