/* drain NODE, unban NODE, backup FILE */
#include <string.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/show.h"
#include "platform/os/os_file.h"

/* The common frame of drain and unban: one node, one call, one line. */
static int one_node(int argc, char **argv, const char *method, const char *said)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 1, 1, &place, &json, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    Inspan__V1__Node *node = NULL;
    Inspan__V1__NodeRequest request = INSPAN__V1__NODE_REQUEST__INIT;
    request.node = (char *)(uintptr_t)operands.items[0];
    if (client_open(&place, &client, &err) == INSPAN_OK)
        node = client_call(client, method, &request.base, &inspan__v1__node__descriptor, &err);
    code = CLI_EXIT_OK;
    if (node == NULL) {
        code = cli_fail(&err, json);
    } else if (json) {
        Inspan__V1__NodeList list = INSPAN__V1__NODE_LIST__INIT;
        list.n_nodes = 1;
        list.nodes = &node;
        code = show_print_json(show_nodes_json(&list));
    } else {
        printf("node %s: %s (%s)\n", node->name, said, node->state);
    }
    client_free(node);
    if (client != NULL) rpc_client_close(client);
    return code;
}

int cmd_drain(int argc, char **argv)
{
    return one_node(argc, argv, "Cluster/Drain", "its workers hand over and leave; it gets no more work");
}

int cmd_unban(int argc, char **argv)
{
    return one_node(argc, argv, "Cluster/Unban", "may be used again");
}

/* ---- backup ---------------------------------------------------------------------------------- */

static inspan_status_t receive_copy(rpc_client_t *client, os_file_writer_t *writer, uint64_t *bytes,
                                    inspan_error_t *err)
{
    Inspan__V1__Empty request = INSPAN__V1__EMPTY__INIT;
    rpc_stream_t *stream = NULL;
    uint64_t total = 0;
    inspan_status_t status = rpc_stream_open(client, "/inspan.v1.Cluster/Backup",
                                             &inspan__v1__file_chunk__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(stream, &request.base, CLIENT_BOUND, err);
    if (status == INSPAN_OK) rpc_stream_half_close(stream);
    while (status == INSPAN_OK) {
        ProtobufCMessage *message = NULL;
        status = rpc_stream_next(stream, CLIENT_BOUND, &message, err);
        if (status != INSPAN_OK || message == NULL) break;
        const Inspan__V1__FileChunk *chunk = (const Inspan__V1__FileChunk *)(const void *)message;
        if (chunk->total_bytes > 0) total = chunk->total_bytes;
        *bytes += chunk->data.len;
        status = os_file_writer_add(writer, chunk->data.data, chunk->data.len, err);
        client_free(message);
    }
    rpc_stream_close(stream);
    if (status == INSPAN_OK && *bytes != total)
        status = error_set(err, INSPAN_CORRUPT, "the copy ended after %llu of %llu bytes",
                           (unsigned long long)*bytes, (unsigned long long)total);
    return status;
}

int cmd_backup(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 1, 1, &place, &json, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    os_file_writer_t *writer = NULL;
    uint64_t bytes = 0;
    const char *path = operands.items[0];
    inspan_status_t status = client_open(&place, &client, &err);
    if (status == INSPAN_OK) status = os_file_writer_open(path, 0600, &writer, &err);
    if (status == INSPAN_OK) {
        status = receive_copy(client, writer, &bytes, &err);
        if (status == INSPAN_OK)
            status = os_file_writer_commit(writer, &err);
        else
            os_file_writer_abandon(writer);
    }
    code = CLI_EXIT_OK;
    if (status != INSPAN_OK) {
        code = cli_fail(&err, json);
        if (status == INSPAN_IO) code = CLI_EXIT_USER; /* the disk here, not the cluster */
    } else if (json) {
        json_t *object = json_object();
        json_set_string(object, "path", path);
        json_set_number(object, "bytes", (double)bytes);
        code = show_print_json(object);
    } else {
        char size[32];
        printf("%s: a copy of the registry, %s; to use it, put it into the manager's folder as registry.db\n",
               path, units_format_size(bytes, size, sizeof size));
    }
    if (client != NULL) rpc_client_close(client);
    return code;
}
