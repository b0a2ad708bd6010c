/*
 * For tests of the trainer: a job's workers as processes of their own, each with a real session, driver and
 * sockets on loopback, and a manager and agents that the test plays. A worker that is to be killed or stopped
 * really is, by a signal, at the point where the test wants it.
 *
 * The test's process has one thread; workers are forked from it, and what they find out lies in shared
 * memory.
 */
#ifndef TRAIN_CLUSTER_TEST_H
#define TRAIN_CLUSTER_TEST_H

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "train/trainer_internal.h"
#include "worker/views.h"

enum { WORKERS_MAX = 8, STEPS_MAX = 64, ELEMENTS_MAX = 32768, LEASES_SEEN = 32 };

/* What becomes of a worker, at a step. */
typedef enum trouble_type {
    NO_TROUBLE,
    KILL_IN_COMPUTE,    /* before its samples */
    KILL_IN_BUCKET,     /* in the backward pass, some buckets are being reduced already */
    KILL_AFTER_VOTE,    /* its vote is on its way */
    KILL_BEFORE_COMMIT, /* a leader: all votes are in, nobody was told */
    KILL_IN_COMMIT,     /* a leader: it has committed and told one member alone */
    KILL_AFTER_APPLY,
    STOP_IN_COMPUTE, /* SIGSTOP: silent, its connections stand */
    DAMAGE_WEIGHTS,  /* a bit flips */
    LOSE_A_LEASE,    /* a lease's samples do not get into the sums */
    CANCEL,          /* the agent says STOP */
    LEAVE,           /* the agent asks it to leave */
    GIVE_HALF        /* its owner gives half of the machine from now on */
} trouble_type_t;

typedef struct trouble {
    trouble_type_t type;
    uint64_t step;
} trouble_t;

/* In shared memory: what a worker found. */
typedef struct outcome {
    bool ended; /* trainer_run came back */
    inspan_status_t status;
    inspan_error_t err;
    uint64_t hashes[STEPS_MAX];   /* 0: not applied here */
    uint64_t reported[STEPS_MAX]; /* hashes that progress had, by steps done */
    int64_t owners[STEPS_MAX][LEASES_SEEN];
    uint64_t allocations; /* on the training thread after the tenth step */
    ns_t accounted, wall; /* compute, exposed, input and evaluation; all of the run */
    double validation_first, validation_last, loss_last;
    inspan_elastic_stats_t stats;
    char summary[4096];
    char note[256]; /* the last one */
    size_t n;
    double weights[ELEMENTS_MAX], gradient[ELEMENTS_MAX];
} outcome_t;

typedef struct worker {
    /* the test's wish, before cluster_run */
    job_config_t job; /* train.steps 0: the cluster's */
    trouble_t trouble;
    uint32_t fits; /* larger micro-batches find no memory; 0: all do */
    /* found */
    outcome_t outcome;
    bool was_killed; /* ended by a signal */
    /* the cluster's */
    bool running, bound, member, has_left, said_end, blamed;
    bool in_first; /* a member of the first view */
    pid_t pid;
    int listener, fd;
    uint16_t port;
    uint64_t incarnation;
    uint8_t in[2 * (LOCAL_FRAME_MAX + 8)];
    size_t in_used;
    local_end_t end;
} worker_t;

typedef struct cluster {
    /* wishes */
    job_config_t job;
    uint32_t n;       /* workers of the first view */
    uint32_t joiners; /* that start when worker 0 has applied step join_at */
    uint64_t join_at;
    bool widow;       /* as the first one says LEFT, the others die: it is taken back */
    bool late_answer; /* the result is said, a view of the same members follows, and only after the result is
                         said in that one comes the answer to the first: that its view is over */
    ns_t (*slow)(uint32_t number,
                 uint64_t step); /* what a sample takes longer than it would; NULL: nothing */
    bool shuffled;               /* gradients lie in other buckets every other step */
    bool quiet;                  /* nobody asks for each step's hash */
    char save_to[128];           /* where the result goes; "": nowhere */
    char own[64];     /* workers have folders of their own, by number, below this one; checkpoints that were
                         announced are kept in its "kept", by their step; "": none */
    char resume[256]; /* a checkpoint that the first members go on from; "": none */
    ns_t failure_timeout;
    /* found */
    uint64_t views;
    uint32_t saves;
    uint32_t checkpoints[STEPS_MAX], checkpoint_by[STEPS_MAX]; /* how often announced, by whom */
    bool failed;                                               /* the job, by a worker's own failure */
    /* the cluster's */
    uint32_t started, taken_back, results_said;
    uint64_t view;
    bool joined;
    int events[2]; /* a pipe: a worker is held at a step */
    sem_t go;
    char folder[64];
    worker_t workers[WORKERS_MAX];
} cluster_t;

/* In shared memory, all zero but for the job and n. */
cluster_t *cluster_open(const job_config_t *job, uint32_t n);
void cluster_run(cluster_t *cluster); /* until all workers have ended; fails the test after a minute */
void cluster_close(cluster_t *cluster);

/* Every worker that was not killed ended well. */
void cluster_assert_well(const cluster_t *cluster);
/* All that hold the same step hold the same bits; all that ended well hold the same weights. */
void cluster_assert_same_bits(const cluster_t *cluster);
/* Of every step's leases each was computed by exactly one worker, and all agree by whom. */
void cluster_assert_ledger(const cluster_t *cluster);
/* Steps whose leases others computed than in the step before: the ledger is told then. */
uint64_t cluster_retold(const outcome_t *outcome, uint64_t steps);
/* The lowest that ended well. */
const outcome_t *cluster_result(const cluster_t *cluster);

/* Small jobs over files in a folder made for the test program. */
int jobs_make_data(void **state);
int jobs_remove_data(void **state);
const char *jobs_folder(void);
job_config_t jobs_of(const char *kind, const char *dtype, const char *optimizer, uint64_t steps);
void jobs_set(job_config_t *job, const char *key, const char *value);

double relative(const double *a, const double *b, size_t n); /* L2 */

#endif
