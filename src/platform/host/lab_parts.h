/*
 * The laboratory's parts, private to lab*.c. Everything of one laboratory carries its tag, "PIDletter"
 * ("4711a"):
 *
 * - /run/inspan-lab/TAG: lock file, held (flock) by the owner for its whole life: whoever can lock it may
 *   clean up. Its text is the folder below which the groups are.
 * - isbTAG: the bridge, with an address of its own.
 * - isvTAG.K: the bridge's end of machine K's link; the other end is eth0 inside.
 * - inspan-TAG-K: network namespace and cgroup of machine K.
 */
#ifndef HOST_LAB_PARTS_H
#define HOST_LAB_PARTS_H

#include "platform/host/lab.h"

#include "base/units.h"

#define LAB_FOLDER       "/run/inspan-lab"
#define LAB_MACHINES_MAX 64
#define LAB_TAG_SIZE     16
#define LAB_NAME_SIZE    LAB_NETWORK_SIZE
#define LAB_PATH_SIZE    LAB_GROUP_SIZE
#define LAB_BOUND        (10 * NS_PER_S) /* of each program, and of killing what is inside */

/* Run a program of iproute2 with these words and wait for it; its complaint becomes the text. IO,
 * UNSUPPORTED. */
inspan_status_t lab_run_words(const char *const *words, inspan_error_t *err);
#define lab_run(err, ...) lab_run_words((const char *const[]){__VA_ARGS__, NULL}, err)
/* The same, and what it printed; what does not fit is lost. */
inspan_status_t lab_run_output(const char *const *words, char *text, size_t size, inspan_error_t *err);

/* Path of a program in the places where root's programs are; false: not there. */
bool lab_find_program(const char *name, char *path, size_t size);

/* ---- Network ---- */

/* Build bridge, namespaces and links; *subnet is the /24 that was free, host byte order. On failure call
 * close. */
inspan_status_t lab_net_open(const char *tag, uint32_t machines, const lab_link_t *links, uint32_t *subnet,
                             inspan_error_t *err);
/* Kill what runs in the tag's namespaces, remove them, links and bridge: whatever of it there is. */
void lab_net_close(const char *tag);
void lab_namespace_name(const char *tag, uint32_t machine, char name[LAB_NAME_SIZE]);
/* One end of a link: what leaves by this device gets that rate; a second call changes it, and what waits in
 * the queue stays there. namespace_name NULL: outside. 0 bits: not shaped, which a later call does not undo.
 */
inspan_status_t lab_net_shape(const char *namespace_name, const char *device, uint64_t bits_per_s,
                              inspan_error_t *err);
/* 0: not shaped. */
inspan_status_t lab_net_rate(const char *namespace_name, const char *device, uint64_t *bits_per_s,
                             inspan_error_t *err);

/* ---- CPU ---- */

typedef struct lab_cpu {
    bool unified;               /* cgroup v2 */
    char point[LAB_PATH_SIZE];  /* where the hierarchy is mounted */
    char top[LAB_PATH_SIZE];    /* the group that is seen there; "" for the hierarchy's own root */
    char parent[LAB_PATH_SIZE]; /* the folder that gets our groups */
} lab_cpu_t;

/* Find the hierarchy that has the cpu controller; changes nothing. root: put before /proc and /sys, "" in
 * production and a folder in tests. UNSUPPORTED. */
inspan_status_t lab_cpu_find(const char *root, lab_cpu_t *cpu, inspan_error_t *err);
/*
 * Version 2 alone: hand the controller down to the groups below `parent`. A group that does so may hold no
 * process (but the machine's own root group): what is in it moves to a group beside ours, and stays there.
 * UNSUPPORTED.
 */
inspan_status_t lab_cpu_enable(const lab_cpu_t *cpu, inspan_error_t *err);
/* Make the group of a machine: without a quota yet. LIMIT, IO. */
inspan_status_t lab_cpu_make(const lab_cpu_t *cpu, const char *tag, uint32_t machine,
                             char group[LAB_PATH_SIZE], inspan_error_t *err);
/* INVALID: too little for the kernel; IO. */
inspan_status_t lab_cpu_set(bool unified, const char *group, double cores, inspan_error_t *err);
/* Kill what runs in the tag's groups below `parent` and remove them. */
void lab_cpu_close(const char *parent, const char *tag);
/* The group that a process is in, if it is one of a laboratory (of whichever owner). */
bool lab_cpu_group_of(const char *root, const lab_cpu_t *cpu, int64_t pid, char group[LAB_PATH_SIZE]);

#endif
