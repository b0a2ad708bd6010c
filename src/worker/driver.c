#include "worker/driver_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"

#define DEFAULT_TIMEOUT (3600 * NS_PER_S)
#define FIRST_ROOM      1024u /* grows where very many salvaged buckets are passed on */
#define ROOM_KEPT       64u   /* operations that are left to copies and passes */

/* ---- What the machine wants (lock held) ------------------------------------------------------ */

void driver_fail(inspan_elastic_t *e, const inspan_error_t *err)
{
    if (e->failure.status == INSPAN_OK) e->failure = *err;
    e->news = true;
    os_cond_broadcast(&e->changed);
}

static void push_todo(inspan_elastic_t *e, const elastic_action_t *action)
{
    if (e->todo_n == e->todo_size) {
        driver_todo_t *larger = malloc(2 * (size_t)e->todo_size * sizeof *larger);
        if (larger == NULL) {
            inspan_error_t err;
            error_set(&err, INSPAN_NO_MEMORY, "no memory for what a new view has to do");
            driver_fail(e, &err);
            return;
        }
        for (uint32_t i = 0; i < e->todo_n; i++) larger[i] = e->todo[(e->todo_first + i) % e->todo_size];
        free(e->todo);
        e->todo = larger;
        e->todo_size *= 2;
        e->todo_first = 0;
    }
    e->todo[(e->todo_first + e->todo_n++) % e->todo_size] =
        (driver_todo_t){action->type, action->bucket, action->peer, action->step, action->view};
}

uint64_t driver_samples(const inspan_elastic_t *e, uint32_t lease)
{
    uint64_t first = 0, n = 0;
    elastic_samples(e->options.batch, e->buckets.leases, lease, &first, &n);
    return n;
}

/* opens: the table, before anybody takes over what another one had. */
static void note_owners(inspan_elastic_t *e, bool opens)
{
    const uint32_t *numbers = NULL;
    uint32_t index = 0;
    uint64_t share = 0;
    elastic_members(e->machine, &numbers, &index);
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++) {
        const uint32_t owner = elastic_owner(e->machine, lease);
        if (owner < ELASTIC_MEMBERS_MAX) e->owner[lease] = numbers[owner];
        if (opens) e->own[lease] = owner == index;
        if (owner == index) share += driver_samples(e, lease);
    }
    if (opens) driver_pace_opened(e, share);
}

static void note_commit(inspan_elastic_t *e)
{
    inspan_error_t err;
    if (e->commit_n == DRIVER_COMMITS) {
        error_set(&err, INSPAN_INTERNAL, "more than %d steps are committed and not applied", DRIVER_COMMITS);
        driver_fail(e, &err);
        return;
    }
    driver_commit_t *commit = &e->commits[(e->commit_first + e->commit_n++) % DRIVER_COMMITS];
    const elastic_set_t dropped = elastic_dropped(e->machine);
    if (e->voted_at != 0) e->stats.commit_ns += os_now() - e->voted_at; /* else: with this very vote */
    e->voted_at = e->broken_at = 0;
    log_debug("step %" PRIu64 ": committed in view %" PRIu64 ", %" PRIu64 " samples again so far",
              elastic_step(e->machine), elastic_view(e->machine), e->stats.samples_recomputed);
    memset(commit, 0, sizeof *commit);
    commit->light = elastic_light(e->machine);
    driver_pace_committed(e, commit->light);
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++)
        if (!elastic_has(&dropped, lease)) commit->counted.words[lease / 64] |= UINT64_C(1) << lease % 64;
    for (uint32_t chunk = 0; chunk < e->n_chunks; chunk++)
        if (elastic_applies(e->machine, chunk))
            commit->applies.words[chunk / 64] |= UINT64_C(1) << chunk % 64;
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++) {
        e->owner[lease] = UINT32_MAX;
        e->recompute[lease] = false;
    }
}

static void perform(void *context, const elastic_action_t *action)
{
    inspan_elastic_t *e = context;
    if (action->type == ELASTIC_DO_SEND) {
        /* Not sent: poisoned (its handler comes), or the queue is full though it holds several rounds. */
        if (e->comm == NULL ||
            comm_message(e->comm, action->peer, action->data, action->bytes) == INSPAN_LIMIT)
            e->send_failed = true;
        return;
    }
    if (action->type == ELASTIC_DO_WORK || action->type == ELASTIC_DO_MORE)
        note_owners(e, action->type == ELASTIC_DO_WORK);
    if (action->type == ELASTIC_DO_MORE) return; /* whoever waits is woken by the event that brought it */
    if (action->type == ELASTIC_DO_COMMIT) note_commit(e);
    push_todo(e, action);
}

/* Lines by which a measurement sees in which phase of a step a worker was: bench/phases.py reads them. */
static void note_phase(inspan_elastic_t *e, elastic_phase_t before)
{
    const elastic_phase_t phase = elastic_phase(e->machine);
    if (before == ELASTIC_RECONCILE && (phase == ELASTIC_RUN || phase == ELASTIC_DONE))
        log_debug("view %" PRIu64 ": decided, step %" PRIu64 " goes on", elastic_view(e->machine),
                  elastic_step(e->machine));
    if (e->voted_at != 0 || !elastic_voted(e->machine)) return;
    e->voted_at = os_now();
    log_debug("step %" PRIu64 ": voted in view %" PRIu64, elastic_step(e->machine), elastic_view(e->machine));
}

inspan_status_t driver_feed(inspan_elastic_t *e, const elastic_event_t *given)
{
    const elastic_phase_t before = elastic_phase(e->machine);
    elastic_event_t event = *given;
    event.now = os_now();
    const inspan_status_t status = elastic_handle(e->machine, &event);
    note_phase(e, before);
    if (status == INSPAN_PENDING) { /* each view has a communicator of its own: cannot be */
        inspan_error_t err;
        error_set(&err, INSPAN_INTERNAL,
                  "a message of a newer view came by the communicator of view %" PRIu64,
                  elastic_view(e->machine));
        driver_fail(e, &err);
    } else if (status != INSPAN_OK) {
        driver_fail(e, elastic_error(e->machine));
    }
    e->news = true;
    os_cond_broadcast(&e->changed);
    return status;
}

void driver_feed_locked(inspan_elastic_t *e, const elastic_event_t *event)
{
    pthread_mutex_lock(&e->lock);
    driver_feed(e, event);
    pthread_mutex_unlock(&e->lock);
}

/* ---- What has finished (I/O thread) ---------------------------------------------------------- */

/* B1: checked by every receiver, before the bucket counts as held. */
static void bucket_is_here(inspan_elastic_t *e, uint32_t bucket)
{
    inspan_error_t err;
    const elastic_set_t expected = elastic_expected(e->machine);
    const elastic_event_t event = {.type = ELASTIC_EV_REDUCED, .view = e->view, .bucket = bucket};
    if (ddp_buckets_check(&e->buckets, bucket, elastic_step(e->machine), expected.words, &err) == INSPAN_OK)
        driver_feed(e, &event);
    else
        driver_fail(e, &err);
}

/* A failure needs no handling of its own: it comes with the communicator's. */
static void on_done(void *context, exchange_kind_t kind, uint32_t index, inspan_status_t status)
{
    inspan_elastic_t *e = context;
    pthread_mutex_lock(&e->lock);
    if (status == INSPAN_OK) {
        if (kind == EXCHANGE_REDUCE) driver_pace_reduced(e, index);
        if (kind == EXCHANGE_REDUCE || kind == EXCHANGE_TAKE) bucket_is_here(e, index);
        if (kind == EXCHANGE_COPY) e->copies[index].finished++;
        if (kind == EXCHANGE_COMPARE) e->compared = true;
    }
    e->news = true;
    os_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Any thread, with the source's lock held. */
static void on_poke(void *context)
{
    inspan_elastic_t *e = context;
    pthread_mutex_lock(&e->lock);
    e->poked = true;
    os_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static uint32_t choose_leases(const inspan_elastic_options_t *options)
{
    if (options->leases != 0) return options->leases;
    return options->batch < INSPAN_LEASES_MAX ? (uint32_t)options->batch : INSPAN_LEASES_MAX;
}

static inspan_status_t check_options(const inspan_elastic_options_t *options, inspan_error_t *err)
{
    if (options->batch == 0 || options->leases > options->batch)
        return error_set(err, INSPAN_INVALID, "%u leases of a step of %" PRIu64 " samples", options->leases,
                         options->batch);
    if (options->wires != 0 && options->dtype != INSPAN_FP32)
        return error_set(err, INSPAN_INVALID, "only gradients in fp32 can go over the wire in another type");
    if (options->first_step > options->steps)
        return error_set(err, INSPAN_INVALID, "training starts at step %" PRIu64 " of %" PRIu64,
                         options->first_step, options->steps);
    return INSPAN_OK;
}

static inspan_status_t open_parts(inspan_elastic_t *e, uint32_t n, inspan_error_t *err)
{
    const inspan_elastic_options_t *options = &e->options;
    const uint32_t leases = choose_leases(options);
    inspan_status_t status =
        ddp_buckets_open(e->parameters, n, options->dtype, options->wire, options->bucket_bytes,
                         options->registered, leases, &e->buckets, err);
    if (status == INSPAN_OK) status = driver_wire_open(e, err);
    if (status == INSPAN_OK) status = driver_layout_open(e, err);
    if (status == INSPAN_OK) status = driver_chunks_open(e, err);
    if (status != INSPAN_OK) return status;
    e->largest_lease = (options->batch + leases - 1) / leases;
    e->apply = calloc(n, sizeof e->apply[0]);
    e->todo = malloc(FIRST_ROOM * sizeof e->todo[0]);
    e->todo_size = FIRST_ROOM;
    if (e->apply == NULL || e->todo == NULL ||
        exchange_open(&e->buckets, on_done, e, &e->exchange) != INSPAN_OK)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the step driver");
    return INSPAN_OK;
}

inspan_status_t driver_open_machine(inspan_elastic_t *e, uint32_t number, inspan_error_t *err)
{
    const inspan_elastic_options_t *options = &e->options;
    const elastic_policy_t none = {0}, by_pace = driver_policy();
    const elastic_config_t config = {.number = number,
                                     .newcomer = options->newcomer,
                                     .first_step = options->first_step,
                                     .steps = options->steps,
                                     .leases = e->buckets.leases,
                                     .buckets = e->buckets.n,
                                     .layout = driver_layout_hash(e, e->buckets.hash),
                                     .chunks = e->n_chunks,
                                     .wires = INSPAN_WIRES,
                                     .wire = (uint8_t)options->wire,
                                     .drop = options->drop,
                                     .policy = options->equal_shares ? none : by_pace};
    e->stats.number = number;
    const inspan_status_t status = elastic_open(&config, perform, e, &e->machine);
    return status == INSPAN_OK ? status
                               : error_set(err, status, "the step machine: %s", inspan_status_text(status));
}

inspan_status_t inspan_elastic_open(const inspan_views_t *views, const inspan_parameter_t *parameters,
                                    uint32_t n, const inspan_elastic_options_t *options,
                                    inspan_elastic_t **out, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    inspan_status_t status = check_options(options, err);
    if (status != INSPAN_OK) return status;
    inspan_elastic_t *e = calloc(1, sizeof *e);
    if (e == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the step driver");
    e->views = views;
    e->options = *options;
    if (e->options.timeout_ns <= 0) e->options.timeout_ns = DEFAULT_TIMEOUT;
    e->parameters = parameters;
    for (uint32_t lease = 0; lease < ELASTIC_LEASES_MAX; lease++) e->owner[lease] = UINT32_MAX;
    driver_pace_open(e);
    pthread_mutex_init(&e->lock, NULL);
    os_cond_open(&e->changed);
    status = open_parts(e, n, err);
    e->options.state = NULL; /* was read */
    if (status != INSPAN_OK) {
        inspan_elastic_close(e);
        return status;
    }
    views->watch(views->context, on_poke, e);
    *out = e;
    return INSPAN_OK;
}

void inspan_elastic_close(inspan_elastic_t *e)
{
    if (e == NULL) return;
    e->views->watch(e->views->context, NULL, NULL);
    driver_detach(e);
    elastic_close(e->machine);
    exchange_close(e->exchange);
    ddp_buckets_close(&e->buckets);
    driver_layout_close(e);
    os_cond_close(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e->arrays);
    free(e->chunk_first);
    free(e->chunk_of);
    free(e->apply);
    free(e->todo);
    free(e);
}

void *inspan_elastic_local(inspan_elastic_t *e, uint32_t parameter)
{
    return ddp_buckets_local(&e->buckets, parameter);
}

const void *inspan_elastic_reduced(inspan_elastic_t *e, uint32_t parameter)
{
    return ddp_buckets_reduced(&e->buckets, parameter);
}

/* ---- Doing what is queued -------------------------------------------------------------------- */

/* false: not now. An operation that the communicator refuses is over with its view. */
static bool start_operation(inspan_elastic_t *e, const driver_todo_t *todo)
{
    inspan_status_t status = INSPAN_OK;
    if (e->comm == NULL) return true;
    if (todo->type == ELASTIC_DO_REDUCE) {
        if (exchange_room(e->exchange) <= ROOM_KEPT) return false;
        driver_links_apply(e);
        driver_wire_apply(e);
        log_debug("step %" PRIu64 ": bucket %u is reduced in view %" PRIu64, todo->step, todo->bucket,
                  e->view);
        pthread_mutex_lock(&e->lock);
        e->pace.reduce_started[todo->bucket] = os_now();
        pthread_mutex_unlock(&e->lock);
        status = exchange_reduce(e->exchange, todo->bucket);
    } else if (todo->type == ELASTIC_DO_PASS) {
        status = exchange_pass(e->exchange, todo->bucket, todo->peer);
    } else {
        status = exchange_take(e->exchange, todo->bucket, todo->peer);
    }
    return status != INSPAN_LIMIT;
}

static bool do_one(inspan_elastic_t *e, const driver_todo_t *todo)
{
    switch (todo->type) {
    case ELASTIC_DO_REDUCE:
    case ELASTIC_DO_PASS:
    case ELASTIC_DO_TAKE: return start_operation(e, todo);
    case ELASTIC_DO_GIVE_CHUNK:
    case ELASTIC_DO_TAKE_CHUNK: return driver_start_copy(e, todo);
    case ELASTIC_DO_WORK: e->working = true; break;
    case ELASTIC_DO_LAYOUT: driver_layout_apply(e); break;
    case ELASTIC_DO_FULL:
        e->is_full = true;
        e->left = false; /* G4: taken back */
        e->views->full(e->views->context, true);
        break;
    case ELASTIC_DO_LEFT:
        e->left = true;
        e->views->left(e->views->context, todo->view);
        break;
    case ELASTIC_DO_END: e->ended = true; break;
    case ELASTIC_DO_STUCK:
        log_warn("step %" PRIu64 ": no member has all weights any more", todo->step);
        break;
    case ELASTIC_DO_COMMIT:
    case ELASTIC_DO_MORE:
    case ELASTIC_DO_SEND: break;
    }
    return true;
}

bool driver_run_todo(inspan_elastic_t *e)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        const bool any = e->todo_n > 0;
        const driver_todo_t todo = any ? e->todo[e->todo_first] : (driver_todo_t){0};
        pthread_mutex_unlock(&e->lock);
        if (!any) return false;
        if (todo.type == ELASTIC_DO_COMMIT) return true;
        if (!do_one(e, &todo)) return false;
        pthread_mutex_lock(&e->lock);
        e->todo_first = (e->todo_first + 1) % e->todo_size;
        e->todo_n--;
        pthread_mutex_unlock(&e->lock);
    }
}

/* ---- APPLY ----------------------------------------------------------------------------------- */

static uint64_t samples_of(const inspan_elastic_t *e, const elastic_set_t *counted)
{
    uint64_t samples = 0;
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++)
        samples += elastic_has(counted, lease) ? driver_samples(e, lease) : 0;
    return samples;
}

static const bool *mask_of(inspan_elastic_t *e, const elastic_set_t *applies)
{
    bool all = true;
    for (uint32_t p = 0; p < e->buckets.n_params; p++) {
        e->apply[p] = elastic_has(applies, e->chunk_of[p]);
        all &= e->apply[p];
    }
    return all ? NULL : e->apply;
}

static void note_recovery(inspan_elastic_t *e)
{
    if (e->recovering_since == 0) return;
    const ns_t took = os_now() - e->recovering_since;
    e->recovering_since = 0;
    e->stats.recovery_ns += took;
    if (took > e->stats.recovery_worst_ns) e->stats.recovery_worst_ns = took;
}

/* The COMMIT at the front of the queue becomes work. */
static void take_commit(inspan_elastic_t *e, inspan_work_t *work)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t step = e->todo[e->todo_first].step;
    const driver_commit_t commit = e->commits[e->commit_first];
    e->commit_first = (e->commit_first + 1) % DRIVER_COMMITS;
    e->commit_n--;
    e->todo_first = (e->todo_first + 1) % e->todo_size;
    e->todo_n--;
    pthread_mutex_unlock(&e->lock);
    *work = (inspan_work_t){.type = INSPAN_WORK_APPLY,
                            .step = step,
                            .view = e->view,
                            .light = commit.light,
                            .saving = step == e->options.steps + 1,
                            .total_leases = e->buckets.leases,
                            .layout = e->stats.layouts};
    ddp_tally_t tally;
    ddp_buckets_tally(&e->buckets, &tally);
    work->tally = (inspan_tally_t){tally.loss_sum, tally.evaluation_loss_sum, tally.evaluation_samples,
                                   tally.evaluation_right};
    work->samples_counted = commit.light ? 0 : samples_of(e, &commit.counted);
    work->apply = mask_of(e, &commit.applies);
    e->applying = true;
    e->applying_light = commit.light;
    e->applied_step = step;
    if (!commit.light)
        driver_note_ledger(e, step);
    else
        driver_tell_ledger(e);
    note_recovery(e);
}

/* ---- The loop -------------------------------------------------------------------------------- */

/* Look at everything again from here on. A failure of this member's own, if there is one. */
static inspan_status_t look(inspan_elastic_t *e, inspan_error_t *err)
{
    pthread_mutex_lock(&e->lock);
    inspan_status_t status = e->failure.status;
    if (status != INSPAN_OK) *err = e->failure;
    if (e->news) e->idle_since = 0;
    e->news = e->poked = false;
    const bool unsent = e->send_failed;
    inspan_comm_t *comm = e->comm;
    pthread_mutex_unlock(&e->lock);
    if (status == INSPAN_OK && unsent && comm != NULL)
        inspan_comm_abort(comm, "could not send a message of the step");
    return status;
}

static inspan_status_t wait_for_news(inspan_elastic_t *e, inspan_error_t *err)
{
    const ns_t now = os_now();
    if (e->idle_since == 0) e->idle_since = now;
    const ns_t until = e->idle_since + e->options.timeout_ns;
    pthread_mutex_lock(&e->lock);
    const uint64_t step = elastic_step(e->machine);
    if (now < until && !e->news && !e->poked) os_cond_wait_until(&e->changed, &e->lock, until);
    pthread_mutex_unlock(&e->lock);
    if (now < until) return INSPAN_OK;
    return error_set(err, INSPAN_TIMEOUT,
                     "step %" PRIu64 " did not go on for %.0f s (view %" PRIu64 ", %u members)", step,
                     ns_to_s(now - e->idle_since), e->view, e->world);
}

/* As this machine's owner wishes; whatever happens meanwhile is seen to at once. true: look again. */
static bool rested(inspan_elastic_t *e)
{
    const ns_t start = os_now(), until = e->working ? driver_pace_rest(e, start) : 0;
    if (until == 0) return false;
    pthread_mutex_lock(&e->lock);
    const bool rests = !elastic_light(e->machine) && driver_left(e) > 0;
    if (rests && !e->news && !e->poked) os_cond_wait_until(&e->changed, &e->lock, until);
    e->stats.rested_ns += os_now() - start;
    pthread_mutex_unlock(&e->lock);
    return rests;
}

static void maybe_leave(inspan_elastic_t *e)
{
    if (e->leaving || !e->attached || !e->views->leaving(e->views->context)) return;
    const elastic_event_t event = {.type = ELASTIC_EV_LEAVE};
    e->leaving = true;
    driver_feed_locked(e, &event);
}

/* Enter the next view. *gone: this member was let go. */
static inspan_status_t change_view(inspan_elastic_t *e, bool *gone, inspan_error_t *err)
{
    if (e->comm != NULL) {
        driver_detach(e);
        return INSPAN_OK; /* what was committed in it comes first */
    }
    const inspan_status_t status = driver_enter_view(e, err);
    *gone = status == INSPAN_ABORTED && e->left;
    return *gone ? INSPAN_OK : status;
}

static inspan_status_t advance(inspan_elastic_t *e, inspan_work_t *work, inspan_error_t *err)
{
    bool gone = false;
    for (;;) {
        inspan_status_t status = look(e, err);
        if (status != INSPAN_OK) return status;
        driver_look_at_vitals(e);
        if (driver_run_todo(e) && !driver_gives(e)) {
            take_commit(e, work);
            return INSPAN_OK;
        }
        if (e->ended || gone) {
            *work = (inspan_work_t){.type = gone ? INSPAN_WORK_LEFT : INSPAN_WORK_END, .view = e->view};
            return INSPAN_OK;
        }
        if (!e->attached || e->views->changed(e->views->context)) {
            status = change_view(e, &gone, err);
            if (status != INSPAN_OK) return status;
            continue;
        }
        maybe_leave(e);
        driver_pump_copies(e);
        if (rested(e)) continue;
        if (driver_take_run(e, work)) return INSPAN_OK;
        status = wait_for_news(e, err);
        if (status != INSPAN_OK) return status;
    }
}

static bool trains(inspan_elastic_t *e)
{
    pthread_mutex_lock(&e->lock);
    const bool is = !elastic_light(e->machine);
    pthread_mutex_unlock(&e->lock);
    return is;
}

/* The update of the step is done, the local sums begin anew. */
static void finish_apply(inspan_elastic_t *e)
{
    ddp_buckets_clear(&e->buckets);
    driver_pace_applied(e, e->applying_light);
    if (!e->applying_light) {
        driver_judge_step(e, e->applied_step);
        driver_look_ahead(e, e->applied_step);
    }
    e->applying = false;
}

inspan_status_t inspan_elastic_next(inspan_elastic_t *e, inspan_work_t *work, inspan_error_t *err)
{
    inspan_error_t unused;
    if (err == NULL) err = &unused;
    const ns_t start = os_now();
    /* Waiting for the job to begin, or for its result to be stored, is no waiting in it. */
    const bool counts = e->views_seen > 0 && trains(e);
    if (e->has_open && !e->open.saving)
        return error_set(err, INSPAN_INVALID, "the last work was never computed");
    e->has_open = false;
    if (e->applying) finish_apply(e);
    e->idle_since = 0;
    const ns_t rested = e->stats.rested_ns;
    const inspan_status_t status = advance(e, work, err);
    driver_pace_handed(e);
    if (counts) e->stats.exposed_ns += os_now() - start - (e->stats.rested_ns - rested);
    return status;
}

/* ---- Small questions ------------------------------------------------------------------------- */

void inspan_elastic_hint(inspan_elastic_t *e, uint64_t weights_hash)
{
    pthread_mutex_lock(&e->lock);
    if (e->machine != NULL && elastic_complete(e->machine)) elastic_hint(e->machine, weights_hash);
    pthread_mutex_unlock(&e->lock);
}

bool inspan_elastic_changed(const inspan_elastic_t *e)
{
    return e->views->changed(e->views->context);
}

void inspan_elastic_abort(inspan_elastic_t *e, inspan_status_t status, const char *text)
{
    inspan_cause_t cause = {.status = status, .operation = "step"};
    pthread_mutex_lock(&e->lock); /* the communicator may not go meanwhile */
    if (e->comm != NULL) {
        cause.rank = cause.noticed_by = (int32_t)inspan_comm_rank(e->comm);
        snprintf(cause.node, sizeof cause.node, "%s",
                 inspan_comm_member(e->comm, (uint32_t)cause.rank)->node);
        snprintf(cause.text, sizeof cause.text, "rank %u (node %.40s) gave up: %.180s", e->stats.number,
                 cause.node, text);
        comm_poison(e->comm, &cause);
    }
    pthread_mutex_unlock(&e->lock);
}

void inspan_elastic_stats(const inspan_elastic_t *elastic, inspan_elastic_stats_t *stats)
{
    inspan_elastic_t *e =
        (inspan_elastic_t *)(uintptr_t)elastic; /* the lock is the only thing that changes */
    inspan_comm_stats_t now = {0};
    pthread_mutex_lock(&e->lock);
    *stats = e->stats;
    stats->wire = e->buckets.wire;
    stats->buckets = e->buckets.n - 1;
    driver_pace_stats(e, stats);
    if (e->comm != NULL) inspan_comm_stats(e->comm, &now);
    pthread_mutex_unlock(&e->lock);
    stats->bytes_sent += now.bytes_sent;
    stats->bytes_reduced = exchange_bytes(e->exchange);
    stats->members = e->world;
    stats->full = e->is_full;
    stats->view = e->view;
    stats->views = e->views_seen;
}

void inspan_elastic_tell_ledger(inspan_elastic_t *e)
{
    driver_tell_ledger(e);
}

uint32_t inspan_elastic_members(const inspan_elastic_t *e, const uint32_t **numbers)
{
    *numbers = e->numbers;
    return e->world;
}

int64_t inspan_elastic_lease_owner(const inspan_elastic_t *e, uint32_t lease)
{
    return ddp_buckets_owner(&e->buckets, lease);
}
