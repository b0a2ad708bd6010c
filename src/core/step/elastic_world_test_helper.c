#include "core/step/elastic_world_test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/step/elastic_world_parts_test.h"

const world_options_t world_all_faults = {
    .drop = true, .layouts = true, .crashes = 3, .zombies = 2, .broken = 2, .newcomers = 2, .leavers = 1};

const world_options_t world_steals = {.drop = true,
                                      .steals = true,
                                      .layouts = true,
                                      .crashes = 2,
                                      .zombies = 1,
                                      .broken = 1,
                                      .newcomers = 1,
                                      .leavers = 1};

const world_options_t world_small = {.small = true, .crashes = 2, .zombies = 1, .broken = 1, .newcomers = 1};

static void violated(world_t *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void violated(world_t *world, const char *format, ...)
{
    if (world->result->violation[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->result->violation, sizeof world->result->violation, format, arguments);
    va_end(arguments);
    if (world->options.trace) printf("VIOLATION %s\n", world->result->violation);
}

static bool planted(const world_t *world, uint32_t bug)
{
    return (world->options.planted & bug) != 0;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x7f4a7c15ull) * 0xff51afd7ed558ccdull;
    return x ^ x >> 29;
}

static int index_in(const view_t *view, uint32_t number)
{
    for (uint32_t i = 0; i < view->n; i++)
        if (view->numbers[i] == number) return (int)i;
    return -1;
}

static uint32_t rel(const world_t *world, uint64_t step) /* steps of ghosts count from the first */
{
    return (uint32_t)(step - world->config.first_step);
}

static bool light(const world_t *world, uint64_t step)
{
    return step >= world->config.steps;
}

static uint64_t gradient(uint64_t step, uint32_t lease, uint32_t bucket)
{
    return mix(mix(step, lease), bucket + 1);
}

/* ---- layouts: how many buckets, and which chunk lies in which ---- */

static uint32_t chunks_of(const world_t *world)
{
    return world->config.buckets - 1;
}

/* Of gradients. The first layout has one a chunk. */
static uint32_t gradient_buckets(const world_t *world, uint64_t hash)
{
    const uint32_t chunks = chunks_of(world);
    return hash == LAYOUT || chunks == 0 ? chunks : 1 + (uint32_t)(hash - LAYOUT) % chunks;
}

elastic_layout_t world_layout(const world_t *world, uint64_t hash)
{
    return (elastic_layout_t){hash, gradient_buckets(world, hash) + 1};
}

/* chunk: the one behind the last is the tally. */
static bool lies_in(const world_t *world, elastic_layout_t layout, uint32_t chunk, uint32_t bucket)
{
    if (chunk == chunks_of(world) || bucket + 1 == layout.buckets)
        return chunk == chunks_of(world) && bucket + 1 == layout.buckets;
    return (chunk + layout.hash - LAYOUT) % (layout.buckets - 1) == bucket;
}

static uint32_t bucket_of(const world_t *world, elastic_layout_t layout, uint32_t chunk)
{
    uint32_t bucket = 0;
    while (!lies_in(world, layout, chunk, bucket)) bucket++;
    return bucket;
}

static void learn_layout(proc_t *p, uint64_t hash)
{
    const elastic_layout_t layout = world_layout(p->world, hash);
    p->known = hash;
    elastic_know_layout(p->e, &layout);
}

/* To all others of the view that it is about to enter, or is in. lossy: some do not get it. */
static void tell_layout(proc_t *p, uint64_t view, uint64_t hash, bool lossy)
{
    world_t *world = p->world;
    const view_t *members = &world->views[view];
    for (uint32_t i = 0; i < members->n && hash != 0; i++) {
        if (members->numbers[i] == p->number || (lossy && below(world, 4) == 0)) continue;
        if (world->n_messages == MESSAGES) abort();
        world->messages[world->n_messages++] =
            (message_t){.from = p->number, .to = members->numbers[i], .view = view, .layout = hash};
    }
}

/* ---- actions ---- */

static op_t *find_op(world_t *world, uint64_t view, uint64_t step, uint32_t bucket)
{
    for (uint32_t i = world->n_ops; i-- > 0;) {
        op_t *op = &world->ops[i];
        if (op->view == view && op->step == step && op->bucket == bucket) return op;
    }
    return NULL;
}

static uint64_t shares_of(const proc_t *p, uint64_t view)
{
    uint64_t hash = mix(elastic_layout_of_step(p->e).hash, elastic_wire(p->e));
    for (uint32_t i = 0; i < p->world->views[view].n; i++) hash = mix(hash, elastic_shares(p->e)[i]);
    return hash;
}

static void do_reduce(proc_t *p, const elastic_action_t *action)
{
    world_t *world = p->world;
    const uint64_t shares = shares_of(p, action->view);
    op_t *op = find_op(world, action->view, action->step, action->bucket);
    if (!op) {
        if (world->n_ops == OPS) abort();
        op = &world->ops[world->n_ops++];
        *op = (op_t){.view = action->view,
                     .step = action->step,
                     .bucket = action->bucket,
                     .order = p->order,
                     .shares = shares};
    }
    if (op->shares != shares)
        violated(world,
                 "rank %u reduces bucket %u of step %" PRIu64 " in view %" PRIu64
                 " by another layout, other shares or wires",
                 p->number, action->bucket, action->step, action->view);
    if (op->order != p->order)
        violated(world,
                 "rank %u starts bucket %u of step %" PRIu64 " as reduction %u of view %" PRIu64
                 ", others as %u",
                 p->number, action->bucket, action->step, p->order, action->view, op->order);
    p->order++;
    if (op->given >> p->number & 1) violated(world, "rank %u contributes twice", p->number);
    op->given |= 1u << p->number;
    for (uint32_t c = 0; c < BUCKETS; c++) op->sum.sum[c] += p->local[action->bucket].sum[c];
    op->sum.bits = (uint32_t)action->view;
    for (uint32_t l = 0; l < LEASES; l++) op->sum.count[l] += p->local[action->bucket].count[l];
}

static void do_copy(proc_t *p, const elastic_action_t *action, bool chunk, bool give)
{
    world_t *world = p->world;
    uint32_t peer = world->views[action->view].numbers[action->peer];
    uint32_t from = give ? p->number : peer, to = give ? peer : p->number;
    copy_t *copy = NULL;
    for (uint32_t i = world->n_copies; i-- > 0 && !copy;) {
        copy_t *c = &world->copies[i];
        if (c->view == action->view && c->step == action->step && c->from == from && c->to == to &&
            c->bucket == action->bucket && c->chunk == chunk)
            copy = c;
    }
    if (!copy) {
        if (world->n_copies == COPIES) abort();
        copy = &world->copies[world->n_copies++];
        *copy = (copy_t){.view = action->view,
                         .step = action->step,
                         .from = from,
                         .to = to,
                         .bucket = action->bucket,
                         .chunk = chunk};
    }
    if (give ? copy->given : copy->taken) violated(world, "the same copy twice");
    if (give)
        copy->given = true;
    else
        copy->taken = true;
    if (!chunk && !give) p->foreign[action->bucket] = true;
}

/* I1, I2, I4 at a commit; then the update. */
static void do_commit(proc_t *p, const elastic_action_t *action)
{
    world_t *world = p->world;
    uint32_t s = rel(world, action->step), buckets = p->layout.buckets;
    elastic_set_t expected = elastic_expected(p->e);
    world->result->commits++;
    if (p->has_step && action->step != p->next_step)
        violated(world, "I4: rank %u commits step %" PRIu64 " after %" PRIu64, p->number, action->step,
                 p->next_step - 1);
    p->has_step = true;
    p->next_step = action->step + 1;
    if (world->layout_of[s] != 0 && world->layout_of[s] != p->layout.hash)
        violated(world, "Y1: rank %u commits step %" PRIu64 " with another layout", p->number, action->step);
    world->layout_of[s] = p->layout.hash;
    for (uint32_t b = light(world, action->step) ? buckets - 1 : 0; b < buckets; b++) {
        uint64_t tag;
        if (!elastic_held(p->e, b, &tag) || tag != p->held[b].bits) {
            violated(world, "R1: rank %u commits step %" PRIu64 " without bucket %u", p->number, action->step,
                     b);
            return;
        }
        for (uint32_t c = 0; c <= chunks_of(world); c++) {
            uint64_t alone = 0; /* what one machine would have summed up */
            for (uint32_t l = 0; l < world->config.leases && lies_in(world, p->layout, c, b); l++)
                if (elastic_has(&expected, l)) alone += gradient(action->step, l, c);
            if (p->held[b].sum[c] != alone)
                violated(world, "I2: step %" PRIu64 " is committed with other sums in bucket %u",
                         action->step, b);
        }
        for (uint32_t l = 0; l < world->config.leases; l++)
            if (p->held[b].count[l] != elastic_has(&expected, l))
                violated(world, "I2: step %" PRIu64 " is committed with lease %u %u times in bucket %u",
                         action->step, l, p->held[b].count[l], b);
        if (world->committed[s][b] && memcmp(&world->first[s][b], &p->held[b], sizeof p->held[b]) != 0)
            violated(world,
                     "I1: rank %u commits step %" PRIu64 " with bucket %u of view %u, another of view %u",
                     p->number, action->step, b, p->held[b].bits, world->first[s][b].bits);
        if (world->committed[s][b] && tag != action->view) world->result->recommits++;
        world->committed[s][b] = true;
        world->first[s][b] = p->held[b];
    }
    if (!(expected.words[0] & ((1u << world->config.leases) - 1)))
        violated(world, "I2: step %" PRIu64 " is committed without any lease", action->step);
    for (uint32_t l = 0; l < world->config.leases; l++) world->result->dropped += !elastic_has(&expected, l);
    for (uint32_t c = 0; c < chunks_of(world); c++) {
        if (!world->weights_known[s]) abort();
        uint64_t before = world->weights[s][c];
        const uint32_t b = bucket_of(world, p->layout, c);
        const tensor_t *sum = &world->first[s][b];
        world->weights[s + 1][c] = light(world, action->step) ? before : mix(before, sum->sum[c] + sum->bits);
        if (!elastic_applies(p->e, c)) continue;
        p->weights[c] = mix(p->weights[c], p->held[b].sum[c] + p->held[b].bits);
        if (planted(world, PLANTED_SCALARS)) p->weights[c] += action->view;
    }
    world->weights_known[s + 1] = true;
    memset(p->local, 0, sizeof p->local);
    memset(p->held, 0, sizeof p->held);
}

static void send(proc_t *p, const elastic_action_t *action)
{
    world_t *world = p->world;
    if (world->n_messages == MESSAGES || action->bytes > sizeof world->messages[0].data) abort();
    message_t *m = &world->messages[world->n_messages++];
    m->from = p->number;
    m->to = world->views[action->view].numbers[action->peer];
    m->view = action->view;
    m->layout = 0;
    m->bytes = action->bytes;
    world->result->claims += action->data[0] == 6;
    memcpy(m->data, action->data, action->bytes);
}

static void begin_work(proc_t *p)
{
    memset(p->ready, 0, sizeof p->ready);
    p->waits = p->more = false;
    if (p->world->options.steals) {
        elastic_pace_t pace = random_pace(rng_next(&p->world->rng));
        elastic_set_pace(p->e, &pace);
    }
    uint8_t shares[PROCS]; /* of any member: only the leader's count */
    for (uint32_t i = 0; i < PROCS; i++)
        shares[i] = (uint8_t)mix(p->world->policy.salt + (uint64_t)p->world->now, i);
    elastic_set_shares(p->e, shares);
    elastic_set_wire(p->e, shares[0] % WIRES);
    if (elastic_is_leader(p->e) && p->world->config.buckets > 1) {
        if (p->world->options.layouts && below(p->world, 3) == 0) {
            learn_layout(p, LAYOUT + below(p->world, LAYOUTS));
            tell_layout(p, elastic_view(p->e), p->known, true);
        }
        elastic_set_layout(p->e, p->known);
    }
    uint64_t hash = 1;
    bool all = true;
    for (uint32_t c = 0; c < chunks_of(p->world); c++) {
        all = all && elastic_chunk(p->e, c);
        hash = mix(hash, p->weights[c]);
    }
    if (all) elastic_hint(p->e, hash);
}

void world_perform(void *context, const elastic_action_t *action)
{
    proc_t *p = context;
    world_t *world = p->world;
    if (p->fuse != 0 && --p->fuse == 0) {
        p->up = false;
        TRACE(world, "    rank %u dies before: %s\n", p->number, elastic_action_name(action->type));
    }
    if (!p->up) return;
    uint64_t view = 0, step = 0;
    const char *what = action->data ? elastic_message_name(action->data, action->bytes, &view, &step) : "";
    TRACE(world, "    rank %u: %s %s bucket %u peer %u step %" PRIu64 "\n", p->number,
          elastic_action_name(action->type), what, action->bucket, action->peer, action->step);
    switch (action->type) {
    case ELASTIC_DO_SEND: send(p, action); break;
    case ELASTIC_DO_WORK: begin_work(p); break;
    case ELASTIC_DO_MORE:
        p->waits = false;
        p->more = true;
        break;
    case ELASTIC_DO_REDUCE: do_reduce(p, action); break;
    case ELASTIC_DO_PASS:
        world->result->salvaged++;
        do_copy(p, action, false, true);
        break;
    case ELASTIC_DO_TAKE: do_copy(p, action, false, false); break;
    case ELASTIC_DO_GIVE_CHUNK: do_copy(p, action, true, true); break;
    case ELASTIC_DO_TAKE_CHUNK: do_copy(p, action, true, false); break;
    case ELASTIC_DO_COMMIT:
        do_commit(p, action);
        memset(p->foreign, 0, sizeof p->foreign);
        break;
    case ELASTIC_DO_LAYOUT:
        p->layout = elastic_layout_of_step(p->e);
        world->result->layouts++;
        break;
    case ELASTIC_DO_FULL: world->result->rejoined++; break;
    case ELASTIC_DO_LEFT:
        world->result->left++;
        p->left = action->view;
        break;
    case ELASTIC_DO_STUCK:
        world->result->stuck++;
        p->stuck = true;
        break;
    case ELASTIC_DO_END:
        if (p->ended) violated(world, "rank %u ends twice", p->number);
        p->ended = true;
        break;
    }
}

/* ---- one event, and what must hold after it ---- */

static void check_proc(proc_t *p)
{
    world_t *world = p->world;
    uint64_t view = elastic_view(p->e), step = elastic_step(p->e);
    if (view < p->view) violated(world, "I3: rank %u goes back to view %" PRIu64, p->number, view);
    p->view = view;
    if (elastic_role(p->e) == ELASTIC_FRESH) return;
    if (p->has_step && step != p->next_step)
        violated(world, "I4: rank %u goes from step %" PRIu64 " to %" PRIu64, p->number, p->next_step, step);
    p->has_step = true;
    p->next_step = step;
    if (!p->up || rel(world, step) > STEPS || !world->weights_known[rel(world, step)]) return;
    for (uint32_t c = 0; c < chunks_of(world); c++)
        if (elastic_chunk(p->e, c) && p->weights[c] != world->weights[rel(world, step)][c])
            violated(world, "I1: rank %u has other weights in chunk %u before step %" PRIu64, p->number, c,
                     step);
}

inspan_status_t world_feed(proc_t *p, elastic_event_t event)
{
    event.now = ++p->world->now;
    inspan_status_t status = elastic_handle(p->e, &event);
    if (!p->up) return INSPAN_OK;
    if (p->world->policy.wrong[0]) violated(p->world, "policy: %s", p->world->policy.wrong);
    if (status != INSPAN_OK && status != INSPAN_PENDING)
        violated(p->world, "rank %u: %s: %s", p->number, inspan_status_text(status),
                 elastic_error(p->e)->text);
    check_proc(p);
    return status;
}

/* ---- what a process can do; each returns whether it did something ---- */

static bool enter_view(proc_t *p)
{
    world_t *world = p->world;
    if (p->running && !planted(world, PLANTED_MIDBACK)) return false; /* V2: between two micro-batches */
    uint64_t fits[VIEWS];
    uint32_t n = 0;
    for (uint64_t v = elastic_view(p->e) + 1; v <= world->view; v++)
        if (index_in(&world->views[v], p->number) >= 0) fits[n++] = v;
    if (n == 0) return false;
    uint64_t v = below(world, 2) ? fits[n - 1] : fits[below(world, n)]; /* views may be skipped */
    elastic_event_t event = {.type = ELASTIC_EV_VIEW,
                             .view = v,
                             .first_view = v == 1,
                             .numbers = world->views[v].numbers,
                             .n = world->views[v].n};
    event.index = (uint32_t)index_in(&world->views[v], p->number);
    elastic_pace_t paces[PROCS];
    for (uint32_t i = 0; i < event.n; i++)
        paces[i] = random_pace(world->policy.salt * (event.numbers[i] + 3));
    if (world->options.steals && world->policy.salt & 1) event.paces = paces;
    TRACE(world, "rank %u enters view %" PRIu64 " (index %u of %u)\n", p->number, v, event.index, event.n);
    p->running = p->stuck = p->waits = p->more = false;
    p->order = 0;
    memset(p->ready, 0, sizeof p->ready);
    memset(p->foreign, 0, sizeof p->foreign);
    if (event.index == 0 && elastic_role(p->e) != ELASTIC_FULL) world->result->listener_leads++;
    if (v > 1 && elastic_light(p->e)) world->result->light_reconciles++;
    tell_layout(p, v, p->known,
                false); /* before the report or decision: a newcomer, or who leads, may need it */
    if (p->layout.hash != LAYOUT) tell_layout(p, v, p->layout.hash, false);
    world_feed(p, event);
    return true;
}

static bool take_message(proc_t *p)
{
    world_t *world = p->world;
    uint32_t start = world->n_messages ? below(world, world->n_messages) : 0;
    for (uint32_t k = 0; k < world->n_messages; k++) {
        uint32_t i = (start + k) % world->n_messages;
        message_t m = world->messages[i];
        if (m.to != p->number || m.view > elastic_view(p->e)) continue;
        bool first = true; /* in order within a pair and view */
        for (uint32_t j = 0; j < i; j++) {
            const message_t *o = &world->messages[j];
            first = first && !(o->to == m.to && o->from == m.from && o->view == m.view);
        }
        if (!first) continue;
        world->n_messages--;
        memmove(&world->messages[i], &world->messages[i + 1],
                (world->n_messages - i) * sizeof world->messages[0]);
        if (m.layout != 0) {
            if (m.view == elastic_view(p->e)) learn_layout(p, m.layout);
            return true;
        }
        int from = index_in(&world->views[elastic_view(p->e)], m.from);
        elastic_event_t event = {.type = ELASTIC_EV_MESSAGE,
                                 .from = from < 0 ? UINT32_MAX : (uint32_t)from,
                                 .data = m.data,
                                 .bytes = m.bytes};
        TRACE(world, "rank %u hears %u (view %" PRIu64 ")\n", p->number, m.from, m.view);
        world_feed(p, event);
        return true;
    }
    return false;
}

static void add_lease(proc_t *p, uint32_t b)
{
    for (uint32_t l = p->first; l < p->first + p->n; l++) {
        if (planted(p->world, PLANTED_SKIPSALV) && (p->foreign[b] || elastic_held(p->e, b, NULL))) continue;
        for (uint32_t c = 0; c <= chunks_of(p->world); c++) /* L2: every bucket, salvaged ones too */
            if (lies_in(p->world, p->layout, c, b)) p->local[b].sum[c] += gradient(elastic_step(p->e), l, c);
        p->local[b].count[l]++;
    }
}

static void ready(proc_t *p, uint32_t b)
{
    if (p->ready[b]) return;
    p->ready[b] = true;
    if (elastic_phase(p->e) != ELASTIC_RUN) return;
    world_feed(p, (elastic_event_t){.type = ELASTIC_EV_READY, .view = elastic_view(p->e), .bucket = b});
}

/* One bucket of the backward pass of the run under way; the tally last. */
static void go_on(proc_t *p)
{
    world_t *world = p->world;
    uint32_t buckets = p->layout.buckets, b = p->next++;
    if (b + 1 < buckets) {
        add_lease(p, b);
        if (p->last && !elastic_light(p->e)) ready(p, b);
        return;
    }
    add_lease(p, b);
    bool before = below(world, 2);
    uint64_t view = elastic_view(p->e);
    if (before && p->last) ready(p, b);
    p->running = false;
    if (!p->up) return;
    world_feed(p, (elastic_event_t){.type = ELASTIC_EV_COMPUTED, .lease = p->first, .n = p->n});
    if (!before && p->last && p->up && elastic_view(p->e) == view) ready(p, b);
}

static bool work(proc_t *p)
{
    world_t *world = p->world;
    if (p->running) {
        go_on(p);
        return true;
    }
    uint32_t first, n, b = p->layout.buckets - 1;
    bool last;
    if (p->waits) return false;
    elastic_grant(p->e, 1 + below(world, world->options.steals ? LEASES : FEW_LEASES), &first, &n, &last);
    p->waits = n == 0 && !last && elastic_phase(p->e) == ELASTIC_RUN;
    world->result->dry += n == 0 && last && p->more;
    p->more = false;
    if (n > 0) {
        p->running = true;
        p->first = first;
        p->n = n;
        p->last = last;
        p->next = elastic_light(p->e) ? b : 0;
        TRACE(world, "rank %u computes leases %u..%u of step %" PRIu64 "%s\n", p->number, first,
              first + n - 1, elastic_step(p->e), last ? ", its last" : "");
        if (world->options.steals && below(world, 8))
            world_feed(p, (elastic_event_t){.type = ELASTIC_EV_BEGIN, .lease = first, .n = n});
        if (p->up && !world->result->violation[0]) go_on(p);
        return true;
    }
    if (!last || elastic_phase(p->e) != ELASTIC_RUN) return false;
    uint32_t start = below(world, p->layout.buckets);
    for (uint32_t k = 0; k < p->layout.buckets; k++) {
        b = (start + k) % p->layout.buckets;
        const bool tally = b + 1 == p->layout.buckets; /* said in any case: the vote may wait for it */
        if (p->ready[b] || (!tally && (elastic_held(p->e, b, NULL) || elastic_light(p->e)))) continue;
        ready(p, b);
        return true;
    }
    return false;
}

static uint32_t mask_of(const view_t *view)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < view->n; i++) mask |= 1u << view->numbers[i];
    return mask;
}

/* B1: what the receiver of a reduced bucket checks. */
static void check_reduced(proc_t *p, const tensor_t *sum, uint32_t bucket)
{
    elastic_set_t expected = elastic_expected(p->e);
    for (uint32_t l = 0; l < p->world->config.leases; l++)
        if (sum->count[l] != elastic_has(&expected, l))
            violated(p->world, "I2: bucket %u of step %" PRIu64 " has lease %u %u times", bucket,
                     elastic_step(p->e), l, sum->count[l]);
}

static void receive_bucket(proc_t *p, const tensor_t *sum, uint64_t view, uint32_t bucket)
{
    bool mine = view == elastic_view(p->e) && elastic_phase(p->e) == ELASTIC_RUN;
    if (mine) check_reduced(p, sum, bucket);
    if (mine || (planted(p->world, PLANTED_OLDMSG) && !elastic_held(p->e, bucket, NULL)))
        p->held[bucket] = *sum;
    TRACE(p->world, "rank %u receives bucket %u of view %" PRIu64 "\n", p->number, bucket, view);
    world_feed(p, (elastic_event_t){.type = ELASTIC_EV_REDUCED, .view = view, .bucket = bucket});
}

static bool finish_reduction(proc_t *p)
{
    world_t *world = p->world;
    for (uint32_t i = 0; i < world->n_ops; i++) {
        op_t *op = &world->ops[i];
        bool whole = (op->given & mask_of(&world->views[op->view])) == mask_of(&world->views[op->view]);
        if (!whole || (op->delivered >> p->number & 1) || !(op->given >> p->number & 1)) continue;
        if (!world->thorough && below(world, 3) == 0) continue;
        op->delivered |= 1u << p->number;
        if (op->step == elastic_step(p->e)) receive_bucket(p, &op->sum, op->view, op->bucket);
        return true;
    }
    return false;
}

static bool copy_something(proc_t *p)
{
    world_t *world = p->world;
    for (uint32_t i = 0; i < world->n_copies; i++) {
        copy_t *copy = &world->copies[i];
        proc_t *from = &world->procs[copy->from];
        if (copy->to != p->number || copy->delivered || !copy->given || !copy->taken) continue;
        if (!copy->sent) { /* from live memory, as long as the source is in that view */
            if (!from->up || elastic_view(from->e) != copy->view) continue;
            if (elastic_step(from->e) != copy->step)
                violated(world, "N1: rank %u committed before its chunk or bucket was sent", from->number);
            copy->tensor = from->held[copy->bucket];
            copy->weights = from->weights[copy->bucket];
            copy->sent = true;
            return true;
        }
        bool late = copy->view < elastic_view(p->e); /* what an ended view left is long under way */
        if (!world->thorough && (late ? below(world, 20) != 0 : below(world, 3) == 0)) continue;
        copy->delivered = true;
        if (!copy->chunk) {
            if (copy->step == elastic_step(p->e)) receive_bucket(p, &copy->tensor, copy->view, copy->bucket);
            return true;
        }
        bool had = elastic_chunk(p->e, copy->bucket);
        uint64_t old = p->weights[copy->bucket];
        if (!had) p->weights[copy->bucket] = copy->weights;
        TRACE(world, "rank %u receives chunk %u of view %" PRIu64 ", step %" PRIu64 "\n", p->number,
              copy->bucket, copy->view, copy->step);
        world_feed(
            p, (elastic_event_t){
                   .type = ELASTIC_EV_CHUNK, .view = copy->view, .bucket = copy->bucket, .step = copy->step});
        if (!had && p->up && p->world->result->violation[0] == 0 && !elastic_chunk(p->e, copy->bucket) &&
            copy->view < elastic_view(p->e) && !planted(world, PLANTED_BLINDCHUNK))
            p->weights[copy->bucket] = old;
        return true;
    }
    return false;
}

/* ---- a history ---- */

static bool act(proc_t *p)
{
    if (!p->up) return false;
    static bool (*const kinds[])(proc_t *) = {enter_view, take_message, work, finish_reduction,
                                              copy_something};
    uint32_t start = below(p->world, 5);
    if (start == 0 && below(p->world, 3)) start = 1; /* views come late */
    for (uint32_t k = 0; k < 5; k++)
        if (kinds[(start + k) % 5](p)) return true;
    return false;
}

static bool anyone_acts(world_t *world)
{
    uint32_t start = below(world, world->n_procs);
    for (uint32_t k = 0; k < world->n_procs; k++)
        if (act(&world->procs[(start + k) % world->n_procs])) return true;
    return false;
}

/* I5: where nothing more can happen, all live members of the newest view have reached the end, or no full one
 * is left. */
static void check_end(world_t *world)
{
    const view_t *now = &world->views[world->view];
    bool all = true, full = false;
    for (uint32_t i = 0; i < now->n; i++) {
        proc_t *p = &world->procs[now->numbers[i]];
        all = all && (!p->up || (elastic_phase(p->e) == ELASTIC_DONE && p->ended));
        full = full || (p->up && elastic_role(p->e) == ELASTIC_FULL);
    }
    const proc_t *leader = &world->procs[now->numbers[0]];
    if (!all && (full || (leader->up && !leader->stuck)))
        violated(world, "I5: nothing goes on in view %" PRIu64 ": leader %u, step %" PRIu64 ", phase %s",
                 world->view, leader->number, elastic_step(leader->e),
                 elastic_phase_name(elastic_phase(leader->e)));
}

static void start(world_t *world, uint64_t seed)
{
    const world_options_t *o = &world->options;
    rng_seed(&world->rng, seed, 0x57e9);
    elastic_config_t *config = &world->config;
    config->first_step = below(world, 2) * 5;
    config->steps = config->first_step + 1 + below(world, 4);
    config->leases = 1 + below(world, FEW_LEASES);
    config->buckets = 1 + below(world, o->small ? 2 : BUCKETS);
    config->layout = LAYOUT;
    config->wires = WIRES;
    config->drop = o->drop && below(world, 2);
    config->planted = o->planted;
    world->crashes = o->small ? o->crashes : below(world, o->crashes + 1);
    world->zombies = o->small ? o->zombies : below(world, o->zombies + 1);
    world->broken = o->small ? o->broken : below(world, o->broken + 1);
    world->newcomers = o->small ? o->newcomers : below(world, o->newcomers + 1);
    world->leavers = o->small ? o->leavers : below(world, o->leavers + 1);
    if (o->steals) {
        config->leases =
            below(world, 8) ? LEASES / 2 + below(world, LEASES / 2 + 1) : 1 + below(world, LEASES);
        world->policy = (random_policy_t){.salt = rng_next(&world->rng), .leases = config->leases};
        rng_seed(&world->policy.rng, seed, 0x57ea1);
        config->policy = random_policy(&world->policy);
    }
    for (uint32_t c = 0; c < BUCKETS; c++) world->weights[0][c] = mix(c, 1);
    world->weights_known[0] = true;
    view_t first = {0};
    uint32_t n = 1 + below(world, o->small ? 2 : 5);
    for (uint32_t i = 0; i < n; i++) first.numbers[first.n++] = world_start_proc(world, false)->number;
    world_issue(world, &first);
}

static void play(world_t *world)
{
    const world_result_t *result = world->result;
    uint32_t acts = 0, rarely = world->options.small ? 3 + below(world, 16) : 10 + below(world, 40);
    while (!result->violation[0]) {
        if (++acts == ACTS_LIMIT) violated(world, "I5: does not end");
        if (below(world, rarely) == 0 && world_fault(world)) continue;
        if (below(world, 12) == 0 && world_manage(world)) continue;
        if (anyone_acts(world)) continue;
        world->thorough = true;
        bool acted = anyone_acts(world);
        world->thorough = false;
        if (acted || world_manage(world)) continue;
        bool more = false;
        for (int i = 0; i < 24 && !more; i++) more = world_manage(world) || (i < 6 && world_fault(world));
        if (!more) break;
    }
    if (!result->violation[0]) check_end(world);
}

void world_run(uint64_t seed, const world_options_t *options, world_result_t *result)
{
    world_t *world = calloc(1, sizeof *world);
    if (!world) abort();
    world->options = *options;
    world->result = result;
    start(world, seed);
    play(world);
    for (uint32_t i = 0; i < world->n_procs; i++) {
        result->stolen += elastic_stolen(world->procs[i].e);
        elastic_close(world->procs[i].e);
    }
    free(world);
}
