/* What the trainer tells: progress to the agent, lines to people, the summary at the end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "platform/json/json.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

#define LINE_PERIOD (2 * NS_PER_S)

static uint64_t bytes_sent(const trainer_t *trainer)
{
    inspan_comm_stats_t stats = {0};
    inspan_comm_stats(trainer->comm, &stats);
    return stats.bytes_sent;
}

static void write_line(trainer_t *trainer, const inspan_progress_t *progress, ns_t now)
{
    bool last = trainer->step == trainer->job.train.steps;
    if (trainer->out == NULL || (!last && trainer->step > 1 && now - trainer->line_at < LINE_PERIOD)) return;
    trainer->line_at = now;
    fprintf(trainer->out, "step %" PRIu64 "/%" PRIu64, trainer->step, trainer->job.train.steps);
    if (!isnan(progress->loss)) fprintf(trainer->out, " loss %.4f", progress->loss);
    if (!isnan(progress->validation_loss)) {
        fprintf(trainer->out, " held-out %.4f", progress->validation_loss);
        if (trainer->validation_step != trainer->step)
            fprintf(trainer->out, " (step %" PRIu64 ")", trainer->validation_step);
    }
    if (progress->samples_per_s > 0) fprintf(trainer->out, " %.1f samples/s", progress->samples_per_s);
    ns_t running = now - trainer->started - trainer->evaluation;
    if (running > 0 && trainer->step > 0)
        fprintf(trainer->out, " communication %.0f %%", 100.0 * (double)trainer->exposed / (double)running);
    fputc('\n', trainer->out);
    fflush(trainer->out);
}

void trainer_report(trainer_t *trainer)
{
    ns_t now = os_now();
    inspan_progress_t progress = {
        .step = trainer->step,
        .steps = trainer->job.train.steps,
        .samples = trainer->samples,
        .loss = trainer->loss,
        .validation_loss = trainer->validation,
        .samples_per_s = trainer_speed(trainer, now),
        .compute_s = ns_to_s(trainer->compute),
        .exposed_comm_s = ns_to_s(trainer->exposed),
        .input_s = ns_to_s(trainer->input),
        .bytes_sent = bytes_sent(trainer),
        .param_hash = trainer->param_hash,
    };
    if (trainer->hooks.progress != NULL) trainer->hooks.progress(trainer->hooks.context, &progress);
    write_line(trainer, &progress, now);
}

char *trainer_summary(const trainer_t *trainer)
{
    char hash[17];
    const uint64_t all_samples = trainer->step * trainer->job.train.global_batch;
    const double wall = ns_to_s(trainer->ended - trainer->started), compute = ns_to_s(trainer->compute);
    const double stepping = ns_to_s(trainer->ended - trainer->started - trainer->evaluation);
    snprintf(hash, sizeof hash, "%016" PRIx64, trainer->param_hash);
    json_t *out = json_object();
    json_set_number(out, "rank", trainer->rank);
    json_set_string(out, "node", inspan_comm_member(trainer->comm, trainer->rank)->node);
    json_set_number(out, "steps", (double)trainer->step);
    json_set_number(out, "samples", (double)trainer->samples);
    json_set_number(out, "samples_all", (double)all_samples);
    json_set_number(out, "share", all_samples > 0 ? (double)trainer->samples / (double)all_samples : 0);
    json_set_number(out, "samples_per_s", stepping > 0 ? (double)all_samples / stepping : 0);
    json_set_number(out, "speed", compute > 0 ? (double)trainer->samples / compute : 0);
    json_set_number(out, "loss_first", trainer->loss_first);
    json_set_number(out, "loss_last", trainer->loss);
    json_set_number(out, "validation_first", trainer->validation_first);
    json_set_number(out, "validation_last", trainer->validation);
    json_set_number(out, "accuracy_last", trainer->accuracy);
    json_set_number(out, "compute_s", compute);
    json_set_number(out, "exposed_comm_s", ns_to_s(trainer->exposed));
    json_set_number(out, "input_s", ns_to_s(trainer->input));
    json_set_number(out, "evaluation_s", ns_to_s(trainer->evaluation_compute));
    json_set_number(out, "wall_s", wall);
    json_set_number(out, "bytes_sent", (double)bytes_sent(trainer));
    json_set_number(out, "views", (double)trainer->view);
    json_set_number(out, "samples_recomputed", 0);
    json_set_string(out, "param_hash", hash);
    json_set_number(out, "micro_batch", trainer->micro_batch);
    json_set_number(out, "threads", trainer->threads);
    json_set_string(out, "gemm", nn_gemm_name(trainer->model_config.dtype));
    char *text = json_print(out, false);
    json_free(out);
    return text;
}
