/*
 * The first failure ends the communicator.
 *
 *   HEALTHY --a failure--> SETTLING --all last words are in, or 80 ms--> FAILED
 *
 * SETTLING: no data moves any more, the cause has gone to all peers (ABORT), theirs come in. Each rank keeps
 * the cause with the lowest rank at fault (an unknown one counts as highest; of equal ones the first), and
 * hands on one that it found itself. After 20 ms it says its last word: ABORT again, marked so; from then on
 * it adds nothing of its own. The lowest of all last words is the cause. So when one failure is noticed in
 * several ways, or two ranks die at once, all that can still hear each other within 80 ms end with the same
 * cause, at almost the same time. FAILED: all pending operations finish with its status, later calls fail at
 * once.
 *
 * Where nobody is at fault (ABORTED, rank -1: a newer view ends this one) there is nothing to find out, and
 * the last word is said at once.
 *
 * A peer that broke the protocol is not heard any more (`deaf` to it: its bytes go nowhere), but its stream
 * stays until the communicator closes: it must hear why, or it would blame this rank for a closed connection.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "comm/backends/engine.h"

#define SETTLE_LEAST (20 * NS_PER_MS)
#define SETTLE_MOST  (80 * NS_PER_MS) /* all ranks must know of a failure within 100 ms */

/* Which of two causes counts: the lower one. Unknown ranks (-1) come last. */
static uint64_t order(const inspan_cause_t *cause)
{
    return (uint64_t)(uint32_t)cause->rank << 32 | (uint32_t)cause->noticed_by;
}

/* How long others may still bring a better cause. */
static ns_t settle_least(const inspan_comm_t *comm)
{
    return comm->cause.rank < 0 && comm->cause.status == INSPAN_ABORTED ? 0 : SETTLE_LEAST;
}

static void mark_aborts(inspan_comm_t *comm)
{
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        if (peer == comm->rank || comm->peers[peer].gone) continue;
        comm->peers[peer].tx.abort = true;
        exec_mark(comm, peer);
    }
}

/* One of the causes that are known now. */
static void consider(inspan_comm_t *comm, const inspan_cause_t *cause)
{
    if (comm->health == COMM_FAILED) return;
    /* comm->cause is also read by calling threads, but only once `failed` is set */
    if (comm->health == COMM_SETTLING) {
        if (order(cause) >= order(&comm->cause)) return;
        comm->cause = *cause;
    } else {
        comm->health = COMM_SETTLING;
        comm->cause = *cause;
        comm->settle_since = comm->transport->now(comm->transport_self);
        comm->transport->tick_in(comm->transport_self, settle_least(comm));
        engine_abort(comm);
        for (uint32_t peer = 0; peer < comm->world; peer++) {
            if (peer == comm->rank || comm->peers[peer].gone) continue;
            rx_discard(comm, peer);
            tx_rescue(comm, peer);
        }
    }
    mark_aborts(comm);
}

void fail_propose(inspan_comm_t *comm, const inspan_cause_t *cause)
{
    if (!comm->last_word) consider(comm, cause);
}

void fail_heard(inspan_comm_t *comm, uint32_t peer, const inspan_cause_t *cause, bool last_word)
{
    comm->peers[peer].aborted = true;
    comm->peers[peer].last_word |= last_word;
    consider(comm, cause);
}

/* Has everybody said its last word that will say one? */
static bool all_said(const inspan_comm_t *comm)
{
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        const comm_peer_t *p = &comm->peers[peer];
        const bool lost = comm->cause.status == INSPAN_PEER_LOST && comm->cause.rank == (int32_t)peer;
        if (peer != comm->rank && !p->gone && !p->deaf && !p->bye && !lost && !p->last_word) return false;
    }
    return true;
}

void fail_settle(inspan_comm_t *comm, bool now)
{
    if (comm->health != COMM_SETTLING) return;
    const ns_t took = comm->transport->now(comm->transport_self) - comm->settle_since;
    if (!comm->last_word && (now || took >= settle_least(comm))) {
        comm->last_word = true;
        mark_aborts(comm);
    }
    if (!now && took < SETTLE_MOST && !(comm->last_word && all_said(comm))) {
        comm->transport->tick_in(comm->transport_self, (comm->last_word ? SETTLE_MOST : SETTLE_LEAST) - took);
        return;
    }
    comm->health = COMM_FAILED;
    log_info("comm: rank %u: %s", comm_number(comm, comm->rank), comm->cause.text);
    pthread_mutex_lock(&comm->lock);
    comm->failed = true;
    pthread_mutex_unlock(&comm->lock);
    exec_drop_all(comm, comm->cause.status);
    fail_tell_listeners(comm);
}

/* What this rank was doing: the oldest operation, and for how long. */
static void fill_operation(inspan_comm_t *comm, inspan_cause_t *cause)
{
    comm_run_t *run = comm->n_active > 0 ? exec_run(comm, comm->oldest) : NULL;
    const comm_transfer_t *transfer = transfer_oldest(comm);
    if (transfer != NULL && (run == NULL || transfer->since < run->since)) {
        cause->waited_ns = comm->transport->now(comm->transport_self) - transfer->since;
        transfer_describe(transfer, cause->operation, sizeof cause->operation);
        return;
    }
    if (run == NULL) {
        snprintf(cause->operation, sizeof cause->operation, "between operations");
        return;
    }
    cause->waited_ns = comm->transport->now(comm->transport_self) - run->since;
    comm_describe_call(comm, &run->plan->call, run->seq, cause->operation, sizeof cause->operation);
}

void fail_peer(inspan_comm_t *comm, uint32_t peer, inspan_status_t status, const char *format, ...)
{
    if (comm->health == COMM_FAILED) return;
    const inspan_member_t *member = &comm->members[peer];
    inspan_cause_t cause = {.status = status, .rank = (int32_t)peer, .noticed_by = (int32_t)comm->rank};
    memcpy(cause.node, member->node, sizeof cause.node);
    const bool v6 = strchr(member->address, ':') != NULL;
    snprintf(cause.address, sizeof cause.address, "%s%.50s%s:%u", v6 ? "[" : "", member->address,
             v6 ? "]" : "", member->port);
    fill_operation(comm, &cause);
    char what[256], waited[32];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (status == INSPAN_MISMATCH)
        snprintf(cause.text, sizeof cause.text, "%s", what);
    else
        snprintf(cause.text, sizeof cause.text,
                 "rank %u (node %.24s, %.30s) %.90s; noticed by rank %u after %s in %.40s", member->number,
                 cause.node, cause.address, what, comm_number(comm, comm->rank),
                 units_format_duration(cause.waited_ns, waited, sizeof waited), cause.operation);
    fail_propose(comm, &cause);
}

void fail_protocol(inspan_comm_t *comm, uint32_t peer, const char *what)
{
    comm_peer_t *p = &comm->peers[peer];
    if (p->gone || p->deaf) return;
    fail_peer(comm, peer, INSPAN_CORRUPT, "sent %s", what);
    p->deaf = true; /* nothing that follows on this stream can be trusted */
}

/* The peer that made the fewest calls: operations that have not begun wait for it. */
static uint32_t furthest_behind(const inspan_comm_t *comm)
{
    uint32_t behind = COMM_NONE;
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (peer != comm->rank &&
            (behind == COMM_NONE || comm->peers[peer].posted < comm->peers[behind].posted))
            behind = peer;
    return behind;
}

/* The first peer that did not call run's operation, or whose data are missing. COMM_NONE: it waits for none
 * of them. */
static uint32_t awaited(const inspan_comm_t *comm, const comm_run_t *run, bool *called)
{
    const schedule_t *schedule = run->plan->schedule;
    *called = false;
    if (run == comm->waiting_first) return furthest_behind(comm);
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (peer != comm->rank && comm->peers[peer].posted < run->seq) return peer;
    *called = true;
    for (uint32_t op = 0; op < schedule->n_ops; op++) {
        const sched_op_t *what = &schedule->ops[op];
        const bool receives = what->kind == SCHED_RECV || what->kind == SCHED_RECV_REDUCE;
        if (receives && !run->whole[op]) return what->peer;
    }
    for (uint32_t op = 0; op < schedule->n_ops; op++)
        if (schedule->ops[op].kind == SCHED_SEND && run->moved[op] < plan_bytes(run->plan, op))
            return schedule->ops[op].peer;
    return COMM_NONE;
}

void fail_expired(inspan_comm_t *comm, ns_t pending)
{
    if (comm->health != COMM_HEALTHY) return;
    const ns_t before = comm->transport->now(comm->transport_self) - pending;
    const comm_run_t *run = comm->n_active > 0 ? exec_run(comm, comm->oldest) : comm->waiting_first;
    const comm_transfer_t *transfer = transfer_oldest(comm);
    if (transfer != NULL && (run == NULL || transfer->since < run->since)) {
        const bool met = transfer->phase == TRANSFER_MOVING && (!transfer->receive || transfer->moved > 0);
        const char *missing = transfer->receive ? "did not send" : "did not receive";
        if (transfer->since <= before)
            fail_peer(comm, transfer->peer, INSPAN_TIMEOUT, "%s in time", met ? "stopped half way" : missing);
        return;
    }
    if (run == NULL || run->since > before) return;
    bool called = false;
    const uint32_t peer = awaited(comm, run, &called);
    if (peer == COMM_NONE)
        fail_peer(comm, comm->rank, INSPAN_TIMEOUT, "is not through in time");
    else if (called)
        fail_peer(comm, peer, INSPAN_TIMEOUT, "made the call, but its data did not come in time");
    else
        fail_peer(comm, peer, INSPAN_TIMEOUT, "did not make this call in time (it made %llu)",
                  (unsigned long long)comm->peers[peer].posted);
}

/* ---- Listeners ------------------------------------------------------------------------------- */

/* The next one that was not told yet, marked as told; its fn is NULL if there is none. */
static failure_listener_t next_listener(inspan_comm_t *comm)
{
    failure_listener_t next = {0};
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < COMM_MAX_LISTENERS && next.fn == NULL; i++)
        if (comm->listeners[i].fn != NULL && !comm->listeners[i].told) {
            comm->listeners[i].told = true;
            next = comm->listeners[i];
        }
    comm->handler_running = next.fn != NULL;
    if (next.fn == NULL) os_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return next;
}

void fail_tell_listeners(inspan_comm_t *comm)
{
    for (failure_listener_t next; (next = next_listener(comm)).fn != NULL;)
        next.fn(next.context, &comm->cause);
}

inspan_status_t comm_add_failure_handler(inspan_comm_t *comm, comm_failure_fn fn, void *context)
{
    inspan_status_t status = INSPAN_LIMIT;
    pthread_mutex_lock(&comm->lock);
    const bool failed = comm->failed;
    for (int i = 0; i < COMM_MAX_LISTENERS && status != INSPAN_OK; i++) {
        if (comm->listeners[i].fn != NULL) continue;
        comm->listeners[i] = (failure_listener_t){fn, context, failed};
        status = INSPAN_OK;
    }
    pthread_mutex_unlock(&comm->lock);
    if (status == INSPAN_OK && failed) fn(context, &comm->cause);
    return status;
}

void comm_remove_failure_handler(inspan_comm_t *comm, comm_failure_fn fn, void *context)
{
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < COMM_MAX_LISTENERS; i++)
        if (comm->listeners[i].fn == fn && comm->listeners[i].context == context)
            comm->listeners[i] = (failure_listener_t){0};
    message_wait_for_handler(comm);
    pthread_mutex_unlock(&comm->lock);
}
