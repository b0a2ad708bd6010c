#include "core/step/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define WORLD_MAX  7
#define BUCKET_MAX 5
#define QUEUE_MAX  4096

/* A whole cluster in one thread: messages and reductions are delivered in an order drawn from a seed. */
typedef struct wire_item {
    uint32_t from, to;
    uint8_t bytes[STEP_MESSAGE_BYTES];
} wire_item_t;

typedef struct cluster {
    uint32_t world, buckets;
    step_machine_t members[WORLD_MAX];
    struct member_context {
        struct cluster *cluster;
        uint32_t rank;
        uint64_t committed; /* number of commits */
        uint32_t started;   /* buckets whose reduction it started in this step */
        uint32_t delivered; /* of these, reduced */
    } contexts[WORLD_MAX];
    wire_item_t wire[QUEUE_MAX];
    uint32_t n_wire;
    uint32_t lose_votes_of; /* planted fault: this rank's votes vanish; 0: nobody's */
} cluster_t;

static void perform(void *context, const step_action_t *action)
{
    struct member_context *self = context;
    cluster_t *cluster = self->cluster;
    switch (action->type) {
    case STEP_DO_REDUCE:
        assert_int_equal(action->bucket, self->started); /* one order everywhere */
        self->started++;
        break;
    case STEP_DO_SEND: {
        if (cluster->lose_votes_of == self->rank && action->message.type == STEP_VOTE) break;
        wire_item_t *item = &cluster->wire[cluster->n_wire++];
        item->from = self->rank;
        item->to = action->to;
        step_message_encode(&action->message, item->bytes);
        break;
    }
    case STEP_DO_COMMIT:
        assert_int_equal(action->step, self->committed);
        self->committed++;
        break;
    }
}

static cluster_t *cluster_open(uint32_t world, uint32_t buckets)
{
    cluster_t *cluster = calloc(1, sizeof *cluster);
    cluster->world = world;
    cluster->buckets = buckets;
    for (uint32_t r = 0; r < world; r++) {
        cluster->contexts[r] = (struct member_context){.cluster = cluster, .rank = r};
        assert_int_equal(
            step_init(&cluster->members[r], r, world, 7, 0xabc, buckets, 0, perform, &cluster->contexts[r]),
            INSPAN_OK);
    }
    return cluster;
}

static inspan_status_t feed(cluster_t *cluster, uint32_t rank, step_event_type_t type, uint64_t step,
                            uint32_t bucket)
{
    step_event_t event = {.type = type, .step = step, .bucket = bucket};
    return step_handle(&cluster->members[rank], &event);
}

static void deliver(cluster_t *cluster, rng_t *rng)
{
    uint32_t pick = (uint32_t)rng_below(rng, cluster->n_wire);
    for (uint32_t i = 0; i < pick; i++) /* in order per pair */
        if (cluster->wire[i].from == cluster->wire[pick].from &&
            cluster->wire[i].to == cluster->wire[pick].to) {
            pick = i;
            break;
        }
    wire_item_t item = cluster->wire[pick];
    memmove(&cluster->wire[pick], &cluster->wire[pick + 1], (--cluster->n_wire - pick) * sizeof item);
    step_event_t event = {.type = STEP_EV_MESSAGE, .from = item.from};
    assert_int_equal(step_message_decode(item.bytes, sizeof item.bytes, &event.message), INSPAN_OK);
    assert_int_equal(step_handle(&cluster->members[item.to], &event), INSPAN_OK);
}

/* A bucket's reduction can end at a member only when all members have started it. */
static bool reducible(const cluster_t *cluster, uint32_t rank)
{
    const struct member_context *self = &cluster->contexts[rank];
    if (self->delivered >= self->started) return false;
    for (uint32_t r = 0; r < cluster->world; r++)
        if (cluster->contexts[r].committed == self->committed &&
            cluster->contexts[r].started <= self->delivered)
            return false;
    return true;
}

static void run_step(cluster_t *cluster, uint64_t step, rng_t *rng)
{
    bool ready[WORLD_MAX][BUCKET_MAX] = {{false}};
    for (uint32_t r = 0; r < cluster->world; r++) {
        cluster->contexts[r].started = cluster->contexts[r].delivered = 0;
        assert_int_equal(feed(cluster, r, STEP_EV_BEGIN, step, 0), INSPAN_OK);
        assert_int_equal(feed(cluster, r, STEP_EV_SEAL, step, 0), INSPAN_OK);
    }
    for (int idle = 0; idle < 2000; idle++) {
        uint32_t r = (uint32_t)rng_below(rng, cluster->world), b = (uint32_t)rng_below(rng, cluster->buckets);
        if (!ready[r][b]) {
            ready[r][b] = true;
            assert_int_equal(feed(cluster, r, STEP_EV_READY, step, b), INSPAN_OK);
        } else if (reducible(cluster, r)) {
            assert_int_equal(feed(cluster, r, STEP_EV_REDUCED, step, cluster->contexts[r].delivered++),
                             INSPAN_OK);
        } else if (cluster->n_wire > 0) {
            deliver(cluster, rng);
        }
    }
}

static void every_member_commits_every_step(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 5, 7};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        for (uint32_t seed = 0; seed < 20; seed++) {
            rng_t rng;
            rng_seed(&rng, seed, worlds[w]);
            cluster_t *cluster = cluster_open(worlds[w], 1 + seed % BUCKET_MAX);
            for (uint64_t step = 0; step < 5; step++) {
                run_step(cluster, step, &rng);
                for (uint32_t r = 0; r < worlds[w]; r++)
                    assert_int_equal(cluster->contexts[r].committed, step + 1);
            }
            free(cluster);
        }
    }
}

static void nobody_commits_without_every_vote(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 1, 0);
    cluster_t *cluster = cluster_open(3, 2);
    cluster->lose_votes_of = 2;
    run_step(cluster, 0, &rng);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(cluster->contexts[r].committed, 0);
        assert_int_equal(cluster->members[r].phase, STEP_VOTED);
    }
    free(cluster);
}

static inspan_status_t say(step_machine_t *machine, uint32_t from, step_message_t message)
{
    step_event_t event = {.type = STEP_EV_MESSAGE, .from = from, .message = message};
    return step_handle(machine, &event);
}

static void messages_out_of_place_fail(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        step_message_t message;
        inspan_status_t expected;
    } cases[] = {
        {1, {STEP_VOTE, 6, 0, 0xabc}, INSPAN_OK},         /* an older view: dropped */
        {1, {STEP_VOTE, 8, 0, 0xabc}, INSPAN_MISMATCH},   /* a newer one cannot be with fixed members */
        {1, {STEP_VOTE, 7, 1, 0xabc}, INSPAN_MISMATCH},   /* a step ahead */
        {1, {STEP_VOTE, 7, 0, 0xabd}, INSPAN_MISMATCH},   /* another layout */
        {0, {STEP_VOTE, 7, 0, 0xabc}, INSPAN_MISMATCH},   /* from itself */
        {9, {STEP_VOTE, 7, 0, 0xabc}, INSPAN_MISMATCH},   /* from nobody */
        {1, {STEP_COMMIT, 7, 0, 0xabc}, INSPAN_MISMATCH}, /* not from the leader */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster_t *cluster = cluster_open(2, 1);
        assert_int_equal(say(&cluster->members[0], cases[i].from, cases[i].message), cases[i].expected);
        bool failed = cluster->members[0].phase == STEP_FAILED;
        assert_int_equal(failed, cases[i].expected != INSPAN_OK);
        free(cluster);
    }
    cluster_t *cluster = cluster_open(2, 1);
    step_message_t commit_early = {STEP_COMMIT, 7, 0, 0xabc};
    assert_int_equal(say(&cluster->members[1], 0, commit_early), INSPAN_MISMATCH);
    assert_int_equal(feed(cluster, 1, STEP_EV_BEGIN, 0, 0), INSPAN_MISMATCH); /* for good */
    free(cluster);
}

static void events_out_of_place_change_nothing(void **state)
{
    (void)state;
    cluster_t *cluster = cluster_open(1, 2);
    assert_int_equal(feed(cluster, 0, STEP_EV_SEAL, 0, 0), INSPAN_INVALID);
    assert_int_equal(feed(cluster, 0, STEP_EV_BEGIN, 1, 0), INSPAN_INVALID);
    assert_int_equal(feed(cluster, 0, STEP_EV_BEGIN, 0, 0), INSPAN_OK);
    assert_int_equal(feed(cluster, 0, STEP_EV_READY, 0, 0), INSPAN_INVALID); /* not sealed */
    assert_int_equal(feed(cluster, 0, STEP_EV_SEAL, 0, 0), INSPAN_OK);
    assert_int_equal(feed(cluster, 0, STEP_EV_READY, 0, 2), INSPAN_INVALID);
    assert_int_equal(feed(cluster, 0, STEP_EV_READY, 0, 0), INSPAN_OK);
    assert_int_equal(feed(cluster, 0, STEP_EV_READY, 0, 0), INSPAN_INVALID);   /* twice */
    assert_int_equal(feed(cluster, 0, STEP_EV_REDUCED, 0, 1), INSPAN_INVALID); /* never started */
    assert_int_equal(feed(cluster, 0, STEP_EV_READY, 0, 1), INSPAN_OK);
    assert_int_equal(feed(cluster, 0, STEP_EV_REDUCED, 0, 1), INSPAN_OK);
    assert_int_equal(feed(cluster, 0, STEP_EV_REDUCED, 0, 0), INSPAN_OK);
    assert_int_equal(cluster->contexts[0].committed, 1);
    free(cluster);
}

static void shares_cover_the_batch_once(void **state)
{
    (void)state;
    static const uint64_t batches[] = {0, 1, 2, 5, 64, 1000003, UINT64_MAX / 8};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        for (uint32_t world = 1; world <= 9; world++) {
            uint64_t next = 3 * batches[b], least = UINT64_MAX, most = 0;
            for (uint32_t r = 0; r < world; r++) {
                uint64_t first, n;
                step_share(3, batches[b], r, world, &first, &n);
                assert_int_equal(first, next);
                next += n;
                least = n < least ? n : least;
                most = n > most ? n : most;
            }
            assert_int_equal(next, 4 * batches[b]);
            assert_true(most - least <= 1);
        }
}

static void only_whole_messages_decode(void **state)
{
    (void)state;
    step_message_t message = {STEP_COMMIT, 1, 2, 3}, back;
    uint8_t bytes[STEP_MESSAGE_BYTES];
    step_message_encode(&message, bytes);
    assert_int_equal(step_message_decode(bytes, sizeof bytes, &back), INSPAN_OK);
    assert_int_equal(back.type, message.type);
    assert_int_equal(back.view, message.view);
    assert_int_equal(back.step, message.step);
    assert_int_equal(back.layout, message.layout);
    assert_int_equal(step_message_decode(bytes, sizeof bytes - 1, &back), INSPAN_CORRUPT);
    bytes[0] = 3;
    assert_int_equal(step_message_decode(bytes, sizeof bytes, &back), INSPAN_CORRUPT);
    bytes[0] = 1;
    bytes[4] = 1;
    assert_int_equal(step_message_decode(bytes, sizeof bytes, &back), INSPAN_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_commits_every_step),
        cmocka_unit_test(nobody_commits_without_every_vote),
        cmocka_unit_test(messages_out_of_place_fail),
        cmocka_unit_test(events_out_of_place_change_nothing),
        cmocka_unit_test(shares_cover_the_batch_once),
        cmocka_unit_test(only_whole_messages_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
