/*
 * Operations on the communicator of the present view: buckets all-reduced, reduced buckets passed from one
 * member to another, and arrays copied. What has finished is told by a callback, so that whoever waits can
 * wait for it and for other things alike. Nothing is allocated after open.
 *
 * Threads: all calls from one thread; `done` comes on the communicator's I/O thread, or within the call that
 * started the operation.
 */
#ifndef DDP_EXCHANGE_H
#define DDP_EXCHANGE_H

#include "ddp/buckets.h"

/* Pending at once; the communicator takes 256 in all. */
#define EXCHANGE_MAX 224u

typedef enum exchange_kind {
    EXCHANGE_REDUCE,
    EXCHANGE_PASS,
    EXCHANGE_TAKE,
    EXCHANGE_COPY,
    EXCHANGE_COMPARE
} exchange_kind_t;

/* index: the bucket; of a copy what the caller gave. Must not block, nor start operations. */
typedef void (*exchange_done_fn)(void *context, exchange_kind_t kind, uint32_t index, inspan_status_t status);

typedef struct exchange exchange_t;

inspan_status_t exchange_open(ddp_buckets_t *buckets, exchange_done_fn done, void *context,
                              exchange_t **exchange);
void exchange_close(exchange_t *exchange); /* nothing pending */

/* Work on this communicator from now on (NULL: on none). Nothing pending. */
void exchange_attach(exchange_t *exchange, inspan_comm_t *comm);

uint32_t exchange_room(exchange_t *exchange); /* operations that can be started just now */

/* OK: `done` will come, once. LIMIT: no room. Or the communicator's status. */
inspan_status_t exchange_reduce(exchange_t *exchange, uint32_t bucket);
inspan_status_t exchange_pass(exchange_t *exchange, uint32_t bucket, uint32_t to); /* a reduced one */
inspan_status_t exchange_take(exchange_t *exchange, uint32_t bucket, uint32_t from);
inspan_status_t exchange_send(exchange_t *exchange, const void *data, uint64_t count, inspan_dtype_t dtype,
                              uint32_t to, uint32_t tag, uint32_t index); /* tags from EXCHANGE_TAGS on */
inspan_status_t exchange_receive(exchange_t *exchange, void *data, uint64_t count, inspan_dtype_t dtype,
                                 uint32_t from, uint32_t tag, uint32_t index);
#define EXCHANGE_TAGS 0x10000u
/* Sum of small tables over all members: every member's row in the caller's `in`, all rows in `out`. */
inspan_status_t exchange_compare(exchange_t *exchange, const uint64_t *in, uint64_t *out, uint64_t count);

/* Wait until nothing is pending: TIMEOUT. What has ended in time is also told before this returns, however
 * long `done` takes. */
inspan_status_t exchange_drain(exchange_t *exchange, int64_t timeout_ns);

uint64_t exchange_bytes(exchange_t *exchange); /* reduced so far, of this member */

#endif
