#include "core/sched/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/units.h"

/* Why a node cannot serve a job, from the worst to the mildest; FIT_YES last. */
typedef enum fit {
    FIT_NOT_PINNED,
    FIT_MEMORY,
    FIT_AVOIDED,
    FIT_CORES,
    FIT_GPU,
    FIT_OLD,
    FIT_AWAY,
    FIT_RESTING,
    FIT_BUSY,
    FIT_HELD,
    FIT_SHARED,
    FIT_YES
} fit_t;

/* What one round (or one question) keeps of its nodes. Memory is counted by machine: each of several agents
 * on one machine offers all of it, and a machine has what the largest offer says. */
typedef struct sched_state {
    const sched_node_t *nodes;
    uint32_t n;
    bool held[SCHED_NODES_MAX];
    uint32_t machine[SCHED_NODES_MAX]; /* index of the first node on the same machine */
    uint64_t total[SCHED_NODES_MAX];   /* at that index: memory of the machine, */
    uint64_t used[SCHED_NODES_MAX];    /* and what jobs have of it */
} sched_state_t;

static bool same_machine(const sched_node_t *a, const sched_node_t *b)
{
    return a == b || (a->machine[0] != '\0' && strcmp(a->machine, b->machine) == 0);
}

static void state_open(sched_state_t *state, const sched_node_t *nodes, uint32_t n)
{
    *state = (sched_state_t){.nodes = nodes, .n = n < SCHED_NODES_MAX ? n : SCHED_NODES_MAX};
    for (uint32_t i = 0; i < state->n; i++) {
        uint32_t m = 0;
        while (m < i && !(state->machine[m] == m && same_machine(&nodes[m], &nodes[i]))) m++;
        state->machine[i] = m;
        if (nodes[i].memory_bytes > state->total[m]) state->total[m] = nodes[i].memory_bytes;
        state->used[m] += nodes[i].used_bytes;
    }
}

/* Ranks of the job that fit into this much of a machine's memory. */
static uint32_t ranks_in(const sched_job_t *job, uint64_t memory)
{
    if (job->memory_bytes == 0 || memory / job->memory_bytes > SCHED_NODES_MAX) return SCHED_NODES_MAX;
    return (uint32_t)(memory / job->memory_bytes);
}

static uint32_t ranks_now(const sched_state_t *state, const sched_job_t *job, uint32_t machine)
{
    uint64_t total = state->total[machine], used = state->used[machine];
    return ranks_in(job, total > used ? total - used : 0);
}

static bool is_pinned(const sched_job_t *job, const char *name)
{
    for (uint32_t i = 0; i < job->n_pinned; i++)
        if (strcmp(job->pinned[i], name) == 0) return true;
    return false;
}

/* What the machine itself allows, whatever happens on it now. */
static fit_t fit_of_machine(const sched_job_t *job, const sched_node_t *node)
{
    if (job->n_pinned > 0 && !is_pinned(job, node->name)) return FIT_NOT_PINNED;
    if (node->memory_bytes < job->memory_bytes) return FIT_MEMORY;
    if (node->cores < job->cores) return FIT_CORES;
    if (job->gpu && node->gpus == 0) return FIT_GPU;
    return FIT_YES;
}

static fit_t fit_now(const sched_job_t *job, const sched_node_t *node, bool held)
{
    fit_t fit = fit_of_machine(job, node);
    if (fit != FIT_YES) return fit;
    if (job->grows && !node->elastic) return FIT_OLD;
    if (!node->ready) return FIT_AWAY;
    if (node->resting != NULL) return FIT_RESTING;
    if (node->busy) return FIT_BUSY;
    return held ? FIT_HELD : FIT_YES;
}

static uint32_t wanted_at_least(const sched_job_t *job)
{
    return job->n_pinned > 0 && !job->grows ? job->n_pinned : job->min_nodes;
}

static uint32_t wanted_at_most(const sched_job_t *job)
{
    if (job->n_pinned > 0 && !job->grows) return job->n_pinned;
    return job->max_nodes < SCHED_WORLD_MAX ? job->max_nodes : SCHED_WORLD_MAX;
}

/* Nodes are named right, and not wanted in an impossible number. */
static inspan_status_t check_wish(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes,
                                  inspan_error_t *err)
{
    if (job->n_pinned == 0 && (job->min_nodes == 0 || job->min_nodes > job->max_nodes))
        return error_set(err, INSPAN_INVALID,
                         "nodes: from %u to %u cannot be satisfied: give 1 <= min <= max", job->min_nodes,
                         job->max_nodes);
    if (wanted_at_least(job) > SCHED_WORLD_MAX)
        return error_set(err, INSPAN_INVALID, "nodes: %u wanted, a job has at most %d", wanted_at_least(job),
                         SCHED_WORLD_MAX);
    for (uint32_t p = 0; p < job->n_pinned; p++) {
        bool known = false;
        for (uint32_t i = 0; i < n_nodes && !known; i++) known = strcmp(nodes[i].name, job->pinned[p]) == 0;
        if (!known)
            return error_set(err, INSPAN_NOT_FOUND, "no node is named %s: see `inspan nodes`",
                             job->pinned[p]);
        for (uint32_t other = 0; other < p; other++)
            if (strcmp(job->pinned[other], job->pinned[p]) == 0)
                return error_set(err, INSPAN_INVALID, "node %s is named twice", job->pinned[p]);
    }
    return INSPAN_OK;
}

/* Enough nodes fit, but too many of them share the memory of one machine. */
static inspan_status_t check_shared_memory(const sched_job_t *job, const sched_node_t *nodes,
                                           uint32_t n_nodes, inspan_error_t *err)
{
    sched_state_t state;
    uint32_t on_machine[SCHED_NODES_MAX] = {0}, alone = 0, together = 0, worst = 0, surplus = 0;
    state_open(&state, nodes, n_nodes);
    for (uint32_t i = 0; i < state.n; i++) {
        if (job->n_pinned > 0 && !is_pinned(job, nodes[i].name)) continue;
        if (nodes[i].memory_bytes < job->memory_bytes) continue;
        on_machine[state.machine[i]]++;
        alone++;
    }
    for (uint32_t m = 0; m < state.n; m++) {
        uint32_t fit = ranks_in(job, state.total[m]);
        together += on_machine[m] < fit ? on_machine[m] : fit;
        if (on_machine[m] <= fit || on_machine[m] - fit <= surplus) continue;
        surplus = on_machine[m] - fit;
        worst = m;
    }
    uint32_t wanted = wanted_at_least(job);
    if (alone < wanted || together >= wanted) return INSPAN_OK;
    char needs[32], weights[32], has[32];
    return error_set(
        err, INSPAN_LIMIT,
        "model larger than memory: needs %s on each of %u nodes (weights %s), but %u nodes share one "
        "machine (that of node %s), which has %s: enough for %u; use a smaller model, micro_batch or "
        "context, "
        "fewer nodes, or nodes on other machines",
        units_format_size(job->memory_bytes, needs, sizeof needs), wanted,
        job->model_bytes > 0 ? units_format_size(job->model_bytes, weights, sizeof weights)
                             : "of unknown size",
        on_machine[worst], nodes[worst].name, units_format_size(state.total[worst], has, sizeof has),
        ranks_in(job, state.total[worst]));
}

inspan_status_t sched_admit(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes,
                            inspan_error_t *err)
{
    inspan_status_t status = check_wish(job, nodes, n_nodes, err);
    if (status != INSPAN_OK) return status;
    const sched_node_t *largest = NULL;
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (job->n_pinned > 0 && !is_pinned(job, nodes[i].name)) continue;
        if (largest == NULL || nodes[i].memory_bytes > largest->memory_bytes) largest = &nodes[i];
        if (job->n_pinned > 0 && nodes[i].memory_bytes < job->memory_bytes) {
            largest = &nodes[i];
            break;
        }
    }
    if (largest == NULL) return INSPAN_OK; /* nobody is here yet: the job waits */
    if (largest->memory_bytes >= job->memory_bytes) return check_shared_memory(job, nodes, n_nodes, err);
    char needs[32], weights[32], has[32];
    units_format_size(job->memory_bytes, needs, sizeof needs);
    units_format_size(job->model_bytes, weights, sizeof weights);
    units_format_size(largest->memory_bytes, has, sizeof has);
    return error_set(
        err, INSPAN_LIMIT,
        "model larger than memory: needs %s on each node (weights %s), %s %s has %s; use a smaller model, "
        "micro_batch or context, or a node with more memory",
        needs, job->model_bytes > 0 ? weights : "of unknown size",
        job->n_pinned > 0 ? "the node" : "the largest node", largest->name, has);
}

typedef struct candidate {
    const sched_node_t *node;
    uint32_t index;
    bool gpu_first;
} candidate_t;

static int stronger_first(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    if (x->gpu_first && x->node->gpus != y->node->gpus) return x->node->gpus > y->node->gpus ? -1 : 1;
    if (x->node->cores != y->node->cores) return x->node->cores > y->node->cores ? -1 : 1;
    if (x->node->memory_bytes != y->node->memory_bytes)
        return x->node->memory_bytes > y->node->memory_bytes ? -1 : 1;
    int order = strcmp(x->node->name, y->node->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* Names by their numbers: node-2 before node-10. */
static int by_name(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    int order = strverscmp(x->node->name, y->node->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* Those, strongest first, that fit into their machines' memory together. On one machine the routable ones
 * come first: they can work with others, too. The rest gets FIT_SHARED. */
static uint32_t keep_within_memory(const sched_state_t *state, const sched_job_t *job,
                                   candidate_t *candidates, uint32_t n, fit_t *fits)
{
    uint32_t taken[SCHED_NODES_MAX] = {0}, kept = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t index = candidates[i].index, machine = state->machine[index];
            if (candidates[i].node->local_only != (pass == 1)) continue;
            if (taken[machine] < ranks_now(state, job, machine))
                taken[machine]++;
            else
                fits[index] = FIT_SHARED;
        }
    for (uint32_t i = 0; i < n; i++)
        if (fits[candidates[i].index] == FIT_YES) candidates[kept++] = candidates[i];
    return kept;
}

/* Candidates that can all reach each other: those with real addresses, or all of one machine; the larger
 * group. */
static uint32_t keep_reachable(candidate_t *candidates, uint32_t n)
{
    uint32_t routable = 0, best = 0, best_at = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!candidates[i].node->local_only) {
            routable++;
            continue;
        }
        uint32_t group = 0;
        for (uint32_t j = 0; j < n; j++) group += same_machine(candidates[i].node, candidates[j].node);
        if (group > best) {
            best = group;
            best_at = i;
        }
    }
    if (routable == n) return n;
    const sched_node_t *anchor = best > routable ? candidates[best_at].node : NULL;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool keep =
            anchor != NULL ? same_machine(anchor, candidates[i].node) : !candidates[i].node->local_only;
        if (keep) candidates[kept++] = candidates[i];
    }
    return kept;
}

/* " (a is busy, b has 2.0 GB)": some of those that do not fit. */
static void explain_nodes(const sched_state_t *state, const fit_t *fits, char *why, size_t size)
{
    static const char *const reasons[] = {
        [FIT_AVOIDED] = "ran out of memory with it",
        [FIT_CORES] = "has too few cores",
        [FIT_GPU] = "has no GPU",
        [FIT_OLD] = "has an older Inspan",
        [FIT_AWAY] = "is away",
        [FIT_BUSY] = "is busy",
        [FIT_HELD] = "is kept for an earlier job",
    };
    const char *opening = " (";
    int used = 0;
    for (uint32_t i = 0, told = 0; i < state->n && told < 4 && (size_t)used < size; i++) {
        const char *name = state->nodes[i].name;
        char text[32];
        if (fits[i] == FIT_YES || fits[i] == FIT_NOT_PINNED) continue;
        size_t left = size - (size_t)used;
        if (fits[i] == FIT_MEMORY)
            used += snprintf(why + used, left, "%s%s has %s", opening, name,
                             units_format_size(state->nodes[i].memory_bytes, text, sizeof text));
        else if (fits[i] == FIT_SHARED)
            used += snprintf(why + used, left, "%s%s shares the %s of its machine", opening, name,
                             units_format_size(state->total[state->machine[i]], text, sizeof text));
        else
            used += snprintf(why + used, left, "%s%s %s", opening, name,
                             fits[i] == FIT_RESTING ? state->nodes[i].resting : reasons[fits[i]]);
        opening = ", ";
        told++;
    }
    if (opening[0] == ',' && (size_t)used < size) snprintf(why + used, size - (size_t)used, ")");
}

static void explain(const sched_state_t *state, const sched_job_t *job, const fit_t *fits, uint32_t fitting,
                    bool unreachable, char *why)
{
    uint32_t wanted = wanted_at_least(job);
    char memory[48] = "", text[32];
    if (job->memory_bytes > 0)
        snprintf(memory, sizeof memory, " with %s each",
                 units_format_size(job->memory_bytes, text, sizeof text));
    int used =
        snprintf(why, SCHED_WHY_MAX, "needs %u node%s%s%s: %u %s ready", wanted, wanted == 1 ? "" : "s",
                 memory, job->gpu ? " and a GPU" : "", fitting, fitting == 1 ? "is" : "are");
    if (unreachable)
        used += snprintf(why + used, SCHED_WHY_MAX - (size_t)used,
                         " and can reach each other; no routable address on the others (loopback only)");
    explain_nodes(state, fits, why + used, SCHED_WHY_MAX - (size_t)used);
}

/* A node that this job would take, too, if it waited for the end of another job's last process. */
static const sched_node_t *worth_waiting_for(const sched_state_t *state, const sched_job_t *job)
{
    for (uint32_t i = 0; i < state->n; i++)
        if (state->nodes[i].leaving && !state->held[i] && fit_now(job, &state->nodes[i], false) == FIT_BUSY)
            return &state->nodes[i];
    return NULL;
}

/* Both are found by the other, or share the machine. */
static bool reach_each_other(const sched_node_t *a, const sched_node_t *b)
{
    return (!a->local_only && !b->local_only) || same_machine(a, b);
}

static uint32_t keep_reachable_by_members(const sched_state_t *state, const sched_job_t *job,
                                          candidate_t *candidates, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool keep = true;
        for (uint32_t m = 0; m < job->n_members; m++)
            keep = keep && reach_each_other(candidates[i].node, &state->nodes[job->members[m]]);
        for (uint32_t k = 0; k < kept; k++)
            keep = keep && reach_each_other(candidates[i].node, candidates[k].node);
        if (keep) candidates[kept++] = candidates[i];
    }
    return kept;
}

static void place(const sched_state_t *state, const sched_job_t *job, sched_placement_t *placement)
{
    candidate_t candidates[SCHED_NODES_MAX];
    fit_t fits[SCHED_NODES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < state->n; i++) {
        fits[i] = fit_now(job, &state->nodes[i], state->held[i]);
        for (uint32_t k = 0; k < job->n_avoided; k++)
            if (job->avoided[k] == i) fits[i] = FIT_AVOIDED;
        if (fits[i] == FIT_YES) candidates[n++] = (candidate_t){&state->nodes[i], i, job->gpu};
    }
    if (n > 1) qsort(candidates, n, sizeof candidates[0], stronger_first);
    n = keep_within_memory(state, job, candidates, n, fits);
    uint32_t reachable = job->grows                ? keep_reachable_by_members(state, job, candidates, n)
                         : wanted_at_most(job) > 1 ? keep_reachable(candidates, n)
                                                   : n;
    uint32_t wanted = wanted_at_least(job);
    placement->starts = reachable >= wanted && wanted > 0;
    placement->n_nodes = 0;
    placement->why[0] = '\0';
    if (!placement->starts) {
        explain(state, job, fits, reachable, reachable < n, placement->why);
        return;
    }
    const sched_node_t *next = worth_waiting_for(state, job);
    if (!job->grows && reachable < wanted_at_most(job) && next != NULL) {
        placement->starts = false;
        snprintf(placement->why, sizeof placement->why, "waits for node %s, whose last job is just ending",
                 next->name);
        return;
    }
    if (reachable > wanted_at_most(job)) reachable = wanted_at_most(job);
    qsort(candidates, reachable, sizeof candidates[0], by_name);
    placement->n_nodes = reachable;
    for (uint32_t i = 0; i < reachable; i++) placement->nodes[i] = candidates[i].index;
}

/* A job that waits for machines which are away must not keep the present ones idle. */
static bool waits_for_busy_nodes_only(const sched_state_t *state, const sched_job_t *job)
{
    uint32_t on_machine[SCHED_NODES_MAX] = {0}, present = 0;
    for (uint32_t i = 0; i < state->n; i++) {
        if (!state->nodes[i].ready || fit_of_machine(job, &state->nodes[i]) != FIT_YES) continue;
        uint32_t machine = state->machine[i];
        present += on_machine[machine]++ < ranks_in(job, state->total[machine]);
    }
    return present >= wanted_at_least(job);
}

/* The nodes are the job's now, and its memory is gone from their machines. */
static void take(sched_state_t *state, const sched_job_t *job, const sched_placement_t *placement)
{
    for (uint32_t i = 0; i < placement->n_nodes; i++) {
        state->held[placement->nodes[i]] = true;
        state->used[state->machine[placement->nodes[i]]] += job->memory_bytes;
    }
}

void sched_round(const sched_job_t *jobs, uint32_t n_jobs, const sched_node_t *nodes, uint32_t n_nodes,
                 sched_placement_t *placements)
{
    sched_state_t state;
    state_open(&state, nodes, n_nodes);
    for (uint32_t j = 0; j < n_jobs; j++) {
        place(&state, &jobs[j], &placements[j]);
        if (placements[j].starts)
            take(&state, &jobs[j], &placements[j]);
        else if (!jobs[j].grows && waits_for_busy_nodes_only(&state, &jobs[j]))
            for (uint32_t i = 0; i < state.n; i++)
                if (fit_of_machine(&jobs[j], &nodes[i]) == FIT_YES) state.held[i] = true;
    }
}
