/*
 * For the tests of elastic jobs: a small world with nodes, agents and processes, a registry that may fail, a
 * manager that may be killed between two actions. The invariants are asserted at each action.
 */
#ifndef CORE_CONTROL_VIEWS_WORLD_TEST_H
#define CORE_CONTROL_VIEWS_WORLD_TEST_H

#include "core/control/job.h"

#define S     NS_PER_S
#define MS    NS_PER_MS
#define NODES 6
#define RANKS 400

typedef struct process {
    bool exists;
    uint32_t rank;
    control_rank_state_t state;
    bool full, leaving;
    uint64_t view; /* it is in */
    uint64_t blamed_view;
} process_t;

typedef struct stored {
    uint32_t world;
    control_rank_t ranks[RANKS];
    control_view_t view;
    control_state_t state, outcome;
    bool result;
} stored_t;

typedef struct views_world {
    control_job_t job;
    ns_t now;
    bool attached[NODES], known[NODES];
    process_t processes[NODES];
    stored_t stored;
    control_view_t told; /* the newest that was acknowledged as stored */
    bool was_out[RANKS];
    uint32_t starts[RANKS], announces[RANKS], stops[RANKS], kills[RANKS], asked[RANKS], lost[RANKS];
    uint32_t min, max, ended;
    uint64_t highest;
    bool fail_stores;
    int32_t crash_after; /* actions; -1: never */
    char news[CONTROL_REASON_MAX];
} world_t;

uint32_t node_of(const world_t *w, uint32_t rank);
control_report_t report_of(const world_t *w, uint32_t rank, control_rank_state_t state);

/* A job on the first `nodes` nodes, its workers started. */
void begin(world_t *w, uint32_t nodes, uint32_t min, uint32_t max);
void end(world_t *w);
/* Carry out what the controller decided. */
void act(world_t *w);
/* kill -9 of the manager: only what was stored is known. */
void restart(world_t *w);
/* The agent of the node comes (again) with what it runs. */
void attach(world_t *w, uint32_t node);
void tell(world_t *w, uint32_t r, control_rank_state_t state);
void killed(world_t *w, uint32_t r);
void pass(world_t *w, ns_t time);
inspan_status_t grow(world_t *w, uint32_t node);

#endif
