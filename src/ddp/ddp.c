/*
 * Lock order: `lock` guards the step machine, which the training thread (finish, ready) and the I/O thread
 * (votes, commits, failure) both feed. Nothing is waited for, and no collective is started, while it is held:
 * REDUCE actions only come from the training thread and are carried out after the lock is released.
 */
#include <inspan/ddp.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/units.h"
#include "comm/comm.h"
#include "core/step/step.h"
#include "ddp/fail.h"
#include "ddp/layout.h"
#include "ddp/manifest.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

#define IN_FLIGHT_MAX 32u /* reductions started and not awaited yet; the communicator takes 256 */
#define FP32_EXACT    (UINT64_C(1) << 24) /* sample counts ride in the buckets' type */

/* A peer may compute for long; links and peers have bounds of their own. */
#define DEFAULT_TIMEOUT (600 * NS_PER_S)

struct inspan_ddp {
    inspan_comm_t *comm;
    inspan_dtype_t dtype;
    size_t element_size;
    int64_t timeout;
    layout_t layout;
    uint64_t *counts;          /* (n_params) */
    uint8_t *memory;           /* all buckets: local, then reduced */
    size_t bucket_bytes;       /* of all local (or all reduced) buckets */
    uint8_t **local;           /* (n_buckets) */
    uint8_t **reduced;         /* (n_buckets) */
    inspan_op_t **ops;         /* (n_buckets) of this step */
    uint32_t *missing;         /* (n_buckets) parameters whose gradient is not ready yet in this step */
    bool *seen;                /* (n_params) its gradient was ready in this step */
    uint32_t started, awaited; /* buckets [0, started) are under way or done, [0, awaited) done */
    bool sealed;
    inspan_error_t misuse;        /* the caller's first mistake in this step; finish reports it */
    inspan_status_t start_status; /* first failure to start a reduction in this step */

    pthread_mutex_t lock;
    os_cond_t changed;
    step_machine_t machine;
    uint32_t
        allowed; /* REDUCE actions: buckets [0, allowed) may start; the training thread alone changes it */
    uint64_t committed; /* number of steps */
    bool failed;        /* the communicator is poisoned, or the machine FAILED */
};

/* Actions of the machine; `lock` is held. */
static void perform(void *context, const step_action_t *action)
{
    inspan_ddp_t *ddp = context;
    uint8_t bytes[STEP_MESSAGE_BYTES];
    switch (action->type) {
    case STEP_DO_REDUCE: ddp->allowed = action->bucket + 1; break; /* they come in order */
    case STEP_DO_SEND:
        step_message_encode(&action->message, bytes);
        /* Not sent: the communicator is poisoned, or its queue is full though one message a step goes through
         * it. */
        if (comm_message(ddp->comm, action->to, bytes, sizeof bytes) != INSPAN_OK) ddp->failed = true;
        break;
    case STEP_DO_COMMIT: ddp->committed = action->step + 1; break;
    }
}

/* Any thread. err (may be NULL) gets the machine's text, copied under the lock. */
static inspan_status_t feed(inspan_ddp_t *ddp, const step_event_t *event, inspan_error_t *err)
{
    pthread_mutex_lock(&ddp->lock);
    inspan_status_t status = step_handle(&ddp->machine, event);
    if (status != INSPAN_OK && err != NULL) *err = ddp->machine.error;
    if (ddp->machine.phase == STEP_FAILED) ddp->failed = true;
    os_cond_broadcast(&ddp->changed);
    pthread_mutex_unlock(&ddp->lock);
    return status;
}

static void on_message(void *context, uint32_t from, const void *data, size_t bytes)
{
    inspan_ddp_t *ddp = context;
    inspan_error_t err;
    step_event_t event = {.type = STEP_EV_MESSAGE, .from = from};
    if (step_message_decode(data, bytes, &event.message) == INSPAN_OK) {
        if (feed(ddp, &event, &err) == INSPAN_OK) return;
    } else {
        error_set(&err, INSPAN_MISMATCH, "rank %u sent a step message of %zu bytes that is none", from,
                  bytes);
    }
    inspan_cause_t cause = {.status = err.status, .rank = (int32_t)from, .operation = "commit"};
    cause.noticed_by = (int32_t)inspan_comm_rank(ddp->comm);
    snprintf(cause.text, sizeof cause.text, "%.255s", err.text);
    comm_poison(ddp->comm, &cause);
}

static void on_failure(void *context, const inspan_cause_t *cause)
{
    (void)cause;
    inspan_ddp_t *ddp = context;
    pthread_mutex_lock(&ddp->lock);
    ddp->failed = true;
    os_cond_broadcast(&ddp->changed);
    pthread_mutex_unlock(&ddp->lock);
}

static void drain_operations(inspan_ddp_t *ddp);
static inspan_status_t give_up(inspan_ddp_t *ddp, inspan_status_t status, const inspan_error_t *err);

static inspan_status_t take_memory(inspan_ddp_t *ddp, inspan_error_t *err)
{
    uint32_t n = ddp->layout.n_buckets;
    ddp->local = calloc(n, sizeof ddp->local[0]);
    ddp->reduced = calloc(n, sizeof ddp->reduced[0]);
    ddp->ops = calloc(n, sizeof ddp->ops[0]);
    ddp->missing = calloc(n, sizeof ddp->missing[0]);
    for (uint32_t b = 0; b < n; b++)
        ddp->bucket_bytes += (ddp->layout.buckets[b].count * ddp->element_size + 63) / 64 * 64;
    ddp->memory = aligned_alloc(64, 2 * ddp->bucket_bytes);
    if (!ddp->local || !ddp->reduced || !ddp->ops || !ddp->missing || !ddp->memory)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u gradient buckets of %.1f MB in all, twice",
                         n, (double)ddp->bucket_bytes / 1e6);
    memset(ddp->memory, 0, 2 * ddp->bucket_bytes); /* padding must stay zero: it is reduced too */
    uint8_t *at = ddp->memory;
    for (uint32_t b = 0; b < n; b++) {
        ddp->local[b] = at;
        ddp->reduced[b] = at + ddp->bucket_bytes;
        at += (ddp->layout.buckets[b].count * ddp->element_size + 63) / 64 * 64;
    }
    return INSPAN_OK;
}

static inspan_status_t check_arguments(const inspan_parameter_t *parameters, uint32_t n,
                                       const inspan_ddp_options_t *options, inspan_error_t *err)
{
    if (n == 0) return error_set(err, INSPAN_INVALID, "a model without parameters cannot be trained");
    if (options->dtype != INSPAN_FP32 && options->dtype != INSPAN_FP64)
        return error_set(err, INSPAN_INVALID, "gradients must be fp32 or fp64");
    for (uint32_t i = 0; i < n; i++)
        if (parameters[i].count == 0)
            return error_set(err, INSPAN_INVALID, "parameter %u (%s) has no elements", i, parameters[i].name);
    return INSPAN_OK;
}

static inspan_status_t set_up(inspan_ddp_t *ddp, const inspan_parameter_t *parameters, uint32_t n,
                              const inspan_ddp_options_t *options, inspan_error_t *err)
{
    ddp->counts = calloc(n, sizeof ddp->counts[0]);
    ddp->seen = calloc(n, sizeof ddp->seen[0]);
    if (ddp->counts == NULL || ddp->seen == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u parameters", n);
    for (uint32_t i = 0; i < n; i++) ddp->counts[i] = parameters[i].count;
    const uint64_t bucket = options->bucket_bytes
                                ? options->bucket_bytes
                                : layout_auto_bytes(ddp->counts, n, ddp->element_size, STEP_BUCKETS_MAX);
    inspan_status_t status =
        layout_build(ddp->counts, n, ddp->element_size, bucket, layout_first_bytes(bucket), LAYOUT_TAIL,
                     STEP_BUCKETS_MAX, &ddp->layout);
    if (status != INSPAN_OK)
        return error_set(err, status, "buckets of %" PRIu64 " bytes for %u parameters: %s", bucket, n,
                         inspan_status_text(status));
    status =
        manifest_compare(ddp->comm, parameters, n, ddp->dtype, ddp->layout.hash, true, ddp->timeout, err);
    if (status == INSPAN_OK) status = take_memory(ddp, err);
    if (status != INSPAN_OK) return status;
    return step_init(&ddp->machine, inspan_comm_rank(ddp->comm), inspan_comm_world(ddp->comm), 0,
                     ddp->layout.hash, ddp->layout.n_buckets, 0, perform, ddp);
}

inspan_status_t inspan_ddp_open(inspan_comm_t *comm, const inspan_parameter_t *parameters, uint32_t n,
                                const inspan_ddp_options_t *options, inspan_ddp_t **out, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    inspan_status_t status = check_arguments(parameters, n, options, err);
    if (status != INSPAN_OK) return status;
    inspan_ddp_t *ddp = calloc(1, sizeof *ddp);
    if (ddp == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the gradient reducer");
    ddp->comm = comm;
    ddp->dtype = options->dtype;
    ddp->element_size = inspan_dtype_size(options->dtype);
    ddp->timeout = options->timeout_ns > 0 ? options->timeout_ns : DEFAULT_TIMEOUT;
    os_cond_open(&ddp->changed);
    pthread_mutex_init(&ddp->lock, NULL);
    status = set_up(ddp, parameters, n, options, err);
    if (status == INSPAN_OK) {
        comm_set_message_handler(comm, on_message, ddp);
        status = comm_add_failure_handler(comm, on_failure, ddp);
        if (status != INSPAN_OK)
            error_set(err, status, "too many parts listen for the communicator's failure");
    }
    if (status != INSPAN_OK) {
        /* All ranks found the same difference, each needs the last message of the others to name it. */
        if (status != INSPAN_MISMATCH) give_up(ddp, status, err);
        inspan_ddp_close(ddp);
        return status;
    }
    *out = ddp;
    return INSPAN_OK;
}

void inspan_ddp_close(inspan_ddp_t *ddp)
{
    if (ddp == NULL) return;
    for (uint32_t b = 0; ddp->ops != NULL && b < ddp->layout.n_buckets; b++)
        if (ddp->ops[b] != NULL) { /* left in mid-step */
            inspan_comm_abort(ddp->comm, "a rank left in the middle of a step");
            drain_operations(ddp);
        }
    comm_set_message_handler(ddp->comm, NULL, NULL);
    comm_remove_failure_handler(ddp->comm, on_failure, ddp);
    os_cond_close(&ddp->changed);
    pthread_mutex_destroy(&ddp->lock);
    layout_free(&ddp->layout);
    free(ddp->counts);
    free(ddp->seen);
    free(ddp->memory);
    free(ddp->local);
    free(ddp->reduced);
    free(ddp->ops);
    free(ddp->missing);
    free(ddp);
}

void *inspan_ddp_local(inspan_ddp_t *ddp, uint32_t parameter)
{
    return ddp->local[ddp->layout.bucket[parameter]] + ddp->layout.offset[parameter] * ddp->element_size;
}

const void *inspan_ddp_reduced(inspan_ddp_t *ddp, uint32_t parameter)
{
    return ddp->reduced[ddp->layout.bucket[parameter]] + ddp->layout.offset[parameter] * ddp->element_size;
}

static void put_real(const inspan_ddp_t *ddp, uint8_t *bucket, uint64_t at, double value)
{
    if (ddp->dtype == INSPAN_FP64)
        ((double *)(void *)bucket)[at] = value;
    else
        ((float *)(void *)bucket)[at] = (float)value;
}

static double get_real(const inspan_ddp_t *ddp, const uint8_t *bucket, uint64_t at)
{
    return ddp->dtype == INSPAN_FP64 ? ((const double *)(const void *)bucket)[at]
                                     : ((const float *)(const void *)bucket)[at];
}

inspan_status_t inspan_ddp_begin(inspan_ddp_t *ddp, uint64_t step, inspan_error_t *err)
{
    inspan_cause_t cause;
    if (inspan_comm_cause(ddp->comm, &cause)) return ddp_fail(ddp->comm, cause.status, "begin", err);
    step_event_t event = {.type = STEP_EV_BEGIN, .step = step};
    inspan_status_t status = feed(ddp, &event, err);
    if (status != INSPAN_OK) return status;
    memset(ddp->memory, 0, ddp->bucket_bytes);
    memset(ddp->ops, 0, ddp->layout.n_buckets * sizeof ddp->ops[0]);
    for (uint32_t b = 0; b < ddp->layout.n_buckets; b++) ddp->missing[b] = ddp->layout.buckets[b].n_params;
    memset(ddp->seen, 0, ddp->layout.n_params * sizeof ddp->seen[0]);
    ddp->allowed = ddp->started = ddp->awaited = 0;
    ddp->sealed = false;
    ddp->misuse.status = INSPAN_OK;
    ddp->start_status = INSPAN_OK;
    return INSPAN_OK;
}

/* Start the reductions that the machine asked for, in its order, a bounded number at a time. Training thread
 * only. */
static void start_reductions(inspan_ddp_t *ddp)
{
    while (ddp->start_status == INSPAN_OK && ddp->started < ddp->allowed &&
           ddp->started - ddp->awaited < IN_FLIGHT_MAX) {
        const uint32_t b = ddp->started++;
        ddp->start_status =
            inspan_allreduce(ddp->comm, ddp->local[b], ddp->reduced[b], ddp->layout.buckets[b].count,
                             ddp->dtype, INSPAN_SUM, &ddp->ops[b]);
    }
}

static void bucket_ready(inspan_ddp_t *ddp, uint32_t bucket)
{
    step_event_t event = {.type = STEP_EV_READY, .bucket = bucket};
    feed(ddp, &event, NULL); /* a fault shows at the next wait */
    start_reductions(ddp);
}

inspan_status_t inspan_ddp_seal(inspan_ddp_t *ddp, uint64_t samples, inspan_error_t *err)
{
    step_event_t event = {.type = STEP_EV_SEAL};
    if (ddp->dtype == INSPAN_FP32 && samples > FP32_EXACT)
        return error_set(err, INSPAN_INVALID,
                         "%" PRIu64 " samples in one step; counts are exact up to %" PRIu64, samples,
                         FP32_EXACT);
    inspan_status_t status = feed(ddp, &event, err);
    if (status != INSPAN_OK) return status;
    ddp->sealed = true;
    for (uint32_t b = 0; b < ddp->layout.n_buckets; b++)
        put_real(ddp, ddp->local[b], ddp->layout.buckets[b].tail + LAYOUT_SAMPLES_AT, (double)samples);
    if (samples > 0) return INSPAN_OK;
    for (uint32_t b = 0; b + 1 < ddp->layout.n_buckets; b++) { /* an empty contribution: all is ready now */
        ddp->missing[b] = 0;
        bucket_ready(ddp, b);
    }
    ddp->missing[ddp->layout.n_buckets - 1] = 0;
    return INSPAN_OK;
}

void inspan_ddp_ready(inspan_ddp_t *ddp, uint32_t parameter)
{
    const uint32_t bucket = ddp->layout.bucket[parameter];
    if (!ddp->sealed || ddp->seen[parameter]) {
        if (ddp->misuse.status == INSPAN_OK)
            error_set(&ddp->misuse, INSPAN_INVALID, "the gradient of parameter %u was ready %s", parameter,
                      ddp->sealed ? "twice in one step" : "before the seal");
        return;
    }
    ddp->seen[parameter] = true;
    if (ddp->missing[bucket] == 0) return; /* an empty contribution is complete without it */
    /* The last bucket also carries the loss, which finish knows. */
    if (--ddp->missing[bucket] == 0 && bucket + 1 < ddp->layout.n_buckets) bucket_ready(ddp, bucket);
}

static inspan_status_t machine_error(inspan_ddp_t *ddp, inspan_error_t *err)
{
    pthread_mutex_lock(&ddp->lock);
    *err = ddp->machine.error;
    pthread_mutex_unlock(&ddp->lock);
    return err->status != INSPAN_OK ? err->status
                                    : error_set(err, INSPAN_INTERNAL, "a bucket was never started");
}

/* Wait for the bucket's reduction and tell the machine. */
static inspan_status_t await_bucket(inspan_ddp_t *ddp, uint32_t bucket, inspan_ddp_result_t *result,
                                    inspan_error_t *err)
{
    if (ddp->start_status != INSPAN_OK)
        return ddp_fail(ddp->comm, ddp->start_status, "reducing gradients", err);
    inspan_op_t *op = ddp->ops[bucket];
    if (op == NULL) return machine_error(ddp, err); /* it never let the bucket start */
    ddp->ops[bucket] = NULL;
    inspan_status_t status = ddp_wait(ddp->comm, op, ddp->timeout);
    if (status != INSPAN_OK) return ddp_fail(ddp->comm, status, "reducing gradients", err);
    ddp->awaited++;
    start_reductions(ddp);
    result->bytes_reduced += ddp->layout.buckets[bucket].count * ddp->element_size;
    double samples =
        get_real(ddp, ddp->reduced[bucket], ddp->layout.buckets[bucket].tail + LAYOUT_SAMPLES_AT);
    if (bucket == 0) {
        result->samples = (uint64_t)samples;
    } else if (samples != (double)result->samples) {

        return error_set(err, INSPAN_MISMATCH,
                         "step %" PRIu64 ": bucket 0 covers %" PRIu64 " samples, bucket %u %.0f",
                         ddp->machine.step, result->samples, bucket, samples);
    }
    step_event_t event = {.type = STEP_EV_REDUCED, .bucket = bucket};
    return feed(ddp, &event, err);
}

static inspan_status_t await_commit(inspan_ddp_t *ddp, uint64_t step, inspan_error_t *err)
{
    ns_t until = os_now() + ddp->timeout;
    bool late = false;
    pthread_mutex_lock(&ddp->lock);
    while (ddp->committed <= step && !ddp->failed && !late)
        late = !os_cond_wait_until(&ddp->changed, &ddp->lock, until);
    bool committed = ddp->committed > step, machine_failed = ddp->machine.phase == STEP_FAILED;
    if (machine_failed) *err = ddp->machine.error;
    pthread_mutex_unlock(&ddp->lock);
    if (committed) return INSPAN_OK;

    if (machine_failed) return INSPAN_MISMATCH;
    return ddp_fail(ddp->comm, late ? INSPAN_TIMEOUT : INSPAN_ABORTED, "waiting for the commit", err);
}

/* No operation may still write into our memory when it is freed. Bounded: the communicator is poisoned. */
static void drain_operations(inspan_ddp_t *ddp)
{
    for (uint32_t b = 0; ddp->ops != NULL && b < ddp->layout.n_buckets; b++) {
        if (ddp->ops[b] != NULL) ddp_wait(ddp->comm, ddp->ops[b], 0);
        ddp->ops[b] = NULL;
    }
}

/* The one way out after a failure: all ranks fail too, with this cause if there is none yet. */
static inspan_status_t give_up(inspan_ddp_t *ddp, inspan_status_t status, const inspan_error_t *err)
{
    inspan_cause_t cause;
    if (!inspan_comm_cause(ddp->comm, &cause)) inspan_comm_abort(ddp->comm, err->text);
    drain_operations(ddp);
    return status;
}

static inspan_status_t check_complete(inspan_ddp_t *ddp, inspan_error_t *err)
{
    if (!ddp->sealed) return error_set(err, INSPAN_INVALID, "finish before seal");
    if (ddp->misuse.status != INSPAN_OK) return error_set(err, ddp->misuse.status, "%s", ddp->misuse.text);
    for (uint32_t b = 0; b < ddp->layout.n_buckets; b++)
        if (ddp->missing[b] != 0)
            return error_set(err, INSPAN_INVALID, "finish while %u gradients of bucket %u were never ready",
                             ddp->missing[b], b);
    return INSPAN_OK;
}

inspan_status_t inspan_ddp_finish(inspan_ddp_t *ddp, double loss_sum, inspan_ddp_result_t *result,
                                  inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    memset(result, 0, sizeof *result);
    inspan_status_t status = check_complete(ddp, err);
    if (status != INSPAN_OK) return give_up(ddp, status, err);
    ns_t start = os_now();
    uint64_t step = ddp->machine.step;
    uint32_t last = ddp->layout.n_buckets - 1;
    uint64_t tail = ddp->layout.buckets[last].tail;
    put_real(ddp, ddp->local[last], tail + LAYOUT_LOSS_AT, loss_sum);
    bucket_ready(ddp, last);
    for (uint32_t b = 0; status == INSPAN_OK && b <= last; b++) status = await_bucket(ddp, b, result, err);
    if (status == INSPAN_OK) status = await_commit(ddp, step, err);
    if (status != INSPAN_OK) return give_up(ddp, status, err);
    result->loss_sum = get_real(ddp, ddp->reduced[last], tail + LAYOUT_LOSS_AT);
    result->exposed_ns = os_now() - start;
    return INSPAN_OK;
}
