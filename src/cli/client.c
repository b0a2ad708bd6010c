#include "cli/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

inspan_status_t client_open(const place_options_t *options, rpc_client_t **client, inspan_error_t *err)
{
    place_t place;
    inspan_status_t status = place_find(options, &place, err);
    if (status != INSPAN_OK) return status;
    return rpc_client_open(place.manager, place.token[0] != '\0' ? place.token : NULL, client, err);
}

void *client_call(rpc_client_t *client, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *reply_type, inspan_error_t *err)
{
    char path[96];
    ProtobufCMessage *reply = NULL;
    snprintf(path, sizeof path, "/inspan.v1.%s", method);
    inspan_status_t status = rpc_call_unary(client, path, request, reply_type, CLIENT_BOUND, &reply, err);
    return status == INSPAN_OK ? reply : NULL;
}

void client_free(void *message)
{
    if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
}

Inspan__V1__NodeList *client_nodes(rpc_client_t *client, inspan_error_t *err)
{
    Inspan__V1__Empty request = INSPAN__V1__EMPTY__INIT;
    return client_call(client, "Cluster/ListNodes", &request.base, &inspan__v1__node_list__descriptor, err);
}

static Inspan__V1__JobInfo *job_call(rpc_client_t *client, const char *method, uint64_t id,
                                     inspan_error_t *err)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    request.id = id;
    return client_call(client, method, &request.base, &inspan__v1__job_info__descriptor, err);
}

Inspan__V1__JobInfo *client_job(rpc_client_t *client, uint64_t id, inspan_error_t *err)
{
    return job_call(client, "Cluster/GetJob", id, err);
}

Inspan__V1__JobInfo *client_cancel(rpc_client_t *client, uint64_t id, inspan_error_t *err)
{
    return job_call(client, "Cluster/Cancel", id, err);
}

inspan_status_t client_parse_job(const char *text, uint64_t *id, inspan_error_t *err)
{
    size_t digits = strspn(text, "0123456789");
    errno = 0;
    *id = strtoull(text, NULL, 10);
    if (digits == 0 || text[digits] != '\0' || errno != 0 || *id == 0)
        return error_set(err, INSPAN_INVALID, "\"%.60s\" is no job's number (inspan jobs lists them)", text);
    return INSPAN_OK;
}
