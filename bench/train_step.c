/*
 * The native side of bench/train_step.py: one thread trains a GPT on a fixed file of tokens, so many steps at
 * a time as stdin asks for, so that the two sides can take turns.
 *
 * usage: train-step LAYERS HEADS DIM CONTEXT BATCH TOKENS WEIGHTS
 *   TOKENS   file of uint16 (little-endian), batches of BATCH * (CONTEXT + 1)
 *   WEIGHTS  where to write the initial weights (safetensors), for the other side to start from
 * A line "N" on stdin runs N full steps (forward, backward, clip, AdamW) and answers with one line of JSON:
 * {"seconds": [...], "cpu_seconds": [...], "losses": [...]}. The first line out is {"gemm": "..."}.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "nn/nn.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define VOCABULARY 256
#define TOKENS_CAP ((size_t)1 << 30)

typedef struct run {
    nn_model_config_t config;
    uint32_t batch;
    nn_model_t *model;
    nn_optimizer_t *optimizer;
    const nn_param_t *params;
    uint32_t n_params;
    void **grads;
    char *tokens;
    size_t batches; /* in tokens; reused in turn */
    uint64_t step;
} run_t;

static void die(const inspan_error_t *err)
{
    fprintf(stderr, "train-step: %s\n", err->text);
    exit(1);
}

static void must(inspan_status_t status, const inspan_error_t *err)
{
    if (status != INSPAN_OK) die(err);
}

static void open_run(run_t *run, const char *tokens_path, const char *weights_path)
{
    inspan_error_t err;
    size_t bytes = 0;
    must(os_file_read(tokens_path, TOKENS_CAP, &run->tokens, &bytes, &err), &err);
    run->batches = bytes / (sizeof(uint16_t) * run->batch * (run->config.context + 1));
    if (run->batches == 0) {
        fprintf(stderr, "train-step: %s holds less than one batch\n", tokens_path);
        exit(1);
    }
    must(nn_model_open(&run->config, run->batch, 1, &run->model, &err), &err);
    run->n_params = nn_model_params(run->model, &run->params);
    must(nn_safetensors_write(weights_path, run->params, run->n_params, run->config.dtype, NULL, 0, &err),
         &err);
    run->grads = calloc(run->n_params, sizeof *run->grads);
    for (uint32_t i = 0; run->grads != NULL && i < run->n_params; i++) {
        run->grads[i] = aligned_alloc(64, (run->params[i].count * sizeof(float) + 63) / 64 * 64);
        if (run->grads[i] == NULL) exit(1);
    }
    nn_optimizer_config_t optimizer = {.kind = NN_ADAMW,
                                       .lr = 1e-3,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .clip = 1,
                                       .steps = 1000000,
                                       .min_lr = 1e-3};
    must(nn_optimizer_open(&optimizer, run->params, run->n_params, run->config.dtype, &run->optimizer, &err),
         &err);
}

static double one_step(run_t *run)
{
    inspan_error_t err;
    double loss = 0, norm = 0;
    const uint16_t *tokens = (const uint16_t *)(void *)run->tokens;
    nn_batch_t batch = {.samples = run->batch};
    batch.tokens = tokens + run->step % run->batches * run->batch * (run->config.context + 1);
    for (uint32_t i = 0; i < run->n_params; i++)
        memset(run->grads[i], 0, run->params[i].count * sizeof(float));
    must(nn_model_backward(run->model, &batch, run->grads, NULL, NULL, &loss, &err), &err);
    must(nn_optimizer_apply(run->optimizer, (const void *const *)run->grads, run->batch, run->step++, &norm,
                            &err),
         &err);
    return loss / run->batch;
}

static void print_list(const char *name, const double *x, unsigned long n)
{
    printf("\"%s\": [", name);
    for (unsigned long i = 0; i < n; i++) printf("%s%.7f", i ? ", " : "", x[i]);
    printf("]");
}

static void answer(run_t *run, unsigned long steps)
{
    double *losses = calloc(3 * steps, sizeof *losses);
    if (losses == NULL) exit(1);
    double *seconds = losses + steps, *cpu = seconds + steps;
    for (unsigned long i = 0; i < steps; i++) {
        ns_t start = os_now(), start_cpu = os_process_cpu();
        losses[i] = one_step(run);
        seconds[i] = ns_to_s(os_now() - start);
        cpu[i] = ns_to_s(os_process_cpu() - start_cpu);
    }
    printf("{");
    print_list("seconds", seconds, steps);
    printf(", ");
    print_list("cpu_seconds", cpu, steps);
    printf(", ");
    print_list("losses", losses, steps);
    printf("}\n");
    free(losses);
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: %s LAYERS HEADS DIM CONTEXT BATCH TOKENS WEIGHTS\n", argv[0]);
        return 2;
    }
    run_t run = {.config = {.kind = NN_GPT, .dtype = NN_FP32, .seed = 1, .vocabulary = VOCABULARY}};
    run.config.layers = (uint32_t)strtoul(argv[1], NULL, 10);
    run.config.heads = (uint32_t)strtoul(argv[2], NULL, 10);
    run.config.dim = (uint32_t)strtoul(argv[3], NULL, 10);
    run.config.context = (uint32_t)strtoul(argv[4], NULL, 10);
    run.batch = (uint32_t)strtoul(argv[5], NULL, 10);
    if (run.batch == 0) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"gemm\": \"%s\"}\n", nn_gemm_report());
    open_run(&run, argv[6], argv[7]);
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned long steps = strtoul(line, NULL, 10);
        if (steps == 0 || steps > 100000) break;
        answer(&run, steps);
    }
    for (uint32_t i = 0; i < run.n_params; i++) free(run.grads[i]);
    free(run.grads);
    free(run.tokens);
    nn_optimizer_close(run.optimizer);
    nn_model_close(run.model);
    return 0;
}
