/*
 * The sim transport: byte streams in memory between ranks of one process. Nothing happens but inside
 * comm_sim_run, which draws from a seed which rank gets its next few bytes, a writable stream, or a wake-up,
 * and how many bytes: so one seed is one history, and frames are cut at every possible place. Time is
 * simulated: a microsecond an event, and it jumps to the next timer when there is nothing else to do.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "comm/internal.h"

#define SIM_STREAM 100000 /* bytes that fit in a stream; no multiple of anything */

typedef struct sim_stream { /* from one rank to another */
    uint8_t *bytes;         /* (SIM_STREAM) ring */
    uint64_t in, out;       /* totals */
    bool closed;            /* by the sender: what is inside still arrives */
    bool wants;             /* the sender waits for room */
} sim_stream_t;

typedef struct sim_rank {
    comm_sim_t *sim;
    uint32_t rank;
    inspan_comm_t *comm;
    bool woken, crashed;
    ns_t timer;         /* 0: none */
    uint64_t allowance; /* bytes that it may read in this event */
} sim_rank_t;

struct comm_sim {
    uint32_t world;
    rng_t rng;
    ns_t now;
    sim_rank_t *ranks;     /* (world) */
    sim_stream_t *streams; /* (world, world) [from * world + to] */
};

static sim_stream_t *stream(comm_sim_t *sim, uint32_t from, uint32_t to)
{
    return &sim->streams[(size_t)from * sim->world + to];
}

static ssize_t sim_send(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    sim_rank_t *rank = self;
    comm_sim_t *sim = rank->sim;
    sim_stream_t *s = stream(sim, rank->rank, peer);
    if (s->closed || sim->ranks[peer].crashed || stream(sim, peer, rank->rank)->closed) {
        rank->allowance = SIM_STREAM; /* what the peer said before is read next */
        errno = EPIPE;
        return -1;
    }
    uint64_t room = SIM_STREAM - (s->in - s->out);
    if (room > 0) room = 1 + rng_below(&sim->rng, room);
    size_t sent = 0;
    for (int i = 0; i < n && sent < room; i++)
        for (size_t k = 0; k < iov[i].iov_len && sent < room; k++, sent++)
            s->bytes[s->in++ % SIM_STREAM] = ((const uint8_t *)iov[i].iov_base)[k];
    return (ssize_t)sent;
}

static ssize_t sim_receive(void *self, uint32_t peer, const struct iovec *iov, int n)
{
    sim_rank_t *rank = self;
    sim_stream_t *s = stream(rank->sim, peer, rank->rank);
    if (s->in == s->out && s->closed) {
        errno = 0;
        return -1;
    }
    uint64_t left = s->in - s->out < rank->allowance ? s->in - s->out : rank->allowance;
    size_t got = 0;
    for (int i = 0; i < n && left > 0; i++)
        for (size_t k = 0; k < iov[i].iov_len && left > 0; k++, got++, left--)
            ((uint8_t *)iov[i].iov_base)[k] = s->bytes[s->out++ % SIM_STREAM];
    rank->allowance -= got;
    return (ssize_t)got;
}

static void sim_want_write(void *self, uint32_t peer, bool on)
{
    sim_rank_t *rank = self;
    stream(rank->sim, rank->rank, peer)->wants = on;
}

static bool sim_drained(void *self, uint32_t peer)
{
    (void)self, (void)peer;
    return true; /* what is in a stream arrives even when its sender is gone */
}

static void sim_drop(void *self, uint32_t peer)
{
    sim_rank_t *rank = self;
    stream(rank->sim, rank->rank, peer)->closed = true;
    sim_stream_t *from = stream(rank->sim, peer, rank->rank);
    from->out = from->in; /* nobody reads it any more */
}

static void sim_tick_in(void *self, ns_t after)
{
    sim_rank_t *rank = self;
    const ns_t due = rank->sim->now + after;
    if (rank->timer == 0 || due < rank->timer) rank->timer = due;
}

static ns_t sim_now(void *self)
{
    return ((sim_rank_t *)self)->sim->now;
}

static void sim_wake(void *self)
{
    ((sim_rank_t *)self)->woken = true;
}

static void sim_spin(void *self, bool on)
{
    (void)self, (void)on;
}

static ns_t sim_cpu(void *self)
{
    (void)self;
    return 0;
}

static ns_t sim_latency(void *self, uint32_t peer)
{
    (void)self, (void)peer;
    return 0;
}

static bool sim_is_current(void *self)
{
    (void)self;
    return true;
}

static void sim_stop(void *self)
{
    sim_rank_t *rank = self;
    for (uint32_t peer = 0; peer < rank->sim->world; peer++) sim_drop(rank, peer);
    rank->timer = 0;
    rank->woken = false;
}

static void sim_close(void *self)
{
    ((sim_rank_t *)self)->comm = NULL;
}

static const comm_transport_t sim_transport = {
    sim_send, sim_receive, sim_want_write, sim_drained,    sim_drop, sim_tick_in, sim_now, sim_wake,
    sim_spin, sim_cpu,     sim_latency,    sim_is_current, sim_stop, sim_close,   false};

inspan_status_t comm_sim_open(uint32_t world, uint64_t seed, comm_sim_t **out)
{
    if (world == 0 || world > 1024) return INSPAN_INVALID;
    comm_sim_t *sim = calloc(1, sizeof *sim);
    if (sim == NULL) return INSPAN_NO_MEMORY;
    sim->world = world;
    sim->now = NS_PER_S;
    rng_seed(&sim->rng, seed, 0);
    sim->ranks = calloc(world, sizeof *sim->ranks);
    sim->streams = calloc((size_t)world * world, sizeof *sim->streams);
    bool ok = sim->ranks != NULL && sim->streams != NULL;
    for (uint32_t i = 0; ok && i < world * world; i++)
        ok = (sim->streams[i].bytes = i % (world + 1) == 0 ? NULL : malloc(SIM_STREAM)) != NULL ||
             i % (world + 1) == 0;
    for (uint32_t i = 0; ok && i < world; i++) sim->ranks[i] = (sim_rank_t){.sim = sim, .rank = i};
    if (!ok) {
        comm_sim_close(sim);
        return INSPAN_NO_MEMORY;
    }
    *out = sim;
    return INSPAN_OK;
}

void comm_sim_close(comm_sim_t *sim)
{
    if (sim == NULL) return;
    for (uint32_t i = 0; sim->streams != NULL && i < sim->world * sim->world; i++)
        free(sim->streams[i].bytes);
    free(sim->streams);
    free(sim->ranks);
    free(sim);
}

inspan_status_t comm_sim_comm(comm_sim_t *sim, const comm_options_t *options, inspan_comm_t **comm)
{
    inspan_status_t status = comm_check_options(options, NULL);
    if (status != INSPAN_OK) return status;
    sim_rank_t *rank = &sim->ranks[options->rank];
    if (options->world != sim->world || rank->comm != NULL) return INSPAN_INVALID;
    status = comm_create(options, &sim_transport, rank, comm, NULL);
    if (status == INSPAN_OK) rank->comm = *comm;
    return status;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool alive(const sim_rank_t *rank)
{
    return rank->comm != NULL && !rank->crashed;
}

static bool readable(comm_sim_t *sim, uint32_t from, uint32_t to)
{
    const sim_stream_t *s = stream(sim, from, to);
    return from != to && alive(&sim->ranks[to]) && !sim->ranks[to].comm->peers[from].gone &&
           (s->in != s->out || s->closed);
}

static bool writable(comm_sim_t *sim, uint32_t from, uint32_t to)
{
    const sim_stream_t *s = stream(sim, from, to);
    return from != to && alive(&sim->ranks[from]) && s->wants &&
           (s->in - s->out < SIM_STREAM || stream(sim, to, from)->closed);
}

/* Do possible event number `chosen`, in a fixed order of all; with COMM_NONE: only count them. */
static uint32_t sim_event(comm_sim_t *sim, uint32_t chosen)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sim->world; i++) {
        if (alive(&sim->ranks[i]) && sim->ranks[i].woken && n++ == chosen) {
            sim->ranks[i].woken = false;
            exec_wake(sim->ranks[i].comm);
            return n;
        }
        for (uint32_t k = 0; k < sim->world; k++) {
            if (readable(sim, k, i) && n++ == chosen) {
                sim->ranks[i].allowance =
                    1 + rng_below(&sim->rng, rng_below(&sim->rng, 4) == 0 ? 50 : SIM_STREAM);
                exec_readable(sim->ranks[i].comm, k);
                return n;
            }
            if (writable(sim, i, k) && n++ == chosen) {
                stream(sim, i, k)->wants = false;
                exec_writable(sim->ranks[i].comm, k);
                return n;
            }
        }
    }
    return n;
}

/* The rank whose timer is next, or COMM_NONE. */
static uint32_t next_timer(const comm_sim_t *sim)
{
    uint32_t next = COMM_NONE;
    for (uint32_t i = 0; i < sim->world; i++)
        if (alive(&sim->ranks[i]) && sim->ranks[i].timer != 0 &&
            (next == COMM_NONE || sim->ranks[i].timer < sim->ranks[next].timer))
            next = i;
    return next;
}

uint64_t comm_sim_run(comm_sim_t *sim, uint64_t max_events)
{
    for (uint64_t events = 0; events < max_events; events++) {
        const uint32_t possible = sim_event(sim, COMM_NONE), timer = next_timer(sim);
        if (possible == 0 && timer == COMM_NONE) return events;
        sim->now += NS_PER_US;
        if (timer != COMM_NONE && (possible == 0 || sim->ranks[timer].timer <= sim->now)) {
            if (sim->now < sim->ranks[timer].timer) sim->now = sim->ranks[timer].timer;
            sim->ranks[timer].timer = 0;
            exec_tick(sim->ranks[timer].comm);
        } else {
            sim_event(sim, (uint32_t)rng_below(&sim->rng, possible));
        }
    }
    return max_events;
}

void comm_sim_crash(comm_sim_t *sim, uint32_t rank)
{
    if (rank >= sim->world) return;
    sim->ranks[rank].crashed = true;
    for (uint32_t peer = 0; peer < sim->world; peer++) {
        if (peer == rank) continue;
        sim_stream_t *s = stream(sim, rank, peer);
        s->closed = true;
        if (s->in > s->out && rng_below(&sim->rng, 2))
            s->in = s->out + rng_below(&sim->rng, s->in - s->out); /* lost */
    }
}
