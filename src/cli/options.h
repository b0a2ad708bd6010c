/*
 * The one option parser of all subcommands: a table says name, kind and place of every option; parsing, the
 * help text and the hint at a misspelt option are made from it. Options and operands may be mixed; "--" ends
 * the options;
 * "--name value" and "--name=value" are the same. Text values point into argv.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <inspan/status.h>

typedef enum cli_option_type {
    CLI_FLAG,  /* bool *: true when given                           */
    CLI_TEXT,  /* const char **                                     */
    CLI_LIST,  /* cli_list_t *: may be given several times          */
    CLI_COUNT, /* uint64_t *: a whole number in [least, most]       */
    CLI_REAL,  /* double *: a number in [least, most]               */
    CLI_SIZE   /* uint64_t *: bytes, K M G are powers of ten        */
} cli_option_type_t;

#define CLI_LIST_MAX 128

typedef struct cli_list {
    const char *items[CLI_LIST_MAX];
    uint32_t n;
} cli_list_t;

typedef struct cli_option {
    const char *name; /* without the dashes */
    char letter;      /* 0: no short form */
    cli_option_type_t type;
    const char *argument; /* "N" in the help; NULL for a flag */
    const char *help;     /* one line; NULL: not shown in the help */
    void *value;
    double least, most; /* numbers; both 0: no bound but that of the type */
} cli_option_t;

#define CLI_OPERANDS_MAX 16

typedef struct cli_operands {
    const char *items[CLI_OPERANDS_MAX];
    uint32_t n;
} cli_operands_t;

/*
 * Fill the options' values and the operands from argv[1..argc). INVALID: unknown option (names the nearest
 * known one), missing or surplus value, not a number, out of range, wrong number of operands.
 */
inspan_status_t options_parse(int argc, char **argv, const cli_option_t *options, size_t n,
                              uint32_t least_operands, uint32_t most_operands, cli_operands_t *operands,
                              inspan_error_t *err);

/* The list of options for a help text: one line an option, aligned. */
void options_print(FILE *out, const cli_option_t *options, size_t n);

#endif
