/*
 * Checkpoints of a running job, fetched into checkpoint.dir as they are registered: by a thread of its own,
 * so that the progress line and Ctrl-C do not wait for it. Only the newest matters: one that is overtaken
 * before its turn comes is left out.
 */
#ifndef CLI_CHECKPOINTS_H
#define CLI_CHECKPOINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/interrupt.h"
#include "inspan/v1/inspan.pb-c.h"
#include "rpc/rpc.h"

typedef struct checkpoint_fetch checkpoint_fetch_t;

/* folder: checkpoint.dir, in which the last `keep` stay. The client must outlive it. NO_MEMORY. */
inspan_status_t checkpoint_fetch_open(rpc_client_t *client, const char *folder, uint32_t keep,
                                      checkpoint_fetch_t **fetch, inspan_error_t *err);

/* What the job has registered by now: the newest is fetched unless it is here. Does not block. */
void checkpoint_fetch_offer(checkpoint_fetch_t *fetch, const Inspan__V1__JobInfo *job);

/* true: text is something new for people ("checkpoint of step 200: out/step-00000200"). Does not block. */
bool checkpoint_fetch_told(checkpoint_fetch_t *fetch, char *text, size_t size);

/* Wait for the newest that was offered; *step: the newest that is here, 0: none. ABORTED: interrupted; else
 * why it could not be fetched, after some tries. Each try is bounded as rpc_file_get is. */
inspan_status_t checkpoint_fetch_finish(checkpoint_fetch_t *fetch, interrupt_t *interrupt, uint64_t *step,
                                        inspan_error_t *err);

void checkpoint_fetch_close(checkpoint_fetch_t *fetch); /* gives up what is under way; NULL is fine */

/* One registered checkpoint into folder/step-N, whole or not at all. CORRUPT, IO, what the calls give. */
inspan_status_t checkpoint_fetch_one(rpc_client_t *client, const Inspan__V1__Artifact *artifact,
                                     const char *folder, uint32_t keep, inspan_error_t *err);

#endif
