/* Inspan's own programs on this machine, found by their command lines. */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_WORDS_MAX 24

/* A command line; words point into text. */
typedef struct process_line {
    char *text;
    const char *words[PROCESS_WORDS_MAX];
    uint32_t n;
} process_line_t;

/* false: no such process. The caller frees by process_line_free, in any case. */
bool process_line_read(pid_t pid, process_line_t *line);
void process_line_free(process_line_t *line);

/* The word after "inspan" (and after the laboratory's own), or NULL. */
const char *process_command(const process_line_t *line);
/* What follows "--NAME=", or NULL. */
const char *process_option(const process_line_t *line, const char *name);

/* Call visit for each process that runs this subcommand, until it returns false. */
typedef bool (*process_visit_t)(void *context, pid_t pid, const process_line_t *line);
void process_each(const char *command, process_visit_t visit, void *context);

#endif
