#include "core/step/step.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"

#define LEADER 0u /* the lowest rank of the view */

inspan_status_t step_init(step_machine_t *machine, uint32_t rank, uint32_t world, uint64_t view,
                          uint64_t layout, uint32_t buckets, uint64_t first_step, step_do_fn perform,
                          void *context)
{
    if (world == 0 || world > STEP_MEMBERS_MAX || rank >= world || buckets == 0 || buckets > STEP_BUCKETS_MAX)
        return INSPAN_INVALID;
    memset(machine, 0, sizeof *machine);
    machine->rank = rank;
    machine->world = world;
    machine->view = view;
    machine->layout = layout;
    machine->buckets = buckets;
    machine->step = first_step;
    machine->perform = perform;
    machine->context = context;
    return INSPAN_OK;
}

static void act(step_machine_t *machine, const step_action_t *action)
{
    machine->perform(machine->context, action);
}

static inspan_status_t out_of_place(step_machine_t *machine, const char *what)
{
    static const char *const phases[] = {"idle", "compute", "reduce", "voted", "failed"};
    return error_set(&machine->error, INSPAN_INVALID, "%s in phase %s of step %" PRIu64, what,
                     phases[machine->phase], machine->step);
}

static inspan_status_t begin(step_machine_t *machine, uint64_t step)
{
    if (machine->phase != STEP_IDLE) return out_of_place(machine, "begin");
    if (step != machine->step)
        return error_set(&machine->error, INSPAN_INVALID,
                         "begin of step %" PRIu64 ", the next one is %" PRIu64, step, machine->step);
    memset(machine->ready, 0, machine->buckets * sizeof machine->ready[0]);
    memset(machine->reduced, 0, machine->buckets * sizeof machine->reduced[0]);
    machine->next_bucket = 0;
    machine->n_reduced = 0;
    machine->phase = STEP_COMPUTE;
    return INSPAN_OK;
}

static inspan_status_t ready(step_machine_t *machine, uint32_t bucket)
{
    if (machine->phase != STEP_REDUCE) return out_of_place(machine, "bucket ready");
    if (bucket >= machine->buckets || machine->ready[bucket])
        return error_set(&machine->error, INSPAN_INVALID, "bucket %u ready twice or not one of %u", bucket,
                         machine->buckets);
    machine->ready[bucket] = true;
    while (machine->next_bucket < machine->buckets && machine->ready[machine->next_bucket]) {
        step_action_t reduce = {
            .type = STEP_DO_REDUCE, .bucket = machine->next_bucket++, .step = machine->step};
        act(machine, &reduce);
    }
    return INSPAN_OK;
}

static void commit(step_machine_t *machine)
{
    step_action_t done = {.type = STEP_DO_COMMIT, .step = machine->step};
    machine->phase = STEP_IDLE;
    machine->step++;
    act(machine, &done);
}

/* C1: with the vote of every member, its own included, the leader tells all and commits. */
static void commit_if_all_voted(step_machine_t *machine)
{
    if (machine->phase != STEP_VOTED) return;
    for (uint32_t rank = 0; rank < machine->world; rank++)
        if (machine->voted[rank] != machine->step + 1) return;
    for (uint32_t rank = 0; rank < machine->world; rank++) {
        if (rank == machine->rank) continue;
        step_action_t tell = {.type = STEP_DO_SEND,
                              .to = rank,
                              .step = machine->step,
                              .message = {STEP_COMMIT, machine->view, machine->step, machine->layout}};
        act(machine, &tell);
    }
    commit(machine);
}

static inspan_status_t reduced(step_machine_t *machine, uint32_t bucket)
{
    if (machine->phase != STEP_REDUCE) return out_of_place(machine, "bucket reduced");
    if (bucket >= machine->next_bucket || machine->reduced[bucket])
        return error_set(&machine->error, INSPAN_INVALID, "bucket %u reduced twice or never started", bucket);
    machine->reduced[bucket] = true;
    if (++machine->n_reduced < machine->buckets) return INSPAN_OK;
    machine->phase = STEP_VOTED;
    if (machine->rank == LEADER) {
        machine->voted[LEADER] = machine->step + 1;
        commit_if_all_voted(machine);
    } else {
        step_action_t vote = {.type = STEP_DO_SEND,
                              .to = LEADER,
                              .step = machine->step,
                              .message = {STEP_VOTE, machine->view, machine->step, machine->layout}};
        act(machine, &vote);
    }
    return INSPAN_OK;
}

static inspan_status_t broken(step_machine_t *machine, uint32_t from, const step_message_t *message,
                              const char *why)
{
    machine->phase = STEP_FAILED;
    return error_set(&machine->error, INSPAN_MISMATCH,
                     "rank %u sent a %s of step %" PRIu64 ", layout %016" PRIx64
                     ", while rank %u is at step %" PRIu64 ", layout %016" PRIx64 ": %s",
                     from, message->type == STEP_VOTE ? "vote" : "commit", message->step, message->layout,
                     machine->rank, machine->step, machine->layout, why);
}

static inspan_status_t received(step_machine_t *machine, uint32_t from, const step_message_t *message)
{
    if (message->view < machine->view) return INSPAN_OK; /* V1 */
    if (from >= machine->world || message->view > machine->view)
        return broken(machine, from, message, "the view is not this one");
    if (message->layout != machine->layout)
        return broken(machine, from, message, "the bucket layouts differ");
    if (message->type == STEP_VOTE) {
        /* A vote needs the leader's own contribution and the commit before it: never ahead, never behind. */
        if (machine->rank != LEADER || from == LEADER || message->step != machine->step)
            return broken(machine, from, message, "a vote goes to the leader and is for its step");
        if (machine->voted[from] == message->step + 1)
            return broken(machine, from, message, "it voted already");
        machine->voted[from] = message->step + 1;
        commit_if_all_voted(machine);
        return INSPAN_OK;
    }
    if (from != LEADER || machine->phase != STEP_VOTED || message->step != machine->step)
        return broken(machine, from, message, "a commit needs the vote of every member");
    commit(machine);
    return INSPAN_OK;
}

inspan_status_t step_handle(step_machine_t *machine, const step_event_t *event)
{
    if (machine->phase == STEP_FAILED) return machine->error.status;
    switch (event->type) {
    case STEP_EV_BEGIN: return begin(machine, event->step);
    case STEP_EV_SEAL:
        if (machine->phase != STEP_COMPUTE) return out_of_place(machine, "seal");
        machine->phase = STEP_REDUCE;
        return INSPAN_OK;
    case STEP_EV_READY: return ready(machine, event->bucket);
    case STEP_EV_REDUCED: return reduced(machine, event->bucket);
    case STEP_EV_MESSAGE: return received(machine, event->from, &event->message);
    case STEP_EV_FAIL:
        machine->phase = STEP_FAILED;
        return error_set(&machine->error, INSPAN_ABORTED, "step %" PRIu64 " was given up", machine->step);
    }
    return INSPAN_INVALID;
}

static void put_u64(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_u64(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | from[i];
    return value;
}

void step_message_encode(const step_message_t *message, uint8_t bytes[STEP_MESSAGE_BYTES])
{
    put_u64(bytes, (uint64_t)message->type);
    put_u64(bytes + 8, message->view);
    put_u64(bytes + 16, message->step);
    put_u64(bytes + 24, message->layout);
}

inspan_status_t step_message_decode(const uint8_t *bytes, size_t n, step_message_t *message)
{
    if (n != STEP_MESSAGE_BYTES) return INSPAN_CORRUPT;
    uint64_t type = get_u64(bytes);
    if (type != STEP_VOTE && type != STEP_COMMIT) return INSPAN_CORRUPT;
    message->type = (step_message_type_t)type;
    message->view = get_u64(bytes + 8);
    message->step = get_u64(bytes + 16);
    message->layout = get_u64(bytes + 24);
    return INSPAN_OK;
}

void step_share(uint64_t step, uint64_t batch, uint32_t rank, uint32_t world, uint64_t *first, uint64_t *n)
{
    uint64_t from = (uint64_t)((unsigned __int128)batch * rank / world);
    uint64_t to = (uint64_t)((unsigned __int128)batch * (rank + 1) / world);
    *first = step * batch + from;
    *n = to - from;
}
