#include "platform/json/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

#define DEPTH_MAX 100

static cJSON *out(json_t *value)
{
    return (cJSON *)value;
}

static const cJSON *in(const json_t *value)
{
    return (const cJSON *)value;
}

json_t *json_object(void)
{
    return (json_t *)cJSON_CreateObject();
}

json_t *json_array(void)
{
    return (json_t *)cJSON_CreateArray();
}

void json_free(json_t *value)
{
    cJSON_Delete(out(value));
}

/* A value that could not be added, for want of memory, must not just be missing in what is printed: its
 * container remembers. cJSON uses the lowest ten bits of a type. */
#define INCOMPLETE (1 << 20)

static void not_added(json_t *container, json_t *value)
{
    if (container != NULL) out(container)->type |= INCOMPLETE;
    json_free(value);
}

static bool is_complete(const cJSON *value)
{
    if (value->type & INCOMPLETE) return false;
    for (const cJSON *child = value->child; child != NULL; child = child->next)
        if (!is_complete(child)) return false;
    return true;
}

void json_set(json_t *object, const char *key, json_t *value)
{
    if (!cJSON_AddItemToObject(out(object), key, out(value))) not_added(object, value);
}

void json_append(json_t *array, json_t *value)
{
    if (!cJSON_AddItemToArray(out(array), out(value))) not_added(array, value);
}

/* cJSON is content with 15 digits where the 16th is off by little; a raw item keeps what we print. */
static json_t *make_number(double number)
{
    char digits[32];
    if (!isfinite(number)) return (json_t *)cJSON_CreateNull();
    snprintf(digits, sizeof digits, "%.15g", number);
    if (strtod(digits, NULL) == number) return (json_t *)cJSON_CreateNumber(number);
    snprintf(digits, sizeof digits, "%.17g", number);
    return (json_t *)cJSON_CreateRaw(digits);
}

/* What is no UTF-8 (a path of an old disk, a text cut in the midst of a character) becomes U+FFFD. */
static json_t *make_string(const char *text)
{
    if (text == NULL) return (json_t *)cJSON_CreateNull();
    size_t bytes = strlen(text), used = 0;
    char *clean = malloc(3 * bytes + 1);
    if (clean == NULL) return NULL;
    for (size_t i = 0; i < bytes;) {
        size_t n = utf8_length(text + i, bytes - i);
        memcpy(clean + used, n > 0 ? text + i : "\xef\xbf\xbd", n > 0 ? n : 3);
        used += n > 0 ? n : 3;
        i += n > 0 ? n : 1;
    }
    clean[used] = '\0';
    json_t *value = (json_t *)cJSON_CreateString(clean);
    free(clean);
    return value;
}

void json_set_string(json_t *object, const char *key, const char *text)
{
    json_set(object, key, make_string(text));
}

void json_set_number(json_t *object, const char *key, double number)
{
    json_set(object, key, make_number(number));
}

void json_set_bool(json_t *object, const char *key, bool truth)
{
    json_set(object, key, (json_t *)cJSON_CreateBool(truth));
}

void json_append_string(json_t *array, const char *text)
{
    json_append(array, make_string(text));
}

void json_append_number(json_t *array, double number)
{
    json_append(array, make_number(number));
}

char *json_print(const json_t *value, bool pretty)
{
    if (value == NULL || !is_complete(in(value))) return NULL;
    return pretty ? cJSON_Print(in(value)) : cJSON_PrintUnformatted(in(value));
}

/*
 * What cJSON lets through and nobody behind us expects: nesting of 1000, bytes that are no UTF-8, and zeros,
 * at which a string would end before its end.
 */
static inspan_status_t check_text(const char *text, size_t bytes, inspan_error_t *err)
{
    size_t depth = 0, n;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i += n) {
        const char c = text[i];
        n = utf8_length(text + i, bytes - i);
        if (n == 0) return error_set(err, INSPAN_CORRUPT, "not JSON: not UTF-8 at byte %zu of %zu", i, bytes);
        if (c == '\0' || (in_string && bytes - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0))
            return error_set(err, INSPAN_CORRUPT, "not JSON: a zero at byte %zu of %zu", i, bytes);
        if (c == '"') in_string = !in_string;
        if (in_string && c == '\\' && i + 1 < bytes && (text[i + 1] == '"' || text[i + 1] == '\\')) n = 2;
        if (in_string) continue;
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth > 0) depth--;
        if (depth > DEPTH_MAX)
            return error_set(err, INSPAN_CORRUPT, "JSON nested more than %d deep at byte %zu of %zu",
                             DEPTH_MAX, i, bytes);
    }
    return INSPAN_OK;
}

/* No number is beyond what a double holds (1e999 is infinite to cJSON). Not deeper than DEPTH_MAX. */
static bool all_finite(const cJSON *value)
{
    if (cJSON_IsNumber(value)) return isfinite(value->valuedouble);
    for (const cJSON *child = value->child; child != NULL; child = child->next)
        if (!all_finite(child)) return false;
    return true;
}

inspan_status_t json_parse(const char *text, size_t bytes, json_t **value, inspan_error_t *err)
{
    const char *end = NULL;
    inspan_status_t status = check_text(text, bytes, err);
    if (status != INSPAN_OK) return status;
    cJSON *root = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
    if (root == NULL)
        return error_set(err, INSPAN_CORRUPT, "not JSON: fault at byte %zu of %zu",
                         end ? (size_t)(end - text) : 0, bytes);
    while (end < text + bytes && strchr(" \t\r\n", *end) != NULL && *end != '\0') end++;
    if (end < text + bytes) {
        cJSON_Delete(root);
        return error_set(err, INSPAN_CORRUPT, "not JSON: more text at byte %zu of %zu", (size_t)(end - text),
                         bytes);
    }
    if (!all_finite(root)) {
        cJSON_Delete(root);
        return error_set(err, INSPAN_CORRUPT, "JSON with a number that is too large for a double");
    }
    *value = (json_t *)root;
    return INSPAN_OK;
}

const json_t *json_get(const json_t *object, const char *key)
{
    return (const json_t *)cJSON_GetObjectItemCaseSensitive(in(object), key);
}

const char *json_string(const json_t *value)
{
    return cJSON_GetStringValue(in(value));
}

const char *json_get_string(const json_t *object, const char *key)
{
    return json_string(json_get(object, key));
}

bool json_is_number(const json_t *value)
{
    return cJSON_IsNumber(in(value)) || cJSON_IsRaw(in(value)); /* raw: of make_number */
}

double json_number(const json_t *value, double fallback)
{
    if (cJSON_IsRaw(in(value))) return strtod(in(value)->valuestring, NULL);
    return cJSON_IsNumber(in(value)) ? in(value)->valuedouble : fallback;
}

double json_get_number(const json_t *object, const char *key, double fallback)
{
    return json_number(json_get(object, key), fallback);
}

bool json_get_bool(const json_t *object, const char *key, bool fallback)
{
    const cJSON *item = in(json_get(object, key));
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : fallback;
}

bool json_is_object(const json_t *value)
{
    return cJSON_IsObject(in(value));
}

bool json_is_array(const json_t *value)
{
    return cJSON_IsArray(in(value));
}

size_t json_size(const json_t *array)
{
    return (size_t)cJSON_GetArraySize(in(array));
}

const json_t *json_first(const json_t *container)
{
    return container != NULL ? (const json_t *)in(container)->child : NULL;
}

const json_t *json_next(const json_t *value)
{
    return (const json_t *)in(value)->next;
}

const char *json_key(const json_t *value)
{
    return in(value)->string;
}
