/*
 * CSV: one sample a line, numbers apart by commas, the last one the label (a whole number from 0). A first
 * line that is not all numbers is a header. Lines may end in CR LF; empty lines are passed over.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/vec.h"
#include "nn/data_internal.h"
#include "platform/os/os_file.h"

enum { CSV_COLUMNS_MAX = 1 << 20, CSV_FIELD_MAX = 64 };

typedef vec_of(uint32_t) labels_t;

typedef struct csv {
    const char *path;
    nn_dtype_t dtype;
    uint64_t line;    /* from 1 */
    uint64_t columns; /* of the first line, label included */
    char *at, *end;   /* the next line; end of the file */
    size_t length;    /* of the present line */
    void *features;
    uint64_t n, capacity; /* numbers in features */
    labels_t labels;
    uint32_t classes;
} csv_t;

static inspan_status_t fault(const csv_t *csv, uint64_t column, const char *expected, const char *found,
                             inspan_error_t *err)
{
    return error_set(err, INSPAN_CORRUPT, "%s: line %llu, column %llu: expected %s, found '%.40s'", csv->path,
                     (unsigned long long)csv->line, (unsigned long long)column, expected, found);
}

/* The next field of a line as a text without blanks around it; NULL after the last. `*rest` moves on. */
static char *next_field(char **rest)
{
    char *field = *rest;
    if (field == NULL) return NULL;
    char *comma = strchr(field, ',');
    *rest = comma != NULL ? comma + 1 : NULL;
    if (comma != NULL) *comma = '\0';
    while (*field == ' ' || *field == '\t') field++;
    char *end = field + strlen(field);
    while (end > field && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) *--end = '\0';
    return field;
}

static bool parse_number(const char *field, double *number)
{
    if (field[0] == '\0' || strspn(field, "0123456789.eE+-") != strlen(field)) return false;
    char *end = NULL;
    *number = strtod(field, &end);
    return *end == '\0' && isfinite(*number);
}

/* The next line, ended with a 0 byte; NULL at the end of the file. */
static char *next_line(csv_t *csv)
{
    if (csv->at >= csv->end) return NULL;
    char *line = csv->at;
    char *newline = memchr(line, '\n', (size_t)(csv->end - line));
    csv->at = newline != NULL ? newline + 1 : csv->end;
    csv->length = (size_t)((newline != NULL ? newline : csv->end) - line);
    line[csv->length] = '\0'; /* os_file_read left room for it behind the end */
    csv->line++;
    return line;
}

static bool is_blank(const char *line)
{
    return line[strspn(line, " \t\r")] == '\0';
}

/* Count the columns without changing the line; *numbers: all of them are numbers. */
static uint64_t count_columns(const char *line, bool *numbers)
{
    uint64_t n = 0;
    *numbers = true;
    for (const char *at = line; at != NULL; n++) {
        char field[CSV_FIELD_MAX];
        size_t length = strcspn(at, ",");
        double number = 0;
        size_t kept = length < sizeof field - 1 ? length : sizeof field - 1;
        memcpy(field, at, kept);
        field[kept] = '\0';
        char *rest = field;
        if (!parse_number(next_field(&rest), &number)) *numbers = false;
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return n;
}

static inspan_status_t push_number(csv_t *csv, double number, inspan_error_t *err)
{
    const size_t size = csv->dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    if (csv->n == csv->capacity) {
        uint64_t wanted = csv->capacity > 0 ? csv->capacity * 2 : 1024;
        void *grown = reallocarray(csv->features, wanted, size);
        if (grown == NULL)
            return error_set(err, INSPAN_NO_MEMORY, "no memory for the numbers of %s", csv->path);
        csv->features = grown;
        csv->capacity = wanted;
    }
    if (csv->dtype == NN_FP64)
        ((double *)csv->features)[csv->n++] = number;
    else
        ((float *)csv->features)[csv->n++] = (float)number;
    return INSPAN_OK;
}

static inspan_status_t push_label(csv_t *csv, const char *field, uint64_t column, inspan_error_t *err)
{
    char *end = NULL;
    size_t digits = strspn(field, "0123456789");
    unsigned long label = digits > 0 && digits < 10 ? strtoul(field, &end, 10) : DATA_CLASSES_MAX;
    if (end == NULL || *end != '\0' || label >= DATA_CLASSES_MAX)
        return fault(csv, column, "a label (a whole number from 0 to 65535)", field, err);
    if (label >= csv->classes) csv->classes = (uint32_t)label + 1;
    if (csv->labels.n >= UINT32_MAX || !VEC_PUSH(&csv->labels, (uint32_t)label))
        return error_set(err, INSPAN_NO_MEMORY, "no memory for the labels of %s", csv->path);
    return INSPAN_OK;
}

static inspan_status_t read_line(csv_t *csv, char *line, inspan_error_t *err)
{
    char *rest = line;
    uint64_t column = 0;
    inspan_status_t status = INSPAN_OK;
    for (char *field = next_field(&rest); field != NULL && status == INSPAN_OK; field = next_field(&rest)) {
        double number = 0;
        column++;
        if (column > csv->columns) break;
        if (column == csv->columns && rest == NULL)
            status = push_label(csv, field, column, err);
        else if (!parse_number(field, &number))
            status = fault(csv, column, "a number", field, err);
        else if (csv->dtype == NN_FP32 && !isfinite((float)number))
            status = fault(csv, column, "a number within fp32", field, err);
        else
            status = push_number(csv, number, err);
    }
    if (status != INSPAN_OK || (column == csv->columns && rest == NULL)) return status;
    return error_set(err, INSPAN_CORRUPT,
                     "%s: line %llu: expected %llu columns as in the first line, found %s", csv->path,
                     (unsigned long long)csv->line, (unsigned long long)csv->columns,
                     column < csv->columns ? "fewer" : "more");
}

static inspan_status_t read_lines(csv_t *csv, inspan_error_t *err)
{
    for (char *line = next_line(csv); line != NULL; line = next_line(csv)) {
        bool numbers = true;
        if (strlen(line) != csv->length)
            return error_set(err, INSPAN_CORRUPT, "%s: line %llu holds a 0 byte: not a CSV file", csv->path,
                             (unsigned long long)csv->line);
        if (is_blank(line)) continue;
        if (csv->columns == 0) {
            csv->columns = count_columns(line, &numbers);
            if (csv->columns < 2 || csv->columns > CSV_COLUMNS_MAX)
                return error_set(
                    err, INSPAN_CORRUPT,
                    "%s: line %llu has %llu columns, expected 2 (a number and a label) to %d, apart by "
                    "commas",
                    csv->path, (unsigned long long)csv->line, (unsigned long long)csv->columns,
                    CSV_COLUMNS_MAX);
            if (!numbers) continue; /* the header */
        }
        inspan_status_t status = read_line(csv, line, err);
        if (status != INSPAN_OK) return status;
    }
    if (csv->labels.n == 0) return error_set(err, INSPAN_INVALID, "%s holds no samples", csv->path);
    if (csv->classes < 2)
        return error_set(err, INSPAN_INVALID, "%s: all labels are 0: nothing to tell apart", csv->path);
    return INSPAN_OK;
}

/* Give back what the growth of the arrays took beyond their ends. */
static void fit(csv_t *csv)
{
    const size_t size = csv->dtype == NN_FP64 ? sizeof(double) : sizeof(float);
    void *features = reallocarray(csv->features, csv->n, size);
    uint32_t *labels = reallocarray(csv->labels.items, csv->labels.n, sizeof *labels);
    if (features != NULL) csv->features = features; /* else they stay where they are */
    if (labels != NULL) csv->labels.items = labels;
}

inspan_status_t data_read_csv(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err)
{
    char *file = NULL;
    size_t bytes = 0;
    inspan_status_t status = os_file_read(config->path, DATA_FILE_MAX, &file, &bytes, err);
    if (status != INSPAN_OK) return status;
    csv_t csv = {.path = config->path, .dtype = config->dtype, .at = file, .end = file + bytes};
    if (bytes >= 3 && memcmp(file, "\xef\xbb\xbf", 3) == 0) csv.at += 3; /* a byte order mark */
    if (bytes == 0)
        status = error_set(err, INSPAN_INVALID, "%s is empty", config->path);
    else
        status = read_lines(&csv, err);
    free(file);
    if (status == INSPAN_OK) fit(&csv);
    content->features = csv.features;
    content->labels = csv.labels.items;
    content->rows = csv.labels.n;
    content->inputs = csv.columns > 0 ? (uint32_t)(csv.columns - 1) : 0;
    content->classes = csv.classes;
    content->channels = content->height = 1;
    content->width = content->inputs;
    return status;
}
