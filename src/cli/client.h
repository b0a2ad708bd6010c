/* Calls to the manager, as the subcommands make them. Every call is bounded. */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include "cli/place.h"
#include "inspan/v1/inspan.pb-c.h"
#include "rpc/rpc.h"

#define CLIENT_BOUND (10 * NS_PER_S)

/* Find the manager (place_find) and make a client of it; does not connect yet. */
inspan_status_t client_open(const place_options_t *options, rpc_client_t **client, inspan_error_t *err);

/* One unary call to "/inspan.v1.SERVICE/METHOD". The reply, to be freed by client_free; NULL: err tells. */
void *client_call(rpc_client_t *client, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *reply_type, inspan_error_t *err);
void client_free(void *message); /* NULL is fine */

Inspan__V1__NodeList *client_nodes(rpc_client_t *client, inspan_error_t *err);
Inspan__V1__JobInfo *client_job(rpc_client_t *client, uint64_t id, inspan_error_t *err);
Inspan__V1__JobInfo *client_cancel(rpc_client_t *client, uint64_t id, inspan_error_t *err);

/* "17" -> 17. INVALID. */
inspan_status_t client_parse_job(const char *text, uint64_t *id, inspan_error_t *err);

#endif
