/*
 * The session of one worker of a job: finds its agent at $INSPAN_SOCKET, binds its data port (which is told
 * when the first view is asked for: others then connect and wait no longer than failure_timeout), ticks to
 * the agent from the I/O thread, reports progress and the end. Views come from inspan_worker_views, each with
 * its communicator.
 */
#ifndef INSPAN_WORKER_H
#define INSPAN_WORKER_H

#include <inspan/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct inspan_worker inspan_worker_t;
typedef struct inspan_views inspan_views_t; /* views of a job as they come */

/*
 * Blocks until the agent has answered, 30 s at most; does not wait for a view. What ends a view's
 * communicator does not end this member. NOT_FOUND: no $INSPAN_SOCKET; REFUSED: nobody answers there;
 * VERSION; TIMEOUT; others: no data port, no memory, no descriptors; the agent is told, too.
 */
INSPAN_API inspan_status_t inspan_worker_attach(inspan_worker_t **worker, inspan_error_t *err);
INSPAN_API inspan_views_t *inspan_worker_views(inspan_worker_t *worker); /* the worker's; ends with it */

/* What carries the sums of views: "auto", "native", "gloo" (`inspan doctor`), the same on all members; "auto"
 * unless this is called, before the first view is asked for. Where some member cannot use it, no view opens,
 * and the failure names that member and why. INVALID: there is none of that name. */
INSPAN_API inspan_status_t inspan_worker_backend(inspan_worker_t *worker, const char *name);

INSPAN_API uint32_t inspan_worker_threads(const inspan_worker_t *worker); /* this machine's share, >= 1 */

typedef struct inspan_progress {
    uint64_t step, steps, samples;             /* steps done, of; samples of this rank so far */
    double loss;                               /* mean of the last step, all ranks */
    double validation_loss;                    /* of the last evaluation; NaN: none yet */
    double samples_per_s;                      /* all ranks, over the last steps */
    double compute_s, exposed_comm_s, input_s; /* totals of this rank */
    uint64_t bytes_sent;
    uint64_t param_hash; /* of the weights when ranks last compared them; 0: not yet */
    /* Of this rank, 0: unknown. Pure compute of a sample; of each step whatever its share. */
    uint64_t pace_sample_ns, pace_step_ns;
    uint64_t share_samples, run_samples; /* computed in the last step; of one micro-batch */
    uint64_t samples_recomputed;         /* of samples: those that a lost member had been given */
} inspan_progress_t;

/* Latest state; sent with the next tick (a tick each fifth of failure_timeout, at most every 200 ms). Does
 * not block. */
INSPAN_API void inspan_worker_progress(inspan_worker_t *worker, const inspan_progress_t *progress);

/* A line for those who watch the job: something that ends nothing (a checkpoint was not written). Lost where
 * the agent or the manager is away just now. Cut after 511 bytes. Any thread; does not block. */
INSPAN_API void inspan_worker_note(inspan_worker_t *worker, const char *text);

/* A failure of this rank's own: told to the agent with its status at once, then to the other ranks. The
 * caller frees what it holds and calls finish, whose text then counts no more. The first failure counts. Any
 * thread. */
INSPAN_API void inspan_worker_fail(inspan_worker_t *worker, inspan_status_t status, const char *text);

/* Report the end (OK with a JSON summary of at most 16 KiB, or a failure with its text), wait until the agent
 * has it (5 s at most), close everything, free worker. It ends this member alone. */
INSPAN_API void inspan_worker_finish(inspan_worker_t *worker, inspan_status_t status, const char *text);

#ifdef __cplusplus
}
#endif
#endif
