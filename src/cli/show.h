/* Nodes and jobs as tables for people and as JSON for programs. */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

#include <stdio.h>

#include "inspan/v1/inspan.pb-c.h"
#include "platform/json/json.h"

json_t *show_nodes_json(const Inspan__V1__NodeList *list);
void show_nodes(FILE *out, const Inspan__V1__NodeList *list);

json_t *show_jobs_json(const Inspan__V1__JobList *list);
void show_jobs(FILE *out, const Inspan__V1__JobList *list);

/* All that is known of one job, with each rank's node, pid and address. */
json_t *show_job_json(const Inspan__V1__JobInfo *job);
void show_job(FILE *out, const Inspan__V1__JobInfo *job);

/* What was said of speeds; members that the job did without. */
json_t *show_verdicts_json(const Inspan__V1__JobInfo *job);
json_t *show_left_out_json(const Inspan__V1__JobInfo *job);
/* Share of a step, speed, micro-batch as last told, into `object`. */
void show_set_speed(json_t *object, const Inspan__V1__Progress *progress);
json_t *show_failure_json(const Inspan__V1__Failure *failure); /* NULL: null */

/* Foreign bytes as a string member: what is no UTF-8, and a byte 0, becomes U+FFFD. */
void show_set_bytes(json_t *object, const char *key, const char *bytes, size_t n);

/* Print the value on one line to stdout and free it; the exit code: 0, or 2 when out of memory. */
int show_print_json(json_t *value);

#endif
