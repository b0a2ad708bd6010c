/* Tables for people: columns as wide as their widest cell, numbers to the right. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct table table_t;

/* headings: "NAME", ">CORES" (a leading > puts the column's cells to the right), ends with NULL. NULL: no
 * memory. */
table_t *table_open(const char *const *headings);
/* The next cell, row after row. Control characters of foreign text become '?': it goes to a terminal. */
void table_add(table_t *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_print(const table_t *table, FILE *out); /* headings and all rows */
void table_close(table_t *table);

/* Make text fit for a terminal in place: control characters become '?'. Returns text. */
char *table_clean(char *text);

#endif
