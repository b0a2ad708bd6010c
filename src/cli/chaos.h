/*
 * Breaking a job on purpose: what can be broken on this machine, the faults, and the report.
 *
 * Only processes of this machine are touched: the workers of the job, their agents and the manager, found by
 * pid and command line; and links of a laboratory. Nodes elsewhere are left alone (run it there too).
 */
#ifndef CLI_CHAOS_H
#define CLI_CHAOS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/rng.h"
#include "base/units.h"
#include "base/vec.h"
#include "inspan/v1/inspan.pb-c.h"
#include "platform/host/lab.h"
#include "platform/json/json.h"

typedef enum chaos_kind {
    CHAOS_WORKER,  /* kill -9 of a worker                              */
    CHAOS_AGENT,   /* kill -9 of an agent                              */
    CHAOS_MANAGER, /* kill -9 of the manager                           */
    CHAOS_FREEZE,  /* SIGSTOP of a worker, SIGCONT after `hold`        */
    CHAOS_LINK,    /* a machine's link down, up again after `hold`     */
    CHAOS_KINDS
} chaos_kind_t;

const char *chaos_kind_text(chaos_kind_t kind);
/* "worker,agent" into a set of bits; NULL: all. INVALID names the word. */
inspan_status_t chaos_parse_kinds(const char *text, uint32_t *kinds, inspan_error_t *err);

typedef struct chaos_fault {
    chaos_kind_t kind;
    int32_t rank; /* -1: the manager */
    char node[64];
    char device[LAB_DEVICE_SIZE]; /* LINK */
    pid_t pid;
    ns_t at;        /* since the report's start, as all below; 0 where it has not happened */
    ns_t known;     /* a new view was announced, or the job has ended */
    ns_t committed; /* the first step that was committed after it was known */
    ns_t whole;     /* all members are back */
    ns_t undo_at;   /* FREEZE, LINK */
} chaos_fault_t;

/* Pick a victim among the active ranks of the job that live here. NOT_FOUND: none for this kind, says why. */
inspan_status_t chaos_pick(chaos_kind_t kind, const Inspan__V1__JobInfo *job, rng_t *rng,
                           chaos_fault_t *fault, inspan_error_t *err);
inspan_status_t chaos_do(const chaos_fault_t *fault, inspan_error_t *err);
/* SIGCONT, link up; a process that is gone meanwhile is fine. */
inspan_status_t chaos_undo(const chaos_fault_t *fault, inspan_error_t *err);

/* ---- What was seen --------------------------------------------------------------------------- */

typedef struct chaos_report {
    uint64_t job;
    vec_of(chaos_fault_t) faults;
    ns_t quiet, length;          /* of the undisturbed time before, of the time with faults */
    uint64_t quiet_steps, steps; /* committed in each */
    uint64_t recomputed;         /* samples */
    bool ledger_read, ledger_exact;
    uint64_t ledger_steps;
    char violation[512]; /* the first; empty: none */
} chaos_report_t;

double chaos_goodput(const chaos_report_t *report,
                     bool without_detection); /* share of the undisturbed rate */
json_t *chaos_json(const chaos_report_t *report);
void chaos_show(FILE *out, const chaos_report_t *report);

#endif
