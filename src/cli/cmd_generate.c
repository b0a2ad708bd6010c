#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/vec.h"
#include "cli/common_options.h"
#include "cli/show.h"
#include "nn/nn.h"
#include "platform/host/inventory.h"

typedef struct output {
    bool json;
    vec_of(char) text;
} output_t;

static void emit(void *context, uint8_t byte)
{
    output_t *output = context;
    if (output->json) {
        (void)VEC_PUSH(&output->text, (char)byte);
    } else {
        putchar(byte);
        fflush(stdout); /* people like to see it write */
    }
}

/* The folder of a model, given itself or by its file. */
static void model_folder(const char *given, char *folder, size_t size)
{
    static const char file[] = ".safetensors";
    size_t length = strlen(given);
    snprintf(folder, size, "%s", given);
    if (length < sizeof file - 1 || strcmp(given + length - (sizeof file - 1), file) != 0) return;
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, size, ".");
    else
        slash[slash == folder] = '\0';
}

static uint32_t own_threads(void)
{
    inventory_t *inventory = calloc(1, sizeof *inventory);
    if (inventory == NULL) return 1;
    inventory_read("", "/", inventory);
    uint32_t threads = inventory_threads(inventory->usable_cores);
    free(inventory);
    return threads;
}

static int finish_json(output_t *output, const char *prompt, uint64_t tokens)
{
    json_t *object = json_object();
    for (size_t i = 0; i < output->text.n; i++) /* bytes are tokens: they need not be UTF-8 */
        if ((unsigned char)output->text.items[i] >= 0x80 || output->text.items[i] == '\0')
            output->text.items[i] = '?';
    (void)VEC_PUSH(&output->text, '\0');
    json_set_string(object, "prompt", prompt);
    json_set_string(object, "text", output->text.items);
    json_set_number(object, "tokens", (double)tokens);
    vec_free(&output->text);
    return show_print_json(object);
}

int cmd_generate(int argc, char **argv)
{
    const char *prompt = "\n";
    uint64_t tokens = 256, top_k = 0, seed = 1;
    double temperature = 0.8;
    output_t output = {0};
    const cli_option_t options[] = {
        {.name = "prompt",
         .letter = 'p',
         .type = CLI_TEXT,
         .argument = "TEXT",
         .help = "what the text begins with",
         .value = &prompt},
        {.name = "tokens",
         .letter = 'n',
         .type = CLI_COUNT,
         .argument = "N",
         .help = "bytes to write (default 256)",
         .value = &tokens,
         .least = 1,
         .most = 1e9},
        {.name = "temperature",
         .type = CLI_REAL,
         .argument = "T",
         .help = "0: always the likeliest byte; 1: as the model has it (default 0.8)",
         .value = &temperature,
         .most = 100},
        {.name = "top-k",
         .type = CLI_COUNT,
         .argument = "K",
         .help = "only among the K likeliest (default: all)",
         .value = &top_k,
         .most = 65536},
        {.name = "seed",
         .type = CLI_COUNT,
         .argument = "S",
         .help = "the same seed writes the same text (default 1)",
         .value = &seed},
        OPTION_JSON(&output.json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;

    char folder[PLACE_PATH_MAX];
    inspan_error_t err = {0};
    nn_model_t *model = NULL;
    nn_generate_options_t generate = {
        .tokens = (uint32_t)tokens, .top_k = (uint32_t)top_k, .temperature = temperature, .seed = seed};
    model_folder(operands.items[0], folder, sizeof folder);
    inspan_status_t status = nn_model_load(folder, 1, own_threads(), &model, &err);
    if (status == INSPAN_OK && !output.json) fputs(prompt, stdout);
    if (status == INSPAN_OK) status = nn_generate(model, prompt, &generate, emit, &output, &err);
    if (model != NULL) nn_model_close(model);
    if (status != INSPAN_OK) {
        vec_free(&output.text);
        return cli_fail_user(&err, output.json);
    }
    if (output.json) return finish_json(&output, prompt, tokens);
    putchar('\n');
    return CLI_EXIT_OK;
}
