/* Predictions against a simulation of the buckets one by one, splits and sets against all others, and the
 * rules that must hold for any machines. */
#include "core/partition/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "core/partition/split.h"

#define GIGABIT PLAN_CABLE_BYTES_PER_S

static const plan_price_t direct = {0};

static plan_node_t machine(double samples_per_s, double bytes_per_s)
{
    return (plan_node_t){.sample_s = 1 / samples_per_s,
                         .up_bytes_per_s = bytes_per_s,
                         .down_bytes_per_s = bytes_per_s,
                         .micro_batch = 16};
}

static plan_job_t small_job(void)
{
    return (plan_job_t){.gradient_bytes = 44000000, .bucket_bytes = 1375000, .batch = 128, .leases = 128};
}

static double between(rng_t *rng, double low, double high)
{
    return low * pow(high / low, rng_uniform(rng));
}

static void random_nodes(rng_t *rng, plan_node_t *nodes, uint32_t n)
{
    static const double links[] = {1e6, 12e6, 12e6, GIGABIT, GIGABIT, 3e8, INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        nodes[i] = machine(between(rng, 0.5, 100), links[rng_below(rng, 7)]);
        nodes[i].step_s = between(rng, 1e-4, 0.2);
        nodes[i].byte_s = rng_below(rng, 2) * 1e-9;
        nodes[i].micro_batch = 1 + (uint32_t)rng_below(rng, 16);
        if (rng_below(rng, 3) == 0) nodes[i].up_bytes_per_s /= 4;
    }
}

static plan_job_t random_job(rng_t *rng, uint32_t leases)
{
    plan_job_t job = small_job();
    job.leases = leases;
    job.batch = leases * (1 + rng_below(rng, 3));
    job.gradient_bytes = (uint64_t)between(rng, 1e4, 2e8);
    job.commit_s = 1e-3;
    return job;
}

static double speed(const plan_job_t *job, const plan_node_t *nodes, uint64_t set)
{
    plan_prediction_t prediction;
    plan_predict(job, nodes, set, direct, &prediction);
    return prediction.samples_per_s;
}

/* ---- The step, bucket by bucket -------------------------------------------------------------- */

static double simulate(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, const uint32_t *share)
{
    const plan_node_t *members[PLAN_NODES_MAX];
    plan_reduction_t reduction = {0};
    double computed[PLAN_NODES_MAX], window[PLAN_NODES_MAX], last = 0, free_at = 0;
    for (uint32_t i = 0; i < n; i++) members[i] = &nodes[i];
    if (n > 1) plan_price_direct(NULL, members, n, job->gradient_bytes, &reduction);
    double reduce = reduction.seconds;
    for (uint32_t i = 0; i < n; i++) {
        const double samples = (double)share[i] * (double)job->batch / job->leases;
        computed[i] = nodes[i].step_s + samples * nodes[i].sample_s;
        window[i] = fmin(samples, nodes[i].micro_batch) * nodes[i].sample_s * 2 / 3;
        reduce = fmax(reduce, reduction.moved[i] * nodes[i].byte_s);
    }
    if (n == 1) return computed[0];
    const uint64_t buckets = (job->gradient_bytes + job->bucket_bytes - 1) / job->bucket_bytes;
    for (uint64_t b = 1; b <= buckets; b++) {
        double ready = 0;
        for (uint32_t i = 0; i < n; i++)
            ready = fmax(ready, computed[i] - window[i] * (double)(buckets - b) / (double)buckets);
        for (uint32_t i = 0; i < n && b == buckets; i++)
            ready = fmax(ready, computed[i] + reduction.moved[i] * nodes[i].byte_s);
        free_at = fmax(free_at, ready) + reduce / (double)buckets;
    }
    last = fmax(last, free_at);
    return last + job->commit_s;
}

/* The fastest of all splits. */
static double best_split(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, uint32_t at,
                         uint32_t left, uint32_t *share)
{
    double best = INFINITY;
    if (at == n - 1) {
        share[at] = left;
        return simulate(job, nodes, n, share);
    }
    for (uint32_t k = 0; k <= left; k++) {
        share[at] = k;
        best = fmin(best, best_split(job, nodes, n, at + 1, left - k, share));
    }
    return best;
}

static void no_split_is_faster(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 1, 0);
    for (int round = 0; round < 1500; round++) {
        plan_node_t nodes[4];
        uint32_t share[PLAN_NODES_MAX];
        plan_prediction_t got;
        const uint32_t n = 1 + (uint32_t)rng_below(&rng, 4);
        const plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 10));
        random_nodes(&rng, nodes, n);
        plan_predict(&job, nodes, (UINT64_C(1) << n) - 1, direct, &got);
        const double best = best_split(&job, nodes, n, 0, job.leases, share);
        if (fabs(got.step_s / best - 1) > 1e-9)
            fail_msg("round %d: %u nodes: %.9f s, the best of all splits %.9f s", round, n, got.step_s, best);
        uint32_t sum = 0;
        for (uint32_t i = 0; i < PLAN_NODES_MAX; i++) sum += got.share[i];
        assert_int_equal(sum, job.leases);
    }
}

/* Where links do not count, it predicts the split that a job has. */
static void shares_are_those_of_the_split(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 7, 0);
    for (int round = 0; round < 300; round++) {
        plan_node_t nodes[8];
        partition_pace_t paces[8];
        uint32_t share[8] = {0};
        plan_prediction_t got;
        const uint32_t n = 1 + (uint32_t)rng_below(&rng, 8);
        plan_job_t job = small_job();
        job.leases = 1 + (uint32_t)rng_below(&rng, 128);
        job.batch = job.leases;
        for (uint32_t i = 0; i < n; i++) {
            paces[i] = (partition_pace_t){.lease_ns = 1000000 + rng_below(&rng, 99000000),
                                          .step_ns = rng_below(&rng, 50000000),
                                          .most = PARTITION_LEASES_MAX};
            nodes[i] = machine(1e9 / (double)paces[i].lease_ns, INFINITY);
            nodes[i].step_s = (double)paces[i].step_ns * 1e-9;
        }
        partition_split(NULL, job.leases, UINT64_MAX, n, paces, share);
        plan_predict(&job, nodes, (UINT64_C(1) << n) - 1, direct, &got);
        assert_float_equal(got.step_s / ((double)partition_finish(UINT64_MAX, n, paces, share) * 1e-9), 1,
                           1e-9);
    }
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static void a_faster_part_never_makes_it_slower(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 2, 0);
    for (int round = 0; round < 3000; round++) {
        plan_node_t nodes[8];
        const uint32_t n = 1 + (uint32_t)rng_below(&rng, 8), who = (uint32_t)rng_below(&rng, n);
        const plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 256));
        const uint64_t all = (UINT64_C(1) << n) - 1;
        random_nodes(&rng, nodes, n);
        const double before = speed(&job, nodes, all);
        const double factor = 1 + rng_uniform(&rng);
        switch (rng_below(&rng, 4)) {
        case 0: nodes[who].sample_s /= factor; break;
        case 1: nodes[who].step_s /= factor; break;
        case 2: nodes[who].byte_s /= factor; break;
        default: nodes[who].up_bytes_per_s *= factor; break;
        }
        assert_true(speed(&job, nodes, all) >= before * (1 - 1e-9));
    }
}

static void bounds_are_bounds(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 0);
    for (int round = 0; round < 3000; round++) {
        plan_node_t nodes[8];
        const plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 64));
        const uint64_t set = 1 + rng_below(&rng, 255);
        random_nodes(&rng, nodes, 8);
        assert_true(plan_bound(&job, nodes, set) >= speed(&job, nodes, set) * (1 - 1e-12));
    }
}

static double best_of_all_sets(const plan_job_t *job, const plan_node_t *nodes, uint32_t n)
{
    double best = 0;
    for (uint64_t set = 1; set < UINT64_C(1) << n; set++) {
        bool fits = true;
        for (uint32_t i = 0; i < n; i++) fits &= (set >> i & 1) == 0 || plan_fits(job, &nodes[i]);
        if (fits) best = fmax(best, speed(job, nodes, set));
    }
    return best;
}

static void the_best_set_is_found(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 4, 0);
    for (int round = 0; round < 300; round++) {
        plan_node_t nodes[7];
        plan_answer_t answer;
        const uint32_t n = 1 + (uint32_t)rng_below(&rng, 7);
        plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 64));
        random_nodes(&rng, nodes, n);
        job.memory_bytes = 1000;
        for (uint32_t i = 0; i < n; i++) nodes[i].memory_bytes = rng_below(&rng, 4) == 0 ? 999 : 1001;
        plan_search(&job, nodes, n, direct, &answer);
        const double best = best_of_all_sets(&job, nodes, n);
        if (best == 0) {
            assert_int_equal(answer.best, 0);
            continue;
        }
        assert_float_equal(answer.prediction.samples_per_s / best, 1, 1e-9);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(answer.prediction.samples_per_s >= answer.alone[i]);
            assert_true(answer.prediction.samples_per_s >= answer.other[i] * (1 - 1e-9));
            if (!plan_fits(&job, &nodes[i])) assert_true((answer.best >> i & 1) == 0 && answer.alone[i] == 0);
        }
        if (answer.cable != PLAN_NONE && answer.cable_best != 0)
            assert_true(answer.cable_samples_per_s >= answer.prediction.samples_per_s * (1 - 1e-9));
    }
}

/* Above PLAN_EXHAUSTIVE nodes not every set is looked at. */
static void many_nodes_are_searched_well(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 5, 0);
    for (int round = 0; round < 12; round++) {
        plan_node_t nodes[PLAN_EXHAUSTIVE + 1];
        plan_answer_t answer;
        const plan_job_t job = random_job(&rng, 64);
        random_nodes(&rng, nodes, PLAN_EXHAUSTIVE + 1);
        plan_search(&job, nodes, PLAN_EXHAUSTIVE + 1, direct, &answer);
        assert_true(answer.prediction.samples_per_s >=
                    0.99 * best_of_all_sets(&job, nodes, PLAN_EXHAUSTIVE + 1));
    }
    plan_node_t nodes[PLAN_NODES_MAX];
    plan_answer_t answer;
    const plan_job_t job = small_job();
    for (uint32_t i = 0; i < PLAN_NODES_MAX; i++) nodes[i] = machine(1 + i, INFINITY);
    plan_search(&job, nodes, PLAN_NODES_MAX, direct, &answer);
    assert_int_equal(answer.n_rungs, PLAN_NODES_MAX);
    for (uint32_t i = 0; i < PLAN_NODES_MAX; i++)
        assert_true(answer.prediction.samples_per_s >= answer.alone[i]);
}

static void least_and_most_are_kept(void **state)
{
    (void)state;
    const plan_node_t nodes[] = {machine(10, INFINITY), machine(10, INFINITY), machine(10, 1e5)};
    plan_answer_t answer;
    plan_job_t job = small_job();
    plan_search(&job, nodes, 3, direct, &answer);
    assert_int_equal(answer.best, 3);
    job.least = 3;
    plan_search(&job, nodes, 3, direct, &answer);
    assert_int_equal(answer.best, 7);
    job.least = 4;
    plan_search(&job, nodes, 3, direct, &answer);
    assert_int_equal(answer.best, 0);
    job.least = 0, job.most = 1;
    plan_search(&job, nodes, 3, direct, &answer);
    assert_int_equal(__builtin_popcountll(answer.best), 1);
}

/* ---- Known cases ----------------------------------------------------------------------------- */

static void speeds_add_up_where_nothing_stands_between(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    const plan_node_t nodes[] = {machine(8, INFINITY), machine(4, INFINITY), machine(4, INFINITY)};
    plan_prediction_t got;
    plan_predict(&job, nodes, 7, direct, &got);
    assert_float_equal(got.samples_per_s, 16, 1e-9);
    assert_int_equal(got.share[0], 64);
    assert_int_equal(got.share[1], 32);
    assert_int_equal(got.limit, PLAN_LIMIT_COMPUTE);
    plan_predict(&job, nodes, 1, direct, &got);
    assert_float_equal(got.samples_per_s, 8, 1e-9);
    assert_float_equal(got.exposed_s, 0, 0);
}

/* Two nodes of 10 samples/s and one slow link: 44 MB take 3.67 s each way, a step 6.4 s without them. The
 * last micro-batch of 16 samples hides 2/3 x 1.6 s x 31/32 of it. */
static void what_is_not_hidden_is_exposed(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    const plan_node_t nodes[] = {machine(10, INFINITY), machine(10, 12e6)};
    plan_prediction_t got;
    plan_predict(&job, nodes, 3, direct, &got);
    assert_float_equal(got.reduce_s, 44e6 / 12e6, 1e-9);
    assert_float_equal(got.step_s, 6.4 + 44e6 / 12e6 - 1.6 * 2 / 3 * 31 / 32, 1e-9);
    assert_float_equal(got.exposed_s, got.step_s - 6.4, 1e-9);
    assert_int_equal(got.limit, PLAN_LIMIT_LINK);
    assert_int_equal(got.by, 1);
}

static void a_slow_link_is_left_out_and_a_cable_named(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    const plan_node_t nodes[] = {machine(40, GIGABIT), machine(30, GIGABIT), machine(20, 1.2e6)};
    plan_answer_t answer;
    plan_search(&job, nodes, 3, direct, &answer);
    assert_int_equal(answer.best, 3);
    assert_int_equal(answer.rungs[0].node, 0);
    assert_int_equal(answer.rungs[1].node, 1);
    assert_int_equal(answer.rungs[2].node, 2);
    assert_true(answer.rungs[2].samples_per_s < answer.rungs[1].samples_per_s);
    assert_int_equal(answer.rungs[2].limit, PLAN_LIMIT_LINK);
    assert_int_equal(answer.rungs[2].by, 2);
    assert_int_equal(answer.cable, 2);
    assert_int_equal(answer.cable_best, 7);
    assert_true(answer.cable_samples_per_s > answer.prediction.samples_per_s);
    assert_float_equal(answer.other[2], answer.rungs[2].samples_per_s, 1e-9);
}

/* Not for the slowest link of all, whose machine is not worth it. */
static void a_cable_goes_where_it_helps(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    const plan_node_t nodes[] = {machine(0.1, 1e5), machine(40, GIGABIT), machine(30, 1.2e7),
                                 machine(20, 1e7)};
    plan_answer_t answer;
    plan_search(&job, nodes, 4, direct, &answer);
    assert_int_equal(answer.cable, 2);
    assert_int_equal(answer.cable_best, 6);
    assert_true(answer.cable_samples_per_s > 60);
    const plan_node_t useless[] = {machine(40, GIGABIT), machine(0.1, 2e5), machine(0.1, 1e5)};
    plan_search(&job, useless, 3, direct, &answer);
    assert_int_equal(answer.cable, 2);
    plan_search(&job, useless, 1, direct, &answer);
    assert_int_equal(answer.cable, PLAN_NONE);
}

/* The laboratory of the benchmarks: 0.8, 0.4, 0.4 and 0.2 cores, 44 MB of gradients, 1 Gbit/s. */
static void unequal_machines_reach_nearly_their_sum(void **state)
{
    (void)state;
    plan_job_t job = small_job();
    plan_node_t nodes[] = {machine(8.18, GIGABIT), machine(4.01, GIGABIT), machine(4.01, GIGABIT),
                           machine(2.03, GIGABIT)};
    const double sum = 8.18 + 4.01 + 4.01 + 2.03;
    assert_true(speed(&job, nodes, 15) > 0.95 * sum);
    job.batch = job.leases = 32;
    const double small = speed(&job, nodes, 15);
    assert_true(small > 0.85 * sum && small < 0.97 * sum);
}

/* ---- While it runs --------------------------------------------------------------------------- */

/* What a price does not know shows in the steps. */
static void reductions_take_what_the_steps_show(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 9, 0);
    for (int round = 0; round < 200; round++) {
        plan_node_t nodes[8];
        const uint32_t n = 2 + (uint32_t)rng_below(&rng, 7);
        const uint64_t all = (UINT64_C(1) << n) - 1;
        const plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 64));
        random_nodes(&rng, nodes, n);
        plan_prediction_t as_priced, really, found;
        plan_predict(&job, nodes, all, direct, &as_priced);
        assert_float_equal(plan_reduction_factor(&job, nodes, n, direct, as_priced.step_s * 0.9, 10), 1,
                           1e-3);
        plan_scaled_t scaled = {direct, 1 + 8 * rng_uniform(&rng)};
        plan_predict(&job, nodes, all, (plan_price_t){plan_price_scaled, &scaled}, &really);
        scaled.factor = plan_reduction_factor(&job, nodes, n, direct, really.step_s, 10);
        plan_predict(&job, nodes, all, (plan_price_t){plan_price_scaled, &scaled}, &found);
        assert_true(fabs(found.step_s / really.step_s - 1) < 0.01);
        assert_float_equal(plan_reduction_factor(&job, nodes, n, direct, 1e9, 3), 3, 1e-3); /* and no more */
    }
}

static uint32_t ask(plan_leave_t *state, const plan_node_t *nodes, const uint32_t *ids, uint32_t n)
{
    const plan_job_t job = small_job();
    return plan_leave_out(state, &job, nodes, ids, n, 1, direct, NULL);
}

static void a_burden_is_named_after_some_steps(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    const plan_node_t nodes[] = {machine(40, GIGABIT), machine(30, GIGABIT), machine(20, 1.2e6)};
    const uint32_t ids[] = {3, 7, 9};
    plan_leave_t leave = {0};
    double gain = 0;
    for (uint32_t call = 1; call < PLAN_LEAVE_STEPS; call++)
        assert_int_equal(ask(&leave, nodes, ids, 3), PLAN_NONE);
    assert_int_equal(plan_leave_out(&leave, &job, nodes, ids, 3, 1, direct, &gain), 2);
    assert_true(gain > 2);
    for (uint32_t call = 1; call < 2 * PLAN_LEAVE_STEPS; call++) /* it is back, and no better */
        assert_int_equal(ask(&leave, nodes, ids, 3), PLAN_NONE);
    assert_int_equal(ask(&leave, nodes, ids, 3), 2);
    assert_int_equal(plan_leave_out(&leave, &job, nodes, ids, 3, 3, direct, &gain), PLAN_NONE);
    assert_float_equal(gain, 1, 0);
}

/* ---- How gradients go ------------------------------------------------------------------------ */

#define FAST (10 * GIGABIT)

enum { WAYS = 3 };
static const uint64_t way_bytes[WAYS] = {44000000, 22000000, 11000000};

/* Two of these machines, with links of so many bytes/s. */
static uint32_t choose_way(plan_wire_t *state, double bytes_per_s, uint32_t present, double *step_s)
{
    const plan_node_t nodes[] = {machine(40, bytes_per_s), machine(40, bytes_per_s)};
    plan_job_t job = small_job();
    job.gradient_bytes = way_bytes[present];
    job.bucket_bytes = job.gradient_bytes / 32;
    return plan_choose_wire(state, &job, nodes, 2, direct, way_bytes, WAYS, present, step_s);
}

static uint32_t calls_until(plan_wire_t *state, double bytes_per_s, uint32_t present, uint32_t chosen)
{
    double step_s[WAYS];
    for (uint32_t calls = 1; calls < 1000; calls++)
        if (choose_way(state, bytes_per_s, present, step_s) == chosen) return calls;
    return 0;
}

static void gradients_are_rounded_where_it_pays(void **state)
{
    double step_s[WAYS];
    plan_wire_t wire = {0};
    (void)state;
    for (int call = 0; call < 20; call++) /* hidden behind the last backward pass, but for the last bucket */
        assert_int_equal(choose_way(&wire, FAST, 0, step_s), 0);
    assert_int_equal(calls_until(&wire, 2.4e6, 0, 2), 3);
    assert_int_equal(choose_way(&wire, 2.4e6, 0, step_s), 0); /* not in a row any more */
    assert_true(step_s[0] > 15 && step_s[1] < step_s[0] * 0.6 && step_s[2] < step_s[1] * 0.6);
    for (int call = 0; call < 20; call++) {
        assert_int_equal(choose_way(&wire, 2.4e6, 2, step_s), 2);
        assert_int_equal(choose_way(&wire, FAST, 0, step_s), 0);
    }
}

/* What an exacter way costs less than the gain for which it was left, it stays left; and to come and go takes
 * longer each time. */
static void ways_do_not_flap(void **state)
{
    plan_wire_t wire = {0};
    uint32_t kept = 0;
    (void)state;
    for (double bytes_per_s = 50e6; bytes_per_s < 1e9; bytes_per_s *= 1.01) {
        double step_s[WAYS];
        plan_wire_t up = {0}, down = {0};
        for (int call = 0; call < 5; call++) choose_way(&up, bytes_per_s, 0, step_s);
        for (int call = 0; call < 5; call++) choose_way(&down, bytes_per_s, 1, step_s);
        assert_true(up.wanted <= down.wanted);
        kept += up.wanted < down.wanted;
    }
    assert_in_range(kept, 1, 20);
    uint32_t before = 0;
    for (int turn = 0; turn < 5; turn++) {
        assert_int_equal(calls_until(&wire, 2.4e6, 0, 2), 3);
        const uint32_t back = calls_until(&wire, FAST, 2, 0);
        assert_true(back == (before > 0 ? 2 * before : 3));
        before = back;
    }
}

/* Each on a slow link: to let one go gains next to nothing, to be alone gains much. */
static void the_way_may_lead_through_a_bad_set(void **state)
{
    (void)state;
    const plan_job_t job = small_job();
    plan_node_t nodes[4];
    const uint32_t ids[] = {0, 1, 2, 3};
    for (uint32_t i = 0; i < 4; i++) nodes[i] = machine(40 - i, 8e6);
    assert_true(speed(&job, nodes, 1) > 1.5 * speed(&job, nodes, 15));
    for (uint32_t n = 4; n > 1; n--) {
        plan_leave_t leave = {0};
        uint32_t who = PLAN_NONE;
        for (uint32_t call = 0; call < PLAN_LEAVE_STEPS; call++) who = ask(&leave, nodes, ids, n);
        assert_int_equal(who, n - 1); /* the fastest stays */
    }
}

/* Whatever the machines, letting members go ends where the job is about as fast as any one of them. */
static void it_ends_no_worse_than_the_best_alone(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 8, 0);
    for (int round = 0; round < 100; round++) {
        plan_node_t nodes[8];
        uint32_t ids[8];
        uint32_t n = 1 + (uint32_t)rng_below(&rng, 8);
        const plan_job_t job = random_job(&rng, 1 + (uint32_t)rng_below(&rng, 64));
        double alone = 0;
        random_nodes(&rng, nodes, n);
        for (uint32_t i = 0; i < n; i++) {
            alone = fmax(alone, speed(&job, nodes, UINT64_C(1) << i));
            ids[i] = i;
        }
        plan_leave_t leave = {0};
        for (uint32_t call = 0; call < 8 * PLAN_LEAVE_STEPS; call++) {
            const uint32_t who = plan_leave_out(&leave, &job, nodes, ids, n, 1, direct, NULL);
            if (who == PLAN_NONE) continue;
            n--;
            memmove(&nodes[who], &nodes[who + 1], (n - who) * sizeof nodes[0]);
            memmove(&ids[who], &ids[who + 1], (n - who) * sizeof ids[0]);
        }
        assert_true(speed(&job, nodes, (UINT64_C(1) << n) - 1) >= alone / PLAN_LEAVE_GAIN);
    }
}

static void one_bad_step_takes_nobody_out(void **state)
{
    (void)state;
    plan_node_t nodes[] = {machine(40, GIGABIT), machine(30, GIGABIT), machine(20, GIGABIT)};
    const uint32_t ids[] = {0, 1, 2};
    plan_leave_t leave = {0};
    for (uint32_t call = 0; call < 200; call++) {
        nodes[2].up_bytes_per_s = call % PLAN_LEAVE_STEPS == 0 ? GIGABIT : 1.2e6;
        assert_int_equal(ask(&leave, nodes, ids, 3), PLAN_NONE);
    }
    leave = (plan_leave_t){0};
    for (uint32_t call = 0; call < 200; call++) { /* now this one, now that */
        nodes[1].up_bytes_per_s = call % 2 == 0 ? GIGABIT : 1.2e6;
        nodes[2].up_bytes_per_s = call % 2 == 1 ? GIGABIT : 1.2e6;
        assert_int_equal(ask(&leave, nodes, ids, 3), PLAN_NONE);
    }
}

static void equal_members_stay(void **state)
{
    (void)state;
    rng_t rng;
    plan_node_t nodes[8];
    uint32_t ids[8];
    plan_leave_t leave = {0};
    rng_seed(&rng, 6, 0);
    for (uint32_t call = 0; call < 300; call++) {
        for (uint32_t i = 0; i < 8; i++) {
            nodes[i] = machine(10 * (0.7 + 0.6 * rng_uniform(&rng)), INFINITY);
            ids[i] = i;
        }
        assert_int_equal(ask(&leave, nodes, ids, 8), PLAN_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_is_faster),
        cmocka_unit_test(shares_are_those_of_the_split),
        cmocka_unit_test(a_faster_part_never_makes_it_slower),
        cmocka_unit_test(bounds_are_bounds),
        cmocka_unit_test(the_best_set_is_found),
        cmocka_unit_test(many_nodes_are_searched_well),
        cmocka_unit_test(least_and_most_are_kept),
        cmocka_unit_test(speeds_add_up_where_nothing_stands_between),
        cmocka_unit_test(what_is_not_hidden_is_exposed),
        cmocka_unit_test(a_slow_link_is_left_out_and_a_cable_named),
        cmocka_unit_test(a_cable_goes_where_it_helps),
        cmocka_unit_test(unequal_machines_reach_nearly_their_sum),
        cmocka_unit_test(reductions_take_what_the_steps_show),
        cmocka_unit_test(gradients_are_rounded_where_it_pays),
        cmocka_unit_test(ways_do_not_flap),
        cmocka_unit_test(a_burden_is_named_after_some_steps),
        cmocka_unit_test(the_way_may_lead_through_a_bad_set),
        cmocka_unit_test(it_ends_no_worse_than_the_best_alone),
        cmocka_unit_test(one_bad_step_takes_nobody_out),
        cmocka_unit_test(equal_members_stay),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
