/*
 * Elastic training: a step goes on while machines come and go, and counts every sample once. The caller keeps
 * the loop and asks for work; what happens to the members, to gradients and to copies for newcomers happens
 * inside.
 *
 *   inspan_elastic_open(...)
 *   while ((status = inspan_elastic_next(e, &work, &err)) == INSPAN_OK) {
 *       COMPUTE   add the gradients of these samples to the local arrays; where work.last, say of each
 * parameter when its gradient is complete (inspan_elastic_ready); then inspan_elastic_computed APPLY     the
 * step is committed: update the parameters of work.apply from the reduced arrays / work.samples END       all
 * steps are committed and the result is registered; LEFT: this member may go. Stop.
 *   }
 *
 * Gradient memory is owned by the session: per parameter a *local* array (the caller adds to it) and a
 * *reduced* one (the sum over all members, valid from APPLY to the next call of next).
 *
 * Threads: the caller's one training thread; reductions, votes and copies go on behind it. Nothing is
 * allocated in a step whose members stay the same.
 */
#ifndef INSPAN_ELASTIC_H
#define INSPAN_ELASTIC_H

#include <inspan/comm.h>
#include <inspan/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INSPAN_LEASES_MAX 256 /* of a step */

typedef struct inspan_elastic inspan_elastic_t;

typedef struct inspan_parameter {
    const char *name;
    uint64_t count; /* elements */
    uint32_t n_dims;
    const uint64_t *shape; /* (n_dims) */
    void *weights;         /* (count): members of a first view must hold the same bits */
} inspan_parameter_t;

/* One array of optimiser state, in the gradients' dtype; copied to newcomers with its parameter. */
typedef struct inspan_state {
    uint32_t parameter;
    void *data; /* (count) */
    uint64_t count;
} inspan_state_t;

typedef struct inspan_elastic_options {
    inspan_dtype_t dtype; /* of weights, state and gradients: fp32 or fp64 */
    inspan_wire_t
        wire; /* of gradients in fp32 when they are sent; int8 makes up for its rounding in later steps */
    uint32_t
        wires; /* others that they may be sent in, by measured links and speeds; bit of each type; 0: none */
    uint64_t bucket_bytes; /* 0: all gradients / 32, between 1 MB and 25 MB; the first bucket at most 1 MB */
    bool registered;       /* the first buckets follow the order of registration, not the reverse one */
    bool shuffle_buckets;  /* for tests: another order and other cuts at random, every other step */
    bool plan_buckets;     /* order and cuts of buckets follow what is measured */
    uint32_t number;       /* of this worker in the job */
    bool newcomer;         /* starts without weights: copied from the members while they train */
    uint64_t batch, steps; /* samples of a step; training steps */
    uint64_t seed;         /* of the order of samples, for the ledger */
    uint64_t first_step;   /* steps applied already (from a checkpoint); a newcomer's: 0 */
    uint32_t leases;       /* of a step: 1 .. INSPAN_LEASES_MAX, at most batch; 0: chosen */
    uint64_t micro_batch;  /* samples of one COMPUTE, except where one lease has more */
    bool drop;             /* on_loss: drop */
    bool equal_shares;     /* whatever the members' speeds: sums are made in the same order from run to run */
    const inspan_state_t *state; /* (n_state) */
    uint32_t n_state;
    /* In a first view in which this member's speed is not known: a few micro-batches of different sizes,
     * about a second in all, each told by inspan_elastic_calibrated. On the training thread, within next.
     * NULL: speeds are learned from the first steps. */
    void (*calibrate)(void *context);
    void *context;
    int64_t timeout_ns; /* bound of a wait for others; 0: one hour (a peer may compute or save for long) */
} inspan_elastic_options_t;

/* parameters, state arrays and views are the caller's and outlive the session. Does not wait for anybody.
 * INVALID, LIMIT (over 255 buckets), NO_MEMORY. */
INSPAN_API inspan_status_t inspan_elastic_open(const inspan_views_t *views,
                                               const inspan_parameter_t *parameters, uint32_t n,
                                               const inspan_elastic_options_t *options,
                                               inspan_elastic_t **elastic, inspan_error_t *err);
INSPAN_API void inspan_elastic_close(inspan_elastic_t *elastic);

/* Valid until work.layout is another one: ask again then. */
INSPAN_API void *inspan_elastic_local(inspan_elastic_t *elastic, uint32_t parameter);         /* (count) */
INSPAN_API const void *inspan_elastic_reduced(inspan_elastic_t *elastic, uint32_t parameter); /* (count) */

/* Sums over samples; fp64 all the way. */
typedef struct inspan_tally {
    double loss_sum;
    double evaluation_loss_sum, evaluation_samples, evaluation_right;
} inspan_tally_t;

typedef enum inspan_work_type {
    INSPAN_WORK_COMPUTE,
    INSPAN_WORK_APPLY,
    INSPAN_WORK_END,
    INSPAN_WORK_LEFT
} inspan_work_type_t;

/* Steps [0, steps) train. Step `steps` (closing) and `steps + 1` (saving) are *light*: no samples, no
 * gradients, only the tally. The saving step is one member's: its COMPUTE means "save the result and have it
 * registered under work.view", and inspan_elastic_computed that this is done; to be asked again (the view
 * changed meanwhile) call next without it. */
typedef struct inspan_work {
    inspan_work_type_t type;
    uint64_t step, view;
    uint64_t layout; /* 0, and one more each time that the local and reduced arrays have moved */
    bool light, saving;

    /* COMPUTE */
    uint32_t first_lease, leases; /* of total_leases */
    uint32_t total_leases;
    uint64_t first_sample, samples; /* positions in the endless order of samples; 0 samples in a light step */
    bool last;

    /* APPLY. No training step (light): samples 0, nothing to update, only the tally. */
    uint64_t samples_counted; /* divide the reduced sums by it */
    inspan_tally_t tally;     /* of all members */
    const bool *apply;        /* (n parameters) NULL: all */
} inspan_work_t;

/*
 * The next piece of work. Blocks while there is none: for other members, for a view. Returns at once after a
 * failure of the caller's own. ABORTED: this member is stopped. MISMATCH: members disagree (bits of weights,
 * layout; a lease counted twice or never): nothing of the step was applied. TIMEOUT: nobody went on for
 * timeout_ns. PEER_LOST: the agent is gone. A lost or new member is no failure.
 */
INSPAN_API inspan_status_t inspan_elastic_next(inspan_elastic_t *elastic, inspan_work_t *work,
                                               inspan_error_t *err);

/* In the backward pass of work that is `last`: the parameter's local sum is complete. */
INSPAN_API void inspan_elastic_ready(inspan_elastic_t *elastic, uint32_t parameter);

/* The leases of the last COMPUTE are in the local sums, with these sums of the tally. INVALID: a gradient was
 * never (or twice) ready. */
INSPAN_API inspan_status_t inspan_elastic_computed(inspan_elastic_t *elastic, const inspan_tally_t *tally,
                                                   inspan_error_t *err);

/* Of the COMPUTE or APPLY that is out, what was not pure compute; adds up until the next one. The driver
 * takes the time from next to computed (of an APPLY: to the next call of next) and leaves this out. */
typedef struct inspan_timing {
    int64_t input_ns; /* waiting for samples */
    int64_t other_ns; /* held-out samples, checkpoints */
} inspan_timing_t;
INSPAN_API void inspan_elastic_timing(inspan_elastic_t *elastic, const inspan_timing_t *timing);

/* In `calibrate`: so many samples in one micro-batch took so long. What their gradients have left in the
 * local arrays is cleared. */
INSPAN_API void inspan_elastic_calibrated(inspan_elastic_t *elastic, uint64_t samples, int64_t compute_ns);

/* Hash of the weights as they are now (0: none), before the last COMPUTE of a step is computed: the members'
 * are compared; MISMATCH names the odd ones. */
INSPAN_API void inspan_elastic_hint(inspan_elastic_t *elastic, uint64_t weights_hash);

/* true: next has something to say about the members; whoever computes for long may look. Any thread. */
INSPAN_API bool inspan_elastic_changed(const inspan_elastic_t *elastic);

/* A failure of the caller's own: all operations of the view end, on all members, with this cause. Any thread.
 */
INSPAN_API void inspan_elastic_abort(inspan_elastic_t *elastic, inspan_status_t status, const char *text);

typedef struct inspan_elastic_stats {
    uint32_t number, members;                         /* this worker; members of the present view */
    bool full;                                        /* has all weights and state */
    uint64_t view, views;                             /* the present one; views that this worker was in */
    char node[INSPAN_NAME_MAX];                       /* this worker's */
    uint64_t samples;                                 /* computed here, also what did not count in the end */
    uint64_t samples_recomputed;                      /* of these, leases that a lost member had been given */
    uint64_t bytes_sent, bytes_reduced, bytes_copied; /* copied: to and from newcomers */
    int64_t exposed_ns;                               /* in next: neither computing nor applying */
    int64_t commit_ns;                                /* of it: own vote -> commit */
    uint64_t share;          /* samples of the last training step that the table gave to this worker */
    uint64_t samples_stolen; /* computed here in place of members that were late (also in samples) */
    uint64_t steals;         /* runs with such samples */
    uint64_t resplits;       /* steps whose table gave this worker another share, same members */
    double sample_ns;        /* pure compute of one sample as it is now; 0: not known */
    double uncertainty;      /* of that, relative */
    double step_ns;          /* of each step whatever the share: the update */
    uint64_t run, last_run;  /* samples of a micro-batch; of the last one of a step */
    int64_t reduce_ns;       /* what the reductions of a step take when nobody waits for anybody */
    inspan_wire_t wire;      /* of the gradients in the present step */
    uint64_t rewires;        /* steps from which on it was another than before */
    char wire_reason[160];   /* of the newest change, in words, where this member chose it; else "" */
    uint32_t buckets;        /* that gradients lie in */
    uint64_t layouts;        /* times that gradients came to lie in other buckets than before */
    char layout_reason[240]; /* of the newest change, in words, where this member chose it; else "" */
    int64_t rested_ns;       /* between micro-batches, as the machine's owner wishes; not in exposed_ns */
    uint64_t recoveries;     /* views in which members of the one before were missing */
    int64_t recovery_ns, recovery_worst_ns; /* failure known -> next commit: all together, the longest */
} inspan_elastic_stats_t;

/* Hand over what the ledger has of committed steps now, and not only some 200 ms later. The training thread.
 */
INSPAN_API void inspan_elastic_tell_ledger(inspan_elastic_t *elastic);

INSPAN_API void inspan_elastic_stats(const inspan_elastic_t *elastic, inspan_elastic_stats_t *stats);

/* This member became slower or faster, and why. */
typedef struct inspan_verdict {
    uint64_t step;      /* the first one that was so */
    double factor;      /* speed against before */
    char cause[16];     /* "quota", "heat", ... "unknown" */
    char evidence[160]; /* "CPU quota 0.24 cores, was 0.80" */
} inspan_verdict_t;
#define INSPAN_VERDICTS_MAX 8
/* The newest verdicts, oldest first; returns how many. The training thread. */
INSPAN_API uint32_t inspan_elastic_verdicts(const inspan_elastic_t *elastic,
                                            inspan_verdict_t verdicts[INSPAN_VERDICTS_MAX]);

/* Numbers of the present view's members, increasing; their number. Valid until the next call of next. */
INSPAN_API uint32_t inspan_elastic_members(const inspan_elastic_t *elastic, const uint32_t **numbers);

/* Number of the worker that computed the lease in the step of the present APPLY; -1: it was dropped. */
INSPAN_API int64_t inspan_elastic_lease_owner(const inspan_elastic_t *elastic, uint32_t lease);

#ifdef __cplusplus
}
#endif
#endif
