#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/cluster.h"
#include "cli/common_options.h"
#include "cli/give.h"
#include "cli/show.h"

#define LOOK_PERIOD (200 * NS_PER_MS)
#define JOIN_BOUND  (30 * NS_PER_S)

typedef struct up {
    bool json;
    char own_address[64];
    cluster_options_t cluster;
} up_t;

/* What others type; also the lines that a program reads. */
static void announce(const up_t *up, const cluster_t *cluster)
{
    char target[96];
    const char *host = up->cluster.cpu != NULL || up->cluster.link != NULL ? NULL : up->own_address;
    const char *token = cluster_token(cluster);
    snprintf(target, sizeof target, strchr(up->own_address, ':') != NULL ? "[%s]:%u" : "%s:%u",
             up->own_address, cluster_port(cluster));
    if (host == NULL) snprintf(target, sizeof target, "%s", cluster_manager(cluster));
    if (cluster_port(cluster) == PROTOCOL_MANAGER_PORT) target[strlen(target) - strlen(":7461")] = '\0';
    if (up->json) {
        json_t *object = json_object();
        json_set_string(object, "manager", cluster_manager(cluster));
        json_set_string(object, "join", target);
        json_set_number(object, "port", cluster_port(cluster));
        json_set_string(object, "token", token);
        json_set_string(object, "dir", cluster_folder(cluster));
        json_set_number(object, "pid", getpid());
        show_print_json(object);
    } else {
        printf("The cluster is up: manager on port %u, %u agent%s here, state in %s\n", cluster_port(cluster),
               up->cluster.agents, up->cluster.agents == 1 ? "" : "s", cluster_folder(cluster));
        printf("On each other machine:\n\n  inspan join %s --token %s\n\n", target, token);
        printf("Then, here or there:  inspan nodes;  inspan train FILE.yaml   (Ctrl-C ends the cluster)\n");
    }
    fflush(stdout);
}

static inspan_status_t await_own_nodes(const up_t *up, cluster_t *cluster, interrupt_t *interrupt,
                                       inspan_error_t *err)
{
    rpc_client_t *client = NULL;
    inspan_status_t status = rpc_client_open(cluster_manager(cluster), cluster_token(cluster), &client, err);
    if (status != INSPAN_OK) return status;
    status = cluster_await_nodes(cluster, client, interrupt, JOIN_BOUND, err);
    rpc_client_close(client);
    const bool waited = status == INSPAN_OK || status == INSPAN_TIMEOUT || status == INSPAN_ABORTED;
    if (!waited && status != INSPAN_INVALID) { /* the manager was killed so soon: it is started again */
        fprintf(stderr, "inspan: %s\n", err->text);
        return INSPAN_OK;
    }
    if (status == INSPAN_OK && !up->json) {
        printf("%u node%s registered\n", up->cluster.agents, up->cluster.agents == 1 ? " has" : "s have");
        fflush(stdout);
    }
    return status;
}

static inspan_status_t serve(const up_t *up, interrupt_t *interrupt, inspan_error_t *err)
{
    cluster_t *cluster = NULL;
    inspan_status_t status = cluster_open(&up->cluster, interrupt, &cluster, err);
    if (status != INSPAN_OK) return status;
    status =
        place_save_client(cluster_folder(cluster), cluster_manager(cluster), cluster_token(cluster), err);
    if (status == INSPAN_OK) announce(up, cluster);
    if (status == INSPAN_OK) status = await_own_nodes(up, cluster, interrupt, err);
    while (status == INSPAN_OK && interrupt_wait(interrupt, LOOK_PERIOD) == 0)
        status = cluster_tend(cluster, err);
    if (interrupt->count > 0) {
        status = INSPAN_OK; /* asked to end: so it does, whatever it was doing */
        if (!up->json) fprintf(stderr, "taking the cluster down\n");
    }
    cluster_close(cluster);
    return status;
}

/* One owner, however many agents: before they start, so that what they say first is true. */
static inspan_status_t save_wishes(const char *folder, uint32_t agents, const give_options_t *given,
                                   inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i < agents && status == INSPAN_OK; i++) {
        char path[PLACE_PATH_MAX + 32];
        owner_wishes_t wishes;
        snprintf(path, sizeof path, "%s/agents/%u", folder, i);
        status = give_save(path, given, &owner_defaults, &wishes, err);
    }
    return status;
}

int cmd_up(int argc, char **argv)
{
    up_t up = {0};
    place_options_t place = {0};
    uint64_t local = 0, port = PROTOCOL_MANAGER_PORT;
    const char *address = NULL;
    give_options_t given;
    const cli_option_t options[] = {
        OPTION_LOCAL(&local),
        {.name = "port",
         .type = CLI_COUNT,
         .argument = "P",
         .help = "the manager's TCP port (default 7461; 0: any)",
         .value = &port,
         .most = 65535},
        {.name = "address",
         .type = CLI_TEXT,
         .argument = "IP",
         .help = "under which other machines reach this one (default: that of the default route)",
         .value = &address},
        {.name = "name",
         .type = CLI_TEXT,
         .argument = "NAME",
         .help = "this node's name (default: the host's)",
         .value = &up.cluster.name},
        OPTION_DATA_PORTS(&up.cluster.data_ports),
        GIVE_OPTIONS(&given),
        OPTION_CPU(&up.cluster.cpu),
        OPTION_LINK(&up.cluster.link),
        OPTION_DIR(&place),
        OPTION_JSON(&up.json)};
    cli_operands_t operands;
    give_none(&given);
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;

    char folder[PLACE_PATH_MAX];
    uint16_t first, last;
    inspan_error_t err = {0};
    interrupt_t interrupt;
    inspan_status_t status = place_folder(place.folder, folder, &err);
    if (status == INSPAN_OK) status = common_data_ports(up.cluster.data_ports, &first, &last, &err);
    if (status == INSPAN_OK) status = common_node_name(up.cluster.name, &err);
    if (status == INSPAN_OK) status = common_address(address, &err);
    if (status == INSPAN_OK && local > 1 && up.cluster.name != NULL)
        status = error_set(&err, INSPAN_INVALID, "--name names one node: it does not go with --local %u",
                           (unsigned)local);
    if (status == INSPAN_OK && local == 0 && (up.cluster.cpu != NULL || up.cluster.link != NULL))
        status = error_set(&err, INSPAN_INVALID, "--cpu and --link need --local N");
    if (status == INSPAN_OK) status = save_wishes(folder, local > 0 ? (uint32_t)local : 1, &given, &err);
    if (status == INSPAN_OK && !interrupt_open(&interrupt))
        status = error_set(&err, INSPAN_IO, "no descriptor left");
    if (status != INSPAN_OK) return cli_fail(&err, up.json);

    if (address != NULL)
        snprintf(up.own_address, sizeof up.own_address, "%s", address);
    else
        place_own_address(up.own_address, sizeof up.own_address);
    up.cluster.folder = folder;
    up.cluster.agents = local > 0 ? (uint32_t)local : 1;
    up.cluster.open_to_lan = true;
    up.cluster.port = (uint16_t)port;
    up.cluster.agent_address = up.own_address;
    if (up.cluster.data_ports == NULL) up.cluster.data_ports = "7500-7599";
    status = serve(&up, &interrupt, &err);
    interrupt_close(&interrupt);
    return status == INSPAN_OK ? CLI_EXIT_OK : cli_fail(&err, up.json);
}
