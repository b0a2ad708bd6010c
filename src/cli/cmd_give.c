/* give: what this machine gives to jobs, and when. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/cluster.h"
#include "cli/common_options.h"
#include "cli/give.h"
#include "cli/show.h"
#include "cli/table.h"

enum { ALL_AGENTS = -1 };

typedef struct machine {
    int agents[CLUSTER_AGENTS_MAX]; /* numbers of their folders, rising */
    owner_wishes_t wishes[CLUSTER_AGENTS_MAX];
    uint32_t n;
} machine_t;

static int rising(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* The agents that have run with this state folder. only: ALL_AGENTS, or one's number. */
static inspan_status_t find_agents(const char *folder, int only, machine_t *machine, inspan_error_t *err)
{
    char path[PLACE_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/agents", folder);
    DIR *listing = opendir(path);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        const size_t digits = strspn(entry->d_name, "0123456789");
        if (digits == 0 || digits > 4 || entry->d_name[digits] != '\0') continue;
        const int agent = atoi(entry->d_name);
        if ((only == ALL_AGENTS || only == agent) && machine->n < CLUSTER_AGENTS_MAX)
            machine->agents[machine->n++] = agent;
    }
    if (listing != NULL) closedir(listing);
    qsort(machine->agents, machine->n, sizeof machine->agents[0], rising);
    if (machine->n > 0) return INSPAN_OK;
    if (only != ALL_AGENTS)
        return error_set(err, INSPAN_NOT_FOUND, "--agent %d: no such agent below %s", only, path);
    return error_set(
        err, INSPAN_NOT_FOUND,
        "no agent has run here (there is none below %s): inspan up or inspan join first, or name "
        "its state folder with --dir",
        path);
}

static inspan_status_t each_agent(const char *folder, const give_options_t *given, machine_t *machine,
                                  inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (uint32_t i = 0; i < machine->n && status == INSPAN_OK; i++) {
        char path[PLACE_PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/agents/%d", folder, machine->agents[i]);
        if (give_any(given))
            status = give_save(path, given, &owner_gives_all, &machine->wishes[i], err);
        else
            status = give_load(path, &machine->wishes[i], err);
    }
    return status;
}

static int print_json(machine_t *machine)
{
    json_t *root = json_object();
    json_t *agents = json_array();
    for (uint32_t i = 0; i < machine->n; i++) {
        json_t *agent = json_object();
        json_set_number(agent, "agent", machine->agents[i]);
        for (size_t k = 0; k < OWNER_WISHES; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s", owner_wish_table[k].name);
            for (char *c = key; *c != '\0'; c++)
                if (*c == '-') *c = '_';
            json_set_number(agent, key, *owner_wish_of(&machine->wishes[i], &owner_wish_table[k]));
        }
        json_append(agents, agent);
    }
    json_set(root, "agents", agents);
    return show_print_json(root);
}

static int print_table(machine_t *machine)
{
    static const char *const headings[] = {">AGENT",   ">AT-MOST",     ">ON-BATTERY", ">WHEN-HOT",
                                           ">(ABOVE)", ">WHEN-IN-USE", NULL};
    table_t *table = table_open(headings);
    for (uint32_t i = 0; table != NULL && i < machine->n; i++) {
        const owner_wishes_t *wishes = &machine->wishes[i];
        table_add(table, "%d", machine->agents[i]);
        table_add(table, "%g", wishes->at_most);
        table_add(table, "%g", wishes->on_battery);
        table_add(table, "%g", wishes->when_hot);
        table_add(table, "%g C", wishes->hot_above_c);
        table_add(table, "%g", wishes->when_in_use);
    }
    if (table != NULL) table_print(table, stdout);
    table_close(table);
    return CLI_EXIT_OK;
}

int cmd_give(int argc, char **argv)
{
    place_options_t place = {0};
    give_options_t given;
    uint64_t agent = 0;
    bool json = false;
    const cli_option_t options[] = {
        GIVE_OPTIONS(&given),
        {.name = "agent",
         .type = CLI_COUNT,
         .argument = "K",
         .help = "of the agents here, as numbered in the state folder (default: all)",
         .value = &agent,
         .most = 9999},
        OPTION_DIR(&place),
        OPTION_JSON(&json)};
    cli_operands_t operands;
    give_none(&given);
    agent = UINT64_MAX;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 0, 0, &operands);
    if (code >= 0) return code;

    char folder[PLACE_PATH_MAX];
    machine_t machine = {.n = 0};
    inspan_error_t err = {0};
    inspan_status_t status = place_folder(place.folder, folder, &err);
    if (status == INSPAN_OK)
        status = find_agents(folder, agent == UINT64_MAX ? ALL_AGENTS : (int)agent, &machine, &err);
    if (status == INSPAN_OK) status = each_agent(folder, &given, &machine, &err);
    if (status != INSPAN_OK) return cli_fail_user(&err, json);
    return json ? print_json(&machine) : print_table(&machine);
}
