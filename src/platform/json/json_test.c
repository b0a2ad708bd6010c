#include "platform/json/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Parsing with an unreadable page after the last byte: cJSON itself knows no sanitizer ---- */

static char *page_end; /* the first byte that must not be read */
static size_t page_room;

static int open_page(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    page_room = 64 * page;
    char *at = mmap(NULL, page_room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + page_room, page, PROT_NONE) != 0) return -1;
    page_end = at + page_room;
    return 0;
}

static inspan_status_t parse_bytes(const char *text, size_t bytes, json_t **value, inspan_error_t *err)
{
    assert_true(bytes <= page_room);
    memcpy(page_end - bytes, text, bytes);
    return json_parse(page_end - bytes, bytes, value, err);
}

static json_t *parse(const char *text)
{
    json_t *value = NULL;
    inspan_error_t err;
    if (parse_bytes(text, strlen(text), &value, &err) != INSPAN_OK) fail_msg("%s: %s", text, err.text);
    return value;
}

/* The text of the refusal holds `why`. */
static void refused_bytes(const char *text, size_t bytes, const char *why)
{
    json_t *value = NULL;
    inspan_error_t err = {.text = ""};
    if (parse_bytes(text, bytes, &value, &err) != INSPAN_CORRUPT) fail_msg("taken: %.100s", text);
    assert_int_equal(err.status, INSPAN_CORRUPT);
    assert_null(value);
    if (strstr(err.text, why) == NULL) fail_msg("%.60s: '%s' is not in '%s'", text, why, err.text);
}

static void refused(const char *text, const char *why)
{
    refused_bytes(text, strlen(text), why);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

#define DOCUMENT                                                                                             \
    "{\"name\":\"gr\xc3\xbc\xc3\x9f"                                                                         \
    "e\",\"n\":-1.5e3,\"yes\":true,\"no\":false,\"none\":null,"                                              \
    "\"list\":[1,[],{\"deep\":\"\\u00e9\\ud83d\\ude00\\n\"}]}"

static void what_is_written_is_read(void **state)
{
    (void)state;
    json_t *object = json_object(), *list = json_array();
    json_set_string(object, "text", "a \"b\" \\ / \n\t\x01 \xc3\xbc");
    json_set_string(object, "nothing", NULL);
    json_set_number(object, "half", 0.5);
    json_set_number(object, "tenth", 0.1);
    json_set_number(object, "third", 1 / 3.0);
    json_set_number(object, "large", 9007199254740991.0);
    json_set_number(object, "huge", 1.7976931348623157e308);
    json_set_number(object, "nan", NAN);
    json_set_number(object, "infinite", -INFINITY);
    json_set_bool(object, "yes", true);
    json_append_string(list, "one");
    json_append_number(list, 2);
    json_set(object, "list", list);
    assert_true(json_get_number(object, "large", 0) == 9007199254740991.0); /* before it is printed, too */
    for (int pretty = 0; pretty < 2; pretty++) {
        char *text = json_print(object, pretty != 0);
        assert_non_null(text);
        json_t *read = parse(text);
        free(text);
        assert_string_equal(json_get_string(read, "text"), "a \"b\" \\ / \n\t\x01 \xc3\xbc");
        assert_null(json_get_string(read, "nothing"));
        assert_non_null(json_get(read, "nothing"));
        assert_true(json_get_number(read, "half", 0) == 0.5);
        assert_true(json_get_number(read, "tenth", 0) == 0.1);
        assert_true(json_get_number(read, "third", 0) == 1 / 3.0);
        assert_true(json_get_number(read, "large", 0) == 9007199254740991.0);
        assert_true(json_get_number(read, "huge", 0) == 1.7976931348623157e308);
        assert_false(json_is_number(json_get(read, "nan")));
        assert_false(json_is_number(json_get(read, "infinite")));
        assert_true(json_get_bool(read, "yes", false));
        const json_t *items = json_get(read, "list");
        assert_true(json_is_array(items));
        assert_int_equal(json_size(items), 2);
        assert_string_equal(json_string(json_first(items)), "one");
        assert_true(json_number(json_next(json_first(items)), 0) == 2);
        assert_null(json_next(json_next(json_first(items))));
        json_free(read);
    }
    json_free(object);
}

static void what_is_missing_or_of_another_type_is_the_fallback(void **state)
{
    (void)state;
    json_t *value = parse(DOCUMENT);
    assert_null(json_get(value, "Name")); /* case counts */
    assert_null(json_get_string(value, "n"));
    assert_true(json_get_number(value, "name", 7) == 7);
    assert_true(json_get_number(value, "missing", 8) == 8);
    assert_true(json_get_bool(value, "n", true));
    assert_false(json_get_bool(value, "missing", false));
    assert_true(json_is_object(value) && !json_is_array(value));
    assert_null(json_first(json_get(value, "name")));
    assert_null(json_get(json_get(value, "list"), "deep"));
    assert_false(json_is_object(NULL) || json_is_array(NULL) || json_is_number(NULL));
    assert_null(json_string(NULL));
    assert_null(json_first(NULL));
    assert_null(json_print(NULL, false));
    const json_t *deep = json_get(json_next(json_next(json_first(json_get(value, "list")))), "deep");
    assert_string_equal(json_string(deep), "\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_string_equal(json_key(deep), "deep");
    json_free(value);
    json_free(NULL);
}

static void only_white_space_may_follow(void **state)
{
    (void)state;
    json_free(parse(" {\"a\": 1} \r\n\t "));
    json_free(parse("7"));
    json_free(parse("null"));
    refused("{} {}", "more text at byte 3 of 5");
    refused("{}x", "more text at byte 2 of 3");
    refused("1 2", "more text");
    refused("{}\v", "more text");
    refused("", "not JSON");
    refused("   ", "not JSON");
    refused("{\"a\": }", "at byte");
    refused("{'a': 1}", "at byte");
    refused("{\"a\": 1,}", "at byte");
    refused("[1 2]", "at byte");
    refused("nul", "not JSON");
    refused("\"\\x\"", "not JSON");
    refused("\"\\ud800\"", "not JSON"); /* half a pair */
}

/* depth brackets, closed. */
static char *nested(size_t depth, const char *open, const char *middle, const char *close)
{
    size_t each = strlen(open), room = depth * (each + strlen(close)) + strlen(middle) + 1;
    char *text = malloc(room), *at = text;
    assert_non_null(text);
    for (size_t i = 0; i < depth; i++) at = stpcpy(at, open);
    at = stpcpy(at, middle);
    for (size_t i = 0; i < depth; i++) at = stpcpy(at, close);
    return text;
}

static void nesting_ends_at_a_hundred(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"[", "]"}, {"{\"a\":", "}"}, {"[{\"]}\":", "}]"}};
    for (size_t i = 0; i < 3; i++) {
        size_t levels = i == 2 ? 2 : 1;
        for (size_t depth = 98; depth <= 102; depth++) {
            if (depth % levels != 0) continue;
            char *text = nested(depth / levels, pairs[i][0], "1", pairs[i][1]);
            if (depth <= 100)
                json_free(parse(text));
            else
                refused(text, "nested more than 100 deep");
            free(text);
        }
    }
    char *open = nested(100000, "[", "", ""), *in_string = nested(1000, "[", "", "");
    refused(open, "nested more than 100 deep at byte 100");
    free(open);
    char quoted[1100];
    snprintf(quoted, sizeof quoted, "\"\\\"%s\"", in_string); /* brackets in a string are text */
    json_free(parse(quoted));
    free(in_string);
}

static void numbers_stay_finite(void **state)
{
    (void)state;
    json_t *value = parse("[1.7976931348623157e308, -0.0, 5e-324, 1e-999, 9007199254740993]");
    const json_t *at = json_first(value);
    assert_true(json_number(at, 0) == 1.7976931348623157e308);
    for (int i = 0; at != NULL; at = json_next(at), i++) assert_true(isfinite(json_number(at, NAN)));
    json_free(value);
    refused("1e999", "too large");
    refused("[0, {\"a\": [-1e999]}]", "too large");
    static const char *const none[] = {"NaN", "Infinity", "-Infinity", "-",   "+1",
                                       ".5",  "0x10",     "1e",        "--1", "1.2.3"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        json_t *parsed = NULL;
        if (parse_bytes(none[i], strlen(none[i]), &parsed, NULL) == INSPAN_OK) fail_msg("taken: %s", none[i]);
    }
    for (size_t digits = 1; digits < 400; digits++) { /* as a whole text and within one */
        char text[512];
        json_t *parsed = NULL;
        memset(text, '9', digits + 1);
        if (parse_bytes(text, digits, &parsed, NULL) == INSPAN_OK)
            assert_true(isfinite(json_number(parsed, NAN)));
        json_free(parsed);
        parsed = NULL;
        text[0] = '[';
        text[digits + 1] = ']';
        if (parse_bytes(text, digits + 2, &parsed, NULL) == INSPAN_OK)
            assert_true(isfinite(json_number(json_first(parsed), NAN)));
        json_free(parsed);
    }
}

static void text_is_utf8_without_zeros(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "\"\xff\"",     "\"\x80\"", "\"\xc0\xaf\"",  "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xe2\x82\"", "\"\xc3",   "{\"\xfc\": 1}", "[1, \xa0 2]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) refused(wrong[i], "not UTF-8 at byte");
    refused_bytes("\"a\0b\"", 5, "a zero at byte 2 of 5");
    refused_bytes("1\0", 2, "a zero at byte 1 of 2");
    refused("\"a\\u0000b\"", "a zero at byte 2");
    refused("{\"a\\u0000b\": 1}", "a zero");
    json_t *value = parse("\"\\\\u0000 \\\\\""); /* a backslash, then text */
    assert_string_equal(json_string(value), "\\u0000 \\");
    json_free(value);
}

static void what_is_written_is_utf8(void **state)
{
    (void)state;
    json_t *object = json_object();
    json_set_string(object, "path", "/home/M\xfcller/\xe2\x82\xac/\xe2\x82");
    char *text = json_print(object, false);
    json_free(object);
    json_t *read = parse(text);
    free(text);
    assert_string_equal(json_get_string(read, "path"),
                        "/home/M\xef\xbf\xbdller/\xe2\x82\xac/\xef\xbf\xbd\xef\xbf\xbd");
    json_free(read);
}

static void a_text_that_is_cut_off_is_none(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < sizeof DOCUMENT - 1; bytes++) refused_bytes(DOCUMENT, bytes, "not JSON");
    json_free(parse(DOCUMENT));
}

/* Whatever byte is changed to whatever: an answer, and no byte beyond the end is read. */
static void a_changed_byte_is_harmless(void **state)
{
    (void)state;
    char text[sizeof DOCUMENT];
    for (size_t i = 0; i < sizeof DOCUMENT - 1; i++)
        for (int byte = 0; byte < 256; byte++) {
            json_t *value = NULL;
            inspan_error_t err;
            memcpy(text, DOCUMENT, sizeof text);
            text[i] = (char)byte;
            inspan_status_t status = parse_bytes(text, sizeof DOCUMENT - 1, &value, &err);
            assert_true(status == INSPAN_OK || status == INSPAN_CORRUPT);
            assert_int_equal(status == INSPAN_OK, value != NULL);
            json_free(value);
        }
}

/* ---- Without memory -------------------------------------------------------------------------- */

static json_t *build(void)
{
    json_t *root = json_object(), *inner = json_object(), *list = json_array();
    json_set_string(root, "text", "a \"b\"\n");
    json_set_number(root, "number", 1.5);
    json_set_number(root, "none", (double)NAN);
    json_set_number(root, "endless", (double)INFINITY);
    json_set_string(root, "missing", NULL);
    json_set_bool(inner, "true", true);
    json_append_number(list, 9007199254740992.0);
    json_append_string(list, "x");
    json_append(list, inner);
    json_set(root, "list", list);
    return root;
}

#define BUILT                                                                                                \
    "{\"text\":\"a \\\"b\\\"\\n\",\"number\":1.5,\"none\":null,\"endless\":null,\"missing\":null,"           \
    "\"list\":[9007199254740992,\"x\",{\"true\":true}]}"

static long before_failure; /* allocations until the one that fails */

static void *failing_malloc(size_t bytes)
{
    return before_failure-- != 0 ? malloc(bytes) : NULL;
}

/* Whichever one allocation fails: the whole text or none, never one that lacks something. */
static void nothing_is_lost_without_memory(void **state)
{
    (void)state;
    cJSON_Hooks hooks = {.malloc_fn = failing_malloc, .free_fn = free};
    long n = 0, refused_texts = 0;
    do {
        before_failure = n;
        cJSON_InitHooks(&hooks);
        json_t *root = build();
        char *text = json_print(root, false);
        json_free(root);
        cJSON_InitHooks(NULL);
        if (text != NULL) assert_string_equal(text, BUILT);
        refused_texts += text == NULL;
        free(text);
        n++;
    } while (before_failure < 0); /* until none is left that could fail */
    assert_true(refused_texts > 20 && refused_texts == n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_missing_or_of_another_type_is_the_fallback),
        cmocka_unit_test(only_white_space_may_follow),
        cmocka_unit_test(nesting_ends_at_a_hundred),
        cmocka_unit_test(numbers_stay_finite),
        cmocka_unit_test(text_is_utf8_without_zeros),
        cmocka_unit_test(what_is_written_is_utf8),
        cmocka_unit_test(a_text_that_is_cut_off_is_none),
        cmocka_unit_test(a_changed_byte_is_harmless),
        cmocka_unit_test(nothing_is_lost_without_memory),
    };
    return cmocka_run_group_tests(tests, open_page, NULL);
}
