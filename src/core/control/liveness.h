/*
 * Is a node alive? One small state machine a node; pure: times come in, from the receiver's monotonic clock
 * only (a sender's clock never counts).
 *
 *            attach                        stream broke
 *   (new) ----------> ATTACHED ----------------------------> DISCONNECTED
 *                      |  ^  ^ attach                         |    |
 *      silent for      |  |  +--------------------------------+    | not back within the timeout
 *      the timeout     |  |                                        v
 *                      |  +------------- attach ------------------ LOST
 *                      +-----------------------------------------> LOST
 *                      | said good-bye
 *                      +-----------------------------------------> LEFT --- attach ---> ATTACHED
 *
 * A manager that was stalled itself (disk, suspend) must not take its own absence for theirs:
 * liveness_forgive.
 */
#ifndef CORE_CONTROL_LIVENESS_H
#define CORE_CONTROL_LIVENESS_H

#include <stdbool.h>

#include "base/units.h"

typedef enum liveness_state {
    LIVENESS_ATTACHED,
    LIVENESS_DISCONNECTED,
    LIVENESS_LOST,
    LIVENESS_LEFT
} liveness_state_t;

typedef struct liveness {
    liveness_state_t state;
    ns_t heard;    /* the last message; in DISCONNECTED after a restart of the manager: its start */
    ns_t since;    /* when this state was entered */
    bool restored; /* known from the registry only: it has twice the timeout to come back */
} liveness_t;

void liveness_attach(liveness_t *node, ns_t now);
void liveness_heard(liveness_t *node, ns_t now); /* any message; of a node that is not attached: no effect */
void liveness_broke(liveness_t *node, ns_t now); /* the stream ended without good-bye */
void liveness_left(liveness_t *node, ns_t now);

/* A manager that comes back knows a node only from its registry: it has twice the timeout to attach again. */
void liveness_restore(liveness_t *node, ns_t now);

/* From when its timeout counts. A node that talked until its stream broke has the whole timeout to come back;
 * where the stream was cut because nothing came any more (a machine without power), the last word counts. */
#define LIVENESS_TALKS (2 * NS_PER_S)
ns_t liveness_silent_since(const liveness_t *node);

/* True once, when the node becomes LOST now. */
bool liveness_check(liveness_t *node, ns_t now, ns_t timeout);

/* We did not look for `gap` ourselves, until now. */
void liveness_forgive(liveness_t *node, ns_t gap, ns_t now);

#endif
