/*
 * JSON, read and written (over cJSON). Values form a tree owned by its root: json_free(root) frees all.
 * Adding to a parent hands the value over. Numbers are doubles, written so that the same double is read:
 * 64-bit ids beyond 2^53 and hashes are written as strings. Out of memory while building makes json_print
 * return NULL; the adders may be chained without checks.
 */
#ifndef JSON_JSON_H
#define JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

typedef struct json json_t;

json_t *json_object(void);
json_t *json_array(void);
void json_free(json_t *value); /* NULL is fine */

/* NULL text: null. What is no UTF-8 in it is replaced by U+FFFD: what is printed is always UTF-8. */
void json_set_string(json_t *object, const char *key, const char *text);
void json_set_number(json_t *object, const char *key, double number); /* not finite: null */
void json_set_bool(json_t *object, const char *key, bool truth);
void json_set(json_t *object, const char *key, json_t *value);
void json_append(json_t *array, json_t *value);
void json_append_string(json_t *array, const char *text);
void json_append_number(json_t *array, double number);

char *json_print(const json_t *value, bool pretty); /* the caller frees; NULL: out of memory */

/*
 * CORRUPT (the text says the byte offset; out of memory, too). Nesting at most 100; numbers as far as a
 * double goes; UTF-8; no zero in a string; only white space may follow. Reads text[0..bytes) alone.
 */
inspan_status_t json_parse(const char *text, size_t bytes, json_t **value, inspan_error_t *err);

/* Look-ups; wrong type or missing: the fallback, or NULL. Strings stay owned by the tree. */
const json_t *json_get(const json_t *object, const char *key);
const char *json_get_string(const json_t *object, const char *key);
double json_get_number(const json_t *object, const char *key, double fallback);
bool json_get_bool(const json_t *object, const char *key, bool fallback);
bool json_is_object(const json_t *value);
bool json_is_array(const json_t *value);
bool json_is_number(const json_t *value);
double json_number(const json_t *value, double fallback);
const char *json_string(const json_t *value);
size_t json_size(const json_t *array);
const json_t *json_first(const json_t *container); /* of an array or object; NULL at the end */
const json_t *json_next(const json_t *value);
const char *json_key(const json_t *value); /* of a member of an object */

#endif
