#include "core/step/elastic_rig_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void perform(void *context, const elastic_action_t *action)
{
    rig_member_t *member = context;
    rig_t *rig = member->rig;
    assert_true(rig->n_done < RIG_DONE);
    rig->done[rig->n_done++] = (rig_action_t){member->number, *action};
    if (action->type == ELASTIC_DO_REDUCE) {
        uint64_t *started = &rig->started[action->bucket], *step = &rig->started_step[action->bucket];
        *started = (*step == action->step ? *started : 0) | 1ull << member->number;
        *step = action->step;
    }
    if (action->type != ELASTIC_DO_SEND) return;
    assert_true(rig->n_queue < 4 * RIG_MEMBERS && action->view == rig->view);
    rig->queue[rig->n_queue].from = member->number;
    rig->queue[rig->n_queue].to = rig->numbers[action->peer];
    rig->queue[rig->n_queue].bytes = action->bytes;
    memcpy(rig->queue[rig->n_queue++].data, action->data, action->bytes);
}

rig_t *rig_open(uint32_t leases, uint32_t buckets, uint64_t steps)
{
    rig_t *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    rig->config = (elastic_config_t){.steps = steps, .leases = leases, .buckets = buckets, .layout = 0xabc};
    return rig;
}

void rig_close(rig_t *rig)
{
    for (uint32_t i = 0; i < RIG_MEMBERS; i++) elastic_close(rig->members[i].e);
    free(rig);
}

void rig_join(rig_t *rig, uint32_t number, bool newcomer)
{
    elastic_config_t config = rig->config;
    config.number = number;
    config.newcomer = newcomer;
    rig->members[number] = (rig_member_t){.rig = rig, .number = number};
    assert_int_equal(elastic_open(&config, perform, &rig->members[number], &rig->members[number].e),
                     INSPAN_OK);
}

elastic_t *rig_member(rig_t *rig, uint32_t number)
{
    return rig->members[number].e;
}

static uint32_t index_of(const rig_t *rig, uint32_t number)
{
    uint32_t i = 0;
    while (i < rig->n && rig->numbers[i] != number) i++;
    return i;
}

void rig_view(rig_t *rig, bool first, uint32_t n, const uint32_t *numbers)
{
    rig->view++;
    rig->n = n;
    rig->n_queue = 0; /* each view has a communicator of its own */
    rig->seen = rig->n_done;
    memset(rig->started, 0, sizeof rig->started);
    memcpy(rig->numbers, numbers, n * sizeof *numbers);
    for (uint32_t i = 0; i < n; i++)
        if (rig->members[numbers[i]].e)
            rig_ok(rig, numbers[i],
                   (elastic_event_t){.type = ELASTIC_EV_VIEW,
                                     .view = rig->view,
                                     .first_view = first,
                                     .numbers = numbers,
                                     .n = n,
                                     .index = i});
}

rig_t *rig_first(uint32_t n, uint32_t leases, uint32_t buckets, uint64_t steps)
{
    uint32_t numbers[RIG_MEMBERS] = {0};
    rig_t *rig = rig_open(leases, buckets, steps);
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = i;
        rig_join(rig, i, false);
    }
    rig_view(rig, true, n, numbers);
    return rig;
}

inspan_status_t rig_feed(rig_t *rig, uint32_t number, elastic_event_t event)
{
    event.now = ++rig->now;
    return elastic_handle(rig->members[number].e, &event);
}

void rig_ok(rig_t *rig, uint32_t number, elastic_event_t event)
{
    inspan_status_t status = rig_feed(rig, number, event);
    if (status != INSPAN_OK) fail_msg("rank %u: %s", number, elastic_error(rig->members[number].e)->text);
}

inspan_status_t rig_say(rig_t *rig, uint32_t to, uint32_t from, const elastic_message_t *message)
{
    uint8_t bytes[ELASTIC_MESSAGE_MAX];
    elastic_event_t event = {.type = ELASTIC_EV_MESSAGE, .from = index_of(rig, from), .data = bytes};
    event.bytes = elastic_message_encode(message, bytes);
    return rig_feed(rig, to, event);
}

elastic_message_t rig_message(rig_t *rig, elastic_message_type_t type, uint64_t step)
{
    elastic_message_t m = {.type = type,
                           .view = rig->view,
                           .step = step,
                           .layout = rig->config.layout,
                           .leases = rig->config.leases,
                           .buckets = rig->config.buckets,
                           .members = rig->n};
    m.full = all_members(rig->n);
    memset(m.plan, NOBODY, sizeof m.plan);
    if (type == ELASTIC_REPORT) m.role = ELASTIC_FULL;
    elastic_table(m.full, set_first(m.leases), false, m.owner);
    return m;
}

void rig_reduced(rig_t *rig, uint32_t number, uint32_t bucket)
{
    rig_ok(rig, number, (elastic_event_t){.type = ELASTIC_EV_REDUCED, .view = rig->view, .bucket = bucket});
}

void rig_compute(rig_t *rig, uint32_t number)
{
    elastic_t *e = rig->members[number].e;
    uint32_t first, n;
    bool last;
    elastic_grant(e, ELASTIC_LEASES_MAX, &first, &n, &last);
    for (; !last; elastic_grant(e, ELASTIC_LEASES_MAX, &first, &n, &last)) {
        if (n > 0) rig_ok(rig, number, computed(first, n));
        assert_true(n > 0 || rig->n_queue > 0); /* a claim is under way, or its answer */
        if (n == 0) rig_deliver(rig);
    }
    const uint32_t buckets = elastic_layout_of_step(e).buckets;
    for (uint32_t b = elastic_light(e) ? buckets - 1 : 0; b < buckets; b++)
        if (!elastic_has(&e->ready, b) && !elastic_held(e, b, NULL))
            rig_ok(rig, number, (elastic_event_t){.type = ELASTIC_EV_READY, .view = rig->view, .bucket = b});
    if (n > 0) rig_ok(rig, number, (elastic_event_t){.type = ELASTIC_EV_COMPUTED, .lease = first, .n = n});
}

void rig_deliver(rig_t *rig)
{
    while (rig->n_queue > 0) {
        uint32_t from = index_of(rig, rig->queue[0].from), to = rig->queue[0].to;
        static uint8_t data[ELASTIC_MESSAGE_MAX];
        elastic_event_t event = {
            .type = ELASTIC_EV_MESSAGE, .from = from, .data = data, .bytes = rig->queue[0].bytes};
        memcpy(data, rig->queue[0].data, event.bytes);
        memmove(&rig->queue[0], &rig->queue[1], --rig->n_queue * sizeof rig->queue[0]);
        if (rig->members[to].e) rig_ok(rig, to, event);
    }
}

static bool all_started(const rig_t *rig, const elastic_action_t *action)
{
    return rig->started_step[action->bucket] == action->step &&
           __builtin_popcountll(rig->started[action->bucket]) == (int)rig->n;
}

void rig_round(rig_t *rig, bool chunks)
{
    for (uint32_t i = 0; i < rig->n; i++) {
        const elastic_t *e = rig->members[rig->numbers[i]].e;
        if (e && e->phase == ELASTIC_RUN && !elastic_voted(e) && !elastic_holds_all(e) && e->next_reduce == 0)
            rig_compute(rig, rig->numbers[i]);
    }
    for (uint32_t i = rig->seen, n = rig->n_done; i < n; i++) {
        rig_action_t done = rig->done[i];
        elastic_event_t event = {.type = ELASTIC_EV_REDUCED,
                                 .view = rig->view,
                                 .bucket = done.action.bucket,
                                 .step = done.action.step};
        if (done.action.view != rig->view || done.action.step != elastic_step(rig->members[done.number].e))
            continue;
        bool held = elastic_held(rig->members[done.number].e, event.bucket, NULL);
        if (done.action.type == ELASTIC_DO_REDUCE && !held && all_started(rig, &done.action))
            rig_ok(rig, done.number, event);
        if (done.action.type == ELASTIC_DO_TAKE && !held) rig_ok(rig, done.number, event);
        event.type = ELASTIC_EV_CHUNK;
        if (done.action.type == ELASTIC_DO_TAKE_CHUNK && chunks &&
            !elastic_chunk(rig->members[done.number].e, event.bucket))
            rig_ok(rig, done.number, event);
    }
    rig_deliver(rig);
}

void rig_run_to(rig_t *rig, uint64_t step)
{
    for (int round = 0; round < 64; round++) {
        bool all = true;
        for (uint32_t i = 0; i < rig->n; i++)
            all = all && elastic_step(rig_member(rig, rig->numbers[i])) >= step;
        if (all) return;
        rig_round(rig, true);
    }
    fail_msg("step %u is not reached", (unsigned)step);
}

uint32_t rig_count(const rig_t *rig, uint32_t number, elastic_action_type_t type)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rig->n_done; i++)
        n += rig->done[i].number == number && rig->done[i].action.type == type;
    return n;
}

const elastic_action_t *rig_last(const rig_t *rig, uint32_t number, elastic_action_type_t type)
{
    for (uint32_t i = rig->n_done; i-- > 0;)
        if (rig->done[i].number == number && rig->done[i].action.type == type) return &rig->done[i].action;
    return NULL;
}

void assert_set(elastic_set_t set, uint64_t low)
{
    assert_int_equal(set.words[0], low);
    assert_int_equal(set.words[1] | set.words[2] | set.words[3], 0);
}

elastic_event_t computed(uint32_t lease, uint32_t n)
{
    return (elastic_event_t){.type = ELASTIC_EV_COMPUTED, .lease = lease, .n = n};
}
