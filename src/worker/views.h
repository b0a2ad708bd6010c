/*
 * Where the step driver gets its views from, and whom it tells what became of them. The worker's session is
 * one (inspan_worker_views); tests have their own.
 *
 * All calls but `changed` and `leaving` come from one thread, the driver's. Only `next` and `await` block.
 */
#ifndef WORKER_VIEWS_H
#define WORKER_VIEWS_H

#include <inspan/comm.h>
#include <inspan/worker.h>

#include "base/units.h"
#include "platform/wire/local.h"

/* A view whose communicator is open. All that it points to belongs to the source and ends with the next call
 * of `next`: every operation of the communicator must have been waited for before. */
typedef struct worker_view {
    uint64_t number;
    bool first;              /* of a lineage: every member starts full, nobody reconciles */
    uint32_t world, rank;    /* rank: dense, the communicator's */
    const uint32_t *numbers; /* (world) increasing: the members' numbers in the job */
    inspan_comm_t *comm;
} worker_view_t;

/* What became of a SAVED artifact. */
typedef struct worker_registered {
    uint64_t step;
    bool result;
    inspan_status_t status; /* OK: registered. Else not, and another try with the same is of no use */
    char text[256];
} worker_registered_t;

struct inspan_views {
    void *context;

    /*
     * Wait until a view above `above` is announced, close the communicator of the one before, open the new
     * one. A view that cannot be opened is reported, one that is overtaken by a newer one is given up at
     * once; the call goes on with the next. OK. TIMEOUT: none in `timeout` (at most an hour; a communicator
     * that is just being opened has its own bound on top). ABORTED: this member is stopped. PEER_LOST: the
     * agent is gone. Others: this member cannot go on (no memory, no descriptors).
     */
    inspan_status_t (*next)(void *context, uint64_t above, ns_t timeout, worker_view_t *view,
                            inspan_error_t *err);

    /* true as soon as `next` must be called: a newer view is announced, the present communicator is poisoned,
     * or this member is stopped. Any thread; one atomic load. */
    bool (*changed)(void *context);

    /* `wake` is called whenever `changed` or `leaving` may have become true, so that nobody has to look again
     * and again: on any thread, with the source's lock held: it must not call the source. NULL: no more calls
     * after the return. */
    void (*watch)(void *context, void (*wake)(void *argument), void *argument);

    bool (*leaving)(void *context); /* asked to leave gracefully (any thread) */
    /* Handed over everything in this view: may be left out of the next. Void as soon as a newer one is
     * announced: there it must be said again. */
    void (*left)(void *context, uint64_t view);
    void (*full)(void *context, bool full); /* has, or has no longer, all weights and optimiser state */

    /* A span of the ledger, in numbers of the job. One with the first_step of the one given last replaces it
     * (it has become longer). Copied. */
    void (*ledger)(void *context, const local_ledger_t *span);

    /*
     * A complete artifact lies in `folder` (relative to this worker's folder, no ".."): its files are to be
     * stored and registered under `view`. The folder must stay until `registered` gave its answer. false: too
     * many wait for an answer (4), say it again later.
     */
    bool (*saved)(void *context, const local_saved_t *saved);
    bool (*registered)(void *context,
                       worker_registered_t *answer); /* the oldest answer not taken; false: none */
    /* Sleep until there is an answer to take, or `changed`; at most until `until`. */
    void (*await)(void *context, ns_t until);

    /* On a worker's speed, for those who watch the job and for the manager: its `leave` is a proposal.
     * Copied; the newest 16 are kept and said again to an agent that was away. NULL: nobody hears it. */
    void (*verdict)(void *context, const local_verdict_t *verdict);

    /* How this machine does, as its agent saw it last; false: not known yet. Any thread; one short lock.
     * `wake` is called when they come first, and whenever `allowed` has changed. NULL: a source without. */
    bool (*vitals)(void *context, local_vitals_t *vitals);
};

#endif
