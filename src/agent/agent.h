/* The agent process: the one entry header of agent. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include <stdint.h>

#include "base/units.h"

typedef struct agent_options {
    const char *folder;  /* state of this agent: <folder>/id, jobs/ID/, cache/ */
    const char *manager; /* host:port */
    const char *token;
    const char *name;               /* NULL: the host's name */
    const char *address;            /* --address: advertised; NULL: the one that routes to the manager */
    uint16_t first_port, last_port; /* data ports; 0, 0: any (private clusters) */
    double cores;                   /* laboratory's quota; 0: from affinity and cgroup */
    const char *root;               /* before /proc and /sys, where vitals are read; NULL: "" (tests) */
    const char *worker_program;     /* path of inspan; NULL: /proc/self/exe */
    /* Called at each registration, from the thread that runs agent_main; NULL: nobody asks. */
    void (*on_registered)(void *context, const char *node_id, const char *name, const char *address);
    void *context;
} agent_options_t;

/* Run until SIGTERM or SIGINT (workers are stopped then), or a refusal that cannot mend itself (wrong token,
 * wrong version). Returns the exit code: 0, 1 user error, 2 cluster error. */
int agent_main(const agent_options_t *options);

#endif
