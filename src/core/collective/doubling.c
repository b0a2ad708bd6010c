/*
 * Recursive doubling (Thakur, Rabenseifner, Gropp 2005): whole inputs, few hops. n = 2^k + r ranks, r < 2^k.
 *
 *   fold     rank 2^k + i sends its input to rank i
 *   round j  of the ranks below 2^k, those whose numbers differ in bit j alone swap what they have
 *   unfold   rank i sends the result to rank 2^k + i
 *
 * Both of a pair add the same way around, the lower rank's part first: the upper one takes that into TMP and
 * adds its own behind it. So all ranks hold the same tree.
 */
#include "core/collective/builder.h"

enum { TAG_FOLD, TAG_UNFOLD, TAG_ROUND };

typedef struct doubling {
    builder_t *builder;
    uint32_t chunk;
    sched_buffer_t where; /* what this rank has so far: IN, then OUT */
    uint32_t ready;       /* what made it; SCHED_NONE: it is the input */
    uint32_t tmp_read;    /* what read TMP last */
} doubling_t;

/* OUT = the input, so that others' parts can be added behind it. */
static void to_out(doubling_t *d)
{
    if (d->where == SCHED_OUT) return;
    d->ready = builder_local(d->builder, SCHED_COPY, d->chunk, SCHED_IN, SCHED_OUT, 0, SCHED_NONE);
    d->where = SCHED_OUT;
}

/* out_read: what reads OUT just now, SCHED_NONE: nothing. */
static void add_from(doubling_t *d, uint32_t peer, uint32_t tag, uint32_t out_read)
{
    to_out(d);
    d->ready = builder_recv(d->builder, SCHED_RECV_REDUCE, peer, d->chunk, tag, SCHED_OUT, 0,
                            out_read == SCHED_NONE ? d->ready : out_read);
}

static void add_behind(doubling_t *d, uint32_t peer, uint32_t tag, uint32_t out_read)
{
    const uint64_t place = d->builder->status == INSPAN_OK ? d->builder->schedule->chunks[d->chunk].first : 0;
    const uint32_t got =
        builder_recv(d->builder, SCHED_RECV, peer, d->chunk, tag, SCHED_TMP, place, d->tmp_read);
    const uint32_t sum = builder_local(d->builder, SCHED_REDUCE, d->chunk, d->where, SCHED_TMP, place, got);
    builder_after_too(d->builder, sum, out_read);
    d->ready = d->tmp_read =
        builder_local(d->builder, SCHED_COPY, d->chunk, SCHED_TMP, SCHED_OUT, place, sum);
    d->where = SCHED_OUT;
}

static void double_chunk(doubling_t *d, uint32_t power)
{
    const sched_request_t *request = d->builder->request;
    const uint32_t rank = request->rank;
    if (rank >= power) {
        builder_send(d->builder, rank - power, d->chunk, TAG_FOLD, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
        builder_recv(d->builder, SCHED_RECV, rank - power, d->chunk, TAG_UNFOLD, SCHED_OUT, 0, SCHED_NONE);
        return;
    }
    const bool folds = rank < request->world - power;
    if (folds) add_from(d, power + rank, TAG_FOLD, SCHED_NONE);
    for (uint32_t bit = 1, tag = TAG_ROUND; bit < power; bit *= 2, tag++) {
        const uint32_t sent =
            builder_send(d->builder, rank ^ bit, d->chunk, tag, d->where, 0, true, d->ready, SCHED_NONE);
        const uint32_t out_read = d->where == SCHED_OUT ? sent : SCHED_NONE;
        if ((rank & bit) == 0)
            add_from(d, rank ^ bit, tag, out_read);
        else
            add_behind(d, rank ^ bit, tag, out_read);
    }
    to_out(d);
    if (folds)
        builder_send(d->builder, power + rank, d->chunk, TAG_UNFOLD, SCHED_OUT, 0, false, d->ready,
                     SCHED_NONE);
}

void build_doubling_allreduce(builder_t *builder)
{
    uint32_t power = 1;
    while (power <= builder->request->world / 2) power *= 2;
    builder_chunks_plain(builder, SCHED_NONE);
    for (uint32_t c = 0; c < builder->schedule->n_chunks && builder->status == INSPAN_OK; c++) {
        doubling_t d = {builder, c, SCHED_IN, SCHED_NONE, SCHED_NONE};
        double_chunk(&d, power);
    }
    if (builder->request->rank < power && builder->request->rank > 0)
        builder->schedule->tmp_elements = builder->request->count;
}
