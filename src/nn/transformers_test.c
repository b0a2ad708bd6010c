/* A GPT that Inspan trained and saved (tests/data/gpt) gives the logits that Hugging Face transformers
 * computes from the same file. bench/hf_logits.py made the figures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "nn/nn.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"

#define FOLDER     "tests/data/gpt"
#define VOCABULARY 256
#define TOKENS_MAX 24
#define BOUND      1e-4 /* of the largest logit */

static uint32_t read_tokens(const json_t *list, uint16_t tokens[TOKENS_MAX])
{
    uint32_t n = 0;
    for (const json_t *token = json_first(list); token != NULL; token = json_next(token)) {
        assert_true(n < TOKENS_MAX);
        tokens[n++] = (uint16_t)json_number(token, 0);
    }
    return n;
}

static double relative_difference(const double *logits, const json_t *expected)
{
    double largest = 0, worst = 0;
    size_t i = 0;
    assert_int_equal(json_size(expected), VOCABULARY);
    for (const json_t *x = json_first(expected); x != NULL; x = json_next(x), i++) {
        largest = fmax(largest, fabs(json_number(x, NAN)));
        const double difference = fabs(logits[i] - json_number(x, NAN));
        if (!(difference <= worst)) worst = difference;
    }
    assert_true(largest > 1);
    return worst / largest;
}

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    inspan_error_t err;
    nn_model_t *model = NULL;
    json_t *figures = NULL;
    char *text = NULL;
    size_t bytes = 0, n_sequences = 0;
    if (os_file_read(FOLDER "/logits.json", 1 << 20, &text, &bytes, &err) != INSPAN_OK ||
        json_parse(text, bytes, &figures, &err) != INSPAN_OK ||
        nn_model_load(FOLDER, 1, 1, &model, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    for (const json_t *at = json_first(json_get(figures, "sequences")); at != NULL; at = json_next(at)) {
        uint16_t tokens[TOKENS_MAX];
        double logits[VOCABULARY];
        const uint32_t n = read_tokens(json_get(at, "tokens"), tokens);
        if (nn_model_next(model, tokens, n, logits, &err) != INSPAN_OK) fail_msg("%s", err.text);
        const double difference = relative_difference(logits, json_get(at, "logits"));
        print_message("%u tokens: %.3g off\n", n, difference);
        if (!(difference <= BOUND)) fail_msg("%u tokens: %g off, allowed %g", n, difference, BOUND);
        n_sequences++;
    }
    assert_true(n_sequences >= 5);
    nn_model_close(model);
    json_free(figures);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
