#include <stdio.h>
#include <string.h>

#include "cli/common_options.h"
#include "cli/show.h"
#include "nn/nn.h"

/* Those that this program was built with, found by the build: "name=version;" each. */
static const char libraries[] = INSPAN_LIBRARIES;

int cmd_version(int argc, char **argv)
{
    bool json = false;
    const cli_option_t options[] = {OPTION_JSON(&json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;

    json_t *root = json_object();
    json_t *list = json_object();
    json_set_string(root, "version", INSPAN_VERSION_TEXT);
    json_set_string(root, "gemm", nn_gemm_report());
    json_set_string(root, "compiler", __VERSION__);
    if (!json) printf("inspan %s (compiler %s)\n", INSPAN_VERSION_TEXT, __VERSION__);
    for (const char *at = libraries; *at != '\0'; at += strcspn(at, ";") + (strchr(at, ';') != NULL)) {
        char name[64], version[64];
        if (sscanf(at, "%63[^=;]=%63[^;]", name, version) != 2) continue;
        json_set_string(list, name, version);
        if (!json) printf("  %-12s %s\n", name, version);
    }
    json_set(root, "libraries", list);
    if (json) return show_print_json(root);
    printf("matrix products: %s\n", nn_gemm_report());
    json_free(root);
    return CLI_EXIT_OK;
}
