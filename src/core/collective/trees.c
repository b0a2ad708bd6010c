/*
 * Two complementary binary trees, pipelined by chunks (Sanders, Speck, Träff 2009). Each carries one half of
 * the data: sums go up to its root, the result comes down. A rank that is inner in one is a leaf in the
 * other, so that all links carry about 2 S each way; one tree alone would put 3 S on its inner ranks.
 *
 * A tree stands over positions 0 .. n-1. Even positions are leaves, odd ones are inner: a balanced search
 * tree, whose missing children are the leaves in order. The first tree's position is the rank; the second's
 * is the rank mirrored (even n) or moved by one (odd n), which turns even into odd.
 *
 * An inner rank adds: its own part, the left child's, the right child's. The root has the result, all others
 * copy it.
 */
#include <stdlib.h>

#include "core/collective/builder.h"

enum { TAG_UP, TAG_DOWN };

typedef struct tree_place {
    uint32_t parent;      /* rank, SCHED_NONE: the root */
    uint32_t children[2]; /* ranks, SCHED_NONE: none */
} tree_place_t;

static uint32_t position_of(uint32_t world, uint32_t tree, uint32_t rank)
{
    if (tree == 0) return rank;
    return world % 2 == 0 ? world - 1 - rank : (rank + 1) % world;
}

static uint32_t rank_at(uint32_t world, uint32_t tree, uint32_t position)
{
    if (tree == 0) return position;
    return world % 2 == 0 ? world - 1 - position : (position + world - 1) % world;
}

/* The position at the top of inner positions number [from, to) (position 2 i + 1 has number i); where there
 * is none, the leaf between them, or SCHED_NONE. */
static uint32_t top_of(uint32_t world, uint32_t from, uint32_t to)
{
    if (from < to) return 2 * (from + (to - from) / 2) + 1;
    return 2 * from < world ? 2 * from : SCHED_NONE;
}

/* Down from the root to a position. world >= 2. */
static tree_place_t find_place(uint32_t world, uint32_t tree, uint32_t rank)
{
    const uint32_t wanted = position_of(world, tree, rank);
    uint32_t from = 0, to = world / 2, parent = SCHED_NONE, at = top_of(world, from, to);
    while (at != wanted) { /* then it is inner: at % 2 == 1 */
        const uint32_t middle = at / 2;
        if (wanted < at)
            to = middle;
        else
            from = middle + 1;
        parent = at;
        at = top_of(world, from, to);
    }
    tree_place_t place = {SCHED_NONE, {SCHED_NONE, SCHED_NONE}};
    if (parent != SCHED_NONE) place.parent = rank_at(world, tree, parent);
    if (at % 2 == 0) return place;
    const uint32_t left = top_of(world, from, at / 2), right = top_of(world, at / 2 + 1, to);
    if (left != SCHED_NONE) place.children[0] = rank_at(world, tree, left);
    if (right != SCHED_NONE) place.children[1] = rank_at(world, tree, right);
    return place;
}

static void carry_as_leaf(builder_t *builder, const tree_place_t *place, uint32_t chunk)
{
    builder_send(builder, place->parent, chunk, TAG_UP, SCHED_IN, 0, true, SCHED_NONE, SCHED_NONE);
    builder_recv(builder, SCHED_RECV, place->parent, chunk, TAG_DOWN, SCHED_OUT, 0, SCHED_NONE);
}

static void carry_as_inner(builder_t *builder, const tree_place_t *place, uint32_t chunk)
{
    uint32_t ready = builder_local(builder, SCHED_COPY, chunk, SCHED_IN, SCHED_OUT, 0, SCHED_NONE);
    for (int i = 0; i < 2; i++)
        if (place->children[i] != SCHED_NONE)
            ready = builder_recv(builder, SCHED_RECV_REDUCE, place->children[i], chunk, TAG_UP, SCHED_OUT, 0,
                                 ready);
    if (place->parent != SCHED_NONE) {
        const uint32_t sent =
            builder_send(builder, place->parent, chunk, TAG_UP, SCHED_OUT, 0, true, ready, SCHED_NONE);
        ready = builder_recv(builder, SCHED_RECV, place->parent, chunk, TAG_DOWN, SCHED_OUT, 0, sent);
    }
    for (int i = 0; i < 2; i++) /* their contribution is in it: they have begun */
        if (place->children[i] != SCHED_NONE)
            builder_send(builder, place->children[i], chunk, TAG_DOWN, SCHED_OUT, 0, false, ready,
                         SCHED_NONE);
}

void build_trees_allreduce(builder_t *builder)
{
    const uint32_t world = builder->request->world, rank = builder->request->rank;
    double *halves = calloc(world, sizeof *halves);
    uint32_t roots[2];
    tree_place_t places[2];
    for (uint32_t tree = 0; tree < 2; tree++) {
        roots[tree] = rank_at(world, tree, top_of(world, 0, world / 2));
        places[tree] = find_place(world, tree, rank);
        if (halves != NULL) halves[roots[tree]] = 1;
    }
    if (halves == NULL) {
        builder->status = INSPAN_NO_MEMORY;
        return;
    }
    builder_chunks_sharded(builder, halves);
    builder_chunks_interleave(builder);
    for (uint32_t c = 0; c < builder->schedule->n_chunks && builder->status == INSPAN_OK; c++) {
        const tree_place_t *place = &places[builder->schedule->chunks[c].owner == roots[1]];
        if (place->children[0] == SCHED_NONE)
            carry_as_leaf(builder, place, c);
        else
            carry_as_inner(builder, place, c);
    }
    free(halves);
}
