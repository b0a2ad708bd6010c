#include "cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct values {
    bool json;
    const char *prompt;
    cli_list_t set;
    uint64_t tokens, bytes;
    double temperature;
} values_t;

static inspan_status_t parse(values_t *v, cli_operands_t *operands, inspan_error_t *err, int argc,
                             const char **argv)
{
    const cli_option_t options[] = {
        {.name = "json", .type = CLI_FLAG, .help = "x", .value = &v->json},
        {.name = "prompt",
         .letter = 'p',
         .type = CLI_TEXT,
         .argument = "TEXT",
         .help = "x",
         .value = &v->prompt},
        {.name = "set", .type = CLI_LIST, .argument = "K=V", .help = "x", .value = &v->set},
        {.name = "tokens",
         .type = CLI_COUNT,
         .argument = "N",
         .help = "x",
         .value = &v->tokens,
         .least = 1,
         .most = 100},
        {.name = "temperature", .type = CLI_REAL, .argument = "T", .help = "x", .value = &v->temperature},
        {.name = "bytes", .type = CLI_SIZE, .argument = "B", .help = "x", .value = &v->bytes},
        {.name = "secret", .type = CLI_FLAG, .value = &v->json},
    };
    memset(err, 0, sizeof *err);
    return options_parse(argc, (char **)argv, options, sizeof options / sizeof options[0], 1, 2, operands,
                         err);
}

static void every_kind_is_read(void **state)
{
    (void)state;
    values_t v = {0};
    cli_operands_t operands;
    inspan_error_t err;
    const char *argv[] = {"train",
                          "--json",
                          "a.yaml",
                          "-p",
                          "hello",
                          "--set=a=1",
                          "--set",
                          "b=2",
                          "--tokens",
                          "7",
                          "--temperature=-0.5",
                          "--bytes",
                          "4K",
                          "--",
                          "--not-an-option"};
    assert_int_equal(parse(&v, &operands, &err, sizeof argv / sizeof argv[0], argv), INSPAN_OK);
    assert_true(v.json);
    assert_string_equal(v.prompt, "hello");
    assert_int_equal(v.set.n, 2);
    assert_string_equal(v.set.items[0], "a=1");
    assert_string_equal(v.set.items[1], "b=2");
    assert_int_equal(v.tokens, 7);
    assert_true(v.temperature == -0.5);
    assert_int_equal(v.bytes, 4000);
    assert_int_equal(operands.n, 2);
    assert_string_equal(operands.items[0], "a.yaml");
    assert_string_equal(operands.items[1], "--not-an-option");
}

static void faults_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *argv[4];
        const char *says;
    } cases[] = {
        {{"t", "f", "--jsno"}, "did you mean --json?"},
        {{"t", "f", "--prmopt=x"}, "did you mean --prompt?"},
        {{"t", "f", "--zzzzzzzz"}, "unknown option --zzzzzzzz"},
        {{"t", "f", "--secrt"}, "unknown option --secrt"},
        {{"t", "f", "-x"}, "unknown option -x"},
        {{"t", "f", "--tokens"}, "expected N after it"},
        {{"t", "f", "--tokens", "0"}, "expected a number from 1 to 100"},
        {{"t", "f", "--tokens", "101"}, "expected a number from 1 to 100"},
        {{"t", "f", "--tokens", "-1"}, "expected a whole number"},
        {{"t", "f", "--tokens", "7x"}, "expected a whole number"},
        {{"t", "f", "--tokens", "99999999999999999999999"}, "expected a whole number"},
        {{"t", "f", "--temperature", "nan"}, "expected a number"},
        {{"t", "f", "--temperature="}, "expected a number"},
        {{"t", "f", "--bytes", "4X"}, "expected a size"},
        {{"t", "f", "--json=yes"}, "takes no value"},
        {{"t", "f", "--prompt="}, "expected a value"},
        {{"t", "f", "g", "h"}, "unexpected \"h\""},
        {{"t"}, "expected 1 more argument"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        values_t v = {0};
        cli_operands_t operands;
        inspan_error_t err;
        int argc = 0;
        while (argc < 4 && cases[i].argv[argc] != NULL) argc++;
        assert_int_equal(parse(&v, &operands, &err, argc, (const char **)cases[i].argv), INSPAN_INVALID);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("case %zu: %s", i, err.text);
    }
}

static void a_list_has_its_cap(void **state)
{
    (void)state;
    values_t v = {0};
    cli_operands_t operands;
    inspan_error_t err;
    const char *argv[CLI_LIST_MAX + 3] = {"t", "f"};
    for (int i = 2; i < CLI_LIST_MAX + 3; i++) argv[i] = "--set=a=1";
    assert_int_equal(parse(&v, &operands, &err, CLI_LIST_MAX + 2, argv), INSPAN_OK);
    memset(&v, 0, sizeof v);
    assert_int_equal(parse(&v, &operands, &err, CLI_LIST_MAX + 3, argv), INSPAN_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(a_list_has_its_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
