/*
 * For the fleet's tests: a fleet without a network. Messages to agents go into counters, the clock is the
 * test's. The registry and its disk are real, so that restarts and failing writes are.
 */
#ifndef MANAGER_FLEET_WORLD_TEST_H
#define MANAGER_FLEET_WORLD_TEST_H

#include "manager/jobs/fleet.h"

#define S    NS_PER_S
#define MS   NS_PER_MS
#define TICK (100 * MS)

typedef struct fleet_world {
    char folder[64];
    registry_t *registry;
    fleet_t *fleet;
    ns_t now;
    uint32_t starts, views, losts, stops, kills, drops, ends;
    char last_end[CONTROL_REASON_MAX + 32];
    uint32_t leaves, newcomers, members; /* members: of the last view sent */
    bool first, files;                   /* first: so was that view; files: the store has every file */
    uint32_t dropped;                    /* files */
    uint64_t resume;                     /* step of the checkpoint of the last start; 0: none */
    uint64_t pace;                       /* of its first member, ns a sample */
    char news[CONTROL_REASON_MAX + 200];
} fleet_world_t;

extern fleet_world_t world;

/* A new world for each test. */
#define IN_A_WORLD(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int set_up(void **state);
int tear_down(void **state);

/* Nothing is stored at a close: as after kill -9, only what was acknowledged is there. */
void restart(void);

/* No write to any file succeeds while the disk is broken. */
void break_disk(bool broken);

/* Time goes by in ticks; the nodes given send heartbeats. */
void pass(ns_t time, fleet_node_t *const *nodes, uint32_t n);

/* Agents: number k registers (as `extra` says, which may be NULL), workers report. */
inspan_status_t try_attach(uint32_t k, Inspan__V1__Register *extra, fleet_node_t **node, inspan_error_t *err);
fleet_node_t *attach(uint32_t k);
/* One of 0.8 cores that elastic jobs may use; worker: the one that it still runs, or NULL. */
fleet_node_t *join_with(uint32_t k, Inspan__V1__WorkerReport *worker);
Inspan__V1__WorkerReport report_of(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state);
Inspan__V1__WorkerReport running(uint64_t job, uint32_t rank); /* in the job's newest view */
void tell(uint64_t job, uint32_t rank, Inspan__V1__WorkerState state);
void tell_failed(uint64_t job, uint32_t rank, uint32_t pid, int signal_number, Inspan__V1__Failure *failure);

/* People: a job on so many nodes, submitted, or running already. */
Inspan__V1__SubmitRequest request_for(uint32_t nodes, ns_t failure_timeout);
uint64_t submit(uint32_t nodes, ns_t failure_timeout);
uint64_t run_job(uint32_t nodes, ns_t failure_timeout);
fleet_node_t *node_of(uint64_t job, uint32_t rank);
void open_view(uint64_t job); /* all members say that they run in the newest one */
control_state_t state_of(uint64_t job);
const char *reason_of(uint64_t job);

#endif
