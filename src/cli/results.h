/* What a job has made: its files fetched to where the job file says. */
#ifndef CLI_RESULTS_H
#define CLI_RESULTS_H

#include <stdbool.h>

#include "inspan/v1/inspan.pb-c.h"
#include "rpc/rpc.h"

/* Fetch every file into folder (made if it is not there), each whole or not at all. CORRUPT: a name that
 * would leave the folder; what rpc_file_get gives. */
inspan_status_t results_fetch(rpc_client_t *client, const Inspan__V1__JobInfo *job, const char *folder,
                              inspan_error_t *err);

/* "model.safetensors", "step-00000200/model.safetensors": plain names, none hidden, none upwards. */
bool results_name_is_safe(const char *name);

#endif
