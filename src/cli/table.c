#include "cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

#define CELL_MAX    512
#define COLUMNS_MAX 24
#define GAP         2

struct table {
    size_t columns;
    bool right[COLUMNS_MAX];
    vec_of(char *) cells; /* headings first */
};

char *table_clean(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        bool c1 = *at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0; /* the 8-bit control characters in UTF-8 */
        if (*at < 0x20 || *at == 0x7f || c1) *at = '?';
    }
    return text;
}

table_t *table_open(const char *const *headings)
{
    table_t *table = calloc(1, sizeof *table);
    if (table == NULL) return NULL;
    for (size_t i = 0; i < COLUMNS_MAX && headings[i] != NULL; i++) {
        table->right[i] = headings[i][0] == '>';
        table->columns++;
        table_add(table, "%s", headings[i] + table->right[i]);
    }
    return table;
}

void table_add(table_t *table, const char *format, ...)
{
    char text[CELL_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *cell = strdup(table_clean(text));
    if (cell != NULL && !VEC_PUSH(&table->cells, cell)) free(cell);
}

/* Characters, not bytes: continuation bytes of UTF-8 take no column. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (; *text != '\0'; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void table_print(const table_t *table, FILE *out)
{
    size_t widths[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < table->cells.n; i++) {
        size_t width = width_of(table->cells.items[i]);
        if (width > widths[i % table->columns]) widths[i % table->columns] = width;
    }
    for (size_t i = 0; i < table->cells.n; i++) {
        size_t column = i % table->columns;
        const char *cell = table->cells.items[i];
        int padding = (int)(widths[column] - width_of(cell));
        bool last = column + 1 == table->columns;
        if (table->right[column])
            fprintf(out, "%*s%s", padding, "", cell);
        else
            fprintf(out, "%s%*s", cell, last ? 0 : padding, "");
        if (last)
            fputc('\n', out);
        else
            fprintf(out, "%*s", GAP, "");
    }
}

void table_close(table_t *table)
{
    if (table == NULL) return;
    for (size_t i = 0; i < table->cells.n; i++) free(table->cells.items[i]);
    vec_free(&table->cells);
    free(table);
}
