/* manager, agent, worker: the programs that `up`, `join` and the agent start. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/log.h"
#include "cli/common_options.h"
#include "manager/manager.h"
#include "platform/os/os_file.h"
#include "train/train.h"

/* End with the process that started this one, even if that is killed. false: it is gone already. */
static bool follow_parent(uint64_t parent, int signal)
{
    if (parent == 0) return true;
    prctl(PR_SET_PDEATHSIG, signal);
    return getppid() == (pid_t)parent; /* it may have died before the call */
}

int cmd_manager(int argc, char **argv)
{
    manager_options_t manager = {.listen = "[::]:7461"};
    uint64_t parent = 0;
    const cli_option_t options[] = {
        {.name = "folder", .type = CLI_TEXT, .argument = "FOLDER", .help = "state", .value = &manager.folder},
        {.name = "listen",
         .type = CLI_TEXT,
         .argument = "A:P",
         .help = "address and port",
         .value = &manager.listen},
        {.name = "ready-file",
         .type = CLI_TEXT,
         .argument = "FILE",
         .help = "written when it answers",
         .value = &manager.ready_file},
        {.name = "parent",
         .type = CLI_COUNT,
         .argument = "PID",
         .help = "end with this process",
         .value = &parent}};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;
    inspan_error_t err = {.status = INSPAN_INVALID, .text = "manager: --folder is missing"};
    if (manager.folder == NULL) return cli_fail(&err, false);
    log_set_component("manager");
    return follow_parent(parent, SIGTERM) ? manager_main(&manager) : CLI_EXIT_OK;
}

int cmd_agent(int argc, char **argv)
{
    agent_options_t agent = {0};
    place_options_t place = {0};
    const char *ports = NULL;
    uint64_t parent = 0;
    const cli_option_t options[] = {
        {.name = "folder", .type = CLI_TEXT, .argument = "FOLDER", .help = "state", .value = &agent.folder},
        {.name = "manager",
         .type = CLI_TEXT,
         .argument = "HOST:PORT",
         .help = "its manager",
         .value = &agent.manager},
        OPTION_TOKEN_FILE(&place),
        {.name = "name", .type = CLI_TEXT, .argument = "NAME", .help = "of the node", .value = &agent.name},
        {.name = "address",
         .type = CLI_TEXT,
         .argument = "IP",
         .help = "advertised",
         .value = &agent.address},
        OPTION_DATA_PORTS(&ports),
        {.name = "cores",
         .type = CLI_REAL,
         .argument = "C",
         .help = "quota",
         .value = &agent.cores,
         .most = 1e6},
        {.name = "parent",
         .type = CLI_COUNT,
         .argument = "PID",
         .help = "end with this process",
         .value = &parent}};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;

    char token[PLACE_TOKEN_MAX];
    inspan_error_t err = {.status = INSPAN_INVALID, .text = "agent: --folder and --manager are needed"};
    if (agent.folder == NULL || agent.manager == NULL) return cli_fail(&err, false);
    if (place_token(&place, token, &err) != INSPAN_OK) return cli_fail(&err, false);
    if (ports != NULL && common_data_ports(ports, &agent.first_port, &agent.last_port, &err) != INSPAN_OK)
        return cli_fail(&err, false);
    agent.token = token;
    log_set_component("agent");
    /* at once: where the manager ends too, handing over work leads to nothing */
    return follow_parent(parent, SIGQUIT) ? agent_main(&agent) : CLI_EXIT_OK;
}

int cmd_worker(int argc, char **argv)
{
    cli_operands_t operands;
    int code = cli_parse(argc, argv, NULL, 0, 1, 1, &operands);
    if (code >= 0) return code;
    log_set_component("worker");
    return train_worker_main(operands.items[0]);
}
