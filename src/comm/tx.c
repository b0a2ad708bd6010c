/*
 * Frames out: the send half of a stream. A few units wait in line; control frames overtake all but the one
 * that is partly gone. A unit is at most one piece (64 KiB), so that is what an urgent frame waits for,
 * besides the 128 KB that the kernel may hold unsent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

static void put_frame(tx_t *tx, uint32_t *used, data_type_t type, uint64_t seq, uint32_t length,
                      uint64_t offset)
{
    data_frame_t frame = {.type = type, .length = length, .seq = seq, .offset = offset};
    data_encode_frame(&frame, tx->control + *used);
    *used += DATA_HEADER_BYTES;
}

static bool has_room(uint32_t used, uint32_t payload)
{
    return TX_CONTROL - used >= DATA_HEADER_BYTES + payload;
}

static void put_posts(inspan_comm_t *comm, uint32_t peer, uint32_t *used)
{
    tx_t *tx = &comm->peers[peer].tx;
    while (tx->posted < comm->posted && has_room(*used, DATA_CALL_BYTES)) {
        const uint64_t seq = ++tx->posted;
        data_call_t call = comm->calls[seq % COMM_RING];
        comm_run_t *run = exec_run(comm, seq);
        call.window = 0;
        if (run != NULL && run->open) {
            call.window = run->to_tell[peer];
            run->window[peer] += run->to_tell[peer];
            run->to_tell[peer] = 0;
        }
        put_frame(tx, used, DATA_POST, seq, DATA_CALL_BYTES, 0);
        data_encode_call(&call, tx->control + *used);
        *used += DATA_CALL_BYTES;
    }
}

static void put_credits(inspan_comm_t *comm, uint32_t peer, uint32_t *used)
{
    comm_peer_t *p = &comm->peers[peer];
    if (p->eager_to_tell >= COMM_EAGER_BUDGET / 4 && has_room(*used, 0)) {
        put_frame(&p->tx, used, DATA_CREDIT, 0, 0, p->eager_to_tell);
        p->eager_in += p->eager_to_tell;
        p->eager_to_tell = 0;
    }
    for (uint64_t seq = comm->oldest; p->credits_due > 0 && seq <= comm->posted && has_room(*used, 0);
         seq++) {
        comm_run_t *run = exec_run(comm, seq);
        if (run == NULL || !run->tell[peer]) continue;
        put_frame(&p->tx, used, DATA_CREDIT, seq, 0, run->to_tell[peer]);
        run->window[peer] += run->to_tell[peer];
        run->to_tell[peer] = 0;
        run->tell[peer] = false;
        p->credits_due--;
    }
}

static void put_wants(inspan_comm_t *comm, uint32_t peer, uint32_t *used)
{
    comm_peer_t *p = &comm->peers[peer];
    while (p->to_want.first != NULL && has_room(*used, 0)) {
        comm_transfer_t *transfer = transfer_pop(&p->to_want);
        data_frame_t frame = {.type = DATA_WANT,
                              .flags = transfer->dtype,
                              .seq = transfer->number,
                              .chunk = transfer->slot,
                              .tag = transfer->tag,
                              .offset = transfer->count};
        data_encode_frame(&frame, p->tx.control + *used);
        *used += DATA_HEADER_BYTES;
        transfer->phase = TRANSFER_MOVING;
    }
}

/* All control frames that wait, into tx->control; bytes used. */
static uint32_t put_control(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    tx_t *tx = &p->tx;
    uint32_t used = 0;
    if (comm->health != COMM_HEALTHY) {
        if (!tx->abort) return 0;
        tx->abort = false;
        uint8_t cause[DATA_CAUSE_MAX];
        const size_t bytes = data_encode_cause(&comm->cause, cause);
        put_frame(tx, &used, DATA_ABORT, comm->last_word, (uint32_t)bytes, 0);
        memcpy(tx->control + used, cause, bytes);
        return used + (uint32_t)bytes;
    }
    if (p->bye || tx->bye_sent) return 0;
    put_posts(comm, peer, &used);
    put_credits(comm, peer, &used);
    put_wants(comm, peer, &used);
    used += (uint32_t)message_take(comm, peer, tx->control + used, TX_CONTROL - used);
    if (tx->ping && used == 0) put_frame(tx, &used, DATA_PING, 0, 0, 0);
    tx->ping = false;
    /* Room left proves that nothing had to stay behind. */
    if (tx->bye && tx->posted == comm->posted && has_room(used, DATA_HEADER_BYTES + COMM_MESSAGE_MAX)) {
        put_frame(tx, &used, DATA_BYE, 0, 0, 0);
        tx->bye = false;
        tx->bye_sent = true;
    }
    return used;
}

static void queue_control(inspan_comm_t *comm, uint32_t peer)
{
    tx_t *tx = &comm->peers[peer].tx;
    if (tx->control_busy || tx->n == TX_UNITS) return;
    const uint32_t bytes = put_control(comm, peer);
    if (bytes == 0) return;
    const uint32_t at = tx->sent > 0 ? 1 : 0;
    memmove(&tx->units[at + 1], &tx->units[at], (tx->n - at) * sizeof tx->units[0]);
    tx->units[at] = (tx_unit_t){.payload = tx->control, .bytes = bytes, .slot = TX_NO_SLOT};
    tx->n++;
    tx->bytes += bytes;
    tx->control_busy = true;
}

/* ---- Other types than the buffers' ----------------------------------------------------------- */

inspan_status_t tx_open_encoded(inspan_comm_t *comm)
{
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        tx_t *tx = &comm->peers[peer].tx;
        if (peer == comm->rank || tx->encoded != NULL) continue;
        tx->encoded = malloc((size_t)TX_UNITS * DATA_PIECE_MAX);
        if (tx->encoded == NULL) return INSPAN_NO_MEMORY;
    }
    return INSPAN_OK;
}

/* A piece of a SEND as it goes over the wire. A sum was encoded when it was made; for a contribution there is
 * a slot for each unit. */
static void encode(tx_t *tx, tx_unit_t *unit, uint64_t moved)
{
    const comm_run_t *run = unit->run;
    const comm_plan_t *plan = run->plan;
    const sched_op_t *what = &plan->schedule->ops[unit->op];
    if (what->src == SCHED_OUT) {
        unit->payload = run->encoded + plan->encoded_at[what->chunk] + moved;
        return;
    }
    const inspan_wire_t wire = plan_wire(plan, unit->op);
    const uint64_t elements = plan_elements(plan, unit->op, unit->bytes);
    const uint8_t *place = run_place(run, unit->op, SCHED_IN, moved);
    float *error = run_error(run, unit->op, moved);
    unit->slot = (uint8_t)__builtin_ctz(~(uint32_t)tx->slots);
    tx->slots = (uint8_t)(tx->slots | 1u << unit->slot);
    uint8_t *encoded = tx->encoded + (size_t)unit->slot * DATA_PIECE_MAX;
    codec_encode(wire, encoded, place, elements);
    if (error != NULL) codec_error(wire, error, place, encoded, elements);
    unit->payload = encoded;
}

static void free_slot(tx_t *tx, const tx_unit_t *unit)
{
    if (unit->slot != TX_NO_SLOT) tx->slots = (uint8_t)(tx->slots & ~(1u << unit->slot));
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* First SEND to the peer in this bitmap of the run, or COMM_NONE. */
static uint32_t first_ready(const comm_run_t *run, uint32_t peer, int staged)
{
    const uint32_t begin = run->plan->bits_first[peer], end = run->plan->bits_first[peer + 1];
    for (uint32_t word = begin; word < end; word++)
        if (run->ready[staged][word] != 0)
            return (word - begin) * 64 + (uint32_t)__builtin_ctzll(run->ready[staged][word]);
    return COMM_NONE;
}

/* How much of a staged SEND's rest may go now: *flag says what it is charged to. 0 bytes of 0 are fine: true.
 */
static bool may_send(const comm_peer_t *p, const comm_run_t *run, uint32_t peer, uint64_t left,
                     uint32_t *bytes, uint8_t *flag)
{
    const uint32_t wanted = left < DATA_PIECE_MAX ? (uint32_t)left : DATA_PIECE_MAX;
    const uint64_t credit = p->posted >= run->seq ? p->calls[run->seq % COMM_RING].credit : 0;
    *bytes = wanted;
    if (credit >= COMM_PAGE) {
        if (pages_cost(wanted) > credit) *bytes = (uint32_t)credit;
        *flag = DATA_WINDOW;
        return true;
    }
    *flag = DATA_EAGER;
    return run->plan->staged_to[peer] <= COMM_EAGER_MOST && pages_cost(wanted) <= p->eager_out;
}

/* Queue the next piece of the run to the peer; false: none may go. */
static bool queue_piece(inspan_comm_t *comm, uint32_t peer, comm_run_t *run)
{
    comm_peer_t *p = &comm->peers[peer];
    const comm_plan_t *plan = run->plan;
    uint32_t free_bit = first_ready(run, peer, 0), staged_bit = first_ready(run, peer, 1);
    for (int staged = staged_bit < free_bit; free_bit != COMM_NONE || staged_bit != COMM_NONE;
         staged = !staged) {
        uint32_t *candidate = staged ? &staged_bit : &free_bit;
        const uint32_t bit = *candidate;
        if (bit == COMM_NONE) continue;
        const uint32_t op = plan->sends[plan->sends_first[peer] + bit];
        const sched_op_t *what = &plan->schedule->ops[op];
        const uint64_t left = plan_bytes(run->plan, op) - run->moved[op];
        uint32_t bytes = left < DATA_PIECE_MAX ? (uint32_t)left : DATA_PIECE_MAX;
        uint8_t flag = 0;
        if (staged && !may_send(p, run, peer, left, &bytes, &flag)) {
            *candidate = COMM_NONE;
            continue;
        }
        if (flag == DATA_WINDOW) p->calls[run->seq % COMM_RING].credit -= pages_cost(bytes);
        if (flag == DATA_EAGER) p->eager_out -= pages_cost(bytes);
        tx_unit_t *unit = &p->tx.units[p->tx.n++];
        *unit = (tx_unit_t){.header_bytes = DATA_HEADER_BYTES,
                            .slot = TX_NO_SLOT,
                            .bytes = bytes,
                            .run = run,
                            .op = op,
                            .last = bytes == left};
        if (plan_wire(plan, op) != INSPAN_WIRE_FP32)
            encode(&p->tx, unit, run->moved[op]);
        else
            unit->payload = run_place(run, op, (sched_buffer_t)what->src, run->moved[op]);
        data_frame_t frame = {.type = DATA_PIECE,
                              .flags = flag,
                              .length = bytes,
                              .seq = run->seq,
                              .chunk = what->chunk,
                              .tag = what->tag,
                              .offset = run->moved[op]};
        data_encode_frame(&frame, unit->header);
        p->tx.bytes += bytes;
        run->moved[op] += bytes;
        if (unit->last) {
            run->ready[staged][plan->bits_first[peer] + bit / 64] &= ~(1ull << (bit % 64));
            run->n_ready[peer]--;
        }
        return true;
    }
    return false;
}

/* Queue the next piece of any run from *seq on; false: none may go. */
static bool queue_any_piece(inspan_comm_t *comm, uint32_t peer, uint64_t *seq)
{
    for (; *seq <= comm->posted && *seq <= comm->peers[peer].tx.posted; ++*seq) {
        comm_run_t *run = exec_run(comm, *seq);
        if (run != NULL && run->n_ready[peer] > 0 && queue_piece(comm, peer, run)) return true;
    }
    return false;
}

/* Queue the next part of a send; false: there is none. Sends take turns: a small one waits for no large one.
 */
static bool queue_part(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    comm_transfer_t *transfer = transfer_pop(&p->sending);
    if (transfer == NULL) return false;
    const uint64_t left = transfer->bytes - transfer->moved;
    const uint32_t bytes = left < DATA_PIECE_MAX ? (uint32_t)left : DATA_PIECE_MAX;
    tx_unit_t *unit = &p->tx.units[p->tx.n++];
    *unit = (tx_unit_t){.header_bytes = DATA_HEADER_BYTES,
                        .payload = transfer->data == NULL ? NULL : transfer->data + transfer->moved,
                        .bytes = bytes,
                        .slot = TX_NO_SLOT,
                        .transfer = transfer,
                        .last = bytes == left};
    data_frame_t frame = {.type = DATA_PART,
                          .length = bytes,
                          .seq = transfer->number,
                          .chunk = transfer->slot,
                          .tag = transfer->tag,
                          .offset = transfer->moved};
    data_encode_frame(&frame, unit->header);
    p->tx.bytes += bytes;
    transfer->moved += bytes;
    if (!unit->last) transfer_push(&p->sending, transfer);
    return true;
}

static void queue_pieces(inspan_comm_t *comm, uint32_t peer)
{
    tx_t *tx = &comm->peers[peer].tx;
    uint64_t seq = comm->oldest;
    while (tx->n < TX_UNITS - 1 && tx->bytes < TX_BYTES) { /* one unit stays free for control */
        const bool part_first = tx->part_next;
        tx->part_next = !part_first;
        if (part_first && queue_part(comm, peer)) continue;
        if (queue_any_piece(comm, peer, &seq)) continue;
        if (part_first || !queue_part(comm, peer)) return;
    }
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static int build_iov(tx_t *tx, struct iovec *iov)
{
    int n = 0;
    uint32_t skip = tx->sent;
    for (uint32_t i = 0; i < tx->n; i++) {
        tx_unit_t *unit = &tx->units[i];
        const uint32_t head = skip < unit->header_bytes ? skip : unit->header_bytes;
        if (unit->header_bytes > head)
            iov[n++] = (struct iovec){unit->header + head, unit->header_bytes - head};
        skip -= head;
        if (unit->bytes > skip)
            iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)unit->payload + skip, unit->bytes - skip};
        skip = 0;
    }
    return n;
}

/* `bytes` more of the line are gone: finish the units that are whole. */
static void took(inspan_comm_t *comm, uint32_t peer, size_t bytes)
{
    tx_t *tx = &comm->peers[peer].tx;
    size_t gone = tx->sent + bytes;
    uint32_t done = 0;
    tx_unit_t finished[TX_UNITS];
    while (done < tx->n && gone >= (size_t)tx->units[done].header_bytes + tx->units[done].bytes) {
        finished[done] = tx->units[done];
        free_slot(tx, &finished[done]);
        gone -= (size_t)finished[done].header_bytes + finished[done].bytes;
        tx->bytes -= finished[done].bytes;
        done++;
    }
    tx->n -= done;
    memmove(&tx->units[0], &tx->units[done], tx->n * sizeof tx->units[0]);
    tx->sent = (uint32_t)gone;
    for (uint32_t i = 0; i < done; i++) { /* the line is consistent again: finishing may look at it */
        if (finished[i].header_bytes == 0) {
            tx->control_busy = false;
            continue;
        }
        atomic_fetch_add_explicit(&comm->bytes_sent, finished[i].bytes, memory_order_relaxed);
        if (finished[i].last && finished[i].run != NULL)
            exec_finish_op(comm, finished[i].run, finished[i].op);
        if (finished[i].last && finished[i].transfer != NULL)
            transfer_finish(comm, finished[i].transfer, INSPAN_OK);
    }
}

static void flush(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    tx_t *tx = &p->tx;
    while (!p->gone && !tx->blocked) {
        queue_control(comm, peer);
        if (comm->health == COMM_HEALTHY && !p->bye) queue_pieces(comm, peer);
        if (tx->n == 0) return;
        struct iovec iov[2 * TX_UNITS];
        const int n = build_iov(tx, iov);
        size_t wanted = 0;
        for (int i = 0; i < n; i++) wanted += iov[i].iov_len;
        const ssize_t sent = comm->transport->send(comm->transport_self, peer, iov, n);
        if (sent < 0) {
            p->broken = errno; /* reading may see a plain end now */
            /* Broken, but what the peer said before may still be there: its cause, or that it closes. */
            for (int i = 0; i < 64 && !p->gone; i++) rx_read(comm, peer);
            if (!p->gone) rx_closed(comm, peer, p->broken);
            return;
        }
        tx->last = comm->transport->now(comm->transport_self);
        if (sent > 0) {
            meter_sent(&comm->meter, peer, (uint64_t)sent);
            took(comm, peer, (size_t)sent);
        }
        if ((size_t)sent < wanted) {
            tx->blocked = true;
            comm->transport->want_write(comm->transport_self, peer, true);
        }
    }
}

void tx_flush(inspan_comm_t *comm, uint32_t peer)
{
    const tx_t *tx = &comm->peers[peer].tx;
    if (peer == comm->rank) return;
    flush(comm, peer);
    meter_backlog(&comm->meter, peer, tx->blocked && !comm->peers[peer].gone,
                  comm->transport->now(comm->transport_self));
}

void tx_rescue(inspan_comm_t *comm, uint32_t peer)
{
    comm_peer_t *p = &comm->peers[peer];
    tx_t *tx = &p->tx;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tx->n; i++) {
        tx_unit_t *unit = &tx->units[i];
        const bool partly = i == 0 && tx->sent > 0;
        if (unit->header_bytes > 0 && partly &&
            !p->gone) { /* the frame must end, or the stream makes no sense */
            if (unit->bytes > 0) memcpy(tx->rescue, unit->payload, unit->bytes);
            unit->payload = tx->rescue;
        } else if (unit->header_bytes > 0 || p->gone) {
            tx->bytes -= unit->bytes;
            continue;
        }
        unit->run = NULL;
        unit->transfer = NULL;
        unit->slot = TX_NO_SLOT;
        tx->units[kept++] = *unit;
    }
    tx->n = kept;
    tx->slots = 0;
    if (p->gone) {
        tx->sent = 0;
        tx->control_busy = false;
    }
}

bool tx_idle(const inspan_comm_t *comm, uint32_t peer)
{
    const comm_peer_t *p = &comm->peers[peer];
    return p->gone || p->bye || (p->tx.n == 0 && !p->tx.bye && !p->tx.abort);
}
