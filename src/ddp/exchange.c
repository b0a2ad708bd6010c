/* Lock: `lock` guards the free list and the counts; nothing is called while it is held. */
#include "ddp/exchange.h"

#include <stdlib.h>

#include "comm/comm.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

typedef struct slot {
    exchange_t *exchange;
    struct slot *next;
    exchange_kind_t kind;
    uint32_t index;
} slot_t;

struct exchange {
    ddp_buckets_t *buckets;
    inspan_comm_t *comm;
    exchange_done_fn done;
    void *context;
    pthread_mutex_t lock;
    os_cond_t idle;
    slot_t *free;
    uint32_t used, pending; /* slots; operations that have not ended */
    uint32_t telling;       /* callbacks that are not through */
    uint64_t reduced_bytes;
    slot_t slots[EXCHANGE_MAX];
};

inspan_status_t exchange_open(ddp_buckets_t *buckets, exchange_done_fn done, void *context, exchange_t **out)
{
    exchange_t *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) return INSPAN_NO_MEMORY;
    exchange->buckets = buckets;
    exchange->done = done;
    exchange->context = context;
    pthread_mutex_init(&exchange->lock, NULL);
    os_cond_open(&exchange->idle);
    for (uint32_t i = EXCHANGE_MAX; i-- > 0;) {
        exchange->slots[i].exchange = exchange;
        exchange->slots[i].next = exchange->free;
        exchange->free = &exchange->slots[i];
    }
    *out = exchange;
    return INSPAN_OK;
}

void exchange_close(exchange_t *exchange)
{
    if (exchange == NULL) return;
    os_cond_close(&exchange->idle);
    pthread_mutex_destroy(&exchange->lock);
    free(exchange);
}

void exchange_attach(exchange_t *exchange, inspan_comm_t *comm)
{
    exchange->comm = comm;
}

uint32_t exchange_room(exchange_t *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    const uint32_t room = EXCHANGE_MAX - exchange->used;
    pthread_mutex_unlock(&exchange->lock);
    return room;
}

/* ---- One operation --------------------------------------------------------------------------- */

static slot_t *take_slot(exchange_t *exchange, exchange_kind_t kind, uint32_t index)
{
    pthread_mutex_lock(&exchange->lock);
    slot_t *slot = exchange->free;
    if (slot != NULL) {
        exchange->free = slot->next;
        exchange->used++;
        exchange->pending++;
        slot->kind = kind;
        slot->index = index;
    }
    pthread_mutex_unlock(&exchange->lock);
    return slot;
}

static void give_slot(slot_t *slot)
{
    exchange_t *exchange = slot->exchange;
    pthread_mutex_lock(&exchange->lock);
    slot->next = exchange->free;
    exchange->free = slot;
    exchange->used--;
    pthread_mutex_unlock(&exchange->lock);
}

static bool is_idle(const exchange_t *exchange)
{
    return exchange->pending + exchange->telling == 0;
}

/* It has ended, or never began; its callback may still have to be called. */
static void settle(exchange_t *exchange, bool tells)
{
    pthread_mutex_lock(&exchange->lock);
    exchange->pending--;
    exchange->telling += tells;
    if (is_idle(exchange)) os_cond_broadcast(&exchange->idle);
    pthread_mutex_unlock(&exchange->lock);
}

static void told(exchange_t *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    exchange->telling--;
    if (is_idle(exchange)) os_cond_broadcast(&exchange->idle);
    pthread_mutex_unlock(&exchange->lock);
}

/* Who is woken by the callback finds room, and an operation that has ended. */
static void on_done(void *context, inspan_status_t status)
{
    slot_t *slot = context;
    exchange_t *exchange = slot->exchange;
    const exchange_kind_t kind = slot->kind;
    const uint32_t index = slot->index;
    if (kind == EXCHANGE_REDUCE && status == INSPAN_OK) {
        pthread_mutex_lock(&exchange->lock);
        exchange->reduced_bytes += ddp_buckets_bytes(exchange->buckets, index);
        pthread_mutex_unlock(&exchange->lock);
    }
    give_slot(slot);
    settle(exchange, true);
    exchange->done(exchange->context, kind, index, status);
    told(exchange);
}

static inspan_status_t started(exchange_t *exchange, slot_t *slot, inspan_status_t status, inspan_op_t *op)
{
    if (status == INSPAN_OK) {
        comm_op_on_done(op, on_done, slot);
    } else {
        give_slot(slot);
        settle(exchange, false);
    }
    return status;
}

inspan_status_t exchange_reduce(exchange_t *exchange, uint32_t bucket)
{
    inspan_op_t *op = NULL;
    ddp_buckets_t *buckets = exchange->buckets;
    slot_t *slot = take_slot(exchange, EXCHANGE_REDUCE, bucket);
    if (slot == NULL) return INSPAN_LIMIT;
    ddp_buckets_make_up(buckets, bucket);
    void *local = buckets->local[bucket], *reduced = buckets->reduced[bucket];
    const uint64_t count = ddp_buckets_count(buckets, bucket);
    const inspan_dtype_t dtype = ddp_buckets_dtype(buckets, bucket);
    const inspan_status_t status =
        dtype != INSPAN_FP32 ? inspan_allreduce(exchange->comm, local, reduced, count, dtype, INSPAN_SUM, &op)
                             : inspan_allreduce_wire(exchange->comm, local, reduced,
                                                     buckets->error != NULL ? buckets->error[bucket] : NULL,
                                                     count, buckets->leases, buckets->wire, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_pass(exchange_t *exchange, uint32_t bucket, uint32_t to)
{
    inspan_op_t *op = NULL;
    const ddp_buckets_t *buckets = exchange->buckets;
    slot_t *slot = take_slot(exchange, EXCHANGE_PASS, bucket);
    if (slot == NULL) return INSPAN_LIMIT;
    const inspan_status_t status =
        inspan_send(exchange->comm, buckets->reduced[bucket], ddp_buckets_count(buckets, bucket),
                    ddp_buckets_dtype(buckets, bucket), to, bucket, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_take(exchange_t *exchange, uint32_t bucket, uint32_t from)
{
    inspan_op_t *op = NULL;
    const ddp_buckets_t *buckets = exchange->buckets;
    slot_t *slot = take_slot(exchange, EXCHANGE_TAKE, bucket);
    if (slot == NULL) return INSPAN_LIMIT;
    const inspan_status_t status =
        inspan_receive(exchange->comm, buckets->reduced[bucket], ddp_buckets_count(buckets, bucket),
                       ddp_buckets_dtype(buckets, bucket), from, bucket, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_send(exchange_t *exchange, const void *data, uint64_t count, inspan_dtype_t dtype,
                              uint32_t to, uint32_t tag, uint32_t index)
{
    inspan_op_t *op = NULL;
    slot_t *slot = take_slot(exchange, EXCHANGE_COPY, index);
    if (slot == NULL) return INSPAN_LIMIT;
    const inspan_status_t status = inspan_send(exchange->comm, data, count, dtype, to, tag, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_receive(exchange_t *exchange, void *data, uint64_t count, inspan_dtype_t dtype,
                                 uint32_t from, uint32_t tag, uint32_t index)
{
    inspan_op_t *op = NULL;
    slot_t *slot = take_slot(exchange, EXCHANGE_COPY, index);
    if (slot == NULL) return INSPAN_LIMIT;
    const inspan_status_t status = inspan_receive(exchange->comm, data, count, dtype, from, tag, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_compare(exchange_t *exchange, const uint64_t *in, uint64_t *out, uint64_t count)
{
    inspan_op_t *op = NULL;
    slot_t *slot = take_slot(exchange, EXCHANGE_COMPARE, 0);
    if (slot == NULL) return INSPAN_LIMIT;
    const inspan_status_t status =
        inspan_allreduce(exchange->comm, in, out, count, INSPAN_INT64, INSPAN_SUM, &op);
    return started(exchange, slot, status, op);
}

inspan_status_t exchange_drain(exchange_t *exchange, int64_t timeout_ns)
{
    const ns_t until = os_now() + timeout_ns;
    pthread_mutex_lock(&exchange->lock);
    while (exchange->pending > 0 && os_cond_wait_until(&exchange->idle, &exchange->lock, until)) {
    }
    const bool idle = exchange->pending == 0;
    while (idle && exchange->telling > 0) os_cond_wait(&exchange->idle, &exchange->lock);
    pthread_mutex_unlock(&exchange->lock);
    return idle ? INSPAN_OK : INSPAN_TIMEOUT;
}

uint64_t exchange_bytes(exchange_t *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    const uint64_t bytes = exchange->reduced_bytes;
    pthread_mutex_unlock(&exchange->lock);
    return bytes;
}
