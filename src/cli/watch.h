/* Following a job until it has ended: its events and a progress line on stderr. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "cli/checkpoints.h"
#include "cli/client.h"
#include "cli/cluster.h"

typedef struct watch_options {
    uint64_t global_batch;   /* for the time left; 0: not shown */
    uint64_t evaluate_every; /* steps between held-out losses, to tell their step; 0: only at start and end */
    interrupt_t *interrupt;
    cluster_t *cluster;              /* a private one: looked after meanwhile; NULL */
    checkpoint_fetch_t *checkpoints; /* is offered what the job registers, its news are shown; NULL */
    ns_t away_bound;                 /* how long a manager that is away is tried again; 0: 60 s */
} watch_options_t;

/*
 * Blocks until the job has ended, in whatever state: *job (client_free). The first Ctrl-C cancels the job,
 * the second leaves it: ABORTED. A manager that is away for longer than away_bound: UNREACHABLE; PEER_LOST: a
 * process of the private cluster has ended.
 */
inspan_status_t watch_job(rpc_client_t *client, uint64_t id, const watch_options_t *options,
                          Inspan__V1__JobInfo **job, inspan_error_t *err);

bool watch_has_ended(const Inspan__V1__JobInfo *job); /* done, failed or cancelled */

/* "step 120/500  loss 2.3104  held-out 2.4012 (step 100)  1520 samples/s  comm 12 %  left 1 min 20 s";
 * held_out_step: the one whose weights the held-out loss is of. */
void watch_format(const Inspan__V1__Progress *progress, uint64_t global_batch, uint64_t held_out_step,
                  char *text, size_t size);

#endif
