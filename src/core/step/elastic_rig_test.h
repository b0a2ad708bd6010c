/*
 * Members of one view on a bench: a test feeds each by hand and sees what it does. Messages wait in one queue
 * until the test lets them arrive; reductions and copies end when it says so. (Random histories:
 * elastic_world_test.h.)
 */
#ifndef STEP_ELASTIC_RIG_TEST_H
#define STEP_ELASTIC_RIG_TEST_H

#include "core/step/elastic_internal.h"

#define RIG_MEMBERS ELASTIC_MEMBERS_MAX
#define RIG_DONE    262144

typedef struct rig_member {
    struct rig *rig;
    uint32_t number;
    elastic_t *e; /* NULL: not there */
} rig_member_t;

typedef struct rig_action { /* without its bytes */
    uint32_t number;        /* whose */
    elastic_action_t action;
} rig_action_t;

typedef struct rig {
    elastic_config_t config;
    rig_member_t members[RIG_MEMBERS]; /* by number */
    uint64_t view;
    int64_t now;                      /* counts events */
    uint32_t n, numbers[RIG_MEMBERS]; /* of the newest view */
    uint64_t started[ELASTIC_BUCKETS_MAX],
        started_step[ELASTIC_BUCKETS_MAX]; /* who, by number, in this view */
    rig_action_t done[RIG_DONE];
    uint32_t n_done, seen; /* seen: reductions and copies below are finished */
    struct {
        uint32_t from, to; /* numbers */
        size_t bytes;
        uint8_t data[ELASTIC_MESSAGE_MAX];
    } queue[4 * RIG_MEMBERS];
    uint32_t n_queue;
} rig_t;

rig_t *rig_open(uint32_t leases, uint32_t buckets, uint64_t steps);
void rig_close(rig_t *rig);
void rig_join(rig_t *rig, uint32_t number, bool newcomer);
/* The next view, of these numbers; every member of it that exists enters it. */
void rig_view(rig_t *rig, bool first, uint32_t n, const uint32_t *numbers);
/* Members 0 .. n - 1 in view 1, all full. */
rig_t *rig_first(uint32_t n, uint32_t leases, uint32_t buckets, uint64_t steps);

inspan_status_t rig_feed(rig_t *rig, uint32_t number, elastic_event_t event); /* asserts nothing */
void rig_ok(rig_t *rig, uint32_t number, elastic_event_t event);              /* asserts OK */
inspan_status_t rig_say(rig_t *rig, uint32_t to, uint32_t from, const elastic_message_t *message);
/* A message about the newest view, filled as an honest sender would fill its header. */
elastic_message_t rig_message(rig_t *rig, elastic_message_type_t type, uint64_t step);

/* All that is granted until LAST, then every bucket is ready; messages arrive where it has to wait. */
void rig_compute(rig_t *rig, uint32_t number);
void rig_reduced(rig_t *rig, uint32_t number, uint32_t bucket);
/* All messages arrive, and those that these cause. */
void rig_deliver(rig_t *rig);
/* Every member computes; reductions, passes and chunks are finished; messages arrive; until `step` is worked
 * on. */
void rig_run_to(rig_t *rig, uint64_t step);
/* One round of that. */
void rig_round(rig_t *rig, bool chunks);

uint32_t rig_count(const rig_t *rig, uint32_t number, elastic_action_type_t type);
const elastic_action_t *rig_last(const rig_t *rig, uint32_t number,
                                 elastic_action_type_t type); /* NULL: none */
elastic_t *rig_member(rig_t *rig, uint32_t number);

/* How many, and the numbers: two arguments. */
#define NUMBERS(...)                                                                                         \
    (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), (uint32_t[])                                     \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

void assert_set(elastic_set_t set, uint64_t low); /* exactly these, all below 64 */
elastic_event_t computed(uint32_t lease, uint32_t n);

#endif
