/*
 * The nodes of the clusters that this machine's `up --local N` and `train --local N` have started: found by
 * their agents' command lines, so that no manager needs to answer, and private clusters are seen, too.
 */
#ifndef CLI_LOCAL_NODES_H
#define CLI_LOCAL_NODES_H

#include <sys/types.h>

#include "base/vec.h"
#include "cli/place.h"

typedef struct local_node {
    char name[64];
    char cluster[PLACE_FOLDER_MAX + 56]; /* its state folder */
    uint32_t number;                     /* which of the cluster's */
    pid_t pid;                           /* of its agent */
} local_node_t;

typedef vec_of(local_node_t) local_nodes_t;

/* By cluster, then by number; the caller frees with vec_free. NO_MEMORY. */
inspan_status_t local_nodes_list(local_nodes_t *nodes, inspan_error_t *err);

/* The node of that name: in the cluster with that state folder; in any if that is NULL, where of several the
 * one in the usual state folder counts. NOT_FOUND; INVALID: there are several. Both name what there is. */
inspan_status_t local_nodes_pick(const local_nodes_t *nodes, const char *name, const char *folder,
                                 const local_node_t **node, inspan_error_t *err);

/* Is it the same folder, however it is written? */
bool local_nodes_same_folder(const char *one, const char *other);

#endif
