#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/show.h"

int cmd_nodes(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 0, 0, &place, &json, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    Inspan__V1__NodeList *list = NULL;
    if (client_open(&place, &client, &err) == INSPAN_OK) list = client_nodes(client, &err);
    if (list == NULL)
        code = cli_fail(&err, json);
    else if (json)
        code = show_print_json(show_nodes_json(list));
    else
        show_nodes(stdout, list), code = CLI_EXIT_OK;
    client_free(list);
    if (client != NULL) rpc_client_close(client);
    return code;
}
