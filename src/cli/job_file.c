/* Walks libyaml's events with a state of its own: a tree of the document would have lost the lines of half
 * the faults. */
#include "cli/job_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/error.h"
#include "base/words.h"
#include "platform/os/os_file.h"

#define FIELDS_MAX 128
#define KEY_SIZE   96

/*
 *   START -mapping-> TOP -scalar-> TOP_VALUE -scalar-> TOP
 *                     |                |
 *                     | end            '-mapping-> SECTION -scalar-> VALUE -scalar-> SECTION
 *                     v                               | end
 *                    END <-                           '--> TOP
 */
typedef enum walk_state { START, TOP, TOP_VALUE, SECTION, VALUE, END } walk_state_t;

typedef struct walk {
    const char *name; /* of the file */
    job_config_t *job;
    inspan_error_t *err;
    walk_state_t state;
    char section[KEY_SIZE], key[KEY_SIZE]; /* key: as job.h has it, "train.lr" */
    size_t key_line;
    size_t set_at[FIELDS_MAX]; /* line that set the field; 0: not set yet */
} walk_t;

static inspan_status_t fault(const walk_t *walk, size_t line, const char *text)
{
    return error_set(walk->err, INSPAN_INVALID, "%s:%zu: %s", walk->name, line, text);
}

/* 1 + the place of a field in the table; 0: no such field. */
static size_t find_field(const char *key)
{
    size_t n;
    const job_field_t *fields = job_fields(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].key, key) == 0) return i + 1;
    return 0;
}

static bool is_section(const char *word)
{
    size_t n, length = strlen(word);
    const job_field_t *fields = job_fields(&n);
    for (size_t i = 0; i < n; i++)
        if (strncmp(fields[i].key, word, length) == 0 && fields[i].key[length] == '.') return true;
    return false;
}

static inspan_status_t unknown_section(const walk_t *walk, size_t line)
{
    size_t n;
    const job_field_t *fields = job_fields(&n);
    char text[160];
    words_search_t search = {.typed = walk->section};
    for (size_t i = 0; i < n; i++) {
        char word[KEY_SIZE];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(fields[i].key, "."), fields[i].key);
        words_offer(&search, word);
    }
    const char *nearest = words_found(&search);
    bool near = nearest != NULL;
    snprintf(text, sizeof text, "unknown field %.60s%s%.60s%s", walk->section, near ? ": did you mean " : "",
             near ? nearest : "", near ? "?" : "");
    return fault(walk, line, text);
}

/* A scalar as text without 0 bytes inside. */
static inspan_status_t scalar_text(const walk_t *walk, const yaml_event_t *event, char *text, size_t size)
{
    size_t line = event->start_mark.line + 1;
    const char *bytes = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(bytes, '\0', length) != NULL) return fault(walk, line, "a text holds a byte 0");
    if (length >= size) return fault(walk, line, "a key or value is too long");
    memcpy(text, bytes, length);
    text[length] = '\0';
    return INSPAN_OK;
}

static inspan_status_t set_value(walk_t *walk, const yaml_event_t *event)
{
    char value[JOB_TEXT_MAX * 2], text[KEY_SIZE + 64];
    size_t line = event->start_mark.line + 1;
    inspan_status_t status = scalar_text(walk, event, value, sizeof value);
    if (status != INSPAN_OK) return status;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (value[0] == '\0' || strcmp(value, "~") == 0 || strcmp(value, "null") == 0)) {
        snprintf(text, sizeof text, "%s has no value", walk->key);
        return fault(walk, line, text);
    }
    size_t field = find_field(walk->key);
    if (field > 0 && field <= FIELDS_MAX) {
        if (walk->set_at[field - 1] != 0) {
            snprintf(text, sizeof text, "%s is given twice, first on line %zu", walk->key,
                     walk->set_at[field - 1]);
            return fault(walk, walk->key_line, text);
        }
        walk->set_at[field - 1] = walk->key_line;
    }
    status = job_set(walk->job, walk->key, value, walk->err);
    if (status == INSPAN_OK) return INSPAN_OK;
    /* an unknown field is wrong where its key stands, a wrong value where it stands itself */
    error_prefix(walk->err, "%s:%zu", walk->name, field == 0 ? walk->key_line : line);
    return status;
}

static inspan_status_t on_scalar(walk_t *walk, const yaml_event_t *event)
{
    size_t line = event->start_mark.line + 1;
    char word[KEY_SIZE / 2 - 1];
    inspan_status_t status;
    switch (walk->state) {
    case TOP:
        walk->key_line = line;
        walk->state = TOP_VALUE;
        return scalar_text(walk, event, walk->section, KEY_SIZE / 2 - 1);
    case TOP_VALUE:
        walk->state = TOP;
        if (is_section(walk->section)) {
            char text[KEY_SIZE * 2 + 64];
            snprintf(text, sizeof text, "%s: expected fields, as in %s: {...}, found a single value",
                     walk->section, walk->section);
            return fault(walk, line, text);
        }
        memcpy(walk->key, walk->section, sizeof walk->key);
        return set_value(walk, event);
    case SECTION:
        walk->key_line = line;
        walk->state = VALUE;
        status = scalar_text(walk, event, word, sizeof word);
        if (status == INSPAN_OK) snprintf(walk->key, sizeof walk->key, "%.46s.%.46s", walk->section, word);
        return status;
    case VALUE: walk->state = SECTION; return set_value(walk, event);
    case START:
    case END: break;
    }
    return fault(walk, line, "expected fields such as \"model: {kind: gpt}\", found a single text");
}

static inspan_status_t on_mapping(walk_t *walk, const yaml_event_t *event)
{
    size_t line = event->start_mark.line + 1;
    char text[KEY_SIZE + 64];
    switch (walk->state) {
    case START: walk->state = TOP; return INSPAN_OK;
    case TOP_VALUE:
        if (is_section(walk->section)) {
            walk->state = SECTION;
            return INSPAN_OK;
        }
        if (find_field(walk->section) == 0) return unknown_section(walk, walk->key_line);
        snprintf(text, sizeof text, "%s: expected a single value, found fields", walk->section);
        return fault(walk, line, text);
    case VALUE:
        snprintf(text, sizeof text, "%s: expected a single value, found fields", walk->key);
        return fault(walk, line, text);
    case TOP:
    case SECTION:
    case END: break;
    }
    return fault(walk, line, "a field's name must be a plain text");
}

static inspan_status_t on_sequence(const walk_t *walk, size_t line)
{
    char text[KEY_SIZE + 64];
    if (walk->state != TOP_VALUE && walk->state != VALUE)
        return fault(walk, line, "expected fields such as \"model: {kind: gpt}\", found a list");
    snprintf(text, sizeof text, "%s: expected a single value, found a list",
             walk->state == VALUE ? walk->key : walk->section);
    return fault(walk, line, text);
}

static inspan_status_t on_event(walk_t *walk, const yaml_event_t *event)
{
    size_t line = event->start_mark.line + 1;
    switch (event->type) {
    case YAML_SCALAR_EVENT: return on_scalar(walk, event);
    case YAML_MAPPING_START_EVENT: return on_mapping(walk, event);
    case YAML_MAPPING_END_EVENT: walk->state = walk->state == SECTION ? TOP : END; return INSPAN_OK;
    case YAML_SEQUENCE_START_EVENT: return on_sequence(walk, line);
    case YAML_ALIAS_EVENT: return fault(walk, line, "aliases (*name) are not understood in a job file");
    case YAML_DOCUMENT_START_EVENT:
        return walk->state == END ? fault(walk, line, "a second document; a job file has one") : INSPAN_OK;
    default: return INSPAN_OK;
    }
}

static inspan_status_t syntax_fault(const walk_t *walk, const yaml_parser_t *parser)
{
    char text[256];
    const char *problem = parser->problem != NULL ? parser->problem : "cannot be read";
    size_t line = parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) {
        /* the reader knows a byte's place alone */
        snprintf(text, sizeof text, "%s at byte %zu", problem, parser->problem_offset);
        line = parser->mark.line + 1;
    } else if (parser->error == YAML_MEMORY_ERROR) {
        return error_set(walk->err, INSPAN_NO_MEMORY, "%s: out of memory", walk->name);
    } else {
        bool tab = strstr(problem, "cannot start any token") != NULL;
        snprintf(text, sizeof text, "not YAML: %s%s%s%s", problem, parser->context != NULL ? " " : "",
                 parser->context != NULL ? parser->context : "",
                 tab ? " (indent with spaces: a tab is not allowed there)" : "");
    }
    return fault(walk, line, text);
}

inspan_status_t job_file_parse(const char *name, const char *text, size_t bytes, job_config_t *job,
                               inspan_error_t *err)
{
    walk_t walk = {.name = name, .job = job, .err = err, .state = START};
    yaml_parser_t parser;
    job_defaults(job);
    if (bytes > JOB_FILE_MAX)
        return error_set(err, INSPAN_LIMIT, "%s: %zu bytes, a job file has at most %zu", name, bytes,
                         JOB_FILE_MAX);
    if (!yaml_parser_initialize(&parser)) return error_set(err, INSPAN_NO_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    inspan_status_t status = INSPAN_OK;
    bool ended = false;
    while (status == INSPAN_OK && !ended) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = syntax_fault(&walk, &parser);
            break;
        }
        ended = event.type == YAML_STREAM_END_EVENT;
        status = on_event(&walk, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (status == INSPAN_OK && walk.state == START)
        return error_set(err, INSPAN_INVALID, "%s:1: the file is empty: expected at least data: {path: ...}",
                         name);
    return status;
}

inspan_status_t job_file_load(const char *path, job_config_t *job, inspan_error_t *err)
{
    char *text = NULL;
    size_t bytes = 0;
    inspan_status_t status = os_file_read(path, JOB_FILE_MAX, &text, &bytes, err);
    if (status == INSPAN_OK) status = job_file_parse(path, text, bytes, job, err);
    free(text);
    return status;
}
