/*
 * Hand-over to the agent's loop thread: a bounded queue of small messages from any thread, first in first
 * out.
 */
#ifndef AGENT_INBOX_H
#define AGENT_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#include "base/units.h"

typedef struct inbox inbox_t;

typedef struct inbox_message {
    int kind;      /* the owner's */
    uint64_t id;   /* the owner's */
    void *payload; /* the receiver's after take; freed by `drop` when the inbox closes first */
} inbox_message_t;

typedef void (*inbox_wake_fn)(void *context); /* any thread: make the receiver call inbox_take */
typedef void (*inbox_drop_fn)(const inbox_message_t *message);

/* NULL: out of memory. */
inbox_t *inbox_open(size_t capacity, inbox_wake_fn wake, void *context, inbox_drop_fn drop);
void inbox_close(inbox_t *inbox); /* no thread may post any more; drops what is left */

/* Queue; blocks while it is full. ABORTED: the inbox was shut, the payload stays the caller's. */
inspan_status_t inbox_post(inbox_t *inbox, inbox_message_t message);
void inbox_shut(inbox_t *inbox); /* posters return ABORTED from now on */

/* The oldest message; false: none within timeout (0: does not block). */
bool inbox_take(inbox_t *inbox, inbox_message_t *message, ns_t timeout);

#endif
