/*
 * The tuner: which schedule, with whose shards, carries an all-reduce of which size.
 *
 *   core/collective/meter, fed by tx.c and exec.c      what the own streams took: this rank's row
 *     | all-reduce of the table of links, a row a rank
 *   the table --- as it was: nothing more is sent
 *     | rank 0: link model, price_choose for each tier of sizes
 *   the choices, by broadcast --> plan.c, from the next all-reduce on
 *
 * Rank 0 chooses for all: a processor that rounds otherwise must not choose otherwise.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/internal.h"
#include "core/collective/link_model.h"
#include "platform/os/os_time.h"

#define TIER_LEAST     4096 /* bytes of the first tier; each next one is TIER_FACTOR times as long */
#define TIER_FACTOR    4
#define CHANGED        1.15f /* a link by this factor, a latency by its cube: choose anew */
#define SHARES_GAIN    1.05  /* other shares must be faster by this factor */
#define ALIKE          0.88
#define ALIKE_WAVERING 0.5
#define UNKNOWN_PORT   125e6 /* bytes per second: 1 Gbit/s, until something was measured */
#define PER_MESSAGE    (5 * NS_PER_US)
#define REDUCING       4e9 /* bytes per second */
#define MOST_CHUNKS    64  /* that a choice is priced with: it has to be quick */
#define WEIGHT_ONE     65535
#define DELAYS_EVERY   (100 * NS_PER_MS) /* asked of the system */

/*
 * ---- The table ----
 *
 * A row a rank, 0: not known. (world) bytes per second towards each other, in its own place of its port,
 * negative where they waver (core/collective/meter.h); (world) nanoseconds to each other's kernel and back,
 * halved, in its own place of a hop from program to program.
 */
static size_t row_at(uint32_t rank, uint32_t world)
{
    return (size_t)rank * 2 * world;
}

static size_t cells(uint32_t world)
{
    return row_at(world, world);
}

void tune_note(inspan_comm_t *comm)
{
    const ns_t now = comm->transport->now(comm->transport_self);
    const bool delays = now - comm->delays_at >= DELAYS_EVERY;
    meter_rest(&comm->meter, now);
    if (delays) comm->delays_at = now;
    pthread_mutex_lock(&comm->lock);
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        const bool own = peer == comm->rank;
        comm->measured[peer] = (float)(own ? meter_up(&comm->meter) : meter_towards(&comm->meter, peer));
        if (delays && !own)
            comm->measured[comm->world + peer] = (float)comm->transport->latency(comm->transport_self, peer);
    }
    pthread_mutex_unlock(&comm->lock);
}

void comm_links(inspan_comm_t *comm, float *row)
{
    pthread_mutex_lock(&comm->lock);
    memcpy(row, comm->measured, 2 * comm->world * sizeof *row);
    pthread_mutex_unlock(&comm->lock);
    row[comm->world + comm->rank] = (float)comm->tune.hop;
}

static bool differs(float now, float before, float factor)
{
    now = fabsf(now);
    before = fabsf(before);
    return now > before * factor || before > now * factor;
}

static bool links_differ(const float *table, const float *before, uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++)
        for (uint32_t i = 0; i < 2 * world; i++) {
            const size_t at = row_at(rank, world) + i;
            if (differs(table[at], before[at], i < world ? CHANGED : CHANGED * CHANGED * CHANGED))
                return true;
        }
    return false;
}

/* ---- The model ------------------------------------------------------------------------------- */

/* What the senders' streams together bring to a rank, where its own port is what holds them back; 0: not
 * seen. */
static double port_down(const float *table, uint32_t world, uint32_t rank)
{
    double sum = 0;
    bool wavers = false;
    for (uint32_t from = 0; from < world; from++) {
        if (from == rank) continue;
        const float rate = table[row_at(from, world) + rank];
        if (rate == 0) return 0;
        sum += fabsf(rate);
        wavers |= rate < 0;
    }
    return wavers ? -sum : sum;
}

/* Ports that are about as fast as the fastest (`most`, negative where that wavers) are as fast: less is
 * noise, and unequal shares cost. Where one of the two wavers, the other would have to be slower by far. */
static double about(double rate, double most)
{
    const double speed = fabs(rate), fastest = fabs(most);
    const bool wavers = rate < 0 || most < 0;
    return speed == 0 || speed > (wavers ? ALIKE_WAVERING : ALIKE) * fastest ? fastest : speed;
}

/* Of all ranks: who called last knew it. */
static double least_hop(const float *table, uint32_t world)
{
    double least = 0;
    for (uint32_t r = 0; r < world; r++) {
        const float hop = table[row_at(r, world) + world + r];
        if (hop > 0 && (least == 0 || hop < least)) least = hop;
    }
    return least;
}

/* false: nothing is seen of any. */
static bool fill_ports(const float *table, uint32_t world, link_port_t *ports)
{
    double most = 0;
    for (uint32_t r = 0; r < world; r++)
        if (fabsf(table[row_at(r, world) + r]) > fabs(most)) most = table[row_at(r, world) + r];
    const bool seen = most != 0;
    if (!seen) most = UNKNOWN_PORT;
    for (uint32_t r = 0; r < world; r++) {
        const double up = table[row_at(r, world) + r], down = port_down(table, world, r);
        ports[r].up_bytes_per_s = about(up, most);
        ports[r].down_bytes_per_s = down != 0 ? about(down, most) : ports[r].up_bytes_per_s;
    }
    return seen;
}

static void fill_model(const float *table, link_model_t *model, link_port_t *ports, ns_t *latency)
{
    const uint32_t world = model->world;
    const double hop = least_hop(table, world);
    fill_ports(table, world, ports);
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t to = 0; to < world; to++)
            latency[(size_t)r * world + to] = (ns_t)fmax(hop, table[row_at(r, world) + world + to]);
    model->ports = ports;
    model->latency = latency;
    model->per_message = PER_MESSAGE;
    model->reduce_bytes_per_s = REDUCING;
}

/* ---- The choices: of each tier its algorithm, microseconds, (world) weights of WEIGHT_ONE ---- */

static uint32_t tier_words(uint32_t world)
{
    return 2 + world;
}

uint64_t tune_tier_bytes(uint32_t tier)
{
    uint64_t bytes = TIER_LEAST;
    while (tier-- > 0) bytes *= TIER_FACTOR;
    return bytes;
}

static uint32_t tier_of(uint64_t bytes)
{
    uint32_t tier = 0;
    while (tier + 1 < TUNE_TIERS && bytes > 2 * tune_tier_bytes(tier)) tier++;
    return tier;
}

static inspan_status_t choose_all(inspan_comm_t *comm, int32_t *words)
{
    const uint32_t world = comm->world;
    link_port_t *ports = calloc(world, sizeof *ports);
    ns_t *latency = calloc((size_t)world * world, sizeof *latency);
    double *weights = calloc(world, sizeof *weights);
    link_model_t model = {.world = world};
    inspan_status_t status =
        ports == NULL || latency == NULL || weights == NULL ? INSPAN_NO_MEMORY : INSPAN_OK;
    if (status == INSPAN_OK) fill_model(comm->tune.table, &model, ports, latency);
    for (uint32_t tier = 0; tier < TUNE_TIERS && status == INSPAN_OK; tier++) {
        const uint64_t bytes = tune_tier_bytes(tier);
        sched_algorithm_t algorithm = SCHED_DIRECT;
        ns_t time = 0;
        const uint64_t chunk = plan_chunk_bytes(comm, bytes), least = bytes / MOST_CHUNKS;
        status = price_choose(SCHED_ALLREDUCE, world, bytes / 4, 4, chunk > least ? chunk : least, &model,
                              &algorithm, weights, &time);
        int32_t *own = words + (size_t)tier * tier_words(world);
        own[0] = (int32_t)algorithm;
        own[1] = (int32_t)fmin((double)time / NS_PER_US, INT32_MAX);
        for (uint32_t r = 0; r < world; r++) own[2 + r] = (int32_t)lround(weights[r] * WEIGHT_ONE);
    }
    free(ports);
    free(latency);
    free(weights);
    return status;
}

static bool take_choices(inspan_comm_t *comm, const int32_t *words)
{
    tune_t *tune = &comm->tune;
    for (uint32_t tier = 0; tier < TUNE_TIERS; tier++) {
        const int32_t *own = words + (size_t)tier * tier_words(comm->world);
        tune_choice_t *choice = &tune->choices[tier];
        if (own[0] < 0 || own[0] >= SCHED_ALGORITHMS) return false;
        choice->algorithm = (sched_algorithm_t)own[0];
        choice->predicted = own[1] * NS_PER_US;
        choice->equal = true;
        int64_t sum = 0;
        for (uint32_t r = 0; r < comm->world; r++) {
            if (own[2 + r] < 0) return false;
            sum += own[2 + r];
            choice->equal = choice->equal && own[2 + r] == own[2];
            choice->weights[r] = own[2 + r];
        }
        if (sum <= 0) return false;
    }
    return tune->chosen = true;
}

/* ---- Shares for who has a channel of his own ------------------------------------------------- */

/* Streams between a rank and those without a cause yet that had to wait for a port at one of their ends. */
static uint32_t waiting_streams(const float *table, uint32_t world, uint32_t rank, const bool *cause)
{
    uint32_t n = 0;
    for (uint32_t other = 0; other < world; other++)
        if (other != rank && !cause[other])
            n += (table[row_at(rank, world) + other] != 0) + (table[row_at(other, world) + rank] != 0);
    return n;
}

/* The rank in whom most of the streams meet that no cause explains yet, of several the slowest one. */
static uint32_t next_cause(const float *table, uint32_t world, const link_port_t *ports, const bool *cause)
{
    uint32_t found = COMM_NONE, most = 0;
    for (uint32_t r = 0; r < world; r++) {
        const uint32_t n = cause[r] ? 0 : waiting_streams(table, world, r, cause);
        const bool slower = found != COMM_NONE && ports[r].up_bytes_per_s < ports[found].up_bytes_per_s;
        if (n > most || (n > 0 && n == most && slower)) found = r;
        if (n > most) most = n;
    }
    return found;
}

/* A stream waits for the port at either end. The fewest ports that explain all of them are what is slow: all
 * who send to one slow rank look slow themselves, but their streams meet in it. */
bool comm_ports(const float *table, uint32_t world, double *up, double *down)
{
    link_port_t ports[COMM_LINKS_MAX];
    bool cause[COMM_LINKS_MAX] = {false};
    if (world > COMM_LINKS_MAX || !fill_ports(table, world, ports)) return false;
    for (uint32_t r; (r = next_cause(table, world, ports, cause)) != COMM_NONE;) cause[r] = true;
    /* Of two, each has one stream, and which end holds it up does not show: nor does it matter for the two.
     */
    for (uint32_t r = 0; world == 2 && r < 2; r++) cause[r] = cause[r] || table[row_at(r, 2) + r] != 0;
    for (uint32_t r = 0; r < world; r++) {
        const bool sends = table[row_at(r, world) + r] != 0, receives = port_down(table, world, r) != 0;
        up[r] = cause[r] && sends ? ports[r].up_bytes_per_s : 0;
        down[r] = cause[r] && (sends || receives) ? ports[r].down_bytes_per_s : 0;
    }
    return true;
}

static void weights_of(const uint8_t *shares, uint32_t world, double *weights)
{
    double sum = 0;
    for (uint32_t r = 0; r < world; r++) sum += shares[r];
    for (uint32_t r = 0; r < world; r++) weights[r] = sum > 0 ? shares[r] / sum : 1.0 / world;
}

bool comm_shares_by_links(const float *table, uint32_t world, uint8_t *shares)
{
    link_port_t ports[COMM_LINKS_MAX];
    double present[COMM_LINKS_MAX], best[COMM_LINKS_MAX], most = 0;
    const link_model_t model = {.world = world, .ports = ports};
    if (world < 3 || world > COMM_LINKS_MAX || !fill_ports(table, world, ports)) return false;
    const bool unequal = link_shares(&model, best);
    weights_of(shares, world, present);
    if (link_direct_seconds(&model, present, 1, NULL) <
        SHARES_GAIN * link_direct_seconds(&model, best, 1, NULL))
        return false;
    for (uint32_t r = 0; r < world; r++) most = fmax(most, best[r]);
    for (uint32_t r = 0; r < world; r++)
        shares[r] = unequal ? (uint8_t)lround(best[r] / most * UINT8_MAX) : 0;
    return true;
}

void comm_set_shares(inspan_comm_t *comm, const uint8_t *shares)
{
    bool any = false;
    for (uint32_t r = 0; r < comm->world; r++) {
        any |= shares[r] != shares[0];
        comm->tune.shares[r] = shares[r];
    }
    comm->tune.shared = any;
}

/* ---- The way in ------------------------------------------------------------------------------ */

const tune_choice_t *tune_choice(const inspan_comm_t *comm, uint8_t collective, uint64_t bytes)
{
    const bool free_to = comm->forced == INSPAN_SCHEDULE_AUTO && comm->weights == NULL;
    if (!free_to || !comm->tune.chosen || collective != SCHED_ALLREDUCE) return NULL;
    return &comm->tune.choices[tier_of(bytes)];
}

inspan_status_t tune_open(inspan_comm_t *comm)
{
    tune_t *tune = &comm->tune;
    const size_t world = comm->world, n = cells(comm->world);
    comm->streams = calloc(world, sizeof *comm->streams);
    comm->measured = calloc(2 * world, sizeof *comm->measured);
    tune->own = calloc(n, sizeof *tune->own);
    tune->table = calloc(n, sizeof *tune->table);
    tune->used = calloc(n, sizeof *tune->used);
    tune->shares = calloc(world, sizeof *tune->shares);
    tune->words = calloc(TUNE_TIERS * (size_t)tier_words(comm->world), sizeof *tune->words);
    tune->weights = calloc(TUNE_TIERS * world, sizeof *tune->weights);
    if (comm->streams == NULL || comm->measured == NULL || tune->own == NULL || tune->table == NULL ||
        tune->used == NULL || tune->shares == NULL || tune->words == NULL || tune->weights == NULL)
        return INSPAN_NO_MEMORY;
    for (uint32_t tier = 0; tier < TUNE_TIERS; tier++)
        tune->choices[tier].weights = tune->weights + tier * world;
    meter_open(&comm->meter, comm->streams, comm->world);
    return INSPAN_OK;
}

void tune_close(inspan_comm_t *comm)
{
    free(comm->streams);
    free(comm->measured);
    free(comm->tune.own);
    free(comm->tune.table);
    free(comm->tune.used);
    free(comm->tune.shares);
    free(comm->tune.words);
    free(comm->tune.weights);
}

/* One that is late cannot be left alone: its memory is the tuner's. It ends with the communicator. */
static inspan_status_t finish(inspan_comm_t *comm, inspan_status_t status, inspan_op_t *op,
                              int64_t timeout_ns)
{
    if (status != INSPAN_OK) return status;
    status = inspan_op_wait(op, timeout_ns);
    if (status != INSPAN_TIMEOUT) return status;
    inspan_comm_abort(comm, "comparing the links took too long");
    return inspan_op_wait(op, INT64_MAX);
}

static inspan_status_t gather_table(inspan_comm_t *comm, int64_t timeout_ns)
{
    tune_t *tune = &comm->tune;
    const size_t n = cells(comm->world);
    memset(tune->own, 0, n * sizeof *tune->own);
    comm_links(comm, tune->own + row_at(comm->rank, comm->world));
    inspan_op_t *op = NULL;
    const ns_t start = os_now();
    inspan_status_t status = inspan_allreduce(comm, tune->own, tune->table, n, INSPAN_FP32, INSPAN_SUM, &op);
    status = finish(comm, status, op, timeout_ns);
    /* Who calls last waits for nobody: the least is what a hop takes. */
    const ns_t took = os_now() - start;
    if (tune->hop == 0 || took < tune->hop) tune->hop = took;
    return status;
}

static inspan_status_t share_choices(inspan_comm_t *comm, int64_t timeout_ns)
{
    tune_t *tune = &comm->tune;
    const uint64_t n = TUNE_TIERS * (uint64_t)tier_words(comm->world);
    const inspan_status_t chosen = comm->rank == 0 ? choose_all(comm, tune->words) : INSPAN_OK;
    if (chosen != INSPAN_OK)
        memset(tune->words, 0xff, n * sizeof *tune->words); /* the others must not wait */
    inspan_op_t *op = NULL;
    inspan_status_t status = inspan_broadcast(comm, tune->words, n, INSPAN_INT32, 0, &op);
    status = finish(comm, status, op, timeout_ns);
    if (status == INSPAN_OK && chosen != INSPAN_OK) return chosen;
    return status == INSPAN_OK && !take_choices(comm, tune->words) ? INSPAN_INTERNAL : status;
}

inspan_status_t inspan_comm_tune(inspan_comm_t *comm, int64_t timeout_ns, bool *changed)
{
    if (comm == NULL || changed == NULL || timeout_ns <= 0) return INSPAN_INVALID;
    *changed = false;
    if (comm->world == 1 || comm->forced != INSPAN_SCHEDULE_AUTO || comm->weights != NULL ||
        comm->engine != NULL)
        return INSPAN_OK;
    pthread_mutex_lock(&comm->lock);
    const bool busy = comm->pending > 0;
    pthread_mutex_unlock(&comm->lock);
    if (busy) return INSPAN_INVALID;
    inspan_status_t status = gather_table(comm, timeout_ns);
    if (status != INSPAN_OK ||
        (comm->tune.chosen && !links_differ(comm->tune.table, comm->tune.used, comm->world)))
        return status;
    status = share_choices(comm, timeout_ns);
    if (status != INSPAN_OK) return status;
    memcpy(comm->tune.used, comm->tune.table, cells(comm->world) * sizeof *comm->tune.used);
    *changed = true;
    return INSPAN_OK;
}

/* ---- Looking --------------------------------------------------------------------------------- */

bool inspan_comm_port(const inspan_comm_t *comm, uint32_t rank, inspan_port_t *port)
{
    const uint32_t world = comm->world;
    if (rank >= world || !comm->tune.chosen) return false;
    const float *row = comm->tune.used + row_at(rank, world);
    const double up = row[rank], down = port_down(comm->tune.used, world, rank);
    *port = (inspan_port_t){.up = fabs(up), .down = fabs(down), .up_wavers = up < 0, .down_wavers = down < 0};
    for (uint32_t to = 0; to < world; to++) {
        const int64_t latency = (int64_t)row[world + to];
        if (to != rank && latency > 0 && (port->latency_ns == 0 || latency < port->latency_ns))
            port->latency_ns = latency;
    }
    const int64_t hop = (int64_t)least_hop(comm->tune.used, world);
    if (port->latency_ns < hop) port->latency_ns = hop;
    return true;
}

bool inspan_comm_choice(const inspan_comm_t *comm, uint64_t bytes, inspan_choice_t *choice)
{
    const tune_choice_t *found = tune_choice(comm, SCHED_ALLREDUCE, bytes);
    *choice = (inspan_choice_t){0};
    if (found == NULL) return false;
    *choice = (inspan_choice_t){.schedule = (inspan_schedule_t)(found->algorithm + 1),
                                .weights = found->equal ? NULL : found->weights,
                                .predicted_ns = found->predicted,
                                .bytes = tune_tier_bytes(tier_of(bytes))};
    return true;
}
