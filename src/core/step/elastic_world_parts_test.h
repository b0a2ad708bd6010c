/* The inside of the random cluster of elastic_world_test.h. */
#ifndef STEP_ELASTIC_WORLD_PARTS_TEST_H
#define STEP_ELASTIC_WORLD_PARTS_TEST_H

#include <inttypes.h>
#include <stdio.h>

#include "base/rng.h"
#include "core/step/elastic.h"
#include "core/step/elastic_policy_test.h"
#include "core/step/elastic_world_test.h"
#include "core/step/planted.h"

#define PROCS      9 /* processes of one history, the lost ones included */
#define VIEWS      40
#define BUCKETS    4
#define LEASES     12
#define FEW_LEASES 5 /* without a policy */
#define WIRES      3
#define LAYOUT     7u /* hash of the first layout; others are above it */
#define LAYOUTS    6u
#define STEPS      8 /* of one history, the light ones included */
#define MESSAGES   512
#define OPS        1024
#define COPIES     1024
#define ACTS_LIMIT 20000 /* of one history: beyond it does not end (I5) */

/* One bucket: the sums of the chunks that lie in it; the tally's is the one behind the last chunk. */
typedef struct tensor {
    uint64_t sum[BUCKETS];
    uint32_t bits; /* view in which it was reduced: what rounding would show */
    uint8_t count[LEASES];
} tensor_t;

typedef struct world world_t;

typedef struct proc {
    world_t *world;
    elastic_t *e;
    uint32_t number, fuse; /* fuse: dies at the fuse-th action from now; 0: does not */
    bool up, stuck, ended;
    uint64_t view, next_step; /* as last seen: never go back */
    uint64_t left;            /* view in which it said LEFT, 0: none */
    bool has_step;
    uint64_t weights[BUCKETS];
    tensor_t local[BUCKETS], held[BUCKETS];
    bool ready[BUCKETS], foreign[BUCKETS]; /* foreign: held or to be taken when the step began (salvaged) */
    bool running, last;                    /* a run of leases is under way */
    bool waits, more;                      /* for DO_MORE or DO_WORK; a claim was answered */
    uint32_t first, n, next;
    uint32_t order; /* reductions started in this view */
    elastic_layout_t layout;
    uint64_t known; /* hash of the newest that it can take up; 0: none */
} proc_t;

typedef struct message {
    uint32_t from, to;
    uint64_t view;
    uint64_t layout; /* the shell's own: that one may be asked for; 0: the machine's */
    size_t bytes;
    uint8_t data[512];
} message_t;

typedef struct op { /* one all-reduce */
    uint64_t view, step;
    uint32_t bucket, order, given, delivered; /* masks of numbers */
    uint64_t shares;                          /* hash of who owns how much, and of the layout: one for all */
    tensor_t sum;
} op_t;

typedef struct copy { /* a salvaged bucket or a chunk from one to another */
    uint64_t view, step;
    uint32_t from, to, bucket;
    bool chunk, given, taken, sent, delivered;
    tensor_t tensor;
    uint64_t weights;
} copy_t;

typedef struct view {
    uint32_t n, numbers[PROCS];
} view_t;

struct world {
    rng_t rng;
    world_options_t options;
    world_result_t *result;
    elastic_config_t config;
    proc_t procs[PROCS];
    uint32_t n_procs;
    view_t views[VIEWS];
    uint64_t view; /* newest */
    message_t messages[MESSAGES];
    uint32_t n_messages;
    op_t ops[OPS];
    uint32_t n_ops;
    copy_t copies[COPIES];
    uint32_t n_copies;
    uint32_t crashes, zombies, broken, newcomers, leavers; /* left to do */
    bool thorough;                                         /* nothing is held back any more */
    int64_t now;
    random_policy_t policy;
    /* ghosts */
    bool committed[STEPS][BUCKETS], weights_known[STEPS + 1];
    tensor_t first[STEPS][BUCKETS];
    uint64_t layout_of[STEPS]; /* 0: not committed */
    uint64_t weights[STEPS + 1][BUCKETS];
};

#define TRACE(world, ...)                                                                                    \
    do {                                                                                                     \
        if ((world)->options.trace) printf(__VA_ARGS__);                                                     \
    } while (0)

static inline uint32_t below(world_t *world, uint32_t bound)
{
    return (uint32_t)rng_below(&world->rng, bound);
}

/* elastic_world_test_helper.c: what members do, and what must hold. */
void world_perform(void *context, const elastic_action_t *action);
elastic_layout_t world_layout(const world_t *world, uint64_t hash);
inspan_status_t world_feed(proc_t *p, elastic_event_t event);

/* elastic_world_faults_test_helper.c: the manager, and what goes wrong. Both: whether anything was done. */
proc_t *world_start_proc(world_t *world, bool newcomer);
void world_issue(world_t *world, const view_t *members);
bool world_manage(world_t *world);
bool world_fault(world_t *world);

#endif
