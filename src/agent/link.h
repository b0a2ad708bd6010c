/*
 * The stream to the manager: a thread opens it, reads it, and opens it again when it broke (after 0.1 to 1
 * s). What it sees goes to the inbox in order: UP, then messages, then DOWN; until DOWN was answered by
 * link_let_go the stream stays valid for the loop thread, which is the one that sends. An attempt that got no
 * stream is a DOWN alone, which must not be answered: the answer could let go of the next stream, if the loop
 * thread is late.
 */
#ifndef AGENT_LINK_H
#define AGENT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/status.h>

#include "agent/inbox.h"
#include "rpc/rpc.h"

typedef struct link link_t;

typedef enum link_event {
    LINK_UP = 1,      /* payload: link_up_t */
    LINK_MESSAGE = 2, /* payload: Inspan__V1__AgentDown */
    LINK_DOWN = 3 /* payload: inspan_error_t (malloc'd): how it ended; OK: the manager ended it. id: below */
} link_event_t;

enum { LINK_NEVER_UP = 0, LINK_WAS_UP = 1 }; /* the id of DOWN; only the second wants link_let_go */

typedef struct link_up {
    rpc_stream_t *stream;
    char address[64]; /* of this machine, towards the manager */
} link_up_t;

/* address: the one to advertise; NULL: looked up for each stream, and a change ends the stream. */
inspan_status_t link_open(rpc_client_t *client, const char *address, inbox_t *inbox, link_t **link,
                          inspan_error_t *err);
void link_let_go(link_t *link); /* the loop thread does not use the stream any more */
/* No more streams; the present one is ended. Joins the thread. Whoever waits in DOWN is let go. */
void link_close(link_t *link);

#endif
