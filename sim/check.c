/*
 * The invariants. The oracle knows what one machine alone would have computed; ghosts remember what was
 * committed, issued, registered and acknowledged, also by those that died or were left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/disk.h"
#include "sim/words.h"

enum { LINEAGES = 32 };

/* I5: from the last fault, or the last commit after it, to the next. The longest seen is 2.4 s. */
static const ns_t bound = 8 * NS_PER_S;

typedef struct step_ghost {
    bool there;
    uint32_t by;
    uint64_t view, dropped;
    uint32_t layout;
    uint64_t tags[SIM_BUCKETS]; /* view in which each bucket was reduced */
    sim_sums_t sums;
} step_ghost_t;

typedef struct lineage {
    uint64_t from;                     /* step that it begins with */
    uint64_t next;                     /* first step that nobody has committed */
    sim_model_t models[SIM_STEPS + 3]; /* before step s */
    step_ghost_t steps[SIM_STEPS + 3];
} lineage_t;

typedef struct view_ghost {
    bool known, stored;
    uint32_t lineage;
    sim_view_t view;
} view_ghost_t;

struct sim_checks {
    lineage_t lineages[LINEAGES];
    uint32_t n_lineages;
    view_ghost_t views[SIM_VIEWS];
    ns_t progress;     /* the last commit of a new step */
    uint64_t acked[3]; /* kind: step + 1 that was acknowledged */
    uint64_t computed;
};

inspan_status_t sim_checks_open(sim_t *sim)
{
    sim->checks = calloc(1, sizeof *sim->checks);
    return sim->checks != NULL ? INSPAN_OK : INSPAN_NO_MEMORY;
}

void sim_checks_free(sim_t *sim)
{
    free(sim->checks);
}

void sim_checks_computed(sim_t *sim, uint32_t n)
{
    sim->checks->computed += n;
}

/* ---- I3: views --------------------------------------------------------------------------------- */

static bool same_view(const sim_view_t *a, const sim_view_t *b)
{
    return a->world == b->world && a->first == b->first &&
           memcmp(a->numbers, b->numbers, a->world * sizeof *a->numbers) == 0;
}

static const char *members_text(const sim_view_t *view, char text[64])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < view->world; i++)
        snprintf(text + strlen(text), 64 - strlen(text), "%s%u", i > 0 ? "," : "", view->numbers[i]);
    return text;
}

static view_ghost_t *ghost_of(sim_t *sim, const sim_view_t *view)
{
    if (view->number == 0 || view->number >= SIM_VIEWS) {
        sim_broken(sim, "I5", "view %llu: so many views that it looks endless",
                   (unsigned long long)view->number);
        return NULL;
    }
    view_ghost_t *ghost = &sim->checks->views[view->number];
    char was[64], is[64];
    if (ghost->known && !same_view(&ghost->view, view))
        sim_broken(sim, "I3",
                   "view %llu: issued with members {%s}, and again with {%s}: a number is never used twice",
                   (unsigned long long)view->number, members_text(&ghost->view, was), members_text(view, is));
    ghost->known = true;
    ghost->view = *view;
    return ghost;
}

static void new_lineage(sim_t *sim, view_ghost_t *ghost)
{
    sim_checks_t *checks = sim->checks;
    if (checks->n_lineages == LINEAGES) {
        sim_broken(sim, "I5", "%u lineages: the job starts again and again", checks->n_lineages);
        return;
    }
    lineage_t *lineage = &checks->lineages[checks->n_lineages];
    const sim_artifact_t *from = &sim->disks->registry.checkpoint;
    memset(lineage, 0, sizeof *lineage);
    lineage->from = lineage->next = from->there ? from->step : 0;
    if (from->there)
        lineage->models[from->step] = from->model;
    else
        sim_model_first(sim, &lineage->models[0]);
    ghost->lineage = checks->n_lineages++;
}

void sim_check_view_stored(sim_t *sim, const sim_view_t *view)
{
    view_ghost_t *ghost = ghost_of(sim, view);
    if (ghost == NULL || ghost->stored) return;
    ghost->stored = true;
    for (uint32_t i = 0; i < view->world; i++)
        if (i > 0 && view->numbers[i] <= view->numbers[i - 1])
            sim_broken(sim, "I3", "view %llu: its members do not grow: %u after %u",
                       (unsigned long long)view->number, view->numbers[i], view->numbers[i - 1]);
    if (view->first)
        new_lineage(sim, ghost);
    else if (sim->checks->n_lineages > 0)
        ghost->lineage = sim->checks->n_lineages - 1;
}

void sim_check_announced(sim_t *sim, const sim_view_t *view)
{
    view_ghost_t *ghost = ghost_of(sim, view);
    if (ghost == NULL) return;
    if (!ghost->stored && !sim_planted(REUSE))
        sim_broken(sim, "I7", "view %llu is announced and not in the registry",
                   (unsigned long long)view->number);
}

void sim_check_view_entered(sim_t *sim, const sim_worker_t *worker, const sim_view_t *view)
{
    if (ghost_of(sim, view) == NULL) return;
    if (view->number <= worker->entered)
        sim_broken(sim, "I3", "rank %u enters view %llu after view %llu", worker->slot,
                   (unsigned long long)view->number, (unsigned long long)worker->entered);
}

/* ---- I1, I2, I4: commits ----------------------------------------------------------------------- */

static lineage_t *lineage_of(sim_t *sim, uint64_t view)
{
    if (view == 0 || view >= SIM_VIEWS || sim->checks->n_lineages == 0) return NULL;
    return &sim->checks->lineages[sim->checks->views[view].lineage];
}

static uint64_t set_bits(const elastic_set_t *set)
{
    return set->words[0];
}

#define WHERE "rank %u (node %u), view %llu, step %llu"
#define WHERE_ARGS(worker, step)                                                                             \
    (worker)->slot, (worker)->host, (unsigned long long)elastic_view((worker)->core),                        \
        (unsigned long long)(step)

/* A bucket has just been reduced or passed on: B1. */
void sim_check_bucket(sim_t *sim, const sim_worker_t *worker, uint32_t bucket)
{
    const sim_config_t *config = &sim->config;
    const elastic_set_t expected = elastic_expected(worker->core);
    const bool tally = bucket + 1 == sim_buckets(sim, worker->layout);
    const double *marks = worker->reduced.values[bucket] + sim_marks(sim, worker->layout, bucket);
    for (uint32_t lease = 0; lease < config->leases; lease++) {
        const bool counts = elastic_has(&expected, lease);
        const bool good = tally ? (marks[lease] != 0) == counts : marks[lease] == (counts ? 1 : 0);
        if (good) continue;
        sim_broken(sim, "I2", WHERE ", bucket %u: lease %u counts %g times, expected %s",
                   WHERE_ARGS(worker, elastic_step(worker->core)), bucket, lease,
                   tally ? (double)(marks[lease] != 0) : marks[lease], counts ? "once" : "0 (dropped)");
        return;
    }
}

static void check_sums(sim_t *sim, const sim_worker_t *worker, uint64_t step, const lineage_t *lineage,
                       uint64_t dropped)
{
    const sim_config_t *config = &sim->config;
    sim_sums_t right;
    memset(&right, 0, sizeof right);
    const uint32_t layout = worker->layout, buckets = sim_buckets(sim, layout);
    for (uint32_t b = sim_light(sim, step) ? buckets - 1 : 0; b < buckets; b++) {
        for (uint32_t lease = 0; lease < config->leases; lease++)
            if (!(dropped >> lease & 1))
                sim_add_lease(sim, &right, &lineage->models[step], step, lease, layout, b, 0);
        const bool tally = b + 1 == buckets;
        for (uint32_t k = tally ? config->leases : 0; k < sim_width(sim, layout, b); k++) {
            const double found = worker->reduced.values[b][k], expected = right.values[b][k];
            if (found == expected) continue;
            const bool mark = !tally && k >= sim_marks(sim, layout, b);
            sim_broken(sim, mark ? "I2" : "I1",
                       WHERE ": commits bucket %u with element %u = %g, one machine alone has %g%s",
                       WHERE_ARGS(worker, step), b, k, found, expected,
                       mark ? " (how often a lease counts)" : "");
            return;
        }
    }
}

static void check_tally(sim_t *sim, const sim_worker_t *worker, uint64_t step, uint64_t dropped)
{
    const sim_config_t *config = &sim->config;
    const double *owners = worker->reduced.values[sim_buckets(sim, worker->layout) - 1];
    for (uint32_t lease = 0; lease < config->leases; lease++) {
        const bool counts = !(dropped >> lease & 1);
        const double most = sim->n_workers;
        if (counts ? owners[lease] >= 1 && owners[lease] <= most : owners[lease] == 0) continue;
        sim_broken(sim, "I2", WHERE ": the ledger says %g for lease %u, expected %s",
                   WHERE_ARGS(worker, step), owners[lease], lease,
                   counts ? "one worker" : "nobody (dropped)");
        return;
    }
}

static bool same_bits(sim_t *sim, const sim_sums_t *a, const sim_sums_t *b, uint32_t layout, bool light)
{
    const uint32_t buckets = sim_buckets(sim, layout);
    for (uint32_t k = light ? buckets - 1 : 0; k < buckets; k++)
        if (memcmp(a->values[k], b->values[k], sim_width(sim, layout, k) * sizeof(double)) != 0) return false;
    return true;
}

/* Whole numbers are the same in any order of addition, what is trained is not: the bits of a bucket are those
 * of the view in which it was reduced. */
static void check_tags(sim_t *sim, const sim_worker_t *worker, uint64_t step, step_ghost_t *ghost, bool first)
{
    const uint32_t buckets = sim_buckets(sim, worker->layout);
    for (uint32_t b = sim_light(sim, step) ? buckets - 1 : 0; b < buckets; b++) {
        uint64_t tag = 0;
        if (!elastic_held(worker->core, b, &tag)) {
            sim_broken(sim, "I1", WHERE ": commits without bucket %u", WHERE_ARGS(worker, step), b);
            return;
        }
        if (first) ghost->tags[b] = tag;
        if (ghost->tags[b] == tag) continue;
        sim_broken(
            sim, "I1",
            WHERE
            ": commits bucket %u as reduced in view %llu, rank %u has committed it as reduced in view %llu: "
            "in floating point other bits",
            WHERE_ARGS(worker, step), b, (unsigned long long)tag, ghost->by,
            (unsigned long long)ghost->tags[b]);
        return;
    }
}

static void note_progress(sim_t *sim)
{
    sim_checks_t *checks = sim->checks;
    const ns_t from = checks->progress > sim->calm ? checks->progress : sim->calm;
    if (checks->progress != 0 && sim->now - from > sim->result->worst) sim->result->worst = sim->now - from;
    checks->progress = sim->now;
}

/* Before the update is applied; the core answers for this step still. */
void sim_check_commit(sim_t *sim, sim_worker_t *worker, uint64_t step)
{
    lineage_t *lineage = lineage_of(sim, elastic_view(worker->core));
    const elastic_set_t dropped_set = elastic_dropped(worker->core);
    const uint64_t dropped = set_bits(&dropped_set);
    sim->result->commits++;
    if (lineage == NULL || step >= SIM_STEPS + 2) {
        sim_broken(sim, "I4", WHERE ": commits without a lineage, or a step that does not exist",
                   WHERE_ARGS(worker, step));
        return;
    }
    const bool follows = worker->newcomer && !worker->any_commit ? true : step == worker->committed;
    if (!follows || step > lineage->next || step < lineage->from) {
        sim_broken(sim, "I4", WHERE ": commits after step %lld, in a lineage whose next step is %llu",
                   WHERE_ARGS(worker, step), (long long)worker->committed - 1,
                   (unsigned long long)lineage->next);
        return;
    }
    if (dropped != 0 && (!sim->config.drop || sim_light(sim, step)))
        sim_broken(sim, "I2", WHERE ": leases %llx are dropped, by policy none may be",
                   WHERE_ARGS(worker, step), (unsigned long long)dropped);
    step_ghost_t *ghost = &lineage->steps[step];
    check_tally(sim, worker, step, dropped);
    if (!ghost->there) {
        *ghost = (step_ghost_t){.there = true,
                                .by = worker->slot,
                                .view = elastic_view(worker->core),
                                .dropped = dropped,
                                .layout = worker->layout,
                                .sums = worker->reduced};
        check_tags(sim, worker, step, ghost, true);
        check_sums(sim, worker, step, lineage, dropped);
        lineage->models[step + 1] = lineage->models[step];
        for (uint32_t b = 0; b + 1 < sim->config.buckets && !sim_light(sim, step); b++)
            sim_apply(sim, &lineage->models[step + 1], sim_sum(sim, &worker->reduced, worker->layout, b), b);
        lineage->next = step + 1;
        note_progress(sim);
    } else if (ghost->layout != worker->layout) { /* Y1 */
        sim_broken(sim, "I1", WHERE ": commits with layout %u, rank %u did with %u", WHERE_ARGS(worker, step),
                   worker->layout, ghost->by, ghost->layout);
    } else if (ghost->dropped != dropped ||
               !same_bits(sim, &ghost->sums, &worker->reduced, ghost->layout, sim_light(sim, step))) {
        check_sums(sim, worker, step, lineage, dropped);
        sim_broken(sim, "I1", WHERE ": commits other bits than rank %u did in view %llu",
                   WHERE_ARGS(worker, step), ghost->by, (unsigned long long)ghost->view);
    }
}

/* View in which a step was first committed by anyone; 0: not yet. */
uint64_t sim_check_first_commit(sim_t *sim, const sim_worker_t *worker, uint64_t step)
{
    const lineage_t *lineage = lineage_of(sim, elastic_view(worker->core));
    return lineage != NULL && lineage->steps[step].there ? lineage->steps[step].view : 0;
}

/* After the update: the weights that this member has must be those of one machine alone. */
void sim_check_weights(sim_t *sim, const sim_worker_t *worker, uint64_t step)
{
    const lineage_t *lineage = lineage_of(sim, elastic_view(worker->core));
    if (lineage == NULL || sim->over) return;
    for (uint32_t b = 0; b + 1 < sim->config.buckets; b++) {
        if (!elastic_chunk(worker->core, b)) continue;
        const sim_model_t *right = &lineage->models[step + 1];
        const size_t bytes = sim->config.elements * sizeof(double);
        if (memcmp(right->weights[b], worker->model.weights[b], bytes) == 0 &&
            memcmp(right->moments[b], worker->model.moments[b], bytes) == 0)
            continue;
        sim_broken(sim, "I1",
                   WHERE
                   ": weights of chunk %u after the commit are not those of one machine alone (role %s)",
                   WHERE_ARGS(worker, step), b, elastic_role_name(elastic_role(worker->core)));
        return;
    }
}

/* N1: a newcomer is complete within a bound. One that wants to go never becomes full: it waits for a view
 * without it. */
void sim_check_listens(sim_t *sim, const sim_worker_t *worker)
{
    if (worker->commits_in_view > sim->config.buckets + 3 && !worker->full && !worker->leaving &&
        sim->now > sim->calm)
        sim_broken(sim, "I5",
                   "rank %u listens for %u commits of view %llu and is not full; chunks to copy: %u",
                   worker->slot, worker->commits_in_view, (unsigned long long)worker->entered,
                   sim->config.buckets - 1);
}

/* ---- I4, I7: checkpoints and the result -------------------------------------------------------- */

void sim_check_registered(sim_t *sim, uint32_t kind, const sim_artifact_t *artifact)
{
    const lineage_t *lineage = lineage_of(sim, artifact->view);
    const char *what = kind == SIM_KIND_RESULT ? "the result" : "a checkpoint";
    const unsigned long long view = artifact->view, newest = sim->disks->registry.view.number;
    if (view != newest) {
        sim_broken(sim, "I4",
                   "%s of step %u by rank %u is registered under view %llu, the newest is %llu (P1)", what,
                   artifact->step, artifact->worker, view, newest);
        return;
    }
    if (lineage == NULL || lineage->next < artifact->step) {
        sim_broken(sim, "I4", "%s of step %u by rank %u, view %llu: nobody has committed that far", what,
                   artifact->step, artifact->worker, view);
        return;
    }
    if (kind == SIM_KIND_CHECKPOINT && lineage->next <= artifact->step)
        sim_broken(sim, "I4",
                   "a checkpoint of step %u by rank %u, view %llu, is registered before the next step "
                   "committed (R4)",
                   artifact->step, artifact->worker, view);
    for (uint32_t b = 0; b + 1 < sim->config.buckets; b++)
        if (sim_model_hash(sim, &artifact->model, b) !=
            sim_model_hash(sim, &lineage->models[artifact->step], b)) {
            sim_broken(sim, "I4",
                       "%s of step %u by rank %u, view %llu: chunk %u is not that of the committed step",
                       what, artifact->step, artifact->worker, view, b);
            return;
        }
}

void sim_check_acked(sim_t *sim, uint32_t kind, uint32_t step)
{
    if (sim->checks->acked[kind] < (uint64_t)step + 1) sim->checks->acked[kind] = (uint64_t)step + 1;
}

static void check_durable(sim_t *sim)
{
    const sim_registry_t *registry = &sim->disks->registry;
    const sim_artifact_t *rows[3] = {NULL, &registry->checkpoint, &registry->result};
    for (uint32_t kind = 1; kind < 3; kind++) {
        const uint64_t acked = sim->checks->acked[kind];
        if (acked == 0 || (rows[kind]->there && (uint64_t)rows[kind]->step + 1 >= acked)) continue;
        sim_broken(sim, "I7", "%s of step %llu was acknowledged and is not in the registry",
                   kind == SIM_KIND_RESULT ? "the result" : "the checkpoint", (unsigned long long)acked - 1);
    }
}

void sim_check_acknowledged(sim_t *sim, const sim_worker_t *worker, uint32_t kind, uint32_t step,
                            bool accepted)
{
    const sim_registry_t *registry = &sim->disks->registry;
    const sim_artifact_t *row = kind == SIM_KIND_RESULT ? &registry->result : &registry->checkpoint;
    if (accepted && !(row->there && row->step >= step))
        sim_broken(sim, "I7", "rank %u is told that its file of step %u is registered, the registry has none",
                   worker->slot, step);
}

/* ---- I5 and the end ---------------------------------------------------------------------------- */

static void describe(const sim_t *sim, char *text, size_t size)
{
    const control_job_t *job = sim_manager_job(sim);
    int n = snprintf(text, size, "job %s, view %llu%s%s;", control_state_text(job->state),
                     (unsigned long long)job->view, job->reason[0] != '\0' ? ", " : "", job->reason);
    for (uint32_t i = 0; i < sim->n_workers && n > 0 && (size_t)n < size; i++) {
        const sim_worker_t *worker = sim->workers[i];
        if (worker == NULL || !sim_alive(sim, sim_worker_process(i))) continue;
        n += snprintf(
            text + n, size - (size_t)n, " rank %u %s %s view %llu step %llu%s%s;", i,
            elastic_role_name(elastic_role(worker->core)), elastic_phase_name(elastic_phase(worker->core)),
            (unsigned long long)elastic_view(worker->core), (unsigned long long)elastic_step(worker->core),
            elastic_voted(worker->core) ? " voted" : "",
            worker->comm.state == SIM_COMM_OPENING ? " opening" : "");
    }
}

void sim_check_ended(sim_t *sim)
{
    const control_job_t *job = sim_manager_job(sim);
    char text[700];
    sim->over = true;
    sim_note(sim, "the job ends: %s %s", control_state_text(job->state), job->reason);
    if (job->state == CONTROL_DONE) {
        sim->result->done = true;
        note_progress(sim);
        if (!sim->disks->registry.result.there && !sim_planted(ACKFIRST))
            sim_broken(sim, "I7", "the job is done and its result is not registered");
        return;
    }
    if (strncmp(job->reason, "not started within", 18) == 0) return; /* faults may be in its way that long */
    describe(sim, text, sizeof text);
    sim_broken(sim, "I5", "the job ends, members were left: %s", text);
}

void sim_check_event(sim_t *sim)
{
    const sim_checks_t *checks = sim->checks;
    const ns_t from = checks->progress > sim->calm ? checks->progress : sim->calm;
    check_durable(sim);
    if (sim->now - from <= bound || sim->over) return;
    char text[800];
    describe(sim, text, sizeof text);
    sim_broken(sim, "I5", "no step committed for %.0f s, the last fault ended %.1f s ago: %s",
               ns_to_s(sim->now - from), ns_to_s(sim->now - sim->calm), text);
}
