/*
 * inspan doctor: what this machine could do for a job, and what is missing for the rest. Up to now: what
 * could carry collectives.
 */
#include <stdio.h>
#include <string.h>

#include "cli/common_options.h"
#include "cli/show.h"
#include "comm/comm.h"
#include "platform/json/json.h"

static json_t *backend_json(const comm_backend_info_t *info)
{
    json_t *row = json_object();
    json_set_string(row, "name", info->name);
    json_set_bool(row, "available", info->available);
    json_set_string(row, "version", info->version);
    json_set_string(row, "why", info->why);
    return row;
}

int cmd_doctor(int argc, char **argv)
{
    bool json = false;
    const cli_option_t options[] = {OPTION_JSON(&json)};
    cli_operands_t operands;
    const int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;

    json_t *root = json_object(), *backends = json_array();
    comm_backend_info_t info;
    if (!json) printf("what can carry collectives (--backend):\n");
    bool more = true;
    for (uint32_t i = 0; more; i++) {
        more = comm_backend_info(i, &info);
        if (!more) comm_nccl_info(&info);
        json_append(backends, backend_json(&info));
        if (!json) printf("  %-8s %-4s %s\n", info.name, info.available ? "yes" : "no", info.why);
    }
    json_set(root, "backends", backends);
    if (json) return show_print_json(root);
    json_free(root);
    return CLI_EXIT_OK;
}
