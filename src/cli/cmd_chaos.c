/* Break a running job on purpose, and measure how it goes on. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/chaos.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/interrupt.h"
#include "cli/ledger.h"
#include "cli/watch.h"
#include "platform/os/os_time.h"

#define LOOK_PERIOD (50 * NS_PER_MS)
#define HANG_BOUND  (60 * NS_PER_S) /* without a committed step: the job hangs */
#define AWAY_BOUND  (60 * NS_PER_S) /* the manager does not answer */

typedef struct chaos {
    rpc_client_t *client;
    interrupt_t *interrupt;
    uint32_t kinds, next_kind;
    ns_t every, length, hold, quiet;
    rng_t rng;
    bool json;
    chaos_report_t report;
    ns_t start, asked_at, moved_at;
    Inspan__V1__JobInfo *job; /* newest; NULL: none yet */
    uint32_t members;         /* active ranks before the first fault */
    uint64_t first_step;      /* at the start of the time with faults */
} chaos_t;

static ns_t since(const chaos_t *chaos)
{
    const ns_t t = os_now() - chaos->start;
    return t > 0 ? t : 1;
}

static uint64_t step_of(const Inspan__V1__JobInfo *job)
{
    return job != NULL && job->progress != NULL ? job->progress->step : 0;
}

static uint32_t active_ranks(const Inspan__V1__JobInfo *job)
{
    uint32_t n = 0;
    for (size_t i = 0; i < job->n_ranks; i++) n += strcmp(job->ranks[i]->state, "running") == 0;
    return n;
}

static void violation(chaos_t *chaos, const char *text)
{
    if (chaos->report.violation[0] != '\0') return;
    snprintf(chaos->report.violation, sizeof chaos->report.violation, "%s", text);
}

static chaos_fault_t *newest_fault(chaos_t *chaos)
{
    return chaos->report.faults.n > 0 ? &chaos->report.faults.items[chaos->report.faults.n - 1] : NULL;
}

/* What was broken on purpose is not held against the node: it comes back at once, and never into quarantine.
 */
static void forgive(const chaos_t *chaos, const chaos_fault_t *fault)
{
    inspan_error_t err = {0};
    Inspan__V1__NodeRequest request = INSPAN__V1__NODE_REQUEST__INIT;
    if (fault->rank < 0) return;
    request.node = (char *)(uintptr_t)fault->node;
    client_free(
        client_call(chaos->client, "Cluster/Unban", &request.base, &inspan__v1__node__descriptor, &err));
}

static uint64_t recomputed_by(const Inspan__V1__JobInfo *job, uint32_t number)
{
    for (size_t i = 0; job != NULL && i < job->n_ranks; i++)
        if (job->ranks[i]->rank == number && job->ranks[i]->progress != NULL)
            return job->ranks[i]->progress->samples_recomputed;
    return 0;
}

/* Since the look before: who is lost takes its count along. */
static uint64_t newly_recomputed(const Inspan__V1__JobInfo *job, const Inspan__V1__JobInfo *before)
{
    uint64_t samples = 0;
    for (size_t i = 0; i < job->n_ranks; i++) {
        const uint32_t number = job->ranks[i]->rank;
        const uint64_t now = recomputed_by(job, number), then = recomputed_by(before, number);
        samples += now > then ? now - then : 0;
    }
    return samples;
}

/* A new look at the job: what does it say about the newest fault? */
static void note(chaos_t *chaos, const Inspan__V1__JobInfo *job)
{
    chaos_fault_t *fault = newest_fault(chaos);
    const Inspan__V1__JobInfo *before = chaos->job;
    if (fault == NULL || before == NULL) return;
    const bool moved = step_of(job) > step_of(before);
    /* A manager or an agent that is killed costs no view: the others need not know. */
    const bool knows = job->view > before->view || fault->kind == CHAOS_MANAGER || fault->kind == CHAOS_AGENT;
    if (fault->known == 0 && knows) {
        fault->known = since(chaos);
        forgive(chaos, fault);
    }
    if (fault->known > 0 && fault->committed == 0 && moved) fault->committed = since(chaos);
    if (fault->committed > 0 && fault->whole == 0 && active_ranks(job) >= chaos->members)
        fault->whole = since(chaos);
}

static inspan_status_t look(chaos_t *chaos, inspan_error_t *err)
{
    Inspan__V1__JobInfo *job = client_job(chaos->client, chaos->report.job, err);
    const ns_t now = os_now();
    if (job == NULL) {
        const bool known = err->status == INSPAN_NOT_FOUND || err->status == INSPAN_AUTH;
        if (known || now - chaos->asked_at > AWAY_BOUND) return err->status;
        return INSPAN_OK; /* it may be the manager that we killed */
    }
    chaos->asked_at = now;
    if (chaos->job == NULL || step_of(job) > step_of(chaos->job)) chaos->moved_at = now;
    note(chaos, job);
    if (chaos->job != NULL) chaos->report.recomputed += newly_recomputed(job, chaos->job);
    client_free(chaos->job);
    chaos->job = job;
    if (now - chaos->moved_at > HANG_BOUND) violation(chaos, "no step was committed for 60 s");
    return INSPAN_OK;
}

static void undo(chaos_t *chaos, bool all)
{
    inspan_error_t err = {0};
    for (size_t i = 0; i < chaos->report.faults.n; i++) {
        chaos_fault_t *fault = &chaos->report.faults.items[i];
        if (fault->undo_at == 0 || (!all && since(chaos) < fault->undo_at)) continue;
        fault->undo_at = 0;
        if (chaos_undo(fault, &err) != INSPAN_OK) fprintf(stderr, "inspan: %s\n", err.text);
    }
}

static void inject(chaos_t *chaos)
{
    inspan_error_t err = {0};
    chaos_fault_t fault;
    for (uint32_t tries = 0; tries < CHAOS_KINDS; tries++) { /* kinds in turn, so in equal parts */
        const chaos_kind_t kind = (chaos_kind_t)(chaos->next_kind++ % CHAOS_KINDS);
        if ((chaos->kinds & 1u << kind) == 0) continue;
        if (chaos_pick(kind, chaos->job, &chaos->rng, &fault, &err) != INSPAN_OK ||
            chaos_do(&fault, &err) != INSPAN_OK) {
            fprintf(stderr, "inspan: %s: %s\n", chaos_kind_text(kind), err.text);
            continue;
        }
        fault.at = since(chaos);
        if (kind == CHAOS_FREEZE || kind == CHAOS_LINK) fault.undo_at = fault.at + chaos->hold;
        if (!VEC_PUSH(&chaos->report.faults, fault)) violation(chaos, "no memory for the report");
        fprintf(stderr, "%7.1f s  step %-6llu %s%s%s\n", ns_to_s(fault.at),
                (unsigned long long)step_of(chaos->job), chaos_kind_text(kind),
                fault.rank >= 0 ? " of node " : "", fault.rank >= 0 ? fault.node : "");
        return;
    }
}

/* Look at the job for `length`; with faults when `active`. */
static inspan_status_t run(chaos_t *chaos, ns_t length, bool active, inspan_error_t *err)
{
    const ns_t begin = os_now();
    ns_t fault_at = begin + chaos->every / 2;
    inspan_status_t status = INSPAN_OK;
    while (status == INSPAN_OK && os_now() - begin < length &&
           interrupt_wait(chaos->interrupt, LOOK_PERIOD) == 0) {
        status = look(chaos, err);
        undo(chaos, false);
        if (status != INSPAN_OK || chaos->report.violation[0] != '\0') break;
        if (chaos->job != NULL && watch_has_ended(chaos->job)) break;
        if (!active || chaos->job == NULL || os_now() < fault_at) continue;
        const chaos_fault_t *last = newest_fault(chaos);
        if (last != NULL && last->committed == 0) continue; /* one at a time: its figures must be its own */
        inject(chaos);
        fault_at = os_now() + chaos->every;
    }
    return status;
}

static inspan_status_t measure(chaos_t *chaos, inspan_error_t *err)
{
    chaos->start = chaos->asked_at = chaos->moved_at = os_now();
    inspan_status_t status = look(chaos, err);
    if (status != INSPAN_OK || chaos->job == NULL) return status != INSPAN_OK ? status : err->status;
    if (watch_has_ended(chaos->job))
        return error_set(err, INSPAN_INVALID, "job %llu has ended: it cannot be disturbed any more",
                         (unsigned long long)chaos->report.job);
    const uint64_t quiet_first = step_of(chaos->job);
    const ns_t quiet_begin = os_now();
    status = run(chaos, chaos->quiet, false, err);
    if (status != INSPAN_OK) return status;
    chaos->report.quiet = os_now() - quiet_begin;
    chaos->report.quiet_steps = step_of(chaos->job) - quiet_first;
    chaos->members = active_ranks(chaos->job);
    chaos->first_step = step_of(chaos->job);
    chaos->start = os_now();
    status = run(chaos, chaos->length, true, err);
    chaos->report.length = since(chaos);
    chaos->report.steps = step_of(chaos->job) - chaos->first_step;
    if (strcmp(chaos->job->state, "failed") == 0) {
        char text[400];
        snprintf(text, sizeof text, "the job failed: %s", chaos->job->reason);
        violation(chaos, text);
    }
    return status;
}

static void check_ledger(chaos_t *chaos)
{
    inspan_error_t err = {0};
    ledger_t ledger;
    ledger_totals_t totals;
    inspan_status_t status = ledger_read(chaos->client, chaos->report.job, &ledger, &err);
    if (status == INSPAN_OK) {
        chaos->report.ledger_read = true;
        status = ledger_check(&ledger, &totals, &err);
        chaos->report.ledger_exact = status == INSPAN_OK;
        chaos->report.ledger_steps = totals.steps;
    }
    if (status != INSPAN_OK) violation(chaos, err.text);
    ledger_free(&ledger);
}

static int finish(chaos_t *chaos)
{
    undo(chaos, true);
    check_ledger(chaos);
    const int bad = chaos->report.violation[0] != '\0';
    if (!chaos->json) {
        chaos_show(stdout, &chaos->report);
        return bad ? CLI_EXIT_JOB : CLI_EXIT_OK;
    }
    char *text = NULL;
    json_t *object = chaos_json(&chaos->report);
    text = json_print(object, false);
    if (text != NULL) puts(text);
    free(text);
    json_free(object);
    return bad ? CLI_EXIT_JOB : CLI_EXIT_OK;
}

static inspan_status_t parse_time(const char *name, const char *text, ns_t *value, inspan_error_t *err)
{
    if (text == NULL || (units_parse_duration(text, value) == INSPAN_OK && *value > 0)) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "--%s: \"%.40s\" is no duration (30s, 5m)", name, text);
}

int cmd_chaos(int argc, char **argv)
{
    place_options_t place = {0};
    chaos_t chaos = {
        .every = 15 * NS_PER_S, .length = 120 * NS_PER_S, .hold = 10 * NS_PER_S, .quiet = 20 * NS_PER_S};
    const char *every = NULL, *length = NULL, *hold = NULL, *quiet = NULL, *kinds = NULL;
    uint64_t seed = 1;
    const cli_option_t options[] = {
        {.name = "every",
         .type = CLI_TEXT,
         .argument = "TIME",
         .help = "from fault to fault (15s)",
         .value = &every},
        {.name = "for", .type = CLI_TEXT, .argument = "TIME", .help = "how long (2m)", .value = &length},
        {.name = "quiet",
         .type = CLI_TEXT,
         .argument = "TIME",
         .help = "undisturbed time before, to compare with (20s)",
         .value = &quiet},
        {.name = "hold",
         .type = CLI_TEXT,
         .argument = "TIME",
         .help = "how long a worker is frozen, a link down (10s)",
         .value = &hold},
        {.name = "kinds",
         .type = CLI_TEXT,
         .argument = "K,K",
         .help = "of worker, agent, manager, freeze, link (all)",
         .value = &kinds},
        {.name = "seed",
         .type = CLI_COUNT,
         .argument = "N",
         .help = "of the choice of victims (1)",
         .value = &seed},
        OPTION_MANAGER(&place),
        OPTION_TOKEN(&place),
        OPTION_DIR(&place),
        OPTION_JSON(&chaos.json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    interrupt_t interrupt;
    inspan_status_t status = client_parse_job(operands.items[0], &chaos.report.job, &err);
    if (status == INSPAN_OK) status = parse_time("every", every, &chaos.every, &err);
    if (status == INSPAN_OK) status = parse_time("for", length, &chaos.length, &err);
    if (status == INSPAN_OK) status = parse_time("hold", hold, &chaos.hold, &err);
    if (status == INSPAN_OK) status = parse_time("quiet", quiet, &chaos.quiet, &err);
    if (status == INSPAN_OK) status = chaos_parse_kinds(kinds, &chaos.kinds, &err);
    if (status == INSPAN_OK && !interrupt_open(&interrupt))
        status = error_set(&err, INSPAN_IO, "no descriptor left");
    if (status != INSPAN_OK) return cli_fail(&err, chaos.json);
    chaos.interrupt = &interrupt;
    rng_seed(&chaos.rng, seed, 0);
    status = client_open(&place, &chaos.client, &err);
    if (status == INSPAN_OK) status = measure(&chaos, &err);
    code = status == INSPAN_OK ? finish(&chaos) : cli_fail(&err, chaos.json);
    undo(&chaos, true);
    if (chaos.client != NULL) rpc_client_close(chaos.client);
    client_free(chaos.job);
    vec_free(&chaos.report.faults);
    interrupt_close(&interrupt);
    return code;
}
