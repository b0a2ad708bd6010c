/*
 * Looks at the machine's vitals and at its owner's wishes, on a thread of its own: a sensor's driver may
 * hang, and the agent's loop must not. Twice a second while workers run, else every two seconds.
 */
#ifndef AGENT_WATCH_H
#define AGENT_WATCH_H

#include "agent/inbox.h"
#include "platform/host/owner.h"

typedef struct watch_sight {
    vitals_t vitals; /* cleared where they are older than 5 s */
    double allowed;  /* 0..1 */
    owner_limit_t limit;
} watch_sight_t;

typedef struct watch watch_t;

/* root: of vitals_open; wishes: the owner's file. After each look a message of this kind goes to the inbox.
 * NO_MEMORY, IO. */
inspan_status_t watch_open(const char *root, const char *wishes, inbox_t *inbox, int kind, watch_t **watch,
                           inspan_error_t *err);
/* The inbox is shut, but still there. Waits for the thread, but not for a driver that hangs. NULL is fine. */
void watch_close(watch_t *watch);

void watch_workers(watch_t *watch, const pid_t *workers, uint32_t n); /* the first is looked at at once */

/* The newest; false: none yet. */
bool watch_newest(watch_t *watch, ns_t now, watch_sight_t *sight);

#endif
