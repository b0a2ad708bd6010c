/*
 * The executor: runs schedules. Event-driven, on the I/O thread alone.
 *
 *   started (comm.c) --> waiting ----------------------> active -------> done
 *                        until every peer has started    waits[op] counts down as the operations that it
 *                        all but COMM_MAX_AHEAD of       waits for finish; at 0 the op may start:
 *                        the operations before it
 *
 *   SEND                 a bit in `ready`, taken by tx.c in list order, oldest run first
 *   COPY, REDUCE, RECV*  in the run's work queue, taken by pump()
 *
 * Runs of a backend have no operations: backends/engine.c has them from begin to end.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/backends/engine.h"
#include "comm/codec.h"
#include "comm/internal.h"
#include "comm/reduce.h"

#define WORK_BYTES (2u << 20) /* local work between two looks at the sockets */

void exec_mark(inspan_comm_t *comm, uint32_t peer)
{
    comm->peers[peer].dirty = true;
}

static void mark_all(inspan_comm_t *comm)
{
    for (uint32_t peer = 0; peer < comm->world; peer++) exec_mark(comm, peer);
}

/* ---- Operations of a schedule ---------------------------------------------------------------- */

/* All that op waited for has finished. */
static void may_start(inspan_comm_t *comm, comm_run_t *run, uint32_t op)
{
    const sched_op_t *what = &run->plan->schedule->ops[op];
    const bool recv = what->kind == SCHED_RECV || what->kind == SCHED_RECV_REDUCE;
    if (recv && run->chain[op].first == COMM_NONE) {
        run->waits[op] = RECV_STARTED;
        return;
    }
    if (what->kind != SCHED_SEND) {
        run->work[run->work_tail++] = op;
        comm->working = true;
        return;
    }
    const uint32_t bit = run->plan->position[op];
    run->n_ready[what->peer]++;
    run->ready[what->staged][run->plan->bits_first[what->peer] + bit / 64] |= 1ull << (bit % 64);
    exec_mark(comm, what->peer);
}

void exec_finish_op(inspan_comm_t *comm, comm_run_t *run, uint32_t op)
{
    const comm_plan_t *plan = run->plan;
    const inspan_wire_t wire = plan_wire(plan, op);
    if (wire != INSPAN_WIRE_FP32 && plan->schedule->ops[op].result)
        codec_round(wire, run_place(run, op, SCHED_OUT, 0),
                    run->encoded + plan->encoded_at[plan->schedule->ops[op].chunk], run_error(run, op, 0),
                    plan_count(plan, op));
    for (uint32_t i = plan->dependents_first[op]; i < plan->dependents_first[op + 1]; i++)
        if (--run->waits[plan->dependents[i]] == 0) may_start(comm, run, plan->dependents[i]);
    if (--run->left == 0) exec_run_done(comm, run);
}

/* Bytes that were charged to the peer's credit are consumed. */
void exec_credit(inspan_comm_t *comm, comm_run_t *run, uint32_t peer, uint64_t cost, bool eager)
{
    comm_peer_t *p = &comm->peers[peer];
    if (eager) {
        p->eager_to_tell += cost;
        if (p->eager_to_tell >= COMM_EAGER_BUDGET / 4) exec_mark(comm, peer);
        return;
    }
    const uint64_t more = cost < run->uncovered[peer] ? cost : run->uncovered[peer];
    if (more == 0) return; /* the peer has credit for all that is to come */
    run->uncovered[peer] -= more;
    run->to_tell[peer] += more;
    const bool enough = run->to_tell[peer] >= COMM_WINDOW / 4 || run->uncovered[peer] == 0;
    if (run->tell[peer] || !enough) return;
    run->tell[peer] = true;
    p->credits_due++;
    exec_mark(comm, peer);
}

/* n bytes of a RECV, whole units, to where they belong: placed or added. */
void exec_apply(const comm_run_t *run, uint32_t op, uint8_t *to, const uint8_t *bytes, uint32_t n)
{
    const comm_plan_t *plan = run->plan;
    const inspan_wire_t wire = plan_wire(plan, op);
    const bool add = plan->schedule->ops[op].kind == SCHED_RECV_REDUCE;
    const uint64_t elements = plan_elements(plan, op, n);
    if (wire != INSPAN_WIRE_FP32 && add)
        codec_add(wire, to, bytes, elements);
    else if (wire != INSPAN_WIRE_FP32)
        codec_decode(wire, to, bytes, elements);
    else if (add)
        reduce_apply((inspan_dtype_t)plan->call.dtype, (inspan_reduction_t)plan->call.reduction, to, bytes,
                     elements);
    else
        memcpy(to, bytes, n);
}

void exec_consume(inspan_comm_t *comm, comm_run_t *run, uint32_t op)
{
    const sched_op_t *what = &run->plan->schedule->ops[op];
    page_chain_t *chain = &run->chain[op];
    uint64_t window_bytes = 0;
    while (chain->first != COMM_NONE) {
        const uint32_t index = chain->first;
        page_t *page = &comm->stage.pages[index];
        const uint8_t *bytes = comm->stage.memory + (size_t)index * COMM_PAGE;
        if (page->bytes > 0)
            exec_apply(run, op, run_place(run, op, (sched_buffer_t)what->dst, run->moved[op]), bytes,
                       page->bytes);
        run->moved[op] += page->bytes;
        chain->first = page->next;
        if (page->charge == DATA_EAGER) exec_credit(comm, run, what->peer, COMM_PAGE, true);
        if (page->charge == DATA_WINDOW) window_bytes += COMM_PAGE;
        stage_give(&comm->stage, index);
    }
    if (window_bytes > 0) exec_credit(comm, run, what->peer, window_bytes, false);
    if (run->whole[op] && run->moved[op] == run->arrived[op]) exec_finish_op(comm, run, op);
}

/* One operation that is no SEND; bytes worked on. */
static uint64_t work_on(inspan_comm_t *comm, comm_run_t *run, uint32_t op)
{
    const sched_op_t *what = &run->plan->schedule->ops[op];
    const comm_plan_t *plan = run->plan;
    const inspan_wire_t wire = plan_wire(plan, op);
    const uint64_t count = plan_count(plan, op), bytes = count * plan->element_size;
    if (what->kind == SCHED_RECV || what->kind == SCHED_RECV_REDUCE) {
        run->waits[op] = RECV_STARTED;
        exec_consume(comm, run, op);
        return 0;
    }
    uint8_t *to = run_place(run, op, (sched_buffer_t)what->dst, 0);
    const uint8_t *from = run_place(run, op, (sched_buffer_t)what->src, 0);
    if (wire != INSPAN_WIRE_FP32) /* the own contribution counts as others' do */
        codec_pass(wire, what->kind == SCHED_REDUCE, to, from, run_error(run, op, 0), count);
    else if (what->kind == SCHED_REDUCE)
        reduce_apply((inspan_dtype_t)plan->call.dtype, (inspan_reduction_t)plan->call.reduction, to, from,
                     count);
    else if (to != from && bytes > 0)
        memcpy(to, from, bytes);
    exec_finish_op(comm, run, op);
    return bytes;
}

/* ---- Runs: begin, end ------------------------------------------------------------------------ */

/* Open windows for the oldest operations. */
static void open_windows(inspan_comm_t *comm)
{
    for (uint64_t seq = comm->oldest; seq <= comm->posted && comm->n_open < COMM_OPEN_WINDOWS; seq++) {
        comm_run_t *run = exec_run(comm, seq);
        if (run == NULL || run->open) continue;
        run->open = true;
        comm->n_open++;
        for (uint32_t peer = 0; peer < comm->world; peer++) {
            const uint64_t window = run->uncovered[peer] < COMM_WINDOW ? run->uncovered[peer] : COMM_WINDOW;
            if (window == 0) continue;
            run->uncovered[peer] -= window;
            run->to_tell[peer] = window;
            if (comm->peers[peer].tx.posted < seq) continue; /* its POST will tell */
            run->tell[peer] = true;
            comm->peers[peer].credits_due++;
            exec_mark(comm, peer);
        }
    }
}

/* Take the run out of the active ones; give its handle the status. */
void exec_run_end(inspan_comm_t *comm, comm_run_t *run, inspan_status_t status)
{
    comm->runs[run->seq % COMM_RING] = NULL;
    comm->n_active--;
    comm->n_open -= run->open;
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (run->tell[peer]) comm->peers[peer].credits_due--;
    while (comm->oldest <= comm->posted && comm->runs[comm->oldest % COMM_RING] == NULL) comm->oldest++;
    inspan_op_t *op = run->op;
    pthread_mutex_lock(&comm->lock);
    plan_return_run(run);
    pthread_mutex_unlock(&comm->lock);
    if (op != NULL) comm_op_finish(comm, op, status);
}

void exec_run_done(inspan_comm_t *comm, comm_run_t *run)
{
    exec_run_end(comm, run, INSPAN_OK);
    if (comm->n_active == 0) tune_note(comm);
    open_windows(comm);
}

void exec_drop_all(inspan_comm_t *comm, inspan_status_t status)
{
    for (uint64_t seq = comm->oldest; comm->n_active > 0 && seq <= comm->posted; seq++) {
        comm_run_t *run = comm->runs[seq % COMM_RING];
        if (run != NULL && !run->held) exec_run_end(comm, run, status);
    }
    while (comm->waiting_first != NULL) {
        comm_run_t *run = comm->waiting_first;
        comm->waiting_first = run->next;
        inspan_op_t *op = run->op;
        pthread_mutex_lock(&comm->lock);
        plan_return_run(run);
        pthread_mutex_unlock(&comm->lock);
        comm_op_finish(comm, op, status);
    }
    comm->working = false;
    transfer_drop_all(comm, status);
}

void exec_listen(inspan_comm_t *comm)
{
    if (comm->n_active + comm->n_transfers > 0) return;
    const ns_t now = comm->transport->now(comm->transport_self);
    for (uint32_t peer = 0; peer < comm->world; peer++) comm->peers[peer].heard = now;
}

/* Both sides of a pair have started operation seq: are they the same? */
void exec_check_call(inspan_comm_t *comm, uint32_t peer, uint64_t seq)
{
    const data_call_t *own = &comm->calls[seq % COMM_RING],
                      *other = &comm->peers[peer].calls[seq % COMM_RING].call;
    const bool same_kind = own->collective == other->collective && own->dtype == other->dtype &&
                           own->reduction == other->reduction && own->wire == other->wire &&
                           own->exact_tail == other->exact_tail && own->owners == other->owners &&
                           own->root == other->root && own->count == other->count;
    if (same_kind && own->algorithm == other->algorithm && own->layout == other->layout) return;
    char texts[2][INSPAN_NAME_MAX + 32];
    comm_describe_call(comm, own, seq, texts[0], sizeof texts[0]);
    comm_describe_call(comm, other, seq, texts[1], sizeof texts[1]);
    const bool first = comm->rank < peer; /* the same text on both sides */
    fail_peer(comm, comm->rank < peer ? peer : comm->rank, INSPAN_MISMATCH,
              "rank %u called %s, rank %u %s%s; all ranks must make the same calls in the same order",
              comm_number(comm, first ? comm->rank : peer), texts[first ? 0 : 1],
              comm_number(comm, first ? peer : comm->rank), texts[first ? 1 : 0],
              same_kind ? ", with other schedule options (algorithm, chunk size or weights)" : "");
}

/* Transfers that came before: hand them over to the run. */
static void adopt_early(inspan_comm_t *comm, comm_run_t *run, uint32_t peer)
{
    for (int i = 0; i < MAX_EARLY; i++) {
        early_t *early = &comm->peers[peer].early[i];
        if (early->seq != run->seq) continue;
        const uint32_t op = plan_find_recv(run->plan, peer, early->chunk, early->tag);
        const uint64_t expected = op == COMM_NONE ? 0 : plan_bytes(run->plan, op);
        if (op == COMM_NONE || early->arrived > expected ||
            !plan_whole(run->plan, op, early->arrived, expected - early->arrived)) {
            fail_protocol(comm, peer, "a transfer that the operation does not have");
            return;
        }
        run->chain[op] = early->chain;
        run->arrived[op] = early->arrived;
        run->whole[op] = early->arrived == expected;
        early->seq = 0;
    }
}

static void run_begin(inspan_comm_t *comm, comm_run_t *run)
{
    exec_listen(comm);
    run->seq = ++comm->posted;
    run->since = comm->transport->now(comm->transport_self);
    if (comm->n_active == 0) {
        comm->oldest = run->seq;
        meter_begin(&comm->meter, run->since);
    }
    comm->runs[run->seq % COMM_RING] = run;
    comm->calls[run->seq % COMM_RING] = run->plan->call;
    comm->n_active++;
    for (uint32_t peer = 0; peer < comm->world && comm->health == COMM_HEALTHY; peer++) {
        if (peer == comm->rank) continue;
        comm_peer_t *p = &comm->peers[peer];
        if (p->posted >= run->seq) {
            exec_check_call(comm, peer, run->seq);
            if (comm->health == COMM_HEALTHY) adopt_early(comm, run, peer);
        } else if (p->bye) {
            fail_peer(comm, peer, INSPAN_PEER_LOST, "closed after %llu operations, while others go on",
                      (unsigned long long)p->posted);
        }
    }
    if (comm->health != COMM_HEALTHY) return;
    open_windows(comm);
    mark_all(comm);
    if (run->plan->call.algorithm == DATA_BY_BACKEND) {
        engine_offer(comm);
        return;
    }
    if (run->left == 0) {
        exec_run_done(comm, run);
        return;
    }
    for (uint32_t op = 0; op < run->plan->schedule->n_ops; op++)
        if (run->plan->waits[op] == 0) may_start(comm, run, op);
}

/* May one more operation begin? Not too far ahead of a peer: what is said about calls is kept in rings. */
static bool may_begin(const inspan_comm_t *comm)
{
    if (comm->n_active > 0 && comm->posted + 1 - comm->oldest >= COMM_MAX_AHEAD) return false;
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (peer != comm->rank && comm->posted + 1 > comm->peers[peer].posted + COMM_MAX_AHEAD &&
            !comm->peers[peer].bye)
            return false;
    return true;
}

static void begin_waiting(inspan_comm_t *comm)
{
    while (comm->health == COMM_HEALTHY && comm->waiting_first != NULL && may_begin(comm)) {
        comm_run_t *run = comm->waiting_first;
        comm->waiting_first = run->next;
        run_begin(comm, run);
    }
}

/* ---- The pump -------------------------------------------------------------------------------- */

/* The oldest run that has work, or NULL. */
static comm_run_t *next_work(inspan_comm_t *comm)
{
    for (uint64_t seq = comm->oldest; seq <= comm->posted; seq++) {
        comm_run_t *run = comm->runs[seq % COMM_RING];
        if (run != NULL && run->work_head < run->work_tail) return run;
    }
    comm->working = false;
    return NULL;
}

static void flush_dirty(inspan_comm_t *comm)
{
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (comm->peers[peer].dirty) {
            comm->peers[peer].dirty = false;
            tx_flush(comm, peer);
        }
}

/* One step of local work; how many bytes, at least 1, or 0: there is none. */
static uint64_t work_once(inspan_comm_t *comm)
{
    if (comm->health != COMM_HEALTHY) return 0;
    uint64_t done = transfer_copy(comm);
    comm_run_t *run = comm->working ? next_work(comm) : NULL;
    if (run != NULL) done += 1 + work_on(comm, run, run->work[run->work_head++]);
    return done;
}

/* Do all that can be done now: what goes out first, it keeps others busy. */
static void pump(inspan_comm_t *comm)
{
    uint64_t done = 0;
    for (;;) {
        begin_waiting(comm);
        flush_dirty(comm);
        if (done >= WORK_BYTES) { /* let the sockets have their turn */
            comm_wake(comm);
            return;
        }
        const uint64_t worked = work_once(comm);
        done += worked;
        if (worked == 0) {
            bool dirty = false;
            for (uint32_t peer = 0; peer < comm->world; peer++) dirty |= comm->peers[peer].dirty;
            if (dirty || (comm->waiting_first != NULL && comm->health == COMM_HEALTHY && may_begin(comm)))
                continue;
            return;
        }
    }
}

/* ---- Entry points ---------------------------------------------------------------------------- */

static void begin_closing(inspan_comm_t *comm)
{
    comm->close_until = comm->transport->now(comm->transport_self) + NS_PER_S;
    if (comm->health == COMM_HEALTHY &&
        (comm->n_active + comm->n_transfers > 0 || comm->waiting_first != NULL)) {
        inspan_cause_t cause;
        comm_own_cause(comm, &cause, "close", "closed the communicator with operations pending");
        fail_propose(comm, &cause);
    }
    fail_settle(comm, true);
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        if (comm->health == COMM_HEALTHY) comm->peers[peer].tx.bye = true;
        exec_mark(comm, peer);
    }
}

/* Closing: done when all that was promised has arrived, or its time is over. */
static void continue_closing(inspan_comm_t *comm)
{
    const ns_t now = comm->transport->now(comm->transport_self);
    bool done = true;
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (peer != comm->rank && !comm->peers[peer].gone)
            done &= tx_idle(comm, peer) && comm->transport->drained(comm->transport_self, peer);
    if (!done && now < comm->close_until) {
        comm->transport->tick_in(comm->transport_self, NS_PER_MS);
        return;
    }
    if (comm->n_held > 0) return; /* the backend was aborted: it gives them back at once, and wakes us */
    comm->transport->stop(comm->transport_self);
    for (uint32_t peer = 0; peer < comm->world; peer++) comm->peers[peer].gone = true;
    pthread_mutex_lock(&comm->lock);
    comm->closed = true; /* the last thing: the closing thread frees everything */
    os_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void exec_wake(inspan_comm_t *comm)
{
    inspan_cause_t proposal;
    pthread_mutex_lock(&comm->lock);
    comm->wake_sent = false;
    comm_run_t *first = comm->queued_first, *last = comm->queued_last;
    comm->queued_first = comm->queued_last = NULL;
    transfer_queue_t transfers = comm->queued_transfers;
    comm->queued_transfers = (transfer_queue_t){0};
    const bool proposed = comm->proposed, closing = comm->closing && !comm->closed;
    const ns_t expired = comm->expired;
    comm->proposed = false;
    comm->expired = 0;
    if (proposed) proposal = comm->proposal;
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (comm->peers[peer].messages.first != NULL) exec_mark(comm, peer);
    pthread_mutex_unlock(&comm->lock);

    if (first != NULL) {
        const ns_t now = comm->transport->now(comm->transport_self);
        for (comm_run_t *run = first; run != NULL; run = run->next) run->since = now;
        if (comm->waiting_first == NULL)
            comm->waiting_first = first;
        else
            comm->waiting_last->next = first;
        comm->waiting_last = last;
    }
    for (comm_transfer_t *transfer; (transfer = transfer_pop(&transfers)) != NULL;)
        transfer_begin(comm, transfer);
    if (proposed) fail_propose(comm, &proposal);
    if (expired > 0) fail_expired(comm, expired);
    engine_take_back(comm);
    if (comm->health == COMM_FAILED) exec_drop_all(comm, comm->cause.status);
    message_deliver_kept(comm);
    if (closing && comm->close_until == 0) begin_closing(comm);
    pump(comm);
    if (closing) continue_closing(comm);
}

void exec_readable(inspan_comm_t *comm, uint32_t peer)
{
    if (!comm->peers[peer].gone) rx_read(comm, peer);
    fail_settle(comm, false);
    pump(comm);
}

void exec_writable(inspan_comm_t *comm, uint32_t peer)
{
    comm->peers[peer].tx.blocked = false;
    exec_mark(comm, peer);
    pump(comm);
}

/* Peers that are silent although something is expected. Every I/O thread pings when it has nothing else to
 * say. */
static void watch_peers(inspan_comm_t *comm, ns_t now)
{
    const bool slept = comm->last_tick != 0 && now - comm->last_tick > comm->failure_timeout / 2;
    comm->last_tick = now;
    for (uint32_t peer = 0; peer < comm->world && comm->health == COMM_HEALTHY; peer++) {
        comm_peer_t *p = &comm->peers[peer];
        if (peer == comm->rank || p->gone || p->bye) continue;
        if (slept) p->heard = now; /* it was we who were stopped: look again */
        if (now - p->tx.last >= comm->failure_timeout / 4) {
            p->tx.ping = true;
            exec_mark(comm, peer);
        }
        if (comm->n_active + comm->n_transfers > 0 && now - p->heard > 2 * comm->failure_timeout)
            fail_peer(comm, peer, INSPAN_PEER_LOST,
                      "connected but silent for %.1f s: its process is stopped, or the link to it is broken",
                      ns_to_s(now - p->heard));
    }
}

void exec_tick(inspan_comm_t *comm)
{
    const ns_t now = comm->transport->now(comm->transport_self);
    if (comm->health == COMM_SETTLING) fail_settle(comm, false);
    engine_tick(comm);
    if (comm->health == COMM_HEALTHY) watch_peers(comm, now);
    pump(comm);
    pthread_mutex_lock(&comm->lock);
    const bool closing = comm->closing && !comm->closed;
    pthread_mutex_unlock(&comm->lock);
    if (closing && comm->close_until != 0) continue_closing(comm);
}
