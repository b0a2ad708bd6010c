/* The tuner's first half: build the candidates, price them, take the cheapest. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/collective/link_model.h"

/* More chunks than this are priced as this many larger ones: the start and the end of the pipeline then look
 * up to 1/256 longer than they are, the same for all candidates. */
enum { MOST_PRICED_CHUNKS = 256 };

typedef struct candidate {
    sched_algorithm_t algorithm;
    double *weights; /* (world) or NULL: equal */
    double handicap; /* its time counts this much: what the model does not see */
} candidate_t;

/* A hop that is late delays all behind it: the ring has 2 (n - 1) of them, the trees 4 log2 n. */
#define HOPS_HANDICAP 1.06

/* All ranks add all: where it is not faster by a hop, it takes a processor's time for nothing. */
#define ADDS_HANDICAP 1.02

static double slower_way(const link_port_t *port)
{
    return fmin(port->up_bytes_per_s, port->down_bytes_per_s);
}

/*
 * Shares f that minimise the direct all-reduce's busiest port: rank i carries [1 + (n - 2) f_i] S each way
 * (DESIGN 4.1), so within time T it can own f_i = (T B_i / S - 1) / (n - 2). T is the longer of S / min B
 * (the slowest must send its contribution and receive the result; it then owns nothing) and (2n - 2) S / sum
 * B (all ports full).
 */
static void balance(const link_model_t *links, double *weights)
{
    const uint32_t n = links->world;
    double least = INFINITY, sum = 0, total = 0;
    for (uint32_t i = 0; i < n; i++) {
        least = fmin(least, slower_way(&links->ports[i]));
        sum += slower_way(&links->ports[i]);
    }
    const double t = fmax(1 / least, (2.0 * n - 2) / sum);
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = t * slower_way(&links->ports[i]) - 1;
        if (weights[i] < 1e-3) weights[i] = 0; /* not worth its messages */
        total += weights[i];
    }
    for (uint32_t i = 0; i < n; i++) weights[i] = total > 0 ? weights[i] / total : 1.0 / n;
}

/* In proportion to the ports: what a rank reduces and sends out fits its link when latency, not load,
 * decides. */
static void proportional(const link_model_t *links, double *weights)
{
    double sum = 0;
    for (uint32_t i = 0; i < links->world; i++) sum += slower_way(&links->ports[i]);
    for (uint32_t i = 0; i < links->world; i++) weights[i] = slower_way(&links->ports[i]) / sum;
}

static bool unequal(const link_model_t *links)
{
    for (uint32_t i = 1; i < links->world; i++)
        if (fabs(slower_way(&links->ports[i]) / slower_way(&links->ports[0]) - 1) > 0.02) return true;
    return false;
}

bool link_shares(const link_model_t *links, double *weights)
{
    if (links->world > 2 && unequal(links)) {
        balance(links, weights);
        return true;
    }
    for (uint32_t i = 0; i < links->world; i++) weights[i] = 1.0 / links->world;
    return false;
}

double link_direct_seconds(const link_model_t *links, const double *weights, double bytes, double *moved)
{
    double longest = 0;
    for (uint32_t i = 0; i < links->world; i++) {
        const double each_way = (1 + (links->world - 2) * weights[i]) * bytes;
        longest = fmax(longest, each_way / slower_way(&links->ports[i]));
        if (moved != NULL) moved[i] = 2 * each_way;
    }
    return longest;
}

/* How often the busiest port carries the data at least, of algorithms that are not for bulk: long ones need
 * no simulation. */
static double least_passes(sched_algorithm_t algorithm, uint32_t world)
{
    if (algorithm == SCHED_ONE_SHOT) return world - 1;
    return algorithm == SCHED_DOUBLING ? floor(log2(world)) : 0;
}

static double bound(sched_algorithm_t algorithm, const link_model_t *links, double bytes)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < links->world; i++) least = fmin(least, slower_way(&links->ports[i]));
    return least_passes(algorithm, links->world) * bytes / least;
}

static inspan_status_t price_candidate(const sched_request_t *asked, const link_model_t *links,
                                       const schedule_t **ranks, ns_t *time)
{
    sched_request_t request = *asked;
    inspan_status_t status = INSPAN_OK;
    memset(ranks, 0, request.world * sizeof *ranks);
    for (request.rank = 0; request.rank < request.world && status == INSPAN_OK; request.rank++) {
        schedule_t *built = NULL;
        status = sched_build(&request, &built);
        ranks[request.rank] = built;
    }
    if (status == INSPAN_OK) status = price_schedule(ranks, request.element_size, links, time);
    for (uint32_t r = 0; r < request.world; r++) sched_free((schedule_t *)(uintptr_t)ranks[r]);
    return status;
}

static uint64_t priced_chunk_bytes(uint64_t count, uint32_t element_size, uint64_t chunk_bytes)
{
    const double bytes = (double)count * element_size;
    const double least = ceil(bytes / MOST_PRICED_CHUNKS);
    return least > (double)chunk_bytes && least < 0x1p63 ? (uint64_t)least : chunk_bytes;
}

/* The candidates for a collective; shares (2, world) takes weights. Their number. */
static size_t find_candidates(sched_collective_t collective, const link_model_t *links, double *shares,
                              candidate_t candidates[SCHED_ALGORITHMS + 2])
{
    size_t n = 0;
    if (sched_supports(collective, SCHED_DIRECT)) candidates[n++] = (candidate_t){SCHED_DIRECT, NULL, 1};
    if (collective == SCHED_ALLREDUCE && links->world > 2 && unequal(links)) {
        balance(links, shares);
        proportional(links, shares + links->world);
        candidates[n++] = (candidate_t){SCHED_DIRECT, shares, 1};
        candidates[n++] = (candidate_t){SCHED_DIRECT, shares + links->world, 1};
    }
    if (collective == SCHED_BARRIER) return n; /* there is only one */
    if (sched_supports(collective, SCHED_RING))
        candidates[n++] = (candidate_t){SCHED_RING, NULL, HOPS_HANDICAP};
    if (sched_supports(collective, SCHED_TREES))
        candidates[n++] = (candidate_t){SCHED_TREES, NULL, HOPS_HANDICAP};
    if (sched_supports(collective, SCHED_DOUBLING))
        candidates[n++] = (candidate_t){SCHED_DOUBLING, NULL, HOPS_HANDICAP};
    if (sched_supports(collective, SCHED_ONE_SHOT))
        candidates[n++] = (candidate_t){SCHED_ONE_SHOT, NULL, ADDS_HANDICAP};
    return n;
}

inspan_status_t price_choose(sched_collective_t collective, uint32_t world, uint64_t count,
                             uint32_t element_size, uint64_t chunk_bytes, const link_model_t *links,
                             sched_algorithm_t *algorithm, double *weights, ns_t *time)
{
    if (world == 0 || world > LINK_MODEL_MOST_RANKS || links->world != world) return INSPAN_INVALID;
    double *shares = calloc(2 * (size_t)world, sizeof *shares), best = INFINITY;
    const schedule_t **ranks = calloc(world, sizeof *ranks);
    candidate_t candidates[SCHED_ALGORITHMS + 2];
    inspan_status_t status = shares == NULL || ranks == NULL ? INSPAN_NO_MEMORY : INSPAN_OK;
    const size_t n = status == INSPAN_OK ? find_candidates(collective, links, shares, candidates) : 0;
    if (status == INSPAN_OK && n == 0) status = INSPAN_INVALID;
    for (size_t i = 0; i < n && status == INSPAN_OK; i++) {
        const candidate_t *candidate = &candidates[i];
        const sched_request_t request = {.collective = collective,
                                         .algorithm = candidate->algorithm,
                                         .world = world,
                                         .count = count,
                                         .element_size = element_size,
                                         .chunk_bytes = priced_chunk_bytes(count, element_size, chunk_bytes),
                                         .weights = candidate->weights};
        if (bound(candidate->algorithm, links, (double)count * element_size) * 1e9 > best) continue;
        ns_t found = 0;
        status = price_candidate(&request, links, ranks, &found);
        if (status != INSPAN_OK || !((double)found * candidate->handicap < best)) continue;
        best = (double)found * candidate->handicap;
        *time = found;
        *algorithm = candidate->algorithm;
        for (uint32_t r = 0; r < world; r++)
            weights[r] = candidate->weights ? candidate->weights[r] : 1.0 / world;
    }
    free(shares);
    free(ranks);
    return status;
}
