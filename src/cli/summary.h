/* The end of a training job: one object for programs, a table of its ranks for people. */
#ifndef CLI_SUMMARY_H
#define CLI_SUMMARY_H

#include <stdio.h>

#include "inspan/v1/inspan.pb-c.h"
#include "platform/json/json.h"

/*
 * job, name, state, steps, samples, samples_per_s, loss_first, loss_last, validation_first, validation_last,
 * wall_s, compute_s and exposed_comm_s (the largest of the ranks), bytes_sent (of all), views,
 * samples_recomputed, param_hash (null with hashes_differ true if the ranks do not agree), nodes: per rank
 * node, address, samples, share, samples_per_s (of pure compute), compute_s, exposed_comm_s, input_s,
 * bytes_sent, param_hash. A job that did not end well has `error` too. The ranks' own summaries are foreign
 * text: what is missing or malformed there is null here.
 */
json_t *summary_json(const Inspan__V1__JobInfo *job);

/* The same as text, from that object. */
void summary_print(FILE *out, const json_t *summary);

#endif
