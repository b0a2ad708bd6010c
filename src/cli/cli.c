#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/words.h"
#include "platform/json/json.h"

#define MAX_OPTIONS 48

static const char exit_codes[] =
    "Exit codes: 0 done, 1 the command, job file or data is wrong, 2 the cluster failed (manager\n"
    "unreachable, ...), 3 the job failed or was cancelled.\n";

static const cli_command_t *find_command(const char *name)
{
    for (const cli_command_t *command = cli_commands; command->name != NULL; command++)
        if (strcmp(command->name, name) == 0) return command;
    return NULL;
}

static void print_overview(FILE *out)
{
    fputs("Inspan trains one model on the unequal machines that you own.\n\nUsage: inspan COMMAND "
          "[options]\n\n",
          out);
    for (const cli_command_t *command = cli_commands; command->name != NULL; command++)
        if (command->summary != NULL) fprintf(out, "  %-10s %s\n", command->name, command->summary);
    fputs("\nExample (three machines):\n"
          "  first machine:   inspan up                       prints the line for the others\n"
          "  the others:      inspan join HOST --token T\n"
          "  anywhere:        inspan train gpt.yaml\n"
          "Example (this machine alone):\n"
          "  inspan train gpt.yaml --local 3\n\n"
          "inspan COMMAND --help says more about each.\n",
          out);
    fputs(exit_codes, out);
}

static void print_command(FILE *out, const cli_command_t *command, const cli_option_t *options, size_t n)
{
    fprintf(out, "Usage: inspan %s%s%s\n\n%s.\n", command->name, command->usage[0] ? " " : "", command->usage,
            command->summary ? command->summary : "Started by Inspan itself");
    if (command->details != NULL) fprintf(out, "%s\n", command->details);
    fputs("\nOptions:\n", out);
    options_print(out, options, n);
    if (command->example != NULL) fprintf(out, "\nExample:\n%s\n", command->example);
    fputs("\n", out);
    fputs(exit_codes, out);
}

static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], word) == 0) return true;
    return false;
}

int cli_parse(int argc, char **argv, const cli_option_t *options, size_t n, uint32_t least_operands,
              uint32_t most_operands, cli_operands_t *operands)
{
    bool help = false;
    cli_option_t all[MAX_OPTIONS];
    if (n + 1 > MAX_OPTIONS) abort();
    if (n > 0) memcpy(all, options, n * sizeof *options);
    all[n++] =
        (cli_option_t){.name = "help", .letter = 'h', .type = CLI_FLAG, .help = "this text", .value = &help};

    const cli_command_t *command = find_command(argv[0]);
    inspan_error_t err = {0};
    inspan_status_t status = options_parse(argc, argv, all, n, least_operands, most_operands, operands, &err);
    if (command != NULL && help) { /* also where operands are missing */
        print_command(stdout, command, all, n);
        return CLI_EXIT_OK;
    }
    if (status == INSPAN_OK) return -1;
    size_t used = strlen(err.text);
    snprintf(err.text + used, sizeof err.text - used, " (inspan %s --help shows all)", argv[0]);
    return cli_fail(&err, has_word(argc, argv, "--json"));
}

int cli_exit_code(inspan_status_t status)
{
    switch (status) {
    case INSPAN_OK: return CLI_EXIT_OK;
    case INSPAN_INVALID:
    case INSPAN_NOT_FOUND:
    case INSPAN_EXISTS:
    case INSPAN_LIMIT:
    case INSPAN_CORRUPT:
    case INSPAN_UNSUPPORTED:
    case INSPAN_AUTH:
    case INSPAN_VERSION: return CLI_EXIT_USER;
    case INSPAN_JOB_FAILED: return CLI_EXIT_JOB;
    default: return CLI_EXIT_CLUSTER;
    }
}

json_t *cli_error_json(const inspan_error_t *err)
{
    json_t *error = json_object();
    json_set_string(error, "status", inspan_status_text(err->status));
    json_set_string(error, "text", err->text);
    return error;
}

static void tell(const inspan_error_t *err, bool json)
{
    fflush(stdout);
    fprintf(stderr, "inspan: %s\n", err->text);
    if (!json) return;
    json_t *root = json_object();
    json_set(root, "error", cli_error_json(err));
    char *text = json_print(root, false);
    if (text != NULL) printf("%s\n", text);
    fflush(stdout);
    free(text);
    json_free(root);
}

int cli_fail(const inspan_error_t *err, bool json)
{
    tell(err, json);
    return cli_exit_code(err->status);
}

int cli_fail_user(const inspan_error_t *err, bool json)
{
    tell(err, json);
    return CLI_EXIT_USER;
}

static int unknown_command(const char *typed, bool json)
{
    words_search_t search = {.typed = typed};
    for (const cli_command_t *command = cli_commands; command->name != NULL; command++)
        if (command->summary != NULL) words_offer(&search, command->name);
    inspan_error_t err = {0};
    const char *nearest = words_found(&search);
    bool near = nearest != NULL;
    error_set(&err, INSPAN_INVALID, "unknown command \"%.60s\"%s%s%s (inspan --help lists all)", typed,
              near ? ": did you mean " : "", near ? nearest : "", near ? "?" : "");
    return cli_fail(&err, json);
}

/* An answer that could not be written is none: a full disk must not look like success. */
static int run_command(const cli_command_t *command, int argc, char **argv)
{
    int code = command->run(argc, argv);
    errno = 0;
    if (fflush(stdout) == 0 && ferror(stdout) == 0) return code;
    if (errno == EPIPE) return code; /* the reader has seen enough */
    fprintf(stderr, "inspan: cannot write the answer: %s\n",
            errno != 0 ? strerror(errno) : "an earlier write failed");
    return code == CLI_EXIT_OK ? CLI_EXIT_USER : code;
}

int cli_main(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return CLI_EXIT_USER;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (strcmp(word, "help") == 0 && argc == 2)) {
        print_overview(stdout);
        return CLI_EXIT_OK;
    }
    if (strcmp(word, "--version") == 0) word = "version";
    if (strcmp(word, "help") == 0) { /* inspan help train = inspan train --help */
        const cli_command_t *command = find_command(argv[2]);
        if (command == NULL) return unknown_command(argv[2], false);
        char *swapped[] = {argv[2], (char[]){"--help"}, NULL};
        return run_command(command, 2, swapped);
    }
    const cli_command_t *command = find_command(word);
    if (command == NULL) return unknown_command(word, has_word(argc, argv, "--json"));
    argv[1] = (char *)(uintptr_t)command->name;
    return run_command(command, argc - 1, argv + 1);
}
