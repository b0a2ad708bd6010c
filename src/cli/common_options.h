/* Rows for the option tables that several subcommands share. */
#ifndef CLI_COMMON_OPTIONS_H
#define CLI_COMMON_OPTIONS_H

#include "cli/cli.h"
#include "cli/place.h"

#define OPTION_DIR(place)                                                                                    \
    {                                                                                                        \
        .name = "dir", .type = CLI_TEXT, .argument = "FOLDER",                                               \
        .help = "state folder (default: $INSPAN_DIR, /var/lib/inspan or ~/.local/state/inspan)",             \
        .value = &(place)->folder                                                                            \
    }
#define OPTION_MANAGER(place)                                                                                \
    {                                                                                                        \
        .name = "manager", .type = CLI_TEXT, .argument = "HOST[:PORT]",                                      \
        .help = "the cluster's manager (default: $INSPAN_MANAGER, or what up and join noted)",               \
        .value = &(place)->manager                                                                           \
    }
#define OPTION_TOKEN(place)                                                                                  \
    {                                                                                                        \
        .name = "token", .type = CLI_TEXT, .argument = "T",                                                  \
        .help = "the cluster's token (default: $INSPAN_TOKEN, or what up and join noted)",                   \
        .value = &(place)->token                                                                             \
    }
#define OPTION_TOKEN_FILE(place)                                                                             \
    {                                                                                                        \
        .name = "token-file", .type = CLI_TEXT, .argument = "FILE",                                          \
        .help = "read the token from the first line", .value = &(place)->token_file                          \
    }
#define OPTION_JSON(json)                                                                                    \
    {                                                                                                        \
        .name = "json", .type = CLI_FLAG, .help = "answer in JSON", .value = (json)                          \
    }
#define OPTION_LOCAL(local)                                                                                  \
    {                                                                                                        \
        .name = "local", .type = CLI_COUNT, .argument = "N",                                                 \
        .help = "N agents on this machine, for trying out", .value = (local), .least = 1, .most = 64         \
    }
#define OPTION_CPU(text)                                                                                     \
    {                                                                                                        \
        .name = "cpu", .type = CLI_TEXT, .argument = "C,C,...",                                              \
        .help = "with --local, as root: cores of each agent's machine, as in 0.8,0.4", .value = (text)       \
    }
#define OPTION_LINK(text)                                                                                    \
    {                                                                                                        \
        .name = "link", .type = CLI_TEXT, .argument = "R,R,...",                                             \
        .help = "with --local, as root: its link, as in 1gbit,200mbit/100mbit (up/down)", .value = (text)    \
    }
#define OPTION_DATA_PORTS(text)                                                                              \
    {                                                                                                        \
        .name = "data-ports", .type = CLI_TEXT, .argument = "A-B",                                           \
        .help = "TCP ports of the workers on this machine (default 7500-7599)", .value = (text)              \
    }

#define COUNT_OF(options) (sizeof(options) / sizeof(options)[0])

/* cli_parse of a command that has no options but where the manager is, and --json. */
int common_parse(int argc, char **argv, uint32_t least_operands, uint32_t most_operands,
                 place_options_t *place, bool *json, cli_operands_t *operands);

/* Of --name and --address; NULL is fine. INVALID: longer than the manager keeps; no numeric address. */
inspan_status_t common_node_name(const char *name, inspan_error_t *err);
inspan_status_t common_address(const char *address, inspan_error_t *err);

/* "7500-7599", NULL for the default. INVALID. */
inspan_status_t common_data_ports(const char *text, uint16_t *first, uint16_t *last, inspan_error_t *err);

#endif
