#include "cli/common_options.h"

#include <string.h>

#include "base/error.h"
#include "platform/os/os_socket.h"

int common_parse(int argc, char **argv, uint32_t least_operands, uint32_t most_operands,
                 place_options_t *place, bool *json, cli_operands_t *operands)
{
    const cli_option_t options[] = {OPTION_MANAGER(place), OPTION_TOKEN(place), OPTION_DIR(place),
                                    OPTION_JSON(json)};
    return cli_parse(argc, argv, options, COUNT_OF(options), least_operands, most_operands, operands);
}

inspan_status_t common_node_name(const char *name, inspan_error_t *err)
{
    if (name == NULL || strlen(name) <= PLACE_NODE_MAX) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "--name %.40s...: a node's name has at most %d bytes", name,
                     PLACE_NODE_MAX);
}

inspan_status_t common_address(const char *address, inspan_error_t *err)
{
    os_address_t parsed;
    if (address == NULL || os_address_parse(address, 1, &parsed) == INSPAN_OK) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "--address %.80s: expected a numeric address such as 192.168.1.5",
                     address);
}

inspan_status_t common_data_ports(const char *text, uint16_t *first, uint16_t *last, inspan_error_t *err)
{
    unsigned from = 7500, to = 7599;
    int used = 0;
    if (text != NULL && (strspn(text, "0123456789-") != strlen(text) || text[0] == '-' ||
                         sscanf(text, "%5u-%5u%n", &from, &to, &used) != 2 || text[used] != '\0' ||
                         from < 1 || to > 65535 || from > to))
        return error_set(err, INSPAN_INVALID, "--data-ports %.40s: expected A-B with 1 <= A <= B <= 65535",
                         text);
    *first = (uint16_t)from;
    *last = (uint16_t)to;
    return INSPAN_OK;
}
