#include "cli/local_nodes.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/words.h"
#include "cli/processes.h"

typedef struct collector {
    local_nodes_t *nodes;
    bool out_of_memory;
} collector_t;

/* "ROOT/agents/K" -> "ROOT", K; false: no agent that a cluster of this machine has started. */
static bool split_folder(const char *folder, local_node_t *node)
{
    const char *found = NULL;
    for (const char *at = folder; (at = strstr(at, "/agents/")) != NULL; at++) found = at;
    if (found == NULL || (size_t)(found - folder) >= sizeof node->cluster) return false;
    char *end;
    const char *digits = found + strlen("/agents/");
    const unsigned long number = strtoul(digits, &end, 10);
    if (end == digits || *end != '\0') return false;
    node->number = (uint32_t)number;
    snprintf(node->cluster, sizeof node->cluster, "%.*s", (int)(found - folder), folder);
    return true;
}

static bool collect(void *context, pid_t pid, const process_line_t *line)
{
    collector_t *collector = context;
    local_node_t node = {.pid = pid};
    const char *folder = process_option(line, "folder"), *name = process_option(line, "name");
    if (folder == NULL || process_option(line, "manager") == NULL || !split_folder(folder, &node))
        return true;
    if (name == NULL) {
        gethostname(node.name, sizeof node.name - 1); /* as the agent does */
        node.name[sizeof node.name - 1] = '\0';
    } else {
        snprintf(node.name, sizeof node.name, "%s", name);
    }
    collector->out_of_memory = !VEC_PUSH(collector->nodes, node);
    return !collector->out_of_memory;
}

static int compare(const void *a, const void *b)
{
    const local_node_t *one = a, *other = b;
    const int order = strcmp(one->cluster, other->cluster);
    if (order != 0) return order;
    return (one->number > other->number) - (one->number < other->number);
}

inspan_status_t local_nodes_list(local_nodes_t *nodes, inspan_error_t *err)
{
    collector_t collector = {.nodes = nodes};
    process_each("agent", collect, &collector);
    if (collector.out_of_memory) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (nodes->n > 0) qsort(nodes->items, nodes->n, sizeof *nodes->items, compare);
    return INSPAN_OK;
}

bool local_nodes_same_folder(const char *one, const char *other)
{
    char first[PATH_MAX], second[PATH_MAX];
    return realpath(one, first) != NULL && realpath(other, second) != NULL && strcmp(first, second) == 0;
}

static inspan_status_t none(const local_nodes_t *nodes, const char *name, const char *folder,
                            inspan_error_t *err)
{
    words_search_t search = {.typed = name};
    for (size_t i = 0; i < nodes->n; i++)
        if (folder == NULL || local_nodes_same_folder(nodes->items[i].cluster, folder))
            words_offer(&search, nodes->items[i].name);
    const char *nearest = words_found(&search);
    return error_set(err, INSPAN_NOT_FOUND,
                     "no node \"%.60s\" of a cluster%s%.200s runs on this machine%s%s%s", name,
                     folder != NULL ? " in " : "", folder != NULL ? folder : "",
                     nearest != NULL ? ": did you mean " : " (inspan lab show lists them)",
                     nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}

inspan_status_t local_nodes_pick(const local_nodes_t *nodes, const char *name, const char *folder,
                                 const local_node_t **node, inspan_error_t *err)
{
    char usual[PLACE_PATH_MAX];
    const bool has_usual = place_folder(NULL, usual, NULL) == INSPAN_OK;
    const local_node_t *found = NULL, *other = NULL, *in_usual = NULL;
    for (size_t i = 0; i < nodes->n; i++) {
        const local_node_t *at = &nodes->items[i];
        if (strcmp(at->name, name) != 0) continue;
        if (folder != NULL && !local_nodes_same_folder(at->cluster, folder)) continue;
        if (has_usual && local_nodes_same_folder(at->cluster, usual)) in_usual = at;
        other = found;
        found = at;
    }
    if (found == NULL) return none(nodes, name, folder, err);
    if (in_usual != NULL) found = in_usual;
    if (in_usual == NULL && other != NULL)
        return error_set(
            err, INSPAN_INVALID,
            "several clusters of this machine have a node %.60s, as those in %.100s and %.100s: say "
            "which with --dir",
            name, other->cluster, found->cluster);
    *node = found;
    return INSPAN_OK;
}
