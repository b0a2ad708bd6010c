/* For tests that run with each backend. */
#ifndef COMM_OTHER_BACKEND_TEST_H
#define COMM_OTHER_BACKEND_TEST_H

#include "comm/comm.h"

/* The next one but native that can be used here, NULL: there are no more. Those that cannot are named. *i: 1
 * at first. */
static inline const char *other_backend(uint32_t *i)
{
    static comm_backend_info_t info;
    for (; comm_backend_info(*i, &info); ++*i) {
        if (info.available) {
            ++*i;
            return info.name;
        }
        print_message("skipped: %s: %s\n", info.name, info.why);
    }
    return NULL;
}

#endif
