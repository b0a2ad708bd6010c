#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/show.h"

int cmd_nodes(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    const cli_option_t options[] = {OPTION_MANAGER(&place), OPTION_TOKEN(&place), OPTION_DIR(&place),
                                    OPTION_JSON(&json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
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
