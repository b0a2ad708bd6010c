#include "cli/summary.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "cli/show.h"
#include "cli/table.h"

typedef struct rank_view {
    const Inspan__V1__Rank *rank;
    json_t *own; /* its summary; NULL: none */
    double samples, compute_s, exposed_comm_s, input_s, bytes_sent;
    char hash[40];
} rank_view_t;

static double own_number(const rank_view_t *view, const char *key, double fallback)
{
    return view->own == NULL ? fallback : json_get_number(view->own, key, fallback);
}

static void read_rank(const Inspan__V1__Rank *rank, rank_view_t *view)
{
    const Inspan__V1__Progress none = INSPAN__V1__PROGRESS__INIT;
    const Inspan__V1__Progress *progress = rank->progress != NULL ? rank->progress : &none;
    *view = (rank_view_t){.rank = rank};
    if (rank->summary_json[0] != '\0' &&
        json_parse(rank->summary_json, strlen(rank->summary_json), &view->own, NULL) != INSPAN_OK)
        view->own = NULL;
    view->samples = own_number(view, "samples", (double)progress->samples);
    view->compute_s = own_number(view, "compute_s", progress->compute_s);
    view->exposed_comm_s = own_number(view, "exposed_comm_s", progress->exposed_comm_s);
    view->input_s = own_number(view, "input_s", progress->input_s);
    view->bytes_sent = own_number(view, "bytes_sent", (double)progress->bytes_sent);
    const char *hash = view->own == NULL ? NULL : json_get_string(view->own, "param_hash");
    if (hash != NULL)
        snprintf(view->hash, sizeof view->hash, "%s", hash);
    else if (progress->param_hash != 0)
        snprintf(view->hash, sizeof view->hash, "%016" PRIx64, progress->param_hash);
    table_clean(view->hash);
}

static json_t *node_json(const rank_view_t *view, double all_samples)
{
    json_t *node = json_object();
    json_set_number(node, "rank", view->rank->rank);
    json_set_string(node, "node", view->rank->node);
    json_set_string(node, "address", view->rank->address);
    json_set_number(node, "samples", view->samples);
    json_set_number(node, "share", all_samples > 0 ? view->samples / all_samples : 0);
    json_set_number(node, "samples_per_s", view->compute_s > 0 ? view->samples / view->compute_s : 0);
    json_set_number(node, "compute_s", view->compute_s);
    json_set_number(node, "exposed_comm_s", view->exposed_comm_s);
    json_set_number(node, "commit_s", own_number(view, "commit_s", (double)NAN));
    json_set_number(node, "input_s", view->input_s);
    json_set_number(node, "bytes_sent", view->bytes_sent);
    json_set_string(node, "param_hash", view->hash[0] != '\0' ? view->hash : NULL);
    json_set_number(node, "micro_batch", own_number(view, "micro_batch", (double)NAN));
    show_set_speed(node, view->rank->progress);
    json_set_number(node, "steals", own_number(view, "steals", (double)NAN));
    json_set_number(node, "samples_stolen", own_number(view, "samples_stolen", (double)NAN));
    json_set_string(node, "gemm", view->own == NULL ? NULL : json_get_string(view->own, "gemm"));
    return node;
}

/* What every rank knows alike is taken from the lowest that has a summary. */
static void copy_common(json_t *out, const rank_view_t *views, size_t n)
{
    static const char *const keys[] = {
        "loss_first",    "loss_last", "validation_first", "validation_last", "accuracy_last",
        "samples_per_s", "wall_s",    "wire_changes",     "layout_changes",  "buckets"};
    const rank_view_t *first = n > 0 ? &views[0] : NULL;
    for (size_t i = 0; i < n; i++)
        if (views[i].own != NULL) {
            first = &views[i];
            break;
        }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_set_number(out, keys[i], first == NULL ? (double)NAN : own_number(first, keys[i], (double)NAN));
    const bool said = first != NULL && first->own != NULL;
    json_set_string(out, "wire", said ? json_get_string(first->own, "wire") : NULL);
    json_set_string(out, "layout_reason", said ? json_get_string(first->own, "layout_reason") : NULL);
}

static void add_end(json_t *out, const Inspan__V1__JobInfo *job)
{
    if (strcmp(job->state, "done") == 0) return;
    json_t *error = json_object();
    const char *text = job->reason[0] != '\0' ? job->reason
                       : job->failure != NULL ? job->failure->text
                                              : job->state;
    json_set_string(error, "status", inspan_status_text(INSPAN_JOB_FAILED));
    json_set_string(error, "text", text);
    json_set(out, "error", error);
    if (job->failure != NULL) json_set(out, "failure", show_failure_json(job->failure));
}

static double largest_or(double a, double b)
{
    return b > a ? b : a;
}

json_t *summary_json(const Inspan__V1__JobInfo *job)
{
    json_t *out = json_object();
    rank_view_t *views = calloc(job->n_ranks + 1, sizeof *views);
    double samples = 0, compute_s = 0, exposed_s = 0, bytes = 0, steps = 0, recomputed = 0;
    double all_samples = 0, recoveries = 0, worst_s = 0;
    const rank_view_t *last = NULL; /* the lowest that saw the end */
    bool differ = false;
    bool done = strcmp(job->state, "done") == 0; /* else each rank may have stopped at a step of its own */
    json_set_number(out, "job", (double)job->id);
    json_set_string(out, "name", job->name);
    json_set_string(out, "state", job->state);
    size_t n = views == NULL ? 0 : job->n_ranks;
    for (size_t i = 0; i < n; i++) {
        const Inspan__V1__Progress *progress = job->ranks[i]->progress;
        read_rank(job->ranks[i], &views[i]);
        samples += views[i].samples;
        bytes += views[i].bytes_sent;
        compute_s = largest_or(compute_s, views[i].compute_s);
        exposed_s = largest_or(exposed_s, views[i].exposed_comm_s);
        steps =
            largest_or(steps, own_number(&views[i], "steps", progress != NULL ? (double)progress->step : 0));
        recomputed += own_number(&views[i], "samples_recomputed", 0);
        all_samples = largest_or(all_samples, own_number(&views[i], "samples_all", 0));
        worst_s = largest_or(worst_s, own_number(&views[i], "recovery_worst_s", 0));
        recoveries = largest_or(recoveries, own_number(&views[i], "recoveries", 0));
        if (strcmp(views[i].rank->state, "done") != 0) continue; /* it was lost or has left */
        if (last == NULL) last = &views[i];
        differ = differ || (done && strcmp(views[i].hash, last->hash) != 0);
    }
    if (all_samples > 0) samples = all_samples; /* who was lost could not say what it had done at the end */
    json_set_number(out, "steps", steps);
    json_set_number(out, "samples", samples);
    copy_common(out, views, n);
    json_set_number(out, "compute_s", compute_s);
    json_set_number(out, "exposed_comm_s", exposed_s);
    json_set_number(out, "bytes_sent", bytes);
    json_set_number(out, "views", (double)job->view);
    json_set_number(out, "samples_recomputed", recomputed);
    json_set_number(out, "workers_lost", (double)job->workers_lost);
    json_set_number(out, "recoveries", recoveries);
    json_set_number(out, "recovery_worst_s", worst_s);
    json_set_string(out, "param_hash",
                    last != NULL && done && !differ && last->hash[0] != '\0' ? last->hash : NULL);
    if (differ) json_set_bool(out, "hashes_differ", true);
    json_t *nodes = json_array();
    for (size_t i = 0; i < n; i++) json_append(nodes, node_json(&views[i], samples));
    json_set(out, "nodes", nodes);
    json_set(out, "verdicts", show_verdicts_json(job));
    json_set(out, "left_out", show_left_out_json(job));
    add_end(out, job);
    for (size_t i = 0; i < n; i++) json_free(views[i].own);
    free(views);
    return out;
}

/* ---- For people ------------------------------------------------------------------------------ */

static void print_loss(FILE *out, const json_t *summary, const char *label, const char *first,
                       const char *last)
{
    double from = json_get_number(summary, first, (double)NAN),
           to = json_get_number(summary, last, (double)NAN);
    if (isfinite(from) && isfinite(to)) fprintf(out, "  %s %.4f -> %.4f\n", label, from, to);
}

static void add_seconds(table_t *table, const json_t *node, const char *key)
{
    char text[32];
    double seconds = json_get_number(node, key, 0);
    if (!(seconds >= 0 && seconds < 9e9)) seconds = 0;
    table_add(table, "%s", units_format_duration((ns_t)(seconds * 1e9), text, sizeof text));
}

static void print_nodes(FILE *out, const json_t *nodes)
{
    static const char *const headings[] = {">RANK",    "NODE",          ">SAMPLES", ">SHARE", ">SAMPLES/S",
                                           ">COMPUTE", ">EXPOSED COMM", ">INPUT",   ">SENT",  NULL};
    table_t *table = table_open(headings);
    for (const json_t *node = json_first(nodes); node != NULL && table != NULL; node = json_next(node)) {
        char text[32];
        const char *name = json_get_string(node, "node");
        table_add(table, "%.0f", json_get_number(node, "rank", 0));
        table_add(table, "%s", name != NULL ? name : "-");
        table_add(table, "%.0f", json_get_number(node, "samples", 0));
        table_add(table, "%.1f %%", 100 * json_get_number(node, "share", 0));
        table_add(table, "%.1f", json_get_number(node, "samples_per_s", 0));
        add_seconds(table, node, "compute_s");
        add_seconds(table, node, "exposed_comm_s");
        add_seconds(table, node, "input_s");
        double bytes = json_get_number(node, "bytes_sent", 0);
        table_add(table, "%s",
                  units_format_size(bytes >= 0 && bytes < 9e18 ? (uint64_t)bytes : 0, text, sizeof text));
    }
    if (table != NULL) table_print(table, out);
    table_close(table);
}

/* Where members came and went. */
static void print_views(FILE *out, const json_t *summary)
{
    char text[32];
    const double views = json_get_number(summary, "views", 1),
                 lost = json_get_number(summary, "workers_lost", 0);
    const double worst_s = json_get_number(summary, "recovery_worst_s", 0);
    if (views <= 1) return;
    fprintf(out, "  %.0f views; %.0f workers lost; %.0f samples computed again", views, lost,
            json_get_number(summary, "samples_recomputed", 0));
    if (lost > 0 && worst_s >= 0 && worst_s < 9e9)
        fprintf(out, "; after a loss the next step was committed within %s",
                units_format_duration((ns_t)(worst_s * 1e9), text, sizeof text));
    fputc('\n', out);
}

static void print_wire(FILE *out, const json_t *summary)
{
    char text[32];
    const char *wire = json_get_string(summary, "wire");
    const double changes = json_get_number(summary, "wire_changes", 0);
    if (wire == NULL || !(changes > 0)) return;
    snprintf(text, sizeof text, "%s", wire);
    fprintf(out,
            "  gradients went over the wire as %s in the end, after %.0f change%s: inspan logs says why\n",
            table_clean(text), changes, changes > 1 ? "s" : "");
}

static void print_layout(FILE *out, const json_t *summary)
{
    char text[320];
    const char *reason = json_get_string(summary, "layout_reason");
    if (reason == NULL || reason[0] == '\0') return;
    snprintf(text, sizeof text, "%s", reason);
    fprintf(out, "  %s\n", table_clean(text));
}

static void print_left_out(FILE *out, const json_t *list)
{
    for (const json_t *at = json_first(list); at != NULL; at = json_next(at)) {
        char text[300];
        const char *node = json_get_string(at, "node"), *reason = json_get_string(at, "reason");
        const double times = json_get_number(at, "times", 1);
        snprintf(text, sizeof text, "%s%s%s", node != NULL ? node : "-",
                 reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
        fprintf(out, "  left out from step %.0f on%s, for the others were predicted to be faster: %s\n",
                json_get_number(at, "step", 0), times > 1 ? " (the last time)" : "", table_clean(text));
    }
}

void summary_print(FILE *out, const json_t *summary)
{
    char name[160], text[32];
    double wall_s = json_get_number(summary, "wall_s", (double)NAN);
    double rate = json_get_number(summary, "samples_per_s", (double)NAN);
    const char *given = json_get_string(summary, "name"), *state = json_get_string(summary, "state");
    snprintf(name, sizeof name, "%s", given != NULL ? given : "");
    fprintf(out, "job %.0f (%s): %s, %.0f steps, %.0f samples", json_get_number(summary, "job", 0),
            table_clean(name), state != NULL ? state : "?", json_get_number(summary, "steps", 0),
            json_get_number(summary, "samples", 0));
    if (wall_s >= 0 && wall_s < 9e9)
        fprintf(out, " in %s", units_format_duration((ns_t)(wall_s * 1e9), text, sizeof text));
    if (isfinite(rate)) fprintf(out, ", %.1f samples/s", rate);
    fputc('\n', out);
    print_loss(out, summary, "loss    ", "loss_first", "loss_last");
    print_loss(out, summary, "held-out", "validation_first", "validation_last");
    print_views(out, summary);
    print_wire(out, summary);
    print_layout(out, summary);
    print_nodes(out, json_get(summary, "nodes"));
    print_left_out(out, json_get(summary, "left_out"));
    const char *hash = json_get_string(summary, "param_hash");
    if (json_get_bool(summary, "hashes_differ", false))
        fputs("  the ranks' parameters DIFFER: please report this\n", out);
    else if (hash != NULL)
        fprintf(out, "  parameters %s on all ranks\n", hash);
}
