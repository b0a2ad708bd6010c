/*
 * The ledger as every member derives it: from the reduced tally, that is from what was summed and not from
 * what was said. Steps in which the same members computed the same shares are one span.
 */
#include <string.h>

#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define TELL_PERIOD (200 * NS_PER_MS) /* of a span that only grows */

static void fill(const inspan_elastic_t *e, uint64_t step, local_ledger_t *span)
{
    span->seed = e->options.seed;
    span->batch = e->options.batch;
    span->first_step = span->last_step = step;
    span->view = e->view;
    span->n = 0;
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++) {
        uint64_t first = 0, n = 0;
        const int32_t owner = (int32_t)ddp_buckets_owner(&e->buckets, lease);
        elastic_samples(e->options.batch, e->buckets.leases, lease, &first, &n);
        local_share_t *last = span->n > 0 ? &span->shares[span->n - 1] : NULL;
        if (last != NULL && last->rank == owner)
            last->n += n;
        else
            span->shares[span->n++] = (local_share_t){owner, first, n};
    }
}

static bool continues(const local_ledger_t *span, const local_ledger_t *next)
{
    return span->n == next->n && span->view == next->view && span->last_step + 1 == next->first_step &&
           memcmp(span->shares, next->shares, next->n * sizeof next->shares[0]) == 0;
}

void driver_tell_ledger(inspan_elastic_t *e)
{
    if (e->span.n == 0 || e->span_told == e->span.last_step + 1) return;
    e->views->ledger(e->views->context, &e->span);
    e->span_told = e->span.last_step + 1;
    e->span_told_at = os_now();
}

void driver_note_ledger(inspan_elastic_t *e, uint64_t step)
{
    _Static_assert(ELASTIC_LEASES_MAX <= LOCAL_SHARES, "shares of a step");
    fill(e, step, &e->next_span);
    if (e->span.n > 0 && continues(&e->span, &e->next_span)) {
        e->span.last_step = step;
    } else {
        driver_tell_ledger(e);
        memcpy(&e->span, &e->next_span, sizeof e->span);
        e->span_told_at = 0;
    }
    if (os_now() - e->span_told_at >= TELL_PERIOD) driver_tell_ledger(e);
}
