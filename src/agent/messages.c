/* Between the core's structures and the protobuf messages of the control plane. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/internal.h"
#include "base/log.h"
#include "platform/os/os_time.h"

/* All that a WorkerReport points to, in one place; valid while the worker is. */
typedef struct report {
    Inspan__V1__WorkerReport message;
    Inspan__V1__Progress progress;
    Inspan__V1__Failure failure, blame;
    Inspan__V1__ResultFile results[AGENT_RESULTS];
    Inspan__V1__ResultFile *result_list[AGENT_RESULTS];
} report_t;

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)text; /* protobuf-c's strings are not const; packing only reads them */
}

static void fill_progress(const inspan_progress_t *from, Inspan__V1__Progress *to)
{
    inspan__v1__progress__init(to);
    to->step = from->step;
    to->steps = from->steps;
    to->samples = from->samples;
    to->loss = from->loss;
    to->validation_loss = from->validation_loss;
    to->samples_per_s = from->samples_per_s;
    to->compute_s = from->compute_s;
    to->exposed_comm_s = from->exposed_comm_s;
    to->input_s = from->input_s;
    to->bytes_sent = from->bytes_sent;
    to->param_hash = from->param_hash;
    to->pace_sample_ns = from->pace_sample_ns;
    to->pace_step_ns = from->pace_step_ns;
    to->share_samples = from->share_samples;
    to->run_samples = from->run_samples;
    to->samples_recomputed = from->samples_recomputed;
}

static void fill_failure(const inspan_cause_t *cause, const char *text, Inspan__V1__Failure *to)
{
    inspan__v1__failure__init(to);
    to->status = (uint32_t)cause->status;
    to->rank = cause->rank;
    to->node = text_of(cause->node);
    to->address = text_of(cause->address);
    to->operation = text_of(cause->operation);
    to->waited_ns = cause->waited_ns;
    to->noticed_by = cause->noticed_by;
    to->text = text_of(text[0] != '\0' ? text : cause->text);
}

static void fill_report(const agent_worker_t *worker, report_t *report)
{
    Inspan__V1__WorkerReport *message = &report->message;
    inspan__v1__worker_report__init(message);
    message->job_id = worker->job;
    message->rank = worker->rank;
    message->state = (Inspan__V1__WorkerState)worker->state;
    message->pid = worker->pid;
    message->data_port = worker->port;
    message->incarnation = worker->incarnation;
    message->view = worker->open_view;
    message->full = worker->full;
    if (worker->state == AGENT_STATE_LEFT) message->left_view = worker->left_view;
    if (worker->has_blame) {
        fill_failure(&worker->blame.cause, "", &report->blame);
        message->blame = &report->blame;
        message->blame_view = worker->blame.view;
    }
    message->exit_code = worker->exit_code > 0 ? worker->exit_code : 0;
    message->exit_signal = worker->exit_signal;
    if (worker->has_progress) {
        fill_progress(&worker->progress, &report->progress);
        message->progress = &report->progress;
    }
    if (worker->failed) {
        fill_failure(&worker->cause, worker->text, &report->failure);
        message->failure = &report->failure;
    }
    if (worker->state == AGENT_STATE_DONE && worker->summary != NULL) message->summary_json = worker->summary;
    for (uint32_t i = 0; i < worker->n_results && i < AGENT_RESULTS; i++) {
        inspan__v1__result_file__init(&report->results[i]);
        report->results[i].name = worker->results[i].name;
        report->results[i].hash = worker->results[i].hash;
        report->results[i].bytes = worker->results[i].bytes;
        report->result_list[i] = &report->results[i];
        message->n_results = i + 1;
    }
    message->results = report->result_list;
}

void messages_send_report(agent_t *agent, const agent_worker_t *worker)
{
    if (!agent->registered) { /* the registration will carry it; or it is on its way already */
        agent->reports_due = true;
        return;
    }
    report_t report;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    fill_report(worker, &report);
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_WORKER;
    up.worker = &report.message;
    agent_send(agent, &up.base);
}

void messages_send_due_reports(agent_t *agent)
{
    if (!agent->reports_due) return;
    agent->reports_due = false;
    for (agent_worker_t *worker = NULL; (worker = agent_core_each(agent->core, worker)) != NULL;)
        if (worker->state != 0) messages_send_report(agent, worker);
}

void messages_send_artifact(agent_t *agent, const agent_worker_t *worker, const agent_artifact_t *artifact)
{
    Inspan__V1__Artifact message = INSPAN__V1__ARTIFACT__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__ResultFile files[AGENT_RESULTS];
    Inspan__V1__ResultFile *list[AGENT_RESULTS];
    if (!agent->registered) return; /* again when it is */
    for (uint32_t i = 0; i < artifact->n_files && i < AGENT_RESULTS; i++) {
        inspan__v1__result_file__init(&files[i]);
        files[i].name = artifact->files[i].name;
        files[i].hash = artifact->files[i].hash;
        files[i].bytes = artifact->files[i].bytes;
        list[i] = &files[i];
        message.n_files = i + 1;
    }
    message.files = list;
    message.job_id = worker->job;
    message.rank = worker->rank;
    message.view = artifact->saved.view;
    message.step = artifact->saved.step;
    message.result = artifact->saved.result;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_ARTIFACT;
    up.artifact = &message;
    agent_send(agent, &up.base);
}

void messages_send_note(agent_t *agent, const agent_worker_t *worker, const char *text)
{
    if (!agent->registered) return;
    Inspan__V1__Note message = INSPAN__V1__NOTE__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    message.job_id = worker->job;
    message.rank = worker->rank;
    message.text = (char *)(uintptr_t)text;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_NOTE;
    up.note = &message;
    agent_send(agent, &up.base);
}

void messages_send_verdict(agent_t *agent, const agent_worker_t *worker, const local_verdict_t *verdict)
{
    static_assert((int)LOCAL_CAUSE_INPUT == (int)INSPAN__V1__VERDICT_CAUSE__CAUSE_INPUT,
                  "the numbers of local_cause_t");
    if (!agent->registered) return;
    Inspan__V1__Verdict message = INSPAN__V1__VERDICT__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    message.job_id = worker->job;
    message.rank = verdict->about;
    message.said_by = worker->rank;
    message.step = verdict->step;
    message.started_step = verdict->started;
    message.cause = (Inspan__V1__VerdictCause)verdict->cause;
    message.factor = verdict->factor;
    message.share_before = verdict->share_before;
    message.share_after = verdict->share_after;
    message.leave = verdict->leave;
    message.evidence = text_of(verdict->evidence);
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_VERDICT;
    up.verdict = &message;
    agent_send(agent, &up.base);
}

typedef struct span_message { /* too large for a stack frame */
    Inspan__V1__LedgerSpan span;
    Inspan__V1__LedgerShare shares[LOCAL_SHARES];
    Inspan__V1__LedgerShare *list[LOCAL_SHARES];
} span_message_t;

void messages_send_ledger(agent_t *agent, const agent_worker_t *worker, const local_ledger_t *ledger)
{
    if (!agent->registered) return;
    span_message_t *parts = malloc(sizeof *parts);
    if (parts == NULL) {
        log_error("job %llu: no memory for its ledger from step %llu", (unsigned long long)worker->job,
                  (unsigned long long)ledger->first_step);
        return;
    }
    Inspan__V1__LedgerSpans message = INSPAN__V1__LEDGER_SPANS__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    Inspan__V1__LedgerSpan *span = &parts->span;
    inspan__v1__ledger_span__init(span);
    span->first_step = ledger->first_step;
    span->last_step = ledger->last_step;
    span->view = ledger->view;
    for (uint32_t i = 0; i < ledger->n; i++) {
        inspan__v1__ledger_share__init(&parts->shares[i]);
        parts->shares[i].rank = ledger->shares[i].rank;
        parts->shares[i].first = ledger->shares[i].first;
        parts->shares[i].n = ledger->shares[i].n;
        parts->list[i] = &parts->shares[i];
    }
    span->n_shares = ledger->n;
    span->shares = parts->list;
    message.job_id = worker->job;
    message.seed = ledger->seed;
    message.batch = ledger->batch;
    message.n_spans = 1;
    message.spans = &span;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_LEDGER;
    up.ledger = &message;
    agent_send(agent, &up.base);
    free(parts);
}

/* ---- Registration ---------------------------------------------------------------------------- */

typedef struct inventory_message {
    Inspan__V1__Inventory message;
    char *sets[INVENTORY_SETS];
    Inspan__V1__Gpu gpus[INVENTORY_GPUS];
    Inspan__V1__Gpu *gpu_list[INVENTORY_GPUS];
    Inspan__V1__Interface interfaces[INVENTORY_INTERFACES];
    Inspan__V1__Interface *interface_list[INVENTORY_INTERFACES];
    char *addresses[INVENTORY_INTERFACES][INVENTORY_ADDRESSES];
} inventory_message_t;

static void fill_devices(inventory_t *from, inventory_message_t *to)
{
    for (uint32_t i = 0; i < from->n_gpus; i++) {
        inspan__v1__gpu__init(&to->gpus[i]);
        to->gpus[i].name = from->gpus[i].name;
        to->gpus[i].driver = from->gpus[i].driver;
        to->gpus[i].memory_bytes = from->gpus[i].memory_bytes;
        to->gpu_list[i] = &to->gpus[i];
    }
    to->message.n_gpus = from->n_gpus;
    to->message.gpus = to->gpu_list;
    for (uint32_t i = 0; i < from->n_interfaces; i++) {
        inventory_interface_t *interface = &from->interfaces[i];
        inspan__v1__interface__init(&to->interfaces[i]);
        for (uint32_t k = 0; k < interface->n_addresses; k++) to->addresses[i][k] = interface->addresses[k];
        to->interfaces[i].name = interface->name;
        to->interfaces[i].n_addresses = interface->n_addresses;
        to->interfaces[i].addresses = to->addresses[i];
        to->interfaces[i].speed_bits_per_s = interface->speed_bits_per_s;
        to->interfaces[i].wireless = interface->wireless;
        to->interface_list[i] = &to->interfaces[i];
    }
    to->message.n_interfaces = from->n_interfaces;
    to->message.interfaces = to->interface_list;
}

static void fill_inventory(inventory_t *from, inventory_message_t *to)
{
    Inspan__V1__Inventory *message = &to->message;
    inspan__v1__inventory__init(message);
    message->hostname = from->hostname;
    message->machine_id = from->machine_id;
    message->boot_id = from->boot_id;
    message->os = from->os;
    message->cpu_model = from->cpu_model;
    message->architecture = from->architecture;
    message->cores = from->cores;
    message->usable_cores = from->usable_cores;
    for (uint32_t i = 0; i < from->n_instruction_sets; i++) to->sets[i] = from->instruction_sets[i];
    message->n_instruction_sets = from->n_instruction_sets;
    message->instruction_sets = to->sets;
    message->memory_bytes = from->memory_bytes;
    message->memory_free_bytes = from->memory_free_bytes;
    message->disk_free_bytes = from->disk_free_bytes;
    message->has_battery = from->has_battery;
    message->on_battery = from->on_battery;
    message->battery_share = from->battery_share;
    message->version = text_of(INSPAN_VERSION_TEXT);
    fill_devices(from, to);
}

/* NULL: none yet. */
static Inspan__V1__Vitals *fill_vitals(const agent_t *agent, Inspan__V1__Vitals *message)
{
    const vitals_t *vitals = &agent->sight.vitals;
    if (!agent->has_sight) return NULL;
    inspan__v1__vitals__init(message);
    message->cores = vitals->cores;
    message->throttled = vitals->throttled;
    message->clock_mhz = vitals->clock_mhz;
    message->clock_best_mhz = vitals->clock_best_mhz;
    message->temperature_c = vitals->temperature_c;
    message->others_cores = vitals->others_cores;
    message->swap_bytes_per_s = vitals->swap_bytes_per_s;
    message->on_battery = vitals->on_battery;
    message->owner_active = vitals->owner_active;
    message->allowed = agent->sight.allowed;
    message->limit = text_of(owner_limit_text(agent->sight.limit));
    return message;
}

typedef struct register_parts { /* too large for a stack frame */
    inventory_message_t inventory;
    Inspan__V1__Vitals vitals;
    report_t reports[AGENT_WORKERS];
    Inspan__V1__WorkerReport *list[AGENT_WORKERS];
} register_parts_t;

void messages_send_register(agent_t *agent)
{
    register_parts_t *parts = calloc(1, sizeof *parts);
    if (parts == NULL) return; /* no answer will come: the session is tried again */
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    inventory_read("", agent->folder, &agent->inventory);
    if (agent->options->cores > 0) agent->inventory.usable_cores = agent->options->cores;
    fill_inventory(&agent->inventory, &parts->inventory);
    message.node_id = agent->node_id;
    /* a wish of the user's, or what the manager said before; else the manager's choice */
    if (agent->options->name != NULL || agent->was_registered) message.name = agent->name;
    message.address = agent->address;
    message.first_port = agent->options->first_port;
    message.last_port = agent->options->last_port;
    message.inventory = &parts->inventory.message;
    message.vitals = fill_vitals(agent, &parts->vitals);
    message.incarnation = agent->incarnation;
    message.wall_ns = os_wall_now();
    message.protocol_major = AGENT_PROTOCOL_MAJOR;
    message.protocol_minor = AGENT_PROTOCOL_MINOR;
    for (agent_worker_t *worker = NULL; (worker = agent_core_each(agent->core, worker)) != NULL;) {
        if (worker->state == 0) continue; /* still being prepared: the manager knows nothing newer */
        fill_report(worker, &parts->reports[message.n_workers]);
        parts->list[message.n_workers] = &parts->reports[message.n_workers].message;
        message.n_workers++;
    }
    message.workers = parts->list;
    agent->reports_due = false;
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE;
    up.register_node = &message;
    agent_send(agent, &up.base);
    free(parts);
}

void messages_send_heartbeat(agent_t *agent)
{
    const vitals_t *vitals = &agent->sight.vitals;
    Inspan__V1__Vitals message;
    Inspan__V1__Heartbeat heartbeat = INSPAN__V1__HEARTBEAT__INIT;
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    heartbeat.sequence = ++agent->beats;
    heartbeat.load = vitals->load;
    heartbeat.memory_free_bytes = vitals->memory_free_bytes;
    heartbeat.cpu_mhz = vitals->clock_mhz;
    heartbeat.temperature_c = vitals->temperature_c;
    heartbeat.on_battery = vitals->on_battery;
    heartbeat.vitals = fill_vitals(agent, &message);
    up.kind_case = INSPAN__V1__AGENT_UP__KIND_HEARTBEAT;
    up.heartbeat = &heartbeat;
    agent_send(agent, &up.base);
}

/* ---- Orders ---------------------------------------------------------------------------------- */

void messages_take_view(agent_t *agent, const Inspan__V1__View *message)
{
    local_view_t view = {
        .view = message->view, .world = (uint32_t)message->n_members, .first = message->first};
    bool good = message->n_members > 0 && message->n_members <= LOCAL_WORLD_MAX &&
                message->key.len == sizeof view.key;
    bool member = false;
    view.members = good ? calloc(message->n_members, sizeof *view.members) : NULL;
    for (size_t i = 0; view.members != NULL && i < message->n_members; i++) {
        const Inspan__V1__Member *from = message->members[i];
        if (from->port > UINT16_MAX || (i > 0 && from->rank <= message->members[i - 1]->rank)) {
            good = false;
            break;
        }
        inspan_member_t *to = &view.members[i];
        if (from->rank == message->rank) {
            member = true;
            view.rank = (uint32_t)i;
        }
        to->number = from->rank;
        snprintf(to->node, sizeof to->node, "%s", from->node);
        snprintf(to->address, sizeof to->address, "%s", from->address);
        to->port = (uint16_t)from->port;
        to->incarnation = from->incarnation;
        to->pace_sample_ns = from->pace_sample_ns;
        to->pace_step_ns = from->pace_step_ns;
    }
    if (good && member && view.members != NULL) {
        memcpy(view.key, message->key.data, sizeof view.key);
        agent_core_view(agent->core, os_now(), message->job_id, message->rank, &view);
    } else {
        log_error("the manager sent a view of job %llu that cannot be right",
                  (unsigned long long)message->job_id);
        agent_core_stop(agent->core, os_now(), message->job_id, message->rank, true,
                        "the manager sent a view that cannot be right");
    }
    free(view.members);
}

void messages_take_lost(agent_t *agent, const Inspan__V1__MemberLost *message)
{
    inspan_cause_t cause = {.status = INSPAN_PEER_LOST, .rank = -1, .noticed_by = -1};
    const Inspan__V1__Failure *failure = message->failure;
    if (failure != NULL) {
        if (failure->status > INSPAN_OK && failure->status <= INSPAN_INTERNAL)
            cause.status = (inspan_status_t)failure->status;
        cause.rank = failure->rank;
        cause.noticed_by = failure->noticed_by;
        cause.waited_ns = failure->waited_ns;
        snprintf(cause.node, sizeof cause.node, "%s", failure->node);
        snprintf(cause.address, sizeof cause.address, "%s", failure->address);
        snprintf(cause.operation, sizeof cause.operation, "%s", failure->operation);
        snprintf(cause.text, sizeof cause.text, "%s", failure->text);
    }
    agent_core_lost(agent->core, os_now(), message->job_id, &cause);
}

void messages_take_artifact(agent_t *agent, const Inspan__V1__ArtifactAnswer *message)
{
    const inspan_status_t status =
        message->status <= INSPAN_INTERNAL ? (inspan_status_t)message->status : INSPAN_INTERNAL;
    agent_core_registered(agent->core, os_now(), message->job_id, message->rank, message->step,
                          message->result, status, message->text);
}
