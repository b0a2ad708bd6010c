#ifndef SIM_DISK_H
#define SIM_DISK_H

#include "sim/internal.h"

struct sim_artifact {
    bool there;
    uint32_t step; /* a lineage from it begins with this step */
    uint64_t view;
    uint32_t worker;
    sim_model_t model;
};

/* What is durable; only whole transactions are ever in it. */
typedef struct sim_registry {
    bool job;
    control_state_t state, outcome;
    uint32_t world;
    control_rank_t ranks[SIM_WORKERS];
    control_view_t view;
    sim_artifact_t checkpoint, result;
} sim_registry_t;

typedef struct sim_folder { /* of a node: steps; 0: none */
    uint32_t writing, complete;
    bool synced, complete_synced;
} sim_folder_t;

struct sim_disks {
    sim_registry_t registry;
    sim_folder_t folders[SIM_HOSTS];
    bool torn; /* the fault that strikes in a transaction tears it */
};

typedef enum sim_row { SIM_ROW_JOB, SIM_ROW_VIEW, SIM_ROW_CHECKPOINT, SIM_ROW_RESULT } sim_row_t;
/* One transaction; view or artifact: what the row is about. false: the manager died in it. */
bool sim_registry_write(sim_t *sim, sim_row_t row, const control_job_t *job, const sim_view_t *view,
                        const sim_artifact_t *artifact);

#endif
