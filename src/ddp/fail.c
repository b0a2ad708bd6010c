#include "ddp/fail.h"

#include <stdio.h>

#include "base/error.h"
#include "base/units.h"

inspan_status_t ddp_wait(inspan_comm_t *comm, inspan_op_t *op, int64_t timeout_ns)
{
    inspan_status_t status = inspan_op_wait(op, timeout_ns);
    if (status != INSPAN_TIMEOUT) return status;
    char text[96], after[32];
    snprintf(text, sizeof text, "a reduction took longer than %s",
             units_format_duration(timeout_ns, after, sizeof after));
    inspan_comm_abort(comm, text);
    /* Poisoned now: it finishes at once; until it has, it may still write into the caller's memory. */
    do status = inspan_op_wait(op, NS_PER_S);
    while (status == INSPAN_TIMEOUT);
    return status == INSPAN_OK ? INSPAN_OK : INSPAN_TIMEOUT;
}

inspan_status_t ddp_fail(const inspan_comm_t *comm, inspan_status_t status, const char *doing,
                         inspan_error_t *err)
{
    inspan_cause_t cause;
    if (inspan_comm_cause(comm, &cause)) return error_set(err, cause.status, "%s", cause.text);
    return error_set(err, status, "%s: %s", doing, inspan_status_text(status));
}
