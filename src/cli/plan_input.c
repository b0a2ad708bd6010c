#include "cli/plan_input.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "platform/host/inventory.h"
#include "platform/host/lab.h"

/* A bit of a link's rate carries so many bytes of payload in Ethernet frames. */
#define PAYLOAD (PLAN_CABLE_BYTES_PER_S / 1e9)
/* Wi-Fi of a home, its air shared by all: what is left for one. */
#define WIRELESS_BITS_PER_S 100e6
/* Processor time of one core for a byte that passes a socket, added or copied on the way (measured between
 * shaped namespaces, kernel included). */
#define BYTE_S 0.4e-9
/* Memory bandwidth that one core gets for an update, and how many cores it takes to have all there is. */
#define UPDATE_BYTES_PER_S 6e9
#define UPDATE_CORES       2.0
/* Of a step, where only its length is known. */
#define UPDATE_MOST 0.2
/* Where the processor's name does not say. */
#define CLOCK_HZ 2.8e9
/* The vote's round on a LAN. */
#define COMMIT_S 0.5e-3
/* The same where a node has less than one core: it has used up what its control group allows, and waits for
 * the next period. */
#define COMMIT_THROTTLED_S 10e-3

/* ---- The job --------------------------------------------------------------------------------- */

/* Products and sums of forward and backward over one sample: 2 for each weight that it meets forward, 4
 * backward (Kaplan et al. 2020, section 2.1); of a GPT also the attention's own. */
static double flops_of(const nn_model_config_t *m)
{
    const double dim = m->dim, layers = m->layers, context = m->context, filters = m->filters;
    const double pixels = (double)m->height * m->width;
    switch (m->kind) {
    case NN_GPT:
        return 6 * context * (12 * layers * dim * dim + m->vocabulary * dim) +
               12 * layers * context * context * dim;
    case NN_MLP: return 6 * (m->inputs * dim + (layers - 1) * dim * dim + dim * m->classes);
    case NN_CONV:
        return 6 * (9 * m->channels * filters * pixels + 18 * filters * filters * pixels / 4 +
                    2 * filters * pixels / 16 * m->classes);
    }
    return 0;
}

/* As the workers choose it: ddp/layout.h. */
static uint64_t bucket_bytes_of(uint64_t asked, uint64_t gradient_bytes)
{
    const uint64_t least = 1000000, most = 25000000, chosen = gradient_bytes / 32;
    if (asked > 0) return asked;
    return chosen < least ? least : chosen > most ? most : chosen;
}

void plan_input_wire(plan_input_t *input, inspan_wire_t wire)
{
    const uint64_t bucket = bucket_bytes_of(input->bucket_bytes, input->gradient_bytes);
    input->wire = wire;
    input->plan.gradient_bytes = comm_wire_bytes(wire, input->gradient_bytes / sizeof(float));
    input->plan.bucket_bytes = comm_wire_bytes(wire, bucket / sizeof(float));
}

inspan_status_t plan_input_job(plan_input_t *input, inspan_error_t *err)
{
    const job_config_t *job = &input->job;
    plan_job_t *plan = &input->plan;
    uint64_t activations = 0;
    inspan_status_t status = job_bucket_bytes(job, &input->bucket_bytes, err);
    if (status == INSPAN_OK)
        status = nn_model_memory(&input->model, 1, &input->gradient_bytes, &activations, err);
    if (status == INSPAN_OK)
        status = job_memory(job, &input->model, 0, input->data_bytes, &plan->memory_bytes, err);
    if (status != INSPAN_OK) return status;
    if (job->nodes.memory > plan->memory_bytes) plan->memory_bytes = job->nodes.memory;
    plan_input_wire(input, job_wire(job));
    plan->batch = job->train.global_batch;
    plan->leases = plan->batch < PLAN_LEASES_MAX ? (uint32_t)plan->batch : PLAN_LEASES_MAX;
    plan->least = job->nodes.min;
    plan->most = job->nodes.max;
    plan->commit_s = COMMIT_S;
    job_model_key(job, &input->model, input->key);
    input->sample_flops = flops_of(&input->model);
    /* Gradient, weight and moments are read, weight and moments written. */
    const bool adamw = strcmp(job->train.optimizer, "adamw") == 0;
    input->update_bytes = (double)input->gradient_bytes * (adamw ? 7 : job->train.momentum > 0 ? 5 : 3);
    return INSPAN_OK;
}

uint32_t plan_input_micro_batch(const plan_input_t *input, uint64_t memory, uint32_t wanted)
{
    for (; wanted > 1 && memory > 0; wanted /= 2) {
        uint64_t weights = 0, activations = 0, all = 0;
        if (nn_model_memory(&input->model, wanted, &weights, &activations, NULL) != INSPAN_OK ||
            job_memory(&input->job, &input->model, wanted, input->data_bytes, &all, NULL) != INSPAN_OK ||
            (activations <= memory / 2 && all <= memory))
            break;
    }
    return wanted;
}

static uint32_t micro_batch_of(const plan_input_t *input, uint64_t memory)
{
    const job_config_t *job = &input->job;
    const uint32_t wanted = job_micro_batch(job, job->train.global_batch);
    return job->train.micro_batch > 0 ? wanted : plan_input_micro_batch(input, memory, wanted);
}

/* ---- Machines -------------------------------------------------------------------------------- */

static bool has_set(const Inspan__V1__Inventory *inventory, const char *name)
{
    for (size_t i = 0; i < inventory->n_instruction_sets; i++)
        if (strcmp(inventory->instruction_sets[i], name) == 0) return true;
    return false;
}

/* What a core does in training per cycle: from the vectors' width, about half of what it could. */
static double flops_per_cycle(const Inspan__V1__Inventory *inventory)
{
    if (has_set(inventory, "avx512f")) return 30;
    if (has_set(inventory, "avx2")) return 16;
    if (has_set(inventory, "asimd") || has_set(inventory, "neon")) return 8;
    return 4;
}

/* "Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz" */
static double clock_of(const char *cpu_model)
{
    const char *at = strchr(cpu_model, '@');
    const double gigahertz = at != NULL ? strtod(at + 1, NULL) : 0;
    return gigahertz > 0.2 && gigahertz < 10 ? gigahertz * 1e9 : CLOCK_HZ;
}

static void guess_speed(plan_input_t *input, uint32_t i)
{
    plan_machine_t *machine = &input->machines[i];
    plan_node_t *node = &input->nodes[i];
    node->sample_s = input->sample_flops / (machine->cores * machine->clock_hz * machine->flops_per_cycle);
    node->step_s = input->update_bytes / (UPDATE_BYTES_PER_S * fmin(machine->cores, UPDATE_CORES));
    node->byte_s = BYTE_S / machine->cores;
    node->micro_batch = micro_batch_of(input, node->memory_bytes);
    machine->speed_from = PLAN_SPEED_GUESS;
}

static void set_link(plan_input_t *input, uint32_t i, plan_link_from_t from, double up, double down)
{
    input->nodes[i].up_bytes_per_s = up > 0 ? up * PAYLOAD : INFINITY;
    input->nodes[i].down_bytes_per_s = down > 0 ? down * PAYLOAD : INFINITY;
    input->machines[i].link_from = from;
    input->machines[i].link_bits_per_s = fmin(up, down);
}

/* The interface that has the address under which the others reach it. */
static void find_link(plan_input_t *input, uint32_t i, const Inspan__V1__Node *from)
{
    set_link(input, i, PLAN_LINK_UNKNOWN, 0, 0);
    for (size_t k = 0; k < from->inventory->n_interfaces; k++) {
        const Inspan__V1__Interface *interface = from->inventory->interfaces[k];
        for (size_t a = 0; a < interface->n_addresses; a++) {
            if (strcmp(interface->addresses[a], from->address) != 0) continue;
            const double speed = (double)interface->speed_bits_per_s;
            if (speed > 0)
                set_link(input, i, PLAN_LINK_INTERFACE, speed, speed);
            else if (interface->wireless)
                set_link(input, i, PLAN_LINK_GUESS, WIRELESS_BITS_PER_S, WIRELESS_BITS_PER_S);
            return;
        }
    }
}

static plan_machine_t *new_machine(plan_input_t *input, const char *name)
{
    if (input->n == PLAN_NODES_MAX) {
        input->unused++;
        return NULL;
    }
    plan_machine_t *machine = &input->machines[input->n];
    memset(machine, 0, sizeof *machine);
    memset(&input->nodes[input->n], 0, sizeof input->nodes[0]);
    snprintf(machine->name, sizeof machine->name, "%s", name);
    machine->allowed = 1;
    input->n++;
    return machine;
}

static void add_node(plan_input_t *input, const Inspan__V1__Node *from)
{
    plan_machine_t *machine = new_machine(input, from->name);
    if (machine == NULL) return;
    const uint32_t i = input->n - 1;
    snprintf(machine->node_id, sizeof machine->node_id, "%s", from->node_id);
    snprintf(machine->boot_id, sizeof machine->boot_id, "%s", from->inventory->boot_id);
    const Inspan__V1__Vitals *vitals = from->vitals;
    machine->cores = from->inventory->usable_cores > 0 ? from->inventory->usable_cores : 1;
    machine->clock_hz = clock_of(from->inventory->cpu_model);
    if (vitals != NULL) { /* newer, and better */
        if (vitals->cores > 0) machine->cores = vitals->cores;
        if (vitals->clock_best_mhz > 0) machine->clock_hz = vitals->clock_best_mhz * 1e6;
        if (vitals->allowed < 1) machine->allowed = vitals->allowed;
    }
    machine->flops_per_cycle = flops_per_cycle(from->inventory);
    if (machine->cores < 1) input->plan.commit_s = COMMIT_THROTTLED_S;
    input->nodes[i].memory_bytes = from->inventory->memory_bytes;
    find_link(input, i, from);
    guess_speed(input, i);
}

void plan_input_nodes(plan_input_t *input, const Inspan__V1__NodeList *list)
{
    static const char *const usable[] = {"ready", "busy", "cooling"};
    for (size_t i = 0; i < list->n_nodes; i++) {
        bool is_usable = false;
        for (size_t k = 0; k < sizeof usable / sizeof usable[0]; k++)
            is_usable |= strcmp(list->nodes[i]->state, usable[k]) == 0;
        const Inspan__V1__Vitals *vitals = list->nodes[i]->vitals;
        is_usable &= vitals == NULL || vitals->allowed > 0; /* else its owner keeps it */
        if (is_usable && list->nodes[i]->inventory != NULL)
            add_node(input, list->nodes[i]);
        else
            input->unused++;
    }
}

void plan_input_set_speed(plan_input_t *input, uint32_t i, plan_speed_from_t from, double sample_s,
                          double step_s)
{
    if (from < input->machines[i].speed_from || !(sample_s > 0) || !isfinite(sample_s)) return;
    input->machines[i].speed_from = from;
    input->nodes[i].sample_s = sample_s;
    if (step_s >= 0 && isfinite(step_s)) input->nodes[i].step_s = step_s;
}

/* Kept for each number of cores that a node had: what is near to what it has now counts, the newest of it; of
 * other numbers the nearest, in proportion. */
void plan_input_registry(plan_input_t *input, const Inspan__V1__SpeedList *list)
{
    for (uint32_t i = 0; i < input->n; i++) {
        const plan_machine_t *machine = &input->machines[i];
        const Inspan__V1__Speed *best = NULL;
        double best_distance = INFINITY;
        for (size_t k = 0; k < list->n_speeds; k++) {
            const Inspan__V1__Speed *speed = list->speeds[k];
            if (strcmp(speed->node_id, machine->node_id) != 0 || strcmp(speed->model_key, input->key) != 0)
                continue;
            const double distance = speed->cores > 0 ? fabs(log(speed->cores / machine->cores)) : 0;
            if (distance > best_distance - 0.05) continue;
            best = speed;
            best_distance = distance;
        }
        if (best == NULL || best->sample_ns == 0) continue;
        const double factor = best->cores > 0 ? best->cores / machine->cores : 1;
        plan_input_set_speed(input, i, PLAN_SPEED_REGISTRY, (double)best->sample_ns * 1e-9 * factor,
                             (double)best->step_ns * 1e-9 * factor);
    }
}

/* The pace of now, or, of a worker that does not tell it, the mean since it began, updates included. */
static void take_pace(plan_input_t *input, uint32_t i, const Inspan__V1__Progress *progress)
{
    if (progress->pace_sample_ns > 0)
        plan_input_set_speed(input, i, PLAN_SPEED_RUN, (double)progress->pace_sample_ns * 1e-9,
                             (double)progress->pace_step_ns * 1e-9);
    else if (progress->samples > 0)
        plan_input_set_speed(input, i, PLAN_SPEED_RUN, progress->compute_s / (double)progress->samples, 0);
}

void plan_input_run(plan_input_t *input, const Inspan__V1__JobInfo *job)
{
    for (size_t r = 0; r < job->n_ranks; r++) {
        const Inspan__V1__Rank *rank = job->ranks[r];
        const Inspan__V1__Progress *progress = rank->progress;
        if (strcmp(rank->state, "running") != 0) continue;
        for (uint32_t i = 0; i < input->n; i++) {
            if (strcmp(input->machines[i].node_id, rank->node_id) != 0) continue;
            input->machines[i].member = true;
            if (progress != NULL) take_pace(input, i, progress);
        }
    }
}

uint32_t plan_input_own(const plan_input_t *input)
{
    inventory_t here;
    uint32_t own = PLAN_NONE;
    inventory_read("", "/", &here);
    for (uint32_t i = 0; i < input->n && here.boot_id[0] != '\0'; i++) {
        if (strcmp(input->machines[i].boot_id, here.boot_id) != 0) continue;
        if (own != PLAN_NONE) return PLAN_NONE;
        own = i;
    }
    return own;
}

/* ---- Options --------------------------------------------------------------------------------- */

/* "NODE=VALUE" cut in two; the value, or NULL. */
static const char *cut(const char *text, char name[PLAN_NAME_MAX])
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || (size_t)(equals - text) >= PLAN_NAME_MAX) return NULL;
    snprintf(name, PLAN_NAME_MAX, "%.*s", (int)(equals - text), text);
    return equals + 1;
}

static uint32_t find_machine(const plan_input_t *input, const char *name)
{
    for (uint32_t i = 0; i < input->n; i++)
        if (strcmp(input->machines[i].name, name) == 0) return i;
    return PLAN_NONE;
}

inspan_status_t plan_input_links(plan_input_t *input, const cli_list_t *links, inspan_error_t *err)
{
    for (uint32_t k = 0; k < links->n; k++) {
        char name[PLAN_NAME_MAX];
        lab_link_t link;
        const char *value = cut(links->items[k], name);
        if (value == NULL || strchr(value, ',') != NULL)
            return error_set(err, INSPAN_INVALID, "--link %.80s: expected NODE=RATE as in laptop=100mbit",
                             links->items[k]);
        const uint32_t machine = find_machine(input, name);
        if (machine == PLAN_NONE)
            return error_set(err, INSPAN_NOT_FOUND, "--link %.80s: no usable node has the name %s",
                             links->items[k], name);
        if (lab_parse_links(value, 1, &link, err) != INSPAN_OK)
            return error_set(err, INSPAN_INVALID,
                             "--link %.80s: expected a rate as 1gbit, or up and down as 100mbit/400mbit",
                             links->items[k]);
        set_link(input, machine, PLAN_LINK_OPTION, (double)link.up_bits_per_s, (double)link.down_bits_per_s);
    }
    return INSPAN_OK;
}

/* One that nobody has yet: a usual desktop computer but for its speed. */
static uint32_t imagine(plan_input_t *input, const char *name)
{
    plan_machine_t *machine = new_machine(input, name);
    if (machine == NULL) return PLAN_NONE;
    const uint32_t i = input->n - 1;
    machine->cores = 4;
    machine->clock_hz = CLOCK_HZ;
    machine->flops_per_cycle = 16;
    set_link(input, i, PLAN_LINK_UNKNOWN, 0, 0);
    guess_speed(input, i);
    return i;
}

inspan_status_t plan_input_speeds(plan_input_t *input, const cli_list_t *speeds, inspan_error_t *err)
{
    for (uint32_t k = 0; k < speeds->n; k++) {
        char name[PLAN_NAME_MAX], *end = NULL;
        const char *value = cut(speeds->items[k], name);
        const double speed = value != NULL ? strtod(value, &end) : 0;
        if (value == NULL || end == value || *end != '\0' || !(speed > 1e-6 && speed < 1e12))
            return error_set(err, INSPAN_INVALID,
                             "--speed %.80s: expected NODE=SAMPLES_PER_SECOND as in laptop=12.5",
                             speeds->items[k]);
        uint32_t machine = find_machine(input, name);
        if (machine == PLAN_NONE) machine = imagine(input, name);
        if (machine == PLAN_NONE)
            return error_set(err, INSPAN_LIMIT, "--speed: at most %d machines", PLAN_NODES_MAX);
        /* Alone, the updates included: of a step of the job, so much at most. */
        const double alone_s = (double)input->plan.batch / speed;
        const double step_s = fmin(input->nodes[machine].step_s, UPDATE_MOST * alone_s);
        plan_input_set_speed(input, machine, PLAN_SPEED_OPTION,
                             (alone_s - step_s) / (double)input->plan.batch, step_s);
    }
    return INSPAN_OK;
}

static void scale_guesses(plan_input_t *input)
{
    double product = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < input->n; i++) {
        const plan_machine_t *machine = &input->machines[i];
        if (machine->speed_from == PLAN_SPEED_GUESS || machine->node_id[0] == '\0') continue;
        const double guess =
            input->sample_flops / (machine->cores * machine->clock_hz * machine->flops_per_cycle);
        product += log(input->nodes[i].sample_s / guess);
        known++;
    }
    for (uint32_t i = 0; i < input->n && known > 0; i++)
        if (input->machines[i].speed_from == PLAN_SPEED_GUESS)
            input->nodes[i].sample_s *= exp(product / known);
}

void plan_input_settle(plan_input_t *input)
{
    scale_guesses(input);
    for (uint32_t i = 0; i < input->n; i++) {
        const plan_machine_t *machine = &input->machines[i];
        if (machine->speed_from == PLAN_SPEED_OPTION) continue;
        input->nodes[i].sample_s /= machine->allowed;
        input->nodes[i].step_s /= machine->allowed;
    }
}

inspan_status_t plan_input_choose(plan_input_t *input, const char *names, inspan_error_t *err)
{
    bool chosen[PLAN_NODES_MAX] = {false};
    for (const char *at = names; *at != '\0';) {
        char name[PLAN_NAME_MAX];
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), at);
        const uint32_t machine = find_machine(input, name);
        if (machine == PLAN_NONE)
            return error_set(err, INSPAN_NOT_FOUND, "--nodes: no usable node has the name \"%s\"", name);
        chosen[machine] = true;
        at += length + (at[length] == ',');
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < input->n; i++) {
        if (!chosen[i]) continue;
        input->machines[n] = input->machines[i];
        input->nodes[n++] = input->nodes[i];
    }
    input->n = n;
    return INSPAN_OK;
}

const char *plan_speed_source(plan_speed_from_t from)
{
    switch (from) {
    case PLAN_SPEED_GUESS: return "guess";
    case PLAN_SPEED_MEASURED: return "measured here";
    case PLAN_SPEED_REGISTRY: return "earlier jobs";
    case PLAN_SPEED_RUN: return "this job";
    case PLAN_SPEED_OPTION: return "--speed";
    }
    return "";
}
