/*
 * A schedule in time: an event-driven simulation of all ranks. Each pair of ranks has one lane each way (a
 * socket), which carries one transfer at a time, of those posted the first in the list. Lanes share the
 * ranks' ports max-min fairly (Bertsekas, Gallager 1992, section 6.5.2), as fluid. Each rank has one
 * processor that handles messages and adds, in the order in which the work comes up.
 *
 *   SEND   ready -> [processor: per message] -> posted -> [lane: bytes at its rate] -> finished
 *   RECV   the lane's end -> [latency] -> [processor: per message] -> here, and dependencies done -> finished
 *   adding once all it needs is there -> [processor: bytes at the reducing rate] -> finished
 */
#include <math.h>
#include <stdlib.h>

#include "base/vec.h"
#include "core/collective/link_model.h"
#include "core/collective/pairs.h"

typedef enum event_kind { EVENT_POSTED, EVENT_ARRIVED, EVENT_HERE, EVENT_FINISHED } event_kind_t;

typedef struct event {
    double at;         /* seconds */
    uint64_t sequence; /* of two at once, the older */
    uint64_t op;
    event_kind_t kind;
} event_t;

typedef struct lane {
    uint64_t *sends; /* (n_sends) operations, in list order */
    uint32_t n_sends, next;
    uint32_t from, to;
    uint64_t op;       /* the one on the wire, or PAIRS_NONE */
    double left, rate; /* bytes, bytes/s */
    bool rated;
} lane_t;

typedef struct port { /* one direction of a rank's port while rates are shared out */
    double left;
    uint32_t lanes;
} port_t;

typedef struct price {
    const schedule_t *const *ranks;
    const link_model_t *links;
    uint32_t world, element_size;
    uint64_t n_ops, n_finished;
    uint64_t *base;       /* (world + 1) */
    uint64_t *partner;    /* (n_ops) */
    uint32_t *rank_of;    /* (n_ops) */
    uint8_t *waits_for;   /* (n_ops) dependencies, and a receive's data, that are still missing */
    uint64_t *first;      /* (n_ops + 1) where an operation's followers begin */
    uint64_t *followers;  /* operations that wait for it */
    bool *posted;         /* (n_ops) a send that is waiting for its lane */
    double *busy_until;   /* (world) the processor */
    lane_t *lanes;        /* (world, world) */
    uint64_t *lane_sends; /* (sends) what the lanes point into */
    port_t *ports;        /* (2, world): up, down */
    uint32_t *active;     /* (n_active) lanes that carry something */
    uint32_t n_active;
    vec_of(event_t) heap; /* by time */
    uint64_t sequence;
    double now;
    bool memory, changed; /* changed: the set of active lanes */
} price_t;

static const sched_op_t *op_at(const price_t *price, uint64_t op)
{
    const uint32_t rank = price->rank_of[op];
    return &price->ranks[rank]->ops[op - price->base[rank]];
}

static double bytes_of(const price_t *price, uint64_t op)
{
    return (double)price->ranks[0]->chunks[op_at(price, op)->chunk].count * price->element_size;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool earlier(const event_t *a, const event_t *b)
{
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

static void push_event(price_t *price, double at, event_kind_t kind, uint64_t op)
{
    const event_t event = {at, price->sequence++, op, kind};
    if (!VEC_PUSH(&price->heap, event)) {
        price->memory = false;
        return;
    }
    event_t *heap = price->heap.items;
    size_t i = price->heap.n - 1;
    for (; i > 0 && earlier(&event, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = event;
}

static event_t pop_event(price_t *price)
{
    event_t *heap = price->heap.items;
    const event_t top = heap[0], last = heap[--price->heap.n];
    const size_t n = price->heap.n;
    size_t i = 0;
    for (size_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && earlier(&heap[child + 1], &heap[child])) child++;
        if (!earlier(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* The rank's processor works on this for `seconds`, after what it has already taken on. */
static void work(price_t *price, uint64_t op, double seconds, event_kind_t then)
{
    double *busy = &price->busy_until[price->rank_of[op]];
    if (*busy < price->now) *busy = price->now;
    *busy += seconds;
    push_event(price, *busy, then, op);
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* Put the lane's next posted send on the wire; false: there is none. */
static bool load_lane(price_t *price, lane_t *lane)
{
    uint32_t i = lane->next;
    while (i < lane->n_sends && !price->posted[lane->sends[i]]) i++;
    if (i == lane->n_sends) return false;
    lane->op = lane->sends[i];
    lane->left = bytes_of(price, lane->op);
    price->posted[lane->op] = false;
    for (; i > lane->next; i--) lane->sends[i] = lane->sends[i - 1]; /* the skipped ones stay, in order */
    lane->sends[lane->next++] = lane->op;
    return true;
}

static void start_lane(price_t *price, uint32_t index)
{
    lane_t *lane = &price->lanes[index];
    if (lane->op != PAIRS_NONE || !load_lane(price, lane)) return;
    price->active[price->n_active++] = index;
    price->changed = true;
}

/* Max-min fair rates: again and again the port that has least to give per lane settles its lanes. */
static void share_ports(price_t *price)
{
    const uint32_t world = price->world;
    port_t *up = price->ports, *down = price->ports + world;
    for (uint32_t r = 0; r < world; r++) {
        up[r] = (port_t){price->links->ports[r].up_bytes_per_s, 0};
        down[r] = (port_t){price->links->ports[r].down_bytes_per_s, 0};
    }
    for (uint32_t i = 0; i < price->n_active; i++) {
        lane_t *lane = &price->lanes[price->active[i]];
        lane->rated = false;
        up[lane->from].lanes++;
        down[lane->to].lanes++;
    }
    for (uint32_t rated = 0; rated < price->n_active;) {
        uint32_t least = 0;
        double share = INFINITY;
        for (uint32_t p = 0; p < 2 * world; p++)
            if (price->ports[p].lanes > 0 && price->ports[p].left / price->ports[p].lanes < share) {
                share = price->ports[p].left / price->ports[p].lanes;
                least = p;
            }
        for (uint32_t i = 0; i < price->n_active; i++) {
            lane_t *lane = &price->lanes[price->active[i]];
            port_t *from = &up[lane->from], *to = &down[lane->to];
            if (lane->rated || (from != &price->ports[least] && to != &price->ports[least])) continue;
            lane->rated = true;
            lane->rate = share;
            from->left = fmax(from->left - share, 0), from->lanes--;
            to->left = fmax(to->left - share, 0), to->lanes--;
            rated++;
        }
    }
    price->changed = false;
}

/* Let `seconds` pass; lanes that come to the end of their transfer take the next, at the same rate. */
static void move(price_t *price, double seconds)
{
    price->now += seconds;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < price->n_active; i++) {
        const uint32_t index = price->active[i];
        lane_t *lane = &price->lanes[index];
        lane->left -= lane->rate * seconds;
        if (lane->left > lane->rate * 1e-12) { /* what is left in rounding is no transfer */
            price->active[kept++] = index;
            continue;
        }
        const uint64_t op = lane->op;
        push_event(price, price->now + ns_to_s(price->links->latency[index]), EVENT_ARRIVED,
                   price->partner[op]);
        push_event(price, price->now, EVENT_FINISHED, op);
        lane->op = PAIRS_NONE;
        if (load_lane(price, lane)) price->active[kept++] = index;
    }
    if (kept < price->n_active) price->changed = true;
    price->n_active = kept;
}

/* ---- Operations ------------------------------------------------------------------------------ */

static void start(price_t *price, uint64_t op)
{
    const sched_op_t *o = op_at(price, op);
    if (o->kind == SCHED_SEND)
        work(price, op, ns_to_s(price->links->per_message), EVENT_POSTED);
    else if (o->kind == SCHED_RECV)
        push_event(price, price->now, EVENT_FINISHED, op);
    else
        work(price, op, bytes_of(price, op) / price->links->reduce_bytes_per_s, EVENT_FINISHED);
}

static void one_less(price_t *price, uint64_t op)
{
    if (--price->waits_for[op] == 0) start(price, op);
}

static void finish(price_t *price, uint64_t op)
{
    price->n_finished++;
    for (uint64_t i = price->first[op]; i < price->first[op + 1]; i++) one_less(price, price->followers[i]);
}

static void handle(price_t *price, const event_t *event)
{
    switch (event->kind) {
    case EVENT_POSTED:
        price->posted[event->op] = true;
        start_lane(price, price->rank_of[event->op] * price->world + op_at(price, event->op)->peer);
        break;
    case EVENT_ARRIVED: work(price, event->op, ns_to_s(price->links->per_message), EVENT_HERE); break;
    case EVENT_HERE: one_less(price, event->op); break;
    case EVENT_FINISHED: finish(price, event->op); break;
    }
}

/* INVALID: it stops before all is done. */
static inspan_status_t run(price_t *price)
{
    for (uint64_t op = 0; op < price->n_ops; op++)
        if (price->waits_for[op] == 0) start(price, op);
    while (price->n_finished < price->n_ops && price->memory) {
        if (price->changed) share_ports(price);
        double step = price->heap.n > 0 ? price->heap.items[0].at - price->now : INFINITY;
        for (uint32_t i = 0; i < price->n_active; i++) {
            const lane_t *lane = &price->lanes[price->active[i]];
            step = fmin(step, lane->left / lane->rate);
        }
        if (isinf(step)) return INSPAN_INVALID;
        move(price, fmax(step, 0));
        while (price->heap.n > 0 && price->heap.items[0].at <= price->now + 1e-12 && price->memory) {
            const event_t event = pop_event(price);
            handle(price, &event);
        }
    }
    return price->memory ? INSPAN_OK : INSPAN_NO_MEMORY;
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static bool valid(const schedule_t *const *ranks, uint32_t element_size, const link_model_t *links)
{
    if (links->world > LINK_MODEL_MOST_RANKS || element_size == 0 || !(links->reduce_bytes_per_s > 0) ||
        links->per_message < 0)
        return false;
    for (uint32_t r = 0; r < links->world; r++) {
        if (ranks[r] == NULL || ranks[r]->world != links->world || ranks[r]->rank != r ||
            ranks[r]->n_chunks != ranks[0]->n_chunks)
            return false;
        const link_port_t *port = &links->ports[r];
        const double up = port->up_bytes_per_s, down = port->down_bytes_per_s;
        if (links->world > 1 && !(up > 0 && down > 0 && isfinite(up) && isfinite(down))) return false;
        for (uint32_t to = 0; links->world > 1 && to < links->world; to++)
            if (to != r && links->latency[r * (size_t)links->world + to] < 0) return false;
    }
    return true;
}

static bool allocate(price_t *price)
{
    const size_t n = price->n_ops + 1, world = price->world;
    price->partner = calloc(n, sizeof *price->partner);
    price->rank_of = calloc(n, sizeof *price->rank_of);
    price->waits_for = calloc(n, sizeof *price->waits_for);
    price->first = calloc(n + 1, sizeof *price->first);
    price->followers = calloc(2 * n, sizeof *price->followers);
    price->posted = calloc(n, sizeof *price->posted);
    price->busy_until = calloc(world, sizeof *price->busy_until);
    price->lanes = calloc(world * world, sizeof *price->lanes);
    price->lane_sends = calloc(n, sizeof *price->lane_sends);
    price->ports = calloc(2 * world, sizeof *price->ports);
    price->active = calloc(world * world, sizeof *price->active);
    return price->partner && price->rank_of && price->waits_for && price->first && price->followers &&
           price->posted && price->busy_until && price->lanes && price->lane_sends && price->ports &&
           price->active;
}

static void link_operations(price_t *price)
{
    for (uint32_t r = 0; r < price->world; r++)
        for (uint64_t op = price->base[r]; op < price->base[r + 1]; op++) {
            price->rank_of[op] = r;
            const sched_op_t *o = op_at(price, op);
            price->waits_for[op] = sched_receives(o); /* the data */
            for (int i = 0; i < 2; i++)
                if (o->after[i] != SCHED_NONE)
                    price->first[price->base[r] + o->after[i]]++, price->waits_for[op]++;
        }
    for (uint64_t op = 0, at = 0; op <= price->n_ops; op++) { /* counts become ends; filled backwards */
        at += price->first[op];
        price->first[op] = at;
    }
    for (uint64_t op = price->n_ops; op-- > 0;) {
        const uint64_t base = price->base[price->rank_of[op]];
        const sched_op_t *o = op_at(price, op);
        for (int i = 0; i < 2; i++)
            if (o->after[i] != SCHED_NONE) price->followers[--price->first[base + o->after[i]]] = op;
    }
}

static void lay_lanes(price_t *price)
{
    const uint32_t world = price->world;
    for (uint32_t from = 0; from < world; from++)
        for (uint32_t to = 0; to < world; to++)
            price->lanes[from * world + to] = (lane_t){.from = from, .to = to, .op = PAIRS_NONE};
    for (uint64_t op = 0; op < price->n_ops; op++)
        if (op_at(price, op)->kind == SCHED_SEND)
            price->lanes[price->rank_of[op] * world + op_at(price, op)->peer].n_sends++;
    uint64_t *at = price->lane_sends;
    for (uint32_t i = 0; i < world * world; i++) {
        price->lanes[i].sends = at;
        at += price->lanes[i].n_sends;
        price->lanes[i].n_sends = 0;
    }
    for (uint64_t op = 0; op < price->n_ops; op++)
        if (op_at(price, op)->kind == SCHED_SEND) {
            lane_t *lane = &price->lanes[price->rank_of[op] * world + op_at(price, op)->peer];
            lane->sends[lane->n_sends++] = op;
        }
}

static void price_close(price_t *price)
{
    free(price->base);
    free(price->partner);
    free(price->rank_of);
    free(price->waits_for);
    free(price->first);
    free(price->followers);
    free(price->posted);
    free(price->busy_until);
    free(price->lanes);
    free(price->lane_sends);
    free(price->ports);
    free(price->active);
    vec_free(&price->heap);
}

inspan_status_t price_schedule(const schedule_t *const *ranks, uint32_t element_size,
                               const link_model_t *links, ns_t *time)
{
    *time = 0;
    if (links->world == 0 || !valid(ranks, element_size, links)) return INSPAN_INVALID;
    price_t price = {.ranks = ranks, .links = links, .world = links->world, .element_size = element_size};
    price.memory = true;
    price.base = calloc((size_t)price.world + 1, sizeof *price.base);
    inspan_status_t status = price.base == NULL ? INSPAN_NO_MEMORY : INSPAN_OK;
    if (status == INSPAN_OK) {
        for (uint32_t r = 0; r < price.world; r++) price.base[r + 1] = price.base[r] + ranks[r]->n_ops;
        price.n_ops = price.base[price.world];
        if (!allocate(&price)) status = INSPAN_NO_MEMORY;
    }
    pairs_fault_t fault;
    if (status == INSPAN_OK) status = pairs_match(ranks, price.world, price.base, price.partner, &fault);
    if (status == INSPAN_OK) {
        link_operations(&price);
        lay_lanes(&price);
        status = run(&price);
    }
    if (status == INSPAN_OK) *time = (ns_t)ceil(price.now * 1e9);
    price_close(&price);
    return status;
}
