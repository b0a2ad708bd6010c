#include "cli/plan_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/collective/link_model.h"

/* A LAN: one way from process to process, and what a message costs at each end. */
#define LATENCY     (100 * NS_PER_US)
#define PER_MESSAGE (5 * NS_PER_US)
/* As the communicator does it: what a rank sends in all goes in one hop up to this. */
#define ONE_SHOT_MOST 49152
/* Longer chunks than in truth for long reductions: their start and end look up to a hundredth longer. */
#define MOST_CHUNKS 96
#define LEAST_CHUNK 16384
#define UNLIMITED   1e12 /* bytes/s: for ports without a known limit */
#define PRICES      8192 /* a power of two */

typedef struct known_price {
    uint64_t hash; /* 0: a free place */
    double seconds;
} known_price_t;

struct plan_pricer {
    uint64_t bucket_bytes;
    uint32_t used;
    known_price_t prices[PRICES];
};

plan_pricer_t *plan_pricer_open(uint64_t bucket_bytes)
{
    plan_pricer_t *pricer = calloc(1, sizeof *pricer);
    if (pricer != NULL) pricer->bucket_bytes = bucket_bytes;
    return pricer;
}

void plan_pricer_close(plan_pricer_t *pricer)
{
    free(pricer);
}

static int by_speed(const void *a, const void *b)
{
    const link_port_t *x = a, *y = b;
    if (x->up_bytes_per_s != y->up_bytes_per_s) return x->up_bytes_per_s < y->up_bytes_per_s ? -1 : 1;
    return (x->down_bytes_per_s > y->down_bytes_per_s) - (x->down_bytes_per_s < y->down_bytes_per_s);
}

static inspan_status_t simulate(sched_algorithm_t algorithm, const link_port_t *ports, uint32_t n,
                                uint64_t bytes, double *seconds)
{
    const schedule_t *ranks[PLAN_NODES_MAX] = {NULL};
    ns_t latency[PLAN_NODES_MAX * PLAN_NODES_MAX];
    inspan_status_t status = INSPAN_OK;
    ns_t time = 0;
    for (uint32_t i = 0; i < n * n; i++) latency[i] = LATENCY;
    const link_model_t links = {n, ports, latency, INFINITY, PER_MESSAGE};
    double shares[PLAN_NODES_MAX];
    link_shares(&links, shares); /* as the workers do when they have measured them */
    for (uint32_t r = 0; r < n && status == INSPAN_OK; r++) {
        const uint64_t each = bytes / MOST_CHUNKS;
        const sched_request_t request = {.collective = SCHED_ALLREDUCE,
                                         .algorithm = algorithm,
                                         .world = n,
                                         .rank = r,
                                         .count = bytes / 4,
                                         .element_size = 4,
                                         .weights = algorithm == SCHED_DIRECT ? shares : NULL,
                                         .chunk_bytes = each < LEAST_CHUNK ? LEAST_CHUNK : each};
        schedule_t *built = NULL;
        status = sched_build(&request, &built);
        ranks[r] = built;
    }
    if (status == INSPAN_OK) status = price_schedule(ranks, 4, &links, &time);
    for (uint32_t r = 0; r < n; r++) sched_free((schedule_t *)(uintptr_t)ranks[r]);
    *seconds = ns_to_s(time);
    return status;
}

/* What each sends and receives. */
static void find_moved(const link_port_t *ports, uint32_t n, double bytes, bool small, double *moved)
{
    double shares[PLAN_NODES_MAX];
    const link_model_t links = {.world = n, .ports = ports};
    link_shares(&links, shares);
    link_direct_seconds(&links, shares, bytes, moved);
    for (uint32_t i = 0; i < n && small; i++) moved[i] = 2 * bytes * (n - 1); /* one-shot */
}

static known_price_t *find(plan_pricer_t *pricer, uint64_t hash)
{
    uint64_t at = hash % PRICES;
    while (pricer->prices[at].hash != 0 && pricer->prices[at].hash != hash) at = (at + 1) % PRICES;
    return &pricer->prices[at];
}

/* Never fails: where the simulation cannot be made, the closed form stands in. */
static void price(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                  plan_reduction_t *reduction)
{
    plan_pricer_t *pricer = context;
    link_port_t ports[PLAN_NODES_MAX] = {{0}};
    plan_price_direct(NULL, members, n, bytes, reduction);
    const bool small = pricer->bucket_bytes <= ONE_SHOT_MOST / (n - 1) || bytes <= ONE_SHOT_MOST / (n - 1);
    for (uint32_t i = 0; i < n; i++) {
        ports[i] = (link_port_t){fmin(members[i]->up_bytes_per_s, UNLIMITED),
                                 fmin(members[i]->down_bytes_per_s, UNLIMITED)};
    }
    find_moved(ports, n, (double)bytes, small, reduction->moved);
    qsort(ports, n, sizeof ports[0], by_speed);
    const uint64_t hash = hash64(ports, n * sizeof ports[0], bytes) | 1;
    known_price_t *known = find(pricer, hash);
    if (known->hash == 0) {
        double seconds = 0;
        if (simulate(small ? SCHED_ONE_SHOT : SCHED_DIRECT, ports, n, bytes, &seconds) != INSPAN_OK) return;
        if (pricer->used == PRICES / 2) { /* begins anew: never full, so that every search ends */
            memset(pricer->prices, 0, sizeof pricer->prices);
            pricer->used = 0;
            known = find(pricer, hash);
        }
        *known = (known_price_t){hash, seconds};
        pricer->used++;
    }
    reduction->seconds = known->seconds;
}

plan_price_t plan_pricer_price(plan_pricer_t *pricer)
{
    return (plan_price_t){price, pricer};
}
