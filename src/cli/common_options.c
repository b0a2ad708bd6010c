#include "cli/common_options.h"

#include <string.h>

#include "base/error.h"

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
