/* What chaos saw, as JSON and for people. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/chaos.h"
#include "cli/table.h"

static int by_value(const void *a, const void *b)
{
    const ns_t x = *(const ns_t *)a, y = *(const ns_t *)b;
    return x < y ? -1 : x > y;
}

typedef struct spread {
    uint32_t n;
    ns_t median, worst;
} spread_t;

/* Of the times from `a` to `b` of the faults of one kind (CHAOS_KINDS: of all). */
static spread_t spread(const chaos_report_t *report, chaos_kind_t kind, bool detection)
{
    spread_t result = {0};
    ns_t *times = calloc(report->faults.n + 1, sizeof *times);
    for (size_t i = 0; times != NULL && i < report->faults.n; i++) {
        const chaos_fault_t *fault = &report->faults.items[i];
        if ((kind != CHAOS_KINDS && fault->kind != kind) || fault->known == 0) continue;
        if (!detection && fault->committed == 0) continue;
        times[result.n++] = detection ? fault->known - fault->at : fault->committed - fault->known;
    }
    if (result.n > 0) {
        qsort(times, result.n, sizeof *times, by_value);
        result.median = times[result.n / 2];
        result.worst = times[result.n - 1];
    }
    free(times);
    return result;
}

static ns_t detection(const chaos_report_t *report)
{
    ns_t sum = 0;
    for (size_t i = 0; i < report->faults.n; i++)
        if (report->faults.items[i].known > 0)
            sum += report->faults.items[i].known - report->faults.items[i].at;
    return sum;
}

double chaos_goodput(const chaos_report_t *report, bool without_detection)
{
    const ns_t length = report->length - (without_detection ? detection(report) : 0);
    if (report->quiet <= 0 || report->quiet_steps == 0 || length <= 0) return 0;
    const double rate = (double)report->quiet_steps / ns_to_s(report->quiet);
    return (double)report->steps / ns_to_s(length) / rate;
}

static json_t *fault_json(const chaos_fault_t *fault)
{
    json_t *object = json_object();
    json_set_string(object, "kind", chaos_kind_text(fault->kind));
    json_set_string(object, "node", fault->node);
    json_set_number(object, "rank", fault->rank);
    json_set_number(object, "at_s", ns_to_s(fault->at));
    if (fault->known > 0) json_set_number(object, "detected_after_s", ns_to_s(fault->known - fault->at));
    if (fault->known > 0 && fault->committed > 0)
        json_set_number(object, "committed_after_s", ns_to_s(fault->committed - fault->known));
    if (fault->whole > 0) json_set_number(object, "whole_after_s", ns_to_s(fault->whole - fault->at));
    return object;
}

json_t *chaos_json(const chaos_report_t *report)
{
    json_t *object = json_object(), *faults = json_array(), *kinds = json_object();
    for (size_t i = 0; i < report->faults.n; i++) json_append(faults, fault_json(&report->faults.items[i]));
    for (uint32_t k = 0; k <= CHAOS_KINDS; k++) {
        const spread_t known = spread(report, (chaos_kind_t)k, true),
                       next = spread(report, (chaos_kind_t)k, false);
        json_t *kind = json_object();
        json_set_number(kind, "recoveries", next.n);
        json_set_number(kind, "detected_median_s", ns_to_s(known.median));
        json_set_number(kind, "detected_worst_s", ns_to_s(known.worst));
        json_set_number(kind, "committed_median_s", ns_to_s(next.median));
        json_set_number(kind, "committed_worst_s", ns_to_s(next.worst));
        json_set(kinds, k == CHAOS_KINDS ? "all" : chaos_kind_text((chaos_kind_t)k), kind);
    }
    json_set_number(object, "job", (double)report->job);
    json_set_number(object, "seconds", ns_to_s(report->length));
    json_set_number(object, "faults_n", (double)report->faults.n);
    json_set_number(object, "steps", (double)report->steps);
    json_set_number(object, "quiet_steps_per_s",
                    report->quiet > 0 ? (double)report->quiet_steps / ns_to_s(report->quiet) : 0);
    json_set_number(object, "goodput", chaos_goodput(report, false));
    json_set_number(object, "goodput_without_detection", chaos_goodput(report, true));
    json_set_number(object, "detection_s", ns_to_s(detection(report)));
    json_set_number(object, "samples_recomputed", (double)report->recomputed);
    json_set_bool(object, "ledger_exact", report->ledger_exact);
    json_set_number(object, "ledger_steps", (double)report->ledger_steps);
    json_set_string(object, "violation", report->violation);
    json_set(object, "kinds", kinds);
    json_set(object, "faults", faults);
    return object;
}

void chaos_show(FILE *out, const chaos_report_t *report)
{
    static const char *const headings[] = {
        "FAULT", ">TIMES", ">DETECTED (MEDIAN)", "> WORST", ">NEXT STEP (MEDIAN)", "> WORST", NULL};
    table_t *table = table_open(headings);
    for (uint32_t k = 0; table != NULL && k <= CHAOS_KINDS; k++) {
        const spread_t known = spread(report, (chaos_kind_t)k, true),
                       next = spread(report, (chaos_kind_t)k, false);
        if (known.n == 0) continue;
        table_add(table, "%s", k == CHAOS_KINDS ? "all" : chaos_kind_text((chaos_kind_t)k));
        table_add(table, "%u", known.n);
        table_add(table, "%.2f s", ns_to_s(known.median));
        table_add(table, "%.2f s", ns_to_s(known.worst));
        table_add(table, "%.2f s", ns_to_s(next.median));
        table_add(table, "%.2f s", ns_to_s(next.worst));
    }
    if (table != NULL) {
        table_print(table, out);
        table_close(table);
    }
    fprintf(out,
            "%zu faults in %.0f s; %" PRIu64
            " steps committed; goodput %.1f %% of the undisturbed rate, %.1f %% with "
            "%.1f s of detection taken out; %" PRIu64 " samples recomputed\n",
            report->faults.n, ns_to_s(report->length), report->steps, 100 * chaos_goodput(report, false),
            100 * chaos_goodput(report, true), ns_to_s(detection(report)), report->recomputed);
    if (report->ledger_read)
        fprintf(out, "ledger: %" PRIu64 " steps, %s\n", report->ledger_steps,
                report->ledger_exact ? "every sample exactly once" : "NOT EXACT");
    fprintf(out, "%s%s\n", report->violation[0] != '\0' ? "VIOLATION: " : "no violation", report->violation);
}
