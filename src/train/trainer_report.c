/* What the trainer tells: progress to the agent, lines to people, the summary at the end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "platform/json/json.h"
#include "platform/os/os_time.h"
#include "train/trainer_internal.h"

#define LINE_PERIOD (2 * NS_PER_S)

static void write_line(trainer_t *trainer, const inspan_progress_t *progress,
                       const inspan_elastic_stats_t *stats, ns_t now)
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
        fprintf(trainer->out, " communication %.0f %%", 100.0 * (double)stats->exposed_ns / (double)running);
    if (stats->views > 1)
        fprintf(trainer->out, " view %" PRIu64 " (%u members)", stats->view, stats->members);
    fputc('\n', trainer->out);
    fflush(trainer->out);
}

/* told (size): the newest reason that was written. */
static void write_reason(const trainer_t *trainer, const char *reason, char *told, size_t size)
{
    if (trainer->out == NULL || strcmp(reason, told) == 0) return;
    memcpy(told, reason, size);
    fprintf(trainer->out, "%s\n", told);
    fflush(trainer->out);
}

void trainer_report(trainer_t *trainer)
{
    ns_t now = os_now();
    inspan_elastic_stats_t stats;
    inspan_elastic_stats(trainer->elastic, &stats);
    inspan_progress_t progress = {
        .step = trainer->step,
        .steps = trainer->job.train.steps,
        .samples = stats.samples,
        .loss = trainer->loss,
        .validation_loss = trainer->validation,
        .samples_per_s = trainer_speed(trainer, now),
        .compute_s = ns_to_s(trainer->compute + trainer->update),
        .exposed_comm_s = ns_to_s(stats.exposed_ns),
        .input_s = ns_to_s(trainer->input),
        .bytes_sent = stats.bytes_sent,
        .samples_recomputed = stats.samples_recomputed,
        .param_hash = stats.full ? trainer->param_hash : 0,
        .pace_sample_ns = (uint64_t)stats.sample_ns,
        .pace_step_ns = (uint64_t)stats.step_ns,
        .share_samples = stats.share,
        .run_samples = stats.run,
    };
    if (trainer->hooks.progress != NULL) trainer->hooks.progress(trainer->hooks.context, &progress);
    write_reason(trainer, stats.wire_reason, trainer->wire_reason, sizeof trainer->wire_reason);
    write_reason(trainer, stats.layout_reason, trainer->layout_reason, sizeof trainer->layout_reason);
    write_line(trainer, &progress, &stats, now);
}

/* What the views cost: recoveries, copies, samples that were computed again for lost members. */
static void add_elastic(json_t *out, const inspan_elastic_stats_t *stats)
{
    json_set_number(out, "rank", stats->number);
    json_set_string(out, "node", stats->node);
    json_set_number(out, "exposed_comm_s", ns_to_s(stats->exposed_ns));
    json_set_number(out, "commit_s", ns_to_s(stats->commit_ns));
    json_set_number(out, "bytes_sent", (double)stats->bytes_sent);
    json_set_string(out, "wire", inspan_wire_name(stats->wire));
    json_set_number(out, "wire_changes", (double)stats->rewires);
    json_set_number(out, "buckets", stats->buckets);
    json_set_number(out, "layout_changes", (double)stats->layouts);
    json_set_string(out, "layout_reason", stats->layout_reason);
    json_set_number(out, "bytes_copied", (double)stats->bytes_copied);
    json_set_number(out, "views", (double)stats->views);
    json_set_number(out, "members", stats->members);
    json_set_number(out, "samples_recomputed", (double)stats->samples_recomputed);
    json_set_number(out, "recoveries", (double)stats->recoveries);
    json_set_number(out, "recovery_s", ns_to_s(stats->recovery_ns));
    json_set_number(out, "recovery_worst_s", ns_to_s(stats->recovery_worst_ns));
}

/* How fast this member was, and what that did to the split. */
static void add_pace(json_t *out, const trainer_t *trainer, const inspan_elastic_stats_t *stats)
{
    inspan_verdict_t verdicts[INSPAN_VERDICTS_MAX];
    const uint32_t n = inspan_elastic_verdicts(trainer->elastic, verdicts);
    const double compute = ns_to_s(trainer->compute);
    json_t *list = json_array();
    json_set_number(out, "speed", compute > 0 ? (double)stats->samples / compute : 0);
    json_set_number(out, "pace_sample_s", stats->sample_ns / NS_PER_S);
    json_set_number(out, "pace_uncertainty", stats->uncertainty);
    json_set_number(out, "pace_step_s", stats->step_ns / NS_PER_S);
    json_set_number(out, "last_share", (double)stats->share);
    json_set_number(out, "run", (double)stats->run);
    json_set_number(out, "last_run", (double)stats->last_run);
    json_set_number(out, "reduce_s", ns_to_s(stats->reduce_ns));
    json_set_number(out, "steals", (double)stats->steals);
    json_set_number(out, "samples_stolen", (double)stats->samples_stolen);
    json_set_number(out, "resplits", (double)stats->resplits);
    json_set_number(out, "rested_s", ns_to_s(stats->rested_ns));
    for (uint32_t i = 0; i < n; i++) {
        json_t *verdict = json_object();
        json_set_number(verdict, "step", (double)verdicts[i].step);
        json_set_string(verdict, "cause", verdicts[i].cause);
        json_set_number(verdict, "factor", verdicts[i].factor);
        json_set_string(verdict, "evidence", verdicts[i].evidence);
        json_append(list, verdict);
    }
    json_set(out, "verdicts", list);
}

static uint64_t peak_memory(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

char *trainer_summary(const trainer_t *trainer)
{
    char hash[17];
    inspan_elastic_stats_t stats;
    inspan_elastic_stats(trainer->elastic, &stats);
    const uint64_t all_samples = (trainer->step - trainer->first_step) * trainer->job.train.global_batch;
    const double wall = ns_to_s(trainer->ended - trainer->started),
                 compute = ns_to_s(trainer->compute + trainer->update);
    const double stepping = ns_to_s(trainer->trained - trainer->started);
    snprintf(hash, sizeof hash, "%016" PRIx64, trainer->param_hash);
    if (!stats.full) hash[0] = '\0'; /* a newcomer to the end: some parameters never came */
    json_t *out = json_object();
    add_elastic(out, &stats);
    json_set_number(out, "steps", (double)trainer->step);
    json_set_number(out, "samples", (double)stats.samples);
    json_set_number(out, "samples_all", (double)all_samples);
    json_set_number(out, "share", all_samples > 0 ? (double)stats.samples / (double)all_samples : 0);
    json_set_number(out, "samples_per_s",
                    stepping > 0 ? (double)(trainer->applied * trainer->job.train.global_batch) / stepping
                                 : 0);
    add_pace(out, trainer, &stats);
    json_set_number(out, "memory_predicted", (double)trainer->memory_predicted);
    json_set_number(out, "memory_peak", (double)peak_memory());
    json_set_number(out, "loss_first", trainer->loss_first);
    json_set_number(out, "loss_last", trainer->loss);
    json_set_number(out, "validation_first", trainer->validation_first);
    json_set_number(out, "validation_last", trainer->validation);
    json_set_number(out, "accuracy_last", trainer->accuracy);
    json_set_number(out, "compute_s", compute);
    json_set_number(out, "input_s", ns_to_s(trainer->input));
    json_set_number(out, "evaluation_s", ns_to_s(trainer->evaluation));
    json_set_number(out, "wall_s", wall);
    json_set_string(out, "param_hash", hash);
    json_set_number(out, "micro_batch", trainer->micro_batch);
    if (trainer->local_mode != NULL)
        json_set_number(out, "local_updates", (double)trainer_local_updates(trainer));
    json_set_number(out, "threads", trainer->threads);
    json_set_string(out, "gemm", nn_gemm_name(trainer->model_config.dtype));
    char *text = json_print(out, false);
    json_free(out);
    return text;
}
