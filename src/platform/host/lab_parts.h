/*
 * The laboratory's parts, private to lab*.c. Everything of one laboratory carries its tag, "PIDletter"
 * ("4711a"):
 *
 *   /run/inspan-lab/TAG     lock file, held (flock) by the owner for its whole life: whoever can lock it may
 * clean up isbTAG                  the bridge, with an address of its own isvTAG.K                the
 * bridge's end of machine K's link; the other end is eth0 inside inspan-TAG-K            network namespace
 * and cgroup of machine K
 */
#ifndef HOST_LAB_PARTS_H
#define HOST_LAB_PARTS_H

#include "platform/host/lab.h"

#include "base/units.h"

#define LAB_FOLDER       "/run/inspan-lab"
#define LAB_MACHINES_MAX 64
#define LAB_TAG_SIZE     16
#define LAB_NAME_SIZE    48
#define LAB_PATH_SIZE    512
#define LAB_BOUND        (10 * NS_PER_S) /* of each program, and of killing what is inside */

/* Run a program of iproute2 with these words and wait for it; its complaint becomes the text. IO,
 * UNSUPPORTED. */
inspan_status_t lab_run_words(const char *const *words, inspan_error_t *err);
#define lab_run(err, ...) lab_run_words((const char *const[]){__VA_ARGS__, NULL}, err)

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

/* ---- CPU ---- */

typedef struct lab_cpu {
    bool unified;               /* cgroup v2 */
    char parent[LAB_PATH_SIZE]; /* the folder that gets our groups */
} lab_cpu_t;

/* Find the hierarchy that has the cpu controller. UNSUPPORTED. */
inspan_status_t lab_cpu_find(lab_cpu_t *cpu, inspan_error_t *err);
inspan_status_t lab_cpu_open(const lab_cpu_t *cpu, const char *tag, uint32_t machine, double cores,
                             char group[LAB_PATH_SIZE], inspan_error_t *err);
/* Kill what runs in the tag's groups and remove them. */
void lab_cpu_close(const lab_cpu_t *cpu, const char *tag);

#endif
