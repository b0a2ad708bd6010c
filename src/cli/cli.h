/*
 * What all subcommands share: the table of commands, parsing with --help, errors and exit codes.
 *
 * A subcommand is one file cmd_NAME.c with `int cmd_NAME(int argc, char **argv)`: argv[0] is the subcommand's
 * name, the return value the exit code. Output that is asked for goes to stdout, all else (progress, errors)
 * to stderr.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/options.h"
#include "platform/json/json.h"

enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_USER = 1,    /* the command, the job file or the data is wrong */
    CLI_EXIT_CLUSTER = 2, /* manager or nodes unreachable, or a fault of the system */
    CLI_EXIT_JOB = 3      /* the job failed or was cancelled */
};

typedef struct cli_command {
    const char *name;    /* "train" */
    const char *usage;   /* what follows the name: "FILE.yaml [options]" */
    const char *summary; /* one line; NULL: a hidden command */
    const char *details; /* paragraphs of the help; NULL: none */
    const char *example; /* lines of the help */
    int (*run)(int argc, char **argv);
} cli_command_t;

extern const cli_command_t cli_commands[]; /* ends with a NULL name */

/*
 * Parse a subcommand's arguments. -1: go on; else the exit code to return (--help was printed: 0; an error:
 * 1, already told). --help is understood besides the options given.
 */
int cli_parse(int argc, char **argv, const cli_option_t *options, size_t n, uint32_t least_operands,
              uint32_t most_operands, cli_operands_t *operands);

/* Tell a failure ("inspan: text" on stderr; with json {"error": {...}} on stdout too); the exit code of its
 * status. */
int cli_fail(const inspan_error_t *err, bool json);
/* The same for a failure that is the user's (job file, data), whatever its status. */
int cli_fail_user(const inspan_error_t *err, bool json);

/* {"status": ..., "text": ...} */
json_t *cli_error_json(const inspan_error_t *err);

int cli_exit_code(inspan_status_t status);

/* The whole program but for main's signal and laboratory set-up. */
int cli_main(int argc, char **argv);

int cmd_agent(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_cancel(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_drain(int argc, char **argv);
int cmd_unban(int argc, char **argv);
int cmd_chaos(int argc, char **argv);
int cmd_backup(int argc, char **argv);
int cmd_give(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_job(int argc, char **argv);
int cmd_jobs(int argc, char **argv);
int cmd_join(int argc, char **argv);
int cmd_lab(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_manager(int argc, char **argv);
int cmd_nodes(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_results(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_up(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_worker(int argc, char **argv);

#endif
