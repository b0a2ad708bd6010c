#include "core/collective/pairs.h"

#include <stdlib.h>

typedef struct transfer {
    uint32_t from, to, chunk, tag;
    bool receive;
    uint64_t number;
} transfer_t;

static int by_link(const transfer_t *x, const transfer_t *y)
{
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
    return (x->tag > y->tag) - (x->tag < y->tag);
}

static int by_transfer(const void *a, const void *b)
{
    const transfer_t *x = a, *y = b;
    const int link = by_link(x, y);
    if (link != 0) return link;
    if (x->receive != y->receive) return x->receive - y->receive;
    return (x->number > y->number) - (x->number < y->number);
}

/* transfers (n), sorted: each send must stand right before its receive. */
static inspan_status_t marry(const transfer_t *transfers, uint64_t n, uint64_t *partner, pairs_fault_t *fault)
{
    for (uint64_t i = 0; i < n; i += 2) {
        const transfer_t *send = &transfers[i], *receive = &transfers[i + 1];
        *fault = (pairs_fault_t){send->number, false};
        if (i + 1 == n || by_link(send, receive) != 0) return INSPAN_INVALID;
        *fault = (pairs_fault_t){receive->number, true};
        if (send->receive || !receive->receive) return INSPAN_INVALID;
        if (i + 2 < n && by_link(send, &transfers[i + 2]) == 0) {
            fault->number = transfers[i + 2].number;
            return INSPAN_INVALID;
        }
        partner[send->number] = receive->number;
        partner[receive->number] = send->number;
    }
    return INSPAN_OK;
}

inspan_status_t pairs_match(const schedule_t *const *ranks, uint32_t world, const uint64_t *base,
                            uint64_t *partner, pairs_fault_t *fault)
{
    transfer_t *transfers = calloc(base[world] + 1, sizeof *transfers);
    if (transfers == NULL) return INSPAN_NO_MEMORY;
    uint64_t n = 0, number = 0;
    for (uint32_t rank = 0; rank < world; rank++)
        for (uint32_t i = 0; i < ranks[rank]->n_ops; i++, number++) {
            const sched_op_t *op = &ranks[rank]->ops[i];
            partner[number] = PAIRS_NONE;
            if (op->kind == SCHED_SEND)
                transfers[n++] = (transfer_t){rank, op->peer, op->chunk, op->tag, false, number};
            else if (sched_receives(op))
                transfers[n++] = (transfer_t){op->peer, rank, op->chunk, op->tag, true, number};
        }
    qsort(transfers, n, sizeof *transfers, by_transfer);
    const inspan_status_t status = marry(transfers, n, partner, fault);
    free(transfers);
    return status;
}
