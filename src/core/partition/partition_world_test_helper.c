#include "core/partition/partition_world_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define SOLO_BATCH 8
#define VITALS_NS  1000000000

world_options_t world_defaults(uint32_t n, uint32_t batch, uint64_t seed)
{
    return (world_options_t){.n = n,
                             .batch = batch,
                             .seed = seed,
                             .sample_ns = 92e6,
                             .run_ns = 12e6,
                             .update_ns = 40e6,
                             .reduce_ns = 60e6,
                             .exposed_ns = 20e6,
                             .latency_ns = 0.3e6,
                             .period_ns = 20e6,
                             .noise = 0.03,
                             .outliers = 0.003,
                             .capacity = 16};
}

void world_open(world_t *world, const world_options_t *options, const double *cores)
{
    memset(world, 0, sizeof *world);
    world->options = *options;
    rng_seed(&world->rng, options->seed, 0);
    world->full = options->n == 64 ? UINT64_MAX : (UINT64_C(1) << options->n) - 1;
    for (uint32_t i = 0; i < options->n; i++) {
        pace_init(&world->machines[i].pace);
        world->machines[i].period = -1;
        world_set_quota(world, i, 0, cores[i]);
        world->machines[i].told = 1;
        world->paces[i] = (partition_pace_t){.run = 1, .last = 1, .most = PARTITION_LEASES_MAX};
    }
}

void world_set_quota(world_t *world, uint32_t machine, int64_t at, double cores)
{
    world_machine_t *m = &world->machines[machine];
    assert_true(m->n_quotas < WORLD_CHANGES);
    m->quotas[m->n_quotas++] = (world_quota_t){.at = at, .cores = cores};
}

static double cores_at(const world_machine_t *m, int64_t at)
{
    double cores = m->quotas[0].cores;
    for (uint32_t i = 1; i < m->n_quotas && m->quotas[i].at <= at; i++) cores = m->quotas[i].cores;
    return cores;
}

double world_ideal(const world_t *world, int64_t from, int64_t to)
{
    const world_options_t *o = &world->options;
    const double outliers = 1 + 2.5 * o->outliers; /* they meet a machine alone, too */
    const double sample_ns = outliers * (o->sample_ns + (o->run_ns + o->update_ns) / SOLO_BATCH);
    double core_ns = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const world_machine_t *m = &world->machines[i];
        for (uint32_t j = 0; j < m->n_quotas; j++) {
            const int64_t end = j + 1 < m->n_quotas ? m->quotas[j + 1].at : INT64_MAX;
            const int64_t a = m->quotas[j].at > from ? m->quotas[j].at : from, b = end < to ? end : to;
            if (b > a) core_ns += (double)(b - a) * m->quotas[j].cores;
        }
    }
    return core_ns / sample_ns;
}

/* When `work` ns of one core, begun now, are done under the machine's quota. */
static int64_t compute(const world_t *world, world_machine_t *m, int64_t now, double work)
{
    const double period_ns = world->options.period_ns;
    double at = (double)now;
    while (work > 0) {
        const int64_t period = (int64_t)floor(at / period_ns);
        if (period != m->period) m->used_ns = 0;
        m->period = period;
        const double end = (double)(period + 1) * period_ns,
                     left = cores_at(m, (int64_t)at) * period_ns - m->used_ns;
        if (left <= 0) {
            at = end;
            continue;
        }
        const double runs = fmin(fmin(left, work), end - at);
        m->used_ns += runs;
        work -= runs;
        at = runs < end - at ? at + runs : end;
    }
    return (int64_t)ceil(at);
}

static double jitter(world_t *world)
{
    const world_options_t *o = &world->options;
    const double noise = exp(o->noise * rng_normal(&world->rng));
    return rng_uniform(&world->rng) < o->outliers ? noise * (2 + 3 * rng_uniform(&world->rng)) : noise;
}

/* The machine's vitals tell its pace model of a change of its quota, at most a second later. */
static void tell_vitals(world_t *world, world_machine_t *m, int64_t now)
{
    if (!world->options.vitals) return;
    for (; m->told < m->n_quotas && m->quotas[m->told].at + VITALS_NS / 2 <= now; m->told++)
        pace_scale(&m->pace, m->quotas[m->told].cores / m->quotas[m->told - 1].cores);
}

/* Takes the next run of what is granted, if there is any: as the worker's driver does. */
static void begin(world_t *world, world_machine_t *m, int64_t now)
{
    if (m->in_run > 0 || m->done) return;
    if (m->left == 0) {
        if (!m->has_last) return; /* waits for its claim */
        m->done = true;           /* the reduction is not hidden */
        m->voted_at = compute(world, m, now, world->options.reduce_ns);
        return;
    }
    uint32_t n = m->run < m->left ? m->run : m->left;
    if (m->has_last && m->left <= m->last)
        n = m->left;
    else if (m->has_last && m->left - n < m->last)
        n = m->left - m->last;
    m->left -= n;
    m->in_run = n;
    m->run_is_last = m->has_last && m->left == 0;
    m->run_from = now;
    const world_options_t *o = &world->options;
    const double work = o->run_ns + n * o->sample_ns + (m->run_is_last ? o->reduce_ns : 0);
    m->run_to = compute(world, m, now, work * jitter(world));
    if (m->left == 0 && !m->has_last && m->claim_at == INT64_MAX && m->grant_at == INT64_MAX)
        m->claim_at = now + (int64_t)o->latency_ns;
}

static void end_run(world_t *world, world_machine_t *m)
{
    const int64_t now = m->run_to;
    tell_vitals(world, m, now);
    m->computed += m->in_run;
    m->changed |= pace_run(&m->pace, m->in_run, now - m->run_from, m->run_is_last);
    m->in_run = 0;
    m->run_to = INT64_MAX;
    if (m->run_is_last) {
        m->done = true;
        m->voted_at = now;
        return;
    }
    begin(world, m, now);
}

/* The leader answers a claim. */
static void answer(world_t *world, uint32_t i)
{
    world_machine_t *m = &world->machines[i];
    partition_progress_t *p = &world->progress[i];
    const int64_t now = m->claim_at;
    m->claim_at = INT64_MAX;
    p->heard_at = now;
    p->computed = p->granted - m->in_run;
    bool more = p->reserved > p->pace.last;
    if (!more && !world->options.no_steal) {
        uint32_t from;
        const uint32_t n =
            partition_steal(NULL, now, world->opened_at, world->options.n, world->progress, i, &from);
        if (n > 0) {
            assert_true(from != i && world->progress[from].reserved >= n && !world->progress[from].sealed);
            world->progress[from].reserved -= n;
            p->reserved += n;
            world->steals++;
            world->stolen += n;
            more = true;
        }
    }
    /* The last run stays in the reserve, to be begun as the last one. */
    const uint32_t beyond = p->reserved > p->pace.last ? p->reserved - p->pace.last : p->reserved;
    m->grant_n = !more ? p->reserved : beyond < p->pace.run ? beyond : p->pace.run;
    m->grant_last = !more;
    p->reserved -= m->grant_n;
    p->granted += m->grant_n;
    p->sealed = m->grant_last;
    m->grant_at = now + (int64_t)world->options.latency_ns;
}

static void take_grant(world_t *world, world_machine_t *m)
{
    const int64_t now = m->grant_at;
    m->grant_at = INT64_MAX;
    m->left += m->grant_n;
    m->has_last = m->grant_last;
    if (m->in_run == 0) begin(world, m, now);
}

static void open_member(world_t *world, uint32_t i)
{
    world_machine_t *m = &world->machines[i];
    const partition_pace_t *pace = &world->paces[i];
    partition_progress_t *p = &world->progress[i];
    const int64_t begins = world->now + (int64_t)world->options.latency_ns;
    m->share = world->shares[i];
    m->run = pace->run;
    m->last = pace->last;
    m->computed = m->in_run = 0;
    m->done = m->changed = false;
    m->run_to = m->claim_at = m->grant_at = INT64_MAX;
    /* The last run stays in the reserve: it is known as the last one when it begins. */
    uint32_t outright = 2 * pace->run;
    m->has_last = m->share <= pace->run + pace->last;
    if (m->has_last)
        outright = m->share;
    else if (outright > m->share - pace->last)
        outright = m->share - pace->last;
    m->left = outright;
    *p = (partition_progress_t){.pace = *pace,
                                .reserved = m->share - outright,
                                .granted = outright,
                                .heard_at = world->now,
                                .sealed = m->has_last};
    const int64_t updated =
        world->step == 0 ? begins : compute(world, m, begins, world->options.update_ns * jitter(world));
    m->update_ns = (double)(updated - begins);
    begin(world, m, updated);
}

static void vote(world_t *world, uint32_t i)
{
    world_machine_t *m = &world->machines[i];
    tell_vitals(world, m, m->voted_at);
    pace_estimate(&m->pace, &m->estimate);
    m->changed |= m->estimate.changed;
    uint32_t run, last;
    pace_runs(&m->pace, m->share, world->options.capacity, world->options.exposed_ns, &run, &last);
    world->paces[i].lease_ns = (uint64_t)(pace_sample_ns(&m->estimate, run));
    world->paces[i].step_ns = (uint64_t)m->estimate.step_ns;
    world->paces[i].run = run;
    world->paces[i].last = last;
    pace_step(&m->pace, world->step == 0 ? -1 : (int64_t)m->update_ns);
}

/* The next event of all members; false: all have voted. */
static bool next_event(world_t *world)
{
    int64_t first = INT64_MAX;
    uint32_t who = 0;
    for (uint32_t i = 0; i < world->options.n; i++) {
        const world_machine_t *m = &world->machines[i];
        int64_t at = m->run_to < m->claim_at ? m->run_to : m->claim_at;
        if (m->grant_at < at) at = m->grant_at;
        if (at >= first) continue;
        first = at;
        who = i;
    }
    if (first == INT64_MAX) return false;
    world_machine_t *m = &world->machines[who];
    if (m->claim_at == first)
        answer(world, who);
    else if (m->grant_at == first)
        take_grant(world, m);
    else
        end_run(world, m);
    return true;
}

static void choose_shares(world_t *world)
{
    uint32_t before[PARTITION_MEMBERS_MAX];
    memcpy(before, world->shares, sizeof before);
    if (world->options.equal) {
        const uint32_t n = world->options.n;
        for (uint32_t i = 0; i < n; i++)
            world->shares[i] = world->options.batch / n + (i < world->options.batch % n);
    } else {
        partition_split(NULL, world->options.batch, world->full, world->options.n, world->paces,
                        world->shares);
    }
    if (world->step > 0 && memcmp(before, world->shares, sizeof before) != 0) world->resplits++;
}

void world_step(world_t *world)
{
    const int64_t from = world->now;
    const uint32_t n = world->options.n;
    world->opened_at = from;
    choose_shares(world);
    for (uint32_t i = 0; i < n; i++) open_member(world, i);
    while (next_event(world)) {
    }
    uint32_t computed = 0;
    int64_t latest = from;
    for (uint32_t i = 0; i < n; i++) {
        world_machine_t *m = &world->machines[i];
        assert_true(m->done && m->left == 0);
        computed += m->computed;
        if (m->voted_at > latest) latest = m->voted_at;
    }
    assert_int_equal(computed, world->options.batch);
    for (uint32_t i = 0; i < n; i++) vote(world, i);
    world->now = latest + (int64_t)(world->options.exposed_ns + world->options.latency_ns);
    world->step_ns = world->now - from;
    world->step_ideal = world_ideal(world, from, world->now);
    world->ideal += world->step_ideal;
    world->samples += world->options.batch;
    world->step++;
    if (!world->options.trace) return;
    printf("step %3u %6.2f s %5.1f %% ", (unsigned)world->step, (double)world->step_ns / 1e9,
           100 * world->options.batch / world->step_ideal);
    for (uint32_t i = 0; i < n; i++)
        printf("| %3u/%3u %5.1f ms run %u last %u%s%s ", world->machines[i].computed,
               world->machines[i].share, world->machines[i].estimate.sample_ns / 1e6, world->machines[i].run,
               world->machines[i].last, world->machines[i].changed ? " CHANGED" : "",
               world->machines[i].estimate.unsteady ? " unsteady" : "");
    printf("\n");
}
