/*
 * Order. A transfer is one event for both of its ends (a send that finishes only when it is received): if
 * this graph has no circle, no amount of buffering is needed. A second look adds that each rank carries its
 * transfers to one peer strictly in list order: then not even a plain queue per peer can block.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/collective/check.h"

/* ---- Deadlock -------------------------------------------------------------------------------- */

typedef struct graph {
    checker_t *checker;
    uint64_t n_ops;
    uint64_t *queued;    /* (n_ops) of a send: the one before it to the same peer, or CHECK_NONE */
    uint64_t *first;     /* (n_ops + 1) where an event's successors begin in next */
    uint64_t *next;      /* events that wait for it */
    uint64_t *waits_for; /* (n_ops) how many unfinished events an event waits for */
} graph_t;

/* An event is known by the lower of its one or two operations. */
static uint64_t event_of(const graph_t *graph, uint64_t number)
{
    const uint64_t partner = graph->checker->partner[number];
    return partner < number ? partner : number; /* CHECK_NONE is the largest */
}

enum { MOST_REASONS = 3 };

/* The events that operation `number` waits for; their number. */
static int reasons(const graph_t *graph, uint64_t number, bool queues, uint64_t events[MOST_REASONS])
{
    const uint64_t base = graph->checker->base[check_rank_of(graph->checker, number)];
    const sched_op_t *op = check_op(graph->checker, number);
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (op->after[i] != SCHED_NONE) events[n++] = event_of(graph, base + op->after[i]);
    if (queues && graph->queued[number] != CHECK_NONE) events[n++] = event_of(graph, graph->queued[number]);
    return n;
}

static bool link_events(graph_t *graph, bool queues)
{
    uint64_t events[MOST_REASONS], total = 0;
    for (uint64_t i = 0; i <= graph->n_ops; i++) graph->first[i] = 0;
    for (uint64_t i = 0; i < graph->n_ops; i++) graph->waits_for[i] = 0;
    for (uint64_t i = 0; i < graph->n_ops; i++) {
        const int n = reasons(graph, i, queues, events);
        for (int k = 0; k < n; k++) graph->first[events[k]]++;
        graph->waits_for[event_of(graph, i)] += (uint64_t)n;
        total += (uint64_t)n;
    }
    free(graph->next);
    graph->next = calloc(total + 1, sizeof *graph->next);
    if (graph->next == NULL) return false;
    for (uint64_t i = 0, at = 0; i <= graph->n_ops;
         i++) { /* counts become the ends of the lists, filled backwards */
        at += graph->first[i];
        graph->first[i] = at;
    }
    for (uint64_t i = 0; i < graph->n_ops; i++) {
        const int n = reasons(graph, i, queues, events);
        for (int k = 0; k < n; k++) graph->next[--graph->first[events[k]]] = event_of(graph, i);
    }
    return true;
}

/* Run what can run (Kahn 1962); the number of events that ran, in checker->order. */
static uint64_t run(graph_t *graph)
{
    uint64_t *order = graph->checker->order, ready = 0, n = 0;
    for (uint64_t i = 0; i < graph->n_ops; i++)
        if (event_of(graph, i) == i && graph->waits_for[i] == 0) order[ready++] = i;
    for (; n < ready; n++)
        for (uint64_t k = graph->first[order[n]]; k < graph->first[order[n] + 1]; k++)
            if (--graph->waits_for[graph->next[k]] == 0) order[ready++] = graph->next[k];
    return n;
}

/* From events to operations, backwards in place: an event becomes its operations, the send before its
 * receive. */
static void spread_order(graph_t *graph, uint64_t events)
{
    uint64_t *order = graph->checker->order, to = graph->n_ops;
    for (uint64_t k = events; k-- > 0;) {
        const uint64_t event = order[k], partner = graph->checker->partner[event];
        const bool send = check_op(graph->checker, event)->kind == SCHED_SEND;
        if (partner != CHECK_NONE) order[--to] = send ? partner : event;
        order[--to] = partner == CHECK_NONE || send ? event : partner;
    }
}

/* An event that `event` waits for and that never runs: there is one, for otherwise it had run itself. */
static uint64_t blocked_by(const graph_t *graph, uint64_t event, bool queues)
{
    const uint64_t ends[2] = {event, graph->checker->partner[event]};
    uint64_t events[MOST_REASONS];
    for (int e = 0; e < 2 && ends[e] != CHECK_NONE; e++) {
        const int n = reasons(graph, ends[e], queues, events);
        for (int k = 0; k < n; k++)
            if (graph->waits_for[events[k]] > 0) return events[k];
    }
    return CHECK_NONE;
}

static inspan_status_t report_circle(const graph_t *graph, bool queues)
{
    uint64_t at = 0, length = 0;
    while (graph->waits_for[at] == 0) at++;
    for (uint64_t i = 0; i < graph->n_ops; i++)
        at = blocked_by(graph, at, queues); /* surely inside a circle now */
    char text[160] = "";
    size_t used = 0;
    const uint64_t start = at;
    do {
        at = blocked_by(graph, at, queues);
        const uint32_t rank = check_rank_of(graph->checker, at);
        if (++length <= 6)
            used += (size_t)snprintf(text + used, sizeof text - used, ", rank %u operation %" PRIu64, rank,
                                     at - graph->checker->base[rank]);
        if (used >= sizeof text) used = sizeof text - 1;
    } while (at != start);
    return check_fault(graph->checker, start, "deadlock%s, a circle of %" PRIu64 ": it waits for%s%s",
                       queues ? " if transfers to a peer keep the list's order" : "", length, text + 1,
                       length > 6 ? ", ..." : "");
}

static inspan_status_t find_circle(graph_t *graph, bool queues)
{
    if (!link_events(graph, queues)) return check_no_memory(graph->checker);
    uint64_t events = 0;
    for (uint64_t i = 0; i < graph->n_ops; i++) events += event_of(graph, i) == i;
    if (run(graph) < events) return report_circle(graph, queues);
    spread_order(graph, events);
    return INSPAN_OK;
}

static bool find_queues(graph_t *graph)
{
    const checker_t *checker = graph->checker;
    uint64_t *last = calloc(checker->world, sizeof *last);
    if (last == NULL) return false;
    for (uint32_t rank = 0; rank < checker->world; rank++) {
        for (uint32_t peer = 0; peer < checker->world; peer++) last[peer] = CHECK_NONE;
        for (uint64_t i = checker->base[rank]; i < checker->base[rank + 1]; i++) {
            const sched_op_t *op = check_op(checker, i);
            graph->queued[i] = op->kind == SCHED_SEND ? last[op->peer] : CHECK_NONE;
            if (op->kind == SCHED_SEND) last[op->peer] = i;
        }
    }
    free(last);
    return true;
}

inspan_status_t check_deadlock(checker_t *checker)
{
    const uint64_t n_ops = checker->base[checker->world];
    graph_t graph = {.checker = checker,
                     .n_ops = n_ops,
                     .queued = calloc(n_ops + 1, sizeof *graph.queued),
                     .first = calloc(n_ops + 1, sizeof *graph.first),
                     .waits_for = calloc(n_ops + 1, sizeof *graph.waits_for)};
    inspan_status_t status = INSPAN_NO_MEMORY;
    if (graph.queued != NULL && graph.first != NULL && graph.waits_for != NULL && find_queues(&graph)) {
        status = find_circle(&graph, false);
        if (status == INSPAN_OK) status = find_circle(&graph, true);
    } else {
        status = check_no_memory(checker);
    }
    free(graph.queued);
    free(graph.first);
    free(graph.next);
    free(graph.waits_for);
    return status;
}

/* ---- Races ----------------------------------------------------------------------------------- */

typedef struct touch {
    uint64_t first, count; /* elements of OUT or TMP */
    uint32_t op;
    bool write;
} touch_t;

typedef struct ancestry {
    const schedule_t *schedule;
    uint32_t *stack, *seen; /* (n_ops) */
    uint32_t round;
} ancestry_t;

/* Does `early` stand before `late` by a chain of `after`? */
static bool precedes(ancestry_t *ancestry, uint32_t early, uint32_t late)
{
    uint32_t depth = 0;
    ancestry->round++;
    ancestry->stack[depth++] = late;
    while (depth > 0) {
        const uint32_t at = ancestry->stack[--depth];
        if (at == early) return true;
        for (int i = 0; i < 2; i++) {
            const uint32_t before = ancestry->schedule->ops[at].after[i];
            if (before == SCHED_NONE || before < early || ancestry->seen[before] == ancestry->round) continue;
            ancestry->seen[before] = ancestry->round; /* each is pushed once: the stack never overflows */
            ancestry->stack[depth++] = before;
        }
    }
    return false;
}

static int by_place(const void *a, const void *b)
{
    const touch_t *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

static uint32_t find_touches(const schedule_t *schedule, sched_buffer_t buffer, touch_t *touches)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < schedule->n_ops; i++) {
        const sched_op_t *op = &schedule->ops[i];
        const sched_chunk_t *chunk = &schedule->chunks[op->chunk];
        const bool reads = check_reads_src(op) && op->src == buffer,
                   writes = check_writes(op) && op->dst == buffer;
        if ((reads || writes) && chunk->count > 0)
            touches[n++] =
                (touch_t){buffer == SCHED_TMP ? op->tmp_offset : chunk->first, chunk->count, i, writes};
    }
    return n;
}

static inspan_status_t check_buffer(const checker_t *checker, ancestry_t *ancestry, touch_t *touches,
                                    sched_buffer_t buffer)
{
    const uint32_t n = find_touches(ancestry->schedule, buffer, touches);
    qsort(touches, n, sizeof *touches, by_place);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n && touches[k].first - touches[i].first < touches[i].count; k++) {
            const touch_t *a = &touches[i], *b = &touches[k];
            if (!a->write && !b->write) continue;
            const uint32_t early = a->op < b->op ? a->op : b->op, late = a->op < b->op ? b->op : a->op;
            if (!precedes(ancestry, early, late))
                return check_fault(
                    checker, checker->base[ancestry->schedule->rank] + late,
                    "race: touches the same elements of %s as operation %u, which may run at the same "
                    "time",
                    buffer == SCHED_TMP ? "TMP" : "OUT", early);
        }
    return INSPAN_OK;
}

inspan_status_t check_races(const checker_t *checker)
{
    inspan_status_t status = INSPAN_OK;
    for (uint32_t rank = 0; rank < checker->world && status == INSPAN_OK; rank++) {
        const size_t n = (size_t)checker->ranks[rank]->n_ops + 1;
        ancestry_t ancestry = {.schedule = checker->ranks[rank],
                               .stack = calloc(n, sizeof *ancestry.stack),
                               .seen = calloc(n, sizeof *ancestry.seen)};
        touch_t *touches = calloc(n, sizeof *touches);
        if (ancestry.stack == NULL || ancestry.seen == NULL || touches == NULL)
            status = check_no_memory(checker);
        else
            status = check_buffer(checker, &ancestry, touches, SCHED_OUT);
        if (status == INSPAN_OK) status = check_buffer(checker, &ancestry, touches, SCHED_TMP);
        free(ancestry.stack);
        free(ancestry.seen);
        free(touches);
    }
    return status;
}
