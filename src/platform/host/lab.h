/*
 * The laboratory: N machines on this one, for tests, benchmarks and the curious. Network namespaces on a
 * bridge with links shaped by tbf, and a cgroup per machine with a CPU quota (period 20 ms). Needs root, and
 * the programs ip and tc. Names carry the pid; what dead pids left behind is removed at the next start.
 */
#ifndef HOST_LAB_H
#define HOST_LAB_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/status.h>

typedef struct lab lab_t;

typedef struct lab_link {
    uint64_t up_bits_per_s, down_bits_per_s; /* 0: not shaped */
} lab_link_t;

typedef struct lab_options {
    uint32_t machines;
    const double *cores;     /* (machines) or NULL: no quota */
    const lab_link_t *links; /* (machines) or NULL: no namespaces, all on loopback */
} lab_options_t;

/* "0.8,0.4" and "1gbit,200mbit/100mbit" (up/down), repeated to `machines` if there is only one. INVALID: says
 * which. */
inspan_status_t lab_parse_cores(const char *text, uint32_t machines, double *cores, inspan_error_t *err);
inspan_status_t lab_parse_links(const char *text, uint32_t machines, lab_link_t *links, inspan_error_t *err);

/* Probe: UNSUPPORTED with what is missing (root, ip, tc, cgroup cpu), for tests to skip by name. */
inspan_status_t lab_probe(bool links, bool cores, inspan_error_t *err);

inspan_status_t lab_open(const lab_options_t *options, lab_t **lab, inspan_error_t *err);
void lab_close(lab_t *lab); /* kills what still runs inside, removes everything; also safe to call after a
                               fork+exec died */

const char *lab_host_address(const lab_t *lab);              /* of the bridge; "127.0.0.1" without links */
const char *lab_address(const lab_t *lab, uint32_t machine); /* of a machine */
/* For `inspan --enter-lab WHERE ...`: a word that lab_enter understands, naming namespace and cgroup. */
const char *lab_where(const lab_t *lab, uint32_t machine);

/* Move this process (single-threaded still) into the machine. IO. */
inspan_status_t lab_enter(const char *where, inspan_error_t *err);

/* ---- While it runs --------------------------------------------------------------------------------
 * From any process of root's, also from outside the one that made the laboratory. */

#define LAB_DEVICE_SIZE  16
#define LAB_NETWORK_SIZE 48
#define LAB_GROUP_SIZE   512

/* Where a machine's link and quota are to be found. */
typedef struct lab_machine {
    char network[LAB_NETWORK_SIZE]; /* its namespace; empty: no link of its own */
    char device[LAB_DEVICE_SIZE];   /* the bridge's end of its link; empty likewise */
    char group[LAB_GROUP_SIZE];     /* folder of its cgroup; empty: no quota */
    bool unified;                   /* version 2 */
} lab_machine_t;

typedef struct lab_has {
    double cores;     /* 0: no quota */
    double throttled; /* part of its periods so far in which the quota was used up; negative: not known */
    lab_link_t link;  /* 0: not shaped, or no link of its own */
    bool cut;         /* the link is down */
} lab_has_t;

/* The machine that a process lives in, of whichever laboratory. NOT_FOUND: it is in none; IO. */
inspan_status_t lab_machine_of(int64_t pid, lab_machine_t *machine, inspan_error_t *err);
/* What it has at this moment. IO, UNSUPPORTED (no program tc). */
inspan_status_t lab_machine_look(const lab_machine_t *machine, lab_has_t *has, inspan_error_t *err);
/* Both hold from the next period, or packet, on. NOT_FOUND: the machine has no quota, no link of its own, and
 * cannot get one while it runs; INVALID: too little; IO, UNSUPPORTED. */
inspan_status_t lab_machine_set_cores(const lab_machine_t *machine, double cores, inspan_error_t *err);
inspan_status_t lab_machine_set_link(const lab_machine_t *machine, const lab_link_t *link,
                                     inspan_error_t *err);

/* The bridge's end of the link of the machine that a process lives in. NOT_FOUND: it has none; IO. */
inspan_status_t lab_link_of(int64_t pid, char device[LAB_DEVICE_SIZE], inspan_error_t *err);
/* Take the link down (nothing passes, like a pulled cable) or up again. IO, UNSUPPORTED. */
inspan_status_t lab_link_set(const char *device, bool up, inspan_error_t *err);

#endif
