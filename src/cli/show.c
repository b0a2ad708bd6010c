#include "cli/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "platform/os/os_time.h"

static const char *text_or_dash(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : "-";
}

static json_t *hash_json(json_t *object, const char *key, uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    json_set_string(object, key, text); /* beyond 2^53: no JSON number */
    return object;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static json_t *gpus_json(const Inspan__V1__Inventory *inventory)
{
    json_t *list = json_array();
    for (size_t i = 0; i < inventory->n_gpus; i++) {
        json_t *gpu = json_object();
        json_set_string(gpu, "name", inventory->gpus[i]->name);
        json_set_number(gpu, "memory_bytes", (double)inventory->gpus[i]->memory_bytes);
        json_set_string(gpu, "driver", inventory->gpus[i]->driver);
        json_append(list, gpu);
    }
    return list;
}

static json_t *interfaces_json(const Inspan__V1__Inventory *inventory)
{
    json_t *list = json_array();
    for (size_t i = 0; i < inventory->n_interfaces; i++) {
        const Inspan__V1__Interface *at = inventory->interfaces[i];
        json_t *interface = json_object();
        json_t *addresses = json_array();
        json_set_string(interface, "name", at->name);
        for (size_t k = 0; k < at->n_addresses; k++) json_append_string(addresses, at->addresses[k]);
        json_set(interface, "addresses", addresses);
        json_set_number(interface, "speed_bits_per_s", (double)at->speed_bits_per_s);
        json_set_bool(interface, "wireless", at->wireless);
        json_append(list, interface);
    }
    return list;
}

static json_t *inventory_json(const Inspan__V1__Inventory *inventory)
{
    json_t *object = json_object();
    json_t *sets = json_array();
    json_set_string(object, "hostname", inventory->hostname);
    json_set_string(object, "os", inventory->os);
    json_set_string(object, "cpu_model", inventory->cpu_model);
    json_set_string(object, "architecture", inventory->architecture);
    json_set_number(object, "cores", inventory->cores);
    json_set_number(object, "usable_cores", inventory->usable_cores);
    for (size_t i = 0; i < inventory->n_instruction_sets; i++)
        json_append_string(sets, inventory->instruction_sets[i]);
    json_set(object, "instruction_sets", sets);
    json_set_number(object, "memory_bytes", (double)inventory->memory_bytes);
    json_set_number(object, "memory_free_bytes", (double)inventory->memory_free_bytes);
    json_set_number(object, "disk_free_bytes", (double)inventory->disk_free_bytes);
    json_set(object, "gpus", gpus_json(inventory));
    json_set(object, "interfaces", interfaces_json(inventory));
    json_set_bool(object, "has_battery", inventory->has_battery);
    json_set_bool(object, "on_battery", inventory->on_battery);
    json_set_number(object, "battery_share", inventory->battery_share);
    json_set_string(object, "version", inventory->version);
    return object;
}

static json_t *vitals_json(const Inspan__V1__Vitals *vitals)
{
    json_t *object = json_object();
    json_set_number(object, "cores", vitals->cores);
    json_set_number(object, "throttled", vitals->throttled);
    json_set_number(object, "clock_mhz", vitals->clock_mhz);
    json_set_number(object, "clock_best_mhz", vitals->clock_best_mhz);
    json_set_number(object, "temperature_c", vitals->temperature_c);
    json_set_number(object, "others_cores", vitals->others_cores);
    json_set_number(object, "swap_bytes_per_s", vitals->swap_bytes_per_s);
    json_set_bool(object, "on_battery", vitals->on_battery);
    json_set_bool(object, "owner_active", vitals->owner_active);
    json_set_number(object, "allowed", vitals->allowed);
    json_set_string(object, "limit", vitals->limit);
    return object;
}

json_t *show_nodes_json(const Inspan__V1__NodeList *list)
{
    json_t *root = json_object();
    json_t *nodes = json_array();
    for (size_t i = 0; i < list->n_nodes; i++) {
        const Inspan__V1__Node *at = list->nodes[i];
        json_t *node = json_object();
        json_set_string(node, "node_id", at->node_id);
        json_set_string(node, "name", at->name);
        json_set_string(node, "address", at->address);
        json_set_string(node, "state", at->state);
        json_set_number(node, "job", (double)at->job_id);
        json_set_number(node, "load", at->load);
        json_set_number(node, "last_heartbeat_s_ago", (double)at->last_heartbeat_ns_ago * 1e-9);
        json_set_number(node, "cool_down_s", (double)at->cool_down_ns * 1e-9);
        json_set_number(node, "losses", at->losses);
        json_set_number(node, "clock_skew_s", at->skew_s);
        if (at->vitals != NULL) json_set(node, "vitals", vitals_json(at->vitals));
        if (at->inventory != NULL) json_set(node, "inventory", inventory_json(at->inventory));
        json_append(nodes, node);
    }
    json_set(root, "nodes", nodes);
    if (list->notice[0] != '\0') json_set_string(root, "notice", list->notice);
    return root;
}

static void add_vitals(table_t *table, const Inspan__V1__Vitals *vitals)
{
    const bool known = vitals != NULL;
    if (known && vitals->clock_mhz > 0)
        table_add(table, "%.1f", vitals->clock_mhz / 1000);
    else
        table_add(table, "-");
    if (known && vitals->temperature_c > 0)
        table_add(table, "%.0f C", vitals->temperature_c);
    else
        table_add(table, "-");
    if (known && vitals->limit[0] != '\0')
        table_add(table, "%.0f %% (%s)", 100 * vitals->allowed, vitals->limit);
    else if (known)
        table_add(table, "%.0f %%", 100 * vitals->allowed);
    else
        table_add(table, "-");
}

void show_nodes(FILE *out, const Inspan__V1__NodeList *list)
{
    static const char *const headings[] = {"NAME",   "STATE", "ADDRESS", ">CORES", ">MEMORY",
                                           ">FREE",  "GPU",   ">LOAD",   ">GHZ",   ">TEMP",
                                           ">GIVES", ">JOB",  ">SEEN",   "CPU",    NULL};
    table_t *table = table_open(headings);
    for (size_t i = 0; table != NULL && i < list->n_nodes; i++) {
        const Inspan__V1__Node *at = list->nodes[i];
        const Inspan__V1__Inventory empty = INSPAN__V1__INVENTORY__INIT;
        const Inspan__V1__Inventory *has = at->inventory != NULL ? at->inventory : &empty;
        char text[32];
        table_add(table, "%s", text_or_dash(at->name));
        table_add(table, "%s", text_or_dash(at->state));
        table_add(table, "%s", text_or_dash(at->address));
        table_add(table, "%.3g",
                  at->vitals != NULL && at->vitals->cores > 0 ? at->vitals->cores : has->usable_cores);
        table_add(table, "%s", units_format_size(has->memory_bytes, text, sizeof text));
        table_add(table, "%s", units_format_size(has->memory_free_bytes, text, sizeof text));
        table_add(table, "%s", has->n_gpus > 0 ? text_or_dash(has->gpus[0]->name) : "-");
        table_add(table, "%.2f", at->load);
        add_vitals(table, at->vitals);
        if (at->job_id != 0)
            table_add(table, "%" PRIu64, at->job_id);
        else
            table_add(table, "-");
        table_add(table, "%s ago", units_format_duration(at->last_heartbeat_ns_ago, text, sizeof text));
        table_add(table, "%s", text_or_dash(has->cpu_model));
    }
    if (list->notice[0] != '\0') fprintf(out, "%s\n\n", list->notice);
    if (table != NULL) table_print(table, out);
    table_close(table);
    if (list->n_nodes == 0)
        fputs("no node has joined yet (inspan join HOST --token T on each machine)\n", out);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static json_t *progress_json(const Inspan__V1__Progress *progress)
{
    if (progress == NULL) return NULL;
    json_t *object = json_object();
    json_set_number(object, "step", (double)progress->step);
    json_set_number(object, "steps", (double)progress->steps);
    json_set_number(object, "samples", (double)progress->samples);
    json_set_number(object, "samples_recomputed", (double)progress->samples_recomputed);
    json_set_number(object, "loss", progress->loss);
    json_set_number(object, "validation_loss", progress->validation_loss);
    json_set_number(object, "samples_per_s", progress->samples_per_s);
    json_set_number(object, "compute_s", progress->compute_s);
    json_set_number(object, "exposed_comm_s", progress->exposed_comm_s);
    json_set_number(object, "input_s", progress->input_s);
    json_set_number(object, "bytes_sent", (double)progress->bytes_sent);
    return hash_json(object, "param_hash", progress->param_hash);
}

json_t *show_failure_json(const Inspan__V1__Failure *failure)
{
    if (failure == NULL) return NULL;
    json_t *object = json_object();
    json_set_string(object, "status", inspan_status_text((inspan_status_t)failure->status));
    json_set_number(object, "rank", failure->rank);
    json_set_string(object, "node", failure->node);
    json_set_string(object, "address", failure->address);
    json_set_string(object, "operation", failure->operation);
    json_set_number(object, "waited_s", (double)failure->waited_ns * 1e-9);
    json_set_number(object, "noticed_by", failure->noticed_by);
    json_set_string(object, "text", failure->text);
    return object;
}

/* Samples a second of pure compute; 0: unknown. */
static double speed_of(const Inspan__V1__Progress *progress)
{
    return progress->pace_sample_ns > 0 ? 1e9 / (double)progress->pace_sample_ns : 0;
}

void show_set_speed(json_t *object, const Inspan__V1__Progress *progress)
{
    if (progress == NULL || progress->pace_sample_ns == 0) return;
    json_set_number(object, "speed", speed_of(progress));
    json_set_number(object, "step_rest_s", (double)progress->pace_step_ns * 1e-9);
    json_set_number(object, "share_samples", (double)progress->share_samples);
    json_set_number(object, "run_samples", (double)progress->run_samples);
}

static const char *cause_text(Inspan__V1__VerdictCause cause)
{
    static const char *const texts[] = {"unknown", "quota",  "clock", "heat", "battery",
                                        "owner",   "others", "swap",  "link", "input"};
    return (size_t)cause < sizeof texts / sizeof texts[0] ? texts[cause] : texts[0];
}

json_t *show_verdicts_json(const Inspan__V1__JobInfo *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_verdicts; i++) {
        const Inspan__V1__Verdict *at = job->verdicts[i];
        json_t *verdict = json_object();
        json_set_number(verdict, "rank", at->rank);
        json_set_string(verdict, "node", at->node);
        json_set_number(verdict, "said_by", at->said_by);
        json_set_number(verdict, "step", (double)at->step);
        json_set_number(verdict, "started_step", (double)at->started_step);
        json_set_string(verdict, "cause", cause_text(at->cause));
        json_set_number(verdict, "factor", at->factor);
        json_set_string(verdict, "evidence", at->evidence);
        json_set_number(verdict, "share_before", (double)at->share_before);
        json_set_number(verdict, "share_after", (double)at->share_after);
        json_set_bool(verdict, "let_go", at->leave);
        json_set_number(verdict, "wall_s", (double)at->wall_ns * 1e-9);
        json_set_string(verdict, "text", at->text);
        json_append(list, verdict);
    }
    return list;
}

json_t *show_left_out_json(const Inspan__V1__JobInfo *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_left_out; i++) {
        const Inspan__V1__LeftOut *at = job->left_out[i];
        json_t *node = json_object();
        json_set_string(node, "node", at->node);
        json_set_string(node, "reason", at->reason);
        json_set_number(node, "times", at->times);
        json_set_number(node, "step", (double)at->step);
        json_set_number(node, "until_wall_s", (double)at->until_wall_ns * 1e-9);
        json_append(list, node);
    }
    return list;
}

static json_t *rank_json(const Inspan__V1__Rank *rank)
{
    json_t *object = json_object();
    json_t *summary = NULL;
    json_set_number(object, "rank", rank->rank);
    json_set_string(object, "node", rank->node);
    json_set_string(object, "node_id", rank->node_id);
    json_set_string(object, "address", rank->address);
    json_set_number(object, "port", rank->port);
    json_set_number(object, "pid", rank->pid);
    json_set_string(object, "state", rank->state);
    if (rank->progress != NULL) json_set(object, "progress", progress_json(rank->progress));
    show_set_speed(object, rank->progress);
    if (rank->failure != NULL) json_set(object, "failure", show_failure_json(rank->failure));
    if (rank->summary_json[0] != '\0' &&
        json_parse(rank->summary_json, strlen(rank->summary_json), &summary, NULL) == INSPAN_OK)
        json_set(object, "summary", summary);
    return object;
}

static double wall_s(int64_t ns)
{
    return (double)ns * 1e-9;
}

json_t *show_job_json(const Inspan__V1__JobInfo *job)
{
    json_t *object = json_object();
    json_t *ranks = json_array();
    json_t *results = json_array();
    json_set_number(object, "job", (double)job->id);
    json_set_string(object, "name", job->name);
    json_set_string(object, "state", job->state);
    json_set_string(object, "reason", job->reason);
    json_set_number(object, "submitted_wall_s", wall_s(job->submitted_wall_ns));
    if (job->started_wall_ns != 0) json_set_number(object, "started_wall_s", wall_s(job->started_wall_ns));
    if (job->ended_wall_ns != 0) json_set_number(object, "ended_wall_s", wall_s(job->ended_wall_ns));
    json_set_number(object, "view", (double)job->view);
    if (job->progress != NULL) json_set(object, "progress", progress_json(job->progress));
    if (job->failure != NULL) json_set(object, "failure", show_failure_json(job->failure));
    for (size_t i = 0; i < job->n_ranks; i++) json_append(ranks, rank_json(job->ranks[i]));
    json_set(object, "ranks", ranks);
    for (size_t i = 0; i < job->n_results; i++) {
        json_t *result = json_object();
        json_set_string(result, "name", job->results[i]->name);
        json_set_string(result, "hash", job->results[i]->hash);
        json_set_number(result, "bytes", (double)job->results[i]->bytes);
        json_append(results, result);
    }
    json_set(object, "results", results);
    json_t *checkpoints = json_array();
    for (size_t i = 0; i < job->n_checkpoints; i++) {
        json_t *checkpoint = json_object();
        json_set_number(checkpoint, "step", (double)job->checkpoints[i]->step);
        json_set_number(checkpoint, "view", (double)job->checkpoints[i]->view);
        json_append(checkpoints, checkpoint);
    }
    json_set(object, "checkpoints", checkpoints);
    json_set_number(object, "workers_lost", (double)job->workers_lost);
    json_set(object, "verdicts", show_verdicts_json(job));
    json_set(object, "left_out", show_left_out_json(job));
    return object;
}

json_t *show_jobs_json(const Inspan__V1__JobList *list)
{
    json_t *root = json_object();
    json_t *jobs = json_array();
    for (size_t i = 0; i < list->n_jobs; i++) json_append(jobs, show_job_json(list->jobs[i]));
    json_set(root, "jobs", jobs);
    return root;
}

/* How long it has run, or ran. */
static const char *run_time(const Inspan__V1__JobInfo *job, char *text, size_t size)
{
    if (job->started_wall_ns == 0) return "-";
    int64_t end = job->ended_wall_ns != 0 ? job->ended_wall_ns : os_wall_now();
    int64_t length = end > job->started_wall_ns ? end - job->started_wall_ns : 0;
    return units_format_duration(length, text, size);
}

static void add_step(table_t *table, const Inspan__V1__Progress *progress)
{
    if (progress == NULL || progress->steps == 0) {
        table_add(table, "-");
        table_add(table, "-");
        return;
    }
    table_add(table, "%" PRIu64 "/%" PRIu64, progress->step, progress->steps);
    if (progress->step == 0 || !isfinite(progress->loss))
        table_add(table, "-");
    else
        table_add(table, "%.4f", progress->loss);
}

void show_jobs(FILE *out, const Inspan__V1__JobList *list)
{
    static const char *const headings[] = {">JOB",   "NAME", "STATE",  ">STEP", ">LOSS",
                                           ">NODES", ">RAN", "REASON", NULL};
    table_t *table = table_open(headings);
    for (size_t i = 0; table != NULL && i < list->n_jobs; i++) {
        const Inspan__V1__JobInfo *at = list->jobs[i];
        char text[32];
        table_add(table, "%" PRIu64, at->id);
        table_add(table, "%s", text_or_dash(at->name));
        table_add(table, "%s", text_or_dash(at->state));
        add_step(table, at->progress);
        table_add(table, "%zu", at->n_ranks);
        table_add(table, "%s", run_time(at, text, sizeof text));
        table_add(table, "%s", text_or_dash(at->reason));
    }
    if (table != NULL) table_print(table, out);
    table_close(table);
    if (list->n_jobs == 0) fputs("no job yet (inspan train FILE.yaml)\n", out);
}

static void add_speed(table_t *table, const Inspan__V1__Progress *progress)
{
    if (progress == NULL || progress->pace_sample_ns == 0) {
        table_add(table, "-");
        table_add(table, "-");
        return;
    }
    table_add(table, "%" PRIu64, progress->share_samples);
    table_add(table, "%.3g/s", speed_of(progress));
}

static void print_verdicts(FILE *out, const Inspan__V1__JobInfo *job)
{
    char text[700], until[32];
    for (size_t i = 0; i < job->n_verdicts; i++) {
        snprintf(text, sizeof text, "%s", job->verdicts[i]->text);
        fprintf(out, "  step %" PRIu64 ": %s\n", job->verdicts[i]->step, table_clean(text));
    }
    const int64_t now = os_wall_now();
    for (size_t i = 0; i < job->n_left_out && job->ended_wall_ns == 0; i++) {
        const Inspan__V1__LeftOut *at = job->left_out[i];
        if (at->until_wall_ns <= now) continue;
        snprintf(text, sizeof text, "%s%s%s", at->node, at->reason[0] != '\0' ? ": " : "", at->reason);
        fprintf(out, "  not used for %s, unless too few are left: %s\n",
                units_format_duration(at->until_wall_ns - now, until, sizeof until), table_clean(text));
    }
}

void show_job(FILE *out, const Inspan__V1__JobInfo *job)
{
    static const char *const headings[] = {">RANK", "NODE",   "ADDRESS", ">PID",    "STATE", ">STEP",
                                           ">LOSS", ">SHARE", ">SPEED",  "FAILURE", NULL};
    char name[160], reason[600], text[32];
    snprintf(name, sizeof name, "%s", job->name);
    snprintf(reason, sizeof reason, "%s", job->reason);
    fprintf(out, "job %" PRIu64 " (%s): %s", job->id, table_clean(name), job->state);
    if (job->started_wall_ns != 0) fprintf(out, ", %s", run_time(job, text, sizeof text));
    if (reason[0] != '\0') fprintf(out, "\n  %s", table_clean(reason));
    fputc('\n', out);
    for (size_t i = 0; i < job->n_results; i++) {
        char file[256];
        snprintf(file, sizeof file, "%s", job->results[i]->name);
        fprintf(out, "  result %s, %s (inspan results %" PRIu64 " fetches it)\n", table_clean(file),
                units_format_size(job->results[i]->bytes, text, sizeof text), job->id);
    }
    if (job->n_ranks == 0) return;
    table_t *table = table_open(headings);
    for (size_t i = 0; table != NULL && i < job->n_ranks; i++) {
        const Inspan__V1__Rank *at = job->ranks[i];
        table_add(table, "%u", at->rank);
        table_add(table, "%s", text_or_dash(at->node));
        table_add(table, strchr(at->address, ':') != NULL ? "[%s]:%u" : "%s:%u", at->address, at->port);
        table_add(table, "%u", at->pid);
        table_add(table, "%s", text_or_dash(at->state));
        add_step(table, at->progress);
        add_speed(table, at->progress);
        table_add(table, "%s", at->failure != NULL ? text_or_dash(at->failure->text) : "-");
    }
    if (table != NULL) table_print(table, out);
    table_close(table);
    print_verdicts(out, job);
}

void show_set_bytes(json_t *object, const char *key, const char *bytes, size_t n)
{
    char *text = malloc(n + 1);
    for (size_t i = 0; text != NULL && i < n; i++) text[i] = bytes[i] != '\0' ? bytes[i] : '\xff';
    if (text != NULL) text[n] = '\0';
    json_set_string(object, key, text);
    free(text);
}

int show_print_json(json_t *value)
{
    char *text = json_print(value, false);
    json_free(value);
    if (text == NULL) {
        fputs("inspan: out of memory\n", stderr);
        return CLI_EXIT_CLUSTER;
    }
    printf("%s\n", text);
    free(text);
    return CLI_EXIT_OK;
}
