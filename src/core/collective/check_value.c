/*
 * What is computed. Values are expression trees: leaf(rank), or left + right, each tree once (hash-consed),
 * so that equal trees have equal numbers and "the same bits on all ranks" is one comparison. A tree knows
 * whose contributions are in it. Runs after the order was proved: any order that the dependencies allow gives
 * the same.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/vec.h"
#include "core/collective/check.h"

#define NO_TREE UINT32_MAX

typedef struct tree {
    uint32_t left, right; /* leaf: NO_TREE, rank */
    uint32_t chain;       /* the next tree of the same hash */
} tree_t;

typedef struct place { /* what lies in TMP */
    uint64_t first, count;
    uint32_t chunk, tree;
} place_t;

typedef struct values {
    const checker_t *checker;
    vec_of(tree_t) trees; /* the first `world` are the leaves */
    uint64_t *members;    /* (trees, words) bits of the ranks whose contribution is in it */
    size_t members_capacity, words;
    uint32_t *buckets; /* (n_buckets) */
    uint32_t n_buckets;
    uint32_t *out; /* (world, n_chunks) tree in OUT */
    size_t n_chunks;
    vec_of(place_t) * tmp; /* (world) */
    uint32_t *sent;        /* (operations) tree that a send took along */
    bool memory;           /* false: an allocation failed */
} values_t;

/* ---- Trees ----------------------------------------------------------------------------------- */

static uint64_t *members_of(const values_t *values, uint32_t tree)
{
    return values->members + tree * values->words;
}

static uint32_t new_tree(values_t *values, uint32_t left, uint32_t right)
{
    const uint32_t number = (uint32_t)values->trees.n;
    if (!VEC_PUSH(&values->trees, (tree_t){left, right, NO_TREE}) ||
        !vec_grow((void **)&values->members, &values->members_capacity, values->trees.n * values->words,
                  sizeof *values->members)) {
        values->memory = false;
        return NO_TREE;
    }
    memset(members_of(values, number), 0, values->words * sizeof *values->members);
    return number;
}

/* left + right; NO_TREE when out of memory. */
static uint32_t tree_add(values_t *values, uint32_t left, uint32_t right)
{
    uint32_t *bucket = &values->buckets[(left * UINT32_C(2654435761) ^ right) % values->n_buckets];
    for (uint32_t t = *bucket; t != NO_TREE; t = values->trees.items[t].chain)
        if (values->trees.items[t].left == left && values->trees.items[t].right == right) return t;
    const uint32_t number = new_tree(values, left, right);
    if (number == NO_TREE) return NO_TREE;
    for (size_t w = 0; w < values->words; w++)
        members_of(values, number)[w] = members_of(values, left)[w] | members_of(values, right)[w];
    values->trees.items[number].chain = *bucket;
    return *bucket = number;
}

static bool has_member(const values_t *values, uint32_t tree, uint32_t rank)
{
    return members_of(values, tree)[rank / 64] >> rank % 64 & 1;
}

/* A rank that is in both, or NO_TREE. */
static uint32_t in_both(const values_t *values, uint32_t a, uint32_t b)
{
    for (size_t w = 0; w < values->words; w++) {
        const uint64_t both = members_of(values, a)[w] & members_of(values, b)[w];
        if (both != 0) return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(both);
    }
    return NO_TREE;
}

/* The lowest rank that is missing, or NO_TREE. */
static uint32_t missing(const values_t *values, uint32_t tree)
{
    for (uint32_t rank = 0; rank < values->checker->world; rank++)
        if (!has_member(values, tree, rank)) return rank;
    return NO_TREE;
}

/* ---- Memory of the ranks --------------------------------------------------------------------- */

static uint32_t read_in(const values_t *values, uint32_t rank, uint32_t chunk)
{
    const schedule_t *schedule = values->checker->ranks[rank];
    if (schedule->collective == SCHED_ALLGATHER && schedule->chunks[chunk].owner != rank) return NO_TREE;
    if (schedule->collective == SCHED_BROADCAST && schedule->root != rank) return NO_TREE;
    return rank;
}

static uint32_t *out_of(const values_t *values, uint32_t rank, uint32_t chunk)
{
    return &values->out[rank * values->n_chunks + chunk];
}

/* The tree in a buffer, or NO_TREE: nothing was put there, or something else. */
static uint32_t read_value(const values_t *values, uint32_t rank, const sched_op_t *op, uint8_t buffer)
{
    if (buffer == SCHED_IN) return read_in(values, rank, op->chunk);
    if (buffer == SCHED_OUT) return *out_of(values, rank, op->chunk);
    for (size_t i = 0; i < values->tmp[rank].n; i++) {
        const place_t *place = &values->tmp[rank].items[i];
        if (place->first == op->tmp_offset && place->chunk == op->chunk) return place->tree;
    }
    return NO_TREE;
}

static void write_value(values_t *values, uint32_t rank, const sched_op_t *op, uint32_t tree)
{
    if (op->dst == SCHED_OUT) {
        *out_of(values, rank, op->chunk) = tree;
        return;
    }
    const uint64_t first = op->tmp_offset, count = values->checker->ranks[rank]->chunks[op->chunk].count;
    size_t kept = 0; /* what the new value covers, even in part, is gone */
    for (size_t i = 0; i < values->tmp[rank].n; i++) {
        const place_t place = values->tmp[rank].items[i];
        if (place.first + place.count <= first || first + count <= place.first)
            values->tmp[rank].items[kept++] = place;
    }
    values->tmp[rank].n = kept;
    if (!VEC_PUSH(&values->tmp[rank], (place_t){first, count, op->chunk, tree})) values->memory = false;
}

/* ---- Running --------------------------------------------------------------------------------- */

static inspan_status_t run_op(values_t *values, uint64_t number)
{
    static const char *const buffers[] = {"IN", "OUT", "TMP"};
    const checker_t *checker = values->checker;
    const uint32_t rank = check_rank_of(checker, number);
    const sched_op_t *op = check_op(checker, number);
    if (checker->ranks[rank]->chunks[op->chunk].count == 0) return INSPAN_OK;
    uint32_t value = NO_TREE;
    if (check_reads_src(op)) {
        value = read_value(values, rank, op, op->src);
        if (value == NO_TREE)
            return check_fault(checker, number, "reads %s, where its chunk is not", buffers[op->src]);
    } else {
        value = values->sent[checker->partner[number]];
    }
    if (op->kind == SCHED_REDUCE || op->kind == SCHED_RECV_REDUCE) {
        const uint32_t have = read_value(values, rank, op, op->dst);
        if (have == NO_TREE)
            return check_fault(checker, number, "adds to %s, where its chunk is not", buffers[op->dst]);
        const uint32_t twice = in_both(values, have, value);
        if (twice != NO_TREE)
            return check_fault(checker, number, "adds the contribution of rank %u twice", twice);
        value = tree_add(values, have, value);
        if (value == NO_TREE) return check_no_memory(checker);
    }
    if (op->kind == SCHED_SEND && !op->staged && !has_member(values, value, op->peer))
        return check_fault(checker, number,
                           "is not staged, but rank %u has no part in it: it may not have begun", op->peer);
    if (op->kind == SCHED_SEND)
        values->sent[number] = value;
    else
        write_value(values, rank, op, value);
    return values->memory ? INSPAN_OK : check_no_memory(checker);
}

/* The last operation of rank that names the chunk, to tell a person about; any if there is none. */
static uint64_t last_of(const checker_t *checker, uint32_t rank, uint32_t chunk)
{
    const schedule_t *schedule = checker->ranks[rank];
    for (uint32_t i = schedule->n_ops; i-- > 0;)
        if (schedule->ops[i].chunk == chunk && check_writes(&schedule->ops[i]))
            return checker->base[rank] + i;
    return CHECK_NONE;
}

/* The result of a rank is not what it should be: named with the operation that wrote it, if there is one. */
static inspan_status_t wrong(const checker_t *checker, uint32_t rank, uint32_t chunk, const char *what,
                             uint32_t whose)
{
    const uint64_t number = last_of(checker, rank, chunk);
    if (number != CHECK_NONE) return check_fault(checker, number, "after it, the result %s %u", what, whose);
    return error_set(checker->err, INSPAN_INVALID,
                     "schedule: rank %u, no operation writes chunk %u: the result %s %u", rank, chunk, what,
                     whose);
}

static inspan_status_t check_result(const values_t *values, uint32_t rank, uint32_t chunk)
{
    const checker_t *checker = values->checker;
    const schedule_t *schedule = checker->ranks[rank];
    const uint32_t owner = schedule->chunks[chunk].owner, got = *out_of(values, rank, chunk);
    if (schedule->chunks[chunk].count == 0) return INSPAN_OK;
    if (schedule->collective == SCHED_REDUCE_SCATTER && owner != rank) return INSPAN_OK;
    if (got == NO_TREE) return wrong(checker, rank, chunk, "is missing on rank", rank);
    if (schedule->collective == SCHED_ALLGATHER || schedule->collective == SCHED_BROADCAST) {
        const uint32_t want = schedule->collective == SCHED_BROADCAST ? schedule->root : owner;
        return got == want ? INSPAN_OK : wrong(checker, rank, chunk, "has not just the data of rank", want);
    }
    const uint32_t lacks = missing(values, got);
    if (lacks != NO_TREE) return wrong(checker, rank, chunk, "lacks the contribution of rank", lacks);
    if (schedule->collective == SCHED_ALLREDUCE && got != *out_of(values, 0, chunk))
        return wrong(checker, rank, chunk, "is added up in another order than that of rank", 0);
    return INSPAN_OK;
}

/* A barrier has no data: every rank must have heard, directly or through others, that every rank began. */
static inspan_status_t check_barrier(const checker_t *checker)
{
    const size_t words = (checker->world + 63) / 64;
    const uint64_t n_ops = checker->base[checker->world];
    uint64_t *known = calloc((n_ops + 1) * words, sizeof *known), *all = calloc(words, sizeof *all);
    inspan_status_t status = known == NULL || all == NULL ? check_no_memory(checker) : INSPAN_OK;
    for (uint64_t k = 0; k < n_ops && status == INSPAN_OK; k++) {
        const uint64_t number = checker->order[k];
        const uint32_t rank = check_rank_of(checker, number);
        const sched_op_t *op = check_op(checker, number);
        uint64_t *mine = known + number * words;
        mine[rank / 64] |= UINT64_C(1) << rank % 64;
        for (int i = 0; i < 2; i++)
            for (size_t w = 0; op->after[i] != SCHED_NONE && w < words; w++)
                mine[w] |= known[(checker->base[rank] + op->after[i]) * words + w];
        for (size_t w = 0; op->kind != SCHED_SEND && check_has_peer(op) && w < words; w++)
            mine[w] |= known[checker->partner[number] * words + w];
    }
    for (uint32_t rank = 0; rank < checker->world && status == INSPAN_OK; rank++) {
        memset(all, 0, words * sizeof *all);
        all[rank / 64] |= UINT64_C(1) << rank % 64;
        for (uint64_t i = checker->base[rank]; i < checker->base[rank + 1]; i++)
            for (size_t w = 0; w < words; w++) all[w] |= known[i * words + w];
        for (uint32_t other = 0; other < checker->world && status == INSPAN_OK; other++)
            if (!(all[other / 64] >> other % 64 & 1))
                status = error_set(checker->err, INSPAN_INVALID,
                                   "schedule: rank %u can leave the barrier before rank %u entered it", rank,
                                   other);
    }
    free(known);
    free(all);
    return status;
}

static bool values_open(values_t *values, const checker_t *checker)
{
    const size_t world = checker->world, n_chunks = (size_t)checker->ranks[0]->n_chunks + 1;
    *values = (values_t){.checker = checker,
                         .words = (world + 63) / 64,
                         .n_buckets = 4096,
                         .buckets = malloc(4096 * sizeof *values->buckets),
                         .out = malloc(world * n_chunks * sizeof *values->out),
                         .tmp = calloc(world, sizeof *values->tmp),
                         .sent = calloc(checker->base[world] + 1, sizeof *values->sent),
                         .n_chunks = n_chunks,
                         .memory = true};
    if (values->buckets == NULL || values->out == NULL || values->tmp == NULL || values->sent == NULL)
        return false;
    for (uint32_t i = 0; i < values->n_buckets; i++) values->buckets[i] = NO_TREE;
    for (size_t i = 0; i < world * n_chunks; i++) values->out[i] = NO_TREE;
    for (uint32_t rank = 0; rank < world && values->memory; rank++)
        if (new_tree(values, NO_TREE, rank) != NO_TREE)
            members_of(values, rank)[rank / 64] |= UINT64_C(1) << rank % 64;
    return values->memory;
}

static void values_close(values_t *values)
{
    for (uint32_t rank = 0; values->tmp != NULL && rank < values->checker->world; rank++)
        vec_free(&values->tmp[rank]);
    vec_free(&values->trees);
    free(values->members);
    free(values->buckets);
    free(values->out);
    free(values->tmp);
    free(values->sent);
}

inspan_status_t check_values(const checker_t *checker)
{
    if (checker->ranks[0]->collective == SCHED_BARRIER) return check_barrier(checker);
    values_t values;
    inspan_status_t status = values_open(&values, checker) ? INSPAN_OK : check_no_memory(checker);
    for (uint64_t k = 0; k < checker->base[checker->world] && status == INSPAN_OK; k++)
        status = run_op(&values, checker->order[k]);
    for (uint32_t rank = 0; rank < checker->world && status == INSPAN_OK; rank++)
        for (uint32_t c = 0; c < checker->ranks[0]->n_chunks && status == INSPAN_OK; c++)
            status = check_result(&values, rank, c);
    values_close(&values);
    return status;
}
