/*
 * The leader, once a step: would the job do better without one of its members, with gradients in another
 * type, or in other buckets? Here is what it knows of the members' speeds and links, and of the steps as they
 * go, for predictions of how they would go otherwise (core/partition/plan.h); driver_leave.c, driver_wire.c
 * and driver_layout.c decide by them.
 */
#include <math.h>

#include "core/collective/link_model.h"
#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

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
    const driver_measured_t *measured = context;
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
    if (elastic_full_set(e->machine) != plan_everyone(n)) return false;
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
static void gather_links(const inspan_elastic_t *e, plan_node_t *nodes, driver_measured_t *measured)
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
static double scale_of(const driver_outlook_t *outlook)
{
    const driver_measured_t *measured = &outlook->measured;
    const plan_node_t *members[ELASTIC_MEMBERS_MAX];
    double moved[PLAN_NODES_MAX];
    if (!measured->links || !(measured->reduce_s > 0)) return 1;
    for (uint32_t i = 0; i < measured->n; i++) members[i] = &outlook->nodes[i];
    const double most = measured->reduce_s / by_links(members, measured->n, (double)measured->bytes, moved);
    if (most <= 1 || !(measured->step_s > 0)) return fmin(most, 1);
    return plan_reduction_factor(&outlook->job, outlook->nodes, measured->n, outlook->scaled.price,
                                 measured->step_s, most);
}

/* false: this member does not lead, or the pace of one is not known. */
static bool look(inspan_elastic_t *e, driver_outlook_t *outlook)
{
    const uint32_t n = e->world;
    const uint64_t bytes = ddp_buckets_wire_bytes(&e->buckets, e->buckets.wire); /* as what was measured */
    pthread_mutex_lock(&e->lock);
    outlook->measured = (driver_measured_t){.reduce_s = ns_to_s(driver_pace_reduce_ns(e)),
                                            .step_s = ns_to_s(driver_pace_whole_step(e)),
                                            .steps = e->pace.n_durations,
                                            .n = n,
                                            .bytes = bytes};
    const bool known = elastic_is_leader(e->machine) && elastic_phase(e->machine) == ELASTIC_RUN &&
                       gather(e, n, outlook->nodes);
    if (known) gather_links(e, outlook->nodes, &outlook->measured);
    pthread_mutex_unlock(&e->lock);
    if (!known) return false;
    outlook->job = (plan_job_t){.gradient_bytes = bytes,
                                .bucket_bytes = bytes / (e->buckets.n > 1 ? e->buckets.n - 1 : 1) + 1,
                                .batch = e->options.batch,
                                .leases = e->buckets.leases};
    outlook->scaled = (plan_scaled_t){{price, &outlook->measured}, 1};
    outlook->scaled.factor = scale_of(outlook);
    outlook->price = (plan_price_t){plan_price_scaled, &outlook->scaled};
    return true;
}

void driver_look_ahead(inspan_elastic_t *e, uint64_t step)
{
    driver_outlook_t outlook;
    driver_shuffle_layout(e, step);
    const bool leave = driver_may_leave_out(e, step), wire = driver_may_rewire(e),
               lay = driver_may_lay_out(e);
    if (e->world < 2 || e->world > PLAN_NODES_MAX || (!leave && !wire && !lay) || !look(e, &outlook)) return;
    if (leave) driver_leave_out(e, step, &outlook);
    if (wire) driver_choose_wire(e, &outlook);
    if (lay) driver_choose_layout(e, step, &outlook);
}
