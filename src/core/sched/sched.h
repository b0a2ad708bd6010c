/*
 * The scheduler's decisions, pure: which queued job may start now, on which nodes, and why another waits.
 *
 * Queue: first in, first out. A job that waits for busy nodes holds back all nodes that it could use, so that
 * no later job takes them away from under it; a later job may overtake only on other nodes, or when the
 * earlier one waits for machines that are away. One job a node.
 *
 * Placement: a job takes as many fitting nodes as it may (max_nodes), the strongest ones (GPU when wished,
 * cores, memory), ranked by name. Pinned jobs run on exactly the nodes they name.
 *
 * A job that may take more nodes than are free now waits for those that are just becoming free (leaving):
 * seconds.
 *
 * Memory is counted by machine, not by node: several agents on one machine (`inspan up --local 3`) each offer
 * all of it. A machine has what the largest offer of its nodes says; agents in containers with limits of
 * their own on one machine are therefore counted as if they shared the largest limit.
 *
 * A job that runs already and would take more nodes (grows) gets what the queue leaves: it comes after all
 * that wait, holds nothing back, and takes only nodes that its members can reach.
 *
 * Reach: a node whose only addresses are loopback ones can work only with nodes on its own machine.
 *
 * Arrays are the caller's and borrowed for the call. No call blocks or keeps anything.
 */
#ifndef CORE_SCHED_SCHED_H
#define CORE_SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define SCHED_NODES_MAX 1024
#define SCHED_WORLD_MAX 256 /* ranks of one job: the cap of the worker's protocol */
#define SCHED_WHY_MAX   512

typedef struct sched_node {
    const char *name;
    const char
        *machine; /* boot id: nodes with the same one share a machine; "" unknown: a machine of its own */
    uint64_t memory_bytes; /* least of the machine's and its limit's */
    uint64_t used_bytes;   /* of it by the job that runs here; 0: none */
    double cores;          /* usable ones */
    uint32_t gpus;
    bool ready;          /* its agent is attached */
    bool busy;           /* a job runs on it, or its processes are not gone yet */
    bool leaving;        /* busy only with the end of its last job: free within seconds */
    bool local_only;     /* has loopback addresses only */
    bool elastic;        /* its agent can take part in a job whose members change */
    const char *resting; /* not used for a while: why, "cools down"; NULL: it is */
} sched_node_t;

typedef struct sched_job {
    uint64_t id;
    uint64_t memory_bytes; /* each node must have */
    uint64_t model_bytes;  /* the part that the weights take, for messages; 0 unknown */
    double cores;          /* each node must have; 0: any */
    bool gpu;              /* each node must have one */
    uint32_t min_nodes, max_nodes;
    const char *const *pinned; /* names; n_pinned 0: any */
    uint32_t n_pinned;
    bool grows;              /* runs, and takes from min_nodes to max_nodes more */
    const uint32_t *members; /* grows: indices of the nodes it has */
    uint32_t n_members;
    const uint32_t
        *avoided; /* grows: indices of nodes that had too little memory for it, whatever they say */
    uint32_t n_avoided;
} sched_job_t;

typedef struct sched_placement {
    bool starts;
    uint32_t n_nodes;
    uint32_t nodes[SCHED_WORLD_MAX]; /* indices into the nodes given; the place is the rank */
    char why[SCHED_WHY_MAX];         /* why it waits */
} sched_placement_t;

/*
 * Can this job ever run on the nodes registered (ready or not)? Refuses only what more waiting cannot mend:
 * INVALID (min above max, none wanted, above SCHED_WORLD_MAX), LIMIT (needs more memory than any registered
 * node has, or all that fit share too little memory of one machine: the text has the figures), NOT_FOUND
 * (pinned to a node that nobody knows). With no node registered yet the job may wait.
 */
inspan_status_t sched_admit(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes,
                            inspan_error_t *err);

/* One round over the whole queue, oldest first, jobs that grow at its end: fills placements[n_jobs]. n_nodes
 * at most SCHED_NODES_MAX. */
void sched_round(const sched_job_t *jobs, uint32_t n_jobs, const sched_node_t *nodes, uint32_t n_nodes,
                 sched_placement_t *placements);

#endif
