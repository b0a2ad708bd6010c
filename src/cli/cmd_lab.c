/* The laboratory while it runs: what each machine has, and other quotas and links for one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/common_options.h"
#include "cli/local_nodes.h"
#include "cli/show.h"
#include "cli/table.h"
#include "platform/host/lab.h"

typedef struct lab_command {
    const char *node, *cpu, *link; /* NULL: not given */
    char folder_text[PLACE_PATH_MAX];
    const char *folder; /* --dir; NULL: any cluster */
    bool json;
} lab_command_t;

/* ---- Showing --------------------------------------------------------------------------------- */

typedef struct machine_row {
    const local_node_t *node;
    lab_has_t has;
} machine_row_t;

/* As it is written for --link: "1gbit", "100mbit/400mbit"; "-" where it is not shaped. */
static const char *link_text(const lab_link_t *link, char *text, size_t size)
{
    static const struct {
        const char *name;
        uint64_t bits;
    } units[] = {{"gbit", 1000000000}, {"mbit", 1000000}, {"kbit", 1000}, {"bit", 1}};
    const uint64_t rates[] = {link->up_bits_per_s, link->down_bits_per_s};
    size_t used = 0;
    for (size_t i = 0; i < (rates[0] == rates[1] ? 1u : 2u); i++) {
        size_t unit = 0;
        while (unit < 3 && rates[i] < units[unit].bits) unit++;
        if (used < size && i > 0) used += (size_t)snprintf(text + used, size - used, "/");
        if (used < size && rates[i] == 0) used += (size_t)snprintf(text + used, size - used, "-");
        if (used < size && rates[i] > 0)
            used += (size_t)snprintf(text + used, size - used, "%.6g%s",
                                     (double)rates[i] / (double)units[unit].bits, units[unit].name);
    }
    return text;
}

static json_t *row_json(const machine_row_t *row)
{
    json_t *object = json_object();
    json_set_string(object, "node", row->node->name);
    json_set_string(object, "dir", row->node->cluster);
    json_set_number(object, "pid", row->node->pid);
    if (row->has.cores > 0) {
        json_set_number(object, "cores", row->has.cores);
        if (row->has.throttled >= 0) json_set_number(object, "throttled", row->has.throttled);
    }
    if (row->has.link.up_bits_per_s > 0) {
        json_set_number(object, "up_bits_per_s", (double)row->has.link.up_bits_per_s);
        json_set_number(object, "down_bits_per_s", (double)row->has.link.down_bits_per_s);
        json_set_bool(object, "cut", row->has.cut);
    }
    return object;
}

static void add_row(table_t *table, const machine_row_t *row)
{
    char text[64];
    table_add(table, "%s", row->node->name);
    if (row->has.cores > 0)
        table_add(table, "%.4g", row->has.cores);
    else
        table_add(table, "-");
    if (row->has.cores > 0 && row->has.throttled >= 0)
        table_add(table, "%.0f %%", 100 * row->has.throttled);
    else
        table_add(table, "-");
    table_add(table, "%s%s", link_text(&row->has.link, text, sizeof text), row->has.cut ? " (down)" : "");
    table_add(table, "%ld", (long)row->node->pid);
    table_add(table, "%s", row->node->cluster);
}

/* A node that is no machine of a laboratory has nothing. NOT_FOUND: it has ended meanwhile. */
static inspan_status_t look(const local_node_t *node, machine_row_t *row, inspan_error_t *err)
{
    lab_machine_t machine;
    *row = (machine_row_t){.node = node};
    inspan_status_t status = lab_machine_of(node->pid, &machine, err);
    if (status == INSPAN_NOT_FOUND) return INSPAN_OK;
    if (status == INSPAN_OK) status = lab_machine_look(&machine, &row->has, err);
    if (status != INSPAN_OK) {
        char path[48];
        snprintf(path, sizeof path, "/proc/%ld", (long)node->pid);
        if (access(path, F_OK) != 0) return INSPAN_NOT_FOUND;
    }
    return status;
}

static int print_rows(const lab_command_t *command, const machine_row_t *rows, size_t n)
{
    static const char *const headings[] = {"NODE", ">CORES", ">USED UP", ">LINK", ">PID", "CLUSTER", NULL};
    if (command->json) {
        json_t *root = json_object(), *list = json_array();
        for (size_t i = 0; i < n; i++) json_append(list, row_json(&rows[i]));
        json_set(root, "nodes", list);
        return show_print_json(root);
    }
    table_t *table = table_open(headings);
    for (size_t i = 0; table != NULL && i < n; i++) add_row(table, &rows[i]);
    if (table != NULL) table_print(table, stdout);
    table_close(table);
    if (n == 0) puts("no cluster of inspan up --local N or inspan train --local N runs on this machine now");
    return CLI_EXIT_OK;
}

static int show(const lab_command_t *command, const local_nodes_t *nodes)
{
    inspan_error_t err = {0};
    inspan_status_t status = INSPAN_OK;
    const local_node_t *only = NULL;
    size_t n = 0;
    machine_row_t *rows = calloc(nodes->n + 1, sizeof *rows);
    if (rows == NULL) status = error_set(&err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK && command->node != NULL)
        status = local_nodes_pick(nodes, command->node, command->folder, &only, &err);
    for (size_t i = 0; status == INSPAN_OK && i < nodes->n; i++) {
        const local_node_t *node = &nodes->items[i];
        if (only != NULL && node != only) continue;
        if (command->folder != NULL && !local_nodes_same_folder(node->cluster, command->folder)) continue;
        status = look(node, &rows[n], &err);
        n += status == INSPAN_OK;
        if (status == INSPAN_NOT_FOUND) status = INSPAN_OK;
    }
    const int code = status == INSPAN_OK ? print_rows(command, rows, n) : cli_fail(&err, command->json);
    free(rows);
    return code;
}

/* ---- Setting --------------------------------------------------------------------------------- */

static inspan_status_t check_set(const lab_command_t *command, double *cores, lab_link_t *link,
                                 inspan_error_t *err)
{
    if (command->node == NULL)
        return error_set(err, INSPAN_INVALID, "which node? as in inspan lab set node-1 --cpu 0.3");
    if (command->cpu == NULL && command->link == NULL)
        return error_set(err, INSPAN_INVALID, "what is to change? give --cpu C, --link R or both");
    if ((command->cpu != NULL && strchr(command->cpu, ',') != NULL) ||
        (command->link != NULL && strchr(command->link, ',') != NULL))
        return error_set(err, INSPAN_INVALID,
                         "lab set changes one machine: expected one value, as in --cpu 0.3");
    inspan_status_t status = INSPAN_OK;
    if (command->cpu != NULL) status = lab_parse_cores(command->cpu, 1, cores, err);
    if (status == INSPAN_OK && command->link != NULL) status = lab_parse_links(command->link, 1, link, err);
    if (status == INSPAN_OK && geteuid() != 0)
        status = error_set(err, INSPAN_UNSUPPORTED, "changing a laboratory needs root: try again with sudo");
    return status;
}

/* All is checked before anything is changed. */
static inspan_status_t check_machine(const lab_command_t *command, const local_node_t *node,
                                     lab_machine_t *machine, inspan_error_t *err)
{
    const inspan_status_t status = lab_machine_of(node->pid, machine, err);
    if (status == INSPAN_NOT_FOUND)
        return error_set(
            err, status,
            "node %s is no machine of a laboratory: its cluster in %.200s was started without --cpu and "
            "--link",
            node->name, node->cluster);
    if (status != INSPAN_OK) return status;
    if (command->cpu != NULL && machine->group[0] == '\0')
        return error_set(
            err, INSPAN_NOT_FOUND,
            "node %s has no quota that could change: its cluster in %.200s was started without --cpu",
            node->name, node->cluster);
    if (command->link != NULL && machine->device[0] == '\0')
        return error_set(err, INSPAN_NOT_FOUND,
                         "node %s has no link of its own: its cluster in %.200s was started without --link",
                         node->name, node->cluster);
    return INSPAN_OK;
}

static void tell_change(const machine_row_t *before, const machine_row_t *now, const lab_command_t *command)
{
    char old[64], new[64];
    printf("node %s:", now->node->name);
    if (command->cpu != NULL) printf(" %.4g cores (before: %.4g)", now->has.cores, before->has.cores);
    if (command->link != NULL)
        printf("%s link %s (before: %s)", command->cpu != NULL ? "," : "",
               link_text(&now->has.link, new, sizeof new), link_text(&before->has.link, old, sizeof old));
    putchar('\n');
}

static int set(const lab_command_t *command, const local_nodes_t *nodes)
{
    double cores = 0;
    lab_link_t link = {0};
    lab_machine_t machine;
    machine_row_t before, now;
    const local_node_t *node = NULL;
    inspan_error_t err = {0};
    inspan_status_t status = check_set(command, &cores, &link, &err);
    if (status == INSPAN_OK) status = local_nodes_pick(nodes, command->node, command->folder, &node, &err);
    if (status == INSPAN_OK) status = check_machine(command, node, &machine, &err);
    if (status == INSPAN_OK) status = look(node, &before, &err);
    if (status == INSPAN_OK && command->cpu != NULL) status = lab_machine_set_cores(&machine, cores, &err);
    if (status == INSPAN_OK && command->link != NULL) status = lab_machine_set_link(&machine, &link, &err);
    if (status == INSPAN_OK) status = look(node, &now, &err); /* what is told is what holds now */
    if (status == INSPAN_NOT_FOUND && err.text[0] == '\0')
        error_set(&err, status, "node %s has ended meanwhile", node->name);
    if (status != INSPAN_OK) return cli_fail(&err, command->json);
    if (command->json) return show_print_json(row_json(&now));
    tell_change(&before, &now, command);
    return CLI_EXIT_OK;
}

int cmd_lab(int argc, char **argv)
{
    lab_command_t command = {0};
    place_options_t place = {0};
    const cli_option_t options[] = {
        {.name = "cpu",
         .type = CLI_TEXT,
         .argument = "C",
         .help = "set: cores, as in 0.3",
         .value = &command.cpu},
        {.name = "link",
         .type = CLI_TEXT,
         .argument = "R",
         .help = "set: its link, as in 100mbit or 100mbit/400mbit (up/down)",
         .value = &command.link},
        {.name = "dir",
         .type = CLI_TEXT,
         .argument = "FOLDER",
         .help = "the cluster with this state folder (default: all of this machine)",
         .value = &place.folder},
        OPTION_JSON(&command.json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 2, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    local_nodes_t nodes = {0};
    const char *verb = operands.items[0];
    const bool sets = strcmp(verb, "set") == 0;
    command.node = operands.n > 1 ? operands.items[1] : NULL;
    inspan_status_t status = INSPAN_OK;
    if (!sets && strcmp(verb, "show") != 0)
        status = error_set(&err, INSPAN_INVALID, "lab %.40s: there are lab show and lab set", verb);
    else if (!sets && (command.cpu != NULL || command.link != NULL))
        status =
            error_set(&err, INSPAN_INVALID, "lab show changes nothing: --cpu and --link go with lab set");
    if (status == INSPAN_OK && place.folder != NULL) {
        status = place_folder(place.folder, command.folder_text, &err);
        command.folder = command.folder_text;
    }
    if (status == INSPAN_OK) status = local_nodes_list(&nodes, &err);
    if (status == INSPAN_OK)
        code = sets ? set(&command, &nodes) : show(&command, &nodes);
    else
        code = cli_fail(&err, command.json);
    vec_free(&nodes);
    return code;
}
