/*
 * How gradients lie in buckets, where the caller leaves that open (options.plan_buckets): each member
 * measures when each gradient is ready in the last run of a step and tells the leader; once a step the leader
 * plans order and cuts by that and by what reductions take (core/buckets). A plan that wins enough goes to
 * all members; once every vote says that it is known (elastic_know_layout), a COMMIT carries its hash, and
 * from the step that this opens on gradients lie so. At the start of a view all tell each other the layouts
 * that may be asked for: a newcomer begins with the first one.
 *
 * A step needs a gradient when the slowest member has it: of each gradient the least time before the end of
 * the backward pass counts, for all members' last runs are planned to end together.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define LAYOUT_TYPE    0x7479616cu /* "layt", "trac": none of the step machine's, which are small */
#define TRACE_TYPE     0x63617274u
#define MEASURED_LEAST 3u   /* steps of this view, and runs in a member's trace */
#define TRACED_EVERY   4u   /* steps */
#define LOST           1.05 /* factor of a step's time at which a new layout is given up again */
#define SMOOTHING      0.25 /* weight of the newest run in a trace */
/* What one more reduction costs, whatever its size: its messages and wake-ups on a small machine. */
#define BUCKET_S 0.2e-3

#define PARAMETERS_MAX ((COMM_MESSAGE_MAX - 32) / 2 - BUCKETS_MAX) /* whose order fits into a message */

typedef struct layout_message {
    uint32_t type, n_params, n_buckets, zero;
    uint64_t view, hash;
    uint16_t numbers[BUCKETS_MAX + PARAMETERS_MAX]; /* parameters of each bucket, then all in their order */
} layout_message_t;

typedef struct trace_message {
    uint32_t type, n_params;
    uint64_t view;
    double longest_s;              /* of the times below */
    uint16_t part[PARAMETERS_MAX]; /* of it: how long before the end of its last run each gradient is ready */
} trace_message_t;

_Static_assert(sizeof(layout_message_t) <= COMM_MESSAGE_MAX && sizeof(trace_message_t) <= COMM_MESSAGE_MAX,
               "both fit into a message");
_Static_assert(PARAMETERS_MAX <= UINT16_MAX, "numbers of parameters fit");

/* ---- Opening --------------------------------------------------------------------------------- */

inspan_status_t driver_layout_open(inspan_elastic_t *e, inspan_error_t *err)
{
    driver_layout_t *l = &e->layout;
    const uint32_t n = e->buckets.n_params;
    l->first = e->buckets.hash;
    l->possible = n <= PARAMETERS_MAX;
    l->plans = l->possible && e->options.plan_buckets;
    l->counts = calloc(n, sizeof l->counts[0]);
    l->ready_at = calloc(n, sizeof l->ready_at[0]);
    l->gaps = calloc(n, sizeof l->gaps[0]);
    l->gradients = calloc(n, sizeof l->gradients[0]);
    l->order = calloc(n, sizeof l->order[0]);
    l->sizes = calloc(n, sizeof l->sizes[0]);
    l->room = malloc(bucket_plan_bytes(n));
    l->table = calloc((size_t)(l->plans ? ELASTIC_MEMBERS_MAX : 0) * n + 1, sizeof l->table[0]);
    if (!l->counts || !l->ready_at || !l->gaps || !l->gradients || !l->order || !l->sizes || !l->room ||
        !l->table)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the plan of %u gradients", n);
    for (uint32_t p = 0; p < n; p++) l->counts[p] = e->parameters[p].count;
    return INSPAN_OK;
}

void driver_layout_close(inspan_elastic_t *e)
{
    driver_layout_t *l = &e->layout;
    for (uint32_t i = 0; i < ELASTIC_LAYOUTS_KNOWN; i++) layout_free(&l->known[i].layout);
    layout_free(&l->previous);
    free(l->counts);
    free(l->ready_at);
    free(l->gaps);
    free(l->gradients);
    free(l->order);
    free(l->sizes);
    free(l->room);
    free(l->table);
}

uint64_t driver_layout_hash(const inspan_elastic_t *e, uint64_t buckets_hash)
{
    const inspan_elastic_options_t *options = &e->options;
    const uint64_t settings[] = {buckets_hash, options->batch, options->steps, (uint64_t)options->wire,
                                 options->wires};
    return hash64(settings, sizeof settings, 0);
}

/* ---- What is known (lock held) --------------------------------------------------------------- */

static driver_known_t *find(driver_layout_t *l, uint64_t hash)
{
    for (uint32_t i = 0; i < ELASTIC_LAYOUTS_KNOWN; i++)
        if (l->known[i].hash == hash && l->known[i].layout.n_params > 0) return &l->known[i];
    return NULL;
}

/* Takes the layout over; the oldest known one goes. */
static void keep(inspan_elastic_t *e, uint64_t hash, layout_t *layout)
{
    driver_layout_t *l = &e->layout;
    driver_known_t *known = find(l, hash);
    const elastic_layout_t told = {hash, layout->n_buckets + 1};
    const uint32_t at = known != NULL ? (uint32_t)(known - l->known) : ELASTIC_LAYOUTS_KNOWN - 1;
    layout_free(&l->known[at].layout);
    memmove(&l->known[1], &l->known[0], at * sizeof l->known[0]);
    l->known[0] = (driver_known_t){hash, *layout};
    memset(layout, 0, sizeof *layout);
    elastic_know_layout(e->machine, &told);
}

static size_t layout_bytes(uint32_t n_buckets, uint32_t n_params)
{
    return offsetof(layout_message_t, numbers) + (n_buckets + n_params) * sizeof(uint16_t);
}

static inspan_status_t send_layout(const inspan_elastic_t *e, uint64_t hash, const layout_t *layout,
                                   uint32_t to)
{
    layout_message_t message = {.type = LAYOUT_TYPE,
                                .n_params = layout->n_params,
                                .n_buckets = layout->n_buckets,
                                .view = e->view,
                                .hash = hash};
    uint16_t *at = message.numbers;
    for (uint32_t b = 0; b < layout->n_buckets; b++) *at++ = (uint16_t)layout->buckets[b].n_params;
    for (uint32_t i = 0; i < layout->n_params; i++) *at++ = (uint16_t)layout->order[i];
    return comm_message(e->comm, to, &message, layout_bytes(layout->n_buckets, layout->n_params));
}

/* A hint: what cannot be is not believed, and breaks nothing. */
static void take_layout(inspan_elastic_t *e, const layout_message_t *message, size_t bytes)
{
    uint32_t sizes[BUCKETS_MAX], order[PARAMETERS_MAX];
    const uint32_t n = message->n_params, n_buckets = message->n_buckets;
    layout_t layout;
    if (n != e->buckets.n_params || n_buckets == 0 || n_buckets >= BUCKETS_MAX || !e->layout.possible ||
        bytes != layout_bytes(n_buckets, n) || message->view != e->view || e->machine == NULL)
        return;
    for (uint32_t b = 0; b < n_buckets; b++) sizes[b] = message->numbers[b];
    for (uint32_t i = 0; i < n; i++) order[i] = message->numbers[n_buckets + i];
    if (layout_cut(e->layout.counts, n, order, sizes, n_buckets, e->buckets.leases, &layout) != INSPAN_OK)
        return;
    if (driver_layout_hash(e, ddp_buckets_layout_hash(&e->buckets, &layout)) == message->hash)
        keep(e, message->hash, &layout);
    layout_free(&layout);
}

/* ---- Traces ---------------------------------------------------------------------------------- */

static void take_trace(inspan_elastic_t *e, uint32_t from, const trace_message_t *message, size_t bytes)
{
    const uint32_t n = message->n_params;
    if (!e->layout.plans || n != e->buckets.n_params || message->view != e->view || from >= e->world ||
        bytes != offsetof(trace_message_t, part) + n * sizeof message->part[0] ||
        !(message->longest_s >= 0 && message->longest_s < 1e6))
        return;
    float *row = e->layout.table + (size_t)from * n;
    for (uint32_t p = 0; p < n; p++) row[p] = (float)(message->longest_s * message->part[p] / UINT16_MAX);
    e->layout.told |= UINT64_C(1) << from;
}

bool driver_layout_message(inspan_elastic_t *e, uint32_t from, const void *data, size_t bytes)
{
    union {
        uint32_t type;
        layout_message_t layout;
        trace_message_t trace;
    } message;
    if (bytes < offsetof(trace_message_t, part) || bytes > sizeof message) return false;
    memcpy(&message, data, bytes);
    if (message.type == TRACE_TYPE)
        take_trace(e, from, &message.trace, bytes);
    else if (message.type == LAYOUT_TYPE)
        take_layout(e, &message.layout, bytes);
    else
        return false;
    return true;
}

void driver_layout_ready(inspan_elastic_t *e, uint32_t parameter)
{
    if (e->layout.plans) e->layout.ready_at[parameter] = os_now();
}

void driver_layout_computed(inspan_elastic_t *e)
{
    driver_layout_t *l = &e->layout;
    const ns_t now = os_now();
    if (!l->plans) return;
    for (uint32_t p = 0; p < e->buckets.n_params; p++) {
        const double gap = ns_to_s(now - l->ready_at[p]);
        l->gaps[p] += (float)((gap - l->gaps[p]) * (l->traced == 0 ? 1 : SMOOTHING));
    }
    l->traced++;
}

void driver_layout_tell(inspan_elastic_t *e)
{
    const driver_layout_t *l = &e->layout;
    const uint32_t n = e->buckets.n_params;
    if (!l->plans || e->world < 2 || l->traced < MEASURED_LEAST || l->traced % TRACED_EVERY != MEASURED_LEAST)
        return;
    trace_message_t message = {.type = TRACE_TYPE, .n_params = n, .view = e->view};
    for (uint32_t p = 0; p < n; p++) message.longest_s = fmax(message.longest_s, l->gaps[p]);
    for (uint32_t p = 0; p < n && message.longest_s > 0; p++)
        message.part[p] = (uint16_t)(UINT16_MAX * (l->gaps[p] / message.longest_s));
    const size_t bytes = offsetof(trace_message_t, part) + n * sizeof message.part[0];
    pthread_mutex_lock(&e->lock);
    if (e->rank == 0)
        take_trace(e, 0, &message, bytes);
    else if (e->comm != NULL)
        comm_message(e->comm, 0, &message, bytes); /* not sent: the next one */
    pthread_mutex_unlock(&e->lock);
}

/* ---- Views, commits -------------------------------------------------------------------------- */

void driver_layout_view(inspan_elastic_t *e)
{
    driver_layout_t *l = &e->layout;
    const uint64_t present = elastic_layout_of_step(e->machine).hash;
    l->told = 0;
    memset(&l->planner, 0, sizeof l->planner);
    for (uint32_t to = 0; to < e->world; to++) {
        inspan_status_t status = INSPAN_OK;
        if (to == e->rank) continue;
        if (l->known[0].layout.n_params > 0)
            status = send_layout(e, l->known[0].hash, &l->known[0].layout, to);
        if (e->buckets.hash != l->first && status == INSPAN_OK)
            status = send_layout(e, present, &e->buckets.layout, to);
        if (status == INSPAN_LIMIT) e->send_failed = true;
    }
}

/* Lock held. Of the newest layout, in words, where this member chose it. */
static void say_why(inspan_elastic_t *e, uint64_t hash, uint64_t step, uint32_t before)
{
    const driver_layout_t *l = &e->layout;
    char *text = e->stats.layout_reason;
    text[0] = '\0';
    if (l->chosen == hash && l->goes_back)
        snprintf(text, sizeof e->stats.layout_reason,
                 "step %" PRIu64 ": gradients lie in %u buckets again: steps took %.3g s, and %.3g s with %u",
                 step, e->buckets.n - 1, l->left_s, l->chosen_s, before);
    else if (l->chosen == hash)
        snprintf(text, sizeof e->stats.layout_reason,
                 "step %" PRIu64
                 ": gradients in %u buckets, in the order in which they get ready, were %u: %.3g s of "
                 "communication after backward are expected, before %.3g s",
                 step, e->buckets.n - 1, before, l->chosen_s, l->left_s);
    log_info("step %" PRIu64 ": gradients lie in %u buckets, before in %u", step, e->buckets.n - 1, before);
}

/* Its sizes are in e->layout.sizes: until the next plan. */
static bucket_cuts_t cuts_of(const inspan_elastic_t *e, const layout_t *layout)
{
    for (uint32_t b = 0; b < layout->n_buckets; b++) e->layout.sizes[b] = layout->buckets[b].n_params;
    return (bucket_cuts_t){layout->n_buckets, layout->order, e->layout.sizes};
}

static inspan_status_t cut_layout(const inspan_elastic_t *e, const bucket_cuts_t *cuts, layout_t *layout)
{
    return layout_cut(e->layout.counts, e->buckets.n_params, cuts->order, cuts->sizes, cuts->n_buckets,
                      e->buckets.leases, layout);
}

static inspan_status_t copy_layout(const inspan_elastic_t *e, const layout_t *from, layout_t *to)
{
    const bucket_cuts_t cuts = cuts_of(e, from);
    return cut_layout(e, &cuts, to);
}

void driver_layout_apply(inspan_elastic_t *e)
{
    inspan_error_t err;
    layout_t layout, present;
    driver_layout_t *l = &e->layout;
    pthread_mutex_lock(&e->lock);
    const uint64_t hash = elastic_layout_of_step(e->machine).hash;
    const driver_known_t *known = find(l, hash);
    const uint32_t before = e->buckets.n - 1;
    inspan_status_t status = INSPAN_INTERNAL; /* the machine took up what it was told of by keep */
    if (known != NULL) status = copy_layout(e, &known->layout, &layout);
    if (status == INSPAN_OK) {
        const bool kept = copy_layout(e, &e->buckets.layout, &present) == INSPAN_OK;
        layout_free(&l->previous);
        if (kept) l->previous = present;
        ddp_buckets_lay_out(&e->buckets, &layout);
        e->stats.layouts++;
        l->since = elastic_step(e->machine);
        l->before_s = ns_to_s(driver_pace_whole_step(e));
        e->pace.n_durations = 0;
        say_why(e, hash, l->since, before);
    } else {
        error_set(&err, status, "gradients cannot be laid out as the members agreed: %s",
                  inspan_status_text(status));
        driver_fail(e, &err);
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- The leader's plan (training thread) ----------------------------------------------------- */

bool driver_may_lay_out(const inspan_elastic_t *e)
{
    return e->layout.plans;
}

/* Lock held: members with leases in this step, by bit. */
static uint64_t computing(const inspan_elastic_t *e)
{
    uint64_t members = 0;
    for (uint32_t lease = 0; lease < e->buckets.leases; lease++) {
        const uint32_t owner = elastic_owner(e->machine, lease);
        if (owner < ELASTIC_MEMBERS_MAX) members |= UINT64_C(1) << owner;
    }
    return members;
}

/* Of each gradient the least time that a member has told. false: one that computes has not told yet. */
static bool gather(inspan_elastic_t *e)
{
    driver_layout_t *l = &e->layout;
    const uint32_t n = e->buckets.n_params;
    pthread_mutex_lock(&e->lock);
    const uint64_t told = l->told, needed = computing(e);
    const bool all = needed != 0 && (needed & ~told) == 0;
    for (uint32_t p = 0; p < n && all; p++) {
        double gap = INFINITY;
        for (uint32_t i = 0; i < e->world; i++)
            if (told >> i & 1) gap = fmin(gap, l->table[(size_t)i * n + p]);
        const uint64_t padded = (l->counts[p] + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
        l->gradients[p] = (bucket_gradient_t){padded * e->buckets.element_size, gap};
    }
    pthread_mutex_unlock(&e->lock);
    return all;
}

static void propose(inspan_elastic_t *e, const bucket_cuts_t *cuts)
{
    layout_t layout;
    driver_layout_t *l = &e->layout;
    if (cut_layout(e, cuts, &layout) != INSPAN_OK) return; /* no memory: things stay as they are */
    const uint64_t hash = driver_layout_hash(e, ddp_buckets_layout_hash(&e->buckets, &layout));
    pthread_mutex_lock(&e->lock);
    for (uint32_t to = 1; to < e->world && e->comm != NULL; to++) send_layout(e, hash, &layout, to);
    l->chosen = hash;
    keep(e, hash, &layout);
    elastic_set_layout(e->machine, hash);
    pthread_mutex_unlock(&e->lock);
}

void driver_shuffle_layout(inspan_elastic_t *e, uint64_t step)
{
    rng_t rng;
    driver_layout_t *l = &e->layout;
    const uint32_t n = e->buckets.n_params;
    if (!e->options.shuffle_buckets || !l->possible || step % 2 != 0) return;
    pthread_mutex_lock(&e->lock);
    const bool leads = elastic_is_leader(e->machine) && elastic_phase(e->machine) == ELASTIC_RUN;
    pthread_mutex_unlock(&e->lock);
    if (!leads) return;
    rng_seed(&rng, step, e->options.seed);
    bucket_cuts_t cuts = {0, l->order, l->sizes};
    for (uint32_t left = n; left > 0; left -= l->sizes[cuts.n_buckets++]) {
        const bool last = cuts.n_buckets + 2 == BUCKETS_MAX;
        l->sizes[cuts.n_buckets] = last ? left : 1 + (uint32_t)rng_below(&rng, left < 8 ? left : 8);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = (uint32_t)rng_below(&rng, i + 1);
        l->order[i] = l->order[at];
        l->order[at] = i;
    }
    propose(e, &cuts);
}

/* What was there before was better. */
static void go_back(inspan_elastic_t *e, double step_s)
{
    driver_layout_t *l = &e->layout;
    const bucket_cuts_t cuts = cuts_of(e, &l->previous);
    l->goes_back = true;
    l->chosen_s = step_s;
    l->left_s = l->before_s;
    propose(e, &cuts);
}

/* Once the steps of the newest layout are measured, where this member chose it: what it has won, or lost. */
static void see_what_it_won(inspan_elastic_t *e, const driver_measured_t *measured)
{
    driver_layout_t *l = &e->layout;
    const double step_s = measured->step_s;
    if (!(l->before_s > 0) || measured->steps < DRIVER_REDUCTIONS) return;
    pthread_mutex_lock(&e->lock);
    const bool own = e->stats.layout_reason[0] != '\0' && !l->goes_back;
    if (own && step_s <= LOST * l->before_s)
        snprintf(e->stats.layout_reason, sizeof e->stats.layout_reason,
                 "since step %" PRIu64
                 " gradients lie in %u buckets, in the order in which they get ready: steps take "
                 "%.3g s, took %.3g s",
                 l->since, e->buckets.n - 1, step_s, l->before_s);
    pthread_mutex_unlock(&e->lock);
    if (own && step_s > LOST * l->before_s && l->previous.n_params > 0) go_back(e, step_s);
    l->before_s = 0;
}

void driver_choose_layout(inspan_elastic_t *e, uint64_t step, const driver_outlook_t *outlook)
{
    driver_layout_t *l = &e->layout;
    const driver_measured_t *measured = &outlook->measured;
    if (step + DRIVER_REDUCTIONS >= e->options.steps) return; /* nobody would see what it wins */
    see_what_it_won(e, measured);
    if (measured->steps < MEASURED_LEAST || !(measured->reduce_s > 0) || !gather(e)) return;
    const double each = BUCKET_S * (e->buckets.n - 1);
    const bucket_costs_t costs = {.bucket_s = BUCKET_S,
                                  .byte_s = fmax(measured->reduce_s - each, measured->reduce_s / 2) /
                                            (double)e->buckets.bytes,
                                  .tail_bytes = e->buckets.leases * e->buckets.element_size,
                                  .most = BUCKETS_MAX - 1};
    bucket_cuts_t cuts = cuts_of(e, &e->buckets.layout);
    const double present = bucket_exposed(l->gradients, &cuts, &costs);
    cuts = (bucket_cuts_t){0, l->order, l->sizes};
    const double planned = bucket_plan(l->gradients, e->buckets.n_params, &costs, &cuts, l->room);
    log_debug(
        "buckets: %.3g s are expected after backward, %.3g s in %u buckets as planned; steps take %.3g s",
        present, planned, cuts.n_buckets, measured->step_s);
    if (!bucket_change_due(&l->planner, present, planned, measured->step_s)) return;
    l->goes_back = false;
    l->chosen_s = planned;
    l->left_s = present;
    propose(e, &cuts);
}
