#include <string.h>

#include "cli/cli.h"
#include "platform/host/lab.h"

/* A machine of the laboratory: "inspan --enter-lab WHERE agent ..." moves there before anything else happens.
 */
int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--enter-lab") == 0) {
        inspan_error_t err = {0};
        if (lab_enter(argv[2], &err) != INSPAN_OK) return cli_fail(&err, false);
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    return cli_main(argc, argv);
}
