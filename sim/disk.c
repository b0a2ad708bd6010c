/*
 * Disks: the manager's registry, whose transactions are durable or not there at all, and the checkpoint
 * folders of the nodes, of which a power cut takes what was not synced.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/disk.h"
#include "sim/words.h"

inspan_status_t sim_disks_open(sim_t *sim)
{
    sim->disks = calloc(1, sizeof *sim->disks);
    return sim->disks != NULL ? INSPAN_OK : INSPAN_NO_MEMORY;
}

void sim_disks_free(sim_t *sim)
{
    free(sim->disks);
}

/* ---- The registry ------------------------------------------------------------------------------ */

static void put_job(sim_registry_t *registry, const control_job_t *job)
{
    registry->job = true;
    registry->state = job->state;
    registry->outcome = job->outcome;
    if (job->world > SIM_WORKERS) abort();
    registry->world = job->world;
    if (job->world > 0) memcpy(registry->ranks, job->ranks, job->world * sizeof *job->ranks);
}

/* One transaction. false: the manager died in it, before or after it was durable. */
bool sim_registry_write(sim_t *sim, sim_row_t row, const control_job_t *job, const sim_view_t *view,
                        const sim_artifact_t *artifact)
{
    sim_registry_t *registry = &sim->disks->registry;
    sim->disks->torn = false;
    if (sim_moment(sim, SIM_AT_STORE, SIM_MANAGER) && sim->disks->torn) {
        if (sim_planted(TORNVIEW) && row == SIM_ROW_VIEW) registry->view.number = job->members.number;
        return false;
    }
    switch (row) {
    case SIM_ROW_JOB: put_job(registry, job); break;
    case SIM_ROW_VIEW:
        put_job(registry, job);
        registry->view = job->members;
        sim_check_view_stored(sim, view);
        break;
    case SIM_ROW_CHECKPOINT:
        registry->checkpoint = *artifact;
        sim_check_registered(sim, SIM_KIND_CHECKPOINT, artifact);
        break;
    case SIM_ROW_RESULT:
        registry->result = *artifact;
        sim_check_registered(sim, SIM_KIND_RESULT, artifact);
        break;
    }
    return sim_alive(sim, SIM_MANAGER);
}

/* ---- Checkpoints ------------------------------------------------------------------------------- */

enum { WRITE_DATA, WRITE_SYNC, WRITE_RENAME, WRITE_RESULT = 10 };

static void write_in(sim_t *sim, sim_worker_t *worker, uint32_t stage)
{
    const ns_t after = NS_PER_US * (ns_t)(200 + sim_draw_below(&worker->draw, 5000));
    sim_push(sim, after, SIM_EV_WRITE, worker->slot, stage,
             sim->processes[sim_worker_process(worker->slot)].life);
}

static void tell_saved(sim_t *sim, sim_worker_t *worker, uint32_t kind, uint64_t step,
                       const sim_model_t *model)
{
    sim_msg_t *msg = sim_msg(SIM_L_SAVED, model, sizeof *model);
    msg->a = kind;
    msg->b = (uint32_t)step;
    msg->view = elastic_view(worker->core);
    sim_send(sim, worker->up, SIM_LANE_WORDS, msg);
}

/* Called at every commit. `step` was committed. R4: what was saved of a step is told after the next one
 * committed. */
void sim_worker_checkpoint(sim_t *sim, sim_worker_t *worker, uint64_t step)
{
    const sim_config_t *config = &sim->config;
    if (worker->saved_due && step >= worker->saved_step) {
        worker->saved_due = false;
        tell_saved(sim, worker, SIM_KIND_CHECKPOINT, worker->saved_step, &worker->save_model);
    }
    if (config->keep_every == 0 || (step + 1) % config->keep_every != 0 || sim_light(sim, step)) return;
    if (!elastic_is_leader(worker->core) || elastic_role(worker->core) != ELASTIC_FULL) return;
    if (worker->saving || worker->saved_due) return;
    worker->saving = true;
    worker->save_step = step + 1; /* with which a new lineage would begin */
    worker->save_model = worker->model;
    sim_folder_t *folder = &sim->disks->folders[worker->host];
    folder->writing = (uint32_t)worker->save_step;
    folder->synced = false;
    write_in(sim, worker, WRITE_DATA);
}

static void renamed(sim_t *sim, sim_worker_t *worker)
{
    sim_folder_t *folder = &sim->disks->folders[worker->host];
    folder->complete = folder->writing;
    folder->complete_synced = folder->synced;
    worker->saving = false;
    worker->saved_step = worker->save_step;
    if (worker->committed > worker->saved_step || sim_planted(EARLYPUB))
        tell_saved(sim, worker, SIM_KIND_CHECKPOINT, worker->saved_step, &worker->save_model);
    else
        worker->saved_due = true;
}

void sim_disk_write_event(sim_t *sim, sim_worker_t *worker, uint32_t stage)
{
    if (stage == WRITE_RESULT) {
        tell_saved(sim, worker, SIM_KIND_RESULT, sim->config.steps, &worker->model);
        return;
    }
    if (sim_moment(sim, SIM_AT_SAVE, sim_worker_process(worker->slot))) return;
    sim_folder_t *folder = &sim->disks->folders[worker->host];
    switch (stage) {
    case WRITE_DATA:
        if (sim_planted(LIVEWRITE)) worker->save_model = worker->model; /* memory that trains on */
        write_in(sim, worker, sim_planted(RENAMEFIRST) ? WRITE_RENAME : WRITE_SYNC);
        break;
    case WRITE_SYNC:
        folder->synced = true;
        write_in(sim, worker, WRITE_RENAME);
        break;
    case WRITE_RENAME: renamed(sim, worker); break;
    default: break;
    }
}

void sim_disk_save_result(sim_t *sim, sim_worker_t *worker)
{
    write_in(sim, worker, WRITE_RESULT);
}

/* Power off: what was not synced is gone. */
void sim_disk_power_cut(sim_t *sim, uint32_t host)
{
    sim_folder_t *folder = &sim->disks->folders[host];
    folder->writing = 0;
    if (folder->complete != 0 && !folder->complete_synced)
        sim_broken(sim, "I7",
                   "node %u: the checkpoint folder of step %u is named complete, its data was never synced: "
                   "expected whole after a power cut, found empty",
                   host, folder->complete);
}
