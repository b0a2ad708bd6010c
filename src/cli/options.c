#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/units.h"
#include "base/words.h"

static inspan_status_t unknown_option(const char *typed, size_t length, const cli_option_t *options, size_t n,
                                      inspan_error_t *err)
{
    char word[WORDS_MAX + 1];
    snprintf(word, sizeof word, "%.*s", (int)(length < WORDS_MAX ? length : WORDS_MAX), typed);
    words_search_t search = {.typed = word};
    for (size_t i = 0; i < n; i++)
        if (options[i].help != NULL) words_offer(&search, options[i].name);
    const char *nearest = words_found(&search);
    if (nearest != NULL)
        return error_set(err, INSPAN_INVALID, "unknown option --%s: did you mean --%s?", word, nearest);
    return error_set(err, INSPAN_INVALID, "unknown option --%s", word);
}

static inspan_status_t check_range(const cli_option_t *option, const char *text, double number,
                                   inspan_error_t *err)
{
    if ((option->least == 0 && option->most == 0) || (number >= option->least && number <= option->most))
        return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "--%s %s: expected a number from %g to %g", option->name, text,
                     option->least, option->most);
}

static inspan_status_t set_count(const cli_option_t *option, const char *text, inspan_error_t *err)
{
    size_t digits = strspn(text, "0123456789");
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (digits == 0 || text[digits] != '\0' || errno != 0)
        return error_set(err, INSPAN_INVALID, "--%s %s: expected a whole number", option->name, text);
    *(uint64_t *)option->value = number;
    return check_range(option, text, (double)number, err);
}

static inspan_status_t set_real(const cli_option_t *option, const char *text, inspan_error_t *err)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number))
        return error_set(err, INSPAN_INVALID, "--%s %s: expected a number", option->name, text);
    *(double *)option->value = number;
    return check_range(option, text, number, err);
}

static inspan_status_t set_value(const cli_option_t *option, const char *text, inspan_error_t *err)
{
    switch (option->type) {
    case CLI_FLAG: *(bool *)option->value = true; return INSPAN_OK;
    case CLI_TEXT:
        if (text[0] == '\0') return error_set(err, INSPAN_INVALID, "--%s: expected a value", option->name);
        *(const char **)option->value = text;
        return INSPAN_OK;
    case CLI_LIST: {
        cli_list_t *list = option->value;
        if (list->n == CLI_LIST_MAX)
            return error_set(err, INSPAN_LIMIT, "--%s may be given %d times at most", option->name,
                             CLI_LIST_MAX);
        list->items[list->n++] = text;
        return INSPAN_OK;
    }
    case CLI_COUNT: return set_count(option, text, err);
    case CLI_REAL: return set_real(option, text, err);
    case CLI_SIZE:
        if (units_parse_size(text, option->value) != INSPAN_OK)
            return error_set(err, INSPAN_INVALID, "--%s %s: expected a size such as 4K, 25M or 1G",
                             option->name, text);
        return check_range(option, text, (double)*(uint64_t *)option->value, err);
    }
    return error_set(err, INSPAN_INTERNAL, "option --%s has no type", option->name);
}

static const cli_option_t *find_long(const char *name, size_t length, const cli_option_t *options, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            return &options[i];
    return NULL;
}

static const cli_option_t *find_letter(char letter, const cli_option_t *options, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (options[i].letter == letter) return &options[i];
    return NULL;
}

/* One option at argv[*i]; a value that stands apart advances *i. */
static inspan_status_t parse_option(int argc, char **argv, int *i, const cli_option_t *options, size_t n,
                                    inspan_error_t *err)
{
    const char *word = argv[*i];
    const char *value = NULL;
    const cli_option_t *option = NULL;
    if (word[1] == '-') {
        size_t length = strcspn(word + 2, "=");
        option = find_long(word + 2, length, options, n);
        if (option == NULL) return unknown_option(word + 2, length, options, n, err);
        if (word[2 + length] == '=') value = word + 2 + length + 1;
    } else {
        option = find_letter(word[1], options, n);
        if (option == NULL) return error_set(err, INSPAN_INVALID, "unknown option %.20s", word);
        if (word[2] != '\0') value = word + 2;
    }
    if (option->type == CLI_FLAG) {
        if (value != NULL) return error_set(err, INSPAN_INVALID, "--%s takes no value", option->name);
        return set_value(option, "", err);
    }
    if (value == NULL) {
        if (*i + 1 >= argc)
            return error_set(err, INSPAN_INVALID, "--%s: expected %s after it", option->name,
                             option->argument);
        value = argv[++*i];
    }
    return set_value(option, value, err);
}

inspan_status_t options_parse(int argc, char **argv, const cli_option_t *options, size_t n,
                              uint32_t least_operands, uint32_t most_operands, cli_operands_t *operands,
                              inspan_error_t *err)
{
    bool ended = false;
    operands->n = 0;
    for (int i = 1; i < argc; i++) {
        if (!ended && strcmp(argv[i], "--") == 0) {
            ended = true;
        } else if (!ended && argv[i][0] == '-' && argv[i][1] != '\0') {
            inspan_status_t status = parse_option(argc, argv, &i, options, n, err);
            if (status != INSPAN_OK) return status;
        } else if (operands->n == most_operands || operands->n == CLI_OPERANDS_MAX) {
            return error_set(err, INSPAN_INVALID, "unexpected \"%.100s\"", argv[i]);
        } else {
            operands->items[operands->n++] = argv[i];
        }
    }
    if (operands->n < least_operands)
        return error_set(err, INSPAN_INVALID, "%s: expected %u more argument%s", argv[0],
                         least_operands - operands->n, least_operands - operands->n == 1 ? "" : "s");
    return INSPAN_OK;
}

void options_print(FILE *out, const cli_option_t *options, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (options[i].help == NULL) continue;
        char left[64];
        char letter[8] = "    ";
        if (options[i].letter != 0) snprintf(letter, sizeof letter, "-%c, ", options[i].letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, options[i].name, options[i].argument ? " " : "",
                 options[i].argument ? options[i].argument : "");
        fprintf(out, "  %-28s %s\n", left, options[i].help);
    }
}
