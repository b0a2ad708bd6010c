#include "cli/watch.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "platform/os/os_time.h"

#define LOOK_PERIOD (100 * NS_PER_MS)
#define AWAY_BOUND  (60 * NS_PER_S)
#define RETRY_AFTER (500 * NS_PER_MS)

typedef struct watch {
    rpc_client_t *client;
    uint64_t id;
    const watch_options_t *options;
    progress_t progress;
    uint64_t shown_step; /* of the last plain line */
    double held_out;     /* the last held-out loss */
    uint64_t held_out_step;
    uint32_t interrupts;
    rpc_stream_t *stream;
    ns_t away_since, retry_at;    /* the manager's; 0: it answers */
    Inspan__V1__JobEvent *latest; /* keeps the job's last known state */
} watch_t;

bool watch_has_ended(const Inspan__V1__JobInfo *job)
{
    return strcmp(job->state, "done") == 0 || strcmp(job->state, "failed") == 0 ||
           strcmp(job->state, "cancelled") == 0;
}

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

void watch_format(const Inspan__V1__Progress *progress, uint64_t global_batch, uint64_t held_out_step,
                  char *text, size_t size)
{
    double busy = progress->compute_s + progress->exposed_comm_s + progress->input_s;
    snprintf(text, size, "step %" PRIu64 "/%" PRIu64, progress->step, progress->steps);
    if (progress->step > 0 && isfinite(progress->loss)) append(text, size, "  loss %.4f", progress->loss);
    if (isfinite(progress->validation_loss) && progress->validation_loss > 0) {
        append(text, size, "  held-out %.4f", progress->validation_loss);
        if (held_out_step != progress->step) append(text, size, " (step %" PRIu64 ")", held_out_step);
    }
    if (progress->samples_per_s > 0)
        append(text, size, progress->samples_per_s < 10 ? "  %.2f samples/s" : "  %.0f samples/s",
               progress->samples_per_s);
    if (busy > 0) append(text, size, "  comm %.0f %%", 100 * progress->exposed_comm_s / busy);
    if (progress->samples_per_s > 0 && global_batch > 0 && progress->step < progress->steps) {
        char left[32];
        double seconds =
            (double)(progress->steps - progress->step) * (double)global_batch / progress->samples_per_s;
        if (seconds < 1e9)
            append(text, size, "  left %s", units_format_duration((ns_t)(seconds * 1e9), left, sizeof left));
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

static void show_text(watch_t *watch, const char *text)
{
    char clean[600];
    snprintf(clean, sizeof clean, "%s", text);
    progress_end(&watch->progress);
    fprintf(stderr, "job %" PRIu64 ": %s\n", watch->id, table_clean(clean));
}

/* A new held-out loss came with this report: it is of the last step at which one was due. */
static void note_held_out(watch_t *watch, const Inspan__V1__Progress *progress)
{
    const uint64_t every = watch->options->evaluate_every;
    const bool same = progress->validation_loss == watch->held_out;
    if (same || !isfinite(progress->validation_loss)) return;
    watch->held_out = progress->validation_loss;
    watch->held_out_step = progress->step >= progress->steps ? progress->steps
                           : every > 0                       ? progress->step - progress->step % every
                                                             : 0;
}

static void show_progress(watch_t *watch, const Inspan__V1__JobInfo *job)
{
    char line[256];
    const Inspan__V1__Progress *progress = job->progress;
    if (progress == NULL || progress->steps == 0) return;
    bool last = progress->step >= progress->steps;
    note_held_out(watch, progress);
    watch_format(progress, watch->options->global_batch, watch->held_out_step, line, sizeof line);
    if (!watch->progress.terminal && progress->step == watch->shown_step) return;
    progress_show(&watch->progress, line, last);
    watch->shown_step = progress->step;
}

static void show_waiting(watch_t *watch, const char *reason)
{
    char text[560];
    snprintf(text, sizeof text, "waits: %.500s", reason);
    show_text(watch, text);
}

static void take_event(watch_t *watch, Inspan__V1__JobEvent *event)
{
    if (event->job == NULL) {
        client_free(event);
        return;
    }
    bool first = watch->latest == NULL;
    client_free(watch->latest);
    watch->latest = event;
    if (watch->options->checkpoints != NULL) checkpoint_fetch_offer(watch->options->checkpoints, event->job);
    show_progress(watch, event->job);
    if (event->text[0] != '\0') show_text(watch, event->text);
    /* the event that said why was sent before this stream was open */
    else if (first && strcmp(event->job->state, "queued") == 0 && event->job->reason[0] != '\0')
        show_waiting(watch, event->job->reason);
}

static void show_checkpoints(watch_t *watch)
{
    char text[600];
    if (watch->options->checkpoints != NULL &&
        checkpoint_fetch_told(watch->options->checkpoints, text, sizeof text))
        show_text(watch, text);
}

/* ---- The manager's coming and going ---------------------------------------------------------- */

static inspan_status_t open_stream(watch_t *watch, inspan_error_t *err)
{
    Inspan__V1__JobRequest request = INSPAN__V1__JOB_REQUEST__INIT;
    request.id = watch->id;
    inspan_status_t status = rpc_stream_open(watch->client, "/inspan.v1.Cluster/Watch",
                                             &inspan__v1__job_event__descriptor, &watch->stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(watch->stream, &request.base, CLIENT_BOUND, err);
    if (status == INSPAN_OK) rpc_stream_half_close(watch->stream);
    return status;
}

static void close_stream(watch_t *watch)
{
    if (watch->stream != NULL) rpc_stream_close(watch->stream);
    watch->stream = NULL;
}

static bool may_pass(inspan_status_t status)
{
    return status == INSPAN_UNREACHABLE || status == INSPAN_PEER_LOST || status == INSPAN_TIMEOUT ||
           status == INSPAN_REFUSED || status == INSPAN_IO || status == INSPAN_ABORTED;
}

/* The stream has failed: OK to go on trying, else the end of patience. */
static inspan_status_t manager_away(watch_t *watch, inspan_error_t *err)
{
    close_stream(watch);
    ns_t now = os_now();
    if (!may_pass(err->status)) return err->status;
    if (watch->options->cluster != NULL) {
        inspan_error_t cause = {0};
        if (cluster_tend(watch->options->cluster, &cause) != INSPAN_OK) *err = cause;
        if (cause.status != INSPAN_OK) return cause.status;
    }
    if (watch->away_since == 0) {
        char text[INSPAN_ERROR_TEXT + 64];
        snprintf(text, sizeof text, "%s; training goes on without it, trying again", err->text);
        show_text(watch, text);
        watch->away_since = now;
    }
    ns_t bound = watch->options->away_bound > 0 ? watch->options->away_bound : AWAY_BOUND;
    if (now - watch->away_since > bound) {
        char text[INSPAN_ERROR_TEXT];
        snprintf(text, sizeof text, "%s", err->text);
        return error_set(err, INSPAN_UNREACHABLE,
                         "%.300s, for %.0f s by now; when it is back, \"inspan job %" PRIu64 "\" tells more",
                         text, ns_to_s(now - watch->away_since), watch->id);
    }
    watch->retry_at = now + RETRY_AFTER;
    return INSPAN_OK;
}

/* Wait a little for the next event; false in *on when the job has ended. */
static inspan_status_t next_event(watch_t *watch, bool *on, inspan_error_t *err)
{
    ProtobufCMessage *message = NULL;
    inspan_status_t status = INSPAN_OK;
    if (watch->stream == NULL) {
        if (os_now() < watch->retry_at) {
            interrupt_wait(watch->options->interrupt, LOOK_PERIOD);
            return INSPAN_OK;
        }
        status = open_stream(watch, err);
    }
    if (status == INSPAN_OK) status = rpc_stream_next(watch->stream, LOOK_PERIOD, &message, err);
    if (status == INSPAN_TIMEOUT && watch->stream != NULL) return INSPAN_OK; /* no news */
    if (status != INSPAN_OK) return manager_away(watch, err);
    watch->away_since = 0;
    if (message != NULL) take_event(watch, (Inspan__V1__JobEvent *)(void *)message);
    bool ended = watch->latest != NULL && watch_has_ended(watch->latest->job);
    *on = !ended && message != NULL;
    if (ended || message != NULL) return INSPAN_OK;
    close_stream(watch); /* it ended without saying how the job did: ask again */
    watch->retry_at = os_now() + RETRY_AFTER;
    *on = true;
    return INSPAN_OK;
}

static inspan_status_t on_interrupt(watch_t *watch, inspan_error_t *err)
{
    uint32_t count = interrupt_wait(watch->options->interrupt, 0);
    if (count == watch->interrupts) return INSPAN_OK;
    bool first = watch->interrupts == 0 && count == 1;
    watch->interrupts = count;
    progress_end(&watch->progress);
    if (!first)
        return error_set(err, INSPAN_ABORTED,
                         "left job %" PRIu64 " behind while it is being cancelled (inspan job %" PRIu64
                         " tells how it ended)",
                         watch->id, watch->id);
    fprintf(stderr, "cancelling job %" PRIu64 " (Ctrl-C again leaves it)\n", watch->id);
    inspan_error_t cause = {0};
    Inspan__V1__JobInfo *job = client_cancel(watch->client, watch->id, &cause);
    if (job == NULL) fprintf(stderr, "inspan: %s\n", cause.text);
    client_free(job);
    return INSPAN_OK;
}

inspan_status_t watch_job(rpc_client_t *client, uint64_t id, const watch_options_t *options,
                          Inspan__V1__JobInfo **job, inspan_error_t *err)
{
    watch_t watch = {.client = client, .id = id, .options = options};
    progress_open(&watch.progress);
    inspan_status_t status = INSPAN_OK;
    bool on = true;
    while (on && status == INSPAN_OK) {
        status = next_event(&watch, &on, err);
        show_checkpoints(&watch);
        if (status == INSPAN_OK && on) status = on_interrupt(&watch, err);
        if (status == INSPAN_OK && on && options->cluster != NULL) {
            inspan_error_t lost = {0};
            if (cluster_tend(options->cluster, &lost) != INSPAN_OK) { /* not to be started again */
                if (watch.latest != NULL) { /* the manager tells better what follows from a lost agent */
                    show_text(&watch, lost.text);
                } else {
                    *err = lost;
                    status = lost.status;
                }
            }
        }
    }
    progress_end(&watch.progress);
    close_stream(&watch);
    if (status == INSPAN_OK) {
        *job = client_job(client, id, err); /* with the summaries */
        if (*job == NULL)
            status = err->status;
        else if (options->checkpoints != NULL)
            checkpoint_fetch_offer(options->checkpoints, *job);
    }
    client_free(watch.latest);
    return status;
}
