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
    FIT_CORES,
    FIT_GPU,
    FIT_AWAY,
    FIT_BUSY,
    FIT_HELD,
    FIT_YES
} fit_t;

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
    if (!node->ready) return FIT_AWAY;
    if (node->busy) return FIT_BUSY;
    return held ? FIT_HELD : FIT_YES;
}

static uint32_t wanted_at_least(const sched_job_t *job)
{
    return job->n_pinned > 0 ? job->n_pinned : job->min_nodes;
}

static uint32_t wanted_at_most(const sched_job_t *job)
{
    if (job->n_pinned > 0) return job->n_pinned;
    return job->max_nodes < SCHED_WORLD_MAX ? job->max_nodes : SCHED_WORLD_MAX;
}

inspan_status_t sched_admit(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes,
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
    const sched_node_t *largest = NULL;
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (job->n_pinned > 0 && !is_pinned(job, nodes[i].name)) continue;
        if (largest == NULL || nodes[i].memory_bytes > largest->memory_bytes) largest = &nodes[i];
        if (job->n_pinned > 0 && nodes[i].memory_bytes < job->memory_bytes) {
            largest = &nodes[i];
            break;
        }
    }
    if (largest == NULL || largest->memory_bytes >= job->memory_bytes) return INSPAN_OK;
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

static bool same_machine(const sched_node_t *a, const sched_node_t *b)
{
    return a == b || (a->machine[0] != '\0' && strcmp(a->machine, b->machine) == 0);
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

static void explain(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes, const bool *held,
                    uint32_t fitting, bool unreachable, char *why)
{
    static const char *const reasons[] = {
        [FIT_CORES] = "has too few cores",
        [FIT_GPU] = "has no GPU",
        [FIT_AWAY] = "is away",
        [FIT_BUSY] = "is busy",
        [FIT_HELD] = "is kept for an earlier job",
    };
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
    const char *opening = " (";
    for (uint32_t i = 0, told = 0; i < n_nodes && told < 4 && used < SCHED_WHY_MAX - 1; i++) {
        fit_t fit = fit_now(job, &nodes[i], held[i]);
        if (fit == FIT_YES || fit == FIT_NOT_PINNED) continue;
        size_t left = SCHED_WHY_MAX - (size_t)used;
        if (fit == FIT_MEMORY)
            used += snprintf(why + used, left, "%snode %s has %s", opening, nodes[i].name,
                             units_format_size(nodes[i].memory_bytes, text, sizeof text));
        else
            used += snprintf(why + used, left, "%snode %s %s", opening, nodes[i].name, reasons[fit]);
        opening = ", ";
        told++;
    }
    if (opening[0] == ',' && used < SCHED_WHY_MAX - 1)
        snprintf(why + used, SCHED_WHY_MAX - (size_t)used, ")");
}

/* A node that this job would take, too, if it waited for the end of another job's last process. */
static const sched_node_t *worth_waiting_for(const sched_job_t *job, const sched_node_t *nodes,
                                             uint32_t n_nodes, const bool *held)
{
    for (uint32_t i = 0; i < n_nodes; i++)
        if (nodes[i].leaving && !held[i] && fit_now(job, &nodes[i], false) == FIT_BUSY) return &nodes[i];
    return NULL;
}

static void place(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes, const bool *held,
                  sched_placement_t *placement)
{
    candidate_t candidates[SCHED_NODES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_nodes; i++)
        if (fit_now(job, &nodes[i], held[i]) == FIT_YES)
            candidates[n++] = (candidate_t){&nodes[i], i, job->gpu};
    uint32_t reachable = wanted_at_most(job) > 1 ? keep_reachable(candidates, n) : n;
    uint32_t wanted = wanted_at_least(job);
    placement->starts = reachable >= wanted && wanted > 0;
    placement->n_nodes = 0;
    placement->why[0] = '\0';
    if (!placement->starts) {
        explain(job, nodes, n_nodes, held, reachable, reachable < n, placement->why);
        return;
    }
    const sched_node_t *next = worth_waiting_for(job, nodes, n_nodes, held);
    if (reachable < wanted_at_most(job) && next != NULL) {
        placement->starts = false;
        snprintf(placement->why, sizeof placement->why, "waits for node %s, whose last job is just ending",
                 next->name);
        return;
    }
    qsort(candidates, reachable, sizeof candidates[0], stronger_first);
    if (reachable > wanted_at_most(job)) reachable = wanted_at_most(job);
    qsort(candidates, reachable, sizeof candidates[0], by_name);
    placement->n_nodes = reachable;
    for (uint32_t i = 0; i < reachable; i++) placement->nodes[i] = candidates[i].index;
}

/* A job that waits for machines which are away must not keep the present ones idle. */
static bool waits_for_busy_nodes_only(const sched_job_t *job, const sched_node_t *nodes, uint32_t n_nodes)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < n_nodes; i++)
        present += nodes[i].ready && fit_of_machine(job, &nodes[i]) == FIT_YES;
    return present >= wanted_at_least(job);
}

void sched_round(const sched_job_t *jobs, uint32_t n_jobs, const sched_node_t *nodes, uint32_t n_nodes,
                 sched_placement_t *placements)
{
    bool held[SCHED_NODES_MAX] = {false};
    if (n_nodes > SCHED_NODES_MAX) n_nodes = SCHED_NODES_MAX;
    for (uint32_t j = 0; j < n_jobs; j++) {
        place(&jobs[j], nodes, n_nodes, held, &placements[j]);
        if (placements[j].starts)
            for (uint32_t i = 0; i < placements[j].n_nodes; i++) held[placements[j].nodes[i]] = true;
        else if (waits_for_busy_nodes_only(&jobs[j], nodes, n_nodes))
            for (uint32_t i = 0; i < n_nodes; i++)
                if (fit_of_machine(&jobs[j], &nodes[i]) == FIT_YES) held[i] = true;
    }
}
