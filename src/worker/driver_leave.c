/*
 * The leader, once a step: is the job predicted to be faster without one of its members? Then it says so to
 * the manager, who decides. The step machine has already given few leases, or none, to who is slow; what is
 * left is that its update, its rounding and its link hold the others up.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/collective/link_model.h"
#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

/* A new view costs time itself, so short jobs go on as they are; and what was just measured may be chance. */
#define LEFT_LEAST (20 * NS_PER_S) /* of the training, as the steps go now */
#define AGE_LEAST  (5 * NS_PER_S)  /* of the view */
/* Where no link was seen yet that explains the steps: whom the others wait for is open. */
#define AGE_UNSEEN (20 * NS_PER_S)
#define EXPLAINED  3 /* times that reductions may take longer than the links say */

typedef struct measured {
    double reduce_s; /* of all gradients, among n members */
    double step_s;   /* of whole steps; 0: not known */
    uint32_t n;
    uint64_t bytes;
    bool links; /* the members' ports are measured */
} measured_t;

static double on_wire(uint32_t n)
{
    return n < 2 ? 0 : 2.0 * (n - 1) / n;
}

/* Of these members by their ports, with the shares of the sums that they would have. */
static double by_links(const plan_node_t *const *members, uint32_t n, double bytes, double *moved)
{
    link_port_t ports[PLAN_NODES_MAX];
    double weights[PLAN_NODES_MAX];
    const link_model_t model = {.world = n, .ports = ports};
    for (uint32_t i = 0; i < n; i++)
        ports[i] = (link_port_t){members[i]->up_bytes_per_s, members[i]->down_bytes_per_s};
    link_shares(&model, weights);
    return link_direct_seconds(&model, weights, bytes, moved);
}

/* Without measured links: each port carries 2 (n-1)/n of the bytes each way, what was measured among all is
 * taken for fewer. */
static void price(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                  plan_reduction_t *reduction)
{
    const measured_t *measured = context;
    if (measured->links) {
        reduction->seconds = by_links(members, n, (double)bytes, reduction->moved);
        return;
    }
    const double part = (double)bytes / (double)measured->bytes;
    reduction->seconds = measured->reduce_s * part * on_wire(n) / on_wire(measured->n);
    for (uint32_t i = 0; i < n; i++) reduction->moved[i] = on_wire(n) * (double)bytes;
}

/* Lock held. false: not every full member's pace is known, or some are no full members yet. */
static bool gather(const inspan_elastic_t *e, uint32_t n, plan_node_t *nodes)
{
    const double lease = (double)e->options.batch / (double)e->buckets.leases;
    if (elastic_full_set(e->machine) != (n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const elastic_pace_t pace = elastic_pace_of(e->machine, i);
        if (pace.lease_ns == 0 || pace.most == 0) return false;
        nodes[i] = (plan_node_t){.sample_s = (double)pace.lease_ns / lease / NS_PER_S,
                                 .step_s = (double)pace.step_ns / NS_PER_S,
                                 .up_bytes_per_s = INFINITY,
                                 .down_bytes_per_s = INFINITY,
                                 .micro_batch = (uint32_t)ceil(fmax(pace.last, 1) * lease)};
    }
    return true;
}

/*
 * Lock held, after gather. What the members' links are. A port that never was the one to wait for is taken
 * for a cable: whoever goes surely goes for what was seen of it, and without it the others show what they
 * have.
 */
static void gather_links(const inspan_elastic_t *e, plan_node_t *nodes, measured_t *measured)
{
    double up[ELASTIC_MEMBERS_MAX], down[ELASTIC_MEMBERS_MAX];
    measured->links = driver_links_ports(e, up, down);
    for (uint32_t i = 0; i < measured->n && measured->links; i++) {
        nodes[i].up_bytes_per_s = up[i] > 0 ? up[i] : PLAN_CABLE_BYTES_PER_S;
        nodes[i].down_bytes_per_s = down[i] > 0 ? down[i] : PLAN_CABLE_BYTES_PER_S;
    }
}

/*
 * How much of what the links say reductions take. A member that waits for others measures more than they
 * take, never less: so not more than was measured; and within that as much as the steps show, for moving
 * bytes takes processors' time, which a link does not say.
 */
static double scale_of(measured_t *measured, const plan_job_t *job, const plan_node_t *nodes)
{
    const plan_node_t *members[ELASTIC_MEMBERS_MAX];
    double moved[PLAN_NODES_MAX];
    if (!measured->links || !(measured->reduce_s > 0)) return 1;
    for (uint32_t i = 0; i < measured->n; i++) members[i] = &nodes[i];
    const double most = measured->reduce_s / by_links(members, measured->n, (double)measured->bytes, moved);
    if (most <= 1 || !(measured->step_s > 0)) return fmin(most, 1);
    return plan_reduction_factor(job, nodes, measured->n, (plan_price_t){price, measured}, measured->step_s,
                                 most);
}

static double slower_way(const plan_node_t *node)
{
    return fmin(node->up_bytes_per_s, node->down_bytes_per_s);
}

static void propose(inspan_elastic_t *e, uint64_t step, uint32_t index, const plan_node_t *nodes, double gain)
{
    local_verdict_t verdict = {
        .step = step, .started = step, .about = e->numbers[index], .factor = gain, .leave = true};
    const plan_node_t *node = &nodes[index];
    char link[64] = "";
    double fastest = 0;
    for (uint32_t i = 0; i < e->world; i++) fastest = fmax(fastest, slower_way(&nodes[i]));
    if (isfinite(fastest) && slower_way(node) < fastest / 2)
        snprintf(link, sizeof link, ", its link carries %.3g MB/s", slower_way(node) / 1e6);
    snprintf(verdict.evidence, sizeof verdict.evidence,
             "%.1f %% faster (it computes %.3g samples/s, its update takes %.3g s%s)", 100 * (gain - 1),
             1 / node->sample_s, node->step_s, link);
    e->views->verdict(e->views->context, &verdict);
}

static bool worth_it(const inspan_elastic_t *e, uint64_t step)
{
    const ns_t age = os_now() - e->pace.view_at;
    const uint64_t steps = step + 1 - e->pace.view_step, left = e->options.steps - (step + 1);
    if (steps == 0 || step < e->pace.view_step || age < AGE_LEAST) return false;
    return (double)left * (double)age / (double)steps >= (double)LEFT_LEAST;
}

void driver_look_for_burden(inspan_elastic_t *e, uint64_t step)
{
    plan_node_t nodes[ELASTIC_MEMBERS_MAX];
    const uint32_t n = e->world;
    double gain = 1;
    if (e->options.equal_shares || e->views->verdict == NULL || n < 2 || n > PLAN_NODES_MAX) return;
    if (!worth_it(e, step)) return;
    pthread_mutex_lock(&e->lock);
    const bool known =
        elastic_is_leader(e->machine) && elastic_phase(e->machine) == ELASTIC_RUN && gather(e, n, nodes);
    measured_t measured = {.reduce_s = ns_to_s(driver_pace_reduce_ns(e)),
                           .step_s = ns_to_s(driver_pace_whole_step(e)),
                           .n = n,
                           .bytes = e->buckets.wire_bytes};
    if (known) gather_links(e, nodes, &measured);
    pthread_mutex_unlock(&e->lock);
    if (!known) return;
    const plan_job_t job = {.gradient_bytes = e->buckets.wire_bytes,
                            .bucket_bytes =
                                e->buckets.wire_bytes / (e->buckets.n > 1 ? e->buckets.n - 1 : 1) + 1,
                            .batch = e->options.batch,
                            .leases = e->buckets.leases};
    plan_scaled_t scaled = {{price, &measured}, scale_of(&measured, &job, nodes)};
    const bool explained = measured.links && scaled.factor <= EXPLAINED;
    if (!explained && os_now() - e->pace.view_at < AGE_UNSEEN) return;
    const plan_price_t by = {plan_price_scaled, &scaled};
    const uint32_t burden = plan_leave_out(&e->leave, &job, nodes, e->numbers, n, 1, by, &gain);
    if (burden != PLAN_NONE) propose(e, step, burden, nodes, gain);
}
