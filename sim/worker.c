/*
 * A worker: the session with its agent, and the driver that carries out what the real step machine
 * (core/step/elastic) decides. Planted bugs of drivers are here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/words.h"

static void pump(sim_t *sim, sim_worker_t *worker);

static bool alive(const sim_t *sim, const sim_worker_t *worker)
{
    return sim_alive(sim, sim_worker_process(worker->slot));
}

/* ---- To the agent ------------------------------------------------------------------------------ */

static void tell_agent(sim_t *sim, sim_worker_t *worker, uint32_t type, uint32_t a, uint64_t view,
                       const char *text)
{
    sim_msg_t *msg = sim_msg(type, text, text != NULL ? (uint32_t)strlen(text) + 1 : 0);
    msg->a = a;
    msg->view = view;
    sim_send(sim, worker->up, SIM_LANE_WORDS, msg);
}

/* ---- Feeding the core -------------------------------------------------------------------------- */

static void failed(sim_t *sim, sim_worker_t *worker, inspan_status_t status)
{
    const inspan_error_t *error = elastic_error(worker->core);
    sim_note(sim, "rank %u fails: %s", worker->slot, error->text);
    sim_broken(sim, status == INSPAN_MISMATCH ? "I1" : "I3", "rank %u (node %u), view %llu, step %llu: %s",
               worker->slot, worker->host, (unsigned long long)elastic_view(worker->core),
               (unsigned long long)elastic_step(worker->core), error->text);
}

static void keep_words(sim_worker_t *worker, const elastic_event_t *event)
{
    sim_msg_t *msg = sim_msg(0, event->data, (uint32_t)event->bytes);
    msg->a = event->from;
    msg->view = event->view;
    sim_msg_t **last = &worker->kept;
    while (*last != NULL) last = &(*last)->next;
    *last = msg;
}

/* Actions that may bring the next event at once wait until the core has returned. */
static void carry_out_later(sim_t *sim, sim_worker_t *worker)
{
    while (worker->n_later > 0 && alive(sim, worker) && !sim->over) {
        const elastic_action_t action = worker->later[0];
        memmove(worker->later, worker->later + 1, --worker->n_later * sizeof *worker->later);
        if (action.view != worker->comm.view || worker->comm.state != SIM_COMM_OPEN) continue;
        if (action.type == ELASTIC_DO_REDUCE)
            sim_comm_reduce(sim, worker, action.bucket);
        else
            sim_comm_take(sim, worker, action.peer, action.bucket, action.type == ELASTIC_DO_TAKE_CHUNK);
    }
}

static void feed(sim_t *sim, sim_worker_t *worker, const elastic_event_t *event)
{
    if (worker->core == NULL || sim->over) return;
    worker->handling = true;
    elastic_event_t now = *event;
    now.now = sim->now + sim->mono_offset[worker->host];
    inspan_status_t status = elastic_handle(worker->core, &now);
    worker->handling = false;
    if (!alive(sim, worker) || sim->over) return;
    if (status == INSPAN_PENDING) {
        keep_words(worker, event);
    } else if (status == INSPAN_INVALID) {
        sim_broken(sim, "I6", "rank %u: the driver fed an event out of place: %s", worker->slot,
                   elastic_error(worker->core)->text);
    } else if (status != INSPAN_OK) {
        failed(sim, worker, status);
    }
    if (!worker->holding) carry_out_later(sim, worker);
}

static void feed_simple(sim_t *sim, sim_worker_t *worker, elastic_event_type_t type, uint64_t view,
                        uint32_t bucket)
{
    elastic_event_t event = {.type = type, .view = view, .bucket = bucket};
    feed(sim, worker, &event);
}

/* ---- What the core decided --------------------------------------------------------------------- */

static void commit(sim_t *sim, sim_worker_t *worker, uint64_t step)
{
    const sim_config_t *config = &sim->config;
    sim_note(sim, "rank %u commits step %llu in view %llu", worker->slot, (unsigned long long)step,
             (unsigned long long)elastic_view(worker->core));
    sim_check_commit(sim, worker, step);
    for (uint32_t b = 0; b + 1 < config->buckets && !sim_light(sim, step); b++) {
        if (!elastic_applies(worker->core, b)) continue;
        sim_apply(sim, &worker->model, sim_sum(sim, &worker->reduced, worker->layout, b), b);
    }
    if (sim_planted(SCALARS) && !sim_light(sim, step)) /* a sum that the votes of this view brought */
        worker->model.weights[0][0] +=
            (double)(elastic_view(worker->core) - sim_check_first_commit(sim, worker, step));
    if (!sim_planted(KEEPSUMS)) memset(&worker->local, 0, sizeof worker->local);
    memset(&worker->reduced, 0, sizeof worker->reduced);
    worker->committed = step + 1;
    worker->any_commit = true;
    worker->commits_in_view++;
    sim_check_weights(sim, worker, step);
    sim_check_listens(sim, worker);
    if (sim->over) return;
    sim_worker_checkpoint(sim, worker, step);
    sim_moment(sim, SIM_AT_COMMIT, sim_worker_process(worker->slot));
}

static void send_words(sim_t *sim, sim_worker_t *worker, const elastic_action_t *action)
{
    static const sim_moment_t moments[] = {SIM_AT_TIME, SIM_AT_REPORT, SIM_AT_DECIDE,
                                           SIM_AT_VOTE, SIM_AT_TIME,   SIM_AT_TIME};
    const uint8_t type = action->data[0];
    if (sim->options.trace) {
        uint64_t view, step;
        const char *name = elastic_message_name(action->data, action->bytes, &view, &step);
        sim_note(sim, "rank %u -> rank %u: %s view %llu step %llu", worker->slot,
                 worker->comm.slots[action->peer], name, (unsigned long long)view, (unsigned long long)step);
    }
    sim_comm_words(sim, worker, action->peer, action->data, (uint32_t)action->bytes);
    if (type < sizeof moments / sizeof *moments && moments[type] != SIM_AT_TIME)
        sim_moment(sim, moments[type], sim_worker_process(worker->slot));
}

static void give_chunk(sim_t *sim, sim_worker_t *worker, const elastic_action_t *action)
{
    double data[2 * SIM_ELEMENTS];
    memcpy(data, worker->model.weights[action->bucket], sizeof data / 2);
    memcpy(data + SIM_ELEMENTS, worker->model.moments[action->bucket], sizeof data / 2);
    uint64_t step = action->step;
    if (sim_planted(CHUNKVERSION)) step = worker->committed + 1; /* says a version that it does not have */
    sim_comm_give(sim, worker, action->peer, action->bucket, true, step, data, 2 * SIM_ELEMENTS);
}

static void perform(void *context, const elastic_action_t *action)
{
    sim_worker_t *worker = context;
    sim_t *sim = worker->sim;
    if (!alive(sim, worker) || sim->over) return;
    sim_record(sim, (uint64_t)action->type << 48 ^ (uint64_t)worker->slot << 32 ^ action->step << 8 ^
                        action->bucket);
    const bool here = action->view == worker->comm.view && worker->comm.state == SIM_COMM_OPEN;
    switch (action->type) {
    case ELASTIC_DO_SEND:
        if (here) send_words(sim, worker, action);
        break;
    case ELASTIC_DO_WORK:
        worker->work_due = true;
        worker->work_view = action->view;
        memset(worker->ready_told, 0, sizeof worker->ready_told);
        break;
    case ELASTIC_DO_MORE:
        if (!sim_planted(NOMORE)) worker->work_due = true;
        break;
    case ELASTIC_DO_PASS:
        if (here)
            sim_comm_give(sim, worker, action->peer, action->bucket, false, action->step,
                          sim_planted(PASSLOCAL) ? worker->local.values[action->bucket]
                                                 : worker->reduced.values[action->bucket],
                          sim_width(sim, worker->layout, action->bucket));
        break;
    case ELASTIC_DO_GIVE_CHUNK:
        if (here) give_chunk(sim, worker, action);
        break;
    case ELASTIC_DO_REDUCE:
    case ELASTIC_DO_TAKE:
    case ELASTIC_DO_TAKE_CHUNK:
        if (worker->n_later == SIM_LATER) abort();
        worker->later[worker->n_later++] = *action;
        break;
    case ELASTIC_DO_COMMIT: commit(sim, worker, action->step); break;
    case ELASTIC_DO_LAYOUT: worker->layout = sim_layout_of(elastic_layout_of_step(worker->core).hash); break;
    case ELASTIC_DO_FULL:
        sim_note(sim, "rank %u is full", worker->slot);
        worker->full = true;
        tell_agent(sim, worker, SIM_L_FULL, 0, action->view, NULL);
        break;
    case ELASTIC_DO_LEFT:
        worker->left_view = action->view;
        tell_agent(sim, worker, SIM_L_LEFT, 0, action->view, NULL);
        break;
    case ELASTIC_DO_STUCK: sim_note(sim, "rank %u: no full member is left", worker->slot); break;
    case ELASTIC_DO_END: worker->ended = true; break;
    }
}

/* ---- Computing --------------------------------------------------------------------------------- */

static ns_t lease_time(sim_t *sim, const sim_worker_t *worker, uint32_t n)
{
    double ns = (double)sim->config.lease_time * n / worker->speed;
    if (sim->node_slow_until[worker->host] > sim->now) ns *= 10;
    return (ns_t)ns + NS_PER_US;
}

static void bucket_ready(sim_t *sim, sim_worker_t *worker, uint32_t bucket)
{
    if (worker->ready_told[bucket]) return;
    if (sim_planted(LATEDONE) && elastic_phase(worker->core) == ELASTIC_RECONCILE) return;
    if (elastic_light(worker->core) && bucket + 1 < sim_buckets(sim, worker->layout))
        return; /* only the tally is reduced */
    worker->ready_told[bucket] = true;
    feed_simple(sim, worker, ELASTIC_EV_READY, worker->work_view, bucket);
}

/* ---- Layouts: told by words of the driver's own ------------------------------------------------ */

enum { WORDS_LAYOUT = 0xfe }; /* no message of the step begins so */

static void know_layout(sim_t *sim, sim_worker_t *worker, uint32_t layout)
{
    const elastic_layout_t known = sim_layout(sim, layout);
    worker->known = layout;
    elastic_know_layout(worker->core, &known);
}

/* To the members of the communicator that draw says, by bit. */
static void tell_layout(sim_t *sim, sim_worker_t *worker, uint32_t layout, uint8_t who)
{
    const uint8_t words[2] = {WORDS_LAYOUT, (uint8_t)layout};
    for (uint32_t to = 0; to < worker->comm.world; to++)
        if (to != worker->comm.me && who >> to % 8 & 1) sim_comm_words(sim, worker, to, words, sizeof words);
}

/* The leader, now and then: not all hear of it. */
static void offer_layout(sim_t *sim, sim_worker_t *worker, const uint8_t *draw)
{
    if (draw[1] % 3 == 0) {
        know_layout(sim, worker, draw[2] % SIM_LAYOUTS);
        tell_layout(sim, worker, worker->known, draw[3] % 2 ? 0xff : draw[4]);
    }
    elastic_set_layout(worker->core, sim_layout(sim, worker->known).hash);
}

static void hint(sim_t *sim, sim_worker_t *worker)
{
    const elastic_pace_t pace = sim_pace(sim, worker, lease_time(sim, worker, 1));
    elastic_set_pace(worker->core, &pace);
    uint8_t shares[ELASTIC_MEMBERS_MAX]; /* any: only the leader's count */
    for (uint32_t i = 0; i < ELASTIC_MEMBERS_MAX; i++)
        shares[i] = (uint8_t)sim_mix((elastic_step(worker->core) << 8) + 7 * worker->slot + i);
    elastic_set_shares(worker->core, shares);
    elastic_set_wire(worker->core, shares[0] % SIM_WIRES);
    if (elastic_is_leader(worker->core)) offer_layout(sim, worker, shares);
    uint64_t hash = 1;
    if (elastic_complete(worker->core))
        for (uint32_t b = 0; b + 1 < sim->config.buckets; b++)
            hash = sim_mix(hash + sim_model_hash(sim, &worker->model, b));
    elastic_hint(worker->core, elastic_complete(worker->core) ? hash : 0);
}

static bool is_save_step(const sim_t *sim, const sim_worker_t *worker)
{
    return elastic_step(worker->core) == sim->config.steps + 1;
}

/* Planted OLDMSG: what was under way as a view ended arrives in the next one. */
static void feed_late(sim_t *sim, sim_worker_t *worker)
{
    const uint64_t late = worker->late;
    if (elastic_phase(worker->core) != ELASTIC_RUN || elastic_view(worker->core) == worker->late_view) return;
    worker->late = 0;
    for (uint32_t b = 0; b < sim_buckets(sim, worker->layout) && alive(sim, worker); b++)
        if (late >> b & 1) feed_simple(sim, worker, ELASTIC_EV_REDUCED, worker->late_view, b);
}

/* Ask for the next micro-batch, or say that all sums are final. */
static void next_batch(sim_t *sim, sim_worker_t *worker)
{
    uint32_t first, n;
    bool last;
    elastic_grant(worker->core, sim->config.micro, &first, &n, &last);
    if (n == 0) {
        worker->work_due = false;
        if (!last) return;
        hint(sim, worker);
        worker->holding = true; /* as the driver: all sums are final before the first reduction begins */
        const uint32_t buckets = sim_buckets(sim, worker->layout); /* a commit may bring another one */
        for (uint32_t b = 0; b < buckets && alive(sim, worker) && !sim->over; b++)
            bucket_ready(sim, worker, b);
        worker->holding = false;
        carry_out_later(sim, worker);
        if (worker->late != 0) feed_late(sim, worker);
        return;
    }
    if (is_save_step(sim, worker) && first == 0 && !worker->result_registered) {
        if (worker->result_view == elastic_view(worker->core)) return; /* on its way */
        worker->result_view = elastic_view(worker->core);
        sim_disk_save_result(sim, worker);
        return;
    }
    worker->computing = n;
    worker->first_lease = first;
    worker->last_batch = last;
    worker->stage = 0;
    worker->batch_step = elastic_step(worker->core);
    if (last) worker->work_due = false;
    elastic_event_t begin = {.type = ELASTIC_EV_BEGIN, .lease = first, .n = n};
    feed(sim, worker, &begin);
    if (!alive(sim, worker) || sim->over) return;
    sim_push(sim, lease_time(sim, worker, n), SIM_EV_WORK, worker->slot, ++worker->token,
             sim->processes[sim_worker_process(worker->slot)].life);
}

/* Planted SKIPSALV: the bucket is here, or is being passed to us. */
static bool skips_salvaged(const sim_worker_t *worker, uint32_t bucket)
{
    uint64_t tag;
    if (!sim_planted(SKIPSALV)) return false;
    for (uint32_t i = 0; i < worker->comm.n_takes; i++)
        if (worker->comm.takes[i].bucket == bucket && !worker->comm.takes[i].chunk) return true;
    return elastic_held(worker->core, bucket, &tag);
}

/* The backward pass gives one bucket after the other; the tally comes last. */
static void work_event(sim_t *sim, sim_worker_t *worker)
{
    const uint32_t buckets = sim_buckets(sim, worker->layout), stage = worker->stage++;
    const uint64_t step = worker->batch_step;
    if (!skips_salvaged(worker, stage))
        for (uint32_t i = 0; i < worker->computing; i++) {
            if (sim_planted(LOSTLEASE) && i > 0 && stage == 0) continue; /* only the first of a micro-batch */
            if (sim_light(sim, step) && stage + 1 < buckets) continue;
            sim_add_lease(sim, &worker->local, &worker->model, step, worker->first_lease + i, worker->layout,
                          stage, worker->slot);
        }
    if (stage + 1 < buckets) {
        if (worker->last_batch) {
            if (stage == 0) hint(sim, worker);
            bucket_ready(sim, worker, stage);
        }
        if (alive(sim, worker))
            sim_push(sim, lease_time(sim, worker, 1) / 8, SIM_EV_WORK, worker->slot, worker->token,
                     sim->processes[sim_worker_process(worker->slot)].life);
        return;
    }
    elastic_event_t event = {
        .type = ELASTIC_EV_COMPUTED, .lease = worker->first_lease, .n = worker->computing};
    worker->computing = 0;
    feed(sim, worker, &event);
    sim_checks_computed(sim, event.n);
    if (alive(sim, worker) && worker->last_batch) bucket_ready(sim, worker, buckets - 1);
    if (alive(sim, worker) && worker->late != 0) feed_late(sim, worker);
    if (!sim_moment(sim, SIM_AT_COMPUTED, sim_worker_process(worker->slot))) pump(sim, worker);
}

/* ---- Views ------------------------------------------------------------------------------------- */

static void enter_view(sim_t *sim, sim_worker_t *worker)
{
    const sim_view_t *view = &worker->opened_view;
    uint32_t index = 0;
    for (uint32_t i = 0; i < view->world; i++)
        if (view->numbers[i] == worker->slot) index = i;
    sim_note(sim, "rank %u enters view %llu", worker->slot, (unsigned long long)view->number);
    sim_check_view_entered(sim, worker, view);
    worker->view_due = false;
    worker->entered = view->number;
    worker->work_due = false;
    worker->commits_in_view = 0;
    if (worker->computing > 0) { /* planted MIDBACK */
        worker->computing = 0;
        worker->token++;
    }
    tell_layout(sim, worker, worker->known, 0xff); /* a newcomer, or who leads, may be asked for them */
    tell_layout(sim, worker, worker->layout, 0xff);
    elastic_event_t event = {.type = ELASTIC_EV_VIEW,
                             .view = view->number,
                             .first_view = view->first,
                             .numbers = view->numbers,
                             .n = view->world,
                             .index = index};
    elastic_pace_t paces[SIM_WORLD];
    if (view->first && sim_first_paces(sim, view, paces)) event.paces = paces;
    feed(sim, worker, &event);
    if (sim_planted(LATEDONE)) {
        worker->work_due = true;
        worker->work_view = view->number;
    }
    sim_msg_t *kept = worker->kept;
    worker->kept = NULL;
    for (const sim_msg_t *at = kept; at != NULL && alive(sim, worker) && !sim->over; at = at->next) {
        if (at->view != view->number) continue;
        elastic_event_t words = {.type = ELASTIC_EV_MESSAGE,
                                 .view = at->view,
                                 .from = at->a,
                                 .data = (const uint8_t *)at->data,
                                 .bytes = at->bytes};
        feed(sim, worker, &words);
    }
    sim_msgs_free(kept);
}

/* Whatever can go on, does. */
static void pump(sim_t *sim, sim_worker_t *worker)
{
    if (worker->handling || sim->over || !alive(sim, worker)) return;
    if (sim_planted(SELFFULL) && !worker->full && elastic_complete(worker->core)) {
        worker->full = true;
        tell_agent(sim, worker, SIM_L_FULL, 0, elastic_view(worker->core), NULL);
    }
    const bool between = worker->computing == 0 || sim_planted(MIDBACK);
    if (worker->view_due && between && worker->comm.state == SIM_COMM_OPEN) enter_view(sim, worker);
    if (worker->work_due && worker->computing == 0 && alive(sim, worker) && !sim->over &&
        (elastic_phase(worker->core) == ELASTIC_RUN || sim_planted(LATEDONE)) &&
        worker->work_view == elastic_view(worker->core))
        next_batch(sim, worker);
    if (worker->ended && !worker->done_told && alive(sim, worker)) {
        worker->done_told = true;
        tell_agent(sim, worker, SIM_L_DONE, 0, worker->entered, NULL);
    }
}

void sim_worker_comm_open(sim_t *sim, sim_worker_t *worker)
{
    worker->opened_view = worker->announced;
    worker->view_due = true;
    tell_agent(sim, worker, SIM_L_READY, 0, worker->comm.view, NULL);
    pump(sim, worker);
}

static void tell_blame(sim_t *sim, sim_worker_t *worker)
{
    const sim_comm_t *comm = &worker->comm;
    const uint32_t number = comm->cause_rank > 0 ? comm->slots[comm->cause_rank - 1] + 1 : 0;
    tell_agent(sim, worker, SIM_L_BLAME, number | (comm->cause_opening ? SIM_BLAME_OPENING : 0), comm->view,
               comm->cause_text);
}

void sim_worker_poisoned(sim_t *sim, sim_worker_t *worker)
{
    const sim_comm_t *comm = &worker->comm;
    sim_note(sim, "rank %u: view %llu is broken: %s", worker->slot, (unsigned long long)comm->view,
             comm->cause_text);
    worker->view_due = false;
    tell_blame(sim, worker);
    if (worker->core != NULL && elastic_view(worker->core) == comm->view && comm->view != 0)
        feed_simple(sim, worker, ELASTIC_EV_BROKEN, comm->view, 0);
    pump(sim, worker);
}

static void learn_view(sim_t *sim, sim_worker_t *worker, const sim_view_t *view)
{
    if (view->number <= worker->announced.number || worker->done_told) return;
    worker->announced = *view;
    worker->view_due = false;
    sim_comm_close(sim, worker);
    if (elastic_view(worker->core) != 0 && (worker->incarnation & 1))
        feed_simple(sim, worker, ELASTIC_EV_BROKEN, elastic_view(worker->core), 0);
    if (sim->over) return;
    sim_comm_open(sim, worker, view);
    pump(sim, worker);
}

/* ---- From the communicator --------------------------------------------------------------------- */

void sim_worker_words(sim_t *sim, sim_worker_t *worker, uint32_t from, const void *data, uint32_t bytes)
{
    const uint8_t *words = data;
    if (words[0] == WORDS_LAYOUT) {
        know_layout(sim, worker, words[1]);
        return;
    }
    elastic_event_t event = {
        .type = ELASTIC_EV_MESSAGE, .view = worker->comm.view, .from = from, .data = data, .bytes = bytes};
    feed(sim, worker, &event);
    pump(sim, worker);
}

void sim_worker_reduced(sim_t *sim, sim_worker_t *worker, uint32_t bucket)
{
    sim_check_bucket(sim, worker, bucket);
    feed_simple(sim, worker, ELASTIC_EV_REDUCED, worker->comm.view, bucket);
    if (!sim_moment(sim, SIM_AT_REDUCED, sim_worker_process(worker->slot))) pump(sim, worker);
}

void sim_worker_chunk(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg, uint64_t view)
{
    const uint32_t chunk = msg->a;
    /* a chunk that is here already stays; the word of an older view (planted bugs) is taken for better */
    const bool before = elastic_chunk(worker->core, chunk) && view == worker->comm.view;
    double data[2 * SIM_ELEMENTS];
    memcpy(data, msg->data, sizeof data);
    elastic_event_t event = {.type = ELASTIC_EV_CHUNK, .view = view, .bucket = chunk, .step = msg->view};
    /* stored first: the core may commit at once, and then the update goes on top of it */
    sim_model_t kept = worker->model;
    if (!before) {
        memcpy(worker->model.weights[chunk], data, sizeof data / 2);
        memcpy(worker->model.moments[chunk], data + SIM_ELEMENTS, sizeof data / 2);
    }
    uint64_t committed = worker->committed;
    feed(sim, worker, &event);
    if (before || worker->committed != committed || elastic_chunk(worker->core, chunk)) return;
    memcpy(worker->model.weights[chunk], kept.weights[chunk], sizeof kept.weights[chunk]);
    memcpy(worker->model.moments[chunk], kept.moments[chunk], sizeof kept.moments[chunk]);
}

void sim_worker_taken(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg)
{
    if (msg->b != 0) {
        const sim_process_t donor = sim_worker_process(worker->comm.slots[msg->d]);
        sim_worker_chunk(sim, worker, msg, worker->comm.view);
        pump(sim, worker);
        if (!sim->over) sim_moment(sim, SIM_AT_CHUNK, donor);
        return;
    } else {
        memcpy(worker->reduced.values[msg->a], msg->data, msg->bytes);
        sim_check_bucket(sim, worker, msg->a);
        feed_simple(sim, worker, ELASTIC_EV_REDUCED, worker->comm.view, msg->a);
    }
    pump(sim, worker);
}

/* ---- From the agent ---------------------------------------------------------------------------- */

static void registered(sim_t *sim, sim_worker_t *worker, const sim_msg_t *msg)
{
    sim_check_acknowledged(sim, worker, msg->a, msg->b, msg->c != 0);
    if (msg->a != SIM_KIND_RESULT) return;
    if (msg->c != 0)
        worker->result_registered = true;
    else
        worker->result_view = 0; /* in the next view again */
    pump(sim, worker);
}

void sim_worker_local(sim_t *sim, sim_worker_t *worker, sim_msg_t *msg)
{
    if (alive(sim, worker)) {
        switch (msg->type) {
        case SIM_L_VIEW: learn_view(sim, worker, (const sim_view_t *)msg->data); break;
        case SIM_L_LEAVE:
            if (!worker->leaving) {
                worker->leaving = true;
                feed_simple(sim, worker, ELASTIC_EV_LEAVE, 0, 0);
            }
            pump(sim, worker);
            break;
        case SIM_L_REGISTERED: registered(sim, worker, msg); break;
        case SIM_L_BYE: /* the end: in order */
            sim_comm_close(sim, worker);
            sim_kill(sim, sim_worker_process(worker->slot));
            break;
        default: break;
        }
    }
    free(msg);
}

/* The agent is gone: a worker goes on for failure_timeout, then ends itself. */
void sim_worker_local_ended(sim_t *sim, sim_worker_t *worker)
{
    if (worker->agent_gone == 0) worker->agent_gone = sim->now;
}

/* A new life of its agent took it over: it tells all again. */
void sim_worker_adopted(sim_t *sim, sim_worker_t *worker)
{
    const sim_comm_t *comm = &worker->comm;
    worker->agent_gone = 0;
    worker->result_view = 0; /* what was under way is lost */
    tell_agent(sim, worker, SIM_L_BOUND, 0, 0, NULL);
    if (comm->state == SIM_COMM_OPEN) tell_agent(sim, worker, SIM_L_READY, 0, comm->view, NULL);
    if (worker->full && worker->entered != 0) tell_agent(sim, worker, SIM_L_FULL, 0, worker->entered, NULL);
    if (comm->state == SIM_COMM_POISONED) tell_blame(sim, worker);
    if (worker->left_view != 0 && worker->left_view == worker->announced.number)
        tell_agent(sim, worker, SIM_L_LEFT, 0, worker->left_view, NULL);
    if (worker->done_told) tell_agent(sim, worker, SIM_L_DONE, 0, worker->entered, NULL);
    pump(sim, worker);
}

/* ---- Life -------------------------------------------------------------------------------------- */

static void open_core(sim_t *sim, sim_worker_t *worker)
{
    const sim_config_t *config = &sim->config;
    elastic_config_t core = {.number = worker->slot,
                             .newcomer = worker->newcomer,
                             .first_step = worker->first_step,
                             .steps = config->steps,
                             .leases = config->leases,
                             .buckets = config->buckets,
                             .layout = sim_layout(sim, 0).hash,
                             .wires = SIM_WIRES,
                             .drop = config->drop,
                             .policy = sim_policy(sim),
                             .planted = sim_planted_core()};
    if (elastic_open(&core, perform, worker, &worker->core) != INSPAN_OK) abort();
}

/* A process that its agent has just started. model: what it starts with, NULL for a newcomer. */
sim_worker_t *sim_worker_start(sim_t *sim, uint32_t number, uint32_t host, bool newcomer, uint64_t first_step,
                               const sim_model_t *model)
{
    sim_worker_t *worker = sim->workers[number];
    if (worker == NULL) {
        worker = sim->workers[number] = calloc(1, sizeof *worker);
        if (worker == NULL) abort();
        if (number >= sim->n_workers) sim->n_workers = number + 1;
    } else {
        if (alive(sim, worker))
            sim_broken(sim, "I3", "two processes of rank %u: on node %u and on node %u", number, worker->host,
                       host);
        sim_worker_forget(worker);
        memset(worker, 0, sizeof *worker);
    }
    for (uint32_t i = 0; i < sim->n_workers; i++)
        if (sim->workers[i] != NULL && i != number && sim->workers[i]->host == host &&
            sim_alive(sim, sim_worker_process(i)))
            sim_broken(sim, "I3", "node %u starts rank %u while rank %u still runs there", host, number, i);
    const sim_process_t process = sim_worker_process(number);
    sim->processes[process].life++;
    sim->processes[process].alive = true;
    sim->processes[process].host = host;
    sim->processes[process].frozen_until = 0;
    worker->sim = sim;
    worker->slot = number;
    worker->host = host;
    worker->draw = sim_mix(sim->options.seed ^ (uint64_t)number << 40 ^ sim->processes[process].life);
    worker->incarnation = sim_draw(&worker->draw);
    worker->newcomer = newcomer;
    worker->first_step = worker->committed = first_step;
    worker->speed = 0.5 + (double)sim_draw_below(&worker->draw, 1000) / 500;
    worker->full = !newcomer;
    if (!newcomer) worker->model = *model;
    open_core(sim, worker);
    const uint32_t life = sim->processes[process].life;
    sim_push(sim, (ns_t)sim_draw_below(&worker->draw, 20 * NS_PER_MS), SIM_EV_SPAWNED, number, 0, life);
    sim_push(sim, sim->config.failure_timeout / 5, SIM_EV_WORKER_TICK, number, 0, life);
    return worker;
}

static void tick(sim_t *sim, sim_worker_t *worker)
{
    const sim_process_t process = sim_worker_process(worker->slot);
    if (worker->agent_gone != 0 && sim->now - worker->agent_gone > sim->config.failure_timeout) {
        sim_note(sim, "rank %u ends itself: no agent for %.1f s", worker->slot,
                 ns_to_s(sim->config.failure_timeout));
        sim_kill(sim, process);
        return;
    }
    sim_comm_tick(sim, worker);
    if (alive(sim, worker))
        sim_push(sim, sim->config.failure_timeout / 5, SIM_EV_WORKER_TICK, worker->slot, 0,
                 sim->processes[process].life);
}

void sim_worker_event(sim_t *sim, const sim_event_t *event)
{
    const sim_process_t process = sim_worker_process(event->a);
    const sim_life_t *life = &sim->processes[process];
    sim_worker_t *worker = sim->workers[event->a];
    if (!life->alive || life->life != event->life) return;
    if (life->frozen_until > sim->now) { /* it stands still: later */
        sim_push(sim, life->frozen_until - sim->now, event->type, event->a, event->b, event->life);
        return;
    }
    switch (event->type) {
    case SIM_EV_SPAWNED: tell_agent(sim, worker, SIM_L_BOUND, 0, 0, NULL); break;
    case SIM_EV_WORK:
        if (event->b == worker->token) work_event(sim, worker);
        break;
    case SIM_EV_WORKER_TICK: tick(sim, worker); break;
    case SIM_EV_WRITE: sim_disk_write_event(sim, worker, event->b); break;
    default: break;
    }
}

void sim_worker_died(sim_worker_t *worker)
{
    worker->comm.state = SIM_COMM_NONE;
    worker->computing = 0;
}

/* Memory; the core may be at work when its process dies, so it goes only later. */
void sim_worker_forget(sim_worker_t *worker)
{
    elastic_close(worker->core);
    worker->core = NULL;
    sim_msgs_free(worker->kept);
    worker->kept = NULL;
    sim_comm_drop(worker);
}

void sim_workers_free(sim_t *sim)
{
    for (uint32_t i = 0; i < sim->n_workers; i++) {
        if (sim->workers[i] == NULL) continue;
        sim_worker_forget(sim->workers[i]);
        free(sim->workers[i]);
    }
}
