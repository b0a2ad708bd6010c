/*
 * Schedules made ready to run: who waits for whom, what goes to and comes from each peer. A plan is built at
 * the first call of its kind and kept; each operation that is under way has a run of it, and runs are kept
 * too: training repeats its calls, so after the first step nothing is allocated.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "comm/internal.h"

static const double *weights_for(const inspan_comm_t *comm, const data_call_t *call, uint64_t bytes)
{
    const tune_choice_t *choice = tune_choice(comm, call->collective, bytes);
    if (choice != NULL) return choice->equal ? NULL : choice->weights;
    const bool by_shares = comm->weights == NULL && comm->tune.shared &&
                           call->collective == SCHED_ALLREDUCE && call->algorithm == SCHED_DIRECT;
    return by_shares ? comm->tune.shares : comm->weights;
}

static uint64_t layout_of(const inspan_comm_t *comm, const double *weights, uint64_t chunk_bytes)
{
    return weights != NULL ? hash64(weights, comm->world * sizeof *weights, chunk_bytes) : chunk_bytes;
}

static const sched_chunk_t *chunk_of(const comm_plan_t *plan, uint32_t op)
{
    return &plan->schedule->chunks[plan->schedule->ops[op].chunk];
}

inspan_wire_t plan_wire(const comm_plan_t *plan, uint32_t op)
{
    return chunk_of(plan, op)->exact ? INSPAN_WIRE_FP32 : (inspan_wire_t)plan->call.wire;
}

uint64_t plan_count(const comm_plan_t *plan, uint32_t op)
{
    return chunk_of(plan, op)->count;
}

uint64_t plan_bytes(const comm_plan_t *plan, uint32_t op)
{
    const inspan_wire_t wire = plan_wire(plan, op);
    const uint64_t count = plan_count(plan, op);
    return wire == INSPAN_WIRE_FP32 ? count * plan->element_size : codec_bytes(wire, count);
}

uint32_t plan_unit(const comm_plan_t *plan, uint32_t op)
{
    const inspan_wire_t wire = plan_wire(plan, op);
    return wire == INSPAN_WIRE_FP32 ? plan->element_size : codec_unit_bytes(wire);
}

uint64_t plan_elements(const comm_plan_t *plan, uint32_t op, uint64_t bytes)
{
    const inspan_wire_t wire = plan_wire(plan, op);
    return wire == INSPAN_WIRE_FP32 ? bytes / plan->element_size : codec_elements(wire, bytes);
}

bool plan_whole(const comm_plan_t *plan, uint32_t op, uint64_t bytes, uint64_t left)
{
    return left == 0 || bytes % plan_unit(plan, op) == 0;
}

uint8_t *run_place(const comm_run_t *run, uint32_t op, sched_buffer_t buffer, uint64_t moved)
{
    const sched_op_t *what = &run->plan->schedule->ops[op];
    const uint64_t before = buffer == SCHED_IN ? run->in_first : buffer == SCHED_OUT ? run->out_first : 0;
    const uint64_t first = buffer == SCHED_TMP ? what->tmp_offset : chunk_of(run->plan, op)->first - before;
    uint8_t *base = buffer == SCHED_IN    ? (uint8_t *)(uintptr_t)run->in
                    : buffer == SCHED_OUT ? run->out
                                          : run->tmp;
    if (base == NULL) return NULL; /* a barrier has no data */
    return base + (first + plan_elements(run->plan, op, moved)) * run->plan->element_size;
}

float *run_error(const comm_run_t *run, uint32_t op, uint64_t moved)
{
    if (run->error == NULL) return NULL;
    return run->error + chunk_of(run->plan, op)->first + plan_elements(run->plan, op, moved);
}

static bool is_recv(const sched_op_t *op)
{
    return op->kind == SCHED_RECV || op->kind == SCHED_RECV_REDUCE;
}

/* ---- Building -------------------------------------------------------------------------------- */

static void plan_free(comm_plan_t *plan)
{
    if (plan == NULL) return;
    while (plan->free_runs != NULL) {
        comm_run_t *run = plan->free_runs;
        plan->free_runs = run->next;
        free(run->tmp);
        free(run->encoded);
        free(run);
    }
    sched_free(plan->schedule);
    free(plan->waits);
    free(plan->dependents_first);
    free(plan->dependents);
    free(plan->sends_first);
    free(plan->sends);
    free(plan->recvs_first);
    free(plan->recvs);
    free(plan->position);
    free(plan->bits_first);
    free(plan->staged_to);
    free(plan->staged_from);
    free(plan->encoded_at);
    free(plan);
}

static bool plan_allocate(comm_plan_t *plan)
{
    const size_t n = plan->schedule->n_ops, world = plan->schedule->world;
    plan->waits = calloc(n + 1, sizeof *plan->waits);
    plan->dependents_first = calloc(n + 2, sizeof *plan->dependents_first);
    plan->dependents = calloc(2 * n + 1, sizeof *plan->dependents);
    plan->sends_first = calloc(world + 2, sizeof *plan->sends_first);
    plan->sends = calloc(n + 1, sizeof *plan->sends);
    plan->recvs_first = calloc(world + 2, sizeof *plan->recvs_first);
    plan->recvs = calloc(n + 1, sizeof *plan->recvs);
    plan->position = calloc(n + 1, sizeof *plan->position);
    plan->bits_first = calloc(world + 1, sizeof *plan->bits_first);
    plan->staged_to = calloc(world, sizeof *plan->staged_to);
    plan->staged_from = calloc(world, sizeof *plan->staged_from);
    plan->encoded_at = calloc((size_t)plan->schedule->n_chunks + 1, sizeof *plan->encoded_at);
    return plan->waits && plan->dependents_first && plan->dependents && plan->sends_first && plan->sends &&
           plan->recvs_first && plan->recvs && plan->position && plan->bits_first && plan->staged_to &&
           plan->staged_from && plan->encoded_at;
}

/* Counting sort by key: first[k] .. first[k + 1] of `sorted`; before the call first[k + 2] holds how many
 * have key k. */
static void prefix_sums(uint32_t *first, uint32_t keys)
{
    for (uint32_t k = 2; k < keys + 2; k++) first[k] += first[k - 1];
}

static void plan_dependents(comm_plan_t *plan)
{
    const schedule_t *schedule = plan->schedule;
    for (uint32_t i = 0; i < schedule->n_ops; i++)
        for (int k = 0; k < 2; k++)
            if (schedule->ops[i].after[k] != SCHED_NONE) {
                plan->waits[i]++;
                plan->dependents_first[schedule->ops[i].after[k] + 2]++;
            }
    prefix_sums(plan->dependents_first, schedule->n_ops);
    for (uint32_t i = 0; i < schedule->n_ops; i++)
        for (int k = 0; k < 2; k++)
            if (schedule->ops[i].after[k] != SCHED_NONE)
                plan->dependents[plan->dependents_first[schedule->ops[i].after[k] + 1]++] = i;
}

static int by_chunk_and_tag(const void *a, const void *b, void *context)
{
    const schedule_t *schedule = context;
    const sched_op_t *x = &schedule->ops[*(const uint32_t *)a], *y = &schedule->ops[*(const uint32_t *)b];
    if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
    return (x->tag > y->tag) - (x->tag < y->tag);
}

static void plan_peers(comm_plan_t *plan)
{
    schedule_t *schedule = plan->schedule;
    for (uint32_t i = 0; i < schedule->n_ops; i++) {
        const sched_op_t *op = &schedule->ops[i];
        if (op->kind == SCHED_SEND) plan->sends_first[op->peer + 2]++;
        if (is_recv(op)) plan->recvs_first[op->peer + 2]++;
    }
    prefix_sums(plan->sends_first, schedule->world);
    prefix_sums(plan->recvs_first, schedule->world);
    for (uint32_t i = 0; i < schedule->n_ops; i++) {
        const sched_op_t *op = &schedule->ops[i];
        const uint64_t cost = pages_cost(plan_bytes(plan, i));
        if (op->kind == SCHED_SEND) {
            if (op->staged) plan->staged_to[op->peer] += cost;
            plan->sends[plan->sends_first[op->peer + 1]++] = i;
        }
        if (is_recv(op)) {
            plan->staged_from[op->peer] += cost; /* at most: a RECV does not say whether its SEND is staged */
            plan->recvs[plan->recvs_first[op->peer + 1]++] = i;
        }
    }
    for (uint32_t peer = 0; peer < schedule->world; peer++) {
        uint32_t *sends = plan->sends + plan->sends_first[peer],
                 *recvs = plan->recvs + plan->recvs_first[peer];
        const uint32_t n_sends = plan->sends_first[peer + 1] - plan->sends_first[peer];
        for (uint32_t i = 0; i < n_sends; i++) plan->position[sends[i]] = i;
        plan->bits_first[peer + 1] = plan->bits_first[peer] + (n_sends + 63) / 64;
        qsort_r(recvs, plan->recvs_first[peer + 1] - plan->recvs_first[peer], sizeof *recvs, by_chunk_and_tag,
                schedule);
    }
}

static void plan_encoded(comm_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->schedule->n_ops; i++) {
        const sched_op_t *op = &plan->schedule->ops[i];
        if (!op->result || plan_wire(plan, i) == INSPAN_WIRE_FP32) continue;
        plan->encoded_at[op->chunk] = plan->encoded_bytes;
        plan->encoded_bytes += plan_bytes(plan, i);
    }
}

static inspan_status_t plan_build(const inspan_comm_t *comm, const data_call_t *call, const double *weights,
                                  uint64_t chunk_bytes, comm_plan_t **out)
{
    comm_plan_t *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return INSPAN_NO_MEMORY;
    plan->call = *call;
    plan->element_size = (uint32_t)inspan_dtype_size((inspan_dtype_t)call->dtype);
    plan->bytes = call->count * plan->element_size;
    const bool ours = call->algorithm != DATA_BY_BACKEND; /* else there is nothing to schedule */
    sched_request_t request = {.collective = ours ? (sched_collective_t)call->collective : SCHED_ALLREDUCE,
                               .algorithm = ours ? (sched_algorithm_t)call->algorithm : SCHED_DIRECT,
                               .owners = ours ? (sched_owners_t)call->owners : SCHED_BY_SHARDS,
                               .world = comm->world,
                               .rank = comm->rank,
                               .root = call->root,
                               .count = ours ? call->count : 0,
                               .exact_tail = call->exact_tail,
                               .element_size = plan->element_size,
                               .chunk_bytes = chunk_bytes,
                               .weights = weights};
    inspan_status_t status = sched_build(&request, &plan->schedule);
    if (status == INSPAN_OK && !plan_allocate(plan)) status = INSPAN_NO_MEMORY;
    if (status != INSPAN_OK) {
        plan_free(plan);
        return status;
    }
    plan_dependents(plan);
    plan_peers(plan);
    plan_encoded(plan);
    *out = plan;
    return INSPAN_OK;
}

/* ---- Cache ----------------------------------------------------------------------------------- */

static bool same_call(const data_call_t *a, const data_call_t *b)
{
    return a->collective == b->collective && a->algorithm == b->algorithm && a->dtype == b->dtype &&
           a->reduction == b->reduction && a->wire == b->wire && a->owners == b->owners &&
           a->root == b->root && a->count == b->count && a->exact_tail == b->exact_tail &&
           a->layout == b->layout;
}

/* The slot of the plan that was not used for the longest time and is not in use now; COMM_MAX_PLANS: none. */
static uint32_t plan_victim(inspan_comm_t *comm)
{
    uint32_t victim = COMM_MAX_PLANS;
    pthread_mutex_lock(&comm->lock);
    for (uint32_t i = 0; i < comm->n_plans; i++)
        if (comm->plans[i]->users == 0 &&
            (victim == COMM_MAX_PLANS || comm->plans[i]->last_use < comm->plans[victim]->last_use))
            victim = i;
    pthread_mutex_unlock(&comm->lock);
    return victim;
}

/*
 * Chunks long enough to cost no headers and short enough to keep both directions of every link busy from soon
 * after the start until the end: behind a slow link, the last chunk's way back is what is left over. The same
 * on every rank.
 */
uint64_t plan_chunk_bytes(const inspan_comm_t *comm, uint64_t bytes)
{
    if (comm->chunk_bytes > 0) return comm->chunk_bytes;
    const uint64_t each = bytes / (16 * (uint64_t)comm->world);
    return each < 16384 ? 16384 : each > 131072 ? 131072 : each / 4096 * 4096;
}

inspan_status_t plan_get(inspan_comm_t *comm, const data_call_t *wanted, comm_plan_t **out)
{
    data_call_t call = *wanted;
    const uint64_t bytes = call.count * inspan_dtype_size((inspan_dtype_t)call.dtype);
    const uint64_t chunk_bytes = plan_chunk_bytes(comm, bytes);
    const double *weights = weights_for(comm, &call, bytes);
    call.layout = layout_of(comm, weights, chunk_bytes);
    for (uint32_t i = 0; i < comm->n_plans; i++)
        if (same_call(&comm->plans[i]->call, &call)) {
            *out = comm->plans[i];
            comm->plans[i]->last_use = ++comm->plan_clock;
            return INSPAN_OK;
        }
    uint32_t slot = comm->n_plans < COMM_MAX_PLANS ? comm->n_plans : plan_victim(comm);
    if (slot == COMM_MAX_PLANS) return INSPAN_LIMIT;
    comm_plan_t *plan = NULL;
    inspan_status_t status = plan_build(comm, &call, weights, chunk_bytes, &plan);
    if (status != INSPAN_OK) return status;
    if (slot == comm->n_plans)
        comm->n_plans++;
    else
        plan_free(comm->plans[slot]);
    comm->plans[slot] = plan;
    plan->last_use = ++comm->plan_clock;
    *out = plan;
    return INSPAN_OK;
}

void plan_free_all(inspan_comm_t *comm)
{
    for (uint32_t i = 0; i < comm->n_plans; i++) plan_free(comm->plans[i]);
    comm->n_plans = 0;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static size_t carve(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used = at + (bytes + 15) / 16 * 16;
    return at;
}

/* One allocation for a run and all its arrays, and one for its scratch. */
static inspan_status_t run_create(comm_plan_t *plan, comm_run_t **out)
{
    const size_t n = plan->schedule->n_ops, world = plan->schedule->world, words = plan->bits_first[world];
    size_t used = 0;
    carve(&used, sizeof(comm_run_t));
    const size_t waits = carve(&used, n), whole = carve(&used, n), moved = carve(&used, n * 8),
                 arrived = carve(&used, n * 8), chain = carve(&used, n * sizeof(page_chain_t)),
                 work = carve(&used, n * 4), ready0 = carve(&used, words * 8),
                 ready1 = carve(&used, words * 8), window = carve(&used, world * 8),
                 to_tell = carve(&used, world * 8), uncovered = carve(&used, world * 8),
                 tell = carve(&used, world), n_ready = carve(&used, world * 4);
    uint8_t *memory = calloc(1, used);
    const uint64_t tmp_bytes = plan->schedule->tmp_elements * plan->element_size;
    uint8_t *tmp = tmp_bytes > 0 ? aligned_alloc(64, (tmp_bytes + 63) / 64 * 64) : NULL;
    uint8_t *encoded = plan->encoded_bytes > 0 ? malloc(plan->encoded_bytes) : NULL;
    if (memory == NULL || (tmp == NULL && tmp_bytes > 0) || (encoded == NULL && plan->encoded_bytes > 0)) {
        free(memory);
        free(tmp);
        free(encoded);
        return INSPAN_NO_MEMORY;
    }
    comm_run_t *run = (comm_run_t *)memory;
    *run = (comm_run_t){.plan = plan,
                        .tmp = tmp,
                        .encoded = encoded,
                        .waits = memory + waits,
                        .whole = memory + whole,
                        .moved = (uint64_t *)(memory + moved),
                        .arrived = (uint64_t *)(memory + arrived),
                        .chain = (page_chain_t *)(memory + chain),
                        .work = (uint32_t *)(memory + work),
                        .ready = {(uint64_t *)(memory + ready0), (uint64_t *)(memory + ready1)},
                        .window = (uint64_t *)(memory + window),
                        .to_tell = (uint64_t *)(memory + to_tell),
                        .uncovered = (uint64_t *)(memory + uncovered),
                        .tell = memory + tell,
                        .n_ready = (uint32_t *)(memory + n_ready)};
    *out = run;
    return INSPAN_OK;
}

static void run_reset(comm_run_t *run)
{
    const comm_plan_t *plan = run->plan;
    const size_t n = plan->schedule->n_ops, world = plan->schedule->world, words = plan->bits_first[world];
    if (n > 0) {
        memcpy(run->waits, plan->waits, n);
        memset(run->whole, 0, n);
        memset(run->moved, 0, n * sizeof *run->moved);
        memset(run->arrived, 0, n * sizeof *run->arrived);
        memset(run->chain, 0xff, n * sizeof *run->chain); /* COMM_NONE */
    }
    memset(run->ready[0], 0, words * 8);
    memset(run->ready[1], 0, words * 8);
    memset(run->window, 0, world * 8);
    memset(run->to_tell, 0, world * 8);
    memset(run->tell, 0, world);
    memset(run->n_ready, 0, world * sizeof *run->n_ready);
    memcpy(run->uncovered, plan->staged_from, world * 8);
    run->next = NULL;
    run->left = plan->schedule->n_ops;
    run->open = false;
    run->work_head = run->work_tail = 0;
}

inspan_status_t plan_take_run(inspan_comm_t *comm, comm_plan_t *plan, comm_run_t **out)
{
    pthread_mutex_lock(&comm->lock);
    comm_run_t *run = plan->free_runs;
    if (run != NULL) plan->free_runs = run->next;
    plan->users++;
    pthread_mutex_unlock(&comm->lock);
    inspan_status_t status = run != NULL ? INSPAN_OK : run_create(plan, &run);
    if (status != INSPAN_OK) {
        pthread_mutex_lock(&comm->lock);
        plan->users--;
        pthread_mutex_unlock(&comm->lock);
        return status;
    }
    run_reset(run);
    *out = run;
    return INSPAN_OK;
}

void plan_return_run(comm_run_t *run)
{
    run->next = run->plan->free_runs;
    run->plan->free_runs = run;
    run->plan->users--;
}

uint32_t plan_find_recv(const comm_plan_t *plan, uint32_t peer, uint32_t chunk, uint32_t tag)
{
    uint32_t low = plan->recvs_first[peer], high = plan->recvs_first[peer + 1];
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const sched_op_t *op = &plan->schedule->ops[plan->recvs[middle]];
        if (op->chunk == chunk && op->tag == tag) return plan->recvs[middle];
        if (op->chunk < chunk || (op->chunk == chunk && op->tag < tag))
            low = middle + 1;
        else
            high = middle;
    }
    return COMM_NONE;
}
