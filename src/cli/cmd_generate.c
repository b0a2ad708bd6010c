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

/* The folder of a model, given itself or by its file: config.json lies beside it. */
static inspan_status_t model_folder(const char *given, char folder[PLACE_PATH_MAX], inspan_error_t *err)
{
    static const char file[] = "model.safetensors", ending[] = ".safetensors";
    const size_t length = strlen(given);
    if (length >= PLACE_PATH_MAX) return error_set(err, INSPAN_INVALID, "the model's path is too long");
    snprintf(folder, PLACE_PATH_MAX, "%s", given);
    if (length < strlen(ending) || strcmp(given + length - strlen(ending), ending) != 0) return INSPAN_OK;
    char *slash = strrchr(folder, '/');
    if (strcmp(slash != NULL ? slash + 1 : folder, file) != 0)
        return error_set(err, INSPAN_INVALID,
                         "%.300s: expected a folder with %s and config.json, or that file", given, file);
    if (slash == NULL)
        snprintf(folder, PLACE_PATH_MAX, ".");
    else
        slash[slash == folder] = '\0';
    return INSPAN_OK;
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
    json_set_string(object, "prompt", prompt);
    show_set_bytes(object, "text", output->text.items, output->text.n); /* bytes are tokens */
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
    inspan_status_t status = model_folder(operands.items[0], folder, &err);
    if (status == INSPAN_OK) status = nn_model_load(folder, 1, own_threads(), &model, &err);
    if (status == INSPAN_NOT_FOUND)
        error_prefix(&err, "%.200s holds no model that inspan train wrote", folder);
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
