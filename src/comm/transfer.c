/*
 * Sends and receives between two ranks. The receiver tells the sender of each receive it starts (WANT: tag,
 * count, type, and the slot where it waits); the sender lets it meet the oldest send with that tag, and only
 * then sends (PART). What arrives so has its place always: no staging, no credit, and nothing that waits here
 * can hold up a stream. Of one tag, either sends wait for receives or receives for sends, never both: that
 * makes them meet in call order.
 *
 * Numbers of receives run per ordered pair of ranks, apart from the sequence numbers of collectives.
 */
#include <stdio.h>
#include <string.h>

#include "comm/internal.h"

void transfer_push(transfer_queue_t *queue, comm_transfer_t *transfer)
{
    transfer->next = NULL;
    if (queue->first == NULL)
        queue->first = transfer;
    else
        queue->last->next = transfer;
    queue->last = transfer;
}

comm_transfer_t *transfer_pop(transfer_queue_t *queue)
{
    comm_transfer_t *transfer = queue->first;
    if (transfer != NULL) queue->first = transfer->next;
    return transfer;
}

void transfer_finish(inspan_comm_t *comm, comm_transfer_t *transfer, inspan_status_t status)
{
    transfer->phase = TRANSFER_IDLE;
    comm->n_transfers--;
    comm_op_finish(comm, transfer->op, status);
}

/* ---- Meeting --------------------------------------------------------------------------------- */

/* The oldest send to the peer with this tag that no receive has met, taken out; or NULL. */
static comm_transfer_t *take_send(comm_peer_t *p, uint32_t tag)
{
    comm_transfer_t *before = NULL, *send = p->sends.first;
    while (send != NULL && send->tag != tag) {
        before = send;
        send = send->next;
    }
    if (send == NULL) return NULL;
    if (before == NULL)
        p->sends.first = send->next;
    else
        before->next = send->next;
    if (p->sends.last == send) p->sends.last = before;
    return send;
}

/* The peer's oldest receive with this tag that no send has met, taken out; false: none. */
static bool take_want(comm_peer_t *p, uint32_t tag, want_t *want)
{
    for (uint32_t i = 0; i < p->n_wants; i++) {
        if (p->wants[i].tag != tag) continue;
        *want = p->wants[i];
        p->n_wants--;
        memmove(&p->wants[i], &p->wants[i + 1], (p->n_wants - i) * sizeof p->wants[0]);
        return true;
    }
    return false;
}

static void meet(inspan_comm_t *comm, uint32_t peer, comm_transfer_t *send, const want_t *want)
{
    if (send->count != want->count || send->dtype != want->dtype) {
        fail_peer(comm, comm->rank > peer ? comm->rank : peer, INSPAN_MISMATCH,
                  "rank %u sends %llu elements of %s to rank %u with tag %u, which receives %llu of %s; "
                  "both must name the same count and type",
                  comm_number(comm, comm->rank), (unsigned long long)send->count,
                  comm_dtype_name(send->dtype), comm_number(comm, peer), send->tag,
                  (unsigned long long)want->count, comm_dtype_name(want->dtype));
        return;
    }
    send->number = want->number;
    send->slot = want->slot;
    send->phase = TRANSFER_MOVING;
    transfer_push(&comm->peers[peer].sending, send);
    exec_mark(comm, peer);
}

void transfer_wanted(inspan_comm_t *comm, uint32_t peer, const want_t *want)
{
    comm_peer_t *p = &comm->peers[peer];
    if (want->number != p->wants_in + 1) {
        fail_protocol(comm, peer, "a receive out of order");
        return;
    }
    p->wants_in = want->number;
    comm_transfer_t *send = take_send(p, want->tag);
    if (send != NULL)
        meet(comm, peer, send, want);
    else if (p->n_wants < COMM_MAX_OPS)
        p->wants[p->n_wants++] = *want;
    else
        fail_protocol(comm, peer, "more receives than may be pending");
}

/* ---- From begin to end ----------------------------------------------------------------------- */

static void begin_receive(inspan_comm_t *comm, comm_transfer_t *receive)
{
    comm_peer_t *p = &comm->peers[receive->peer];
    receive->number = ++p->wants_out;
    receive->slot = (uint32_t)(receive->op - comm->ops);
    if (receive->peer != comm->rank) {
        transfer_push(&p->to_want, receive);
        exec_mark(comm, receive->peer);
        return;
    }
    const want_t want = {receive->number, receive->count, receive->slot, receive->tag, receive->dtype};
    receive->phase = TRANSFER_MOVING;
    transfer_wanted(comm, comm->rank, &want);
}

void transfer_begin(inspan_comm_t *comm, comm_transfer_t *transfer)
{
    comm_peer_t *p = &comm->peers[transfer->peer];
    exec_listen(comm);
    transfer->phase = TRANSFER_UNMET;
    transfer->moved = 0;
    transfer->since = comm->transport->now(comm->transport_self);
    comm->n_transfers++;
    if (comm->health != COMM_HEALTHY) return; /* it ends with all others */
    if (p->bye) {
        fail_peer(comm, transfer->peer, INSPAN_PEER_LOST, "closed before a %s was started",
                  transfer->receive ? "receive from it" : "send to it");
        return;
    }
    want_t want;
    if (transfer->receive)
        begin_receive(comm, transfer);
    else if (take_want(p, transfer->tag, &want))
        meet(comm, transfer->peer, transfer, &want);
    else
        transfer_push(&p->sends, transfer);
}

comm_transfer_t *transfer_find(inspan_comm_t *comm, uint32_t peer, const data_frame_t *part,
                               const char **wrong)
{
    comm_transfer_t *transfer = part->chunk < COMM_MAX_OPS ? &comm->ops[part->chunk].transfer : NULL;
    if (transfer == NULL || transfer->phase != TRANSFER_MOVING || !transfer->receive ||
        transfer->peer != peer || transfer->number != part->seq || transfer->tag != part->tag) {
        *wrong = "a part that nobody asked for";
        return NULL;
    }
    const uint64_t left = transfer->bytes - transfer->moved;
    if (part->offset != transfer->moved || part->length > left || (part->length == 0 && left > 0)) {
        *wrong = "a part out of order";
        return NULL;
    }
    return transfer;
}

void transfer_advance(inspan_comm_t *comm, comm_transfer_t *transfer, uint32_t bytes)
{
    transfer->moved += bytes;
    if (transfer->moved == transfer->bytes) transfer_finish(comm, transfer, INSPAN_OK);
}

uint64_t transfer_copy(inspan_comm_t *comm)
{
    transfer_queue_t *sending = &comm->peers[comm->rank].sending;
    comm_transfer_t *send = transfer_pop(sending);
    if (send == NULL) return 0;
    comm_transfer_t *receive = &comm->ops[send->slot].transfer;
    const uint64_t left = send->bytes - send->moved;
    const uint32_t bytes = left < DATA_PIECE_MAX ? (uint32_t)left : DATA_PIECE_MAX;
    if (bytes > 0) memcpy(receive->data + send->moved, send->data + send->moved, bytes);
    send->moved += bytes;
    if (bytes < left)
        transfer_push(sending, send);
    else
        transfer_finish(comm, send, INSPAN_OK);
    transfer_advance(comm, receive, bytes);
    return bytes + 1;
}

/* ---- All of them ----------------------------------------------------------------------------- */

bool transfer_with(const inspan_comm_t *comm, uint32_t peer)
{
    for (uint32_t i = 0; comm->n_transfers > 0 && i < COMM_MAX_OPS; i++)
        if (comm->ops[i].transfer.phase != TRANSFER_IDLE && comm->ops[i].transfer.peer == peer) return true;
    return false;
}

const comm_transfer_t *transfer_oldest(const inspan_comm_t *comm)
{
    const comm_transfer_t *oldest = NULL;
    for (uint32_t i = 0; comm->n_transfers > 0 && i < COMM_MAX_OPS; i++) {
        const comm_transfer_t *transfer = &comm->ops[i].transfer;
        if (transfer->phase != TRANSFER_IDLE && (oldest == NULL || transfer->since < oldest->since))
            oldest = transfer;
    }
    return oldest;
}

void transfer_describe(const comm_transfer_t *transfer, char *text, size_t size)
{
    char bytes[32];
    static const char *const exchanges[] = {"gather", "scatter", "all-to-all"};
    const uint32_t own = transfer->tag - COMM_TAGS;
    const char *way = transfer->receive ? "receive from" : "send to";
    const uint32_t peer = comm_number(transfer->op->comm, transfer->peer);
    units_format_size(transfer->bytes, bytes, sizeof bytes);
    if (transfer->tag >= COMM_TAGS && own < sizeof exchanges / sizeof exchanges[0])
        snprintf(text, size, "%s, %s rank %u, %s of %s", exchanges[own], way, peer, bytes,
                 comm_dtype_name(transfer->dtype));
    else
        snprintf(text, size, "%s rank %u, tag %u, %s of %s", way, peer, transfer->tag, bytes,
                 comm_dtype_name(transfer->dtype));
}

void transfer_drop_all(inspan_comm_t *comm, inspan_status_t status)
{
    for (uint32_t peer = 0; peer < comm->world; peer++) {
        comm_peer_t *p = &comm->peers[peer];
        p->sends = p->sending = p->to_want = (transfer_queue_t){0};
        p->n_wants = 0;
    }
    for (uint32_t i = 0; comm->n_transfers > 0 && i < COMM_MAX_OPS; i++)
        if (comm->ops[i].transfer.phase != TRANSFER_IDLE)
            transfer_finish(comm, &comm->ops[i].transfer, status);
}
