#include "platform/json/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

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

void json_set(json_t *object, const char *key, json_t *value)
{
    if (!cJSON_AddItemToObject(out(object), key, out(value))) json_free(value);
}

void json_append(json_t *array, json_t *value)
{
    if (!cJSON_AddItemToArray(out(array), out(value))) json_free(value);
}

static json_t *make_number(double number)
{
    return (json_t *)(isfinite(number) ? cJSON_CreateNumber(number) : cJSON_CreateNull());
}

static json_t *make_string(const char *text)
{
    return (json_t *)(text != NULL ? cJSON_CreateString(text) : cJSON_CreateNull());
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
    if (value == NULL) return NULL;
    return pretty ? cJSON_Print(in(value)) : cJSON_PrintUnformatted(in(value));
}

inspan_status_t json_parse(const char *text, size_t bytes, json_t **value, inspan_error_t *err)
{
    const char *end = NULL;
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
    return cJSON_IsNumber(in(value));
}

double json_number(const json_t *value, double fallback)
{
    return json_is_number(value) ? in(value)->valuedouble : fallback;
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
