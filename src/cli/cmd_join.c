#include <stdio.h>
#include <unistd.h>

#include "agent/agent.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/give.h"
#include "cli/show.h"

#define FIRST_LOOK (3 * NS_PER_S)

/*
 * One look at the manager before the agent starts: a wrong token or version is told at once, and what works
 * is noted for the other commands. A manager that does not answer is no fault: the agent keeps trying.
 */
static inspan_status_t greet(const char *folder, const char *manager, const char *token, inspan_error_t *err)
{
    rpc_client_t *client = NULL;
    Inspan__V1__Empty request = INSPAN__V1__EMPTY__INIT;
    ProtobufCMessage *reply = NULL;
    inspan_status_t status = rpc_client_open(manager, token, &client, err);
    if (status != INSPAN_OK) return status;
    status = rpc_call_unary(client, "/inspan.v1.Cluster/Info", &request.base,
                            &inspan__v1__cluster_info__descriptor, FIRST_LOOK, &reply, err);
    client_free(reply);
    rpc_client_close(client);
    if (status == INSPAN_AUTH || status == INSPAN_VERSION || status == INSPAN_INVALID) return status;
    if (status == INSPAN_OK)
        fprintf(stderr, "this machine joins the cluster at %s (Ctrl-C leaves it)\n", manager);
    else
        fprintf(stderr, "inspan: %s; the agent keeps trying\n", err->text);
    return place_save_client(folder, manager, token, err);
}

typedef struct joined {
    bool json, told;
    const char *folder, *manager;
} joined_t;

/* One object for a program that waits for the node: at the first registration. */
static void tell_registered(void *context, const char *node_id, const char *name, const char *address)
{
    joined_t *joined = context;
    if (joined->told) return;
    joined->told = true;
    json_t *object = json_object();
    json_set_string(object, "manager", joined->manager);
    json_set_string(object, "node_id", node_id);
    json_set_string(object, "node", name);
    json_set_string(object, "address", address);
    json_set_string(object, "dir", joined->folder);
    json_set_number(object, "pid", getpid());
    show_print_json(object);
    fflush(stdout);
}

int cmd_join(int argc, char **argv)
{
    place_options_t place = {0};
    joined_t joined = {0};
    give_options_t given;
    owner_wishes_t wishes;
    const char *name = NULL, *address = NULL, *ports = NULL;
    const cli_option_t options[] = {
        {.name = "token",
         .type = CLI_TEXT,
         .argument = "T",
         .help = "the token that inspan up printed",
         .value = &place.token},
        OPTION_TOKEN_FILE(&place),
        {.name = "name",
         .type = CLI_TEXT,
         .argument = "NAME",
         .help = "this node's name (default: the host's)",
         .value = &name},
        {.name = "address",
         .type = CLI_TEXT,
         .argument = "IP",
         .help = "under which other nodes reach this one (default: the one towards the manager)",
         .value = &address},
        OPTION_DATA_PORTS(&ports),
        GIVE_OPTIONS(&given),
        OPTION_DIR(&place),
        OPTION_JSON(&joined.json)};
    cli_operands_t operands;
    give_none(&given);
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;

    char folder[PLACE_PATH_MAX], agent_folder[PLACE_PATH_MAX + 16], target[PLACE_TARGET_MAX],
        token[PLACE_TOKEN_MAX];
    inspan_error_t err = {0};
    agent_options_t agent = {.folder = agent_folder,
                             .manager = target,
                             .token = token,
                             .name = name,
                             .address = address,
                             .on_registered = joined.json ? tell_registered : NULL,
                             .context = &joined};
    inspan_status_t status = place_target(operands.items[0], PROTOCOL_MANAGER_PORT, target, &err);
    if (status == INSPAN_OK) status = place_token(&place, token, &err);
    if (status == INSPAN_OK && token[0] == '\0') {
        err =
            (inspan_error_t){.status = INSPAN_INVALID,
                             .text = "no token: give --token T as inspan up printed it on the first machine"};
        status = err.status;
    }
    if (status == INSPAN_OK) status = common_data_ports(ports, &agent.first_port, &agent.last_port, &err);
    if (status == INSPAN_OK) status = common_node_name(name, &err);
    if (status == INSPAN_OK) status = common_address(address, &err);
    if (status == INSPAN_OK) status = place_folder(place.folder, folder, &err);
    if (status == INSPAN_OK) status = greet(folder, target, token, &err);
    snprintf(agent_folder, sizeof agent_folder, "%s/agents/0", folder);
    if (status == INSPAN_OK) status = give_save(agent_folder, &given, &owner_defaults, &wishes, &err);
    if (status != INSPAN_OK) return cli_fail(&err, joined.json);
    joined.folder = folder;
    joined.manager = target;
    return agent_main(&agent);
}
