/*
 * A cluster of processes on this machine: a manager and N agents, on a laboratory if quotas or links are
 * asked for. Shared by `up` (state folder, stays) and `--local N` (a temporary folder, taken down after the
 * job).
 *
 * The processes have PR_SET_PDEATHSIG (they are started by the main thread, which lives as long as the
 * program): a cluster whose owner was killed with SIGKILL goes down by itself; its folder is removed at the
 * next start. Not thread-safe.
 */
#ifndef CLI_CLUSTER_H
#define CLI_CLUSTER_H

#include "cli/interrupt.h"
#include "rpc/rpc.h"

#define CLUSTER_AGENTS_MAX 64

typedef struct cluster_options {
    uint32_t agents;
    const char *folder; /* state; NULL: a temporary folder, removed by cluster_close */
    bool open_to_lan; /* the manager listens on all addresses; else on loopback or the laboratory's bridge */
    uint16_t port;    /* 0: any */
    const char *agent_address; /* that agents advertise; NULL: the one that routes to the manager */
    const char *name;          /* of the only agent; NULL: the host's */
    const char *data_ports;    /* "A-B"; NULL: any */
    const char *cpu, *link;    /* the laboratory's texts; NULL: none */
} cluster_options_t;

typedef struct cluster cluster_t;

/*
 * Start all and wait until the manager answers (its token and port are known then; the agents may still be
 * registering). Says on stderr what a child complains about. INVALID (--cpu, --link, too many agents),
 * UNSUPPORTED (no laboratory here), EXISTS (port taken), TIMEOUT, ABORTED (interrupted), IO, ...; nothing is
 * left behind then.
 */
inspan_status_t cluster_open(const cluster_options_t *options, interrupt_t *interrupt, cluster_t **cluster,
                             inspan_error_t *err);

/* Stop all in order (SIGTERM, after a grace SIGKILL; one that even then does not end within 5 s is named and
 * left), remove laboratory and temporary folder. NULL is fine. */
void cluster_close(cluster_t *cluster);

const char *cluster_manager(const cluster_t *cluster); /* "host:port" for clients on this machine */
uint16_t cluster_port(const cluster_t *cluster);
const char *cluster_token(const cluster_t *cluster);
const char *cluster_folder(const cluster_t *cluster);

/* Wait until all agents have registered. TIMEOUT says how many; ABORTED; or what cluster_look finds. */
inspan_status_t cluster_await_nodes(cluster_t *cluster, rpc_client_t *client, interrupt_t *interrupt,
                                    ns_t timeout, inspan_error_t *err);

/* PEER_LOST if a process of the cluster has ended (INVALID: with exit code 1): says which and how. Never
 * blocks. */
inspan_status_t cluster_look(cluster_t *cluster, inspan_error_t *err);

/* The same, but one that has ended is told on stderr and started again (0.1 s to 3 s apart); an error only
 * if it ended with exit code 1, which no new start mends. */
inspan_status_t cluster_tend(cluster_t *cluster, inspan_error_t *err);

#endif
