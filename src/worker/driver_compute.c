/* COMPUTE: which run of leases comes next, and what becomes of its gradients. */
#include <inttypes.h>

#include "base/error.h"
#include "base/log.h"
#include "worker/driver_internal.h"

static void say_ready(inspan_elastic_t *e, uint32_t bucket)
{
    const elastic_event_t event = {.type = ELASTIC_EV_READY, .view = e->view, .bucket = bucket};
    driver_feed_locked(e, &event);
}

uint32_t driver_left(const inspan_elastic_t *e)
{
    const elastic_set_t all = elastic_contribution(e->machine), done = elastic_computed(e->machine);
    uint32_t n = 0;
    for (int w = 0; w < 4; w++) n += (uint32_t)__builtin_popcountll(all.words[w] & ~done.words[w]);
    return n;
}

/* Lock held: the run is handed out. */
static void count_run(inspan_elastic_t *e, inspan_work_t *work)
{
    uint64_t taken = 0;
    for (uint32_t lease = work->first_lease; lease < work->first_lease + work->leases; lease++) {
        const uint64_t n = driver_samples(e, lease);
        work->samples += n;
        if (e->recompute[lease]) e->stats.samples_recomputed += n;
        if (!e->own[lease]) taken += n;
    }
    e->stats.samples += work->samples;
    e->stats.samples_stolen += taken;
    e->stats.steals += taken > 0;
}

/* Lock held. Who begins the last run that it was granted asks for more; the leader has its own answer at
 * once. */
static void begin_run(inspan_elastic_t *e, inspan_work_t *work)
{
    const elastic_event_t event = {.type = ELASTIC_EV_BEGIN, .lease = work->first_lease, .n = work->leases};
    uint64_t first = 0, n = 0;
    elastic_samples(e->options.batch, e->buckets.leases, work->first_lease, &first, &n);
    work->first_sample = work->step * e->options.batch + first;
    count_run(e, work);
    driver_feed(e, &event);
    work->last = elastic_sealed(e->machine) && driver_left(e) == work->leases;
}

/* Of the leases that are granted and not computed, a run of at most `most`, out of the shortest piece: what
 * was taken over from others lies apart, and the last run is to be a long one. */
static void pick_run(const inspan_elastic_t *e, uint32_t most, inspan_work_t *work)
{
    const elastic_set_t all = elastic_contribution(e->machine), done = elastic_computed(e->machine);
    uint32_t shortest = UINT32_MAX, piece = 0;
    for (uint32_t lease = 0; lease <= e->buckets.leases; lease++) {
        const bool left = elastic_has(&all, lease) && !elastic_has(&done, lease);
        if (!left && piece > 0 && piece < shortest) {
            shortest = piece;
            work->first_lease = lease - piece;
        }
        piece = left ? piece + 1 : 0;
    }
    work->leases = shortest < most ? shortest : most;
}

/* A run of leases in one micro-batch. */
static bool next_run(inspan_elastic_t *e, inspan_work_t *work)
{
    pthread_mutex_lock(&e->lock);
    work->light = elastic_light(e->machine);
    const uint32_t most = work->light ? ELASTIC_LEASES_MAX /* all at once */
                                      : driver_pace_next_run(e, driver_left(e), elastic_sealed(e->machine));
    elastic_grant(e->machine, most, &work->first_lease, &work->leases, &work->last);
    work->step = elastic_step(e->machine);
    if (work->leases > 0 && !work->light) {
        pick_run(e, most, work);
        begin_run(e, work);
    }
    pthread_mutex_unlock(&e->lock);
    return work->leases > 0;
}

static void tell_pace(inspan_elastic_t *e)
{
    pthread_mutex_lock(&e->lock);
    driver_pace_tell(e);
    pthread_mutex_unlock(&e->lock);
    driver_links_tell(e);
    driver_layout_tell(e);
}

/* No leases (any more): what is in the local sums, perhaps nothing, is final. */
static void contribute_at_once(inspan_elastic_t *e, bool light)
{
    e->working = false;
    tell_pace(e); /* the vote follows */
    for (uint32_t b = light ? e->buckets.n - 1 : 0; b < e->buckets.n; b++) say_ready(e, b);
}

bool driver_take_run(inspan_elastic_t *e, inspan_work_t *work)
{
    if (!e->working) return false;
    *work = (inspan_work_t){.type = INSPAN_WORK_COMPUTE,
                            .view = e->view,
                            .total_leases = e->buckets.leases,
                            .layout = e->stats.layouts};
    if (!next_run(e, work)) {
        if (work->last) contribute_at_once(e, work->light);
        return false;
    }
    work->saving = work->step == e->options.steps + 1;
    if (!work->light) {
        if (work->last) ddp_buckets_begin_round(&e->buckets);
        ddp_buckets_mark(&e->buckets, work->first_lease, work->leases, e->stats.number);
    }
    e->misuse.status = INSPAN_OK;
    e->open = *work;
    e->has_open = true;
    log_debug("step %" PRIu64 ": computes %" PRIu64 " samples in view %" PRIu64, work->step, work->samples,
              e->view);
    return true;
}

void inspan_elastic_ready(inspan_elastic_t *e, uint32_t parameter)
{
    uint32_t bucket = 0;
    bool full = false;
    inspan_status_t status = INSPAN_INVALID;
    const bool expected = e->has_open && e->open.last && !e->open.light;
    if (expected) status = ddp_buckets_ready(&e->buckets, parameter, &bucket, &full);
    if (status != INSPAN_OK && e->misuse.status == INSPAN_OK)
        error_set(&e->misuse, status, "the gradient of parameter %u was ready %s", parameter,
                  expected ? "twice in one pass" : "before the last pass");
    if (status == INSPAN_OK) driver_layout_ready(e, parameter);
    if (!full) return;
    say_ready(e, bucket);
    driver_run_todo(e);
    driver_pump_copies(e);
}

inspan_status_t inspan_elastic_computed(inspan_elastic_t *e, const inspan_tally_t *tally, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    if (!e->has_open) return error_set(err, INSPAN_INVALID, "nothing was to be computed");
    const inspan_work_t work = e->open;
    driver_pace_computed(e, &work);
    if (work.last && !work.light) driver_layout_computed(e);
    const uint32_t incomplete =
        work.last && !work.light ? ddp_buckets_incomplete(&e->buckets) : e->buckets.n - 1;
    if (e->misuse.status != INSPAN_OK) return error_set(err, e->misuse.status, "%s", e->misuse.text);
    if (incomplete + 1 < e->buckets.n)
        return error_set(err, INSPAN_INVALID, "%u gradients of bucket %u were never ready",
                         e->buckets.missing[incomplete], incomplete);
    const ddp_tally_t sums = {tally->loss_sum, tally->evaluation_loss_sum, tally->evaluation_samples,
                              tally->evaluation_right};
    if (work.light) ddp_buckets_mark(&e->buckets, work.first_lease, work.leases, e->stats.number);
    ddp_buckets_add(&e->buckets, &sums);
    log_debug("step %" PRIu64 ": computed %" PRIu64 " samples in view %" PRIu64, work.step, work.samples,
              e->view);
    const elastic_event_t event = {.type = ELASTIC_EV_COMPUTED, .lease = work.first_lease, .n = work.leases};
    driver_feed_locked(e, &event);
    e->has_open = false;
    if (work.last) {
        e->working = false;
        tell_pace(e);
        say_ready(e, e->buckets.n - 1); /* the vote may follow */
    }
    driver_run_todo(e);
    return INSPAN_OK;
}
