/* The public calls: check arguments, choose the algorithm, hand over to the I/O thread, wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/backends/engine.h"
#include "platform/os/os_time.h"

#define ONE_SHOT_MOST 49152 /* bytes that a rank sends in all: below, one hop is faster than two */

/* ---- Names ----------------------------------------------------------------------------------- */

const char *comm_dtype_name(uint8_t dtype)
{
    static const char *const names[INSPAN_DTYPES] = {"fp32",  "fp64",  "fp16", "bf16", "int32",
                                                     "int64", "uint8", "int8", "int16"};
    return dtype < INSPAN_DTYPES ? names[dtype] : "unknown";
}

const char *inspan_wire_name(inspan_wire_t wire)
{
    static const char *const names[INSPAN_WIRES] = {"fp32", "bf16", "fp16", "int8"};
    return (unsigned)wire < INSPAN_WIRES ? names[wire] : "unknown";
}

uint64_t comm_wire_bytes(inspan_wire_t wire, uint64_t elements)
{
    return codec_bytes(wire, elements);
}

void comm_describe_call(const inspan_comm_t *comm, const data_call_t *call, uint64_t seq, char *text,
                        size_t size)
{
    static const char *const collectives[] = {"allreduce", "reduce-scatter", "all-gather", "broadcast",
                                              "barrier"};
    const bool reduce = call->collective == SCHED_REDUCE_SCATTER && call->owners == SCHED_BY_ROOT;
    static const char *const reductions[INSPAN_REDUCTIONS] = {
        "sum", "min", "max", "product", "bitwise and", "bitwise or", "bitwise xor"};
    const char *name = reduce                              ? "reduce"
                       : call->collective <= SCHED_BARRIER ? collectives[call->collective]
                                                           : "unknown";
    int used = snprintf(text, size, "%s #%llu", name, (unsigned long long)seq);
    if (call->collective >= SCHED_BARRIER || used < 0 || (size_t)used >= size) return;
    char bytes[32];
    units_format_size(call->count * inspan_dtype_size((inspan_dtype_t)call->dtype), bytes, sizeof bytes);
    used += snprintf(text + used, size - (size_t)used, ", %s of %s", bytes, comm_dtype_name(call->dtype));
    if ((size_t)used >= size) return;
    if (call->collective <= SCHED_REDUCE_SCATTER)
        used += snprintf(text + used, size - (size_t)used, " %s", reductions[call->reduction]);
    else if (call->collective == SCHED_BROADCAST && call->root < comm->world)
        snprintf(text + used, size - (size_t)used, " from rank %u", comm_number(comm, call->root));
    if (reduce && call->root < comm->world && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, " to rank %u", comm_number(comm, call->root));
    if (call->wire != INSPAN_WIRE_FP32 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, ", %s on the wire",
                 inspan_wire_name((inspan_wire_t)call->wire));
}

/* ---- Life ------------------------------------------------------------------------------------ */

inspan_status_t comm_check_options(const comm_options_t *options, inspan_error_t *err)
{
    const uint32_t world = options->world;
    if (world == 0 || options->rank >= world || options->members == NULL)
        return error_set(err, INSPAN_INVALID, "rank %u of %u ranks cannot be", options->rank, world);
    if (backend_find(options->backend) == NULL)
        return error_set(err, INSPAN_INVALID, "there is no backend \"%.40s\": auto, native, gloo",
                         options->backend);
    if (options->failure_timeout < NS_PER_S || options->failure_timeout > 3600 * NS_PER_S)
        return error_set(err, INSPAN_INVALID, "failure_timeout must be from 1 s to 1 h");
    if ((unsigned)options->schedule > INSPAN_SCHEDULE_TREES)
        return error_set(err, INSPAN_INVALID, "unknown schedule %d", (int)options->schedule);
    double sum = 0;
    for (uint32_t i = 0; options->weights != NULL && i < world; i++) {
        if (!(options->weights[i] >= 0 && options->weights[i] < 1e300))
            return error_set(err, INSPAN_INVALID, "shard weight of rank %u must be a finite number >= 0", i);
        sum += options->weights[i];
    }
    if (options->weights != NULL && sum <= 0)
        return error_set(err, INSPAN_INVALID, "all shard weights are 0");
    return INSPAN_OK;
}

static void init_conditions(inspan_comm_t *comm)
{
    pthread_mutex_init(&comm->lock, NULL);
    os_cond_open(&comm->changed);
    for (uint32_t i = COMM_MAX_OPS; i-- > 0;) {
        inspan_op_t *op = &comm->ops[i];
        op->comm = comm;
        op->transfer.op = op;
        os_cond_open(&op->finished);
        op->next_free = comm->free_ops;
        comm->free_ops = op;
    }
}

void comm_free(inspan_comm_t *comm)
{
    engine_close(comm);
    plan_free_all(comm);
    message_close(comm);
    stage_close(&comm->stage);
    tune_close(comm);
    for (uint32_t peer = 0; comm->peers != NULL && peer < comm->world; peer++) {
        free(comm->peers[peer].calls);
        free(comm->peers[peer].wants);
        free(comm->peers[peer].tx.rescue);
        free(comm->peers[peer].tx.encoded);
    }
    for (uint32_t i = 0; i < COMM_MAX_OPS; i++) os_cond_close(&comm->ops[i].finished);
    os_cond_close(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    free(comm->scratch);
    free(comm->peers);
    free(comm->members);
    free(comm->weights);
    free(comm);
}

static inspan_status_t open_peers(inspan_comm_t *comm)
{
    comm->scratch = aligned_alloc(64, DATA_PIECE_MAX + CODEC_UNIT_MAX);
    comm->peers = calloc(comm->world, sizeof *comm->peers);
    if (comm->scratch == NULL || comm->peers == NULL) return INSPAN_NO_MEMORY;
    const ns_t now = comm->transport->now(comm->transport_self);
    for (uint32_t i = 0; i < comm->world; i++) {
        comm_peer_t *peer = &comm->peers[i];
        peer->eager_in = peer->eager_out = COMM_EAGER_BUDGET;
        peer->heard = peer->tx.last = now;
        peer->gone = i == comm->rank;
        peer->wants = calloc(COMM_MAX_OPS, sizeof *peer->wants);
        if (peer->wants == NULL) return INSPAN_NO_MEMORY;
        if (i == comm->rank) continue;
        peer->calls = calloc(COMM_RING, sizeof *peer->calls);
        peer->tx.rescue = malloc(DATA_PIECE_MAX);
        if (peer->calls == NULL || peer->tx.rescue == NULL) return INSPAN_NO_MEMORY;
    }
    inspan_status_t status = tune_open(comm);
    if (status == INSPAN_OK) status = stage_open(&comm->stage, comm->world - 1);
    return status == INSPAN_OK ? message_open(comm) : status;
}

inspan_status_t comm_create(const comm_options_t *options, const comm_transport_t *transport, void *self,
                            inspan_comm_t **out, inspan_error_t *err)
{
    inspan_comm_t *comm = calloc(1, sizeof *comm);
    if (comm == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the communicator");
    const size_t world = options->world;
    comm->job = options->job;
    comm->view = options->view;
    comm->rank = options->rank;
    comm->world = options->world;
    comm->failure_timeout = options->failure_timeout;
    comm->forced = options->schedule;
    comm->chunk_bytes = options->chunk_bytes;
    comm->transport = transport;
    comm->transport_self = self;
    comm->oldest = 1;
    init_conditions(comm);
    comm->members = malloc(world * sizeof *comm->members);
    if (options->weights != NULL) comm->weights = malloc(world * sizeof *comm->weights);
    inspan_status_t status = INSPAN_NO_MEMORY;
    if (comm->members != NULL && (options->weights == NULL || comm->weights != NULL)) {
        memcpy(comm->members, options->members, world * sizeof *comm->members);
        for (size_t i = 0; i < world; i++)
            comm->members[i].node[INSPAN_NAME_MAX - 1] = comm->members[i].address[INSPAN_NAME_MAX - 1] = 0;
        if (options->weights != NULL) memcpy(comm->weights, options->weights, world * sizeof *comm->weights);
        status = open_peers(comm);
    }
    if (status != INSPAN_OK) {
        comm_free(comm);
        return error_set(err, status, "no memory for the communicator of %zu ranks", world);
    }
    *out = comm;
    return INSPAN_OK;
}

void comm_close_begin(inspan_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->closing = true;
    pthread_mutex_unlock(&comm->lock);
    if (comm->transport->blocking) comm_wake(comm);
}

bool comm_close_waits(inspan_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    const bool waits = comm->transport->blocking && !comm->closed;
    pthread_mutex_unlock(&comm->lock);
    return waits;
}

void inspan_comm_close(inspan_comm_t *comm)
{
    if (comm == NULL) return;
    comm_close_begin(comm);
    if (comm->transport->blocking) {
        pthread_mutex_lock(&comm->lock);
        while (!comm->closed) os_cond_wait(&comm->changed, &comm->lock); /* the I/O thread's bound is 1 s */
        pthread_mutex_unlock(&comm->lock);
    } else {
        exec_wake(comm); /* sim: what it said is in memory already */
    }
    engine_close(comm); /* its thread wakes the transport's */
    comm->transport->close(comm->transport_self);
    comm_free(comm);
}

void comm_wake(inspan_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    const bool send = !comm->wake_sent;
    comm->wake_sent = true;
    pthread_mutex_unlock(&comm->lock);
    if (send) comm->transport->wake(comm->transport_self);
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* The public schedules are AUTO and the algorithms, in their order. */
_Static_assert(INSPAN_SCHEDULE_ONE_SHOT == SCHED_ONE_SHOT + 1 && INSPAN_SCHEDULE_DIRECT == SCHED_DIRECT + 1 &&
                   INSPAN_SCHEDULE_RING == SCHED_RING + 1 && INSPAN_SCHEDULE_DOUBLING == SCHED_DOUBLING + 1 &&
                   INSPAN_SCHEDULE_TREES == SCHED_TREES + 1 && SCHED_TREES + 1 == (int)SCHED_ALGORITHMS,
               "schedules");

const char *inspan_schedule_name(inspan_schedule_t schedule)
{
    return schedule == INSPAN_SCHEDULE_AUTO ? "auto"
                                            : sched_algorithm_name((sched_algorithm_t)(schedule - 1));
}

static sched_algorithm_t choose(const inspan_comm_t *comm, sched_collective_t collective, uint64_t bytes)
{
    const tune_choice_t *choice = tune_choice(comm, (uint8_t)collective, bytes);
    if (choice != NULL) return choice->algorithm;
    sched_algorithm_t algorithm = SCHED_DIRECT;
    if (comm->forced != INSPAN_SCHEDULE_AUTO)
        algorithm = (sched_algorithm_t)(comm->forced - 1);
    else if (comm->world > 1 && bytes <= ONE_SHOT_MOST / (comm->world - 1))
        algorithm = SCHED_ONE_SHOT;
    for (int i = 0; i < SCHED_ALGORITHMS && !sched_supports(collective, algorithm); i++)
        algorithm = i == 0 ? SCHED_DIRECT : (sched_algorithm_t)i;
    return algorithm;
}

bool comm_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && (x < y ? y - x < a_bytes : x - y < b_bytes);
}

static bool overlap(const void *a, const void *b, uint64_t bytes)
{
    return comm_overlap(a, bytes, b, bytes);
}

inspan_status_t comm_take_op(inspan_comm_t *comm, uint64_t bytes, inspan_op_t **out)
{
    inspan_op_t *op = comm->free_ops;
    if (comm->failed) return comm->cause.status;
    if (comm->closing) return INSPAN_ABORTED;
    if (op == NULL) return INSPAN_LIMIT;
    comm->free_ops = op->next_free;
    op->state = OP_PENDING;
    op->small = bytes <= COMM_EAGER_BUDGET;
    op->done = NULL;
    if (comm->pending++ == 0) comm->busy_since = os_now();
    *out = op;
    return INSPAN_OK;
}

static inspan_status_t enqueue(inspan_comm_t *comm, comm_run_t *run, inspan_op_t **out)
{
    pthread_mutex_lock(&comm->lock);
    inspan_op_t *op = NULL;
    const inspan_status_t status = comm_take_op(comm, run->plan->bytes, &op);
    if (status != INSPAN_OK) {
        plan_return_run(run);
        pthread_mutex_unlock(&comm->lock);
        return status;
    }
    run->op = op;
    if (comm->queued_first == NULL)
        comm->queued_first = run;
    else
        comm->queued_last->next = run;
    comm->queued_last = run;
    pthread_mutex_unlock(&comm->lock);
    comm_wake(comm);
    *out = op;
    return INSPAN_OK;
}

data_call_t comm_call_of(sched_collective_t collective, uint64_t count, inspan_dtype_t dtype,
                         inspan_reduction_t reduction)
{
    return (data_call_t){.collective = (uint8_t)collective,
                         .dtype = (unsigned)dtype < INSPAN_DTYPES ? (uint8_t)dtype : INSPAN_DTYPES,
                         .reduction =
                             (unsigned)reduction < INSPAN_REDUCTIONS ? (uint8_t)reduction : INSPAN_REDUCTIONS,
                         .count = count};
}

static bool valid(const inspan_comm_t *comm, const data_call_t *call, const void *in, const void *out,
                  const float *error)
{
    const size_t size = inspan_dtype_size((inspan_dtype_t)call->dtype);
    if (comm == NULL || call->root >= comm->world ||
        !inspan_reduces((inspan_dtype_t)call->dtype, (inspan_reduction_t)call->reduction))
        return false;
    if (call->wire >= INSPAN_WIRES || call->count > INT64_MAX / size || call->exact_tail > call->count)
        return false;
    const uint64_t bytes = call->count * size;
    if (bytes > 0 && (in == NULL || out == NULL)) return false;
    if (call->collective != SCHED_BROADCAST && overlap(in, out, bytes)) return false;
    return error == NULL || (!overlap(in, error, bytes) && !overlap(out, error, bytes));
}

/* Which algorithm, and whether it is worth another type: what goes in one hop goes as it is. */
static void choose_for(const inspan_comm_t *comm, data_call_t *call)
{
    const uint64_t bytes = call->count * inspan_dtype_size((inspan_dtype_t)call->dtype);
    call->algorithm = (uint8_t)choose(comm, (sched_collective_t)call->collective, bytes);
    if (comm->world == 1 || bytes <= ONE_SHOT_MOST / (comm->world - 1)) call->wire = INSPAN_WIRE_FP32;
    if (call->wire != INSPAN_WIRE_FP32)
        call->algorithm = SCHED_DIRECT;
    else
        call->exact_tail = 0;
    if (engine_carries(comm, call)) call->algorithm = DATA_BY_BACKEND;
}

inspan_status_t comm_start(inspan_comm_t *comm, data_call_t call, const comm_buffers_t *buffers,
                           inspan_op_t **op)
{
    float *error = buffers->error;
    pthread_mutex_lock(&comm->lock);
    const inspan_status_t failed = comm->failed ? comm->cause.status : INSPAN_OK;
    pthread_mutex_unlock(&comm->lock);
    if (failed != INSPAN_OK) return failed;
    choose_for(comm, &call);
    comm_plan_t *plan = NULL;
    comm_run_t *run = NULL;
    inspan_status_t status = call.wire != INSPAN_WIRE_FP32 ? tx_open_encoded(comm) : INSPAN_OK;
    if (status == INSPAN_OK) status = plan_get(comm, &call, &plan);
    if (status == INSPAN_OK) status = plan_take_run(comm, plan, &run);
    if (status != INSPAN_OK) return status;
    run->in = buffers->in;
    run->out = buffers->out;
    run->in_first = buffers->in_first;
    run->out_first = buffers->out_first;
    run->error = error;
    /* What goes as it is loses nothing. */
    const uint64_t exact = call.wire == INSPAN_WIRE_FP32 ? call.count : call.exact_tail;
    if (error != NULL && exact > 0) memset(error + call.count - exact, 0, exact * sizeof *error);
    return enqueue(comm, run, op);
}

static inspan_status_t start(inspan_comm_t *comm, data_call_t call, const void *in, void *out, float *error,
                             inspan_op_t **op)
{
    const comm_buffers_t buffers = {.in = in, .out = out, .error = error};
    if (op == NULL || !valid(comm, &call, in, out, error)) return INSPAN_INVALID;
    return comm_start(comm, call, &buffers, op);
}

inspan_status_t inspan_allreduce(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                 inspan_dtype_t dtype, inspan_reduction_t reduction, inspan_op_t **op)
{
    return start(comm, comm_call_of(SCHED_ALLREDUCE, count, dtype, reduction), in, out, NULL, op);
}

inspan_status_t inspan_allreduce_wire(inspan_comm_t *comm, const float *in, float *out, float *error,
                                      uint64_t count, uint32_t exact_tail, inspan_wire_t wire,
                                      inspan_op_t **op)
{
    if ((unsigned)wire >= INSPAN_WIRES) return INSPAN_INVALID;
    data_call_t call = comm_call_of(SCHED_ALLREDUCE, count, INSPAN_FP32, INSPAN_SUM);
    call.wire = (uint8_t)wire;
    call.exact_tail = exact_tail;
    return start(comm, call, in, out, error, op);
}

inspan_status_t inspan_reduce_scatter(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                      inspan_dtype_t dtype, inspan_reduction_t reduction, inspan_op_t **op)
{
    return start(comm, comm_call_of(SCHED_REDUCE_SCATTER, count, dtype, reduction), in, out, NULL, op);
}

inspan_status_t inspan_allgather(inspan_comm_t *comm, const void *in, void *out, uint64_t count,
                                 inspan_dtype_t dtype, inspan_op_t **op)
{
    return start(comm, comm_call_of(SCHED_ALLGATHER, count, dtype, INSPAN_SUM), in, out, NULL, op);
}

inspan_status_t inspan_broadcast(inspan_comm_t *comm, void *data, uint64_t count, inspan_dtype_t dtype,
                                 uint32_t root, inspan_op_t **op)
{
    data_call_t call = comm_call_of(SCHED_BROADCAST, count, dtype, INSPAN_SUM);
    call.root = root;
    return start(comm, call, data, data, NULL, op);
}

inspan_status_t inspan_barrier(inspan_comm_t *comm, inspan_op_t **op)
{
    return start(comm, comm_call_of(SCHED_BARRIER, 0, INSPAN_FP32, INSPAN_SUM), NULL, NULL, NULL, op);
}

void comm_queue_transfer(inspan_comm_t *comm, inspan_op_t *op, const comm_transfer_t *what)
{
    op->transfer = *what;
    op->transfer.op = op;
    op->transfer.bytes = what->count * inspan_dtype_size((inspan_dtype_t)what->dtype);
    transfer_push(&comm->queued_transfers, &op->transfer);
}

static inspan_status_t start_transfer(inspan_comm_t *comm, bool receive, void *data, uint64_t count,
                                      inspan_dtype_t dtype, uint32_t peer, uint32_t tag, inspan_op_t **out)
{
    const size_t size = inspan_dtype_size(dtype);
    if (comm == NULL || out == NULL || size == 0 || peer >= comm->world) return INSPAN_INVALID;
    if (tag >= COMM_TAGS) return INSPAN_INVALID;
    if (count > INT64_MAX / size || (count > 0 && data == NULL)) return INSPAN_INVALID;
    inspan_op_t *op = NULL;
    pthread_mutex_lock(&comm->lock);
    const inspan_status_t status = comm_take_op(comm, count * size, &op);
    if (op != NULL) {
        const comm_transfer_t what = {.receive = receive,
                                      .dtype = (uint8_t)dtype,
                                      .peer = peer,
                                      .tag = tag,
                                      .data = data,
                                      .count = count};
        comm_queue_transfer(comm, op, &what);
    }
    pthread_mutex_unlock(&comm->lock);
    if (status != INSPAN_OK) return status;
    comm_wake(comm);
    *out = op;
    return INSPAN_OK;
}

inspan_status_t inspan_send(inspan_comm_t *comm, const void *data, uint64_t count, inspan_dtype_t dtype,
                            uint32_t to, uint32_t tag, inspan_op_t **op)
{
    return start_transfer(comm, false, (void *)(uintptr_t)data, count, dtype, to, tag, op);
}

inspan_status_t inspan_receive(inspan_comm_t *comm, void *data, uint64_t count, inspan_dtype_t dtype,
                               uint32_t from, uint32_t tag, inspan_op_t **op)
{
    return start_transfer(comm, true, data, count, dtype, from, tag, op);
}

/* ---- Finishing ------------------------------------------------------------------------------- */

/* With the lock held: the handle is the caller's no more. */
static void release(inspan_op_t *op)
{
    op->state = OP_FREE;
    op->next_free = op->comm->free_ops;
    op->comm->free_ops = op;
}

void comm_return_op(inspan_comm_t *comm, inspan_op_t *op)
{
    if (--comm->pending == 0) comm->busy += os_now() - comm->busy_since;
    release(op);
}

/* With the lock held. */
static void finish(inspan_comm_t *comm, inspan_op_t *op, inspan_status_t status)
{
    comm->operations++;
    if (--comm->pending == 0) comm->busy += os_now() - comm->busy_since;
    op->status = status;
    op->state = OP_DONE;
}

bool comm_op_finish_early(inspan_comm_t *comm, inspan_op_t *op)
{
    if (op->done != NULL || comm->failed) return false;
    finish(comm, op, INSPAN_OK);
    os_cond_broadcast(&op->finished);
    return true;
}

void comm_op_finish(inspan_comm_t *comm, inspan_op_t *op, inspan_status_t status)
{
    pthread_mutex_lock(&comm->lock);
    finish(comm, op, status);
    const comm_done_fn done = op->done;
    void *context = op->done_context;
    if (done != NULL)
        release(op);
    else
        os_cond_broadcast(&op->finished);
    pthread_mutex_unlock(&comm->lock);
    if (done != NULL) done(context, status);
}

void comm_op_on_done(inspan_op_t *op, comm_done_fn fn, void *context)
{
    pthread_mutex_lock(&op->comm->lock);
    const bool finished = op->state == OP_DONE;
    const inspan_status_t status = op->status;
    if (finished) {
        release(op);
    } else {
        op->done = fn;
        op->done_context = context;
    }
    pthread_mutex_unlock(&op->comm->lock);
    if (finished) fn(context, status);
}

inspan_status_t inspan_op_wait(inspan_op_t *op, int64_t timeout_ns)
{
    if (op == NULL) return INSPAN_INVALID;
    inspan_comm_t *comm = op->comm;
    const ns_t now = timeout_ns > 0 ? os_now() : 0;
    const ns_t until = timeout_ns <= 0 ? 0 : timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
    pthread_mutex_lock(&comm->lock);
    bool waiting = timeout_ns > 0 && comm->transport->blocking;
    const bool spin = waiting && op->small && op->state == OP_PENDING;
    if (spin) comm->transport->spin(comm->transport_self, true);
    while (op->state == OP_PENDING && waiting)
        waiting = os_cond_wait_until(&op->finished, &comm->lock, until);
    if (spin) comm->transport->spin(comm->transport_self, false);
    const bool finished = op->state == OP_DONE;
    const inspan_status_t status = finished ? op->status : INSPAN_TIMEOUT;
    if (finished) release(op);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

inspan_status_t inspan_op_test(inspan_op_t *op)
{
    const inspan_status_t status = inspan_op_wait(op, 0);
    return status == INSPAN_TIMEOUT ? INSPAN_PENDING : status;
}

/* ---- Failing --------------------------------------------------------------------------------- */

void comm_poison(inspan_comm_t *comm, const inspan_cause_t *cause)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->proposed && !comm->failed) {
        comm->proposal = *cause;
        if (comm->proposal.status <= INSPAN_PENDING || comm->proposal.status > INSPAN_INTERNAL)
            comm->proposal.status = INSPAN_ABORTED;
        comm->proposed = true;
    }
    pthread_mutex_unlock(&comm->lock);
    comm_wake(comm);
}

void comm_own_cause(const inspan_comm_t *comm, inspan_cause_t *cause, const char *operation, const char *what)
{
    const inspan_member_t *self = &comm->members[comm->rank];
    const bool v6 = strchr(self->address, ':') != NULL;
    *cause = (inspan_cause_t){
        .status = INSPAN_ABORTED, .rank = (int32_t)comm->rank, .noticed_by = (int32_t)comm->rank};
    memcpy(cause->node, self->node, sizeof cause->node);
    snprintf(cause->address, sizeof cause->address, "%s%.50s%s:%u", v6 ? "[" : "", self->address,
             v6 ? "]" : "", self->port);
    snprintf(cause->operation, sizeof cause->operation, "%s", operation);
    snprintf(cause->text, sizeof cause->text, "rank %u (node %.40s) %.190s", self->number, self->node, what);
}

void inspan_comm_abort(inspan_comm_t *comm, const char *why)
{
    inspan_cause_t cause;
    char what[256];
    snprintf(what, sizeof what, "gave up: %.240s", why != NULL ? why : "no reason given");
    comm_own_cause(comm, &cause, "abort", what);
    comm_poison(comm, &cause);
}

bool inspan_comm_cause(const inspan_comm_t *comm, inspan_cause_t *cause)
{
    inspan_comm_t *c = (inspan_comm_t *)(uintptr_t)comm; /* the lock is the only thing that changes */
    pthread_mutex_lock(&c->lock);
    const bool failed = c->failed;
    if (failed && cause != NULL) *cause = c->cause;
    pthread_mutex_unlock(&c->lock);
    return failed;
}

/* ---- Looking --------------------------------------------------------------------------------- */

uint32_t inspan_comm_rank(const inspan_comm_t *comm)
{
    return comm->rank;
}

uint32_t inspan_comm_world(const inspan_comm_t *comm)
{
    return comm->world;
}

const inspan_member_t *inspan_comm_member(const inspan_comm_t *comm, uint32_t rank)
{
    return rank < comm->world ? &comm->members[rank] : NULL;
}

void inspan_shard(const inspan_comm_t *comm, uint64_t count, uint32_t rank, uint64_t *first, uint64_t *n)
{
    *first = *n = 0;
    if (rank < comm->world) sched_shard(count, comm->world, comm->weights, rank, first, n);
}

void inspan_comm_stats(const inspan_comm_t *comm, inspan_comm_stats_t *stats)
{
    inspan_comm_t *c = (inspan_comm_t *)(uintptr_t)comm;
    pthread_mutex_lock(&c->lock);
    stats->operations = c->operations;
    stats->busy_ns = c->busy + (c->pending > 0 ? os_now() - c->busy_since : 0);
    pthread_mutex_unlock(&c->lock);
    stats->bytes_sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    stats->bytes_received = atomic_load_explicit(&c->bytes_received, memory_order_relaxed);
    stats->io_cpu_ns = c->transport->cpu(c->transport_self);
    uint64_t sent = 0, received = 0;
    engine_traffic(c, &sent, &received);
    stats->bytes_sent += sent;
    stats->bytes_received += received;
}
