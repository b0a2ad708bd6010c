#include "cli/plan_show.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/table.h"

#define TEXT_MAX 1024
/* A larger step is another training: told of where it gains so much. */
#define LARGER_GAIN 1.1

static const plan_machine_t *machine(const plan_input_t *input, uint32_t i)
{
    return &input->machines[i];
}

static bool in(uint64_t set, uint32_t i)
{
    return (set >> i & 1) != 0;
}

static uint64_t samples_of(const plan_input_t *input, uint32_t leases)
{
    return (uint64_t)llround((double)leases * (double)input->plan.batch / input->plan.leases);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *names_json(const plan_input_t *input, uint64_t set)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < input->n; i++)
        if (in(set, i)) json_append_string(names, machine(input, i)->name);
    return names;
}

static void set_limit(json_t *object, const plan_input_t *input, plan_limit_t limit, uint32_t by)
{
    json_set_string(object, "limit", limit == PLAN_LIMIT_LINK ? "link" : "compute");
    json_set_string(object, "limited_by", by != PLAN_NONE ? machine(input, by)->name : NULL);
}

static json_t *prediction_json(const plan_input_t *input, uint64_t set, const plan_prediction_t *prediction)
{
    json_t *object = json_object();
    json_t *shares = json_object();
    json_set(object, "nodes", names_json(input, set));
    json_set_number(object, "samples_per_s", prediction->samples_per_s);
    json_set_number(object, "step_s", prediction->step_s);
    json_set_number(object, "reduce_s", prediction->reduce_s);
    json_set_number(object, "exposed_s", prediction->exposed_s);
    json_set_number(object, "samples_per_s_without_links", prediction->unlinked);
    set_limit(object, input, prediction->limit, prediction->by);
    for (uint32_t i = 0; i < input->n; i++)
        if (in(set, i))
            json_set_number(shares, machine(input, i)->name, (double)samples_of(input, prediction->share[i]));
    json_set(object, "shares", shares);
    return object;
}

static json_t *node_json(const plan_input_t *input, const plan_found_t *found, uint32_t i)
{
    json_t *object = json_object();
    const plan_node_t *node = &input->nodes[i];
    json_set_string(object, "name", machine(input, i)->name);
    json_set_number(object, "speed", 1 / node->sample_s);
    json_set_string(object, "speed_from", plan_speed_source(machine(input, i)->speed_from));
    json_set_number(object, "update_s", node->step_s);
    json_set_number(object, "micro_batch", node->micro_batch);
    const double link = machine(input, i)->link_bits_per_s;
    json_set_number(object, "link_bits_per_s", link > 0 ? link : NAN); /* unknown: null */
    json_set_number(object, "allowed", machine(input, i)->allowed);
    json_set_bool(object, "fits", plan_fits(&input->plan, node));
    json_set_bool(object, "member", machine(input, i)->member);
    json_set_number(object, "alone", found->answer.alone[i]);
    json_set_bool(object, "in_best", in(found->answer.best, i));
    json_set_number(object, in(found->answer.best, i) ? "best_without" : "best_with", found->answer.other[i]);
    return object;
}

static json_t *ladder_json(const plan_input_t *input, const plan_answer_t *answer)
{
    json_t *ladder = json_array();
    for (uint32_t r = 0; r < answer->n_rungs; r++) {
        json_t *rung = json_object();
        json_set_string(rung, "add", machine(input, answer->rungs[r].node)->name);
        json_set_number(rung, "samples_per_s", answer->rungs[r].samples_per_s);
        set_limit(rung, input, answer->rungs[r].limit, answer->rungs[r].by);
        json_append(ladder, rung);
    }
    return ladder;
}

json_t *plan_show_json(const plan_input_t *input, const plan_found_t *found)
{
    const plan_answer_t *answer = &found->answer;
    json_t *object = json_object();
    json_t *nodes = json_array();
    json_set_string(object, "name", input->job.name);
    if (found->job != 0) json_set_number(object, "job", (double)found->job);
    json_set_string(object, "model", input->key);
    json_set_string(object, "wire", inspan_wire_name(input->wire));
    json_set_number(object, "gradient_bytes", (double)input->plan.gradient_bytes);
    json_set_number(object, "global_batch", (double)input->plan.batch);
    json_set_number(object, "memory_bytes", (double)input->plan.memory_bytes);
    for (uint32_t i = 0; i < input->n; i++) json_append(nodes, node_json(input, found, i));
    json_set(object, "nodes", nodes);
    json_set(object, "ladder", ladder_json(input, answer));
    if (answer->best != 0)
        json_set(object, "best", prediction_json(input, answer->best, &answer->prediction));
    json_t *sets = json_array();
    for (uint32_t i = 0; i < found->n_sets; i++) {
        json_t *set = json_object();
        json_set(set, "nodes", names_json(input, found->sets[i].nodes));
        json_set_number(set, "samples_per_s", found->sets[i].samples_per_s);
        json_append(sets, set);
    }
    json_set(object, "sets", sets);
    if (found->members != 0) {
        json_t *now = prediction_json(input, found->members, &found->now);
        json_set_number(now, "measured", found->measured > 0 ? found->measured : NAN);
        json_set(object, "now", now);
    }
    if (answer->cable != PLAN_NONE && answer->cable_best != 0) {
        json_t *cable = json_object();
        json_set_string(cable, "node", machine(input, answer->cable)->name);
        json_set_number(cable, "samples_per_s", answer->cable_samples_per_s);
        json_set(cable, "nodes", names_json(input, answer->cable_best));
        json_set(object, "gigabit_cable", cable);
    }
    if (found->micro_batch > 0) {
        json_t *micro = json_object();
        json_set_number(micro, "train.micro_batch", found->micro_batch);
        json_set_number(micro, "samples_per_s", found->micro_larger);
        json_set(object, "larger_micro_batch", micro);
    }
    if (found->larger > 0) json_set_number(object, "samples_per_s_with_twice_the_batch", found->larger);
    return object;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* 8.18, 41.2, 410 */
static const char *rate(double samples_per_s, char text[32])
{
    const int digits = samples_per_s >= 100 ? 0 : samples_per_s >= 10 ? 1 : 2;
    snprintf(text, 32, "%.*f", digits, samples_per_s);
    return text;
}

static const char *link_text(const plan_machine_t *machine, char text[32])
{
    const double bits = machine->link_bits_per_s;
    if (!(bits > 0)) return "?";
    snprintf(text, 32, bits >= 1e9 ? "%s%.3g Gbit/s" : "%s%.3g Mbit/s",
             machine->link_from == PLAN_LINK_GUESS ? "~" : "", bits >= 1e9 ? bits / 1e9 : bits / 1e6);
    return text;
}

static void show_nodes(FILE *out, const plan_input_t *input, const plan_found_t *found)
{
    static const char *const headings[] = {"NODE", ">SAMPLES/S", "SPEED FROM", ">LINK", ">SHARE", "", NULL};
    table_t *table = table_open(headings);
    for (uint32_t i = 0; table != NULL && i < input->n; i++) {
        const plan_machine_t *at = machine(input, i);
        char speed[32], link[32], given[48];
        table_add(table, "%s", at->name);
        table_add(table, "%s%s", at->speed_from == PLAN_SPEED_GUESS ? "~" : "",
                  rate(1 / input->nodes[i].sample_s, speed));
        table_add(table, "%s", plan_speed_source(at->speed_from));
        table_add(table, "%s", link_text(at, link));
        if (in(found->answer.best, i))
            table_add(table, "%" PRIu64, samples_of(input, found->answer.prediction.share[i]));
        else
            table_add(table, "-");
        snprintf(given, sizeof given, "its owner gives %.0f %%", 100 * at->allowed);
        table_add(table, "%s",
                  !plan_fits(&input->plan, &input->nodes[i]) ? "has too little memory"
                  : at->allowed < 1                          ? given
                  : at->member                               ? "takes part now"
                                                             : "");
    }
    if (table != NULL) table_print(table, out);
    table_close(table);
}

/* "a, b and c" */
static const char *names(const plan_input_t *input, uint64_t set, char text[TEXT_MAX])
{
    size_t used = 0;
    uint32_t left = (uint32_t)__builtin_popcountll(set);
    text[0] = '\0';
    for (uint32_t i = 0; i < input->n && used < TEXT_MAX; i++) {
        if (!in(set, i)) continue;
        left--;
        used += (size_t)snprintf(text + used, TEXT_MAX - used, "%s%s", machine(input, i)->name,
                                 left > 1    ? ", "
                                 : left == 1 ? " and "
                                             : "");
    }
    return table_clean(text);
}

/* " (its link is the limit)"; node: the one that is spoken of. */
static const char *limit_text(const plan_input_t *input, plan_limit_t limit, uint32_t by, uint32_t node,
                              char text[128])
{
    text[0] = '\0';
    if (limit == PLAN_LIMIT_COMPUTE) return text;
    if (by == PLAN_NONE)
        snprintf(text, 128, " (the links are the limit)");
    else if (by == node)
        snprintf(text, 128, " (its link is the limit)");
    else
        snprintf(text, 128, " (the link of %s is the limit)", machine(input, by)->name);
    return table_clean(text);
}

static void show_ladder(FILE *out, const plan_input_t *input, const plan_answer_t *answer)
{
    double best = 0;
    for (uint32_t r = 0; r < answer->n_rungs; r++) {
        const plan_rung_t *rung = &answer->rungs[r];
        char name[PLAN_NAME_MAX], speed[32], limit[128];
        snprintf(name, sizeof name, "%s", machine(input, rung->node)->name);
        const bool slower = r > 0 && rung->samples_per_s < best;
        fprintf(out, r == 0 ? "with %s alone %s samples/s%s\n" : "adding %s %s%s%s\n", table_clean(name),
                rate(rung->samples_per_s, speed),
                r == 0   ? ""
                : slower ? ": slower"
                         : "",
                limit_text(input, rung->limit, rung->by, rung->node, limit));
        best = fmax(best, rung->samples_per_s);
    }
}

static void show_best(FILE *out, const plan_input_t *input, const plan_found_t *found)
{
    const plan_answer_t *answer = &found->answer;
    const plan_prediction_t *best = &answer->prediction;
    char set[TEXT_MAX], speed[32], step[32], exposed[32], limit[128];
    fprintf(out, "best: %s, %s samples/s, a step in %s", names(input, answer->best, set),
            rate(best->samples_per_s, speed),
            units_format_duration((int64_t)(best->step_s * 1e9), step, sizeof step));
    if (best->exposed_s > 0.01 * best->step_s)
        fprintf(out, ", %s of it waiting for the links",
                units_format_duration((int64_t)(best->exposed_s * 1e9), exposed, sizeof exposed));
    fprintf(out, "%s\n", limit_text(input, best->limit, best->by, PLAN_NONE - 1, limit));
    if (found->file != NULL && found->job == 0) {
        fprintf(out, "  inspan train %s --nodes ", found->file);
        for (uint32_t i = 0, n = 0; i < input->n; i++)
            if (in(answer->best, i)) {
                char name[PLAN_NAME_MAX];
                snprintf(name, sizeof name, "%s", machine(input, i)->name);
                fprintf(out, "%s%s", n++ > 0 ? "," : "", table_clean(name));
            }
        fputc('\n', out);
    }
}

static void show_now(FILE *out, const plan_input_t *input, const plan_found_t *found)
{
    char set[TEXT_MAX], speed[32], measured[32];
    if (found->members == 0) return;
    fprintf(out, "now: %s, %s samples/s predicted", names(input, found->members, set),
            rate(found->now.samples_per_s, speed));
    if (found->measured > 0) fprintf(out, ", %s reached", rate(found->measured, measured));
    fputc('\n', out);
}

/* What would help. */
static void show_advice(FILE *out, const plan_input_t *input, const plan_found_t *found)
{
    const plan_answer_t *answer = &found->answer;
    char set[TEXT_MAX], speed[32], name[PLAN_NAME_MAX];
    if (answer->cable != PLAN_NONE && answer->cable_samples_per_s > 1.01 * answer->prediction.samples_per_s) {
        snprintf(name, sizeof name, "%s", machine(input, answer->cable)->name);
        fprintf(out, "a 1 Gbit/s cable for %s would give %s samples/s", table_clean(name),
                rate(answer->cable_samples_per_s, speed));
        if (answer->cable_best != answer->best)
            fprintf(out, ", with %s", names(input, answer->cable_best, set));
        fputc('\n', out);
    }
    if (found->micro_batch > 0)
        fprintf(out,
                "train.micro_batch %" PRIu32 " would give %s samples/s: more of the reductions is hidden\n",
                found->micro_batch, rate(found->micro_larger, speed));
    if (found->larger > LARGER_GAIN * answer->prediction.samples_per_s)
        fprintf(out,
                "train.global_batch %" PRIu64
                " would give %s samples/s (another training: the step is larger)\n",
                2 * input->plan.batch, rate(found->larger, speed));
    bool guessed = false, linkless = false;
    for (uint32_t i = 0; i < input->n; i++) {
        guessed |= machine(input, i)->speed_from == PLAN_SPEED_GUESS;
        linkless |= machine(input, i)->link_from == PLAN_LINK_UNKNOWN;
    }
    if (guessed)
        fputs("~ speeds are guesses from cores, clock and instruction set: a job of this model, --measure "
              "(this "
              "machine) or --speed NODE=S gives better ones\n",
              out);
    if (linkless && input->n > 1)
        fputs("? links are not known and count as unlimited: --link NODE=100mbit\n", out);
}

void plan_show(FILE *out, const plan_input_t *input, const plan_found_t *found)
{
    char size[32], memory[32], name[256];
    const inspan_wire_t wire = input->wire;
    snprintf(name, sizeof name, "%s", input->job.name);
    fprintf(out, "%s: %s\n%s of gradients%s%s and %" PRIu64 " samples a step, %s of memory a node\n\n",
            table_clean(name), input->key, units_format_size(input->plan.gradient_bytes, size, sizeof size),
            wire != INSPAN_WIRE_FP32 ? " as " : "", wire != INSPAN_WIRE_FP32 ? inspan_wire_name(wire) : "",
            input->plan.batch, units_format_size(input->plan.memory_bytes, memory, sizeof memory));
    show_nodes(out, input, found);
    if (found->answer.best == 0) return;
    fputc('\n', out);
    show_now(out, input, found);
    show_ladder(out, input, &found->answer);
    show_best(out, input, found);
    show_advice(out, input, found);
}
