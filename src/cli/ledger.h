/*
 * A job's sample ledger: which worker computed which samples of each committed step. Read from the manager,
 * checked, shown.
 */
#ifndef CLI_LEDGER_H
#define CLI_LEDGER_H

#include <stdio.h>

#include "base/vec.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/json/json.h"
#include "rpc/rpc.h"

typedef struct ledger {
    uint64_t seed, batch;                    /* of the job; batch 0: the manager has none of it yet */
    vec_of(Inspan__V1__LedgerSpans *) parts; /* as they came; spans lie in them */
    vec_of(const Inspan__V1__LedgerSpan *) spans;
} ledger_t;

typedef struct ledger_totals {
    uint64_t first_step, steps; /* steps covered, from first_step on */
    uint64_t samples, dropped;  /* counted, and left out under on_loss: drop */
} ledger_totals_t;

/* What the manager answers; ledger_free whatever comes. NOT_FOUND (no such job), UNREACHABLE, ... */
inspan_status_t ledger_read(rpc_client_t *client, uint64_t job, ledger_t *ledger, inspan_error_t *err);
void ledger_free(ledger_t *ledger);

/*
 * Is every sample of every step there exactly once, or recorded as dropped, and no step missing or twice?
 * MISMATCH names step, sample, what was found.
 */
inspan_status_t ledger_check(const ledger_t *ledger, ledger_totals_t *totals, inspan_error_t *err);

/* {"seed", "batch", "exact", "fault", "first_step", "steps", "samples", "dropped", "spans": [...]} */
json_t *ledger_json(const ledger_t *ledger);
void ledger_show(FILE *out, const ledger_t *ledger);

#endif
