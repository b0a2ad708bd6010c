/*
 * The communicator of a view as the simulator has it: opening (every pair, then all agree), an executor of
 * the real schedules over pipes, sends and receives, small messages, the first failure poisons. The bytes of
 * src/comm's frames are not simulated here (its own sim transport does that); which data meets which
 * operation is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/internal.h"

/* ---- Schedules are built once a process -------------------------------------------------------- */

enum { CACHE_WIDTHS = SIM_WIDTH + 1, CHUNK_BYTES = 64 };
static schedule_t *cache[SCHED_ALGORITHMS][SIM_WORLD + 1][SIM_WORLD][CACHE_WIDTHS];

static const schedule_t *schedule_of(sim_t *sim, uint32_t world, uint32_t rank, uint32_t count)
{
    schedule_t **slot = &cache[sim->config.algorithm][world][rank][count];
    if (*slot != NULL) return *slot;
    sched_request_t request = {.collective = SCHED_ALLREDUCE,
                               .algorithm = (sched_algorithm_t)sim->config.algorithm,
                               .world = world,
                               .rank = rank,
                               .count = count,
                               .element_size = sizeof(double),
                               .chunk_bytes = CHUNK_BYTES};
    if (sched_build(&request, slot) != INSPAN_OK) abort();
    if ((*slot)->n_ops > SIM_OPS || (*slot)->tmp_elements > SIM_WORLD * SIM_WIDTH) abort();
    return *slot;
}

void sim_comm_free_cache(void)
{
    for (uint32_t a = 0; a < SCHED_ALGORITHMS; a++)
        for (uint32_t w = 0; w <= SIM_WORLD; w++)
            for (uint32_t r = 0; r < SIM_WORLD; r++)
                for (uint32_t c = 0; c < CACHE_WIDTHS; c++) {
                    sched_free(cache[a][w][r][c]);
                    cache[a][w][r][c] = NULL;
                }
}

/* ---- Opening and closing ----------------------------------------------------------------------- */

static uint32_t peer_of(const sim_comm_t *comm, const sim_pipe_t *pipe)
{
    for (uint32_t r = 0; r < comm->world; r++)
        if (comm->in[r] == pipe || comm->out[r] == pipe) return r;
    return SIM_WORLD;
}

static void tell_all(sim_t *sim, sim_comm_t *comm, uint32_t type, uint32_t a, const char *text)
{
    for (uint32_t r = 0; r < comm->world; r++) {
        if (r == comm->me) continue;
        sim_msg_t *msg = sim_msg(type, text, text != NULL ? (uint32_t)strlen(text) + 1 : 0);
        msg->a = a;
        sim_send(sim, comm->out[r], SIM_LANE_WORDS, msg);
    }
}

static void drop_all(sim_comm_t *comm)
{
    for (uint32_t i = 0; i < SIM_BUCKETS; i++) {
        sim_msgs_free(comm->ops[i].early);
        comm->ops[i].early = NULL;
    }
    sim_msgs_free(comm->early);
    comm->early = NULL;
    comm->n_takes = 0;
}

void sim_comm_drop(sim_worker_t *worker)
{
    drop_all(&worker->comm);
}

static void maybe_open(sim_t *sim, sim_worker_t *worker)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPENING) return;
    for (uint32_t r = 0; r < comm->world; r++)
        if (r != comm->me && !comm->hello[r]) return;
    if (!comm->told_opened) {
        comm->told_opened = true;
        tell_all(sim, comm, SIM_OPENED, 0, NULL);
    }
    for (uint32_t r = 0; r < comm->world; r++)
        if (r != comm->me && !comm->opened[r]) return;
    comm->state = SIM_COMM_OPEN;
    for (uint32_t r = 0; r < comm->world; r++) comm->heard[r] = sim->now;
    sim_worker_comm_open(sim, worker);
}

/* Planted bugs that need the word of older views. */
static bool hears_old(void)
{
    return sim_planted(OLDMSG) || sim_planted(OLDCONN) || sim_planted(LATECHUNK) || sim_planted(BLINDCHUNK);
}

void sim_comm_open(sim_t *sim, sim_worker_t *worker, const sim_view_t *view)
{
    sim_comm_t *comm = &worker->comm;
    sim_msg_t *carried = NULL;
    if (sim_planted(CARRYOVER)) {
        carried = comm->early;
        comm->early = NULL;
    }
    drop_all(comm);
    memset(comm, 0, sizeof *comm);
    comm->early = carried;
    comm->state = SIM_COMM_OPENING;
    comm->view = view->number;
    comm->world = view->world;
    comm->since = sim->now;
    for (uint32_t r = 0; r < view->world; r++) {
        comm->slots[r] = view->numbers[r];
        if (view->numbers[r] == worker->slot) comm->me = r;
    }
    const sim_process_t me = sim_worker_process(worker->slot);
    const uint32_t known = sim->n_pipes;
    for (uint32_t r = 0; r < comm->world; r++) {
        if (r == comm->me) continue;
        comm->out[r] =
            sim_pipe_open(sim, SIM_PIPE_DATA, me, sim_worker_process(comm->slots[r]), view->number);
        sim_send(sim, comm->out[r], SIM_LANE_WORDS, sim_msg(SIM_HELLO, NULL, 0));
    }
    for (uint32_t i = 0; i < known; i++) { /* who called before we knew of the view */
        sim_pipe_t *pipe = sim->pipes[i];
        if (pipe->kind != SIM_PIPE_DATA || pipe->to != me) continue;
        if (pipe->view < view->number && !hears_old()) sim_pipe_close_to(sim, pipe);
        if (pipe->view == view->number) sim_net_kick(sim, pipe);
    }
    maybe_open(sim, worker);
}

void sim_comm_close(sim_t *sim, sim_worker_t *worker)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state == SIM_COMM_NONE) return;
    for (uint32_t i = 0; i < comm->n_ops && i < SIM_BUCKETS && sim_planted(OLDMSG); i++)
        if (comm->ops[i].left != UINT32_MAX) worker->late |= 1u << comm->ops[i].bucket;
    worker->late_view = comm->view;
    if (!sim_planted(CARRYOVER)) drop_all(comm);
    for (uint32_t r = 0; r < comm->world; r++) {
        sim_pipe_close_from(sim, comm->out[r]);
        if (!hears_old()) sim_pipe_close_to(sim, comm->in[r]);
    }
    comm->state = SIM_COMM_NONE;
}

/* culprit: dense rank + 1, 0 unknown. tell: the others do not know yet. */
void sim_comm_poison(sim_t *sim, sim_worker_t *worker, uint32_t culprit, bool tell, const char *text)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPEN && comm->state != SIM_COMM_OPENING) return;
    comm->cause_opening = comm->state == SIM_COMM_OPENING;
    comm->cause_rank = culprit;
    snprintf(comm->cause_text, sizeof comm->cause_text, "%s", text);
    if (tell) tell_all(sim, comm, SIM_ABORT, culprit, text);
    if (!sim_planted(CARRYOVER)) drop_all(comm);
    for (uint32_t r = 0; r < comm->world; r++) {
        sim_pipe_close_from(sim, comm->out[r]);
        if (!hears_old()) sim_pipe_close_to(sim, comm->in[r]);
    }
    comm->state = SIM_COMM_POISONED;
    sim_worker_poisoned(sim, worker);
}

void sim_comm_ended(sim_t *sim, sim_worker_t *worker, sim_pipe_t *pipe)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPEN && comm->state != SIM_COMM_OPENING) return;
    uint32_t peer = peer_of(comm, pipe);
    if (peer == SIM_WORLD) return;
    char text[128];
    snprintf(text, sizeof text, "rank %u (node %u): connection closed, noticed by rank %u", comm->slots[peer],
             sim->workers[comm->slots[peer]]->host, worker->slot);
    sim_comm_poison(sim, worker, peer + 1, true, text);
}

static bool pings(const sim_t *sim, const sim_worker_t *me, uint32_t peer)
{
    const sim_worker_t *other = sim->workers[me->comm.slots[peer]];
    const sim_process_t process = sim_worker_process(other->slot);
    if (!sim_alive(sim, process) || sim_frozen(sim, process)) return false;
    if (other->comm.view != me->comm.view || other->comm.state == SIM_COMM_NONE) return false;
    return sim_net_reaches(sim, other->host, me->host);
}

/* Every fifth of failure_timeout. What the peers' pings would have told is looked up instead of sent. */
void sim_comm_tick(sim_t *sim, sim_worker_t *worker)
{
    sim_comm_t *comm = &worker->comm;
    char text[128];
    if (comm->state == SIM_COMM_OPENING && sim->now - comm->since > 2 * sim->config.failure_timeout) {
        uint32_t missing = 0;
        for (uint32_t r = comm->world; r-- > 0;)
            if (r != comm->me && (!comm->hello[r] || (!comm->opened[r] && missing == 0))) missing = r + 1;
        snprintf(text, sizeof text, "rank %u: no connection within %.1f s, noticed by rank %u",
                 missing > 0 ? comm->slots[missing - 1] : 0, ns_to_s(2 * sim->config.failure_timeout),
                 worker->slot);
        sim_comm_poison(sim, worker, missing, true, text);
    }
    if (comm->state != SIM_COMM_OPEN) return;
    for (uint32_t r = 0; r < comm->world; r++) {
        if (r == comm->me) continue;
        if (pings(sim, worker, r)) comm->heard[r] = sim->now;
        if (sim->now - comm->heard[r] <= sim->config.failure_timeout) continue;
        snprintf(text, sizeof text, "rank %u (node %u): silent for %.1f s, noticed by rank %u",
                 comm->slots[r], sim->workers[comm->slots[r]]->host, ns_to_s(sim->now - comm->heard[r]),
                 worker->slot);
        sim_comm_poison(sim, worker, r + 1, true, text);
        return;
    }
}

/* ---- Running a schedule ------------------------------------------------------------------------ */

static double *place(sim_worker_t *worker, sim_op_t *op, const sched_op_t *o, uint8_t buffer)
{
    const uint64_t first = op->schedule->chunks[o->chunk].first;
    switch (buffer) {
    case SCHED_IN: return worker->local.values[op->bucket] + first;
    case SCHED_OUT: return worker->reduced.values[op->bucket] + first;
    default: return op->tmp + o->tmp_offset;
    }
}

static sim_msg_t *take_piece(sim_op_t *op, uint32_t from, const sched_op_t *o)
{
    for (sim_msg_t **at = &op->early; *at != NULL; at = &(*at)->next) {
        sim_msg_t *msg = *at;
        if (msg->d != from || msg->b != (o->chunk | o->tag << 16)) continue;
        *at = msg->next;
        return msg;
    }
    return NULL;
}

static void send_piece(sim_t *sim, sim_worker_t *worker, sim_op_t *op, const sched_op_t *o)
{
    const uint64_t count = op->schedule->chunks[o->chunk].count;
    sim_msg_t *msg = sim_msg(SIM_PIECE, place(worker, op, o, o->src), (uint32_t)(count * sizeof(double)));
    msg->a = op->number;
    msg->b = o->chunk | (uint32_t)o->tag << 16;
    msg->c = op->bucket;
    sim_send(sim, worker->comm.out[o->peer], SIM_LANE_BULK, msg);
}

static bool run_one(sim_t *sim, sim_worker_t *worker, sim_op_t *op, const sched_op_t *o)
{
    const uint64_t count = op->schedule->chunks[o->chunk].count;
    double *dst = o->kind == SCHED_SEND ? NULL : place(worker, op, o, o->dst);
    sim_msg_t *msg = NULL;
    switch ((sched_kind_t)o->kind) {
    case SCHED_SEND: send_piece(sim, worker, op, o); return true;
    case SCHED_RECV:
    case SCHED_RECV_REDUCE: {
        msg = take_piece(op, o->peer, o);
        if (msg == NULL) return false;
        if (msg->bytes != count * sizeof(double)) {
            sim_broken(sim, "I1", "view %llu, rank %u: a piece of %u bytes meets a receive of %u",
                       (unsigned long long)worker->comm.view, worker->slot, msg->bytes,
                       (uint32_t)(count * sizeof(double)));
            free(msg);
            return false;
        }
        const uint64_t n = sim_planted(SHORTPIECE) && count > 6 ? count - 1 : count;
        const double times = msg->c & SIM_MSG_TWICE ? 2 : 1; /* planted DUPPIECE */
        for (uint64_t k = 0; k < n; k++) {
            double value;
            memcpy(&value, (const char *)msg->data + k * sizeof value, sizeof value);
            dst[k] = o->kind == SCHED_RECV ? times * value : dst[k] + times * value;
        }
        free(msg);
        return true;
    }
    case SCHED_COPY: memmove(dst, place(worker, op, o, o->src), count * sizeof(double)); return true;
    case SCHED_REDUCE: {
        const double *src = place(worker, op, o, o->src);
        for (uint64_t k = 0; k < count; k++) dst[k] += src[k];
        return true;
    }
    }
    return false;
}

static bool may_run(const sim_op_t *op, const sched_op_t *o)
{
    for (uint32_t i = 0; i < 2; i++)
        if (o->after[i] != SCHED_NONE && !op->done[o->after[i]]) return false;
    return true;
}

/* Sends what may be sent, places what has come, until nothing moves. */
static void advance(sim_t *sim, sim_worker_t *worker, sim_op_t *op)
{
    const schedule_t *schedule = op->schedule;
    for (bool moved = true; moved && op->left > 0;) {
        moved = false;
        for (uint32_t i = 0; i < schedule->n_ops; i++) {
            const sched_op_t *o = &schedule->ops[i];
            if (op->done[i] || !may_run(op, o) || !run_one(sim, worker, op, o)) continue;
            op->done[i] = moved = true;
            op->left--;
        }
    }
    if (op->left > (sim_planted(EARLYDONE) && schedule->n_ops > 6 ? 1 : 0)) return;
    op->left = UINT32_MAX; /* told once */
    worker->comm.n_finished++;
    sim_worker_reduced(sim, worker, op->bucket);
}

/* Schedules here have equal shares and one wire type: what the members would go by is compared. */
static void check_shares(sim_t *sim, const sim_worker_t *worker, uint32_t number)
{
    const sim_comm_t *comm = &worker->comm;
    const uint8_t *shares = elastic_shares(worker->core);
    uint64_t hash = 1 + elastic_wire(worker->core) + 8 * worker->layout;
    for (uint32_t i = 0; i < comm->world; i++) hash = sim_mix(hash * 257 + shares[i]);
    const uint64_t at = (comm->view * 31 + number) % SIM_SHARES;
    if (sim->shares[at].view != comm->view || sim->shares[at].number != number) {
        sim->shares[at].view = comm->view;
        sim->shares[at].number = number;
        sim->shares[at].hash = hash;
    } else if (sim->shares[at].hash != hash) {
        sim_broken(
            sim, "I1",
            "collective #%u of view %llu: rank %u has other shares of the sums, another layout or wire type",
            number, (unsigned long long)comm->view, worker->slot);
    }
}

void sim_comm_reduce(sim_t *sim, sim_worker_t *worker, uint32_t bucket)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPEN) return; /* it is poisoned: the core hears of it */
    const uint32_t number = comm->n_ops++;
    check_shares(sim, worker, number);
    sim_op_t *op = &comm->ops[number % SIM_BUCKETS];
    sim_msgs_free(op->early);
    op->schedule = schedule_of(sim, comm->world, comm->me, sim_width(sim, worker->layout, bucket));
    op->bucket = bucket;
    op->number = number;
    op->left = op->schedule->n_ops;
    op->early = NULL;
    memset(op->done, 0, op->schedule->n_ops);
    memset(worker->reduced.values[bucket], 0, sizeof worker->reduced.values[bucket]);
    for (sim_msg_t **at = &comm->early; *at != NULL;) {
        sim_msg_t *msg = *at;
        if (msg->type != SIM_PIECE || msg->a != number) {
            at = &msg->next;
            continue;
        }
        *at = msg->next;
        if ((msg->c & ~(uint32_t)SIM_MSG_TWICE) != bucket)
            sim_broken(sim, "I1", "collective #%u of view %llu: rank %u reduces bucket %u, rank %u bucket %u",
                       number, (unsigned long long)comm->view, worker->slot, bucket, comm->slots[msg->d],
                       msg->c);
        msg->next = op->early;
        op->early = msg;
    }
    advance(sim, worker, op);
}

static void piece_arrived(sim_t *sim, sim_worker_t *worker, sim_msg_t *msg)
{
    sim_comm_t *comm = &worker->comm;
    if (msg->a >= comm->n_ops) {
        msg->next = comm->early;
        comm->early = msg;
        return;
    }
    sim_op_t *op = &comm->ops[msg->a % SIM_BUCKETS];
    if (op->number != msg->a || op->left == UINT32_MAX || op->bucket != (msg->c & ~(uint32_t)SIM_MSG_TWICE)) {
        sim_broken(sim, "I1",
                   "collective #%u of view %llu: rank %u is at #%u (bucket %u), rank %u sends bucket %u",
                   msg->a, (unsigned long long)comm->view, worker->slot, op->number, op->bucket,
                   comm->slots[msg->d], msg->c);
        free(msg);
        return;
    }
    msg->next = op->early;
    op->early = msg;
    advance(sim, worker, op);
}

/* ---- Sends and receives, small messages -------------------------------------------------------- */

void sim_comm_words(sim_t *sim, sim_worker_t *worker, uint32_t to, const void *data, uint32_t bytes)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPEN) return;
    sim_send(sim, comm->out[to], SIM_LANE_WORDS, sim_msg(SIM_WORDS, data, bytes));
}

void sim_comm_give(sim_t *sim, sim_worker_t *worker, uint32_t to, uint32_t bucket, bool chunk, uint64_t step,
                   const double *data, uint32_t n)
{
    if (worker->comm.state != SIM_COMM_OPEN) return;
    sim_msg_t *msg = sim_msg(SIM_PASS, data, n * (uint32_t)sizeof *data);
    msg->a = bucket;
    msg->b = chunk;
    msg->view = step;
    sim_send(sim, worker->comm.out[to], chunk ? SIM_LANE_COPIES : SIM_LANE_PASSES, msg);
}

static bool meet(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg)
{
    sim_comm_t *comm = &worker->comm;
    for (uint32_t i = 0; i < comm->n_takes; i++) {
        if (comm->takes[i].from != msg->d || comm->takes[i].bucket != msg->a ||
            comm->takes[i].chunk != (msg->b != 0))
            continue;
        comm->takes[i] = comm->takes[--comm->n_takes];
        sim_worker_taken(sim, worker, msg);
        return true;
    }
    return false;
}

void sim_comm_take(sim_t *sim, sim_worker_t *worker, uint32_t from, uint32_t bucket, bool chunk)
{
    sim_comm_t *comm = &worker->comm;
    if (comm->state != SIM_COMM_OPEN || comm->n_takes == 2 * SIM_BUCKETS) return;
    comm->takes[comm->n_takes].from = from;
    comm->takes[comm->n_takes].bucket = bucket;
    comm->takes[comm->n_takes++].chunk = chunk;
    sim_msg_t **oldest = NULL;
    for (sim_msg_t **at = &comm->early; *at != NULL; at = &(*at)->next)
        if ((*at)->type == SIM_PASS && (*at)->d == from && (*at)->a == bucket && ((*at)->b != 0) == chunk)
            oldest = at;
    if (oldest == NULL) return; /* the list has the newest first */
    sim_msg_t *msg = *oldest;
    *oldest = msg->next;
    meet(sim, worker, msg);
    free(msg);
}

void sim_comm_msg(sim_t *sim, sim_worker_t *worker, sim_pipe_t *pipe, sim_msg_t *msg)
{
    sim_comm_t *comm = &worker->comm;
    uint32_t from = SIM_WORLD;
    for (uint32_t r = 0; r < comm->world; r++)
        if (sim_worker_process(comm->slots[r]) == pipe->from) from = r;
    const bool old = pipe->view < comm->view && from != SIM_WORLD && comm->state == SIM_COMM_OPEN;
    if (old && sim_planted(OLDMSG) && msg->type == SIM_WORDS)
        sim_worker_words(sim, worker, from, msg->data, msg->bytes);
    if (old && (sim_planted(LATECHUNK) || sim_planted(BLINDCHUNK)) && msg->type == SIM_PASS && msg->b != 0)
        sim_worker_chunk(sim, worker, msg, pipe->view);
    if ((pipe->view != comm->view && !(old && sim_planted(OLDCONN))) || from == SIM_WORLD ||
        (comm->state != SIM_COMM_OPENING && comm->state != SIM_COMM_OPEN)) {
        sim_pipe_close_to(sim, pipe); /* of a view that we have left: its sender is refused */
        free(msg);
        return;
    }
    comm->in[from] = pipe;
    comm->heard[from] = sim->now;
    msg->d = from;
    switch (msg->type) {
    case SIM_HELLO: comm->hello[from] = true; break;
    case SIM_OPENED: comm->opened[from] = true; break;
    case SIM_WORDS: sim_worker_words(sim, worker, from, msg->data, msg->bytes); break;
    case SIM_ABORT: sim_comm_poison(sim, worker, msg->a, false, (const char *)msg->data); break;
    case SIM_PIECE: piece_arrived(sim, worker, msg); return;
    case SIM_PASS:
        if (meet(sim, worker, msg)) break;
        msg->next = comm->early;
        comm->early = msg;
        return;
    default: break;
    }
    free(msg);
    if (comm->state == SIM_COMM_OPENING) maybe_open(sim, worker);
}
