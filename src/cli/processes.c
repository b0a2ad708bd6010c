#include "cli/processes.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/os/os_file.h"

bool process_line_read(pid_t pid, process_line_t *line)
{
    char path[48];
    size_t bytes = 0;
    inspan_error_t unused;
    memset(line, 0, sizeof *line);
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)pid);
    if (os_file_read(path, 65536, &line->text, &bytes, &unused) != INSPAN_OK) return false;
    for (size_t at = 0; at < bytes && line->n < PROCESS_WORDS_MAX; at += strlen(line->text + at) + 1)
        line->words[line->n++] = line->text + at;
    return true;
}

void process_line_free(process_line_t *line)
{
    free(line->text);
    line->text = NULL;
    line->n = 0;
}

const char *process_command(const process_line_t *line)
{
    uint32_t at = 1;
    if (line->n > 3 && strcmp(line->words[1], "--enter-lab") == 0) at = 3;
    return line->n > at ? line->words[at] : NULL;
}

const char *process_option(const process_line_t *line, const char *name)
{
    const size_t n = strlen(name);
    for (uint32_t i = 1; i < line->n; i++) {
        const char *word = line->words[i];
        if (strncmp(word, "--", 2) == 0 && strncmp(word + 2, name, n) == 0 && word[2 + n] == '=')
            return word + n + 3;
    }
    return NULL;
}

void process_each(const char *command, process_visit_t visit, void *context)
{
    DIR *listing = opendir("/proc");
    bool wanted = listing != NULL;
    while (wanted) {
        const struct dirent *entry = readdir(listing);
        if (entry == NULL) break;
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        process_line_t line;
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        const char *word = process_line_read(pid, &line) ? process_command(&line) : NULL;
        if (word != NULL && strcmp(word, command) == 0) wanted = visit(context, pid, &line);
        process_line_free(&line);
    }
    if (listing != NULL) closedir(listing);
}
