/*
 * Frames in: the receive half of a stream. Everything that arrives is checked here before it touches
 * anything.
 *
 *   HEADER --piece--> PLACE    straight into the buffer of a RECV that may take it
 *                     APPLY    into scratch that stays in the cache, from there to the buffer at once: added,
 *                              and converted where the wire has another type
 *                     STAGE    into pages, until the RECV may take it
 *          --other--> CONTROL
 *   a failed communicator: DISCARD instead of all but CONTROL; the stream is read for the causes of others
 *
 * Each read asks for the rest of a payload and, behind it, for the next headers (look), so that a frame of
 * bulk data costs about one system call.
 */
#include <errno.h>
#include <string.h>

#include "comm/backends/engine.h"

#define READ_CALLS 8 /* of one peer, before the others have their turn */

void rx_closed(inspan_comm_t *comm, uint32_t peer, int error)
{
    comm_peer_t *p = &comm->peers[peer];
    const bool expected = p->bye || p->aborted || p->deaf;
    if (error == 0) error = p->broken;
    p->gone = true;
    tx_rescue(comm, peer);
    comm->transport->drop(comm->transport_self, peer);
    if (expected || comm->close_until != 0) return;
    switch (error) {
    case 0:
    case EPIPE: fail_peer(comm, peer, INSPAN_PEER_LOST, "closed its connection (its process ended)"); return;
    case ECONNRESET:
        fail_peer(comm, peer, INSPAN_PEER_LOST, "reset its connection (its process or its machine ended)");
        return;
    case ETIMEDOUT:
        fail_peer(comm, peer, INSPAN_PEER_LOST, "does not answer any more (connection timed out)");
        return;
    default: fail_peer(comm, peer, INSPAN_PEER_LOST, "cannot be reached: %s", strerror(error));
    }
}

/* The rest of what a peer says that broke the protocol. */
static void read_deaf(inspan_comm_t *comm, uint32_t peer)
{
    for (int calls = 0; calls < READ_CALLS; calls++) {
        struct iovec iov = {comm->scratch, DATA_PIECE_MAX};
        const ssize_t got = comm->transport->receive(comm->transport_self, peer, &iov, 1);
        if (got < 0) rx_closed(comm, peer, errno);
        if (got < DATA_PIECE_MAX) return;
    }
}

static uint8_t rx_charge(const rx_t *rx)
{
    return rx->frame.flags;
}

/* ---- The start of a piece -------------------------------------------------------------------- */

static early_t *find_early(comm_peer_t *p, const data_frame_t *frame)
{
    early_t *found = NULL;
    for (int i = 0; i < MAX_EARLY; i++) {
        early_t *early = &p->early[i];
        if (early->seq == frame->seq && early->chunk == frame->chunk && early->tag == frame->tag)
            return early;
        if (early->seq == 0 && found == NULL) found = early;
    }
    if (found != NULL)
        *found = (early_t){
            .seq = frame->seq, .chunk = frame->chunk, .tag = frame->tag, .chain = {COMM_NONE, COMM_NONE}};
    return found;
}

/* What is wrong with this piece, or NULL. */
static const char *check_piece(inspan_comm_t *comm, uint32_t peer, comm_run_t *run, uint32_t op)
{
    comm_peer_t *p = &comm->peers[peer];
    const data_frame_t *frame = &p->rx.frame;
    const uint64_t cost = pages_cost(frame->length);
    if (frame->seq == 0 || frame->seq > p->posted) return "a piece of an operation that it has not announced";
    if (frame->seq <= comm->posted && run == NULL) return "a piece of a finished operation";
    if (frame->flags == DATA_EAGER && p->eager_in < cost) return "more eager data than it has credit for";
    if (frame->flags == DATA_WINDOW && (run == NULL || run->window[peer] < cost))
        return "more data than it has credit for";
    if (run == NULL) {
        if (frame->flags != DATA_EAGER) return "a piece without credit of an operation not started here";
        early_t *early = find_early(p, frame);
        if (early == NULL) return "too many early transfers";
        if (early->arrived != frame->offset || (frame->length == 0 && early->chain.first != COMM_NONE))
            return "a piece out of order";
        return NULL;
    }
    if (op == COMM_NONE) return "a transfer that the operation does not have";
    const uint64_t total = plan_bytes(run->plan, op);
    if (run->whole[op] || frame->offset != run->arrived[op]) return "a piece out of order";
    if (frame->length > total - frame->offset || (frame->length == 0 && total > 0))
        return "a piece of a wrong length";
    if (!plan_whole(run->plan, op, frame->length, total - frame->offset - frame->length))
        return "a piece that splits an element";
    if (frame->flags == 0 && run->waits[op] != RECV_STARTED)
        return "a piece without credit that has no place yet";
    return NULL;
}

static bool take_pages(inspan_comm_t *comm, rx_t *rx)
{
    const uint32_t n = (uint32_t)(pages_cost(rx->frame.length) / COMM_PAGE);
    for (rx->n_pages = 0; rx->n_pages < n; rx->n_pages++) {
        const uint32_t page = stage_take(&comm->stage);
        if (page == COMM_NONE) return false;
        rx->pages[rx->n_pages] = page;
    }
    return true;
}

static void begin_piece(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    const data_frame_t *frame = &rx->frame;
    comm_run_t *run = exec_run(comm, frame->seq);
    const uint32_t op = run == NULL ? COMM_NONE : plan_find_recv(run->plan, peer, frame->chunk, frame->tag);
    const char *wrong = check_piece(comm, peer, run, op);
    if (wrong != NULL) {
        fail_protocol(comm, peer, wrong);
        return;
    }
    if (frame->flags == DATA_EAGER) p->eager_in -= pages_cost(frame->length);
    if (frame->flags == DATA_WINDOW && run != NULL) run->window[peer] -= pages_cost(frame->length);
    rx->run = run;
    rx->op = op;
    rx->transfer = NULL;
    rx->carry = 0;
    if (run != NULL && run->waits[op] == RECV_STARTED) {
        const sched_op_t *what = &run->plan->schedule->ops[op];
        rx->mode =
            what->kind == SCHED_RECV && plan_wire(run->plan, op) == INSPAN_WIRE_FP32 ? RX_PLACE : RX_APPLY;
        rx->at = run_place(run, op, (sched_buffer_t)what->dst, run->moved[op]);
        return;
    }
    rx->mode = RX_STAGE;
    if (!take_pages(comm, rx)) fail_protocol(comm, peer, "more data than there are places for");
}

static void begin_part(inspan_comm_t *comm, uint32_t peer)
{
    rx_t *rx = &comm->peers[peer].rx;
    const char *wrong = NULL;
    rx->run = NULL;
    rx->transfer = transfer_find(comm, peer, &rx->frame, &wrong);
    if (rx->transfer == NULL) {
        fail_protocol(comm, peer, wrong);
        return;
    }
    rx->mode = RX_PLACE;
    rx->at = rx->transfer->data;
    if (rx->at != NULL) rx->at += rx->transfer->moved;
}

/* ---- The end of a frame ---------------------------------------------------------------------- */

/* A staged piece is whole: to the transfer it belongs to. */
static void end_staged(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    comm_run_t *run = rx->run;
    page_chain_t *chain = NULL;
    uint64_t left = rx->frame.length;
    if (run == NULL && (run = exec_run(comm, rx->frame.seq)) != NULL) { /* it was started meanwhile */
        rx->op = plan_find_recv(run->plan, peer, rx->frame.chunk, rx->frame.tag);
        const uint64_t expected =
            rx->op == COMM_NONE ? 0 : plan_bytes(run->plan, rx->op) - run->arrived[rx->op];
        if (rx->op == COMM_NONE || rx->frame.length > expected ||
            !plan_whole(run->plan, rx->op, rx->frame.length, expected - rx->frame.length)) {
            fail_protocol(comm, peer, "a transfer that the operation does not have");
            return;
        }
    }
    if (run != NULL) {
        chain = &run->chain[rx->op];
        run->arrived[rx->op] += rx->frame.length;
        run->whole[rx->op] = run->arrived[rx->op] == plan_bytes(run->plan, rx->op);
    } else {
        early_t *early = find_early(p, &rx->frame);
        chain = &early->chain;
        early->arrived += rx->frame.length;
    }
    for (uint32_t i = 0; i < rx->n_pages; i++) {
        page_t *page = &comm->stage.pages[rx->pages[i]];
        page->bytes = left < COMM_PAGE ? (uint32_t)left : COMM_PAGE;
        page->charge = rx_charge(rx);
        left -= page->bytes;
        stage_append(&comm->stage, chain, rx->pages[i]);
    }
    rx->n_pages = 0;
    if (run != NULL && run->waits[rx->op] == RECV_STARTED) exec_consume(comm, run, rx->op);
}

static void end_placed(inspan_comm_t *comm, uint32_t peer)
{
    rx_t *rx = &comm->peers[peer].rx;
    comm_run_t *run = rx->run;
    const uint32_t op = rx->op;
    if (rx->transfer != NULL) {
        transfer_advance(comm, rx->transfer, rx->frame.length);
        return;
    }
    run->arrived[op] += rx->frame.length;
    run->moved[op] += rx->frame.length;
    run->whole[op] = run->arrived[op] == plan_bytes(run->plan, op);
    if (rx_charge(rx) != 0)
        exec_credit(comm, run, peer, pages_cost(rx->frame.length), rx_charge(rx) == DATA_EAGER);
    if (run->whole[op]) exec_finish_op(comm, run, op);
}

static void on_post(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    const uint64_t seq = p->rx.frame.seq;
    data_call_t call;
    if (data_decode_call(p->rx.control, &call) != INSPAN_OK || seq != p->posted + 1 ||
        seq > comm->posted + COMM_MAX_AHEAD || call.window > COMM_WINDOW || call.window % COMM_PAGE != 0) {
        fail_protocol(comm, peer, "a call that cannot be");
        return;
    }
    p->posted = seq;
    p->calls[seq % COMM_RING] = (peer_call_t){.seq = seq, .call = call, .credit = call.window};
    if (comm->health != COMM_HEALTHY) return;
    if (seq <= comm->posted) exec_check_call(comm, peer, seq);
    engine_offer(comm);
    exec_mark(comm, peer);
}

static void on_credit(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    const uint64_t seq = p->rx.frame.seq, bytes = p->rx.frame.offset;
    const bool eager = seq == 0;
    if (bytes == 0 || bytes % COMM_PAGE != 0 || bytes > COMM_WINDOW || seq > p->posted ||
        (eager && bytes > COMM_EAGER_BUDGET - p->eager_out)) {
        fail_protocol(comm, peer, "a credit that cannot be");
        return;
    }
    peer_call_t *call = &p->calls[seq % COMM_RING];
    if (eager)
        p->eager_out += bytes;
    else if (call->seq == seq) /* else long finished here */
        call->credit += bytes;
    exec_mark(comm, peer);
}

static void on_want(inspan_comm_t *comm, uint32_t peer)
{
    const data_frame_t *frame = &comm->peers[peer].rx.frame;
    const want_t want = {.number = frame->seq,
                         .count = frame->offset,
                         .slot = frame->chunk,
                         .tag = frame->tag,
                         .dtype = frame->flags};
    if (comm->health == COMM_HEALTHY) transfer_wanted(comm, peer, &want);
}

static void on_abort(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    inspan_cause_t cause;
    if (data_decode_cause(p->rx.control, p->rx.frame.length, &cause) != INSPAN_OK ||
        cause.rank >= (int32_t)comm->world) {
        fail_protocol(comm, peer, "a cause that cannot be");
        return;
    }
    fail_heard(comm, peer, &cause, p->rx.frame.seq != 0);
}

static void on_bye(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    p->bye = true;
    for (uint64_t seq = p->posted + 1; seq <= comm->posted && comm->health == COMM_HEALTHY; seq++)
        if (exec_run(comm, seq) != NULL)
            fail_peer(comm, peer, INSPAN_PEER_LOST, "closed after %llu operations, while others go on",
                      (unsigned long long)p->posted);
    if (comm->health == COMM_HEALTHY && transfer_with(comm, peer))
        fail_peer(comm, peer, INSPAN_PEER_LOST, "closed while a send to it or a receive from it is pending");
}

static void end_frame(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    const rx_mode_t mode = rx->mode;
    if (p->deaf) return;
    rx->mode = RX_HEADER;
    switch (mode) {
    case RX_STAGE: end_staged(comm, peer); return;
    case RX_PLACE:
    case RX_APPLY: end_placed(comm, peer); return;
    case RX_DISCARD:
    case RX_HEADER: return;
    case RX_CONTROL: break;
    }
    switch (rx->frame.type) {
    case DATA_POST: on_post(comm, peer); return;
    case DATA_CREDIT: on_credit(comm, peer); return;
    case DATA_MESSAGE: message_arrived(comm, peer, rx->control, rx->frame.length); return;
    case DATA_ABORT: on_abort(comm, peer); return;
    case DATA_BYE: on_bye(comm, peer); return;
    case DATA_WANT: on_want(comm, peer); return;
    case DATA_PING: return;
    case DATA_READY:
    case DATA_PART:
    case DATA_PIECE: fail_protocol(comm, peer, "a frame that has no place here"); return;
    }
}

static void begin_frame(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    if (data_decode_frame(rx->look + rx->look_at, &rx->frame) != INSPAN_OK) {
        fail_protocol(comm, peer, "bytes that are no frame");
        return;
    }
    rx->look_at += DATA_HEADER_BYTES;
    rx->left = rx->frame.length;
    if (rx->frame.type != DATA_PIECE && rx->frame.type != DATA_PART)
        rx->mode = RX_CONTROL;
    else if (comm->health != COMM_HEALTHY)
        rx->mode = RX_DISCARD;
    else if (rx->frame.type == DATA_PART)
        begin_part(comm, peer);
    else
        begin_piece(comm, peer);
    if (!p->gone && rx->left == 0) end_frame(comm, peer);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* Where the rest of the payload goes: segments, at most RX_PIECE_PAGES. */
static int payload_space(inspan_comm_t *comm, rx_t *rx, struct iovec *iov)
{
    const uint32_t done = rx->frame.length - rx->left;
    switch (rx->mode) {
    case RX_CONTROL: iov[0] = (struct iovec){rx->control + done, rx->left}; return 1;
    case RX_PLACE: iov[0] = (struct iovec){rx->at, rx->left}; return 1;
    case RX_APPLY:
        memcpy(comm->scratch, rx->carried, rx->carry);
        iov[0] = (struct iovec){comm->scratch + rx->carry, rx->left};
        return 1;
    case RX_STAGE: break;
    case RX_HEADER:
    case RX_DISCARD: iov[0] = (struct iovec){comm->scratch, rx->left}; return 1;
    }
    int n = 0;
    uint32_t left = rx->left, offset = done % COMM_PAGE;
    for (uint32_t i = done / COMM_PAGE; left > 0; i++, n++) {
        const uint32_t bytes = left < COMM_PAGE - offset ? left : COMM_PAGE - offset;
        iov[n] = (struct iovec){comm->stage.memory + (size_t)rx->pages[i] * COMM_PAGE + offset, bytes};
        left -= bytes;
        offset = 0;
    }
    return n;
}

/* `bytes` of what payload_space offered are filled. */
static void payload_took(inspan_comm_t *comm, uint32_t peer, uint32_t bytes)
{
    rx_t *rx = &comm->peers[peer].rx;
    rx->left -= bytes;
    atomic_fetch_add_explicit(&comm->bytes_received, rx->mode == RX_CONTROL ? 0 : bytes,
                              memory_order_relaxed);
    if (rx->mode == RX_PLACE) rx->at += bytes;
    if (rx->mode == RX_APPLY) {
        const comm_plan_t *plan = rx->run->plan;
        const uint32_t have = rx->carry + bytes,
                       whole = have - (rx->left > 0 ? have % plan_unit(plan, rx->op) : 0);
        exec_apply(rx->run, rx->op, rx->at, comm->scratch, whole);
        rx->at += plan_elements(plan, rx->op, whole) * plan->element_size;
        rx->carry = have - whole;
        memcpy(rx->carried, comm->scratch + whole, rx->carry);
    }
    if (rx->left == 0) end_frame(comm, peer);
}

/* Work off what was read ahead. */
static void use_look(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    while (!p->gone && !p->deaf && rx->look_at < rx->look_end) {
        const uint32_t have = rx->look_end - rx->look_at;
        if (rx->mode == RX_HEADER) {
            if (have < DATA_HEADER_BYTES) break;
            begin_frame(comm, peer);
            continue;
        }
        struct iovec iov[RX_PIECE_PAGES];
        const int n = payload_space(comm, rx, iov);
        uint32_t moved = 0;
        for (int i = 0; i < n && moved < have; i++) {
            const uint32_t bytes = iov[i].iov_len < have - moved ? (uint32_t)iov[i].iov_len : have - moved;
            memcpy(iov[i].iov_base, rx->look + rx->look_at + moved, bytes);
            moved += bytes;
        }
        rx->look_at += moved;
        payload_took(comm, peer, moved);
    }
    if (rx->look_at > 0) { /* at most a part of a header */
        rx->look_end -= rx->look_at;
        memmove(rx->look, rx->look + rx->look_at, rx->look_end);
        rx->look_at = 0;
    }
}

void rx_read(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    rx_t *rx = &p->rx;
    if (p->deaf) {
        read_deaf(comm, peer);
        return;
    }
    for (int calls = 0; calls < READ_CALLS && !p->gone && !p->deaf; calls++) {
        struct iovec iov[RX_PIECE_PAGES + 1];
        const uint32_t left = rx->mode == RX_HEADER ? 0 : rx->left;
        int n = left > 0 ? payload_space(comm, rx, iov) : 0;
        const uint32_t room = RX_LOOK - rx->look_end;
        iov[n++] = (struct iovec){rx->look + rx->look_end, room};
        const ssize_t got = comm->transport->receive(comm->transport_self, peer, iov, n);
        if (got == 0) return;
        if (got < 0) {
            rx_closed(comm, peer, errno);
            return;
        }
        p->heard = comm->transport->now(comm->transport_self);
        const uint32_t payload = (size_t)got < left ? (uint32_t)got : left;
        rx->look_end += (uint32_t)got - payload;
        if (payload > 0) payload_took(comm, peer, payload);
        use_look(comm, peer);
        if ((size_t)got < (size_t)left + room) return; /* the socket is empty */
    }
}

void rx_discard(inspan_comm_t *comm, uint32_t peer)
{
    rx_t *rx = &comm->peers[peer].rx;
    if (rx->mode != RX_HEADER && rx->mode != RX_CONTROL) rx->mode = RX_DISCARD;
    rx->run = NULL;
    rx->transfer = NULL;
    for (uint32_t i = 0; i < rx->n_pages; i++) stage_give(&comm->stage, rx->pages[i]);
    rx->n_pages = 0;
}
