/* Predicts the step of one set. */
#include "core/partition/plan.h"

#include <math.h>
#include <string.h>

/* Of forward and backward, the part of backward. */
#define BACKWARD (2.0 / 3.0)
/* A set is limited by its links if without them it would be faster by more than this. */
#define LINK_GAIN 1.05

/* Of the search for the time: the more, the fewer leases are left to be given one by one. */
#define ROUNDS 14

/* One set in work. */
typedef struct team {
    const plan_job_t *job;
    uint32_t n, n_buckets;
    const plan_node_t *members[PLAN_NODES_MAX];
    uint32_t index[PLAN_NODES_MAX]; /* of the node that the member is */
    double moving[PLAN_NODES_MAX];  /* c_i */
    double reduce_s;                /* R */
    uint32_t share[PLAN_NODES_MAX];
} team_t;

void plan_price_direct(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                       plan_reduction_t *reduction)
{
    (void)context;
    const double each_way = 2.0 * (n - 1) / n * (double)bytes;
    reduction->seconds = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double slower = fmin(members[i]->up_bytes_per_s, members[i]->down_bytes_per_s);
        reduction->seconds = fmax(reduction->seconds, each_way / slower);
        reduction->moved[i] = 2 * each_way;
    }
}

void plan_price_scaled(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                       plan_reduction_t *reduction)
{
    const plan_scaled_t *scaled = context;
    const plan_price_fn fn = scaled->price.fn != NULL ? scaled->price.fn : plan_price_direct;
    fn(scaled->price.context, members, n, bytes, reduction);
    reduction->seconds *= scaled->factor;
}

bool plan_fits(const plan_job_t *job, const plan_node_t *node)
{
    return node->memory_bytes == 0 || node->memory_bytes >= job->memory_bytes;
}

/* ---- The split ------------------------------------------------------------------------------- */

/* f_i for a share of so many leases. */
static double ready_at(const team_t *team, uint32_t i, uint32_t leases)
{
    const plan_node_t *node = team->members[i];
    const double samples = (double)leases * (double)team->job->batch / team->job->leases;
    const double computed = node->step_s + samples * node->sample_s;
    const double window = BACKWARD * fmin(samples, node->micro_batch) * node->sample_s;
    const double hidden = 1 - 1.0 / team->n_buckets;
    return fmax(computed + team->moving[i], computed + hidden * (team->reduce_s - window));
}

/* The most leases that it has done by then. */
static uint32_t done_by(const team_t *team, uint32_t i, double time)
{
    uint32_t low = 0, high = team->job->leases;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (ready_at(team, i, middle) <= time)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static uint32_t all_done_by(const team_t *team, double time, uint32_t *share)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < team->n; i++) sum += share[i] = done_by(team, i, time);
    return sum;
}

/* Shares with the least max f_i, which is returned: all leases that are done by a time just too short, the
 * rest one by one to whoever has it soonest. */
static double split(team_t *team)
{
    const uint32_t leases = team->job->leases;
    double low = 0, high = INFINITY;
    for (uint32_t i = 0; i < team->n; i++) high = fmin(high, ready_at(team, i, leases));
    for (int round = 0; round < ROUNDS; round++) {
        const double middle = (low + high) / 2;
        if (all_done_by(team, middle, team->share) <= leases)
            low = middle;
        else
            high = middle;
    }
    for (uint32_t given = all_done_by(team, low, team->share); given < leases; given++) {
        uint32_t soonest = 0;
        for (uint32_t i = 1; i < team->n; i++)
            if (ready_at(team, i, team->share[i] + 1) < ready_at(team, soonest, team->share[soonest] + 1))
                soonest = i;
        team->share[soonest]++;
    }
    double last = 0;
    for (uint32_t i = 0; i < team->n; i++) last = fmax(last, ready_at(team, i, team->share[i]));
    return last;
}

/* ---- The prediction -------------------------------------------------------------------------- */

static void gather(const plan_job_t *job, const plan_node_t *nodes, uint64_t set, team_t *team)
{
    team->job = job;
    team->n = 0;
    for (uint32_t i = 0; i < PLAN_NODES_MAX; i++)
        if ((set >> i & 1) != 0) {
            team->members[team->n] = &nodes[i];
            team->index[team->n++] = i;
        }
    const uint64_t buckets = (job->gradient_bytes + job->bucket_bytes - 1) / job->bucket_bytes;
    team->n_buckets = buckets < 1 ? 1 : buckets > UINT32_MAX ? UINT32_MAX : (uint32_t)buckets;
}

static void take_reduction(team_t *team, const plan_reduction_t *reduction)
{
    team->reduce_s = reduction->seconds;
    for (uint32_t i = 0; i < team->n; i++) {
        team->moving[i] = reduction->moved[i] * team->members[i]->byte_s;
        team->reduce_s = fmax(team->reduce_s, team->moving[i]); /* no faster than its processor */
    }
}

static double step_of(team_t *team)
{
    const double last = split(team);
    return team->n == 1 ? last : last + team->reduce_s / team->n_buckets + team->job->commit_s;
}

/* The same set if links limited nothing. */
static double step_without_links(const team_t *team, const plan_reduction_t *reduction)
{
    team_t free_of_links = *team;
    plan_reduction_t moved = *reduction;
    moved.seconds = 0;
    take_reduction(&free_of_links, &moved);
    return step_of(&free_of_links);
}

static double slower_way(const plan_node_t *node)
{
    return fmin(node->up_bytes_per_s, node->down_bytes_per_s);
}

/* Index of the node with the slowest link, PLAN_NONE where the two slowest are alike. */
static uint32_t slowest_link(const team_t *team)
{
    uint32_t slowest = 0;
    bool alone = true;
    for (uint32_t i = 1; i < team->n; i++) {
        const double here = slower_way(team->members[i]), least = slower_way(team->members[slowest]);
        if (here < least) {
            alone = here < least * 0.98;
            slowest = i;
        } else if (here <= least * 1.02) {
            alone = false;
        }
    }
    return alone ? team->index[slowest] : PLAN_NONE;
}

uint64_t plan_everyone(uint32_t n)
{
    return n >= PLAN_NODES_MAX ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

void plan_predict(const plan_job_t *job, const plan_node_t *nodes, uint64_t set, plan_price_t price,
                  plan_prediction_t *prediction)
{
    team_t team;
    plan_reduction_t reduction = {0};
    gather(job, nodes, set, &team);
    if (team.n > 1)
        (price.fn != NULL ? price.fn : plan_price_direct)(price.context, team.members, team.n,
                                                          job->gradient_bytes, &reduction);
    take_reduction(&team, &reduction);
    memset(prediction, 0, sizeof *prediction);
    prediction->step_s = step_of(&team);
    prediction->samples_per_s = (double)job->batch / prediction->step_s;
    prediction->reduce_s = team.n > 1 ? team.reduce_s : 0;
    double worked = 0;
    for (uint32_t i = 0; i < team.n; i++) {
        const double samples = (double)team.share[i] * (double)job->batch / job->leases;
        worked = fmax(worked, team.members[i]->step_s + samples * team.members[i]->sample_s + team.moving[i]);
        prediction->share[team.index[i]] = team.share[i];
    }
    prediction->exposed_s = fmax(prediction->step_s - worked, 0);
    prediction->by = PLAN_NONE;
    prediction->unlinked = (double)job->batch / step_without_links(&team, &reduction);
    if (prediction->unlinked > prediction->samples_per_s * LINK_GAIN) {
        prediction->limit = PLAN_LIMIT_LINK;
        prediction->by = slowest_link(&team);
    }
}

double plan_bound(const plan_job_t *job, const plan_node_t *nodes, uint64_t set)
{
    team_t team;
    plan_reduction_t reduction = {0};
    gather(job, nodes, set, &team);
    const double bytes = (double)job->gradient_bytes;
    for (uint32_t i = 0; i < team.n && team.n > 1; i++) {
        reduction.moved[i] = 2 * bytes;
        reduction.seconds = fmax(reduction.seconds, bytes / slower_way(team.members[i]));
    }
    take_reduction(&team, &reduction);
    return (double)job->batch / step_of(&team);
}
